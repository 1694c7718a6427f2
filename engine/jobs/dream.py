"""The job ``dream``: turns a request into frames, a curve and a result, in resumable slices.

The folder of a job holds ``original.png`` (the model's view), ``state.safetensors`` (everything that changes, with
the measurements so far as metadata) and ``artifacts``. No torch at import: processes without a model validate
requests here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from tokenpaths.engine.dream.dream_request import DreamRequest
from tokenpaths.engine.jobs.dream_check import check_path_is_of, check_request
from tokenpaths.engine.jobs.registry import JobContext, Progress

if TYPE_CHECKING:
    from tokenpaths.engine.jobs.dream_images import ImageWork
    from tokenpaths.engine.jobs.dream_texts import TextWork
    from tokenpaths.engine.tracing.loaded_model import LoadedModel


class DreamJob:
    """A running dream job (``tokenpaths.engine.jobs.registry.LongJob``)."""

    kind: ClassVar[str] = "dream"
    Request = DreamRequest

    def __init__(self, work: ImageWork | TextWork) -> None:
        self.work = work

    @staticmethod
    def check(request: DreamRequest, context: JobContext) -> None:
        check_request(request, context)

    @classmethod
    def start(cls, request: DreamRequest, folder: Path, context: JobContext) -> DreamJob:
        check_request(request, context)
        loaded = cast("LoadedModel", context.load_model(request.model))  # others are refused by the check
        check_path_is_of(request, context, loaded.sha256)
        if loaded.modality == "vision":
            from tokenpaths.engine.jobs.dream_images import ImageWork

            return cls(ImageWork(request, folder, context, loaded))
        from tokenpaths.engine.jobs.dream_texts import TextWork

        return cls(TextWork(request, folder, context, loaded))

    def advance(self) -> Progress:
        return self.work.advance()

    def close(self) -> None:
        self.work.close()
