"""The strongest tokens of a module or a path: those with the largest weight for a module, or the largest product of
each step's largest weight on a path; equal ones stand in reading order.

Those of the more frequent paths of a large run are sealed (``file.schema.STRONGEST``); of other paths the tokens of the
hash sample are compared, or some or all of their own if there are few (``how_compared``).

Shapes: n tokens, P paths, S steps, K slots, V = S·K visits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.topics.paths import Example, drawn_places, excerpts_of, members_at
from tokenpaths.engine.store.ask.topics.samples import columns_at, weights_recorded
from tokenpaths.engine.store.file.columns import MEMBERS, PATHS
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.hash_sample import mix
from tokenpaths.engine.store.file.schema import EXAMPLE_SEED, SAMPLE_TABLE_ROWS, STRONGEST, STRONGEST_EACH, Layout

FEW_TOKENS = 1000
"""on a path: all are read, so that a rare path of a large run needs no sample"""
LOOKED_UP = 32
"""tokens of a path that are looked up one by one, 0.3 ms each (and ten blocks each of a file that is not in memory)"""
MOST_JOINED = 20_000_000
"""tokens of a run up to which ``FEW_TOKENS`` are joined instead, which looks at the row of every token"""
MOST_PACKED = 20_000
"""tokens whose packed weights are read"""
NOT_RECORDED = "The source recorded no weights, so no token is the strongest: these are drawn."
ALL_EQUAL = "All weights are equal here, so no token is the strongest: these are drawn."
NOT_LOOKED = "No examples were asked for."
OF_SAMPLE, OF_ALL, OF_DRAWN = "sample", "all", "drawn"
"""whose tokens of a path are compared: those in the hash sample, all, or at most ``LOOKED_UP``"""


@dataclass(frozen=True)
class Strongest:
    """The strongest tokens, and how many were compared."""

    rows: list[tuple[int, int, float]]
    """sample, token and weight"""
    reason: str | None
    """why these are drawn ones"""
    num_compared: int
    of_tokens: int
    known: Mapping[tuple[int, int], Example] = field(default_factory=dict)
    """excerpts of them that were read already"""

    @classmethod
    def none(cls, of_tokens: int) -> Strongest:
        """What stands in place of examples that nobody asked for."""
        return cls([], NOT_LOOKED, 0, of_tokens)

    @property
    def unread(self) -> list[tuple[int, int]]:
        """Those whose excerpts are not known."""
        return [(sample, token) for sample, token, _ in self.rows if (sample, token) not in self.known]

    def answer(self, excerpts: Mapping[tuple[int, int], Example]) -> dict[str, Any]:
        """As questions answer; ``excerpts`` of at least the unread ones."""
        found = {**self.known, **excerpts}
        num, of_tokens = int(self.num_compared), int(self.of_tokens)
        exact = num == of_tokens and self.reason != NOT_LOOKED
        return {
            "strongest": [found[sample, token] | {"weight": weight} for sample, token, weight in self.rows],
            "strongest_reason": self.reason,
            "compared": {"num_tokens": num, "of_tokens": of_tokens, "exact": exact},
        }

    def shown(self, run: RunFile) -> dict[str, Any]:
        """``answer``, with the excerpts read."""
        return self.answer(excerpts_of(run, self.unread))


def no_order(run: RunFile, low: Any, high: Any) -> str | None:
    """Why tokens have no order by weight; None if they have one."""
    if not weights_recorded(run):
        return NOT_RECORDED
    return ALL_EQUAL if low == high else None


def how_compared(run: RunFile, counts: np.ndarray) -> np.ndarray:
    """(P,) ``OF_SAMPLE``, ``OF_ALL`` or ``OF_DRAWN``, from the number of tokens of each path."""
    num_tokens = run.row["num_tokens"]
    how = np.full(len(counts), OF_SAMPLE, dtype=object)
    if num_tokens > SAMPLE_TABLE_ROWS:
        # Fewer of its tokens than are looked up are in the sample.
        rare = (counts > 0) & (counts * SAMPLE_TABLE_ROWS < LOOKED_UP * num_tokens)
        how[rare] = OF_DRAWN
        if num_tokens <= MOST_JOINED:
            how[(counts > LOOKED_UP) & (counts <= FEW_TOKENS)] = OF_ALL
    return how


def strengths(layout: Layout, levels_nV: np.ndarray, steps: Sequence[int]) -> np.ndarray:
    """(n,) logarithm of the product of each of these steps' largest weight.

    No step of a strong token was in doubt. (All weights of a step multiplied would prefer even splits.)
    """
    top_nS = levels_nV.reshape(len(levels_nV), layout.num_steps, layout.top_k).max(axis=2)
    with np.errstate(divide="ignore"):
        logs = np.log(layout.weights.decode(np.arange(256)))
    strength = np.zeros(len(levels_nV))
    for step in steps:  # one after the other: of any number of tokens the same sum, to the last bit
        strength += logs[top_nS[:, step]]
    return strength


def weights_shown(layout: Layout, strength: np.ndarray, num_steps: int) -> np.ndarray:
    """(n,) geometric means of the weights that ``strengths`` multiplied, as shown."""
    rounded: np.ndarray = np.exp(strength / max(num_steps, 1)).round(layout.weights.digits)
    return rounded


def whole_weights(layout: Layout, strength: np.ndarray) -> np.ndarray:
    """``weights_shown`` of all steps as whole numbers of the last decimal: half the bytes in a file."""
    shown = weights_shown(layout, strength, layout.num_steps)
    whole: np.ndarray = np.rint(shown * 10**layout.weights.digits).astype(np.int32)
    return whole


def strongest_of_path(run: RunFile, rank: int, ribbon: list[list[int]], count: int, limit: int, seed: int) -> Strongest:
    """The ``limit`` strongest tokens of a path. Steps at which the path uses no module do not count."""
    if (sealed := sealed_strongest(run, rank, count, limit)) is not None:
        return sealed
    layout = run.layout
    steps = [s for s, ids in enumerate(ribbon) if not all(run.bank.is_stand_in(s, module) for module in ids)]
    columns = ["weights"] if layout.packed else layout.weight_columns()
    if layout.packed and not weights_recorded(run):
        columns = []
    (how,) = how_compared(run, np.array([count]))
    rows = _rows_of_path(run, rank, columns) if how == OF_DRAWN else None
    if rows is None:
        source, condition = "token_sample", f"path_id = (SELECT path_id FROM {PATHS} WHERE rank = ?)"
        if run.row["num_tokens"] <= SAMPLE_TABLE_ROWS:
            source = "token"
        if how == OF_ALL:
            source, condition = "token", f"rowid IN (SELECT row FROM {MEMBERS} WHERE rank = ?)"
        fetched = Query(f"SELECT {', '.join(('sample', 'token', *columns))} FROM {source} WHERE {condition}", (rank,))
        if layout.packed:
            drawn = f"{fetched.sql} ORDER BY hash(sample, token) LIMIT {MOST_PACKED}"
            rows = run.rows(Query(drawn, fetched.parameters))
    if rows is None:
        arrays = run.arrays(fetched)
        places = np.stack([arrays.pop("sample"), arrays.pop("token")], axis=1).astype(np.int64)
        levels_nV = np.stack(list(arrays.values()), axis=1)
    else:
        places = np.array([row[:2] for row in rows], dtype=np.int64).reshape(-1, 2)
        if not columns:
            levels_nV = np.full((len(rows), layout.visits), layout.even_level, dtype=np.uint8)
        elif layout.packed:
            flat = np.frombuffer(b"".join(row[2] for row in rows), dtype=np.uint8)
            levels_nV = flat.reshape(len(rows), layout.visits)
        else:
            levels_nV = np.array([row[2:] for row in rows], dtype=np.uint8)
    strength = strengths(layout, levels_nV, steps)
    return best(run, places, strength, weights_shown(layout, strength, len(steps)), count, limit, seed)


def _rows_of_path(run: RunFile, rank: int, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """sample, token and ``columns`` of the tokens of a path, at most ``LOOKED_UP`` of them, in reading order."""
    count = int(run.shares.counts_of(np.array([rank]))[0])
    pairs = sorted(members_at(run, {rank: looked_up_places(rank, count)})[rank])
    if not columns:
        return list(pairs)
    return [(*pair, *row) for pair, row in zip(pairs, columns_at(run, pairs, columns), strict=True)]


def looked_up_places(rank: int, count: int) -> np.ndarray:
    """Which of a path's tokens 0 … count − 1 are compared where some are drawn.

    Always the same ones: which are the strongest is no matter of a seed.
    """
    return drawn_places(rank, count, LOOKED_UP, EXAMPLE_SEED)


def sealed_strongest(run: RunFile, rank: int, count: int, limit: int) -> Strongest | None:
    """``strongest_of_path`` from the file; None if it does not hold that. Weights have an order: no seed matters."""
    if limit > STRONGEST_EACH or STRONGEST not in run.tables_there:
        return None
    columns = "place, row, weight, compared, token_id, label, before, text, after"
    found = run.rows(Query(f"SELECT {columns} FROM {STRONGEST} WHERE rank = ? AND place < ?", (rank, limit)))
    if not found:
        return None
    rows: list[tuple[int, int, float]] = []
    known = {}
    for _, row, weight, _, token_id, label, *context in sorted(found, key=lambda one: one[0]):
        sample = int(np.searchsorted(run.first_rows, row, side="right")) - 1
        pair = sample, int(row - run.first_rows[sample])
        rows.append((*pair, weight / 10**run.layout.weights.digits))
        if context[1] is not None:
            head = {"sample": sample, "token": pair[1], "token_id": token_id}
            head["label"] = run.merged_names.get(label, label)
            known[pair] = head | dict(zip(("before", "text", "after"), context, strict=True))
    return Strongest(rows, None, found[0][3], count, known)


def best(
    run: RunFile, places: np.ndarray, strength: np.ndarray, shown: np.ndarray, of_tokens: int, limit: int, seed: int
) -> Strongest:
    """The ``limit`` tokens (n, 2: sample, token) of the largest ``strength``, equal ones in reading order."""
    low, high = (strength.min(), strength.max()) if len(strength) else (0.0, 0.0)
    reason = no_order(run, low, high)
    key = -strength if reason is None else mix(places[:, 0] * 2**31 + places[:, 1], seed)
    order = np.lexsort((places[:, 1], places[:, 0], key))[:limit]
    pairs = zip(places[order].tolist(), shown[order].tolist(), strict=True)
    return Strongest([(sample, token, weight) for (sample, token), weight in pairs], reason, len(places), of_tokens)
