"""A connection of an H-Model as the goal of a dream: which connections exist, and their names. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OUTPUTS = {"predict": "next-token output", "classify": "class output"}


def choices(run: Mapping[str, Any], iteration: int) -> tuple[range, range, range]:
    """The iterations of a model, and its sources and targets at one of them.

    Inputs send at iteration 0, the input step, and hidden layers afterwards; what they send at the last iteration only
    outputs still receive.
    """
    config = run.get("config") or {}
    hidden, last = _hidden(run), int(config.get("iterations") or 1)
    senders, receivers = hidden + len(_inputs(run)), hidden + len(_outputs(run))
    sources = range(hidden, senders) if iteration == 0 else range(hidden)
    return range(last + 1), sources, range(hidden if iteration == last else 0, receivers)


def existing(run: Mapping[str, Any], at: Sequence[int]) -> list[int]:
    """Iteration, source and target of a connection: those ``at``, or the first that exist with what stands before.

    >>> run = {"config": {"hidden": [{}, {}], "iterations": 2, "inputs": ["text"], "outputs": ["predict"]}}
    >>> existing(run, [0, 0, 0]), existing(run, [1, 1, 0]), existing(run, [2, 0, 1])
    ([0, 2, 0], [1, 1, 0], [2, 0, 2])
    """
    iteration = min(max(0, at[0]), choices(run, 0)[0][-1])
    _, sources, targets = choices(run, iteration)
    return [iteration, *(one if one in all_ else all_[0] for one, all_ in zip(at[1:], (sources, targets), strict=True))]


def names(run: Mapping[str, Any], place: int) -> dict[int, str]:
    """Names of the iterations (``place`` 0), sources (1) or targets (2) by their number."""
    if place == 0:
        iterations = choices(run, 0)[0]
        return {n: "0: inputs send" if n == 0 else f"{n}: layers send" for n in iterations}
    modules = {int(module["module"]): str(module["name"]) for module in run.get("modules") or ()}
    layers = [modules.get(n, f"layer {n}") for n in range(_hidden(run))]
    ends = (
        [f"{name} input" for name in _inputs(run)]
        if place == 1
        else [OUTPUTS.get(name, f"{name} output") for name in _outputs(run)]
    )
    return dict(enumerate((*layers, *ends)))


def _hidden(run: Mapping[str, Any]) -> int:
    return max(1, len((run.get("config") or {}).get("hidden") or ()))


def _inputs(run: Mapping[str, Any]) -> list[str]:
    return list((run.get("config") or {}).get("inputs") or ["text"])


def _outputs(run: Mapping[str, Any]) -> list[str]:
    return list((run.get("config") or {}).get("outputs") or ["predict"])
