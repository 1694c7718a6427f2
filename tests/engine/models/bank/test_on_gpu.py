"""The same numbers on a GPU as on a CPU; ``make bench-gpu`` runs these where there is one, all others on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from tests.engine.models.bank.test_device_step import BANKS, bank_of, routing
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams
from tokenpaths.engine.dream.objectives import Choices
from tokenpaths.engine.dream.settings import ImageSettings
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.bank.bank import grouped_step, naive_step
from tokenpaths.engine.models.bank.device_step import device_step, fits_device
from tokenpaths.engine.models.bank.kernels.trial import kernels_hold
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.engine.train.augment import augment, mix
from tokenpaths.engine.train.dipaco.documents import make_sequences
from tokenpaths.engine.train.dipaco.finish_dipaco import routed_numbers
from tokenpaths.engine.train.recipes import AugmentConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.parametrize(
        "device",
        ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))],
    ),
]


def changes(step, kinds, device, dtype, top_k=2):
    """Result of a step, and gradients of its input and its weights, as float32 on the CPU."""
    bank = bank_of(kinds, width=64).to(device, dtype)
    ids, weights = routing(3, 40, min(top_k, len(kinds)), len(kinds), True)
    h = torch.randn(3, 40, 64, generator=torch.Generator().manual_seed(4)).to(device, dtype).requires_grad_()
    w = weights.to(device, dtype).requires_grad_()
    out = step(bank, h, ids.to(device), w, causal=True)
    (out * torch.linspace(-1, 1, out.numel(), device=device, dtype=dtype).view_as(out)).sum().backward()
    grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in bank.parameters()]  # of modules not chosen
    return [x.detach().float().cpu() for x in (out, h.grad, w.grad, *grads)]


def differ(found, wanted):
    """Largest relative difference in norm of any of the tensors."""
    return max(float((a - b).norm() / b.norm().clamp(min=1e-6)) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kinds", [BANKS["blocks"], BANKS["blocks and identities"]], ids=["blocks", "identities"])
def test_float32_of_the_device_is_the_naive_step_of_the_cpu(device, kinds):
    assert (
        differ(changes(grouped_step, kinds, device, torch.float32), changes(naive_step, kinds, "cpu", torch.float32))
        < 1e-4
    )


@pytest.mark.parametrize("kinds", [BANKS["blocks"], BANKS["blocks and identities"]], ids=["blocks", "identities"])
def test_bfloat16_of_the_device_is_the_naive_step_up_to_its_rounding(device, kinds):
    if device == "cuda" and not fits_device(torch.device(device), torch.bfloat16):
        pytest.skip("no GPU of compute capability 9 or 10")
    naive = changes(naive_step, kinds, "cpu", torch.float32)
    noise = differ(changes(naive_step, kinds, "cpu", torch.bfloat16), naive)
    assert differ(changes(device_step, kinds, device, torch.bfloat16), naive) < max(2 * noise, 0.02)


@pytest.mark.parametrize("kinds", BANKS.values(), ids=BANKS)
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "none"])
def test_with_and_without_gradients_or_kernels_of_our_own(device, kinds, top_k, kernels, monkeypatch):
    """The passes that ``device_step`` chooses among: fused where no gradient is wanted, attention by either kernel."""
    if device == "cuda" and not fits_device(torch.device(device), torch.bfloat16):
        pytest.skip("no GPU of compute capability 9 or 10")
    if top_k > len(kinds):
        pytest.skip("fewer modules than choices")
    if not kernels:
        monkeypatch.setattr("tokenpaths.engine.models.bank.device_step.kernels_hold", lambda *_: False)
    bank = bank_of(kinds, width=64).to(device, torch.bfloat16)
    ids, weights = (x.to(device) for x in routing(3, 150, top_k, len(kinds), True))
    h = torch.randn(3, 150, 64, generator=torch.Generator().manual_seed(4)).to(device, torch.bfloat16)
    made = [device_step(bank, h, ids, weights.bfloat16(), causal=True).detach().float().cpu()]
    with torch.no_grad():
        made.append(device_step(bank, h, ids, weights.bfloat16(), causal=True).float().cpu())
    wanted = naive_step(bank.float().cpu(), h.float().cpu(), ids.cpu(), weights.bfloat16().float().cpu(), causal=True)
    for found in made:
        assert differ([found], [wanted.detach()]) < 0.02


@pytest.mark.parametrize("kinds", BANKS.values(), ids=BANKS)
@pytest.mark.parametrize("top_k", [1, 2])
def test_float32_by_kernels_of_our_own_is_the_naive_step_of_the_cpu(device, kinds, top_k):
    if device == "cuda" and not kernels_hold(torch.device(device), torch.float32, 32):
        pytest.skip("no Triton, no C compiler or an older GPU")
    if top_k > len(kinds):
        pytest.skip("fewer modules than choices")
    found, wanted = (
        changes(step, kinds, place, torch.float32, top_k)
        for step, place in ((device_step, device), (naive_step, "cpu"))
    )
    assert differ(found, wanted) < 1e-4


def test_a_forward_pass_waits_for_nothing(device):
    if device == "cpu" or not fits_device(torch.device(device), torch.bfloat16):
        pytest.skip("a GPU of compute capability 9 or 10 only; on a CPU test_nothing_is_read_back shows it")
    config = DNAConfig(
        modality="text",
        width=64,
        heads=2,
        mlp_width=128,
        backbone=0,
        steps=3,
        transformers=4,
        vocab_size=50,
        context=64,
    )
    model = DNA(config, execution="device").to(device, torch.bfloat16).eval()
    ids = torch.randint(50, (4, 64), device=device)
    with torch.inference_mode():
        model(ids)  # kernels load at their first call
        torch.cuda.set_sync_debug_mode("error")
        try:
            model(ids)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["dna-vision-top1", "dna-text-top1"])
def test_a_shipped_model_takes_the_same_paths(device, name):
    made = {}
    for place in ("cpu", device):
        model = load_model(name, [SHIPPED_MODELS], place).model
        config = model.config
        torch.manual_seed(0)
        if config.modality == "vision":
            inputs = torch.randn(8, 3, config.image_size, config.image_size)
        else:
            inputs = torch.randint(config.vocab_size, (8, config.context))
        with torch.inference_mode():
            traced = model.trace(inputs.to(place))
        made[place] = traced.module_ids.cpu(), traced.logits.float().cpu()
    same = (made[device][0] == made["cpu"][0]).float().mean()
    assert same > 0.999, "of choices; a router's tie may fall otherwise"
    assert differ([made[device][1]], [made["cpu"][1]]) < (1e-3 if same == 1 else 0.05)


def test_paths_of_a_dipaco_are_measured_alike(device):
    size = {"width": 16, "heads": 2, "mlp_width": 16, "vocab_size": 50, "context": 16, "prefix": 4}
    config = DiPaCoConfig(**size, levels=(2,), blocks=(2,))
    torch.manual_seed(0)
    model = DiPaCo(config)
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(50, (16,), generator=generator, dtype=torch.int32).numpy() for _ in range(6)]
    sequences = make_sequences(texts, ["a"] * 6, config, end_id=0)
    found = {}
    for place in ("cpu", device):
        paths = [model.to(place).path_model(p) for p in range(2)]
        found[place] = routed_numbers(paths, torch.tensor([0, 1, 0, 1, 1, 0]), sequences, config.prefix)
    assert found[device] == pytest.approx(found["cpu"], rel=1e-4)
    assert found["cpu"]["count"] == 6 * 12 + 6
    assert found["cpu"]["loss"] == pytest.approx(math.log(50), rel=0.02), "an untrained path knows nothing"


def test_images_are_augmented_and_mixed_alike(device):
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(256, (8, 3, 16, 16), dtype=torch.uint8, generator=generator)
    made = {}
    for place in ("cpu", device):
        drawn = torch.Generator().manual_seed(5)
        config = AugmentConfig(crop_padding=2)
        x = augment(images.to(place), config, drawn)
        made[place] = [part.cpu() for part in mix(x, torch.arange(8), 8, config, drawn)]
    for there, here in zip(made[device], made["cpu"], strict=True):
        torch.testing.assert_close(there, here, rtol=1e-4, atol=1e-4)
    assert made["cpu"][1].sum(dim=1).sub(1).abs().max() < 1e-6


def test_a_trace_is_sealed(device, tmp_path):
    loaded = load_model("dna-vision-top1", [SHIPPED_MODELS], device)
    samples = list(open_dataset("bundled:photos", loaded.modality))[:3]
    file = trace_samples(loaded, samples, tmp_path, twin=False)
    assert Path(file).stat().st_size > 0


def test_a_dream_climbs_and_is_examined_alike(device):
    torch.manual_seed(0)
    config = DNAConfig(
        modality="vision",
        width=32,
        heads=2,
        mlp_width=64,
        backbone=0,
        steps=3,
        transformers=4,
        image_size=32,
        patch_size=8,
        num_classes=5,
    )
    here = DNA(config).eval().requires_grad_(False)
    there = DNA(config).eval().requires_grad_(False)
    there.load_state_dict(here.state_dict())
    there.to(device)
    with torch.no_grad():
        ids = here.trace(torch.randn(2, 3, 32, 32)).module_ids.long()
    settings = ImageSettings(iterations=20, noise=0, rate=0.05)
    dreams = ImageDreams(there, [Dream(Choices(ids[i].to(device), range(3)), number=i) for i in range(2)], settings)
    dreams.run(20)
    curve = dreams.curves()
    assert curve[-5:].mean() > curve[:5].mean()
    shown = dreams.pictures().cpu()
    at_home = ImageDreams(here, [Dream(Choices(ids[i], range(3)), number=i) for i in range(2)], settings)
    for found, wanted in zip(dreams.examine(), at_home.examine(shown), strict=True):
        assert found["objective"] == pytest.approx(wanted["objective"], rel=1e-3)
        assert sorted(found["top"]) == [pytest.approx(pair, abs=1e-3) for pair in sorted(wanted["top"])]
