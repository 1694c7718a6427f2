"""Check of ``tokenpaths doctor``: everything that installed distributions add by entry points, imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tokenpaths.cli.support.doctor_files import Finding

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings


def plugins(settings: Settings) -> Iterator[Finding]:
    """Which plugins there are, and why some cannot be used."""
    good, problems = [], []
    for name, problem in _looked_at():
        if problem is None:
            good.append(name)
        else:
            problems.append(problem)
    for problem in problems:
        yield Finding("broken", "plugins", problem)
    if good or not problems:
        yield Finding("ok", "plugins", ", ".join(good) or "none are installed")


def _looked_at() -> Iterator[tuple[str, str | None]]:
    """(name, why it cannot be used or None) of each."""
    from importlib.metadata import entry_points

    from tokenpaths.backend.routes.questions import plugin_routers
    from tokenpaths.engine.adapters.logs.formats import IMPORTERS
    from tokenpaths.engine.base.model_folders import GROUP, folder_of
    from tokenpaths.engine.base.plugins import PluginError
    from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS
    from tokenpaths.engine.jobs.registry import PLUGIN_KINDS
    from tokenpaths.engine.models.family import family_class
    from tokenpaths.engine.store.ask.run import PLUGIN_QUESTIONS

    for point in entry_points(group=GROUP):
        try:
            folder_of(point)
            yield f"models {point.name}", None
        except PluginError as error:
            yield point.name, str(error)
    for name, family in FAMILY_CONTROLS.plugins():
        try:
            if isinstance(family, PluginError):
                raise family
            family_class(name)
            yield f"family {name}", None
        except PluginError as error:
            yield name, str(error)
    for name, importer in IMPORTERS.plugins():
        yield f"importer {name}", str(importer) if isinstance(importer, PluginError) else None
    for name, kind in PLUGIN_KINDS.plugins():
        yield f"kind of job {name}", str(kind) if isinstance(kind, PluginError) else None
    names = [name for name, _ in PLUGIN_QUESTIONS.plugins()]
    for name, (_, problem) in zip(names, plugin_routers(), strict=True):
        yield f"question {name}", str(problem) if problem else None
