"""The Dream view: wishes and the address, the request they become, and a dream over a real API and worker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import SECRET, Served, api_for, serving
from tests.support.checkpoints import save_tiny
from tests.support.pages import showing
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.dream.dream_request import ConnectionTarget
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.dream_check import _check_connection
from tokenpaths.engine.jobs.registry import read_request
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.frontend.charts.dreams import figure_html, figure_rows, match_chart, match_rows, top_chart, top_rows
from tokenpaths.frontend.charts.job_curve import curve_chart, curve_rows, name_rows
from tokenpaths.frontend.page.selection import Selection, from_query, to_query
from tokenpaths.frontend.views.dream import connection
from tokenpaths.frontend.views.dream import request as dream_request
from tokenpaths.frontend.views.dream.request import AT, cost_words, expected_of, pace, selection_of, text_seconds
from tokenpaths.frontend.views.dream.result import gallery_item, marked, names_of, title_of

ROOT = Path(__file__).resolve().parents[2]
RUN = {
    "run": "seen",
    "model": "tiny",
    "family": "dna",
    "modality": "vision",
    "num_steps": 3,
    "num_modules": 6,
    "num_paths": 9,
    "num_tokens": 48,
    "num_samples": 3,
}
DREAMS = [
    {
        "name": "S = 1",
        "objective": 0.5,
        "matched_choices": 0.75,
        "matched_tokens": 0.5,
        "top": [["brick", 0.6]],
        "at_start": {"matched_choices": 0.25, "matched_tokens": 0.0},
    },
    {
        "name": "class",
        "objective": 3.0,
        "matched_choices": None,
        "matched_tokens": None,
        "top": [["cloud", 0.9]],
        "at_start": {"matched_choices": None, "matched_tokens": None},
    },
]


def wished(*given: str) -> dict[str, str]:
    return dream_request.dream_options(Selection(dream=given), RUN)


@pytest.mark.parametrize(
    "given",
    [
        (),
        ("group:path", "context:both", "until:2", "form:single"),
        ("group:picked", "picked:3.1", "scores:logits"),
        ("group:drawn", "draw:5"),
        ("of:path", "rank:4"),
        ("of:module", "module:2", "step:1"),
        ("of:class", "index:2", "precision:bfloat16"),
        ("until:nine", "draw:x", "iterations:7"),
    ],
)
def test_every_wish_becomes_a_request_that_the_engine_takes(given: tuple[str, ...]) -> None:
    request = dream_request.request_of(RUN, wished(*given), 1, 6)
    read_request(DreamJob, request)
    selection = Selection(view="dream", run="seen", sample=1, token=6, dream=given)
    assert from_query(to_query(selection)) == (selection, [])


def test_a_dream_of_a_module_says_whether_its_patches_take_it() -> None:
    from tokenpaths.frontend.views.dream.result import module_words

    dream = {"matched_choices": 0.25, "at_start": {"matched_choices": 0.1}}
    target = {"of": "module", "module": 7, "steps": [2]}
    assert module_words(target, [dream]).startswith(
        "Module 7 at step 2: 25.0 % of the dream’s patches take it, 10.0 % of those of the noise that it began as. "
        "Most do not: "
    )
    told = module_words({**target, "steps": None}, [{"matched_choices": 0.9, "text": "a"}])
    assert told == "Module 7 at every step: 90.0 % of the dream’s tokens, counted at each of these steps, take it."
    some = module_words({**target, "steps": [0, 2]}, [{"matched_choices": 0.9, "text": "a"}])
    assert some.startswith("Module 7 at step 0, 2: 90.0 % of the dream’s tokens, counted")
    assert module_words({"of": "path"}, [dream]) == module_words(target, [{"matched_choices": None}]) == ""


def test_wishes_of_the_address_that_mean_nothing_are_said() -> None:
    assert dream_request.problems(Selection(dream=("of:module", "module:2", "form:single")), RUN) == []
    given = ("of:zz", "draw:x", "colour:red", "form:double")
    of, draw, colour, form = dream_request.problems(Selection(dream=given), RUN)
    assert of.startswith("The address says dream=of:zz, which is none of choices, path, module, class")
    assert of.endswith("in its place stands the choices of this image.")
    assert "draw:x, which is no number" in draw
    assert "colour:red, which no dream asks for" in colour
    assert form.endswith("in its place stands cumulative.")
    assert wished(*given)["form"] == "cumulative"


def test_the_request_says_what_was_wished() -> None:
    request = dream_request.request_of(RUN, wished("group:path", "context:both", "until:2", "iterations:512"), 1, 6)
    assert request["target"] == {
        "of": "choices",
        "scores": "probs",
        "form": "cumulative",
        "group": {"like": 6},
        "context": "both",
        "until": [2],
    }
    assert (request["run"], request["sample"], request["image"]) == (
        "seen",
        1,
        {"iterations": 512, "precision": "float32"},
    )
    direction = {**RUN, "family": "directional", "modality": "text"}
    wishes = dream_request.dream_options(Selection(dream=("at:1.2.3",)), direction)
    assert dream_request.request_of(direction, wishes, None, None)["target"] == {
        "of": "direction",
        "layer": 1,
        "head": 2,
        "direction": 3,
    }


def test_clicks_choose_and_let_go_and_what_is_missing_is_said() -> None:
    assert dream_request.toggled(wished("picked:1.7"), 3) == "1.3.7"
    assert dream_request.toggled(wished("picked:1.7"), 7) == "1"
    assert dream_request.with_option(("group:path", "draw:5"), "group", "all") == ("draw:5",)
    assert "Click a patch" in dream_request.missing(wished("group:path"), None, "vision")
    assert "at least one" in dream_request.missing(wished("group:picked"), 3, "vision")
    assert not dream_request.missing(wished("group:path"), 3, "vision")
    tokens = [{"token": t, "rank": t % 2 + 1} for t in range(4)]
    assert dream_request.members(wished("group:path"), tokens, 2) == {0, 2}


def test_charts_say_what_matches_and_what_is_seen() -> None:
    assert [row["dream"] for row in match_rows(DREAMS)] == ["S = 1"]
    assert match_rows(DREAMS)[0]["choices at the start"] == 0.25
    assert [row["picture"] for row in top_rows(DREAMS, {"top": [["apple", 1.0]]})] == ["original", "S = 1", "class"]
    for theme in ("light", "dark"):
        for chart in (match_chart(DREAMS, theme=theme), top_chart(DREAMS, theme=theme)):
            assert chart.to_dict()["title"]["text"]


@pytest.mark.parametrize(
    ("of", "title", "bar"),
    [
        ("choices", "Does it take the paths?", "choices of the dream that are the original's"),
        ("path", "Does it take the path?", "choices of the dream that are the path's"),
        ("module", "Does it take the module?", "tokens of the dream that take the module"),
    ],
)
def test_a_dream_is_told_by_what_it_was_asked_for(of: str, title: str, bar: str) -> None:
    drawn = match_chart(DREAMS, of=of).to_dict()["title"]
    assert drawn["text"] == title
    assert f"Bar: {bar}." in drawn["subtitle"]
    assert ("original" in str(drawn)) == (of == "choices")


def test_names_and_texts() -> None:
    target = {"of": "choices", "until": [1, 3], "context": "both", "form": "cumulative", "group": {"draw": 2}}
    assert names_of({"target": target}) == ["S = 1", "S = 1, with its pixels", "S = 3", "S = 3, with its pixels"]
    alone = {"target": target | {"form": "single", "context": "without"}}
    assert names_of(alone) == ["step 0 alone", "step 2 alone"]  # S = 1 is the first step, which is step 0
    assert title_of({"job": "d", "title": "Dream of sample 4 of seen: S = 3"}) == "Sample 4 of seen: S = 3"
    assert marked({"tokens": [" you", " *may", "be\n"], "targets": [1]}) == "you **\\*may**be"


def test_bytes_of_one_character_are_one_piece() -> None:
    dream = {
        "tokens": [" a", "\ufffd", "\ufffd", "b"],
        "text": " aéb",
        "targets": [2],
        "spans": [[0, 2], [2, 3], [2, 3], [3, 4]],
    }
    assert marked(dream) == "a**é**b"
    assert marked({"tokens": ["of", "\n", " a"], "targets": [1]}) == "of **↵**\u200a a"
    assert marked({"tokens": ["x", "(", "y"], "targets": [1]}) == "x\u200a**\\(**\u200ay"  # stars must have room
    assert marked(dream | {"spans": None}) == "aéb"  # a result of before: never half a character


@pytest.mark.parametrize(
    ("run", "given"),
    [
        (RUN, ("group:path", "context:both", "until:2", "form:single", "scores:logits")),
        (RUN, ("group:picked", "picked:3.1")),
        (RUN, ("group:drawn", "draw:5", "iterations:100")),
        (RUN, ("of:class", "index:2", "precision:bfloat16")),
        (RUN, ("of:module", "module:2", "step:1")),
        (RUN, ("of:path", "rank:4")),
        (RUN | {"modality": "text"}, ("of:choices", "first:7", "length:20", "group:picked", "picked:8")),
        (RUN | {"modality": "text"}, ("of:module", "module:1", "length:5")),
        (RUN | {"family": "raytracing"}, ("of:block", "at:1.2")),
    ],
)
def test_an_earlier_dream_brings_its_sample_and_wishes_back(run: dict, given: tuple[str, ...]) -> None:
    wished = dream_request.dream_options(Selection(dream=given), run)
    request = dream_request.request_of(run, wished, 2, 6)
    kept = read_request(DreamJob, request).model_dump(mode="json")
    result = {"dreams": [{"text": ""} if run["modality"] == "text" else {}]}
    at = dream_request.selection_of({"job": "dream-1", "request": kept, "result": result}, "seen")
    assert (at.view, at.run, at.job) == ("dream", "seen", "dream-1")
    assert at.sample == (2 if wished["of"] == "choices" else None)
    assert from_query(to_query(at)) == (at, [])
    assert dream_request.request_of(run, dream_request.dream_options(at, run), 2, at.token) == request


CONNECTED = RUN | {
    "family": "hmodel",
    "modality": "text",
    "config": {"hidden": [{}, {}, {}], "iterations": 2, "inputs": ["text", "image"], "outputs": ["predict"]},
    "modules": [{"module": module, "name": f"transformer {module}", "step": None} for module in range(3)],
}


def exists(*at: int) -> bool:
    """Whether a dream of this connection is taken."""
    target = ConnectionTarget(of="connection", **dict(zip(AT["connection"], at, strict=True)))
    try:
        _check_connection(target, CONNECTED["config"])
    except UserError:
        return False
    return True


def test_a_dream_of_a_connection_offers_those_that_exist_and_begins_with_one() -> None:
    offered = {
        (iteration, source, target)
        for iteration in connection.choices(CONNECTED, 0)[0]
        for source in connection.choices(CONNECTED, iteration)[1]
        for target in connection.choices(CONNECTED, iteration)[2]
    }
    assert offered == {at for at in product(range(4), range(6), range(5)) if exists(*at)}
    wishes = dream_request.dream_options(Selection(), CONNECTED)
    assert dream_request.at_of(wishes, "connection") == [0, 3, 0]
    target = dream_request.request_of(CONNECTED, wishes, None, None)["target"]
    assert target == {"of": "connection", "iteration": 0, "source": 3, "target": 0}
    for at in product(range(4), range(6), range(5)):
        selection = Selection(dream=(f"at:{'.'.join(map(str, at))}",))
        chosen = tuple(dream_request.at_of(dream_request.dream_options(selection, CONNECTED), "connection"))
        assert chosen in offered
        assert (chosen == at) == exists(*at)
        told = dream_request.problems(selection, CONNECTED)
        assert bool(told) != exists(*at)
        assert all("does not exist" in sentence for sentence in told)
    assert connection.names(CONNECTED, 1)[4] == "image input"
    assert connection.names(CONNECTED, 2) == {
        **{module: f"transformer {module}" for module in range(3)},
        3: "next-token output",
    }


def test_a_text_says_which_tokens_are_dreamt_and_refuses_others() -> None:
    run = RUN | {"modality": "text"}
    given = ("of:choices", "first:7", "length:20", "group:picked", "picked:3")
    wished = dream_request.dream_options(Selection(dream=given), run)
    assert dream_request.stretch(wished, 57) == range(7, 27)
    assert dream_request.stretch(wished, 12) == range(7, 12)
    assert dream_request.stretch(wished, 3) == range(2, 3)
    assert "Token 3 is not among" in dream_request.missing(wished, None, "text", range(7, 27))
    assert not dream_request.missing(wished | {"picked": "8"}, None, "text", range(7, 27))
    drawn = wished | {"group": "drawn", "draw": "21"}
    assert "cannot be drawn" in dream_request.missing(drawn, None, "text", range(7, 27))


def test_pairs_are_two_rows_under_the_same_columns() -> None:
    dreams = [
        {
            "name": f"S = {s}" + (", with its pixels" if kept else ""),
            "context": kept,
            "image": f"dream-{s}{kept}.png",
            "top": [["<b>brick</b>", 0.5]],
            "matched_choices": 0.75,
            "group": [1],
        }
        for s in (1, 2)
        for kept in (False, True)
    ]
    result = {"original": {"image": "original.png", "top": [["apple", 0.9]]}, "dreams": dreams}
    original, found = figure_rows(result)
    assert (original.name, original.lines) == ("original", ("apple, 90.0 %",))
    assert [[cell.name for cell in row] for row in found.values()] == [["S = 1", "S = 2"]] * 2
    assert [cell.item["context"] for cell in found["the group keeps its original pixels"]] == [True, True]
    urls = {item["image"]: f"data:{item['image']}" for item in [result["original"], *dreams]}
    html = figure_html(result, urls)
    assert "<b>brick</b>" not in html
    assert html.count("<img") == 5
    for s, column in ((1, 2), (2, 3)):
        for kept, row in ((False, 2), (True, 4)):
            place = html[: html.index(f"data:dream-{s}{kept}.png")].rindex("<figure")
            assert f"grid-column:{column};grid-row:{row}" in html[place:][:80]
    alone = figure_rows({"original": None, "dreams": dreams[:1]})
    assert (alone[0], list(alone[1])) == (None, [""])


def test_many_curves_are_named_at_their_ends_and_none_looks_like_another() -> None:
    series = [{"name": f"S = {s}", "x": [1, 2, 3], "y": [0.1, 0.2, 0.3 + s / 1000]} for s in range(1, 12)]
    for theme in ("light", "dark"):
        drawn = curve_chart({"x": "iteration", "y": "objective", "series": series}, theme=theme).to_dict()
        lines, _, words = drawn["layer"]
        told = drawn["datasets"][words["data"]["name"]]
        assert {row["name"] for row in told} == {f"S = {s}" for s in range(1, 12)}
        assert len(set(lines["encoding"]["color"]["scale"]["range"])) == 11
        assert "strokeDash" not in lines["encoding"]
    one = curve_chart({"series": series[:1]}).to_dict()
    assert one["mark"]["color"] == one["mark"]["point"]["color"]
    height = drawn["height"]
    at = sorted(row["at"] for row in name_rows(curve_rows({"series": series}), height))
    gap = (0.311 - 0.1) * 13 / height
    assert all(b - a >= gap * 0.999 for a, b in zip(at, at[1:], strict=False))
    pairs = [{"name": "S = 1" + end, "x": [1, 2], "y": [0, 1]} for end in ("", ", with its pixels")]
    lines = curve_chart({"series": pairs}).to_dict()["layer"][0]
    assert len(lines["encoding"]["strokeDash"]["scale"]["domain"]) == 2


def test_the_estimate_is_that_of_the_dreams_that_were_made_here() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "text_dreams.json").read_text())["results"]
    for row in kept.values():  # of one core: half to twice what was measured of each shipped text model
        rounds = int(row["command"].split("--iterations ")[1])
        scan, swaps = text_seconds(rounds, 12, {"corpus_windows": row["corpus"]["windows"]})
        assert 0.5 < row["seconds"]["corpus"] / scan < 2
        assert 0.5 < row["seconds"]["rounds"] / swaps < 2
    job = {
        "state": "succeeded",
        "attempts": 1,
        "started_at": "2026-01-01T00:00:00+00:00",
        "progress": {},
        "finished_at": "2026-01-01T00:01:00+00:00",
        "result": {"dreams": [{}, {}]},
        "request": {"image": {"iterations": 500}},
    }
    assert expected_of(job) == pytest.approx(20)
    faster = job | {"request": {"image": {"iterations": 500, "precision": "bfloat16"}}}
    assert expected_of(faster) == pytest.approx(13)
    assert "about 13 s on one core" in cost_words(True, 500, 2, 12, None, "bfloat16")
    assert pace([job, job | {"attempts": 2, "finished_at": "2026-01-02T00:00:00+00:00"}]) == pytest.approx(3)
    assert pace([]) is None
    assert "about 60 s by the time that earlier dreams" in cost_words(True, 500, 2, 12, 3.0)
    words = cost_words(False, 32, 1, 12, None)
    assert words.startswith("Two parts: looking through the bundled texts, about 5 s, then at most 32 rounds")


def test_the_gallery_shows_the_last_picture_or_the_best_text(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    fetch = SimpleNamespace(artifact=lambda job, name: asked.append((job, name)) or b"png")
    monkeypatch.setattr("tokenpaths.frontend.views.dream.result.widgets.client", lambda: fetch)
    job = {"job": "d", "title": "Dream of class 1", "artifacts": ["dream-2.png", "dream-10.png", "original.png"]}
    assert gallery_item(3, job)["caption"] == "Class 1"
    assert asked == [("d", "dream-10.png")]
    text = {"job": "d", "title": "Dream", "artifacts": [], "result": {"dreams": [{"text": " you may "}]}}
    assert gallery_item(0, text)["snippet"] == "you may"


@pytest.fixture(scope="module")
def dreaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API with a worker, a tiny vision model and a run of it."""
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    data_dir: Path = tmp_path_factory.mktemp("dreams")
    save_tiny(data_dir / "models" / "tiny", "vision")
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(2)]
    loaded = load_model("tiny", [data_dir / "models"], "cpu")
    samples = [Sample(picture, None, "noise", "made") for picture in pictures]
    trace_samples(loaded, samples, data_dir / "runs", run_id="seen", twin=False)
    options = {"data_dir": data_dir, "worker_secret": SECRET, "warm_models": False}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        yield served


@pytest.fixture
def show(dreaming: Served, monkeypatch: pytest.MonkeyPatch):
    with showing(str(dreaming.client.base_url).rstrip("/"), monkeypatch) as draw:
        yield draw


def said(page: AppTest) -> str:
    kinds = ("markdown", "caption", "error", "warning", "info", "subheader", "header")
    return " ".join(str(element.value) for kind in kinds for element in page.get(kind))


def test_a_dream_is_asked_for_shown_and_found_again(dreaming: Served, show) -> None:
    wishes = "group:picked,picked:2.3,context:both,until:2,iterations:64"
    page = show(view="dream", run="seen", sample=1, dream=wishes)
    assert "would follow this path best" in said(page)
    page.button("dream_go").click().run()
    job = page.query_params["job"]
    job = job[0] if isinstance(job, list) else job
    ends = time.monotonic() + 90
    while dreaming.get(f"/jobs/{job}").json()["state"] not in ("succeeded", "failed") and time.monotonic() < ends:
        time.sleep(0.2)
    found = dreaming.get(f"/jobs/{job}").json()
    assert found["state"] == "succeeded", found["problem"]
    assert {"frame-000064-0.png", "frame-000064-1.png", "curve.json"} <= set(found["artifacts"])
    again = show(view="dream", run="seen", sample=1, dream=wishes, job=job)
    assert "The dream" in said(again)
    assert "Red: the group" in said(again)
    gallery = show(view="dream", run="seen", sample=0)
    assert "Earlier dreams" in said(gallery)
    own = selection_of(found)
    assert (own.run, own.sample) == ("seen", 1)
    assert {"of:choices", *wishes.split(",")} == set(own.dream)
    other = show(view="dream", run="seen", sample=0, dream=wishes, job=job)  # another sample beside the same dream
    assert "has not been dreamt yet" in said(other)
    alone = show(view="dream", job=job)  # as a bare link: it finds a run of its model, its sample and its wishes
    assert (alone.query_params["run"], alone.query_params["sample"]) in (("seen", "1"), (["seen"], ["1"]))
    assert "The dream" in said(alone)
    framed = show(view="dream", job=job, embed=1)
    assert "The dream" in said(framed)
    assert not framed.button
    other.button("dream_own").click().run()
    assert other.query_params["sample"] in ("1", ["1"])
    assert "has not been dreamt yet" not in said(other)


def test_a_job_that_is_no_dream_is_said_and_left_alone(dreaming: Served, show) -> None:
    body = {"kind": "trace", "request": {"model": "tiny", "data": "bundled:scenes", "limit": 1}}
    job = dreaming.client.post("/api/v1/jobs", json=body).json()["job"]
    page = show(view="dream", run="seen", sample=0, job=job)
    assert "is a trace and no dream" in said(page)
    assert not page.get("exception")
    assert not any(button.key and button.key.startswith("job_cancel") for button in page.button)


def test_classes_are_offered_by_name(show) -> None:
    page = show(view="dream", run="seen", dream="of:class,index:1")
    (box,) = [box for box in page.selectbox if box.label == "Class"]
    assert box.options == ["apple", "brick", "cloud"]
    assert box.value == 1


def test_a_group_that_is_still_to_be_clicked_keeps_the_button_shut(show) -> None:
    page = show(view="dream", run="seen", sample=0, dream="group:path")
    assert page.button("dream_go").disabled
    assert "Click a patch" in said(page)


def test_a_dream_that_is_gone_is_a_sentence(show) -> None:
    assert "is gone" in said(show(view="dream", run="seen", job="dream-20200101-000000-abcdef"))


def test_a_number_written_just_before_the_click_is_dreamt(show, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    page = show(view="dream", run="seen", sample=0, dream="group:drawn,draw:2,until:2,iterations:64")
    monkeypatch.setattr(
        "tokenpaths.frontend.api.client.Client.submit_job", lambda self, *asked: sent.append(asked) or {"job": "it"}
    )
    (field,) = (box for box in page.number_input if box.label == "How many")
    field.set_value(3)
    page.button("dream_go").click().run()
    assert "draw:3" in str(page.query_params["dream"])
    ((kind, request),) = sent
    assert (kind, request["target"]["group"]) == ("dream", {"draw": 3})
