"""Importance view: what breaks when a module is banned, measured by sweeps over all modules."""

from __future__ import annotations

from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour import sweep
from tokenpaths.frontend.views.samples import retrace


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    if common.without_model(run):
        common.run_row(run)
        sweep.heading(run)
        common.say_no_model()
        return
    common.run_and_label(run, selection, label=False)
    sweep.heading(run)
    model = retrace.model_of(run)
    if model is None:
        return
    kinds = list((model.get("controls") or {}).get("edits") or ())
    if "ban" not in kinds:
        sentence = f"Modules of the model {run['model']} cannot be banned, so their importance cannot be measured."
        widgets.empty(widgets.escape(sentence), "Choose a run of another model.")
        return
    sweep.draw(run, selection, model)
