"""What is wrong with a log is said with file and line or row, and nothing of it is imported."""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.adapters.logs.test_log_formats import (
    EXPERTS,
    IDS,
    LAYERS,
    SAMPLE,
    TOKENS,
    TOP_K,
    WEIGHTS,
    csv_rows,
    megatron_lines,
    npy_base64,
    some_ids,
    vllm_lines,
    write_csv,
    write_lines,
    write_parquet,
)
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.base.errors import UserError


def refused(tmp_path: Path, file: Path, message: str, **options: object) -> None:
    """The log is refused with this, and no run, no half of one and no lock is left."""
    runs = tmp_path / "runs"
    with pytest.raises(UserError, match=message) as caught:
        import_log(open_log(file, **options), runs, "imported")  # type: ignore[arg-type]
    assert str(file) in str(caught.value)
    assert not runs.exists() or os.listdir(runs) == []


def changed(at: tuple[int, ...], value: float, of: np.ndarray = IDS) -> np.ndarray:
    copy = of.copy()
    copy[at] = value
    return copy


ARRAYS: dict[str, tuple[np.ndarray, str]] = {
    "negative": (changed((7, 1, 0), -3), r"row 7: expert -3 at layer 1 is negative; experts count from 0"),
    "too large": (changed((9, 2, 1), EXPERTS), r"row 9: expert 8 at layer 2, but the experts are 0 … 7 \(announced\)"),
    "twice": (changed((4, 0, 0), IDS[4, 0, 1]), r"row 4: the same expert twice at layer 0"),
    "fractions": (IDS.astype(float), "the ids are float64, they should be whole numbers"),
    "one axis": (IDS.reshape(-1), r"have shape \(240,\), they should be \(tokens, layers, top-k\)"),
    "no token": (IDS[:0], "holds no token"),
    "by columns": (np.asfortranarray(IDS), "stored column by column"),
}


@pytest.mark.parametrize("fault", ARRAYS)
def test_wrong_arrays(fault: str, tmp_path: Path):
    ids, message = ARRAYS[fault]
    np.save(tmp_path / "log.npy", ids)
    refused(tmp_path, tmp_path / "log.npy", message, experts=EXPERTS)


def test_the_row_is_named_where_the_number_of_experts_is_read_from_the_log(tmp_path: Path):
    np.save(tmp_path / "log.npy", changed((3000, 1, 0), -3, some_ids(5000)))
    refused(tmp_path, tmp_path / "log.npy", "row 3000: expert -3 at layer 1")


def test_a_fault_far_behind_what_was_written_already(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.importing.BATCH_BYTES", 1000)
    np.save(tmp_path / "log.npy", changed((4999, 1, 0), EXPERTS + 1, some_ids(5000)))
    refused(tmp_path, tmp_path / "log.npy", "row 4999: expert 9 at layer 1", experts=EXPERTS)


@pytest.mark.parametrize("options", [{"layers": 2}, {"top_k": 4}])
def test_another_shape_than_announced(options: dict[str, int], tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS)
    refused(tmp_path, tmp_path / "log.npy", "as announced", **options)


def cut(file: Path, by: int = 10) -> Path:
    file.write_bytes(file.read_bytes()[:-by])
    return file


def test_cut_off_files(tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS)
    refused(tmp_path, cut(tmp_path / "log.npy"), "is cut off: 40 rows are announced")
    np.save(tmp_path / "head.npy", IDS)
    (tmp_path / "head.npy").write_bytes((tmp_path / "head.npy").read_bytes()[:20])
    refused(tmp_path, tmp_path / "head.npy", "cut off")
    np.savez(tmp_path / "log.npz", ids=IDS, weight=np.ones(IDS.shape))
    refused(tmp_path, tmp_path / "log.npz", "the array 'weight' is not read; is it 'weights'")
    np.savez(tmp_path / "log.npz", ids=IDS)
    refused(tmp_path, cut(tmp_path / "log.npz"), "no whole .npz archive")
    refused(tmp_path, cut(write_parquet(tmp_path / "log.parquet")), "no whole Parquet file")
    refused(tmp_path, cut(write_lines(tmp_path / "log.jsonl", megatron_lines())), "line 9: is not JSON .* cut off")
    one = write_lines(tmp_path / "one.jsonl", megatron_lines()[:1])
    refused(tmp_path, cut(one), "line 1: is not JSON")
    middle = write_lines(tmp_path / "middle.jsonl", megatron_lines())
    first, second, *rest = middle.read_bytes().splitlines(keepends=True)
    middle.write_bytes(b"".join([first, b'{"step": "abc\n', second, *rest]))
    refused(tmp_path, middle, "line 2: .*Invalid control character, at the end of the line, after character 13")
    middle.write_bytes(b"".join([first, b'{"step": "abc" 12}\n', second, *rest]))
    refused(tmp_path, middle, "line 2: .*Expecting ',' delimiter, at character 16 of 18")
    lines = write_lines(tmp_path / "step.jsonl", megatron_lines()[:-1])
    refused(tmp_path, lines, r"line 7 \(step 2, rank 0\): this step has 2 layers, .* \(layer 4 is missing\)")
    rows = write_csv(tmp_path / "log.csv", csv_rows(True)[:-30], "call,token,layer,expert,weight\n")
    refused(tmp_path, rows, "line 122: the last layer of this pass has 5 tokens, the first 20; the log is cut off")
    bare = write_csv(tmp_path / "log.csv", csv_rows(False)[:-30])
    refused(tmp_path, bare, "line 121: the last layer of this pass has 5 tokens, the first 20", top_k=TOP_K)
    rows = write_csv(tmp_path / "log.csv", csv_rows(True)[:-40], "call,token,layer,expert,weight\n")
    refused(tmp_path, rows, "line 122: this pass has the layers 0 … 1")


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("executed",)


def test_pickles_run_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "counts.pkl").write_bytes(pickle.dumps(Harmful()))
    refused(
        tmp_path, tmp_path / "counts.pkl", r"holds \w+.mkdir, which this program does not load: a pickle can run code"
    )
    objects = np.array([Harmful()], dtype=object)
    np.save(tmp_path / "log.npy", objects, allow_pickle=True)
    refused(tmp_path, tmp_path / "log.npy", "pickled Python objects, which can run code")
    np.savez(tmp_path / "log.npz", ids=IDS, sample=SAMPLE, label=objects)
    refused(tmp_path, tmp_path / "log.npz", "array 'label': holds pickled Python objects")
    inside = base64.b64encode((tmp_path / "log.npy").read_bytes()).decode()
    lines = write_lines(tmp_path / "log.jsonl", [{"choices": [{"routed_experts": inside}]}])
    refused(tmp_path, lines, "line 1: routed_experts holds pickled Python objects")
    assert not (tmp_path / "executed").exists()


WEIGHT_FAULTS = {
    "NaN": (np.nan, "row 6: weight nan at layer 1, slot 0"),
    "negative": (-0.2, "row 6: weight -0.2 at layer 1"),
    "logit": (3.5, "row 6: weight 3.5 at layer 1, slot 0; weights are numbers from 0 to 1"),
    "infinite": (np.inf, "row 6: weight inf"),
}


@pytest.mark.parametrize("fault", WEIGHT_FAULTS)
def test_wrong_weights(fault: str, tmp_path: Path):
    value, message = WEIGHT_FAULTS[fault]
    weights = changed((6, 1, 0), value, WEIGHTS)
    np.savez(tmp_path / "log.npz", ids=IDS, weights=weights)
    refused(tmp_path, tmp_path / "log.npz", message)
    refused(tmp_path, write_parquet(tmp_path / "log.parquet", weights=weights.tolist()), message)


ARCHIVES: dict[str, tuple[dict, str]] = {
    "no ids": ({"other": IDS}, "has the arrays other, but no 'ids'"),
    "rows": ({"ids": IDS, "sample": SAMPLE[1:]}, "array 'sample': has 39 rows, but there are 40 tokens"),
    "order": ({"ids": IDS, "sample": SAMPLE[::-1]}, "row 20: sample 4 comes after sample 9"),
    "labels": ({"ids": IDS, "sample": SAMPLE, "label": np.array(["a", "b"])}, "2 entries in 'label', but more samples"),
    "no samples": ({"ids": IDS, "label": np.array(["a"])}, "label and text go with 'sample'"),
    "weights": ({"ids": IDS, "weights": WEIGHTS.astype(str)}, "'weights': is text, it should be numbers from 0 to 1"),
    "whole weights": (
        {"ids": IDS, "weights": np.full(IDS.shape, 3)},
        "row 0: weight 3 at layer 0, slot 0; weights are",
    ),
    "sample of fractions": (
        {"ids": IDS, "sample": SAMPLE / 1},
        "'sample': is float64, it should be whole numbers or names, one a token",
    ),
    "layers": ({"ids": IDS, "layers": np.array(["a"])}, "names 1 layer, but the ids have 3"),
    "token ids": ({"ids": IDS, "token_id": np.full(TOKENS, -1)}, "token ids should be"),
    "token id": ({"ids": IDS, "token_id": np.ones(TOKENS)}, "'token_id': is float64, it should be whole numbers, one"),
    "a label": (
        {"ids": IDS, "sample": SAMPLE, "label": np.ones(3) * 1j},
        "'label': holds complex128 of shape .3,., it",
    ),
    "a text": ({"ids": IDS, "sample": SAMPLE, "text": np.ones(3)}, "it should be a row of words, one a sample"),
}


def test_weights_that_are_whole_numbers_are_weights(tmp_path: Path):
    weights = np.zeros(IDS.shape, np.int64)
    weights[:, :, 0] = 1
    for kind in (np.int64, np.uint8, bool):
        np.savez(tmp_path / "log.npz", ids=IDS, weights=weights.astype(kind))
        found = list(open_log(tmp_path / "log.npz").counted().pieces())
        assert np.array_equal(np.concatenate([piece.weights for piece in found]), weights)
    log = open_log(write_parquet(tmp_path / "log.parquet", weights=weights.tolist())).counted()
    assert np.array_equal(np.concatenate([piece.weights for piece in log.pieces()]), weights)


def test_a_slot_that_is_not_used_needs_no_weight(tmp_path: Path):
    ids, weights = IDS.tolist(), WEIGHTS.tolist()
    ids[6][1][1] = weights[6][1][1] = None
    ids[8][2], weights[8][2] = ids[8][2][:1], weights[8][2][:1]
    log = open_log(write_parquet(tmp_path / "log.parquet", ids=ids, weights=weights)).counted()
    found = np.concatenate([piece.weights for piece in log.pieces()])
    assert (found[6, 1, 1], found[8, 2, 1], np.isfinite(found).all()) == (0, 0, True)


@pytest.mark.parametrize("fault", ARCHIVES)
def test_wrong_archives(fault: str, tmp_path: Path):
    arrays, message = ARCHIVES[fault]
    np.savez(tmp_path / "log.npz", **arrays)
    refused(tmp_path, tmp_path / "log.npz", message)


def ragged() -> list:
    ids = IDS.tolist()
    ids[11] = ids[11][:-1]
    return ids


def weights_without(*slots: slice | int) -> list:
    """The weights of token 6 at layer 1 null, one of them null, or fewer than there are experts."""
    weights = WEIGHTS.tolist()
    if slots == (slice(None),):
        weights[6][1] = None
    elif slots:
        weights[6][1][slots[0]] = None
    else:
        del weights[6][1][1:]
    return weights


PARQUETS: dict[str, tuple[dict, str]] = {
    "ragged": ({"ids": ragged()}, "row 11: the list in 'ids' is missing or longer or shorter"),
    "missing": ({"ids": [*IDS.tolist()[:-1], None]}, "row 39: the list in 'ids' is missing"),
    "no ids": ({"ids": None}, "but no 'ids'"),
    "words": ({"ids": [[["a"] * 2] * 3] * TOKENS}, "holds string, not numbers"),
    "sample": ({"sample": [None] * 3 + SAMPLE.tolist()[3:]}, "row 0: 'sample' is missing"),
    "labels": ({"label": ["a"] * 14 + ["b"] * 26}, "row 14: the tokens of sample 3 should have one label, .*'b' here"),
    "later labels": (
        {"label": ["a"] * 33 + [None] * 7},
        "row 33: the tokens of sample 9 should have one label, which was 'a' before and is null here",
    ),
    "no text": ({"text": [1.5] * TOKENS}, "the column 'text' holds double, it should hold words"),
    "weights of a layer": (
        {"weights": weights_without(slice(None))},
        "row 6: weight nan at layer 1, slot 0; .* missing",
    ),
    "one weight": ({"weights": weights_without(1)}, "row 6: weight nan at layer 1, slot 1"),
    "a shorter list": ({"weights": weights_without()}, "row 6: weight nan at layer 1, slot 1"),
    "no UTF-8": (
        {"label": pa.array([b"\x80"] * 14 + [b"b"] * 26).view(pa.string())},
        "'label' holds bytes that are not",
    ),
    "twice": ({"ids": changed((4, 0, 0), IDS[4, 0, 1]).tolist()}, "row 4: the same expert twice"),
}


@pytest.mark.parametrize("fault", PARQUETS)
def test_wrong_parquet(fault: str, tmp_path: Path):
    changes, message = PARQUETS[fault]
    refused(tmp_path, write_parquet(tmp_path / "log.parquet", **changes), message)


def with_experts(value: object, line: int = 1) -> Callable[[list[dict]], list[dict]]:
    def change(lines: list[dict]) -> list[dict]:
        lines[line]["choices"][0]["routed_experts"] = value
        return lines

    return change


ENGINE: dict[str, tuple[Callable[[list[dict]], list[dict]], str]] = {
    "ragged layers": (with_experts(ragged()), "line 2: routed_experts is ragged: token 11 has another number"),
    "true for 1": (with_experts([[[0, 1], [True, 3]]]), "line 2: routed_experts holds true and false, it should"),
    "ragged experts": (with_experts([[[0, 1], [2, 3], [4, [5]]]]), "line 2: routed_experts is ragged"),
    "more experts": (with_experts([[[0, 1], [2, 3], [4, 5, 6]]]), "of 3 experts, .* of 2; if k varies, say --top-k"),
    "negative": (with_experts((IDS[:5] - 9).tolist()), r"line 2, token 0: expert -\d"),
    "twice": (with_experts([[[0, 1], [2, 2], [3, 4]]]), "line 2, token 0: the same expert twice at layer 1"),
    "layers": (with_experts(IDS[:5, :2].tolist()), "line 2: has 2 layers of 2 experts, the first response had 3 of 2"),
    "base64": (with_experts("not base64!"), "line 2: routed_experts is no base64"),
    "short": (with_experts("AAAA"), "line 2: routed_experts has 3 bytes, which are no whole numbers of 4"),
    "cut npy": (with_experts(npy_base64(IDS)[:400]), "line 2: routed_experts is a cut off numpy array"),
    "dtype": (with_experts({"data": "AAAA", "dtype": "object"}), "line 2: routed_experts has the dtype 'object'"),
    "shape": (
        with_experts({"data": "AAAAAA==", "dtype": "int16", "shape": [1, 1, 9]}),
        "line 2: routed_experts holds 2 ids, its shape",
    ),
    "none": (
        lambda lines: [with_experts(None, number)(lines)[number] for number in range(3)],
        "line 1: has no routed_experts; start the engine with",
    ),
    "words": (with_experts([[["a", "b"]]]), "line 2: routed_experts holds text"),
    "a point": (
        with_experts([[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]]),
        r"holds whole numbers written with a point \(0.0\), it should hold whole numbers without one \(0\)",
    ),
    "a point, ragged": (with_experts([[[0.0, 1.0], [2.0], [4.0, 5.0]]]), "holds whole numbers written with a point"),
    "a point and null": (with_experts([[[0.0, None], [2.0, 1.0]]]), "holds whole numbers written with a point"),
    "nested deep": (with_experts(json.loads("[" * 900 + "1" + "]" * 900)), "line 2: routed_experts is ragged"),
    "a fraction": (with_experts([[[0.0, 1.5], [2, 3], [4, 5]]]), r"holds numbers with a fraction \(1.5\), it should"),
    "no number": (with_experts([[[0.0, float("nan")], [2, 3]]]), "holds nan, it should hold whole numbers"),
    "huge": (
        with_experts([[[2**70, 1], [2, 3]]]),
        "holds 1180591620717411303424, which is too large; .* from 0 to 65535",
    ),
    "huge, ragged": (with_experts([[[2**70], [2, 3]]]), "holds 1180591620717411303424, which is too large"),
    "negative and null": (
        lambda lines: [with_experts([[[-1, -1], [None, None], [-1, -1]]], n)(lines)[n] for n in range(3)],
        "line 1: every id is −1, so no decision was captured",
    ),
    "unused": (
        lambda lines: [with_experts([[[None, None]] * 3, [[0, 0]] * 3], n)(lines)[n] for n in range(3)],
        "line 1: every id is 0, so no decision was captured",
    ),
    "null alone": (
        lambda lines: [with_experts([[[None, None]] * 3], n)(lines)[n] for n in range(3)],
        "line 1: every id is null or missing, so no decision was captured",
    ),
    "mixed models": (
        lambda lines: [*lines[:2], lines[2] | {"model": "other/m"}],
        "line 3: is of the model 'other/m', the log began with 'org/m'",
    ),
    "zeros": (
        lambda lines: [with_experts([[[0, 0]] * 3], number)(lines)[number] for number in range(3)],
        "line 1: every id is 0, so no decision was captured",
    ),
}


@pytest.mark.parametrize("fault", ENGINE)
def test_wrong_responses(fault: str, tmp_path: Path):
    change, message = ENGINE[fault]
    lines = change(vllm_lines(lambda ids: ids.tolist()))
    refused(tmp_path, write_lines(tmp_path / "log.jsonl", lines), message)


def test_a_flat_response_of_other_layers_than_announced(tmp_path: Path):
    line = {"meta_info": {"routed_experts": base64.b64encode(IDS.astype("<i4").tobytes()).decode()}}
    file = write_lines(tmp_path / "log.jsonl", [line])
    refused(tmp_path, file, "240 ids, which are no whole tokens of 7 layers", layers=7, top_k=TOP_K)


MEGATRON: dict[str, tuple[Callable[[list[dict]], list[dict]], str]] = {
    "ragged": (
        lambda lines: [lines[0] | {"top_indices": [[1, 2], [[3]]], "num_tokens": 2}, *lines[1:]],
        "line 1: top_indices is ragged",
    ),
    "tokens": (lambda lines: [lines[0] | {"num_tokens": 3}, *lines[1:]], "line 1: num_tokens is 3, but .* has 15"),
    "layers": (lambda lines: [*lines, lines[-1] | {"layer": 9}], r"this step has 4 layers, .*\(layer 9 is new\)"),
    "sizes": (
        lambda lines: [lines[0], lines[1] | {"top_indices": [[1, 2]], "num_tokens": 1}, *lines[2:]],
        "line 2: layer 3 has 1 token × 2 experts, the layer before it in this step 15 × 2",
    ),
    "a list": (lambda lines: [*lines, [1]], "line 10: is a JSON list"),
    "something else": (lambda lines: [*lines, {"loss": 1}], "line 10: is no record of a router"),
}


@pytest.mark.parametrize("fault", MEGATRON)
def test_wrong_traces_of_megatron(fault: str, tmp_path: Path):
    change, message = MEGATRON[fault]
    refused(tmp_path, write_lines(tmp_path / "log.jsonl", change(megatron_lines())), message)


def test_wrong_csv(tmp_path: Path):
    header = "call,token,layer,expert,weight\n"
    rows = csv_rows(True)
    file = tmp_path / "log.csv"
    word = [row.copy() for row in rows]
    word[5][3] = "x"
    refused(tmp_path, write_csv(file, word, header), "cannot be read as CSV .*counted from line 2")
    short = [*rows[:6], rows[6][:-1], *rows[7:]]
    refused(tmp_path, write_csv(file, short, header), "cannot be read as CSV .*Expected 5 columns")
    negative = [row.copy() for row in rows]
    negative[5][3] = -7
    refused(tmp_path, write_csv(file, negative, header), "line 7: expert -7, but the experts are 0 … 65535")
    missing = rows[:6] + rows[7:]
    refused(tmp_path, write_csv(file, missing, header), "line 8: token 3 has another number of experts at layer 0")
    refused(tmp_path, write_csv(file, csv_rows(False)[:-1]), "no whole tokens of 2 experts", top_k=2)
    refused(tmp_path, write_csv(file, [], "token,weight\n"), "no routing log that is known")


def test_a_table_is_told_of_the_column_map_first(tmp_path: Path):
    file = write_csv(tmp_path / "log.csv", [], "token,weight\n")
    with pytest.raises(UserError) as caught:
        open_log(file, plugins=False)
    said = str(caught.value).removeprefix(str(file))
    assert said.startswith(
        ": is no routing log that is known: a table needs a column map (--map, in a job the field `map`)"
    )
    assert len(said) < 300


def test_a_flat_table_says_how_many_rows_it_has(tmp_path: Path):
    pq.write_table(pa.table({"ids": [[1, 2, 3, 4]] * 30}), tmp_path / "log.parquet")
    refused(tmp_path, tmp_path / "log.parquet", r"the ids have shape \(30, 4\), they should be \(tokens, layers")


def test_files_that_are_no_log(tmp_path: Path):
    for name, content, message in (
        ("empty", b"", "is empty"),
        ("blank", b" \n\n", "is empty"),
        ("text", b"hello\n", "no routing log"),
        ("gzip", b"\x1f\x8b\x08\x00", "unpack it first"),
        ("object", b'{"a": 1}\n', "line 1: has a, but neither"),
        ("null", b"\x00\x01\x02", "no routing log"),
    ):
        (tmp_path / name).write_bytes(content)
        refused(tmp_path, tmp_path / name, message)
    refused(tmp_path, tmp_path / "nowhere", "there is no file")
    (tmp_path / "folder").mkdir()
    refused(tmp_path, tmp_path / "folder", "holds no files")


def test_what_the_user_says_must_be_possible(tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS)
    refused(tmp_path, tmp_path / "log.npy", "is a numpy array .*, not Megatron", format="megatron")
    for options, message in (({"format": "csv"}, "no format 'csv'"), ({"experts": 0}, "experts is 0")):
        with pytest.raises(UserError, match=message):
            open_log(tmp_path / "log.npy", **options)  # type: ignore[arg-type]


def test_shards_of_different_models_are_not_one_log(tmp_path: Path):
    folder = tmp_path / "log"
    folder.mkdir()
    for name, model in (("a", "org/m"), ("b", "org/n")):
        np.savez(folder / f"{name}.npz", ids=IDS, model=np.array(model))
    refused(tmp_path, folder, "another model than a.npz")
    np.savez(folder / "b.npz", ids=IDS[:, : LAYERS - 1], model=np.array("org/m"))
    refused(tmp_path, folder, "another layers than a.npz")


COUNTS = {
    "words": ({"expert_counts": {"0": {"x": 1}}}, "layer 0: 'x' is no expert id"),
    "negative": ({"expert_counts": {"0": {"1": -1}}}, "expert 1: -1 is no number of tokens"),
    "fraction": ({"expert_counts": [[0.5]]}, "expert 0: 0.5 is no number of tokens"),
    "nothing": ({"expert_counts": [[]]}, "no layer counts any expert"),
}


@pytest.mark.parametrize("fault", COUNTS)
def test_wrong_aggregates(fault: str, tmp_path: Path):
    value, message = COUNTS[fault]
    (tmp_path / "counts.json").write_text(json.dumps(value))
    refused(tmp_path, tmp_path / "counts.json", message, format="expert-counts")


def test_counts_that_are_nested_without_an_end_are_told_so(tmp_path: Path):
    (tmp_path / "counts.json").write_text("[" * 100_000)
    refused(tmp_path, tmp_path / "counts.json", r"is not JSON \(it is nested too deeply\)", format="expert-counts")
