"""The job ``reroute``: sweeps that go on where they were killed, an edited run beside the unchanged one."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.checkpoints import WORDS, save_tiny
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.edits.sweep import module_rows, share_rows
from tokenpaths.engine.jobs.registry import JobContext, find_kind, read_request
from tokenpaths.engine.jobs.reroute import RerouteJob
from tokenpaths.engine.jobs.reroute_data import samples_of
from tokenpaths.engine.jobs.traces.trace import TraceJob
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import choices_of, load_model

MODELS = Path(__file__).resolve().parents[3] / "data" / "models"


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("edits")
    save_tiny(folder / "models" / "tiny", "text")
    save_tiny(folder / "models" / "seeing", "vision")
    (folder / "inbox").mkdir()
    for place in range(3):
        (folder / "inbox" / f"{place}.txt").write_text(WORDS[place * 5 :])
    (folder / "inbox" / "words.jsonl").write_text(
        "\n".join(json.dumps({"text": WORDS[place * 5 :], "label": "abc"[place]}) for place in range(3))
    )
    (folder / "runs").mkdir()
    return folder


def context_of(home: Path) -> JobContext:
    return JobContext(home, (home / "models",), lambda name: load_model(name, [home / "models"], device="cpu"))


def request_of(**values):
    return read_request(RerouteJob, {"model": "tiny", "data": "words.jsonl"} | values)


def run_to_the_end(home: Path, folder: Path, request, most: int = 400):
    folder.mkdir(exist_ok=True)
    job = RerouteJob.start(request, folder, context_of(home))
    for _ in range(most):
        if (progress := job.advance()).finished:
            job.close()
            return progress
    raise AssertionError("never finished")


def test_a_sweep_over_modules_and_its_table(home, tmp_path):
    progress = run_to_the_end(home, tmp_path / "job", request_of(sweep="modules"))
    table = json.loads((tmp_path / "job" / "artifacts" / "importance.json").read_text())
    rows = table["rows"]
    # Six modules, each at three steps and at all of them.
    assert (progress.done, progress.total, len(rows)) == (24, 24, 24)
    assert {(r["module"], r["step"]) for r in rows} == {(m, s) for m in range(6) for s in (0, 1, 2, None)}
    assert all(r["problem"] is None and r["loss_change"] is not None for r in rows)
    assert any(r["loss_change"] != 0 for r in rows)
    best = max(rows, key=lambda r: r["loss_change"])
    assert progress.result["most_important"][0]["module"] == best["module"]
    with open(tmp_path / "job" / "artifacts" / "importance.csv", newline="") as file:
        listed = list(csv.DictReader(file))
    assert [float(r["loss_change"]) for r in listed] == [r["loss_change"] for r in rows]


def test_a_killed_sweep_does_at_most_one_row_again(home, tmp_path, monkeypatch):
    from tokenpaths.engine.edits import measure
    from tokenpaths.engine.jobs import reroute as job

    measured = []
    answer = measure.Measurement.answer
    monkeypatch.setattr(
        measure.Measurement, "answer", lambda self: measured.append(self._model.controls) or answer(self)
    )
    monkeypatch.setattr(job, "SLICE_SECONDS", 60.0)
    whole = run_to_the_end(home, tmp_path / "whole", request_of(sweep="modules"))
    assert len(measured) == 24
    measured.clear()

    kept = measure.Measurement.advance
    count = [0]

    def dies(self):
        count[0] += 1
        if count[0] in (5, 9, 20):
            raise KeyboardInterrupt  # as good as a kill: nothing of this slice is tidied up
        kept(self)

    monkeypatch.setattr(measure.Measurement, "advance", dies)
    folder = tmp_path / "killed"
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_to_the_end(home, folder, request_of(sweep="modules"))
    again = run_to_the_end(home, folder, request_of(sweep="modules"))
    assert again.result == whole.result
    both = [json.loads((tmp_path / name / "artifacts" / "importance.json").read_text()) for name in ("whole", "killed")]
    assert both[0] == both[1]
    assert len(measured) == 24, "a finished row was done again"


@pytest.mark.parametrize("of", ["data", "run"])
def test_a_sweep_does_not_go_on_over_other_samples(home, tmp_path, of):
    """A file of the inbox is replaced, a run is made anew under its name: rows of both would stand in one table."""
    file, run = home / "inbox" / "again.jsonl", home / "runs" / "again.duckdb"
    folder = tmp_path / "job"
    folder.mkdir()
    for words in (WORDS, WORDS[4:]):
        file.write_text(json.dumps({"text": words}))
        run.unlink(missing_ok=True)
        trace = read_request(TraceJob, {"model": "tiny", "data": "again.jsonl", "run": "again", "twin": False})
        place = tmp_path / words[:3]
        place.mkdir()
        work = TraceJob.start(trace, place, context_of(home))
        while not work.advance().finished:
            pass
        work.close()
        asked = request_of(
            sweep="modules", **{"data": "again.jsonl"} if of == "data" else {"data": None, "run": "again"}
        )
        if words == WORDS:
            job = RerouteJob.start(asked, folder, context_of(home))
            while not job.done:
                job.advance()
            job.close()
    with pytest.raises(UserError, match="begun with another set of samples; start it anew"):
        RerouteJob.start(asked, folder, context_of(home))


def test_a_sweep_that_goes_on_counts_what_it_has_kept_while_it_reads(home, tmp_path, monkeypatch):
    def started():
        (tmp_path / "job").mkdir(exist_ok=True)
        return RerouteJob.start(request_of(sweep="modules"), tmp_path / "job", context_of(home))

    job = started()
    while not job.done:
        job.advance()
    again = started()
    monkeypatch.setattr(again.reading, "advance", lambda ends: None)
    told = again.advance()
    assert (told.done, told.total, told.unit) == (len(job.done), 24, "edits")


def test_shares_of_the_most_used_the_least_used_and_random_ones(home, tmp_path):
    import numpy as np

    usage = np.array([[5, 9, 1, 0], [0, 2, 3, 8]])
    rows = share_rows(usage, (0.3, 0.9), [range(4), range(4)], must_leave=2, seed=0)
    banned = {(r.share, r.which): [e["modules"] for e in r.edits] for r in rows}
    assert banned[0.3, "top"] == [[0, 1], [2, 3]]  # ⌈0.3 · 4⌉ = 2
    assert banned[0.3, "bottom"] == [[2, 3], [0, 1]]
    assert banned[0.9, "top"] == banned[0.3, "top"]  # two must be left
    assert all(len(m) == 2 for m in banned[0.9, "random"])
    assert [r.banned for r in rows] == [4] * 6
    with pytest.raises(UserError, match="no module can be banned: a step has 2, and 2 must be left"):
        share_rows(usage, (0.5,), [range(2), range(2)], must_leave=2)
    progress = run_to_the_end(home, tmp_path / "job", request_of(sweep="shares", shares=[0.25, 0.5]))
    table = json.loads((tmp_path / "job" / "artifacts" / "importance.json").read_text())
    assert progress.total == len(table["rows"]) == 6
    assert [r["banned"] for r in table["rows"]] == [6] * 3 + [9] * 3


def test_modules_of_a_step_are_banned_there_only():
    modules = [
        ModuleInfo(0, 0, "a", "expert", 1, 1),
        ModuleInfo(0, 1, "a off", "identity", 0, 0),
        ModuleInfo(1, 0, "b", "expert", 1, 1),
    ]
    choices = choices_of(modules, 2)
    assert choices == [[0], [0]]
    assert [(r.step, r.module, r.name) for r in module_rows(modules, choices)] == [(0, 0, "a"), (1, 0, "b")]
    anywhere = [ModuleInfo(None, 0, "skip", "identity", 0, 0)]
    assert [r.step for r in module_rows(anywhere, choices_of(anywhere, 2))] == [0, 1, None]
    assert module_rows(anywhere, choices_of(anywhere, 2, identities=False)) == []


@pytest.mark.parametrize("bank", ["shared", "of each step"])
def test_every_row_of_a_sweep_over_blocks_that_take_their_tokens_can_be_run(bank: str):
    """Identities stand for the tokens that no block takes: none is banned, and every block of a step may be."""
    own = {"transformers": 2, "identities": 2, "top_k": 1, "choices": ((0, 2), (1, 3))}
    changes = {"transformers": 2, "identities": 2, "top_k": 2} if bank == "shared" else own
    small = {
        "modality": "text",
        "width": 16,
        "heads": 2,
        "mlp_width": 32,
        "backbone": 1,
        "vocab_size": 50,
        "context": 8,
    }
    model = DNA(DNAConfig(**small, steps=2, router="expert", capacity=0.5, **changes))
    table = model.module_table()
    choices = choices_of(table, 2, identities=not model.identities_stay)
    assert choices == ([[0, 1]] * 2 if bank == "shared" else [[0], [1]])
    rows = module_rows(table, choices) + share_rows(np.ones((2, 4), dtype=int), [0.5], choices, model.must_leave)
    assert len(rows) == (6 if bank == "shared" else 2) + 3
    for row in rows:
        assert model.plan(model.read_controls({"edits": list(row.edits)})) is not None


@pytest.mark.parametrize("asked", [{"controls": {"edits": [{"edit": "ban", "modules": [0]}]}}, {"sweep": "modules"}])
def test_a_job_counts_the_same_from_its_first_slice_on(home, tmp_path, monkeypatch, asked):
    """The queue takes a new unit for progress: one that comes back in every life would hide workers that die."""
    monkeypatch.setattr("tokenpaths.engine.jobs.reroute.SLICE_SECONDS", 1e-9)  # so that reading takes several slices
    job = RerouteJob.start(request_of(**asked), tmp_path, context_of(home))
    units = {job.advance().unit for _ in range(12)}
    job.close()
    assert len(units) == 1


def test_one_edit_leaves_two_runs_and_the_effect_between_them(home, tmp_path):
    edits = [{"edit": "ban", "modules": [0, 1], "step": 1}]
    request = request_of(controls={"edits": edits}, name="edited")
    progress = run_to_the_end(home, tmp_path / "job", request)
    before, after = progress.result["runs"]
    assert after == progress.result["run"] == "edited"
    with Run.open(home / "runs" / f"{before}.duckdb") as old, Run.open(home / "runs" / "edited.duckdb") as new:
        found = new.effect(old)
        outputs = found["outputs"]
        assert new.info()["config"]["controls"]["edits"][0]["modules"] == [0, 1]
    # Two ways to the same numbers: the pass without files, and the sealed runs.
    for name in ("paths_changed", "paths_changed_after", "path_distance", "flow_difference", "num_tokens"):
        assert found[name] == pytest.approx(outputs[name])
    assert found["loss"]["change"] == pytest.approx(outputs["loss"]["change"], abs=1e-5)
    assert found["perplexity"]["after"] == pytest.approx(outputs["perplexity"]["after"], rel=1e-5)
    assert found["after_step"] == 1
    assert found["outputs"]["kl"] > 0
    assert found["loss"]["change"] != 0

    # The same from the texts that the run keeps: nothing is traced twice.
    again = run_to_the_end(
        home,
        tmp_path / "again",
        read_request(RerouteJob, {"model": "tiny", "run": before, "controls": {"edits": edits}, "limit": 3}),
    )
    assert again.result["runs"][0] == before
    assert again.result["effect"]["loss"]["change"] == pytest.approx(outputs["loss"]["change"], abs=1e-5)


def test_a_run_of_other_weights_or_of_edits_is_not_taken_for_the_unchanged_one(home, tmp_path):
    """Its samples are run again all the same: an unchanged run of these weights is made beside the edited one."""
    from tokenpaths.engine.tracing.trace_run import trace_samples

    save_tiny(home / "models" / "other", "text", seed=5)
    data = list(samples_of(request_of(sweep="modules"), context_of(home), "text").samples)
    loaded = {name: context_of(home).load_model(name) for name in ("tiny", "other")}
    edit = {"edits": [{"edit": "ban", "modules": [0], "step": 1}]}
    trace_samples(loaded["other"], data, home / "runs", run_id="of-other", twin=False)
    trace_samples(loaded["tiny"].with_controls(edit), data, home / "runs", run_id="of-edits", twin=False)
    for place, source in enumerate(("of-other", "of-edits")):
        request = read_request(RerouteJob, {"model": "tiny", "run": source, "controls": edit, "limit": 2})
        before, after = run_to_the_end(home, tmp_path / str(place), request).result["runs"]
        assert before not in ("of-other", "of-edits")
        with Run.open(home / "runs" / f"{before}.duckdb") as old, Run.open(home / "runs" / f"{after}.duckdb") as new:
            assert old.row["checkpoint_sha256"] == new.row["checkpoint_sha256"] == loaded["tiny"].sha256
            assert "controls" not in old.info()["config"]
            assert new.effect(old)["paths_changed"] > 0


@pytest.mark.parametrize("as_the_model_saw", [True, False])
def test_an_edit_that_changes_nothing_has_no_effect_beside_a_run_of_pictures(home, tmp_path, as_the_model_saw):
    """A run keeps pictures of other sizes than the model's scaled: scaled again they take other routes."""
    from PIL import Image

    from tokenpaths.engine.data.datasets import Sample
    from tokenpaths.engine.tracing.trace_run import trace_samples

    loaded = context_of(home).load_model("seeing")
    side, rng = loaded.image_size if as_the_model_saw else 3 * loaded.image_size - 5, np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)) for _ in range(6)]
    run_id = f"pictures-{side}"
    samples = [Sample(image=image, text=None, label=None, source=str(i)) for i, image in enumerate(images)]
    trace_samples(loaded, samples, home / "runs", run_id=run_id, twin=False)
    nothing = {"edits": [{"edit": "bias", "modules": [0], "value": 0.0, "step": 2}]}
    request = read_request(RerouteJob, {"model": "seeing", "run": run_id, "controls": nothing})
    before, after = run_to_the_end(home, tmp_path / "job", request).result["runs"]
    assert (before == run_id) == as_the_model_saw
    with Run.open(home / "runs" / f"{before}.duckdb") as old, Run.open(home / "runs" / f"{after}.duckdb") as new:
        found = new.effect(old)
        assert found["num_samples"] == 6
        assert found["paths_changed"] == found["flow_difference"] == found["outputs"]["kl"] == 0
        assert [row["confidence"] for row in old.samples()["samples"]] == [
            row["confidence"] for row in new.samples()["samples"]
        ]


def test_samples_of_a_run_are_drawn_over_all_of_it_and_said_of_how_many(home, tmp_path):
    """Labels stand in order: the first samples of the run would be of one label."""
    from tokenpaths.engine.data.datasets import Sample
    from tokenpaths.engine.tracing.trace_run import trace_samples

    loaded = context_of(home).load_model("tiny")
    texts = [Sample(image=None, text=WORDS[3 * n :], label="abc"[n // 4], source=f"s{n}") for n in range(12)]
    trace_samples(loaded, texts, home / "runs", run_id="in-order", twin=False)
    wish = {"model": "tiny", "run": "in-order", "limit": 3}
    swept = read_request(RerouteJob, wish | {"sweep": "shares", "shares": [0.5]})
    drawn = list(samples_of(swept, context_of(home), "text").samples)
    assert [sample.label for sample in drawn] == ["a", "b", "c"]
    assert [sample.text for sample in drawn] == [texts[int(sample.source[1:])].text for sample in drawn]
    run_to_the_end(home, tmp_path / "sweep", swept)
    found = json.loads((tmp_path / "sweep" / "artifacts" / "importance.json").read_text())
    assert (found["num_samples"], found["of_samples"]) == (3, 12)
    # The unchanged run beside the edited one is of the same three.
    edit = {"edits": [{"edit": "ban", "modules": [0], "step": 1}]}
    result = run_to_the_end(home, tmp_path / "edit", read_request(RerouteJob, wish | {"controls": edit})).result
    assert (result["num_samples"], result["of_samples"]) == (3, 12)
    before, after = (home / "runs" / f"{name}.duckdb" for name in result["runs"])
    with Run.open(before) as old, Run.open(after) as new:
        assert [row["label"] for row in old.samples()["samples"]] == ["a", "b", "c"]
        found = new.effect(old)
        assert (found["num_samples"], found["of_samples"], found["outputs"]["of_samples"]) == (3, 12, 12)


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_one_sample_of_each_part_of_a_run(limit):
    from tokenpaths.engine.store.ask.several_runs.edit_effects import drawn_samples

    numbers = drawn_samples(100, limit).tolist()
    assert len(numbers) == limit
    assert all(part * 100 // limit <= number < (part + 1) * 100 // limit for part, number in enumerate(numbers))
    assert numbers == drawn_samples(100, limit).tolist()
    assert drawn_samples(limit, 100).tolist() == list(range(limit))
    # Labels that take turns are met too, which every n-th sample would miss.
    assert {number % 2 for number in drawn_samples(1000, 100).tolist()} == {0, 1}


def test_one_sample_beside_the_same_in_a_larger_run(home, tmp_path):
    from tokenpaths.engine.data.datasets import Sample
    from tokenpaths.engine.tracing.trace_run import trace_samples

    loaded = context_of(home).load_model("tiny")
    texts = [Sample(image=None, text=text, label=None, source="t") for text in ("other words", WORDS[:20])]
    before = trace_samples(loaded, texts, tmp_path, run_id="before", twin=False)
    changed = loaded.with_controls({"edits": [{"edit": "force", "module": 1, "step": 0, "tokens": [0]}]})
    after = trace_samples(changed, texts[1:], tmp_path, run_id="after", twin=False)
    with Run.open(before) as old, Run.open(after) as new:
        found = new.effect(old, sample=1)
        ribbons = [[t["ribbon"] for t in run.sample(n)["tokens"]] for run, n in ((old, 1), (new, 0))]
        moved = [[s for s in range(3) if set(a[s]) != set(b[s])] for a, b in zip(*ribbons, strict=True)]
        assert [row["moved"] for row in found["tokens"]] == moved
        assert found["paths_changed"] == pytest.approx(sum(map(bool, moved)) / len(moved))
        assert found["outputs"] is None
        with pytest.raises(UserError, match="has 1 samples, 'after'|sample 0 of 'after' has"):
            new.effect(old, sample=0)
        with pytest.raises(UserError, match="has samples 0 to 1, not 2"):
            new.effect(old, sample=2)
        with pytest.raises(UserError, match="has 2 samples, 'after' only 1"):
            old.effect(new)


def test_one_edit_over_scenes_keeps_their_regions(home, tmp_path):
    controls = {"edits": [{"edit": "ban", "modules": [0], "step": 1}]}
    request = read_request(
        RerouteJob, {"model": "seeing", "data": "bundled:scenes", "limit": 3, "controls": controls, "name": "scenes"}
    )
    progress = run_to_the_end(home, tmp_path / "job", request)
    for name in progress.result["runs"]:
        with Run.open(home / "runs" / f"{name}.duckdb") as run:
            assert {token["region"] for token in run.sample(0)["tokens"]} == {"background", "boundary", "object"}


def stopped_after(home: Path, folder: Path, request, monkeypatch) -> None:
    """A job with a state: one row of a sweep, or the effect of an edit."""
    from tokenpaths.engine.jobs import reroute as job

    folder.mkdir()
    monkeypatch.setattr(job, "SLICE_SECONDS", 0.0001)
    work = RerouteJob.start(request, folder, context_of(home))
    for _ in range(200):
        if (folder / "state.json").is_file():
            break
        work.advance()
    work.close()
    assert (folder / "state.json").is_file()


CHANGED = {"another checkpoint": ({}, 1), "another request": ({"limit": 2}, 0)}


@pytest.mark.parametrize("what", CHANGED)
@pytest.mark.parametrize("values", [{"sweep": "modules"}, {"controls": {"edits": [{"edit": "ban", "modules": [0]}]}}])
def test_a_job_does_not_go_on_with_what_another_model_or_request_measured(
    home, tmp_path, monkeypatch, what: str, values: dict
):
    changes, seed = CHANGED[what]
    models = tmp_path / "models"
    save_tiny(models / "tiny", "text")
    context = JobContext(home, (models,), lambda name: load_model(name, [models], device="cpu"))
    folder = tmp_path / "job"
    stopped_after(home, folder, request_of(**values), monkeypatch)
    RerouteJob.start(request_of(**values), folder, context).close()  # the same weights, so all is well
    if seed:
        save_tiny(models / "tiny", "text", seed=seed)
    kept = (folder / "state.json").read_bytes()
    with pytest.raises(UserError, match=f"begun with {what}; start it anew"):
        RerouteJob.start(request_of(**values | changes), folder, context)
    assert (folder / "state.json").read_bytes() == kept
    (folder / "state.json").write_bytes(b"{")
    with pytest.raises(UserError, match="cannot be read"):
        RerouteJob.start(request_of(**values), folder, context)


REFUSED = {
    "give data or run": {"run": "x", "controls": {"alpha": 1}},
    "give controls .one edit. or sweep": {},
    "controls is empty": {"controls": {}},
    "each lies between 0 and 1": {"sweep": "shares", "shares": [1.5]},
    "less than or equal to 4096": {"sweep": "modules", "limit": 10**9},
    "a sweep makes no run": {"sweep": "modules", "name": "x"},
    "has no `sweeps`": {"sweeps": "modules"},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_requests_are_refused_before_anything_is_loaded(sentence: str):
    with pytest.raises(UserError, match=sentence):
        request_of(**REFUSED[sentence])


def test_what_only_the_data_folder_knows_is_refused_when_the_job_is_submitted(home):
    for sentence, values in {
        "There is no model 'tiy'; did you mean 'tiny'": {"model": "tiy", "sweep": "modules"},
        "is nothing for this model": {"data": "bundled:scenes", "sweep": "modules"},
        "There is no 'words.json'": {"data": "words.json", "sweep": "modules"},
        "There is no run": {"data": None, "run": "gone", "sweep": "modules"},
    }.items():
        with pytest.raises(UserError, match=sentence):
            RerouteJob.check(request_of(**values), context_of(home))
    request = request_of(controls={"edits": [{"edit": "ban", "modules": [0, 1, 2, 3, 4]}]})
    with pytest.raises(UserError, match="top-k needs 2"):
        RerouteJob.start(request, home, context_of(home))


FITS_NOT = {
    "top-k needs 2": ("controls.edits", [{"edit": "ban", "modules": [0, 1, 2, 3, 4]}]),
    "there is no step 9; this model has the steps 0 to 2": (
        "controls.edits.0.step",
        [{"edit": "ban", "modules": [1], "step": 9}],
    ),
    "has no edit 'bann'": ("controls.edits", [{"edit": "bann", "modules": [1]}]),
    "the list of edits is empty": ("controls.edits", []),
    "is banned at step 1 and tokens are forced to it": (
        "controls.edits",
        [{"edit": "ban", "modules": [2]}, {"edit": "force", "module": 2, "step": 1}],
    ),
    "every token is forced to module 2 and to module 3 at step 1": (
        "controls.edits",
        [{"edit": "force", "module": 2}, {"edit": "force", "module": 3, "step": 1}],
    ),
    "token 4 is forced to module 2 and to module 3 at step 1": (
        "controls.edits",
        [
            {"edit": "force", "module": 2, "step": 1, "tokens": [1, 4]},
            {"edit": "force", "module": 3, "step": 1, "tokens": [4, 5]},
        ],
    ),
}


@pytest.mark.parametrize("sentence", FITS_NOT)
def test_edits_that_do_not_fit_are_refused_when_the_job_is_submitted(home, sentence):
    """The context holds no models: config.json says enough."""
    where, edits = FITS_NOT[sentence]
    context = JobContext(home, (home / "models",))
    with pytest.raises(UserError, match=sentence) as refused:
        RerouteJob.check(request_of(controls={"edits": edits}), context)
    assert refused.value.field == where
    loaded = load_model("tiny", [home / "models"], device="cpu")
    with pytest.raises(UserError, match=sentence):
        loaded.with_controls({"edits": edits})  # what is refused is what would have failed
    trace = read_request(TraceJob, {"model": "tiny", "data": "words.jsonl", "controls": {"edits": edits}})
    with pytest.raises(UserError, match=sentence):
        TraceJob.check(trace, context)


def test_edits_of_another_family_are_refused_when_the_job_is_submitted(tmp_path):
    """Over the shipped configurations: what fits is let through, an edit of another family is not."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "one.txt").write_text(WORDS)
    context = JobContext(tmp_path, (MODELS,))
    for model, other in {
        "hmodel-languages": "shuffle",
        "dipaco-2x2": "freeze",
        "directional-text": "bias",
        "raytracing-digits": "force",
    }.items():
        data = "bundled:digits" if model.startswith("ray") else "one.txt"

        def request(edit, model=model, data=data):
            return request_of(model=model, data=data, controls={"edits": [edit]})

        RerouteJob.check(request({"edit": "ban", "modules": [1], "step": 0}), context)
        for edit, sentence in (
            ({"edit": other, "module": 1}, f"has no edit '{other}'"),
            ({"edit": "ban", "modules": [1], "step": 99}, "there is no step 99"),
        ):
            with pytest.raises(UserError, match=sentence) as refused:
                RerouteJob.check(request(edit), context)
            assert refused.value.field.startswith("controls.edits")
    with pytest.raises(UserError, match="has no control 'zzz'") as refused:
        RerouteJob.check(request_of(model="directional-text", data="one.txt", controls={"zzz": 1}), context)
    assert refused.value.field == "controls.zzz"


def test_the_run_of_another_job_is_not_taken_for_its_own(home, tmp_path, monkeypatch):
    """Two jobs that want one name: the first stops before its edited run is sealed, the second is quicker."""
    from tokenpaths.engine.jobs import reroute as job

    request = request_of(controls={"edits": [{"edit": "ban", "modules": [2]}]}, name="wanted-twice")
    folder = tmp_path / "first"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(job, "SLICE_SECONDS", 0.0001)
        first = RerouteJob.start(request, folder, context_of(home))
        for _ in range(200):
            if (folder / "after" / "run.json").is_file():
                break
            first.advance()
        first.close()
    assert not (home / "runs" / "wanted-twice.duckdb").exists()
    run_to_the_end(home, tmp_path / "second", request)
    with pytest.raises(UserError, match="There is a run 'wanted-twice' already"):
        run_to_the_end(home, folder, request)
    # The second, killed after it was sealed and before anybody was told, knows it as its own.
    assert run_to_the_end(home, tmp_path / "second", request).result["run"] == "wanted-twice"


def test_the_queue_finds_the_kind_without_torch():
    assert find_kind("reroute") is RerouteJob
    modules = "tokenpaths.engine.jobs.reroute, tokenpaths.engine.families.family_controls"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
