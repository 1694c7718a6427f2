"""All questions to a run: those that the topics declare, and those that are added at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tokenpaths.engine.store.ask import export
from tokenpaths.engine.store.ask.question import Question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.many_runs import at_equal_tokens, most_tokens
from tokenpaths.engine.store.ask.several_runs.sample_matching import samples_fingerprint
from tokenpaths.engine.store.ask.topics import (
    alikeness,
    distributions,
    experts,
    flow,
    knowledge,
    label_specificity,
    load_over_time,
    overview,
    paths,
    samples,
    search,
    similar,
    soft_decisions,
    usage,
)
from tokenpaths.engine.store.ask.topics.things import in_full, naming
from tokenpaths.engine.store.ask.topics.work import kind_means, outcomes, skip_and_reuse

TOPICS = (
    overview,
    flow,
    paths,
    knowledge,
    alikeness,
    label_specificity,
    naming,
    similar,
    experts,
    distributions,
    usage,
    load_over_time,
    outcomes,
    kind_means,
    skip_and_reuse,
    samples,
    search,
    soft_decisions,
    in_full,
    export,
)
"""modules whose decorated functions are questions; sealing computes answers in this order"""
QUESTIONS: list[Question] = [
    function.declaration
    for topic in TOPICS
    for function in vars(topic).values()
    if hasattr(function, "declaration") and function.__module__ == topic.__name__
]


def page_questions(run: RunFile) -> Iterator[tuple[Callable[..., dict[str, Any]], dict[str, Any]]]:
    """Questions, with arguments, whose answers are computed at sealing: those that the page asks when it opens a large
    run."""
    # First, as it takes a hundred megabytes for a moment, and what the others read stays in memory.
    yield at_equal_tokens, {"num_tokens": most_tokens([run])}
    for question in QUESTIONS:
        if question.sealed is not None:
            for arguments in question.sealed(run):
                yield question.function, arguments
    yield samples_fingerprint, {}
