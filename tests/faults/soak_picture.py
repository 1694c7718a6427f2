"""Draw what a soak left in ``build/soak.json``: ``python -m tests.faults.soak_picture`` writes docs/soak.svg."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import altair as alt

from tests.faults.figures import ROOT

PICTURE = ROOT / "docs" / "soak.svg"
API, WORKER = "#0b5cad", "#b03a08"
WIDTH = 620


def chart(found: dict[str, Any]) -> alt.VConcatChart:
    """Memory of both processes above, the 95th percentile of answers below, a line at each kill."""
    memory = [
        {"minute": row["t"] / 60, "process": name, "megabytes": row[key]}
        for row in found["memory"] for name, key in (("API", "api_megabytes"), ("engine worker", "worker_megabytes"))
        if key in row
    ]  # fmt: skip
    slow = [{"minute": t / 60, "ms": ms} for t, ms in found["p95_ms"] if ms is not None]
    kills = [{"minute": t / 60} for t in found["kills"]]
    minutes = alt.Scale(domain=[0, max(found["minutes"], memory[-1]["minute"])], nice=False)

    def minute(title: str | None) -> alt.X:
        return alt.X("minute:Q", title=title, scale=minutes, axis=alt.Axis(grid=False, labels=title is not None))

    def marks() -> alt.Chart:
        lines = alt.Chart(alt.Data(values=kills)).mark_rule(color="#888888", strokeDash=[3, 3])
        return lines.encode(x=alt.X("minute:Q", scale=minutes))

    above = alt.Chart(alt.Data(values=memory)).mark_line(strokeWidth=1.5).encode(
        x=minute(None), y=alt.Y("megabytes:Q", title="memory (MB)", scale=alt.Scale(zero=True)),
        color=alt.Color("process:N", title=None, scale=alt.Scale(domain=["API", "engine worker"], range=[API, WORKER]),
                        legend=alt.Legend(orient="top")),
    )  # fmt: skip
    below = alt.Chart(alt.Data(values=slow)).mark_line(color=API, point=alt.OverlayMarkDef(color=API, size=18)).encode(
        x=minute("minutes"), y=alt.Y("ms:Q", title="p95 of answers (ms)", scale=alt.Scale(zero=True)),
    )  # fmt: skip
    title = alt.TitleParams(
        f"{found['minutes']:g} minutes of mixed load: {found['requests']:,} requests, "
        f"{sum(found['jobs'].values())} jobs, {len(found['kills'])} kills, {found['num_lost']} things lost",
        subtitle="dashed: kill -9 of the engine worker; another takes its place", anchor="start", fontSize=13,
    )  # fmt: skip
    both = alt.vconcat(
        (above + marks()).properties(width=WIDTH, height=170), (below + marks()).properties(width=WIDTH, height=120),
        spacing=8,
    )  # fmt: skip
    return both.properties(title=title, background="white").configure_view(stroke="#dddddd")


def main(arguments: list[str]) -> int:
    """Write the picture."""
    source = Path(arguments[0]) if arguments else ROOT / "build" / "soak.json"
    chart(json.loads(source.read_text(encoding="utf-8"))).save(PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
