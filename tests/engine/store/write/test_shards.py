"""Shards: a run of N is the run of one process, row for row; what does not belong together is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.support.runs import RunArrays, make
from tokenpaths.engine.base.errors import UserError, WriterFailed
from tokenpaths.engine.base.records import DATA_SHA256
from tokenpaths.engine.data.blocks import shard_rows
from tokenpaths.engine.data.walk import Walk
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file import SCHEMA_VERSION
from tokenpaths.engine.store.file.open_file import open_read_only
from tokenpaths.engine.store.file.shard_format import (
    MANIFEST,
    Manifest,
    Shard,
    ShardError,
    manifest_bytes,
    parse_shard,
    read_manifest,
)
from tokenpaths.engine.store.write.merge import SealProgress, find_shards, seal_shards
from tokenpaths.engine.store.write.shard_writer import ShardWriter

KINDS = {
    "top1": {"modality": "vision", "samples": 7, "batch_size": 2},
    "top2": {"modality": "text", "top_k": 2, "samples": 7, "batch_size": 2},
    "packed": {"modality": "text", "steps": 5, "modules": 300, "top_k": 14, "samples": 4, "batch_size": 1},
    "unlabelled": {"modality": "text", "samples": 4, "batch_size": 1, "labels": False, "twin": False},
}


def everything(file: Path) -> dict[str, list[tuple]]:
    """Every row of every table, in the order of the file; when the run was sealed is left out."""
    con = open_read_only(file)
    try:
        tables = con.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'r' ORDER BY table_name"
        ).fetchall()
        rows = {}
        for (table,) in tables:
            columns = [name for name, *_ in con.execute(f"DESCRIBE {table}").fetchall() if name != "created_at"]
            rows[table] = con.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
        return rows
    finally:
        con.close()


def with_soft(made: RunArrays, kind: str) -> RunArrays:
    """The same with a soft table, different for every sample; a silent sample among them."""
    rng = np.random.default_rng(5)
    batches = []
    for batch in made.batches:
        values = rng.random((len(batch.samples), 2, 4, 2) if kind != "blocks" else (len(batch.samples), 6, 4))
        values[values < 0.4] = 0
        values[-1] = 0
        batches.append(replace(batch, **{kind: values.astype(np.float32)}))
    axes = {"source": ("in", "a", "b", "h"), "target": ("h", "out")} if kind == "edges" else {}
    return replace(made, batches=batches, info=replace(made.info, axes=axes))


def write_shards(made: RunArrays, folder: Path, of: int, **changes: object) -> list[Path]:
    """``made`` in ``of`` shards, each with its part of the twin; the rows are its batches."""
    twin_ends = np.cumsum([0, *(batch.num_tokens for batch in made.batches)])
    folders = []
    for number in range(1, of + 1):
        first, stop = shard_rows(len(made.batches), 1, number, of)
        shard = Shard(number, of, first, stop, len(made.batches), "d" * 64, {"batch_size": 3})
        with ShardWriter(folder, made.info, made.modules, replace(shard, **changes)) as writer:
            for place in range(first, stop):
                writer.write(made.batches[place])
                if len(made.twin):
                    writer.write_twin(made.twin[twin_ends[place] : twin_ends[place + 1]])
        folders.append(writer.folder)
    return folders


@pytest.mark.parametrize("kind", [*KINDS, "edges", "blocks"])
def test_a_run_of_shards_is_the_run_of_one_process(tmp_path: Path, kind: str) -> None:
    made = make("r", **KINDS.get(kind, KINDS["top1"]))
    if kind not in KINDS:
        made = with_soft(made, kind)
    found = made.info.findings | {DATA_SHA256: "d" * 64}
    whole = everything(replace(made, info=replace(made.info, findings=found)).write(tmp_path / "one"))
    assert len(whole["token"]) == made.ids.shape[0]
    for of in (3, 6) if kind == "top1" else (3,):  # of six, some are empty
        folder = tmp_path / f"shards-{of}"
        write_shards(made, folder, of)
        told: list[SealProgress] = []
        file = seal_shards(find_shards([folder]), tmp_path / f"runs-{of}", on_progress=told.append)
        joined = everything(file)
        assert list(joined) == list(whole)
        for table in whole:
            assert joined[table] == whole[table], table
        assert not list((tmp_path / f"runs-{of}").glob(".*"))
        assert {progress.unit for progress in told} == {"bytes", "tokens", "stages"}
        assert all(0 <= progress.done <= progress.total for progress in told)


def test_tokens_without_a_place_in_the_text_are_the_same_rows(tmp_path: Path) -> None:
    made = make("r", **KINDS["top2"])
    placeless = [replace(batch, char_start=None, char_end=None) for batch in made.batches[::2]]
    made.batches[::2] = placeless
    made = replace(made, info=replace(made.info, findings=made.info.findings | {DATA_SHA256: "d" * 64}))
    write_shards(made, tmp_path / "shards", 3)
    joined = everything(seal_shards(find_shards([tmp_path / "shards"]), tmp_path / "runs"))
    assert joined == everything(made.write(tmp_path / "one"))


def test_a_file_that_was_left_out_may_have_any_name(tmp_path: Path) -> None:
    made = make("r", **KINDS["top1"])
    made.info.findings["notes"] = ["gut\udce9.txt was cut"]  # as Python reads names of files that are no UTF-8
    walk = Walk()
    walk.leave_out("caf\udce9.txt: is not UTF-8")
    shard = Shard(1, 1, 0, len(made.batches), len(made.batches), "d" * 64, {})
    info = replace(made.info, findings={})
    with ShardWriter(tmp_path / "shards", info, made.modules, shard, walk=lambda: walk) as writer:
        for batch in made.batches:
            writer.write(batch)
    sealed = seal_shards(find_shards([tmp_path / "shards"]), tmp_path / "runs")
    for file, note in (
        (sealed, "1 sample was left out; the first: caf?.txt: is not UTF-8"),
        (made.write(tmp_path / "one"), "gut?.txt was cut"),
    ):
        with Run.open(file) as run:
            assert run.info()["findings"]["notes"] == [note]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three good shards of a text run; tests work on copies."""
    folder = tmp_path_factory.mktemp("three")
    write_shards(make("r", **KINDS["top2"]), folder, 3)
    return folder


@pytest.fixture
def shards(three: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(three, tmp_path / "shards"))


def rewritten(folder: Path, **changes: object) -> None:
    """The manifest of a shard with other values, its own sum right."""
    manifest = read_manifest(folder)
    (folder / MANIFEST).write_bytes(manifest_bytes(Manifest.model_validate(manifest.model_dump() | changes)))


def refused(shards: Path, tmp_path: Path) -> str:
    """The sentence that sealing ends with; nothing is left of the run."""
    before = {file: file.stat().st_mtime_ns for file in shards.rglob("*")}
    with pytest.raises(UserError) as caught:
        seal_shards(find_shards([shards]), tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*"))  # hidden ones too
    assert {file: file.stat().st_mtime_ns for file in shards.rglob("*")} == before
    assert "\n" not in str(caught.value)
    assert caught.value.field in ("shards", "data_dir")
    return str(caught.value)


def test_shards_that_are_missing_or_doubled_are_refused(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards / "0002-of-0003", shards / "copy")
    assert "shard 2 of 3 is there twice" in refused(shards, tmp_path)
    shutil.rmtree(shards / "copy")
    shutil.move(shards / "0002-of-0003", tmp_path / "elsewhere")
    assert "shard 2 of 3 is missing: trace it with --shard 2/3" in refused(shards, tmp_path)
    found = find_shards([shards, tmp_path / "elsewhere"])  # wherever they are, in whatever order
    assert [manifest.shard for manifest in found.manifests] == [1, 2, 3]
    with pytest.raises(ShardError, match="given twice"):
        find_shards([shards, shards / "0001-of-0003"])
    shutil.rmtree(shards / "0001-of-0003")
    assert "2 of 3 shards are missing (1, 2)" in refused(shards, tmp_path)
    shutil.rmtree(shards / "0003-of-0003")
    (shards / ".0003-of-0003.partial").mkdir()
    assert "no finished shard (1 begun and not finished)" in refused(shards, tmp_path)
    assert "there is no folder" in refused(shards / "nowhere", tmp_path)
    (tmp_path / "others" / "pictures").mkdir(parents=True)
    assert "others holds no finished shard" in refused(tmp_path / "others", tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "other"}, "do not belong together: they were traced with model 'other' and 'toy-text'"),
        ({"checkpoint_sha256": "1" * 64}, "traced with checkpoint '1111"),
        ({"dataset_sha256": "1" * 64}, "are of a data set of SHA-256 '1111"),
        ({"run": "s"}, "are of run 's' and 'r'"),
        ({"options": {"batch_size": 4}}, "were traced with batch_size 4 and batch_size 3"),
        ({"of": 4}, "is shard 2 of 4, .* is shard 1 of 3: all shards of a run are of one number"),
        ({"shard": 4}, "is shard 4 of 3, which there cannot be"),
        ({"first": 2}, "shard 2 of 3 begins at row 2, the one before ends at 1"),
        ({"tokens": 5}, r"holds \d+ tokens, its manifest says 5"),
        ({"schema_version": 2}, f"have schema version 2 and {SCHEMA_VERSION}"),
    ],
)
def test_shards_of_something_else_are_refused(shards: Path, tmp_path: Path, changes: dict, words: str) -> None:
    rewritten(shards / "0002-of-0003", **changes)
    with pytest.raises(ShardError, match=words):
        raise ShardError(refused(shards, tmp_path))


def test_a_description_of_another_model_is_refused(shards: Path, tmp_path: Path) -> None:
    made = make("r", **KINDS["top2"])
    other = replace(made, modules=[replace(made.modules[0], num_params=7), *made.modules[1:]])
    write_shards(other, tmp_path / "other", 3)
    shutil.rmtree(shards / "0002-of-0003")
    shutil.copytree(tmp_path / "other" / "0002-of-0003", shards / "0002-of-0003")
    assert "about.json, their description of the run, differs" in refused(shards, tmp_path)


def test_any_flipped_byte_is_refused(shards: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    folder = shards / "0002-of-0003"
    for file in sorted(folder.iterdir()):
        good = file.read_bytes()
        for place in [0, len(good) - 1, *rng.integers(0, len(good), 8).tolist()]:
            bad = bytearray(good)
            bad[place] ^= 1 << int(rng.integers(8))
            file.write_bytes(bad)
            sentence = refused(shards, tmp_path)
            assert sentence.startswith(f"{file} ")
            assert "damaged" in sentence or "manifest" in sentence
        file.write_bytes(good[:-1])
        assert str(file) in refused(shards, tmp_path)
        file.unlink()
        assert "missing" in (sentence := refused(shards, tmp_path)) or "no manifest.json" in sentence
        file.write_bytes(good)
    seal_shards(find_shards([shards]), tmp_path / "runs")


def test_what_parquet_itself_refuses_is_a_sentence(shards: Path, tmp_path: Path) -> None:
    """A sum that fits bytes which are no table: no accident, but no traceback either."""
    folder = shards / "0003-of-0003"
    (folder / "token.parquet").write_bytes(b"PAR1 is not enough PAR1")
    import hashlib

    files = read_manifest(folder).model_dump()["files"]
    digest = hashlib.sha256((folder / "token.parquet").read_bytes()).hexdigest()
    files["token.parquet"] = {"rows": 1, "bytes": 23, "sha256": digest}
    rewritten(folder, files=files)
    assert "0003-of-0003 cannot be read" in refused(shards, tmp_path)
    files["../../secret"] = files["token.parquet"]
    rewritten(folder, files=files)
    assert "lists a file '../../secret' that no shard has" in refused(shards, tmp_path)


def test_shards_without_a_sample_make_no_run(tmp_path: Path) -> None:
    made = replace(make("r", **KINDS["top1"]), batches=[], twin=np.zeros((0, 5, 1), dtype=int))
    write_shards(made, tmp_path / "shards", 2)
    assert "nothing was traced" in str(
        pytest.raises(UserError, seal_shards, find_shards([tmp_path / "shards"]), tmp_path / "runs").value
    )


def test_a_run_that_is_there_is_kept_unless_it_may_be_overwritten(shards: Path, tmp_path: Path) -> None:
    first = seal_shards(find_shards([shards]), tmp_path / "runs", run_id="other")
    with Run.open(first) as run:
        assert run.run_id == "other"
    before = first.read_bytes()
    with pytest.raises(UserError, match="there is a run 'other' already"):
        seal_shards(find_shards([shards]), tmp_path / "runs", run_id="other")
    assert first.read_bytes() == before
    seal_shards(find_shards([shards]), tmp_path / "runs", run_id="other", overwrite=True)


def test_what_a_killed_worker_left_is_traced_anew_and_two_workers_do_not_meet(tmp_path: Path) -> None:
    made = make("r", **KINDS["top1"])
    left = tmp_path / ".0001-of-0001.partial"
    left.mkdir()
    (left / "token.parquet").write_bytes(b"half")
    shard = Shard(1, 1, 0, 4, 4, "d" * 64)
    with ShardWriter(tmp_path, made.info, made.modules, shard) as writer:
        with pytest.raises(UserError, match="held by process"):
            ShardWriter(tmp_path, made.info, made.modules, shard)
        for batch in made.batches:
            writer.write(batch)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0001-of-0001"]
    assert pq.read_metadata(tmp_path / "0001-of-0001" / "token.parquet").num_rows == made.ids.shape[0]
    with pytest.raises(UserError, match="shard 1 of 1 of run 'r' is there already"):
        ShardWriter(tmp_path, made.info, made.modules, shard)
    broken = replace(made.batches[1], flops=-made.batches[1].flops)
    writer = ShardWriter(tmp_path, made.info, made.modules, shard, overwrite=True)
    writer.write(made.batches[0])
    with pytest.raises(UserError, match="flops"), writer:
        writer.write(broken)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0001-of-0001"]  # the old one, whole
    assert len(find_shards([tmp_path]).manifests) == 1


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tokenpaths.engine.base.errors import WriterFailed
from tokenpaths.engine.store.write.merge import find_shards, seal_shards
from tests.engine.store.write.test_shards import KINDS, write_shards
from tests.support.runs import make
folder = Path(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
def limited(work, size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        work()
    except WriterFailed as error:
        print(error)
limited(lambda: seal_shards(find_shards([folder / "shards"]), folder / "runs"), 100_000)
limited(lambda: write_shards(make("r", **KINDS["top1"]), folder / "more", 1), 2_000)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(seal_shards(find_shards([folder / "shards"]), folder / "runs"))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="resource limits")
def test_a_full_disk_is_a_sentence_and_sealing_goes_on_later(shards: Path, tmp_path: Path) -> None:
    here = Path(__file__).resolve()
    code = f"import sys; sys.path[:0] = {[str(here.parents[3]), str(here.parent)]!r}\n{FULL_DISK}"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert len(lines) == 3, done.stderr
    assert "nothing is left of the run, and the shards are as they were: make room and seal again" in lines[0]
    assert "shard 1 of 1 could not be written to" in lines[1]
    assert "make room and trace it again" in lines[1]
    assert not list((tmp_path / "more").iterdir())
    with Run.open(Path(lines[2])) as run:
        assert run.card()["num_samples"] == 7


def test_a_nearly_full_disk_stops_a_shard_before_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, shard = make("r", **KINDS["top1"]), Shard(1, 1, 0, 4, 4, "d" * 64)
    writer = ShardWriter(tmp_path, made.info, made.modules, shard)
    writer.write(made.batches[0])
    monkeypatch.setattr("tokenpaths.engine.base.files._least_free", [10**18])
    with pytest.raises(WriterFailed, match=r"is nearly full: .*nothing of it was kept"):
        writer.seal()
    with pytest.raises(WriterFailed, match="is nearly full"):
        ShardWriter(tmp_path, made.info, made.modules, shard)
    assert list(tmp_path.iterdir()) == []


def test_notes_tell_what_was_left_out_and_made_otherwise(shards: Path) -> None:
    assert find_shards([shards]).notes() == []
    rewritten(shards / "0002-of-0003", left_out=3, problems=["b.txt is empty"], made_with={"device": "cuda"})
    left_out, otherwise = find_shards([shards]).notes()
    assert left_out == "3 samples were left out; the first: b.txt is empty"
    assert "device cuda" in otherwise
    assert "last digit" in otherwise


def test_rows_are_cut_between_blocks_and_none_is_lost() -> None:
    for rows in (0, 1, 7, 64, 1000):
        for block in (1, 3, 64):
            for of in (1, 2, 5, 9):
                cuts = [shard_rows(rows, block, shard, of) for shard in range(1, of + 1)]
                assert [first for first, _ in cuts] == [0, *(stop for _, stop in cuts[:-1])]
                assert cuts[-1][1] == rows
                assert all(first % block == 0 or first == rows for first, _ in cuts)


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "3/0", "a/b", "1/2/3", "-1/3", "1/99999"])
def test_no_shard_is_said(text: str) -> None:
    with pytest.raises(UserError, match="write i/N"):
        parse_shard(text)
    assert parse_shard("3/8") == (3, 8)
