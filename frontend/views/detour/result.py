"""Result of an edit, before | after: a verdict in one sentence, both sides, and where they differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.thing_names import one_token, token_nouns, whole_images
from tokenpaths.frontend.charts.effects import (
    answer_rows,
    answers_caption,
    answers_chart,
    flow_difference_chart,
    loss_rows,
    token_loss_chart,
)
from tokenpaths.frontend.charts.flow.token_flow import visible
from tokenpaths.frontend.charts.patches import data_url
from tokenpaths.frontend.components.explorer import explorer
from tokenpaths.frontend.components.explorer_data import Tint, explorer_data
from tokenpaths.frontend.page import address, at_click, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.detour import before_after
from tokenpaths.frontend.views.detour.build import words_of
from tokenpaths.frontend.views.detour.edits import KINDS, Link, link_of, takes
from tokenpaths.frontend.views.samples import reference

HELP = (
    "Beside the unchanged run, on the same input. Paths changed: share of tokens that visit other modules at a step "
    "behind the first edited one that no edit changes by itself. KL(unchanged ‖ edited) of the output distribution, "
    "mean over outputs. Flow that moved = ½ Σ |f′ − f| / T, mean over pairs of steps: 0 = the same flow, 1 = no link "
    "in common."
)
ERROR = "± one standard error over samples, whose predictions rise and fall together. One sample has none."
MOST_LINKS = 120


def show(
    run: Mapping[str, Any],
    selection: Selection,
    effect: Mapping[str, Any],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    *,
    number: int = 0,
    on_open: Callable[[], None],
) -> None:
    """Show the effect of an edited run relative to the unedited one over the same samples, and sample ``number`` of
    them.

    Args:
        run: The run from which the sample was chosen.
        on_open: Called to open the edited run.
    """
    old, new = (widgets.client().ask(one["run"], "samples/{sample}", sample=number) for one in (before, after))
    pairs = zip(old["tokens"], new["tokens"], strict=True)
    moved = {one["token"]: steps for one, other in pairs if (steps := before_after.moved_steps(one, other))}
    _verdict(run, selection, effect, old, new, on_open)
    reference.say_where_ranks_are_from(reference.ranked(before, old, source=run))
    left, right = st.columns(2, gap="large")
    with left:
        one_side(run, before, old, None, selection, "Before")
    with right:
        one_side(run, after, new, set(moved), selection, "After")
    before_after.draw(run, selection, old, new)
    _differences(run, effect, old, new, moved)


def _verdict(
    run: Mapping[str, Any],
    selection: Selection,
    effect: Mapping[str, Any],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    on_open: Callable[[], None],
) -> None:
    """The effect in one sentence, then its numbers."""
    outputs = effect.get("outputs") or {}
    what = " and ".join(words_of(run, text) for text in selection.controls if text.partition(":")[0] in KINDS)
    whose = token_nouns(run)[1]
    if effect["num_samples"] > 1 and not whole_images(run):
        whose += f" of {numbers.count(effect['num_samples'])} {'images' if run['modality'] == 'vision' else 'texts'}"
    if effect["num_tokens"] == 1:
        sentence = f"With {what}: the image {'takes another path' if effect['paths_changed'] else 'keeps its path'}"
    else:
        sentence = f"With {what}: {moved_words(effect, whose)}"
    if new.get("prediction") and effect["num_samples"] == 1:
        was, now = (f"{one['prediction']} ({numbers.percent(one['confidence'])})" for one in (old, new))
        if old["prediction"] == new["prediction"]:
            sentence += f"; the answer stays {was.removesuffix(')')} → {numbers.percent(new['confidence'])})."
        else:
            sentence += f"; the answer turns from {was} to {now}."
    elif effect.get("loss"):
        sentence += f"; {loss_words(effect, outputs.get('loss') or {})}."
    st.subheader(widgets.escape(sentence), anchor=False, help=HELP)
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
                st.metric(
                    "Likeliest next tokens that changed", numbers.percent(outputs["top1_changed"]), width="content"
                )
        at_click.button("Open the edited run", on_open, key="open_edited", icon=":material/open_in_new:")


def loss_words(effect: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """Whether the texts are harder to predict; ``measured``: the same change with its interval over texts."""
    change, one = effect["loss"]["change"], effect["num_samples"] == 1
    if not change:
        return f"{'the text stays' if one else 'the texts stay'} as hard to predict"
    if measured.get("low") is not None and measured["low"] <= 0 <= measured["high"]:
        return "how hard the texts are to predict changes by no more than chance would"
    becomes = "the text becomes" if one else "the texts become"
    return f"{becomes} {'harder' if change > 0 else 'easier'} to predict by {numbers.number(abs(change))} nats a token"


def moved_words(effect: Mapping[str, Any], parts: str) -> str:
    """How many tokens change their path after the edited step, and which steps were counted (METRICS 5)."""
    steps = effect["after_steps"]
    if not effect["paths_changed"]:
        return f"all {parts} keep their paths"
    if not steps:
        share = numbers.percent(effect["paths_changed"])
        return f"{share} of the {parts} take another path, at steps that are edited themselves"
    moved = f"{numbers.percent(effect['paths_changed_after'])} of the {parts} take another path"
    if len(steps) == 1:
        return f"{moved} behind the edit, at step {steps[0]}"
    whole = steps == list(range(steps[0], steps[-1] + 1))
    return f"{moved} behind the edit, at steps " + (
        f"{steps[0]} to {steps[-1]}" if whole and len(steps) > 2 else ", ".join(map(str, steps))
    )


def change_words(pair: Mapping[str, Any], measured: Mapping[str, Any] | None) -> str:
    """“+0.0123 ± 0.0045”; without an error if nothing was measured per row."""
    change, error = pair["change"], (measured or {}).get("error")
    amount = ("−" if change < 0 else "+" if change > 0 else "") + numbers.number(abs(change))
    return amount + (f" ± {numbers.number(error, 2)}" if error else "")


def one_side(
    run: Mapping[str, Any],
    one: Mapping[str, Any],
    sample: Mapping[str, Any],
    moved: set[int] | None,
    selection: Selection,
    word: str,
) -> None:
    """One side: the image or text with its flow.

    On the edited side, tokens that kept their path are faded; on the other, tokens that do not take the selected link.
    ``one`` is the run of ``sample``: a module or ribbon counts all samples of the run. Paths are ranked by ``run``.
    """
    client, link = widgets.client(), link_of(selection.through)
    st.subheader(word, anchor=False)
    st.caption(_about_side(run, sample, moved, link))

    def kept(token: Mapping[str, Any]) -> bool:
        return (link is None or takes(token, link)) if moved is None else token["token"] in moved

    ranked = reference.ranked(one, sample, source=run)
    by_module = 0 if ranked.reason is not None else None  # nothing ranks the paths, so their ink says nothing
    data = explorer_data(
        ranked.sample,
        client.ask(one["run"], "flow", limit=300, **common.merging(one, selection.change(merge=None))),
        Tint(
            widgets.theme(),
            num_paths=ranked.num_paths(one),
            opacity=selection.opacity / 100,
            step=selection.tint if selection.tint is not None and selection.tint < int(run["num_steps"]) else by_module,
            identities=common.identities(run),
            of="sample" if one["num_samples"] == 1 else "run",
            reference=ranked.name,
        ),
        image=data_url(client.image(one["run"], sample["sample"])) if sample.get("has_image") else None,
        chosen=selection.token if any(t["token"] == selection.token for t in sample["tokens"]) else None,
        kept=kept,
        modules=run["modules"],
        chosen_link=None if link is None else "{0}.{1}>{3}.{2}".format(*link, link[0] + 1),
    )
    explorer(
        data,
        key=f"detour_{word}_{one['run']}_{sample['sample']}",
        on_pick=lambda token: address.go_changed(token=token),
        on_node=lambda node: None if "-" in node else address.go_changed(through=(node,)),
        on_link=lambda *ends: address.go_changed(through=() if address.current().through == ends else ends),
    )


def _about_side(run: Mapping[str, Any], sample: Mapping[str, Any], moved: set[int] | None, link: Link | None) -> str:
    total = f"{numbers.count(len(sample['tokens']))} {token_nouns(run)[1]}"
    if moved is not None:
        return f"{numbers.count(len(moved))} of {total} go another way; those that do not are faded."
    if link is not None:
        count = sum(takes(token, link) for token in sample["tokens"])
        return f"{numbers.count(count)} of {total} take the chosen link; the others are faded."
    return f"Click a circle, a link or {one_token(run)} to choose it."


def after_words(tokens: Sequence[Mapping[str, Any]]) -> str:
    """After which token the likeliest next ones are meant: the last of the text, whichever is chosen."""
    if not tokens:
        return "After the last token of the text."
    last = tokens[-1]
    written = f" “{visible(last['text'])}”" if last.get("text") else ""
    return f"After the last token of the text, {last['token']:,}{written}, whichever token is chosen."


def _differences(
    run: Mapping[str, Any],
    effect: Mapping[str, Any],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    moved: Mapping[int, Sequence[int]],
) -> None:
    outputs, who = effect.get("outputs") or {}, f"sample {old['sample']:,}, before and after the change"
    left, right = st.columns(2, gap="large")
    with left:
        st.subheader("Where do tokens go instead?", anchor=False, help=HELP)
        if effect["links"]:
            st.caption("Rose: more tokens go this way than before; blue: fewer. The largest changes are drawn.")
            drawing = flow_difference_chart(effect, theme=widgets.theme(), title=None)
            widgets.chart(drawing, about="before and after the change", filters=("job",))
            widgets.numbers_behind(effect["links"], "links before and after")
        else:
            widgets.empty("No token goes another way between two steps.")
    with right:
        if top5 := outputs.get("top5"):
            text = run["modality"] == "text"
            st.subheader("What would come next?" if text else "What does the model answer instead?", anchor=False)
            asked = after_words(old["tokens"]) if text else "The likeliest answers."
            st.caption(widgets.escape(f"{asked} {answers_caption(top5)}"))
            widgets.chart(answers_chart(top5, theme=widgets.theme(), title=None), about=who, filters=("job",))
            widgets.numbers_behind(answer_rows(top5), "answers before and after")
    if run["modality"] == "text":
        table = loss_rows(old["tokens"], new["tokens"])
        if table:
            st.subheader("Which tokens become harder to predict?", anchor=False)
            st.caption("One bar: one token of the text. Up: harder to predict than before; down: easier.")
            widgets.chart(token_loss_chart(table, theme=widgets.theme(), title=None), about=who, filters=("job",))
            widgets.numbers_behind(table, "tokens before and after")
    rows = [
        {
            "token": one["token"],
            "before": numbers.ribbon_words(one["ribbon"]),
            "after": numbers.ribbon_words(other["ribbon"]),
            "differs at steps": ", ".join(map(str, moved[one["token"]])),
        }
        for one, other in zip(old["tokens"], new["tokens"], strict=True)
        if one["token"] in moved
    ]
    widgets.numbers_behind(rows, "tokens that go another way")
