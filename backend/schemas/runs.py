"""Answers of ``GET /runs`` and ``GET /runs/{run}/twin``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.run_schema import Card
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Next


class RunList(AnswerModel):
    """The runs of the data folder, newest first."""

    runs: list[Card]
    next: Next


class TwinState(AnswerModel):
    """How the untrained twin of a run stands."""

    run: str
    state: Literal["there", "waiting", "running", "paused", "failed", "cancelled", "none"] = Field(
        description="`there`: the run's answers have its numbers; `none`: it is in no job; else the state of its job"
    )
    job: str | None = Field(description="Name of the job of kind `twin`")
    reason: str | None = Field(description="Why answers have no numbers of the untrained twin, in words")
