"""Answers about what modules are for: specialisation, co-activation, repetition, soft decisions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Count, Counted, ModuleAtStep, Share


class SoftAxis(AnswerModel):
    """One axis of nested values."""

    axis: str = Field(description="iteration, source, target, layer, head, direction, threshold_step or block")
    names: list[str] = Field(description="What stands at each position")


class SoftValues(AnswerModel):
    """What a soft, gated or threshold router said, nested along `axes`."""

    run: str
    kind: Literal["edges", "gates", "blocks"]
    sample: int | None = Field(description="The sample it is of; null: mean over samples")
    label: str | None = Field(description="The label whose samples were averaged; null: all")
    num_samples: int
    axes: list[SoftAxis]
    values: list[Any] = Field(description="Weights or firing rates, nested lists in the order of `axes`")
    std: list[Any] | None = Field(description="Standard deviation over samples, nested alike; null for one sample")


class Domain(AnswerModel):
    """One label of the data set."""

    label: str
    num_tokens: Count


class Preference(AnswerModel):
    """How much of one label, or of one token id, a module gets."""

    label: str | None = None
    token_id: int | None = Field(None, description="Vocabulary id")
    text: str | None = Field(None, description="Its readable form, where the run has one")
    count: int = Field(description="N_{i,D} or N_{x,i}: tokens of it that chose the module")
    of: int = Field(description="N_D or N_x: tokens of it in all")
    share: Share


class Specialised(ModuleAtStep):
    """One module and what it prefers."""

    count: int = Field(description="Tokens that chose it, of those that were counted")
    prefers: list[Preference] = Field(description="Every listed label, or the token ids with the largest shares")


class Specialisation(AnswerModel):
    """Domain specialisation N_{i,D}/N_D or vocabulary specialisation N_{x,i}/N_x of one step's modules."""

    run: str
    of: Literal["label", "input", "next", "predicted"]
    step: int
    label: str | None = Field(description="Only tokens with this label; null: all")
    baseline: Share = Field(description="K/M, the share under even routing")
    num_modules: int = Field(description="Modules that the step offers")
    least: int = Field(description="Token ids seen less often are left out")
    counted: Counted
    domains: list[Domain] | None = Field(None, description="The labels, largest first; with `of=label`")
    more_labels: int | None = Field(None, description="Labels that are not compared; with `of=label`")
    num_words: int | None = Field(None, description="Token ids seen often enough; with `of=input` and `of=next`")
    modules: list[Specialised] = Field(description="The most specialised first")
    more: int = Field(description="Modules that are not listed")


class SharedModule(ModuleAtStep):
    """One module of a co-activation table."""

    count: int = Field(description="N_i: tokens that chose it")


class Pair(AnswerModel):
    """Two modules that are chosen together."""

    module: int
    other: int
    count: int = Field(description="N_ij: tokens that chose both")
    share: Share = Field(description="N_ij / N_i of `module`")
    back: Share = Field(description="N_ij / N_j of `other`")
    by_load: Share = Field(
        description="What `share` would be by the loads alone: the odds of each module as among all tokens, times one "
        "factor, so that the tokens of `module` choose as many others as they do"
    )
    back_by_load: Share = Field(description="What `back` would be by the loads alone")


class CoActivation(AnswerModel):
    """N_ij / N_i over all pairs of modules that a token chooses at one step."""

    run: str
    step: int
    label: str | None
    baseline: Share = Field(description="(K − 1)/(M − 1): all pairs equally likely")
    num_modules: int
    counted: Counted
    modules: list[SharedModule] = Field(description="Those of the strongest pairs, partners side by side")
    values: list[list[float]] = Field(description="N_ij / N_i, row i, column j, in the order of `modules`")
    pairs: list[Pair] = Field(description="The strongest pairs")
    more: int = Field(description="Modules with tokens that are not in the table")


class StepRepetition(AnswerModel):
    """How often neighbours agree at one step; null where no pair of neighbours has two known decisions."""

    step: int
    first: Share | None = Field(description="P(top1_t = top1_{t+1}); null too where no weights were recorded")
    any: Share | None = Field(description="P(S_t ∩ S_{t+1} ≠ ∅)")
    baseline_first: Share = Field(description="1/M")
    baseline_any: Share | None = Field(description="1 − C(M−K, K)/C(M, K), 1 if 2K > M")
    by_load_first: Share | None = Field(description="`first` of the same tokens in random order: by their loads alone")
    by_load_any: Share | None = Field(description="`any` of the same tokens in random order")


class Repetition(AnswerModel):
    """Consecutive repetition: how often a token and the next one choose the same."""

    run: str
    label: str | None
    top_k: int
    num_pairs: int = Field(description="Pairs of neighbouring tokens")
    first_missing: str | None = Field(None, description="Why there is no first choice")
    counted: Counted
    steps: list[StepRepetition]


class SlicedToken(AnswerModel):
    """What one token chose at one step."""

    token: int
    token_id: int | None = None
    text: str | None = None
    row: int | None = None
    col: int | None = None
    modules: list[int] = Field(description="Slot 0 = largest weight")
    weights: list[float]


class TokenSlice(AnswerModel):
    """Token × module of one sample at one step."""

    run: str
    sample: int
    step: int
    first: int = Field(description="The first token listed")
    num_tokens: int = Field(description="Tokens of the sample")
    num_modules: int
    weights_recorded: bool = Field(True, description="False: the source gave ids only, 1/K stands for each weight")
    tokens: list[SlicedToken]
