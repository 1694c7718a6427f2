"""Titles of dreams: each tells what sets it apart, from the request alone, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tokenpaths.engine.dream.dream_title import dream_title
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.registry import read_request

OF = {"model": "tiny", "run": "seen", "sample": 4}
CHOICES = {"of": "choices"}


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"target": CHOICES}, "sample 4 of seen: every S"),
        ({"target": CHOICES | {"until": [3]}}, "sample 4 of seen: S = 3"),
        ({"target": CHOICES | {"until": [1, 3], "form": "single"}}, "sample 4 of seen: steps 0, 2 alone"),
        (
            {"target": CHOICES | {"until": [3], "group": {"patches": [5, 6]}, "context": "both"}},
            "sample 4 of seen: S = 3, a group of 2 (5, 6), without and with its pixels",
        ),
        (
            {"target": CHOICES | {"until": [3], "group": {"patches": list(range(9))}}},
            "sample 4 of seen: S = 3, a group of 9 (0, 1, 2, 3, 4 … and 4 more)",
        ),
        (
            {"target": CHOICES | {"until": [3], "group": {"like": 7}, "scores": "logits"}},
            "sample 4 of seen: S = 3, the path that 7 takes, logits",
        ),
        (
            {"sample": None, "run": None, "data": "bundled:photos", "row": 0, "target": CHOICES, "seed": 2},
            "row 0 of bundled:photos: every S, seed 2",
        ),
        ({"target": {"of": "path", "rank": 5}, "text": {"iterations": 16}}, "the path of rank 5 of seen: 16 rounds"),
        ({"target": {"of": "path", "ribbon": [[0], [3]]}}, "the path 0 → 3 of tiny"),
        (
            {"target": {"of": "module", "module": 0, "steps": [0]}, "image": {"iterations": 256}},
            "module 0 of tiny: at step 0, 256 iterations",
        ),
        ({"target": {"of": "class", "index": 2}}, "class 2 of tiny"),
        ({"target": {"of": "block", "layer": 1, "block": 2}}, "block 1.2 of tiny"),
        ({"target": {"of": "connection", "iteration": 0, "source": 1, "target": 2}}, "connection 0.1.2 of tiny"),
    ],
)
def test_a_title_tells_what_was_asked_with_and_without_the_defaults(changes: dict, title: str) -> None:
    values = {name: value for name, value in (OF | changes).items() if value is not None}
    assert dream_title(values) == f"Dream of {title}"
    assert dream_title(read_request(DreamJob, values).model_dump(mode="json")) == f"Dream of {title}"


def test_requests_of_other_versions_have_titles_too_and_no_torch_is_needed() -> None:
    assert dream_title({}) == "Dream"
    assert dream_title({"target": {"of": "news"}}) == "Dream of news of a model"
    code = "import sys; import tokenpaths.engine.dream.dream_title; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"image": {"iterations": None}},
        {"image": 3},
        {"text": {"length": "long"}},
        {"target": CHOICES | {"until": ["x"]}},
        {"target": CHOICES | {"until": [None], "form": "single"}},
        {"target": CHOICES | {"group": {"patches": 4}}},
        {"target": {"of": "path", "ribbon": 7}},
    ],
)
def test_a_stored_request_of_any_shape_has_a_title(changes: dict) -> None:
    assert dream_title(OF | {"target": CHOICES} | changes).startswith("Dream")
