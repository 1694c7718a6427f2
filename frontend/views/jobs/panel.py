"""Panel of one job: state, progress, frames, curve, result and links; used by every view that starts jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.job_curve import curve_chart, curve_rows
from tokenpaths.frontend.page import address, at_click, refusals, repeats, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.detour.edits import in_address
from tokenpaths.frontend.views.dream.request import selection_of
from tokenpaths.frontend.views.jobs import alive, import_options

REFRESH_SECONDS = 1.5
SUBMITTED = "job_submitted"
"""session state: what was submitted last"""
ALIVE = alive.ALIVE
FRAME = re.compile(r"frame-(\d{1,9})(?:-(\d{1,4}))?\.(?:png|webp)")
RECEIVED, CURVE = re.compile(r"received-(.+)-[0-9a-f]{8}\.jsonl"), "curve.json"
REFUSED = "job_refusal"
"""session state: why the last job, or change of one, was refused (``refusals``)"""
MOST_FILES = 40
STATE_LOOKS = {
    "waiting": ("Waiting", ":material/hourglass_empty:", "gray"),
    "running": ("Running", ":material/play_arrow:", "blue"),
    "paused": ("Paused", ":material/pause:", "orange"),
    "succeeded": ("Done", ":material/check:", "green"),
    "failed": ("Failed", ":material/error:", "red"),
    "cancelled": ("Cancelled", ":material/block:", "gray"),
}
Link = tuple[str, Selection]
"""label and target of a link"""


def submit(kind: str, request: Mapping[str, Any], *, refused: str = REFUSED) -> str | None:
    """Queue a job and put its name into the URL (``job``), before the page is drawn again.

    The second of two quick clicks leads to the job of the first, and so does any click while a job that does the same
    is not over. Returns None if the job is refused, for the reason kept in the slot ``refused`` of ``refusals``:
    ``refusal()`` shows it at the next draw.
    """
    refusals.forget(refused)
    asked = json.dumps([kind, request], sort_keys=True, default=str)

    def queued() -> str:
        return alive.same(kind, request) or str(widgets.client().submit_job(kind, request)["job"])

    try:
        job = str(repeats.once(SUBMITTED, asked, queued))
    except ApiError as error:
        refusals.keep(refused, error)
        return None
    address.go_changed(job=job)
    return job


def start_button(
    label: str, kind: str, request: Mapping[str, Any], *, key: str, refused: str = REFUSED, **look: Any
) -> None:
    """A button that submits a job as it is asked for at the click; ``refused`` as in ``submit``."""
    options = {"icon": ":material/play_arrow:"} | look
    at_click.button(label, lambda: submit(kind, request, refused=refused), key=key, **options)


def refusal() -> None:
    """Show why the last ``submit`` or panel button was refused."""
    if error := refusals.kept(REFUSED):
        widgets.show_error(error)


def job_panel(job: str, *, key: str = "job", frame_width: int = 160, captions: Sequence[str] = ()) -> dict[str, Any]:
    """Draw a job; the panel refreshes itself while the job runs, and reruns the whole page once when it ends.

    Args:
        captions: Names of the items of a batch, in the order of their frames; by default those of the curve's series.

    Returns:
        The current state of the job.

    Raises:
        NotFound: The job was removed.
    """
    now = widgets.client().job(job)
    if now["state"] in ALIVE:
        live = st.fragment(_alive, run_every=REFRESH_SECONDS, key=f"{key}_live")
        live(job, key, frame_width, tuple(captions), address.current())
    else:
        _draw(now, key, frame_width, captions)
    return now


def _alive(job: str, key: str, frame_width: int, captions: Sequence[str], at: Selection) -> None:
    if address.current() != at:  # a button inside this fragment changed the view
        st.rerun()
    try:
        now = widgets.client().job(job)
    except NotFound:
        st.rerun()
    except ApiError as error:
        widgets.show_error(error)
        return
    if now["state"] not in ALIVE:
        st.rerun()
    with widgets.error_boundary(f"the job {job}"):
        _draw(now, key, frame_width, captions)


def _draw(job: Mapping[str, Any], key: str, frame_width: int, captions: Sequence[str]) -> None:
    refusal()
    with st.container(border=True, key=f"{key}_panel"):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            state_badge(job)
            st.markdown(f"**{widgets.escape(job_title(job))}**", width="content")
        st.caption(widgets.escape(state_words(job)))
        progress_bar(job)
        if job["problem"]:
            st.error(widgets.escape(failure_text(job)), icon=":material/error:")
        curve = _curve_of(job)
        names = [str(series.get("name") or "") for series in curve.get("series", ())]
        _frames(job, key, frame_width, captions or names)
        _curve(job, curve)
        _result(job, key)
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key=f"{key}_buttons"):
            buttons(job, key)
        _files(job, key)
        with st.expander("What was asked for"):
            st.code(json.dumps({"kind": job["kind"], "request": job["request"]}, indent=1, ensure_ascii=False), "json")


def job_title(job: Mapping[str, Any]) -> str:
    """One-line description of a job: kind and input."""
    return str(job["title"])


def failure_text(job: Mapping[str, Any]) -> str:
    """Why a job failed, as a sentence; empty if it did not."""
    text = widgets.with_full_stop(job["problem"]["detail"]) if job["problem"] else ""
    if job["kind"] == "import":
        text = import_options.with_labels(text)
    return numbers.capital(text)


def open_buttons(job: Mapping[str, Any], key: str, *, most: int | None = None) -> None:
    """Buttons that open the results of a finished job; at most ``most`` of them."""
    for place, (words, selection) in enumerate(_links_from_here(job)[:most]):
        run = f" {selection.run}" if selection.view == "routes" and most is None else ""
        st.button(
            widgets.escape(words + run),
            key=f"{key}_open_{job['job']}_{place}",
            icon=":material/arrow_forward:",
            type="primary" if place == 0 and most is None else "secondary",
            on_click=address.go,
            args=(selection,),
        )


def state_badge(job: Mapping[str, Any]) -> None:
    """The state as a word, an icon and a colour."""
    word, icon, colour = STATE_LOOKS[job["state"]]
    st.badge("Cancelling" if job["cancelling"] else word, icon=icon, color=colour)  # type: ignore[arg-type]


def state_words(job: Mapping[str, Any]) -> str:
    """State of a job in a sentence or two."""
    progress = job["progress"]
    if job["state"] == "waiting":
        place = job["place"] or 1
        return "Next in the queue." if place == 1 else f"Place {place:,} in the queue."
    if job["cancelling"]:
        return "Cancelled; its worker stops after the piece of work at hand."
    if job["state"] in ("running", "paused"):
        message = widgets.with_full_stop(progress["message"])
        return " ".join(filter(None, [progress_words(progress), numbers.capital(message)]))
    when = f"{(job['finished_at'] or '')[:16].replace('T', ' ')} UTC"
    far = f" after {numbers.count(progress['done'])} {progress['unit']}" if progress["done"] else ""
    again = f", attempt {job['attempts']}" if job["attempts"] > 1 else ""
    return f"{STATE_LOOKS[job['state']][0]} at {when}{far}{again}."


def progress_words(progress: Mapping[str, Any]) -> str:
    """Progress, rate and remaining time."""
    if not progress["unit"]:
        return "Starting."
    total = f" of {numbers.count(progress['total'])}" if progress["total"] is not None else ""
    words = [f"{numbers.count(progress['done'])}{total} {progress['unit']}"]
    if progress["rate"]:
        words.append(f"{numbers.number(progress['rate'])} per second")
    if progress["seconds_left"] is not None:
        words.append(f"{duration(progress['seconds_left'])} left")
    return ", ".join(words) + "."


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.4), duration(75), duration(7300)
    ('1 s', '1 min 15 s', '2 h 1 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def progress_bar(job: Mapping[str, Any]) -> None:
    """A progress bar, if the total is known and the job is not over."""
    progress = job["progress"]
    if job["state"] in ("running", "paused") and progress["total"]:
        st.progress(min(1.0, progress["done"] / progress["total"]))


def summary(job: Mapping[str, Any], label: str, opened: Callable[[], object], *, key: str) -> None:
    """A job that is not over in a line and a bar, with a button that leads on; for fragments."""
    with st.container(border=True, gap="xsmall", key=key):
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            state_badge(job)
            st.markdown(f"**{widgets.escape(job_title(job))}**", width="content")
            st.caption(widgets.escape(state_words(job)), width="content")
            # A callback would have the fragment alone drawn again.
            at_click.button(f":primary[{label}]", opened, key=f"{key}_open", type="tertiary")
        progress_bar(job)


@address.unless_embedded
def buttons(job: Mapping[str, Any], key: str) -> None:
    """Cancel, retry and remove buttons, depending on the job's state."""
    name = job["job"]
    if job["state"] in ALIVE:
        st.button(
            "Cancel",
            key=f"{key}_cancel_{name}",
            icon=":material/stop:",
            disabled=job["cancelling"],
            on_click=_act,
            args=("cancel_job", name),
        )
        return
    if job["state"] in ("failed", "cancelled") and _received_log(job):
        st.button(
            "Seal the log again",
            key=f"{key}_seal_{name}",
            icon=":material/refresh:",
            on_click=_seal_again,
            args=(job,),
            help="By a new job: the responses that came are kept.",
        )
    elif job["state"] in ("failed", "cancelled"):
        st.button(
            "Try again",
            key=f"{key}_retry_{name}",
            icon=":material/refresh:",
            on_click=_act,
            args=("retry_job", name),
            help="It goes on from what it has kept.",
        )
    with st.popover("Remove", icon=":material/delete:"):
        st.write("The job and its files go; runs that it made stay.")
        st.button("Remove it", key=f"{key}_remove_{name}", type="primary", on_click=_remove, args=(name,))


def _received_log(job: Mapping[str, Any]) -> str | None:
    """The log that an import of received responses is of: what it was to read is deleted once it has failed."""
    match = RECEIVED.fullmatch(str(job["request"].get("file")))
    return match[1] if match is not None and job["kind"] == "import" else None


def _seal_again(job: Mapping[str, Any]) -> None:
    refusals.forget(REFUSED)
    options = {"as": run} if (run := job["request"].get("run")) else {}
    options |= {name: "true" for name in ("although", "skip_bad") if job["request"].get(name)}
    try:
        new = widgets.client().seal_received(str(_received_log(job)), **options)
    except ApiError as error:
        refusals.keep(REFUSED, error)
        return
    address.go_changed(job=str(new["job"]))


def _act(method: str, job: str) -> None:
    refusals.forget(REFUSED)
    try:
        getattr(widgets.client(), method)(job)
    except ApiError as error:
        refusals.keep(REFUSED, error)


def _remove(job: str) -> None:
    refusals.forget(REFUSED)
    try:
        widgets.client().remove_job(job)
    except NotFound:
        pass  # the second of two clicks
    except ApiError as error:
        refusals.keep(REFUSED, error)
        return
    if address.current().job == job:
        address.go_changed(job=None)


def frames_of(artifacts: Sequence[str]) -> dict[int, dict[int, str]]:
    """iteration → item of the batch → name of its frame.

    >>> frames_of(["frame-000064.png", "frame-000128-1.png", "curve.json"])
    {64: {0: 'frame-000064.png'}, 128: {1: 'frame-000128-1.png'}}
    """
    frames: dict[int, dict[int, str]] = {}
    for name in artifacts:
        if match := FRAME.fullmatch(name):
            frames.setdefault(int(match[1]), {})[int(match[2] or 0)] = name
    return dict(sorted(frames.items()))


def _frames(job: Mapping[str, Any], key: str, width: int, captions: Sequence[str]) -> None:
    """The newest frames, with a slider for earlier ones; follows new frames until the slider is moved."""
    frames = frames_of(job["artifacts"])
    if not frames:
        return
    iterations, at, followed = list(frames), f"{key}_frame_{job['job']}", f"{key}_newest_{job['job']}"
    if st.session_state.get(at) not in frames or st.session_state.get(at) == st.session_state.get(followed):
        st.session_state[at] = iterations[-1]
    st.session_state[followed] = iterations[-1]
    unit = job["progress"]["unit"].removesuffix("s") or "iteration"
    shown = frames[st.session_state[at]]
    with st.container(horizontal=True, gap="small", key=f"{key}_frames"):
        for item, name in sorted(shown.items()):
            words = captions[item] if item < len(captions) else f"{item + 1}" if len(shown) > 1 else ""
            caption = f"{words}, {unit} {st.session_state[at]:,}".removeprefix(", ")
            st.image(
                widgets.client().artifact(job["job"], name), caption=widgets.escape(caption), width=width, alt=caption
            )
    if len(iterations) > 1:
        st.select_slider(unit.capitalize(), iterations, key=at, format_func=lambda iteration: f"{iteration:,}")


def _curve_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job's progress curve so far; empty if there is none."""
    if CURVE not in job["artifacts"]:
        return {}
    curve: dict[str, Any] = json.loads(widgets.client().artifact(job["job"], CURVE))
    return curve


def scope_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a chart of a job is about: the job, and the run of its request, whatever run the address has."""
    run = job["request"].get("run")
    return {"about": f"job: {job['job']}", "runs": [str(run)] if run else []}


def _curve(job: Mapping[str, Any], curve: Mapping[str, Any]) -> None:
    if any(len(series["x"]) > 1 for series in curve.get("series", ())):
        widgets.chart(curve_chart(curve, theme=widgets.theme()), **scope_of(job))
        if job["state"] not in ALIVE:
            widgets.numbers_behind(
                curve_rows(curve), f"{curve.get('y', 'the curve')} over {curve.get('x', 'iterations')}"
            )


def _result(job: Mapping[str, Any], key: str) -> None:
    """The result: links to its views, and the remaining values as they are."""
    result = {name: value for name, value in (job["result"] or {}).items() if name not in ("run", "runs")}
    if _links_from_here(job):
        with st.container(horizontal=True, gap="small"):
            open_buttons(job, key)
    if result:
        with st.expander("What came out"):
            st.json(result)


def _files(job: Mapping[str, Any], key: str) -> None:
    """Downloads of all artifacts, fetched on demand."""
    names = [name for name in job["artifacts"] if not FRAME.fullmatch(name)]
    if job["state"] in ALIVE or not names:
        return
    with st.expander(numbers.plural(len(names), "file")), st.container(horizontal=True, gap="small"):
        for name in names[:MOST_FILES]:
            st.download_button(
                widgets.escape(name),
                partial(widgets.client().artifact, job["job"], name),
                file_name=name,
                key=f"{key}_file_{name}",
                on_click="ignore",
                icon=":material/download:",
            )
        if len(names) > MOST_FILES:
            st.caption(f"… and {len(names) - MOST_FILES:,} more in the folder of the job.")


def result_links(job: Mapping[str, Any]) -> list[Link]:
    """Links of a finished job, the most relevant first; none if it is not finished."""
    if job["state"] != "succeeded":
        return []
    request, result = job["request"], job["result"] or {}
    if job["kind"] == "dream":
        return [("Open in Dream", selection_of(job))]
    if job["kind"] == "reroute" and request.get("sweep"):
        # Importance shows sweeps of a run. One over a data set belongs to no run; its table is with the job.
        run = request.get("run")
        return [("Open in Importance", Selection(view="importance", run=run, job=job["job"]))] if run else []
    if job["kind"] == "map":
        return [("Open the map", Selection(view="samples", run=request.get("run"), job=job["job"]))]
    if job["kind"] == "attention":
        return [("Open its sample", Selection(view="samples", run=request.get("run"), sample=request.get("sample")))]
    if job["kind"] == "gates":
        run = request.get("run")
        opened = Selection(view="family", run=run, sample=request.get("sample"), job=job["job"])
        return [("Open in Gates", opened)] if run else []
    run = result.get("run")
    if not run:
        return []
    if job["kind"] == "reroute":
        return _edited_run_links(request, str(run), [str(name) for name in result.get("runs") or ()], job["job"])
    return [("Open the run", Selection(view="routes", run=str(run)))]


def _links_from_here(job: Mapping[str, Any]) -> list[Link]:
    """``result_links`` without those to the view that shows the job already."""
    here = address.current()

    def is_here(to: Selection) -> bool:
        return (to.view, to.job) == (here.view, here.job) and to.run in (None, here.run)

    return [(words, to) for words, to in result_links(job) if not is_here(to)]


def _edited_run_links(request: Mapping[str, Any], after: str, runs: Sequence[str], job: str) -> list[Link]:
    """The detour of a first sample if the URL can express its edits, then both runs."""
    links: list[Link] = []
    before = next((run for run in runs if run != after), None)
    edits = (request.get("controls") or {}).get("edits") or ()
    texts = [in_address(edit) for edit in edits]
    if before and edits and set(request["controls"]) == {"edits"} and None not in texts:
        controls = tuple(text for parts in texts for text in parts or ())
        if len(controls) <= 16:
            links.append(
                ("Open in Change a route", Selection(view="change", run=before, sample=0, controls=controls, job=job))
            )
    links.append(("Open the edited run", Selection(view="routes", run=after)))
    if before:
        links.append(("Open the unchanged run", Selection(view="routes", run=before)))
    return links
