"""Answers about load: over time, by label, of two runs."""

from __future__ import annotations

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, ModuleAtStep, Share


class Balance(AnswerModel):
    """How evenly the choices of one step spread over its modules; null where nothing was counted."""

    choices: int = Field(description="Σ c_i: tokens × top-k")
    load_entropy: float | None = Field(description="H(c/Σc) / ln M: 1 = even")
    max_violation: float | None = Field(description="MaxVio, M · max c_i / Σ c_i − 1: 0 = even")
    effective_top_k: float | None
    dead: int | None = Field(description="Modules that nothing chose")


class LoadBin(Balance):
    """The load of one step over one or several neighbouring times."""

    first: int
    last: int
    counts: list[int] = Field(description="c_i of each of `modules`")


class LoadOverTime(AnswerModel):
    """Load of every module of one step, time by time."""

    run: str
    step: int
    axis: str | None = Field(description="What a time is: step, forward pass, iteration; null: the counts have no time")
    num_times: int
    modules: list[int]
    bins: list[LoadBin] = Field(description="In order of time; neighbouring times are added up beyond `bins`")
    reason: str | None = Field(description="Why there are no bins")


class StepBalance(Balance):
    """The balance of one step in one bin."""

    step: int
    first: int
    last: int


class BalanceOverTime(AnswerModel):
    """Balance of all steps, time by time."""

    run: str
    axis: str | None
    num_times: int
    balance: list[StepBalance]
    reason: str | None


class LabelLoad(Balance):
    """The load of one step by tokens of one label (domain)."""

    label: str
    overlap: float | None = Field(description="1 − ½ Σ |l − l′| with the load of all labels: 1 = the same modules")
    counts: list[int] = Field(description="c_i of each of `modules`")


class LoadByLabel(AnswerModel):
    """Load of every module of one step by each label."""

    run: str
    step: int
    modules: list[int]
    all: list[int] = Field(description="c_i of all tokens, labelled or not")
    labels: list[LabelLoad] = Field(description="The one that differs most first")
    num_labels: int
    reason: str | None


class ComparedStep(AnswerModel):
    """One step in both runs."""

    step: int
    a: Balance
    b: Balance
    overlap: float | None = Field(description="1 − ½ Σ |l − l′|; null where the step has other modules in the two")


class ComparedModule(ModuleAtStep):
    """One module in both runs."""

    a: Share = Field(description="Share of the choices of the step in `a`")
    b: Share
    difference: float = Field(description="b − a")


class LoadComparison(AnswerModel):
    """The load of two runs beside each other, step by step."""

    a: str
    b: str
    steps: list[ComparedStep]
    modules: list[ComparedModule] = Field(description="Those whose share differs most")
    note: str | None = Field(description="What to keep in mind where modules are compared by their numbers")
