"""Base class of answers and the types that several of them share.

A *ribbon* is the path of one token, one tuple of module ids per step (slot 0 = largest weight); a *share* lies in
[0, 1]; losses and entropies are in nats.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Ribbon = Annotated[
    list[list[int]],
    Field(
        description="Module ids by step, largest weight first: K of them, fewer where slots are unused",
        examples=[[[3], [1]]],
    ),
]
Share = Annotated[float, Field(description="Share in [0, 1]")]
Compute = Annotated[
    float | None, Field(description="Active (non-identity) slots / (steps × slots); 1 = nothing was skipped")
]
Reuse = Annotated[
    float | None, Field(description="1 − distinct active modules / active visits; 0 = no module was visited twice")
]
Cdf = Annotated[float, Field(description="Share of tokens on paths of this rank or a more frequent one")]
CdfMiddle = Annotated[
    float,
    Field(
        description="Share of tokens on strictly more frequent paths plus half of that on paths of equal count: equal "
        "counts, equal values. What the colour of a path is made of; a path of one token (`path_tokens`) has none"
    ),
]
PathTokens = Annotated[int, Field(description="Tokens of the whole run on this path, whatever the filter")]
Rank = Annotated[int, Field(description="Rank of the path by frequency, 1 = most frequent")]
ComparedPaths = Annotated[
    int,
    Field(
        description="Paths that were compared: all of the run, or a draw where there are more than a million of many "
        "choices each"
    ),
]
Next = Annotated[str | None, Field(description="Give this as `next` for the following page; null on the last page")]
Count = Annotated[int, Field(description="Number of tokens")]
Lift = Annotated[float, Field(description="Share here / share in the run; 1 = as everywhere")]
Low = Annotated[float | None, Field(description="Lower end of the 95 % interval, samples taken as what was drawn")]
High = Annotated[float | None, Field(description="Upper end of the 95 % interval")]


class AnswerModel(BaseModel):
    """Base of all answers: what the store adds later passes through, what is documented is checked."""

    model_config = ConfigDict(extra="allow")


class ModuleAtStep(AnswerModel):
    """One module at one step."""

    step: int
    module: int
    name: str
    kind: str


class Counted(AnswerModel):
    """How many tokens an answer was counted on: all of them, or those of a seeded draw of whole samples."""

    num_tokens: Count
    of_tokens: int
    num_samples: int
    of_samples: int
    exact: bool = Field(description="Whether every token was counted")


class Coefficient(AnswerModel):
    """A correlation with its 95 % interval."""

    r: float
    low: float
    high: float


class Label(AnswerModel):
    """A class, domain or language of the data set."""

    label: str | None
    num_samples: int
    num_tokens: int = Field(description="0 where counts do not tell tokens from choices")


class Example(AnswerModel):
    """One token on a path: a patch of an image, or a token between its neighbours."""

    sample: int
    token: int
    token_id: int | None = Field(None, description="Vocabulary id")
    label: str | None = None
    row: int | None = None
    col: int | None = None
    patch: str | None = Field(None, description="PNG of the patch as a data: URL")
    before: str | None = Field(None, description="Text before the token")
    text: str | None = Field(None, description="The token itself")
    after: str | None = Field(None, description="Text after the token")
