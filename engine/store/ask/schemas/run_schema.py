"""Answers about a run as a whole: card, details, tables for export."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Compute, Label, Reuse, Share


class SeriesPlace(AnswerModel):
    """Where a run stands in a training whose checkpoints were recorded under one name."""

    name: str
    iteration: int


class Card(AnswerModel):
    """What a list of runs shows of one run."""

    run: str = Field(description="Name of the run, its address under /runs")
    kind: Literal["tokens", "load"] | None = Field(
        None,
        description="`load`: it was made of counts of tokens by expert and knows no token; of what needs tokens the "
        "answer is the problem `needs-tokens`",
    )
    name: str | None = Field(
        None,
        description="Name that a user gave it, kept beside the run's file: in `GET /runs` alone, null in every other "
        "answer; `GET /runs/{run}/names` has it too",
    )
    model: str | None = Field(None, description="Name of the model that was traced")
    family: str | None = Field(None, description="Family of the model, for example `dna`")
    modality: str | None = Field(None, description="`vision` or `text`")
    dataset: str | None = None
    split: str | None = None
    num_samples: int | None = Field(None, description="Images or texts")
    num_tokens: int | None = Field(None, description="Tokens or patches of all samples")
    num_steps: int | None = Field(None, description="Routing decisions in the life of a token")
    num_modules: int | None = Field(None, description="Modules that a router chooses from")
    top_k: int | None = Field(None, description="Modules chosen at each step; null where counts do not say")
    num_paths: int | None = Field(None, description="Different paths taken by at least one token")
    accuracy: float | None = Field(None, description="Share of samples whose prediction is their label")
    loss: float | None = Field(None, description="Mean cross-entropy, nats")
    created_at: str | None = Field(None, description="When the run was sealed, UTC, ISO 8601")
    checkpoint_sha256: str | None = Field(None, description="Of the weights; empty where the source gave none")
    edited: bool | None = Field(None, description="Whether routes were changed by controls while it was traced")
    series: SeriesPlace | None = Field(None, description="Of a checkpoint that was recorded as one of a series")
    samples_are: str | None = Field(
        None,
        description="Where several samples were cut from one picture: how many from how many, in words; intervals "
        "take samples as independent, and these are not",
    )
    status: Literal["sealed", "being_read", "unreadable"] = Field(
        description="`being_read`: it came from elsewhere and is being taken in, or is opened for its first card, so "
        "that the rest of the card is not known yet; `unreadable`: it cannot be read, see `problem`"
    )
    progress: float | None = Field(None, description="Finished share of an intake in progress, while `being_read`")
    problem: str | None = Field(None, description="What is wrong with the file, and what to do")


class Module(AnswerModel):
    """One thing that a router can pick."""

    step: int | None = Field(description="The only step that can pick it; null = any step")
    module: int = Field(description="Id of the module, as in ribbons")
    name: str
    kind: str = Field(description="transformer, attention, mlp, identity, expert, block …")
    num_params: int
    flops_per_token: int = Field(description="Floating-point operations for one token, attention over others apart")


class TopShare(AnswerModel):
    """How much the most frequent paths hold."""

    n: int
    share: Share


class RunSummary(AnswerModel):
    """The run in a few numbers."""

    num_paths: int
    effective_paths: float = Field(description="exp of the entropy of the path frequencies")
    top_shares: list[TopShare] = Field(description="Share of tokens on the n most frequent paths")
    mean_compute: Compute
    mean_reuse: Reuse


class Association(AnswerModel):
    """Do paths know an attribute? Normalised mutual information beside its permutation null."""

    attribute: str = Field(description="`label`, `region` or `token_id`")
    nmi: float | None = Field(description="NMI(path; attribute)")
    null_mean: float | None = Field(description="Mean NMI over shuffles of the attribute")
    null_std: float | None
    p_value: float | None = Field(description="Share of shuffles with at least this NMI, (k+1)/(n+1)")
    shuffles: int
    num_tokens: int = Field(description="Size of the hash sample of tokens it was computed on")
    shuffled: Literal["samples", "sequences", "maps", "tokens"] = Field(
        description="What was shuffled: whole samples, sequences of samples as in `/paths/knowledge`, or, in files "
        "before schema version 4, single tokens; then the p-value is too small: take that of `/paths/knowledge`"
    )
    untrained_nmi: float | None = Field(description="The same of the untrained twin's paths; null without a twin")
    untrained_null_mean: float | None
    untrained_null_std: float | None
    untrained_p_value: float | None


class RunDetails(Card):
    """All about one run."""

    config: dict[str, Any] = Field(description="Configuration of the model")
    weight_semantics: dict[str, Any] = Field(description="What the weights of a ribbon mean in this model")
    checkpoint_sha256: str
    engine_version: str
    schema_version: int
    path_layout: Literal["dictionary", "unique"] = Field(
        description="`unique`: most tokens have a path of their own, and paths of equal counts are ranked in the order "
        "of their first tokens; `dictionary`: by the ids of their ribbons"
    )
    labels: list[Label]
    look_alikes: list[list[Label]] = Field(
        description="Groups of labels that look alike (case, blanks, invisible characters), the largest of each first; "
        "`labels=merged` counts each group as its first"
    )
    modules: list[Module]
    summary: RunSummary | None = Field(description="null of a run of loads alone")
    associations: list[Association]
    measures: list[str] = Field(description="Measures that /distributions knows for this run")
    soft: list[str] = Field(description="Which of edges, gates and blocks the run holds; empty: its decisions are hard")
    findings: dict[str, Any] = Field(description="What only this family has, worked out when the run was sealed")


class TableRow(AnswerModel):
    """One table that holds rows."""

    table: str = Field(description="The name in `/export/{table}.{format}`")
    num_rows: int
    what: str = Field(description="What it holds, in a few words")


class TableList(AnswerModel):
    """The tables of a run that can be exported."""

    run: str
    tables: list[TableRow]
