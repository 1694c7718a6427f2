"""Answers about the work that tokens and samples got: beside loss and correctness, and by kind of token."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Coefficient, Counted, High, Low, Rank, Ribbon


class WithInterval(AnswerModel):
    """A mean with its 95 % interval."""

    mean: float
    low: Low
    high: High


class OutcomeGroup(AnswerModel):
    """One of the groups of equal size, from the least to the most of the measure."""

    lowest: float = Field(description="Least value of the measure in the group")
    value: float = Field(description="Mean of the measure in the group")
    highest: float
    right: WithInterval | None = Field(description="Share of right predictions")
    confidence: WithInterval | None = Field(description="Mean probability of the prediction")
    loss: WithInterval | None = Field(description="Mean loss, nats")


class OutcomeDifference(AnswerModel):
    """What the groups at both ends differ by."""

    outcome: Literal["right", "confidence", "loss"]
    least: float = Field(description="Mean of the group with the least of the measure")
    most: float = Field(description="Mean of the group with the most")
    difference: float = Field(description="Least less most")
    low: Low
    high: High
    correlation: float | None = Field(description="Spearman's, over samples; null per token")
    correlation_low: Low
    correlation_high: High


class Outcomes(AnswerModel):
    """Loss, confidence and correctness beside how much work was done."""

    run: str
    measure: str
    per: Literal["sample", "token"]
    counted: Counted
    groups: list[OutcomeGroup]
    differences: list[OutcomeDifference]
    reason: str | None = Field(description="Why there is nothing to compare, in words")


class Slope(AnswerModel):
    """Slope of a line over skip, with its 95 % interval."""

    slope: float = Field(description="Change for a skip of 1 more; by ten percentage points, a tenth of it")
    low: Low
    high: High


class PairSlope(Slope):
    """Slope over skip of the share of a token's pairs of visits at different steps that repeat a module."""

    share: float = Field(description="Share of all pairs that repeat a module")


class SkipGroup(AnswerModel):
    """A quarter of the samples, from the least skip to the most."""

    lowest: float = Field(description="Least skip in the group")
    skip: float = Field(description="Mean skip")
    highest: float
    reuse: WithInterval = Field(description="Mean reuse")
    chance_reuse: float = Field(description="Mean reuse by chance")


class SkipAndReuse(AnswerModel):
    """Reuse of samples against the share that they skip, as seen and by chance."""

    run: str
    label: str | None
    counted: Counted | None = Field(description="null where nothing was skipped")
    num_samples: int | None = Field(description="Samples that were looked at")
    skip: float | None = Field(description="Mean of 1 − compute over samples")
    reuse: float | None = Field(description="Mean reuse over samples")
    chance_reuse: float | None = Field(
        description="Mean reuse if each token kept how many modules it uses at each step, and chose each as often as "
        "all tokens that use as many there"
    )
    pearson: Coefficient | None = Field(description="Of skip and reuse; interval as in /compare")
    seen: Slope | None = Field(description="Of reuse over skip")
    by_chance: Slope | None = Field(description="Of the reuse that chance gives, over skip")
    beyond: Slope | None = Field(
        description="Of reuse less that by chance, over skip; below 0 also where skip has nothing to do with it, as "
        "who visits fewer modules can come back to fewer"
    )
    pairs: PairSlope | None = Field(
        description="Of the share of pairs of visits that repeat a module, less that of all tokens at the same two "
        "steps: above 0 where samples that skip more come back more readily. null where too few samples have pairs"
    )
    excess: WithInterval | None = Field(description="Mean of reuse less that by chance")
    groups: list[SkipGroup]
    reason: str | None = Field(description="Why there is nothing to compare, in words")


class KindMean(AnswerModel):
    """The mean of one kind of token."""

    by: Literal["region", "patch", "word"]
    kind: str = Field(description="A region of the run, a kind of patch, or a kind of word")
    num_tokens: int
    num_samples: int = Field(description="Samples with such tokens")
    mean: float
    low: Low
    high: High
    difference: float = Field(description="Less the mean of all tokens that could be of such a kind")
    difference_low: Low
    difference_high: High
    clear: bool = Field(description="Whether 0 lies outside when the intervals of all kinds are to hold together")


class KindMeans(AnswerModel):
    """Means of a measure by region, kind of patch and kind of word."""

    run: str
    measure: str
    counted: Counted
    counted_pictures: Counted | None = Field(
        None, description="The drawn pictures that `edge` and `flat` are measured on; null where those are all of them"
    )
    kinds: list[KindMean] = Field(description="By group, the most first")
    reason: str | None = Field(description="Why there is nothing to compare, in words")


class PathAlike(AnswerModel):
    """How alike the tokens of one path are."""

    rank: Rank
    ribbon: Ribbon
    num_tokens: int = Field(description="Of the tokens that were looked at")
    num_samples: int
    likeness: float
    null_low: Low
    null_high: High


class LookAlike(AnswerModel):
    """How alike tokens of one path are by one look, beside samples that exchange theirs place by place."""

    look: Literal["colour", "word_class"]
    likeness: float = Field(description="1 − d/D: 0 paths do not sort by it, 1 tokens of a path are equal in it")
    low: Low
    high: High
    null_mean: float | None
    null_low: Low
    null_high: High
    p_value: float | None = Field(description="(1 + shuffles at least as high) / (1 + shuffles)")
    untrained: float | None = Field(description="Of the untrained twin's paths of `untrained_tokens` tokens")
    untrained_low: Low
    untrained_high: High
    trained: float | None = Field(description="Of this run's paths of the same tokens as the twin's")
    paths: list[PathAlike] = Field(description="The most frequent ones with 20 tokens or more of three samples or more")


class Alikeness(AnswerModel):
    """Whether tokens of one path look alike."""

    run: str
    counted: Counted
    shuffles: int
    shared: float | None = Field(description="Share of the tokens on a path that another sample takes too")
    looks: list[LookAlike]
    untrained_tokens: int
    untrained_reason: str | None
    reason: str | None = Field(description="Why there is nothing to show, in words")


class KindShare(AnswerModel):
    """How much of a step's choices goes to modules of one kind."""

    step: int
    kind: str = Field(description="Kind of module: transformer, attention, mlp, identity, expert, block …")
    num_modules: int = Field(description="Modules of the kind that the step offers")
    share: float = Field(description="Of the step's choices")
    low: Low
    high: High
    even: float = Field(description="Share if every module were chosen as often: modules of the kind / all offered")
    untrained: float | None = Field(description="Share of the untrained twin's choices")


class KindShares(AnswerModel):
    """Kinds of modules by step."""

    run: str
    counted: Counted = Field(description="What the intervals were worked out on; shares are of all tokens")
    shares: list[KindShare]
    reason: str | None = Field(description="Why there is nothing to compare, in words")
