"""What the H-Model paper claims, from ``results/hmodel.json``."""

from __future__ import annotations

from typing import Any

from benchmarks.science.claims import LINE, NONE, Claim, share, verdict


def hmodel(results: dict[str, Any]) -> list[Claim]:
    models, routing = results["models"], results["routing"]
    deep, wide = routing["hmodel-languages"], routing["hmodel-languages-wide"]

    def scored(name: str) -> str:
        return f"{share(models[name]['accuracy'])} ({models[name]['loss']:.2f} nats)"

    def accuracy(name: str) -> float:
        return models[name]["accuracy"]

    alpha = {c["alpha"]: c for c in results["controls"] if "alpha" in c}
    top_k = {c["top_k"]: c for c in results["controls"] if "top_k" in c}
    low, high = alpha[min(alpha)], alpha[max(alpha)]
    full, fewer = top_k[max(top_k)], top_k[max(top_k) - 1]
    plain = max(accuracy(n) for n in models if n.startswith("plain"))
    leak = results["leak"]["hmodel-languages-sequence"]
    inference = f"1 network, α set after training; {results['held_out_texts']} texts"
    return [
        Claim(
            "4 layers run 4 times predict better than 6 layers run once",
            "0.956 and 0.743 of tokens",
            f"{scored('hmodel-languages')} and {scored('hmodel-languages-wide')}",
            verdict(accuracy("hmodel-languages") > accuracy("hmodel-languages-wide")),
            rule="more of the tokens",
        ),
        Claim(
            "H-Models predict better than transformers of the same width with 1 and 6 layers",
            "0.956, 0.743; 0.016, 0.020",
            f"{scored('hmodel-languages')} and {scored('hmodel-languages-wide')}; transformers "
            f"{scored('plain-languages-1')} and {scored('plain-languages-6')}",
            verdict(*(accuracy(n) > plain for n in ("hmodel-languages", "hmodel-languages-wide"))),
            rule="more of the tokens than both",
        ),
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
            "(added) pooling the whole sequence tells a position of the tokens to come",
            "–",
            f"{leak['leak_nats']:.4f} ± {leak['standard_error']:.4f} nats are lost when they are hidden; 0 with the "
            "running mean, which the shipped model has",
            verdict(leak["leak_nats"] > 2 * leak["standard_error"]),
            rule="more than two standard errors",
            basis=f"1 network; {leak['predictions']:,} predictions",
        ),
    ]


def _by_alpha(controls: dict[float, dict[str, Any]], key: str, digits: int) -> str:
    return ", ".join(f"{alpha:g}: {row[key]:.{digits}f}" for alpha, row in sorted(controls.items()))
