"""The flow picture: areas, widths, conservation, the cap. Each would show a wrong picture if it failed."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from tests.support.runs import open_run
from tokenpaths.frontend.charts.flow.flow_words import hidden_words
from tokenpaths.frontend.charts.flow.layout import MOST_LINKS, OTHER, flow_layout, least_share, ribbon_outline
from tokenpaths.frontend.components.explorer_data import small_flow


def dense_flow(modules: int = 60, steps: int = 4, tokens: int = 3000) -> dict[str, Any]:
    """Every module of a step to every module of the next: more links than the API gives and a picture shows."""
    shares = np.arange(1, modules + 1) ** -0.5
    counts = tokens * shares / shares.sum()
    nodes = [
        {"step": s, "module": m, "name": str(m), "kind": "mlp", "count": count, "share": count / tokens}
        for s in range(steps)
        for m, count in enumerate(counts.tolist())
    ]
    links = [
        {"step": s, "source": i, "target": j, "count": count, "weight": count, "share": count / tokens}
        for s in range(steps - 1)
        for (i, j), count in np.ndenumerate(np.outer(counts, counts) / tokens)
    ]
    common = {"run": "demo", "filters": {}, "num_tokens": tokens, "steps": list(range(steps)), "other": []}
    return {**common, "nodes": nodes, "links": links}


@pytest.fixture(params=[1, 2], ids=["top-1", "top-2"])
def flow(request):
    return open_run(samples=8, modules=8, top_k=request.param).flow()


def test_circle_areas_are_proportional_to_tokens(flow):
    layout = flow_layout(flow)
    ratios = {round(node.radius**2 / node.count, 9) for node in layout.nodes}
    assert len(ratios) == 1
    assert max(node.radius for node in layout.nodes) == pytest.approx(layout.radius)


def test_ribbon_widths_are_proportional_to_tokens(flow):
    layout = flow_layout(flow)
    ratios = [link.width / link.count for link in layout.links]
    assert max(ratios) == pytest.approx(min(ratios))


def test_ribbons_never_stand_out_of_their_circle(flow):
    layout = flow_layout(flow)
    circle = {node.key: node for node in layout.nodes}
    for link in layout.links:
        for key, y in ((f"{link.step}.{link.source}", link.y0), (f"{link.step + 1}.{link.target}", link.y1)):
            node = circle[key]
            assert abs(y - node.y) + link.width / 2 <= node.radius * (1 + 1e-9)


def test_ribbons_at_one_circle_do_not_overlap(flow):
    leaving = defaultdict(list)
    for link in flow_layout(flow).links:
        leaving[link.step, link.source].append((link.y0 - link.width / 2, link.y0 + link.width / 2))
    for spans in leaving.values():
        spans.sort()
        assert all(before[1] <= after[0] + 1e-9 for before, after in zip(spans, spans[1:], strict=False))


@pytest.mark.parametrize("most", [0, 1, 17, MOST_LINKS])
def test_the_cap_conserves_tokens(flow, most):
    layout = flow_layout(flow, most_links=most)
    assert len(layout.links) <= most
    per_step = defaultdict(float)
    for link in layout.links:
        per_step[link.step] += link.count
    for row in layout.other:
        per_step[row["step"]] += row["count"]
    assert set(per_step) == {0, 1, 2, 3}
    assert all(total == pytest.approx(flow["num_tokens"]) for total in per_step.values())


def test_the_cap_keeps_the_largest():
    flow = dense_flow()
    assert len(flow["links"]) > MOST_LINKS
    layout = flow_layout(flow)
    assert len(layout.links) == MOST_LINKS
    hidden = sum(row["num_links"] for row in layout.other)
    assert hidden == len(flow["links"]) - MOST_LINKS
    assert min(link.count for link in layout.links) >= sorted(k["count"] for k in flow["links"])[hidden - 1]


def test_what_the_api_left_out_is_added_to_what_the_picture_leaves_out(flow):
    flow = {**flow, "other": [{"step": 1, "num_links": 3, "count": 7.0}]}
    most = len(flow["links"]) - 1
    other = flow_layout(flow, most_links=most).other
    assert sum(row["num_links"] for row in other) == 4


def test_a_module_keeps_its_row_and_identities_stand_last():
    flow = open_run(samples=8, modules=8).flow()
    nodes = [node | ({"kind": "identity"} if node["module"] == 2 else {}) for node in flow["nodes"]]
    layout = flow_layout({**flow, "nodes": nodes})
    rows = defaultdict(set)
    for node in layout.nodes:
        rows[node.module].add(node.y)
    assert all(len(ys) == 1 for ys in rows.values())
    by_height = sorted(rows, key=lambda module: min(rows[module]))
    assert by_height[-2:] == [2, 7]


def test_a_ribbon_keeps_its_width_and_ends_where_it_goes(flow):
    link = max(flow_layout(flow).links, key=lambda one: one.count)
    outline = ribbon_outline(link)
    assert set(re.findall("[a-z]", outline)) == {"a", "b"}, "the browser puts distances in their place"
    numbers = [float(n) for n in re.findall(r"-?[0-9.]+", outline.replace("a", "50").replace("b", "100"))]
    upper, lower = numbers[:8], [*numbers[8:10], *numbers[10:]]
    assert (upper[0], upper[6], lower[0], lower[6]) == (0, 100, 100, 0)
    (left_up, right_up), (right_down, left_down) = upper[1:8:6], lower[1:8:6]
    assert left_down - left_up == pytest.approx(link.width, abs=0.02)
    assert right_down - right_up == pytest.approx(link.width, abs=0.02)
    assert (right_up + right_down) / 2 == pytest.approx(link.y1 - link.y0, abs=0.02)


def test_nothing_to_draw_is_drawn_as_nothing():
    layout = flow_layout({"steps": [], "nodes": [], "links": [], "other": []})
    assert (layout.nodes, layout.links, layout.other) == ([], [], [])
    assert math.isfinite(layout.height)


def test_of_many_links_the_smallest_are_left_out_and_counted():
    nodes = [
        {"step": s, "module": m, "name": str(m), "kind": "mlp", "count": 1, "share": 1}
        for s in (0, 1)
        for m in range(30)
    ]
    few = [{"step": 0, "source": m, "target": m, "count": 31.0} for m in range(30)]
    many = [{"step": 0, "source": m % 30, "target": (m + 1 + m // 30) % 30, "count": 0.35} for m in range(200)]
    flow = {"num_tokens": 1000, "steps": [0, 1], "nodes": nodes, "links": few + many, "other": []}
    assert least_share({**flow, "links": few}) == 0, "nothing is hidden of a few links"
    share = least_share(flow)
    assert share == 0.005
    drawn = flow_layout(flow, least=share)
    assert {link.count for link in drawn.links} == {31.0}
    assert drawn.other == [{"step": 0, "num_links": 200, "count": pytest.approx(70)}]
    # Where small links carry more than a tenth of the moves, a lower bound is taken, or none.
    spread = [{**link, "count": 1.5} for link in many]
    assert least_share({**flow, "links": few + spread}) == 0.001
    assert least_share({**flow, "links": [{**link, "count": 0.3} for link in many * 2]}) == 0


def test_what_is_hidden_is_small_and_merged_modules_are_said_apart():
    """An automatic threshold counted links to “other”, which are never drawn, as kept: all ribbons could go."""
    nodes = [
        {"step": s, "module": m, "name": str(m), "kind": "expert", "count": 1, "share": 1}
        for s in (0, 1)
        for m in range(9)
    ]
    other = {"module": OTHER, "name": "other (55 experts)", "kind": "other", "count": 900, "share": 0.9}
    nodes += [other | {"step": s, "num_modules": 55} for s in (0, 1)]
    named = [{"step": 0, "source": m % 9, "target": m // 9, "count": 2.0} for m in range(50)]
    tiny = [{"step": 0, "source": m % 9, "target": m // 9, "count": 0.01} for m in range(200)]
    merged = [{"step": 0, "source": OTHER, "target": m, "count": 100.0} for m in range(9)]
    flow = {"num_tokens": 1000, "steps": [0, 1], "nodes": nodes, "links": named + tiny + merged, "other": []}
    least = least_share(flow)
    assert least == 0.002, "ribbons of 0.2 % of the tokens carry most of what can be drawn"
    layout = flow_layout(flow, least=least)
    assert {link.count for link in layout.links} == {2.0}
    small, apart = layout.small, layout.merged
    assert (small.num_links, apart.num_links, layout.more.num_links, layout.unknown.num_links) == (200, 9, 0, 0)
    assert hidden_words(layout, 1000, least) == [
        "200 flows under 0.200 % of the tokens are hidden (0.200 % of all moves between steps).",
        "9 flows from or to “other” are not drawn (90.0 % of all moves between steps).",
    ]
    assert least_share({**flow, "links": named + merged * 30}) == 0, "only ribbons that can be drawn are too many"


def test_what_the_api_left_out_is_small_or_not_recorded(flow):
    left_out = {**flow, "other": [{"step": 1, "num_links": 3, "count": 7.0}]}
    whole = flow_layout({**left_out, "filters": {"limit": MOST_LINKS, "min_share": 0}})
    assert (whole.unknown.num_links, whole.more.num_links) == (3, 0)
    (words,) = hidden_words(whole)
    assert words == "3 flows from or to a choice that is not recorded are not drawn."
    cut = flow_layout({**left_out, "filters": {"limit": len(flow["links"]), "min_share": 0}})
    assert hidden_words(cut) == [f"3 flows beyond the {len(flow['links'])} largest are hidden."]
    least = max(link["count"] for link in flow["links"]) / flow["num_tokens"]
    (words,) = hidden_words(flow_layout({**left_out, "filters": cut_at(flow)}, least=least), 0, least)
    small = len([link for link in flow["links"] if link["count"] < least * flow["num_tokens"]])
    assert words.startswith(f"{small + 3} flows are hidden: {small} under ")
    assert words.endswith(f" of the tokens, 3 beyond the {len(flow['links'])} largest.")


def test_what_the_api_left_out_beside_merged_modules_is_not_called_small(flow):
    """The API's limit goes to links between two modules first: flows of “other” are most of what is left out."""
    other = {"step": 0, "module": OTHER, "name": "other (9 experts)", "kind": "other", "count": 9, "share": 0.1}
    full = {**flow, "nodes": [*flow["nodes"], other], "other": [{"step": 1, "num_links": 3, "count": 7.0}]}
    full["filters"] = cut_at(flow)
    layout = flow_layout(full)
    assert (layout.mixed.num_links, layout.more.num_links, layout.merged.num_links) == (3, 0, 0)
    assert hidden_words(layout, 70) == [
        "3 flows are not drawn (10.0 % of all moves between steps): all from or to “other”, and those beyond the "
        f"{len(flow['links'])} largest between two modules."
    ]
    merged = [{"step": 0, "source": OTHER, "target": 0, "count": 2.0}]
    reached = flow_layout({**full, "links": flow["links"] + merged})
    assert (reached.mixed.num_links, reached.merged.num_links, reached.merged.count) == (0, 4, 9.0)


def cut_at(flow: dict) -> dict:
    """The filters of a response that holds as many links as were asked for."""
    return {"limit": len(flow["links"]), "min_share": 0}


def test_flows_side_by_side_have_one_threshold_that_fits_all(flow):
    nodes = flow["nodes"]
    many = [{"step": 0, "source": m % 6, "target": m // 6, "count": 0.35} for m in range(200)]
    few = [{"step": 0, "source": 0, "target": 0, "count": 900.0}]
    clear = {"num_tokens": 1000, "steps": [0, 1], "nodes": nodes, "links": few + many, "other": []}
    spread = {**clear, "num_tokens": 100, "links": [{**link, "count": 0.15} for link in many * 2]}
    assert least_share(clear) == 0.005
    assert least_share(clear, spread) == 0.001, "of 0.2 % the second would lose everything"
    assert least_share(clear, {**clear, "links": few}) == 0.005


def test_rows_say_their_kind_where_attention_and_mlp_are_modules_of_their_own(flow):
    plain = flow_layout(flow)
    assert not plain.several_kinds
    assert [plain.row_words()[module] for module in (0, 1, 7)] == ["0", "1", "skip"]
    kinds = {0: "attention", 1: "mlp", 2: "identity", 3: "transformer"}
    mixed_nodes = [node | {"kind": kinds.get(node["module"], "mlp")} for node in flow["nodes"]]
    mixed = flow_layout(flow | {"nodes": mixed_nodes})
    words = mixed.row_words()
    assert {module: words[module] for module in range(4)} == {0: "0 attn", 1: "1 MLP", 2: "skip", 3: "3"}
    small = small_flow(flow | {"nodes": mixed_nodes})
    assert {"0 attn", "1 MLP", "skip"} <= {row["label"] for row in small["rows"]}


def test_rows_that_skip_can_be_told_apart():
    flow = dense_flow(modules=4, steps=2)
    for module, words in (({3}, ["0", "1", "2", "skip"]), ({2, 3}, ["0", "1", "2 skip", "3 skip"])):
        nodes = [node | ({"kind": "identity"} if node["module"] in module else {}) for node in flow["nodes"]]
        assert list(flow_layout(flow | {"nodes": nodes}).row_words().values()) == words
