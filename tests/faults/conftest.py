"""What the fault tests share: how a figure is kept, and real servers to be cruel to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.crew import Crew
from tests.backend.conftest import api, clean_environment, models_dir, serve, shared_data_dir, tracing, working  # noqa: F401
from tests.browser.conftest import browser, site, windows  # noqa: F401 - one browser for the whole folder
from tests.faults.figures import ROOT, keep
from tests.support.disks import mounted_disk
from tests.support.runs import make_run

Keep = Callable[[int, str], None]


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Keep:
    """``figure(row, measured)``: print and keep what a test found; its docstring says how."""
    file = Path(str(request.node.path)).relative_to(ROOT).as_posix()
    test = f"{file}::{request.function.__name__}"
    how = " ".join((request.function.__doc__ or "").split())
    assert how, "a fault test says in its docstring what it does"
    return lambda row, measured: keep(row, test, measured, how.rstrip("."))


@pytest.fixture(scope="session")
def api_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """An API in a process of its own over runs that nobody changes: vision, text and big."""
    data_dir = tmp_path_factory.mktemp("process") / "data"
    make_run(data_dir / "runs", "vision", samples=30, seed=1)
    make_run(data_dir / "runs", "text", "text", samples=14, seed=2)
    make_run(data_dir / "runs", "big", samples=1500, seed=3, twin=False)
    crew = Crew(data_dir)
    try:
        crew.start_api()
        yield crew
    finally:
        crew.close()


def memory(pid: int, what: str = "VmHWM") -> int:
    """Bytes of memory that a process has (VmRSS), or ever had at most (VmHWM). Linux."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        pytest.skip("needs /proc")
    return int(next(line for line in lines if line.startswith(what)).split()[1]) * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 24 MB, where mounting is permitted."""
    with mounted_disk(tmp_path / "small") as disk:
        yield disk


def fill(file: Path, leave: int = 0) -> None:
    """Write until the disk takes no byte more, or has ``leave`` bytes left."""
    with open(file, "ab", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while shutil.disk_usage(file.parent).free - size >= leave:
                    ballast.write(bytes(size))
            if leave:
                return
