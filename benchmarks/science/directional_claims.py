"""What Directional Routing claims, from ``results/directional.json`` and ``results/induction.json``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.science.claims import LINE, NONE, Claim, above, minus, share, spanned, verdict

BOTH = ("directional-text", "directional-text-prefix")
WORDS = dict(zip(BOTH, ("whole sequence", "prefix"), strict=True))
WINDOWS = "1 network each; 64 windows of 256 tokens"
"""what ablations rest on: every second of those that are looked at position by position"""


def directional(results: dict[str, Any]) -> list[Claim]:
    return [*_gains(results), *_ablations(results), *_knowledge(results)]


def _two(show: Callable[[str], str]) -> str:
    return LINE.join(f"{WORDS[name]}: {show(name)}" for name in BOTH)


def _gains(results: dict[str, Any]) -> list[Claim]:
    """What routing is worth beside the unrouted twin, with and without the tokens behind a position in view."""
    models, ahead = results["models"], results["lookahead"]
    rows_of = results["trainings"]
    assert len({row["iterations"] for rows in rows_of.values() for row in rows}) == 1, "trainings of several lengths"
    trained = {name: {row["seed"]: row["perplexity"] for row in rows} for name, rows in rows_of.items()}
    unrouted = trained["directional-text-unrouted"]
    seen, same = ahead["directional-text"], ahead["unrouted, same targets"]
    hidden = 1 - math.exp(seen["hidden"] - same)
    lower = {name: [1 - value / unrouted[seed] for seed, value in trained[name].items()] for name in BOTH}
    places = f"{seen['rows']} windows, {seen['positions']} positions of each"
    losses = results["by_position"]
    gains = {
        words: [losses["directional-text-unrouted"][at]["loss"] - row["loss"] for at, row in losses[name].items()]
        for words, name in (
            ("whole sequence", "directional-text"),
            ("the same, the tokens behind a position hidden", "directional-text, run causally"),
            ("prefix", "directional-text-prefix"),
        )
    }
    held = ahead["second half"]["directional-text, gates held from the first half"]
    behind, last = ahead["second half"]["directional-text-prefix"], ahead["last position"]

    def less(row: dict[str, Any], digits: int = 3) -> str:
        return minus(f"{row['minus_unrouted']:+.{digits}f} ± {row['standard_error']:.{digits}f} nats")

    return [
        Claim(
            "perplexity far below the unrouted twin's",
            "31 to 56 % lower (26 M model: 18 to 40 %)",
            _two(lambda n: f"{_listed(trained[n].values())}, {', '.join(map(share, lower[n]))} lower")
            + f"{LINE}twin {_listed(unrouted.values())}{LINE}whole sequence, the tokens behind a position hidden: "
            + f"{share(abs(hidden))} {'lower' if hidden > 0 else 'higher'} than the twin at the same places",
            verdict(*(value >= 0.18 for value in (*lower[BOTH[0]], *lower[BOTH[1]], hidden))),
            rule="18 % lower at least, the least of the paper's",
            basis=f"{len(unrouted)} networks each; {models[BOTH[0]]['count']:,} predictions; hidden: 1 network, "
            f"{places}",
        ),
        Claim(
            "(added) the gain of pooling the whole sequence comes from tokens behind the position, all of it",
            "–",
            f"{seen['in_view']:.3f} nats, twin {same:.3f}, {seen['hidden']:.3f} with those tokens hidden: "
            f"{seen['gain']:.3f} ± {seen['standard_error']:.3f} are lost",
            verdict(seen["gain"] > 2 * seen["standard_error"], seen["hidden"] >= same),
            rule="a loss of more than two standard errors; no gain left",
            basis=f"1 network each; {places}",
        ),
        Claim(
            "the gain is largest at early positions",
            "positions 0 to 9",
            "nats at positions 0–9 / 10–99 / 100–255: "
            + LINE.join(
                f"{words} {minus(' / '.join(f'{gain:.3f}' for gain in values))}" for words, values in gains.items()
            ),
            verdict(*(early - late > 0.02 for early, *_, late in gains.values())),
            rule="0.02 nats more at the first ten than from 100 on",
            basis=f"1 network each; {seen['rows']} windows of 256 tokens",
        ),
        Claim(
            "(added) a gain is left where nothing can be seen ahead",
            "–",
            f"second half of a window, less the unrouted twin: whole sequence with the gates of the first half "
            f"{less(held)}; prefix {less(behind)}{LINE}at the last position: whole sequence {less(last[BOTH[0]], 4)}; "
            f"prefix {less(last[BOTH[1]], 4)}",
            verdict(*(row["minus_unrouted"] < -2 * row["standard_error"] for row in (held, behind))),
            rule="second half: below by more than two standard errors",
            basis=f"1 network each; {held['count']} windows of 256 tokens; last position: "
            f"{last[BOTH[0]]['count']:,} windows",
        ),
    ]


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{value:.1f}" for value in values)


def _ablations(results: dict[str, Any]) -> list[Claim]:
    """What other gates cost."""
    changed = {name: {row["name"]: row["perplexity"] for row in results["ablations"][name]} for name in BOTH}
    off = {
        name: [row["delta_loss"] for row in results["ablations"][name] if row["name"].startswith("off in layer")]
        for name in BOTH
    }
    variance = {name: results["knowledge"][name]["layer_variance"] for name in BOTH}
    steady = {name: values.index(min(values)) for name, values in variance.items()}
    critical = {name: values.index(max(values)) for name, values in off.items()}
    return [
        Claim(
            "switching routing off collapses the model",
            "induction 93.4 % → 0 %; loss far up",
            _two(lambda n: f"perplexity {changed[n]['normal']:.1f} → {changed[n]['off']:.1f}"),
            verdict(*(changed[n]["off"] > 2 * changed[n]["normal"] for n in BOTH)),
            rule="perplexity twice as high",
            basis=WINDOWS,
        ),
        Claim(
            "decisions for this input matter: one uniform value for all gates ruins the model",
            "perplexity 15 → 3 575",
            _two(
                lambda n: (
                    f"{changed[n]['normal']:.1f} → {changed[n]['neutral']:.1f} (all ½), {changed[n]['full']:.1f} "
                    f"(all 1); {changed[n]['mean gates']:.1f} with each gate at its own mean"
                )
            ),
            verdict(*(min(changed[n][k] for k in ("neutral", "full")) > 2 * changed[n]["normal"] for n in BOTH)),
            rule="perplexity twice as high under both",
            basis=WINDOWS,
        ),
        Claim(
            "the layer whose gates vary least between domains is the most critical",
            "layer 9 of 12",
            _two(
                lambda n: (
                    f"layer {steady[n]} varies least; layer {critical[n]} costs most when off, "
                    f"{max(off[n]):+.3f} nats, the next one {sorted(off[n])[-2]:+.3f}"
                )
            ),
            verdict(*(steady[n] == critical[n] for n in BOTH)),
            rule=f"the same layer, which chance gives one network in {len(off[BOTH[0]])}",
            basis=f"{WINDOWS}; variance: {results['knowledge'][BOTH[0]]['num_samples']} texts",
        ),
    ]


def _knowledge(results: dict[str, Any]) -> list[Claim]:
    """What gates and directions hold."""
    knows, angles = results["knowledge"], results["words"]
    texts = f"1 network each; {knows[BOTH[0]]['num_samples']} texts of 128 tokens"
    layers = len(knows[BOTH[0]]["specialists"])
    swapped = {name: knows[name]["swap_early_less_late"] for name in BOTH}
    return [
        Claim(
            "domains can be told from the gates (nearest centroid, leave one out)",
            "23 of 24 prompts",
            _two(lambda n: f"{share(knows[n]['balanced'])}, untrained {share(knows[n]['untrained_balanced'])}")
            + f"{LINE}mean over domains; shuffled {share(knows[BOTH[0]]['null_mean'])}",
            verdict(
                all(knows[n]["balanced"] > knows[n]["untrained_balanced"] for n in BOTH),
                all(knows[n]["balanced"] > 0.9 for n in BOTH),
            ),
            rule="above untrained; above 90 %",
            basis=texts,
        ),
        Claim(
            "early layers hold the specialist heads",
            "10 of 12 heads of layer 0, 9 of layer 3, none of layers 7 to 9",
            "by layer: " + _two(lambda n: ", ".join(map(str, knows[n]["specialists"]))),
            verdict(*(2 * sum(knows[n]["specialists"][: layers // 2]) > sum(knows[n]["specialists"]) for n in BOTH)),
            rule="more than half in the first half of the layers",
            basis=texts,
        ),
        Claim(
            "swapping the gates of code and prose costs more in early layers than in late",
            "said",
            _two(
                lambda n: (
                    f"{knows[n]['swap_early']:.3f} and {knows[n]['swap_late']:.3f} nats, apart {spanned(swapped[n], 3)}"
                )
            ),
            verdict(*map(above, swapped.values())),
            rule="the interval of the difference lies above 0",
            basis=f"1 network each; {swapped[BOTH[0]]['pairs']} pairs of texts (Student's t)",
        ),
        Claim(
            "directions of a head lie closer than at random",
            "75.9° on average, 89.4° at random",
            _two(lambda n: f"{angles[n]['signed_angle']:.1f} ± {angles[n]['signed_error']:.1f}°")
            + f"{LINE}between lines, at most 90°: "
            + "; ".join(f"{WORDS[n]} {angles[n]['mean_angle']:.1f}°" for n in BOTH)
            + f", {angles['random_angle']:.1f}° at random",
            verdict(*(angles[n]["signed_angle"] < 90 - 2 for n in BOTH)),
            rule="2° below a right angle at least",
            basis="1 network each; all directions",
        ),
    ]


def induction(results: dict[str, Any]) -> list[Claim]:
    kinds = {"sequence": "whole sequence", "prefix": "prefix"}

    def spread(kind: str, name: str) -> str:
        row = results[kind][name]
        return f"{share(row['mean'])} ({', '.join(f'{100 * v:.0f}' for v in row['seeds'])})"

    def two(name: str) -> str:
        return ", ".join(f"{words} {spread(kind, name)}" for kind, words in kinds.items())

    def fails(name: str) -> str:
        return verdict(*(value < 0.5 for kind in kinds for value in results[kind][name]["seeds"]))

    def knocked(name: str) -> str:
        return f"{two(name)}, unrouted twin {spread('unrouted', name)}"

    normal = (share(results[kind]["normal"]["mean"]) for kind in kinds)
    return [
        Claim(
            "induction: on with routing, gone without",
            "93.4 % → 0 %",
            f"off: {two('off')}; on: {', '.join(normal)}",
            fails("off"),
            rule="less than half without, in each network",
        ),
        Claim(
            "decisions for this input carry it",
            "–",
            f"gates of another sequence: {two('gates of another sequence')}",
            fails("gates of another sequence"),
            rule="less than half, in each network",
        ),
        Claim(
            "heads are redundant: taking out three hardly matters",
            "98.6 % of the accuracy is left without three of 144 heads",
            f"without the strongest: {knocked('strongest head knocked out')}{LINE}without the three strongest: "
            f"{knocked('3 strongest heads knocked out')}{LINE}without the three weakest: "
            f"{two('3 other heads knocked out')}{LINE}but one of these twelve heads is {share(1 / 12, 0)} of them, "
            "three of 144 are far fewer",
            NONE,
            rule="–",
        ),
    ]
