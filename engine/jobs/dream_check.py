"""Checks of a dream request against configuration, run and original, before a model is loaded. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenpaths.engine.adapters.huggingface.config import is_huggingface
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.dream.dream_request import ChoicesTarget, ConnectionTarget, DreamRequest, Group, group_of
from tokenpaths.engine.dream.settings import ImageSettings, TextSettings
from tokenpaths.engine.families.checkpoint_config import CheckpointError, read_checkpoint
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS

if TYPE_CHECKING:
    from collections.abc import Collection

    from tokenpaths.engine.jobs.registry import JobContext

WORDS = {
    "choices": "the choices of an original",
    "path": "a path",
    "module": "a module",
    "connection": "a connection",
    "block": "a block",
    "direction": "a direction",
    "class": "a class",
}
MOST_LOOKED_AT = 1_000_000
"""maximum bytes of an inbox text that a check reads"""


def check_request(request: DreamRequest, context: JobContext) -> None:
    """Refuse requests that contradict the model's configuration, the run or the original (UserError with ``field``)."""
    if is_huggingface(request.model):
        raise UserError(
            f"{request.model[:80]} is a Hugging Face model: its gates are read without gradients, and a dream climbs "
            "along the gradients of router scores; dream of a model of GET /models without hf:",
            field="model",
        )
    try:
        checkpoint = read_checkpoint(context.model_dir(request.model))
    except CheckpointError as error:
        raise UserError(str(error), field="model") from None
    family, config = checkpoint.family, checkpoint.config.model_dump()
    _check_family(request, family, config)
    text = checkpoint.config.modality == "text"
    target = request.target
    if text:
        _check_text(request, config)
    elif getattr(target, "first", 0):
        raise UserError(
            f"First is for the tokens of a text, and {request.model} takes images; leave it out", field="target.first"
        )
    unused, usual = ("image", ImageSettings()) if text else ("text", TextSettings())
    if getattr(request, unused) != usual:
        raise UserError(of_the_other_modality(f"`{unused}`", 1, request.model, text), field=unused)
    _check_original(request, text, context)
    if family == "dna":
        _check_dna(request, config)
        _check_text_group(request, context) if text else _check_image_group(request, config)
    if target.of == "block":
        _below("target.layer", target.layer, config.get("layers"), "layers")
        _below("target.block", target.block, config.get("blocks"), "blocks of a layer")
    if target.of == "direction":
        for name in ("layer", "head", "direction"):
            _below(f"target.{name}", getattr(target, name), config.get(f"{name}s"), f"{name}s")
    if target.of == "connection":
        _check_connection(target, config)
    if target.of == "class":
        _below("target.index", target.index, len(checkpoint.classes) or config.get("num_classes"), "classes")


def of_the_other_modality(what: str, num: int, model: str, text: bool) -> str:
    """The sentence that refuses ``num`` settings of the modality that ``model`` does not take.

    >>> of_the_other_modality("--length and --fluency", 2, "mine", text=False)
    '--length and --fluency are for dreams of texts, and mine takes images; leave them out'
    """
    other, own = ("images", "texts") if text else ("texts", "images")
    are, it = ("is", "it") if num == 1 else ("are", "them")
    return f"{what} {are} for dreams of {other}, and {model} takes {own}; leave {it} out"


def _check_family(request: DreamRequest, family: str, config: dict[str, Any]) -> None:
    of = request.target.of
    if config.get("router") == "expert":
        raise UserError(
            f"In {request.model} modules choose tokens, not tokens modules; such a model cannot dream", field="model"
        )
    dreams = FAMILY_CONTROLS[family].DREAMS
    if of not in dreams:
        can = ", ".join(words for name, words in WORDS.items() if name in dreams)
        raise UserError(
            f"{request.model} is a {family} model, which has no dream of {WORDS[of]}; "
            + (f"it can dream of {can}" if can else "its decisions are made once for a text, so it cannot dream"),
            field="target.of" if can else "model",
        )


def _check_text(request: DreamRequest, config: dict[str, Any]) -> None:
    target, longest = request.target, config.get("context")
    if target.of == "class":
        raise UserError(
            f"{request.model} reads texts and has no classes; dream of a path or a module of it", field="target.of"
        )
    if isinstance(target, ChoicesTarget) and target.context != "without":
        raise UserError(
            f"Context {target.context!r} keeps pixels of an image, and {request.model} reads texts; leave it out",
            field="target.context",
        )
    if longest is not None and request.text.length > longest:
        raise UserError(
            f"A text of {request.text.length} tokens does not fit the model's context of {longest}", field="text.length"
        )
    if target.of == "choices" and target.until is not None and len(target.until) > 1:
        raise UserError(
            f"Until names {len(target.until)} S; a text dream is one search, so give one", field="target.until"
        )
    if target.of != "choices" and group_of(target).like is not None:
        raise UserError("Like needs an original's paths; name the tokens of the dream by patches", field="target.group")


def _check_original(request: DreamRequest, text: bool, context: JobContext) -> None:
    ways = {
        "run and sample": request.sample is not None,
        "data and row": request.data is not None or request.row is not None,
        "inbox": request.inbox is not None,
    }
    given = [name for name, there in ways.items() if there]
    if len(given) > 1:
        raise UserError(f"The original was named twice, by {' and by '.join(given)}; give one", field="sample")
    if request.needs_original and not given:
        raise UserError(
            "A dream of an original's choices needs the original: give run and sample, or data and row", field="sample"
        )
    if (request.data is None) != (request.row is None):
        raise UserError("Data and row go together: row 3 of bundled:scenes, say", field="row")
    if request.data is not None:
        _check_row(request, text)
    if request.inbox is not None:
        _check_inbox(request, text, context)
    needs_run = request.sample is not None or getattr(request.target, "rank", None) is not None
    if needs_run and request.run is None:
        raise UserError("A sample and a rank are those of a run; give run", field="run")
    if request.run is not None:
        with context.open_run(request.run) as run:
            _check_run(request, run.card())


def _check_row(request: DreamRequest, text: bool) -> None:
    from tokenpaths.engine.jobs.dream_source import bundled

    assert request.data is not None, "asked for by its name only"
    assert request.row is not None, "data and row were found to go together"
    if not request.data.startswith("bundled:"):
        raise UserError(
            f"Data is {request.data[:80]!r}; give a bundled set such as bundled:scenes, or put the image "
            "into the inbox",
            field="data",
        )
    _below(
        "row", request.row, bundled(request.data, "text" if text else "vision").num_samples, f"rows of {request.data}"
    )


def _check_inbox(request: DreamRequest, text: bool, context: JobContext) -> None:
    """Check the first bytes only: untrusted files are not decoded here."""
    from tokenpaths.engine.data.images import ImageError, sniffed

    assert request.inbox is not None, "asked for by its name only"
    file = context.inbox_file(request.inbox, field="inbox")
    if not file.is_file():
        raise UserError(f"{request.inbox!r} is a folder of the inbox; give the name of a file", field="inbox")
    with open(file, "rb") as opened:
        first = opened.read(64)
    try:
        kind = sniffed(first)
    except ImageError as error:
        if not text:
            raise UserError(f"{request.inbox!r} is no image for {request.model}: {error}", field="inbox") from None
    else:
        if text:
            raise UserError(f"{request.inbox!r} is a {kind} image, and {request.model} reads texts", field="inbox")


def _check_run(request: DreamRequest, card: dict[str, Any]) -> None:
    if card["model"] != request.model:
        raise UserError(f"The run {request.run} is of the model {card['model']}, not of {request.model}", field="run")
    if request.sample is not None:
        _below("sample", request.sample, card["num_samples"], "samples of the run")
    rank = getattr(request.target, "rank", None)
    if rank is not None and rank > card["num_paths"]:
        raise UserError(
            f"Rank is {rank}, but the paths of the run have the ranks 1 to {card['num_paths']:,}", field="target.rank"
        )


def check_path_is_of(request: DreamRequest, context: JobContext, sha256: str) -> None:
    """UserError if a path is named by its rank in a run of another checkpoint that has the model's name: its modules
    have nothing but their numbers in common with those of this one."""
    if request.run is None or getattr(request.target, "rank", None) is None:
        return
    with context.open_run(request.run) as run:
        made_by = str(run.row["checkpoint_sha256"])
    if made_by != sha256:
        raise UserError(
            f"The run {request.run} was made with other weights than those of {request.model} "
            f"(SHA-256 {made_by[:12]}… and {sha256[:12]}…), so its paths are not this model's; trace it anew",
            field="run",
        )


def _check_dna(request: DreamRequest, config: dict[str, Any]) -> None:
    target, steps = request.target, config["steps"]
    modules = sum(config[kind] for kind in ("transformers", "attentions", "mlps", "identities"))
    top_k = config["top_k"]
    for s in getattr(target, "until", None) or ():
        if not 1 <= s <= steps:
            raise UserError(
                f"Until is {s}, but {request.model} decides {steps} times: give 1 … {steps}", field="target.until"
            )
    if target.of == "module":
        _below("target.module", target.module, modules, "modules")
        for step in target.steps or ():
            _below("target.steps", step, steps, "steps")
    if target.of == "path" and target.ribbon is not None:
        if len(target.ribbon) != steps or any(len(of_step) != top_k for of_step in target.ribbon):
            raise UserError(
                f"A path of {request.model} is {steps} steps of {top_k} different modules", field="target.ribbon"
            )
        for of_step in target.ribbon:
            for module in of_step:
                _below("target.ribbon", module, modules, "modules")


def _check_image_group(request: DreamRequest, config: dict[str, Any]) -> None:
    side = config["image_size"] // config["patch_size"]
    group = group_of(request.target)
    check_group(group, range(side * side), "patches of the image")
    whole = group == Group() or group.draw == side * side or len(group.patches or ()) == side * side
    if getattr(request.target, "context", "without") != "without" and whole:
        raise UserError(
            "Context keeps the pixels of the group, and the group is the whole image: nothing is left "
            "to dream; name a smaller group",
            field="target.context",
        )


def _check_text_group(request: DreamRequest, context: JobContext) -> None:
    """Check the group against the original's tokens and the dreamt range; without an original, the dream's own."""
    group = group_of(request.target)
    if request.target.of != "choices":
        return check_group(group, range(request.text.length), "tokens of the dream")
    if request.inbox is not None and context.inbox_file(request.inbox, field="inbox").stat().st_size > MOST_LOOKED_AT:
        return None
    from tokenpaths.engine.jobs.dream_source import num_tokens_of, stretch_of

    return check_group(group, stretch_of(request, num_tokens_of(request, context)), "tokens that are dreamt")


def check_group(group: Group, among: range, what: str) -> None:
    """Refuse a group with tokens other than these."""
    named: Collection[int] = group.patches or (() if group.like is None else (group.like,))
    for number in named:
        if number not in among:
            raise UserError(
                f"The group names {number}, but the {what} are numbered {among.start} to {among.stop - 1}",
                field="target.group",
            )
    if group.draw is not None and group.draw > len(among):
        raise UserError(f"{group.draw} cannot be drawn from {len(among)} {what}", field="target.group")


def _check_connection(target: ConnectionTarget, config: dict[str, Any]) -> None:
    hidden, iterations = len(config.get("hidden", ())), config.get("iterations", 1)
    inputs, outputs = len(config.get("inputs", ("text",))), len(config.get("outputs", ("predict",)))
    _below("target.iteration", target.iteration, iterations + 1, "iterations, the input step among them,")
    _below("target.source", target.source, hidden + inputs, "sources")
    _below("target.target", target.target, hidden + outputs, "targets")
    from_input, to_output = target.source >= hidden, target.target >= hidden
    if from_input != (target.iteration == 0):
        raise UserError(
            "Inputs send at iteration 0 and hidden layers from 1 on; this connection does not exist",
            field="target.iteration",
        )
    if target.iteration == iterations and not to_output:
        raise UserError(
            "In the last iteration only outputs can still receive; this connection does not exist",
            field="target.target",
        )


def _below(field: str, value: int, size: int | None, what: str) -> None:
    if size is not None and not 0 <= value < size:
        name = field.rpartition(".")[2].capitalize()
        raise UserError(f"{name} is {value}, but the {what} are numbered 0 to {size - 1}", field=field)
