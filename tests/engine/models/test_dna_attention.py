"""Attention inside modules, beside what the modules themselves compute."""

from __future__ import annotations

import pytest
import torch

from tests.support.checkpoints import tiny_config
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.models.dna_attention import attention_within, head_weights


def tiny(modality: str, **changes: object) -> DNA:
    torch.manual_seed(3)
    model = DNA(tiny_config(modality, **changes)).eval()
    for router in model.routers:
        router.weight.data.mul_(40)
    return model


def inputs_for(modality: str) -> torch.Tensor:
    torch.manual_seed(4)
    return torch.randn(1, 3, 32, 32) if modality == "vision" else torch.randint(0, 300, (1, 16))


@pytest.mark.parametrize("changes", [{}, {"transformers": 0, "attentions": 3, "mlps": 2}, {"top_k": 1}])
@pytest.mark.parametrize("modality", ["vision", "text"])
def test_a_step_is_the_sum_of_what_its_weights_mix(modality: str, changes: dict[str, object]):
    """h after a step, put together one token and one head at a time, is what the model computes."""
    model, inputs = tiny(modality, **changes), inputs_for(modality)
    found, ids_TSK = attention_within(model, inputs)
    assert torch.equal(ids_TSK.to(torch.int64), model.choose(inputs)[0].to(torch.int64))
    with torch.inference_mode():
        h = model.enter(inputs)
        for step in range(model.config.steps):
            h, decision = model.approach(h, step)
            change = torch.zeros_like(h[0])
            for module, block in enumerate(model.bank):
                tokens = [t for t in range(h.shape[1]) if module in ids_TSK[t, step].tolist()]
                if not tokens:
                    continue
                rows, mixed = h[0, tokens], None
                if block.attention is not None:
                    (part,) = [one for one in found if (one.step, one.module) == (step, module)]
                    assert part.tokens.tolist() == tokens
                    heads = head_weights(block.attention, rows, causal=modality == "text")
                    torch.testing.assert_close(part.weights, heads.mean(dim=0))
                    torch.testing.assert_close(part.weights.sum(dim=1), torch.ones(len(tokens)))
                    values = block.attention.project_in(rows).view(len(tokens), 3, model.config.heads, -1)[:, 2]
                    mixed = torch.cat([head @ values[:, n] for n, head in enumerate(heads)], dim=1)
                done = block.finish(rows, mixed)
                for place, token in enumerate(tokens):
                    slot = ids_TSK[token, step].tolist().index(module)
                    change[token] += decision.weights.view(h.shape[1], -1)[token, slot] * done[place]
            after = model.visit(h, decision)
            torch.testing.assert_close(after[0], h[0] + change, atol=1e-4, rtol=1e-4)
            h = after
    assert found, "some module attends"


def test_a_text_does_not_look_ahead():
    found, _ = attention_within(tiny("text"), inputs_for("text"))
    for part in found:
        ahead = part.tokens[None, :] > part.tokens[:, None]
        assert float(part.weights[ahead].abs().sum()) == 0
