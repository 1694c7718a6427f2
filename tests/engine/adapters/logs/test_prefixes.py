"""Beginnings that samples share are counted once, whichever of them comes first and whatever ids are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import ANSWER, EXPERTS, IDS, PROMPT, ROWS, TOP_K, WORDS, choices, npy64
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tests.engine.adapters.logs.test_sequences import total
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.prefixes import BLOCK, CONTAINED, REPEATED, SHARED, without_prefixes
from tokenpaths.engine.store.ask.run import Run

LONG = choices(60, 5)
"""rows of a conversation"""


def answer(rows: np.ndarray, words: list[int] | None, prompt: list[int] | None = None, number: int = 0) -> dict:
    return {"index": number, "token_ids": words, "routed_experts": npy64(rows), "prompt_token_ids": prompt}


def response(name: str, *answers: dict, **more: Any) -> dict:
    return {"id": name, "model": "org/m", "choices": list(answers), **more}


def counted(tmp_path: Path, *records: Any) -> tuple[list[int], dict[str, int]]:
    """Tokens of each sample, and what is said."""
    _, found = pieces(make.lines(tmp_path / "log", list(records)))
    return [piece.num_tokens for piece in found], dict(total(found))


def piece(ids: np.ndarray, words: Any = None, **more: Any) -> Piece:
    words = None if words is None else np.array(words)
    return Piece(ids, "file", token_id=words, **more)


def kept(*given: Piece) -> list[int]:
    return [one.num_tokens for one in without_prefixes(given) if isinstance(one, Piece)]


def test_choices_with_which_another_begins_are_left_out(tmp_path: Path) -> None:
    prompt, words = list(range(20)), list(range(100, 109))
    answers = [answer(LONG[: 19 + n], words[:n], prompt, at) for at, n in enumerate((9, 1, 3))]
    lengths, said = counted(tmp_path, response("x", *answers))
    assert (lengths, said) == ([28], {CONTAINED: 2, SHARED: 20 + 22})
    lengths, said = counted(tmp_path, response("x", *reversed(answers)))  # the shorter ones first
    assert (lengths, said) == ([22, 6], {CONTAINED: 1, SHARED: 20 + 22})


@pytest.mark.parametrize("first", [4, 20])
def test_turns_may_come_in_any_order(tmp_path: Path, first: int) -> None:
    prompt, words = list(range(first)), list(range(100, 103))
    turns = [response("a", answer(LONG[: first + 2], words, prompt))]
    turns += [response("b", answer(LONG[: first + 4], [104, 105], prompt + words))]
    assert counted(tmp_path, *turns)[0] == [first + 2, 2]
    assert counted(tmp_path, *turns[::-1])[0] == [first + 4]


def test_a_rollout_with_which_another_begins_is_left_out(tmp_path: Path) -> None:
    samples = [
        {"index": at, "tokens": WORDS[0][: n + 1], "response_length": n + 1 - PROMPT, "rollout_routed_experts": rows}
        for at, (n, rows) in enumerate((n, torch.from_numpy(IDS[0][:n].astype(np.int32))) for n in (ROWS, PROMPT + 1))
    ]
    torch.save({"samples": samples}, tmp_path / "log")
    assert [one.num_tokens for one in pieces(tmp_path / "log")[1]] == [ROWS]


def test_requests_that_were_sent_again_are_counted_again_and_share_their_prompt(tmp_path: Path) -> None:
    rows = [np.concatenate([IDS[0][:PROMPT], IDS[n][PROMPT:]]) for n in range(3)]
    answers = [answer(one, WORDS[n][PROMPT:], WORDS[0][:PROMPT], n) for n, one in enumerate(rows)]
    lengths, _ = counted(tmp_path, response("a", *answers), response("b", *answers))
    assert lengths == 2 * [ROWS, ROWS - PROMPT, ROWS - PROMPT]


@pytest.mark.parametrize("words", [True, False])
def test_choices_without_the_length_of_their_prompt(tmp_path: Path, words: bool) -> None:
    rows = [np.concatenate([IDS[0][:PROMPT], IDS[n][PROMPT:]]) for n in range(3)]
    answers = [answer(one, WORDS[n][PROMPT:] if words else None, None, n) for n, one in enumerate(rows)]
    lengths, said = counted(tmp_path, {"request_id": "a", "choices": answers})
    assert (lengths, said) == ([ROWS, ANSWER - 1, ANSWER - 1], {SHARED: 2 * PROMPT})


def test_prompts_of_one_request_that_only_begin_alike_stay_whole(tmp_path: Path) -> None:
    """A list of prompts, as ``/v1/completions`` takes it: the first token of each is the same."""
    rows = [np.concatenate([IDS[0][:1], IDS[n][1:]]) for n in range(3)]
    answers = [answer(one, WORDS[n][PROMPT:], [0, *WORDS[n][1:PROMPT]], n) for n, one in enumerate(rows)]
    assert counted(tmp_path, response("a", *answers))[0] == [ROWS] * 3


@pytest.mark.parametrize("prompts", [(False, False), (True, False), (False, True), (True, True)])
def test_an_id_that_is_not_known_matches_any(tmp_path: Path, prompts: tuple[bool, bool]) -> None:
    """The answer of a turn stands in the prompt of the next, whose ids may not be told."""
    asked, said, then = list(range(20)), list(range(200, 220)), list(range(300, 310))
    before = [asked, asked + said + list(range(11))]
    turns = [
        {"request_id": str(at), "prompt_token_ids": before[at] if prompts[at] else None, "choices": [given]}
        for at, given in enumerate((answer(LONG[:39], said), answer(LONG[:60], then)))
    ]
    assert counted(tmp_path, *turns)[0] == [39, 21]
    assert counted(tmp_path, *turns[::-1])[0] == [60]


def test_ids_that_are_known_and_differ_are_no_prefix() -> None:
    ids, words = LONG[:40], np.arange(40)
    other, half = words.copy(), words.copy()
    other[30] = 999
    half[:30] = -1
    assert kept(piece(ids, words), piece(ids, other)) == [40, 10]
    assert kept(piece(ids, half), piece(ids, other)) == [40, 10]
    assert kept(piece(ids, half), piece(ids[:35], other[:35])) == [40, 5]
    assert kept(piece(ids, half), piece(ids[:35], words[:35])) == [40]
    assert kept(piece(ids), piece(ids[:35], words[:35]), piece(ids[:37], other[:37])) == [40]


def test_rows_that_are_all_equal_are_no_prefix_unless_the_ids_say_so() -> None:
    ids = np.tile(LONG[:1], (40, 1, 1))
    assert kept(piece(ids), piece(ids[:30])) == [40, 30]
    assert kept(piece(ids, np.arange(40)), piece(ids[:30], np.arange(30))) == [40]
    assert kept(piece(ids, np.zeros(40)), piece(ids[:30], np.zeros(30))) == [40, 30]


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_the_longest_beginning_is_the_one_found_by_comparing_all(with_ids: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 4 * BLOCK, 40)
    given, samples = [], list[tuple[np.ndarray, np.ndarray]]()
    for length in lengths.tolist():
        ids, words = choices(length, int(rng.integers(1 << 30))), rng.integers(0, 9, length)
        if samples and rng.random() < 0.8:
            from_ids, from_words = samples[rng.integers(len(samples))]
            shared = int(rng.integers(len(from_ids) + 1))
            ids = np.concatenate([from_ids[:shared], ids])
            words = np.concatenate([from_words[:shared], words])
        samples.append((ids, words))
        given.append(piece(ids, words if with_ids else None, source=f"sample {len(given)}"))
    expected = []
    for at, (ids, words) in enumerate(samples):
        found, ends = [0], set()
        for old_ids, old_words in samples[:at]:
            n = min(len(ids), len(old_ids))
            same = (ids[:n] == old_ids[:n]).all(axis=(1, 2)) & ((words[:n] == old_words[:n]) | (not with_ids))
            found.append(n if same.all() else int(np.argmin(same)))
            if found[-1] == len(old_ids):
                ends.add(found[-1])
        longest = max(found)
        together = longest >= BLOCK or any(2 <= end <= longest for end in (*ends, len(ids)))
        again = len(ids) in ends
        expected.append(len(ids) - (longest if together and not again else 0))
    assert kept(*given) == [length for length in expected if length]


def test_turns_in_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    prompt, words, asked = list(range(20)), list(range(100, 103)), list(range(50, 60))
    turns = [response("a", answer(LONG[:22], words, prompt), label="x")]
    turns += [response("b", answer(LONG[:34], [1, 2], prompt + words + asked), label="y")]
    for at, turn in enumerate(turns):
        (tmp_path / "log" / f"{at}.json").write_text(json.dumps(turn))
    log, found = pieces(tmp_path / "log")
    assert [one.num_tokens for one in found] == [22, 12]
    assert found[1].shared_with == ("a", 22)
    with Run.open(import_log(log, tmp_path / "runs", "talk")) as run:
        assert [row["num_tokens"] for row in run.samples()["samples"]] == [22, 12]


def test_a_wrong_token_is_named_as_it_stands_in_its_response(tmp_path: Path) -> None:
    wrong = LONG[:40].copy()
    wrong[30, 1] = 4
    prompt = list(range(20))
    turns = [response("a", answer(LONG[:24], list(range(5)), prompt))]
    turns += [response("b", answer(wrong, list(range(30, 46)), prompt + list(range(5))))]
    refused(tmp_path, make.lines(tmp_path / "log", turns), "line 2, token 30: the same expert twice")


def test_equal_responses_of_a_list_are_left_out_and_of_lines_kept(tmp_path: Path) -> None:
    """A list holds the choices of a request or several requests, and nothing in it says which."""
    same = [make.sglang(0) | {"prompt_token_ids": WORDS[0][:PROMPT]} for _ in range(2)]
    sizes = {"layers": make.LAYERS + 1, "top_k": TOP_K, "experts": EXPERTS}
    _, found = pieces(make.lines(tmp_path / "log", [same]), **sizes)
    assert [one.num_tokens for one in found] == [ROWS]
    assert total(found)[REPEATED] == 1
    _, found = pieces(make.lines(tmp_path / "log", same), **sizes)
    assert [one.num_tokens for one in found] == [ROWS, ROWS]
