"""``tokenpaths dream``: optimise an image or a text until a model takes chosen paths."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.support.options import DataDir, folder_option, takes
from tokenpaths.engine.base.errors import Held, UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.jobs.registry import JobContext


@dataclass(frozen=True, kw_only=True)
class DreamOptions:
    """Options of ``tokenpaths dream``."""

    model: Annotated[str, typer.Option(help="Name of a model (tokenpaths ls models), or its folder.")]
    run: Annotated[str | None, typer.Option(help="Run that the sample, or the rank, is of.")] = None
    sample: Annotated[int | None, typer.Option(help="The original: a sample of the run.", min=0)] = None
    data: Annotated[str | None, typer.Option(help="Or a bundled set, such as bundled:scenes, with --row.")] = None
    row: Annotated[int | None, typer.Option(help="Row of the bundled set, from 0.", min=0)] = None
    image: Annotated[Path | None, typer.Option(help="Or an image file.")] = None
    until: Annotated[
        list[int] | None, typer.Option(help="S: dream of decisions 1 … S; repeat for several [default: every S].")
    ] = None
    single: Annotated[bool, typer.Option(help="Decision S alone, not those up to S.")] = False
    patches: Annotated[str | None, typer.Option(help="Only these patches or tokens, such as 3,4,12.")] = None
    like: Annotated[int | None, typer.Option(help="Only the patches on the same path as this one.", min=0)] = None
    draw: Annotated[int | None, typer.Option(help="Only so many, drawn by the seed.", min=1)] = None
    context: Annotated[
        str, typer.Option(help="without, with (the group keeps the original's pixels), or both as a pair.")
    ] = "without"
    logits: Annotated[bool, typer.Option(help="Maximise logits in place of probabilities.")] = False
    rank: Annotated[int | None, typer.Option(help="Dream of the run's path of this rank.", min=1)] = None
    module: Annotated[int | None, typer.Option(help="Dream of a module, at all or some steps.", min=0)] = None
    step: Annotated[list[int] | None, typer.Option(help="Step from 0, for --module; repeat for several.")] = None
    direction: Annotated[str | None, typer.Option(help="Directional Routing: layer.head.direction, from 0.")] = None
    connection: Annotated[str | None, typer.Option(help="H-Model: iteration.source.target, from 0.")] = None
    block: Annotated[str | None, typer.Option(help="RayTracing: layer.block, from 0.")] = None
    class_index: Annotated[int | None, typer.Option("--class", help="A class by its number.", min=0)] = None
    iterations: Annotated[int | None, typer.Option(help="How many [default: 2048 for images, 64 for texts].")] = None
    rate: Annotated[float | None, typer.Option(help="Adam's rate for images [default: 0.001].")] = None
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Dream images with products in bfloat16: faster, another picture.")
    ] = False
    first: Annotated[
        int | None, typer.Option(help="Of a text's choices: the token that the dream begins with.", min=0)
    ] = None
    length: Annotated[int | None, typer.Option(help="Tokens of a dreamed text [default: 12].")] = None
    fluency: Annotated[float | None, typer.Option(help="Weight of how well a text reads [default: 0.05].")] = None
    seed: Annotated[int, typer.Option(help="Same seed, same dream.", min=0)] = 0
    out: Annotated[Path | None, folder_option("Folder [default: in dreams/ of the data folder].")] = None
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu [default: the best there is].")] = None
    data_dir: DataDir = None


@takes(DreamOptions)
def dream(options: DreamOptions) -> None:
    """Dream: find the image or the text that makes a model take chosen paths.

    Without --rank, --module, --direction, --connection, --block or --class the dream repeats the choices of an
    original. Stopped with Ctrl-C, the same command goes on.

    Example: tokenpaths dream --model dna-vision-top1 --data bundled:scenes --row 3 --until 5
    """
    find_dream(options)


def find_dream(options: DreamOptions) -> None:
    """Check the request, then iterate to the end or until Ctrl-C.

    Raises:
        UserError: options that contradict each other, or that do not fit the model.
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.engine.dream.dream_request import DreamRequest
    from tokenpaths.engine.jobs.dream import DreamJob
    from tokenpaths.engine.jobs.registry import find_kind, read_request

    settings = load_settings(data_dir=options.data_dir)
    model, beside = _named(options.model)
    options = replace(options, model=model)
    context = _context(settings, options.device, beside)
    modality = _modality(options.model, context)
    _refuse_of_the_other(options, modality)
    values = _request(options, modality)
    copy = None
    if options.image is not None:
        values["inbox"], copy = _into_inbox(options.image, context)
    try:
        request = read_request(find_kind("dream"), values)
        assert isinstance(request, DreamRequest), "the request of a DreamJob"
        DreamJob.check(request, context)
    except UserError as error:
        if copy is not None:
            copy.unlink(missing_ok=True)
        message = _with_flags(str(error))
        if options.image is not None:
            message = message.replace(values["inbox"], str(options.image))
        raise UserError(message, field=error.field) from None
    folder = options.out or settings.data_dir / "dreams" / _name(options.model, request.model_dump_json())
    with _alone_in(folder):
        _iterate(request, folder, context)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other processes out of a dream's folder: two would write over each other's states (Held)."""
    from tokenpaths.engine.base.files import HolderLock

    folder.mkdir(parents=True, exist_ok=True)
    lock = HolderLock(folder / ".lock")
    try:
        lock.acquire()
    except Held as error:
        holder = str(error).partition(":")[0]
        raise Held(
            f"another process dreams in {folder} ({holder}); wait for it, or give another folder with --out",
            field="out",
        ) from None
    try:
        yield
    finally:
        lock.release()


def _modality(model: str, context: JobContext) -> str | None:
    """``vision`` or ``text``; None where the model cannot be read, which the check of the request refuses."""
    from tokenpaths.engine.families.checkpoint_config import read_checkpoint

    try:
        return str(read_checkpoint(context.model_dir(model)).config.modality)
    except UserError:
        return None


def _refuse_of_the_other(options: DreamOptions, modality: str | None) -> None:
    """UserError for options of texts beside a model of images, and the other way round."""
    from tokenpaths.engine.jobs.dream_check import of_the_other_modality

    settings = {"vision": ("length", "fluency"), "text": ("rate", "bfloat16")}.get(str(modality), ())
    given = [name for name in settings if getattr(options, name) not in (None, False)]
    if given:
        flags = " and ".join(f"--{name}" for name in given)
        raise UserError(of_the_other_modality(flags, len(given), options.model, modality == "text"), field=given[0])


def _request(options: DreamOptions, modality: str | None) -> dict[str, Any]:
    """The fields of a request of the dream job, but for the inbox file."""
    target = _target(options)
    if target["of"] == "choices":
        form = "single" if options.single else "cumulative"
        target |= {"until": options.until or None, "form": form, "context": options.context, "first": options.first}
    elif options.until or options.single or options.first is not None or options.context != "without":
        raise UserError(
            "--until, --single, --first and --context are for the choices of an original, not for a dream "
            f"of a {target['of']}.",
            field="until",
        )
    if target["of"] in ("choices", "path", "module"):
        patches = None if options.patches is None else _numbers(options.patches, "patches")
        group = _without_none({"patches": patches, "like": options.like, "draw": options.draw})
        target |= {"group": group, "scores": "logits" if options.logits else "probs"}
    names = ("model", "run", "sample", "data", "row", "seed")
    values = _without_none({name: getattr(options, name) for name in names} | {"target": _without_none(target)})
    precision = "bfloat16" if options.bfloat16 else None
    settings: dict[str, dict[str, Any]] = {
        "image": {"iterations": options.iterations, "rate": options.rate, "precision": precision},
        "text": {"iterations": options.iterations, "length": options.length, "fluency": options.fluency},
    }
    name = "text" if modality == "text" else "image"
    return values | {name: _without_none(settings[name])}


def _with_flags(message: str) -> str:
    """A message about a field of the request, with the option's name in its place: nobody here wrote a request.

    >>> _with_flags("`image.iterations`: too few"), _with_flags("`target.steps.0`: too few")
    ('`--iterations`: too few', '`--step`: too few')
    """
    match = re.match(r"`([a-z_.]+?)(\.\d+)?`: ", message)
    if match is None:
        return message
    name = match[1].rpartition(".")[2]
    return f"`--{_FLAGS.get(name, name)}`: {message[match.end() :]}"


_FLAGS = {"steps": "step", "index": "class", "precision": "bfloat16"}
"""options that have another name than the last part of their field"""


def _iterate(request: Any, folder: Path, context: JobContext) -> None:
    """Run to the end, or until Ctrl-C."""
    from tokenpaths.cli.support.progress_bar import bar, waiting
    from tokenpaths.engine.jobs.dream import DreamJob

    with waiting(f"loading {request.model}"):
        job = DreamJob.start(request, folder, context)
    try:
        progress = job.advance()
        finished = False
        while not finished:  # a bar for each thing that is counted: stretches, then rounds
            unit = progress.unit
            with bar(f"dream of {request.model}", progress.total, unit, max(0, progress.done - 1)) as shown:
                while not progress.finished and progress.unit == unit:
                    shown.update(progress.done, progress.message)
                    progress = job.advance()
                finished = progress.finished
                shown.update(progress.done if progress.unit == unit else shown.total or shown.done)
    except KeyboardInterrupt:
        typer.echo(f"Stopped; the same command goes on in {folder}", err=True)
        raise
    finally:
        job.close()
    _say(progress.result)
    typer.echo(f"the dream is in {folder / 'artifacts'}")


def _say(result: dict[str, Any]) -> None:
    """Each dream in a line."""
    for item in result["dreams"]:
        matched = item.get("matched_tokens")
        share = "" if matched is None else f", {matched:.0%} of the tokens match"
        if "text" in item:
            typer.echo(f"{item['objective']:.3f}{share}: {item['text'].strip()!r}")
        else:
            top = ", ".join(f"{name} {share_of:.0%}" for name, share_of in item["top"][:3])
            typer.echo(f"{item['name']}: objective {item['objective']:.3f}{share}; the model says {top or 'nothing'}")


def _named(model: str) -> tuple[str, tuple[Path, ...]]:
    """The name of a model, and the folder to look in before all others where its own folder was given.

    Raises:
        UserError: there is no such folder, or its name is none of a model.
    """
    from tokenpaths.engine.adapters.huggingface.config import is_huggingface
    from tokenpaths.engine.base.files import is_name

    if is_huggingface(model) or "/" not in model:
        return model, ()
    folder = Path(os.path.abspath(Path(model).expanduser()))  # not resolved: a link has a name of its own
    if not folder.is_dir():
        raise UserError(f"There is no model folder {model}.", field="model")
    if not is_name(folder.name):
        raise UserError(
            f"The folder {folder.name!r} has no name that a model can have; rename it to letters, digits, - and _.",
            field="model",
        )
    return folder.name, (folder.parent,)


def _context(settings: Settings, device: str | None, beside: tuple[Path, ...]) -> JobContext:
    from tokenpaths.backend.runs.open_runs import gate_of
    from tokenpaths.engine.jobs.registry import JobContext

    folders = [*beside, *settings.all_models_dirs]

    def load(name: str):
        from tokenpaths.engine.tracing.loaded_model import load_model

        return load_model(name, folders, device)

    return JobContext(settings.data_dir, tuple(folders), load, gate=gate_of(settings))


def _target(options: DreamOptions) -> dict[str, Any]:
    """What is dreamed of: one of the options, or an original's choices."""
    targets = {
        "rank": options.rank,
        "module": options.module,
        "direction": options.direction,
        "connection": options.connection,
        "block": options.block,
        "class": options.class_index,
    }
    names = [name for name, value in targets.items() if value is not None]
    if len(names) > 1:
        raise UserError(f"--{' and --'.join(names)} are different dreams; give one.", field=names[1])
    if options.step and options.module is None:
        raise UserError("--step is for --module.", field="step")
    if not names:
        return {"of": "choices"}
    (name,) = names
    parts = {
        "direction": ("layer", "head", "direction"),
        "connection": ("iteration", "source", "target"),
        "block": ("layer", "block"),
    }
    if name in parts:
        numbers = _numbers(str(targets[name]), name, ".")
        if len(numbers) != len(parts[name]):
            raise UserError(f"--{name} is {targets[name]!r}; give {'.'.join(parts[name])} as numbers.", field=name)
        return {"of": name, **dict(zip(parts[name], numbers, strict=True))}
    if name == "rank":
        return {"of": "path", "rank": options.rank}
    if name == "class":
        return {"of": "class", "index": options.class_index}
    return _without_none({"of": "module", "module": options.module, "steps": options.step or None})


def _numbers(text: str, field: str, between: str = ",") -> list[int]:
    try:
        return [int(part) for part in text.split(between) if part.strip()]
    except ValueError:
        raise UserError(f"--{field} is {text!r}; give whole numbers with {between!r} between.", field=field) from None


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _into_inbox(image: Path, context: JobContext) -> tuple[str, Path | None]:
    """A copy of the image in the inbox, named by its content: (its name, the file where it was not there before)."""
    from tokenpaths.engine.base.files import write_atomically

    if not image.is_file():
        raise UserError(f"There is no image file {str(image)!r}.", field="image")
    content = image.read_bytes()
    name = f"dream-{hashlib.sha256(content).hexdigest()[:12]}{image.suffix.lower()}"
    file = context.inbox_dir / name
    if file.is_file():
        return name, None
    write_atomically(file, content)
    return name, file


def _name(model: str, request: str) -> str:
    """The same for the same request, so that the same command finds what it began."""
    plain = json.dumps(json.loads(request), sort_keys=True).encode()
    return f"{model[:40]}-{hashlib.sha256(plain).hexdigest()[:10]}"
