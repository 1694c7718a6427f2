"""RunFile: one open run file, its metadata in memory, and the reads that all topics share.

Shapes: n tokens, p paths, S steps, K slots, V = S·K, M modules.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.ribbon_costs import flops_table, module_units
from tokenpaths.engine.base.errors import NeedsTokens, NoSuchThing, RunFileError, UserError
from tokenpaths.engine.base.records import NOT_OFFERED_KIND, STAND_IN_KINDS, UNRECORDED_KIND, UNUSED_KIND, ModuleInfo
from tokenpaths.engine.data.labels import look_alikes
from tokenpaths.engine.store.ask.label_views import LabelRow, merged_connection
from tokenpaths.engine.store.ask.tables import lookups, queries
from tokenpaths.engine.store.ask.tables.cache import held, hold
from tokenpaths.engine.store.file.checks import check_text
from tokenpaths.engine.store.file.columns import TABLE, coded_columns
from tokenpaths.engine.store.file.filters import Filters, Query, check_filters
from tokenpaths.engine.store.file.flow_counter import columns_sql, ribbons_of
from tokenpaths.engine.store.file.open_file import Connection
from tokenpaths.engine.store.file.pages.path_pages import PAGE_PATHS, PAGES_AT_ONCE, UNIQUE, Shares, decode_ranks
from tokenpaths.engine.store.file.pages.ribbon_planes import pick_from_pages
from tokenpaths.engine.store.file.schema import Layout, first_unused
from tokenpaths.engine.store.file.soft_tables import read_shapes
from tokenpaths.engine.store.file.weight_codes import CODES

MOST_LABELS = 100_000
MOST_HELD_PAGES = 32 * 2**20
"""bytes of pages of paths of a run that are cached"""
_File = TypeVar("_File", bound="RunFile")


class ModuleBank:
    """Names and kinds of the modules that each step offers."""

    def __init__(self, modules: Sequence[ModuleInfo], available: np.ndarray) -> None:
        self.available = available
        """(S, M) bool"""
        self._chosen, self._unknown, self._unused = available.copy(), ~available, ~available
        for module in modules:
            stand_in = {UNRECORDED_KIND: self._unknown, UNUSED_KIND: self._unused}.get(module.kind)
            if stand_in is not None and module.step is not None:
                self._chosen[module.step, module.module] = False
                stand_in[module.step, module.module] = True
        self.k_varies = bool((self._unused & available).any())
        """whether some tokens use fewer modules than there are slots"""
        self._shared = {m.module: m for m in modules if m.step is None}
        self._of_step = {(m.step, m.module): m for m in modules if m.step is not None}
        self.own_modules = any(m.kind not in STAND_IN_KINDS for m in self._of_step.values())
        """whether modules belong to their step, so that equal ids at two steps are different modules"""

    def find(self, step: int, module: int) -> ModuleInfo:
        """The record of ``module`` at ``step``."""
        return self._of_step.get((step, module)) or self._shared[module]

    def offered(self, step: int) -> list[int]:
        """Module ids that ``step`` can pick; stand-ins for unknown decisions and unused slots are none."""
        return [int(i) for i in np.flatnonzero(self._chosen[step])]

    def is_stand_in(self, step: int, module: int) -> bool:
        """Whether a module stands for a decision that is not known, or for an unused slot."""
        return module >= 0 and bool(self.available[step, module] and not self._chosen[step, module])

    def unknown(self, ids_nSK: np.ndarray) -> np.ndarray:
        """(n, S) bool: steps of which the decision is not known."""
        steps = np.arange(ids_nSK.shape[1])[:, None]
        missing: np.ndarray = self._unknown[steps, ids_nSK].any(axis=2)
        return missing

    def used(self, ids_nSK: np.ndarray, first_step: int = 0) -> np.ndarray:
        """(n, S, K) bool: slots that hold a module; ``first_step``: step of the first of the S."""
        steps = np.arange(first_step, first_step + ids_nSK.shape[1])[:, None]
        chosen: np.ndarray = self._chosen[steps, ids_nSK]
        return chosen

    def head(self, step: int, module: int) -> dict[str, Any]:
        """Leading columns of answers: step, module, name and kind."""
        info = self.find(step, module)
        return {"step": step, "module": module, "name": info.name, "kind": info.kind}


def _numpy(column: pa.Array) -> np.ndarray:
    """The values of a column, arrays of one length as rows of a matrix."""
    if isinstance(column, pa.FixedSizeListArray):
        return np.asarray(column.flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _opened_again(cls: type[RunFile], file: str, time_limit_s: int | float, merged: bool) -> RunFile:
    return cls.open(file, time_limit_s=time_limit_s).labelled("merged" if merged else None)


class RunFile:
    """A sealed run, read-only; safe from several threads (a cursor for each call).

    Every question is interrupted after ``time_limit_s`` (QueryTimeout); damage that shows only
    while reading is a RunFileError; a filter that names what is not there is a UserError.
    """

    def __init__(self, file: Path, connection: Connection) -> None:
        self.file = file
        self.run_id = file.stem
        self._connection = connection
        with connection.cursor() as cursor:
            cursor.execute(queries.run_row().sql)
            names = [column[0] for column in cursor.description]
            self.row: dict[str, Any] = dict(zip(names, cursor.fetchall()[0], strict=True))
            table = [ModuleInfo(*row) for row in cursor.execute(queries.module_rows().sql).fetchall()]
            self.modules = [module for module in table if module.kind != NOT_OFFERED_KIND]
            self.labels = cursor.execute(queries.label_rows().sql).fetchall()
            """rows label_id, label, num_samples, num_tokens"""
            self.regions: dict[int, str] = dict(cursor.execute(queries.region_rows().sql).fetchall())
            cursor.execute("SELECT * FROM token LIMIT 0")
            self.token_columns = tuple(column[0] for column in cursor.description if column[0] != "rowid")
            cursor.execute("SELECT * FROM sample LIMIT 0")
            self.in_parts = any(column[0] == "rowid" for column in cursor.description)
            """whether tokens and samples are views over parts, in which DuckDB finds no row by its number"""
            self.soft_shapes, self.axis_names = read_shapes(cursor)
        load_only = json.loads(self.row["config"]).get("load_only")
        self.load_only: dict[str, Any] | None = load_only if isinstance(load_only, dict) else None
        """of a run that was made of expert counts and holds no tokens: what its times are"""
        self.layout = Layout(
            self.row["num_steps"],
            self.row["top_k"] or 1,
            self.row["num_modules"],
            CODES[self.row["weight_code"]],
            by_path=not {"m0", "ids"} & set(self.token_columns),
            unused_from=first_unused(self.modules),
            unique=self.row["path_layout"] == UNIQUE,
        )
        self._label_ids = {label: (label_id, tokens) for label_id, label, _, tokens in self.labels}
        self.merged_names: dict[str, str] = {}
        """labels of the file that are shown under another name, with that name"""
        self._merging = threading.Lock()
        available, self.units = module_units(table, self.layout.num_steps, self.layout.num_modules)
        self.bank = ModuleBank(self.modules, available)
        offered = [max(self.bank.offered(step), default=-1) for step in range(self.layout.num_steps)]
        stand_ins = any(module.kind in STAND_IN_KINDS for module in self.modules)
        self.num_modules: int = max(offered) + 1 if stand_ins else self.layout.num_modules
        """M without what stands for unused slots and unknown decisions"""

    @classmethod
    def open(
        cls: type[_File], path: Path | str, *, time_limit_s: int | float = 10.0, memory_megabytes: int | None = None
    ) -> _File:
        """Open the run file ``path``; DuckDB takes at most ``memory_megabytes`` (default: 80 % of all).

        Raises:
            RunNotFound, RunFileError: a sentence about what is wrong with the file.
        """
        if not isinstance(path, (str, os.PathLike)):
            raise UserError(f"file is {repr(path)[:60]}, it should be the path of a run file", field="file")
        path = Path(path)
        connection = Connection(path, time_limit_s, memory_megabytes=memory_megabytes)
        try:
            return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    @property
    def time_limit_s(self) -> float:
        """Longest time of one query, in seconds."""
        return self._connection.time_limit_s

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled run opens the same file again: in another process, where no connection of this one can be used."""
        return _opened_again, (type(self), str(self.file.absolute()), self.time_limit_s, bool(self.merged_names))

    def __repr__(self) -> str:
        size = f"{self.row['num_samples']:,} samples, {self.row['num_tokens']:,} tokens"
        return f"<{type(self).__name__} {self.run_id!r}: {size}>"

    def need_tokens(self, asked: str) -> None:
        """Refuse a question about tokens to a run that was made of expert counts.

        Raises:
            NeedsTokens: why there is no answer, in one sentence.
        """
        if self.load_only is not None:
            raise NeedsTokens(
                f"run {self.run_id!r} holds counts of tokens by expert, not what each token chose, so there is no "
                f"answer to {asked!r}; its load is known: usage, load over time, balance, domains"
            )

    def close(self) -> None:
        """Close the file; the object cannot be used afterwards."""
        self._connection.close()

    def __enter__(self: _File) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def rows(self, query: Query) -> list[tuple[Any, ...]]:
        """All rows of one query."""
        return self._connection.rows(query.sql, query.parameters)

    def arrays(self, query: Query) -> dict[str, np.ndarray]:
        """All columns of one query without NULLs, as numpy arrays."""
        return self._connection.arrays(query.sql, query.parameters)

    def cursor(self, *, limited: bool = True) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A cursor of the file, without the time limit unless ``limited``."""
        return self._connection.cursor(limited=limited)

    def chunks(self, query: Query, num_rows: int, *, limited: bool = True) -> Iterator[dict[str, np.ndarray]]:
        """The columns of one query without NULLs, ``num_rows`` rows at a time."""
        with self.cursor(limited=limited) as cursor:
            for batch in cursor.execute(query.sql, list(query.parameters)).to_arrow_reader(num_rows):
                if batch.num_rows:
                    names = batch.schema.names
                    yield {n: _numpy(c) for n, c in zip(names, batch.columns, strict=True)}

    def records(self, column: str) -> bool:
        """Whether any token has a value in this column of ``token``; DuckDB knows it without reading."""
        if column not in self.token_columns:
            return False
        ((stored, _),) = coded_columns([(column, "")])
        return bool(self.rows(Query(f"SELECT EXISTS (SELECT 1 FROM {TABLE} WHERE {stored} IS NOT NULL)"))[0][0])

    @cached_property
    def has_twin(self) -> bool:
        """Whether the file holds the paths of the model's untrained twin."""
        return bool(self.rows(Query("SELECT 1 FROM path_fit WHERE kind = 'untrained'")))

    @cached_property
    def first_rows(self) -> np.ndarray:
        """(samples,) first row of each sample in ``token``."""
        # Samples lie in order, and so do their rows: sorting them here takes nothing, in SQL ten milliseconds.
        return np.sort(self._connection.arrays("SELECT first_row FROM sample")["first_row"], kind="stable")

    @cached_property
    def tables_there(self) -> frozenset[str]:
        """Names of the tables and views of the file."""
        # A third of the time that information_schema takes; so named, no macro of the file stands in for them.
        listed = (
            "SELECT table_name FROM system.main.duckdb_tables() WHERE database_name = 'r' "
            "UNION ALL SELECT view_name FROM system.main.duckdb_views() WHERE database_name = 'r'"
        )
        return frozenset(name for (name,) in self.rows(Query(listed)))

    @cached_property
    def flops(self) -> np.ndarray:
        """(S, M) FLOPs of each module at each step."""
        return flops_table(self.modules, self.layout.num_steps, self.layout.num_modules)

    @cached_property
    def shares(self) -> Shares:
        """The CDF of ranks."""
        rows = self.arrays(Query("SELECT count, num_paths FROM path_count WHERE kind = 'observed' ORDER BY count DESC"))
        return Shares(rows["count"].astype(np.int64), rows["num_paths"].astype(np.int64), self.row["num_tokens"])

    def damaged(self, table: str) -> RunFileError:
        """What to raise where a table of the file holds what no sealing wrote."""
        return RunFileError(f"{self.file.name} is damaged (table {table}): copy it again or trace the run again")

    def look_up(self, path_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rank (p,) and ribbon (p, V) of the paths with the ids (p,).

        Ribbons are (p, 0) if tokens store their own ids: ``path_page`` then has none.
        """
        layout = self.layout
        pages, page_of = np.unique(path_ids // PAGE_PATHS, return_inverse=True)
        ranks = np.empty(len(path_ids), dtype=np.int64)
        ribbons = np.empty((len(path_ids), layout.visits if layout.by_path else 0), dtype=layout.id_dtype)
        for start in range(0, len(pages), PAGES_AT_ONCE):
            rows = self._path_pages(pages[start : start + PAGES_AT_ONCE].tolist())
            here = np.flatnonzero((page_of >= start) & (page_of < start + len(rows)))
            page, place = page_of[here] - start, path_ids[here] % PAGE_PATHS
            try:
                parts = [decode_ranks(row[0], layout) for row in rows]
                sizes = np.array([len(part) for part in parts])
                if (place >= sizes[page]).any():  # else it would be a path of the next page
                    raise ValueError("a page of fewer paths")
                ranks[here] = np.concatenate(parts)[(np.cumsum(sizes) - sizes)[page] + place]
                if layout.by_path:
                    ribbons[here] = pick_from_pages([row[1] for row in rows], sizes, page, place, layout)
            except (ValueError, TypeError, IndexError, zlib.error) as error:
                raise self.damaged("path_page") from error
        return ranks, ribbons

    def _path_pages(self, pages: list[int]) -> list[tuple[Any, Any]]:
        """Ranks and ribbons of these rows of ``path_page`` (ascending), cached: most tokens are on a few paths."""
        known: dict[int, tuple[bytes | None, bytes | None]] = held(self, "path pages") or {}
        missing = [page for page in pages if page not in known]
        if missing:
            columns = "page, ranks, ribbons" if self.layout.by_path else "page, ranks, NULL"
            rows = self.rows(lookups.looked_up(columns, "path_page", "page", missing))
            known = known | {page: (ranks, ribbons) for page, ranks, ribbons in rows}
            if not known.keys() >= set(pages):
                raise self.damaged("path_page")
            kept, size = {}, 0
            for page in sorted(known):  # paths are numbered as they were first seen: the first pages have the frequent
                size += len(known[page][0] or b"") + len(known[page][1] or b"")
                if size > MOST_HELD_PAGES:
                    break
                kept[page] = known[page]
            hold(self, "path pages", kept, min(size, MOST_HELD_PAGES))
        return [known[page] for page in pages]

    def ribbons_of(self, columns: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Ids (n, S, K) and 8-bit weights (n, S, K) of the fetched ``columns_sql``."""
        if not self.layout.by_path:
            return ribbons_of(self.layout, columns)
        shape = (len(columns[0]), self.layout.num_steps, 1)
        ids = self.look_up(np.asarray(columns[0], dtype=np.int64))[1]
        return ids.reshape(shape), np.stack(columns[1:], axis=1).reshape(shape)

    def taken_ribbons(self, columns: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Ids (n, S, K) and 8-bit weights (n, S, K) of the ``columns_sql`` among ``columns``, which are taken out."""
        parts: list[Any] = [columns.pop(name) for name in columns_sql(self.layout).split(", ")]
        if self.layout.packed:
            parts = [parts[0], [bytes(blob) for blob in parts[1]]]
        return self.ribbons_of(parts)

    @cached_property
    def look_alikes(self) -> list[list[LabelRow]]:
        """Groups of labels that look alike (``data.labels.label_key``), the largest label of each first.

        None are looked for among more than ``MOST_LABELS``: that many are names of samples.
        """
        rows = {row[1]: row for row in self.labels[: MOST_LABELS + 1] if row[1] is not None}
        if len(rows) > MOST_LABELS:
            return []
        sizes = {row[1]: row[2] or row[3] for row in rows.values()}  # counts have tokens of a label, and no samples
        return [[rows[label] for label in group] for group in look_alikes(sizes)]

    def labelled(self: _File, labels: Any) -> _File:
        """The run as it is for None; for ``"merged"`` one in which labels that look alike are one label.

        Raises:
            UserError: ``labels`` is another word.
        """
        if labels not in (None, "merged"):
            raise UserError(f"labels is {str(labels)[:40]!r}, it should be merged, or be left out", field="labels")
        if labels is None or self.merged_names or not self.look_alikes:
            return self
        with self._merging:
            return self._merged

    @cached_property
    def _merged(self: _File) -> _File:
        groups = self.look_alikes
        merged = type(self)(
            self.file, merged_connection(self._connection, sorted(self.tables_there), self.labels, groups)
        )
        merged.in_parts = self.in_parts  # the views of merged labels list row numbers too
        merged.merged_names = {row[1]: group[0][1] for group in groups for row in group[1:]}
        merged.look_alikes = groups
        return merged

    def filters(
        self, label: str | None, paths: Sequence[int], through: Sequence[tuple[int, int]]
    ) -> tuple[Filters, int | None]:
        """Validate filters; returns them and the id of their label. UserError if they name something the run lacks."""
        filters = Filters(label, tuple(paths), tuple((step, module) for step, module in through))
        check_filters(filters, self.layout, self.row["num_paths"])
        return filters, self.label_id(label)

    def label_id(self, label: str | None) -> int | None:
        """The id of a label; UserError if the run does not have it."""
        if label is None:
            return None
        check_text(label, "label", field="label")
        label = self.merged_names.get(label, label)
        if label not in self._label_ids:
            names = ", ".join(name for _, name, _, _ in self.labels[:10])
            more = f" and {len(self.labels) - 10} more" if len(self.labels) > 10 else ""
            has = f"its labels are {names}{more}" if names else "it has no labels"
            raise UserError(f"run {self.run_id!r} has no label {label[:60]!r}: {has}", field="label")
        label_id: int | None = self._label_ids[label][0]
        return label_id

    def num_tokens(self, label: str | None = None) -> int:
        """Tokens of the run, or of one of its labels."""
        if label is None:
            return int(self.row["num_tokens"] or 0)
        count: int = self._label_ids[self.merged_names.get(label, label)][1]
        return count

    def num_samples(self, label: str | None = None) -> int:
        """Samples of the run, or of one of its labels."""
        if label is None:
            return int(self.row["num_samples"])
        shown = self.merged_names.get(label, label)
        count: int = next(samples for _, name, samples, _ in self.labels if name == shown)
        return count

    def check_step(self, step: int) -> None:
        """UserError unless the run has this step."""
        if not 0 <= step < self.layout.num_steps:
            raise UserError(f"step {step} does not exist, the run has 0 to {self.layout.num_steps - 1}", field="step")

    def no_sample(self, sample: int) -> NoSuchThing:
        """The error for a sample that the run does not have."""
        return NoSuchThing(
            f"run {self.run_id!r} has samples 0 to {self.row['num_samples'] - 1}, not {sample}", field="sample"
        )
