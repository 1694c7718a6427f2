"""Answer of ``POST /traces``."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.compare_schema import Outputs
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel


class Traced(AnswerModel):
    """The new run of one sample."""

    run: str = Field(description="Name of the new run; `Location` has its address")
    sample: int = Field(description="Always 0")
    model: str
    modality: str
    seconds: float = Field(description="Time that the worker took, loading the model included when it was cold")
    effect: Outputs | None = Field(None, description="What `controls` changed; null without controls")
