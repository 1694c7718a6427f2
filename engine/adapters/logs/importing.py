"""Importers: somebody else's routing log as a run. Formats are documented in ``docs/import.md``.

``open_log`` recognises a log by its content, ``import_log`` makes a sealed run of it, or leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.expert_runs import FAMILY, ExpertLayer, WeightSemantics, expert_modules
from tokenpaths.engine.adapters.logs.arrays import NPY_MAGIC, PICKLE, open_npy, open_npz
from tokenpaths.engine.adapters.logs.dense_layers import without_dense_layers
from tokenpaths.engine.adapters.logs.expert_counts import OnlyCounts, find_counts, read_counts
from tokenpaths.engine.adapters.logs.llamacpp import is_csv, open_csv
from tokenpaths.engine.adapters.logs.log import MOST_MODULES, Asked, Log, Piece, batches
from tokenpaths.engine.adapters.logs.log_notes import Seen
from tokenpaths.engine.adapters.logs.megatron import is_megatron_line, open_megatron
from tokenpaths.engine.adapters.logs.neutral_parquet import open_parquet
from tokenpaths.engine.adapters.logs.vllm_sglang import is_engine_line, open_engine
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.progress import followed, reworded, sealed
from tokenpaths.engine.base.records import RunInfo
from tokenpaths.engine.store.file.checks import check_text
from tokenpaths.engine.store.write.writer import RunWriter

Opener = Callable[[Path, Asked], Log]
HEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class Format:
    """One kind of log."""

    open: Opener
    what: str


def _open_counts(file: Path, asked: Asked) -> Log:
    raise OnlyCounts(file, read_counts(file, asked))


def _routed(opener: Opener) -> Opener:
    return lambda file, asked: without_dense_layers(opener(file, asked))


FORMATS: dict[str, Format] = {
    "npy": Format(_routed(open_npy), "a numpy array (tokens, layers, top-k)"),
    "npz": Format(_routed(open_npz), "the neutral format as .npz"),
    "parquet": Format(open_parquet, "the neutral format as Parquet"),
    "vllm": Format(open_engine, "responses of vLLM, one JSON object a line"),
    "sglang": Format(open_engine, "responses of SGLang, one JSON object a line"),
    "megatron": Format(open_megatron, "Megatron-LM's router trace"),
    "llama.cpp": Format(open_csv, "llama.cpp's routing CSV"),
    "expert-counts": Format(_open_counts, "aggregates, of which only the load can be told"),
}
_ENGINES = ("vllm", "sglang")
_BINARY = ("npy", "npz", "parquet")


def open_log(
    path: Path,
    format: str | None = None,
    *,
    layers: int | None = None,
    top_k: int | None = None,
    experts: int | None = None,
) -> Log:
    """A log, or a folder of shards of one log (in the order of their names), recognised by its content.

    ``layers``, ``top_k`` and ``experts`` (a layer) say what the log does not, and are checked where it does.

    Raises:
        OnlyCounts: the file holds sums over tokens.
        UserError: it is no log that can be read; the message says what was found.
    """
    path = Path(path)
    asked = Asked(layers, top_k, experts)
    for name, value in (("layers", layers), ("top_k", top_k), ("experts", experts)):
        if value is not None and not 1 <= value <= 65_536:
            raise UserError(f"{name} is {value}, it should be from 1 to 65536", field=name)
    if format is not None and format not in FORMATS:
        raise UserError(f"there is no format {format[:40]!r}, there are {', '.join(FORMATS)}", field="format")
    if path.is_dir():
        return _open_shards(path, format, asked)
    return _open_one(path, format, asked)


def _open_one(file: Path, format: str | None, asked: Asked) -> Log:
    found = recognise(file)
    if format is not None and format != found and not (format in _ENGINES and found in _ENGINES):
        raise UserError(f"{file}: is {FORMATS[found].what}, not {FORMATS[format].what}", field="format")
    log = FORMATS[found].open(file, asked)
    log.format = format or log.format
    for text in (log.model, *log.shape.layers):
        check_text(text, f"{file}: the name of the model or of a layer", field="file")
    return log


def recognise(file: Path) -> str:
    """The format of a file, by what it holds.

    Raises:
        UserError: it is none of ``FORMATS``; of a pickle the message says why it is not opened.
    """
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", field="file") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})", field="file") from None
    if not head.strip():
        raise UserError(f"{file}: is empty", field="file")
    for magic, name in ((NPY_MAGIC, "npy"), (b"PK\x03\x04", "npz"), (b"PAR1", "parquet")):
        if head.startswith(magic):
            return name
    if head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise UserError(
            f"{file}: {PICKLE.format('JSON, .npy or Parquet, for example json.dump of the counts')}", field="file"
        )
    if head.startswith(b"\x1f\x8b"):
        raise UserError(f"{file}: is compressed with gzip; unpack it first", field="file")
    return _recognise_text(file, head)


def _recognise_text(file: Path, head: bytes) -> str:
    lines = [line for line in head.removeprefix(b"\xef\xbb\xbf").splitlines() if line.strip()]
    if is_csv(next((line for line in lines if not line.startswith(b"#")), lines[0])):
        return "llama.cpp"
    if lines[0].lstrip()[:1] in (b"{", b"["):
        record = _first_object(file, lines[0])
        if isinstance(record, dict) and is_megatron_line(record):
            return "megatron"
        if isinstance(record, dict) and is_engine_line(record):
            return "sglang" if "meta_info" in record else "vllm"
        if record is None or find_counts(record) is not None:
            return "expert-counts"
        keys = ", ".join(list(record)[:8]) if isinstance(record, dict) else "no object"
        raise UserError(
            f"{file}, line 1: has {keys}, but neither routed_experts nor top_indices nor expert_counts", field="file"
        )
    known = "; ".join(f"{name}: {one.what}" for name, one in FORMATS.items())
    raise UserError(f"{file}: is no routing log that is known ({known})", field="file")


def _first_object(file: Path, line: bytes) -> object | None:
    """The first line as JSON; None for a JSON file whose first line alone is none. A long line is told by its keys."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        pass
    keys = set(re.findall(rb'"(routed_experts|prompt_routed_experts|top_indices|meta_info|choices|layer)"\s*:', line))
    if keys:
        return {key.decode(): None for key in keys}
    if file.stat().st_size > HEAD_BYTES or line.rstrip()[-1:] not in (b"{", b"[", b","):
        raise UserError(f"{file}, line 1: is not JSON; the log is cut off, or one object is spread over lines")
    return None


def _open_shards(folder: Path, format: str | None, asked: Asked) -> Log:
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise UserError(f"the folder {folder} holds no files", field="file")
    logs = [_open_one(file, format, asked) for file in files]
    first = logs[0]
    for log in logs[1:]:
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
                    f"{log.file}: has another {what} than {first.file.name} ({_short(mine)}, not {_short(theirs)}); "
                    "the shards of a folder are one log of one model",
                    field="file",
                )

    def read() -> Iterator[Piece]:
        for log in logs:
            yield from log._read()

    return replace(first, file=folder, note="; ".join(dict.fromkeys(log.note for log in logs if log.note)), _read=read)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


@dataclass(frozen=True)
class ImportProgress:
    """Tokens written so far, and the stage of the sealing once all are."""

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
    on_progress: Callable[[ImportProgress], None] = lambda p: None,
) -> Path:
    """Make a sealed run of a log; returns its file. Nothing is left behind where something is wrong.

    A log that does not announce how many experts there are is read twice: once to find the largest id.

    Raises:
        UserError: the log is wrong somewhere (file and line or row are named), or the run exists.
    """
    parts = import_parts(log, runs_dir, run_id, model=model, token_texts=token_texts, overwrite=overwrite)
    return followed(parts, on_progress)


def import_parts(
    log: Log,
    runs_dir: Path,
    run_id: str,
    *,
    model: str | None = None,
    token_texts: dict[int, str] | None = None,
    overwrite: bool = False,
    findings: dict[str, Any] | None = None,
) -> Generator[ImportProgress, None, Path]:
    """``import_log`` batch by batch: yields the tokens done so far, returns the run's file. Closing it early leaves
    nothing behind.

    The run's findings say ``weights_recorded`` and, in sentences, ``notes``: what was left out, guessed or is missing.
    ``findings`` are kept beside them.
    """
    log = log.counted()
    assert log.experts is not None, "counted says how many"
    notes = log.note.split("; ") if log.note else []
    if not log.shape.weights:
        stand_in = "1" if log.shape.top_k == 1 else f"1/{log.shape.top_k}"
        notes.append(f"the log holds no weights: {stand_in} stands in for each")
    semantics = WeightSemantics(
        "unknown",
        "unknown",
        None,
        weights_recorded=log.shape.weights,
        source=f"{log.format} log {log.file.name}",
        note=log.note,
    )
    info = RunInfo(
        run_id=run_id,
        model=model or log.model or log.file.stem,
        family=FAMILY,
        modality="text",
        dataset=log.file.name,
        split="",
        num_steps=len(log.shape.layers),
        num_modules=log.experts,
        top_k=log.shape.top_k,
        weight_semantics=semantics.as_json(),
        checkpoint_sha256="",
        engine_version=_version(),
        config={"import": {"format": log.format, "file": log.file.name, "layers": list(log.shape.layers)}},
        token_texts=token_texts or {},
        findings={"weights_recorded": log.shape.weights, "notes": notes} | (findings or {}),
    )
    num_layers = len(log.shape.layers)
    if num_layers * log.experts > MOST_MODULES:
        raise UserError(
            f"{log.file}: {num_layers} layers of {log.experts} experts are more than {MOST_MODULES} experts; "
            "is the number of experts right?",
            field="experts",
        )
    modules = expert_modules([ExpertLayer(name, log.experts) for name in log.shape.layers])
    tokens = 0
    seen = Seen(num_layers)
    with RunWriter(runs_dir, info, modules, overwrite=overwrite) as writer:
        for batch in batches(seen.through(log.pieces()), token_texts):
            writer.write(batch)
            tokens += batch.num_tokens
            yield ImportProgress(tokens)
        if not tokens:
            raise UserError(f"{log.file}: holds no token", field="file")
        # The writer keeps findings when it seals: what only the whole log can tell is said until then.
        notes.extend(seen.notes(log, bool(token_texts)))
        return (yield from reworded(sealed(writer), lambda words: ImportProgress(tokens, words)))


def read_vocabulary(folder: Path) -> dict[int, str]:
    """Readable text of each vocabulary id, from ``tokenizer.json`` in a folder.

    Raises:
        UserError: it is missing, or no tokenizer.
    """
    from tokenpaths.engine.data.tokenizer import TextTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"there is no tokenizer.json in {os.fspath(folder)}", field="tokenizer")
    return TextTokenizer.load(folder / "tokenizer.json").token_texts


def _version() -> str:
    try:
        return version("tokenpaths")
    except PackageNotFoundError:
        return "0+source"
