"""What DiPaCo claims, from ``results/dipaco.json``."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.science.claims import LINE, Claim, above, below, share, spanned, verdict

PATHS = ("dense", "kmeans", "product", "flat", "dipaco-2x2", "dipaco-4x4")
"""what the claims compare; all start from one base"""


WORDS = {
    "dense": "one dense path",
    "kmeans": "k-means",
    "product": "product k-means",
    "dipaco-2x2": "discriminative 2×2",
    "dipaco-4x4": "4×4",
    "flat": "four paths that share nothing",
    "diloco": "DiLoCo",
    "own-ends": "with an embedding and an unembedding of its own in each path",
    "path-specific": "with blocks of its own in each path",
    "overlap": "with two shards a text",
    "phases-2": "two shardings",
    "phases-3": "three shardings",
    "kmeans-16": "k-means",
    "product-16": "product k-means",
    "kmeans-16-standardised": "k-means, standardised",
    "product-16-standardised": "product k-means, standardised",
}
RULE = "the interval of the difference in nats lies below 0"
COMPARED: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    (
        "k-means routing over 2×2 modules beats one dense path that takes as many steps (a quarter of the compute)",
        "14.86 (2×4) and 16.23; dense with the compute of all paths 14.72 (table 1)",
        (("kmeans", "dense"),),
    ),
    ("product k-means beats k-means", "16.8 and 17.2: 2 % lower", (("product", "kmeans"),)),
    (
        "discriminative routing beats both",
        "16.5: 4 and 2 % lower",
        (("dipaco-2x2", "kmeans"), ("dipaco-2x2", "product")),
    ),
    (
        "a flat mixture of as many paths, sharing nothing, beats shared modules",
        "12.76 (64 paths) and 13.37 (8×8); 14.62 (8 paths) and 14.86 (2×4)",
        (("flat", "dipaco-2x2"),),
    ),
    ("more paths are better", "14.86 (2×4), 13.37 (8×8), 12.39 (16×16)", (("dipaco-4x4", "dipaco-2x2"),)),
    (
        "shared modules beat one path that all workers train (DiLoCo)",
        "14.86 (2×4) and 15.02 (8 workers)",
        (("dipaco-2x2", "diloco"),),
    ),
    ("blocks of a path's own help", "12.70 and 13.37 (8×8)", (("path-specific", "dipaco-2x2"),)),
    (
        "shards that overlap help",
        "13.6 and 14.2 (256 paths that share nothing; stopped early as well)",
        (("overlap", "dipaco-2x2"),),
    ),
    (
        "(added) sharding more than once during training helps",
        "sharded again once",
        (("phases-2", "dipaco-2x2"), ("phases-3", "dipaco-2x2")),
    ),
    ("product k-means beats k-means (16 paths)", "16.8 and 17.2 (64 paths)", (("product-16", "kmeans-16"),)),
    ("(added) the same with standardised features", "–", (("product-16-standardised", "kmeans-16-standardised"),)),
    ("(added) discriminative routing beats product k-means (16 paths)", "–", (("dipaco-4x4", "product-16"),)),
    ("(added) ends of a path's own help", "–", (("own-ends", "dipaco-2x2"),)),
    ("(added) of paths with ends of their own, those that share no block are better", "–", (("flat", "own-ends"),)),
)
"""claim, the paper's perplexities, and whose loss has to lie below whose"""


def anew(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As ``results``, of the paths that were trained under other seeds, by seed, where all of them were."""
    own = {name: row["by_seed"] for name, row in results.items() if "by_seed" in row}
    seeds = sorted(set.intersection(*(set(own.get(name, ())) for name in PATHS)) - {"0"}, key=int)
    return {seed: {name: results[name] | rows[seed] for name, rows in own.items() if seed in rows} for seed in seeds}


def dipaco(results: dict[str, Any]) -> list[Claim]:
    ppl = {name: row["perplexity"] for name, row in results.items() if "perplexity" in row}

    def less(own: str, other: str) -> dict[str, float]:
        """Loss of one less that of another, document by document; where only both less that of the dense path are
        known, as if these were independent: both hold the dense path's, so the interval is then too wide."""
        if other in results[own].get("less", {}):
            measured: dict[str, float] = results[own]["less"][other]
            return measured
        (value, *half), (value_of_other, *half_of_other) = (_effect(results[name]) for name in (own, other))
        width = math.hypot(*half, *half_of_other)
        change = value - value_of_other
        return {"value": change, "low": change - width, "high": change + width}

    def apart(own: str, other: str) -> str:
        lower = 1 - ppl[own] / ppl[other]
        return (
            f"{ppl[own]:.1f} and {ppl[other]:.1f}: {share(abs(lower))} {'lower' if lower > 0 else 'higher'}, "
            f"{spanned(less(own, other), 3)} nats"
        )

    def beats(*pairs: tuple[str, str]) -> str:
        found = [less(*pair) for pair in pairs]
        return verdict(*map(below, found), opposite=all(map(above, found)))

    rows = [
        Claim(
            claim,
            paper,
            LINE.join(_named(own, other) + apart(own, other) for own, other in pairs),
            beats(*pairs),
            rule=RULE if len(pairs) == 1 else f"{RULE}, for each",
        )
        for claim, paper, pairs in COMPARED
        if all(name in results for pair in pairs for name in pair)
    ]
    for name in ("dipaco-2x2", "dipaco-4x4"):
        if "shipped" in results.get(name, {}):
            rows += _of_shipped(results[name]["shipped"], name.removeprefix("dipaco-").replace("x", "×"))
    return rows


def _named(own: str, other: str) -> str:
    return f"{WORDS.get(own, own)} and {WORDS.get(other, other)} "


def _effect(row: dict[str, Any]) -> tuple[float, float]:
    """Loss less the dense path's, and half of its 95 % interval."""
    effect = row["effect"]
    return effect["loss_less_dense"], (effect["high"] - effect["low"]) / 2


def _of_shipped(shipped: dict[str, Any], grid: str) -> list[Claim]:
    """Routing again within a text, and what paths know of domains."""
    curve = {row["every"]: row["perplexity"] for row in shipped["rerouting"]}
    rerouter, known = shipped["rerouter"], shipped["shards"]["nmi"]
    return [
        Claim(
            f"routing again every W tokens lowers perplexity ({grid})",
            "12.22 (W = ∞), 11.38 (64), 11.31 (32), 11.26 (16): 7 to 8 % lower",
            ", ".join(f"{curve[w]:.1f} (W = {w or '∞'})" for w in (None, 64, 32, 16))
            + f": {share(1 - curve[16] / curve[None])} lower; the re-router names the best path of the next 64 tokens "
            f"in {share(rerouter['accuracy'])} of places (always the most frequent: "
            f"{share(rerouter['most_frequent'])})",
            verdict(*(curve[w] < curve[None] for w in (64, 32, 16))),
            rule="lower for every W",
            basis=f"1 network each; {shipped['count']:,} predictions; re-router: {rerouter['sequences']:,} sequences",
            trained=False,
        ),
        Claim(
            f"(added) paths follow the domain of a document ({grid})",
            "–",
            f"NMI {known['nmi']:.2f} (shuffled {known['null_mean']:.2f}, p = {known['p_value']:.3f})",
            verdict(known["p_value"] <= 0.01),
            rule="p ≤ 0.01",
            basis=f"1 network each; {known['num_tokens']:,} sequences, shuffled by document",
            trained=False,
        ),
    ]
