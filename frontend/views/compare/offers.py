"""What can be started from Compare: a trace of the untrained twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.several_runs.run_labels import MOST_CHARACTERS, without_middle
from tokenpaths.frontend.page import address, at_click, widgets
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.jobs import panel

BUNDLED = ("scenes", "photos", "texts", "digits", "languages")


@address.unless_embedded
def offer_twin(run: Mapping[str, Any] | None, cards: Sequence[Mapping[str, Any]]) -> None:
    """A button that traces the untrained model over the same data, if that is possible here."""
    if run is None or run["dataset"] not in BUNDLED or common.is_untrained(run):
        return
    twin = {"model": f"{run['model']}-untrained"} | {name: run[name] for name in ("dataset", "num_samples")}
    if any(twin.items() <= card.items() for card in cards):
        return
    run = widgets.client().ask(run["run"], "")
    try:
        models = [row["model"] for row in widgets.client().models()]
    except ApiError:  # without a worker nothing can be traced
        return
    if common.model_name(run) not in models:
        return
    panel.refusal()
    at_click.button(
        f"Trace the untrained twin of {widgets.escape(without_middle(run['run'], MOST_CHARACTERS))}",
        lambda: _trace_twin(common.model_name(run), run),
        icon=":material/casino:",
        key="trace_twin",
        help="The same architecture with fresh weights over the same samples, as a run of its own to compare with. A "
        "job of seconds to minutes.",
    )


def _trace_twin(model: str, run: Mapping[str, Any]) -> None:
    """Queue the trace; a limit draws as many samples as the run has, and the same ones."""
    request = {"model": model, "data": f"bundled:{run['dataset']}", "limit": run["num_samples"]}
    request |= {"untrained": True, "twin": False, "run": f"{run['run'][:53]}-untrained"}
    job = panel.submit("trace", request)
    if job is not None:
        address.go_changed(view="jobs", job=job)
