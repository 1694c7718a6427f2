"""What DiPaCo claims, from ``results/dipaco.json``."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.science.claims import Claim, above, below, share, spanned, verdict

PATHS = ("dense", "kmeans", "product", "flat", "dipaco-2x2", "dipaco-4x4")
"""what the claims compare; all start from one base"""


def anew(results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """As ``results``, of the paths that were trained under other seeds, by seed, where all of them were."""
    own = {name: results.get(name, {}).get("by_seed", {}) for name in PATHS}
    seeds = sorted(set.intersection(*(set(rows) for rows in own.values())) - {"0"}, key=int)
    return {seed: results | {name: results[name] | own[name][seed] for name in PATHS} for seed in seeds}


def dipaco(results: dict[str, Any]) -> list[Claim]:
    ppl = {name: row["perplexity"] for name, row in results.items() if "perplexity" in row}

    def less(own: str, other: str) -> dict[str, float]:
        """Loss of one less that of another, from both less that of the dense path, as if these were independent: both
        hold the dense path's, so the interval is too wide and not too narrow."""
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

    rule = "the interval of the difference in nats lies below 0"
    rows = [
        Claim(
            "k-means routing over 2×2 modules beats one dense path that takes as many steps (a quarter of the compute)",
            "14.86 (2×4) and 16.23; dense with the compute of all paths 14.72 (table 1)",
            f"{apart('kmeans', 'dense')} ({ppl['base']:.1f} before)",
            beats(("kmeans", "dense")),
            rule=rule,
        ),
        Claim(
            "product k-means beats k-means",
            "16.8 and 17.2: 2 % lower",
            apart("product", "kmeans"),
            beats(("product", "kmeans")),
            rule=rule,
        ),
        Claim(
            "discriminative routing beats both",
            "16.5: 4 and 2 % lower",
            f"k-means: {apart('dipaco-2x2', 'kmeans')}; product: {apart('dipaco-2x2', 'product')}",
            beats(("dipaco-2x2", "kmeans"), ("dipaco-2x2", "product")),
            rule=f"{rule}, for both",
        ),
        Claim(
            "a flat mixture of as many paths, sharing nothing, beats shared modules",
            "12.76 (64 paths) and 13.37 (8×8); 14.62 (8 paths) and 14.86 (2×4)",
            apart("flat", "dipaco-2x2"),
            beats(("flat", "dipaco-2x2")),
            rule=rule,
        ),
        Claim(
            "more paths are better",
            "14.86 (2×4), 13.37 (8×8), 12.39 (16×16)",
            f"4×4 and 2×2: {apart('dipaco-4x4', 'dipaco-2x2')}",
            beats(("dipaco-4x4", "dipaco-2x2")),
            rule=rule,
        ),
    ]
    for name in ("dipaco-2x2", "dipaco-4x4"):
        rows += _of_shipped(results[name]["shipped"], name.removeprefix("dipaco-").replace("x", "×"))
    return rows


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
