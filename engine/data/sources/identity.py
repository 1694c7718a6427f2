"""Fingerprint of a data set, equal on every machine that sees the same content.

Paths and times do not count: workers see one data set under different paths.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import UserError

WHOLE_BYTES = 256 * 2**20
"""files up to so many bytes together are read whole; of larger sets name, size, first and last part of each"""
END_BYTES = 64 * 2**10


def identity_of(
    rows: np.ndarray, names: Sequence[str], codes: np.ndarray, paths: Sequence[Path], how: Mapping[str, Any]
) -> str:
    """SHA-256 (hex) over the chosen ``rows``, the labels of all rows, the files and how they are read.

    A file of a large set that was changed in its middle, with its size as it was, is not noticed.

    Raises:
        UserError: a file cannot be read.
    """
    digest = hashlib.sha256(repr(sorted(how.items())).encode())
    digest.update(np.asarray(rows, dtype="<i8").tobytes())
    digest.update("\0".join(names).encode("utf-8", "surrogatepass"))
    digest.update(np.asarray(codes, dtype="<i4").tobytes())
    root = os.path.commonpath([path.parent for path in paths]) if paths else ""
    try:
        whole = sum(path.stat().st_size for path in paths) <= WHOLE_BYTES
        for path in paths:
            name = os.path.relpath(path, root).replace(os.sep, "/")
            digest.update(f"\n{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            with open(path, "rb") as file:
                if whole:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
                    continue
                digest.update(file.read(END_BYTES))
                file.seek(-min(END_BYTES, path.stat().st_size), os.SEEK_END)
                digest.update(file.read())
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be read ({error.strerror or error}).", field="data") from error
    return digest.hexdigest()
