"""Four questions about the same tokens, asked of the sealed run and of what people would use instead.

pandas, polars (where it is installed) and SQLite hold the tokens as a column for each step; the store answers from its
file as it does for a page. In turn, repeated; milliseconds, medians with quartiles, beside the store.
"""

from __future__ import annotations

import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.runs.synthetic import LABELS, SyntheticRun, batches, write_run
from tokenpaths.engine.store.ask.run import Run

REPEATS = 5
LONG_SECONDS = 5.0
TOP = 1000
ROWS_AT_ONCE = 262_144
NOT_INSTALLED = "not installed"


def compared(spec: SyntheticRun) -> dict[str, Any]:
    """Milliseconds of each question by each of them; None where a tool is not installed."""
    parts = [
        (
            batch.module_ids[:, :, 0].astype(np.uint8),
            np.repeat([LABELS["text"].index(s.label) for s in batch.samples], [s.num_tokens for s in batch.samples]),
        )
        for batch in batches(spec)
    ]
    ids = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts]).astype(np.uint8)
    del parts
    with tempfile.TemporaryDirectory() as folder:
        file = write_run(spec, Path(folder))
        with Run.open(file, time_limit_s=600) as run:
            sides = {
                "store": _store(run),
                "pandas": _pandas(ids, labels),
                "polars": _polars(ids, labels),
                "sqlite": _sqlite(ids, labels, Path(folder) / "tokens.sqlite"),
            }
            found: dict[str, Any] = {"tokens": spec.tokens}
            for question in sides["store"] or {}:
                seconds = in_turn({name: side[question] for name, side in sides.items() if side}, REPEATS)
                found[question] = {
                    name: _quartiles(seconds[name]) if name in seconds else NOT_INSTALLED for name in sides
                }
    return found


def in_turn(variants: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each in turn, a first time left out; one that takes ``LONG_SECONDS`` is asked no second time."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats + 1):
        for name, ask in variants.items():
            if not seconds[name] or seconds[name][0] < LONG_SECONDS:
                started = time.perf_counter()
                ask()
                seconds[name].append(time.perf_counter() - started)
    return {name: times[1:] or times for name, times in seconds.items()}


def _quartiles(seconds: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return {"ms": round(1000 * middle, 2), "q25": round(1000 * low, 2), "q75": round(1000 * high, 2)}


def _store(run: Run) -> dict[str, Callable[[], Any]]:
    label = run.labels[0][1]
    return {
        "rank and frequency": lambda: run.paths(limit=TOP),
        "flow": run.flow,
        "usage": run.usage,
        "flow of a label": lambda: run.flow(label=label),
    }


def _columns(ids: np.ndarray) -> list[str]:
    return [f"m{step}" for step in range(ids.shape[1])]


def _pandas(ids: np.ndarray, labels: np.ndarray) -> dict[str, Callable[[], Any]]:
    import pandas as pd

    names = _columns(ids)
    frame = pd.DataFrame(dict(zip(names, ids.T, strict=True))).assign(label=labels)

    def flow(rows: Any) -> list[Any]:
        return [rows.groupby([a, b]).size() for a, b in zip(names, names[1:], strict=False)]

    return {
        "rank and frequency": lambda: frame.groupby(names).size().nlargest(TOP),
        "flow": lambda: flow(frame),
        "usage": lambda: [frame[name].value_counts() for name in names],
        "flow of a label": lambda: flow(frame[frame["label"] == 0]),
    }


def _polars(ids: np.ndarray, labels: np.ndarray) -> dict[str, Callable[[], Any]] | None:
    try:
        import polars as pl
    except ImportError:
        return None
    names = _columns(ids)
    frame = pl.DataFrame(dict(zip(names, (np.ascontiguousarray(part) for part in ids.T), strict=True)))
    frame = frame.with_columns(label=pl.Series(labels))

    def flow(rows: Any) -> list[Any]:
        return [rows.group_by([a, b]).len() for a, b in zip(names, names[1:], strict=False)]

    return {
        "rank and frequency": lambda: frame.group_by(names).len().top_k(TOP, by="len"),
        "flow": lambda: flow(frame),
        "usage": lambda: [frame[name].value_counts() for name in names],
        "flow of a label": lambda: flow(frame.filter(pl.col("label") == 0)),
    }


def _sqlite(ids: np.ndarray, labels: np.ndarray, file: Path) -> dict[str, Callable[[], Any]]:
    """One table with a row a token; its paths counted as they are asked for."""
    names = _columns(ids)
    con = sqlite3.connect(file)
    con.execute("PRAGMA synchronous = OFF")
    con.execute(f"CREATE TABLE token (label INTEGER, {', '.join(f'{name} INTEGER' for name in names)})")
    marks = ", ".join("?" * (1 + len(names)))
    for start in range(0, len(ids), ROWS_AT_ONCE):
        rows = np.column_stack([labels[start : start + ROWS_AT_ONCE], ids[start : start + ROWS_AT_ONCE]])
        con.executemany(f"INSERT INTO token VALUES ({marks})", rows.tolist())
    con.commit()
    every = ", ".join(names)

    def flow(where: str) -> list[Any]:
        return [
            con.execute(f"SELECT {a}, {b}, count(*) FROM token {where} GROUP BY {a}, {b}").fetchall()
            for a, b in zip(names, names[1:], strict=False)
        ]

    return {
        "rank and frequency": lambda: con.execute(
            f"SELECT {every}, count(*) AS n FROM token GROUP BY {every} ORDER BY n DESC LIMIT {TOP}"
        ).fetchall(),
        "flow": lambda: flow(""),
        "usage": lambda: [
            con.execute(f"SELECT {name}, count(*) FROM token GROUP BY {name}").fetchall() for name in names
        ],
        "flow of a label": lambda: flow("WHERE label = 0"),
    }
