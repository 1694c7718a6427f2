"""Token search by word, kind, rank, compute and reuse: form, saved searches, and results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import cut_short
from tokenpaths.frontend.charts.drawing.slots import offered_ids
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns, whole_images
from tokenpaths.frontend.charts.knowledge import (
    contrast_chart,
    contrast_words,
    module_words,
    modules_first,
    preferred_module,
    preferred_path,
    preferred_words,
    search_words,
    taken_rows,
)
from tokenpaths.frontend.page import address, refusals, widgets
from tokenpaths.frontend.page.selection import KINDS, PATCH_KINDS, WORD_KINDS, Selection, from_query, to_query
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.walls import token_wall

EXAMPLES = 30
MOST_LETTERS = 40
"""of a word in the list of those found"""
UNSPACED = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")
"""letters of Thai, Lao, Burmese, Khmer, Japanese and Chinese"""
ROWS = 40
LIFT = (
    "Share of these tokens on the path / share of all tokens on it; 1 = as everywhere. From, to: 95 % interval "
    "(Wilson), tokens of one sample counted as far as they are alike."
)
CONTRAST = (
    "Δ = share of these tokens that choose the module − share of all other tokens that do. 95 % interval, samples "
    "taken as what was drawn; coloured are those that differ if that is to hold of all modules together. Modules that "
    "were asked for are left out."
)


def active(selection: Selection) -> bool:
    """Whether the URL contains a token search."""
    return any((selection.find, selection.kind, selection.ranks, selection.compute, selection.reuse))


SAID = "search_said"
"""session state: what came of saving a search (``refusals``)"""
FILTERS = ("find", "kind", "label", "through", "ranks", "compute", "reuse")
"""fields of the selection that ``/tokens/search`` is asked with"""


def question(selection: Selection) -> dict[str, Any]:
    """The selection as a query of ``/tokens/search``."""

    def span(pair: tuple[Any, Any] | None) -> str | None:
        if pair is None:
            return None
        return f"{pair[0]:g}:{pair[1]:g}" if isinstance(pair[0], float) else f"{pair[0]}:{pair[1]}"

    return {
        "q": selection.find,
        "kind": selection.kind,
        "label": selection.label,
        "through": selection.through,
        "reading": selection.reading if selection.reading != "word" else None,
        "ranks": span(selection.ranks),
        "compute": span(selection.compute),
        "reuse": span(selection.reuse),
    }


def _key(selection: Selection) -> str:
    """Suffix of widget keys: another query gets new widgets."""
    return "_".join(str(value) for value in (selection.run, *question(selection).values()))


def query_words(selection: Selection) -> str:
    """The query as a phrase that follows “are”."""
    parts = []
    if selection.find:
        parts.append(f"“{selection.find}”" + (" (single tokens)" if selection.reading == "token" else ""))
    if selection.kind:
        parts.append(KINDS[selection.kind])
    if selection.ranks:
        parts.append(f"on paths of rank {selection.ranks[0]:,} to {selection.ranks[1]:,}")
    for name in ("compute", "reuse"):
        if bounds := getattr(selection, name):
            parts.append(f"of {name} {bounds[0]:g} to {bounds[1]:g}")
    if selection.label is not None:
        parts.append(f"of label {selection.label}")
    if selection.through:
        nodes = (node.split(".") for node in selection.through)
        parts.append("through " + ", ".join(f"module {module} at step {step}" for step, module in nodes))
    return ", ".join(parts)


def bar(run: Mapping[str, Any], selection: Selection) -> None:
    """The fields of the search, and saved searches."""
    text = run["modality"] == "text"
    kinds: Mapping[str, str] = WORD_KINDS if text else PATCH_KINDS
    if whole_images(run):
        kinds = {}
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="search"):
        if text:
            address.bound(
                st.text_input,
                "find",
                "Which paths do these tokens take?",
                selection.find or "",
                placeholder="a word, such as dinner, or a pattern, such as dinn*",
                max_chars=200,
                read=lambda words: words.strip() or None,
                help="Case is ignored; * stands for any letters, ? for one. All tokens of the word are found.",
            )
        options = ["", *kinds] + ([selection.kind] if selection.kind and selection.kind not in kinds else [])
        words = "Kind of word" if text else f"Which paths do these {token_nouns(run)[1]} take?"
        if len(options) > 1:  # images that are one token each have no kinds, unless an address asks for one
            address.bound(
                st.selectbox,
                "kind",
                words,
                selection.kind or "",
                options,
                format_func=lambda kind: KINDS.get(kind, "any"),
                read=lambda kind: kind or None,
            )
        with st.popover("More", icon=":material/tune:", help="Filters by rank, compute and reuse"):
            _more(run, selection, text)
        _saved_popover()


def _more(run: Mapping[str, Any], selection: Selection, text: bool) -> None:
    if text:
        address.bound(
            st.radio,
            "reading",
            "Told from",
            selection.reading,
            ["word", "token"],
            format_func={"word": "the whole word that a token stands in", "token": "the token’s own characters"}.get,
        )
    _span("ranks", "Rank", selection.ranks, 1, int(run["num_paths"]), 1)
    _span("compute", "Compute", selection.compute, 0.0, 1.0, 0.05)
    _span("reuse", "Reuse", selection.reuse, 0.0, 1.0, 0.05)
    st.caption("Label and modules passed, chosen on any view, hold as well.")


def _span(name: str, words: str, pair: tuple[Any, Any] | None, least: Any, most: Any, step: Any) -> None:
    """Two number fields for both ends of a range; the widest range is no filter."""

    def ends(pair: tuple[Any, Any] | None) -> tuple[Any, Any]:
        low, high = pair or (least, most)
        return max(least, min(low, most)), max(least, min(high, most))

    def read(end: int) -> Any:
        def as_pair(value: Any) -> Any:
            low, high = ends(getattr(address.current(), name))  # the other end may have been written just now
            value = type(least)(least if value is None and not end else most if value is None else value)
            value = max(least, min(value, most))  # the browser would keep what is beyond bounds to itself
            new = (value, max(high, value)) if end == 0 else (min(low, value), value)
            return None if new == (least, most) else new

        return as_pair

    for end, column in enumerate(st.columns(2)):
        with column:
            address.bound(
                st.number_input,
                name,
                f"{words} {'from' if end == 0 else 'to'}",
                ends(pair)[end],
                step=step,
                part=f"_{end}",
                read=read(end),
            )


@address.unless_embedded
def _saved_popover() -> None:
    saved = st.popover("Saved", icon=":material/bookmark:", help="Searches kept on this computer")
    with saved, widgets.error_boundary("saved searches"):
        _saved()


def _saved() -> None:
    searches = widgets.client().searches()
    for search in searches:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(
                widgets.escape(search["name"]),
                key=f"open_search_{search['name']}",
                type="tertiary",
                on_click=lambda query=search["query"]: address.go(from_query(query)[0]),
            )
            st.button(
                "",
                key=f"drop_search_{search['name']}",
                icon=":material/delete:",
                type="tertiary",
                help=f"Forget {search['name']}",
                on_click=_forget,
                args=(search["name"],),
            )
    if not searches:
        st.caption("Nothing is saved yet.")
    with st.form("save_search_form", border=False):  # Enter saves, too
        st.text_input("Save what you see now as", key="search_name", placeholder="plural nouns", max_chars=64)
        st.form_submit_button("Save", key="save_search", icon=":material/bookmark_add:", on_click=_keep)
    if message := refusals.kept(SAID):
        st.caption(message)


def name_of(words: str) -> str:
    """A name valid for the API: blanks become hyphens, other non-alphanumeric characters are dropped."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", words.strip()).strip("-_")[:64]


def _keep() -> None:
    words, selection = str(st.session_state["search_name"]), address.current()
    name = name_of(words)
    if not name:
        problem = "Give it a name first."
        if words.strip():
            problem = f"{words!r} has no letter or digit of A to Z; give it another name."
        refusals.keep(SAID, widgets.escape(problem))
        return
    try:
        if any(search["name"] == name for search in widgets.client().searches()):
            problem = f"There is a search {name} already: forget that one first, or take another name."
            refusals.keep(SAID, widgets.escape(problem))
            return
        widgets.client().save_search(name, to_query(selection))
        refusals.keep(SAID, widgets.escape(f"Saved as {name}."))
    except widgets.ApiError as error:
        refusals.keep(SAID, widgets.error_text(error))


def _forget(name: str) -> None:
    try:
        widgets.client().delete_search(name)
    except widgets.ApiError as error:
        refusals.keep(SAID, widgets.error_text(error))


def answer(run: Mapping[str, Any], selection: Selection) -> None:
    """The search results; nothing without a query."""
    if not active(selection):
        return
    matches = widgets.client().ask(
        run["run"], "tokens/search", **question(selection), limit=ROWS, examples=EXAMPLES, seed=selection.seed
    )
    query = query_words(selection)
    if matches["reason"]:
        widgets.empty(widgets.escape(nothing_words(matches, query)), widgets.escape(advice(selection)))
        return
    # The simpler result first: with many paths each is rare, while one module may stand out.
    first = modules_first(matches)
    asks = "Which modules and paths do these tokens take?" if first else "Which paths do these tokens take?"
    widgets.heading(asks, widgets.escape(search_words(matches, query)))
    for lead in (_lead_module, _lead_path) if first else (_lead_path,):
        with st.container(horizontal=True, vertical_alignment="center"):
            lead(matches, selection)
    common.note_not_independent(run)
    if matches["words"]:
        words = ", ".join(
            f"{cut_short(row['word'].strip(), MOST_LETTERS) or '␣'} ({numbers.count(row['count'])})"
            for row in matches["words"][:8]
        )
        st.caption(widgets.escape(f"Words: {words}{' …' if len(matches['words']) > 8 else ''}"))
    columns = st.columns([1, 1], gap="large")
    modules, paths = columns if first else columns[::-1]
    with paths:
        _taken(run, matches, selection)
    with modules:
        st.subheader("Which modules do they prefer?", anchor=False, help=CONTRAST)
        if matches["modules"]:
            if not first:
                st.caption(widgets.escape(widgets.with_full_stop(contrast_words(matches))))
            widgets.chart(contrast_chart(matches, theme=widgets.theme(), title=None), filters=FILTERS)
            widgets.numbers_behind(matches["modules"], "modules")
        else:
            widgets.empty(widgets.escape(common.as_sentence(matches["modules_reason"])))
    with st.expander(f"See {len(matches['examples'])} of them", expanded=not selection.paths):
        token_wall(matches["examples"], f"found_{_key(selection)}")


def _lead_module(matches: Mapping[str, Any], selection: Selection) -> None:
    row = preferred_module(matches)
    assert row is not None, "modules come first only where one is preferred"
    widgets.verdict(module_words(row), help=CONTRAST, width="content")
    node = f"{row['step']}.{row['module']}"
    st.button(
        f"See module {row['module']}",
        key="see_module",
        icon=":material/grid_view:",
        on_click=address.go_changed,
        kwargs={"inspect": f"module:{node}"},
    )


def _lead_path(matches: Mapping[str, Any], selection: Selection) -> None:
    best = preferred_path(matches)
    widgets.verdict(preferred_words(matches), help=LIFT, width="content")
    if best is not None and selection.inspect != f"path:{best['rank']}":
        st.button(
            f"See path {best['rank']:,}",
            key="see_preferred",
            icon=":material/search:",
            on_click=address.go_changed,
            kwargs={"inspect": f"path:{best['rank']}"},
        )


def nothing_words(matches: Mapping[str, Any], query: str) -> str:
    """Message that no token matches, and how many were searched."""
    counted = matches["counted"]
    if counted["exact"]:
        return f"No token is {query}."
    others = counted["of_tokens"] - counted["num_tokens"]
    return (
        f"No token of the {numbers.count(counted['num_tokens'])} drawn by hash is {query}; the other "
        f"{numbers.plural(others, 'token')} of the run were not looked at."
    )


def advice(selection: Selection) -> str:
    """What to try when nothing matched.

    >>> advice(Selection(find="红色"))
    'Words of this script stand between no blanks: try *红色*, which finds them inside longer ones.'
    """
    word = selection.find or ""
    if selection.reading == "word" and "*" not in word and UNSPACED.search(word):
        return f"Words of this script stand between no blanks: try *{word}*, which finds them inside longer ones."
    return "Try another word or kind, or clear a filter above."


def _taken(run: Mapping[str, Any], matches: Mapping[str, Any], selection: Selection) -> None:
    st.subheader("Their paths", anchor=False, help=LIFT)
    rows = taken_rows(matches["paths"], offered_ids(run))
    st.caption(
        f"{numbers.count(len(rows))} of {numbers.plural(matches['num_paths'], 'path')}, most taken first. "
        "Click a row to look into the path."
    )
    percent = st.column_config.NumberColumn(format="%.2f %%")
    key = f"taken_{_key(selection)}_{selection.inspect}"

    def clicked() -> None:
        chosen = st.session_state[key].selection.rows
        address.go_changed(inspect=f"path:{rows[chosen[0]]['rank']}" if chosen else None)

    st.dataframe(
        rows,
        key=key,
        height=min(430, 38 + 35 * len(rows)),
        hide_index=True,
        width="stretch",
        column_config={
            "rank": st.column_config.NumberColumn("rank", format="localized"),
            "path": st.column_config.TextColumn("path (module per step)", width="medium"),
            "tokens": st.column_config.NumberColumn("of these", format="localized"),
            "share": percent,
            "of all": percent,
            "lift": st.column_config.NumberColumn("lift", format="%.2f ×", help=LIFT),
            "95 %": st.column_config.TextColumn("95 %", help=LIFT),
        },
        on_select=clicked,
        selection_mode="single-row",
        selection_default={
            "selection": {"rows": [i for i, row in enumerate(rows) if selection.inspect == f"path:{row['rank']}"]}
        },
    )
