"""Which tokens of two samples are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenpaths.engine.store.ask.several_runs import token_pairs
from tokenpaths.engine.store.ask.several_runs.token_pairs import WINDOW, longest_stretch, pairs_by_ids

RNG = np.random.default_rng(0)


def ids(length: int, below: int = 5000) -> np.ndarray:
    return RNG.integers(0, below, length)


@pytest.mark.parametrize(("before_a", "before_b"), [(0, 0), (0, 7), (11, 0), (5, 30)])
@pytest.mark.parametrize(("after_a", "after_b"), [(0, 0), (0, 9), (4, 0), (6, 13)])
def test_a_stretch_is_found_between_other_tokens(before_a, before_b, after_a, after_b):
    common = ids(60)
    one = np.concatenate([ids(before_a) + 5000, common, ids(after_a) + 5000])
    other = np.concatenate([ids(before_b) + 10_000, common, ids(after_b) + 10_000])
    assert longest_stretch(one, other) == (before_a, before_b, 60)


def test_unknown_ids_are_equal_to_any():
    one = np.array([1, 2, 3, 4, 5])
    assert longest_stretch(one, np.array([-1, 2, -1, 4, 5])) == (0, 0, 5)
    assert longest_stretch(one, np.array([1, 2, 9, 4, 5])) == (0, 0, 2)  # the first of two that are as long


def test_unknown_ids_at_an_edge_are_the_same_only_where_their_place_tells():
    prompt, answer = np.full(5, -1), ids(20)
    one = np.concatenate([prompt, answer])
    assert longest_stretch(one, np.concatenate([ids(5), answer])) == (0, 0, 25)  # as many tokens before
    assert longest_stretch(one, np.concatenate([ids(9), answer])) == (5, 9, 20)  # another prompt
    assert longest_stretch(np.concatenate([answer, prompt]), np.concatenate([ids(4), answer, ids(5)])) == (0, 4, 25)
    assert longest_stretch(np.concatenate([answer, prompt]), np.concatenate([ids(4), answer, ids(9)])) == (0, 4, 20)
    assert longest_stretch(prompt, np.full(5, -1)) == (0, 0, 5)
    assert longest_stretch(prompt, ids(30))[2] == 0  # nothing shows that they are the same


def test_nothing_in_common():
    assert longest_stretch(np.array([1, 2]), np.array([3, 4, 5]))[2] == 0
    assert longest_stretch(np.array([], dtype=np.int64), np.array([3]))[2] == 0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30))
def test_what_is_found_is_equal(one, other):
    x, y = np.array(one, dtype=np.int64), np.array(other, dtype=np.int64)
    start_x, start_y, length = longest_stretch(x, y)
    assert np.array_equal(x[start_x : start_x + length], y[start_y : start_y + length])
    prefix = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    assert length >= prefix


def test_samples_behind_one_system_prompt_are_told_apart():
    system = ids(100)
    texts = [np.concatenate([system, ids(40)]) for _ in range(30)]
    order = RNG.permutation(30)
    cut = [(int(n), texts[n][: 130 - int(n) % 3]) for n in order]
    assert pairs_by_ids(list(enumerate(texts)), cut) == [(n, n) for n in range(30)]


@pytest.mark.parametrize("most", [10_000_000, 400])
def test_answers_to_one_prompt_are_told_apart(monkeypatch, most):
    monkeypatch.setattr(token_pairs, "MOST_WINDOWS", most)  # one window in several
    prompt = ids(60)
    texts = [np.concatenate([prompt, ids(60)]) for _ in range(24)]
    order = RNG.permutation(24)
    cut = [(place, texts[n][:-1]) for place, n in enumerate(order)]
    named = {n: n for n in range(24)}  # the numbers of another log
    assert pairs_by_ids(list(enumerate(texts)), cut, named) == [(n, int(np.argsort(order)[n])) for n in range(24)]


def test_many_equal_samples_are_paired_though_each_was_cut():
    one, other = ids(30), ids(30)
    ones = [(n, (one, other)[n % 2]) for n in range(40)]
    others = [(n, (one, other)[n < 20][:-1]) for n in range(40)]
    pairs = pairs_by_ids(ones, others)
    assert len(pairs) == 40
    assert all((n % 2 == 1) == (partner < 20) for n, partner in pairs)


def test_of_equal_votes_the_name_tells():
    same = ids(40)
    one, other = np.append(same, 1), np.append(same, 2)
    assert pairs_by_ids([(0, one), (1, other)], [(5, np.append(same, 3)), (6, np.append(same, 4))], {0: 6, 1: 5}) == [
        (0, 6),
        (1, 5),
    ]


def test_equal_samples_are_paired_in_order_and_each_once():
    same, short = ids(20), ids(WINDOW - 1)
    ones = [(0, same), (1, same), (2, short), (3, ids(20))]
    others = [(10, same), (11, short), (12, same), (13, ids(20))]
    assert pairs_by_ids(ones, others) == [(0, 10), (1, 12), (2, 11)]
    assert pairs_by_ids([(0, np.full(20, -1))], [(0, np.full(20, -1))]) == []
