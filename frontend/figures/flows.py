"""Flow and load of modules: figures 2, 8, 9 (left), 10, 13, 18 and 19 of the DNA paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.printing import printed
from tokenpaths.frontend.charts.drawing.slots import named, offered_ids
from tokenpaths.frontend.charts.flow.flow import link_rows, node_rows
from tokenpaths.frontend.charts.flow.flow_words import flow_captions, flow_words
from tokenpaths.frontend.charts.flow.layout import flow_layout, least_share
from tokenpaths.frontend.charts.flow.token_flow import token_rows
from tokenpaths.frontend.charts.usage import module_rows
from tokenpaths.frontend.figures import common, walls
from tokenpaths.frontend.figures.figure import Figure, NotHere, Source, Wishes

MANY_MODULES, DRAWN_MODULES = 48, 12
"""if steps have more modules of their own than the first, all but the largest of each step are merged"""
ROWS = 48
"""rows of a token flow; tokens are shown in columns of this many"""
_ROW_POINTS = 11.0


def merged_modules(info: Mapping[str, Any]) -> int | None:
    """How many modules of each step stay, where a large mixture of experts is merged; None: all."""
    own = any(module["step"] is not None for module in info["modules"])
    return DRAWN_MODULES if own and info["num_modules"] > MANY_MODULES else None


def flow_answer(source: Source, info: Mapping[str, Any]) -> dict[str, Any]:
    """All nodes and links, with the small modules of a large mixture of experts merged."""
    return source.flow(most_modules=merged_modules(info))


def flow(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 2, 8 and 10: circles and links, and effective top-k."""
    from tokenpaths.frontend.charts import flow_chart

    info, usage = source.info(), source.usage()
    answer = flow_answer(source, info)
    modules = sum(node["count"] > 0 for node in answer["nodes"])
    least = least_share(answer)
    drawn = flow_layout(answer, least=least)
    words = [
        flow_words(answer),
        f"{numbers.plural(answer['num_tokens'], 'token')} through {numbers.plural(info['num_steps'], 'step')} of "
        f"{numbers.count(info['num_modules'])} modules, top-{info['top_k']}. Circle area: tokens of the module, "
        "ribbon width: tokens that go that way, grey: identity modules.",
        *flow_captions(answer, least, drawn),
    ]
    if info["num_steps"] == 1:
        words.append("With one step there are no ribbons.")
    picture = [
        Figure(
            "fig2-flow",
            "Where do tokens go?",
            " ".join(words),
            {
                "num_tokens": answer["num_tokens"],
                "circles": modules,
                "ribbons": len(drawn.links),
                "not_drawn_links": sum(row["num_links"] for row in drawn.other),
            },
            {"nodes": node_rows(answer), "links": link_rows(answer)},
            ("flow",),
            draw=lambda theme: flow_chart(answer, theme=theme, title=None, interactive=theme != "print"),
            columns=2,
        )
    ]
    return picture + _top_k(usage)


def _top_k(usage: Mapping[str, Any]) -> list[Figure]:
    """Effective top-k of each step; empty where no step has one."""
    from tokenpaths.frontend.charts import top_k_chart

    measured = [row for row in usage["steps"] if row["effective_top_k"] is not None]
    if not measured:
        return []
    twin = any(row.get("untrained_effective_top_k") is not None for row in measured)
    listed = ", ".join(numbers.number(row["effective_top_k"]) for row in measured)
    names = ("step", "effective_top_k", "untrained_effective_top_k", "load_entropy", "max_violation")
    return [
        Figure(
            "fig2-top-k",
            "How concentrated is each step?",
            f"Effective top-k per step (α = 1.5): {listed}. "
            + ("Dashed: the untrained twin." if twin else "This run has no untrained twin to compare with."),
            {f"step {row['step']}": row["effective_top_k"] for row in measured},
            {"steps": [{name: row.get(name) for name in names} for row in measured]},
            ("topk", "load"),
            draw=lambda theme: top_k_chart(usage, theme=theme, title=None, height=130),
        )
    ]


def module_counts(source: Source, wishes: Wishes) -> list[Figure]:
    """Figure 13: tokens per module with dead ones marked; per step as a heat map."""
    from tokenpaths.frontend.charts import load_chart
    from tokenpaths.frontend.charts.usage import MOST_MARKED, module_count_chart, stand_in_words

    usage = source.usage()
    own = any(module["step"] is not None for module in source.info()["modules"])
    table = module_rows(usage)
    counted = usage["usage"] if own else table  # if each step has its own modules, equal ids are different modules

    def named(row: Mapping[str, Any]) -> str:
        return f"{row['module']} of step {row['step']}" if own else str(row["module"])

    # The twin of an always-active gate or block is an unused identity module: not dead, it has no function.
    dead = [named(row) for row in counted if row["count"] == 0 and not (own and row["kind"] == "identity")]
    most = max(counted, key=lambda row: row["count"])
    busiest = f"Module {named(most)} has the most, {numbers.plural(most['count'], 'visit')}. "
    listed = f"Dead: {', '.join(dead[:20])}{' …' if len(dead) > 20 else ''}." if dead else ""
    # A cell without a token is not a dead module: over all steps each module may have got some.
    empty = sum(row["count"] == 0 and row["utilisation"] is not None for row in usage["usage"])
    cells = numbers.plural(len(usage["usage"]), "cell")
    mark = "page colour" if len(table) > MOST_MARKED else "×"
    at_steps = f"{mark}: no token came, as at {numbers.count(empty)} of {cells}. " if empty else ""
    alive = f"No module is dead: each got a token at {'its' if own else 'some'} step."
    figures = [
        Figure(
            "fig13-load-per-step",
            "How is the work shared between modules, step by step?",
            f"Utilisation of each module at each step (1 = a fair share). {at_steps}{busiest}"
            + " ".join(filter(None, [listed or alive, stand_in_words(usage) if own else ""])),
            {"dead": dead, "max_violation": [row["max_violation"] for row in usage["steps"]]},
            {"cells": usage["usage"], "steps": usage["steps"]},
            ("load",),
            draw=lambda theme: load_chart(usage, theme=theme, title=None),
            height=None if len(table) > 40 else 11.0 * len(table) + 60,
        )
    ]
    if not own:
        figures.insert(
            0,
            Figure(
                "fig13-module-counts",
                "How many tokens did each module get?",
                f"Visits of {numbers.plural(len(table), 'module')} over all steps; grey: identity modules, where a "
                "visit is a skipped step. " + busiest + (listed or "No module is dead."),
                {"dead": dead, "visits": sum(row["count"] for row in table)},
                {"modules": table},
                ("load",),
                draw=lambda theme: module_count_chart(usage, theme=theme, title=None, height=130),
            ),
        )
    return figures


def token_flow(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 9 (left), 18 and 19: the modules of every token of one text at each step."""
    info = source.info()
    if common.is_vision(info):
        raise NotHere("Figures 9 (left), 18 and 19 follow the tokens of a text, and this run is of images.")
    number = wishes.sample if wishes.sample is not None else _readable(source)
    sample = source.sample(number)
    if not sample["tokens"]:
        raise NotHere(f"Sample {number} of this run has no tokens.")
    weighted = bool(info["weight_semantics"].get("weights_recorded", True))
    shade = ("weight" if weighted else "overlap") if common.all_differ(info) else "path"
    # Cells show module names: with few steps and one module each, three columns of tokens fit on a page.
    beside = max(1, min(3, round(24 / (info["num_steps"] * min(2, info["top_k"])))))
    shown = min(beside * ROWS, len(sample["tokens"]))
    offered = offered_ids(info)
    look = {"identities": common.identities(info), "offered": offered, "shade": shade, "weighted": weighted}
    parts = [_part(sample, first, min(ROWS, shown - first), look) for first in range(0, shown, ROWS)]
    colour = {
        "path": "colour: how many tokens take its whole path; grey: a skipped step",
        "weight": "colour: the weight of that module (nearly every token has a path of its own)",
        "overlap": "colour: share of modules that the token before took too (this run holds no weights)",
    }[shade]
    return [
        Figure(
            "fig18-token-flow",
            "Which module did each token take at each step?",
            f"Sample {number}"
            + (f" ({sample['label']})" if sample.get("label") else "")
            + f": {numbers.count(shown)} of {numbers.plural(len(sample['tokens']), 'token')}, one row a token, one "
            f"column a step; cell: the module taken, {colour}. "
            f"{numbers.plural(sample['num_distinct_paths'], 'different path')} in this text.",
            {"sample": number, "num_tokens": len(sample["tokens"]), "num_distinct_paths": sample["num_distinct_paths"]},
            {
                "tokens": [
                    row
                    | {"text": token.get("text"), "ribbon": named(token["ribbon"], offered)}
                    | ({"weights": token["weights"]} if weighted else {})
                    for row, token in zip(token_rows(sample, offered), sample["tokens"], strict=True)
                ]
            },
            ("cdf",),
            sheet=walls.side_by_side(parts),
            columns=2 if len(parts) > 1 or info["num_steps"] > 8 else 1,
        )
    ]


def _readable(source: Source) -> int:
    """The first sample whose whole text fits the figure, else the first one with tokens."""
    samples = source.samples(limit=500)["samples"]
    fitting = [row for row in samples if ROWS // 2 <= row["num_tokens"] <= 2 * ROWS] or [
        row for row in samples if row["num_tokens"] >= 1
    ]
    return int(fitting[0]["sample"]) if fitting else 0


def _part(sample: Mapping[str, Any], first: int, num: int, look: Mapping[str, Any]) -> Callable[[float], str]:
    from tokenpaths.frontend.charts import token_flow_chart

    def draw(width: float) -> str:
        chart = token_flow_chart(sample, theme="print", first=first, most=num, **look)
        return printed(chart, width, height=_ROW_POINTS * num)

    return draw
