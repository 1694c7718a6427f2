"""Runs with soft tables: edges, gates and blocks beside hard decisions that say nothing."""

from __future__ import annotations

import numpy as np

from tests.support.runs.arrays import RunArrays, routed, run_info
from tokenpaths.engine.base.records import ModuleInfo, SampleRecord

LABELS = ["german", "swahili", "german", None, "swahili", "german"]


def make_soft(run_id: str = "soft", **soft: np.ndarray) -> RunArrays:
    """Six samples of two tokens in two batches; each array of ``soft`` has six rows."""
    axes = {"source": ("layer 0", "layer 1", "text"), "target": ("layer 0", "layer 1", "words")}
    batches = [
        routed(
            [SampleRecord(num_tokens=2, label=label) for label in LABELS[part]],
            np.zeros((6, 2, 1), dtype=np.uint8),
            gate_entropy=np.zeros((6, 2), dtype=np.float32),
            flops=np.ones(6, dtype=np.float32),
            **{name: values[part] for name, values in soft.items()},
        )
        for part in (slice(0, 3), slice(3, 6))
    ]
    modules = [ModuleInfo(None, i, f"layer {i}", "layer", 1, 1) for i in range(3)]
    info = run_info(run_id, model="m", family="hmodel", dataset="d", split="", engine_version="", axes=axes)
    return RunArrays(info, modules, batches)
