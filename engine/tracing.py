"""Trace a model over a data set into a run: load, batch, run, record, write.

Shapes: B samples, T tokens each, S steps, K choices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.checkpoint import WEIGHTS, Checkpoint, CheckpointError, build_model, file_sha256, read_checkpoint
from engine.datasets import Sample
from engine.device import mixed_precision, pick_device
from engine.disk import SHIPPED_MODELS, is_name
from engine.errors import UserError
from engine.images import display_png, model_view, patch_regions
from engine.models.dna import DNA
from engine.models.losses import token_losses
from engine.record import Recording, module_table, record, token_flops
from engine.store.writer import RunWriter
from engine.tokenizer import TextTokenizer
from engine.trace import RunInfo, SampleRecord, TraceBatch
from engine.train.augment import normalise

WEIGHT_SEMANTICS = {
    "score_function": "softmax over all modules",
    "order": "softmax, then top-k of probability + bias",
    "renormalised": False,
    "bias": "identity modules only; moves the choice, not the weight",
    "shared_experts": 0,
}


@dataclass
class LoadedModel:
    """A checkpoint on a device, ready to be traced."""

    name: str
    checkpoint: Checkpoint
    model: DNA
    sha256: str
    tokenizer: TextTokenizer | None
    device: torch.device

    @property
    def modality(self) -> str:
        return self.checkpoint.config.modality

    @property
    def classes(self) -> tuple[str, ...]:
        return self.checkpoint.classes


@dataclass(frozen=True)
class TraceProgress:
    """Samples done so far, of how many (None: unknown)."""

    samples: int
    total: int | None
    tokens: int


def models_folders(data_dir: Path | None = None) -> list[Path]:
    """Where models are looked for: the user's own first, then the shipped ones."""
    return [*([data_dir / "models"] if data_dir else []), SHIPPED_MODELS]


def find_checkpoint(name: str | Path, folders: Iterable[Path]) -> Checkpoint:
    """A checkpoint by name, or by the path of its folder.

    Raises:
        CheckpointError: there is none of that name (the message lists those that exist), or it is broken.
    """
    folders = list(folders)
    if isinstance(name, Path) or "/" in str(name):
        if not Path(name).is_dir():
            raise CheckpointError(f"there is no checkpoint folder {name}", field="model")
        return read_checkpoint(Path(name))
    if is_name(str(name)):
        for folder in folders:
            if (folder / name).is_dir():
                return read_checkpoint(folder / name)
    known = ", ".join(row["model"] for row in list_models(folders)) or "none yet"
    raise CheckpointError(f"no model is called {name!r}; there are: {known}", field="model")


def list_models(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """What each checkpoint folder says of itself; broken ones are listed with their problem."""
    rows: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.is_dir() and is_name(path.name) and path.name not in rows:
                rows[path.name] = _model_row(path, shipped=folder == SHIPPED_MODELS)
    return [rows[name] for name in sorted(rows)]


def _model_row(path: Path, shipped: bool) -> dict[str, Any]:
    empty = dict.fromkeys(
        ("family", "modality", "num_params", "num_steps", "num_modules", "top_k"), None
    )
    row = {"model": path.name, **empty, "validation": {}, "shipped": shipped, "problem": None}
    try:
        checkpoint = read_checkpoint(path)
        config = checkpoint.config
        with torch.device("meta"):
            num_params = sum(p.numel() for p in DNA(config).parameters())
        problem = None if (path / WEIGHTS).is_file() else f"{WEIGHTS} is missing"
    except CheckpointError as error:
        return row | {"problem": str(error)}
    return row | {
        "family": checkpoint.family, "modality": config.modality, "num_params": num_params,
        "num_steps": config.steps, "num_modules": config.num_modules, "top_k": config.top_k,
        "validation": checkpoint.validation, "problem": problem,
    }


def load_model(
    name: str | Path, folders: Iterable[Path], device: torch.device | str | None = None
) -> LoadedModel:
    """Load a checkpoint by name or folder onto a device (chosen by itself unless given)."""
    checkpoint = find_checkpoint(name, folders)
    if not checkpoint.config.steps:
        raise UserError(f"{checkpoint.name} is dense: it has no routers, so there are no paths to trace",
                        field="model")
    device = pick_device(str(device) if device else None)
    tokenizer = None
    if checkpoint.config.modality == "text":
        tokenizer = TextTokenizer.load(checkpoint.path / "tokenizer.json")
        if tokenizer.vocab_size != checkpoint.config.vocab_size:
            raise CheckpointError(
                f"{checkpoint.name}: the tokenizer has {tokenizer.vocab_size} entries, "
                f"the model {checkpoint.config.vocab_size}"
            )
    return LoadedModel(checkpoint.name, checkpoint, build_model(checkpoint, device),
                       file_sha256(checkpoint.path / WEIGHTS), tokenizer, device)


def untrained_twin(loaded: LoadedModel, seed: int = 0) -> DNA:
    """The same architecture at initialisation, the null that every path statistic stands beside."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    twin = DNA(loaded.checkpoint.config).to(loaded.device).eval().requires_grad_(False)
    torch.random.set_rng_state(state)
    return twin


def trace_samples(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    *,
    run_id: str | None = None,
    dataset: str = "upload",
    split: str = "",
    regions: tuple[str, ...] = (),
    batch_size: int = 64,
    total: int | None = None,
    display_side: int = 256,
    twin: bool = True,
    overwrite: bool = False,
    on_progress: Callable[[TraceProgress], None] = lambda p: None,
) -> Path:
    """Run every sample through the model and seal one run file; returns its path.

    An exception on the way (a cancel included) leaves no file behind.

    Raises:
        UserError: a sample cannot be traced, or the run id is taken.
    """
    run_id = run_id or new_run_id(loaded.name, dataset)
    config = loaded.checkpoint.config
    info = RunInfo(
        run_id=run_id, model=loaded.name, family=loaded.checkpoint.family, modality=config.modality,
        dataset=dataset, split=split, num_steps=config.steps, num_modules=config.num_modules,
        top_k=config.top_k, weight_semantics=WEIGHT_SEMANTICS,
        config=json.loads(config.model_dump_json()), checkpoint_sha256=loaded.sha256,
        engine_version=engine_version(), regions=regions,
        token_texts=loaded.tokenizer.token_texts if loaded.tokenizer else {},
    )
    other = untrained_twin(loaded) if twin else None
    make = _image_batches if config.modality == "vision" else _text_batches
    done = tokens = 0
    with RunWriter(runs_dir, info, module_table(loaded.model), overwrite=overwrite) as writer:
        for batch, twin_ids in make(loaded, other, samples, batch_size, display_side):
            writer.write(batch)
            if twin_ids is not None:
                writer.write_twin(twin_ids)
            done += len(batch.samples)
            tokens += batch.num_tokens
            on_progress(TraceProgress(done, total, tokens))
        if not done:
            raise UserError("the data set holds no sample, so there is nothing to trace", field="data")
        return writer.seal()


def new_run_id(model: str, dataset: str) -> str:
    """A readable, unused-looking id: model, data set, time to the millisecond."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    plain = re.sub(r"[^A-Za-z0-9]+", "-", dataset).strip("-")[:16]
    return f"{model[:24]}-{plain or 'data'}-{stamp}"[:64]


def engine_version() -> str:
    try:
        return version("tokenpaths")
    except PackageNotFoundError:
        return "0+source"


def _chunks(samples: Iterable[Sample], size: int) -> Iterator[list[Sample]]:
    part: list[Sample] = []
    for sample in samples:
        part.append(sample)
        if len(part) == size:
            yield part
            part = []
    if part:
        yield part


@torch.inference_mode()
def _run(model: DNA, inputs: Tensor, device: torch.device) -> tuple[Tensor, Recording]:
    """Logits on the device, decisions on the host."""
    with mixed_precision(device):
        output = model(inputs.to(device, non_blocking=True))
    return output.logits, record(output.decisions, inputs.shape[0])


def _image_batches(loaded: LoadedModel, twin: DNA | None, samples: Iterable[Sample], size: int, side: int
                   ) -> Iterator[tuple[TraceBatch, np.ndarray | None]]:
    config = loaded.checkpoint.config
    rows = cols = config.image_size // config.patch_size
    for part in _chunks(samples, size):
        views = np.stack([model_view(s.image, config.image_size) for s in part])
        inputs = normalise(torch.from_numpy(views).permute(0, 3, 1, 2))
        logits, recording = _run(loaded.model, inputs, loaded.device)
        twin_ids = _twin_ids(twin, inputs, loaded.device)
        flops = token_flops(recording.module_ids, config)
        row, col = np.divmod(np.tile(np.arange(rows * cols), len(part)), cols)
        yield TraceBatch(
            samples=_image_records(loaded, part, logits.float().cpu(), (rows, cols), side),
            **_flat(recording, flops), row=row, col=col,
            region=_regions(part, rows, cols),
        ), twin_ids


def _image_records(loaded, part: list[Sample], logits: Tensor, grid: tuple[int, int], side: int
                   ) -> list[SampleRecord]:
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
                num_tokens=grid[0] * grid[1], label=sample.label, prediction=name,
                confidence=float(probs[i]), loss=loss, grid=grid, source=sample.source,
                image=display_png(sample.image, side, grid=grid[0]),
            )
        )
    return records


def _regions(part: list[Sample], rows: int, cols: int) -> np.ndarray | None:
    if all(sample.mask is None for sample in part):
        return None
    unknown = np.full(rows * cols, -1)
    return np.concatenate(
        [unknown if s.mask is None else patch_regions(s.mask, (rows, cols)).ravel() for s in part]
    )


def _twin_ids(twin: DNA | None, inputs: Tensor, device: torch.device, keep: Tensor | None = None
              ) -> np.ndarray | None:
    if twin is None:
        return None
    ids = _run(twin, inputs, device)[1].module_ids.flatten(0, 1)
    return (ids if keep is None else ids[keep]).numpy()


def _flat(recording: Recording, flops: Tensor, keep: Tensor | None = None) -> dict[str, np.ndarray]:
    """The per-token arrays of a batch; ``keep`` (B·T) leaves padding out."""
    parts = {
        "module_ids": recording.module_ids, "weights": recording.weights,
        "gate_entropy": recording.gate_entropy, "flops": flops,
    }
    flat = {name: t.flatten(0, 1) for name, t in parts.items()}
    return {name: (t if keep is None else t[keep]).numpy() for name, t in flat.items()}


@dataclass(frozen=True)
class _Window:
    """A stretch of one text that fits the context; ``last`` closes the sample."""

    ids: np.ndarray
    next_id: int | None


def _text_batches(loaded: LoadedModel, twin: DNA | None, samples: Iterable[Sample], size: int, side: int
                  ) -> Iterator[tuple[TraceBatch, np.ndarray | None]]:
    """Texts are cut into windows of the model's context; windows of several texts share a batch."""
    config = loaded.checkpoint.config
    # A batch holds about size × 64 tokens, however long the texts are.
    budget = max(config.context, size * 64)
    part: list[tuple[Sample, Any]] = []
    held = 0
    for sample in samples:
        encoded = loaded.tokenizer.encode(sample.text)
        if not len(encoded.ids):
            raise UserError(f"{sample.source or 'the text'} is empty; a text needs at least one character",
                            field="text")
        part.append((sample, encoded))
        held += len(encoded.ids)
        if held >= budget:
            yield _text_batch(loaded, twin, part, budget)
            part, held = [], 0
    if part:
        yield _text_batch(loaded, twin, part, budget)


def _text_batch(loaded: LoadedModel, twin: DNA | None, part: list, budget: int
                ) -> tuple[TraceBatch, np.ndarray | None]:
    config = loaded.checkpoint.config
    windows = [w for _, encoded in part for w in _windows(encoded.ids, config.context)]
    pieces, losses, twins = [], [], []
    for start in range(0, len(windows), per := max(1, budget // config.context)):
        chunk = windows[start : start + per]
        longest = max(len(w.ids) for w in chunk)
        inputs = torch.zeros(len(chunk), longest, dtype=torch.long)
        targets = torch.full((len(chunk), longest), -100)
        valid = torch.zeros(len(chunk), longest, dtype=torch.bool)
        for i, window in enumerate(chunk):
            n = len(window.ids)
            ids = torch.from_numpy(window.ids).long()
            inputs[i, :n], valid[i, :n] = ids, True
            targets[i, : n - 1] = ids[1:]
            if window.next_id is not None:
                targets[i, n - 1] = window.next_id
        # Padding stands behind the text, where a causal model's real tokens never look.
        logits, recording = _run(loaded.model, inputs, loaded.device)
        keep = valid.flatten()
        loss = token_losses(logits.flatten(0, 1)[keep], targets.flatten()[keep].to(logits.device))
        loss = loss.cpu().masked_fill(targets.flatten()[keep] < 0, float("nan"))
        losses.append(loss.numpy())
        pieces.append(_flat(recording, token_flops(recording.module_ids, config, valid), keep))
        twins.append(_twin_ids(twin, inputs, loaded.device, keep))
    flat = {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}
    loss = np.concatenate(losses)
    batch = TraceBatch(
        samples=_text_records(part, loss), **flat, loss=loss,
        token_id=np.concatenate([e.ids for _, e in part]),
        char_start=np.concatenate([e.start for _, e in part]),
        char_end=np.concatenate([e.end for _, e in part]),
    )
    return batch, (np.concatenate(twins) if twin is not None else None)


def _windows(ids: np.ndarray, context: int) -> list[_Window]:
    starts = range(0, len(ids), context)
    return [_Window(ids[s : s + context], int(ids[s + context]) if s + context < len(ids) else None)
            for s in starts]


def _text_records(part: list, loss: np.ndarray) -> list[SampleRecord]:
    records, start = [], 0
    for sample, encoded in part:
        own = loss[start : start + len(encoded.ids)]
        start += len(encoded.ids)
        known = own[np.isfinite(own)]
        records.append(
            SampleRecord(
                num_tokens=len(encoded.ids), label=sample.label, text=sample.text, source=sample.source,
                loss=float(known.mean()) if len(known) else None,
            )
        )
    return records
