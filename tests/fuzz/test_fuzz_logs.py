"""Damaged logs of every engine: whatever is broken, an import ends in a run or in one sentence that names the file."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import LOGS, OPTIONS, SUMS, TOP_K
from tests.engine.adapters.logs.test_log_fuzz import ODD, places, swapped
from tests.fuzz.fuzz_settings import fuzzed_with
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.base.errors import UserError

EVERY = {**LOGS, **SUMS}


def read(file: Path, **options: Any) -> None:
    """Read a log whole; anything but tokens or a UserError that names the file fails."""
    refusal = ""
    tokens = 0
    try:
        survey = open_log(file, **options).counted().survey
        tokens = 0 if survey is None else survey.tokens
    except UserError as error:
        refusal = str(error)
    assert len(refusal) < 3000
    assert bool(tokens) or file.name in refusal


@pytest.mark.parametrize("name", EVERY)
@fuzzed_with(8)
@given(data=st.data())
def test_flipped_cut_and_doubled_bytes(name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("fuzz")
    log = EVERY[name](folder)
    files = sorted(file for file in log.rglob("*") if file.is_file()) if log.is_dir() else [log]
    file = data.draw(st.sampled_from(files))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    kind = data.draw(st.sampled_from(["whole", "cut", "doubled", "gap"]))
    at, to = sorted(data.draw(st.tuples(st.integers(0, len(content)), st.integers(0, len(content)))))
    if kind == "cut":
        del content[at:]
    elif kind == "doubled":
        content[at:at] = content[at:to]
    elif kind == "gap":
        del content[at:to]
    file.write_bytes(content)
    skip = data.draw(st.booleans())
    read(log, skip_bad=skip, **(OPTIONS.get(name, {}) if data.draw(st.booleans()) else {}))
    shutil.rmtree(folder)


RECORDS: dict[str, list[Any]] = {
    "vllm": [make.vllm_chat(0), make.vllm_completion(1), make.vllm_generate(2)],
    "batch": [make.run_batch(0), make.aborted(), make.run_batch(1)],
    "sglang": [[make.sglang(0), make.sglang(1)], make.sglang_chat(2)],
    "dynamo": [make.dynamo(0), make.dynamo(1)],
    "megatron": [make.megatron(0, step, layer, make.IDS[step][:, layer]) for step in range(2) for layer in range(2)],
    "layers": [
        {"layer_idx": layer, "token_idx": token, "selected_ids": [1, 2], "gate_weights": [0.5, 0.5]}
        for token in range(2)
        for layer in range(2)
    ],
    "counts": [{"iter": 1, "block": "decoder", "layer": layer, "tpe": [[1, 2], [3, 4]]} for layer in range(2)],
}


@pytest.mark.parametrize("name", RECORDS)
@fuzzed_with(20)
@given(data=st.data())
def test_swapped_values_in_records(name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    records = copy.deepcopy(RECORDS[name])
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.sampled_from(places(records)))
        records = swapped(records, at, data.draw(ODD), data.draw(st.booleans()))
        if not records:
            return
    folder = tmp_path_factory.mktemp("fuzz")
    file = folder / "log"
    whole = data.draw(st.booleans())
    file.write_text(json.dumps(records, indent=1) if whole else "".join(f"{json.dumps(one)}\n" for one in records))
    sizes = {"layers": make.LAYERS + 1, "top_k": TOP_K} if name == "sglang" and data.draw(st.booleans()) else {}
    read(file, skip_bad=data.draw(st.booleans()), **sizes)
    shutil.rmtree(folder)


CELLS = ["", "x", "-1", "1e9", "nan", "inf", "99999999999999999999", '"', "0,0", "\n", "#", "\x00", "0"]


@pytest.mark.parametrize("name", ["llama.cpp bare", "llama.cpp fork", "route trace"])
@fuzzed_with(20)
@given(data=st.data())
def test_swapped_cells(name: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("fuzz")
    file = LOGS[name](folder)
    lines = file.read_text().splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0, len(lines) - 1))
        cells = lines[row].split(",")
        cells[data.draw(st.integers(0, len(cells) - 1))] = data.draw(st.sampled_from(CELLS))
        lines[row] = ",".join(cells)
    for _ in range(data.draw(st.integers(0, 2))):
        del lines[data.draw(st.integers(0, len(lines) - 1))]
    file.write_text("\n".join(lines) + "\n")
    read(file, **(OPTIONS.get(name, {}) if data.draw(st.booleans()) else {}))
    shutil.rmtree(folder)


@fuzzed_with(30)
@given(data=st.data())
def test_swapped_values_of_a_column_map(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("fuzz")
    columns = {"sequence": "s", "token": "t", "layer": "l", "slot": "k", "expert": "e", "weight": "w"}
    rows = [
        {"s": "a", "t": token, "l": layer, "k": slot, "e": 2 * slot, "w": 0.5}
        for token in range(3)
        for layer in range(2)
        for slot in range(2)
    ]
    for name in data.draw(st.sets(st.sampled_from(sorted(columns)), max_size=2)):
        columns[name] = data.draw(st.sampled_from([*"stlkew", "x", "s.0", ""]))
    for _ in range(data.draw(st.integers(0, 3))):
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        row[data.draw(st.sampled_from(sorted(row)))] = data.draw(ODD)
    (folder / "log").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text = "[columns]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in columns.items())
    (folder / "log.toml").write_text(text + data.draw(st.sampled_from(["", "[log]\nexperts = 4\n", "[", "\x00"])))
    read(folder / "log", column_map=folder / "log.toml")
    shutil.rmtree(folder)
