"""Everything that is promised about speed in one table: ours, goal, stretch, met or not, and what others take.

    python -m benchmarks.bench [--row forward training …] [--show] [--long] [--peers-python FILE] [--write-docs]

Each part is a module of its own with its own command; this one starts those whose rows are asked for, each in a
process of its own, says what is going on and how long it still takes, and reads what they kept in
``benchmarks/results/``. One that fails or takes four times as long as it should costs its own figures and no other.
Parts that take longer than the table may (a hundred million tokens, a browser) are not started without ``--long``:
their newest kept figures stand in the table with their date. ``--show`` starts nothing. ``--write-docs`` writes the
table into ``docs/performance.md`` and draws its rows over time. What was measured is kept in ``benchmarks/history/``,
and a row that got worse by more than its noise is said. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks import over_time
from benchmarks.measure import PAGE, RESULTS, days, machines, report
from benchmarks.table import GOALS, Row, bound, markdown, ours, peers, times_table

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- benchmarks.bench: begin -->\n", "<!-- benchmarks.bench: end -->\n"


@dataclass(frozen=True)
class Part:
    """A module that measures some rows."""

    module: str
    keys: tuple[str, ...]
    minutes: float
    """on two quiet cores"""
    arguments: tuple[str, ...] = ()
    groups: tuple[tuple[str, float], ...] = ()
    """what the module measures one by one (its option ``--only``), and the minutes of each"""


PARTS = (
    Part(
        "speed",
        ("forward", "top2", "one_sample", "training", "training_memory", "naive"),
        14,
        (),
        (
            ("one_sample", 1),
            ("training_memory", 2.5),
            ("forward", 4.5),
            ("top2", 1.5),
            ("training", 4),
            ("bfloat16", 0.5),
        ),
    ),
    Part("peers", (), 0.7),
    Part("recording", ("recording", "recording_store"), 1.3),
    Part("dream_speed", ("dream",), 0.7, ("--only", "promise", "--repeats", "5")),
    Part("device", ("gpu_forward", "gpu_training"), 0.1),
    Part("profile_rows", (), 1.2),
    Part(
        "queries",
        (
            "bytes_per_token",
            "ingest",
            "query_warm",
            "query_cold",
            "word_cold",
            "filter_sampled",
            "filter_exact",
            "page_beside_trace",
        ),
        60,
    ),
    Part("page_views", ("page_cold",), 40),
)
LONG_PARTS = ("queries", "page_views")
"""only with ``--long``"""
NEEDS = {"naive": ("forward", "training"), "forward": ("forward", "bfloat16")}
"""groups of ``benchmarks.speed`` that a row is read from, where they are not called like it"""
PATIENCE = 4
"""a part that takes so many times as long as on two quiet cores is given up"""


def kept(module: str) -> dict[str, Any] | None:
    """The newest result of a part; None where there is none that can be read."""
    file = RESULTS / f"{module}.json"
    try:
        document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document


def rows_of(part: Part) -> list[Row]:
    """A part's rows, in order; one that is not there says which command would measure it."""
    document = kept(part.module)
    found: dict[str, Row] = {}
    missing = f"not measured yet: python -m benchmarks.{part.module}"
    if document is not None:
        about = {key: document.get(key, "") for key in ("command", "machine", "date")}
        try:
            reader = getattr(importlib.import_module(f"benchmarks.{part.module}"), "rows", None)
            found = {row.key: replace(row, **about) for row in (reader(document) if reader else [])}
            dates, places, ways = (document.get(name) or {} for name in ("dates", "machines", "commands"))
            for key, row in found.items():  # what a later, partial measurement kept is of its own day, machine, command
                of = row.part or key
                when, where, how = days(dates.get(of)), machines(places.get(of)), machines(ways.get(of))
                found[key] = replace(
                    row, date=when or row.date, machine=where or row.machine, command=how or row.command
                )
        except (KeyError, TypeError, IndexError) as error:  # kept by an earlier form of the part
            say(f"benchmarks/results/{part.module}.json has another form than its part reads ({error!r})")
        except ImportError as error:
            missing = f"cannot be read here: benchmarks.{part.module} needs {error.name} (make test installs it)"
    return [found.get(key, Row(key, None, note=missing)) for key in part.keys]


def all_rows() -> list[Row]:
    """The whole table in the order of ``GOALS``, the peers' figures beside the rows that they belong to."""
    found = {row.key: row for part in PARTS for row in rows_of(part)}
    beside = kept("peers")
    if beside is not None:
        from benchmarks.peers import experts_peers, recording_peers

        try:
            columns = (
                ("forward", experts_peers(beside, "batch 16 × 256")),
                ("one_sample", experts_peers(beside, "one sample of 64")),
                ("recording", recording_peers(beside)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            columns = ()
            say(f"benchmarks/results/peers.json has another form than its part reads ({error!r})")
        for key, more in columns:
            found[key] = replace(found[key], peers=found[key].peers | more)
    asked = kept("queries")
    if asked is not None:
        for key, group in (("query_warm", "warm"), ("query_cold", "cold"), ("filter_sampled", "sampled")):
            found[key] = replace(found[key], times=question_times(asked, group))
    return [found[key] for key in GOALS]


def question_times(document: dict[str, Any], group: str) -> dict[str, dict[str, float]]:
    """p50 and p95 of every question that was asked this way."""
    asked = document.get("results", {}).get(group) or {}
    return {
        name: {f"{p} {group}": row[p] for p in ("p50", "p95")}
        for name, row in asked.items()
        if isinstance(row, dict) and {"p50", "p95"} <= set(row)
    }


def commands_of(part: Part, wanted: list[str], python: str) -> list[tuple[list[str], float]]:
    """What to start for the rows that are wanted, and the minutes of each."""
    start = [python, "-m", f"benchmarks.{part.module}", *part.arguments]
    if not part.groups:
        return [(start, part.minutes)]
    asked = {group for key in wanted for group in NEEDS.get(key, (key,))}
    return [([*start, "--only", group], minutes) for group, minutes in part.groups if group in asked]


def run(parts: list[tuple[Part, list[str]]], peers_python: str, patience: float | None = None) -> list[str]:
    """Start the parts in turn; returns a sentence for each that failed, or took ``patience`` (``PATIENCE``) times as
    long as it should."""
    patience = PATIENCE if patience is None else patience
    problems, started = [], time.monotonic()
    todo = [
        (command, minutes)
        for part, wanted in parts
        for command, minutes in commands_of(part, wanted, peers_python if part.module == "peers" else sys.executable)
    ]
    for number, (command, minutes) in enumerate(todo):
        left = sum(each for _, each in todo[number:])
        say(
            f"[{number + 1} of {len(todo)}, {(time.monotonic() - started) / 60:.1f} min, about {left:.0f} left] "
            f"python {' '.join(command[1:])}"
        )
        name = " ".join(command[2:])
        places = [str(ROOT), os.getenv("PYTHONPATH")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(place for place in places if place)}
        process = None
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
            )
            code = process.wait(patience * 60 * max(minutes, 0.5))
            problem = f"ended with code {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"took more than {patience * max(minutes, 0.5):.0f} minutes and was ended"
        except OSError as error:
            problem = f"could not be started with {command[0]} ({error.strerror})"
        finally:
            if process is not None and process.returncode is None:  # too long, or Ctrl-C, of which it does not hear
                os.killpg(process.pid, signal.SIGKILL)  # its servers and writers too
                process.wait()
        if problem:
            problems.append(f"{name} {problem}; its kept figures are shown")
            say(problems[-1])
    return problems


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def printed(rows: list[Row]) -> str:
    """The table for a terminal: a block of lines a row, because others' figures are long."""
    lines = []
    for row in rows:
        goals = f"goal {bound(row, row.goal.goal)}, stretch {bound(row, row.goal.stretch)}"
        lines.append(f"{row.goal.what}: {ours(row)}   {goals}   met: {row.met}")
        if row.peers:
            lines.append(f"    others: {peers(row)}")
        if row.note and row.ours is not None:
            lines.append(f"    {row.note}")
        if len(row.cells) > 1 and not row.times:
            lines.append("    " + "; ".join(f"{name} {value:.3f}" for name, value in row.cells.items()))
        if row.date:
            lines.append(f"    {row.command}, {row.date}, {row.machine}")
    return "\n".join(lines)


def page_part(rows: list[Row]) -> str:
    """What stands between the marks of ``docs/performance.md``."""
    lines = ["", markdown(rows).rstrip(), "", "What each figure was taken with:", ""]
    lines += [
        f"- `{row.key}`: "
        + (f"`{row.command}`, {row.date}, {row.machine}" if row.date else row.note)
        + (f". {row.note[0].upper()}{row.note[1:]}" if row.note and row.date and row.ours is not None else "")
        for row in rows
    ]
    cells = [row for row in rows if len(row.cells) > 1 and not row.times]
    lines += ["", "| of these | size, routing | figure |", "|---|---|---|"]
    lines += [f"| `{row.key}` | {name} | {value:.3f} |" for row in cells for name, value in row.cells.items()]
    if table := times_table(rows):
        lines += ["", "Every question of the pages, HTTP and JSON included:", "", table]
    return "\n".join(lines) + "\n\n"


def page_with(text: str, rows: list[Row]) -> str:
    """The page with its generated part made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + page_part(rows) + END + rest.split(END)[1]


def as_document(rows: list[Row], problems: list[str]) -> dict[str, Any]:
    """What ``results/bench.json`` keeps; ``rows_in`` reads it."""
    return {"rows": {row.key: row.as_json() for row in rows}, "problems": problems}


def rows_in(document: dict[str, Any]) -> list[Row]:
    """The rows of a kept table."""
    names = [field.name for field in fields(Row)]
    made = [Row(**{name: one[name] for name in names if name in one}) for one in document["results"]["rows"].values()]
    return [replace(row, spread=tuple(row.spread) if row.spread else None) for row in made]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=GOALS, metavar="ROW", help=f"only these: {', '.join(GOALS)}")
    parser.add_argument("--show", action="store_true", help="measure nothing, show what is kept")
    parser.add_argument("--long", action="store_true", help="also parts that take longer than the table may")
    parser.add_argument("--peers-python", default=sys.executable, help="a Python that has the peers' packages")
    parser.add_argument("--write-docs", action="store_true", help="write the table into docs/performance.md")
    arguments = parser.parse_args()
    wanted = arguments.row or list(GOALS)
    problems: list[str] = []
    if not arguments.show:
        chosen = []
        for part in PARTS:
            keys = [key for key in part.keys if key in wanted]
            asked = bool(keys) or (not part.keys and not arguments.row)
            if asked and (part.module not in LONG_PARTS or arguments.long):
                chosen.append((part, keys))
        problems = run(chosen, arguments.peers_python)
    table = all_rows()
    rows = [row for row in table if row.key in wanted]
    print(printed(rows))
    for problem in problems:
        print(problem)
    if arguments.write_docs or not arguments.show:
        over_time.add(table)
    for slip in over_time.slips(over_time.read()):
        print(slip)
    whole = arguments.write_docs or not (arguments.row or arguments.show)
    if arguments.write_docs:
        text = page_with(PAGE.read_text(encoding="utf-8"), table)
        if (profile := kept("profile_rows")) is not None:
            from benchmarks import profile_rows  # it needs PyTorch

            text = profile_rows.page_with(text, profile)
        measured = over_time.read()
        text = over_time.page_with(text, measured)
        over_time.chart(measured).save(over_time.PICTURE)
        PAGE.write_text(text, encoding="utf-8")
    if whole:
        report("bench", "make bench", as_document(table, problems))
    else:
        print(json.dumps(as_document(rows, problems)))  # part of a table, or nothing new: not kept


if __name__ == "__main__":
    main()
