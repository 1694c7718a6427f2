"""Requests of a session that are made once, though a click asks for them twice or another one comes before the answer.

While a request is under way, Streamlit begins the script anew for the next click, in another thread; what the thread
before writes into the session's state from then on is lost. So what is under way is in the state before it begins.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import streamlit as st

DOUBLE_CLICK_SECONDS = 1.5
"""between an answer and a second click that is meant as the first"""


class Asked:
    """A request that is under way, or was."""

    def __init__(self, asked: object) -> None:
        self.asked = asked
        self.answer: Future[Any] = Future()
        self._ended = math.inf

    def make(self, request: Callable[[], Any]) -> None:
        """Make it, and keep its answer or its error."""
        try:
            answer = request()
        except BaseException as error:  # whatever it is: who waits for the answer raises it
            self.answer.set_exception(error)
        else:
            self._ended = time.monotonic()
            self.answer.set_result(answer)

    def serves(self, asked: object, within: float) -> bool:
        """Whether its answer is that to ``asked``: under way, or not older than so many seconds."""
        failed = self.answer.done() and self.answer.exception() is not None
        return self.asked == asked and not failed and time.monotonic() - self._ended < within


def once(slot: str, asked: object, request: Callable[[], Any], *, within: float | None = None) -> Any:
    """The answer to ``request``, or that of the same made just now, which is waited for if it is under way.

    ``slot`` of the session's state has the ``Asked`` that was last. Raises what the request raises.
    """
    last: Asked | None = st.session_state.get(slot)
    if last is None or not last.serves(asked, DOUBLE_CLICK_SECONDS if within is None else within):
        last = st.session_state[slot] = Asked(asked)
        last.make(request)
    return last.answer.result()
