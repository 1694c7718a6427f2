"""Losses of the tokens that a question looks at."""

from __future__ import annotations

import numpy as np

from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, tokens_of
from tokenpaths.engine.store.file.columns import code_column, value_sql
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.schema import DRAWN_LOSSES


def losses(run: RunFile, table: TokenTable) -> np.ndarray:
    """(n,) loss of each token, NaN without one; ``table`` has tokens of ``tokens_of(run)``."""
    every = tokens_of(run)
    if "loss" not in every.cache:
        every.cache["loss"] = _losses(run, every)
    loss_n: np.ndarray = every.cache["loss"]
    if table is every:
        return loss_n
    return np.asarray(loss_n[np.searchsorted(every.columns["place"], table.columns["place"])])


def _losses(run: RunFile, table: TokenTable) -> np.ndarray:
    if DRAWN_LOSSES in run.tables_there:
        value = f"coalesce({value_sql(code_column('loss'))}, 'nan')::DOUBLE"
        sealed = Query(f"SELECT {value} AS loss FROM r.main.{DRAWN_LOSSES} ORDER BY rowid")
        return np.asarray(run.arrays(sealed)["loss"])
    condition = Query("true")
    if table.num_samples < run.row["num_samples"]:
        condition = Query("sample IN (SELECT unnest(?))", (table.samples_N.tolist(),))
    rows = run.arrays(
        Query(
            f"SELECT rowid::BIGINT AS place, coalesce(loss, 'nan')::DOUBLE AS loss FROM token "
            f"WHERE {condition.sql} ORDER BY rowid",
            condition.parameters,
        )
    )
    return np.asarray(rows["loss"][np.searchsorted(rows["place"], table.columns["place"])])
