"""Answers of the API in its exact shapes, made from random ribbons: what the chart tests draw."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060000000"
    "0400012734270a0000000049454e44ae426082"
)


def ribbons(num: int = 600, steps: int = 5, modules: int = 8, top_k: int = 1, seed: int = 0) -> np.ndarray:
    """(num, steps, top_k) distinct module ids per step, skewed so that paths repeat."""
    chance = np.random.default_rng(seed)
    scores = chance.gumbel(size=(num, steps, modules)) - 1.3 * chance.permuted(
        np.tile(np.log1p(np.arange(modules)), (steps, 1)), axis=1
    )
    return np.argsort(-scores, axis=2)[:, :, :top_k]


def module_rows(modules: int, identities: tuple[int, ...]) -> list[dict[str, Any]]:
    return [
        {
            "step": None,
            "module": m,
            "name": f"identity {m}" if m in identities else f"transformer {m}",
            "kind": "identity" if m in identities else "transformer",
            "num_params": 0 if m in identities else 1000,
            "flops_per_token": 0 if m in identities else 2000,
        }
        for m in range(modules)
    ]


def flow(table: np.ndarray, identities: tuple[int, ...] = (7,), modules: int = 8) -> dict[str, Any]:
    num, steps, top_k = table.shape
    names = {row["module"]: row for row in module_rows(modules, identities)}
    nodes, links = [], []
    for step in range(steps):
        for module, count in sorted(Counter(table[:, step].ravel().tolist()).items()):
            nodes.append(
                {
                    "step": step,
                    "module": module,
                    "name": names[module]["name"],
                    "kind": names[module]["kind"],
                    "count": count,
                    "share": count / num,
                }
            )
        if step + 1 < steps:
            pairs: Counter[tuple[int, int]] = Counter()
            for before, after in zip(table[:, step], table[:, step + 1], strict=True):
                for i in before.tolist():
                    for j in after.tolist():
                        pairs[i, j] += 1
            links += [
                {
                    "step": step,
                    "source": i,
                    "target": j,
                    "count": c / top_k**2,
                    "weight": c / top_k**2,
                    "share": c / top_k**2 / num,
                }
                for (i, j), c in sorted(pairs.items())
            ]
    return {
        "run": "demo",
        "filters": {},
        "num_tokens": num,
        "steps": list(range(steps)),
        "nodes": nodes,
        "links": links,
        "other": [],
    }


def ranked(table: np.ndarray) -> list[tuple[tuple[tuple[int, ...], ...], int]]:
    counts = Counter(tuple(tuple(sorted(s)) for s in row) for row in table.tolist())
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def fit(table: np.ndarray) -> dict[str, Any]:
    counts = [count for _ribbon, count in ranked(table)]
    total, slope = sum(counts), -1.1
    points = [{"rank": rank, "count": count, "share": count / total} for rank, count in enumerate(counts, 1)]
    return {
        "num_paths": len(counts),
        "num_tokens": total,
        "slope": slope,
        "r2": 0.97,
        "points": points,
        "effective_paths": math.exp(-sum(c / total * math.log(c / total) for c in counts)),
    }


def sample(
    table: np.ndarray, *, cols: int = 4, text: str | None = None, identities: tuple[int, ...] = (7,)
) -> dict[str, Any]:
    order = {ribbon: (rank, count) for rank, (ribbon, count) in enumerate(ranked(table), 1)}
    counts = [count for _ribbon, count in ranked(table)]
    cdfs = np.cumsum(counts) / sum(counts)
    tokens = []
    for index, row in enumerate(table.tolist()):
        rank, _count = order[tuple(tuple(sorted(s)) for s in row)]
        visits = [m for s in row for m in s if m not in identities]
        token = {
            "token": index,
            "loss": None,
            "ribbon": row,
            "weights": [[1 / len(s)] * len(s) for s in row],
            "rank": rank,
            "cdf": float(cdfs[rank - 1]),
            "compute": len(visits) / (len(row) * len(row[0])),
            "reuse": 1 - len(set(visits)) / max(1, len(visits)),
            "gate_entropy": 1.0,
            "flops": 1e6,
            "region": None,
        }
        if text is None:
            token |= {"row": index // cols, "col": index % cols}
        else:
            token |= {"token_id": index, "text": text[index], "char_start": index, "char_end": index + 1}
        tokens.append(token)
    return {
        "sample": 0,
        "label": "cat",
        "prediction": "cat",
        "confidence": 0.5,
        "loss": 0.7,
        "num_tokens": len(tokens),
        "compute": 0.8,
        "reuse": 0.2,
        "num_distinct_paths": len(order),
        "snippet": text,
        "has_image": text is None,
        "source": "a.png",
        "text": text,
        "tokens": tokens,
        "grid": None if text is not None else {"rows": -(-len(tokens) // cols), "cols": cols},
    }


def usage(table: np.ndarray, modules: int = 8, identities: tuple[int, ...] = (7,)) -> dict[str, Any]:
    num, steps, top_k = table.shape
    names = {row["module"]: row for row in module_rows(modules, identities)}
    rows, per_step = [], []
    for step in range(steps):
        counts = np.bincount(table[:, step].ravel(), minlength=modules)
        rows += [
            {
                "step": step,
                "module": m,
                "name": names[m]["name"],
                "kind": names[m]["kind"],
                "count": int(c),
                "share": c / num,
                "utilisation": c * modules / counts.sum(),
                "weight": float(c),
            }
            for m, c in enumerate(counts.tolist())
        ]
        squares = (counts.astype(float) ** 2).sum() ** 1.5 / (counts.astype(float) ** 3).sum()
        per_step.append(
            {
                "step": step,
                "effective_top_k": squares,
                "untrained_effective_top_k": squares * 1.2,
                "load_entropy": 0.8,
                "max_violation": 1.0,
                "importance_cv2": 0.25,
                "gate_entropy": 1.1,
                "dead": np.flatnonzero(counts == 0).tolist(),
            }
        )
    return {"run": "demo", "steps": per_step, "usage": rows}


def distribution(measure: str = "compute", per: str = "sample") -> dict[str, Any]:
    values = np.random.default_rng(1).beta(8, 3, 500)
    counts, edges = np.histogram(values, 40)
    return {
        "run": "demo",
        "measure": measure,
        "per": per,
        "num": 500,
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "q01": 0.3,
        "median": 0.7,
        "q99": 0.95,
        "max": float(values.max()),
        "bins": [
            {"lo": lo, "hi": hi, "count": c}
            for lo, hi, c in zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True)
        ],
        "by_label": [{"label": f"label {i}", "num": 50, "mean": 0.6 + i / 100} for i in range(12)],
    }
