"""What Directional Routing claims, from ``results/directional.json`` and ``results/induction.json``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.science.claims import NONE, Claim, share, verdict


def directional(results: dict[str, Any]) -> list[Claim]:
    models, knows = results["models"], results["knowledge"]
    both = ("directional-text", "directional-text-prefix")
    unrouted = models["directional-text-unrouted"]["perplexity"]
    seen = results["lookahead"]["directional-text"]
    changed = {name: {row["name"]: row["perplexity"] for row in results["ablations"][name]} for name in both}
    gains = {
        name: {
            at: results["by_position"]["directional-text-unrouted"][at]["loss"] - row["loss"]
            for at, row in results["by_position"][name].items()
        }
        for name in both
    }

    last = results["lookahead"]["last position"]
    off = {
        name: [row["delta_loss"] for row in results["ablations"][name] if row["name"].startswith("off in layer")]
        for name in both
    }

    def least_varied(name: str) -> int:
        return knows[name]["layer_variance"].index(min(knows[name]["layer_variance"]))

    def most_critical(name: str) -> int:
        return off[name].index(max(off[name]))

    def least_and_worst(name: str) -> str:
        others = sorted(off[name])[-2]
        return (
            f"layer {least_varied(name)} varies least; layer {most_critical(name)} costs most when off, "
            f"{max(off[name]):+.3f} nats, the next one {others:+.3f}"
        )

    layers = len(knows[both[0]]["specialists"])
    random = results["words"]["random_angle"]

    def two(show: Callable[[str], str]) -> str:
        return f"{show(both[0])} (whole sequence), {show(both[1])} (prefix)"

    return [
        Claim(
            "perplexity below the unrouted twin's",
            "31 to 56 % lower (26 M model: 18 to 40 %)",
            two(lambda n: f"{models[n]['perplexity']:.1f}, {share(1 - models[n]['perplexity'] / unrouted)} lower")
            + f"; twin {unrouted:.1f}",
            verdict(*(models[n]["perplexity"] < 0.82 * unrouted for n in both)),
            rule="18 % lower at least",
        ),
        Claim(
            "(added) part of that gain comes from tokens behind the position, which pooling the sequence shows",
            "–",
            f"{seen['gain']:.3f} ± {seen['standard_error']:.3f} nats are lost when they are hidden",
            verdict(seen["gain"] > 2 * seen["standard_error"]),
            rule="more than two standard errors",
        ),
        Claim(
            "the gain is largest at early positions",
            "positions 0 to 9",
            two(lambda n: " / ".join(f"{g:.3f}" for g in gains[n].values())) + " nats at 0–9 / 10–99 / 100–255",
            verdict(*(early - late > 0.02 for early, *_, late in (list(gains[n].values()) for n in both))),
            rule="0.02 nats more at the first ten than at the last",
        ),
        Claim(
            "switching routing off collapses the model",
            "induction 93.4 % → 0 %; loss far up",
            two(lambda n: f"perplexity {changed[n]['normal']:.1f} → {changed[n]['off']:.1f}"),
            verdict(*(changed[n]["off"] > 2 * changed[n]["normal"] for n in both)),
            rule="perplexity twice as high",
        ),
        Claim(
            "decisions for this input matter: one uniform value for all gates ruins the model",
            "perplexity 15 → 3 575",
            two(
                lambda n: (
                    f"{changed[n]['normal']:.1f} → {changed[n]['neutral']:.1f} (all ½), {changed[n]['full']:.1f} "
                    f"(all 1); {changed[n]['mean gates']:.1f} with each gate at its own mean"
                )
            ),
            verdict(*(min(changed[n][k] for k in ("neutral", "full")) > 2 * changed[n]["normal"] for n in both)),
            rule="perplexity twice as high under both",
        ),
        Claim(
            "the layer whose gates vary least between domains is the most critical",
            "layer 9 of 12",
            two(least_and_worst),
            verdict(*(least_varied(n) == most_critical(n) for n in both)),
            rule="the same layer",
        ),
        Claim(
            "(added) a gain is left where nothing can be seen ahead: at the last position",
            "–",
            two(
                lambda n: (
                    f"{-last[n]['minus_unrouted']:.4f} ± {last[n]['standard_error']:.4f} nats below the unrouted twin"
                )
            ).replace("-", "−", 1),
            verdict(*(last[n]["minus_unrouted"] < -2 * last[n]["standard_error"] for n in both)),
            rule="below by more than two standard errors",
        ),
        Claim(
            "domains can be told from the gates (nearest centroid, leave one out)",
            "23 of 24 prompts",
            two(lambda n: f"{share(knows[n]['balanced'])}, untrained {share(knows[n]['untrained_balanced'])}")
            + f", mean over domains, of {knows[both[0]]['num_samples']} texts; shuffled "
            f"{share(knows[both[0]]['null_mean'])}",
            verdict(
                all(knows[n]["balanced"] > knows[n]["untrained_balanced"] for n in both),
                all(knows[n]["balanced"] > 0.9 for n in both),
            ),
            rule="above untrained; above 90 %",
        ),
        Claim(
            "early layers hold the specialist heads",
            "shown in figures",
            two(lambda n: ", ".join(map(str, knows[n]["specialists"]))) + " by layer",
            verdict(*(2 * sum(knows[n]["specialists"][: layers // 2]) > sum(knows[n]["specialists"]) for n in both)),
            rule="more than half in the first half of the layers",
        ),
        Claim(
            "swapping the gates of code and prose costs more in early layers than in late",
            "–",
            two(lambda n: f"{knows[n]['swap_early']:.3f} and {knows[n]['swap_late']:.3f} nats"),
            verdict(*(knows[n]["swap_early"] > knows[n]["swap_late"] for n in both)),
            rule="more in early layers",
        ),
        Claim(
            "directions of a head lie closer than at random",
            "75.9° on average, 89.4° at random",
            two(lambda n: f"{results['words'][n]['signed_angle']:.1f} ± {results['words'][n]['signed_error']:.1f}°")
            + "; between lines, at most 90°: "
            + two(lambda n: f"{results['words'][n]['mean_angle']:.1f}°")
            + f", {random:.1f}° at random",
            verdict(*(results["words"][n]["signed_angle"] < 90 - 2 for n in both)),
            rule="2° below a right angle at least",
        ),
    ]


def induction(results: dict[str, Any]) -> list[Claim]:
    kinds = {"sequence": "whole sequence", "prefix": "prefix"}

    def mean(kind: str, name: str) -> float:
        return results[kind][name]["mean"]

    def spread(kind: str, name: str) -> str:
        return f"{share(mean(kind, name))} ({', '.join(f'{100 * v:.0f}' for v in results[kind][name]['seeds'])})"

    def two(name: str) -> str:
        return ", ".join(f"{words} {spread(kind, name)}" for kind, words in kinds.items())

    return [
        Claim(
            "induction: on with routing, gone without",
            "93.4 % → 0 %",
            f"off: {two('off')}; on: {share(mean('sequence', 'normal'))}, {share(mean('prefix', 'normal'))}",
            verdict(*(mean(kind, "off") < 0.5 for kind in kinds)),
            rule="less than half without",
        ),
        Claim(
            "decisions for this input carry it",
            "–",
            f"gates of another sequence: {two('gates of another sequence')}",
            verdict(*(mean(kind, "gates of another sequence") < 0.5 for kind in kinds)),
            rule="less than half",
        ),
        Claim(
            "heads are redundant: taking out three hardly matters",
            "three of 144 heads, 2 %",
            f"three strongest: {two('3 strongest heads knocked out')}, unrouted twin "
            f"{spread('unrouted', '3 strongest heads knocked out')}; three others: "
            f"{two('3 other heads knocked out')}; but three of these twelve heads are a quarter, and one is "
            f"{share(1 / 12, 0)}",
            NONE,
            rule="–",
        ),
    ]
