"""Runs with unknown decisions and unused slots: neither is a module, a choice or a repetition, counted by loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import RunArrays, make, make_experts, with_unrecorded, with_unused
from tokenpaths.engine.analysis.contrast import share_interval
from tokenpaths.engine.base.records import UNRECORDED_KIND, UNUSED_KIND
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import patch_kinds
from tokenpaths.engine.store.ask.topics import experts

STAND_INS = (UNRECORDED_KIND, UNUSED_KIND)


def made_of(name: str) -> RunArrays:
    few = make(name, "text", samples=12, steps=3, modules=6, top_k=2, identities=1, twin=False)
    made = {
        "some unknown": lambda: with_unrecorded(few, 0.6),
        "a step unknown": lambda: with_unrecorded(few, 1.0, first_step=2),
        "varied": lambda: with_unrecorded(with_unused(few, 0.3), 0.4, first_step=1),
        "experts": lambda: with_unrecorded(make_experts(name), 0.4),
        "few of many": lambda: with_unrecorded(make_experts(name, experts=3, top_k=2), 1.0, first_step=3),
    }
    return made[name.replace("-", " ")]()


class Case:
    """A run and what was written into it."""

    def __init__(self, made: RunArrays, run: Run) -> None:
        self.made, self.run = made, run
        self.kinds = {(m.step, m.module): m.kind for m in made.modules}
        self.sample_of = made.per_token(list(range(len(made.samples))))
        self.chosen = [
            [[m for m in here if self.kind(step, m) not in STAND_INS] for step, here in enumerate(token)]
            for token in made.ids.tolist()
        ]
        """modules of each token, step by step"""

    def kind(self, step: int, module: int) -> str:
        return self.kinds.get((step, module)) or self.kinds[None, module]

    def offered(self, step: int) -> list[int]:
        ids = {module for of, module in self.kinds if of in (None, step)}
        return sorted(module for module in ids if self.kind(step, module) not in STAND_INS)


@pytest.fixture(scope="module", params=["some-unknown", "a-step-unknown", "varied", "experts", "few-of-many"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    made = made_of(request.param)
    with Run.open(made.write(tmp_path_factory.mktemp("stand_ins"))) as run:
        yield Case(made, run)


def test_load_is_of_what_is_known(case: Case) -> None:
    answer = case.run.usage()
    for row in answer["steps"]:
        step, offered = row["step"], case.offered(row["step"])
        counts = Counter(module for token in case.chosen for module in token[step])
        cells = {cell["module"]: cell for cell in answer["usage"] if cell["step"] == step}
        assert {module: cell["count"] for module, cell in cells.items()} == {m: counts[m] for m in offered}
        if not counts:
            assert [row[name] for name in ("effective_top_k", "load_entropy", "max_violation")] == [None] * 3
            assert row["dead"] == []
            assert all(cell["utilisation"] is None for cell in cells.values())
            continue
        assert row["max_violation"] == pytest.approx(max(counts.values()) * len(offered) / counts.total() - 1)
        assert row["dead"] == [module for module in offered if not counts[module]]
    for row in case.run.load_by_label(case.run.layout.num_steps - 1)["labels"]:
        if not row["choices"]:
            assert [row[name] for name in ("load_entropy", "max_violation", "effective_top_k", "dead")] == [None] * 4


def test_kinds_have_intervals_of_their_known_slots(case: Case) -> None:
    shares = case.run.module_kinds()["shares"]
    assert len({kind for key, kind in case.kinds.items() if kind not in STAND_INS}) == 1 or shares
    for row in shares:
        hits, of = (np.zeros(len(case.made.samples)) for _ in range(2))
        for sample, token in zip(case.sample_of, case.chosen, strict=True):
            of[sample] += len(token[row["step"]])
            hits[sample] += sum(case.kind(row["step"], module) == row["kind"] for module in token[row["step"]])
        assert of.sum() > 0, "nothing is said of a step that is not known"
        assert row["share"] == pytest.approx(hits.sum() / of.sum())
        low, high = share_interval(hits[:, None], of)
        assert (row["low"], row["high"]) == pytest.approx((low[0], high[0]))


def test_samples_visit_modules_only(case: Case) -> None:
    visits = [set() for _ in case.made.samples]
    for sample, token in zip(case.sample_of, case.chosen, strict=True):
        visits[sample] |= {
            (step, m) for step, here in enumerate(token) for m in here if case.kind(step, m) != "identity"
        }
    answer = case.run.outcomes("modules", groups=2)
    sizes = sorted(map(len, visits))
    if answer["groups"]:
        assert (answer["groups"][0]["lowest"], answer["groups"][-1]["highest"]) == (sizes[0], sizes[-1])


def test_preferences_stand_beside_the_mean_of_all_tokens(case: Case) -> None:
    for step in range(case.run.layout.num_steps):
        answer = case.run.specialisation("label", step, limit=256)
        used = np.mean([len(token[step]) for token in case.chosen])
        assert answer["num_modules"] == len(case.offered(step))
        assert answer["baseline"] * answer["num_modules"] == pytest.approx(used)


def test_preferences_of_one_label_stand_beside_the_mean_of_its_tokens(case: Case) -> None:
    labels = [case.made.samples[sample].label for sample in case.sample_of]
    for label in set(labels):
        for step in range(case.run.layout.num_steps):
            answer = case.run.specialisation("input", step, label=label, limit=256)
            used = [len(token[step]) for token, own in zip(case.chosen, labels, strict=True) if own == label]
            assert answer["baseline"] * answer["num_modules"] == pytest.approx(np.mean(used))


def test_repetition_is_of_known_pairs(case: Case) -> None:
    for row in case.run.repetition()["steps"]:
        step = row["step"]
        pairs = [
            (case.chosen[t - 1][step], case.chosen[t][step])
            for t in range(1, len(case.chosen))
            if case.sample_of[t - 1] == case.sample_of[t] and case.chosen[t - 1][step] and case.chosen[t][step]
        ]
        if not pairs:
            assert [row[name] for name in ("first", "any", "baseline_any")] == [None] * 3
            continue
        assert row["first"] == pytest.approx(np.mean([one[0] == other[0] for one, other in pairs]))
        assert row["any"] == pytest.approx(np.mean([bool(set(one) & set(other)) for one, other in pairs]))
        assert 0 < row["baseline_any"] <= 1


def test_pairs_of_the_most_chosen_of_many_modules(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = case.run.co_activation(limit=256)
    counts = Counter(module for token in case.chosen for module in token[0])
    assert {row["module"]: row["count"] for row in whole["modules"]}.items() <= counts.items()
    monkeypatch.setattr(experts, "MOST_COMPARED", 2)
    few = case.run.co_activation(limit=256)
    assert len(few["modules"]) + few["more"] == len(counts)
    most = sorted(counts, key=lambda module: (-counts[module], module))[:2]
    assert {row["module"] for row in few["modules"]} <= set(most)
    for pair in few["pairs"]:
        both = sum({pair["module"], pair["other"]} <= set(token[0]) for token in case.chosen)
        assert (pair["count"], pair["share"]) == (both, pytest.approx(both / counts[pair["module"]]))


def test_every_question_counts_a_label_beside_all_of_it(case: Case) -> None:
    run, label = case.run, case.made.samples[0].label
    samples = [sample for sample in case.made.samples if sample.label == label]
    tokens = sum(sample.num_tokens for sample in samples)
    assert 0 < tokens < len(case.chosen)
    whole = {"num_samples": len(samples), "num_tokens": tokens, "of_samples": len(samples), "of_tokens": tokens}
    asked = [
        run.module_kinds(label),
        run.repetition(label=label),
        run.outcomes("reuse", per="token", label=label),
        run.outcomes("reuse", per="sample", label=label),
    ]
    assert [answer["counted"] for answer in asked] == [whole | {"exact": True}] * len(asked)


def test_means_of_drawn_pictures_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Run.open(make("pictures", samples=10, twin=False).write(tmp_path)) as run:
        whole = run.kind_means("compute")
        monkeypatch.setattr(patch_kinds, "MOST_PICTURES", 4)
        drawn = run.kind_means("compute")
    assert (whole["counted_pictures"], whole["counted"]["exact"]) == (None, True)
    assert drawn["counted"] == whole["counted"]
    told = drawn["counted_pictures"]
    assert (told["num_samples"], told["of_samples"], told["exact"]) == (4, 10, False)
    for row in drawn["kinds"]:
        assert row["num_samples"] <= (4 if row["kind"] in ("edge", "flat") else 10)
