"""What one request to a received log holds: lines, lists and streams of events, each response known by its id."""

from __future__ import annotations

import bz2
import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.conftest import API, Serve
from tests.backend.test_received_logs import answer, inbox, refusal, send
from tests.engine.adapters.logs.engine_logs import IDS, LAYERS, PROMPT, ROWS, TOP_K, sglang
from tokenpaths.backend.problems import problem_of
from tokenpaths.backend.routes import received as route
from tokenpaths.backend.routes.received import seal
from tokenpaths.backend.services import Services
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.pieces.announced import Announced
from tokenpaths.engine.base.errors import UserError
from tokenpaths.sending import lines

LONG = "x y " * 300_000
FIRST: dict[str, dict[str, Any]] = {
    "columns": {"text": "Each token, layer, expert, weight: all of it"},
    "long": {"prompt": LONG},
    "keys of others": {"metadata": {"layer": 0, "top_indices": [], "tpe": [], "selected_ids": [], "layer_idx": 0}}
    | {"prompt": LONG},
    "deep": {"metadata": json.loads("[" * 190 + "]" * 190)},
}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("case", FIRST)
def test_whatever_is_taken_first_is_recognised(services: Services, case: str, engine: str) -> None:
    record = {**FIRST[case], **(answer(0) if engine == "vllm" else sglang(0)), **FIRST[case]}
    sizes = Announced() if engine == "vllm" else Announced(LAYERS + 1, TOP_K)
    route._take(services, "live", lines(record), sizes)
    job = seal(services, "live")
    assert job["request"]["file"] == inbox(services)[0].name
    log = open_log(inbox(services)[0], layers=sizes.layers, top_k=sizes.top_k)
    assert [piece.num_tokens for piece in log.pieces()] == [ROWS]


def test_a_body_holds_no_more_responses_than_are_taken_at_once(services: Services) -> None:
    for body in (b"0\n" * 10_001, b"[" + b"{}," * 10_000 + b"{}]"):
        with pytest.raises(UserError, match="more than 10,000 responses") as caught:
            route._take(services, "live", body, Announced())
        assert problem_of(caught.value).status == 413
    most = lines([answer(0)]) + b"[" + b"{}," * 9_998 + b"{}]"
    told = route._take(services, "live", most, Announced())
    assert (told["received"], told["num_refused"]) == (1, 9_999)


def test_lines_that_are_refused_are_not_held() -> None:
    refused, taken = route.read_received(b'{"id": "a"}\n' + lines(answer(0)), Announced())
    assert (refused.line, refused.id, refused.problem is None) == (b"", "a", False)
    assert taken.line == lines(answer(0)).strip()


def test_each_response_of_a_list_is_known_by_its_id(services: Services) -> None:
    send(services, answer(0))
    told = send(services, json.dumps([answer(0), answer(1), [answer(2), {"id": "bad"}]]))
    assert (told["received"], told["known"], told["num_refused"]) == (2, 1, 1)
    assert (told["refused"][0]["id"], told["refused"][0]["line"]) == ("bad", 3)
    assert send(services, json.dumps([answer(2), answer(1)]))["known"] == 2
    seal(services, "live")
    stored = [json.loads(line) for line in inbox(services)[0].read_bytes().splitlines()]
    assert [row["id"] for row in stored] == ["chat-0", "chat-1", "chat-2"]
    assert len(list(open_log(inbox(services)[0]).pieces())) == 3


def test_responses_of_a_list_share_their_prompt_as_in_a_file(services: Services, tmp_path: Path) -> None:
    plain = [
        {"id": str(n), "usage": {"prompt_tokens": PROMPT}, "choices": [{"routed_experts": ids.tolist()}]}
        for n, ids in enumerate((IDS[0], np.concatenate([IDS[0][:PROMPT], IDS[1][PROMPT:]])))
    ]
    (tmp_path / "log").write_text(json.dumps(plain))
    in_file = [piece.num_tokens for piece in open_log(tmp_path / "log").pieces()]
    send(services, json.dumps(plain))
    seal(services, "live")
    assert [piece.num_tokens for piece in open_log(inbox(services)[0]).pieces()] == in_file
    assert sum(in_file) < 2 * len(IDS[0])


@pytest.mark.parametrize(
    ("pack", "words"),
    [
        (gzip.compress, "compressed with gzip; unpack it first"),
        (bz2.compress, "compressed with bzip2; unpack it first"),
        (lambda body: body.decode().encode("utf-16"), "UTF-16 text; save it as UTF-8"),
    ],
)
def test_a_body_that_is_packed_is_named(services: Services, pack: Callable[[bytes], bytes], words: str) -> None:
    with pytest.raises(UserError, match=f"what came is {words}") as caught:
        route._take(services, "live", pack(lines(answer(0))), Announced())
    assert problem_of(caught.value).status == 422


def test_a_body_that_says_that_it_is_packed_is_refused(serve: Serve) -> None:
    served = serve()
    for packing in ("gzip", "br"):
        headers = {"content-encoding": packing}
        told = served.client.post(f"{API}/logs/live", content=zlib.compress(lines(answer(0))), headers=headers)
        said = f"The body is packed (Content-Encoding: {packing}); send it unpacked, without that header."
        assert (told.status_code, told.json()["detail"]) == (422, said)
    headers = {"content-encoding": "identity"}
    assert served.client.post(f"{API}/logs/live", content=lines(answer(0)), headers=headers).status_code == 200


def test_a_list_of_what_is_no_response_is_refused_as_a_whole(services: Services) -> None:
    for body in (b"[]", b"[1, 2]", b'[{"id": "a"}, 3]', b"[[{}, []]]", b"[" * 300 + b"]" * 300):
        refused = refusal(lambda body=body: route._take(services, "live", body, Announced()))
        assert (refused.status, refused.kind) == (422, "no-response")


def test_an_empty_list_in_a_list_is_not_passed_over(services: Services) -> None:
    told = send(services, answer(0), json.dumps([answer(1), []]))
    assert (told["received"], told["num_refused"]) == (1, 1)


@pytest.mark.parametrize("depth", [250, 900])
def test_what_is_nested_too_deep_for_an_import_is_refused(services: Services, depth: int) -> None:
    deep = b'{"id": "a", "x": ' + b"[" * depth + b"]" * depth + b', "choices": [{"routed_experts": [[[1, 2]]]}]}'
    for body in (deep, b"[" + deep + b"]", b"data: " + deep + b"\n\ndata: [DONE]\n\n"):
        refused = refusal(lambda body=body: route._take(services, "live", body, Announced()))
        assert (refused.status, "nested more than 200 deep" in refused.detail) == (422, True)


def test_long_ids_that_begin_alike_are_kept_apart(services: Services) -> None:
    one, other = (answer(0, id="x" * 200 + end) for end in ("a", "b"))
    assert send(services, one, other)["received"] == 2
    assert send(services, other)["known"] == 1


def test_a_stream_that_was_cut_off_is_refused_and_locks_out_nothing(services: Services) -> None:
    part = answer(0, np.insert(IDS[0], 0, 0, axis=1)[:4])
    body = b"data: " + json.dumps(part).encode() + b"\n\n"
    refused = refusal(lambda: route._take(services, "live", body, Announced()))
    assert (refused.status, "the stream is cut off" in refused.detail) == (422, True)
    told = route._take(services, "live", body + lines(answer(1)), Announced())
    assert (told["received"], told["refused"][0]["id"]) == (1, "chat-0")
    assert send(services, answer(0))["received"] == 1
    part |= {"id": "ended", "choices": [part["choices"][0] | {"finish_reason": "stop"}]}
    ended = b"data: " + json.dumps(part).encode() + b"\n\n"
    assert route._take(services, "live", ended, Announced())["received"] == 1
