"""TokenTable: the tokens of a run with their paths as arrays, for questions that no summary answers.

Runs of up to ``MOST_TOKENS`` tokens (and ``MOST_BYTES`` of ribbons) are read whole; of larger ones a seeded draw of
whole samples, because tokens of a sample are correlated and intervals resample samples. ``counted`` of each answer
gives the size of the draw and of the run.

Shapes: n tokens in reading order, N samples, P distinct paths in the order of their ranks, S steps, K slots.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.words import Words, coded, surroundings, words_of_tokens
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.path_ribbons import path_ribbons
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.hash_sample import mix
from tokenpaths.engine.store.file.schema import DRAWN_PATHS, DRAWN_TOKENS, DRAWN_WORDS

MOST_TOKENS = 1_000_000
MOST_BYTES = 64 * 2**20
SEED = 0
MOST_COUNTED_BYTES = 32 * 2**20
"""bytes of the cached counts of the choices of all tokens"""
CACHED_RUNS = 3
"""number of runs whose tokens are cached"""


class LazyRibbons:
    """The ribbons of paths, read when they are first asked for: many questions need none, and they are most of the
    bytes."""

    def __init__(self, read: Callable[[], np.ndarray]) -> None:
        self._read = read

    @cached_property
    def of_paths(self) -> np.ndarray:
        """(P, S, K) ids."""
        return self._read()


@dataclass
class TokenTable:
    """Tokens, their paths and their samples; arrays are never modified."""

    run: weakref.ref[RunFile]
    """weak, so that a cached table does not keep a closed run open"""
    columns: dict[str, np.ndarray]
    """(n,): place (row of table ``token``), token, token_id, predicted_id, grid_row, col, region, char_start,
    char_end; −1 where unknown, a column that the run does not have is absent"""
    sample_n: np.ndarray
    """index into the samples below"""
    samples_N: np.ndarray
    """numbers of the samples"""
    label_N: np.ndarray
    """label_id; −1 without a label"""
    path_n: np.ndarray
    """index into the paths below"""
    rank_P: np.ndarray
    compute_P: np.ndarray
    reuse_P: np.ndarray
    ribbons: LazyRibbons
    num_modules: int
    """M of the run: no token need choose its last modules"""
    counted: dict[str, Any]
    known_words: Words | None = None
    """the word of each token, where the file holds it"""
    cache: dict[str, Any] = field(default_factory=dict)
    """derived values of these tokens, cached by other questions"""

    @property
    def ribbon_PSK(self) -> np.ndarray:
        """Ids of the paths."""
        return self.ribbons.of_paths

    @property
    def num_tokens(self) -> int:
        return len(self.path_n)

    @property
    def num_samples(self) -> int:
        return len(self.samples_N)

    def of_samples(self, chosen: np.ndarray) -> TokenTable:
        """The tokens of some samples, given by ascending indices; paths keep their indices."""
        place = np.full(self.num_samples, -1, dtype=np.int32)
        place[chosen] = np.arange(len(chosen), dtype=np.int32)
        keep = place[self.sample_n] >= 0
        counted = {**self.counted, "num_tokens": int(keep.sum()), "num_samples": len(chosen)}
        return replace(
            self,
            columns={name: values[keep] for name, values in self.columns.items()},
            sample_n=place[self.sample_n[keep]],
            samples_N=self.samples_N[chosen],
            label_N=self.label_N[chosen],
            path_n=self.path_n[keep],
            counted={**counted, "exact": counted["num_tokens"] == counted["of_tokens"]},
            known_words=None if self.known_words is None else self.known_words.of(np.flatnonzero(keep)),
            cache={},
        )

    def of_label(self, label_id: int | None) -> TokenTable:
        """The tokens of one label, counted beside all of that label; the table itself without a label."""
        if label_id is None:
            return self
        table = self.of_samples(np.flatnonzero(self.label_N == label_id))
        of = next({"of_samples": row[2], "of_tokens": row[3]} for row in self._open_run.labels if row[0] == label_id)
        return replace(table, counted={**table.counted, **of, "exact": table.num_tokens == of["of_tokens"]})

    def of_tokens(self, places: np.ndarray) -> TokenTable:
        """Some tokens, given by their indices, in that order; samples and paths keep their indices."""
        return replace(
            self,
            columns={name: values[places] for name, values in self.columns.items()},
            sample_n=self.sample_n[places],
            path_n=self.path_n[places],
            counted={**self.counted, "num_tokens": len(places), "exact": len(places) == self.counted["of_tokens"]},
            known_words=None if self.known_words is None else self.known_words.of(places),
            cache={},
        )

    def chosen_at(self, step: int, modules_I: np.ndarray, mask_n: np.ndarray | None = None) -> np.ndarray:
        """(N, I) tokens of each sample that choose each of these modules at ``step``, in any slot; restricted to
        ``mask_n`` (a mask, or indices)."""
        sample_n, path_n = self.sample_n, self.path_n
        if mask_n is not None:
            sample_n, path_n = sample_n[mask_n], path_n[mask_n]
        ids_PK = self.ribbon_PSK[:, step]
        width = len(modules_I)
        place_M = np.full(self.num_modules, -1, dtype=np.int64)
        place_M[modules_I] = np.arange(width)
        total = np.zeros(self.num_samples * width, dtype=np.int64)
        for slot in range(ids_PK.shape[1]):
            few = len(path_n) < len(ids_PK)
            place_n = place_M[ids_PK[path_n, slot]] if few else place_M[ids_PK[:, slot]][path_n]
            here = place_n >= 0
            total += np.bincount(sample_n[here].astype(np.int64) * width + place_n[here], minlength=len(total))
        return total.reshape(self.num_samples, width)

    def others_at(self, step: int, modules_I: np.ndarray, chosen: np.ndarray, hits_NI: np.ndarray) -> np.ndarray:
        """``chosen_at`` of all tokens except ``chosen`` (indices), whose counts are ``hits_NI``.

        The counts of all tokens are cached, unless there are very many modules.
        """
        if 4 * self.num_samples * self.num_modules * self.ribbon_PSK.shape[1] > MOST_COUNTED_BYTES:
            others = np.ones(self.num_tokens, dtype=bool)
            others[chosen] = False
            return self.chosen_at(step, modules_I, others)
        key = f"chosen at {step}"
        if key not in self.cache:
            self.cache[key] = self.chosen_at(step, np.arange(self.num_modules)).astype(np.int32)
        rest_NI: np.ndarray = self.cache[key][:, modules_I] - hits_NI
        return rest_NI

    def weighted_at(self, step: int, path_p: np.ndarray, count_p: np.ndarray) -> np.ndarray:
        """(M,) visits of each module at ``step``, where ``count_p`` tokens take the paths ``path_p`` (indices)."""
        ids_pK = self.ribbon_PSK[path_p, step]
        slots = range(ids_pK.shape[1])
        counts: np.ndarray = np.sum([np.bincount(ids_pK[:, slot], count_p, self.num_modules) for slot in slots], axis=0)
        return counts

    @cached_property
    def tokens_of_path(self) -> np.ndarray:
        """(P,) how many of these tokens take each path."""
        return np.bincount(self.path_n, minlength=len(self.rank_P))

    def visits_at(self, step: int) -> np.ndarray:
        """``weighted_at`` over all these tokens."""
        key = f"visits at {step}"
        if key not in self.cache:
            self.cache[key] = self.weighted_at(step, np.arange(len(self.rank_P)), self.tokens_of_path)
        counts: np.ndarray = self.cache[key]
        return counts

    @cached_property
    def _tokens_of_sample(self) -> np.ndarray:
        return np.bincount(self.sample_n, minlength=self.num_samples)

    def per_sample(self, mask_n: np.ndarray | None = None) -> np.ndarray:
        """(N,) number of tokens of each sample, restricted to ``mask_n`` (a mask, or indices)."""
        if mask_n is None:
            return self._tokens_of_sample
        return np.bincount(self.sample_n[mask_n], minlength=self.num_samples)

    @cached_property
    def has_texts(self) -> bool:
        """Whether tokens have character spans in a text."""
        if self.known_words is not None:
            return True
        return "char_start" in self.columns and bool((self.columns["char_start"] >= 0).any()) and any(self._texts)

    @cached_property
    def words(self) -> Words | None:
        """The word around each token; None if the run has no texts."""
        if self.known_words is not None or not self.has_texts:
            return self.known_words
        start, end = self.columns["char_start"], self.columns["char_end"]
        return words_of_tokens(self._texts, self.sample_n, start, end)

    def words_of(self, places: np.ndarray) -> Words | None:
        """The words around some tokens, given by their indices; reads only the text around them."""
        most = self.counted["exact"] and 4 * len(places) > self.num_tokens
        if not self.has_texts or self.known_words is not None or "words" in self.__dict__ or most:
            return None if self.words is None else self.words.of(places)
        texts, starts, ends = [], [], []
        columns = (self.sample_n, self.columns["char_start"], self.columns["char_end"])
        for sample, start, end in zip(*(values[places].tolist() for values in columns), strict=True):
            low, high = surroundings(self._texts[sample], start, end)
            texts.append(self._texts[sample][low:high])
            starts.append(start - low)
            ends.append(end - low)
        return words_of_tokens(texts, np.arange(len(places)), np.array(starts), np.array(ends))

    @cached_property
    def pieces(self) -> Words | None:
        """The characters of each token; None if the run has neither texts nor a vocabulary."""
        ids_n = self.columns.get("token_id")
        texts = dict(self._rows("SELECT token_id, text FROM token_text"))
        if ids_n is not None and texts and (ids_n >= 0).any():
            ids, codes_n = np.unique(ids_n, return_inverse=True)
            return Words(tuple(texts.get(int(i)) or "" for i in ids), codes_n.reshape(-1).astype(np.int64))
        if not self.has_texts:
            return None
        low, high = self.columns["char_start"].tolist(), self.columns["char_end"].tolist()
        return coded([self._texts[s][a:b] for s, a, b in zip(self.sample_n.tolist(), low, high, strict=True)])

    @cached_property
    def _texts(self) -> list[str]:
        numbers = self.samples_N.tolist()
        drawn = len(numbers) < self._open_run.num_samples()
        only = "AND sample IN (SELECT unnest(?))" if drawn else ""
        sql = f"SELECT sample, text FROM sample WHERE text IS NOT NULL {only}"
        text_of = dict(self._rows(sql, *([numbers] if drawn else [])))
        return [text_of.get(number, "") for number in numbers]

    @property
    def _open_run(self) -> RunFile:
        run = self.run()
        assert run is not None, "asked after its run was let go of"
        return run

    def _rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self._open_run.rows(Query(sql, parameters))


_TABLES: weakref.WeakKeyDictionary[RunFile, TokenTable] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()


def tokens_of(run: RunFile) -> TokenTable:
    """The tokens of ``run``, cached while it is open and recently used."""
    with _LOCK:
        table = _TABLES.pop(run, None)
        if table is not None:
            _TABLES[run] = table
            return table
    # Read without the lock: two that ask at once both read, which is harmless.
    table = sealed_token_table(run) or read_token_table(run)
    with _LOCK:
        while len(_TABLES) >= CACHED_RUNS:
            _TABLES.pop(next(iter(_TABLES)))
        _TABLES[run] = table
    return table


def most_tokens(run: RunFile) -> int:
    """Number of tokens of a run that are read into memory."""
    return min(MOST_TOKENS, MOST_BYTES // (run.layout.visits * run.layout.id_dtype.itemsize))


def known_token_table(run: RunFile) -> TokenTable | None:
    """For a run too large for memory, the tokens of ``known_token``; otherwise None."""
    if run.row["num_tokens"] <= most_tokens(run):
        return None
    condition = Query("rowid IN (SELECT place FROM known_token)")
    rows = run.arrays(Query("SELECT sample, num_tokens, coalesce(label_id, -1) AS label FROM sample ORDER BY sample"))
    return _gathered(run, condition, {name: values.astype(np.int64) for name, values in rows.items()}, None)


def read_token_table(run: RunFile, most: int | None = None) -> TokenTable:
    """All tokens, or those of a seeded draw of samples with about ``most`` tokens at most."""
    most = most_tokens(run) if most is None else most
    rows = run.arrays(Query("SELECT sample, num_tokens, coalesce(label_id, -1) AS label FROM sample ORDER BY sample"))
    samples_N, sizes = rows["sample"].astype(np.int64), rows["num_tokens"].astype(np.int64)
    chosen, condition = np.arange(len(samples_N)), Query("true")
    if sizes.sum() > most:
        order = np.argsort(mix(samples_N, SEED), kind="stable")
        # A sample longer than all that may be read is read from its beginning.
        chosen = np.sort(order[: int(np.searchsorted(np.cumsum(np.minimum(sizes[order], most)), most)) + 1])
        condition = Query("token < ? AND sample IN (SELECT unnest(?))", (most, samples_N[chosen].tolist()))
    return _gathered(run, condition, {name: values.astype(np.int64) for name, values in rows.items()}, chosen)


def sealed_token_table(run: RunFile) -> TokenTable | None:
    """``read_token_table`` of a run whose file holds the drawn tokens together; None for other runs."""
    if DRAWN_TOKENS not in run.tables_there:
        return None
    rows = run.arrays(Query("SELECT sample, coalesce(label_id, -1) AS label FROM sample ORDER BY sample"))
    # By their full names: where labels are merged the others are views, which have no rowid.
    columns = run.arrays(Query(f"SELECT * FROM r.main.{DRAWN_TOKENS} ORDER BY rowid"))
    paths = run.arrays(Query(f"SELECT * FROM r.main.{DRAWN_PATHS} ORDER BY rowid"))
    names = tuple(name for (name,) in run.rows(Query(f"SELECT name FROM r.main.{DRAWN_WORDS} ORDER BY rowid")))
    layout, path_n = run.layout, columns.pop("path")
    words = Words(names, columns.pop("word"), columns.pop("glued")) if names else None
    numbers, first, sample_n, sizes = np.unique(
        columns.pop("sample"), return_index=True, return_inverse=True, return_counts=True
    )
    token_n = np.arange(len(path_n)) - np.repeat(first, sizes)
    columns |= {"place": run.first_rows[numbers][sample_n] + token_n, "token": token_n.astype(np.int32)}
    if "char_end" in columns:
        columns["char_end"] += columns["char_start"]
    ribbons = np.frombuffer(b"".join(paths["ribbon"]), dtype=layout.id_dtype)
    ribbon_PSK = ribbons.reshape(-1, layout.num_steps, layout.top_k)
    return TokenTable(
        run=weakref.ref(run),
        sample_n=sample_n.astype(np.int32),
        columns=columns,
        samples_N=numbers.astype(np.int64),
        label_N=rows["label"][np.searchsorted(rows["sample"], numbers)].astype(np.int64),
        path_n=path_n,
        rank_P=paths["rank"],
        compute_P=paths["compute"],
        reuse_P=paths["reuse"],
        ribbons=LazyRibbons(lambda: ribbon_PSK),
        num_modules=layout.num_modules,
        counted={
            "num_tokens": len(path_n),
            "of_tokens": int(run.row["num_tokens"]),
            "num_samples": len(numbers),
            "of_samples": int(run.row["num_samples"]),
            "exact": len(path_n) == run.row["num_tokens"],
        },
        known_words=words,
    )


def _gathered(run: RunFile, condition: Query, rows: dict[str, np.ndarray], chosen: np.ndarray | None) -> TokenTable:
    """The tokens that meet ``condition``, which selects all tokens of the ``chosen`` among the samples in ``rows``;
    ``chosen`` is None: some tokens of some samples."""
    samples_N, sizes = rows["sample"], rows["num_tokens"]
    tokens = _tokens(run, condition)
    if chosen is None:
        chosen = np.searchsorted(samples_N, np.unique(tokens["sample"]))
    path_ids, path_n = _compact(tokens.pop("path_id"))
    condition_of_paths = Query("true")
    if len(path_ids) < run.row["num_paths"]:
        condition_of_paths = Query(
            f"path_id IN (SELECT path_id FROM token WHERE {condition.sql})", condition.parameters
        )
    rank_P, compute_P, reuse_P, order = _paths(run, path_ids, condition_of_paths)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    numbers = samples_N[chosen]
    return TokenTable(
        run=weakref.ref(run),
        sample_n=np.searchsorted(numbers, tokens.pop("sample")).astype(np.int32),
        columns=tokens,
        samples_N=numbers,
        label_N=rows["label"][chosen],
        path_n=place[path_n].astype(np.int32),
        rank_P=rank_P,
        compute_P=compute_P,
        reuse_P=reuse_P,
        ribbons=LazyRibbons(partial(_ribbons, weakref.ref(run), condition_of_paths)),
        num_modules=run.layout.num_modules,
        counted={
            "num_tokens": len(path_n),
            "of_tokens": int(sizes.sum()),
            "num_samples": len(numbers),
            "of_samples": len(samples_N),
            "exact": len(path_n) == int(sizes.sum()),
        },
    )


def _compact(path_ids_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct path ids, ascending, and the index of each token's; path ids are small integers."""
    present = np.flatnonzero(np.bincount(path_ids_n))
    index = np.zeros(int(present[-1]) + 1, dtype=np.int32)
    index[present] = np.arange(len(present))
    return present, index[path_ids_n]


def _tokens(run: RunFile, condition: Query) -> dict[str, np.ndarray]:
    names = ("token_id", "predicted_id", "col", "region", "char_start", "char_end")
    fields = [f"coalesce({name}::INTEGER, -1) AS {name}" for name in names if name in run.token_columns]
    if "row" in run.token_columns:
        fields.append("coalesce(row::INTEGER, -1) AS grid_row")
    columns = ", ".join(["rowid::BIGINT AS place", "sample", "token", "path_id", *fields])
    return run.arrays(Query(f"SELECT {columns} FROM token WHERE {condition.sql} ORDER BY rowid", condition.parameters))


def _paths(run: RunFile, path_ids: np.ndarray, condition: Query) -> tuple[np.ndarray, ...]:
    """rank, compute and reuse, ordered by rank, and the order that maps ``path_ids`` to them."""
    sql = f"SELECT path_id, rank, compute, reuse FROM {PATHS} WHERE {condition.sql}"
    columns = run.arrays(Query(sql, condition.parameters))
    by_rank = np.argsort(columns["rank"])
    path_id, rank, compute, reuse = (values[by_rank] for values in columns.values())
    return rank, compute, reuse, np.searchsorted(path_ids, path_id)


def _ribbons(run: weakref.ref[RunFile], condition: Query) -> np.ndarray:
    """(P, S, K) of the paths of ``condition``, ordered by rank."""
    open_run = run()
    assert open_run is not None, "asked after its run was let go of"
    parts = list(path_ribbons(open_run, "rank", condition))
    by_rank = np.argsort(np.concatenate([part["rank"] for part, _ in parts]))
    ribbons_PV = np.concatenate([ribbons for _, ribbons in parts])[by_rank]
    return np.asarray(ribbons_PV.reshape(-1, open_run.layout.num_steps, open_run.layout.top_k))
