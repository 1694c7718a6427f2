"""Router saturation over a training: how much of a token's final choice a checkpoint already makes.

Σ |S^ckpt ∩ S^final| / Σ |S^final| over tokens, step by step, S the set of modules that a token uses: with K modules
for every token the mean of |S^ckpt ∩ S^final| / K (Muennighoff et al., “OLMoE: Open Mixture-of-Experts Language
Models”, 2024). Only decisions that are known in both runs count. Runs are compared only if they hold the same tokens in
the same order. All files are read side by side in chunks of rows, so memory does not grow with them. Beyond
``MOST_CHOICES`` a seeded draw of whole samples is read instead and the answer gives an error.

Shapes: n tokens, S steps, K slots, C checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from tokenpaths.engine.analysis.contrast import freedom, student
from tokenpaths.engine.analysis.expert_affinity import common
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import RUN_SUFFIX
from tokenpaths.engine.base.files import runs_dir as default_runs_dir
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.series import series_of
from tokenpaths.engine.store.ask.tables.drawn_tokens import draw_tokens
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import columns_sql

CHUNK_TOKENS = 65_536
DRAWN_TOKENS = 20_000
"""tokens drawn per checkpoint if a series is too long to be read in full"""
MOST_CHOICES = 100_000_000
"""tokens × steps × slots × checkpoints up to which a page reads all tokens: seconds on one core"""


@dataclass(frozen=True)
class SeriesRun:
    """Position of a run within a training."""

    run: str
    file: Path
    series: str | None
    """None: the run belongs to no series"""
    iteration: int | None
    num_tokens: int


@dataclass(frozen=True)
class Checkpoint:
    """Router saturation of one checkpoint."""

    run: str
    iteration: int | None
    steps: list[float | None]
    """(S,) share of the final choices that are already made; None where none is known in both runs"""
    mean: float
    """over the steps that are known"""
    error: float | None = 0.0
    """half the width of the mean's 95 % interval; 0 if all tokens were read, None if one sample was drawn"""


@dataclass(frozen=True)
class Saturation:
    """Saturation of the checkpoints of one training relative to the last one."""

    final: str
    num_tokens: int
    compared_by: str
    """``token ids``, or ``lengths of the samples`` if the runs hold no ids"""
    chance: list[float | None]
    """(S,) E[k]/M, k the modules that a token uses: expected overlap of two unrelated uniform routers; None where the
    final run knows no decision"""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """in order of iteration; the last is the final one, 1 by definition"""
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """runs that cannot be compared with the final one, with the reason"""
    counted: dict[str, Any] = field(default_factory=dict)
    """num_tokens of of_tokens, num_samples of of_samples, exact"""

    def rows(self) -> list[dict[str, Any]]:
        """One row per checkpoint and step: run, iteration, step, saturation, chance."""
        return [
            {"run": c.run, "iteration": c.iteration, "step": step, "saturation": value, "chance": self.chance[step]}
            for c in self.checkpoints
            for step, value in enumerate(c.steps)
        ]


def naive_shared(one: Integer[np.ndarray, "n S K"], other: Integer[np.ndarray, "n S K"]) -> Float[np.ndarray, " S"]:
    """Σ |S ∩ S'| / Σ |S'| of each step, token by token with sets: the reference for the streamed answer.

    An id of −1 is an unused slot, one of −2 a decision that is not known. NaN where no decision is known in both.
    """
    num_tokens, num_steps, _ = one.shape
    shared, used = np.zeros(num_steps), np.zeros(num_steps)
    for token in range(num_tokens):
        for step in range(num_steps):
            here, there = set(one[token, step].tolist()), set(other[token, step].tolist())
            if -2 not in here | there:
                shared[step] += len((here & there) - {-1})
                used[step] += len(there - {-1})
    share: np.ndarray = np.divide(shared, used, out=np.full(num_steps, np.nan), where=used > 0)
    return share


def runs(series: str | None = None, *, runs_dir: Path | str | None = None) -> list[SeriesRun]:
    """The readable runs of a folder, or those of one series in order of iteration.

    Raises:
        UserError: no run of the folder belongs to ``series``; the message lists the series.
    """
    folder = default_runs_dir() if runs_dir is None else Path(runs_dir)
    places = []
    for file in sorted(folder.glob(f"*{RUN_SUFFIX}")) if folder.is_dir() else []:
        try:
            with RunFile.open(file) as run:
                places.append(_place(run))
        except UserError:
            continue  # list_runs says what is wrong with it
    if series is None:
        return places
    chosen = [row for row in places if row.series == series]
    if not chosen:
        names = ", ".join(sorted({row.series for row in places if row.series})) or "none yet"
        raise UserError(f"no run belongs to the series {series[:60]!r}; there are: {names}", field="series")
    return sorted(chosen, key=lambda row: (row.iteration or 0, row.run))


def saturation(
    files: Sequence[Path | str] = (), *, series: str | None = None, runs_dir: Path | str | None = None
) -> Saturation:
    """Exact saturation of the given run files, or of all runs of a series, relative to the final one.

    The final run is that of the highest iteration (of several, the first by name), or the last given one if the runs
    belong to no series.

    Raises:
        UserError: fewer than two runs, runs over different tokens, or of different steps and slots.
    """
    if series is not None:
        files = [row.file for row in runs(series, runs_dir=runs_dir)]
    if len(files) < 2:
        raise UserError(
            f"{len(files)} run given: saturation compares a checkpoint with the final one, so give two or more",
            field="files",
        )
    with ExitStack() as opened:
        checkpoints = [opened.enter_context(RunFile.open(file)) for file in files]
        places = [_place(run) for run in checkpoints]
        names = {place.series for place in places}
        if len(names) > 1:
            raise UserError(
                f"the runs belong to different series ({', '.join(sorted(map(str, names)))}): give those "
                "of one training",
                field="files",
            )
        if names != {None}:
            order = sorted(range(len(places)), key=lambda i: (places[i].iteration or 0, places[i].run))
            last = next(i for i in order if (places[i].iteration or 0) == (places[order[-1]].iteration or 0))
            order = [*(i for i in order if i != last), last]
            checkpoints, places = [checkpoints[i] for i in order], [places[i] for i in order]
        answer = _against_the_last(checkpoints, places, sampled=False)
        if answer.left_out:
            raise UserError(
                f"run {answer.left_out[0][0]!r} {answer.left_out[0][1]}; record the same texts at each checkpoint",
                field="files",
            )
        return answer


def of_series(checkpoints: Sequence[RunFile], run_id: str, most_choices: int = MOST_CHOICES) -> dict[str, Any]:
    """The answer of ``GET /runs/{run}/saturation``: all runs of one series, in any order, against the last of them.

    Exact up to ``most_choices``, else of a seeded draw of samples, each point with its error. Runs that did not route
    the same tokens as the last one are named in ``left_out``, each with a reason; of several runs of one iteration
    the first by name counts.
    """
    by_iteration: dict[int, RunFile] = {}
    left_out: list[tuple[str, str]] = []
    for run in sorted(checkpoints, key=lambda run: run.run_id):
        _, iteration = series_of(run) or ("", 0)
        if run.load_only is not None:
            left_out.append((run.run_id, "holds counts of tokens by expert and no tokens"))
        elif iteration in by_iteration:
            twin = by_iteration[iteration].run_id
            left_out.append((run.run_id, f"is of iteration {iteration:,}, as run {twin!r} is"))
        else:
            by_iteration[iteration] = run
    ordered = [run for _, run in sorted(by_iteration.items())]
    if not ordered:
        checkpoints[0].need_tokens("saturation")
    final = ordered[-1]
    choices = int(final.row["num_tokens"]) * final.layout.visits * len(ordered)
    answer = _against_the_last(ordered, [_place(run) for run in ordered], sampled=choices > most_choices)
    return {
        "run": run_id,
        "series": (series_of(final) or ("", 0))[0],
        "final": final.run_id,
        "baseline": _mean(answer.chance),
        "counted": answer.counted,
        "compared_by": answer.compared_by,
        "points": [
            {"run": c.run, "iteration": c.iteration, "saturation": c.mean, "error": c.error, "by_step": c.steps}
            for c in answer.checkpoints
        ],
        "left_out": [{"run": name, "reason": reason} for name, reason in [*left_out, *answer.left_out]],
    }


@dataclass
class _Kept:
    """Running overlap of one checkpoint with the final one."""

    run: RunFile
    parts: Iterator[_Part]
    shared_S: np.ndarray
    """Σ |S ∩ S^final|"""
    used_S: np.ndarray
    """Σ |S^final| over the same decisions, known in both"""
    of_samples: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    """for a draw: both sums of each sample, (m, S)"""
    different: str | None = None


def _against_the_last(checkpoints: Sequence[RunFile], places: Sequence[SeriesRun], *, sampled: bool) -> Saturation:
    final = checkpoints[-1]
    of_tokens, num_steps = int(final.row["num_tokens"]), final.layout.num_steps
    nothing_S = np.zeros(num_steps, dtype=np.int64)
    tallies = [
        _Kept(run, _parts(run, sampled), nothing_S, nothing_S, different=_misfit(run, final)) for run in checkpoints
    ]
    num_tokens, num_samples, known_S = 0, 0, nothing_S
    for part in _parts(final, sampled):
        num_tokens += len(part.ids_nSK)
        known_S = known_S + part.known_nS.sum(axis=0)
        starts = np.flatnonzero(np.diff(part.places["sample"], prepend=-1))
        num_samples = len(starts)
        for tally in tallies:
            if tally.different is None:
                own = part if tally.run is final else next(tally.parts)
                tally.different = _other_tokens(own, part, final)
            if tally.different is None:
                shared_nS, used_nS = _overlap(own, part)
                tally.shared_S = tally.shared_S + shared_nS.sum(axis=0)
                tally.used_S = tally.used_S + used_nS.sum(axis=0)
                if sampled and num_samples:
                    tally.of_samples.append((np.add.reduceat(shared_nS, starts), np.add.reduceat(used_nS, starts)))
    offered_S = [len(final.bank.offered(step)) for step in range(num_steps)]
    answer = Saturation(
        final.run_id,
        num_tokens,
        "token ids" if _knows_ids(final) else "lengths of the samples",
        _shares(tallies[-1].used_S, known_S * offered_S),
        counted={
            "num_tokens": num_tokens,
            "of_tokens": of_tokens,
            "num_samples": num_samples if sampled else int(final.row["num_samples"]),
            "of_samples": int(final.row["num_samples"]),
            "exact": num_tokens == of_tokens,
        },
    )
    for tally, place in zip(tallies, places, strict=True):
        share_S = _shares(tally.shared_S, tally.used_S)
        mean = _mean(share_S)
        if tally.different is None and mean is None:
            tally.different = f"has no decision that is known in {final.run_id!r} too"
        if tally.different is not None:
            answer.left_out.append((tally.run.run_id, tally.different))
            continue
        assert mean is not None
        error = 0.0 if num_tokens == of_tokens else _error(*tally.of_samples[0], num_tokens / of_tokens)
        answer.checkpoints.append(Checkpoint(tally.run.run_id, place.iteration, share_S, mean, error))
    return answer


def _overlap(own: _Part, final: _Part) -> tuple[np.ndarray, np.ndarray]:
    """|S ∩ S^final| and |S^final| of each token and step (n, S); both 0 where a decision is not known in both."""
    known_nS = own.known_nS & final.known_nS
    used_ids_nSK = np.where(own.used_nSK, own.ids_nSK.astype(np.int64), -1)
    return common(used_ids_nSK, final.ids_nSK) * known_nS, final.used_nSK.sum(axis=2) * known_nS


def _shares(of_S: np.ndarray, whole_S: np.ndarray) -> list[float | None]:
    pairs = zip(of_S.tolist(), whole_S.tolist(), strict=True)
    return [of / whole if whole else None for of, whole in pairs]


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return float(np.mean(known)) if known else None


def _error(shared_mS: np.ndarray, used_mS: np.ndarray, drawn: float) -> float | None:
    """Half the 95 % interval of the mean over steps of Σ shared / Σ used over m drawn samples, which hold the share
    ``drawn`` of all tokens.

    The usual estimate for a ratio over whole clusters (Cochran, *Sampling Techniques*, 2.11): tokens of one sample are
    alike, so it is the samples that count; Student's quantile takes as many as the long ones leave effective.
    """
    count, total_S = len(shared_mS), used_mS.sum(axis=0)
    if count < 2:
        return None
    known = total_S > 0
    residual_mS = (shared_mS - shared_mS.sum(axis=0) / np.maximum(total_S, 1) * used_mS)[:, known] / total_S[known]
    variance = (1 - drawn) * count / (count - 1) * float((residual_mS.mean(axis=1) ** 2).sum())
    return student(freedom(used_mS.sum(axis=1))) * float(max(0.0, variance) ** 0.5)


def _place(run: RunFile) -> SeriesRun:
    name, iteration = series_of(run) or (None, None)
    return SeriesRun(run.run_id, run.file, name, iteration, int(run.row["num_tokens"] or 0))


def _misfit(run: RunFile, final: RunFile) -> str | None:
    """Why a run cannot be compared with the final one; None: it can."""
    for one in (run, final):
        one.need_tokens("saturation")
    for name, noun in (
        ("num_steps", "steps"),
        ("num_modules", "modules"),
        ("top_k", "slots"),
        ("num_tokens", "tokens"),
        ("num_samples", "samples"),
    ):
        own, last = (one.num_modules if name == "num_modules" else one.row[name] for one in (run, final))
        if own != last:
            return (
                f"has {own:,} {noun}, {final.run_id!r} has {last:,}: saturation compares the same tokens of one model "
                "at different times"
            )
    return None


def _knows_ids(run: RunFile) -> bool:
    return "token_id" in run.token_columns and bool(run.rows(Query("SELECT count(token_id) FROM token"))[0][0])


@dataclass(frozen=True)
class _Part:
    """Some tokens of a run, in reading order."""

    places: dict[str, np.ndarray]
    """sample, token and token_id (−1 = unknown)"""
    ids_nSK: np.ndarray
    used_nSK: np.ndarray
    """which slots hold a module"""
    known_nS: np.ndarray
    """which decisions are known"""


def _part(run: RunFile, places: dict[str, np.ndarray], ids_nSK: np.ndarray) -> _Part:
    return _Part(places, ids_nSK, run.bank.used(ids_nSK), ~run.bank.unknown(ids_nSK))


def _parts(run: RunFile, sampled: bool) -> Iterator[_Part]:
    """All tokens, a range of rows at a time, or those of a seeded draw of samples as one part."""
    if sampled:
        drawn = draw_tokens(run, most=DRAWN_TOKENS)
        places = {"sample": drawn.samples_n, "token": drawn.tokens_n, "token_id": drawn.token_ids_n}
        yield _part(run, places, drawn.ids_nSK)
        return
    token_id = "coalesce(token_id, -1)" if "token_id" in run.token_columns else "-1"
    sql = (
        f"SELECT sample, token, {token_id} AS token_id, {columns_sql(run.layout)} FROM token "
        "WHERE rowid >= ? AND rowid < ? ORDER BY rowid"
    )
    for first in range(0, int(run.row["num_tokens"]), CHUNK_TOKENS):
        columns = run.arrays(Query(sql, (first, first + CHUNK_TOKENS)))
        ids_nSK = run.taken_ribbons(columns)[0]
        yield _part(run, columns, ids_nSK)


def _other_tokens(own: _Part, part: _Part, final: RunFile) -> str | None:
    """First difference between the tokens of a part and those of the final run; None: they are the same."""
    if len(own.ids_nSK) != len(part.ids_nSK):
        return f"is over other tokens than {final.run_id!r}: its samples have other lengths"
    for name in ("sample", "token", "token_id"):
        differ = np.flatnonzero(own.places[name] != part.places[name])
        if len(differ):
            row = int(differ[0])
            where = f"sample {int(part.places['sample'][row])}, token {int(part.places['token'][row])}"
            ids = int(own.places["token_id"][row]), int(part.places["token_id"][row])
            what = (
                f"has the id {ids[0]} where it has {ids[1]}"
                if name == "token_id"
                else ("stands elsewhere in its samples")
            )
            return f"is over other tokens than {final.run_id!r}: at {where} of the latter it {what}"
    return None
