"""A sample against a reference run: which of its paths tokens of a data set take too, and how often.

A run of one uploaded sample has no ranks of its own that mean anything: its paths are ranked, counted and coloured by a
run of the same model over a data set.

Shapes: n tokens of the sample, p distinct paths of it, S steps, K slots, V = S·K.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.path_statistics import sorted_slots
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.near_paths import nearest_paths
from tokenpaths.engine.store.ask.tables.ribbon_index import ranks_of
from tokenpaths.engine.store.ask.topics.paths import examples_of_paths
from tokenpaths.engine.store.ask.topics.samples import sample as sample_of
from tokenpaths.engine.store.ask.topics.similar import counted_profiles, samples_near
from tokenpaths.engine.store.file.filters import check_page

UPLOADED = ("try", "detour")
"""splits of runs of one sample that were made by ``POST /traces``"""
SHAPE = ("modality", "family", "num_steps", "num_modules", "top_k")
"""what a run and its reference have in common"""
MOST_SIMILAR = 60
MOST_UNUSUAL = 30
MOST_EACH = 60
Card = Mapping[str, Any]


@dataclass(frozen=True)
class Choice:
    """The reference run of a run, or why there is none."""

    run: str | None
    found_by: str | None = None
    """``checkpoint``: the same weights; ``model``: only the same name"""
    reason: str | None = None


def is_upload(card: Card) -> bool:
    """Whether a run is one uploaded sample, which takes its ranks from a reference run."""
    return card.get("split") in UPLOADED


def choose_reference(card: Card, others: Iterable[Card]) -> Choice:
    """The reference run among ``others`` (cards): of the same weights, else of the same model's name; most tokens.

    Only sealed runs over data sets whose routes were not edited, and whose paths have the same shape. Of equally large
    ones the first by name.
    """
    fitting = [
        other
        for other in others
        if other["status"] == "sealed"
        and other["run"] != card["run"]
        and not is_upload(other)
        and not other.get("edited")
        and all(other[name] == card[name] for name in SHAPE)
    ]
    for how, field in (("checkpoint", "checkpoint_sha256"), ("model", "model")):
        same = [other for other in fitting if card.get(field) and other.get(field) == card[field]]
        if same:
            return Choice(min(same, key=lambda other: (-other["num_tokens"], other["run"]))["run"], how)
    return Choice(
        None,
        reason=f"There is no other run of {card['model']} over a data set here, so nothing says how often other tokens "
        f"take these paths. Trace one: tokenpaths trace --model {card['model']} --data …",
    )


def in_reference(
    run: RunFile, reference: RunFile, sample: int, *, similar: int = 6, unusual: int = 6, each: int = 12, seed: int = 0
) -> dict[str, Any]:
    """The tokens of one sample of ``run`` with rank, count and shares that their paths have in ``reference``.

    Args:
        similar: samples of the reference with the nearest path profiles.
        unusual: distinct paths that no token of the reference takes, the most taken of the sample first, each with the
            nearest path of the reference.
        each: tokens drawn of each of those.
        seed: of the draws.

    Raises:
        NoSuchThing: the run has no such sample.
        UserError: the runs are one and the same, or of models whose paths cannot be compared; limits out of range.
    """
    _check(run, reference)
    for name, value, most in (("similar", similar, MOST_SIMILAR), ("unusual", unusual, MOST_UNUSUAL)):
        if not 0 <= value <= most:
            raise UserError(f"{name} is {value}, it should be 0 to {most}", field=name)
    check_page(each, 0, MOST_EACH)
    tokens = sample_of(run, sample)["tokens"]
    ribbons_nSK = np.array([_ribbon_in(reference, token["ribbon"], run) for token in tokens], dtype=np.int64)
    ribbons_nV = sorted_slots(ribbons_nSK.reshape(len(tokens), reference.layout.num_steps, reference.layout.top_k))
    distinct_pV, path_n = np.unique(ribbons_nV, axis=0, return_inverse=True)
    ranks_n = ranks_of(reference, distinct_pV)[path_n.reshape(-1)]
    known = ranks_n > 0
    shares = iter(reference.shares.ink_of(ranks_n[known]))
    cdf = iter(reference.shares.cdf(ranks_n[known]).tolist())
    answers = [
        {"token": token["token"], "rank": rank, "cdf": next(cdf), **next(shares)}
        if rank
        else {"token": token["token"], "rank": None, "cdf": None, "cdf_middle": None, "path_tokens": 0}
        for token, rank in zip(tokens, ranks_n.tolist(), strict=True)
    ]
    return {
        "run": run.run_id,
        "sample": sample,
        "reference": {
            name: reference.row[name]
            for name in ("model", "dataset", "split", "num_samples", "num_tokens", "num_paths")
        }
        | {"run": reference.run_id},
        "found_by": None,
        "reason": None,
        "num_tokens": len(tokens),
        "num_known": int(known.sum()),
        "num_once": sum(row["path_tokens"] == 1 for row in answers),
        "tokens": answers,
        "unusual": _unusual(run, reference, tokens, known, unusual, each, seed),
        "similar": _similar(run, reference, sample, similar) if tokens else [],
    }


def without_reference(run: RunFile, sample: int, reason: str | None) -> dict[str, Any]:
    """The same answer where there is no reference: no ranks, and the reason."""
    tokens = sample_of(run, sample)["tokens"]
    nothing: dict[str, Any] = {"reference": None, "found_by": None, "num_known": None, "num_once": None}
    lists: dict[str, Any] = {"tokens": [], "unusual": [], "similar": []}
    return {"run": run.run_id, "sample": sample, **nothing, "num_tokens": len(tokens), "reason": reason, **lists}


def _check(run: RunFile, reference: RunFile) -> None:
    if run.run_id == reference.run_id:
        raise UserError(f"{run.run_id!r} cannot be its own reference: give a run over a data set", field="reference")
    own, other = (one.row | {"num_modules": one.num_modules} for one in (run, reference))
    for name in SHAPE:
        if own[name] != other[name]:
            raise UserError(
                f"{name} of {run.run_id} is {own[name]}, of {reference.run_id} {other[name]}: a reference is a run of "
                "the same model",
                field="reference",
            )


def _ribbon_in(reference: RunFile, ribbon: Sequence[Sequence[int]], run: RunFile) -> np.ndarray:
    """(S, K) ids that a ribbon of ``run`` has in the reference; what it cannot have there gets ids of no module.

    Modules have equal ids. A decision that is not known is none of the reference, whatever stands for its own; unused
    slots are those of the reference, if it has any.
    """
    layout = reference.layout
    nowhere = layout.num_modules
    unused = nowhere if layout.unused_from is None else layout.unused_from
    rows = [[module + (nowhere if module >= run.num_modules else 0) for module in modules] for modules in ribbon]
    return np.array([[*row, *range(unused, unused + layout.top_k - len(row))] for row in rows], dtype=np.int64)


def _unusual(
    run: RunFile, reference: RunFile, tokens: list[dict[str, Any]], known: np.ndarray, limit: int, each: int, seed: int
) -> list[dict[str, Any]]:
    """Distinct paths that the reference does not have: their tokens, and its nearest path with examples."""
    of_path: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for token, seen in zip(tokens, known.tolist(), strict=True):
        if not seen:
            of_path.setdefault(tuple(tuple(sorted(step)) for step in token["ribbon"]), []).append(token["token"])
    listed = sorted(of_path, key=lambda path: -len(of_path[path]))[:limit]
    if not listed:
        return []
    near = [nearest_paths(reference, _ribbon_in(reference, path, run), 1) for path in listed]
    ranks = [int(one.ranks[0]) for one in near]
    heads = {head["rank"]: head for head in examples_of_paths(reference, sorted(set(ranks)), each, seed)}
    return [
        {
            "tokens": of_path[path],
            "ribbon": [list(step) for step in path],
            "compared_paths": one.num_compared,
            "nearest": heads[rank]
            | {
                "distance": float(one.distances[0] / reference.layout.top_k),
                "differs": [
                    step
                    for step, (here, there) in enumerate(zip(path, heads[rank]["ribbon"], strict=True))
                    if set(here) != set(there)
                ],
            },
        }
        for path, one, rank in zip(listed, near, ranks, strict=True)
    ]


def _similar(run: RunFile, reference: RunFile, sample: int, limit: int) -> list[dict[str, Any]]:
    ((own,),) = [list(piece) for _, piece in counted_profiles(run, np.array([sample]))]
    own_SM = own.reshape(run.layout.num_steps, run.layout.num_modules)[:, : run.num_modules]
    added = ((0, 0), (0, reference.layout.num_modules - run.num_modules))
    return samples_near(reference, np.pad(own_SM, added).reshape(-1), limit)
