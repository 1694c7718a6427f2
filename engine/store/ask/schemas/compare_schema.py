"""Answers about several runs: two side by side, an edited run, the checkpoints of one training."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.run_schema import Card
from tokenpaths.engine.store.ask.schemas.schema_values import (
    AnswerModel,
    Coefficient,
    Compute,
    Count,
    Counted,
    ModuleAtStep,
    Reuse,
    Ribbon,
    Share,
)

Measure = Literal["reuse", "compute", "skip", "loss"]
MeasureOrAuto = Literal["reuse", "compute", "skip", "loss", "auto"]


class Matched(AnswerModel):
    """Which samples of two runs belong together."""

    by: Literal["source", "content", "place"] = Field(description="What pairs them")
    num: int = Field(description="Pairs")
    only_a: int = Field(description="Samples of `a` without a partner")
    only_b: int = Field(description="Samples of `b` without a partner")
    different: int = Field(description="Of the same source, but of another text, picture or vocabulary ids; left out")
    by_name: int = Field(description="Pairs of the same source of which no text, picture or vocabulary ids tell more")
    sentence: str = Field(description="The same in words")


class SummaryRow(AnswerModel):
    """One number of both whole runs."""

    name: str
    a: float | None
    b: float | None
    untrained_a: float | None = Field(description="Of the untrained twin that was traced beside `a`")
    untrained_b: float | None = Field(description="Of the untrained twin that was traced beside `b`")


class MeasureCorrelation(AnswerModel):
    """How far a measure of the samples goes together in both runs."""

    measure: Measure
    num: int = Field(description="Pairs that have the measure in both")
    mean_a: float | None
    mean_b: float | None
    pearson: Coefficient | None = Field(description="Interval by Fisher's z, its error at least the jackknife's")
    spearman: Coefficient | None = Field(description="Likewise, of ranks: the error of Bonett and Wright")
    reason: str | None = Field(description="Why there is none")


class WithinCorrelation(AnswerModel):
    """Skip (1 − compute) against reuse inside one run."""

    run: str
    num: int
    pearson: Coefficient | None
    reason: str | None


class Grouping(AnswerModel):
    """Do both runs put the same tokens on one path?"""

    ami: float | None = Field(description="Adjusted mutual information of path and path: 0 as by chance, 1 the same")
    nmi: float | None = Field(description="2·I / (H + H′)")
    expected_nmi: float | None = Field(description="NMI of groups of the same sizes, put together at random")
    num_tokens: Count
    num_samples: int
    reason: str | None = Field(description="Why there is none")


class DifferentNode(ModuleAtStep):
    """A module at a step, and the share of the tokens that it got in both runs, of those whose decision is known."""

    before: Share = Field(description="In `a`")
    after: Share = Field(description="In `b`")
    change: float


class StepLoads(AnswerModel):
    """How evenly both runs load the modules of a step; absent where a run does not have the step."""

    step: int
    load_entropy_a: float | None = None
    load_entropy_b: float | None = None
    effective_top_k_a: float | None = None
    effective_top_k_b: float | None = None
    difference: float | None = Field(description="½ Σ |l − l′| of the loads, each sorted from its busiest module on")


class MovedLink(AnswerModel):
    """A link of the flow that gained or lost tokens."""

    step: int
    source: int
    target: int
    before: Share
    after: Share
    change: float


class FlowDifference(AnswerModel):
    """Where tokens go in one run and not in the other."""

    difference: float | None = Field(description="½ Σ |f′ − f| of links as shares, mean over pairs of steps")
    reason: str | None = Field(description="Why flows cannot be subtracted")
    same_numbering: bool = Field(description="Whether module 3 of one is module 3 of the other")
    note: str | None
    num_tokens: list[int] = Field(description="Tokens of the paired samples in `a` and in `b`; empty with a reason")
    steps: list[int]
    own_modules: bool = Field(description="Whether modules belong to their step")
    nodes: list[DifferentNode]
    links: list[MovedLink] = Field(
        description="`before`: share in `a`; `after`: share in `b`. Of the tokens that use known modules at both "
        "steps (`flow` gives shares of all tokens); largest change first"
    )
    loads: list[StepLoads]


class SamplePair(AnswerModel):
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


class Comparison(AnswerModel):
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


class SameGroups(AnswerModel):
    """The grouping of two runs' tokens, by itself."""

    a: str
    b: str
    grouping: Grouping


class ComparedRun(Card):
    """One of the runs side by side, and how its samples stand to those of the first."""

    same_samples: bool = Field(description="Whether every sample of it and of the first run has a partner")
    num_common: int | None = Field(description="Samples in both; null for the first run itself")
    same_tokens: bool = Field(description="Whether the common samples are cut into equally many tokens")
    reason: str | None = Field(description="Why it has no sample in common with the first run")


class RunDifference(AnswerModel):
    """A number of a run less that of the first run."""

    value: float
    low: float = Field(description="Lower end of the 95 % interval, samples taken as what was drawn")
    high: float
    num: int = Field(description="Common samples that it rests on")
    clear: bool = Field(description="Whether the interval excludes zero")


class NumberRow(AnswerModel):
    """One number of all runs, in their order."""

    name: str
    group: Literal["size", "outcome", "work", "paths", "balance", "knowledge"]
    values: list[float | None]
    low: list[float | None] = Field(description="Lower ends of the 95 % intervals; null where there is none")
    high: list[float | None]
    untrained: list[float | None] = Field(description="Of the untrained twin that was traced beside each run")
    differences: list[RunDifference | None] = Field(description="From the first run; null where none can be told")
    reasons: list[str | None] = Field(description="Why a difference that one would ask for cannot be told")


class RunsBeside(AnswerModel):
    """The numbers of any number of runs."""

    runs: list[ComparedRun] = Field(description="In the order asked for; the first is what the others differ from")
    equal_tokens: int = Field(description="Tokens of each run that `equal_paths` and `window_slope` are of")
    window: list[int] = Field(description="First and last rank of `window_slope`")
    rows: list[NumberRow] = Field(description="Numbers that at least one run has, group by group")


class StepLoad(AnswerModel):
    """How one step of a checkpoint loads its modules; null where none of its decisions is known."""

    step: int
    load_entropy: float | None
    max_violation: float | None
    effective_top_k: float | None
    dead: int | None = Field(description="Modules that no token chose")
    kept: float | None = Field(description="1 − ½ Σ |l − l′| of the loads and those of the checkpoint before")


class UntrainedPoint(AnswerModel):
    """The numbers of the untrained twin that was traced beside a checkpoint."""

    beside: str = Field(description="The checkpoint that it was traced beside")
    counts: list[list[int]] = Field(
        description="Choices of each module at each step, modules as in `/usage` of `beside`"
    )
    num_tokens: Count
    num_paths: int
    effective_paths: float | None
    effective_top_k: float | None
    max_violation: float | None
    load_entropy: float | None
    steps: list[StepLoad]


class TrainingPoint(AnswerModel):
    """The numbers of one checkpoint; those of load are means over steps."""

    run: str
    iteration: int
    num_samples: int | None = Field(description="null of a run of loads alone, as all that needs tokens")
    num_tokens: int | None
    num_paths: int | None
    effective_paths: float | None
    mean_compute: Compute
    mean_reuse: Reuse
    loss: float | None
    accuracy: float | None
    effective_top_k: float | None
    max_violation: float | None
    load_entropy: float | None
    steps: list[StepLoad]


class Training(AnswerModel):
    """The checkpoints of one training, in order of iteration."""

    run: str
    series: str
    untrained: UntrainedPoint | None = Field(description="Before all of them; null where iteration 0 is there")
    points: list[TrainingPoint]


class SaturationPoint(AnswerModel):
    """One checkpoint beside the last one."""

    run: str
    iteration: int
    saturation: Share = Field(
        description="Σ |S^ckpt ∩ S^final| / Σ |S^final| over tokens whose decision is known in both, mean over steps"
    )
    error: float | None = Field(
        None, description="Half its 95 % interval; 0 where every token was counted, null where one sample was drawn"
    )
    by_step: list[float | None] = Field(description="The same for each step; null where no decision is known in both")


class LeftOut(AnswerModel):
    """A run of the series that cannot be compared."""

    run: str
    reason: str


class Saturation(AnswerModel):
    """Router saturation over the checkpoints of one training, against the last one."""

    run: str
    series: str
    final: str = Field(description="The run of the last checkpoint")
    baseline: Share | None = Field(
        description="k/M, k the mean number of modules that a token uses: what even, independent choices would share; "
        "null where the last checkpoint knows no decision"
    )
    counted: Counted
    compared_by: str = Field(description="What shows that tokens are the same: `token ids` or `lengths of the samples`")
    points: list[SaturationPoint] = Field(description="In the order of iterations")
    left_out: list[LeftOut]


class Change(AnswerModel):
    """One number before and after."""

    before: float
    after: float
    change: float
    error: float | None = Field(
        None, description="Standard error of `change` over samples, where each output was measured; null of one sample"
    )
    low: float | None = Field(None, description="Of its 95 % interval, as `error`")
    high: float | None = None


class Likely(AnswerModel):
    """A class of an image, or a token that could follow a text."""

    name: str
    probability: Share


class Outputs(AnswerModel):
    """What the model says differently, measured on the same inputs while the edited run was made."""

    num_samples: int
    of_samples: int | None = Field(None, description="Of so many samples of the run that they were drawn from")
    num_outputs: int = Field(description="Images, or tokens of texts")
    num_targets: int = Field(description="Those whose right answer is known")
    edits: list[str] = Field(description="The edits in words")
    kl: float = Field(description="KL(unchanged ‖ edited) of the output distribution, nats, mean over outputs")
    top1_changed: Share
    top5_changed: float = Field(description="Share of the five likeliest answers that are others now, mean")
    loss: Change | None = Field(description="nats; null where no right answer is known")
    accuracy: Change | None
    perplexity: Change | None = Field(description="Texts only")
    top5: dict[str, list[Likely]] | None = Field(
        None, description="Of one sample: the five likeliest `before` and `after`"
    )


class MovedToken(AnswerModel):
    """One token before and after."""

    token: int
    before: Ribbon
    after: Ribbon
    moved: list[int] = Field(description="Steps at which it visits other modules")
    loss: Change | None


class Effect(AnswerModel):
    """What an edited run changed of the unchanged one, on the same inputs."""

    run: str
    of: str = Field(description="The unchanged run")
    sample: int | None = Field(description="Its sample, where one sample is compared")
    num_samples: int = Field(description="Samples that were compared")
    of_samples: int = Field(description="Of so many: of the run that a job drew them from, or of the unchanged run")
    num_tokens: Count = Field(description="Tokens whose decisions are all known in both runs; shares are of these")
    controls: dict[str, Any] | None = Field(description="What was changed, as POST /traces takes it")
    after_step: int = Field(description="The first edited step")
    after_steps: list[int] = Field(description="The steps behind it that no edit changes by itself")
    paths_changed: Share = Field(description="Share of tokens that visit other modules at any step")
    paths_changed_after: Share | None = Field(description="… at one of `after_steps`; null where there is none")
    path_distance: float = Field(description="Mean over tokens of Σ over steps of 1 − |S ∩ S′| / K")
    flow_difference: float | None = Field(
        description="½ Σ |f′ − f| / T, mean over pairs of steps: 0 the same flow, 1 none in common; null for one step"
    )
    loss: Change | None
    accuracy: Change | None = Field(description="Images")
    perplexity: Change | None = Field(description="Texts")
    links: list[MovedLink] = Field(description="Links that gained or lost most, largest change first")
    tokens: list[MovedToken] | None = Field(description="Every token, where one sample is compared")
    outputs: Outputs | None = Field(description="Null where the run was made without measuring")
