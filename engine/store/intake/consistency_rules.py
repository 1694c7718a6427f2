"""Rules that the tables of every run keep, as queries of the rows that break them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tokenpaths.engine.base.records import UNUSED_KIND
from tokenpaths.engine.store.file.columns import LARGEST, MEASURES, PATH_TABLE, TABLE, code_column
from tokenpaths.engine.store.file.schema import ALL_LABELS
from tokenpaths.engine.store.file.soft_tables import SOFT_TABLES
from tokenpaths.engine.store.file.text_pieces import PIECES, bounds
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS
from tokenpaths.engine.store.intake.base_tables import Plan

_KINDS = "('observed', 'independent', 'untrained')"
_NULLS = "('independent', 'untrained')"
_LABEL = f"(label_id = {ALL_LABELS} OR label_id IN (SELECT label_id FROM label))"
_LARGEST_NUMBER = 1e30


def _finite(
    *columns: str, low: int | float = -_LARGEST_NUMBER, high: int | float = _LARGEST_NUMBER, null: bool = False
) -> str:
    """Condition that a column is outside of its range, NaN, or NULL unless ``null``."""
    return " OR ".join(
        f"NOT {'coalesce' if null else ''}({column} BETWEEN {low} AND {high}{', true' if null else ''})"
        + ("" if null else f" OR {column} IS NULL")
        for column in columns
    )


def _twice(table: str, keys: str) -> str:
    return f"SELECT {keys} FROM {table} GROUP BY {keys} HAVING count(*) > 1"


def rules(plan: Plan) -> Iterator[tuple[str, str]]:
    """(what does not fit, query of the rows that show it), for one plan."""
    yield from _run_rules(plan)
    yield from _sample_rules(plan)
    yield from _token_rules(plan)
    yield from _path_rules(plan)
    yield from _flow_rules(plan)
    yield from _null_rules(plan)
    yield from _soft_rules(plan)


_MOST = 2**53


def count_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    """The rules of a run that was made of counts."""
    yield (
        "names of the run",
        "SELECT 1 FROM run WHERE model IS NULL OR family IS NULL OR dataset IS NULL OR split IS NULL "
        "OR checkpoint_sha256 IS NULL OR engine_version IS NULL OR created_at IS NULL "
        "OR accuracy IS NOT NULL OR loss IS NOT NULL",
    )
    yield (
        "labels",
        "SELECT 1 FROM label WHERE label IS NULL OR label_id IS DISTINCT FROM rowid::INTEGER "
        f"OR num_samples IS DISTINCT FROM 0 OR NOT coalesce(num_tokens BETWEEN 0 AND {_MOST}, false)",
    )
    yield "labels that are there twice", _twice("label", "label")
    place = (
        f"NOT coalesce(step BETWEEN 0 AND {plan.layout.num_steps - 1}, false) "
        f"OR NOT coalesce(module BETWEEN 0 AND {plan.layout.num_modules - 1}, false) "
        f"OR NOT coalesce(count BETWEEN 0 AND {_MOST}, false)"
    )
    yield "rows of usage", f"SELECT 1 FROM usage WHERE {place} OR NOT coalesce({_LABEL}, false) OR weight <> 0"
    yield "rows of usage that are there twice", _twice("usage", "label_id, step, module")
    yield (
        "rows of load",
        f"SELECT 1 FROM load WHERE {place} OR NOT coalesce(time BETWEEN 0 AND {_MOST}, true) "
        "OR (label_id IS NOT NULL AND label_id NOT IN (SELECT label_id FROM label))",
    )
    yield "rows of load that are there twice", _twice("load", "time, label_id, step, module")
    for what, label, kept in (
        ("sums of load", str(ALL_LABELS), "true"),
        ("sums of load by label", "label_id", "label_id IS NOT NULL"),
    ):
        summed = f"SELECT {label} AS l, step, module, sum(count)::HUGEINT AS n FROM load WHERE {kept} GROUP BY ALL"
        sign = "=" if kept == "true" else "<>"
        told = f"SELECT label_id, step, module, count::HUGEINT FROM usage WHERE label_id {sign} {ALL_LABELS}"
        yield (
            what,
            f"(SELECT * FROM ({summed}) WHERE n > 0 EXCEPT {told}) UNION ALL "
            f"({told} AND count > 0 EXCEPT SELECT * FROM ({summed}))",
        )
    yield "counts of nothing", "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM usage WHERE count > 0)"


def _run_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    yield (
        "means of the run",
        f"SELECT 1 FROM run WHERE {_finite('accuracy', low=0, high=1, null=True)} OR {_finite('loss', null=True)} "
        f"OR {_finite('mean_compute', 'mean_reuse', low=0)}",
    )
    yield (
        "names of the run",
        "SELECT 1 FROM run WHERE model IS NULL OR family IS NULL OR dataset IS NULL OR split IS NULL "
        "OR checkpoint_sha256 IS NULL OR engine_version IS NULL OR created_at IS NULL",
    )
    yield (
        "regions",
        "SELECT 1 FROM region WHERE name IS NULL OR region IS DISTINCT FROM rowid::INTEGER OR rowid > 254",
    )
    yield "token texts", "SELECT 1 FROM token_text WHERE token_id IS NULL OR text IS NULL"
    yield "token texts that are there twice", _twice("token_text", "token_id")


def _sample_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    yield (
        "numbers of samples",
        "SELECT 1 FROM sample WHERE sample IS DISTINCT FROM rowid::INTEGER OR NOT coalesce(num_tokens >= 1, false) "
        "OR NOT coalesce(num_distinct_paths BETWEEN 1 AND num_tokens, false) "
        f"OR {_finite('confidence', 'loss', 'gate_entropy', null=True)} OR {_finite('compute', 'reuse', low=0)}",
    )
    yield (
        "first tokens of samples",
        "SELECT 1 FROM (SELECT first_row, sum(num_tokens) OVER (ORDER BY rowid) - num_tokens AS before FROM sample) "
        "WHERE first_row IS DISTINCT FROM before",
    )
    yield (
        "tokens of samples",
        f"SELECT 1 FROM (SELECT sum(num_tokens) AS n FROM sample) WHERE n IS DISTINCT FROM {plan.num_tokens}",
    )
    yield (
        "labels of samples",
        "SELECT 1 FROM sample WHERE (label IS NULL) <> (label_id IS NULL) "
        f"OR NOT coalesce(label_id BETWEEN 0 AND {plan.num_samples - 1}, true)",
    )
    yield "labels with two numbers", "SELECT 1 FROM sample GROUP BY label HAVING count(DISTINCT label_id) > 1"
    yield "numbers of two labels", "SELECT 1 FROM sample GROUP BY label_id HAVING count(DISTINCT label) > 1"
    yield "texts of samples", f"SELECT 1 FROM sample WHERE {' OR '.join(_wrong_pieces())}"
    yield (
        "grids of samples",
        "SELECT 1 FROM sample WHERE (grid_rows IS NULL) <> (grid_cols IS NULL) "
        "OR NOT coalesce(grid_rows BETWEEN 1 AND 32767 AND grid_cols BETWEEN 1 AND 32767, true)",
    )


def _wrong_pieces() -> Iterator[str]:
    """SQL that is true of a sample with a piece of text that is too long, or too short for the one that follows."""
    for piece, following in pairwise(PIECES):
        start, stop = bounds(PIECES.index(piece))
        assert stop is not None
        yield f"length({piece}) > {stop - start} OR {following} = ''"
        yield f"({following} IS NOT NULL AND length({piece}) IS DISTINCT FROM {stop - start})"


def _token_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    layout, info = plan.layout, plan.info
    yield (
        "tokens and their samples",
        f"SELECT 1 FROM {TABLE} AS t LEFT JOIN sample AS s ON s.sample = t.sample WHERE s.sample IS NULL "
        "OR t.first_row IS DISTINCT FROM s.first_row OR t.label_id IS DISTINCT FROM s.label_id "
        "OR t.rowid < s.first_row OR t.rowid >= s.first_row + s.num_tokens",
    )
    codes = [code_column(measure) for measure in MEASURES]
    columns = {*codes, "flops"} | set(() if layout.packed else layout.weight_columns())
    yield (
        "numbers of tokens",
        f"SELECT 1 FROM {TABLE} WHERE {_finite(*codes, low=-LARGEST, high=LARGEST)} "
        f"OR {_finite('flops', low=0, null=True)}"
        + "".join(f' OR "{name}" IS NULL' for name in sorted(columns - {*codes, "flops"})),
    )
    if layout.packed:
        yield (
            "packed ribbons of tokens",
            f"SELECT 1 FROM {TABLE} WHERE list_count(ids) IS DISTINCT FROM {layout.num_words} "
            f"OR octet_length(weights) <> {layout.visits}",
        )
    elif not layout.by_path:
        ids = " OR ".join(f"{name} IS NULL" for name in layout.module_columns())
        yield "modules of tokens", f"SELECT 1 FROM {TABLE} WHERE {ids}"
    if info.scores:
        widths = zip(MARGIN_COLUMNS, layout.margin_bytes, strict=True)
        odd = " OR ".join(f"octet_length({name}) IS DISTINCT FROM {width}" for name, width in widths)
        yield "margins of tokens", f"SELECT 1 FROM {TABLE} WHERE {odd}"
    if info.regions:
        yield (
            "regions of tokens",
            f"SELECT 1 FROM {TABLE} WHERE region IS NOT NULL AND region NOT IN (SELECT region FROM region)",
        )
    if info.modality == "vision":
        yield (
            "places of tokens",
            f"SELECT 1 FROM {TABLE} AS t JOIN sample AS s ON s.sample = t.sample "
            'WHERE (t."row" IS NULL) <> (t.col IS NULL) '
            'OR NOT coalesce(t."row" BETWEEN 0 AND coalesce(s.grid_rows, 32768) - 1, true) '
            "OR NOT coalesce(t.col BETWEEN 0 AND coalesce(s.grid_cols, 32768) - 1, true)",
        )
    else:
        most = 2**31 - 1
        yield (
            "characters of tokens",
            f"SELECT 1 FROM {TABLE} WHERE NOT coalesce(char_place - char_first BETWEEN 0 AND {most}, true) "
            f"OR NOT coalesce(char_place BETWEEN 0 AND {2**62} AND char_first BETWEEN 0 AND {2**62}, true) "
            f"OR NOT coalesce(char_length BETWEEN {-most} AND {most} "
            f"AND char_place - char_first + char_length + 2 BETWEEN 0 AND {most}, true) "
            "OR (char_length IS NOT NULL AND (char_place IS NULL OR char_first IS NULL))",
        )
        names = ["token_id", *(["predicted_id"] if info.predicts_tokens else [])]
        conditions = " OR ".join(f"{name} < 0" for name in names)
        yield "vocabulary ids of tokens", f"SELECT 1 FROM {TABLE} WHERE {conditions}"


def _path_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    yield (
        "numbers and ranks of paths",
        f"SELECT 1 FROM {PATH_TABLE} WHERE rank IS DISTINCT FROM rowid::INTEGER + 1 "
        f"OR NOT coalesce(path_id BETWEEN 0 AND {plan.num_paths - 1}, false)",
    )
    yield "paths that are there twice", _twice(PATH_TABLE, "path_id")
    if plan.layout.unique:
        yield (
            "first tokens of paths",
            f"SELECT path_id, first_token FROM {PATH_TABLE} "
            f"EXCEPT SELECT path_id, min(rowid) FROM {TABLE} GROUP BY path_id",
        )
        yield (
            "the order of first tokens",
            "SELECT 1 FROM (SELECT first_token, lag(first_token) OVER (ORDER BY path_id) AS before "
            f"FROM {PATH_TABLE}) WHERE first_token <= before",
        )
    else:
        yield (
            "ribbons of paths",
            f"SELECT 1 FROM {PATH_TABLE} WHERE ribbon IS NULL "
            f"OR len(ribbon) <> {plan.layout.visits} OR len(list_filter(ribbon, x -> x IS NULL)) > 0",
        )
    yield (
        "tokens of paths",
        f"SELECT path_id, count FROM {PATH_TABLE} EXCEPT SELECT path_id, count(*) FROM {TABLE} GROUP BY path_id",
    )
    yield (
        "tokens on no path",
        f"SELECT path_id, count(*) FROM {TABLE} GROUP BY path_id EXCEPT SELECT path_id, count FROM {PATH_TABLE}",
    )
    yield (
        "the order and sums of paths",
        "SELECT 1 FROM (SELECT *, sum(count) OVER (ORDER BY rowid)::BIGINT AS up_to, "
        f"lag(count) OVER (ORDER BY rowid) AS above FROM {PATH_TABLE}) WHERE count > above "
        f"OR first_member IS DISTINCT FROM up_to - count OR NOT coalesce(active BETWEEN 0 AND known "
        f"AND known BETWEEN 0 AND {plan.layout.visits} AND distinct_active BETWEEN 0 AND active, false)",
    )
    yield (
        "labels of paths",
        f"SELECT 1 FROM {PATH_TABLE} WHERE (top_label IS NULL) <> (top_label_share IS NULL) "
        f"OR {_finite('top_label_share', low=0, high=1, null=True)} "
        "OR (top_label IS NOT NULL AND top_label NOT IN (SELECT label FROM label))",
    )


def _flow_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    modules, labels = plan.layout.num_modules, f"SELECT {ALL_LABELS} AS label_id, {plan.num_tokens} AS num_tokens"
    labels += " UNION ALL SELECT label_id, num_tokens FROM label"
    # Unused slots have no links: where there are some, tokens of a step need not sum to all.
    unused = f"EXISTS (SELECT 1 FROM module WHERE kind = '{UNUSED_KIND}')"
    for table, places, steps, slots, fewer in (
        ("flow", ("source", "target"), plan.layout.num_steps - 1, 1, unused),
        ("usage", ("module",), plan.layout.num_steps, plan.layout.top_k, "false"),
    ):
        outside = " OR ".join(f"NOT coalesce({name} BETWEEN 0 AND {modules - 1}, false)" for name in places)
        yield (
            f"rows of {table}",
            f"SELECT 1 FROM {table} WHERE NOT coalesce(step BETWEEN 0 AND {steps - 1}, false) OR {outside} "
            f"OR NOT coalesce({_LABEL}, false) OR {_finite('count', 'weight', low=0)}",
        )
        yield f"rows of {table} that are there twice", _twice(table, f"label_id, step, {', '.join(places)}")
        yield (
            f"sums of {table}",
            f"SELECT 1 FROM ({labels}) AS l CROSS JOIN range({steps}) AS s(step) LEFT JOIN (SELECT label_id, step, "
            f"sum(count) AS n FROM {table} GROUP BY ALL) AS f ON f.label_id = l.label_id AND f.step = s.step "
            f"WHERE NOT coalesce(abs(n - {slots} * l.num_tokens) <= 1e-6 * l.num_tokens + 1e-3, false) "
            f"AND NOT ({fewer} AND coalesce(n, 0) <= (1 + 1e-6) * l.num_tokens + 1e-3)",
        )
    yield (
        "gate entropies of steps",
        f"SELECT 1 FROM step_summary WHERE NOT coalesce(step BETWEEN 0 AND {plan.layout.num_steps - 1}, false) "
        f"OR NOT coalesce({_LABEL}, false) OR NOT coalesce(num_tokens BETWEEN 0 AND {plan.num_tokens}, false) "
        f"OR {_finite('gate_entropy', null=True)}",
    )
    yield "steps that are there twice", _twice("step_summary", "label_id, step")


def _null_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    tokens = plan.num_tokens
    yield (
        "null paths",
        f"SELECT 1 FROM null_path WHERE kind NOT IN {_NULLS} OR NOT coalesce(rank >= 1, false) "
        f"OR NOT coalesce(count BETWEEN 1 AND {tokens}, false) OR kind IS NULL",
    )
    yield "null paths that are there twice", _twice("null_path", "kind, rank")
    yield (
        "null usage",
        f"SELECT 1 FROM null_usage WHERE kind IS NULL OR kind NOT IN {_NULLS} "
        f"OR NOT coalesce(step BETWEEN 0 AND {plan.layout.num_steps - 1}, false) "
        f"OR NOT coalesce(module BETWEEN 0 AND {plan.layout.num_modules - 1}, false) "
        f"OR NOT coalesce(count BETWEEN 0 AND {tokens * plan.layout.top_k}, false)",
    )
    yield "null usage that is there twice", _twice("null_usage", "kind, step, module")
    yield (
        "the law of paths",
        f"SELECT 1 FROM path_fit WHERE kind IS NULL OR kind NOT IN {_KINDS} "
        f"OR NOT coalesce(num_paths BETWEEN 1 AND {tokens} AND num_tokens BETWEEN 1 AND {tokens}, false) "
        f"OR {_finite('effective_paths', low=0)} OR isinf(slope) OR isinf(r2) "
        f"OR (kind = 'observed' AND (num_paths, num_tokens) <> ({plan.num_paths}, {tokens}))",
    )
    yield "laws of paths that are there twice", _twice("path_fit", "kind")
    yield (
        "the law of the run's own paths",
        "SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM path_fit WHERE kind = 'observed')",
    )
    yield (
        "points of the law of paths",
        f"SELECT 1 FROM path_point WHERE kind IS NULL OR kind NOT IN (SELECT kind FROM path_fit) "
        f"OR NOT coalesce(rank BETWEEN 1 AND {tokens} AND count BETWEEN 1 AND {tokens}, false) "
        f"OR (kind = 'observed' AND rank > {plan.num_paths})",
    )
    yield (
        "numbers of paths by their tokens",
        f"SELECT 1 FROM path_count WHERE kind IS NULL OR kind NOT IN {_KINDS} "
        f"OR NOT coalesce(count BETWEEN 1 AND {tokens} AND num_paths BETWEEN 1 AND {tokens}, false)",
    )
    yield "numbers of paths that are there twice", _twice("path_count", "kind, count")
    counted, told = (
        f"SELECT count, count(*) FROM {PATH_TABLE} GROUP BY count",
        "SELECT count, num_paths FROM path_count",
    )
    told += " WHERE kind = 'observed'"
    yield "numbers of paths", f"({counted} EXCEPT {told}) UNION ALL ({told} EXCEPT {counted})"
    yield (
        "what paths know",
        "SELECT 1 FROM association WHERE attribute IS NULL OR attribute NOT IN ('label', 'region', 'token_id') "
        "OR whose IS NULL OR whose NOT IN ('observed', 'untrained') "
        "OR shuffled IS NULL OR shuffled NOT IN ('samples', 'sequences', 'maps', 'tokens') "
        f"OR {_finite('nmi', 'null_mean', 'null_std', 'p_value', null=True)} "
        "OR NOT coalesce(shuffles >= 0 AND num_tokens >= 0, false) "
        "OR attribute NOT IN (SELECT attribute FROM association WHERE whose = 'observed')",
    )
    yield "what paths know, twice", _twice("association", "attribute, whose")


def _soft_rules(plan: Plan) -> Iterator[tuple[str, str]]:
    kinds = ", ".join(f"'{kind}'" for kind in SOFT_TABLES)
    yield (
        "shapes of soft decisions",
        f"SELECT 1 FROM soft_shape WHERE kind IS NULL OR kind NOT IN ({kinds}) OR position IS NULL "
        "OR NOT coalesce(size BETWEEN 1 AND 32767, false)",
    )
    yield "shapes of soft decisions, twice", _twice("soft_shape", "kind, position")
    yield (
        "names along axes",
        "SELECT 1 FROM axis WHERE axis IS NULL OR name IS NULL OR position IS NULL OR position < 0 "
        "UNION ALL SELECT 1 FROM axis GROUP BY axis HAVING max(position) <> count(*) - 1",
    )
    yield "names along axes, twice", _twice("axis", "axis, position")
    yield "findings that are there twice", _twice("finding", "name")
    yield "findings", "SELECT 1 FROM finding WHERE name IS NULL OR answer IS NULL"
    for kind, soft in SOFT_TABLES.items():
        axes = len(soft.axes)
        size = f"(SELECT size FROM soft_shape WHERE kind = '{kind}' AND position = "
        outside = " OR ".join(
            f"NOT coalesce({axis} BETWEEN 0 AND {size}{i}) - 1, false)" for i, axis in enumerate(soft.axes)
        )
        yield (
            f"axes of {kind}",
            f"SELECT 1 FROM soft_shape WHERE kind = '{kind}' AND position NOT BETWEEN 0 AND {axes - 1} "
            f"UNION ALL SELECT 1 FROM soft_shape WHERE kind = '{kind}' HAVING count(*) NOT IN (0, {axes})",
        )
        yield (
            f"values of {kind}",
            f"SELECT 1 FROM {soft.table} WHERE NOT coalesce(sample BETWEEN 0 AND {plan.num_samples - 1}, false) "
            f"OR {outside} OR {_finite(soft.value, low=0)}",
        )
        yield f"values of {kind}, twice", _twice(soft.table, ", ".join(("sample", *soft.axes)))
        cells = f"(SELECT product(size)::BIGINT FROM soft_shape WHERE kind = '{kind}')"
        if not soft.sparse:
            yield (
                f"missing values of {kind}",
                f"SELECT 1 WHERE (SELECT count(*) FROM {soft.table}) <> coalesce({cells}, 0) * {plan.num_samples}",
            )
        yield (
            f"means of {kind}",
            f"SELECT 1 FROM soft_summary WHERE kind = '{kind}' AND (NOT coalesce({_LABEL}, false) "
            f"OR NOT coalesce(place BETWEEN 0 AND {cells} - 1, false) OR NOT coalesce(num_samples >= 1, false) "
            f"OR {_finite('mean', 'std')}) UNION ALL SELECT 1 FROM soft_summary WHERE kind = '{kind}' "
            f"GROUP BY label_id HAVING count(*) <> {cells} OR count(DISTINCT place) <> {cells}",
        )
    yield "means of nothing", f"SELECT 1 FROM soft_summary WHERE kind IS NULL OR kind NOT IN ({kinds})"
    yield (
        "means of all samples",
        "SELECT DISTINCT kind FROM soft_shape EXCEPT SELECT DISTINCT kind FROM soft_summary "
        f"WHERE label_id = {ALL_LABELS}",
    )
