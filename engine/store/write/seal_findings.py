"""Writes the findings of a run as JSON: what is known of its model, and statistics of its soft decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import duckdb
import numpy as np

from tokenpaths.engine.analysis.families.family_findings import FINDERS, SoftSamples
from tokenpaths.engine.base.records import RunInfo
from tokenpaths.engine.data.sources.sample import readable
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES


def write_findings(con: duckdb.DuckDBPyConnection, info: RunInfo, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Fill ``finding``; non-finite numbers become null."""
    findings: dict[str, Any] = dict(info.findings)
    for kind, shape in shapes.items():
        if kind in FINDERS:
            name, find = FINDERS[kind]
            findings[name] = findings.get(name, {}) | find(_samples(con, kind, shape, info))
    for name, answer in findings.items():
        con.execute("INSERT INTO finding VALUES (?, ?)", [name, json.dumps(plain(answer), allow_nan=False)])


def _samples(con: duckdb.DuckDBPyConnection, kind: str, shape: tuple[int, ...], info: RunInfo) -> SoftSamples:
    rows = con.execute("SELECT label, loss, compute FROM sample ORDER BY sample").fetchall()
    labels, loss, compute = zip(*rows, strict=True)
    soft = SOFT_TABLES[kind]
    columns = con.execute(f"SELECT sample, {', '.join(soft.axes)}, {soft.value} FROM {soft.table}").fetchnumpy()
    values = np.zeros((len(rows), *shape), dtype=np.float32)
    values[(columns["sample"], *(columns[axis] for axis in soft.axes))] = columns[soft.value]
    return SoftSamples(
        values=values,
        labels=list(labels),
        loss=np.array([np.nan if value is None else value for value in loss], dtype=np.float64),
        compute=np.array(compute, dtype=np.float64),
        axes=dict(info.axes),
    )


def plain(value: Any) -> Any:
    """``value`` as plain JSON: arrays as lists, non-finite numbers as null, what is no Unicode as question marks."""
    if isinstance(value, Mapping):
        return {readable(str(key)): plain(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str):
        return readable(value)
    return None if isinstance(value, float) and not np.isfinite(value) else value
