"""Path and query parameters that several routes share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from tokenpaths.backend.problems import documented

MAX_INT = 2**31 - 1
"""samples, tokens and ranks are 32-bit in a run file"""
ABOUT_A_RUN = documented(400, 401, 403, 404, 409, 422, 500, 503)

RunName = Annotated[str, Path(description="Name of the run", examples=["dna-vision-top1-scenes"])]
RankNumber = Annotated[int, Path(ge=1, le=MAX_INT, description="Rank of the path, 1 = most frequent")]
SampleNumber = Annotated[int, Path(ge=0, le=MAX_INT, description="Number of the sample, from 0")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most entries in one answer")]
Cursor = Annotated[str | None, Query(alias="next", max_length=500, description="`next` of the last answer, unchanged")]
LabelFilter = Annotated[
    str | None, Query(max_length=500, description="Only tokens or samples with this label, exactly")
]
Through = Annotated[
    str | None,
    Query(
        max_length=2000,
        description="Only tokens that pass all of these: `step.module`, separated by commas",
        examples=["2.7,3.4"],
    ),
]
