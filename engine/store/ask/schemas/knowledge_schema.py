"""Answers about what paths know: associations beside shuffles, label specificity, token search."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import (
    AnswerModel,
    CdfMiddle,
    Count,
    Counted,
    Example,
    High,
    Lift,
    Low,
    ModuleAtStep,
    PathTokens,
    Rank,
    Ribbon,
    Share,
)


class KnownProperty(AnswerModel):
    """How much paths tell of one property of tokens, beside shuffles of it."""

    property: str = Field(
        description="`label`, `prediction`, `token_id`, `predicted_id`, `word_class`, `sentence_end`, `position` "
        "(token 0, 1–2, 3–6 … of its text), `region` or `place` (3 × 3 cells of the picture)"
    )
    values: int = Field(description="Different values among the tokens")
    shuffled: Literal["samples", "sequences", "maps"] = Field(
        description="`samples`: whole samples, whose tokens share the property; `sequences`: each sample got the "
        "values of another one of about its length, in their order, from a random token on; `maps`: each image got "
        "those of another one of its grid, patch by patch, so that what the place alone tells is no knowledge"
    )
    nmi: float = Field(description="2·I(path; property) / (H(path) + H(property)), 0 … 1")
    null_mean: float = Field(description="Its mean over shuffles")
    null_low: float = Field(description="95 % of the shuffles lie between this and `null_high`")
    null_high: float
    p_value: float = Field(description="(1 + shuffles at least as high) / (1 + shuffles)")
    clear: bool = Field(description="Whether paths tell it better than chance, all properties taken together (Holm)")
    num_tokens: int = Field(description="Tokens of which the property is known")
    untrained_nmi: float | None = Field(description="NMI with the untrained twin's paths of the same tokens")
    untrained_null_mean: float | None = Field(description="Beside the same shuffles")
    untrained_null_low: float | None
    untrained_null_high: float | None
    untrained_p_value: float | None
    untrained_clear: bool | None


class UnknownProperty(AnswerModel):
    """A property that says nothing here."""

    property: str
    reason: str = Field(description="Why, in words")


class Knowledge(AnswerModel):
    """What paths know about tokens and samples; what stands out most from its null comes first."""

    run: str
    shuffles: int
    seed: int
    counted: Counted
    cells: int = Field(description="`place` cuts the picture into cells × cells")
    properties: list[KnownProperty]
    unknown: list[UnknownProperty]
    untrained_reason: str | None = Field(description="Why there are no numbers of the untrained twin, in words")
    reason: str | None = Field(description="Why there is nothing to show, in words")


class LabelShare(AnswerModel):
    """A label's share of the tokens that have one."""

    label: str
    share: Share


class SpecificRow(AnswerModel):
    """A path or a module, and the label that it is most specific to."""

    rank: Rank | None = None
    ribbon: Ribbon | None = None
    step: int | None = None
    module: int | None = None
    name: str | None = None
    kind: str | None = None
    label: str
    count: int = Field(description="Tokens of the label here")
    of: int = Field(description="Tokens here, of all labels")
    num_samples: int = Field(description="Samples of the label here")
    share: Share
    base: float = Field(description="Share of the label in the run")
    lift: Lift
    low: Low
    high: High
    clear: bool = Field(
        description="Whether the lift lies above 1, if that is to hold of all pairs with a label together"
    )


class Specific(AnswerModel):
    """Paths or modules most specific to a label, by the lower end of their lift."""

    run: str
    of: Literal["path", "module"]
    label: str | None
    least: int
    counted: Counted
    num_candidates: int = Field(description="Paths or modules with enough tokens, of which these are the first")
    labels: list[LabelShare]
    rows: list[SpecificRow]
    reason: str | None = Field(description="Why there is nothing to show, in words")


class Found(AnswerModel):
    """How many tokens were found."""

    num_tokens: Count
    share: Share
    num_samples: int = Field(description="Samples that they come from")
    low: Low = None
    high: High = None


class WordCount(AnswerModel):
    """A word and how many of the found tokens stand in it."""

    word: str
    count: int


class TakenPath(AnswerModel):
    """A path of the found tokens."""

    rank: Rank
    cdf_middle: CdfMiddle
    path_tokens: PathTokens
    ribbon: Ribbon
    count: int = Field(description="Found tokens on it")
    share: float = Field(description="Of the found tokens")
    of: int = Field(description="All tokens on it")
    share_of_all: float = Field(description="Of all tokens")
    lift: Lift
    low: Low
    high: High
    clear: bool = Field(description="Whether the lift is not 1, if that is to hold of all paths of the tokens counted")


class TakenModule(ModuleAtStep):
    """How much more, or less, the found tokens choose a module than the others."""

    count: int = Field(description="Found tokens that choose it")
    share: float = Field(description="Of the found tokens")
    share_of_others: float = Field(description="Of all other tokens")
    delta: float = Field(description="Contrast Δ: the difference of both shares")
    low: Low
    high: High
    clear: bool = Field(description="Whether Δ is not 0, if that is to hold of all modules of all steps together")


class Wanted(AnswerModel):
    """The question, as it was understood."""

    q: str | None
    kind: str | None
    reading: str
    label: str | None
    paths: list[int]
    through: list[str]
    ranks: list[int] | None
    compute: list[float] | None
    reuse: list[float] | None


class FoundExample(Example):
    """One found token, and the rank of its path."""

    rank: Rank
    cdf_middle: CdfMiddle
    path_tokens: PathTokens


class TokenSearch(AnswerModel):
    """Tokens that were looked for, the paths that they take and the modules that they prefer."""

    run: str
    wanted: Wanted
    counted: Counted
    found: Found
    words: list[WordCount] = Field(description="The most frequent words among them")
    least: int
    num_paths: int = Field(description="Different paths that they take")
    paths: list[TakenPath] = Field(description="Most taken first")
    modules: list[TakenModule] = Field(description="Those that differ most surely from the other tokens first")
    modules_reason: str | None = Field(description="Why there are no modules or no intervals, in words")
    examples: list[FoundExample]
    reason: str | None = Field(description="Why nothing was found, in words")
