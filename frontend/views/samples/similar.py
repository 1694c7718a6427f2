"""Similar samples, and tokens on equal or neighbouring ribbons; a click on one opens it in the inspector."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import Refused
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import token_name
from tokenpaths.frontend.charts.drawing.slots import offered_ids
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns
from tokenpaths.frontend.charts.flow.token_flow import visible
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets

SAMPLES = 12
PATHS = 6
EACH = 10
FEW = 4
"""maximum number of tokens in context, which take a line or two each"""
CONTEXT = 34
"""characters of context on each side of a token"""
ONE = {"patches": "patch", "tokens": "token", "images": "image"}
SAMPLES_HELP = (
    "Path profile of a sample: share of its choices that went to each module, step by step. Distance of two: "
    "Hellinger, √(mean over steps of (1 − Σ √(p·q))); 0 = the same load, 1 = no module in common."
)
TOKENS_HELP = (
    "Path distance of two ribbons: the sum over steps of 1 − |S ∩ S′| / K. Compared with all paths of the run; where "
    "there are more than a million, of many choices each, with a draw of them."
)


def like_this_sample(run: Mapping[str, Any], sample: int, key: str = "similar") -> None:
    """The samples with the most similar module load per step; a click opens one in the inspector."""
    if int(run["num_samples"]) < 2:
        return
    st.subheader("Which samples take similar routes?", anchor=False, help=SAMPLES_HELP)
    answer = widgets.client().ask(run["run"], "samples/{sample}/similar", sample=sample, limit=SAMPLES)
    st.caption(widgets.escape(sample_words(answer)))
    items = []
    for row in answer["similar"]:
        item: dict[str, Any] = {
            "sample": row["sample"],
            "caption": " · ".join(filter(None, [row.get("label") or "", numbers.number(row["distance"])])),
            "title": f"sample {row['sample']}{', ' + row['label'] if row.get('label') else ''}: distance "
            f"{numbers.number(row['distance'])}",
        }
        if row["has_image"]:
            item["image"] = data_url(widgets.client().image(run["run"], row["sample"]))
        else:
            item["snippet"] = row.get("snippet") or row.get("source") or f"sample {row['sample']}"
        items.append(item)
    wall(
        items,
        key=f"{key}_{run['run']}_{sample}",
        kind="sample" if "image" in items[0] else "text",
        on_open=lambda one: address.go_changed(inspect=f"sample:{int(one['sample'])}"),
    )
    columns = ("sample", "label", "distance", "prediction", "compute", "reuse", "source")
    widgets.numbers_behind([{name: row.get(name) for name in columns} for row in answer["similar"]], "similar samples")


FEW_OTHERS = 11


def sample_words(answer: Mapping[str, Any]) -> str:
    """Distance of the nearest samples, compared with the usual distance."""
    rows = answer["similar"]
    usual = numbers.number(answer["median_distance"])
    others = numbers.plural(answer["of_samples"] - 1, "other sample")
    words = f"Nearest first, of {others}; the median distance is {usual}."
    if answer["num_identical"]:
        one = "s" * (answer["num_identical"] == 1)
        words += f" {numbers.plural(answer['num_identical'], 'sample')} load{one} the modules exactly alike."
    # Of few samples the nearest is as far as the median by itself.
    if answer["of_samples"] > FEW_OTHERS and rows[0]["distance"] > 0.9 * answer["median_distance"] > 0:
        words += " None is much nearer than usual."
    return words


def like_this_token(run: Mapping[str, Any], sample: int, token: int, key: str = "near") -> None:
    """The ribbons nearest to the selected token's, and tokens that take them."""
    _, what = token_nouns(run)
    st.subheader(f"Which {what} take nearly the same path?", anchor=False, help=TOKENS_HELP)
    try:
        each = FEW if what == "tokens" else EACH
        answer = widgets.client().ask(run["run"], "tokens/similar", sample=sample, token=token, limit=PATHS, each=each)
    except Refused as error:
        widgets.show_error(error)
        return
    st.caption(widgets.escape(token_words(answer, what)))
    shown = [path for path in answer["paths"] if path["examples"]]
    for path in shown:
        st.caption(widgets.escape(path_words(path, what)))
        _tokens(run, path["examples"], f"{key}_{run['run']}_{sample}_{token}_{path['rank']}")
    offered = offered_ids(run)
    widgets.numbers_behind(
        [
            {
                "rank": p["rank"],
                "distance": p["distance"],
                "differs at steps": ", ".join(map(str, p["differs"])),
                "tokens": p["count"],
                "ribbon": numbers.ribbon_words(p["ribbon"], offered=offered),
            }
            for p in answer["paths"]
        ],
        "nearest paths",
    )
    widgets.numbers_behind(answer["apart"], "paths and tokens at each distance")


def token_words(answer: Mapping[str, Any], what: str) -> str:
    """Number of other tokens on the same path, and at a path distance of at most 1."""
    at = {row["distance"]: row for row in answer["apart"]}
    same = at.get(0.0, {}).get("num_tokens", 0)
    near = [row for row in answer["apart"] if 0 < row["distance"] <= 1]
    tokens, paths = sum(row["num_tokens"] for row in near), sum(row["num_paths"] for row in near)
    noun = ONE[what]
    own = f"No other {noun}" if not same else numbers.plural(same, f"other {noun}", f"other {what}")
    words = f"{own} {'is' if same <= 1 else 'are'} on the very same path, rank {numbers.count(answer['rank'])}"
    # With several slots a distance of 1 may also be two steps that each differ by half.
    slots = max((len(step) for step in answer["ribbon"] if isinstance(step, (list, tuple))), default=1)
    away = "differ at one step" if slots == 1 else "differ by no more choices than one step has, at one step or several"
    drawn = ""
    if answer["compared_paths"] < answer["num_paths"]:
        drawn = f"{numbers.count(answer['compared_paths'])} paths drawn of {numbers.count(answer['num_paths'])}"
    if paths:
        about, by = ("about ", f", estimated from {drawn}") if drawn else ("", "")
        return words + f"; {about}{numbers.count(tokens)} more on {numbers.plural(paths, 'path')} that {away}{by}."
    return words + (f"; none of {drawn} {away}." if drawn else f"; there are no paths that {away}.")


def path_words(path: Mapping[str, Any], what: str) -> str:
    """One neighbouring path on one line."""
    count = numbers.plural(path["count"], ONE[what], what)
    if not path["distance"]:
        return f"The same path, rank {path['rank']:,}: {count}."
    steps = path["differs"]
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {', '.join(map(str, steps))}"
    return f"Differs at {where} (distance {numbers.number(path['distance'])}), rank {path['rank']:,}: {count}."


def _tokens(run: Mapping[str, Any], examples: Sequence[Mapping[str, Any]], key: str) -> None:
    vision = run["modality"] == "vision" and any(example.get("patch") for example in examples)
    items: list[dict[str, Any]] = []
    for example in examples:
        title = f"sample {example['sample']}, token {example['token']}" + (
            f", {example['label']}" if example.get("label") else ""
        )
        item: dict[str, Any] = {"sample": example["sample"], "token": example["token"], "title": title}
        if vision:
            item["image"] = example.get("patch")
        else:
            item |= {
                "before": _line(example.get("before"))[-CONTEXT:],
                "text": example.get("text") or "",
                "after": _line(example.get("after"))[:CONTEXT],
                "shown": visible(token_name(example)),  # of a blank or a line break the sign for it, as everywhere
            }
        items.append(item)
    wall(
        items,
        key=key,
        kind="patch" if vision else "context",
        on_open=lambda one: address.go_changed(inspect=f"token:{int(one['sample'])}.{int(one['token'])}"),
    )


def _line(text: str | None) -> str:
    """A context on one line, keeping leading and trailing spaces."""
    return re.sub(r"\s+", " ", text or "")
