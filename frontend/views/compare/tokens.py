"""Tokens part of Compare: whether the same tokens take the same modules in two of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.token_flow import visible
from tokenpaths.frontend.charts.several_runs import agreement_charts as charts
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.compare import token_map
from tokenpaths.frontend.views.compare.compared import Compared
from tokenpaths.frontend.views.compare.samples import drawn_pair, wall_item

TITLE = "Do tokens take the same modules in both?"
HELP = (
    "A decision is what one token chooses at one step. Two are the same if they are the same set of modules; shared is "
    "|A ∩ B| / K. Samples are paired by source, text or vocabulary ids, and in each pair the longest stretch of equal "
    "ids is compared, because a path depends on everything before it. Intervals take samples as what was drawn."
)
WORDS_HELP = (
    "Words in 8 samples or more whose decisions differ more often than those of all tokens, at 95 % of all these words "
    "together (Bonferroni), the samples taken as what was drawn."
)


def draw(selection: Selection, compared: Compared) -> None:
    """Two of the runs, token by token."""
    drawn = drawn_pair(selection, compared, TITLE, lambda pair: widgets.client().agreement(*pair))
    if drawn is None:
        return
    pair, names, answer, _ = drawn
    widgets.heading(TITLE, widgets.escape(_compared(answer)))
    widgets.verdict(charts.agreement_words(answer, names))
    if answer["note"]:
        st.caption(widgets.escape(answer["note"]))
    panels = _panels(answer, names, pair, compared.cards[pair[0]]["modality"])
    for start in range(0, len(panels), 2):
        for column, panel in zip(st.columns(2, gap="large"), panels[start : start + 2], strict=False):
            with column:
                panel()
    _samples(answer, names, selection)
    widgets.how_sure("agreement", lambda: _statistics(answer, names, compared.cards[pair[0]]))
    widgets.numbers_behind(charts.step_rows(answer), "steps")


def _panels(
    answer: Mapping[str, Any], names: tuple[str, str], pair: tuple[str, str], modality: str
) -> list[Callable[[], None]]:
    """What stands side by side, as far as there is something to show."""
    about: dict[str, Any] = {"theme": widgets.theme(), "title": None}

    def chart(title: str, words: str, drawing: Any, help_text: str | None = None) -> Callable[[], None]:
        def draw_it() -> None:
            st.subheader(title, anchor=False, help=help_text)
            st.caption(widgets.escape(words))
            widgets.chart(drawing, runs=list(pair))

        return draw_it

    panels = [chart(charts.STEPS, charts.step_words(answer), charts.agreement_steps_chart(answer, **about))]
    if len(answer["steps"]) > 1:
        drawing = charts.agreement_together_chart(answer, **about)
        panels.append(chart(charts.TOGETHER, charts.together_words(answer), drawing))
    if modality == "text":
        drawing = charts.agreement_positions_chart(answer, **about)
        panels.append(chart(charts.POSITIONS, charts.position_words(answer), drawing))
    if answer["margins"]:
        drawing = charts.agreement_margins_chart(answer, **about)
        help_text = f"Margin: the score of the last chosen module less that of the next one, in {names[0]}."
        panels.append(chart(charts.MARGINS, charts.margin_words(answer), drawing, help_text))
    if len(answer["labels"]) > 1:
        drawing = charts.agreement_labels_chart(answer, **about)
        panels.append(chart(charts.LABELS, charts.label_words(answer), drawing))
    if answer["words"]["looked_at"]:
        panels.append(lambda: _words(answer["words"]))
    return panels


def _compared(answer: Mapping[str, Any]) -> str:
    """Which tokens were compared."""
    words = str(answer["matched"]["sentence"])
    counted = answer["counted"]
    if counted["exact"]:
        return words
    return (
        f"{words} Compared are {numbers.plural(counted['num_tokens'], 'token')} of "
        f"{numbers.plural(counted['num_samples'], 'sample')} drawn from them; `tokenpaths agree` reads all."
    )


def _words(words: Mapping[str, Any]) -> None:
    """Words whose decisions differ more often."""
    st.subheader("Which words differ more often?", anchor=False, help=WORDS_HELP)
    if not words["rows"]:
        looked_at = numbers.plural(words["looked_at"], "word")
        st.write(f"None of {looked_at} surely differs more often than all tokens together.")
        return
    plain_table(word_rows(words["rows"]), "Words whose decisions differ more often than those of all tokens")


def word_rows(words: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Table of the words, with a sign for a blank or a line break."""
    return [
        {
            "word": visible(row["text"]) or f"id {row['token_id']}",
            "same modules": numbers.percent(row["sets"]),
            "tokens": row["tokens"],
            "samples": row["samples"],
        }
        for row in words
    ]


def _samples(answer: Mapping[str, Any], names: tuple[str, str], selection: Selection) -> None:
    """The samples that differ most; a click shows where, below them."""
    st.subheader("Which samples differ most?", anchor=False)
    if not answer["samples"]:
        widgets.empty("No sample has a different decision.")
        return
    st.caption(widgets.escape(f"Samples of {names[0]}. A click shows which decisions differ."))
    items = []
    for row in answer["samples"]:
        number = row["sample"]
        differ = f"{numbers.percent(1 - row['sets'])} of the decisions differ, in {numbers.count(row['differ'])} of "
        differ += numbers.plural(row["num_tokens"], "token")
        label = f"{row['label']}, " if row["label"] else ""
        items.append(wall_item(answer["a"], row, number, f"sample {number}: {label}{differ}", differ))
    wall(
        items,
        key=f"apart_{answer['a']}_{answer['b']}",
        kind="sample" if any(row["has_image"] for row in answer["samples"]) else "text",
        on_open=lambda one: address.go_changed(sample=int(one["sample"])),
    )
    widgets.numbers_behind(
        [
            {name: row[name] for name in ("sample", "partner", "label", "source", "num_tokens", "differ", "sets")}
            for row in answer["samples"]
        ],
        "samples that differ most",
    )
    chosen = selection.sample if selection.sample is not None else answer["samples"][0]["sample"]
    token_map.draw((answer["a"], answer["b"]), names, chosen)


def _statistics(answer: Mapping[str, Any], names: tuple[str, str], card: Mapping[str, Any]) -> None:
    """All numbers of the agreement, with their intervals."""
    overall = answer["overall"]
    told = {
        "decisions with the same modules": overall["sets"],
        "modules of a decision that are shared": overall["overlap"],
        "decisions with the same first choice": overall["first"],
        "decisions with the same modules in the same order": overall["order"],
        "tokens with the same modules at every step": overall["tokens"],
    }
    table = [
        {
            "": name,
            "share": numbers.percent(row["share"] if "share" in row else row["mean"]),
            "95 % interval": "–" if row["low"] is None else charts.interval_words(row),
        }
        for name, row in told.items()
        if row is not None
    ]
    plain_table(table, "Agreement of both runs")
    st.write(widgets.escape(HELP))
    if answer["order_missing"]:
        st.caption(widgets.escape(f"First choices and order are not told: {answer['order_missing']}."))
    if overall["weight_change"] is not None:
        st.caption(
            f"The weight of a module that a decision has in both runs differs by "
            f"{numbers.number(overall['weight_change'])} on average."
        )
    if answer["loss"] is not None:
        for name, words in (("same", "the same modules at every step"), ("different", "other modules somewhere")):
            change = answer["loss"][name]
            if change is None:
                continue
            line = f"Tokens with {words} ({numbers.count(answer['loss'][f'num_{name}'])}): loss in {names[1]} less "
            line += f"that in {names[0]} {numbers.number(change['mean'])} nats"
            if change["low"] is not None:
                line += f" (95 %: {numbers.number(change['low'])} to {numbers.number(change['high'])})"
            st.caption(widgets.escape(f"{line}."))
    common.note_not_independent(card)
