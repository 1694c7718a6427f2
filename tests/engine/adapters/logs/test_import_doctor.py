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
