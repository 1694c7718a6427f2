"""RayTracing: blocks that fire at a threshold step, and the shares of blocks and parameters used so far.

The network is drawn from its configuration ({input_neurons, layers, blocks, input_wires, block_wires, …}): block p of
layer l has the index l·blocks + p, and layers·blocks is the output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.encodings import bare_axis, either, tips
from tokenpaths.frontend.charts.drawing.palette import Theme, gradient_legend, mix, strong_neutral, theme_named
from tokenpaths.frontend.charts.drawing.redraw import redrawable
from tokenpaths.frontend.charts.drawing.theme import finish, hover_selection, rows

NETWORK = "Which blocks light up as the threshold falls?"
SHARES = "How much of the network is used, step by step?"


@dataclass(frozen=True)
class Network:
    """The structure of a RayTracing network, read from a run."""

    inputs: tuple[int, ...]
    """neurons of each input module"""
    layers: int
    blocks: int
    """per layer"""
    wires: dict[tuple[int, int], int]
    """(source, target) → wires; source −j−1 is input module j, target layers·blocks is the output"""
    block_params: tuple[int, ...]
    width: int
    """neurons of a block: weights of each wire that ends in it"""
    classes: int
    input_params: int
    crosses_all: bool
    """a signal crosses all layers within a threshold step, not one"""

    @property
    def num_blocks(self) -> int:
        return self.layers * self.blocks

    def block_name(self, block: int) -> str:
        """The name of a block by its layer and its place there, ``L0B2``."""
        return f"L{block // self.blocks}B{block % self.blocks}"

    @property
    def total_params(self) -> int:
        to_output = sum(count for (_source, end), count in self.wires.items() if end == self.num_blocks)
        return sum(self.block_params) + self.input_params + (to_output + 1) * self.classes


def network_of(run: Mapping[str, Any]) -> Network:
    """Read ``config`` and ``modules`` of a run; raises KeyError if they are not a RayTracing network's."""
    config = run["config"]
    layers, blocks = int(config["layers"]), int(config["blocks"])
    wires: Counter[tuple[int, int]] = Counter()
    for source, ends in enumerate(config["input_wires"]):
        wires.update((-source - 1, int(end)) for end in ends)
    for source, ends in enumerate(config["block_wires"]):
        wires.update((source, int(end)) for end in ends)
    params = {(m["step"], m["module"]): int(m["num_params"]) for m in run["modules"] if m["kind"] != "identity"}
    side = int(config["image_size"]) // 2 ** len(config["conv_pools"])
    fan_in = round(config["input_density"] * config["conv_channels"][-1] * side**2)
    return Network(
        tuple(config["input_neurons"]),
        layers,
        blocks,
        dict(wires),
        tuple(params[layer, block] for layer in range(layers) for block in range(blocks)),
        int(config["width"]),
        int(config["num_classes"]),
        sum(config["input_neurons"]) * (fan_in + 1),
        config.get("crossing") == "all",
    )


def last_step(values: Sequence[Sequence[float]]) -> int:
    """The step at which a sample stopped: the last one with any active block (0 if there is none)."""
    return max((step for step, rates in enumerate(values) if any(rate > 0 for rate in rates)), default=0)


def silent(values: Sequence[Sequence[float]]) -> bool:
    """Whether no block of a sample ever fired: then neither did its output."""
    return not any(rate > 0 for rates in values for rate in rates)


def share_rows(network: Network, values: Sequence[Sequence[float]], names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Per threshold step until the stop: blocks active now and so far, and the share of parameters used so far.

    Used are those through which a signal went, the output read at that step: a weight multiplied by zero is not.
    """
    table, so_far, sending = [], set[int](), set[int]()
    carried = set[tuple[int, int]]()
    """(source, block) whose wires carried something when the block fired"""
    for step in range(last_step(values) + 1):
        now = {block for block, rate in enumerate(values[step]) if rate > 0}
        so_far |= now
        if network.crosses_all:
            sending = now
        carried |= {(source, end) for source, end in network.wires if end in now and (source < 0 or source in sending)}
        sending = now
        weights = sum(network.wires[pair] for pair in carried) + len(so_far)
        columns = sum(
            count for (source, end), count in network.wires.items() if end == network.num_blocks and source in now
        )
        used = network.input_params + network.width * weights + network.classes * (columns + 1)
        table.append(
            {
                "step": step,
                "theta": names[step] if step < len(names) else str(step),
                "lit": len(now) / network.num_blocks,
                "lit_so_far": len(so_far) / network.num_blocks,
                "used": used / network.total_params,
            }
        )
    return table


def block_rows(network: Network, values: Sequence[Sequence[float]], step: int) -> list[dict[str, Any]]:
    """Table of the blocks at a threshold step; ``since`` is the step from which a block is lit."""
    return [
        {
            "block": network.block_name(block),
            "firing rate": rate,
            "lit": rate > 0,
            "since": next((t for t, rates in enumerate(values[: step + 1]) if rates[block] > 0), None),
            "parameters": network.block_params[block],
        }
        for block, rate in enumerate(values[step])
    ]


def end_rows(network: Network, values: Sequence[Sequence[float]], step: int) -> list[dict[str, Any]]:
    """Table of the wires, added up by their two ends; ``carries``: a signal at this step."""

    def name(place: int) -> str:
        if place < 0:
            return f"input module {-place - 1}"
        return "output" if place == network.num_blocks else network.block_name(place)

    return [
        {
            "from": name(source),
            "to": name(target),
            "wires": wires,
            "neurons": network.inputs[-source - 1] if source < 0 else network.width,
            "carries": source < 0 or values[step][source] > 0,
        }
        for (source, target), wires in sorted(network.wires.items())
    ]


@redrawable(
    numbers=lambda network, values, step: {
        "blocks": block_rows(network, values, step),
        "wires": end_rows(network, values, step),
    }
)
def network_chart(
    network: Network,
    values: Sequence[Sequence[float]],
    step: int,
    *,
    theme: str | Theme = "light",
    prediction: str | None = None,
    title: str | None = NETWORK,
) -> alt.LayerChart:
    """The blocks of all layers, lit as at threshold ``step`` of ``values`` (step × block firing rates).

    Args:
        prediction: The predicted class when the output fired; shown at the last step only.
    """
    look, rates = theme_named(theme), values[step]
    height = float(min(600, max(230, 25 * network.blocks)))
    place = _places(network, height)
    end = network.layers + 1
    fired = prediction is not None and step >= last_step(values) and not silent(values)
    x = alt.X("x:Q", scale=alt.Scale(domain=[-0.45, end + 0.45], nice=False), axis=_columns(network))
    y = alt.Y("y:Q", scale=alt.Scale(domain=[height, 0], nice=False), axis=None)
    hover = hover_selection("hover_block", "block")
    most = max((rate for row in values for rate in row), default=0) or 1
    layers: list[Any] = [
        _wires(network, rates, most, place, look, x, y),
        _ends(network, place, fired, look, x, y),
        _blocks(network, values, step, most, place, look, x, y).add_params(hover),
    ]
    if fired:
        spot = {"x": end, "y": place[network.num_blocks][1], "words": prediction}
        text = alt.Chart(rows([spot])).encode(x=x, y=y, text="words:N")
        font: dict[str, Any] = {"dy": 26, "fontSize": look.font_size + 2, "fontWeight": 700, "limit": 110}
        layers.append(text.mark_text(**font, color=look.background, stroke=look.background, strokeWidth=5))
        layers.append(text.mark_text(**font, color=look.ink))
    lit = sum(rate > 0 for rate in rates)
    words = [
        f"{numbers.count(lit)} of {numbers.count(network.num_blocks)} blocks are lit. The fuller a circle, the higher "
        "its firing rate.",
        "Lines: wires that carry a signal now. Inputs always send; the output fires last.",
    ]
    return finish(alt.layer(*layers), look, title, words, height=height)


def _places(network: Network, height: float) -> dict[int, tuple[int, float]]:
    """x and y of every input module (negative index), block, and of the output."""
    place = {
        layer * network.blocks + row: (layer + 1, height * (row + 0.5) / network.blocks)
        for layer in range(network.layers)
        for row in range(network.blocks)
    }
    size = len(network.inputs)
    place |= {-j - 1: (0, height * (0.5 + (j - (size - 1) / 2) / max(size, 4))) for j in range(size)}
    return place | {network.num_blocks: (network.layers + 1, height / 2)}


def _columns(network: Network) -> alt.Axis:
    names = ["inputs", *(f"layer {layer}" for layer in range(network.layers)), "output"]
    return bare_axis(
        None,
        orient="top",
        values=list(range(len(names))),
        labelExpr=f"{names}[datum.value]",
        grid=False,
        labelPadding=2,
        labelOverlap=False,
        labelFlush=False,
    )


def _wires(
    network: Network, rates: Sequence[float], most: float, place: Mapping[int, Any], look: Theme, x: alt.X, y: alt.Y
) -> alt.Chart:
    """All wires, one line per pair of ends; those of silent blocks are visible only on hover."""
    table = []
    for (source, target), count in sorted(network.wires.items()):
        (x1, y1), (x2, y2) = place[source], place[target]
        rate = rates[source] if source >= 0 else 0.0
        shown = 0.13 if source < 0 else (0.16 + 0.5 * (rate / most) ** 0.5) * (rate > 0)
        table.append(
            {"x": x1, "y": y1, "x2": x2, "y2": y2, "source": source, "target": target, "wires": count, "shown": shown}
        )
    near = "(hover_block.block && (hover_block.block[0] === datum.source || hover_block.block[0] === datum.target))"
    return (
        alt.Chart(rows(table))
        .mark_rule(tooltip=False, clip=True)
        .encode(
            x=x,
            y=y,
            x2="x2:Q",
            y2="y2:Q",
            strokeWidth=alt.StrokeWidth("wires:Q", scale=alt.Scale(domain=[1, 6], range=[0.8, 3]), legend=None),
            color=either(near, look.accent, look.link),
            opacity=alt.when(near).then(alt.value(0.9)).otherwise(alt.Opacity("shown:Q", scale=None, legend=None)),
        )
    )


def _ends(network: Network, place: Mapping[int, Any], fired: bool, look: Theme, x: alt.X, y: alt.Y) -> alt.LayerChart:
    """Input modules, sized by their neurons, and the output."""
    most = max(network.inputs, default=1)
    table = [
        {
            "x": 0,
            "y": place[-j - 1][1],
            "size": 60 + 340 * neurons / most,
            "name": f"input module {j}",
            "what": f"{neurons} neurons, always sending",
            "fill": look.identity,
        }
        for j, neurons in enumerate(network.inputs)
    ]
    table.append(
        {
            "x": network.layers + 1,
            "y": place[network.num_blocks][1],
            "size": 560,
            "name": "output",
            "what": "has fired" if fired else "still silent",
            "fill": strong_neutral(look) if fired else look.background,
        }
    )
    return (
        alt.Chart(rows(table))
        .mark_circle(opacity=1, stroke=look.muted, strokeWidth=1.2)
        .encode(
            x=x,
            y=y,
            size=alt.Size("size:Q", scale=None),
            color=alt.Color("fill:N", scale=None),
            tooltip=tips("name:N", "what:N"),
        )
    )


def _blocks(
    network: Network,
    values: Sequence[Sequence[float]],
    step: int,
    most: float,
    place: Mapping[int, Any],
    look: Theme,
    x: alt.X,
    y: alt.Y,
) -> alt.Chart:
    table = []
    for block, row in enumerate(block_rows(network, values, step)):
        rate, first = row["firing rate"], row["since"]
        table.append(
            {
                "x": place[block][0],
                "y": place[block][1],
                "block": block,
                "name": row["block"],
                "rate": rate,
                "words": numbers.number(rate) if rate > 0 else "silent",
                "since": "not yet" if first is None else f"step {first}",
                "params": numbers.count(row["parameters"]),
            }
        )
    dim, full = mix(strong_neutral(look), look.background, 0.12), strong_neutral(look)
    scale = alt.Scale(type="sqrt", domain=[0, most], range=[dim, full], interpolate="lab")
    legend = gradient_legend("firing rate", direction="horizontal", gradientLength=160, tickCount=4, format=".2~f")
    # On a narrow page columns are closer together than rows.
    size = alt.ExprRef(f"pow(min({0.78 * place[0][1] * 2:.1f}, 0.5 * width / {network.layers + 2}, 21), 2)")
    return (
        alt.Chart(rows(table))
        .mark_point(filled=True, shape="circle", opacity=1, strokeWidth=1.1, size=size)
        .encode(
            x=x,
            y=y,
            detail="block:Q",
            fill=alt.when("datum.rate <= 0")
            .then(alt.value(look.background))
            .otherwise(alt.Fill("rate:Q", scale=scale, legend=legend)),
            stroke=alt.when("hover_block.block && hover_block.block[0] === datum.block")
            .then(alt.value(look.accent))
            .when("datum.rate <= 0")
            .then(alt.value(look.identity))
            .otherwise(alt.value(strong_neutral(look))),
            tooltip=tips("name:N block", "words:N firing rate now", "since:N lit since", "params:N parameters"),
        )
    )


@redrawable(
    numbers=lambda curve, mean: [
        row | {"lit so far, mean of all samples": mean[row["step"]] if row["step"] < len(mean) else None}
        for row in curve
    ]
)
def share_chart(
    curve: Sequence[Mapping[str, Any]],
    mean: Sequence[float] = (),
    *,
    step: int | None = None,
    theme: str | Theme = "light",
    title: str | None = SHARES,
    height: int = 210,
) -> alt.LayerChart:
    """Share of used parameters and number of blocks lit so far by threshold step (``share_rows``).

    Args:
        mean: Blocks lit so far by step, mean over all samples of the run.
        step: The selected step, marked by a rule in the accent colour.
    """
    look = theme_named(theme)
    used, lit, all_lit = "parameters used", "blocks lit so far", "blocks lit, mean of all samples"
    thetas = {row["step"]: row["theta"] for row in curve}
    table = [(row["step"], what, row[key]) for row in curve for key, what in (("used", used), ("lit_so_far", lit))]
    table += [(row["step"], all_lit, mean[row["step"]]) for row in curve if row["step"] < len(mean)]
    shown = [
        {"step": at, "what": what, "share": share, "theta": thetas[at], "words": numbers.percent(share)}
        for at, what, share in table
    ]
    names = [used, lit, all_lit][: 3 if mean else 2]
    x = alt.X(
        "step:Q",
        axis=alt.Axis(title="threshold step (θ falls →)", format="d", tickMinStep=1, grid=False),
        scale=alt.Scale(nice=False, padding=10),
    )
    y = alt.Y(
        "share:Q",
        axis=alt.Axis(title="share of the network", format=".0%", tickCount=5),
        scale=alt.Scale(domain=[0, 1]),
    )
    legend = alt.Legend(
        title=None, orient="top", direction="vertical", symbolType="stroke", symbolSize=300, labelLimit=260
    )
    base = alt.Chart(rows(shown)).encode(
        x=x,
        y=y,
        color=alt.Color(
            "what:N",
            legend=legend,
            scale=alt.Scale(domain=names, range=[look.ink, look.ink, look.identity][: len(names)]),
        ),
        tooltip=tips("what:N", "theta:N threshold", "words:N share"),
    )
    dash = alt.Scale(domain=names, range=[[1, 0], [5, 3], [5, 3]][: len(names)])
    lines = base.mark_line(strokeWidth=2).encode(strokeDash=alt.StrokeDash("what:N", scale=dash, legend=legend))
    layers: list[Any] = [lines, base.mark_point(filled=True, size=26, opacity=1)]
    if step is not None:
        layers.insert(0, alt.Chart(rows([{"step": step}])).mark_rule(color=look.accent, strokeWidth=1.5).encode(x=x))
    words = "Blocks and parameters that have been needed by each step."
    summary = f"At the last step: {numbers.percent(curve[-1]['used'])} of the parameters." if curve else ""
    return finish(alt.layer(*layers), look, title, words, height=height, summary=summary)
