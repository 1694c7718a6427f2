"""Samples of a run: the list, one sample with every token, pictures, and excerpts of single tokens."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import numpy as np

from tokenpaths.engine.analysis.ribbon_costs import Work, flops_of
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.question import (
    MAX_INT,
    Argument,
    LabelFilter,
    PageLimit,
    Rows,
    SampleNumber,
    StepNumber,
    question,
)
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import (
    SAMPLE_FIELDS,
    clean_picture,
    contexts_of,
    finite,
    nested_ribbon,
    open_picture,
    patch_uri,
    sample_answer,
    sample_answers,
    used_modules,
)
from tokenpaths.engine.store.ask.tables.lookups import some_samples, tokens_at, tokens_at_once
from tokenpaths.engine.store.ask.tables.path_ribbons import ribbons_of_ranks
from tokenpaths.engine.store.file.checks import check_text
from tokenpaths.engine.store.file.columns import PATHS
from tokenpaths.engine.store.file.filters import Query, check_choice, check_page, next_offset
from tokenpaths.engine.store.file.flow_counter import ribbons_of
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS, decode_margins

_PLACE = ("token_id", "row", "col", "char_start", "char_end", "region", "loss", "gate_entropy", "flops")
MOST_ROWS = 1000
MOST_SLICE = 500
MOST_ENDINGS = 500
_ENDINGS = """
WITH ending AS (
    SELECT token_id, path_id, count(*) AS n FROM token JOIN (
        SELECT first_row + num_tokens - 1 AS place FROM sample WHERE num_tokens > 0 AND {}
    ) ON token.rowid = place WHERE token_id IS NOT NULL GROUP BY token_id, path_id
)
SELECT token_id, sum(n)::BIGINT AS count, count(*) AS num_paths, first(rank ORDER BY n DESC, rank) AS rank,
    max(n), (sum(sum(n)) OVER ())::BIGINT, count(*) OVER ()
FROM ending JOIN {} USING (path_id) GROUP BY token_id ORDER BY count DESC, token_id LIMIT ?
"""
"""token_id, count, num_paths, rank and count of its path; number of samples and of token ids in total"""
TOKENS_LOOKED_UP = 2000
"""most tokens that are looked up one by one; for more, all of the run are read once"""


@question(
    "samples",
    "sample_schema.SampleList",
    tag="samples",
    route="list_samples",
    description="The samples of a run in the chosen order.",
    rows="samples",
)
def samples(
    run: RunFile,
    *,
    order: Annotated[
        str,
        Argument(
            "What to sort by; samples without a value come last; `drawn` is a fixed random order, of which any first "
            "samples are drawn evenly from all",
            choices=queries.SAMPLE_ORDERS,
        ),
    ] = "sample",
    descending: Annotated[bool, Argument("Largest first")] = False,
    label: LabelFilter = None,
    q: Annotated[
        str | None, Argument("Only samples whose text, label, prediction or source contains this", max_length=500)
    ] = None,
    limit: PageLimit = 50,
    offset: int = 0,
) -> dict[str, Any]:
    """A page of samples; ``q`` is looked for in label, prediction, source and text, case ignored."""
    check_choice(order, queries.SAMPLE_ORDERS, "order")
    check_page(limit, offset, MOST_ROWS)
    check_text(q, "q", field="q")
    condition = queries.sample_condition(run.label_id(label), q)
    total = run.num_samples(label)
    if q:
        ((total,),) = run.rows(queries.count_samples(condition))
    if order == "sample" and not descending and label is None and not q:
        numbers = list(range(offset, min(offset + limit, total)))  # samples are numbered without gaps
    else:
        numbers = [n for (n,) in run.rows(queries.sample_page(condition, order, descending, limit, offset))]
    heads = sample_answers(run, numbers)
    return {
        "run": run.run_id,
        "total": total,
        "samples": [heads[number] for number in numbers],
        "next": next_offset(offset, limit, total),
    }


@question(
    "samples/{sample}",
    "sample_schema.SampleDetails",
    tag="samples",
    description="One sample with every token: ribbon, weights, rank, compute, reuse, text or place.",
    frames={
        "tokens": Rows("tokens", "Every token of one sample: ribbon, weights, rank, cdf, compute, reuse, its place.")
    },
)
def sample(run: RunFile, sample: SampleNumber) -> dict[str, Any]:
    """One sample with every token: ribbon and weights by slot, rank, cdf, and its place."""
    rows = run.rows(queries.one_sample(sample)) if 0 <= sample < 2**31 else []
    if not rows:
        raise run.no_sample(sample)
    head, (text, grid_rows, grid_cols, _) = rows[0][: len(SAMPLE_FIELDS)], rows[0][len(SAMPLE_FIELDS) :]
    answer = sample_answer(head)
    tokens, ids_nSK, levels_nSK = _tokens(run, sample, answer["num_tokens"])
    texts = vocabulary(run, [token["token_id"] for token in tokens if token.get("token_id") is not None])
    code = run.layout.weights
    # Nested lists of a wide mixture's 1/K, which no log held, would be half of the answer.
    weights_nSK = code.decode(levels_nSK).round(code.digits).tolist() if weights_recorded(run) else [None] * len(tokens)
    return {
        "run": run.run_id,
        **answer,
        "text": text,
        "grid": {"rows": grid_rows, "cols": grid_cols} if grid_rows else None,
        "tokens": [
            _token_answer(run, token, ids, weights, text, texts)
            for token, ids, weights in zip(tokens, ids_nSK.tolist(), weights_nSK, strict=True)
        ],
    }


def image(run: RunFile, sample: int) -> bytes:
    """The PNG of one sample."""
    rows = run.rows(queries.image(sample)) if 0 <= sample < 2**31 else []
    if not rows:
        raise run.no_sample(sample)
    if rows[0][0] is None:
        raise NoSuchThing(f"sample {sample} of run {run.run_id!r} has no image", field="sample")
    return bytes(rows[0][0])


def picture(run: RunFile, sample: int) -> bytes:
    """The PNG of one sample re-encoded from its pixels, without metadata, because a run file may be untrusted."""
    return clean_picture(image(run, sample))


def _tokens(run: RunFile, sample: int, num_tokens: int) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """The tokens of a sample with rank, cdf, compute and reuse of their paths; ids and levels (n, S, K)."""
    columns = ["token", "path_id", *(n for n in (*_PLACE, *MARGIN_COLUMNS) if n in run.token_columns)]
    rows = run.rows(queries.tokens_of_sample(run.layout, columns, sample, 0, num_tokens))
    tokens = [dict(zip(columns, row, strict=False)) for row in rows]
    path_ids = np.array([token["path_id"] for token in tokens])
    ranks, ribbons = run.look_up(path_ids)
    arrays = _arrays(run, rows, len(columns))
    if run.layout.by_path:
        shape = (len(rows), run.layout.num_steps, 1)
        ids, levels = ribbons.reshape(shape), np.stack(arrays[1:], axis=1).reshape(shape)
    else:
        ids, levels = ribbons_of(run.layout, arrays)
    work = Work.of(ids, run.units)
    of_path = {
        "rank": ranks,
        "cdf": run.shares.cdf(ranks),
        "cdf_middle": run.shares.cdf_middle(ranks),
        "path_tokens": run.shares.counts_of(ranks),
        "compute": work.compute,
        "reuse": work.reuse,
    }
    usual = flops_of(run.flops, ids).tolist()
    for token, flops, *values in zip(tokens, usual, *(part.tolist() for part in of_path.values()), strict=True):
        token |= dict(zip(of_path, values, strict=True))
        token["flops"] = flops if token["flops"] is None else token["flops"]
    return tokens, ids, levels


def _arrays(run: RunFile, rows: list[tuple[Any, ...]], first: int) -> list[Any]:
    """The columns from ``first`` on, for ``ribbons_of``."""
    columns = list(zip(*rows, strict=True))[first:]
    return [list(column) if run.layout.packed else np.array(column) for column in columns]


def vocabulary(run: RunFile, token_ids: Iterable[int]) -> dict[int, str]:
    """Readable texts of these vocabulary ids, as far as the run has them."""
    distinct = sorted(set(token_ids))
    return dict(run.rows(queries.token_texts(distinct))) if distinct else {}


def _token_answer(
    run: RunFile,
    token: dict[str, Any],
    ids: list[list[int]],
    weights_SK: list[list[float]] | None,
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
    if run.layout.unused_from is not None:
        ids = used_modules(ids, run.layout)
        if weights_SK is not None:
            pairs = zip(ids, weights_SK, strict=True)
            weights_SK = [weights[: len(used)] for used, weights in pairs]  # these are the first
    return answer | {
        "loss": finite(token["loss"]),
        "ribbon": ids,
        "weights": weights_SK,
        "rank": token["rank"],
        **{name: token[name] for name in ("cdf", "cdf_middle", "path_tokens")},
        "compute": token["compute"],
        "reuse": token["reuse"],
        "gate_entropy": finite(token["gate_entropy"]),
        "flops": finite(token["flops"]),
        "region": None if token.get("region") is None else run.regions[token["region"]],
        "margins": _margins_of(run, token),
    }


def _margins_of(run: RunFile, token: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Margin and runner-up of each step of a token; None in runs without scores."""
    if MARGIN_COLUMNS[0] not in token:
        return None
    levels = np.frombuffer(token[MARGIN_COLUMNS[0]], dtype="<u2")
    runners = np.frombuffer(token[MARGIN_COLUMNS[1]], dtype=run.layout.id_dtype)
    pairs = zip(decode_margins(levels).round(5).tolist(), runners.tolist(), strict=True)
    return [
        {"margin": None if np.isnan(margin) else margin, "runner_up": None if np.isnan(margin) else runner}
        for margin, runner in pairs
    ]


def token_text(token: dict[str, Any], text: str | None, texts: dict[int, str]) -> str | None:
    """The characters of the token in its text, or the readable form of its vocabulary id."""
    if text is not None and token["char_start"] is not None and token["char_end"] is not None:
        return text[token["char_start"] : token["char_end"]]
    return texts.get(token["token_id"])


def shown_at(run: RunFile, pairs: list[tuple[int, int]], places: Sequence[Place] | None = None) -> list[dict[str, Any]]:
    """Tokens by sample and position: patches of images, or tokens with their neighbours; ``pairs`` in reading order.

    ``places``: of these tokens, where they are known: row and column, or both ends in the text and the vocabulary id.
    """
    if not pairs:
        return []
    vision = run.row["modality"] == "vision"
    if places is None:
        places = columns_at(run, pairs, ("row", "col") if vision else ("char_start", "char_end", "token_id"))
    return _patches(run, pairs, places) if vision else _contexts(run, pairs, places)


Place = tuple[Any, ...]
"""row and column of a patch, or first and last character and vocabulary id; None where unknown"""


def columns_at(run: RunFile, pairs: list[tuple[int, int]], columns: Sequence[str]) -> list[Place]:
    """``columns`` of these tokens, in reading order."""
    rows: list[tuple[Any, ...]] = []
    samples, tokens = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    numbers = run.first_rows[samples] + tokens
    if len(pairs) > TOKENS_LOOKED_UP:
        listed = f"SELECT {', '.join(columns)} FROM token WHERE rowid IN (SELECT unnest(?))"
        return run.rows(Query(f"{listed} ORDER BY rowid", (numbers.tolist(),)))
    at_once = tokens_at_once(run.in_parts)
    for start in range(0, len(pairs), at_once):
        part = slice(start, start + at_once)
        places = list(zip(samples[part].tolist(), numbers[part].tolist(), strict=True))
        rows += run.rows(tokens_at(columns, places, run.layout.even_weights, in_parts=run.in_parts))
    return rows


def _patches(run: RunFile, pairs: list[tuple[int, int]], places: Sequence[Place]) -> list[dict[str, Any]]:
    numbers = sorted({sample for sample, _ in pairs})
    columns = "sample, label, image, grid_rows, grid_cols"
    rows = {row[0]: row[1:] for row in run.rows(some_samples(numbers, columns))}
    pictures = {number: open_picture(row[1]) for number, row in rows.items() if row[1] is not None}
    answer = []
    for (sample, token), (row, col) in zip(pairs, places, strict=True):
        label, _, grid_rows, grid_cols = rows[sample]
        whole = sample in pictures and grid_rows and row is not None and col is not None
        patch = patch_uri(pictures[sample], (grid_rows, grid_cols), row, col) if whole else None
        answer.append({"sample": sample, "token": token, "label": label, "row": row, "col": col, "patch": patch})
    return answer


def _contexts(run: RunFile, pairs: list[tuple[int, int]], places: Sequence[Place]) -> list[dict[str, Any]]:
    spans = [(sample, start, end) for (sample, _), (start, end, _) in zip(pairs, places, strict=True)]
    labels, contexts = contexts_of(run, spans)
    unknown = (place[2] for place, context in zip(places, contexts, strict=True) if context is None)
    texts = vocabulary(run, [token_id for token_id in unknown if token_id is not None])
    return [
        {
            "sample": sample,
            "token": token,
            "token_id": token_id,
            "label": labels[sample],
            **(context or {"before": "", "text": texts.get(token_id, ""), "after": ""}),
        }
        for (sample, token), (*_, token_id), context in zip(pairs, places, contexts, strict=True)
    ]


@question("tokens/last", "sample_schema.LastTokens", tag="samples", route="list_last_tokens", rows="tokens")
def last_tokens(
    run: RunFile,
    *,
    label: LabelFilter = None,
    limit: Annotated[int, Argument("Most token ids", ge=1, le=MOST_ENDINGS)] = 20,
) -> dict[str, Any]:
    """Which tokens end a sample: the ids of last tokens, how often, and the path that each takes most often there.

    Of two paths that are taken equally often, the more frequent one of the run is listed.

    Raises:
        UserError: the run has no token ids.
    """
    if "token_id" not in run.token_columns:
        raise UserError(f"run {run.run_id!r} has no token ids: its tokens are patches", field="run")
    condition = queries.sample_condition(run.label_id(label), None)
    rows = run.rows(Query(_ENDINGS.format(condition.sql, PATHS), (*condition.parameters, limit)))
    texts = vocabulary(run, [row[0] for row in rows])
    ribbons = ribbons_of_ranks(run, (row[3] for row in rows))
    num_samples, num_token_ids = rows[0][5:] if rows else (0, 0)
    return {
        "run": run.run_id,
        "label": label,
        "num_samples": num_samples,
        "num_token_ids": num_token_ids,
        "tokens": [
            {
                "token_id": token_id,
                "text": texts.get(token_id),
                "count": count,
                "share": count / num_samples,
                "num_paths": num_paths,
                "rank": rank,
                "ribbon": nested_ribbon(ribbons[rank], run.layout),
                "path_count": path_count,
            }
            for token_id, count, num_paths, rank, path_count, *_ in rows
        ],
    }


def weights_recorded(run: RunFile) -> bool:
    """False if the source gave ids only and each weight is 1/K."""
    return json.loads(run.row["weight_semantics"] or "{}").get("weights_recorded", True) is not False


@question(
    "samples/{sample}/experts",
    "expert_schema.TokenSlice",
    tag="experts",
    route="show_slice",
    description="Token × module of one sample at one step: what each token chose, with its weights.",
)
def token_slice(
    run: RunFile,
    sample: SampleNumber,
    step: StepNumber,
    *,
    first: Annotated[int, Argument("The first token", ge=0, le=MAX_INT)] = 0,
    limit: Annotated[int, Argument("Most tokens", ge=1, le=MOST_SLICE)] = 40,
) -> dict[str, Any]:
    """Token × module: the choices of tokens ``first`` … of one sample at one step, with their weights."""
    run.check_step(step)
    rows = run.rows(queries.one_sample(sample)) if 0 <= sample < 2**31 else []
    if not rows:
        raise run.no_sample(sample)
    num_tokens, (text, *_) = rows[0][5], rows[0][-4:]
    if num_tokens and not 0 <= first < num_tokens:
        raise UserError(f"sample {sample} has tokens 0 to {num_tokens - 1}, not {first}", field="first")
    layout = run.layout
    columns = [name for name in ("token_id", "row", "col", "char_start", "char_end") if name in run.token_columns]
    stop = min(first + limit, num_tokens)
    token_rows = run.rows(queries.tokens_of_sample(layout, ["token", *columns], sample, first, stop))
    arrays = [
        list(column) if layout.packed else np.array(column)
        for column in list(zip(*token_rows, strict=True))[1 + len(columns) :]
    ]
    tokens = [dict(zip(["token", *columns], row, strict=False)) for row in token_rows]
    texts = vocabulary(run, [token["token_id"] for token in tokens if token.get("token_id") is not None])
    ids, levels = run.ribbons_of(arrays) if token_rows else (np.zeros((0, 1, 1)), np.zeros((0, 1, 1)))
    answer = []
    for place, token in enumerate(tokens):
        where: dict[str, Any] = {name: token[name] for name in ("token_id", "row", "col") if name in token}
        if run.row["modality"] == "text":
            where["text"] = token_text(token, text, texts)
        answer.append(
            {
                "token": token["token"],
                **where,
                "modules": (modules := used_modules(ids[place, step : step + 1].tolist(), layout)[0]),
                "weights": layout.weights.decode(levels[place, step, : len(modules)])
                .round(layout.weights.digits)
                .tolist(),
            }
        )
    return {
        "run": run.run_id,
        "sample": sample,
        "step": step,
        "first": first,
        "num_tokens": num_tokens,
        "num_modules": len(run.bank.offered(step)),
        "weights_recorded": weights_recorded(run),
        "tokens": answer,
    }
