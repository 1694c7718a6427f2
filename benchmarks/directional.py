"""Directional Routing, the paper's claims on English text: claim → our number → command.

    python -m benchmarks.directional --data <data folder> --work <its folder> [--write-cards]
    python -m benchmarks.directional --data <data folder> --trainings <folder> [--write-cards]
    python -m benchmarks.directional --data <data folder> --shipped

Trains nothing: it reads the states that ``tokenpaths train`` left in ``--work``. All numbers are of the
validation file, in float32. ``--write-cards`` puts the figures on the cards of the shipped checkpoints.
``--trainings`` reads the cards of checkpoints under other seeds and keeps the rest of the results.
``--shipped`` measures words, angles and swaps alone, on the checkpoints that ship, and keeps the rest of the results.
``python -m benchmarks.induction`` holds the circuit claims.

What "sees ahead" means: with the paper's pooling a router reads the mean over the whole sequence, so the loss of
a position is computed with the token that it should predict, and those behind it, in view. ``hidden`` losses are
of the same model, one forward pass for each position over the tokens up to it, as when it writes a text.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy.special import stdtrit
from torch import Tensor

from benchmarks.measure import kept_document, report
from benchmarks.trainings import read_trainings
from tokenpaths.engine.analysis.families.directions import (
    centroid_accuracy,
    domain_gates,
    principal_components,
    specialists,
)
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.edits.gate_effects import (
    ablations,
    effects,
    gates_of,
    held_losses,
    induction,
    lookahead,
    losses,
    repeated_rows,
    swap_effects,
)
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.directional import Directional, direction_angles, direction_vocabulary
from tokenpaths.engine.models.directional_gates import OFF, Interventions
from tokenpaths.engine.train.cards import note
from tokenpaths.engine.train.corpora import TextCorpus, load_text
from tokenpaths.engine.train.directional_recipes import (
    DIRECTIONAL_RECIPES,
    PREFIX,
    SEQUENCE,
    SHARED_TOKENIZER,
    SHIPPED,
    UNROUTED,
    num_params,
)
from tokenpaths.engine.train.loop import evaluate, open_run

CPU = torch.device("cpu")
BUCKETS = ((0, 10), (10, 100), (100, 256))
"""positions, as the paper groups them (section 8)"""
DOMAIN_TOKENS = 128
"""each document's first tokens: as many for all, so that no gate can tell domains by length"""
WINDOWS, LAST_WINDOWS = 128, 1200
"""windows of the context's length: for most figures, and where only the last position counts"""


def trained(work: Path) -> dict[str, Directional]:
    """The three models; all must be trained to the end."""
    models = {}
    for name, recipe in DIRECTIONAL_RECIPES.items():
        run = open_run(recipe, work / name, CPU)
        if run.iteration < recipe.iterations:
            raise SystemExit(f"{name}: {run.iteration} of {recipe.iterations} iterations; train it to the end first")
        models[name] = run.model.eval().requires_grad_(False)
    return models


def spread_rows(ids: Tensor, length: int, count: int) -> Tensor:
    """Windows of ``length`` tokens, evenly spread, overlapping only where there are more than fit."""
    starts = torch.linspace(0, len(ids) - length, count).long()
    return ids[starts[:, None] + torch.arange(length)].long()


def domain_rows(
    data: Path, tokenizer: TextTokenizer, length: int, per_domain: int, per_document: int = 1
) -> dict[str, Tensor]:
    """The first windows of each validation document that is long enough, by domain."""
    table = pq.read_table(data / "text/english_val.parquet", columns=["text", "domain"])
    rows: dict[str, list[Tensor]] = {}
    encoded = tokenizer.encode_batch(table["text"].to_pylist())
    for ids, domain in zip(encoded, table["domain"].to_pylist(), strict=True):
        for start in range(0, min(len(ids) // length, per_document) * length, length):
            if len(rows.setdefault(domain, [])) < per_domain:
                rows[domain].append(torch.from_numpy(ids[start : start + length]).long())
    return {domain: torch.stack(rows[domain]) for domain in sorted(rows)}


def quality(models: dict[str, Directional], val: TextCorpus) -> dict[str, Any]:
    """Parameters, loss, perplexity and accuracy on the whole validation file."""
    return {
        name: {"params": num_params(model.config)} | _rounded(evaluate(model, val, CPU))
        for name, model in models.items()
    }


def ahead(models: dict[str, Directional], rows: Tensor, last_rows: Tensor) -> dict[str, Any]:
    """What the leak is worth: the same targets in view and hidden, and the one position where nothing leaks."""
    positions = tuple(range(15, 256, 16))
    found: dict[str, Any] = {}
    for name in (SEQUENCE, PREFIX):
        look = lookahead(models[name], rows if name == SEQUENCE else rows[:16], positions)
        found[name] = _rounded(
            {
                "in_view": float(look.in_view.mean()),
                "hidden": float(look.hidden.mean()),
                "gain": look.gain,
                "standard_error": look.standard_error,
                "rows": len(rows) if name == SEQUENCE else 16,
                "positions": len(positions),
            }
        ) | {
            "by_position": [
                [p, round(float(a), 4), round(float(b), 4)]
                for p, a, b in zip(positions, look.in_view, look.hidden, strict=True)
            ]
        }
    plain = losses(models[UNROUTED], rows)[:, list(positions)]
    found["unrouted, same targets"] = round(float(plain.mean()), 4)
    half = rows.shape[1] // 2
    behind = {name: losses(model, rows)[:, half:].mean(dim=1) for name, model in models.items()}
    behind[f"{SEQUENCE}, gates held from the first half"] = held_losses(models[SEQUENCE], rows, half).mean(dim=1)
    found["second half"] = {name: paired(values, behind[UNROUTED]) for name, values in behind.items()}
    last = {name: losses(model, last_rows)[:, -1] for name, model in models.items()}
    found["last position"] = {
        name: paired(values, last[UNROUTED]) for name, values in last.items() if name != UNROUTED
    } | {"unrouted loss": round(float(last[UNROUTED].mean()), 4)}
    return found


def paired(values: Tensor, base: Tensor) -> dict[str, float]:
    """Mean loss, and the paired difference to the unrouted twin with its standard error."""
    difference = values - base
    return _rounded(
        {
            "loss": float(values.mean()),
            "minus_unrouted": float(difference.mean()),
            "standard_error": float(difference.std() / math.sqrt(len(difference))),
            "count": len(difference),
        }
    )


def by_position(models: dict[str, Directional], rows: Tensor) -> dict[str, Any]:
    """Loss by position, and how much lower the routed ones are (the paper's gain falls with position)."""
    table = {name: losses(model, rows).mean(dim=0) for name, model in models.items()}
    table[f"{SEQUENCE}, run causally"] = losses(models[SEQUENCE], rows, Interventions(pooling="prefix")).mean(dim=0)
    return {
        name: {
            f"{a}–{b - 1}": _rounded(
                {"loss": float(values[a:b].mean()), "gain": float((table[UNROUTED] - values)[a:b].mean())}
            )
            for a, b in BUCKETS
        }
        for name, values in table.items()
    }


def domain_perplexity(models: dict[str, Directional], rows: dict[str, Tensor]) -> dict[str, Any]:
    """Perplexity of each domain, and its reduction against the unrouted twin (the paper's table 5)."""
    loss = {name: {d: float(losses(model, part).mean()) for d, part in rows.items()} for name, model in models.items()}
    return {
        name: {
            d: _rounded(
                {
                    "perplexity": math.exp(value),
                    "reduction": 1 - math.exp(value - loss[UNROUTED][d]),
                    "rows": len(rows[d]),
                }
            )
            for d, value in row.items()
        }
        for name, row in loss.items()
    }


def knowledge(model: Directional, rows: dict[str, Tensor]) -> dict[str, Any]:
    """Domains in the gates, beside the untrained twin and shuffled labels; specialists; components; swaps."""
    labels = [domain for domain, part in rows.items() for _ in range(len(part))]
    inputs = torch.cat(list(rows.values()))
    gates = gates_of(model, inputs)
    torch.manual_seed(1)
    untrained = gates_of(Directional(model.config).eval().requires_grad_(False), inputs)
    flat, blank = gates.reshape(len(gates), -1), untrained.reshape(len(gates), -1)
    accuracy, baseline = centroid_accuracy(flat, labels), centroid_accuracy(blank, labels, shuffles=0)
    means = domain_gates(gates, labels)
    return _rounded(
        {
            "num_samples": len(labels),
            "accuracy": accuracy.accuracy,
            "balanced": accuracy.balanced,
            "null_mean": accuracy.null_mean,
            "null_max": accuracy.null_max,
            "p_value": accuracy.p_value,
            "untrained_accuracy": baseline.accuracy,
            "untrained_balanced": baseline.balanced,
        }
    ) | {
        **swaps(model, rows),
        "by_domain": _rounded(accuracy.by_domain),
        "counts": dict(zip(means.domains, means.counts.tolist(), strict=True)),
        "specialists": specialists(means.head_variance).sum(axis=1).tolist(),
        "layer_variance": [float(f"{v:.3g}") for v in means.head_variance.mean(axis=1)],
        "untrained_layer_variance": [float(f"{v:.3g}") for v in domain_gates(untrained, labels).head_variance.mean(1)],
        "gate_mean": round(float(gates.mean()), 4),
        "gate_min": round(float(gates.min()), 4),
        "gate_max": round(float(gates.max()), 4),
        "on_share_by_layer": [round(float(v), 3) for v in (gates > 0.5).mean(axis=(0, 2, 3))],
        "explained": [round(float(v), 3) for v in principal_components(flat, 3).explained],
    }


def changed(model: Directional, rows: Tensor, mean_rows: Tensor) -> list[dict[str, Any]]:
    """The ablation table."""
    mean = torch.from_numpy(gates_of(model, mean_rows).mean(axis=0))
    return [
        _rounded(
            {
                "name": e.name,
                "loss": e.loss,
                "perplexity": e.perplexity,
                "delta_loss": e.delta_loss,
                "kl": e.kl,
                "top1_changed": e.top1_changed,
            }
        )
        for e in effects(model, rows, ablations(model, mean))
    ]


def copying(model: Directional) -> dict[str, float]:
    """Induction accuracy of a text model on repeated random tokens, as trained and with routing off."""
    found = {}
    for period in (16, 64):
        rows = repeated_rows(32, period, model.config.vocab_size, seed=0, first_id=1)
        found[f"period {period}"] = induction(model, rows, period).accuracy
        if model.config.directions:
            found[f"period {period}, off"] = induction(model, rows, period, Interventions.everywhere(OFF)).accuracy
    return _rounded(found)


def words(model: Directional, val: TextCorpus, top: int = 10) -> dict[str, Any]:
    """Top words of a direction in each layer (the one with the highest score), and the angles between directions.

    Words that the validation file holds less than ten times are left out.
    """
    often = np.bincount(val.ids.numpy(), minlength=model.config.vocab_size) >= 10
    vocabulary, texts = direction_vocabulary(model, top, often), val.tokenizer.token_texts
    angles, found = direction_angles(model), {}
    for layer in range(model.config.layers):
        score = vocabulary.scores[layer, :, :, 0]
        head, k = np.unravel_index(score.argmax(), score.shape)
        found[f"L{layer}H{head}K{k}"] = [texts[i] for i in vocabulary.token_ids[layer, head, k]]
    signed = direction_angles(model, signed=True)
    return {
        "examples": found,
        "mean_angle": round(float(angles.mean()), 1),
        "signed_angle": round(float(signed.mean()), 1),
        "signed_error": round(float(signed.std()) / signed.numel() ** 0.5, 1),
    }


def claims(results: dict[str, Any], command: str) -> list[dict[str, Any]]:
    """The table: what the paper reports, what we measured; reproduced with its pooling, and with the causal one?"""
    models, look, know = results["models"], results["lookahead"], results["knowledge"]
    table = {name: {row["name"]: row for row in results["ablations"][name]} for name in SHIPPED}
    below = {name: round(1 - models[name]["perplexity"] / models[UNROUTED]["perplexity"], 4) for name in SHIPPED}
    hidden = round(1 - math.exp(look[SEQUENCE]["hidden"] - look["unrouted, same targets"]), 4)
    gains = {name: {k: v["gain"] for k, v in row.items()} for name, row in results["by_position"].items()}
    last, second = look["last position"], look["second half"]
    layers = range(DIRECTIONAL_RECIPES[SEQUENCE].model.layers)
    off = {name: [table[name][f"off in layer {i}"]["delta_loss"] for i in layers] for name in SHIPPED}
    gates = ("normal", "off", "neutral", "full", "mean gates")
    rows = [
        (
            "perplexity is 31–56 % below the unrouted twin's (26 M model: 18–40 %)",
            {
                f"{SEQUENCE}, future in view": below[SEQUENCE],
                f"{SEQUENCE}, future hidden": hidden,
                PREFIX: below[PREFIX],
            },
            lambda name: (hidden if name == SEQUENCE else below[name]) > 0.1,
        ),
        (
            "(ours) hiding the tokens behind a position costs the model (nats)",
            {name: [look[name]["gain"], look[name]["standard_error"]] for name in SHIPPED},
            lambda name: look[name]["gain"] > 3 * look[name]["standard_error"] + 1e-3,
        ),
        (
            "(ours) a gain is left where nothing can be seen ahead: last position; "
            "second half, gates held from the first",
            {"last position": last, "second half": second},
            lambda name: last[name]["minus_unrouted"] < -2 * last[name]["standard_error"],
        ),
        ("the gain falls with position", gains, lambda name: _falls(list(gains[name].values()))),
        (
            "switching routing off collapses the model (perplexity)",
            {name: {k: table[name][k]["perplexity"] for k in gates} for name in SHIPPED},
            lambda name: table[name]["off"]["delta_loss"] > 1,
        ),
        (
            "fixed gates ruin the model (PPL 3575 against 15); ours: gates at their mean, Δ loss",
            {name: table[name]["mean gates"]["delta_loss"] for name in SHIPPED},
            lambda name: table[name]["mean gates"]["delta_loss"] > 1,
        ),
        (
            "early layers hold the specialist heads",
            {name: know[name]["specialists"] for name in SHIPPED},
            lambda name: 2 * sum(know[name]["specialists"][: len(layers) // 2]) > sum(know[name]["specialists"]),
        ),
        (
            "the layer that varies least is the most critical when switched off (there: layer 9 of 12)",
            {name: {"variance": know[name]["layer_variance"], "off, Δ loss": off[name]} for name in SHIPPED},
            lambda name: np.argmin(know[name]["layer_variance"]) == np.argmax(off[name]),
        ),
        (
            "swapping the gates of code and prose costs more in early layers than in late",
            {name: [know[name]["swap_early"], know[name]["swap_late"]] for name in SHIPPED},
            lambda name: know[name]["swap_early"] > know[name]["swap_late"],
        ),
        (
            "the nearest centroid tells domains apart (23 of 24)",
            {
                name: {k: know[name][k] for k in ("balanced", "untrained_balanced", "null_mean", "p_value")}
                for name in SHIPPED
            },
            lambda name: know[name]["balanced"] > 0.9,
        ),
        (
            "induction 93.4 % with routing, 0 % without (benchmarks.induction has it in models that learn it)",
            results["induction"],
            lambda name: results["induction"][name]["period 64"] > 0.5,
        ),
        (
            "directions of a head lie closer than at random (75.9° against 89.4°, signed)",
            {name: results["words"][name]["signed_angle"] for name in SHIPPED}
            | {"lines": {name: results["words"][name]["mean_angle"] for name in SHIPPED}, "random": random_angle()},
            lambda name: results["words"][name]["mean_angle"] < random_angle() - 2,
        ),
    ]
    return [
        {
            "claim": claim,
            "ours": ours,
            "reproduced": bool(ok(SEQUENCE)),
            "reproduced_causally": bool(ok(PREFIX)),
            "command": command,
        }
        for claim, ours, ok in rows
    ]


def swaps(model: Directional, rows: dict[str, Tensor]) -> dict[str, Any]:
    """What it costs when texts of code and of prose take each other's gates in half of the layers, and the paired
    difference of both halves with its 95 % interval (Student's t)."""
    pairs = min(len(rows["code"]), len(rows["prose"]))
    middle = model.config.layers // 2
    early, late = (
        swap_effects(model, rows["code"][:pairs], rows["prose"][:pairs], layers)
        for layers in (range(middle), range(middle, model.config.layers))
    )
    difference = early - late
    mean = float(difference.mean())
    half = float(stdtrit(pairs - 1, 0.975)) * float(difference.std()) / math.sqrt(pairs)
    return _rounded({"swap_early": float(early.mean()), "swap_late": float(late.mean())}) | {
        "swap_early_less_late": _rounded({"value": mean, "low": mean - half, "high": mean + half, "pairs": pairs})
    }


def random_angle() -> float:
    """Mean angle between the lines of a head's directions at initialisation."""
    torch.manual_seed(0)
    config = DIRECTIONAL_RECIPES[SEQUENCE].model
    wide = Directional(config.model_copy(update={"layers": 40, "vocab_size": 1, "mlp_width": 1}))
    return round(float(direction_angles(wide).mean()), 1)


def _falls(gains: list[float]) -> bool:
    return gains == sorted(gains, reverse=True) and gains[0] > 0


def _rounded(numbers: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in numbers.items()}


def write_cards(results: dict[str, Any]) -> None:
    """The figures, on the cards of the shipped checkpoints."""
    for name in SHIPPED:
        note(
            SHIPPED_MODELS / name,
            {
                "beside": results["models"],
                "lookahead": results["lookahead"][name],
                "ablations": results["ablations"][name],
                "domains": results["knowledge"][name],
                "induction": results["induction"][name],
            },
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--write-cards", action="store_true")
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--trainings", type=Path)
    given = parser.parse_args(arguments)
    tokenizer = TextTokenizer.load(SHARED_TOKENIZER)
    val = load_text(given.data / "text/english_val.parquet", tokenizer)
    command = "python -m benchmarks.directional --data <data folder> --work <work folder>"
    if given.shipped:
        results = kept_document("directional")["results"]
        shipped = {name: build_model(read_checkpoint(SHIPPED_MODELS / name)) for name in SHIPPED}
        found = {name: model for name, model in shipped.items() if isinstance(model, Directional)}
        results["words"] = {n: words(m, val) for n, m in found.items()} | {"random_angle": random_angle()}
        documents = domain_rows(given.data, tokenizer, DOMAIN_TOKENS, 60)
        for name, model in found.items():
            results["knowledge"][name] |= swaps(model, documents)
        results["claims"] = claims(results, command)
        report("directional", command, results)
        return
    if given.trainings:
        document = kept_document("directional")
        results = document["results"] | {"trainings": read_trainings(given.trainings, DIRECTIONAL_RECIPES)}
        if given.write_cards:
            write_cards(results)
        report("directional", command, results, measured_on=document["machine"])
        return
    if given.work is None:
        parser.error("give --work, the folder with the states of training, --trainings or --shipped")
    models = trained(given.work)
    documents = domain_rows(given.data, tokenizer, DOMAIN_TOKENS, 60)
    long_rows, many = (spread_rows(val.ids, 257, count) for count in (WINDOWS, LAST_WINDOWS))
    results: dict[str, Any] = {"trainings": kept_document("directional")["results"].get("trainings", {})}

    def measure(name: str, work) -> None:
        print(f"{name} …", file=sys.stderr, flush=True)
        results[name] = work()

    routed = {name: models[name] for name in SHIPPED}
    measure("models", lambda: quality(models, val))
    measure("lookahead", lambda: ahead(models, long_rows, many))
    measure("by_position", lambda: by_position(models, long_rows))
    measure(
        "domain_perplexity",
        lambda: domain_perplexity(models, domain_rows(given.data, tokenizer, 257, 40, per_document=8)),
    )
    measure("ablations", lambda: {n: changed(m, long_rows[::2], long_rows[1::2, :-1]) for n, m in routed.items()})
    measure("knowledge", lambda: {n: knowledge(m, documents) for n, m in routed.items()})
    measure("words", lambda: {n: words(m, val) for n, m in routed.items()} | {"random_angle": random_angle()})
    measure("induction", lambda: {n: copying(m) for n, m in models.items()})
    results["claims"] = claims(results, command)
    if given.write_cards:
        write_cards(results)
    report("directional", command, results)


if __name__ == "__main__":
    main()
