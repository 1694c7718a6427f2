"""Saved searches: one small JSON file each in ``<data_dir>/searches``, so that concurrent writers never conflict."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tokenpaths.backend.http.strict_json import json_body
from tokenpaths.backend.problems import Problem
from tokenpaths.engine.base.files import check_name, write_atomically

MOST_SEARCHES = 500
MOST_BYTES = 20_000
MOST_FIELDS = 60
_FIELD = re.compile(r"[a-z_]{1,40}")


def searches_dir(data_dir: Path) -> Path:
    """The folder of saved searches; created by the first save."""
    return data_dir / "searches"


def list_searches(data_dir: Path) -> list[dict[str, Any]]:
    """All saved searches by name; invalid files are skipped."""
    searches = []
    for file in sorted(searches_dir(data_dir).glob("*.json")):
        search = _read(file)
        if search is not None:
            searches.append(search)
    return searches


def get_search(data_dir: Path, name: str) -> dict[str, Any]:
    """One saved search; Problem 404 if there is none of this name."""
    search = _read(_file(data_dir, name))
    if search is None:
        raise _no_search(name)
    return search


def put_search(data_dir: Path, name: str, query: dict[str, str]) -> tuple[dict[str, Any], bool]:
    """Save a search, replacing one of the same name; returns it and whether it is new. Problem 409 when there are too
    many.
    """
    file = _file(data_dir, name)
    new = not file.exists()
    if new and len(list(searches_dir(data_dir).glob("*.json"))) >= MOST_SEARCHES:
        raise Problem(409, "too-many", f"There are {MOST_SEARCHES} saved searches already; delete some.", field="name")
    search = {"name": name, "query": query, "saved_at": datetime.now(UTC).isoformat(timespec="seconds")}
    write_atomically(file, json.dumps(search, ensure_ascii=False).encode())
    return search, new


def delete_search(data_dir: Path, name: str) -> None:
    """Delete a saved search; Problem 404 if there is none of this name."""
    try:
        _file(data_dir, name).unlink()
    except FileNotFoundError:
        raise _no_search(name) from None


def check_query(data: bytes) -> dict[str, str]:
    """Parse and validate a body ``{"query": {…}}``; Problem 422 with the name of the field."""
    values = json_body(data)
    if not isinstance(values, dict) or set(values) != {"query"} or not isinstance(values["query"], dict):
        raise Problem(
            422, "json", 'The body should be {"query": {…}}, the query of an address of the page.', field="query"
        )
    query = values["query"]
    if not query or len(query) > MOST_FIELDS:
        message = f"`query` has {len(query)} fields, it should have 1 to {MOST_FIELDS}."
        raise Problem(422, "query", message, field="query")
    for key, value in query.items():
        if not _FIELD.fullmatch(key) or not isinstance(value, str):
            message = f"`query` has {key[:40]!r}: {str(value)[:40]!r}; names are a to z and _, values are text."
            raise Problem(422, "query", message, field="query")
    return query


def _file(data_dir: Path, name: str) -> Path:
    return searches_dir(data_dir) / f"{check_name(name, 'name of a search', field='name')}.json"


def _read(file: Path) -> dict[str, Any] | None:
    try:
        if file.stat().st_size > 2 * MOST_BYTES:
            return None
        search = json.loads(file.read_text("utf-8"))
        query = search["query"]
        sound = isinstance(query, dict) and all(isinstance(value, str) for value in query.values())
        return {"name": file.stem, "query": query, "saved_at": str(search["saved_at"])} if sound else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _no_search(name: str) -> Problem:
    return Problem(404, "no-such-search", f"There is no saved search {name[:80]!r}.", field="name")
