"""Going on bit for bit: interrupts at the worst moments, evaluations made up for, the precision a run began with."""

from __future__ import annotations

import json
import signal
import threading

import pytest
import torch

from tests.engine.train.test_raytracing_training import clusters, linear, plan  # noqa: F401 (fixtures)
from tests.engine.train.test_training import CPU, data, text_recipe, weights  # noqa: F401 (fixtures)
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.train import loop, raytracing_fit, resuming
from tokenpaths.engine.train.cards import curve
from tokenpaths.engine.train.corpora import load_corpora
from tokenpaths.engine.train.loop import LOG, PROGRESS, STATE, export, open_run, train
from tokenpaths.engine.train.raytracing_fit import fit, open_fit
from tokenpaths.engine.train.resuming import Resumable, alone_in, indivisible


class Stop(Exception):
    pass


@pytest.fixture
def corpora(data, tmp_path):  # noqa: F811
    return load_corpora(text_recipe(), data, None, tmp_path / "tok")


@pytest.fixture(autouse=True)
def _ctrl_c_raises():
    """Also where the suite was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def numbers(run) -> list[dict]:
    """The log without its times."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.history]


def interrupted_in_call(call: int, original):
    """``original``, whose n-th call ends with Ctrl-C; and how often it was called."""
    calls = []

    def interrupted(*args, **options):
        calls.append(1)
        answer = original(*args, **options)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return answer

    return interrupted, calls


# Interrupts


def test_ctrl_c_behind_a_step_counts_the_iteration(corpora, tmp_path, monkeypatch):
    recipe = text_recipe()
    whole = train(recipe, *corpora, tmp_path / "whole", device=CPU)
    step, calls = interrupted_in_call(6, torch.optim.AdamW.step)
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, *corpora, tmp_path / "parts", device=CPU)
    assert [p.name for p in (tmp_path / "parts").glob(f"*{STATE}")] == [f"0000006-{STATE}"]
    resumed = train(recipe, *corpora, tmp_path / "parts", device=CPU)
    assert len(calls) == recipe.iterations
    assert torch.equal(weights(whole), weights(resumed))
    assert torch.equal(whole.model.bias, resumed.model.bias)


def test_what_fails_between_a_step_and_its_count_is_not_saved(corpora, tmp_path, monkeypatch):
    recipe, calls = text_recipe(), []
    whole = train(recipe, *corpora, tmp_path / "whole", device=CPU)
    original = DNA.after_iteration

    def failing(self, routing):
        original(self, routing)
        calls.append(1)
        if len(calls) == 6:
            raise Stop

    monkeypatch.setattr(DNA, "after_iteration", failing)
    with pytest.raises(Stop):
        train(recipe, *corpora, tmp_path / "parts", device=CPU)
    assert [p.name for p in (tmp_path / "parts").glob(f"*{STATE}")] == [f"0000000-{STATE}"]
    resumed = train(recipe, *corpora, tmp_path / "parts", device=CPU)
    assert torch.equal(weights(whole), weights(resumed))
    assert torch.equal(whole.model.bias, resumed.model.bias)


def test_ctrl_c_behind_a_step_of_a_stage_counts_the_iteration(clusters, tmp_path, monkeypatch):  # noqa: F811
    whole = linear()
    fit(plan(), whole, whole, *clusters, tmp_path / "whole")
    step, calls = interrupted_in_call(10, torch.optim.Adam.step)
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    broken = linear()
    with pytest.raises(KeyboardInterrupt):
        fit(plan(), broken, broken, *clusters, tmp_path / "parts")
    assert [p.name for p in (tmp_path / "parts").glob(f"*{STATE}")] == [f"0000010-{STATE}"]
    resumed = linear(seed=9)
    fit(plan(), resumed, resumed, *clusters, tmp_path / "parts")
    assert len(calls) == 24
    assert torch.equal(whole.weight, resumed.weight)


def test_ctrl_c_waits_for_the_end_of_what_is_indivisible():
    run, done = Resumable(), []

    def change() -> None:
        with indivisible(run):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            done.append(run.whole)

    with pytest.raises(KeyboardInterrupt):
        change()
    assert (done, run.whole) == ([False], True)


def test_whoever_handles_ctrl_c_hears_of_it_once_and_an_ignored_one_stays_ignored():
    heard = []
    signal.signal(signal.SIGINT, lambda *arguments: heard.append(1))
    with indivisible(Resumable()):
        signal.raise_signal(signal.SIGINT)
        assert heard == []
    assert heard == [1]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with indivisible(Resumable()):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_error_inside_leaves_a_run_that_is_not_whole_in_any_thread():
    runs = [Resumable(), Resumable()]

    def fail(run) -> None:
        with pytest.raises(Stop), indivisible(run):
            raise Stop

    thread = threading.Thread(target=fail, args=(runs[0],))
    thread.start()
    thread.join()
    fail(runs[1])
    assert [run.whole for run in runs] == [False, False]


# Evaluations


@pytest.mark.parametrize("check_every", [4, 100])
def test_an_interrupted_evaluation_is_made_up_for(corpora, tmp_path, monkeypatch, check_every):
    recipe = text_recipe()
    whole = train(recipe, *corpora, tmp_path / "whole", device=CPU, check_every=check_every)
    assert [row["iteration"] for row in whole.history] == ([4, 8, 12] if check_every == 4 else [12])
    original, calls = loop.evaluate, []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == len(whole.history):
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(loop, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, *corpora, tmp_path / "parts", device=CPU, check_every=check_every)
    resumed = train(recipe, *corpora, tmp_path / "parts", device=CPU, check_every=check_every)
    assert numbers(resumed) == numbers(whole)
    assert {"train_loss", "val_loss", "busiest_share"} <= set(resumed.history[-1])
    lines = (tmp_path / "parts" / LOG).read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == resumed.history


def test_a_finished_state_without_its_last_row_gets_it_and_a_curve(corpora, tmp_path):
    """As a training that was interrupted in its last evaluation left it before."""
    recipe = text_recipe(iterations=4)
    done = train(recipe, *corpora, tmp_path / "w", device=CPU)
    about = json.loads((tmp_path / "w" / PROGRESS).read_text())
    for name in ("last", "bfloat16"):
        del about[name]
    (tmp_path / "w" / PROGRESS).write_text(json.dumps(about | {"history": []}))
    again = train(recipe, *corpora, tmp_path / "w", device=CPU)
    assert [row["val_loss"] for row in again.history] == [done.history[-1]["val_loss"]]
    folder = export(again, tmp_path / "out", (), {}, "command")
    training = json.loads((folder / "config.json").read_text())["training"]
    assert curve(training)[-1].startswith("| 4 | ")


# Precision


@pytest.mark.parametrize("began", [True, False])
def test_a_run_keeps_the_precision_that_it_began_with(corpora, tmp_path, monkeypatch, began):
    recipe = text_recipe(bfloat16=True)
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: began)
    whole = train(recipe, *corpora, tmp_path / "whole", device=CPU, check_every=4)

    def interrupt(progress):
        if progress.iteration == 6:
            raise Stop

    with pytest.raises(Stop):
        train(recipe, *corpora, tmp_path / "parts", device=CPU, check_every=4, on_progress=interrupt)
    # Another process, whose clock says the opposite.
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: not began)
    resumed = train(recipe, *corpora, tmp_path / "parts", device=CPU, check_every=4)
    assert resumed.bfloat16 is began
    assert torch.equal(weights(whole), weights(resumed))
    assert numbers(whole) == numbers(resumed)
    other = train(recipe, *corpora, tmp_path / "other", device=CPU, check_every=4)
    assert not torch.equal(weights(whole), weights(other))


def test_the_clock_is_not_asked_where_a_recipe_wants_float32(corpora, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: pytest.fail("asked"))
    assert open_run(text_recipe(bfloat16=False), tmp_path, CPU).bfloat16 is False


def test_a_state_that_does_not_say_its_precision_asks_the_clock(corpora, tmp_path, monkeypatch):
    recipe = text_recipe(bfloat16=True)
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: True)
    open_run(recipe, tmp_path, CPU)
    about = json.loads((tmp_path / PROGRESS).read_text())
    assert about.pop("bfloat16") is True
    (tmp_path / PROGRESS).write_text(json.dumps(about))
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: False)
    assert open_run(recipe, tmp_path, CPU).bfloat16 is False


def test_a_stage_keeps_the_precision_that_it_began_with(clusters, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: True)
    began = open_fit(plan(bfloat16=True), linear(), tmp_path)
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: False)
    assert (began.bfloat16, open_fit(plan(bfloat16=True), linear(), tmp_path).bfloat16) == (True, True)
    seen = []
    original = torch.autocast
    monkeypatch.setattr(
        raytracing_fit.torch, "autocast", lambda *a, enabled: seen.append(enabled) or original(*a, enabled=enabled)
    )
    network = linear()
    fit(plan(bfloat16=True, epochs=6), network, network, *clusters, tmp_path)
    assert set(seen) == {True}


def test_a_folder_is_anothers_turn_afterwards(tmp_path):
    for _ in range(2):
        with alone_in(tmp_path / "new" / "base", "the base"):
            assert (tmp_path / "new" / ".base.lock").exists()
    assert not (tmp_path / "new" / ".base.lock").exists()
