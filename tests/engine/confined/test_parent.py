"""A function in a confined child: values, errors, limits, deaths."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import Confined, ReaderEnded, RemoteError

ROOM = "tests.engine.confined.functions"
QUICK = Limits(memory_megabytes=1024, seconds=20, message_megabytes=8)
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@pytest.fixture(autouse=True)
def _tests_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))


@pytest.fixture
def acting() -> Iterator[Confined]:
    with Confined(f"{ROOM}:act", QUICK, "the picture", field="image") as confined:
        yield confined


def test_values_go_there_and_back() -> None:
    with Confined(f"{ROOM}:echo", QUICK) as confined:
        image = np.arange(3_000_000, dtype=np.uint8).reshape(1000, 1000, 3)
        answer = confined.call(image=image, name="ü", data=b"\0" * 70_000)
        np.testing.assert_array_equal(answer["image"], image)
        assert (answer["name"], answer["data"]) == ("ü", b"\0" * 70_000)
        pid = confined.pid
        assert confined.call() == {}
        assert confined.pid == pid, "one child for all calls"


def test_user_errors_come_back(acting: Confined) -> None:
    with pytest.raises(RemoteError, match=r"^a sentence$") as caught:
        acting.call(how="refuse")
    assert (caught.value.field, caught.value.kind, caught.value.status) == ("image", "OddError", 415)


@pytest.mark.parametrize(
    ("how", "reason", "sentence"),
    [
        ("memory", "memory", r"needs more memory than its reader may use \(1,024 MB\)"),
        ("panic", "failed", r"failed in the library that reads it \(BaseException\)"),
        ("segv", "died", r"Reading the picture ended the process that read it \(SIGSEGV\)"),
        ("abort", "died", r"ended the process that read it \(code 7\)"),
        ("odd value", "died", r"ended the process"),
        ("connect", "failed", r"PermissionError"),
    ],
)
def test_what_goes_wrong_is_a_sentence_and_the_next_call_works(
    acting: Confined, how: str, reason: str, sentence: str
) -> None:
    if how == "connect" and not sys.platform.startswith("linux"):
        pytest.skip("there is no filter")
    with pytest.raises(ReaderEnded, match=sentence) as caught:
        acting.call(how=how, size=2 << 30)
    assert (caught.value.reason, caught.value.field) == (reason, "image")
    assert isinstance(acting.call(how="answer"), int)


def test_time_is_limited() -> None:
    with Confined(f"{ROOM}:act", Limits(seconds=2)) as confined:
        confined.call(how="answer")
        began = time.monotonic()
        with pytest.raises(ReaderEnded, match=r"took longer than 2 s") as caught:
            confined.call(how="hang")
        assert caught.value.reason == "time"
        assert time.monotonic() - began < 10
        assert isinstance(confined.call(how="answer"), int)


def test_a_killed_child_is_replaced(acting: Confined) -> None:
    first = acting.call(how="answer")
    os.kill(first, signal.SIGKILL)
    assert acting.call(how="answer") not in (None, first)


def test_prints_do_not_mix_with_answers(acting: Confined) -> None:
    assert isinstance(acting.call(how="print"), int)


def test_no_secrets(acting: Confined, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENPATHS_TOKEN", "a secret of many letters")
    assert "TOKENPATHS_TOKEN" not in acting.call(how="environment")


def test_streams() -> None:
    with Confined(f"{ROOM}:count", QUICK) as confined:
        seen = [part.tolist() for part in confined.stream(stop=4)]
        assert seen == [[number] * 3 for number in range(4)]
        assert confined.call(stop=2) == "all"
        pid = confined.pid
        with pytest.raises(UserError, match="number 2"):
            list(confined.stream(stop=4, fail_at=2))
        assert confined.pid == pid, "an error is an answer"
        given_up = confined.stream(stop=1_000_000)
        next(given_up)
        given_up.close()
        assert confined.call(stop=1) == "all"
        assert confined.pid != pid


def test_the_limit_of_a_whole_stream() -> None:
    with Confined(f"{ROOM}:count", QUICK) as confined:
        confined.call(stop=1)
        confined.limits = replace(QUICK, seconds=0.2, whole_stream=True)
        with pytest.raises(ReaderEnded, match="longer than 0.2 s") as caught:
            for _ in confined.stream(stop=200_000):
                pass
        assert caught.value.reason == "time"
        confined.limits = replace(QUICK, whole_stream=True)
        assert [part.tolist() for part in confined.stream(stop=2)] == [[0] * 3, [1] * 3]


def framed(header: str) -> bytes:
    return len(header).to_bytes(8, "big") + header.encode()


@pytest.mark.parametrize(
    "frame",
    [
        b"\xff" * 8,
        framed("{}"),
        framed('{"value":1,"buffers":[]}'),
        framed('{"value":{"#":0},"buffers":[["bytes",1e400]]}'),
        framed('{"value":{"#":0},"buffers":[["array",0,["f8"],[0]]]}'),
        framed(f'{{"value":{{"#":0}},"buffers":[["array",0,"f8",[0,{10**30}]]]}}'),
        framed('{"value":{"kind":[1]},"buffers":[]}'),
        framed('{"value":{"kind":{"#":0}},"buffers":[["array",2,"i1",[2]]]}') + b"\1\1",
    ],
)
def test_a_lying_child_is_not_believed(frame: bytes) -> None:
    with Confined(f"{ROOM}:lie", Limits(seconds=20)) as confined:
        with pytest.raises(ReaderEnded) as caught:
            confined.call(frame=frame)
        # Who reads “SIGKILL” takes it for a machine without memory, and tries again for ever.
        assert "gave no answer that can be understood" in str(caught.value)
        assert confined.pid is None, "it runs no more"


def test_odd_errors_of_a_child_are_made_plain() -> None:
    """An error that the API could not answer, or whose parts are no texts."""
    odd = '{"kind":"user","error":7,"sentence":{"#":0},"field":[],"status":999}'
    frame = framed(f'{{"value":{odd},"buffers":[["array",2,"i1",[2]]]}}') + b"\1\1"
    with Confined(f"{ROOM}:lie", Limits(seconds=20), field="image") as confined:
        with pytest.raises(RemoteError) as caught:
            confined.call(frame=frame)
        assert (str(caught.value), caught.value.field, caught.value.kind) == ("", "image", "")
        assert not hasattr(caught.value, "status")


def test_a_child_whose_answer_nobody_took_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it still sends must not be taken for the answer to the next request."""
    with Confined(f"{ROOM}:echo", QUICK) as confined:
        confined.call()
        pid = confined.pid

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("tokenpaths.engine.confined.parent.read_message", interrupted)
            with pytest.raises(KeyboardInterrupt):
                confined.call(number=1)
        assert confined.pid is None
        assert confined.call(number=2) == {"number": 2}
        assert confined.pid != pid


def test_threads_wait_for_each_other(acting: Confined) -> None:
    pids: list[int] = []
    threads = [threading.Thread(target=lambda: pids.append(acting.call(how="answer"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) == 8
    assert len(set(pids)) == 1, "a child outlives the thread that called it first"
    assert acting.call(how="answer") == pids[0]


@linux
def test_forgotten_ones_end() -> None:
    confined = Confined(f"{ROOM}:act", QUICK)
    pid = confined.call(how="answer")
    del confined
    for _ in range(200):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.02)
    pytest.fail("it runs on")
