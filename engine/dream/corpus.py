"""Windows of a text corpus ranked by an objective: starting points of text dreams.

Shapes: B windows of L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from tokenpaths.engine.data.datasets import Sample, open_dataset
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.dream.objectives import Objective
from tokenpaths.engine.dream.text_loop import reads_back, texts_a_pass, worth
from tokenpaths.engine.models.family import RoutedModel

BATCH = 128


@dataclass(frozen=True)
class Window:
    """A stretch of a text, cut anywhere between two tokens."""

    ids: tuple[int, ...]
    label: str | None
    source: str


@dataclass(frozen=True)
class Scored:
    """A window and what the objective says of it."""

    value: float
    window: Window


def windows(data: str, tokenizer: TextTokenizer, length: int, most: int) -> list[Window]:
    """At most ``most`` windows, evenly over the texts, half a window apart where there are not more than that."""
    encoded = _encoded(data, tokenizer)
    stride = max(1, length // 2)
    starts = [(i, at) for i, (_, ids) in enumerate(encoded) for at in range(0, len(ids) - length + 1, stride)]
    places = np.linspace(0, len(starts) - 1, min(most, len(starts))).astype(int)
    chosen = np.unique(places).tolist() if starts else []
    rows = []
    for index in chosen:
        sample, ids = encoded[starts[index][0]]
        at = starts[index][1]
        rows.append(Window(tuple(ids[at : at + length].tolist()), sample.label, sample.source))
    return rows


@lru_cache(maxsize=2)
def _encoded(data: str, tokenizer: TextTokenizer) -> list[tuple[Sample, np.ndarray]]:
    """Reading a bundled set takes a second; a worker makes many dreams with few tokenizers."""
    return [(sample, tokenizer.encode(sample.text or "").ids) for sample in open_dataset(data, "text")]


def batch_of(length: int) -> int:
    """Windows in one forward pass: at most ``BATCH``, and no more tokens than one pass takes."""
    return min(BATCH, texts_a_pass(length))


@torch.no_grad()
def scores(model: RoutedModel, objective: Objective, some: list[Window]) -> Iterator[list[float]]:
    """The objective of each window, some at a time (``batch_of``)."""
    device = model.device
    batch = batch_of(len(some[0].ids)) if some else 1
    for start in range(0, len(some), batch):
        ids = torch.tensor([w.ids for w in some[start : start + batch]], device=device)
        yield worth(model, ids, objective, 0)[0].tolist()


def best(candidates: list[Window], values: list[float], tokenizer: TextTokenizer, count: int) -> list[Scored]:
    """The best windows with different last tokens, best first; only those that read back as they were cut."""
    ranking: list[Scored] = []
    seen: set[int] = set()
    for index in sorted(range(len(values)), key=lambda i: -values[i]):
        window = candidates[index]
        if window.ids[-1] in seen or not reads_back(tokenizer, torch.tensor(window.ids)):
            continue
        seen.add(window.ids[-1])
        ranking.append(Scored(values[index], window))
        if len(ranking) == count:
            break
    return ranking
