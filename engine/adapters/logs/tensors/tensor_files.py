"""Values in ``.pt``, ``.pkl`` and ``.safetensors`` files without running code: numbers, texts, containers and arrays.

Pickles are read by an unpickler that knows containers, counters, numpy arrays and PyTorch tensors, and nothing else; it
is used in the confined child only, as every reader of strangers' bytes. PyTorch itself is not needed: tensors become
arrays of their storages.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
import pickletools
import tokenize
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import BROKEN_ARCHIVE, read_header
from tokenpaths.engine.base.errors import UserError

MOST_BYTES = 2 << 30
"""of a file that is read whole"""
STORAGES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_LOCAL_HEADER = 30
"""bytes before the name of a part of a zip archive"""
UNSIGNED = {"uint16": "<u2", "uint32": "<u4", "uint64": "<u8"}
"""dtypes without a storage of their own"""
NOT_KNOWN = (
    "holds {}, which this program does not load: a pickle can run code when it is loaded, so only plain containers, "
    "counters, numpy arrays and tensors are read; save these alone (torch.save of tensors, numpy.save, json.dump)"
)


class _Storage:
    """The class of a storage or a dtype, as a pickle names it."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


def _rebuild_tensor(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> np.ndarray:
    """An array of a storage, checked: a stride or size may be anything."""
    size, stride = tuple(size), tuple(stride)
    whole = (*size, *stride, offset)
    if not isinstance(storage, np.ndarray) or any(type(n) is not int or n < 0 for n in whole):
        raise pickle.UnpicklingError("a tensor of no numbers")
    if len(size) != len(stride):
        raise pickle.UnpicklingError("a tensor of an impossible shape")
    if len(size) > 32 or math.prod(size) > max(len(storage), 1) * 4096:
        raise pickle.UnpicklingError("a tensor larger than its numbers")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if math.prod(size) == 0:
        return np.zeros(size, storage.dtype)
    if last >= len(storage):
        raise pickle.UnpicklingError("a tensor larger than its numbers")
    item = storage.dtype.itemsize
    view = np.lib.stride_tricks.as_strided(storage[offset:], size, [step * item for step in stride], writeable=False)
    return np.array(view, order="C")


def _rebuild_untyped(
    storage: Any, offset: int, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *rest: Any
) -> np.ndarray:
    """As ``_rebuild_tensor``, of a storage of bytes and a dtype beside it."""
    if not isinstance(storage, np.ndarray) or not isinstance(dtype, _Storage):
        raise pickle.UnpicklingError("a tensor of no numbers")
    return _rebuild_tensor(storage.view(dtype.dtype), offset, size, stride)


def _parameter(data: Any, *rest: Any) -> Any:
    return data


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """``_codecs.encode`` of old pickles of bytes."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("a text in another encoding than latin1")
    return text.encode("latin1")


def _no_bytes(*arguments: Any) -> bytes:
    """``bytes``, as which old pickles write those of an empty array."""
    if arguments:
        raise pickle.UnpicklingError("bytes made of something else")
    return b""


def _dtype(name: Any) -> np.dtype:
    dtype = name.dtype if isinstance(name, _Dtype) else np.dtype(name)
    if dtype.hasobject or dtype.names:
        raise pickle.UnpicklingError("an array of Python objects")
    return dtype


def _frombuffer(buffer: Any, dtype: Any, shape: Any, order: Any = "C") -> np.ndarray:
    return np.frombuffer(bytes(buffer), dtype=_dtype(dtype)).reshape(shape, order=order)


class _Array:
    """An array of a pickle while it is built: numpy's own would accept a state that does not fit."""

    value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        values = np.frombuffer(data if isinstance(data, bytes) else _encode(data), dtype=_dtype(dtype))
        self.value = values.reshape(shape, order="F" if fortran else "C")


def _new_array(*_: Any) -> _Array:
    return _Array()


def _scalar(dtype: Any, data: Any = b"") -> Any:
    return np.frombuffer(data if isinstance(data, bytes) else _encode(data), dtype=_dtype(dtype))[0].item()


class _Dtype:
    """A dtype of a pickle while it is built; its state holds its byte order."""

    def __init__(self, name: Any, *rest: Any) -> None:
        self.dtype = _dtype(name)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">"):
            self.dtype = self.dtype.newbyteorder(state[1])


def _numpy(name: str) -> list[tuple[str, str]]:
    return [(f"numpy.{core}.{part}", name) for core in ("core", "_core") for part in ("multiarray", "numeric")]


_KNOWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("collections", "Counter"): collections.Counter,
    ("collections", "defaultdict"): collections.defaultdict,
    ("collections", "deque"): collections.deque,
    **{(module, "set"): set for module in ("builtins", "__builtin__")},
    **{(module, kind.__name__): kind for module in ("builtins", "__builtin__") for kind in (int, float, list, dict)},
    **{(module, "bytes"): _no_bytes for module in ("builtins", "__builtin__")},
    ("__builtin__", "long"): int,
    ("_codecs", "encode"): _encode,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    **dict.fromkeys(_numpy("_reconstruct"), _new_array),
    **dict.fromkeys(_numpy("scalar"), _scalar),
    **dict.fromkeys(_numpy("_frombuffer"), _frombuffer),
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_untyped,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch", "Size"): tuple,
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, where: str, storage: Callable[[str, str, int], np.ndarray] | None) -> None:
        super().__init__(stream)
        self._where, self._storage = where, storage

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in STORAGES:
            return _Storage(STORAGES[name])
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return _Storage("u1")
        if module == "torch" and name in UNSIGNED:
            return _Storage(UNSIGNED[name])
        if (module, name) not in _KNOWN:
            raise UserError(f"{self._where}: {NOT_KNOWN.format(f'{module}.{name}'[:120])}", field="file")
        return _KNOWN[module, name]

    def persistent_load(self, pid: Any) -> Any:
        kind, storage, key, _, count = pid
        if kind != "storage" or not isinstance(storage, _Storage) or self._storage is None or type(count) is not int:
            raise pickle.UnpicklingError("a reference to something else than a storage")
        return self._storage(str(key), storage.dtype, count)


def is_tensor_file(head: bytes) -> bool:
    """Whether the beginning of a file is that of a pickle or of safetensors."""
    if head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return True
    return head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= 100 << 20


def names_in(file: Path) -> list[str]:
    """What an archive holds; nothing if it is damaged."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except BROKEN_ARCHIVE:
        return []


def first_name(file: Path) -> list[str]:
    """The name of the first part of an archive, as its beginning says it; nothing if it does not say it."""
    with file.open("rb") as stream:
        head = stream.read(_LOCAL_HEADER + 2**16)
    length = int.from_bytes(head[26:28], "little")
    name = head[_LOCAL_HEADER : _LOCAL_HEADER + length]
    return [name.decode("utf-8", "replace")] if head.startswith(b"PK\x03\x04") and 0 < length == len(name) else []


def is_torch_archive(names: list[str]) -> bool:
    """Whether an archive with these names is one of ``torch.save``."""
    return any(name == "data.pkl" or name.endswith("/data.pkl") for name in names)


def array_shapes(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and kind of number of each array of a ``.npz``; empty if one cannot be read."""
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                with archive.open(name) as stream:
                    shape, _, dtype = read_header(stream)
                    found[name.removesuffix(".npy")] = shape, dtype.kind
    except Exception:  # the reader of archives says what is wrong
        return {}
    return found


def read_whole(file: Path) -> Any:
    """A ``.npy`` as an array, a ``.npz`` as a dict of arrays.

    Raises:
        UserError: damaged, too large, or objects.
    """
    try:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if sum(part.file_size for part in archive.infolist()) > MOST_BYTES:
                    raise UserError(f"{file}: is larger than {MOST_BYTES >> 30} GB; save it in parts", field="file")
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return {name: loaded[name] for name in loaded.files}
    except (*BROKEN_ARCHIVE, SyntaxError, TypeError, tokenize.TokenError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file}: is damaged ({str(error)[:120]})", field="file") from None


def load_tensors(file: Path) -> Any:
    """The value that a ``.pt``, ``.pkl`` or ``.safetensors`` file holds, tensors as arrays.

    Raises:
        UserError: it holds anything else, is damaged or too large.
    """
    if file.stat().st_size > MOST_BYTES:
        raise UserError(f"{file}: is larger than {MOST_BYTES >> 30} GB; save it in parts", field="file")
    try:
        with file.open("rb") as stream:
            head = stream.read(8)
        if head.startswith(b"PK\x03\x04"):
            return _load_zip(file)
        if head[:1] == b"\x80":
            return _unpickled(file.read_bytes(), file, None)
        return _load_safetensors(file)
    except UserError as error:
        raise error if str(file) in str(error) else UserError(f"{file}: {error}", field="file") from None
    except MemoryError:
        raise
    except Exception as error:  # a damaged pickle ends in any exception
        reason = (str(error).splitlines() or [""])[0][:120] or type(error).__name__
        raise UserError(f"{file}: is damaged or no file of tensors ({reason})", field="file") from None


def _load_zip(file: Path) -> Any:
    try:
        opened = zipfile.ZipFile(file)
    except BROKEN_ARCHIVE as error:
        raise UserError(
            f"{file}: is cut off or damaged, no whole archive of torch.save ({str(error)[:120].rstrip('.')})",
            field="file",
        ) from None
    with opened as archive:
        names = archive.namelist()
        pickles = [name for name in names if name == "data.pkl" or name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise UserError(f"{file}: is an archive without one data.pkl, so no file of torch.save", field="file")
        folder = pickles[0].removesuffix("data.pkl")
        order = archive.read(f"{folder}byteorder") if f"{folder}byteorder" in names else b"little"
        if order.strip() != b"little":
            raise UserError(f"{file}: was written on a big-endian machine", field="file")
        storages: dict[str, np.ndarray] = {}

        def storage(key: str, dtype: str, count: int) -> np.ndarray:
            if key not in storages:
                if archive.getinfo(f"{folder}data/{key}").file_size > MOST_BYTES:
                    raise UserError(f"{file}: holds a tensor of more than {MOST_BYTES >> 30} GB", field="file")
                storages[key] = _numbers(archive.read(f"{folder}data/{key}"), dtype)
            return storages[key]

        return _unpickled(archive.read(pickles[0]), file, storage)


def _unpickled(data: bytes, file: Path, storage: Callable[[str, str, int], np.ndarray] | None) -> Any:
    """The value of a pickle; a length or number that a damaged one claims is not taken for a lack of memory."""
    try:
        return _plain(_Unpickler(io.BytesIO(data), str(file), storage).load())
    except MemoryError:
        if not _claims_too_much(data):
            raise
        raise UserError(f"{file}: is damaged (it claims more values than it holds)", field="file") from None


def _claims_too_much(data: bytes) -> bool:
    try:
        kept = [
            at or 0 for opcode, at, _ in pickletools.genops(data) if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT")
        ]
        return max(kept, default=0) > len(data)
    except Exception:  # as above: it ends within what it claims to hold
        return True


def _numbers(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype)


def _load_safetensors(file: Path) -> dict[str, np.ndarray]:
    import json

    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    if not 2 <= size <= len(data) - 8:
        raise UserError(f"{file}: is no file of tensors", field="file")
    header = json.loads(data[8 : 8 + size])
    kinds = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": "bfloat16", "BOOL": "?", "U8": "u1", "I8": "i1"}
    kinds |= {f"{sign}{bits}": f"<{sign.lower()}{bits // 8}" for sign in "IU" for bits in (16, 32, 64)}
    arrays = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if about["dtype"] not in kinds:
            raise UserError(f"{file}: {name} is {about['dtype']}, which is not read", field="file")
        start, stop = about["data_offsets"]
        if not 0 <= start <= stop <= len(data) - 8 - size:
            raise UserError(f"{file}: is cut off: {name} ends behind the file", field="file")
        arrays[name] = _numbers(data[8 + size + start : 8 + size + stop], kinds[about["dtype"]]).reshape(about["shape"])
    return arrays


def _plain(value: Any, depth: int = 0) -> Any:
    """The value with arrays in place of what they were built from."""
    if depth > 40:
        raise UserError("is nested more than 40 levels deep", field="file")
    if isinstance(value, _Array):
        if value.value is None:
            raise UserError("holds an array without numbers", field="file")
        return value.value
    if isinstance(value, dict):
        return {_plain(key, depth + 1): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list | tuple | collections.deque):
        kind = tuple if isinstance(value, tuple) else list
        return kind(_plain(one, depth + 1) for one in value)
    return value
