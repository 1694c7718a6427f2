"""Everything that ``tokenpaths train`` can train, by name, whatever its family needs on the way.

An ``Order`` says where data lie and where results go; a ``Training`` carries it out and returns the numbers
that stand on the card. Nothing heavy is imported before one is started.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import HolderLock
from tokenpaths.engine.train.loop import Progress


@dataclass(frozen=True)
class Order:
    """One training as it was asked for."""

    data: Path
    out: Path
    """checkpoint folder to write"""
    work: Path
    """states and logs of this recipe; the same folder again goes on where it stopped"""
    tokenizer: Path | None
    dense_twin: Path | None
    device: torch.device
    iterations: int | None
    """None: as many as the recipe says"""
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

    def carry_out(self, order: Order) -> dict[str, Any]:
        """``run``, alone in ``order.work``; returns the numbers of the card.

        Raises:
            UserError: another process trains there: two would write over each other's states.
        """
        order.work.parent.mkdir(parents=True, exist_ok=True)
        lock = HolderLock(order.work.with_name(f".{order.work.name}.lock"))
        try:
            lock.acquire()
        except UserError as error:
            holder = str(error).partition(":")[0]
            raise UserError(
                f"another process trains {self.name} in {order.work} ({holder}); wait for it, or give another folder "
                "for --work",
                field="work",
            ) from error
        try:
            return self.run(order)
        finally:
            lock.release()


def trainings() -> dict[str, Training]:
    """All of them, in the order of the families."""
    found = [*_dna(), *_directional(), *_hmodel(), *_dipaco(), *_raytracing()]
    return {training.name: training for training in found}


def find_training(name: str) -> Training:
    """The training of this name; UserError that lists them where there is none."""
    known = trainings()
    if name not in known:
        raise UserError(f"no recipe is called {name!r}; there are: {', '.join(known)}", field="recipe")
    return known[name]


def _shortened(recipe: Any, iterations: int | None) -> Any:
    return recipe if iterations is None else recipe.model_copy(update={"iterations": iterations})


def _only_its_length(order: Order, name: str) -> None:
    if order.iterations is not None:
        raise UserError(
            f"iterations cannot be changed for {name}: its length is part of the recipe", field="iterations"
        )


def _moved(made: Path, out: Path) -> None:
    """A checkpoint folder to where it was asked for; what lay there is replaced file by file."""
    out.mkdir(parents=True, exist_ok=True)
    for file in made.iterdir():
        shutil.move(file, out / file.name)


def _validation(out: Path) -> dict[str, Any]:
    from tokenpaths.engine.models.checkpoint import read_checkpoint

    return read_checkpoint(out).validation


def _dna() -> list[Training]:
    from tokenpaths.engine.train.recipes import RECIPES

    def start(recipe: Any) -> Callable[[Order], dict[str, Any]]:
        def run(order: Order) -> dict[str, Any]:
            from tokenpaths.engine.train.finish import finish, fitted, load_corpora, read_twin
            from tokenpaths.engine.train.loop import train

            wanted = _shortened(recipe, order.iterations)
            twin = read_twin(order.dense_twin) if order.dense_twin else None
            with order.stage(f"reading {wanted.train_file}"):
                corpus, val = load_corpora(wanted, order.data, order.tokenizer, order.work)
            wanted = fitted(wanted, corpus)
            done = train(wanted, corpus, val, order.work, device=order.device, on_progress=order.on_progress)
            with order.stage(f"measuring on {wanted.val_file}"):
                return finish(done, corpus, val, order.out, order.command, twin)

        return run

    return [
        Training(
            one.name,
            "dna",
            f"{one.model.modality:7} {one.iterations:6,} iterations of {one.batch_size}, "
            f"{one.model.num_modules} modules, {one.model.num_steps} steps, top-{one.model.top_k}",
            (one.train_file, one.val_file),
            start(one),
        )
        for one in RECIPES.values()
    ]


def _directional() -> list[Training]:
    from tokenpaths.engine.train.train_directional import DIRECTIONAL_RECIPES

    def start(recipe: Any) -> Callable[[Order], dict[str, Any]]:
        def run(order: Order) -> dict[str, Any]:
            from tokenpaths.engine.train.finish import load_corpora
            from tokenpaths.engine.train.loop import train
            from tokenpaths.engine.train.train_directional import SHARED_TOKENIZER, ship

            wanted = _shortened(recipe, order.iterations)
            with order.stage(f"reading {wanted.train_file}"):
                corpus, val = load_corpora(wanted, order.data, order.tokenizer or SHARED_TOKENIZER, order.work)
            done = train(wanted, corpus, val, order.work, device=order.device, on_progress=order.on_progress)
            with order.stage(f"measuring on {wanted.val_file}"), tempfile.TemporaryDirectory(dir=order.work) as folder:
                _moved(ship(done, val, Path(folder), order.command), order.out)
            return _validation(order.out)

        return run

    return [
        Training(
            one.name,
            "directional",
            f"text    {one.iterations:6,} iterations of {one.batch_size}, {one.model.layers} layers of "
            f"{one.model.heads} heads, {one.model.directions} directions each",
            (one.train_file, one.val_file),
            start(one),
        )
        for one in DIRECTIONAL_RECIPES.values()
    ]


def _hmodel() -> list[Training]:
    from tokenpaths.engine.train.train_hmodel import HMODEL_RECIPES

    def start(recipe: Any) -> Callable[[Order], dict[str, Any]]:
        def run(order: Order) -> dict[str, Any]:
            from tokenpaths.engine.train.loop import train
            from tokenpaths.engine.train.train_hmodel import load_languages, ship, tokenizer_for

            wanted = _shortened(recipe, order.iterations)
            with order.stage(f"reading {wanted.train_file}"):
                languages = load_languages(order.data)
                order.work.mkdir(parents=True, exist_ok=True)
                tokenizer = tokenizer_for(languages, order.work, wanted.model.vocab_size)
                corpus, held_out = languages.train.corpus(tokenizer), languages.held_out.corpus(tokenizer)
            done = train(wanted, corpus, held_out, order.work, device=order.device, on_progress=order.on_progress)
            with order.stage(f"measuring on {wanted.val_file}"), tempfile.TemporaryDirectory(dir=order.work) as folder:
                _moved(ship(done, languages, tokenizer, Path(folder), order.command), order.out)
            return _validation(order.out)

        return run

    return [
        Training(
            one.name,
            one.family,
            f"text    {one.iterations:6,} iterations of {one.batch_size}, {one.model.num_modules} hidden layers, "
            f"{one.model.iterations} {'iteration' if one.model.iterations == 1 else 'iterations'} of routing",
            (one.train_file, one.val_file),
            start(one),
        )
        for one in HMODEL_RECIPES.values()
        if one.family == "hmodel"
    ]


def _dipaco() -> list[Training]:
    from tokenpaths.engine.train.dipaco.dipaco_recipe import RECIPES

    files = ("text/english_train.parquet", "text/english_val.parquet")

    def start(recipe: Any) -> Callable[[Order], dict[str, Any]]:
        def run(order: Order) -> dict[str, Any]:
            from tokenpaths.engine.base.files import SHIPPED_MODELS
            from tokenpaths.engine.data.tokenizer import TextTokenizer
            from tokenpaths.engine.train.dipaco.documents import load_documents
            from tokenpaths.engine.train.dipaco.finish_dipaco import document_paths, export, note, routed_numbers
            from tokenpaths.engine.train.dipaco.train_dipaco import train

            _only_its_length(order, recipe.name)
            with order.stage(f"reading {files[0]}"):
                tokenizer = TextTokenizer.load(order.tokenizer or SHIPPED_MODELS / "dna-text-top1" / "tokenizer.json")
                documents, val = (
                    load_documents(order.data / file, tokenizer, recipe.model, on_short="drop") for file in files
                )
            shared = dict(workers=order.workers, device=order.device, on_progress=order.on_progress)
            base = None
            if recipe.name != "base":
                # What all recipes start from; a folder of its own, so that they can share it.
                base = train(RECIPES["base"], documents, order.work.parent / "dipaco-base", **shared)
            start_from = None if base is None else base.model.path_model(0)
            done = train(recipe, documents, order.work, base=start_from, **shared)
            with order.stage(f"measuring on {files[1]}"):
                model = export(done, order.out, tokenizer, order.command, base)
                paths = [model.path_model(p) for p in range(recipe.model.num_paths)]
                chosen = document_paths(model, val)
                numbers = routed_numbers(paths, chosen, val, recipe.model.prefix)
                note(order.out, {k: round(v, 4) for k, v in numbers.items()} | {"file": files[1]})
            return _validation(order.out)

        return run

    return [
        Training(
            one.name,
            "dipaco",
            f"text    {one.iterations:6,} iterations of {one.batch_size} on each of {one.model.num_paths} paths, "
            f"levels {' × '.join(map(str, one.model.levels))}",
            files,
            start(one),
        )
        for one in RECIPES.values()
        if one.name.startswith("dipaco")
    ]


def _raytracing() -> list[Training]:
    from tokenpaths.engine.train.raytracing_recipe import RECIPES

    def start(recipe: Any) -> Callable[[Order], dict[str, Any]]:
        def run(order: Order) -> dict[str, Any]:
            from tokenpaths.engine.train.train_raytracing import finish, load_corpora, train

            _only_its_length(order, recipe.name)
            with order.stage(f"reading {recipe.data}"):
                corpora = load_corpora(recipe, None if recipe.data == "digits" else order.data)
            done = train(recipe, corpora, order.work.parent, on_progress=order.on_progress)
            with order.stage("measuring"):
                return finish(done, order.out, order.command)

        return run

    return [
        Training(
            one.name,
            "raytracing",
            f"vision  at most {one.epochs} epochs of {one.data}, "
            f"{one.model.layers} layers of {one.model.blocks} blocks",
            one.files,
            start(one),
        )
        for one in RECIPES.values()
    ]
