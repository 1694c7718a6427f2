"""Validate edits against one model and resolve them step by step, before anything runs. Plain Python, no tensors.

Shapes: T tokens, S steps, K slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.edit_values import Ban, Bias, Edit, Force, Freeze, Shuffle, Swap, TopK, written


@dataclass(frozen=True)
class Routers:
    """What there is to edit: the routers of one model."""

    choices: tuple[tuple[int, ...], ...]
    """of each step, the modules that it may choose"""
    top_k: int
    one_place: bool = True
    """whether a token that is forced to one module of a step cannot be forced to another: a forced module takes the
    place of the first choice. False where each has a gate or a connection of its own"""

    @property
    def num_steps(self) -> int:
        return len(self.choices)


@dataclass(frozen=True)
class StepPlan:
    """What one step does differently."""

    banned: frozenset[int] = frozenset()
    """for every token"""
    banned_for: tuple[Ban, ...] = ()
    """bans that hold for some tokens only"""
    bias: tuple[tuple[int, float], ...] = ()
    """(module, what is added to its score)"""
    forced: tuple[Force, ...] = ()
    given: tuple[tuple[int, ...], ...] | None = None
    """modules by token and slot"""
    frozen: bool = False
    shuffled: int | None = None
    """seed"""


@dataclass(frozen=True)
class RoutePlan:
    """What a pass does differently: ``None`` where a step does nothing of the kind."""

    steps: tuple[StepPlan | None, ...]
    top_k: int

    @property
    def first(self) -> int:
        """The first step that decides differently; S where none does."""
        return next((s for s, plan in enumerate(self.steps) if plan is not None and not plan.frozen), len(self.steps))

    @property
    def frozen(self) -> tuple[int, ...]:
        """The steps that keep the decisions of the unedited pass."""
        return tuple(s for s, plan in enumerate(self.steps) if plan is not None and plan.frozen)

    @property
    def needs_unedited(self) -> bool:
        """Whether the decisions of the unedited pass have to be known."""
        return any(
            plan is not None
            and (plan.frozen or any(edit.path is not None for edit in (*plan.forced, *plan.banned_for)))
            for plan in self.steps
        )


def plan_routes(edits: Sequence[Edit] | None, routers: Routers) -> RoutePlan | None:
    """What each step does differently; None for no edits at all.

    Raises:
        UserError: a step or a module that is not there, a ban that leaves fewer modules than top-k needs, edits
            that contradict each other; ``field`` names the edit.
    """
    if not edits:
        return None
    top_k = _top_k(edits, routers)
    for place, edit in enumerate(edits):
        _check_places(edit, routers, f"edits.{place}")
    parts = [_of_step(edits, step, routers) for step in range(routers.num_steps)]
    for step, plan in enumerate(parts):
        if plan is not None:
            _check_step(plan, step, routers, top_k)
    _check_left(parts, routers, top_k)
    if any(isinstance(edit, Freeze) for edit in edits):
        parts = _frozen(edits, parts, changed_k=top_k != routers.top_k)
    if top_k != routers.top_k:
        parts = [StepPlan() if plan is None else plan for plan in parts]
    return RoutePlan(tuple(parts), top_k)


def _top_k(edits: Sequence[Edit], routers: Routers) -> int:
    given = {edit.k for edit in edits if isinstance(edit, TopK)}
    if len(given) > 1:
        raise UserError(f"top-k is to be {' and '.join(map(str, sorted(given)))}; give one", field="edits")
    return given.pop() if given else routers.top_k


def _check_places(edit: Edit, routers: Routers, field: str) -> None:
    step = getattr(edit, "step", None)
    if step is not None and step >= routers.num_steps:
        raise UserError(
            f"{written(edit)}: there is no step {step}; this model has the steps 0 to {routers.num_steps - 1}",
            field=f"{field}.step",
        )
    named = (edit.module,) if isinstance(edit, Force) else getattr(edit, "modules", ())
    modules = {module for choices in routers.choices for module in choices}
    there = modules if step is None else set(routers.choices[step])
    for module in named:
        if module not in there:
            at = "" if step is None or module not in modules else f" at step {step}"
            raise UserError(
                f"{written(edit)}: there is no module {module}{at}; it may be one of {_range(there)}",
                field=f"{field}.{'module' if isinstance(edit, Force) else 'modules'}",
            )
    if isinstance(edit, (Ban, Force)) and edit.path is not None and len(edit.path) != routers.num_steps:
        raise UserError(
            f"the path has {len(edit.path)} steps; a ribbon of this model has {routers.num_steps}",
            field=f"{field}.path",
        )


def _range(modules: set[int]) -> str:
    low, high = min(modules), max(modules)
    listed = ", ".join(map(str, sorted(modules)[:20]))
    return f"{low} to {high}" if len(modules) == high - low + 1 else listed + (" …" if len(modules) > 20 else "")


def _of_step(edits: Sequence[Edit], step: int, routers: Routers) -> StepPlan | None:
    """The edits that concern one step, freezing left out."""
    banned: set[int] = set()
    bias: dict[int, float] = {}
    forced: list[Force] = []
    banned_for: list[Ban] = []
    given, shuffled = None, None
    for place, edit in enumerate(edits):
        if getattr(edit, "step", None) not in (None, step):
            continue
        here = set(routers.choices[step])
        match edit:
            case Ban(modules=modules) if edit.for_all:
                banned |= here & set(modules)
            case Ban(modules=modules) if here & set(modules):
                banned_for.append(edit)
            case Bias(modules=modules, value=value):
                for module in here & set(modules):
                    bias[module] = bias.get(module, 0.0) + value
            case Force(module=module) if module in here:
                forced.append(edit)
            case Swap() | Shuffle() if given is not None or shuffled is not None:
                raise UserError(
                    f"{written(edit)}: the routes of step {step} are already given or shuffled by an edit before; "
                    "give one of the two",
                    field=f"edits.{place}",
                )
            case Swap(ribbons=ribbons):
                _check_ribbons(ribbons, routers, f"edits.{place}.ribbons")
                given = tuple(ribbon[step] for ribbon in ribbons)
            case Shuffle(seed=seed):
                shuffled = seed
    if not (banned or banned_for or bias or forced or given is not None or shuffled is not None):
        return None
    return StepPlan(
        frozenset(banned), tuple(banned_for), tuple(sorted(bias.items())), tuple(forced), given, False, shuffled
    )


def _check_ribbons(ribbons: tuple[tuple[tuple[int, ...], ...], ...], routers: Routers, field: str) -> None:
    for token, ribbon in enumerate(ribbons):
        if len(ribbon) != routers.num_steps:
            raise UserError(
                f"the route given for token {token} has {len(ribbon)} steps; this model has {routers.num_steps}",
                field=field,
            )
        for step, slots in enumerate(ribbon):
            strangers = set(slots) - set(routers.choices[step])
            if strangers:
                raise UserError(
                    f"the route given for token {token} names module {min(strangers)} at step {step}, which has "
                    f"{_range(set(routers.choices[step]))}",
                    field=field,
                )
            if len(set(slots)) != len(slots):
                raise UserError(f"the route given for token {token} names a module twice at step {step}", field=field)


def _check_step(plan: StepPlan, step: int, routers: Routers, top_k: int) -> None:
    for force in plan.forced:
        if force.module in plan.banned:
            raise UserError(
                f"module {force.module} is banned at step {step} and tokens are forced to it; do one of the two",
                field="edits",
            )
        for ban in plan.banned_for:
            if force.module in ban.modules and (both := _meant_by_both(force, ban)):
                raise UserError(
                    f"{both} forced to module {force.module} at step {step} and banned from it; do one of the two",
                    field="edits",
                )
    if routers.one_place:
        _check_forces(plan.forced, step)
    if plan.shuffled is not None and plan.banned_for:
        raise UserError(
            f"some tokens are banned from modules at step {step}, and its decisions are shuffled: they would get those "
            "of tokens that are not; do one of the two",
            field="edits",
        )
    if plan.given is None:
        return
    for token, slots in enumerate(plan.given):
        if len(slots) != top_k:
            raise UserError(
                f"the route given for token {token} has {len(slots)} modules at step {step}; top-k is {top_k}",
                field="edits",
            )
        banned = plan.banned.union(*(b.modules for b in plan.banned_for if b.tokens is not None and token in b.tokens))
        if banned & set(slots):
            raise UserError(
                f"the route given sends token {token} to module {min(banned & set(slots))} at step {step}, "
                "which is banned; do one of the two",
                field="edits",
            )


def _check_forces(forced: Sequence[Force], step: int) -> None:
    """Edits hold in any order, so no token may be sent to two modules at once."""
    for place, one in enumerate(forced):
        for other in forced[:place]:
            if one.module != other.module and (both := _meant_by_both(one, other)):
                raise UserError(
                    f"{both} forced to module {other.module} and to module {one.module} at step {step}; "
                    "do one of the two",
                    field="edits",
                )


def _meant_by_both(one: Ban | Force, other: Ban | Force) -> str:
    """Tokens that two edits surely share, as words; empty where there are none, or only a sample could tell."""
    if one.tokens is not None and other.tokens is not None:
        shared = sorted(set(one.tokens) & set(other.tokens))
        return f"token {shared[0]} is" if shared else ""
    if one.path is not None and other.path is not None:
        same = all(sorted(a) == sorted(b) for a, b in zip(one.path, other.path, strict=False))
        return "the tokens of one path are" if same else ""
    for chosen, everyone in ((one, other), (other, one)):
        if everyone.for_all:
            if chosen.tokens is not None:
                return f"token {chosen.tokens[0]} is"
            return "the tokens of a path are" if chosen.path is not None else "every token is"
    return ""


def _check_left(parts: Sequence[StepPlan | None], routers: Routers, top_k: int) -> None:
    """Every token keeps as many modules as it needs."""
    for step, choices in enumerate(routers.choices):
        plan = parts[step]
        left = len(choices) if plan is None else min(len(set(choices) - banned) for banned in _banned_at_worst(plan))
        if left < top_k:
            banned = f" with {len(choices) - left} of {len(choices)} banned" if left < len(choices) else ""
            raise UserError(
                f"step {step} has {left} module{'s' * (left != 1)} left{banned}, and top-k needs {top_k}; "
                + ("ban fewer" if banned else "give a smaller k"),
                field="edits",
            )


def _banned_at_worst(plan: StepPlan) -> Iterator[frozenset[int]]:
    """What single tokens may lose: all may be on any one path, and a token may be named by several bans."""
    tokens = {token for ban in plan.banned_for for token in ban.tokens or ()}
    paths = {tuple(map(tuple, map(sorted, ban.path))) for ban in plan.banned_for if ban.path is not None}
    for token in (None, *tokens):
        for path in (None, *paths):
            yield plan.banned.union(
                *(
                    ban.modules
                    for ban in plan.banned_for
                    if (ban.tokens is not None and token in ban.tokens)
                    or (ban.path is not None and tuple(map(tuple, map(sorted, ban.path))) == path)
                )
            )


def _frozen(edits: Sequence[Edit], parts: list[StepPlan | None], *, changed_k: bool) -> list[StepPlan | None]:
    if changed_k:
        raise UserError(
            "a frozen router decides as in the unedited run, with the model's own top-k; leave out top_k or freeze",
            field="edits",
        )
    plan = list(parts)
    for place, edit in enumerate(edits):
        if not isinstance(edit, Freeze):
            continue
        if edit.step is not None and parts[edit.step] is not None:
            raise UserError(
                f"the router of step {edit.step} is frozen and edited at once; do one of the two",
                field=f"edits.{place}.step",
            )
        for step in range(len(parts)) if edit.step is None else (edit.step,):
            if parts[step] is None:
                plan[step] = StepPlan(frozen=True)
    if plan == parts:
        raise UserError("other edits change every router, so none is left to be frozen", field="edits")
    return plan
