"""Table of performance goals: one row per goal, filled by the benchmarks that measure it.

``GOALS`` defines each row, its goal and its stretch goal; a benchmark returns ``Row(key, ours, …)`` for what it
measured. A ratio is ours over the other's, so less is better, unless the goal says otherwise.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A performance goal."""

    what: str
    goal: float
    stretch: float
    unit: str = "×"
    more_is_better: bool = False

    def met(self, value: float) -> str:
        """ "stretch", "yes" or "no"."""
        sign = -1 if self.more_is_better else 1
        if sign * value <= sign * self.stretch:
            return "stretch"
        return "yes" if sign * value <= sign * self.goal else "no"


GOALS = {
    "forward": Goal("routed forward / dense, fp32 CPU, batch ≥ 16, trained and skewed routing", 1.10, 0.95),
    "top2": Goal("the same, top-2 with skip at matched active FLOPs", 1.15, 1.0),
    "one_sample": Goal("one sample (the page's upload) / dense", 2.5, 1.7),
    "training": Goal("training step / dense, fp32", 1.3, 1.1),
    "training_memory": Goal("peak memory of a training step / dense", 1.4, 1.1),
    "naive": Goal("faster than the naive loop, skewed routing", 3.0, 5.0, more_is_better=True),
    "gpu_forward": Goal("GPU bf16: routed forward / dense, no host synchronisation", 1.3, 1.0),
    "gpu_training": Goal("GPU bf16: training step / dense", 1.5, 1.2),
    "recording": Goal("recording / plain forward", 1.01, 1.003),
    "recording_store": Goal("recording, written by DuckDB / plain forward", 1.02, 1.003),
    "bytes_per_token": Goal("bytes a token, k = 1, 10 steps, weights kept", 20, 13, "bytes"),
    "ingest": Goal("ingest / raw disk write", 0.25, 0.5, more_is_better=True),
    "query_warm": Goal("slowest query of a page at 100 M tokens, p95 warm", 50, 10, "ms"),
    "query_cold": Goal("slowest query of a page but words at 100 M tokens, p95 cold", 150, 50, "ms"),
    "word_cold": Goal("tokens with a word at 100 M tokens, p95 cold", 1000, 250, "ms"),
    "filter_sampled": Goal("free filter at 100 M tokens, sampled, with an error bar", 100, 40, "ms"),
    "filter_exact": Goal("free filter at 100 M tokens, exact", 5, 2, "s"),
    "page_beside_trace": Goal("a page's p95 while a trace writes / idle", 2.0, 1.2),
    "dream": Goal("dream, CPU fp32, 224×224, batch of 8, per image and iteration", 130, 90, "ms"),
    "page_cold": Goal("page: time to picture, cold, 100 M-token run, real browser", 3, 1.5, "s"),
}


@dataclass(frozen=True)
class Row:
    """A benchmark's result for one goal, in the goal's unit."""

    key: str
    ours: float | None
    """None: not measured; ``note`` has the reason"""
    spread: tuple[float, float] | None = None
    """quartiles of ``ours``"""
    peers: dict[str, float | str] = field(default_factory=dict)
    """results of other tools in the same unit, or the reason why they are missing"""
    cells: dict[str, float] = field(default_factory=dict)
    """all values if ``ours`` is the worst of several sizes or routings"""
    times: dict[str, dict[str, float]] = field(default_factory=dict)
    """several values for each of many items (queries), by column; a table of its own in the documents"""
    note: str = ""
    missing: str = ""
    """sizes of the goal that were not measured yet"""
    part: str = ""
    """part of the kept results that it was read from; "": the one that is called like the row"""
    command: str = ""
    machine: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        if self.key not in GOALS:
            raise ValueError(f"no row is called {self.key!r}; there are: {', '.join(GOALS)}")

    @property
    def goal(self) -> Goal:
        return GOALS[self.key]

    @property
    def met(self) -> str:
        if self.ours is None:
            return "–"
        met = self.goal.met(self.ours)  # missing the goal at one size misses it overall
        return f"{met}, but without {self.missing}" if self.missing and met != "no" else met

    def as_json(self) -> dict[str, Any]:
        """As JSON, with the goal and whether it is met."""
        goal = self.goal
        return (
            {"what": goal.what, "goal": goal.goal, "stretch": goal.stretch, "unit": goal.unit}
            | asdict(self)
            | {"met": self.met}
        )


def worst(key: str, cells: dict[str, dict[str, float]], **more: Any) -> Row:
    """The row of the worst of several cells, each a ratio as ``benchmarks.measure.ratio`` gives it."""
    sign = -1 if GOALS[key].more_is_better else 1
    name = max(cells, key=lambda cell: sign * cells[cell]["median"])
    one = cells[name]
    note = f"worst: {name}" if len(cells) > 1 else ""
    if more.get("note"):
        note = f"{note}; {more['note']}" if note else more["note"]
    return Row(
        key,
        one["median"],
        (one["q25"], one["q75"]),
        cells={cell: c["median"] for cell, c in cells.items()},
        **(more | {"note": note}),
    )


def times_table(rows: list[Row]) -> str:
    """Table of the rows' ``times``, with the columns that occur in any of them."""
    lines: dict[str, dict[str, float]] = {}
    for row in rows:
        for name, figures in row.times.items():
            lines.setdefault(name, {}).update(figures)
    columns = list(dict.fromkeys(column for figures in lines.values() for column in figures))
    if not columns:
        return ""
    made = [f"| milliseconds | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
    for name, figures in lines.items():
        cells = (f"{figures[column]:,.1f}" if column in figures else "" for column in columns)
        made.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(made)


def number(value: float, unit: str = "×") -> str:
    """Three figures, and the unit unless it is a ratio."""
    if value >= 100:
        text = f"{value:,.0f}"
    elif value >= 10:
        text = f"{value:.1f}"
    else:
        text = f"{value:.3f}" if value < 1.1 and unit == "×" else f"{value:.2f}"
    return text if unit == "×" else f"{text} {unit}"


def ours(row: Row) -> str:
    """Cell of our result: the value with its quartiles, or why there is none."""
    if row.ours is None:
        return row.note or "not measured"
    spread = f" ({number(row.spread[0])}–{number(row.spread[1])})" if row.spread else ""
    return number(row.ours, row.goal.unit) + spread


def bound(row: Row, value: float) -> str:
    """A goal as text: "≤ 1.1"."""
    sign = "≥" if row.goal.more_is_better else "≤"
    return f"{sign} {value:g}" + ("" if row.goal.unit == "×" else f" {row.goal.unit}")


def peers(row: Row) -> str:
    """Cell of the other tools' results."""
    return "; ".join(
        f"{name} {number(value, row.goal.unit) if isinstance(value, (int, float)) else value}"
        for name, value in row.peers.items()
    )


def markdown(rows: list[Row]) -> str:
    """The table as Markdown."""
    lines = ["| row | ours | goal | stretch | met? | others |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row.goal.what} | {ours(row)} | {bound(row, row.goal.goal)} | {bound(row, row.goal.stretch)} | {row.met} | "
        f"{peers(row)} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
