"""What the H-Model paper claims, from ``results/hmodel.json``."""

from __future__ import annotations

from typing import Any

from benchmarks.science.claims import LINE, NONE, Claim, share, verdict


def hmodel(results: dict[str, Any]) -> list[Claim]:
    routing, trainings = results["routing"], results["trainings"]
    deep, wide = routing["hmodel-languages"], routing["hmodel-languages-wide"]

    alpha = {c["alpha"]: c for c in results["controls"] if "alpha" in c}
    top_k = {c["top_k"]: c for c in results["controls"] if "top_k" in c}
    low, high = alpha[min(alpha)], alpha[max(alpha)]
    full, fewer = top_k[max(top_k)], top_k[max(top_k) - 1]
    leak = results["leak"]["hmodel-languages-wide-sequence"]
    inference = f"1 network, α set after training; {results['held_out_texts']} texts"
    every = _basis(trainings["hmodel-languages"])

    def beats(
        claim: str, paper: str, own: str, other: str, rule: str = "lower loss and more of the tokens, in every training"
    ) -> Claim:
        better = verdict(*_better(trainings, own, other))
        return Claim(claim, paper, _beside(trainings, own, other), better, rule=rule, basis=every)

    return [
        beats("4 layers run 4 times predict better than 6 layers run once", "0.956 and 0.743 of tokens", DEEP, WIDE),
        Claim(
            "H-Models predict better than transformers of the same width with 1 and 6 layers",
            "0.956, 0.743; 0.016, 0.020",
            _beside(trainings, DEEP, WIDE, *PLAIN),
            verdict(
                *(
                    all(both)
                    for own in (DEEP, WIDE)
                    for both in zip(*(_better(trainings, own, x) for x in PLAIN), strict=True)
                )
            ),
            rule="lower loss and more of the tokens than both, in every training",
            basis=every,
        ),
        beats(
            "section 6.9: layers of different kinds work together",
            "said",
            MIXED,
            DEEP,
            "two transformers and two convolutions: lower loss and more of the tokens than four transformers, in every "
            "training",
        ),
        beats("(added) connections chosen by the last token predict better than by the mean up to it", "–", LAST, DEEP),
        Claim(
            "routing is the same within a language and differs between languages",
            "shown in figures",
            f"distance of connections between languages over within: {deep['distance']['ratio']:.2f} (T = 4), "
            f"{wide['distance']['ratio']:.2f} (T = 1); labels shuffled {deep['distance']['null_mean']:.2f}, at most "
            f"{deep['distance']['null_max']:.2f}, p = {deep['distance']['p_value']:.3f}; untrained "
            f"{deep['distance']['untrained_ratio']:.2f}",
            verdict(*(r["distance"]["ratio"] > r["distance"]["null_max"] for r in (deep, wide))),
            rule="above the largest of the shuffles",
        ),
        Claim(
            "(added) the language can be told from the connections alone",
            "–",
            f"nearest mean {share(deep['nearest_language_accuracy'])} of texts (untrained "
            f"{share(deep['untrained_nearest_language_accuracy'])}); NMI of strongest chain and language "
            f"{deep['chain']['nmi']:.2f} (shuffled {deep['chain']['null_mean']:.2f}, untrained "
            f"{deep['chain']['untrained_nmi']:.2f})",
            verdict(deep["nearest_language_accuracy"] > deep["untrained_nearest_language_accuracy"]),
            rule="above untrained",
        ),
        Claim(
            "layers often send their state back to themselves",
            "shown in figures",
            f"{share(deep['self_share'])} of all weight, {share(deep['equal_self_share'])} if it were spread evenly",
            verdict(deep["self_share"] > deep["equal_self_share"]),
            rule="more than an even share",
        ),
        Claim(
            "routing is stable: 1 − variance of c over texts, 0.75 at worst",
            "shown in figures",
            f"{deep['stability']:.3f}, within a language "
            f"{deep['stability_within_language']:.4f}; but untrained {deep['untrained_stability']:.6f}: nothing that "
            "is trained could be more stable, so the number cannot tell",
            NONE,
            rule="–",
        ),
        Claim(
            "equation 4: a small α makes connections sparse, a large one dense",
            "said",
            "mean connection at α = "
            + _by_alpha(alpha, "mean_connection", 2)
            + f"{LINE}undecided, between a tenth and nine tenths: {share(low['undecided'])} at α = {low['alpha']:g}, "
            f"{share(high['undecided'])} at α = {high['alpha']:g}",
            verdict(low["mean_connection"] < high["mean_connection"], low["undecided"] < 0.5),
            rule="smaller connections at the smallest α than at the largest; there less than half undecided",
            basis=inference,
        ),
        Claim(
            "section 6.10: a smaller α leads to deeper routing",
            "shown in figures",
            "mean iteration whose state goes to the output, at α = " + _by_alpha(alpha, "output_depth", 2),
            verdict(low["output_depth"] > alpha[1.0]["output_depth"] > high["output_depth"]),
            rule="later at the smallest α than at 1, and there than at the largest",
            basis=inference,
        ),
        Claim(
            "top-k at inference saves computation without training again",
            "–",
            f"k = {fewer['top_k']} of {full['top_k']}: {share(1 - fewer['flops_per_token'] / full['flops_per_token'])} "
            f"fewer operations, loss {fewer['loss']:.2f} instead of {full['loss']:.2f}",
            verdict(fewer["loss"] - full["loss"] < 0.05),
            rule="at most 0.05 nats lost",
            basis="1 network, k set after training; 64 windows of its context",
        ),
        Claim(
            "(added) thirty passes over the text instead of ten lower the held-out loss",
            "–",
            _overfitted(trainings),
            verdict(*(long["loss"] < short["loss"] for short, long in _lengths(trainings))),
            rule="lower after 3,000 iterations than after 1,000, for each recipe",
            basis=every,
        ),
        Claim(
            "(added) pooling the whole sequence tells a position of the tokens to come",
            "–",
            f"6 layers, T = 1: {leak['leak_nats']:.4f} ± {leak['standard_error']:.4f} nats are lost when they are "
            "hidden; 0 with the running mean, which the shipped model has",
            verdict(leak["leak_nats"] > 2 * leak["standard_error"]),
            rule="more than two standard errors",
            basis=f"1 network; {leak['predictions']:,} predictions",
        ),
    ]


DEEP, WIDE, MIXED, LAST = (f"hmodel-languages{kind}" for kind in ("", "-wide", "-mixed", "-last"))
PLAIN = ("plain-languages-1", "plain-languages-6")
CALLED = {
    DEEP: "4 layers, T = 4",
    WIDE: "6 layers, T = 1",
    MIXED: "mixed layers",
    LAST: "last token",
    PLAIN[0]: "transformer of 1 layer",
    PLAIN[1]: "of 6",
}


def _beside(trainings: dict[str, list[dict[str, Any]]], *names: str) -> str:
    """Loss and accuracy of each training of these, a line a length."""
    lines = []
    for length in sorted({row["iterations"] for row in trainings[names[0]]}):
        cells = []
        for name in names:
            own = [row for row in trainings[name] if row["iterations"] == length]
            loss, accuracy = (
                ", ".join(show(row[key]) for row in own)
                for key, show in (("loss", "{:.2f}".format), ("accuracy", lambda value: f"{100 * value:.1f}"))
            )
            cells.append(f"{CALLED[name]}: {loss} nats, {accuracy} %")
        lines.append(f"{length:,} iterations: " + "; ".join(cells))
    return LINE.join(lines)


def _better(trainings: dict[str, list[dict[str, Any]]], own: str, other: str) -> list[bool]:
    """Whether one has the lower loss and more of the tokens, in each training; both must have had the same ones."""
    pairs = list(zip(trainings[own], trainings[other], strict=True))
    assert all((a["iterations"], a["seed"]) == (b["iterations"], b["seed"]) for a, b in pairs), (own, other)
    return [a["loss"] < b["loss"] and a["accuracy"] > b["accuracy"] for a, b in pairs]


def _lengths(trainings: dict[str, list[dict[str, Any]]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Of each recipe the shortest and the longest training under its first seed."""
    firsts = [[row for row in trainings[name] if row["seed"] == trainings[name][0]["seed"]] for name in CALLED]
    return [(rows[0], rows[-1]) for rows in firsts]


def _overfitted(trainings: dict[str, list[dict[str, Any]]]) -> str:
    """Where the held-out loss of the longest trainings was lowest, what it ended at, and that of their last batch."""
    lines = []
    for name, words in CALLED.items():
        rows = [row for row in trainings[name] if row["iterations"] == trainings[name][-1]["iterations"]]
        at, low, last, batch = (
            ", ".join(show(row) for row in rows)
            for show in (
                lambda row: f"{row['lowest']['iteration']:,}",
                lambda row: f"{row['lowest']['val_loss']:.2f}",
                lambda row: f"{row['loss']:.2f}",
                lambda row: f"{row['train_loss']:.2f}",
            )
        )
        lines.append(f"{words}: lowest at {at} ({low} nats), {last} at the end; last batch {batch}")
    return LINE.join(lines)


def _basis(rows: list[dict[str, Any]]) -> str:
    lengths = sorted({row["iterations"] for row in rows})
    counts = [sum(row["iterations"] == length for row in rows) for length in lengths]
    told = " and ".join(
        f"{n} network{'s' * (n > 1)} each of {length:,} iterations" for n, length in zip(counts, lengths, strict=True)
    )
    return f"{told}; held-out tenth"


def _by_alpha(controls: dict[float, dict[str, Any]], key: str, digits: int) -> str:
    return ", ".join(f"{alpha:g}: {row[key]:.{digits}f}" for alpha, row in sorted(controls.items()))
