"""Runs that a data folder did not seal, and intakes that end when and as a test lets them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import make_run
from tokenpaths.engine.base.seal_marks import forget_mark, mark_sealed
from tokenpaths.engine.store.intake import gate
from tokenpaths.engine.store.intake.process import RECORDS_VERSION, Request

LET_INTAKE = """
import json, os, shutil, sys, time
request, gates, version = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
target = request["target"]
file = os.path.join(gates, os.path.basename(target).removesuffix(".duckdb"))
while not os.path.exists(file):
    time.sleep(0.005)
outcome = json.loads(open(file).read())
if not outcome["passing"]:
    if outcome["problem"] is None:
        shutil.copy(request["original"], target)
    record = {"identity": request["identity"], "version": version, "problem": outcome["problem"]}
    with open(target.removesuffix(".duckdb") + ".json", "w") as file:
        json.dump(record, file)
print(json.dumps({"progress": 0.5}))
print(json.dumps(outcome))
"""
Let = Callable[..., None]


def unmarked(file: Path) -> Path:
    """The run ``file`` as one from elsewhere."""
    forget_mark(file, os.stat(file))
    return file


def sealed(file: Path) -> Path:
    """The run ``file``, changed by a test, as one that was sealed here."""
    mark_sealed(file, os.stat(file))
    return file


def make_foreign(runs_dir: Path, *names: str, **options: object) -> list[Path]:
    """Runs without a mark, as in a data folder that was copied."""
    options = {"samples": 2, "twin": False} | options
    return [unmarked(make_run(runs_dir, name, **options)) for name in names]  # type: ignore[arg-type]


def intakes_that_wait(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Let:
    """From now on an intake ends when ``let(name)`` is called, with the given outcome; it copies and reads nothing."""
    gates = folder / "gates"
    gates.mkdir()

    def command(request: Request) -> list[str]:
        return [sys.executable, "-c", LET_INTAKE, request.to_json(), str(gates), str(RECORDS_VERSION)]

    def let(*names: str, problem: str | None = None, passing: bool = False) -> None:
        for name in names:
            (gates / "new").write_text(json.dumps({"problem": problem, "passing": passing}))
            (gates / "new").rename(gates / name)

    monkeypatch.setattr(gate, "intake_command", command)
    return let
