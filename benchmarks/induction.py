"""Is routing what induction runs on? Small twins trained on repeated random sequences alone; needs no data.

    python -m benchmarks.induction [--seeds 3] [--iterations 700]

A text model of the shipped size does not learn induction at all, so the paper's circuit (section 3.2) is
looked for where it forms: three layers of width 128 that see nothing but random segments of distinct tokens,
written again and again. Routed as in the paper, routed causally, and not routed; then each gate and head
intervention. Two of them the paper lacks: gates held at their mean, which takes away what routing knows of the
input and leaves all else as trained, and the same head knockouts in the unrouted twin.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import report
from tokenpaths.engine.base.device import cpu_gains_by_bfloat16, mixed_precision
from tokenpaths.engine.edits.gate_effects import ablations, gates_of, induction, knockout_accuracies, repeated_rows
from tokenpaths.engine.models.directional import Directional, DirectionalConfig
from tokenpaths.engine.models.directional_gates import Interventions

MODEL = DirectionalConfig(
    width=128,
    heads=4,
    mlp_width=256,
    layers=3,
    directions=4,
    router_width=64,
    temperature=0.5,
    tied=False,
    vocab_size=64,
    context=64,
)
CONFIGS = {
    "sequence": MODEL,
    "prefix": MODEL.model_copy(update={"pooling": "prefix"}),
    "unrouted": MODEL.unrouted_twin(),
}
PERIODS, TEST_PERIOD, TEST_REPEATS = (4, 32), 16, 4
BATCH, RATE, WARMUP = 64, 3e-3, 50
KNOCKED_OUT = 3
"""heads that are taken out together, as in the paper: the ones that matter most, and as many others"""


def copying_rows(rng: np.random.Generator) -> Tensor:
    """A batch of segments with random periods, repeated to fill the context and one token more."""
    config = MODEL
    rows = []
    for period in rng.integers(PERIODS[0], PERIODS[1] + 1, size=BATCH):
        rows.append(np.resize(rng.permutation(config.vocab_size)[:period], config.context + 1))
    return torch.from_numpy(np.stack(rows))


def copier(config: DirectionalConfig, seed: int, iterations: int) -> Directional:
    """A model trained on nothing but repetitions."""
    torch.manual_seed(seed)
    model, rng = Directional(config), np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    for i in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (i + 1) / WARMUP)
        rows = copying_rows(rng)
        with mixed_precision(torch.device("cpu"), cpu_gains_by_bfloat16()):
            loss, _ = model.training_loss(rows[:, :-1], rows[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval().requires_grad_(False)


def measure(model: Directional) -> dict[str, float]:
    """Induction accuracy on fresh sequences, as trained and under every intervention."""
    config = model.config
    rows, others = (
        repeated_rows(128, TEST_PERIOD, config.vocab_size, seed=seed, repeats=TEST_REPEATS) for seed in (10_000, 20_000)
    )
    changes: dict[str, Interventions] = {}
    if config.directions:
        changes = ablations(model, torch.from_numpy(gates_of(model, others).mean(axis=0)))
        changes["gates of another sequence"] = Interventions.swapped(model(others[:, :-1]).gates)
    alone = knockout_accuracies(model, rows, TEST_PERIOD)
    by_weight = [tuple(map(int, np.unravel_index(i, alone.shape))) for i in alone.ravel().argsort(kind="stable")]
    changes["strongest head knocked out"] = Interventions(knocked_out=tuple(by_weight[:1]))
    changes[f"{KNOCKED_OUT} strongest heads knocked out"] = Interventions(knocked_out=tuple(by_weight[:KNOCKED_OUT]))
    changes[f"{KNOCKED_OUT} other heads knocked out"] = Interventions(knocked_out=tuple(by_weight[-KNOCKED_OUT:]))
    found = {"normal": induction(model, rows, TEST_PERIOD).accuracy}
    for name, change in changes.items():
        found[name] = _accuracy(model, rows, change)
    return {name: round(value, 4) for name, value in found.items()}


def _accuracy(model: Directional, rows: Tensor, change: Interventions) -> float:
    # Foreign gates belong to rows, and rows are measured a batch at a time: give each batch its own.
    gates = change.gates
    if gates is None or gates.shape[0] == 1:
        return induction(model, rows, TEST_PERIOD, change).accuracy
    parts = [
        induction(model, part, TEST_PERIOD, Interventions.swapped(own)).accuracy
        for part, own in zip(rows.split(32), gates.split(32), strict=True)
    ]
    return float(np.mean(parts))


def over_seeds(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Mean over seeds, and every seed's number."""
    return {
        name: {"mean": round(float(np.mean([r[name] for r in rows])), 4), "seeds": [r[name] for r in rows]}
        for name in rows[0]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=700)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"period": TEST_PERIOD, "iterations": arguments.iterations}
    for name, config in CONFIGS.items():
        rows = []
        for seed in range(arguments.seeds):
            rows.append(measure(copier(config, seed, arguments.iterations)))
            print(name, seed, rows[-1], file=sys.stderr, flush=True)
        results[name] = over_seeds(rows)
    report("induction", f"python -m benchmarks.induction --seeds {arguments.seeds}", results)


if __name__ == "__main__":
    main()
