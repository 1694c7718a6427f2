"""``tokenpaths agree``: whether the same tokens take the same modules in two runs, for a person or a pipeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from tokenpaths.cli.support.options import DataDir
from tokenpaths.cli.support.terminal import cell

STEP_COLUMNS = ("step", "same modules", "shared", "by chance", "same first", "weight moved")


class Of(StrEnum):
    """What ``--at-least`` is about."""

    sets = "sets"
    overlap = "overlap"
    first = "first"
    order = "order"
    tokens = "tokens"


WORDS = {
    Of.sets: "decisions have the same modules",
    Of.overlap: "modules of a decision are shared, on average",
    Of.first: "decisions have the same first choice",
    Of.order: "decisions have the same modules in the same order",
    Of.tokens: "tokens have the same modules at every step",
}


def agree(
    run_a: Annotated[str, typer.Argument(help="Name of a run, as `tokenpaths ls` shows it.", show_default=False)],
    run_b: Annotated[str, typer.Argument(help="Name of another run of the same architecture.", show_default=False)],
    at_least: Annotated[
        float | None,
        typer.Option(help="A share; exit code 1 where the two agree less.", min=0, max=1, show_default=False),
    ] = None,
    of: Annotated[
        Of,
        typer.Option(
            help="What --at-least is about: the set of modules of a decision, the share of them in both (overlap), the "
            "first choice, their order, or whole tokens."
        ),
    ] = Of.sets,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Tell how far two runs route the same tokens alike.

    For a rollout and a training engine, two kernels, a model and its quantised copy. Samples are paired by source, text
    or vocabulary ids, their tokens by stretches of equal ids. All tokens are compared. Exit code 1: below --at-least.

    Example: tokenpaths agree rollout training --at-least 0.99
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.answers.figures import opened
    from tokenpaths.cli.support.progress_bar import bar
    from tokenpaths.engine.base.errors import UserError

    settings = load_settings(data_dir=data_dir)
    with (
        opened(settings, run_a, run_b, "agree", options=("run_a", "run_b")) as (a, b),
        bar("comparing", None, "tokens") as shown,
    ):
        assert b is not None

        def show(done: int, total: int) -> None:
            shown.total = total
            shown.update(done)

        answer = a.agree(b, most_choices=None, progress=show)
    value = _value(answer, of)
    if at_least is not None and value is None:
        raise UserError(f"--of {of.value} cannot be told: {answer['order_missing'] or 'top-k differs'}.", field="of")
    if as_json:
        print(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        _show(answer)
    if at_least is not None and value is not None:
        fine = value >= at_least
        if not as_json:
            verdict = "at least" if fine else "less than"
            print(f"\n{_percent(value, at_least)} of {WORDS[of]}: {verdict} {_percent(at_least, value)}.")
        raise typer.Exit(0 if fine else 1)


def _value(answer: Mapping[str, Any], of: Of) -> float | None:
    found = answer["overall"][of.value]
    if found is None:
        return None
    return float(found["mean"] if of is Of.overlap else found["share"])


def _show(answer: Mapping[str, Any]) -> None:
    from tokenpaths.cli.ls import print_table

    print(cell(answer["matched"]["sentence"]))
    if answer["note"]:
        print(cell(answer["note"]))
    print()
    overall = answer["overall"]
    for of in Of:
        found = overall[of.value]
        if found is not None:
            print(f"{_percent(_value(answer, of)):>8} of {WORDS[of]}{_interval(found)}")
    if answer["order_missing"]:
        print(f"         {answer['order_missing']}")
    loss = answer["loss"]
    if loss is not None:
        for name, words in (("same", "the same modules at every step"), ("different", "other modules somewhere")):
            if loss[name] is not None:
                change = f"{loss[name]['mean']:+.4f}"
                print(f"{change:>8} nats of loss where tokens have {words} ({loss[f'num_{name}']:,})")
    rows = [
        (
            str(row["step"]),
            _percent(row["sets"]["share"] if row["sets"] else None),
            _percent(row["overlap"]),
            _percent(row["chance"]),
            _percent(row["first"]),
            "–" if row["weight_change"] is None else f"{row['weight_change']:.4f}",
        )
        for row in answer["steps"]
    ]
    print()
    print_table(STEP_COLUMNS, rows, right=range(6))
    words = answer["words"]["rows"]
    if words:
        listed = ", ".join(f"{cell(repr(row['text'] or row['token_id']))} {_percent(row['sets'])}" for row in words[:8])
        print(f"\nWords that differ more often than the rest: {listed}")
    if answer["samples"]:
        listed = ", ".join(f"{row['sample']} ({_percent(row['sets'])})" for row in answer["samples"][:8])
        print(f"Samples of {cell(answer['a'])} with most differences: {listed}")


def _percent(share: float | None, apart: float | None = None) -> str:
    """Two decimals, more where it would look like all or nothing, or like ``apart``, which it is not."""
    if share is None:
        return "–"
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    others = {0.0, 100.0} if apart is None or apart == share else {0.0, 100.0, 100 * apart}
    for digits in range(2, 10):
        text = f"{100 * share:.{digits}f}"
        if float(text) not in {round(other, digits) for other in others}:
            break
    return f"{text} %"


def _interval(found: Mapping[str, Any]) -> str:
    if found["low"] is None:
        return ""
    return f" (95 %: {_percent(found['low'])} to {_percent(found['high'])})"
