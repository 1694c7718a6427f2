"""docs/dreams.md: its code runs, its commands parse, its tables are the kept results'."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from tokenpaths.cli.main import make_app

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "dreams.md").read_text(encoding="utf-8")


def test_the_python_of_the_page_runs(capsys) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "dreams.md", "exec"), {})
    assert "torch.Size([2, 3, 64, 64])" in capsys.readouterr().out


def test_the_commands_of_the_page_are_commands() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    dream = get_command(make_app()).commands["dream"]
    lines = [shlex.split(line, comments=True) for line in block.splitlines() if line.strip()]
    assert len(lines) >= 5
    for line in lines:
        assert line[:2] == ["tokenpaths", "dream"]
        dream.make_context("dream", line[2:])


def test_each_example_of_a_text_dream_has_its_command() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    (trace,) = re.findall(r"`(tokenpaths trace [^`]*)`", PAGE)
    commands = get_command(make_app()).commands
    commands["trace"].make_context("trace", shlex.split(trace)[2:])
    examples = []
    for name, value in re.findall(r"`--(rank|direction|connection) ([0-9.]+)`", PAGE):
        (line,) = [line for line in block.splitlines() if f"--{name} {value}" in line]
        words = [*shlex.split(line, comments=True), "--iterations", "16"]
        given = commands["dream"].make_context("dream", words[2:]).params
        assert given["run"] is None or given["run"] in shlex.split(trace)
        of = f"path of rank {value}" if name == "rank" else f"{name} {value}"
        examples.append(f"{of} of {given['model']}")
    assert examples == [row[0] for row in rows_of("dream of")]


def in_bold(shown: dict[str, Any]) -> str:
    """A dreamed text as the table writes it: the wanted tokens bold, white space single."""
    if not shown["targets"]:
        return " ".join(shown["text"].split())  # a character can be several tokens
    wanted, pieces = set(shown["targets"]), []
    for place, token in enumerate(shown["tokens"]):
        core = token.strip()
        pieces.append(token.replace(core, f"**{core}**") if place in wanted and core else token)
    return " ".join("".join(pieces).split())


def test_the_table_of_texts_is_what_was_measured() -> None:
    kept = results("text_dreams")
    cells = {row[0]: row[1:] for row in rows_of("dream of")}
    assert len(cells) == len(kept)
    for name, row in kept.items():
        model = re.search(r"--model (\S+)", row["command"])[1]
        value = re.search(rf"--{name} (\S+)", row["command"])[1]
        of = f"path of rank {value}" if name == "rank" else f"{name} {value}"
        over, best, dreamed = cells[f"{of} of {model}"]
        assert over == f"{row['corpus']['mean']:.2f}, {row['corpus']['p99']:.2f}"
        digits = len(best.split()[0]) - 2
        assert best == f"{row['best stretch']['objective']:.{digits}f} {in_bold(row['best stretch'])}"
        written = re.split(r"; (?=\d)", dreamed)
        assert written == [f"{one['objective']:.{digits}f} {in_bold(one)}" for one in row["dreamed"][: len(written)]]
        assert row["command"].startswith("tokenpaths dream ")


def test_what_is_said_of_the_text_dreams_is_what_was_measured() -> None:
    dreamed = results("text_dreams")["rank"]["dreamed"]
    assert len(dreamed) == 8
    assert {round(one["matched_choices"] * 6) for one in dreamed} == {4, 5}
    assert not any(one["matched_tokens"] for one in dreamed)
    said = "In none of the eight texts dreamed for the path does the wanted token take all of it: "
    assert f"{said}four or five of its six" in PAGE


def results(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())["results"]


def rows_of(*head: str) -> list[list[str]]:
    """Cells of the rows of the only table whose head begins with these cells."""
    tables = re.findall(r"^\|.*\|\n\|[-|]+\|\n(?:\|.*\|\n)+", PAGE, re.MULTILINE)
    cells = [[[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()] for table in tables]
    (found,) = [rows for rows in cells if rows[0][: len(head)] == list(head)]
    return found[2:]


def kept_cells(row: dict[str, Any]) -> list[str]:
    """A row of numbers over images as the page writes it."""
    share = "{:.0%}".format
    chance = f" ({share(row['class kept by chance'])})"
    return [
        str(row["images"]),
        f"{share(row['matched choices'])} ({share(row['matched choices of noise'])})",
        share(row["matched tokens"]),
        share(row["class kept"]) + chance,
        share(row["class in top 5"]),
        share(row["nearest original is its own"]),
        f"{row['median place among originals']:g}",
    ]


def test_the_table_of_speed_is_what_was_measured() -> None:
    names = {
        "shipped": "dna-vision-top1, 64 px, 5 steps",
        "paper": "the paper's size, 224 px, 11 steps, random weights",
    }
    forms = ("one image", "one image, weights frozen", "batch of eight", "batch of eight, weights frozen")
    assert rows_of("model", "dreams") == [
        [names[size], dreams, *(f"{measured[form]['median']:.2f}×" for form in forms)]
        for size in names  # beside them stands what is promised of time
        for dreams, measured in results("dream_speed")[size]["speed-up"].items()
    ]


def test_the_table_of_three_images_is_what_was_measured() -> None:
    def cell(dream: dict[str, Any]) -> str:
        return f"{dream['matched choices']:.0%}, {dream['top 5'][0][0]}"

    assert rows_of("model", "original") == [
        [model, name, of_image["the model says"], *(cell(of_image["dreams"][f"cumulative {s}"]) for s in range(1, 6))]
        for model, of_model in results("dreams")["pictures"].items()
        for name, of_image in of_model["images"].items()
    ]


def test_the_table_over_fifty_images_is_what_was_measured() -> None:
    assert rows_of("model", "S", "images") == [
        [model, s, *kept_cells(row)]
        for model, of_model in results("dreams")["numbers"].items()
        for s, row in of_model["by S"].items()
    ]
    assert all(
        row["images"] == 50 for of_model in results("dreams")["numbers"].values() for row in of_model["by S"].values()
    )


def test_the_sentences_on_the_claims_repeat_the_table() -> None:
    tops = [of_model["by S"] for of_model in results("dreams")["numbers"].values()]

    def shares(name: str) -> list[str]:
        return [f"{top['5'][name]:.0%}".strip("%") for top in tops]

    def over_steps(name: str) -> list[str]:
        return [", ".join(f"{top[s][name]:.0%}".strip("%") for s in "12345") for top in tops]

    assert "{} % and {} % at S = 1 … 5".format(*over_steps("nearest original is its own")) in PAGE
    assert "the class is kept in {} % and {} %".format(*over_steps("class kept")) in PAGE
    assert "{} % and {} % of the dreams at S = 5 are of the original's class".format(*shares("class kept")) in PAGE
    assert "(by chance {} and {} %)".format(*shares("class kept by chance")) in PAGE
    assert "{} % and {} % have it in their top five".format(*shares("class in top 5")) in PAGE
