"""Answers about samples: list, tokens of one sample, distributions, similar samples and tokens, map."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import (
    AnswerModel,
    Cdf,
    CdfMiddle,
    ComparedPaths,
    Compute,
    Count,
    Counted,
    Example,
    Next,
    PathTokens,
    Rank,
    Reuse,
    Ribbon,
    Share,
)


class SampleRow(AnswerModel):
    """One image or text in a list."""

    sample: int
    label: str | None = None
    prediction: str | None = None
    confidence: float | None = Field(None, description="Probability of the prediction")
    loss: float | None = Field(None, description="Cross-entropy, nats, mean over the tokens that have a target")
    num_tokens: int
    compute: Compute = None
    reuse: Reuse = None
    num_distinct_paths: int | None = None
    snippet: str | None = Field(None, description="The beginning of the text")
    has_image: bool = Field(False, description="Whether /samples/{sample}/image has a picture")
    source: str | None = Field(None, description="File name or row that the sample came from")


class SampleList(AnswerModel):
    """Samples in the chosen order."""

    run: str
    total: int = Field(description="Samples that passed the filters, on all pages together")
    samples: list[SampleRow]
    next: Next


class Grid(AnswerModel):
    """The patch grid of an image."""

    rows: int
    cols: int


class TokenMargin(AnswerModel):
    """How close one decision was."""

    margin: float | None = Field(description="The last chosen score less the next one, in probability; null if unknown")
    runner_up: int | None = Field(description="The module of the next score")


class Token(AnswerModel):
    """One token or patch and its ribbon. Text tokens have characters, patches a row and a column."""

    token: int = Field(description="Its position in the sample")
    token_id: int | None = Field(None, description="Vocabulary id")
    text: str | None = None
    char_start: int | None = Field(None, description="Its first character in the text")
    char_end: int | None = Field(None, description="One past its last character")
    row: int | None = None
    col: int | None = None
    loss: float | None = Field(None, description="nats; null where the token has no target")
    ribbon: Ribbon
    weights: list[list[float]] | None = Field(
        description="The multipliers really used, steps × slots; null where the source gave ids only"
    )
    rank: Rank
    cdf: Cdf
    cdf_middle: CdfMiddle
    path_tokens: PathTokens
    compute: Compute
    reuse: Reuse
    gate_entropy: float | None = Field(None, description="Mean over steps of the routing entropy, nats")
    flops: float | None = Field(None, description="Floating-point operations of the modules it visited")
    region: str | None = Field(None, description="For example object, background or boundary")
    margins: list[TokenMargin] | None = Field(
        None, description="By how much each step chose so; null in runs without scores"
    )


class SampleDetails(SampleRow):
    """One sample with every token."""

    run: str | None = None
    text: str | None = None
    grid: Grid | None = None
    tokens: list[Token]


class LastToken(AnswerModel):
    """A token id that ends samples."""

    token_id: int
    text: str | None = Field(description="Its readable form, where the run has one")
    count: int = Field(description="Samples that it ends")
    share: Share
    num_paths: int = Field(description="Different paths that it takes there")
    rank: Rank
    ribbon: Ribbon
    path_count: int = Field(description="Samples that it ends on this path, the one that it takes most often")


class LastTokens(AnswerModel):
    """Which tokens end the samples of a run."""

    run: str
    label: str | None = Field(description="Only samples with this label; null: all")
    num_samples: int = Field(description="Samples that end in a token with an id")
    num_token_ids: int = Field(description="Different token ids that end them")
    tokens: list[LastToken] = Field(description="Most frequent first")


class Bin(AnswerModel):
    """One bar of a histogram, lo ≤ value < hi (the last one includes hi)."""

    lo: float
    hi: float
    count: int


class LabelMean(AnswerModel):
    """The measure over one label."""

    label: str | None
    num: int
    mean: float | None
    low: float | None = Field(
        description="Of the 95 % interval by sample; null of one sample, and of the loss and gate entropy of tokens"
    )
    high: float | None
    clear: bool = Field(
        description="Whether the mean differs from that of the other labels, if that is to hold of all labels together"
    )


class Distribution(AnswerModel):
    """How a measure is distributed over samples or tokens."""

    run: str
    measure: str
    per: str
    num: int = Field(description="Values counted; those without one are left out")
    mean: float | None
    std: float | None
    min: float | None
    q01: float | None
    median: float | None
    q99: float | None
    max: float | None
    bins: list[Bin]
    by_label: list[LabelMean]


class SimilarSample(SampleRow):
    """A sample and how far it is."""

    distance: float = Field(description="Hellinger distance of the path profiles: 0 the same load, 1 none in common")


class SimilarSamples(AnswerModel):
    """The samples whose tokens load the modules of each step most like those of one."""

    run: str
    sample: int
    of_samples: int
    median_distance: float = Field(description="To all other samples")
    num_identical: int = Field(description="Samples at distance 0")
    similar: list[SimilarSample] = Field(description="Nearest first")


class Apart(AnswerModel):
    """How many paths lie at a distance."""

    distance: float
    num_paths: int
    num_tokens: Count = Field(description="Tokens on them, the asked one not counted")


class SimilarPath(AnswerModel):
    """A ribbon, how far it is, and tokens that take it."""

    rank: Rank
    ribbon: Ribbon
    count: Count
    share: Share
    cdf: Cdf
    cdf_middle: CdfMiddle
    path_tokens: PathTokens
    distance: float = Field(description="Path distance: Σ over steps of 1 − |S ∩ S′| / K")
    differs: list[int] = Field(description="Steps with other modules")
    examples: list[Example] = Field(description="A draw of its tokens, the asked one left out")


class SimilarTokens(AnswerModel):
    """The ribbons nearest to a token's, its own first."""

    run: str
    sample: int
    token: int
    ribbon: Ribbon
    rank: Rank
    num_paths: int = Field(description="Paths of the run")
    compared_paths: ComparedPaths
    apart: list[Apart] = Field(description="Paths and tokens at each distance, from drawn paths estimates")
    paths: list[SimilarPath] = Field(description="Nearest first, of equal ones the more frequent first")


class MapPoint(AnswerModel):
    """One sample on the map."""

    sample: int
    x: float
    y: float
    label: str | None
    prediction: str | None
    snippet: str | None
    source: str | None
    compute: Compute
    reuse: Reuse
    has_image: bool
    thumbnail: str | None = Field(description="A small picture as a data URI, where asked for")


class NearestLabels(AnswerModel):
    """How often a sample and the one whose path profile is nearest have the same label."""

    share: float = Field(description="Of the samples with a label; one of several as near is drawn by a seed")
    by_chance: float = Field(description="Mean over 200 shuffles of the labels")
    low: float = Field(description="95 % of the shuffles lie between this and `high`")
    high: float
    p_value: float = Field(description="(1 + shuffles at least as high) / (1 + shuffles)")
    num: int = Field(description="Samples with a label")


class SampleMap(AnswerModel):
    """Samples on the plane in which their path profiles differ most."""

    run: str
    method: str
    num_samples: int
    of_samples: int
    explained: list[float] | None = Field(description="Share of the variance along each axis")
    nearest: NearestLabels | None = Field(
        description="null with fewer than two labels, or too few samples to exchange them"
    )
    points: list[MapPoint]


class MarginStep(AnswerModel):
    """How close the decisions of one step were."""

    step: int
    num: int = Field(description="Decisions whose margin is known")
    mean: float | None = Field(description="Mean margin ρ_(K) − ρ_(K+1), in probability")
    q10: float | None
    median: float | None
    q90: float | None
    close: float | None = Field(description="Share of decisions with a margin below `close`")
    counts: list[int] = Field(description="Decisions between the `edges`")


class MarginPair(AnswerModel):
    """A module that was chosen last, and the one that would have been next."""

    step: int
    winner: int = Field(description="The chosen module of the smallest weight")
    winner_name: str
    runner_up: int = Field(description="The module of the next score")
    runner_up_name: str
    count: int
    share: Share = Field(description="Of the step's decisions")
    mean: float = Field(description="Mean margin")
    close: Share = Field(description="Share of these decisions that are close")


class Margins(AnswerModel):
    """How close the decisions of each step were."""

    run: str
    label: str | None
    close: float = Field(description="Decisions with a smaller margin are close")
    edges: list[float] = Field(description="Bounds of the histogram of each step")
    counted: Counted | None = Field(description="What was counted; null without scores")
    steps: list[MarginStep]
    pairs: list[MarginPair] = Field(description="The most frequent pairs of each step")
    reason: str | None = Field(description="Why there are no margins; null where there are")
