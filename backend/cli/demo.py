"""``tokenpaths demo``: trace the bundled samples with the shipped models, once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SETS = {"vision": ("bundled:scenes", "bundled:photos"), "text": ("bundled:texts",)}


def demo(
    data_dir: Annotated[Path | None, typer.Option(help="Where runs are kept; default: your data folder.")] = None,
) -> None:
    """Trace the bundled scenes, photographs and texts with every shipped model.

    Runs that are there already stay, so a second call takes a moment.

    Example: tokenpaths demo && tokenpaths up
    """
    from engine.disk import data_dir as find_data_dir
    from engine.disk import run_file

    home = find_data_dir(data_dir)
    wanted = [
        (model, name, run_id)
        for model, modality in _shipped()
        for name in SETS[modality]
        if not run_file(home / "runs", run_id := f"{name.removeprefix('bundled:')}-{model}").exists()
    ]
    if wanted:
        _trace_all(wanted, home)


def _shipped() -> list[tuple[str, str]]:
    """(model, modality) of the shipped checkpoints; reads only their configurations, no torch."""
    import json

    from engine.disk import SHIPPED_MODELS

    found = []
    for path in sorted(SHIPPED_MODELS.glob("*/config.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        found.append((path.parent.name, about["config"]["modality"]))
    return found


def _trace_all(wanted: list[tuple[str, str, str]], home: Path) -> None:
    from backend.cli.bars import bar
    from engine.datasets import open_dataset
    from engine.tracing import load_model, models_folders, trace_samples

    for model, name, run_id in wanted:
        loaded = load_model(model, models_folders(home))
        dataset = open_dataset(name, loaded.modality)
        with bar(run_id, dataset.num_samples, "samples") as progress:
            trace_samples(
                loaded, dataset, home / "runs", run_id=run_id, dataset=dataset.name, split=dataset.split,
                regions=dataset.regions, total=dataset.num_samples,
                on_progress=lambda p, progress=progress: progress.update(p.samples, f"{p.tokens:,} tokens"),
            )  # fmt: skip
