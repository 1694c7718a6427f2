"""Editor of a detour: the current edits, quick buttons for the selected element, and forms for every edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers, thing_names
from tokenpaths.frontend.charts.drawing.running_text import isolated, tamed
from tokenpaths.frontend.page import address, at_click, widgets
from tokenpaths.frontend.page.selection import Selection, without
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour.edits import (
    EVERY,
    KINDS,
    MOST_EDITS,
    WHAT,
    Link,
    added,
    link_of,
    on_link,
    said,
    why_not,
)

CHOOSES_BY_TOKEN = ("dna", "moe")
"""families that route each token independently, so that single tokens can be forced"""


def name_of(run: Mapping[str, Any], step: int | None, module: int) -> str:
    """Display name of a module; ids repeat if each step has its own modules."""
    matches = [m for m in run["modules"] if m["module"] == module and m["step"] in (None, step)]
    return f"module {module}" + (f" ({matches[0]['name']})" if matches and matches[0]["step"] is not None else "")


def modules_at(run: Mapping[str, Any], step: int | None) -> list[int]:
    """Modules that the router can choose at a step (None: at any step)."""
    return sorted(
        {
            m["module"]
            for m in run["modules"]
            if (step is None or m["step"] in (None, step)) and not (m["step"] is not None and m["kind"] == "identity")
        }
    )


def chosen_edits(run: Mapping[str, Any], selection: Selection) -> None:
    """The current edits, each with a × button."""
    own = [text for text in selection.controls if text.partition(":")[0] in KINDS]
    if not own:
        return
    with st.container(horizontal=True, gap="small", key="edits"):
        for place, text in enumerate(own):
            st.button(
                f"{widgets.escape(words_of(run, text))} ×",
                key=f"edit_{place}",
                type="primary",
                help="Click to take this edit back.",
                on_click=address.go_changed,
                kwargs={"controls": without("controls", text)},
            )
    if len(own) == MOST_EDITS:
        st.caption(f"{MOST_EDITS} edits are the most: another one takes the place of the first.")


def _with(text: str) -> Callable[[Selection], tuple[str, ...]]:
    """For ``go_changed``: the edits of the address and one more."""
    return lambda now: added(now.controls, text)


def words_of(run: Mapping[str, Any], text: str) -> str:
    try:
        return said(text, lambda step, module: name_of(run, step, module))
    except (ValueError, KeyError):
        return text


def builder(
    run: Mapping[str, Any],
    model: Mapping[str, Any],
    kinds: Sequence[str],
    selection: Selection,
    sample: Mapping[str, Any],
) -> None:
    """The forms for a new edit: quick buttons for the selected element, and every edit by hand."""
    node, link = selection.through[-1] if selection.through else None, link_of(selection.through)
    if link is not None:
        _quick_link(run, kinds, selection, sample, link)
    elif node is not None:
        _quick(run, kinds, selection, node)
    with st.expander("Choose an edit by hand", expanded=node is None and not selection.controls, key="edit_by_hand"):
        kind = st.segmented_control(
            "What",
            list(kinds),
            default=kinds[0],
            format_func=lambda one: KINDS.get(one, one),
            key="edit_kind",
            required=True,
        )
        st.caption(WHAT.get(kind or "", ""))
        steps = [EVERY, *range(int(run["num_steps"]))]
        with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="edit_fields"):
            text = _fields(run, kind or kinds[0], steps, selection, sample)
            at_click.button(
                "Apply",
                lambda: address.go_changed(controls=_with(text or "")),
                key="edit_add",
                type="primary",
                icon=":material/alt_route:",
                disabled=text is None,
            )
        missing = why_not(run["family"], (model.get("controls") or {}).get("no_edits") or {})
        for name, why in missing.items():
            st.caption(widgets.escape(f"Not here: {KINDS.get(name, name).lower()}, because {why}."))


def _fields(
    run: Mapping[str, Any], kind: str, steps: Sequence[Any], selection: Selection, sample: Mapping[str, Any]
) -> str | None:
    """The input fields of an edit; returns its text for the URL, None while a field is missing."""

    def step_picker(options: Sequence[Any], words: str = "every step") -> Any:
        return st.selectbox(
            "Step", options, format_func=lambda s: words if isinstance(s, str) else f"step {s}", key=f"edit_step_{kind}"
        )

    def module_picker(step: Any) -> int:
        at = None if step == EVERY else int(step)
        return st.selectbox(
            "Module", modules_at(run, at), format_func=lambda m: name_of(run, at, m), key=f"edit_module_{kind}"
        )

    if kind in ("ban", "force"):
        step = step_picker(steps)
        module, token = module_picker(step), selection.token
        who = {"": "every token"}
        if token is not None and run["family"] in CHOOSES_BY_TOKEN:
            who |= {str(token): f"token {token} alone", f"path{token}": f"tokens on the path of token {token}"}
        hint = f"Click {thing_names.one_token(run)} below to choose it."
        if run["family"] not in CHOOSES_BY_TOKEN:
            hint = "Single tokens cannot be chosen: this model does not decide for each token by itself."
        chosen = st.selectbox("Who", list(who), format_func=lambda one: who[one], key=f"edit_who_{kind}", help=hint)
        return f"{kind}:{step}.{module}" + (f".{chosen}" if chosen else "")
    if kind == "bias":
        step = step_picker(steps)
        module = module_picker(step)
        value = st.slider("Push", -1.0, 1.0, 0.2, 0.05, key="edit_push")
        return f"bias:{step}.{module}.{value:g}"
    if kind == "freeze":
        step = step_picker(["rest", *steps[1:]], "every step that is not edited")
        return f"freeze:{step}"
    if kind == "shuffle":
        return f"shuffle:{step_picker(steps)}.{st.number_input('Seed', value=0, step=1, key='edit_seed')}"
    if kind == "top_k":
        return f"top_k:{st.number_input('Modules a token', value=1, step=1, key='edit_k')}"
    return _swap_field(run, sample)


def _swap_field(run: Mapping[str, Any], sample: Mapping[str, Any]) -> str | None:
    rows = widgets.client().ask(run["run"], "samples", most=300)["samples"]
    there = {
        row["sample"]: row
        for row in rows
        if row["sample"] != sample["sample"] and row["num_tokens"] == sample["num_tokens"]
    }
    if not there:
        st.selectbox("Whose route", [f"no other has {sample['num_tokens']} tokens"], disabled=True)
        return None

    def words(number: int) -> str:
        row = there[number]
        words = " · ".join(filter(None, (str(number), row.get("label"), tamed(row.get("snippet") or "")[:30])))
        return isolated(words)

    return f"swap:{st.selectbox('Whose route', list(there), format_func=words, key='edit_swap')}"


def _quick(run: Mapping[str, Any], kinds: Sequence[str], selection: Selection, node: str) -> None:
    """Quick buttons for the selected module, and for the token if one is selected."""
    step, module = node.split(".")
    name, token = name_of(run, int(step), int(module)), selection.token
    choices = [
        ("ban", f"ban:{node}", f"Ban {name} at step {step}"),
        ("ban", f"ban:{EVERY}.{module}", f"Ban {name} at every step"),
        ("force", f"force:{node}", f"Send every token there at step {step}"),
    ]
    if token is not None and run["family"] in CHOOSES_BY_TOKEN:
        choices += [
            ("ban", f"ban:{node}.{token}", f"Ban {name} at step {step} for token {token} alone"),
            ("force", f"force:{node}.{token}", f"Send token {token} there at step {step}"),
            ("force", f"force:{node}.path{token}", f"Send all on the path of token {token} there"),
        ]
    if common.own_modules(run):
        choices.pop(1)
    with st.container(horizontal=True, gap="small", key="quick_edits"):
        for place, (kind, text, words) in enumerate(choices):
            if kind in kinds:
                st.button(
                    widgets.escape(words),
                    key=f"quick_{place}",
                    on_click=address.go_changed,
                    kwargs={"controls": _with(text)},
                )
        st.button("Let go", key="quick_none", type="tertiary", on_click=address.go_changed, kwargs={"through": ()})


def _quick_link(
    run: Mapping[str, Any], kinds: Sequence[str], selection: Selection, sample: Mapping[str, Any], link: Link
) -> None:
    """Quick buttons for the tokens of the selected link."""
    step, source, target = link
    step += 1  # the module at its end
    count, name = len(on_link(sample, link)), name_of(run, step, target)
    them = numbers.plural(count, *thing_names.token_nouns(run))
    way = f"from {name_of(run, step - 1, source)} at step {step - 1} to {name} at step {step}"
    st.caption(widgets.escape(f"The link {way}: {them} of this sample {'goes' if count == 1 else 'go'} this way."))

    def do(text: str) -> None:
        address.go_changed(controls=_with(text))

    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="quick_link"):
        if "ban" in kinds:
            st.button(
                widgets.escape(f"Ban {name} at step {step}"),
                key="link_ban",
                on_click=do,
                args=(f"ban:{step}.{target}",),
                help="For every token, also those that come from elsewhere.",
            )
            if run["family"] in CHOOSES_BY_TOKEN and count:
                st.button(
                    "Ban it for them alone",
                    key="link_ban_them",
                    on_click=do,
                    args=(f"ban:{step}.{target}.from{source}-{target}",),
                    help=WHAT["ban"],
                )
        others = [one for one in modules_at(run, step) if one != target]
        if "force" in kinds and run["family"] in CHOOSES_BY_TOKEN and others and count:
            there = st.selectbox(
                f"Send them, at step {step}, to",
                others,
                format_func=lambda m: name_of(run, step, m),
                key="link_to",
                width=220,
                help=WHAT["force"],
            )
            text = f"force:{step}.{there}.from{source}-{target}"
            at_click.button("Send them there", lambda: do(text), key="link_force")
        for view, words in (("routes", "Routes"), ("paths", "Paths")):
            st.button(
                f"Only these tokens in {words}",
                key=f"link_{view}",
                on_click=address.go_changed,
                kwargs={"view": view},
                help="All tokens of the run that take this link, in all samples.",
            )
        st.button("Let go", key="link_none", type="tertiary", on_click=address.go_changed, kwargs={"through": ()})
