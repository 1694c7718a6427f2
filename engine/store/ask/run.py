"""Run: the façade over the topics of ``ask``; opens a sealed run and answers questions about it.

Every answer is a JSON-ready dict in the shape of the REST API. ``next`` is the ``offset`` of the following page, or
None.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginRegistry
from tokenpaths.engine.store.ask import dataset_export, export
from tokenpaths.engine.store.ask.arguments import checked, explains_arguments
from tokenpaths.engine.store.ask.frames import Frames, add_frames
from tokenpaths.engine.store.ask.question import Question, declaration_of
from tokenpaths.engine.store.ask.questions import QUESTIONS
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs import edit_effects, load_comparison, sample_matching
from tokenpaths.engine.store.ask.several_runs import reference as references
from tokenpaths.engine.store.ask.topics import overview, samples, soft_decisions


@explains_arguments
class Run(RunFile):
    """A sealed run, read-only; safe from several threads (a cursor for each call).

    Every question is interrupted after ``time_limit_s`` (QueryTimeout); damage that shows only while reading is a
    RunFileError; a filter that names what is not there is a UserError. The methods not written here are the questions
    that the topics declare (``ask.questions``), and those of plugins (``PLUGIN_QUESTIONS``).
    """

    def __getattr__(self, name: str) -> Callable[..., dict[str, Any]]:
        """The question of a plugin, which becomes a method when it is first asked.

        Raises:
            PluginError: there is one of this name, but it cannot be used.
        """
        if name.startswith("_") or name not in PLUGIN_QUESTIONS.plugin_names():
            hint = (
                f"; run.frames.{name}() is a data frame" if not name.startswith("_") and hasattr(Frames, name) else ""
            )
            raise AttributeError(f"a run has no {name!r}{hint}", name=name, obj=self)
        added = PLUGIN_QUESTIONS[name]
        method: Callable[..., dict[str, Any]] = object.__getattribute__(self, added.name)
        return method

    def card(self) -> dict[str, Any]:
        """Summary of the run for lists of runs."""
        return overview.card(self)

    def samples_fingerprint(self) -> dict[str, Any]:
        """Fingerprint that is equal for runs over the same samples in the same order."""
        self.need_tokens("samples")
        return sample_matching.samples_fingerprint(self)

    def soft_arrays(self, kind: str) -> np.ndarray:
        """All samples' values of a kind, (samples, *axes) float32: for analyses and notebooks."""
        return soft_decisions.soft_arrays(self, kind)

    def effect(self, of: Run, *, sample: int | None = None, limit: int = 200) -> dict[str, Any]:
        """Effect of this edited run relative to the unchanged run ``of``; see ``edit_effects.effect``."""
        self.need_tokens("effect")
        of.need_tokens("effect")
        return edit_effects.effect(self, of, sample=sample, limit=limit)

    def in_reference(
        self, reference: Run, sample: int = 0, *, similar: int = 6, unusual: int = 6, each: int = 12, seed: int = 0
    ) -> dict[str, Any]:
        """One sample with the ranks that its paths have in a reference run; see ``several_runs.reference``."""
        self.need_tokens("reference")
        reference.need_tokens("reference")
        return references.in_reference(self, reference, sample, similar=similar, unusual=unusual, each=each, seed=seed)

    def image(self, sample: int) -> bytes:
        """The PNG of one sample."""
        self.need_tokens("image")
        return samples.image(self, sample)

    def picture(self, sample: int) -> bytes:
        """The PNG of one sample re-encoded from its pixels, without metadata, because a run file may be untrusted."""
        self.need_tokens("image")
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
        labels: str | None = None,
    ) -> dict[str, Any]:
        """Compare this run with run ``other`` over their common samples; ``labels`` as in every question."""
        self.need_tokens("compare")
        other.need_tokens("compare")
        from tokenpaths.engine.store.ask.several_runs.compare import compare  # pandas, only for who asks

        own = self.labelled(labels)  # labels of samples are those of this run
        return compare(own, other, measure, limit=limit, links=links, points=points, grouping=grouping)

    def compare_load(self, other: Run, *, limit: int = 20) -> dict[str, Any]:
        """Compare the load of this run with that of run ``other``, step by step; also of runs without tokens."""
        return load_comparison.compare_load(self, other, limit=limit)

    def grouping(self, other: Run) -> dict[str, Any]:
        """Whether run ``other`` and this one assign the same tokens to one path."""
        self.need_tokens("grouping")
        other.need_tokens("grouping")
        from tokenpaths.engine.store.ask.several_runs.compare import grouping

        return grouping(self, other)

    def agree(
        self, other: Run, *, limit: int = 12, words: int = 20, labels: str | None = None, **reading: Any
    ) -> dict[str, Any]:
        """How far run ``other`` makes the decisions of this one about the same tokens; see ``token_agreement.agree``,
        also for ``reading``: most_choices and progress."""
        self.need_tokens("agree")
        other.need_tokens("agree")
        from tokenpaths.engine.store.ask.several_runs.token_agreement import agree  # pandas, only for who asks

        return agree(self.labelled(labels), other, limit=limit, words=words, **reading)

    def agree_in(self, other: Run, sample: int, *, first: int = 0, limit: int = 200) -> dict[str, Any]:
        """The decisions of run ``other`` and of this one about one sample; see ``sample_agreement.agree_in``."""
        self.need_tokens("agree")
        other.need_tokens("agree")
        from tokenpaths.engine.store.ask.several_runs.sample_agreement import agree_in

        return agree_in(self, other, sample, first=first, limit=limit)

    def export(self, table: str, file_format: str) -> Iterator[bytes]:
        """A table as a csv, parquet or arrow file, in pieces; the time limit does not apply.

        Raises:
            NoSuchThing: there is no such table.
            UserError: the format is none of the three.
        """
        return export.export(self, table, file_format)

    def save_dataset(self, folder: Path | str) -> int:
        """Write this run as a Hugging Face data set with a card; returns the bytes. See ``dataset_export``."""
        self.need_tokens("dataset")
        return dataset_export.save_dataset(self, Path(folder))

    def zipped_dataset(self) -> Iterator[bytes]:
        """The same data set as a zip archive, in pieces."""
        self.need_tokens("dataset")
        return dataset_export.zipped_dataset(self)

    @property
    def frames(self) -> Frames:
        """The same questions answered as pandas data frames: ``run.frames.paths()``, ``run.frames.table("token")``."""
        return Frames(self)


def add_question(question: Question) -> None:
    """Give ``Run`` the method of ``question``, with checked arguments, and ``Frames`` its data frames."""
    ask = checked(question.function, bounds=question.bounds)

    @functools.wraps(ask)
    def method(self: Run, *args: Any, labels: Any = None, **arguments: Any) -> dict[str, Any]:
        if not question.of_counts:
            self.need_tokens(question.name)
        return ask(self.labelled(labels), *args, **arguments)

    method.__name__, method.__qualname__ = question.name, f"Run.{question.name}"
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [own, *question.parameters.values()], return_annotation=dict[str, Any]
    )
    setattr(Run, question.name, method)
    add_frames(question)


for _question in QUESTIONS:
    add_question(_question)
OTHER_PATHS = (
    "dataset.zip",
    "effect",
    "export/{table_and_format}",
    "names",
    "names/{thing}",
    "report",
    "samples/{sample}/image",
    "samples/{sample}/reference",
    "saturation",
    "series",
    "twin",
)
"""addresses below ``/runs/{run}`` that are no questions"""


def _add_plugin(name: str, value: Any) -> Question:
    if hasattr(Run, name) or hasattr(Frames, name):
        raise UserError("a run has a method or an attribute of this name")
    declared = declaration_of(name, value, QUESTIONS, OTHER_PATHS)
    if taken := [frame for frame in declared.frames if hasattr(Frames, frame)]:
        raise UserError(f"its data frame {taken[0]!r} has a name that is taken")
    add_question(declared)
    return declared


PLUGIN_QUESTIONS: PluginRegistry[Question] = PluginRegistry(
    "tokenpaths.questions", "question", {question.name: question for question in QUESTIONS}, _add_plugin
)
"""questions by name: ours, and those of entry points, which become methods of ``Run`` when they are taken from here"""
