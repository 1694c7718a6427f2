"""Verification of choices that are recomputed from logits, against the experts that the model really called.

A bias, noise or groups behind the logits would silently make their top-k another choice than the model's. So the
experts that are modules are watched: each must be given as many rows as the choice sends it tokens. The first forward
pass decides whether that can be compared at all; every later one is compared before it is written, because a bias that
balances the experts begins at 0 and moves away from it.

Shapes: n tokens, K slots, M experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from tokenpaths.engine.adapters.recorder.module_hooks import ModuleHook
from tokenpaths.engine.adapters.recorder.routers.router_outputs import Call, Reading, tensors_of
from tokenpaths.engine.adapters.recorder.routers.router_search import Router, plain_name
from tokenpaths.engine.base.errors import UserError

CLOSE = 0.05
"""share of the choices that may differ: low precision causes ties, which top-k breaks either way"""

Outcome = Literal["agrees", "nearly", "unseen"]
ExpertRows = dict[str, list[int]]
"""numbers of rows that each expert received in one forward pass, by the name of the list that holds them"""
Chosen = Callable[[int], np.ndarray]
"""tokens that a call, by its place in the pass, sends to each expert (M,)"""


def rows_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Number of tokens that a module received: rows of its first input."""
    # The usual case apart: this runs at every call of every expert.
    if args and isinstance(args[0], Tensor) and args[0].is_floating_point() and args[0].dim() and args[0].shape[-1]:
        return args[0].numel() // args[0].shape[-1]
    for tensor in tensors_of([*args, *kwargs.values()]):
        if tensor.is_floating_point() and tensor.dim() >= 1 and tensor.shape[-1]:
            return tensor.numel() // tensor.shape[-1]
    return 0


class ExpertCalls:
    """Hooks that count the rows of each expert into what ``open_rows`` gives: those of the pass that runs, or None."""

    def __init__(self, model: nn.Module, routers: Sequence[Router], open_rows: Callable[[], ExpertRows | None]) -> None:
        self._sizes: dict[str, int] = {}
        self._handles: dict[str, list[Any]] = {}
        self._open_rows = open_rows
        modules = {plain_name(name): module for name, module in model.named_modules()}
        for name in {router.experts for router in routers if router.experts is not None}:
            experts = modules[name]
            if not isinstance(experts, (nn.ModuleList, nn.ModuleDict)):
                continue
            listed = list(experts.values() if isinstance(experts, nn.ModuleDict) else experts)
            self._sizes[name] = len(listed)
            self._handles[name] = [
                # Experts of compiled models are not watched at all.
                expert.register_forward_pre_hook(
                    ModuleHook(expert, self._counter(name, place), compiled=False), with_kwargs=True
                )
                for place, expert in enumerate(listed)
            ]

    def new_rows(self) -> ExpertRows:
        """Zeros for a pass that begins."""
        return {name: [0] * self._sizes[name] for name in self._handles}

    def _counter(self, name: str, place: int) -> Callable[..., None]:
        def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            rows = self._open_rows()
            if rows is not None and name in rows:
                rows[name][place] += rows_of(args, kwargs)

        return count

    def keep(self, names: Sequence[str]) -> None:
        """Watch only the experts of these lists from now on."""
        for name in [name for name in self._handles if name not in names]:
            for handle in self._handles.pop(name):
                handle.remove()

    def close(self) -> None:
        self.keep(())


class PassChecks:
    """Comparison of the passes after the first one with the calls of their experts, and what there is to say of it."""

    def __init__(self) -> None:
        self._most_other = 0.0
        self._unseen: list[int] = []

    def check(
        self, number: int, calls: Sequence[tuple[Router, Reading]], chosen: Chosen, rows: Mapping[str, Sequence[int]]
    ) -> bool:
        """Compare forward pass ``number``; whether this is the first one that could not be compared.

        Raises:
            UserError: the model sent its tokens to other experts.
        """
        shares = _other_shares(calls, chosen, rows)
        self._most_other = max([self._most_other, *(share for share in shares.values() if share is not None)])
        if all(share is not None for share in shares.values()):
            return False
        self._unseen.append(number)
        return len(self._unseen) == 1

    def notes(self) -> list[str]:
        """Findings of the run about its recomputed choices."""
        notes = []
        if self._most_other:
            notes.append(
                "in one forward pass or more the experts were called as the recomputed ids say but for some: at most "
                f"{self._most_other:.1%} of the choices of a router (ties)"
            )
        if self._unseen:
            notes.append(
                f"{UNSEEN_LATER}: that holds for {len(self._unseen)} forward passes, the first is number "
                f"{self._unseen[0]}"
            )
        return notes


UNSEEN_LATER = (
    "the experts were called with another number of tokens altogether than the recomputed ids have (a capacity that "
    "drops tokens?), so that these are the ids that the model uses is assumed"
)


def compare(
    calls: Sequence[tuple[Router, Reading]], chosen: Chosen, rows: Mapping[str, Sequence[int]]
) -> dict[int, Outcome]:
    """For each recomputed call, by place, whether the model called its experts according to the choice.

    ``unseen``: its experts are not modules, or received other numbers of rows altogether (all tokens each, a fixed
    capacity), so nothing can be concluded.

    Raises:
        UserError: the model sent its tokens to other experts.
    """
    outcomes: dict[int, Outcome] = {place: "unseen" for place, (_, reading) in enumerate(calls) if reading.recomputed}
    for place, share in _other_shares(calls, chosen, rows).items():
        outcomes[place] = "unseen" if share is None else "nearly" if share else "agrees"
    return outcomes


def counts_of(call: Call) -> np.ndarray:
    """Tokens that a call sends to each expert (M,)."""
    num_experts = call.reading.num_experts
    ids = call.ids
    if ids is None:
        assert call.logits is not None
        ids = call.logits.topk(call.reading.top_k, dim=-1).indices
    of_experts = ids.reshape(-1).long().cpu()
    if call.reading.drops:
        of_experts = of_experts[of_experts != -1]
    return np.bincount(of_experts.clamp(0, num_experts - 1).numpy(), minlength=num_experts)


def _other_shares(
    calls: Sequence[tuple[Router, Reading]], chosen: Chosen, rows: Mapping[str, Sequence[int]]
) -> dict[int, float | None]:
    """Share of the choices that the experts were not called with, by the place of each recomputed call that has rows;
    None: it cannot be told."""
    # Several routers may share one set of experts: what counts is all that reached it.
    sharing: dict[str, list[int]] = {}
    for place, (router, _) in enumerate(calls):
        if router.experts is not None and router.experts in rows:
            sharing.setdefault(router.experts, []).append(place)
    shares: dict[int, float | None] = {}
    for name, places in sharing.items():
        recomputed = [place for place in places if calls[place][1].recomputed]
        if recomputed:
            alike = all(calls[place][1].num_experts == len(rows[name]) for place in places)
            share = None
            if alike:
                chosen_M = np.sum([chosen(place) for place in places], axis=0)
                share = _other_share(calls[recomputed[0]][0], chosen_M, np.array(rows[name]))
            shares |= dict.fromkeys(recomputed, share)
    return shares


def _other_share(router: Router, chosen_M: np.ndarray, called_M: np.ndarray) -> float | None:
    if called_M.sum() != chosen_M.sum():
        return None
    other_M = np.abs(called_M - chosen_M)
    share = float(other_M.sum() / 2 / max(1, chosen_M.sum()))
    if share <= CLOSE:
        return share
    expert = int(other_M.argmax())
    raise UserError(
        f"the logits of {router.name} alone do not say what the model decides: their top-k would send "
        f"{int(chosen_M[expert])} tokens to expert {expert} of {router.experts}, the model sent it "
        f"{int(called_M[expert])} (a bias, noise or groups enter the choice); give read=, a function of (module, "
        "inputs, output) that returns the ids and weights that the model uses",
        field="read",
    )


def assumption(names: Sequence[str], top_k: int) -> str:
    """Warning for routers ``names`` whose choice could not be verified."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return (
        f"{names[0]}{others}: the choice is recomputed as the top {top_k} of the logits, and it could not be checked "
        "that the model chooses so; a bias, noise, groups or a capacity would make the run wrong: give read= to record "
        "what the model uses"
    )
