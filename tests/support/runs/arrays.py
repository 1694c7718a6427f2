"""What every made-up run is: its description, its modules, its batches of arrays, and how they are written."""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from tokenpaths.engine.base.records import ModuleInfo, RunInfo, SampleRecord, TraceBatch
from tokenpaths.engine.store.write.writer import RunWriter


@dataclass(frozen=True)
class RunArrays:
    """A run before it is written: the raw material for naive recomputation."""

    info: RunInfo
    modules: list[ModuleInfo]
    batches: list[TraceBatch]
    twin: np.ndarray | None = None
    """(n, S, K) ribbons of the untrained twin"""

    @property
    def ids(self) -> np.ndarray:
        """All ribbons (n, S, K) in slot order."""
        return np.concatenate([batch.module_ids for batch in self.batches])

    @property
    def weights(self) -> np.ndarray:
        """All weights (n, S, K)."""
        return np.concatenate([batch.weights for batch in self.batches])

    @property
    def samples(self) -> list[SampleRecord]:
        return [sample for batch in self.batches for sample in batch.samples]

    def per_token(self, values: list) -> list:
        """Repeat one value a sample for each of its tokens."""
        return [v for v, s in zip(values, self.samples, strict=True) for _ in range(s.num_tokens)]

    def write(self, runs_dir: Path, *, overwrite: bool = False) -> Path:
        """Write ``<runs_dir>/<run_id>.duckdb`` through the real writer; returns the file."""
        pairs: list[tuple[TraceBatch, np.ndarray | None]] = [(batch, None) for batch in self.batches]
        if self.twin is not None and len(self.twin):
            pairs[-1] = (self.batches[-1], self.twin)
        return write_batches(Path(runs_dir), self.info, self.modules, pairs, overwrite=overwrite)

    def with_changes(self, **changes: object) -> RunArrays:
        """The same with fields of the first batch replaced, checks of the dataclass bypassed."""
        batch = replace(self.batches[0])
        for name, value in changes.items():
            object.__setattr__(batch, name, value)
        return replace(self, batches=[batch, *self.batches[1:]])


def write_batches(
    runs_dir: Path,
    info: RunInfo,
    modules: list[ModuleInfo],
    batches_with_twins: Iterable[tuple[TraceBatch, np.ndarray | None]],
    *,
    overwrite: bool = False,
) -> Path:
    """Write and seal a run batch by batch, each with ribbons (n, S, K) of the twin or None; returns the file."""
    with RunWriter(runs_dir, info, modules, overwrite=overwrite) as writer:
        for batch, twin in batches_with_twins:
            writer.write(batch)
            if twin is not None:
                writer.write_twin(twin)
        return writer.seal()


def run_info(run_id: str, **fields: object) -> RunInfo:
    """A description whose fields are those of a small text run unless given."""
    defaults: dict[str, object] = dict(
        model="toy",
        family="dna",
        modality="text",
        dataset="toy",
        split="validation",
        num_steps=2,
        num_modules=3,
        top_k=1,
        weight_semantics={},
        config={},
        checkpoint_sha256="",
        engine_version="0.1.0",
    )
    return RunInfo(run_id=run_id, **(defaults | fields))  # type: ignore[arg-type]


def routed(samples: list[SampleRecord], module_ids: np.ndarray, **columns: np.ndarray) -> TraceBatch:
    """A batch of ribbons (n, S, K) with even weights, no entropy and no cost unless given."""
    n, num_steps, top_k = module_ids.shape
    columns.setdefault("weights", np.full(module_ids.shape, 1 / top_k, dtype=np.float32))
    columns.setdefault("gate_entropy", np.full((n, num_steps), np.nan, dtype=np.float32))
    columns.setdefault("flops", np.zeros(n, dtype=np.float32))
    return TraceBatch(samples=samples, module_ids=module_ids, **columns)


def falling_weights(rng: np.random.Generator, n: int, num_steps: int, of: int, top_k: int) -> np.ndarray:
    """(n, S, K) the largest of ``of`` random probabilities, largest first."""
    probs = rng.dirichlet(np.ones(of), (n, num_steps))
    return (-np.sort(-probs, axis=2)[:, :, :top_k]).astype(np.float32)


def joined(words: list[str]) -> dict[str, np.ndarray]:
    """Where each of ``words`` (n) begins and ends in them joined by spaces."""
    lengths = np.array([len(word) for word in words])
    start = np.cumsum(lengths + 1) - lengths - 1
    return {"char_start": start, "char_end": start + lengths}


def columns_of(parts: list[tuple[SampleRecord, dict[str, np.ndarray]]]) -> dict[str, np.ndarray]:
    """The columns of several samples, one after the other."""
    return {name: np.concatenate([columns[name] for _, columns in parts]) for name in parts[0][1]}


def png_bytes(image: Image.Image, **options: int) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()
