"""The runs of the data folder that are checkpoints of one training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tokenpaths.backend.services import Services

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run


@contextmanager
def runs_of_series(services: Services, run_id: str) -> Iterator[list[Run]]:
    """The open runs of the series that ``run_id`` belongs to, itself first.

    Opens the runs of the data folder that may belong to it and keeps those that do. NoSuchThing where it stands alone.
    """
    from tokenpaths.engine.store.ask.experts import no_series, series_of

    with ExitStack() as stack:
        asked = stack.enter_context(services.registry.lease(run_id))
        series = series_of(asked)
        if series is None:
            raise no_series(run_id)
        members = [asked]
        for card in services.registry.cards(wait=False):  # one that nobody has read yet comes later
            if card["status"] != "sealed" or card["run"] == run_id or card["family"] != asked.row["family"]:
                continue
            with ExitStack() as tried:
                other = tried.enter_context(services.registry.lease(card["run"]))
                with services.registry.fitting(card["run"]):
                    belongs = (series_of(other) or ("", 0))[0] == series[0]
                if belongs:
                    members.append(other)
                    stack.push(tried.pop_all())
        with services.registry.fitting(run_id, *(member.run_id for member in members)):
            yield members
