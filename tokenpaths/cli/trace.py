"""``tokenpaths trace``: a model over a data set, sealed as a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.support.options import DataDir, folder_option
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.cli.edited import Wanted
    from tokenpaths.cli.support.shards import WishedShard
    from tokenpaths.engine.data.datasets import Dataset
    from tokenpaths.engine.tracing.trace_run import TraceProgress


def trace(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="Name of a model (tokenpaths ls models), or its folder; hf:<folder> or hf:<owner/name> for a "
            "Hugging Face mixture of experts."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="Image folder, Parquet or JSONL file, text file or folder of them, one image, or "
            "a bundled set such as bundled:scenes, bundled:photos or bundled:texts."
        ),
    ],
    run: Annotated[str | None, typer.Option(help="Name of the run [default: made from model, data and time].")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many samples, spread over labels.", min=1)] = None,
    text_column: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    image_column: Annotated[str | None, typer.Option(help="Column with the encoded image.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Column with the label or domain.")] = None,
    passage_chars: Annotated[
        int | None, typer.Option(help="Cut longer texts into passages of so many characters, a sample each.", min=1)
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images, or stretches of 64 tokens, at once.", min=1)] = 64,
    twin: Annotated[bool, typer.Option(help="Trace the untrained twin too, as the null.")] = True,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Trace the untrained twin itself, as a run of its own to compare with.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option(help="Leave out samples that cannot be read, and say which.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace a run of the same name.")] = False,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu [default: the best there is].")] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16, for hf: models [default: as the checkpoint was saved]."),
    ] = None,
    controls: Annotated[
        str | None,
        typer.Option(
            help="What is to be different, as JSON, as in POST /traces: "
            '{"edits": [{"edit": "ban", "modules": [3], "step": 1}]}; docs/edits.md says what a family has.'
        ),
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside", help="With --controls: trace unchanged too, and print the effect.")
    ] = False,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="i/N", help="Trace only part i of N, for `tokenpaths seal` to join; needs --run. docs/scale.md"
        ),
    ] = None,
    shards: Annotated[
        int | None, typer.Option(help="Trace so many shards side by side, then seal; needs --run.", min=1, max=9999)
    ] = None,
    workers: Annotated[int, typer.Option(help="With --shards: so many at a time on this machine.", min=1)] = 2,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --shards: run them on this Ray cluster; auto finds the running one, local starts one here.",
        ),
    ] = None,
    shards_dir: Annotated[
        Path | None, folder_option("Folder for shards, one that all workers see [default: in the data folder].")
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Trace every token's path and keep it as one run file.

    Interrupting leaves nothing behind that looks like a run.

    Example: tokenpaths trace --model dna-vision-top1 --data bundled:scenes

    On many machines: tokenpaths trace … --run big --shard 3/8 on each, then tokenpaths seal big
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.edited import name_before, say_effect, trace_beside, under_controls, wanted
    from tokenpaths.cli.support.shards import AlreadyTraced, made_with, wished_shard
    from tokenpaths.engine.base.files import keep_free

    settings = load_settings(data_dir=data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    ask = wanted(controls, beside)
    wish = wished_shard(settings, shard, run, shards_dir, overwrite, beside, shards is not None)
    if wish is None:
        _refuse_taken_name(settings, run, overwrite)
    if shards is not None:
        from tokenpaths.cli.support.shards import trace_on_workers

        trace_on_workers(context, settings, shards, workers, ray)
        return
    if ray is not None:
        raise UserError("--ray is for --shards N.", field="ray")
    if beside:
        _refuse_taken_name(settings, name_before(run), overwrite)
    if untrained and (ask or model.startswith("hf:")):
        raise UserError("--untrained is for models of this program as they are, without --controls.", field="untrained")
    if model.startswith("hf:"):
        if image_column is not None:
            raise UserError("a Hugging Face model takes texts; --image-column is for images.", field="image_column")
        columns = {"text_column": text_column, "label_column": label_column}
        reading = {"limit": limit, "skip_bad": skip_bad, "passage_chars": passage_chars, **columns}
        writing = {"run_id": run, "batch_size": batch_size, "overwrite": overwrite}
        _trace_huggingface(settings, model, data, reading, writing, device, dtype or "auto", twin, ask, wish)
        return
    if dtype is not None:
        raise UserError("--dtype is for hf: models; the others run as they were trained.", field="dtype")
    from tokenpaths.cli.support.progress_bar import bar, waiting
    from tokenpaths.engine.data.datasets import open_dataset
    from tokenpaths.engine.store.write.writer import remove_abandoned
    from tokenpaths.engine.tracing.trace_run import as_untrained, find_checkpoint, load_model, trace_samples

    folders = settings.all_models_dirs
    checkpoint = find_checkpoint(model, folders)
    modality = checkpoint.config.modality
    if passage_chars is not None and modality != "text":
        raise UserError(f"{checkpoint.name} takes images; --passage-chars is for texts.", field="passage_chars")
    dataset = open_dataset(
        data,
        modality,
        text_column=text_column,
        image_column=image_column,
        label_column=label_column,
        limit=limit,
        skip_bad=skip_bad,
        passage_chars=passage_chars,
    )
    with waiting(f"loading {checkpoint.name}"):
        loaded = load_model(checkpoint.path, folders, device)
        loaded = under_controls(loaded, ask) if ask else loaded
        loaded = as_untrained(loaded) if untrained else loaded
        remove_abandoned(settings.runs_dir)
    alike = {"batch_size": batch_size, "twin": twin, "skip_bad": skip_bad, "passage_chars": passage_chars}
    part = wish.part_of(dataset, batch_size) if wish else dataset
    options: dict[str, Any] = {
        "dataset": dataset.name,
        "split": dataset.split,
        "regions": dataset.regions,
        "batch_size": batch_size,
        "total": part.num_samples,
        "overwrite": overwrite,
        "make_writer": wish.writer_for(part, alike, made_with(loaded.device)) if wish else None,
    }
    before = effect = done = None
    with bar(f"{loaded.name} on {dataset.name}{wish or ''}", part.num_samples, "samples") as progress:

        def told(p: TraceProgress) -> None:
            progress.update(p.samples, p.words)

        if ask and ask.beside:
            before, path, effect = trace_beside(loaded, dataset, settings.runs_dir, options, run, twin, told)
        else:
            # The untrained twin is the null of the model as it is, not of an edited one.
            twin = twin and ask is None and not untrained
            try:
                path = trace_samples(
                    loaded, part, settings.runs_dir, run_id=run, twin=twin, on_progress=told, **options
                )
            except AlreadyTraced as known:
                done = known.manifest
    _say_what_was_skipped(part)
    if wish:
        wish.say(done, str(run))
        return
    if loaded.classes:
        _say_what_is_unknown(path, loaded.name, loaded.classes)
    if before is not None and effect is not None:
        say_effect(effect)
        typer.echo(f"run {before.stem} is in {before}")
    typer.echo(f"run {path.stem} is in {path}")


def _trace_huggingface(
    settings: Settings,
    model: str,
    data: str,
    reading: dict[str, Any],
    writing: dict[str, Any],
    device: str | None,
    dtype: str,
    twin: bool,
    ask: Wanted | None,
    wish: WishedShard | None,
) -> None:
    """A Hugging Face model over texts; what can be refused is, before weights are read or fetched."""
    from tokenpaths.cli.edited import say_effect, trace_huggingface_edited
    from tokenpaths.cli.support.progress_bar import bar, waiting
    from tokenpaths.cli.support.shards import AlreadyTraced, made_with
    from tokenpaths.engine.adapters.huggingface.tracing import check_options, find_model, load, trace_texts
    from tokenpaths.engine.data.datasets import open_dataset
    from tokenpaths.engine.store.write.writer import remove_abandoned

    if ask is not None:
        from tokenpaths.engine.edits.expert_bans import read_controls

        if wish:
            raise UserError("an edited Hugging Face model is traced as a whole; leave out --shard.", field="controls")
        read_controls(ask.controls)
    check_options(device, dtype)
    with waiting(f"looking at {model[3:]}"):
        source = find_model(model)
    dataset = open_dataset(data, "text", **reading)
    with waiting(f"loading {source.name}"):
        loaded = load(source, device, dtype, twin=twin and (ask is None or ask.beside))
        remove_abandoned(settings.runs_dir)
    before = effect = done = None
    part = wish.part_of(dataset, writing["batch_size"]) if wish else dataset
    with bar(f"{loaded.name} on {dataset.name}{wish or ''}", part.num_samples, "samples") as progress:

        def told(p: TraceProgress) -> None:
            progress.update(p.samples, p.words)

        writing |= {"dataset": dataset.name, "split": dataset.split, "total": part.num_samples}
        run = writing.pop("run_id")
        if ask is not None:
            before, path, effect = trace_huggingface_edited(loaded, dataset, settings.runs_dir, ask, writing, run, told)
        elif wish:
            names = ("batch_size", "passage_chars", "skip_bad")
            alike = {"twin": twin} | {name: (writing | reading)[name] for name in names}
            make = wish.writer_for(part, alike, made_with(loaded.device))
            try:
                trace_texts(loaded, part, settings.runs_dir, run_id=run, on_progress=told, make_writer=make, **writing)
            except AlreadyTraced as known:
                done = known.manifest
        else:
            path = trace_texts(loaded, dataset, settings.runs_dir, run_id=run, on_progress=told, **writing)
    _say_what_was_skipped(part)
    if wish:
        wish.say(done, str(run))
        return
    if before is not None and effect is not None:
        say_effect(effect)
        typer.echo(f"run {before.stem} is in {before}")
    typer.echo(f"run {path.stem} is in {path}")


def _refuse_taken_name(settings: Settings, run: str | None, overwrite: bool) -> None:
    """Before anything is loaded: a name that is none, or is taken."""
    from tokenpaths.engine.base.files import run_file

    if run is not None and run_file(settings.runs_dir, run).exists() and not overwrite:
        raise UserError(f"There is a run {run!r} already; give another name with --run, or --overwrite.", field="run")


def _say_what_is_unknown(path: Path, model: str, classes: tuple[str, ...]) -> None:
    """Labels that are none of the model's classes: those samples are neither right nor wrong."""
    from tokenpaths.engine.store.ask.run import Run

    with Run.open(path) as run:
        labels = [row for row in run.info()["labels"] if row["label"] is not None]
    unknown = [row for row in labels if row["label"] not in classes]
    if not unknown:
        return
    named = ", ".join(row["label"] for row in unknown[:3]) + (" …" if len(unknown) > 3 else "")
    whom = "No label is" if len(unknown) == len(labels) else f"{len(unknown)} of {len(labels)} labels are not"
    samples = sum(row["num_samples"] for row in unknown)
    typer.echo(
        f"{whom} a class of {model} ({named}): {samples:,} samples have a prediction but no loss, and do not "
        "count in the accuracy.",
        err=True,
    )


def _say_what_was_skipped(dataset: Dataset) -> None:
    if not dataset.num_skipped:
        return
    shown = len(dataset.problems)
    first = f"; the first {shown}" if shown < dataset.num_skipped else ""
    samples = "sample was" if dataset.num_skipped == 1 else "samples were"
    typer.echo(f"{dataset.num_skipped:,} {samples} left out{first}:", err=True)
    for problem in dataset.problems:
        typer.echo(f"  {problem}", err=True)
