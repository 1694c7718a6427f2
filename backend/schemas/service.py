"""Answers of ``GET /healthz`` and ``GET /api/v1/health``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel


class Health(AnswerModel):
    """Whether the API is alive."""

    status: Literal["ok"]
    version: str
    uptime_seconds: float
    stuck_threads: int


class Part(AnswerModel):
    """One part of the system."""

    part: Literal["data folder", "list of jobs", "worker", "API", "page"]
    problem: str | None = Field(description="A sentence for people: why it does not work now; null where it does")


class State(AnswerModel):
    """Whether each part takes and finishes work."""

    status: Literal["ok", "impaired"]
    workers: int | None = Field(description="Workers that take jobs; null where the list of jobs cannot be read")
    parts: list[Part]
