"""Clickable walls of samples and of tokens (image patches or text contexts)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.components.wall_data import token_items
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.views.own_names import own_names


def sample_wall(
    run: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    caption: Callable[[Mapping[str, Any]], str],
    key: str,
    **change: Any,
) -> None:
    """Draw samples of a run, as images or as text excerpts; a click on one opens it in the inspector, or in the
    view named by ``change``.

    Args:
        run: Details of the run; images are read from it.
        rows: Samples: sample, has_image, snippet, source.
        caption: Text under the sample.
        key: Streamlit key of the component.
        change: Fields of the selection that a click changes beside the sample, for example ``view="samples"``; none:
            the sample is opened in the inspector.
    """
    items, names = [], own_names(run["run"])
    for row in rows:
        text = " · ".join(filter(None, (names.get(f"sample:{row['sample']}"), caption(row))))
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
        on_open=lambda item: _open_sample(int(item["sample"]), change),
    )


def _open_sample(sample: int, change: Mapping[str, Any]) -> None:
    address.go_changed(**({"sample": sample, **change} if change else {"inspect": f"sample:{sample}"}))


def token_wall(examples: list[dict[str, Any]], key: str) -> None:
    """Draw tokens as image patches, or in their textual context; a click opens the token in the inspector."""
    items, kind = token_items(examples)
    shown = "" if kind == "patch" else f"_{examples[0]['sample']}_{examples[0]['token']}_{len(examples)}"
    wall(items, key=f"{kind}_{key}{shown}", kind=kind, on_open=_open_token)


def _open_token(item: Mapping[str, Any]) -> None:
    address.go_changed(inspect=f"token:{int(item['sample'])}.{int(item['token'])}")
