"""A data set as a model takes it, cut and padded once, so that many passes over it cost only the passes.

Shapes: B samples or windows, T tokens each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.data.sources.sample import Sample
from tokenpaths.engine.tracing.trace_batches import _padded, _picture, _Window, _windows
from tokenpaths.engine.tracing.trace_run import LoadedModel

TOKENS_AT_ONCE = 4096
IMAGES_AT_ONCE = 64
NO_TARGET = -100


@dataclass(frozen=True)
class Prepared:
    """One batch on the host."""

    raw: Tensor
    """pixels (B, 3, H, W) as uint8, or token ids (B, T)"""
    targets: Tensor
    """classes (B,) or next tokens (B, T); −100 where none is known"""
    valid: Tensor | None
    """False marks padding; None for images"""

    @property
    def inputs(self) -> Tensor:
        """What the model takes."""
        return normalise(self.raw) if self.valid is None else self.raw


@dataclass(frozen=True)
class PreparedSet:
    """All batches of a data set."""

    batches: tuple[Prepared, ...]
    num_samples: int
    num_targets: int
    """images with a label that the model knows, or tokens with a next one"""

    def __iter__(self) -> Iterator[Prepared]:
        return iter(self.batches)


def prepare(loaded: LoadedModel, samples: Iterable[Sample]) -> PreparedSet:
    """Read every sample; images at the model's size, texts as windows of its context.

    Raises:
        UserError: no sample, one of the other modality, or an empty text.
    """
    make = _images if loaded.modality == "vision" else _texts
    samples = list(samples)
    if not samples:
        raise UserError("the data set holds no sample, so there is nothing to measure", field="data")
    batches = tuple(make(loaded, samples))
    return PreparedSet(batches, len(samples), sum(int((batch.targets >= 0).sum()) for batch in batches))


def _images(loaded: LoadedModel, samples: list[Sample]) -> Iterator[Prepared]:
    position = {name: i for i, name in enumerate(loaded.classes)}
    size = loaded.checkpoint.config.image_size
    for start in range(0, len(samples), IMAGES_AT_ONCE):
        part = samples[start : start + IMAGES_AT_ONCE]
        views = np.stack([model_view(_picture(sample), size) for sample in part])
        targets = [position.get(sample.label or "", NO_TARGET) for sample in part]
        yield Prepared(torch.from_numpy(views).permute(0, 3, 1, 2).contiguous(), torch.tensor(targets), None)


def _texts(loaded: LoadedModel, samples: list[Sample]) -> Iterator[Prepared]:
    assert loaded.tokenizer is not None, "load_model gives every text model its tokenizer"
    windows: list[_Window] = []
    for sample in samples:
        if sample.text is None:
            raise UserError(f"{sample.source or 'the sample'} is an image; this model takes texts", field="text")
        ids = loaded.tokenizer.encode(sample.text).ids
        if not len(ids):
            raise UserError(
                f"{sample.source or 'the text'} is empty; a text needs at least one character", field="text"
            )
        windows += _windows(ids, loaded.checkpoint.config.context)
    # Windows of like length share a pass; nothing measured here depends on their order.
    order = sorted(range(len(windows)), key=lambda i: len(windows[i].ids)) if len(samples) > 1 else range(len(windows))
    part: list[_Window] = []
    for i in order:
        if part and len(windows[i].ids) * (len(part) + 1) > TOKENS_AT_ONCE:
            yield _batch(part)
            part = []
        part.append(windows[i])
    yield _batch(part)


def _batch(windows: list[_Window]) -> Prepared:
    inputs, targets, valid = _padded(windows)
    return Prepared(inputs, targets, valid)
