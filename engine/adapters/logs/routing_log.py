"""A recognised routing log: its shape, a way through its pieces, the layers of it that are no decisions, and one log of
several files.

A log is read piece by piece; at most one sample and one batch are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts, OnlyCounts, joined
from tokenpaths.engine.adapters.logs.doctor import Survey
from tokenpaths.engine.adapters.logs.fill_values import EMPTY, without_fills
from tokenpaths.engine.adapters.logs.pieces.announced import LogShape
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED, Piece, with_counts
from tokenpaths.engine.adapters.logs.pieces.piece_checks import check_piece, faulty_tokens
from tokenpaths.engine.adapters.logs.pieces.wording import few_names, number_of, shortened
from tokenpaths.engine.adapters.logs.prefixes import without_prefixes
from tokenpaths.engine.adapters.logs.spool import PieceSpool
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.progress import run_with_progress

LEFT_OUT = " left out: "
"""what parts a remark from its reason"""
SAMPLES = "{n} response{s} or sample{s} {are} left out"
"""what a reason for leaving out stands behind"""
TOKENS, FILES = "{n} token{s} {are} left out", "{n} file{s} {are} left out"
"""as ``SAMPLES``"""
MOST_REASONS = 5
"""kept of a log; what was left out for others is counted"""


def nothing_captured(parts: Iterable[np.ndarray]) -> str:
    """What to say of ids that are fill values all of them."""
    values = sorted({int(value) for ids in parts for value in np.unique(ids)} - {UNUSED})
    shown = " or ".join(str(value).replace("-", "−") for value in values[:3]) + (" or another" if values[3:] else "")
    return (
        f"every id is {shown or 'null or missing'}, so no decision was captured; start the engine with "
        "--enable-return-routed-experts, and for SGLang ask with return_routed_experts"
    )


class NoDecisions(UserError):
    """A file holds responses, but none with decisions; ``left_out``: what to count of it beside other files."""

    def __init__(self, message: str, left_out: Counter[str]) -> None:
        super().__init__(message, field="file")
        self.left_out = left_out


@dataclass
class Log:
    """Content of a log. Made by ``formats.open_log``; each call of ``pieces()`` reads from the beginning."""

    file: Path
    format: str
    shape: LogShape
    experts: int | None
    """number of experts per layer; None: not stated, determined by the largest id"""
    read: Callable[[], Iterator[Piece | tuple[str, int]]] = field(repr=False)
    """the format's reader: pieces in file order, not validated, and remarks with a number between them"""
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
    shares_prefixes: bool = False
    """samples hold the decisions of their prompts, which several may share (``without_prefixes``)"""
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
        yield from with_counts(self.read() if self.checked else self._checked())

    def _checked(self) -> Iterator[Piece | tuple[str, int]]:
        """The pieces cut and validated, and remarks; where nothing is left, an error says why."""
        empty, reason = True, ""
        for item in self._cut():
            if isinstance(item, Piece):
                empty = False
            elif not reason:
                reason = item[0].partition(LEFT_OUT)[2]
            yield item
        if empty and reason:
            raise UserError(f"{self.file}: holds no token ({reason})", field="file")

    def _cut(self) -> Iterator[Piece | tuple[str, int]]:
        for item in without_prefixes(self.read()) if self.shares_prefixes else self.read():
            if not isinstance(item, Piece):
                yield item
                continue
            try:
                named = item.named()
            except UserError as error:
                if not self.skip_bad:
                    raise
                yield skipped(str(error)), 1
                continue
            for part in named.cut():
                kept = without_fills(part, self.shape.partial, self.experts)
                if kept is None:
                    yield EMPTY, part.num_tokens
                else:
                    yield from self._sound(kept)

    def _sound(self, piece: Piece) -> Iterator[Piece | tuple[str, int]]:
        """The piece; with ``skip_bad`` without the tokens that are wrong, or none if it is wrong as a whole."""
        try:
            ordered = check_piece(piece, self.shape, self.experts)
        except UserError as error:
            if not self.skip_bad:
                raise
            faulty = faulty_tokens(piece, self.shape, self.experts)
            if not faulty.any() or faulty.all():
                yield skipped(str(error)), 1
                return
            count = int(faulty.sum())
            yield skipped(str(error) if count == 1 else f"the first: {error}", TOKENS), count
            yield from self._sound(piece.part(np.flatnonzero(~faulty)))
            return
        yield piece if ordered is None else replace(piece, ordered=ordered)

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
        guess = f"{number_of(survey.experts, 'expert')} a layer: the largest id in the log, there may be more"
        note = "; ".join(filter(None, [self.note, guess]))
        return replace(log, experts=survey.experts, note=note, survey=survey)


def skipped(reason: str, what: str = SAMPLES) -> str:
    """The remark on what was left out because it cannot be read."""
    return what.removesuffix(" left out") + LEFT_OUT + reason[:300].replace("{", "(").replace("}", ")")


def few_reasons(remarks: Iterable[tuple[str, int]], reasons: dict[str, list[str]]) -> Iterator[tuple[str, int]]:
    """Remarks with the first ``MOST_REASONS`` of each kind alone; ``reasons`` has those so far."""
    for remark, count in remarks:
        head, parted, reason = remark.partition(LEFT_OUT)
        known = reasons.setdefault(head, [])
        if parted and reason not in known:
            if len(known) >= MOST_REASONS:
                yield head.replace("{n}", "{n} more", 1) + " left out", count
                continue
            known.append(reason)
        yield remark, count


def without_dense_layers(log: Log, skip_bad: bool) -> Log:
    """The log without its dense layers, which have no gate and are filled with zeros by the engine.

    With K > 1 no token can choose expert 0 K times, so a layer of zeros in the first piece with any decision is none.
    With K = 1 it could be one and is kept; ``importing.LogNotes`` notes it.

    Args:
        skip_bad: Count pieces with decisions in an omitted layer, and leave them out.

    Raises:
        NoDecisions: no layer is left.
        UserError: while reading, an omitted layer has decisions.
    """
    if log.shape.top_k == 1:
        return log
    begins, empty, has_choices, without = "", 0, np.zeros(0, dtype=bool), list[np.ndarray]()
    for piece in log.read():
        if isinstance(piece, Piece) and piece.num_tokens:
            begins = begins or piece.where
            has_choices = np.asarray((piece.ids > 0).any(axis=(0, 2)))  # below 0 are slots that hold no decision
            if has_choices.any():
                begins = piece.where
                break
            empty += piece.num_tokens
            without.append(np.unique(piece.ids))
    if begins and not has_choices.any():
        raise NoDecisions(f"{begins}: {nothing_captured(without)}", Counter({EMPTY: empty}))
    if has_choices.all():
        return log
    routed, dense = np.flatnonzero(has_choices), np.flatnonzero(~has_choices)

    def read() -> Iterator[Piece | tuple[str, int]]:
        for piece in log.read():
            if not isinstance(piece, Piece):
                yield piece
                continue
            late = (piece.ids[:, dense] > 0).any(axis=(0, 2))
            if late.any():
                problem = (
                    f"{piece.where}: {log.shape.layers[dense[late][0]]} has decisions here, but zeros only in "
                    f"{begins}; a layer is dense throughout or nowhere, so one of them was not captured whole"
                )
                if not skip_bad:
                    raise UserError(problem, field="file")
                yield skipped(problem), 1
                continue
            weights = None if piece.weights is None else piece.weights[:, routed]
            yield replace(piece, ids=piece.ids[:, routed], weights=weights)

    names = tuple(log.shape.layers[layer] for layer in routed.tolist())
    note = "; ".join(filter(None, [dense_note(len(dense), "filled with zeros by the engine"), log.note]))
    return replace(log, shape=replace(log.shape, layers=names), note=note, read=read)


def dense_note(count: int, how: str) -> str:
    """A note on dense layers that are left out, and how they are told; empty if there are none."""
    return f"{number_of(count, 'dense layer')}, {how}, {'is' if count == 1 else 'are'} left out" if count else ""


def one_log(folder: Path, files: list[Path], open_file: Callable[[Path], Log], skip_bad: bool) -> Log:
    """The log of which several files hold a part each.

    Args:
        skip_bad: Count files that cannot be opened or are of another model than the first, and leave them out.

    Raises:
        OnlyCounts: they hold sums over tokens.
        UserError: a file cannot be opened, or they are of several models.
    """
    logs, sums = list[Log](), dict[Path, ExpertCounts]()
    left = Counter[str]()
    problem: UserError | None = None
    for file in files:
        try:
            log = open_file(file)
            logs.append(_alike(log, logs[0] if logs else log))
        except OnlyCounts as only:
            sums[file] = only.counts
        except NoDecisions as none:
            problem, left = problem or none, left + none.left_out
        except UserError as error:
            if not skip_bad:
                raise
            problem, left = problem or error, left + Counter([skipped(str(error), FILES)])
    if sums and problem is not None:
        raise problem
    if sums and logs:
        raise UserError(f"{folder}: holds choices of tokens ({logs[0].file.name}) and sums over tokens", field="file")
    if sums:
        stems = [file.stem for file in sums]
        named = {file.stem if stems.count(file.stem) == 1 else file.name: counts for file, counts in sums.items()}
        raise OnlyCounts(folder, joined(named, str(folder)))
    if not logs and problem is not None:
        raise problem
    logs, copies = _without_copies(logs)

    def read() -> Iterator[Piece | tuple[str, int]]:
        yield from left.items()
        for log in logs:
            yield from log.read()

    notes = dict.fromkeys(filter(None, [*(log.note for log in logs), copies]))
    return replace(logs[0], file=folder, note="; ".join(notes), read=read)


def _alike(log: Log, first: Log) -> Log:
    """A log of the same model as the first one.

    Raises:
        UserError: it is not.
    """
    for what, mine, theirs in (
        ("format", log.format, first.format),
        ("model", log.model, first.model),
        ("layers", log.shape.layers, first.shape.layers),
        ("top-k", log.shape.top_k, first.shape.top_k),
        ("number of experts", log.experts, first.experts),
        ("weights", log.shape.weights, first.shape.weights),
    ):
        if mine != theirs:
            raise UserError(
                f"{log.file}: has another {what} than {first.file.name} ({shortened(mine)}, not {shortened(theirs)}); "
                "the shards of a folder are one log of one model",
                field="file",
            )
    return log


def _without_copies(logs: list[Log]) -> tuple[list[Log], str]:
    """The logs without what tensor-parallel ranks wrote again, and a note on those files."""
    kept: dict[str, Log] = {}
    copies = [log.file.name for log in logs if kept.setdefault(log.content or str(log.file), log) is not log]
    return list(kept.values()), few_names("files that are copies, as tensor-parallel ranks write them", copies)
