"""Sealing: builds the summaries that pages read instead of ``token``.

Ribbons are read back in parts and DuckDB sorts out of core, so the memory of sealing grows with the number of paths
(about 60 bytes each) but not with the width of a ribbon.

Shapes: P distinct paths, S steps, K slots, V = S·K, M modules.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.analysis.distribution import describe_sorted
from tokenpaths.engine.analysis.ribbon_costs import Work
from tokenpaths.engine.base.records import ModuleInfo, RunInfo
from tokenpaths.engine.store.ask.tables.queries import level_counts
from tokenpaths.engine.store.ask.topics.distributions import SEALED_BINS
from tokenpaths.engine.store.file import SCHEMA_VERSION
from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.checks import check_json
from tokenpaths.engine.store.file.flow_counter import CHUNK_ROWS, ribbon_sql, with_modules
from tokenpaths.engine.store.file.pages.path_pages import DICTIONARY, UNIQUE, WORK_COLUMNS, path_table
from tokenpaths.engine.store.file.schema import ALL_LABELS, SAMPLE_TABLE_ROWS, Layout
from tokenpaths.engine.store.file.weight_codes import code_for
from tokenpaths.engine.store.write.arrow_tables import insert_columns, insert_rows, one_thread, range_array
from tokenpaths.engine.store.write.first_rows import FirstSeen, first_rows_of_paths
from tokenpaths.engine.store.write.flows.seal_flows import write_flows
from tokenpaths.engine.store.write.flows.while_writing import EvenFlows, Visits
from tokenpaths.engine.store.write.path_dictionary import TAKE_ROWS, PathDictionary
from tokenpaths.engine.store.write.seal_findings import write_findings
from tokenpaths.engine.store.write.seal_knowledge import write_associations
from tokenpaths.engine.store.write.seal_nulls import Beside, write_nulls
from tokenpaths.engine.store.write.seal_pages import (
    ProfilePages,
    write_members,
    write_pages,
    write_profiles,
    write_tops,
)
from tokenpaths.engine.store.write.soft_rows import SoftSums
from tokenpaths.engine.store.write.twin.twin_paths import TwinPaths

_STAGES = (
    "ranking paths",
    "paths",
    "tokens of each path",
    "flows and usage",
    "nulls",
    "what paths know",
    "sample and histograms",
    "findings",
)
NUM_STAGES = len(_STAGES) + 2
"""the last two, flushing to disk and the answers of large runs, are done by the writer"""


@dataclass(frozen=True)
class Totals:
    """Sums accumulated by the writer."""

    book: PathDictionary
    first_seen: FirstSeen
    twin: TwinPaths | None
    work: Callable[[np.ndarray], Work]
    """of paths by their ids"""
    labels: dict[str, int]
    entropy: dict[int, np.ndarray]
    """label_id (−1 = none) -> (2, S): number of tokens with known gate entropy, and its sum in nats"""
    loss: tuple[int, float]
    """number of tokens with a loss, and the sum of their losses"""
    sketch: dict[str, np.ndarray]
    num_samples: int
    soft: SoftSums
    visits: Visits | None
    """flows and usage, if counted while tokens arrived"""
    even_flows: EvenFlows | None
    """the same, for several slots of equal weights"""
    profiles: ProfilePages
    independent: Beside | None = None
    """the null of independent steps, where it was begun before"""


def build_summaries(
    con: duckdb.DuckDBPyConnection,
    info: RunInfo,
    modules: Sequence[ModuleInfo],
    layout: Layout,
    totals: Totals,
    on_stage: Callable[[str, int, int], None],
) -> None:
    """Fill every table except ``token`` and ``sample``; the caller commits. ``on_stage`` as in ``RunWriter.seal``."""

    def stage(number: int) -> None:
        on_stage(_STAGES[number], number, NUM_STAGES)

    stage(0)
    first_rows = first_rows_of_paths(con, layout, totals.book, totals.first_seen)
    layout = replace(layout, unique=first_rows is not None)
    order = rank_by_count(totals.book.counts()) if layout.unique else totals.book.ranked()
    _small_tables(con, info, modules, totals)
    label_table(con)
    stage(1)
    _count_by_label(con)
    with one_thread(con):
        _path_table(con, layout, totals, order, first_rows)
        write_pages(con, layout, totals.book, order)
    del first_rows
    write_tops(con, layout, totals.book, order)
    totals.profiles.write(con, totals.book.num_tokens)
    stage(2)
    _member_table(con, order, totals.book.num_tokens)
    stage(3)
    con.execute("DROP TABLE on_path")
    if totals.even_flows is not None:
        totals.even_flows.write(con)
    else:
        write_flows(con, layout, totals.labels, totals.visits)
    _step_summary(con, totals)
    stage(4)
    with one_thread(con):
        write_nulls(con, layout, totals.book, totals.twin, order, totals.independent)
    stage(5)
    write_associations(con, totals.sketch, order, totals.twin)
    stage(6)
    _sample_of_tokens(con, layout, totals.book.num_tokens)
    _histograms(con)
    stage(7)
    totals.soft.write(con, info.axes)
    write_findings(con, info, totals.soft.shapes)
    _run_row(con, info, layout, totals)


def derive_tables(
    con: duckdb.DuckDBPyConnection, layout: Layout, book: PathDictionary, order: np.ndarray, num_samples: int
) -> None:
    """Fill the tables that follow from those of tokens, samples, labels and paths; ``order`` (P,) as in ``book``."""
    _count_by_label(con)
    write_pages(con, layout, book, order)
    write_tops(con, layout, book, order)
    write_profiles(con, layout, book, num_samples)
    con.execute("DROP TABLE on_path")
    _member_table(con, order, book.num_tokens)
    _sample_of_tokens(con, layout, book.num_tokens)
    _histograms(con)


def _small_tables(con: duckdb.DuckDBPyConnection, info: RunInfo, modules: Sequence[ModuleInfo], totals: Totals) -> None:
    names = ("step", "module", "name", "kind", "num_params", "flops_per_token")
    insert_columns(
        con,
        "module",
        {name: [getattr(module, name) for module in modules] for name in names}
        | {"step": pa.array([module.step for module in modules], pa.int32())},
    )
    regions = pa.array(info.regions, pa.string())
    insert_columns(con, "region", {"region": range_array(len(info.regions)), "name": regions})
    insert_columns(
        con,
        "token_text",
        {
            "token_id": pa.array(list(info.token_texts), pa.int32()),
            "text": pa.array(list(info.token_texts.values()), pa.string()),
        },
    )


def label_table(con: duckdb.DuckDBPyConnection) -> None:
    """Fill ``label`` from ``sample``."""
    con.execute(
        "INSERT INTO label SELECT label_id, any_value(label), count(*), sum(num_tokens) FROM sample "
        "WHERE label_id IS NOT NULL GROUP BY label_id ORDER BY label_id"
    )


def rank_by_count(counts: np.ndarray) -> np.ndarray:
    """path_id of each rank (P,), int32: the most frequent first, equal ones in the order of their numbers."""
    # Most paths of such a run have one token, so all but the rarest are few.
    rarest = counts == counts.min(initial=np.iinfo(counts.dtype).max)
    order = np.empty(len(counts), dtype=np.int32)
    others = np.flatnonzero(~rarest)
    order[: len(others)] = others[np.argsort(-counts[others], kind="stable")]
    order[len(others) :] = np.flatnonzero(rarest)
    return order


def _path_table(
    con: duckdb.DuckDBPyConnection, layout: Layout, totals: Totals, order: np.ndarray, first_rows: np.ndarray | None
) -> None:
    """``path_coded`` in rank order; ``first_member`` is the rowid of its first row in ``member``."""
    con.execute(path_table(layout, totals.book.num_tokens))
    names, top = _top_labels(con, totals.book.num_paths)
    before = 0
    for start in range(0, len(order), TAKE_ROWS):
        path_ids = order[start : start + TAKE_ROWS]
        counts = totals.book.counts()[path_ids]
        up_to = before + np.cumsum(counts)
        work = totals.work(path_ids)
        columns = {
            "path_id": path_ids,
            "rank": np.arange(start + 1, start + len(path_ids) + 1, dtype=np.int32),
            "count": counts,
            **dict(zip(WORK_COLUMNS, vars(work).values(), strict=True)),
            "first_member": up_to - counts,
        }
        if first_rows is not None:
            columns["first_token"] = first_rows[path_ids]
        else:
            ribbons = np.ascontiguousarray(totals.book.ribbons(path_ids))
            offsets = np.arange(0, ribbons.size + 1, layout.visits, dtype=np.int64)
            columns["ribbon"] = pa.LargeListArray.from_arrays(offsets, ribbons.reshape(-1))
        if names:
            best = top[path_ids]
            without = best < 0
            label = pa.array(len(names) - 1 - best % len(names), mask=without)
            columns["top_label"] = pa.array(names, pa.string()).take(label)
            columns["top_label_share"] = pa.array(best // len(names) / counts, mask=without)
        rows = pa.table(columns)
        for first in range(0, len(path_ids), CHUNK_ROWS):  # larger inserts leave holes in the file
            insert_rows(con, coded.PATH_TABLE, rows.slice(first, CHUNK_ROWS))
        before = int(up_to[-1])


def _count_by_label(con: duckdb.DuckDBPyConnection) -> None:
    """Tokens per path and label, used by two summaries; dropped by ``build_summaries``."""
    con.execute(
        "CREATE TEMP TABLE on_path AS SELECT path_id, label_id, count(*) AS n FROM token "
        "WHERE label_id IS NOT NULL GROUP BY path_id, label_id"
    )


def _top_labels(con: duckdb.DuckDBPyConnection, num_paths: int) -> tuple[list[str], np.ndarray]:
    """Labels in alphabetical order, and the most frequent one of each path (P,): tokens · L + (L − 1 − place).

    −1 if no token has a label. Ties go to the alphabetically first.
    """
    names = [name for (name,) in con.execute("SELECT label FROM label ORDER BY label").fetchall()]
    if not names:
        return [], np.empty(0, dtype=np.int64)
    top = np.full(num_paths, -1, dtype=np.int64)
    reader = con.execute(
        "WITH placed AS (SELECT label_id, row_number() OVER (ORDER BY label DESC) - 1 AS place FROM label) "
        f"SELECT path_id, max(n * {len(names)} + place)::BIGINT AS best FROM on_path JOIN placed USING (label_id) "
        "GROUP BY path_id"
    )
    for batch in reader.to_arrow_reader(CHUNK_ROWS):
        top[batch.column("path_id").to_numpy()] = batch.column("best").to_numpy()
    return names, top


def _member_table(con: duckdb.DuckDBPyConnection, order: np.ndarray, num_tokens: int) -> None:
    write_members(con, order, num_tokens)
    con.execute(coded.MEMBER_VIEW_SQL)


def _step_summary(con: duckdb.DuckDBPyConnection, totals: Totals) -> None:
    """Mean gate entropy of each step, for all tokens and for each label."""
    all_tokens = np.sum(list(totals.entropy.values()), axis=0)
    rows = {ALL_LABELS: all_tokens, **{k: v for k, v in totals.entropy.items() if k >= 0}}
    columns: dict[str, list[float | int | None]] = {"step": [], "label_id": [], "num_tokens": [], "gate_entropy": []}
    for label_id, (known_S, sum_S) in rows.items():
        for step, (count, total) in enumerate(zip(known_S, sum_S, strict=True)):
            columns["step"].append(step)
            columns["label_id"].append(label_id)
            columns["num_tokens"].append(int(count))
            columns["gate_entropy"].append(float(total / count) if count else None)
    insert_columns(con, "step_summary", columns)


def _sample_of_tokens(con: duckdb.DuckDBPyConnection, layout: Layout, num_tokens: int) -> None:
    """``token_sample``: one million tokens by hash, used for filters; for smaller runs a view of all tokens."""
    if num_tokens <= SAMPLE_TABLE_ROWS:
        con.execute(f"CREATE VIEW token_sample AS SELECT * EXCLUDE (rowid) FROM {with_modules(layout)}")
        return
    ribbon_columns = ["ids", "weights"] if layout.packed else layout.weight_columns()
    ribbon_columns = ribbon_columns if layout.packed or layout.by_path else [*layout.module_columns(), *ribbon_columns]
    columns = [f"token.{name}" for name in ("sample", "token", "label_id", "path_id", *ribbon_columns)]
    with one_thread(con):
        con.execute(
            f"CREATE TABLE token_sample AS SELECT {', '.join([*columns, *ribbon_sql(layout)])} "
            f"FROM token{f' JOIN {coded.PATHS} AS path USING (path_id)' if layout.by_path else ''} "
            f"WHERE hash(sample, token) < {int(2**64 * SAMPLE_TABLE_ROWS / num_tokens)}::UBIGINT"
        )


def _histograms(con: duckdb.DuckDBPyConnection) -> None:
    """Histograms over all tokens that a page requests first, so that it needs no scan."""
    for measure in coded.MEASURES:
        columns = con.execute(level_counts(measure, "true")).fetchnumpy()
        values, counts = columns["value"], columns["num"]
        if len(values):
            parts, limits = _repeated(values, counts), (float(values[0]), float(values[-1]))
            described = describe_sorted(parts, SEALED_BINS, num=int(counts.sum()), limits=limits)
            con.execute("INSERT INTO histogram VALUES (?, ?, ?)", [measure, SEALED_BINS, json.dumps(described)])


def _repeated(values: np.ndarray, counts: np.ndarray) -> Iterator[np.ndarray]:
    """Each value repeated ``counts`` times, in order, ``CHUNK_ROWS`` at a time."""
    stops = np.cumsum(counts)
    for start in range(0, int(stops[-1]), CHUNK_ROWS):
        rows = np.arange(start, min(start + CHUNK_ROWS, int(stops[-1])))
        yield values[np.searchsorted(stops, rows, side="right")]


def _run_row(con: duckdb.DuckDBPyConnection, info: RunInfo, layout: Layout, totals: Totals) -> None:
    with one_thread(con):
        accuracy, loss, mean_compute, mean_reuse = _means_of_run(con, info, totals)
    values = [
        info.run_id,
        info.model,
        info.family,
        info.modality,
        info.dataset,
        info.split,
        totals.num_samples,
        totals.book.num_tokens,
        info.num_steps,
        info.num_modules,
        info.top_k,
        totals.book.num_paths,
        accuracy,
        loss,
        mean_compute,
        mean_reuse,
        check_json(info.weight_semantics, "weight_semantics"),
        check_json(info.config, "config"),
        info.checkpoint_sha256,
        info.engine_version,
        datetime.now(UTC).isoformat(timespec="seconds"),
        SCHEMA_VERSION,
        code_for(info.num_modules, info.top_k).name,
        UNIQUE if layout.unique else DICTIONARY,
    ]
    con.execute(f"INSERT INTO run VALUES ({', '.join('?' * len(values))})", values)


def _means_of_run(
    con: duckdb.DuckDBPyConnection, info: RunInfo, totals: Totals
) -> tuple[float | None, float | None, float, float]:
    """Accuracy, loss, compute and reuse of the run."""
    # A sample whose label the model never learnt has a prediction but no loss: it says nothing of accuracy.
    accuracy = con.execute(
        "SELECT CASE WHEN 2 * count(loss) >= count(*) "
        "THEN avg((prediction = label)::INTEGER) FILTER (WHERE loss IS NOT NULL) END "
        "FROM sample WHERE prediction IS NOT NULL AND label IS NOT NULL"
    ).fetchall()[0][0]
    # Of texts the mean over tokens with a target, of images the mean over samples.
    # Likewise a mean over the few images whose label the model knows would stand for all.
    enough = "1" if info.modality == "text" else "CASE WHEN 2 * count(loss) >= count(*) THEN 1 END"
    with_loss, total = totals.loss
    if info.modality == "text" and with_loss:
        loss = total / with_loss
    else:
        loss = con.execute(f"SELECT {enough} * avg(loss) FROM sample").fetchall()[0][0]
    means = con.execute(f"SELECT sum(count * compute) / sum(count), sum(count * reuse) / sum(count) FROM {coded.PATHS}")
    return (accuracy, loss, *means.fetchall()[0])
