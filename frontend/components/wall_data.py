"""Data of walls (wall.js), for the page and for notebooks: patches of images, or tokens in their context."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import Theme
from tokenpaths.frontend.charts.drawing.running_text import isolated, tamed, token_name
from tokenpaths.frontend.charts.flow.token_flow import visible

Kind = Literal["patch", "sample", "text", "context"]
KINDS: Mapping[Kind, tuple[str, ...]] = {
    "patch": ("patch", "patches"),
    "sample": ("sample",),
    "text": ("text",),
    "context": ("token in its context", "tokens in their context"),
}
CONTEXT = 60
"""characters that the API gives on each side of a token; as many as that were cut"""
BLANK_LINES = re.compile(r"\n\s*\n")


def wall_data(items: Sequence[Mapping[str, Any]], kind: Kind, theme: Theme) -> dict[str, Any]:
    """What wall.js draws; in texts of the items, controls of the direction of writing are visible marks."""
    return {
        "items": [_tamed(item) for item in items],
        "kind": kind,
        "label": f"{numbers.plural(len(items), *KINDS[kind])}; each opens its sample",
        "colours": {"accent": theme.accent, "muted": theme.muted},
    }


def _tamed(item: Mapping[str, Any]) -> dict[str, Any]:
    """The item with bidirectional controls in its texts made visible; captions have names beside other words."""
    shown = {name: tamed(value) if isinstance(value, str) else value for name, value in item.items()}
    return shown | {name: isolated(shown[name]) for name in ("title", "caption") if shown.get(name)}


def token_items(examples: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], Kind]:
    """Examples of a path as items, and their kind: patches of images, or tokens in their contexts."""
    if "patch" in examples[0]:
        return [_patch(example) for example in examples], "patch"
    return [_in_context(example) for example in examples], "context"


def _patch(example: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "image": example["patch"],
        "sample": example["sample"],
        "token": example["token"],
        "title": f"sample {example['sample']}, {example.get('label') or 'no label'}, row {example.get('row')}, "
        f"column {example.get('col')}",
    }


def _in_context(example: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "before": cut_start(example.get("before") or ""),
        "text": token_name(example),
        "after": cut_end(example.get("after") or ""),
        "shown": visible(token_name(example)),
        "sample": example["sample"],
        "token": example["token"],
        "title": f"sample {example['sample']}, {example.get('label') or 'no label'}, token {example['token']}",
    }


def cut_start(before: str) -> str:
    """The context before a token: if truncated, it starts at a word boundary after an ellipsis; blank lines go."""
    cut, before = len(before) >= CONTEXT, BLANK_LINES.sub("\n", before)
    if not cut:
        return before.lstrip("\n")
    head, gap, tail = before.partition(" ")
    return "… " + (tail if gap and len(head) < CONTEXT // 2 else before).lstrip()


def cut_end(after: str) -> str:
    """The context after a token, truncated like ``cut_start``."""
    cut, after = len(after) >= CONTEXT, BLANK_LINES.sub("\n", after)
    if not cut:
        return after.rstrip()
    head, gap, tail = after.rpartition(" ")
    return (head if gap and len(tail) < CONTEXT // 2 else after).rstrip() + " …"
