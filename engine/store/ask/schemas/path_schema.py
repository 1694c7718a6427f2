"""Answers about paths: list, rank–frequency fits, power laws, examples."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import (
    AnswerModel,
    Cdf,
    CdfMiddle,
    Compute,
    Count,
    Example,
    Next,
    PathTokens,
    Rank,
    Reuse,
    Ribbon,
    Share,
)


class Path(AnswerModel):
    """One path and who takes it."""

    rank: Rank
    ribbon: Ribbon
    count: Count
    share: Share
    cdf: Cdf
    cdf_middle: CdfMiddle
    path_tokens: PathTokens
    compute: Compute
    reuse: Reuse
    top_label: str | None = Field(None, description="Most frequent label among the tokens on this path")
    top_label_share: float | None = Field(None, description="Share of the path's tokens that have it")


class PathList(AnswerModel):
    """Paths, most frequent first unless ordered otherwise."""

    run: str
    num_paths: int
    num_tokens: int
    paths: list[Path]
    next: Next


class FitPoint(AnswerModel):
    """One point of the rank–frequency curve."""

    rank: Rank
    count: int
    share: Share
    cdf: float | None = Field(
        None, description="Share of tokens on paths of this rank or a more frequent one; of the run's own paths only"
    )
    cdf_middle: float | None = Field(None, description="As of a path; of the run's own paths only")
    path_tokens: int | None = Field(None, description="As of a path; of the run's own paths only")


class Fit(AnswerModel):
    """A rank–frequency curve and its straight line on log–log axes."""

    num_paths: int
    num_tokens: int
    effective_paths: float | None
    slope: float | None = Field(description="Least-squares slope of log frequency on log rank")
    r2: float | None = Field(description="Share of variance that the line explains")
    points: list[FitPoint] = Field(description="At most 200, evenly spaced in log rank")


class PathFit(AnswerModel):
    """The run's paths beside two nulls."""

    run: str
    observed: Fit
    untrained: Fit | None = Field(description="The same architecture untrained; null where it was not traced")
    independent: Fit | None = Field(description="Each step's choices shuffled over tokens")


class Lognormal(AnswerModel):
    """The lognormal of the same tail, and which of the two fits better (Vuong's test)."""

    mu: float
    sigma: float
    ratio: float = Field(description="Log likelihood ratio over its standard deviation; positive: power law better")
    p_value: float = Field(description="How likely so large a ratio is when both fit equally well")


class LawPoint(AnswerModel):
    """A point of the law drawn as a rank–frequency curve."""

    rank: float = Field(description="Expected number of paths that are taken at least as often")
    share: Share


class Law(AnswerModel):
    """p(count = x) ∝ x^−α for x ≥ x_min, by discrete maximum likelihood; or the reason why there is none."""

    num_paths: int
    alpha: float | None = None
    alpha_error: float | None = Field(None, description="Standard error, (α − 1)/√num_tail")
    x_min: int | None = Field(None, description="Fewest tokens of a path that belongs to the law; makes `ks` smallest")
    num_tail: int | None = Field(None, description="Paths with at least `x_min` tokens")
    ks: float | None = Field(None, description="Kolmogorov–Smirnov distance of tail and law")
    p_value: float | None = Field(
        None,
        description="(1 + data sets drawn from the law that lie at least as far from their fit) / (1 + draws); at most "
        "0.1: refused",
    )
    lognormal: Lognormal | None = None
    curve: list[LawPoint] = Field([], description="From `x_min` to the most frequent path, at most 40 points")
    reason: str | None = Field(None, description="Why there is no law")


class PathLaw(AnswerModel):
    """Power laws of path counts: of the run and of its two nulls."""

    run: str
    draws: int
    seed: int
    observed: Law
    untrained: Law | None = Field(description="The same architecture untrained; null where it was not traced")
    independent: Law | None = Field(description="Each step's choices shuffled over tokens")


class SlopePoint(AnswerModel):
    """Slopes at a number of tokens: means over thinned runs, with their standard deviation."""

    num_tokens: int
    num_paths: float
    slope: float | None = Field(description="Over all ranks; falls with the number of tokens")
    slope_std: float | None
    window_slope: float | None = Field(description="Over the ranks of `window`; null with fewer than 50 of them")
    window_std: float | None


class PathSlopes(AnswerModel):
    """Slopes of the run and of its two nulls at equal numbers of tokens."""

    run: str
    draws: int
    seed: int
    window: list[int] = Field(description="First and last rank")
    observed: list[SlopePoint]
    untrained: list[SlopePoint] | None = Field(
        description="The same architecture untrained; null where it was not traced"
    )
    independent: list[SlopePoint] | None = Field(description="Each step's choices shuffled over tokens")


class PathExamples(AnswerModel):
    """Tokens on one path, drawn by a seed."""

    run: str
    rank: Rank
    ribbon: Ribbon
    count: Count
    share: Share
    cdf: Cdf
    cdf_middle: CdfMiddle
    path_tokens: PathTokens
    examples: list[Example]
