"""What makes charts fast changes none of them: each fast way beside Altair's own."""

from __future__ import annotations

from typing import Any

import altair as alt
import pytest

from tokenpaths.frontend.charts.drawing import theme as frame
from tokenpaths.frontend.charts.drawing.palette import theme_named

ROWS = [{"x": n, "y": n * n, "kind": "even" if n % 2 == 0 else "odd"} for n in range(5)]


def layered() -> alt.LayerChart:
    base = alt.Chart(frame.rows(ROWS)).encode(x="x:Q", y="y:Q")
    pick = alt.selection_point(name="pick", fields=["kind"])
    return alt.layer(base.mark_line(), alt.layer(base.mark_point().add_params(pick), base.mark_text())).properties(
        width="container", height=90
    )


def naive_finish(chart: Any, theme: Any, height: int) -> Any:
    """``frame.finish`` in Altair's own words, on the same settings."""
    config = frame.finish(layered(), theme, None).to_dict()["config"]
    sized = chart.properties(
        width="container",
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        padding=frame.PADDING,
    )
    return (
        sized.configure(background=config["background"], font=config["font"])
        .configure_view(**{"stroke": None, **config["view"]})
        .configure_axis(**config["axis"])
        .configure_legend(**config["legend"])
    )


@pytest.mark.parametrize("title", [None, "What is it?"])
def test_a_changed_copy_is_the_chart_that_altair_would_make(title: str | None) -> None:
    look = theme_named("dark")
    given = layered()
    before = given.to_dict()
    fast = frame.as_vectors(frame.finish(given, look, title, ["One line."], height=70), 10)
    slow = naive_finish(layered().properties(description=" ".join(filter(None, [title, "One line."]))), look, 70)
    if title is not None:
        slow = slow.properties(title=fast.title)
    slow = slow.properties(usermeta={"embedOptions": {"renderer": "svg"}}).configure_mark(aria=True)
    assert fast.to_dict() == slow.to_dict()
    assert fast.to_dict()["config"]["axis"]["labelColor"] == look.muted
    assert given.to_dict() == before, "the chart that was given is as it was"


def test_parts_of_a_configuration_are_kept_when_another_is_set() -> None:
    once = frame.changed(layered(), config={"font": "serif", "mark": alt.MarkConfig(aria=True)})
    twice = frame.changed(once, config={"mark": alt.MarkConfig(aria=False)}, height=40)
    config = twice.to_dict()["config"]
    assert (config["font"], config["mark"]) == ("serif", {"aria": False})
    assert once.to_dict()["config"]["mark"] == {"aria": True}
    assert (once.to_dict()["height"], twice.to_dict()["height"]) == (90, 40)


def test_a_chart_that_is_not_validated_is_the_same_one() -> None:
    whole = layered().to_dict()
    assert frame.unvalidated(layered()).to_dict() == whole
    wrong = alt.Chart(frame.rows([])).mark_bar().encode(x="x:Q")
    wrong = frame.changed(wrong, height="tall")
    with pytest.raises(alt.utils.schemapi.SchemaValidationError):
        wrong.to_dict()
    assert frame.unvalidated(wrong).to_dict()["height"] == "tall"
