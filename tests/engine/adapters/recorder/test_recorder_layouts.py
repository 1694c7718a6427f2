"""Layouts of what gates and models take and give: masks of kinds of layers, None, pieces, time first, adapters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.engine.adapters.recorder.test_recorder import recorded
from tests.support.recorder_models import VOCABULARY, WIDTH, GateMoE, Language, LinearMoE, language, tokens
from tokenpaths.engine.adapters.recorder.recorder import record
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingStopped


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


@pytest.mark.parametrize("kind", ["GptOss", "Qwen3Next"])
def test_masks_for_each_kind_of_layer_as_with_a_cache_of_fixed_size(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    common = dict(
        vocab_size=97, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=8, num_experts_per_tok=2, pad_token_id=0, eos_token_id=5,
    )  # fmt: skip
    options = {
        "GptOss": dict(num_local_experts=6, layer_types=["sliding_attention", "full_attention"], sliding_window=4),
        "Qwen3Next": dict(
            num_experts=6, layer_types=["linear_attention", "full_attention"], shared_expert_intermediate_size=24,
            linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
        ),
    }  # fmt: skip
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**common, **options[kind])
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().requires_grad_(False)
    prompts = torch.randint(6, 97, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(prompts)
    prompts[1, :3], mask[1, :3] = 0, 0

    def written(name: str, **how) -> tuple[np.ndarray, list[int]]:
        with record(model, run=name, runs_dir=tmp_path) as rec:
            model.generate(prompts, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=-1, **how)
        assert rec.notes == []
        return recorded(rec.run)[2], [sample["num_tokens"] for sample in rec.run.samples()["samples"]]

    grown, lengths = written("grown")
    fixed, lengths_of_fixed = written("fixed", cache_implementation="static", disable_compile=True)
    assert lengths == lengths_of_fixed == [12, 9, 12]
    assert np.array_equal(grown, fixed)
    assert 0 not in fixed[: 12 + 4]


class LossGate(nn.Module):
    """Gives a loss for each token in training, and None in its place else."""

    def __init__(self, experts: int, top_k: int, place: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, WIDTH))
        self.top_k, self.place = top_k, place

    def forward(self, x: Tensor) -> tuple[Tensor | None, ...]:
        probs = (x @ self.weight.T).softmax(dim=-1)
        output: list[Tensor | None] = list(probs.topk(self.top_k, dim=-1))
        output.insert(self.place, probs.logsumexp(dim=-1, keepdim=True) if self.training else None)
        return tuple(output)


class LossMoE(LinearMoE):
    def __init__(self, top_k: int = 1, place: int = 0) -> None:
        super().__init__(top_k=top_k)
        self.gate = LossGate(4, top_k, place)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        output = list(self.gate(x))
        del output[self.gate.place]
        return output[1], output[0]


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("place", [0, 2])
def test_none_keeps_the_places_of_what_a_gate_gives(tmp_path, top_k, place):
    model = language(LossMoE, top_k=top_k, place=place)
    model.requires_grad_(False)
    wanted = [model.decisions(tokens(seed=seed)) for seed in (1, 2)]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for training, seed in ((False, 1), (True, 2)):
            model.train(training)(tokens(seed=seed))
    ids, weights, _ = recorded(rec.run)
    assert np.array_equal(ids, torch.cat([ids.flatten(0, 1) for ids, _ in wanted]))
    assert np.allclose(weights, torch.cat([weights.flatten(0, 1) for _, weights in wanted]), atol=0.004)


def test_scores_in_the_place_of_ids_are_no_ids(tmp_path):
    model = language(LossMoE, layers=1)

    def without_none(module, inputs, output):
        return output if module.training else output[1:]

    model.layers[0].moe.gate.register_forward_hook(without_none)
    model.layers[0].moe.choose = lambda x: tuple(model.layers[0].moe.gate(x)[:-3:-1])
    with pytest.warns(RecordingStopped), record(model, run="mine", runs_dir=tmp_path) as rec:  # noqa: PT031
        model.eval()(tokens())
        model.train()(tokens())
    assert rec.run.row["num_tokens"] == 21
    assert rec.problem is not None
    assert "but in the first forward pass ids of 1 values a token at place 1" in rec.problem


class Pieces(GateMoE):
    """Works through the tokens in two pieces, to need less memory."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([super(Pieces, self).forward(piece) for piece in x.chunk(2, dim=1)], dim=1)


@pytest.mark.parametrize(
    ("length", "what"), [(8, "called 2 times with 12 tokens each, the pass has 24"), (7, "called with 12, 9 tokens")]
)
def test_tokens_that_a_router_sees_in_pieces_are_refused(tmp_path, length, what):
    model = language(Pieces)
    with pytest.warns(RecordingStopped), record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens(3, length))
    assert rec.problem is not None
    assert what in rec.problem
    assert "it received them in pieces" in rec.problem


def test_vectors_that_a_router_sees_in_pieces_are_refused(tmp_path):
    with pytest.warns(RecordingStopped), record(language(Pieces).layers[0], run="mine", runs_dir=tmp_path) as rec:
        rec.model(torch.randn(2, 8, WIDTH))
    assert rec.problem is not None
    assert "called 2 times with 8 tokens each, the pass has 16" in rec.problem


class Patched(nn.Module):
    """Makes a token of every four vectors, which one gate meets four times."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.moe = nn.Linear(4 * 3, WIDTH), GateMoE()

    def forward(self, series: Tensor) -> Tensor:
        x = self.project(series.unflatten(1, (-1, 4)).flatten(2))
        for _ in range(4):
            x = x + self.moe(x)
        return x


def test_patches_of_vectors_are_no_pieces_of_them(tmp_path):
    with torch.no_grad(), record(Patched(), run="mine", runs_dir=tmp_path) as rec:
        rec.model(torch.randn(3, 16, 3))
    assert rec.notes == []
    assert (rec.run.row["num_steps"], [one["num_tokens"] for one in rec.run.samples()["samples"]]) == (4, [4, 4, 4])


class Pooled(Language):
    """One gate of both layers sees every second token."""

    def __init__(self) -> None:
        super().__init__(GateMoE, layers=2)
        self.layers[1].moe.gate = self.layers[0].moe.gate

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)[:, ::2]
        for layer in self.layers:
            x = x + layer.moe(layer.norm(x))
        return x


def test_fewer_tokens_of_one_gate_are_taken_where_a_mask_says_so(tmp_path):
    with pytest.warns(RecordingStopped, match="give rec.batch"), record(Pooled(), run="no", runs_dir=tmp_path) as rec:
        rec.model(tokens(3, 6))
    with torch.no_grad(), record(Pooled(), run="mine", runs_dir=tmp_path) as rec:
        rec.batch(mask=torch.ones(3, 3))
        rec.model(tokens(3, 6))
    assert [one["num_tokens"] for one in rec.run.samples()["samples"]] == [3, 3, 3]


class Unpadded(Language):
    """One gate of all layers sees the tokens that are no padding."""

    def __init__(self) -> None:
        super().__init__(GateMoE, layers=2)
        self.layers[1].moe.gate = self.layers[0].moe.gate

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x[attention_mask.bool()] += layer.moe(x[attention_mask.bool()])
        return self.head(x)


def test_half_of_the_tokens_may_be_padding(tmp_path):
    torch.manual_seed(0)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0]])
    with torch.no_grad(), record(Unpadded(), run="mine", runs_dir=tmp_path) as rec:
        rec.model(tokens(2, 6), mask)
    assert np.array_equal(recorded(rec.run)[2], tokens(2, 6)[mask.bool()])


class AxesGateMoE(GateMoE):
    """Its gate is given all axes of its input."""

    def forward(self, x: Tensor) -> Tensor:
        ids, weights = self.choose(x)
        return x * (weights * ids).sum(dim=-1, keepdim=True) / 8


class TimeFirstInside(Language):
    """Takes ids (B, T), and runs its experts over (T, B, width)."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer.moe(layer.norm(x).transpose(0, 1)).transpose(0, 1)
        return self.head(x)

    def decisions(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        x, both = self.embed(input_ids), []
        for layer in self.layers:
            both.append(layer.moe.choose(layer.norm(x)))
            x = x + layer.moe(layer.norm(x))
        return torch.stack([ids for ids, _ in both], dim=2), torch.stack([weights for _, weights in both], dim=2)


def test_a_model_that_turns_its_tokens_round_inside(tmp_path):
    torch.manual_seed(0)
    model = TimeFirstInside(AxesGateMoE)
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[1, 4:] = False
    ids, weights = model.decisions(tokens())
    with pytest.warns(RecordingStopped), record(model, run="refused", runs_dir=tmp_path) as rec:
        model(tokens())
    assert rec.problem is not None
    assert "3 samples of 7 tokens, the routers received 7 × 3, time first: give batch_first=False" in rec.problem
    with record(model, run="mine", runs_dir=tmp_path, batch_first=False) as rec:
        model(tokens(), attention_mask=keep)
    assert rec.notes == []
    found = recorded(rec.run)
    assert np.array_equal(found[2], tokens()[keep])
    assert np.array_equal(np.sort(found[0]), np.sort(ids[keep]))
    assert np.allclose(np.sort(found[1]), np.sort(weights[keep].detach() / 2.5), atol=0.004)


class TimeFirst(Language):
    """Takes ids (T, B), and goes on so."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = x + layer.moe(layer.norm(x))
        return self.head(x)


@pytest.mark.parametrize("length", [7, 3])
def test_ids_of_a_model_that_runs_time_first_are_turned_also_if_they_are_square(tmp_path, length):
    model = TimeFirst(AxesGateMoE)
    with torch.no_grad(), record(model, run="mine", runs_dir=tmp_path, batch_first=False) as rec:
        model(tokens(3, length).T)
    assert np.array_equal(recorded(rec.run)[2], tokens(3, length).flatten())
    assert ["does not show which axis is time" in note for note in rec.notes] == [True] * (length == 3)


class Adapter(nn.Module):
    """Around a gate, as PEFT puts it there for parameters that are in no Linear."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.base_layer = gate

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.base_layer(x)


def test_the_factor_of_a_gate_inside_an_adapter_is_divided_out(tmp_path):
    model = language(GateMoE)
    for layer in model.layers:
        layer.moe.gate = Adapter(layer.moe.gate)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert rec.run.info()["weight_semantics"]["scale"] == 2.5
    assert np.allclose(recorded(rec.run)[1].sum(axis=-1), 1, atol=0.01)


@pytest.mark.parametrize("moe", [GateMoE, LinearMoE])
def test_an_empty_batch_at_first_says_nothing_of_the_routers(tmp_path, moe):
    model = language(moe)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for batch in (0, 2, 0, 1):
            model(torch.randint(0, VOCABULARY, (batch, 5)))
    assert rec.notes == []
    assert rec.run.row["num_tokens"] == 15
    with pytest.warns(RecordingStopped, match="its batch was empty"), record(model, run="none", runs_dir=tmp_path):
        model(tokens()[:0])
