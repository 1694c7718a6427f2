"""Answers about a sample against a reference run of the same model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.sample_schema import SimilarPath, SimilarSample
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, ComparedPaths, Ribbon


class ReferenceRun(AnswerModel):
    """The run whose tokens say how often a path is taken."""

    run: str
    model: str
    dataset: str
    split: str | None = None
    num_samples: int
    num_tokens: int
    num_paths: int


class TokenInReference(AnswerModel):
    """One token of the sample, and its path in the reference run."""

    token: int = Field(description="Its position in the sample")
    rank: int | None = Field(description="Rank of its path in the reference run; null where no token takes it there")
    path_tokens: int = Field(description="Tokens of the reference run on this path")
    cdf: float | None = Field(
        description="Share of the reference's tokens on paths of this rank or a more frequent one"
    )
    cdf_middle: float | None = Field(
        description="Share of the reference's tokens on strictly more frequent paths, plus half of that on paths of "
        "equal count"
    )


class UnusualPath(AnswerModel):
    """A path of the sample that no token of the reference run takes."""

    tokens: list[int] = Field(description="Tokens of the sample on it")
    ribbon: Ribbon
    nearest: SimilarPath = Field(description="The path of the reference run that is nearest to it")
    compared_paths: ComparedPaths


class SampleInReference(AnswerModel):
    """A sample against a reference run of the same model."""

    run: str
    sample: int
    reference: ReferenceRun | None = Field(description="Null where there is no other run of this model over a data set")
    found_by: Literal["checkpoint", "model", "named"] | None = Field(
        description="Why this run: the same weights, the same model's name, or it was named"
    )
    reason: str | None = Field(description="Why there is no reference, in words")
    num_tokens: int = Field(description="Tokens of the sample")
    num_known: int | None = Field(description="Tokens of the sample on paths that tokens of the reference take too")
    num_once: int | None = Field(description="Tokens of the sample on paths of a single token of the reference")
    tokens: list[TokenInReference]
    unusual: list[UnusualPath] = Field(description="Paths that the reference does not have, most tokens first")
    similar: list[SimilarSample] = Field(description="Samples of the reference with the nearest path profiles")
