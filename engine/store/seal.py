"""Sealing: the summaries that pages read instead of ``token``, built once.

Shapes: P distinct paths, S steps, K slots, V = S·K, M modules.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import numpy as np
import pyarrow as pa

from engine.analysis.association import association
from engine.analysis.distribution import describe
from engine.analysis.paths import (
    effective_paths,
    independent_steps,
    log_spaced_ranks,
    rank_frequency_fit,
    rank_order,
)
from engine.store import queries
from engine.store.checks import check_json
from engine.store.findings import write_findings
from engine.store.flows import (
    CHUNK_ROWS,
    FlowCounter,
    columns_sql,
    countable_in_sql,
    flow_sql,
    read_chunks,
    ribbons_of,
    usage_sql,
)
from engine.store.measures import SEALED_BINS
from engine.store.pathbook import PathBook
from engine.store.schema import ALL_LABELS, SAMPLE_TABLE_ROWS, SCHEMA_VERSION, Layout
from engine.store.soft import SoftSums
from engine.trace import ModuleInfo, RunInfo

NULL_SEED = 0
INDEPENDENT_BYTES = 256 * 2**20
"""ribbons of the null of independent steps in memory; larger runs draw it for the tokens that fit
(26 million of ten steps), and its ``num_tokens`` says so"""


@dataclass(frozen=True)
class Totals:
    """What the writer summed up on the way."""

    book: PathBook
    twin: PathBook
    compute: np.ndarray
    """(P,) by path_id, like ``reuse``"""
    reuse: np.ndarray
    labels: dict[str, int]
    entropy: dict[int, np.ndarray]
    """label_id (−1 = none) -> (2, S): known tokens and their summed gate entropy in nats"""
    sketch: dict[str, np.ndarray]
    num_samples: int
    soft: SoftSums


def build_summaries(
    con: duckdb.DuckDBPyConnection,
    info: RunInfo,
    modules: Sequence[ModuleInfo],
    layout: Layout,
    totals: Totals,
) -> None:
    """Fill every table but ``token`` and ``sample``; the caller commits."""
    order = rank_order(totals.book.ribbons(), totals.book.counts())
    _small_tables(con, info, modules, totals)
    _label_table(con, totals)
    _path_table(con, layout, totals, order)
    _member_table(con)
    _flow_and_usage(con, layout, totals.labels)
    _step_summary(con, totals)
    _nulls(con, layout, totals, order)
    _associations(con, totals.sketch, order)
    _sample_of_tokens(con, totals.book.num_tokens)
    _histograms(con)
    totals.soft.write(con, info.axes)
    write_findings(con, info, totals.soft.shapes)
    _run_row(con, info, totals)


def _insert(con: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, object]) -> None:
    """Append columns through Arrow; does nothing for no rows."""
    rows = pa.table(dict(columns))
    if rows.num_rows:
        con.register("incoming", rows)
        con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        con.unregister("incoming")


def _small_tables(con: duckdb.DuckDBPyConnection, info: RunInfo, modules: Sequence[ModuleInfo], totals: Totals) -> None:
    names = ("step", "module", "name", "kind", "num_params", "flops_per_token")
    _insert(
        con,
        "module",
        {name: [getattr(module, name) for module in modules] for name in names}
        | {"step": pa.array([module.step for module in modules], pa.int32())},
    )
    _insert(con, "region", {"region": range_array(len(info.regions)), "name": pa.array(info.regions, pa.string())})
    _insert(
        con,
        "token_text",
        {
            "token_id": pa.array(list(info.token_texts), pa.int32()),
            "text": pa.array(list(info.token_texts.values()), pa.string()),
        },
    )


def range_array(length: int) -> pa.Array:
    return pa.array(np.arange(length, dtype=np.int32))


def _label_table(con: duckdb.DuckDBPyConnection, totals: Totals) -> None:
    con.execute(
        "INSERT INTO label SELECT label_id, any_value(label), count(*), sum(num_tokens) FROM sample "
        "WHERE label_id IS NOT NULL GROUP BY label_id ORDER BY label_id"
    )


def _path_table(con: duckdb.DuckDBPyConnection, layout: Layout, totals: Totals, order: np.ndarray) -> None:
    """``path`` in rank order; ``first_member`` is the rowid of its first row in ``path_member``."""
    ribbons, counts = totals.book.ribbons()[order], totals.book.counts()[order]
    offsets = np.arange(0, ribbons.size + 1, layout.visits, dtype=np.int64)
    columns = {
        "path_id": order.astype(np.int32),
        "rank": np.arange(1, len(order) + 1, dtype=np.int32),
        "ribbon": pa.LargeListArray.from_arrays(offsets, np.ascontiguousarray(ribbons).reshape(-1)),
        "count": counts,
        "cdf": np.cumsum(counts) / counts.sum(),
        "compute": totals.compute[order],
        "reuse": totals.reuse[order],
        "first_member": np.cumsum(counts) - counts,
    }
    con.register("ranked", pa.table(columns))
    # The most frequent label of each path; ties go to the first in the alphabet.
    con.execute(
        "CREATE TABLE path AS WITH by_label AS (SELECT path_id, label_id, count(*) AS n FROM token "
        "WHERE label_id IS NOT NULL GROUP BY path_id, label_id), "
        "top AS (SELECT path_id, label, n FROM by_label JOIN label USING (label_id) "
        "QUALIFY row_number() OVER (PARTITION BY path_id ORDER BY n DESC, label) = 1) "
        "SELECT ranked.*, top.label AS top_label, top.n / ranked.count AS top_label_share "
        "FROM ranked LEFT JOIN top USING (path_id) ORDER BY rank"
    )
    con.unregister("ranked")


def _member_table(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "CREATE TABLE path_member AS SELECT path.rank, token.sample, token.token "
        "FROM token JOIN path USING (path_id) ORDER BY path.rank, token.sample, token.token"
    )


def _flow_and_usage(con: duckdb.DuckDBPyConnection, layout: Layout, labels: dict[str, int]) -> None:
    steps = range(layout.num_steps - 1)
    if countable_in_sql(layout):
        con.execute("CREATE TEMP VIEW chosen AS SELECT * FROM token")
        for table, sql in (
            ("flow", flow_sql(layout, steps, "label_id")),
            ("usage", usage_sql(layout, "label_id")),
        ):
            keys = "step, source, target" if table == "flow" else "step, module"
            con.execute(f"CREATE TEMP TABLE by_label AS {sql}")
            con.execute(
                f"INSERT INTO {table} BY NAME SELECT {keys}, sum(count) AS count, sum(weight) AS weight, "
                f"{ALL_LABELS} AS label_id FROM by_label GROUP BY {keys} ORDER BY {keys}"
            )
            con.execute(
                f"INSERT INTO {table} BY NAME SELECT * FROM by_label WHERE label_id IS NOT NULL "
                f"ORDER BY label_id, {keys}"
            )
            con.execute("DROP TABLE by_label")
        con.execute("DROP VIEW chosen")
        return
    for label_id in (ALL_LABELS, *labels.values()):
        where = "" if label_id == ALL_LABELS else f" WHERE label_id = {label_id}"
        counter = FlowCounter(layout, steps)
        for columns in read_chunks(con, f"SELECT {columns_sql(layout)} FROM token{where}", layout):
            counter.add(*ribbons_of(layout, columns))
        for table, names, rows in (
            ("flow", ("step", "source", "target", "count", "weight"), counter.flow_rows()),
            ("usage", ("step", "module", "count", "weight"), counter.usage_rows()),
        ):
            if rows:
                by_name = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
                _insert(con, table, {**by_name, "label_id": [label_id] * len(rows)})


def _step_summary(con: duckdb.DuckDBPyConnection, totals: Totals) -> None:
    """Mean gate entropy of each step, for all tokens and for each label."""
    all_tokens = np.sum(list(totals.entropy.values()), axis=0)
    rows = {ALL_LABELS: all_tokens, **{k: v for k, v in totals.entropy.items() if k >= 0}}
    columns: dict[str, list[float | int | None]] = {
        "step": [],
        "label_id": [],
        "num_tokens": [],
        "gate_entropy": [],
    }
    for label_id, (known_S, sum_S) in rows.items():
        for step, (known, total) in enumerate(zip(known_S, sum_S, strict=True)):
            columns["step"].append(step)
            columns["label_id"].append(label_id)
            columns["num_tokens"].append(int(known))
            columns["gate_entropy"].append(float(total / known) if known else None)
    _insert(con, "step_summary", columns)


def _nulls(con: duckdb.DuckDBPyConnection, layout: Layout, totals: Totals, order: np.ndarray) -> None:
    """Rank–frequency of the run, of its untrained twin and of independent steps; usage of the two nulls."""
    counts = totals.book.counts()[order]
    _fit(con, "observed", counts)
    independent = PathBook(layout.id_dtype)
    shuffled = independent_steps(totals.book.ribbons()[order], _thinned(counts, layout), layout.num_steps, NULL_SEED)
    for start in range(0, len(shuffled), CHUNK_ROWS):
        independent.add(shuffled[start : start + CHUNK_ROWS])
    for kind, book in (("independent", independent), ("untrained", totals.twin)):
        if not book.num_tokens:
            continue
        null_order = np.argsort(-book.counts(), kind="stable")
        null_counts = book.counts()[null_order]
        kinds = pa.array([kind] * len(null_counts), pa.string())
        ranks = np.arange(1, len(null_counts) + 1, dtype=np.int32)
        _insert(con, "null_path", {"kind": kinds, "rank": ranks, "count": null_counts})
        _fit(con, kind, null_counts)
        _null_usage(con, kind, layout, book)


def _thinned(counts: np.ndarray, layout: Layout) -> np.ndarray:
    """The counts themselves, or a seeded draw of as many of their tokens as fit ``INDEPENDENT_BYTES``."""
    most = INDEPENDENT_BYTES // (layout.visits * layout.id_dtype.itemsize)
    if counts.sum() <= most:
        return counts
    rng = np.random.default_rng(NULL_SEED)
    return rng.multivariate_hypergeometric(counts, most, method="marginals")


def _null_usage(con: duckdb.DuckDBPyConnection, kind: str, layout: Layout, book: PathBook) -> None:
    ribbons_PSK = book.ribbons().reshape(-1, layout.num_steps, layout.top_k)
    counts_PK = np.repeat(book.counts(), layout.top_k)
    for step in range(layout.num_steps):
        used = np.bincount(ribbons_PSK[:, step].reshape(-1), counts_PK, layout.num_modules).astype(np.int64)
        size = layout.num_modules
        _insert(
            con,
            "null_usage",
            {"kind": [kind] * size, "step": [step] * size, "module": range_array(size), "count": used},
        )


def _fit(con: duckdb.DuckDBPyConnection, kind: str, counts: np.ndarray) -> None:
    fit = rank_frequency_fit(counts)
    con.execute(
        "INSERT INTO path_fit VALUES (?, ?, ?, ?, ?, ?)",
        [kind, len(counts), int(counts.sum()), effective_paths(counts), fit.slope, fit.r2],
    )
    ranks = log_spaced_ranks(len(counts))
    points = {"rank": ranks.astype(np.int32), "count": counts[ranks - 1]}
    _insert(con, "path_point", {"kind": [kind] * len(ranks), **points})


def _associations(con: duckdb.DuckDBPyConnection, sketch: dict[str, np.ndarray], order: np.ndarray) -> None:
    """NMI(path; attribute) on the hash sample of tokens, of those that have the attribute.

    Paths go in by rank: their numbers, and with them the last digit, depend on the batches.
    """
    ranks = np.argsort(order)[sketch["path_id"]]
    for attribute in ("label", "region", "token_id"):
        known = sketch[attribute] >= 0
        if known.sum() < 2 or len(np.unique(sketch[attribute][known])) < 2:
            continue
        result = association(ranks[known], sketch[attribute][known], seed=NULL_SEED)
        con.execute(
            "INSERT INTO association VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                attribute,
                result.nmi,
                result.null_mean,
                result.null_std,
                result.p_value,
                result.shuffles,
                result.num_tokens,
            ],
        )


def _sample_of_tokens(con: duckdb.DuckDBPyConnection, num_tokens: int) -> None:
    """``token_sample``: one million tokens by hash; of smaller runs a view of everything."""
    if num_tokens <= SAMPLE_TABLE_ROWS:
        con.execute("CREATE VIEW token_sample AS SELECT * FROM token")
        return
    con.execute(
        "CREATE TABLE token_sample AS SELECT * FROM token "
        f"WHERE hash(sample, token) < {int(2**64 * SAMPLE_TABLE_ROWS / num_tokens)}::UBIGINT"
    )


def _histograms(con: duckdb.DuckDBPyConnection) -> None:
    """The histograms of all tokens that a page asks for first, so that it never scans for them."""
    for measure in ("loss", "gate_entropy"):
        columns = con.execute(queries.measure_values(measure, "token", None).sql).fetchnumpy()
        described = describe(columns["value"], SEALED_BINS, counts=columns["count"])
        if described["num"]:
            con.execute("INSERT INTO histogram VALUES (?, ?, ?)", [measure, SEALED_BINS, json.dumps(described)])


def _run_row(con: duckdb.DuckDBPyConnection, info: RunInfo, totals: Totals) -> None:
    # A sample whose label the model never learnt has a prediction but no loss: it says nothing of accuracy.
    accuracy = con.execute(
        "SELECT CASE WHEN 2 * count(loss) >= count(*) "
        "THEN avg((prediction = label)::INTEGER) FILTER (WHERE loss IS NOT NULL) END "
        "FROM sample WHERE prediction IS NOT NULL AND label IS NOT NULL"
    ).fetchall()[0][0]
    # Of texts the mean over tokens with a target, of images the mean over samples.
    loss = con.execute(f"SELECT avg(loss) FROM {'token' if info.modality == 'text' else 'sample'}").fetchall()[0][0]
    if loss is None:
        loss = con.execute("SELECT avg(loss) FROM sample").fetchall()[0][0]
    means = con.execute("SELECT sum(count * compute) / sum(count), sum(count * reuse) / sum(count) FROM path")
    values = [
        info.run_id, info.model, info.family, info.modality, info.dataset, info.split,
        totals.num_samples, totals.book.num_tokens, info.num_steps, info.num_modules, info.top_k,
        totals.book.num_paths, accuracy, loss, *means.fetchall()[0],
        check_json(info.weight_semantics, "weight_semantics"), check_json(info.config, "config"),
        info.checkpoint_sha256, info.engine_version,
        datetime.now(UTC).isoformat(timespec="seconds"), SCHEMA_VERSION,
    ]  # fmt: skip
    con.execute(f"INSERT INTO run VALUES ({', '.join('?' * len(values))})", values)
