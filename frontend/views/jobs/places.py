"""Where the result of a finished job lives: the views that show it, as (words, selection). Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenpaths.frontend.page.selection import Selection
from tokenpaths.frontend.views.detour.edits import in_address
from tokenpaths.frontend.views.dream.wishes import selection_of

Place = tuple[str, Selection]


def places(job: Mapping[str, Any]) -> list[Place]:
    """Links of a finished job, the nearest to what was asked for first; none while it is not done."""
    if job["state"] != "succeeded":
        return []
    request, result = job["request"], job["result"] or {}
    if job["kind"] == "dream":
        return [("Open in Dream", selection_of(job))]
    if job["kind"] == "reroute" and request.get("sweep"):
        # A sweep over a data set belongs to no run, so Detour has no place for it; its table is with the job.
        run = request.get("run")
        return [("Open in Detour", Selection(view="detour", run=run, job=job["job"]))] if run else []
    if job["kind"] == "map":
        return [("Open the map", Selection(view="map", run=request.get("run"), job=job["job"]))]
    run = result.get("run")
    if not run:
        return []
    if job["kind"] == "reroute":
        # The detour of a model that is not ours is the job itself; of ours it is made anew.
        named = job["job"] if str(request.get("model")).startswith("hf:") else None
        return _edited(request, str(run), [str(one) for one in result.get("runs") or ()], named)
    return [("Open the run", Selection(view="flow", run=str(run)))]


def _edited(request: Mapping[str, Any], after: str, runs: Sequence[str], job: str | None) -> list[Place]:
    """The detour of a first sample where an address can say its edits, then both runs."""
    found: list[Place] = []
    before = next((run for run in runs if run != after), None)
    edits = (request.get("controls") or {}).get("edits") or ()
    texts = [in_address(edit) for edit in edits]
    if before and edits and set(request["controls"]) == {"edits"} and None not in texts:
        controls = tuple(text for some in texts for text in some or ())
        if len(controls) <= 16:
            found.append(("Open in Detour", Selection(view="detour", run=before, sample=0, controls=controls, job=job)))
    found.append(("Open the edited run", Selection(view="flow", run=after)))
    if before:
        found.append(("Open the unchanged run", Selection(view="flow", run=before)))
    return found
