"""Free filters on the hash sample: exact where it is the whole run, else as near as the interval says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.naive_store import Case
from tests.support.runs import make
from tokenpaths.engine.store.ask.run import Run


def test_of_a_small_run_the_sample_is_the_run(case: Case):
    point = (0, int(case.naive.made.ids[0, 0, 0]))
    exact, sampled = case.run.flow(through=[point]), case.run.flow(through=[point], sampled=True)
    counted = sampled.pop("counted")
    assert counted == {"num_tokens": exact["num_tokens"], "of_tokens": case.run.row["num_tokens"], "exact": True}
    assert sampled == exact


@pytest.mark.parametrize("top_k", [1, 2])
def test_intervals_of_a_sample_hold_the_exact_share(top_k: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in ("write.seal", "ask.topics.flow"):
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.SAMPLE_TABLE_ROWS", 1500)
    made = make("r", samples=80, top_k=top_k, modality="text" if top_k == 1 else "vision")
    with Run.open(made.write(tmp_path)) as run:
        inside = total = 0
        for module in range(6):
            question = {"through": [(1, module)], "label": run.labels[0][1]}
            exact, sampled = run.flow(**question), run.flow(**question, sampled=True)
            counted = sampled["counted"]
            assert not counted["exact"]
            assert counted["num_tokens"] < counted["of_tokens"] < run.row["num_tokens"]
            assert sampled["num_tokens"] == pytest.approx(exact["num_tokens"], rel=0.5)
            shares = {(link["step"], link["source"], link["target"]): link["share"] for link in exact["links"]}
            for link in sampled["links"]:
                share = shares[link["step"], link["source"], link["target"]]
                inside += link["low"] <= share <= link["high"]
                total += 1
            for step in range(4):
                links = [link["count"] for link in sampled["links"] if link["step"] == step]
                assert sum(links) == pytest.approx(sampled["num_tokens"], abs=1)
        # Listed paths lie together, and so do their ribbons where tokens have none of their own.
        exact, sampled = run.flow(paths=[1, 3]), run.flow(paths=[1, 3], sampled=True)
        assert sampled["counted"]["exact"] == (top_k == 1)
        if top_k == 1:
            assert sampled["counted"]["num_tokens"] == exact["num_tokens"]
            assert sampled | {"counted": None} == exact | {"counted": None}
        assert not run.flow(paths=[1], label=run.labels[0][1], sampled=True)["counted"]["exact"]
        assert total > 50
        assert inside / total > 0.9


def test_merged_modules_have_no_interval_as_a_token_may_choose_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in ("write.seal", "ask.topics.flow"):
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.SAMPLE_TABLE_ROWS", 1500)
    made = make("r", samples=80, modules=12, top_k=4)
    with Run.open(made.write(tmp_path)) as run:
        answer = run.flow(through=[(1, 0)], most_modules=2, sampled=True)
    merged = [node for node in answer["nodes"] if node["module"] == -1]
    assert max(node["share"] for node in merged) > 1
    assert not any("low" in node for node in merged)
    assert all(node["low"] <= node["share"] <= node["high"] for node in answer["nodes"] if node["module"] != -1)
