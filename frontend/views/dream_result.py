"""A finished dream as a figure, and the gallery of earlier ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from frontend import address, look
from frontend.charts import numbers
from frontend.charts.dream import match_chart, match_rows, top_chart, top_rows
from frontend.client import ApiError
from frontend.selection import Selection

SIDE = 150
GALLERY = 12
MOST_STEPS = 100


def draw_result(job: Mapping[str, Any]) -> None:
    """Original | dreams, what they match and what the model sees in them; or the dreamed texts."""
    result = job["result"] or {}
    dreams = result.get("dreams") or []
    if not dreams:
        return
    st.subheader("The dream", anchor=False)
    if "text" in dreams[0]:
        _texts(result)
        return
    _strip(job["job"], result)
    if match_rows(dreams):
        look.chart(match_chart(dreams, theme=look.theme()))
        look.numbers_behind(match_rows(dreams), "what the dreams match")
    if top_rows(dreams, result.get("original")):
        look.chart(top_chart(dreams, result.get("original"), theme=look.theme()))
        look.numbers_behind(top_rows(dreams, result.get("original")), "what the model sees")


def _strip(job: str, result: Mapping[str, Any]) -> None:
    """The original and its dreams side by side; a group is outlined in red."""
    shown = [("original", result["original"])] if result.get("original") else []
    shown += [(dream["name"], dream) for dream in result["dreams"]]
    with st.container(horizontal=True, gap="small", key="dream_strip"):
        for name, item in shown:
            says = item["top"][0] if item.get("top") else None
            words = f"{name}: {says[0]}, {numbers.percent(says[1])}" if says else name
            st.image(look.client().artifact(job, item["image"]), caption=look.plain(words), width=SIDE, alt=words)
    if any(dream.get("group") for dream in result["dreams"]):
        st.caption("Red: the group whose decisions were maximised. Below each picture: the class that the model sees.")


def marked(dream: Mapping[str, Any]) -> str:
    """A dreamed text as Markdown, the tokens whose decisions were wanted in bold."""
    targets = set(dream.get("targets") or ())
    pieces = []
    for place, token in enumerate(dream["tokens"]):
        word = re.sub(r"\s+", " ", token)
        core = word.strip()
        bold = place in targets and core
        text = f"**{look.plain(core)}**" if bold else look.plain(core)
        pieces.append((" " if word.startswith(" ") else "") + text + (" " if word.endswith(" ") and core else ""))
    return "".join(pieces).strip()


def text_rows(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The numbers of dreamed texts or of stretches of the corpus."""
    return [
        {
            "objective": one["objective"], "text": one["text"].strip(),
            "began as": (one.get("start") or {}).get("text", "").strip() or None,
            "objective then": (one.get("start") or {}).get("objective"), "from": one.get("source"),
        }
        for one in found
    ]  # fmt: skip


def _texts(result: Mapping[str, Any]) -> None:
    corpus = result["corpus"]
    st.caption(
        f"Mean of the wanted decisions: {numbers.number(corpus['mean'])} over "
        f"{numbers.plural(corpus['windows'], 'stretch', 'stretches')} of the bundled texts, "
        f"{numbers.number(corpus['p99'])} for the best 1 % of them. Bold: the tokens whose decisions were wanted."
    )
    original = result.get("original")
    if original:
        st.markdown(f"Original, {numbers.number(original['objective'])}: {marked(original)}")
    dreamt, written = st.columns(2, gap="large")
    with dreamt:
        st.markdown("**Dreamed**, word by word along the gradient")
        for dream in result["dreams"][:8]:
            st.markdown(f"{numbers.number(dream['objective'])} · {marked(dream)}")
    with written:
        st.markdown("**Found**, the best of the bundled texts")
        for found in corpus["examples"][:8]:
            st.markdown(f"{numbers.number(found['objective'])} · {marked(found)}")
    look.numbers_behind(text_rows(result["dreams"]), "the dreamed texts")
    look.numbers_behind(text_rows(corpus["examples"]), "stretches of the bundled texts")


def draw_gallery(run: Mapping[str, Any], selection: Selection) -> None:
    """Earlier dreams of this model; a click opens one."""
    try:
        jobs = look.client().jobs(kind="dream", most=60)["jobs"]
    except ApiError as error:
        look.sentence(error)
        return
    own = [j for j in jobs if j["state"] == "succeeded" and j["request"].get("model") == run["model"]][:GALLERY]
    own = [job for job in own if job["job"] != selection.job]
    if not own:
        return
    st.subheader("Earlier dreams of this model", anchor=False)
    with st.container(horizontal=True, gap="medium", key="dream_gallery"):
        for job in own:
            with st.container(width=SIDE + 10, gap="xsmall"):
                words = title_of(job)
                if "dream-0.png" in job["artifacts"]:
                    last = max((n for n in job["artifacts"] if re.fullmatch(r"dream-\d+\.png", n)), key=_item)
                    st.image(look.client().artifact(job["job"], last), width=SIDE, alt=words)
                elif job["result"] and job["result"].get("dreams"):
                    st.markdown(marked(job["result"]["dreams"][0]))
                st.button(look.plain(words), key=f"dream_{job['job']}", type="tertiary",
                          on_click=address.go_changed, kwargs={"job": job["job"]})  # fmt: skip


def names_of(request: Mapping[str, Any]) -> list[str]:
    """What the dreams of a batch are called, in the order of their frames."""
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


def _item(name: str) -> int:
    return int(name[6:-4])


def title_of(job: Mapping[str, Any]) -> str:
    """What a dream is of, in a few words."""
    request = job["request"]
    target = request["target"]
    of = target["of"]
    if of == "choices":
        where = f"sample {request['sample']}" if request.get("sample") is not None else f"row {request.get('row')}"
        group = target.get("group") or {}
        narrowed = ", a group" if any(group.get(name) is not None for name in ("patches", "like", "draw")) else ""
        return f"{where} of {request.get('run') or request.get('data') or 'an image'}{narrowed}"
    if of == "path":
        return f"path of rank {target['rank']}" if target.get("rank") else "a path"
    names = {"module": ("module",), "class": ("index",), "connection": ("iteration", "source", "target"),
             "direction": ("layer", "head", "direction"), "block": ("layer", "block")}[of]  # fmt: skip
    return f"{of} {'.'.join(str(target[name]) for name in names)}"
