"""Similar samples and ribbons over real run files of every layout, against loops over the arrays that were written."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.naive_store import Case
from tests.support.runs import make, make_run
from tokenpaths.engine.analysis.path_distance import nearest, profile_distance, ribbon_distance
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import path_ribbons
from tokenpaths.engine.store.ask.topics import similar as store_similar


def naive_profile(case: Case, sample: int) -> dict[tuple[int, int], float]:
    """Share of the visits of each step that went to each module, token by token."""
    tokens = [t for t, s in enumerate(case.naive.sample_of) if s == sample]
    found: dict[tuple[int, int], float] = {}
    for token in tokens:
        for step, modules in enumerate(case.naive.ids[token].tolist()):
            for module in modules:
                found[step, module] = found.get((step, module), 0) + 1 / len(modules) / len(tokens)
    return found


def naive_distance(one: dict, other: dict, steps: int) -> float:
    overlap = sum(math.sqrt(share * other.get(key, 0)) for key, share in one.items())
    return math.sqrt(max(0.0, 1 - overlap / steps))


def test_similar_samples_are_those_of_the_naive_loop(case: Case) -> None:
    num, steps = len(case.naive.made.samples), case.naive.made.info.num_steps
    profiles = [naive_profile(case, sample) for sample in range(num)]
    naive = {s: naive_distance(profiles[1], profiles[s], steps) for s in range(num) if s != 1}
    answer = case.run.similar_samples(1, limit=num)
    found = {row["sample"]: row["distance"] for row in answer["similar"]}
    assert found == pytest.approx(naive, abs=1e-3)
    assert [row["distance"] for row in answer["similar"]] == sorted(found.values())
    assert answer["median_distance"] == pytest.approx(float(np.median(list(naive.values()))), abs=1e-3)
    assert answer["similar"][0].keys() >= {"label", "snippet", "has_image", "source", "compute"}


def naive_path_distance(one: list[list[int]], other: list[list[int]]) -> float:
    return sum(1 - len(set(a) & set(b)) / len(a) for a, b in zip(one, other, strict=True))


def test_similar_ribbons_are_those_of_the_naive_loop(case: Case) -> None:
    naive, token = case.naive, 5
    own = naive.ids[token].tolist()
    by_rank = {naive.rank[key]: naive_path_distance(own, [list(step) for step in key]) for key in naive.ranked}
    order = sorted(by_rank, key=lambda rank: (round(by_rank[rank], 9), rank))
    answer = case.run.similar_tokens(0, token, limit=6, each=4)
    assert [row["rank"] for row in answer["paths"]] == order[:6]
    assert [row["distance"] for row in answer["paths"]] == pytest.approx([by_rank[rank] for rank in order[:6]])
    assert answer["rank"] == order[0] == naive.rank[naive.keys[token]]
    for row in answer["paths"]:
        there = [set(step) for step in row["ribbon"]]
        assert row["differs"] == [s for s, step in enumerate(naive.ribbon(token)) if set(step) != there[s]]
        for example in row["examples"]:
            assert (example["sample"], example["token"]) != (0, token)
    counted: dict[float, list[int]] = {}
    for rank, distance in by_rank.items():
        at = counted.setdefault(round(distance, 9), [0, 0])
        at[0] += 1
        at[1] += naive.count[naive.ranked[rank - 1]] - (rank == order[0])
    assert [(round(row["distance"], 9), [row["num_paths"], row["num_tokens"]]) for row in answer["apart"]] == sorted(
        counted.items()
    )


def test_the_asked_token_takes_no_place_among_the_examples_of_its_path(case: Case) -> None:
    naive = case.naive
    for token in range(0, len(naive.keys), 61):
        sample = naive.sample_of[token]
        place = token - naive.sample_of.index(sample)
        others = naive.count[naive.keys[token]] - 1
        for each in (1, 2, 60):
            own = case.run.similar_tokens(sample, place, limit=1, each=each)["paths"][0]["examples"]
            shown = [(row["sample"], row["token"]) for row in own]
            assert len(set(shown)) == len(shown) == min(each, others), "there are others to show"
            assert (sample, place) not in shown
            assert shown == sorted(shown)


def test_ribbon_distance_of_a_hand_computed_case() -> None:
    one = np.array([[0, 1], [2, 3], [4, 5]])
    many = np.array(
        [
            [[1, 0], [3, 2], [5, 4]],  # the same sets in another order
            [[0, 2], [2, 3], [4, 5]],  # one of two modules at one step: 1/2
            [[2, 3], [0, 1], [4, 0]],  # 1 + 1 + 1/2
        ]
    )
    assert (ribbon_distance(one, many) / 2).tolist() == [0, 0.5, 2.5]


def test_profile_distance_of_a_hand_computed_case() -> None:
    # One step, modules (1, 0) against (1/2, 1/2): √(1 − √(1/2)).
    one, other = np.sqrt(np.array([1.0, 0]) / 2), np.sqrt(np.array([0.5, 0.5]) / 2)
    assert profile_distance(one, np.stack([one, other]))[1] == pytest.approx(math.sqrt(1 - math.sqrt(0.5)), abs=1e-6)
    assert profile_distance(one, np.stack([one, np.sqrt(np.array([0, 1.0]) / 2)])).tolist() == pytest.approx([0, 1])


def test_of_equally_near_ones_the_earlier_counts() -> None:
    assert nearest(np.array([2, 1, 1, 0, 1]), 3).tolist() == [3, 1, 2]
    assert nearest(np.array([0.5]), 4).tolist() == [0]


def test_profiles_in_pieces_are_the_same(top1: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = top1.run.similar_samples(2, limit=5), top1.run.map()
    monkeypatch.setattr(store_similar, "CHUNK_CELLS", 70)
    monkeypatch.setattr(path_ribbons, "CHUNK_PATHS", 3)
    assert (top1.run.similar_samples(2, limit=5), top1.run.map()) == whole


def test_a_map_keeps_distances_as_far_as_a_plane_can(top1: Case) -> None:
    answer = top1.run.map(thumbnails=True)
    assert answer["num_samples"] == answer["of_samples"] == 12
    assert 0 < answer["explained"][1] <= answer["explained"][0] <= 1
    points = {row["sample"]: np.array([row["x"], row["y"]]) for row in answer["points"]}
    for row in top1.run.similar_samples(0, limit=11)["similar"]:
        assert np.linalg.norm(points[0] - points[row["sample"]]) <= row["distance"] + 1e-3
    kind, _, data = answer["points"][0]["thumbnail"].partition(",")
    assert kind == "data:image/webp;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (48, 48)
    drawn = top1.run.map(limit=5)
    assert (drawn["num_samples"], drawn["of_samples"]) == (5, 12)
    assert drawn["points"][0]["thumbnail"] is None


def refused(question, field: str, kind: type[UserError] = UserError) -> str:
    with pytest.raises(kind) as caught:
        question()
    assert caught.value.field == field
    return str(caught.value)


def test_what_cannot_be_answered_is_said(top1: Case, tmp_path: Path) -> None:
    run = top1.run
    refused(lambda: run.similar_samples(99), "sample", NoSuchThing)
    refused(lambda: run.similar_samples(0, limit=0), "limit")
    refused(lambda: run.similar_tokens(0, 64), "token", NoSuchThing)
    refused(lambda: run.similar_tokens(-1, 0), "sample", NoSuchThing)
    refused(lambda: run.similar_tokens(0, 0, each=0), "each")
    assert "POST /jobs" in refused(lambda: run.map("tsne"), "method")
    assert "should be pca" in refused(lambda: run.map("umap"), "method")
    with Run.open(make_run(tmp_path, "one", samples=1, labels=False)) as one:
        assert "one sample" in refused(lambda: one.similar_samples(0), "sample")
        assert "a map needs three" in refused(one.map, "run")
        assert one.similar_tokens(0, 0)["paths"][0]["distance"] == 0
    same = make("same", samples=4, identities=0, modules=1, steps=2)
    with Run.open(same.write(tmp_path)) as alike:  # one path for all
        assert "would be one point" in refused(alike.map, "run")
        answer = alike.similar_tokens(0, 0)
        assert len(answer["paths"]) == 1
        assert alike.similar_samples(0)["num_identical"] == 3
