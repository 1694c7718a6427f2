"""Dream view: options of a dream, its progress, its result, and earlier dreams of the model."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import with_text
from tokenpaths.frontend.charts.drawing.thing_names import token_nouns
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.explorer import explorer
from tokenpaths.frontend.components.explorer_data import MOST_LINKS, Tint, explorer_data
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.dream import connection
from tokenpaths.frontend.views.dream.request import (
    AT,
    GROUPS,
    SOUGHT,
    TOKEN_GROUPS,
    at_of,
    cost_words,
    dream_options,
    iterations_of,
    kinds_of,
    members,
    missing,
    pace,
    picked,
    problems,
    request_of,
    selection_of,
    stretch,
    toggled,
    with_option,
)
from tokenpaths.frontend.views.dream.result import draw_gallery, draw_result, names_of, title_of
from tokenpaths.frontend.views.jobs.panel import job_panel, refusal, start_button
from tokenpaths.frontend.views.samples import reference
from tokenpaths.frontend.views.samples.one_sample import sample_picker

KIND_WORDS = {"reroute": "a detour", "trace": "a trace", "import": "an import"}


def draw(selection: Selection) -> None:
    job = _dream_of(selection)
    if job is not None:
        _to_its_run(selection, job)
    run = common.chosen_run(selection)
    if run is None:
        return
    gone = common.without_model(run)
    kinds = {} if gone else kinds_of(run)
    with common.run_row(run):
        options = dream_options(selection, run)
        if kinds:
            _option(st.selectbox, "of", "Dream of", options["of"], list(kinds), format_func=kinds.get)
        number = sample_picker(run, selection) if kinds and options["of"] == "choices" else None
    what = "An image" if run["modality"] == "vision" else "A text"
    question, so_that = SOUGHT[options["of"] or "choices"]
    widgets.heading(question, f"{what} optimised so that {so_that}.")
    if gone:
        common.say_no_model()
        return
    for sentence in problems(selection, run):
        st.warning(widgets.escape(sentence), icon=":material/link_off:")
    earlier = _earlier(run)
    if not kinds:
        widgets.empty(
            f"The model of this run ({widgets.escape(run['family'])}) cannot dream: its decisions have no gradient to "
            "follow.",
            "Choose a run of another model.",
        )
    elif options["of"] == "choices" and number is None:
        widgets.empty("No sample has this label or these words.", "Clear a filter above.")
    else:
        _ask(run, selection, options, number, pace(earlier))
    if job is None:
        refusal()
    else:
        _job(selection, run, job, number)
    draw_gallery(run, selection, earlier)


def _dream_of(selection: Selection) -> dict[str, Any] | None:
    """The dream in the URL, or None; a job of another kind is noted and left alone."""
    if selection.job is None:
        return None
    try:
        job = widgets.client().job(selection.job)
    except NotFound:
        st.warning("The dream of this address is gone; it was removed.", icon=":material/link_off:")
        return None
    if job["kind"] != "dream":
        kind = KIND_WORDS.get(job["kind"], f"a job of the kind {job['kind']}")
        st.info(
            widgets.escape(f"The job of this address, {job['job']}, is {kind} and no dream; the Jobs view shows it."),
            icon=":material/info:",
        )
        return None
    return job


def _to_its_run(selection: Selection, job: Mapping[str, Any]) -> None:
    """If the URL names no run, or one of another model, redirect to a run that fits the dream."""
    model = job["request"].get("model")
    cards = widgets.client().runs()
    own = [card for card in cards if card["model"] == model]
    if own and selection.run not in [card["run"] for card in own]:
        address.go(selection_of(job, own[0]["run"], image=own[0]["modality"] == "vision"))
        st.rerun()


def _earlier(run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Finished dreams of the run's model, newest first."""
    try:
        jobs = widgets.client().jobs(kind="dream", most=60)["jobs"]
    except ApiError as error:
        widgets.show_error(error)
        return []
    return [job for job in jobs if job["state"] == "succeeded" and job["request"].get("model") == run["model"]]


def _job(selection: Selection, run: Mapping[str, Any], job: Mapping[str, Any], number: int | None) -> None:
    """The dream in the URL, with its figure on top once it is finished."""
    figure = st.container()
    own = selection_of(job, run["run"], image=run["modality"] == "vision")
    of_it = number if own.sample is None else own.sample
    now = (run["run"], request_of(run, dream_options(selection, run), number, selection.token))
    if now != (own.run, request_of(run, dream_options(own, run), of_it, own.token)):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            words = f"Below: {title_of(job)}. What is wished above has not been dreamt yet."
            st.caption(widgets.escape(words), width="content")
            st.button("Back to its wishes", key="dream_own", icon=":material/undo:", on_click=address.go, args=(own,))
    if job["request"].get("row") is not None or job["request"].get("inbox"):
        st.caption(widgets.escape(f"Its original is no sample of a run, and stands in the figure: {title_of(job)}."))
    job = job_panel(job["job"], captions=names_of(job["request"]))
    if job["state"] == "succeeded":
        with figure:
            draw_result(job)


def _ask(
    run: Mapping[str, Any], selection: Selection, options: Mapping[str, str], number: int | None, measured: float | None
) -> None:
    left, right = st.columns([3, 2], gap="large") if number is not None else (None, st.container())
    chosen, image, among = selection.token, run["modality"] == "vision", None
    if left is not None and number is not None:
        with left:
            sample = with_text(widgets.client().ask(run["run"], "samples/{sample}", sample=int(number)))
            if chosen is not None and chosen >= len(sample["tokens"]):
                chosen = None
            among = None if image else stretch(options, len(sample["tokens"]))
            _explorer(run, sample, options, chosen, among)
    with right:
        _choices(run, options) if options["of"] == "choices" else _other(run, options)
        if not image:
            _length(run, options, sample if left is not None else None)
        iterations = int(options["iterations"])
        _option(
            st.select_slider,
            "iterations",
            "Iterations" if image else "Rounds of swaps",
            iterations,
            sorted({*iterations_of(run), iterations}),
            format_func=lambda n: f"{n:,}",
            help="The paper takes 2,048 iterations. Shorter dreams are rougher."
            if image
            else "In each round the gradient proposes words, and the one that really helps most is taken.",
        )
        if image:
            _option(
                st.segmented_control,
                "precision",
                "Arithmetic",
                options["precision"],
                ["float32", "bfloat16"],
                format_func={"float32": "exact", "bfloat16": "faster"}.get,
                width="stretch",
                help="Faster: in bfloat16, two thirds of the time and another picture; refused where bfloat16 is "
                "no quicker. What a dream is worth is measured exactly in both.",
            )
        todo = missing(options, chosen, run["modality"], among)
        start_button(
            "Dream",
            "dream",
            request_of(run, options, number, chosen),
            key="dream_go",
            type="primary",
            icon=":material/bedtime:",
            disabled=bool(todo),
        )
        length = len(among) if among is not None else int(options["length"])
        st.caption(todo or cost_words(image, iterations, _dreams(run, options), length, measured, options["precision"]))


def _length(run: Mapping[str, Any], options: Mapping[str, str], sample: Mapping[str, Any] | None) -> None:
    """The segment of the original that is dreamt, or the length of a dream without an original."""
    num_tokens = len(sample["tokens"]) if sample is not None else None
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if num_tokens is not None:
            chosen = stretch(options, num_tokens)
            help = "The dream takes the paths of a stretch of the text: so many tokens from this one on."
            _whole("first", "From token", options["first"], help=help)
        _whole("length", "Tokens of the dream", options["length"])
    if sample is not None and chosen:
        tokens = sample["tokens"]
        ends = [tokens[chosen[0]].get("char_start"), tokens[chosen[-1]].get("char_end")]
        words = sample["text"][slice(*ends)] if sample.get("text") and None not in ends else ""
        st.caption(
            widgets.escape(
                f"Dreamt: tokens {chosen[0]} to {chosen[-1]} of {num_tokens:,}, “{words.strip()}”. "
                "Coloured above: those whose choices are repeated."
            )
        )


def _dreams(run: Mapping[str, Any], options: Mapping[str, str]) -> int:
    """Number of dreams that the options produce."""
    if options["of"] != "choices" or run["modality"] != "vision":
        return 1
    pair = 2 if options["context"] == "both" and options["group"] != "all" else 1
    return pair * (int(run["num_steps"]) if options["until"] == "0" else 1)


def _choices(run: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Choose whose decisions are the target, which of them, and what is kept of the original."""
    image, steps = run["modality"] == "vision", int(run["num_steps"])
    groups = GROUPS if image else TOKEN_GROUPS
    _option(
        st.selectbox,
        "group",
        "Whose choices",
        options["group"],
        list(groups),
        format_func=groups.get,
        help="The dream repeats the choices of these and lets the others choose what they like.",
    )
    if options["group"] == "drawn":
        _whole("draw", "How many", options["draw"])
    until = min(int(options["until"] or 0), steps) if options["until"].isdecimal() else 0
    choices = [*([0] if image else []), *range(1, steps + 1)]
    if not image and until == 0:
        until = steps

    def words(s: int) -> str:
        if s == 0:
            return "each S, a dream each"
        alone = options["form"] == "single"
        return f"step {s - 1} alone" if alone else f"S = {s}: steps 0 to {s - 1}" if s > 1 else "S = 1: step 0"

    _option(st.selectbox, "until", "Which steps", until, choices, format_func=words)
    _option(
        st.segmented_control,
        "form",
        "Objective",
        options["form"],
        ["cumulative", "single"],
        width="stretch",
        help="Cumulative: the decisions of steps 0 to S − 1 together. Single: the last of them alone.",
    )
    if image and options["group"] != "all":
        words_of = {"without": "nothing", "with": "the group's pixels", "both": "both, as a pair"}
        _option(
            st.segmented_control,
            "context",
            "Kept of the original",
            options["context"],
            list(words_of),
            format_func=words_of.get,
            width="stretch",
            help="The group is outlined in red. With its pixels, the rest of the image is dreamt around them.",
        )
    _scores(options)


def _other(run: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Inputs for other objectives."""
    steps, of = int(run["num_steps"]), options["of"]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if of == "path":
            help = "1 = the path that most tokens of the run take."
            _whole("rank", "Rank of the path", options["rank"], help=help)
        elif of == "module":
            _whole("module", "Module", options["module"])
            step = int(options["step"]) if options["step"].isdecimal() and int(options["step"]) < steps else -1
            _option(
                st.selectbox,
                "step",
                "At step",
                step,
                [-1, *range(steps)],
                format_func=lambda s: "every step" if s < 0 else f"step {s}",
            )
        elif of == "class":
            _class(run, options)
        else:
            _at(run, options, of)
    if of in ("path", "module"):
        _scores(options)


def _class(run: Mapping[str, Any], options: Mapping[str, str]) -> None:
    """Class input, by name if the model has class names."""
    try:
        names = list((widgets.client().model(run["model"]).get("config") or {}).get("classes") or ())
    except ApiError:  # without a worker or model, class numbers still work
        names = []
    last = (len(names) or max(1, int(run["config"].get("num_classes") or 10))) - 1
    if names:
        chosen = _inside(options["index"], 0, last)
        _option(st.selectbox, "index", "Class", chosen, list(range(len(names))), format_func=lambda c: names[c])
    else:
        _whole("index", f"Class, 0 to {last}: the model has no names for them", options["index"])


def _at(run: Mapping[str, Any], options: Mapping[str, str], of: str) -> None:
    """Indices of a connection, a direction or a block, each with its own bounds."""
    config, values = run["config"], at_of(options, of)
    sizes = {
        "connection": (0, 0, 0),  # chosen from lists
        "direction": (config.get("layers") or 1, config.get("heads") or 1, config.get("directions") or 4),
        "block": (config.get("layers") or 4, config.get("blocks") or 16),
    }[of]
    for place, (name, size) in enumerate(zip(AT[of], sizes, strict=True)):

        def read(value: int, place: int = place) -> tuple[str, ...]:  # the others may have been written just now
            now = address.current()
            at = [int(value) if p == place else n for p, n in enumerate(at_of(dream_options(now, run), of))]
            at = connection.existing(run, at) if of == "connection" else at
            return with_option(now.dream, "at", ".".join(map(str, at)))

        part = f"_at{place}"
        if of == "connection":
            label, names = name.capitalize(), connection.names(run, place)
            offered = connection.choices(run, values[0])[place]
            address.bound(
                st.selectbox, "dream", label, values[place], offered, part=part, read=read, format_func=names.get
            )
        else:
            label = f"{name.capitalize()}, 0 to {int(size) - 1}"
            address.bound(st.number_input, "dream", label, values[place], step=1, part=part, read=read)
    if of == "connection":
        st.caption("At the last iteration only outputs still receive.")


def _scores(options: Mapping[str, str]) -> None:
    words = {"probs": "probabilities", "logits": "logits"}
    _option(
        st.segmented_control,
        "scores",
        "Maximise",
        options["scores"],
        list(words),
        format_func=words.get,
        width="stretch",
        help="Probabilities after the softmax over all modules, as in the paper; or the logits.",
    )


def _explorer(
    run: Mapping[str, Any],
    sample: Mapping[str, Any],
    options: Mapping[str, str],
    chosen: int | None,
    among: range | None = None,
) -> None:
    """The original with its group highlighted (for texts, its part within the segment); click to select."""
    group = members(options, sample["tokens"], chosen)
    if among is not None and (group or options["group"] in ("all", "drawn")):
        group = set(among) if group is None else group & set(among)
    image = data_url(widgets.client().image(run["run"], sample["sample"])) if sample.get("has_image") else None
    ranked = reference.ranked(run, sample)
    data = explorer_data(
        ranked.sample,
        widgets.client().ask(run["run"], "flow", limit=MOST_LINKS, **common.merging(run, Selection())),
        Tint(
            widgets.theme(),
            ranked.num_paths(run),
            0.4,
            step=0 if ranked.reason is not None else None,
            identities=common.identities(run),
            reference=ranked.name,
        ),
        image=image,
        chosen=None if options["group"] == "picked" else chosen,
        kept=lambda token: group is None or not group or token["token"] in group,
    )
    explorer(
        data,
        key=f"dream_explorer_{run['run']}_{sample['sample']}_{options['group']}",
        on_pick=partial(_pick, run),
        on_node=lambda node: None,
    )
    if options["group"] == "picked" and picked(options):
        st.caption(f"Clicked: {', '.join(map(str, picked(options)))}. Click one again to let it go.")
    elif group and options["group"] == "path":
        st.caption(f"The group: {numbers.plural(len(group), *token_nouns(run))}.")


def _pick(run: Mapping[str, Any], token: int | None) -> None:
    options = dream_options(address.current(), run)
    if options["group"] != "picked":
        address.go_changed(token=token)
    elif token is not None:
        _set("picked", toggled(options, int(token)))


def _set(name: str, value: object) -> None:
    address.go_changed(dream=with_option(address.current().dream, name, value))


def _option(widget: Callable[..., Any], name: str, label: str, value: Any, *arguments: Any, **options: Any) -> Any:
    """A widget for one option of the dream, bound to the URL."""

    def read(choice: Any) -> tuple[str, ...]:
        return with_option(address.current().dream, name, value if choice is None else choice)

    return address.bound(widget, "dream", label, value, *arguments, read=read, part=f"_{name}", **options)


def _whole(name: str, label: str, text: str, **options: Any) -> None:
    """A whole number of the dream, without bounds: the browser would keep what is beyond them to itself, and the dream
    have the number before. The API says which are possible.
    """
    value = int(text) if re.fullmatch(r"-?\d{1,9}", text) else 0
    _option(st.number_input, name, label, value, step=1, **options)


def _inside(text: str, low: int, high: int) -> int:
    return min(max(low, int(text)), int(high)) if text.isdecimal() and len(text) < 10 else low
