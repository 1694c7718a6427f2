"""Queries as (SQL, parameters): pure functions, tested against numpy on the raw arrays.

The columns of each result are in the docstring, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import normalize

from tokenpaths.engine.store.ask.tables.lookups import some_samples
from tokenpaths.engine.store.file import columns as coded
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import columns_sql, flow_sql, usage_sql
from tokenpaths.engine.store.file.pages.path_pages import own_column
from tokenpaths.engine.store.file.schema import ALL_LABELS, HEAD_CHARACTERS, HEADS, Layout
from tokenpaths.engine.store.file.text_pieces import PIECES

SAMPLE_ORDERS = ("sample", "compute", "reuse", "loss", "confidence", "num_distinct_paths", "drawn")
"""``drawn``: a fixed random order; its first rows are a random sample of all"""
_SNIPPET = f"left({PIECES[0]}, {HEAD_CHARACTERS})"
_SAMPLE_ROW = (
    "sample, label, prediction, confidence, loss, num_tokens, compute, reuse, num_distinct_paths, "
    f"{_SNIPPET} AS snippet, image IS NOT NULL AS has_image, source"
)


def run_row() -> Query:
    """The row of ``run``, columns as in the schema."""
    return Query("SELECT * FROM run")


def module_rows() -> Query:
    """step, module, name, kind, num_params, flops_per_token."""
    return Query("SELECT step, module, name, kind, num_params, flops_per_token FROM module ORDER BY ALL")


def label_rows() -> Query:
    """label_id, label, num_samples, num_tokens, in alphabetical order."""
    return Query("SELECT label_id, label, num_samples, num_tokens FROM label ORDER BY label")


def region_rows() -> Query:
    """region, name."""
    return Query("SELECT region, name FROM region ORDER BY region")


def association_rows() -> Query:
    """attribute, nmi, null_mean, null_std, p_value, shuffles, num_tokens, shuffled, whose."""
    return Query("SELECT * FROM association ORDER BY ALL")


def sealed_flow(label_id: int | None, first: int, stop: int) -> Query:
    """step, source, target, count, weight of the links between the steps ``first`` … ``stop`` − 1, from the summary."""
    return Query(
        "SELECT step, source, target, count, weight FROM flow "
        "WHERE label_id = ? AND step >= ? AND step < ? ORDER BY step, source, target",
        (ALL_LABELS if label_id is None else label_id, first, stop - 1),
    )


def largest_links(
    label_id: int | None,
    first: int,
    stop: int,
    kept: Sequence[tuple[int, int]] | None,
    unknown: Sequence[tuple[int, int]],
    least: float,
    limit: int,
) -> Query:
    """The ``limit`` largest links of at least ``least`` tokens, followed by the totals of each step; equal ones are
    taken across steps, so that a limit does not leave the last steps without any. Links from and to what is ``unknown``
    (step, module) are part of the totals alone.

    Rows: step, source, target, count, weight, NULL; and step, NULL, NULL, count, weight, number of links. With ``kept``
    (step, module), links of all other modules are merged into module −1 and ordered after those between named modules.
    """
    label = ALL_LABELS if label_id is None else label_id
    plain = "SELECT step, source, target, count, weight FROM flow WHERE label_id = ? AND step >= ? AND step < ?"
    if kept is not None:
        plain = (
            "SELECT f.step, coalesce(a.module, -1) AS source, coalesce(b.module, -1) AS target, "
            f"sum(f.count) AS count, sum(f.weight) AS weight FROM ({plain}) AS f "
            "LEFT JOIN kept AS a ON a.step = f.step AND a.module = f.source "
            "LEFT JOIN kept AS b ON b.step = f.step + 1 AND b.module = f.target GROUP BY ALL"
        )
    listed = {"unknown": unknown} if kept is None else {"kept": kept, "unknown": unknown}
    tables = [f"{name} AS (SELECT unnest(?::INTEGER[]) AS step, unnest(?::INTEGER[]) AS module), " for name in listed]
    columns = [[pair[place] for pair in pairs] for pairs in listed.values() for place in (0, 1)]
    return Query(
        f"WITH {''.join(tables)}links AS MATERIALIZED ({plain}), largest AS (SELECT * FROM links "
        "ANTI JOIN unknown AS a ON a.step = links.step AND a.module = links.source "
        "ANTI JOIN unknown AS b ON b.step = links.step + 1 AND b.module = links.target WHERE count >= ? "
        "ORDER BY least(source, target) < 0, count DESC, source, target, step LIMIT ?) "
        "SELECT step, source, target, count, weight, NULL AS num_links FROM largest UNION ALL "
        "SELECT step, NULL, NULL, sum(count), sum(weight), count(*) FROM links GROUP BY step",
        (*columns, label, first, stop - 1, least, limit),
    )


def sealed_usage(label_id: int | None) -> Query:
    """step, module, count, weight."""
    return Query(
        "SELECT step, module, count, weight FROM usage WHERE label_id = ? ORDER BY step, module",
        (ALL_LABELS if label_id is None else label_id,),
    )


def label_usage(step: int) -> Query:
    """label_id, module, count of one step, labels only."""
    return Query(
        "SELECT label_id, module, count FROM usage WHERE step = ? AND label_id <> ? ORDER BY label_id, module",
        (step, ALL_LABELS),
    )


def _chosen(layout: Layout, condition: Query, table: str) -> str:
    return f"WITH chosen AS MATERIALIZED (SELECT {columns_sql(layout)} FROM {table} WHERE {condition.sql}) "


def token_flow(layout: Layout, condition: Query, first: int, stop: int, table: str = "token") -> Query:
    """As ``sealed_flow``, counted over the tokens of ``condition``."""
    sql = _chosen(layout, condition, table) + flow_sql(layout, range(first, stop - 1))
    return Query(sql + " ORDER BY step, source, target", condition.parameters)


def token_usage(layout: Layout, condition: Query, table: str = "token") -> Query:
    """As ``sealed_usage``, counted over the tokens of ``condition``."""
    return Query(_chosen(layout, condition, table) + usage_sql(layout) + " ORDER BY step, module", condition.parameters)


def token_ribbons(layout: Layout, condition: Query, table: str = "token") -> Query:
    """The columns for ``flow_counter.ribbons_of``, of the tokens of ``condition``."""
    return Query(f"SELECT {columns_sql(layout)} FROM {table} WHERE {condition.sql}", condition.parameters)


def count_tokens(condition: Query, table: str = "token") -> Query:
    """num_tokens."""
    return Query(f"SELECT count(*) FROM {table} WHERE {condition.sql}", condition.parameters)


def _path_order(order: str) -> str:
    return "rank" if order == "rank" else f"{order} DESC, rank"


def all_paths(layout: Layout, order: str, limit: int, offset: int) -> Query:
    """rank, ``own_column``, count, cdf, compute, reuse, top_label, top_label_share; no filter."""
    if order == "rank":  # the table lies in this order: blocks without these ranks are not read
        some = Query(f"SELECT *, count AS n FROM {PATHS} WHERE rank BETWEEN ? AND ?", (offset + 1, offset + limit))
        return _path_rows(layout, some, order)
    return _page_of_paths(layout, Query(f"SELECT *, count AS n FROM {PATHS}"), order, limit, offset)


def _page_of_paths(layout: Layout, some: Query, order: str, limit: int, offset: int) -> Query:
    page = f"{some.sql} ORDER BY {_path_order(order)} LIMIT ? OFFSET ?"
    return _path_rows(layout, Query(page, (*some.parameters, limit, offset)), order)


def _path_rows(layout: Layout, some: Query, order: str) -> Query:
    """The rows of ``some``, which has the columns of ``path_row`` and ``n``."""
    columns = f"rank, {own_column(layout)}, n, cdf, compute, reuse, top_label, top_label_share"
    return Query(f"SELECT {columns} FROM ({some.sql}) ORDER BY {_path_order(order)}", some.parameters)


def filtered_paths(layout: Layout, condition: Query, order: str, limit: int, offset: int) -> Query:
    """As ``all_paths``, with ``count`` over the tokens of ``condition``; paths without such tokens are left out."""
    some = (
        f"SELECT n, path.* FROM (SELECT path_id, count(*) AS n FROM token WHERE {condition.sql} GROUP BY path_id) "
        f"JOIN {PATHS} AS path USING (path_id)"
    )
    return _page_of_paths(layout, Query(some, condition.parameters), order, limit, offset)


def filtered_path_totals(condition: Query) -> Query:
    """num_paths, num_tokens of the tokens of ``condition``."""
    return Query(f"SELECT count(DISTINCT path_id), count(*) FROM token WHERE {condition.sql}", condition.parameters)


def path_totals(condition: Query) -> Query:
    """num_paths, num_tokens of the paths of ``condition``."""
    sql = f"SELECT count(*), coalesce(sum(count), 0)::BIGINT FROM {PATHS} WHERE {condition.sql}"
    return Query(sql, condition.parameters)


def chosen_paths(layout: Layout, condition: Query, order: str, limit: int, offset: int) -> Query:
    """As ``all_paths``, of the paths of ``condition``."""
    some = Query(f"SELECT *, count AS n FROM {PATHS} WHERE {condition.sql}", condition.parameters)
    return _page_of_paths(layout, some, order, limit, offset)


def path_fits() -> Query:
    """kind, num_paths, num_tokens, effective_paths, slope, r2."""
    return Query("SELECT kind, num_paths, num_tokens, effective_paths, slope, r2 FROM path_fit")


def path_points() -> Query:
    """kind, rank, count, at most 200 a kind."""
    return Query("SELECT kind, rank, count FROM path_point ORDER BY kind, rank")


def sealed_counts(kind: str) -> Query:
    """count, number of paths with it, ascending; for the run's paths or those of a null model."""
    return Query("SELECT count, num_paths FROM path_count WHERE kind = ? ORDER BY count", (kind,))


_SEARCHED = (
    "lower("
    + " || chr(10) || ".join(f"coalesce({name}, '')" for name in ("label", "prediction", "source", "text"))
    + ")"
)


def sample_condition(label_id: int | None, q: str | None) -> Query:
    """SQL condition on rows of ``sample``: label, and ``q`` (casefolded) as a substring of its search key.

    Accents of ``q`` may be composed (NFC) in texts or not (NFD); no text mixes both within a word.
    """
    conditions: list[str] = ["true"]
    parameters: list[object] = []
    if label_id is not None:
        conditions.append("label_id = ?")
        parameters.append(label_id)
    if q:
        spellings = dict.fromkeys([q.casefold(), *(normalize(form, q.casefold()) for form in ("NFC", "NFD"))])
        each = " OR ".join([f"contains(coalesce(search, {_SEARCHED}), ?)"] * len(spellings))
        conditions.append(f"({each})")
        parameters.extend(spellings)
    return Query(" AND ".join(conditions), tuple(parameters))


def sample_page(condition: Query, order: str, descending: bool, limit: int, offset: int) -> Query:
    """The sample numbers of one page; samples without the measure come last in both directions.

    Rows are read separately (``sample_heads``): they hold excerpts of texts, which sorting would read for all samples.
    """
    direction = "DESC" if descending else "ASC"
    key = "hash(sample)" if order == "drawn" else order
    return Query(
        f"SELECT sample FROM sample WHERE {condition.sql} "
        f"ORDER BY {key} {direction} NULLS LAST, sample LIMIT ? OFFSET ?",
        (*condition.parameters, limit, offset),
    )


def sample_heads(numbers: Sequence[int], *, together: bool, by_row: bool = False) -> Query:
    """Rows of these samples for ``excerpts.sample_answer``, ordered by number.

    Args:
        together: the beginnings of texts have a table of their own, so that the texts are not read.
        by_row: as in ``some_samples``.
    """
    if not numbers:
        return Query(f"SELECT {_SAMPLE_ROW} FROM sample WHERE false")
    if not together:
        return some_samples(numbers, _SAMPLE_ROW, by_row=by_row)
    rows = some_samples(numbers, _SAMPLE_ROW.replace(_SNIPPET, "NULL"), by_row=by_row)
    heads = some_samples(numbers, "sample, head", HEADS, by_row=by_row)
    return Query(
        f"SELECT row.* REPLACE (head AS snippet) FROM ({rows.sql}) AS row JOIN ({heads.sql}) USING (sample) "
        "ORDER BY sample",
        (*rows.parameters, *heads.parameters),
    )


def count_samples(condition: Query) -> Query:
    """total."""
    return Query(f"SELECT count(*) FROM sample WHERE {condition.sql}", condition.parameters)


def one_sample(number: int) -> Query:
    """The sample row, then text, grid_rows, grid_cols, first_row."""
    return Query(f"SELECT {_SAMPLE_ROW}, text, grid_rows, grid_cols, first_row FROM sample WHERE sample = ?", (number,))


def tokens_of_sample(layout: Layout, columns: Sequence[str], sample: int, first: int, stop: int) -> Query:
    """``columns`` of the tokens ``first`` … ``stop`` − 1 of a sample, then their ids and weights."""
    return Query(
        # Samples lie in order: blocks without this one are not read. A range of rowid would look at every row.
        f"SELECT {', '.join(columns)}, {columns_sql(layout)} FROM token WHERE sample = ? AND token >= ? AND token < ? "
        "ORDER BY token",
        (sample, first, stop),
    )


def token_texts(token_ids: Sequence[int]) -> Query:
    """token_id, text."""
    marks = ", ".join("?" * len(token_ids))
    return Query(f"SELECT token_id, text FROM token_text WHERE token_id IN ({marks})", tuple(token_ids))


def image(number: int) -> Query:
    """image."""
    return Query("SELECT image FROM sample WHERE sample = ?", (number,))


def step_entropy(label_id: int | None) -> Query:
    """step, gate_entropy (mean in nats)."""
    return Query(
        "SELECT step, gate_entropy FROM step_summary WHERE label_id = ? ORDER BY step",
        (ALL_LABELS if label_id is None else label_id,),
    )


def null_usage(kind: str) -> Query:
    """step, module, count."""
    return Query("SELECT step, module, count FROM null_usage WHERE kind = ? ORDER BY step, module", (kind,))


def measure_values(measure: str, per: str, label_id: int | None) -> Query:
    """Columns ``value`` and ``count``: frequency of each value, without NULLs.

    Tokens store loss and gate entropy as levels (``file.columns``), a few thousand regardless of the number of tokens.
    """
    parameters = () if label_id is None else (label_id,)
    where = "true" if label_id is None else "label_id = ?"
    if per == "sample":
        sql = f"SELECT {measure} AS value, 1 AS count FROM sample WHERE {where} AND {measure} IS NOT NULL"
    elif measure not in ("compute", "reuse"):
        sql = f"SELECT value, num AS count FROM ({level_counts(measure, where)})"
    elif label_id is None:
        sql = f"SELECT {measure} AS value, sum(count)::BIGINT AS count FROM {PATHS} GROUP BY {measure}"
    else:
        sql = (
            f"SELECT path.{measure} AS value, sum(n)::BIGINT AS count FROM (SELECT path_id, count(*) AS n "
            f"FROM token WHERE {where} GROUP BY path_id) JOIN {PATHS} AS path USING (path_id) GROUP BY path.{measure}"
        )
    return Query(sql, parameters)


def level_counts(measure: str, where: str, by: str | None = None) -> str:
    """SQL for rows (value, num[, by]): number of tokens at each level of ``measure``."""
    code, group = coded.code_column(measure), f", {by}" if by else ""
    return (
        f"SELECT ({coded.value_sql(code)})::DOUBLE AS value, num{group} FROM (SELECT {code}, count(*) AS num{group} "
        f"FROM {coded.TABLE} WHERE {where} AND {code} <> 0 GROUP BY {code}{group}) ORDER BY {code}"
    )


def measure_by_label(measure: str, per: str) -> Query:
    """label, num, mean, in alphabetical order."""
    if per == "token" and measure in ("compute", "reuse"):
        sql = f"SELECT label, sum(num_tokens), sum({measure} * num_tokens) / sum(num_tokens) FROM sample"
        return Query(f"{sql} WHERE label IS NOT NULL GROUP BY label ORDER BY label")
    if per == "sample":
        return Query(
            f"SELECT label, count({measure}), avg({measure}) FROM sample WHERE label IS NOT NULL "
            f"GROUP BY label HAVING count({measure}) > 0 ORDER BY label"
        )
    return Query(
        f"SELECT label.label, sum(num)::BIGINT, fsum(value * num) / sum(num) FROM "
        f"({level_counts(measure, 'label_id IS NOT NULL', 'label_id')}) JOIN label USING (label_id) "
        "GROUP BY label.label ORDER BY label.label"
    )


def measure_of_labelled(measure: str) -> Query:
    """Columns label_id, ``value`` and num_tokens of the samples that have a label and a value."""
    return Query(
        f"SELECT label_id, {measure}::DOUBLE AS value, num_tokens FROM sample "
        f"WHERE label IS NOT NULL AND {measure} IS NOT NULL"
    )


def sealed_distribution(measure: str, bins: int) -> Query:
    """The distribution over all tokens as computed at sealing: JSON."""
    return Query("SELECT answer FROM histogram WHERE measure = ? AND bins = ?", (measure, bins))
