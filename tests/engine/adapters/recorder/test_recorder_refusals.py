"""What the recorder refuses, and in which words; test_recorder_faults.py has what becomes of the training then."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.engine.adapters.recorder.test_recorder import nothing_left, recorded
from tests.support.recorder_models import WIDTH, GateMoE, language, tokens
from tokenpaths.engine.adapters.recorder.recorder import record
from tokenpaths.engine.adapters.recorder.routers.router_search import find_routers
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.topics.overview import list_runs

pytestmark = pytest.mark.filterwarnings("error::tokenpaths.RecordingStopped")


def test_a_model_without_a_router_is_refused_with_what_was_looked_for(tmp_path):
    plain = nn.Sequential(nn.Embedding(4, 8), nn.ModuleDict({"gate_proj": nn.Linear(8, 4)}), nn.Linear(4, 2))
    with pytest.raises(UserError, match="no router was found in Sequential: looked for a Linear or a gate with one"):
        record(plain, run="mine", runs_dir=tmp_path)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 4)
    assert find_routers(encoder) == []
    assert find_routers(nn.Sequential(nn.GLU(), nn.LSTM(8, 8), nn.Conv1d(4, 4, 3))) == []

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Sequential(nn.Linear(4, 4))
            self.router = nn.Identity()

        def forward(self, x):
            return self.router(x) * self.gate(x)

    with pytest.raises(UserError, match="look like routers, but no decision could be read from any .router: "):  # noqa: SIM117
        with record(model := Gated(), run="mine", runs_dir=tmp_path):
            model(torch.randn(2, 3, 4))
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_there_is_not_names_those_that_there_are(tmp_path):
    with pytest.raises(
        TypeError, match=r"has no option 'data_dir'; its options are run, runs_dir, routers, .*, merge$"
    ):
        record(language(layers=1), data_dir=tmp_path)


REFUSED = {
    "every": (dict(every=0), "every is 0, it should be at least 1"),
    "series": (dict(series="a"), "series and iteration belong together"),
    "series name": (dict(series="../a", iteration=1), "is no name of a series"),
    "iteration": (dict(series="a", iteration=-1), "iteration is -1"),
    "scale": (dict(scale=0), "scale is 0, it should be above 0"),
    "pattern": (dict(routers="blocks.*"), "no module is called 'blocks.\\*'; there are"),
    "kind of run": (dict(run=3), "run is 3, it should be text"),
    "kind of top_k": (dict(top_k="2"), "top_k is '2', it should be a whole number"),
    "kind of every": (dict(every=None), "every is None, it should be a whole number"),
    "kind of scale": (dict(scale="2.5"), "scale is '2.5', it should be a number"),
    "kind of routers": (dict(routers=[3]), "routers is \\[3\\], it should be a name such as"),
    "kind of read": (dict(read="topk"), "read is 'topk', it should be a function of"),
    "kind of texts": (dict(token_texts=5), "token_texts is 5, it should be a mapping"),
    "kind of folder": (dict(runs_dir=5), "runs_dir is 5, it should be the path of a folder"),
    "module": (dict(routers=nn.Linear(2, 2)), "no module of this model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_make_no_sense_are_refused_before_anything_runs(tmp_path, case):
    options, sentence = REFUSED[case]
    with pytest.raises(UserError, match=sentence):
        record(language(layers=1), **dict(run="mine", runs_dir=tmp_path) | options)


def test_a_name_that_is_taken_or_none_is_refused_before_anything_runs(tmp_path):
    model = language(layers=1)
    with record(model, run="mine", runs_dir=tmp_path):
        model(tokens())
    for run, sentence in (("mine", "there is a run 'mine' already"), ("../a", "is no run id")):
        with pytest.raises(UserError, match=sentence), record(model, run=run, runs_dir=tmp_path):
            raise AssertionError("the block must not begin")
    with record(model, run="mine", runs_dir=tmp_path, overwrite=True) as rec:
        model(tokens(1, 2))
    assert rec.run.row["num_tokens"] == 2
    with pytest.raises(UserError, match="records once"), rec:
        pass
    with pytest.raises(UserError, match="there is no run yet"):
        _ = record(model, run="b", runs_dir=tmp_path).run


def test_a_folder_that_is_a_file_is_refused_before_anything_runs(tmp_path):
    (file := tmp_path / "runs").write_text("")
    with pytest.raises(UserError, match="runs_dir is '.*runs', which is no folder"):  # noqa: SIM117
        with record(language(layers=1), run="mine", runs_dir=file):
            raise AssertionError("the block must not begin")


def test_one_text_is_no_list_of_texts(tmp_path):
    model = language(layers=1)
    with pytest.raises(UserError, match="texts is 'cat': give a list with one for each sample"):  # noqa: PT012, SIM117
        with record(model, run="mine", runs_dir=tmp_path) as rec:
            rec.batch(texts="cat")
            model(tokens(3, 2))


def test_an_exception_in_the_block_leaves_nothing(tmp_path):
    model = language(layers=1)
    with pytest.raises(KeyboardInterrupt), record(model, run="mine", runs_dir=tmp_path) as rec:  # noqa: PT012
        model(tokens())
        raise KeyboardInterrupt
    assert rec.file is None
    assert nothing_left(tmp_path, model)


class Broken(GateMoE):
    """Fails in one of the ways that gates of strangers fail."""

    def __init__(self, fault: str) -> None:
        super().__init__(scale=1.0)
        self.fault, self.calls = fault, 0
        self.gate.register_forward_hook(self._break)

    def _break(self, module, inputs, output):
        logits, weights, ids = output
        self.calls += 1
        if self.fault == "nan":
            return logits, weights * float("nan"), ids
        if self.fault == "big":
            return logits, weights * 7, ids
        if self.fault == "fewer" and self.calls == 2:
            return logits, weights[:, :1], ids[:, :1]
        return output


FAULTS = {
    "nan": "router layers.0.moe.gate gave NaN or infinite weights",
    "big": "router layers.0.moe.gate gave weights from .* to .*, a run keeps weights in .0, 1.: give scale=",
    "fewer": r"gave .* for 21 tokens, but in the first forward pass ids of 2 values a token at place 2",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_gates_that_break_are_named_and_leave_nothing(tmp_path, fault):
    model = language(Broken, layers=1, fault=fault)
    with pytest.raises(UserError, match=FAULTS[fault]), record(model, run="mine", runs_dir=tmp_path):  # noqa: PT012
        model(tokens())
        model(tokens())
    assert list(tmp_path.iterdir()) == []


def test_a_given_scale_is_divided_out(tmp_path):
    model = language(Broken, layers=1, fault="big")
    with record(model, run="mine", scale=7, runs_dir=tmp_path) as rec:
        model(tokens())
    assert np.allclose(recorded(rec.run)[1].sum(-1), 1, atol=0.005)
    assert rec.run.info()["weight_semantics"]["scale"] == 7


def test_layers_that_do_not_belong_together_are_refused(tmp_path):
    model = language(layers=2)
    full = model.layers[1].forward
    model.layers[1].forward = lambda x: full(x[:, :4])
    sentence = "layers.0.moe.gate saw 21 tokens and layers.1.moe.gate saw 12"
    with pytest.raises(UserError, match=sentence), record(model, run="mine", runs_dir=tmp_path):
        model(tokens())
    model = language(layers=2)
    sentence = "forward pass 1: it called 1 routers, the first one 2: layers.1.moe.gate"
    with pytest.raises(UserError, match=sentence), record(model, run="mine", runs_dir=tmp_path):  # noqa: PT012
        model(tokens())
        model.layers[1].forward = lambda x: x
        model(tokens())
    assert nothing_left(tmp_path, model)


def test_what_is_said_of_a_batch_must_fit_it(tmp_path):
    model = language(layers=1)
    for given, sentence in (
        (dict(texts=["a"]), "1 texts for 3 samples"),
        (dict(labels=["a"] * 4), "4 labels for 3 samples"),
        (dict(input_ids=tokens(3, 6)), "input_ids has shape .3, 6., but the routers saw 3 × 7 tokens"),
        (dict(input_ids=torch.zeros(3, 7)), "input_ids is torch.float32"),
        (dict(mask=torch.ones(3, 5)), "mask has shape .3, 5., it should be .3, 7."),
        (dict(mask=[[1, 2], [1]]), "mask is list, it should be a tensor or nested lists"),
    ):
        with pytest.raises(UserError, match=sentence), record(model, run="mine", runs_dir=tmp_path) as rec:  # noqa: PT012
            rec.batch(**given)
            model(tokens())
    assert list(tmp_path.iterdir()) == []


def test_a_block_without_a_forward_pass_says_what_to_do(tmp_path):
    model = language(layers=1)
    options = dict(run="a", runs_dir=tmp_path)
    with pytest.raises(UserError, match="no forward pass of Language was seen"), record(model, **options):
        pass
    sentence = "called 1 times, but never inside a forward pass of Language"
    with pytest.raises(UserError, match=sentence), record(model, **options):
        model.layers[0](torch.randn(1, 2, WIDTH))
    assert nothing_left(tmp_path, model)
    assert list_runs(tmp_path) == []
