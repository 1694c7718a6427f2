"""Detour on the run of a Hugging Face model: its experts banned as jobs, over a real API and worker."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import SECRET, api_for, serving

APP = Path(__file__).resolve().parents[2] / "frontend" / "app.py"


EDITS = [{"edit": "ban", "modules": [5], "step": 0}]
BAN = {"model": "hf:tiny-mixtral.v1", "sweep": None, "controls": {"edits": EDITS}}


def make_site(data_dir: Path) -> None:
    """Runs of two checkpoints, and one of them in the folder that jobs may use."""
    from tests.support.tiny_huggingface import SAMPLES, save_tiny
    from tokenpaths.engine.adapters.huggingface.inspection import find_model
    from tokenpaths.engine.adapters.huggingface.loading import load
    from tokenpaths.engine.tracing.trace_run import trace_samples

    here = save_tiny(data_dir / "checkpoints" / "tiny-mixtral.v1", "mixtral", num_hidden_layers=2)
    gone = save_tiny(data_dir / "elsewhere" / "tiny-olmoe", "olmoe")
    for name, folder in (("mixtral", here), ("olmoe", gone)):
        loaded = load(find_model(f"hf:{folder}"), device="cpu")
        trace_samples(loaded, SAMPLES, data_dir / "runs", run_id=name, dataset="toy")


@contextmanager
def experts_api(data_dir: Path, **changes: object) -> Iterator[str]:
    """The address of an API over ``make_site``'s folder, with a worker that runs its jobs."""
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    options = {"worker_secret": SECRET, "warm_models": False, "trace_seconds": 250} | changes
    worker = create_worker(load_settings(data_dir=data_dir, **options))
    with serving(worker) as url, api_for(data_dir, worker_url=url, **options) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    make_site(folder)
    return folder


@pytest.fixture(scope="module")
def api(data_dir: Path) -> Iterator[str]:
    """One whose models are all too large to be run while somebody waits."""
    with experts_api(data_dir, huggingface_dir=data_dir / "checkpoints", trace_model_megabytes=0.001) as url:
        yield url


@pytest.fixture(scope="module")
def live(data_dir: Path) -> Iterator[str]:
    with experts_api(data_dir, huggingface_dir=data_dir / "checkpoints") as url:
        yield url


def draw(url: str, monkeypatch: pytest.MonkeyPatch, **query: object) -> AppTest:
    from tokenpaths.frontend.page import widgets

    monkeypatch.setenv("TOKENPATHS_API_URL", url)
    widgets.client.clear()
    page = AppTest.from_file(str(APP), default_timeout=120)
    for key, value in {"view": "change", **query}.items():
        page.query_params[key] = str(value)
    page.run()
    assert not page.exception, [error.message for error in page.exception]
    return page


def words(page: AppTest, *kinds: str) -> str:
    return (
        " ".join(e.value for kind in kinds or ("error", "warning", "info") for e in page.get(kind))
        .replace("\\", "")
        .replace("\u2060", "")
    )


def finished(job: str) -> dict:
    from tokenpaths.frontend.page import widgets

    until = time.monotonic() + 100
    while (now := widgets.client().job(job))["state"] not in ("succeeded", "failed") and time.monotonic() < until:
        time.sleep(0.2)
    return now


def test_a_sweep_over_experts_is_started_found_again_and_drawn(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.frontend.page import widgets

    page = draw(api, monkeypatch, view="importance", run="mixtral")
    assert not page.error, words(page)
    told = words(page, "caption")
    assert "2 layers with 8 experts each: 16 bans, each measured over at most 4 texts of this run" in told
    assert "Nobody has measured this run yet" in told
    page.button(key="sweep_start").click().run()
    job = page.query_params["job"]
    job = job[0] if isinstance(job, list) else job
    done = finished(job)
    assert (done["state"], done["request"]["model"]) == ("succeeded", "hf:tiny-mixtral.v1"), done["problem"]
    assert (done["progress"]["done"], done["progress"]["total"], done["progress"]["unit"]) == (16, 16, "edits")
    assert done["title"] == "Each module banned in turn: hf:tiny-mixtral.v1 over 4 samples of mixtral"
    again = draw(api, monkeypatch, view="importance", run="mixtral")  # tomorrow: without the job in the address
    assert not again.error
    assert "4 samples of toy" in words(again, "caption")
    assert "Click a cell to look into that module" in words(again, "caption")
    assert any("every row of the sweep" in expander.label for expander in again.expander)
    assert widgets.client().artifact(job, "importance.csv").count(b"\n") == 17


def test_shares_of_the_experts(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.frontend.page import widgets

    page = draw(api, monkeypatch, view="importance", run="mixtral")
    page.segmented_control(key="sweep_kind").set_value("shares").run()
    assert "the busiest, the idlest and random shares of each layer banned" in words(page, "caption")
    page.button(key="sweep_start").click().run()
    job = page.query_params["job"]
    done = finished(job[0] if isinstance(job, list) else job)
    assert (done["state"], done["progress"]["total"]) == ("succeeded", 9), done["problem"]
    assert {row["which"] for row in done["result"]["most_important"]} == {"top", "bottom", "random"}
    widgets.client.clear()


def test_what_is_missing_is_one_sentence(api: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = words(draw(api, monkeypatch, run="olmoe"))
    assert re.search(
        "The model tiny-olmoe cannot be run again. .*There is no checkpoint 'tiny-olmoe' in .*"
        "Say below where its checkpoint is",
        told,
    ), told
    with experts_api(data_dir) as url:  # no folder is set
        page = draw(url, monkeypatch, run="mixtral")
        assert "There is no checkpoint 'tiny-mixtral.v1' in <data folder>/models" in words(page)
        assert not any(button.key == "sweep_start" for button in page.button)


def test_a_job_over_rest_is_refused_with_the_field(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx

    request = {"model": "hf:tiny-olmoe", "run": "mixtral", "sweep": "modules"}
    with httpx.Client(base_url=f"{api}/api/v1", trust_env=False, timeout=60) as client:
        for changes, field, sentence in (
            ({}, "request.model", "There is no checkpoint 'tiny-olmoe'"),
            ({"model": "hf:../elsewhere/tiny-olmoe"}, "request.model", "is no name of a folder"),
            (
                BAN | {"controls": {"edits": [{"edit": "ban", "modules": [8], "step": 1}]}},
                "request.controls.edits.0.modules",
                "there is no module 8",
            ),
            (
                BAN | {"controls": {"edits": [{"edit": "ban", "modules": [1], "step": 2}]}},
                "request.controls.edits.0.step",
                "there is no step 2",
            ),
            (
                BAN | {"controls": {"edits": [{"edit": "ban", "modules": [*range(7)]}]}},
                "request.controls.edits",
                "top-k needs 2; ban fewer",
            ),
            (
                BAN | {"controls": {"edits": [{"edit": "ban", "modules": [1], "path": [[0]]}]}},
                "request.controls.edits.0.path",
                "the path has 1 steps; a ribbon of this model has 2",
            ),
            (BAN | {"controls": {"edits": [{"edit": "top_k", "k": 9}]}}, "request.controls.edits", "a smaller k"),
            (BAN | {"sample": 4}, "request.sample", "has samples 0 to 3, not 4"),
        ):
            given = {name: value for name, value in (request | changes).items() if value is not None}
            answer = client.post("/jobs", json={"kind": "reroute", "request": given})
            assert (answer.status_code, answer.json()["field"]) == (422, field), answer.text
            assert sentence in answer.json()["detail"]
        assert client.get("/models/hf:..%2Felsewhere").status_code == 404
        answer = client.post("/traces", files={"model": (None, "hf:tiny-mixtral.v1"), "text": (None, "a text")})
        assert (answer.status_code, answer.json()["field"]) == (422, "model"), answer.text
        assert "submit a job" in answer.json()["detail"]
        found = client.get("/models/hf:tiny-mixtral.v1").json()
    assert (found["num_steps"], found["num_modules"], found["top_k"]) == (2, 8, 2)
    assert found["config"]["model_type"] == "mixtral"


def buttons(page: AppTest) -> list[str]:
    return [button.label.replace("\\", "") for button in page.button]


def test_an_expert_banned_for_one_text_is_shown_before_and_after(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.frontend.page import widgets

    page = draw(api, monkeypatch, run="mixtral", sample=1, through="0.5")
    assert not page.error, words(page)
    assert "Nothing is edited yet" in words(page, "info")
    assert "Not here" not in words(page, "caption")
    assert "Ban module 5 (expert 5" in " ".join(buttons(page))
    assert not any("every step" in label for label in buttons(page))
    assert "Send every token there at step 0" in buttons(page)
    page.button(key="quick_0").click().run()
    assert page.query_params["controls"] in ("ban:0.5", ["ban:0.5"])
    assert "Nobody has run this yet" in words(page, "caption")
    page.button(key="detour_start").click().run()
    job = page.query_params["job"]
    done = finished(job[0] if isinstance(job, list) else job)
    assert done["state"] == "succeeded", done["problem"]
    assert (done["request"]["sample"], done["progress"]["done"], done["progress"]["total"]) == (1, 3, 3)
    before, after = done["result"]["runs"]
    effect = widgets.client().ask(after, "effect", of=before, sample=0)
    assert effect["paths_changed"] > 0
    again = draw(api, monkeypatch, run="mixtral", sample=1, controls="ban:0.5")  # tomorrow: without the job
    assert not again.error, words(again)
    heads = words(again, "subheader")
    assert "With module 5 (expert 5) banned at step 0:" in heads
    assert "% of the tokens take another path" in heads
    assert {
        "Before",
        "After",
        "Where do tokens go instead?",
        "What would come next?",
        "Which tokens become harder to predict?",
    } <= {one.value for one in again.subheader}
    facts = {one.label: one.value for one in again.metric}
    assert facts["Loss (nats)"].count("→") == 1
    assert facts["Paths changed at any step"] == f"{100 * effect['paths_changed']:.1f}\xa0%"
    moved = sum(bool(row["moved"]) for row in effect["tokens"])
    assert f"{moved} of {effect['num_tokens']} tokens go another way" in words(again, "caption")
    assert len(effect["outputs"]["top5"]["after"]) == 5
    # Another edit is another detour.
    other = draw(api, monkeypatch, run="mixtral", sample=1, controls="ban:1.5")
    assert "Nobody has run this yet" in words(other, "caption")


def test_an_expert_banned_for_all_texts_and_found_from_the_jobs(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.frontend.views.jobs.panel import result_links

    page = draw(api, monkeypatch, run="mixtral", sample=2, controls="ban:1.2")
    page.segmented_control(key="detour_over").set_value(4).run()
    page.button(key="detour_start").click().run()
    job = page.query_params["job"]
    done = finished(job[0] if isinstance(job, list) else job)
    assert done["state"] == "succeeded", done["problem"]
    assert done["result"]["runs"][0] == "mixtral", "the run itself is the unchanged one"
    again = draw(api, monkeypatch, run="mixtral", sample=2, controls="ban:1.2", job=done["job"])
    assert not again.error, words(again)
    assert "tokens of 4 texts" in " ".join(one.value for one in again.subheader)
    assert "is no sweep over modules" not in words(again, "info")
    (first, to), (second, flow), _ = result_links(done)
    assert (first, to.view, to.run, to.controls) == ("Open in Change a route", "change", "mixtral", ("ban:1.2",))
    assert to.job == done["job"]
    assert (second, flow.run) == ("Open the edited run", done["result"]["run"])


def test_single_tokens_are_forced_elsewhere(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = draw(api, monkeypatch, run="mixtral", sample=1, token=0, through="0.5", controls="force:0.3.0+2")
    assert not page.error, words(page)
    assert not words(page, "warning")
    assert "Send token 0 there at step 0" in buttons(page)
    assert page.segmented_control(key="detour_over").options == ["this text"], "positions are those of one text"
    page.button(key="detour_start").click().run()
    job = page.query_params["job"]
    done = finished(job[0] if isinstance(job, list) else job)
    assert done["state"] == "succeeded", done["problem"]
    from tokenpaths.frontend.page import widgets

    tokens = widgets.client().ask(done["result"]["run"], "samples/{sample}", sample=0)["tokens"]
    assert [3 in tokens[place]["ribbon"][0] for place in (0, 2)] == [True, True]
    again = draw(api, monkeypatch, run="mixtral", sample=1, controls="force:0.3.0+2")
    assert "tokens 0, 2 forced to module 3 (expert 3) at step 0" in words(again, "subheader")


def test_a_small_model_is_edited_while_one_waits(live: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tokenpaths.frontend.page import widgets

    page = draw(live, monkeypatch, run="mixtral", sample=1, controls="ban:0.5")
    assert not page.error, words(page)
    assert "With module 5 (expert 5) banned at step 0:" in words(page, "subheader")
    assert {"Before", "After", "What would come next?"} <= {one.value for one in page.subheader}
    assert not any(button.key == "detour_start" for button in page.button)
    runs = {card["run"]: card for card in widgets.client().runs() if card["split"] == "detour"}
    assert {card["model"] for card in runs.values()} == {"tiny-mixtral.v1"}
    page.segmented_control(key="detour_over").set_value(4).run()
    page.button(key="detour_start").click().run()
    job = page.query_params["job"]
    assert finished(job[0] if isinstance(job, list) else job)["state"] == "succeeded"
    nothing = draw(live, monkeypatch, run="mixtral", sample=1)
    assert "Nothing is edited yet" in words(nothing, "info")


def test_a_checkpoint_is_tried(live: str, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = draw(live, monkeypatch, view="home", model="hf:tiny-mixtral.v1")
    assert not page.error, words(page)
    (texts,) = [box for box in page.selectbox if box.label == "Model for texts"]
    assert texts.value == "hf:tiny-mixtral.v1"
    assert any(option.startswith("hf:tiny-mixtral.v1") for option in texts.options)
    page.text_area(key="try_text").set_value("Some words of mine.")
    next(button for button in page.button if button.label == "Trace it").click().run()
    assert not page.error, words(page)
    run = page.query_params["run"]
    assert str(run[0] if isinstance(run, list) else run).startswith("try-tiny-mixtral-v1-")
    large = draw(api, monkeypatch, view="home", model="hf:tiny-mixtral.v1")
    assert "is too large to be run while you wait; trace a file with it as a job" in words(large, "info")
    assert not any(button.label == "Trace it" for button in large.button), "the only models are large"


def test_a_ban_from_the_inspector_of_a_module(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    page = draw(api, monkeypatch, view="modules", run="mixtral", inspect="module:1.3")
    page.button(key="inspector_inspect_Ban").click().run()
    assert page.query_params["view"] in ("change", ["change"])
    assert page.query_params["controls"] in ("ban:1.3", ["ban:1.3"])
    assert not page.error, words(page)
    assert "Nobody has run this yet" in words(page, "caption")


def test_a_job_is_found_again_by_what_it_was_asked_for() -> None:
    from tokenpaths.frontend.views.detour.detour_job import job_of

    edits = [{"edit": "ban", "modules": [5], "step": 0}, {"edit": "ban", "modules": [2], "step": 0}]
    asked = {
        "model": "hf:m",
        "run": "r",
        "controls": {"edits": [{"edit": "ban", "modules": [2, 5], "step": 0, "tokens": None, "path": None}]},
    }

    def job(state: str = "succeeded", runs: tuple[str, ...] = ("b", "a"), **changes: object) -> dict:
        return {"job": state, "state": state, "request": asked | changes, "result": {"runs": runs}}

    def found(*jobs: dict, named: dict | None = None, run: str = "r", most: int = 1, edits: list = edits) -> object:
        return job_of(named, jobs, "hf:m", run, edits, 3, most)

    one, many = job(sample=3), job(limit=32, sample=None)
    assert found(many, one) is one
    assert found(many, one, most=32) is many
    assert found(many, one, most=64) is None
    assert found(job(sample=4), job("failed", sample=3), job("cancelled", sample=3)) is None
    assert found(one, named=many) is many, "an address that names a job shows it, whatever size is chosen"
    assert found(named=job("failed", sample=3)) is not None, "and says why it failed"
    assert found(one, named=job(sample=4)) is one
    assert found(one, edits=edits[:1]) is None
    others = job(sample=3, model="hf:other"), job(sample=3, run="s"), job(sample=3, controls={"ban_share": 0.5})
    assert found(*others) is None
    assert found(many, run="b", most=32) is many, "the run beside which it stands"
    assert found(many, run="b") is None
