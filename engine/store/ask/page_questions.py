"""The questions that the page asks as soon as a large run is opened: what ``write.seal_answers`` seals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.sample_matching import samples_fingerprint
from tokenpaths.engine.store.ask.topics.distributions import distribution, existing_measures
from tokenpaths.engine.store.ask.topics.experts import repetition, specialisation
from tokenpaths.engine.store.ask.topics.knowledge import knowledge
from tokenpaths.engine.store.ask.topics.label_specificity import specific
from tokenpaths.engine.store.ask.topics.paths import law
from tokenpaths.engine.store.ask.topics.similar import map_samples

MOST_LABELS = 16
"""labels whose distributions are kept, those with the most tokens"""
MOST_STEPS = 32
BINS = 40
PageQuestion = tuple[Callable[..., dict[str, Any]], dict[str, Any]]
"""a function decorated by ``sealed``, and its arguments but the run"""


def page_questions(run: RunFile) -> Iterator[PageQuestion]:
    """Questions with the arguments that the page uses."""
    yield knowledge, {}
    for of in ("path", "module"):
        yield specific, {"of": of, "limit": 20}
    yield law, {"draws": 0}
    for limit, thumbnails in ((1000, True), (2000, False)):
        yield map_samples, {"limit": limit, "thumbnails": thumbnails}
    yield repetition, {}
    yield samples_fingerprint, {}
    for step in range(min(run.layout.num_steps, MOST_STEPS)):
        yield specialisation, {"of": "input", "step": step, "limit": 16}
        yield specialisation, {"of": "input", "step": step, "limit": 256, "each": 24}
    labels = sorted(run.labels, key=lambda row: (-row[3], row[1]))[:MOST_LABELS]
    for measure in existing_measures(run):
        for per in ("sample", "token"):
            # Compute and reuse are counted by path, loss and gate entropy by level: no answer holds all tokens.
            for label in (None, *(row[1] for row in labels)):
                yield distribution, {"measure": measure, "per": per, "bins": BINS, "label": label}
