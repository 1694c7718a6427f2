"""Exceptions of the engine that people can act on: one tree below `UserError`.

Errors of one room (`ImageError`, `CheckpointError`, `TrainingDiverged` …) are defined where they are raised and
derive from `UserError` as well.
"""

from __future__ import annotations

from typing import ClassVar


class UserError(ValueError):
    """Invalid input; the message names the value received and what would be valid, in one sentence.

    The API turns it into problem+json, the command line into one line and ``exit_code``.

    Attributes:
        field: the parameter, option or column at fault, where there is one.
    """

    exit_code: ClassVar[int] = 2

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Held(UserError):
    """Another process is at work on the same thing: the same input may succeed once that has ended."""

    exit_code = 75


class RunFileError(UserError):
    """The file cannot be read as a run: truncated, damaged, another format, or a newer schema."""


class NotOpenedNow(RunFileError):
    """The file could not be opened for want of memory, time or space, which says nothing about it; try again."""

    retry_after_s = 1
    """from when on it is tried again"""


class RunNotFound(UserError):
    """No run has this name."""


class NoSuchThing(UserError):
    """The run has no such rank, sample, image or table."""


class NeedsTokens(UserError):
    """The run was made of expert counts, and what was asked needs tokens."""


class QueryTimeout(UserError):
    """A query exceeded the run's time limit and was interrupted."""


class NotEnoughMemory(UserError):
    """A query, or reading a file, needs more memory than there is; the file itself may be intact."""


class WriterFailed(UserError):
    """The writer thread could not store its input (disk full, file removed …)."""
