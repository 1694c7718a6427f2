"""The shapes of answers about two runs, about similar samples and ribbons, and of maps."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenpaths.backend.schemas.runs import (
    Card,
    Cdf,
    Compute,
    Count,
    Example,
    MovedLink,
    Rank,
    Reuse,
    Ribbon,
    SampleRow,
    Shape,
    Share,
)

Measure = Literal["reuse", "compute", "skip", "loss"]


class Coefficient(Shape):
    """A correlation with its 95 % interval."""

    r: float
    low: float
    high: float


class Matched(Shape):
    """Which samples of two runs belong together."""

    by: Literal["source", "content", "place"] = Field(description="What pairs them")
    num: int = Field(description="Pairs")
    only_a: int = Field(description="Samples of `a` without a partner")
    only_b: int = Field(description="Samples of `b` without a partner")
    different: int = Field(description="Of the same source, but of another content; left out")
    sentence: str = Field(description="The same in words")


class SummaryRow(Shape):
    """One number of both whole runs."""

    name: str
    a: float | None
    b: float | None
    untrained_a: float | None = Field(description="Of the untrained twin that was traced beside `a`")
    untrained_b: float | None = Field(description="Of the untrained twin that was traced beside `b`")


class MeasureCorrelation(Shape):
    """How far a measure of the samples goes together in both runs."""

    measure: Measure
    num: int = Field(description="Pairs that have the measure in both")
    mean_a: float | None
    mean_b: float | None
    pearson: Coefficient | None = Field(description="Interval by Fisher's z")
    spearman: Coefficient | None = Field(description="Interval by Fisher's z with the error of Bonett and Wright")
    reason: str | None = Field(description="Why there is none")


class WithinCorrelation(Shape):
    """Skip (1 − compute) against reuse inside one run."""

    run: str
    num: int
    pearson: Coefficient | None
    reason: str | None


class Grouping(Shape):
    """Do both runs put the same tokens on one path?"""

    ami: float | None = Field(description="Adjusted mutual information of path and path: 0 as by chance, 1 the same")
    nmi: float | None = Field(description="2·I / (H + H′)")
    expected_nmi: float | None = Field(description="NMI of groups of the same sizes, put together at random")
    num_tokens: Count
    num_samples: int
    reason: str | None = Field(description="Why there is none")


class DifferentNode(Shape):
    """A module at a step, and the share of the tokens that it got in both runs."""

    step: int
    module: int
    name: str
    kind: str
    before: Share = Field(description="In `a`")
    after: Share = Field(description="In `b`")
    change: float


class StepLoads(Shape):
    """How evenly both runs load the modules of a step; absent where a run does not have the step."""

    step: int
    load_entropy_a: float | None = None
    load_entropy_b: float | None = None
    effective_top_k_a: float | None = None
    effective_top_k_b: float | None = None
    difference: float | None = Field(description="½ Σ |l − l′| of the loads, each sorted from its busiest module on")


class FlowDifference(Shape):
    """Where tokens go in one run and not in the other."""

    difference: float | None = Field(description="½ Σ |f′ − f| of links as shares, mean over pairs of steps")
    reason: str | None = Field(description="Why flows cannot be subtracted")
    same_numbering: bool = Field(description="Whether module 3 of one is module 3 of the other")
    note: str | None
    num_tokens: list[int] = Field(description="Tokens of the paired samples in `a` and in `b`; empty with a reason")
    steps: list[int]
    own_modules: bool = Field(description="Whether modules belong to their step")
    nodes: list[DifferentNode]
    links: list[MovedLink] = Field(description="`before`: share in `a`; `after`: share in `b`; largest change first")
    loads: list[StepLoads]


class SamplePair(Shape):
    """One sample in both runs."""

    sample: int = Field(description="Its number in `a`")
    partner: int = Field(description="Its number in `b`")
    a: float
    b: float
    label: str | None


class MovedSample(SamplePair):
    """A sample whose measure differs."""

    difference: float = Field(description="b − a")
    source: str | None
    snippet: str | None
    has_image: bool


class Comparison(Shape):
    """Two runs side by side over the samples that both have."""

    a: Card
    b: Card
    measure: Measure
    matched: Matched
    summary: list[SummaryRow]
    correlations: list[MeasureCorrelation] = Field(description="Of every measure")
    within: list[WithinCorrelation]
    grouping: Grouping | None = Field(description="Null where it was not asked for")
    flow: FlowDifference
    points: list[SamplePair] = Field(description="The measure sample by sample; an even draw where there are many")
    points_of: int = Field(description="Pairs that have the measure")
    most: list[MovedSample] = Field(description="Samples that differ most, largest difference first")


class SameGroups(Shape):
    """The grouping of two runs' tokens, by itself."""

    a: str
    b: str
    grouping: Grouping


class TrainingPoint(Shape):
    """The numbers of one checkpoint; those of load are means over steps."""

    run: str
    iteration: int
    num_samples: int
    num_tokens: Count
    num_paths: int
    effective_paths: float | None
    mean_compute: Compute
    mean_reuse: Reuse
    loss: float | None
    accuracy: float | None
    effective_top_k: float
    max_violation: float
    load_entropy: float


class Training(Shape):
    """The checkpoints of one training, in order of iteration."""

    run: str
    series: str
    points: list[TrainingPoint]


class SimilarSample(SampleRow):
    """A sample and how far it is."""

    distance: float = Field(description="Hellinger distance of the path profiles: 0 the same load, 1 none in common")


class SimilarSamples(Shape):
    """The samples whose tokens load the modules of each step most like those of one."""

    run: str
    sample: int
    of_samples: int
    median_distance: float = Field(description="To all other samples")
    num_identical: int = Field(description="Samples at distance 0")
    similar: list[SimilarSample] = Field(description="Nearest first")


class Apart(Shape):
    """How many paths lie at a distance."""

    distance: float
    num_paths: int
    num_tokens: Count = Field(description="Tokens on them, the asked one not counted")


class SimilarPath(Shape):
    """A ribbon, how far it is, and tokens that take it."""

    rank: Rank
    ribbon: Ribbon
    count: Count
    share: Share
    cdf: Cdf
    distance: float = Field(description="Path distance: Σ over steps of 1 − |S ∩ S′| / K")
    differs: list[int] = Field(description="Steps with other modules")
    examples: list[Example] = Field(description="A draw of its tokens, the asked one left out")


class SimilarTokens(Shape):
    """The ribbons nearest to a token's, its own first."""

    run: str
    sample: int
    token: int
    ribbon: Ribbon
    rank: Rank
    num_paths: int = Field(description="Paths that were compared: all of the run")
    apart: list[Apart] = Field(description="Paths and tokens at each distance")
    paths: list[SimilarPath] = Field(description="Nearest first, of equal ones the more frequent first")


class MapPoint(Shape):
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


class SampleMap(Shape):
    """Samples on the plane in which their path profiles differ most."""

    run: str
    method: str
    num_samples: int
    of_samples: int
    explained: list[float] | None = Field(description="Share of the variance along each axis")
    points: list[MapPoint]
