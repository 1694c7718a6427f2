"""Try it view: one image or text, traced on request and shown as a sample; bundled examples."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.home import upload_answer
from tokenpaths.frontend.views.samples import one_sample

MOST_CHARACTERS = 20_000
MOST_BROKEN = 3
"""models that cannot be used of which the page says why"""
IMAGE_TYPES = ["png", "jpg", "jpeg", "webp", "gif", "bmp"]
SAMPLES_DIR = Path(__file__).resolve().parents[3] / "data" / "samples"
MANY_SCRIPTS = "naïve café – 12.5 % of 1,000\nשלום עולם\nПривет, мир\nこんにちは 🙂"
log = logging.getLogger("tokenpaths.page")


def draw(selection: Selection) -> None:
    widgets.heading(
        "What does it do with mine?",
        "Give an image or a text. It is traced on this machine only, kept as a run of one sample, and shown below.",
    )
    listed = sorted(
        widgets.client().models(), key=lambda model: (model["modality"] != "vision", not model.get("shipped"))
    )
    models = [model for model in listed if not model.get("problem")]
    broken = [model for model in listed if model.get("problem")]
    for model in broken[:MOST_BROKEN]:
        st.warning(widgets.escape(_cannot_be_used(model["model"], model["problem"])), icon=":material/broken_image:")
    if names := [model["model"] for model in broken[MOST_BROKEN:]]:
        st.caption(widgets.escape(f"Nor can {', '.join(names)}; `tokenpaths ls models` says why."))
    if not models:
        widgets.empty(
            "There is no model to try.",
            "Train one with `tokenpaths train`, or put a checkpoint into the models folder.",
        )
        return
    chosen = _model_picker(models, selection)
    if chosen.get("job_only"):
        st.info(
            widgets.escape(f"{chosen['model']} is too large to be run while you wait; trace a file with it in Jobs."),
            icon=":material/hourglass:",
        )
    elif chosen["modality"] == "vision":
        _image(chosen)
    else:
        _text(chosen)
    if error := st.session_state.pop("try_error", None):
        widgets.show_error(error)
    if selection.run is not None:
        st.divider()
        run = widgets.client().ask(selection.run, "")
        seconds = st.session_state.get("try_seconds", {}).get(selection.run)
        st.caption(
            widgets.escape(
                f"{run['run']}: traced by {run['model']}"
                + (f" in {numbers.number(seconds)} s." if seconds is not None else ".")
                + " The address above opens it again."
            )
        )
        upload_answer.draw(run, selection)
        one_sample.show(run, selection, selection.sample or 0)


def _model_picker(models: list[dict[str, Any]], selection: Selection) -> dict[str, Any]:
    by_name = {model["model"]: model for model in models}
    name = selection.model if selection.model in by_name else models[0]["model"]
    if selection.model is not None and selection.model not in by_name:
        st.warning(widgets.escape(f"There is no model {selection.model}; shown instead: {name}."))

    def words(value: str) -> str:
        model = by_name[value]
        size = model.get("num_params")
        kind = "images" if model["modality"] == "vision" else "texts"
        return f"{value} · {kind}" + (f", {numbers.short(size)} parameters" if size is not None else "")

    address.bound(st.selectbox, "model", "Model", name, list(by_name), format_func=words)
    return by_name[name]


def _image(model: Mapping[str, Any]) -> None:
    left, right = st.columns([1, 1], gap="large")
    with left:
        upload = st.file_uploader(
            "An image", type=IMAGE_TYPES, key=f"upload_{model['model']}", help="At most 25 MB and 16.8 million pixels."
        )
        if upload is not None and st.session_state.get("try_upload") != upload.file_id:
            st.session_state["try_upload"] = upload.file_id
            _trace(model["model"], image=(upload.name, upload.getvalue()))
            st.rerun()
    images = [example for example in examples() if example.image is not None]
    if not images:
        return
    with right:
        st.caption("… or one of these:")
        items = [
            {
                "sample": place,
                "title": f"Trace: {example.title}",
                "caption": example.title,
                "image": data_url(example.image or b""),
            }
            for place, example in enumerate(images)
        ]

        def chosen(value: Mapping[str, Any]) -> None:
            example = images[int(value["sample"])]
            _trace(model["model"], image=(example.file, example.image or b""))

        wall(items, key="try_images", kind="sample", on_open=chosen)


def _text(model: Mapping[str, Any]) -> None:
    st.text_area("A text", key="try_text", height=140, placeholder="Paste or write something, then press “Trace it”.")
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        st.button(
            "Trace it",
            type="primary",
            icon=":material/play_arrow:",
            on_click=lambda: _trace(model["model"], text=st.session_state["try_text"]),
        )
        st.caption("… or one of these:", width="content")
        for example in examples():
            if example.text is not None:
                st.button(
                    widgets.escape(example.title),
                    key=f"example_{example.file}",
                    on_click=_trace,
                    args=(model["model"],),
                    kwargs={"text": example.text},
                )


def _trace(model: str, *, image: tuple[str, bytes] | None = None, text: str | None = None) -> None:
    """Request the trace; opens the new run, or shows why it was refused."""
    if text is not None and not text.strip():
        st.session_state["try_error"] = ApiError("There is no text to trace.", "Write or paste at least one word.")
        return
    # Counted here: a box with a limit of its own drops a longer paste without a word.
    if text is not None and len(text) > MOST_CHARACTERS:
        st.session_state["try_error"] = ApiError(
            f"The text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are traced at once here.",
            "Paste a part of it, or trace it as a data set: `tokenpaths trace --data`, or *Jobs*.",
        )
        return
    if image is not None and not image[1]:
        st.session_state["try_error"] = ApiError("This file is empty.", "Choose another image.")
        return
    try:
        with st.spinner(f"{widgets.escape(model)} is tracing it …"):
            answer = widgets.client().trace(model, image=image, text=text)
    except ApiError as error:
        st.session_state["try_error"] = error
        address.go(Selection(view="try", model=model))
        return
    st.session_state.setdefault("try_seconds", {})[answer["run"]] = answer.get("seconds")
    address.go(Selection(view="try", model=model, run=answer["run"], sample=0, opacity=address.current().opacity))


def _cannot_be_used(model: str, problem: str) -> str:
    """A problem as one sentence, without the model's name if it begins with it."""
    return f"The model {model} cannot be used: {problem.removeprefix(model + ': ')}"


@dataclass(frozen=True)
class Example:
    """An example: one image (PNG bytes) or one text, with its title."""

    title: str
    file: str
    image: bytes | None = None
    text: str | None = None


@lru_cache(maxsize=4)
def examples(folder: Path = SAMPLES_DIR) -> tuple[Example, ...]:
    """The examples of ``folder/index.json``, and a multi-script text; only that text if the folder is missing."""
    result = []
    try:
        index = json.loads((folder / "index.json").read_text("utf-8"))
        for row in index["images"]:
            result.append(Example(row["title"], row["file"], image=(folder / row["file"]).read_bytes()))
        for row in index["texts"]:
            result.append(Example(row["title"], row["file"], text=(folder / row["file"]).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("examples of %s cannot be read: %s", folder, error)
    return (*result, Example("Many scripts", "scripts.txt", text=MANY_SCRIPTS))
