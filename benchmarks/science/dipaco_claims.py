"""What DiPaCo claims, from ``results/dipaco.json``."""

from __future__ import annotations

from typing import Any

from benchmarks.science.claims import Claim, share, verdict


def anew(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As ``results``, of the paths that were trained under other seeds, by seed; all start from one base."""
    lists = {name: row["perplexity_by_seed"] for name, row in results.items() if name != "base" and "perplexity" in row}
    seeds = range(1, min(map(len, lists.values()), default=1))
    return {
        str(seed): results | {name: results[name] | {"perplexity": values[seed]} for name, values in lists.items()}
        for seed in seeds
    }


def dipaco(results: dict[str, Any]) -> list[Claim]:
    ppl = {name: row["perplexity"] for name, row in results.items() if "perplexity" in row}

    def pair(a: str, b: str) -> str:
        return f"{ppl[a]:.1f} and {ppl[b]:.1f}"

    rows = [
        Claim(
            "k-means routing over 2×2 modules beats one dense path trained as long",
            "17.2 (8×8) and 16.23 (dense, another budget)",
            f"{pair('kmeans', 'dense')} ({ppl['base']:.1f} before)",
            verdict(ppl["kmeans"] < ppl["dense"]),
            rule="lower",
        ),
        Claim(
            "product k-means beats k-means",
            "16.8 and 17.2",
            pair("product", "kmeans"),
            verdict(ppl["product"] < ppl["kmeans"]),
            rule="lower",
        ),
        Claim(
            "discriminative routing beats both",
            "16.5",
            f"{ppl['dipaco-2x2']:.1f}",
            verdict(*(ppl["dipaco-2x2"] < ppl[n] for n in ("kmeans", "product"))),
            rule="lower than both",
        ),
        Claim(
            "a flat mixture of as many paths, sharing nothing, beats shared modules",
            "12.76 (64 paths) and 13.37 (8×8)",
            pair("flat", "dipaco-2x2"),
            verdict(ppl["flat"] < ppl["dipaco-2x2"]),
            rule="lower",
        ),
        Claim(
            "more paths are better",
            "13.37 (8×8) and 12.39 (16×16)",
            f"{ppl['dipaco-2x2']:.1f} (2×2) and {ppl['dipaco-4x4']:.1f} (4×4)",
            verdict(ppl["dipaco-4x4"] < ppl["dipaco-2x2"]),
            rule="lower",
        ),
    ]
    for name in ("dipaco-2x2", "dipaco-4x4"):
        shipped, grid = results[name]["shipped"], name.removeprefix("dipaco-").replace("x", "×")
        curve = {row["every"]: row["perplexity"] for row in shipped["rerouting"]}
        listed = ", ".join(f"{curve[w]:.1f} (W = {w or '∞'})" for w in (None, 64, 32, 16))
        rows.append(
            Claim(
                f"routing again every W tokens lowers perplexity ({grid})",
                "12.39 (W = ∞), 11.38 (64), 11.31 (32), 11.26 (16)",
                f"{listed}; the re-router names the best path of the next 64 tokens in "
                f"{share(shipped['rerouter']['accuracy'])} of places (always the most frequent: "
                f"{share(shipped['rerouter']['most_frequent'])})",
                verdict(min(curve[w] for w in (64, 32, 16)) < curve[None]),
                rule="lower for some W",
                trained=False,
            )
        )
        known = shipped["shards"]["nmi"]
        rows.append(
            Claim(
                f"(added) paths follow the domain of a document ({grid})",
                "–",
                f"NMI {known['nmi']:.2f} (shuffled {known['null_mean']:.2f}, p = {known['p_value']:.3f})",
                verdict(known["p_value"] <= 0.01),
                rule="p ≤ 0.01",
                trained=False,
            )
        )
    return rows
