"""Configuration of a Directional Routing model.

Source: "Directional Routing in Transformers", section 2 and appendix B.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Pooling = Literal["sequence", "prefix"]


class DirectionalConfig(BaseModel):
    """One model by value, the paper's included (see the tests)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    modality: Literal["text"] = "text"
    task: Literal["predict"] = "predict"
    width: int = Field(gt=0, description="D, width of the residual stream")
    heads: int = Field(gt=0, description="H, heads of a layer")
    mlp_width: int = Field(gt=0)
    layers: int = Field(gt=0, description="L, layers, each with its own router")
    directions: int = Field(default=4, ge=0, description="K, directions of a head; 0 = the unrouted twin")
    router_width: int = Field(default=64, gt=0, description="hidden width of the routers")
    temperature: float = Field(default=0.5, gt=0, allow_inf_nan=False, description="τ; smaller = closer to on or off")
    pooling: Pooling = Field(
        default="sequence",
        description="what a router reads. sequence: the mean over all positions, one decision a sequence, as in "
        "the paper; a position then sees its future. prefix: the mean up to each position, strictly causal",
    )
    tied: bool = Field(
        default=True, description="one table for embedding and unembedding, as the paper's parameter count says"
    )
    vocab_size: int = Field(default=50257, gt=0)
    context: int = Field(default=1024, gt=0, description="positions")

    @model_validator(mode="after")
    def _consistent(self) -> DirectionalConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.directions > self.head_width:
            raise ValueError(
                f"directions {self.directions} is larger than the width of a head, {self.head_width}; "
                "more directions than dimensions cannot be told apart"
            )
        return self

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def num_steps(self) -> int:
        """S, one step a layer; 0 for the unrouted twin."""
        return self.layers if self.directions else 0

    @property
    def top_k(self) -> int:
        """Slots of a step: every direction of every head is read as on or off."""
        return self.heads * self.directions

    @property
    def num_modules(self) -> int:
        """Each direction, and for each its identity twin: the direction that was left alone."""
        return 2 * self.top_k

    def unrouted_twin(self) -> DirectionalConfig:
        """The same network without directions and routers."""
        return DirectionalConfig(**(self.model_dump() | {"directions": 0}))
