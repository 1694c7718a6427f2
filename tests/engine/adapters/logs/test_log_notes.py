"""What a log leaves open is said: as a note of the run, or as a refusal that names the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.engine.adapters.logs.test_log_formats import (
    EXPERTS,
    IDS,
    LAYERS,
    SAMPLE,
    SAMPLES,
    TOKENS,
    TOP_K,
    WEIGHTS,
    csv_rows,
    imported,
    lengths,
    megatron_lines,
    ribbons,
    some_ids,
    vllm_lines,
    write_csv,
    write_lines,
    write_parquet,
)
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
from tokenpaths.engine.adapters.logs.formats import OnlyCounts, open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS
from tokenpaths.engine.adapters.logs.responses.answers import OTHER_MODEL
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run


def notes(run: Run) -> list[str]:
    return run.info()["findings"]["notes"]


def test_notes_and_whether_weights_are_recorded_are_findings(tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS)
    with imported(tmp_path, tmp_path / "log.npy", experts=EXPERTS) as run:
        assert notes(run) == ["the log holds no weights: 1/2 stands in for each"]
        assert run.info()["findings"]["weights_recorded"] is False
    np.savez(tmp_path / "log.npz", ids=IDS, weights=WEIGHTS, num_experts=np.array(EXPERTS))
    with imported(tmp_path, tmp_path / "log.npz") as run:
        assert run.info()["findings"] == {"notes": [], "weights_recorded": True}


def lines_with(ids: np.ndarray) -> list[dict]:
    lines = vllm_lines(lambda part: part.tolist())
    for line, part in zip(lines, np.split(ids, np.cumsum(SAMPLES)[:-1]), strict=True):
        line["choices"][0]["routed_experts"] = part.tolist()
    return lines


def test_with_one_expert_a_token_a_dense_layer_cannot_be_told(tmp_path: Path):
    ids = np.insert(IDS[:, :, :1], 1, 0, axis=1)
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", lines_with(ids))) as run:
        assert ribbons(run) == ids.tolist()
        assert "every token has expert 0 at layer 1: with one expert a token, dense layers" in notes(run)[-1]
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", lines_with(IDS[:, :, :1]))) as run:
        assert not any("expert 0" in note for note in notes(run))


def test_a_layer_of_zeros_that_is_routed_later(tmp_path: Path):
    ids = np.insert(IDS, 0, 0, axis=1)
    ids[SAMPLES[0] :, 0] = [1, 2]
    file = write_lines(tmp_path / "log.jsonl", lines_with(ids))
    refused(tmp_path, file, "line 2: layer 0 has decisions here, but zeros only in .*line 1; a layer is dense")


@pytest.mark.parametrize("kind", ["npy", "npz"])
def test_dense_layers_of_a_saved_array_are_left_out(kind: str, tmp_path: Path):
    ids = np.insert(IDS, 1, 0, axis=1)
    file = tmp_path / f"log.{kind}"
    if kind == "npy":
        np.save(file, ids)
    else:
        weights = np.insert(-np.sort(-WEIGHTS, axis=2), 1, 0, axis=1)
        np.savez(file, ids=ids, weights=weights, layers=np.array(list("abcd")))
    with imported(tmp_path, file) as run:
        assert ribbons(run) == IDS.tolist()
        assert notes(run)[0] == "1 dense layer, filled with zeros by the engine, is left out"
        names = ["layer 0", "layer 2", "layer 3"] if kind == "npy" else ["a", "c", "d"]
        assert run.info()["config"]["import"]["layers"] == names


def test_models_are_compared_from_the_first_line_that_names_one(tmp_path: Path):
    lines = vllm_lines(lambda ids: ids.tolist())
    del lines[0]["model"]
    lines[2]["model"] = "other"
    file = write_lines(tmp_path / "log.jsonl", lines)
    refused(tmp_path, file, "line 3: is of the model 'other', the log began with 'org/m'")


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize("open_it", [open_log, open_confined_log])
def test_adapters_of_one_model_are_read_as_of_one_where_the_user_names_it(
    open_it: Any, as_folder: bool, tmp_path: Path
) -> None:
    lines = vllm_lines(lambda ids: ids.tolist())
    lines[2]["model"] = "my-lora"
    if as_folder:
        (tmp_path / "log").mkdir()
        write_lines(tmp_path / "log" / "a.jsonl", lines[:2])
        file = write_lines(tmp_path / "log" / "b.jsonl", lines[2:]).parent
    else:
        file = write_lines(tmp_path / "log.jsonl", lines)
    with pytest.raises(
        UserError, match="another model than a" if as_folder else "say --model where these are adapters"
    ):
        list(open_it(file).pieces())
    log = open_it(file, model="ours")
    counted = [kind for piece in log.pieces() for kind, _ in piece.counted]
    assert log.model == "ours"
    assert counted == ([] if as_folder else [OTHER_MODEL])
    names = ["org/m", "my-lora"] if as_folder else ["org/m"]
    assert log.note == "; ".join(f"the responses name the model {name}, not ours as announced" for name in names)


def test_one_response_without_token_ids_keeps_those_of_the_others(tmp_path: Path):
    lines = vllm_lines(lambda ids: ids.tolist())
    del lines[1]["choices"][0]["token_ids"]
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", lines)) as run:
        found = [[t["token_id"] for t in run.sample(i)["tokens"]] for i in range(3)]
        assert found == [[1, 2, *range(13)], [1, 2, None, None, None], [1, 2, *range(18)]]
        assert "1 of 3 samples have token ids for some of their tokens only" in notes(run)


def test_the_text_of_an_answer_stands_behind_its_prompt(tmp_path: Path):
    choice = {"token_ids": [2, 3], "text": "c d", "routed_experts": IDS[:3].tolist()}
    line = {"prompt_token_ids": [0, 1], "choices": [choice]}
    log = open_log(write_lines(tmp_path / "log.jsonl", [line]))
    texts = {0: "a ", 1: "b", 2: " c", 3: " d"}
    with Run.open(import_log(log, tmp_path / "runs", "said", token_texts=texts)) as run:
        sample = run.sample(0)
        assert sample["text"] == "a b c"
        assert [(t["text"], t["char_start"], t["char_end"]) for t in sample["tokens"]] == [
            ("a ", 0, 2),
            ("b", 2, 3),
            (" c", 3, 5),
        ]


def test_a_tokenizer_without_token_ids_is_noted(tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS)
    log = open_log(tmp_path / "log.npy")
    with Run.open(import_log(log, tmp_path / "runs", "said", token_texts={0: "a"})) as run:
        assert notes(run)[-1] == "the log holds no token ids, so the tokenizer has nothing to show"


@pytest.mark.parametrize("value", [2**31, 2**33 + 7, -1])
def test_token_ids_that_no_vocabulary_has(value: int, tmp_path: Path):
    token_id = np.arange(TOKENS)
    token_id[7] = value
    np.savez(tmp_path / "log.npz", ids=IDS, token_id=token_id)
    refused(tmp_path, tmp_path / "log.npz", f"row 7: token id {value}; token ids should be whole numbers from 0 to")
    lines = vllm_lines(lambda ids: ids.tolist())
    lines[1]["choices"][0]["token_ids"][0] = value
    file = write_lines(tmp_path / "log.jsonl", lines)
    refused(tmp_path, file, f"line 2: token_ids holds {value}; token ids are whole numbers from 0 to")


EXPERT_NUMBERS = {
    "fraction": (8.5, "it should be (one|a) whole number"),
    "text": ("eight", "it should be (one|a) whole number"),
    "zero": (0, "num_experts is 0, it should be a whole number from 1 to 65536"),
    "negative": (-8, "num_experts is -8"),
    "huge": (10**9, "num_experts is 1000000000, it should be a whole number from 1 to 65536"),
    "nothing": ([], "it should be (one|a) whole number"),
}


@pytest.mark.parametrize("fault", EXPERT_NUMBERS)
def test_numbers_of_experts_that_cannot_be(fault: str, tmp_path: Path):
    value, message = EXPERT_NUMBERS[fault]
    np.savez(tmp_path / "log.npz", ids=IDS, num_experts=np.array(value))
    refused(tmp_path, tmp_path / "log.npz", message)
    refused(tmp_path, with_metadata(tmp_path, num_experts=value), message)


def with_metadata(tmp_path: Path, **about: object) -> Path:
    file = write_parquet(tmp_path / "log.parquet")
    table = pq.read_table(file)
    pq.write_table(table.replace_schema_metadata({"tokenpaths": json.dumps(about)}), file)
    return file


def test_another_number_of_experts_than_announced(tmp_path: Path):
    np.savez(tmp_path / "log.npz", ids=IDS, num_experts=np.array(10))
    for file in (tmp_path / "log.npz", with_metadata(tmp_path, num_experts=10)):
        refused(tmp_path, file, "has 10 experts a layer, not 64 as announced", experts=64)


def test_more_experts_than_a_run_can_hold(tmp_path: Path):
    np.save(tmp_path / "log.npy", some_ids(4, layers=20))
    refused(tmp_path, tmp_path / "log.npy", "20 layers of 65536 experts are more than", experts=65_536)


METADATA = {
    "layers as text": ({"num_layers": "3"}, "num_layers in the metadata 'tokenpaths' is '3', it should be a whole"),
    "layers as a number": ({"layers": 4}, "layers in the metadata 'tokenpaths' is 4, it should be a list of names"),
    "a model's number": ({"model": 5}, "model in the metadata 'tokenpaths' is 5, it should be a name"),
}


@pytest.mark.parametrize("fault", METADATA)
def test_wrong_metadata(fault: str, tmp_path: Path):
    about, message = METADATA[fault]
    refused(tmp_path, with_metadata(tmp_path, **about), message)


ARCHIVES: dict[str, tuple[dict, str]] = {
    "two arrays of ids": ({"ids": IDS, "expert_ids": IDS}, "has 'ids' and 'expert_ids'; ids are one array"),
    "too many labels": ({"ids": IDS, "sample": SAMPLE, "label": np.array(list("abcd"))}, "4 entries in 'label', but 3"),
    "other weights": ({"ids": IDS, "weights": np.ones((TOKENS, LAYERS, 3)) / 3}, r"has shape \(40, 3, 3\), it should"),
    "samples in rows": ({"ids": IDS, "sample": np.stack([SAMPLE] * 2, 1)}, r"'sample': has shape \(40, 2\), it should"),
    "no model": ({"ids": IDS, "model": np.array([], dtype=str)}, "'model': holds 0 values, it should be one name"),
    "prompt and answer": (
        {"prompt_routed_experts": np.zeros((3, 4, 2), int), "routed_experts": np.zeros((3, 2, 2), int)},
        "prompt and answer have different layers or top-k",
    ),
}


@pytest.mark.parametrize("fault", ARCHIVES)
def test_wrong_archives(fault: str, tmp_path: Path):
    arrays, message = ARCHIVES[fault]
    np.savez(tmp_path / "log.npz", **arrays)
    refused(tmp_path, tmp_path / "log.npz", message)


@pytest.mark.parametrize("text", [None, "whole"])
def test_pieces_lack_the_text_only_where_there_is_one(tmp_path: Path, text: str | None):
    n = CUT_TOKENS + 5
    said = ["2 pieces of samples longer than 2,048 tokens are a sample each" + (", without the text" if text else "")]
    given = {} if text is None else {"text": np.array([text])}
    np.savez(tmp_path / "log.npz", ids=some_ids(n), sample=np.zeros(n, int), **given)
    choice = {"routed_experts": some_ids(n).tolist()} | ({} if text is None else {"text": text})
    write_lines(tmp_path / "log.jsonl", [{"choices": [choice]}])
    for name in ("log.npz", "log.jsonl"):
        with imported(tmp_path, tmp_path / name) as run:
            assert [note.split(" (")[0] for note in notes(run) if "longer than" in note] == said


def test_a_long_sample_is_handed_out_in_pieces(tmp_path: Path):
    ids = some_ids(2 * CUT_TOKENS + 9)
    sample = np.repeat([0, 7], [5, 2 * CUT_TOKENS + 4])
    np.savez(tmp_path / "log.npz", ids=ids, sample=sample, label=np.array(["x", "y"]), text=np.array(["s", "long"]))
    log = open_log(tmp_path / "log.npz")
    assert [piece.num_tokens for piece in log.pieces()] == [5, CUT_TOKENS, CUT_TOKENS, 4]
    with imported(tmp_path, tmp_path / "log.npz") as run:
        assert ribbons(run) == ids.tolist()
        found = [run.sample(i) for i in range(4)]
        assert [one["label"] for one in found] == list("xyyy")
        assert [one["text"] for one in found] == ["s", None, None, None]
        assert found[3]["source"] == f"sample 7, tokens {2 * CUT_TOKENS} to {2 * CUT_TOKENS + 3}"


HEADER = "call,token,layer,expert,weight\n"


@pytest.mark.parametrize(("column", "value"), [(3, -7), (4, "nan"), (2, -1), (4, 7)])
@pytest.mark.parametrize("blank", [0, 2])
def test_the_line_of_a_wrong_row_is_named(column: int, value: object, blank: int, tmp_path: Path):
    rows = csv_rows(True)
    rows[50][column] = value
    file = write_csv(tmp_path / "log.csv", rows[:20], "\n" * blank + HEADER)
    with file.open("a") as stream:
        stream.write("\n" * blank + write_csv(tmp_path / "rest.csv", rows[20:]).read_text())
    what = {3: "expert -7", 2: "layer -1"}.get(column, f"weight {value}")
    refused(tmp_path, file, rf"line {52 + 2 * blank}: {what}, but")


@pytest.mark.parametrize("before", ["\ufeff", "\n\n", "\ufeff\n# a comment\n"])
@pytest.mark.parametrize("with_header", [True, False])
def test_a_byte_order_mark_and_blank_lines_before_a_csv(before: str, with_header: bool, tmp_path: Path):
    file = tmp_path / "log.csv"
    write_csv(file, csv_rows(with_header), before + (HEADER if with_header else ""))
    with imported(tmp_path, file, top_k=TOP_K) as run:
        assert lengths(run) == SAMPLES


def parallel_rows(seq: bool) -> list[list]:
    """Two sequences of ten tokens side by side: each position has the rows of both."""
    pair = IDS[:20].reshape(2, 10, LAYERS, TOP_K)
    return [
        [position, layer, pair[s, position, layer, k], *([s] if seq else [])]
        for layer in range(LAYERS)
        for position in range(10)
        for s in range(2)
        for k in range(TOP_K)
    ]


def test_parallel_sequences_at_one_position(tmp_path: Path):
    expected = IDS[:20].tolist()
    file = write_csv(tmp_path / "log.csv", parallel_rows(False), "pos,layer,expert\n")
    refused(tmp_path, file, "the same expert twice")
    with imported(tmp_path, file, top_k=TOP_K) as run:
        assert (ribbons(run), lengths(run)) == (expected, [10, 10])
    with imported(tmp_path, write_csv(file, parallel_rows(True), "pos,layer,expert,seq\n")) as run:
        assert (ribbons(run), lengths(run)) == (expected, [10, 10])
        assert run.sample(1)["source"].endswith("sequence 1")
    alone = [row[:3] for row in parallel_rows(True) if row[3] == 0]
    with imported(tmp_path, write_csv(file, alone, "pos,layer,expert\n")) as run:
        assert "top-k 2 is the number of rows with one pos: say --top-k if sequences ran in parallel" in notes(run)


def test_the_line_of_a_wrong_id_of_megatron_is_named(tmp_path: Path):
    lines = megatron_lines()
    lines[5]["top_indices"][3][0] = -7
    refused(tmp_path, write_lines(tmp_path / "log.jsonl", lines), "line 6, token 3: expert -7 at layer 4")


def test_ranks_of_megatron_whose_lines_alternate(tmp_path: Path):
    ranks = [[line | {"rank": rank} for line in megatron_lines()] for rank in range(2)]
    same = [line for pair in zip(*ranks, strict=True) for line in pair]
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", same)) as run:
        assert lengths(run) == SAMPLES
        assert any("1 ranks hold the same rows as another one (tensor parallel)" in note for note in notes(run))
    ranks[1] = [line | {"top_indices": line["top_indices"][::-1]} for line in ranks[1]]
    lines = [line for pair in zip(*ranks, strict=True) for line in pair]
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", lines)) as run:
        assert lengths(run) == [length for length in SAMPLES for _ in range(2)]
        assert run.sample(0)["source"].endswith("rank 0)")
        assert [t["ribbon"] for t in run.sample(1)["tokens"]] == np.sort(IDS[: SAMPLES[0]], axis=2)[::-1].tolist()


COUNTS = {
    "a digit that is none": ({"expert_counts": {"0": {"²": 1}}}, "'²' is no expert id"),
    "a number": ({"expert_counts": 5}, "holds no expert_counts"),
}


@pytest.mark.parametrize("fault", COUNTS)
def test_wrong_aggregates(fault: str, tmp_path: Path):
    value, message = COUNTS[fault]
    (tmp_path / "counts.json").write_text(json.dumps(value, ensure_ascii=False))
    refused(tmp_path, tmp_path / "counts.json", message)


def test_aggregates_of_so_many_experts(tmp_path: Path):
    (tmp_path / "counts.json").write_text(json.dumps({"expert_counts": [[6, 2], [0, 8]]}))
    with pytest.raises(OnlyCounts) as caught:
        open_log(tmp_path / "counts.json", experts=8)
    assert [row["dead"] for row in caught.value.counts.load()] == [6, 7]
    assert [row["max_violation"] for row in caught.value.counts.load()] == [5.0, 7.0]
    refused(tmp_path, tmp_path / "counts.json", r"counts expert 1, but the experts are 0 … 0 \(announced\)", experts=1)
    refused(tmp_path, tmp_path / "counts.json", "has 2 layers, not 3 as announced", layers=3)


@pytest.mark.parametrize("about", ["text", ["a"], 3])
def test_a_response_whose_meta_info_is_no_object(about: object, tmp_path: Path):
    line = {"meta_info": about, "routed_experts": IDS[:4].tolist()}
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", [line])) as run:
        assert lengths(run) == [4]
