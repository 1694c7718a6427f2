"""Which job a click leads to and whose results are shown: jobs that do the same, and those that are not over."""

from __future__ import annotations

from typing import Any

import pytest

from tokenpaths.engine.jobs.registry import find_kind, read_request
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.detour.sweep import sample_counts
from tokenpaths.frontend.views.dream import request as dream_request
from tokenpaths.frontend.views.jobs.alive import asks_the_same, at_hand, with_results

SEEN = {"run": "seen", "model": "m", "family": "dna", "modality": "vision", "num_steps": 3, "config": {}}
READ = SEEN | {"modality": "text"}
EDIT = {"edits": [{"edit": "ban", "modules": [3], "step": 1}]}


def dreamt(run: dict[str, Any], *given: str) -> dict[str, Any]:
    """What the Dream view asks for."""
    options = dream_request.dream_options(Selection(dream=given), run)
    return dream_request.request_of(run, options, 1, 6)


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("gates", {"model": "m", "run": "r", "limit": 64}),
    ("gates", {"model": "m", "run": "r", "limit": 32}),
    ("gates", {"model": "m", "run": "r", "sample": 0, "position": 0}),
    ("gates", {"model": "m", "run": "r", "sample": 0, "position": 0, "word": " of"}),
    ("gates", {"model": "m", "run": "r", "sample": 0, "position": 0, "other": 0}),
    ("reroute", {"model": "m", "run": "r", "sweep": "modules", "limit": 64}),
    ("reroute", {"model": "m", "run": "r", "sweep": "shares", "limit": 64}),
    ("reroute", {"model": "m", "run": "r", "controls": EDIT, "sample": 0}),
    ("reroute", {"model": "m", "run": "r", "controls": EDIT, "limit": 32}),
    ("dream", dreamt(SEEN)),
    ("dream", dreamt(SEEN, "until:2")),
    ("dream", dreamt(SEEN, "precision:bfloat16")),
    ("dream", dreamt(SEEN, "group:path")),
    ("dream", dreamt(SEEN, "group:path", "context:both")),
    ("dream", dreamt(SEEN, "group:picked", "picked:0")),
    ("dream", dreamt(SEEN, "of:class")),
    ("dream", dreamt(SEEN, "of:module", "step:0")),
    ("dream", dreamt(SEEN, "of:module")),
    ("dream", dreamt(READ, "of:choices")),
    ("dream", dreamt(READ, "of:choices", "first:3")),
    ("trace", {"model": "m", "data": "bundled:texts", "limit": 5}),
    ("trace", {"model": "m", "data": "mine", "limit": 5, "split": "test"}),
    ("import", {"file": "a.npy"}),
    ("import", {"file": "a.npy", "skip_bad": True}),
    ("map", {"run": "r", "perplexity": 30.0, "limit": 100}),
    ("attention", {"model": "m", "run": "r", "sample": 0}),
]


def test_a_job_is_known_by_its_request_whatever_the_api_wrote_into_it() -> None:
    jobs = [(kind, read_request(find_kind(kind), request).model_dump(mode="json")) for kind, request in ASKED]
    for place, (kind, wanted) in enumerate(ASKED):
        same = [other for other, (of, asked) in enumerate(jobs) if of == kind and asks_the_same(asked, wanted)]
        assert same == [place], (wanted, [jobs[other] for other in same])


def job(name: str, state: str, *artifacts: str) -> dict[str, Any]:
    return {"job": name, "state": state, "artifacts": list(artifacts)}


def test_what_runs_is_shown_and_the_results_are_its_own_or_the_newest_whole_ones() -> None:
    whole, broken = job("whole", "succeeded", "table"), job("broken", "cancelled", "table")
    begun, fresh = job("begun", "running", "table"), job("fresh", "waiting")
    assert at_hand([], None, "table") == (None, None)
    assert at_hand([broken, whole], None, "table") == (None, whole)
    assert at_hand([broken], None, "table") == (None, broken)
    assert at_hand([begun, whole], None, "table") == (begun, begun)
    assert at_hand([fresh, whole], None, "table") == (fresh, whole)
    assert at_hand([begun, whole], whole, "table") == (whole, whole)
    assert with_results([begun, fresh, whole], "table") is whole


@pytest.mark.parametrize(("there", "offered"), [(6, [6]), (1, [1]), (64, [32, 64]), (300, [32, 64, 128, 256])])
def test_no_more_samples_are_offered_than_there_are(there: int, offered: list[int]) -> None:
    assert sample_counts(there) == offered
