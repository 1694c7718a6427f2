"""A log becomes samples as a reader of the model would cut them; what several share is counted once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import ANSWER, IDS, LAYERS, PROMPT, ROWS, TOP_K, choices, npy64
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS, Piece
from tokenpaths.engine.adapters.logs.sequences import Sequences
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run


def answer(number: int, prompt: list[int], words: list[int], rows: np.ndarray) -> dict[str, Any]:
    return {"index": number, "text": "w", "token_ids": words, "routed_experts": npy64(rows), "prompt_token_ids": prompt}


def conversations(requests: int = 2, several: int = 3, turns: int = 3) -> tuple[list[dict[str, Any]], int, int]:
    """Responses with several answers a turn, of which the first goes on; tokens that they hold, and decisions."""
    records, counted, decided = [], 0, 0
    for request in range(requests):
        prompt = [1000 * request + word for word in range(PROMPT)]
        rows = choices(PROMPT, 7 * request + 1)
        decided += len(prompt)
        for turn in range(turns):
            answers = []
            for number in range(several):
                seed = 100 * request + 10 * turn + number
                words = [5000 + 100 * seed + word for word in range(ANSWER)]
                own = np.concatenate([rows, choices(ANSWER - 1, 999 + seed)])
                answers.append(answer(number, prompt, words, own))
                counted += len(own)
                decided += ANSWER - 1
                if number == 0:
                    following, following_rows = prompt + words, own
            records.append({"id": f"c{request}-{turn}", "model": "org/m", "choices": answers})
            asked = [9000 + 100 * turn + word for word in range(5)]
            if turn < turns - 1:
                new = choices(len(asked) + 1, 31 * request + turn)  # the last word of the answer, and the question
                prompt, rows = following + asked, np.concatenate([following_rows, new])
                decided += len(new)
    return records, counted, decided


def test_prefixes_of_choices_and_turns_are_counted_once(tmp_path: Path):
    records, counted, decided = conversations()
    log, found = pieces(make.lines(tmp_path / "log", records))
    assert sum(piece.num_tokens for piece in found) == decided < counted
    assert [piece.source for piece in found[:4]] == [
        "c0-0 choice 0",
        f"c0-0 choice 1, from token {PROMPT} on",
        f"c0-0 choice 2, from token {PROMPT} on",
        f"c0-1 choice 0, from token {ROWS} on",
    ]
    assert found[3].shared_with == ("c0-0 choice 0", ROWS)
    with Run.open(import_log(log, tmp_path / "runs", "talks")) as run:
        findings = run.info()["findings"]
        assert run.card()["num_tokens"] == decided
        assert {"sample": "c0-0 choice 0", "tokens": PROMPT, "times": 2} in findings["shared_prefixes"]
        said = f"{counted - decided:,} tokens of prefixes that choices or turns share are counted once"
        assert any(note.startswith(said) for note in findings["notes"])


def test_a_part_of_many_blocks_names_each_of_its_tokens(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.sequences.CUT_TOKENS", 2)
    ids, counted = np.arange(5000).reshape(-1, 1, 1), (("{n} remark{s}", 1),)
    part = Piece(ids, "log", source="one", counted=counted, locate=lambda token, step, slot: f"line {token}")
    sequences = Sequences()
    found = [*sequences.add("one", Piece(ids[:1], "log", source="one"), new=True)]
    found += [*sequences.add("one", part, new=False), *sequences.finish()]
    assert np.array_equal(np.concatenate([piece.ids for piece in found]), np.concatenate([ids[:1], ids]))
    assert [piece.num_tokens for piece in found] == [2] * 2500 + [1]
    assert found[0].place(0) == "log, token 0"
    assert [found[0].place(1), found[1].place(0), found[-1].place(0)] == ["line 0", "line 1", "line 4999"]
    assert [piece.counted for piece in found if piece.counted] == [counted]


def test_prefixes_without_vocabulary_ids(tmp_path: Path):
    records, _, decided = conversations()
    for record in records:
        for choice in record["choices"]:
            del choice["token_ids"], choice["prompt_token_ids"]
    log, found = pieces(make.lines(tmp_path / "log", records))
    # Without the lengths of prompts, choices share what is equal where it is at least as long as a block.
    lengths = [piece.num_tokens for piece in found]
    assert decided <= sum(lengths) <= decided + 2 * 2 * PROMPT


def test_equal_choices_are_left_out_and_equal_requests_kept(tmp_path: Path):
    words = list(range(50, 50 + ANSWER))
    record = {"id": "a", "choices": [answer(number, list(range(PROMPT)), words, IDS[0]) for number in range(3)]}
    _, found = pieces(make.lines(tmp_path / "log", [record, record | {"id": "b"}]))
    assert [piece.num_tokens for piece in found] == [ROWS, ROWS]
    assert (
        total(found)["{n} choice{s} with the decisions of an earlier choice of the same request or list {are} left out"]
        == 4
    )


def test_rows_of_a_prefix_that_the_server_left_out(tmp_path: Path):
    record = make.vllm_chat(0, ids=IDS[0][7:])
    _, (piece,) = pieces(make.lines(tmp_path / "log", [record]))
    assert piece.token_id.tolist() == make.WORDS[0][7:ROWS]
    assert any("routed_experts_prompt_start" in remark for remark in piece.remarks)


def test_cancelled_and_failed_requests_are_counted(tmp_path: Path):
    failed = {"id": "v", "custom_id": "r", "response": None, "error": {"message": "no"}}
    _, found = pieces(make.lines(tmp_path / "log", [make.aborted(), failed, make.vllm_chat(0), make.aborted()]))
    assert len(found) == 1
    assert total(found) == {
        "{n} response{s} without decisions (cancelled requests, perhaps) {are} left out": 2,
        "{n} failed or cancelled request{s} {are} left out": 1,
    }


def test_bad_lines_are_skipped_and_counted_if_asked(tmp_path: Path):
    good = [json.dumps(make.vllm_chat(number)) for number in range(3)]
    twice = make.vllm_chat(1, ids=np.full((ROWS, LAYERS, TOP_K), 3))
    bad = [good[0][:200], json.dumps(twice), json.dumps(make.vllm_chat(1) | {"model": "other"})]
    (tmp_path / "log").write_text("\n".join([good[0], bad[0], good[1], *bad[1:], good[2]]) + "\n")
    refused(tmp_path, tmp_path / "log", "line 2: is not JSON")
    log, found = pieces(tmp_path / "log", skip_bad=True)
    assert [piece.source for piece in found] == [f"chatcmpl-{number}" for number in range(3)]
    counts = [kind for piece in found for kind, n in piece.counted for _ in range(n)]
    reasons = sorted(kind.rsplit("left out: ", 1)[1].split(": ", 1)[1][:12] for kind in counts)
    assert reasons == ["is not JSON ", "is of the mo", "the same exp"]
    with Run.open(import_log(log, tmp_path / "runs", "rest")) as run:
        assert run.card()["num_samples"] == 3
        assert sum("1 response or sample is left out: " in note for note in run.info()["findings"]["notes"]) == 3


@pytest.mark.parametrize("rows", ["", []])
def test_an_answer_without_a_row_is_refused_by_its_line_or_left_out(tmp_path: Path, rows: Any):
    good, empty = (make.vllm_chat(number) for number in range(2))
    empty["choices"][0]["routed_experts"] = rows
    flat = {"text": "a", "meta_info": {"id": "a", "routed_experts": rows}}
    for line in (empty, flat):
        log = make.lines(tmp_path / "log", [line])
        with pytest.raises(UserError, match="log, line 1"):
            import_log(open_log(log, layers=LAYERS, top_k=TOP_K), tmp_path / "runs", "no")
    log, found = pieces(make.lines(tmp_path / "log", [good, empty]), skip_bad=True)
    assert [piece.source for piece in found] == ["chatcmpl-0"]


def test_neighbours_load_and_repetition_are_those_counted_by_hand(tmp_path: Path):
    """A prompt of which only one token has the last layer, and its decode steps."""
    log, (piece,) = pieces(make.fork_csv(tmp_path / "log"))
    with Run.open(import_log(log, tmp_path / "runs", "fork")) as run:
        usage, repetition, flow = run.usage(), run.repetition(), run.flow()
        compute = [token["compute"] for token in run.sample(0)["tokens"]]
    known = {layer: range(ROWS) if layer < LAYERS - 1 else range(PROMPT - 1, ROWS) for layer in range(LAYERS)}
    cells = {(cell["step"], cell["module"]): cell["count"] for cell in usage["usage"]}
    for layer in range(LAYERS):
        counts = np.bincount(IDS[0][list(known[layer]), layer].ravel(), minlength=log.experts)
        assert [cells[layer, expert] for expert in range(log.experts or 0)] == counts.tolist()
        assert usage["steps"][layer]["max_violation"] == pytest.approx(counts.max() * len(counts) / counts.sum() - 1)
        pairs = [(before, before + 1) for before in known[layer] if before + 1 in known[layer]]
        sets = [set(row.tolist()) for row in IDS[0][:, layer]]
        again = [bool(sets[before] & sets[after]) for before, after in pairs]
        assert repetition["steps"][layer]["any"] == np.mean(again)
    assert len(cells) == LAYERS * (log.experts or 0)
    assert {node["kind"] for node in flow["nodes"]} == {"expert"}
    for step in range(LAYERS - 1):
        drawn = sum(link["count"] for link in flow["links"] if link["step"] == step)
        left = sum(rest["count"] for rest in flow["other"] if rest["step"] == step)
        assert drawn == pytest.approx(len(known[step + 1]))
        assert drawn + left == pytest.approx(ROWS)
    assert compute == [1.0] * ROWS


def total(found: list[Piece]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for piece in found:
        for kind, number in piece.counted:
            counts[kind] += number
    return counts


def part(tokens: int, first: int) -> Piece:
    ids = np.arange(first, first + tokens)[:, None, None]
    return Piece(ids, f"file, line {first}", source=f"from {first}", locate=lambda t, s, k: f"line {first + t}")


def test_sequences_go_on_under_their_key():
    sequences = Sequences()
    done = [
        *sequences.add("a", part(3, 0), new=True),
        *sequences.add("b", part(2, 100), new=True),
        *sequences.add("a", part(1, 3), new=False),
        *sequences.add("b", part(4, 200), new=True),
        *sequences.finish(),
    ]
    assert [piece.ids.ravel().tolist() for piece in done] == [[100, 101], [0, 1, 2, 3], [200, 201, 202, 203]]
    assert done[1].place(3, 0, 0) == "line 3"


def test_long_sequences_are_handed_out_in_blocks():
    sequences = Sequences()
    done = []
    for first in range(0, 2 * CUT_TOKENS + 9, 7):
        done += sequences.add("a", part(7, first), new=first == 0)
    done += sequences.finish()
    total = (2 * CUT_TOKENS + 9 + 6) // 7 * 7
    assert np.concatenate([piece.ids.ravel() for piece in done]).tolist() == list(range(total))
    assert [piece.num_tokens for piece in done] == [CUT_TOKENS, CUT_TOKENS, total - 2 * CUT_TOKENS]
    assert done[1].source == f"from 0, tokens {CUT_TOKENS} to {2 * CUT_TOKENS - 1}"
