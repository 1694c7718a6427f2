"""The request of a dream: its target and settings, validated without torch.

Examples of ``target``: ``{"of": "choices"}`` the decisions of an image, at every S; ``{"of": "choices", "until": [5],
"group": {"like": 12}, "context": "both"}`` those of one path's group, with and without its pixels;
``{"of": "module", "module": 3}``; ``{"of": "path", "rank": 1}``; ``{"of": "direction", "layer": 0, "head": 1,
"direction": 2}``.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from tokenpaths.engine.dream.settings import ImageSettings, TextSettings

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
    """Whose decisions count: patches of an image, tokens of a text. One of the three; none: all.

    Where a text's choices are dreamed of, its tokens keep their numbers in the original, whatever ``first`` is.
    """

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
    first: Index = Field(
        default=0, description="of a text: the token that the dream begins with; it takes ``text.length`` from there"
    )
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

    model: str = Field(min_length=1, max_length=64, description="name of a model of GET /models")
    run: str | None = Field(default=None, description="the run that the original, or the path's rank, is of")
    sample: Index | None = Field(default=None, description="the original: a sample of the run")
    data: str | None = Field(default=None, description="or a row of a bundled set, such as bundled:scenes")
    row: Index | None = Field(default=None, description="of the bundled set, from 0")
    inbox: str | None = Field(default=None, description="or an image of the inbox, by its name")
    target: Target
    seed: int = Field(default=0, ge=0, le=2**31 - 1, description="of all that is drawn at random")
    image: ImageSettings = ImageSettings()
    text: TextSettings = TextSettings()
    frame_every: int = Field(default=128, ge=64, multiple_of=64, description="iterations between two frames")

    @property
    def needs_original(self) -> bool:
        """Whether there must be an image or a text to start from."""
        return self.target.of == "choices" or group_of(self.target).like is not None

    @property
    def has_original(self) -> bool:
        return self.sample is not None or self.row is not None or self.inbox is not None


def group_of(target: Any) -> Group:
    """The group of a target; of one that has none, all."""
    return getattr(target, "group", Group())
