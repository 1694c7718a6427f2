"""Responses put together from server-sent events: which of several streams ends, and what a chunk costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenpaths.engine.adapters.logs.responses.envelopes import CUT_OFF, MOST_OPEN, Streams, records, responses
from tokenpaths.engine.adapters.logs.responses.received import lines_of


def chunk(name: str, token: int, **more: Any) -> bytes:
    return event(
        {"id": name, "choices": [{"index": 0, "delta": {"content": f"{token} "}, "token_ids": [token], **more}]}
    )


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n"


DONE = b"data: [DONE]\n"


def put_together(*events: bytes) -> list[tuple[str, list[int]]]:
    streams, found = Streams(), list[tuple[str, dict[str, Any]]]()
    for number, one in enumerate(events):
        found += streams.add(str(number), one)
    found += streams.rest()
    return [(record["id"], record["choices"][0]["token_ids"]) for _, record in found]


def test_the_end_of_one_stream_does_not_end_another() -> None:
    between = [chunk("s", 1), chunk("t", 1), chunk("s", 2, finish_reason="stop"), DONE]
    after = [chunk("t", 2, finish_reason="length"), DONE]
    assert put_together(*between, *after) == [("s", [1, 2]), ("t", [1, 2])]


def test_tokens_counted_behind_the_end_begin_no_stream() -> None:
    usage = event({"id": "t", "choices": [], "usage": {"total_tokens": 3}})
    ends = [chunk("s", 2, finish_reason="stop"), chunk("t", 2, finish_reason="stop"), DONE, usage, DONE]
    assert put_together(chunk("s", 1), chunk("t", 1), *ends) == [("s", [1, 2]), ("t", [1, 2])]


def test_where_no_stream_says_that_it_is_complete_all_end() -> None:
    assert put_together(chunk("s", 1), chunk("t", 1), DONE, chunk("s", 2)) == [("s", [1]), ("t", [1]), ("s", [2])]


@pytest.mark.parametrize("num", [3, 2 * MOST_OPEN])
def test_chunks_may_be_json_lines(num: int, tmp_path: Path) -> None:
    """As a client writes them that has parsed the stream: two answers beside each other, nothing that ends them."""
    lines = []
    for pair in range(num):
        for token in range(3):
            for name in "ab":
                choice = {"index": 0, "token_ids": [token], "finish_reason": "stop" if token == 2 else None}
                record = {"id": f"{name}{pair}", "object": "chat.completion.chunk", "choices": [choice]}
                lines.append(json.dumps(record))
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    found = {record["id"]: record["choices"] for _, record in records(responses(tmp_path / "log.jsonl"))}
    assert len(found) == 2 * num
    assert all(one["token_ids"] == [0, 1, 2] for (one,) in found.values())


def test_a_chunk_copies_nothing_of_what_came_before() -> None:
    streams = Streams()
    list(streams.add("0", event({"id": "s", "output_ids": [1], "choices": [{"token_ids": [1], "text": "a"}]})))
    record = streams._open["s"]._record
    held = [record["output_ids"], record["choices"][0]["token_ids"], streams._open["s"]._texts[0]]
    list(streams.add("1", event({"id": "s", "output_ids": [2], "choices": [{"token_ids": [2], "text": "b"}]})))
    now = [record["output_ids"], record["choices"][0]["token_ids"], streams._open["s"]._texts[0]]
    assert now == [[1, 2], [1, 2], ["a", "b"]]
    assert all(before is after for before, after in zip(held, now, strict=True))
    assert next(streams.rest())[1]["choices"][0]["text"] == "ab"


def test_a_stream_without_an_end_is_said_to_be_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "log.sse"

    def said(*events: bytes) -> list[Any]:
        file.write_bytes(b"\n".join(events))
        return [item for item in responses(file) if not isinstance(item[1], dict)]

    ends = chunk("s", 2, finish_reason="stop")
    assert said(chunk("s", 1), chunk("t", 1), ends, chunk("t", 2)) == [(CUT_OFF, 1)]
    assert said(chunk("s", 1), ends) == said(chunk("s", 1), ends, DONE) == said(chunk("s", 1), DONE) == []


def test_chunks_may_be_sent_as_json_lines() -> None:
    """To ``POST /logs``: one answer that ends, one that is cut off."""
    sent = [("s", 1, None), ("t", 1, None), ("s", 2, "stop")]
    lines = [
        json.dumps({"id": name, "object": "chat.completion.chunk", "choices": [{"token_ids": [token]} | end]}).encode()
        for name, token, reason in sent
        for end in ({"finish_reason": reason},)
    ]
    ((whole, none), (_, problem)) = lines_of(b"\n".join(lines))
    assert json.loads(whole)["choices"][0]["token_ids"] == [1, 2]
    assert none is None
    assert problem is not None
