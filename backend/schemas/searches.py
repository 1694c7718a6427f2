"""Answers about saved searches."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel


class SavedSearch(AnswerModel):
    """An address of the page under a name of one's own."""

    name: str
    query: dict[str, str] = Field(description="The query of the page's address", examples=[{"view": "paths"}])
    saved_at: str = Field(description="When, UTC, ISO 8601")


class SavedSearches(AnswerModel):
    """All saved searches, by name."""

    searches: list[SavedSearch]
