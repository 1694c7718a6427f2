"""Whether tokens of one path look alike: patches in mean colour, words in kind.

Over tokens of whole samples drawn by hash (``MOST_SAMPLES``, ``MOST_TOKENS``). The null exchanges looks between
samples, of pictures patch by patch, of texts as sequences: what the place alone makes alike is in it. The untrained
twin's paths are known for some tokens of the file (``known_token``), so it and the run are measured on those as well.

Shapes: n tokens, N samples, P paths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.association import MOST_ALIKE, Maps, Sequences
from tokenpaths.engine.analysis.contrast import student
from tokenpaths.engine.analysis.patches import patch_colour
from tokenpaths.engine.analysis.path_statistics import PathLikeness
from tokenpaths.engine.analysis.words import CLASSES, word_class
from tokenpaths.engine.store.ask.question import Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.excerpts import finite, nested_ribbon
from tokenpaths.engine.store.ask.tables.patch_kinds import patch_values
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, tokens_of
from tokenpaths.engine.store.ask.topics.knowledge import UNTRAINED
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.hash_sample import mix

MOST_SAMPLES = 1000
MOST_TOKENS = 64_000
SHUFFLES = 99
JACKKNIFE = 20
"""groups of samples that are left out in turn"""
SEED = 0
LEAST_TOKENS = 20
"""of a path that is listed"""
LEAST_SAMPLES = 3
LISTED = 60
FEWEST_OF_TWIN = 500
"""tokens whose untrained path is known, below which the twin is not measured"""


@question(
    "paths/alikeness",
    "work_schema.Alikeness",
    tag="knowledge",
    description="Do tokens of one path look alike? Likeness of patches in colour, of words in kind, beside samples "
    "that exchange their looks place by place, and the untrained twin.\n\nOn up to 1,000 samples drawn by hash.",
    frames={"alikeness": Rows("looks", "How alike tokens of one path are: look, likeness, low, high, null_mean …")},
    sealed=lambda run: [{}],
)
def alikeness(run: RunFile) -> dict[str, Any]:
    """Do tokens of one path look alike? Likeness of patches in mean colour, of words in kind.

    Likeness is 1 − d/D, d the mean squared distance of two tokens on one path but of different samples, D that of any
    two of different samples. ``looks`` has it with a 95 % interval by sample (jackknife), beside ``SHUFFLES`` exchanges
    between samples, the untrained twin's, and that of the most frequent paths.
    """
    table = _drawn(tokens_of(run))
    paths = PathLikeness(table.path_n, table.sample_n, len(table.rank_P))
    twin_n, no_twin = _twin(run, table)
    known = np.flatnonzero(twin_n >= 0)
    answer: dict[str, Any] = {
        "run": run.run_id,
        "counted": table.counted,
        "shuffles": SHUFFLES,
        "shared": None,
        "looks": [],
        "untrained_tokens": 0 if no_twin else len(known),
        "untrained_reason": no_twin,
    }
    if table.num_samples < 2:
        return {**answer, "reason": "one sample alone has nothing to be compared with"}
    exchanged, alike = _exchanges(run, table)
    rows = []
    for look, looks_n in _looks(run, table):
        found = paths.of(looks_n)
        if not np.isfinite(found.value):
            continue
        nulls = [paths.of(looks_n[exchanged(draw)]) for draw in range(SHUFFLES)]
        null = np.array([one.value for one in nulls])
        row: dict[str, Any] = {"look": look, "likeness": found.value, **_interval(paths, looks_n, table.num_samples)}
        row |= {
            "null_mean": float(null.mean()),
            "null_low": float(np.quantile(null, 0.025)),
            "null_high": float(np.quantile(null, 0.975)),
            "p_value": (1 + int((null >= found.value - 1e-12).sum())) / (1 + SHUFFLES) if alike < MOST_ALIKE else None,
            "untrained": None,
            "untrained_low": None,
            "untrained_high": None,
            "trained": None,
        }
        if no_twin is None:
            row |= _beside(table, twin_n, known, looks_n)
        row["paths"] = _paths(run, table, found.by_path, np.array([one.by_path for one in nulls]))
        rows.append(row)
    reason = None if rows else "no two tokens of different samples with a picture or a word are on one path"
    return {**answer, "shared": paths.shared(), "looks": rows, "reason": reason}


def _drawn(table: TokenTable) -> TokenTable:
    """Whole samples drawn by hash."""
    order = np.argsort(mix(table.samples_N.astype(np.uint64), SEED), kind="stable")
    stop = int(np.searchsorted(np.cumsum(table.per_sample()[order]), MOST_TOKENS, side="right"))
    chosen = np.sort(order[: max(2, min(MOST_SAMPLES, stop))])
    return table if len(chosen) == table.num_samples else table.of_samples(chosen)


def _looks(run: RunFile, table: TokenTable) -> Iterator[tuple[str, np.ndarray]]:
    """Name and (n, C) numbers or (n,) codes; only what all tokens have."""
    if run.row["modality"] == "vision":
        colour_nC = patch_values(run, table, patch_colour, 3)
        if np.isfinite(colour_nC).all():
            yield "colour", colour_nC
        return
    words = table.words or table.pieces
    if words is not None:
        class_W = np.array([CLASSES.index(word_class(name)) for name in words.names], dtype=np.int64)
        yield "word_class", class_W[words.codes_n]


def _exchanges(run: RunFile, table: TokenTable) -> tuple[Callable[[int], np.ndarray], float]:
    """A function of the draw's number: (n,) the token whose look each token gets; and the chance that it is its own."""
    place_n = table.columns["token"].astype(np.int64)
    if run.row["modality"] == "vision":
        rows = run.rows(Query("SELECT sample, coalesce(grid_rows, 0), coalesce(grid_cols, 0) FROM sample"))
        grids = {row[0]: row[1:] for row in rows}
        sizes_N = table.per_sample()
        kinds: dict[Any, int] = {}
        kind_N = [
            kinds.setdefault((*grids[int(number)], int(size)), len(kinds))
            for number, size in zip(table.samples_N, sizes_N, strict=True)
        ]
        maps = Maps(
            table.sample_n.astype(np.int64),
            place_n,
            np.arange(table.num_tokens),
            np.cumsum(sizes_N) - sizes_N,
            np.array(kind_N, dtype=np.int64),
        )
        return lambda draw: maps.draw(np.random.default_rng((SEED, draw))), maps.alike()
    turned = Sequences(table.sample_n, place_n)
    return lambda draw: turned.draw(np.random.default_rng((SEED, draw))), 0.0


def _interval(paths: PathLikeness, looks_n: np.ndarray, num_samples: int, names: str = "") -> dict[str, float | None]:
    """95 % interval of a delete-a-group jackknife over samples (Kott 2001)."""
    groups = min(JACKKNIFE, num_samples)
    group_N = np.random.default_rng(SEED).permutation(num_samples) % groups
    left_out = np.array([paths.of(looks_n, (group_N != group).astype(np.float64)).value for group in range(groups)])
    if groups < 2 or not np.isfinite(left_out).all():
        return {f"{names}low": None, f"{names}high": None}
    value = paths.of(looks_n).value
    error = float(np.sqrt((groups - 1) / groups * ((left_out - left_out.mean()) ** 2).sum()))
    half = student(groups - 1) * error
    return {f"{names}low": value - half, f"{names}high": min(1.0, value + half)}


def _twin(run: RunFile, table: TokenTable) -> tuple[np.ndarray, str | None]:
    """(n,) path of the untrained twin, −1 where unknown; and why there is nothing to compare, in words."""
    nothing = np.full(table.num_tokens, -1, dtype=np.int64)
    if run.row["model"].endswith(UNTRAINED):
        return nothing, "this run is an untrained twin itself"
    rows = run.arrays(
        Query("SELECT place, untrained_path AS path FROM known_token WHERE untrained_path IS NOT NULL ORDER BY place")
    )
    if not len(rows["place"]):
        return nothing, "no untrained twin was traced beside this run"
    where = np.minimum(np.searchsorted(rows["place"], table.columns["place"]), len(rows["place"]) - 1)
    twin_n = np.where(rows["place"][where] == table.columns["place"], rows["path"][where].astype(np.int64), -1)
    known = int((twin_n >= 0).sum())
    if known < FEWEST_OF_TWIN:
        return nothing, f"the untrained twin's path is known for {known:,} of these tokens only"
    return twin_n, None


def _beside(table: TokenTable, twin_n: np.ndarray, known: np.ndarray, looks_n: np.ndarray) -> dict[str, Any]:
    """Likeness on the twin's paths and on the run's, of the tokens whose twin's path is known."""
    codes = np.unique(twin_n[known], return_inverse=True)[1].reshape(-1)
    twin = PathLikeness(codes, table.sample_n[known], int(codes.max()) + 1)
    own = PathLikeness(table.path_n[known], table.sample_n[known], len(table.rank_P))
    # Samples without a known token still count as drawn.
    num_samples = int(table.sample_n[known].max()) + 1
    return {
        "untrained": finite(twin.of(looks_n[known]).value),
        **_interval(twin, looks_n[known], num_samples, "untrained_"),
        "trained": finite(own.of(looks_n[known]).value),
    }


def _paths(run: RunFile, table: TokenTable, by_path: np.ndarray, nulls_RP: np.ndarray) -> list[dict[str, Any]]:
    """The most frequent paths with enough tokens, by rank."""
    tokens_P = table.tokens_of_path
    met_P = np.bincount(
        np.unique(table.path_n.astype(np.int64) * table.num_samples + table.sample_n) // table.num_samples,
        minlength=len(tokens_P),
    )
    listed = np.flatnonzero(np.isfinite(by_path) & (tokens_P >= LEAST_TOKENS) & (met_P >= LEAST_SAMPLES))
    listed = listed[np.argsort(table.rank_P[listed], kind="stable")][:LISTED]
    rows = []
    for path in listed.tolist():
        low, high = np.nanquantile(nulls_RP[:, path], (0.025, 0.975))
        rows.append(
            {
                "rank": int(table.rank_P[path]),
                "ribbon": nested_ribbon(table.ribbon_PSK[path].reshape(-1).tolist(), run.layout),
                "num_tokens": int(tokens_P[path]),
                "num_samples": int(met_P[path]),
                "likeness": float(by_path[path]),
                "null_low": float(low),
                "null_high": float(high),
            }
        )
    return rows
