"""Runs that nobody designs a chart for: one path, one token, one label, none; a twin that knows nothing."""

from __future__ import annotations

import json
import types
from dataclasses import replace

import numpy as np
import pytest

from tests.frontend.test_charts import FIT
from tests.support.runs import make, open_run
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.frontend import charts as package
from tokenpaths.frontend.charts.drawing.tables import csv_files, tables_of, zip_of
from tokenpaths.frontend.charts.knowledge import (
    knowledge_chart,
    knowledge_words,
    modules_first,
    preferred_words,
    search_words,
)
from tokenpaths.frontend.charts.usage import top_k_chart
from tokenpaths.frontend.figures import KINDS, Wishes, draw_figures, flows
from tokenpaths.frontend.figures.files import files_of
from tokenpaths.frontend.views.modules.modules import balance_words


def one_token():
    made = make("token", samples=1, steps=3, modules=4, identities=1, labels=False, twin=True)
    (batch,) = made.batches
    keep = slice(0, 1)
    fields = ("module_ids", "weights", "gate_entropy", "flops", "row", "col", "region")
    cut = {name: values[keep] for name in fields if (values := getattr(batch, name, None)) is not None}
    record = replace(batch.samples[0], num_tokens=1)
    return replace(made, batches=[replace(batch, samples=[record], **cut)], twin=made.twin[keep])


def still_twin():
    """An untrained twin all of whose tokens take one path."""
    made = make("still", "text", samples=4, steps=3, modules=4, identities=1)
    return replace(made, twin=np.repeat(made.twin[:1], len(made.twin), axis=0))


def short_twin():
    """A twin that was traced for some of the tokens only."""
    made = make("short", "text", samples=4)
    return replace(made, twin=made.twin[:-3])


def one_label():
    made = make("label", samples=5)
    batches = [replace(b, samples=[replace(s, label="cat") for s in b.samples]) for b in made.batches]
    return replace(made, batches=batches)


RUNS = {
    "one path": lambda: make("path", samples=3, steps=1, modules=1, identities=0),
    "one token": one_token,
    "one label": one_label,
    "no labels": lambda: make("none", "text", samples=3, labels=False),
    "one sample": lambda: make("sample", "text", samples=1, labels=False, twin=False),
    "every module": lambda: make("all", samples=4, steps=2, modules=3, identities=0, top_k=3),
    "a twin of one path": still_twin,
    "a twin of some tokens": short_twin,
}


@pytest.fixture(scope="module", params=RUNS, ids=lambda name: name.replace(" ", "-"))
def run(request, tmp_path_factory):
    with Run.open(RUNS[request.param]().write(tmp_path_factory.mktemp("undesigned"))) as opened:
        opened.called = request.param
        yield opened


def test_answers_hold_no_nan_and_say_what_is_missing(run):
    told, info, usage = run.knowledge(), run.info(), run.usage()
    json.dumps([told, info, usage], allow_nan=False)
    assert told["properties"] or told["reason"]
    twins = [row["untrained_nmi"] is not None for row in told["properties"]]
    assert all(twins) if told["untrained_reason"] is None else not any(twins)
    if run.called == "a twin of some tokens":
        assert told["untrained_reason"] == "the untrained twin was traced for some of the tokens only"
        assert all(row["untrained_nmi"] is None for row in info["associations"])
    if run.called == "a twin of one path":
        assert {row["untrained_nmi"] for row in told["properties"]} == {0.0}
        assert {row["untrained_p_value"] for row in told["properties"]} == {1.0}
        assert "The untrained model's paths predict none of these." in knowledge_words(told)
    words = balance_words(usage)
    assert words.endswith((".", "(0 = even)."))
    assert "nan" not in words.lower()


def test_the_least_even_step_is_told_by_all_its_modules():
    """By the entropy of its load; the busiest module alone stands above the chart."""
    steps = [
        {"step": 0, "load_entropy": 0.9, "importance_cv2": 0.2},
        {"step": 1, "load_entropy": 0.7, "importance_cv2": 0.1},
        {"step": 2, "load_entropy": None, "importance_cv2": None},
    ]
    assert balance_words({"steps": steps}) == (
        "Least evenly at step 1: load entropy 0.700 (1 = even). By weight at step 0: importance CV² 0.200 (0 = even)."
    )
    even = [{"step": 0, "load_entropy": 0.9999}, {"step": 1, "load_entropy": None}]
    assert balance_words({"steps": even}).startswith("At every step the load is nearly even")
    assert balance_words({"steps": even[1:]}) == "No load is known."


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_charts_hold_no_nan_and_no_empty_axis(run, theme):
    charts = [top_k_chart(run.usage(), theme=theme)]
    told = run.knowledge()
    if told["properties"]:
        charts.append(knowledge_chart(told, theme=theme))
    for chart in charts:
        spec = chart.to_dict()
        text = json.dumps(spec)
        assert "NaN" not in text
        assert "Infinity" not in text
        assert all(rows for rows in spec["datasets"].values()) if "datasets" in spec else True


def test_figures_are_drawn_or_say_why(run):
    kinds = [kind for kind in KINDS if kind.name in ("knows", "family", "fig2", "fig13")]
    for kind, figures, why in draw_figures(run, Wishes(law_draws=0), kinds, (UserError,)):
        assert bool(figures) != bool(why), kind.name
        for figure in figures:
            for content in files_of(figure, ("svg", "csv"), 89.0).values():
                assert b"NaN" not in content


def test_a_search_that_leaves_nothing_to_compare_is_a_sentence(run):
    found = run.search_tokens(ranks=(1, 1))
    json.dumps(found, allow_nan=False)
    assert search_words(found, "on path 1")
    assert preferred_words(found)
    assert modules_first(found) in (True, False)
    files = csv_files(tables_of({"search": found}))
    assert all("nan" not in content.lower().split(",") for content in files.values())
    assert zip_of(files)[:2] == b"PK"


def test_the_axes_of_few_paths_and_of_equal_shares_have_more_than_one_tick():
    few = [{**point, "rank": rank} for rank, point in enumerate(FIT["observed"]["points"][:4], 1)]
    chart = package.rank_frequency_chart({"observed": FIT["observed"] | {"points": few}}).to_dict()
    axes = [
        layer["encoding"]["x"]["axis"] for layer in chart["layer"] if "axis" in layer.get("encoding", {}).get("x", {})
    ]
    assert {tuple(axis["values"]) for axis in axes} == {(1, 2, 3, 4)[: len(few)]}
    samples = [{"sample": i, "label": None, "compute": 0.5 + i / 10, "reuse": 0.0} for i in range(4)]
    nothing = {"reason": "the reuse of every sample is 0", "groups": []}
    layer = package.skip_reuse_chart(samples, nothing).to_dict()["layer"][0]
    assert layer["encoding"]["y"]["scale"]["domain"] == [0.0, 0.1]
    assert "domain" not in layer["encoding"]["x"]["scale"]


def test_a_stand_in_without_a_token_is_neither_dead_nor_passed_over():
    """Where each step has its own modules, a stand-in for doing nothing is marked like a dead module, but is none."""
    run = open_run(samples=4)
    usage, info = run.usage(), run.info()
    own = {**info, "modules": [{**module, "step": 0} for module in info["modules"]]}
    cells = [row | {"kind": "identity" if row["module"] == 1 else "mlp"} for row in usage["usage"]]
    cells = [row | {"count": 0 if row["module"] == 1 and row["step"] == 0 else 5} for row in cells]
    source = types.SimpleNamespace(usage=lambda: {**usage, "usage": cells}, info=lambda: own)
    (per_step,) = flows.module_counts(source, Wishes())
    assert f"×: no token came, as at 1 of {len(cells)} cells." in per_step.caption
    assert "No module is dead: each got a token at its step. Not counted: 1 stand-in for" in per_step.caption


def test_names_are_a_table_of_two_columns():
    names = {"module:0.3": "block 3 · ends of words", "path:2": "path 2 · mine"}
    assert csv_files(tables_of({"flow": {"nodes": [{"step": 0}]}, "names": names}))["names.csv"].splitlines() == [
        "thing,name",
        "module:0.3,block 3 · ends of words",
        "path:2,path 2 · mine",
    ]


def test_sentences_of_ties_and_of_noise_claim_nothing():
    """Direction words stand only beside numbers that read differently, and the most of equals is not named."""
    from tokenpaths.frontend.charts import distributions, load_over_time, training_curve, work
    from tokenpaths.frontend.charts.families import directional_gates, gate_worth, hmodel_connections
    from tokenpaths.frontend.charts.flow import flow_contrast
    from tokenpaths.frontend.charts.several_runs import training_maps
    from tokenpaths.frontend.views.family.dipaco import rerouting_words

    curve = [{"iteration": i, "val_loss": loss} for i, loss in ((100, 2.0), (200, 1.8), (300, 2.0))]
    told = training_curve.curve_words(curve)
    assert "was 2.00 nats at iteration 100 and at iteration 300" in told
    spread = {"num": 500, "mean": 0.9, "std": 0.1, "median": 1.0, "q01": 0.25, "q99": 1.0, "min": 0.2, "max": 1.0}
    assert distributions.distribution_words(spread).endswith("; 1st to 99th percentile 0.250 to 1.00.")
    assert distributions.distribution_words({**spread, "num": 9}).endswith("all lie from 0.200 to 1.00.")
    even = {
        "labels": [{"label": "a", "overlap": 1.0, "counts": [3, 1], "choices": 4}],
        "all": [3, 1],
        "modules": [0, 1],
    }
    assert load_over_time.label_load_words(even) == "Every domain loads the experts as all tokens do."
    heads = [
        {"layer": 0, "head": h, "rise": rise, "clear": clear}
        for h, rise, clear in ((0, 0.002, False), (1, -0.004, True))
    ]
    assert gate_worth.head_words({"heads": heads}).startswith("The loss falls most without layer 0, head 1, by 0.00400")
    assert gate_worth.head_words({"heads": heads[:1]}) == "No head clearly changes the loss"
    assert "as much as the 25.0 %" in hmodel_connections.self_share_words(0.25, 4)
    assert directional_gates.specialist_words([0.0, 0.0]) == "No head is a specialist."
    assert directional_gates.variance_words([[0.0, 0.0]]) == "No head’s gates differ between domains."
    kinds = {"shares": [{"kind": "mlp", "step": s, "share": 1.0} for s in (0, 1)]}
    assert work.kind_share_words(kinds) == "Modules of kind mlp take 100 % of the choices of each step."
    assert rerouting_words([{"W": None, "perplexity": 12.3}, {"W": 64, "perplexity": 12.3}], []).startswith(
        "Choosing every 64 tokens leaves perplexity at 12.300. "
    )
    node = {"step": 1, "module": 3, "kind": "mlp", "before": 0.49952, "after": 0.5005, "change": 0.00098}
    words = flow_contrast.contrast_words({"nodes": [node]}, "cat", "dog")
    assert words == "They differ most at step 1: 50.05 % of the tokens of cat visit module 3, 49.95 % of those of dog."
    places = [
        {"iteration": label, "run": label, "steps": [{"step": s, "load_entropy": v} for s, v in enumerate(values)]}
        for label, values in ((10, (0.6, 0.6, 0.6, 0.9)), (20, (0.8, 0.8, 0.8, 0.5)))
    ]
    said = training_maps.training_words({"points": places}, "load_entropy")
    assert said.endswith("most at step 0."), said
