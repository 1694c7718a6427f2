"""``tokenpaths demo``: trace the bundled samples with the shipped models, once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tokenpaths.cli.support.options import DataDir

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings

SETS = {"vision": ("bundled:photos", "bundled:scenes"), "text": ("bundled:texts",)}
OF_MODEL = {
    "raytracing-digits": ("bundled:digits",),
    "raytracing-cifar10": ("bundled:photos",),
    "hmodel-languages": ("bundled:languages",),
    # The causal twin of directional-text, for comparisons: trace it when you want to see it.
    "directional-text-prefix": (),
}
"""beginning of the names of models that learnt from something else than their kind usually does"""


def demo(data_dir: DataDir = None) -> None:
    """Trace the bundled pictures and texts with every shipped model.

    Runs that are there already stay, so a second call takes a moment.

    Example: tokenpaths demo && tokenpaths up
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.engine.base.files import run_file

    settings = load_settings(data_dir=data_dir)
    missing = [
        (model, name, run_id)
        for model, modality in _shipped()
        for name in _sets(model, modality)
        if not _is_there(run_file(settings.runs_dir, run_id := f"{name.removeprefix('bundled:')}-{model}"), model)
    ]
    if missing:
        _trace_all(missing, settings)


def _sets(model: str, modality: str) -> tuple[str, ...]:
    """The bundled sets that say something about a model."""
    return next((sets for name, sets in OF_MODEL.items() if model.startswith(name)), SETS[modality])


def _is_there(file: Path, model: str) -> bool:
    """Whether the run exists and is of the weights that ship now; seals are newer than the weights they are of."""
    from tokenpaths.engine.base.files import SHIPPED_MODELS

    weights = SHIPPED_MODELS / model / "model.safetensors"
    return file.exists() and (not weights.exists() or file.stat().st_mtime >= weights.stat().st_mtime)


def _shipped() -> list[tuple[str, str]]:
    """(model, modality) of the shipped checkpoints; reads only their configurations, no torch. The distributed
    architectures come last: the start page shows the newest runs first."""
    import json

    from tokenpaths.engine.base.files import SHIPPED_MODELS

    models = []
    for path in sorted(SHIPPED_MODELS.glob("*/config.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        models.append((path.parent.name, about["config"]["modality"]))
    return sorted(models, key=lambda row: (row[0].startswith("dna-"), row))


def _trace_all(missing: list[tuple[str, str, str]], settings: Settings) -> None:
    typer.echo(f"Tracing the bundled samples with the shipped models: {len(missing)} runs, once.", err=True)
    from tokenpaths.cli.support.progress_bar import Bar, bar
    from tokenpaths.engine.base.files import SHIPPED_MODELS
    from tokenpaths.engine.data.datasets import open_dataset
    from tokenpaths.engine.store.write.writer import remove_abandoned
    from tokenpaths.engine.tracing.loaded_model import load_model
    from tokenpaths.engine.tracing.trace_run import TraceProgress, trace_samples

    def follow(progress: Bar, now: TraceProgress) -> None:
        progress.update(now.samples, now.words)

    remove_abandoned(settings.runs_dir)
    for number, (model, name, run_id) in enumerate(missing, start=1):
        loaded = load_model(model, [SHIPPED_MODELS])
        dataset = open_dataset(name, loaded.modality)
        with bar(f"{run_id} ({number} of {len(missing)})", dataset.num_samples, "samples") as progress:
            trace_samples(
                loaded,
                dataset,
                settings.runs_dir,
                run_id=run_id,
                dataset=dataset.name,
                split=dataset.split,
                regions=dataset.regions,
                total=dataset.num_samples,
                overwrite=True,
                on_progress=partial(follow, progress),
            )
