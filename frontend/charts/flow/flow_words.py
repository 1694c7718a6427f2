"""What a response of ``/flow`` says in words, and what its chart leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.flow.layout import OTHER, FlowLayout, NotDrawn, flow_layout


def flow_words(flow: Mapping[str, Any]) -> str:
    """How concentrated the choices of each step are, and the busiest module, in a sentence."""
    by_step: dict[int, list[Mapping[str, Any]]] = {}
    for node in flow.get("nodes") or []:
        if node["count"] > 0:
            by_step.setdefault(node["step"], []).append(node)
    single = [node for nodes in by_step.values() for node in nodes if node["module"] != OTHER]
    if not single:
        return "No token."
    busiest = max(single, key=lambda node: (node["count"], -node["step"], -node["module"]))
    skip = " (skip)" if busiest.get("kind") == "identity" else ""
    share = numbers.percent(float(busiest["count"]) / float(flow["num_tokens"]))
    most = f"module {busiest['module']}{skip} at step {busiest['step']} is the busiest, with {share} of the tokens"
    halves = [_modules_of_half(nodes) for nodes in by_step.values()]
    if None in halves:
        return f"{numbers.capital(most)}."
    visited = [sum(int(node.get("num_modules") or 1) for node in nodes) for nodes in by_step.values()]
    if max(visited) == 1:
        return "All tokens take the same way."
    where = "the step’s" if len(by_step) == 1 else "each step’s"
    return f"Half of {where} choices go to {_range(halves)} of the {_range(visited)} modules visited; {most}."


def _modules_of_half(nodes: Sequence[Mapping[str, Any]]) -> int | None:
    """The least number of modules of a step that get half of its choices; None where “other” hides it."""
    total, running = sum(node["count"] for node in nodes), 0.0
    ordered = sorted((node["count"] for node in nodes if node["module"] != OTHER), reverse=True)
    for place, count in enumerate(ordered, 1):
        running += count
        if 2 * running >= total * (1 - 1e-9):
            return place
    return None


def _range(values: Sequence[int | None]) -> str:
    least, most = (f(value for value in values if value is not None) for f in (min, max))
    return numbers.count(least) if least == most else f"{numbers.count(least)} to {numbers.count(most)}"


def merged_words(flow: Mapping[str, Any]) -> list[str]:
    """One line with the number of modules merged into squares; empty if there are none."""
    others = [node for node in flow.get("nodes") or [] if node["module"] == OTHER]
    if not others:
        return []
    size = _range([int(node.get("num_modules") or 0) for node in others])
    what = str(others[0].get("name") or "").rstrip(")").rpartition(" ")[2] or "modules"
    visits = sum(float(node["count"]) for node in flow["nodes"]) or 1.0
    share = numbers.percent(sum(float(node["count"]) for node in others) / visits)
    return [f"Square: “other”, {size} smaller {what} of a step together, {share} of all choices; not to scale."]


def moves_of(flow: Mapping[str, Any]) -> float:
    """Transitions of all tokens between consecutive steps."""
    return float(flow.get("num_tokens") or 0) * max(0, len(flow.get("steps") or []) - 1)


def hidden_words(layout: FlowLayout, moves: float = 0, least: float = 0.0) -> list[str]:
    """A line for each reason why links are not drawn, with their number and share of all ``moves``; empty if all are.

    ``least``: the threshold of the layout, a share of the tokens.
    """
    small, more = layout.small, layout.more
    under = f"under {numbers.percent(least)} of the tokens"
    beyond = f"beyond the {numbers.count(len(layout.links) + small.num_links)} largest"
    hidden = [(small, f" {under}", ""), (more, f" {beyond}", "")]
    if small.num_links > 0 and more.num_links > 0:
        both = NotDrawn(small.num_links + more.num_links, small.count + more.count)
        parts = f": {numbers.count(small.num_links)} {under}, {numbers.count(more.num_links)} {beyond}"
        hidden = [(both, "", parts)]
    words = [
        *((part, which, "hidden", parts) for part, which, parts in hidden),
        (layout.merged, " from or to “other”", "not drawn", ""),
        (layout.unknown, " from or to a choice that is not recorded", "not drawn", ""),
        (layout.mixed, "", "not drawn", f": all from or to “other”, and those {beyond} between two modules"),
    ]
    return [
        f"{numbers.plural(part.num_links, 'flow')}{which} {'is' if part.num_links == 1 else 'are'} {how}"
        + (f" ({numbers.percent(min(1.0, part.count / moves))} of all moves between steps)" if moves else "")
        + f"{parts}."
        for part, which, how, parts in words
        if part.num_links > 0
    ]


def flow_captions(flow: Mapping[str, Any], least: float, layout: FlowLayout | None = None) -> list[str]:
    """What the chart of ``flow`` does not draw one by one; ``layout``: the one that is drawn, if it is at hand."""
    layout = flow_layout(flow, least=least) if layout is None else layout
    return [*merged_words(flow), *hidden_words(layout, moves_of(flow), least)]
