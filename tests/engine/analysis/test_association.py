"""Shuffles of labels that are alike inside a sample: what stays together, and how often chance alone is called sure."""

from __future__ import annotations

import numpy as np
import pytest

from tokenpaths.engine.analysis.association import Sequences, association


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
    with pytest.raises(ValueError, match="not both"):
        association(paths, values, groups=places[0], sequences=places)
