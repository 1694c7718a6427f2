"""Tokenpaths: see, measure and compare the paths that tokens take through routed networks.

    import tokenpaths
    run = tokenpaths.Run.open("my-run.duckdb")

    with tokenpaths.record(model, run="mine") as rec:  # any PyTorch model with routers
        model(batch)
    rec.run.flow()

    run = tokenpaths.trace("dna-vision-top1", "bundled:scenes", limit=40)  # a shipped model, or "hf:…"
    run.frames.paths()  # every answer as a data frame too

    tokenpaths.explore(run)  # a widget in a notebook: a sample, its flow, the path of a chosen token

    tokenpaths.compare_runs([run, twin, other])  # numbers of any number of runs, with intervals of the differences

    tokenpaths.runs(series="mine")  # the checkpoints of one training, in order
    tokenpaths.saturation(series="mine")  # how settled its routing was at each of them

    tokenpaths.send(answer, run="live")  # an answer of vLLM or SGLang, to a running `tokenpaths up`

Each name is imported from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers
    from tokenpaths.engine.adapters.recorder.recorder import record
    from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingAssumed, RecordingStopped
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.store.ask.several_runs.compare import compare
    from tokenpaths.engine.store.ask.several_runs.many_runs import compare_runs
    from tokenpaths.engine.store.ask.several_runs.saturation import runs, saturation
    from tokenpaths.frontend import charts
    from tokenpaths.sending import send
    from tokenpaths.shortcuts import explore, import_log, trace

_WHERE = {
    "RecordingAssumed": "tokenpaths.engine.adapters.recorder.recording_warnings",
    "RecordingStopped": "tokenpaths.engine.adapters.recorder.recording_warnings",
    "Run": "tokenpaths.engine.store.ask.run",
    "charts": "tokenpaths.frontend.charts",
    "compare": "tokenpaths.engine.store.ask.several_runs.compare",
    "compare_runs": "tokenpaths.engine.store.ask.several_runs.many_runs",
    "explore": "tokenpaths.shortcuts",
    "import_log": "tokenpaths.shortcuts",
    "record": "tokenpaths.engine.adapters.recorder.recorder",
    "runs": "tokenpaths.engine.store.ask.several_runs.saturation",
    "saturation": "tokenpaths.engine.store.ask.several_runs.saturation",
    "send": "tokenpaths.sending",
    "trace": "tokenpaths.shortcuts",
}
__all__ = [
    "RecordingAssumed",
    "RecordingStopped",
    "Run",
    "__version__",
    "charts",
    "compare",
    "compare_runs",
    "explore",
    "import_log",
    "record",
    "runs",
    "saturation",
    "send",
    "trace",
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
