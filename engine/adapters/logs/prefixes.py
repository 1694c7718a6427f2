"""Prefixes that several choices or turns share, counted once.

An engine returns the decisions of the whole prompt with every choice and every turn of a conversation. A sample keeps
what is new; the beginning that it shares with an earlier one (equal vocabulary ids, equal decisions) is left out and
counted, and so is a sample that is the beginning of an earlier one. A vocabulary id that is not known matches any.

Samples are kept as a tree of their tokens, 8 bytes each, in which a prefix that several share stands once.

Shapes: t tokens of a piece, S layers, K slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.analysis.path_statistics import word_hashes

BLOCK = 16
"""tokens from which on an equal beginning is a prefix, whatever the samples are"""
SHARED = "{n} token{s} of prefixes that choices or turns share {are} counted once"
REPEATED = "{n} choice{s} with the decisions of an earlier choice of the same request or list {are} left out"
CONTAINED = "{n} choice{s} or turn{s} that {are} the beginning of an earlier one {are} left out"
_MULTIPLIER = 0xD6E8FEB86659FD93
_ID_BITS = np.uint64(32)
_ID = np.uint64(2**32 - 1)
"""bits of a word that hold the vocabulary id plus one, 0 where it is not known"""
_DECISIONS = 2**64 - 2**32
"""bits of a word that hold the sum of the decisions"""


@dataclass(slots=True)
class _Node:
    """Tokens that samples have in common behind those of the nodes above, up to where they part or one ends."""

    words: np.ndarray
    """as of ``_words``"""
    name: str
    """of the first sample that had them"""
    request: str | None
    """of the last sample that had them"""
    children: dict[int, _Node] = field(default_factory=dict)
    """by their first word, and one of each first decision by that alone"""
    is_end: bool = False
    """whether a sample ends here, or a prompt of known ids that is shorter than a block"""
    is_sample: bool = False
    """whether a sample ends here"""
    last_ended: str | None = None
    """request of the last sample that ended here"""

    def child(self, word: int) -> _Node | None:
        """The child whose first token may be this one."""
        known = self.children.get(word)
        return self.children.get(word & _DECISIONS) if known is None else known

    def add(self, child: _Node) -> None:
        word = int(child.words[0])
        self.children[word] = child
        self.children.setdefault(word & _DECISIONS, child)

    def split(self, at: int) -> None:
        """Keep the first words; the others become a child."""
        below = replace(self, words=self.words[at:])
        self.words, self.children = self.words[:at], {}
        self.is_end = self.is_sample = False
        self.last_ended = None
        self.add(below)


def without_prefixes(pieces: Iterable[Piece | tuple[str, int]]) -> Iterator[Piece | tuple[str, int]]:
    """The pieces without what they share with the beginning of earlier ones, and remarks on that."""
    root = _Node(np.zeros(0, np.uint64), "", None)
    for piece in pieces:
        if not isinstance(piece, Piece) or not piece.num_tokens:  # the latter is refused by whoever checks it
            yield piece
            continue
        words = _words(piece)
        name = piece.source or piece.where
        path = _path(root, words)
        remark, shared = _shared(piece, words, path)
        holder = _holder(path, shared)
        _insert(root, piece, words, path, name)
        if remark:
            yield remark, 1
            yield SHARED, shared
        elif shared:
            counted = (*piece.counted, (SHARED, shared))
            rest = piece.part(slice(shared, None))
            yield replace(rest, counted=counted, shared_with=(holder, shared), source=f"{name}, from token {shared} on")
        else:
            yield piece


def _words(piece: Piece) -> np.ndarray:
    """(t,) uint64: a sum of the decisions and the vocabulary id of each token."""
    # One width whatever the dtype of a piece: equal decisions have equal sums.
    sums = word_hashes(piece.ids.reshape(len(piece.ids), -1).astype(np.uint16))
    sums ^= sums >> np.uint64(31)
    words = (sums * np.uint64(_MULTIPLIER)) & ~_ID
    if piece.token_id is not None and len(piece.token_id) == len(words):
        words |= (piece.token_id.astype(np.int64) + 1).astype(np.uint64) & _ID
    return words


def _path(root: _Node, words: np.ndarray) -> list[tuple[_Node, int]]:
    """(node, number of its words) of the longest known beginning; all nodes but the last one are there as a whole."""
    node, at, path = root, 0, list[tuple[_Node, int]]()
    while at < len(words) and (child := node.child(int(words[at]))) is not None:
        alike = _alike(child.words, words[at:])
        if alike:
            path.append((child, alike))
        if alike < len(child.words):
            break
        node, at = child, at + alike
    return path


def _alike(some: np.ndarray, others: np.ndarray) -> int:
    """Number of equal words at the beginning."""
    n = min(len(some), len(others))
    different = np.flatnonzero(some[:n] != others[:n])
    if len(different):
        some, others = some[different], others[different]
        known = (some & _ID != 0) & (others & _ID != 0)
        different = different[known | ((some ^ others) >> _ID_BITS != 0)]
    return int(different[0]) if len(different) else n


def _shared(piece: Piece, words: np.ndarray, path: list[tuple[_Node, int]]) -> tuple[str, int]:
    """The remark on a sample that is left out ("" for all others), and its tokens that are known."""
    whole = sum(alike for _, alike in path)
    own = sum(alike for node, alike in path if piece.request is not None and node.request == piece.request)
    if own < (min(BLOCK, piece.prompt) if piece.prompt else 1):
        own = 0
    ended = len(words) == whole and path[-1][0].is_sample and path[-1][1] == len(path[-1][0].words)
    if ended and own == whole and path[-1][0].last_ended == piece.request:
        return REPEATED, whole
    if ended or not _is_prefix(piece, words, path, whole):  # a request that was sent again made its decisions again
        whole = own
    return CONTAINED if whole == len(words) else "", whole


def _is_prefix(piece: Piece, words: np.ndarray, path: list[tuple[_Node, int]], whole: int) -> bool:
    """Whether a known beginning is one because of which samples of several requests belong together."""
    first = words[:whole]
    constant = not ((first ^ words[0]) >> _ID_BITS).any()
    if whole < 2 or constant and ((first & _ID == 0).any() or (first == words[0]).all()):
        return False  # of rows that are all equal nothing is known
    at, ends = 0, {_known_prompt(piece, words), len(words)}
    for node, alike in path:
        at += alike
        if node.is_end and alike == len(node.words):
            ends.add(at)
    return whole >= BLOCK or any(2 <= end <= whole for end in ends)


def _known_prompt(piece: Piece, words: np.ndarray) -> int:
    """Tokens of a prompt whose vocabulary ids are known, else 0."""
    prompt = piece.prompt or 0
    return prompt if prompt <= len(words) and (words[:prompt] & _ID != 0).all() else 0


def _holder(path: list[tuple[_Node, int]], shared: int) -> str:
    """The first sample that had these tokens at its beginning."""
    for node, alike in path:
        shared -= alike
        if shared <= 0:
            return node.name
    return ""


def _insert(root: _Node, piece: Piece, words: np.ndarray, path: list[tuple[_Node, int]], name: str) -> None:
    nodes = [node for node, _ in path]
    known = sum(alike for _, alike in path)
    if path and path[-1][1] < len(nodes[-1].words):
        nodes[-1].split(path[-1][1])
    if known < len(words):
        leaf = _Node(words[known:].copy(), name, piece.request)
        (nodes[-1] if nodes else root).add(leaf)
        nodes.append(leaf)
    for node in nodes:
        node.request = piece.request
    nodes[-1].is_end = nodes[-1].is_sample = True
    nodes[-1].last_ended = piece.request
    if 0 < (prompt := _known_prompt(piece, words)) < BLOCK:
        node, at = next((node, at) for node, at in _places(nodes) if at + len(node.words) >= prompt)
        if prompt < at + len(node.words):
            node.split(prompt - at)
        node.is_end = True


def _places(nodes: list[_Node]) -> Iterator[tuple[_Node, int]]:
    """Each node with the number of tokens above it."""
    at = 0
    for node in nodes:
        yield node, at
        at += len(node.words)
