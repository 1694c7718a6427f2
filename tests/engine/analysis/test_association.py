"""Shuffles of labels that are alike inside a sample: what stays together, and how often chance alone is called sure."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from tokenpaths.engine.analysis.association import Maps, Sequences, association, exchanged_alike


@pytest.mark.parametrize("labels", ["aabb", "aaab", "aabbcc", "abcdef", "aaabbb", "aaaabb", "aabbb"])
def test_the_share_of_exchanges_that_say_the_same_is_that_of_all_orders(labels):
    def parts(order: tuple[str, ...]) -> frozenset[frozenset[int]]:
        return frozenset(frozenset(i for i, one in enumerate(order) if one == label) for label in set(order))

    orders = list(itertools.permutations(labels))
    same = sum(parts(order) == parts(tuple(labels)) for order in orders) / len(orders)
    groups = np.repeat(np.arange(len(labels)), 3)
    codes = np.unique(list(labels), return_inverse=True)[1]
    assert exchanged_alike(codes[groups], groups) == pytest.approx(same)


def test_a_sample_gets_the_labels_of_another_one_in_their_order():
    sample_n = np.repeat(np.arange(12), 6)
    place_n = np.tile(np.arange(6), 12)
    mixed = np.random.default_rng(0).permutation(72)  # the tokens come in any order
    shuffles, moved = Sequences(sample_n[mixed], place_n[mixed]), 0
    for seed in range(20):
        drawn = shuffles.draw(np.random.default_rng(seed))
        assert sorted(drawn.tolist()) == list(range(72))
        from_sample, from_place = np.empty((2, 72), dtype=int)
        from_sample[mixed], from_place[mixed] = sample_n[mixed][drawn], place_n[mixed][drawn]
        for sample in range(12):
            rows = slice(6 * sample, 6 * sample + 6)
            assert len(set(from_sample[rows].tolist())) == 1
            assert set(((from_place[rows] - np.arange(6)) % 6).tolist()) == {from_place[rows][0]}
        moved += (from_sample != sample_n).mean()
    assert moved > 10


def test_samples_of_very_different_length_keep_to_their_like():
    sizes = np.array([1, 1, 1, 5, 6, 7, 300, 310, 2000])
    sample_n = np.repeat(np.arange(9), sizes)
    place_n = np.concatenate([np.arange(size) for size in sizes])
    shuffles = Sequences(sample_n, place_n)
    for seed in range(20):
        giver = sample_n[shuffles.draw(np.random.default_rng(seed))]
        for kind in ({0, 1, 2}, {3, 4, 5}, {6, 7}, {8}):
            assert set(giver[np.isin(sample_n, list(kind))].tolist()) == kind
        assert all(len(set(giver[sample_n == sample].tolist())) == 1 for sample in range(9))


def test_a_place_that_is_not_known_gets_what_was_before_it():
    sample_n, place_n = np.array([0, 0, 0]), np.array([2, 5, 9])
    seen = {tuple(Sequences(sample_n, place_n).draw(np.random.default_rng(seed)).tolist()) for seed in range(60)}
    # Turned by 0 … 9 places: the last known one at or before the place, the last of all before the first.
    turned = [(np.array([2, 5, 9]) + turn) % 10 for turn in range(10)]
    assert seen == {tuple(2 if p < 2 or p >= 9 else 0 if p < 5 else 1 for p in places.tolist()) for places in turned}


def sticky(rng: np.random.Generator, size: int, values: int, stay: float, of: int) -> np.ndarray:
    """Values of neighbours alike, and each sample with its own favourites."""
    favourites = rng.permutation(values)[:of]
    drawn, keeps = rng.choice(favourites, size), rng.random(size) < stay
    keeps[0] = False
    return drawn[np.maximum.accumulate(np.where(keeps, 0, np.arange(size)))]


@pytest.mark.parametrize("what", ["region", "word", "place"])
@pytest.mark.parametrize("part", [1.0, 0.5])
def test_chance_alone_is_not_called_knowledge(what, part):
    """Paths and property have nothing to do with each other, but both are alike inside a sample."""
    sure = {"tokens": 0, "sequences": 0}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        sizes = rng.integers(30, 90, 40)
        paths = np.concatenate([sticky(rng, size, 40, 0.7, 4) for size in sizes])
        values = np.concatenate(
            [
                sticky(rng, size, 3, 0.8, 2)
                if what == "region"
                else sticky(rng, size, 200, 0.0, 25)
                if what == "word"
                else np.arange(size) * 9 // size
                for size in sizes
            ]
        )
        sample_n, place_n = np.repeat(np.arange(40), sizes), np.concatenate([np.arange(size) for size in sizes])
        known = rng.random(len(paths)) < part
        paths, values, sample_n, place_n = (one[known] for one in (paths, values, sample_n, place_n))
        if what == "word":
            place_n = np.arange(len(sample_n)) - np.searchsorted(sample_n, sample_n)
        for name, sequences in (("tokens", None), ("sequences", (sample_n, place_n))):
            found = association(paths, values, sequences=sequences, shuffles=40, seed=seed)
            sure[name] += found.p_value <= 0.05
    assert sure["tokens"] > 20  # what was wrong with shuffling token by token
    assert sure["sequences"] <= 5


def test_what_paths_do_know_is_still_found():
    rng = np.random.default_rng(1)
    values = np.concatenate([sticky(rng, 40, 3, 0.8, 2) for _ in range(40)])
    paths = np.where(rng.random(1600) < 0.2, values, rng.integers(0, 12, 1600))
    places = np.repeat(np.arange(40), 40), np.tile(np.arange(40), 40)
    assert association(paths, values, sequences=places, shuffles=99).p_value == 0.01
    with pytest.raises(ValueError, match="not several"):
        association(paths, values, groups=places[0], sequences=places)


def pictures(seed: int, images: int = 60, side: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """(images, patches) maps of an object somewhere about the middle, and the patches' places."""
    rng = np.random.default_rng(seed)
    row, col = np.divmod(np.arange(side * side), side)
    centre = rng.normal((side - 1) / 2, 0.7, (images, 2, 1))
    away = np.hypot(row - centre[:, 0], col - centre[:, 1])
    return np.where(away < 1.3, 1, np.where(away < 2.2, 2, 0)), np.arange(side * side)


def maps_of(map_GT: np.ndarray, kind_G: np.ndarray | None = None, known: np.ndarray | None = None) -> Maps:
    num, size = map_GT.shape
    image_n, place_n = np.repeat(np.arange(num), size), np.tile(np.arange(size), num)
    if known is not None:
        image_n, place_n = image_n[known], place_n[known]
    return Maps(
        image_n,
        place_n,
        map_GT.reshape(-1),
        np.arange(num) * size,
        np.zeros(num, dtype=int) if kind_G is None else kind_G,
    )


def test_images_exchange_whole_maps_with_their_kind_and_keep_none():
    map_GT = np.arange(20)[:, None] * 100 + np.arange(9)[None, :]  # each value tells its image and its place
    kind_G = np.array([0] * 12 + [1] * 4 + [2] * 3 + [7])
    seen: dict[int, set[int]] = {}
    for seed in range(100):
        drawn = maps_of(map_GT, kind_G).draw(np.random.default_rng(seed)).reshape(20, 9)
        givers = drawn // 100
        assert (givers == givers[:, :1]).all()
        assert (drawn % 100 == np.arange(9)).all()
        assert sorted(givers[:, 0].tolist()) == list(range(20))
        assert (kind_G[givers[:, 0]] == kind_G).all()
        assert (givers[:12, 0] != np.arange(12)).all()
        assert givers[19, 0] == 19
        for image, giver in enumerate(givers[:, 0].tolist()):
            seen.setdefault(image, set()).add(giver)
    assert all(seen[image] == set(range(12)) - {image} for image in range(12))
    assert all(seen[image] == {12, 13, 14, 15} for image in range(12, 16))  # of few, one may keep its own


def naive_map_null(paths_GT: np.ndarray, map_GT: np.ndarray, shuffles: int, seed: int) -> list[float]:
    """The same draws, spelt out: the images in a random ring, each gives its map to the next one."""
    rng, nulls = np.random.default_rng(seed), []
    for _ in range(shuffles):
        ring = rng.permutation(len(map_GT)).tolist()
        given = {taker: ring[i - 1] for i, taker in enumerate(ring)}
        pairs = [
            (path, value)
            for image, paths in enumerate(paths_GT.tolist())
            for path, value in zip(paths, map_GT[given[image]].tolist(), strict=True)
        ]
        nulls.append(normalized_mutual_info_score(*zip(*pairs, strict=True)))
    return nulls


@pytest.mark.parametrize("part", [1.0, 0.4])
def test_what_the_place_alone_tells_is_no_knowledge_of_regions(part):
    """Paths that depend on the place only: nothing above the null; the null of sequences would call it knowledge."""
    sure = {"maps": 0, "sequences": 0}
    for seed in range(20):
        map_GT, place_T = pictures(seed)
        rng = np.random.default_rng(seed)
        path_n = np.tile(place_T // 3, len(map_GT)) * 3 + rng.integers(0, 3, map_GT.size)
        known = rng.random(map_GT.size) < part
        image_n, place_n = np.repeat(np.arange(60), 36)[known], np.tile(place_T, 60)[known]
        label_n = map_GT.reshape(-1)[known]
        for name, how in (
            ("maps", {"maps": maps_of(map_GT, known=known)}),
            ("sequences", {"sequences": (image_n, place_n)}),
        ):
            found = association(path_n[known], label_n, shuffles=39, seed=seed, **how)
            sure[name] += found.p_value <= 0.05
            if name == "maps":
                assert abs(found.nmi - found.null_mean) < 0.2 * found.nmi
    assert sure["sequences"] == 20  # what was wrong with turning them
    assert sure["maps"] <= 3


def test_few_images_have_too_few_exchanges_to_stand_for_chance():
    cells = np.zeros((12, 4), dtype=np.int64)
    for num, alike in ((2, 1 / 2), (3, 1 / 6), (4, 1 / 24), (12, 1 / math.factorial(11))):
        assert maps_of(cells[:num]).alike() == pytest.approx(alike)
    assert maps_of(cells, np.arange(12)).alike() == 1.0, "each of a kind of its own"


def test_what_paths_know_of_the_content_is_found_beside_maps():
    map_GT, place_T = pictures(3)
    rng = np.random.default_rng(3)
    path_GT = np.where(rng.random(map_GT.shape) < 0.4, map_GT, rng.integers(0, 6, map_GT.shape))
    found = association(path_GT.reshape(-1), map_GT.reshape(-1), maps=maps_of(map_GT), shuffles=99)
    assert found.p_value == 0.01
    assert found.nmi > 1.3 * found.null_mean
    naive = naive_map_null(path_GT, map_GT, 99, 0)
    assert found.null_mean == pytest.approx(np.mean(naive))
    assert found.null_high == pytest.approx(np.quantile(naive, 0.975))


def test_of_few_images_chance_is_not_called_sure():
    """Two images have one exchange: were it forced, each second pair would stand out in all of the shuffles."""
    sure = 0
    for seed in range(40):
        map_GT, _ = pictures(seed, images=2)
        path_n = np.random.default_rng(seed).integers(0, 4, map_GT.size)
        sure += association(path_n, map_GT.reshape(-1), maps=maps_of(map_GT), shuffles=39, seed=seed).p_value <= 0.05
    assert sure == 0
