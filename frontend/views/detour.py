"""What if it had gone elsewhere? One sample under edited routes, before and after; every module banned in turn.

The edits stand in the address (``controls``, see ``detour_edits``), so a link shows the same detour again. Both passes
are runs of one sample; the page keeps the last ones only, unless they were opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from frontend import address, look
from frontend.charts import numbers
from frontend.charts.effects import answer_rows, answers_chart, flow_difference_chart
from frontend.charts.patches import data_url
from frontend.charts.token_losses import loss_rows, token_loss_chart
from frontend.client import NotFound
from frontend.components.explorer import explorer, explorer_data
from frontend.selection import Selection
from frontend.views import common, detour_compare, detour_sweep, retrace
from frontend.views.detour_build import builder, chosen_edits, words_of
from frontend.views.detour_edits import KINDS, Link, link_of, read_edits, takes
from frontend.views.sample import sample_picker

HELP = (
    "Beside the unchanged run, on the same input. Paths changed: share of tokens that visit other modules at a step "
    "behind the first edited one that no edit changes by itself. KL(unchanged ‖ edited) of the output distribution, "
    "mean over outputs. Flow that moved = ½ Σ |f′ − f| / T, mean over pairs of steps: 0 = the same flow, 1 = no link "
    "in common."
)
ERROR = "± one standard error, the tokens taken as independent of each other."
RANKS = "Paths are counted within this one sample: ranks and colours here are not those of the run."
MOST_LINKS = 120


def draw(selection: Selection) -> None:
    run = common.chosen_run(selection)
    if run is None:
        return
    if detour_sweep.of_huggingface(run):
        _experts(run, selection)
        return
    with look.controls():
        common.run_picker(run)
        common.label_picker(run, selection)
        number = sample_picker(run, selection)
    look.heading(
        "What if it had gone elsewhere?",
        "Ban a module, send a token somewhere else, freeze or shuffle a router, and see what that changes.",
    )
    model = retrace.model_of(run)
    if model is None:
        return
    kinds = list((model.get("controls") or {}).get("edits") or ())
    if not kinds:
        look.empty(f"Routes of the model {run['model']} cannot be edited.", "Choose a run of another model.")
        return
    if number is None:
        look.empty("No sample has this label.", "Let go of a chip above.")
    else:
        with look.guarded("the detour"):
            _detour(run, model, kinds, selection, number)
    st.divider()
    with look.guarded("the importance of modules"):
        detour_sweep.draw(run, kinds, selection)


def _experts(run: Mapping[str, Any], selection: Selection) -> None:
    """A model of another program: what each of its experts is good for; single samples are not edited here."""
    with look.controls():
        common.run_picker(run)
    look.heading(
        "What if it had gone elsewhere?",
        "In a Hugging Face model experts can be banned, measured over many texts. An edited run is made by "
        "`tokenpaths trace --model hf:… --controls`.",
    )
    with look.guarded("the importance of experts"):
        detour_sweep.draw_experts(run, selection)


def _detour(
    run: Mapping[str, Any], model: Mapping[str, Any], kinds: Sequence[str], selection: Selection, number: int
) -> None:
    sample = look.client().sample(run["run"], number)
    if sample.get("text") is None and not sample.get("has_image"):
        look.empty("This run keeps neither text nor image, so its samples cannot be run again.", "Choose another run.")
        return
    others = (model.get("controls") or {}).get("properties") or {}
    edits, problems = read_edits(selection.controls, sample, lambda other: _other(run, other), others)
    for problem in problems:
        st.warning(look.plain(problem), icon=":material/link_off:")
    chosen_edits(run, selection)
    builder(run, model, kinds, selection, sample)
    before = retrace.again(run, sample, {}, slot="detour_before")
    if before is None:
        return
    if not edits:
        st.info(
            "Nothing is edited yet. Click a circle (a module at a step), a link or a "
            + ("token" if run["modality"] == "text" else "patch")
            + " below, then say above what shall be different.",
            icon=":material/alt_route:",
        )
        st.caption(RANKS)
        _one_side(run, before, None, selection, "Before")
        detour_compare.draw(run, selection, look.client().sample(before["run"], 0), None)
        return
    after = retrace.again(run, sample, {"edits": edits}, slot="detour_after")
    if after is None:
        return
    effect = look.client().effect(after["run"], of=before["run"], sample=0, limit=MOST_LINKS)
    _verdict(run, selection, effect, before, after)
    st.caption(RANKS)
    left, right = st.columns(2, gap="large")
    with left:
        _one_side(run, before, None, selection, "Before")
    with right:
        _one_side(run, after, effect, selection, "After")
    detour_compare.draw(run, selection, *(look.client().sample(one["run"], 0) for one in (before, after)))
    _differences(run, effect, before, after)


def _other(run: Mapping[str, Any], number: int) -> dict[str, Any] | None:
    try:
        return look.client().sample(run["run"], number)
    except NotFound:
        return None


def _verdict(
    run: Mapping[str, Any],
    selection: Selection,
    effect: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> None:
    """The effect in one sentence, then its numbers."""
    outputs = effect.get("outputs") or {}
    old, new = (look.client().sample(one["run"], 0) for one in (before, after))
    what = " and ".join(words_of(run, text) for text in selection.controls if text.partition(":")[0] in KINDS)
    if effect["num_tokens"] == 1:
        sentence = f"With {what}: the image {'takes another path' if effect['paths_changed'] else 'keeps its path'}"
    else:
        sentence = f"With {what}: {moved_words(effect, _parts(run))}"
    if new.get("prediction"):
        was, now = (f"{one['prediction']} ({numbers.percent(one['confidence'])})" for one in (old, new))
        if old["prediction"] == new["prediction"]:
            sentence += f"; the answer stays {was.removesuffix(')')} → {numbers.percent(new['confidence'])})."
        else:
            sentence += f"; the answer turns from {was} to {now}."
    elif effect.get("loss"):
        change = effect["loss"]["change"]
        error = ((outputs.get("loss") or {}).get("error")) or 0.0
        if abs(change) <= 2 * error:
            sentence += "; how hard the text is to predict changes by no more than chance would."
        else:
            sentence += f"; the text becomes {'harder' if change > 0 else 'easier'} to predict by "
            sentence += f"{numbers.number(abs(change))} nats a token."
    st.subheader(look.plain(sentence), anchor=False, help=HELP)
    with st.container(horizontal=True, gap="large", key="effect_numbers"):
        for name, words in (("loss", "Loss (nats)"), ("perplexity", "Perplexity")):
            if pair := effect.get(name):
                st.metric(words, " → ".join(numbers.apart([pair["before"], pair["after"]])), width="content")
        if pair := effect.get("loss"):
            st.metric("Change of loss (nats)", change_words(pair, outputs.get("loss")), width="content", help=ERROR)
        st.metric("Paths changed at any step", numbers.percent(effect["paths_changed"]), width="content")
        st.metric("Flow that moved", numbers.percent(effect["flow_difference"]), width="content")
        if outputs:
            st.metric("KL of the answers (nats)", numbers.number(outputs["kl"]), width="content")
            if run["modality"] == "text":
                st.metric("Likeliest next tokens that changed", numbers.percent(outputs["top1_changed"]),
                          width="content")  # fmt: skip
        st.button("Open the edited run", on_click=retrace.keep, args=(after["run"],),
                  kwargs={"slot": "detour_after", "view": "sample"}, icon=":material/open_in_new:")  # fmt: skip


def moved_words(effect: Mapping[str, Any], parts: str) -> str:
    """How many tokens go another way behind the edit, and at which steps that was counted (METRICS 5)."""
    steps = effect["after_steps"]
    if not effect["paths_changed"]:
        return f"all {parts} keep their paths"
    if not steps:
        told = numbers.percent(effect["paths_changed"])
        return f"{told} of the {parts} take another path, at steps that are edited themselves"
    moved = f"{numbers.percent(effect['paths_changed_after'])} of the {parts} take another path"
    if len(steps) == 1:
        return f"{moved} behind the edit, at step {steps[0]}"
    whole = steps == list(range(steps[0], steps[-1] + 1))
    return f"{moved} behind the edit, at steps " + (
        f"{steps[0]} to {steps[-1]}" if whole and len(steps) > 2 else ", ".join(map(str, steps))
    )


def change_words(pair: Mapping[str, Any], measured: Mapping[str, Any] | None) -> str:
    """“+0.0123 ± 0.0045”; without an error where nothing was measured row by row."""
    change, error = pair["change"], (measured or {}).get("error")
    told = ("−" if change < 0 else "+" if change > 0 else "") + numbers.number(abs(change))
    return told + (f" ± {numbers.number(error, 2)}" if error else "")


def _parts(run: Mapping[str, Any]) -> str:
    return "patches" if run["modality"] == "vision" else "tokens"


def _one_side(
    run: Mapping[str, Any],
    one: Mapping[str, Any],
    effect: Mapping[str, Any] | None,
    selection: Selection,
    word: str,
) -> None:
    """The picture or text with its flow; of the edited side, what kept its path is faded, and of the other, what does
    not take the chosen link."""
    client, link = look.client(), link_of(selection.through)
    sample = client.sample(one["run"], 0)
    moved = None if effect is None else {row["token"] for row in effect["tokens"] or () if row["moved"]}
    st.subheader(word, anchor=False)
    st.caption(_about_side(run, sample, moved, link))

    def kept(token: Mapping[str, Any]) -> bool:
        return (link is None or takes(token, link)) if moved is None else token["token"] in moved

    data = explorer_data(
        sample,
        client.flow(one["run"], limit=300),
        theme=look.theme(),
        image=data_url(client.image(one["run"], 0)) if sample.get("has_image") else None,
        num_paths=int(one["num_paths"]),
        opacity=selection.opacity / 100,
        step=selection.tint if selection.tint is not None and selection.tint < int(run["num_steps"]) else None,
        chosen=selection.token if any(t["token"] == selection.token for t in sample["tokens"]) else None,
        identities=common.identities(run),
        kept=kept,
        of="sample",
        modules=run["modules"],
        chosen_link=None if link is None else "{0}.{1}>{3}.{2}".format(*link, link[0] + 1),
    )
    explorer(
        data,
        key=f"detour_{word}_{one['run']}",
        on_pick=lambda token: address.go_changed(token=token),
        on_node=lambda node: address.go_changed(through=(node,)),
        on_link=lambda *ends: address.go_changed(through=() if address.current().through == ends else ends),
    )


def _about_side(run: Mapping[str, Any], sample: Mapping[str, Any], moved: set[int] | None, link: Link | None) -> str:
    total = numbers.count(len(sample["tokens"]))
    if moved is not None:
        return f"{numbers.count(len(moved))} of {total} {_parts(run)} go another way; those that do not are faded."
    if link is not None:
        count = sum(takes(token, link) for token in sample["tokens"])
        return f"{numbers.count(count)} of {total} {_parts(run)} take the chosen link; the others are faded."
    return "Click a circle, a link or a " + ("token" if sample.get("text") is not None else "patch") + " to choose it."


def _differences(
    run: Mapping[str, Any], effect: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    outputs = effect.get("outputs") or {}
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Where do tokens go instead?", anchor=False, help=HELP)
        if effect["links"]:
            st.caption("Rose: more tokens go this way than before; blue: fewer. The largest changes are drawn.")
            look.chart(flow_difference_chart(effect, theme=look.theme(), title=None))
            look.numbers_behind(effect["links"], "links before and after")
        else:
            look.empty("No token goes another way between two steps.")
    with right:
        if top5 := outputs.get("top5"):
            text = run["modality"] == "text"
            st.subheader("What would come next?" if text else "What does the model answer instead?", anchor=False)
            st.caption("The likeliest answers; circle: before, diamond: after.")
            look.chart(answers_chart(top5, theme=look.theme(), title=None))
            look.numbers_behind(answer_rows(top5), "answers before and after")
    if run["modality"] == "text":
        old, new = (look.client().sample(one["run"], 0) for one in (before, after))
        table = loss_rows(old["tokens"], new["tokens"])
        if table:
            st.subheader("Which tokens become harder to predict?", anchor=False)
            st.caption("One bar: one token of the text. Up: harder to predict than before; down: easier.")
            look.chart(token_loss_chart(table, theme=look.theme(), title=None))
            look.numbers_behind(table, "tokens before and after")
    moved = [
        {
            "token": row["token"], "before": numbers.ribbon_words(row["before"]),
            "after": numbers.ribbon_words(row["after"]), "differs at steps": ", ".join(map(str, row["moved"])),
        }
        for row in effect["tokens"] or () if row["moved"]
    ]  # fmt: skip
    look.numbers_behind(moved, "tokens that go another way")
