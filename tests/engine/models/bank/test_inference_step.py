"""The step of frozen modules against the naive one: few entries and many, weights that are transposed or ordered."""

from __future__ import annotations

import pytest
import torch

from tokenpaths.engine.models.bank import dispatch, inference_step, onednn_linear
from tokenpaths.engine.models.bank.bank import grouped_step, naive_step
from tokenpaths.engine.models.bank.modules import Block

KINDS = {
    "everything": ("transformer", "attention", "mlp", "identity", "transformer", "identity"),
    "mlps": ("mlp", "mlp", "identity"),
    "attentions": ("attention", "attention"),
}

pytestmark = pytest.mark.skipif(
    not onednn_linear.works(torch.float32), reason="this build of PyTorch has no ordered weights"
)


@pytest.fixture(params=["few", "masked", "segments"])
def way(request, monkeypatch):
    """How many entries are taken for few: the three ways of ``frozen_step`` on the same numbers."""
    monkeypatch.setattr(inference_step, "MASKED_ROWS", 10_000 if request.param == "few" else 0)
    monkeypatch.setattr(dispatch, "MASKED_ROWS", 0 if request.param == "segments" else 10_000)


@pytest.fixture(params=[0, onednn_linear.SMALL], ids=["ordered", "transposed"])
def weights_kept(request, monkeypatch):
    monkeypatch.setattr(onednn_linear, "SMALL", request.param)


def make_bank(kinds) -> torch.nn.ModuleList:
    torch.manual_seed(3)
    bank = torch.nn.ModuleList(Block(kind, 32, 4, 64) for kind in kinds)
    for parameter in bank.parameters():
        parameter.data.mul_(2).add_(0.1 * torch.randn(parameter.shape))
    return bank.requires_grad_(False)


def choices(batch, tokens, modules, top_k):
    generator = torch.Generator().manual_seed(batch * tokens + top_k)
    scores = torch.rand(batch, tokens, modules, generator=generator)
    scores = scores + torch.rand(batch, 1, modules, generator=generator)
    weights, ids = scores.softmax(-1).topk(top_k)
    return torch.randn(batch, tokens, 32, generator=generator), ids, weights


@pytest.mark.usefixtures("way", "weights_kept")
@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 23), (3, 19)])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_the_step_is_the_naive_one(kinds, batch, tokens, top_k, causal):
    bank = make_bank(KINDS[kinds])
    h, ids, weights = choices(batch, tokens, len(bank), top_k)
    before = h.clone()
    with torch.inference_mode():
        assert inference_step.fits_frozen(bank, h, weights)
        fast = grouped_step(bank, h, ids, weights, causal=causal)
        slow = naive_step(bank, h, ids, weights, causal=causal)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    assert torch.equal(h, before), "nobody's rows are written over"


@pytest.mark.usefixtures("way")
def test_only_identities_change_nothing():
    bank = make_bank(("mlp", "identity", "identity"))
    h = torch.randn(2, 3, 32)
    ids, weights = torch.tensor([1, 2]).expand(2, 3, 2), torch.full((2, 3, 2), 0.4)
    with torch.inference_mode():
        assert torch.equal(grouped_step(bank, h, ids, weights, causal=False), h)


def test_who_wants_a_gradient_or_trains_gets_another_step():
    bank = make_bank(KINDS["everything"])
    h, weights = torch.randn(1, 4, 32), torch.rand(1, 4, 1)
    assert inference_step.fits_frozen(bank, h, weights)
    assert not inference_step.fits_frozen(bank, h.clone().requires_grad_(), weights)
    assert not inference_step.fits_frozen(bank, h, weights.clone().requires_grad_())
    assert not inference_step.fits_frozen(bank, h.bfloat16(), weights)
    with torch.autocast("cpu", torch.bfloat16):
        assert not inference_step.fits_frozen(bank, h, weights)
    assert not inference_step.fits_frozen(make_bank(KINDS["everything"]).requires_grad_(True), h, weights)
    with torch.no_grad():
        assert inference_step.fits_frozen(bank, h.clone().requires_grad_(), weights)


@pytest.mark.parametrize("small", [0, onednn_linear.SMALL])
def test_products_and_gradients_by_a_small_weight(small, monkeypatch):
    monkeypatch.setattr(onednn_linear, "SMALL", small)
    torch.manual_seed(0)
    layer = onednn_linear.Linear(24, 40).requires_grad_(False)
    x = torch.randn(2, 5, 24, requires_grad=True)
    grad = torch.randn(2, 5, 40)
    layer(x).backward(grad)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, grad @ layer.weight, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        layer.weight.mul_(2)
        torch.testing.assert_close(layer.gelu(x), torch.nn.functional.gelu(x @ layer.weight.T), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("way")
def test_what_is_no_number_in_one_sample_stays_there():
    """A slot that goes nowhere reads no other token: 0 times NaN would be NaN."""
    bank = make_bank(KINDS["mlps"])
    h = torch.randn(2, 30, 32)
    h[0] = torch.nan
    ids = torch.stack([torch.zeros(30, 1, dtype=torch.long), torch.full((30, 1), 2)])
    with torch.inference_mode():
        fast = grouped_step(bank, h, ids, torch.ones(2, 30, 1), causal=False)
    torch.testing.assert_close(fast[1], h[1])


def test_a_bank_that_is_trained_in_part_goes_the_way_of_training():
    bank = make_bank(("transformer",) * 3)
    h, ids, weights = choices(2, 40, 3, 2)
    bank[2].requires_grad_(True)
    assert not inference_step.fits_frozen(bank, h, weights)
    grouped_step(bank, h, ids, weights, causal=False).sum().backward()
    assert all(p.grad is not None for p in bank[2].parameters())
