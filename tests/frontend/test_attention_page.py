"""To whom a token attends: asked for in the inspector, made by a job of a real worker, told for every token."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from streamlit.testing.v1 import AppTest

from tests.frontend.test_detour_page import detour_api
from tests.frontend.test_family_pages import headers
from tests.frontend.test_gate_worth_page import finished
from tests.support.pages import showing
from tokenpaths.frontend.charts.families.attention import attention_chart


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with detour_api(tmp_path_factory.mktemp("attention")) as url:
        yield url


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    with showing(api, monkeypatch, timeout=200, view="samples") as draw:
        yield draw


def tables(page: AppTest) -> str:
    return " ".join(str(one.proto.body) for one in page.get("html"))


@pytest.mark.parametrize(("run", "is_image"), [("pictures", True), ("texts", False)])
def test_one_job_answers_for_all_tokens_of_a_sample(show, run: str, is_image: bool) -> None:
    from tokenpaths.frontend.page import widgets

    page = show(run=run, sample=1, inspect="token:1.3")
    assert not page.error
    assert "To whom does it attend?" in headers(page)
    page.button(key="inspector_inspect_attention").click().run()
    assert not page.error
    (job,) = [one for one in widgets.client().jobs(kind="attention")["jobs"] if one["request"]["run"] == run]
    assert finished(job["job"])["result"]["num_tokens"] > 4
    for token in (3, 4):
        page = show(run=run, sample=1, inspect=f"token:1.{token}")
        assert not page.error
        assert "inspector_inspect_attention" not in [one.key for one in page.button]
        if is_image:
            page.session_state[f"attention_{token}"] = True
            page.run()
        assert "attended by" in tables(page)
        assert "itself" in tables(page)
    assert len(widgets.client().jobs(kind="attention")["jobs"]) <= 2, "once for a sample"


def test_the_grids_have_the_share_of_each_patch() -> None:
    tokens = [{"token": place, "row": place // 3, "col": place % 3} for place in range(6)]
    chart = attention_chart([{0: 0.5, 5: 0.25}, {2: 1.0}], tokens, 5)
    drawn = json.loads(chart.to_json())
    cells = next(table for table in drawn["datasets"].values() if len(table) == 12)
    assert {(row["step"], row["patch"], row["ink"], row["share"]) for row in cells if row["ink"]} == {
        (0, "r0 c0", 0.5, "50.0 %"),
        (0, "r1 c2", 0.25, "25.0 %"),
        (1, "r0 c2", 1.0, "100 %"),
    }
    assert {row["share"] for row in cells if not row["ink"]} == {"under 1 %"}
    framed = next(table for table in drawn["datasets"].values() if len(table) == 2 and "ink" in table[0])
    assert [row["patch"] for row in framed] == ["r1 c2", "r1 c2"]
