"""``.npy`` and ``.npz``: what an engine's ``routed_experts`` is when it is saved, and the neutral format.

Read as a stream, never with pickles: an array of Python objects can run code when it is loaded.
"""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

import numpy as np

from tokenpaths.engine.adapters.logs.log import CUT_TOKENS, Asked, Log, Piece, Shape, announced_experts
from tokenpaths.engine.base.errors import UserError

NPY_MAGIC = b"\x93NUMPY"
IDS = ("ids", "routed_experts", "expert_ids", "topk_ids")
OPTIONAL = ("weights", "token_id", "sample", "label", "text", "num_experts", "model", "layers")
BROKEN_ARCHIVE = (OSError, EOFError, RuntimeError, NotImplementedError, ValueError, zipfile.BadZipFile, zlib.error)
"""what the standard library raises on archives that are damaged, encrypted or packed in a way it does not know"""
PICKLE = "holds pickled Python objects, which can run code when they are loaded, so they are never read; save {}"


class _Array:
    """One array in a file or an archive, read a few rows at a time."""

    def __init__(self, stream: IO[bytes] | zipfile.ZipExtFile, where: str, size: int) -> None:
        """``size``: bytes of the whole array with its head, so that no more is asked for than there is."""
        self.where = where
        self._stream = stream
        try:
            version = np.lib.format.read_magic(stream)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, fortran, self.dtype = read(stream)
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
        try:
            data = self._stream.read(wanted)
        except BROKEN_ARCHIVE as error:
            raise UserError(f"{self.where}: is damaged ({_short(error)})", field="file") from None
        if len(data) != wanted:
            raise self._cut_off()
        return np.frombuffer(data, dtype=self.dtype).reshape(count, *row_shape)


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:120].rstrip(".") if str(error) else type(error).__name__


def ids_shape(shape: tuple[int, ...], dtype: np.dtype, asked: Asked, where: str) -> tuple[int, int]:
    """(S, K) of ids of this shape: (tokens, S, K), (tokens, S·K) with the user's word, or (tokens, S) for K = 1."""
    if dtype.kind not in "iu":
        raise UserError(f"{where}: the ids are {dtype}, they should be whole numbers", field="file")
    if len(shape) == 3 and shape[1] and shape[2]:
        found = shape[1], shape[2]
    elif len(shape) == 2 and shape[1] and (asked.layers or asked.top_k):
        layers = asked.layers or shape[1] // (asked.top_k or 1)
        found = layers, shape[1] // layers
        if found[0] * found[1] != shape[1]:
            raise UserError(f"{where}: {shape[1]} ids a token are not {layers} layers of the same size", field="layers")
    else:
        raise UserError(
            f"{where}: the ids have shape {shape}, they should be (tokens, layers, top-k); "
            "of flat ids say --layers or --top-k",
            field="file",
        )
    for name, given, is_ in (("layers", asked.layers, found[0]), ("top_k", asked.top_k, found[1])):
        if given is not None and given != is_:
            raise UserError(f"{where}: has {is_} {name.replace('_', '-')}, not {given} as announced", field=name)
    return found


def _layer_names(count: int) -> tuple[str, ...]:
    return tuple(f"layer {layer}" for layer in range(count))


def open_npy(file: Path, asked: Asked) -> Log:
    """A saved array (tokens, layers, top-k)."""
    with file.open("rb") as stream:
        array = _Array(stream, str(file), os.fstat(stream.fileno()).st_size)
        steps, top_k = ids_shape(array.shape, array.dtype, asked, str(file))

    def read() -> Iterator[Piece]:
        with file.open("rb") as stream:
            array = _Array(stream, str(file), os.fstat(stream.fileno()).st_size)
            whole = array.shape[0] <= CUT_TOKENS
            for start in range(0, array.shape[0], CUT_TOKENS):
                ids = array.rows(min(CUT_TOKENS, array.shape[0] - start)).reshape(-1, steps, top_k)
                source = file.name if whole else f"{file.name}, tokens {start} to {start + len(ids) - 1}"
                yield Piece(ids, f"{file}, row {start}", source=source, rows_from=start)

    return Log(file, "npy", Shape(_layer_names(steps), top_k, False), asked.experts, _read=read)


class _Archive:
    """The arrays of a ``.npz`` by name."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self.zip = zipfile.ZipFile(file)
        except BROKEN_ARCHIVE as error:
            raise UserError(f"{file}: is no whole .npz archive ({_short(error)})", field="file") from None
        self.names = {name.removesuffix(".npy"): name for name in self.zip.namelist()}
        if any(name.endswith(".pkl") for name in self.names):
            raise UserError(
                f"{file}: {PICKLE.format('the ids as a numpy array, for example ids.numpy() with numpy.save')}",
                field="file",
            )

    def array(self, name: str) -> _Array:
        where = f"{self.file}, array {name!r}"
        try:
            stream, size = self.zip.open(self.names[name]), self.zip.getinfo(self.names[name]).file_size
        except BROKEN_ARCHIVE as error:
            raise UserError(f"{where}: is damaged ({_short(error)})", field="file") from None
        return _Array(stream, where, size)

    def whole(self, name: str) -> np.ndarray | None:
        """All of a small array, None where there is none."""
        if name not in self.names:
            return None
        array = self.array(name)
        return array.rows(len(array)) if array.shape else array.rows(1)

    def one(self, name: str, what: str, kinds: str) -> Any | None:
        """The only value of an array, None where there is no array; UserError unless it is ``what``."""
        found = self.whole(name)
        if found is None:
            return None
        if found.size != 1 or found.dtype.kind not in kinds:
            name_of_kind = "text" if found.dtype.kind == "U" else found.dtype.name
            held = f"{found.size} values" if found.size != 1 else name_of_kind
            raise UserError(f"{self.file}, array {name!r}: holds {held}, it should be {what}", field="file")
        return found.reshape(-1)[0].item()


def open_npz(file: Path, asked: Asked) -> Log:
    """The neutral archive: ``ids`` and what goes with them; or an engine's two arrays of one request."""
    archive = _Archive(file)
    with archive.zip:
        prompt = "prompt_routed_experts" in archive.names
        named = [name for name in IDS if name in archive.names]
        if not named and not prompt:
            raise UserError(
                f"{file}: has the arrays {', '.join(archive.names) or 'none'}, but no 'ids' (tokens, layers, top-k)",
                field="file",
            )
        if len(named) > 1:
            raise UserError(
                f"{file}: has {' and '.join(map(repr, named))}; ids are one array, remove the other", field="file"
            )
        _refuse_near_misses(file, archive.names)
        id_names = ([] if not prompt else ["prompt_routed_experts"]) + named
        shapes = {}
        for name in id_names:
            array = archive.array(name)
            shapes[name] = ids_shape(array.shape, array.dtype, asked, array.where)
        if len(set(shapes.values())) > 1:
            said = " and ".join(f"{name} has {steps} × {top_k}" for name, (steps, top_k) in shapes.items())
            raise UserError(f"{file}: prompt and answer have different layers or top-k ({said})", field="file")
        steps, top_k = shapes[id_names[-1]]
        announced = announced_experts(archive.one("num_experts", "one whole number", "iu"), asked, str(file))
        model_name = archive.one("model", "one name", "U")
        layers = archive.whole("layers")
        has_weights = "weights" in archive.names
    if layers is not None and (layers.ndim != 1 or layers.dtype.kind not in "Uiu"):
        raise UserError(f"{file}, array 'layers': should be a row of names, one a layer", field="file")
    names = _layer_names(steps) if layers is None else tuple(map(str, layers.tolist()))
    if len(names) != steps:
        raise UserError(f"{file}: names {len(names)} layers, but the ids have {steps}", field="file")

    def read() -> Iterator[Piece]:
        archive = _Archive(file)
        with archive.zip:
            if prompt:
                parts = [archive.whole(name).reshape(-1, steps, top_k) for name in id_names]
                yield Piece(np.concatenate(parts), str(file), source=file.name)
            else:
                yield from _samples(archive, id_names[0], steps, top_k, has_weights)

    return Log(file, "npz", Shape(names, top_k, has_weights), announced, model_name, _read=read)


def _refuse_near_misses(file: Path, names: Iterable[str]) -> None:
    """An array that is all but called like one that is read would be lost without a word."""
    read = (*IDS, "prompt_routed_experts", *OPTIONAL)
    for name in names:
        if name not in read and (close := get_close_matches(name.lower(), read, n=1, cutoff=0.8)):
            raise UserError(
                f"{file}: the array {name!r} is not read; is it {close[0]!r}? Rename or remove it", field="file"
            )


def _samples(archive: _Archive, name: str, steps: int, top_k: int, has_weights: bool) -> Iterator[Piece]:
    """Tokens with the same number in ``sample`` are one sample; without it they are cut."""
    ids = archive.array(name)
    count = len(ids)
    columns = {other: archive.array(other) for other in ("weights", "token_id", "sample") if other in archive.names}
    for other, array in columns.items():
        if len(array) != count:
            raise UserError(f"{array.where}: has {len(array)} rows, but there are {count} tokens", field="file")
        right = ((steps, top_k), (steps * top_k,)) if other == "weights" else ((),)
        if array.shape[1:] not in right:
            wanted = (count, *right[0])
            raise UserError(f"{array.where}: has shape {array.shape}, it should be {wanted}", field="file")
        if array.dtype.kind not in ("f" if other == "weights" else "iu"):
            raise UserError(f"{array.where}: is {array.dtype}, the wrong kind of number", field="file")
    texts = {other: found for other in ("label", "text") if (found := archive.whole(other)) is not None}
    for other, values in texts.items():
        if values.ndim != 1 or values.dtype.kind not in "Uiu":
            raise UserError(f"{archive.file}, array {other!r}: should be a row of words, one a sample", field="file")
    if "sample" not in columns and texts:
        raise UserError(f"{archive.file}: label and text go with 'sample', the sample of each token", field="file")
    samples = TokenRuns(str(archive.file))

    def words(position: int) -> dict[str, str | None]:
        for name, values in texts.items():
            if position >= len(values):
                raise UserError(
                    f"{archive.file}: has {len(values)} entries in {name!r}, but more samples", field="file"
                )
        return {name: str(values[position]) for name, values in texts.items()}

    for start in range(0, count, CUT_TOKENS):
        n = min(CUT_TOKENS, count - start)
        part: dict[str, Any] = {other: array.rows(n) for other, array in columns.items()}
        rows = ids.rows(n).reshape(n, steps, top_k)
        weights = part["weights"].reshape(n, steps, top_k) if has_weights else None
        yield from samples.add(rows, weights, part.get("token_id"), part.get("sample"), start)
        yield from samples.ready(words)
    yield from samples.ready(words, end=True)
    for name, values in texts.items():
        if len(values) != samples.num_samples:
            there = f"{len(values)} entries in {name!r}"
            raise UserError(f"{archive.file}: has {there}, but {samples.num_samples} samples", field="file")


class TokenRuns:
    """Collects tokens that come a block at a time into samples: runs of the same number in ``sample``.

    A sample of more than ``CUT_TOKENS`` is handed out in pieces of so many, so that it is never held whole.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._parts: list[tuple] = []
        self._held = 0
        self._number: int | None = None
        self._position = -1
        self._start = 0
        self._taken = 0
        self._done: list[tuple[int, bool, Piece]] = []

    @property
    def num_samples(self) -> int:
        """Samples that have begun so far."""
        return self._position + 1

    def add(self, ids, weights, token_id, sample, start: int) -> Iterator[Piece]:
        """Take rows ``start`` … of the file; yields samples at once where there are no numbers."""
        if sample is None:
            rows = f"rows {start} to {start + len(ids) - 1}"
            yield Piece(ids, f"{self.where}, row {start}", weights, token_id, source=rows, rows_from=start)
            return
        bounds = [0, *(np.flatnonzero(np.diff(sample)) + 1).tolist(), len(sample)]
        for low, high in zip(bounds[:-1], bounds[1:], strict=True):
            number = int(sample[low])
            if number != self._number:
                if self._number is not None and number < self._number:
                    raise UserError(
                        f"{self.where}, row {start + low}: sample {number} comes after sample {self._number}; "
                        "the tokens of a sample stand together, samples in rising order",
                        field="file",
                    )
                self._finish()
                self._number, self._start, self._position = number, start + low, self._position + 1
                self._taken = 0
            for place in range(low, high, CUT_TOKENS):
                part = slice(place, min(place + CUT_TOKENS, high))
                columns = (ids, weights, token_id)
                self._parts.append(tuple(None if values is None else values[part] for values in columns))
                self._held += part.stop - part.start
                if self._held > CUT_TOKENS:
                    self._hand_out(CUT_TOKENS)

    def _joined(self) -> list[np.ndarray | None]:
        return [None if column[0] is None else np.concatenate(column) for column in zip(*self._parts, strict=True)]

    def _hand_out(self, count: int, cut: bool = True) -> None:
        columns = self._joined()
        ids, weights, token_id = (None if column is None else column[:count] for column in columns)
        row = self._start + self._taken
        source = f"sample {self._number}"
        if cut:
            source = f"{source}, tokens {self._taken} to {self._taken + count - 1}"
        piece = Piece(ids, f"{self.where}, row {row}", weights, token_id, source=source, rows_from=row)
        self._done.append((self._position, cut, piece))
        self._taken += count
        self._held -= count
        left = tuple(None if column is None else column[count:] for column in columns)
        self._parts = [left] if self._held else []

    def _finish(self) -> None:
        if self._parts:
            self._hand_out(self._held, cut=self._taken > 0)

    def ready(self, words: Callable[[int], dict[str, str | None]], end: bool = False) -> Iterator[Piece]:
        """Pieces that are complete, with ``words`` (label and text) of their sample; a cut one has no text."""
        if end:
            self._finish()
        for position, cut, piece in self._done:
            found = words(position)
            yield replace(piece, **({**found, "text": None} if cut else found))
        self._done = []
