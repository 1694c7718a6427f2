"""Data of the sample explorer (explorer.js) of page and notebooks: tokens, their colours, and the small flow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.ink import ink_kind, legend_parts, path_ink
from tokenpaths.frontend.charts.drawing.palette import Theme, contrast, ink_on, mix
from tokenpaths.frontend.charts.drawing.running_text import Piece, has_ink, tamed, text_pieces
from tokenpaths.frontend.charts.drawing.slots import DROPPED, NOT_RECORDED, SKIPPED, idle, known, mark
from tokenpaths.frontend.charts.flow.layout import OTHER, FlowLayout, Link, Node, flow_layout
from tokenpaths.frontend.charts.flow.token_flow import token_label, visible
from tokenpaths.frontend.charts.patches import module_key, step_colour

PICTURE_WIDTH = 560
MOST_LINKS = 300
"""maximum number of links in the small chart, which shows only the shape of the flow; the Flow view has the numbers"""
MOST_HOLLOW = 400
"""maximum number of circles in an editable chart with unvisited modules; larger flows leave them out"""
HOLLOW_RADIUS = 3.5
GREY = "#808080"
"""mean of the grey picture under a tint, for its legend"""


@dataclass(frozen=True)
class Tint:
    """How the tokens of a sample are coloured."""

    theme: Theme
    num_paths: int
    opacity: float
    step: int | None = None
    """by the module of this step; None: by how many tokens take the path"""
    identities: Collection[int] = ()
    offered: Collection[int] | None = None
    """ids of the run's modules: others stand for decisions that nobody recorded"""
    of: str = "run"
    """scope of the flow: ``run`` or ``sample``"""
    reference: str | None = None
    """the run that ranks and counts are from, if it is not the sample's own"""


def explorer_data(
    sample: Mapping[str, Any],
    flow: Mapping[str, Any],
    tint: Tint,
    *,
    image: str | None,
    chosen: int | None,
    kept: Callable[[Mapping[str, Any]], bool],
    chosen_link: str | None = None,
    modules: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Data for the component.

    Args:
        kept: False for a token excluded by the page's filters; it is faded.
        chosen_link: ``step.source>step+1.target`` of the highlighted ribbon.
        modules: All selectable modules: unvisited ones get a small hollow circle, so that they can be clicked.
    """
    is_text = sample.get("text") is not None and sample.get("grid") is None
    grid, theme = sample.get("grid") or {"rows": 1, "cols": 1}, tint.theme
    opacity = tint.opacity if is_text else 1.0
    legend = _legend(sample["tokens"], tint, theme.background if is_text else GREY) if tint.opacity else None
    tokens = [_token(token, tint, opacity) | {"faded": not kept(token)} for token in sample["tokens"]]
    data: dict[str, Any] = {
        "kind": "text" if is_text else "image",
        "tokens": tokens,
        "opacity": tint.opacity,
        "chosen": chosen,
        "chosen_link": chosen_link,
        "flow": small_flow(with_unvisited(flow, modules), of=tint.of, unvisited=bool(modules)),
        "first_step": (flow.get("steps") or [0])[0],
        "colours": {name: getattr(theme, name) for name in ("accent", "muted", "identity", "module", "link")}
        | {"casing": theme.ink},
        "legend": legend,
        "hint": None if tint.opacity else "No tint: its opacity is 0 %.",
        "invitation": ("Point at a token" if is_text else "Point at a patch") + " to see its path; click to keep it.",
        "image": image,
        "alt": f"sample {sample['sample']}, {sample.get('label') or 'no label'}",
        "label": _label(sample, is_text, tint.step),
        "rows": grid["rows"],
        "cols": grid["cols"],
    }
    if is_text:
        fills = {token["token"]: token["fill"] for token in tokens}
        data["pieces"] = [_piece(piece, fills) for piece in text_pieces(sample["text"], sample["tokens"])]
    return data


def _piece(piece: Piece, fills: Mapping[int, str]) -> dict[str, Any]:
    """A piece of the text: ``thin`` if it takes no room (a joiner, an accent), ``ink`` of the letters over the fills of
    all its tokens.
    """
    shown: dict[str, Any] = {"text": tamed(piece.text), "tokens": list(piece.tokens)}
    if piece.tokens:
        under = [fills[token] for token in piece.tokens]
        shown["ink"] = max(("#000000", "#ffffff"), key=lambda ink: min(contrast(ink, fill) for fill in under))
    if piece.tokens and not has_ink(shown["text"]) and not any(letter.isspace() for letter in shown["text"]):
        shown["thin"] = True
    return shown


def _legend(tokens: Sequence[Mapping[str, Any]], tint: Tint, paper: str) -> dict[str, Any]:
    """The legend in the colours that the eye sees: those of the tint over ``paper``."""
    if tint.step is None:
        legend = legend_parts(tokens, tint.theme)
        if tint.reference is not None:
            legend["title"] = f"tokens of {tint.reference}:"
    else:
        keys = module_key(tokens, tint.step, tint.identities, tint.theme, tint.offered)
        legend = {"scale": None, "title": f"module at step {tint.step}:", "keys": keys}
    legend["keys"] = [{**key, "colour": mix(key["colour"], paper, tint.opacity)} for key in legend["keys"]]
    if legend["scale"]:
        legend["scale"]["stops"] = [mix(stop, paper, tint.opacity) for stop in legend["scale"]["stops"]]
    return legend


def _label(sample: Mapping[str, Any], is_text: bool, step: int | None) -> str:
    """What the picture is called for screen readers."""
    image = ("image",) if len(sample["tokens"]) == 1 else ("patch", "patches")
    return (
        f"Sample {sample['sample']}, {sample.get('label') or 'no label'}: "
        + numbers.plural(len(sample["tokens"]), *(("token",) if is_text else image))
        + (
            ", coloured by how many tokens take their path"
            if step is None
            else f", coloured by their module at step {step}"
        )
        + "; arrow keys lead from one to the next"
    )


def with_unvisited(flow: Mapping[str, Any], modules: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The flow with a node of count 0 for each of ``modules`` that no token visits; large flows are unchanged."""
    steps = flow.get("steps") or []
    merged = any(node["module"] == OTHER for node in flow["nodes"])
    offered = [m for m in modules if m["step"] is None or m["kind"] != "identity"]
    if merged or sum(len(steps) if m["step"] is None else 1 for m in offered) > MOST_HOLLOW:
        return flow
    there = {(node["step"], node["module"]) for node in flow["nodes"]}
    hollow = [
        {"step": step, "module": m["module"], "name": m["name"], "kind": m["kind"], "count": 0, "share": 0.0}
        for m in offered
        for step in (steps if m["step"] is None else [m["step"]])
        if step in steps and (step, m["module"]) not in there
    ]
    return {**flow, "nodes": [*flow["nodes"], *hollow]}


def token_words(token: Mapping[str, Any], tint: Tint) -> tuple[str, str]:
    """Explanation of one token: a heading and two sentences."""
    what = (
        f"Patch {token_label(token)}"
        if token.get("row") is not None
        else f"Token {token['token']}" + (f" “{visible(token['text'])}”" if token.get("text") else "")
    )
    steps = len(token["ribbon"])
    reasons = Counter(idle(modules, tint.identities, tint.offered) for modules in token["ribbon"])
    head = f"{what}: modules {numbers.ribbon_words(token['ribbon'], offered=tint.offered)}"
    words = (
        f"{taken_words(token, tint.num_paths, tint.of, tint.reference)} "
        f"Skipped {reasons[SKIPPED]} of {steps} steps; compute {numbers.percent(token['compute'])}, reuse "
        f"{numbers.percent(token['reuse'])}."
    )
    if dropped := reasons[DROPPED]:
        words += f" Dropped at {numbers.plural(dropped, 'step')}: it used no module there."
    if unknown := reasons[NOT_RECORDED]:
        words += f" Not recorded at {numbers.plural(unknown, 'step')}: what it chose there is not known."
    if token.get("region"):
        words += f" Region: {token['region']}."
    return head, words


def taken_words(token: Mapping[str, Any], num_paths: int, of: str = "run", reference: str | None = None) -> str:
    """How many tokens take the path of a token, as a sentence."""
    kind = ink_kind(token)
    if kind == "unknown" and reference is None:  # every path of a data set has tokens: it is an upload
        return "How many tokens take this path is not known: there is no reference run to count them in."
    if kind == "unknown":
        return f"No token of run {reference} takes this path."
    where = f"of run {reference}" if reference is not None else "of this sample" if of == "sample" else "of the run"
    rank = f"Path of rank {numbers.count(token['rank'])} of {numbers.count(num_paths)}"
    if kind == "once":
        return f"{rank}: a single token {where} takes it."
    return (
        f"{rank}: {numbers.count(token['path_tokens'])} tokens {where} take it; {numbers.percent(token['cdf_middle'])} "
        "of all are on more frequent paths, half of those on equally frequent ones counted in."
    )


def small_flow(
    flow: Mapping[str, Any], *, width: float = PICTURE_WIDTH, of: str = "run", unvisited: bool = False
) -> dict[str, Any]:
    """The flow chart in pixels of a fixed box, to be scaled by the component; ``of`` the run or one sample."""
    per_step = Counter(node["step"] for node in flow["nodes"])
    ids = {node["module"] for node in flow["nodes"]}
    rows_count = max(per_step.values(), default=1) if flow.get("own_modules") else len(ids)
    layout = flow_layout(flow, height=float(min(430, max(200, 20 * rows_count))), most_links=MOST_LINKS)
    steps = layout.steps or [0]
    reach = min(layout.radius, 0.42 * (width - 50.0) / max(1, len(steps) - 1)) + 3.0
    # padding, so that circles at both ends are not cut off
    left, right, top = max(54.0 if layout.several_kinds else 34.0, 22.0 + reach), max(16.0, reach), 18.0
    gap = (width - left - right) / max(1, len(steps) - 1)
    radius = min(1.0, 0.42 * gap / layout.radius)
    x = {step: round(left + gap * place, 1) for place, step in enumerate(steps)}
    every = max(1, -(-len(steps) // 14))
    whose = "this sample" if of == "sample" else "the run"
    hollow = unvisited and any(n.count <= 0 for n in layout.nodes)
    return {
        "width": width,
        "height": layout.height + top + 4,
        "label": f"Flow of all {numbers.plural(flow.get('num_tokens'), 'token')} of {whose}, and the chosen path as a "
        "line",
        "x": [x[step] for step in steps],
        "y": {str(m): round(y + top, 1) for m, y in layout.row_of.items()}
        | ({f"{s}.{m}": round(y + top, 1) for (s, m), y in layout.place.items()} if layout.own else {}),
        "other": next((round(y + top, 1) for (_, m), y in layout.place.items() if m == OTHER), None),
        "nodes": [
            _node(node, x[node.step], top, radius)
            for node in layout.nodes
            if node.step in x and (node.count > 0 or (unvisited and not node.other))
        ],
        "links": [_link(link, x, top, radius) for link in layout.links if link.step in x and link.step + 1 in x],
        "steps": [{"x": x[step], "label": str(step)} for step in steps[::every]],
        "caption": f"All tokens of {whose}. Columns: steps. "
        + ("In each the busiest module stands at the top. " if layout.own else "Rows: modules. ")
        + ("Hollow: nobody goes there. " if hollow else "")
        + "Line: the path of the token pointed at.",
        "rows": _row_labels(layout, top),
    }


def _node(node: Node, x: float, top: float, scale: float) -> dict[str, Any]:
    what = node.name if node.other else f"module {node.module} ({node.kind})"
    return {
        "key": node.key,
        "x": x,
        "y": round(node.y + top, 1),
        "r": round(node.radius * scale, 2) if node.count > 0 else HOLLOW_RADIUS,
        "skip": node.kind in ("identity", "other"),
        "hollow": node.count <= 0,
        "title": f"step {node.step}, {what}: {numbers.count(node.count)} tokens, {numbers.percent(node.share)}",
    }


def _link(link: Link, x: Mapping[int, float], top: float, scale: float) -> dict[str, Any]:
    return {
        "key": "" if OTHER in (link.source, link.target) else link.key,
        "title": f"module {link.source} at step {link.step} → module {link.target} at step {link.step + 1}: "
        f"{numbers.plural(link.count, 'token')}, {numbers.percent(link.share)}",
        "x0": x[link.step],
        "x1": x[link.step + 1],
        "y0": round(link.y0 + top, 1),
        "y1": round(link.y1 + top, 1),
        "w": round(max(0.3, link.width * scale), 2),
    }


def _row_labels(layout: FlowLayout, top: float) -> list[dict[str, Any]]:
    """Labels of the rows, thinned so that they do not overlap; without rows (own modules) only those of “other”."""
    words = layout.row_words()
    thin = max(1, -(-len(layout.row_of) * 12 // int(layout.height)))
    others = {y for (_, module), y in layout.place.items() if module == OTHER}
    return [
        {"y": round(y + top, 1), "label": words[module]}
        for place, (module, y) in enumerate(layout.row_of.items())
        if place % thin == 0
    ] or [{"y": round(y + top, 1), "label": "other"} for y in others]


def _token(token: Mapping[str, Any], tint: Tint, opacity: float) -> dict[str, Any]:
    theme = tint.theme
    if tint.step is None:
        line, sign = path_ink(token, theme).colour, ""
    else:
        modules = token["ribbon"][tint.step]
        line, sign = step_colour(modules, theme, tint.identities, tint.offered), mark(modules, tint.offered)
    fill = mix(line, theme.background, opacity)
    head, words = token_words(token, tint)
    return {
        "token": token["token"],
        "row": token.get("row"),
        "col": token.get("col"),
        "fill": fill,
        "ink": ink_on(fill),
        "mark": sign,
        "ribbon": known(token["ribbon"], tint.offered),
        "line": line,
        "path": numbers.ribbon_words([sorted(modules) for modules in token["ribbon"]], most=len(token["ribbon"])),
        "head": head,
        "words": words,
    }
