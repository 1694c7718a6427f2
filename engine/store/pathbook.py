"""The dictionary of paths that grows while a run is written.

Shapes: n ribbons of a batch, P distinct paths so far, S steps, K slots, V = S·K.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.analysis.paths import canonical, unique_rows


class Growing:
    """A one-dimensional array that grows by doubling, so that appending stays cheap."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self._store = np.zeros(1024, dtype=dtype)
        self._length = 0

    @property
    def values(self) -> np.ndarray:
        """What was appended so far; a view, valid until the next ``append``."""
        return self._store[: self._length]

    def append(self, values: np.ndarray) -> None:
        needed = self._length + len(values)
        if needed > len(self._store):
            larger = np.zeros(max(needed, 2 * len(self._store)), dtype=self._store.dtype)
            larger[: self._length] = self.values
            self._store = larger
        self._store[self._length : needed] = values
        self._length = needed


class PathBook:
    """Numbers distinct paths as they come and counts them, exactly.

    The numbers depend on how the tokens were cut into batches; ranks do not.
    """

    def __init__(self, id_dtype: np.dtype) -> None:
        self._id_dtype = id_dtype
        self._numbers: dict[bytes, int] = {}
        self._new_rows: list[np.ndarray] = []
        self._counts = Growing(np.int64)
        self.num_tokens = 0

    @property
    def num_paths(self) -> int:
        return len(self._numbers)

    def add(self, module_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count ribbons (n, S, K). Returns path_id of each (n,) and the ribbons of new paths (new, V)."""
        rows = np.ascontiguousarray(canonical(module_ids).astype(self._id_dtype, copy=False))
        first_P, kind_n = unique_rows(rows)
        distinct = np.ascontiguousarray(rows[first_P])
        numbers, known = self._numbers, len(self._numbers)
        # One step of Python for each distinct path of the batch, none for tokens.
        row_bytes = np.dtype((np.void, distinct.itemsize * distinct.shape[1]))
        keys: list[Any] = distinct.view(row_bytes).reshape(-1).tolist()
        ids_P = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int32)
        self._counts.append(np.zeros(len(numbers) - known, dtype=np.int64))
        self._counts.values[ids_P] += np.bincount(kind_n, minlength=len(ids_P))
        new_rows = distinct[ids_P >= known]
        self._new_rows.append(new_rows)
        self.num_tokens += len(rows)
        return ids_P[kind_n], new_rows

    def ribbons(self) -> np.ndarray:
        """Canonical ribbons of all paths (P, V), by path_id."""
        return np.concatenate(self._new_rows)

    def counts(self) -> np.ndarray:
        """Tokens of each path (P,), by path_id."""
        return self._counts.values
