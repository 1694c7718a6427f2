"""Tokens that a router dropped are no errors, and rows that were cut off are no dropped tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import IDS, LAYERS, PROMPT, ROWS, TOP_K
from tests.engine.adapters.logs.test_engine_logs import kept, pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.passes.layer_passes import LACKING, SHORT
from tokenpaths.engine.adapters.logs.pieces.piece import UNRECORDED, UNUSED
from tokenpaths.engine.base.errors import UserError

HEADER = "phase,token,layer,rank,expert\n"


def forked(file: Path, *, without: tuple[tuple[int, int], ...] = (), cut: int = 0) -> Path:
    """A prompt and its decode steps without the rows of some tokens at a layer, and the last rows."""
    rows = [row for row in make.cells(short=False) if (row[1], row[2]) not in without]
    text = [f"{'prefill' if p else 'decode'},{at},{layer},{k},{e}\n" for p, at, layer, k, e in rows]
    file.write_text(HEADER + "".join(text[: len(text) - cut]))
    return file


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("token", [0, 3, PROMPT - 1, PROMPT, PROMPT + 2])
def test_a_token_without_a_row_at_a_layer_lacks_that_step(token: int, layer: int, tmp_path: Path) -> None:
    log, (piece,) = pieces(forked(tmp_path / "log", without=((token, layer),)))
    assert log.shape.partial
    assert kept(piece, IDS[0])
    assert np.argwhere((piece.ids == UNRECORDED).all(axis=2)).tolist() == [[token, layer]]
    # What lacks the last layer at the beginning of a prompt is as in llama.cpp's prompts.
    assert dict(piece.counted)[SHORT if (token, layer) == (0, LAYERS - 1) else LACKING] == 1


def test_no_layer_has_all_tokens(tmp_path: Path) -> None:
    without = ((1, 0), (5, 1), (0, 2), (7, 2), (11, 3))
    _, (piece,) = pieces(forked(tmp_path / "log", without=without))
    assert kept(piece, IDS[0])
    assert sorted(map(tuple, np.argwhere((piece.ids == UNRECORDED).all(axis=2)).tolist())) == sorted(without)


def test_the_line_of_an_expert_behind_a_dropped_token_is_named(tmp_path: Path) -> None:
    file = forked(tmp_path / "log", without=((3, 1),))
    lines = file.read_text().splitlines()
    number = next(n for n, line in enumerate(lines) if line.startswith("prefill,6,1,1,"))
    lines[number] = lines[number].rsplit(",", 1)[0] + "," + lines[number - 1].rsplit(",", 1)[1]
    file.write_text("\n".join(lines) + "\n")
    refused(tmp_path, file, f"line {number}: the same expert twice at layer 1")


def test_without_numbers_of_tokens_a_missing_row_cannot_be_placed(tmp_path: Path) -> None:
    rows = [(layer, e) for p, at, layer, _, e in make.cells(short=False) if p and (at, layer) != (3, 1)]
    (tmp_path / "log").write_text("".join(f"{layer},{e}\n" for layer, e in rows))
    said = (
        "layer 1 of this pass has 11 tokens, the first 12; .*tokens were dropped, which only a column 'token' can tell"
    )
    refused(tmp_path, tmp_path / "log", said, top_k=TOP_K)


def test_the_last_decision_with_fewer_experts_is_cut_off_or_left_out(tmp_path: Path) -> None:
    file = forked(tmp_path / "log", cut=1)
    line = len(file.read_text().splitlines())
    said = f"line {line}: the last token of the log, {ROWS - 1}, has 1 expert at layer 3, others 2; .*--skip-bad"
    refused(tmp_path, file, said)
    refused(tmp_path, file, said, top_k=TOP_K)
    refused(tmp_path, make.fork_csv(tmp_path / "whole"), "has 2 top-k, not 6 as announced", top_k=6)
    _, (piece,) = pieces(file, skip_bad=True)
    assert np.array_equal(piece.ids, IDS[0][:-1])


def test_a_log_that_ends_within_its_last_pass_is_cut_off(tmp_path: Path) -> None:
    refused(tmp_path, forked(tmp_path / "log", cut=TOP_K), "this pass has the layers 0 … 2 .*cut off")
    prompt = [row for row in make.cells(short=False) if row[0]][: -2 * TOP_K]
    text = "".join(f"prefill,{at},{layer},{k},{e}\n" for _, at, layer, k, e in prompt)
    (tmp_path / "log").write_text(HEADER + text)
    refused(tmp_path, tmp_path / "log", "the last layer of this pass has 10 tokens, the first 12; the log is cut off")


def megatron(file: Path, *layers: list[list[int]]) -> Path:
    records = [
        make.megatron(0, 0, layer, IDS[0][: len(ids), 0]) | {"top_indices": ids} for layer, ids in enumerate(layers)
    ]
    return make.lines(file, records)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_record_of_megatron_of_which_every_token_was_dropped(tokens: int, tmp_path: Path) -> None:
    ids = [[token, token + 1] for token in range(tokens)]
    log, (piece,) = pieces(megatron(tmp_path / "log", ids, [[]] * tokens))
    assert (piece.ids[:, 1] == UNUSED).all()
    assert log.survey is not None
    assert f"{tokens} times a token was dropped at a layer" in log.survey.sentences()[0]
    file = tmp_path / "log"
    file.write_text(file.read_text().replace('"topk": 2, ', ""))
    refused(tmp_path, file, "line 2: every token was dropped at layer 1, and no 'topk' says how many experts")


def test_lists_that_are_all_empty_are_no_fractions(tmp_path: Path) -> None:
    file = make.lines(tmp_path / "log", [{"id": "a", "choices": [{"index": 0, "routed_experts": [[[], []]]}]}])
    refused(tmp_path, file, "line 1: routed_experts holds empty lists only")


def test_unused_slots_of_binary_records(tmp_path: Path) -> None:
    file = make.layer_binary(tmp_path / "log")
    numbers = np.frombuffer(file.read_bytes(), "<i4").copy()
    numbers[3 + 2 * TOP_K + 1] = -1  # the second slot of token 2 at layer 0
    file.write_bytes(numbers.tobytes())
    _, (piece,) = pieces(file)
    assert np.argwhere(piece.ids == UNUSED).tolist() == [[2, 0, 1]]
    numbers[3 + 2 * TOP_K + 1] = -2
    file.write_bytes(numbers.tobytes())
    with pytest.raises(UserError, match="log: is no routing log|expert -2 is none"):
        pieces(file)
