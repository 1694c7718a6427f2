"""docs/scale.md says what was measured, and its arithmetic is right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
MEASURED = json.loads((ROOT / "benchmarks" / "results" / "shards.json").read_text(encoding="utf-8"))["results"]
TOKENS = 10**10


def row(name: str) -> tuple[str, str]:
    """The two cells behind ``name`` in the table."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    _, measured, at_scale = [cell.strip() for cell in line.split("|")[1:-1]]
    return measured, at_scale


def first_number(text: str) -> float:
    found = re.search(r"\d[\d,.]*\d|\d", text)
    assert found, text
    return float(found[0].replace(",", ""))


def test_the_figures_are_those_of_the_result() -> None:
    assert MEASURED["differing_tables"] == []
    assert MEASURED["differing_of_parts"] in ([], ["answer"])  # the last digits of sums of several threads
    shards, sealed = MEASURED["shards"], MEASURED["seal"]
    assert first_number(row("writing shards")[0]) == shards["tokens_per_cpu_second"]
    assert first_number(row("bytes of the shards")[0]) == pytest.approx(shards["bytes_per_token"], abs=0.05)
    assert first_number(row("sealing into one file")[0]) == sealed["tokens_per_cpu_second"]
    assert first_number(row("bytes of the run")[0]) == pytest.approx(sealed["bytes_per_token"], abs=0.05)
    assert first_number(row("distinct paths")[0]) == sealed["paths"]
    peaks = (sealed["peak_MiB"], MEASURED["parts_1"]["peak_MiB"], MEASURED["parts_1"]["peak_MiB_of_a_worker"])
    assert all(str(peak) in PAGE for peak in peaks)


def test_the_table_of_processes_is_the_result() -> None:
    """Seconds of each stage by 1, 2 and 4 processes, and the share of linear that two reach."""
    named = {
        "counting paths": lambda run: run["stages"]["counting paths"],
        "writing parts": lambda run: run["stages"]["writing parts"],
        "answers that take long": lambda run: run["stages"]["answers that take long"],
        "these three together": lambda run: run["parallel_seconds"],
        "all": lambda run: run["seconds"],
    }
    runs = [MEASURED[f"parts_{workers}"] for workers in (1, 2, 4)]
    for name, seconds in named.items():
        (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
        cells = [first_number(cell) for cell in line.split("|")[2:-1]]
        assert cells == pytest.approx([seconds(run) for run in runs], abs=0.051), name
    gained = runs[0]["parallel_seconds"] / runs[1]["parallel_seconds"] / 2
    assert f"{gained:.2f} of linear" in PAGE
    assert gained >= 0.8


def test_a_hundred_million_tokens_are_as_they_were_built_and_asked() -> None:
    asked = json.loads((ROOT / "benchmarks" / "results" / "queries.json").read_text(encoding="utf-8"))["results"]
    text = " ".join(PAGE.split())
    built, each = asked["built"], asked["bytes_per_token"]
    assert f"{asked['paths'] / 1e6:.1f} million paths, {asked['samples']:,} texts" in text
    assert f"written and sealed in {built['seconds']:.0f} s" in text
    assert f"with {built['peak_MiB']:,} MiB of memory at most" in text
    assert f"**{each['file']:.1f} bytes a token**" in text
    assert row("bytes of the run")[0].endswith(f"{each['file']:.1f} of a hundred million")
    tables = {
        "`token_coded`": ("token_coded",),
        "`member`": ("member",),
        "`path_coded`, `path_page`, `path_planes`": ("path_coded", "path_page", "path_planes"),
        "`sample`": ("sample",),
        "`profile_page`": ("profile_page",),
        "drawn tables": (
            "drawn_token",
            "drawn_path",
            "drawn_word",
            "drawn_loss",
            "sample_head",
            "path_example",
            "path_strongest",
        ),
    }
    table = PAGE.partition("| table, a hundred million tokens |")[2]
    for name, parts in tables.items():
        (cell,) = re.findall(rf"^\| {re.escape(name)} \| (.+?) \|$", table, re.MULTILINE)
        assert first_number(cell) == pytest.approx(sum(each[part] for part in parts), abs=0.051), name
    others = each["file"] - sum(each[part] for parts in tables.values() for part in parts)
    (cell,) = re.findall(r"^\| all others \| (.+?) \|$", table, re.MULTILINE)
    assert first_number(cell) == pytest.approx(others, abs=0.051)


def test_questions_that_take_long_are_those_of_the_result() -> None:
    asked = json.loads((ROOT / "benchmarks" / "results" / "queries.json").read_text(encoding="utf-8"))["results"]
    shown = PAGE.partition("| question | warm, p95 |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in shown.splitlines()[2:]]
    called = {"samples similar to one": "similar samples", "ribbons similar to one": "similar ribbons"}
    named = {called.get(name, name): (first_number(warm), first_number(cold)) for name, warm, cold in cells}
    slow = {name for name, times in asked["cold"].items() if times["p95"] > 150}
    assert named.keys() == slow
    for name, times in named.items():
        assert times == pytest.approx((asked["warm"][name]["p95"], asked["cold"][name]["p95"]), abs=0.51), name
    words = {3: "Three", 4: "Four", 5: "Five", 6: "Six", 7: "Seven", 8: "Eight"}[len(slow)]
    assert f"{words} of the {len(asked['cold'])} take longer than 150 ms cold" in PAGE
    assert asked["worst_cold"]["p95"] < 1000


def test_questions_to_paths_of_their_own_are_those_of_the_result() -> None:
    asked = json.loads((ROOT / "benchmarks" / "results" / "queries-unique.json").read_text(encoding="utf-8"))["results"]
    shown = PAGE.partition("| question | warm, p95 (median) | cold, p95 (median) |")[2].partition("\n\n")[0]
    cells = [[cell.strip() for cell in line.split("|")[1:4]] for line in shown.splitlines()[2:]]
    called = {"samples similar to one": "similar samples", "ribbons similar to one": "similar ribbons"}
    named = {called.get(name, name): (first_number(warm), first_number(cold)) for name, warm, cold in cells}
    for name, times in named.items():
        assert times == pytest.approx((asked["warm"][name]["p95"], asked["cold"][name]["p95"]), abs=0.51), name
    others = asked["warm"].keys() - named.keys()
    words = f"the other {len(others)} take at most (\\d+) ms warm and (\\d+) cold"
    (said,) = re.findall(words, " ".join(PAGE.split()))
    for part, most in zip(("warm", "cold"), said, strict=True):
        assert max(asked[part][name]["p95"] for name in others) == pytest.approx(int(most), abs=0.51)
    assert first_number(PAGE.partition("into **")[2]) == pytest.approx(asked["bytes_per_token"]["file"], abs=0.05)
    assert f"{asked['paths']:,} paths" in PAGE
    assert len(asked["refused"]) == 7
    assert len(asked["cold"]) == len(asked["warm"]) == 54


def test_what_is_said_of_schemas_goals_and_hours_is_said_once() -> None:
    from benchmarks.table import GOALS
    from tokenpaths.engine.store.file import SCHEMA_VERSION

    assert f"those of a hundred million below of schema {SCHEMA_VERSION}." in PAGE
    goals = set(re.findall(r"goal (?:of|is) (\d+) bytes", " ".join(PAGE.split())))
    assert goals == {str(GOALS["bytes_per_token"].goal)}
    hours = first_number(row("sealing into one file")[1])
    assert f"10¹⁰ tokens in one file are {hours} hours of one process" in PAGE


def test_the_arithmetic_is_right() -> None:
    for name in ("tracing, without", "tracing, with the", "writing shards", "sealing into one file"):
        rate, hours = (first_number(cell) for cell in row(name))
        assert TOKENS / rate / 3600 == pytest.approx(hours, rel=0.03), name
    counted, written = (MEASURED["parts_1"]["stages"][name] for name in ("counting paths", "writing parts"))
    rate, hours = (first_number(cell) for cell in row("sealing in parts: counting and writing"))
    assert rate == pytest.approx(MEASURED["tokens"] / (counted + written), rel=0.01)
    assert TOKENS / rate / 3600 == pytest.approx(hours, rel=0.02)
    stages = ("paths", "tokens of each path", "flows and usage", "what paths know", "sample and histograms")
    each, minutes = (first_number(cell) for cell in row("sealing in parts: paths"))
    assert each == pytest.approx(
        1e6 * sum(MEASURED["parts_1"]["stages"][s] for s in stages) / MEASURED["tokens"], abs=0.01
    )
    assert TOKENS * each / 1e6 / 60 == pytest.approx(minutes, rel=0.02)
    each, gigabytes = (first_number(cell) for cell in row("bytes of the run"))
    assert TOKENS * each / 1e9 == pytest.approx(gigabytes, rel=0.02)
    paths = MEASURED["seal"]["paths"] * (TOKENS / MEASURED["tokens"]) ** 0.77
    assert paths == pytest.approx(2e8, rel=0.15)
