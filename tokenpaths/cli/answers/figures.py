"""``tokenpaths figures``: the figures of the DNA paper that a run allows, ready for print, with their numbers."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.support.options import DataDir, folder_option, takes
from tokenpaths.cli.support.refusals import problems_as_errors
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.frontend.figures import Figure, Kind, Wishes


@dataclass(frozen=True, kw_only=True)
class FiguresOptions:
    """Options of ``tokenpaths figures``."""

    run: Annotated[str, typer.Option(help="Name of the run, as `tokenpaths ls` shows it.")]
    out: Annotated[Path, folder_option("Folder to make; one of earlier figures is replaced.")]
    only: Annotated[
        str | None, typer.Option(help="Only these figures, by the paper's numbers, such as fig2,fig7 [default: all].")
    ] = None
    beside: Annotated[str | None, typer.Option(help="A second run over the same samples, for figure 7.")] = None
    width: Annotated[str, typer.Option(help="Of one column of the page, in mm, cm, in or pt.")] = "89mm"
    format: Annotated[str, typer.Option(help="svg, png, csv and json, with commas between.")] = "svg,png,csv"
    sample: Annotated[int | None, typer.Option(help="Of the tinted image and the token flow.", min=0)] = None
    ranks: Annotated[str | None, typer.Option(help="Paths whose travellers are shown [default: 1,2,4,8 …].")] = None
    seed: Annotated[int, typer.Option(help="Of what is drawn at random.", min=0)] = 0
    dream: Annotated[bool, typer.Option("--dream", help="Dream first where no dream is there; takes minutes.")] = False
    data_dir: DataDir = None


@takes(FiguresOptions)
def figures(options: FiguresOptions) -> None:
    """Draw each figure of the DNA paper that the run allows: SVG, PNG, the data as CSV, and an index with the numbers.

    Example: tokenpaths figures --run scenes-dna-vision-top1 --out figures --only fig2,fig6
    """
    from tokenpaths.backend.runs.finished_dreams import dreams_of
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.dream import DreamOptions, find_dream
    from tokenpaths.frontend.figures import Wishes, chosen

    try:
        kinds = chosen((options.only or "").split(",") if options.only else [])
    except ValueError as error:
        raise UserError(f"{error}.", field="only") from None
    style = _Style(tuple(_formats(options.format)), millimetres(options.width))
    run, sample, ranks = options.run, options.sample, _ranks(options.ranks)
    settings = load_settings(data_dir=options.data_dir)
    with opened(settings, run, options.beside) as (source, other), figures_folder(options.out) as folder:
        info = source.info()
        if sample is not None and sample >= info["num_samples"]:
            raise UserError(f"Run {run} has samples 0 to {info['num_samples'] - 1}, not {sample}.", field="sample")
        dreams = dreams_of(settings, info)
        shows_dreams = {"fig4", "fig5"} & {kind.name for kind in kinds} and info["modality"] == "vision"
        if options.dream and shows_dreams and not dreams.found:
            find_dream(
                DreamOptions(
                    model=info["model"], run=run, sample=sample or 0, seed=options.seed, data_dir=options.data_dir
                )
            )
            dreams = dreams_of(settings, info)
        wishes = Wishes(seed=options.seed, sample=sample, ranks=ranks, other=other, dreams=dreams)
        _draw(source, wishes, kinds, style, folder, info)
    print(f"The figures of {run} are in {options.out}; index.md there has their captions and numbers.")


@dataclass(frozen=True)
class _Style:
    """How the figures are written."""

    formats: tuple[str, ...]
    column_mm: float
    """width of one column of the page"""


def _draw(
    source: Run, wishes: Wishes, kinds: Sequence[Kind], style: _Style, folder: Path, info: Mapping[str, Any]
) -> None:
    """All figures and the index into ``folder``; says each as it comes."""
    from tokenpaths.backend import __version__
    from tokenpaths.frontend.figures import draw_figures
    from tokenpaths.frontend.figures.files import Index, files_of

    about = {
        "run": info["run"],
        "model": info["model"],
        "checkpoint_sha256": info["checkpoint_sha256"],
        "dataset": info["dataset"],
        "num_samples": info["num_samples"],
        "num_tokens": info["num_tokens"],
        "created_at": str(info["created_at"]),
        "tokenpaths": __version__,
        "seed": wishes.seed,
    }
    index = Index(about)
    for kind, drawn, why in draw_figures(source, wishes, kinds, (UserError,)):
        names: dict[str, list[str]] = {}
        for figure in drawn:
            files = files_of(figure, style.formats, style.column_mm)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            names[figure.key] = list(files)
            print(f"{figure.key}: {figure.question}")
        index.add(kind, drawn, why, names)
        if why:
            say_missing(kind, drawn, why)
    (folder / "index.json").write_text(index.as_json(), "utf-8")
    (folder / "index.md").write_text(index.as_markdown(), "utf-8")


def say_missing(kind: Kind, drawn: Sequence[Figure], why: str) -> None:
    """Why a kind of figures was not drawn, or in part."""
    print(f"{kind.name}: {why}" if drawn else f"{kind.name}: not drawn. {why}")


@contextmanager
def opened(
    settings: Settings,
    run: str,
    beside: str | None,
    asked: str = "figures",
    *,
    options: tuple[str, str] = ("run", "beside"),
) -> Iterator[tuple[Run, Run | None]]:
    """The run and the one beside it, leased from the registry; ``asked``: what needs their tokens; ``options``: the
    names of both on the command line.

    Raises:
        UserError: a run is missing, cannot be read, or the two do not fit beside each other.
    """
    from tokenpaths.backend.runs.registry import RunRegistry

    registry = RunRegistry.of(settings, time_limit_s=600)
    with ExitStack() as stack:
        stack.callback(registry.close)

        def lease(name: str, option: str) -> Run:
            with problems_as_errors(option):
                leased = stack.enter_context(registry.lease(name))
                leased.need_tokens(asked)
                return leased

        both = lease(run, options[0]), lease(beside, options[1]) if beside is not None else None
        yield both


@contextmanager
def figures_folder(out: Path) -> Iterator[Path]:
    """A folder to write into, which becomes ``out`` when the block ends well; nothing is left where it does not.

    ``out`` may be new, empty, or of earlier figures; a folder with anything else in it is left alone (UserError).
    """
    from tokenpaths.engine.base.files import temporary_folder_beside

    old = _earlier(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = temporary_folder_beside(out)
    except OSError as error:
        raise UserError(f"{out.parent} cannot be written to: {error.strerror or error}.", field="out") from None
    try:
        yield folder
        new = sorted(file.name for file in folder.iterdir())
        if not out.exists():
            os.replace(folder, out)
            return
        for name in sorted(new, key=lambda name: name.startswith("index.")):  # what lists the others comes last
            os.replace(folder / name, out / name)
        for name in old - set(new):
            (out / name).unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}.", field="out") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _earlier(out: Path) -> set[str]:
    """Names of the files of earlier figures in ``out``; UserError where something else lies there."""
    from tokenpaths.frontend.figures.files import INDEX, MADE_BY

    try:
        there = {file.name for file in out.iterdir()}
    except FileNotFoundError:
        return set()
    except NotADirectoryError:
        raise UserError(f"{out} is a file; --out is a folder to make.", field="out") from None
    except OSError as error:
        raise UserError(f"{out} cannot be read: {error.strerror or error}.", field="out") from None
    if not os.access(out, os.W_OK):
        raise UserError(f"{out} cannot be written to: permission denied.", field="out")
    try:
        index = json.loads((out / "index.json").read_text("utf-8")) if there else {}
        ours = {name for row in index.get("figures", []) for name in row["files"]} if there else set()
        drawn_here = index.get("made_by") == MADE_BY
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        ours, drawn_here = set(), False
    strangers = sorted(there - ours - set(INDEX)) if drawn_here else sorted(there)
    if strangers:
        raise UserError(
            f"{out} holds other files ({', '.join(strangers[:3])}{' …' if len(strangers) > 3 else ''}); name a new "
            "folder with --out.",
            field="out",
        )
    return there


def millimetres(text: str) -> float:
    """``89mm``, ``8.9cm``, ``3.5in``, ``252pt`` or plain millimetres as a number between 30 and 600."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(mm|cm|in|pt)?\s*", text)
    size = float(match[1]) * {"mm": 1, "cm": 10, "in": 25.4, "pt": 25.4 / 72}[match[2] or "mm"] if match else 0.0
    if not 30 <= size <= 600:
        raise UserError(f"--width is {text[:40]!r}; give 30 to 600 mm, such as 89mm or 3.5in.", field="width")
    return size


def _formats(text: str) -> list[str]:
    from tokenpaths.frontend.figures.files import FORMATS

    formats = [part.strip().lower() for part in text.split(",") if part.strip()]
    if not formats or not set(formats) <= set(FORMATS):
        raise UserError(
            f"--format is {text[:40]!r}; it can be {', '.join(FORMATS)}, with commas between.", field="format"
        )
    return formats


def _ranks(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(r"[1-9]\d{0,9}", part) for part in parts):
        raise UserError(f"--ranks is {text[:40]!r}; give ranks from 1 on, such as 1,8,64.", field="ranks")
    return tuple(dict.fromkeys(map(int, parts)))
