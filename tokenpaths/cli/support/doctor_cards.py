"""Checks of ``tokenpaths doctor --quick``: what runs, models and jobs say of themselves. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from tokenpaths.cli.support.doctor_files import Finding, abandoned_or_failed
from tokenpaths.cli.support.light_imports import without_pandas

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings


def runs(settings: Settings) -> Iterator[Finding]:
    """The cards of all runs: those that cannot be read, and how many can."""
    from tokenpaths.backend.runs.registry import RunRegistry

    registry = RunRegistry.of(settings, time_limit_s=settings.query_seconds, max_open=1)
    try:
        with without_pandas():
            cards = registry.cards()
    finally:
        registry.close()
    for card in cards:
        if card["status"] == "unreadable":
            yield Finding("broken", "runs", str(card["problem"]))
    unread = sum(card["status"] == "being_read" for card in cards)
    if unread:
        yield Finding("note", "runs", f"{unread} have no card yet; `tokenpaths ls` waits for them")
    good = [card for card in cards if card["status"] == "sealed"]
    tokens = sum(card["num_tokens"] for card in good)
    yield Finding("ok", "runs", f"{len(good)} with a card, {tokens:,} tokens; their contents were not read")


def models(settings: Settings) -> Iterator[Finding]:
    """The configuration of every model and the header of its weights."""
    from tokenpaths.engine.adapters.find_traceable import list_traceable
    from tokenpaths.engine.adapters.huggingface.config import is_huggingface

    rows = list_traceable(settings.all_models_dirs, settings.checkpoints_dir)
    for row in rows:
        if row["problem"]:
            state: Literal["note", "broken"] = "note" if is_huggingface(row["model"]) else "broken"
            yield Finding(state, "models", f"{row['model']}: {row['problem']}")
    good = [row["model"] for row in rows if not row["problem"]]
    words = f"{', '.join(good)}; their weights were not read" if good else "none: `tokenpaths train` makes one"
    yield Finding("ok" if good else "note", "models", words)


def jobs(settings: Settings) -> Iterator[Finding]:
    """The list of jobs, without what they have made."""
    from tokenpaths.backend.jobs.service import job_table
    from tokenpaths.backend.problems import Problem

    if not settings.jobs_file.is_file():
        yield Finding("ok", "jobs", "none yet")
        return
    table = job_table(settings)
    try:
        rows = table.page(limit=1_000_000)
        for row in rows:
            yield from abandoned_or_failed(row, table.is_abandoned(row))
    except (Problem, OSError) as error:
        yield Finding("broken", "jobs", getattr(error, "detail", str(error)))
        return
    finally:
        table.close()
    yield Finding("ok", "jobs", f"{len(rows)} in the list; their files were not read")
