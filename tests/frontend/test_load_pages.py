"""Runs of counts on the page: Modules shows their load, other views say why they are empty; over a real API."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import api_for
from tests.support.runs import make_run
from tests.support.runs.counted import make_load_run
from tokenpaths.engine.adapters.expert_runs import Series


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    data_dir = tmp_path_factory.mktemp("counted")
    make_load_run(data_dir / "runs", "timed")
    make_load_run(data_dir / "runs", "domains", seed=1, domains=True, top_k=None)
    make_run(data_dir / "runs", "tokens", samples=2, twin=False)
    for at in (10, 20):
        make_load_run(data_dir / "runs", f"counts-{at}", seed=at, series=Series("counted", at))
    with api_for(data_dir) as served:
        yield str(served.client.base_url).rstrip("/")


def words(page: AppTest) -> str:
    kinds = ("error", "warning", "info", "markdown", "caption", "header", "subheader")
    return " ".join(element.value for kind in kinds for element in page.get(kind)).replace("\\", "")


def test_modules_shows_load_over_time(show) -> None:
    page = show(view="modules", run="timed", layer=1)
    assert not page.error
    said = words(page)
    assert "How does the load change?" in said
    assert "Expert 0 rose most: from" in said
    assert "(iteration 0)" in said
    assert "(iteration 110)" in said
    assert "How does the balance of each layer change?" in said
    assert "at iteration 110" in said or "(iteration 110)" in said
    assert "Which domains load which experts?" not in said


def test_modules_shows_domains(show) -> None:
    page = show(view="modules", run="domains")
    assert not page.error
    said = words(page)
    assert "No time is known: its counts are sums over the whole time." in said
    assert "Which domains load which experts?" in said
    assert "is least like all tokens" in said
    assert not show(view="modules", run="domains", label="code").error


@pytest.mark.parametrize("view", ["paths", "samples", "work", "family", "change", "importance", "dream"])
def test_other_views_say_why_they_are_empty(show, view: str) -> None:
    page = show(view=view, run="timed")
    assert not page.error
    assert "made of counts of tokens by expert, not of what each token chose" in words(page)


def test_routes_lead_to_modules_and_are_not_offered(show) -> None:
    page = show(view="routes", run="timed")
    assert "How does the load change?" in words(page)
    (views,) = [group for group in page.get("button_group") if "Modules" in str(group.proto)]
    assert [option.content for option in views.proto.options] == ["Paths", "Samples", "Modules"]


def test_a_module_is_inspected_by_its_counts(show) -> None:
    page = show(view="modules", run="domains", inspect="module:1.0")
    assert not page.error
    assert "of the choices" in words(page)


def test_home_shows_what_is_being_received(show, api: str) -> None:
    import tokenpaths
    from tests.engine.adapters.logs.engine_logs import vllm_chat

    tokenpaths.send([vllm_chat(0), vllm_chat(1)], run="live", url=api)
    page = show()
    assert not page.error
    assert "2 responses" in words(page)
    assert "times a fair share" in words(page)
    next(button for button in page.button if button.label == "Make a run").click().run()
    assert not page.error
    assert "; it is being sealed" in words(page)


def test_a_training_of_counts_shows_its_loads(show) -> None:
    page = show(view="compare", runs="counts-10", part="training")
    assert not page.error, words(page)
    said = words(page)
    assert "2 checkpoints of counted, iterations 10 to 20" in said
    assert "Do modules keep their load?" in said
    shown = page.selectbox(key="in_number")
    assert shown.value == "effective_top_k"
    assert "different paths" not in shown.options


def test_home_and_compare_know_them(show) -> None:
    home = show()
    assert not home.error
    assert "Counts only: the load of 3 layers × 8 experts" in words(home)
    page = show(view="compare", runs="timed,domains", part="numbers")
    assert not page.error
    assert "Runs of counts have no samples to compare" in words(page)
    assert "Equal tokens" not in words(page)
    assert "– samples" not in words(page)
    page = show(view="compare", runs="timed,domains", part="routes")
    assert not page.error
    assert "Their loads part most at step" in words(page)
