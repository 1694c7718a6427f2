"""The selected token, patch, module or link before and after a detour. The ``facts_*`` functions are pure.

Tables take the API's description of a sample: the unedited one, and the edited one (None: no edits yet).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns
from tokenpaths.frontend.charts.flow.token_flow import token_label, visible
from tokenpaths.frontend.page import widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour.edits import at_node, link_of, takes

Sample = Mapping[str, Any]
Row = dict[str, Any]
MOST_ROWS = 6
"""maximum rows of the table of where a module's or link's tokens go instead"""


def draw(run: Mapping[str, Any], selection: Selection, before: Sample, after: Sample | None) -> None:
    """Draw everything selected, before | after; nothing if nothing is selected."""
    link = link_of(selection.through)
    node = selection.through[-1] if selection.through and link is None else None
    token = next((one for one in before["tokens"] if one["token"] == selection.token), None)
    if token is None and node is None and link is None:
        return
    st.subheader("What becomes of the chosen one?", anchor=False)
    st.caption(
        "Nothing is edited yet; an edit puts its after beside it."
        if after is None
        else "The same sample without and with the edits: only what you clicked is compared here."
    )
    weighted, parts = common.weights_known(run), token_nouns(run)[1]
    if token is not None:
        what = _named(token)
        later = None if after is None else next((o for o in after["tokens"] if o["token"] == token["token"]), None)
        _part(token_sentence(what, token, later), [*answer_facts(before, after), *token_facts(token, later)], after)
        _table(step_facts(token, later, weights=weighted))
    if node is not None:
        step, module = map(int, node.split("."))

        def passes(one: Mapping[str, Any]) -> bool:
            return at_node(one, step, module)

        what = f"module {module} at step {step}"
        _group(what, "visit", parts, before, after, passes, lambda one: _modules(one, step), f"at step {step}")
    if link is not None:
        step, source, target = link
        what = f"the link from module {source} at step {step} to module {target} at step {step + 1}"

        def goes(one: Mapping[str, Any]) -> bool:
            return takes(one, (step, source, target))

        _group(what, "take", parts, before, after, goes, lambda one: _way(one, step), "now go")


def _part(sentence: str, facts: Sequence[Row], after: Sample | None) -> None:
    st.write(widgets.escape(sentence))
    with st.container(horizontal=True, gap="large"):
        for row in facts:
            words = row["before"] if after is None else f"{row['before']} → {row['after']}"
            st.metric(row["what"], widgets.escape(words), width="content")


def _group(
    what: str,
    verb: str,
    parts: str,
    before: Sample,
    after: Sample | None,
    chosen: Callable[[Any], bool],
    where: Callable[[Any], str],
    place: str,
) -> None:
    _part(group_sentence(what, verb, parts, before, after, chosen), group_facts(before, after, chosen), after)
    if after is not None:
        rows = where_now(before, after, chosen, where)
        _table(
            [
                {
                    f"of the {parts} that did, {place}": row["where"],
                    parts: row["count"],
                    "share": numbers.percent(row["share"]),
                }
                for row in rows
            ]
        )


def _table(rows: Sequence[Row]) -> None:
    if rows:
        st.dataframe(list(rows), hide_index=True, width="stretch", height="content")


def _named(token: Mapping[str, Any]) -> str:
    if token.get("row") is not None:
        return f"Patch {token_label(token)}"
    return f"Token {token['token']}" + (f" “{visible(token['text'])}”" if token.get("text") else "")


# One token ---------------------------------------------------------------------------------------------------------


def moved_steps(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[int]:
    """Steps at which a token visits other modules, ignoring the order of slots."""
    pairs = zip(before["ribbon"], after["ribbon"], strict=False)
    return [step for step, (old, new) in enumerate(pairs) if sorted(old) != sorted(new)]


def token_sentence(what: str, before: Mapping[str, Any], after: Mapping[str, Any] | None) -> str:
    """“Patch (2, 3) goes another way at steps 2 and 3.”"""
    if after is None:
        return f"{what} goes {numbers.ribbon_words(before['ribbon'])}."
    steps = moved_steps(before, after)
    if not steps:
        return f"{what} keeps its path, {numbers.ribbon_words(before['ribbon'])}."
    listed = ", ".join(map(str, steps[:12])) + (" …" if len(steps) > 12 else "")
    return f"{what} goes another way at step{'s' * (len(steps) > 1)} {listed}."


def token_facts(before: Mapping[str, Any], after: Mapping[str, Any] | None) -> list[Row]:
    """Loss, probability of the actual next token, and compute."""
    after = after or {}
    rows = []
    if before.get("loss") is not None:
        old, new = before["loss"], after.get("loss")
        rows.append({"what": "Loss (nats)", "before": numbers.number(old), "after": numbers.number(new)})
        rows.append(
            {
                "what": "Likelihood of the next token",
                "before": numbers.percent(math.exp(-old)),
                "after": numbers.percent(None if new is None else math.exp(-new)),
            }
        )
    rows.append(
        {
            "what": "Compute",
            "before": numbers.percent(before["compute"]),
            "after": numbers.percent(after.get("compute")),
        }
    )
    return rows


def answer_facts(before: Sample, after: Sample | None) -> list[Row]:
    """The classification of the whole image; none for texts."""
    if not before.get("prediction"):
        return []

    def say(one: Sample | None) -> str:
        return f"{one['prediction']} ({numbers.percent(one['confidence'])})" if one else "–"

    return [{"what": "Answer for the image", "before": say(before), "after": say(after)}]


def step_facts(before: Mapping[str, Any], after: Mapping[str, Any] | None, *, weights: bool) -> list[Row]:
    """One row per step: modules (and weights) before, and after if there is an edited sample."""

    def say(token: Mapping[str, Any], step: int) -> str:
        modules = token["ribbon"][step]
        if not weights:
            return " + ".join(map(str, modules))
        return " + ".join(f"{m} ({numbers.number(w, 2)})" for m, w in zip(modules, token["weights"][step], strict=True))

    if after is None:
        return [{"step": step, "modules": say(before, step)} for step in range(len(before["ribbon"]))]
    moved = set(moved_steps(before, after))
    return [
        {"step": step, "before": say(before, step), "after": say(after, step), "moved": "yes" if step in moved else ""}
        for step in range(min(len(before["ribbon"]), len(after["ribbon"])))
    ]


# A circle or a link: a group of tokens -----------------------------------------------------------------------------


def group_sentence(
    what: str, verb: str, parts: str, before: Sample, after: Sample | None, chosen: Callable[[Any], bool]
) -> str:
    """How many tokens visit a module or take a link before and after, and how many do both."""
    old, total = _members(before, chosen), len(before["tokens"])
    if after is None:
        return f"{numbers.count(len(old))} of {numbers.count(total)} {parts} {verb} {what}."
    new = _members(after, chosen)
    stay = len(old & new)
    return (
        f"{numbers.count(len(old))} of {numbers.count(total)} {parts} {verb} {what} before and "
        f"{numbers.count(len(new))} after: {numbers.count(stay)} stay, {numbers.count(len(old) - stay)} leave, "
        f"{numbers.count(len(new) - stay)} come."
    )


def group_facts(before: Sample, after: Sample | None, chosen: Callable[[Any], bool]) -> list[Row]:
    """Share of tokens; mean loss over the tokens selected before the edit, the same tokens on both sides."""
    there, total = _members(before, chosen), max(1, len(before["tokens"]))
    now = None if after is None else len(_members(after, chosen)) / total
    rows = [
        {"what": "Share", "before": numbers.percent(len(there) / total), "after": numbers.percent(now)},
        *answer_facts(before, after),
    ]
    old = _mean_loss(before, there)
    if old is not None:
        new = None if after is None else _mean_loss(after, there)
        rows.append(
            {
                "what": "Loss of those that did before (nats)",
                "before": numbers.number(old),
                "after": numbers.number(new),
            }
        )
    return rows


def where_now(before: Sample, after: Sample, chosen: Callable[[Any], bool], where: Callable[[Any], str]) -> list[Row]:
    """Where the tokens selected before the edit are after it: {where, count, share}, the most frequent first."""
    there = _members(before, chosen)
    counts = Counter(where(one) for one in after["tokens"] if one["token"] in there)
    rows: list[Row] = [{"where": w, "count": n, "share": n / len(there)} for w, n in counts.most_common(MOST_ROWS)]
    rest = len(there) - sum(row["count"] for row in rows)
    return [*rows, {"where": "elsewhere", "count": rest, "share": rest / len(there)}] if rest else rows


def _members(sample: Sample, chosen: Callable[[Any], bool]) -> set[int]:
    return {one["token"] for one in sample["tokens"] if chosen(one)}


def _mean_loss(sample: Sample, tokens: set[int]) -> float | None:
    losses = [one["loss"] for one in sample["tokens"] if one["token"] in tokens and one.get("loss") is not None]
    return sum(losses) / len(losses) if losses else None


def _modules(token: Mapping[str, Any], step: int) -> str:
    modules = token["ribbon"][step] if step < len(token["ribbon"]) else []
    return " + ".join(map(str, sorted(modules))) or "–"


def _way(token: Mapping[str, Any], step: int) -> str:
    return f"{_modules(token, step)} → {_modules(token, step + 1)}"
