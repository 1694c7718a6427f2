"""Soft decisions of a run (edges, gates, block rates) and the findings about them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np

from tokenpaths.engine.base.errors import NoSuchThing
from tokenpaths.engine.store.ask.question import MAX_INT, Argument, LabelFilter, Route, Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.schema import ALL_LABELS
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES


@question(
    None,
    "expert_schema.SoftValues",
    tag="soft routers",
    routes=tuple(
        Route(kind, f"show_{kind}", description, {"kind": kind})
        for kind, description in (
            ("edges", "Weight of each connection by iteration, source and target (H-Model)."),
            ("gates", "Weight of each direction by layer and head (Directional Routing)."),
            ("blocks", "Firing rate of each block at each threshold step, 0 where it was silent (RayTracing)."),
        )
    ),
    frames={
        "soft": Rows(
            lambda answer: _long_rows(answer),
            "Soft decisions as a long table: a column for each axis with its names, then value and std.",
        )
    },
)
def soft(
    run: RunFile,
    kind: str,
    *,
    label: LabelFilter = None,
    sample: Annotated[int | None, Argument("Of this sample; else the mean over samples", ge=0, le=MAX_INT)] = None,
) -> dict[str, Any]:
    """What a soft, gated or threshold router said: ``edges``, ``gates`` or ``blocks``.

    Of one sample its own values; else mean and standard deviation over the samples (of ``label``).
    Nested lists along ``axes``.
    """
    shape = _shape(run, kind)
    if sample is not None:
        if not 0 <= sample < run.row["num_samples"]:
            raise run.no_sample(sample)
        values = _dense(run.arrays(_sample_rows(kind, sample)), kind, shape)
        shown: dict[str, Any] = {"num_samples": 1, "values": values.round(6).tolist(), "std": None}
    else:
        rows = run.rows(_summary_rows(kind, run.label_id(label)))
        count, mean, std = (np.array(column) for column in zip(*rows, strict=True))
        shown = {"num_samples": int(count[0])}
        shown |= {"values": mean.reshape(shape).round(6).tolist(), "std": std.reshape(shape).round(6).tolist()}
    axes = [
        {"axis": axis, "names": run.axis_names.get(axis) or [str(i) for i in range(size)]}
        for axis, size in zip(SOFT_TABLES[kind].axes, shape, strict=True)
    ]
    return {"run": run.run_id, "sample": sample, "label": label, "kind": kind, "axes": axes, **shown}


def soft_arrays(run: RunFile, kind: str) -> np.ndarray:
    """All samples' values of a kind, (samples, *axes) float32: for analyses and notebooks."""
    shape, table = _shape(run, kind), SOFT_TABLES[kind]
    columns = run.arrays(Query(f"SELECT sample, {', '.join(table.axes)}, {table.value} FROM {table.table}"))
    values = np.zeros((run.row["num_samples"], *shape), dtype=np.float32)
    values[(columns["sample"], *(columns[axis] for axis in table.axes))] = columns[table.value]
    return values


def findings(run: RunFile) -> dict[str, Any]:
    """Stored findings about the model and its soft decisions, by name."""
    rows = run.rows(Query("SELECT name, answer FROM finding ORDER BY name"))
    return {name: json.loads(answer) for name, answer in rows}


def finding(run: RunFile, name: str) -> Any:
    """One of ``findings``; None where there is none of this name."""
    rows = run.rows(Query("SELECT answer FROM finding WHERE name = ?", (name,)))
    return json.loads(rows[0][0]) if rows else None


def _long_rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row per value, with its names along every axis."""
    axes = answer["axes"]
    places = itertools.product(*(axis["names"] for axis in axes))
    values = np.array(answer["values"]).ravel().tolist()
    stds = np.array(answer["std"]).ravel().tolist() if answer["std"] is not None else [None] * len(values)
    names = [axis["axis"] for axis in axes]
    return [
        {**dict(zip(names, place, strict=True)), "value": value, "std": std}
        for place, value, std in zip(places, values, stds, strict=True)
    ]


def _shape(run: RunFile, kind: str) -> tuple[int, ...]:
    if kind not in run.soft_shapes:
        has = ", ".join(run.soft_shapes) or "none of these tables: its decisions are hard, see flow and paths"
        raise NoSuchThing(f"run {run.run_id!r} has no {kind[:40]}; it has {has}", field="kind")
    return run.soft_shapes[kind]


def _summary_rows(kind: str, label_id: int | None) -> Query:
    """num_samples, mean, std in the order of the flattened axes."""
    label = ALL_LABELS if label_id is None else label_id
    return Query(
        "SELECT num_samples, mean, std FROM soft_summary WHERE kind = ? AND label_id = ? ORDER BY place", (kind, label)
    )


def _sample_rows(kind: str, sample: int) -> Query:
    """The axes and the value of one sample."""
    soft = SOFT_TABLES[kind]
    columns = ", ".join([*soft.axes, soft.value])
    return Query(f"SELECT {columns} FROM {soft.table} WHERE sample = ? ORDER BY ALL", (sample,))


def _dense(columns: Mapping[str, np.ndarray], kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Dense array of ``shape`` (axes of the kind) from the rows of one sample."""
    soft = SOFT_TABLES[kind]
    values = np.zeros(shape, dtype=np.float32)
    values[tuple(columns[axis] for axis in soft.axes)] = columns[soft.value]
    return values
