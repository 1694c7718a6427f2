"""Reads the original named by a request without torch, so that checks can inspect it."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Dataset, Sample, open_dataset
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.dream.dream_request import DreamRequest

if TYPE_CHECKING:
    from tokenpaths.engine.jobs.registry import JobContext


@lru_cache(maxsize=8)
def bundled(data: str, modality: str) -> Dataset:
    """A bundled data set; UserError (``data``) if there is none of that name, or it has another modality."""
    return open_dataset(data, modality)  # type: ignore[arg-type]


def row_of(request: DreamRequest, modality: str) -> Sample:
    """The requested row; UserError (``row``) if there are fewer."""
    dataset = bundled(str(request.data), modality)
    rows = dataset.num_samples or 0
    if request.row is None or request.row >= rows:
        raise UserError(
            f"Row is {request.row}, but the rows of {request.data} are numbered 0 to {rows - 1}", field="row"
        )
    return next(islice(iter(dataset), request.row, None))


def find_text(request: DreamRequest, context: JobContext) -> str:
    """The full text that the request names."""
    if request.sample is not None:
        with context.open_run(str(request.run)) as run:
            text = run.sample(request.sample)["text"]
        if not text:
            raise UserError(f"The run {request.run} keeps no text of sample {request.sample}", field="sample")
        return str(text)
    if request.inbox is not None:
        try:
            return context.inbox_file(request.inbox, field="inbox").read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            raise UserError(
                f"{request.inbox!r} is no UTF-8 text, and {request.model} reads texts", field="inbox"
            ) from None
    return row_of(request, "text").text or ""


def stretch_of(request: DreamRequest, num_tokens: int) -> range:
    """The tokens of the original that a text dream repeats: up to ``text.length`` tokens from ``first``.

    Raises:
        UserError: the original is empty, or has no token ``first``.
    """
    first = getattr(request.target, "first", 0)
    if not num_tokens:
        raise UserError("The original is empty; a text dream needs at least one token of it", field="sample")
    if first >= num_tokens:
        raise UserError(
            f"First is {first}, but the tokens of this text are numbered 0 to {num_tokens - 1}", field="target.first"
        )
    return range(first, min(first + request.text.length, num_tokens))


@lru_cache(maxsize=4)
def _tokenizer(path, _changed: int) -> TextTokenizer:
    return TextTokenizer.load(path)


def num_tokens_of(request: DreamRequest, context: JobContext) -> int:
    """Number of tokens of the original for the dreaming model."""
    file = context.model_dir(request.model) / "tokenizer.json"
    tokenizer = _tokenizer(file, file.stat().st_mtime_ns if file.is_file() else 0)
    return len(tokenizer.encode(find_text(request, context)).ids)
