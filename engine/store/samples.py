"""One sample in full, and the examples of a path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.store import queries
from engine.store.errors import NoSuchThing
from engine.store.flows import ribbons_of
from engine.store.hydrate import (
    SAMPLE_FIELDS,
    finite,
    nested_ribbon,
    open_picture,
    patch_uri,
    sample_answer,
    text_context,
)

if TYPE_CHECKING:
    from engine.store.run import Run

_PLACE = ("token_id", "row", "col", "char_start", "char_end", "region", "loss", "gate_entropy", "flops")


def sample_detail(run: Run, sample: int) -> dict[str, Any]:
    """The answer of ``Run.sample``."""
    rows = run.rows(queries.one_sample(sample)) if 0 <= sample < 2**31 else []
    if not rows:
        raise run.no_sample(sample)
    head, (text, grid_rows, grid_cols, first_row) = rows[0][: len(SAMPLE_FIELDS)], rows[0][len(SAMPLE_FIELDS) :]
    answer = sample_answer(head)
    columns = ["token", *(name for name in _PLACE if name in run.token_columns)]
    query = queries.sample_tokens(run.layout, columns, first_row, answer["num_tokens"])
    token_rows = run.rows(query)
    tokens = [dict(zip([*columns, "rank", "cdf", "compute", "reuse"], row, strict=False)) for row in token_rows]
    width = len(columns) + 4
    arrays = [
        list(column) if run.layout.packed else np.array(column)
        for column in list(zip(*token_rows, strict=True))[width:]
    ]
    ids_nSK, levels_nSK = ribbons_of(run.layout, arrays)
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


def vocabulary(run: Run, token_ids: Iterable[int]) -> dict[int, str]:
    """Readable texts of these vocabulary ids, where the run has them."""
    wanted = sorted(set(token_ids))
    return dict(run.rows(queries.token_texts(wanted))) if wanted else {}


def _token_answer(
    run: Run,
    token: dict[str, Any],
    ids: list[list[int]],
    levels: np.ndarray,
    text: str | None,
    texts: dict[int, str],
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
    found = run.rows(queries.one_path(rank)) if 1 <= rank <= run.row["num_paths"] else []
    if not found:
        raise NoSuchThing(f"run {run.run_id!r} has paths of rank 1 to {run.row['num_paths']}, not {rank}", field="rank")
    ribbon, count, cdf, first_member = found[0]
    chosen = np.arange(count)
    if count > limit:
        chosen = np.random.default_rng([abs(seed), rank]).choice(count, limit, replace=False)
    pairs = run.rows(queries.members(sorted((chosen + first_member).tolist()), rank))
    shown = _patches(run, pairs) if run.row["modality"] == "vision" else _contexts(run, pairs)
    return {
        "run": run.run_id,
        "rank": rank,
        "ribbon": nested_ribbon(ribbon, run.layout),
        "count": count,
        "share": count / run.row["num_tokens"],
        "cdf": cdf,
        "examples": shown,
    }


def shown_tokens(run: Run, rowids: list[int]) -> list[dict[str, Any]]:
    """Patches, or tokens in their contexts, of rising rows of table ``token``."""
    if not rowids:
        return []
    pairs = run.rows(queries.some_tokens(rowids, "sample, token"))
    return _patches(run, pairs) if run.row["modality"] == "vision" else _contexts(run, pairs)


def _places(run: Run, pairs: list[tuple[int, int]], first_rows: dict[int, int], columns: str) -> list[tuple]:
    """``sample, token`` and ``columns`` of these tokens, in their order."""
    rowids = [first_rows[sample] + token for sample, token in pairs]
    return run.rows(queries.some_tokens(rowids, f"sample, token, {columns}"))


def _patches(run: Run, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    numbers = sorted({sample for sample, _ in pairs})
    columns = "sample, label, first_row, image, grid_rows, grid_cols"
    rows = {row[0]: row[1:] for row in run.rows(queries.some_samples(numbers, columns))}
    places = _places(run, pairs, {number: row[1] for number, row in rows.items()}, "row, col")
    pictures = {number: open_picture(row[2]) for number, row in rows.items() if row[2] is not None}
    answer = []
    for sample, token, row, col in places:
        label, _, _, grid_rows, grid_cols = rows[sample]
        whole = sample in pictures and grid_rows and row is not None and col is not None
        patch = patch_uri(pictures[sample], (grid_rows, grid_cols), row, col) if whole else None
        answer.append({"sample": sample, "token": token, "label": label, "row": row, "col": col, "patch": patch})
    return answer


def _contexts(run: Run, pairs: list[tuple[int, int]]) -> list[dict[str, Any]]:
    numbers = sorted({sample for sample, _ in pairs})
    rows = {row[0]: row[1:] for row in run.rows(queries.some_samples(numbers, "sample, label, first_row, text"))}
    first_rows = {number: row[1] for number, row in rows.items()}
    places = _places(run, pairs, first_rows, "char_start, char_end, token_id")
    texts = vocabulary(run, [row[4] for row in places if row[4] is not None])
    answer = []
    for sample, token, start, end, token_id in places:
        label, _, text = rows[sample]
        if text is not None and start is not None and end is not None:
            context = text_context(text, start, end)
        else:
            context = {"before": "", "text": texts.get(token_id, ""), "after": ""}
        answer.append({"sample": sample, "token": token, "token_id": token_id, "label": label, **context})
    return answer
