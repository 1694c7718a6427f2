"""From samples to trace batches: cut, pad, run, and shape what the model decided for the store.

Shapes: B samples or windows, T tokens each, S steps, K choices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from tokenpaths.engine.base.device import mixed_precision
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord, TraceBatch
from tokenpaths.engine.data.blocks import block_rows, with_breaks
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.images import display_png, model_view, patch_regions
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.families.edit_values import check_length
from tokenpaths.engine.models.family import Controls, RoutedModel, Traced
from tokenpaths.engine.models.losses import token_losses
from tokenpaths.engine.tracing.recording import to_host

if TYPE_CHECKING:
    from tokenpaths.engine.tracing.trace_run import LoadedModel


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


@torch.inference_mode()
def run_model(
    model: RoutedModel,
    inputs: Tensor,
    device: torch.device,
    valid: Tensor | None = None,
    controls: Controls | None = None,
) -> Traced:
    """Logits on the device, decisions on the host."""
    with mixed_precision(device):
        there = None if valid is None else valid.to(device)
        here = inputs.to(device, non_blocking=True)
        traced = model.trace_with(here, there, controls or model.Controls())
    return to_host(traced)


def image_batches(
    loaded: LoadedModel, twin: RoutedModel | None, samples: Iterable[Sample], size: int, side: int
) -> Iterator[tuple[TraceBatch, np.ndarray | None]]:
    config = loaded.checkpoint.config
    rows, cols = config.grid
    for part in _chunks(samples, size):
        views = np.stack([model_view(_picture(s), config.image_size) for s in part])
        inputs = normalise(torch.from_numpy(views).permute(0, 3, 1, 2))
        traced = run_model(loaded.model, inputs, loaded.device, None, loaded.controls)
        twin_ids = _twin_ids(twin, inputs, loaded.device)
        row, col = np.divmod(np.tile(np.arange(rows * cols), len(part)), cols)
        yield (
            TraceBatch(
                samples=_image_records(loaded, part, traced.logits.float().cpu(), (rows, cols), side),
                **_flat(loaded.model, traced),
                row=row,
                col=col,
                **_soft([_soft_parts(traced)], np.arange(len(part)), np.ones(len(part))),
                region=_regions(part, rows, cols),
            ),
            twin_ids,
        )


_NO_NUMBER = (
    "the model's output holds NaN or infinite values: the checkpoint or the input is damaged, or its weights are too "
    "large for this precision; nothing of this run was written"
)


def _image_records(loaded, part: list[Sample], logits: Tensor, grid: tuple[int, int], side: int) -> list[SampleRecord]:
    if not torch.isfinite(logits).all():
        raise UserError(_NO_NUMBER)
    probs, best = logits.softmax(dim=-1).max(dim=-1)
    position = {name: i for i, name in enumerate(loaded.classes)}
    records = []
    for i, sample in enumerate(part):
        target = position.get(sample.label) if sample.label is not None else None
        loss = None
        if target is not None:
            loss = float(token_losses(logits[i : i + 1], torch.tensor([target])))
        name = loaded.classes[best[i]] if loaded.classes else str(int(best[i]))
        records.append(
            SampleRecord(
                num_tokens=grid[0] * grid[1],
                label=sample.label,
                prediction=name,
                confidence=float(probs[i]),
                loss=loss,
                grid=grid,
                source=sample.source,
                image=display_png(_picture(sample), side, grid=grid[0]),
            )
        )
    return records


def _picture(sample: Sample) -> Image:
    if sample.image is None:
        raise UserError(f"{sample.source or 'the sample'} is a text; this model takes images", field="image")
    return sample.image


def _regions(part: list[Sample], rows: int, cols: int) -> np.ndarray | None:
    if all(sample.mask is None for sample in part):
        return None
    unknown = np.full(rows * cols, -1)
    return np.concatenate([unknown if s.mask is None else patch_regions(s.mask, (rows, cols)).ravel() for s in part])


def _twin_ids(
    twin: RoutedModel | None, inputs: Tensor, device: torch.device, valid: Tensor | None = None
) -> np.ndarray | None:
    if twin is None:
        return None
    ids = run_model(twin, inputs, device, valid).module_ids.flatten(0, 1)
    return (ids if valid is None else ids[valid.flatten()]).numpy()


def _flat(model: RoutedModel, traced: Traced, valid: Tensor | None = None) -> dict[str, np.ndarray]:
    """The per-token arrays of a batch, samples one after the other; padding left out."""
    flops = traced.flops if traced.flops is not None else model.token_flops(traced.module_ids, valid)
    parts = {
        "module_ids": traced.module_ids,
        "weights": traced.weights,
        "gate_entropy": traced.gate_entropy,
        "flops": flops,
    }
    keep = None if valid is None else valid.flatten()
    flat = {name: t.flatten(0, 1) for name, t in parts.items()}
    return {name: (t if keep is None else t[keep]).numpy() for name, t in flat.items()}


def _soft_parts(traced: Traced) -> dict[str, np.ndarray]:
    """The soft tables of one batch of windows; the logits beside them are large and not kept."""
    found = {name: getattr(traced, name) for name in ("edges", "gates", "blocks")}
    return {name: values.float().numpy() for name, values in found.items() if values is not None}


def _soft(pieces: list[dict[str, np.ndarray]], owner: np.ndarray, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """The soft tables, one row a sample: the mean over its windows, each counted by its tokens.

    ``owner`` and ``tokens`` say for every window which sample it is of and how many tokens it holds.
    """
    tables = {}
    share = tokens / np.bincount(owner, tokens)[owner]
    for name in pieces[0]:
        rows = np.concatenate([piece[name] for piece in pieces])
        means = np.zeros((owner[-1] + 1, *rows.shape[1:]), dtype=np.float32)
        np.add.at(means, owner, rows * share.reshape(-1, *[1] * (rows.ndim - 1)))
        tables[name] = means
    return tables


@dataclass(frozen=True)
class _Window:
    """A stretch of one text that fits the context."""

    ids: np.ndarray
    next_id: int | None
    """the token behind it, None at the end of the text"""


def text_batches(
    loaded: LoadedModel, twin: RoutedModel | None, samples: Iterable[Sample], size: int, side: int
) -> Iterator[tuple[TraceBatch, np.ndarray | None]]:
    """Texts are cut into windows of the model's context; windows of several texts share a batch."""
    config = loaded.checkpoint.config
    assert loaded.tokenizer is not None, "load_model gives every text model its tokenizer"
    # A batch holds about size × 64 tokens, however long the texts are.
    budget = max(config.context, size * 64)
    part: list[tuple[Sample, Any]] = []
    held = 0
    for sample, new_block in with_breaks(samples, block_rows("text", size)):
        if part and new_block:
            yield _text_batch(loaded, twin, part, budget)
            part, held = [], 0
        if sample.text is None:
            raise UserError(f"{sample.source or 'the sample'} is an image; this model takes texts", field="text")
        encoded = loaded.tokenizer.encode(sample.text)
        if not len(encoded.ids):
            raise UserError(
                f"{sample.source or 'the text'} is empty; a text needs at least one character", field="text"
            )
        check_length(getattr(loaded.controls, "edits", None), len(encoded.ids), config.context)
        part.append((sample, encoded))
        held += len(encoded.ids)
        if held >= budget:
            yield _text_batch(loaded, twin, part, budget)
            part, held = [], 0
    if part:
        yield _text_batch(loaded, twin, part, budget)


def _text_batch(
    loaded: LoadedModel, twin: RoutedModel | None, part: list, budget: int
) -> tuple[TraceBatch, np.ndarray | None]:
    config = loaded.checkpoint.config
    cut = [_windows(encoded.ids, config.context) for _, encoded in part]
    owner = np.repeat(np.arange(len(part)), [len(windows) for windows in cut])
    windows = [window for of_sample in cut for window in of_sample]
    pieces, flat, losses, twins, predicted = [], [], [], [], []
    for start in range(0, len(windows), per := max(1, budget // config.context)):
        inputs, targets, valid = _padded(windows[start : start + per])
        # Padding stands behind the text, where a causal model's real tokens never look.
        traced = run_model(loaded.model, inputs, loaded.device, valid, loaded.controls)
        losses.append(_window_losses(traced.logits, targets, valid))
        predicted += [row[real.to(row.device)].argmax(-1).cpu() for row, real in zip(traced.logits, valid, strict=True)]
        flat.append(_flat(loaded.model, traced, valid))
        pieces.append(_soft_parts(traced))
        twin_ids = _twin_ids(twin, inputs, loaded.device, valid)
        if twin_ids is not None:
            twins.append(twin_ids)
    arrays = {name: np.concatenate([p[name] for p in flat]) for name in flat[0]}
    loss = np.concatenate(losses)
    batch = TraceBatch(
        samples=_text_records(part, loss),
        **arrays,
        loss=loss,
        **_soft(pieces, owner, np.array([len(window.ids) for window in windows])),
        token_id=np.concatenate([e.ids for _, e in part]),
        predicted_id=torch.cat(predicted).numpy(),
        char_start=np.concatenate([e.start for _, e in part]),
        char_end=np.concatenate([e.end for _, e in part]),
    )
    return batch, (np.concatenate(twins) if twins else None)


def _padded(windows: list[_Window]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, targets (−100 where there is none) and which positions are real, each (windows, longest)."""
    longest = max(len(w.ids) for w in windows)
    inputs = torch.zeros(len(windows), longest, dtype=torch.long)
    targets = torch.full((len(windows), longest), -100)
    valid = torch.zeros(len(windows), longest, dtype=torch.bool)
    for i, window in enumerate(windows):
        n = len(window.ids)
        ids = torch.from_numpy(window.ids).long()
        inputs[i, :n], valid[i, :n] = ids, True
        targets[i, : n - 1] = ids[1:]
        if window.next_id is not None:
            targets[i, n - 1] = window.next_id
    return inputs, targets, valid


def _window_losses(logits: Tensor, targets: Tensor, valid: Tensor) -> np.ndarray:
    """Loss of every real token, NaN without a target; a window at a time, for the sake of memory."""
    parts = []
    for row, target, real in zip(logits, targets, valid, strict=True):
        n = int(real.sum())
        loss = token_losses(row[:n], target[:n].to(row.device)).cpu()
        known = target[:n] >= 0
        if not torch.isfinite(loss[known]).all():
            raise UserError(_NO_NUMBER)
        parts.append(loss.masked_fill(~known, float("nan")))
    return torch.cat(parts).numpy()


def _windows(ids: np.ndarray, context: int) -> list[_Window]:
    starts = range(0, len(ids), context)
    return [_Window(ids[s : s + context], int(ids[s + context]) if s + context < len(ids) else None) for s in starts]


def _text_records(part: list, loss: np.ndarray) -> list[SampleRecord]:
    records, start = [], 0
    for sample, encoded in part:
        own = loss[start : start + len(encoded.ids)]
        start += len(encoded.ids)
        known = own[np.isfinite(own)]
        records.append(
            SampleRecord(
                num_tokens=len(encoded.ids),
                label=sample.label,
                text=sample.text,
                source=sample.source,
                loss=float(known.mean()) if len(known) else None,
            )
        )
    return records
