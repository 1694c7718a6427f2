"""Run: the façade over the topics of ``ask``; opens a sealed run and answers questions about it.

Every answer is a JSON-ready dict in the shape of the REST API. ``next`` is the ``offset`` of the following page, or
None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenpaths.engine.store.ask import export
from tokenpaths.engine.store.ask.arguments import checked, explains_arguments
from tokenpaths.engine.store.ask.frames import Frames, add_frames
from tokenpaths.engine.store.ask.question import Question
from tokenpaths.engine.store.ask.questions import QUESTIONS
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs import edit_effects, sample_matching
from tokenpaths.engine.store.ask.topics import overview, samples, soft_decisions


@explains_arguments
class Run(RunFile):
    """A sealed run, read-only; safe from several threads (a cursor for each call).

    Every question is interrupted after ``time_limit_s`` (QueryTimeout); damage that shows only while reading is a
    RunFileError; a filter that names what is not there is a UserError. The methods not written here are the questions
    that the topics declare (``ask.questions``).
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]: ...

    def card(self) -> dict[str, Any]:
        """Summary of the run for lists of runs."""
        return overview.card(self)

    def samples_fingerprint(self) -> dict[str, Any]:
        """Fingerprint that is equal for runs over the same samples in the same order."""
        return sample_matching.samples_fingerprint(self)

    def soft_arrays(self, kind: str) -> np.ndarray:
        """All samples' values of a kind, (samples, *axes) float32: for analyses and notebooks."""
        return soft_decisions.soft_arrays(self, kind)

    def effect(self, of: Run, *, sample: int | None = None, limit: int = 200) -> dict[str, Any]:
        """Effect of this edited run relative to the unchanged run ``of``; see ``edit_effects.effect``."""
        return edit_effects.effect(self, of, sample=sample, limit=limit)

    def image(self, sample: int) -> bytes:
        """The PNG of one sample."""
        return samples.image(self, sample)

    def picture(self, sample: int) -> bytes:
        """The PNG of one sample re-encoded from its pixels, without metadata, because a run file may be untrusted."""
        return samples.picture(self, sample)

    def compare(
        self,
        other: Run,
        measure: str = "reuse",
        *,
        limit: int = 12,
        links: int = 200,
        points: int = 2000,
        grouping: bool = True,
    ) -> dict[str, Any]:
        """Compare this run with run ``other`` over their common samples."""
        from tokenpaths.engine.store.ask.several_runs.compare import compare  # pandas, only for who asks

        return compare(self, other, measure, limit=limit, links=links, points=points, grouping=grouping)

    def grouping(self, other: Run) -> dict[str, Any]:
        """Whether run ``other`` and this one assign the same tokens to one path."""
        from tokenpaths.engine.store.ask.several_runs.compare import grouping

        return grouping(self, other)

    def export(self, table: str, file_format: str) -> Iterator[bytes]:
        """A table as a csv, parquet or arrow file, in pieces; the time limit does not apply.

        Raises:
            NoSuchThing: there is no such table.
            UserError: the format is none of the three.
        """
        return export.export(self, table, file_format)

    @property
    def frames(self) -> Frames:
        """The same questions answered as pandas data frames: ``run.frames.paths()``, ``run.frames.table("token")``."""
        return Frames(self)


def add_question(question: Question) -> None:
    """Give ``Run`` the method of ``question``, with checked arguments, and ``Frames`` its data frames."""
    method = checked(question.function)
    method.__name__, method.__qualname__ = question.name, f"Run.{question.name}"
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [own, *question.parameters.values()], return_annotation=dict[str, Any]
    )
    setattr(Run, question.name, method)
    add_frames(question)


for _question in QUESTIONS:
    add_question(_question)
