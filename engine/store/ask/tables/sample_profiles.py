"""Path profiles of samples, read from ``profile_page`` (``file.pages.profile_pages``), and distances to all of them.

Shapes: n samples of a page, S steps, M modules, D = S·M.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from tokenpaths.engine.base.shared_cores import on_two_cores
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.cache import cached, held, hold
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.pages.profile_pages import Page, page_samples, profiles_of_counts

PAGES_OF_A_CURSOR = 16
"""a cursor costs as much as reading a page"""
MOST_HELD_BYTES = 128 * 2**20
"""bytes of pages of a run that are cached between questions; further pages are read each time"""
BLOCK_SAMPLES = 1024
"""samples compared at once, so that they fit the processor's cache"""


def has_profiles(run: RunFile) -> bool:
    """Whether the file holds the counts; small runs are counted on demand."""
    count = Query("SELECT count(*) FROM profile_page")
    any_page: bool = cached(run, "num_profile_pages", lambda: run.rows(count)[0][0], lambda _: 0) > 0
    return any_page


def pages(run: RunFile, numbers: np.ndarray | None = None) -> Iterator[Page]:
    """The pages with these samples (ascending), in order; all pages without ``numbers``."""
    size, num_samples = page_samples(run.layout), int(run.row["num_samples"])
    places = range(-(-num_samples // size)) if numbers is None else np.unique(numbers // size).tolist()
    known = held(run, "profiles")
    if known is not None:
        yield from (known[place] for place in places)
    elif numbers is None and num_samples * run.layout.num_steps * run.layout.num_modules <= MOST_HELD_BYTES:
        yield from _read_and_hold(run)
    else:
        yield from _read(run, [place * size for place in places])


def _read_and_hold(run: RunFile) -> Iterator[Page]:
    """All pages, each as soon as it is read; cached once all are."""
    # One array for all: memory that is new for each page takes as long as to read it.
    whole = np.empty((run.row["num_samples"], run.layout.num_steps * run.layout.num_modules), dtype=np.uint8)
    known = []
    for page in _read(run, range(0, len(whole), page_samples(run.layout))):
        low_nD = whole[page.first : page.first + len(page.low_nD)]
        low_nD[:] = page.low_nD
        known.append(replace(page, low_nD=low_nD))
        yield known[-1]
    hold(run, "profiles", known, sum(page.num_bytes for page in known))


def _read(run: RunFile, firsts: Iterable[int]) -> Iterator[Page]:
    """Pages from the file by their first samples, one at a time; RunFileError if a page is corrupt."""
    size, num_samples = page_samples(run.layout), int(run.row["num_samples"])
    one = "SELECT first_sample, num_samples, counts, places, large FROM profile_page WHERE first_sample = ?"
    waiting = iter(firsts)
    while some := list(islice(waiting, PAGES_OF_A_CURSOR)):  # the time limit is that of a cursor
        with run.cursor() as cursor:
            for first in some:  # several pages at once are copied into memory that is new each time: half as fast
                rows = cursor.execute(one, [first]).fetchall()
                if [row[:2] for row in rows] != [(first, min(size, num_samples - first))]:
                    raise run.damaged("profile_page")
                try:
                    page = Page.of(rows[0], run.layout)
                except ValueError as error:
                    raise run.damaged("profile_page") from error
                yield page


def profiles_of(run: RunFile, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Profiles of these samples (ascending), in chunks: their numbers and (n, D) float32."""
    if not len(numbers):
        return
    size, num_steps = page_samples(run.layout), run.layout.num_steps
    bounds = np.flatnonzero(np.diff(numbers // size)) + 1
    begun, counts, visits = 0, [], []
    for start, stop, page in zip([0, *bounds], [*bounds, len(numbers)], pages(run, numbers), strict=True):
        rows = numbers[start:stop] - page.first
        counts.append(page.counts_of(rows))
        visits.append(page.visits_n[rows])
        if stop - begun >= size or stop == len(numbers):
            yield numbers[begun:stop], profiles_of_counts(np.concatenate(counts), np.concatenate(visits), num_steps)
            begun, counts, visits = stop, [], []


def squared_distances(run: RunFile, own: np.ndarray) -> np.ndarray:
    """(samples,) squared distances of all samples to the profile ``own``, accurate to within ``rounding``.

    |a − b|² = |a|² + |b|² − 2a·b, and a profile has the length √½: a single matrix-vector product.
    """
    squared = np.empty(int(run.row["num_samples"]), dtype=np.float64)
    length, rooms = float(own.astype(np.float64) @ own), threading.local()

    def compare(page: Page) -> None:
        if not hasattr(rooms, "roots"):  # one for each thread, which stays in its cache
            rooms.roots = np.empty((BLOCK_SAMPLES, len(own)), dtype=np.float32)
        into = squared[page.first : page.first + len(page.low_nD)]
        np.multiply(page.shared(own, rooms.roots), page.scale_n, out=into)
        into *= -2
        into += length + 0.5
        into[page.scale_n == 0] = length

    on_two_cores(pages(run), compare)
    return squared


def rounding(run: RunFile) -> float:
    """Error bound of ``squared_distances``: D single-precision sums of terms that sum to ½ at most, and as many for
    counts above a byte, which are added to the sums; doubled."""
    width = run.layout.num_steps * run.layout.num_modules
    return 2 * (width + 8) * float(np.finfo(np.float32).eps)
