"""Answers about where tokens go: flow between steps, usage of modules."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Count, ModuleAtStep, Share


class FlowNode(ModuleAtStep):
    """One module at one step."""

    count: float = Field(
        description="Tokens that chose it, in any of their K slots; of module −1 choices of its modules"
    )
    share: float = Field(description="Share of the tokens in [0, 1]; of module −1 choices per token, up to K")
    num_modules: int | None = Field(
        None, description="Of module −1, “other (n experts)”: how many small modules of the step are merged in it"
    )
    low: float | None = Field(
        None, description="Of a sampled answer: lower end of the 95 % interval of `share`; module −1 has none"
    )
    high: float | None = Field(None, description="Upper end of it")


class FlowLink(AnswerModel):
    """Tokens from a module at ``step`` to a module at ``step`` + 1."""

    step: int
    source: int
    target: int
    count: float = Field(description="Tokens; each of the k·k′ pairs that a token uses counts 1/(k·k′)")
    weight: float | None = Field(description="The same weighted by the product of the weights, normalised per token")
    share: Share
    low: float | None = Field(None, description="Of a sampled answer: lower end of the 95 % interval of `share`")
    high: float | None = Field(None, description="Upper end of it")


class OtherFlow(AnswerModel):
    """Links of a step that were too small or too many to list."""

    step: int
    num_links: int
    count: float


class SampledOn(AnswerModel):
    """How many tokens passed the filters: of the hash sample of a run, or of all of them."""

    num_tokens: Count
    of_tokens: int = Field(description="Tokens that were looked at: of the sample, or of the run")
    exact: bool = Field(description="Whether these are all tokens of the run; rows have no interval then")


class Flow(AnswerModel):
    """Where tokens go: nodes and links between consecutive steps, largest first."""

    run: str
    filters: dict[str, Any] = Field(description="The filters that were applied")
    num_tokens: Count = Field(description="Tokens that passed the filters; shares are of these")
    steps: list[int]
    own_modules: bool = Field(description="Modules belong to their step: equal ids at two steps are different modules")
    nodes: list[FlowNode]
    links: list[FlowLink]
    other: list[OtherFlow]
    counted: SampledOn | None = Field(None, description="Of a sampled answer; counts are scaled to the run")


class StepUsage(AnswerModel):
    """How one step uses its modules; where nothing was counted its load is null and `dead` is empty."""

    step: int
    effective_top_k: float | None = Field(description="(Σc²)^α / Σc^{2α}, α = 1.5: modules that carry the load")
    untrained_effective_top_k: float | None = Field(
        None, description="Of the untrained twin over all tokens; null without a twin, and with a label"
    )
    load_entropy: float | None = Field(description="Entropy of the load / ln(modules); 1 = even")
    max_violation: float | None = Field(description="Largest utilisation − 1")
    importance_cv2: float | None = Field(
        description="(std / mean)² of the modules' summed weights Σ_t w_ti; 0 = even; null where nothing was weighted"
    )
    gate_entropy: float | None = Field(description="Mean entropy of the routing probabilities, nats")
    unused: float | None = Field(
        None, description="Share of the step's slots that hold no module (dropped tokens, capacity, adaptive k)"
    )
    dead: list[int] = Field(description="Modules that no token chose")


class ModuleUsage(ModuleAtStep):
    """How much one module is used at one step."""

    count: Count
    share: Share
    utilisation: float | None = Field(description="count × modules / all choices of the step; 1 = fair, 0 = dead")
    weight: float | None = Field(description="Sum of its weights")


class Usage(AnswerModel):
    """Load of every module at every step."""

    run: str
    steps: list[StepUsage]
    usage: list[ModuleUsage]
