"""``tokenpaths dream``: the input that makes a model take chosen paths."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.support.options import DataDir, folder_option
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings
    from tokenpaths.engine.jobs.registry import JobContext


def dream(
    model: Annotated[str, typer.Option(help="Name of a model (tokenpaths ls models).")],
    run: Annotated[str | None, typer.Option(help="Run that the sample, or the rank, is of.")] = None,
    sample: Annotated[int | None, typer.Option(help="The original: a sample of the run.", min=0)] = None,
    data: Annotated[str | None, typer.Option(help="Or a bundled set, such as bundled:scenes, with --row.")] = None,
    row: Annotated[int | None, typer.Option(help="Row of the bundled set, from 0.", min=0)] = None,
    image: Annotated[Path | None, typer.Option(help="Or an image file.")] = None,
    until: Annotated[
        list[int] | None, typer.Option(help="S: dream of decisions 1 … S; repeat for several [default: every S].")
    ] = None,
    single: Annotated[bool, typer.Option(help="Decision S alone, not those up to S.")] = False,
    patches: Annotated[str | None, typer.Option(help="Only these patches or tokens, such as 3,4,12.")] = None,
    like: Annotated[int | None, typer.Option(help="Only the patches on the same path as this one.", min=0)] = None,
    draw: Annotated[int | None, typer.Option(help="Only so many, drawn by the seed.", min=1)] = None,
    context: Annotated[
        str, typer.Option(help="without, with (the group keeps the original's pixels), or both as a pair.")
    ] = "without",
    logits: Annotated[bool, typer.Option(help="Maximise logits in place of probabilities.")] = False,
    rank: Annotated[int | None, typer.Option(help="Dream of the run's path of this rank.", min=1)] = None,
    module: Annotated[int | None, typer.Option(help="Dream of a module, at all or some steps.", min=0)] = None,
    step: Annotated[list[int] | None, typer.Option(help="Step from 0, for --module; repeat for several.")] = None,
    direction: Annotated[str | None, typer.Option(help="Directional Routing: layer.head.direction, from 0.")] = None,
    connection: Annotated[str | None, typer.Option(help="H-Model: iteration.source.target, from 0.")] = None,
    block: Annotated[str | None, typer.Option(help="RayTracing: layer.block, from 0.")] = None,
    class_index: Annotated[int | None, typer.Option("--class", help="A class by its number.", min=0)] = None,
    iterations: Annotated[int | None, typer.Option(help="How many [default: 2048 for images, 64 for texts].")] = None,
    rate: Annotated[float | None, typer.Option(help="Adam's rate for images [default: 0.001].")] = None,
    first: Annotated[
        int | None, typer.Option(help="Of a text's choices: the token that the dream begins with.", min=0)
    ] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a dreamed text [default: 12].")] = None,
    fluency: Annotated[float | None, typer.Option(help="Weight of how well a text reads [default: 0.05].")] = None,
    seed: Annotated[int, typer.Option(help="Same seed, same dream.", min=0)] = 0,
    out: Annotated[Path | None, folder_option("Folder [default: in dreams/ of the data folder].")] = None,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu [default: the best there is].")] = None,
    data_dir: DataDir = None,
) -> None:
    """Dream: find the image or the text that makes a model take chosen paths.

    Without --rank, --module, --direction, --connection, --block or --class the dream repeats the choices of an
    original. Stopped with Ctrl-C, the same command goes on.

    Example: tokenpaths dream --model dna-vision-top1 --data bundled:scenes --row 3 --until 5
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.engine.jobs.dream import DreamJob
    from tokenpaths.engine.jobs.registry import read_request

    settings = load_settings(data_dir=data_dir)
    about = _context(settings, device)
    group = {"patches": None if patches is None else _numbers(patches, "patches"), "like": like, "draw": draw}
    scores = "logits" if logits else "probs"
    target = _target(rank, module, step, direction, connection, block, class_index)
    if target["of"] == "choices":
        target |= {"until": until or None, "form": "single" if single else "cumulative", "context": context}
        target |= {"first": first}
    elif until or single or first is not None or context != "without":
        raise UserError(
            "--until, --single, --first and --context are for the choices of an original, not for a dream "
            f"of a {target['of']}.",
            field="until",
        )
    if target["of"] in ("choices", "path", "module"):
        target |= {"group": _given(group), "scores": scores}
    values = _given({"model": model, "run": run, "sample": sample, "data": data, "row": row, "target": _given(target)})
    values |= {
        "seed": seed,
        "image": _given({"iterations": iterations, "rate": rate}),
        "text": _given({"iterations": iterations, "length": length, "fluency": fluency}),
    }
    copied = None
    if image is not None:
        values["inbox"], copied = _into_inbox(image, about)
    try:
        request = read_request(DreamJob, values)
        DreamJob.check(request, about)
    except UserError as error:
        if copied is not None:
            copied.unlink(missing_ok=True)
        said = _with_flags(str(error))
        raise UserError(said if image is None else said.replace(values["inbox"], str(image)), field=error.field) from (
            None
        )
    folder = out or settings.data_dir / "dreams" / _name(model, request.model_dump_json())
    _dream(request, folder, about)


def _with_flags(said: str) -> str:
    """A sentence about a field of the request, with the option in its place: nobody here wrote a request.

    >>> _with_flags("`image.iterations`: too few"), _with_flags("`target.steps.0`: too few")
    ('`--iterations`: too few', '`--step`: too few')
    """
    found = re.match(r"`([a-z_.]+?)(\.\d+)?`: ", said)
    if found is None:
        return said
    name = found[1].rpartition(".")[2]
    return f"`--{_FLAGS.get(name, name)}`: {said[found.end() :]}"


_FLAGS = {"steps": "step", "index": "class"}
"""options that have another name than the last part of their field"""


def _dream(request: Any, folder: Path, about: JobContext) -> None:
    """Run to the end, or until Ctrl-C."""
    from tokenpaths.cli.support.progress_bar import bar, waiting
    from tokenpaths.engine.jobs.dream import DreamJob

    folder.mkdir(parents=True, exist_ok=True)
    with waiting(f"loading {request.model}"):
        job = DreamJob.start(request, folder, about)
    try:
        progress = job.advance()
        finished = False
        while not finished:  # a bar for each thing that is counted: stretches, then rounds
            unit = progress.unit
            with bar(f"dream of {request.model}", progress.total, unit) as shown:
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


def _context(settings: Settings, device: str | None) -> JobContext:
    from tokenpaths.backend.runs.foreign_files import strangers_of
    from tokenpaths.engine.jobs.registry import JobContext

    folders, strangers = settings.all_models_dirs, strangers_of(settings)

    def load(name: str):
        from tokenpaths.engine.tracing.trace_run import load_model

        return load_model(name, folders, device)

    problem_of_run = strangers.problem if strangers is not None else None
    return JobContext(settings.data_dir, tuple(folders), load, problem_of_run=problem_of_run)


def _target(
    rank: int | None,
    module: int | None,
    step: list[int] | None,
    direction: str | None,
    connection: str | None,
    block: str | None,
    class_index: int | None,
) -> dict[str, Any]:
    """What is dreamed of: one of the options, or an original's choices."""
    options = {
        "rank": rank,
        "module": module,
        "direction": direction,
        "connection": connection,
        "block": block,
        "class": class_index,
    }
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise UserError(f"--{' and --'.join(given)} are different dreams; give one.", field=given[1])
    if step and module is None:
        raise UserError("--step is for --module.", field="step")
    if not given:
        return {"of": "choices"}
    (name,) = given
    parts = {
        "direction": ("layer", "head", "direction"),
        "connection": ("iteration", "source", "target"),
        "block": ("layer", "block"),
    }
    if name in parts:
        numbers = _numbers(str(options[name]), name, ".")
        if len(numbers) != len(parts[name]):
            raise UserError(f"--{name} is {options[name]!r}; give {'.'.join(parts[name])} as numbers.", field=name)
        return {"of": name, **dict(zip(parts[name], numbers, strict=True))}
    if name == "rank":
        return {"of": "path", "rank": rank}
    if name == "class":
        return {"of": "class", "index": class_index}
    return _given({"of": "module", "module": module, "steps": step or None})


def _numbers(text: str, field: str, between: str = ",") -> list[int]:
    try:
        return [int(part) for part in text.split(between) if part.strip()]
    except ValueError:
        raise UserError(f"--{field} is {text!r}; give whole numbers with {between!r} between.", field=field) from None


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _into_inbox(image: Path, about: JobContext) -> tuple[str, Path | None]:
    """A copy of the image in the inbox, named by its content: (its name, the file where it was not there before)."""
    if not image.is_file():
        raise UserError(f"There is no image file {str(image)!r}.", field="image")
    content = image.read_bytes()
    name = f"dream-{hashlib.sha256(content).hexdigest()[:12]}{image.suffix.lower()}"
    about.inbox_dir.mkdir(parents=True, exist_ok=True)
    file = about.inbox_dir / name
    if file.is_file():
        return name, None
    shutil.copyfile(image, file)
    return name, file


def _name(model: str, request: str) -> str:
    """The same for the same request, so that the same command finds what it began."""
    plain = json.dumps(json.loads(request), sort_keys=True).encode()
    return f"{model[:40]}-{hashlib.sha256(plain).hexdigest()[:10]}"
