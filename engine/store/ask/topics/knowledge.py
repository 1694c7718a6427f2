"""What paths know: NMI(π; property) of each property that the tokens of a run have, beside a permutation null.

Worked out on the hash sample of tokens that was drawn when the run was sealed (table ``known_token``, which has the
untrained twin's paths of these tokens as well), so NMI and p are those of the associations in its file.
Properties of a sample (its label, the prediction) are shuffled over whole samples. All others are alike inside a sample
too, as its paths are: they are shuffled as sequences (``association.Sequences``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.association import Association, associations, places_in
from tokenpaths.engine.analysis.words import CLASSES, Words, word_class
from tokenpaths.engine.store.ask.question import Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.schemas.knowledge_schema import Knowledge
from tokenpaths.engine.store.ask.tables.token_table import Travellers, known_travellers, travellers
from tokenpaths.engine.store.ask.topics.paths import fit
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.hash_sample import KNOWN_TOKENS, mix

SHUFFLES = 200
SEED = 0
UNTRAINED = "-untrained"
"""how the names of models end that are untrained twins (``tracing.as_untrained``)"""
CELLS = 3
"""the picture is cut into CELLS × CELLS places"""


@dataclass(frozen=True)
class Property:
    """One thing that may be told of a token: (n,) codes, −1 where it is not known."""

    name: str
    codes_n: np.ndarray
    of_samples: bool = False
    """all tokens of a sample share it"""
    by_place: bool = False
    """it hangs together by the place in the sample; else a sample is a row of values, whatever lies between them"""


@question(
    "paths/knowledge",
    Knowledge,
    tag="knowledge",
    description="What paths know of labels, token ids, places, kinds of words …: NMI of each beside 200 seeded "
    "shuffles.\n\nWorked out on 20,000 tokens drawn by hash; of smaller runs on all.",
    frames={
        "knowledge": Rows("properties", "What paths know: property, nmi, null_mean, null_low, null_high, p_value …")
    },
    sealed=lambda run: [{}],
)
def knowledge(run: RunFile) -> dict[str, Any]:
    """What paths know: NMI(π; property) beside 200 shuffles, of label, token id, region, kind of word …

    Each of ``properties`` is {property, values, shuffled (samples or sequences), nmi, null_mean, null_low,
    null_high, p_value, num_tokens} and ``untrained_nmi`` … of the untrained twin's paths beside the same shuffles;
    ``untrained_reason`` says why there is no twin, ``unknown`` why other properties have no numbers. On a hash
    sample of 20,000 tokens.
    """
    everything = known_travellers(run) or travellers(run)
    drawn = _hash_sample(everything)
    twin_n, no_twin = _twin_paths(run, everything, drawn)
    found, words = everything.of_tokens(drawn), everything.words_of(drawn)
    known, unknown = [], []
    for one in _properties(run, found, words):
        codes = one.codes_n
        here = codes >= 0
        values = int(len(np.unique(codes[here])))
        if values < 2:
            what = "is not known" if values == 0 else "is the same everywhere"
            unknown.append({"property": one.name, "reason": f"{_WORDS[one.name]} {what}"})
            continue
        sample_n, token_n = found.sample_n[here], found.columns["token"][here]
        result, *twin = associations(
            [found.path_n[here], *([] if twin_n is None else [twin_n[here]])],
            codes[here],
            groups=sample_n if one.of_samples else None,
            sequences=None if one.of_samples else places_in(sample_n, token_n, by_place=one.by_place),
            shuffles=SHUFFLES,
            seed=SEED,
        )
        known.append(
            {
                "property": one.name,
                "values": values,
                "shuffled": "samples" if one.of_samples else "sequences",
                "nmi": result.nmi,
                "null_mean": result.null_mean,
                "null_low": result.null_low,
                "null_high": result.null_high,
                "p_value": result.p_value,
                "num_tokens": result.num_tokens,
                **_of_twin(twin[0] if twin else None),
            }
        )
    reason = None
    if len(found.rank_P) < 2:
        reason = "all tokens take one and the same path, which can tell nothing about them"
    elif not known:
        reason = "nothing that differs between tokens was recorded: no labels, token ids, places or texts"
    return {
        "run": run.run_id,
        "shuffles": SHUFFLES,
        "seed": SEED,
        "counted": found.counted,
        "cells": CELLS,
        "properties": [] if reason else sorted(known, key=lambda row: row["null_high"] - row["nmi"]),
        "unknown": unknown,
        "untrained_reason": no_twin,
        "reason": reason,
    }


def _of_twin(found: Association | None) -> dict[str, float | None]:
    names = ("nmi", "null_mean", "null_low", "null_high", "p_value")
    return {f"untrained_{name}": None if found is None else getattr(found, name) for name in names}


def _twin_paths(run: RunFile, found: Travellers, drawn: np.ndarray) -> tuple[np.ndarray | None, str | None]:
    """(n,) paths of the untrained twin for the drawn tokens, or None and the reason in words."""
    if run.row["model"].endswith(UNTRAINED):
        return None, "this run is an untrained twin itself"
    if fit(run)["untrained"] is None:
        return None, "no untrained twin was traced beside this run"
    rows = run.arrays(Query("SELECT place, coalesce(untrained_path, -1) AS path FROM known_token ORDER BY place"))
    if (rows["path"] < 0).any():
        return None, "the untrained twin was traced for some of the tokens only"
    return rows["path"][np.searchsorted(rows["place"], found.columns["place"][drawn])], None


_WORDS = {
    "label": "the label",
    "prediction": "the prediction of the sample",
    "token_id": "the token id",
    "predicted_id": "the predicted next token",
    "region": "the region of the picture",
    "place": "the place in the picture",
    "position": "the position in the text",
    "word_class": "the kind of word",
    "sentence_end": "whether a sentence ends",
}


def _hash_sample(found: Travellers) -> np.ndarray:
    """Indices of the ``KNOWN_TOKENS`` tokens with the smallest hashes of their place in the run, in that order."""
    hashes = mix(found.columns["place"].astype(np.uint64), SEED)
    if len(hashes) > KNOWN_TOKENS:
        some = np.argpartition(hashes, KNOWN_TOKENS)[:KNOWN_TOKENS]
        return some[np.argsort(hashes[some], kind="stable")]
    return np.argsort(hashes, kind="stable")


def _properties(run: RunFile, found: Travellers, words: Words | None) -> list[Property]:
    """Every property of the run's modality; those that it did not record are all −1."""
    nothing = np.full(found.num_tokens, -1, dtype=np.int64)
    rows = run.rows(Query("SELECT sample, prediction, grid_rows, grid_cols, label FROM sample ORDER BY sample"))
    rows = [rows[int(number)] for number in found.samples_N] if len(rows) > found.num_samples else rows
    properties = [Property("label", found.label_N[found.sample_n], of_samples=True)]
    if any(row[1] is not None and row[1] != row[4] for row in rows):
        classes = {name: code for code, name in enumerate(sorted({row[1] for row in rows if row[1] is not None}))}
        codes_N = np.array([classes.get(row[1], -1) for row in rows], dtype=np.int64)
        properties.append(Property("prediction", codes_N[found.sample_n], of_samples=True))
    if run.row["modality"] == "vision":
        properties.append(Property("region", found.columns.get("region", nothing), by_place=True))
        properties.append(Property("place", _places(found, rows), by_place=True))
        return properties
    properties += [Property(name, found.columns.get(name, nothing)) for name in ("token_id", "predicted_id")]
    position = np.frexp(found.columns["token"] + 1.0)[1].astype(np.int64)
    properties.append(Property("position", position, by_place=True))
    pieces = found.pieces
    words = words or pieces
    classes_W = [CLASSES.index(word_class(name)) if name else -1 for name in words.names] if words else []
    properties.append(Property("word_class", _of_words(words, classes_W, nothing)))
    properties.append(
        Property("sentence_end", nothing if words is None else words.of_kind("sentence_end").astype(np.int64))
    )
    return properties


def _of_words(words: Words | None, values_W: list[int], nothing: np.ndarray) -> np.ndarray:
    return nothing if words is None else np.array(values_W, dtype=np.int64)[words.codes_n]


def _places(found: Travellers, rows: list[tuple]) -> np.ndarray:
    """Which of CELLS × CELLS equal cells of its picture each patch lies in, row by row; −1 without a grid."""
    grid_N2 = np.array([[row[2] or 0, row[3] or 0] for row in rows], dtype=np.int64)[found.sample_n]
    row_n, col_n = (found.columns[name].astype(np.int64) for name in ("grid_row", "col"))
    inside = (grid_N2 > 0).all(axis=1) & (row_n >= 0) & (col_n >= 0)
    sizes = np.maximum(grid_N2, 1)
    place = row_n * CELLS // sizes[:, 0] * CELLS + col_n * CELLS // sizes[:, 1]
    return np.where(inside, place, -1)
