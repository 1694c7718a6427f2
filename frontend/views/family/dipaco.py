"""Family view of DiPaCo: tree of paths, labels by path, shared modules, and rerouting along one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import streamlit as st

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.ink import path_ink
from tokenpaths.frontend.charts.drawing.palette import ink_on, mix
from tokenpaths.frontend.charts.drawing.running_text import tamed, text_pieces
from tokenpaths.frontend.charts.families import dipaco_rerouting, dipaco_shards
from tokenpaths.frontend.formulas import OF_TOKENS
from tokenpaths.frontend.page import address, widgets
from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.samples import retrace
from tokenpaths.frontend.views.work import training

TITLE = "Documents"
LISTED = 300
MOST_ASKED = 2000
"""asked for at once: more than a model of this family has"""
FEW = 6
"""with at most this many paths, another chart fits below the matrix"""
AGAIN = retrace.Control(
    "reroute_every",
    "Path chosen anew",
    "Runs this document again through the model, with its learned router deciding every W tokens.",
    (None, 64, 32, 16),
    named={None: "as in this run", 64: "every 64 tokens", 32: "every 32 tokens", 16: "every 16 tokens"},
)
HELP = {
    "tree": (
        "A path picks one module per level; its shard is what is sent to it. Shares are of tokens; where the router "
        "decides once per document, all tokens of a document take one path. Colour of a path: share of the run’s "
        "tokens on more frequent paths, and half of that on equally frequent ones."
    ),
    "sharing": (
        "Paths in one column train the same module together: after every τ iterations the module moves by the mean of "
        "their changes, weighted by the size of their shards."
    ),
    "rerouting": (
        "Perplexity = exp(mean loss of the next token), routing prefix left out. W = tokens between two decisions of "
        "the learned router; the text is then read again by the new path."
    ),
    "strip": (
        "Position t predicts token t+1, and belongs to decision max(0, t + 1 − prefix) / W, rounded down, of its "
        "context window. Decision 0 is that of the document’s router. Predictions of the prefix itself have no "
        "loss: its tokens chose the path."
    ),
}
Paths = dipaco_shards.Paths


def draw(run: Mapping[str, Any], selection: Selection) -> None:
    """Draw the family view of one DiPaCo run."""
    with common.run_row(run):
        common.label_picker(run, selection)
    paths = widgets.client().ask(run["run"], "paths", most=MOST_ASKED, label=selection.label)
    if not paths["paths"]:
        widgets.empty("No document has this label.", "Let go of the label above.")
        return
    by_label = _by_label(run, selection, paths["paths"])
    drawn = paths["paths"][: dipaco_shards.MOST_PATHS]
    with widgets.error_boundary("the way of the documents"):
        _tree(run, selection, by_label, paths, drawn)
    left, right = st.columns(2, gap="large")
    with left, widgets.error_boundary("labels and paths"):
        _labels(run, by_label, drawn)
    with right, widgets.error_boundary("what paths share"):
        _sharing(run, drawn)
    with left if len(drawn) > FEW else right, widgets.error_boundary("perplexity"):  # if there is room
        _rerouting(run)
    with widgets.error_boundary("perplexity by phase"):
        training.phases(run, selection)
    with widgets.error_boundary("one document"):
        _document(run, selection)


def _by_label(run: Mapping[str, Any], selection: Selection, paths: Paths) -> dict[str, Paths]:
    """Rows of paths for each label, the largest labels first; the smallest of many labels merged."""
    if selection.label is not None:
        return {selection.label: paths}
    client = widgets.client()
    return dipaco_shards.ways(
        run["labels"], paths, lambda label: client.ask(run["run"], "paths", most=MOST_ASKED, label=label)["paths"]
    )


def _tree(
    run: Mapping[str, Any], selection: Selection, by_label: Mapping[str, Paths], paths: Mapping[str, Any], drawn: Paths
) -> None:
    st.header(dipaco_shards.TREE, anchor=False, help=HELP["tree"])
    st.caption(widgets.escape(tree_words(run, selection, paths)))
    widgets.verdict(dipaco_shards.busiest_words(paths))
    ranks = {path["rank"] for path in drawn}
    shown = {label: [path for path in rows if path["rank"] in ranks] for label, rows in by_label.items()}
    inks = {dipaco_shards.modules_of(path): path for path in paths["paths"]}
    drawing = dipaco_shards.tree_chart(shown, inks, theme=widgets.theme(), title=None)
    widgets.chart(drawing, filters=("label", "labels"))
    words = "Height of a bar and width of a band: share of the tokens. The bar of a path is its shard."
    st.caption(words + dipaco_shards.hidden_words(paths))
    widgets.numbers_behind(dipaco_shards.tree_rows(shown), "bands (level.module)", **OF_TOKENS)
    widgets.numbers_behind(
        [
            {
                "path": dipaco_shards.path_name(dipaco_shards.modules_of(p)),
                **{k: p[k] for k in ("rank", "count", "share", "cdf")},
            }
            for p in paths["paths"]
        ],
        "shards, one row a path",
        **OF_TOKENS,
    )


def tree_words(run: Mapping[str, Any], selection: Selection, paths: Mapping[str, Any]) -> str:
    """How many documents take how many of the possible paths, and how often the path is chosen."""
    config = settings(run)
    possible = 1
    for size in config["levels"]:
        possible *= int(size)
    documents = run["num_samples"]
    if selection.label is not None:
        documents = next((r["num_samples"] for r in run["labels"] if r["label"] == selection.label), documents)
    every = config.get("reroute_every")
    once = f"A document chooses its path once, a longer one in each window of {int(config['context']):,} tokens."
    routed = f"The path is chosen anew every {every} tokens." if every else once
    return (
        f"{numbers.plural(documents, 'document')} on {numbers.count(paths['num_paths'])} of "
        f"{numbers.plural(possible, 'path')} ({' × '.join(map(str, config['levels']))} modules). {routed}"
    )


def settings(run: Mapping[str, Any]) -> dict[str, Any]:
    """The model's configuration in this run; controls of the trace take precedence."""
    return {**run["config"], **(run["config"].get("controls") or {})}


def _labels(run: Mapping[str, Any], by_label: Mapping[str, Paths], drawn: Paths) -> None:
    st.subheader("Which labels take which path?", anchor=False, help=widgets.HELP["nmi"])
    if all(row["label"] is None for row in run["labels"]):
        widgets.empty("This run has no labels to compare.", "Trace a data set with labels.")
        return
    ordered = sorted(drawn, key=lambda path: tuple(reversed(dipaco_shards.modules_of(path))))
    table = dipaco_shards.label_path_rows(by_label, ordered)
    widgets.verdict(nmi_words(run["associations"]))
    drawing = dipaco_shards.label_path_chart(table, theme=widgets.theme(), title=None)
    widgets.chart(drawing, filters=("label", "labels"))
    st.caption("Per cent of the label’s tokens; a row adds up to 100.")
    widgets.numbers_behind(table, "labels and paths")


def nmi_words(associations: Sequence[Mapping[str, Any]]) -> str:
    """NMI of paths with the label, compared with shuffled labels."""
    row = next((row for row in associations if row["attribute"] == "label" and row.get("nmi") is not None), None)
    if row is None:
        return "There are not two labels, or too few samples of them, so whether paths know them cannot be said."
    far = row["p_value"] is not None and row["p_value"] <= 0.05
    return (
        f"Paths tell {'more than chance' if far else 'not surely more than chance'} about the label: NMI "
        f"{numbers.number(row['nmi'])}, shuffled {numbers.number(row['null_mean'])} ± "
        f"{numbers.number(row['null_std'])} ({numbers.p_words(row['p_value'], row.get('shuffles'))}, whole run)."
    )


def _sharing(run: Mapping[str, Any], drawn: Paths) -> None:
    st.subheader("Which paths share which module?", anchor=False, help=HELP["sharing"])
    ordered = sorted(drawn, key=dipaco_shards.modules_of)
    table = dipaco_shards.sharing_rows(ordered)
    widgets.chart(
        dipaco_shards.sharing_chart(
            table, [int(n) for n in run["config"]["levels"]], theme=widgets.theme(), title=None
        ),
        filters=("label",),
    )
    own = run["config"].get("path_blocks") or []
    st.caption(
        "One row: one path. Dots in one column: paths that share this module; larger: more tokens. An empty column is "
        "a module that nobody takes."
        + (f" Besides, every path has {numbers.plural(len(own), 'block')} of its own." if own else "")
    )
    widgets.numbers_behind(table, "paths and modules")


def _rerouting(run: Mapping[str, Any]) -> None:
    st.subheader("Does it help to choose the path again along the way?", anchor=False, help=HELP["rerouting"])
    by_w, baselines = dipaco_rerouting.rerouting_rows(run["findings"].get("validation") or {}, run["model"])
    if not by_w and not baselines:
        widgets.empty(
            "The checkpoint of this run does not say what it was measured at.",
            "The shipped DiPaCo models do: perplexity by W, and of the baselines.",
        )
        return
    widgets.chart(dipaco_rerouting.rerouting_chart(by_w, baselines, theme=widgets.theme(), title=None))
    st.caption(widgets.escape(f"{rerouting_words(by_w, baselines)} {perplexity_data(run)}"))
    widgets.numbers_behind([*by_w, *baselines], "perplexities (W empty: once per document)")


def perplexity_data(run: Mapping[str, Any]) -> str:
    """Which loss the perplexity of the checkpoint belongs to, beside that of the run's own documents."""
    loss = (run["findings"].get("validation") or {}).get("loss")
    as_loss = f"Once per document it is a loss of {numbers.number(loss)} nats." if loss is not None else ""
    return (as_loss + common.own_loss_words(run)).strip()


def rerouting_words(by_w: Sequence[Mapping[str, Any]], baselines: Sequence[Mapping[str, Any]]) -> str:
    """Effect of more frequent rerouting, in one sentence."""
    words = "Perplexity on the checkpoint’s validation texts; lower is better. Dashed: other models from the same base."
    once = next((row["perplexity"] for row in by_w if row["W"] is None), None)
    often = min((row for row in by_w if row["W"]), key=lambda row: row["W"], default=None)
    if once is None or often is None:
        return words
    change = 1 - often["perplexity"] / once
    verb = "lowers" if change > 0 else "raises"
    before, after = (numbers.number(perplexity, 5) for perplexity in (once, often["perplexity"]))
    if before == after:
        return f"Choosing every {often['W']} tokens leaves perplexity at {before}. " + words
    return (
        f"Choosing every {often['W']} tokens {verb} perplexity by {numbers.percent(abs(change))}, from "
        f"{before} to {after}. " + words
    )


def _document(run: Mapping[str, Any], selection: Selection) -> None:
    st.header("How does the path change along one document?", anchor=False, help=HELP["strip"])
    number = _picker(run, selection)
    if number is None:
        widgets.empty("No document has this label.", "Let go of the label above.")
        return
    sample, config = widgets.client().ask(run["run"], "samples/{sample}", sample=number), settings(run)
    if not sample["tokens"]:
        widgets.empty("This document has no tokens.", "Choose another one.")
        return
    if config.get("rerouter"):
        values = retrace.changes(selection, [AGAIN])
        retrace.control_widgets([AGAIN], values)
        after = retrace.again(run, sample, values) if values else None
        if after is not None:
            before, sample = sample, widgets.client().ask(after["run"], "samples/{sample}", sample=0)
            known = widgets.client().ask(run["run"], "paths", most=MOST_ASKED)["paths"]  # of all labels
            sample = {**sample, "tokens": recoloured(sample["tokens"], known)}
            config = config | values
            st.caption(widgets.escape(loss_words(before, sample)))
    starts = dipaco_rerouting.decisions(
        len(sample["tokens"]), int(config["prefix"]), config.get("reroute_every"), int(config["context"])
    )
    parts = dipaco_rerouting.chunks(sample["tokens"], starts)
    st.caption(widgets.escape(chunk_words(parts, config)))
    widgets.chart(dipaco_rerouting.strip_chart(parts, theme=widgets.theme(), title=None), about=f"sample {number:,}")
    if sample.get("text"):
        st.html(running_text(sample, parts))
    widgets.numbers_behind(dipaco_rerouting.chunk_rows(parts), "chunks of this document")


def _picker(run: Mapping[str, Any], selection: Selection) -> int | None:
    """Document picker; the default is the document with the most paths."""
    samples = widgets.client().ask(run["run"], "samples", most=LISTED, label=selection.label)["samples"]
    rows = {row["sample"]: row for row in samples}
    richest = max(samples, key=lambda row: (row.get("num_distinct_paths") or 0, -row["sample"]), default=None)
    number = selection.sample if selection.sample is not None else richest and richest["sample"]
    if number is None:
        return None
    options = list(rows) if number in rows else [number, *rows]

    def words(value: int) -> str:
        row = rows.get(value)
        if row is None:
            return f"sample {value:,}"
        text = tamed(row.get("snippet") or "").replace("\n", " ")[:50]
        taken = numbers.plural(row.get("num_distinct_paths"), "path")
        return " · ".join(filter(None, (f"{value:,}", row.get("label"), taken, text)))

    address.bound(st.selectbox, "sample", "Document", number, options, format_func=words)
    return number


def recoloured(tokens: Sequence[Mapping[str, Any]], paths: Paths) -> list[dict[str, Any]]:
    """Tokens of another trace with the rank and counts that their paths have in this run; it may not know them."""
    names = ("rank", "cdf", "cdf_middle", "path_tokens")
    known = {dipaco_shards.modules_of(path): {name: path[name] for name in names} for path in paths}
    unknown = dict.fromkeys(names[:-1]) | {"path_tokens": 0}
    return [{**token, **known.get(dipaco_shards.modules_of(token), unknown)} for token in tokens]


def loss_words(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Whether rerouting reduced the loss of this document."""
    if before.get("loss") is None or after.get("loss") is None:
        return "Run again."
    change = after["loss"] - before["loss"]
    new, old = numbers.number(after["loss"]), numbers.number(before["loss"])
    if new == old:
        return f"Run again: mean loss {new} nats, as in this run."
    return f"Run again: mean loss {new} nats, {'lower' if change < 0 else 'higher'} than in this run ({old})."


def chunk_words(parts: Sequence[dipaco_rerouting.Chunk], config: Mapping[str, Any]) -> str:
    """How often the router decided for this document, and how often the path changed."""
    changes = sum(a.modules != b.modules for a, b in zip(parts, parts[1:], strict=False))
    context = int(config["context"])
    where = "" if config.get("reroute_every") else f", once in each window of {context:,} tokens,"
    taken = len({part.modules for part in parts})
    if len(parts) == 1:
        tail = (
            " This run routes once per document; a model with a learned router can choose anew along the way."
            if not config.get("reroute_every")
            else " It is too short to be routed again."
        )
        return f"The router decided once; all {parts[0].end:,} tokens take path {_name(parts[0])}.{tail}"
    return (
        f"The router decided {numbers.plural(len(parts), 'time')}{where} and changed the path "
        f"{numbers.plural(changes, 'time')}, over {numbers.plural(taken, 'different path', 'different paths')}."
    )


def _name(part: dipaco_rerouting.Chunk) -> str:
    return dipaco_shards.path_name(part.modules)


def running_text(sample: Mapping[str, Any], parts: Sequence[dipaco_rerouting.Chunk]) -> str:
    """The text with a tag wherever the path changes; all text is escaped."""
    theme = widgets.theme()
    owner = {token: index for index, part in enumerate(parts) for token in range(part.first, part.end)}
    texts = [""] * len(parts)
    index = 0
    for piece in text_pieces(sample["text"], sample["tokens"]):
        index = owner.get(piece.tokens[0], index) if piece.tokens else index
        texts[index] += piece.text
    spans = []
    for place, (part, text) in enumerate(zip(parts, texts, strict=True)):
        colour = path_ink(part.path, theme).colour
        paper = mix(colour, theme.background, 0.2)
        changed = place == 0 or parts[place - 1].modules != part.modules
        tag = (
            f'<b style="background:{colour};color:{ink_on(colour)};border-radius:3px;padding:1px 5px;margin:0 3px;'
            f'font-size:12px;white-space:nowrap;unicode-bidi:isolate">{escape(_name(part))}</b>'
            if changed
            else f'<span style="color:{theme.muted}" title="the router decided again: same path">·|·</span>'
        )
        title = f"path {_name(part)}, tokens {part.first:,} to {part.end - 1:,}, loss {numbers.number(part.loss)} nats"
        spans.append(
            f'{tag}<span title="{escape(title)}" style="background:{paper};color:{theme.ink};'
            f'padding:2px 0">{escape(tamed(text))}</span>'
        )
    return (
        '<div dir="auto" tabindex="0" role="region" aria-label="Text of the document, tagged with its paths" '
        'style="white-space:pre-wrap;overflow-wrap:anywhere;line-height:1.75;max-height:430px;overflow-y:auto;'
        f'font-size:15px">{"".join(spans)}</div>'
    )
