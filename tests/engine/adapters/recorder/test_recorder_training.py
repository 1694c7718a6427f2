"""The recorder inside a training: gradients to the last bit, compiled and checkpointed models, several processes."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from torch.nn import functional as F

from tests.engine.adapters.recorder.test_recorder import assert_same, expected, nothing_left, recorded
from tests.support.recorder_models import WIDTH, GateMoE, LinearMoE, language, tokens
from tokenpaths.engine.adapters.recorder import process_parts
from tokenpaths.engine.adapters.recorder.recorder import record
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingStopped
from tokenpaths.engine.adapters.recorder.user_model import is_compiled
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run


def step(model, batch, optimiser=None) -> float:
    loss = F.cross_entropy(model(batch)[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    if optimiser is not None:
        optimiser.step()
        optimiser.zero_grad()
    return float(loss.detach())


@pytest.mark.parametrize("moe", [LinearMoE, GateMoE])
@pytest.mark.parametrize("checkpointed", [None, False, True])
def test_gradients_are_the_same_to_the_last_bit(tmp_path, moe, checkpointed):
    batch = tokens(4, 9)
    plain, watched = (language(moe, layers=2, checkpointed=checkpointed) for _ in range(2))
    step(plain, batch)
    with record(watched, run="mine", runs_dir=tmp_path) as rec:
        step(watched, batch)
    grads = {name: p.grad for name, p in plain.named_parameters()}
    assert all(torch.equal(p.grad, grads[name]) for name, p in watched.named_parameters())
    assert any(grads["layers.0.moe.gate.weight"].flatten() != 0)
    # Computing a block again for its gradient is no second pass.
    assert_same(rec.run, plain, [batch], 2.5 if moe is GateMoE else 1.0)


def test_a_training_that_is_recorded_ends_where_it_would_have_ended(tmp_path):
    batches = [tokens(4, 6, seed=i) for i in range(6)]
    ends, seen = [], []
    for recording in (False, True):
        model = language(layers=2)
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
        if recording:
            with record(model, run="mine", every=2, runs_dir=tmp_path) as rec:
                losses = [step(model, batch, optimiser) for batch in batches]
        else:
            losses = []
            for i, batch in enumerate(batches):
                if i % 2 == 0:
                    seen.append(expected(model, [batch])[0])
                losses.append(step(model, batch, optimiser))
        ends.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))
    assert np.array_equal(recorded(rec.run)[0], np.concatenate(seen))


class Marked(torch.autograd.Function):
    """The identity; a weak reference to each of its nodes tells whether the graph still lives."""

    nodes: list[weakref.ref] = []

    @staticmethod
    def forward(ctx, x):
        Marked.nodes.append(weakref.ref(ctx))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


class MarkedLinear(torch.nn.Linear):
    def forward(self, x):
        return Marked.apply(super().forward(x))


def test_no_graph_is_kept_alive(tmp_path):
    model = language(layers=2)
    for layer in model.layers:
        layer.moe.gate = MarkedLinear(WIDTH, 4)
    with record(model, run="mine", runs_dir=tmp_path):
        for _ in range(2):  # the first pass, which decides how to read, and one after it
            Marked.nodes.clear()
            out = model(tokens())
            assert [node() is not None for node in Marked.nodes] == [True, True]
            del out
            gc.collect()
            assert [node() for node in Marked.nodes] == [None, None]


def test_a_whole_model_that_is_checkpointed_is_recorded_once(tmp_path):
    from torch.utils.checkpoint import checkpoint

    model = language(layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        checkpoint(model, tokens(), use_reentrant=False).sum().backward()
    assert_same(rec.run, model, [tokens()])


@pytest.fixture
def fresh_dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize(("backend", "moe"), [("eager", GateMoE), ("aot_eager", LinearMoE)])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_recorded_and_trained_the_same(tmp_path, fresh_dynamo, backend, moe):
    batches = [tokens(3, 7), tokens(3, 7, seed=2)]
    plain, own = language(moe, layers=2), language(moe, layers=2)
    compiled = torch.compile(own, backend=backend)
    compiled(batches[0])  # compiled before the recorder came
    with record(compiled, run="mine", runs_dir=tmp_path) as rec:
        for batch in batches:
            step(compiled, batch)
    for batch in batches:
        step(plain, batch)
    assert_same(rec.run, plain, batches, 2.5 if moe is GateMoE else 1.0)
    assert [r.name for r in rec.routers] == ["layers.0.moe.gate", "layers.1.moe.gate"]
    grads = {name: p.grad for name, p in plain.named_parameters()}
    # Compiled code may sum in another order, recorded or not.
    assert all(torch.allclose(p.grad, grads[name], atol=1e-6) for name, p in own.named_parameters())
    compiled(batches[0])
    with record(compiled, run="again", runs_dir=tmp_path) as rec:
        compiled(batches[0])
    assert rec.run.row["num_tokens"] == 21


@pytest.mark.filterwarnings("ignore")
def test_code_compiled_earlier_that_knows_no_hooks_is_not_recorded_silently(tmp_path, fresh_dynamo):
    model = language(layers=1)
    compiled = torch.compile(model, backend="eager")
    compiled(tokens())
    with pytest.warns(RecordingStopped, match="If it was compiled before the recorder came"):  # noqa: SIM117
        with record(model, run="mine", runs_dir=tmp_path):  # given the model inside, its compiler unseen
            compiled(tokens())
    assert nothing_left(tmp_path, model)


def test_layers_compiled_one_by_one(tmp_path, fresh_dynamo):
    model = language(layers=2)
    for layer in model.layers:
        layer.moe.compile(backend="eager")
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert_same(rec.run, model, [tokens()])


@pytest.mark.parametrize("part", ["the model", "its layers", "one layer"])
def test_a_forward_that_was_compiled_and_run_earlier_is_recorded(tmp_path, fresh_dynamo, part):
    model = language(layers=2)
    own = language(layers=2)
    parts = {"the model": [model], "its layers": list(model.layers), "one layer": [model.layers[0].moe]}[part]
    for module in parts:
        module.forward = torch.compile(module.forward, backend="eager")
    model(tokens())
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert_same(rec.run, own, [tokens()])


def test_a_forward_that_is_kept_from_the_compiler_is_not_compiled():
    model = language(layers=1)
    model.layers[0].forward = torch.compiler.disable(model.layers[0].forward)
    assert not is_compiled(model)
    model.layers[0].moe.forward = torch.compile(model.layers[0].moe.forward, backend="eager")
    assert is_compiled(model)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def record_once(rank: int, ddp, folder: Path, case: str) -> str:
    """One training of one process; what it saw, or the sentence that it was told."""
    options = {"top_k": 1} if (case, rank) == ("plans", 1) else {}
    seed = 0 if case.startswith("same") else 10 * rank
    try:
        with record(ddp, run=f"mine-{rank}" if case == "names" else "mine", runs_dir=folder, **options) as rec:
            for i in range(2 - rank if case == "fewer" else 2):
                bad = (rank, i) == (1, 1)
                texts = ["\ud800", "a lone surrogate"] if case == "malformed" and bad else None
                rec.batch(labels=[f"rank {rank}"] * (9 if case == "stops" and bad else 2), texts=texts)
                with contextlib.nullcontext() if case == "even" else ddp.no_sync():
                    step(ddp, tokens(2, 5, seed=seed + i))
            if (case, rank) == ("late", 0):
                time.sleep(3 * process_parts.WAIT_S)
            if case == f"raise {rank}":
                raise RuntimeError("the disk of this process is full")
        return f"{rec.file.name} {rec.num_tokens}" if rec.file else f"no run: {rec.problem}"
    except (UserError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


CASES = (
    "even",
    "raise 0",
    "raise 1",
    "names",
    "fewer",
    "stops",
    "malformed",
    "late",
    "same",
    "same, other",
    "plans",
    "stages",
)


def process(rank: int, port: int, folder: Path) -> None:
    """One of two processes of a distributed training, in every case one after the other."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    for case in CASES:
        process_parts.WAIT_S, process_parts.BEAT_S = (2.0, 0.1) if case == "late" else (30.0, 5.0)
        model = language(layers=2)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        if case == "stages":  # of a pipeline: the lists of layers are cut, so their names are equal
            ddp.module.head = torch.nn.Identity() if rank == 0 else ddp.module.head
        if (case, rank) == ("same, other", 1):
            ddp.module.layers[0].moe.gate.weight.data.neg_()
        said = record_once(rank, ddp, folder / case, case)
        torch.save((said, [p.grad for p in model.parameters()]), folder / f"{case} {rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Folder of what two processes left; what each of them said in each case."""
    folder = tmp_path_factory.mktemp("two")
    mp.spawn(process, (free_port(), folder), nprocs=2)
    return folder, {case: [torch.load(folder / f"{case} {rank}.pt")[0] for rank in range(2)] for case in CASES}


def test_two_processes_make_one_run(two):
    folder, said = two
    assert said["even"] == ["mine.duckdb 20", "mine.duckdb 20"]
    assert [p.name for p in (folder / "even").iterdir()] == ["mine.duckdb"]
    batches = [tokens(2, 5, seed=seed) for seed in (0, 1, 10, 11)]
    model = language(layers=2)
    with Run.open(folder / "even" / "mine.duckdb") as run:
        assert_same(run, model, batches)
        samples = run.samples()["samples"]
        assert [s["label"] for s in samples] == ["rank 0"] * 4 + ["rank 1"] * 4
        assert samples[7]["source"] == "rank 1, forward pass 1, sample 1"
    # Gradients are the mean over both processes, as without a recorder.
    for batch in batches:
        step(model, batch)
    for rank in range(2):
        for grad, own in zip(torch.load(folder / f"even {rank}.pt")[1], model.parameters(), strict=True):
            assert torch.allclose(grad, own.grad / 2, atol=1e-5)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_process_that_fails_leaves_no_run_and_tells_the_other(two, failing):
    folder, said = two
    sentences = said[f"raise {failing}"]
    assert sentences[failing] == "RuntimeError: the disk of this process is full"
    told = f"no run: process {failing} gave up: RuntimeError: the disk of this process is full; nothing of this run"
    assert sentences[1 - failing].startswith(told)
    assert list((folder / f"raise {failing}").iterdir()) == []


def test_processes_with_different_names_are_refused_alike(two):
    _, said = two
    assert said["names"][0] == said["names"][1]
    assert said["names"][0].startswith("UserError: the 2 processes record different runs (mine-0, mine-1)")


def test_processes_may_record_different_numbers_of_passes(two):
    folder, said = two
    assert said["fewer"] == ["mine.duckdb 20", "mine.duckdb 10"]
    with Run.open(folder / "fewer" / "mine.duckdb") as run:
        assert run.row["num_tokens"] == 30


def test_a_process_whose_recording_stops_trains_on_and_the_run_says_so(two):
    folder, said = two
    assert said["stops"] == ["mine.duckdb 20", "mine.duckdb 10"]
    with Run.open(folder / "stops" / "mine.duckdb") as run:
        assert run.row["num_tokens"] == 30
        (note,) = run.info()["findings"]["notes"]
    assert note == "process 1: the recording stopped at forward pass 1: 9 labels for 2 samples: give one for each"


def test_a_malformed_pass_of_another_process_stops_its_recording_and_no_more(two):
    folder, said = two
    assert said["malformed"] == ["mine.duckdb 20", "mine.duckdb 10"]
    with Run.open(folder / "malformed" / "mine.duckdb") as run:
        assert run.row["num_tokens"] == 30
        (note,) = run.info()["findings"]["notes"]
    assert note.startswith("process 1: the recording stopped at forward pass 1: text of sample 0 of the batch")


def test_a_process_that_trains_longer_than_others_wait_is_waited_for(two):
    folder, said = two
    assert said["late"] == ["mine.duckdb 20", "mine.duckdb 20"]
    assert [p.name for p in (folder / "late").iterdir()] == ["mine.duckdb"]


def test_processes_that_share_one_model_record_their_tokens_once(two):
    folder, said = two
    assert said["same"] == ["mine.duckdb 20", "mine.duckdb 20"]
    with Run.open(folder / "same" / "mine.duckdb") as run:
        assert_same(run, language(layers=2), [tokens(2, 5, seed=seed) for seed in (0, 1)])
        (note,) = run.info()["findings"]["notes"]
    assert note.startswith("process 1 recorded the same tokens with the same choices as process 0")


def test_the_same_tokens_with_other_choices_are_noted(two):
    folder, _ = two
    with Run.open(folder / "same, other" / "mine.duckdb") as run:
        assert run.row["num_tokens"] == 40
        (note,) = run.info()["findings"]["notes"]
    assert note.startswith("process 1 recorded the same tokens as process 0, with other choices: both are in the run")


def test_a_process_with_other_routers_does_not_cost_the_run_of_the_others(two):
    folder, said = two
    assert said["plans"][0] == "mine.duckdb 20"
    with Run.open(folder / "plans" / "mine.duckdb") as run:
        assert (run.row["num_tokens"], run.row["top_k"]) == (20, 2)
        notes = run.info()["findings"]["notes"]
    # Said at its first pass where process 0 had one before, otherwise when the parts are merged.
    assert any("records other routers than process 0" in n or "recorded other routers" in n for n in notes)
    assert all("with merge=False and a name of its own" in note for note in notes if "other routers" in note)


def test_stages_of_a_pipeline_are_refused_before_anything_runs(two):
    folder, said = two
    assert said["stages"][0] == said["stages"][1]
    assert said["stages"][0].startswith("UserError: the model of process 0 has other modules than that of process 1")
    assert "merge=False" in said["stages"][0]
    assert not (folder / "stages").exists()


def test_a_damaged_part_is_refused(tmp_path):
    from tokenpaths.engine.base.files import HolderLock

    def sevens(ids):
        return np.full(len(ids), 7.0, dtype=np.float32)

    meeting = process_parts.Meeting(tmp_path, 1, 2, HolderLock(tmp_path / "lock"))
    writer = process_parts.PartWriter(meeting)
    made = _batch()
    writer.write(made)
    writer.seal({"layers": [], "top_k": 2}, [])
    manifest = process_parts.Meeting(tmp_path, 0, 2, HolderLock(tmp_path / "lock")).others()[0]
    (back,) = process_parts.read_part(tmp_path, 1, manifest["sha256"], (3, 2), sevens)
    for name in ("module_ids", "weights", "gate_entropy", "token_id"):
        assert np.array_equal(getattr(back, name), getattr(made, name), equal_nan=name == "gate_entropy")
    assert back.samples == made.samples
    data = bytearray(writer.file.read_bytes())
    data[60] ^= 1
    writer.file.write_bytes(data)
    with pytest.raises(UserError, match="the part of process 1 is damaged"):
        next(process_parts.read_part(tmp_path, 1, manifest["sha256"], (3, 2), sevens))


def _batch():
    from tokenpaths.engine.base.records import SampleRecord, TraceBatch

    rng = np.random.default_rng(0)
    return TraceBatch(
        samples=[SampleRecord(3, label="a", source="x"), SampleRecord(2, text="ä")],
        module_ids=rng.random((5, 3, 300)).argsort(-1)[:, :, :2],
        weights=rng.random((5, 3, 2)).astype(np.float32),
        gate_entropy=np.where(rng.random((5, 3)) < 0.5, np.nan, 0.5).astype(np.float32),
        flops=np.full(5, 7.0, dtype=np.float32),
        token_id=rng.integers(0, 10**6, 5),
    )
