"""Filters drawn at random, over runs of random shapes, beside numpy over the arrays that were written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.fuzz_settings import fuzzed_with
from tests.support.runs import RunArrays, make, make_experts
from tokenpaths.engine.store.ask.run import Run

EXAMPLES = 40


@dataclass(repr=False)
class Twin:
    """A run, and the same tokens as plain arrays."""

    run: Run
    made: RunArrays

    @cached_property
    def ids(self) -> np.ndarray:
        """(n, S, K), each step sorted: what a path is."""
        return np.sort(self.made.ids, axis=2)

    @cached_property
    def ranks(self) -> np.ndarray:
        """(n,) the rank of each token's path: by count, then by its modules, or by its first token."""
        flat = self.ids.reshape(len(self.ids), -1)
        paths, first, number, counts = np.unique(
            flat, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        unique = self.run.info()["path_layout"] == "unique"
        order = np.lexsort([*([first] if unique else paths.T[::-1]), -counts])  # the last key counts first
        rank = np.empty(len(paths), dtype=int)
        rank[order] = np.arange(1, len(paths) + 1)
        return rank[number.reshape(-1)]

    @cached_property
    def labels(self) -> np.ndarray:
        """(n,) labels, None where a sample has none."""
        return np.array(self.made.per_token([sample.label for sample in self.made.samples]), dtype=object)

    @cached_property
    def is_identity(self) -> np.ndarray:
        """(n, S, K) whether a visit costs nothing."""
        return np.isin(self.made.ids, [module.module for module in self.made.modules if module.kind == "identity"])

    @cached_property
    def compute(self) -> np.ndarray:
        """(n,) the share of visits that compute."""
        return 1 - self.is_identity.reshape(len(self.ids), -1).mean(axis=1)

    @cached_property
    def reuse(self) -> np.ndarray:
        """(n,) the share of computing visits to a module that was visited before; experts belong to their layer."""
        found, layer = [], 0
        if self.made.modules[0].step is not None:
            layer = self.made.info.num_modules * np.arange(self.made.info.num_steps)[None, :, None]
        for visits, free in zip(self.made.ids + layer, self.is_identity, strict=True):
            kept = visits[~free]
            found.append(1 - len(np.unique(kept)) / len(kept) if len(kept) else 0.0)
        return np.array(found)

    def chosen(self, asked: dict[str, Any]) -> np.ndarray:
        """(n,) which tokens pass all filters."""
        held = np.ones(len(self.ids), dtype=bool)
        if asked.get("label") is not None:
            held &= self.labels == asked["label"]
        if asked.get("paths"):
            held &= np.isin(self.ranks, asked["paths"])
        for step, module in asked.get("through", ()):
            held &= (self.made.ids[:, step] == module).any(axis=1)
        for name, values in (("ranks", self.ranks), ("compute", self.compute), ("reuse", self.reuse)):
            if asked.get(name) is not None:
                held &= (values >= asked[name][0] - 1e-9) & (values <= asked[name][1] + 1e-9)
        return held


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Twin]]:
    """Every layout of the table of tokens: one and two modules a step, bytes and words, columns and packed."""
    folder: Path = tmp_path_factory.mktemp("filters")
    several = [
        make("a", samples=5, steps=4, modules=5, seed=1),
        make("b", "text", samples=7, steps=3, modules=4, seed=2),
        make("c", samples=3, steps=3, modules=6, top_k=2, seed=3),
        make("d", samples=2, steps=2, modules=2, seed=4),
        make("e", samples=3, steps=1, modules=3, seed=5, identities=0),
        make("f", samples=3, labels=False, seed=6),
        make("g", "text", samples=5, steps=3, modules=300, seed=7),
        make_experts("h", layers=4, experts=12, top_k=3, samples=5),
        make_experts("i", layers=20, experts=70, top_k=4, samples=4, length=12),
    ]
    opened = [Twin(Run.open(made.write(folder)), made) for made in several]
    yield opened
    for twin in opened:
        twin.run.close()


@st.composite
def questions(draw: st.DrawFn, twins: list[Twin], more: bool) -> tuple[Twin, dict[str, Any]]:
    """A run and filters: most of them name what the run has, some what a real token did."""
    twin = draw(st.sampled_from(twins))
    info, asked = twin.made.info, {}
    token = draw(st.integers(0, len(twin.ids) - 1))
    names = sorted({str(label) for label in twin.labels if label is not None})
    if names and draw(st.booleans()):
        asked["label"] = draw(st.sampled_from(names))
    if draw(st.booleans()):
        most = int(twin.ranks.max())
        asked["paths"] = tuple(draw(st.lists(st.integers(1, most), max_size=8)))
    if draw(st.booleans()):
        steps = st.integers(0, info.num_steps - 1)
        own = st.builds(
            lambda step, slot: (step, int(twin.made.ids[token, step, slot])), steps, st.integers(0, info.top_k - 1)
        )
        asked["through"] = tuple(
            draw(st.lists(st.one_of(own, own, st.tuples(steps, st.integers(0, info.num_modules - 1))), max_size=4))
        )
    if more:
        ends = st.floats(0, 1, allow_subnormal=False)
        for name in ("compute", "reuse"):
            if draw(st.booleans()):
                asked[name] = tuple(sorted((draw(ends), draw(ends))))
        if draw(st.booleans()) or not asked:
            asked["ranks"] = tuple(sorted(draw(st.integers(1, int(twin.ranks.max()))) for _ in "12"))
    return twin, asked


@fuzzed_with(EXAMPLES)
@given(data=st.data())
def test_flows_and_paths_of_filtered_tokens(twins: list[Twin], data: st.DataObject) -> None:
    twin, asked = data.draw(questions(twins, False))
    held, run, info = twin.chosen(asked), twin.run, twin.made.info
    first = data.draw(st.integers(0, info.num_steps - 1))
    steps = (first, data.draw(st.integers(first + 1, info.num_steps)))
    flow = run.flow(**asked, steps=steps, limit=1000)
    assert flow["num_tokens"] == held.sum()
    ids = twin.made.ids[held]
    for step in range(steps[0], steps[1] - 1):
        pairs, counts = np.unique(
            np.stack(
                [np.repeat(ids[:, step], info.top_k, axis=1), np.tile(ids[:, step + 1], (1, info.top_k))], -1
            ).reshape(-1, 2),
            axis=0,
            return_counts=True,
        )
        expected = {(int(a), int(b)): n / info.top_k**2 for (a, b), n in zip(pairs, counts, strict=True)}
        shown = {(one["source"], one["target"]): one["count"] for one in flow["links"] if one["step"] == step}
        other = sum(one["count"] for one in flow["other"] if one["step"] == step)
        assert shown == pytest.approx({pair: expected[pair] for pair in shown})
        assert other or len(shown) == len(expected), "what is not shown is counted"
        assert sum(shown.values()) + other == pytest.approx(float(held.sum()))
    page, offset = [], 0
    limit = data.draw(st.integers(1, 60))
    order = data.draw(st.sampled_from(["rank", "compute", "reuse"]))
    while offset is not None:
        answer = run.paths(**asked, order=order, limit=limit, offset=offset)
        page += answer["paths"]
        offset = answer["next"]
    assert {row["rank"]: row["count"] for row in page} == dict(
        zip(*(part.tolist() for part in np.unique(twin.ranks[held], return_counts=True)), strict=True)
    )
    assert len(page) == answer["num_paths"], "no path on two pages"
    if order != "rank":
        values = [row[order] for row in page]
        assert values == sorted(values, reverse=True)
        by_rank = dict(zip(twin.ranks.tolist(), getattr(twin, order).tolist(), strict=True))
        assert values == pytest.approx([by_rank[row["rank"]] for row in page])


@fuzzed_with(EXAMPLES)
@given(data=st.data())
def test_searches_find_the_tokens_that_pass(twins: list[Twin], data: st.DataObject) -> None:
    twin, asked = data.draw(questions(twins, True))
    held = twin.chosen(asked)
    found = twin.run.search_tokens(**asked, limit=100, examples=5)
    assert found["found"]["num_tokens"] == held.sum(), asked
    if held.any():
        ranks, counts = np.unique(twin.ranks[held], return_counts=True)
        everything = dict(zip(ranks.tolist(), counts.tolist(), strict=True))
        assert found["num_paths"] == len(everything)
        assert [row["count"] for row in found["paths"]] == sorted(everything.values(), reverse=True)[:100]
        assert all(everything[row["rank"]] == row["count"] for row in found["paths"])


@fuzzed_with(EXAMPLES)
@given(data=st.data())
def test_pages_of_samples_are_whole_and_in_order(twins: list[Twin], data: st.DataObject) -> None:
    twin = data.draw(st.sampled_from(twins))
    samples = twin.made.samples
    names = sorted({sample.label for sample in samples if sample.label is not None})
    label = data.draw(st.one_of(st.none(), st.sampled_from(names))) if names else None
    asked = {
        "label": label,
        "q": data.draw(st.sampled_from([None, "e", "cir", "THE", "é", "%", "zz"])),
        "order": data.draw(st.sampled_from(["sample", "compute", "reuse", "loss", "confidence"])),
        "descending": data.draw(st.booleans()),
    }
    expected = {
        number
        for number, one in enumerate(samples)
        if (label is None or one.label == label)
        and (
            asked["q"] is None
            or asked["q"].casefold()
            in "\n".join(
                str(part) for part in (one.label, one.prediction, one.source, one.text) if part is not None
            ).casefold()
        )
    }
    rows, offset, limit = [], 0, data.draw(st.integers(1, 9))
    while offset is not None:
        answer = twin.run.samples(**asked, limit=limit, offset=offset)
        assert answer["total"] == len(expected)
        rows += answer["samples"]
        offset = answer["next"]
    assert sorted(row["sample"] for row in rows) == sorted(expected), "each once"
    values = [row[asked["order"]] for row in rows if row.get(asked["order"]) is not None]
    assert values == sorted(values, reverse=asked["descending"])


@fuzzed_with(EXAMPLES)
@given(data=st.data())
def test_histograms_count_every_value(twins: list[Twin], data: st.DataObject) -> None:
    twin = data.draw(st.sampled_from(twins))
    measure, bins = data.draw(st.sampled_from(["compute", "reuse"])), data.draw(st.integers(1, 60))
    names = sorted({str(label) for label in twin.labels if label is not None})
    label = data.draw(st.sampled_from([None, *names]))
    values = getattr(twin, measure)[twin.chosen({"label": label})]
    answer = twin.run.distribution(measure, "token", bins=bins, label=label)
    assert sum(one["count"] for one in answer["bins"]) == len(values)
    assert answer["mean"] == pytest.approx(float(values.mean()))
    assert (answer["min"], answer["max"]) == pytest.approx((values.min(), values.max()), abs=1e-6)
