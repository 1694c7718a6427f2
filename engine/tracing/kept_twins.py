"""Untrained twins that were traced before: one twin's paths for all runs of one architecture over the same samples.

A twin's choices follow from the configuration of its model, the seed, the samples and how they are cut into passes, and
not from anything that was trained: checkpoints of one training, a model traced again, and an edited model beside its
unedited self share them. They are kept in ``twins/`` of the data folder, about 50 KB each, and may be deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

import torch

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import engine_version
from tokenpaths.engine.data.datasets import Dataset
from tokenpaths.engine.store.write.twin.twin_paths import TwinPaths, read_twin_file, write_twin_file
from tokenpaths.engine.tracing.traceable import Traceable

FOLDER = "twins"


def data_of_run(dataset: Dataset) -> str | None:
    """``Dataset.identity`` of what a run is traced over, which it holds as the finding ``DATA_SHA256``.

    Reads the data set's files once (of large sets their first and last parts). None of a shard, whose manifest has it,
    and where a file cannot be read: what that means is for the trace to say.
    """
    if dataset.num_rows != dataset.num_places:
        return None
    try:
        return dataset.identity()
    except UserError:
        return None


def twin_file(runs_dir: Path, model: Traceable, data: str | None, batch_size: int) -> Path | None:
    """Where the twin of ``model`` over the samples ``data`` (``data_of_run``) is kept; None outside a data folder."""
    if data is None or runs_dir.name != "runs":
        return None
    fields = model.without_controls().run_fields()
    what = {
        "engine": engine_version(),
        "torch": torch.__version__,  # draws the weights, and rounds
        "device": model.device.type,
        "kind": type(model).__name__,
        "family": fields["family"],
        "config": fields["config"],
        "top_k": fields["top_k"],
        "vocabulary": sorted(fields.get("token_texts", {}).items()),
        "before": list(model.before),
        "context": model.context,
        "image": [model.image_size, *model.grid],
        "data": data,
        "batch_size": batch_size,
    }
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
    return runs_dir.parent / FOLDER / f"{key[:40]}.npz"


def find_twin(file: Path | None) -> TwinPaths | None:
    """The kept paths of a twin, or None."""
    return None if file is None else read_twin_file(file)


def keep_twin(file: Path | None, twin: TwinPaths | None) -> None:
    """Keep the paths of a twin for the next run; a disk that refuses is no failure, the run has them."""
    if file is not None and twin is not None and twin.known is not None:
        with contextlib.suppress(OSError):
            write_twin_file(file, twin)
