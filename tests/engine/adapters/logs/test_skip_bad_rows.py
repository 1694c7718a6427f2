"""With ``skip_bad`` rows that cannot be read take their forward pass with them, and nothing else becomes wrong."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import PROMPT
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_formats import EXPERTS, csv_rows, write_csv
from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
from tokenpaths.engine.adapters.logs.formats import check_beginning, open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
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
SQUARE = [(layer, token) for layer in range(2) for token in range(2)]


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


@pytest.mark.parametrize("twice", [0, 1, -1])
def test_a_pass_with_a_token_twice_at_a_layer_is_left_out(twice: int, tmp_path: Path):
    rows = [{"layer_idx": layer, "token_idx": token, "selected_ids": [layer, 2 + token]} for layer, token in SQUARE]
    passes = [rows, rows, rows]
    passes[twice] = [rows[0], *rows]
    file = make.lines(tmp_path / "log", [row for one in passes for row in one])
    with pytest.raises(UserError, match="layer 0 has a token twice"):
        pieces(file)
    log, found = pieces(file, skip_bad=True)
    assert not log.shape.partial
    assert ribbons(found) == [[[[layer, 2 + token] for layer in range(2)] for token in range(2)]] * 2
    assert [(count, "layer 0 has a token twice" in reason) for count, reason in left_out(found)] == [(1, True)]
    with pytest.raises(UserError, match="layer 0 has a token twice"):
        pieces(make.lines(file, passes[twice]), skip_bad=True)


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
    assert any("left out: log, line 2: is not JSON" in note for note in notes), "files are named, not their folder"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere names of files are Unicode")
@pytest.mark.parametrize("confined", [False, True])
def test_a_log_may_have_any_name(tmp_path: Path, confined: bool):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    lines = [json.dumps(make.vllm_chat(0)), "{broken"]
    (folder / os.fsdecode(b"gut\xe9.jsonl")).write_text("\n".join(lines) + "\n")
    log = open_confined_log(folder, skip_bad=True) if confined else open_log(folder, skip_bad=True)
    with Run.open(import_log(log, tmp_path / "runs", "odd")) as run:
        info = run.info()
    assert info["dataset"] == info["config"]["import"]["file"] == "caf?"
    assert sum("left out: caf?/gut?.jsonl, line 2" in note for note in info["findings"]["notes"]) == 1


def test_only_the_folder_of_the_log_is_left_out_of_what_names_its_files(tmp_path: Path, monkeypatch):
    """As it stands in the address of the log, and only where a path begins with it."""
    monkeypatch.chdir(tmp_path)
    for log in (Path("data/mydata"), Path("logs/logs"), tmp_path / "data" / "mydata"):
        log.mkdir(parents=True, exist_ok=True)
        one = {name: value for name, value in make.vllm_chat(0).items() if name != "id"}
        (log / "a.jsonl").write_text(json.dumps(one) + "\n{broken\n")
        with Run.open(import_log(open_log(log, skip_bad=True), tmp_path / "runs", "one", overwrite=True)) as run:
            assert any(f"left out: {log.name}/a.jsonl, line 2" in note for note in run.info()["findings"]["notes"])
            assert run.sample(0)["source"] == f"{log.name}/a.jsonl, line 1"


def test_a_csv_without_any_row_that_can_be_read_says_why(tmp_path: Path):
    (tmp_path / "log.csv").write_text(HEADER + "a,b\n" * 20)
    with pytest.raises(UserError, match=r"log\.csv, line 2: cannot be read as a row of this log"):
        pieces(tmp_path / "log.csv", skip_bad=True)


def left_out(found: list[Piece]) -> list[tuple[int, str]]:
    """How many were left out for each reason, and the end of that."""
    return [
        (count, kind.partition(" left out: ")[2]) for piece in found for kind, count in piece.counted if ": /" in kind
    ]


def response(number: int, rows: object) -> dict:
    record = make.vllm_chat(number)
    record["choices"][0]["routed_experts"] = rows if isinstance(rows, str) else make.npy64(np.asarray(rows))
    return record


FIRST = {
    "no base64": ("!", "line 1: routed_experts is no base64"),
    "zeros": (np.zeros((make.ROWS, make.LAYERS + 1, make.TOP_K)), None),
}


@pytest.mark.parametrize("fault", FIRST)
def test_a_bad_first_response_is_left_out(fault: str, tmp_path: Path):
    rows, reason = FIRST[fault]
    file = make.lines(tmp_path / "log", [response(0, rows), make.vllm_chat(1)])
    log, found = pieces(file, skip_bad=True)
    assert [piece.source for piece in found] == ["chatcmpl-1"]
    assert len(log.shape.layers) == make.LAYERS
    if reason is None:  # rows without decisions are no fault, wherever they stand
        assert [piece.source for piece in pieces(file)[1]] == ["chatcmpl-1"]
        assert found[0].counted[0][1] == make.ROWS
    else:
        assert reason in left_out(found)[0][1]
        with pytest.raises(UserError, match=reason):
            pieces(make.lines(file, [response(0, rows)]), skip_bad=True)


def test_decisions_in_a_layer_of_zeros_cost_their_response(tmp_path: Path):
    late = np.insert(make.IDS[1], 0, [1, 2], axis=1)
    file = make.lines(tmp_path / "log", [make.vllm_chat(0), response(1, late), make.vllm_chat(2)])
    with pytest.raises(UserError, match="line 2: layer 0 has decisions here"):
        pieces(file)
    _, found = pieces(file, skip_bad=True)
    assert [piece.source for piece in found] == ["chatcmpl-0", "chatcmpl-2"]
    assert "line 2: layer 0 has decisions here" in left_out(found)[0][1]


ROLLOUTS = {
    "shape": ({"rollout_routed_experts": make.IDS[1][:, 1:].astype(np.int32)}, "sample 1: has ids of shape"),
    "token id": ({"tokens": [2**70, *make.WORDS[1][1:]]}, "sample 1: tokens holds 1180591620717411303424; token ids"),
    "twice": ({"rollout_routed_experts": make.IDS[1][:, :, :1].repeat(2, 2)}, "sample 1, token 0: the same expert"),
}


@pytest.mark.parametrize("fault", ROLLOUTS)
def test_a_bad_rollout_is_left_out(fault: str, tmp_path: Path):
    changes, reason = ROLLOUTS[fault]
    value = torch.load(make.slime(tmp_path / "log"), weights_only=True)
    value["samples"][1] |= changes
    torch.save(value, tmp_path / "log")
    with pytest.raises(UserError, match=reason):
        pieces(tmp_path / "log")
    _, found = pieces(tmp_path / "log", skip_bad=True)
    assert [piece.source for piece in found] == ["rollout sample 0", "rollout sample 2"]
    assert reason in left_out(found)[0][1]
    torch.save({"samples": value["samples"][1:2]}, tmp_path / "log")
    if fault != "shape":
        with pytest.raises(UserError, match=reason.replace("sample 1", "sample 0")):  # not only that none is left
            pieces(tmp_path / "log", skip_bad=True)


@pytest.mark.parametrize("kind", ["npy", "npz", "csv", "jsonl"])
def test_a_bad_token_goes_alone(kind: str, tmp_path: Path):
    ids, bad = make.choices(30, 3), [12, 20]
    ids[12, 1], ids[20, 0] = 4, 5
    file = tmp_path / f"log.{kind}"
    if kind == "npy":
        np.save(file, ids)
    elif kind == "npz":
        np.savez(file, ids=ids, sample=np.repeat([0, 1, 2], 10))
    elif kind == "csv":
        rows = [(0, layer, token, e) for layer in range(4) for token in range(10) for e in ids[token, layer]]
        rows += [(token, layer, token, e) for token in range(10, 30) for layer in range(4) for e in ids[token, layer]]
        file.write_text("call,layer,token,expert\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in rows))
    else:
        record = response(0, ids)
        record["choices"][0]["token_ids"] = list(range(19))
        make.lines(file, [record])
    with pytest.raises(UserError, match="the same expert twice at layer 1"):
        pieces(file)
    log, found = pieces(file, skip_bad=True)
    assert np.array_equal(np.concatenate([piece.ids for piece in found]), np.delete(ids, bad, axis=0))
    place = {"npy": "row 12", "npz": "row 12", "csv": "line 100", "jsonl": "line 1, token 12"}[kind]
    reasons = left_out(found)
    assert sum(count for count, _ in reasons) == 2
    assert f"{place}: the same expert twice at layer 1 (4, 4)" in reasons[0][1]
    if kind == "jsonl":
        assert found[0].token_id is not None
        assert found[0].token_id.tolist() == np.delete([*make.WORDS[0][:PROMPT], *range(18)], bad).tolist()
    with Run.open(import_log(log, tmp_path / "runs", "rest")) as run:
        assert run.card()["num_tokens"] == 28
        assert any("token" in note and "the same expert twice" in note for note in run.info()["findings"]["notes"])


@pytest.mark.parametrize("fault", ["id", "weight", "token id"])
def test_what_makes_a_token_bad(fault: str, tmp_path: Path):
    ids, weights, words = make.choices(30, 3), np.full((30, make.LAYERS, make.TOP_K), 0.5), np.arange(30)
    if fault == "id":
        ids[7, 2, 1] = -3
    elif fault == "weight":
        weights[7, 0, 1] = np.nan
    else:
        words[7] = -5
    np.savez(tmp_path / "log.npz", ids=ids, weights=weights, token_id=words)
    (piece,) = pieces(tmp_path / "log.npz", skip_bad=True)[1]
    assert np.array_equal(piece.ids, np.delete(ids, 7, axis=0))
    assert "row 7: " in left_out([piece])[0][1]


def test_a_bad_file_of_a_folder_is_left_out(tmp_path: Path):
    folder = tmp_path / "log"
    folder.mkdir()
    for name, number in (("a", 0), ("d", 2)):
        make.lines(folder / name, [make.vllm_chat(number)])
    make.lines(folder / "b", [make.vllm_chat(1) | {"model": "other"}])
    make.lines(folder / "c", [response(1, "!")])
    with pytest.raises(UserError, match="another model than a|no base64"):
        pieces(folder)
    _, found = pieces(folder, skip_bad=True)
    assert [piece.source for piece in found] == ["chatcmpl-0", "chatcmpl-2"]
    reasons = [reason for _, reason in left_out(found)]
    assert "b: has another model than a (other, not org/m)" in reasons[0]
    assert "c, line 1: routed_experts is no base64" in reasons[1]
