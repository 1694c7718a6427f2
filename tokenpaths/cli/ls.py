"""``tokenpaths ls``: the runs and models of the data folder."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenpaths.cli.support.light_imports import without_pandas
from tokenpaths.cli.support.options import DataDir
from tokenpaths.cli.support.terminal import cell
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.backend.runs.registry import RunRegistry
    from tokenpaths.engine.store.ask.run import Run

RUN_COLUMNS = ("run", "model", "dataset", "samples", "tokens", "paths", "accuracy", "loss", "created")
MODEL_COLUMNS = ("model", "modality", "parameters", "steps", "modules", "top-k", "validation")


class What(StrEnum):
    """What to list."""

    all = "all"
    runs = "runs"
    models = "models"


def ls(
    what: Annotated[What, typer.Argument(help="runs, models or all.")] = What.all,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """List the runs of the data folder and the models that can be traced.

    Example: tokenpaths ls runs --json | jq '.runs[].run'
    """
    from tokenpaths.backend.settings import load_settings

    settings = load_settings(data_dir=data_dir)
    lists: dict[str, list[dict[str, Any]]] = {}
    if what is not What.models:
        from tokenpaths.backend.runs.registry import RunRegistry

        registry = RunRegistry.of(settings, time_limit_s=settings.query_seconds, max_open=1)
        with without_pandas():
            lists["runs"] = _cards(registry)
        registry.close()
    if what is not What.runs:
        from tokenpaths.engine.adapters.find_traceable import list_traceable

        lists["models"] = list_traceable(settings.all_models_dirs, settings.checkpoints_dir)
    if as_json:
        print(json.dumps(lists, indent=1, ensure_ascii=False))
        return
    if "runs" in lists:
        _show_runs(lists["runs"], settings.runs_dir)
    if "models" in lists:
        _show_models(lists["models"])


def _cards(registry: RunRegistry) -> list[dict[str, Any]]:
    """All cards; runs that are taken in, and those opened for their first card, are waited for, with a bar."""
    from tokenpaths.backend.runs.registry import card_key
    from tokenpaths.cli.support.progress_bar import bar
    from tokenpaths.engine.base.files import printable_name

    names, cards = registry.names(), []
    kept: dict[str, tuple[str, dict[str, Any]]] = {}
    with bar("reading runs", len(names), "runs") as shown:
        for number, name in enumerate(names):
            shown.update(number, printable_name(name))
            cards.append(registry.card(name, kept=kept))
        shown.update(len(names))
    registry.index.put(kept)
    return sorted((card for card in cards if card is not None), key=card_key, reverse=True)


def _show_runs(cards: list[dict[str, Any]], runs_dir: Path) -> None:
    if not cards:
        print(f"No runs in {runs_dir} yet: `tokenpaths trace --help` says how to make one.")
        return
    good = [card for card in cards if card["status"] == "sealed"]
    rows = [
        (
            card["run"],
            card["model"],
            card["dataset"],
            *(_number(card[name]) for name in ("num_samples", "num_tokens", "num_paths")),
            _number(card.get("accuracy")),
            _number(card.get("loss")),
            str(card["created_at"])[:16].replace("T", " "),
        )
        for card in good
    ]
    print_table(RUN_COLUMNS, rows, right=range(3, 8))
    for card in cards:
        if card["status"] != "sealed":
            print(f"! {cell(card['run'])}: {card['problem']}")


def _show_models(models: list[dict[str, Any]]) -> None:
    if not models:
        print("No models found: `tokenpaths train --help` says how to make one.")
        return
    rows = [
        (
            row["model"],
            row["modality"],
            *(_number(row[name]) for name in ("num_params", "num_steps", "num_modules", "top_k")),
            ", ".join(f"{k} {_number(v)}" for k, v in row["validation"].items() if isinstance(v, int | float)),
        )
        for row in models
        if not row.get("problem")
    ]
    print()
    print_table(MODEL_COLUMNS, rows, right=range(2, 6))
    for row in models:
        if row.get("problem"):
            print(f"! {row['model']}: {row['problem']}")


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: range = range(0)) -> None:
    """Print aligned columns, those in ``right`` to the right."""
    lines = [columns, *[[cell(str(value)) for value in row] for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        cells = (
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(cells).rstrip())


def series(
    name: Annotated[str, typer.Argument(help="Name of the series; `-` takes the runs out of theirs.")],
    runs: Annotated[list[str], typer.Argument(help="Runs, each with its iteration: my-run@400.")],
    data_dir: DataDir = None,
) -> None:
    """Put runs into a series of checkpoints, which Compare shows over training. The runs stay as they are.

    Example: tokenpaths series my-training early@500 late@2000
    """
    from tokenpaths.backend.runs.registry import RunRegistry
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.support.refusals import problems_as_errors
    from tokenpaths.engine.store.ask.run_series import put_into_series

    def put(opened: Run, iteration: int | None) -> None:
        put_into_series(opened, None if name == "-" else name, iteration)

    registry = RunRegistry.of(load_settings(data_dir=data_dir), time_limit_s=60)
    try:
        wanted = [_iteration(run, name) for run in runs]
        with problems_as_errors("runs"):
            for run, _ in wanted:
                registry.identity(run)
            for run, iteration in wanted:
                registry.ask(run, functools.partial(put, iteration=iteration))
    finally:
        registry.close()
    told = "taken out of their series" if name == "-" else f"in the series {name}"
    print(f"{', '.join(run for run, _ in wanted)}: {told}")


def _iteration(text: str, name: str) -> tuple[str, int | None]:
    """Run and iteration of ``run@400``."""
    run, at, number = text.partition("@")
    if name == "-" and not at:
        return run, None
    if not number.isascii() or not number.isdigit() or len(number) > 400:  # Python reads no longer ones
        raise UserError(f"{text[:80]!r} does not say the iteration: write run@400", field="runs")
    return run, int(number)
