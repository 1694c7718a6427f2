"""Processes that are killed while they write: traces, dreams, checkpoints; and two that want to write the same."""

from __future__ import annotations

import hashlib
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.faults.conftest import Keep
from tests.faults.killed_processes import SAMPLES, dream, hold_run, messages, save_checkpoints, start, write_runs
from tests.support.checkpoints import save_tiny
from tests.support.runs import make, make_run
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import CheckpointError, read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.topics.overview import list_runs
from tokenpaths.engine.store.write.writer import remove_abandoned

KILLED_TRACES, KILLED_SAVES, KILLED_DREAMS, ITERATIONS = 60, 25, 10, 2048


@pytest.mark.slow_fault
def test_sixty_killed_writers_leave_whole_runs_and_no_half_ones(tmp_path: Path, figure: Keep) -> None:
    """A process writes and seals runs, is killed 0.15 to 0.9 s after its first, and the next one goes on"""
    chance, sealed, left = random.Random(3), 0, 0
    for _ in range(KILLED_TRACES):
        process, pipe = start(write_runs, tmp_path, sealed)
        assert pipe.recv() == "ready"
        said = [pipe.recv()]  # one run is sealed
        time.sleep(chance.uniform(0.15, 0.9))
        process.kill()
        process.join()
        said += messages(pipe)
        there = sorted(tmp_path.glob("*.duckdb"), key=lambda file: int(file.stem[3:]))
        acknowledged = max(said) + 1
        assert len(there) in (acknowledged, acknowledged + 1), "one may be sealed and not yet said"
        sealed = len(there)
        left += len(list(tmp_path.glob(".*.partial")))
    assert left > KILLED_TRACES // 2, "most were killed in the middle of a run"
    cards = list_runs(tmp_path)
    assert [card["status"] for card in cards] == ["sealed"] * sealed
    for number in random.Random(0).sample(range(sealed), min(20, sealed)):
        expected = make(f"run{number}", samples=SAMPLES, seed=number)
        with Run.open(tmp_path / f"run{number}.duckdb") as run:
            assert run.card()["num_samples"] == SAMPLES
            ribbons = [token["ribbon"] for token in run.sample(SAMPLES - 1)["tokens"]]
            assert ribbons == expected.ids[-len(ribbons) :].tolist()
    remove_abandoned(tmp_path)
    assert all(file.suffix == ".duckdb" for file in tmp_path.iterdir())
    make_run(tmp_path, f"run{sealed}", samples=2)
    figure(1, f"{KILLED_TRACES} kills, {left} in the middle of a run: {sealed} of {sealed} sealed runs whole, 0 half")


@pytest.mark.slow_fault
def test_a_dream_killed_ten_times_comes_to_the_same_bytes(tmp_path: Path, figure: Keep) -> None:
    """A real dream on the CPU, its process killed at ten random iterations, beside one that nobody disturbs"""
    save_tiny(tmp_path / "models" / "tiny", "vision", width=16, mlp_width=16, image_size=16)
    request = {
        "model": "tiny",
        "data": "bundled:photos",
        "row": 0,
        "seed": 1,
        "frame_every": 512,
        "target": {"of": "choices", "until": [2]},
        "image": {"iterations": ITERATIONS},
    }
    folders = {name: tmp_path / name for name in ("through", "killed")}
    for folder in folders.values():
        folder.mkdir()
    beside, undisturbed = start(dream, tmp_path, folders["through"], request)
    results: dict[str, Any] = {}
    moments, redone, reached = sorted(random.Random(5).sample(range(1, ITERATIONS), KILLED_DREAMS)), [], 0
    for moment in [*moments, ITERATIONS + 1]:
        process, pipe = start(dream, tmp_path, folders["killed"], request)
        begins = pipe.recv()[1]
        redone.append(reached - begins)
        reached, results["killed"] = _until(pipe, moment)
        process.kill()
        process.join()
    results["through"] = _until(undisturbed, ITERATIONS + 1)[1]
    beside.join()
    assert results["killed"] == results["through"] is not None
    hashes = {name: _hashes(folder / "artifacts") for name, folder in folders.items()}
    assert hashes["killed"] == hashes["through"]
    assert max(redone) <= 64
    files = len(hashes["through"])
    figure(2, f"dream: {KILLED_DREAMS} kills, at most {max(redone)} iterations redone, {files} of {files} files equal")


def _until(pipe: Connection, moment: int) -> tuple[int, Any]:
    """(how far it is, its result) once it has come to ``moment`` or its end."""
    at = 0
    while at < moment:
        kind, value = pipe.recv()
        if kind == "finished":
            return at, value
        at = value
    return at, None


def _hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.mark.slow_fault
def test_a_save_that_is_killed_leaves_the_checkpoint_before_it(tmp_path: Path, figure: Keep) -> None:
    """A process saves a model again and again and is killed after up to 0.2 s; then the folder is loaded"""
    folder, chance, number, middle = save_tiny(tmp_path / "tiny", "vision"), random.Random(1), 0, 0
    for _ in range(KILLED_SAVES):
        process, pipe = start(save_checkpoints, folder, number + 1)
        assert pipe.recv() == "ready"
        time.sleep(chance.uniform(0.0, 0.2))
        process.kill()
        process.join()
        said = max([number, *messages(pipe)])
        model = build_model(read_checkpoint(folder))
        values = {float(value) for parameter in model.parameters() for value in parameter.unique()}
        if said or number:
            assert len(values) == 1, "all weights are of one save"
            assert said <= (number := int(values.pop())) <= said + 1
        middle += bool(list(folder.glob(".*.tmp")))
        for file in folder.glob(".*.tmp"):
            file.unlink()
    assert number > 5
    figure(6, f"{KILLED_SAVES} of {KILLED_SAVES} load ({middle} killed in the middle of a file, {number} saves)")


def test_a_checkpoint_cut_short_is_refused(tmp_path: Path, figure: Keep) -> None:
    """The weights are cut at 20 places from nothing to all but one byte"""
    folder = save_tiny(tmp_path / "tiny", "vision")
    whole = (folder / "model.safetensors").read_bytes()
    lengths = [*(len(whole) * part // 19 for part in range(19)), len(whole) - 1]
    for length in lengths:
        (folder / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            build_model(read_checkpoint(folder))
    (folder / "model.safetensors").write_bytes(whole)
    assert all(torch.isfinite(p).all() for p in build_model(read_checkpoint(folder)).parameters())
    figure(6, f"{len(lengths)} of {len(lengths)} cut files refused")


def test_a_second_writer_is_told_at_once_who_holds_the_run(tmp_path: Path, figure: Keep) -> None:
    """A process holds a run; this one wants to write it"""
    process, pipe = start(hold_run, tmp_path)
    assert pipe.recv() == "held"
    made = make("held", samples=1)
    began = time.perf_counter()
    with pytest.raises(UserError, match=f"held by process {process.pid}"):
        made.write(tmp_path)
    seconds = time.perf_counter() - began
    assert seconds < 4
    process.kill()
    process.join()
    assert not list(tmp_path.glob("*.duckdb"))
    made.write(tmp_path)
    figure(9, f"refused after {1000 * seconds:.0f} ms, the process named; written once the first was killed")
