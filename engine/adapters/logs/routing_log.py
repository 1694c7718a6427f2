"""A recognised routing log: its shape, a way through its pieces, and the layers of it that are no decisions.

A log is read piece by piece; at most one sample and one batch are in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tokenpaths.engine.adapters.logs.doctor import Survey
from tokenpaths.engine.adapters.logs.fill_values import EMPTY, without_fills
from tokenpaths.engine.adapters.logs.pieces import LogShape, Piece, check_piece, few_names, with_counts
from tokenpaths.engine.adapters.logs.spool import PieceSpool
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.progress import run_with_progress

NOTHING_CAPTURED = (
    "every id is 0, so no decision was captured; start the engine with --enable-return-routed-experts, and for SGLang "
    "ask with return_routed_experts"
)

SAMPLES = "{n} response{s} or sample{s} {are} left out"
"""what a reason for leaving out stands behind"""
MOST_REASONS = 5
"""kept of a log; what was left out for others is counted"""


@dataclass
class Log:
    """Content of a log. Made by ``formats.open_log``; each call of ``pieces()`` reads from the beginning."""

    file: Path
    format: str
    shape: LogShape
    experts: int | None
    """number of experts per layer; None: not stated, determined by the largest id"""
    read: Callable[[], Iterator[Piece]] = field(repr=False)
    """the format's reader: pieces in file order, not validated"""
    model: str | None = None
    note: str = ""
    checked: bool = False
    """the pieces that ``read`` yields are cut and checked already, by a confined child"""
    spool: PieceSpool | None = None
    """what the first reading kept for the second"""
    survey: Survey | None = None
    """what the whole log says, once it has been read (``counting``)"""
    beside: tuple[Path, ...] = ()
    """files beside the log that are read too"""
    skip_bad: bool = False
    """leave out samples that are invalid, and count them"""
    content: str | None = None
    """digest of what the file holds, where each of several tensor-parallel ranks writes a copy"""

    def pieces(self) -> Iterator[Piece]:
        """Validated samples in order.

        Raises:
            UserError: the log is invalid; the message names file and line or row.
        """
        if self.spool is not None and (kept := self.spool.take()) is not None:
            yield from kept
            return
        if self.checked:
            yield from self.read()
            return
        yield from with_counts(self._checked())

    def _checked(self) -> Iterator[Piece | tuple[str, int]]:
        for piece in self.read():
            for part in piece.named().cut():
                kept = without_fills(part, self.shape.partial, self.experts)
                if kept is None:
                    yield EMPTY, part.num_tokens
                    continue
                try:
                    ordered = check_piece(kept, self.shape, self.experts)
                except UserError as error:
                    if not self.skip_bad:
                        raise
                    yield skipped(str(error)), 1
                    continue
                yield kept if ordered is None else replace(kept, ordered=ordered)

    def counted(self, folder: Path | None = None) -> Log:
        """The log with its survey and its number of experts: the whole log is read once.

        What was read is kept in temporary files, from which ``pieces`` of the returned log reads the next time.

        Args:
            folder: of these files; by default the system's temporary folder.

        Raises:
            UserError: as ``pieces``.
        """
        return run_with_progress(self.counting(folder), lambda tokens: None)

    def counting(self, folder: Path | None = None) -> Generator[int, None, Log]:
        """``counted`` as a generator, for callers that report progress: yields the number of tokens read."""
        if self.survey is not None:
            return self
        survey, spool = Survey(self.shape, self.experts), PieceSpool(folder)
        for piece in self.pieces():
            survey.add(piece)
            spool.add(piece)
            yield survey.tokens
        if not survey.tokens:
            raise UserError(f"{self.file}: holds no token", field="file")
        survey.finish()
        log = replace(self, spool=spool)
        if self.experts is not None:
            return replace(log, survey=survey)
        guess = f"{survey.experts} experts a layer: the largest id in the log, there may be more"
        note = "; ".join(filter(None, [self.note, guess]))
        return replace(log, experts=survey.experts, note=note, survey=survey)


def skipped(reason: str, what: str = SAMPLES) -> str:
    """The remark on what was left out because it cannot be read."""
    return f"{what}: " + reason[:300].replace("{", "(").replace("}", ")")


def few_reasons(remarks: Iterable[tuple[str, int]], reasons: dict[str, list[str]]) -> Iterator[tuple[str, int]]:
    """Remarks with the first ``MOST_REASONS`` of each kind alone; ``reasons`` has those so far."""
    for remark, count in remarks:
        head, parted, reason = remark.partition(" left out: ")
        known = reasons.setdefault(head, [])
        if parted and reason not in known:
            if len(known) >= MOST_REASONS:
                yield head.replace("{n}", "{n} more", 1) + " left out", count
                continue
            known.append(reason)
        yield remark, count


def without_copies(logs: list[Log]) -> tuple[list[Log], str]:
    """The logs without what tensor-parallel ranks wrote again, and a note on those files."""
    kept: dict[str, Log] = {}
    copies = [log.file.name for log in logs if kept.setdefault(log.content or str(log.file), log) is not log]
    return list(kept.values()), few_names("files that are copies, as tensor-parallel ranks write them", copies)


def without_dense_layers(log: Log) -> Log:
    """The log without its dense layers, which have no gate and are filled with zeros by the engine.

    With K > 1 no token can choose expert 0 K times, so a layer of zeros in the first piece is no decision. With K = 1
    it could be one and is kept; ``importing.LogNotes`` notes it.

    Raises:
        UserError: no layer is left; or, while reading, an omitted layer has decisions.
    """
    first = next(log.read(), None)
    if first is None or log.shape.top_k == 1:
        return log
    has_choices = (first.ids > 0).any(axis=(0, 2))  # below 0 are slots that hold no decision
    if has_choices.all():
        return log
    if not has_choices.any():
        raise UserError(f"{first.where}: {NOTHING_CAPTURED}", field="file")
    routed, dense = np.flatnonzero(has_choices), np.flatnonzero(~has_choices)

    def read() -> Iterator[Piece]:
        for piece in log.read():
            late = (piece.ids[:, dense] > 0).any(axis=(0, 2))
            if late.any():
                raise UserError(
                    f"{piece.where}: {log.shape.layers[dense[late][0]]} has decisions here, but zeros only in "
                    f"{first.where}; a layer is dense throughout or nowhere, so one of them was not captured whole",
                    field="file",
                )
            weights = None if piece.weights is None else piece.weights[:, routed]
            yield replace(piece, ids=piece.ids[:, routed], weights=weights)

    names = tuple(log.shape.layers[layer] for layer in routed.tolist())
    note = f"{len(dense)} dense layers, filled with zeros by the engine, are left out"
    return replace(log, shape=replace(log.shape, layers=names), note=note, read=read)
