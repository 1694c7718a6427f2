"""``tokenpaths trace --controls``: the edited run, and with ``--beside`` the unchanged one and the measured effect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.engine.data.datasets import Dataset, Sample
    from tokenpaths.engine.tracing.trace_run import TraceOptions, TraceProgress
    from tokenpaths.engine.tracing.traceable import Traceable

MOST_BESIDE = 4096
"""samples that are held to be measured twice"""
EXAMPLE = '{"edits": [{"edit": "ban", "modules": [3], "step": 1}]}'


@dataclass(frozen=True)
class Wanted:
    """What ``--controls`` and ``--beside`` ask for."""

    controls: dict[str, Any]
    beside: bool


def wanted(controls: str | None, beside: bool) -> Wanted | None:
    """The options as one; None: nothing is changed.

    Raises:
        UserError: no JSON, no object, nothing in it, or ``--beside`` alone.
    """
    if controls is None:
        if beside:
            raise UserError(
                f"--beside is for --controls; say what is to be changed: --controls '{EXAMPLE}'.", field="beside"
            )
        return None
    try:
        values = json.loads(controls, parse_constant=_no_constant)
    except RecursionError:
        raise UserError(f"--controls is nested too deeply; give JSON such as '{EXAMPLE}'.", field="controls") from None
    except ValueError as error:
        why = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise UserError(f"--controls is no JSON ({why}); give one such as '{EXAMPLE}'.", field="controls") from None
    if not isinstance(values, dict) or not values:
        given = "an empty object" if values == {} else f"a {type(values).__name__}"
        raise UserError(f"--controls is {given}; give a JSON object such as '{EXAMPLE}'.", field="controls")
    return Wanted(values, beside)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def under_controls(model: Traceable, ask: Wanted) -> Traceable:
    """The model, changed.

    Raises:
        UserError: controls that do not fit it, or that change nothing.
    """
    changed = model.with_controls(ask.controls)
    if changed.controls is None or not changed.controls.given():
        raise UserError(
            f"--controls changes nothing; give what is to be different, such as '{EXAMPLE}'.", field="controls"
        )
    return changed


def name_before(run: str | None) -> str | None:
    """Of the unchanged run beside an edited one that was given a name."""
    return None if run is None else f"{run}-before"


def held(dataset: Dataset) -> list[Sample]:
    """The samples, to be gone through more than once.

    Raises:
        UserError: too many, or none.
    """
    samples: list[Sample] = []
    for sample in dataset:
        if len(samples) == MOST_BESIDE:
            raise UserError(
                f"the effect is measured over at most {MOST_BESIDE:,} samples, held in memory; give "
                "--limit, or leave --beside out.",
                field="limit",
            )
        samples.append(sample)
    if not samples:
        raise UserError("the data set holds no sample, so there is nothing to measure", field="data")
    return samples


def trace_edited(
    model: Traceable,
    dataset: Dataset,
    runs_dir: Path,
    ask: Wanted,
    options: TraceOptions,
    on_progress: Callable[[TraceProgress], None],
) -> tuple[Path | None, Path, dict[str, Any] | None]:
    """The edited run; with ``beside`` the unchanged one and the effect too.

    Args:
        model: under the controls of ``ask``; a share of modules to be banned is counted here.
        dataset: gone through once, or held in memory.
        runs_dir: folder of run files.
        ask: what is asked for.
        options: of the edited run; ``twin`` that of the unchanged one.
        on_progress: called behind every pass.

    Raises:
        UserError: as ``held``; controls that do not fit a sample.
    """
    from tokenpaths.engine.edits.measure import Unchanged, measure_effect
    from tokenpaths.engine.edits.prepared import prepare
    from tokenpaths.engine.edits.sweep import usage_of, with_share
    from tokenpaths.engine.tracing.trace_run import run_id_of, trace_samples

    shares = getattr(model.controls, "ban_share", None) is not None
    if not ask.beside and not shares:
        after = trace_samples(model, dataset, runs_dir, options=replace(options, twin=False), on_progress=on_progress)
        return None, after, None
    samples = held(dataset)
    data = prepare(model, samples)
    unchanged = Unchanged(model, data)
    if shares:
        model = with_share(model, usage_of(model, data, unchanged))
    run_id = options.run_id or run_id_of(model, f"after {dataset.name}")
    edited = replace(options, run_id=run_id, twin=False)
    if not ask.beside:
        return None, trace_samples(model, samples, runs_dir, options=edited, on_progress=on_progress), None
    effect = measure_effect(model, data, unchanged)
    plain = replace(options, run_id=name_before(options.run_id) or run_id_of(model, f"before {dataset.name}"))
    before = trace_samples(model.without_controls(), samples, runs_dir, options=plain, on_progress=on_progress)
    with _taken_back(before):
        edited = replace(edited, findings={"effect": effect})
        after = trace_samples(model, samples, runs_dir, options=edited, on_progress=on_progress)
    return before, after, effect


@contextmanager
def _taken_back(before: Path) -> Iterator[None]:
    """Delete the unchanged run where the edited one, which it is for, does not come about."""
    try:
        yield
    except BaseException:
        before.unlink(missing_ok=True)
        raise


def say_effect(effect: Mapping[str, Any]) -> None:
    """The effect in a few lines (METRICS 5)."""
    for line in effect_lines(effect):
        typer.echo(line)


def effect_lines(effect: Mapping[str, Any]) -> Sequence[str]:
    """What was changed, then loss and answers, then paths; what is not known is left out."""
    lines = ["edits: " + "; ".join(effect["edits"])] if effect.get("edits") else []
    parts = []
    if loss := effect.get("loss"):
        error = f" ± {loss['error']:.4f}" if loss.get("error") else ""
        parts.append(f"loss {loss['before']:.4f} → {loss['after']:.4f} nats ({loss['change']:+.4f}{error})")
    if pair := effect.get("perplexity"):
        parts.append(f"perplexity {pair['before']:.1f} → {pair['after']:.1f}")
    if pair := effect.get("accuracy"):
        parts.append(f"accuracy {_percent(pair['before'])} → {_percent(pair['after'])}")
    if parts:
        lines.append("; ".join(parts))
    lines.append(
        f"answers: KL {effect['kl']:.4f} nats; the likeliest changed for {_percent(effect['top1_changed'])} of "
        f"{effect['num_outputs']:,} outputs, and {_percent(effect['top5_changed'])} of the five likeliest"
    )
    moved = effect["flow_difference"]
    lines.append(
        f"paths changed: {_percent(effect['paths_changed'])} of {effect['num_tokens']:,} tokens{_behind(effect)}; "
        "path distance "
        f"{effect['path_distance']:.3f}" + ("" if moved is None else f"; flow that moved {_percent(moved)}")
    )
    return lines


def _behind(effect: Mapping[str, Any]) -> str:
    """“, behind step 2 12.0 %”; nothing where every step behind the first edited one is edited too."""
    moved = effect["paths_changed_after"]
    return "" if moved is None else f", behind step {effect['after_step']} {_percent(moved)}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
