"""What a walk through samples left out of them or changed, for the notes of the run that is made of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tokenpaths.engine.data.labels import Remarks
from tokenpaths.engine.data.sources.sample import Sample, readable

MOST_PROBLEMS: Final = 20
"""samples left out whose reasons are kept"""
NOT_SQUARE: Final = "{n} picture{s} not square {are} cut: the square in the middle is all that is seen"
_FOLDERS: Final = re.compile(
    r"(?<![^\s'\"])(?:(?:[A-Za-z]:)?[/\\](?:[^/\\:'\"\n]*[/\\])+"
    r"|(?:[A-Za-z]:)?[^\s:'\"]*[/\\](?=[^\s/\\]*\.\w))"
)
"""folders before the name of a file; those of a whole path may have blanks in them, others end in a name with a dot"""


@dataclass
class Walk:
    """Counts of one walk; those of shards add up to the walk of one process."""

    left_out: int = 0
    """samples that could not be used"""
    problems: list[str] = field(default_factory=list)
    """why, of the first ``MOST_PROBLEMS`` of them"""
    remarks: Remarks = field(default_factory=Remarks)

    def see(self, sample: Sample, kinds: Sequence[str] = ()) -> None:
        """Count what was changed of a sample, and ``kinds`` more, of ``Remarks``."""
        cut = () if sample.image is None or sample.image.width == sample.image.height else (NOT_SQUARE,)
        self.remarks.add((*sample.remarks, *kinds, *cut), sample.source)

    def leave_out(self, problem: str) -> None:
        """Count a sample that cannot be used."""
        self.left_out += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(readable(problem))  # it names a file

    def through(self, samples: Iterable[Sample]) -> Iterator[Sample]:
        """The samples, each counted as it passes."""
        for sample in samples:
            self.see(sample)
            yield sample

    def add(self, later: Walk) -> None:
        """Count another walk, through the samples behind this one's."""
        self.left_out += later.left_out
        self.problems = [*self.problems, *later.problems][:MOST_PROBLEMS]
        for kind, count, first in later.remarks.to_rows():
            self.remarks.add((kind,), first, count)

    def notes(self) -> list[str]:
        """One sentence for each kind of change, and one for the samples left out.

        A run goes to other people: of those left out it names files, not the folders that they were in.
        """
        if not self.left_out:
            return self.remarks.sentences()
        samples = "sample was" if self.left_out == 1 else "samples were"
        first = f"; the first: {_FOLDERS.sub('', self.problems[0])}" if self.problems else ""
        return [*self.remarks.sentences(), f"{self.left_out:,} {samples} left out{first}"]
