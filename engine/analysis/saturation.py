"""Router saturation over a training: how much of a token's choice at a checkpoint is its choice at the end.

Of one token at one step: |S^ckpt ∩ S^final| / K, S the set of its K modules; averaged over tokens, step by step
(OLMoE's measure; ``METRICS`` 3). Two runs are compared only if they hold the same tokens in the same order. Both
files are read side by side, a stretch of rows at a time, however long they are.

Shapes: n tokens, S steps, K slots, C checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from engine.disk import RUN_SUFFIX
from engine.disk import runs_dir as default_runs_dir
from engine.errors import UserError
from engine.store import Run
from engine.store.filters import Query
from engine.store.flows import columns_sql, ribbons_of

CHUNK_TOKENS = 65_536


@dataclass(frozen=True)
class SeriesRun:
    """A run's place in a training."""

    run: str
    file: Path
    series: str | None
    """None: a run that belongs to no series"""
    iteration: int | None
    num_tokens: int


@dataclass(frozen=True)
class Checkpoint:
    """How settled the routing was at one checkpoint."""

    run: str
    iteration: int | None
    steps: list[float]
    """(S,) share of the final choice that is chosen already"""
    mean: float


@dataclass(frozen=True)
class Saturation:
    """Saturation of the checkpoints of one training against the last of them."""

    final: str
    num_tokens: int
    compared_by: str
    """``token ids``, or ``lengths of the samples`` where the runs hold no ids"""
    chance: list[float]
    """(S,) K/M: what two unrelated even routers would share"""
    checkpoints: list[Checkpoint] = field(default_factory=list)
    """in order of iteration; the last is the final one, 1 by definition"""

    def rows(self) -> list[dict[str, Any]]:
        """One row for each checkpoint and step: run, iteration, step, saturation, chance."""
        return [
            {"run": c.run, "iteration": c.iteration, "step": step, "saturation": value, "chance": self.chance[step]}
            for c in self.checkpoints
            for step, value in enumerate(c.steps)
        ]


def shared(
    one: Integer[np.ndarray, "n S K"], other: Integer[np.ndarray, "n S K"]
) -> Integer[np.ndarray, " S"]:
    """Σ over tokens of |S ∩ S'| at each step; the ids of a token's step are distinct, their order does not matter."""
    count_S = np.zeros(one.shape[1], dtype=np.int64)
    for slot in range(one.shape[2]):
        count_S += (one == other[:, :, slot : slot + 1]).sum(axis=(0, 2))
    return count_S


def naive_shared(one: Integer[np.ndarray, "n S K"], other: Integer[np.ndarray, "n S K"]) -> Float[np.ndarray, " S"]:
    """The mean |S ∩ S'| / K of each step, token by token with sets: what the streamed answer must equal."""
    num_tokens, num_steps, top_k = one.shape
    total = np.zeros(num_steps)
    for token in range(num_tokens):
        for step in range(num_steps):
            total[step] += len(set(one[token, step].tolist()) & set(other[token, step].tolist())) / top_k
    return total / num_tokens


def runs(series: str | None = None, *, runs_dir: Path | str | None = None) -> list[SeriesRun]:
    """The runs of a folder that can be read, or those of one series in order of iteration.

    Raises:
        UserError: no run of the folder belongs to ``series``; the sentence lists the series that there are.
    """
    folder = default_runs_dir() if runs_dir is None else Path(runs_dir)
    found = []
    for file in sorted(folder.glob(f"*{RUN_SUFFIX}")) if folder.is_dir() else []:
        try:
            with Run.open(file) as run:
                found.append(_place(run))
        except UserError:
            continue  # list_runs says what is wrong with it
    if series is None:
        return found
    chosen = [row for row in found if row.series == series]
    if not chosen:
        known = ", ".join(sorted({row.series for row in found if row.series})) or "none yet"
        raise UserError(f"no run belongs to the series {series[:60]!r}; there are: {known}", field="series")
    return sorted(chosen, key=lambda row: (row.iteration or 0, row.run))


def saturation(
    files: Sequence[Path | str] = (), *, series: str | None = None, runs_dir: Path | str | None = None
) -> Saturation:
    """Saturation of the given run files, or of all runs of a series, against the final one of them.

    The final one is that of the highest iteration, or the last given where the runs belong to no series.

    Raises:
        UserError: fewer than two runs, runs over different tokens, or of different steps and slots.
    """
    if series is not None:
        files = [row.file for row in runs(series, runs_dir=runs_dir)]
    if len(files) < 2:
        raise UserError(f"{len(files)} run given: saturation compares a checkpoint with the final one, so give two or "
                        "more", field="files")  # fmt: skip
    with ExitStack() as opened:
        checkpoints = [opened.enter_context(Run.open(file)) for file in files]
        places = [_place(run) for run in checkpoints]
        names = {place.series for place in places}
        if len(names) > 1:
            raise UserError(f"the runs belong to different series ({', '.join(sorted(map(str, names)))}): give those "
                            "of one training", field="files")  # fmt: skip
        if names != {None}:
            order = sorted(range(len(places)), key=lambda i: (places[i].iteration or 0, i))
            checkpoints, places = [checkpoints[i] for i in order], [places[i] for i in order]
        return _against_the_last(checkpoints, places)


def _against_the_last(checkpoints: Sequence[Run], places: Sequence[SeriesRun]) -> Saturation:
    final = checkpoints[-1]
    for run in checkpoints[:-1]:
        _check_comparable(run, final)
    with_ids = all("token_id" in run.token_columns for run in checkpoints)
    offered_S = final.bank.available.sum(axis=1)
    top_k, num_tokens = final.layout.top_k, int(final.row["num_tokens"])
    answer = Saturation(
        final.run_id, num_tokens, "token ids" if with_ids and _knows_ids(final) else "lengths of the samples",
        [float(top_k / offered) for offered in offered_S],
    )  # fmt: skip
    totals = np.zeros((len(checkpoints), final.layout.num_steps), dtype=np.int64)
    for first in range(0, num_tokens, CHUNK_TOKENS):
        columns, ids_nSK = _stretch(final, first)
        for place, run in enumerate(checkpoints[:-1]):
            own_columns, own_ids_nSK = _stretch(run, first)
            _check_same_tokens(run, own_columns, final, columns)
            totals[place] += shared(own_ids_nSK, ids_nSK)
        totals[-1] += len(ids_nSK) * top_k
    for run, place, total_S in zip(checkpoints, places, totals, strict=True):
        share_S = total_S / (num_tokens * top_k)
        answer.checkpoints.append(
            Checkpoint(run.run_id, place.iteration, [float(share) for share in share_S], float(share_S.mean()))
        )
    return answer


def _place(run: Run) -> SeriesRun:
    given = json.loads(run.row["config"]).get("series")
    given = given if isinstance(given, dict) else {}
    name, iteration = given.get("name"), given.get("iteration")
    return SeriesRun(
        run.run_id, run.file, name if isinstance(name, str) else None,
        iteration if isinstance(iteration, int) else None, int(run.row["num_tokens"]),
    )  # fmt: skip


def _check_comparable(run: Run, final: Run) -> None:
    for name, words in (("num_steps", "steps"), ("num_modules", "modules"), ("top_k", "slots"),
                        ("num_tokens", "tokens"), ("num_samples", "samples")):  # fmt: skip
        if run.row[name] != final.row[name]:
            raise UserError(
                f"run {run.run_id!r} has {run.row[name]:,} {words}, {final.run_id!r} has {final.row[name]:,}: "
                "saturation compares the same tokens of one model at different times; record the same texts at each "
                "checkpoint",
                field="files",
            )  # fmt: skip


def _knows_ids(run: Run) -> bool:
    return bool(run.rows(Query("SELECT count(token_id) FROM token"))[0][0])


def _stretch(run: Run, first: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """sample, token and token_id (−1 = unknown) of ``CHUNK_TOKENS`` rows, and their ids (n, S, K)."""
    known = "coalesce(token_id, -1)" if "token_id" in run.token_columns else "-1"
    sql = (f"SELECT sample, token, {known} AS token_id, {columns_sql(run.layout)} FROM token "
           "WHERE rowid >= ? AND rowid < ? ORDER BY rowid")  # fmt: skip
    columns = run.arrays(Query(sql, (first, first + CHUNK_TOKENS)))
    names = columns_sql(run.layout).split(", ")
    parts: list[Any] = [columns.pop(name) for name in names]
    if run.layout.packed:
        parts = [[bytes(blob) for blob in part] for part in parts]
    return columns, ribbons_of(run.layout, parts)[0]


def _check_same_tokens(
    run: Run, own: dict[str, np.ndarray], final: Run, columns: dict[str, np.ndarray]
) -> None:
    for name in ("sample", "token", "token_id"):
        differ = np.flatnonzero(own[name] != columns[name])
        if len(differ):
            row = int(differ[0])
            where = f"sample {int(columns['sample'][row])}, token {int(columns['token'][row])}"
            what = {"token_id": f"has the id {int(own['token_id'][row])} where it has {int(columns['token_id'][row])}"}
            raise UserError(
                f"run {run.run_id!r} is over other tokens than {final.run_id!r}: at {where} of the latter it "
                f"{what.get(name, 'stands elsewhere in its samples')}; record the same texts at each checkpoint",
                field="files",
            )  # fmt: skip
