"""Lookup of expensive answers that were computed when the run was sealed (table ``answer``).

A row is one question with all of its arguments and the answer as JSON. The same function computes the answer at sealing
(``write.large.seal_answers``) and for arguments that are not in the table, so there is no second implementation.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.file.filters import Query

ANSWERS_VERSION = 9
"""incremented when the form or meaning of an answer changes; answers of older versions are computed again"""
MOST_SEALED_LABELS = 16
"""labels whose answers are computed at sealing, where the page asks with a label"""
Answer = dict[str, Any]


def sealed_labels(run: RunFile) -> list[str | None]:
    """None, for the whole run, and the labels with the most tokens."""
    most = sorted(run.labels, key=lambda row: (-row[3], row[1] or ""))[:MOST_SEALED_LABELS]
    return [None, *(row[1] for row in most if row[1] is not None)]


def answer_key(
    question: str, function: Callable[..., Answer], run: RunFile, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[str, str]:
    """``question`` and ``arguments`` of a row: the name, and all arguments except the run, including defaults."""
    bound = inspect.signature(function).bind(run, *args, **kwargs)
    bound.apply_defaults()
    arguments = dict(list(bound.arguments.items())[1:])
    return f"{question} {ANSWERS_VERSION}", json.dumps(arguments, sort_keys=True, default=str)


def sealed(question: str) -> Callable[[Callable[..., Answer]], Callable[..., Answer]]:
    """Decorator of a question function whose answer may be stored in the file under the name ``question``."""

    def decorate(function: Callable[..., Answer]) -> Callable[..., Answer]:
        @functools.wraps(function)
        def ask(run: RunFile, *args: Any, **kwargs: Any) -> Answer:
            key = answer_key(question, function, run, args, kwargs)
            rows = run.rows(Query("SELECT answer FROM answer WHERE question = ? AND arguments = ?", key))
            if rows:
                return {"run": run.run_id, **json.loads(rows[0][0])}
            return function(run, *args, **kwargs)

        ask.question = question  # type: ignore[attr-defined]
        return ask

    return decorate
