"""Clickable walls of samples and of tokens (image patches or text contexts)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.flow.token_flow import visible
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.views import common

CONTEXT = 60
"""characters that the API gives on each side of a token; as many as that were cut"""
BLANK_LINES = re.compile(r"\n\s*\n")


def sample_wall(
    run: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    caption: Callable[[Mapping[str, Any]], str],
    key: str,
    **change: Any,
) -> None:
    """Draw samples of a run, as images or as text excerpts; a click on one selects it.

    Args:
        run: Details of the run; images are read from it.
        rows: Samples: sample, has_image, snippet, source.
        caption: Text under the sample.
        key: Streamlit key of the component.
        change: Other fields of the selection that a click changes, for example ``view="sample"``.
    """
    items = []
    for row in rows:
        text = caption(row)
        item: dict[str, Any] = {"sample": row["sample"], "title": f"sample {row['sample']}: {text}", "caption": text}
        if row.get("has_image"):
            item["image"] = data_url(widgets.client().image(run["run"], row["sample"]))
        else:
            item["snippet"] = row.get("snippet") or row.get("source") or f"sample {row['sample']}"
        items.append(item)
    wall(
        items,
        key=key,
        kind="sample" if items and "image" in items[0] else "text",
        on_open=lambda item: address.go_changed(sample=int(item["sample"]), **change),
    )


def token_wall(examples: list[dict[str, Any]], key: str) -> None:
    """Draw tokens as image patches, or in their textual context; a click opens the sample at the token."""
    if "patch" in examples[0]:
        _patch_wall(examples, f"patches_{key}")
    else:
        _context_wall(examples, f"contexts_{key}")


def _open_token(item: Mapping[str, Any]) -> None:
    address.go_changed(view="sample", sample=int(item["sample"]), token=int(item["token"]))


def _patch_wall(examples: list[dict[str, Any]], key: str) -> None:
    wall(
        [
            {
                "image": example["patch"],
                "sample": example["sample"],
                "token": example["token"],
                "title": (
                    f"sample {example['sample']}, {example.get('label') or 'no label'}, row {example.get('row')}, "
                    f"column {example.get('col')}"
                ),
            }
            for example in examples
        ],
        key=key,
        on_open=_open_token,
    )


def _context_wall(examples: list[dict[str, Any]], key: str) -> None:
    """Tokens in their context, the token marked. Plain text: nothing in it can become markup."""
    wall(
        [
            {
                "before": cut_start(example.get("before") or ""),
                "text": common.named(example),
                "after": cut_end(example.get("after") or ""),
                "shown": visible(common.named(example)),
                "sample": example["sample"],
                "token": example["token"],
                "title": f"sample {example['sample']}, {example.get('label') or 'no label'}, token {example['token']}",
            }
            for example in examples
        ],
        key=f"{key}_{examples[0]['sample']}_{examples[0]['token']}_{len(examples)}",
        on_open=_open_token,
        kind="context",
    )


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
