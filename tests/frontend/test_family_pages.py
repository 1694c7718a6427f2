"""The family views of H-Model and Directional Routing over a real API and worker, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import SECRET, api_for, serving
from tests.support.pages import showing
from tests.support.runs.traced import SOFT_NUMBERS, trace_soft_families
from tokenpaths.frontend.api.client import Client
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.families.hmodel_connections import label_distances
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.common import twin_rows
from tokenpaths.frontend.views.home import upload_family
from tokenpaths.frontend.views.samples import retrace


@contextmanager
def family_api(data_dir: Path) -> Iterator[str]:
    """The address of an API over the runs of `trace_soft_families`, with a worker that holds its models."""
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    trace_soft_families(data_dir)
    options = {"models_dirs": (data_dir / "models",), "worker_secret": SECRET, "warm_models": False}
    options |= {"trace_seconds": 250}
    worker = create_worker(load_settings(data_dir=data_dir, **options))
    with serving(worker) as worker_url, api_for(data_dir, worker_url=worker_url, **options) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with family_api(tmp_path_factory.mktemp("family")) as url:
        yield url


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    """Draw the family view at an address and give what stands on it."""
    with showing(api, monkeypatch, timeout=250, view="family") as draw:
        yield draw


def headers(page: AppTest) -> list[str]:
    return [element.value for kind in ("header", "subheader") for element in page.get(kind)]


def words(page: AppTest) -> str:
    return " ".join(
        element.value for kind in ("error", "warning", "info", "markdown", "caption") for element in page.get(kind)
    ).replace("\\", "")


def test_an_hmodel_shows_its_graph_its_labels_and_its_numbers(show):
    page = show(run="hmodel", sample=5)
    assert not page.error
    for question in (
        "Which layers talk to each other?",
        "Does each label have routes of its own?",
        "Is that more than chance?",
        "What if the connections were sharper?",
        "This one\\: sample 5 \\(German\\)",
        "The mean of German",
        "How good is it beside its twins?",
    ):
        assert question in headers(page)
    told = words(page)
    assert "times as far apart" in told
    assert "1.00 for the same model before training" in told
    assert "Stability" in told
    assert "goes back to the same layer" in told


def test_another_mean_can_stand_beside_the_sample(show):
    page = show(run="hmodel", sample=5, other="English", label="German")
    assert "The mean of English" in headers(page)


def test_sliders_come_from_the_schema_and_the_configuration(show):
    page = show(run="hmodel")
    sliders = {slider.label: slider for slider in page.select_slider}
    assert set(sliders) == {"α (sharpness)", "α_rate (per iteration)", "top-k (connections kept)"}
    assert sliders["α (sharpness)"].options[0] == "0.01"
    assert sliders["α (sharpness)"].value == "1"
    assert sliders["top-k (connections kept)"].options == ["1", "2", "3 (as trained)"]
    assert "Changed" not in headers(page)


def test_a_slider_runs_the_sample_again_and_leaves_one_run_behind(show):
    from tokenpaths.frontend.page import widgets

    before = {card["run"] for card in widgets.client().runs()}
    page = show(run="hmodel", sample=1, controls="top_k:1")
    assert not page.error
    assert {"Unchanged", "Changed", "Which tokens become harder to predict?"} <= set(headers(page))
    assert [metric.label for metric in page.metric] == ["Loss unchanged (nats)", "Loss changed (nats)"]
    page.select_slider(key="in_controls_alpha").set_value("0.1").run()
    assert page.query_params["controls"] in ("top_k:1,alpha:0.1", ["top_k:1,alpha:0.1"])
    tried = [card for card in widgets.client().runs() if card["run"] not in before]
    assert len(tried) == 1
    run = widgets.client().ask(tried[0]["run"], "")
    assert run["config"]["controls"] == {"top_k": 1, "alpha": 0.1}
    values = widgets.client().ask(run["run"], "edges", sample=0)["values"]
    assert all(sum(row) < 1.001 for step in values for row in step)  # one connection at each position, at most 1
    next(button for button in page.button if button.label == "Open the changed run").click().run()
    assert page.query_params["run"] in (run["run"], [run["run"]])
    assert run["run"] in {card["run"] for card in widgets.client().runs()}


def test_a_dream_of_a_connection_is_taken_as_it_is_offered(api, show):
    page = show(view="dream", run="hmodel")
    assert "What text would use this connection most?" in headers(page)
    page.button(key="dream_go").click().run()
    assert not page.error, words(page)
    job = page.query_params["job"]
    job = job[0] if isinstance(job, list) else job
    target = Client(api).job(job)["request"]["target"]
    assert (target["iteration"], target["target"]) == (0, 0)
    assert "has not been dreamt yet" not in words(page), "it is what is wished, whatever its job has so far"
    Client(api).cancel_job(job)


def test_the_unchanged_run_is_what_running_it_again_gives(show):
    """What stands on the left is not another computation than what stands on the right."""
    from tokenpaths.frontend.page import widgets

    client = widgets.client()
    again = client.trace("tiny-hmodel", text=client.ask("hmodel", "samples/{sample}", sample=2)["text"])["run"]
    ours, theirs = client.ask("hmodel", "edges", sample=2)["values"], client.ask(again, "edges", sample=0)["values"]
    flat = lambda v: [c for step in v for row in step for c in row]  # noqa: E731
    assert flat(ours) == pytest.approx(flat(theirs), abs=2e-3)
    assert client.ask("hmodel", "samples/{sample}", sample=2)["loss"] == pytest.approx(
        client.ask(again, "samples/{sample}", sample=0)["loss"], abs=2e-3
    )
    client.delete(again)


def test_one_text_alone_shows_its_graph_and_compares_nothing(show):
    page = show(run="lone")
    assert not page.error
    assert "Does each label have routes of its own?" not in headers(page)
    assert "Is that more than chance?" not in headers(page)
    assert "What if the connections were sharper?" in headers(page)


def test_an_uploaded_text_is_beside_its_nearest_label(api, show):
    client = Client(api)
    made = client.trace(client.ask("hmodel", "")["model"], text="Der Hund und der Wald und der Abend und das Haus")
    page = show(view="home", run=made["run"])
    assert not page.error, [error.value for error in page.error]
    labels = {row["label"] for row in client.ask("hmodel", "")["labels"]}
    (heading,) = [text for text in headers(page) if text.startswith("Its layers talk to each other most as for")]
    own = client.ask(made["run"], "edges", sample=0)
    near = label_distances(own, {label: client.ask("hmodel", "edges", label=label) for label in labels})
    assert near[0].label in heading
    client.delete(made["run"])


def test_how_telling_the_nearest_label_is_stands_beside_it(api) -> None:
    known = Client(api).ask("hmodel", "")
    accuracy = known["findings"]["connections"]["nearest_label_accuracy"]
    told = upload_family.how_telling(known)
    assert f"the nearest is right for {numbers.percent(accuracy)} of the samples (guessing: 33.3 %)" in told
    assert "guessing" not in upload_family.how_telling({**known, "findings": {}})


def test_labels_that_an_upload_is_not_compared_with_are_named() -> None:
    labels = [f"label {i}" for i in range(30)]
    assert upload_family.left_out_words([]) == ""
    assert upload_family.left_out_words(labels[12:14]).endswith("first 12 labels; not compared: label 12, label 13.")
    assert upload_family.left_out_words(labels[12:]).endswith("label 19 and 10 more.")


def test_the_nearest_label_is_that_of_a_loop() -> None:
    def answer(*c: float) -> dict:
        values = [[[c[2 * s + t] for t in range(2)] for s in range(2)]]
        axes = [{"names": ["1"]}, {"names": ["a", "b"]}, {"names": ["a", "b"]}]
        return {"axes": axes, "values": values}

    own, means = answer(0.1, 0.2, 0.3, 0.4), {"x": answer(0.5, 0.2, 0.3, 0.4), "y": answer(0.1, 0.2, 0.3, 0.6)}
    assert [(row.label, pytest.approx(row.distance)) for row in label_distances(own, means)] == [
        ("y", (0.2**2 / 4) ** 0.5),
        ("x", (0.4**2 / 4) ** 0.5),
    ]


def test_gates_by_domain_with_their_findings(show):
    page = show(run="directional", label="English", other="German", gate="1.1.0")
    assert not page.error
    for question in (
        "Which directions are switched on?",
        "What words does a direction write?",
        "Which heads treat domains differently?",
        "In which layers do specialists sit?",
        "Do texts of one domain lie together?",
        "What breaks without routing?",
        "How good is it beside its twins?",
        "What if the gates were fixed?",
    ):
        assert question in headers(page)
    told = words(page)
    assert "English, mean of 4 texts, minus the mean of German" in told
    assert "Layer 1, head 1, direction 0" in told
    assert "From the gates alone" in told
    assert "perplexity goes from 80.0 to 800" in told
    assert "seeing ahead is worth 0.500" in told


def test_one_text_and_all_texts_can_be_looked_at(show):
    assert "Shown: text 3." in words(show(run="directional", sample=3))
    assert "Shown: all texts, mean of 12 texts." in words(show(run="directional"))


def test_gates_are_offered_off_neutral_and_full(show):
    page = show(run="directional")
    offered = {control.label: control for control in page.get("button_group")}
    assert offered["Gates"].options == ["as trained", "off (0)", "neutral (0.5)", "full (1)"]


def test_fixed_gates_are_shown_as_a_difference(show):
    page = show(run="directional", sample=2, controls="gate:0,gate_layer:1,knocked_out:0.1")
    assert not page.error
    assert {"How did the gates change?", "Which tokens become harder to predict?"} <= set(headers(page))


def test_what_an_address_cannot_mean_is_left_out(show):
    page = show(run="hmodel", controls="alpha:7777,nonsense:1,top_k:99", other="Klingon", sample=2)
    assert not page.error
    assert "Changed" not in headers(page)
    page = show(run="directional", gate="99.99.99", controls="knocked_out:77.1+x", other="Klingon")
    assert not page.error
    assert "not understood" not in words(page)


def test_a_run_without_findings_leaves_parts_out(monkeypatch, show):
    from tokenpaths.frontend.api.client import Client

    ask = Client.ask

    def without_findings(self, run, question, **arguments):
        answer = ask(self, run, question, **arguments)
        return answer if question else {**answer, "findings": {}}

    monkeypatch.setattr(Client, "ask", without_findings)
    page = show(run="hmodel")
    assert not page.error
    assert "sealed without these numbers" in words(page)
    page = show(run="directional")
    assert not page.error
    assert "cannot be compared" in words(page)
    assert "perplexity goes from" not in words(page)
    assert "Over many texts" in headers(page)  # what can be measured can be asked for


def test_a_model_that_is_gone_is_a_sentence(monkeypatch, show):
    from tokenpaths.frontend.api.client import Client, NotFound

    def gone(self, model):
        raise NotFound("There is no model tiny.", "Choose another one.")

    monkeypatch.setattr(Client, "model", gone)
    page = show(run="hmodel")
    assert not page.error
    assert "cannot be run again" in words(page)


NUMBER = {"anyOf": [{"type": "number", "minimum": 0.01, "maximum": 10}, {"type": "null"}], "description": "α"}
WHOLE = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]}


def test_a_schema_becomes_a_control():
    alpha = retrace.control("alpha", NUMBER, trained=0.3)
    assert alpha is not None
    assert alpha.values[0] == 0.01
    assert alpha.values[-1] == 10
    assert 0.3 in alpha.values
    assert list(alpha.values) == sorted(alpha.values)
    assert alpha.say("0.3") == "0.3 (as trained)"
    kept = retrace.control("top_k", WHOLE, limit=4)
    assert kept is not None
    assert kept.values == (None, 1, 2, 3, 4)
    assert kept.say("") == "as trained"
    assert retrace.control("top_k", WHOLE) is None
    assert retrace.control("odd", {"type": "array"}) is None
    named = retrace.control("gate", {"type": "number", "minimum": 0, "maximum": 1}, named={0.0: "off", 2.0: "never"})
    assert named is not None
    assert named.values == (None, 0.0)


def test_changes_come_from_the_address_and_go_there():
    alpha = retrace.control("alpha", NUMBER, trained=1.0)
    here = Selection(controls=("alpha:0.5", "beta:1"))
    assert retrace.changes(here, [alpha]) == {"alpha": 0.5}
    assert retrace.not_understood(here, [alpha]) == ["beta:1"]  # said on the page
    assert retrace.not_understood(Selection(controls=("alpha:x",)), [alpha]) == ["alpha:x"]
    assert retrace.changes(Selection(controls=("alpha:1",)), [alpha]) == {}
    assert retrace.changed(here, "alpha", 0.1, 1.0) == ("beta:1", "alpha:0.1")
    assert retrace.changed(here, "alpha", 1.0, 1.0) == ("beta:1",)
    assert retrace.changed(here, "beta", None) == ("alpha:0.5",)


@pytest.mark.parametrize(("low", "high", "first", "last", "count"), [(0.01, 10, 0.01, 10, 10), (0, 1, 0, 1, 21)])
def test_steps_of_a_slider_reach_both_ends(low, high, first, last, count):
    found = retrace.steps(low, high)
    assert (found[0], found[-1], len(found)) == (first, last, count)


def test_twins_are_listed_with_this_one_first():
    rows = twin_rows(SOFT_NUMBERS["beside"], "tiny")
    assert rows == [
        {"model": "tiny (this one)", "params": 1000, "loss": 4.0},
        {"model": "plain", "params": 900, "loss": 4.4},
    ]
