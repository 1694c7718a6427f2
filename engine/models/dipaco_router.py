"""DiPaCo's routers: the path of a document from the features of its first tokens, and edits of that choice.

The feature is the mean hidden state of the last block of a base model over the first ``prefix``
tokens. Every router here scores the paths with a linear map of the feature, whatever fitted it:

- k-means: ``‖z − c‖²`` is smallest where ``2·c·z − ‖c‖²`` is largest;
- product k-means: one code for each level from its own part of the feature, so a path's score is the
  sum of the scores of its codes;
- discriminative: the logits of a logistic regression from the feature to the path that scored held-back
  documents best, plus a bias that makes the document-to-path distribution the wanted one.

Edits act on levels as steps: a ban or force of modules closes paths, a bias adds to the scores of paths.

Source: DiPaCo, sections 2.4 and 7.2, 7.3. Shapes: N or B documents, T tokens, P paths, S levels, D width,
n nearest paths, W tokens between decisions, C chunks between decisions or vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.edit_plan import RoutePlan
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.typed_containers import ModuleListOf

NEVER = -1e4
"""bias of a path that no document should take; finite, so that a softmax stays defined"""


@dataclass(frozen=True)
class LinearScores:
    """``scores = ((z − mean) / scale) @ weightᵀ + bias``; the largest wins."""

    mean: Float[Tensor, " D"]
    scale: Float[Tensor, " D"]
    weight: Float[Tensor, "P D"]
    bias: Float[Tensor, " P"]

    def __call__(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N P"]:
        return (features - self.mean) / self.scale @ self.weight.T + self.bias


def nearest(scores: Float[Tensor, "N P"], n: int = 1) -> Int[Tensor, "N n"]:
    """The ``n`` best paths of each document, best first (overlapping shards: n = 2, section 2.4.4).

    Raises:
        UserError: n is not between 1 and the number of paths.
    """
    num_paths = scores.shape[1]
    if not 1 <= n <= num_paths:
        raise UserError(f"overlap is {n}, it should be 1 to the number of paths, {num_paths}", field="overlap")
    return scores.topk(n, dim=1).indices


def fit_kmeans(features: Float[Tensor, "N D"], num_paths: int, seed: int = 0) -> LinearScores:
    """k-means over whole features: path j is cluster j (section 2.4.1, equation 1).

    Raises:
        UserError: there are fewer documents than paths.
    """
    centroids = _centroids(features, num_paths, seed)
    mean = features.mean(dim=0)
    return _nearest_centroid(centroids - mean, mean)


def fit_product(features: Float[Tensor, "N D"], levels: Sequence[int], seed: int = 0) -> LinearScores:
    """One k-means for each level on its own part of the feature (section 7.3).

    The feature is cut into as many equal parts as there are levels; the codes of the parts, first
    level most significant, number the path.

    Raises:
        UserError: the width does not divide into that many parts, or there are too few documents.
    """
    width, parts = features.shape[1], len(levels)
    if width % parts:
        raise UserError(f"width {width} cannot be cut into {parts} equal parts, one a level", field="width")
    mean = features.mean(dim=0)
    size = width // parts
    weight, bias = torch.zeros(1, 0), torch.zeros(1)
    for part, count in enumerate(levels):
        own = slice(part * size, (part + 1) * size)
        codes = _nearest_centroid(_centroids(features[:, own], count, seed + part) - mean[own], mean[own])
        # Every path so far goes on with every code of this level.
        weight = torch.cat([weight.repeat_interleave(count, 0), codes.weight.repeat(len(weight), 1)], dim=1)
        bias = bias.repeat_interleave(count) + codes.bias.repeat(len(bias))
    return LinearScores(mean, torch.ones(width), weight, bias)


def fit_discriminative(
    features: Float[Tensor, "N D"],
    best: Int[Tensor, " N"],
    num_paths: int,
    *,
    strength: float = 0.1,
    target: Float[Tensor, " P"] | None = None,
) -> LinearScores:
    """Logistic regression from feature to best path, then a bias to match ``target`` (section 7.2.1).

    ``target`` is the wanted share of each path, by default the shares in ``best``; ``strength`` the
    inverse of the L2 penalty. Paths without a share get the bias ``NEVER``.
    """
    from sklearn.linear_model import LogisticRegression

    mean, scale = features.mean(dim=0), features.std(dim=0, correction=0).clamp(min=1e-6)
    weight, bias = torch.zeros(num_paths, features.shape[1]), torch.zeros(num_paths)
    present = best.unique()
    if len(present) > 1:
        model = LogisticRegression(C=strength, max_iter=2000)
        model.fit(((features - mean) / scale).double().numpy(), best.numpy())
        coefficients, intercepts = model.coef_, model.intercept_
        if len(present) == 2:  # the library keeps one row for two classes
            coefficients, intercepts = np.vstack([-coefficients, coefficients]) / 2, np.r_[-intercepts, intercepts] / 2
        weight[present] = torch.from_numpy(coefficients).float()
        bias[present] = torch.from_numpy(intercepts).float()
    if target is None:
        target = torch.bincount(best, minlength=num_paths) / len(best)
    bias[target == 0] = NEVER
    scores = LinearScores(mean, scale, weight, bias)
    return LinearScores(mean, scale, weight, bias + calibrate_bias(scores(features), target))


def calibrate_bias(scores: Float[Tensor, "N P"], target: Float[Tensor, " P"]) -> Float[Tensor, " P"]:
    """The bias b with which ``argmax(scores + b)`` spreads the documents over the paths like ``target``.

    b minimises ``mean(max(scores + b)) − target·b``, whose slope is the difference of the two
    distributions. The maximum is softened by a temperature that falls step by step; at each one
    the update ``b += temperature · log(target / share)`` converges (it is Sinkhorn's), so the last bias is
    exact up to single documents. Where ``target`` is 0 the bias is ``NEVER``.
    """
    if bool((target < 0).any()) or abs(float(target.sum()) - 1) > 1e-3:
        raise UserError("target must be one share for each path, none negative, that sum to 1", field="target")
    used = target > 0
    bias = torch.full_like(target, NEVER, dtype=torch.float64)
    z = scores[:, used].double()
    log_target = target[used].double().log()
    b = torch.zeros(int(used.sum()), dtype=torch.float64)
    temperature = max(float(z.std()) if z.numel() > 1 else 0.0, 1e-9)  # one score has no spread
    for _ in range(12):
        for _ in range(40):
            log_share = ((z + b) / temperature).log_softmax(dim=1).logsumexp(dim=0) - np.log(len(z))
            b = b + temperature * (log_target - log_share)
        temperature *= 0.5
    bias[used] = b - b.mean()
    return bias.float()


def best_continuation(scores: Float[Tensor, "N T P"], horizon: int | None = None) -> Int[Tensor, "N T"]:
    """For each position the path with the best summed log-likelihood from there on (section 7.2.2).

    The sum runs over ``horizon`` positions, or to the end of the document; padding must score 0.
    """
    ahead = scores.flip(1).cumsum(dim=1).flip(1)
    if horizon is not None and horizon < scores.shape[1]:
        ahead = ahead.clone()
        ahead[:, :-horizon] = ahead[:, :-horizon] - scores.flip(1).cumsum(dim=1).flip(1)[:, horizon:]
    return ahead.argmax(dim=2)


def _centroids(features: Float[Tensor, "N d"], count: int, seed: int) -> Float[Tensor, "k d"]:
    from sklearn.cluster import KMeans

    if len(features) < count:
        raise UserError(
            f"{count} clusters from {len(features)} documents: give at least as many documents, "
            "or fewer modules in levels",
            field="levels",
        )
    fitted = KMeans(count, n_init=4, random_state=seed).fit(features.double().numpy())
    return torch.from_numpy(fitted.cluster_centers_).float()


def _nearest_centroid(centred: Float[Tensor, "k d"], mean: Float[Tensor, " d"]) -> LinearScores:
    """Centred on the mean, so that ``2·c·z`` and ``‖c‖²`` are of the same size and rounding is harmless."""
    return LinearScores(mean, torch.ones_like(mean), 2 * centred, -centred.square().sum(dim=1))


class Base(nn.Module):
    """The pre-trained dense path without its output: what the features come from."""

    def __init__(self, width: int, heads: int, mlp_width: int, blocks: int, vocab_size: int, context: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = ModuleListOf[Block](Block("transformer", width, heads, mlp_width) for _ in range(blocks))

    def forward(self, ids: Int[Tensor, "B T"], blocks: int | None = None) -> Float[Tensor, "B T D"]:
        """Hidden states after the first ``blocks`` blocks (None: after the last)."""
        h = self.embed(ids) + self.positions[: ids.shape[1]]
        for block in self.blocks[:blocks]:
            h = block(h, causal=True)
        return h


class Rerouter(nn.Module):
    """A path at any token: the base model with a last block and an output of its own (section 7.2.2).

    The paper tunes a whole copy of the base; tuning the last block alone keeps checkpoints small.
    """

    def __init__(self, width: int, heads: int, mlp_width: int, num_paths: int) -> None:
        super().__init__()
        self.block = Block("transformer", width, heads, mlp_width)
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, num_paths)

    def forward(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B T P"]:
        return self.head(self.norm(self.block(h, causal=True)))


class DiPaCoRouter(nn.Module):
    """Base model, linear scores and (optionally) the learned re-router; saved with the checkpoint."""

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, base: Base, num_paths: int, prefix: int, rerouter: Rerouter | None = None) -> None:
        super().__init__()
        width = base.positions.shape[1]
        self.prefix = prefix
        self.base = base.requires_grad_(False)
        self.rerouter = rerouter.requires_grad_(False) if rerouter is not None else None
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        # Random until fitted, so that an untrained twin uses all its paths.
        self.register_buffer("weight", torch.randn(num_paths, width))
        self.register_buffer("bias", torch.zeros(num_paths))

    @torch.no_grad()
    def set_scores(self, scores: LinearScores) -> None:
        """Take over fitted scores."""
        for name in ("mean", "scale", "weight", "bias"):
            getattr(self, name).copy_(getattr(scores, name))

    def features(self, ids: Int[Tensor, "B T"], valid: Bool[Tensor, "B T"] | None = None) -> Float[Tensor, "B D"]:
        """Mean hidden state of the first ``prefix`` tokens, or of all where there are fewer."""
        h = self.base(ids[:, : self.prefix]).float()
        if valid is None:
            return h.mean(dim=1)
        mask = valid[:, : self.prefix].unsqueeze(-1)
        return (h * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)

    def scores(self, features: Float[Tensor, "B D"]) -> Float[Tensor, "B P"]:
        """One score a path, in float32; the largest is the document's path."""
        return LinearScores(self.mean, self.scale, self.weight, self.bias)(features.float())

    def running_scores(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T P"]:
        """What the learned router says at each token, from that token and those before it."""
        assert self.rerouter is not None, "DiPaCo.decide refuses models without one"
        return self.rerouter(self.base(ids, len(self.base.blocks) - 1)).float()


def fit_rerouter(
    router: DiPaCoRouter,
    batch: Callable[[int], tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]],
    iterations: int,
    *,
    learning_rate: float = 5e-4,
    weight_decay: float = 0.1,
) -> list[float]:
    """Train the re-router to name the best continuation at every token; returns the losses.

    ``batch(i)`` gives token ids and the path wanted at each position (−100: none). Its block starts as a
    copy of the base's last one; the rate falls as a cosine.

    Raises:
        UserError: a loss or a gradient is not finite; the re-router is then as it was before.
    """
    rerouter = router.rerouter
    assert rerouter is not None, "the configuration asks for one"
    before = {name: tensor.clone() for name, tensor in rerouter.state_dict().items()}
    with torch.no_grad():
        rerouter.block.load_state_dict(router.base.blocks[-1].state_dict())
        rerouter.head.weight.zero_()
        rerouter.head.bias.zero_()
    rerouter.requires_grad_(True)
    optimizer = torch.optim.AdamW(rerouter.parameters(), lr=learning_rate, weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, iterations))
    losses = []
    for i in range(iterations):
        ids, best = batch(i)
        with torch.no_grad():
            h = router.base(ids, len(router.base.blocks) - 1)
        loss = nn.functional.cross_entropy(rerouter(h).flatten(0, 1).float(), best.flatten(), ignore_index=-100)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(rerouter.parameters(), 1.0)
        losses.append(float(loss.detach()))
        if not np.isfinite(losses[-1]) or not torch.isfinite(norm):
            rerouter.requires_grad_(False).load_state_dict(before)
            raise UserError(
                f"the re-router's loss is {losses[-1]} and its gradient {float(norm)} at iteration {i}: lower its "
                f"learning_rate (now {learning_rate:g})",
                field="learning_rate",
            )
        optimizer.step()
        schedule.step()
    rerouter.requires_grad_(False)
    return losses


def open_paths(plan: RoutePlan, path_modules: Int[Tensor, "P S"]) -> Bool[Tensor, " P"]:
    """Paths that avoid every banned module and lead through every forced one."""
    open_P = torch.ones(len(path_modules), dtype=torch.bool, device=path_modules.device)
    for level, step in enumerate(plan.steps):
        if step is None:
            continue
        for module in step.banned:
            open_P &= path_modules[:, level] != module
        for force in step.forced:
            open_P &= path_modules[:, level] == force.module
    return open_P


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
    routes = [step.given for step in plan.steps if step is not None and step.given is not None]
    if not routes:
        return paths
    if any(step is not None and (step.forced or step.bias) for step in plan.steps):
        raise UserError("the route is given, so nothing can be forced or pushed: give one of them", field="edits")
    ribbons_TS = torch.tensor(routes, device=paths.device).squeeze(-1).T
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
    swapped = torch.zeros(paths.shape[1], dtype=paths.dtype, device=paths.device)
    for chunk in range(paths.shape[1]):
        here = path_T[own_T == chunk].unique()
        if len(here) > 1:
            first = int((own_T == chunk).nonzero()[0])
            raise UserError(
                f"the route given changes its path behind token {first}, where this model decides nothing; give one "
                "path for each stretch, or the reroute_every that it was made with",
                field="edits",
            )
        swapped[chunk] = here[0] if len(here) else 0
    return swapped.expand_as(paths)
