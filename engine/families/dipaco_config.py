"""Configuration, controls and edits of a DiPaCo.

Shapes: P paths, S levels. Source: DiPaCo, sections 2.3, 2.6 and 4.2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls, Edits, check_index, only_those
from tokenpaths.engine.families.edit_plan import RoutePlan, Routers, plan_routes


class DiPaCoConfig(BaseModel):
    """One DiPaCo by value. ``levels=(1,)`` is a dense path, ``levels=(P,), own_ends=True`` a flat mixture."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["text"] = "text"
    task: Literal["predict"] = "predict"
    width: int = Field(gt=0, description="D, width of the residual stream")
    heads: int = Field(gt=0)
    mlp_width: int = Field(gt=0)
    levels: tuple[int, ...] = Field(min_length=1, description="K_l, modules of each level")
    blocks: tuple[int, ...] = Field(min_length=1, description="transformer blocks of each level")
    path_blocks: tuple[int, ...] = Field(
        default=(), description="blocks, counted from 0 along a path, that every path owns instead of sharing"
    )
    own_ends: bool = Field(default=False, description="every path has its own embedding and unembedding")
    router: Literal["kmeans", "product", "discriminative"] = "kmeans"
    prefix: int = Field(default=32, gt=0, description="tokens that a document is routed by")
    rerouter: bool = Field(default=False, description="a learned router that can decide at any token")
    reroute_every: int | None = Field(default=None, gt=0, description="W, tokens between decisions; None: once")
    vocab_size: int = Field(default=32_000, gt=1)
    context: int = Field(default=1024, gt=1)

    @model_validator(mode="after")
    def _consistent(self) -> DiPaCoConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if min(self.levels) < 1 or min(self.blocks) < 1:
            raise ValueError(f"levels {self.levels} and blocks {self.blocks} must all be at least 1")
        if len(self.blocks) != len(self.levels):
            raise ValueError(f"blocks names {len(self.blocks)} levels, levels {len(self.levels)}: give one number each")
        if not set(self.path_blocks) <= set(range(self.num_blocks)):
            raise ValueError(f"path_blocks {self.path_blocks} are not all between 0 and {self.num_blocks - 1}")
        for level, span in enumerate(self.spans):
            if set(span) <= set(self.path_blocks):
                raise ValueError(f"path_blocks {self.path_blocks} leave level {level} no block to share")
        if self.router == "product" and self.width % len(self.levels):
            raise ValueError(f"width {self.width} cannot be cut into {len(self.levels)} parts for router 'product'")
        if self.prefix >= self.context:
            raise ValueError(f"prefix {self.prefix} must be less than context {self.context}")
        if self.reroute_every is not None and not self.rerouter:
            raise ValueError(f"reroute_every {self.reroute_every} needs a learned router: set rerouter to true")
        return self

    @property
    def num_blocks(self) -> int:
        """Blocks of one path."""
        return sum(self.blocks)

    @property
    def spans(self) -> list[range]:
        """The blocks of each level, counted along a path."""
        ends = [sum(self.blocks[: i + 1]) for i in range(len(self.blocks))]
        return [range(end - size, end) for end, size in zip(ends, self.blocks, strict=True)]

    @property
    def num_paths(self) -> int:
        return math.prod(self.levels)

    @property
    def num_steps(self) -> int:
        return len(self.levels)

    @property
    def num_modules(self) -> int:
        """Most modules of any level; a level numbers its own from 0."""
        return max(self.levels)

    @property
    def top_k(self) -> int:
        return 1

    @property
    def path_modules(self) -> Int[np.ndarray, "P S"]:
        """The module of each path at each level; the first level is the most significant digit."""
        return np.array(list(itertools.product(*(range(k) for k in self.levels))), dtype=np.int64)

    @property
    def dense(self) -> DiPaCoConfig:
        """One path of this model as a model of its own."""
        return self.model_copy(
            update=dict(
                levels=(1,),
                blocks=(self.num_blocks,),
                path_blocks=(),
                own_ends=False,
                router="kmeans",
                rerouter=False,
                reroute_every=None,
            )
        )


class DiPaCoControls(EditControls):
    """What the page and the API may change of one trace.

    In an edit a step is a level: the best of the paths that avoid a banned module (or lead through a forced one) is
    taken; a bias is added to the score of every path through a module.
    """

    FAMILY: ClassVar[str] = "dipaco"
    CONFIG: ClassVar[type[BaseModel]] = DiPaCoConfig
    MODEL: ClassVar[str] = "tokenpaths.engine.models.dipaco:DiPaCo"
    TRAININGS: ClassVar[str] = "tokenpaths.engine.train.catalogue:dipaco_trainings"
    CARD: ClassVar[str] = "tokenpaths.engine.train.dipaco.finish_dipaco:write_card"
    EDITS: ClassVar[tuple[str, ...]] = ("ban", "force", "swap", "bias")
    WHY_NOT: ClassVar[dict[str, str]] = {
        "freeze": "the router reads a base model of its own, so its choice is the same whatever the modules do",
        "shuffle": "one path is chosen for a whole text or chunk, so there are no tokens to deal choices out to",
        "top_k": "a text takes one path",
    }

    reroute_every: int | None = Field(
        None, ge=4, le=1024, description="W: choose the path again every W tokens; unset: once for the whole text"
    )
    path: int | None = Field(None, ge=0, description="send every text down this path, whatever the router says")

    def check_fit(self, config: dict[str, Any]) -> None:
        made = DiPaCoConfig.model_validate(config)
        dipaco_plan(made.levels, self.edits)
        check_choice(made, self.path, self.reroute_every, edited=self.edits is not None)


def check_choice(config: DiPaCoConfig, path: int | None, reroute_every: int | None, *, edited: bool) -> None:
    """Refuse a path that there is not, or one beside another way to choose; UserError with ``field``."""
    if path is not None and edited:
        raise UserError(
            f"path {path} holds for the whole text, so there is nothing to edit: give one of the two", field="edits"
        )
    if path is not None and reroute_every is not None:
        raise UserError(
            f"path {path} holds for the whole text, so there is nothing to choose again every {reroute_every} "
            "tokens: give one of the two",
            field="reroute_every",
        )
    check_index("path", path, config.num_paths)
    if reroute_every is not None and not config.rerouter:
        raise UserError(
            "this model has no learned router, so it cannot choose a path again within a text", field="reroute_every"
        )


def dipaco_plan(levels: Sequence[int], edits: Edits) -> RoutePlan | None:
    """What is chosen differently at each level; UserError for edits that do not fit.

    Paths are all the combinations of the levels' modules, so one is left wherever each level has a module left.
    """
    only_those(edits, "a path is chosen for a whole text or chunk")
    return plan_routes(edits, Routers(tuple(tuple(range(count)) for count in levels), top_k=1))
