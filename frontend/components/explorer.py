"""Sample explorer (explorer.js, explorer.css): image or text, its flow, and the path of the token under the pointer.

Streamlit cannot update one chart while the pointer is over another; this component does it in the browser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme, cdf_colour, ink_on, mix
from tokenpaths.frontend.charts.drawing.running_text import tamed, text_pieces
from tokenpaths.frontend.charts.flow.layout import OTHER, flow_layout
from tokenpaths.frontend.charts.flow.token_flow import token_label, visible
from tokenpaths.frontend.charts.patches import module_colour

_HERE = Path(__file__).parent
PICTURE_WIDTH = 560
MOST_LINKS = 300
"""maximum number of links in the small chart, which shows only the shape of the flow; the Flow view has the numbers"""
MOST_HOLLOW = 400
"""maximum number of circles in an editable chart with unvisited modules; larger flows leave them out"""
HOLLOW_RADIUS = 3.5


@lru_cache(maxsize=1)
def _renderer() -> Any:
    return st.components.v2.component(
        "tokenpaths.explorer",
        html='<div class="tp"></div>',
        css=(_HERE / "explorer.css").read_text("utf-8"),
        js=(_HERE / "explorer.js").read_text("utf-8"),
    )


def explorer(
    data: Mapping[str, Any],
    *,
    key: str,
    on_pick: Callable[[Any], None],
    on_node: Callable[[str], None],
    on_link: Callable[[str, str], None] | None = None,
) -> None:
    """Mount the component.

    Args:
        on_pick: Called with a token or None.
        on_node: Called with a ``step.module``.
        on_link: Called with both ends of a ribbon; None: ribbons cannot be selected.
    """

    def picked() -> None:
        value = st.session_state[key].get("pick")
        if value is not None:
            on_pick(value.get("token"))

    def node() -> None:
        value = str(st.session_state[key].get("node") or "")
        if value and not value.endswith(f".{OTHER}"):  # “other” cannot be a filter: it stands for many modules
            on_node(value)

    def linked() -> None:
        source, _, target = str(st.session_state[key].get("link") or "").partition(">")
        if target and on_link is not None:
            on_link(source, target)

    _renderer()(
        data=dict(data) | {"open_links": on_link is not None},
        key=key,
        on_pick_change=picked,
        on_node_change=node,
        on_link_change=linked,
    )


def explorer_data(
    sample: Mapping[str, Any],
    flow: Mapping[str, Any],
    *,
    theme: Theme,
    image: str | None,
    num_paths: int,
    opacity: float,
    step: int | None,
    chosen: int | None,
    identities: Collection[int],
    kept: Callable[[Mapping[str, Any]], bool],
    chosen_link: str | None = None,
    of: str = "run",
    modules: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Data for the component.

    Args:
        step: Tint by the module of this step; None: by path CDF.
        kept: False for a token excluded by the page's filters; it is faded.
        chosen_link: ``step.source>step+1.target`` of the highlighted ribbon.
        of: Scope of ``num_paths``, the ranks and the flow: ``run`` or ``sample``.
        modules: All selectable modules: unvisited ones get a small hollow circle, so that they can be clicked.
    """
    is_text = sample.get("text") is not None and sample.get("grid") is None
    grid = sample.get("grid") or {"rows": 1, "cols": 1}
    tokens = [
        _token(t, theme, num_paths, opacity if is_text else 1.0, step, identities, of) | {"faded": not kept(t)}
        for t in sample["tokens"]
    ]
    data: dict[str, Any] = {
        "kind": "text" if is_text else "image",
        "tokens": tokens,
        "opacity": opacity,
        "chosen": chosen,
        "chosen_link": chosen_link,
        "flow": small_flow(with_unvisited(flow, modules), of=of, unvisited=bool(modules)),
        "first_step": (flow.get("steps") or [0])[0],
        "colours": {
            "accent": theme.accent,
            "muted": theme.muted,
            "identity": theme.identity,
            "module": theme.module,
            "link": theme.link,
        },
        "legend": {"left": "frequent path", "right": "rare path", "stops": list(theme.cdf)}
        if step is None and num_paths > 1
        else None,
        "hint": f"Tint and number: the module taken at step {step}; grey: skipped."
        if step is not None
        else f"All {'patches' if not is_text else 'tokens'} take one path.",
        "invitation": ("Point at a token" if is_text else "Point at a patch") + " to see its path; click to keep it.",
        "image": image,
        "alt": f"sample {sample['sample']}, {sample.get('label') or 'no label'}",
        "label": f"Sample {sample['sample']}, {sample.get('label') or 'no label'}: "
        + numbers.plural(len(tokens), *(("token",) if is_text else ("patch", "patches")))
        + (", coloured by how frequent their path is" if step is None else f", coloured by their module at step {step}")
        + "; arrow keys lead from one to the next",
        "rows": grid["rows"],
        "cols": grid["cols"],
    }
    if is_text:
        data["pieces"] = [
            {"text": tamed(p.text), "tokens": list(p.tokens)} for p in text_pieces(sample["text"], sample["tokens"])
        ]
    return data


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


def token_words(
    token: Mapping[str, Any], num_paths: int, identities: Collection[int], of: str = "run"
) -> tuple[str, str]:
    """Explanation of one token: a heading and two sentences."""
    what = (
        f"Patch {token_label(token)}"
        if token.get("row") is not None
        else f"Token {token['token']}" + (f" “{visible(token['text'])}”" if token.get("text") else "")
    )
    steps = len(token["ribbon"])
    skipped = sum(all(int(m) in identities for m in modules) for modules in token["ribbon"])
    head = f"{what}: modules {numbers.ribbon_words(token['ribbon'])}"
    here, everybody = (" in this sample", "its tokens") if of == "sample" else ("", "all tokens")
    words = (
        f"Path of rank {numbers.count(token['rank'])} of {numbers.count(num_paths)}{here}: "
        f"{numbers.percent(token['cdf'])} of {everybody} are on paths at least as frequent (CDF). "
        f"Skipped {skipped} of {steps} steps; compute {numbers.percent(token['compute'])}, reuse "
        f"{numbers.percent(token['reuse'])}."
    )
    if token.get("region"):
        words += f" Region: {token['region']}."
    return head, words


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
    left, right, top = max(34.0, 22.0 + reach), max(16.0, reach), 18.0
    gap = (width - left - right) / max(1, len(steps) - 1)
    radius = min(1.0, 0.42 * gap / layout.radius)
    x = {step: round(left + gap * place, 1) for place, step in enumerate(steps)}
    names = {node.module: node for node in layout.nodes}
    thin = max(1, -(-len(layout.row_of) * 12 // int(layout.height)))
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
            {
                "key": n.key,
                "x": x[n.step],
                "y": round(n.y + top, 1),
                "r": round(n.radius * radius, 2) if n.count > 0 else HOLLOW_RADIUS,
                "skip": n.kind in ("identity", "other"),
                "hollow": n.count <= 0,
                "title": f"step {n.step}, "
                + (n.name if n.other else f"module {n.module} ({n.kind})")
                + f": {numbers.count(n.count)} tokens, {numbers.percent(n.share)}",
            }
            for n in layout.nodes
            if n.step in x and (n.count > 0 or (unvisited and not n.other))
        ],
        "links": [
            {
                "key": "" if OTHER in (k.source, k.target) else k.key,
                "title": f"module {k.source} at step {k.step} → module {k.target} at step {k.step + 1}: "
                f"{numbers.plural(k.count, 'token')}, {numbers.percent(k.share)}",
                "x0": x[k.step],
                "x1": x[k.step + 1],
                "y0": round(k.y0 + top, 1),
                "y1": round(k.y1 + top, 1),
                "w": round(max(0.3, k.width * radius), 2),
            }
            for k in layout.links
            if k.step in x and k.step + 1 in x
        ],
        "steps": [{"x": x[step], "label": str(step)} for step in steps[::every]],
        "caption": f"All tokens of {whose}. Columns: steps. "
        + ("In each the busiest module stands at the top. " if layout.own else "Rows: modules. ")
        + ("Hollow: nobody goes there. " if hollow else "")
        + "Line: the path of the token pointed at.",
        "rows": [
            {"y": round(y + top, 1), "label": {"identity": "skip", "other": "other"}.get(names[m].kind, str(m))}
            for place, (m, y) in enumerate(layout.row_of.items())
            if place % thin == 0
        ]
        or [
            {"y": round(y + top, 1), "label": "other"} for y in {y for (_, m), y in layout.place.items() if m == OTHER}
        ],
    }


def _token(
    token: Mapping[str, Any],
    theme: Theme,
    num_paths: int,
    opacity: float,
    step: int | None,
    identities: Collection[int],
    of: str,
) -> dict[str, Any]:
    modules: Sequence[int] = token["ribbon"][step] if step is not None and step < len(token["ribbon"]) else []
    fill = (
        module_colour(int(modules[0]), int(modules[0]) in identities, theme)
        if modules
        else cdf_colour(token["cdf"] if num_paths > 1 else 0.0, theme)  # the only path is not rare
    )
    fill = mix(fill, theme.background, opacity)
    head, words = token_words(token, num_paths, identities, of)
    return {
        "token": token["token"],
        "row": token.get("row"),
        "col": token.get("col"),
        "fill": fill,
        "ink": ink_on(fill),
        "mark": "+".join(str(m) for m in modules),
        "ribbon": token["ribbon"],
        "rank": token["rank"],
        "head": head,
        "words": words,
    }
