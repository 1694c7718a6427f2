"""What *Towards Distributed Neural Architectures* claims of images; figures and sections are the paper's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.measure import kept_document
from benchmarks.science.claims import (
    LINE,
    NONE,
    Claim,
    above,
    above_all,
    below,
    below_all,
    outside,
    share,
    spanned,
    untested,
    verdict,
    within,
)
from benchmarks.science.dna_rows import (
    DNA_N,
    LONG,
    VISION,
    WORDS,
    against_dense,
    dead,
    dense,
    diverse,
    known,
    knows,
    law,
    of_one,
    shown,
    slopes,
    tenths,
    tested,
)


def vision(results: dict[str, Any]) -> list[Claim]:
    models = results["models"]
    if any(name not in models for name in VISION):
        return []
    skip = models[VISION[1]]
    seen = f"{skip['samples']:,} images"
    apart = results["between"]["vision"]
    return [
        *_choices(models, VISION),
        *_compute(skip, seen),
        *_reuse(models, VISION),
        Claim(
            "figure 7: two models reuse modules on the same images",
            "good correlation",
            f"r = {spanned(apart)}",
            verdict(above(apart, 0.1), opposite=below(apart)),
            rule="the interval lies above 0.1",
            basis=f"top1 and top2; {seen}",
        ),
        Claim(
            "figure 7: skipping and reuse are not correlated",
            "low correlation",
            f"r = {spanned(skip['skip_and_reuse'])}",
            verdict(within(skip["skip_and_reuse"], 0.1), opposite=outside(skip["skip_and_reuse"], 0.1)),
            rule="the interval lies within ±0.1",
            basis=f"top2; {seen}",
        ),
        _kinds(models.get(DNA_N)),
        *_dreams(),
        untested(
            "figures 4 and 14: texture at early steps, a sharp transition to objects",
            "between steps 6 and 7",
            "dreams keep the class too seldom to date it; the page of dreams shows each step of three images",
        ),
    ]


def _choices(models: dict[str, Any], names: tuple[str, ...]) -> list[Claim]:
    """Accuracy, and what the paths of patches hold."""
    seen = f"{models[names[-1]]['samples']:,} images"

    both, each = shown(models, names), tested(models, names)
    return [
        against_dense(
            names,
            models,
            "figure 2: accuracy competitive with a dense network",
            "curves of test accuracy side by side",
            own=lambda m: spanned(m["accuracy_of_samples"], 1, 100, " %"),
            twin=lambda m: share(m["accuracy"]),
            test=lambda m: m["accuracy_of_samples"]["low"] > dense(m)["accuracy"] - 0.02,
            rule="the interval lies above the dense accuracy less 2 points",
            basis=seen,
        ),
        diverse(names, models, "figure 2: choices are more diverse near the output"),
        law(names, models, "figure 1 (c): paths are distributed as a power law", "slope of an untrained one −1"),
        slopes(names),
        Claim(
            "figures 3 and 17: patches of a path are alike in surface without training, less so once trained",
            "shown in pictures",
            both(lambda m: f"{spanned(m['alike'])}; {share(m['shared']['value'], 0)} of the tokens are on such a path")
            + f"{LINE}(1 − squared distance of mean colours on one path over that of any patches, of different images)",
            each(lambda m: m["alike"]["high"] < min(m["alike"]["untrained"])),
            rule="the interval lies below all untrained networks",
        ),
        Claim(
            "figure 3: rare paths group patches by low-level likeness, frequent ones by higher features",
            "shown in pictures: ranks 5, 15, 775, 941",
            "likeness of colour on the rarer and the more frequent of the paths that several images take (half of "
            "their tokens each): " + both(lambda m: _rare_and_common(m)),
            each(lambda m: m["alike_rare"]["low"] > m["alike_common"]["high"]),
            rule="rarer above more frequent, intervals apart",
        ),
        Claim(
            "paths tell the class of an image",
            "rare paths follow brass instruments, puzzle pieces",
            both(lambda m: known(m["class"])) + f"{LINE}(NMI above that of shuffled labels)",
            each(knows("class")),
            rule="p < 0.05 and above all untrained networks",
        ),
        Claim(
            "figure 1 (e): some paths follow objects, others background or boundary",
            "shown in pictures",
            both(lambda m: known(m["region"])) + f"{LINE}(the same, of the regions of a box)",
            each(knows("region")),
            rule="p < 0.05 and above all untrained networks",
        ),
        Claim(
            "section 3.3: images that use the least active parameters are classified rightly and with confidence",
            "a sanity check",
            "fewest and most pairs of step and module visited by any patch: " + both(lambda m: tenths(m, "visited")),
            each(*(lambda m, what=what: m[f"{what}_by_visited"]["low"] > 0 for what in ("accuracy", "confidence"))),
            rule="fewest above most, both intervals above 0",
            basis=f"1 network each; tenths of {seen}",
        ),
    ]


def _compute(skip: dict[str, Any], seen: str) -> list[Claim]:
    """What the network that may skip spends where."""
    boundary = {other: skip[f"boundary_minus_{other}"] for other in ("object", "background")}
    contrast = {what: skip[f"contrast_and_compute_of_{what}"] for what in ("images", "patches")}
    return [
        Claim(
            "(added) so are images whose patches take the least compute, and those whose patches reuse the most",
            "–",
            f"least and most compute: {tenths(skip, 'compute')}{LINE}least and most reuse: {tenths(skip, 'reuse')}",
            verdict(
                *(skip[f"{what}_by_compute"]["low"] > 0 for what in ("accuracy", "confidence")),
                *(skip[f"{what}_by_reuse"]["high"] < 0 for what in ("accuracy", "confidence")),
            ),
            rule="least compute above most, most reuse above least, all intervals apart from 0",
            basis=f"top2; tenths of {seen}",
        ),
        Claim(
            "figure 6: boundary patches get more compute",
            "shown in pictures",
            LINE.join(f"boundary less {other} {spanned(row, 4)} of the compute" for other, row in boundary.items()),
            verdict(*map(above_all, boundary.values()), opposite=all(map(below_all, boundary.values()))),
            rule="both intervals above 0 and above all untrained networks",
            basis="top2; "
            + ", ".join(f"{row['images']:,} images with boundary and {o}" for o, row in boundary.items()),
        ),
        Claim(
            "figures 6 and 16: images and patches of high compute hold more texture and edges",
            "shown in pictures",
            "correlation of contrast and compute "
            + LINE.join(f"over {what} {spanned(row, 3)}" for what, row in contrast.items()),
            verdict(*map(above_all, contrast.values()), opposite=all(map(below_all, contrast.values()))),
            rule="both intervals above 0 and above all untrained networks",
            basis=f"top2; {seen}",
        ),
        Claim(
            "figure 6: compute of images is roughly Gaussian",
            "histogram",
            f"skewness {spanned(skip['compute_skewness'])}, excess kurtosis {spanned(skip['compute_kurtosis'])}",
            verdict(abs(skip["compute_skewness"]["value"]) < 0.5 and abs(skip["compute_kurtosis"]["value"]) < 1),
            rule="skewness within ±0.5, excess kurtosis within ±1",
            basis=f"top2; {seen}",
        ),
    ]


def _reuse(models: dict[str, Any], names: tuple[str, ...]) -> list[Claim]:
    """Modules that a patch visits again."""
    seen = f"{models[names[-1]]['samples']:,} images"

    both, each = shown(models, names), tested(models, names)
    return [
        Claim(
            "section 3.3: reuse of images is roughly Gaussian",
            "histogram",
            both(lambda m: f"skewness {spanned(m['reuse_skewness'])}, kurtosis {spanned(m['reuse_kurtosis'])}"),
            each(lambda m: abs(m["reuse_skewness"]["value"]) < 0.5 and abs(m["reuse_kurtosis"]["value"]) < 1),
            rule="skewness within ±0.5, excess kurtosis within ±1",
            basis=f"1 network each; {seen}",
        ),
        Claim(
            "figure 7: images of high reuse lack an object",
            "shown in pictures",
            "correlation of reuse and the part that the object's box takes: "
            + both(lambda m: spanned(m["object_and_reuse"])),
            each(lambda m: below_all(m["object_and_reuse"])),
            rule="the interval lies below 0 and below all untrained networks",
        ),
        Claim(
            "section 3.3: modules are reused without being told to",
            "25 % (top-1), 15 % (top-2)",
            both(lambda m: spanned(m["reuse"], 1, 100, " %")),
            each(lambda m: above_all(m["reuse"])),
            rule="the interval lies above all untrained networks",
        ),
        Claim(
            "section 3.3: the module that is reused is the one with full attention",
            "said",
            "share of the image's patches that a module sees at a repeated visit less that at a first one: "
            + both(lambda m: spanned(m["repeats_attend_more"])),
            each(lambda m: above_all(m["repeats_attend_more"]), opposite=lambda m: below_all(m["repeats_attend_more"])),
            rule="the interval lies above 0 and above all untrained networks",
        ),
        dead(names, models),
    ]


def _rare_and_common(model: dict[str, Any]) -> str:
    return f"{spanned(model['alike_rare'])} and {spanned(model['alike_common'])}"


def _kinds(measured: dict[str, Any] | None) -> Claim:
    claim = "appendix F: attention early, MLP late, where modules are one or the other"
    if measured is None:
        return Claim(
            claim, "said", "no network of such modules (DNA-n) was trained", NONE, rule="–", basis="–", trained=False
        )
    steps, early = measured["attention_by_step"]["value"], measured["attention_early"]
    return Claim(
        claim,
        "said",
        "share of attention by step: "
        + ", ".join(share(value, 0) for value in steps)
        + f"{LINE}first half of the steps less the last half: {spanned(early, 2)}",
        verdict(above_all(early), opposite=below_all(early)),
        rule="the interval lies above 0 and above all untrained networks",
        basis=f"1 network, {measured['twins']} untrained; {measured['samples']:,} images",
        trained=False,
    )


def _dreams() -> list[Claim]:
    """Figures 4, 5 and 15, from dreams of images that the network never saw."""
    kept = {name: row for name, row in kept_document("dream_tests")["results"].items() if name in (*VISION, LONG)}
    if not kept:
        return [untested("figures 4, 5 and 15: dreams", "shown in pictures", "not dreamt yet")]
    images = f"{next(iter(kept.values()))['images']} images"
    iterations = f"{next(iter(kept.values()))['settings']['iterations']} of the paper's 2,048 iterations"
    grouped = f"{next(iter(kept.values()))['grouped']} images whose box has an edge"

    def each(show: Callable[[dict[str, Any]], str]) -> str:
        return LINE.join(f"{WORDS[name]}: {show(row)}" for name, row in kept.items())

    def classes(row: dict[str, Any]) -> str:
        dreams = row["all choices"]
        seen, label = (spanned(dreams[f"is_{what}"], 1, 100, " %") for what in ("answer", "label"))
        return (
            f"{seen} are of the class that the network saw in the original (dealt to others "
            f"{share(dreams['is_answer_dealt'])}), {label} of the label's; {share(dreams['matched'])} of the choices "
            "matched"
        )

    def boundaries(row: dict[str, Any]) -> str:
        kinds = {
            "in context": "boundary in context",
            "without it": "boundary",
            "in context with another image's choices": "context, another image's choices",
            "context on noise": "context alone",
        }
        shown = ", ".join(f"{words} {row[kind]['p_answer']['value']:.3f}" for words, kind in kinds.items())
        more = " and ".join(spanned(row[f"context less {other}"], 3) for other in ("another's", "alone"))
        return f"{shown}; in context less the last two {more}"

    return [
        Claim(
            "figure 4: an image dreamt from all choices is of the same kind as the original",
            "two of three of the right kind",
            each(classes),
            verdict(
                *(
                    row["all choices"]["is_answer"]["low"] > row["all choices"]["is_answer_dealt"]
                    for row in kept.values()
                ),
                *(row["all choices"]["is_answer"]["value"] > 0.5 for row in kept.values()),
            ),
            rule="above chance, and more than half",
            basis=f"{images} and {iterations}, 1 network each",
            trained=False,
        ),
        Claim(
            "figures 5 and 15: with the pixels of boundary patches as context, their choices bring the object back",
            "shown in pictures",
            "probability of the original's class: " + each(boundaries),
            verdict(
                *(above(row[f"context less {other}"]) for row in kept.values() for other in ("another's", "alone"))
            ),
            rule="both differences above 0",
            basis=f"{grouped} and {iterations}, 1 network each",
            trained=False,
        ),
    ]


longer = of_one(LONG, _choices, _reuse)
"""The same of the network that was trained five times as long, which never skips."""
