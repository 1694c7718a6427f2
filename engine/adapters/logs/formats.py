"""The formats of routing logs: the table of readers, recognition by content, and folders of shards.

A new format is a file beside this one and a row in ``FORMATS``, or a plugin: an entry point of the group
``tokenpaths.importers`` that is a ``Format`` (``docs/extending.md``). Formats are documented in ``docs/import.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.logs.expert_counts import OnlyCounts, find_counts, read_counts
from tokenpaths.engine.adapters.logs.llamacpp import BOM, is_csv, open_csv
from tokenpaths.engine.adapters.logs.megatron import is_megatron_line, open_megatron
from tokenpaths.engine.adapters.logs.neutral_parquet import open_parquet
from tokenpaths.engine.adapters.logs.numpy_arrays import NPY_MAGIC, PICKLE, open_npy, open_npz
from tokenpaths.engine.adapters.logs.pieces import Announced, Piece
from tokenpaths.engine.adapters.logs.routing_log import Log, without_dense_layers
from tokenpaths.engine.adapters.logs.vllm_sglang import is_sglang_line, is_vllm_line, open_engine
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginError, PluginRegistry
from tokenpaths.engine.data.labels import MOST_CHARACTERS
from tokenpaths.engine.store.file.checks import check_text

Opener = Callable[[Path, Announced], Log]
HEAD_BYTES = 1 << 20


class UnknownLog(UserError):
    """No format was recognised in a file."""


@dataclass(frozen=True)
class Format:
    """One format of logs: how it is recognised and opened."""

    open: Opener
    """takes the file and the sizes that the user gives; raises UserError with file and line"""
    what: str
    """description for messages"""
    magic: bytes | None = None
    """first bytes of a binary file"""
    is_line: Callable[[dict[str, Any]], bool] | None = None
    """for JSON lines: whether an object has this format"""
    keys: tuple[str, ...] = ()
    """for JSON lines: keys that identify a first line too long to be parsed"""
    matches: Callable[[bytes], bool] | None = None
    """for anything else: whether the first megabyte (or all) of a file has this format"""


def _open_counts(file: Path, announced: Announced) -> Log:
    raise OnlyCounts(file, read_counts(file, announced))


def _routed(opener: Opener) -> Opener:
    return lambda file, announced: without_dense_layers(opener(file, announced))


FORMATS: dict[str, Format] = {
    "npy": Format(_routed(open_npy), "a numpy array (tokens, layers, top-k)", NPY_MAGIC),
    "npz": Format(_routed(open_npz), "the neutral format as .npz", b"PK\x03\x04"),
    "parquet": Format(open_parquet, "the neutral format as Parquet", b"PAR1"),
    "vllm": Format(
        open_engine,
        "responses of vLLM, one JSON object a line",
        is_line=is_vllm_line,
        keys=("routed_experts", "prompt_routed_experts", "choices"),
    ),
    "sglang": Format(
        open_engine, "responses of SGLang, one JSON object a line", is_line=is_sglang_line, keys=("meta_info",)
    ),
    "megatron": Format(
        open_megatron, "Megatron-LM's router trace", is_line=is_megatron_line, keys=("top_indices", "layer")
    ),
    "llama.cpp": Format(open_csv, "llama.cpp's routing CSV"),
    "expert-counts": Format(_open_counts, "aggregates, of which only the load can be told"),
}
_ENGINES = ("vllm", "sglang")


def _check_plugin(name: str, value: Any) -> Format:
    if not isinstance(value, Format):
        raise UserError(f"it is {type(value).__name__}, not a tokenpaths.engine.adapters.logs.formats.Format")
    return value


IMPORTERS: PluginRegistry[Format] = PluginRegistry("tokenpaths.importers", "importer", FORMATS, _check_plugin)


def open_log(
    path: Path,
    format: str | None = None,
    *,
    layers: int | None = None,
    top_k: int | None = None,
    experts: int | None = None,
    plugins: bool = True,
) -> Log:
    """Open a log, or a folder of shards of one log (sorted by name); the format is detected by content.

    Args:
        path: The file or folder.
        format: Expected format; by default any.
        layers, top_k, experts: Sizes that the log does not state; checked against those that it states.
        plugins: Whether plugins are asked, and imported for it, where no format of this program is recognised.

    Raises:
        OnlyCounts: the file holds sums over tokens.
        UnknownLog: no format was recognised.
        UserError: it is not a readable log; the message describes its content.
    """
    path = Path(path)
    announced = Announced(layers, top_k, experts)
    for name, value in (("layers", layers), ("top_k", top_k), ("experts", experts)):
        if value is not None and not 1 <= value <= 65_536:
            raise UserError(f"{name} is {value}, it should be from 1 to 65536", field=name)
    _check_name(format)
    if path.is_dir():
        return _open_shards(path, format, announced, plugins)
    return _open_one(path, format, announced, plugins)


def check_beginning(file: Path, format: str | None) -> None:
    """Refuse an unknown ``format``, and a file that does not begin like a log; no plugin is imported.

    Raises:
        UserError: as ``open_log``.
    """
    _check_name(format)
    try:
        if format is None or format in FORMATS:
            recognise(file)
    except UnknownLog:
        if not IMPORTERS.plugin_names():
            raise


def _check_name(format: str | None) -> None:
    if format is not None and format not in IMPORTERS:
        raise UserError(f"there is no format {format[:40]!r}, there are {', '.join(IMPORTERS)}", field="format")


def _open_one(file: Path, format: str | None, announced: Announced, plugins: bool) -> Log:
    if format is not None and format not in FORMATS:
        return _open_with_plugin(format, file, announced)
    try:
        name = recognise(file)
    except UnknownLog as unknown:
        if not plugins or format is not None:
            raise
        return _open_with_plugin(_recognise_by_plugin(file, unknown), file, announced)
    if format is not None and format != name and not (format in _ENGINES and name in _ENGINES):
        raise UserError(f"{file}: is {FORMATS[name].what}, not {FORMATS[format].what}", field="format")
    log = FORMATS[name].open(file, announced)
    log.format = format or log.format
    _check_names(file, log)
    return log


def _open_with_plugin(name: str, file: Path, announced: Announced) -> Log:
    log = IMPORTERS[name].open(file, announced)
    if not isinstance(log, Log):
        raise PluginError(f"the importer {name!r} gave {type(log).__name__}, not a Log", field="format")
    _check_names(file, log)
    return replace(log, file=file, format=name, checked=False)


def _check_names(file: Path, log: Log) -> None:
    for text in (log.model, *log.shape.layers):
        check_text(text, f"{file}: the name of the model or of a layer", field="file")
        if text is not None and len(text) > MOST_CHARACTERS:
            raise UserError(
                f"{file}: the name of the model or of a layer has {len(text):,} characters, at most {MOST_CHARACTERS} "
                f"are kept ({_short(text)})",
                field="file",
            )


def recognise(file: Path) -> str:
    """Detect the format of a file by its content, among those of this program.

    Raises:
        UnknownLog: none of ``FORMATS`` matches.
        UserError: it cannot be read, or is a pickle: the message explains why that is not opened.
    """
    head = _read_head(file)
    for name, kind in FORMATS.items():
        if kind.magic is not None and head.startswith(kind.magic):
            return name
    if head[0] == 0x80 and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        raise UserError(
            f"{file}: {PICKLE.format('JSON, .npy or Parquet, for example json.dump of the counts')}", field="file"
        )
    if head.startswith(b"\x1f\x8b"):
        raise UnknownLog(f"{file}: is compressed with gzip; unpack it first", field="file")
    return _recognise_text(file, head)


def _read_head(file: Path) -> bytes:
    try:
        with file.open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    except FileNotFoundError:
        raise UserError(f"there is no file {file}", field="file") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read ({error.strerror or error})", field="file") from None
    if not head.removeprefix(BOM).strip():
        raise UserError(f"{file}: is empty; a routing log has a line or an array for each token", field="file")
    return head


def _recognise_by_plugin(file: Path, unknown: UnknownLog) -> str:
    """The name of the first plugin that recognises a file; ``unknown`` with the plugins that cannot be used."""
    head, problems = _read_head(file), []
    lines = [line for line in head.removeprefix(BOM).splitlines() if line.strip()]
    try:
        record = json.loads(lines[0])
    except (ValueError, RecursionError, IndexError):
        record = None
    for name, kind in IMPORTERS.plugins():
        if isinstance(kind, PluginError):
            problems.append(str(kind))
            continue
        try:
            is_line = kind.is_line is not None and isinstance(record, dict) and kind.is_line(record)
            is_binary = kind.magic is not None and head.startswith(kind.magic)
            if is_line or is_binary or (kind.matches is not None and kind.matches(head)):
                return name
        except Exception as error:  # a plugin that cannot even look at a file leaves it to the others
            problems.append(f"the importer {name!r} failed to look at the file ({type(error).__name__}: {error})")
    raise UnknownLog("; ".join([str(unknown), *problems]), field=unknown.field)


def _recognise_text(file: Path, head: bytes) -> str:
    lines = [line for line in head.removeprefix(BOM).splitlines() if line.strip()]
    if is_csv(next((line for line in lines if not line.startswith(b"#")), lines[0])):
        return "llama.cpp"
    if lines[0].lstrip()[:1] in (b"{", b"["):
        record = _first_object(file, lines[0])
        for name, kind in FORMATS.items():
            if isinstance(record, dict) and kind.is_line is not None and kind.is_line(record):
                return name
        if record is None or find_counts(record) is not None:
            return "expert-counts"
        keys = ", ".join(list(record)[:8]) if isinstance(record, dict) else "no object"
        raise UnknownLog(
            f"{file}, line 1: has {keys}, but neither routed_experts nor top_indices nor expert_counts", field="file"
        )
    known = "; ".join(f"{name}: {kind.what}" for name, kind in FORMATS.items())
    raise UnknownLog(f"{file}: is no routing log that is known ({known})", field="file")


def _first_object(file: Path, line: bytes) -> object | None:
    """The first line as JSON; None if it is not a complete value. A long line is recognised by its keys."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        pass
    known = "|".join(key for kind in FORMATS.values() for key in kind.keys)
    if keys := set(re.findall(rf'"({known})"\s*:'.encode(), line)):
        return {key.decode(): None for key in keys}
    if file.stat().st_size > HEAD_BYTES or line.rstrip()[-1:] not in (b"{", b"[", b","):
        raise UnknownLog(f"{file}, line 1: is not JSON; the log is cut off, or one object is spread over lines")
    return None


def _open_shards(folder: Path, format: str | None, announced: Announced, plugins: bool) -> Log:
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    if not files:
        raise UserError(f"the folder {folder} holds no files", field="file")
    logs = [_open_one(file, format, announced, plugins) for file in files]
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
            yield from log.read()

    return replace(first, file=folder, note="; ".join(dict.fromkeys(log.note for log in logs if log.note)), read=read)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:60]} …"
