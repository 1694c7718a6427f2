"""Edits of DiPaCo's choice of a path, whose levels are the steps and whose modules make the paths.

Shapes: B documents, C chunks between decisions, T tokens, P paths, S levels.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.edit_plan import RoutePlan


def open_paths(plan: RoutePlan, path_modules: Int[Tensor, "P S"]) -> Bool[Tensor, " P"]:
    """Paths that avoid every banned module and lead through every forced one."""
    left_P = torch.ones(len(path_modules), dtype=torch.bool, device=path_modules.device)
    for level, step in enumerate(plan.steps):
        if step is None:
            continue
        for module in step.banned:
            left_P &= path_modules[:, level] != module
        for force in step.forced:
            left_P &= path_modules[:, level] == force.module
    return left_P


def edited_scores(
    scores: Float[Tensor, "B C P"], plan: RoutePlan, path_modules: Int[Tensor, "P S"]
) -> Float[Tensor, "B C P"]:
    """Scores to rank paths by: −∞ for closed ones, the bias of each module on the path added."""
    for level, step in enumerate(plan.steps):
        for module, value in step.bias if step is not None else ():
            scores = scores + value * (path_modules[:, level] == module)
    return scores.masked_fill(~open_paths(plan, path_modules), float("-inf"))


def swapped_paths(
    paths: Int[Tensor, "B C"],
    plan: RoutePlan,
    path_modules: Int[Tensor, "P S"],
    chunks: Int[Tensor, " T"],
    shape: tuple[int, int],
    valid: Bool[Tensor, "B T"] | None,
) -> Int[Tensor, "B C"]:
    """The paths of another document, where they are given.

    Raises:
        UserError: a route of another number of tokens, or one that changes where this model does not decide.
    """
    given = [step.given for step in plan.steps if step is not None and step.given is not None]
    if not given:
        return paths
    if any(step is not None and (step.forced or step.bias) for step in plan.steps):
        raise UserError("the route is given, so nothing can be forced or pushed: give one of them", field="edits")
    ribbons_TS = torch.tensor(given, device=paths.device).squeeze(-1).T
    lengths = [shape[1]] * shape[0] if valid is None else valid.sum(dim=1).tolist()
    for length in lengths:
        if length != len(ribbons_TS):
            raise UserError(
                f"the route given is that of {len(ribbons_TS)} tokens, this text has {length}; routes can be swapped "
                "between texts of as many tokens",
                field="edits",
            )
    path_T = (ribbons_TS[:, None] == path_modules[None]).all(dim=2).int().argmax(dim=1)
    own_T = chunks[: len(path_T)]
    found = torch.zeros(paths.shape[1], dtype=paths.dtype, device=paths.device)
    for chunk in range(paths.shape[1]):
        here = path_T[own_T == chunk].unique()
        if len(here) > 1:
            first = int((own_T == chunk).nonzero()[0])
            raise UserError(
                f"the route given changes its path behind token {first}, where this model decides nothing; give one "
                "path for each stretch, or the reroute_every that it was made with",
                field="edits",
            )
        found[chunk] = here[0] if len(here) else 0
    return found.expand_as(paths)
