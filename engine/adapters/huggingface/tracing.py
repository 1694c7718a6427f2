"""Trace a Hugging Face mixture of experts over texts: read its gates, write a run.

A model is ``hf:<folder>`` or ``hf:<name on the hub>``. Whether it can be traced: ``hf_source.py``; opening it:
``hf_load.py``; its gates: ``hf_gates.py``, ``hf_semantics.py``, ``hf_record.py``.

Shapes: B windows of T positions, n tokens, S steps, K slots, V vocabulary entries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tokenpaths.engine.adapters.expert_runs import FAMILY
from tokenpaths.engine.adapters.huggingface.gate_hooks import GateRecorder, Recorded
from tokenpaths.engine.adapters.huggingface.gates import Gate, common_semantics
from tokenpaths.engine.adapters.huggingface.inspection import NOT_TRACED, find_model, is_huggingface
from tokenpaths.engine.adapters.huggingface.library import HuggingFaceError, transformers_library
from tokenpaths.engine.adapters.huggingface.loading import HuggingFaceModel, check_options, forward, load
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.progress import followed, reworded, sealed
from tokenpaths.engine.base.records import ModuleInfo, RunInfo, SampleRecord, TraceBatch
from tokenpaths.engine.data.blocks import block_rows, with_breaks
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import Encoded
from tokenpaths.engine.models.losses import token_losses
from tokenpaths.engine.store.write.writer import RunWriter
from tokenpaths.engine.tracing.trace_run import MakeWriter, TraceProgress, engine_version, new_run_id

__all__ = [
    "NOT_TRACED",
    "HuggingFaceError",
    "HuggingFaceModel",
    "check_options",
    "find_model",
    "is_huggingface",
    "load",
    "run_info",
    "run_windows",
    "text_batches",
    "text_passes",
    "trace_parts",
    "trace_texts",
]
_END: Any = object()


def trace_texts(
    loaded: HuggingFaceModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    *,
    run_id: str | None = None,
    dataset: str = "upload",
    split: str = "",
    batch_size: int = 64,
    total: int | None = None,
    overwrite: bool = False,
    make_writer: MakeWriter | None = None,
    on_progress: Callable[[TraceProgress], None] = lambda p: None,
) -> Path:
    """Run every text through the model and seal one run file; returns its path.

    ``batch_size`` counts stretches of 64 tokens. An exception on the way (a cancel included) leaves no file behind.
    ``make_writer`` writes something else than a run: a shard, which may be empty.

    Raises:
        UserError: a sample cannot be traced, a gate gave NaN, or the run id is taken.
    """
    info = run_info(loaded, run_id or new_run_id(loaded.name.rsplit("/", 1)[-1], dataset), dataset, split)
    parts = trace_parts(
        loaded,
        samples,
        runs_dir,
        info,
        batch_size=batch_size,
        total=total,
        overwrite=overwrite,
        make_writer=make_writer,
    )
    return followed(parts, on_progress)


def trace_parts(
    loaded: HuggingFaceModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    info: RunInfo,
    *,
    batch_size: int = 64,
    total: int | None = None,
    overwrite: bool = False,
    make_writer: MakeWriter | None = None,
    changed: Callable[[], AbstractContextManager[None]] = nullcontext,
    check: Callable[[TraceBatch], None] = lambda batch: None,
) -> Generator[TraceProgress, None, Path]:
    """``trace_texts`` pass by pass, for callers that do other things in between: yields after each forward pass (how
    much is written then), returns the run's path. Closing it early (``close()``) leaves no file behind.

    Each pass runs inside ``changed()``, so between two the model is as it was; ``check`` sees every batch before it is
    written, and may refuse it.
    """
    done = tokens = 0
    make_writer = make_writer or partial(RunWriter, runs_dir, overwrite=overwrite)
    with make_writer(info, loaded.modules) as writer:
        passes = text_passes(loaded, samples, batch_size * 64)
        while True:
            with changed():
                found = next(passes, _END)
            if found is _END:
                break
            if isinstance(found, tuple):
                batch, twin_ids = found
                check(batch)
                writer.write(batch)
                if twin_ids is not None:
                    writer.write_twin(twin_ids)
                done, tokens = done + len(batch.samples), tokens + batch.num_tokens
            yield TraceProgress(done, total, tokens)
        if not done and isinstance(writer, RunWriter):
            raise UserError("the data set holds no sample, so there is nothing to trace", field="data")
        at = TraceProgress(done, total, tokens)
        return (yield from reworded(sealed(writer), lambda words: replace(at, sealing=words)))


def run_info(loaded: HuggingFaceModel, run_id: str, dataset: str, split: str = "") -> RunInfo:
    """The row of table ``run``."""
    config = json.loads(loaded.model.config.to_json_string(use_diff=False))
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    about = {
        "transformers": transformers_library().__version__,
        "dtype": dtype,
        "layers": [gate.name for gate in loaded.gates],
    }
    return RunInfo(
        run_id=run_id,
        model=loaded.name,
        family=FAMILY,
        modality="text",
        dataset=dataset,
        split=split,
        num_steps=len(loaded.gates),
        num_modules=max(gate.num_choices for gate in loaded.gates),
        top_k=loaded.gates[0].top_k,
        weight_semantics=common_semantics(loaded.gates).as_json(),
        config=_finite({"huggingface": about} | config),
        checkpoint_sha256=loaded.sha256,
        engine_version=engine_version(),
        token_texts=loaded.tokenizer.token_texts(),
        predicts_tokens=True,
    )


def _finite(value: Any) -> Any:
    """JSON has no infinity: configurations write it in places (``time_step_limit``)."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


@dataclass(frozen=True)
class _Window:
    """A stretch of one text that fits the context."""

    ids: np.ndarray
    next_id: int | None
    """the token behind it, None at the end of the text"""


def text_batches(
    loaded: HuggingFaceModel, samples: Iterable[Sample], budget: int
) -> Iterator[tuple[TraceBatch, np.ndarray | None]]:
    """Texts are cut into windows of the model's context; windows of like length share a forward pass.

    ``budget`` tokens, padding counted, go through the model at once (or one window, if that is longer), and no
    batch reaches over the end of a block of rows (see ``tokenpaths.engine.data.blocks``).
    """
    return (found for found in text_passes(loaded, samples, budget) if found is not None)


def text_passes(
    loaded: HuggingFaceModel, samples: Iterable[Sample], budget: int
) -> Iterator[tuple[TraceBatch, np.ndarray | None] | None]:
    """``text_batches`` pass by pass: None behind a forward pass that does not end its batch yet."""
    part: list[tuple[Sample, Encoded]] = []
    held = 0
    known = loaded.model.get_input_embeddings().weight.shape[0]
    for sample, new_block in with_breaks(samples, block_rows("text", max(1, budget // 64))):
        if part and new_block:
            yield from _batch(loaded, part, budget)
            part, held = [], 0
        if sample.text is None:
            raise UserError(f"{sample.source or 'the sample'} is an image; this model takes texts", field="text")
        encoded = loaded.tokenizer.encode(sample.text)
        if not len(encoded.ids):
            raise UserError(
                f"{sample.source or 'the text'} is empty; a text needs at least one character", field="text"
            )
        if (highest := int(encoded.ids.max())) >= known:
            raise HuggingFaceError(f"{loaded.name}: the tokenizer gave id {highest}, the model knows {known} tokens")
        part.append((sample, encoded))
        held += len(encoded.ids)
        if held >= budget:
            yield from _batch(loaded, part, budget)
            part, held = [], 0
    if part:
        yield from _batch(loaded, part, budget)


def _batch(
    loaded: HuggingFaceModel, part: list[tuple[Sample, Encoded]], budget: int
) -> Iterator[tuple[TraceBatch, np.ndarray | None] | None]:
    """None behind each forward pass but the last, then the batch."""
    windows = [window for _, encoded in part for window in _windows(encoded.ids, loaded.context)]
    first = np.cumsum([0, *(len(window.ids) for window in windows)])
    n = int(first[-1])
    steps, slots = len(loaded.gates), loaded.gates[0].top_k
    ids = np.empty((n, steps, slots), dtype=np.int32)
    weights = np.empty((n, steps, slots), dtype=np.float32)
    entropy = np.empty((n, steps), dtype=np.float32)
    loss, predicted = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int32)
    twin_ids = np.empty_like(ids) if loaded.twin is not None else None
    for number, chosen in enumerate(_alike(windows, budget, len(loaded.tokenizer.before))):
        if number:
            yield None
        # Where the tokens of these windows, one after the other, stand in the batch.
        places = np.concatenate([np.arange(first[i], first[i + 1]) for i in chosen])
        inputs, attended, keep, targets = _padded([windows[i] for i in chosen], loaded.tokenizer.before)
        recorded, loss[places], predicted[places] = _predicting(loaded, inputs, attended, keep, targets)
        ids[places], weights[places] = recorded.ids.numpy(), recorded.weights.numpy()
        entropy[places] = recorded.gate_entropy.numpy()
        if twin_ids is not None:
            twin_ids[places] = _decisions(loaded.twin, loaded.twin_gates or [], loaded.device, inputs, attended, keep)[
                0
            ].ids.numpy()
    batch = TraceBatch(
        samples=_records(part, loss),
        module_ids=ids,
        weights=weights,
        gate_entropy=entropy,
        flops=_flops(loaded.modules, ids),
        loss=loss,
        token_id=np.concatenate([e.ids for _, e in part]),
        char_start=np.concatenate([e.start for _, e in part]),
        char_end=np.concatenate([e.end for _, e in part]),
        predicted_id=predicted,
    )
    yield batch, twin_ids


def _windows(ids: np.ndarray, context: int) -> list[_Window]:
    return [
        _Window(ids[s : s + context], int(ids[s + context]) if s + context < len(ids) else None)
        for s in range(0, len(ids), context)
    ]


def _alike(windows: list[_Window], budget: int, before: int) -> Iterator[list[int]]:
    """Numbers of windows for one pass each: neighbours in length, so that little is padding."""
    part: list[int] = []
    for i in sorted(range(len(windows)), key=lambda i: len(windows[i].ids)):
        if part and (len(windows[i].ids) + before) * (len(part) + 1) > budget:
            yield part
            part = []
        part.append(i)
    yield part


def _padded(windows: list[_Window], before: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, what is no padding, what is a token of a text, and targets (−100 where there is none), each (B, T).

    Padding stands behind the text, where a causal model's real tokens never look.
    """
    p = len(before)
    shape = (len(windows), p + max(len(w.ids) for w in windows))
    inputs, targets = torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
    attended, keep = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for i, window in enumerate(windows):
        end = p + len(window.ids)
        ids = torch.from_numpy(window.ids).long()
        inputs[i, :p], inputs[i, p:end] = torch.tensor(before, dtype=torch.long), ids
        attended[i, :end], keep[i, p:end] = 1, True
        targets[i, p : end - 1] = ids[1:]
        if window.next_id is not None:
            targets[i, end - 1] = window.next_id
    return inputs, attended, keep, targets


def run_windows(
    loaded: HuggingFaceModel, inputs: Tensor, attended: Tensor, keep: Tensor, targets: Tensor
) -> tuple[Recorded, np.ndarray]:
    """Decisions and losses of the tokens that ``keep`` marks, window after window; losses are NaN without a target."""
    return _predicting(loaded, inputs, attended, keep, targets)[:2]


def _predicting(
    loaded: HuggingFaceModel, inputs: Tensor, attended: Tensor, keep: Tensor, targets: Tensor
) -> tuple[Recorded, np.ndarray, np.ndarray]:
    """What ``run_windows`` gives, and the token that the model thinks likeliest to follow each."""
    recorded, logits = _decisions(loaded.model, loaded.gates, loaded.device, inputs, attended, keep)
    losses, predicted = [], []
    for row, target, real in zip(logits, targets, keep, strict=True):  # a window at a time, for the sake of memory
        known = target[real].to(row.device)
        own = row[real.to(row.device)]
        predicted.append(own.argmax(dim=-1).cpu())
        loss = token_losses(own, known.clamp(min=0))
        losses.append(loss.masked_fill(known < 0, float("nan")).cpu())
    return recorded, torch.cat(losses).numpy(), torch.cat(predicted).numpy()


@torch.inference_mode()
def _decisions(
    model: Any, gates: list[Gate], device: torch.device, inputs: Tensor, attended: Tensor, keep: Tensor
) -> tuple[Recorded, Tensor]:
    with GateRecorder(gates) as recorder:
        logits = forward(model, inputs.to(device), attended.to(device))
        return recorder.take(keep.flatten()), logits


def _flops(modules: Sequence[ModuleInfo], ids: np.ndarray) -> np.ndarray:
    """What the visited experts spent on each token."""
    table = np.zeros((ids.shape[1], max(m.module for m in modules) + 1))
    for module in modules:
        table[module.step, module.module] = module.flops_per_token
    return table[np.arange(ids.shape[1])[None, :, None], ids].sum(axis=(1, 2))


def _records(part: list[tuple[Sample, Encoded]], loss: np.ndarray) -> list[SampleRecord]:
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
