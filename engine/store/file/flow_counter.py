"""Flows and usage of any set of tokens: in SQL for columns with few slots, in numpy otherwise.

Shapes: n tokens, S steps, K slots, M modules. SQL reads a relation ``chosen`` with the columns of ``token``; ``by``
names its grouping column (``label_id``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.packed_ids import unpack
from tokenpaths.engine.store.file.schema import Layout

_LARGEST_GRID = 1 << 22
CHUNK_ROWS = 65_536
FINE = 2.0**40
"""fixed-point scale of weights that have no exact integer form: error 5e-13 per token"""
TICKS = 2**32
"""fixed-point scale of 64-bit sums, which do not depend on their order"""


def countable_in_sql(layout: Layout) -> bool:
    """Whether flows are counted fast in SQL: column layout, and few pairs of slots."""
    return not layout.packed and layout.top_k <= 2


def flow_sql(layout: Layout, steps: Sequence[int], by: str | None = None) -> str:
    """Rows (step, source, target, count, weight[, by]) of the links that leave ``steps``.

    Each of the k·k′ pairs of modules that a token uses counts 1/(k·k′) (k = K unless slots are unused); ``weight`` is
    w·w′ normalised per token, so both sum to the number of tokens that use a module at both steps. K = 1: both are the
    number of tokens.
    """
    group = f", {by}" if by else ""
    parts = flow_parts_sql(layout, steps, by)
    return f"SELECT step, source, target, {flow_values_sql(layout, 'pairs', 'parts')}{group} FROM ({parts})"


def flow_parts_sql(layout: Layout, steps: Sequence[int], by: str | None = None) -> str:
    """Rows (step, source, target, pairs, parts[, by]) of integers, input of ``flow_values_sql``.

    Integer sums do not depend on the order in which threads add them.
    """
    group = f", {by}" if by else ""
    branches = []
    for step in steps:
        for slot in range(layout.top_k):
            for next_slot in range(layout.top_k):
                source, target = layout.module_column(step, slot), layout.module_column(step + 1, next_slot)
                weight = f"{_share_sql(layout, step, slot)} * {_share_sql(layout, step + 1, next_slot)}"
                parts = "count(*)" if layout.top_k == 1 else f"sum(({weight} * {FINE}::DOUBLE)::BIGINT)"
                pairs, where = "count(*)", ""
                if layout.unused_from is not None:
                    # K is 1 or 2 here, so that K²/(k·k′) is a whole number.
                    used = f"({_used_sql(layout, step)} * {_used_sql(layout, step + 1)})"
                    pairs = f"sum({layout.top_k**2} // {used})" if layout.top_k > 1 else pairs
                    where = f" WHERE {source} < {layout.unused_from} AND {target} < {layout.unused_from}"
                branches.append(
                    f"SELECT {step} AS step, {source} AS source, {target} AS target, {pairs} AS pairs, "
                    f"{parts} AS parts{group} FROM chosen{where} GROUP BY {source}, {target}{group}"
                )
    if not branches:
        branches = [
            "SELECT 0 AS step, 0 AS source, 0 AS target, 0 AS pairs, 0 AS parts"
            f"{', 0 AS ' + by if by else ''} WHERE false"
        ]
    return (
        "SELECT step, source::INTEGER AS source, target::INTEGER AS target, sum(pairs) AS pairs, "
        f"sum(parts) AS parts{group} FROM ({' UNION ALL '.join(branches)}) "
        f"GROUP BY step, source, target{group}"
    )


def flow_values_sql(layout: Layout, pairs: str, parts: str) -> str:
    """``count`` and ``weight`` of summed ``pairs`` and ``parts``."""
    whole = 1.0 if layout.top_k == 1 else FINE
    return f"{pairs} / {float(layout.top_k**2)}::DOUBLE AS count, {parts} / {whole}::DOUBLE AS weight"


def _share_sql(layout: Layout, step: int, slot: int) -> str:
    """Share of a used slot in its step's weight; 1/k where all weights of the step round to zero."""
    if layout.top_k == 1:
        return "1.0::DOUBLE"
    weights = [layout.weights.parts_sql(layout.weight_column(step, k)) for k in range(layout.top_k)]
    total = " + ".join(weights)
    even = f"{1 / layout.top_k}::DOUBLE" if layout.unused_from is None else f"1.0::DOUBLE / {_used_sql(layout, step)}"
    return f"(CASE WHEN {total} = 0 THEN {even} ELSE {weights[slot]}::DOUBLE / ({total}) END)"


def _used_sql(layout: Layout, step: int) -> str:
    """k, the number of modules that a token uses at a step."""
    columns = [layout.module_column(step, slot) for slot in range(layout.top_k)]
    return f"({' + '.join(f'({name} < {layout.unused_from})::INTEGER' for name in columns)})"


def even_shares(ids: np.ndarray, layout: Layout) -> np.ndarray:
    """1/k in each slot of (…, K) ids that holds a module, 0 in unused ones; k is the number of the former."""
    if layout.unused_from is None:
        return np.broadcast_to(1 / layout.top_k, ids.shape)
    used = ids < layout.unused_from
    shares: np.ndarray = used / np.maximum(used.sum(axis=-1, keepdims=True), 1)
    return shares


def usage_sql(layout: Layout, by: str | None = None) -> str:
    """Rows (step, module, count, weight[, by]): tokens that chose the module, and their summed weights."""
    group = f", {by}" if by else ""
    parts = usage_parts_sql(layout, by)
    return f"SELECT step, module, {usage_values_sql(layout, 'tokens', 'parts')}{group} FROM ({parts})"


def usage_parts_sql(layout: Layout, by: str | None = None) -> str:
    """Rows (step, module, tokens, parts[, by]) of integers, input of ``usage_values_sql``."""
    code = layout.weights
    group = f", {by}" if by else ""
    branches = []
    for step in range(layout.num_steps):
        for slot in range(layout.top_k):
            parts = code.parts_sql(layout.weight_column(step, slot))
            if code.name != "linear":
                parts = f"({parts} * {FINE}::DOUBLE)::BIGINT"
            branches.append(
                f"SELECT {step} AS step, {layout.module_column(step, slot)} AS module, count(*) AS tokens, "
                f"sum({parts}) AS parts{group} FROM chosen GROUP BY {layout.module_column(step, slot)}{group}"
            )
    return (
        "SELECT step, module::INTEGER AS module, sum(tokens) AS tokens, sum(parts) AS parts"
        f"{group} FROM ({' UNION ALL '.join(branches)}) GROUP BY step, module{group}"
    )


def usage_values_sql(layout: Layout, tokens: str, parts: str) -> str:
    """``count`` and ``weight`` of summed ``tokens`` and ``parts``."""
    whole = layout.weights.whole if layout.weights.name == "linear" else FINE
    return f"({tokens})::BIGINT AS count, {parts} / {whole}::DOUBLE AS weight"


def of_modules(usage: Sequence[tuple[Any, ...]], layout: Layout) -> list[tuple[Any, ...]]:
    """The rows (step, module, …) of modules, without those of unused slots."""
    last = layout.num_modules if layout.unused_from is None else layout.unused_from
    return [row for row in usage if row[1] < last]


def columns_sql(layout: Layout) -> str:
    """The columns needed by ``ribbons_of``, or by ``Run.ribbons_of`` if ribbons are stored with their paths."""
    if layout.packed:
        return "ids, weights"
    return ", ".join([*layout.id_columns(), *layout.weight_columns()])


def ribbon_sql(layout: Layout) -> list[str]:
    """SQL for the columns m0 … from ``path``, for tokens without ids of their own."""
    names = layout.module_columns() if layout.by_path else []
    return [f"path.ribbon[{i + 1}] AS {name}" for i, name in enumerate(names)]


def with_modules(layout: Layout) -> str:
    """FROM clause for ``token`` with the columns m0 … of its ribbons."""
    if not layout.by_path:
        return "token"
    return f"(SELECT token.*, {', '.join(ribbon_sql(layout))} FROM token JOIN {PATHS} AS path USING (path_id))"


def ribbons_of(layout: Layout, columns: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Ids (n, S, K) and 8-bit weights (n, S, K) of the fetched ``columns_sql``; not for layouts ``by_path``."""
    assert not layout.by_path, "Run.ribbons_of knows the paths"
    n = len(columns[0])
    shape = (n, layout.num_steps, layout.top_k)
    if layout.packed:
        return unpack(columns[0], layout).reshape(shape), bytes_of(columns[1], layout.visits).reshape(shape)
    ids = np.stack(columns[: layout.visits], axis=1)
    levels = np.stack(columns[layout.visits :], axis=1)
    return ids.reshape(shape), levels.reshape(shape)


def read_chunks(
    con: duckdb.DuckDBPyConnection, sql: str, layout: Layout, parameters: Sequence[object] = ()
) -> Iterator[list[Any]]:
    """The columns of a query over ``columns_sql`` in chunks, as input of ``ribbons_of``."""
    for batch in con.execute(sql, list(parameters)).to_arrow_reader(CHUNK_ROWS):
        if batch.num_rows:
            yield list(batch.columns) if layout.packed else [column.to_numpy() for column in batch.columns]


def bytes_of(column: pa.Array | Sequence[bytes], width: int) -> np.ndarray:
    """The bytes of blobs of ``width``, one after the other; of Arrow's arrays without a copy."""
    if not isinstance(column, pa.Array):
        return np.frombuffer(b"".join(column), dtype=np.uint8)
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    assert offsets[-1] - offsets[0] == width * len(column), "every packed ribbon has one width"
    return np.frombuffer(column.buffers()[2], dtype=np.uint8)[offsets[0] : offsets[-1]]


class FlowCounter:
    """Naive, chunked twin of the SQL above; also the only implementation for packed ribbons."""

    def __init__(self, layout: Layout, steps: Sequence[int]) -> None:
        self.layout, self.steps = layout, list(steps)
        self.num_tokens = 0
        shape = (layout.num_steps, layout.num_modules)
        self.usage_count = np.zeros(shape, dtype=np.int64)
        self.usage_weight = np.zeros(shape)
        varies = layout.unused_from is not None
        self._links: dict[int, _Pairs] = {step: _Pairs(layout.num_modules, varies) for step in self.steps}
        self._whole = float(TICKS if varies else layout.top_k**2)
        """what a token counts in ``_links``"""

    def add(self, ids: np.ndarray, levels: np.ndarray) -> None:
        """Count tokens with ribbons ``ids`` (n, S, K) and 8-bit weights ``levels`` (n, S, K)."""
        num_modules = self.layout.num_modules
        self.num_tokens += len(ids)
        # A decision for a chunk or a sequence stands in all its tokens: count it once, so often as it stands there.
        times = None
        if len(starts := _starts_of_runs(ids, levels)) < len(ids) // 2:
            times = np.diff(starts, append=len(ids))
            ids, levels = ids[starts], levels[starts]
        ids = ids.astype(np.int64)
        weights = self.layout.weights.decode(levels)
        totals = weights.sum(axis=2, keepdims=True)
        even = even_shares(ids, self.layout)
        shares = np.where(totals == 0, even, weights / np.where(totals == 0, 1, totals))
        for step in range(self.layout.num_steps):
            chosen = ids[:, step].reshape(-1)
            self.usage_count[step] += _summed(chosen, times, num_modules)
            summed = weights[:, step] if times is None else weights[:, step] * times[:, None]
            self.usage_weight[step] += np.bincount(chosen, summed.reshape(-1), minlength=num_modules)
        for step, pairs in self._links.items():
            keys = ids[:, step, :, None] * num_modules + ids[:, step + 1, None, :]
            products = shares[:, step, :, None] * shares[:, step + 1, None, :]
            if times is not None:
                products *= times[:, None, None]
            if self.layout.unused_from is None:
                pairs.add(keys.reshape(-1), products.reshape(-1), times)
                continue
            counts = np.rint(even[:, step, :, None] * even[:, step + 1, None, :] * TICKS).astype(np.int64)
            if times is not None:
                counts *= times[:, None, None]
            both = counts > 0
            pairs.add(keys[both], products[both], None, counts[both])

    def flow_rows(self) -> list[tuple[int, int, int, float, float]]:
        """Rows (step, source, target, count, weight)."""
        rows = []
        for step, pairs in self._links.items():
            for key, count, weight in pairs.items():
                source, target = divmod(key, self.layout.num_modules)
                rows.append((step, source, target, count / self._whole, weight))
        return rows

    def flow_arrays(self) -> dict[str, np.ndarray]:
        """``flow_rows`` as column arrays."""
        columns = ("step", "source", "target", "count", "weight")
        parts: dict[str, list[np.ndarray]] = {name: [] for name in columns}
        for step, pairs in self._links.items():
            keys, counts, weights = pairs.arrays()
            source, target = np.divmod(keys, self.layout.num_modules)
            values = (np.full(len(keys), step), source, target, counts / self._whole, weights)
            for name, value in zip(columns, values, strict=True):
                parts[name].append(value)
        return {name: np.concatenate(part) if part else np.zeros(0) for name, part in parts.items()}

    def usage_rows(self) -> list[tuple[int, int, int, float]]:
        """Rows (step, module, count, weight) of the modules chosen at least once."""
        return [
            (int(step), int(module), int(self.usage_count[step, module]), float(self.usage_weight[step, module]))
            for step, module in np.argwhere(self.usage_count > 0)
        ]


def _starts_of_runs(ids: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Indices of tokens (n, S, K) whose decisions differ from those of the previous token."""
    same = np.ones(max(0, len(ids) - 1), dtype=bool)
    for values in (ids, levels):
        flat = values.reshape(len(values), -1)
        same &= (flat[1:] == flat[:-1]).all(axis=1)
    return np.flatnonzero(np.concatenate([np.ones(min(1, len(ids)), dtype=bool), ~same]))


def _summed(keys: np.ndarray, times: np.ndarray | None, length: int) -> np.ndarray:
    """Exact int64 counts of the keys below ``length``, with row i counted ``times[i]`` times."""
    if times is None:
        return np.bincount(keys, minlength=length)
    # Sums of whole numbers in float64 are exact below 2**53.
    return np.bincount(keys, np.repeat(times, len(keys) // len(times)), minlength=length).astype(np.int64)


class _Pairs:
    """Counts and weights by key source·M + target: a dense grid, or a dictionary if M² is too large."""

    def __init__(self, num_modules: int, fractions: bool = False) -> None:
        size = num_modules**2
        self._dense = size <= _LARGEST_GRID and not fractions
        self._count = np.zeros(size if self._dense else 0, dtype=np.int64)
        self._weight = np.zeros(size if self._dense else 0)
        self._sparse: dict[int, list[float]] = {}

    def add(
        self, keys: np.ndarray, weights: np.ndarray, times: np.ndarray | None = None, ticks: np.ndarray | None = None
    ) -> None:
        """``ticks``: what each key counts, 1 by default (sparse counters only)."""
        if self._dense:
            self._count += _summed(keys, times, len(self._count))
            self._weight += np.bincount(keys, weights, minlength=len(self._weight))
            return
        kinds, kind_of = np.unique(keys, return_inverse=True)
        sums = np.bincount(kind_of, weights)
        counts = _summed(kind_of, times, len(kinds))
        if ticks is not None:
            counts = np.zeros(len(kinds), dtype=np.int64)
            np.add.at(counts, kind_of, ticks)
        for key, count, weight in zip(kinds.tolist(), counts.tolist(), sums.tolist(), strict=True):
            row = self._sparse.setdefault(key, [0, 0.0])
            row[0] += count
            row[1] += weight

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Keys in ascending order, counts and weights."""
        if self._dense:
            keys = np.flatnonzero(self._count)
            return keys, self._count[keys], self._weight[keys]
        keys = np.array(sorted(self._sparse), dtype=np.int64)
        rows = np.array([self._sparse[key] for key in keys.tolist()]).reshape(-1, 2)
        return keys, rows[:, 0].astype(np.int64), rows[:, 1]

    def items(self) -> Iterable[tuple[int, int, float]]:
        if self._dense:
            return [(int(k), int(self._count[k]), float(self._weight[k])) for k in np.flatnonzero(self._count)]
        return [(key, int(count), weight) for key, (count, weight) in sorted(self._sparse.items())]
