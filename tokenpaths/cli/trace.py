"""``tokenpaths trace``: a model over a data set, sealed as a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.support.later_twins import queue_twin, traced_with
from tokenpaths.cli.support.options import DataDir, folder_option, takes
from tokenpaths.cli.support.refusals import refuse_taken_name
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.cli.support.edited import Wanted
    from tokenpaths.cli.support.shards import OneShard
    from tokenpaths.engine.adapters.find_traceable import FoundModel
    from tokenpaths.engine.data.datasets import Dataset
    from tokenpaths.engine.tracing.trace_run import TraceProgress


class Twin(StrEnum):
    """When the untrained twin is traced."""

    NOW, LATER, NO = "now", "later", "no"


@dataclass(frozen=True)
class TraceCommand:
    """Options of ``tokenpaths trace``."""

    model: Annotated[
        str,
        typer.Option(
            help="Name of a model (tokenpaths ls models), or its folder; hf:<name>, hf:<folder> or hf:<owner/name> "
            "for a Hugging Face mixture of experts."
        ),
    ]
    data: Annotated[
        str,
        typer.Option(
            help="Folder of images or texts, saved Hugging Face data set, Parquet, Arrow, CSV or JSONL file, "
            "WebDataset archives ('shard-{000..003}.tar' or their folder), one image or text, or a bundled set such as "
            "bundled:scenes, bundled:photos or bundled:texts. docs/data.md"
        ),
    ]
    run: Annotated[str | None, typer.Option(help="Name of the run [default: made from model, data and time].")] = None
    limit: Annotated[int | None, typer.Option(help="Maximum number of samples, spread over labels.", min=1)] = None
    text_column: Annotated[str | None, typer.Option(help="Column with the text.")] = None
    image_column: Annotated[str | None, typer.Option(help="Column with the encoded image, or with its file (CSV).")] = (
        None
    )
    label_column: Annotated[str | None, typer.Option(help="Column with the label or domain.")] = None
    split: Annotated[str | None, typer.Option(help="Split of a data set that has several, such as test.")] = None
    passage_chars: Annotated[
        int | None, typer.Option(help="Cut longer texts into passages of so many characters, a sample each.", min=1)
    ] = None
    batch_size: Annotated[int, typer.Option(help="Images, or stretches of 64 tokens, at once.", min=1)] = 64
    twin: Annotated[
        Twin,
        typer.Option(
            help="The untrained twin, a null of every statistic: trace it now, leave it to a job of `tokenpaths up` or "
            "`tokenpaths worker` (later), or do without (no). One that is kept from an earlier trace is used at once."
        ),
    ] = Twin.NOW
    untrained: Annotated[
        bool, typer.Option("--untrained", help="Trace the untrained twin itself, as a run of its own to compare with.")
    ] = False
    skip_bad: Annotated[bool, typer.Option(help="Leave out samples that cannot be read, and say which.")] = False
    overwrite: Annotated[bool, typer.Option(help="Replace a run of the same name.")] = False
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu [default: the best there is].")] = None
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, bfloat16 or float16, for hf: models [default: as the checkpoint was saved]."),
    ] = None
    controls: Annotated[
        str | None,
        typer.Option(
            help="What is to be different, as JSON, as in POST /traces: "
            '{"edits": [{"edit": "ban", "modules": [3], "step": 1}]}; docs/edits.md says what a family has.'
        ),
    ] = None
    beside: Annotated[
        bool, typer.Option("--beside", help="With --controls: trace unchanged too, and print the effect.")
    ] = False
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="i/N", help="Trace only part i of N, for `tokenpaths seal` to join; needs --run. docs/scale.md"
        ),
    ] = None
    shards: Annotated[
        int | None, typer.Option(help="Trace so many shards side by side, then seal; needs --run.", min=1, max=9999)
    ] = None
    workers: Annotated[
        int | None, typer.Option(help="With --shards: so many at a time on this machine [default: 2].", min=1)
    ] = None
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="With --shards: run them on this Ray cluster; auto finds the running one, local starts one here.",
        ),
    ] = None
    shards_dir: Annotated[
        Path | None, folder_option("Folder for shards, one that all workers see [default: in the data folder].")
    ] = None
    data_dir: DataDir = None


@takes(TraceCommand)
def trace(context: typer.Context, options: TraceCommand) -> None:
    """Trace every token's path and keep it as one run file.

    Interrupting leaves nothing behind that looks like a run.

    Example: tokenpaths trace --model dna-vision-top1 --data bundled:scenes

    On many machines: tokenpaths trace … --run big --shard 3/8 on each, then tokenpaths seal big
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.support.edited import name_before, wanted
    from tokenpaths.cli.support.shards import requested_shard, trace_on_workers
    from tokenpaths.engine.base.files import keep_free

    settings = load_settings(data_dir=options.data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    ask = wanted(options.controls, options.beside)
    _refuse_later(options)
    shard = requested_shard(
        settings,
        options.shard,
        options.run,
        options.shards_dir,
        options.overwrite,
        options.beside,
        options.shards is not None,
    )
    if shard is None:
        refuse_taken_name(settings, options.run, options.overwrite)
    if options.shards is not None:
        trace_on_workers(context, settings, options.shards, options.workers or 2, options.ray)
        return
    if options.workers is not None:
        raise UserError("--workers is for --shards N.", field="workers")
    if options.ray is not None:
        raise UserError("--ray is for --shards N.", field="ray")
    if options.beside:
        refuse_taken_name(settings, name_before(options.run), options.overwrite)
    _trace(settings, options, ask, shard)


def _trace(settings: Settings, options: TraceCommand, ask: Wanted | None, shard: OneShard | None) -> None:
    """A run, or one shard of it; what can be refused is, before weights are read or fetched."""
    from tokenpaths.cli.support.edited import say_effect, trace_edited, under_controls
    from tokenpaths.cli.support.progress_bar import bar, waiting
    from tokenpaths.cli.support.shards import AlreadyTraced, made_with
    from tokenpaths.engine.store.write.writer import remove_abandoned
    from tokenpaths.engine.tracing.trace_run import TraceOptions, trace_samples
    from tokenpaths.engine.tracing.traceable import as_untrained

    if shard and ask and "ban_share" in ask.controls:
        raise UserError("ban_share counts over all samples; leave out --shard.", field="controls")
    source = _find(settings, options, ask.controls if ask else None)
    dataset = _open(options, source)
    is_later = options.twin is Twin.LATER and not options.untrained
    later = traced_with(settings, asdict(options)) if is_later else None
    with waiting(f"loading {source.name}"):
        loaded: Any = source.load()
        source.note_place(loaded, settings.checkpoints_dir)
        loaded = under_controls(loaded, ask) if ask else loaded
        loaded = as_untrained(loaded) if options.untrained else loaded
        remove_abandoned(settings.runs_dir)
    part = shard.part_of(dataset, options.batch_size) if shard else dataset
    alike = {name: getattr(options, name) for name in ("batch_size", "skip_bad", "passage_chars")}
    alike["twin"] = options.twin is Twin.NOW
    tracing = TraceOptions(
        run_id=options.run,
        dataset=dataset.name,
        split=dataset.split,
        regions=dataset.regions if source.modality == "vision" else (),
        batch_size=options.batch_size,
        total=part.num_samples,
        # The untrained twin is the null model of the unedited model only.
        twin=options.twin is not Twin.NO and (ask is None or ask.beside) and not options.untrained,
        twin_later=later is not None,
        overwrite=options.overwrite,
        make_writer=shard.writer_for(part, alike, made_with(loaded.device)) if shard else None,
    )
    before = effect = done = None
    with bar(f"{loaded.name} on {dataset.name}{shard or ''}", part.num_samples, "samples") as progress:

        def show(p: TraceProgress) -> None:
            progress.update(p.samples, p.words)

        try:
            if ask:
                before, path, effect = trace_edited(loaded, part, settings.runs_dir, ask, tracing, show)
            else:
                path = trace_samples(loaded, part, settings.runs_dir, options=tracing, on_progress=show)
        except AlreadyTraced as known:
            done = known.manifest
    _say_what_was_skipped(part)
    if shard:
        shard.say(done, str(options.run), part, options.batch_size)
        return
    if loaded.classes:
        _say_what_is_unknown(path, loaded.name, loaded.classes)
    if before is not None and effect is not None:
        say_effect(effect)
        typer.echo(f"run {before.stem} is in {before}")
    typer.echo(f"run {path.stem} is in {path}")
    if later is not None and loaded.has_small_twin and (job := queue_twin(settings, path, later)):
        typer.echo(f"its untrained twin waits for `tokenpaths up` or `tokenpaths worker` (job {job})")


def _refuse_later(options: TraceCommand) -> None:
    """A job traces whole data sets, unedited, on the device of its worker."""
    own = ("shard", "shards", "controls", "device", "dtype")
    given = [f"--{name}" for name in own if getattr(options, name) is not None]
    if options.twin is Twin.LATER and given:
        raise UserError(
            f"--twin later leaves the twin to a job, which has no {given[0]}: give now or no.", field="twin"
        )


def _find(settings: Settings, options: TraceCommand, controls: dict[str, Any] | None) -> FoundModel:
    """The model, and a sentence for options that it cannot have."""
    from tokenpaths.cli.support.progress_bar import waiting
    from tokenpaths.engine.adapters.find_traceable import find_traceable

    if options.untrained and controls is not None:
        raise UserError("--untrained is for models as they are, without --controls.", field="untrained")
    with waiting(f"looking at {options.model.removeprefix('hf:')}"):
        source = find_traceable(
            options.model, settings.all_models_dirs, options.device, options.dtype, controls, settings.checkpoints_dir
        )
    if options.image_column is not None and source.modality != "vision":
        raise UserError(f"{source.name} takes texts; --image-column is for images.", field="image_column")
    return source


def _open(options: TraceCommand, found: FoundModel) -> Dataset:
    from tokenpaths.engine.data.datasets import open_dataset

    if options.passage_chars is not None and found.modality != "text":
        raise UserError(f"{found.name} takes images; --passage-chars is for texts.", field="passage_chars")
    names = ("text_column", "image_column", "label_column", "split", "limit", "skip_bad", "passage_chars")
    return open_dataset(options.data, found.modality, **{name: getattr(options, name) for name in names})


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
    """Notes on labels and files, and the samples left out."""
    for note in (*dataset.notes, *dataset.walk.remarks.sentences()):
        typer.echo(f"note: {note}", err=True)
    if not dataset.walk.left_out:
        return
    shown = len(dataset.walk.problems)
    first = f"; the first {shown}" if shown < dataset.walk.left_out else ""
    samples = "sample was" if dataset.walk.left_out == 1 else "samples were"
    typer.echo(f"{dataset.walk.left_out:,} {samples} left out{first}:", err=True)
    for problem in dataset.walk.problems:
        typer.echo(f"  {problem}", err=True)
