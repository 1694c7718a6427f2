"""What an upload teaches: how many of its paths were seen before, what takes them, and what the model can answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import with_text
from tokenpaths.frontend.charts.flow.token_flow import token_label
from tokenpaths.frontend.charts.patches import data_url, patch_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.components.wall_data import token_items
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.page.tables import Column, plain_table
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.home import upload_family
from tokenpaths.frontend.views.samples import reference
from tokenpaths.frontend.views.samples.one_sample import pick_token

MOST_UNUSUAL, MOST_NAMED = 4, 6
"""unusual paths that are shown, and tokens of one that are named"""
MOST_KNOWN = {"patch": 12, "context": 4}
"""tokens of the reference beside them; a context takes three lines"""
CONTEXT = 24
"""characters on each side of a token of the upload"""
MOST_CLASSES = 60
"""names of classes that stand open"""


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """The answer to an upload, above the picture of its paths; nothing for a run over a data set."""
    if not common.is_try(run):
        return
    number = selection.sample or 0
    sample = with_text(widgets.client().ask(run["run"], "samples/{sample}", sample=number))
    if not sample["tokens"]:
        return
    ranked = reference.ranked(run, sample)
    _answer(run)
    common.notes(run)
    if ranked.reference is not None and ranked.answer is not None:
        what = ("patch", "patches") if sample.get("grid") else ("token",)
        st.subheader(headline(ranked.answer, *what), anchor=False)
        st.caption(widgets.escape(seen_words(ranked.answer)))
        _chosen(ranked, selection.token)
        with st.spinner(f"Comparing with run {widgets.escape(str(ranked.name))} …"):
            answer = reference.beside(run, sample)
        _unusual(run, ranked, answer)
        _nearest(ranked, answer)
    upload_family.draw(run, ranked)


def headline(answer: Mapping[str, Any], singular: str, plural: str | None = None) -> str:
    """“41 of your 64 patches take paths seen before”."""
    plural = plural or f"{singular}s"
    known, total = answer["num_known"], answer["num_tokens"]
    if total == 1:
        return f"Your {singular} takes a path {'seen before' if known else 'that was not seen before'}"
    if known in (0, total):
        return f"{'All' if known else 'None'} of your {total:,} {plural} take paths seen before"
    return f"{known:,} of your {total:,} {plural} take{'s' if known == 1 else ''} paths seen before"


def seen_words(answer: Mapping[str, Any]) -> str:
    """What “before” is, and how many paths were seen there a single time."""
    run = answer["reference"]
    words = f"Before: among the {run['num_tokens']:,} tokens of run {run['run']} ({run['dataset']})."
    if answer["num_once"]:
        words += f" {numbers.plural(answer['num_once'], 'of them is', 'of them are')} on paths of a single token there."
    return words


def classes_words(classes: Sequence[str]) -> str:
    """“The model knows only these 50 classes: apple, …”."""
    if not classes:
        return "The names of the model's classes are not known."
    shown = ", ".join(classes[:MOST_CLASSES])
    more = f" and {len(classes) - MOST_CLASSES:,} more" if len(classes) > MOST_CLASSES else ""
    return (
        f"The model knows only {'this class' if len(classes) == 1 else f'these {len(classes):,} classes'}, and gives "
        f"every image the likeliest of them, whatever it shows: {shown}{more}."
    )


def _answer(run: Mapping[str, Any]) -> None:
    """The five likeliest classes, and all that the model knows."""
    answer = (run.get("findings") or {}).get("answer")
    if not answer or not answer["likeliest"]:
        return
    st.subheader("What the model calls it", anchor=False)
    plain_table(
        [{"class": row["name"], "probability": row["probability"]} for row in answer["likeliest"]],
        "The likeliest classes",
        {"probability": Column("probability", numbers.percent)},
    )
    st.caption(widgets.escape(classes_words(answer["classes"])))


def _chosen(ranked: reference.Ranked, chosen: int | None) -> None:
    """Tokens of the reference on the path of the chosen token."""
    token = next((t for t in ranked.sample["tokens"] if t["token"] == chosen), None)
    if token is None or token["rank"] is None:
        return
    path = widgets.client().ask(
        str(ranked.name), "paths/{rank}/examples", rank=token["rank"], limit=max(MOST_KNOWN.values()), seed=0
    )
    count = numbers.plural(path["count"], "token")
    st.markdown(widgets.escape(f"{token_label(token)} is on the path of rank {path['rank']:,}, which {count} take:"))
    _known(ranked, path["examples"], "chosen")


def _unusual(run: Mapping[str, Any], ranked: reference.Ranked, answer: Mapping[str, Any]) -> None:
    """The paths that the reference does not have, each beside the nearest that it has."""
    if not answer["unusual"]:
        return
    st.markdown("**Unusual: paths that were not seen before, each beside the nearest one that was**")
    of_token = {token["token"]: token for token in ranked.sample["tokens"]}
    picture = widgets.client().image(run["run"], ranked.sample["sample"]) if ranked.sample.get("has_image") else None
    for place, row in enumerate(answer["unusual"][:MOST_UNUSUAL]):
        own = [of_token[number] for number in row["tokens"]]
        left, right = st.columns([1, 2], gap="medium")
        with left:
            st.caption(widgets.escape(unusual_words(own)))
            _own(ranked.sample, own, picture, f"unusual_{place}")
        with right:
            drawn = row["compared_paths"] < answer["reference"]["num_paths"]
            st.caption(widgets.escape(nearest_words(row["nearest"], row["compared_paths"] if drawn else None)))
            _known(ranked, row["nearest"]["examples"], f"near_{place}")


def unusual_words(tokens: Sequence[Mapping[str, Any]]) -> str:
    """Which tokens are on an unusual path, by name."""
    named = ", ".join(token_label(token) for token in tokens[:MOST_NAMED])
    more = f" and {len(tokens) - MOST_NAMED:,} more" if len(tokens) > MOST_NAMED else ""
    return f"{named}{more}: modules {numbers.ribbon_words(tokens[0]['ribbon'])}"


def nearest_words(path: Mapping[str, Any], drawn: int | None = None) -> str:
    """How far the nearest known path is, and how many take it; ``drawn``: paths compared, where these are not all."""
    steps = path["differs"]
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {', '.join(map(str, steps))}"
    known = "Nearest known path" if drawn is None else f"Nearest of {drawn:,} known paths that were drawn"
    return f"{known}, rank {path['rank']:,}: differs at {where}; {numbers.plural(path['count'], 'token')}"


def _own(sample: Mapping[str, Any], tokens: Sequence[Mapping[str, Any]], picture: bytes | None, key: str) -> None:
    """The upload's own tokens; a click chooses one."""
    grid = sample.get("grid")
    examples: list[dict[str, Any]] = []
    for token in tokens[:MOST_NAMED]:
        example = {"sample": sample["sample"], "token": token["token"], "label": sample.get("label")}
        if picture is not None and grid:
            place = {"row": token["row"], "col": token["col"]}
            example |= place | {"patch": patch_url(picture, grid, **place)}
        else:
            text, start, end = sample.get("text") or "", token.get("char_start"), token.get("char_end")
            example |= {
                "before": "" if start is None else text[max(0, start - CONTEXT) : start],
                "text": token.get("text") or "",
                "after": "" if end is None else text[end : end + CONTEXT],
            }
        examples.append(example)
    items, kind = token_items(examples)
    wall(items, key=key, kind=kind, on_open=lambda item: pick_token(sample["sample"], int(item["token"])))


def _known(ranked: reference.Ranked, examples: list[dict[str, Any]], key: str) -> None:
    """Tokens of the reference; a click opens their sample there."""
    if not examples:
        return
    items, kind = token_items(examples)
    items = items[: MOST_KNOWN[kind]]

    def opened(item: Mapping[str, Any]) -> None:
        address.go_changed(view="samples", run=ranked.name, sample=int(item["sample"]), token=int(item["token"]))

    wall(items, key=f"{key}_{ranked.name}_{examples[0]['sample']}_{examples[0]['token']}", kind=kind, on_open=opened)


def _nearest(ranked: reference.Ranked, answer: Mapping[str, Any]) -> None:
    """Samples of the reference that load the modules most alike."""
    rows = answer["similar"]
    if not rows:
        return
    st.markdown("**Nearest in that run: what loads the modules most alike**")
    client, name = widgets.client(), str(ranked.name)
    items: list[dict[str, Any]] = []
    for row in rows:
        words = " · ".join(filter(None, (row.get("label"), f"distance {numbers.number(row['distance'])}")))
        item: dict[str, Any] = {"sample": row["sample"], "title": f"sample {row['sample']}: {words}", "caption": words}
        if row.get("has_image"):
            item["image"] = data_url(client.image(name, row["sample"]))
        else:
            item["snippet"] = row.get("snippet") or row.get("source") or f"sample {row['sample']}"
        items.append(item)
    wall(
        items,
        key=f"nearest_{name}_{rows[0]['sample']}",
        kind="sample" if "image" in items[0] else "text",
        on_open=lambda item: address.go_changed(view="samples", run=name, sample=int(item["sample"]), token=None),
    )
