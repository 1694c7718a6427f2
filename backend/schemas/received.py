"""The shapes of answers about logs that running engines send."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel


class Refused(AnswerModel):
    """A line that was not taken."""

    line: int = Field(description="Number in the request, from 0")
    id: str
    reason: str


class Taken(AnswerModel):
    """What became of one request."""

    run: str
    received: int = Field(description="Responses that are new; they are on the disk")
    known: int = Field(description="Responses whose id came before; left")
    num_refused: int
    refused: list[Refused] = Field(description="The first of them, with reasons")
    responses: int = Field(description="In the log now")
    tokens: int
    bytes: int


class LayerLoad(AnswerModel):
    """The load of one layer so far."""

    layer: int = Field(description="As the engine numbers them; dense layers are left out")
    choices: int
    load_entropy: float
    max_violation: float
    never: int = Field(description="Experts up to the largest id so far that nothing chose")


class ReceivedLog(AnswerModel):
    """What has come of one log."""

    run: str
    responses: int
    tokens: int = Field(description="With decisions; prefixes that choices and turns share are counted each time")
    bytes: int
    model: str | None
    top_k: int
    experts: int = Field(description="The largest id so far and one")
    began_at: str
    last_at: str
    job: str | None = Field(description="The job that seals it")
    load: list[LayerLoad]
    problem: str | None = Field(description="Why nothing of it can be read")


class ReceivedList(AnswerModel):
    """The logs that are being received."""

    logs: list[ReceivedLog]
