"""``.npy`` and ``.npz``: a saved ``routed_experts`` array of an engine, and the neutral format as an archive.

Read as a stream, never with pickles: an array of Python objects can run code when it is loaded.
"""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape, layer_names
from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS, Piece
from tokenpaths.engine.adapters.logs.pieces.wording import number_of, unread_note
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.adapters.logs.sample_rows import SampleRows
from tokenpaths.engine.adapters.logs.tensors.batch_inputs import INPUTS, check_axes
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.declared_sizes import check_unfolded

MOST_AT_ONCE = 512 << 20
"""bytes of an array that are read at once"""
NPY_MAGIC = b"\x93NUMPY"
PROMPT_IDS, ROLLOUT_IDS = "prompt_routed_experts", "rollout_routed_experts"
IDS = ("routed_experts", ROLLOUT_IDS, "ids", "expert_ids", "topk_ids")
"""names that say that an array holds ids: it is never taken for scores, whatever kind of number it holds"""
OPTIONAL = ("weights", "token_id", "sample", "label", "text", "num_experts", "model", "layers")
BROKEN_ARCHIVE = (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, zipfile.BadZipFile, zlib.error)
"""errors of the standard library for archives that are damaged, encrypted or packed by an unsupported method"""
PICKLE = "holds pickled Python objects, which can run code when they are loaded, so they are never read; save {}"


def read_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it lies column by column, and dtype of the ``.npy`` that begins here; its errors are NumPy's."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[tuple[int, ...], bool, np.dtype] = read(stream)
    return header


class _Array:
    """One array in a file or an archive, read a few rows at a time."""

    def __init__(self, stream: IO[bytes] | zipfile.ZipExtFile, where: str, size: int) -> None:
        """``size``: bytes of the whole array with its header, an upper bound of every read."""
        self.where = where
        self._stream = stream
        try:
            self.shape, fortran, self.dtype = read_header(stream)
        except (*BROKEN_ARCHIVE, SyntaxError, TypeError, tokenize.TokenError) as error:
            raise UserError(
                f"{where}: is no numpy array, or one that is cut off ({_short(error)})", field="file"
            ) from None
        if any(type(length) is not int or length < 0 for length in self.shape):
            raise UserError(f"{where}: has the impossible shape {str(self.shape)[:80]}", field="file")
        if self.dtype.hasobject:
            raise UserError(f"{where}: {PICKLE.format('plain numbers with numpy.save')}", field="file")
        if fortran and len(self.shape) > 1:
            raise UserError(
                f"{where}: is stored column by column, which cannot be read as a stream; "
                "save numpy.ascontiguousarray(ids)",
                field="file",
            )
        if math.prod(self.shape) * self.dtype.itemsize > size:
            raise self._cut_off()

    def _cut_off(self) -> UserError:
        rows = f"{self.shape[0]} rows are" if self.shape else "a number is"
        return UserError(f"{self.where}: is cut off: {rows} announced, the file ends before", field="file")

    def __len__(self) -> int:
        if not self.shape:
            raise UserError(f"{self.where}: is a single number, it should be an array", field="file")
        return self.shape[0]

    def rows(self, count: int) -> np.ndarray:
        """The next ``count`` rows."""
        row_shape = self.shape[1:]
        wanted = count * math.prod(row_shape) * self.dtype.itemsize
        check_unfolded(wanted, MOST_AT_ONCE, self.where, "file")
        try:
            data = self._stream.read(wanted)
        except BROKEN_ARCHIVE as error:
            raise UserError(f"{self.where}: is damaged ({_short(error)})", field="file") from None
        if len(data) != wanted:
            raise self._cut_off()
        return np.frombuffer(data, dtype=self.dtype).reshape(count, *row_shape)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120].rstrip(".") if str(error) else type(error).__name__


def open_npy(file: Path, announced: Announced) -> Log:
    """A saved array (tokens, layers, top-k)."""
    with file.open("rb") as stream:
        array = _Array(stream, str(file), os.fstat(stream.fileno()).st_size)
        steps, top_k = announced.ids_shape(array.shape, array.dtype, str(file))

    def read() -> Iterator[Piece]:
        with file.open("rb") as stream:
            array = _Array(stream, str(file), os.fstat(stream.fileno()).st_size)
            whole = array.shape[0] <= CUT_TOKENS
            for start in range(0, array.shape[0], CUT_TOKENS):
                ids = array.rows(min(CUT_TOKENS, array.shape[0] - start)).reshape(-1, steps, top_k)
                source = file.name if whole else f"{file.name}, tokens {start} to {start + len(ids) - 1}"
                yield Piece(ids, f"{file}, row {start}", source=source, rows_from=start)

    shape = LogShape(layer_names(steps), top_k, False, by_axes=True)
    return Log(file, "npy", shape, announced.experts, read)


class _Archive:
    """The arrays of a ``.npz`` by name; ``with`` closes the file and what is open in it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._streams: list[IO[bytes]] = []
        try:
            self.zip = zipfile.ZipFile(file)
        except BROKEN_ARCHIVE as error:
            raise UserError(f"{file}: is no whole .npz archive ({_short(error)})", field="file") from None
        self.names = {name.removesuffix(".npy"): name for name in self.zip.namelist()}
        if len(self.names) < len(self.zip.namelist()):
            raise UserError(f"{file}: two arrays have the same name", field="file")
        if any(name.endswith(".pkl") for name in self.names):
            raise UserError(
                f"{file}: {PICKLE.format('the ids as a numpy array, for example ids.numpy() with numpy.save')}",
                field="file",
            )

    def __enter__(self) -> _Archive:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams:  # an array half read would keep the file open
            stream.close()
        self.zip.close()

    def array(self, name: str) -> _Array:
        where = f"{self.file}, array {name!r}"
        try:
            stream, size = self.zip.open(self.names[name]), self.zip.getinfo(self.names[name]).file_size
        except BROKEN_ARCHIVE as error:
            raise UserError(f"{where}: is damaged ({_short(error)})", field="file") from None
        self._streams.append(stream)
        return _Array(stream, where, size)

    def whole(self, name: str) -> np.ndarray | None:
        """All of a small array, None if it is missing."""
        if name not in self.names:
            return None
        array = self.array(name)
        return array.rows(len(array)) if array.shape else array.rows(1)

    def scalar(self, name: str, what: str, kinds: str) -> Any | None:
        """The only value of an array, None if the array is missing; UserError unless it is ``what``."""
        values = self.whole(name)
        if values is None:
            return None
        if values.size != 1 or values.dtype.kind not in kinds:
            held = f"{values.size} values" if values.size != 1 else _kind(values.dtype)
            raise UserError(f"{self.file}, array {name!r}: holds {held}, it should be {what}", field="file")
        return values.reshape(-1)[0].item()


def _kind(dtype: np.dtype) -> str:
    """What an array holds, in words of a person."""
    return {"U": "text", "S": "bytes", "O": "objects", "V": "records"}.get(dtype.kind, dtype.name)


def _label(value: np.generic) -> Any:
    """A value of an array as ``read_label`` knows it."""
    if not isinstance(value, np.datetime64):
        return value.item()
    micros = value.astype("datetime64[us]")
    # NumPy gives times that are finer than microseconds, or far from now, as numbers.
    found = next((one for one in (value.item(), micros.item()) if one is None or isinstance(one, date)), value)
    return str(value).replace("T", " ") if found is value or micros != value and not np.isnat(value) else found


class _LoadedArray(_Array):
    """An array that is in memory already."""

    def __init__(self, values: np.ndarray, where: str) -> None:
        self.where, self.shape, self.dtype = where, values.shape, values.dtype
        self._values, self._taken = values, 0

    def rows(self, count: int) -> np.ndarray:
        """The next ``count`` rows."""
        start, self._taken = self._taken, self._taken + count
        return self._values[start : self._taken] if self.shape else self._values.reshape(1)


class _LoadedArchive(_Archive):
    """Arrays by name that are in memory already, with lists, texts and numbers as a pickle holds them."""

    def __init__(self, file: Path, values: Mapping[str, Any]) -> None:
        self.file, self._streams, self._values = file, [], values
        self.names = {name: name for name in values}

    def __exit__(self, *_: object) -> None:
        return

    def array(self, name: str) -> _Array:
        where = f"{self.file}, array {name!r}"
        return _LoadedArray(as_array(self._values[name], where), where)


def as_array(value: Any, where: str) -> np.ndarray:
    """An array, or what a pickle holds in its place: a number, a text, or a list of either.

    Raises:
        UserError: it is something else, or a list of both.
    """
    if isinstance(value, np.ndarray):
        return value
    held = value if isinstance(value, list | tuple) else [value]
    kinds = {type(one) for one in held}
    if not kinds or not (kinds <= {str} or kinds <= {int, float} or kinds <= {bool}):
        names = " and ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise UserError(
            f"{where}: holds {names}, it should be an array, or a list of numbers or of words", field="file"
        )
    try:
        return np.array(value)
    except OverflowError:
        raise UserError(f"{where}: holds a number of more than 64 bits", field="file") from None


def open_npz(file: Path, announced: Announced) -> Log:
    """Open the neutral archive (``ids`` and its companions), or the two arrays of an engine's request."""
    return _open_neutral(file, lambda: _Archive(file), "npz", announced)


def open_named(file: Path, values: Mapping[str, Any], announced: Announced) -> Log:
    """As ``open_npz``, of values that were read from another kind of file."""
    return _open_neutral(file, lambda: _LoadedArchive(file, values), "tensors", announced)


def _open_neutral(file: Path, opened: Callable[[], _Archive], kind: str, announced: Announced) -> Log:
    with opened() as archive:
        prompt = PROMPT_IDS in archive.names
        named = [name for name in IDS if name in archive.names]
        if not named and not prompt:
            raise UserError(
                f"{file}: has the arrays {', '.join(archive.names) or 'none'}, but no 'ids' (tokens, layers, top-k)",
                field="file",
            )
        check_one(file, named)
        _refuse_near_misses(file, archive.names)
        id_names = ([] if not prompt else [PROMPT_IDS]) + named
        shapes = {}
        for name in id_names:
            array = archive.array(name)
            shapes[name] = announced.ids_shape(array.shape, array.dtype, array.where)
            if kind == "npz" and not prompt and len(array.shape) == 3:
                counted = {other: math.prod(archive.array(other).shape) for other in INPUTS if other in archive.names}
                what = f"{array.where} of shape {array.shape}"
                check_axes(counted, what, "(tokens, layers, top-k)", array.shape[0], array.shape[1])
        if len(set(shapes.values())) > 1:
            sizes = " and ".join(f"{name} has {steps} × {top_k}" for name, (steps, top_k) in shapes.items())
            raise UserError(f"{file}: prompt and answer have different layers or top-k ({sizes})", field="file")
        steps, top_k = shapes[id_names[-1]]
        experts = announced.num_experts(archive.scalar("num_experts", "one whole number", "iu"), str(file))
        model_name = archive.scalar("model", "one name", "U")
        layers = archive.whole("layers")
        has_weights = "weights" in archive.names
    if layers is not None and (layers.ndim != 1 or layers.dtype.kind not in "Uiu"):
        raise UserError(f"{file}, array 'layers': should be a row of names, one a layer", field="file")
    names = layer_names(steps) if layers is None else tuple(map(str, layers.tolist()))
    if len(names) != steps:
        raise UserError(f"{file}: names {number_of(len(names), 'layer')}, but the ids have {steps}", field="file")

    def read() -> Iterator[Piece]:
        with opened() as archive:
            if prompt:
                arrays = [archive.whole(name) for name in id_names]
                parts = [array.reshape(-1, steps, top_k) for array in arrays if array is not None]
                yield Piece(np.concatenate(parts), str(file), source=file.name)
            else:
                yield from _samples(archive, id_names[0], steps, top_k, has_weights)

    known = (*id_names, *OPTIONAL) if not prompt else (*id_names, "num_experts", "model", "layers")
    note = unread_note("arrays", [name for name in archive.names if name not in known])
    shape = LogShape(names, top_k, has_weights, by_axes=layers is None)
    return Log(file, kind, shape, experts, read, model_name, note)


def check_one(file: Path, named: Sequence[str]) -> None:
    """Refuse several arrays whose names say that they hold the ids."""
    if len(named) > 1:
        raise UserError(
            f"{file}: has {' and '.join(map(repr, named))}; ids are one array, remove the other", field="file"
        )


def _refuse_near_misses(file: Path, names: Iterable[str]) -> None:
    """Refuse arrays whose names nearly match a known one: they would be ignored silently."""
    read = (*IDS, PROMPT_IDS, *OPTIONAL)
    for name in names:
        if name not in read and (close := get_close_matches(name.lower(), read, n=1, cutoff=0.8)):
            raise UserError(
                f"{file}: the array {name!r} is not read; is it {close[0]!r}? Rename or remove it", field="file"
            )


KINDS = {
    "weights": ("fiub", "numbers from 0 to 1"),
    "token_id": ("iu", "whole numbers, one a token"),
    "sample": ("iuUS", "whole numbers or names, one a token"),
}
"""kinds of numpy's types that an array beside the ids may have, in letters and in words"""


def _samples(archive: _Archive, name: str, steps: int, top_k: int, has_weights: bool) -> Iterator[Piece]:
    """Group tokens with the same number in ``sample``; without it they are cut into samples."""
    ids = archive.array(name)
    count = len(ids)
    columns = {other: archive.array(other) for other in ("weights", "token_id", "sample") if other in archive.names}
    for other, array in columns.items():
        if len(array) != count:
            tokens = "is 1 token" if count == 1 else f"are {count} tokens"
            raise UserError(f"{array.where}: has {number_of(len(array), 'row')}, but there {tokens}", field="file")
        right = ((steps, top_k), (steps * top_k,)) if other == "weights" else ((),)
        if array.shape[1:] not in right:
            wanted = (count, *right[0])
            raise UserError(f"{array.where}: has shape {array.shape}, it should be {wanted}", field="file")
        kinds, held = KINDS[other]
        if array.dtype.kind not in kinds:
            raise UserError(f"{array.where}: is {_kind(array.dtype)}, it should be {held}", field="file")
    texts = {other: values for other in ("label", "text") if (values := archive.whole(other)) is not None}
    for column, values in texts.items():
        if values.ndim != 1 or values.dtype.kind not in ("UiufbMS" if column == "label" else "Uiu"):
            held = f"holds {_kind(values.dtype)} of shape {values.shape}"
            entries = "words, numbers or dates" if column == "label" else "words"
            raise UserError(
                f"{archive.file}, array {column!r}: {held}, it should be a row of {entries}, one a sample", field="file"
            )
    if "sample" not in columns and texts:
        raise UserError(f"{archive.file}: label and text go with 'sample', the sample of each token", field="file")
    samples = SampleRows(str(archive.file))

    def words(position: int) -> dict[str, Any]:
        for name, values in texts.items():
            if position >= len(values):
                raise UserError(f"{archive.file}: has {_entries(values)} in {name!r}, but more samples", field="file")
        read: dict[str, Callable[[Any], Any]] = {"label": _label, "text": str}
        return {name: read[name](values[position]) for name, values in texts.items()}

    for start in range(0, count, CUT_TOKENS):
        n = min(CUT_TOKENS, count - start)
        part: dict[str, Any] = {other: array.rows(n) for other, array in columns.items()}
        rows = ids.rows(n).reshape(n, steps, top_k)
        weights = part["weights"].reshape(n, steps, top_k) if has_weights else None
        if weights is not None and weights.dtype.kind != "f":  # 0 and 1 may be saved as whole numbers
            weights = weights.astype(np.float32)
        sample = samples.numbered(part.get("sample"), start)
        yield from samples.add(rows, weights, part.get("token_id"), sample, start)
        yield from samples.ready(words)
    yield from samples.ready(words, end=True)
    for name, values in texts.items():
        if len(values) != samples.num_samples:
            held = number_of(samples.num_samples, "sample")
            raise UserError(f"{archive.file}: has {_entries(values)} in {name!r}, but {held}", field="file")


def _entries(values: np.ndarray) -> str:
    return "1 entry" if len(values) == 1 else f"{len(values)} entries"
