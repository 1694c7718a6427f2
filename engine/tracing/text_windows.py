"""Texts cut into windows of a model's context, and windows put together for one forward pass.

Shapes: B windows, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import Encoded
from tokenpaths.engine.families.edit_values import check_length
from tokenpaths.engine.tracing.traceable import NO_TARGET, ModelInput, TextWindow, Traceable, edits_of


def encoded_text(model: Traceable, sample: Sample) -> Encoded:
    """Tokens of a text sample.

    Raises:
        UserError: no text, an empty one, or one too long for edits of single positions.
    """
    if sample.text is None:
        raise UserError(f"{sample.source or 'the sample'} is an image; this model takes texts", field="text")
    encoded = model.encode(sample.text)
    if not len(encoded.ids):
        raise UserError(f"{sample.source or 'the text'} is empty; a text needs at least one character", field="text")
    check_length(edits_of(model), len(encoded.ids), model.context)
    return encoded


def cut(ids: np.ndarray, context: int) -> list[TextWindow]:
    """Consecutive windows of at most ``context`` tokens."""
    starts = range(0, len(ids), context)
    return [TextWindow(ids[s : s + context], int(ids[s + context]) if s + context < len(ids) else None) for s in starts]


def alike(windows: Sequence[TextWindow], budget: int, before: int = 0) -> Iterator[list[int]]:
    """Group windows of similar length into passes, to minimise padding; returns indices of windows.

    Args:
        windows: of one or more texts.
        budget: tokens of one pass, padding included; a longer window is a pass of its own.
        before: number of tokens prepended to each window.
    """
    part: list[int] = []
    for i in sorted(range(len(windows)), key=lambda i: len(windows[i].ids)):
        if part and (len(windows[i].ids) + before) * (len(part) + 1) > budget:
            yield part
            part = []
        part.append(i)
    if part:
        yield part


def padded(windows: Sequence[TextWindow], before: tuple[int, ...] = (), first_prediction: int = 0) -> ModelInput:
    """Windows as the rows of one pass, padded at the end, which a causal model's real tokens do not attend to.

    Args:
        windows: of one or more texts.
        before: token ids prepended to each window.
        first_prediction: first position of a window that has a target.
    """
    p = len(before)
    shape = len(windows), p + max(len(window.ids) for window in windows)
    ids, targets = torch.zeros(shape, dtype=torch.long), torch.full(shape, NO_TARGET)
    valid = torch.zeros(shape, dtype=torch.bool)
    for i, window in enumerate(windows):
        end = p + len(window.ids)
        own = torch.from_numpy(window.ids).long()
        ids[i, :p], ids[i, p:end] = torch.tensor(before, dtype=torch.long), own
        valid[i, p:end] = True
        targets[i, p : end - 1] = own[1:]
        if window.next_id is not None:
            targets[i, end - 1] = window.next_id
    targets[:, : p + first_prediction] = NO_TARGET
    return ModelInput(ids, targets, valid)
