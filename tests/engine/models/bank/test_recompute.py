"""Halves of a block that keep less for the backward pass: values and gradients are those of the block itself."""

from __future__ import annotations

import pytest
import torch

from tokenpaths.engine.models.bank import recompute
from tokenpaths.engine.models.bank.bank import grouped_step
from tokenpaths.engine.models.bank.modules import Block


def gradients(module: Block, run) -> list[torch.Tensor]:
    torch.manual_seed(1)
    x, mixed = (torch.randn(9, 32, requires_grad=True) for _ in range(2))
    module.zero_grad()
    out = run(x, mixed)
    (out * torch.randn(out.shape)).sum().backward()
    grads = [p.grad for p in (x, mixed, *module.parameters())]
    return [out.detach(), *(torch.zeros(()) if g is None else g.clone() for g in grads)]


@pytest.mark.parametrize("kind", ["transformer", "attention", "mlp"])
def test_values_and_gradients_are_those_of_the_block(kind):
    torch.manual_seed(0)
    module = Block(kind, 32, 4, 64)
    for parameter in module.parameters():
        parameter.data.add_(0.1 * torch.randn(parameter.shape))
    pairs = [(lambda x, y: recompute.finish(module, x, y), lambda x, y: module.finish(x, y))]
    if module.attention is not None:
        pairs.append(
            (lambda x, _: recompute.project_in(module.attention, x), lambda x, _: module.attention.project_in(x))
        )
    for ours, theirs in pairs:
        for one, two in zip(gradients(module, ours), gradients(module, theirs), strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)


def kept_bytes(modules, h, ids, weights) -> int:
    """Bytes of the storages that a step keeps for its backward pass."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        out = grouped_step(modules, h, ids, weights, causal=False)
    assert out.requires_grad
    return sum(kept.values())


def test_a_step_keeps_less_and_only_while_it_is_trained(monkeypatch):
    modules = torch.nn.ModuleList(Block("transformer", 32, 4, 128) for _ in range(2))
    h, ids = torch.randn(2, 400, 32, requires_grad=True), torch.randint(2, (2, 400, 1))
    weights = torch.rand(2, 400, 1)
    assert recompute.fits_lean(h)
    less = kept_bytes(modules, h, ids, weights)
    monkeypatch.setattr("tokenpaths.engine.models.bank.bank.fits_lean", lambda h: False)
    # Of 2 x 400 rows GELU's 128 numbers and the 32 of each norm need not be kept.
    assert kept_bytes(modules, h, ids, weights) - less > 0.9 * 800 * (128 + 32 + 32) * 4
    with torch.no_grad():
        assert not recompute.fits_lean(h)
    with torch.autocast("cpu", torch.bfloat16):
        assert not recompute.fits_lean(h)
    modules[0].mlp.up.weight.requires_grad_(False)
    assert [recompute.trained(m) for m in modules] == [False, True]
