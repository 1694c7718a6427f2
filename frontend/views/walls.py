"""Clickable walls of samples and of tokens (image patches or text contexts)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.components.wall_data import token_items
from tokenpaths.frontend.page import address, widgets


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
    items, kind = token_items(examples)
    shown = "" if kind == "patch" else f"_{examples[0]['sample']}_{examples[0]['token']}_{len(examples)}"
    wall(items, key=f"{kind}_{key}{shown}", kind=kind, on_open=_open_token)


def _open_token(item: Mapping[str, Any]) -> None:
    address.go_changed(view="sample", sample=int(item["sample"]), token=int(item["token"]))
