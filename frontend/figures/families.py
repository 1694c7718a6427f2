"""Figures beyond the DNA paper: NMI of paths with token properties, and the charts of each model family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.families import (
    dipaco_rerouting,
    dipaco_shards,
    expert_load,
    expert_stability,
    experts,
    raytracing_costs,
    raytracing_network,
    raytracing_stops,
)
from tokenpaths.frontend.charts.knowledge import knowledge_chart, knowledge_rows, knowledge_words
from tokenpaths.frontend.figures import common
from tokenpaths.frontend.figures.figure import Figure, NotHere, Source, Wishes

MOST_EXPERTS = 16
MOST_POINTS = 2500
MOST_PATHS = 500
_ROW = 14.0
"""points per row of a chart with one row per item"""


def knows(source: Source, wishes: Wishes) -> list[Figure]:
    """NMI of paths with labels, words and positions, compared with shuffles and the untrained twin."""
    answer = source.knowledge()
    if answer["reason"]:
        raise NotHere(f"Paths say nothing of anything here: {answer['reason']}.")
    rows = answer["properties"]
    twins = any(row["untrained_nmi"] is not None for row in rows)
    beside = (
        " Diamonds: the untrained twin’s paths, above shuffles of their own."
        if twins
        else f" No untrained twin beside it: {answer['untrained_reason']}."
    )
    crops = source.info().get("samples_are")
    alike = f" The samples are {crops}; shuffles take them as independent." if crops else ""
    return [
        Figure(
            "knows-nmi",
            "What do paths know?",
            f"{knowledge_words(answer)} Dot: NMI of path and property, less the mean of its shuffles; grey: 95 % of "
            f"{answer['shuffles']} shuffles." + beside + alike,
            {row["property"]: row["nmi"] for row in rows},
            {"properties": knowledge_rows(answer)},
            ("nmi",),
            draw=lambda theme: knowledge_chart(answer, theme=theme, title=None),
            height=(2.2 if twins else 1.4) * _ROW * max(2, len(rows)),
        )
    ]


def family(source: Source, wishes: Wishes) -> list[Figure]:
    """The charts of the run's family; raises NotHere if it has none, or if the run lacks the data."""
    info = source.info()
    parts = _PARTS.get(info["family"])
    if parts is None:
        raise NotHere(f"A run of the family {info['family']} has no charts but the ones above.")
    drawn: list[Figure] = []
    refusals: tuple[type[Exception], ...] = (NotHere, *wishes.refusals)
    for part in parts:
        try:
            figure = part(source, info)
        except refusals:  # the data for this one was not recorded
            continue
        if figure is not None:
            drawn.append(figure)
    if not drawn:
        raise NotHere("This run holds nothing of what the charts of its family are drawn from.")
    return drawn


def _named(
    key: str,
    question: str,
    caption: str,
    rows: Sequence[Mapping[str, Any]],
    draw: Callable[[str], Any],
    height: float | None = None,
    exact: Mapping[str, Any] | None = None,
) -> Figure:
    return Figure(f"family-{key}", question, caption, exact or {}, {key: rows}, draw=draw, height=height)


# -- RayTracing ------------------------------------------------------------------------------------
def _lit(source: Source, info: Mapping[str, Any]) -> Figure:
    number = 0
    soft, sample = source.soft("blocks", sample=number), source.sample(number)
    network, values, names = raytracing_network.network_of(info), soft["values"], soft["axes"][0]["names"]
    last = raytracing_network.last_step(values)
    prediction = (
        f"{sample['prediction']} {numbers.percent(sample['confidence'], 2)}" if sample.get("prediction") else "fired"
    )
    curve = raytracing_network.share_rows(network, values, names)
    return _named(
        "lit",
        raytracing_network.NETWORK,
        f"Sample {number}{', ' + sample['label'] if sample.get('label') else ''}, at the step {last} where its output "
        "fired. Circles are blocks, the fuller the higher the firing rate; hollow: silent. Lines carry a signal.",
        curve,
        lambda theme: raytracing_network.network_chart(
            network, values, last, theme=theme, prediction=prediction, title=None
        ),
    )


def _fired(source: Source, info: Mapping[str, Any]) -> Figure | None:
    steps = (info["findings"].get("lights") or {}).get("steps_until_fired") or {}
    names = source.soft("blocks")["axes"][0]["names"]
    table = raytracing_stops.fired_rows(steps.get("counts") or (), names)
    if sum(row["step"] is not None for row in table) < 2:
        return None
    return _named(
        "fired",
        "When does the output fire?",
        "Samples of the run by the threshold step at which their output fired." + raytracing_stops.never_words(table),
        table,
        lambda theme: raytracing_stops.fired_chart(table, theme=theme, title=None),
    )


def _classes(source: Source, info: Mapping[str, Any]) -> Figure | None:
    table = raytracing_costs.class_rows(common.drawn_samples(source)[0])
    if len(table) < 2:
        return None
    return _named(
        "classes",
        "Which classes light more of the network?",
        "Active share by label. Dot: mean; thick: the middle half of the samples; thin: the middle 90 %."
        + raytracing_costs.ends_words(table),
        table,
        lambda theme: raytracing_costs.class_chart(table, theme=theme, title=None),
        height=_ROW * max(3, min(len(table), raytracing_costs.MOST_LABELS)),
    )


def _difficulty(source: Source, info: Mapping[str, Any]) -> Figure | None:
    points = raytracing_costs.difficulty_points(common.drawn_samples(source)[0])
    if len(points) < 4:
        return None
    correlation = raytracing_costs.kept_correlation(info) or raytracing_costs.correlation(points)
    shown = points[:: -(-len(points) // MOST_POINTS)]
    note = "" if len(shown) == len(points) else f" {numbers.count(len(shown))} of them are drawn."
    crops = f" The samples are {info['samples_are']}; the interval takes them as independent." * bool(
        info.get("samples_are")
    )
    return _named(
        "difficulty",
        "Do difficult samples light more of the network?",
        f"{raytracing_costs.correlation_words(correlation, len(points))}{note} Circle: right; cross: wrong.{crops}",
        shown,
        lambda theme: raytracing_costs.difficulty_chart(shown, theme=theme, title=None),
    )


def _blocks(source: Source, info: Mapping[str, Any]) -> Figure | None:
    sizes = {row["label"]: row["num_samples"] for row in info["labels"] if row["label"] is not None}
    if len(sizes) < 2:
        return None
    shown = dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[: raytracing_costs.MOST_LABELS])
    table = raytracing_costs.class_block_rows({label: source.usage(label) for label in shown}, shown)
    return _named(
        "blocks",
        "Which blocks does each class light?",
        "Share of the samples of a class in which the block fired at any threshold step.",
        table,
        lambda theme: raytracing_costs.class_block_chart(table, theme=theme, title=None),
    )


def _used(source: Source, info: Mapping[str, Any]) -> Figure | None:
    table = raytracing_costs.used_rows(info["findings"].get("validation") or {})
    if not table:
        return None
    return _named(
        "used",
        "How accurate for how many parameters?",
        "On the test data of the checkpoint. Filled: parameters used by a sample on average; outline: all of them.",
        table,
        lambda theme: raytracing_costs.used_chart(table, theme=theme, title=None),
    )


# -- DiPaCo ----------------------------------------------------------------------------------------
def _ways(source: Source, info: Mapping[str, Any]) -> tuple[dict[str, dipaco_shards.Paths], dict[str, Any]]:
    """Rows of paths by label, as on the page, and the answer with the paths of all documents."""
    answer = source.paths(limit=MOST_PATHS)
    by_label = dipaco_shards.ways(
        info["labels"], answer["paths"], lambda label: source.paths(limit=MOST_PATHS, label=label)["paths"]
    )
    return by_label, answer


def _tree(source: Source, info: Mapping[str, Any]) -> Figure:
    by_label, answer = _ways(source, info)
    paths = answer["paths"]
    ranks = {path["rank"] for path in paths[: dipaco_shards.MOST_PATHS]}
    shown = {label: [path for path in rows if path["rank"] in ranks] for label, rows in by_label.items()}
    inks = {dipaco_shards.modules_of(path): path for path in paths}
    return _named(
        "ways",
        dipaco_shards.TREE,
        f"{numbers.plural(info['num_samples'], 'document')} on {numbers.plural(info['num_paths'], 'path')}. Height of "
        "a bar and width of a band: share of the tokens; colour of a path: how many tokens take it."
        + dipaco_shards.hidden_words(answer),
        dipaco_shards.tree_rows(shown),
        lambda theme: dipaco_shards.tree_chart(shown, inks, theme=theme, title=None),
    )


def _labels(source: Source, info: Mapping[str, Any]) -> Figure | None:
    if all(row["label"] is None for row in info["labels"]):
        return None
    by_label, answer = _ways(source, info)
    drawn = sorted(
        answer["paths"][: dipaco_shards.MOST_PATHS], key=lambda path: tuple(reversed(dipaco_shards.modules_of(path)))
    )
    table = dipaco_shards.label_path_rows(by_label, drawn)
    return _named(
        "labels",
        "Which labels take which path?",
        "Per cent of the label’s tokens; a row adds up to 100.",
        table,
        lambda theme: dipaco_shards.label_path_chart(table, theme=theme, title=None),
    )


def _sharing(source: Source, info: Mapping[str, Any]) -> Figure:
    paths = source.paths(limit=MOST_PATHS)["paths"][: dipaco_shards.MOST_PATHS]
    table = dipaco_shards.sharing_rows(sorted(paths, key=dipaco_shards.modules_of))
    levels = [int(n) for n in info["config"]["levels"]]
    return _named(
        "sharing",
        "Which paths share which module?",
        "One row: one path. Dots in one column: paths that share this module; larger: more tokens.",
        table,
        lambda theme: dipaco_shards.sharing_chart(table, levels, theme=theme, title=None),
    )


def _rerouting(source: Source, info: Mapping[str, Any]) -> Figure | None:
    by_w, baselines = dipaco_rerouting.rerouting_rows(info["findings"].get("validation") or {}, info["model"])
    if not by_w and not baselines:
        return None
    return _named(
        "rerouting",
        "Does it help to choose the path again along the way?",
        "Validation perplexity of the checkpoint by the tokens W between two decisions, lower is better. Dashed: other "
        "models from the same base.",
        [*by_w, *baselines],
        lambda theme: dipaco_rerouting.rerouting_chart(by_w, baselines, theme=theme, title=None),
    )


# -- mixtures of experts ---------------------------------------------------------------------------
def _loads(source: Source, info: Mapping[str, Any]) -> Figure:
    usage = source.usage()
    return _named(
        "load",
        expert_load.LOAD,
        expert_load.load_words(usage) + " Bar: the middle 80 % of the experts; tick: the median; "
        "point: the busiest; dashed: a fair share.",
        expert_load.load_rows(usage),
        lambda theme: expert_load.load_band_chart(usage, theme=theme, title=None),
    )


def _dead(source: Source, info: Mapping[str, Any]) -> Figure | None:
    usage = source.usage()
    if not any(row["dead"] for row in usage["steps"]):
        return None
    return _named(
        "dead",
        expert_load.DEAD,
        "Number of experts of a layer that no token chose.",
        expert_load.load_rows(usage),
        lambda theme: expert_load.dead_chart(usage, theme=theme, title=None),
    )


def _domains(source: Source, info: Mapping[str, Any]) -> Figure | None:
    if not any(row["label"] is not None for row in info["labels"]):
        return None
    answer = source.specialisation("label", 0, limit=MOST_EXPERTS)
    return _named(
        "domains",
        experts.DOMAINS,
        "Layer 0. " + experts.domain_words(answer),
        experts.domain_rows(answer),
        lambda theme: experts.domain_chart(answer, theme=theme, title=None),
    )


def _words(source: Source, info: Mapping[str, Any]) -> Figure | None:
    answer = source.specialisation("input", 0, limit=MOST_EXPERTS)
    if not answer["modules"]:
        return None
    return _named(
        "words",
        experts.WORDS,
        f"Layer 0; tokens seen at least {answer['least']} times, the {len(answer['modules'])} most specialised "
        "experts.",
        experts.word_rows(answer),
        lambda theme: experts.word_chart(answer, theme=theme, title=None),
    )


def _together(source: Source, info: Mapping[str, Any]) -> Figure | None:
    if int(info["top_k"]) == 1:
        return None
    answer = source.co_activation(0)
    if not answer["modules"]:
        return None
    return _named(
        "together",
        experts.TOGETHER,
        "Layer 0. " + experts.co_activation_words(answer),
        answer["pairs"],
        lambda theme: experts.co_activation_chart(answer, theme=theme, title=None),
    )


def _repetition(source: Source, info: Mapping[str, Any]) -> Figure:
    answer = source.repetition()
    return _named(
        "repetition",
        expert_stability.REPETITION,
        expert_stability.repetition_words(answer) + " Dashed: the same tokens in random order.",
        expert_stability.repetition_rows(answer),
        lambda theme: expert_stability.repetition_chart(answer, theme=theme, title=None),
    )


# -- soft routers ----------------------------------------------------------------------------------
def _connections(source: Source, info: Mapping[str, Any]) -> Figure:
    from tokenpaths.frontend.charts import graph_chart
    from tokenpaths.frontend.charts.families.hmodel_connections import TITLE

    answer = source.soft("edges")
    return _named(
        "connections",
        TITLE,
        "Mean connection over all samples.",
        _flat(answer),
        lambda theme: graph_chart(answer, theme=theme, title=None),
    )


def _gates(source: Source, info: Mapping[str, Any]) -> Figure:
    from tokenpaths.frontend.charts import gate_chart

    answer = source.soft("gates")
    return _named(
        "gates",
        "Which directions are switched on?",
        "Mean gate over all samples.",
        _flat(answer),
        lambda theme: gate_chart(answer, theme=theme, title=None),
    )


def _flat(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per value of a soft answer, with its position along each axis."""
    names = [axis["axis"] for axis in answer["axes"]]

    def walk(values: Any, place: tuple[int, ...]) -> list[dict[str, Any]]:
        if not isinstance(values, list | tuple):
            return [{**dict(zip(names, place, strict=True)), "mean": values}]
        return [row for number, part in enumerate(values) for row in walk(part, (*place, number))]

    return walk(answer["values"], ())


_PARTS: dict[str, tuple[Callable[[Source, Mapping[str, Any]], Figure | None], ...]] = {
    "raytracing": (_lit, _fired, _classes, _difficulty, _blocks, _used),
    "dipaco": (_tree, _labels, _sharing, _rerouting),
    "moe": (_loads, _dead, _domains, _words, _together, _repetition),
    "hmodel": (_connections,),
    "directional": (_gates,),
}
