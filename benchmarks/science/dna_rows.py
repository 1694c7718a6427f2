"""Rows and cells that claims about images and about texts of *Towards Distributed Neural Architectures* share."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.measure import kept_document
from benchmarks.science.claims import (
    LINE,
    Claim,
    above_all,
    below_all,
    minus,
    share,
    spanned,
    untested,
    untrained,
    verdict,
)

VISION = ("dna-vision-top1", "dna-vision-top2-skip")
DNA_N = "dna-n-vision-top1"
TEXT = ("dna-text-top1", "dna-text-top2-skip")
LONG = "dna-vision-top1-long"
LONG_TEXT = "dna-text-top1-long"
WORDS = {name: name.rpartition("dna-")[2].split("-", 1)[1].replace("-skip", "") for name in (*VISION, *TEXT)}
WORDS |= {LONG: "60 epochs", LONG_TEXT: "4 passes"}
"""how rows call a model: top1, top2"""


def images(results: dict[str, Any]) -> str:
    """What most rows about images rest on."""
    return _basis(results["models"].get(VISION[0]), "images")


def long_images(results: dict[str, Any]) -> str:
    """What rows about the network that was trained for longer rest on."""
    return _basis(results["models"].get(LONG), "images")


def long_texts(results: dict[str, Any]) -> str:
    """What rows about the network for texts that was trained for longer rest on."""
    return _basis(results["models"].get(LONG_TEXT), "texts")


def texts(results: dict[str, Any]) -> str:
    """What most rows about texts rest on."""
    return _basis(results["models"].get(TEXT[0]), "texts")


def _basis(model: dict[str, Any] | None, what: str) -> str:
    return f"1 network each, {model['twins']} untrained; {model['samples']:,} {what}" if model else "–"


def images_anew(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As ``results``, of the networks for images that were trained under other seeds."""
    return _anew(results, VISION)


def long_images_anew(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As ``results``, of the networks for images that were trained longest under other seeds."""
    return _anew(results, (LONG,))


def texts_anew(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As ``results``, of the networks for texts that were trained under other seeds."""
    return _anew(results, TEXT)


def _anew(results: dict[str, Any], names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """By seed, if all its networks were trained; untrained networks and dense twins are those of the shipped ones."""
    found = {}
    for seed, models in sorted(results.get("anew", {}).items(), key=lambda item: int(item[0])):
        if all(name in models for name in names):
            own = {name: _beside(models[name], results["models"][name]) for name in names}
            pairs = results["between_anew"][seed]
            found[seed] = {**results, "models": results["models"] | own, "between": pairs}
    return found


def _beside(figures: Any, shipped: Any) -> Any:
    """Figures with what only those of the shipped network have: untrained networks, and the dense twin."""
    if not isinstance(figures, dict) or not isinstance(shipped, dict):
        return figures
    filled = {key: _beside(value, shipped.get(key)) for key, value in figures.items()}
    for key in ("untrained", "untrained_law", "dense_twin"):
        if key in shipped and not filled.get(key):
            filled[key] = shipped[key]
    return filled


def shown(models: dict[str, Any], names: tuple[str, ...]) -> Callable[[Callable[[dict[str, Any]], str]], str]:
    """Puts what is shown of each of these networks into a cell."""
    return lambda show: LINE.join(f"{WORDS[name]}: {show(models[name])}" for name in names)


def tested(models: dict[str, Any], names: tuple[str, ...]) -> Callable[..., str]:
    """The verdict on the tests of each of these networks, each of which is a setting; ``opposite`` is asked of the
    whole network."""

    def of(*tests: Callable[[dict[str, Any]], bool], opposite: Callable[[dict[str, Any]], bool] | None = None) -> str:
        settings = [test(models[name]) for name in names for test in tests]
        return verdict(*settings, opposite=opposite is not None and all(opposite(models[name]) for name in names))

    return of


def dense(model: dict[str, Any]) -> dict[str, Any]:
    """The dense twin as the card has it."""
    twin: dict[str, Any] = model["validation"]["dense_twin"]
    return twin


def against_dense(
    names: tuple[str, ...],
    models: dict[str, Any],
    claim: str,
    paper: str,
    *,
    own: Callable[[dict[str, Any]], str],
    twin: Callable[[dict[str, Any]], str],
    test: Callable[[dict[str, Any]], bool],
    rule: str,
    basis: str,
) -> Claim:
    """Networks beside their dense twins, of which ``own`` and ``twin`` say the number; untested where one has none."""
    both = shown(models, names)
    if not all("dense_twin" in models[name]["validation"] for name in names):
        return untested(claim, paper, f"{both(own)}; no dense network was trained as long")
    cell = both(lambda model: f"{own(model)}, dense {twin(dense(model))}")
    return Claim(claim, paper, cell, tested(models, names)(test), rule=rule, basis=f"1 network each, 1 dense; {basis}")


def of_one(name: str, *parts: Callable[[dict[str, Any], tuple[str, ...]], list[Claim]]) -> Callable[..., list[Claim]]:
    """The rows of these parts about one network alone; none where it was not measured."""

    def rows(results: dict[str, Any]) -> list[Claim]:
        models = results["models"]
        return [row for part in parts for row in part(models, (name,))] if name in models else []

    return rows


def diverse(names: tuple[str, ...], models: dict[str, Any], claim: str) -> Claim:
    """How evenly modules are used, step by step."""

    def steps(name: str) -> str:
        one = models[name]["diversity"]
        blank = [statistics.fmean(values) for values in zip(*one["untrained"], strict=True)]
        shown = [", ".join(f"{v:.1f}" for v in values) for values in (one["value"], blank)]
        return f"{WORDS[name]}: {shown[0]} (even use: {models[name]['most_diverse']:.1f}), untrained {shown[1]}"

    gains = [models[name]["diversity_gain"] for name in names]

    return Claim(
        claim,
        "shown in figures",
        "effective top-k of active modules by step, "
        + LINE.join(map(steps, names))
        + f"{LINE}last step less first: "
        + "; ".join(f"{WORDS[name]} {spanned(models[name]['diversity_gain'])}" for name in names),
        verdict(*map(above_all, gains), opposite=all(map(below_all, gains))),
        rule="the gain lies above 0 and above that of all untrained networks",
    )


def law(names: tuple[str, ...], models: dict[str, Any], claim: str, paper: str) -> Claim:
    """Whether counts of paths follow a power law."""

    def fitted(law: dict[str, Any]) -> str:
        if law["alpha"] is None:
            return "no fit"
        against = "" if law["against_lognormal"] is None else f", beside a lognormal {law['against_lognormal']:+.1f} σ"
        p_value = "" if law["p_value"] is None else f", p = {law['p_value']:.2f}"
        held = f"{share(law['tail_of_paths'], 0)} of the paths, {share(law['tail_of_tokens'], 0)} of the tokens"
        return minus(f"slope {law['slope']:.2f} (α = {law['alpha']:.2f}) over {held}{p_value}{against}")

    def stands(law: dict[str, Any]) -> bool:
        if law["p_value"] is None or law["p_value"] <= 0.1 or law["tail_of_tokens"] < 0.5:
            return False
        return (law["against_lognormal"] or 0) > -2

    return Claim(
        claim,
        paper,
        LINE.join(
            f"{WORDS[name]}{words}: {fitted(law)}"
            for name in names
            for words, law in (("", models[name]["law"]), (", untrained", models[name]["untrained_law"][0]))
        ),
        verdict(*(stands(models[name]["law"]) for name in names)),
        rule="a law over half of the tokens or more that is not refused (p > 0.1), and no lognormal better by 2 σ",
        basis="1 network and 1 untrained each",
    )


def slopes(names: tuple[str, ...]) -> Claim:
    """The slope of path frequencies beside an untrained network and shuffled steps."""
    kept = kept_document("checkpoints")["results"]

    def last(name: str) -> str:
        ends = {whose: kept[name]["slopes"][whose][-1] for whose in ("observed", "untrained", "independent")}
        shown = [f"{end['window_slope']:.2f}" for end in ends.values()]
        tokens = f"{ends['observed']['num_tokens']:,} tokens"
        return minus(f"{WORDS[name]}: {shown[0]}, untrained {shown[1]}, steps shuffled {shown[2]} ({tokens})")

    steeper = [
        kept[name]["slopes"]["observed"][-1]["window_slope"] < kept[name]["slopes"]["untrained"][-1]["window_slope"]
        for name in names
    ]
    return Claim(
        "(added) training makes the curve of path frequencies steeper in ranks 10 to 1,000",
        "–",
        "slope: " + LINE.join(map(last, names)) + f"{LINE}over all ranks it depends on the number of "
        "tokens, so the paper's exponents cannot be compared with ours",
        verdict(*steeper),
        rule="trained below untrained (no interval: not tested against chance)",
        basis="1 network and 1 untrained each",
        trained=False,
    )


def known(row: dict[str, Any]) -> str:
    """What paths know of an attribute."""
    return f"{row['value']:.3f} (p ≤ {row['p_value']:.2f}){untrained(row['untrained'], 3)}"


def knows(what: str) -> Callable[[dict[str, Any]], bool]:
    """The rule of ``known``."""
    return lambda m: m[what]["p_value"] < 0.05 and m[what]["value"] > max(m[what]["untrained"])


def tenths(model: dict[str, Any], key: str) -> str:
    """Accuracy and confidence of the samples with the least and the most of something."""
    return ", ".join(f"{what} {pair(model[f'{what}_by_{key}'])}" for what in ("accuracy", "confidence"))


def pair(row: dict[str, Any]) -> str:
    """Two tenths and how far they are apart."""
    ends = minus(f"{100 * row['low']:+.1f} … {100 * row['high']:+.1f} points apart")
    return f"{share(row['lowest'])} and {share(row['highest'])} ({ends})"


def dead(names: tuple[str, ...], models: dict[str, Any]) -> Claim:
    """Modules that no token visits."""
    rows = {name: models[name]["usage"] for name in names}
    shown = [
        f"{WORDS[name]}: {row['dead']} of {row['modules']} modules never visited; {share(row['dead_at_a_step'])} of "
        "all pairs of step and module"
        for name, row in rows.items()
    ]
    return Claim(
        "appendix B: modules that nobody visits are rare",
        "histograms",
        LINE.join(shown),
        verdict(*(row["dead"] <= row["modules"] / 10 for row in rows.values())),
        rule="at most a tenth of the modules",
    )
