"""Sealing on many: a run in parts is the run of one process, whatever it is asked, and one file again when packed."""

from __future__ import annotations

import hashlib
import io
import math
import os
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.store.write.test_shards import KINDS, with_soft, write_shards
from tests.support.asking import questions_of
from tests.support.runs import RunArrays, make
from tokenpaths.engine.base.errors import Held, RunFileError, UserError
from tokenpaths.engine.base.files import HolderLock, keep_free, kept_free
from tokenpaths.engine.base.records import DATA_SHA256
from tokenpaths.engine.base.run_parts import parts_of
from tokenpaths.engine.base.seal_marks import is_sealed_here
from tokenpaths.engine.store.ask import dataset_export, export
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.file.open_file import open_read_only
from tokenpaths.engine.store.file.shard_format import MANIFEST, Manifest, manifest_bytes, read_manifest
from tokenpaths.engine.store.file.verification import verify_run
from tokenpaths.engine.store.intake.gate import IntakeLimits, RunGate
from tokenpaths.engine.store.write import seal_nulls
from tokenpaths.engine.store.write.merge import SealProgress, find_shards, seal_shards
from tokenpaths.engine.store.write.parts import answer_questions as answering
from tokenpaths.engine.store.write.parts import seal_in_parts as sealing
from tokenpaths.engine.store.write.parts.answer_questions import answer_questions
from tokenpaths.engine.store.write.parts.pack import pack_run
from tokenpaths.engine.store.write.parts.plan import SealPlan
from tokenpaths.engine.store.write.parts.seal_in_parts import seal_in_parts
from tokenpaths.engine.store.write.parts.workers import ANSWER, COUNT, WRITE, OneByOne, work
from tokenpaths.engine.store.write.writer import RunWriter, remove_abandoned

UNEVEN = {"modality": "text", "top_k": 2, "samples": 9, "batch_size": 2, "modules": 6}


def made_of(kind: str) -> RunArrays:
    made = make("r", **KINDS.get(kind, UNEVEN if kind == "uneven" else KINDS["top1"]))
    if kind in ("edges", "gates", "blocks"):
        made = with_soft(made, kind)
    if kind == "uneven":  # weights that differ between parts, and a label that only the last one has
        made.batches[-1].samples[-1] = replace(made.batches[-1].samples[-1], label="late")
    return replace(made, info=replace(made.info, findings=made.info.findings | {DATA_SHA256: "d" * 64}))


def rows_of(file: Path) -> dict[str, list[tuple]]:
    """Every row of every table, in the order of the file, but for when it was sealed."""
    con = open_read_only(file)
    try:
        listed = "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'r' ORDER BY table_name"
        rows = {}
        for (table,) in con.execute(listed).fetchall():
            columns = [name for name, *_ in con.execute(f"DESCRIBE {table}").fetchall()]
            named = ", ".join(name for name in columns if name not in ("created_at", "rowid"))
            rows[table] = con.execute(f"SELECT {named} FROM {table}").fetchall()
        return rows
    finally:
        con.close()


def in_parts(made: RunArrays, tmp_path: Path, of: int = 3, workers: OneByOne | None = None) -> Path:
    """The run sealed from ``of`` shards."""
    write_shards(made, tmp_path / "shards", of)
    return seal_in_parts(find_shards([tmp_path / "shards"]), tmp_path / "runs", workers or OneByOne())


@pytest.mark.parametrize("kind", [*KINDS, "edges", "gates", "blocks", "uneven"])
def test_a_run_in_parts_is_the_run_of_one_process(tmp_path: Path, kind: str) -> None:
    made = made_of(kind)
    whole = rows_of(made.write(tmp_path / "one"))
    for of in (1, 3, 6):
        folder = tmp_path / str(of)
        file = in_parts(made, folder, of)
        joined = rows_of(file)
        assert list(joined) == list(whole)
        for table in whole:
            assert joined[table] == whole[table], (of, table)
        assert len(parts_of(file)) == min(of, len(made.batches))
        assert {path.name for path in file.parent.iterdir()} == {file.name, *(part.name for part in parts_of(file))}
        assert not list((folder / "shards").glob(".*"))
        verified = verify_run(file)
        assert verified["token"] == len(whole["token"])
        pack_run(file)
        assert [path.name for path in file.parent.iterdir()] == [file.name]
        assert rows_of(file) == whole
        assert verify_run(file) == verified


def test_more_shards_than_parts_share_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "MOST_PARTS", 2)
    monkeypatch.setattr("tokenpaths.engine.store.write.seal_pages.LEAST_TOKENS", 1)
    monkeypatch.setattr("tokenpaths.engine.store.file.pages.profile_pages.PAGE_SAMPLES", 3)
    made = made_of("top2")
    whole = rows_of(made.write(tmp_path / "one"))
    file = in_parts(made, tmp_path, 4)
    assert len(parts_of(file)) == 2
    assert rows_of(file) == whole
    assert len(whole["profile_page"]) == 3  # of seven samples, three each: one begins in the first part


@pytest.fixture(scope="module", params=["top1", "top2", "packed", "blocks"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Run, Run]]:
    """The same run in parts and in one file, with spellings of labels that look alike."""
    folder = tmp_path_factory.mktemp("pair")
    made = made_of(request.param)
    for number, batch in enumerate(made.batches):
        spelled = [s if s.label is None else replace(s, label=s.label + " " * (number % 2)) for s in batch.samples]
        batch.samples[:] = spelled
    with Run.open(in_parts(made, folder)) as run, Run.open(made.write(folder / "one")) as other:
        yield run, other


def alike(one: Any, other: Any) -> bool:
    """Equal, but for the last digits of means, which several threads add in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one if key != "created_at")
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


@pytest.mark.parametrize("labels", [None, "merged"])
def test_every_question_has_the_same_answer(pair: tuple[Run, Run], labels: str | None) -> None:
    run, other = pair
    more = {} if labels is None else {"labels": labels}
    asked = 0
    for question, arguments in questions_of(other):
        try:
            right = getattr(other, question.name)(**arguments, **more)
        except (UserError, TypeError) as error:
            with pytest.raises(type(error)):
                getattr(run, question.name)(**arguments, **more)
            continue
        assert alike(getattr(run, question.name)(**arguments, **more), right), f"{question.name}({arguments})"
        asked += 1
    assert asked > 20


def test_every_table_is_exported_alike(pair: tuple[Run, Run], tmp_path: Path) -> None:
    files = [RunFile.open(run.file) for run in pair]
    try:
        names = [row["table"] for row in export.tables(files[1])["tables"]]
        assert {"token", "sample", "path"} <= set(names)
        for name in names:
            one, other = (pa.concat_tables(export.table_batches(file, name)).to_pylist() for file in files)
            assert alike(one, other), name
        one, other = (zipfile.ZipFile(io.BytesIO(b"".join(dataset_export.zipped_dataset(file)))) for file in files)
        assert one.namelist() == other.namelist()
        for name in one.namelist():
            if name.endswith(".arrow"):
                assert stream(one.read(name)).equals(stream(other.read(name))), name
    finally:
        for file in files:
            file.close()


def stream(content: bytes) -> pa.Table:
    """The rows of an Arrow stream: bytes under nulls are not compared."""
    return pa.ipc.open_stream(content).read_all()


class Answering(OneByOne):
    """Several workers that answer side by side: what one has claimed the others leave."""

    def __init__(self, slots: int) -> None:
        self.slots, self.passes = slots, list[tuple[str, int]]()

    def run(self, name: str, folder: Path, num: int, on_done: Any) -> None:
        self.passes.append((name, num))
        if name == ANSWER and self.slots > 1:
            plan = SealPlan.read(folder)
            (folder / "answers").mkdir()
            (folder / "answers" / "2.claimed").touch()  # of a worker that is lost
            answer_questions(plan, plan.partial_run)
            assert not (folder / "answers" / "2.json").exists()
        super().run(name, folder, num, on_done)


def test_answers_of_a_large_run_are_sealed_by_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.LEAST_TOKENS", 1)
    monkeypatch.setattr("tokenpaths.engine.store.ask.tables.token_table.MOST_TOKENS", 50)
    made = made_of("top2")
    whole = rows_of(made.write(tmp_path / "one"))
    assert len(whole["answer"]) > 10
    assert "drawn_token" in whole
    workers = Answering(1)
    file = in_parts(made, tmp_path, workers=workers)
    assert [name for name, _ in workers.passes] == ["count", "write", "answer"]
    assert rows_of(file) == whole
    lost = in_parts(made, tmp_path / "lost", workers=Answering(2))
    missing = set(whole["answer"]) - set(rows_of(lost)["answer"])
    assert len(missing) == 1
    assert set(rows_of(lost)["answer"]) < set(whole["answer"])
    with Run.open(lost) as run, Run.open(file) as other:
        assert run.samples() == other.samples()


def test_parts_go_with_their_run(tmp_path: Path) -> None:
    made = made_of("top1")
    file = in_parts(made, tmp_path)
    first = parts_of(file)
    found = find_shards([tmp_path / "shards"])
    with pytest.raises(UserError, match="there is a run 'r' already"):
        seal_in_parts(found, file.parent, OneByOne())
    assert parts_of(file) == first
    seal_in_parts(found, file.parent, OneByOne(), overwrite=True)
    second = parts_of(file)
    assert len(second) == 3
    assert not set(first) & set(second)
    with Run.open(file) as run:
        assert run.card()["num_tokens"] == made.ids.shape[0]
    with RunWriter(file.parent, made.info, made.modules, overwrite=True) as writer:  # one file in its place
        for batch in made.batches:
            writer.write(batch)
    assert not parts_of(file)
    with pytest.raises(UserError, match="in one file already"):
        pack_run(file)
    seal_in_parts(found, file.parent, OneByOne(), overwrite=True)
    RunGate(file.parent).delete(file)
    assert not list(file.parent.iterdir())


def test_a_missing_part_and_one_of_somebody_else_are_named(tmp_path: Path) -> None:
    file = in_parts(made_of("top1"), tmp_path)
    second = parts_of(file)[1]
    aside = second.rename(tmp_path / second.name)
    with pytest.raises(RunFileError, match=rf"is a run in parts, and {second.name} is missing: bring the one file"):
        Run.open(file)
    shutil.copy(aside, second)  # another file, which nobody here wrote
    with pytest.raises(RunFileError, match="is damaged or was not written in this folder"):
        Run.open(file)
    second.unlink()
    os.replace(aside, second)
    Run.open(file).close()
    # What merely has the name of a part is not opened, and the run does not mind.
    second.with_name(f"r.{'0' * 8}.0001.part").write_bytes(b"no database")
    second.with_name(f"r.{'0' * 8}.0002.part").symlink_to(tmp_path / "nowhere")
    Run.open(file).close()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(file.parent, elsewhere, symlinks=True)
    Run.open(elsewhere / file.name).close()


def test_a_run_in_parts_from_elsewhere_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = in_parts(made_of("top1"), tmp_path)
    runs_dir = tmp_path / "other" / "runs"
    shutil.copytree(file.parent, runs_dir)
    gate = RunGate(runs_dir, IntakeLimits())
    try:
        with pytest.raises(RunFileError, match="it is a run in parts: bring the one file that `tokenpaths pack` makes"):
            gate.passage(runs_dir / file.name)
    finally:
        gate.close()


def test_a_copied_data_folder_is_packed_if_it_is_said_to_be_ones_own(tmp_path: Path) -> None:
    file = in_parts(made_of("top1"), tmp_path)
    whole = rows_of(file)
    copy = tmp_path / "other" / "runs" / file.name
    shutil.copytree(file.parent, copy.parent)
    with pytest.raises(UserError, match="was not sealed in this data folder: pack it where it was, or, if it is yours"):
        pack_run(copy)
    pack_run(copy, trust=True)
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]
    assert rows_of(copy) == whole
    assert not is_sealed_here(copy)  # taken in as any file from elsewhere


class Meanwhile(OneByOne):
    """Something happens once the parts are written."""

    def __init__(self, happens: Callable[[], object]) -> None:
        self.happens = happens

    def run(self, name: str, folder: Path, num: int, on_done: Any) -> None:
        super().run(name, folder, num, on_done)
        if name == WRITE:
            self.happens()


def test_a_run_that_is_deleted_or_packed_while_it_is_sealed_anew(tmp_path: Path) -> None:
    file = in_parts(made_of("top1"), tmp_path)
    found, gate = find_shards([tmp_path / "shards"]), RunGate(file.parent)
    seal_in_parts(found, file.parent, Meanwhile(lambda: gate.delete(file)), overwrite=True)
    assert len(parts_of(file)) == 3

    def pack() -> None:
        with pytest.raises(UserError, match="is held by process"):
            pack_run(file)

    seal_in_parts(found, file.parent, Meanwhile(pack), overwrite=True)
    assert len(parts_of(file)) == 3
    Run.open(file).close()


def test_ctrl_c_right_after_the_run_has_its_name_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = in_parts(made_of("top1"), tmp_path)
    first = parts_of(file)

    def renamed(source: Path, target: Path) -> None:
        os.replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenpaths.engine.store.write.writer.rename_durably", renamed)
    with pytest.raises(KeyboardInterrupt):
        seal_in_parts(find_shards([tmp_path / "shards"]), file.parent, OneByOne(), overwrite=True)
    assert len(parts_of(file)) == 3
    assert not set(first) & set(parts_of(file))
    Run.open(file).close()
    assert {path.name for path in file.parent.iterdir()} == {file.name, *(part.name for part in parts_of(file))}


def test_ctrl_c_right_after_a_packed_run_has_its_name_leaves_it_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = in_parts(made_of("top1"), tmp_path)
    whole = rows_of(file)

    def renamed(source: Path, target: Path) -> None:
        os.replace(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenpaths.engine.store.write.parts.pack.rename_durably", renamed)
    with pytest.raises(KeyboardInterrupt):
        pack_run(file)
    assert is_sealed_here(file)
    assert rows_of(file) == whole
    with pytest.raises(UserError, match="in one file already"):
        pack_run(file)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("column", ["m1", "twin"])
def test_a_module_that_there_is_not_ends_the_sealing_with_a_sentence(tmp_path: Path, column: str) -> None:
    folders = write_shards(made_of("top1"), tmp_path / "shards", 3)
    name = "twin.parquet" if column == "twin" else "token.parquet"
    rows = pq.read_table(folders[1] / name)
    place = 0 if column == "twin" else rows.schema.names.index(column)
    values = np.full(len(rows), 199, dtype=np.uint8)
    pq.write_table(rows.set_column(place, rows.schema.field(place), pa.array(values)), folders[1] / name)
    manifest = read_manifest(folders[1])
    content = (folders[1] / name).read_bytes()
    entry = {"rows": len(rows), "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files = {key: value.model_dump() for key, value in manifest.files.items()} | {name: entry}
    changed = Manifest.model_validate(manifest.model_dump() | {"files": files})
    (folders[1] / MANIFEST).write_bytes(manifest_bytes(changed))
    with pytest.raises(UserError, match=r"reach from \d+ to 199, but the run has modules 0 … 5"):
        seal_in_parts(find_shards([tmp_path / "shards"]), tmp_path / "runs", OneByOne())
    assert not list((tmp_path / "runs").iterdir())


def test_what_a_lost_sealing_left_goes_and_its_run_stays(tmp_path: Path) -> None:
    file = in_parts(made_of("top1"), tmp_path)
    kept = parts_of(file)
    left = [file.with_name(f"{name}.deadbeef.0001.part") for name in ("r", "q")]
    for name, part in zip(("r", "q"), left, strict=True):
        part.touch()
        part.with_name(f"{part.name}.wal").touch()
        (part.with_name(f"{part.name}.tmp") / "spilled").mkdir(parents=True)
        (file.parent / f".{name}.partial").touch()
    file.with_name("r.cafecafe.0001.part.wal").touch()  # of a part that is gone
    assert remove_abandoned(file.parent) == ["q", "r"]
    assert {path.name for path in file.parent.iterdir()} == {file.name, *(part.name for part in kept)}
    Run.open(file).close()


@pytest.mark.parametrize("parted", [True, False])
def test_what_a_killed_sealing_left_beside_the_shards_goes_with_the_next(tmp_path: Path, parted: bool) -> None:
    write_shards(made_of("top1"), tmp_path / "shards", 3)
    found = find_shards([tmp_path / "shards"])
    left = {}
    for name, runs_dir, run_id in (("r", "runs", "r"), ("q", "runs", "q"), ("far", "other", "r")):
        plan = sealing._plan(found, tmp_path / runs_dir, run_id)
        plan.work.mkdir()
        plan.write()
        plan.counts_file(0).touch()
        left[name] = plan.work
    strange = tmp_path / "shards" / ".sealing-mine"
    strange.mkdir()
    if parted:
        seal_in_parts(found, tmp_path / "runs", OneByOne())
    else:
        seal_shards(found, tmp_path / "runs")
    assert set((tmp_path / "shards").glob(".*")) == {left["q"], left["far"], strange}, "others may be at work"


def test_a_damaged_shard_ends_the_sealing_and_leaves_nothing(tmp_path: Path) -> None:
    write_shards(made_of("top2"), tmp_path / "shards", 3)
    table = tmp_path / "shards" / "0002-of-0003" / "token.parquet"
    content = bytearray(table.read_bytes())
    content[len(content) // 2] ^= 1
    table.write_bytes(content)
    told: list[SealProgress] = []
    with pytest.raises(UserError, match=r"token.parquet is damaged \(its SHA-256 is not that of the manifest\)"):
        seal_in_parts(find_shards([tmp_path / "shards"]), tmp_path / "runs", OneByOne(), on_progress=told.append)
    assert not list((tmp_path / "runs").iterdir())
    assert not list((tmp_path / "shards").glob(".*"))
    assert {progress.stage for progress in told} == {"counting paths"}


def test_a_piece_that_a_lost_worker_is_still_at_is_left_to_it(tmp_path: Path) -> None:
    class WithOneThatLives(OneByOne):
        def run(self, name: str, folder: Path, num: int, on_done: Callable[[int], None]) -> None:
            if name != ANSWER:
                plan = SealPlan.read(folder)
                found = plan.counts_file(1) if name == COUNT else plan.sums_file(1)
                other = HolderLock(found.with_suffix(".lock"))
                other.acquire()
                with pytest.raises(Held, match="is held by process"):
                    work(name, 1, folder)
                other.release()
                work(name, 1, folder)
                before = found.stat(), [part.stat() for part in plan.parts if part.exists()]
                work(name, 1, folder)  # the one that was started again, when it may
                assert before == (found.stat(), [part.stat() for part in plan.parts if part.exists()])
            super().run(name, folder, num, on_done)

    made = made_of("top2")
    file = in_parts(made, tmp_path, workers=WithOneThatLives())
    assert rows_of(file) == rows_of(made.write(tmp_path / "one"))


def test_workers_keep_free_what_the_command_keeps_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(OneByOne):
        def run(self, name: str, folder: Path, num: int, on_done: Callable[[int], None]) -> None:
            here = kept_free()
            keep_free(0)  # another process, which knows nothing of the settings
            super().run(name, folder, num, on_done)
            assert kept_free() == here == 5_000_000

    monkeypatch.setattr("tokenpaths.engine.base.files._least_free", [5_000_000])
    in_parts(made_of("top1"), tmp_path, workers=Elsewhere())


def test_workers_of_equal_numbers_on_two_machines_share_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    connection = answering.Connection

    def connected(*given: Any, spill_folder: Path, **more: Any) -> Any:
        opened.append(spill_folder)
        return connection(*given, spill_folder=spill_folder, **more)

    class Twice(OneByOne):
        def run(self, name: str, folder: Path, num: int, on_done: Callable[[int], None]) -> None:
            super().run(name, folder, 2 if name == ANSWER else num, on_done)

    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.LEAST_TOKENS", 1)
    monkeypatch.setattr(answering, "Connection", connected)
    monkeypatch.setattr(os, "getpid", lambda: 7)
    in_parts(made_of("top2"), tmp_path, workers=Twice())
    assert len(opened) == len(set(opened)) == 2


@pytest.mark.parametrize("error", [MemoryError("too many tokens"), KeyboardInterrupt()])
def test_a_null_that_fails_beside_the_workers_ends_the_sealing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    names = []

    def fails(*_: object) -> None:
        names.append(threading.current_thread().name)
        raise error

    monkeypatch.setattr(seal_nulls, "independent_null", fails)
    with pytest.raises(type(error)):
        in_parts(made_of("top1"), tmp_path)
    assert names == ["independent steps"]
    assert not list((tmp_path / "runs").iterdir())


def test_numbers_of_merged_dictionaries_are_those_of_one(tmp_path: Path) -> None:
    from tokenpaths.engine.store.write.path_dictionary import PathDictionary

    rng = np.random.default_rng(3)
    ids = rng.integers(0, 3, (5000, 4, 1)).astype(np.uint8)
    whole, merged = PathDictionary(np.dtype(np.uint8)), PathDictionary(np.dtype(np.uint8))
    numbers = whole.add(ids)[0]
    joined = []
    for part in np.array_split(ids, [10, 700, 701, 3000]):
        own = PathDictionary(np.dtype(np.uint8))
        mine = own.add(part)[0]
        joined.append(merged.merge(own.ribbons(), own.counts())[mine])
    assert np.array_equal(np.concatenate(joined), numbers)
    assert np.array_equal(merged.counts(), whole.counts())
    assert merged.num_tokens == whole.num_tokens == 5000
    assert np.array_equal(merged.ribbons(), whole.ribbons())
