"""Path profiles of samples, read from ``profile_page`` (``file.pages.profile_pages``), and distances to all of them.

Shapes: n samples of a page, S steps, M modules, D = S·M.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from tokenpaths.engine.base.shared_cores import on_two_cores
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables.cache import cached, held, hold
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.pages.profile_pages import Page, page_samples, profiles_of_counts

PAGES_OF_A_CURSOR = 16
"""a cursor costs as much as reading a page"""
PAGES_AT_ONCE = 8
"""pages that a thread reads before another one takes its turn"""
MOST_HELD_BYTES = 224 * 2**20
"""bytes of pages of a run that are cached between questions; further pages are read each time"""
BLOCK_SAMPLES = 256
"""samples compared at once, so that they fit the processor's cache"""
ROUNDING = 16 * float(np.finfo(np.float32).eps)
"""error bound of ``squared_distances``, and of the squares of ``profile_distance``: profiles and roots of counts are of
single precision, a few roundings each, and their products, which add up to ½ at most, are summed in double"""


def has_profiles(run: RunFile) -> bool:
    """Whether the file holds the counts; small runs are counted on demand."""
    count = Query("SELECT count(*) FROM profile_page")
    any_page: bool = cached(run, "num_profile_pages", lambda: run.rows(count)[0][0], lambda _: 0) > 0
    return any_page


def pages(run: RunFile, numbers: np.ndarray) -> Iterator[Page]:
    """The pages with these samples (ascending), in order."""
    size = page_samples(run.layout)
    places = np.unique(numbers // size).tolist()
    known = held(run, "profiles")
    if known is not None:
        yield from (known[place] for place in places)
    else:
        yield from _read(run, [place * size for place in places])


def each_page(run: RunFile, work: Callable[[Page], None]) -> None:
    """Do the ``work`` on every page, in any order, on two cores; cached if they are small enough together."""
    known = held(run, "profiles")
    if known is not None:
        on_two_cores(iter(known), work)
        return
    firsts = range(0, int(run.row["num_samples"]), page_samples(run.layout))
    read: dict[int, Page] = {}

    def some(firsts_here: Sequence[int]) -> None:
        for page in _read(run, firsts_here):
            if page.num_bytes * len(firsts) <= MOST_HELD_BYTES:
                read[page.first] = page
            work(page)

    # A few each, which both threads read: a single one would wait for the disk half of its time.
    on_two_cores((firsts[i : i + PAGES_AT_ONCE] for i in range(0, len(firsts), PAGES_AT_ONCE)), some)
    if len(read) == len(firsts):
        ordered = [read[first] for first in firsts]
        hold(run, "profiles", ordered, sum(page.num_bytes for page in ordered))


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
    """(samples,) squared distances of all samples to the profile ``own``, accurate to within ``ROUNDING``.

    |a − b|² = |a|² + |b|² − 2a·b, and a profile has the length √½: a single matrix-vector product.
    """
    squared = np.empty(int(run.row["num_samples"]), dtype=np.float64)
    length, rooms = float(own.astype(np.float64) @ own), threading.local()

    def compare(page: Page) -> None:
        if not hasattr(rooms, "roots"):  # one for each thread, which stays in its cache
            rooms.roots = np.empty((BLOCK_SAMPLES, len(own)), dtype=np.float64)
        into = squared[page.first : page.first + len(page.low_nD)]
        np.multiply(page.shared(own, rooms.roots), page.scale_n, out=into)
        into *= -2
        into += length + 0.5
        into[page.scale_n == 0] = length

    each_page(run, compare)
    return squared
