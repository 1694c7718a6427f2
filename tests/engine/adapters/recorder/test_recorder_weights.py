"""What weights mean: wide routers with small logits, factors of gates without logits, and tokens that were dropped."""

# ruff: noqa: PT031, SIM117  (a recording is a block of several statements)

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.adapters.recorder.test_recorder import expected, recorded
from tests.support.recorder_models import WIDTH, GateMoE, Language, LinearMoE, TopKGate, language, tokens
from tokenpaths.engine.adapters.recorder.recorder import record
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingStopped
from tokenpaths.engine.adapters.recorder.routers.router_outputs import Call, Reading
from tokenpaths.engine.adapters.recorder.routers.weight_meaning import explain

TOKENS = 64


def given(
    weights_of, experts: int, top_k: int, *, spread: float = 1.0, scale: float | None = None, dtype=torch.float32
):
    """Scale, score function, renormalised, entropy and note of a gate with logits of this spread."""
    logits = spread * torch.randn(TOKENS, experts, generator=torch.Generator().manual_seed(0))
    logits = logits.to(dtype)
    ids = logits.topk(top_k, dim=1).indices
    reading = Reading("ids", experts, top_k, 1, 2, 0)
    weights = weights_of(logits.float(), ids).to(dtype)
    reading, meaning = explain(Call(reading, ids, weights, logits), scale, False)
    return reading.scale, meaning.score_function, meaning.renormalised, reading.entropy, meaning.note


def softmax(logits, ids):
    return logits.softmax(dim=1).gather(1, ids)


def sigmoid(logits, ids):
    return logits.sigmoid().gather(1, ids)


def summed(of):
    return lambda logits, ids: (w := of(logits, ids)) / w.sum(dim=1, keepdim=True)


def times(factor, of):
    return lambda logits, ids: factor * of(logits, ids)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.3, 3.0])
@pytest.mark.parametrize("scale", [None, 2.5])
@pytest.mark.parametrize("renormalised", [False, True])
@pytest.mark.parametrize("score", [softmax, sigmoid])
def test_formulas_are_found_however_wide_the_router(score, renormalised, scale, spread, dtype):
    weights_of = times(scale or 1.0, summed(score) if renormalised else score)
    for experts, top_k in ((8, 2), (512, 10)):
        found = given(weights_of, experts, top_k, spread=spread, scale=scale, dtype=dtype)
        assert found[:4] == (scale or 1.0, score.__name__, renormalised, score is softmax)


def test_small_weights_do_not_match_by_being_small():
    assert given(times(2.5, softmax), 512, 10, spread=0.02, scale=2.5)[:2] == (2.5, "softmax")
    assert given(lambda *a: softmax(*a) ** 2, 256, 8, spread=0.5)[1] == "unknown"
    assert given(summed(sigmoid), 64, 8, spread=0.1)[1:4] == ("sigmoid", True, False)


def test_formulas_that_fit_equally_well_are_called_unknown():
    scale, score, renormalised, entropy, note = given(summed(sigmoid), 64, 8, spread=0.001, dtype=torch.bfloat16)
    assert (scale, score, renormalised, entropy) == (1.0, "unknown", True, False)
    assert "fit several formulas equally well (softmax, divided by their sum; sigmoid, divided by their sum)" in note
    # All experts are chosen: their sum is 1 anyway.
    assert given(softmax, 4, 4)[1:4] == ("softmax", None, True)
    assert given(lambda logits, ids: softmax(logits, ids) * float("nan"), 4, 2)[1] == "unknown"


class Bare(TopKGate):
    """DeepSeek's own gate: ids and weights, no logits."""

    renormalise = True

    def forward(self, x):
        logits, weights, ids = super().forward(x)
        if not self.renormalise:
            weights = self.routed_scaling_factor * logits.sigmoid().gather(-1, ids) / self.weight.shape[0]
        return ids, weights


class BareMoE(GateMoE):
    def __init__(self, experts: int = 32, top_k: int = 8, scale: float = 2.5) -> None:
        super().__init__(experts, top_k, scale)
        self.gate = Bare(experts, top_k, scale)

    def choose(self, x):
        return self.gate(x)


def test_a_factor_in_the_weights_of_a_gate_without_logits_shows_in_their_sum(tmp_path):
    model = language(BareMoE, layers=1)
    assert float(expected(model, [tokens()])[1].max()) < 1, "no weight alone tells of the factor"
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    semantics = rec.run.info()["weight_semantics"]
    assert (semantics["scale"], semantics["renormalised"], semantics["score_function"]) == (2.5, True, "unknown")
    assert "the weights of every token sum to 2.5" in semantics["note"]
    assert np.allclose(recorded(rec.run)[1].sum(-1), 1, atol=0.02)

    model.layers[0].moe.gate.renormalise = False
    with record(model, run="unknown", runs_dir=tmp_path) as rec:
        model(tokens())
    semantics = rec.run.info()["weight_semantics"]
    assert (semantics["scale"], semantics["renormalised"]) == (1.0, None)
    assert "it is unknown whether the weights hold it, so they are kept as given: give scale=2.5" in semantics["note"]
    with record(model, run="said", scale=2.5, runs_dir=tmp_path) as rec:
        model(tokens())
    assert rec.run.info()["weight_semantics"]["scale"] == 2.5
    assert np.allclose(np.sort(recorded(rec.run)[1]), np.sort(expected(model, [tokens()], 2.5)[1]), atol=0.005)


# Scores that are zero for what was not chosen ---------------------------------------------------------------------


class Combining(nn.Module):
    """Probabilities that are 0 but for the chosen experts, as of GShard and Megatron; a full one drops tokens."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.weight, self.top_k = nn.Parameter(torch.randn(experts, WIDTH)), 2
        self.capacity, self.smallest = 10**6, 0.0

    def forward(self, x):
        probs = (x @ self.weight.T).softmax(dim=-1)
        scores = torch.zeros_like(probs).scatter(-1, (ids := probs.topk(2, dim=-1).indices), probs.gather(-1, ids))
        return scores * ((scores > 0).cumsum(dim=0) <= self.capacity) + self.smallest


class CombiningMoE(GateMoE):
    def __init__(self, experts: int = 6) -> None:
        super().__init__(experts, 2)
        self.gate = Combining(experts)

    def choose(self, x):
        weights, ids = self.gate(x).topk(2, dim=-1)
        return ids, weights


def used(model: Language, batches: list[torch.Tensor]) -> list[list[list[int]]]:
    """Experts with a weight, by token and layer, the largest weight first."""
    ids, weights = expected(model, batches)
    return [
        [i[w > 0].tolist() for i, w in zip(token_ids, token_weights, strict=True)]
        for token_ids, token_weights in zip(ids, weights, strict=True)
    ]


@pytest.mark.parametrize("first", [10**6, 5], ids=["drops later", "drops at once"])
@pytest.mark.parametrize("experts", [6, 255])
def test_a_token_that_was_dropped_uses_no_expert(tmp_path, first, experts):
    model = language(CombiningMoE, layers=2, experts=experts)
    batches, capacities = [tokens(), tokens(4, 9, seed=2)], [first, 1 if experts > 6 else 3]
    own = []
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for batch, capacity in zip(batches, capacities, strict=True):
            for layer in model.layers:
                layer.moe.gate.capacity = capacity
            model(batch)
    for batch, capacity in zip(batches, capacities, strict=True):
        for layer in model.layers:
            layer.moe.gate.capacity = capacity
        own += used(model, [batch])
    of_samples = [token for sample in range(7) for token in rec.run.sample(sample)["tokens"]]
    assert [token["ribbon"] for token in of_samples] == own
    slots = sum(2 - len(step) for token in own for step in token)
    assert slots > 10
    info = rec.run.info()
    assert info["num_modules"] == experts
    assert {module["module"] for module in info["modules"] if module["kind"] == "expert"} == set(range(experts))
    assert [step["unused"] > 0 for step in rec.run.usage()["steps"]] == [True, True]
    dropped = sum(not step for token in own for step in token)
    assert info["findings"]["unused_slots"] == {
        "share": pytest.approx(slots / (2 * 2 * len(own))),
        "slots": slots,
        "dropped": dropped,
    }
    assert "k varies" in info["findings"]["notes"][-1]
    assert [token["compute"] for token in of_samples] == pytest.approx(
        [sum(map(len, token)) / (2 * 2) for token in own]
    )


class Masking(TopKGate):
    """Gives a mask of the chosen experts, as Switch Transformers do: what a full expert drops is 0."""

    capacity, kind, alone = 4, torch.long, False

    def forward(self, x):
        logits = x @ self.weight.T
        weights, ids = logits.softmax(dim=-1).topk(self.top_k, dim=-1)
        mask = torch.zeros_like(logits).scatter(1, ids, 1.0)
        mask = (mask * (mask.cumsum(dim=0) <= self.capacity)).to(self.kind)
        return (mask, weights.sum(-1)) if self.alone else (mask, weights, logits)


class MaskingMoE(GateMoE):
    def __init__(self, experts: int = 6, top_k: int = 1, kind: torch.dtype = torch.long, alone: bool = False) -> None:
        super().__init__(experts, top_k)
        self.gate = Masking(experts, top_k)
        self.gate.kind, self.gate.alone = kind, alone
        del self.gate.routed_scaling_factor

    def choose(self, x):
        mask, *_ = self.gate(x)
        weights, ids = (x @ self.gate.weight.T).softmax(dim=-1).topk(self.top_k, dim=-1)
        return ids, weights * mask.gather(1, ids)


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("kind", [torch.long, torch.bool])
@pytest.mark.parametrize("alone", [False, True])
def test_a_mask_of_the_chosen_experts_is_the_choice(tmp_path, top_k, kind, alone):
    model = language(MaskingMoE, layers=2, top_k=top_k, kind=kind, alone=alone)
    batches = [tokens(3, 7), tokens(4, 9, seed=2)]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for batch in batches:
            model(batch)
    own = used(model, batches)
    kept = [token for sample in range(7) for token in rec.run.sample(sample)["tokens"]]
    assert any(not step for token in own for step in token), "some are dropped"
    same = [[sorted(step) for step in token["ribbon"]] for token in kept]
    assert same == [[sorted(step) for step in token] for token in own]
    if top_k == 1 and not alone:
        _, weights = expected(model, batches)
        for token, token_weights in zip(kept, weights, strict=True):
            for step, weight in zip(token["weights"], token_weights, strict=True):
                assert step == pytest.approx(weight[weight > 0].tolist(), abs=0.01)
    assert "mask of the chosen" in rec.routers[0].reads


@pytest.mark.parametrize(("moe", "scale"), [(LinearMoE, 1.0), (GateMoE, 2.5)])
def test_layers_that_choose_different_numbers_of_experts_leave_slots_unused(tmp_path, moe, scale):
    model = language(moe, layers=3, experts=4, top_k=2)
    for layer, top_k in zip(model.layers, (2, 3, 1), strict=True):
        layer.moe.top_k = top_k
        if moe is GateMoE:
            layer.moe.gate.top_k = top_k
    own: list[tuple[np.ndarray, np.ndarray]] = []
    hooks = [
        layer.moe.register_forward_hook(
            lambda moe, args, _: own.append(
                tuple(part.detach().numpy() for part in moe.choose(args[0].reshape(-1, args[0].shape[-1])))
            )
        )
        for layer in model.layers
    ]
    model(tokens())
    for hook in hooks:
        hook.remove()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert [router.top_k for router in rec.routers] == [2, 3, 1]
    kept = [token for sample in range(3) for token in rec.run.sample(sample)["tokens"]]
    for step, (ids, weights) in enumerate(own):
        order = np.argsort(-weights, axis=1, kind="stable")
        rows = np.array([token["ribbon"][step] for token in kept])
        assert np.array_equal(rows, np.take_along_axis(ids, order, 1)), "slots that are not used are not shown"
        found = np.array([token["weights"][step] for token in kept])
        assert np.allclose(found, np.take_along_axis(weights, order, 1) / scale, atol=0.01)
    assert rec.run.row["top_k"] == 3
    note = (
        "the layers choose different numbers of experts (layers.2.moe.gate 1, layers.0.moe.gate 2, layers.1.moe.gate 3)"
    )
    assert note in rec.run.info()["weight_semantics"]["note"]
    assert kept[0]["compute"] == pytest.approx(6 / 9)


class Full(TopKGate):
    """Gives -1 for a slot whose expert has no room left; its weight stays."""

    capacity = 3

    def forward(self, x):
        logits, weights, ids = super().forward(x)
        place = nn.functional.one_hot(ids, len(self.weight)).cumsum(dim=0).gather(2, ids[..., None])[..., 0]
        return logits, weights, ids.where(place <= self.capacity, -1)


class FullMoE(GateMoE):
    def __init__(self, capacity: int = 3) -> None:
        super().__init__(6, 2)
        self.gate = Full(6, 2)
        self.gate.capacity = capacity


@pytest.mark.parametrize("way", ["as found", "read="])
def test_an_id_of_minus_one_is_a_slot_that_was_not_used(tmp_path, way):
    model = language(FullMoE, layers=3)
    late = model.layers[1].moe.gate
    late.capacity = 10**6  # the first pass drops no token there
    options = (
        {} if way == "as found" else {"routers": "*.gate", "read": lambda _, i, out: (out[2], out[1]), "scale": 2.5}
    )
    batches, own = [tokens(), tokens(4, 9, seed=2)], []
    with record(model, run="mine", runs_dir=tmp_path, **options) as rec:
        for batch in batches:
            model(batch)
            ids, weights = (part.detach().flatten(0, 1).numpy() for part in model.decisions(batch))
            own += [
                [
                    sorted((float(w) / -2.5, int(i)) for i, w in zip(*step, strict=True) if i >= 0)
                    for step in zip(*token, strict=True)
                ]
                for token in zip(ids, weights, strict=True)
            ]
            late.capacity = 2
    of_samples = [token for sample in range(7) for token in rec.run.sample(sample)["tokens"]]
    assert [token["ribbon"] for token in of_samples] == [[[i for _, i in step] for step in token] for token in own]
    weights = [weight for token in of_samples for step in token["weights"] for weight in step]
    assert weights == pytest.approx([-w for token in own for step in token for w, _ in step], abs=0.003)
    slots = sum(2 - len(step) for token in own for step in token)
    assert rec.run.info()["findings"]["unused_slots"]["slots"] == slots > 50
    assert rec.run.info()["num_modules"] == 6
    semantics = rec.run.info()["weight_semantics"]
    expected_score = ("sigmoid", 2.5) if way == "as found" else ("unknown", 2.5)
    assert (semantics["score_function"], semantics["scale"]) == expected_score
    assert rec.notes[-1].startswith(f"{100 * slots / (6 * len(own)):.2g} % of slots are unused")


def test_a_gate_that_first_drops_a_token_later_stops_the_recording(tmp_path):
    model = language(FullMoE, layers=1, capacity=10**6)
    with pytest.warns(
        RecordingStopped, match="or read= if another number means that a token was dropped: there −1 says"
    ):
        with record(model, run="mine", runs_dir=tmp_path) as rec:
            model(tokens())
            model.layers[0].moe.gate.capacity = 1
            model(tokens())
    assert rec.run.row["num_tokens"] == 21


def test_scores_that_are_no_longer_zero_stop_the_recording(tmp_path):
    model = language(CombiningMoE, layers=1)
    with pytest.warns(RecordingStopped, match="forward pass 1: router layers.0.moe.gate gave more than 2 scores"):
        with record(model, run="mine", runs_dir=tmp_path) as rec:
            model(tokens())
            model.layers[0].moe.gate.smallest = 1e-4
            model(tokens())
    assert rec.run.row["num_tokens"] == 21
