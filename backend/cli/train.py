"""``tokenpaths train``: run a recipe, resume it, export its checkpoint with a card."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engine.errors import UserError

if TYPE_CHECKING:
    from engine.train.recipes import Recipe


def train(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe; see --list.", show_default=False)] = "",
    data: Annotated[Path, typer.Option(help="Folder with the recipe's Parquet files.", show_default=False)] = Path("."),
    out: Annotated[
        Path | None,
        typer.Option(help="Where the checkpoint folder is written [default: models/<recipe> in the data folder]."),
    ] = None,
    work: Annotated[
        Path, typer.Option(help="Where state and logs are kept while training; give it again to resume.")
    ] = Path(".work"),
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json of a text recipe; default: trained on its data.")
    ] = None,
    dense_twin: Annotated[
        Path | None, typer.Option(help="Checkpoint folder of the dense twin, for its numbers on the card.")
    ] = None,
    iterations: Annotated[int | None, typer.Option(help="Train shorter or longer than the recipe says.", min=1)] = None,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; default: the best there is.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all.", min=1)] = None,
    list_recipes: Annotated[bool, typer.Option("--list", help="Show the recipes and stop.")] = False,
) -> None:
    """Train a routed model from a recipe.

    Interrupt it whenever you like: the same command goes on where it stopped.

    Example: tokenpaths train dna-vision-top1 --data ~/data
    """
    from engine.train.recipes import RECIPES, find_recipe

    if list_recipes or not recipe:
        for one in RECIPES.values():
            model = one.model
            typer.echo(
                f"{one.name:24} {model.modality:7} {one.iterations:6,} iterations of {one.batch_size}, "
                f"{model.num_modules} modules, {model.steps} steps, top-{model.top_k}"
            )
        return
    chosen = find_recipe(recipe)
    if iterations is not None:
        chosen = chosen.model_copy(update={"iterations": iterations})
    if not data.is_dir():
        raise UserError(f"there is no folder {data}; --data is where {chosen.train_file} lies", field="data")
    if out is None:
        from backend.settings import load_settings

        # Never over a shipped checkpoint; there, `trace` and the page find it before the shipped one.
        out = load_settings().data_dir / "models" / recipe
    command = shlex.join(["tokenpaths", *sys.argv[1:]])
    _train(chosen, data, out, work / recipe, tokenizer, dense_twin, device, threads, command)


def _train(
    recipe: Recipe,
    data: Path,
    out: Path,
    folder: Path,
    tokenizer_file: Path | None,
    twin_folder: Path | None,
    device: str | None,
    threads: int | None,
    command: str,
) -> None:
    import torch

    from backend.cli.bars import bar, waiting
    from engine.device import pick_device
    from engine.train.finish import finish, load_corpora, read_twin
    from engine.train.loop import train as run_training

    if threads:
        torch.set_num_threads(threads)
    where = pick_device(device)
    twin = read_twin(twin_folder) if twin_folder else None
    with waiting(f"reading {recipe.train_file}"):
        train_set, val_set = load_corpora(recipe, data, tokenizer_file, folder)
    with bar(recipe.name, recipe.iterations, "it") as progress:
        run = run_training(
            recipe,
            train_set,
            val_set,
            folder,
            device=where,
            on_progress=lambda p: progress.update(p.iteration, f"loss {p.loss:.3f} {p.note}"),
        )
    with waiting(f"measuring on {recipe.val_file}"):
        numbers = finish(run, train_set, val_set, out, command, twin)
    typer.echo(f"{out}: " + ", ".join(f"{k} {v:.4g}" for k, v in numbers.items()))
