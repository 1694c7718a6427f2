"""Compare, Map and “more like this” over a real API, without a browser; and their charts as pure functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import SECRET, Served, api_for, serving
from tests.support.pages import showing
from tests.support.runs import make, make_experts, make_run
from tokenpaths.frontend.api.client import Client
from tokenpaths.frontend.charts import compare as charts
from tokenpaths.frontend.charts.flow.flow_contrast import few_of
from tokenpaths.frontend.charts.sample_map import SHAPES, map_words, sample_map_chart
from tokenpaths.frontend.charts.several_runs import numbers_table as table
from tokenpaths.frontend.charts.several_runs.training_maps import training_map
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.compare.compared import Compared, partners
from tokenpaths.frontend.views.samples import similar
from tokenpaths.frontend.views.samples.similar import sample_words, token_words

THEMES = ("light", "dark", "print")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    data_dir: Path = tmp_path_factory.mktemp("compare-page")
    runs = data_dir / "runs"
    for modality, name in (("vision", "pictures"), ("text", "texts")):
        made = make(name, modality, samples=6, seed=1, labels=modality == "vision", twin=modality == "vision")
        made.write(runs)
        for batch in made.batches:
            batch.module_ids[::3] = (batch.module_ids[::3] + 1) % 6
        replace(made, info=replace(made.info, run_id=f"{name}-moved", checkpoint_sha256="1" * 64)).write(runs)
    make_run(runs, "still", samples=6, seed=1, steps=3, modules=1, identities=0, twin=False)
    make_run(runs, "bare", samples=1, seed=1, steps=1, modules=1, identities=0, labels=False, twin=False)
    mine = make("mine", samples=3, seed=5, twin=False)
    replace(mine, info=replace(mine.info, dataset="scenes", model="dna-vision-top1")).write(runs)
    for at in (10, 20):
        made = make_experts(f"at-{at}", series=("training", at), drift=1 - at / 20, samples=4)
        replace(made, info=replace(made.info, dataset="experts")).write(runs)
    options = {"data_dir": data_dir, "worker_secret": SECRET, "warm_models": False}
    with serving(create_worker(load_settings(**options))) as url, api_for(worker_url=url, **options) as served:
        yield served


@pytest.fixture
def show(api: Served, monkeypatch: pytest.MonkeyPatch):
    with showing(str(api.client.base_url).rstrip("/"), monkeypatch) as draw:
        yield draw


def said(page: AppTest) -> str:
    kinds = ("header", "subheader", "caption", "markdown", "error", "warning", "info")
    return " ".join(str(one.value) for kind in kinds for one in page.get(kind)).replace("\\", "")


@pytest.mark.parametrize("run", ["pictures", "texts"])
def test_an_old_address_of_two_runs_shows_their_numbers(show, run: str) -> None:
    page = show(view="compare", run=run, against=f"{run}-moved")
    assert not page.error
    assert "Both runs are over the same 6 samples." in said(page)
    assert page.multiselect(key="in_runs").value == [run, f"{run}-moved"]
    html = " ".join(str(one.value) for one in page.get("html"))
    for words in ("load entropy", "cells without a token", "Balance of load", f"{run}-moved"):
        assert words in html


@pytest.mark.parametrize("run", ["pictures", "texts"])
def test_two_runs_sample_by_sample_and_their_routes(show, run: str) -> None:
    page = show(view="compare", run=run, against=f"{run}-moved", part="samples")
    words = said(page)
    assert not page.error
    for question in (
        "Do the two runs agree per sample?",
        "Do both put the same tokens on one path?",
        "Which samples differ most in",
        "6 samples are paired by their source",
    ):
        assert question in words
    assert "How sure is this?" in [one.label for one in page.expander]
    words = said(show(view="compare", run=run, against=f"{run}-moved", part="routes"))
    for question in (
        "Where does each run send its tokens?",
        "Where do two of them part?",
        "How evenly does each step load its modules?",
        "two sets of weights named toy-",
    ):
        assert question in words


def test_flows_of_all_runs_have_the_threshold_of_the_address(show) -> None:
    def hidden(**query: object) -> list[str]:
        page = show(view="compare", runs="pictures,pictures-moved", part="routes", **query)
        return [one for caption in page.caption if "tokens are hidden" in (one := caption.value.replace("\\", ""))]

    assert hidden(hide=0) == []
    assert ["under 9.00\xa0% of the tokens" in words for words in hidden(hide=9)] == [True, True]


def test_many_runs_stand_side_by_side_and_more_are_counted(show) -> None:
    page = show(view="compare", runs="pictures,pictures-moved,still,texts")
    words = said(page)
    assert not page.error
    assert "texts has none" in words
    assert "Not compared: pictures is of vision, texts of text." in words
    assert page.multiselect(key="in_runs").value == ["pictures", "pictures-moved", "still", "texts"]
    page.segmented_control(key="in_part").set_value("routes").run()
    assert page.query_params["part"] in ("routes", ["routes"])
    assert "texts" in [one.value for one in page.subheader]
    many = Compared(tuple(f"r{i}" for i in range(14)), {}, {})
    assert many.not_drawn() == "The first 12 of 14 runs are shown; take some away above to see the others."
    assert len(many.drawn) == 12


def test_a_group_is_added_with_one_choice(show) -> None:
    page = show(view="compare", runs="at-20")
    page.selectbox(key="add_group").select("training training").run()
    assert page.multiselect(key="in_runs").value == ["at-20", "at-10"]
    assert not page.error


def test_the_second_run_is_found_and_a_measure_that_says_nothing_is_not_drawn(show) -> None:
    page = show(view="compare", run="still", part="samples")
    words = said(page)
    assert page.multiselect(key="in_runs").value[1].startswith("pictures")
    assert page.selectbox(key="in_by").value == "loss"
    assert "compute (nothing to compare)" in page.selectbox(key="in_by").options
    assert "for every sample in both runs" not in words
    words = said(show(view="compare", run="still", part="routes"))
    assert "Their flows cannot be subtracted" in words


def test_where_a_click_opens_a_sample_is_in_the_address(show) -> None:
    page = show(view="compare", run="texts", against="texts-moved", part="samples")
    where = page.segmented_control(key="in_opens")
    assert where.value == "texts"
    where.set_value("texts-moved").run()
    address = {name: "".join(page.query_params[name]) for name in page.query_params}
    assert show(**address).segmented_control(key="in_opens").value == "texts-moved"


def test_where_no_measure_varies_there_is_a_sentence_and_no_empty_picture(show) -> None:
    page = show(view="compare", runs="at-10,at-20", part="samples")
    assert "for every sample in both runs, so there is nothing to draw" in said(page)
    assert not page.error


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"run": "pictures", "against": "texts", "part": "samples"}, "is of vision, 'texts' of text"),
        ({"run": "pictures", "against": "nobody"}, "There is no run `nobody`"),
        ({"runs": "pictures,nobody"}, "There is no run `nobody`"),
        ({"run": "texts", "against": "at-10", "part": "samples"}, "no sample in common"),
        ({"run": "pictures", "against": "../up"}, "not understood"),
        ({"runs": "pictures,../up"}, "not understood"),
        ({"runs": "mine", "part": "samples"}, "mine stands alone: choose a second run above."),
        ({"runs": "pictures", "part": "training"}, "None of the runs compared is a checkpoint of a training."),
    ],
)
def test_what_cannot_be_compared_is_a_sentence(show, query: dict, words: str) -> None:
    page = show(view="compare", **query)
    assert words in said(page)
    assert "fault of the page" not in said(page)


@pytest.mark.parametrize("part", ["samples", "routes"])
def test_runs_that_cannot_be_paired_are_no_fault_and_others_are_offered(show, part: str) -> None:
    page = show(view="compare", run="texts", against="at-10", part=part)
    assert not page.error
    (words,) = [one.value.replace("\\", "") for one in page.info]
    assert "The runs have no sample in common" in words
    assert words.endswith("Also over the data of texts: texts-moved.")
    page = show(view="compare", run="mine", against="texts", part=part)
    assert not page.error
    assert "No other run here is over the data of mine" in said(page)


def test_one_sample_has_no_correlation(show) -> None:
    words = said(show(view="compare", run="bare", against="pictures", part="samples"))
    assert "takes four" in words


def marked(training: dict, chosen: list[str]) -> list[int]:
    """Iterations of the marked points of the curve."""
    drawn = charts.training_chart(training, "max_violation", chosen=chosen).to_dict()
    return [row["iteration"] for rows in drawn["datasets"].values() for row in rows if row["on"]]


def test_curves_mark_the_checkpoint_of_the_slider(show, api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the maps do: both runs may be compared, and only one of them is the one whose load is shown."""
    asked: list[list[str]] = []
    drawing = charts.training_chart

    def training_chart(training: dict, measure: str, **options):
        asked.append(list(options["chosen"]))
        return drawing(training, measure, **options)

    monkeypatch.setattr(charts, "training_chart", training_chart)
    show(view="compare", runs="at-10,at-20", part="training")
    show(view="compare", runs="at-10,at-20", part="training", at=10)
    assert {tuple(chosen) for chosen in asked[:1]} == {("at-20",)}
    assert {tuple(chosen) for chosen in asked[-1:]} == {("at-10",)}
    monkeypatch.undo()
    assert marked(answer_of(api, "/runs/at-10/series"), asked[-1]) == [10]


def test_the_axis_of_a_training_does_not_begin_before_iteration_0(api: Served) -> None:
    """By Vega's rounding of the ends a training from 100 to 6,400 began at −1,000."""
    chart = charts.training_chart(answer_of(api, "/runs/at-10/series"), "max_violation").to_dict()
    assert all(layer["encoding"]["x"]["scale"]["nice"] is False for layer in chart["layer"])


def test_a_training_with_its_slider(show) -> None:
    page = show(view="compare", runs="at-10", part="training")
    words = said(page)
    assert not page.error
    assert "2 checkpoints of training, iterations 10 to 20" in words
    assert "Which modules are busy at iteration 20?" in words
    for question in ("How evenly are modules loaded?", "How many get nothing?", "Do modules keep their load?"):
        assert question in words
    number = page.selectbox(key="in_number")
    assert number.value == "effective_paths"
    number.select("max_violation").run()
    address = {name: "".join(page.query_params[name]) for name in page.query_params}
    assert show(**address).selectbox(key="in_number").value == "max_violation"
    page.select_slider(key="in_at").set_value(10).run()
    assert "Which modules are busy at iteration 10?" in said(page)
    at = page.query_params["at"]
    assert at in ("10", ["10"])


@pytest.mark.parametrize("run", ["pictures", "texts"])
def test_the_map_and_what_it_says(show, run: str) -> None:
    page = show(view="samples", run=run)
    assert "Which samples take similar routes?" in said(page)
    assert "of what makes them different" in said(page)
    assert ("This run has no labels." in said(page)) == (run == "texts")
    assert page.button(key="map_tsne").label == "Draw it by t-SNE"


def test_a_map_that_cannot_be_drawn_says_why(show) -> None:
    assert "would be one point" in said(show(view="samples", run="still"))
    assert "is gone" in said(show(view="samples", run="pictures", job="map-gone"))


def test_t_sne_is_submitted_with_neighbours_that_the_run_has(show, api: Served) -> None:
    page = show(view="samples", run="pictures", job="")
    page.button(key="map_tsne").click().run()
    job = page.query_params["job"]
    job = job[0] if isinstance(job, list) else job
    request = api.get(f"/jobs/{job}").json()["request"]
    assert (request["run"], request["perplexity"], request["limit"]) == ("pictures", 2.0, 6)
    assert not page.error
    api.client.delete(f"/api/v1/jobs/{job}")


def test_a_map_that_was_made_is_found_without_its_job_in_the_address(show, api: Served, monkeypatch) -> None:
    plane = api.get("/runs/pictures/map?thumbnails=true").json() | {"method": "tsne"}
    asked = {"run": "pictures", "perplexity": 2.0, "limit": 6, "method": "tsne", "iterations": 750, "seed": 0}
    job = {"job": "map-1", "state": "succeeded", "kind": "map", "artifacts": ["map.json"], "cancelling": False}
    made = [job | {"request": asked | {"perplexity": 5.0}, "job": "map-2"}, job | {"request": asked}]
    listed, read = [], []
    jobs = Client.jobs

    def answer(self, **query):
        listed.append(query.get("kind"))
        return {"jobs": made, "next": None, "workers": 1} if query.get("kind") == "map" else jobs(self, **query)

    monkeypatch.setattr(Client, "jobs", answer)
    monkeypatch.setattr(Client, "artifact", lambda self, job, name: read.append(job) or json.dumps(plane).encode())
    page = show(view="samples", run="pictures")
    assert not page.error
    assert "t-SNE. " in said(page)
    assert set(read) == {"map-1"}, "the one with other settings was taken"
    assert "map_tsne" not in [one.key for one in page.button]
    page.button(key="map_pca").click().run()
    assert "PCA. " in said(page)
    page.button(key="map_made").click().run()
    assert "t-SNE. " in said(page)


def test_the_untrained_twin_is_a_job_of_one_click(show, api: Served) -> None:
    page = show(view="compare", run="mine")
    page.button(key="trace_twin").click().run()
    job = page.query_params["job"]
    job = job[0] if isinstance(job, list) else job
    request = api.get(f"/jobs/{job}").json()["request"]
    assert request["model"] == "dna-vision-top1"
    assert (request["data"], request["run"], request["untrained"]) == ("bundled:scenes", "mine-untrained", True)
    assert request["limit"] == 3  # of all scenes those of the run
    api.client.delete(f"/api/v1/jobs/{job}")


def test_too_many_modules_are_cut_to_those_that_differ_most() -> None:
    nodes = [{"step": step, "module": i, "change": (-1) ** i * i / 400} for step in (0, 1) for i in range(400)]
    ends = ((399, 398), (399, 0), (0, 395), (392, 392))
    links = [{"step": 0, "source": i, "target": j, "change": 1} for i, j in ends]
    flow = {"links": links, "nodes": nodes, "steps": [0, 1]}
    cut = few_of(flow)
    assert sorted((node["step"], node["module"]) for node in cut["nodes"]) == [
        (step, i) for step in (0, 1) for i in range(392, 400)
    ]
    assert cut["links"] == [links[0], links[3]]
    small = {**flow, "nodes": nodes[:9]}
    assert few_of(small) is small


def test_choosing_the_second_run_as_the_first_lets_go_of_it() -> None:
    at = Selection(view="compare", run="a", against="b", label="x")
    assert at.change(run="c") == Selection(view="compare", run="c", against="b")
    assert at.change(run="b") == Selection(view="compare", run="b")
    several = Selection(view="compare", run="a", runs=("a", "c"), part="routes")
    assert several.change(run="c").runs == ("a", "c")
    assert several.change(run="d").runs == ()


def test_more_like_this_on_the_sample_view(show) -> None:
    words = said(show(view="samples", run="pictures", sample=2, token=9, inspect="token:2.9"))
    assert "Which patches take nearly the same path?" in words
    assert "Which samples take similar routes?" in words
    words = said(show(view="samples", run="texts", sample=2, token=3, inspect="token:2.3"))
    assert "Which tokens take nearly the same path?" in words
    words = said(show(view="samples", run="bare", sample=0, token=0, inspect="token:0.0"))
    assert "Which samples take similar routes?" not in words
    assert "63 other patches are on the very same path" in words


def test_a_line_break_on_a_like_path_has_its_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not its vocabulary id, which stands for tokens whose text is not known."""
    drawn: list[dict] = []
    monkeypatch.setattr(similar, "wall", lambda items, **_: drawn.extend(items))
    texts = ("\n", " ", " word", None)
    examples = [{"sample": 0, "token": place, "token_id": 199, "text": text} for place, text in enumerate(texts)]
    similar._tokens({"modality": "text"}, examples, "key")
    assert [item["shown"] for item in drawn] == ["↵", "·", " word", "#199"]
    assert [item["text"] for item in drawn] == ["\n", " ", " word", ""]


def answer_of(api: Served, path: str) -> dict:
    answer = api.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def answers(api: Served) -> list[dict]:
    return [
        answer_of(api, path)
        for path in (
            "/compare?a=pictures&b=still&measure=loss",
            "/runs/at-10/series",
            "/runs/pictures/map?thumbnails=true",
            "/runs/texts/map",
            "/compare?runs=pictures,still,texts",
        )
    ]


@pytest.mark.parametrize("theme", THEMES)
def test_charts_draw_in_every_theme_without_nan(answers: list[dict], theme: str) -> None:
    answer, series, plane, bare, numbers = answers
    names, labels = ("it's", "b"), {"pictures": "it's", "still": "s", "texts": "t"}
    drawn = [
        charts.pair_chart(answer, names=names, theme=theme, chosen="circle"),
        charts.pair_chart(answer | {"points": []}, names=names, theme=theme),
        charts.load_chart(answer, names=names, theme=theme),
        charts.training_chart(series, "max_violation", theme=theme, chosen=["at-10"]),
        *(table.number_chart(row, numbers["runs"], labels=labels, theme=theme) for row in numbers["rows"]),
        *(training_map(series, name, theme=theme, chosen="10") for name in ("load_entropy", "dead", "kept")),
        sample_map_chart(plane, theme=theme, chosen="circle", sample=2),
        sample_map_chart(bare, theme=theme),
    ]
    for chart in drawn:
        text = json.dumps(chart.to_dict(), allow_nan=False)
        assert "undefined" not in text


def test_few_labels_have_a_shape_and_many_none(api: Served) -> None:
    plane = answer_of(api, "/runs/pictures/map")
    assert '"shape": {"field": "label"' in json.dumps(sample_map_chart(plane).to_dict())
    coloured = json.dumps(sample_map_chart(plane, chosen="circle").to_dict())
    assert "In colour: label circle." in coloured
    assert "In colour" not in json.dumps(sample_map_chart(plane).to_dict())
    for place, point in enumerate(plane["points"]):
        point["label"] = f"label {place}"
    plane["points"] *= 2
    many = [{**point, "label": f"label {place}"} for place, point in enumerate(plane["points"])]
    assert len(many) > len(SHAPES)
    assert '"shape": {"field": "label"' not in json.dumps(sample_map_chart(plane | {"points": many}).to_dict())
    assert "mean nothing" in map_words(plane | {"explained": None})


def test_the_sentence_of_a_correlation_says_no_more_than_the_interval() -> None:
    def words(r: float, low: float, high: float) -> str:
        row = {
            "measure": "reuse",
            "num": 40,
            "pearson": {"r": r, "low": low, "high": high},
            "reason": None,
            "spearman": {"r": r, "low": low, "high": high},
        }
        return charts.pair_words({"measure": "reuse", "correlations": [row]}, ("A", "B"))

    assert "is not significantly related to reuse in B" in words(0.2, -0.1, 0.5)
    assert "weakly tend to less of it in B" in words(-0.25, -0.4, -0.1)
    assert "strongly tend to more of it in B" in words(0.8, 0.7, 0.9)
    assert "r = −0.250 (−0.400 … −0.100)" in words(-0.25, -0.4, -0.1)


def test_likely_partners_come_first() -> None:
    def card(run: str, **changes: object) -> dict:
        return {
            "run": run,
            "modality": "text",
            "dataset": "x",
            "split": "all",
            "family": "dna",
            "num_samples": 4,
            "model": run,
        } | changes

    run = card("m")
    others = [
        card("a", family="moe"),
        card("z", num_samples=3),
        card("m-untrained"),
        card("t", split="try"),
        card("p", dataset="y"),
        card("v", modality="vision"),
        run,
    ]
    assert [one["run"] for one in partners(run, others)] == ["m-untrained", "a", "z"]


def test_words_of_what_is_near() -> None:
    found = {
        "apart": [
            {"distance": 0.0, "num_paths": 1, "num_tokens": 0},
            {"distance": 0.5, "num_paths": 2, "num_tokens": 3},
            {"distance": 1.5, "num_paths": 9, "num_tokens": 30},
        ],
        "rank": 7,
        "ribbon": [[1], [2]],
        "num_paths": 12,
        "compared_paths": 12,
    }
    assert token_words(found, "tokens") == (
        "No other token is on the very same path, rank 7; 3 more on 2 paths that differ at one step."
    )
    # Of two slots, two steps may differ by half each.
    words = token_words(found | {"ribbon": [[1, 2], [3, 4]]}, "tokens")
    assert words.endswith("2 paths that differ by no more choices than one step has, at one step or several.")
    words = token_words(found | {"num_paths": 40_000_000, "compared_paths": 262_144}, "tokens")
    assert words.endswith(
        "; about 3 more on 2 paths that differ at one step, estimated from 262,144 paths drawn of 40,000,000."
    )
    found["apart"] = [{"distance": 0.0, "num_paths": 1, "num_tokens": 1}]
    words = token_words(found | {"num_paths": 40_000_000, "compared_paths": 262_144}, "tokens")
    assert words.endswith("; none of 262,144 paths drawn of 40,000,000 differ at one step.")
    assert token_words(found, "patches").startswith("1 other patch is on the very same path")
    near = {"similar": [{"distance": 0.5}], "of_samples": 3, "median_distance": 0.51, "num_identical": 0}
    assert "much nearer" not in sample_words(near), "the nearer of two is as far as the median"
    assert sample_words({**near, "of_samples": 30}).endswith("None is much nearer than usual.")
