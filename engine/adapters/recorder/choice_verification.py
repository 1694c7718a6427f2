"""Verification of choices that are recomputed from logits, against the experts that the model really called.

A bias, noise or groups behind the logits would silently make their top-k another choice than the model's. On the first
forward pass the experts that are modules are watched: each must be given as many rows as the choice sends it tokens.

Shapes: n tokens, K slots, M experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tokenpaths.engine.adapters.recorder.router_outputs import Call, tensors_of
from tokenpaths.engine.adapters.recorder.router_search import Router, plain_name
from tokenpaths.engine.base.errors import UserError

CLOSE = 0.05
"""share of the choices that may differ: low precision causes ties, which top-k breaks either way"""

Outcome = Literal["agrees", "nearly", "unseen"]


def rows_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
    """Number of tokens that a module received: rows of its first input."""
    for tensor in tensors_of([*args, *kwargs.values()]):
        if tensor.is_floating_point() and tensor.dim() >= 1 and tensor.shape[-1]:
            return tensor.numel() // tensor.shape[-1]
    return 0


class ExpertCalls:
    """Hooks that count the rows of each expert, by the name of the list that holds them, until ``close``."""

    def __init__(self, model: nn.Module, routers: Sequence[Router], is_recorded: Callable[[], bool]) -> None:
        self.rows: dict[str, list[int]] = {}
        self._handles: list[Any] = []
        self._is_recorded = is_recorded
        modules = {plain_name(name): module for name, module in model.named_modules()}
        for name in {router.experts for router in routers if router.experts is not None}:
            experts = modules[name]
            if not isinstance(experts, (nn.ModuleList, nn.ModuleDict)):
                continue
            listed = list(experts.values() if isinstance(experts, nn.ModuleDict) else experts)
            self.rows[name] = [0] * len(listed)
            for place, expert in enumerate(listed):
                hook = torch.compiler.disable(self._counter(name, place))
                self._handles.append(expert.register_forward_pre_hook(hook, with_kwargs=True))

    def _counter(self, name: str, place: int) -> Callable[..., None]:
        def count(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self._is_recorded():
                self.rows[name][place] += rows_of(args, kwargs)

        return count

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def compare(calls: Sequence[tuple[Router, Call]], rows: Mapping[str, Sequence[int]]) -> dict[int, Outcome]:
    """For each recomputed call, by place, whether the model called its experts according to the choice.

    ``unseen``: its experts are not modules, or received other numbers of rows altogether (all tokens each, a fixed
    capacity), so nothing can be concluded.

    Raises:
        UserError: the model sent its tokens to other experts.
    """
    outcomes: dict[int, Outcome] = {}
    # Several routers may share one set of experts: what counts is all that reached it.
    sharing: dict[str, list[int]] = {}
    for place, (router, call) in enumerate(calls):
        if router.experts is not None and router.experts in rows:
            sharing.setdefault(router.experts, []).append(place)
        elif call.reading.recomputed:
            outcomes[place] = "unseen"
    for name, places in sharing.items():
        recomputed = [place for place in places if calls[place][1].reading.recomputed]
        if recomputed:
            chosen_M = torch.stack([_counts(calls[place][1], len(rows[name])) for place in places]).sum(dim=0)
            outcome = _outcome(calls[recomputed[0]][0], chosen_M, torch.tensor(rows[name]))
            outcomes |= dict.fromkeys(recomputed, outcome)
    return outcomes


def _counts(call: Call, num_experts: int) -> Tensor:
    """Tokens that a call sends to each expert (M,), on the host."""
    ids = call.ids
    if ids is None:
        assert call.logits is not None
        ids = call.logits.topk(call.reading.top_k, dim=-1).indices
    return torch.bincount(ids.reshape(-1).long().cpu(), minlength=num_experts)


def _outcome(router: Router, chosen_M: Tensor, called_M: Tensor) -> Outcome:
    if len(chosen_M) != len(called_M) or int(called_M.sum()) != int(chosen_M.sum()):
        return "unseen"
    other_M = (called_M - chosen_M).abs()
    share = int(other_M.sum()) / 2 / int(chosen_M.sum())
    if share == 0:
        return "agrees"
    if share <= CLOSE:
        return "nearly"
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
