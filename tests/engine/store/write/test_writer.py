"""Writing: what is refused before anything is written, and that a run is there whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from tests.support.flushing import flush_every
from tests.support.runs import RunArrays, make, make_run
from tokenpaths.engine.base import lifecycle
from tokenpaths.engine.base.errors import UserError, WriterFailed
from tokenpaths.engine.base.records import ModuleInfo, SampleRecord
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.topics.overview import list_runs
from tokenpaths.engine.store.file.hash_sample import HashSample
from tokenpaths.engine.store.write import writer as writer_file
from tokenpaths.engine.store.write.path_dictionary import PathDictionary
from tokenpaths.engine.store.write.writer import RunWriter, remove_abandoned


@pytest.fixture
def made() -> RunArrays:
    return make("demo", "vision", samples=3, top_k=2)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def changed(array: np.ndarray, place: tuple, value: float) -> np.ndarray:
    copy = array.copy()
    copy[place] = value
    return copy


def first(made: RunArrays, name: str) -> np.ndarray:
    return getattr(made.batches[0], name)


BAD_BATCHES = {
    "NaN weight": (lambda m: {"weights": changed(first(m, "weights"), (3, 1, 0), np.nan)}, r"weights\[3, 1, 0\]"),
    "infinite weight": (lambda m: {"weights": changed(first(m, "weights"), (0, 0, 0), np.inf)}, "finite"),
    "weight above 1": (lambda m: {"weights": changed(first(m, "weights"), (0, 0, 0), 1.5)}, "exceed 1"),
    "negative weight": (lambda m: {"weights": changed(first(m, "weights"), (0, 0, 0), -0.5)}, "fall below"),
    "module id = M": (lambda m: {"module_ids": changed(first(m, "module_ids"), (0, 0, 0), 6)}, "modules 0 … 5"),
    "negative module id": (lambda m: {"module_ids": changed(first(m, "module_ids"), (0, 0, 0), -1)}, "modules 0"),
    "module twice": (
        lambda m: {"module_ids": changed(first(m, "module_ids"), (7, 2), 4)},
        "token 7 chooses one module twice at step 2",
    ),
    "float ids": (lambda m: {"module_ids": first(m, "module_ids").astype(float)}, "should be integers"),
    "a step short": (lambda m: {"module_ids": first(m, "module_ids")[:, :-1]}, "5 steps"),
    "a slot short": (lambda m: {"module_ids": first(m, "module_ids")[:, :, :1]}, "2 slots"),
    "no slot axis": (lambda m: {"module_ids": first(m, "module_ids")[:, :, 0]}, "slots"),
    "fewer weights": (lambda m: {"weights": first(m, "weights")[:-1]}, "weights has shape"),
    "fewer flops": (lambda m: {"flops": first(m, "flops")[:-1]}, "flops has shape"),
    "NaN flops": (lambda m: {"flops": changed(first(m, "flops"), (0,), np.nan)}, "finite"),
    "infinite entropy": (lambda m: {"gate_entropy": changed(first(m, "gate_entropy"), (0, 0), np.inf)}, "finite"),
    "infinite loss": (lambda m: {"loss": changed(first(m, "flops"), (0,), np.inf)}, "loss"),
    "loss past single precision": (
        lambda m: {"loss": np.full(len(first(m, "flops")), 1e39)},
        r"loss\[0\] is 1e\+39.*at most 1e\+30",
    ),
    "entropies whose mean would overflow": (
        lambda m: {"gate_entropy": np.full(first(m, "gate_entropy").shape, 3e38, np.float32)},
        r"gate_entropy\[0, 0\]",
    ),
    "unknown region": (lambda m: {"region": changed(first(m, "region"), (0,), 3)}, "region"),
    "row past 16 bits": (lambda m: {"row": changed(first(m, "row"), (0,), 2**15)}, "row goes up to 32768.*32767"),
    "a sample too many": (lambda m: {"samples": [*m.samples, m.samples[0]]}, "256 tokens together"),
    "an empty sample": (lambda m: {"samples": [*m.samples, SampleRecord(0)]}, "needs at least one"),
    "not a PNG": (lambda m: {"samples": [replace(m.samples[0], image=b"GIF89a")]}, "not a PNG"),
    "NaN confidence": (lambda m: {"samples": [replace(m.samples[0], confidence=float("nan"))]}, "confidence"),
    "lone surrogate": (lambda m: {"samples": [replace(m.samples[0], label="a\ud800b")]}, r"U\+D800 at character 1"),
}


@pytest.mark.parametrize("fault", BAD_BATCHES)
def test_a_bad_batch_is_refused_before_anything_of_it_is_written(fault: str, made: RunArrays, tmp_path: Path):
    changes, message = BAD_BATCHES[fault]
    bad = made.with_changes(**changes(made)).batches[0]
    with RunWriter(tmp_path, made.info, made.modules) as writer:
        with pytest.raises(UserError, match=message):
            writer.write(bad)
        writer.write(made.batches[0])
    with Run.open(tmp_path / "demo.duckdb") as run:
        assert run.card()["num_tokens"] == made.batches[0].num_tokens


BAD_RUNS = {
    "name": ({"run_id": "../evil"}, "is no run id"),
    "device": ({"run_id": "CON"}, "is no run id"),
    "slots": ({"top_k": 7}, "6 modules to choose from"),
    "steps": ({"num_steps": 0}, "num_steps is 0"),
    "modules": ({"num_modules": 70_000}, "at most 65536"),
    "modality": ({"modality": "smell"}, "'vision' or 'text'"),
    "config": ({"config": {"lr": float("nan")}}, "config cannot be written as JSON"),
    "surrogate": ({"model": "\udfff"}, "lone surrogate"),
}


@pytest.mark.parametrize("fault", BAD_RUNS)
def test_a_bad_run_creates_no_file(fault: str, made: RunArrays, tmp_path: Path):
    changes, message = BAD_RUNS[fault]
    info = made.info
    for name, value in changes.items():
        info = _set(info, name, value)
    with pytest.raises(UserError, match=message):
        RunWriter(tmp_path / "runs", info, made.modules)
    assert names(tmp_path) == []


def _set(info, name: str, value: object):
    """``replace`` that type checkers of the dataclass do not see."""
    copy = replace(info)
    object.__setattr__(copy, name, value)
    return copy


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ([], "no modules given"),
        ([ModuleInfo(None, 6, "seventh", "mlp", 1, 1)], "outside 0 … 5"),
        ([ModuleInfo(5, 0, "late", "mlp", 1, 1)], "step 5"),
    ],
)
def test_modules_must_fit_the_run(modules: list[ModuleInfo], message: str, made: RunArrays, tmp_path: Path):
    with pytest.raises(UserError, match=message):
        RunWriter(tmp_path, made.info, modules)
    assert names(tmp_path) == []


def test_a_step_offers_only_its_own_modules(made: RunArrays, tmp_path: Path):
    modules = [ModuleInfo(s, m, f"s{s} m{m}", "mlp", 1, 1) for s in range(5) for m in range(6) if (s, m) != (3, 2)]
    with RunWriter(tmp_path, made.info, modules) as writer:
        with pytest.raises(UserError, match="step 3 offers no module 2"):
            writer.write(made.batches[0])
        ids = made.batches[0].module_ids
        keep = ~(ids[:, 3] == 2).any(axis=1)
        batch = made.with_changes(
            samples=[SampleRecord(int(keep.sum()))],
            **{
                name: first(made, name)[keep]
                for name in ("module_ids", "weights", "gate_entropy", "flops", "row", "col", "region")
            },
        ).batches[0]
        writer.write(batch)
    with Run.open(tmp_path / "demo.duckdb") as run:
        cells = [c["module"] for c in run.usage()["usage"] if c["step"] == 3]
        assert cells == [0, 1, 3, 4, 5]


def test_sealing_leaves_one_file_and_no_trace_of_the_work(made: RunArrays, tmp_path: Path):
    writer = RunWriter(tmp_path, made.info, made.modules)
    writer.write(made.batches[0])
    assert not any(name.endswith(".duckdb") for name in names(tmp_path))
    assert list_runs(tmp_path) == []
    assert writer.seal() == tmp_path / "demo.duckdb"
    assert names(tmp_path) == ["demo.duckdb"]
    with pytest.raises(UserError, match="sealed"):
        writer.write(made.batches[0])
    writer.abort()
    assert names(tmp_path) == ["demo.duckdb"]


def test_an_error_in_the_block_leaves_nothing(made: RunArrays, tmp_path: Path):
    with pytest.raises(RuntimeError), RunWriter(tmp_path, made.info, made.modules) as writer:  # noqa: PT012
        writer.write(made.batches[0])
        raise RuntimeError("the model fell over")
    assert names(tmp_path) == []


def test_a_run_without_samples_is_refused_and_leaves_nothing(made: RunArrays, tmp_path: Path):
    with pytest.raises(UserError, match="nothing was traced"), RunWriter(tmp_path, made.info, made.modules):
        pass
    assert names(tmp_path) == []


def test_an_existing_run_is_kept_unless_told_otherwise(tmp_path: Path):
    file = make_run(tmp_path, samples=2)
    before = file.read_bytes()
    with pytest.raises(UserError, match="already"):
        make_run(tmp_path, samples=3)
    assert file.read_bytes() == before
    with Run.open(file) as old:
        make_run(tmp_path, samples=3, overwrite=True)
        assert old.card()["num_samples"] == 2  # who has it open keeps the old run …
        assert len(old.samples()["samples"]) == 2
        with Run.open(file) as new:
            assert new.card()["num_samples"] == 3  # … and who opens it sees the new one


def test_a_folder_that_cannot_be_written_is_a_sentence(made: RunArrays, tmp_path: Path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WriterFailed, match="another data folder") as caught:
        RunWriter(tmp_path / "file" / "runs", made.info, made.modules)
    assert caught.value.field == "data_dir"


def test_a_second_writer_of_the_same_run_is_told_who_holds_it(made: RunArrays, tmp_path: Path):
    with RunWriter(tmp_path, made.info, made.modules) as writer:
        with pytest.raises(UserError, match=f"held by process {os.getpid()}"):
            RunWriter(tmp_path, made.info, made.modules)
        writer.write(made.batches[0])
    assert names(tmp_path) == ["demo.duckdb"]


def test_the_caller_may_reuse_its_arrays_at_once(made: RunArrays, tmp_path: Path):
    batch = made.batches[0]
    expected = batch.module_ids[:64].copy()
    with RunWriter(tmp_path, made.info, made.modules) as writer:
        writer.write(batch)
        for name in ("module_ids", "weights", "gate_entropy", "flops", "row"):
            first(made, name)[:] = 0
    with Run.open(tmp_path / "demo.duckdb") as run:
        assert [t["ribbon"] for t in run.sample(0)["tokens"]] == expected.tolist()


def test_errors_of_the_thread_come_out_at_the_next_call(
    made: RunArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    failed = threading.Event()

    def full(*_: object) -> None:
        failed.set()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PathDictionary, "add", full)
    writer = RunWriter(tmp_path, made.info, made.modules)
    writer.write(made.batches[0])
    assert failed.wait(10)
    with pytest.raises(WriterFailed, match="No space left"):  # noqa: PT012
        for _ in range(100):
            writer.write(made.batches[0])
    with pytest.raises(WriterFailed, match="No space left"):
        writer.seal()
    assert names(tmp_path) == []
    with pytest.raises(UserError, match="aborted"):
        writer.write(made.batches[0])


def test_a_failure_while_sealing_leaves_nothing(made: RunArrays, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise duckdb.IOException("No space left on device")

    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.build_summaries", full)
    with (
        pytest.raises(WriterFailed, match="could not be sealed"),
        RunWriter(tmp_path, made.info, made.modules) as writer,
    ):
        writer.write(made.batches[0])
    assert names(tmp_path) == []


KILLED = """
import sys, time
from pathlib import Path
from tokenpaths.engine.store.write.writer import RunWriter
import tokenpaths.engine.store.write.writer as writer_file
from tests.support.flushing import flush_every
from tests.support.runs import make
flush_every(100)
made = make("killed", samples=6)
writer = RunWriter(Path(sys.argv[1]), made.info, made.modules)
writer.write(made.batches[0])
while not writer.partial_file.exists() or writer._queue.qsize():
    time.sleep(0.01)
if sys.argv[2] == "sealing":
    def slow(*_):
        print("ready", flush=True)
        time.sleep(60)
    writer_file.rename_durably = slow
    writer.seal()
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
@pytest.mark.parametrize("moment", ["writing", "sealing"])
def test_a_killed_writer_leaves_nothing_that_looks_like_a_run(moment: str, tmp_path: Path):
    command = [sys.executable, "-c", KILLED, str(tmp_path), moment]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(UserError, match=f"held by process {process.pid}"):
            make_run(tmp_path, "killed", samples=1)
        assert remove_abandoned(tmp_path) == []
        process.send_signal(signal.SIGKILL)
    assert ".killed.partial" in names(tmp_path)
    assert list_runs(tmp_path) == []
    assert not list(tmp_path.glob("*.duckdb"))
    assert remove_abandoned(tmp_path) == ["killed"]
    assert names(tmp_path) == []
    make_run(tmp_path, "killed", samples=1)
    assert [card["status"] for card in list_runs(tmp_path)] == ["sealed"]


def test_the_lock_of_a_writer_that_died_before_its_first_byte_is_removed(tmp_path: Path):
    (tmp_path / ".early.lock").write_text("1")
    made = make("alive", samples=1)
    writer = RunWriter(tmp_path, made.info, made.modules)
    assert remove_abandoned(tmp_path) == []
    assert ".alive.lock" in names(tmp_path)
    assert ".early.lock" not in names(tmp_path)
    writer.abort()
    assert names(tmp_path) == []


def test_a_writer_waits_for_whoever_deletes_what_it_had_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of two workers that were killed, one deletes both unfinished runs while the other resumes its job."""
    (tmp_path / ".resumed.partial").write_bytes(b"what was written until then")
    deleting, go_on = threading.Event(), threading.Event()
    remove, main_thread = writer_file.remove_partial, threading.get_ident()

    def slowly(partial: Path) -> None:
        if threading.get_ident() != main_thread:
            deleting.set()
            assert go_on.wait(20)
        remove(partial)

    monkeypatch.setattr(writer_file, "remove_partial", slowly)
    clearing = threading.Thread(target=remove_abandoned, args=(tmp_path,))
    clearing.start()
    assert deleting.wait(20)
    later = threading.Timer(4 * lifecycle.PATIENCE_SECONDS, go_on.set)
    later.start()
    make_run(tmp_path, "resumed", samples=1)
    clearing.join()
    later.join()
    assert [card["status"] for card in list_runs(tmp_path)] == ["sealed"]
    assert names(tmp_path) == ["resumed.duckdb"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from tokenpaths.engine.base.errors import WriterFailed
from tests.support.runs import make
made = make("full", samples=6)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    made.write(Path(sys.argv[1]))
except WriterFailed as error:
    print(error)
"""


@pytest.mark.skipif(os.name == "nt", reason="resource limits")
def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert "the run could not be sealed" in done.stdout, done.stderr
    assert names(tmp_path) == []


def test_the_null_of_independent_steps_is_drawn_for_the_tokens_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("tokenpaths.engine.store.write.seal_nulls.INDEPENDENT_BYTES", 500)
    with Run.open(make_run(tmp_path)) as run:
        assert run.fit()["independent"]["num_tokens"] == 100
    monkeypatch.setattr("tokenpaths.engine.store.write.seal_nulls.MOST_AT_ONCE", 200)  # numpy's limit is 10^9
    with Run.open(make_run(tmp_path, "more")) as run:
        assert 60 < run.fit()["independent"]["num_tokens"] < 140


def test_batches_of_any_size_make_the_same_run(tmp_path: Path):
    answers = []
    for size in (1, 4, 12):
        made = make("demo", "vision", samples=12)
        # The same tokens, cut differently: one big batch split at samples.
        whole = make("demo", "vision", samples=12, batch_size=12).batches[0]
        pieces = []
        for start in range(0, 12, size):
            rows = slice(start * 64, (start + size) * 64)
            fields = ("module_ids", "weights", "gate_entropy", "flops", "row", "col", "region")
            pieces.append(
                replace(
                    whole,
                    samples=whole.samples[start : start + size],
                    **{name: getattr(whole, name)[rows] for name in fields},
                )
            )
        with Run.open(replace(made, batches=pieces).write(tmp_path / str(size))) as run:
            answers.append([run.flow(), run.paths(limit=1000), run.fit(), run.sample(7), run.info()["associations"]])
    assert answers[0] == answers[1] == answers[2]


def answers_of(run: Run) -> list[Any]:
    return [run.flow(), run.paths(limit=1000), run.usage(), run.sample(19), run.distribution("loss", "token")]


def rounded(value: Any) -> Any:
    """Floats to 9 digits: threads add them up in whatever order they finish."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    return [rounded(one) for one in value] if isinstance(value, list) else value


def test_a_run_larger_than_one_flush_has_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = make("demo", "text", samples=20, top_k=2)
    with Run.open(made.write(tmp_path / "small")) as run:
        small = rounded(answers_of(run))
    flush_every(50, monkeypatch)
    monkeypatch.setattr("tokenpaths.engine.store.write.seal.SAMPLE_TABLE_ROWS", 100)
    with Run.open(made.write(tmp_path / "large")) as run:
        assert rounded(answers_of(run)) == small
        (rows,) = run._connection.rows("SELECT count(*) FROM token_sample")
        assert 30 < rows[0] < 200  # a hash sample of about 100


@pytest.mark.parametrize(
    ("flush", "steps", "own_flops", "size"),
    [(10**6, 3, False, 16_384), (50, 3, False, 65_536), (50, 33, False, 262_144), (50, 3, True, 262_144)],
    ids=["small", "large", "packed", "FLOPs of tokens"],
)
def test_blocks_of_a_file(
    flush: int, steps: int, own_flops: bool, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    flush_every(flush, monkeypatch)
    made = make("demo", "text", samples=20, top_k=2, steps=steps)
    if own_flops:
        made = replace(made, batches=[replace(batch, flops=batch.flops + 1) for batch in made.batches])
    with Run.open(made.write(tmp_path)) as run:
        sql = "SELECT block_size FROM pragma_database_size() WHERE database_name = 'r'"
        assert run._connection.rows(sql) == [(size,)]


def test_one_token(tmp_path: Path):
    whole = make("tiny", "text", samples=1, labels=False, twin=False)
    fields = ("module_ids", "weights", "gate_entropy", "flops", "token_id", "char_start", "char_end", "loss")
    batch = replace(
        whole.batches[0], samples=[SampleRecord(1, text="x")], **{name: first(whole, name)[:1] for name in fields}
    )
    file = replace(whole, batches=[batch]).write(tmp_path)
    with Run.open(file) as run:
        info = run.info()
        assert (info["num_tokens"], info["num_paths"], info["loss"]) == (1, 1, None)
        assert info["associations"] == []
        assert info["measures"] == ["compute", "reuse", "gate_entropy"]
        assert run.fit()["observed"]["slope"] is None
        assert len(run.flow()["links"]) == 4
        assert run.examples(1)["examples"][0]["sample"] == 0
        assert run.usage()["steps"][0]["effective_top_k"] == 1
        assert run.distribution("compute", "token")["num"] == 1


def test_the_sketch_depends_on_the_tokens_alone_not_on_the_batches():
    sketches = []
    for size in (7, 100, 1000):
        sketch = HashSample(50, seed=3)
        for start in range(0, 1000, size):
            sketch.add(start, {"token": np.arange(start, min(start + size, 1000))})
        sketches.append(sketch.columns()["token"].tolist())
    assert sketches[0] == sketches[1] == sketches[2]
    assert len(set(sketches[0])) == 50
    assert 300 < np.mean(sketches[0]) < 700  # spread over the run
    assert HashSample(50, seed=3).seed != 4


def test_unknown_numbers_are_null_not_nan(tmp_path: Path):
    made = make("demo", "vision", samples=4)
    nan = np.full_like(first(made, "gate_entropy"), np.nan)
    unknown = np.full_like(first(made, "region"), -1)
    file = made.with_changes(gate_entropy=nan, region=unknown).write(tmp_path)
    with Run.open(file) as run:
        assert run.info()["measures"] == ["compute", "reuse", "loss"]
        assert run.usage()["steps"][0]["gate_entropy"] is None
        token = run.sample(0)["tokens"][0]
        assert (token["gate_entropy"], token["region"]) == (None, None)
        assert "region" not in {row["attribute"] for row in run.info()["associations"]}
