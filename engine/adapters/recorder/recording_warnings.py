"""What a recording warns of while the model runs on."""

from __future__ import annotations

from tokenpaths.engine.base.errors import UserError


class RecordingStopped(UserError, UserWarning):
    """Warning that a recording ended before its block did, or recorded nothing.

    Raised as an error only if warnings are errors: ``warnings.simplefilter("error", tokenpaths.RecordingStopped)``.
    """


class RecordingAssumed(UserWarning):
    """Warning that a run may not be what the model did: decisions that are recomputed from logits could not be compared
    with those of the model, what looks like a router is no step of the run, or routers are called outside of a pass."""


def sentence_of(error: BaseException) -> str:
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
