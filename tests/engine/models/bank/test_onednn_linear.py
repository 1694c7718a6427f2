"""Ordered weights: the products of ``nn.Linear``, after every change of the weight too; the step that uses them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F

from tokenpaths.engine.models.bank import dispatch
from tokenpaths.engine.models.bank.bank import grouped_step, naive_step
from tokenpaths.engine.models.bank.dispatch import _pieces, plan_dispatch
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.bank.onednn_linear import MOST_ROWS, Linear, fits, works
from tokenpaths.engine.models.bank.varlen import masked_attention, segment_attention

KINDS = ("transformer", "attention", "mlp", "identity", "transformer")

pytestmark = pytest.mark.skipif(not works(torch.float32), reason="this build of PyTorch has no ordered weights")


def frozen(inputs: int = 24, outputs: int = 40) -> Linear:
    torch.manual_seed(0)
    return Linear(inputs, outputs).requires_grad_(False)


@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (2, 3, 24), (MOST_ROWS, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_a_linear_layer(shape, dtype):
    if not works(dtype):
        pytest.skip("this processor has no such kernel")
    layer, x = frozen().to(dtype), torch.randn(shape).to(dtype)
    assert fits(x, layer.weight)
    near = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight), **near)
    torch.testing.assert_close(layer.gelu(x), F.gelu(F.linear(x, layer.weight)), **near)
    across = torch.randn(24, *shape[:-1]).to(dtype).movedim(0, -1)  # rows that do not lie one behind the other
    torch.testing.assert_close(layer(across), F.linear(across, layer.weight), **near)


def test_the_gradient_of_the_rows_is_that_of_a_linear_layer():
    layer, grads = frozen(), []
    for product in (lambda x: layer.gelu(x), lambda x: F.gelu(F.linear(x, layer.weight))):
        x = torch.randn(5, 24, generator=torch.Generator().manual_seed(1)).requires_grad_()
        product(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


def test_a_changed_weight_is_ordered_anew():
    layer, x = frozen(), torch.randn(3, 24)
    layer(x)
    with torch.no_grad():
        layer.weight.mul_(3)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight))
    layer.load_state_dict({"weight": torch.ones(40, 24)})
    torch.testing.assert_close(layer(x), x.sum(-1, keepdim=True).expand(3, 40))
    layer.weight = torch.nn.Parameter(torch.zeros(40, 24), requires_grad=False)
    assert layer(x).abs().max() == 0


def test_another_weight_is_never_taken_for_the_one_that_had_its_address():
    layer, x = Linear(384, 512).requires_grad_(False), torch.randn(5, 384)
    for _ in range(10):
        layer(x)
        del layer.weight  # its address is free for the next one, of the same shape and as often changed
        layer.weight = torch.nn.Parameter(torch.randn(512, 384), requires_grad=False)
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight), rtol=1e-4, atol=1e-4)


def test_a_fused_optimiser_which_counts_no_change_is_noticed():
    layer, x = Linear(24, 40).requires_grad_(False), torch.randn(3, 24)
    layer(x)
    layer.requires_grad_(True)
    layer(x).square().mean().backward()
    torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True).step()
    layer.requires_grad_(False)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight), rtol=1e-5, atol=1e-5)


def test_weights_that_are_trained_are_not_ordered_and_get_their_gradient():
    layer, x = Linear(24, 40), torch.randn(3, 24)
    assert not fits(x, layer.weight)
    layer.gelu(x).sum().backward()
    assert layer.weight.grad.abs().sum() > 0
    layer.requires_grad_(False)
    with torch.autocast("cpu", torch.bfloat16):
        assert not fits(x, layer.weight)
    assert not fits(torch.randn(MOST_ROWS + 1, 24), layer.weight)


def test_what_was_ordered_in_a_trace_serves_a_dream_and_is_copied_nowhere():
    layer = frozen()
    with torch.inference_mode():
        layer(torch.randn(3, 24))
    x = torch.randn(3, 24, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(3, 24))
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        with torch.no_grad():
            twin.weight.zero_()
        assert twin(x).abs().max() == 0
    assert list(layer.state_dict()) == ["weight"]


def frozen_bank(kinds=KINDS, width: int = 32) -> torch.nn.ModuleList:
    torch.manual_seed(3)
    bank = torch.nn.ModuleList(Block(kind, width, 4, 2 * width) for kind in kinds)
    for parameter in bank.parameters():
        parameter.data.mul_(2)
    return bank.requires_grad_(False)


@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (1, 21), (3, 70), (2, 300)])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_a_step_of_frozen_modules_is_the_naive_one_and_so_is_its_gradient(batch, tokens, top_k, causal):
    bank, made = frozen_bank(), []
    generator = torch.Generator().manual_seed(batch * tokens)
    scores = torch.rand(batch, tokens, 5, generator=generator) + torch.rand(batch, 1, 5, generator=generator)
    weights, ids = scores.softmax(-1).topk(top_k)
    start = torch.randn(batch, tokens, 32, generator=generator)
    for step in (grouped_step, naive_step):
        with torch.inference_mode():
            without = step(bank, start, ids, weights, causal=causal)
        h = start.clone().requires_grad_()
        out = step(bank, h, ids, weights, causal=causal)
        torch.testing.assert_close(out.detach(), without.clone(), rtol=1e-5, atol=1e-5)
        out.square().sum().backward()
        made.append((out.detach(), h.grad))
    (fast, fast_grad), (slow, slow_grad) = made
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fast_grad, slow_grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
def test_one_masked_attention_is_attention_by_segments(causal, monkeypatch):
    bank = frozen_bank()
    ids = torch.randint(5, (3 * 20, 1), generator=torch.Generator().manual_seed(2))
    qkv = torch.randn(80, 96)
    few = plan_dispatch(ids, bank, 3, 20, 4)
    monkeypatch.setattr(dispatch, "MASKED_ROWS", 0)
    many = plan_dispatch(ids, bank, 3, 20, 4)
    assert (few.segments, many.group_E) == ([], None)
    entries = few.token_E.numel()
    masked = masked_attention(qkv[:entries], few.group_E, 4, causal=causal)
    split = segment_attention(qkv[:entries], many.segments, 4, causal=causal)
    attends = torch.tensor([m.attention is not None for m in bank])[ids[few.token_E.clamp(min=0), 0]]
    real = (few.token_E >= 0) & attends
    torch.testing.assert_close(masked[real], split[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "align", "longest"),
    [(1, 4, 256), (256, 4, 256), (257, 4, 256), (1000, 4, 256), (1001, 1, 256), (1024, 32, 256), (700, 1, None)],
)
def test_pieces_are_even_and_leave_nothing_out(rows, align, longest):
    rows = -(-rows // align) * align
    pieces = _pieces(10, 10 + rows, align, longest)
    assert [row for start, end in pieces for row in range(start, end)] == list(range(10, 10 + rows))
    sizes = [end - start for start, end in pieces]
    assert max(sizes) <= (longest or rows)
    assert all(size % align == 0 for size in sizes)
    assert max(sizes) - min(sizes) < len(sizes) * align
