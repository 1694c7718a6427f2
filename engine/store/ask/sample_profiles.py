"""Path profiles of samples, counted when the run is sealed: how many visits of each sample went to each module.

Comparing a sample with all others would count every token otherwise. ``profile_page`` holds ``PAGE_SAMPLES`` samples a
row: a byte for each sample, step and module, packed by Zstandard; the few counts above 255 lie beside them. What is
compared are the counts themselves, so nothing is rounded. Half a byte a token where a sample has 250 tokens and a
profile 180 numbers.

Shapes: n samples of a page, S steps, M modules, D = S·M, V = S·K visits of a token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.store.ask.cache import held
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.write.arrow_insert import insert_columns
from tokenpaths.engine.store.write.path_dictionary import PathBook

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

LEAST_TOKENS = 100_000
"""tokens of a run whose profiles are counted at sealing: those of a smaller one are there before a click is over"""
PAGE_SAMPLES = 4096
PAGE_CELLS = 1 << 20
"""numbers of a page at most: fewer samples where profiles are wide"""
LARGEST = 255
READ_ROWS = 262_144
MOST_HELD_BYTES = 128 * 2**20
"""of the pages of a run that stay in memory for the next question; more are read each time"""
PAGES_AT_ONCE = 8
BLOCK_SAMPLES = 512
"""compared at once, so that they stay in the processor's cache"""
_CODEC = pa.Codec("zstd", 1)


@dataclass(frozen=True)
class Page:
    """The counts of some neighbouring samples."""

    first: int
    """number of the first sample"""
    low_nD: np.ndarray
    """uint8; what is larger stands in ``counts``"""
    rows: np.ndarray
    """rising; with ``cells`` the places of ``counts``"""
    cells: np.ndarray
    counts: np.ndarray
    visits_n: np.ndarray
    """visits of one step: tokens · K"""

    @classmethod
    def of(cls, row: tuple[int, int, bytes, bytes, bytes], layout: Layout) -> Page:
        """From a row of ``profile_page``; raises ValueError or OSError where it holds no counts."""
        first, num_samples, packed, places, large = row
        width = layout.num_steps * layout.num_modules
        low = np.frombuffer(_CODEC.decompress(packed, num_samples * width), dtype=np.uint8).reshape(-1, width)
        place, counts = np.frombuffer(places, dtype="<i4"), np.frombuffer(large, dtype="<i4")
        if len(place) != len(counts) or (len(place) and not 0 <= place.min() <= place.max() < low.size):
            raise ValueError("counts without a place")
        rows, cells = np.divmod(place, width)
        visits = low[:, : layout.num_modules].sum(axis=1, dtype=np.int64)  # every step has as many
        first_step = cells < layout.num_modules
        np.add.at(visits, rows[first_step], counts[first_step] - LARGEST)
        return cls(first, low, rows, cells, counts, visits)

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in (self.low_nD, self.rows, self.cells, self.counts, self.visits_n))

    def block(self, start: int, stop: int) -> np.ndarray:
        """(stop − start, D) float32 counts of neighbouring rows."""
        found = self.low_nD[start:stop].astype(np.float32)
        some = slice(*np.searchsorted(self.rows, (start, stop)))
        found[self.rows[some] - start, self.cells[some]] = self.counts[some]
        return found

    def profiles(self, rows: np.ndarray, num_steps: int) -> np.ndarray:
        """(n, D) float32 √(p/(2S)) of these rows, rising: what ``path_distance.profiles`` gives."""
        found = self.low_nD[rows].astype(np.float32)
        low, high = np.searchsorted(self.rows, rows), np.searchsorted(self.rows, rows, side="right")
        for place in np.flatnonzero(high > low).tolist():
            some = slice(low[place], high[place])
            found[place, self.cells[some]] = self.counts[some]
        visits = self.visits_n[rows].astype(np.float32)[:, None]
        np.divide(found, visits, out=found, where=visits > 0)
        found /= 2 * num_steps
        return np.sqrt(found, out=found)


def page_samples(layout: Layout) -> int:
    """Samples of a page."""
    return max(1, min(PAGE_SAMPLES, PAGE_CELLS // (layout.num_steps * layout.num_modules)))


def write_profiles(con: duckdb.DuckDBPyConnection, layout: Layout, book: PathBook, num_samples: int) -> None:
    """Fill ``profile_page``; ``token`` is read once, in the order of samples, with one page in memory."""
    if book.num_tokens < LEAST_TOKENS:
        return
    size, width = page_samples(layout), layout.num_steps * layout.num_modules
    first_V = np.repeat(np.arange(layout.num_steps, dtype=np.int64) * layout.num_modules, layout.top_k)
    for first in range(0, num_samples, size):
        counts = np.zeros((min(size, num_samples - first), width), dtype=np.int64)
        sql = f"SELECT sample, path_id FROM token WHERE sample >= {first} AND sample < {first + len(counts)}"
        for batch in con.execute(sql).to_arrow_reader(READ_ROWS):
            _count(
                counts,
                batch.column("sample").to_numpy().astype(np.int64) - first,
                book.ribbons(batch.column("path_id").to_numpy()),
                first_V,
            )
        _write_page(con, first, counts)


def _count(counts: np.ndarray, sample_n: np.ndarray, ribbons_nV: np.ndarray, first_V: np.ndarray) -> None:
    """Add the visits of some tokens; only the rows between their first and last sample are touched."""
    if not len(sample_n):
        return
    low, high = int(sample_n.min()), int(sample_n.max()) + 1
    part, width = counts[low:high].reshape(-1), counts.shape[1]
    base_n = (sample_n - low) * width
    for visit, first in enumerate(first_V.tolist()):
        part += np.bincount(base_n + (ribbons_nV[:, visit] + np.int64(first)), minlength=len(part))


def _write_page(con: duckdb.DuckDBPyConnection, first: int, counts: np.ndarray) -> None:
    flat = counts.reshape(-1)
    places = np.flatnonzero(flat > LARGEST).astype("<i4")
    low = np.minimum(flat, LARGEST).astype(np.uint8)
    insert_columns(
        con,
        "profile_page",
        {
            "first_sample": np.array([first], dtype=np.int32),
            "num_samples": np.array([len(counts)], dtype=np.int32),
            "counts": pa.array([_CODEC.compress(low.tobytes(), asbytes=True)], pa.binary()),
            "places": pa.array([places.tobytes()], pa.binary()),
            "large": pa.array([flat[places].astype("<i4").tobytes()], pa.binary()),
        },
    )


def has_profiles(run: Run) -> bool:
    """Whether the file holds the counts; those of older and of small runs are counted when asked for."""
    if "profile_page" not in run.tables_there:
        return False
    count = Query("SELECT count(*) FROM profile_page")
    return held(run, "num_profile_pages", lambda: run.rows(count)[0][0], lambda _: 0) > 0


def pages(run: Run, numbers: np.ndarray | None = None) -> Iterator[Page]:
    """The pages with these samples (rising), in their order; of all without ``numbers``."""
    layout = run.layout
    size = page_samples(layout)
    if run.row["num_samples"] * layout.num_steps * layout.num_modules <= MOST_HELD_BYTES:
        found = held(run, "profiles", lambda: list(_read(run)), lambda parts: sum(part.num_bytes for part in parts))
        wanted = range(len(found)) if numbers is None else np.unique(numbers // size).tolist()
        yield from (found[place] for place in wanted)
        return
    yield from _read(run, None if numbers is None else (np.unique(numbers // size) * size).tolist())


def _read(run: Run, firsts: list[int] | None = None) -> Iterator[Page]:
    """Pages from the file, a few in memory at a time; RunFileError where one is not what was sealed."""
    size, num_samples = page_samples(run.layout), int(run.row["num_samples"])
    if firsts is None:
        firsts = list(range(0, num_samples, size))
    for start in range(0, len(firsts), PAGES_AT_ONCE):
        some = firsts[start : start + PAGES_AT_ONCE]
        rows = run.rows(
            Query(
                "SELECT first_sample, num_samples, counts, places, large FROM profile_page WHERE first_sample IN "
                f"({', '.join('?' * len(some))}) ORDER BY first_sample",
                tuple(some),
            )
        )
        # Before anything is unpacked: a file of a stranger may say that a page holds any number of samples.
        if [row[:2] for row in rows] != [(first, min(size, num_samples - first)) for first in some]:
            raise _damaged(run)
        for row in rows:
            try:
                page = Page.of(row, run.layout)
            except (ValueError, OSError) as error:
                raise _damaged(run) from error
            yield page


def _damaged(run: Run) -> RunFileError:
    return RunFileError(f"{run.file.name} is damaged (table profile_page): copy it again or trace the run again")


def profiles_of(run: Run, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Profiles of these samples (rising), piece by piece: their numbers and (n, D) float32."""
    for page in pages(run, numbers):
        here = numbers[(numbers >= page.first) & (numbers < page.first + len(page.low_nD))]
        yield here, page.profiles(here - page.first, run.layout.num_steps)


def squared_distances(run: Run, own: np.ndarray) -> np.ndarray:
    """(samples,) squared distances of all samples to the profile ``own``, each within ``rounding`` of the exact one.

    |a − b|² = |a|² + |b|² − 2a·b, and a profile has the length √½: one product of a matrix and a vector.
    """
    num_steps = run.layout.num_steps
    found = np.empty(int(run.row["num_samples"]), dtype=np.float64)
    length = float(own.astype(np.float64) @ own)
    for page in pages(run):
        for start in range(0, len(page.low_nD), BLOCK_SAMPLES):
            counts = page.block(start, start + BLOCK_SAMPLES)
            visits = page.visits_n[start : start + BLOCK_SAMPLES]
            known = visits > 0
            scale = np.sqrt(np.divide(0.5 / num_steps, visits, out=np.zeros(len(visits)), where=known))
            shared = (np.sqrt(counts, out=counts) @ own) * scale
            first = page.first + start
            found[first : first + len(visits)] = length + np.where(known, 0.5, 0.0) - 2 * shared
    return found


def rounding(run: Run) -> float:
    """How far ``squared_distances`` may be off: D sums in single precision of parts that sum to ½ at most, doubled."""
    width = run.layout.num_steps * run.layout.num_modules
    return 2 * (width + 8) * float(np.finfo(np.float32).eps)
