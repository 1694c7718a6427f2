"""One sample in full, and the examples of a path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenpaths.engine.analysis.ribbon_costs import compute, reuse
from tokenpaths.engine.base.errors import NoSuchThing
from tokenpaths.engine.store.ask import path_index, queries
from tokenpaths.engine.store.ask.excerpts import (
    SAMPLE_FIELDS,
    finite,
    nested_ribbon,
    open_picture,
    patch_uri,
    sample_answer,
    text_context,
)
from tokenpaths.engine.store.ask.path_members import members
from tokenpaths.engine.store.file.columns import tokens_sql
from tokenpaths.engine.store.file.flow_counter import ribbons_of
from tokenpaths.engine.store.file.token_flops import flops_of

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

_PLACE = ("token_id", "row", "col", "char_start", "char_end", "region", "loss", "gate_entropy", "flops")
TOKENS_AT_ONCE = 200
"""in one question: DuckDB 2.0 takes long over thousands of branches"""


def sample_detail(run: Run, sample: int) -> dict[str, Any]:
    """The answer of ``Run.sample``."""
    rows = run.rows(queries.one_sample(sample)) if 0 <= sample < 2**31 else []
    if not rows:
        raise run.no_sample(sample)
    head, (text, grid_rows, grid_cols, _) = rows[0][: len(SAMPLE_FIELDS)], rows[0][len(SAMPLE_FIELDS) :]
    answer = sample_answer(head)
    tokens, ids_nSK, levels_nSK = (_tokens if run.paged else _tokens_by_join)(run, sample, answer["num_tokens"])
    texts = vocabulary(run, [token["token_id"] for token in tokens if token.get("token_id") is not None])
    return {
        "run": run.run_id,
        **answer,
        "text": text,
        "grid": {"rows": grid_rows, "cols": grid_cols} if grid_rows else None,
        "tokens": [
            _token_answer(run, token, ids, levels, text, texts)
            for token, ids, levels in zip(tokens, ids_nSK.tolist(), levels_nSK, strict=True)
        ],
    }


def _tokens(run: Run, sample: int, num_tokens: int) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """The tokens of a sample with rank, cdf, compute and reuse of their paths; ids and levels (n, S, K)."""
    columns = ["token", "path_id", *(name for name in _PLACE if name in run.token_columns)]
    rows = run.rows(queries.tokens_of_sample(run.layout, columns, sample, 0, num_tokens))
    tokens = [dict(zip(columns, row, strict=False)) for row in rows]
    path_ids = np.array([token["path_id"] for token in tokens])
    ranks, ribbons = path_index.look_up(run, path_ids)
    arrays = _arrays(run, rows, len(columns))
    if run.layout.by_path:
        shape = (len(rows), run.layout.num_steps, 1)
        ids, levels = ribbons.reshape(shape), np.stack(arrays[1:], axis=1).reshape(shape)
    else:
        ids, levels = ribbons_of(run.layout, arrays)
    of_path = {
        "rank": ranks,
        "cdf": run.shares.cdf(ranks),
        "compute": compute(ids, run.units),
        "reuse": reuse(ids, run.units),
    }
    usual = flops_of(run.flops, ids).tolist()
    for token, flops, *values in zip(tokens, usual, *(part.tolist() for part in of_path.values()), strict=True):
        token |= dict(zip(of_path, values, strict=True))
        token["flops"] = flops if token["flops"] is None else token["flops"]
    return tokens, ids, levels


def _tokens_by_join(run: Run, sample: int, num_tokens: int) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """The same of a file from before there were pages of paths."""
    columns = ["token", *(name for name in _PLACE if name in run.token_columns)]
    rows = run.rows(queries.sample_tokens(run.layout, columns, sample))
    tokens = [dict(zip([*columns, "rank", "cdf", "compute", "reuse"], row, strict=False)) for row in rows]
    return tokens, *ribbons_of(run.layout, _arrays(run, rows, len(columns) + 4))


def _arrays(run: Run, rows: list[tuple], first: int) -> list[Any]:
    """The columns from ``first`` on, as ``ribbons_of`` takes them."""
    columns = list(zip(*rows, strict=True))[first:]
    return [list(column) if run.layout.packed else np.array(column) for column in columns]


def vocabulary(run: Run, token_ids: Iterable[int]) -> dict[int, str]:
    """Readable texts of these vocabulary ids, where the run has them."""
    wanted = sorted(set(token_ids))
    return dict(run.rows(queries.token_texts(wanted))) if wanted else {}


def _token_answer(
    run: Run, token: dict[str, Any], ids: list[list[int]], levels: np.ndarray, text: str | None, texts: dict[int, str]
) -> dict[str, Any]:
    answer: dict[str, Any] = {"token": token["token"]}
    if run.row["modality"] == "vision":
        answer |= {"row": token["row"], "col": token["col"]}
    else:
        answer |= {
            "token_id": token["token_id"],
            "text": token_text(token, text, texts),
            "char_start": token["char_start"],
            "char_end": token["char_end"],
        }
    return answer | {
        "loss": finite(token["loss"]),
        "ribbon": ids,
        "weights": run.layout.weights.decode(levels).round(run.layout.weights.digits).tolist(),
        "rank": token["rank"],
        "cdf": token["cdf"],
        "compute": token["compute"],
        "reuse": token["reuse"],
        "gate_entropy": finite(token["gate_entropy"]),
        "flops": finite(token["flops"]),
        "region": None if token.get("region") is None else run.regions[token["region"]],
    }


def token_text(token: dict[str, Any], text: str | None, texts: dict[int, str]) -> str | None:
    """The characters of the token in its text, else the readable form of its vocabulary id."""
    if text is not None and token["char_start"] is not None and token["char_end"] is not None:
        return text[token["char_start"] : token["char_end"]]
    return texts.get(token["token_id"])


def path_examples(run: Run, rank: int, limit: int, seed: int) -> dict[str, Any]:
    """The answer of ``Run.examples``."""
    if not 1 <= rank <= run.row["num_paths"]:
        raise NoSuchThing(f"run {run.run_id!r} has paths of rank 1 to {run.row['num_paths']}, not {rank}", field="rank")
    return {"run": run.run_id, **examples_of_paths(run, [rank], limit, seed)[0]}


def examples_of_paths(run: Run, ranks: list[int], limit: int, seed: int) -> list[dict[str, Any]]:
    """Each of these paths with tokens that take it, in the order of ``ranks``; texts and pictures are read once."""
    heads = {row[0]: row[1:] for row in run.rows(queries.some_paths(ranks))}
    pairs_of = {}
    for rank, (_, count, _, first_member) in heads.items():
        chosen: Any = range(count)
        if count > limit:
            chosen = np.random.default_rng([abs(seed), rank]).choice(count, limit, replace=False).tolist()
        pairs_of[rank] = members(run, sorted(place + first_member for place in chosen), rank)
    pairs = sorted(pair for some in pairs_of.values() for pair in some)  # a token takes one path
    shown = shown_at(run, pairs)
    of_pair = {(one["sample"], one["token"]): one for one in shown}
    return [
        {
            "rank": rank,
            "ribbon": nested_ribbon(heads[rank][0], run.layout),
            "count": heads[rank][1],
            "share": heads[rank][1] / run.row["num_tokens"],
            "cdf": heads[rank][2],
            "examples": [of_pair[pair] for pair in pairs_of[rank]],
        }
        for rank in ranks
    ]


def shown_at(run: Run, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Patches, or tokens in their contexts, of these (sample, token), in reading order."""
    if not pairs:
        return []
    return _patches(run, pairs) if run.row["modality"] == "vision" else _contexts(run, pairs)


def _places(run: Run, pairs: list[tuple[int, int]], columns: tuple[str, ...]) -> list[tuple]:
    """``sample, token`` and ``columns`` of these tokens, in reading order."""
    if run.row["schema_version"] < 6:
        return run.rows(queries.tokens_at(pairs, ", ".join(columns)))
    found = []
    for start in range(0, len(pairs), TOKENS_AT_ONCE):
        some = pairs[start : start + TOKENS_AT_ONCE]
        places = [value for sample, token in some for value in (sample, int(run.first_rows[sample]) + token)]
        found += run.rows(queries.Query(tokens_sql(columns, len(some)), tuple(places)))
    return found


def _patches(run: Run, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    numbers = sorted({sample for sample, _ in pairs})
    columns = "sample, label, image, grid_rows, grid_cols"
    rows = {row[0]: row[1:] for row in run.rows(queries.some_samples(numbers, columns))}
    places = _places(run, pairs, ("row", "col"))
    pictures = {number: open_picture(row[1]) for number, row in rows.items() if row[1] is not None}
    answer = []
    for sample, token, row, col in places:
        label, _, grid_rows, grid_cols = rows[sample]
        whole = sample in pictures and grid_rows and row is not None and col is not None
        patch = patch_uri(pictures[sample], (grid_rows, grid_cols), row, col) if whole else None
        answer.append({"sample": sample, "token": token, "label": label, "row": row, "col": col, "patch": patch})
    return answer


def _contexts(run: Run, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    numbers = sorted({sample for sample, _ in pairs})
    rows = {row[0]: row[1:] for row in run.rows(queries.some_samples(numbers, "sample, label, text"))}
    places = _places(run, pairs, ("char_start", "char_end", "token_id"))
    texts = vocabulary(run, [row[4] for row in places if row[4] is not None])
    answer = []
    for sample, token, start, end, token_id in places:
        label, text = rows[sample]
        if text is not None and start is not None and end is not None:
            context = text_context(text, start, end)
        else:
            context = {"before": "", "text": texts.get(token_id, ""), "after": ""}
        answer.append({"sample": sample, "token": token, "token_id": token_id, "label": label, **context})
    return answer
