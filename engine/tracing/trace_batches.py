"""From samples to trace batches: cut, pad, run, and shape what the model decided for the store.

Shapes: B samples or windows, T tokens each, n tokens of a batch, S steps, K choices, C classes or vocabulary entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Integer
from PIL.Image import Image
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord, TraceBatch
from tokenpaths.engine.data.blocks import block_rows, with_breaks
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.images import display_png, model_view, patch_regions
from tokenpaths.engine.data.tokenizer import Encoded
from tokenpaths.engine.models.family import Traced
from tokenpaths.engine.models.losses import token_losses
from tokenpaths.engine.tracing.text_windows import alike, cut, encoded_text, padded
from tokenpaths.engine.tracing.traceable import NO_TARGET, ModelInput, TextWindow, Traceable

Batch = tuple[TraceBatch, np.ndarray | None]
"""a batch, and the module ids (n, S, K) of the untrained twin"""
STRETCH = 64
"""tokens of a text that count like one image for the batch size"""
MOST_LIKELIEST = 5
"""classes of an image whose probabilities are kept"""
_NOT_FINITE = (
    "the model's output holds NaN or infinite values: the checkpoint or the input is damaged, or its weights are too "
    "large for this precision; nothing of this run was written"
)


# Images -------------------------------------------------------------------------------------------------------


def image_batches(
    model: Traceable, twin: Traceable | None, samples: Iterable[Sample], size: int, side: int = 256
) -> Iterator[Batch]:
    """Run images through the model, ``size`` at a time.

    Args:
        model: takes images.
        twin: the untrained one, if its paths are to be counted too.
        samples: images.
        size: images per batch; no batch crosses the end of a block of rows.
        side: of the stored pictures, in pixels.
    """
    rows, cols = model.grid
    for part in _chunks(samples, size):
        batch = image_input(model, part)
        with _enough_memory():
            traced = model.run(batch)
        row, col = np.divmod(np.tile(np.arange(rows * cols), len(part)), cols)
        yield (
            TraceBatch(
                samples=_image_records(model, part, batch.targets, traced.logits.float().cpu(), side),
                **_flat(model, traced),
                row=row,
                col=col,
                **_soft([_soft_parts(traced)], np.arange(len(part)), np.ones(len(part))),
                region=_regions(part, rows, cols),
            ),
            None if twin is None else twin.choose(batch),
        )


def image_input(model: Traceable, part: Sequence[Sample]) -> ModelInput:
    """Images at the model's input size, with their classes if the model knows them.

    Raises:
        UserError: a sample without an image.
    """
    position = {name: i for i, name in enumerate(model.classes)}
    views = np.stack([model_view(_picture(sample), model.image_size) for sample in part])
    targets = [NO_TARGET if s.label is None else position.get(s.label, NO_TARGET) for s in part]
    return ModelInput(torch.from_numpy(views).permute(0, 3, 1, 2).contiguous(), torch.tensor(targets), None)


def _chunks(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    part: list[Sample] = []
    for sample, new_block in with_breaks(samples, block_rows("vision", size)):
        if part and new_block:
            yield part
            part = []
        part.append(sample)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


def _image_records(
    model: Traceable, part: list[Sample], targets: Tensor, logits: Tensor, side: int
) -> list[SampleRecord]:
    if not torch.isfinite(logits).all():
        raise UserError(_NOT_FINITE)
    probs, best = logits.softmax(dim=-1).max(dim=-1)
    top_probs, top_classes = logits.softmax(dim=-1).topk(min(MOST_LIKELIEST, logits.shape[-1]))
    records = []
    for i, sample in enumerate(part):
        has_target = int(targets[i]) != NO_TARGET
        records.append(
            SampleRecord(
                num_tokens=model.grid[0] * model.grid[1],
                label=sample.label,
                prediction=_class_name(model, int(best[i])),
                confidence=float(probs[i]),
                loss=float(token_losses(logits[i : i + 1], targets[i : i + 1])) if has_target else None,
                grid=model.grid,
                source=sample.source,
                image=display_png(_picture(sample), side, grid=model.grid[0]),
                likeliest=tuple(
                    (_class_name(model, place), prob)
                    for place, prob in zip(top_classes[i].tolist(), top_probs[i].tolist(), strict=True)
                ),
            )
        )
    return records


def _class_name(model: Traceable, place: int) -> str:
    return model.classes[place] if model.classes else str(place)


def _picture(sample: Sample) -> Image:
    if sample.image is None:
        raise UserError(f"{sample.source or 'the sample'} is a text; this model takes images", field="image")
    return sample.image


def _regions(part: list[Sample], rows: int, cols: int) -> np.ndarray | None:
    if all(sample.mask is None for sample in part):
        return None
    unknown = np.full(rows * cols, -1)
    return np.concatenate([unknown if s.mask is None else patch_regions(s.mask, (rows, cols)).ravel() for s in part])


# Texts --------------------------------------------------------------------------------------------------------


def text_batches(model: Traceable, twin: Traceable | None, samples: Iterable[Sample], size: int) -> Iterator[Batch]:
    """Run texts through the model, ``size`` stretches of 64 tokens at a time.

    Texts are cut into windows of the model's context; windows of like length share a forward pass, and no batch
    reaches over the end of a block of rows (see ``tokenpaths.engine.data.blocks``).
    """
    return (batch for batch in text_passes(model, twin, samples, size) if batch is not None)


def text_passes(
    model: Traceable, twin: Traceable | None, samples: Iterable[Sample], size: int
) -> Iterator[Batch | None]:
    """``text_batches`` pass by pass: yields None after a forward pass that does not complete its batch."""
    for part in _text_parts(model, samples, size):
        yield from _text_batch(model, twin, part, size * STRETCH)


def _text_parts(model: Traceable, samples: Iterable[Sample], size: int) -> Iterator[list[tuple[Sample, Encoded]]]:
    """Samples of one batch each, with their tokens."""
    part: list[tuple[Sample, Encoded]] = []
    tokens = 0
    for sample, new_block in with_breaks(samples, block_rows("text", size)):
        if part and new_block:
            yield part
            part, tokens = [], 0
        encoded = encoded_text(model, sample)
        part.append((sample, encoded))
        tokens += len(encoded.ids)
        if tokens >= size * STRETCH:
            yield part
            part, tokens = [], 0
    if part:
        yield part


def _text_batch(
    model: Traceable, twin: Traceable | None, part: list[tuple[Sample, Encoded]], budget: int
) -> Iterator[Batch | None]:
    """Yields None after each forward pass but the last, then the batch."""
    of_samples = [cut(encoded.ids, model.context) for _, encoded in part]
    owner = np.repeat(np.arange(len(part)), [len(windows) for windows in of_samples])
    windows = [window for of_sample in of_samples for window in of_sample]
    lengths = np.array([len(window.ids) for window in windows])
    first = np.concatenate([[0], lengths.cumsum()])
    pieces: list[dict[str, np.ndarray]] = []
    places, order = [], []
    soft: list[dict[str, np.ndarray]] = []
    for number, chosen in enumerate(alike(windows, budget, len(model.before))):
        if number:
            yield None
        arrays, own_soft = _text_pass(model, twin, [windows[i] for i in chosen])
        pieces.append(arrays)
        soft.append(own_soft)
        order += chosen
        places += [np.arange(first[i], first[i + 1]) for i in chosen]
    back = _reading_order(places, order)
    arrays = {name: np.concatenate([piece[name] for piece in pieces])[back] for name in pieces[0]}
    twin_ids = arrays.pop("twin_ids", None)
    batch = TraceBatch(
        samples=_text_records(part, arrays["loss"]),
        **arrays,
        **_soft(soft, owner[order], lengths[order]),
        token_id=np.concatenate([e.ids for _, e in part]),
        char_start=np.concatenate([e.start for _, e in part]),
        char_end=np.concatenate([e.end for _, e in part]),
    )
    yield batch, twin_ids


def _reading_order(places: list[np.ndarray], order: list[int]) -> np.ndarray | slice:
    """Passes take windows by length; by this their tokens go back to where the texts have them."""
    return slice(None) if order == sorted(order) else np.argsort(np.concatenate(places))


def _text_pass(
    model: Traceable, twin: Traceable | None, windows: list[TextWindow]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Arrays (n, …) of the tokens of one pass, window after window, and its soft tables by window."""
    batch = padded(windows, model.before, model.first_prediction)
    with _enough_memory():
        traced = model.run(batch)
        loss, predicted = window_losses(traced.logits, batch)
    arrays = {**_flat(model, traced, batch.valid), "loss": loss, "predicted_id": predicted}
    if twin is not None:
        arrays["twin_ids"] = twin.choose(batch)
    return arrays, _soft_parts(traced)


def window_losses(logits: Tensor, batch: ModelInput) -> tuple[np.ndarray, np.ndarray]:
    """Loss of every token of a pass in nats, NaN without a target, and the most likely next token.

    A window at a time, for the sake of memory.

    Args:
        logits: (B, T, C), next-token logits.
        batch: windows of texts.

    Raises:
        UserError: a loss that is not finite.
    """
    assert batch.valid is not None
    losses, predicted = [], []
    for row, target, valid in zip(logits, batch.targets, batch.valid, strict=True):
        start, count = int(valid.int().argmax()), int(valid.sum())
        row, target = row[start : start + count], target[start : start + count]
        has_target = target >= 0
        loss = token_losses(row, target.to(row.device)).cpu()
        if not torch.isfinite(loss[has_target]).all():
            raise UserError(_NOT_FINITE)
        losses.append(loss.masked_fill(~has_target, float("nan")))
        predicted.append(row.argmax(dim=-1).cpu())
    return torch.cat(losses).numpy(), torch.cat(predicted).numpy()


def _text_records(part: list[tuple[Sample, Encoded]], loss: np.ndarray) -> list[SampleRecord]:
    records, start = [], 0
    for sample, encoded in part:
        own = loss[start : start + len(encoded.ids)]
        start += len(encoded.ids)
        losses = own[np.isfinite(own)]
        records.append(
            SampleRecord(
                num_tokens=len(encoded.ids),
                label=sample.label,
                text=sample.text,
                source=sample.source,
                loss=float(losses.mean()) if len(losses) else None,
            )
        )
    return records


# Both ---------------------------------------------------------------------------------------------------------


@contextmanager
def _enough_memory() -> Iterator[None]:
    """UserError for a pass, or its losses in float32, that does not fit into the memory of the device."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError(
            "there is not enough memory for a batch; give a smaller --batch-size", field="batch_size"
        ) from None


def _flat(model: Traceable, traced: Traced, valid: Tensor | None = None) -> dict[str, np.ndarray]:
    """The per-token arrays of a pass, sample after sample, without padding."""
    parts = {
        "module_ids": traced.module_ids,
        "weights": traced.weights,
        "gate_entropy": traced.gate_entropy,
        "flops": model.token_flops(traced, valid),
    }
    if traced.margin is not None and traced.runner_up is not None:
        parts |= {"margin": traced.margin, "runner_up": traced.runner_up}
    keep = None if valid is None else valid.flatten()
    flat = {name: values.flatten(0, 1) for name, values in parts.items()}
    return {name: (values if keep is None else values[keep]).numpy() for name, values in flat.items()}


def _soft_parts(traced: Traced) -> dict[str, np.ndarray]:
    """The soft tables of one pass, without its logits, which are large."""
    tables = {name: getattr(traced, name) for name in ("edges", "gates", "blocks")}
    return {name: values.float().numpy() for name, values in tables.items() if values is not None}


def _soft(pieces: list[dict[str, np.ndarray]], owner: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """The soft tables with one row per sample: the mean over its windows, weighted by their number of tokens.

    ``owner`` and ``tokens`` give the sample and the number of tokens of every window.
    """
    tables = {}
    share = tokens / np.bincount(owner, tokens)[owner]
    for name in pieces[0]:
        rows = np.concatenate([piece[name] for piece in pieces])
        means = np.zeros((owner.max() + 1, *rows.shape[1:]), dtype=np.float32)
        np.add.at(means, owner, rows * share.reshape(-1, *[1] * (rows.ndim - 1)))
        tables[name] = means
    return tables


# The twin alone -----------------------------------------------------------------------------------------------


def twin_passes(
    twin: Traceable, samples: Iterable[Sample], size: int
) -> Iterator[tuple[int, Integer[np.ndarray, "n S K"]] | None]:
    """Choices of an untrained twin as it makes them beside its model: number of samples and module ids, by batch.

    Of the same batches and passes as ``image_batches`` and ``text_passes`` have them, so also in the last digit the
    same scores; yields None after a forward pass that does not complete its batch.
    """
    if twin.modality == "vision":
        for images in _chunks(samples, size):
            yield len(images), twin.choose(image_input(twin, images))
        return
    for part in _text_parts(twin, samples, size):
        windows = [window for _, encoded in part for window in cut(encoded.ids, twin.context)]
        first = np.concatenate([[0], np.cumsum([len(window.ids) for window in windows])])
        pieces, places, order = [], [], []
        for number, chosen in enumerate(alike(windows, size * STRETCH, len(twin.before))):
            if number:
                yield None
            pieces.append(twin.choose(padded([windows[i] for i in chosen], twin.before)))
            order += chosen
            places += [np.arange(first[i], first[i + 1]) for i in chosen]
        yield len(part), np.concatenate(pieces)[_reading_order(places, order)]
