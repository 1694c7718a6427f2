"""Draw what a soak left in ``build/soak.json``: ``python -m tests.faults.soak_picture`` writes docs/soak.*."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import altair as alt

from tests.faults.figures import ROOT
from tests.faults.soak_summary import write

DOCS = ROOT / "docs"
NAMES = {"api": "API", "worker": "engine worker", "page": "page server"}
COLOURS = {"api": "#0b5cad", "worker": "#b03a08", "page": "#2f7d32"}
SLOW = {"look": ("api", "answers, p95 (ms)"), "page": ("page", "page views, p95 (ms)")}
WIDTH = 620


def chart(found: dict[str, Any]) -> alt.VConcatChart:
    """Memory of the processes above, the 95th percentiles of the API and of the page below, a line at each kill."""
    memory = [
        {"minute": row["t"] / 60, "process": words, "megabytes": row[f"{name}_megabytes"]}
        for row in found["memory"]
        for name, words in NAMES.items()
        if f"{name}_megabytes" in row
    ]
    last = max((row["minute"] for row in memory), default=0.0)
    minutes = alt.Scale(domain=[0, max(found["minutes"] if found["over"] else 0.0, last)], nice=False)
    kills = [{"minute": t / 60} for t in found["kills"]]

    def minute(title: str | None) -> alt.X:
        return alt.X("minute:Q", title=title, scale=minutes, axis=alt.Axis(grid=False, labels=title is not None))

    def marked(lines: alt.Chart, height: int) -> alt.LayerChart:
        rules = alt.Chart(alt.Data(values=kills)).mark_rule(color="#888888", strokeDash=[3, 3])
        rules = rules.encode(x=alt.X("minute:Q", scale=minutes))
        return (rules + lines).properties(width=WIDTH, height=height)

    colours = alt.Scale(domain=list(NAMES.values()), range=list(COLOURS.values()))
    parts = [
        marked(
            alt.Chart(alt.Data(values=memory))
            .mark_line(strokeWidth=1.5)
            .encode(
                x=minute(None),
                y=alt.Y("megabytes:Q", title="memory (MB)", scale=alt.Scale(zero=True)),
                color=alt.Color("process:N", title=None, scale=colours, legend=alt.Legend(orient="top")),
            ),
            190,
        )
    ]
    for what, (name, title) in SLOW.items():
        rows = [{"minute": t / 60, "ms": ms} for t, ms in found["p95_ms"][what] if ms is not None]
        dots = alt.OverlayMarkDef(color=COLOURS[name], size=18)
        parts.append(
            marked(
                alt.Chart(alt.Data(values=rows))
                .mark_line(color=COLOURS[name], point=dots)
                .encode(
                    x=minute("minutes" if what == "page" else None),
                    y=alt.Y("ms:Q", title=title, scale=alt.Scale(zero=True)),
                ),
                110,
            )
        )
    clicks = found["kinds"].get("page", 0) + found["kinds"].get("click", 0)
    title = alt.TitleParams(
        f"{found['measured_minutes']:g} minutes of mixed load: {found['requests'] - clicks:,} answers, {clicks:,} page "
        f"views, {sum(found['jobs'].values())} jobs, worker killed {len(found['kills'])}×, "
        f"{found['num_lost']} things lost",
        subtitle="dashed: kill -9 of the engine worker; another takes its place",
        anchor="start",
        fontSize=13,
    )
    both = alt.vconcat(*parts, spacing=8)
    return both.properties(title=title, background="white").configure_view(stroke="#dddddd")


def main(arguments: list[str]) -> int:
    """Write the picture, and the figures beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("found", type=Path, nargs="?", default=ROOT / "build" / "soak.json")
    parser.add_argument("--to", type=Path, default=DOCS, help="folder of soak.svg and soak.json [default: docs]")
    chosen = parser.parse_args(arguments)
    found = json.loads(chosen.found.read_text(encoding="utf-8"))
    chosen.to.mkdir(parents=True, exist_ok=True)
    chart(found).save(chosen.to / "soak.svg")
    write(found, chosen.to / "soak.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
