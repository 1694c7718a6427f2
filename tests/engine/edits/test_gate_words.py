"""Logit attribution and probabilities of a word: against the model's own logits, restored removals and naive loops."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.engine.analysis.test_directions import rows, small
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.gate_words import first_order, logit_parts, word_chances
from tokenpaths.engine.models.directional import Directional
from tokenpaths.engine.models.directional_gates import FULL, OFF, GateEdit, Interventions

WORD, POSITION = 7, 5


def text() -> Tensor:
    return rows(1, 11)[0]


def logit_of(model: Directional, act: Interventions | None = None, *, centred: bool = False) -> float:
    logits = model(text()[None], None, act).logits[0, POSITION].double()
    return float(logits[WORD] - (logits.mean() if centred else 0))


@pytest.mark.parametrize("pooling", ["sequence", "prefix"])
@pytest.mark.parametrize("centred", [True, False])
def test_the_parts_add_up_to_the_models_logit(pooling: str, centred: bool) -> None:
    model = small(pooling=pooling)
    parts = logit_parts(model, text(), POSITION, WORD, centred=centred)
    assert parts.removed.shape == (2, 3, 2)
    total = parts.embedding + float(parts.heads.sum() + parts.removed.sum() + parts.mlps.sum())
    assert parts.logit == pytest.approx(logit_of(model, centred=centred), abs=1e-4)
    assert total == pytest.approx(parts.logit, abs=1e-4)
    assert float(parts.removed.abs().max()) > 1e-3
    gates = model(text()[None]).gates[0]
    assert torch.equal(parts.gates, gates[POSITION if pooling == "prefix" else 0])


def held_logit(model: Directional, h: Tensor, scale_of: Tensor) -> float:
    """The logit of residual stream ``h`` with the final norm's scale held at that of ``scale_of``."""
    scale = (scale_of.var(correction=0) + model.norm.eps).sqrt()
    return float((h - h.mean()) / scale * model.norm.weight @ model.unembedding[WORD])


@pytest.mark.parametrize("pooling", ["sequence", "prefix"])
def test_in_the_last_layer_each_removal_is_exactly_what_leaving_it_out_changes(pooling: str) -> None:
    """With nothing behind it but the norm at its own scale: the last layer's perceptron is silenced."""
    model = small(pooling=pooling)
    torch.nn.init.zeros_(model.layers[-1].mlp.down.weight)
    parts = logit_parts(model, text(), POSITION, WORD, centred=False)
    h = model.run_trunk(text()[None])[0][0, POSITION]
    for head in range(3):
        for k in range(2):
            restored = Interventions((GateEdit(OFF, 1, head, k),))
            without = model.run_trunk(text()[None], None, restored)[0][0, POSITION]
            change = held_logit(model, h, h) - held_logit(model, without, h)
            assert float(parts.removed[1, head, k]) == pytest.approx(change, abs=2e-5)


@pytest.mark.parametrize("pooling", ["sequence", "prefix"])
def test_first_order_is_the_slope_of_the_logit_along_the_gates(pooling: str) -> None:
    model = small(pooling=pooling).double()
    found = first_order(model, text(), POSITION, WORD)
    gates, step = model(text()[None]).gates, 3e-3  # gates are float32 in any model
    for place in ((0, 1, 0), (0, 2, 1), (1, 0, 1)):
        layer, head, k = place
        ends = []
        for sign in (-1, 1):
            moved = gates.clone()
            moved[:, :, layer, head, k] *= 1 + sign * step
            ends.append(logit_of(model, Interventions.swapped(moved), centred=True))
        assert float(found[place]) == pytest.approx((ends[1] - ends[0]) / (2 * step), rel=1e-3, abs=1e-6)


def test_probabilities_are_the_models_own_under_each_condition() -> None:
    model = small()
    acts = {"as trained": Interventions(), "off": Interventions.everywhere(OFF), "full": Interventions.everywhere(FULL)}
    acts["another's"] = Interventions.swapped(model(rows(1, 9, seed=3)).gates)
    chances = word_chances(model, text(), POSITION, WORD, acts)
    assert [chance.name for chance in chances] == list(acts)
    assert len({round(chance.probability, 6) for chance in chances}) == 4
    for chance, act in zip(chances, acts.values(), strict=True):
        logits = model(text()[None], None, act).logits[0, POSITION]
        shares = [float(value) / float(logits.exp().sum()) for value in logits.exp()]
        assert chance.probability == pytest.approx(shares[WORD], rel=1e-4)
        assert chance.rank == 1 + sum(share > shares[WORD] for share in shares)
        assert chance.best_probability == pytest.approx(max(shares), rel=1e-4)
        assert shares[chance.best] == max(shares)


def test_what_the_text_or_the_vocabulary_lacks_is_refused() -> None:
    model = small()
    for position, word, field in ((11, WORD, "position"), (-1, WORD, "position"), (0, 31, "word")):
        with pytest.raises(UserError) as error:
            logit_parts(model, text(), position, word)
        assert error.value.field == field
    twin = small(directions=0)
    with pytest.raises(UserError, match="unrouted twin removes nothing"):
        word_chances(twin, text(), 0, WORD, {})
