"""Captured forward passes: when they replay, when the call stays plain, and that callers keep what they hold."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch

from benchmarks import device as benchmark
from benchmarks.imposed import ImposedDNA
from tokenpaths.engine.models.bank.device_step import HOPPER
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.models.graphs import GraphRefused, Graphs, has_graphs
from tokenpaths.engine.tracing import trace_batches
from tokenpaths.engine.tracing.trace_batches import run_model

CONFIG = DNAConfig(
    modality="text",
    width=32,
    heads=2,
    mlp_width=64,
    backbone=1,
    steps=2,
    transformers=3,
    identities=1,
    top_k=2,
    vocab_size=50,
    context=12,
)
CPU = torch.device("cpu")


class Recorder:
    """A capture without a GPU: a replay calls the function again and overwrites the outputs of the first time."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def __call__(self, run, device):
        assert device == CPU
        self.captures += 1
        with torch.inference_mode(False), torch.no_grad():
            outputs = run()

        def replay() -> None:
            self.replays += 1
            with torch.inference_mode(False), torch.no_grad():
                for kept, fresh in zip(tensors(outputs), tensors(run()), strict=True):
                    kept.copy_(fresh)

        return replay, outputs


def tensors(value) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value if isinstance(value, (list, tuple)) else vars(value).values()
    return [t for part in parts if part is not None for t in tensors(part)]


def model_of(seed: int = 0, execution: str = "device") -> DNA:
    torch.manual_seed(seed)
    return DNA(CONFIG, execution).eval().requires_grad_(False)


def ids(batch: int, tokens: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randint(50, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def graphs_of(model: DNA, method: str = "forward", **options) -> tuple[Graphs, Recorder]:
    recorder = Recorder()
    return Graphs(model, method, capture=recorder, fits=lambda device: True, **options), recorder


@torch.no_grad()
def test_replays_equal_the_plain_pass_and_leave_earlier_answers_alone():
    model = model_of()
    graphs, recorder = graphs_of(model)
    inputs = [ids(3, seed=s) for s in range(4)]
    expected = [tensors(model(x)) for x in inputs]
    before = inputs[1].clone()
    made = [graphs(x) for x in inputs]
    assert (recorder.captures, recorder.replays) == (1, 3)  # the first call of a shape is plain
    for one, plain in zip(made, expected, strict=True):  # compared at the end: later replays overwrote nothing
        for a, b in zip(tensors(one), plain, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert not torch.equal(made[1].logits, made[2].logits)
    assert torch.equal(inputs[1], before)  # nor what the shape was captured with


@torch.no_grad()
def test_the_shape_that_was_met_longest_ago_is_dropped():
    model = model_of()
    graphs, recorder = graphs_of(model, most=2)
    for batch in (1, 1, 2, 2, 1, 3, 3):  # 1 was used after 2: 3 takes the place of 2
        graphs(ids(batch))
    assert (recorder.captures, len(graphs.met)) == (3, 2)
    graphs(ids(1))
    assert recorder.captures == 3
    for _ in range(2):
        graphs(ids(2))
    assert (recorder.captures, len(graphs.met)) == (4, 2)


def test_gradients_training_and_other_devices_are_plain():
    model = model_of().requires_grad_()
    graphs, recorder = graphs_of(model)
    x = ids(2)
    for _ in range(3):
        assert graphs(x).logits.requires_grad
    with torch.no_grad():
        model.train()
        for _ in range(3):
            graphs(x)
        model.eval()
        elsewhere = Graphs(model, capture=recorder)  # the rule itself: a CPU has no graphs
        for _ in range(3):
            torch.testing.assert_close(elsewhere(x).logits, model(x).logits)
    assert recorder.captures == 0
    assert not graphs.met


def test_only_gpus_whose_grouped_products_do_not_wait(monkeypatch):
    for capability, fits in (((8, 6), False), (HOPPER, True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, capability=capability: capability)
        assert has_graphs(torch.device("cuda")) is fits
    assert not has_graphs(CPU)


@torch.no_grad()
def test_weights_that_moved_are_captured_anew():
    model, other = model_of(), model_of(1)
    graphs, recorder = graphs_of(model)
    x = ids(2)
    for _ in range(2):
        graphs(x)
    model.head.weight.mul_(2)  # in place: a replay reads it
    torch.testing.assert_close(graphs(x).logits, model(x).logits)
    assert (recorder.captures, recorder.replays) == (1, 2)
    model.head.weight = other.head.weight
    torch.testing.assert_close(graphs(x).logits, model(x).logits)
    assert (recorder.captures, recorder.replays) == (1, 2)  # plain
    graphs(x)
    assert (recorder.captures, recorder.replays) == (2, 3)


@torch.no_grad()
def test_a_failed_capture_is_warned_of_once_and_never_tried_again():
    model, tried = model_of(), []

    def failing(run, device):
        tried.append(device)
        raise RuntimeError("the forward pass waits for the device")

    graphs = Graphs(model, capture=failing, fits=lambda device: True)
    x = ids(2)
    graphs(x)
    with pytest.warns(GraphRefused, match=r"\(2, 12\).*waits for the device"):
        made = graphs(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            made = graphs(x)
    torch.testing.assert_close(made.logits, model(x).logits)
    assert len(tried) == 1


@torch.no_grad()
def test_precision_and_padding_are_part_of_the_shape():
    model = model_of()
    graphs, recorder = graphs_of(model)
    x, valid = ids(2), torch.ones(2, 12, dtype=torch.bool)
    for _ in range(2):
        graphs(x)
        graphs(x, valid)
        with torch.autocast("cpu", torch.bfloat16):
            half = graphs(x)
    assert recorder.captures == 3
    assert half.logits.dtype == torch.bfloat16


def test_a_trace_replays_where_the_switch_says_so(monkeypatch):
    recorder = Recorder()
    monkeypatch.setattr(
        trace_batches, "Graphs", lambda model, method: Graphs(model, method, capture=recorder, fits=lambda device: True)
    )
    model, plain = model_of(execution="graph"), model_of(execution="naive")
    valid = torch.ones(2, 12, dtype=torch.bool)
    for seed in range(3):
        a, b = (run_model(m, ids(2, seed=seed), CPU, valid) for m in (model, plain))
        assert torch.equal(a.module_ids, b.module_ids)
        torch.testing.assert_close(a.logits, b.logits, rtol=1e-4, atol=1e-5)
    assert (recorder.captures, recorder.replays) == (1, 2)
    for _ in range(3):  # edits are decided on the host
        run_model(model, ids(2), CPU, valid, model.read_controls({"edits": [{"edit": "ban", "modules": [0]}]}))
    assert recorder.replays == 2


def test_graphs_do_not_keep_their_model():
    model = model_of(execution="graph")
    run_model(model, ids(1), CPU)
    assert model in trace_batches.GRAPHS
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_the_benchmark_shows_replays_beside_the_step():
    ratio = {"median": 1.2, "q25": 1.1, "q75": 1.3, "repeats": 3}
    size = {"forward": ratio, "training": ratio, "forward_graph": ratio | {"median": 1.05}}
    slower = size | {"forward_graph": ratio | {"median": 1.07}}
    forward, training = benchmark.rows({"results": {"sizes": {"a": size, "b": slower}}})
    assert (forward.ours, forward.peers) == (1.2, {"ours, as a CUDA graph": 1.07})
    assert not training.peers
    del slower["forward_graph"]  # refused at one size: the other's figure alone would flatter
    assert not benchmark.rows({"results": {"sizes": {"a": size, "b": slower}}})[0].peers


def test_the_benchmark_hands_new_routing_to_each_replay(monkeypatch):
    torch.manual_seed(0)
    routed = ImposedDNA(CONFIG, execution="device").eval()
    routed.how = "skewed"
    routed.draw(["skewed"], 2, 12)
    draws, seen = routed.drawn["skewed"], []

    class Captured:
        met = {"a shape": object()}

        def __init__(self, model):
            self.model, self.read = model, None

        def __call__(self, inputs):
            self.read = self.read or self.model.drawn["skewed"][0]  # as the capture found it
            seen.append([x.clone() for x in self.read])

    monkeypatch.setattr(benchmark, "Graphs", Captured)
    replayed = benchmark.captured(routed, ids(2))
    assert routed.drawn["skewed"] is draws
    for _ in range(3):
        replayed()
    assert len(seen) == 5
    for read, draw in zip(seen, draws, strict=False):
        assert all(torch.equal(a, b) for a, b in zip(read, draw, strict=True))
    monkeypatch.setattr(Captured, "met", {"a shape": None})
    assert benchmark.captured(routed, ids(2)) is None


@pytest.mark.skipif(not (torch.cuda.is_available() and has_graphs(torch.device("cuda"))), reason="no such GPU")
def test_equal_on_a_gpu():
    model = model_of().to("cuda", torch.bfloat16)
    graphs = Graphs(model)
    with torch.inference_mode():
        expected = [model(ids(4, seed=s).cuda()).logits for s in range(4)]
        made = [graphs(ids(4, seed=s).cuda()).logits for s in range(4)]
    assert [one is not None for one in graphs.met.values()] == [True]
    for a, b in zip(made, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2)
