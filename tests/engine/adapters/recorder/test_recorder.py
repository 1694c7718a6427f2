"""The recorder against the models' own arithmetic: what is found, what is read, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.recorder_models import (
    VOCABULARY,
    WIDTH,
    Expert,
    GateMoE,
    Language,
    LinearMoE,
    TopKGate,
    language,
    tokens,
)
from tokenpaths.engine.adapters.recorder.recorder import record
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingStopped
from tokenpaths.engine.analysis.distribution import margin_and_runner_up
from tokenpaths.engine.store.ask.run import Run

pytestmark = pytest.mark.filterwarnings("error::tokenpaths.RecordingStopped")
"""A recording that stops is an error here; test_recorder_faults.py has what people see."""


def recorded(run: Run) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids (n, S, K), weights (n, S, K) and token ids (n,) of a sealed run, sample after sample."""
    ids, weights, token_ids = [], [], []
    for sample in range(run.row["num_samples"]):
        for token in run.sample(sample)["tokens"]:
            ids.append(token["ribbon"])
            weights.append(token["weights"])
            token_ids.append(-1 if token["token_id"] is None else token["token_id"])
    return np.array(ids), np.array(weights), np.array(token_ids)


def expected(model: Language, batches: list[torch.Tensor], scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The model's own decisions, slots in order of weight."""
    ids, weights = [], []
    with torch.no_grad():
        for batch in batches:
            i, w = (t.flatten(0, 1).numpy() for t in model.decisions(batch))
            order = np.argsort(-w, axis=-1, kind="stable")
            ids.append(np.take_along_axis(i, order, -1))
            weights.append(np.take_along_axis(w, order, -1) / scale)
    return np.concatenate(ids), np.concatenate(weights)


def assert_same(run: Run, model: Language, batches: list[torch.Tensor], scale: float = 1.0) -> None:
    ids, weights, token_ids = recorded(run)
    own_ids, own_weights = expected(model, batches, scale)
    assert np.array_equal(ids, own_ids)
    linear = run.row["weight_code"] == "linear"
    assert (np.abs(weights - own_weights) < 1e-3 + (1 / 510 if linear else 0.016 * own_weights)).all()
    assert np.array_equal(token_ids, torch.cat([batch.flatten() for batch in batches]).numpy())


def nothing_left(folder, model: nn.Module) -> bool:
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    return list(folder.iterdir()) == [] and hooks == 0


@pytest.mark.parametrize(("moe", "scale"), [(LinearMoE, 1.0), (GateMoE, 2.5)])
@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (5, 1), (300, 3)])
def test_three_lines_record_what_the_model_decides(tmp_path, moe, scale, experts, top_k):
    model = language(moe, layers=2, experts=experts, top_k=top_k)
    batches = [tokens(3, 7), tokens(2, 5, seed=2)]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for batch in batches:
            model(batch)
    assert rec.file == tmp_path / "mine.duckdb"
    assert rec.num_tokens == 31
    assert_same(rec.run, model, batches, scale)
    card = rec.run.card()
    assert (card["family"], card["num_steps"], card["num_modules"], card["top_k"]) == ("moe", 2, experts, top_k)
    assert card["num_samples"] == 5
    modules = rec.run.info()["modules"]
    assert len(modules) == 2 * experts
    assert modules[0]["num_params"] == sum(p.numel() for p in Expert().parameters())
    assert modules[0]["flops_per_token"] == 2 * 2 * WIDTH * 2 * WIDTH
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.duckdb"]


@pytest.mark.parametrize("moe", [LinearMoE, GateMoE])
def test_margins_are_kept_where_the_softmax_is_the_distribution(tmp_path, moe):
    """The tokens' margins in the run, beside those of the model's own logits."""
    model = language(moe, layers=2, experts=5, top_k=2)
    logits: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _m, args, out: logits.append(args[0].detach() @ _m.weight.detach().T))
        for name, module in model.named_modules()
        if getattr(module, "weight", torch.zeros(0)).shape == (5, WIDTH)
    ]
    with record(model, run="near", runs_dir=tmp_path) as rec:
        model(tokens(3, 7))
    for hook in hooks:
        hook.remove()
    answer = rec.run.margins()
    if moe is GateMoE:  # sigmoids and a bias: no distribution over the experts
        assert "holds no scores" in answer["reason"]
        return
    assert answer["reason"] is None
    ids, _, _ = recorded(rec.run)
    kept = [token["margins"] for sample in range(3) for token in rec.run.sample(sample)["tokens"]]
    for step, scores in enumerate(logits):
        probs = scores.reshape(-1, 5).double().softmax(dim=1).numpy()
        margin, runner_up = margin_and_runner_up(probs, ids[:, step])
        assert [row[step]["margin"] for row in kept] == pytest.approx(margin.tolist(), abs=2e-5)
        assert [row[step]["runner_up"] for row in kept] == runner_up.tolist()


def test_the_choice_is_explained(tmp_path):
    model = language(layers=2)
    rec = record(model, run="mine", runs_dir=tmp_path)
    assert [r.name for r in rec.routers] == ["layers.0.moe.gate", "layers.1.moe.gate"]
    assert rec.routers[0].why == "Linear with 4 outputs beside a list of 4 experts (layers.0.moe.experts)"
    assert rec.routers[0].reads == "not called yet"
    with rec:
        model(tokens())
    assert [r.steps for r in rec.routers] == [(0,), (1,)]
    assert rec.routers[0].reads == "logits over 4 experts; the top 2 recomputed"
    kept = json.loads(rec.run.row["config"])["recorder"]["routers"]
    assert kept[1] == {
        "name": "layers.1.moe.gate",
        "why": rec.routers[1].why,
        "reads": rec.routers[1].reads,
        "steps": [1],
    }


def test_what_weights_mean_is_found_by_trying_the_formulas(tmp_path):
    class Softmax(TopKGate):
        renormalise = True

        def forward(self, x):
            logits = x @ self.weight.T
            weights, ids = logits.softmax(-1).topk(self.top_k, dim=-1)
            return logits, weights / weights.sum(-1, keepdim=True) if self.renormalise else weights, ids

    class Plain(Softmax):
        renormalise = False

    class Strange(Softmax):
        def forward(self, x):
            logits, weights, ids = super().forward(x)
            return logits, weights**3, ids

    found = {}
    for gate in (Softmax, Plain, Strange, TopKGate):
        model = language(GateMoE, layers=1)
        model.layers[0].moe.gate = gate(4, 2)
        with record(model, run=gate.__name__, runs_dir=tmp_path) as rec:
            model(tokens())
        semantics = rec.run.info()["weight_semantics"]
        found[gate] = tuple(semantics[n] for n in ("score_function", "order", "renormalised", "bias", "scale"))
        entropy = rec.run.sample(0)["tokens"][0]["gate_entropy"]
        assert (entropy is not None) == (gate in (Softmax, Plain))
    assert found == {
        Softmax: ("softmax", "softmax, then top-k", True, False, 1.0),
        Plain: ("softmax", "softmax, then top-k", False, False, 1.0),
        Strange: ("unknown", "unknown", None, None, 1.0),
        TopKGate: ("sigmoid", "sigmoid, then top-k", True, None, 2.5),
    }


def test_logits_only_say_that_the_choice_was_recomputed(tmp_path):
    model = language(layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    semantics = rec.run.info()["weight_semantics"]
    assert "recomputed" in semantics["note"]
    assert semantics["source"] == "logits over 4 experts; the top 2 recomputed"
    x = model.embed(tokens())
    mixed = x + torch.tanh(model.layers[0].mixer(x.cumsum(dim=1) / WIDTH))
    probs = model.layers[0].moe.gate(model.layers[0].norm(mixed)).softmax(-1).flatten(0, 1)
    own = -(probs * probs.log()).sum(-1)
    seen = [t["gate_entropy"] for s in range(3) for t in rec.run.sample(s)["tokens"]]
    assert np.allclose(seen, own.detach(), atol=2e-3)


def test_renormalise_divides_recomputed_weights_only(tmp_path):
    for moe, run in ((LinearMoE, "a"), (GateMoE, "b")):
        model = language(moe, layers=1, top_k=2, **({"scale": 1.0} if moe is GateMoE else {}))
        with record(model, run=run, runs_dir=tmp_path, renormalise=True) as rec:
            model(tokens())
        assert np.allclose(recorded(rec.run)[1].sum(-1), 1, atol=0.005)


def test_a_gate_that_gives_ids_is_preferred_to_the_linear_inside_it(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = nn.Linear(WIDTH, 4, bias=False)

        def forward(self, x):
            logits = self.proj(x)
            worst = (-logits).topk(2, dim=-1).indices  # not what the top-k of the logits would say
            return {"ids": worst, "weights": torch.full(worst.shape, 0.25)}

    model = language(GateMoE, layers=2)
    for layer in model.layers:
        layer.moe.gate = Wrapped()
        layer.moe.choose = lambda x, gate=layer.moe.gate: (gate(x)["ids"], gate(x)["weights"])
    rec = record(model, run="mine", runs_dir=tmp_path)
    assert rec.routers[0].name == "layers.0.moe.gate.proj"
    with rec:
        model(tokens())
    # choose() is called with and without recording alike; each call of the gate is a step.
    assert {r.name for r in rec.routers} == {"layers.0.moe.gate", "layers.1.moe.gate"}
    assert rec.run.row["num_steps"] == 4
    assert rec.run.info()["modules"][4]["name"] == "expert 0"
    own = model.decisions(tokens())[0].flatten(0, 1)
    assert np.array_equal(np.sort(recorded(rec.run)[0][:, [0, 2]]), np.sort(own.numpy()))


def test_scores_that_are_zero_but_for_the_chosen_are_a_choice(tmp_path):
    class Sparse(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.top_k = nn.Parameter(torch.randn(4, WIDTH)), 2

        def forward(self, x):
            logits = x @ self.weight.T
            values, ids = (logits + torch.tensor([1.0, 0, 0, -1])).topk(2, dim=-1)
            return torch.full_like(logits, float("-inf")).scatter(-1, ids, values).sigmoid(), logits

    model = language(GateMoE, layers=1)
    model.layers[0].moe.gate = gate = Sparse()
    model.layers[0].moe.choose = lambda x: tuple(gate(x)[0].topk(2, dim=-1))[::-1]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert rec.routers[0].reads == "scores that are zero but for the 2 chosen of 4, as given"
    assert_same(rec.run, model, [tokens()])


def test_names_modules_and_a_callable(tmp_path):
    model = language(layers=3)
    with record(model, run="named", routers=["layers.[02].*gate"], runs_dir=tmp_path) as rec:
        model(tokens())
    assert [r.name for r in rec.routers] == ["layers.0.moe.gate", "layers.2.moe.gate"]
    own = expected(model, [tokens()])[0]
    assert np.array_equal(recorded(rec.run)[0], own[:, [0, 2]])

    with record(model, run="module", routers=model.layers[1].moe.gate, runs_dir=tmp_path) as rec:
        model(tokens())
    assert np.array_equal(recorded(rec.run)[0], own[:, [1]])

    seen = []

    def read(module, inputs, output):
        seen.append((type(module).__name__, tuple(inputs[0].shape), output.requires_grad))
        weights, ids = output.sigmoid().topk(1, dim=-1, largest=False)
        return ids, weights

    with record(model, run="callable", read=read, runs_dir=tmp_path) as rec:
        model(tokens())
    assert seen == [("Linear", (21, WIDTH), True)] * 3
    assert rec.run.row["top_k"] == 1
    assert rec.routers[0].reads == "ids and weights from read=, top 1 of 4"
    own_probs = (
        model.layers[0]
        .moe.gate(
            model.layers[0].norm((x := model.embed(tokens())) + torch.tanh(model.layers[0].mixer(x.cumsum(1) / WIDTH)))
        )
        .flatten(0, 1)
    )
    assert np.array_equal(recorded(rec.run)[0][:, 0, 0], own_probs.argmin(-1).numpy())


def test_our_own_mixture_of_experts_by_a_callable(tmp_path):
    from tokenpaths.engine.families.presets import moe_transformer
    from tokenpaths.engine.models.dna import DNA

    torch.manual_seed(0)
    model = DNA(
        moe_transformer("text", layers=2, experts=3, top_k=2, width=16, heads=2, mlp_width=16, vocab_size=32, context=8)
    ).eval()
    allowed = {id(router): slice(3 * step, 3 * step + 3) for step, router in enumerate(model.routers)}

    def read(module, inputs, output):
        weights, ids = output[:, allowed[id(module)]].softmax(-1).topk(2, dim=-1)
        return ids, weights / weights.sum(-1, keepdim=True)

    with torch.no_grad(), record(model, run="mine", read=read, num_experts=3, runs_dir=tmp_path) as rec:
        model(tokens(2, 8))
        _, decisions = model.run_trunk(tokens(2, 8))  # calls the same routers, but is no forward pass
    assert [r.name for r in rec.routers] == ["routers.0", "routers.1"]
    own = torch.stack([d.module_ids - 3 * step for step, d in enumerate(decisions)], dim=1)
    assert np.array_equal(recorded(rec.run)[0], own.numpy())


def test_padding_is_left_out_and_texts_and_labels_are_kept(tmp_path):
    model = language(layers=2)
    batch = tokens(3, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    with record(model, run="found", runs_dir=tmp_path) as rec:
        model(batch, attention_mask=mask)
    real = mask.flatten().bool().numpy()
    ids, _, token_ids = recorded(rec.run)
    assert np.array_equal(ids, expected(model, [batch])[0][real])
    assert np.array_equal(token_ids, batch.flatten().numpy()[real])
    assert [rec.run.sample(i)["num_tokens"] for i in range(2)] == [6, 4]

    with record(model, run="given", runs_dir=tmp_path, token_texts={i: f"w{i}" for i in range(VOCABULARY)}) as rec:
        rec.batch(input_ids=(batch + 1) % VOCABULARY, texts=["a", "b", "c"], labels=[0, "x", None], mask=mask.tolist())
        model(batch)
        model(batch[:1])  # what was said holds for one forward pass
    samples = rec.run.samples()["samples"]
    assert [s["label"] for s in samples] == ["0", "x", None]
    assert [s["num_tokens"] for s in samples] == [6, 4, 6]
    first = rec.run.sample(0)
    assert first["tokens"][0]["token_id"] == int(batch[0, 0] + 1) % VOCABULARY
    assert first["text"] == "a"
    assert rec.run.sample(2)["tokens"][0]["token_id"] == int(batch[0, 0])


def test_a_model_that_leaves_its_padding_out_itself(tmp_path):
    class Packed(Language):
        def forward(self, input_ids, attention_mask=None):
            return super().forward(input_ids[attention_mask.bool()][None])

    torch.manual_seed(0)
    model = Packed(layers=2)
    batch, mask = tokens(3, 4), torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]])
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(batch, attention_mask=mask)
    ids, _, token_ids = recorded(rec.run)
    packed = batch[mask.bool()]
    assert np.array_equal(token_ids, packed.numpy())
    assert np.array_equal(ids, expected(model, [packed[None]])[0])
    assert [s["num_tokens"] for s in rec.run.samples()["samples"]] == [3, 2, 4]


def test_time_first_and_vectors_instead_of_ids(tmp_path):
    moe = LinearMoE()
    x = torch.randn(5, 2, WIDTH)  # (T, B, D)
    with record(moe, run="first", batch_first=False, runs_dir=tmp_path) as rec:
        rec.batch(labels=["p", "q"], mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]).T)
        moe(x)
    own = moe.choose(x.transpose(0, 1).reshape(-1, WIDTH))[0].numpy()
    assert np.array_equal(recorded(rec.run)[0][:, 0], own[:8])
    assert [(s["label"], s["num_tokens"]) for s in rec.run.samples()["samples"]] == [("p", 5), ("q", 3)]


def test_a_gate_that_is_called_twice_is_two_steps(tmp_path):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.moe = LinearMoE()

        def forward(self, x):
            return self.moe(self.moe(x) + x)

    torch.manual_seed(0)
    model, x = Twice(), torch.randn(2, 3, WIDTH)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(x)
        model(x)
    assert rec.routers[0].steps == (0, 1)
    ids = recorded(rec.run)[0]
    once = model.moe(x) + x
    own = torch.stack([model.moe.choose(v.flatten(0, 1))[0] for v in (x, once)], dim=1).numpy()
    assert np.array_equal(ids, np.concatenate([own, own]))


class AdaptedLinear(nn.Module):
    """A Linear with what an adapter adds, as PEFT wraps it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})

    def forward(self, x):
        return self.base_layer(x) + 8 * self.lora_B["default"](self.lora_A["default"](x))


class NamedAdaptedLinear(AdaptedLinear):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base)
        self.in_features, self.out_features = base.in_features, base.out_features


class BiasedLinear(nn.Module):
    """A gate that adds to what the Linear inside it gives."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.linear, self.bias = base, nn.Parameter(torch.linspace(-3, 3, base.out_features))

    def forward(self, x):
        return self.linear(x) + self.bias


@pytest.mark.parametrize("around", [AdaptedLinear, NamedAdaptedLinear, BiasedLinear])
def test_scores_are_read_at_the_gate_and_not_at_the_linear_inside_it(tmp_path, around):
    model = language(layers=2, experts=8)
    for layer in model.layers:
        layer.moe.gate = around(layer.moe.gate)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert [router.name for router in rec.routers] == ["layers.0.moe.gate", "layers.1.moe.gate"]
    assert_same(rec.run, model, [tokens()])


class SigmoidGate(nn.Module):
    """A gate of an attention or of a state: no router."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.widen = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH)

    def forward(self, x):
        return self.widen(self.narrow(x)).sigmoid()


class Gated(LinearMoE):
    """Its choice and weights are those of ``LinearMoE``; a gate of another kind stands before it."""

    def __init__(self, kind: str, top_k: int | None = None) -> None:
        super().__init__()
        self.config = {"num_experts_per_tok": 2}
        self.mixer = nn.Module()
        setattr(self.mixer, kind, nn.Linear(WIDTH, 8) if kind == "gate" else SigmoidGate())
        self.mixer.k = top_k

    def forward(self, x):
        next(self.mixer.children())(x)
        return super().forward(x)


@pytest.mark.parametrize(("kind", "top_k"), [("forget_gate", None), ("router", None), ("gate", 4)])
def test_a_gate_that_only_its_name_speaks_for_is_no_router_beside_known_ones(tmp_path, kind, top_k):
    model = language(lambda: Gated(kind, top_k), layers=2)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert_same(rec.run, model, [tokens()])
    assert [router.name for router in rec.routers] == ["layers.0.moe.gate", "layers.1.moe.gate"]
    assert {why for _, why in rec.passed_over} == {"its name only speaks for it, and its output holds no expert ids"}


def test_a_top_k_of_a_distant_configuration_makes_no_router_of_a_gate(tmp_path):
    model = language(lambda: Gated("router"), layers=1)
    del model.layers[0].moe.experts
    del model.layers[0].moe.gate
    model.layers[0].moe.forward = lambda x: x * model.layers[0].moe.mixer.router(x)
    with pytest.warns(RecordingStopped, match="no top_k stands on it"), record(model, run="mine", runs_dir=tmp_path):
        model(tokens())


def test_every_n_records_the_first_and_each_nth_after_it(tmp_path):
    model = language(layers=1)
    batches = [tokens(2, 3, seed=i) for i in range(7)]
    with record(model, run="mine", every=3, runs_dir=tmp_path) as rec:
        for batch in batches:
            model(batch)
    assert_same(rec.run, model, batches[::3])
    assert rec.run.samples()["samples"][2]["source"] == "forward pass 3, sample 0"


def test_a_series_names_its_iteration(tmp_path):
    model = language(layers=1)
    with record(model, run="mine-000500", series="mine", iteration=500, runs_dir=tmp_path) as rec:
        model(tokens())
    assert json.loads(rec.run.row["config"])["series"] == {"name": "mine", "iteration": 500}
