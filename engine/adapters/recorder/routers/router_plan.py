"""The plan of a recording, made on the first forward pass: which candidates are routers, how each is read, the layers.

Shapes: n tokens (rows of the routers' input), S steps, K slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from tokenpaths.engine.adapters.expert_runs import ExpertLayer, WeightSemantics, expert_modules
from tokenpaths.engine.adapters.recorder.routers.choice_verification import CLOSE, Outcome, compare, counts_of
from tokenpaths.engine.adapters.recorder.routers.router_outputs import ABSENT, Call, Reading, find_reading, ids_of_mask
from tokenpaths.engine.adapters.recorder.routers.router_search import Router
from tokenpaths.engine.adapters.recorder.routers.weight_meaning import Meaning, explain
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo, unused_slots

Read = Callable[[nn.Module, tuple[Any, ...], Any], tuple[Tensor, Tensor]]
"""(module, inputs, output of one call) -> ids (…, K), weights (…, K)"""
RawCall = tuple[Router, list[Tensor], int]
"""a candidate, all outputs of one call, and the number of rows of its input"""
RouterCall = tuple[Router, Call, int]
"""a router, the stored part of one call, and the number of rows of its input"""
_COMPILED = "If it was compiled before the recorder came, its code knows no hooks"
_OUTCOMES: dict[Outcome, str] = {
    "agrees": "in the first forward pass each expert was called with as many tokens as these ids say, and later passes "
    "were compared as well",
    "nearly": f"in the first forward pass the experts were called as these ids say, but for at most {CLOSE:.0%} "
    "(ties), and later passes were compared as well",
    "unseen": "that these are the ids that the model uses is assumed: what its experts were called with does not tell",
}
"""notes of a run about recomputed ids"""


@dataclass(frozen=True)
class RouterSettings:
    """Settings of the routers given by the caller; None: infer."""

    named: bool = False
    """whether the caller named the routers, so that none may be skipped"""
    read: Read | None = None
    top_k: int | None = None
    num_experts: int | None = None
    scale: float | None = None
    renormalise: bool = False


@dataclass(frozen=True)
class Plan:
    """Composition of the run's ribbons; known after the first forward pass."""

    layers: tuple[ExpertLayer, ...]
    top_k: int
    semantics: WeightSemantics
    calls: tuple[tuple[Router, Reading], ...] = ()
    """the router calls of one forward pass in order: one step each"""
    assumed: tuple[str, ...] = ()
    """names of the routers whose choice is recomputed and could not be verified against the model"""
    verified: tuple[str, ...] = ()
    """lists of experts whose calls tell whether the choices of a pass are the model's"""
    uncalled: tuple[Router, ...] = ()
    """candidates that the first pass did not call"""

    @property
    def sparse_steps(self) -> list[int]:
        """The steps at which a token may use fewer than K experts."""
        return [
            step for step, (_, reading) in enumerate(self.calls) if reading.may_be_unused or reading.top_k < self.top_k
        ]

    @property
    def unused_from(self) -> int:
        """The first id that stands for an unused slot."""
        return max(layer.num_experts for layer in self.layers)

    @property
    def num_modules(self) -> int:
        """Number of ids, those of unused slots included."""
        return self.unused_from + (self.top_k if self.sparse_steps else 0)

    def modules(self) -> list[ModuleInfo]:
        """The module table of the run."""
        return expert_modules(self.layers) + unused_slots(self.sparse_steps, self.unused_from, self.top_k)

    def flops(self, module_ids_nSK: np.ndarray) -> np.ndarray:
        """FLOPs of each token (n,)."""
        of_step_S = np.array([layer.flops_per_token for layer in self.layers], dtype=np.float32)
        if not self.sparse_steps:
            return np.full(len(module_ids_nSK), of_step_S.sum() * self.top_k, dtype=np.float32)
        return (module_ids_nSK < self.unused_from).sum(axis=2).astype(np.float32) @ of_step_S

    def as_json(self) -> dict[str, Any]:
        layers = [[x.name, x.num_experts, x.params_per_expert, x.flops_per_token] for x in self.layers]
        return {"layers": layers, "top_k": self.top_k, "sparse": self.sparse_steps}


def decide(
    model: nn.Module,
    raw: Sequence[RawCall],
    routers: Sequence[Router],
    settings: RouterSettings,
    expert_rows: Mapping[str, Sequence[int]],
) -> tuple[Plan, list[RouterCall], list[Router], list[tuple[str, str]]]:
    """The plan of the run, its first calls, the routers used, and (name, reason) of those skipped.

    ``expert_rows`` are the numbers of rows that each expert received in this pass, by the name of their list.

    Raises:
        UserError: no decision can be read, it contradicts the model's behaviour, or the routers are inconsistent.
    """
    seen: dict[int, tuple[list[Tensor], int]] = {}
    for router, tensors, rows in raw:
        seen.setdefault(id(router.module), (tensors, rows))
    taken: dict[int, tuple[Router, Reading]] = {}
    routers_read: list[Router] = []
    passed_over: list[tuple[str, str]] = []
    for router in routers:
        reading, chosen, problem = _choose(router, seen, settings)
        if reading is None:
            passed_over.append((router.name, problem))
        elif id(chosen.module) not in taken:
            taken[id(chosen.module)] = (chosen, reading)
            routers_read.append(chosen)
    if settings.named and passed_over:
        name, problem = passed_over[0]
        raise UserError(f"{name} cannot be read as a router: {problem}", field="routers")
    if not taken:
        raise _nothing_read(model, raw, passed_over)
    if any(reading.drops for _, reading in taken.values()):
        # A router whose experts had room in the first pass may drop tokens later, as the others do.
        taken = {
            at: (router, replace(reading, drops=reading.ids is not None)) for at, (router, reading) in taken.items()
        }
    meanings: list[Meaning] = []
    settled: list[tuple[Router, Reading]] = []
    calls: list[RouterCall] = []
    for router, tensors, rows in raw:
        if id(router.module) not in taken:
            continue
        router, reading = taken[id(router.module)]
        call = rows_of_call(tensors, reading, rows, router, copy=False)
        given = settings.scale is not None
        reading, meaning = explain(call, settings.scale if given else router.scale, settings.renormalise, given=given)
        router.reads, router.num_experts, router.top_k = reading.words, reading.num_experts, reading.top_k
        router.steps = (*router.steps, len(settled))
        settled.append((router, reading))
        meanings.append(meaning)
        calls.append((router, replace(call, reading=reading), rows))
    outcomes = compare(settled, lambda place: counts_of(calls[place][1]), expert_rows)
    for place, outcome in outcomes.items():
        meanings[place] = replace(meanings[place], note=f"{meanings[place].note}; {_OUTCOMES[outcome]}")
    assumed = dict.fromkeys(settled[place][0].name for place, outcome in outcomes.items() if outcome == "unseen")
    verified = {str(settled[place][0].experts) for place, outcome in outcomes.items() if outcome != "unseen"}
    plan = replace(
        _plan(settled, meanings),
        assumed=tuple(assumed),
        verified=tuple(sorted(verified)),
        uncalled=tuple(router for router in routers if _is_uncalled(router, seen)),
    )
    return plan, calls, routers_read, passed_over


def _is_uncalled(router: Router, seen: Mapping[int, Any]) -> bool:
    """Whether what looks like a router, by more than its name, was not called in the first pass."""
    there = [candidate for candidate in (router, router.around) if candidate is not None]
    return not router.must_give_ids and not any(id(candidate.module) in seen for candidate in there)


def _choose(
    router: Router, seen: dict[int, tuple[list[Tensor], int]], settings: RouterSettings
) -> tuple[Reading | None, Router, str]:
    """The reading of a candidate or of its enclosing one, which is preferred if it gives a choice or scores of its own:
    a bias, noise or an adapter behind the inner one has entered them."""
    problem = "it was not called in the first forward pass"
    for candidate in (router.around, router):
        if candidate is None or id(candidate.module) not in seen:
            continue
        tensors, rows = seen[id(candidate.module)]
        size, top_k = settings.num_experts or candidate.num_experts, settings.top_k or candidate.top_k
        if settings.read is not None:
            if size is None:
                raise UserError(
                    f"it cannot be told how many experts {candidate.name} has: give num_experts=", field="num_experts"
                )
            return Reading("callable", size, int(tensors[0].shape[1]), 0, 1, drops=True), candidate, ""
        scale = candidate.scale if settings.scale is None else settings.scale
        reading = find_reading(tensors, rows, size, top_k, scale)
        if isinstance(reading, str):
            problem = reading
            continue
        if router.must_give_ids and reading.kind not in ("ids", "sparse"):
            problem = "its name only speaks for it, and its output holds no expert ids"
        else:
            return reading, candidate, ""
    return None, router, problem


def _nothing_read(model: nn.Module, raw: Sequence[RawCall], passed_over: Sequence[tuple[str, str]]) -> UserError:
    if not raw:
        return UserError(
            f"none of the routers was called in this forward pass. {_COMPILED}: give record() what torch.compile "
            "returned, or call torch.compiler.reset() first",
            field="model",
        )
    problems = "; ".join(f"{name}: {why}" for name, why in passed_over[:4])
    return UserError(
        f"{type(model).__name__} has modules that look like routers, but no decision could be read from any "
        f"({problems}); give top_k= or num_experts=, name them with routers=, or give read=, a function of (module, "
        "inputs, output) that returns ids and weights",
        field="routers",
    )


def rows_of_call(tensors: Sequence[Tensor], reading: Reading, rows: int, router: Router, *, copy: bool) -> Call:
    """The tensors of a reading with one row per token."""

    def rows_of(what: str, place: int | None, width: int) -> Tensor | None:
        if place is None:
            return None
        # Scores that slipped into the place of ids, as where a loss stands before them in training, are no ids.
        wanted = place < len(tensors) and tensors[place].is_floating_point() == (what != "ids")
        if not wanted or tensors[place].numel() != rows * width:
            given = [f"{str(t.dtype)[6:]} {tuple(t.shape)}" for t in tensors if t.shape != ABSENT.shape]
            raise UserError(
                f"{router.name} gave {', '.join(given) or 'nothing'} for {rows} tokens, but in the first forward pass "
                f"{what} of {width} values a token at place {place}: where its output changes, as in training, give "
                "read=",
                field="routers",
            )
        return (tensors[place].clone() if copy else tensors[place]).reshape(rows, width)

    ids = rows_of("ids", reading.ids, reading.num_experts if reading.mask else reading.top_k)
    if ids is not None and reading.mask:
        ids = ids_of_mask(ids, reading.top_k)
    return Call(
        reading,
        ids,
        rows_of("weights", reading.weights, reading.top_k),
        rows_of("scores", reading.logits, reading.num_experts),
    )


def read_by_caller(read: Read, router: Router, module: nn.Module, args: tuple[Any, ...], output: Any) -> list[Tensor]:
    """Ids and weights (n, K) computed by the caller's function from an output."""
    decision = read(module, args, output)
    if not (isinstance(decision, tuple) and len(decision) == 2 and all(isinstance(part, Tensor) for part in decision)):
        raise UserError(
            f"read= gave {type(decision).__name__} for {router.name}: it should give two tensors, ids and "
            "weights, both (…, K)",
            field="read",
        )
    ids, weights = (tensor.detach() for tensor in decision)
    if ids.shape != weights.shape or ids.dim() < 2 or ids.is_floating_point() or not weights.is_floating_point():
        raise UserError(
            f"read= gave ids {ids.dtype} {tuple(ids.shape)} and weights {weights.dtype} {tuple(weights.shape)} for "
            f"{router.name}: it should give integers and floats of one shape (…, K)",
            field="read",
        )
    return [ids.reshape(-1, ids.shape[-1]), weights.reshape(-1, weights.shape[-1])]


def left_out(routers: Sequence[Router]) -> str:
    """Warning for ``routers`` that the first pass did not call."""
    others = f" and {len(routers) - 1} more" if len(routers) > 1 else ""
    return (
        f"{routers[0].name}{others} ({routers[0].why}) was not called in the first forward pass, so the run has no "
        f"step of it; the recording stops where a later pass calls it. {_COMPILED}: call torch.compiler.reset() first"
    )


def called_later(router: Router) -> UserError:
    return UserError(
        f"{router.name} was called, which the first forward pass did not call: a run needs the same steps for every "
        "token; begin the recording with a pass through all layers, or name the routers that every pass calls with "
        "routers=",
        field="routers",
    )


def other_order(router: Router, names: Sequence[str], place: int) -> UserError:
    expected = names[place] if place < len(names) else "no other router"
    return UserError(
        f"{router.name} was called where the first forward pass called {expected}: a run needs the same "
        "steps for every token",
        field="routers",
    )


def _plan(settled: Sequence[tuple[Router, Reading]], meanings: Sequence[Meaning]) -> Plan:
    """Layers, K and semantics of the run from its calls; K is the largest number of experts that one chooses."""
    layers = []
    for step, (router, reading) in enumerate(settled):
        again = f" (call {router.steps.index(step) + 1})" if len(router.steps) > 1 else ""
        layers.append(
            ExpertLayer(router.name + again, reading.num_experts, router.params_per_expert, router.flops_per_token)
        )
    first, top_k = meanings[0], max(reading.top_k for _, reading in settled)
    alike = all(meaning == first for meaning in meanings)
    scales = {reading.scale for _, reading in settled}
    notes = list(dict.fromkeys(meaning.note for meaning in meanings))
    slots = {reading.top_k: router.name for router, reading in reversed(settled)}
    if len(slots) > 1:
        sizes = ", ".join(f"{name} {number}" for number, name in sorted(slots.items()))
        notes.append(
            f"the layers choose different numbers of experts ({sizes}): a run has slots for {top_k}, and those that a "
            "layer has not are unused"
        )
    if len(scales) > 1:
        notes.append(f"the layers were divided by different scales ({', '.join(f'{s:g}' for s in sorted(scales))})")

    def shared(name: str) -> Any:
        values = {getattr(meaning, name) for meaning in meanings}
        return values.pop() if len(values) == 1 else None

    semantics = WeightSemantics(
        score_function=shared("score_function") or "unknown",
        order=shared("order") or "unknown",
        renormalised=shared("renormalised"),
        bias=shared("bias"),
        scale=scales.pop() if len(scales) == 1 else 1.0,
        weights_recorded=all(r.kind != "ids" or r.weights is not None or r.logits is not None for _, r in settled),
        source="; ".join(dict.fromkeys(reading.words for _, reading in settled)),
        note="; ".join(notes) if alike else "the layers differ: " + "; ".join(notes),
    )
    return Plan(tuple(layers), top_k, semantics, tuple(settled))
