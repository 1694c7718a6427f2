"""What a model is traced over: the fields of a request that name data and how they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

if TYPE_CHECKING:
    from tokenpaths.engine.base.records import Modality
    from tokenpaths.engine.data.datasets import Dataset
    from tokenpaths.engine.jobs.registry import JobContext


class TracedData(BaseModel):
    """The model, the data and how they are read: equal for a run and its untrained twin."""

    model_config = ConfigDict(extra="forbid")

    model: StrictStr = Field(description="Name of a model of GET /models, or `hf:` and a folder of `huggingface_dir`")
    data: StrictStr = Field(
        description="A bundled set such as `bundled:scenes`, or the name of a file or folder in `inbox/` of the data "
        "folder: images, a saved Hugging Face data set, Parquet, Arrow, WebDataset, CSV, JSONL or texts"
    )
    limit: StrictInt | None = Field(None, ge=1, description="Maximum number of samples, spread over labels")
    text_column: StrictStr | None = Field(None, max_length=200, description="Column with the text")
    image_column: StrictStr | None = Field(None, max_length=200, description="Column with the encoded image")
    label_column: StrictStr | None = Field(None, max_length=200, description="Column with the label or domain")
    split: StrictStr | None = Field(None, max_length=200, description="Split of a data set that has several")
    passage_chars: StrictInt | None = Field(None, ge=1, description="Cut longer texts into so many characters each")
    # A cancel waits for one batch.
    batch_size: StrictInt = Field(16, ge=1, le=64, description="Images, or stretches of 64 tokens, at once")
    skip_bad: StrictBool = Field(False, description="Leave out samples that cannot be read")


def open_data(request: TracedData, context: JobContext, modality: Modality) -> Dataset:
    """The samples that ``request`` names, of the model's ``modality``.

    Raises:
        UserError: they are not there, or cannot be read so.
    """
    from tokenpaths.engine.data.datasets import open_dataset

    return open_dataset(
        context.data_source(request.data),
        modality,
        text_column=request.text_column,
        image_column=request.image_column,
        label_column=request.label_column,
        limit=request.limit,
        skip_bad=request.skip_bad,
        passage_chars=request.passage_chars,
        split=request.split,
    )
