"""What tokens can be named by: label, word, kind of word, kind of patch, region.

Tokens with the same attributes share a code, so that a thing (a module, a path) is counted once for all attributes:
tokens by thing and code, times the matrix of which code has which attribute.

Shapes: n tokens, J codes, A attributes, W distinct words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenpaths.engine.analysis.words import KINDS, Words, of_kind
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.patch_kinds import BY_PIXELS, BY_PLACE, measured, patches_of_kind
from tokenpaths.engine.store.ask.tables.token_table import TokenTable

MOST_WORDS = 500
"""the most frequent ones: each further candidate costs the others certainty"""
MOST_LABELS = 500
LEAST_TOKENS = 20
"""of a word"""


@dataclass(frozen=True)
class Attributes:
    """Attributes of the tokens of one table."""

    table: TokenTable
    code_n: np.ndarray
    member_JA: np.ndarray
    """(J, A) bool"""
    named: tuple[tuple[str, str], ...]
    """(A,) what (``label``, ``word``, ``word_kind``, ``patch_kind``, ``region``) and its value"""
    by_sample: bool = False
    """whether all tokens of a sample have the same attributes"""


def attributes_of(run: RunFile, table: TokenTable) -> list[Attributes]:
    """All attributes that are known of the tokens of ``table``; those that need pixels are of fewer pictures."""
    names = {row[0]: row[1] for row in run.labels}
    parts = [label_attributes(table, names), _token_attributes(run, table), _pixel_attributes(run, table)]
    return [part for part in parts if part is not None and part.named]


def label_attributes(table: TokenTable, names: dict[int, str]) -> Attributes | None:
    """Labels of at least two samples; None where there are fewer than two labels."""
    ids, samples = np.unique(table.label_N[table.label_N >= 0], return_counts=True)
    often = np.sort(np.lexsort((ids, -samples))[:MOST_LABELS])
    kept = ids[often[samples[often] >= 2]]
    if len(ids) < 2 or not len(kept):
        return None
    place = np.minimum(np.searchsorted(kept, table.label_N), len(kept) - 1)
    code_N = np.where(kept[place] == table.label_N, place + 1, 0)
    member_JA = np.eye(len(kept) + 1, dtype=bool)[:, 1:]
    named = tuple(("label", names[int(i)]) for i in kept)
    return Attributes(table, code_N[table.sample_n].astype(np.int32), member_JA, named, by_sample=True)


def _token_attributes(run: RunFile, table: TokenTable) -> Attributes:
    """Words, their kinds, places in the picture and regions, in one code."""
    code_n = np.zeros(table.num_tokens, dtype=np.int64)
    member_JA, named = np.zeros((1, 0), dtype=bool), list[tuple[str, str]]()
    for part_n, part_JA, part_named in (*_word_parts(table), *_place_parts(run, table), *_region_parts(run, table)):
        code_n = code_n * len(part_JA) + part_n
        repeated = np.repeat(member_JA, len(part_JA), axis=0), np.tile(part_JA, (len(member_JA), 1))
        present = np.flatnonzero(np.bincount(code_n, minlength=len(repeated[0])))
        index = np.zeros(len(repeated[0]), dtype=np.int64)
        index[present] = np.arange(len(present))
        code_n, member_JA = index[code_n], np.concatenate(repeated, axis=1)[present]
        named += part_named
    return Attributes(table, code_n.astype(np.int32), member_JA, tuple(named))


Part = tuple[np.ndarray, np.ndarray, list[tuple[str, str]]]
"""code of each token (n,), attributes of each code (J, A), names of the attributes"""


def _word_parts(table: TokenTable) -> Iterator[Part]:
    words = (table.words or table.pieces) if {"token_id", "char_start"} & set(table.columns) else None
    if words is None or not len(words.names):
        return
    import pandas as pd  # half a second, only for who asks

    folded_W, names = pd.factorize(np.array([name.strip().casefold() for name in words.names], dtype=object))
    often = np.bincount(folded_W[words.codes_n], minlength=len(names))
    order = [i for i in np.lexsort((np.arange(len(names)), -often)).tolist() if often[i] >= LEAST_TOKENS and names[i]]
    top_F = np.zeros(len(names), dtype=np.int64)
    top_F[order[:MOST_WORDS]] = np.arange(1, len(order[:MOST_WORDS]) + 1)
    kinds_WA = np.stack([of_kind(words.names, kind) for kind in KINDS], axis=1)
    code_W = top_F[folded_W] * 2 ** len(KINDS) + kinds_WA @ (1 << np.arange(len(KINDS)))
    codes_n = _without_glued(words, code_W[words.codes_n])
    present = np.flatnonzero(np.bincount(codes_n))
    kinds_JA = (present[:, None] >> np.arange(len(KINDS)) & 1).astype(bool)
    words_JA = (present >> len(KINDS))[:, None] == np.arange(1, len(order[:MOST_WORDS]) + 1)
    named = [("word_kind", kind) for kind in KINDS] + [("word", names[i]) for i in order[:MOST_WORDS]]
    yield np.searchsorted(present, codes_n), np.concatenate([kinds_JA, words_JA], axis=1), named


def _without_glued(words: Words, codes_n: np.ndarray) -> np.ndarray:
    """As ``Words.of_kind`` has it: a stop inside a name or a number ends no sentence."""
    if words.glued_n is None:
        return codes_n
    ends = np.int64(1 << KINDS.index("sentence_end"))
    return np.where(words.glued_n, codes_n & ~ends, codes_n)


def _place_parts(run: RunFile, table: TokenTable) -> Iterator[Part]:
    for kind in BY_PLACE if run.row["modality"] == "vision" else ():
        try:
            mask_n = patches_of_kind(run, table, kind)
        except UserError:  # the run does not know where its patches lie
            continue
        yield mask_n.astype(np.int64), np.array([[False], [True]]), [("patch_kind", kind)]


def _region_parts(run: RunFile, table: TokenTable) -> Iterator[Part]:
    region_n = table.columns.get("region")
    if region_n is None or len(run.regions) < 2:
        return
    ids = sorted(run.regions)
    place_n = np.minimum(np.searchsorted(ids, region_n), len(ids) - 1)
    code_n = np.where(np.array(ids)[place_n] == region_n, place_n + 1, 0)
    yield code_n, np.eye(len(ids) + 1, dtype=bool)[:, 1:], [("region", run.regions[i]) for i in ids]


def _pixel_attributes(run: RunFile, table: TokenTable) -> Attributes | None:
    """Busy and flat patches, of the pictures of ``measured``."""
    if run.row["modality"] != "vision" or "grid_row" not in table.columns:
        return None
    pictures = measured(run, table, next(iter(BY_PIXELS)))
    try:
        masks = [patches_of_kind(run, pictures, kind) for kind in BY_PIXELS]
    except UserError:  # the run holds no pictures
        return None
    code_n = np.sum([mask_n.astype(np.int32) << i for i, mask_n in enumerate(masks)], axis=0)
    member_JA = (np.arange(2 ** len(masks))[:, None] >> np.arange(len(masks)) & 1).astype(bool)
    return Attributes(pictures, code_n, member_JA, tuple(("patch_kind", kind) for kind in BY_PIXELS))
