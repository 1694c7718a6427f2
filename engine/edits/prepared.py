"""A data set as a model takes it, cut and padded once, so that many passes over it cost only the passes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Int
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.sample import Sample
from tokenpaths.engine.tracing.text_windows import alike, cut, encoded_text, padded
from tokenpaths.engine.tracing.trace_batches import image_input
from tokenpaths.engine.tracing.traceable import ModelInput, TextWindow, Traceable

IMAGES_AT_ONCE = 64


class PreparedSet:
    """The batches of a data set: ``add`` each sample, then ``close``."""

    def __init__(self, model: Traceable) -> None:
        self._model = model
        self._images: list[Sample] = []
        self._windows: list[TextWindow] = []
        self.batches: list[ModelInput] = []
        self.samples: list[Int[Tensor, " R"]] = []
        """for each batch, the number of the sample that each of its rows (padding not counted) is of"""
        self._sample_of_window: list[int] = []
        self.num_samples = 0
        self.text_lengths: set[int] = set()
        """numbers of tokens that texts of the set have"""
        self.num_targets = 0
        """images with a known label, or tokens whose next token is to be predicted"""
        self.end: tuple[int, int] | None = None
        """for a single sample, batch and row (padding not counted) of its end"""

    def add(self, sample: Sample) -> None:
        """Add a sample; tokenizes texts.

        Raises:
            UserError: a sample of the other modality, or an empty text.
        """
        if self._model.modality == "vision":
            self._images.append(sample)
            if len(self._images) == IMAGES_AT_ONCE:
                self._image_batch()
        else:
            ids = encoded_text(self._model, sample).ids
            self.text_lengths.add(len(ids))
            self._windows += cut(ids, self._model.context)
            self._sample_of_window += [self.num_samples] * (len(self._windows) - len(self._sample_of_window))
        self.num_samples += 1

    def _image_batch(self) -> None:
        first = sum(map(len, self.samples))
        self.samples.append(torch.arange(first, first + len(self._images)))
        self.batches.append(image_input(self._model, self._images))
        self._images = []

    def close(self) -> PreparedSet:
        """Finish the set.

        Raises:
            UserError: it is empty.
        """
        if not self.num_samples:
            raise UserError("the data set holds no sample, so there is nothing to measure", field="data")
        if self._images:
            self._image_batch()
        if self.num_samples == 1 and self._model.modality == "vision":
            self.end = (0, 0)
        before = self._model.before
        for part in alike(self._windows, self._model.pass_tokens, len(before)):
            if self.num_samples == 1 and (last := len(self._windows) - 1) in part:
                tokens = sum(len(self._windows[i].ids) for i in part[: part.index(last) + 1])
                self.end = (len(self.batches), tokens - 1)
            lengths = torch.tensor([len(self._windows[i].ids) for i in part])
            self.samples.append(torch.tensor([self._sample_of_window[i] for i in part]).repeat_interleave(lengths))
            self.batches.append(padded([self._windows[i] for i in part], before, self._model.first_prediction))
        self._windows, self._sample_of_window = [], []
        self.num_targets = sum(int((batch.targets >= 0).sum()) for batch in self.batches)
        return self

    def __iter__(self) -> Iterator[ModelInput]:
        return iter(self.batches)


def prepare(model: Traceable, samples: Iterable[Sample]) -> PreparedSet:
    """Prepare all samples: images at the model's size, texts as windows of its context length.

    Raises:
        UserError: no sample, one of the other modality, or an empty text.
    """
    data = PreparedSet(model)
    for sample in samples:
        data.add(sample)
    return data.close()
