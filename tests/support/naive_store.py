"""Naive twin of the store: every answer by loops over the arrays that were written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tests.support.runs import RunArrays
from tokenpaths.engine.base.records import UNUSED_KIND
from tokenpaths.engine.store.ask.run import Run


class Naive:
    """Answers to the questions of a run, one token at a time."""

    def __init__(self, made: RunArrays) -> None:
        self.made = made
        self.ids = made.ids
        self.levels = np.vectorize(self.kept, otypes=[float])(made.weights.astype(np.float32))
        self.labels = made.per_token([s.label for s in made.samples])
        self.sample_of = made.per_token(list(range(len(made.samples))))
        self.keys = [tuple(tuple(sorted(step)) for step in ribbon) for ribbon in self.ids.tolist()]
        counts = Counter(self.keys)
        flat = {key: tuple(i for step in key for i in step) for key in counts}
        # Long ribbons that most tokens have alone: equal counts in the order of their first tokens.
        unique = len(next(iter(flat.values()))) > 64 and 2 * len(counts) > len(self.keys)
        self.ranked = sorted(counts, key=lambda key: (-counts[key], () if unique else flat[key]))
        self.rank = {key: rank for rank, key in enumerate(self.ranked, 1)}
        self.count = counts
        total, running = len(self.keys), 0
        self.cdf = {}
        for key in self.ranked:
            running += counts[key]
            self.cdf[key] = running / total
        self.identity = {m.module for m in made.modules if m.kind == "identity"}
        self.unused = {m.module for m in made.modules if m.kind == UNUSED_KIND}

    def kept(self, weight: float) -> float:
        """``weight`` after its 8-bit code: linear in small banks, logarithmic in large ones."""
        if self.made.info.top_k <= 2 and self.made.info.num_modules <= 64:
            return round(float(np.float32(weight) * np.float32(255))) / 255
        if weight < 2**-10:
            return round(float(weight) * 15 * 2**10) / (15 * 2**10)
        return 2 ** (round(24 * float(np.log2(float(weight)))) / 24)

    def tokens(self, label=None, paths=(), through=()) -> Iterator[int]:
        for token, key in enumerate(self.keys):
            if label is not None and self.labels[token] != label:
                continue
            if paths and self.rank[key] not in paths:
                continue
            if all(module in self.ids[token, step] for step, module in through):
                yield token

    def compute(self, token: int) -> float:
        visits = self.ids[token].reshape(-1).tolist()
        return sum(v not in self.identity | self.unused for v in visits) / len(visits)

    def reuse(self, token: int) -> float:
        visits = [v for v in self.ids[token].reshape(-1).tolist() if v not in self.identity | self.unused]
        return 1 - len(set(visits)) / len(visits) if visits else 0.0

    def links(self, tokens: list[int]) -> dict[tuple[int, int, int], tuple[float, float]]:
        """(step, source, target) -> (count, weight)."""
        found: dict = defaultdict(lambda: [0.0, 0.0])
        for token in tokens:
            for step in range(self.made.info.num_steps - 1):
                here, there = self._shares(token, step), self._shares(token, step + 1)
                for source, w in here:
                    for target, v in there:
                        found[step, source, target][0] += 1 / (len(here) * len(there))
                        found[step, source, target][1] += w * v
        return {key: tuple(value) for key, value in found.items()}

    def _shares(self, token: int, step: int) -> list[tuple[int, float]]:
        """The modules that a token uses at a step, each with its share of their weight."""
        pairs = zip(self.ids[token, step].tolist(), self.levels[token, step].tolist(), strict=True)
        used = [(module, weight) for module, weight in pairs if module not in self.unused]
        total = sum(weight for _, weight in used)
        return [(module, weight / total if total else 1 / len(used)) for module, weight in used]

    @property
    def modules(self) -> list[int]:
        """Ids of what is a module, and no unused slot."""
        return [module for module in range(self.made.info.num_modules) if module not in self.unused]

    def ribbon(self, token: int) -> list[list[int]]:
        """The modules that a token uses, by step and slot."""
        return [[m for m in step if m not in self.unused] for step in self.ids[token].tolist()]

    def shown(self, key: Iterable[Iterable[int]]) -> list[list[int]]:
        """The ribbon of a path as answers have it: without what stands for unused slots."""
        return [[module for module in step if module not in self.unused] for step in key]

    def visits(self, tokens: list[int], step: int) -> list[int]:
        """The modules that the tokens use at a step."""
        return [m for t in tokens for m in self.ids[t, step].tolist() if m not in self.unused]

    def linked(self, tokens: list[int], step: int) -> int:
        """How many of the tokens use a module at ``step`` and at the next one."""
        return sum(all(set(row) - self.unused for row in self.ids[t, step : step + 2].tolist()) for t in tokens)

    def usage(self, tokens: list[int]) -> dict[tuple[int, int], tuple[int, float]]:
        """(step, module) -> (count, weight)."""
        found: dict = defaultdict(lambda: [0, 0.0])
        for token in tokens:
            for step in range(self.made.info.num_steps):
                for module, weight in zip(self.ids[token, step].tolist(), self.levels[token, step], strict=True):
                    if module in self.unused:
                        continue
                    found[step, module][0] += 1
                    found[step, module][1] += float(weight)
        return {key: tuple(value) for key, value in found.items()}


@dataclass(frozen=True)
class Case:
    """A run and the slow way to the same answers."""

    run: Run
    naive: Naive

    @property
    def label(self) -> str | None:
        """A label that the run has."""
        return self.naive.made.samples[0].label
