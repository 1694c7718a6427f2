"""Bytes that change on the disk: runs, checkpoints, the list of jobs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.faults.conftest import Keep
from tests.support.checkpoints import save_tiny
from tests.support.runs import make_run
from tokenpaths.backend.jobs.table import JobTable
from tokenpaths.backend.problems import Problem
from tokenpaths.engine.families.checkpoint_config import CheckpointError, read_checkpoint
from tokenpaths.engine.jobs.registry import Progress
from tokenpaths.engine.models.checkpoint import build_model

CORRUPTIONS = 60
QUESTIONS = (
    "",
    "/flow",
    "/flow?label=circle",
    "/usage",
    "/paths?limit=1000",
    "/paths/fit",
    "/paths/1/examples?limit=5",
    "/samples",
    "/samples/3",
    "/samples/3/image",
    "/distributions/compute",
    "/distributions/loss?per=sample",
    "/export/token.csv",
)


def spoil(data: bytes, chance: random.Random) -> tuple[str, bytes]:
    """(what was done, ``data`` with some bytes changed): bits flipped, a stretch zeroed or random, or the end cut."""
    way, size = chance.choice(("one bit", "100 bytes", "zeros", "random", "cut")), len(data)
    spoiled = bytearray(data)
    place = chance.randrange(size)
    if way == "one bit":
        spoiled[place] ^= 1 << chance.randrange(8)
    elif way == "100 bytes":
        for _ in range(100):
            spoiled[chance.randrange(size)] ^= chance.randrange(1, 256)
    elif way == "cut":
        spoiled = spoiled[:place]
    else:
        stretch = min(4096, size - place)
        spoiled[place : place + stretch] = bytes(stretch) if way == "zeros" else chance.randbytes(stretch)
    return f"{way} at {place}", bytes(spoiled)


def answers(served: Served, run: str) -> dict[str, Any]:
    """What the API says to every question about a run: (200, what it says) or the status alone."""
    said: dict[str, Any] = {}
    for question in QUESTIONS:
        try:
            answer = served.get(f"/runs/{run}{question}")
        except Exception as error:  # a download that breaks off is no wrong number
            said[question] = type(error).__name__
            continue
        if answer.status_code == 200:
            said[question] = answer.content.replace(run.encode(), b"RUN")
        else:
            problem(answer, answer.status_code)
            said[question] = answer.status_code
    return said


@pytest.mark.slow_fault
def test_a_spoiled_run_gives_the_right_answer_or_a_problem(serve: Serve, figure: Keep) -> None:
    """60 copies of a run with changed bytes, 13 questions to each through the API, and to a whole run beside it"""
    served, chance = serve(open_runs=4, answer_cache_megabytes=0), random.Random(11)
    whole = make_run(served.runs_dir, "good", samples=30, seed=1)
    make_run(served.runs_dir, "other", samples=3)
    right, data = answers(served, "good"), whole.read_bytes()
    wrong, refused, same = [], 0, 0
    for number in range(CORRUPTIONS):
        name = f"bad{number}"
        what, spoiled = spoil(data, chance)
        # The name of a run stands in its file too; here it is the file's name that differs.
        (served.runs_dir / f"{name}.duckdb").write_bytes(spoiled)
        said = answers(served, name)
        for question in QUESTIONS:
            if isinstance(said[question], (int, str)):
                refused += 1
                assert said[question] in (409, "RemoteProtocolError", "ReadError"), (what, question, said[question])
            elif said[question].replace(b"good", b"RUN") != right[question]:
                wrong.append((what, question))
            else:
                same += 1
        assert served.get("/runs/other/flow").status_code == 200
        assert served.client.delete(f"{API}/runs/{name}").status_code == 204
    assert wrong == []
    assert refused > CORRUPTIONS
    figure(5, f"runs: {CORRUPTIONS} corruptions, {same} answers right, {refused} refused, {len(wrong)} wrong")


@pytest.mark.slow_fault
def test_a_spoiled_checkpoint_is_refused_or_the_same(tmp_path: Path, figure: Keep) -> None:
    """60 corruptions of the weights of a model; it is loaded and every weight compared"""
    folder, chance = save_tiny(tmp_path / "tiny", "vision"), random.Random(12)
    right, data = build_model(read_checkpoint(folder)).state_dict(), (folder / "model.safetensors").read_bytes()
    refused = same = 0
    for _ in range(CORRUPTIONS):
        what, spoiled = spoil(data, chance)
        (folder / "model.safetensors").write_bytes(spoiled)
        try:
            found = build_model(read_checkpoint(folder)).state_dict()
        except CheckpointError:
            refused += 1
            continue
        assert all(found[name].equal(right[name]) for name in right), what
        same += 1
    assert refused > CORRUPTIONS // 2
    figure(5, f"checkpoints: {CORRUPTIONS} corruptions, {refused} refused, {same} loaded equal, 0 wrong")
    figure(6, f"altered: {refused} of {CORRUPTIONS} refused, {same} hit nothing that counts")


@pytest.mark.slow_fault
def test_a_spoiled_list_of_jobs_is_said_or_right(tmp_path: Path, figure: Keep) -> None:
    """60 corruptions of jobs.sqlite; every job and its events are read and compared"""
    table, chance = JobTable(tmp_path / "jobs.sqlite", lease_s=60), random.Random(13)
    for number in range(40):
        table.submit("count", {"iterations": number + 1, "words": "of this job " * 30})
    for number in range(20):
        lease = table.lease("w")
        assert lease is not None
        table.report(lease, Progress(number, 100, "iterations", "half way"), 1.5, ["frame.png"])
        table.end(lease, "succeeded", result={"value": number})
    table.close()
    data = (tmp_path / "jobs.sqlite").read_bytes()
    right = _read(lambda: JobTable(tmp_path / "jobs.sqlite", lease_s=60))
    refused, same, wrong = 0, 0, []
    for number in range(CORRUPTIONS):
        file = tmp_path / f"spoiled{number}" / "jobs.sqlite"
        file.parent.mkdir()
        what, spoiled = spoil(data, chance)
        file.write_bytes(spoiled)
        try:
            found = _read(lambda file=file: JobTable(file, lease_s=60))
        except Problem as error:
            refused += error.kind == "jobs-file"
        else:
            # A damaged job is shown as one; every other must be right.
            said = {row.job for row, _ in found if row.damaged}
            whole = [(row, events) for row, events in found if not row.damaged]
            if whole == [(row, events) for row, events in right if row.job not in said]:
                refused, same = refused + bool(said), same + (not said)
            else:
                wrong.append(what)
        shutil.rmtree(file.parent)
    assert wrong == []
    assert refused + same == CORRUPTIONS
    assert refused > CORRUPTIONS // 3
    figure(5, f"list of jobs: {CORRUPTIONS} corruptions, {refused} said, {same} read right, {len(wrong)} wrong")


def _read(opened: Callable[[], JobTable]) -> list[Any]:
    table = opened()
    try:
        rows = table.page(limit=1000)
        return [(row, table.events(row.job)) for row in rows]
    finally:
        table.close()
