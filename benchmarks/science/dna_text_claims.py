"""What *Towards Distributed Neural Architectures* claims of texts; figures and sections are the paper's."""

from __future__ import annotations

import statistics
from typing import Any

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
    untrained,
    verdict,
    within,
)
from benchmarks.science.dna_rows import (
    LONG_TEXT,
    TEXT,
    VISION,
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
    tested,
)


def text(results: dict[str, Any]) -> list[Claim]:
    models = results["models"]
    if any(name not in models for name in TEXT):
        return []
    return [
        *_choices(models, TEXT),
        *_compute(results),
        *_reuse(models, TEXT),
        _skipping(results.get("skipping")),
        *_untested(),
    ]


def _choices(models: dict[str, Any], names: tuple[str, ...]) -> list[Claim]:
    """Loss, and what the paths of tokens hold."""
    both, each = shown(models, names), tested(models, names)
    return [
        against_dense(
            names,
            models,
            "figure 8, table 3: loss competitive with a dense network",
            "2.754 and 2.674 nats, dense 2.720; skipping 30 %: 2.784",
            own=lambda m: f"{m['validation']['loss']:.3f} nats",
            twin=lambda m: f"{m['loss']:.3f}",
            test=lambda m: m["validation"]["loss"] <= dense(m)["loss"] + 0.05,
            rule="at most 0.05 nats above dense",
            basis=f"{models[names[-1]]['validation']['count']:,} predictions",
        ),
        diverse(names, models, "(added) choices are more diverse at later steps, as in the paper's images"),
        law(names, models, "figure 1 (d): paths are distributed as a power law", "slope −1.2, untrained −1"),
        slopes(names),
        Claim(
            "figure 9: early routers group tokens that are alike in form or meaning",
            "shown for the first router",
            both(lambda m: _by_step(m["word_class_by_step"]))
            + f"{LINE}(share of the choice that the kind of word determines, above chance, by step)",
            each(lambda m: _first_above(m["word_class_by_step"]), lambda m: _first_most(m["word_class_by_step"])),
            rule="the first step is above that of all untrained networks by two standard errors; and above later steps",
        ),
        Claim(
            "(added) the first router follows the token itself",
            "–",
            both(lambda m: _by_step(m["entry_by_step"])) + f"{LINE}(the same of the token)",
            each(lambda m: _first_above(m["entry_by_step"])),
            rule="the first step is above that of all untrained networks by two standard errors",
        ),
        Claim(
            "section 4.2: frequent paths take frequent words",
            "linking verbs and the like",
            "share of function words on the paths of the most frequent tenth less that of all: "
            + both(lambda m: spanned(m["function_words_on_frequent_paths"], 1, 100, " points")),
            each(
                lambda m: above_all(m["function_words_on_frequent_paths"]),
                opposite=lambda m: below_all(m["function_words_on_frequent_paths"]),
            ),
            rule="the interval lies above 0 and above all untrained networks",
        ),
        Claim(
            "figure 9: a frequent path is that of ends of sentences",
            "rank 2",
            both(_sentence_path),
            each(lambda m: m["sentence_ends"]["rank"] <= 10),
            rule="the first path with more than half of such tokens is among the ten most frequent",
        ),
        Claim(
            "section 4.2: common words take rare paths as well",
            "ranks 1,024 to 65,536",
            "tokens among the 100 commonest entries, on paths that one token takes and overall: "
            + both(lambda m: _common(m["common_words"])),
            each(lambda m: m["common_words"]["on_single_paths"] > m["common_words"]["overall"] / 2),
            rule="at least half as often as overall (no interval)",
        ),
        Claim(
            "(added) paths tell the domain of a text",
            "–",
            both(lambda m: known(m["domain"])),
            each(knows("domain")),
            rule="p < 0.05 and above all untrained networks",
        ),
    ]


def _compute(results: dict[str, Any]) -> list[Claim]:
    """What the network that skips spends where, and how the two agree."""
    models = results["models"]
    skip = models[TEXT[1]]
    read = f"{skip['samples']:,} texts"
    apart, pictures = results["between"]["text"], models.get(VISION[1])
    kinds = sorted(skip["compute_of_kinds"].items(), key=lambda item: -item[1]["value"])
    return [
        Claim(
            "figure 11: compute of texts is sharply peaked, that of images is not",
            "histograms, of texts with a logarithmic axis",
            LINE.join(
                f"{what}: excess kurtosis {spanned(one['compute_kurtosis'])}, standard deviation "
                f"{spanned(one['compute_spread'], 3)}"
                for what, one in {"texts": skip, **({"images": pictures} if pictures else {})}.items()
            ),
            verdict(above(skip["compute_kurtosis"]), opposite=below(skip["compute_kurtosis"])),
            rule="the kurtosis of texts lies above 0",
            basis="top2 of each",
        ),
        Claim(
            "figure 11: texts of low compute are lists, links and the like",
            "shown in examples",
            "correlation of compute with the share of characters that are no letters, without texts of mathematics: "
            f"{spanned(skip['signs_and_compute'])}",
            verdict(below_all(skip["signs_and_compute"]), opposite=above_all(skip["signs_and_compute"])),
            rule="the interval lies below 0 and below all untrained networks",
            basis=f"top2; {skip['signs_and_compute']['texts']:,} texts",
        ),
        Claim(
            "figure 11: texts of low compute are code or other scripts",
            "shown in examples",
            f"held out: only {skip['texts_of_code']} texts of code, {skip['texts_of_other_scripts']} of other scripts",
            NONE,
            rule="–",
            basis=f"top2; {read}",
            trained=False,
        ),
        Claim(
            "figure 12: reuse of one model tells nothing of that of another, text by text",
            "no correlation",
            f"r = {spanned(apart)}",
            verdict(within(apart, 0.1), opposite=outside(apart, 0.1)),
            rule="the interval lies within ±0.1",
            basis=f"top1 and top2 (the paper: two of top-2); {read}",
        ),
        Claim(
            "figure 12: skipping goes with less reuse",
            "strong correlation",
            f"r of skipping and reuse = {spanned(skip['skip_and_reuse'])}",
            verdict(
                below_all(skip["skip_and_reuse"]) and below(skip["skip_and_reuse"], -0.3),
                opposite=above_all(skip["skip_and_reuse"]),
            ),
            rule="the interval lies below −0.3 and below all untrained networks",
            basis=f"top2; {read}",
        ),
        Claim(
            "figure 20: tokens of different kinds get different compute",
            "shown in examples",
            "compute less that of all tokens: "
            + ", ".join(f"{kind.replace('_', ' ')} {spanned(row, 3)}" for kind, row in kinds),
            verdict(above_all(kinds[0][1]), below_all(kinds[-1][1])),
            rule="the interval of the kind with the most lies above 0 and all untrained networks, that of the kind "
            "with the least below",
            basis=f"top2; {read}, {skip['tokens']:,} tokens",
        ),
    ]


def _reuse(models: dict[str, Any], names: tuple[str, ...]) -> list[Claim]:
    both, each = shown(models, names), tested(models, names)
    return [
        Claim(
            "figure 12: modules are reused",
            "50 % (top-2), 23 % (top-2 that skips)",
            both(lambda m: spanned(m["reuse"], 1, 100, " %")),
            each(lambda m: above_all(m["reuse"])),
            rule="the interval lies above all untrained networks",
        ),
        Claim(
            "section 4.3: reuse goes with no notable feature of a text",
            "said",
            "correlation of reuse "
            + both(
                lambda m: ", ".join(
                    f"with the {words} {spanned(m[f'{key}_and_reuse'])}"
                    for key, words in (("length", "length"), ("signs", "share of characters that are no letters"))
                )
            ),
            each(
                *(lambda m, key=key: within(m[f"{key}_and_reuse"], 0.1) for key in ("length", "signs")),
                opposite=lambda m: all(outside(m[f"{key}_and_reuse"], 0.1) for key in ("length", "signs")),
            ),
            rule="both intervals lie within ±0.1",
        ),
        dead(names, models),
    ]


def _skipping(measured: dict[str, Any] | None) -> Claim:
    claim = "less compute costs little: a network that skips beside one that does not"
    paper = "table 3: 2.784 nats with 30\u00a0% skipped, 2.674 without"
    if not measured:
        return Claim(
            claim, paper, "no top-2 network without skipping was trained", NONE, rule="–", basis="–", trained=False
        )
    (skips, other), training = measured["loss"], measured["training"]
    return Claim(
        claim,
        paper,
        f"{skips:.3f} nats with 30\u00a0% skipped, {other:.3f} without; {spanned(measured, 3)} more a token",
        verdict(below(measured, 0.11)),
        rule="the interval of the difference lies below the paper's 0.11 nats",
        basis=f"1 network each; {measured['samples']:,} texts, {measured['predictions']:,} predictions; the second "
        f"is not shipped: `{training['command']}`, {training['wall_seconds'] / 3600:.1f} h on {training['machine']}, "
        "then this page's command with `--without-skip <its folder>`",
        trained=False,
    )


def _untested() -> list[Claim]:
    return [
        untested(
            "table 3: downstream tasks",
            "ARC, BoolQ, HellaSwag, LAMBADA, PIQA, RACE, WikiText",
            "not tried with networks of this size",
        )
    ]


def _by_step(row: dict[str, Any]) -> str:
    trained = ", ".join(f"{step['value']:.2f}" for step in row["value"])
    blank = [statistics.fmean(step["value"] for step in steps) for steps in zip(*row["untrained"], strict=True)]
    return f"{trained}, untrained {', '.join(f'{v:.2f}' for v in blank)}"


def _first_above(row: dict[str, Any]) -> bool:
    first = row["value"][0]
    return all(first["value"] - 2 * first["error"] > steps[0]["value"] for steps in row["untrained"])


def _common(row: dict[str, Any]) -> str:
    blank = untrained(row.get("untrained", ()), 1, 100, " %")
    return f"{share(row['on_single_paths'])}{blank}; {share(row['overall'])}"


def _first_most(row: dict[str, Any]) -> bool:
    first, *later = row["value"]
    return all(first["value"] - 2 * first["error"] > step["value"] for step in later)


def _sentence_path(model: dict[str, Any]) -> str:
    row = model["sentence_ends"]
    return (
        f"rank {row['rank']:,} ({row['tokens']:,} tokens, {share(row['share'])} ends of sentences; of all tokens "
        f"{share(row['overall'])}){untrained(row['untrained'], 0)}"
    )


longer = of_one(LONG_TEXT, _choices, _reuse)
"""The same of the network that was trained for four passes, which never skips."""
