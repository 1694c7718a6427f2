"""Checks that the tables of a run agree with each other, so that no question about it meets an impossible number.

The run is a file of ours with values of a stranger. Most is checked by SQL (``consistency_rules``); modules, JSON,
ribbons and the hash sample in Python.

Shapes: n tokens, S steps, K slots, V = S·K, M modules, P paths.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import duckdb
import numpy as np

from tokenpaths.engine.analysis.path_statistics import sorted_slots
from tokenpaths.engine.analysis.ribbon_costs import module_units
from tokenpaths.engine.base.errors import RunFileError, UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.store.file.checks import check_ribbons, check_run
from tokenpaths.engine.store.file.columns import PATH_TABLE, TABLE
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS, columns_sql, read_chunks, ribbons_of
from tokenpaths.engine.store.file.hash_sample import KNOWN_TOKENS, HashSample
from tokenpaths.engine.store.file.packed_ids import unpack
from tokenpaths.engine.store.file.soft_tables import read_shapes
from tokenpaths.engine.store.intake.base_tables import Plan
from tokenpaths.engine.store.intake.consistency_rules import count_rules, rules
from tokenpaths.engine.store.intake.json_shapes import check_shapes
from tokenpaths.engine.store.write.path_dictionary import PathDictionary


def check_tables(con: duckdb.DuckDBPyConnection, plan: Plan) -> PathDictionary:
    """Check every copied table; ``label`` is derived already.

    Returns:
        The paths by number.

    Raises:
        RunFileError: what does not fit; the message begins with "its".
    """
    modules = _check_modules(con, plan)
    _check_rules(con, rules(plan))
    _check_json(con, modules)
    available = module_units(modules, plan.layout.num_steps, plan.layout.num_modules)[0]
    try:
        paths = _check_paths(con, plan, available)
        if not plan.layout.by_path:
            _check_token_ribbons(con, plan, available, paths)
    except UserError as error:
        raise RunFileError(f"its tables do not fit together: {error}") from error
    _check_offered(con, available, (("flow", "source", 0), ("flow", "target", 1), ("usage", "module", 0)))
    _check_known_tokens(con, plan)
    return paths


def check_counts(con: duckdb.DuckDBPyConnection, plan: Plan) -> None:
    """Check every copied table of a run that was made of counts.

    Raises:
        RunFileError: what does not fit; the message begins with "its".
    """
    modules = _check_modules(con, plan)
    _check_rules(con, count_rules(plan))
    _check_json(con, modules)
    available = module_units(modules, plan.layout.num_steps, plan.layout.num_modules)[0]
    _check_offered(con, available, (("usage", "module", 0), ("load", "module", 0)))


def _check_rules(con: duckdb.DuckDBPyConnection, rows_of: Iterable[tuple[str, str]]) -> None:
    for what, rows in rows_of:
        number = con.execute(f"SELECT count(*) FROM ({rows})").fetchall()[0][0]
        if number:
            raise RunFileError(f"its tables do not fit together: {what} ({number:,} rows)")


def _check_modules(con: duckdb.DuckDBPyConnection, plan: Plan) -> list[ModuleInfo]:
    rows = con.execute("SELECT * FROM module").fetchall()
    modules = [ModuleInfo(*row) for row in rows]
    try:
        if any(value is None for row in rows for value in row[1:]):
            raise UserError("a module has no number, name, kind or size")
        check_run(plan.info, modules)
    except UserError as error:
        raise RunFileError(f"its table module is impossible: {error}") from error
    seen: set[tuple[int | None, int]] = set()
    for module in modules:
        if (module.step, module.module) in seen or min(module.num_params, module.flops_per_token) < 0:
            raise RunFileError(f"its table module is impossible: module {module.module} is there twice or of no size")
        seen.add((module.step, module.module))
    offered_S = module_units(modules, plan.layout.num_steps, plan.layout.num_modules)[0].sum(axis=1)
    for step in range(plan.layout.num_steps):
        if offered_S[step] < plan.layout.top_k:
            raise RunFileError(f"its table module is impossible: step {step} offers too few modules")
    return modules


def _check_json(con: duckdb.DuckDBPyConnection, modules: list[ModuleInfo]) -> None:
    row = con.execute("SELECT family, config, weight_semantics, created_at FROM run").fetchall()[0]
    family, config, semantics, created = row
    findings = dict(con.execute("FROM finding").fetchall())
    texts: list[tuple[str, str, type]] = [("config", config, dict), ("weight_semantics", semantics, dict)]
    texts += [(f"finding {name[:60]!r}", text, object) for name, text in findings.items()]
    for what, text, kind in texts:
        try:
            value = json.loads(text, parse_constant=_no_constant)
        except (ValueError, TypeError, RecursionError):
            value = None
            if text != "null":
                raise RunFileError(f"its {what} is no JSON") from None
        if not isinstance(value, kind):
            raise RunFileError(f"its {what} is no JSON object")
    check_shapes(family, config, findings, {(part.step, part.module) for part in modules}, read_shapes(con)[0])
    try:
        datetime.fromisoformat(created)
    except ValueError:
        raise RunFileError("it does not say when it was sealed") from None


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _check_paths(con: duckdb.DuckDBPyConnection, plan: Plan, available: np.ndarray) -> PathDictionary:
    """The paths by number; UserError if a ribbon names what its step does not offer."""
    layout, paths = plan.layout, PathDictionary(plan.layout.id_dtype)
    sql = f"SELECT count, ribbon FROM {PATH_TABLE} ORDER BY path_id"
    if layout.unique:
        # Paths are numbered in the order of their first tokens.
        sql = (
            f"SELECT count, of_first.ids AS ribbon FROM {PATH_TABLE} JOIN {TABLE} AS of_first "
            "ON of_first.rowid = first_token ORDER BY first_token"
        )
    for batch in con.execute(sql).to_arrow_reader(CHUNK_ROWS):
        if batch.num_rows:
            column = batch.column("ribbon")
            flat = unpack(column, layout) if layout.unique else column.flatten().to_numpy()
            ribbons = flat.reshape(-1, layout.num_steps, layout.top_k)
            check_ribbons(ribbons, plan.info, available, "ribbons of paths")
            paths.load(sorted_slots(ribbons), batch.column("count").to_numpy())
    return paths


def _check_token_ribbons(
    con: duckdb.DuckDBPyConnection, plan: Plan, available: np.ndarray, paths: PathDictionary
) -> None:
    """UserError unless the ribbons of tokens are those of their paths."""
    sql = f"SELECT path_id, {columns_sql(plan.layout)} FROM token"
    for path_ids, *columns in read_chunks(con, sql, plan.layout):
        ids = ribbons_of(plan.layout, columns)[0]
        check_ribbons(ids, plan.info, available, "ribbons of tokens", plan.layout.unused_from)
        if not np.array_equal(sorted_slots(ids), paths.ribbons(np.asarray(path_ids))):
            raise UserError("tokens have other ribbons than their paths")


def _check_offered(
    con: duckdb.DuckDBPyConnection, available: np.ndarray, columns: Iterable[tuple[str, str, int]]
) -> None:
    """RunFileError if one of ``columns`` (table, column, steps later) names a module that its step does not offer."""
    for table, column, later in columns:
        rows = con.execute(f"SELECT DISTINCT step, {column} AS module FROM {table}").fetchnumpy()
        step, module = (np.asarray(rows[name], dtype=np.int64) for name in ("step", "module"))
        if not available[step + later, module].all():
            raise RunFileError(f"its tables do not fit together: {table} names modules that a step does not offer")


def _check_known_tokens(con: duckdb.DuckDBPyConnection, plan: Plan) -> None:
    """RunFileError unless ``known_token`` holds the hash sample that questions draw."""
    places = con.execute("SELECT place FROM known_token").fetchnumpy()["place"]
    untrained = con.execute(
        "SELECT count(*) FROM known_token WHERE untrained_path < 0 "
        "UNION ALL SELECT count(*) FROM known_token HAVING count(untrained_path) NOT IN (0, count(*))"
    ).fetchall()
    sample = HashSample(KNOWN_TOKENS)
    for start in range(0, plan.num_tokens, 1 << 20):
        rows = np.arange(start, min(start + (1 << 20), plan.num_tokens))
        sample.add(start, {"place": rows})
    if not np.array_equal(np.asarray(places), sample.columns()["place"]) or any(number for (number,) in untrained):
        raise RunFileError("its tables do not fit together: the tokens drawn for what paths know")
