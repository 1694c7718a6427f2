"""Tokenpaths: see, measure and compare the paths that tokens take through routed networks.

    import tokenpaths
    run = tokenpaths.Run.open("my-run.duckdb")

    with tokenpaths.record(model, run="mine") as rec:  # any PyTorch model with routers
        model(batch)
    rec.run.flow()

    tokenpaths.runs(series="mine")  # the checkpoints of one training, in order
    tokenpaths.saturation(series="mine")  # how settled its routing was at each of them

Everything is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors: what is loaded below when it is first used
    from engine.adapters.recorder import RecordingAssumed, RecordingStopped, record
    from engine.analysis.saturation import runs, saturation
    from engine.store import Run
    from frontend import charts

_WHERE = {
    "RecordingAssumed": "engine.adapters.recorder",
    "RecordingStopped": "engine.adapters.recorder",
    "Run": "engine.store",
    "charts": "frontend.charts",
    "record": "engine.adapters.recorder",
    "runs": "engine.analysis.saturation",
    "saturation": "engine.analysis.saturation",
}
__all__ = [
    "RecordingAssumed",
    "RecordingStopped",
    "Run",
    "__version__",  # noqa: F822 (found by __getattr__)
    "charts",
    "record",
    "runs",
    "saturation",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("tokenpaths")
    if name not in _WHERE:
        raise AttributeError(f"tokenpaths has no {name!r}; it has {', '.join(__all__)}")
    if name == "charts":
        return import_module(_WHERE[name])
    return getattr(import_module(_WHERE[name]), name)
