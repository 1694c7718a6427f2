"""What only the whole of a log can tell, gathered while it is read once: sentences for the run and its reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from tokenpaths.engine.adapters.logs.log import Log, Piece

_MOST_NAMED = 8


class Seen:
    """Watches the pieces of a log go by."""

    def __init__(self, num_layers: int) -> None:
        self.samples = 0
        self.with_token_ids = 0
        self.chosen = np.zeros(num_layers, dtype=bool)
        """layers where some token chose another expert than 0"""

    def through(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """The pieces as they come."""
        for piece in pieces:
            self.samples += 1
            self.with_token_ids += piece.token_id is not None
            if not self.chosen.all():
                self.chosen |= piece.ids.any(axis=(0, 2))
            yield piece

    def notes(self, log: Log, tokenizer: bool) -> list[str]:
        """What to say of the whole log, in sentences."""
        said = []
        still = [name for name, chosen in zip(log.shape.layers, self.chosen, strict=True) if not chosen]
        if log.shape.top_k == 1 and still and (log.experts or 0) > 1:
            named = ", ".join(still[:_MOST_NAMED]) + (" …" if len(still) > _MOST_NAMED else "")
            said.append(
                f"every token has expert 0 at {named}: with one expert a token, dense layers that an engine fills "
                "with zeros cannot be told from that"
            )
        if self.with_token_ids and self.with_token_ids < self.samples:
            without = self.samples - self.with_token_ids
            said.append(f"{without:,} of {self.samples:,} samples have no token ids, or not as many as decisions")
        if tokenizer and not self.with_token_ids:
            said.append("the log holds no token ids, so the tokenizer has nothing to show")
        return said
