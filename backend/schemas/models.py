"""Answers about checkpoints that can be traced."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel


class ModelRow(AnswerModel):
    """One checkpoint that can be traced."""

    model: str = Field(description="Name; `hf:` and a folder for a Hugging Face checkpoint")
    family: str | None = None
    modality: str | None = Field(None, description="`vision` takes an image, `text` a text")
    num_params: int | None = None
    num_steps: int | None = None
    num_modules: int | None = None
    top_k: int | None = None
    validation: dict[str, Any] = Field(default_factory=dict, description="Numbers on the validation set")
    shipped: bool = Field(False, description="Whether it came with the source")
    job_only: bool = Field(False, description="Whether it is too large for POST /traces: jobs run it")
    problem: str | None = Field(None, description="Why it cannot be used")


class ModelList(AnswerModel):
    """The models that the worker finds."""

    models: list[ModelRow]


class ModelDetails(ModelRow):
    """One model with its configuration and card."""

    config: dict[str, Any] | None = None
    card: str | None = Field(None, description="How it was trained and how well it does, Markdown")
    controls: dict[str, Any] | None = Field(
        None, description="JSON Schema of what `controls` of POST /traces may change; no properties: nothing"
    )
