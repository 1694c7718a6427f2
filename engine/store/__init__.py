"""Runs on disk: write one (``RunWriter``), open one and ask it (``Run``), list them (``list_runs``)."""

from engine.store.catalogue import list_runs
from engine.store.errors import NoSuchThing, QueryTimeout, RunFileError, RunNotFound, WriterFailed
from engine.store.filters import parse_paths, parse_steps, parse_through
from engine.store.run import Run
from engine.store.writer import RunWriter, remove_abandoned

__all__ = [
    "NoSuchThing",
    "QueryTimeout",
    "Run",
    "RunFileError",
    "RunNotFound",
    "RunWriter",
    "WriterFailed",
    "list_runs",
    "parse_paths",
    "parse_steps",
    "parse_through",
    "remove_abandoned",
]
