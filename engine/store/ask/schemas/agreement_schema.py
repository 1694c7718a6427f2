"""Answer of ``GET /compare/agreement``: whether the same tokens take the same modules in two runs.

A *decision* is what one token chooses at one step; only those count that both runs know.
"""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Counted, High, Low, Ribbon, Share
from tokenpaths.engine.store.ask.schemas.work_schema import WithInterval


class SureShare(AnswerModel):
    """A share with its 95 % interval over samples; without ends where there is one sample."""

    share: Share
    low: Low
    high: High


class MatchedTokens(AnswerModel):
    """Which tokens of two runs are the same."""

    num: int = Field(description="Pairs of samples")
    num_tokens: int = Field(description="Tokens that both runs have: a stretch of equal vocabulary ids in each pair")
    only_a: int = Field(description="Samples of `a` without a partner")
    only_b: int = Field(description="Samples of `b` without a partner")
    by_ids: int = Field(description="Pairs found by their vocabulary ids, not by source, text or picture")
    different: int = Field(description="Pairs by source or content that share too few tokens, and are left out")
    alone_a: int = Field(description="Tokens of paired samples that only `a` has: before, behind or in the middle")
    alone_b: int = Field(description="Tokens of paired samples that only `b` has")
    shifted: int = Field(description="Pairs whose stretch starts at another token in each run")
    other_ids: int = Field(description="Tokens of these stretches with other vocabulary ids, which are left out")
    sentence: str = Field(description="The same in words")


class OverallAgreement(AnswerModel):
    """All decisions together."""

    decisions: int = Field(description="Tokens × steps that both runs know")
    sets: SureShare = Field(description="Decisions with the same set of modules")
    overlap: WithInterval = Field(
        description="Mean of |A ∩ B| / K, of two sizes the larger; 1 where both sets are empty"
    )
    chance: float | None = Field(
        description="`overlap` of two runs with these loads and sizes by step that know nothing of each other"
    )
    first: SureShare | None = Field(description="Decisions with the same first choice; null: see `order_missing`")
    order: SureShare | None = Field(description="Decisions with the same modules in the same order; null likewise")
    tokens: SureShare = Field(description="Tokens with the same sets at every step")
    weight_change: float | None = Field(
        description="Mean |w − w′| of the modules that a decision has in both runs; null where a source has no weights"
    )


class StepAgreement(AnswerModel):
    """The decisions of one step; null where none is known in both."""

    step: int
    decisions: int
    sets: SureShare | None
    overlap: float | None
    chance: float | None
    first: float | None
    order: float | None
    weight_change: float | None


class TokensApart(AnswerModel):
    """How far tokens go together."""

    num: int = Field(description="Tokens with a known decision")
    first_different: list[int] = Field(description="By step: tokens whose first different decision is there")
    num_different: list[int] = Field(description="Tokens with 0, 1, 2 … different decisions")


class PositionAgreement(AnswerModel):
    """Tokens by their position in the sample of `a`."""

    first: int
    last: int | None = Field(description="Null: open")
    decisions: int
    sets: SureShare


class LabelAgreement(AnswerModel):
    """One label of `a`."""

    label: str
    samples: int
    decisions: int
    sets: SureShare


class WordAgreement(AnswerModel):
    """One vocabulary id whose decisions surely differ more often than those of all tokens."""

    token_id: int
    text: str | None
    tokens: int
    samples: int
    sets: Share


class WordsApart(AnswerModel):
    """Words that differ more often than the rest, at 95 % of all words together."""

    looked_at: int = Field(description="Words in enough samples for something to be said of them")
    rows: list[WordAgreement]


class MarginAgreement(AnswerModel):
    """Decisions of `a` by their margin: the score of the last chosen module less that of the next one."""

    low: float
    high: float
    decisions: int
    sets: Share


class LossChange(AnswerModel):
    """Loss in `b` less loss in `a`, nats a token."""

    same: WithInterval | None = Field(description="Of tokens with the same decisions at all steps")
    different: WithInterval | None = Field(description="Of the others")
    num_same: int
    num_different: int


class SampleAgreement(AnswerModel):
    """A sample with different decisions."""

    sample: int = Field(description="Its number in `a`")
    partner: int = Field(description="Its number in `b`")
    num_tokens: int = Field(description="Tokens that both have")
    differ: int = Field(description="Tokens with a different decision")
    sets: Share
    label: str | None
    source: str | None
    snippet: str | None
    has_image: bool


class Agreement(AnswerModel):
    """Whether run `b` decides as run `a` does."""

    a: str
    b: str
    matched: MatchedTokens
    counted: Counted
    note: str | None = Field(description="What to keep in mind where modules are compared by their numbers")
    overall: OverallAgreement
    order_missing: str | None = Field(description="Why nothing is said of first choices and of order")
    steps: list[StepAgreement]
    tokens: TokensApart
    positions: list[PositionAgreement]
    labels: list[LabelAgreement] = Field(description="Least agreement first")
    words: WordsApart
    margins: list[MarginAgreement] = Field(description="Empty where `a` has no scores")
    loss: LossChange | None = Field(description="Null where no token has a loss in both")
    samples: list[SampleAgreement] = Field(description="Largest share of different decisions first")


class TokenAgreement(AnswerModel):
    """One token in both runs."""

    token: int = Field(description="Its position in the sample of `a`")
    partner: int = Field(description="Its position in the sample of `b`")
    text: str | None = None
    row: int | None = None
    col: int | None = None
    overlap: list[float | None] = Field(
        description="By step |A ∩ B| / K, 1: the same modules; null where a run does not know its decision"
    )
    ribbon_a: Ribbon
    ribbon_b: Ribbon


class SampleDecisions(AnswerModel):
    """The common tokens of one sample, in both runs."""

    a: str
    b: str
    sample: int = Field(description="Its number in `a`")
    partner: int = Field(description="Its number in `b`")
    label: str | None
    num_tokens: int = Field(description="Common tokens")
    first: int = Field(description="The first of them that is listed")
    tokens: list[TokenAgreement]
