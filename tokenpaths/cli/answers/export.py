"""``tokenpaths export``: a table of a run as CSV, Parquet or Arrow, or the run as a Hugging Face data set."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenpaths.cli.support.light_imports import without_pandas
from tokenpaths.cli.support.options import DataDir, named_file
from tokenpaths.cli.support.refusals import problems_as_errors
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run


class Format(StrEnum):
    """File formats."""

    csv = "csv"
    parquet = "parquet"
    arrow = "arrow"
    dataset = "dataset"


def export(
    run: Annotated[str, typer.Argument(help="Name of the run, as `tokenpaths ls` shows it.")],
    table: Annotated[
        str | None, typer.Argument(help="Table: path, token, sample, flow … [default: list the tables of the run].")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            "-o",
            help="File to write, of a dataset the new folder [default: standard output].",
            parser=named_file,
            metavar="PATH",
        ),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            "-f",
            help="File format [default: by the file's name, else csv]; dataset: the whole run as a Hugging Face data "
            "set with a card.",
        ),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Write one table of a run to a file or to standard output; without a table, list those that there are.

    Example: tokenpaths export scenes-dna-vision-top1 path -o paths.parquet

    Example: tokenpaths export scenes-dna-vision-top1 --format dataset --out scenes-paths/
    """
    from tokenpaths.backend.runs.registry import RunRegistry
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.engine.base.files import keep_free

    settings = load_settings(data_dir=data_dir)
    keep_free(settings.least_free_megabytes * 1e6)
    chosen = format or _format_of(output)
    if chosen is Format.dataset and (table is not None or output is None):
        raise UserError(
            "--format dataset writes the whole run into a folder: name the folder with --out, and no table.",
            field="output" if output is None else "table",
        )
    if table is None and chosen is not Format.dataset and (output is not None or format is not None):
        raise UserError("Say which table to write; `tokenpaths export RUN` alone lists them.", field="table")
    if output is None and chosen is not Format.csv and sys.stdout.isatty():
        raise UserError(f"{chosen.value} is not for the eye; name a file with --output.", field="output")
    registry = RunRegistry.of(settings, time_limit_s=3600)
    light = nullcontext() if chosen is Format.dataset else without_pandas()  # the library of data sets needs it
    with closing(registry), light, problems_as_errors(), registry.lease(run) as opened:
        if chosen is Format.dataset and output is not None:
            _save(opened, output)
        elif table is None:
            for row in opened.tables()["tables"]:
                print(f"{row['table']:<14} {row['num_rows']:>13,}  {row['what']}")
        else:
            _write(opened.export(str(table), chosen.value), output)


def _format_of(output: Path | None) -> Format:
    if output is None:
        return Format.csv
    try:
        return Format(output.suffix.removeprefix(".").lower())
    except ValueError:
        raise UserError(
            f"The name {output.name} says no format; end it with .csv, .parquet or .arrow, or give --format.",
            field="format",
        ) from None


def _write(chunks: Iterator[bytes], output: Path | None) -> None:
    """All of ``chunks`` to the file (all or nothing) or to standard output."""
    if output is None:
        for chunk in chunks:
            sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        return
    from tokenpaths.engine.base.files import atomic_file

    try:
        if output.exists() and not output.is_file() and not output.is_dir():
            with open(output, "wb") as pipe:  # pipes and devices are written to, never replaced
                _copy(chunks, pipe.write)
            return
        with atomic_file(output) as temporary_file, open(temporary_file, "wb") as file:
            num_bytes = _copy(chunks, file.write)
    except OSError as error:
        raise UserError(f"{output} cannot be written: {error.strerror or error}.", field="output") from None
    print(f"{output}: {num_bytes:,} bytes", file=sys.stderr)


def _save(run: Run, folder: Path) -> None:
    """The run as a data set in a new folder, whole or not at all."""
    try:
        num_bytes = run.save_dataset(folder)
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}.", field="output") from None
    print(f"{folder}: {num_bytes:,} bytes; open it with datasets.load_from_disk", file=sys.stderr)


def _copy(chunks: Iterator[bytes], write: Callable[[bytes], object]) -> int:
    """Pass all chunks on; on a terminal, show size and rate once it takes longer than two seconds."""
    began = shown = time.monotonic()
    num_bytes = 0
    for chunk in chunks:
        write(chunk)
        num_bytes += len(chunk)
        now = time.monotonic()
        if sys.stderr.isatty() and now - began > 2 and now - shown > 0.2:
            shown = now
            rate = num_bytes / 1e6 / (now - began)
            print(f"\r{num_bytes / 1e6:,.1f} MB, {rate:,.1f} MB/s", end="", file=sys.stderr, flush=True)
    if shown != began:
        print(file=sys.stderr)
    return num_bytes
