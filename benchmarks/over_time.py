"""The rows of the table over time: what was measured at each commit, what got worse, and a chart of all rows.

    python -m benchmarks.over_time [--to docs/speed_history.svg]

``benchmarks/history/DATE-COMMIT.jsonl`` has a line for each row that was measured: ``benchmarks.bench`` adds those that
it finds new, after it started parts and with ``--write-docs``. A row that lacks sizes of its goal is not kept, because
its value is that of another thing. The first files are taken from the tables that ``docs/performance.md`` had.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import altair as alt

from benchmarks.measure import PAGE, days
from benchmarks.table import GOALS, Goal, Row, bound, number

ROOT = Path(__file__).resolve().parent.parent
HISTORY = ROOT / "benchmarks" / "history"
PICTURE = PAGE.parent / "speed_history.svg"
BEGIN, END = "<!-- benchmarks.over_time: begin -->\n", "<!-- benchmarks.over_time: end -->\n"
SOURCES = ("engine", "backend", "frontend", "tokenpaths", "benchmarks/*.py")
UNKNOWN_NOISE = 0.1
"""share of a value that counts as noise where a measurement has no quartiles, or those of a single round"""


@dataclass(frozen=True)
class Measurement:
    """One row of the table at one commit."""

    key: str
    value: float
    """in the unit of the row's goal"""
    quartiles: tuple[float, float] | None
    machine: str
    command: str
    date: str
    """when it was measured: a day, or the first and the last"""
    version: str
    commit: str
    """short; with ``+`` if the sources had changes that were not committed"""
    kept: str
    """when it was added, UTC; measurements are ordered by it"""

    @property
    def place(self) -> str:
        """The machine without its version of PyTorch: a slip that a new one brings is a slip too."""
        return ", ".join(part for part in self.machine.split(", ") if not part.startswith("torch "))

    @property
    def label(self) -> str:
        return f"{self.kept[5:10]} {self.commit}"

    def range(self) -> tuple[float, float]:
        """Its quartiles, or the value with ``UNKNOWN_NOISE`` shared between it and the one it is compared with."""
        if self.quartiles is not None and self.quartiles[0] < self.quartiles[1]:
            return self.quartiles
        return self.value * (1 - UNKNOWN_NOISE / 2), self.value * (1 + UNKNOWN_NOISE / 2)

    def words(self) -> str:
        spread = f" ({number(self.quartiles[0])}–{number(self.quartiles[1])})" if self.quartiles else ""
        return f"{number(self.value, GOALS[self.key].unit)}{spread} at {self.commit} ({self.date})"


def read(folder: Path = HISTORY) -> list[Measurement]:
    """All that was kept, oldest first; rows that the table no longer has are left out."""
    found = []
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            spread = one["quartiles"]
            found.append(Measurement(**one | {"quartiles": tuple(spread) if spread else None}))
    return sorted((one for one in found if one.key in GOALS), key=lambda one: (one.kept, list(GOALS).index(one.key)))


def add(rows: Iterable[Row], folder: Path = HISTORY) -> Path | None:
    """Keep what the history does not have yet; returns the file, None if there is nothing new."""
    known = {same(m.key, m.value, m.quartiles, m.machine, m.date) for m in read(folder)}
    now, commit = datetime.now(UTC), commit_here()
    new = [
        Measurement(
            row.key, row.ours, row.spread, row.machine, row.command, row.date, version_here(), commit, f"{now:%FT%TZ}"
        )
        for row in rows
        if row.ours is not None
        and not row.missing
        and same(row.key, row.ours, row.spread, row.machine, row.date) not in known
    ]
    return write(new, folder) if new else None


def same(key: str, value: float, spread: tuple[float, float] | None, machine: str, date: str) -> tuple[str, ...]:
    """What two measurements that are one have in common, in the table's figures: the oldest are kept with no more."""
    return key, machine, date, number(value), *(number(end) for end in spread or ())


def write(new: Sequence[Measurement], folder: Path = HISTORY) -> Path:
    """Append to the file of their date and commit (all have the same)."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{new[0].kept[:10]}-{new[0].commit or 'unknown'}.jsonl"
    with file.open("a", encoding="utf-8") as out:
        out.writelines(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in new)
    return file


def commit_here() -> str:
    """Short hash of the sources' commit; "" outside a repository."""
    try:
        git = ("git", "-C", str(ROOT))
        short = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", *SOURCES], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return short.stdout.strip() + ("+" if changed.stdout.strip() else "")


def version_here() -> str:
    try:
        return version("tokenpaths")
    except PackageNotFoundError:
        return ""


def slips(measurements: Sequence[Measurement]) -> list[str]:
    """A sentence for each row whose newest value is worse than the one before on its machine, quartiles apart."""
    before: dict[tuple[str, str], Measurement] = {}
    newest: dict[str, tuple[Measurement | None, Measurement]] = {}
    for one in measurements:
        newest[one.key] = (before.get((one.key, one.place)), one)
        before[one.key, one.place] = one
    return [
        f"{GOALS[key].what} got worse by more than its noise: {old.words()}, {new.words()}, {new.place}"
        for key, (old, new) in newest.items()
        if old is not None and apart(GOALS[key], old, new)
    ]


def apart(goal: Goal, old: Measurement, new: Measurement) -> bool:
    """Whether ``new`` is worse, and the ranges do not meet."""
    if goal.more_is_better:
        return new.range()[1] < old.range()[0]
    return new.range()[0] > old.range()[1]


def points(measurements: Sequence[Measurement], key: str) -> list[dict[str, Any]]:
    """The chart's data of one row: a dot a measurement, quartiles where there are some."""
    made = []
    for one in measurements:
        if one.key == key:
            low, high = one.quartiles or (one.value, one.value)
            made.append({"at": one.label, "value": one.value, "low": low, "high": high, "machine": one.place})
    return made


COLOURS = ("#0b5cad", "#b03a08", "#7a3d9a", "#6b6b00", "#00706b", "#8a2252")
SHAPES = ("circle", "diamond", "square", "triangle-up", "cross", "triangle-down")
WIDTH, HEIGHT, COLUMNS = 188, 84, 3
MET, LINE = "#e3f1e3", "#2f7d32"


def panel(measurements: Sequence[Measurement], key: str, names: bool) -> alt.LayerChart:
    """One row of the table: what meets the goal is shaded, goal and stretch are lines."""
    goal, dots = GOALS[key], points(measurements, key)
    labels, machines = (list(dict.fromkeys(x)) for x in zip(*((m.label, m.place) for m in measurements), strict=True))
    ends = [goal.goal, goal.stretch, *(dot[name] for dot in dots for name in ("low", "high"))]
    wide = min(ends) > 0 and max(ends) > 20 * min(ends)
    low, high = (min(ends) / 1.5, max(ends) * 1.5) if wide else (min(ends), max(ends))
    if not wide:
        low, high = max(0.0, low - 0.12 * (high - low)), high + 0.12 * (high - low)
    y = alt.Y(
        "value:Q",
        title=None,
        scale=alt.Scale(domain=[low, high], nice=False, zero=False, type="log" if wide else "linear"),
        axis=alt.Axis(tickCount=4, grid=False, format=",~f", minExtent=38, maxExtent=38),
    )
    x = alt.X(
        "at:O",
        title=None,
        scale=alt.Scale(domain=labels),
        axis=alt.Axis(labels=names, ticks=names, labelAngle=-60, labelFontSize=9, labelOverlap=len(labels) > 14),
    )
    met = {"value": goal.goal, "end": high if goal.more_is_better else low}
    shade = alt.Chart(alt.Data(values=[met])).mark_rect(color=MET).encode(y=y, y2="end:Q")
    lines = alt.layer(
        *(
            alt.Chart(alt.Data(values=[{"value": value}]))
            .mark_rule(color=LINE, strokeDash=dash, strokeWidth=1)
            .encode(y=y)
            for value, dash in ((goal.goal, [1, 0]), (goal.stretch, [3, 3]))
        )
    )
    data = alt.Chart(alt.Data(values=dots))
    colour = alt.Color("machine:N", title=None, scale=alt.Scale(domain=machines, range=list(COLOURS[: len(machines)])))
    shape = alt.Shape("machine:N", title=None, scale=alt.Scale(domain=machines, range=list(SHAPES[: len(machines)])))
    shown = alt.layer(
        shade,
        lines,
        data.mark_line(strokeWidth=1, opacity=0.5).encode(x=x, y=y, color=colour),
        data.mark_rule(strokeWidth=2, opacity=0.6).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
        data.mark_point(filled=True, size=34, opacity=1).encode(x=x, y=y, color=colour, shape=shape),
    )
    if not dots:
        empty = alt.Chart(alt.Data(values=[{"words": "not measured yet"}]))
        empty = empty.mark_text(color="#666666").encode(text="words:N", x=alt.value(WIDTH / 2), y=alt.value(HEIGHT / 2))
        shown = alt.layer(shade, lines, empty)
    row = Row(key, dots[-1]["value"] if dots else None)
    words = textwrap.wrap(goal.what, 38)
    title = alt.TitleParams(
        words + ["\u00a0"] * (2 - len(words)),  # the panels of a line stay level
        subtitle=f"goal {bound(row, goal.goal)}, stretch {bound(row, goal.stretch)}"
        + (f", newest {number(row.ours, goal.unit)}" if row.ours is not None else ""),
        anchor="start",
        fontSize=11,
        subtitleFontSize=10,
        subtitleColor="#444444",
    )
    return shown.properties(width=WIDTH, height=HEIGHT, title=title)


def chart(measurements: Sequence[Measurement]) -> alt.HConcatChart:
    """Every row of the table over the commits that measured something, in the order of the table."""
    keys, columns = list(GOALS), []
    for column in range(COLUMNS):
        own = keys[column::COLUMNS]
        columns.append(alt.vconcat(*(panel(measurements, key, key == own[-1]) for key in own), spacing=12))
    return (
        alt.hconcat(*columns, spacing=14)
        .properties(
            background="white",
            title=alt.TitleParams(
                "Every row of the table over time",
                subtitle="shaded: meets the goal; line: goal, dashed: stretch; a dot a measurement, its bar quartiles",
                anchor="start",
                fontSize=14,
            ),
        )
        .configure_view(stroke="#dddddd")
        .configure_legend(orient="top", labelLimit=300)
    )


def page_part(measurements: Sequence[Measurement]) -> str:
    """What stands between the marks of ``docs/performance.md``."""
    rows = {one.key for one in measurements}
    worse = slips(measurements)
    lines = [
        "",
        f"![Every row of the table at each commit that measured it]({PICTURE.name})",
        "",
        f"{len(measurements)} measurements of {len(rows)} of {len(GOALS)} rows, "
        f"{days({one.label: one.kept[:10] for one in measurements})}: a dot in the shaded part meets the goal. "
        + (
            "Worse than the measurement before on the same machine, by more than the noise:"
            if worse
            else "No row is worse than its measurement before on the same machine by more than the noise."
        ),
    ]
    if worse:
        lines += ["", *(f"- {sentence}" for sentence in worse)]
    return "\n".join(lines) + "\n\n"


def page_with(text: str, measurements: Sequence[Measurement]) -> str:
    """The page with its generated part made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + page_part(measurements) + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=PICTURE, help="the SVG [default: docs/speed_history.svg]")
    measurements = read()
    chart(measurements).save(parser.parse_args().to)
    print("\n".join(slips(measurements)) or "no row got worse by more than its noise")


if __name__ == "__main__":
    main()
