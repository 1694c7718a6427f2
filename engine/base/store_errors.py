"""What can go wrong with a run file; each message is a sentence for people."""

from __future__ import annotations

from tokenpaths.engine.base.errors import UserError


class RunFileError(UserError):
    """The file cannot be read as a run: cut off, damaged, something else, or too new."""


class RunNotFound(UserError):
    """No run has this name."""


class NoSuchThing(UserError):
    """The run has no such rank, sample, image or table."""


class QueryTimeout(UserError):
    """The question took longer than the run's time limit and was interrupted."""


class NotEnoughMemory(UserError):
    """A question, or the reading of a file, needs more memory than there is; the file may be whole."""


class WriterFailed(UserError):
    """The writer thread could not store what it was given (disk full, file taken away …)."""
