"""Compute and reuse: figures 6, 7, 11, 12, 16 and 20 of the DNA paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenpaths.frontend.charts.distributions import (
    MEASURES,
    SKIP_AND_REUSE,
    bin_rows,
    distribution_words,
    skip_reuse_rows,
    skip_reuse_words,
)
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns
from tokenpaths.frontend.figures import common, walls
from tokenpaths.frontend.figures.figure import Figure, NotHere, Source, Wishes

SHOWN = {True: 6, False: 3}
"""samples per band: images, texts"""
PATCHES = 30
"""patches or tokens per level of compute"""
ROUNDING = 1e-9
"""of a mean of compute"""
_MOMENTS = ("num", "mean", "std", "min", "q01", "median", "q99", "max")


def compute_per_sample(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 6 and 11: compute per sample, and samples of the top 1 %, 49–51 % and bottom 1 %."""
    info, distribution = source.info(), _spread(source, "compute", "sample")
    return [
        _histogram("fig6-compute", distribution, "Compute per sample (1 = never skipped a module).", ("compute",)),
        _bands("fig6-samples", source, info, distribution, wishes),
    ]


def compute_per_token(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 16 and 20: compute per patch or token, and patches or tokens of high, middle and low compute."""
    info, distribution = source.info(), _spread(source, "compute", "token")
    vision, (what, plural) = common.is_vision(info), token_nouns(info)
    figures = [
        _histogram("fig16-compute", distribution, f"Compute per {what} (1 = never skipped a module).", ("compute",))
    ]
    groups, searched = [], []
    for name, level, rank in _levels(source, distribution):
        members, part = _travellers(source, level, rank, wishes.seed)
        groups.append((name, level, members))
        searched.append(part)
    table = [
        {"level": name, "compute": compute} | {key: value for key, value in example.items() if key != "patch"}
        for name, compute, members in groups
        for example in members
    ]
    heads = [(f"{name}: compute {numbers.number(compute)}", members) for name, compute, members in groups]
    drawn = f"{plural.capitalize()} drawn at random (seed {wishes.seed})"
    words = f"{drawn} from all of the most, the median and the least compute. "
    words = " ".join([words + "; ".join(head for head, _ in heads) + ".", *filter(None, dict.fromkeys(searched))])
    common_parts = (
        f"Which {plural} get more work?",
        words,
        {name: compute for name, compute, _ in groups},
        {"tokens": table},
        ("compute",),
    )
    if vision and all(example.get("patch") for _, _, members in groups for example in members):
        sheet = walls.blocks_of_patches([(head, None, members) for head, members in heads])
        figures.append(Figure("fig16-patches", *common_parts, sheet=sheet, columns=2))
    elif not vision:
        blocks = [
            (head, None, [example.get("text") or f"#{example.get('token_id')}" for example in members])
            for head, members in heads
        ]
        figures.append(Figure("fig16-tokens", *common_parts, sheet=walls.blocks_of_tokens(blocks), columns=2))
    return figures


def reuse(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 7 and 12: reuse per sample, its examples, and skip against reuse."""
    from tokenpaths.frontend.charts import skip_reuse_chart

    info, distribution = source.info(), _spread(source, "reuse", "sample")
    samples, total = common.drawn_samples(source)
    figures = [
        _histogram("fig7-reuse", distribution, "Module reuse per sample (0 = no module twice).", ("reuse",)),
        _bands("fig7-samples", source, info, distribution, wishes),
    ]
    answer = source.skip_and_reuse()
    if answer["reason"] is None:
        drawn = f", {len(samples):,} drawn at random of {total:,}" if len(samples) < total else ""
        numbers_of = {key: answer[key] for key in ("pearson", "seen", "by_chance", "beyond", "pairs", "excess")}
        figures.append(
            Figure(
                "fig7-skip-reuse",
                SKIP_AND_REUSE,
                f"{skip_reuse_words(answer)} One point a sample{drawn}; bars: 95 % intervals; dashed: by chance.",
                numbers_of | ({"of_samples": total} if drawn else {}),
                skip_reuse_rows(samples, answer),
                ("compute", "reuse"),
                draw=lambda theme: skip_reuse_chart(samples, answer, theme=theme, title=None, height=170),
            )
        )
    return figures


def reuse_beside(source: Source, wishes: Wishes) -> list[Figure]:
    """Figure 12: reuse of the same samples in two runs."""
    from tokenpaths.frontend.charts.compare import pair_chart, pair_words

    answer = source.compare(wishes.other, "reuse")
    names = (answer["a"]["run"], answer["b"]["run"])
    row = next(correlation for correlation in answer["correlations"] if correlation["measure"] == "reuse")
    if not answer["points"]:
        raise NotHere(f"No sample of {names[0]} and {names[1]} has reuse in both.")
    return [
        Figure(
            "fig7-beside",
            "Do the same samples reuse modules in both runs?",
            f"{answer['matched']['sentence']} One point a sample; dashed: equal in both. " + pair_words(answer, names),
            {"pearson": row["pearson"], "spearman": row["spearman"], "num": row["num"]},
            {"samples": answer["points"]},
            ("reuse",),
            draw=lambda theme: pair_chart(answer, names=names, theme=theme, title=None, height=190),
        )
    ]


def _spread(source: Source, measure: str, per: str) -> dict[str, Any]:
    """The distribution; raises NotHere if the measure does not vary."""
    distribution = source.distribution(measure, per=per, bins=40)
    name = MEASURES[measure][0]
    if not distribution["num"]:
        raise NotHere(f"No {per} of this run has {name}.")
    low, high = distribution["min"], distribution["max"]
    if high - low <= 1e-9 * max(1.0, abs(high)):
        whose = (
            f"The only {per}" if distribution["num"] == 1 else f"Each of the {numbers.plural(distribution['num'], per)}"
        )
        why = ": no token ever skipped a step" if measure == "compute" and high == 1 else ""
        raise NotHere(
            f"{whose} of this run has {name} {numbers.number(high)}{why}, so there is no distribution to draw."
        )
    return distribution


def _histogram(key: str, distribution: Mapping[str, Any], head: str, formulas: tuple[str, ...]) -> Figure:
    from tokenpaths.frontend.charts import histogram_chart

    name = MEASURES[distribution["measure"]][0]
    return Figure(
        key,
        f"How is {name} spread over {distribution['per']}s?",
        f"{head} {distribution_words(distribution)} Dashed: the mean.",
        {name: distribution[name] for name in _MOMENTS},
        {"bins": bin_rows(distribution)},
        formulas,
        draw=lambda theme: histogram_chart(distribution, theme=theme, title=None, height=120),
    )


def _bands(
    key: str, source: Source, info: Mapping[str, Any], distribution: Mapping[str, Any], wishes: Wishes
) -> Figure:
    """Samples of three bands of a measure, as images or as beginnings of texts."""
    measure, num = distribution["measure"], distribution["num"]
    pictures = common.with_pictures(source, info)
    places = common.bands(range(num), SHOWN[pictures], wishes.seed)
    samples = common.samples_at(source, measure, [place for _, members in places for place in members])
    drawn = [(name, [samples[place] for place in members]) for name, members in places]
    rows, table = [], []
    for name, members in drawn:
        shown = []
        for row in members:
            caption = f"{row.get('label') or 'sample ' + str(row['sample'])} · {numbers.number(row[measure])}"
            if pictures:
                shown.append({"url": common.png_url(source.picture(row["sample"])), "caption": caption})
            else:
                text = row.get("snippet") or row.get("source") or f"sample {row['sample']}"
                shown.append({"text": text, "caption": f"sample {row['sample']} · {caption}"})
        rows.append((f"{name} by {measure}", shown))
        table += [{"band": name} | row for row in common.sample_rows(members)]
    listed = "; ".join(
        f"{name}: {', '.join(numbers.number(row[measure]) for row in members)}" for name, members in drawn
    )
    return Figure(
        key,
        f"Which samples have much, middling and little {measure}?",
        f"Samples drawn at random (seed {wishes.seed}) from the most, the middle and the least {measure} among "
        f"{numbers.plural(num, 'sample')}. {measure.capitalize()}: {listed}.",
        {f"{name}, mean": float(np.mean([row[measure] for row in members])) for name, members in drawn},
        {"samples": table},
        (measure,),
        sheet=walls.rows_of_samples(rows),
        columns=2,
    )


def _levels(source: Source, distribution: Mapping[str, Any]) -> list[tuple[str, float, int]]:
    """The highest, median and lowest compute, each with the rank of a path that has it, or of the nearest below."""
    levels: dict[float, tuple[str, float, int]] = {}
    for name, bound in (("most", "max"), ("median", "median"), ("least", "min")):
        # A median between two levels is that of no path.
        most = min(1.0, distribution[bound] + ROUNDING)
        for path in source.paths(order="compute", compute=(0.0, most), limit=1)["paths"]:
            levels.setdefault(path["compute"], (name, path["compute"], path["rank"]))
    return list(levels.values())


def _travellers(source: Source, level: float, rank: int, seed: int) -> tuple[list[dict[str, Any]], str]:
    """``PATCHES`` tokens drawn from all with this compute, with the ranks of their paths; and a note on how much of a
    very large run was searched, if not all of it.
    """
    answer = source.search_tokens(compute=(level, level), examples=PATCHES, seed=seed)
    counted, members = answer["counted"], answer["examples"]
    whole = numbers.plural(counted["of_samples"], "sample")
    if members:
        return members, "" if counted["exact"] else f"Drawn from {counted['num_samples']:,} of {whole}."
    members = [{"rank": rank, **example} for example in source.examples(rank, limit=PATCHES, seed=seed)["examples"]]
    return members, (
        f"Compute {numbers.number(level)} is not met in the {counted['num_samples']:,} of {whole} that were searched: "
        f"shown is the path of rank {rank:,}."
    )
