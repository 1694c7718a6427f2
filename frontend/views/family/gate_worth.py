"""Gates view, “What breaks without routing?”: jobs that measure heads, uniform gates, positions, and one word."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import streamlit as st

from tokenpaths.frontend.api.client import ApiError, NotFound
from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import tamed
from tokenpaths.frontend.charts.effects import answer_words
from tokenpaths.frontend.charts.families.gate_worth import (
    condition_chart,
    condition_rows,
    condition_words,
    direction_chart,
    direction_rows,
    direction_words,
    head_chart,
    head_rows,
    head_words,
    position_chart,
    position_rows,
    position_words,
    uniform_chart,
    uniform_words,
)
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.jobs import alive, panel

SCAN, WORD = "gate_scan.json", "gate_word.json"
TEXTS = (16, 32, 64, 128, 256)
LISTED = 200
HELP = {
    "scan": (
        "All texts are run again with each head adding nothing, then with every gate at 0, 0.1 … 1. Rises of the loss "
        "are paired: the same tokens as trained. Intervals of 95 % take texts, not tokens, as what was drawn."
    ),
    "heads": "A head that is knocked out adds nothing to the residual stream; its directions go with it.",
    "uniform": "Every gate of every head at this value, whatever the text: 0 is routing off, 1 removes all directions.",
    "positions": (
        "Loss with routing off (or every gate at 0.5) minus the trained loss, by position of the token whose successor "
        "is predicted. Longer texts are cut into windows of the model's context, each counted from 0."
    ),
    "word": (
        "The word behind one token of one text: how much each direction adds to its logit by being removed, and its "
        "probability when the gates are others."
    ),
    "directions": (
        "−r (o·d) d of the direction at this token, through W_O and the final norm with its scale held, times the "
        "word's row of the unembedding minus the mean row. With embedding, heads and MLPs these sum to the logit above "
        "the mean word's. Direct: what later layers make of a removal counts as theirs."
    ),
    "conditions": "The text is run again with every gate set; mean gates are those of all texts of this run.",
}


def can_be_measured(run: Mapping[str, Any]) -> bool:
    """Whether the run's model is there to be run again; if not, the live part of the page says why."""
    try:
        return not widgets.client().model(common.model_name(run)).get("problem")
    except ApiError:
        return False


@address.unless_embedded
def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """The scan over many texts, then one word; each with the button that measures it and its newest results."""
    jobs = _jobs(run, selection)
    panel.refusal()
    if run["num_samples"] > 1:
        _scan(run, jobs, selection)
    _word(run, jobs, selection)


def _jobs(run: Mapping[str, Any], selection: Selection) -> list[Mapping[str, Any]]:
    """The jobs of this kind about this run: the one in the URL first, then the newest."""
    client, found = widgets.client(), []
    try:
        if selection.job is not None:
            found.append(client.job(selection.job))
    except NotFound as error:
        st.warning(widgets.error_text(error), icon=":material/link_off:")
    except ApiError:
        pass
    with suppress(ApiError):
        found += [job for job in client.jobs(kind="gates", most=50)["jobs"] if job["job"] != selection.job]
    return [job for job in found if job["kind"] == "gates" and job["request"].get("run") == run["run"]]


def _results(
    jobs: Sequence[Mapping[str, Any]], named: Mapping[str, Any] | None, name: str, key: str
) -> tuple[Mapping[str, Any] | None, dict[str, Any] | None]:
    """A job and what it has measured so far, after the panel of the one of the URL or of one that is not over.

    Without measurements the job is the one of the panel; None, None if there is none.
    """
    shown, of = alive.at_hand(jobs, named, name)
    if shown is not None and shown["state"] != "succeeded":
        now = panel.job_panel(shown["job"], key=key)
        of = now if name in now["artifacts"] else of
    if of is None:
        return shown, None
    alive.say_others(shown, of)
    found: dict[str, Any] = json.loads(widgets.client().artifact(of["job"], name))
    return of, found


def _scan(run: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], selection: Selection) -> None:
    st.subheader("Over many texts", anchor=False, help=HELP["scan"])
    there = int(run["num_samples"])
    offered = [many for many in TEXTS if many < there] + ([there] if there <= TEXTS[-1] else [])
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="gate_scan_fields"):
        chosen = min(offered, key=lambda many: abs(many - 64))
        limit = st.select_slider("Texts of this run", offered, chosen, key="gate_scan_texts", disabled=len(offered) < 2)
        request = {"model": common.model_name(run), "run": run["run"], "limit": limit}
        panel.start_button("Measure heads and gates", "gates", request, key="gate_scan_start")
    scans = [job for job in jobs if job["request"].get("position") is None]
    named = next((job for job in scans if job["job"] == selection.job), None)
    job, found = _results(scans, named, SCAN, "gate_scan")
    if job is None:
        st.caption("Nobody has measured this run yet. It takes minutes; the page may be closed meanwhile.")
    if job is None or found is None or not found.get("trained"):
        return
    alive.say_partial(job, found["measured"], found["conditions"], "conditions")
    st.caption(widgets.escape(_how_many(found)))
    left, right = st.columns(2, gap="large")
    with left:
        _titled(head_words(found), HELP["heads"])
        if found["heads"]:
            widgets.chart(head_chart(found, theme=widgets.theme(), title=None))
            st.caption("Rose: the loss rises without this head; blue: it falls. Dot: clearly different from 0.")
    with right:
        _titled(uniform_words(found), HELP["uniform"])
        if found["uniform"]:
            widgets.chart(uniform_chart(found, theme=widgets.theme(), title=None))
            st.caption("Dashed: as trained. Band: 95 % interval of the difference to it.")
    if position_rows(found):
        _titled(position_words(found), HELP["positions"])
        widgets.chart(position_chart(found, theme=widgets.theme(), title=None))
        st.caption("Up: the trained routers predict better. Band: 95 % interval over texts.")
    widgets.how_sure("gate_scan", lambda: _sure(found))
    widgets.numbers_behind(head_rows(found), "loss without each head")
    widgets.numbers_behind(found["uniform"], "loss with every gate at one value")
    widgets.numbers_behind(position_rows(found), "gain by position")


def _how_many(found: Mapping[str, Any]) -> str:
    num, of = found["num_samples"], found.get("of_samples")
    texts = numbers.plural(num, "text") if of in (None, num) else f"{num:,} of {numbers.plural(of, 'text')}"
    words = f"{texts} from “{found['data']}”, {numbers.plural(found['trained']['num_targets'], 'prediction')}; loss as "
    return words + f"trained {numbers.number(found['trained']['loss'], 4)} nats."


def _sure(found: Mapping[str, Any]) -> None:
    st.markdown(
        "Intervals are of 95 %: the standard error clustered by text times Student's t of the texts, each interval by "
        f"itself. *Clearly* holds for all {len(found['heads'])} heads together (Bonferroni), and so does what the "
        f"title says of the {len(found['uniform'])} values. Intervals are over texts: they say nothing about networks "
        "that were trained alike."
    )


def _word(run: Mapping[str, Any], jobs: Sequence[Mapping[str, Any]], selection: Selection) -> None:
    words = [job for job in jobs if job["request"].get("position") is not None]
    named = next((job for job in words if job["job"] == selection.job), None)
    number = selection.sample
    if number is None and named is not None:
        number = int(named["request"]["sample"])
    if number is None:
        listed = widgets.client().ask(run["run"], "samples", most=1, label=selection.label)["samples"]
        if not listed:
            return
        number = int(listed[0]["sample"])
    st.subheader("One word of one text", anchor=False, help=HELP["word"])
    sample = widgets.client().ask(run["run"], "samples/{sample}", sample=number)
    asked = dict(named["request"]) if named is not None and named["request"]["sample"] == number else {}
    request = _form(run, sample, asked)
    if request is None:
        return
    same = [job for job in words if _same(job["request"], request)]
    job, found = _results(same, named if named in same else None, WORD, "gate_word")
    if found is not None:
        _told_word(found, f"text {number:,}")
    elif job is None:
        st.caption("Takes seconds. The address then holds the answer.")


def _form(run: Mapping[str, Any], sample: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """Which token, word and other text; the request of a job. ``asked``: the request of the job in the URL."""
    tokens, number = sample.get("tokens") or [], int(sample["sample"])
    if not tokens:
        return None
    texts = [answer_words(tamed(token.get("text") or "")) for token in tokens]
    of = f"{run['run']}_{number}_{asked.get('position')}_{asked.get('word')}_{asked.get('other')}"

    def say(place: int) -> str:
        before = " ".join(texts[max(0, place - 3) : place + 1])
        return f"{place} · {before} → {texts[place + 1] if place + 1 < len(texts) else 'end of the text'}"

    start = min(int(asked.get("position", len(tokens) // 2)), len(tokens) - 1)
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="gate_word_fields"):
        position = st.selectbox(
            f"Behind token (text {number:,})", range(len(tokens)), start, format_func=say, key=f"gate_word_at_{of}"
        )
        word = st.text_input(
            "Word",
            asked.get("word") or "",
            max_chars=100,
            placeholder="the one that follows",
            key=f"gate_word_word_{of}",
            help="A word of one token, with or without the space before it: the likelier of the two is taken.",
        )
        other = _other_text(run, number, asked.get("other"), f"gate_word_other_{of}")
        request = {"model": common.model_name(run), "run": run["run"], "sample": number, "position": int(position)}
        request |= {"word": word} if word.strip() else {}
        request |= {"other": other} if other is not None else {}
        panel.start_button("Take the word apart", "gates", request, key="gate_word_start")
    return request


def _other_text(run: Mapping[str, Any], number: int, asked: Any, key: str) -> int | None:
    listed = widgets.client().ask(run["run"], "samples", most=LISTED)["samples"]
    words = {
        int(row["sample"]): " · ".join([str(row["sample"]), tamed(row.get("snippet") or row.get("text") or "")[:30]])
        for row in listed
        if row["sample"] != number
    }
    options = [None, *words]
    return st.selectbox(
        "Also with the gates of",
        options,
        options.index(asked) if asked in options else 0,
        format_func=lambda text: "no other text" if text is None else words[text].replace("\n", " "),
        key=key,
    )


def _same(request: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(request.get(name) == wanted.get(name) for name in ("model", "sample", "position", "word", "other"))


def _told_word(found: Mapping[str, Any], about: str) -> None:
    left, right = st.columns(2, gap="large")
    with left:
        _titled(condition_words(found), HELP["conditions"])
        widgets.chart(condition_chart(found, theme=widgets.theme(), title=None), about=about)
        if found["pooling"] == "sequence":
            st.caption("The routers read the whole text, so what stands behind the word is in view of the gates.")
    with right:
        _titled(direction_words(found), HELP["directions"])
        widgets.chart(direction_chart(found, theme=widgets.theme(), title=None), about=about)
        st.caption("Right: removing the direction raises the logit of the word; left: it lowers it.")
    widgets.how_sure("gate_word", lambda: _parts(found))
    widgets.numbers_behind(condition_rows(found), "probability of the word")
    widgets.numbers_behind(direction_rows(found), "logit of the word by direction")


def _parts(found: Mapping[str, Any]) -> None:
    """The sum of the logit, and how far the direct part of the removals is from their first-order effect."""
    parts, whole = found["logit"], sum(row["first_order"] for row in found["directions"])
    said = {name: numbers.number(abs(value)) for name, value in parts.items()}
    sign = {name: "−" if value < 0 else "" for name, value in parts.items()}
    names = {"embedding": "embedding", "heads": "heads before removal", "removed": "removals", "mlps": "MLPs"}
    sum_words = ", ".join(f"{words} {sign[name]}{said[name]}" for name, words in names.items())
    st.markdown(
        f"The logit stands {said['all']} {'below' if parts['all'] < 0 else 'above'} the mean of all words; exactly the "
        f"sum of {sum_words}. "
        "The bars are the direct part: what later layers make of a removal counts as theirs. To first order, with what "
        f"later layers and positions make of them, all removals together come to "
        f"{'−' if whole < 0 else ''}{numbers.number(abs(whole))} (column *first_order* of the table); that is exact "
        "only for small gates. The bars of the probabilities are exact."
    )


def _titled(sentence: str, help_text: str) -> None:
    widgets.verdict(widgets.with_full_stop(sentence), help=help_text)
