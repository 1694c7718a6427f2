"""The family views of DiPaCo and RayTracing over a real API and worker, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import SECRET, api_for, serving
from tests.support.pages import showing
from tests.support.runs.traced import trace_dipaco, trace_raytracing
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.dipaco import chunk_of_position
from tokenpaths.engine.models.raytracing import RayTracing
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.frontend.api.client import Client
from tokenpaths.frontend.charts.drawing.ink import ink_kind
from tokenpaths.frontend.charts.families import dipaco_rerouting, raytracing_network
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.family import dipaco, raytracing


def make_lights_and_shards(data_dir: Path) -> None:
    """``lights`` and ``shards``; ``at-once``, whose outputs fire at the first threshold; ``once``, routed once a
    document; ``lone``, one sample that no checkpoint number stands beside."""
    trace_raytracing(data_dir, "lights")
    trace_raytracing(data_dir, "at-once", samples=6, theta_out=0.5)
    trace_raytracing(data_dir, "lone", samples=1)
    trace_dipaco(data_dir, "shards")
    trace_dipaco(data_dir, "once", reroute_every=None, rerouter=False, router="kmeans")


@contextmanager
def lights_api(data_dir: Path) -> Iterator[str]:
    """The address of an API over those runs, with a worker that holds their models."""
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    make_lights_and_shards(data_dir)
    common = {"worker_secret": SECRET, "models_dirs": (data_dir / "models",), "warm_models": False}
    common |= {"trace_seconds": 250, "decode_seconds": 60}  # a busy machine is no failure
    with serving(create_worker(load_settings(data_dir=data_dir, **common))) as worker_url:
        options = {key: value for key, value in common.items() if key != "data_dir"}
        with api_for(data_dir, worker_url=worker_url, **options) as served:
            yield str(served.client.base_url).rstrip("/")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lights")


@pytest.fixture(scope="module")
def api(data_dir: Path) -> Iterator[str]:
    with lights_api(data_dir) as url:
        yield url


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    """Draw the family view at an address and give what stands on it."""
    with showing(api, monkeypatch, timeout=240, view="family") as draw:
        yield draw


def test_what_has_no_router_is_not_said_to_have_one(show):
    page = show(view="dream", run="lights")
    assert page.header[0].value == "What image would light this block most?"
    assert "An image optimised so that this block fires as strongly as it can." in words(page)
    assert "routers" not in words(page)
    told = words(show(view="change", run="lights"))
    assert "the Lights view shows what is said at each threshold" in told
    assert "theta" not in told


def questions(page: AppTest) -> str:
    """Headings of a page without an error."""
    assert not page.error, [error.value for error in page.error]
    return " ".join(heading.value for kind in ("header", "subheader") for heading in page.get(kind))


def words(page: AppTest) -> str:
    """Sentences of a page without an error."""
    assert not page.error, [error.value for error in page.error]
    found = " ".join(one.value for kind in ("markdown", "caption", "info") for one in page.get(kind))
    return found.replace("\\", "")


# RayTracing


def test_every_question_about_lights_is_on_the_page(show):
    page = show(run="lights")
    for question in (
        "light up as the threshold falls",
        "step by step",
        "cheapest",
        "dearest",
        "Which classes light",
        "difficult samples",
        "each class light",
        "for how many parameters",
        "the output fire",
        "prediction sharpen",
    ):
        assert question in questions(page)
    assert "96.7" not in words(page)  # the numbers of the checkpoint are drawn; the sentence gives the difference
    assert "percentage points" in words(page)


def test_an_uploaded_image_shows_the_lights_it_lit(api, show):
    client = Client(api)
    picture = ("a.png", client.image("lights", 0))
    made = client.trace(client.ask("lights", "")["model"], image=picture)
    page = show(view="home", run=made["run"])
    assert "lit up before the answer was strong enough" in questions(page)
    assert "What the model calls it" in questions(page)
    client.delete(made["run"])


@pytest.mark.parametrize(
    "query",
    [
        {"run": "lights", "light": 2, "sample": 5},
        {"run": "lights", "light": 999, "sample": 1},
        {"run": "lights", "label": "three"},
        {"run": "at-once"},
        {"run": "lone"},
    ],
)
def test_states_of_the_lights_by_address(show, query):
    page = show(**query)
    told = words(page)
    if query.get("light") == 999:
        assert "had stopped by then" in told
    if query["run"] == "at-once":
        assert "first threshold" in told
        assert "In all 6 samples" in told
    if query["run"] == "lone":
        assert "One sample alone" in told


def test_of_a_large_run_samples_are_drawn_evenly_and_that_is_said(show, monkeypatch):
    tables = {}
    monkeypatch.setattr(raytracing, "READ_AT_MOST", 20)
    monkeypatch.setattr(raytracing.widgets, "numbers_behind", lambda rows, what, **_: tables.update({what: rows}))
    page = show(run="lights")
    assert words(page).count("Counted on 20 samples drawn at random from 40.") == 1  # the finding is of the whole run
    assert "20 of them are shown" in words(page)
    run = raytracing.widgets.client().ask("lights", "")
    samples, total = raytracing.drawn_samples(run, Selection())
    by_cost = raytracing.widgets.client().ask("lights", "samples", most=total, order="compute")["samples"]
    assert (len(samples), total) == (20, 40)
    assert {row["sample"] for row in samples} != {row["sample"] for row in by_cost[:20]}
    assert max(row["compute"] for row in samples) > by_cost[20]["compute"]  # not only the cheap half
    ends = [row["sample"] for row in tables["cheapest and dearest samples (compute = active share)"]]
    assert ends[:12] == [row["sample"] for row in by_cost[:12]]
    assert min(row["compute"] for row in by_cost if row["sample"] in ends[12:]) == by_cost[-12]["compute"]
    assert sum(row["num"] for row in tables["active share by label"]) == 20


def test_the_words_follow_the_threshold(show):
    early, late = (words(show(run="lights", sample=0, **at)) for at in ({"light": 0}, {}))
    assert "still silent" in early
    assert "step 0 of" in early
    assert "Now the output fires" in late


def test_the_prediction_is_asked_at_every_threshold(show):
    page = show(run="lights", sample=0)
    before = {card["run"] for card in _cards()}
    page.button(key="sharpen").click().run()
    assert not page.error
    assert "on it says" in words(page)
    assert {card["run"] for card in _cards()} == before  # the traces were deleted again


def _cards() -> list[dict]:
    from tokenpaths.frontend.page import widgets

    return widgets.client().runs()


def test_used_parameters_are_the_engines_own(api, data_dir):
    with Run.open(data_dir / "runs" / "lights.duckdb") as run:
        info, rates = run.info(), run.soft_arrays("blocks")
    network = raytracing_network.network_of(info)
    model = RayTracing(RayTracingConfig(**info["config"]))
    assert network.total_params == model.trainable_params
    used = model.used_params(torch.from_numpy(np.array(rates, np.float32)))
    for sample in range(5):
        curve = raytracing_network.share_rows(network, rates[sample].tolist())
        assert round(curve[-1]["used"] * network.total_params) == int(used[sample])


def test_the_twin_sentence_compares_both():
    own = {"model": "RayTracing", "used": 250, "share": 0.25, "accuracy": 0.9, "params": 1000}
    twin = {"model": "MLP twin", "used": 1000, "share": 1.0, "accuracy": 0.92, "params": 1000}
    assert "2.0 percentage points less accurate than its MLP twin, with 75.0 % fewer" in raytracing.twin_words(
        [own, twin]
    )
    assert "as accurate as" in raytracing.twin_words([own, {**twin, "accuracy": 0.9}])
    small = {"model": "Small MLP", "used": 250, "share": 1.0, "accuracy": 0.85, "params": 250}
    assert "5.0 percentage points more accurate than an MLP with only as many" in raytracing.twin_words(
        [own, twin, small]
    )
    assert "No MLP twin" in raytracing.twin_words([own])


# DiPaCo


@pytest.mark.parametrize("query", [{"run": "shards"}, {"run": "lights"}, {"run": "lights", "sample": 9999}])
def test_what_does_not_exist_is_a_sentence(show, query):
    page = show(**({"label": "no such label"} if "sample" not in query else {}), **query)
    told = " ".join(error.value for error in page.error)
    assert "no such label" in told or "9999" in told.replace(",", "")
    assert "fault of the page" not in told


def test_every_question_about_shards_is_on_the_page(show):
    page = show(run="shards")
    for question in (
        "Which way do documents go",
        "Which labels take which path",
        "share which module",
        "choose the path again",
        "change along one document",
    ):
        assert question in questions(page)
    told = words(page)
    assert "chosen anew every 8 tokens" in told
    assert "NMI" in told
    assert "lowers perplexity by 4.61\xa0%" in told


@pytest.mark.parametrize(
    "query",
    [
        {"run": "shards", "label": "code", "sample": 1},
        {"run": "shards", "controls": "reroute_every:16"},
        {"run": "once"},
    ],
)
def test_states_of_the_shards_by_address(show, query):
    told = words(show(**query))
    if query["run"] == "once":
        assert "A document chooses its path once" in told
        assert "reroute" not in told
    if "controls" in query:
        assert "Run again: mean loss" in told


def test_a_document_of_a_label_keeps_the_paths_that_other_labels_take(api, show, monkeypatch):
    looked_up, recoloured = [], dipaco.recoloured
    monkeypatch.setattr(
        dipaco, "recoloured", lambda tokens, paths: looked_up.append(paths) or recoloured(tokens, paths)
    )
    assert "Run again: mean loss" in words(show(run="shards", label="code", controls="reroute_every:16"))
    counts = [sum(path["count"] for path in paths) for paths in looked_up]
    assert counts == [Client(api).ask("shards", "")["num_tokens"]]  # of the whole run, not of the label


def test_the_chunks_of_the_page_are_the_routers(api, data_dir):
    with Run.open(data_dir / "runs" / "shards.duckdb") as run:
        config, tokens = run.info()["config"], run.sample(0)["tokens"]
    prefix, every, context = config["prefix"], config["reroute_every"], config["context"]
    wanted = []
    for window in range(0, len(tokens), context):
        size = min(context, len(tokens) - window)
        chunk = chunk_of_position(size, prefix, every).tolist()
        wanted += [window + t for t in range(size) if t == 0 or chunk[t] != chunk[t - 1]]
    starts = dipaco_rerouting.decisions(len(tokens), prefix, every, context)
    assert starts == wanted
    parts = dipaco_rerouting.chunks(tokens, starts)
    assert [part.first for part in parts] == wanted  # between two decisions the path never changes
    assert sum(part.end - part.first for part in parts) == len(tokens)


def test_a_text_never_becomes_markup(monkeypatch):
    from tokenpaths.frontend.charts.drawing.palette import LIGHT

    monkeypatch.setattr(dipaco.widgets, "theme", lambda: LIGHT)
    text = '<script>alert("é")</script> & \u202e <img src=x>'
    tokens = [
        {
            "token": i,
            "rank": 1 + i % 2,
            "cdf": 0.5,
            "cdf_middle": 0.25,
            "path_tokens": 5,
            "ribbon": [[0], [i % 2]],
            "loss": 1.0,
            "char_start": 5 * i,
            "char_end": 5 * i + 5,
        }
        for i in range(-(-len(text) // 5))
    ]
    drawn = dipaco.running_text({"text": text, "tokens": tokens}, dipaco_rerouting.chunks(tokens))
    assert "<script" not in drawn
    assert "<img" not in drawn
    assert "\u202e" not in drawn
    assert "⟦RLO⟧" in drawn
    assert drawn.count("<b ") == len(tokens)


def test_a_path_that_the_run_does_not_have_is_said_to_be_unknown():
    ranks = {"rank": 1, "cdf": 0.9, "cdf_middle": 0.45, "path_tokens": 9}
    own = {"rank": 5, "cdf": 0.1, "cdf_middle": 0.1, "path_tokens": 1}
    tokens = [{"token": 0, "ribbon": [[0], [1]]} | own, {"token": 1, "ribbon": [[1], [1]]} | own]
    known, unknown = dipaco.recoloured(tokens, [{"ribbon": [[0], [1]], **ranks}])
    assert {name: known[name] for name in ranks} == ranks
    assert {name: unknown[name] for name in ranks} == dict.fromkeys(ranks) | {"path_tokens": 0}
    assert ink_kind(unknown) == "unknown"


def test_views_read_only_what_the_api_gives(api, data_dir):
    """What the pages take from ``findings`` is there after sealing, under these names."""
    with Run.open(data_dir / "runs" / "lights.duckdb") as run:
        found = json.loads(json.dumps(run.info()["findings"]))
    assert len(found["lights"]["lit_share_by_step"]) == len(found["lights"]["steps_until_fired"]["counts"]) - 1
    assert {"pearson", "pearson_low", "pearson_high", "num_samples"} <= set(found["lights"]["correlation"])
    assert found["validation"]["mlp_twin"]["accuracy"] == 0.9639


@pytest.mark.parametrize("query", [{"view": "paths", "inspect": "path:1"}, {"view": "work", "inspect": "token:0.0"}])
def test_an_image_that_is_one_token_has_no_patches(show, query):
    page = show(run="lights", **query)
    kinds = ("markdown", "caption", "header", "subheader", "info")
    values = [str(element.value) for kind in kinds for element in page.get(kind)]
    told = " ".join(value for value in values if "**arrows**" not in value)  # the list of keys is of all runs
    told += " ".join(str(box.label) for box in page.selectbox)
    assert not page.error
    assert "image" in told.lower()
    found = told.lower().find("patch")
    assert found < 0, told[max(0, found - 80) : found + 80]
