"""A free filter at once: flows counted on the hash sample of a million tokens, with an error bar.

The tokens of ``token_sample`` are drawn by a hash of their place, each alike and on its own, so what is counted there
is an even draw of the tokens of the run; the interval of a share is Wilson's, of the sampled tokens that pass the
filter. It says how far the share in this run may be, not in other samples. A run of up to a million tokens is its own
sample: the answer is exact then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenpaths.engine.analysis.contrast import wilson
from tokenpaths.engine.store.ask import queries
from tokenpaths.engine.store.file.filters import Filters, token_condition
from tokenpaths.engine.store.file.flow_counter import FlowCounter, countable_in_sql, read_chunks, ribbons_of

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

TABLE = "token_sample"


def sampled_flow(
    run: Run, filters: Filters, label_id: int | None, first: int, stop: int
) -> tuple[dict[str, Any], dict[str, np.ndarray], list[tuple]]:
    """How it was counted (``num_tokens`` of ``of_tokens`` sampled ones), then links and usage in sampled tokens."""
    layout = replace(run.layout, by_path=False)  # the sample holds the ids, whatever the tokens hold
    condition = token_condition(filters, label_id, layout)
    ((size,),) = run.rows(queries.Query(f"SELECT count(*) FROM {TABLE}"))
    if countable_in_sql(layout):
        ((num,),) = run.rows(queries.count_tokens(condition, TABLE))
        links = run.arrays(queries.token_flow(layout, condition, first, stop, TABLE))
        usage = run.rows(queries.token_usage(layout, condition, TABLE))
    else:
        counter = FlowCounter(layout, range(first, stop - 1))
        query = queries.token_ribbons(layout, condition, TABLE)
        with run.cursor() as cursor:
            for columns in read_chunks(cursor, query.sql, layout, query.parameters):
                counter.add(*ribbons_of(layout, columns))
        num, links, usage = counter.num_tokens, counter.flow_arrays(), counter.usage_rows()
    counted = {"num_tokens": int(num), "of_tokens": int(size), "exact": size == run.row["num_tokens"]}
    return counted, links, usage


def with_error_bars(answer: dict[str, Any], counted: dict[str, Any], num_tokens: int) -> dict[str, Any]:
    """The answer about sampled tokens as one about all: counts as the run would have them, shares with both ends."""
    scale = num_tokens / counted["of_tokens"]
    found = {**answer, "counted": counted, "num_tokens": round(answer["num_tokens"] * scale)}
    for name in ("nodes", "links", "other"):
        for row in found[name]:
            row["count"] *= scale
            if row.get("weight") is not None:
                row["weight"] *= scale
    if counted["exact"]:
        return found
    for name in ("nodes", "links"):
        rows = found[name]
        shares = np.array([row["share"] for row in rows])
        low, high = wilson(shares, np.full(len(rows), float(counted["num_tokens"]))) if rows else ([], [])
        for row, one, other in zip(rows, low, high, strict=True):
            row |= {"low": float(one), "high": float(other)}
    return found
