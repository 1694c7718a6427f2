"""Answer of ``GET /runs``."""

from __future__ import annotations

from tokenpaths.engine.store.ask.schemas.run_schema import Card
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Next


class RunList(AnswerModel):
    """The runs of the data folder, newest first."""

    runs: list[Card]
    next: Next
