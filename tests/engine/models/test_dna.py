"""The model: every configuration of the paper, its parameter counts, its bias, its dense twin."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from tests.support.checkpoints import tiny_config
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.models.losses import chunk_rows, linear_cross_entropy

VISION = dict(modality="vision", image_size=224, patch_size=16, num_classes=1000)
TEXT = dict(modality="text", vocab_size=50257, context=1024)
PAPER = {
    # name: (configuration, parameters in millions as the paper rounds them)
    "vit-small": (DNAConfig(**VISION, width=384, heads=6, mlp_width=1536, backbone=12, steps=0), 22),
    "vision-top1": (DNAConfig(**VISION, width=384, heads=6, mlp_width=1536, backbone=1, steps=11, transformers=18), 34),
    "vision-top2-skip": (
        DNAConfig(
            **VISION,
            width=256,
            heads=4,
            mlp_width=1024,
            backbone=1,
            steps=11,
            top_k=2,
            transformers=20,
            identities=4,
            skip_ratio=0.25,
            skip_speed=1e-3,
        ),
        18,
    ),
    "vision-dna-n-top1": (
        DNAConfig(**VISION, width=384, heads=6, mlp_width=1536, backbone=1, steps=22, attentions=18, mlps=18),
        34,
    ),
    "vision-dna-n-top2": (
        DNAConfig(**VISION, width=384, heads=6, mlp_width=1536, backbone=1, steps=22, top_k=2, attentions=24, mlps=24),
        44,
    ),
    "gpt2-medium": (DNAConfig(**TEXT, width=1024, heads=16, mlp_width=4096, backbone=24, steps=0), 406),
    "gpt2-shallower": (DNAConfig(**TEXT, width=1024, heads=16, mlp_width=4096, backbone=17, steps=0), 317),
    "text-top1": (DNAConfig(**TEXT, width=1024, heads=16, mlp_width=4096, backbone=2, steps=22, transformers=36), 583),
    "text-top2": (
        DNAConfig(**TEXT, width=768, heads=12, mlp_width=3072, backbone=2, steps=24, top_k=2, transformers=72),
        603,
    ),
    "text-dna-n-top1": (
        DNAConfig(**TEXT, width=1024, heads=16, mlp_width=4096, backbone=2, steps=44, attentions=36, mlps=36),
        583,
    ),
    "text-dna-n-top2": (
        DNAConfig(**TEXT, width=768, heads=12, mlp_width=3072, backbone=2, steps=44, top_k=2, attentions=64, mlps=64),
        546,
    ),
    "text-top2-skip": (
        DNAConfig(
            **TEXT,
            width=768,
            heads=12,
            mlp_width=3072,
            backbone=1,
            steps=23,
            top_k=2,
            transformers=72,
            identities=8,
            skip_ratio=0.3,
            skip_speed=1e-3,
        ),
        596,
    ),
}


@pytest.mark.parametrize("name", PAPER)
def test_every_row_of_the_papers_tables_is_a_configuration_with_its_size(name):
    config, millions = PAPER[name]
    with torch.device("meta"):
        model = DNA(config)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.055)


@pytest.mark.parametrize("name", [n for n in PAPER if n.startswith("vi")])
def test_the_papers_vision_models_run_a_real_image(name):
    config, _ = PAPER[name]
    model = DNA(config).eval()
    with torch.inference_mode():
        output = model(torch.randn(1, 3, 224, 224))
    assert output.logits.shape == (1, 1000)
    assert [d.module_ids.shape for d in output.decisions] == [(196, config.top_k)] * config.steps


@pytest.mark.parametrize("name", [n for n in PAPER if n.startswith(("text", "gpt2"))])
def test_the_papers_text_models_run_real_tokens_at_their_width(name):
    """The full width, steps and modules of the table; a small vocabulary keeps the head small."""
    config = PAPER[name][0].model_copy(update={"vocab_size": 97, "context": 24})
    with torch.device("meta"):
        model = DNA(config)
    model = model.to_empty(device="cpu").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
        for router in model.routers:
            torch.nn.init.trunc_normal_(router.weight, std=0.02)
        model.bias.zero_()
        output = model(torch.arange(24).view(1, 24))
    assert output.logits.shape == (1, 24, 97)
    assert len(output.decisions) == config.steps


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(width=100, heads=3), "not a multiple of heads"),
        (dict(top_k=9), "larger than the 4 modules"),
        (dict(transformers=0, identities=3), "nothing would ever be computed"),
        (dict(skip_ratio=0.2), "at least one identity"),
        (dict(image_size=60), "not a multiple of patch_size"),
        (dict(stem="conv", image_size=60, patch_size=6), "patch_size 4, 8 or 16"),
        (dict(surprise=1), "surprise"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_words(changes, words):
    good = dict(
        modality="vision",
        width=96,
        heads=3,
        mlp_width=64,
        backbone=1,
        steps=2,
        transformers=4,
        image_size=64,
        patch_size=8,
    )
    DNAConfig(**good)
    with pytest.raises(ValidationError, match=words):
        DNAConfig(**(good | changes))


def small(**changes) -> DNAConfig:
    return tiny_config("text", **(dict(skip_ratio=0.3, skip_speed=0.05, vocab_size=30) | changes))


def test_the_bias_changes_once_an_iteration_for_identities_only_and_carries_no_gradient():
    model = DNA(small())
    assert "bias" not in dict(model.named_parameters())
    output = model(torch.randint(30, (2, 16)))
    model.update_bias(output.decisions)
    assert torch.equal(model.bias[:, :4], torch.zeros(3, 4))
    moved = model.bias[:, 4:].abs()
    assert torch.allclose(moved, moved.round(decimals=2))
    assert 0 < moved.max() <= 0.05 + 1e-6


def test_repeated_updates_bring_the_skipped_share_to_the_wanted_one():
    torch.manual_seed(0)
    model = DNA(small(skip_speed=0.002))
    tokens = torch.randint(30, (8, 16))
    with torch.no_grad():
        for _ in range(400):
            model.update_bias(model(tokens).decisions)
        decisions = model(tokens).decisions
    for decision in decisions:
        skipped = (decision.module_ids >= 4).float().mean()
        assert float(skipped) == pytest.approx(0.3, abs=0.06)


def test_the_dense_twin_has_the_same_active_blocks_and_no_router():
    config = small(skip_ratio=0.25, steps=4)
    assert config.active_blocks == 1 + 4 * 2 * 0.75
    twin = config.dense_twin()
    assert (twin.backbone, twin.steps, twin.num_modules) == (7, 0, 0)
    output = DNA(twin)(torch.randint(30, (1, 16)))
    assert output.decisions == []


def test_a_text_longer_than_the_context_is_refused():
    with pytest.raises(ValueError, match="17 tokens do not fit"):
        DNA(small())(torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_the_chunked_loss_is_cross_entropy_with_its_gradients(rows):
    torch.manual_seed(0)
    x = torch.randn(rows, 12, requires_grad=True)
    weight = torch.randn(31, 12, requires_grad=True)
    targets = torch.randint(31, (rows,))
    expected = torch.nn.functional.cross_entropy(x @ weight.T, targets)
    wanted = torch.autograd.grad(3 * expected, (x, weight))
    loss = linear_cross_entropy(x, weight, targets)
    given = torch.autograd.grad(3 * loss, (x, weight))
    assert torch.allclose(loss, expected, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(wanted, given, strict=True))


def test_the_loss_takes_few_chunks_on_a_gpu_and_small_ones_on_a_cpu():
    """Its logits fit a core's cache, or a quarter of a gibibyte: hundreds of small kernels cost a GPU the most."""
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert chunk_rows(cpu, 8192) == 64
    assert chunk_rows(gpu, 8192) * 8192 * 4 == 2**28
    assert chunk_rows(gpu, 2**24) == 64
