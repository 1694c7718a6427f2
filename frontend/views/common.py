"""Helpers shared by the views: run and label pickers, facts about a run, and the selection as a query of ``/flow``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import NotFound, Refused
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.layout import least_share
from tokenpaths.frontend.charts.load_over_time import is_load_only
from tokenpaths.frontend.page import address, find, widgets
from tokenpaths.frontend.page.commands import command
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views.export import export_popover
from tokenpaths.frontend.views.jobs import making
from tokenpaths.frontend.views.modules import load_only
from tokenpaths.frontend.views.run_names import run_titles

TRIED = "try"
"""split of a run of one sample made on *Home* or ``POST /traces``; listed separately"""
DETOUR = "detour"
"""split of a run of one sample that *Change a route* made for comparison, with or without edits"""
BEING_READ = "being_read"
"""status of a run that the API is taking in, or opening for its first card; asking it would block"""
UNTRAINED = "-untrained"
"""suffix of the model names of untrained twins"""
MOST_ALIKE = 5
"""groups of labels that look alike, and labels of one, that are named"""
MOST_NOTES, MOST_NOTE_CHARACTERS = 100, 2000
"""notes of a run that are shown, and their length: a run from elsewhere can hold any number"""
MANY_MODULES = 48
"""if steps have more modules of their own than this, small ones are merged by default"""
DRAWN_MODULES = 12
"""number of modules of each step that are not merged"""
NEEDS_TOKENS = {
    "routes": "routes",
    "paths": "paths",
    "samples": "samples",
    "work": "tokens whose work could be told",
    "family": "decisions of single tokens",
    "change": "tokens to send another way",
    "importance": "tokens to measure importance by",
    "dream": "paths to dream of",
}
"""views that a run of counts cannot fill, and what is missing"""
TWIN_COLUMNS = {"params": "parameters", "loss": "loss (nats)", "perplexity": "perplexity", "accuracy": "accuracy"}


def readable_runs() -> list[dict[str, Any]]:
    """Cards of all runs that can be opened, data sets before single tries."""
    cards = [card for card in widgets.client().runs() if card["status"] == "sealed"]
    return sorted(cards, key=is_try)


def being_taken_in(cards: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Cards of the runs that are being taken in."""
    return [card for card in cards if card["status"] == BEING_READ]


def of_huggingface(run: Mapping[str, Any]) -> bool:
    """Whether a run was traced from a Hugging Face checkpoint (``hf:…``)."""
    return "huggingface" in (run.get("config") or {})


def editable(run: Mapping[str, Any]) -> bool:
    """Whether routes of the run's model can be edited, as far as the run tells."""
    return run.get("family") == "dna" or of_huggingface(run)


def model_name(run: Mapping[str, Any]) -> str:
    """The name by which the API runs the run's model again; a folder's name does not include the owner on the hub.

    >>> model_name({"model": "allenai/OLMoE-1B-7B-0924", "config": {"huggingface": {}}})
    'hf:OLMoE-1B-7B-0924'
    >>> model_name({"model": "dna-vision-top1"})
    'dna-vision-top1'
    """
    name = str(run["model"])
    return "hf:" + name.rsplit("/", 1)[-1] if of_huggingface(run) else name


def without_model(run: Mapping[str, Any]) -> bool:
    """Whether a run was imported from a log and no model of its name is here."""
    if "import" not in (run.get("config") or {}):
        return False
    try:
        widgets.client().model(model_name(run))
    except NotFound:
        return True
    return False


def say_no_model() -> None:
    """Say it of a run that is ``without_model``."""
    widgets.empty(
        "This run was imported from a log: there is no model here that could be changed, measured or dreamed with.",
        "*Explore* shows all that the log holds. To experiment, choose a run of a model that is here.",
    )


def is_try(card: Mapping[str, Any]) -> bool:
    """Whether a run is a single try rather than a data set (which may also have a single sample)."""
    return card.get("split") in (TRIED, DETOUR)


def chosen_run(selection: Selection) -> dict[str, Any] | None:
    """Details of the run in the URL; without one, draws a picker with a message and returns None."""
    cards = readable_runs()
    if not cards and selection.run is None and being_taken_in(widgets.client().runs()):
        widgets.empty(
            "The runs are being read: those that came from elsewhere are checked first.", "*Home* says how far."
        )
        return None
    if not cards and selection.run is None:
        widgets.empty(
            "There is no run yet.",
            f"Trace a model with `{command('tokenpaths trace --model … --data …')}`, or try a shipped model on *Home*.",
        )
        return None
    names = [card["run"] for card in cards]
    if selection.run is not None and selection.run not in names:
        names = [selection.run, *names]
    if selection.run is None:
        address.redirect(run=names[0])
    try:
        run = widgets.client().ask(str(selection.run), "")
    except NotFound:
        if selection.run in {card["run"] for card in widgets.client().runs()}:
            raise
        _choose_another(str(selection.run), cards)
        return None
    if is_load_only(run) and selection.view in NEEDS_TOKENS:
        if selection.view == "routes":  # where a link to a run leads that says no more
            address.redirect(view="modules")
        run_row(run)
        load_only.says_why(run, NEEDS_TOKENS[selection.view])
        return None
    return run


def run_row(run: Mapping[str, Any]) -> Any:
    """A row that begins with the picker of another run and ends with the menu of exports; a view adds its own between:
    ``with run_row(run): …``. Drawn in the order in which it is seen, which is that of the tab key.
    """
    with widgets.controls():
        row = st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="controls_of_view")
        if not address.embedded():
            with row:
                _pick_run(run["run"], readable_runs())
            export_popover(run)
    return row


def _pick_run(now: str, cards: Sequence[Mapping[str, Any]]) -> None:
    titles = run_titles(cards)
    names = [*titles] if now in titles else [now, *titles]
    title = {now: now, **titles}.__getitem__
    address.bound(st.selectbox, "run", "Run", now, names, label_visibility="collapsed", format_func=title)


def _choose_another(gone: str, cards: Sequence[Mapping[str, Any]]) -> None:
    """Say that the run of the address is not here, under a picker of those that are."""
    if not cards or address.embedded():
        making.not_here(gone)
        return
    with widgets.controls():
        _pick_run(gone, cards)
    making.not_here(gone, " Choose another one above.")


def label_picker(run: Mapping[str, Any], selection: Selection) -> None:
    """Picker of one label of the data set, or all; a run without labels shows a note."""
    labels = [row["label"] for row in run["labels"] if row["label"] is not None]
    if not labels:
        st.selectbox("Label", ["this run has no labels"], disabled=True, label_visibility="collapsed")
        return
    options = ["", *labels] + ([selection.label] if selection.label not in (None, *labels) else [])
    address.bound(
        st.selectbox,
        "label",
        "Label",
        selection.label or "",
        options,
        format_func=lambda label: label or "all labels",
        read=lambda label: label or None,
        label_visibility="collapsed",
    )
    if run.get("look_alikes"):
        address.bound(
            st.toggle,
            "labels",
            "Look-alikes as one",
            selection.labels == "merged",
            read=lambda on: "merged" if on else None,
            help=widgets.escape(alike_sentence(run)) + " On: each group counts as its first. Stored labels stay.",
        )


def alike_sentence(run: Mapping[str, Any]) -> str:
    """Groups of labels that look alike, each label with its number of samples."""
    groups = [
        ", ".join(f"“{row['label']}” ({row['num_samples']:,})" for row in group[:MOST_ALIKE])
        + (f" and {len(group) - MOST_ALIKE} more" if len(group) > MOST_ALIKE else "")
        for group in run["look_alikes"]
    ]
    more = f"; and {len(groups) - MOST_ALIKE} more groups" if len(groups) > MOST_ALIKE else ""
    what = "1 group of labels differs" if len(groups) == 1 else f"{len(groups)} groups of labels differ"
    return f"{what} in case, blanks or invisible characters only: {'; '.join(groups[:MOST_ALIKE])}{more}."


def identities(run: Mapping[str, Any]) -> frozenset[int]:
    """Ids of identity modules: visiting one skips the step."""
    return frozenset(int(module["module"]) for module in run["modules"] if module["kind"] == "identity")


def not_independent(run: Mapping[str, Any]) -> str:
    """Note for intervals that the samples of a run are not independent; empty if that is unknown."""
    if not run.get("samples_are"):
        return ""
    return (
        f"The samples are {run['samples_are']}, which overlap; intervals and shuffles take them as independent, so "
        "they are surer than they should be."
    )


def note_not_independent(run: Mapping[str, Any]) -> None:
    """``not_independent`` as a caption, if there is one."""
    if words := not_independent(run):
        st.caption(widgets.escape(words))


def is_untrained(run: Mapping[str, Any]) -> bool:
    """Whether a run was traced from an untrained twin."""
    return str(run["model"]).endswith(UNTRAINED)


def own_modules(run: Mapping[str, Any]) -> bool:
    """Whether each step has its own modules (a mixture of experts), so that equal ids at two steps are unrelated."""
    return any(module["step"] is not None for module in run["modules"])


def all_differ(run: Mapping[str, Any]) -> bool:
    """Whether nearly every token has its own path, so that path ranks and CDFs are meaningless ties."""
    return int(run["num_steps"]) > 1 and int(run["num_paths"]) > max(100, 0.9 * int(run["num_tokens"]))


def weights_known(run: Mapping[str, Any]) -> bool:
    """Whether a run has recorded weights; a log with ids only is stored with 1/K for each."""
    return bool(run["weight_semantics"].get("weights_recorded", True))


def merging(run: Mapping[str, Any], selection: Selection) -> dict[str, Any]:
    """Which modules a flow chart merges into “other”, as a query of ``/flow``."""
    if selection.merge is not None:
        return {"merge_share": selection.merge / 100}
    many = int(run["num_modules"]) > MANY_MODULES and own_modules(run)
    return {"most_modules": DRAWN_MODULES} if many else {}


def step_range(run: Mapping[str, Any], selection: Selection) -> tuple[int, int]:
    """The selected steps (half-open), clipped to those of the run."""
    last = int(run["num_steps"])
    if selection.steps is None or selection.steps[0] >= last:
        return 0, last
    return selection.steps[0], min(selection.steps[1], last)


def say_nothing_here(error: Refused, todo: str) -> None:
    """Show what the API refused as what a run does not hold, which is no fault; ``todo`` unless it says itself."""
    widgets.empty(widgets.escape(as_sentence(str(error))), error.todo or todo)


def say_steps_left_out(run: Mapping[str, Any], selection: Selection) -> None:
    """Say it where the selected steps are not all among those of the run, as after another run was chosen."""
    if selection.steps is None or selection.steps == step_range(run, selection):
        return
    last, (first, end) = int(run["num_steps"]), selection.steps
    some = f"some of the chosen {first}–{end - 1}: those are shown"
    none = f"none of the chosen {first}–{end - 1}: all are shown"
    st.info(f"This run has steps 0–{last - 1}, {some if first < last else none}.", icon=":material/info:")


def least_drawn(selection: Selection, *flows: Mapping[str, Any]) -> float:
    """The share of the tokens below which ribbons are hidden, one for all ``flows``: as selected, or automatic."""
    return least_share(*flows) if selection.hide is None else selection.hide / 100


def flow_question(run: Mapping[str, Any], selection: Selection, *, limit: int) -> dict[str, Any]:
    """The filters of the selection as a query of ``/flow``."""
    first, end = step_range(run, selection)
    whole = (first, end) == (0, int(run["num_steps"]))
    return {
        "steps": None if whole else f"{first}:{end}",
        "label": selection.label,
        "through": selection.through,
        "paths": selection.paths,
        "limit": limit,
        **merging(run, selection),
    }


def inspected_module(selection: Selection) -> str | None:
    """``step.module`` of the module in the inspector."""
    return (selection.inspect or "").partition("module:")[2] or None


def passes(token: Mapping[str, Any], selection: Selection) -> bool:
    """Whether a token visits all modules of the filter."""
    ribbon = token["ribbon"]
    for node in selection.through:
        step, module = (int(part) for part in node.split("."))
        if step >= len(ribbon) or module not in ribbon[step]:
            return False
    return True


def as_sentence(reason: str) -> str:
    """A reason of the API as a sentence of its own; its names and signs keep their case.

    >>> as_sentence("these tokens lie in one sample, so Δ has no interval")
    'These tokens lie in one sample, so Δ has no interval.'
    """
    return widgets.with_full_stop(numbers.capital(reason))


def notes(run: Mapping[str, Any]) -> None:
    """Show what was guessed, changed or left out when this run was made, and labels that look alike."""
    assumptions = (run.get("findings") or {}).get("notes")
    assumptions = list(assumptions) if isinstance(assumptions, list) else []
    if run.get("look_alikes"):
        merged = address.current().labels == "merged"
        with st.container(key="look_alikes"):
            st.info(widgets.escape(alike_sentence(run)) + (" They are shown as one." if merged else ""))
            st.button(
                "Show them apart" if merged else "Count them as one",
                on_click=address.go_changed,
                kwargs={"labels": None if merged else "merged"},
                key="merge_labels",
            )
    if assumptions:
        with st.expander(f"Assumptions, changes and omissions: {numbers.plural(len(assumptions), 'note')}"):
            for note in assumptions[:MOST_NOTES]:
                st.write(widgets.escape(widgets.with_full_stop(str(note)[:MOST_NOTE_CHARACTERS])))
            if len(assumptions) > MOST_NOTES:
                st.caption(f"… and {len(assumptions) - MOST_NOTES:,} more.")


def run_and_label(run: Mapping[str, Any], selection: Selection, *, label: bool = True) -> Any:
    """Run, label and search in a row (``run_row``); a view adds its own: ``with run_and_label(…): …``.

    Without ``label`` for a view of all samples, whatever their label.
    """
    row = run_row(run)
    with row:
        if label:
            label_picker(run, selection)
        find.box(run)
    for sentence in artefacts(run):
        st.warning(widgets.escape(f"{sentence} It was imported all the same."), icon=":material/warning:")
    return row


def artefacts(run: Mapping[str, Any]) -> list[str]:
    """What the doctor of imports found in the log of a run that makes its numbers false."""
    found = (run.get("findings") or {}).get("import_doctor")
    rows = found if isinstance(found, list) else []
    return [
        widgets.with_full_stop(str(row.get("sentence", ""))[:MOST_NOTE_CHARACTERS])
        for row in rows[:MOST_NOTES]
        if isinstance(row, Mapping) and row.get("kind") == "artefact"
    ]


def twin_rows(beside: Mapping[str, Mapping[str, Any]], own: str) -> list[dict[str, Any]]:
    """One row per model, this one first; only known numbers."""
    names = sorted(beside, key=lambda name: name != own)
    return [
        {"model": name + (" (this one)" if name == own else "")}
        | {key: beside[name][key] for key in TWIN_COLUMNS if beside[name].get(key) is not None}
        for name in names
    ]


def own_loss_words(run: Mapping[str, Any]) -> str:
    """The loss of the run beside numbers of other texts; empty where it has none."""
    if run.get("loss") is None:
        return ""
    texts = numbers.plural(run["num_samples"], "text")
    return f" The {texts} of this run, from “{run['dataset']}”, have {numbers.number(run['loss'])} nats."


def validation_words(run: Mapping[str, Any]) -> str:
    """Which texts the numbers of a checkpoint's validation are of."""
    count = (run["findings"].get("validation") or {}).get("count")
    of = f" ({numbers.plural(count, 'prediction')})" if count else ""
    return f"Of all validation texts of the checkpoint{of}.{own_loss_words(run)}"


def twin_table(run: Mapping[str, Any]) -> None:
    """The table with its heading; nothing if nothing was measured."""
    beside = (run["findings"].get("validation") or {}).get("beside")
    if not beside:
        return
    st.header(
        "How good is it beside its twins?",
        anchor=False,
        help="Models trained by the same recipe on the same batches, measured on the same held-out texts. Loss: mean "
        "cross-entropy of the next token. Perplexity = exp(loss). Accuracy: share of next tokens guessed right.",
    )
    written = {
        "params": numbers.count,
        "loss": "{:.3f}".format,
        "perplexity": "{:.1f}".format,
        "accuracy": numbers.percent,
    }
    plain_table(
        twin_rows(beside, str(run["model"])),
        "The model beside its twins",
        {name: Column(TWIN_COLUMNS[name], write) for name, write in written.items()},
    )
    st.caption(widgets.escape(validation_words(run)))
