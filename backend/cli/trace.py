"""``tokenpaths trace``: a model over a data set, sealed as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def trace(
    model: Annotated[str, typer.Option(help="Name of a model (tokenpaths ls), or its folder.")],
    data: Annotated[
        str,
        typer.Option(
            help="Image folder, Parquet or JSONL file, text file or folder of them, one image, or "
            "bundled:scenes, bundled:photos, bundled:texts."
        ),
    ],
    run: Annotated[str | None, typer.Option(help="Run id; default: made from model, data and time.")] = None,
    limit: Annotated[
        int | None, typer.Option(help="At most so many samples, spread over labels.", min=1)
    ] = None,
    text_column: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Column with the encoded image.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column with the label or domain.")] = None,
    batch_size: Annotated[int, typer.Option(help="Images, or stretches of 64 tokens, at once.", min=1)] = 64,
    twin: Annotated[bool, typer.Option(help="Trace the untrained twin too, as the null.")] = True,
    skip_bad: Annotated[
        bool, typer.Option(help="Leave out samples that cannot be read, and say which.")
    ] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a run of the same id.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; default: the best there is.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where runs are kept; default: your data folder.")
    ] = None,
) -> None:
    """Trace every token's path and keep it as one run file.

    Interrupting leaves nothing behind that looks like a run.

    Example: tokenpaths trace --model dna-vision-top1 --data bundled:scenes
    """
    from backend.cli.bars import bar
    from engine.datasets import open_dataset
    from engine.disk import data_dir as find_data_dir
    from engine.tracing import find_checkpoint, load_model, models_folders, trace_samples

    home = find_data_dir(data_dir)
    folders = models_folders(home)
    checkpoint = find_checkpoint(Path(model) if "/" in model else model, folders)
    dataset = open_dataset(
        data, checkpoint.config.modality, text_column=text_column,
        image_column=image_column, label_column=label_column, limit=limit, skip_bad=skip_bad,
    )  # fmt: skip
    loaded = load_model(checkpoint.path, folders, device)
    with bar(f"{loaded.name} on {dataset.name}", dataset.num_samples, "samples") as progress:
        path = trace_samples(
            loaded, dataset, home / "runs", run_id=run, dataset=dataset.name, split=dataset.split,
            regions=dataset.regions, batch_size=batch_size, total=dataset.num_samples, twin=twin,
            overwrite=overwrite,
            on_progress=lambda p: progress.update(p.samples, f"{p.tokens:,} tokens"),
        )  # fmt: skip
    for problem in dataset.problems:
        typer.echo(problem, err=True)
    typer.echo(f"run {path.stem} is in {path}")
