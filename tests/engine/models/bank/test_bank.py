"""The fast path against its naive twin, and against the equation itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tokenpaths.engine.models.bank import dispatch
from tokenpaths.engine.models.bank.bank import grouped_step, naive_step
from tokenpaths.engine.models.bank.dispatch import plan_dispatch
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.dna import DNA, DNAConfig

KINDS = {
    "transformers": ["transformer"] * 5,
    "halves": ["attention", "attention", "mlp", "mlp"],
    "everything": ["transformer", "attention", "mlp", "identity", "identity", "transformer"],
    "mlps": ["mlp"] * 4,
}


@pytest.fixture(params=[0, 256], ids=["segments", "masked"], autouse=True)
def attention(request, monkeypatch):
    """Both ways to attend: in buckets of segments, and in one call where entries are few."""
    monkeypatch.setattr(dispatch, "MASKED_ROWS", request.param)


def make_bank(kinds, width=32, heads=4) -> nn.ModuleList:
    torch.manual_seed(3)
    bank = nn.ModuleList(Block(kind, width, heads, 2 * width) for kind in kinds)
    for parameter in bank.parameters():
        parameter.data.mul_(2)
    return bank


def random_routing(batch, tokens, modules, top_k, how, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(batch, tokens, modules, generator=generator)
    if how == "skewed":  # every sample prefers a few modules
        scores = scores + 2 * torch.rand(batch, 1, modules, generator=generator).pow(4)
    if how == "one":
        scores[..., 0] += 10
    weights, ids = scores.softmax(-1).topk(top_k, dim=-1)
    return ids, weights


def run(step, bank, h, ids, weights, causal):
    h = h.clone().requires_grad_(True)
    weights = weights.clone().requires_grad_(True)
    bank.zero_grad()
    out = step(bank, h, ids, weights, causal=causal)
    out.square().sum().backward()
    gradients = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in bank.parameters()]
    return out.detach(), h.grad, weights.grad, gradients


@pytest.mark.parametrize("how", ["uniform", "skewed", "one"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("kinds", KINDS)
def test_grouped_equals_naive_forward_and_backward(kinds, top_k, causal, how):
    bank = make_bank(KINDS[kinds])
    torch.manual_seed(1)
    h = torch.randn(3, 21, 32)
    ids, weights = random_routing(3, 21, len(bank), top_k, how)
    fast = run(grouped_step, bank, h, ids, weights, causal)
    slow = run(naive_step, bank, h, ids, weights, causal)
    for one, two in zip(fast[:3], slow[:3], strict=True):
        scale = max(1.0, float(two.abs().max()))
        assert (one - two).abs().max() / scale < 1e-5
    for one, two in zip(fast[3], slow[3], strict=True):
        scale = max(1.0, float(two.abs().max()))
        assert (one - two).abs().max() / scale < 1e-5


def test_a_token_attends_only_to_tokens_of_its_sample_at_its_module():
    bank = make_bank(["transformer"] * 2)
    torch.manual_seed(2)
    h = torch.randn(2, 6, 32)
    ids = torch.tensor([[0, 0, 1, 1, 0, 1], [1, 1, 1, 0, 0, 0]]).unsqueeze(-1)
    weights = torch.full((2, 6, 1), 0.5)
    before = grouped_step(bank, h, ids, weights, causal=False)
    changed = h.clone()
    changed[0, 0] += torch.randn(32)  # token 0 of sample 0 goes to module 0
    after = grouped_step(bank, changed, ids, weights, causal=False)
    moved = (after - before).abs().amax(-1) > 1e-6
    assert moved.tolist() == [[True, True, False, False, True, False], [False] * 6]


def test_causal_attention_never_looks_ahead():
    bank = make_bank(["transformer"] * 2)
    torch.manual_seed(2)
    h = torch.randn(1, 8, 32)
    ids = torch.tensor([0, 1, 0, 0, 1, 0, 1, 0]).view(1, 8, 1)
    weights = torch.full((1, 8, 1), 0.5)
    before = grouped_step(bank, h, ids, weights, causal=True)
    changed = h.clone()
    changed[0, 3] += torch.randn(32)
    moved = (grouped_step(bank, changed, ids, weights, causal=True) - before).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [False, False, False, True, False, True, False, True]


def test_equation_three_by_hand_for_an_mlp_and_an_identity():
    bank = make_bank(["mlp", "identity"])
    torch.manual_seed(4)
    h = torch.randn(1, 1, 32)
    ids, weights = torch.tensor([[[0, 1]]]), torch.tensor([[[0.6, 0.3]]])
    module_output = h + bank[0].mlp(h)
    expected = h + 0.6 * (module_output - h) + 0.3 * (h - h)
    assert torch.allclose(grouped_step(bank, h, ids, weights, causal=False), expected, atol=1e-6)


def test_only_identities_chosen_changes_nothing():
    bank = make_bank(["mlp", "identity", "identity"])
    h = torch.randn(2, 3, 32)
    ids = torch.tensor([1, 2]).expand(2, 3, 2)
    weights = torch.full((2, 3, 2), 0.4)
    assert torch.equal(grouped_step(bank, h, ids, weights, causal=False), h)
    assert torch.equal(naive_step(bank, h, ids, weights, causal=False), h)


@pytest.mark.parametrize("align", [1, 8, 32])
def test_dispatch_puts_every_working_slot_in_its_modules_slice(align):
    bank = make_bank(KINDS["everything"])
    ids, _ = random_routing(4, 9, len(bank), 2, "uniform")
    flat = ids.reshape(36, 2)
    plan = plan_dispatch(flat, bank, 4, 9, align)
    module_of = torch.full((plan.token_E.numel(),), -1)
    for module, start, end in plan.rows:
        assert (end - start) % align == 0
        module_of[start:end] = module
    for token in range(36):
        for slot in range(2):
            entry = int(plan.entry_NK[token, slot])
            if bank[int(flat[token, slot])].kind == "identity":
                assert entry == -1
            else:
                assert module_of[entry] == flat[token, slot]
                assert plan.token_E[entry] == token
                assert plan.slot_E[entry] == token * 2 + slot
    assert int((plan.token_E >= 0).sum()) == int((plan.entry_NK >= 0).sum())


def test_bfloat16_rows_are_padded_without_changing_the_result():
    """Autocast pads slices to 32 rows on a CPU; the routed step stays the naive one, to bfloat16."""
    bank = make_bank(KINDS["everything"])
    torch.manual_seed(1)
    h = torch.randn(3, 21, 32)
    ids, weights = random_routing(3, 21, len(bank), 2, "uniform")
    exact = run(naive_step, bank, h, ids, weights, True)
    with torch.autocast("cpu", torch.bfloat16):
        fast = run(grouped_step, bank, h, ids, weights, True)
    assert (exact[0] - fast[0]).norm() / exact[0].norm() < 0.02
    for one, two in zip(exact[3], fast[3], strict=True):
        assert (one - two).norm() <= 0.05 * one.norm() + 1e-3


@pytest.mark.parametrize("modality", ["vision", "text"])
def test_a_whole_model_agrees_and_feeds_its_routers(modality):
    config = DNAConfig(
        modality=modality,
        width=32,
        heads=4,
        mlp_width=64,
        backbone=1,
        steps=3,
        top_k=2,
        transformers=3,
        attentions=1,
        mlps=1,
        identities=1,
        skip_ratio=0.25,
        skip_speed=0.01,
        image_size=32,
        patch_size=8,
        num_classes=5,
        vocab_size=40,
        context=20,
    )
    torch.manual_seed(0)
    model = DNA(config)
    for parameter in model.parameters():
        parameter.data.mul_(3)
    if modality == "vision":
        inputs, targets = torch.randn(4, 3, 32, 32), torch.randint(5, (4,))
    else:
        inputs, targets = torch.randint(40, (3, 20)), torch.randint(40, (3, 20))
    results = []
    for execution in ("grouped", "naive"):
        model.execution = execution
        model.zero_grad()
        loss, decisions = model.training_loss(inputs, targets)
        loss.backward()
        gradients = [p.grad.clone() if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]
        results.append((loss.detach(), model(inputs).logits.detach(), gradients, decisions))
    (loss1, logits1, grads1, decisions1), (loss2, logits2, grads2, _) = results
    assert torch.allclose(loss1, loss2, atol=1e-5)
    assert torch.allclose(logits1, logits2, atol=1e-5)
    assert all((a - b).abs().max() < 1e-5 for a, b in zip(grads1, grads2, strict=True))
    assert all(router.weight.grad.abs().sum() > 0 for router in model.routers)
    assert len(decisions1) == 3
