"""Runs of a mixture of experts, whose modules belong to their step."""

from __future__ import annotations

import numpy as np

from tests.support.runs.arrays import RunArrays, columns_of, falling_weights, joined, routed, run_info
from tests.support.runs.small import DOMAINS, VOCABULARY
from tokenpaths.engine.adapters.expert_runs import ExpertLayer, expert_modules
from tokenpaths.engine.base.records import SampleRecord


def make_experts(
    run_id: str = "experts",
    *,
    layers: int = 4,
    experts: int = 16,
    top_k: int = 2,
    samples: int = 9,
    length: int = 24,
    dead: int = 1,
    seed: int = 0,
    labels: bool = True,
    text: bool = True,
    token_ids: bool = True,
    series: tuple[str, int] | None = None,
    drift: float = 0.0,
) -> RunArrays:
    """The arrays of a mixture of experts: each module belongs to its step; quick at 64 layers × 256 experts.

    A token takes, layer by layer, the experts of its own word, of its domain, or of everybody, each a tuple drawn
    once; the last ``dead`` experts of every other layer are never taken. ``text`` and ``token_ids`` False: as a log
    gives it. ``series`` (name, iteration) makes it a checkpoint of a training; ``drift`` is the share of decisions
    that are drawn anew, from a seed of the iteration, while words and domains stay those of ``seed``.
    """
    rng = np.random.default_rng(seed)
    config = {"seed": seed} | ({"series": {"name": series[0], "iteration": series[1]}} if series else {})
    info = run_info(
        run_id,
        model="toy-experts",
        family="moe",
        dataset="toy texts",
        num_steps=layers,
        num_modules=experts,
        top_k=top_k,
        weight_semantics={"score_function": "softmax"},
        config=config,
        token_texts=dict(enumerate(VOCABULARY)) if text else {},
    )
    bank = expert_modules([ExpertLayer(f"layer {layer}", experts, 1000, 2000) for layer in range(layers)])
    alive = np.array([experts - dead * (layer % 2) for layer in range(layers)])
    tuples = {
        kind: _tuples(rng, size, alive, top_k) for kind, size in (("word", len(VOCABULARY)), ("domain", 3), ("all", 8))
    }
    wandering = np.random.default_rng([seed, 0 if series is None else 1 + series[1]])
    batches = []
    for start in range(0, samples, 5):
        parts = [_expert_text(rng, number, length, labels, text) for number in range(start, min(start + 5, samples))]
        columns = columns_of(parts)
        word_n, domain_n = columns["token_id"], columns.pop("domain")
        n = len(word_n)
        kind_nS = rng.random((n, layers))
        everybody_nS = np.minimum(rng.zipf(1.6, (n, layers)) - 1, 7)
        step_S = np.arange(layers)
        ids = tuples["all"][everybody_nS, step_S]
        for kind, of_n, below in (("domain", domain_n, 0.65), ("word", word_n, 0.35)):
            taken = kind_nS < below
            ids[taken] = tuples[kind][of_n[:, None], step_S][taken]
        again = wandering.random((n, layers)) < drift
        ids[again] = tuples["all"][wandering.integers(0, 8, (n, layers)), step_S][again]
        columns["weights"] = falling_weights(rng, n, layers, top_k + 1, top_k)
        if not text:
            del columns["char_start"], columns["char_end"]
        if not token_ids:
            del columns["token_id"]
        batches.append(routed([record for record, _ in parts], ids, **columns))
    return RunArrays(info, bank, batches)


def _tuples(rng: np.random.Generator, size: int, alive: np.ndarray, top_k: int) -> np.ndarray:
    """(size, S, K) distinct experts among the first ``alive`` of each layer."""
    scores = rng.random((size, len(alive), int(alive.max())))
    scores[:, np.arange(scores.shape[2]) >= alive[:, None]] = 2.0
    return scores.argsort(axis=2)[:, :, :top_k]


def _expert_text(
    rng: np.random.Generator, number: int, length: int, labels: bool, text: bool
) -> tuple[SampleRecord, dict[str, np.ndarray]]:
    """Words of one domain; without ``text`` only their number."""
    domain = number % len(DOMAINS)
    label = list(DOMAINS)[domain]
    words = [str(word) for word in rng.choice(DOMAINS[label], size=length)]
    record = SampleRecord(
        num_tokens=length,
        label=label if labels else None,
        text=" ".join(words) if text else None,
        source=f"{label}.txt line {number}",
    )
    token_id = np.array([VOCABULARY.index(word) for word in words])
    return record, {"token_id": token_id, **joined(words), "domain": np.full(length, domain)}
