"""A recording that goes wrong: the model runs on, the passes before are kept, and leaving the block says why."""

# ruff: noqa: PT031, SIM117  (a recording is a block of several statements)

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import tokenpaths
from tests.engine.adapters.recorder.test_recorder import assert_same, expected, nothing_left, recorded
from tests.support.recorder_models import WIDTH, Expert, Language, LinearMoE, TopKGate, language, tokens
from tokenpaths.engine.adapters.recorder.recorder import record
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingAssumed, RecordingStopped
from tokenpaths.engine.base.errors import UserError


class Spoilt(TopKGate):
    """A gate of ids and weights whose ids ``spoil`` changes from its second call on."""

    def __init__(self, experts: int, spoil) -> None:
        super().__init__(experts, 2, scale=1.0)
        self.calls, self.spoil = 0, spoil

    def forward(self, x):
        logits, weights, ids = super().forward(x)
        self.calls += 1
        if self.calls == 1:
            return logits, weights, ids
        return logits, weights, self.spoil(ids.clone())


class Unused(nn.Module):
    """Asks its gate and uses none of what it says, so that nothing else can break."""

    def __init__(self, gate: nn.Module, experts: int) -> None:
        super().__init__()
        self.gate = gate
        self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(experts))

    def forward(self, x):
        self.gate(x.reshape(-1, WIDTH))
        return x


def with_gate(gate: nn.Module, experts: int) -> Language:
    return language(lambda: Unused(gate, experts), layers=1)


def set_first(value: int):
    def spoil(ids):
        ids[3, 1] = value
        return ids

    return spoil


@pytest.mark.parametrize("experts", [256, 300, 8])
@pytest.mark.parametrize(("value", "reach"), [(-1, "-1 to"), (65_541, "to 65541")])
def test_ids_that_are_none_are_never_stored_as_others(tmp_path, experts, value, reach):
    model = with_gate(Spoilt(experts, set_first(value)), experts)
    with pytest.warns(RecordingStopped) as caught, record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
        out = model(tokens())
        model(tokens())
    assert out.shape == (3, 7, 32), "the model runs on"
    said = str(caught[0].message)
    assert said.startswith("recording 'mine' stopped at forward pass 1: router layers.0.moe.gate gave ids from ")
    assert reach in said
    assert f"for 1 tokens, it has the experts 0 … {experts - 1}" in said
    # What was recorded before is a run, and says that it ended early.
    assert len(caught) == 2
    assert str(caught[1].message).startswith("run 'mine' holds 21 tokens, recorded before forward pass 1: router")
    assert rec.run.row["num_tokens"] == 21
    assert rec.problem == str(caught[1].message).partition("before ")[2]
    assert rec.run.info()["findings"]["notes"] == [f"the recording stopped at {rec.problem}"]


def test_ids_that_are_none_on_padding_are_left_out_with_it(tmp_path):
    model = with_gate(Spoilt(256, set_first(-1)), 256)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[0, 3] = False  # row 3
    with warnings.catch_warnings(), record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("error")
        model(tokens())
        model(tokens(), attention_mask=mask)
    assert rec.run.row["num_tokens"] == 21 + 20


def test_a_chosen_expert_twice_stops_at_its_pass(tmp_path):
    def same(ids):
        ids[3, 1] = ids[3, 0]
        return ids

    model = with_gate(Spoilt(8, same), 8)
    with pytest.warns(RecordingStopped, match="forward pass 1: .* twice"):
        with record(model, run="mine", runs_dir=tmp_path) as rec:
            model(tokens())
            model(tokens())
    assert rec.run.row["num_tokens"] == 21


class Ids(nn.Module):
    """Ids and equal weights, nothing that says how many experts there are; later passes use more of them."""

    def __init__(self) -> None:
        super().__init__()
        self.highest = 4

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        first = torch.arange(len(flat)) % (self.highest - 1)
        self.highest = 8
        return torch.stack([first, first + 1], dim=1), torch.full((len(flat), 2), 0.5)


def test_a_number_of_experts_that_is_not_known_is_asked_for_at_the_first_pass(tmp_path):
    model = language(lambda: nn.ModuleDict({"gate": Ids()}), layers=1)
    model.layers[0].moe.forward = lambda x: (model.layers[0].moe.gate(x), x)[1]
    with pytest.warns(RecordingStopped) as caught, record(model, run="mine", runs_dir=tmp_path, top_k=2) as rec:
        model(tokens())
        assert len(caught) == 1, "it is said at the first pass, not after hours"
        model(tokens())
    assert "it gives ids up to 3 in the first forward pass, but it cannot be told of how many experts" in str(
        caught[0].message
    )
    assert str(caught[1].message).startswith("there is no run 'mine': forward pass 0: ")
    assert rec.file is None
    with pytest.raises(UserError, match="there is no run: forward pass 0: .*give num_experts="):
        _ = rec.run
    assert nothing_left(tmp_path, model)
    with record(model, run="mine", runs_dir=tmp_path, num_experts=8) as rec:
        model(tokens())
        model(tokens())
    assert rec.run.row["num_modules"] == 8
    assert recorded(rec.run)[0].max() == 7


def test_a_training_ends_where_it_would_have_ended_whatever_happens_to_its_recording(tmp_path):
    def train(recorder) -> list[torch.Tensor]:
        model = language(layers=2)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        with recorder(model) if recorder else warnings.catch_warnings():
            for seed in range(3):
                model(tokens(seed=seed)).square().mean().backward()
                optimiser.step()
                optimiser.zero_grad()
        return list(model.parameters())

    def read(module, inputs, output):
        raise ZeroDivisionError("a mistake of the caller")

    with pytest.warns(RecordingStopped, match="forward pass 0: ZeroDivisionError: a mistake of the caller"):
        spoilt = train(lambda model: record(model, run="mine", runs_dir=tmp_path, read=read))
    assert all(torch.equal(a, b) for a, b in zip(train(None), spoilt, strict=True))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_fails_leaves_no_run_and_the_training_goes_on(tmp_path, monkeypatch):
    from tokenpaths.engine.store.write.writer import RunWriter

    model = language(layers=1)
    monkeypatch.setattr(RunWriter, "seal", lambda self: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.warns(RecordingStopped, match="there is no run 'mine': OSError.*No space left"):
        with record(model, run="mine", runs_dir=tmp_path) as rec:
            model(tokens())
    assert rec.file is None
    assert nothing_left(tmp_path, model)


def test_who_wants_an_error_says_so_as_of_every_warning(tmp_path):
    model = language(layers=1)
    with warnings.catch_warnings(), pytest.raises(UserError, match="1 texts for 3 samples"):  # noqa: PT012
        warnings.simplefilter("error", tokenpaths.RecordingStopped)
        with record(model, run="mine", runs_dir=tmp_path) as rec:
            rec.batch(texts=["one"])
            model(tokens())
    assert nothing_left(tmp_path, model)


# Recomputed decisions ---------------------------------------------------------------------------------------------


class Biased(LinearMoE):
    """A router as people write it by hand: sigmoids, and a bias that enters the choice but not the weights."""

    def __init__(self, calls_experts: bool, bias: float = 3.0) -> None:
        super().__init__(experts=8, top_k=2)
        self.calls_experts = calls_experts
        self.register_buffer("bias", torch.linspace(-bias, bias, 8))

    def choose(self, x):
        scores = self.gate(x).sigmoid()
        ids = (scores + self.bias).topk(2, dim=-1).indices
        return ids, scores.gather(-1, ids)

    def forward(self, x):
        return super().forward(x) if self.calls_experts else x + 0 * self.choose(x.reshape(-1, WIDTH))[1].sum()


def test_a_choice_that_is_not_the_models_own_is_refused_where_its_experts_show_it(tmp_path):
    model = language(Biased, layers=1, calls_experts=True)
    sentence = "the logits of layers.0.moe.gate alone do not say what the model decides: their top-k would send"
    with pytest.warns(RecordingStopped, match=sentence), record(model, run="mine", runs_dir=tmp_path):
        model(tokens())
    assert list(tmp_path.iterdir()) == []

    def read(module, inputs, output):
        ids = (output.sigmoid() + model.layers[0].moe.bias).topk(2, dim=-1).indices
        return ids, output.sigmoid().gather(-1, ids)

    with record(model, run="mine", runs_dir=tmp_path, read=read) as rec:
        model(tokens())
    assert_same(rec.run, model, [tokens()])


def test_a_choice_that_cannot_be_checked_is_called_assumed(tmp_path):
    model = language(Biased, layers=2, calls_experts=False)
    with pytest.warns(RecordingAssumed, match="layers.0.moe.gate and 1 more: the choice is recomputed as the top 2"):
        with record(model, run="mine", runs_dir=tmp_path) as rec:
            model(tokens())
    semantics = rec.run.info()["weight_semantics"]
    assert [semantics[name] for name in ("score_function", "order", "renormalised", "bias")] == [
        "unknown",
        "unknown",
        None,
        None,
    ]
    assert "that these are the ids that the model uses is assumed" in semantics["note"]
    assert rec.run.info()["findings"]["notes"] == rec.notes
    assert (recorded(rec.run)[0] != expected(model, [tokens()])[0]).any(), "and it is wrong here"


def test_a_choice_that_agrees_with_the_calls_of_the_experts_says_so_and_no_more(tmp_path):
    model = language(Biased, layers=2, calls_experts=True, bias=0.0)
    with warnings.catch_warnings(), record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("error")
        model(tokens())
    semantics = rec.run.info()["weight_semantics"]
    assert "each expert was called with as many tokens as these ids say" in semantics["note"]
    # The ids are right; that these weights are sigmoids cannot be seen from there.
    assert (semantics["score_function"], semantics["renormalised"]) == ("unknown", None)
    assert np.array_equal(np.sort(recorded(rec.run)[0]), np.sort(expected(model, [tokens()])[0]))


def test_one_bank_of_experts_behind_several_routers_is_compared_as_a_whole(tmp_path):
    class Bank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.routers = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(2))
            self.experts = nn.ModuleList(Expert() for _ in range(4))
            self.top_k = 2

        def forward(self, x):
            for router in self.routers:
                ids = router(x).topk(2, dim=-1).indices
                for e, expert in enumerate(self.experts):
                    expert(x[(ids == e).any(-1)])
            return x

    torch.manual_seed(0)
    model = Bank()
    with warnings.catch_warnings(), record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("error")
        model(torch.randn(10, WIDTH))
    assert rec.run.row["num_steps"] == 2
    assert "each expert was called" in rec.run.info()["weight_semantics"]["note"]


# Masks ------------------------------------------------------------------------------------------------------------

KEEP = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]])
MASKS = {
    "integers": KEEP,
    "booleans": KEEP.bool(),
    "floats": KEEP.float(),
    "added, infinite": torch.where(KEEP == 1, 0.0, float("-inf")),
    "added, finite": torch.where(KEEP == 1, 0.0, torch.finfo(torch.float32).min),
    "added, bfloat16": torch.where(KEEP == 1, 0.0, -10_000.0).bfloat16(),
}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("by_place", [False, True])
def test_every_kind_of_mask_leaves_the_same_tokens_out(tmp_path, kind, by_place):
    model, batch, mask = language(layers=1), tokens(3, 6), MASKS[kind]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(batch, mask) if by_place else model(batch, attention_mask=mask)
    assert rec.notes == []
    assert np.array_equal(recorded(rec.run)[2], batch[KEEP.bool()].numpy())


def test_ids_by_their_name_wherever_they_stand(tmp_path):
    class Swapped(Language):
        def forward(self, attention_mask, input_ids):
            return super().forward(input_ids)

    torch.manual_seed(0)
    model, batch = Swapped(layers=1), tokens(3, 6)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(KEEP, batch)
    assert np.array_equal(recorded(rec.run)[2], batch[KEEP.bool()].numpy())

    class Mapped(Language):
        def forward(self, inputs):
            return super().forward(inputs["input_ids"])

    model = Mapped(layers=1)
    with record(model, run="mapped", runs_dir=tmp_path) as rec:
        model({"input_ids": batch, "attention_mask": KEEP})
    assert np.array_equal(recorded(rec.run)[2], batch[KEEP.bool()].numpy())


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        (torch.zeros(3, 6), "it is a float mask of zeros"),
        (torch.full((3, 6), 2), "it holds values from 2 to 2"),
        (torch.linspace(-1, 1, 18).view(3, 6), "it holds values from -1 to 1"),
        (torch.full((3, 6), float("nan")), "it holds values from nan to nan"),
    ],
)
def test_a_mask_that_could_mean_either_is_not_guessed_at(tmp_path, mask, why):
    model, batch = language(layers=1), tokens(3, 6)
    with record(model, run="found", runs_dir=tmp_path) as rec:
        model(batch, mask)
    assert rec.run.row["num_tokens"] == 18
    assert len(rec.notes) == 1
    assert rec.notes[0].startswith(f"the model's attention_mask cannot be read: {why}")
    assert rec.run.info()["findings"]["notes"] == rec.notes
    with pytest.warns(RecordingStopped, match=f"mask cannot be read: {why}"):
        with record(model, run="given", runs_dir=tmp_path) as rec:
            rec.batch(mask=mask)
            model(batch)


def test_all_tokens_masked_is_not_called_no_pass(tmp_path):
    model = language(layers=1)
    with pytest.warns(RecordingStopped, match="the mask left out every token of the 2 forward passes"):
        with record(model, run="mine", runs_dir=tmp_path):
            for _ in range(2):
                model(tokens(3, 6), attention_mask=torch.zeros(3, 6, dtype=torch.bool))
    with pytest.warns(RecordingStopped, match="Language was called 1 times, but no pass that was to be recorded"):
        with record(model, run="mine", runs_dir=tmp_path):
            with pytest.raises(IndexError):
                model(tokens() + 1000)
    assert json.dumps([p.name for p in tmp_path.iterdir()]) == "[]"
