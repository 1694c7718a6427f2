"""Balance: the loss that spreads work over modules, against its definition by hand, and what training makes of it."""

from __future__ import annotations

import json

import pytest
import torch
from pydantic import ValidationError

from tests.engine.train.test_training import TEXT, VISION, data, text_recipe  # noqa: F401
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.models.losses import balance_loss
from tokenpaths.engine.train.corpora import load_corpora
from tokenpaths.engine.train.dipaco.dipaco_recipe import RECIPES as DIPACO
from tokenpaths.engine.train.loop import PROGRESS, open_run, train
from tokenpaths.engine.train.raytracing_recipe import RECIPES as RAYTRACING
from tokenpaths.engine.train.recipes import RECIPES
from tokenpaths.engine.train.resuming import same_settings


def by_hand(logits: torch.Tensor, ids: torch.Tensor, working: list[int]) -> float:
    """Equations 4 to 6 of Switch Transformers, one module at a time."""
    total = 0.0
    slots = sum(int(i) in working for i in ids.flatten())
    for m in working:
        share = sum(int(i) == m for i in ids.flatten()) / slots
        chance = sum(float(row[working].softmax(0)[working.index(m)]) for row in logits) / len(logits)
        total += share * chance
    return len(working) * total


@pytest.mark.parametrize(("top_k", "identities"), [(1, 0), (2, 0), (2, 2)])
def test_the_loss_is_that_of_the_paper_among_the_modules_that_work(top_k: int, identities: int) -> None:
    torch.manual_seed(top_k + identities)
    logits = torch.randn(40, 6)
    ids = logits.topk(top_k).indices
    working = torch.arange(6) < 6 - identities
    found = balance_loss(logits, ids, working)
    assert float(found) == pytest.approx(by_hand(logits, ids, list(range(6 - identities))), rel=1e-5)


def test_even_work_costs_one_and_a_collapse_as_many_as_there_are_modules() -> None:
    working = torch.ones(4, dtype=torch.bool)
    even = torch.eye(4).repeat(3, 1) * 50
    assert float(balance_loss(even, even.argmax(-1, keepdim=True), working)) == pytest.approx(1)
    one = torch.tensor([50.0, 0, 0, 0]).repeat(9, 1)
    assert float(balance_loss(one, one.argmax(-1, keepdim=True), working)) == pytest.approx(4)
    skipped = torch.full((9, 1), 3)  # nothing but identities was chosen
    assert float(balance_loss(one, skipped, torch.tensor([True, True, True, False]))) == 0


def test_balance_reaches_every_router_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = DNA(TEXT)
    _, routing = model.training_loss(torch.randint(0, 280, (2, 24)), torch.randint(0, 280, (2, 24)))
    model.balance_loss(routing).backward()
    for router in model.routers:
        assert all(float(p.grad.abs().sum()) > 0 for p in router.parameters())
    assert model.head.weight.grad is None


def test_training_with_balance_spreads_the_work(data, tmp_path) -> None:  # noqa: F811
    busiest = {}
    for balance in (0.0, 1.0):
        model = TEXT.model_copy(update={"identities": 0, "skip_ratio": 0.0, "skip_speed": 0.0, "top_k": 1})
        recipe = text_recipe(model=model, iterations=200, learning_rate=2e-2, balance=balance)
        corpus, val = load_corpora(recipe, data, None, tmp_path)
        run = train(recipe, corpus, val, tmp_path / f"b{balance:g}", device=torch.device("cpu"))
        busiest[balance] = run.history[-1]["busiest_share"]
    assert busiest[1.0] < 0.5 < busiest[0.0], busiest  # three modules: a third each would be even


def test_balance_is_for_tokens_that_choose_their_modules() -> None:
    recipe = text_recipe(balance=0.1)
    assert recipe.dense_twin().balance == 0
    for other in (TEXT.dense_twin(), VISION.model_copy(update={"router": "expert"})):
        with pytest.raises(ValidationError, match="balance is for a DNA with routed steps"):
            text_recipe(model=other, balance=0.1)
    offered = TEXT.model_copy(update={"choices": ((0, 1, 2), (1, 2, 3))})
    with pytest.raises(ValidationError, match="not for a model with choices"):
        text_recipe(model=offered, balance=0.1)


def test_a_state_from_before_a_setting_was_added_is_gone_on_with(data, tmp_path) -> None:  # noqa: F811
    recipe = text_recipe()
    corpus, val = load_corpora(recipe, data, None, tmp_path)
    train(recipe, corpus, val, tmp_path / "run", device=torch.device("cpu"))
    state = tmp_path / "run" / PROGRESS
    about = json.loads(state.read_text())
    assert about["recipe"].pop("balance") == 0
    state.write_text(json.dumps(about))
    assert open_run(recipe, tmp_path / "run", torch.device("cpu")).iteration == recipe.iterations
    with pytest.raises(UserError, match="other settings"):
        open_run(text_recipe(balance=0.1), tmp_path / "run", torch.device("cpu"))
    about["recipe"]["width"] = 3
    state.write_text(json.dumps(about))
    with pytest.raises(UserError, match="other settings"):
        open_run(recipe, tmp_path / "run", torch.device("cpu"))


@pytest.mark.parametrize("recipe", [RECIPES["dna-text-top1"], DIPACO["dipaco-2x2"], RAYTRACING["raytracing-digits"]])
def test_a_state_is_of_a_recipe_whatever_defaults_were_added_since(recipe) -> None:
    told = json.loads(recipe.model_dump_json())
    assert same_settings(told, recipe)
    missing = next(name for name, one in type(recipe).model_fields.items() if getattr(recipe, name) == one.default)
    assert same_settings({name: value for name, value in told.items() if name != missing}, recipe)
    assert not same_settings(told | {"name": "another"}, recipe)
    assert not same_settings(told | {"never": 1}, recipe)
    assert not same_settings(None, recipe)
