"""One edit of a Hugging Face model as a job: the numbers of the Python functions, killed or not; what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.jobs.test_reroute_experts import SAMPLES, context_of, make_home, run_to_the_end
from tests.support.tiny_huggingface import changed_config, copied, effect_over
from tokenpaths.engine.adapters.huggingface import tracing
from tokenpaths.engine.adapters.huggingface.config import layout_of, read_config
from tokenpaths.engine.adapters.huggingface.inspection import find_model
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import PASS_TOKENS, HuggingFaceModel
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.measure import Measurement, measure_effect
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.edits.sweep import usage_of, with_share
from tokenpaths.engine.jobs import reroute
from tokenpaths.engine.jobs.model_outline import ExpertsOutline
from tokenpaths.engine.jobs.registry import JobContext, read_request
from tokenpaths.engine.jobs.reroute import RerouteJob
from tokenpaths.engine.jobs.titles import job_title
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.trace_run import trace_samples

MODELS = ["mixtral", "qwen2_moe"]
BANS = [{"edit": "ban", "modules": [0, 3], "step": 0}, {"edit": "ban", "modules": [5]}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("edited"), MODELS)


def request_of(kind: str = "mixtral", **values: Any) -> Any:
    given = {"model": f"hf:tiny-{kind}.v1", "data": "words.jsonl", "controls": {"edits": BANS}} | values
    return read_request(RerouteJob, {name: value for name, value in given.items() if value is not None})


def model_of(home: Path, kind: str = "mixtral") -> HuggingFaceModel:
    return context_of(home).load_model(f"hf:tiny-{kind}.v1")


def kept(home: Path, run_id: str) -> list[Any]:
    """All that a run says of its samples, tokens and paths."""
    with Run.open(home / "runs" / f"{run_id}.duckdb") as run:
        answers = [run.sample(number) for number in range(run.row["num_samples"])]
        answers += [run.flow(), run.usage(), run.paths(limit=50)]
    return [{name: value for name, value in answer.items() if name != "run"} for answer in answers]


def effect_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "artifacts" / "effect.json").read_text())


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("controls", [{"edits": BANS}, {"ban_share": 0.3, "which": "random", "seed": 4}])
def test_a_job_gives_the_numbers_of_the_python_functions(
    home: Path, tmp_path: Path, kind: str, controls: dict[str, Any]
) -> None:
    progress = run_to_the_end(home, tmp_path / "job", request_of(kind, controls=controls))
    loaded = model_of(home, kind)
    data, edited = prepare(loaded, SAMPLES), loaded.with_controls(controls)
    if "ban_share" in controls:
        edited = with_share(edited, usage_of(loaded, data))
    effect = measure_effect(edited, data)
    assert effect_of(tmp_path / "job") == effect
    assert effect["kl"] > 0
    assert effect["num_samples"] == len(SAMPLES)
    before, after = progress.result["runs"]
    assert progress.result["run"] == after
    how: Any = {"dataset": "words", "batch_size": PASS_TOKENS // 64, "overwrite": True, "twin": False}
    trace_samples(loaded, texts_of(home), home / "runs", run_id="by-hand-before", **how)
    trace_samples(edited, texts_of(home), home / "runs", run_id="by-hand", findings={"effect": effect}, **how)
    assert kept(home, before) == kept(home, "by-hand-before")
    assert kept(home, after) == kept(home, "by-hand")
    assert kept(home, before)[:4] != kept(home, after)[:4]
    with Run.open(home / "runs" / f"{after}.duckdb") as new, Run.open(home / "runs" / f"{before}.duckdb") as old:
        found = new.effect(old)
        assert new.info()["config"]["controls"] == json.loads(json.dumps(edited.controls.given()))
    assert found["outputs"] == effect | {"of_samples": None}
    for name in ("paths_changed", "paths_changed_after", "path_distance", "flow_difference"):
        assert found[name] == pytest.approx(effect[name], abs=1e-6)
    assert found["loss"]["change"] == pytest.approx(effect["loss"]["change"], abs=1e-4)
    rounds = 3 + ("ban_share" in controls)
    assert (progress.done, progress.total, progress.unit) == (rounds * len(SAMPLES), rounds * len(SAMPLES), "samples")


def texts_of(home: Path) -> Any:
    """The texts as a job reads them."""
    from tokenpaths.engine.data.datasets import open_dataset

    return open_dataset(home / "inbox" / "words.jsonl", "text")


def test_samples_of_a_run_and_the_run_itself_as_the_unchanged_one(home: Path, tmp_path: Path) -> None:
    """A checkpoint of the hub is called by its owner too, and jobs name its folder alone: both are one model."""
    loaded = replace(model_of(home), name="somebody/tiny-mixtral.v1")
    trace_samples(loaded, SAMPLES, home / "runs", run_id="seen", dataset="toy", batch_size=PASS_TOKENS // 64)
    whole = run_to_the_end(home, tmp_path / "whole", request_of(data=None, run="seen", name="all-of-it"))
    assert whole.result["runs"] == ["seen", "all-of-it"]
    assert whole.total == 2 * len(SAMPLES)
    with Run.open(home / "runs" / "all-of-it.duckdb") as new, Run.open(home / "runs" / "seen.duckdb") as old:
        assert new.row["model"] == "somebody/tiny-mixtral.v1"
        assert new.effect(old)["paths_changed"] == pytest.approx(effect_of(tmp_path / "whole")["paths_changed"])
    request = request_of(data=None, run="seen", sample=2)
    one = run_to_the_end(home, tmp_path / "one", request)
    before, after = one.result["runs"]
    assert (one.result["num_samples"], one.result["of_samples"]) == (1, len(SAMPLES))
    with Run.open(home / "runs" / f"{after}.duckdb") as new, Run.open(home / "runs" / f"{before}.duckdb") as old:
        assert (new.row["num_samples"], new.row["split"], old.row["split"]) == (1, "detour", "detour")
        assert new.sample(0)["text"] == old.sample(0)["text"] == SAMPLES[2].text
        assert new.effect(old, sample=0)["tokens"]
    assert effect_of(tmp_path / "one") == effect_over(loaded, SAMPLES[2:3], BANS)
    title = job_title("reroute", request.model_dump())
    assert title.endswith("hf:tiny-mixtral.v1 over sample 2 of seen")


def test_a_run_of_another_number_format_is_not_the_unchanged_one(home: Path, tmp_path: Path) -> None:
    half = load(find_model(f"hf:{home / 'checkpoints' / 'tiny-mixtral.v1'}"), "cpu", "bfloat16")
    trace_samples(half, SAMPLES, home / "runs", run_id="in-bfloat16", dataset="toy")
    before, after = run_to_the_end(home, tmp_path / "job", request_of(data=None, run="in-bfloat16")).result["runs"]
    assert before != "in-bfloat16"
    with Run.open(home / "runs" / f"{after}.duckdb") as new, Run.open(home / "runs" / f"{before}.duckdb") as old:
        assert new.info()["config"]["huggingface"]["dtype"] == old.info()["config"]["huggingface"]["dtype"] == "float32"


def same_as_never_stopped(home: Path, folder: Path, tmp_path: Path, request: Any) -> None:
    again = run_to_the_end(home, folder, request)
    whole = run_to_the_end(home, tmp_path / "whole", request)
    assert effect_of(folder) == effect_of(tmp_path / "whole")
    assert again.result["effect"] == whole.result["effect"]
    for one, other in zip(again.result["runs"], whole.result["runs"], strict=True):
        assert kept(home, one) == kept(home, other)
    assert not list((home / "runs").glob("*.wal")), "a half run was left"


def test_a_process_that_is_killed_by_the_system_is_gone_on_with(home: Path, tmp_path: Path) -> None:
    """kill -9 behind the effect; nothing is measured again, and what comes out is what one makes that never stopped."""
    folder, code, request = tmp_path / "job", tmp_path / "work.py", request_of(controls={"ban_share": 0.5})
    code.write_text(
        textwrap.dedent(f"""
        import time
        from pathlib import Path
        from tokenpaths.engine.jobs import reroute
        from tokenpaths.engine.store.write.writer import RunWriter
        from tests.engine.jobs.test_reroute_edited_experts import request_of, run_to_the_end
        reroute.SLICE_SECONDS, write = 1e-9, RunWriter.write
        RunWriter.write = lambda *given: (Path({str(tmp_path)!r}, "writes").touch(), time.sleep(60), write(*given))
        run_to_the_end(Path({str(home)!r}), Path({str(folder)!r}), request_of(controls={{"ban_share": 0.5}}))
    """)
    )
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen([sys.executable, code], cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
    while not (tmp_path / "writes").is_file():
        assert process.poll() is None, "it ended before it came so far"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    state = (folder / "state.json").read_bytes()
    same_as_never_stopped(home, folder, tmp_path, request)
    assert (folder / "state.json").read_bytes() == state


def test_a_worker_that_dies_while_it_measures_loses_nothing_but_the_measurement(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, count = Measurement.advance, [0]

    def dies(self: Any) -> None:
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt  # as good as a kill: nothing of this slice is tidied up
        advance(self)

    monkeypatch.setattr(tracing, "PASS_TOKENS", 128)  # so that there are several passes
    monkeypatch.setattr(Measurement, "advance", dies)
    with pytest.raises(KeyboardInterrupt):
        run_to_the_end(home, tmp_path / "job", request_of())
    assert not (tmp_path / "job" / "state.json").is_file()
    same_as_never_stopped(home, tmp_path / "job", tmp_path, request_of())


def test_a_cancel_acts_behind_the_pass_at_hand_and_leaves_the_model_as_it_was(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also within a text that is many times as long as the model's context."""
    monkeypatch.setattr(reroute, "SLICE_SECONDS", 1e-9)
    (home / "inbox" / "long.txt").write_text(" ".join(sample.text or "" for sample in SAMPLES * 12))
    loaded, passes, decide = model_of(home), [], HuggingFaceModel._pass
    monkeypatch.setattr(HuggingFaceModel, "_pass", lambda *given: passes.append(1) or decide(*given))
    context = JobContext(home, huggingface_dir=home / "checkpoints", loader=lambda model: loaded)
    there = sorted((home / "runs").iterdir())
    (tmp_path / "job").mkdir()
    work = RerouteJob.start(request_of(data="long.txt", controls={"edits": BANS}), tmp_path / "job", context)
    most, seen = {}, []
    for _ in range(2000):
        before = len(passes)
        at = work.advance()
        assert not any("forward" in vars(module) for module in loaded.model.modules()), "a mask stays between slices"
        most[at.message] = max(most.get(at.message, 0), len(passes) - before)
        seen.append(at.done)
        if at.message == "tracing the edited run" and len(passes) - before:
            break
    work.close()
    assert most["measuring the effect"] == 2, "the unchanged and the edited pass of one part"
    assert most["tracing the unchanged run"] == most["tracing the edited run"] == 1
    assert seen == sorted(seen)
    made = set((home / "runs").iterdir()) - set(there)
    assert [file.name.startswith("tiny-mixtral-v1-before") for file in made] == [True], "the sealed one stays alone"
    assert loaded.pass_tokens == PASS_TOKENS


REFUSED = {
    "there is no step 9; this model has the steps 0 to 2": (
        [{"edit": "ban", "modules": [1], "step": 9}],
        "edits.0.step",
    ),
    "there is no module 8 at step 1|there is no module 8; it may be one of 0 to 7": (
        [{"edit": "ban", "modules": [1]}, {"edit": "ban", "modules": [8], "step": 1}],
        "edits.1.modules",
    ),
    "step 2 has 1 module left with 7 of 8 banned, and top-k needs 2": (
        [{"edit": "ban", "modules": [0, 1, 2, 3]}, {"edit": "ban", "modules": [4, 5, 6], "step": 2}],
        "edits",
    ),
    "there is no module 8; it may be one of 0 to 7": ([{"edit": "force", "module": 8}], "edits.0.module"),
    "the path has 2 steps; a ribbon of this model has 3": (
        [{"edit": "ban", "modules": [1], "path": [[0, 1], [1, 2]]}],
        "edits.0.path",
    ),
    "step 0 has 8 modules left, and top-k needs 9; give a smaller k": ([{"edit": "top_k", "k": 9}], "edits"),
    "the route given for token 0 has 1 modules at step 0; top-k is 2": (
        [{"edit": "swap", "ribbons": [[[1], [1], [1]]]}],
        "edits",
    ),
    "bias +1 for module 9 at every step: there is no module 9": (
        [{"edit": "bias", "modules": [9], "value": 1}],
        "edits.0.modules",
    ),
    "the list of edits is empty": ([], "edits"),
}
CONTROLS = {
    "a moe model has no control 'alpha'": ({"alpha": 1}, "controls.alpha"),
    "control ban_share is 1.5": ({"ban_share": 1.5}, "controls.ban_share"),
    "give one of the two": ({"ban_share": 0.5, "edits": BANS}, "controls"),
    "which and seed say what ban_share means": ({"edits": BANS, "which": "top"}, "controls"),
    "edit 0 ban": ({"edits": [{"edit": "ban", "modules": []}]}, "controls.edits.0.modules"),
}


def refused(home: Path, request: Any, folder: str = "checkpoints") -> UserError:
    with pytest.raises(UserError) as found:
        RerouteJob.check(request, context_of(home, loads=False, folder=folder))
    assert "\n" not in str(found.value)
    return found.value


@pytest.mark.parametrize("sentence", REFUSED)
def test_edits_that_do_not_fit_are_refused_without_weights(home: Path, sentence: str) -> None:
    edits, where = REFUSED[sentence]
    error = refused(home, request_of(controls={"edits": edits}))
    assert any(part in str(error) for part in sentence.split("|")), str(error)
    assert error.field == f"controls.{where}"
    with pytest.raises(UserError) as later:
        model_of(home).with_controls({"edits": edits})
    assert str(later.value) == str(error), "what is refused is what would have failed"


@pytest.mark.parametrize("sentence", CONTROLS)
def test_controls_that_mean_nothing_are_refused(home: Path, sentence: str) -> None:
    controls, where = CONTROLS[sentence]
    error = refused(home, request_of(controls=controls))
    assert sentence in str(error)
    assert error.field == where


def test_models_and_samples_that_are_not_there(home: Path, tmp_path: Path) -> None:
    trace_samples(model_of(home), SAMPLES[:2], home / "runs", run_id="of-two", dataset="toy")
    parent = home / "odd"
    changed_config(copied(home / "checkpoints" / "tiny-mixtral.v1", parent_of(parent) / "two"), num_local_experts=2)
    (parent / "dense").mkdir()
    (parent / "dense" / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    for changes, sentence, field in (
        ({"model": "hf:tiny"}, "There is no checkpoint 'tiny'", "model"),
        ({"model": "hf:dense"}, "names no experts", "model"),
        ({"model": "hf:two"}, "a layer has 2, and 2 must be left", "controls"),
    ):
        error = refused(home, request_of(**changes), folder="odd")
        assert sentence in str(error)
        assert error.field == field
    error = refused(home, request_of(data=None, run="of-two", sample=2))
    assert ("run 'of-two' has samples 0 to 1, not 2" in str(error), error.field) == (True, "sample")
    with pytest.raises(UserError, match="sample is one of a run; give run in place of data"):
        request_of(sample=1)


def parent_of(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_what_a_configuration_does_not_tell_is_refused_when_the_job_begins(home: Path, tmp_path: Path) -> None:
    layout = layout_of(read_config(home / "checkpoints" / "tiny-mixtral.v1"))
    request = request_of(controls={"edits": [{"edit": "ban", "modules": [8]}]})
    ExpertsOutline(request.model, replace(layout, choices=None)).check_controls(request.controls)
    ExpertsOutline(request.model, replace(layout, layers=None)).check_controls(request.controls)
    with pytest.raises(UserError, match="there is no module 8"):
        ExpertsOutline(request.model, layout).check_controls(request.controls)
    with pytest.raises(UserError, match="there is no module 8") as found:
        RerouteJob.start(request, tmp_path, context_of(home))
    assert found.value.field == "controls.edits.0.modules"
    assert not list(tmp_path.iterdir())
