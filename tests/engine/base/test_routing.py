"""Routing rules against hand-computed cases."""

from __future__ import annotations

import pytest
import torch

from tokenpaths.engine.base.routing import module_counts, route, updated_bias


def test_top1_takes_the_likeliest_module_and_its_plain_probability():
    logits = torch.tensor([[0.0, 2.0, 1.0]])
    decision = route(logits, 1)
    assert decision.module_ids.tolist() == [[1]]
    expected = torch.softmax(logits, -1)[0, 1]
    assert torch.allclose(decision.weights, expected.view(1, 1))


def test_weights_are_not_renormalised():
    decision = route(torch.zeros(1, 4), 2)
    assert torch.allclose(decision.weights, torch.full((1, 2), 0.25))


def test_bias_moves_the_choice_but_not_the_weight():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    bias = torch.tensor([0.0, 0.0, 0.4])
    decision = route(logits, 1, bias)
    assert decision.module_ids.item() == 2
    assert decision.weights.item() == pytest.approx(0.2)


def test_slots_are_ordered_by_weight_not_by_biased_score():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2]]))
    decision = route(logits, 2, torch.tensor([0.0, 0.0, 0.9]))
    assert decision.module_ids.tolist() == [[0, 2]]
    assert decision.weights[0, 0] > decision.weights[0, 1]


def test_gradient_reaches_the_logits_through_the_weights_alone():
    logits = torch.randn(5, 4, requires_grad=True)
    bias = torch.randn(4, requires_grad=True)
    route(logits, 2, bias).weights.sum().backward()
    assert logits.grad.abs().sum() > 0
    assert bias.grad is None


@pytest.mark.parametrize("top_k", [0, 4])
def test_an_impossible_top_k_is_refused(top_k):
    with pytest.raises(ValueError, match="between 1 and 3"):
        route(torch.zeros(1, 3), top_k)


def test_counts_sum_to_tokens_times_k():
    ids = torch.tensor([[0, 2], [2, 1], [2, 0]])
    assert module_counts(ids, 4).tolist() == [2, 1, 3, 0]


IDENTITY = torch.tensor([False, False, True, True])


def bias_after(counts, **changes):
    options = dict(top_k=1, skip_ratio=0.25, skip_speed=0.1) | changes
    return updated_bias(torch.zeros(4), torch.tensor(counts), IDENTITY, **options)


def test_bias_rises_for_identities_alone_while_too_little_is_skipped():
    # 100 tokens, a quarter should be skipped, 10 were.
    assert torch.allclose(bias_after([50, 40, 10, 0]), torch.tensor([0.0, 0.0, 0.1, 0.1]))


def test_bias_falls_when_too_much_is_skipped_and_rests_when_it_is_right():
    assert torch.allclose(bias_after([20, 20, 30, 30]), torch.tensor([0.0, 0.0, -0.1, -0.1]))
    assert torch.allclose(bias_after([50, 25, 20, 5]), torch.zeros(4))


def test_skip_share_counts_slots_when_k_is_two():
    # 50 tokens, 100 slots: 25 skipped slots are exactly a quarter.
    assert torch.allclose(bias_after([40, 35, 15, 10], top_k=2), torch.zeros(4))


def test_the_equation_to_the_letter_asks_for_the_mean_over_modules():
    # r·K·c̄ = 0.25 · 100/4 = 6.25 < 10
    after = bias_after([50, 40, 10, 0], reference="modules")
    assert torch.allclose(after, torch.tensor([0.0, 0.0, -0.1, -0.1]))
