"""Which calls belong to which forward pass, and what must hold in every pass and not in the first one only."""

# ruff: noqa: PT031, SIM117  (a recording is a block of several statements)

from __future__ import annotations

import copy
import io
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.adapters.recorder.test_recorder import assert_same, expected, recorded
from tests.support.recorder_models import WIDTH, GateMoE, Language, LinearMoE, language, tokens
from tokenpaths.engine.adapters.recorder.recorder import record
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingAssumed, RecordingStopped


class Balanced(LinearMoE):
    """Balanced without a loss, as DeepSeek-V3: a bias moves the choice, and begins at 0."""

    def __init__(self) -> None:
        super().__init__(experts=8, top_k=2)
        self.register_buffer("bias", torch.zeros(8))

    def choose(self, x):
        scores = self.gate(x).softmax(dim=-1)
        ids = (scores + self.bias).topk(2, dim=-1).indices
        return ids, scores.gather(-1, ids)


def test_a_bias_that_begins_at_0_stops_the_recording_when_it_moves(tmp_path):
    model = language(Balanced, layers=2)
    sentence = "forward pass 2: the logits of layers.1.moe.gate alone do not say what the model decides"
    with pytest.warns(RecordingStopped, match=sentence), record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
        model(tokens(seed=2))
        model.layers[1].moe.bias.copy_(torch.linspace(-3, 3, 8))
        model(tokens(seed=3))
        model(tokens(seed=4))
    assert not any(module._forward_pre_hooks for module in model.modules())
    model.layers[1].moe.bias.zero_()
    assert_same(rec.run, model, [tokens(), tokens(seed=2)])
    assert "later passes were compared as well" in rec.run.info()["weight_semantics"]["note"]
    assert rec.run.info()["findings"]["notes"] == [f"the recording stopped at {rec.problem}"]


def test_a_bias_that_moves_a_few_choices_is_noted(tmp_path):
    model = language(Balanced, layers=1)
    batch = tokens(8, 64)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(batch)
        model.layers[0].moe.bias.copy_(torch.linspace(-0.003, 0.003, 8))
        model(batch)
    assert rec.problem is None
    assert rec.num_tokens == 2 * 8 * 64
    (note,) = rec.notes
    assert note.startswith("in one forward pass or more the experts were called as the recomputed ids say but for some")


class Dropping(LinearMoE):
    """An expert that is full drops tokens; ``capacity`` is set later."""

    capacity = 10**6

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        ids, _ = self.choose(flat)
        for expert, module in enumerate(self.experts):
            module(flat[(ids == expert).any(-1)][: self.capacity])
        return x


def test_a_later_pass_that_cannot_be_compared_is_called_assumed(tmp_path):
    model = language(Dropping, layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
        model.layers[0].moe.capacity = 3
        with pytest.warns(RecordingAssumed, match="forward pass 1: the experts were called with another number"):
            model(tokens())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(tokens())
    assert rec.num_tokens == 63
    assert rec.notes[-1].endswith("is assumed: that holds for 2 forward passes, the first is number 1")


def test_a_first_pass_that_fails_and_is_tried_again_counts_its_experts_once(tmp_path):
    model = language(layers=2)
    head = model.head
    with warnings.catch_warnings(), record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("error")
        model.head = None
        with pytest.raises(TypeError):
            model(tokens())
        model.head = head
        model(tokens())
    assert_same(rec.run, model, [tokens()])
    assert "each expert was called with as many tokens" in rec.run.info()["weight_semantics"]["note"]


# Copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moe", [LinearMoE, GateMoE])
def test_a_copy_of_the_model_is_not_the_model(tmp_path, moe):
    model = language(moe, layers=2)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
        average = copy.deepcopy(model)
        shallow = copy.copy(model.layers[0].moe.gate)
        for parameter in average.parameters():
            parameter.data.mul_(-1)
        average(tokens(seed=2))
        shallow(torch.randn(3, WIDTH))
        model(tokens(seed=3))
        average(tokens(seed=4))
    average(tokens(seed=5))
    assert_same(rec.run, model, [tokens(), tokens(seed=3)], 2.5 if moe is GateMoE else 1.0)


def test_a_model_is_saved_whole_inside_the_block(tmp_path):
    model = language(layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
        torch.save(model, file := io.BytesIO())
        model(tokens(seed=2))
    assert_same(rec.run, model, [tokens(), tokens(seed=2)])
    assert b"tokenpaths.engine" not in file.getvalue(), "it opens where Tokenpaths is not installed"
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(loaded(tokens()), model(tokens()))


# Layers that come and go ------------------------------------------------------------------------------------------


class Skipping(Language):
    """Leaves out the layers in ``skipped``, as layer drop and warm-ups do."""

    skipped: frozenset[int] = frozenset()

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for i, layer in enumerate(self.layers):
            x = x if i in self.skipped else layer(x)
        return self.head(x)


def test_a_router_that_the_first_pass_left_out_is_said_and_stops_the_recording_when_it_comes(tmp_path):
    torch.manual_seed(0)
    model = Skipping(layers=3)
    model.skipped = frozenset({1})
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        with pytest.warns(RecordingAssumed, match="layers.1.moe.gate .Linear with 4 outputs.* was not called in the"):
            model(tokens())
        model(tokens(seed=2))
        model.skipped = frozenset()
        with pytest.warns(RecordingStopped, match="forward pass 2: layers.1.moe.gate was called, which the first"):
            model(tokens(seed=3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(tokens(seed=4))
        warnings.simplefilter("ignore")  # that the run ends early is said once more
    assert rec.run.row["num_steps"] == 2
    assert rec.run.row["num_tokens"] == 42
    notes = rec.run.info()["findings"]["notes"]
    assert "so the run has no step of it; the recording stops where a later pass calls it. If it was comp" in notes[0]


# Passes at the same time, and inside each other -------------------------------------------------------------------


class Recurrent(Language):
    """Calls itself for all steps but the first."""

    def forward(self, input_ids, times=1):
        if times > 1:
            self(input_ids.flip(1), times=times - 1)
        return super().forward(input_ids)


class Wrapping(Language):
    """Only calls itself where it is told to."""

    def forward(self, input_ids, again=False):
        return self(input_ids) if again else super().forward(input_ids)


def test_a_pass_inside_another_is_a_pass_of_its_own(tmp_path):
    torch.manual_seed(0)
    model = Recurrent(layers=2)
    batch = tokens()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(batch, times=3)
        model(batch)
    assert_same(rec.run, model, [batch, batch.flip(1), batch, batch])

    model = Wrapping(layers=2)
    with record(model, run="wrapped", runs_dir=tmp_path) as rec:
        model(batch, again=True)
        model(batch.flip(1), again=True)
    assert_same(rec.run, model, [batch, batch.flip(1)])


def test_a_call_of_a_router_before_the_pass_inside_belongs_to_the_pass_around_it(tmp_path):
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.moe = LinearMoE()

        def forward(self, x, again=True):
            x = self.moe(x)
            return self(x, again=False) if again else x

    torch.manual_seed(0)
    model, x = Around(), torch.randn(2, 3, WIDTH)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(x)
    once, twice = (model.moe.choose(v.flatten(0, 1))[0].numpy() for v in (x, model.moe(x)))
    assert np.array_equal(recorded(rec.run)[0][:, 0], np.concatenate([twice, once]))


class Waiting(Language):
    """Waits in the middle of a pass until it may go on."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.inside, self.go_on = threading.Event(), threading.Event()

    def forward(self, input_ids):
        if input_ids.shape[0] == 1:
            self.inside.set()
            self.go_on.wait(20)
        return super().forward(input_ids)


def test_passes_of_two_threads_at_once_stop_the_recording(tmp_path):
    torch.manual_seed(0)
    model = Waiting(layers=2)
    ended = []
    with warnings.catch_warnings(record=True) as caught, record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("always")
        model(tokens())
        thread = threading.Thread(target=lambda: ended.append(model(tokens(1, 4)).shape))
        thread.start()
        model.inside.wait(20)
        ended.append(model(tokens(3, 5)).shape)
        model.go_on.set()
        thread.join()
    assert sorted(ended) == [(1, 4, 32), (3, 5, 32)], "the model runs on in both"
    assert "forward pass 2: the model was called from two threads at once" in str(caught[0].message)
    assert_same(rec.run, model, [tokens()])


def test_passes_of_several_threads_one_after_the_other_are_recorded(tmp_path):
    model = language(layers=1)
    batches = [tokens(seed=seed) for seed in range(3)]
    with warnings.catch_warnings(), record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("error")
        for batch in batches:
            thread = threading.Thread(target=model, args=(batch,))
            thread.start()
            thread.join()
    assert_same(rec.run, model, batches)


def test_a_pass_that_fails_leaves_none_open(tmp_path):
    model = language(layers=1)
    with warnings.catch_warnings(), record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("error")
        with pytest.raises(IndexError):
            model(tokens() + 1000)
        thread = threading.Thread(target=model, args=(tokens(),))
        thread.start()
        thread.join()
        model(tokens(seed=2))
    assert np.array_equal(recorded(rec.run)[0], expected(model, [tokens(), tokens(seed=2)])[0])


class Wrapper(nn.Module):
    """A model in a module of another framework, whose own methods call what is inside."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = language(layers=2)

    def forward(self, input_ids):
        return self.inner(input_ids)

    def generate(self, input_ids):
        return self.inner(input_ids)


class Tuner(nn.Module):
    """Calls the forward of the model inside by itself, so that none of its hooks runs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.peft_config = model, {}

    def forward(self, *args, **kwargs):
        return self.model.forward(*args, **kwargs)


class Adapter(nn.Module):
    """As those of PEFT."""

    def __init__(self) -> None:
        super().__init__()
        self.base_model, self.peft_config = Tuner(language(layers=2)), {}

    @property
    def inner(self):
        return self.base_model.model

    def get_base_model(self):
        return self.base_model.model

    def forward(self, **kwargs):
        return self.base_model(**kwargs)

    def generate(self, input_ids):
        return self.inner(input_ids)


class WithHead(Wrapper):
    """As those of TRL."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_model, self.v_head = self.inner, nn.Linear(WIDTH, 1)


def test_calls_outside_of_a_pass_are_warned_of_at_once_and_noted(tmp_path):
    model = Wrapper()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
        with pytest.warns(
            RecordingAssumed, match="inner.layers.0.moe.gate was called outside of a forward pass"
        ) as said:
            model.generate(tokens())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model.generate(tokens())
        assert len(said) == 1
    assert_same(rec.run, model.inner, [tokens()])
    (note,) = rec.notes
    assert note == (
        "4 calls of routers outside of a forward pass of Wrapper are not in the run: record the module that is called"
    )
    assert rec.run.info()["findings"]["notes"] == [note]


def test_a_forward_that_is_called_by_itself_is_warned_of_at_once(tmp_path):
    model = language(layers=1)
    stopped = pytest.warns(RecordingStopped, match="never inside a forward pass of Language")
    with stopped, record(model, run="mine", runs_dir=tmp_path):
        with pytest.warns(RecordingAssumed, match=r"not as model\.forward"):
            model.forward(tokens())


def test_passes_that_are_left_out_on_purpose_are_not_outside(tmp_path):
    model = language(layers=1, checkpointed=True)
    with warnings.catch_warnings(), record(model, run="mine", every=2, runs_dir=tmp_path) as rec:
        warnings.simplefilter("error", RecordingAssumed)
        for _ in range(3):
            x = model.embed(tokens()).detach().requires_grad_()
            model.embed.forward = lambda ids, x=x: x
            model(tokens()).sum().backward()
    assert rec.notes == []


@pytest.mark.parametrize("kind", [Adapter, WithHead])
def test_the_model_inside_an_adapter_or_beside_a_head_is_recorded_however_it_is_called(tmp_path, kind):
    model = kind()
    with warnings.catch_warnings(), record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("error")
        model(input_ids=tokens())
        model.generate(tokens(seed=2))
        model(input_ids=tokens(seed=3))
    assert_same(rec.run, model.inner, [tokens(), tokens(seed=2), tokens(seed=3)])
    assert rec.routers[0].name == "layers.0.moe.gate"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class OnPretrained(nn.Module):
    """A mixture of its own behind a model that was trained before."""

    def __init__(self) -> None:
        super().__init__()
        self.pretrained_model, self.moe = nn.Embedding(32, WIDTH), LinearMoE()

    def forward(self, input_ids):
        return self.moe(self.pretrained_model(input_ids))


class WithBase(OnPretrained):
    def get_base_model(self):
        return self.pretrained_model


@pytest.mark.parametrize("kind", [OnPretrained, WithBase])
def test_a_mixture_beside_a_pretrained_model_is_recorded(tmp_path, kind):
    torch.manual_seed(0)
    model = kind()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens())
    assert [router.name for router in rec.routers] == ["moe.gate"]
    assert rec.num_tokens == 21
