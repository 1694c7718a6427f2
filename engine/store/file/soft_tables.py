"""Tables of soft, gated and threshold routers: ``edge``, ``gate`` and ``block``.

One row for each sample and number; ``soft_summary`` holds mean and standard deviation over samples, for all and for
each label, so a page never scans the long tables. Zeros of ``block`` are left out (silent blocks).

Shapes: b samples; I iterations, A sources, Z targets; L layers, H heads, D directions; R threshold steps, P blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb


@dataclass(frozen=True)
class SoftTable:
    """Storage of one kind of soft decision."""

    kind: str
    """name in ``TraceBatch`` and in the REST API"""
    table: str
    axes: tuple[str, ...]
    value: str
    sparse: bool = False

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Name and SQL type of every column of the long table."""
        return [("sample", "INTEGER"), *((axis, "SMALLINT") for axis in self.axes), (self.value, "FLOAT")]

    @property
    def create(self) -> str:
        """SQL of the long table."""
        return f"CREATE TABLE {self.table} ({', '.join(f'{name} {kind}' for name, kind in self.columns)});\n"


SOFT_TABLES: dict[str, SoftTable] = {
    soft.kind: soft
    for soft in (
        SoftTable("edges", "edge", ("iteration", "source", "target"), "weight"),
        SoftTable("gates", "gate", ("layer", "head", "direction"), "weight"),
        SoftTable("blocks", "block", ("threshold_step", "block"), "rate", sparse=True),
    )
}
CREATE_AROUND_SOFT = (
    "CREATE TABLE axis (axis VARCHAR, position INTEGER, name VARCHAR);\n"
    "CREATE TABLE soft_shape (kind VARCHAR, position INTEGER, size INTEGER);\n"
    "CREATE TABLE soft_summary (kind VARCHAR, label_id INTEGER, num_samples INTEGER, place INTEGER, "
    "mean DOUBLE, std DOUBLE);\n"
    "CREATE TABLE finding (name VARCHAR, answer VARCHAR);\n"
)
"""tables that describe and sum up the soft ones, and findings"""
CREATE_SOFT = "".join(soft.create for soft in SOFT_TABLES.values()) + CREATE_AROUND_SOFT


def read_shapes(cursor: duckdb.DuckDBPyConnection) -> tuple[dict[str, tuple[int, ...]], dict[str, list[str]]]:
    """Shape of each kind in the run, and the names along its axes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for kind, size in cursor.execute("SELECT kind, size FROM soft_shape ORDER BY kind, position").fetchall():
        shapes[kind] = (*shapes.get(kind, ()), size)
    names: dict[str, list[str]] = {}
    for axis, name in cursor.execute("SELECT axis, name FROM axis ORDER BY axis, position").fetchall():
        names.setdefault(axis, []).append(name)
    return shapes, names
