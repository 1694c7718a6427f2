"""What stands beside the decisions of a batch, as a model's inputs: vocabulary ids, and which tokens are padding.

Shapes: B sequences, T tokens of the longest one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.wording import number_of, unread_note
from tokenpaths.engine.base.errors import UserError

INPUTS = WORDS, MASK = "input_ids", "attention_mask"
"""inputs that have a number a token"""
BESIDE_SCORES = (WORDS, MASK, "position_ids", "token_type_ids", "labels")
"""arrays of a model's inputs, which are saved with the scores of its routers"""
PADDING = "{n} token{s} of padding, as the attention_mask says, {are} left out"


@dataclass(frozen=True)
class BatchInputs:
    """The inputs of a batch."""

    shape: tuple[int, int]
    """(B, T)"""
    words: np.ndarray | None
    """(B, T) vocabulary ids"""
    mask: np.ndarray
    """(B, T) bool: no padding"""
    note: str
    """what is not read"""

    def tokens(self, sequence: int) -> slice | np.ndarray:
        """Where the tokens of a sequence are: a slice, which copies nothing, unless padding lies between them."""
        places = np.flatnonzero(self.mask[sequence])
        if len(places) and places[-1] - places[0] >= len(places):
            return places
        return slice(int(places[0]), int(places[-1]) + 1) if len(places) else slice(0)

    def padding(self, sequence: int) -> int:
        """Tokens of padding of a sequence."""
        return int((~self.mask[sequence]).sum())


def input_sizes(beside: dict[str, Any]) -> dict[str, int]:
    """How many numbers each of the inputs has that count the tokens."""
    return {name: array.size for name in INPUTS if isinstance(array := beside.get(name), np.ndarray)}


def check_axes(sizes: dict[str, int], what: str, axes: str, num_tokens: int, num_others: int, hint: str = "") -> None:
    """Refuse decisions whose tokens lie along another axis than they should, as the inputs beside them count tokens.

    Args:
        sizes: ``input_sizes``.
        what: file, array and shape, for the message.
        axes: as they should be.
        num_tokens: along the axes that should be those of the tokens.
        num_others: along those that may be instead.
        hint: what else to do, as an ending of the sentence.
    """
    if num_tokens in sizes.values() or num_others not in sizes.values():
        return
    name = next(name for name, size in sizes.items() if size == num_others)
    raise UserError(
        f"{what} should be {axes}, so of {number_of(num_tokens, 'token')}, but {name} has {num_others:,} numbers, as "
        f"many as another axis; save it with its axes in that order (torch.transpose){hint}, or without {name} if that "
        "is of other tokens",
        field="file",
    )


def inputs_beside(beside: dict[str, Any], num_sequences: int, num_tokens: int, known: set[str]) -> BatchInputs:
    """The inputs among arrays by name.

    Decisions of one sequence may be those of a batch whose sequences follow each other: transformers returns scores of
    routers so, for as many tokens as the inputs have.

    Args:
        beside: all that the file holds by name.
        num_sequences, num_tokens: as the decisions have them.
        known: names of the decisions.
    """
    size = num_sequences * num_tokens
    whole = {
        name: array
        for name in (WORDS, MASK)
        if isinstance(array := beside.get(name), np.ndarray) and array.size == size
    }
    shape = num_sequences, num_tokens
    if num_sequences == 1:
        shape = next(((a.shape[0], a.shape[1]) for a in whole.values() if a.ndim == 2), shape)
    fits = {name: array.reshape(shape) for name, array in whole.items() if array.shape in (shape, (size,))}
    words, mask = fits.get(WORDS), fits.get(MASK)
    if words is not None and words.dtype.kind not in "iu":
        words = None
    if mask is not None and not np.isin(mask, (0, 1)).all():  # numbers of packed sequences, or what is added to scores
        mask = None
    read = {name for name, array in ((WORDS, words), (MASK, mask)) if array is not None}
    return BatchInputs(
        shape,
        None if words is None else words.astype(np.int64),
        np.ones(shape, dtype=bool) if mask is None else mask.astype(bool),
        unread_note("arrays", [str(name) for name in beside if str(name) not in known | read]),
    )
