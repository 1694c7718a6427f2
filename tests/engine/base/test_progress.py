"""Long work told in parts: sealing says where it is, can be stopped there, and hands on what went wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.runs import make
from tokenpaths.engine.base import progress
from tokenpaths.engine.base.progress import map_progress, run_with_progress, seal_in_stages
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.write.writer import RunWriter


class Slow:
    """A writer of three stages; the second lasts."""

    def __init__(self, seconds: float = 0.0, error: Exception | None = None) -> None:
        self.seconds, self.error, self.reached = seconds, error, []

    def seal(self, on_stage: Callable[[str, int, int], None]) -> Path:
        for number, name in enumerate(("paths", "flows", "disk")):
            on_stage(name, number, 3)
            self.reached.append(name)
            if name == "flows":
                time.sleep(self.seconds)
                if self.error:
                    raise self.error
        return Path("a.duckdb")


def test_each_stage_is_told_and_a_long_one_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SIGN_OF_LIFE_S", 0.02)
    heard: list[str] = []
    assert run_with_progress(seal_in_stages(Slow(0.5)), heard.append) == Path("a.duckdb")
    stages = [f"sealing: {name} of 3)" for name in ("paths (1", "flows (2", "disk (3")]
    assert list(dict.fromkeys(heard)) == stages
    assert heard.count("sealing: flows (2 of 3)") > 3


def test_what_the_sealing_raises_is_raised_where_it_is_followed() -> None:
    with pytest.raises(ValueError, match="no room"):
        run_with_progress(seal_in_stages(Slow(error=ValueError("no room"))), lambda words: None)


def test_closed_early_it_ends_behind_the_stage_at_work() -> None:
    slow = Slow(0.1)
    going = seal_in_stages(slow)
    assert next(going) == "sealing: paths (1 of 3)"
    going.close()
    assert slow.reached in (["paths"], ["paths", "flows"])


def test_a_real_run_is_sealed_whole_or_not_at_all(tmp_path: Path) -> None:
    made = make("first", "text", samples=5)

    def writer() -> RunWriter:
        begun = RunWriter(tmp_path, made.info, made.modules)
        for batch in made.batches:
            begun.write(batch)
        return begun

    heard: list[int] = []
    with writer() as begun:
        file = run_with_progress(map_progress(seal_in_stages(begun), len), heard.append)
    assert heard
    with Run.open(file) as run:
        assert run.row["num_samples"] == 5
    file.unlink()

    begun = writer()
    going = seal_in_stages(begun)
    next(going)
    going.close()
    begun.abort()
    assert [left.name for left in tmp_path.iterdir() if left.suffix in (".duckdb", ".partial")] == []
