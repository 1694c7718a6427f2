"""The answers of a run as data frames: the same questions, the same numbers, a pandas frame instead of a dict.

    run = tokenpaths.Run.open("my-run.duckdb")
    run.frames.paths()                  # every path: all pages, one row each
    run.frames.usage(label="code")      # the arguments are those of run.usage
    run.frames.table("token")           # a whole table, as ``export`` gives it
    polars.from_arrow(run.frames.arrow("token"))  # for those who prefer it

The numbers that stand once in an answer (``num_tokens``, ``baseline`` …) are in ``frame.attrs``. A missing whole
number makes its column ``Int64``; any other missing value is NaN or None, as pandas has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenpaths.engine.store.ask.export import check_export, table_batches
from tokenpaths.engine.store.ask.run_file import RunFile

if TYPE_CHECKING:
    import pandas as pd

PAGE = 1000
KINDS = ("observed", "untrained", "independent")
Rows = Iterable[Mapping[str, Any]]


class Frames:
    """Questions to one run whose answers are ``pandas.DataFrame``; errors are those of the method of ``Run``.

    Args:
        run: an opened ``Run``, whose methods check their arguments.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    # -- the run -------------------------------------------------------------------------------
    def card(self) -> pd.DataFrame:
        """One row: what a list of runs shows."""
        return frame([self._run.card()])

    def labels(self) -> pd.DataFrame:
        """label, num_samples, num_tokens."""
        return self._list(self._run.info(), "labels")

    def modules(self) -> pd.DataFrame:
        """step, module, name, kind, num_params, flops_per_token."""
        return self._list(self._run.info(), "modules")

    def associations(self) -> pd.DataFrame:
        """What paths know, as it was worked out at sealing: attribute, nmi, null_mean, null_std, p_value …"""
        return self._list(self._run.info(), "associations")

    def tables(self) -> pd.DataFrame:
        """The tables that the run holds: table, num_rows, what."""
        return self._list(self._run.tables(), "tables")

    def table(self, name: str) -> pd.DataFrame:
        """A whole table, with the columns of ``Run.export``."""
        return self.arrow(name).to_pandas()

    def arrow(self, name: str) -> pa.Table:
        """A whole table as Arrow: for polars (``polars.from_arrow``), DuckDB and others, without a copy."""
        check_export(self._run, name, "arrow")
        return pa.concat_tables(list(table_batches(self._run, name)))

    # -- flow and use --------------------------------------------------------------------------
    def flow(self, **question: Any) -> pd.DataFrame:
        """Links: step, source, target, count, weight, share; arguments of ``Run.flow``."""
        return self._list(self._run.flow(**question), "links")

    def nodes(self, **question: Any) -> pd.DataFrame:
        """The circles of the flow: step, module, name, kind, count, share; arguments of ``Run.flow``."""
        return self._list(self._run.flow(**question), "nodes")

    def usage(self, label: str | None = None) -> pd.DataFrame:
        """A row for each module at each step: count, share, utilisation, weight."""
        return self._list(self._run.usage(label), "usage")

    def load(self, label: str | None = None) -> pd.DataFrame:
        """A row for each step: effective_top_k, load_entropy, max_violation, gate_entropy, dead …"""
        return self._list(self._run.usage(label), "steps")

    # -- paths ---------------------------------------------------------------------------------
    def paths(self, *, limit: int | None = None, **question: Any) -> pd.DataFrame:
        """Every path (or the first ``limit``): rank, ribbon, count, share, cdf …; arguments of ``Run.paths``."""
        return self._pages("paths", "paths", limit, question)

    def fit(self) -> pd.DataFrame:
        """A row for the run and for each null: num_paths, num_tokens, effective_paths, slope, r2."""
        return self._by_kind(self._run.fit(), leave="points")

    def fit_points(self) -> pd.DataFrame:
        """The points of the rank–frequency curves: kind, rank, count, share …"""
        return self._points(self._run.fit(), "points")

    def law(self, draws: int = 100, seed: int = 0) -> pd.DataFrame:
        """A row for the run and for each null: alpha, x_min, ks, p_value, lognormal_ratio …"""
        return self._by_kind(self._run.law(draws, seed), leave="curve")

    def law_curve(self) -> pd.DataFrame:
        """The fitted laws as curves: kind, rank, share."""
        return self._points(self._run.law(0), "curve")

    def examples(self, rank: int, limit: int = 60, seed: int = 0) -> pd.DataFrame:
        """Tokens or patches on one path, with their context."""
        return self._list(self._run.examples(rank, limit, seed), "examples")

    def knowledge(self) -> pd.DataFrame:
        """What paths know: property, nmi, null_mean, null_low, null_high, p_value …"""
        return self._list(self._run.knowledge(), "properties")

    def specific(self, of: str = "path", **question: Any) -> pd.DataFrame:
        """Paths or modules most specific to a label: share, lift and its interval; arguments of ``Run.specific``."""
        return self._list(self._run.specific(of, **question), "rows")

    def search(self, **question: Any) -> pd.DataFrame:
        """The paths that the found tokens take; arguments of ``Run.search_tokens``."""
        return self._list(self._run.search_tokens(**question), "paths")

    def search_modules(self, **question: Any) -> pd.DataFrame:
        """The modules that the found tokens choose, beside all others."""
        return self._list(self._run.search_tokens(**question), "modules")

    def search_examples(self, **question: Any) -> pd.DataFrame:
        """Some of the found tokens in their context."""
        return self._list(self._run.search_tokens(**question), "examples")

    # -- samples and tokens --------------------------------------------------------------------
    def samples(self, *, limit: int | None = None, **question: Any) -> pd.DataFrame:
        """Every sample (or the first ``limit``); arguments of ``Run.samples``."""
        return self._pages("samples", "samples", limit, question)

    def tokens(self, sample: int) -> pd.DataFrame:
        """Every token of one sample: ribbon, weights, rank, cdf, compute, reuse, its place."""
        return self._list(self._run.sample(sample), "tokens")

    def distribution(self, measure: str, per: str = "sample", bins: int = 40, label: str | None = None) -> pd.DataFrame:
        """The bars of a histogram: lo, hi, count; mean, std and quantiles are in ``attrs``."""
        return self._list(self._run.distribution(measure, per, bins, label), "bins")

    def by_label(self, measure: str, per: str = "sample") -> pd.DataFrame:
        """The mean of a measure for each label: label, num, mean."""
        return self._list(self._run.distribution(measure, per), "by_label")

    def similar_samples(self, sample: int, *, limit: int = 12) -> pd.DataFrame:
        """Samples whose tokens load the modules most alike, with their distance."""
        return self._list(self._run.similar_samples(sample, limit=limit), "similar")

    def similar_paths(self, sample: int, token: int, **question: Any) -> pd.DataFrame:
        """The ribbons nearest to a token's; arguments of ``Run.similar_tokens``."""
        return self._list(self._run.similar_tokens(sample, token, **question), "paths")

    def map(self, method: str = "pca", *, limit: int = 2000) -> pd.DataFrame:
        """Samples on the plane of their path profiles: sample, x, y, label …"""
        return self._list(self._run.map(method, limit=limit), "points")

    # -- experts -------------------------------------------------------------------------------
    def specialisation(self, of: str = "label", step: int = 0, **question: Any) -> pd.DataFrame:
        """A row for each preference of each module of a step: module, name, and label or word with its share."""
        answer = self._run.specialisation(of, step, **question)
        rows = [
            {"step": row["step"], "module": row["module"], "name": row["name"], **preference}
            for row in answer["modules"]
            for preference in row["prefers"]
        ]
        return frame(rows, answer)

    def co_activation(self, step: int = 0, **question: Any) -> pd.DataFrame:
        """Pairs chosen together: module, other, count, share (N_ij/N_i) and back (N_ij/N_j)."""
        return self._list(self._run.co_activation(step, **question), "pairs")

    def repetition(self, *, label: str | None = None) -> pd.DataFrame:
        """How often neighbouring tokens choose alike, for each step, beside the baselines."""
        return self._list(self._run.repetition(label=label), "steps")

    def soft(self, kind: str, *, label: str | None = None, sample: int | None = None) -> pd.DataFrame:
        """Soft decisions as a long table: a column for each axis with its names, then value and std."""
        answer = self._run.soft(kind, label=label, sample=sample)
        names = [axis["names"] for axis in answer["axes"]]
        places: list[tuple[Any, ...]] = [()]
        for along in names:
            places = [(*place, name) for place in places for name in along]
        values = _flat(answer["values"], len(names))
        stds = _flat(answer["std"], len(names)) if answer["std"] is not None else [None] * len(values)
        columns = [axis["axis"] for axis in answer["axes"]]
        rows = [
            {**dict(zip(columns, place, strict=True)), "value": value, "std": std}
            for place, value, std in zip(places, values, stds, strict=True)
        ]
        return frame(rows, answer)

    # -- two runs ------------------------------------------------------------------------------
    def compare(self, other: RunFile, measure: str = "reuse", **question: Any) -> pd.DataFrame:
        """A row for each pair of equal samples: a, b and its label; arguments of ``Run.compare``."""
        return self._list(self._run.compare(other, measure, **question), "points")

    def effect(self, of: RunFile, **question: Any) -> pd.DataFrame:
        """Links that changed against the unchanged run ``of``: before, after, change."""
        return self._list(self._run.effect(of, **question), "links")

    # -- plumbing ------------------------------------------------------------------------------
    def _list(self, answer: Mapping[str, Any], name: str) -> pd.DataFrame:
        return frame(answer[name], answer)

    def _pages(self, question: str, name: str, limit: int | None, options: Mapping[str, Any]) -> pd.DataFrame:
        """All pages of an answer, or the first ``limit`` rows; a given ``offset`` is where they start."""
        ask, rows, offset = getattr(self._run, question), [], options.get("offset", 0)
        while True:
            page = PAGE if limit is None else min(PAGE, limit - len(rows))
            answer = ask(**{**options, "limit": page, "offset": offset})
            rows += answer[name]
            if answer["next"] is None or len(rows) == limit:
                return frame(rows, answer)
            offset = answer["next"]

    def _by_kind(self, answer: Mapping[str, Any], leave: str) -> pd.DataFrame:
        rows = []
        for kind in KINDS:
            if answer[kind] is not None:
                plain = {name: value for name, value in answer[kind].items() if name != leave}
                beside = plain.pop("lognormal", None) or {}
                rows.append({"kind": kind, **plain, **{f"lognormal_{name}": value for name, value in beside.items()}})
        return frame(rows, answer)

    def _points(self, answer: Mapping[str, Any], name: str) -> pd.DataFrame:
        rows = [{"kind": kind, **point} for kind in KINDS for point in (answer[kind] or {}).get(name, [])]
        return frame(rows, answer)


def frame(rows: Rows, answer: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Rows as a frame; what stands once in ``answer`` goes to ``attrs``."""
    import pandas as pd

    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    made = pd.DataFrame({name: _column([row.get(name) for row in rows]) for name in names}, index=range(len(rows)))
    once = {
        name: value for name, value in (answer or {}).items() if value is None or isinstance(value, str | int | float)
    }
    made.attrs.update(once)
    return made


def _column(values: Sequence[Any]) -> Any:
    """Whole numbers with gaps stay whole numbers."""
    import pandas as pd

    known = [value for value in values if value is not None]
    if known and len(known) < len(values) and all(type(value) is int for value in known):
        return pd.array(list(values), dtype="Int64")
    if known and all(isinstance(value, list | tuple | dict) for value in known):
        return pd.Series(list(values), dtype=object)
    return list(values)


def _flat(values: Any, depth: int) -> list[float]:
    for _ in range(depth - 1):
        values = [value for part in values for value in part]
    return list(values)
