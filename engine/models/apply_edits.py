"""Apply edits between a router's scores and its ``Decision``, for both ways of executing a step.

Shapes: B samples, T tokens, N = B·T, M modules, K slots, S steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.routing import Decision
from tokenpaths.engine.families.edit_plan import StepPlan
from tokenpaths.engine.families.edit_values import Ban, Force, no_such_token


def allowed_modules(
    choices: tuple[int, ...],
    num_modules: int,
    plan: StepPlan,
    device: torch.device,
    shape: tuple[int, int] = (1, 1),
    valid: Bool[Tensor, "B T"] | None = None,
    unedited: list[Decision] | None = None,
) -> Bool[Tensor, " M"] | Bool[Tensor, "N M"] | None:
    """The connectivity mask of an edited step, of each token where bans hold for some; None where all is allowed.

    The rest is as in ``edited``.
    """
    left = [module for module in choices if module not in plan.banned]
    if len(left) == num_modules and not plan.banned_for:
        return None
    mask = torch.zeros(num_modules, dtype=torch.bool, device=device)
    mask[left] = True
    if not plan.banned_for:
        return mask
    mask_NM = mask.repeat(shape[0] * shape[1], 1)
    for ban in plan.banned_for:
        gone = torch.zeros(num_modules, dtype=torch.bool, device=device)
        gone[list(ban.modules)] = True
        mask_NM &= ~(_meant(ban, shape, valid, unedited).to(device).unsqueeze(1) & gone)
    return mask_NM


def pushed(bias: Float[Tensor, " M"], plan: StepPlan) -> Float[Tensor, " M"]:
    """The selection bias with what the edits add."""
    if not plan.bias:
        return bias
    bias = bias.clone()
    for module, value in plan.bias:
        bias[module] += value
    return bias


def turned_away(decision: Decision, idle_of: dict[int, int], banned: frozenset[int]) -> Decision:
    """Banned modules take no token: each slot that one of them holds goes to its identity, with weight 0."""
    if not banned:
        return decision
    ids_NK, weights_NK = decision.module_ids, decision.weights
    for module in banned:
        taken_NK = ids_NK == module
        ids_NK = torch.where(taken_NK, idle_of[module], ids_NK)
        weights_NK = torch.where(taken_NK, 0.0, weights_NK)
    weights_NK, order_NK = weights_NK.sort(dim=-1, descending=True, stable=True)
    return replace(decision, module_ids=ids_NK.gather(-1, order_NK), weights=weights_NK, scores=None)


def edited(
    decision: Decision,
    plan: StepPlan,
    step: int,
    shape: tuple[int, int],
    valid: Bool[Tensor, "B T"] | None = None,
    unedited: list[Decision] | None = None,
) -> Decision:
    """What becomes of a step's decision: given, frozen or dealt out anew, then forced.

    Bans, bias and top-k have acted before: they enter the router's choice. ``shape`` is (B, T); ``unedited`` the
    decisions of the pass without edits, where ``RoutePlan.needs_unedited``.

    Raises:
        UserError: a route given for another number of tokens, a token that a sample has not, or edits that contradict
            each other for a token that only its path names.
    """
    if plan.frozen:
        assert unedited is not None
        chosen = unedited[step]
        decision = replace(decision, module_ids=chosen.module_ids, weights=chosen.weights, scores=None)
    elif plan.given is not None:
        decision = replace(decision, module_ids=_given(plan.given, decision.module_ids, shape, valid), scores=None)
    elif plan.shuffled is not None:
        order_N = shuffled_order(shape, valid, plan.shuffled, step).to(decision.module_ids.device)
        ids_NK, weights_NK = decision.module_ids[order_N], decision.weights[order_N]
        decision = replace(decision, module_ids=ids_NK, weights=weights_NK, scores=None)
    sent = [_meant(force, shape, valid, unedited) for force in plan.forced]
    _refuse_two_forces(plan, sent, step)
    for force, meant_N in zip(plan.forced, sent, strict=True):
        decision = _forced(decision, force.module, meant_N)
    if plan.banned_for and (plan.forced or plan.given is not None):
        _refuse_banned(decision.module_ids.cpu(), plan, step, shape, valid, unedited)
    return decision


def _refuse_two_forces(plan: StepPlan, sent: Sequence[Bool[Tensor, " N"]], step: int) -> None:
    """Forces that only a sample can tell to mean the same token: ``plan_routes`` has refused the others."""
    for place, (one, one_N) in enumerate(zip(plan.forced, sent, strict=True)):
        for other, other_N in zip(plan.forced[:place], sent, strict=False):
            if one.module != other.module and (one_N & other_N).any():
                raise UserError(
                    f"a token is forced to module {other.module} and to module {one.module} at step {step}; do one of "
                    "the two",
                    field="edits",
                )


def _refuse_banned(
    ids_NK: Int[Tensor, "N K"],
    plan: StepPlan,
    step: int,
    shape: tuple[int, int],
    valid: Bool[Tensor, "B T"] | None,
    unedited: list[Decision] | None,
) -> None:
    for ban in plan.banned_for:
        meant_N = _meant(ban, shape, valid, unedited)
        for module in ban.modules:
            if ((ids_NK == module).any(dim=1) & meant_N).any():
                raise UserError(
                    f"a token is sent to module {module} at step {step} and banned from it; do one of the two",
                    field="edits",
                )


def _lengths(shape: tuple[int, int], valid: Tensor | None) -> list[int]:
    return [shape[1]] * shape[0] if valid is None else valid.sum(dim=1).tolist()


def _given(
    ids: tuple[tuple[int, ...], ...], own_NK: Int[Tensor, "N K"], shape: tuple[int, int], valid: Tensor | None
) -> Int[Tensor, "N K"]:
    """The modules given for every sample of the batch; padding keeps its own."""
    given_nK = torch.tensor(ids, device=own_NK.device, dtype=own_NK.dtype)
    for length in _lengths(shape, valid):
        if length != len(given_nK):
            raise UserError(
                f"the route given is that of {len(given_nK)} tokens, this sample has {length}; routes can be swapped "
                "between samples of as many tokens",
                field="edits",
            )
    result = own_NK.view(*shape, -1).clone()
    result[:, : len(given_nK)] = given_nK
    return result.flatten(0, 1)


def shuffled_order(
    shape: tuple[int, int], valid: Bool[Tensor, "B T"] | None, seed: int, step: int
) -> Int[Tensor, " N"]:
    """For each token the one whose decision it gets: a permutation within its sample, padding left in place.

    It depends on the seed, the step and the number of tokens of the sample, not on the rest of the batch.
    """
    batch, tokens = shape
    order_BT = torch.arange(batch * tokens).view(batch, tokens)
    for row, length in zip(order_BT, _lengths(shape, valid), strict=True):
        generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
        row[:length] = row[torch.randperm(length, generator=generator)]
    return order_BT.flatten()


def _forced(decision: Decision, module: int, meant_N: Bool[Tensor, " N"]) -> Decision:
    """The module in the place of the first choice, with its weight; who visits it already goes on as before."""
    ids_NK = decision.module_ids
    change_N = meant_N.to(ids_NK.device) & ~(ids_NK == module).any(dim=1)
    first_N = torch.where(change_N, module, ids_NK[:, 0])
    return replace(decision, module_ids=torch.cat([first_N.unsqueeze(1), ids_NK[:, 1:]], dim=1), scores=None)


def _meant(
    edit: Ban | Force, shape: tuple[int, int], valid: Tensor | None, unedited: list[Decision] | None
) -> Bool[Tensor, " N"]:
    """Which tokens an edit is for; padding is nobody's."""
    batch, tokens = shape
    real_N = torch.ones(batch * tokens, dtype=torch.bool) if valid is None else valid.cpu().flatten()
    if edit.path is not None:
        assert unedited is not None
        for slots, decision in zip(edit.path, unedited, strict=True):
            own_NK = decision.module_ids.sort(dim=1).values.cpu()
            if own_NK.shape[1] != len(slots):
                raise UserError(
                    f"the path names {len(slots)} modules at a step; a token visits {own_NK.shape[1]}", field="edits"
                )
            real_N = real_N & (own_NK == torch.tensor(sorted(slots))).all(dim=1)
    elif edit.tokens is not None:
        # Of every sample: whether an edit is taken must not hang on which others are in its batch.
        shortest = min(_lengths(shape, valid))
        if (last := max(edit.tokens)) >= shortest:
            raise UserError(no_such_token(edit, last, shortest), field="edits")
        mask_BT = torch.zeros(batch, tokens, dtype=torch.bool)
        mask_BT[:, list(edit.tokens)] = True
        real_N = real_N & mask_BT.flatten()
    return real_N
