"""What may be asked of a dream, and what can be refused before a model is loaded. No torch here.

Examples of ``target``: ``{"of": "choices"}`` the decisions of an image, at every S; ``{"of": "choices", "until": [5],
"group": {"like": 12}, "context": "both"}`` those of one path's group, with and without its pixels;
``{"of": "module", "module": 3}``; ``{"of": "path", "rank": 1}``; ``{"of": "direction", "layer": 0, "head": 1,
"direction": 2}``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from engine.dream.settings import ImageSettings, TextSettings
from engine.errors import UserError

if TYPE_CHECKING:
    from engine.jobs import JobContext

Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
MOST_DREAMS = 64
MOST_NAMED = 4096
"""patches, steps or modules in one list"""


def _different(values: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(values)) < len(values):
        twice = next(value for value, times in Counter(values).items() if times > 1)
        raise ValueError(f"{twice} is named more than once; name each once")
    return values


Indices = Annotated[tuple[Index, ...], Field(max_length=MOST_NAMED), AfterValidator(_different)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Group(_Part):
    """Whose decisions count: patches of an image, tokens of a text. One of the three; none: all."""

    patches: Indices | None = Field(default=None, description="these, numbered row by row from 0")
    like: Index | None = Field(default=None, description="all that take the same path as this one")
    draw: int | None = Field(default=None, ge=1, description="so many, drawn by the seed")

    @model_validator(mode="after")
    def _one(self) -> Group:
        given = [name for name in ("patches", "like", "draw") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} were given; a group is one of patches, like and draw")
        if self.patches is not None and not self.patches:
            raise ValueError("the group is empty; name at least one patch, or leave the group out for all")
        return self


class ChoicesTarget(_Part):
    """That an original's tokens choose as they did: O_S^T."""

    of: Literal["choices"]
    until: Indices | None = Field(
        default=None, description="S, each a dream of its own: decisions 1 … S; none: every S", min_length=1
    )
    form: Literal["cumulative", "single"] = Field(
        default="cumulative", description="cumulative: steps 1 … S; single: step S alone"
    )
    scores: Literal["probs", "logits"] = "probs"
    group: Group = Group()
    context: Literal["without", "with", "both"] = Field(
        default="without", description="with: the group keeps the original's pixels; both: a pair for each S"
    )


class PathTarget(_Part):
    """That all tokens, or a group, take one path: the run's path of a rank, or one by its modules."""

    of: Literal["path"]
    rank: int | None = Field(default=None, ge=1, description="of the run")
    ribbon: Annotated[tuple[Indices, ...], Field(max_length=MOST_NAMED)] | None = Field(
        default=None, description="modules of each step"
    )
    scores: Literal["probs", "logits"] = "probs"
    group: Group = Group()

    @model_validator(mode="after")
    def _one(self) -> PathTarget:
        if (self.rank is None) == (self.ribbon is None):
            raise ValueError("a path is named by its rank in the run or by its ribbon; give one of the two")
        return self


class ModuleTarget(_Part):
    """That tokens choose one module."""

    of: Literal["module"]
    module: Index
    steps: Indices | None = Field(default=None, description="steps from 0; none: all", min_length=1)
    scores: Literal["probs", "logits"] = "probs"
    group: Group = Group()


class ConnectionTarget(_Part):
    """A connection of an H-Model; iteration 0 is the input step."""

    of: Literal["connection"]
    iteration: Index
    source: Index
    target: Index


class BlockTarget(_Part):
    """The firing rate of a block of a RayTracing network."""

    of: Literal["block"]
    layer: Index
    block: Index


class DirectionTarget(_Part):
    """How much of one direction a Directional Routing model removes."""

    of: Literal["direction"]
    layer: Index
    head: Index
    direction: Index


class ClassTarget(_Part):
    """The logit of a class, to compare with."""

    of: Literal["class"]
    index: Index


Target = Annotated[
    ChoicesTarget | PathTarget | ModuleTarget | ConnectionTarget | BlockTarget | DirectionTarget | ClassTarget,
    Field(discriminator="of"),
]


class DreamRequest(_Part):
    """One dream, or several as one batch."""

    model: str = Field(min_length=1, max_length=64)
    run: str | None = Field(default=None, description="the run that the original, or the path's rank, is of")
    sample: Index | None = Field(default=None, description="the original: a sample of the run")
    data: str | None = Field(default=None, description="or a row of a bundled set, such as bundled:scenes")
    row: Index | None = None
    inbox: str | None = Field(default=None, description="or an image of the inbox, by its name")
    target: Target
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    image: ImageSettings = ImageSettings()
    text: TextSettings = TextSettings()
    frame_every: int = Field(default=128, ge=64, multiple_of=64, description="iterations between two frames")

    @property
    def needs_original(self) -> bool:
        """Whether there must be an image or a text to start from."""
        return self.target.of == "choices" or _group(self.target).like is not None

    @property
    def has_original(self) -> bool:
        return self.sample is not None or self.row is not None or self.inbox is not None


def _group(target: Any) -> Group:
    return getattr(target, "group", Group())


FAMILIES = {
    "choices": ("dna",), "path": ("dna",), "module": ("dna",), "connection": ("hmodel",), "block": ("raytracing",),
    "direction": ("directional",), "class": ("dna", "raytracing"),
}  # fmt: skip
WORDS = {
    "choices": "the choices of an original", "path": "a path", "module": "a module", "connection": "a connection",
    "block": "a block", "direction": "a direction", "class": "a class",
}  # fmt: skip


def check_request(request: DreamRequest, context: JobContext) -> None:
    """Refuse what a look at the model's configuration and at the run can refuse (UserError with ``field``)."""
    about = context.model_config(request.model)
    family, config = about.get("family"), about.get("config", {})
    _check_family(request, family)
    text = config.get("modality") == "text"
    _check_original(request, text, context)
    target = request.target
    if text and getattr(target, "context", "without") != "without":
        raise UserError(f"context {target.context!r} keeps pixels of an image, and {request.model} reads texts; "
                        "leave it out", field="target.context")  # fmt: skip
    if text and request.text.length > config.get("context", 1024):
        raise UserError(f"a text of {request.text.length} tokens does not fit the model's context of "
                        f"{config.get('context', 1024)}", field="text.length")  # fmt: skip
    if family == "dna":
        _check_dna(request, config, text)
    if family == "raytracing" and target.of == "block":
        _below("target.layer", target.layer, config.get("layers", 4), "layers")
        _below("target.block", target.block, config.get("blocks", 16), "blocks a layer")
    if target.of == "direction":
        sizes = {"layer": config.get("layers"), "head": config.get("heads"), "direction": config.get("directions", 4)}
        for name, size in sizes.items():
            _below(f"target.{name}", getattr(target, name), size, f"{name}s")
    if target.of == "connection":
        _check_connection(target, config)
    if target.of == "class" and text:
        raise UserError(f"{request.model} reads texts and has no classes; dream of a path or a module of it",
                        field="target.of")  # fmt: skip
    if target.of == "class":
        _below("target.index", target.index, len(about.get("classes", [])) or config.get("num_classes", 10), "classes")


def _check_family(request: DreamRequest, family: str | None) -> None:
    of = request.target.of
    if family not in FAMILIES[of]:
        can = ", ".join(WORDS[name] for name, families in FAMILIES.items() if family in families)
        raise UserError(
            f"{request.model} is a {family} model, which has no dream of {WORDS[of]}; "
            + (f"it can dream of {can}" if can else "its decisions are made once for a text, so it cannot dream"),
            field="target.of" if can else "model",
        )  # fmt: skip


def _check_original(request: DreamRequest, text: bool, context: JobContext) -> None:
    ways = {
        "run and sample": request.sample is not None,
        "data and row": request.data is not None or request.row is not None,
        "inbox": request.inbox is not None,
    }
    given = [name for name, there in ways.items() if there]
    if len(given) > 1:
        raise UserError(f"the original was named twice, by {' and by '.join(given)}; give one", field="sample")
    if request.needs_original and not given:
        raise UserError("a dream of an original's choices needs the original: give run and sample, or data and row",
                        field="sample")  # fmt: skip
    if (request.data is None) != (request.row is None):
        raise UserError("data and row go together: row 3 of bundled:scenes, say", field="row")
    if request.data is not None and not request.data.startswith("bundled:"):
        raise UserError(f"data is {request.data[:80]!r}; give a bundled set such as bundled:scenes, or put the image "
                        "into the inbox", field="data")  # fmt: skip
    if request.inbox is not None and not context.inbox_file(request.inbox, field="inbox").is_file():
        raise UserError(f"{request.inbox!r} is a folder of the inbox; give the name of a file", field="inbox")
    needs_run = request.sample is not None or getattr(request.target, "rank", None) is not None
    if needs_run and request.run is None:
        raise UserError("a sample and a rank are those of a run; give run", field="run")
    if request.run is not None:
        with context.open_run(request.run) as run:
            _check_run(request, run.card())


def _check_run(request: DreamRequest, card: dict[str, Any]) -> None:
    if card["model"] != request.model:
        raise UserError(f"the run {request.run} is of the model {card['model']}, not of {request.model}", field="run")
    if request.sample is not None:
        _below("sample", request.sample, card["num_samples"], "samples in the run")
    rank = getattr(request.target, "rank", None)
    if rank is not None and rank > card["num_paths"]:
        raise UserError(f"rank is {rank}, but the run has {card['num_paths']:,} paths", field="target.rank")


def _check_dna(request: DreamRequest, config: dict[str, Any], text: bool) -> None:
    target, steps = request.target, config["steps"]
    kinds = ("transformers", "attentions", "mlps", "identities")
    modules, top_k = sum(config.get(kind, 0) for kind in kinds), config.get("top_k", 1)
    for s in getattr(target, "until", None) or ():
        if not 1 <= s <= steps:
            raise UserError(f"until is {s}, but {request.model} decides {steps} times: give 1 … {steps}",
                            field="target.until")  # fmt: skip
    if target.of == "module":
        _below("target.module", target.module, modules, "modules")
        for step in target.steps or ():
            _below("target.steps", step, steps, "steps")
    if target.of == "path" and target.ribbon is not None:
        if len(target.ribbon) != steps or any(len(of_step) != top_k for of_step in target.ribbon):
            raise UserError(f"a path of {request.model} is {steps} steps of {top_k} different modules",
                            field="target.ribbon")  # fmt: skip
        for of_step in target.ribbon:
            for module in of_step:
                _below("target.ribbon", module, modules, "modules")
    if not text:
        side = config.get("image_size", 224) // config.get("patch_size", 16)
        check_group(_group(target), side * side, "patches of the image")
        whole = _group(target) == Group() or len(set(_group(target).patches or ())) == side * side
        if getattr(target, "context", "without") != "without" and whole:
            raise UserError("context keeps the pixels of the group, and the group is the whole image: nothing is left "
                            "to dream; name a smaller group", field="target.context")  # fmt: skip


def check_group(group: Group, tokens: int, what: str) -> None:
    """Refuse a group that is not among so many tokens."""
    for patch in group.patches or ():
        _below("target.group", patch, tokens, what)
    if group.like is not None:
        _below("target.group", group.like, tokens, what)
    if group.draw is not None and group.draw > tokens:
        raise UserError(f"{group.draw} cannot be drawn from {tokens} {what}", field="target.group")


def _check_connection(target: ConnectionTarget, config: dict[str, Any]) -> None:
    hidden, iterations = len(config.get("hidden", ())), config.get("iterations", 1)
    inputs, outputs = len(config.get("inputs", ("text",))), len(config.get("outputs", ("predict",)))
    _below("target.iteration", target.iteration, iterations + 1, "iterations, the input step included")
    _below("target.source", target.source, hidden + inputs, "sources")
    _below("target.target", target.target, hidden + outputs, "targets")
    from_input, to_output = target.source >= hidden, target.target >= hidden
    if from_input != (target.iteration == 0):
        raise UserError("inputs send at iteration 0 and hidden layers from 1 on; this connection does not exist",
                        field="target.iteration")  # fmt: skip
    if target.iteration == iterations and not to_output:
        raise UserError("in the last iteration only outputs can still receive; this connection does not exist",
                        field="target.target")  # fmt: skip


def _below(field: str, value: int, size: int | None, what: str) -> None:
    if size is not None and not 0 <= value < size:
        name = field.rpartition(".")[2]
        raise UserError(f"{name} is {value}, but there are {size} {what}, numbered from 0", field=field)
