"""Wrong data that looks right: what the doctor of imports says of it, and that it says nothing of what is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.engine.adapters.logs.engine_logs import choices
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run

TOKENS, LAYERS, TOP_K, EXPERTS = 96, 4, 2, 16


def strided(tokens: int = TOKENS, layers: int = LAYERS, top_k: int = TOP_K, experts: int = EXPERTS) -> np.ndarray:
    """Top-k of a sort of all experts, read flat: E/K tokens of the result are one token of the model."""
    rng = np.random.default_rng(0)
    order = rng.random((tokens * top_k // experts, layers, experts)).argsort(axis=2)
    return order.transpose(0, 2, 1).reshape(-1, top_k, layers).transpose(0, 2, 1)


def found(tmp_path: Path, ids: np.ndarray, **options: int) -> list[tuple[str, str]]:
    np.save(tmp_path / "log.npy", ids)
    log, _ = pieces(tmp_path / "log.npy", **options)
    assert log.survey is not None
    return [(finding.test, finding.kind) for finding in log.survey.findings]


@pytest.mark.parametrize(("top_k", "experts"), [(1, 8), (2, 8), (2, 16), (4, 64), (8, 128)])
def test_a_strided_view(top_k: int, experts: int, tmp_path: Path):
    tokens = 24 * experts // top_k
    assert found(tmp_path, strided(tokens, 3, top_k, experts)) == [("strided view", "artefact")]
    assert found(tmp_path, choices(tokens, 0, 3, top_k, experts), experts=experts) == []


def test_a_strided_view_stops_the_import_unless_although(tmp_path: Path):
    np.save(tmp_path / "log.npy", strided())
    log, _ = pieces(tmp_path / "log.npy")
    refused(tmp_path, tmp_path / "log.npy", "every 8 consecutive tokens visit all 16 experts .*say --although")
    with Run.open(import_log(log, tmp_path / "runs", "artefact", although=True)) as run:
        findings = run.info()["findings"]
        (finding,) = findings["import_doctor"]
        assert (finding["test"], finding["kind"]) == ("strided view", "artefact")
        assert finding["sentence"] in findings["notes"]


def test_a_strided_view_behind_which_decode_steps_follow(tmp_path: Path):
    ids = np.concatenate([strided(48), choices(200, 5, LAYERS, TOP_K, EXPERTS)])
    assert found(tmp_path, ids, experts=EXPERTS) == [("strided view", "artefact")]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_said_of_random_choices(seed: int, tmp_path: Path):
    for tokens, experts, top_k in ((17, 4, 2), (100, 4, 2), (300, 8, 2), (40, 16, 1)):
        assert found(tmp_path, choices(tokens, seed, LAYERS, top_k, experts), experts=experts) == []


def test_axes_in_another_order(tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS).swapaxes(0, 1).copy()
    assert found(tmp_path, ids, experts=EXPERTS) == [("many layers", "warning")]
    with pytest.raises(UserError, match=r"first axis has the 4 layers announced; .* save ids.transpose\(1, 0, 2\)"):
        found(tmp_path, ids, layers=LAYERS)
    many = choices(300, 0, 201, TOP_K, EXPERTS)
    assert found(tmp_path, many, experts=EXPERTS) == [("many layers", "warning")]
    assert found(tmp_path, many[:, :200].copy(), experts=EXPERTS) == []


def test_layers_that_never_change(tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS)
    ids[:, 2] = [3, 5]
    assert found(tmp_path, ids) == [("layers that never change", "warning")]
    ids[:] = ids[0]
    assert found(tmp_path, ids) == [("layers that never change", "artefact")]
    assert found(tmp_path, np.zeros((TOKENS, LAYERS, 1), int), experts=8) == [("layers that never change", "artefact")]


def test_equal_layers(tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS)
    ids[:, 3] = ids[:, 1, ::-1]
    np.save(tmp_path / "log.npy", ids)
    refused(tmp_path, tmp_path / "log.npy", "layer 1, layer 3 hold the same ids for all 96 tokens")


@pytest.mark.parametrize("value", [0, 255])
def test_fill_values(value: int, tmp_path: Path):
    """Zeros for the prompt of some layers, and for all layers of padding."""
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS)
    ids[:20, 1], ids[:5] = value, value
    np.save(tmp_path / "log.npy", ids)
    log, (piece,) = pieces(tmp_path / "log.npy", experts=EXPERTS)
    assert piece.num_tokens == TOKENS - 5
    assert ((piece.ids < 0).all(axis=2).sum(axis=0) == [0, 15, 0, 0]).all()
    assert dict(piece.counted) == {
        "{n} token{s} without any decision {are} left out: every slot of every layer holds a fill value": 5
    }
    assert log.survey is not None
    assert log.survey.sentences() == [
        "15 of 364 decisions are not in the log (at layer 1): these steps are kept as unknown"
    ]
    with Run.open(import_log(log, tmp_path / "runs", "filled")) as run:
        usage = run.usage()
        assert sum(cell["count"] for cell in usage["usage"] if cell["step"] == 1) == (TOKENS - 20) * TOP_K
        assert not usage["steps"][1]["dead"]


def test_layers_of_a_draft_model(tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS)
    ids[:-4, 0] = 0
    np.save(tmp_path / "log.npy", ids)
    log, _ = pieces(tmp_path / "log.npy", experts=EXPERTS)
    assert log.survey is not None
    assert "layer 0 may belong to a draft model" in log.survey.sentences()[0]


def test_samples_that_repeat_and_prefixes_that_are_shared(tmp_path: Path):
    ids = choices(4 * 30, 0, LAYERS, TOP_K, EXPERTS).reshape(4, 30, LAYERS, TOP_K)
    ids[1], ids[2, :20] = ids[0], ids[3, :20]
    np.savez(tmp_path / "log.npz", ids=ids.reshape(-1, LAYERS, TOP_K), sample=np.repeat(range(4), 30))
    log, _ = pieces(tmp_path / "log.npz", experts=EXPERTS)
    assert log.survey is not None
    assert log.survey.sentences() == [
        "1 of 4 samples repeat all decisions of an earlier one: each is counted",
        "1 sample(s) begin with the same 16 decisions as an earlier one: prefixes that requests share are counted "
        "several times",
    ]


def test_ids_that_are_never_used(tmp_path: Path):
    assert found(tmp_path, choices(1000, 0), experts=64) == [("unused ids", "warning")]


def test_a_log_without_any_decision(tmp_path: Path):
    np.save(tmp_path / "log.npy", np.full((TOKENS, LAYERS, TOP_K), 255))
    with pytest.raises(UserError, match="holds no token"):
        pieces(tmp_path / "log.npy")


@pytest.mark.parametrize("fill", [255, 65_535])
def test_a_slot_that_is_filled_is_taken_for_an_expert_aloud(fill: int, tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS).astype(np.uint16)
    ids[5, 1, 1] = fill
    assert found(tmp_path, ids) == [("slots without an expert", "warning")]
    assert found(tmp_path, ids, experts=EXPERTS) == []  # then it holds none
    assert found(tmp_path, choices(TOKENS, 0, LAYERS, TOP_K, 256)) == []
    wide = choices(TOKENS, 0, LAYERS, TOP_K, (fill + 1) // 2 if fill == 255 else 1024).astype(np.uint16)
    wide[5, 1, 1] = fill
    assert found(tmp_path, wide) == [("slots without an expert", "warning")]


def samples(tmp_path: Path, parts: list[np.ndarray], **options: int) -> list[tuple[str, str]]:
    """Findings of a log of these samples."""
    numbers = np.repeat(range(len(parts)), [len(part) for part in parts])
    np.savez(tmp_path / "log.npz", ids=np.concatenate(parts), sample=numbers)
    log, _ = pieces(tmp_path / "log.npz", **options)
    assert log.survey is not None
    return [(finding.test, finding.sentence) for finding in log.survey.findings]


def test_a_strided_view_of_prompts_that_are_shorter_than_a_permutation(tmp_path: Path):
    each = 64 // 8
    whole = strided(40 * each, 2, 8, 64).reshape(40, each, 2, 8)
    ((test, sentence),) = samples(tmp_path, list(whole[:, : each - 1]), experts=64)
    assert test == "strided view"
    assert "consecutive tokens share no expert until all 64 were used" in sentence
    assert samples(tmp_path, [choices(each - 1, seed, 2, 8, 64) for seed in range(40)], experts=64) == []
    # The same words at the end of all samples, whose experts are apart by themselves, are one window.
    ends = [np.concatenate([choices(each, seed, 2, 8, 64), whole[0, : each - 1]]) for seed in range(40)]
    assert samples(tmp_path, ends, experts=64) == []


def test_a_strided_view_where_a_permutation_is_no_whole_number_of_tokens(tmp_path: Path):
    """6 of 64 experts: ten tokens and two thirds of another."""
    rng = np.random.default_rng(0)
    flat = [rng.random((1, 2, 64)).argsort(axis=2)[:, :, :60].reshape(2, 10, 6).transpose(1, 0, 2) for _ in range(30)]
    ((test, _),) = samples(tmp_path, flat, experts=64)
    assert test == "strided view"
    assert samples(tmp_path, [choices(10, seed, 2, 6, 64) for seed in range(30)], experts=64) == []
    # The eleventh token is of two permutations, and may have an expert twice.
    np.save(
        tmp_path / "log.npy",
        rng.random((40, 2, 64))
        .argsort(axis=2)
        .transpose(0, 2, 1)
        .reshape(-1, 2)[:2556]
        .reshape(426, 6, 2)
        .transpose(0, 2, 1),
    )
    refused(tmp_path, tmp_path / "log.npy", "the same expert twice .*was a view of the scores read flat", experts=64)


def test_one_expert_everywhere(tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS) + 1
    ids[:, :, 1] = 0
    assert found(tmp_path, ids, experts=EXPERTS + 1) == [("one expert everywhere", "warning")]
    ids[-1, :2, 1] = [EXPERTS + 1, EXPERTS + 2]
    np.save(tmp_path / "log.npy", ids)
    log, _ = pieces(tmp_path / "log.npy")
    assert log.survey is not None
    (finding,) = log.survey.findings
    assert finding.sentence.startswith("at layer 2, layer 3 all 96 tokens have an expert in common (0)")
    few = np.sort(np.random.default_rng(0).random((60, 2, 9)).argsort(axis=2)[:, :, :8])  # by chance, 8 of 9
    assert found(tmp_path, few[(few == 3).any(axis=2).all(axis=1)][:40], experts=9) == []


def without_last(ids: np.ndarray, prompt: int) -> np.ndarray:
    """A prompt of which only the last token has the last layer."""
    ids = ids.copy()
    ids[: prompt - 1, -1] = -1
    return ids


@pytest.mark.parametrize("prompt", [9, 40])
def test_layers_that_never_change_or_are_equal_where_prompts_lack_the_last_one(prompt: int, tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS)
    gaps = ("unrecorded steps", "warning")
    ids[:, -1] = [3, 5]
    assert found(tmp_path, without_last(ids, prompt)) == [("layers that never change", "warning"), gaps]
    ids[:, -1] = ids[:, 2, ::-1]
    assert found(tmp_path, without_last(ids, prompt)) == [("equal layers", "artefact"), gaps]
    ids[-1, -1] = (ids[-1, -1] + 1) % EXPERTS
    assert found(tmp_path, without_last(ids, prompt)) == [gaps]


def test_few_decisions_of_a_layer_say_nothing_of_it(tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, TOP_K, EXPERTS)
    ids[:, -1] = [3, 5]
    assert found(tmp_path, without_last(ids, TOKENS - 8)) == [("unrecorded steps", "warning")]


def test_shared_prefixes_beside_short_samples_that_repeat(tmp_path: Path):
    ids = choices(80, 0, LAYERS, TOP_K, EXPERTS)
    parts = [np.concatenate([ids[:16], ids[20:29]]), np.concatenate([ids[:16], ids[30:39]])]
    said = samples(tmp_path, [*parts, *[ids[40:43]] * 4, parts[0]], experts=EXPERTS)
    assert [sentence.split(" ")[0] for _, sentence in said] == ["4", "1"]
    assert [test for test, _ in said] == ["repeated samples", "shared prefixes"]


def test_255_among_more_than_half_as_many_experts(tmp_path: Path):
    ids = choices(4000, 0, LAYERS, TOP_K, 200).astype(np.uint8)
    ids[::7, 1, 1] = 255
    assert found(tmp_path, ids) == [("slots without an expert", "warning")]
    assert found(tmp_path, ids, experts=200) == []
    assert found(tmp_path, choices(4000, 0, LAYERS, TOP_K, 256)) == []
    dead = choices(4000, 0, 1, 1, 256)
    dead[dead == 254] = 0
    assert found(tmp_path, dead) == []


def test_rows_of_zeros_where_a_token_has_one_expert(tmp_path: Path):
    ids = choices(TOKENS, 0, LAYERS, 1, EXPERTS)
    ids[:20] = 0
    assert found(tmp_path, ids, experts=EXPERTS) == [("rows of zeros", "warning")]
    ids[40:60] = 7  # another expert is as common as expert 0
    assert found(tmp_path, ids, experts=EXPERTS) == []
    assert found(tmp_path, choices(TOKENS, 0, 1, 1, 2), experts=2) == []


def test_the_row_of_an_expert_behind_rows_that_are_left_out_is_named(tmp_path: Path):
    ids = choices(30, 0, LAYERS, TOP_K, EXPERTS)
    ids[3:6], ids[20, 1] = 0, [4, 4]
    np.save(tmp_path / "log.npy", ids)
    refused(tmp_path, tmp_path / "log.npy", "row 20: the same expert twice at layer 1")
