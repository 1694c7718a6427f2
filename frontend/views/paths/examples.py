"""Tokens in their places: patches on a wall, or tokens in context, each of which opens its sample."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tokenpaths.frontend.charts.flow.token_flow import visible
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address
from tokenpaths.frontend.views import common

CONTEXT = 60
"""characters that the API gives on each side of a token; as many as that were cut"""
BLANK_LINES = re.compile(r"\n\s*\n")


def draw(examples: list[dict[str, Any]], key: str) -> None:
    """Patches, or tokens in context, whatever these are."""
    if "patch" in examples[0]:
        examples_of_patches(examples, f"patches_{key}")
    else:
        examples_of_text(examples, f"contexts_{key}")


def examples_of_patches(examples: list[dict[str, Any]], key: str) -> None:
    """A wall of patches; each says where it is from, and a click opens its sample."""

    def open_sample(value: Mapping[str, Any]) -> None:
        address.go_changed(view="sample", sample=int(value["sample"]), token=int(value["token"]))

    wall(
        [
            {
                "image": one["patch"],
                "sample": one["sample"],
                "token": one["token"],
                "title": (
                    f"sample {one['sample']}, {one.get('label') or 'no label'}, row {one.get('row')}, "
                    f"column {one.get('col')}"
                ),
            }
            for one in examples
        ],
        key=key,
        on_open=open_sample,
    )


def examples_of_text(examples: list[dict[str, Any]], key: str) -> None:
    """Tokens in their context, the token marked. Plain text: nothing in it can become markup."""

    def open_sample(value: Mapping[str, Any]) -> None:
        address.go_changed(view="sample", sample=int(value["sample"]), token=int(value["token"]))

    wall(
        [
            {
                "before": cut_start(one.get("before") or ""),
                "text": common.named(one),
                "after": cut_end(one.get("after") or ""),
                "shown": visible(common.named(one)),
                "sample": one["sample"],
                "token": one["token"],
                "title": f"sample {one['sample']}, {one.get('label') or 'no label'}, token {one['token']}",
            }
            for one in examples
        ],
        key=f"{key}_{examples[0]['sample']}_{examples[0]['token']}_{len(examples)}",
        on_open=open_sample,
        kind="context",
    )


def cut_start(before: str) -> str:
    """Context that was cut begins at a word, after an ellipsis; blank lines go."""
    cut, before = len(before) >= CONTEXT, BLANK_LINES.sub("\n", before)
    if not cut:
        return before.lstrip("\n")
    head, gap, tail = before.partition(" ")
    return "… " + (tail if gap and len(head) < CONTEXT // 2 else before).lstrip()


def cut_end(after: str) -> str:
    """The same at the other end."""
    cut, after = len(after) >= CONTEXT, BLANK_LINES.sub("\n", after)
    if not cut:
        return after.rstrip()
    head, gap, tail = after.rpartition(" ")
    return (head if gap and len(tail) < CONTEXT // 2 else after).rstrip() + " …"
