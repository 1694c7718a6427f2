"""Answers about single things: automatic names, one module in full, one path in full."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.path_schema import Path
from tokenpaths.engine.store.ask.schemas.schema_values import (
    AnswerModel,
    ComparedPaths,
    Count,
    Counted,
    Example,
    Lift,
    ModuleAtStep,
    Rank,
    Ribbon,
    Share,
)


class Summary(AnswerModel):
    """What most tokens of a thing have in common; null with a reason where nothing excludes chance."""

    what: Literal["label", "word", "word_kind", "patch_kind", "region"] | None
    value: str | None = Field(description="The label, the word, the kind (as in `tokens/search`) or the region")
    share: float | None = Field(description="Of the thing's tokens")
    base: float | None = Field(description="Of all tokens")
    lift: float | None = Field(description="share / base")
    low: float | None = Field(description="Lower end of the lift's 95 % interval, samples taken as what was drawn")
    high: float | None = Field(description="Upper end of it")
    words: str | None = Field(description="In words", examples=["ends of sentences, 98 %"])
    reason: str | None = Field(description="Why there is no name, in words")


class NamedThing(Summary):
    """A module at its step, or a path, and what most of its tokens have in common."""

    step: int | None = None
    module: int | None = None
    name: str | None = None
    kind: str | None = None
    rank: Rank | None = None
    ribbon: Ribbon | None = None
    count: int = Field(description="Its tokens among those that were counted")


class Summaries(AnswerModel):
    """Automatic names of modules or paths."""

    run: str
    of: Literal["module", "path"]
    counted: Counted
    num_candidates: int = Field(description="Labels, words, kinds and regions that were looked at")
    num_compared: int = Field(description="Things with enough tokens × candidates: what the level is divided by")
    level: float = Field(description="Share of runs with random routing that would get any name, at most")
    rows: list[NamedThing]
    reason: str | None = Field(description="Why nothing has a name, in words")


class StrongExample(Example):
    """A token and how strongly it is routed here."""

    weight: float = Field(description="Its weight for the module; on a path the geometric mean of each step's largest")


class Compared(AnswerModel):
    """Among how many of a thing's tokens the strongest were looked for."""

    num_tokens: Count
    of_tokens: int
    exact: bool


class LabelOfModule(AnswerModel):
    """A label among the tokens of a module."""

    label: str | None
    count: Count
    share: float = Field(description="Of the module's tokens")
    base: float = Field(description="Of all tokens")
    lift: Lift


class Neighbour(ModuleAtStep):
    """A module at the step before or after."""

    count: float = Field(description="Tokens; with several slots a pair counts 1/K² each")
    share: float = Field(description="Of all that the module has from the modules there, or gives to them")


class ModuleInFull(ModuleAtStep):
    """One module at its step."""

    run: str
    count: Count
    share: Share
    utilisation: float = Field(description="Times a fair share of the step's tokens")
    place: int = Field(description="By load in its step, 1 = busiest; modules of equal load have equal places")
    num_modules: int = Field(description="Modules that the step offers")
    summary: Summary
    strongest: list[StrongExample] = Field(description="Largest weight first, equal ones in reading order")
    strongest_reason: str | None = Field(description="Why the examples are drawn instead, in words")
    compared: Compared
    labels: list[LabelOfModule] = Field(description="The most frequent ones")
    comes_from: list[Neighbour] = Field(description="The modules that most of its tokens come from")
    goes_to: list[Neighbour] = Field(description="The modules that most of its tokens go to")


class NearPath(AnswerModel):
    """A path beside another one."""

    rank: Rank
    ribbon: Ribbon
    count: Count
    share: Share
    distance: float = Field(description="Path distance: choices that differ, in steps")
    differs: list[int] = Field(description="Steps whose modules differ")


class PathInFull(Path):
    """One path."""

    run: str
    summary: Summary
    strongest: list[StrongExample] = Field(description="Largest product of each step's largest weight first")
    strongest_reason: str | None = Field(description="Why the examples are drawn instead, in words")
    compared: Compared
    examples: list[Example] = Field(description="A seeded draw")
    compared_paths: ComparedPaths
    nearest: list[NearPath] = Field(description="By path distance, of equally near ones the more frequent first")
