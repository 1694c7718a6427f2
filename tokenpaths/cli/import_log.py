"""``tokenpaths import``: a routing log of another program as a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenpaths.cli.support.options import DataDir, named_file, takes
from tokenpaths.cli.support.refusals import refuse_taken_name

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options of ``tokenpaths import``."""

    file: Annotated[Path, typer.Argument(help="The log, or a folder of its shards.", parser=named_file, metavar="file")]
    run: Annotated[str | None, typer.Option(help="Name of the run [default: made from file and time].")] = None
    format: Annotated[
        str | None,
        typer.Option(
            help="One of those in docs/import.md (vllm, sglang, megatron, llama.cpp, tensors …) or what a plugin adds "
            "[default: by its content]."
        ),
    ] = None
    model: Annotated[str | None, typer.Option(help="Model that wrote the log [default: as the log says].")] = None
    tokenizer: Annotated[
        Path | None, typer.Option(help="Folder with the model's tokenizer.json, to show tokens as text.")
    ] = None
    experts: Annotated[
        int | None, typer.Option(help="Experts a layer [default: as the log says, else the largest id].", min=1)
    ] = None
    layers: Annotated[int | None, typer.Option(help="Layers, where the log holds flat ids.", min=1)] = None
    top_k: Annotated[int | None, typer.Option(help="Experts a token and layer, where the log is flat.", min=1)] = None
    sequences: Annotated[
        int | None, typer.Option(help="Sequences that alternate in a forward pass (micro-batch size).", min=1)
    ] = None
    map: Annotated[Path | None, typer.Option(help="Column map (TOML) of a table that no format describes.")] = None
    series: Annotated[
        str | None, typer.Option(help="Name of the training that the log is of [default of several: the folder].")
    ] = None
    at: Annotated[int | None, typer.Option(help="Iteration of that training.", min=0)] = None
    skip_bad: Annotated[bool, typer.Option(help="Leave out what cannot be read, and count it.")] = False
    although: Annotated[bool, typer.Option(help="Import although the log holds an artefact.")] = False
    overwrite: Annotated[bool, typer.Option(help="Replace a run of the same name.")] = False
    data_dir: DataDir = None


@takes(ImportOptions)
def import_log(options: ImportOptions) -> None:
    """Import a log of expert choices (vLLM, SGLang, Megatron-LM, llama.cpp, tensors, tables …) as a run.

    A log that is wrong somewhere, or holds wrong data that looks right, leaves nothing behind. The formats are in
    docs/import.md. A folder of several checkpoints (FLAME-MoE) becomes a series: a run of each, and those before a
    wrong one stay.

    Example: tokenpaths import routed.jsonl --run my-model --experts 64
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.engine.base.files import keep_free

    settings = load_settings(data_dir=options.data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    from tokenpaths.engine.adapters.logs.tables.flame_moe import checkpoints
    from tokenpaths.engine.base.errors import UserError
    from tokenpaths.engine.jobs.import_log import run_of_series, series_name
    from tokenpaths.engine.store.ask.run_series import check_series_name

    if options.series is not None:
        check_series_name(options.series)
    if several := checkpoints(options.file):
        name = options.run or series_name(options.file.absolute().name)
        made: list[str] = []
        for iteration, folder in several.items():
            of, run = options.series or name, run_of_series(name, iteration)
            try:
                _import_one(replace(options, file=folder, run=run, series=of, at=iteration), settings)
            except UserError as error:
                if not made:
                    raise
                before = f"{', '.join(made)} {'was' if len(made) == 1 else 'were'} imported before"
                raise UserError(f"{str(error).rstrip('.')}; {before}", field=error.field) from None
            made.append(run)
        return
    if (options.series is None) != (options.at is None):
        raise UserError("--series and --at belong together: the name of the training, and its iteration", field="at")
    _import_one(options, settings)


def _import_one(options: ImportOptions, settings: Settings) -> None:
    """One log, one run."""
    file, run = options.file, options.run
    refuse_taken_name(settings, run, options.overwrite)
    from tokenpaths.cli.support.progress_bar import bar, waiting
    from tokenpaths.engine.adapters.expert_runs import Series
    from tokenpaths.engine.adapters.logs import importing
    from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
    from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts
    from tokenpaths.engine.store.write.writer import remove_abandoned

    try:
        with waiting(f"looking at {file.name}"):
            log = open_confined_log(
                file,
                options.format,
                layers=options.layers,
                top_k=options.top_k,
                experts=options.experts,
                sequences=options.sequences,
                skip_bad=options.skip_bad,
                column_map=options.map,
                model=options.model,
            )
            texts = importing.read_vocabulary(options.tokenizer) if options.tokenizer else None
            log = log.counted(settings.runs_dir)
            remove_abandoned(settings.runs_dir)
    except OnlyCounts as only:
        remove_abandoned(settings.runs_dir)
        _import_counts(only.counts, options, settings.runs_dir)
        return
    series = None if options.series is None else Series(options.series, int(options.at or 0))
    with bar(f"{file.name} ({log.format})", None, "tokens") as progress:
        path = importing.import_log(
            log,
            settings.runs_dir,
            run or importing.new_import_id(log.model or file.stem),
            model=options.model,
            token_texts=texts,
            overwrite=options.overwrite,
            although=options.although,
            series=series,
            on_progress=lambda p: progress.update(p.tokens, p.sealing),
        )
    from tokenpaths.engine.store.ask.run import Run

    with Run.open(path) as sealed:
        findings, card = sealed.info()["findings"], sealed.card()
    noticed = findings.get("import_doctor", [])
    for note in findings["notes"]:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"run {path.stem} is in {path}")
    tokens, samples = (_number_of(card[f"num_{noun}s"], noun) for noun in ("token", "sample"))
    typer.echo(f"{tokens} in {samples}; {_said(noticed)}")


def _number_of(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _import_counts(counts: ExpertCounts, options: ImportOptions, runs_dir: Path) -> None:
    """Make a run of loads, and tell the load of each layer."""
    from tokenpaths.engine.adapters.expert_runs import Series
    from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts
    from tokenpaths.engine.adapters.logs.importing import new_import_id
    from tokenpaths.engine.store.ask.run import Run

    file = options.file
    run = options.run or new_import_id(options.model or file.stem)
    series = None if options.series is None else Series(options.series, int(options.at or 0))
    path = import_counts(counts, file, runs_dir, run, model=options.model, overwrite=options.overwrite, series=series)
    _print_load(counts)
    with Run.open(path) as sealed:
        for note in sealed.info()["findings"]["notes"]:
            typer.echo(f"note: {note}", err=True)
    typer.echo(f"run {path.stem} is in {path}")
    times = len(set(counts.times or ()))
    when = f" at {times:,} {counts.axis}{'' if times == 1 else 's'}" if times else ""
    of = f" of {len(counts.domains):,} domains" if counts.domains else ""
    typer.echo(f"the load of {len(counts.layers)} layers × {counts.parts.shape[2]} experts{when}{of}, no tokens")


def _said(noticed: list[dict[str, str]]) -> str:
    """The findings of the doctor in a clause."""
    if not noticed:
        return "nothing suspicious was noticed"
    return f"noticed: {'; '.join(finding['test'] for finding in noticed)} (see the notes)"


def _print_load(counts: ExpertCounts) -> None:
    """What aggregates do say: the load of each layer."""
    rows = counts.load()
    width = max(len(str(row["layer"])) for row in rows)
    typer.echo(f"{'layer':<{width}}  {'choices':>12}  load entropy  MaxVio  effective top-k  dead experts")
    for row in rows:
        typer.echo(
            f"{row['layer']:<{width}}  {row['choices']:>12,}  {row['load_entropy']:>12.3f}  "
            f"{row['max_violation']:>6.2f}  {row['effective_top_k']:>15.2f}  {row['dead']:>12}"
        )
