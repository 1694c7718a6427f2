"""The drop zone of Home: an image, a text or a routing log; the model follows from what is dropped."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.drop_guard import drop_guard
from tokenpaths.frontend.components.wall import wall
from tokenpaths.frontend.page import address, refusals, repeats, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.home import log_import, upload_answer
from tokenpaths.frontend.views.home.dropped import AS_UTF8, text_of, what_is
from tokenpaths.frontend.views.samples import one_sample

MOST_CHARACTERS = 20_000
EASIEST = ("dna-vision-top1", "dna-text-top1")
"""of shipped models those whose paths are the easiest to read, as in the tour"""
MOST_BROKEN = 3
"""models that cannot be used of which the page says why"""
HEAD_BYTES = 4096
SAMPLES_DIR = Path(__file__).resolve().parents[3] / "data" / "samples"
MANY_SCRIPTS = "naïve café – 12.5 % of 1,000\nשלום עולם\nПривет, мир\nこんにちは 🙂"
PROBLEM = "drop_problem"
"""session state: why the last file or text was refused (``refusals``)"""
TRACED = "drop_traced"
"""session state: what was traced last (``repeats``)"""
SHOWN = "drop_shown"
"""session state: the trace whose answer the page went to last"""
Model = Mapping[str, Any]
log = logging.getLogger("tokenpaths.page")


def draw(selection: Selection, *, answered: bool = False) -> None:
    """The zone, and why the last file was refused; folds its examples where an answer is to follow."""
    st.subheader("Try your own image or text", anchor=False)
    try:
        listed = widgets.client().models()
    except ApiError as error:
        st.warning(f"{widgets.error_text(error)} {error.todo}".strip(), icon=":material/cloud_off:")
        return
    models = usable(listed)
    _broken([model for model in listed if model.get("problem")])
    large = [model["model"] for model in listed if model.get("job_only") and not model.get("problem")]
    _too_large(large, selection.model)
    if not any(models.values()):
        widgets.empty(
            "There is no model to try.",
            "Train one with `tokenpaths train`, or put a checkpoint into the models folder.",
        )
        return
    chosen = {kind: _preferred(models[kind], kind, selection) for kind in models}
    known = {*large, *(model["model"] for some in models.values() for model in some)}
    if selection.model is not None and selection.model not in known:
        instead = ", ".join(model["model"] for model in chosen.values() if model)
        st.warning(widgets.escape(f"There is no model {selection.model}; used instead: {instead}."))
    left, right = st.columns([5, 4], gap="large")
    with left:
        _file(chosen)
    with right:
        _text(models["text"], selection if answered else None)
    if problem := refusals.kept(PROBLEM):
        widgets.show_error(problem)
    log_import.draw(PROBLEM)
    if answered:
        with st.expander("Examples and models"):
            _examples(models)
            _pickers(models, chosen)
    else:
        _examples(models)
        with st.expander(f"The model follows from what you drop – {widgets.escape(_models_words(chosen))}"):
            _pickers(models, chosen)


def usable(listed: Sequence[Model]) -> dict[str, list[Model]]:
    """Models that can be run while one waits, by modality, shipped ones first."""
    fit = [model for model in listed if not model.get("problem") and not model.get("job_only")]
    fit.sort(key=lambda model: (not model.get("shipped"), model["model"] not in EASIEST))
    return {kind: [model for model in fit if model["modality"] == kind] for kind in ("vision", "text")}


def _preferred(models: Sequence[Model], kind: str, selection: Selection) -> Model | None:
    """The model in the URL, else the one chosen last, else the first."""
    by_name = {model["model"]: model for model in models}
    kept = st.session_state.setdefault("models_for", {})
    if selection.model in by_name:
        kept[kind] = selection.model
    return by_name.get(kept.get(kind)) or next(iter(models), None)


def _now(models: Sequence[Model], kind: str) -> Model | None:
    """For callbacks: the model may have been chosen since the page was drawn."""
    return _preferred(models, kind, address.current())


def _models_words(chosen: Mapping[str, Model | None]) -> str:
    return ", ".join(
        f"{'images' if kind == 'vision' else 'texts'}: {model['model']}" for kind, model in chosen.items() if model
    )


def _examples(models: Mapping[str, Sequence[Model]]) -> None:
    left, right = st.columns([5, 4], gap="large")
    with left:
        _pictures(models["vision"])
    if not models["text"]:
        return
    with right:
        st.caption("… or one of these:")
        with st.container(horizontal=True, gap="small"):
            for example in examples():
                if example.text is not None:
                    st.button(
                        widgets.escape(example.title),
                        key=f"example_{example.file}",
                        on_click=_example,
                        args=(models["text"], example),
                    )


def _pickers(models: Mapping[str, Sequence[Model]], chosen: Mapping[str, Model | None]) -> None:
    """Which model takes images and which takes texts."""
    with st.container(horizontal=True, gap="medium"):
        for kind, model in chosen.items():
            if model is None:
                continue
            by_name = {one["model"]: one for one in models[kind]}

            def described(name: str, by_name: Mapping[str, Model] = by_name) -> str:
                size = by_name[name].get("num_params")
                return name + (f" · {numbers.short(size)} parameters" if size is not None else "")

            address.bound(
                st.selectbox,
                "model",
                "Model for images" if kind == "vision" else "Model for texts",
                model["model"],
                list(by_name),
                part=f"_{kind}",
                format_func=described,
            )


def _broken(models: Sequence[Model]) -> None:
    for model in models[:MOST_BROKEN]:
        st.warning(widgets.escape(cannot_be_used(model["model"], model["problem"])), icon=":material/broken_image:")
    if names := [model["model"] for model in models[MOST_BROKEN:]]:
        st.caption(widgets.escape(f"Nor can {', '.join(names)}; `tokenpaths ls models` says why."))


def _too_large(names: Sequence[str], asked: str | None) -> None:
    """Models that only jobs run: the one that was asked for first."""
    if not names:
        return
    some = [name for name in names if name == asked] or names[:MOST_BROKEN]
    are = "is" if len(some) == 1 else "are"
    how = "trace a file with it as a job: “Jobs”, at the top."
    text = f"{', '.join(some)} {are} too large to be run while you wait; {how}"
    st.info(widgets.escape(text), icon=":material/hourglass:")


def _file(chosen: Mapping[str, Model | None]) -> None:
    limit = int(st.get_option("server.maxUploadSize") or 25) * 1_000_000

    def refused(name: str, size: int, head: bytes) -> None:
        judged = what_is(name, head, size, limit)
        refusals.keep(PROBLEM, ApiError(judged.problem, judged.todo))

    drop_guard(limit, on_refused=refused)
    turn = st.session_state.setdefault("drop_turn", 0)
    upload = st.file_uploader(
        "Drop an image, a text file or a routing log",
        key=f"drop_{turn}",
        help="PNG, JPEG, WebP, GIF or BMP; plain text; a log of vLLM, SGLang, Megatron-LM or llama.cpp, tensors, "
        f"Parquet or npz. At most {limit / 1e6:.0f} MB; it stays on this machine.",
    )
    if upload is not None:
        # The next click may take over from here at any time: the box stays until the file is taken, so that it is taken
        # then (``repeats.once``), and so that another file that is dropped meanwhile has where to go.
        _take(upload.name, upload.getvalue(), limit, chosen, upload.file_id)
        st.session_state["drop_turn"] = turn + 1  # an empty box next time: it may be the same file again
        st.rerun()


def _take(name: str, content: bytes, limit: int, chosen: Mapping[str, Model | None], file_id: str) -> None:
    """Do with a file what it is for, once."""
    refusals.forget(PROBLEM)
    judged = what_is(name, content[:HEAD_BYTES], len(content), limit)
    if judged.kind is None:
        refusals.keep(PROBLEM, ApiError(judged.problem, judged.todo))
    elif judged.kind == "log":
        try:
            log_import.submit(name, content, file_id)
        except ApiError as error:
            refusals.keep(PROBLEM, error)
    elif judged.kind == "image":
        _trace(chosen["vision"], image=(name, content), file_id=file_id)
    else:
        text = text_of(content)
        if text is None:
            sentence = f"“{name[:80]}” is a text, but not in UTF-8, so its letters cannot be told for sure."
            refusals.keep(PROBLEM, ApiError(sentence, AS_UTF8))
            return
        st.session_state["try_text"] = text
        _trace(chosen["text"], text=text, file_id=file_id)


def _pictures(models: Sequence[Model]) -> None:
    images = [example for example in examples() if example.image is not None]
    if not models or not images:
        return
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
        _trace(_now(models, "vision"), image=(example.file, example.image or b""))

    st.caption("… or one of these:")
    wall(items, key="try_images", kind="sample", on_open=chosen)


def _text(models: Sequence[Model], answered: Selection | None) -> None:
    """The box, with the text of the answer that the page shows; ``answered``: None if it shows none."""
    if not models:
        return
    if answered and "try_text" not in st.session_state and (text := _text_of(answered)) is not None:
        st.session_state["try_text"] = text
    st.text_area("A text", key="try_text", height=100, placeholder="Paste or write something, then press “Trace it”.")
    st.button(
        "Trace it",
        type="primary",
        icon=":material/play_arrow:",
        on_click=lambda: _trace(_now(models, "text"), text=st.session_state["try_text"]),
    )


def _example(models: Sequence[Model], example: Example) -> None:
    st.session_state["try_text"] = example.text
    _trace(_now(models, "text"), text=example.text)


def _text_of(selection: Selection) -> str | None:
    """The text whose answer the page shows, so that the box has it after the page was loaded again."""
    if selection.run is None:
        return None
    try:
        row = widgets.client().ask(selection.run, "samples/{sample}", sample=0)
    except ApiError:
        return None
    return row.get("text") if row.get("grid") is None else None


def _trace(
    model: Model | None, *, image: tuple[str, bytes] | None = None, text: str | None = None, file_id: str | None = None
) -> None:
    """Request the trace; opens the new run, or keeps why it was refused. ``file_id``: of the file that was dropped."""
    refusals.forget(PROBLEM)
    problem = None
    if model is None:
        problem = ApiError(f"There is no model for {'images' if image else 'texts'} here.", "`tokenpaths ls models`")
    elif text is not None and not text.strip():
        problem = ApiError("There is no text to trace.", "Write or paste at least one word.")
    # Counted here: a box with a limit of its own drops a longer paste without a word.
    elif text is not None and len(text) > MOST_CHARACTERS:
        problem = ApiError(
            f"The text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are traced at once here.",
            "Paste a part of it, or trace it as a data set: `tokenpaths trace --data`, or *Jobs*.",
        )
    if problem is not None or model is None:
        refusals.keep(PROBLEM, problem)
        return
    name = str(model["model"])
    asked = (name, hash((image, text)), file_id)
    with st.spinner(f"{widgets.escape(name)} is tracing it …"), suppress(ApiError):  # ``open_answer`` says it
        repeats.once(
            TRACED,
            asked,
            lambda: widgets.client().trace(name, image=image, text=text),
            within=None if file_id is None else math.inf,
        )
    st.session_state.pop(SHOWN, None)
    open_answer()


def open_answer() -> bool:
    """Go to the answer of the last trace if the page was not there yet; waits for it if it is under way."""
    last: repeats.Asked | None = st.session_state.get(TRACED)
    if last is None or last is st.session_state.get(SHOWN):
        return False
    try:
        answer = last.answer.result()
    except ApiError as error:
        refusals.keep(PROBLEM, error)
        return False
    finally:
        st.session_state[SHOWN] = last
    st.session_state.setdefault("try_seconds", {})[answer["run"]] = answer.get("seconds")
    name = last.asked[0]  # type: ignore[index]
    address.go(Selection(view="home", model=name, run=answer["run"], sample=0, opacity=address.current().opacity))
    return True


def show_answer(selection: Selection) -> None:
    """What became of the upload in the URL."""
    run = widgets.client().ask(str(selection.run), "")
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


def is_answer(selection: Selection, cards: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the run in the URL is an upload, so that its answer is shown here."""
    card = next((card for card in cards if card["run"] == selection.run), None)
    return selection.run is not None and (card is not None and common.is_try(card))


def cannot_be_used(model: str, problem: str) -> str:
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
