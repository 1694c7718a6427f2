"""Request of a ``reroute`` job, and the choice of samples that other kinds have too.

Imported by the API, so without torch.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, model_validator

from tokenpaths.engine.base.files import NAME_PATTERN

MOST_SAMPLES = 4096


class SamplesWanted(BaseModel):
    """A model and the samples that are to go through it again: of a data set, or of a run."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr = Field(description="Name of a model of GET /models, or `hf:` and a folder of `huggingface_dir`")
    data: StrictStr | None = Field(
        None, description="A bundled set such as `bundled:scenes`, or the name of a file or folder in `inbox/`"
    )
    run: StrictStr | None = Field(
        None, description="Instead of data: the samples of this run, as it keeps them", pattern=NAME_PATTERN
    )
    split: StrictStr | None = Field(None, max_length=200, description="Split of data that have several")
    sample: StrictInt | None = Field(None, ge=0, description="Of the run only this sample")
    limit: StrictInt = Field(
        128, ge=1, le=MOST_SAMPLES, description="Maximum number of samples, of data spread over labels, of a run evenly"
    )

    @model_validator(mode="after")
    def _of_data_or_of_a_run(self) -> SamplesWanted:
        if (self.data is None) == (self.run is None):
            raise ValueError("give data or run, one of the two: which samples are to be run again")
        if self.split is not None and self.data is None:
            raise ValueError("split is one of data; give data in place of run")
        if self.sample is not None and self.run is None:
            raise ValueError("sample is one of a run; give run in place of data")
        return self


class RerouteRequest(SamplesWanted):
    """One edit over a data set, or a sweep of many: ``controls`` or ``sweep``."""

    controls: dict[str, Any] | None = Field(
        None, description="What to change, as in POST /traces: edits, or other controls of the model"
    )
    sweep: Literal["modules", "shares"] | None = Field(
        None,
        description="modules: ban each module in turn, at every step and at all; shares: ban the most used share of "
        "each step's modules, and as many of the least used and of random ones",
    )
    shares: tuple[float, ...] = Field(
        (0.1, 0.25, 0.5), min_length=1, max_length=16, description="Shares of the modules of each step, for `shares`"
    )
    seed: StrictInt = Field(0, ge=0, description="Of the random modules of a sweep over shares")
    name: StrictStr | None = Field(
        None, description="Name of the edited run; made from model and data when left out", pattern=NAME_PATTERN
    )

    @model_validator(mode="after")
    def _one_of_each(self) -> RerouteRequest:
        if (self.controls is None) == (self.sweep is None):
            raise ValueError("give controls (one edit) or sweep (many), one of the two")
        if self.controls is not None and not self.controls:
            raise ValueError("controls is empty, so nothing would be different; give an edit")
        if any(not 0 < share < 1 for share in self.shares):
            raise ValueError(f"shares are {list(self.shares)}; each lies between 0 and 1")
        if self.sweep is not None and self.name is not None:
            raise ValueError("a sweep makes no run, so it takes no name")
        return self
