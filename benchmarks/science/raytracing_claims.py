"""What RayTracing claims, from ``results/raytracing.json``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from scipy.special import stdtrit

from benchmarks.science.claims import LINE, Claim, minus, share, verdict


def raytracing(results: dict[str, Any]) -> list[Claim]:
    sets = {"raytracing-digits": "digits", "raytracing-cifar10": "CIFAR-10"}
    crossing = {f"{name}-crossing": f"{words}, all layers in a step" for name, words in sets.items()}
    crossing = {name: words for name, words in crossing.items() if name in results}
    # Those measured before parameters were counted by signal say nothing about it.
    by_signal = {name: w for name, w in (sets | crossing).items() if "reachable_share" in results[name]["mean"]}
    relaxed = {"raytracing-digits-relaxed": "digits", "raytracing-cifar10-relaxed": "CIFAR-10"}

    def mean(name: str, key: str) -> float:
        return results[name]["mean"][key]["mean"]

    def interval(name: str, key: str) -> tuple[float, float]:
        """95 % of the mean over seeds, by Student's t; no end for a single seed."""
        row, count = results[name]["mean"][key], len(results[name]["seeds"])
        half = float(stdtrit(count - 1, 0.975)) * row["std"] / count**0.5 if count > 1 else math.inf
        return row["mean"] - half, row["mean"] + half

    def points(name: str, key: str) -> str:
        low, high = (100 * end for end in interval(name, key))
        return minus(f"{100 * mean(name, key):+.1f} points ({low:+.1f} … {high:+.1f})")

    def each(names: dict[str, str], show: Callable[[str], str]) -> str:
        return LINE.join(f"{words}: {show(name)}" for name, words in names.items())

    def first_and_last(name: str) -> str:
        said = next(v["ours"] for v in results[name]["verdicts"] if v["claim"].startswith("section 1"))
        return said.removeprefix("accuracy ").replace("%", "\u00a0%")

    def ends(name: str) -> str:
        return next(str(v["ours"]) for v in results[name]["verdicts"] if "CIFAR-10" in v["claim"])

    def held(names: Iterable[str], start: str) -> str:
        found = [v for n in names for v in results[n]["verdicts"] if v["claim"].startswith(start)]
        return verdict(*(v["reproduced"] for v in found))

    def correlated(name: str) -> str:
        return f"Pearson {mean(name, 'pearson'):.2f}, Spearman {mean(name, 'spearman'):.2f}"

    def steps(name: str) -> str:
        return f"{mean(name, 'theta_steps'):.1f}"

    def networks(names: Iterable[str]) -> str:
        """How many networks there are of each kind of data."""
        counts: dict[str, list[str]] = {}
        for name in names:
            kind = "CIFAR-10" if "cifar" in name else "digits"
            counts.setdefault(kind, []).append(str(len(results[name]["seeds"])))
        return ", ".join(
            f"{kind}: {numbers[0]} networks{' each' * (len(numbers) > 1)}"
            if len(set(numbers)) == 1
            else f"{kind}: {' and '.join(numbers)} networks"
            for kind, numbers in counts.items()
        )

    every = {**sets, **crossing, **{name: f"{words}, θ_out = 80" for name, words in relaxed.items()}}
    return [
        Claim(
            "accuracy at or above that of an MLP of as many parameters",
            "MNIST, CIFAR-10 (section 3)",
            each(
                sets | crossing,
                lambda n: (
                    f"{share(mean(n, 'accuracy'))} and {share(mean(n, 'mlp_accuracy'))}, "
                    f"{points(n, 'accuracy_minus_mlp')}"
                ),
            ),
            verdict(*(interval(n, "accuracy_minus_mlp")[0] > -0.01 for n in sets | crossing)),
            rule="the interval lies above −1 point",
            basis=networks(sets | crossing),
        ),
        Claim(
            "(added) accuracy above that of an MLP of only as many parameters as a sample uses",
            "–",
            each(
                by_signal,
                lambda n: (
                    f"{share(mean(n, 'mlp_as_used_accuracy'))} with {mean(n, 'mlp_as_used_params'):,.0f} parameters, "
                    f"{points(n, 'accuracy_minus_mlp_as_used')}"
                ),
            ),
            verdict(*(interval(n, "accuracy_minus_mlp_as_used")[0] > 0 for n in by_signal)),
            rule="the interval lies above 0",
            basis=networks(by_signal),
        ),
        Claim(
            "over 50 % fewer parameters used",
            "section 3, figure 2",
            each(
                by_signal,
                lambda n: (
                    f"{share(1 - mean(n, 'used_share'))} fewer; {share(1 - mean(n, 'lit_params_share'))} if weights "
                    f"of lit blocks that carry nothing count as used; {share(1 - mean(n, 'reachable_share'))} never "
                    "used by any test image"
                ),
            ),
            verdict(*(mean(n, "used_share") < 0.5 for n in by_signal)),
            rule="less than half",
            basis=networks(by_signal),
        ),
        Claim(
            "difficult inputs light more of the network",
            "section 3, figure 3",
            each(sets | crossing, correlated) + " (active share and loss)",
            held(sets | crossing, "section 3, figure 3: easy"),
            rule="95 % interval of the correlation above 0 for every seed",
            basis=networks(sets | crossing),
        ),
        Claim(
            "(added) difficult inputs light more of the network with θ_out = 80 instead of 0.5",
            "–",
            each(
                relaxed,
                lambda n: (
                    f"{correlated(n)}; {steps(n)} instead of {steps(n.removesuffix('-relaxed'))} threshold steps a "
                    "sample"
                ),
            ),
            held(relaxed, "section 3, figure 3: easy"),
            rule="95 % interval of the correlation above 0 for every seed",
            basis=networks(relaxed),
        ),
        Claim(
            "of CIFAR-10, automobiles light the fewest blocks, dogs and birds the most",
            "section 3, figure 3",
            each({n: w for n, w in (sets | crossing).items() if "cifar" in n}, ends),
            held((n for n in (*sets, *crossing) if "cifar" in n), "section 3, figure 3: of CIFAR-10"),
            rule="automobiles first and one of the two among the last three, for every seed",
            basis=networks(n for n in (*sets, *crossing) if "cifar" in n),
        ),
        Claim(
            "the first solution is the most approximate, later ones are more precise",
            "section 1",
            each(every, first_and_last),
            held(every, "section 1"),
            rule="more right at the last threshold step than at the first",
            basis=networks(every),
        ),
    ]
