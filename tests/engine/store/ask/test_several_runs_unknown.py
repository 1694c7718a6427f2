"""Runs of one bank side by side, some of which lack decisions or leave slots unused: only modules are compared."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.support.runs import RunArrays, make_experts, with_unrecorded, with_unused
from tokenpaths.engine.base.records import UNRECORDED_KIND, UNUSED_KIND
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.many_runs import compare_runs

EXPERTS = 6
CHANGES: dict[str, Callable[[RunArrays], RunArrays]] = {
    "unused": lambda made: with_unused(made, 0.3),
    "unknown": lambda made: with_unrecorded(made, 0.3),
    "both": lambda made: with_unrecorded(with_unused(made, 0.3), 0.3),
    "one known step": lambda made: with_unrecorded(made, 1.0, first_step=1),
}
Open = Callable[..., list[Run]]


def whole(name: str, **options: object) -> RunArrays:
    return make_experts(name, layers=3, experts=EXPERTS, samples=8, dead=0, **options)


def choices(made: RunArrays) -> list[list[set[int] | None]]:
    """The modules that each token uses at each step; None where the decision is not known."""
    unknown, unused = ({m.module for m in made.modules if m.kind == kind} for kind in (UNRECORDED_KIND, UNUSED_KIND))
    return [[None if set(ids) & unknown else set(ids) - unused for ids in ribbon] for ribbon in made.ids.tolist()]


def shares(made: RunArrays) -> tuple[dict, dict]:
    """Of nodes, of the tokens whose decision is known; of links, of those that use known modules at both steps."""
    nodes, links, known = defaultdict(float), defaultdict(float), Counter()
    for token in choices(made):
        for step, here in enumerate(token):
            if here is None:
                continue
            known[step] += 1
            for module in here:
                nodes[step, module] += 1
            if step + 1 < len(token) and (there := token[step + 1]) is not None:
                known[step, step + 1] += bool(here and there)
                for source in here:
                    for target in there:
                        links[step, source, target] += 1 / (len(here) * len(there))
    return (
        {key: count / known[key[0]] for key, count in nodes.items()},
        {key: count / known[key[0], key[0] + 1] for key, count in links.items()},
    )


@pytest.mark.parametrize("changed", CHANGES)
def test_flows_of_one_bank_are_subtracted(opened: Open, changed: str) -> None:
    first, second = whole("first"), CHANGES[changed](whole("second", drift=0.5))
    for pair in ((first, second), (second, first)):
        flow = opened(*(replace(m, info=replace(m.info, run_id=f"{m.info.run_id}-{pair[0] is first}")) for m in pair))
        flow = flow[0].compare(flow[1], links=2000)["flow"]
        if changed == "one known step":
            assert (flow["reason"], flow["links"]) == ("no step has links that are known in both runs", [])
            continue
        assert flow["reason"] is None
        (nodes_a, links_a), (nodes_b, links_b) = (shares(made) for made in pair)
        gaps = {key: links_b.get(key, 0) - links_a.get(key, 0) for key in links_a.keys() | links_b.keys()}
        assert flow["difference"] == pytest.approx(sum(map(abs, gaps.values())) / 2 / 2)
        found = {(row["step"], row["source"], row["target"]): row["change"] for row in flow["links"]}
        assert found == pytest.approx({key: gap for key, gap in gaps.items() if abs(gap) > 1e-12})
        found = {(row["step"], row["module"]): (row["before"], row["after"]) for row in flow["nodes"]}
        assert found.keys() == nodes_a.keys() | nodes_b.keys()
        for key, pair_of_shares in found.items():
            assert pair_of_shares == pytest.approx((nodes_a.get(key, 0), nodes_b.get(key, 0)))


@pytest.mark.parametrize("changed", CHANGES)
def test_numbers_of_one_bank_have_one_scale(opened: Open, changed: str) -> None:
    answer = compare_runs(opened(whole("first"), CHANGES[changed](whole("second", drift=0.5))))
    rows = {row["name"]: row for row in answer["rows"]}
    assert rows["num_modules"]["values"] == [EXPERTS, EXPERTS]
    for name in ("load_cv", "max_violation", "effective_top_k"):
        assert not (rows[name]["reasons"][1] or "").endswith("its scale is another")


@pytest.mark.parametrize("side", ["run", "reference"])
@pytest.mark.parametrize("changed", CHANGES)
def test_a_reference_is_of_the_same_modules(opened: Open, changed: str, side: str) -> None:
    made = {"run": whole("mine"), "reference": whole("seen", drift=0.5)}
    made[side] = CHANGES[changed](made[side])
    run, reference = opened(made["run"], made["reference"])
    paths = Counter(
        tuple(frozenset(step) for step in token) for token in choices(made["reference"]) if None not in token
    )
    answer = run.in_reference(reference, 0, similar=3)
    own = choices(made["run"])[: answer["num_tokens"]]
    for row, token in zip(answer["tokens"], own, strict=True):
        count = 0 if None in token else paths[tuple(frozenset(step) for step in token)]
        assert row["path_tokens"] == count
    assert answer["num_known"] == sum(row["rank"] is not None for row in answer["tokens"])
    assert len(answer["similar"]) == 3


@pytest.mark.parametrize("changed", CHANGES)
def test_an_effect_is_of_the_known_decisions(opened: Open, changed: str) -> None:
    before, after = whole("before"), CHANGES[changed](whole("after", drift=0.5))
    answer = opened(after)[0].effect(opened(before)[0])
    pairs = [(old, new) for old, new in zip(choices(before), choices(after), strict=True) if None not in [*old, *new]]
    assert answer["num_tokens"] == len(pairs)
    moved = sum(old != new for old, new in pairs)
    assert answer["paths_changed"] == pytest.approx(moved / max(1, len(pairs)))
    assert all(max(link["source"], link["target"]) < EXPERTS for link in answer["links"])
    twin = replace(after, info=replace(after.info, run_id="twin"))
    assert opened(twin)[0].effect(opened(replace(after, info=replace(after.info, run_id="own")))[0])["links"] == []
    assert np.isfinite(answer["path_distance"])
