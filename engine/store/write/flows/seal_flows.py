"""Counts flows and usage of a run that is written, of all tokens and of every label.

Four ways, each the fastest for its layout; sums do not depend on how tokens were cut into batches. The naive twin of
all is ``flow_counter.FlowCounter``.

- one slot: while batches arrive (``Visits``); SQL at sealing would take a quarter longer;
- several slots of equal weights, as of a log without any: while batches arrive, by matrix products (``EvenFlows``), or
  by compiled loops where there are many tokens;
- columns: in SQL (``flow_counter.flow_parts_sql``);
- packed ribbons: the choices of a step as a 0/1 matrix (tokens × modules), so that the links between two steps are a
  matrix product (``PackedFlows``).

Shapes: n tokens, S steps, K slots, M modules, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import duckdb
import numpy as np

from tokenpaths.engine.analysis.compiled.loops import Loops, loops
from tokenpaths.engine.store.file.flow_counter import (
    TICKS,
    FlowCounter,
    columns_sql,
    countable_in_sql,
    even_shares,
    flow_parts_sql,
    flow_values_sql,
    read_chunks,
    ribbons_of,
    usage_parts_sql,
    usage_values_sql,
    with_modules,
)
from tokenpaths.engine.store.file.schema import ALL_LABELS, Layout
from tokenpaths.engine.store.file.weight_codes import TOP_LEVEL
from tokenpaths.engine.store.write.arrow_tables import CompactBatch, insert_columns

MOST_BYTES = 256 * 2**20
"""maximum bytes of counters while writing; runs with more labels are counted in SQL at sealing"""
BLOCK_ROWS = 4096
"""tokens per matrix product: their matrices fit the processor's cache"""
EVEN_ROWS = 2048
"""the same where two counts share a number"""
MOST_BESIDE = 8
"""samples in so many tokens up to which their visits are counted by products, too"""
_FIELD = 4096
"""two counts below it share a float32 with 24 bits, the second one times this"""
COUNTER_BYTES = 512 * 2**20
"""bytes of counter grids in memory; more labels are counted in several passes"""


def write_flows(con: duckdb.DuckDBPyConnection, layout: Layout, labels: dict[str, int], visits: Visits | None) -> None:
    """Fill ``flow`` and ``usage``; ``visits`` holds the counts if they were made while tokens arrived."""
    if visits is not None:
        _insert_visits(con, layout, visits)
        return
    steps = range(layout.num_steps - 1)
    if countable_in_sql(layout):
        con.execute(f"CREATE TEMP VIEW chosen AS SELECT * FROM {with_modules(layout)}")
        for table, sql, keys, values in (
            (
                "flow",
                flow_parts_sql(layout, steps, "label_id"),
                "step, source, target",
                (flow_values_sql, ("pairs", "parts")),
            ),
            ("usage", usage_parts_sql(layout, "label_id"), "step, module", (usage_values_sql, ("tokens", "parts"))),
        ):
            read, columns = values
            con.execute(f"CREATE TEMP TABLE by_label AS {sql}")
            con.execute(
                f"INSERT INTO {table} BY NAME SELECT {keys}, {read(layout, *(f'sum({name})' for name in columns))}, "
                f"{ALL_LABELS} AS label_id FROM by_label GROUP BY {keys} ORDER BY {keys}"
            )
            con.execute(
                f"INSERT INTO {table} BY NAME SELECT {keys}, {read(layout, *columns)}, label_id "
                f"FROM by_label WHERE label_id IS NOT NULL ORDER BY label_id, {keys}"
            )
            con.execute("DROP TABLE by_label")
        con.execute("DROP VIEW chosen")
        return
    packed = layout.packed and fits(layout)
    counters = count_packed(con, layout, list(labels.values())) if packed else _count_one_by_one(con, layout, labels)
    for label_id, counter in counters:
        links = counter.flow_arrays()
        insert_columns(con, "flow", {**links, "label_id": np.full(len(links["step"]), label_id, dtype=np.int32)})
        if rows := counter.usage_rows():
            names = ("step", "module", "count", "weight")
            by_name = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
            insert_columns(con, "usage", {**by_name, "label_id": [label_id] * len(rows)})


def _insert_visits(con: duckdb.DuckDBPyConnection, layout: Layout, visits: Visits) -> None:
    """Insert rows of ``flow`` and ``usage``: of all tokens, then of each label."""
    of_labels = [(label, counts) for label, counts in sorted(visits.by_label.items()) if label >= 0]
    for label, counts in [(ALL_LABELS, visits.total()), *of_labels]:
        _insert_grids(con, label, counts.links, 1, counts.tokens, counts.levels / layout.weights.whole)


def _insert_grids(
    con: duckdb.DuckDBPyConnection, label: int, links: np.ndarray, pairs: int, tokens: np.ndarray, weights: np.ndarray
) -> None:
    """Insert the rows of a label in ``flow``, by ``links`` (S − 1, M, M) of which a token counts ``pairs``, and in
    ``usage``, by ``tokens`` (S, M) and their summed ``weights`` (S, M)."""
    step, source, target = (place.astype(np.int32) for place in np.nonzero(links))
    # Each of the pairs of a token counts alike, as its weight does where all weights are equal.
    num = links[step, source, target] / pairs
    label_id = np.full(len(num), label, dtype=np.int32)
    flows = {"step": step, "source": source, "target": target, "count": num, "weight": num, "label_id": label_id}
    insert_columns(con, "flow", flows)
    step, module = (place.astype(np.int32) for place in np.nonzero(tokens))
    count, weight = tokens[step, module], weights[step, module]
    label_id = np.full(len(count), label, dtype=np.int32)
    usage = {"step": step, "module": module, "count": count, "weight": weight, "label_id": label_id}
    insert_columns(con, "usage", usage)


def _count_one_by_one(
    con: duckdb.DuckDBPyConnection, layout: Layout, labels: dict[str, int]
) -> Iterator[tuple[int, FlowCounter]]:
    """Count all tokens, then those of each label: one pass over ``token`` each."""
    for label_id in (ALL_LABELS, *labels.values()):
        where = "" if label_id == ALL_LABELS else f" WHERE label_id = {label_id}"
        counter = FlowCounter(layout, range(layout.num_steps - 1))
        for columns in read_chunks(con, f"SELECT {columns_sql(layout)} FROM token{where}", layout):
            counter.add(*ribbons_of(layout, columns))
        yield label_id, counter


class Counts(NamedTuple):
    """Counts of one label: tokens of each link (S − 1, M, M), of each module (S, M), and summed levels (S, M)."""

    links: np.ndarray
    tokens: np.ndarray
    levels: np.ndarray


class Visits:
    """Counts by label_id (−1: without a label), for layouts with one slot and linear weights."""

    def __init__(self, layout: Layout) -> None:
        assert layout.by_path, "levels of one slot are summed as whole numbers"
        self.num_steps, self.num_modules = layout.num_steps, layout.num_modules
        self._stop = layout.num_modules if layout.unused_from is None else layout.unused_from
        """the ids below it are modules: unused slots have no links"""
        self.by_label: dict[int, Counts] = {}
        self._num_tokens = 0

    def add(self, label_ids: np.ndarray, batch: CompactBatch) -> Visits | None:
        """Count a batch with these ``label_ids`` of samples; None once the counters would exceed ``MOST_BYTES``."""
        label_n, size = np.repeat(label_ids, batch.lengths), self.num_modules
        self._num_tokens += batch.num_tokens
        compiled = loops(batch.ids.dtype, self._num_tokens)
        present = np.unique(label_ids).tolist()
        for label in present:
            counts = self.by_label.get(label)
            if counts is None:
                shape = (self.num_steps, size)
                counts = Counts(
                    np.zeros((max(0, self.num_steps - 1), size, size), dtype=np.int64),
                    np.zeros(shape, dtype=np.int64),
                    np.zeros(shape, dtype=np.int64),
                )
                if (len(self.by_label) + 1) * sum(part.nbytes for part in counts) > MOST_BYTES:
                    return None
                self.by_label[label] = counts
            member = slice(None) if len(present) == 1 else label_n == label
            ids, levels = batch.ids[member, :, 0], batch.weights[member]
            if compiled is None:
                self._count(ids.astype(np.int64), levels, counts)
            else:
                compiled.count_chains(np.ascontiguousarray(ids), np.ascontiguousarray(levels), self._stop, *counts)
        return self

    def _count(self, ids: np.ndarray, levels: np.ndarray, counts: Counts) -> None:
        """Add tokens with ``ids`` and ``levels`` (n, S)."""
        size, modules = self.num_modules, (slice(self._stop), slice(self._stop))
        for step in range(self.num_steps):
            here = ids[:, step]
            counts.tokens[step] += np.bincount(here, minlength=size)
            # Sums of whole numbers in float64 are exact below 2**53.
            counts.levels[step] += np.bincount(here, levels[:, step], minlength=size).astype(np.int64)
            if step + 1 < self.num_steps:
                links = np.bincount(here * size + ids[:, step + 1], minlength=size * size)
                counts.links[step][modules] += links.reshape(size, size)[modules]

    def total(self) -> Counts:
        """All tokens."""
        return Counts(*(np.sum(parts, axis=0) for parts in zip(*self.by_label.values(), strict=True)))


class EvenFlows:
    """Counts by label_id (−1: without a label), for layouts with several slots."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.level: int | None = None
        """that of every weight; None before the first token"""
        self.links: dict[int, np.ndarray] = {}
        """label_id -> (S − 1, M, M) pairs of choices"""
        self.tokens: dict[int, np.ndarray] = {}
        """label_id -> (S, M) tokens of each module"""
        self.of_samples: np.ndarray | None = None
        """(B, S, M) visits of the samples of the last batch, unless they are short: then that took longer"""
        self._num_tokens = 0
        half = -(-layout.num_modules // 2)
        self._chosen = np.empty((2, EVEN_ROWS, 2 * half), dtype=np.float32)
        self._packed = np.empty((EVEN_ROWS, half), dtype=np.float32)

    @classmethod
    def fits(cls, layout: Layout) -> bool:
        """Whether matrix products (M² work per pair of steps) are faster than counting the K² pairs of each token.

        Where k varies the pairs of a token do not count alike.
        """
        return layout.unused_from is None and layout.top_k > 1 and layout.num_modules**2 <= 256 * layout.top_k**2

    def add(self, label_ids: np.ndarray, batch: CompactBatch) -> EvenFlows | None:
        """Count a batch with these ``label_ids`` of samples; None if its weights differ, or there are too many labels
        for ``MOST_BYTES``: then all tokens are counted at sealing."""
        level = int(batch.weights.flat[0])
        one = not any(batch.weights.strides)
        if self.level not in (None, level) or not (one or (batch.weights == level).all()):
            return None
        self.level = level
        steps, size = self.layout.num_steps, self.layout.num_modules
        present = np.unique(label_ids).tolist()
        if len({*present, *self.tokens}) * 8 * (steps - 1) * size**2 > MOST_BYTES:
            return None
        label_n, sample_n = (np.repeat(of, batch.lengths) for of in (label_ids, np.arange(len(label_ids))))
        long = len(label_ids) * EVEN_ROWS <= MOST_BESIDE * batch.num_tokens
        self.of_samples = np.zeros((len(label_ids), steps, size), dtype=np.int64) if long else None
        self._num_tokens += batch.num_tokens
        compiled = loops(batch.ids.dtype, self._num_tokens)
        for label in present:
            links = self.links.setdefault(label, np.zeros((steps - 1, size, size), dtype=np.int64))
            tokens = self.tokens.setdefault(label, np.zeros((steps, size), dtype=np.int64))
            member = slice(None) if len(present) == 1 else label_n == label
            ids, owners = batch.ids[member], sample_n[member]
            if compiled is not None:
                self._count_compiled(compiled, ids, owners, links, tokens, label_ids == label)
                continue
            for start in range(0, len(ids), EVEN_ROWS):
                part = slice(start, start + EVEN_ROWS)
                self._count(ids[part], owners[part], links, tokens)
        return self

    def _count_compiled(
        self,
        compiled: Loops,
        ids: np.ndarray,
        sample_n: np.ndarray,
        links: np.ndarray,
        tokens: np.ndarray,
        samples_B: np.ndarray,
    ) -> None:
        """``_count`` for all tokens of a label, whose samples are ``samples_B`` (B,) bool."""
        compiled.count_links(ids, links)
        if self.of_samples is None:
            compiled.count_visits(ids, np.zeros(len(ids), dtype=np.int64), tokens[None])
            return
        compiled.count_visits(ids, sample_n, self.of_samples)
        tokens += self.of_samples[samples_B].sum(axis=0)

    def _count(self, ids: np.ndarray, sample_n: np.ndarray, links: np.ndarray, tokens: np.ndarray) -> None:
        """Add a block of ids (n, S, K) of these samples (n,) to the counts."""
        size, half = links.shape[-1], self._packed.shape[1]
        rows = np.arange(len(ids))[:, None] * (2 * half)
        samples, owner_n = np.unique(sample_n, return_inverse=True) if self.of_samples is not None else ([0], 0)
        owned = np.zeros((len(samples), len(ids)), dtype=np.float32)
        owned[owner_n, np.arange(len(ids))] = 1
        packed = self._packed[: len(ids)]
        for step in range(ids.shape[1]):
            before, chosen = self._chosen[(step + 1) % 2, : len(ids)], self._chosen[step % 2, : len(ids)]
            chosen[:] = 0
            chosen.reshape(-1)[(rows + ids[:, step]).reshape(-1)] = 1
            # Whole numbers below 2**24 are exact in float32.
            visits = (owned @ chosen)[:, :size].astype(np.int64)
            tokens[step] += visits.sum(axis=0)
            if self.of_samples is not None:
                self.of_samples[samples, step] += visits
            if step:
                # A product counts two modules at once.
                np.multiply(chosen[:, half:], np.float32(_FIELD), out=packed)
                packed += chosen[:, :half]
                pairs = before.T @ packed
                high = np.floor(pairs / np.float32(_FIELD))
                pairs -= high * np.float32(_FIELD)
                links[step - 1, :, :half] += pairs[:size].astype(np.int64)
                links[step - 1, :, half:] += high[:size, : size - half].astype(np.int64)

    def write(self, con: duckdb.DuckDBPyConnection) -> None:
        """Insert rows of ``flow`` and ``usage``: of all tokens, then of each label."""
        weight = float(self.layout.weights.decode(np.array([self.level or 0]))[0])
        labels = sorted(label for label in self.tokens if label >= 0)
        everything = (sum(self.links.values()), sum(self.tokens.values()))
        for label, (links, tokens) in [
            (ALL_LABELS, everything),
            *((label, (self.links[label], self.tokens[label])) for label in labels),
        ]:
            tokens = np.asarray(tokens)
            _insert_grids(con, label, np.asarray(links), self.layout.top_k**2, tokens, tokens * weight)


def fits(layout: Layout) -> bool:
    """Whether matrix products are faster (M² work per pair of steps, K² per token otherwise) and their grids small."""
    return layout.num_modules**2 <= 256 * layout.top_k**2 and _grid_bytes(layout) * 2 <= COUNTER_BYTES


def _grid_bytes(layout: Layout) -> int:
    return 16 * (layout.num_steps - 1) * layout.num_modules**2


def labels_at_once(layout: Layout) -> int:
    """Number of labels that one pass can count in addition to all tokens."""
    return max(1, COUNTER_BYTES // max(1, _grid_bytes(layout)) - 1)


class PackedFlows:
    """Counts of links and modules by matrix products; the same result as ``FlowCounter``."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        grid = (layout.num_steps - 1, layout.num_modules, layout.num_modules)
        self._varies = layout.unused_from is not None
        self._pairs, self._weight = np.zeros(grid, dtype=np.int64), np.zeros(grid)
        self._whole = float(TICKS if self._varies else layout.top_k**2)
        """what a token counts in ``_pairs``"""
        self._usage = np.zeros((layout.num_steps, layout.num_modules), dtype=np.int64)
        self._usage_ticks = np.zeros((layout.num_steps, layout.num_modules), dtype=np.int64)

    def add(self, ids: np.ndarray, levels: np.ndarray) -> None:
        """Count tokens with ribbons ``ids`` (n, S, K) and 8-bit weights ``levels`` (n, S, K)."""
        size, num_levels = self.layout.num_modules, TOP_LEVEL + 1
        ticks_of_level = np.rint(self.layout.weights.decode(np.arange(num_levels)) * TICKS).astype(np.int64)
        for step in range(self.layout.num_steps):
            codes = ids[:, step].astype(np.int64) * num_levels + levels[:, step]
            counts = np.bincount(codes.reshape(-1), minlength=size * num_levels).reshape(size, num_levels)
            self._usage[step] += counts.sum(axis=1)
            self._usage_ticks[step] += counts @ ticks_of_level
        for start in range(0, len(ids), BLOCK_ROWS):
            self._add_block(ids[start : start + BLOCK_ROWS], levels[start : start + BLOCK_ROWS])

    def add_counts(self, other: PackedFlows) -> None:
        """Add the counts of ``other``."""
        for name in ("_pairs", "_weight", "_usage", "_usage_ticks"):
            getattr(self, name).__iadd__(getattr(other, name))

    def _add_block(self, ids: np.ndarray, levels: np.ndarray) -> None:
        num_modules = self.layout.num_modules
        # Equal weights (a log without any, above all): each of the K² pairs has the weight that it counts.
        even = not self._varies and bool((levels == levels[:, :, :1]).all())
        even_nSK = even_shares(ids, self.layout)
        rows = np.arange(len(ids))[:, None] * num_modules
        chosen_before: Any = None
        shares_before: Any = None
        for step in range(self.layout.num_steps):
            places = (rows + ids[:, step]).reshape(-1)
            each = even_nSK[:, step].reshape(-1) if self._varies else 1.0
            chosen = _matrix(places, each, len(ids), num_modules)
            shares = None
            if not even:
                weights = self.layout.weights.decode(levels[:, step])
                shares = _matrix(places, _shares(weights, even_nSK[:, step]), len(ids), num_modules)
            if chosen_before is not None:
                # Whole numbers below 2**24 are exact in float32.
                pairs = chosen_before.T @ chosen
                self._pairs[step - 1] += (np.rint(pairs * TICKS) if self._varies else pairs).astype(np.int64)
                product = pairs / self._whole if even else shares_before.T @ shares
                self._weight[step - 1] += product
            chosen_before, shares_before = chosen, shares

    def flow_arrays(self) -> dict[str, np.ndarray]:
        """Columns step, source, target, count and weight of the links."""
        step, source, target = places = np.nonzero(self._pairs)
        count, weight = self._pairs[places] / self._whole, self._weight[places]
        return {"step": step, "source": source, "target": target, "count": count, "weight": weight}

    def usage_rows(self) -> list[tuple[int, int, int, float]]:
        """Rows (step, module, count, weight) of the modules chosen at least once."""
        return [
            (int(step), int(module), int(self._usage[step, module]), float(self._usage_ticks[step, module] / TICKS))
            for step, module in np.argwhere(self._usage)
        ]


def _matrix(places: np.ndarray, values: float | np.ndarray, num_rows: int, num_modules: int) -> np.ndarray:
    """(n, M) matrix with ``values`` at flat ``places``, 0 elsewhere; single precision for integers."""
    dtype = np.float32 if isinstance(values, float) else np.float64
    matrix = np.zeros(num_rows * num_modules, dtype=dtype)
    matrix[places] = values
    return matrix.reshape(num_rows, num_modules)


def _shares(weights: np.ndarray, even: np.ndarray) -> np.ndarray:
    """Share (n·K,) of each slot in its step's weight; that of ``even`` where all weights of the step round to zero."""
    totals = weights.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.where(totals == 0, even, weights / np.where(totals == 0, 1, totals)).reshape(-1)
    return shares


def count_packed(
    con: duckdb.DuckDBPyConnection, layout: Layout, label_ids: list[int]
) -> Iterator[tuple[int, PackedFlows]]:
    """Counters of all tokens (label ``ALL_LABELS``) and of each label, over table ``token``."""
    per_pass = labels_at_once(layout)
    parts = [label_ids[start : start + per_pass] for start in range(0, len(label_ids), per_pass)] or [[]]
    for number, part in enumerate(parts):
        counters = {label_id: PackedFlows(layout) for label_id in part}
        others = PackedFlows(layout) if number == 0 else None
        for labels, ids, levels in packed_chunks(con, layout):
            for label_id in np.unique(labels).tolist():
                counter = counters.get(label_id, others)
                if counter is not None:
                    member = labels == label_id
                    counter.add(*((ids, levels) if member.all() else (ids[member], levels[member])))
        if others is not None:
            for counter in counters.values():
                others.add_counts(counter)
            yield ALL_LABELS, others
        yield from counters.items()


def packed_chunks(
    con: duckdb.DuckDBPyConnection, layout: Layout
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """label_id (n,), −1 = none, ids (n, S, K) and levels (n, S, K) of all tokens, chunk by chunk."""
    sql = f"SELECT coalesce(label_id, -1) AS label_id, {columns_sql(layout)} FROM token"
    for labels, *columns in read_chunks(con, sql, layout):
        yield labels.to_numpy(), *ribbons_of(layout, columns)
