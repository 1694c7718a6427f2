"""Functions that tests call in confined children, under ``tests.engine.confined.functions:NAME``."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Generator
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import UserError


class OddError(UserError):
    """A UserError with a status."""

    status = 415


def echo(**values: Any) -> dict[str, Any]:
    return values


def act(how: str, size: int = 0) -> Any:
    """Answer, fail or die in the way named."""
    if how == "refuse":
        raise OddError("a sentence", field="image")
    if how == "memory":
        return len(bytearray(size))
    if how == "panic":
        raise BaseException("regex is too hard")  # as pyo3's PanicException
    if how == "segv":
        ctypes.string_at(0)
    if how == "abort":
        os._exit(7)
    if how == "hang":
        time.sleep(600)
    if how == "print":
        print("noise", flush=True)
        os.write(1, b"more noise")
    if how == "connect":
        socket.socket()
    if how == "environment":
        return sorted(os.environ)
    if how == "odd value":
        return object()
    return os.getpid()


def count(stop: int, fail_at: int = -1) -> Generator[Any, None, str]:
    """Yields arrays; dies or fails in between."""
    for number in range(stop):
        if number == fail_at:
            raise UserError(f"number {number}")
        yield np.full(3, number, np.int32)
    return "all"


def lie(frame: bytes) -> None:
    """Send bytes instead of an answer."""
    for descriptor in range(3, 20):
        try:
            os.write(descriptor, frame)
        except OSError:
            continue
    time.sleep(600)
