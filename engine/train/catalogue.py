"""Registry of everything that ``tokenpaths train`` can train, by recipe name.

An `Order` names the input and output folders; a `Training` carries it out and returns the numbers on the card.
Families are imported only when one of their recipes is run or listed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS, named_object
from tokenpaths.engine.train.loop import Progress
from tokenpaths.engine.train.resuming import alone_in, data_sums, keep_to_data, keep_to_tokenizer

if TYPE_CHECKING:
    from tokenpaths.engine.train.dipaco.dipaco_recipe import DiPaCoRecipe
    from tokenpaths.engine.train.raytracing_recipe import RayTracingRecipe
    from tokenpaths.engine.train.recipes import Recipe


@dataclass(frozen=True)
class Order:
    """One training as requested: folders, device, length, and whom to tell about progress."""

    data: Path
    out: Path
    """checkpoint folder to write"""
    work: Path
    """states and logs of this recipe; training resumes from what the folder holds"""
    tokenizer: Path | None
    dense_twin: Path | None
    device: torch.device
    iterations: int | None
    """None: as many as the recipe says"""
    seed: int | None
    """None: the recipe's"""
    workers: int
    """processes that share the paths of a DiPaCo; 0: none but this one"""
    command: str
    on_progress: Callable[[Progress], None]
    stage: Callable[[str], AbstractContextManager[Any]]
    """entered around work that cannot be counted, with its name"""


@dataclass(frozen=True)
class Training:
    """A recipe and how it is carried out."""

    name: str
    family: str
    about: str
    """one line: size and length"""
    files: tuple[str, ...]
    """what it reads, below the folder of ``--data``; none: it brings its own data"""
    run: Callable[[Order], dict[str, Any]]
    measured_on: tuple[str, ...] = ()
    """of ``files`` those that no state of the training depends on: what is trained is measured on them at the end"""

    def carry_out(self, order: Order) -> dict[str, Any]:
        """``run``, alone in ``order.work``; returns the numbers of the card.

        Raises:
            Held: another process trains there: two would write over each other's states.
            UserError: what is there was trained on other data.
        """
        with alone_in(order.work, self.name):
            states = [file for file in self.files if file not in self.measured_on]
            sums = keep_to_data(order.work, order.data, states)
            numbers = self.run(order)
            if sums and FAMILY_CONTROLS[self.family].CARD:
                from tokenpaths.engine.train.cards import say_data

                say_data(order.out, sums | data_sums(order.data, self.measured_on))
            return numbers


def trainings() -> dict[str, Training]:
    """All of them, in the order of the families; a plugin's that cannot be listed are left out with a warning."""
    listed: dict[str, Training] = {}
    for family, controls in FAMILY_CONTROLS.usable().items():
        try:
            rows = named_object(controls.TRAININGS)() if controls.TRAININGS else []
        except Exception as error:
            if family in FAMILY_CONTROLS.own:
                raise
            warnings.warn(f"the trainings of the family {family!r} cannot be listed: {error}", stacklevel=2)
            continue
        for training in rows:
            listed.setdefault(training.name, training)
    return listed


def find_training(name: str) -> Training:
    """The training of this name; UserError that lists them where there is none."""
    recipes = trainings()
    if name not in recipes:
        raise UserError(f"no recipe is called {name!r}; there are: {', '.join(recipes)}", field="recipe")
    return recipes[name]


def _as_ordered(recipe: Any, order: Order) -> Any:
    """The recipe with the length and the seed that were asked for; a shorter one has its share of the warm-up."""
    asked = {"iterations": order.iterations, "seed": order.seed}
    if order.iterations is not None and order.iterations < recipe.iterations:
        asked["warmup"] = round(recipe.warmup * order.iterations / recipe.iterations)
    return recipe.model_copy(update={key: value for key, value in asked.items() if value is not None})


def _only_its_length(order: Order, name: str) -> None:
    if order.iterations is not None:
        raise UserError(
            f"iterations cannot be changed for {name}: its length is part of the recipe", field="iterations"
        )


def _without_twin(order: Order, name: str) -> None:
    if order.dense_twin is not None:
        raise UserError(f"the card of {name} has no row of a dense twin; leave out --dense-twin", field="dense_twin")


def _validation(out: Path) -> dict[str, Any]:
    from tokenpaths.engine.families.checkpoint_config import read_checkpoint

    return read_checkpoint(out).validation


def dna_trainings() -> list[Training]:
    from tokenpaths.engine.train.recipes import RECIPES

    return [
        Training(
            recipe.name,
            "dna",
            f"{recipe.model.modality:7} {recipe.iterations:6,} iterations of {recipe.batch_size}, "
            f"{recipe.model.num_modules} modules, {recipe.model.num_steps} steps, top-{recipe.model.top_k}",
            (recipe.train_file, recipe.val_file),
            partial(_train_single, recipe),
        )
        for recipe in RECIPES.values()
    ]


def _train_single(recipe: Recipe, order: Order) -> dict[str, Any]:
    """A DNA or Directional Routing: one training run, one validation file."""
    from tokenpaths.engine.train.cards import finish
    from tokenpaths.engine.train.corpora import fitted, load_corpora
    from tokenpaths.engine.train.directional_recipes import SHARED_TOKENIZER
    from tokenpaths.engine.train.dna_card import read_twin
    from tokenpaths.engine.train.loop import train

    recipe, directional = _as_ordered(recipe, order), recipe.family == "directional"
    if directional:
        _without_twin(order, recipe.name)
    twin = read_twin(order.dense_twin, recipe.model) if order.dense_twin else None
    tokenizer = order.tokenizer or (SHARED_TOKENIZER if directional else None)
    with order.stage(f"reading {recipe.train_file}"):
        corpus, val = load_corpora(recipe, order.data, tokenizer, order.work)
    if not directional:
        recipe = fitted(recipe, corpus)
    reporting: dict[str, Any] = dict(
        check_every=100 if directional else 200, device=order.device, on_progress=order.on_progress
    )
    done = train(recipe, corpus, val, order.work, **reporting)
    with order.stage(f"measuring on {recipe.val_file}"):
        return finish(done, corpus, val, order.out, order.command, twin)


def directional_trainings() -> list[Training]:
    from tokenpaths.engine.train.directional_recipes import DIRECTIONAL_RECIPES

    return [
        Training(
            recipe.name,
            "directional",
            f"text    {recipe.iterations:6,} iterations of {recipe.batch_size}, {recipe.model.layers} layers of "
            f"{recipe.model.heads} heads, {recipe.model.directions} directions each",
            (recipe.train_file, recipe.val_file),
            partial(_train_single, recipe),
        )
        for recipe in DIRECTIONAL_RECIPES.values()
    ]


def hmodel_trainings() -> list[Training]:
    from tokenpaths.engine.train.hmodel_recipes import HMODEL_RECIPES

    return [
        Training(
            recipe.name,
            recipe.family,
            f"text    {recipe.iterations:6,} iterations of {recipe.batch_size}, "
            + (
                f"{recipe.model.num_modules} hidden layers, "
                f"{recipe.model.iterations} {'iteration' if recipe.model.iterations == 1 else 'iterations'} of routing"
                if recipe.family == "hmodel"
                else f"{recipe.model.backbone} {'layer' if recipe.model.backbone == 1 else 'layers'} without routing"
            ),
            (recipe.train_file, recipe.val_file),
            partial(_train_hmodel, recipe),
            measured_on=(recipe.val_file,),
        )
        for recipe in HMODEL_RECIPES.values()
    ]


def _train_hmodel(recipe: Recipe, order: Order) -> dict[str, Any]:
    from tokenpaths.engine.train.corpora import require_batch
    from tokenpaths.engine.train.hmodel_recipes import load_languages, ship, tokenizer_for
    from tokenpaths.engine.train.loop import train

    _without_twin(order, recipe.name)
    recipe = _as_ordered(recipe, order)
    with order.stage(f"reading {recipe.train_file}"):
        languages = load_languages(order.data)
        order.work.mkdir(parents=True, exist_ok=True)
        tokenizer = tokenizer_for(languages, order.work, recipe.model.vocab_size, order.tokenizer)
        corpus, held_out, val = (
            part.corpus(tokenizer) for part in (languages.train, languages.held_out, languages.val)
        )
        # Before hours go into weights that could not be measured.
        context = recipe.model.context
        train_file, val_file = (order.data / file for file in (recipe.train_file, recipe.val_file))
        require_batch(train_file, len(corpus.ids), (recipe.batch_size + 1) * context + 1, "tokens to train on")
        require_batch(train_file, len(held_out.ids), context + 1, "tokens that are held out")
        require_batch(val_file, len(val.ids), context + 1, "tokens")
    reporting: dict[str, Any] = dict(check_every=100, device=order.device, on_progress=order.on_progress)
    done = train(recipe, corpus, held_out, order.work, **reporting)
    with order.stage(f"measuring on {recipe.val_file}"):
        ship(done, languages, tokenizer, order.out, order.command)
    return _validation(order.out)


def dipaco_trainings() -> list[Training]:
    from tokenpaths.engine.train.dipaco.dipaco_recipe import FILES, RECIPES

    return [
        Training(
            recipe.name,
            "dipaco",
            f"text    {recipe.iterations:6,} iterations of {recipe.batch_size} on each of {recipe.model.num_paths} "
            f"paths, levels {' × '.join(map(str, recipe.model.levels))}",
            FILES,
            partial(_train_dipaco, recipe),
            measured_on=FILES[1:],
        )
        for recipe in RECIPES.values()
        if recipe.name.startswith("dipaco")
    ]


def _train_dipaco(recipe: DiPaCoRecipe, order: Order) -> dict[str, Any]:
    from tokenpaths.engine.train.cards import note, rounded
    from tokenpaths.engine.train.corpora import kept_tokenizer
    from tokenpaths.engine.train.dipaco.dipaco_recipe import FILES, RECIPES
    from tokenpaths.engine.train.dipaco.documents import load_documents
    from tokenpaths.engine.train.dipaco.finish_dipaco import document_paths, export, learn_to_reroute, routed_numbers
    from tokenpaths.engine.train.dipaco.train_dipaco import Resources, train
    from tokenpaths.engine.train.directional_recipes import SHARED_TOKENIZER

    _only_its_length(order, recipe.name)
    _without_twin(order, recipe.name)
    recipe = _as_ordered(recipe, order)
    with order.stage(f"reading {FILES[0]}"):
        file = order.tokenizer or SHARED_TOKENIZER
        tokenizer = kept_tokenizer(file, order.work, recipe.model.vocab_size)
        documents, val = (load_documents(order.data / file, tokenizer, recipe.model, on_short="drop") for file in FILES)
    resources = Resources(order.workers, device=order.device)
    shared: dict[str, Any] = dict(resources=resources, on_progress=order.on_progress)
    # What all recipes start from; a folder of its own, so that they can share it.
    shared_base = order.work.parent / "dipaco-base"
    with alone_in(shared_base, "the base of all DiPaCo"):
        keep_to_data(shared_base, order.data, FILES[:1])
        keep_to_tokenizer(shared_base, file)
        base = train(RECIPES["base"], documents, shared_base, **shared)
    done = train(recipe, documents, order.work, base=base.model.path_model(0), **shared)
    learnt: dict[str, Any] = {}
    if recipe.model.rerouter:
        with order.stage("learning to route again"):
            learnt["rerouter"] = rounded(learn_to_reroute(done, documents))
    with order.stage(f"measuring on {FILES[1]}"):
        model = export(done, order.out, tokenizer, order.command, base)
        paths = [model.path_model(p) for p in range(recipe.model.num_paths)]
        numbers = routed_numbers(paths, document_paths(model, val), val, recipe.model.prefix)
        note(order.out, rounded(numbers) | {"file": FILES[1]} | learnt)
    return _validation(order.out)


def raytracing_trainings() -> list[Training]:
    from tokenpaths.engine.train.raytracing_recipe import RECIPES

    return [
        Training(
            recipe.name,
            "raytracing",
            f"vision  at most {recipe.epochs} epochs of {recipe.data}, "
            f"{recipe.model.layers} layers of {recipe.model.blocks} blocks",
            recipe.files,
            partial(_train_raytracing, recipe),
            measured_on=recipe.files[1:],
        )
        for recipe in RECIPES.values()
    ]


def _train_raytracing(recipe: RayTracingRecipe, order: Order) -> dict[str, Any]:
    from tokenpaths.engine.train.raytracing_recipe import load_corpora
    from tokenpaths.engine.train.train_raytracing import finish, train

    _only_its_length(order, recipe.name)
    _without_twin(order, recipe.name)
    # Its states lie in folders of its name, beside those of the convolutions that all seeds share.
    recipe = _as_ordered(recipe, order).model_copy(update={"name": order.work.name})
    shared = f"{recipe.data}-convolutions-{recipe.feature_seed}", f"{recipe.name}-twin", f"{recipe.name}-used-twin"
    for name in shared if recipe.data != "digits" else ():
        keep_to_data(order.work.parent / name, order.data, recipe.files[:1])
    with order.stage(f"reading {recipe.data}"):
        corpora = load_corpora(recipe, None if recipe.data == "digits" else order.data)
    done = train(recipe, corpora, order.work.parent, on_progress=order.on_progress)
    with order.stage("measuring"):
        return finish(done, order.out, order.command)
