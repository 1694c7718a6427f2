"""Tokenpaths: see, measure and compare the paths that tokens take through routed networks.

    import tokenpaths
    run = tokenpaths.Run.open("my-run.duckdb")

Everything is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "Run": "engine.store",
    "charts": "frontend.charts",
}
__all__ = ["Run", "__version__", "charts"]  # noqa: F822 (found by __getattr__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tokenpaths")
    if name not in _WHERE:
        raise AttributeError(f"tokenpaths has no {name!r}; it has {', '.join(__all__)}")
    if name == "charts":
        return import_module(_WHERE[name])
    return getattr(import_module(_WHERE[name]), name)
