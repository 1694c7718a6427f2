"""Doctor of imports: wrong data that looks right, found in one pass over a log before anything is written.

An *artefact* makes numbers false and stops an import; a *warning* may be real (a collapsed router) or a fault of the
log; both are sentences on the page and at the end of the command.

Shapes: t tokens of a piece, S layers, K slots, M experts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokenpaths.engine.adapters.logs.fill_values import FILL_VALUES
from tokenpaths.engine.adapters.logs.pieces import UNUSED, LogShape, Piece, lowest, unrecorded
from tokenpaths.engine.analysis.compiled.loops import loops
from tokenpaths.engine.analysis.path_statistics import sorted_slots, word_hashes

_MOST_NARROW = 254
"""most experts whose ids are compared as 8 bits: the two numbers above stand for unused slots and unknown steps"""
LEAST_TOKENS = 16
"""below that nothing is said of layers that never change or are equal"""
SURE = math.log(1e6)
"""how much less likely than one in a million chance must make an artefact"""
LEAST_SHARED = 16
"""tokens at the beginning of samples that are compared for prefixes counted several times"""
_FILLS = FILL_VALUES[1:]
"""those that no expert has unless there are as many; 0 is the first expert everywhere"""
_MOST_NAMED = 6
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor noticed."""

    test: str
    kind: Literal["artefact", "warning"]
    sentence: str

    def to_json(self) -> dict[str, str]:
        return {"test": self.test, "kind": self.kind, "sentence": self.sentence}


class Survey:
    """Sizes of a whole log, and what the doctor found. ``experts``: as announced, else the largest id plus one."""

    def __init__(self, shape: LogShape, experts: int | None) -> None:
        layers, top_k = len(shape.layers), shape.top_k
        self.shape, self.announced = shape, experts
        # Of the same bits throughout, whatever the log has, so that equal sets have equal sums.
        self._id_bits = 8 if experts is not None and experts <= _MOST_NARROW else 16
        self.tokens = self.samples = 0
        self.largest = self._largest_but_fills = -1
        self.missing_S = np.zeros(layers, dtype=np.int64)
        """tokens that lack each layer"""
        self.unused_S = np.zeros(layers, dtype=np.int64)
        """slots of each layer that hold no expert"""
        self.dropped_S = np.zeros(layers, dtype=np.int64)
        """tokens that use no expert at each layer"""
        self.shared: dict[tuple[str, int], int] = {}
        """(sample, tokens) of a beginning -> how many other samples share it"""
        self.findings: list[Finding] = []
        self._first_SK: np.ndarray | None = None
        self._constant_S = np.ones(layers, dtype=bool)
        self._sums_S = np.zeros(layers, dtype=np.uint64)
        self._starts: dict[int, int] = {}
        self._wholes: dict[int, int] = {}
        self._windows = _Windows(layers, top_k)

    @property
    def experts(self) -> int:
        return self.announced or self.largest + 1

    def add(self, piece: Piece) -> None:
        """Read one checked piece."""
        ids = piece.ids
        top = int(ids.max())
        self.largest = max(self.largest, top)
        rest = ids[ids != top] if top in _FILLS else ids
        self._largest_but_fills = max(self._largest_but_fills, int(rest.max()) if rest.size else -1)
        if lowest(ids) < 0:
            self.missing_S += unrecorded(ids).sum(axis=0)
            unused = ids == UNUSED
            self.unused_S += unused.sum(axis=(0, 2))
            self.dropped_S += unused.all(axis=2).sum(axis=0)
            ids = np.where(unused, 2**self._id_bits - 2, ids)  # −1 becomes the largest number
        if piece.shared_with is not None:
            self.shared[piece.shared_with] = self.shared.get(piece.shared_with, 0) + 1
        kind = f"u{self._id_bits // 8}"
        if piece.ordered is None:
            ordered = sorted_slots(ids.astype(kind, copy=False))
        else:
            ordered = piece.ordered.astype(kind, copy=False)
        loops(ordered.dtype, self.tokens)  # what sorts the following pieces
        rows_tS = word_hashes(ordered.reshape(-1, ids.shape[2])).reshape(ids.shape[:2])
        ordered = ordered.reshape(ids.shape)
        if self._first_SK is None:
            self._first_SK = ordered[0].copy()
        if self._constant_S.any():
            self._constant_S &= (ordered == self._first_SK).all(axis=(0, 2))
        places = (np.arange(self.tokens + 1, self.tokens + 1 + len(ids), dtype=np.uint64) * _ODD) | np.uint64(1)
        self._sums_S += (rows_tS * places[:, None]).sum(axis=0, dtype=np.uint64)
        self._look_for_repeats(rows_tS)
        self._windows.add(ordered)
        self.tokens += len(ids)
        self.samples += 1

    def _look_for_repeats(self, rows_tS: np.ndarray) -> None:
        layers = (np.arange(rows_tS.shape[1], dtype=np.uint64) * np.uint64(2654435761)) | np.uint64(1)
        flat = (rows_tS * layers).sum(axis=1, dtype=np.uint64)
        if len(flat) >= LEAST_SHARED:
            start = hash(flat[:LEAST_SHARED].tobytes())
            self._starts[start] = self._starts.get(start, 0) + 1
        whole = hash(flat.tobytes())
        self._wholes[whole] = self._wholes.get(whole, 0) + 1

    def finish(self) -> None:
        """Draw the conclusions; after the last piece."""
        if self.k_varies and not self.shape.partial:
            # A log that marks unused slots says by a step of them that the token was dropped.
            self.unused_S += self.missing_S * self.shape.top_k
            self.dropped_S += self.missing_S
            self.missing_S = np.zeros_like(self.missing_S)
        self.findings = [
            finding
            for test in (self._strided, self._layers, self._repeats, self._gaps, self._filled)
            for finding in test()
        ]

    @property
    def k_varies(self) -> bool:
        """Whether some tokens use fewer experts than there are slots."""
        return bool(self.unused_S.any())

    def sentences(self) -> list[str]:
        varies = [self._varying()] if self.k_varies else []
        return varies + [finding.sentence for finding in self.findings]

    def _varying(self) -> str:
        slots, dropped = int(self.unused_S.sum()), int(self.dropped_S.sum())
        share = 100 * slots / (self.tokens * len(self.unused_S) * self.shape.top_k)
        most = int(self.unused_S.argmax())
        sentence = f"{share:.2g} % of slots are unused: k varies (most at {self.shape.layers[most]})"
        if dropped:
            sentence += f"; {dropped:,} times a token was dropped at a layer: it used no expert there"
        return sentence

    def artefacts(self) -> list[Finding]:
        """What stops an import."""
        return [finding for finding in self.findings if finding.kind == "artefact"]

    def to_json(self) -> dict[str, Any]:
        """Findings of the run: ``import_doctor`` and ``shared_prefixes``."""
        prefixes: list[dict[str, Any]] = [
            {"sample": name, "tokens": n, "times": times} for (name, n), times in self.shared.items()
        ]
        prefixes.sort(key=lambda row: (-row["tokens"] * row["times"], row["sample"]))
        found: dict[str, Any] = {}
        if self.findings:
            found["import_doctor"] = [finding.to_json() for finding in self.findings]
        if self.k_varies:
            found["unused_slots"] = {
                "share": float(self.unused_S.sum() / (self.tokens * len(self.unused_S) * self.shape.top_k)),
                "slots": int(self.unused_S.sum()),
                "dropped": int(self.dropped_S.sum()),
            }
        return found | ({"shared_prefixes": prefixes[:1000]} if prefixes else {})

    def _strided(self) -> list[Finding]:
        layers = self._windows.artefacts(self.experts)
        if not layers.any():
            return []
        each = self.experts // self.shape.top_k
        return [
            Finding(
                "strided view",
                "artefact",
                f"at {self._named(layers)} every {each} consecutive tokens visit all {self.experts} experts exactly "
                "once: a view of the scores that was read flat (strides ignored), not what the router chose; log a "
                "contiguous copy of the top-k ids",
            )
        ]

    def _layers(self) -> list[Finding]:
        found = []
        if self.tokens < LEAST_TOKENS or self.experts <= self.shape.top_k:
            return []
        constant = self._constant_S & (self.missing_S < self.tokens)
        if constant.any():
            every = bool(constant.all())
            found.append(
                Finding(
                    "layers that never change",
                    "artefact" if every else "warning",
                    f"at {'every layer' if every else self._named(constant)} all {self.tokens:,} tokens have the same "
                    f"expert{'s' if self.shape.top_k > 1 else ''}: "
                    + ("the log repeats one row" if every else "a collapsed router, or a layer that was not recorded"),
                )
            )
        groups: dict[int, list[int]] = {}
        for layer in np.flatnonzero(~self._constant_S).tolist():
            groups.setdefault(int(self._sums_S[layer]), []).append(layer)
        for same in groups.values():
            if len(same) > 1:
                where = np.zeros(len(self._sums_S), dtype=bool)
                where[same] = True
                found.append(
                    Finding(
                        "equal layers",
                        "artefact",
                        f"{self._named(where)} hold the same ids for all {self.tokens:,} tokens: one layer was written "
                        "under several numbers",
                    )
                )
        return found

    def _repeats(self) -> list[Finding]:
        wholes = sum(times - 1 for times in self._wholes.values())
        starts = sum(times - 1 for times in self._starts.values())
        found = []
        if wholes and not self._constant_S.all():
            found.append(
                Finding(
                    "repeated samples",
                    "warning",
                    f"{wholes:,} of {self.samples:,} samples repeat all decisions of an earlier one: each is counted",
                )
            )
        if starts > wholes and not self._constant_S.all():
            found.append(
                Finding(
                    "shared prefixes",
                    "warning",
                    f"{starts - wholes:,} sample(s) begin with the same {LEAST_SHARED} decisions as an earlier one: "
                    "prefixes that requests share are counted several times",
                )
            )
        return found

    def _filled(self) -> list[Finding]:
        below = self._largest_but_fills + 1
        if self.announced or self.largest not in _FILLS or 2 * below > self.largest + 1:
            return []
        return [
            Finding(
                "slots without an expert",
                "warning",
                f"expert {self.largest} is chosen, and no other{f' above {below - 1}' if below else ''}: engines fill "
                f"slots that hold no expert with {self.largest}, so say --experts if there are fewer",
            )
        ]

    def _gaps(self) -> list[Finding]:
        found = []
        some = self.missing_S > 0
        if some.any():
            rare = self.missing_S > 0.9 * self.tokens
            total = int(self.missing_S.sum())
            found.append(
                Finding(
                    "unrecorded steps",
                    "warning",
                    f"{total:,} of {self.tokens * len(some):,} decisions are not in the log (at {self._named(some)}): "
                    "these steps are kept as unknown"
                    + (f"; {self._named(rare)} may belong to a draft model" if rare.any() and not rare.all() else ""),
                )
            )
        if (
            self.announced
            and self.tokens * self.shape.top_k >= 20 * self.announced
            and self.largest < self.announced // 2
        ):
            found.append(
                Finding(
                    "unused ids",
                    "warning",
                    f"no id is above {self.largest}, but there are {self.announced} experts a layer: is that right?",
                )
            )
        return found

    def _named(self, layers_S: np.ndarray) -> str:
        names = [self.shape.layers[layer] for layer in np.flatnonzero(layers_S).tolist()]
        return ", ".join(names[:_MOST_NAMED]) + (f" … ({len(names)} layers)" if len(names) > _MOST_NAMED else "")


class _Windows:
    """Tests whether windows of M/K consecutive tokens are partitions of all experts, once M is known."""

    def __init__(self, layers: int, top_k: int) -> None:
        self._top_k = top_k
        self._kept: list[np.ndarray] = []
        self._held = 0
        self._layers = layers

    def add(self, ordered: np.ndarray) -> None:
        """Keep the ids of the first tokens of some samples: an artefact of strides is everywhere."""
        if self._held < MOST_HELD:
            part = ordered[: MOST_HELD - self._held]
            self._kept.append(part.astype(np.int32))
            self._held += len(part)

    def artefacts(self, experts: int) -> np.ndarray:
        """(S,) bool: layers of which nearly all windows are partitions, where chance makes that all but impossible."""
        each = experts // self._top_k
        if experts % self._top_k or each < 2 or not self._kept:
            return np.zeros(self._layers, dtype=bool)
        windows, partitions = 0, np.zeros(self._layers, dtype=np.int64)
        for ids in self._kept:
            n = len(ids) // each
            if n:
                blocks = ids[: n * each].reshape(n, each, self._layers, self._top_k).transpose(0, 2, 1, 3)
                flat = np.sort(blocks.reshape(n, self._layers, experts), axis=2)
                partitions += (flat == np.arange(experts)).all(axis=2).sum(axis=0)
                windows += n
        # ln of the chance that the sets of one window are disjoint: (M−K choose K) / (M choose K) · …
        chance = sum(
            _ln_choose(experts - i * self._top_k, self._top_k) - _ln_choose(experts, self._top_k) for i in range(each)
        )
        # Decode steps behind a prompt dilute the windows, so a tenth of them is enough where chance gives none.
        ways = np.array([_ln_choose(windows, int(n)) for n in partitions])
        return (partitions >= np.maximum(2, 0.1 * windows)) & (-(ways + partitions * chance) > SURE)


MOST_HELD = 65_536
"""tokens that are kept for the test of strides"""


def _ln_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
