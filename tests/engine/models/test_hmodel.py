"""H-Model: its listing as a naive twin, a case by hand, causality, live controls, refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tokenpaths.engine.base.records import UNUSED_KIND
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.edits.sweep import module_rows, usage_of
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.models.hmodel.hmodel import HModel, HModelConfig
from tokenpaths.engine.models.hmodel.hmodel_layers import gather, pool, sharpen, strongest_chain
from tokenpaths.engine.models.hmodel.plain_transformer import chain_connections, plain_transformer
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model, to_host
from tokenpaths.engine.tracing.trace_run import trace_samples

TEXT = dict(modality="text", width=16, heads=2, mlp_width=24, connection_width=8, vocab_size=40, context=12)
IMAGE = dict(
    modality="vision",
    task="classify",
    width=16,
    heads=2,
    mlp_width=24,
    connection_width=8,
    num_classes=3,
    image_size=16,
    patch_size=4,
)
BOTH = dict(inputs=("text", "image"), outputs=("predict", "classify"), num_classes=3, image_size=16, patch_size=4)


def make(seed: int = 0, pretrained=None, **values) -> HModel:
    """A small model whose heads are scaled up, so that connections differ between inputs and targets."""
    torch.manual_seed(seed)
    options = TEXT | dict(hidden=("transformer", "convolution", "transformer"), iterations=3) | values
    model = HModel(HModelConfig(**options), pretrained)
    for name, parameter in model.named_parameters():
        if name.startswith("connections") and parameter.ndim == 2:
            parameter.data.mul_(40)
        elif name.startswith(("input_layers", "iteration_embedding", "output_layers")) and parameter.ndim == 2:
            parameter.data.mul_(20)
    return model.eval()


def tokens(batch: int = 3, length: int = 12, seed: int = 1) -> torch.Tensor:
    return torch.randint(40, (batch, length), generator=torch.Generator().manual_seed(seed))


def naive(model: HModel, token_ids: torch.Tensor, top_k: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The paper's listing for a text: one sample, one source, one target, one position at a time."""
    samples = [naive_sample(model, ids, top_k) for ids in token_ids]
    return torch.stack([logits for logits, _ in samples]), torch.stack([edges for _, edges in samples])


def naive_sample(model: HModel, ids: torch.Tensor, top_k: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    config, hidden = model.config, model.config.num_modules
    layout = model._start(ids[None], None)[1]
    edges = torch.zeros(config.iterations + 1, hidden + 1, config.num_targets, dtype=torch.double)
    h = model.input_layers["text"](ids[None])[0]
    c = naive_connections(model, hidden, 0, h, [True] * len(ids), top_k)
    edges[0, hidden] = torch.stack([torch.stack(row) for row in c]).mean(dim=0)
    state, total = naive_sum([(h, c)], config.num_targets)
    outs = [row[hidden] for row in state]
    for j in range(config.iterations):
        sent = []
        for i in range(hidden):
            got = [float(row[i].detach()) > 0 for row in total]
            if any(got):
                h = model.hidden[i](torch.stack([row[i] for row in state])[None], layout)[0]
                c = naive_connections(model, i, j + 1, h, got, top_k)
                edges[j + 1, i] = torch.stack([torch.stack(row) for row in c]).mean(dim=0)
                sent.append((h + model.iteration_embedding.weight[j], c))
        if not sent:
            break
        state, total = naive_sum(sent, config.num_targets)
        outs = [out + row[hidden] for out, row in zip(outs, state, strict=True)]
    read = model.output_layers["predict"]
    return torch.stack([read.head(read.norm(out / config.iterations)) for out in outs]), edges


def naive_connections(model: HModel, source: int, iteration: int, h: torch.Tensor, got: list[bool], top_k: int | None):
    """c[position][target]; after the last iteration hidden layers receive nothing any more."""
    config = model.config
    alpha = config.alpha * config.alpha_rate**iteration
    closed = config.num_modules if iteration == config.iterations else 0
    rows = []
    for position in range(len(h)):
        seen = [u for u in range(len(h)) if got[u] and (config.pooling == "sequence" or u <= position)]
        if config.pooling == "last":
            seen = seen[-1:]
        mean = sum((h[u] for u in seen), torch.zeros_like(h[0])) / max(1, len(seen))
        scores = model.connections[source](mean.view(1, 1, -1)).flatten()
        strongest = sorted(range(closed, len(scores)), key=lambda z: -float(scores[z].detach()))[:top_k]
        rows.append(
            [
                torch.sigmoid(score / alpha)
                if got[position] and z in strongest
                else torch.zeros((), dtype=torch.double)
                for z, score in enumerate(scores)
            ]
        )
    return rows


def naive_sum(sent: list, targets: int):
    """States and sums of weights, [position][target]."""
    state, total = [], []
    for position in range(len(sent[0][0])):
        total.append([sum(c[position][z] for _, c in sent) for z in range(targets)])
        state.append(
            [sum(c[position][z] * h[position] for h, c in sent) / max(1.0, total[position][z]) for z in range(targets)]
        )
    return state, total


@pytest.mark.parametrize("pooling", ["prefix", "sequence", "last"])
@pytest.mark.parametrize("top_k", [None, 2, 1])
def test_the_listing_gives_the_same_numbers_forward_and_backward(pooling, top_k):
    model = make(pooling=pooling, alpha=0.7, alpha_rate=0.8).double()
    ids = tokens(2, 7)
    output = model(ids, top_k=top_k)
    expected, edges = naive(model, ids, top_k)
    assert (output.logits - expected).abs().max() < 1e-5
    assert (output.edges - edges).abs().max() < 1e-5
    wanted = torch.autograd.grad(
        expected.square().sum() + edges.square().sum(), list(model.parameters()), allow_unused=True
    )
    given = torch.autograd.grad(
        output.logits.square().sum() + output.edges.square().sum(), list(model.parameters()), allow_unused=True
    )
    for (name, _), a, b in zip(model.named_parameters(), wanted, given, strict=True):
        zero = torch.zeros(())
        a, b = zero if a is None else a, zero if b is None else b
        assert (a - b).abs().max() < 1e-5, name
    assert max(float(g.abs().max()) for g in given if g is not None) > 1e-2


class Times(nn.Module):
    """A layer that multiplies its state; its states can be followed by hand."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x, layout):
        return self.factor * x


def test_two_layers_with_connections_given_by_hand():
    model = make(hidden=("transformer", "transformer"), iterations=2)
    model.hidden[0], model.hidden[1] = Times(2.0), Times(3.0)
    nn.init.constant_(model.iteration_embedding.weight[0], 10.0)
    nn.init.constant_(model.iteration_embedding.weight[1], 20.0)
    model.input_layers["text"].embed.weight.data.fill_(1.0)
    model.input_layers["text"].positions.data.zero_()
    c = torch.zeros(3, 3, 3)
    c[0, 2] = torch.tensor([0.5, 1.0, 0.25])  # input → layer 0, layer 1, output
    c[1, 0] = torch.tensor([0.5, 1.0, 1.0])
    c[1, 1] = torch.tensor([0.0, 1.0, 0.5])
    c[2, 0, 2], c[2, 1, 2] = 0.25, 0.5
    # input 1: layer 0 gets .5, layer 1 gets 1, output .25
    # iteration 1: h0 = 2·.5 + 10 = 11, h1 = 3·1 + 10 = 13; layer 0 gets .5·11 = 5.5 (sum .5: no division),
    # layer 1 gets (11 + 13) / 2 = 12, output (11 + .5·13) / 1.5 = 35/3
    # iteration 2: h0 = 2·5.5 + 20 = 31, h1 = 3·12 + 20 = 56; output .25·31 + .5·56 = 35.75 (sum .75)
    states = model._route(torch.zeros(1, 1, dtype=torch.long), None, model._settings({"connections": c})).states
    expected = (0.25 + 35 / 3 + 35.75) / 2
    assert torch.allclose(states, torch.full_like(states, expected))


def test_contributors_divide_only_when_their_weights_exceed_one():
    h = torch.tensor([[[6.0]]]), torch.tensor([[[2.0]]])
    state, incoming = gather([(h[0], torch.tensor([[[0.25, 1.0]]])), (h[1], torch.tensor([[[0.5, 1.0]]]))])
    assert state.flatten().tolist() == [0.25 * 6 + 0.5 * 2, (6 + 2) / 2]
    assert incoming.flatten().tolist() == [0.75, 2]


def test_the_ordinary_forward_pass_is_a_chain_of_connections():
    model = make(hidden=("transformer",) * 3, iterations=3)
    model.iteration_embedding.weight.data.zero_()
    plain = DNA(plain_transformer(model.config)).eval()
    plain.embed.weight, plain.positions = model.input_layers["text"].embed.weight, model.input_layers["text"].positions
    for block, layer in zip(plain.backbone, model.hidden, strict=True):
        block.load_state_dict(layer.layer.state_dict())
    plain.norm, plain.head = model.output_layers["predict"].norm, model.output_layers["predict"].head
    plain.norm.eps = 1e-12  # so that dividing by T does not survive the norm in front of the read-out
    ids = tokens()
    output = model(ids, connections=chain_connections(model.config))
    assert torch.allclose(output.logits, plain(ids).logits, atol=1e-4)
    assert (model(ids).logits - plain(ids).logits).abs().max() > 1e-2
    size = lambda m: sum(p.numel() for p in m.parameters())  # noqa: E731
    extra = size(model.connections) + size(model.iteration_embedding)
    assert size(plain) == size(model) - extra


def test_a_chain_runs_each_layer_once():
    model = make(hidden=("transformer",) * 3, iterations=3)
    calls = []
    for index, layer in enumerate(model.hidden):
        layer.register_forward_hook(lambda *_, index=index: calls.append(index))
    traced = model.trace(tokens(), connections=chain_connections(model.config))
    assert calls == [0, 1, 2]
    dense = model.trace(tokens())
    assert torch.allclose(dense.flops, traced.flops * 3)
    assert traced.module_ids[0, 0, :, 0].tolist() == [0, 1, 2]
    assert traced.weights.eq(1).all()


@pytest.mark.parametrize("hidden", [("transformer",) * 2, ("convolution", "transformer"), ("convolution",) * 2])
@pytest.mark.parametrize("top_k", [None, 1])
def test_with_prefix_pooling_no_position_sees_the_future(hidden, top_k):
    model = make(hidden=hidden, pooling="prefix")
    ids = tokens(1)
    changed = ids.clone()
    changed[0, 8:] = (changed[0, 8:] + 7) % 40
    before, after = model(ids, top_k=top_k).logits, model(changed, top_k=top_k).logits
    assert torch.equal(before[:, :8], after[:, :8])
    assert not torch.allclose(before[:, 8:], after[:, 8:])


def test_with_sequence_pooling_every_position_sees_the_future():
    model = make(hidden=("transformer",) * 2, pooling="sequence")
    ids = tokens(1)
    changed = ids.clone()
    changed[0, 11] = (changed[0, 11] + 7) % 40
    change = (model(ids).logits - model(changed).logits)[0, :11].abs().amax(dim=1)
    assert (change > 1e-4).all()


def test_next_token_models_are_causal_unless_they_are_told_otherwise():
    assert make().config.pooling == "prefix"
    assert HModelConfig(**IMAGE, hidden=("transformer",), iterations=1).pooling == "sequence"


@pytest.mark.parametrize("pooling", ["prefix", "sequence"])
def test_padding_behind_a_text_changes_nothing(pooling):
    model = make(pooling=pooling)
    ids = tokens(2)
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[0, 9:] = False
    ids[0, 9:] = 0
    padded = model.trace(ids, valid)
    alone = model.trace(ids[:1, :9])
    assert torch.allclose(padded.logits[0, :9], alone.logits[0], atol=1e-5)
    assert torch.allclose(padded.edges[0], alone.edges[0], atol=1e-6)
    assert torch.equal(padded.module_ids[0, :9], alone.module_ids[0])


def test_padding_changes_no_class_either():
    model = make(task="classify", num_classes=3)
    ids = tokens(2)
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[0, 9:] = False
    assert torch.allclose(model(ids, valid=valid).logits[0], model(ids[:1, :9]).logits[0], atol=1e-4)
    assert torch.allclose(model.trace(ids, valid).flops[0, 0], model.trace(ids[:1, :9]).flops[0, 0])


def test_connections_sharpen_with_alpha_and_alpha_rate():
    model = make()
    ids = tokens()

    def doubt(alpha):
        used = model(ids, alpha=alpha).edges.detach()
        used = used[used > 0]
        return float((used - used.round()).abs().mean())

    assert doubt(0.01) < doubt(1.0) < doubt(100.0)
    # The input step has α, iteration t has α·rate^t.
    softened = model(ids, alpha=1.0, alpha_rate=100.0).edges
    plain = model(ids).edges
    assert torch.equal(softened[:, 0], plain[:, 0])
    assert (softened[:, 2, :3] - 0.5).abs().max() < (plain[:, 2, :3] - 0.5).abs().max() / 5
    assert torch.equal(sharpen(torch.tensor([[[1.0, -2.0]]]), 0.5, None), torch.sigmoid(torch.tensor([[[2.0, -4.0]]])))


def test_top_k_keeps_the_strongest_connections_of_each_source():
    kept = sharpen(torch.tensor([[[300.0, 100.0, 200.0, -1.0]]]), 1.0, 2)
    # Three of these c are exactly 1; the choice is by logits.
    assert kept.flatten().tolist() == [1, 0, 1, 0]
    model = make(pooling="sequence")
    edges = model(tokens(), top_k=1).edges
    sending = (edges > 0).sum(dim=3)
    assert set(sending.flatten().tolist()) == {0, 1}
    assert (sending[:, -1].sum(dim=1) > 0).all()  # the last iteration always reaches the output
    whole = model(tokens(), top_k=model.config.num_targets)
    assert torch.equal(whole.logits, model(tokens()).logits)


def test_a_top_k_of_the_configuration_works_at_inference_only():
    model = make(route_top_k=1, pooling="sequence")
    assert int((model(tokens()).edges[:, 0] > 0).sum(dim=-1).max()) == 1
    assert int((model.train()(tokens()).edges[:, 0] > 0).sum(dim=-1).max()) == model.config.num_targets
    assert model.config.top_k == 1  # slots of the ribbon


def test_the_recorded_edges_given_back_as_controls_repeat_the_run():
    model = make(pooling="sequence")
    output = model(tokens())
    again = model(tokens(), connections=output.edges)
    assert torch.allclose(again.logits, output.logits, atol=1e-5)
    edited = output.edges.clone()
    edited[:, 1] = 0
    assert not torch.allclose(model(tokens(), connections=edited).logits, output.logits, atol=1e-3)


def test_edges_are_zero_where_there_is_no_connection():
    edges = make().trace(tokens()).edges
    assert edges.shape == (3, 4, 4, 4)
    assert (edges[:, 0, :3] == 0).all()
    assert (edges[:, 0, 3] > 0).all()
    assert (edges[:, 1:, 3] == 0).all()
    assert (edges[:, 1:3, :3] > 0).all()
    assert (edges[:, 3, :3, :3] == 0).all()
    assert (edges[:, 3, :3, 3] > 0).all()


def test_the_strongest_chain_by_hand():
    edges = torch.zeros(1, 4, 4, 3)  # two hidden layers, two inputs, one output, three iterations
    edges[0, 0, 2] = torch.tensor([0.2, 0.3, 0.9])
    edges[0, 0, 3] = torch.tensor([0.8, 0.1, 0.9])
    edges[0, 1, 0] = torch.tensor([0.4, 0.6, 1.0])
    edges[0, 2, 1] = torch.tensor([0.0, 0.7, 1.0])
    ids, weights = strongest_chain(edges, 2)
    assert ids.tolist() == [[0, 1, 1]]
    assert weights.tolist() == [pytest.approx([0.8, 0.6, 0.7])]


def test_a_chain_that_has_ended_stays_ended_and_visits_nothing():
    edges = torch.zeros(3, 4, 3, 3)  # two hidden layers, one input, one output, three iterations
    edges[:, 0, 2] = torch.tensor([[0.2, 0.3, 0.9], [0.0, 0.0, 1.0], [0.6, 0.1, 0.0]])
    edges[0, 1, 1] = torch.tensor([0.0, 0.0, 1.0])  # the first sends to the output alone
    edges[:, 1, 0, 0] = 0.7  # what the layer of number 0 sends is no way on for a chain that is not there
    edges[:, 2, 0] = torch.tensor([0.0, 0.4, 0.0])
    ids, weights = strongest_chain(edges, 2)
    assert ids.tolist() == [[1, 2, 2], [2, 2, 2], [0, 0, 1]]
    assert weights.tolist() == [pytest.approx(row) for row in ([0.3, 0, 0], [0, 0, 0], [0.6, 0.7, 0.4])]


def test_a_run_counts_no_visit_behind_the_end_of_a_chain(tmp_path):
    tokenizer = TextTokenizer.train(["one path of many layers and a chain that ends"] * 3, 270)
    model = make(seed=10, vocab_size=tokenizer.vocab_size, context=64, pooling="sequence", route_top_k=1)
    folder = save_checkpoint(tmp_path / "small", model)
    tokenizer.save(folder / "tokenizer.json")
    loaded = load_model(folder, [], "cpu")
    words = ["one", "path", "of", "many", "layers", "and", "a", "chain", "that", "ends"]
    samples = [Sample(None, f"{word} {word} {word}", None, word) for word in words]
    assert loaded.num_modules == 4
    with Run.open(trace_samples(loaded, samples, tmp_path, run_id="ends", dataset="d")) as run:
        chains = []
        for number in range(len(samples)):
            edges = run.soft("edges", sample=number)["values"]
            at, chain = None, []
            for step in range(3):
                row = edges[0][3][:3] if step == 0 else [0.0] * 3 if at is None else edges[step][at][:3]
                at = row.index(max(row)) if max(row) > 0 else None
                chain.append([] if at is None else [at])
            answers = run.sample(number)["tokens"]
            assert all(token["ribbon"] == chain for token in answers)
            chains += [chain] * len(answers)
        assert any([] in chain for chain in chains)
        assert any([] not in chain for chain in chains)
        usage = run.usage()
        for step in usage["steps"]:
            assert step["unused"] == pytest.approx(sum(not chain[step["step"]] for chain in chains) / len(chains))
        for cell in usage["usage"]:
            assert cell["count"] == sum(cell["module"] in chain[cell["step"]] for chain in chains)
        compute = sum(sum(map(len, chain)) / 3 for chain in chains) / len(chains)
        assert run.row["mean_compute"] == pytest.approx(compute)
        info = run.info()
        assert info["num_modules"] == len(info["modules"]) == 3
        assert not run.flow()["own_modules"], "layers are the same at every iteration"
        assert loaded.choices() == [[0, 1, 2]] * 3
        assert {row.module for row in module_rows(loaded.module_table(), loaded.choices())} == {0, 1, 2}
        data = prepare(loaded, samples)
        assert usage_of(loaded, data)[:, 3].sum() == sum(chain.count([]) for chain in chains)


def test_a_trace_is_one_decision_for_all_tokens_of_a_text():
    model = make()
    traced = to_host(model.trace(tokens()))
    assert traced.module_ids.shape == traced.weights.shape == (3, 12, 3, 1)
    assert (traced.module_ids == traced.module_ids[:, :1]).all()
    assert traced.weights.min() > 0
    assert traced.weights.max() <= 1
    assert traced.gate_entropy.isnan().all()
    table = [m for m in model.module_table() if m.kind != UNUSED_KIND]
    assert [m.name for m in table] == ["transformer 0", "convolution 0", "transformer 1"]
    assert [m.kind for m in table] == ["transformer", "convolution", "transformer"]
    names = model.axis_names()
    assert [len(names[axis]) for axis in ("iteration", "source", "target")] == list(traced.edges.shape[1:])


def test_flops_count_matrices_and_visible_keys():
    model = make(hidden=("transformer",), iterations=2)
    per_token = 2 * (4 * 16 * 16 + 2 * 16 * 24)
    expected = [2 * (per_token + 4 * 16 * (t + 1)) for t in range(12)]
    assert model.trace(tokens(1)).flops[0].tolist() == pytest.approx(expected)
    assert model.module_table()[0].flops_per_token == per_token


def test_pooling_by_hand():
    h = torch.tensor([[[2.0], [4.0], [9.0]]])
    assert pool(h, None, "sequence").flatten().tolist() == [5]
    assert pool(h, None, "prefix").flatten().tolist() == [2, 3, 5]
    counted = torch.tensor([[False, True, True]])
    assert pool(h, counted, "prefix").flatten().tolist() == [0, 4, 6.5]
    assert pool(h, counted, "sequence").flatten().tolist() == [6.5]


# Several inputs and outputs, several kinds of layers.
