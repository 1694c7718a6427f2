"""The rate at every iteration: of shipped recipes, of shorter trainings and of odd warm-ups."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.engine.train.test_training import text_recipe
from tokenpaths.engine.train.catalogue import _as_ordered
from tokenpaths.engine.train.directional_recipes import DIRECTIONAL_RECIPES
from tokenpaths.engine.train.hmodel_recipes import HMODEL_RECIPES
from tokenpaths.engine.train.loop import learning_rate
from tokenpaths.engine.train.recipes import RECIPES


def test_learning_rates_follow_the_paper():
    vision = RECIPES["dna-vision-top1"]
    assert learning_rate(vision, 0) == vision.start_rate
    assert learning_rate(vision, vision.warmup) == pytest.approx(vision.learning_rate)
    assert learning_rate(vision, vision.iterations) == pytest.approx(vision.final_rate)
    text = RECIPES["dna-text-top1"]
    assert learning_rate(text, int(text.iterations * 0.79)) == text.learning_rate
    assert learning_rate(text, text.iterations) == pytest.approx(text.learning_rate / 10)
    rates = [learning_rate(vision, i) for i in range(vision.warmup, vision.iterations)]
    assert all(a >= b for a, b in zip(rates, rates[1:], strict=False))


@pytest.mark.parametrize("schedule", ["cosine", "constant-linear"])
@pytest.mark.parametrize("warmup", [0, 50, 95, 100, 400])
def test_a_rate_rises_to_its_height_and_falls_without_a_jump(schedule, warmup):
    recipe = text_recipe(iterations=100, warmup=warmup, schedule=schedule)
    rates = [learning_rate(recipe, i) / recipe.learning_rate for i in range(100)]
    top = rates.index(max(rates))
    assert rates[top] == pytest.approx(1)
    assert top == min(warmup, 50)
    assert rates[:top] == sorted(rates[:top])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(abs(a - b) for a, b in zip(rates[top:], rates[top + 1 :], strict=False)) < 0.06
    assert rates[-1] < 0.2


def test_a_shorter_training_has_its_share_of_the_warm_up():
    order = SimpleNamespace(iterations=130, seed=None)
    recipe = RECIPES["dna-text-top1"]
    assert (_as_ordered(recipe, order).warmup, recipe.warmup) == (10, 100)
    for length in (None, recipe.iterations, 2 * recipe.iterations):
        assert _as_ordered(recipe, SimpleNamespace(iterations=length, seed=None)).warmup == recipe.warmup


def test_no_recipe_warms_up_otherwise_than_it_says():
    recipes = [*RECIPES.values(), *HMODEL_RECIPES.values(), *DIRECTIONAL_RECIPES.values()]
    assert all(learning_rate(r, r.warmup - 1) < r.learning_rate == learning_rate(r, r.warmup) for r in recipes)
