"""Validation of a run's description and batches before anything is written.

Shapes: n tokens, S steps, K slots, M modules.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.path_statistics import sorted_and_repeats
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_name
from tokenpaths.engine.base.records import (
    NO_MODULE_KINDS,
    NOT_OFFERED_KIND,
    UNUSED_KIND,
    ModuleInfo,
    RunInfo,
    SampleRecord,
    TraceBatch,
)

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MOST_MODULES = 65_536
_MOST_REGIONS = 255
_LARGEST = 1e30
"""bound of any number of a token: single-precision values, and sums of some millions of them, stay finite"""
_ROUNDING = 1e-4
"""tolerance of weights outside [0, 1]: rounding of half-precision softmaxes"""


def check_text(value: str | None, what: str, *, field: str | None = None) -> None:
    """UserError if ``value`` holds a lone surrogate, which has no UTF-8 form."""
    if value is None:
        return
    if not isinstance(value, str):
        raise UserError(f"{what} is {type(value).__name__}, it should be text", field=field)
    if value.isascii():
        return
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} holds a lone surrogate (U+{ord(value[error.start]):04X} at character {error.start}): "
            "decode it as UTF-8 first, for example with errors='replace'",
            field=field,
        ) from None


def check_json(value: Any, what: str) -> str:
    """``value`` as JSON; UserError if JSON cannot represent it (NaN, a tensor …)."""
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} cannot be written as JSON: {error}", field=what) from None
    check_text(text, what, field=what)
    return text


def check_run(info: RunInfo, modules: Sequence[ModuleInfo]) -> None:
    """UserError if the run's description is inconsistent."""
    check_name(info.run_id, field="run_id")
    for name in ("num_steps", "num_modules", "top_k"):
        if getattr(info, name) < 1:
            raise UserError(f"{name} is {getattr(info, name)}, it should be at least 1", field=name)
    if info.num_modules > _MOST_MODULES:
        raise UserError(f"num_modules is {info.num_modules}, a run holds at most {_MOST_MODULES}", field="num_modules")
    if info.top_k > info.num_modules:
        raise UserError(
            f"top_k is {info.top_k}, but there are {info.num_modules} modules to choose from", field="top_k"
        )
    if info.modality not in ("vision", "text"):
        raise UserError(f"modality is {info.modality!r}, it should be 'vision' or 'text'", field="modality")
    if len(info.regions) > _MOST_REGIONS:
        raise UserError(f"{len(info.regions)} regions, a run holds at most {_MOST_REGIONS}", field="regions")
    for name in ("model", "family", "dataset", "split", "checkpoint_sha256", "engine_version"):
        check_text(getattr(info, name), name, field=name)
    for text in (*info.regions, *info.token_texts.values()):
        check_text(text, "a name of a region or the text of a token", field="token_texts")
    if not modules:
        raise UserError("no modules given: a run needs a ModuleInfo for everything that can be picked", field="modules")
    for module in modules:
        if not 0 <= module.module < info.num_modules:
            raise UserError(
                f"module {module.module} ({module.name}) is outside 0 … {info.num_modules - 1}", field="modules"
            )
        if module.step is not None and not 0 <= module.step < info.num_steps:
            raise UserError(
                f"module {module.module} is of step {module.step}, outside 0 … {info.num_steps - 1}", field="modules"
            )
        check_text(module.name, f"the name of module {module.module}", field="modules")
        check_text(module.kind, f"the kind of module {module.module}", field="modules")
        if module.step is None and module.kind in NO_MODULE_KINDS:
            raise UserError(
                f"module {module.module} is of kind {module.kind!r}, so it stands for something at one step: give it "
                "that step",
                field="modules",
            )
    _check_offers(info, modules)
    unused = min((module.module for module in modules if module.kind == UNUSED_KIND), default=info.num_modules)
    if any(module.module >= unused and module.kind != UNUSED_KIND for module in modules):
        raise UserError(f"module {unused} stands for an unused slot, so every later id should too", field="modules")


def _check_offers(info: RunInfo, modules: Sequence[ModuleInfo]) -> None:
    """UserError unless every step offers a module, and what a step does not offer is shared by others."""
    shared = {module.module for module in modules if module.step is None}
    own = {module.step for module in modules if module.kind not in NO_MODULE_KINDS}
    missing: dict[int | None, set[int]] = {}
    for module in modules:
        if module.kind == NOT_OFFERED_KIND:
            if module.module not in shared:
                raise UserError(
                    f"module {module.module} is not offered at step {module.step}, but no step shares it: leave that "
                    "row out",
                    field="modules",
                )
            missing.setdefault(module.step, set()).add(module.module)
    for step in range(info.num_steps):
        if step not in own and shared <= missing.get(step, set()):
            raise UserError(f"step {step} offers no module: every step needs one that can be picked", field="modules")


def check_ribbons(
    module_ids: np.ndarray,
    info: RunInfo,
    available: np.ndarray,
    what: str = "module_ids",
    unused_from: int | None = None,
) -> np.ndarray | None:
    """UserError unless ``module_ids`` is (n, S, K), each id offered at its step and chosen once there.

    Returns the ids with sorted slots (n, V), where that took sorting. ``unused_from``: of the layout; unused slots are
    the last ones of their step, and numbered from it on, so that equal sets of modules are one path.
    """
    expected = (info.num_steps, info.top_k)
    if module_ids.ndim != 3 or module_ids.shape[1:] != expected:
        raise UserError(
            f"{what} has shape {module_ids.shape}, it should be (tokens, {expected[0]} steps, {expected[1]} slots)",
            field=what,
        )
    if not np.issubdtype(module_ids.dtype, np.integer):
        raise UserError(f"{what} is {module_ids.dtype}, it should be integers", field=what)
    if module_ids.size == 0:
        return None
    unsigned = module_ids.dtype.kind == "u"
    low, high = 0 if unsigned else int(module_ids.min()), int(module_ids.max())
    if low < 0 or high >= info.num_modules:
        raise UserError(
            f"{what} reach from {low} to {high}, but the run has modules 0 … {info.num_modules - 1}", field=what
        )
    for step in range(info.num_steps):
        offered = available[step]
        if not offered.all() and not offered[module_ids[:, step]].all():
            stranger = int(module_ids[:, step][~offered[module_ids[:, step]]][0])
            raise UserError(f"{what}: step {step} offers no module {stranger}", field=what)
    if unused_from is not None:
        unused = module_ids >= unused_from
        place = np.arange(info.top_k) - (~unused).sum(axis=2, keepdims=True)
        right = np.where(unused, module_ids == unused_from + place, place < 0)
        if not right.all():
            token, step, _ = (int(i) for i in np.argwhere(~right)[0])
            raise UserError(
                f"{what}: token {token} has {module_ids[token, step].tolist()} at step {step}: its unused slots should "
                f"be the last ones, numbered {unused_from}, {unused_from + 1} … in that order",
                field=what,
            )
    if info.top_k == 1:
        return None
    narrow = module_ids.astype(np.uint8 if high < 256 else np.uint16, copy=False)
    sorted_nV, twice = sorted_and_repeats(narrow)
    if twice is not None:
        token, step = (int(i) for i in np.argwhere(twice)[0])
        raise UserError(f"{what}: token {token} chooses one module twice at step {step}", field=what)
    return sorted_nV


def check_batch(
    batch: TraceBatch, info: RunInfo, available: np.ndarray, unused_from: int | None = None
) -> np.ndarray | None:
    """UserError unless every array of ``batch`` has its shape and plausible values; returns as ``check_ribbons``.

    ``unused_from``: of the layout.
    """
    sorted_nV = check_ribbons(np.asarray(batch.module_ids), info, available, unused_from=unused_from)
    n = batch.num_tokens
    steps_slots = (info.num_steps, info.top_k)
    _check_array(batch.weights, "weights", (n, *steps_slots), low=-_ROUNDING, high=1 + _ROUNDING)
    if unused_from is not None:
        unused = np.asarray(batch.module_ids) >= unused_from
        if (np.asarray(batch.weights)[unused] != 0).any():
            raise UserError("weights holds a weight of an unused slot, it should be 0", field="weights")
    _check_array(batch.gate_entropy, "gate_entropy", (n, info.num_steps), low=-_ROUNDING, nan=True)
    _check_array(batch.margin, "margin", (n, info.num_steps), low=-_ROUNDING, high=1 + _ROUNDING, nan=True)
    _check_array(batch.runner_up, "runner_up", (n, info.num_steps), low=0, high=info.num_modules - 1, whole=True)
    if (batch.margin is None) != (batch.runner_up is None):
        raise UserError("margin and runner_up go together: give both or none", field="margin")
    _check_array(batch.flops, "flops", (n,), low=0)
    _check_array(batch.loss, "loss", (n,), nan=True)
    _check_array(batch.predicted_id, "predicted_id", (n,), low=0, high=2**31 - 1, whole=True)
    for name in ("row", "col"):  # kept in 16 bits
        _check_array(getattr(batch, name), name, (n,), low=0, high=2**15 - 1, whole=True)
    for name in ("token_id", "char_start", "char_end"):  # −1 = unknown
        _check_array(getattr(batch, name), name, (n,), low=-1, high=2**31 - 1, whole=True)
    _check_array(batch.region, "region", (n,), low=-1, high=len(info.regions) - 1, whole=True)
    for name in ("edges", "gates", "blocks"):
        values = getattr(batch, name)
        if values is not None:
            _check_array(values, name, (len(batch.samples), *np.shape(values)[1:]), low=0)
    total = 0
    for position, sample in enumerate(batch.samples):
        check_sample(sample, position)
        total += sample.num_tokens
    if total != n:
        raise UserError(f"the samples have {total} tokens together, module_ids has {n}", field="samples")
    return sorted_nV


def check_sample(sample: SampleRecord, position: int) -> None:
    """UserError unless the record can be stored; ``position`` is its place in the batch."""
    what = f"sample {position} of the batch"
    if sample.num_tokens < 1:
        raise UserError(f"{what} has {sample.num_tokens} tokens, it needs at least one", field="samples")
    for name in ("label", "prediction", "text", "source"):
        check_text(getattr(sample, name), f"{name} of {what}", field=name)
    for name in ("confidence", "loss"):
        value = getattr(sample, name)
        if value is not None and not np.isfinite(value):
            raise UserError(f"{name} of {what} is {value}, it should be a finite number or None", field=name)
    if sample.image is not None and not sample.image.startswith(PNG_SIGNATURE):
        raise UserError(f"image of {what} is not a PNG", field="image")
    if sample.grid is not None and min(sample.grid) < 1:
        raise UserError(f"grid of {what} is {sample.grid}, it should be (rows, columns), both at least 1", field="grid")


def _check_array(
    values: np.ndarray | None,
    name: str,
    shape: tuple[int, ...],
    *,
    low: int | float | None = None,
    high: int | float | None = None,
    nan: bool = False,
    whole: bool = False,
) -> None:
    if values is None:
        return
    values = np.asarray(values)
    if values.shape != shape:
        raise UserError(f"{name} has shape {values.shape}, it should be {shape}", field=name)
    if whole and not np.issubdtype(values.dtype, np.integer):
        raise UserError(f"{name} is {values.dtype}, it should be integers", field=name)
    if values.size == 0:
        return
    if values.size > 1 and not any(values.strides):  # one number for all
        values = values[(slice(1),) * values.ndim]
    # Minimum and maximum say of nearly all arrays that nothing is wrong, without an array of their size.
    smallest, largest = (np.fmin, np.fmax) if nan else (np.minimum, np.maximum)
    lowest, highest = smallest.reduce(values, axis=None), largest.reduce(values, axis=None)
    if not whole and not (float(lowest) >= -_LARGEST and float(highest) <= _LARGEST):
        wrong = np.isinf(values) if nan else ~np.isfinite(values)
        if values.dtype.itemsize > 2:  # half precision cannot say so much
            wrong |= np.abs(values) > _LARGEST
        if wrong.any():
            where = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise UserError(
                f"{name}{list(where)} is {values[where]}, it should be a finite number of at most {_LARGEST:g}",
                field=name,
            )
    if low is not None and lowest < low:
        raise UserError(f"{name} goes down to {lowest}, it should not fall below {max(low, -1):g}", field=name)
    if high is not None and highest > high:
        raise UserError(f"{name} goes up to {highest}, it should not exceed {high:g}", field=name)
