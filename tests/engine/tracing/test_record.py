"""FLOPs and recordings against counting by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tokenpaths.engine.analysis.distribution import margin_and_runner_up
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.routing import route
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.models.family import Traced, compact_decisions, compact_margins, entropy
from tokenpaths.engine.models.flops import module_flops, token_flops
from tokenpaths.engine.tracing.loaded_model import to_host

CONFIG = dict(
    modality="text",
    width=8,
    heads=2,
    mlp_width=16,
    backbone=0,
    steps=2,
    top_k=2,
    transformers=1,
    attentions=1,
    mlps=1,
    identities=1,
    skip_ratio=0.1,
    vocab_size=10,
    context=6,
)


def by_hand(ids, config, valid=None):
    """Token by token, pair by pair."""
    batch, tokens, steps, top_k = ids.shape
    total = np.zeros((batch, tokens))
    for b in range(batch):
        for t in range(tokens):
            if valid is not None and not valid[b, t]:
                continue
            for s in range(steps):
                for k in range(top_k):
                    module = int(ids[b, t, s, k])
                    kind = config.kinds[module]
                    if kind in ("transformer", "attention"):
                        total[b, t] += 2 * 4 * config.width**2
                        for other in range(tokens):
                            seen = other <= t if config.modality == "text" else True
                            there = valid is None or bool(valid[b, other])
                            if seen and there and module in ids[b, other, s]:
                                total[b, t] += 4 * config.width
                    if kind in ("transformer", "mlp"):
                        total[b, t] += 2 * 2 * config.width * config.mlp_width
    return total


@pytest.mark.parametrize("modality", ["text", "vision"])
@pytest.mark.parametrize("padded", [False, True])
def test_flops_equal_a_count_by_hand(modality, padded):
    config = DNAConfig(**(CONFIG | dict(modality=modality, image_size=224)))
    generator = torch.Generator().manual_seed(0)
    ids = torch.rand(3, 6, 2, 4, generator=generator).topk(2, dim=-1).indices
    valid = None
    if padded:
        valid = torch.ones(3, 6, dtype=torch.bool)
        valid[1, 4:] = False
    assert np.allclose(token_flops(ids, config, valid).numpy(), by_hand(ids, config, valid))


def test_module_flops_are_two_a_multiply_add():
    config = DNAConfig(**CONFIG)
    assert module_flops(config, "identity") == 0
    assert module_flops(config, "mlp") == 2 * (8 * 16 + 16 * 8)
    assert module_flops(config, "attention") == 2 * (8 * 24 + 8 * 8)
    assert module_flops(config, "transformer") == module_flops(config, "mlp") + module_flops(config, "attention")


def test_the_module_table_names_every_module():
    rows = DNA(DNAConfig(**CONFIG)).module_table()
    assert [r.name for r in rows] == ["transformer 0", "attention 0", "mlp 0", "identity 0"]
    assert rows[3].num_params == 0
    assert rows[0].num_params == 4 * 64 + 2 * 8 * 16 + 2 * 8


def test_a_recording_keeps_ids_weights_and_entropy():
    torch.manual_seed(0)
    decisions = [route(torch.randn(6, 5), 2) for _ in range(3)]
    ids, weights, entropies = compact_decisions(decisions, 2)
    recording = to_host(Traced(torch.zeros(2, 1), ids, weights, entropies))
    assert recording.module_ids.shape == (2, 3, 3, 2)
    assert recording.module_ids.dtype == torch.uint8
    first = decisions[1]
    assert torch.equal(recording.module_ids[0, :, 1].long(), first.module_ids[:3])
    assert torch.allclose(recording.weights[1, :, 1].float(), first.weights[3:], atol=1e-3)
    entropy = -(first.probs * first.probs.log()).sum(-1)
    assert torch.allclose(recording.gate_entropy[..., 1].flatten().float(), entropy, atol=2e-3)


def test_copies_to_the_host_are_waited_for_where_nothing_tells_of_their_arrival(monkeypatch):
    """As those of Apple GPUs, which were read too early."""
    traced = Traced(torch.zeros(2, 1), *compact_decisions([route(torch.randn(6, 5), 2)], 2))
    asked = []

    def copied(self: torch.Tensor, device: str, *, non_blocking: bool) -> torch.Tensor:
        asked.append(non_blocking)
        return self

    monkeypatch.setattr(torch.Tensor, "to", copied)
    to_host(traced)
    assert asked == [False] * 3


def test_nan_names_the_router():
    good, bad = torch.randn(4, 3), torch.randn(4, 3)
    bad[2, 1] = float("nan")
    compact = compact_decisions([route(good, 1), route(bad, 1)], 1)
    with pytest.raises(UserError, match="router 1 gave NaN"):
        to_host(Traced(torch.zeros(1, 1), *compact))


def test_entropy_is_that_of_the_library_zeros_and_undefined_rows_included():
    probs = torch.rand(50, 7, generator=torch.Generator().manual_seed(3)).softmax(-1)
    probs[0], probs[1, 0] = torch.eye(7)[2], 0.0
    probs[2, 3] = float("nan")
    expected = torch.special.entr(probs).sum(-1)
    torch.testing.assert_close(entropy(probs), expected, equal_nan=True)
    assert entropy(probs)[0] == 0
    assert torch.isnan(entropy(probs)[2])


@pytest.mark.parametrize("biased", [False, True])
def test_margins_are_those_of_the_scores_that_chose(biased):
    generator = torch.Generator().manual_seed(5)
    bias = torch.randn(7, generator=generator) / 5 if biased else None
    allowed = torch.ones(7, dtype=torch.bool)
    allowed[2] = False
    decisions = [
        route(torch.randn(12, 7, generator=generator), 3, bias),
        route(torch.randn(12, 7, generator=generator), 3, bias, allowed=allowed),
        replace(route(torch.randn(12, 7, generator=generator), 3), scores=None),
    ]
    kept = compact_margins(decisions, 2)
    assert kept["margin"].shape == kept["runner_up"].shape == (2, 6, 3)
    for step, decision in enumerate(decisions[:2]):
        scores = decision.probs if bias is None else decision.probs + bias
        scores = scores.masked_fill(~allowed, float("-inf")) if step == 1 else scores
        margin, runner_up = margin_and_runner_up(scores.numpy(), decision.module_ids.numpy())
        np.testing.assert_allclose(kept["margin"][:, :, step].flatten().numpy(), margin, rtol=1e-6)
        assert kept["runner_up"][:, :, step].flatten().tolist() == runner_up.tolist()
        ordered = scores.sort(dim=1, descending=True).values
        np.testing.assert_allclose(margin, (ordered[:, 2] - ordered[:, 3]).numpy(), rtol=1e-6)
    assert torch.isnan(kept["margin"][:, :, 2]).all()


def test_no_margin_where_no_other_module_could_be_chosen():
    allowed = torch.tensor([True, True, False, False])
    decision = route(torch.randn(4, 4), 2, allowed=allowed)
    assert torch.isnan(compact_margins([decision], 1)["margin"]).all()
    every = route(torch.randn(4, 2), 2)
    assert torch.isnan(compact_margins([every], 1)["margin"]).all()
