"""Keeps libraries from being loaded that a command does not use."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_pandas() -> Iterator[None]:
    """Hide pandas from DuckDB, which imports it at its first parameter to recognise missing values (0.3 s).

    For commands that pass no data frames. Does nothing if pandas is loaded already.
    """
    if "pandas" in sys.modules:
        yield
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["pandas"]
