"""The formats of routing logs: the table of readers, recognition by content, and folders of shards.

A new format is a file beside this one and a row in ``FORMATS``, or a plugin: an entry point of the group
``tokenpaths.importers`` that is a ``Format`` (``docs/extending.md``). Formats are documented in ``docs/import.md``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.logs.counts.count_tables import (
    is_statistics_folder,
    is_tokens_per_expert,
    open_statistics,
    open_tokens_per_expert,
)
from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts, find_counts, find_domains, read_counts
from tokenpaths.engine.adapters.logs.counts.imatrix import MAGIC as GGUF
from tokenpaths.engine.adapters.logs.counts.imatrix import open_imatrix
from tokenpaths.engine.adapters.logs.json_lines import BOM, is_json, no_text, read_head, rest_of
from tokenpaths.engine.adapters.logs.passes.csv_columns import is_csv
from tokenpaths.engine.adapters.logs.passes.layer_records import (
    is_layer_binary,
    is_layer_record,
    open_layer_binary,
    open_layer_lines,
)
from tokenpaths.engine.adapters.logs.passes.llamacpp import open_csv
from tokenpaths.engine.adapters.logs.passes.megatron import is_megatron_line, open_megatron, open_traces
from tokenpaths.engine.adapters.logs.pieces.announced import Announced
from tokenpaths.engine.adapters.logs.pieces.wording import few_names, shortened, unread_note
from tokenpaths.engine.adapters.logs.responses.answers import is_sglang_line, is_vllm_line, open_engine
from tokenpaths.engine.adapters.logs.responses.envelopes import is_no_response
from tokenpaths.engine.adapters.logs.routing_log import Log, one_log, without_dense_layers
from tokenpaths.engine.adapters.logs.tables.column_map import open_mapped
from tokenpaths.engine.adapters.logs.tables.flame_moe import is_trace_folder, open_trace_folder
from tokenpaths.engine.adapters.logs.tables.neutral_parquet import open_parquet
from tokenpaths.engine.adapters.logs.tensors.batch_inputs import BESIDE_SCORES
from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import IDS, NPY_MAGIC, PROMPT_IDS, open_npy, open_npz
from tokenpaths.engine.adapters.logs.tensors.tensor_files import (
    array_shapes,
    first_name,
    is_tensor_file,
    is_torch_archive,
    names_in,
    read_whole,
)
from tokenpaths.engine.adapters.logs.tensors.tensor_logs import open_tensors, open_value
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import check_rereadable
from tokenpaths.engine.base.plugins import PluginError, PluginRegistry
from tokenpaths.engine.data.labels import MOST_CHARACTERS
from tokenpaths.engine.store.file.checks import check_text

COLUMN_MAP = "a column map (--map, in a job the field `map`)"
Opener = Callable[[Path, Announced], Log]


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
    is_folder: Callable[[Path, list[Path]], bool] | None = None
    """whether a folder, with these files in it, is one log of this format"""
    open_folder: Callable[[Path, list[Path], Announced], Log] | None = None
    """opens such a folder, or several files of one log"""


def _open_counts(file: Path, announced: Announced) -> Log:
    raise OnlyCounts(file, read_counts(file, announced))


def _open_array(file: Path, announced: Announced) -> Log:
    with file.open("rb") as stream:
        head = stream.read(1024)
    shape = re.search(rb"'descr': '[<|][iu]\d'.*'shape': \(([\d, ]+)\)", head)
    if shape is not None and len(shape[1].strip(b", ").split(b",")) == 4:  # sequences apart, as verl pads them
        return open_value(file, read_whole(file), announced)
    return without_dense_layers(open_npy(file, announced), announced.skip_bad)


def _open_archive(file: Path, announced: Announced) -> Log:
    arrays = array_shapes(file)
    scored = [
        kind == "f" and len(shape) in (2, 3) for name, (shape, kind) in arrays.items() if name not in BESIDE_SCORES
    ]
    scores = bool(scored) and all(scored) and arrays.keys().isdisjoint((*IDS, PROMPT_IDS))
    padded = any(kind in "iu" and len(shape) == 4 for shape, kind in arrays.values())
    ids = {shape[1:] for shape, kind in arrays.values() if kind in "iu" and len(shape) == 3}
    unnamed = len(ids) == 1 and len(arrays) > 1 and arrays.keys().isdisjoint((*IDS, PROMPT_IDS))
    if scores or padded or unnamed:
        return open_value(file, read_whole(file), announced)
    return without_dense_layers(open_npz(file, announced), announced.skip_bad)


def _only_folder(file: Path, announced: Announced) -> Log:
    raise UserError(f"{file}: is one file of a log that is a folder; import the folder", field="file")


FORMATS: dict[str, Format] = {
    "npy": Format(_open_array, "a numpy array (tokens, layers, top-k)", NPY_MAGIC),
    "npz": Format(_open_archive, "arrays as .npz: the neutral format, or scores of routers", b"PK\x03\x04"),
    "parquet": Format(open_parquet, "the neutral format as Parquet", b"PAR1"),
    "tensors": Format(
        open_tensors,
        "tensors as .pt, .pkl or .safetensors: SGLang's recorder, rollouts of slime and verl, scores of routers",
        matches=is_tensor_file,
    ),
    "vllm": Format(
        open_engine,
        "responses of vLLM or Dynamo as JSON",
        is_line=is_vllm_line,
        keys=("routed_experts", "prompt_routed_experts", "choices", "custom_id"),
    ),
    "sglang": Format(open_engine, "responses of SGLang as JSON", is_line=is_sglang_line, keys=("meta_info", "sglext")),
    "megatron": Format(
        open_megatron,
        "Megatron-LM's router trace",
        is_line=is_megatron_line,
        keys=("top_indices", "layer"),
        open_folder=open_traces,
    ),
    "llama.cpp": Format(open_csv, "llama.cpp's routing CSV"),
    "layer-lines": Format(
        open_layer_lines, "a JSON line a token and layer", is_line=is_layer_record, keys=("selected_ids", "layer_idx")
    ),
    "layer-binary": Format(open_layer_binary, "int32 records: layer, tokens, top-k, ids", matches=is_layer_binary),
    "flame-moe": Format(
        _only_folder, "a folder of FLAME-MoE's traces", is_folder=is_trace_folder, open_folder=open_trace_folder
    ),
    "expert-counts": Format(_open_counts, "counts of tokens by expert as JSON"),
    "tokens-per-expert": Format(
        open_tokens_per_expert, "Megatron-LM's counts of tokens by expert", is_line=is_tokens_per_expert, keys=("tpe",)
    ),
    "trtllm": Format(
        _only_folder,
        "a folder of TensorRT-LLM's statistics",
        is_folder=is_statistics_folder,
        open_folder=open_statistics,
    ),
    "imatrix": Format(open_imatrix, "llama.cpp's importance matrix (GGUF)", magic=GGUF),
}
_ALIKE = ({"vllm", "sglang"}, {"llama.cpp", "layer-lines", "layer-binary"})
"""formats that are told apart by what they hold, whichever of them is named"""


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
    sequences: int | None = None,
    skip_bad: bool = False,
    column_map: Path | None = None,
    model: str | None = None,
    plugins: bool = True,
) -> Log:
    """Open a log, or a folder of shards of one log (sorted by name); the format is detected by content.

    Args:
        path: The file or folder.
        format: Expected format; by default any.
        layers, top_k, experts: Sizes that the log does not state; checked against those that it states.
        sequences: Sequences that lie interleaved in a forward pass (the micro-batch size of a training).
        skip_bad: Leave out what cannot be read, and count it in the run's notes.
        model: Name of the one model that all responses are of, whatever they name (adapters of it, perhaps).
        column_map: A column map (TOML) for a table that no format describes.
        plugins: Whether plugins are asked, and imported for it, where no format of this program is recognised.

    Raises:
        OnlyCounts: the file holds sums over tokens.
        UnknownLog: no format was recognised.
        UserError: it is not a readable log; the message describes its content.
    """
    path = Path(path)
    check_rereadable(path, "a log")
    announced = Announced(layers, top_k, experts, sequences, skip_bad, model)
    sizes = (("layers", layers), ("top_k", top_k), ("experts", experts), ("sequences", sequences))
    for name, value in sizes:
        if value is not None and not 1 <= value <= 65_536:
            raise UserError(f"{name} is {value}, it should be from 1 to 65536", field=name)
    _check_name(format)
    if column_map is not None:
        return replace(open_mapped(path, column_map, announced), skip_bad=skip_bad)
    if path.is_dir():
        log = _open_folder(path, format, announced, plugins)
    else:
        log = _open_one(path, format, announced, plugins)
    return replace(log, skip_bad=skip_bad)


def check_beginning(file: Path, format: str | None, skip_bad: bool = False) -> None:
    """Refuse an unknown ``format``, and a file that does not begin like a log; no plugin is imported.

    Raises:
        UserError: as ``open_log``.
    """
    _check_name(format)
    try:
        if format is None or format in FORMATS:
            recognise(file, skip_bad)
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
        name = recognise(file, announced.skip_bad)
    except UnknownLog as unknown:
        if not plugins or format is not None:
            raise
        return _open_with_plugin(_recognise_by_plugin(file, unknown), file, announced)
    if format is not None and format != name and not any({format, name} <= alike for alike in _ALIKE):
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
                f"are kept ({shortened(text)})",
                field="file",
            )


def recognise(file: Path, skip_bad: bool = False) -> str:
    """A format of this program by what a file holds; with ``skip_bad`` by the first line that can be read.

    Raises:
        UnknownLog: none of ``FORMATS`` matches.
        UserError: it cannot be read.
    """
    head = read_head(file)
    for name, kind in FORMATS.items():
        if kind.matches is not None and kind.matches(head):
            return name
        if kind.magic is not None and head.startswith(kind.magic):
            return name if name != "npz" else _kind_of_archive(file)
    if problem := no_text(head):
        raise UnknownLog(f"{file}: is {problem}", field="file")
    return _recognise_text(file, head, skip_bad)


def _kind_of_archive(file: Path) -> str:
    names = names_in(file) or first_name(file)  # of an archive that is cut off, the list at its end is missing
    if names and not any(name.endswith((".npy", ".pkl")) for name in names):
        raise UnknownLog(f"{file}: {few_names('is a zip archive; unpack it first. It holds', names)}", field="file")
    return "tensors" if is_torch_archive(names) else "npz"


def _recognise_by_plugin(file: Path, unknown: UnknownLog) -> str:
    """The name of the first plugin that recognises a file; ``unknown`` with the plugins that cannot be used."""
    head, problems = read_head(file), []
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


def _recognise_text(file: Path, head: bytes, skip_bad: bool) -> str:
    lines = [line for line in head.removeprefix(BOM).splitlines() if line.strip()]
    row = next((line for line in lines if not line.startswith(b"#")), lines[0])
    first = _data(next((line for line in lines if not line.lstrip().startswith((b":", b"event:", b"id:"))), lines[0]))
    if first[:1] not in (b"{", b"[") and is_csv(row, lines[0]):  # a text in JSON may read like the names of columns
        return "llama.cpp"
    if is_no_response(first) or (skip_bad and not is_json(first)):
        told = (line for line in map(_data, lines) if line[:1] in (b"{", b"[") and not is_no_response(line))
        first = next((line for line in told if not skip_bad or is_json(line)), first)
    if first[:1] in (b"{", b"["):
        record = _first_object(file, first, head)
        if (name := _format_of(record)) is not None:
            return name
        if record is None or find_counts(record) is not None or find_domains(record):
            return "expert-counts"
        keys = (", ".join(list(record)[:8]) or "no keys") if isinstance(record, dict) else "no object"
        raise UnknownLog(
            f"{file}, line 1: has {keys[:400]}, but neither routed_experts nor top_indices nor expert_counts; a table "
            f"of another layout needs {COLUMN_MAP}",
            field="file",
        )
    raise UnknownLog(
        f"{file}: is no routing log that is known: a table needs {COLUMN_MAP}; the formats are {', '.join(FORMATS)}",
        field="file",
    )


def _format_of(record: object) -> str | None:
    """The format of JSON lines that begin with this value."""
    while isinstance(record, list) and record:
        record = record[0]
    if not isinstance(record, dict):
        return None
    return next((name for name, kind in FORMATS.items() if kind.is_line is not None and kind.is_line(record)), None)


def _data(line: bytes) -> bytes:
    """A line without what a server-sent event has before its data."""
    return line.strip().removeprefix(b"data:").strip()


def _first_object(file: Path, line: bytes, head: bytes) -> object | None:
    """The first line as JSON, or the file if it is one value; None if neither is complete. A long line is recognised by
    its keys."""
    for text in (line, head):
        try:
            return json.loads(text.removeprefix(BOM))
        except (ValueError, RecursionError):
            pass
    known = re.compile(rf'"({"|".join(key for kind in FORMATS.values() for key in kind.keys)})"\s*:'.encode())
    unfinished, cut = line.rstrip()[-1:] in (b"{", b"[", b","), head.rstrip().endswith(line)
    keys = dict.fromkeys(map(bytes.decode, known.findall(head if unfinished else line)))
    if unfinished or cut:
        for part in rest_of(file, head, one_line=cut):
            if _format_of(keys) in ("vllm", "sglang"):  # whatever follows: no other goes before them
                break
            keys |= dict.fromkeys(map(bytes.decode, known.findall(part)))
    if keys:
        return keys
    if file.stat().st_size > len(head) or not unfinished:
        raise UnknownLog(f"{file}, line 1: is not JSON; the log is cut off, or one object is spread over lines")
    return None


def _open_folder(folder: Path, format: str | None, announced: Announced, plugins: bool) -> Log:
    """A folder: one log of a format that is a folder, or files of one log."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    for name, kind in FORMATS.items():
        if format in (None, name) and kind.is_folder and kind.open_folder and kind.is_folder(folder, files):
            return kind.open_folder(folder, files, announced)
    inner = sorted(inside.name for inside in folder.iterdir() if inside.is_dir() and not inside.name.startswith("."))
    if not files:
        beside = few_names("; a folder in it would be a log of its own", inner)
        raise UserError(f"the folder {folder} holds no files{beside}", field="file")
    known: dict[Path, str | None] = {}
    unknown: UserError | None = None
    for file in files:
        try:
            known[file] = recognise(file, announced.skip_bad)
        except UserError as error:
            if not (announced.skip_bad or isinstance(error, UnknownLog)):
                raise
            unknown = unknown or error
    for name, kind in FORMATS.items():
        ours = [file for file, found in known.items() if found == name]
        if ours and kind.open_folder and format in (None, name):
            return _with_unread(kind.open_folder(folder, ours, announced), files, ours, inner)
    if not known or plugins and IMPORTERS.plugin_names() or format not in (None, *FORMATS):
        if unknown is not None and not known and not IMPORTERS.plugin_names():
            raise unknown
        known = dict.fromkeys(files)
    log = one_log(folder, list(known), lambda file: _open_one(file, format, announced, plugins), announced.skip_bad)
    return _with_unread(log, files, list(known), inner)


def _with_unread(log: Log, files: list[Path], read: list[Path], inner: list[str]) -> Log:
    """The log with a note on other files of its folder, and on the folders in it."""
    unread = unread_note("files", [file.name for file in files if file not in read and file not in log.beside])
    notes = [log.note, unread, unread_note("folders in this one", inner)]
    return replace(log, note="; ".join(filter(None, notes)))
