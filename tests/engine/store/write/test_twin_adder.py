"""A twin that is added to a sealed run: the run is what it would be had its twin been traced with it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.engine.store.write.test_shards import everything
from tests.support.runs import RunArrays, make
from tokenpaths.engine.base.errors import RunNotFound, UserError, WriterFailed
from tokenpaths.engine.base.files import is_disk_full
from tokenpaths.engine.base.seal_marks import is_sealed_here
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.schema import layout_for
from tokenpaths.engine.store.write import run_filler
from tokenpaths.engine.store.write.twin import twin_adder
from tokenpaths.engine.store.write.twin.twin_adder import TwinAdder
from tokenpaths.engine.store.write.twin.twin_paths import TwinCounter, TwinPaths, read_twin_file, write_twin_file
from tokenpaths.engine.store.write.writer import RunWriter

KINDS = {
    "top1": {"modality": "vision", "samples": 9, "batch_size": 2},
    "top2": {"modality": "text", "top_k": 2, "samples": 7, "batch_size": 2},
    "packed": {"modality": "text", "steps": 5, "modules": 300, "top_k": 14, "samples": 4, "batch_size": 1},
    "unlabelled": {"modality": "text", "samples": 4, "batch_size": 1, "labels": False},
    "hash sample": {"modality": "text", "samples": 120, "batch_size": 8},
}


def twin_of(made: RunArrays) -> TwinPaths:
    """Counted in parts that are none of the run's batches."""
    counter = TwinCounter(layout_for(made.info, made.modules))
    for start in range(0, len(made.twin), 11):
        counter.add(np.ascontiguousarray(made.twin[start : start + 11]).astype(counter.layout.id_dtype))
    paths = counter.paths()
    assert paths is not None
    return paths


def without_twin(made: RunArrays, folder: Path) -> Path:
    return replace(made, twin=made.twin[:0]).write(folder)


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_with_an_added_twin_is_the_run_that_was_traced_with_it(
    tmp_path: Path, kind: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(run_filler, "LEAST_TOKENS", 1)
        monkeypatch.setattr(twin_adder, "LEAST_TOKENS", 1)
    made = make("r", **KINDS[kind])
    whole = made.write(tmp_path / "whole" / "runs")
    file = without_twin(made, tmp_path / "added" / "runs")
    stages: list[str] = []
    assert TwinAdder(file, twin_of(made)).seal(lambda name, done, of: stages.append(name)) == file
    assert stages == ["copying the run", "the untrained twin", "answers"]
    with Run.open(whole) as expected, Run.open(file) as run:
        assert expected.has_twin
        assert run.has_twin
        assert run.fit() == expected.fit()
        assert run.knowledge() == expected.knowledge()
        assert run.usage() == expected.usage()
        assert run.row["created_at"]
    added, traced = everything(file), everything(whole)
    assert added.keys() == traced.keys()
    for table in traced:
        assert added[table] == traced[table], table
    assert is_sealed_here(file)
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_counts_of_a_twin_survive_their_file(tmp_path: Path) -> None:
    made = make("r", "text", samples=12)
    twin = twin_of(made)
    rows, counts = np.unique(np.sort(made.twin, axis=2).reshape(len(made.twin), -1), axis=0, return_counts=True)
    assert twin.counts().tolist() == sorted(counts.tolist(), reverse=True)
    assert twin.num_tokens == len(made.twin)
    assert len(rows) == twin.count_repeats.sum()
    assert twin.used_SM.sum() == made.twin.size
    file = tmp_path / "twins" / "a.npz"
    assert read_twin_file(file) is None
    write_twin_file(file, twin)
    kept = read_twin_file(file)
    assert kept is not None
    for name in ("count_values", "count_repeats", "used_SM", "known"):
        assert np.array_equal(getattr(kept, name), getattr(twin, name)), name
    content = file.read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"no archive", content[:200] + b"\0" * 40 + content[240:]):
        file.write_bytes(damaged)
        assert read_twin_file(file) is None
    write_twin_file(file, replace(twin, known=twin.known[1:]))  # type: ignore[index]
    assert read_twin_file(file) is None


def test_a_kept_twin_is_as_good_as_one_traced_beside(tmp_path: Path) -> None:
    made = make("r", "text", samples=12)
    twin = twin_of(made)
    whole = made.write(tmp_path / "whole")
    for folder, paths in (("used", twin), ("other", replace(twin, count_repeats=twin.count_repeats + 1))):
        with RunWriter(tmp_path / folder, made.info, made.modules) as writer:
            writer.use_twin(paths)
            for batch in made.batches:
                writer.write(batch)
    assert everything(tmp_path / "used" / "r.duckdb") == everything(whole)
    with Run.open(tmp_path / "other" / "r.duckdb") as run:  # of other tokens: left out
        assert run.fit()["untrained"] is None


def test_what_does_not_fit_is_refused_and_the_run_stays(tmp_path: Path) -> None:
    made = make("r", "text", samples=5)
    file, twin = without_twin(made, tmp_path / "runs"), twin_of(made)
    before = file.read_bytes()

    def refused(adding: object, match: str) -> None:
        with pytest.raises(UserError, match=match):
            adding()  # type: ignore[operator]
        assert file.read_bytes() == before
        assert is_sealed_here(file)
        assert [entry.name for entry in file.parent.iterdir()] == [file.name]

    refused(lambda: TwinAdder(file, replace(twin, count_repeats=twin.count_repeats * 2)), "data have changed")
    refused(lambda: TwinAdder(file, replace(twin, used_SM=twin.used_SM[1:])), "data have changed")
    with pytest.raises(RunNotFound):
        TwinAdder(file.with_name("gone.duckdb"), twin)
    foreign = tmp_path / "other" / "runs" / "r.duckdb"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(before)
    with pytest.raises(UserError, match="came from elsewhere"):
        TwinAdder(foreign, twin)

    def stopped(name: str, done: int, of: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    adder = TwinAdder(file, twin)
    with pytest.raises(UserError, match="held by process"):
        TwinAdder(file, twin)
    with pytest.raises(KeyboardInterrupt):
        adder.seal(stopped)
    refused(lambda: adder.seal(), "aborted")
    TwinAdder(file, twin).seal()
    with pytest.raises(UserError, match="already"):
        TwinAdder(file, twin)


def test_a_copy_that_the_disk_has_no_room_for_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("r", "text", samples=5)
    file, twin = without_twin(made, tmp_path / "runs"), twin_of(made)
    monkeypatch.setattr("tokenpaths.engine.base.files._least_free", [1000])
    free = file.stat().st_size + 999
    monkeypatch.setattr("tokenpaths.engine.base.files.shutil.disk_usage", lambda folder: SimpleNamespace(free=free))
    monkeypatch.setattr("tokenpaths.engine.store.write.twin.twin_adder.shutil.copyfile", None)
    with pytest.raises(WriterFailed, match="nearly full") as caught:
        TwinAdder(file, twin).seal()
    assert is_disk_full(caught.value)


def test_a_run_that_is_replaced_or_deleted_meanwhile_is_left_alone(tmp_path: Path) -> None:
    made = make("r", "text", samples=5)
    file, twin = without_twin(made, tmp_path / "runs"), twin_of(made)

    def replaced(name: str, done: int, of: int) -> None:
        if done == 2:
            os.utime(file, ns=(time.time_ns(), time.time_ns()))

    with pytest.raises(UserError, match="replaced meanwhile"):
        TwinAdder(file, twin).seal(replaced)
    file = without_twin(replace(made, info=replace(made.info, run_id="s")), tmp_path / "runs")
    with pytest.raises(UserError, match="deleted"):
        TwinAdder(file, twin).seal(lambda name, done, of: file.unlink() if done == 2 else None)
    assert not file.exists()


def test_a_full_disk_leaves_the_run_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make("r", "text", samples=5)
    file = without_twin(made, tmp_path / "runs")

    def full(*where: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(twin_adder.shutil, "copyfile", full)
    with pytest.raises(WriterFailed, match="No space left"):
        TwinAdder(file, twin_of(made)).seal()
    with Run.open(file) as run:
        assert not run.has_twin
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]
