"""Parameters and descriptions of bodies that several routes share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Path, Query

from tokenpaths.backend.http.paging import MOST_CURSOR
from tokenpaths.backend.problems import documented
from tokenpaths.engine.store.ask.question import MAX_INT

ABOUT_A_RUN = documented(400, 401, 403, 404, 409, 422, 500, 503)

RunName = Annotated[str, Path(description="Name of the run", examples=["dna-vision-top1-scenes"])]
SampleNumber = Annotated[int, Path(ge=0, le=MAX_INT, description="Number of the sample, from 0")]
LabelsShown = Annotated[
    Literal["merged"] | None,
    Query(description="`merged`: labels that look alike (case, blanks, invisible characters) count as one"),
]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most entries in one answer")]
Cursor = Annotated[
    str | None, Query(alias="next", max_length=MOST_CURSOR, description="`next` of the last answer, unchanged")
]


def json_content(schema: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAPI of a route that takes a JSON body of this schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": dict(schema)}}}}


def json_object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """OpenAPI of a route that takes a JSON object of exactly these fields."""
    return json_content(
        {
            "type": "object",
            "required": list(properties),
            "additionalProperties": False,
            "properties": {name: dict(schema) for name, schema in properties.items()},
        }
    )
