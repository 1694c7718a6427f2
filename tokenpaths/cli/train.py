"""``tokenpaths train``: run a recipe, resume it, export its checkpoint with a card."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenpaths.cli.support.options import folder_option, takes
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.cli.support.progress_bar import Bar
    from tokenpaths.engine.train.loop import Progress


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of ``tokenpaths train``."""

    recipe: Annotated[str, typer.Argument(help="Name of a recipe; see --list.", show_default=False)] = ""
    data: Annotated[Path, folder_option("Folder with the recipe's Parquet files.")] = Path(".")
    out: Annotated[
        Path | None,
        folder_option("Where the checkpoint folder is written [default: models/<recipe> in the data folder]."),
    ] = None
    work: Annotated[Path, folder_option("Where state and logs are kept while training; give it again to resume.")] = (
        Path(".work")
    )
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json of a text recipe; default: trained on its data.")
    ] = None
    dense_twin: Annotated[
        Path | None, folder_option("Checkpoint folder of the dense twin, for its numbers on the card.")
    ] = None
    iterations: Annotated[int | None, typer.Option(help="Train shorter or longer than the recipe says.", min=1)] = None
    seed: Annotated[
        int | None,
        typer.Option(
            help="Another seed than the recipe's, for its weights and the order of its batches; folders are named so.",
            min=0,
            max=2**31 - 1,
        ),
    ] = None
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; default: the best there is.")] = None
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all.", min=1)] = None
    workers: Annotated[
        int, typer.Option(help="Processes that share the paths of a DiPaCo; 0: none but this one.", min=0)
    ] = 0
    list_recipes: Annotated[bool, typer.Option("--list", help="Show the recipes and stop.")] = False


@takes(TrainOptions)
def train(options: TrainOptions) -> None:
    """Train a routed model from a recipe.

    Interrupt it whenever you like: the same command goes on where it stopped.

    Example: tokenpaths train dna-vision-top1 --data ~/data
    """
    from tokenpaths.engine.train.catalogue import Order, find_training, trainings

    recipe, data, out = options.recipe, options.data, options.out
    if not recipe and not options.list_recipes and options != TrainOptions():
        raise UserError("which recipe? tokenpaths train --list shows them", field="recipe")
    if options.list_recipes or not recipe:
        recipes = trainings().values()
        width = max(len(training.name) for training in recipes)
        for training in recipes:
            typer.echo(f"{training.name:{width}}  {training.about}")
        typer.echo("docs/training.md says which files each reads from --data, and how to make them of your own data.")
        return
    chosen = find_training(recipe)
    named = recipe if options.seed is None else f"{recipe}-seed{options.seed}"
    if not data.is_dir():
        raise UserError(f"there is no folder {data}; --data is where the recipe's files lie", field="data")
    if out is None:
        from tokenpaths.backend.settings import load_settings
        from tokenpaths.engine.base.model_folders import CONFIG

        # Never over a shipped checkpoint; there, `trace` and the page find it before the shipped one.
        out = load_settings().data_dir / "models" / named
        if (out / CONFIG).exists() and not (options.work / named).exists():
            raise UserError(
                f"{out} holds a checkpoint of an earlier training, and {options.work / named} is new: --out names "
                "another folder for this one, and the --work with which the earlier one began goes on with it",
                field="out",
            )
    for option, folder in {"out": out, "work": options.work}.items():
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is a file; --{option} names a folder", field=option)
    import torch

    from tokenpaths.cli.support.progress_bar import waiting
    from tokenpaths.engine.base.device import pick_device

    if options.threads:
        torch.set_num_threads(options.threads)
    with _Follower(named) as follower:
        numbers = chosen.carry_out(
            Order(
                data=data,
                out=out,
                work=options.work / named,
                tokenizer=options.tokenizer,
                dense_twin=options.dense_twin,
                device=pick_device(options.device),
                iterations=options.iterations,
                seed=options.seed,
                workers=options.workers,
                command=shlex.join(["tokenpaths", *sys.argv[1:]]),
                on_progress=follower.hear,
                stage=waiting,
            )
        )
    shown = ", ".join(f"{k} {v:.4g}" for k, v in numbers.items() if isinstance(v, int | float))
    typer.echo(f"{out}: {shown}")


class _Follower:
    """A bar for each stage of a training: a new one whenever the number of iterations is another."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._bars = ExitStack()
        self._total: int | None = None
        self._bar: Bar | None = None

    def __enter__(self) -> _Follower:
        return self

    def __exit__(self, *error: object) -> None:
        self._bars.close()

    def hear(self, progress: Progress) -> None:
        """Show where the training stands."""
        from tokenpaths.cli.support.progress_bar import bar

        if self._bar is None or progress.iterations != self._total:
            self._bars.close()
            self._total = progress.iterations
            # Where it goes on, the first that is told is the next iteration.
            before = max(0, progress.iteration - 1)
            self._bar = self._bars.enter_context(bar(self.name, progress.iterations, "it", before))
        self._bar.update(progress.iteration, f"loss {progress.loss:.3f} {progress.note}")
        if progress.iteration >= progress.iterations:
            self._bars.close()
            self._bar = None
