"""Import of a routing log: checked pieces become batches, the batches a sealed run, or nothing is left behind."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.expert_runs import (
    FAMILY,
    ExpertLayer,
    Series,
    WeightSemantics,
    by_weight,
    even_weights,
    expert_modules,
)
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_MODULES
from tokenpaths.engine.adapters.logs.pieces.piece import UNRECORDED, UNUSED, Piece, lowest
from tokenpaths.engine.adapters.logs.pieces.wording import first_of
from tokenpaths.engine.adapters.logs.routing_log import Log, few_reasons
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.progress import map_progress, run_with_progress, seal_in_stages
from tokenpaths.engine.base.records import (
    UNRECORDED_KIND,
    UNUSED_KIND,
    ModuleInfo,
    RunInfo,
    SampleRecord,
    TraceBatch,
    engine_version,
)
from tokenpaths.engine.data.labels import Remarks, alike_sentence, look_alikes
from tokenpaths.engine.data.sources.sample import readable
from tokenpaths.engine.store.write.writer import RunWriter

BATCH_BYTES = 4 * 2**20
"""bytes of expert ids per batch of the writer"""
CLIPPED = "{n} weight{s} outside [0, 1] by rounding {are} set to 0 or 1"
_MOST_NAMED = 8


@dataclass(frozen=True)
class ImportProgress:
    """Number of tokens written, then the stage of the sealing."""

    tokens: int
    sealing: str = ""


def import_log(
    log: Log,
    runs_dir: Path,
    run_id: str,
    *,
    model: str | None = None,
    token_texts: dict[int, str] | None = None,
    overwrite: bool = False,
    although: bool = False,
    series: Series | None = None,
    on_progress: Callable[[ImportProgress], None] = lambda p: None,
) -> Path:
    """Convert a log to a sealed run; returns its file. Leaves no file after an error.

    Before anything is written the whole log is read: its sizes are taken, and the doctor looks for wrong data.

    Args:
        runs_dir: Folder of the run files.
        model: Name of the model in the run; by default as in the log, else the file name.
        token_texts: Readable text of the vocabulary ids.
        overwrite: Replace a run of the same name.
        although: Import a log although the doctor found an artefact in it.
        series: The training that the log is of, and where in it.

    Raises:
        UserError: the log is invalid (the message names file and line or row), the doctor found an artefact, or the run
            exists.
    """
    parts = import_parts(
        log,
        runs_dir,
        run_id,
        model=model,
        token_texts=token_texts,
        overwrite=overwrite,
        although=although,
        series=series,
    )
    return run_with_progress(parts, on_progress)


def import_parts(
    log: Log,
    runs_dir: Path,
    run_id: str,
    *,
    model: str | None = None,
    token_texts: dict[int, str] | None = None,
    overwrite: bool = False,
    although: bool = False,
    series: Series | None = None,
    findings: dict[str, Any] | None = None,
) -> Generator[ImportProgress, None, Path]:
    """``import_log`` as a generator that yields after each batch.

    Closing the generator early leaves no file behind. Findings of the run: ``weights_recorded``, ``notes`` (sentences
    on what was omitted, assumed or missing), ``import_doctor`` and ``shared_prefixes`` (if there are any), and the
    given ``findings``.

    Yields:
        The number of tokens written.

    Returns:
        The run's file.
    """
    log = log.counted(runs_dir)
    assert log.experts is not None, "counted says how many"
    assert log.survey is not None, "counted has read the log"
    if (artefacts := log.survey.artefacts()) and not although:
        raise UserError(
            f"{log.file}: {'; '.join(finding.sentence for finding in artefacts)}. Nothing was imported; to import it "
            "all the same, say --although",
            field="although",
        )
    notes = log.note.split("; ") if log.note else []
    if not log.shape.weights:
        stand_in = "1" if log.shape.top_k == 1 else f"1/{log.shape.top_k}"
        stand_in = "1 over the number of experts that the token uses" if log.survey.k_varies else stand_in
        notes.append(f"the log holds no weights: {stand_in} stands in for each")
    findings = {"weights_recorded": log.shape.weights, "notes": notes} | log.survey.to_json() | (findings or {})
    info = _run_info(log, run_id, model, token_texts or {}, findings, series)
    num_layers = len(log.shape.layers)
    if num_layers * log.experts > MOST_MODULES:
        raise UserError(
            f"{log.file}: {num_layers} layers of {log.experts} experts are more than {MOST_MODULES} experts; "
            "is the number of experts right?",
            field="experts",
        )
    modules = expert_modules([ExpertLayer(name, log.experts) for name in log.shape.layers])
    modules += _stand_ins(log)
    tokens = 0
    gathered = LogNotes(num_layers)
    with RunWriter(runs_dir, info, modules, overwrite=overwrite) as writer:
        for batch in batches(gathered.through(log.pieces()), token_texts, _StandIns.of(log), log.file):
            writer.write(batch)
            tokens += batch.num_tokens
            yield ImportProgress(tokens)
        if not tokens:
            raise UserError(f"{log.file}: holds no token", field="file")
        # The writer keeps findings when it seals: what only the whole log can tell is said until then.
        notes.extend(log.survey.sentences())
        notes.extend(gathered.sentences(log, bool(token_texts)))
        return (yield from map_progress(seal_in_stages(writer), lambda words: ImportProgress(tokens, words)))


def _run_info(
    log: Log,
    run_id: str,
    model: str | None,
    token_texts: dict[int, str],
    findings: dict[str, Any],
    series: Series | None,
) -> RunInfo:
    name = readable(log.file.name)
    semantics = WeightSemantics(
        "unknown", "unknown", None, weights_recorded=log.shape.weights, source=f"{log.format} log {name}", note=log.note
    )
    return RunInfo(
        run_id=run_id,
        model=model or log.model or readable(log.file.stem),
        family=FAMILY,
        modality="text",
        dataset=name,
        split="",
        num_steps=len(log.shape.layers),
        num_modules=_StandIns.of(log).stop,
        top_k=log.shape.top_k,
        weight_semantics=semantics.as_json(),
        checkpoint_sha256="",
        engine_version=engine_version(),
        config={"import": {"format": log.format, "file": name, "layers": list(log.shape.layers)}}
        | ({} if series is None else {"series": series.as_json()}),
        token_texts=token_texts,
        findings=findings,
        scores=log.shape.scores,
    )


def _lacking(log: Log) -> np.ndarray:
    """(S,) bool: layers that some tokens lack."""
    assert log.survey is not None, "made by counted"
    return log.survey.missing_S > 0


@dataclass(frozen=True)
class _StandIns:
    """Ids behind the experts that are none: for unknown decisions, then for unused slots, K each if there are any."""

    unrecorded: int
    unused: int
    stop: int
    dropped: bool = False
    """steps that the log lacks are of dropped tokens: it marks unused slots by the same number"""

    @classmethod
    def of(cls, log: Log) -> _StandIns:
        assert log.survey is not None, "made by counted"
        experts, top_k = int(log.experts or 0), log.shape.top_k
        unused = experts + (top_k if _lacking(log).any() else 0)
        varies = log.survey.k_varies
        return cls(experts, unused, unused + (top_k if varies else 0), varies and not log.shape.partial)


def _stand_ins(log: Log) -> list[ModuleInfo]:
    """A module a slot for unknown decisions, at each layer that some tokens lack, and for unused slots."""
    assert log.survey is not None, "made by counted"
    first = _StandIns.of(log)
    return [
        ModuleInfo(step, start + slot, name, kind, 0, 0)
        for start, name, kind, some_S in (
            (first.unrecorded, "not recorded", UNRECORDED_KIND, _lacking(log)),
            (first.unused, "unused slot", UNUSED_KIND, log.survey.unused_S > 0),
        )
        for step in np.flatnonzero(some_S).tolist()
        for slot in range(log.shape.top_k)
    ]


def read_vocabulary(folder: Path) -> dict[int, str]:
    """Readable text of each vocabulary id, from ``tokenizer.json`` in a folder.

    Raises:
        UserError: it is missing, or not a tokenizer.
    """
    from tokenpaths.engine.data.tokenizer import TextTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"there is no tokenizer.json in {os.fspath(folder)}", field="tokenizer")
    return TextTokenizer.load(folder / "tokenizer.json").token_texts


def new_import_id(name: str) -> str:
    """A readable run id: the model or the file, and the time."""
    plain = re.sub(r"[^A-Za-z0-9]+", "-", name.rsplit("/", 1)[-1]).strip("-")
    return f"{plain[:40] or 'import'}-{datetime.now(UTC).strftime('%Y%m%d-%H%M%S-%f')[:-3]}"


def _without_folder(words: str, file: Path) -> str:
    """``words`` with files named without the folder of the log ``file``: a run goes to other people."""
    words = readable(words)
    if file.parent == Path():
        return words
    # Only where a path begins: the log mydata in data/ has data/mydata/a.jsonl.
    return re.sub(rf"""(?<![^\s(:'"“]){re.escape(readable(f"{file.parent}{os.sep}"))}""", "", words)


class LogNotes:
    """Collects notes about the whole log while its pieces are read."""

    def __init__(self, num_layers: int) -> None:
        self.samples = 0
        self.with_token_ids = self.with_some_ids = 0
        self.remarks = Remarks()
        self.reasons: dict[str, list[str]] = {}
        """of ``few_reasons``"""
        self.sizes: Counter[str] = Counter()
        """samples of each label"""
        self.has_choices = np.zeros(num_layers, dtype=bool)
        """layers in which some token chose an expert other than 0"""

    def through(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        """Pass the pieces through."""
        for piece in pieces:
            self.samples += 1
            self.with_token_ids += piece.token_id is not None
            self.with_some_ids += piece.some_token_ids
            self.remarks.add(piece.remarks, piece.where)
            for remark, count in few_reasons(piece.counted, self.reasons):
                self.remarks.add((remark,), count=count)  # of what may have stood before the piece, or behind it
            if piece.label is not None:
                self.sizes[piece.label] += 1
            weights = piece.weights
            if weights is not None and (weights.min() < 0 or weights.max() > 1):
                count = int(((weights < 0) | (weights > 1)).sum())
                self.remarks.add((CLIPPED,), piece.where, count)
            if not self.has_choices.all():
                self.has_choices |= (piece.ids > 0).any(axis=(0, 2))
            yield piece

    def sentences(self, log: Log, tokenizer: bool) -> list[str]:
        """Notes on the whole log, as sentences."""
        notes = [_without_folder(note, log.file) for note in self.remarks.sentences()]
        labelled = self.sizes.total()
        if 0 < labelled < self.samples:
            notes.append(f"{self.samples - labelled:,} of {self.samples:,} samples have no label")
        alike = alike_sentence([(name, self.sizes[name]) for name in group] for group in look_alikes(self.sizes))
        notes += [alike] if alike else []
        constant = [name for name, chosen in zip(log.shape.layers, self.has_choices, strict=True) if not chosen]
        if log.shape.top_k == 1 and constant and (log.experts or 0) > 1:
            notes.append(
                f"every token has expert 0 at {first_of(constant, _MOST_NAMED)}: with one expert a token, dense layers "
                "that an engine fills with zeros cannot be told from that"
            )
        if self.with_token_ids and self.with_token_ids < self.samples:
            without = self.samples - self.with_token_ids
            notes.append(f"{without:,} of {self.samples:,} samples have no token ids, or not as many as decisions")
        if self.with_some_ids:
            number = f"{self.with_some_ids:,} of {self.samples:,}"
            notes.append(f"{number} samples have token ids for some of their tokens only")
        if tokenizer and not self.with_token_ids:
            notes.append("the log holds no token ids, so the tokenizer has nothing to show")
        return notes


def batches(
    pieces: Iterable[Piece],
    token_texts: dict[int, str] | None = None,
    stand_ins: _StandIns | None = None,
    file: Path = Path(),
) -> Iterator[TraceBatch]:
    """Batches for the writer from checked pieces; each piece is a sample. ``stand_ins``: ids of what is no expert,
    where there is such. ``file``: the log, whose folder no sample names."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.ids.shape[0] * piece.ids.shape[1] * piece.ids.shape[2]
        if size >= BATCH_BYTES:
            yield _batch(held, token_texts or {}, stand_ins, file)
            held, size = [], 0
    if held:
        yield _batch(held, token_texts or {}, stand_ins, file)


def _batch(pieces: list[Piece], token_texts: dict[int, str], stand_ins: _StandIns | None, file: Path) -> TraceBatch:
    ids = _joined([piece.ids for piece in pieces])
    parts = [piece.weights for piece in pieces if piece.weights is not None]
    weights = _joined(parts).astype(np.float32) if parts else even_weights(ids)
    if parts:
        np.clip(weights, 0, 1, out=weights)
    if lowest(ids) < 0:
        assert stand_ins is not None, "experts alone have no number below 0"
        ids, weights = _with_stand_ins(ids, weights, stand_ins, even=not parts)
    elif parts and not (weights[:, :, 1:] <= weights[:, :, :-1]).all():
        ids, weights = by_weight(ids, weights)
    samples, spans, token_ids = [], [], []
    known = any(piece.token_id is not None for piece in pieces)
    for piece in pieces:
        text, span = _text(piece, token_texts)
        if known:
            spans.append(span)
            token_ids.append(np.full(piece.num_tokens, -1, np.int32) if piece.token_id is None else piece.token_id)
        source = readable(piece.source) if piece.source else _without_folder(piece.where, file)
        samples.append(SampleRecord(num_tokens=piece.num_tokens, label=piece.label, text=text, source=source))
    span_n = np.concatenate(spans) if spans else np.empty((0, 2), dtype=np.int32)
    n = len(ids)
    scored = [piece.scored for piece in pieces if piece.scored is not None]
    scores = _joined(scored) if scored else None
    return TraceBatch(
        samples=samples,
        module_ids=ids,
        weights=weights,
        gate_entropy=(np.broadcast_to(np.float32(np.nan), (n, ids.shape[1])) if scores is None else scores[:, :, 0]),
        margin=None if scores is None else scores[:, :, 1],
        runner_up=None if scores is None else np.nan_to_num(scores[:, :, 2]).astype(np.int32),
        flops=np.broadcast_to(np.float32(0), (n,)),
        token_id=np.concatenate(token_ids).astype(np.int32) if known else None,
        char_start=span_n[:, 0] if (span_n >= 0).any() else None,
        char_end=span_n[:, 1] if (span_n >= 0).any() else None,
    )


def _with_stand_ins(
    ids: np.ndarray, weights: np.ndarray, stand_ins: _StandIns, *, even: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights (n, S, K) with experts by weight, unused slots behind them; ``even``: the log has no weights."""
    unused = (ids == UNUSED) | (stand_ins.dropped & (ids == UNRECORDED))
    missing = (ids == UNRECORDED) & ~unused
    used = ~(unused | missing)
    count = used.sum(axis=2, keepdims=True)
    weights = np.where(used, 1 / np.maximum(count, 1) if even else weights, 0).astype(np.float32)
    ids, weights = by_weight(ids, np.where(used, weights, -1))
    slot = np.arange(ids.shape[2])
    # Numbered from the first unused slot on, so that equal sets of experts are one path.
    unknown = missing.any(axis=2, keepdims=True)
    no_expert = np.where(unknown, stand_ins.unrecorded + slot, stand_ins.unused + slot - count)
    return np.where(slot < count, ids, no_expert), np.maximum(weights, 0)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """The parts one behind the other; where they lie so in one array, as those of the spool do, that stretch of it."""
    if len(parts) == 1:
        return parts[0]
    whole = parts[0].base
    if isinstance(whole, np.ndarray) and whole.ndim == 1 and all(part.base is whole for part in parts):
        first, dtype = parts[0].__array_interface__["data"][0], whole.dtype
        ends = first + np.cumsum([part.nbytes for part in parts])
        behind = all(
            part.__array_interface__["data"][0] == end for part, end in zip(parts[1:], ends.tolist(), strict=False)
        )
        if behind and all(part.dtype == dtype and part.flags.c_contiguous for part in parts):
            start = (first - whole.__array_interface__["data"][0]) // dtype.itemsize
            stretch = whole[start : start + sum(part.size for part in parts)]
            return stretch.reshape(-1, *parts[0].shape[1:])
    return np.concatenate(parts)


def _text(piece: Piece, token_texts: dict[int, str]) -> tuple[str | None, np.ndarray]:
    """Text of a sample and character span of each token (t, 2), −1 where unknown."""
    unknown = np.full((piece.num_tokens, 2), -1, dtype=np.int32)
    if piece.token_id is None or not token_texts:
        return piece.text, unknown
    parts = []
    for position, token_id in enumerate(piece.token_id.tolist()):
        if token_id < 0:
            parts.append("")
            continue
        if token_id not in token_texts:
            raise UserError(
                f"{piece.where}: token {position} has id {token_id}, which the tokenizer does not know; "
                "give the tokenizer of the model that wrote the log",
                field="tokenizer",
            )
        parts.append(token_texts[token_id])
    # The text of a response is its answer only, and a tokenizer may put a space before a text: the tokens are what
    # was routed, so their text is shown, and each stands in it.
    joined = "".join(parts)
    ends = np.cumsum([len(part) for part in parts])
    spans = np.stack([ends - [len(part) for part in parts], ends], axis=1).astype(np.int32)
    spans[piece.token_id < 0] = -1
    return joined, spans
