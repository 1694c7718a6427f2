"""With ``skip_bad`` rows that cannot be read take their forward pass with them, and nothing else becomes wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_formats import EXPERTS, csv_rows, write_csv
from tokenpaths.engine.adapters.logs.formats import check_beginning, open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run

HEADER = "call,token,layer,expert,weight\n"
DAMAGE: dict[str, Callable[[str], str]] = {
    "a word": lambda line: line.rsplit(",", 1)[0] + ",x" if line.count(",") == 1 else _cell(line, 3, "x"),
    "cells missing": lambda line: line.split(",", 1)[0],
    "a cell more": lambda line: line + ",1",
    "cut": lambda line: line[:1] + '"',
    "no expert of the model": lambda line: _cell(line, 3, "99999999"),
    "no layer": lambda line: _cell(line, 2, ""),
    "zeros": lambda line: "\x00" * len(line),
}


def _cell(line: str, place: int, value: str) -> str:
    cells = line.split(",")
    return ",".join([*cells[:place], value, *cells[place + 1 :]])


def ribbons(found: list) -> list[list]:
    return [piece.ids.tolist() for piece in found]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("block", [64, 1 << 22])
def test_a_bad_row_takes_its_pass_with_it(damage: str, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.passes.csv_rows.BLOCK_BYTES", block)
    rows = csv_rows(True)
    whole = ribbons(pieces(write_csv(tmp_path / "log.csv", rows, HEADER))[1])
    lines = (tmp_path / "log.csv").read_text().splitlines()
    for number in [1, 2, len(lines) // 2, len(lines) - 1, *np.random.default_rng(3).integers(1, len(lines), 6)]:
        call = rows[number - 1][0]
        # Whether the first row of a pass or the last one of the pass before cannot be told from what cannot be read.
        before = number > 1 and rows[number - 2][0] != call
        behind = number < len(rows) and rows[number][0] != call
        bad = [*lines[:number], DAMAGE[damage](lines[number]), *lines[number + 1 :]]
        (tmp_path / "bad.csv").write_text("\n".join(bad) + "\n")
        with pytest.raises(UserError, match=r"bad\.csv"):
            pieces(tmp_path / "bad.csv")
        _, found = pieces(tmp_path / "bad.csv", skip_bad=True, experts=EXPERTS)
        gone = {call, call - before, call + behind}
        if damage == "no expert of the model":  # which stands where it stood
            gone = {call, call + behind}
        assert ribbons(found) == [ids for place, ids in enumerate(whole) if place not in gone]
        said = [kind for piece in found for kind, _ in piece.counted]
        assert any("a forward pass each, {are} left out: " in kind and "bad.csv" in kind for kind in said)


@pytest.mark.parametrize("layout", [make.fork_csv, make.route_trace, make.layer_lines])
def test_decode_steps_behind_a_bad_row_are_those_of_the_log(layout: Callable[[Path], Path], tmp_path: Path):
    file = layout(tmp_path / "log")
    known = {tuple(map(tuple, token)) for piece in pieces(file)[1] for token in piece.ids.tolist()}
    total = sum(piece.num_tokens for piece in pieces(file)[1])
    lines = file.read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line[:1].isdigit() or line.startswith(("pre", "dec", "{")))
    for number in range(first, len(lines), 3):
        bad = [*lines[:number], lines[number][: len(lines[number]) // 2] + "#", *lines[number + 1 :]]
        (tmp_path / "bad").write_text("\n".join(bad) + "\n")
        _, found = pieces(tmp_path / "bad", skip_bad=True)
        tokens = [tuple(map(tuple, token)) for piece in found for token in piece.ids.tolist()]
        assert set(tokens) <= known
        assert len(tokens) < total


def test_a_log_whose_first_line_is_bad_is_recognised_by_the_others(tmp_path: Path):
    good = [json.dumps(make.vllm_chat(number)) for number in range(2)]
    (tmp_path / "log").write_text("\n".join([good[0][:-30], *good]) + "\n")
    with pytest.raises(UserError, match="is not JSON"):
        open_log(tmp_path / "log")
    check_beginning(tmp_path / "log", None, skip_bad=True)
    assert len(pieces(tmp_path / "log", skip_bad=True)[1]) == 2


def test_few_of_many_reasons_are_told(tmp_path: Path):
    good = json.dumps(make.vllm_chat(0))
    (tmp_path / "log").write_text("\n".join([good, *(good[: 90 + number] for number in range(40))]) + "\n")
    log = open_log(tmp_path / "log", skip_bad=True)
    with Run.open(import_log(log, tmp_path / "runs", "rest")) as run:
        notes = [note for note in run.info()["findings"]["notes"] if " or sample" in note]
    assert sum("1 response or sample is left out: " in note for note in notes) == 5
    assert sum(note.startswith("35 more responses or samples are left out") for note in notes) == 1
    assert len(notes) == 6


def test_a_csv_without_any_row_that_can_be_read_says_why(tmp_path: Path):
    (tmp_path / "log.csv").write_text(HEADER + "a,b\n" * 20)
    with pytest.raises(UserError, match=r"log\.csv, line 2: cannot be read as a row of this log"):
        pieces(tmp_path / "log.csv", skip_bad=True)
