"""Answer of ``GET /healthz``."""

from __future__ import annotations

from typing import Literal

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel


class Health(AnswerModel):
    """Whether the API is alive."""

    status: Literal["ok"]
    version: str
    uptime_seconds: float
