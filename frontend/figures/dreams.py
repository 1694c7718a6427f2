"""Finished dreams of the run's model: figures 4, 5, 14 and 15 of the DNA paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.figures import common, walls
from tokenpaths.frontend.figures.figure import Figure, NotHere, Source, Wishes

MOST = 4
"""maximum dreams per figure, the newest first"""


def steps(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 4 and 14: dreams of the decisions up to step S, and of step S alone."""
    return _figure("fig4-dreams", "What does the model dream up to each step?", "4", source, wishes, group=False)


def groups(source: Source, wishes: Wishes) -> list[Figure]:
    """Figures 5 and 15: dreams of a group of patches, with and without its own pixels."""
    return _figure("fig5-groups", "What does one group of patches hold?", "5", source, wishes, group=True)


def _figure(key: str, question: str, number: str, source: Source, wishes: Wishes, *, group: bool) -> list[Figure]:
    info = source.info()
    if not common.is_vision(info):
        raise NotHere(f"Figure {number} is of images, and this run is of texts; the view Dream dreams texts.")
    dreams = [dream for dream in wishes.dreams.found if _of_choices(dream) and _has_group(dream) == group][:MOST]
    if not dreams:
        what = "of a group of its patches" if group else "of an image of this run"
        command = wishes.dreams.command and wishes.dreams.command + " --like 0 --context both" * group
        more = f"; this makes one: {command}" if command else ""
        raise NotHere(f"There is no finished dream {what} by {info['model']}{more}.")
    rows, table = [], []
    for dream in dreams:
        result, pictures = dream["result"], []
        if result.get("original"):
            pictures.append((_url(dream, result["original"]["image"]), f"original: {_says(result['original'])}"))
        for item in result["dreams"]:
            pictures.append((_url(dream, item["image"]), f"{item['name']}: {_says(item)}"))
            table.append(
                {
                    "dream": dream["title"],
                    "name": item["name"],
                    "objective": item["objective"],
                    "matched_choices": item.get("matched_choices"),
                    "matched_tokens": item.get("matched_tokens"),
                    "sees": (item.get("top") or [[None]])[0][0],
                    "probability": (item.get("top") or [[None, None]])[0][1],
                }
            )
        rows.append((dream["title"], pictures))
    matched = [row["matched_choices"] for row in table if row["matched_choices"] is not None]
    ends = [numbers.percent(share) for share in sorted({min(matched), max(matched)})] if matched else []
    words = f"They take {' to '.join(ends)} of the wanted choices." if ends else ""
    return [
        Figure(
            key,
            question,
            "The original and its dreams, each with the class that the model sees in it. "
            + ("Red: the group whose decisions were maximised. " if group else "")
            + words,
            {"dreams": len(table), "matched_choices": matched},
            {"dreams": table},
            sheet=walls.strips(rows),
            columns=2,
        )
    ]


def _of_choices(dream: Mapping[str, Any]) -> bool:
    """Whether a dream is of what an image's patches chose: dreams of a path or a module have no original."""
    dreams, target = dream["result"].get("dreams") or [], dream["result"]["request"].get("target") or {}
    return bool(dreams) and "image" in dreams[0] and target.get("of") == "choices"


def _has_group(dream: Mapping[str, Any]) -> bool:
    return any(item.get("group") for item in dream["result"]["dreams"])


def _url(dream: Mapping[str, Any], name: str) -> str:
    return common.png_url(dream["pictures"][name])


def _says(item: Mapping[str, Any]) -> str:
    return f"{item['top'][0][0]}, {numbers.percent(item['top'][0][1])}" if item.get("top") else "no class"
