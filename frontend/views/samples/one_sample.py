"""One sample: the image or text tinted by path, its explorer, and its token flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import isolated, tamed, with_text
from tokenpaths.frontend.charts.drawing.slots import DROPPED, NOT_RECORDED, SIGNS, Idle, idle, offered_ids
from tokenpaths.frontend.charts.flow.token_flow import MOST_ROWS, TOKEN_PICK, Shade, token_flow_chart, token_rows
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.explorer import explorer
from tokenpaths.frontend.components.explorer_data import MOST_LINKS, Tint, explorer_data
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.samples import reference, similar

LISTED = 300
ARROWS = """<style>
:is(.st-key-sample_previous, .st-key-sample_next) button [data-testid="stMarkdownContainer"] {
  position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
</style>"""
"""the words of the two buttons are for screen readers; there is room for the arrows only"""
CELLS: dict[Shade, str] = {
    "path": "the cell names the module, its colour says how many tokens take the token’s whole path. Grey: skipped.",
    "module": "the cell names the module and has its colour, of several that of the first that does work. Grey: "
    "skipped.",
    "weight": "the cell names the module with the largest weight, darker on a light page: a larger weight. Nearly "
    "every token has a path of its own, so colours of paths would say nothing.",
    "overlap": "the cell names one of the modules that the token took together; this run was made of ids without "
    "weights, so none counts more. Darker on a light page: more of them were taken by the token before as well.",
}
UNTAKEN: dict[Idle, str] = {
    DROPPED: "the token was dropped at this step; it used no module.",
    NOT_RECORDED: "what the token chose at this step is not recorded.",
}


def show(run: Mapping[str, Any], selection: Selection, number: int) -> None:
    """Draw one sample; an upload has the ranks of its reference run."""
    ranked = reference.ranked(run, with_text(widgets.client().ask(run["run"], "samples/{sample}", sample=number)))
    sample = ranked.sample
    is_text = sample.get("text") is not None and not sample.get("grid")
    widgets.heading(
        "What happened inside this text?" if is_text else "What happened inside this image?",
        widgets.escape(facts(sample)),
        "cdf",
    )
    if sample.get("made_up"):
        has_ids = any(token.get("token_id") is not None for token in sample["tokens"])
        st.caption(
            "This run holds no text, so "
            + ("tokens stand as # and their vocabulary id." if has_ids else "tokens stand by their position.")
        )
    if not sample["tokens"]:
        widgets.empty("This sample has no tokens.", "Choose another one.")
        return
    reference.say_where_ranks_are_from(ranked)
    opacity, tint = _tint_controls(run, selection, ranked)
    chosen = selection.token if any(t["token"] == selection.token for t in sample["tokens"]) else None
    if selection.token is not None and chosen is None:
        st.caption(
            f"This sample has no token {selection.token:,}; it has "
            f"{numbers.count(len(sample['tokens']))}, counted from 0."
        )
    _explorer(run, selection, ranked, chosen, opacity, tint)
    _token_flow(run, selection, ranked, chosen, tint)
    similar.like_this_sample(run, number)


def sample_picker(run: Mapping[str, Any], selection: Selection) -> int | None:
    answer = widgets.client().ask(run["run"], "samples", most=LISTED, label=selection.label, q=selection.q)
    rows = {row["sample"]: row for row in answer["samples"]}
    if not rows and selection.sample is None:
        return None
    number = selection.sample if selection.sample is not None else next(iter(rows))
    options = sorted({*rows, number})
    whole = selection.label is None and selection.q is None
    total = answer["total"] if whole else None

    def beside(side: int, now: Selection) -> int | None:
        at = number if now.sample is None else now.sample  # a key may be pressed again before the page was drawn
        to = neighbours(at, rows, total)[side]
        return at if to is None else to

    def words(value: int) -> str:
        row = rows.get(value)
        if row is None:
            return f"sample {value:,}"
        text = tamed(row.get("snippet") or row.get("source") or "").replace("\n", " ")
        return isolated(" · ".join(part for part in (f"{value:,}", row.get("label") or "", text[:50]) if part))

    st.html(ARROWS)
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", width="stretch", key="sample_picker"):
        address.bound(
            st.selectbox,
            "sample",
            "Sample",
            number,
            options,
            format_func=words,
            label_visibility="collapsed",
            width="stretch",
        )
        for side, name in enumerate(("previous", "next")):
            st.button(
                f"{name.capitalize()} sample",
                key=f"sample_{name}",
                icon=":material/chevron_left:" if name == "previous" else ":material/chevron_right:",
                help=f"{name} sample, key {name[0].upper()}",
                shortcut=name[0].upper(),
                disabled=neighbours(number, rows, total)[side] is None,
                on_click=address.go_changed,
                kwargs={"sample": partial(beside, side)},
                width="content",
            )
    return number


def neighbours(number: int, listed: Iterable[int], total: int | None) -> tuple[int | None, int | None]:
    """The samples before and after one: of all ``total``, which are numbered from 0, or else of those ``listed``.

    >>> neighbours(310, range(300), 400), neighbours(310, (5, 299, 305), None), neighbours(0, (), 1)
    ((309, 311), (305, None), (None, None))
    """
    if total is not None:
        return (min(number, total) - 1 if number and total else None), (number + 1 if number + 1 < total else None)
    listed = list(listed)
    before, after = (n for n in listed if n < number), (n for n in listed if n > number)
    return max(before, default=None), min(after, default=None)


def facts(sample: Mapping[str, Any]) -> str:
    """“512 tokens on 40 different paths. Label cat, predicted dog (confidence 61.2 %). Compute 0.9, reuse 0.2.”"""
    parts = [
        f"{numbers.plural(sample['num_tokens'], 'token')} on "
        f"{numbers.plural(sample['num_distinct_paths'], 'different path', 'different paths')}."
    ]
    if sample.get("label"):
        parts.append(f"Label: {sample['label']}.")
    if sample.get("prediction"):
        parts.append(
            f"Prediction: {sample['prediction']} (confidence {numbers.percent(sample.get('confidence'))})"
            f"{verdict(sample)}."
        )
    if sample.get("loss") is not None:
        parts.append(f"Loss {numbers.number(sample['loss'])} nats.")
    parts.append(f"Compute {numbers.percent(sample.get('compute'))}, reuse {numbers.percent(sample.get('reuse'))}.")
    return " ".join(parts)


def verdict(sample: Mapping[str, Any]) -> str:
    """Whether the prediction is right; a label unknown to the model (no loss) has no verdict."""
    if sample.get("label") is None:
        return ""
    if sample["prediction"] == sample["label"]:
        return " – right"
    if sample.get("loss") is None:
        return f"; the model does not know the label {sample['label']}, so this is neither right nor wrong"
    return " – wrong"


def pick_token(sample: int, token: int | None) -> None:
    """Mark a token of the sample and open it in the inspector; None lets go of both."""
    address.go_changed(token=token, inspect=None if token is None else f"token:{sample}.{token}")


def _tint_controls(run: Mapping[str, Any], selection: Selection, ranked: reference.Ranked) -> tuple[float, int | None]:
    steps = int(run["num_steps"])
    tint = selection.tint if selection.tint is not None and selection.tint < steps else None
    left, right = st.columns([3, 2], gap="large")
    alone = ranked.all_differ(run)
    if alone and tint is None:
        tint = 0
    with left:
        options = list(range(steps)) if alone else ["path", *range(steps)]
        address.bound(
            st.select_slider,
            "tint",
            "Tint by",
            "path" if tint is None else tint,
            options,
            format_func=lambda value: "path" if value == "path" else f"module at step {value}",
            read=lambda value: None if value == "path" else int(value),
            help="The path as a whole, or the module taken at one step: move through the steps to watch tokens part."
            + (" Here nearly every token has a path of its own, so only steps can be compared." if alone else ""),
        )
    with right:
        address.bound(st.slider, "opacity", "Opacity of the tint", selection.opacity, 0, 100, format="%d %%")
    return selection.opacity / 100, tint


def _explorer(
    run: Mapping[str, Any],
    selection: Selection,
    ranked: reference.Ranked,
    chosen: int | None,
    opacity: float,
    tint: int | None,
) -> None:
    sample = ranked.sample
    merging = common.merging(run, selection.change(merge=None))
    flow = widgets.client().ask(run["run"], "flow", limit=MOST_LINKS, **merging)
    image = data_url(widgets.client().image(run["run"], sample["sample"])) if sample.get("has_image") else None

    def kept(token: Mapping[str, Any]) -> bool:
        return common.passes(token, selection) and (not selection.paths or token["rank"] in selection.paths)

    data = explorer_data(
        sample,
        flow,
        Tint(
            widgets.theme(),
            ranked.num_paths(run),
            opacity,
            tint,
            common.identities(run),
            offered_ids(run),
            reference=ranked.name,
        ),
        image=image,
        chosen=chosen,
        kept=kept,
    )
    explorer(
        data,
        key=f"explorer_{run['run']}_{sample['sample']}",
        on_pick=lambda token: pick_token(int(sample["sample"]), token),
        on_node=lambda node: address.go_changed(inspect=f"module:{node}"),
    )
    if selection.paths or selection.through:
        count = sum(not row["faded"] for row in data["tokens"])
        st.caption(
            f"{numbers.count(count)} of {numbers.plural(len(data['tokens']), 'token')} pass the filters "
            "above; the others are faded."
        )


def path_of(token: Mapping[str, Any]) -> list[list[int]]:
    """The path of a token: the order of the slots of a step does not count."""
    return [sorted(modules) for modules in token["ribbon"]]


def _token_flow(
    run: Mapping[str, Any], selection: Selection, ranked: reference.Ranked, chosen: int | None, tint: int | None
) -> None:
    sample, offered = ranked.sample, offered_ids(run)
    total = len(sample["tokens"])
    st.subheader("Which module did each token take at each step?", anchor=False)
    shade: Shade = "path" if tint is None else "module"
    if selection.tint is None and ranked.reason is None and ranked.all_differ(run):
        shade = "weight" if common.weights_known(run) else "overlap"
    st.caption(f"One row a token, one column a step; {CELLS[shade]}")
    place = selection.first if selection.first or chosen is None else chosen
    first = min(place, max(0, total - 1)) // MOST_ROWS * MOST_ROWS
    if total > MOST_ROWS:
        starts = list(range(0, total, MOST_ROWS))
        address.bound(
            st.select_slider,
            "first",
            "Tokens",
            first,
            starts,
            format_func=lambda s: f"{s:,}–{min(total, s + MOST_ROWS) - 1:,}",
        )
    drawing = token_flow_chart(
        sample,
        theme=widgets.theme(),
        first=first,
        chosen=chosen,
        identities=common.identities(run),
        offered=offered,
        shade=shade,
        weighted=common.weights_known(run),
        title=None,
    )

    def picked(_name: str, token: int) -> None:
        # Compare with the chart's own selection, not the URL: a repeated event must not toggle it back.
        pick_token(int(sample["sample"]), None if int(token) == chosen else int(token))

    widgets.chart(
        drawing,
        key=f"token_flow_{run['run']}_{sample['sample']}_{first}_{chosen}",
        on_pick=picked,
        pick=(TOKEN_PICK,),
        about=f"sample {sample['sample']:,}",
    )
    reasons = {idle(modules, (), offered) for token in sample["tokens"] for modules in token["ribbon"]}
    for why, words in UNTAKEN.items():
        if why in reasons:
            st.caption(f"{SIGNS[why]}: {words}")
    widgets.numbers_behind(token_rows(sample, offered), "tokens of this sample")
