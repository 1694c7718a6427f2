"""Paths and the tokens on them: figures 1c, 1d, 1e, 1f, 3, 9 (right) and 17 of the DNA paper."""

from __future__ import annotations

from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import PRINT
from tokenpaths.frontend.charts.drawing.slots import named, offered_ids
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns
from tokenpaths.frontend.charts.patches import patch_rows
from tokenpaths.frontend.charts.paths import fit_words, law_words
from tokenpaths.frontend.figures import common, walls
from tokenpaths.frontend.figures.figure import Figure, NotHere, Source, Wishes

PATCHES, TOKENS, IMAGES = 60, 24, 4
_LEAST = 12
"""minimum number of tokens on a path to show its patches or tokens"""


def rank_frequency(source: Source, wishes: Wishes) -> list[Figure]:
    """Figure 1c, d: rank and frequency with fit, untrained twin and independent steps."""
    from tokenpaths.frontend.charts import rank_frequency_chart

    fit = source.fit()
    observed = fit["observed"]
    if observed["num_paths"] <= 1:
        raise NotHere("All tokens of this run take one and the same path, so there is no curve to draw.")
    law = source.law(draws=wishes.law_draws, seed=wishes.seed)
    nulls = (("untrained", "Untrained twin"), ("independent", "Independent steps"))
    parts = {"observed": "This run"} | {key: name for key, name in nulls if fit.get(key)}
    words = [fit_words(name, fit[key]) for key, name in parts.items()]
    words += ["This run has no untrained twin to compare with."] * (not fit.get("untrained"))
    values: dict[str, Any] = {}
    for key in parts:
        values |= {f"{key}.{name}": fit[key].get(name) for name in ("num_paths", "num_tokens", "slope", "r2")}
        if law.get(key):
            names = ("alpha", "alpha_error", "x_min", "num_tail", "ks", "p_value", "reason")
            values |= {f"{key}.law.{name}": law[key].get(name) for name in names if law[key].get(name) is not None}
            beside = law[key].get("lognormal") or {}
            values |= {f"{key}.lognormal.{name}": beside.get(name) for name in ("ratio", "p_value") if beside}
    table = [{"whose": key, **point} for key in parts for point in fit[key]["points"]]
    return [
        Figure(
            "fig1cd-paths",
            "Which paths exist, and how often is each taken?",
            "Share of tokens on a path by the rank of the path, both axes logarithmic. "
            + " ".join(words)
            + " "
            + law_words(law["observed"], law["draws"]),
            values,
            {"points": table, "power law": law["observed"].get("curve") or []},
            ("paths", "nulls", "law"),
            draw=lambda theme: rank_frequency_chart(fit, law=law["observed"], theme=theme, title=None, height=190),
        )
    ]


def tinted(source: Source, wishes: Wishes) -> list[Figure]:
    """Figure 1e: images whose patches are tinted by how many tokens take their path."""
    info = source.info()
    common.need_pictures(source, info, "Figure 1e")
    if common.all_differ(info):
        raise NotHere("Nearly every patch of this run has a path of its own, so the colour of a path says nothing.")
    total = int(info["num_samples"])
    chosen = [wishes.sample] if wishes.sample is not None else _spread(total, IMAGES)
    shown, table = [], []
    for number in chosen:
        sample = source.sample(number)
        if not sample.get("grid") or sample["grid"]["rows"] * sample["grid"]["cols"] == 1:
            continue
        rows = patch_rows(sample, theme=PRINT)
        title = f"sample {number}" + (f", {sample['label']}" if sample.get("label") else "")
        shown.append((title, common.png_url(source.picture(number)), sample["grid"], rows))
        table += [
            {"sample": number, "label": sample.get("label")}
            | {
                name: token.get(name)
                for name in (
                    "token",
                    "row",
                    "col",
                    "rank",
                    "cdf",
                    "cdf_middle",
                    "path_tokens",
                    "ribbon",
                    "compute",
                    "reuse",
                )
            }
            for token in sample["tokens"]
        ]
    if not shown:
        raise NotHere("The tokens of this run are whole images rather than patches, so there is nothing to tint.")
    return [
        Figure(
            "fig1e-tinted",
            "What happened inside this image?",
            f"{numbers.plural(len(shown), 'image')}, grey, with each patch in the colour of its path: "
            f"dark ones are taken by many tokens, bright ones by few, sand-coloured ones only here. There are "
            f"{numbers.count(info['num_paths'])} paths.",
            {"samples": [row[0] for row in shown], "num_paths": info["num_paths"]},
            {"patches": table},
            ("cdf",),
            sheet=walls.tinted_images(shown),
            columns=2 if len(shown) > 2 else 1,
        )
    ]


def tokens_of_ranks(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 1f and 9 (right): tokens that follow the path of a rank."""
    info = source.info()
    if common.is_vision(info):
        raise NotHere("Figures 1f and 9 (right) show tokens of texts, and this run is of images: see figure 3.")
    blocks, table = [], []
    offered = offered_ids(info)
    for rank in common.ranks_shown(source, info["num_paths"], wishes.ranks, 9, _LEAST):
        answer = source.examples(rank, limit=TOKENS, seed=wishes.seed)
        answer = {**answer, "ribbon": named(answer["ribbon"], offered)}
        words = [example.get("text") or _named(example) for example in answer["examples"]]
        ribbon = numbers.ribbon_words(answer["ribbon"], most=24)
        head = (
            f"rank {numbers.count(rank)}: {numbers.plural(answer['count'], 'token')}, "
            f"{numbers.percent(answer['share'])}; modules {ribbon}"
        )
        blocks.append((head, answer, words))
        about = {name: answer[name] for name in ("rank", "count", "share", "cdf", "cdf_middle", "ribbon")}
        table += [about | dict(example) for example in answer["examples"]]
    return [
        Figure(
            "fig1f-tokens",
            "Which tokens share a path?",
            f"Up to {TOKENS} tokens drawn at random (seed {wishes.seed}) from those on the path of each rank; colour: "
            "how many tokens take the path. " + "; ".join(head for head, _, _ in blocks) + ".",
            {"ranks": sorted({row["rank"] for row in table})},
            {"tokens": table},
            ("paths", "cdf"),
            sheet=walls.blocks_of_tokens(blocks),
            columns=2,
        )
    ]


def patches_of_ranks(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 3 and 17: sixty random patches of a path."""
    info = source.info()
    common.need_pictures(source, info, "Figure 3")
    blocks, table = [], []
    ranks = common.ranks_shown(source, info["num_paths"], wishes.ranks, 6, _LEAST)
    _, plural = token_nouns(info)
    for rank in ranks:
        answer = source.examples(rank, limit=PATCHES, seed=wishes.seed)
        patches = [example for example in answer["examples"] if example.get("patch")]
        if not patches:
            continue
        head = (
            f"rank {numbers.count(rank)}, {numbers.percent(answer['share'])} of {plural}; "
            f"modules {numbers.ribbon_words(answer['ribbon'], most=24)}"
        )
        blocks.append((head, answer, patches))
        about = {name: answer[name] for name in ("rank", "count", "share", "cdf", "cdf_middle", "ribbon")}
        table += [about | {key: value for key, value in example.items() if key != "patch"} for example in patches]
    if not blocks:
        raise NotHere("The tokens of this run are whole images rather than patches, so no patch can be cut out.")
    return [
        Figure(
            "fig3-patches",
            f"Which {plural} share a path?",
            f"Up to {PATCHES} {plural} drawn at random (seed {wishes.seed}) from all that follow the path of each "
            "rank: " + "; ".join(head for head, _, _ in blocks) + ".",
            {"ranks": sorted({row["rank"] for row in table})},
            {"patches": table},
            ("paths", "cdf"),
            sheet=walls.blocks_of_patches(blocks),
            columns=2,
        )
    ]


def _spread(total: int, most: int) -> list[int]:
    """Samples evenly spaced over the run, since it is often sorted by label."""
    return sorted({(2 * place + 1) * total // (2 * min(most, total)) for place in range(min(most, total))})


def _named(example: dict[str, Any]) -> str:
    return f"#{example['token_id']}" if example.get("token_id") is not None else f"token {example['token']}"
