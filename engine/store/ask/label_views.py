"""Views of a run file in which labels that look alike are one label; the stored values are untouched.

The views lie in a schema of the private in-memory database that the file is attached to. A connection that looks up
names there answers every question with merged labels, by the same SQL: summaries by label are added up, sealed pages
and answers about labels are left out, so that they are counted anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.file.columns import MEMBERS, TABLE
from tokenpaths.engine.store.file.open_file import Connection, has_parts
from tokenpaths.engine.store.file.schema import ALL_LABELS, HEADS, PART_TABLES

SCHEMA: Final = "merged"
LabelRow = tuple[int, str, int, int]
"""label_id, label, num_samples, num_tokens"""
_WITH_ROWID: Final = (TABLE, MEMBERS, "sample", HEADS)
_MAPPED: Final = ("token", TABLE, "token_sample")
"""tables with a label in each row; a run of counts has not all of them"""
_SUMS: Final = {
    "flow": ("step, source, target", "sum(count) AS count, sum(weight) AS weight"),
    "usage": ("step, module", "sum(count)::BIGINT AS count, sum(weight) AS weight"),
    "load": ("step, time, module", "sum(count)::BIGINT AS count"),
    "step_summary": (
        "step",
        "sum(num_tokens)::BIGINT AS num_tokens, CASE WHEN sum(num_tokens) > 0 "
        "THEN sum(gate_entropy * num_tokens) / sum(num_tokens) END AS gate_entropy",
    ),
    "soft_summary": (
        "kind, place",
        "sum(num_samples)::INTEGER AS num_samples, sum(mean * num_samples) / sum(num_samples) AS mean, "
        "sqrt(greatest(sum((std * std + mean * mean) * num_samples) / sum(num_samples) "
        "- (sum(mean * num_samples) / sum(num_samples)) ** 2, 0)) AS std",
    ),
}
"""tables with a row for each label: their keys, and how rows of merged labels add up"""


def merged_connection(
    connection: Connection, tables: Sequence[str], labels: Sequence[LabelRow], groups: Sequence[Sequence[LabelRow]]
) -> Connection:
    """A connection to the same file in which every label of a group is its first one.

    Args:
        connection: to the file.
        tables: its tables and views.
        labels: all labels.
        groups: those that look alike.

    Raises:
        UserError: the labels' ids are not those of a run that was written by this program.
    """
    target = {row[0]: group[0] for group in groups for row in group}
    ids = [target[row[0]][0] if row[0] in target else row[0] for row in sorted(labels)]
    if [row[0] for row in sorted(labels)] != list(range(len(labels))):
        raise UserError("the labels of this run cannot be merged: their ids do not count from 0", field="labels")
    # Lists count from 1, and ALL_LABELS (−1) stays itself.
    new_id = f"[{', '.join(map(str, [ALL_LABELS, *ids]))}][label_id + 2]"
    merged = ", ".join(str(row[0]) for group in groups for row in group)
    moved = " ".join(f"WHEN {row[0]} THEN {_quoted(group[0][1])}" for group in groups for row in group[1:])
    # Tables over parts are views, which list the number of the row with their columns.
    listed = PART_TABLES if has_parts(connection) else ()
    numbered = {name: "rowid, " if name in _WITH_ROWID and name not in listed else "" for name in tables}
    views = {name: f"SELECT {numbered[name]}* FROM r.main.{_name(name)}" for name in tables}
    for name in (name for name in _MAPPED if name in views):
        views[name] = views[name].replace("*", f"* REPLACE ({new_id} AS label_id)", 1)
    of_label = f"CASE label_id {moved} ELSE label END"
    views["sample"] = (
        f"SELECT {numbered['sample']}* REPLACE ({new_id} AS label_id, {of_label} AS label) FROM r.main.sample"
    )
    views["label"] = (
        f"SELECT {new_id} AS label_id, any_value({of_label}) AS label, sum(num_samples)::BIGINT AS num_samples, "
        "sum(num_tokens)::BIGINT AS num_tokens FROM r.main.label GROUP BY 1"
    )
    for name, (keys, sums) in _SUMS.items():
        if name in views:
            source = f"SELECT * REPLACE ({new_id} AS label_id) FROM r.main.{name}"
            views[name] = f"SELECT {keys}, {sums}, label_id FROM ({source}) GROUP BY {keys}, label_id"
    left = {
        "answer": "question LIKE 'law %'",  # the only one of them that no label enters
        "path_top": f"label_id IS NULL OR label_id NOT IN ({merged})",
    }
    for name, condition in left.items():
        if name in views:
            views[name] += f" WHERE {condition}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS memory.{SCHEMA}")
        for name, sql in views.items():
            cursor.execute(f"CREATE OR REPLACE VIEW memory.{SCHEMA}.{_name(name)} AS {sql}")
    return connection.with_names(f"memory.{SCHEMA}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _name(table: str) -> str:
    return '"' + table.replace('"', '""') + '"'
