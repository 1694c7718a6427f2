"""Keeps libraries from being loaded that a command does not use."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    """Finds no pandas, as where it is not installed."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden here", name="pandas")


@contextmanager
def without_pandas() -> Iterator[None]:
    """Hide pandas from DuckDB, which imports it at its first parameter to recognise missing values (0.3 s).

    For commands that pass no data frames. Does nothing if pandas is loaded already. It is not found, rather than None
    in ``sys.modules``: pyarrow takes what stands there for pandas.
    """
    if "pandas" in sys.modules:
        yield
        return
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
