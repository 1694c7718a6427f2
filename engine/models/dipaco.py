"""DiPaCo: distributed path composition. A document takes one path, which consists of one module per level.

embed (shared) → levels of modules, each a few transformer blocks → unembedding (shared). The router decides once per
document from its first tokens; at test time it may decide again every W tokens.

Shapes: B documents, T tokens, S levels, P paths, C chunks between decisions, V vocabulary entries,
D width, R (document, path) pairs that are run.
Source: DiPaCo, sections 2.3 to 2.6 and 4.2 to 4.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig, DiPaCoControls, check_choice, dipaco_plan
from tokenpaths.engine.families.edit_plan import RoutePlan
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.dipaco_path import Ends, PathModel, check_same_shape, initialise, new_block
from tokenpaths.engine.models.dipaco_router import (
    Base,
    DiPaCoRouter,
    Rerouter,
    edited_scores,
    nearest,
    open_paths,
    swapped_paths,
)
from tokenpaths.engine.models.family import RoutedModel, Traced, narrow_ids
from tokenpaths.engine.models.losses import linear_cross_entropy
from tokenpaths.engine.models.typed_containers import ModuleListOf


@dataclass(frozen=True)
class DiPaCoOutput:
    """Logits, and what the router decided for each chunk of each document."""

    logits: Float[Tensor, "B T V"]
    paths: Int[Tensor, "B C"]
    scores: Float[Tensor, "B C P"]
    chunks: Int[Tensor, " T"]
    """chunk whose path made the logits of each position"""


class DiPaCo(RoutedModel):
    """All modules of a DiPaCo and its router. Training never needs it whole; serving may."""

    path_modules: Tensor

    family: ClassVar[str] = "dipaco"
    Config = DiPaCoConfig
    Controls = DiPaCoControls
    WEIGHT_SEMANTICS: ClassVar[dict[str, Any]] = {
        "score_function": "linear in the mean hidden state of the first tokens under the base model "
        "(nearest centroid or logistic regression)",
        "order": "argmax over paths",
        "renormalised": False,
        "bias": "discriminative router: fitted so that documents spread over paths as they score best",
        "shared_experts": 0,
        "decision": "hard",
        "unit": "sequence",
        "reading": "step = level, module = that level's module on the path of the sequence (or of the chunk, "
        "where it is routed again every W tokens); the weight is always 1",
    }
    KEEP_FLOAT32: ClassVar[tuple[str, ...]] = ("router.mean", "router.scale", "router.weight", "router.bias")

    def __init__(self, config: DiPaCoConfig) -> None:
        super().__init__()
        self.config = config
        num_paths = config.num_paths
        self.ends = ModuleListOf[Ends](Ends(config) for _ in range(num_paths if config.own_ends else 1))
        shared = [[i for i in span if i not in config.path_blocks] for span in config.spans]
        self.levels = ModuleListOf[ModuleListOf[ModuleListOf[Block]]](
            ModuleListOf[ModuleListOf[Block]](ModuleListOf[Block](new_block(config) for _ in own) for _ in range(count))
            for count, own in zip(config.levels, shared, strict=True)
        )
        self.own = ModuleListOf[ModuleListOf[Block]](
            ModuleListOf[Block](new_block(config) for _ in config.path_blocks) for _ in range(num_paths)
        )
        shape = (config.width, config.heads, config.mlp_width)
        base = Base(*shape, config.num_blocks, config.vocab_size, config.context)
        rerouter = Rerouter(*shape, num_paths) if config.rerouter else None
        initialise(base)
        self.router = DiPaCoRouter(base, num_paths, config.prefix, rerouter)
        for part in (self.ends, self.levels, self.own):
            initialise(part)
        self.register_buffer("path_modules", torch.from_numpy(config.path_modules), persistent=False)

    @property
    def first_prediction(self) -> int:
        """That of the first token behind the routing prefix; position t predicts token t + 1."""
        return int(self.config.prefix) - 1

    def places(self, path: int) -> list[tuple[str, int, int, int]]:
        """Where each block of a path lives: ("levels", level, module, index) or ("own", path, 0, index)."""
        modules = self.config.path_modules[path].tolist()
        rows = []
        for level, span in enumerate(self.config.spans):
            index = 0
            for block in span:
                if block in self.config.path_blocks:
                    rows.append(("own", path, 0, self.config.path_blocks.index(block)))
                else:
                    rows.append(("levels", level, modules[level], index))
                    index += 1
        return rows

    def path_model(self, path: int) -> PathModel:
        """One path as a model that shares its parameters with this one."""
        blocks = [
            self.own[a][index] if kind == "own" else self.levels[a][b][index] for kind, a, b, index in self.places(path)
        ]
        return PathModel(self.ends[path if self.config.own_ends else 0], blocks)

    def path_names(self, path: int) -> dict[str, str]:
        """Name of each parameter in ``path_model(path)`` → its name in this model."""
        prefixes = [
            f"own.{a}.{index}" if kind == "own" else f"levels.{a}.{b}.{index}"
            for kind, a, b, index in self.places(path)
        ]
        names = {}
        for name, _ in self.path_model(path).named_parameters():
            head, _, rest = name.partition(".")
            if head == "ends":
                names[name] = f"ends.{path if self.config.own_ends else 0}.{rest}"
            else:
                index, _, rest = rest.partition(".")
                names[name] = f"{prefixes[int(index)]}.{rest}"
        return names

    def paths_through(self) -> dict[str, list[int]]:
        """For each trained parameter the paths that use it."""
        users: dict[str, list[int]] = {}
        for path in range(self.config.num_paths):
            for name in self.path_names(path).values():
                users.setdefault(name, []).append(path)
        return users

    @torch.no_grad()
    def start_from(self, base: PathModel) -> None:
        """Every path, and the router's base, begin as this pre-trained path (Algorithm 1).

        Raises:
            UserError: the base has another width, depth, vocabulary or context, or weights that are not finite.
        """
        state = {name: tensor.detach() for name, tensor in base.named_parameters()}
        for name, tensor in state.items():
            if not torch.isfinite(tensor).all():
                raise UserError(f"{name} of the base holds NaN or infinite values: give a trained one", field="base")
        own = dict(self.named_parameters())
        check_same_shape(state, {n: own[m] for n, m in self.path_names(0).items()})
        for path in range(self.config.num_paths):
            for name, mine in self.path_names(path).items():
                own[mine].copy_(state[name])
        for name, tensor in self.router.base.named_parameters():
            tensor.copy_(state[name if name.startswith("blocks.") else f"ends.{name}"])

    @property
    def weight_semantics(self) -> dict[str, Any]:
        """With the router that this model really has, and whether it decides again."""
        score = {
            "kmeans": "2·c·z − ‖c‖², largest for the nearest centroid of the document's feature",
            "product": "sum over levels of 2·c·z − ‖c‖², each for its own part of the document's feature",
            "discriminative": "logits of a logistic regression from the document's feature",
        }[self.config.router]
        unit = "sequence" if self.config.reroute_every is None else "chunk"
        return self.WEIGHT_SEMANTICS | {"score_function": score, "unit": unit}

    def findings(self, token_texts: dict[int, str]) -> dict[str, Any]:
        """How paths are made of modules, for the view of shared modules."""
        config = self.config
        users: list[dict[str, Any]] = [
            {"level": level, "module": module, "paths": np.flatnonzero(config.path_modules[:, level] == module)}
            for level, count in enumerate(config.levels)
            for module in range(count)
        ]
        return {
            "composition": {
                "router": config.router,
                "prefix": config.prefix,
                "rerouter": config.rerouter,
                "path_modules": config.path_modules.tolist(),
                "modules": [user | {"paths": user["paths"].tolist()} for user in users],
                "path_blocks": list(config.path_blocks),
                "own_ends": config.own_ends,
            }
        }

    def decide(
        self,
        ids: Int[Tensor, "B T"],
        valid: Bool[Tensor, "B T"] | None = None,
        reroute_every: int | None = None,
        edits: RoutePlan | None = None,
    ) -> tuple[Int[Tensor, "B C"], Float[Tensor, "B C P"], Int[Tensor, " T"]]:
        """Paths and scores of each chunk, and the chunk of each position.

        Chunk 0 follows the document's router. Chunk c > 0 follows the learned router after the first
        ``prefix + c·W`` tokens, and makes the predictions of the W tokens behind them. ``edits`` change the
        choice, not the scores.

        Raises:
            UserError: ``reroute_every`` is given, but the model has no learned router.
        """
        check_choice(self.config, None, reroute_every, edited=edits is not None)
        every = reroute_every or self.config.reroute_every
        prefix = self.config.prefix
        chunks = chunk_of_position(ids.shape[1], prefix, every).to(ids.device)
        scores = [self.router.scores(self.router.features(ids, valid)).unsqueeze(1)]
        if (last := int(chunks[-1])) > 0:
            ends = prefix + every * torch.arange(1, last + 1, device=ids.device) - 1
            scores.append(self.router.running_scores(ids)[:, ends])
        scores_BCP = torch.cat(scores, dim=1)
        ranked = scores_BCP if edits is None else edited_scores(scores_BCP, edits, self.path_modules)
        paths = nearest(ranked.flatten(0, 1)).view(scores_BCP.shape[:2])
        if edits is not None:
            paths = swapped_paths(paths, edits, self.path_modules, chunks, (ids.shape[0], ids.shape[1]), valid)
        return paths, scores_BCP, chunks

    def hidden(self, ids: Int[Tensor, "R T"], paths: Int[Tensor, " R"]) -> Float[Tensor, "R T D"]:
        """Each sequence through its path, up to what the unembedding reads; grouped by module."""
        end_R = paths if self.config.own_ends else torch.zeros_like(paths)
        h = grouped(ids, end_R, lambda x, i: self.ends[i].start(x))
        for level, span in enumerate(self.config.spans):
            module_R, index = self.path_modules[paths, level], 0
            for block in span:
                if block in self.config.path_blocks:
                    h = grouped(h, paths, partial(_run_block, self.own, self.config.path_blocks.index(block)))
                else:
                    h = grouped(h, module_R, partial(_run_block, self.levels[level], index))
                    index += 1
        return grouped(h, end_R, lambda x, i: self.ends[i].norm(x))

    def forward(
        self,
        inputs: Int[Tensor, "B T"],
        paths: Int[Tensor, "B n"] | None = None,
        valid: Bool[Tensor, "B T"] | None = None,
        reroute_every: int | None = None,
        edits: RoutePlan | None = None,
    ) -> DiPaCoOutput:
        """Next-token logits. ``paths`` (one a chunk, or one for all) overrides the router's choice,
        ``reroute_every`` the configuration's W.

        A chunk's logits come from its path run over the whole text before it: switching paths means
        reading the text again, as section 6 of the paper says.
        """
        with torch.no_grad():
            chosen, scores_BCP, chunks = self.decide(inputs, valid, reroute_every, edits)
        paths = chosen if paths is None else paths.expand_as(chosen)
        rows = torch.arange(len(inputs), device=inputs.device).unsqueeze(1).expand_as(paths)
        pairs_R, pair_BC = torch.unique(rows * self.config.num_paths + paths, return_inverse=True)
        path_R = pairs_R % self.config.num_paths
        h = self.hidden(inputs[pairs_R // self.config.num_paths], path_R)
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        h = h[pair_BC[:, chunks], positions]
        if not self.config.own_ends:
            return DiPaCoOutput(self.ends[0].head(h), paths, scores_BCP, chunks)
        flat = grouped(h.flatten(0, 1), paths[:, chunks].flatten(), lambda x, i: self.ends[i].head(x))
        return DiPaCoOutput(flat.view(*h.shape[:2], -1), paths, scores_BCP, chunks)

    def trace(
        self,
        inputs: Tensor,
        valid: Bool[Tensor, "B T"] | None = None,
        *,
        reroute_every: int | None = None,
        path: int | None = None,
        edits: RoutePlan | None = None,
    ) -> Traced:
        """Logits and ribbons; a token's path is the one that predicted its successor.

        ``path`` sends every text down that path; the gate entropy stays the router's own, under ``edits`` too.

        Raises:
            UserError: there is no such path, no learned router to choose again, or two of these are asked for.
        """
        check_choice(self.config, path, reroute_every, edited=edits is not None)
        given = None
        if path is not None:
            given, reroute_every = torch.full((len(inputs), 1), path, device=inputs.device), None
        output = self(inputs, given, valid, reroute_every, edits)
        entropy_BCS = self.level_entropy(output.scores)
        ids = self._ids(output.paths, output.chunks)
        # A router that gives NaN must not pass for one that chose.
        sound_BC = torch.isfinite(output.scores).all(dim=-1)
        weights_BT = torch.where(sound_BC, 1.0, torch.nan)[:, output.chunks]
        return Traced(
            logits=output.logits,
            module_ids=ids,
            weights=weights_BT[:, :, None, None].expand(ids.shape),
            gate_entropy=entropy_BCS[:, output.chunks],
            flops=self.token_flops(ids, valid).to(ids.device),
        )

    def choose(self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None = None) -> Integer[Tensor, "B T S K"]:
        """See ``RoutedModel.choose``: the router reads a base model of its own, so no path is run."""
        paths, _, chunks = self.decide(inputs, valid)
        return self._ids(paths, chunks)

    def _ids(self, paths: Int[Tensor, "B C"], chunks: Int[Tensor, " T"]) -> Integer[Tensor, "B T S 1"]:
        """Modules of each level on the path of each position."""
        return self.path_modules[paths[:, chunks]].unsqueeze(-1).to(narrow_ids(self.config.num_modules))

    def trace_with(self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None, controls: DiPaCoControls) -> Traced:
        """``trace`` under what the page or the API asked for."""
        given = controls.given()
        given.pop("edits", None)
        return self.trace(inputs, valid, **given, edits=self.plan(controls))

    def plan(self, controls: DiPaCoControls) -> RoutePlan | None:
        """What is chosen differently at each level.

        Raises:
            UserError: edits that do not fit this model, or that leave no path.
        """
        plan = dipaco_plan(self.config.levels, getattr(controls, "edits", None))
        if plan is not None and not bool(open_paths(plan, self.path_modules).any()):
            raise UserError("these edits leave no path: force one module of a level", field="edits")
        return plan

    def top_k_under(self, controls: DiPaCoControls) -> int:
        """One module a level; refuses edits that do not fit."""
        self.plan(controls)
        return 1

    def level_entropy(self, scores: Float[Tensor, "B C P"]) -> Float[Tensor, "B C S"]:
        """Entropy of the choice of module at each level; NaN where scores are distances, not logits."""
        probs = scores.float().softmax(dim=-1)
        levels = []
        for level, count in enumerate(self.config.levels):
            member_PK = nn.functional.one_hot(self.path_modules[:, level], count).to(probs.dtype)
            levels.append(torch.special.entr(probs @ member_PK).sum(dim=-1))
        entropy = torch.stack(levels, dim=-1)
        if self.config.router != "discriminative":
            entropy[:, 0] = float("nan")
        return entropy

    def module_table(self) -> list[ModuleInfo]:
        """Every level's modules; blocks that paths own are chosen with the path and not listed."""
        rows = []
        for level, modules in enumerate(self.levels):
            for index, blocks in enumerate(modules):
                rows.append(
                    ModuleInfo(
                        step=level,
                        module=index,
                        name=f"level {level} module {index}",
                        kind="block",
                        num_params=sum(p.numel() for p in blocks.parameters()),
                        flops_per_token=_block_flops(self.config) * len(blocks),
                    )
                )
        return rows

    def token_flops(
        self, module_ids: Integer[Tensor, "B T S K"], valid: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T"]:
        """Projections and causal attention of one path's blocks: all paths cost the same.

        Reading the text again after a re-route is not counted.
        """
        batch, tokens = module_ids.shape[:2]
        keys_T = torch.arange(1, tokens + 1, dtype=torch.float32)
        per_token = self.config.num_blocks * (_block_flops(self.config) + 4 * self.config.width * keys_T)
        flops = per_token.expand(batch, tokens).clone()
        return flops if valid is None else flops * valid.cpu()

    def training_loss(
        self, inputs: Tensor, targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Int[Tensor, " B"]]:
        """Mean cross-entropy of documents on their own paths, all paths in one step (section 4.5).

        The paper's own training is ``tokenpaths.engine.train.dipaco.train_dipaco``: paths apart for many iterations.
        """
        with torch.no_grad():
            features = self.router.features(inputs)
            paths = nearest(self.router.scores(features)).squeeze(1)
        h = self.hidden(inputs, paths)
        has_target = targets >= 0
        if not self.config.own_ends:
            return linear_cross_entropy(h[has_target], self.ends[0].head.weight, targets[has_target]), paths
        total = h.new_zeros(())
        for path in paths.unique().tolist():
            own = has_target & (paths == path).unsqueeze(1)
            loss = linear_cross_entropy(h[own], self.ends[path].head.weight, targets[own])
            total = total + loss * (own.sum() / has_target.sum())
        return total, paths

    def training_numbers(self, routing: Int[Tensor, " B"]) -> dict[str, float]:
        return {"paths_used": float(routing.unique().numel())}


def chunk_of_position(tokens: int, prefix: int, every: int | None) -> Int[Tensor, " T"]:
    """The decision that each position's prediction follows.

    Position t predicts token t+1. Tokens 0 … prefix+W−1 belong to chunk 0, the next W to chunk 1, ….
    """
    if every is None:
        return torch.zeros(tokens, dtype=torch.long)
    return (torch.arange(1, tokens + 1) - prefix).clamp(min=0) // every


def _run_block(stacks: ModuleListOf[ModuleListOf[Block]], block: int, x: Tensor, stack: int) -> Tensor:
    h: Tensor = stacks[stack][block](x, causal=True)
    return h


def grouped(x: Tensor, key: Int[Tensor, " R"], apply: Callable[[Tensor, int], Tensor]) -> Tensor:
    """``apply(rows, key)`` on the rows of each key, put back in their order."""
    keys = key.unique().tolist()
    if len(keys) == 1:
        return apply(x, keys[0])
    rows = [(key == k).nonzero().squeeze(1) for k in keys]
    parts = [apply(x[r], k) for r, k in zip(rows, keys, strict=True)]
    return torch.cat(parts)[torch.cat(rows).argsort()]


def _block_flops(config: DiPaCoConfig) -> int:
    """Projections of one block for one token, 2 FLOPs a multiply-add."""
    return 8 * config.width**2 + 4 * config.width * config.mlp_width
