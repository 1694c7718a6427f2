"""Augmentation: every operation keeps shape, type and range, does nothing at strength 0, and repeats."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from tokenpaths.engine.train import augment as plain
from tokenpaths.engine.train import autoaugment as auto
from tokenpaths.engine.train.recipes import AugmentConfig

OFF = AugmentConfig(crop_padding=0, flip=False, jitter=0.0, auto_augment=0.0, erase=0.0, mix=0.0)
WITHOUT_LEVEL = ("autocontrast", "equalize", "invert")


def pictures(batch: int = 4, height: int = 24, width: int = 20, seed: int = 0) -> torch.Tensor:
    """Smooth colours plus noise, uint8 (batch, 3, height, width)."""
    rng = np.random.default_rng(seed)
    ramp = np.linspace(20, 200, width)[None, None, None, :] * rng.uniform(0.4, 1, (batch, 3, 1, 1))
    values = ramp + rng.normal(0, 18, (batch, 3, height, width))
    return torch.from_numpy(np.clip(values, 0, 255).astype(np.uint8))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def as_pil(image: torch.Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


@pytest.mark.parametrize("name", auto.OPERATIONS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), level=st.floats(-1, 1), size=st.sampled_from([(1, 1), (2, 5), (16, 9)]))
def test_operations_keep_shape_and_type(name: str, seed: int, level: float, size: tuple[int, int]) -> None:
    images = pictures(3, *size, seed=seed)
    before = images.clone()
    changed = auto.OPERATIONS[name](images, torch.full((3,), level))
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8
    assert torch.equal(images, before), "the input must stay"


@pytest.mark.parametrize("name", [name for name in auto.OPERATIONS if name not in WITHOUT_LEVEL])
def test_level_zero_changes_nothing(name: str) -> None:
    images = torch.cat([pictures(), torch.full((1, 3, 24, 20), 255, dtype=torch.uint8)])
    assert torch.equal(auto.OPERATIONS[name](images, torch.zeros(5)), images)


@pytest.mark.parametrize("name", auto.OPERATIONS)
def test_full_level_changes_something(name: str) -> None:
    images = pictures()
    assert not torch.equal(auto.OPERATIONS[name](images, torch.ones(4)), images)


@pytest.mark.parametrize("name", [name for name in auto.OPERATIONS if name not in WITHOUT_LEVEL])
def test_each_image_has_its_own_level(name: str) -> None:
    images = pictures()[:1].repeat(3, 1, 1, 1)
    levels = torch.tensor([0.0, 0.5, 1.0])
    together = auto.OPERATIONS[name](images, levels)
    alone = [auto.OPERATIONS[name](images[:1], levels[i : i + 1])[0] for i in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))
    assert not torch.equal(together[0], together[2])


PILLOW: dict[str, tuple[float, Callable[[Image.Image], Image.Image], int]] = {
    "equalize": (1.0, ImageOps.equalize, 0),
    "autocontrast": (1.0, ImageOps.autocontrast, 1),
    "invert": (1.0, ImageOps.invert, 0),
    "solarize": (0.5, lambda i: ImageOps.solarize(i, 128), 0),
    "posterize": (1.0, lambda i: ImageOps.posterize(i, 4), 0),
    "color": (0.5, lambda i: ImageEnhance.Color(i).enhance(1.45), 1),
    "contrast": (-1.0, lambda i: ImageEnhance.Contrast(i).enhance(0.1), 1),
    "sharpness": (1.0, lambda i: ImageEnhance.Sharpness(i).enhance(1.9), 2),
    "rotate": (1.0, lambda i: i.rotate(30, Image.Resampling.BILINEAR, fillcolor=(128, 128, 128)), 3),
    "shear_x": (
        1.0,
        lambda i: i.transform(
            i.size,
            Image.Transform.AFFINE,
            (1, 0.3, -0.3 * i.height / 2, 0, 1, 0),
            Image.Resampling.BILINEAR,
            fillcolor=(128, 128, 128),
        ),
        3,
    ),
}


@pytest.mark.parametrize("name", PILLOW)
def test_pillow_gives_the_same(name: str) -> None:
    level, pillow, tolerance = PILLOW[name]
    images = pictures(4, 40, 32, seed=3)
    ours = auto.OPERATIONS[name](images, torch.full((4,), level))
    inner = (slice(3, -3), slice(3, -3)) if name in ("rotate", "shear_x") else (slice(None), slice(None))
    for i in range(4):
        theirs = np.asarray(pillow(as_pil(images[i]))).astype(int)
        difference = np.abs(ours[i].permute(1, 2, 0).numpy().astype(int) - theirs)[inner]
        if name in ("rotate", "shear_x"):  # the outline is blended with the fill in one, cut off in the other
            assert np.quantile(difference, 0.9) <= tolerance
        else:
            assert difference.max() <= tolerance


@pytest.mark.parametrize("name", ["equalize", "autocontrast"])
def test_flat_images_stay(name: str) -> None:
    flat = torch.full((2, 3, 9, 9), 77, dtype=torch.uint8)
    assert torch.equal(auto.OPERATIONS[name](flat, torch.ones(2)), flat)


def test_the_policy_is_whole() -> None:
    assert len(auto.POLICY) == 25
    for line in auto.POLICY:
        assert len(line) == 2
        for name, chance, level in line:
            assert name in auto.OPERATIONS
            assert 0 <= chance <= 1
            assert 0 <= level <= 9


def test_auto_augment_repeats_and_differs_by_image() -> None:
    images = pictures()[:1].repeat(64, 1, 1, 1)
    once = auto.auto_augment(images, 1.0, generator(1))
    assert torch.equal(once, auto.auto_augment(images, 1.0, generator(1)))
    assert not torch.equal(once, auto.auto_augment(images, 1.0, generator(2)))
    assert len({bytes(image.numpy().tobytes()) for image in once}) > 10
    assert torch.equal(auto.auto_augment(images, 0.0, generator(1)), images)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_auto_augment_follows_its_chances(share: float) -> None:
    """The share of images left alone is what the table's probabilities say."""
    alone = np.mean(
        [
            np.prod([1 - chance for name, chance, level in line if level or name in WITHOUT_LEVEL])
            for line in auto.POLICY
        ]
    )
    expected = share * (1 - alone)
    images = pictures(1, 24, 24).repeat(600, 1, 1, 1)
    changed = (auto.auto_augment(images, share, generator()) != images).flatten(1).any(1).float().mean()
    assert abs(float(changed) - expected) < 4 * (expected * (1 - expected) / 600) ** 0.5


def test_everything_off_only_normalises() -> None:
    images = pictures()
    assert torch.equal(plain.augment(images, OFF, generator()), plain.normalise(images))


@pytest.mark.parametrize(
    "part", [{"flip": True}, {"crop_padding": 4}, {"jitter": 0.3}, {"erase": 1.0}, {"auto_augment": 1.0}]
)
def test_parts_of_augment(part: dict[str, float]) -> None:
    config = OFF.model_copy(update=part)
    images = pictures(16)
    first = plain.augment(images, config, generator(5))
    assert first.shape == images.shape
    assert first.dtype == torch.float32
    assert torch.isfinite(first).all()
    assert torch.equal(first, plain.augment(images, config, generator(5)))
    assert not torch.equal(first, plain.augment(images, config, generator(6)))
    low = plain.normalise(torch.zeros(1, 3, 1, 1)).amin()
    high = plain.normalise(torch.ones(1, 3, 1, 1)).amax()
    assert low <= first.min()
    assert first.max() <= high


def test_random_crop_is_a_window_of_the_reflected_image() -> None:
    images = pictures(6)
    cropped = plain.random_crop(images, 3, generator(2))
    assert cropped.dtype == torch.uint8
    padded = torch.nn.functional.pad(images.float(), (3,) * 4, mode="reflect").to(torch.uint8)
    for i in range(6):
        windows = [padded[i, :, t : t + 24, left : left + 20] for t in range(7) for left in range(7)]
        assert any(torch.equal(cropped[i], window) for window in windows)


def test_random_erase_makes_one_rectangle() -> None:
    x = torch.ones(200, 3, 32, 32)
    erased = plain.random_erase(x, 0.5, generator(0))
    holes = erased[:, 0] == 0
    assert torch.equal(erased[:, 0], erased[:, 2])
    assert 0.3 < float(holes.flatten(1).any(1).float().mean()) < 0.7
    for hole in holes[holes.flatten(1).any(1)]:
        rows, cols = hole.any(1).nonzero().flatten(), hole.any(0).nonzero().flatten()
        assert hole[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1].all()
        assert int(hole.sum()) <= 0.34 * 32 * 32


def test_color_jitter_keeps_greys_grey_and_range() -> None:
    grey = torch.rand(8, 1, 6, 6, generator=generator()).expand(8, 3, 6, 6)
    jittered = plain.color_jitter(grey, 0.3, generator(1))
    assert torch.allclose(jittered[:, 0], jittered[:, 1], atol=1e-6)
    assert jittered.min() >= 0
    assert jittered.max() <= 1
    assert torch.allclose(plain.color_jitter(grey, 0.0, generator(1)), grey, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_mixed_labels_are_shares(seed: int) -> None:
    x = plain.normalise(pictures(6))
    labels = torch.tensor([0, 1, 2, 3, 3, 0])
    config = AugmentConfig(mix=1.0)
    mixed, shares = plain.mix(x, labels, 4, config, generator(seed))
    assert mixed.shape == x.shape
    assert shares.shape == (6, 4)
    assert torch.allclose(shares.sum(1), torch.ones(6))
    assert float(shares.min()) >= 0
    again, shares_again = plain.mix(x, labels, 4, config, generator(seed))
    assert torch.equal(mixed, again)
    assert torch.equal(shares, shares_again)


def test_mixed_pixels_match_their_labels() -> None:
    """Images of one value a class: the mean of a mixed image is its label's share."""
    x = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).expand(2, 3, 16, 16)
    seen_cut = seen_blend = False
    for seed in range(40):
        mixed, shares = plain.mix(x, torch.tensor([0, 1]), 2, AugmentConfig(mix=1.0), generator(seed))
        assert torch.allclose(mixed.mean((1, 2, 3)), shares[:, 1], atol=1e-5)
        values = mixed.unique()
        seen_cut |= len(values) == 2 and bool(((values == 0) | (values == 1)).all()) and 0 < float(shares[0, 0]) < 1
        seen_blend |= bool(((values > 0) & (values < 1)).any())
    assert seen_cut
    assert seen_blend
