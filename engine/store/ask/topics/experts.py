"""Experts of a run: specialisation, co-activation, repetition between neighbours.

Labels are answered from the sealed summaries. What needs tokens reads all of them or a seeded draw
(``tables.drawn_tokens``); ``counted`` of each answer gives the size of the draw.

Shapes: n tokens in reading order, S steps, K slots, M modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np

from tokenpaths.engine.analysis import expert_affinity as measure
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.question import Argument, LabelFilter, Rows, StepNumber, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.sealed_answers import sealed_labels
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.drawn_tokens import draw_tokens
from tokenpaths.engine.store.ask.topics.samples import vocabulary, weights_recorded
from tokenpaths.engine.store.file.filters import Query

MOST_LABELS = 40
MOST_MODULES = 256
MOST_COMPARED = 2048
"""modules whose pairs are counted: a table of that many by that many"""
MOST_SEALED_STEPS = 32
"""steps whose specialisation is computed at sealing"""
SHOWN_PAIRS = 20


def _page_specialisations(run: RunFile) -> Iterator[dict[str, Any]]:
    """Arguments asked by the page, for each step; none of a run that knows no vocabulary."""
    known = "token_id" in run.token_columns
    if not known or not run.rows(Query("SELECT 1 FROM token WHERE token_id IS NOT NULL LIMIT 1")):
        return
    for step in range(min(run.layout.num_steps, MOST_SEALED_STEPS)):
        yield {"of": "input", "step": step, "limit": 16}
        yield {"of": "input", "step": step, "limit": 256, "each": 24}


@question(
    "specialisation",
    "expert_schema.Specialisation",
    tag="experts",
    description="What the modules of one step prefer, beside the share that even routing would give them.",
    frames={
        "specialisation": Rows(
            lambda answer: [
                {"step": row["step"], "module": row["module"], "name": row["name"], **preference}
                for row in answer["modules"]
                for preference in row["prefers"]
            ],
            "A row for each preference of each module of a step: module, name, and label or word with its share.",
        )
    },
    sealed=_page_specialisations,
)
def specialisation(
    run: RunFile,
    of: Annotated[
        Literal["label", "input", "next", "predicted"],
        Argument("In labels (domains), in the input token, in the true next token, or in the predicted one"),
    ] = "label",
    step: StepNumber = 0,
    *,
    label: LabelFilter = None,
    limit: Annotated[int, Argument("Most modules, the most specialised first", ge=1, le=MOST_MODULES)] = 40,
    each: Annotated[int, Argument("Most token ids of a module", ge=1, le=100)] = 5,
) -> dict[str, Any]:
    """What the modules of a step prefer: ``of`` label (N_{i,D}/N_D), or input, next or predicted token (N_{x,i}/N_x).

    The baseline of both is K/M. Token ids count when seen ≥ 10 times; the ``each`` strongest are listed.
    """
    run.check_step(step)
    if of == "label" and label is not None:
        raise UserError("of=label compares all labels: leave label out", field="label")
    offered = run.bank.offered(step)
    head = {
        "run": run.run_id,
        "of": of,
        "step": step,
        "label": label,
        "baseline": measure.even_share(len(offered), _mean_used(run, step, label)),
        "num_modules": len(offered),
        "least": measure.LEAST_SEEN if of != "label" else 0,
    }
    if of == "label":
        return head | _by_label(run, step, offered, limit)
    return head | _by_word(run, of, step, run.label_id(label), limit, each)


def _mean_used(run: RunFile, step: int, label: str | None) -> float:
    """Modules that a token (of ``label``) is known to use at a step, on average: K unless slots are unused or
    decisions unknown."""
    offered = set(run.bank.offered(step))
    rows = run.rows(queries.sealed_usage(run.label_id(label)))
    used = sum(row[2] for row in rows if row[0] == step and row[1] in offered)
    return float(used / max(run.num_tokens(label), 1))


def _by_label(run: RunFile, step: int, offered: list[int], limit: int) -> dict[str, Any]:
    labels = sorted(run.labels, key=lambda row: (-row[3], row[1]))
    if not labels:
        raise UserError(f"run {run.run_id!r} has no labels, so there are no domains to compare", field="of")
    listed = labels[:MOST_LABELS]
    place = {row[0]: i for i, row in enumerate(listed)}
    counts = np.zeros((len(listed), run.layout.num_modules), dtype=np.int64)
    for label_id, module, count in run.rows(queries.label_usage(step)):
        if label_id in place:
            counts[place[label_id], module] = count
    tokens = np.array([row[3] for row in listed], dtype=np.int64)
    share = measure.domain_specialisation(counts, tokens)
    above = measure.domain_preference(counts, tokens)
    order = sorted(offered, key=lambda module: (-above[:, module].max(), module))
    order = [module for module in order if counts[:, module].any()]
    num_tokens = int(tokens.sum())
    return {
        "counted": {
            "num_tokens": num_tokens,
            "of_tokens": sum(row[3] for row in labels),
            "num_samples": sum(row[2] for row in listed),
            "of_samples": run.row["num_samples"],
            "exact": len(listed) == len(labels),
        },
        "more_labels": len(labels) - len(listed),
        "domains": [{"label": row[1], "num_tokens": row[3]} for row in listed],
        "modules": [
            {
                **run.bank.head(step, module),
                "count": int(counts[:, module].sum()),
                "prefers": [
                    {"label": row[1], "count": int(counts[i, module]), "of": row[3], "share": float(share[i, module])}
                    for i, row in enumerate(listed)
                ],
            }
            for module in order[:limit]
        ],
        "more": max(0, len(order) - limit),
    }


def _by_word(run: RunFile, of: str, step: int, label_id: int | None, limit: int, each: int) -> dict[str, Any]:
    drawn = draw_tokens(run, step, label_id) if run.records("token_id") else None
    if drawn is None or not (drawn.token_ids_n >= 0).any():
        raise UserError(
            f"run {run.run_id!r} recorded no token ids, so it knows no vocabulary"
            + ("; its labels can still be compared" if any(row[1] is not None for row in run.labels) else ""),
            field="of",
        )
    words = drawn.token_ids_n
    if of == "next":
        words = measure.next_token_ids(words, drawn.follows_n)
    if of == "predicted":
        words = drawn.predicted_ids_n
        if not (words >= 0).any():
            raise UserError(
                f"run {run.run_id!r} holds no predictions: it was made from a log, or before predicted tokens were "
                "kept; trace the model again to see them",
                field="of",
            )
    preference = measure.vocabulary_specialisation(drawn.ids_nSK[:, 0], words, run.layout.num_modules)
    share, listed = preference.share, {}
    chosen = preference.counts.sum(axis=0) > 0
    # Of all tokens, as the field says: those of rare words too.
    tokens_M = np.bincount(drawn.ids_nSK[:, 0].reshape(-1), minlength=run.layout.num_modules)
    for module in (module for module in run.bank.offered(step) if chosen[module]):
        by_share = np.lexsort((preference.token_ids, -preference.seen, -share[:, module]))
        listed[module] = [int(x) for x in by_share[:each] if preference.counts[x, module]]
    strength = {module: float(share[rows, module].mean()) for module, rows in listed.items()}
    order = sorted(listed, key=lambda module: (-strength[module], module))
    texts = vocabulary(run, [int(preference.token_ids[x]) for module in order[:limit] for x in listed[module]])
    return {
        "counted": drawn.counted,
        "num_words": len(preference.token_ids),
        "modules": [
            {
                **run.bank.head(step, module),
                "count": int(tokens_M[module]),
                "prefers": [
                    {
                        "token_id": int(preference.token_ids[x]),
                        "text": texts.get(int(preference.token_ids[x])),
                        "count": int(preference.counts[x, module]),
                        "of": int(preference.seen[x]),
                        "share": float(share[x, module]),
                    }
                    for x in listed[module]
                ],
            }
            for module in order[:limit]
        ],
        "more": max(0, len(order) - limit),
    }


@question(
    "co_activation",
    "expert_schema.CoActivation",
    tag="experts",
    description="Which modules of one step are chosen together, over all pairs that a token chooses.",
    frames={
        "co_activation": Rows(
            "pairs", "Pairs chosen together: module, other, count, share (N_ij/N_i) and back (N_ij/N_j)."
        )
    },
)
def co_activation(
    run: RunFile,
    step: StepNumber = 0,
    *,
    label: LabelFilter = None,
    limit: Annotated[int, Argument("Most modules, those of the strongest pairs", ge=1, le=MOST_MODULES)] = 32,
) -> dict[str, Any]:
    """N_ij/N_i over all pairs chosen together at a step, of the modules of the strongest pairs.

    Of a step with more than ``MOST_COMPARED`` modules, the most chosen ones are compared.
    """
    run.check_step(step)
    if run.layout.top_k == 1:
        raise UserError(
            f"run {run.run_id!r} chooses one module a step (top-1), so no two are ever chosen together", field="run"
        )
    drawn = draw_tokens(run, step, run.label_id(label))
    ids_nK, offered = drawn.ids_nSK[:, 0], run.bank.offered(step)
    counts_M = np.bincount(ids_nK.reshape(-1), minlength=run.layout.num_modules)
    of_I = np.sort(sorted(offered, key=lambda module: (-counts_M[module], module))[:MOST_COMPARED])
    of_I = of_I[counts_M[of_I] > 0]
    together = measure.chosen_together(ids_nK, of_I)
    share = measure.co_activation(together)
    pairs = _strongest(together, share)
    shown = _chain(pairs, share, limit)
    name = of_I.tolist()

    @cache
    def by_load(i: int) -> np.ndarray:
        return measure.co_activation_by_load(together, len(ids_nK), i)

    baseline = measure.even_co_activation(len(offered), run.layout.top_k)
    if run.bank.k_varies:
        used = run.bank.used(drawn.ids_nSK, step)[:, 0].sum(axis=1)
        baseline = measure.even_co_activation_of(len(offered), used)
    return {
        "run": run.run_id,
        "step": step,
        "label": label,
        "baseline": baseline,
        "num_modules": len(offered),
        "counted": drawn.counted,
        "modules": [{**run.bank.head(step, name[i]), "count": int(together[i, i])} for i in shown],
        "values": share[np.ix_(shown, shown)].round(6).tolist(),
        "pairs": [
            {
                "module": name[i],
                "other": name[j],
                "count": int(together[i, j]),
                "share": float(share[i, j]),
                "back": float(share[j, i]),
                "by_load": float(by_load(i)[j]),
                "back_by_load": float(by_load(j)[i]),
            }
            for i, j in pairs[:SHOWN_PAIRS]
        ],
        "more": int((counts_M[offered] > 0).sum()) - len(shown),
    }


def _strongest(together: np.ndarray, share: np.ndarray) -> list[tuple[int, int]]:
    """Pairs (i, j) chosen together, by falling share; rare pairs come last."""
    rows, columns = np.nonzero(np.triu(together, 1))
    both = np.minimum(share[rows, columns], share[columns, rows])
    seldom = together[rows, columns] < measure.LEAST_SEEN
    order = np.lexsort((columns, rows, -both, seldom))
    pairs = []
    for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        pairs.append((i, j) if share[i, j] >= share[j, i] else (j, i))
    return pairs


def _chain(pairs: Sequence[tuple[int, int]], share: np.ndarray, limit: int) -> list[int]:
    """The modules of the strongest pairs, at most ``limit``, ordered so that frequent partners are adjacent."""
    modules: dict[int, None] = {}
    for pair in pairs:
        if len(modules.keys() | set(pair)) > limit:
            break
        modules.update(dict.fromkeys(pair))
    left = list(modules)
    chain: list[int] = []
    both = np.minimum(share, share.T)
    while left:
        nearest = left[0] if not chain else max(left, key=lambda module: (both[chain[-1], module], -module))
        if chain and both[chain[-1], nearest] == 0:
            nearest = left[0]
        left.remove(nearest)
        chain.append(nearest)
    return chain


@question(
    "repetition",
    "expert_schema.Repetition",
    tag="experts",
    description="How often neighbouring tokens choose the same modules, per step, beside two baselines.",
    rows="steps",
    # Neighbours of each label are read anew, and the page asks about those of mixtures only.
    sealed=lambda run: [{"label": label} for label in (sealed_labels(run) if run.row["family"] == "moe" else [None])],
)
def repetition(run: RunFile, *, label: LabelFilter = None) -> dict[str, Any]:
    """How often neighbouring tokens share their first, or any, module; per step, beside its baselines."""
    drawn = draw_tokens(run, None, run.label_id(label))
    used = run.bank.used(drawn.ids_nSK) if run.bank.k_varies else None
    unknown = run.bank.unknown(drawn.ids_nSK)
    repeated = measure.repetition(drawn.ids_nSK, drawn.follows_n, unknown, used)
    later = np.flatnonzero(drawn.follows_n)
    if not repeated.num_pairs:
        of = "" if label is None else f" of label {label!r}"
        raise UserError(
            f"run {run.run_id!r} has no sample{of} with two tokens, so no token has a neighbour",
            field="run" if label is None else "label",
        )
    shuffled = measure.repetition_by_load(drawn.ids_nSK, unknown, used)
    # Ids without weights stand in the order of the source: slot 0 is no first choice then.
    ordered = run.layout.top_k == 1 or weights_recorded(run)
    steps = []
    for step in range(run.layout.num_steps):
        num_modules = len(run.bank.offered(step))
        first, any_ = measure.repetition_baselines(num_modules, run.layout.top_k)
        if used is not None:
            any_ = measure.any_repetition_of(num_modules, used[:, step].sum(axis=1), (later - 1, later))
        known = bool(repeated.pairs[step])
        steps.append(
            {
                "step": step,
                "first": float(repeated.first[step]) if known and ordered else None,
                "any": float(repeated.any[step]) if known else None,
                "baseline_first": first,
                "baseline_any": any_ if known else None,
                "by_load_first": float(shuffled.first[step]) if known and ordered else None,
                "by_load_any": float(shuffled.any[step]) if known else None,
            }
        )
    return {
        "run": run.run_id,
        "label": label,
        "top_k": run.layout.top_k,
        "num_pairs": repeated.num_pairs,
        "first_missing": None if ordered else "the source recorded no weights, so no choice of a token is its first",
        "counted": drawn.counted,
        "steps": steps,
    }
