"""What paths know: NMI(path; property) of every recorded property of tokens, beside a permutation null.

Computed on the hash sample of tokens that was drawn at sealing (table ``known_token``, which also holds the untrained
twin's paths of these tokens), so NMI and p agree with the associations in the file. Properties of a sample (label,
prediction) are permuted over whole samples; regions of pictures change hands as whole maps, so that the place of a
patch is no knowledge; all others are correlated within a sample, as its paths are, and are permuted as sequences
(``association.Maps``, ``Sequences``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.association import MOST_ALIKE, Association, associations, exchanged_alike, places_in
from tokenpaths.engine.analysis.words import CLASSES, Words, word_class
from tokenpaths.engine.store.ask.question import Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.region_maps import region_maps
from tokenpaths.engine.store.ask.tables.token_table import TokenTable, known_token_table, tokens_of
from tokenpaths.engine.store.ask.topics.paths import fit
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.hash_sample import KNOWN_TOKENS, mix

SHUFFLES = 200
LARGEST_P = 0.05
"""chance of naming any property that paths do not tell"""
SEED = 0
UNTRAINED = "-untrained"
"""suffix of the model names of untrained twins (``Traceable.untrained``)"""
CELLS = 3
"""pictures are divided into CELLS × CELLS places"""


@dataclass(frozen=True)
class Property:
    """A property of tokens: (n,) codes, −1 where unknown."""

    name: str
    codes_n: np.ndarray
    of_samples: bool = False
    """common to all tokens of a sample"""
    by_place: bool = False
    """correlated by place in the sample; otherwise a sample is a sequence of values, whatever lies between them"""
    as_maps: bool = False
    """of the patches of a picture, and more than their place: images exchange their whole maps"""


@question(
    "paths/knowledge",
    "knowledge_schema.Knowledge",
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

    Each of ``properties`` is {property, values, shuffled (samples, sequences or maps), nmi, null_mean, null_low,
    null_high, p_value, clear, num_tokens} and ``untrained_nmi`` … of the untrained twin's paths beside the same
    shuffles; ``untrained_reason`` says why there is no twin, ``unknown`` why other properties have no numbers. On a
    hash sample of 20,000 tokens.
    """
    all_tokens = known_token_table(run) or tokens_of(run)
    drawn = _hash_sample(all_tokens)
    twin_n, no_twin = _twin_paths(run, all_tokens, drawn)
    table, words = all_tokens.of_tokens(drawn), all_tokens.words_of(drawn)
    rows, unknown = [], []
    for attribute in _properties(run, table, words):
        codes = attribute.codes_n
        here = codes >= 0
        values = int(len(np.unique(codes[here])))
        if values < 2:
            what = "is not known" if values == 0 else "is the same everywhere"
            unknown.append({"property": attribute.name, "reason": f"{_WORDS[attribute.name]} {what}"})
            continue
        sample_n, token_n = table.sample_n[here], table.columns["token"][here]
        alike = exchanged_alike(codes[here], sample_n) if attribute.of_samples else 0.0
        if alike >= MOST_ALIKE:
            what = "is another one in every sample: exchanged between samples, it says the same"
            if alike < 1:
                what = f"is of too few samples: one in {round(1 / alike)} exchanges between them says the same"
            unknown.append({"property": attribute.name, "reason": f"{_WORDS[attribute.name]} {what}"})
            continue
        maps = region_maps(run.arrays, table.samples_N[sample_n], token_n) if attribute.as_maps else None
        if attribute.as_maps and maps is None:
            unknown.append(
                {"property": attribute.name, "reason": "no two images have the same grid to exchange their regions"}
            )
            continue
        if maps is not None and maps.alike() >= MOST_ALIKE:
            few = f"one in {round(1 / maps.alike())} exchanges between them is none"
            why = f"too few images have the same grid to exchange their regions: {few}"
            unknown.append({"property": attribute.name, "reason": why})
            continue
        shuffled = "samples" if attribute.of_samples else "maps" if attribute.as_maps else "sequences"
        result, *twin = associations(
            [table.path_n[here], *([] if twin_n is None else [twin_n[here]])],
            codes[here],
            groups=sample_n if shuffled == "samples" else None,
            sequences=places_in(sample_n, token_n, by_place=attribute.by_place) if shuffled == "sequences" else None,
            maps=maps,
            shuffles=SHUFFLES,
            seed=SEED,
        )
        rows.append(
            {
                "property": attribute.name,
                "values": values,
                "shuffled": shuffled,
                "nmi": result.nmi,
                "null_mean": result.null_mean,
                "null_low": result.null_low,
                "null_high": result.null_high,
                "p_value": result.p_value,
                "num_tokens": result.num_tokens,
                **_of_twin(twin[0] if twin else None),
            }
        )
    for prefix in ("", "untrained_"):
        _judge(rows, prefix)
    reason = None
    if len(table.rank_P) < 2:
        reason = "all tokens take one and the same path, which can tell nothing about them"
    elif not rows:
        reason = "nothing that differs between tokens was recorded: no labels, token ids, places or texts"
    return {
        "run": run.run_id,
        "shuffles": SHUFFLES,
        "seed": SEED,
        "counted": table.counted,
        "cells": CELLS,
        "properties": [] if reason else sorted(rows, key=lambda row: row["null_high"] - row["nmi"]),
        "unknown": unknown,
        "untrained_reason": no_twin,
        "reason": reason,
    }


def _judge(rows: list[dict[str, Any]], prefix: str) -> None:
    """``clear``: whether a property is told better than chance when all are tested together (Holm, Scandinavian
    Journal of Statistics 6, 1979): the page names those that are, of up to nine, so some would be by chance.

    200 shuffles give no p-value below 1/201, which nine properties can all have.
    """
    told = sorted((row for row in rows if row[f"{prefix}p_value"] is not None), key=lambda row: row[f"{prefix}p_value"])
    clear = True
    for row in rows:
        row[f"{prefix}clear"] = None
    for place, row in enumerate(told):
        clear = clear and row[f"{prefix}p_value"] * (len(told) - place) <= LARGEST_P
        row[f"{prefix}clear"] = clear


def _of_twin(association: Association | None) -> dict[str, float | None]:
    names = ("nmi", "null_mean", "null_low", "null_high", "p_value")
    return {f"untrained_{name}": None if association is None else getattr(association, name) for name in names}


def _twin_paths(run: RunFile, table: TokenTable, drawn: np.ndarray) -> tuple[np.ndarray | None, str | None]:
    """(n,) paths of the untrained twin for the drawn tokens, or None and the reason."""
    if run.row["model"].endswith(UNTRAINED):
        return None, "this run is an untrained twin itself"
    if fit(run)["untrained"] is None:
        return None, "no untrained twin was traced beside this run"
    rows = run.arrays(Query("SELECT place, coalesce(untrained_path, -1) AS path FROM known_token ORDER BY place"))
    if (rows["path"] < 0).any():
        return None, "the untrained twin was traced for some of the tokens only"
    return rows["path"][np.searchsorted(rows["place"], table.columns["place"][drawn])], None


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


def _hash_sample(table: TokenTable) -> np.ndarray:
    """Indices of the ``KNOWN_TOKENS`` tokens with the smallest hashes of their position in the run, in hash order."""
    hashes = mix(table.columns["place"].astype(np.uint64), SEED)
    if len(hashes) > KNOWN_TOKENS:
        smallest = np.argpartition(hashes, KNOWN_TOKENS)[:KNOWN_TOKENS]
        return smallest[np.argsort(hashes[smallest], kind="stable")]
    return np.argsort(hashes, kind="stable")


def _properties(run: RunFile, table: TokenTable, words: Words | None) -> list[Property]:
    """All properties of the run's modality; those not recorded are all −1."""
    nothing = np.full(table.num_tokens, -1, dtype=np.int64)
    rows = run.rows(Query("SELECT sample, prediction, grid_rows, grid_cols, label FROM sample ORDER BY sample"))
    rows = [rows[int(number)] for number in table.samples_N] if len(rows) > table.num_samples else rows
    properties = [Property("label", table.label_N[table.sample_n], of_samples=True)]
    if any(row[1] is not None and row[1] != row[4] for row in rows):
        classes = {name: code for code, name in enumerate(sorted({row[1] for row in rows if row[1] is not None}))}
        codes_N = np.array([classes.get(row[1], -1) for row in rows], dtype=np.int64)
        properties.append(Property("prediction", codes_N[table.sample_n], of_samples=True))
    if run.row["modality"] == "vision":
        properties.append(Property("region", table.columns.get("region", nothing), as_maps=True))
        properties.append(Property("place", _places(table, rows), by_place=True))
        return properties
    properties += [Property(name, table.columns.get(name, nothing)) for name in ("token_id", "predicted_id")]
    position = np.frexp(table.columns["token"] + 1.0)[1].astype(np.int64)
    properties.append(Property("position", position, by_place=True))
    pieces = table.pieces
    words = words or pieces
    classes_W = [CLASSES.index(word_class(name)) if name else -1 for name in words.names] if words else []
    properties.append(Property("word_class", _of_words(words, classes_W, nothing)))
    properties.append(
        Property("sentence_end", nothing if words is None else words.of_kind("sentence_end").astype(np.int64))
    )
    return properties


def _of_words(words: Words | None, values_W: list[int], nothing: np.ndarray) -> np.ndarray:
    return nothing if words is None else np.array(values_W, dtype=np.int64)[words.codes_n]


def _places(table: TokenTable, rows: list[tuple[Any, ...]]) -> np.ndarray:
    """Cell of each patch on a CELLS × CELLS grid over its picture, row-major; −1 without a grid."""
    grid_N2 = np.array([[row[2] or 0, row[3] or 0] for row in rows], dtype=np.int64)[table.sample_n]
    row_n, col_n = (table.columns[name].astype(np.int64) for name in ("grid_row", "col"))
    inside = (grid_N2 > 0).all(axis=1) & (row_n >= 0) & (col_n >= 0)
    sizes = np.maximum(grid_N2, 1)
    place = row_n * CELLS // sizes[:, 0] * CELLS + col_n * CELLS // sizes[:, 1]
    return np.where(inside, place, -1)
