"""``docs/edits.md``: its example runs, its requests are requests, its tables are the kept results."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.importance import BEGIN, END, tables
from tokenpaths.engine.adapters.huggingface.config import Layout
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.edits.reroute_request import RerouteRequest
from tokenpaths.engine.families.edit_values import KINDS
from tokenpaths.engine.jobs.gates.gates_request import GatesRequest
from tokenpaths.engine.jobs.model_outline import ExpertsOutline
from tokenpaths.engine.jobs.registry import find_kind, read_request

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "edits.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.+?)```", PAGE, flags=re.DOTALL)


def test_the_example_runs(capsys):
    (code,) = blocks("python")
    exec(compile(code, "docs/edits.md", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("['ban module 15 at step 3']")
    assert float(said.split()[-2]) > 0  # KL


def test_requests_are_read():
    text, decoder, place, found = "\n".join(blocks("json")).strip(), json.JSONDecoder(), 0, []
    while place < len(text):
        value, end = decoder.raw_decode(text[place:])
        found.append(read_request(find_kind(value["kind"]), value["request"]))
        place += end + len(text[place + end :]) - len(text[place + end :].lstrip())
    of_gates = [one for one in found if isinstance(one, GatesRequest)]
    assert [one.word for one in of_gates] == [None, "water"]
    found = [one for one in found if isinstance(one, RerouteRequest)]
    assert [one.sweep for one in found] == ["modules", None, "shares", "modules", None, None]
    assert [one.model for one in found[2:]] == ["hf:OLMoE-1B-7B-0924"] * 4
    for one in found[4:]:
        ExpertsOutline(one.model, Layout(layers=16, choices=64, top_k=8)).check_controls(one.controls)


def test_every_edit_is_on_the_page():
    assert re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE) == list(KINDS)


def test_tables_are_the_kept_results():
    results = json.loads((ROOT / "benchmarks" / "results" / "importance.json").read_text(encoding="utf-8"))["results"]
    shown = PAGE.split(BEGIN)[1].split(END)[0].strip()
    assert shown == tables(results)


def test_the_models_that_are_left_out_are_named():
    results = json.loads((ROOT / "benchmarks" / "results" / "importance.json").read_text(encoding="utf-8"))["results"]
    shipped = {file.parent.name for file in SHIPPED_MODELS.glob("*/config.json")}
    words = {13: "thirteen", 14: "fourteen", 15: "fifteen", 16: "sixteen"}
    assert results.keys() <= shipped
    if left_out := shipped - results.keys():
        assert f"{words[len(results)]} of the {words[len(shipped)]} shipped checkpoints" in PAGE
        assert f"Not measured: {', '.join(sorted(left_out))}." in PAGE
    else:
        assert f"all {words[len(shipped)]} shipped checkpoints" in PAGE
        assert "Not measured: " not in PAGE.split(BEGIN)[1].split(END)[0]
    for name, one in results.items():
        assert f"\n| {name} | {one['num_samples']} | " in PAGE
