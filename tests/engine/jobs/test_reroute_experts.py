"""Sweeps over the experts of Hugging Face models as jobs: the numbers of the Python functions, killed or not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.tiny_huggingface import TEXTS, changed_config, copied, effect_over, save_tiny
from tokenpaths.engine.adapters.huggingface.config import layout_of, read_config
from tokenpaths.engine.adapters.huggingface.inspection import find_model
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.edits.measure import Measurement
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.edits.sweep import module_rows, result_row, share_rows, usage_of, with_share
from tokenpaths.engine.jobs import reroute
from tokenpaths.engine.jobs.registry import JobContext, read_request
from tokenpaths.engine.jobs.reroute import RerouteJob
from tokenpaths.engine.tracing.trace_run import trace_samples

MODELS = ["mixtral", "qwen2_moe", "olmoe"]
SAMPLES = [Sample(image=None, text=" ".join([text] * 4), label=None, source="t") for text in TEXTS]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("experts"), MODELS)


def make_home(folder: Path, kinds: list[str]) -> Path:
    """A data folder with a tiny checkpoint of each kind, and the samples in its inbox."""
    for kind in kinds:
        save_tiny(folder / "checkpoints" / f"tiny-{kind}.v1", kind)
    (folder / "inbox").mkdir()
    (folder / "runs").mkdir()
    (folder / "inbox" / "words.jsonl").write_text("\n".join(json.dumps({"text": one.text}) for one in SAMPLES))
    return folder


def context_of(home: Path, loads: bool = True, folder: str = "checkpoints") -> JobContext:
    parent = home / folder

    def open_model(model: str) -> HuggingFaceModel:
        return load(find_model(f"hf:{parent / model.removeprefix('hf:')}"), device="cpu")

    return JobContext(home, huggingface_dir=parent, loader=open_model if loads else None)


def request_of(kind: str = "mixtral", **values: object):
    model = {"model": f"hf:tiny-{kind}.v1", "data": "words.jsonl", "sweep": "modules"}
    given = {name: value for name, value in (model | values).items() if value is not None}
    return read_request(RerouteJob, given)


def run_to_the_end(home: Path, folder: Path, request, context: JobContext | None = None):
    folder.mkdir(exist_ok=True)
    RerouteJob.check(request, context_of(home, loads=False))
    work = RerouteJob.start(request, folder, context or context_of(home))
    for _ in range(20_000):
        if (progress := work.advance()).finished:
            work.close()
            return progress
    raise AssertionError("never finished")


def table_of(folder: Path) -> dict:
    return json.loads((folder / "artifacts" / "importance.json").read_text())


@pytest.mark.parametrize("kind", MODELS)
def test_every_expert_banned_gives_the_numbers_of_measure_effect(home: Path, tmp_path: Path, kind: str) -> None:
    progress = run_to_the_end(home, tmp_path / "job", request_of(kind))
    table, loaded = table_of(tmp_path / "job"), context_of(home).load_model(f"hf:tiny-{kind}.v1")
    rows = module_rows(loaded.modules, loaded.choices())
    assert (progress.done, progress.total, len(table["rows"])) == (24, 24, 24)
    assert [(row["step"], row["module"]) for row in table["rows"]] == [(s, m) for s in range(3) for m in range(8)]
    for place in (0, 5, 12, 23):
        effect = effect_over(loaded, SAMPLES, rows[place].edits)
        assert table["rows"][place] == json.loads(json.dumps(result_row(rows[place], effect)))
        assert table["num_targets"] == effect["num_targets"]
    assert any(row["loss_change"] != 0 for row in table["rows"])
    assert (table["model"], table["num_samples"]) == (f"hf:tiny-{kind}.v1", len(TEXTS))
    best = max(table["rows"], key=lambda row: row["loss_change"])
    assert progress.result["most_important"][0]["name"] == best["name"]


@pytest.mark.parametrize("kind", MODELS)
def test_shares_of_each_layer_give_the_numbers_of_ban_share(home: Path, tmp_path: Path, kind: str) -> None:
    run_to_the_end(home, tmp_path / "job", request_of(kind, sweep="shares", shares=(0.25, 0.9), seed=3))
    table, loaded = table_of(tmp_path / "job"), context_of(home).load_model(f"hf:tiny-{kind}.v1")
    usage = usage_of(loaded, prepare(loaded, SAMPLES))
    rows = share_rows(usage, (0.25, 0.9), [range(8)] * 3, 2, 3)
    found = {(row["share"], row["which"]): row for row in table["rows"]}
    assert [row["banned"] for row in table["rows"]] == [6] * 3 + [18] * 3  # of 8 experts 2; of 8 all but top-k
    assert set(found) == {(share, which) for share in (0.25, 0.9) for which in ("top", "bottom", "random")}
    for row in rows:
        effect = effect_over(loaded, SAMPLES, row.edits)
        assert found[row.share, row.which] == json.loads(json.dumps(result_row(row, effect)))
    top = with_share(loaded.with_controls({"ban_share": 0.25, "which": "top"}), usage).controls.edits
    assert [list(edit.modules) for edit in top] == [
        sorted(np.argsort(-usage[s], kind="stable")[:2].tolist()) for s in range(3)
    ]
    for row in rows:  # whichever other shares are asked for
        controls = {"ban_share": row.share, "which": row.which, "seed": 3}
        alone = with_share(loaded.with_controls(controls), usage).controls.edits
        assert [list(edit.modules) for edit in alone] == [edit["modules"] for edit in row.edits]
    assert found[0.25, "top"]["path_distance"] > found[0.25, "bottom"]["path_distance"]


def test_a_killed_sweep_goes_on_and_does_at_most_one_row_again(home: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(reroute, "SLICE_SECONDS", 60.0)
    measured: list[object] = []
    answer, advance = Measurement.answer, Measurement.advance
    monkeypatch.setattr(Measurement, "answer", lambda self: measured.append(self._model.controls) or answer(self))
    context = context_of(home)
    kept = context.load_model("hf:tiny-qwen2_moe.v1")
    context = JobContext(home, huggingface_dir=home / "checkpoints", loader=lambda model: kept)
    request, count = request_of("qwen2_moe", limit=3), [0]
    whole = run_to_the_end(home, tmp_path / "whole", request, context)
    assert len(measured) == 24
    measured.clear()

    def dies(self) -> None:
        count[0] += 1
        if count[0] in (5, 9, 20):
            raise KeyboardInterrupt  # as good as a kill: nothing of this slice is tidied up
        advance(self)

    monkeypatch.setattr(Measurement, "advance", dies)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_to_the_end(home, tmp_path / "killed", request, context)
    again = run_to_the_end(home, tmp_path / "killed", request, context)
    assert again.result == whole.result
    assert table_of(tmp_path / "whole") == table_of(tmp_path / "killed")
    assert len(measured) == 24, "a finished row was done again"
    assert not any("forward" in vars(module) for module in kept.model.modules()), "a mask was left on a gate"


def test_a_process_that_is_killed_by_the_system_loses_no_finished_row(home: Path, tmp_path: Path) -> None:
    """kill -9 while it works; another process goes on, and the table is that of one that was never stopped."""
    folder, code = tmp_path / "job", tmp_path / "work.py"
    code.write_text(
        textwrap.dedent(f"""
        from pathlib import Path
        from tests.engine.jobs.test_reroute_experts import request_of, run_to_the_end
        run_to_the_end(Path({str(home)!r}), Path({str(folder)!r}), request_of("mixtral"))
    """)
    )
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen([sys.executable, code], cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
    while not (folder / "state.json").is_file():
        assert process.poll() is None, "it ended before it kept a row"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    begun = len(table_of(folder)["rows"])
    assert begun >= 1
    run_to_the_end(home, folder, request_of("mixtral"))
    run_to_the_end(home, tmp_path / "whole", request_of("mixtral"))
    assert table_of(folder) == table_of(tmp_path / "whole")


def test_a_slice_ends_behind_the_pass_at_hand(home: Path, tmp_path: Path, monkeypatch) -> None:
    """Whoever cancels waits for one pass: no slice begins a second one when its time is over."""
    monkeypatch.setattr(reroute, "SLICE_SECONDS", 1e-9)
    passes: list[int] = []
    run = HuggingFaceModel.run
    monkeypatch.setattr(HuggingFaceModel, "run", lambda *args: passes.append(1) or run(*args))
    (tmp_path / "job").mkdir()
    work = RerouteJob.start(request_of("mixtral"), tmp_path / "job", context_of(home))
    for _ in range(40):
        before = len(passes)
        work.advance()
        assert len(passes) <= before + 2, "the unchanged and the edited pass of one part"
    work.close()


def test_a_run_of_other_weights_is_not_measured(home: Path, tmp_path: Path) -> None:
    loaded = context_of(home).load_model("hf:tiny-mixtral.v1")
    trace_samples(loaded, SAMPLES, home / "runs", run_id="seen")
    request = request_of("mixtral", data=None, run="seen", sweep="shares", shares=(0.25,))
    run_to_the_end(home, tmp_path / "same", request)
    assert table_of(tmp_path / "same")["num_samples"] == len(TEXTS)
    (home / "other").mkdir()
    save_tiny(home / "other" / "tiny-mixtral.v1", "mixtral", seed=1)
    (tmp_path / "job").mkdir()
    with pytest.raises(UserError, match="made with other weights than those of hf:tiny-mixtral.v1") as refused:
        RerouteJob.start(request, tmp_path / "job", context_of(home, folder="other"))
    assert refused.value.field == "run"


REFUSED = {
    "is no name of a folder of checkpoints": ({"model": "hf:../checkpoints/tiny-mixtral.v1"}, "model"),
    "'/etc' is no name": ({"model": "hf:/etc"}, "model"),
    "'..' is no name": ({"model": "hf:.."}, "model"),
    "'' is no name": ({"model": "hf:"}, "model"),
    "There is no checkpoint 'tiny-mixtral'.*did you mean 'tiny-mixtral.v1'": ({"model": "hf:tiny-mixtral"}, "model"),
    "The folder empty in .* holds no config.json": ({"model": "hf:empty"}, "model"),
    "The config.json of broken cannot be read": ({"model": "hf:broken"}, "model"),
    "'away' is a link that leads out": ({"model": "hf:away"}, "model"),
    "names no experts": ({"model": "hf:dense"}, "model"),
    "of type 'switch_transformers', which cannot be traced": ({"model": "hf:switch"}, "model"),
    "a layer has 2, and 2 must be left": ({"model": "hf:two"}, "sweep"),
    "is nothing for this model": ({"data": "bundled:scenes"}, "data"),
    "There is no run 'gone'": ({"data": None, "run": "gone"}, "run"),
}


@pytest.fixture(scope="module")
def odd(home: Path) -> Path:
    parent, good = home / "odd", home / "checkpoints" / "tiny-mixtral.v1"
    parent.mkdir()
    copied(good, parent / "tiny-mixtral.v1")
    (parent / "empty").mkdir()
    (parent / "broken").mkdir()
    (parent / "broken" / "config.json").write_text("{")
    (parent / "away").symlink_to(good)
    (parent / "dense").mkdir()
    (parent / "dense" / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    (parent / "switch").mkdir()
    (parent / "switch" / "config.json").write_text('{"model_type": "switch_transformers", "num_experts": 8}')
    changed_config(copied(good, parent / "two"), num_local_experts=2)
    return home


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_cannot_be_is_refused_when_it_is_submitted(odd: Path, sentence: str) -> None:
    values, field = REFUSED[sentence]
    with pytest.raises(UserError, match=sentence) as refused:
        RerouteJob.check(request_of(**values), context_of(odd, loads=False, folder="odd"))
    assert refused.value.field == field
    assert "\n" not in str(refused.value)


def test_a_folder_that_is_not_set_is_named(home: Path) -> None:
    with pytest.raises(UserError, match="the setting `huggingface_dir`.* is not set") as refused:
        RerouteJob.check(request_of(), JobContext(home))
    assert refused.value.field == "model"


@pytest.mark.parametrize("kind", [*MODELS, "zaya", "longcat_flash", "deepseek_v3", "jamba", "llama4", "dbrx"])
def test_layers_and_experts_are_counted_without_the_model(tmp_path: Path, kind: str) -> None:
    folder = save_tiny(tmp_path / kind, kind)
    gates = load(find_model(f"hf:{folder}"), device="cpu").gates
    found = layout_of(read_config(folder))
    assert (found.layers, found.choices, found.top_k) == (len(gates), gates[0].num_choices, gates[0].top_k)


def test_what_is_submitted_is_checked_without_torch(odd: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tokenpaths.engine.jobs.reroute import RerouteJob\n"
        "from tokenpaths.engine.jobs.registry import *\n"
        f"context = JobContext(Path({str(odd)!r}), huggingface_dir=Path({str(odd / 'odd')!r}))\n"
        "given = {'model': 'hf:tiny-mixtral.v1', 'data': 'words.jsonl', 'sweep': 'shares'}\n"
        "request = read_request(RerouteJob, given)\n"
        "RerouteJob.check(request, context); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).resolve().parents[3]).returncode == 0
