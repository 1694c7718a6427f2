"""Counts of the decisions that two runs make about the same tokens, part by part, and what they say together.

Shapes: P pairs of samples; n tokens of some of them; S steps; K slots; M modules; R sizes of sets; G bins of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.contrast import mean_of, student
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.token_pairs import UNKNOWN, TokenPairs, rows_of
from tokenpaths.engine.store.ask.tables.excerpts import sample_answers
from tokenpaths.engine.store.ask.topics.distributions import MARGIN_EDGES, joined_blobs
from tokenpaths.engine.store.ask.topics.samples import vocabulary, weights_recorded
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.flow_counter import columns_sql
from tokenpaths.engine.store.file.weight_codes import MARGIN_COLUMNS, decode_margins

POSITION_EDGES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)
"""first positions of the bins; the last is open"""
LEAST_WORD_SAMPLES = 8
"""samples with a word below which nothing is said of it"""


@dataclass(frozen=True)
class _Tokens:
    """Tokens of one run, in the order of the pairs."""

    ids_nSK: np.ndarray
    levels_nSK: np.ndarray
    columns: dict[str, np.ndarray]

    @classmethod
    def read(cls, run: RunFile, samples: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> _Tokens:
        """The stretches of these samples."""
        own = columns_sql(run.layout)
        more = {
            "token_id": "coalesce(token_id, -1)" if "token_id" in run.token_columns else "-1",
            "loss": "coalesce(loss, 'nan')::DOUBLE",
        }
        listed = [f"{sql} AS {name}" for name, sql in more.items()]
        margins = MARGIN_COLUMNS[0] in run.token_columns
        listed += [MARGIN_COLUMNS[0]] if margins else []
        low, high = int(samples.min()), int(samples.max())
        ends = np.append(run.first_rows, int(run.row["num_tokens"]))
        where, given = "sample BETWEEN ? AND ?", (low, high)
        if ends[high + 1] - ends[low] > 2 * int(lengths.sum()):
            where, given = "sample IN (SELECT unnest(?::INTEGER[]))", (np.unique(samples).tolist(),)  # type: ignore[assignment]
        sql = f"SELECT sample, token, {', '.join(listed)}, {own} FROM token WHERE {where} ORDER BY sample, token"
        columns = run.arrays(Query(sql, given))
        firsts = np.searchsorted(columns["sample"], samples) + starts
        rows = rows_of(firsts, lengths)
        if len(rows) and rows.max() >= len(columns["sample"]):
            raise run.damaged("token")
        ids, levels = run.taken_ribbons(columns)
        return cls(ids[rows], levels[rows], {name: column[rows] for name, column in columns.items()})


@dataclass
class DecisionTally:
    """Counts over the pairs, part by part."""

    a: RunFile
    b: RunFile
    pairs: TokenPairs
    known_PS: np.ndarray = field(init=False)
    """decisions that both runs know"""
    equal_PS: np.ndarray = field(init=False)
    """of these, with the same set of modules"""

    def __post_init__(self) -> None:
        num_pairs, steps, modules = self.pairs.num, self.a.layout.num_steps, self.a.layout.num_modules
        modules = max(modules, self.b.layout.num_modules)
        self.known_PS, self.equal_PS = (np.zeros((num_pairs, steps), dtype=np.int32) for _ in range(2))
        self.overlap_P, self.first_P, self.order_P = (np.zeros(num_pairs) for _ in range(3))
        self.told_P, self.differs_P, self.other_ids = np.zeros(num_pairs), np.zeros(num_pairs), 0
        self.overlap_S, self.first_S, self.order_S = (np.zeros(steps) for _ in range(3))
        self.moved_S, self.both_S = np.zeros(steps), np.zeros(steps)
        # By the size of the set: decisions of another size share another part of what they choose.
        self.load_RSM = [np.zeros((run.layout.top_k + 1, steps, modules)) for run in (self.a, self.b)]
        self.first_different = np.zeros(steps + 1, dtype=np.int64)
        self.num_different = np.zeros(steps + 1, dtype=np.int64)
        self.position_PG = [np.zeros((num_pairs, len(POSITION_EDGES)), dtype=np.int32) for _ in range(2)]
        self.margins = np.zeros((2, len(MARGIN_EDGES) - 1), dtype=np.int64)
        self.loss_P4 = np.zeros((num_pairs, 4))
        self.words: list[np.ndarray] = []
        ordered = [run.layout.top_k == 1 or weights_recorded(run) for run in (self.a, self.b)]
        self.ordered = all(ordered)
        self.same_k = self.a.layout.top_k == self.b.layout.top_k
        self.weighted = all(weights_recorded(run) for run in (self.a, self.b))

    def add(self, part: slice) -> None:
        """Compare the tokens of some pairs."""
        pairs = self.pairs
        lengths = pairs.length_P[part]
        one = _Tokens.read(self.a, pairs.sample_a_P[part], pairs.start_a_P[part], lengths)
        other = _Tokens.read(self.b, pairs.sample_b_P[part], pairs.start_b_P[part], lengths)
        pair_n = np.repeat(np.arange(pairs.num)[part], lengths)
        position_n = rows_of(pairs.start_a_P[part], lengths)
        ids = one.columns["token_id"], other.columns["token_id"]
        same_n = (ids[0] == ids[1]) | (ids[0] == UNKNOWN) | (ids[1] == UNKNOWN)
        self.other_ids += int((~same_n).sum())
        used_a, used_b = self.a.bank.used(one.ids_nSK), self.b.bank.used(other.ids_nSK)
        known_nS = ~self.a.bank.unknown(one.ids_nSK) & ~self.b.bank.unknown(other.ids_nSK) & same_n[:, None]
        slots_a, slots_b = _slots(one.ids_nSK, used_a, -1), _slots(other.ids_nSK, used_b, -2)
        shared_nS = self._shared(known_nS, slots_a, slots_b, one, other)
        sizes = _numbers(used_a), _numbers(used_b)
        larger_nS = np.maximum(*sizes)
        equal_nS = known_nS & (shared_nS == larger_nS)
        overlap_nS = np.where(larger_nS > 0, shared_nS / np.maximum(larger_nS, 1), 1.0) * known_nS
        self._count(pair_n, known_nS, equal_nS, overlap_nS)
        for load_RSM, slots, size_nS in zip(self.load_RSM, (slots_a, slots_b), sizes, strict=True):
            for size in np.flatnonzero(np.bincount(size_nS.reshape(-1))).tolist():
                _add_load(load_RSM[size], slots, known_nS & (size_nS == size))
        if self.ordered:
            self._order(pair_n, known_nS, slots_a, slots_b)
        self._tokens(pair_n, position_n, known_nS, equal_nS, one, other)

    def _shared(
        self,
        known_nS: np.ndarray,
        slots_a: Sequence[np.ndarray],
        slots_b: Sequence[np.ndarray],
        one: _Tokens,
        other: _Tokens,
    ) -> np.ndarray:
        """(n, S) |A ∩ B|; adds Σ |w − w′| of the modules that a decision has in both runs, and how many they are."""
        shared_nS = np.zeros(known_nS.shape, dtype=np.int16)
        moved_nS = np.zeros(known_nS.shape, dtype=np.float32)
        weights: list[list[np.ndarray]] = []
        if self.weighted:
            for run, tokens in ((self.a, one), (self.b, other)):
                table = run.layout.weights.decode(np.arange(256)).astype(np.float32)
                weights.append([table[level_nS] for level_nS in _by_slot(tokens.levels_nSK)])
        for place, slot in enumerate(slots_a):
            for partner, against in enumerate(slots_b):
                same_nS = slot == against
                shared_nS += same_nS
                if weights:
                    apart_nS = np.abs(weights[0][place] - weights[1][partner])
                    apart_nS *= same_nS
                    moved_nS += apart_nS
        if weights:
            self.moved_S += (moved_nS * known_nS).sum(axis=0, dtype=np.float64)
            self.both_S += (shared_nS * known_nS).sum(axis=0)
        return shared_nS

    def _count(self, pair_n: np.ndarray, known_nS: np.ndarray, equal_nS: np.ndarray, overlap_nS: np.ndarray) -> None:
        starts = np.flatnonzero(np.diff(pair_n, prepend=-1))
        pairs = pair_n[starts]
        for sums_PS, values_nS in ((self.known_PS, known_nS), (self.equal_PS, equal_nS)):
            sums_PS[pairs] = np.add.reduceat(values_nS, starts, axis=0, dtype=np.int32)
        self.overlap_P[pairs] = np.add.reduceat(overlap_nS.sum(axis=1), starts)
        self.overlap_S += overlap_nS.sum(axis=0)

    def _order(
        self, pair_n: np.ndarray, known_nS: np.ndarray, slots_a: Sequence[np.ndarray], slots_b: Sequence[np.ndarray]
    ) -> None:
        """Equal first choice, equal order of all; an empty slot is equal to an empty slot."""
        same_nS = known_nS
        for place, (slot, partner) in enumerate(zip(slots_a, slots_b, strict=False)):
            same_nS = same_nS & ((slot == partner) | ((slot < 0) & (partner < 0)))
            if place == 0:
                self.first_P += np.bincount(pair_n, same_nS.sum(axis=1), self.pairs.num)
                self.first_S += same_nS.sum(axis=0)
        if self.same_k:
            self.order_P += np.bincount(pair_n, same_nS.sum(axis=1), self.pairs.num)
            self.order_S += same_nS.sum(axis=0)

    def _tokens(
        self,
        pair_n: np.ndarray,
        position_n: np.ndarray,
        known_nS: np.ndarray,
        equal_nS: np.ndarray,
        one: _Tokens,
        other: _Tokens,
    ) -> None:
        """What is told of whole tokens: where they differ first and how often, by position, margin, loss and word."""
        num_pairs = self.pairs.num
        differs_nS = known_nS & ~equal_nS
        any_n = known_nS.any(axis=1)
        count_n = differs_nS.sum(axis=1)
        first_n = np.where(count_n > 0, differs_nS.argmax(axis=1), differs_nS.shape[1])
        self.first_different += np.bincount(first_n[any_n], minlength=len(self.first_different))
        self.num_different += np.bincount(count_n[any_n], minlength=len(self.num_different))
        self.told_P += np.bincount(pair_n, any_n, num_pairs)
        self.differs_P += np.bincount(pair_n, count_n > 0, num_pairs)
        bin_n = np.searchsorted(POSITION_EDGES, position_n, side="right") - 1
        cell_n = pair_n * len(POSITION_EDGES) + bin_n
        for sums_PG, values_nS in zip(self.position_PG, (known_nS, equal_nS), strict=True):
            sums_PG += np.bincount(cell_n, values_nS.sum(axis=1), sums_PG.size).astype(np.int32).reshape(sums_PG.shape)
        if MARGIN_COLUMNS[0] in one.columns:
            margin_nS = decode_margins(joined_blobs(one.columns[MARGIN_COLUMNS[0]], "<u2", known_nS.shape[1]))
            for row, values_nS in zip(self.margins, (known_nS, equal_nS), strict=True):
                row += np.histogram(margin_nS[values_nS & np.isfinite(margin_nS)], MARGIN_EDGES)[0]
        change_n = other.columns["loss"] - one.columns["loss"]
        for place, group_n in ((0, count_n == 0), (2, count_n > 0)):
            told_n = group_n & any_n & np.isfinite(change_n)
            self.loss_P4[:, place] += np.bincount(pair_n, np.where(told_n, change_n, 0.0), num_pairs)
            self.loss_P4[:, place + 1] += np.bincount(pair_n, told_n, num_pairs)
        self._words(pair_n, one.columns["token_id"], known_nS, equal_nS)

    def _words(self, pair_n: np.ndarray, ids_n: np.ndarray, known_nS: np.ndarray, equal_nS: np.ndarray) -> None:
        """(7, X) sums of the words of this part; no sample is in two parts."""
        known_n = known_nS.sum(axis=1)
        rows = np.flatnonzero((ids_n != UNKNOWN) & (known_n > 0))
        if not len(rows):
            return
        keys, place = np.unique(ids_n[rows].astype(np.int64) * self.pairs.num + pair_n[rows], return_inverse=True)
        of = np.bincount(place, known_n[rows], len(keys))
        apart = of - np.bincount(place, equal_nS[rows].sum(axis=1), len(keys))
        words, start = np.unique(keys // self.pairs.num, return_index=True)
        sums = (np.ones(len(keys)), np.bincount(place), of, apart, of**2, apart * of, apart**2)
        self.words.append(np.stack([words, *(np.add.reduceat(values, start) for values in sums)]))

    def answer(self, limit: int, words: int) -> dict[str, Any]:
        """What was counted, as JSON."""
        known_P, equal_P = self.known_PS.sum(axis=1).astype(float), self.equal_PS.sum(axis=1).astype(float)
        told, chance_S = int(self.num_different.sum()), self._chance()
        overall = {
            "decisions": int(known_P.sum()),
            "sets": _share(equal_P, known_P),
            "overlap": _mean(self.overlap_P, known_P),
            "first": _share(self.first_P, known_P) if self.ordered else None,
            "order": _share(self.order_P, known_P) if self.ordered and self.same_k else None,
            "tokens": _share(self.told_P - self.differs_P, self.told_P),
            "chance": _average(chance_S, self.known_PS.sum(axis=0)),
            "weight_change": float(self.moved_S.sum() / self.both_S.sum()) if self.both_S.any() else None,
        }
        return {
            "overall": overall,
            "order_missing": None if self.ordered else "a source recorded no weights, so no choice of a token is first",
            "steps": self._steps(chance_S),
            "tokens": {
                "num": told,
                "first_different": self.first_different[:-1].tolist(),
                "num_different": self.num_different.tolist(),
            },
            "positions": self._positions(),
            "labels": self._labels(known_P, equal_P),
            "words": self._told_words(words),
            "margins": self._margins(),
            "loss": self._loss(),
            "samples": self._samples(known_P, equal_P, limit),
        }

    def _chance(self) -> np.ndarray:
        """(S,) mean of |A ∩ B| / K, of two sizes the larger, of two runs with these loads and sizes that know nothing
        of each other; NaN: nothing known."""
        known_S = self.known_PS.sum(axis=0, dtype=float)
        one, other = ([*enumerate(load_RSM)][1:] for load_RSM in self.load_RSM)
        empty = [known_S - sum(load_SM.sum(axis=1) / size for size, load_SM in side) for side in (one, other)]
        shared_S = empty[0] * empty[1]
        for (size_a, load_aSM), (size_b, load_bSM) in product(one, other):
            shared_S += (load_aSM * load_bSM).sum(axis=1) / max(size_a, size_b)
        chance_S: np.ndarray = np.where(known_S > 0, shared_S / np.maximum(known_S, 1.0) ** 2, np.nan)
        return chance_S

    def _steps(self, chance_S: np.ndarray) -> list[dict[str, Any]]:
        rows = []
        for step, known in enumerate(self.known_PS.sum(axis=0).tolist()):
            share = _share(self.equal_PS[:, step].astype(float), self.known_PS[:, step].astype(float))
            both = self.both_S[step]
            rows.append(
                {
                    "step": step,
                    "decisions": known,
                    "sets": share,
                    "overlap": _part(self.overlap_S[step], known),
                    "chance": None if np.isnan(chance_S[step]) else float(chance_S[step]),
                    "first": _part(self.first_S[step], known) if self.ordered else None,
                    "order": _part(self.order_S[step], known) if self.ordered and self.same_k else None,
                    "weight_change": _part(self.moved_S[step], both) if self.weighted else None,
                }
            )
        return rows

    def _positions(self) -> list[dict[str, Any]]:
        rows = []
        for place, first in enumerate(POSITION_EDGES):
            known_P, equal_P = (sums[:, place].astype(float) for sums in self.position_PG)
            if share := _share(equal_P, known_P):
                last = POSITION_EDGES[place + 1] - 1 if place + 1 < len(POSITION_EDGES) else None
                rows.append({"first": first, "last": last, "decisions": int(known_P.sum()), "sets": share})
        return rows

    def _labels(self, known_P: np.ndarray, equal_P: np.ndarray) -> list[dict[str, Any]]:
        """Each label of ``a``, the least agreement first."""
        ids_N = self.a.arrays(Query("SELECT label_id FROM sample ORDER BY sample"))["label_id"]
        ids_P = np.ma.filled(ids_N[self.pairs.sample_a_P], -1)
        order = np.argsort(ids_P, kind="stable")
        numbers, starts = np.unique(ids_P[order], return_index=True)
        pairs_of = dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
        rows = []
        for number, name, *_ in self.a.labels:
            own = pairs_of.get(number)
            if name is not None and own is not None and (share := _share(equal_P[own], known_P[own])):
                rows.append({"label": name, "samples": len(own), "decisions": int(known_P[own].sum()), "sets": share})
        return sorted(rows, key=lambda row: (row["sets"]["share"], row["label"]))

    def _told_words(self, most: int) -> dict[str, Any]:
        """Words whose decisions surely differ more often than those of all tokens, most first.

        At 95 % of all words that are looked at together (Bonferroni), as a mean over samples: neither the tokens of a
        sample nor the steps of a token are independent.
        """
        if not self.words:
            return {"looked_at": 0, "rows": []}
        joined = np.concatenate(self.words, axis=1)
        ids, place = np.unique(joined[0].astype(np.int64), return_inverse=True)
        samples, tokens, of, apart, of_of, apart_of, apart_apart = (
            np.bincount(place, values, len(ids)) for values in joined[1:]
        )
        often = samples >= LEAST_WORD_SAMPLES
        looked_at, base, share = int(often.sum()), float(apart.sum() / of.sum()), apart / of
        squares = np.maximum(apart_apart - 2 * share * apart_of + share**2 * of_of, 0.0)
        # As many decisions that differ all alike scatter by nothing: they are then taken as independent ones.
        even = (apart + 1) / (of + 2)
        error = np.sqrt(
            np.maximum(squares / of**2 * samples / np.maximum(samples - 1, 1), even * (1 - even) / (of + 2))
        )
        clear = [
            i
            for i in np.flatnonzero(often & (share > base)).tolist()
            if share[i] - student(max(float(of[i] ** 2 / of_of[i]) - 1, 1.0), looked_at) * error[i] > base
        ]
        chosen = sorted(clear, key=lambda i: (-share[i], ids[i]))[:most]
        texts = vocabulary(self.a, ids[chosen].tolist())
        rows = [
            {
                "token_id": int(ids[i]),
                "text": texts.get(int(ids[i])),
                "tokens": int(tokens[i]),
                "samples": int(samples[i]),
                "sets": float(1 - share[i]),
            }
            for i in chosen
        ]
        return {"looked_at": looked_at, "rows": rows}

    def _margins(self) -> list[dict[str, Any]]:
        """Agreement by the margin of the decision in ``a``; empty where it has no scores."""
        edges = zip(MARGIN_EDGES[:-1], MARGIN_EDGES[1:], *self.margins.tolist(), strict=True)
        return [
            {"low": low, "high": high, "decisions": known, "sets": equal / known}
            for low, high, known, equal in edges
            if known
        ]

    def _loss(self) -> dict[str, Any] | None:
        """Mean of loss in ``b`` − loss in ``a``, of tokens with the same decisions at all steps and of the others."""
        same, different = (_mean(self.loss_P4[:, i], self.loss_P4[:, i + 1]) for i in (0, 2))
        if same is None and different is None:
            return None
        return {
            "same": same,
            "different": different,
            "num_same": int(self.loss_P4[:, 1].sum()),
            "num_different": int(self.loss_P4[:, 3].sum()),
        }

    def _samples(self, known_P: np.ndarray, equal_P: np.ndarray, limit: int) -> list[dict[str, Any]]:
        share_P = np.where(known_P > 0, equal_P / np.maximum(known_P, 1), 1.0)
        order = np.argsort(share_P, kind="stable")[:limit]
        order = order[share_P[order] < 1]
        if not len(order):
            return []
        heads = sample_answers(self.a, self.pairs.sample_a_P[order].tolist())
        rows = []
        for i in order.tolist():
            sample = int(self.pairs.sample_a_P[i])
            named = {name: heads[sample][name] for name in ("label", "source", "snippet", "has_image")}
            rows.append(
                {
                    "sample": sample,
                    "partner": int(self.pairs.sample_b_P[i]),
                    "num_tokens": int(self.pairs.length_P[i]),
                    "differ": int(self.differs_P[i]),
                    "sets": float(share_P[i]),
                    **named,
                }
            )
        return rows


def _by_slot(values_nSK: np.ndarray) -> list[np.ndarray]:
    """K times (n, S) in a row of memory: comparing them is several times as fast."""
    return list(np.ascontiguousarray(values_nSK.transpose(2, 0, 1)))


def _slots(ids_nSK: np.ndarray, used_nSK: np.ndarray, empty: int) -> list[np.ndarray]:
    """Modules of each slot, ``empty`` where it holds none: an empty slot is no module that both runs have."""
    signed = np.int16 if ids_nSK.dtype == np.uint8 else np.int32
    slots = _by_slot(ids_nSK.astype(signed))
    if not used_nSK.all():
        for slot, used in zip(slots, _by_slot(used_nSK), strict=True):
            slot[~used] = empty
    return slots


def _numbers(used_nSK: np.ndarray) -> np.ndarray:
    """(n, S) modules of each decision."""
    if used_nSK.all():
        return np.full(used_nSK.shape[:2], used_nSK.shape[2], dtype=np.int16)
    numbers: np.ndarray = used_nSK.sum(axis=2, dtype=np.int16)
    return numbers


def _add_load(load_SM: np.ndarray, slots: Sequence[np.ndarray], known_nS: np.ndarray) -> None:
    """Count the modules of known decisions, step by step."""
    first_S = np.arange(len(load_SM)) * load_SM.shape[1]
    for slot in slots:
        counted = known_nS & (slot >= 0)
        cells = (slot + first_S)[counted]
        load_SM += np.bincount(cells, minlength=load_SM.size).reshape(load_SM.shape)


def _part(of: float, whole: float) -> float | None:
    return float(of / whole) if whole else None


def _average(values_S: np.ndarray, weight_S: Sequence[float] | np.ndarray) -> float | None:
    told = np.isfinite(values_S)
    weights = np.asarray(weight_S, dtype=float)[told]
    return float((values_S[told] * weights).sum() / weights.sum()) if weights.any() else None


def _share(hits_P: np.ndarray, of_P: np.ndarray) -> dict[str, Any] | None:
    """A share of yes or no with its interval over samples; None of nothing."""
    mean = mean_of(hits_P, of_P, share=True)
    return None if mean is None else {"share": mean.mean, "low": mean.low, "high": mean.high}


def _mean(sum_P: np.ndarray, of_P: np.ndarray) -> dict[str, Any] | None:
    mean = mean_of(sum_P, of_P)
    return None if mean is None else {"mean": mean.mean, "low": mean.low, "high": mean.high}
