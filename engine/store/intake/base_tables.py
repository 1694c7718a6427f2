"""The tables of a run from elsewhere that are copied, as this program creates them, and how long their values may be.

The other tables and views of a run are derived from these (``derived``) and are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.base.records import RunInfo
from tokenpaths.engine.store.file import SCHEMA_VERSION
from tokenpaths.engine.store.file.columns import PATH_TABLE, TABLE
from tokenpaths.engine.store.file.open_file import connect
from tokenpaths.engine.store.file.pages.path_pages import DICTIONARY, UNIQUE, path_table
from tokenpaths.engine.store.file.schema import LOAD_TABLE, WIDEST_COLUMN_LAYOUT, Layout, create_tables
from tokenpaths.engine.store.file.soft_tables import CREATE_SOFT
from tokenpaths.engine.store.file.text_pieces import PIECES
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS, code_for

COPIED = (
    "run",
    "module",
    "region",
    "token_text",
    "sample",
    TABLE,
    PATH_TABLE,
    "flow",
    "usage",
    "step_summary",
    "null_path",
    "null_usage",
    "path_fit",
    "path_point",
    "path_count",
    "association",
    "known_token",
    "edge",
    "gate",
    "block",
    "axis",
    "soft_shape",
    "soft_summary",
    "finding",
)
"""in the order in which they are read"""
COPIED_OF_COUNTS = ("run", "module", "label", "usage", "load", "finding")
"""of a run that was made of counts; the tables of its tokens are empty"""
LONGEST_TEXT = 10_000
"""bytes of a name or label"""
LONGEST: dict[tuple[str, str], int] = {
    ("run", "config"): 16 << 20,
    ("run", "weight_semantics"): 16 << 20,
    ("finding", "answer"): 64 << 20,
    ("sample", PIECES[-1]): 64 << 20,
    ("sample", "search"): 64 << 20,
    ("sample", "image"): 32 << 20,
}
"""bytes of a value, where longer than ``LONGEST_TEXT``"""
MOST_STEPS, MOST_MODULES, MOST_VISITS = 65_536, 65_536, 1_048_576
MOST_COUNTED = 1 << 21
"""steps × modules of a run that was made of counts"""
_RUN_NUMBERS = ("num_samples", "num_tokens", "num_steps", "num_modules", "top_k", "num_paths")


@dataclass(frozen=True)
class Plan:
    """Shape of a run from elsewhere, as its table ``run`` and the columns of its tokens tell it."""

    info: RunInfo
    layout: Layout
    num_samples: int
    num_tokens: int
    num_paths: int
    load_only: bool = False
    """whether it was made of counts and holds no tokens"""

    @property
    def copied(self) -> tuple[str, ...]:
        """The tables that are copied, in the order in which they are read."""
        return COPIED_OF_COUNTS if self.load_only else COPIED

    @property
    def tables_sql(self) -> str:
        """SQL that creates the copied tables, and the views and tables that a writer creates with them."""
        of_tokens = create_tables(self.layout, self.info) + CREATE_SOFT + path_table(self.layout, self.num_tokens)
        return of_tokens + (LOAD_TABLE if self.load_only else "")

    def longest(self, table: str, column: str) -> int:
        """Most bytes of a text or blob in this column."""
        if table == TABLE and column in MARGIN_COLUMNS:
            return self.layout.margin_bytes[MARGIN_COLUMNS.index(column)]
        if table == TABLE:
            return self.layout.visits
        if (table, column) == (PATH_TABLE, "ribbon"):
            return self.layout.visits
        return LONGEST.get((table, column), LONGEST_TEXT)


def plan_of(row: Mapping[str, Any], token_columns: frozenset[str]) -> Plan:
    """The plan of a run with this row of ``run`` and these columns of ``token_coded``.

    Raises:
        RunFileError: no run of this program has such a row.
    """
    if row["schema_version"] != SCHEMA_VERSION:
        raise RunFileError(
            f"it has schema version {row['schema_version']}, this program reads {SCHEMA_VERSION}: trace the run again"
        )
    load_only = _of_counts(row["config"])
    numbers = {name: row[name] for name in _RUN_NUMBERS}
    if load_only:
        numbers = _numbers_of_counts(numbers)
    sound = all(isinstance(value, int) and value >= 1 for value in numbers.values())
    if not sound or not (
        numbers["num_samples"] <= numbers["num_tokens"] < 2**40
        and numbers["num_paths"] <= min(numbers["num_tokens"], 2**31 - 1)
        and numbers["num_steps"] <= MOST_STEPS
        and numbers["top_k"] <= numbers["num_modules"] <= MOST_MODULES
        and numbers["num_steps"] * numbers["top_k"] <= MOST_VISITS
    ):
        raise RunFileError(f"its numbers of samples, tokens, steps, modules, slots and paths are impossible: {numbers}")
    modality, code = row["modality"], code_for(numbers["num_modules"], numbers["top_k"])
    if modality not in ("vision", "text") or row["weight_code"] != code.name:
        raise RunFileError("its table run says impossible things of its modality or weights")
    layout = Layout(numbers["num_steps"], numbers["top_k"], numbers["num_modules"], code)
    unique = row["path_layout"] == UNIQUE
    if row["path_layout"] not in (DICTIONARY, UNIQUE) or (unique and not layout.packed):
        raise RunFileError("its table run says impossible things of its paths")
    by_path = layout.top_k == 1 and layout.visits <= WIDEST_COLUMN_LAYOUT and "m0" not in token_columns
    texts: dict[str, Any] = {name: str(row[name]) for name in ("run_id", "model", "family", "dataset", "split")}
    info = RunInfo(
        **texts,
        modality=modality,
        num_steps=layout.num_steps,
        num_modules=layout.num_modules,
        top_k=layout.top_k,
        weight_semantics={},
        config={},
        checkpoint_sha256=str(row["checkpoint_sha256"]),
        engine_version=str(row["engine_version"]),
        regions=("any",) if "region" in token_columns else (),
        predicts_tokens="predicted_id" in token_columns,
        scores=MARGIN_COLUMNS[0] in token_columns,
    )
    layout = replace(layout, by_path=by_path, unique=unique)
    return Plan(info, layout, numbers["num_samples"], numbers["num_tokens"], numbers["num_paths"], load_only)


def _of_counts(config: Any) -> bool:
    """Whether the configuration of a run says that it was made of counts; RunFileError if it says so wrongly."""
    try:
        value = json.loads(config)
    except (ValueError, TypeError, RecursionError):
        return False  # refused where all its JSON is checked
    about = value.get("load_only") if isinstance(value, dict) else None
    if about is not None and not (isinstance(about, dict) and isinstance(about.get("axis"), str)):
        raise RunFileError("its configuration says impossible things of its counts")
    return about is not None


def _numbers_of_counts(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a run of counts, 1 where it has none.

    Raises:
        RunFileError: it says that it has samples or paths, or is larger than a run of counts may be.
    """
    steps, modules = numbers["num_steps"], numbers["num_modules"]
    large = isinstance(steps, int) and isinstance(modules, int) and steps * modules > MOST_COUNTED
    if numbers["num_samples"] is not None or numbers["num_paths"] is not None or large:
        raise RunFileError(f"its numbers of samples, tokens, steps, modules, slots and paths are impossible: {numbers}")
    return {**numbers, "num_samples": 1, "num_paths": 1} | {
        name: 1 if numbers[name] is None else numbers[name] for name in ("num_tokens", "top_k")
    }


TABLE_SQL = "SELECT table_name, sql FROM duckdb_tables() WHERE database_name = ? AND schema_name = 'main'"


def expected_sql(tables_sql: str) -> dict[str, str]:
    """Table → its SQL as DuckDB writes it, for the tables that ``tables_sql`` creates."""
    with connect() as con:
        con.execute(tables_sql)
        return dict(con.execute(TABLE_SQL, ["memory"]).fetchall())


def run_sql() -> str:
    """The SQL of table ``run``, which does not depend on the run."""
    info = RunInfo("a", "", "", "text", "", "", 1, 1, 1, {}, {}, "", "")
    return expected_sql(create_tables(Layout(1, 1, 1), info))["run"]
