"""A finished dream (images or texts), and the gallery of earlier dreams."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import text_pieces
from tokenpaths.frontend.charts.dreams import figure_html, figure_rows, match_chart, match_rows, top_chart, top_rows
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.dream.request import selection_of
from tokenpaths.frontend.views.jobs import panel

MOST_STEPS = 100
SHOWN = 8
HAIR = "\u200a"
GALLERY = 12
PICTURE = re.compile(r"dream-(\d+)\.png")


def draw_result(job: Mapping[str, Any]) -> None:
    """Original | dreams with their match and predicted classes; or the dreamed texts.

    For every view that shows jobs: draws nothing if the job is not a finished dream.
    """
    result = job["result"] or {}
    dreams = result.get("dreams") or []
    if job["kind"] != "dream" or not dreams:
        return
    st.subheader("The dream", anchor=False)
    target = job["request"].get("target") or {}
    if words := module_words(target, dreams):
        st.write(widgets.escape(words))
    if "text" in dreams[0]:
        _texts(result)
        return
    _figure(job["job"], result, target)
    if match_rows(dreams):
        widgets.chart(match_chart(dreams, of=target.get("of", "choices"), theme=widgets.theme()), **panel.scope_of(job))
        widgets.numbers_behind(match_rows(dreams), "what the dreams match")
    if top_rows(dreams, result.get("original")):
        widgets.chart(top_chart(dreams, result.get("original"), theme=widgets.theme()), **panel.scope_of(job))
        widgets.numbers_behind(top_rows(dreams, result.get("original")), "what the model sees")


def module_words(target: Mapping[str, Any], dreams: Sequence[Mapping[str, Any]]) -> str:
    """Whether the tokens of a module dream take that module; empty for other dreams, or older ones."""
    first = dreams[0]
    if target.get("of") != "module" or first.get("matched_choices") is None:
        return ""
    what = "tokens" if "text" in first else "patches"
    steps = target.get("steps") or []
    where = "at every step" if not steps else f"at step {', '.join(map(str, steps))}"
    counted = "" if len(steps) == 1 else ", counted at each of these steps,"
    text = f"Module {target['module']} {where}: {numbers.percent(first['matched_choices'])} of the dream’s {what}"
    text += f"{counted} take it"
    begun = (first.get("at_start") or {}).get("matched_choices")
    text += f", {numbers.percent(begun)} of those of the noise that it began as." if begun is not None else "."
    if first["matched_choices"] < 0.5:
        text += " Most do not: a dream raises the router’s probability of the module, and others are still ahead of it."
    return text


def _figure(job: str, result: Mapping[str, Any], target: Mapping[str, Any]) -> None:
    original, rows_by_heading = figure_rows(result)
    cells = [*([original] if original else []), *(cell for row in rows_by_heading.values() for cell in row)]
    names = {cell.item["image"] for cell in cells}
    urls = {name: data_url(widgets.client().artifact(job, name)) for name in sorted(names)}
    with st.container(key="dream_strip"):
        st.html(figure_html(result, urls))
    captions = ["the class that the model sees"] if any(dream.get("top") for dream in result["dreams"]) else []
    if any(dream.get("matched_choices") is not None for dream in result["dreams"]):
        module = target.get("of") == "module"
        captions.append(
            "how many of its patches take the module" if module else "how many of the wanted choices it makes"
        )
    words = [f"Below each picture: {' and '.join(captions)}."] if captions else []
    if any(dream.get("group") for dream in result["dreams"]):
        words.append("Red: the group whose decisions were maximised.")
    st.caption(" ".join(words))


def marked(dream: Mapping[str, Any]) -> str:
    """A dreamed text as Markdown, with the tokens of target decisions in bold.

    Tokens that share the bytes of one character are one piece (``spans``: their positions in the text).
    """
    targets, tokens = set(dream.get("targets") or ()), dream["tokens"]
    text, spans = dream.get("text", "".join(tokens)), dream.get("spans")
    if spans is None:
        ends = [sum(map(len, tokens[: place + 1])) for place in range(len(tokens))]
        spans = list(zip([0, *ends[:-1]], ends, strict=True)) if "".join(tokens) == text else []
    placed = [{"token": place, "char_start": a, "char_end": b} for place, (a, b) in enumerate(spans)]
    pieces = []
    for piece in text_pieces(text, placed):
        word = re.sub(r"\s+", " ", piece.text)
        bare, is_target = word.strip(), bool(targets & set(piece.tokens))
        core = bare or ("↵" if "\n" in piece.text else "␣") if is_target else bare  # make a target line break visible
        shown = f"**{widgets.escape(core)}**" if is_target else widgets.escape(core)
        # Markdown's stars do not mark text between punctuation and a letter, so separate them with a hair space.
        before, after = (HAIR if is_target and core and not edge.isalnum() else "" for edge in (core[:1], core[-1:]))
        pieces.append(
            (" " if word.startswith(" ") else before) + shown + (" " if word.endswith(" ") and bare else after)
        )
    return "".join(pieces).strip()


def as_found(dream: Mapping[str, Any]) -> bool:
    """Whether a dreamed text is still the stretch of the corpus that it began as."""
    return bool(dream["tokens"] == (dream.get("start") or {}).get("tokens"))


def text_rows(texts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Table of dreamed texts or of segments of the corpus."""
    return [
        {
            **({"dream": item["name"]} if "name" in item else {}),
            "objective": item["objective"],
            "choices that match": item.get("matched_choices"),
            "text": item["text"].strip(),
            "began as": (item.get("start") or {}).get("text", "").strip() or None,
            "objective then": (item.get("start") or {}).get("objective"),
            "from": item.get("source"),
        }
        for item in texts
    ]


def _texts(result: Mapping[str, Any]) -> None:
    corpus = result["corpus"]
    st.caption(
        f"Before each text: the mean of its wanted decisions, at most 1 for probabilities. Over "
        f"{numbers.plural(corpus['windows'], 'stretch', 'stretches')} of the bundled texts it is "
        f"{numbers.number(corpus['mean'])}, for the best 1 % of them {numbers.number(corpus['p99'])}. "
        + ("Bold: the tokens whose decisions were wanted." if result["dreams"][0].get("targets") else "")
    )
    original = result.get("original")
    if original:
        value = numbers.number(original["objective"])
        st.markdown(f"**Original**, this stretch by itself: {value} · {marked(original)}")
    dreamt, written = st.columns(2, gap="large")
    with dreamt:
        st.markdown("**Dreamed**, word by word along the gradient")
        for dream in result["dreams"][:SHOWN]:
            share = dream.get("matched_choices")
            match = "" if share is None else f", {numbers.percent(share)} of the choices match"
            same = " · as it was found, no swap helped" if as_found(dream) else ""
            whose = f"{dream['name']}: " if "name" in dream else ""
            st.markdown(f"{whose}{numbers.number(dream['objective'])}{match}{same} · {marked(dream)}")
    with written:
        st.markdown("**Found**, the best of the bundled texts")
        for excerpt in corpus["examples"][:SHOWN]:
            st.markdown(f"{numbers.number(excerpt['objective'])} · {marked(excerpt)}")
    widgets.numbers_behind(text_rows(result["dreams"]), "the dreamed texts")
    widgets.numbers_behind(text_rows(corpus["examples"]), "stretches of the bundled texts")


def names_of(request: Mapping[str, Any]) -> list[str]:
    """Names of the dreams of a batch, in the order of their frames."""
    target = request.get("target") or {}
    if target.get("of") != "choices":
        return []
    single = target.get("form") == "single"
    ends = {"without": ("",), "with": (", with its pixels",), "both": ("", ", with its pixels")}
    return [
        (f"step {s - 1} alone" if single else f"S = {s}") + end
        for s in target.get("until") or range(1, MOST_STEPS)
        for end in ends[target.get("context") or "without"]
    ]


def title_of(job: Mapping[str, Any]) -> str:
    """Short title of a dream, without the prefix common to all dreams."""
    title = str(job.get("title") or f"Dream {job['job']}").removeprefix("Dream of ").strip()
    return numbers.capital(title)


def draw_gallery(run: Mapping[str, Any], selection: Selection, jobs: Sequence[Mapping[str, Any]]) -> None:
    """Gallery of ``jobs``, finished dreams of the run's model, newest first. A click opens one."""
    own = [job for job in jobs if job["job"] != selection.job][:GALLERY]
    if not own:
        return
    st.subheader("Earlier dreams of this model", anchor=False)
    st.caption("A click opens one, beside the original that it was dreamt of.")
    items = [gallery_item(place, job) for place, job in enumerate(own)]

    def opened(value: Mapping[str, Any]) -> None:
        address.go(selection_of(own[int(value["sample"])], run["run"]))

    with st.container(key="dream_gallery"):
        wall(
            items,
            key=f"dream_wall_{run['model']}",
            on_open=opened,
            kind="sample" if run["modality"] == "vision" else "text",
        )


def gallery_item(place: int, job: Mapping[str, Any]) -> dict[str, Any]:
    """One dream for the wall: its last image or its best text, and its title."""
    words = title_of(job)
    item: dict[str, Any] = {"sample": place, "title": f"Open: {words}", "caption": words}
    pictures = [name for name in job["artifacts"] if PICTURE.fullmatch(name)]
    if pictures:
        last = max(pictures, key=lambda name: int(name[6:-4]))
        return item | {"image": data_url(widgets.client().artifact(job["job"], last))}
    dreams = (job["result"] or {}).get("dreams") or [{}]
    return item | {"snippet": str(dreams[0].get("text", "")).strip()}
