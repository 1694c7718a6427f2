"""What is said of an upload: from the answer of its reference run, without a page."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.backend.conftest import make_models
from tests.support.runs import open_run
from tokenpaths.engine.adapters.find_traceable import find_traceable
from tokenpaths.engine.data.sources.sample import Sample
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.frontend.charts.patches import patch_url
from tokenpaths.frontend.views.home import upload_answer


@pytest.mark.parametrize(
    ("known", "total", "words"),
    [
        (41, 64, "41 of your 64 patches take paths seen before"),
        (1, 64, "1 of your 64 patches takes paths seen before"),
        (64, 64, "All of your 64 patches take paths seen before"),
        (0, 64, "None of your 64 patches take paths seen before"),
        (0, 1, "Your patch takes a path that was not seen before"),
        (1, 1, "Your patch takes a path seen before"),
    ],
)
def test_the_headline_counts_known_paths(known: int, total: int, words: str) -> None:
    assert upload_answer.headline({"num_known": known, "num_tokens": total}, "patch", "patches") == words


def test_before_is_said_to_be_the_reference_run() -> None:
    answer = {"num_once": 8, "reference": {"run": "photos", "dataset": "photos", "num_tokens": 3840}}
    words = upload_answer.seen_words(answer)
    assert words == (
        "Before: among the 3,840 tokens of run photos (photos). 8 of them are on paths of a single token there."
    )


def test_the_list_of_classes_is_said_to_be_all_that_the_model_knows() -> None:
    assert upload_answer.classes_words(["cat", "dog"]).startswith("The model knows only these 2 classes")
    many = upload_answer.classes_words([f"c{i}" for i in range(100)])
    assert many.endswith("c59 and 40 more.")


def test_unusual_tokens_are_named() -> None:
    tokens = [{"token": i, "row": i, "col": 0, "ribbon": [[1], [2]]} for i in range(8)]
    assert upload_answer.unusual_words(tokens) == "r0 c0, r1 c0, r2 c0, r3 c0, r4 c0, r5 c0 and 2 more: modules 1 → 2"


def test_a_patch_is_cut_where_it_is() -> None:
    run = open_run("vision")
    picture, grid = run.picture(0), run.sample(0)["grid"]
    whole = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    side = whole.shape[0] // grid["rows"]
    url = patch_url(picture, grid, 2, 5)
    cut = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB"))
    assert (cut == whole[2 * side : 3 * side, 5 * side : 6 * side]).all()


def test_a_run_of_one_image_keeps_the_five_likeliest_classes(tmp_path: Path) -> None:
    model = find_traceable("tiny-vision", [make_models(tmp_path / "models")]).load()
    pixels = np.random.default_rng(0).integers(0, 255, (3, 40, 40, 3), dtype=np.uint8)
    pictures = [Sample(image=Image.fromarray(one), text=None, label=None, source="a") for one in pixels]
    one, many = (
        trace_samples(model, part, tmp_path / "runs", run_id=name, dataset="upload", split="try", twin=False)
        for name, part in (("one", pictures[:1]), ("many", pictures))
    )
    with Run.open(one) as run:
        answer = run.info()["findings"]["answer"]
        sample = run.sample(0)
    assert answer["classes"] == ["cat", "dog", "bird"]
    probabilities = [row["probability"] for row in answer["likeliest"]]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1)
    best = answer["likeliest"][0]
    assert (best["name"], best["probability"]) == (sample["prediction"], pytest.approx(sample["confidence"]))
    with Run.open(many) as run:
        assert "answer" not in run.info()["findings"]
