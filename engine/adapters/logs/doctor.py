"""Doctor of imports: wrong data that looks right, found in one pass over a log before anything is written.

An *artefact* makes numbers false and stops an import; a *warning* may be real (a collapsed router) or a fault of the
log; both are sentences on the page and at the end of the command.

Shapes: t tokens of a piece, S layers, K slots, M experts.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokenpaths.engine.adapters.logs.fill_values import FILL_VALUES
from tokenpaths.engine.adapters.logs.layer_patterns import LEAST_TOKENS, LEAST_VARIED, SURE, LayerSets, StridedWindows
from tokenpaths.engine.adapters.logs.pieces.announced import LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED, Piece, lowest, unrecorded
from tokenpaths.engine.adapters.logs.pieces.wording import first_of
from tokenpaths.engine.analysis.compiled.loops import loops
from tokenpaths.engine.analysis.path_statistics import sorted_slots, word_hashes

_MOST_NARROW = 254
"""most experts whose ids are compared as 8 bits: the two numbers above stand for unused slots and unknown steps"""
LEAST_SHARED = 16
"""tokens at the beginning of samples that are compared for prefixes counted several times"""
_FILLS = FILL_VALUES[1:]
"""those that no expert has unless there are as many; 0 is the first expert everywhere"""
LEAST_DEAD = 6
"""experts without a token, of all layers, that must lie right below a fill value to make it one: some may be dead"""
_MOST_NAMED = 6
_MOST_LAYERS = 200
"""more than any model is known to have"""


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
        self._sets = LayerSets(layers)
        self._complete: LayerSets | None = None
        """of the tokens that lack no layer; None: none lacks any"""
        self._first_SK = np.zeros((layers, top_k), dtype=np.int64)
        """experts of each layer's first decision"""
        self._common_SK = np.ones((layers, top_k), dtype=bool)
        """which of these all tokens have"""
        self._known_S = np.zeros(layers, dtype=bool)
        self._uniform: dict[int, int] = {}
        """expert -> tokens that have it, and it alone, at every layer"""
        self._zeros_S = np.zeros(layers, dtype=np.int64)
        """tokens with expert 0, where K is 1"""
        self._starts: dict[int, int] = {}
        self._wholes: dict[int, int] = {}
        self._long_repeats = 0
        self._windows = StridedWindows(layers, top_k)

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
        lacking_tS = None
        if lowest(ids) < 0:
            missing, unused = unrecorded(ids), ids == UNUSED
            dropped = unused.all(axis=2)
            self.missing_S += missing.sum(axis=0)
            self.unused_S += unused.sum(axis=(0, 2))
            self.dropped_S += dropped.sum(axis=0)
            lacking_tS = missing | dropped
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
        if lacking_tS is not None and self._complete is None:
            self._complete = copy.deepcopy(self._sets)
        if self._complete is not None:
            self._complete.add(rows_tS if lacking_tS is None else rows_tS[~lacking_tS.any(axis=1)], None)
        tokens_t = self._sets.add(rows_tS, lacking_tS)
        if self.shape.top_k == 1:
            self._look_for_zeros(piece.ids[:, :, 0])
        else:
            self._look_for_common(ordered, lacking_tS)
        self._look_for_repeats(tokens_t)
        self._windows.add(ordered)
        self.tokens += len(ids)
        self.samples += 1

    def _look_for_common(self, ordered: np.ndarray, lacking_tS: np.ndarray | None) -> None:
        """Which experts of each layer's first decision all tokens have."""
        for layer in np.flatnonzero(~self._known_S).tolist():
            known = np.arange(len(ordered)) if lacking_tS is None else np.flatnonzero(~lacking_tS[:, layer])
            if len(known):
                self._first_SK[layer] = ordered[known[0], layer]
                self._common_SK[layer] = self._first_SK[layer] < 2**self._id_bits - 2
                self._known_S[layer] = True
        # A few tokens tell of nearly all layers that there is none.
        for part in (slice(0, LEAST_TOKENS), slice(LEAST_TOKENS, None)):
            for layer in np.flatnonzero(self._common_SK.any(axis=1) & self._known_S).tolist():
                has = (ordered[part, layer, :, None] == self._first_SK[layer]).any(axis=1)
                if lacking_tS is not None:
                    has |= lacking_tS[part, layer, None]
                self._common_SK[layer] &= has.all(axis=0)

    def _look_for_zeros(self, ids_tS: np.ndarray) -> None:
        """Tokens that have one expert at every layer, of a log of one expert a token."""
        self._zeros_S += (ids_tS == 0).sum(axis=0)
        same = ids_tS[(ids_tS == ids_tS[:, :1]).all(axis=1), 0]
        for expert, count in zip(*np.unique(same, return_counts=True), strict=True):
            self._uniform[int(expert)] = self._uniform.get(int(expert), 0) + int(count)

    def _look_for_repeats(self, tokens_t: np.ndarray) -> None:
        """Samples that are alike, by a number for the sets of each token."""
        whole = hash(tokens_t.tobytes())
        if len(tokens_t) >= LEAST_SHARED:
            start = hash(tokens_t[:LEAST_SHARED].tobytes())
            self._starts[start] = self._starts.get(start, 0) + 1
            self._long_repeats += whole in self._wholes
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
            for test in (
                self._axes,
                self._strided,
                self._layers,
                self._common,
                self._repeats,
                self._gaps,
                self._filled,
                self._zeros,
            )
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

    @property
    def _known(self) -> np.ndarray:
        """(S,) tokens that have a decision at each layer."""
        return self.tokens - self.missing_S - self.dropped_S

    @property
    def _constant_S(self) -> np.ndarray:
        constant: np.ndarray = self._sets.varied_S == 0
        return constant

    def _axes(self) -> list[Finding]:
        """More layers than a model has, or than there are tokens where only the place of an axis says what it is."""
        layers = len(self.shape.layers)
        if layers <= _MOST_LAYERS and not (self.shape.by_axes and layers > self.tokens):
            return []
        return [
            Finding(
                "many layers",
                "warning",
                f"{layers:,} layers and {self.tokens:,} token{'' if self.tokens == 1 else 's'}: the axes of the log "
                "may lie in another order; ids are (tokens, layers, top-k), scores (layers, tokens, experts)",
            )
        ]

    def _strided(self) -> list[Finding]:
        whole, parts = self._windows.artefacts(self.experts)
        if not (whole | parts).any():
            return []
        each = self.experts // self.shape.top_k
        how = (
            f"every {each} consecutive tokens visit all {self.experts} experts exactly once"
            if whole.any()
            else f"consecutive tokens share no expert until all {self.experts} were used"
        )
        return [
            Finding(
                "strided view",
                "artefact",
                f"at {self._named(whole | parts)} {how}: a view of the scores that was read flat (strides ignored), "
                "not what the router chose; log a contiguous copy of the top-k ids",
            )
        ]

    def _layers(self) -> list[Finding]:
        found = []
        if self.tokens < LEAST_TOKENS or self.experts <= self.shape.top_k:
            return []
        constant = self._constant_S & (self._known >= LEAST_TOKENS)
        if constant.any():
            every = bool(constant.all())
            found.append(
                Finding(
                    "layers that never change",
                    "artefact" if every else "warning",
                    f"at {self._where(constant)} {self._all_tokens(constant)} have the same "
                    f"expert{'s' if self.shape.top_k > 1 else ''}: "
                    + ("the log repeats one row" if every else "a collapsed router, or a layer that was not recorded"),
                )
            )
        groups, complete = dict.fromkeys(self._sets.equal(1), f"{self.tokens:,} tokens"), self._complete
        if complete is not None and complete.tokens >= LEAST_TOKENS:
            tokens = f"{complete.tokens:,} tokens that lack no layer"
            groups = dict.fromkeys(complete.equal(LEAST_VARIED), tokens) | groups
        for same, tokens in sorted(groups.items(), key=lambda group: min(group[0])):
            if any(same < other for other in groups):
                continue
            where = np.zeros(len(constant), dtype=bool)
            where[list(same)] = True
            found.append(
                Finding(
                    "equal layers",
                    "artefact",
                    f"{self._named(where)} hold the same ids for all {tokens}: one layer was written under several "
                    "numbers",
                )
            )
        return found

    def _common(self) -> list[Finding]:
        """An expert that all tokens have beside others, which chance makes all but impossible."""
        if self.experts <= self.shape.top_k or self.shape.top_k == 1:
            return []
        sure = self._known * math.log(self.experts / self.shape.top_k) > SURE
        common = self._common_SK.any(axis=1) & ~self._constant_S & sure & (self._known >= LEAST_TOKENS)
        if not common.any():
            return []
        experts = first_of(sorted(set(self._first_SK[common][self._common_SK[common]].tolist())), _MOST_NAMED)
        return [
            Finding(
                "one expert everywhere",
                "warning",
                f"at {self._where(common)} {self._all_tokens(common)} have an expert in common ({experts}): a shared "
                "expert that the log lists with the others, or a choice that was not recorded",
            )
        ]

    def _repeats(self) -> list[Finding]:
        wholes = sum(times - 1 for times in self._wholes.values())
        # Samples that repeat an earlier one as a whole begin alike as well.
        begin_alike = sum(times - 1 for times in self._starts.values()) - self._long_repeats
        found = []
        if wholes and not self._constant_S.all():
            found.append(
                Finding(
                    "repeated samples",
                    "warning",
                    f"{wholes:,} of {self.samples:,} samples repeat all decisions of an earlier one: each is counted",
                )
            )
        if begin_alike and not self._constant_S.all():
            found.append(
                Finding(
                    "shared prefixes",
                    "warning",
                    f"{begin_alike:,} sample(s) begin with the same {LEAST_SHARED} decisions as an earlier one: "
                    "prefixes that requests share are counted several times",
                )
            )
        return found

    def _filled(self) -> list[Finding]:
        below = self._largest_but_fills + 1
        if self.announced or self.largest not in _FILLS:
            return []
        # If all ids up to the largest were experts, a quarter of an even share would leave hardly one without a token.
        without = self.largest - below
        decisions = int(((self.tokens - self.missing_S) * self.shape.top_k - self.unused_S).sum())
        dead = without * len(self.missing_S) >= LEAST_DEAD and decisions * without > 4 * SURE * (self.largest + 1)
        if 2 * below > self.largest + 1 and not dead:
            return []
        return [
            Finding(
                "slots without an expert",
                "warning",
                f"expert {self.largest} is chosen, and no other{f' above {below - 1}' if below else ''}: engines fill "
                f"slots that hold no expert with {self.largest}, so say --experts if there are fewer",
            )
        ]

    def _zeros(self) -> list[Finding]:
        """Rows of zeros where K is 1: far more tokens with expert 0 everywhere than by chance, or with another one."""
        zeros = self._uniform.get(0, 0)
        rest = self.tokens - zeros
        others = max((count for expert, count in self._uniform.items() if expert > 0), default=0)
        if not rest or len(self._zeros_S) == 1:
            return []
        chance = float(np.prod((self._zeros_S - zeros) / rest)) * rest
        if zeros < LEAST_TOKENS + 4 * (others + chance):
            return []
        return [
            Finding(
                "rows of zeros",
                "warning",
                f"{zeros:,} of {self.tokens:,} tokens have expert 0 at every layer: with one expert a token, rows that "
                "an engine fills with zeros (prompts, padding) cannot be told from that",
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

    def _where(self, layers_S: np.ndarray) -> str:
        return "every layer" if layers_S.all() else self._named(layers_S)

    def _all_tokens(self, layers_S: np.ndarray) -> str:
        """The tokens that these layers have decisions of."""
        count = int(self._known[layers_S].min())
        return f"all {count:,} tokens" + (" that have a decision there" if count < self.tokens else "")

    def _named(self, layers_S: np.ndarray) -> str:
        names = [self.shape.layers[layer] for layer in np.flatnonzero(layers_S).tolist()]
        return ", ".join(names[:_MOST_NAMED]) + (f" … ({len(names)} layers)" if len(names) > _MOST_NAMED else "")
