"""What REST says about the tables of a run that can be exported."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.backend.schemas.runs import Shape


class TableRow(Shape):
    """One table that holds rows."""

    table: str = Field(description="The name in `/export/{table}.{format}`")
    num_rows: int
    what: str = Field(description="What it holds, in a few words")


class TableList(Shape):
    """The tables of a run that can be exported."""

    run: str
    tables: list[TableRow]
