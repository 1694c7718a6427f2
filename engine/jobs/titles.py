"""One-sentence titles of jobs, from the request alone, to tell jobs of a kind apart. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tokenpaths.engine.families.edit_values import Edit, written

MOST_EDITS = 3
"""number of edits that are spelled out; more are counted"""
MOST_LETTERS = 200


def job_title(kind: str, request: Mapping[str, Any]) -> str:
    """What a job is about; what a request lacks is left out, so that those of older versions have titles too.

    A request that cannot be read gives the kind alone: a list of jobs is shown whatever is stored.

    >>> job_title("trace", {"model": "tiny", "data": "bundled:scenes", "limit": 200})
    'Trace of tiny over 200 samples of scenes'
    >>> ban = {"edits": [{"edit": "ban", "modules": [3], "step": 1}]}
    >>> job_title("reroute", {"model": "tiny", "run": "seen", "limit": 64, "controls": ban})
    'Ban module 3 at step 1: tiny over 64 samples of seen'
    >>> job_title("reroute", {"model": "tiny", "run": "seen", "limit": 64, "sweep": "modules"})
    'Each module banned in turn: tiny over 64 samples of seen'
    >>> job_title("import", {"file": "log.jsonl"})
    'Import of log.jsonl'
    """
    try:
        title = _phrase(kind, request)
    except Exception:  # a stored request may hold anything in any place
        title = kind
    title = (title[:1].upper() + title[1:]).replace("\n", " ")
    return title if len(title) <= MOST_LETTERS else title[: MOST_LETTERS - 1] + "…"


def _phrase(kind: str, request: Mapping[str, Any]) -> str:
    if kind == "dream":
        from tokenpaths.engine.dream.dream_title import dream_title

        return dream_title(request)
    if kind == "trace":
        changed = _controls(request.get("controls") or {})
        whom = "the untrained twin of " if request.get("untrained") else ""
        return f"Trace of {whom}{_over(request)}" + (f", {changed}" if changed else "")
    if kind == "twin":
        return f"Untrained twin of {request.get('model') or 'a model'} for run {request.get('run') or 'of its data'}"
    if kind == "reroute":
        return f"{_reroute(request)}: {_over(request)}"
    if kind == "map":
        return f"Map of the samples of {request.get('run') or 'a run'}"
    if kind == "attention":
        return f"Who attends to whom: {_over(request)}"
    if kind == "gates":
        return f"{_gates(request)}: {_over(request)}"
    if kind == "import":
        return f"Import of {request.get('file') or 'a log'}"
    about = ", ".join(f"{name} {value}" for name, value in request.items() if isinstance(value, (str, int)))
    return f"{kind}: {about}" if about else kind


def _over(request: Mapping[str, Any]) -> str:
    """“tiny over 64 samples of seen”."""
    model = str(request.get("model") or "a model")
    data = str(request.get("data") or request.get("run") or "its data").removeprefix("bundled:")
    limit = request.get("limit")
    if isinstance(request.get("sample"), int):
        return f"{model} over sample {request['sample']:,} of {data}"
    samples = "" if limit is None else "one sample of " if limit == 1 else f"{limit:,} samples of "
    return f"{model} over {samples}{data}"


def _reroute(request: Mapping[str, Any]) -> str:
    if request.get("sweep") == "modules":
        return "each module banned in turn"
    if request.get("sweep") == "shares":
        shares = ", ".join(f"{100 * share:g} %" for share in request.get("shares") or ())
        return f"{shares or 'shares'} of each step’s modules banned"
    return _controls(request.get("controls") or {}) or "nothing changed"


def _gates(request: Mapping[str, Any]) -> str:
    if request.get("position") is None:
        return "each head knocked out and gates fixed"
    word, other = request.get("word"), request.get("other")
    what = "the next word" if word is None else repr(str(word))
    beside = "" if other is None else f", with the gates of sample {other:,} too"
    return f"{what} behind token {request['position']:,}{beside}"


def _controls(controls: Mapping[str, Any]) -> str:
    """Description of the edits, then of the other controls."""
    edits = controls.get("edits")
    phrases = [_edit(edit) for edit in edits] if isinstance(edits, (list, tuple)) else []
    phrases += [
        f"{name} {value}" if isinstance(value, (str, int, float)) else f"{name} given"
        for name, value in controls.items()
        if name != "edits" and value is not None
    ]
    more = len(phrases) - MOST_EDITS
    return " and ".join(phrases[:MOST_EDITS]) + (f" and {more} more" if more > 0 else "")


def _edit(edit: Any) -> str:
    try:
        return written(_EDIT.validate_python(edit))
    except ValidationError:  # of another version
        return str(edit.get("edit") if isinstance(edit, Mapping) else edit)[:40]


_EDIT: TypeAdapter[Any] = TypeAdapter(Edit)
