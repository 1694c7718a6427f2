"""Answers about the user's own names and notes."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel


class OwnName(AnswerModel):
    """Name and note of one thing; one of them may be empty."""

    name: str = Field(description="One line of at most 80 characters")
    note: str = Field(description="At most 4,000 characters")
    saved_at: str = Field(description="When, UTC, ISO 8601")


class OwnNames(AnswerModel):
    """All names and notes of a run; the body of an import looks the same."""

    run: str
    created_at: str = Field(description="When the run was made: names belong to this run, not to the next of its name")
    names: dict[str, OwnName] = Field(
        description="By thing: `run`, `module:3.4` (step.module), `path:12` (rank), `sample:5`, `token:5.17`",
        examples=[{"module:3.4": {"name": "full stops", "note": "", "saved_at": "2026-11-23T12:00:00+00:00"}}],
    )
