"""The job ``gates``: a scan that goes on where it was killed, and a word under other gates, against the engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.runs.traced import trace_soft_families
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.gate_scan import conditions, position_edges, scan_answer, text_losses
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.jobs.gates import gates_job
from tokenpaths.engine.jobs.gates.gates_job import GatesJob
from tokenpaths.engine.jobs.registry import JobContext, find_kind, read_request
from tokenpaths.engine.jobs.reroute_data import samples_of
from tokenpaths.engine.models.directional_gates import Interventions
from tokenpaths.engine.tracing.loaded_model import load_model

ONE = {"model": "tiny-directional", "run": "directional"}


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> JobContext:
    home = tmp_path_factory.mktemp("gates")
    trace_soft_families(home)
    return JobContext(home, (home / "models",), lambda name: load_model(name, [home / "models"], device="cpu"))


def to_the_end(context: JobContext, folder: Path, **values: Any) -> Any:
    folder.mkdir(exist_ok=True)
    request = read_request(GatesJob, ONE | values)
    GatesJob.check(request, context)
    job = GatesJob.start(request, folder, context)
    for _ in range(2000):
        if (progress := job.advance()).finished:
            job.close()
            return progress
    raise AssertionError("never finished")


def artifact(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "artifacts" / name).read_bytes())


def test_a_scan_is_what_the_engine_measures_over_the_same_texts(context: JobContext, tmp_path: Path) -> None:
    progress = to_the_end(context, tmp_path / "job", limit=5)
    found = artifact(tmp_path / "job", "gate_scan.json")
    assert (found["num_samples"], found["of_samples"], found["measured"]) == (5, 12, 1 + 11 + 4)
    assert (progress.done, progress.unit) == (progress.total, "passes")
    loaded, request = context.load_model("tiny-directional"), read_request(GatesJob, ONE | {"limit": 5})
    data = prepare(loaded, samples_of(request, context, "text").samples)
    edges, model = position_edges(64), loaded.model
    done = {one.name: text_losses(model, data, one.act, edges) for one in conditions(model.config)}
    counts = done["as trained"][1]
    wanted = scan_answer(model.config, counts, {name: sums for name, (sums, _) in done.items()}, edges)
    assert {name: found[name] for name in wanted} == wanted
    best = max(found["heads"], key=lambda row: row["rise"])
    assert progress.result["most_important"][0]["head"] == best["head"]


def test_a_killed_scan_does_at_most_one_condition_again(
    context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenpaths.engine.edits import gate_scan

    to_the_end(context, tmp_path / "whole", limit=4)
    measured, add = [], gate_scan.add_losses

    def dies(*arguments: Any) -> None:
        measured.append(arguments[5])
        if len(measured) in (3, 9):
            raise KeyboardInterrupt
        add(*arguments)

    monkeypatch.setattr(gate_scan, "add_losses", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            to_the_end(context, tmp_path / "killed", limit=4)
    to_the_end(context, tmp_path / "killed", limit=4)
    assert len(measured) == 16 + 2  # one pass a condition
    assert artifact(tmp_path / "killed", "gate_scan.json") == artifact(tmp_path / "whole", "gate_scan.json")
    with pytest.raises(UserError, match="begun with another request"):
        to_the_end(context, tmp_path / "killed", limit=5)


def test_a_scan_works_in_slices_and_grows_its_artifact(
    context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gates_job, "SLICE_SECONDS", 1e-9)
    job = GatesJob.start(read_request(GatesJob, ONE | {"limit": 3}), tmp_path, context)
    seen = [job.advance() for _ in range(6)]
    assert [progress.total for progress in seen[:2]] == [None, None]  # texts are read
    assert not seen[-1].finished
    assert seen[-1].message
    assert 1 <= artifact(tmp_path, "gate_scan.json")["measured"] < 16
    assert sum(1 for _ in iter(lambda: job.advance().finished, True)) < 16
    assert artifact(tmp_path, "gate_scan.json")["measured"] == 16


@pytest.mark.parametrize("other", [None, 7])
def test_a_word_is_what_the_model_says_of_it(context: JobContext, tmp_path: Path, other: int | None) -> None:
    progress = to_the_end(context, tmp_path, sample=2, position=3, **({} if other is None else {"other": other}))
    found, loaded = artifact(tmp_path, "gate_word.json"), context.load_model("tiny-directional")
    with context.open_run("directional") as run:
        (sample,) = samples_of(read_request(GatesJob, ONE | {"sample": 2, "position": 3}), context, "text").samples
        gates = torch.tensor(run.soft("gates", sample=other)["values"])
    ids = torch.from_numpy(loaded.encode(sample.text).ids).long()
    assert (found["token_id"], found["follows"]) == (int(ids[4]), found["word"])
    logits = loaded.model(ids[None]).logits[0, 3]
    assert found["logit"]["all"] == pytest.approx(float(logits[ids[4]] - logits.mean()), abs=1e-4)
    parts = [found["logit"][name] for name in ("embedding", "heads", "removed", "mlps")]
    assert sum(parts) == pytest.approx(found["logit"]["all"], abs=1e-4)
    assert sum(row["logit"] for row in found["directions"]) == pytest.approx(found["logit"]["removed"], abs=1e-5)
    assert len(found["directions"]) == 2 * 2 * 2
    names = ["as trained", "off", "neutral", "full", "mean gates"] + ([] if other is None else ["gates of text 7"])
    assert [row["name"] for row in found["conditions"]] == names
    act = Interventions.swapped(gates[None, None])
    wanted = loaded.model(ids[None], None, act).logits[0, 3].softmax(dim=-1)[ids[4]]
    assert found["conditions"][-1]["probability"] == pytest.approx(float(wanted), rel=1e-4)
    assert progress.result["probability"]["as trained"] == found["conditions"][0]["probability"]


def test_a_word_that_is_asked_for_may_come_with_its_space(context: JobContext, tmp_path: Path) -> None:
    loaded = context.load_model("tiny-directional")
    texts = loaded.token_texts()
    spaced = next(i for i, text in sorted(texts.items()) if text.startswith(" ") and len(text) > 3)
    word = texts[spaced].strip()
    to_the_end(context, tmp_path, sample=0, position=1, word=word)
    assert artifact(tmp_path, "gate_word.json")["word"].strip() == word
    with pytest.raises(UserError, match="tokens of this model") as error:
        to_the_end(context, tmp_path, sample=0, position=1, word="zzqqxx yyy")
    assert error.value.field == "word"


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"model": "tiny-hmodel"}, "model", "is of the family hmodel; only Directional Routing"),
        ({"sample": 99, "position": 0}, "sample", "99"),
        ({"sample": 0, "position": 0, "other": 99}, "other", "99"),
        ({"sample": 0}, "request", "sample and position go together"),
        ({"word": "a"}, "request", "word and other are of one text"),
        ({"run": "hmodel", "sample": 0, "position": 0}, "run", "is of the model tiny-hmodel"),
        ({"limit": 100000}, "limit", "512"),
        ({"run": None}, "request", "give data or run"),
        ({"sample": 0, "position": 5000}, "position", "tokens, so 0 to"),
    ],
)
def test_what_cannot_be_is_refused(
    context: JobContext, tmp_path: Path, values: dict[str, Any], field: str, words: str
) -> None:
    with pytest.raises(UserError) as error:
        to_the_end(context, tmp_path, **values)
    assert words in str(error.value)
    assert error.value.field == field


def test_the_last_token_of_a_text_has_no_next_one(context: JobContext, tmp_path: Path) -> None:
    (sample,) = samples_of(read_request(GatesJob, ONE | {"sample": 0, "position": 0}), context, "text").samples
    last = len(context.load_model("tiny-directional").encode(sample.text).ids) - 1
    with pytest.raises(UserError, match="last token of the text") as error:
        to_the_end(context, tmp_path, sample=0, position=last)
    assert error.value.field == "word"


def test_the_kind_is_registered_and_needs_no_torch_to_be_asked_for() -> None:
    import subprocess
    import sys

    assert find_kind("gates") is GatesJob
    code = "import sys, tokenpaths.engine.jobs.gates.gates_job; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
