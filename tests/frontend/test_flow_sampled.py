"""A filter on a large run: the page shows what a sample says first, then what was counted."""

from __future__ import annotations

import pytest

from tests.frontend.test_pages import api  # noqa: F401 (fixtures)


def asked_by(monkeypatch: pytest.MonkeyPatch, *, exact: bool = False) -> list[dict]:
    """The questions about flows that the page asks from now on, in their order; a sample is ``exact`` if it is all."""
    from tokenpaths.frontend.api.client import Client

    asked, ask = [], Client.ask

    def noted(self, run, question, **arguments):
        if question == "flow":
            asked.append(dict(arguments))
        answer = ask(self, run, question, **arguments)
        if "sampled" in arguments:  # of so small a run it says that it is
            assert answer["counted"]["exact"]
            bars = {"low": 0.0, "high": 1.0}
            links = [link | bars for link in answer["links"]]
            answer = {**answer, "links": links, "counted": {**answer["counted"], "exact": exact}}
        return answer

    monkeypatch.setattr(Client, "ask", noted)
    return asked


@pytest.mark.parametrize("filters", [{"through": "1.0"}, {"paths": "1,2"}])
def test_a_filter_on_a_large_run_is_asked_twice(show, monkeypatch, filters):
    from tokenpaths.frontend.views.routes import routes

    monkeypatch.setattr(routes, "SAMPLED_FROM", 1)
    asked = asked_by(monkeypatch)
    page = show(view="routes", run="pictures", **filters)
    assert [query.pop("sampled", False) for query in asked] == [True, False]
    assert asked[0] == asked[1]
    shown = [caption.value for caption in page.caption]
    assert not any("Estimated" in text for text in shown)  # the exact answer took its place
    assert sum("to keep only its tokens" in text for text in shown) == 1


def test_what_a_sample_counts_exactly_is_asked_once(show, monkeypatch):
    from tokenpaths.frontend.views.routes import routes

    monkeypatch.setattr(routes, "SAMPLED_FROM", 1)
    asked = asked_by(monkeypatch, exact=True)
    page = show(view="routes", run="pictures", paths="1,2")
    assert [query["sampled"] for query in asked] == [True]
    shown = [caption.value for caption in page.caption]
    assert sum("to keep only its tokens" in text for text in shown) == 1


@pytest.mark.parametrize("query", [{}, {"label": "circle"}])
def test_what_is_sealed_is_asked_once(show, monkeypatch, query):
    from tokenpaths.frontend.views.routes import routes

    monkeypatch.setattr(routes, "SAMPLED_FROM", 1)
    asked = asked_by(monkeypatch)
    show(view="routes", run="pictures", **query)
    assert [query.get("sampled", False) for query in asked] == [False]


def test_the_words_give_the_widest_error_bar_by_hand():
    from tokenpaths.frontend.views.routes.routes import sampled_words

    flow = {
        "counted": {"num_tokens": 52_310, "of_tokens": 1_000_123, "exact": False},
        "links": [{"low": 0.10, "high": 0.102}, {"low": 0.5, "high": 0.508}],
    }
    assert sampled_words({"num_tokens": 100_000_000}, flow) == (
        "Estimated from 52,310 tokens of a sample of 1,000,123: the share of a ribbon is right within ± 0.40 "
        "percentage points (95 %). Now counting all 100,000,000 tokens …"
    )
