"""A sample traced again under changed controls: widgets from the model's JSON Schema, and the comparison.

Changed controls are in the URL as ``controls=name:value,…``. Each retrace makes a run of one sample; only the last one
is kept, unless it is opened.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import isolated, tamed
from tokenpaths.frontend.charts.effects import loss_rows, token_loss_chart
from tokenpaths.frontend.page import address, at_click, repeats, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common

LISTED = 200
KEPT = "retraced"
"""session state: the last retrace (``repeats``)"""
AS_TRAINED = "as trained"


@dataclass(frozen=True)
class Control:
    """A control with its values in order; None keeps the trained value."""

    name: str
    words: str
    help: str
    values: tuple[Any, ...]
    trained: Any = None
    """the trained value, if there is one"""
    named: Mapping[Any, str] = field(default_factory=dict)
    """display names of some values"""

    def read(self, text: str) -> Any:
        """The value of ``text`` from a URL; None if it is invalid."""
        return next((value for value in self.values if value is not None and as_text(value) == text), None)

    def say(self, text: str) -> str:
        """Display text of a value from a URL."""
        value = self.read(text)
        if value is None:
            return self.named.get(None, AS_TRAINED)
        words = self.named.get(value, as_text(value))
        return f"{words} (as trained)" if value == self.trained else words


def as_text(value: Any) -> str:
    """A value in the URL's form; empty for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def control(
    name: str,
    schema: Mapping[str, Any],
    *,
    trained: Any = None,
    limit: int | None = None,
    words: str = "",
    named: Mapping[Any, str] | None = None,
) -> Control | None:
    """A control from one property of a JSON Schema; None for what is neither a bounded number nor a choice.

    Args:
        limit: Largest whole number where the schema gives none.
        named: Words for values; of a number between bounds only these values are offered, if there are any.
    """
    parts = [part for part in schema.get("anyOf", [schema]) if part.get("type") != "null"]
    part, named = (parts[0] if parts else {}), dict(named or {})
    low, high = part.get("minimum"), part.get("maximum", limit)
    values: list[Any]
    if part.get("enum"):
        values = list(part["enum"])
    elif part.get("type") == "integer" and high is not None:
        values = list(range(int(low or 0), min(int(high), int(low or 0) + 255) + 1))
    elif part.get("type") == "number" and low is not None and high is not None:
        presets = [value for value in named if value is not None and low <= value <= high]
        values = presets or steps(float(low), float(high))
    else:
        return None
    if trained is not None and trained not in values:
        values = sorted([*values, trained])
    text = str(schema.get("description") or "")
    offered = tuple(values) if trained is not None else (None, *values)
    return Control(name, words or name.replace("_", " "), text, offered, trained, named)


def steps(low: float, high: float) -> list[float]:
    """Slider values: 1, 2, 5 per decade if the bounds are far apart, else twenty even ones."""
    if low > 0 and high / low >= 50:
        values, size = [], 1e-9
        while size <= high * 1.0001:
            values += [
                round(size * digit, 12) for digit in (1, 2, 5) if low <= size * digit * 1.0000001 <= high * 1.0001
            ]
            size *= 10
        return values
    return [round(low + (high - low) * place / 20, 6) for place in range(21)]


def changes(selection: Selection, controls: Sequence[Control]) -> dict[str, Any]:
    """The valid controls in the URL, in the API's form."""
    by_name = {item.name: item for item in controls}
    values = {}
    for text in selection.controls:
        name, _, value = text.partition(":")
        if name in by_name and (read := by_name[name].read(value)) is not None and read != by_name[name].trained:
            values[name] = read
    return values


def not_understood(selection: Selection, controls: Sequence[Control]) -> list[str]:
    """The invalid controls in the URL, which ``changes`` ignores."""
    by_name = {item.name: item for item in controls}
    parts = [(text, *text.partition(":")[::2]) for text in selection.controls]
    return [text for text, name, value in parts if name not in by_name or by_name[name].read(value) is None]


def changed(selection: Selection, name: str, value: Any, trained: Any = None) -> tuple[str, ...]:
    """The URL's controls with one set to another value."""
    others = tuple(text for text in selection.controls if text.partition(":")[0] != name)
    return others if value is None or value == trained else (*others, f"{name}:{as_text(value)}")


def _read_control(control: Control, text: str | None) -> tuple[str, ...]:
    """The URL's controls updated from a widget."""
    return changed(address.current(), control.name, control.read(text or ""), control.trained)


@address.unless_embedded
def control_widgets(controls: Sequence[Control], values: Mapping[str, Any], *, disabled: Sequence[str] = ()) -> None:
    """Widgets bound to the URL: sliders for ordered values with a trained one, buttons for a few values, else a list.
    Also shows controls in the URL that no widget covers.
    """
    for text in not_understood(address.current(), controls):
        message = f"The address says {text[:60]!r}, which changes nothing here; it was left out."
        st.warning(widgets.escape(message), icon=":material/link_off:")
    for item in controls:
        options = [as_text(value) for value in item.values]
        buttons = item.trained is None and len(options) <= 4
        widget: Any = st.segmented_control if buttons else st.selectbox
        if item.trained is not None:
            widget = st.select_slider
        address.bound(
            widget,
            "controls",
            item.words,
            as_text(values.get(item.name, item.trained)),
            options,
            part=f"_{item.name}",
            format_func=item.say,
            help=widgets.escape(item.help) or None,
            disabled=item.name in disabled,
            read=partial(_read_control, item),
            **({"required": False} if buttons else {}),  # let go of, it is as the model has it
        )


@address.unless_embedded
def again(
    run: Mapping[str, Any], sample: Mapping[str, Any], values: Mapping[str, Any], *, slot: str = KEPT
) -> dict[str, Any] | None:
    """The run of this sample under ``given`` controls; None, with a message on the page, if it cannot be made.

    The last run of each ``slot`` is kept.
    """
    identity = (run["run"], sample["sample"], tuple(sorted((name, as_text(value)) for name, value in values.items())))
    client = widgets.client()
    last: repeats.Asked | None = st.session_state.get(slot)
    if last is not None and last.serves(identity, math.inf):
        try:
            return client.ask(last.answer.result()["run"], "")
        except NotFound:
            st.session_state.pop(slot)
        except ApiError:
            if last.answer.exception() is None:
                raise
    forget(slot)

    def request() -> dict[str, Any]:
        model = common.model_name(run)
        if sample.get("text") is not None:
            return client.trace(model, text=sample["text"], controls=values, purpose="detour")
        file = ("sample.png", client.image(run["run"], sample["sample"]))
        return client.trace(model, image=file, controls=values, purpose="detour")

    try:
        with st.spinner("Running it again …"):
            answer = repeats.once(slot, identity, request, within=math.inf)
    except ApiError as error:
        widgets.show_error(error)
        return None
    made = client.ask(answer["run"], "")
    _compare_weights(run, made)
    return made


def _compare_weights(run: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Say so if the model that runs now has other weights than that of the run."""
    then, now = run.get("checkpoint_sha256"), made.get("checkpoint_sha256")
    if then and now and then != now:
        st.warning(
            f"The weights of {widgets.escape(run['model'])} have changed since this run was made: what follows is of "
            "the weights that are there now.",
            icon=":material/difference:",
        )


def forget(slot: str = KEPT) -> None:
    """Delete the last retrace, so that moving a slider does not accumulate runs; one under way when it has come."""
    last: repeats.Asked | None = st.session_state.pop(slot, None)
    if last is None:
        return
    client = widgets.client()

    def delete(answer: Future[dict[str, Any]]) -> None:
        if answer.exception() is None:
            with suppress(ApiError):  # already deleted by another session
                client.delete(answer.result()["run"])

    last.answer.add_done_callback(delete)


def keep(run: str, *, slot: str = KEPT, view: str = "family") -> None:
    """Open the last retrace as a run of its own, which is then kept."""
    st.session_state.pop(slot, None)
    address.go(Selection(view=view, run=run, sample=0))


def before_and_after(before: Mapping[str, Any], after: Mapping[str, Any], run: str) -> None:
    """Loss (or prediction) of both, the changed tokens, and a button that opens the changed run."""
    with st.container(horizontal=True, gap="large", vertical_alignment="center", key="before_after"):
        if before.get("loss") is not None and after.get("loss") is not None:
            rise = after["loss"] - before["loss"]
            sign = "−" if rise < 0 else "+"
            st.metric("Loss unchanged (nats)", numbers.number(before["loss"]), width="content")
            st.metric(
                "Loss changed (nats)",
                numbers.number(after["loss"]),
                delta=f"{sign}{numbers.number(abs(rise))}".replace("−", "-"),
                delta_color="inverse",
                width="content",
            )
        elif before.get("prediction"):
            for words, sample in (("Prediction unchanged", before), ("Prediction changed", after)):
                prediction = f"{sample.get('prediction')} ({numbers.percent(sample.get('confidence'))})"
                st.metric(words, widgets.escape(prediction), width="content")
        at_click.button("Open the changed run", lambda: keep(run), key="open_changed", icon=":material/open_in_new:")
    table = loss_rows(before.get("tokens") or [], after.get("tokens") or [])
    if not table:
        return
    st.subheader(
        "Which tokens become harder to predict?",
        anchor=False,
        help="Cross-entropy of each token given those before it, in nats: changed minus unchanged.",
    )
    st.caption("One bar: one token of the text. Up: harder to predict than before; down: easier.")
    drawing = token_loss_chart(table, theme=widgets.theme(), title=None)
    widgets.chart(drawing, about=f"sample {before['sample']:,}, changed minus unchanged")
    widgets.numbers_behind(table, "tokens before and after")


def sample_picker(run: Mapping[str, Any], selection: Selection, *, whole: str | None = None) -> int | None:
    """Picker of one sample (of the selected label); None if none is selected.

    Args:
        whole: Label of a first option that selects none.
    """
    answer = widgets.client().ask(run["run"], "samples", most=LISTED, label=selection.label)
    listed = {row["sample"]: row for row in answer["samples"]}
    options: list[int | str] = [*([""] if whole else []), *listed]
    number = selection.sample
    if number is None and not whole:
        number = next(iter(listed), None)
    if number is not None and number not in listed:
        options.insert(1 if whole else 0, number)
    if not options:
        st.selectbox("Sample", ["no sample has this label"], disabled=True)
        return None

    def say(value: int | str) -> str:
        if not isinstance(value, int):
            return whole or ""
        row = listed.get(value, {})
        text = tamed(row.get("snippet") or row.get("source") or "").replace("\n", " ")
        return isolated(" · ".join(part for part in (f"{value:,}", row.get("label") or "", text[:50]) if part))

    total = answer.get("total") or len(listed)
    extent = f"{numbers.plural(total, 'sample')}" + (f"; the first {LISTED} are listed." if total > LISTED else ".")
    address.bound(
        st.selectbox,
        "sample",
        "Sample",
        "" if number is None else number,
        options,
        format_func=say,
        help=extent,
        read=lambda value: value if isinstance(value, int) else None,
    )
    return number


def model_of(run: Mapping[str, Any]) -> dict[str, Any] | None:
    """The API's description of a run's model; None, with a message, if it no longer exists."""
    sentence, foreign = f"The model {run['model']} cannot be run again. ", common.of_huggingface(run)
    try:
        model = widgets.client().model(common.model_name(run))
    except ApiError as error:
        asked = foreign and isinstance(error, NotFound)
        todo = "Say below where its checkpoint is." if asked else error.todo
        widgets.empty(widgets.escape(sentence) + widgets.error_text(error), todo)
        if asked:
            _ask_for_folder(common.model_name(run))
        return None
    if model.get("problem"):
        todo = "Say below where a whole one is." if foreign else "Train it again, or copy it again."
        widgets.empty(widgets.escape(sentence + str(model["problem"])), todo)
        if foreign:
            _ask_for_folder(common.model_name(run))
        return None
    return model


def _ask_for_folder(model: str) -> None:
    """Ask once where a checkpoint lies; the answer is kept in the data folder."""
    with st.form("checkpoint_folder"):
        folder = st.text_input(
            "Folder of the checkpoint on this machine",
            placeholder="/data/checkpoints/OLMoE-1B-7B",
            help="The folder that holds its config.json and weights. It is asked for once and kept beside the runs.",
        )
        sent = st.form_submit_button("Use this folder", type="primary")
    if not sent:
        return
    try:
        widgets.client().place_model(model, folder)
    except ApiError as error:
        widgets.show_error(error)
        return
    st.rerun()
