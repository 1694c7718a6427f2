"""Damaged logs: whatever is broken, an import ends in a run or in one sentence that names the file."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.adapters.logs.test_log_formats import (
    IDS,
    SAMPLE,
    TOKENS,
    TOP_K,
    WEIGHTS,
    csv_rows,
    megatron_lines,
    sglang_line,
    vllm_lines,
    write_csv,
    write_lines,
    write_parquet,
)
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.base.errors import UserError

FEW = 6
"""tokens of the small logs"""


def neutral(file: Path) -> None:
    np.savez(
        file,
        ids=IDS,
        weights=WEIGHTS,
        token_id=np.arange(TOKENS),
        sample=SAMPLE,
        label=np.array(["a", "b", "c"]),
        num_experts=np.array(9),
        model=np.array("m"),
    )


def write_json(file: Path) -> None:
    file.write_text(json.dumps({"expert_counts": {"0": {"0": 6, "3": 2}, "1": {"1": 8}}}))


WHOLE: dict[str, Callable[[Path], object]] = {
    "log.npy": lambda file: np.save(file, IDS),
    "log.npz": neutral,
    "log.parquet": write_parquet,
    "vllm.jsonl": lambda file: write_lines(file, vllm_lines(lambda ids: ids.tolist())),
    "megatron.jsonl": lambda file: write_lines(file, megatron_lines()),
    "log.csv": lambda file: write_csv(file, csv_rows(True), "call,token,layer,expert,weight\n"),
    "counts.json": write_json,
}


def try_import(file: Path, **options: Any) -> None:
    """Import; anything but a run or a UserError that names the file fails, and so does what is left behind."""
    runs, refusal = file.parent / "runs", None
    shutil.rmtree(runs, ignore_errors=True)
    try:
        import_log(open_log(file, **options), runs, "fuzzed")
    except UserError as error:
        refusal = str(error)
    assert refusal is None or file.name in refusal
    assert (os.listdir(runs) if runs.exists() else []) == (["fuzzed.duckdb"] if refusal is None else [])


EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "4"))
"""a few in every test run, hundreds to look for trouble"""
FUZZ = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("name", WHOLE)
@FUZZ
@given(data=st.data())
def test_flipped_and_cut_off_bytes(name: str, tmp_path: Path, data: st.DataObject):
    file = tmp_path / name
    WHOLE[name](file)
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    file.write_bytes(content)
    try_import(file)


ODD = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1.5,
        float("nan"),
        2**31,
        2**70,
        "",
        "x",
        "²",
        "\ud800",
        [],
        {},
        [[]],
        [None],
        {"data": 1},
        [[[0, 1]]],
        "AAAA",
        10**9,
    ]
)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """Every place in nested lists and objects, none below the third list: enough to swap anything for anything."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, one in items:
        found += places(one, (*path, key))
    return found


def swapped(value: Any, path: tuple, by: Any, remove: bool) -> Any:
    value = copy.deepcopy(value)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    if remove:
        del holder[path[-1]]
    else:
        holder[path[-1]] = by
    return value


LINES: dict[str, list] = {
    "vllm.jsonl": [line | {"label": "a"} for line in vllm_lines(lambda ids: ids[:FEW].tolist())],
    "objects.jsonl": vllm_lines(
        lambda ids: {"data": np.asarray(ids[:FEW], "<i4").tobytes().hex(), "dtype": "int32", "shape": [FEW, 3, 2]}
    ),
    "sglang.jsonl": [sglang_line(IDS[:FEW], 0, openai) for openai in (False, True)],
    "megatron.jsonl": megatron_lines(),
}


@pytest.mark.parametrize("name", LINES)
@FUZZ
@given(data=st.data())
def test_swapped_values_in_lines(name: str, tmp_path: Path, data: st.DataObject):
    lines = LINES[name]
    path = data.draw(st.sampled_from(places(lines)))
    lines = swapped(lines, path, data.draw(ODD), data.draw(st.booleans()))
    options = {"layers": 3, "top_k": TOP_K} if name.startswith("sglang") else {}
    try_import(write_lines(tmp_path / name, lines), **options)


@FUZZ
@given(data=st.data())
def test_swapped_values_in_aggregates(tmp_path: Path, data: st.DataObject):
    value = {"expert_counts": {"0": {"0": 6, "3": 2}, "1": [0, 8]}}
    value = swapped(value, data.draw(st.sampled_from(places(value))), data.draw(ODD), data.draw(st.booleans()))
    (tmp_path / "counts.json").write_text(json.dumps(value))
    try_import(tmp_path / "counts.json", experts=data.draw(st.sampled_from([None, 2, 8])))


ARRAYS = st.sampled_from(
    [
        np.array(3),
        np.array(-1),
        np.array(8.5),
        np.array("eight"),
        np.array([]),
        np.array(["a", "b", "c"]),
        np.zeros((TOKENS, 3, 2)),
        np.zeros((TOKENS, 2, 3), int),
        np.zeros(TOKENS, bool),
        np.full(TOKENS, np.nan),
        np.full(TOKENS, 2**40),
        np.arange(TOKENS, dtype=np.uint64) + 2**63,
        np.array(["\ud800"] * 3),
        np.zeros((0, 3, 2), int),
        np.array(["2026-01-01"] * TOKENS, dtype="datetime64[D]"),
        np.zeros(TOKENS, dtype=[("a", int)]),
        np.zeros((3, 2), ">i2"),
    ]
)


@FUZZ
@given(data=st.data())
def test_swapped_arrays(tmp_path: Path, data: st.DataObject):
    arrays: dict[str, Any] = {
        "ids": IDS,
        "weights": WEIGHTS,
        "token_id": np.arange(TOKENS),
        "sample": SAMPLE,
        "label": np.array(["a", "b", "c"]),
        "text": np.array(["a", "b", "c"]),
        "num_experts": np.array(9),
        "model": np.array("m"),
        "layers": np.array(["a", "b", "c"]),
    }
    for name in data.draw(st.sets(st.sampled_from(sorted(arrays)), max_size=2)):
        arrays.pop(name)
    name = data.draw(st.sampled_from([*sorted(arrays), "expert_ids", "prompt_routed_experts"]))
    np.savez(tmp_path / "log.npz", **{**arrays, name: data.draw(ARRAYS)})
    try_import(tmp_path / "log.npz")


COLUMNS = st.sampled_from(
    [
        None,
        [None] * TOKENS,
        [1.5] * TOKENS,
        [-1] * TOKENS,
        ["x"] * TOKENS,
        [[0]] * TOKENS,
        [[]] * TOKENS,
        [[[0, 1]] * 3] * TOKENS,
        [[[0.5, 0.5]] * 3] * TOKENS,
        [2**40] * TOKENS,
        [b"x"] * TOKENS,
        [{"a": 1}] * TOKENS,
        [[[0, None]] * 3] * TOKENS,
        [[0, 1, 0, 1, 0, 1]] * TOKENS,
        [True] * TOKENS,
    ]
)


@FUZZ
@given(name=st.sampled_from(["ids", "weights", "token_id", "sample", "label", "text"]), values=COLUMNS)
def test_swapped_columns(name: str, values: list | None, tmp_path: Path):
    try_import(write_parquet(tmp_path / "log.parquet", **{name: values}))


@FUZZ
@given(data=st.data())
def test_swapped_cells(tmp_path: Path, data: st.DataObject):
    rows = csv_rows(True)[: 12 * FEW]
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0, len(rows) - 1))
        cell = data.draw(st.sampled_from(["", "x", "-1", "1e9", "nan", "99999999999999999999", '"', "0,0", "\n", "#"]))
        rows[row][data.draw(st.integers(0, 4))] = cell
    try_import(write_csv(tmp_path / "log.csv", rows, "call,token,layer,expert,weight\n"))
