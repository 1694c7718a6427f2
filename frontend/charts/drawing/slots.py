"""What a token's slots hold at a step: modules, identities (a skipped step), nothing, or an unknown decision.

A run whose source lacks a decision has ids in its place that are no modules of the run (``docs/import.md``). Whatever
shows the slots of a token asks here what to say of them. ``offered`` are the ids of the run's modules; without them
every id is taken for a module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

Idle = Literal["skipped", "dropped", "not recorded"]
SKIPPED: Idle = "skipped"
DROPPED: Idle = "dropped"
NOT_RECORDED: Idle = "not recorded"
SIGNS: Mapping[Idle, str] = {SKIPPED: "skip", DROPPED: "–", NOT_RECORDED: "?"}
"""what stands in a cell in place of modules"""


def offered_ids(run: Mapping[str, Any]) -> frozenset[int]:
    """Ids of the modules of a run, from a response of ``/runs/{run}``."""
    return frozenset(int(module["module"]) for module in run["modules"])


def idle(
    modules: Sequence[int | str], identities: Collection[int] = (), offered: Collection[int] | None = None
) -> Idle | None:
    """Why a token takes no working module at a step; None where it takes one.

    >>> idle([]), idle([9, 8], {8, 9}), idle([16, 17], (), range(16)), idle([9, 3], {9})
    ('dropped', 'skipped', 'not recorded', None)
    """
    if not modules:
        return DROPPED
    # A source lacks all slots of a step, or none.
    if offered is not None and any(module not in offered for module in modules):
        return NOT_RECORDED
    return SKIPPED if all(module in identities for module in modules) else None


def mark(modules: Sequence[int], offered: Collection[int] | None = None) -> str:
    """The modules of a step as a cell has them.

    >>> mark([3, 7]), mark([]), mark([16, 17], range(16))
    ('3+7', '–', '?')
    """
    why = idle(modules, (), offered)
    return "+".join(map(str, modules)) if why is None else SIGNS[why]


def named(ribbon: Sequence[Sequence[int | str]], offered: Collection[int] | None) -> list[Sequence[int | str]]:
    """A ribbon whose unknown decisions are said in place of their stand-ins.

    >>> named([[3, 7], [16, 17]], range(16))
    [[3, 7], ['not recorded']]
    """
    return [[NOT_RECORDED] if idle(modules, (), offered) == NOT_RECORDED else modules for modules in ribbon]


def known(ribbon: Sequence[Sequence[int]], offered: Collection[int] | None) -> list[Sequence[int]]:
    """A ribbon without what stands for unknown decisions.

    >>> known([[3, 7], [16, 17]], range(16))
    [[3, 7], []]
    """
    return [[] if idle(modules, (), offered) == NOT_RECORDED else modules for modules in ribbon]


def taken(
    modules: Sequence[int], identities: Collection[int] = (), slots: int = 1, offered: Collection[int] | None = None
) -> str:
    """The modules that a token took at a step of so many ``slots``.

    >>> taken([3, 7]), taken([3], slots=2), taken([]), taken([16, 17], offered=range(16))
    ('3 + 7', '3 + unused slot', 'dropped at this step', 'not recorded')
    """
    why = idle(modules, identities, offered)
    if why is not None:
        return "dropped at this step" if why == DROPPED else why
    unused = slots - len(modules)
    words = [*map(str, modules), *(["unused slot" if unused == 1 else f"{unused} unused slots"] if unused > 0 else [])]
    return " + ".join(words)
