"""One-sentence titles of dreams for lists of jobs, from the request alone. No torch, no file, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenpaths.engine.dream.settings import ImageSettings, TextSettings

MOST_WRITTEN = 6
"""numbers that are written out; more are counted"""


def dream_title(request: Mapping[str, Any]) -> str:
    """What a dream is of, and what tells it from others: ``sample 4 of seen: S = 3, a group of 4, with its pixels``.

    ``request`` is the request of a job, as it was sent or with its defaults; what it lacks is left out, so that the
    requests of older versions have titles too. One that cannot be read is just “Dream”: a list of jobs is shown
    whatever is stored.

    >>> dream_title({"model": "tiny", "run": "seen", "sample": 4, "target": {"of": "choices", "until": [3]}})
    'Dream of sample 4 of seen: S = 3'
    >>> dream_title({"model": "tiny", "target": {"of": "module", "module": 3, "steps": [0, 1]}})
    'Dream of module 3 of tiny: at steps 0, 1'
    """
    try:
        return _title(request)
    except Exception:  # a stored request may hold anything in any place
        return "Dream"


def _title(request: Mapping[str, Any]) -> str:
    target = request.get("target")
    if not isinstance(target, Mapping):
        return "Dream"
    of = target.get("of")
    subject, parts = _original(request), []
    if of == "choices":
        parts.append(_steps(target))
        parts += _stretch(request, target)
    else:
        subject = _subject(request, target, str(of))
        parts.append(_at(target) if of == "module" else "")
    parts += [_group(target.get("group") or {}), _context(target)]
    parts.append("logits" if target.get("scores") == "logits" else "")
    parts += _settings(request)
    details = ", ".join(part for part in parts if part)
    return f"Dream of {subject}: {details}" if details else f"Dream of {subject}"


def _original(request: Mapping[str, Any]) -> str:
    if request.get("sample") is not None:
        return f"sample {request['sample']} of {request.get('run') or 'a run'}"
    if request.get("row") is not None:
        return f"row {request['row']} of {request.get('data') or 'a set'}"
    return str(request.get("inbox") or "an original")


def _subject(request: Mapping[str, Any], target: Mapping[str, Any], of: str) -> str:
    model = request.get("model") or "a model"
    if of == "path":
        if target.get("rank") is not None:
            return f"the path of rank {target['rank']} of {request.get('run') or 'a run'}"
        ribbon = target.get("ribbon") or ()
        steps = [".".join(map(str, of_step)) if isinstance(of_step, Sequence) else "?" for of_step in ribbon]
        return f"the path {_listed(steps, 12, ' → ')} of {model}"
    names = {
        "module": ("module",),
        "class": ("index",),
        "connection": ("iteration", "source", "target"),
        "direction": ("layer", "head", "direction"),
        "block": ("layer", "block"),
    }.get(of, ())
    numbers = ".".join(str(target.get(name, "?")) for name in names)
    return f"{of} {numbers} of {model}" if numbers else f"{of} of {model}"


def _steps(target: Mapping[str, Any]) -> str:
    until = target.get("until")
    single = target.get("form") == "single"
    if not until:
        return "each step alone" if single else "every S"
    if single:
        return f"{_counted([s - 1 for s in until], 'step')} alone"
    return f"S = {_listed(until, MOST_WRITTEN)}"


def _at(target: Mapping[str, Any]) -> str:
    return f"at {_counted(target['steps'], 'step')}" if target.get("steps") else ""


def _stretch(request: Mapping[str, Any], target: Mapping[str, Any]) -> list[str]:
    """Which tokens of a text, where that was chosen."""
    length = (request.get("text") or {}).get("length", TextSettings().length)
    first = target.get("first") or 0
    return [f"tokens {first} to {first + length - 1}"] if first or length != TextSettings().length else []


def _group(group: Mapping[str, Any]) -> str:
    if group.get("patches"):
        return f"a group of {len(group['patches'])} ({_listed(group['patches'], MOST_WRITTEN)})"
    if group.get("like") is not None:
        return f"the path that {group['like']} takes"
    return f"{group['draw']} drawn" if group.get("draw") is not None else ""


def _context(target: Mapping[str, Any]) -> str:
    return {"with": "with its pixels", "both": "without and with its pixels"}.get(str(target.get("context")), "")


def _settings(request: Mapping[str, Any]) -> list[str]:
    """Iterations, rate and precision where they are not the usual ones, and the seed."""
    image, text, usual = request.get("image") or {}, request.get("text") or {}, ImageSettings()
    parts = []
    if image.get("iterations", usual.iterations) != usual.iterations:
        parts.append(f"{image['iterations']:,} iterations")
    if image.get("rate", usual.rate) != usual.rate:
        parts.append(f"rate {image['rate']:g}")
    if image.get("precision", usual.precision) != usual.precision:
        parts.append(f"in {image['precision']}")
    if text.get("iterations", TextSettings().iterations) != TextSettings().iterations:
        parts.append(f"{text['iterations']:,} rounds")
    if request.get("seed"):
        parts.append(f"seed {request['seed']}")
    return parts


def _counted(numbers: Sequence[int], what: str) -> str:
    return f"{what}{'s' if len(numbers) > 1 else ''} {_listed(numbers, MOST_WRITTEN)}"


def _listed(items: Sequence[object], most: int, between: str = ", ") -> str:
    if len(items) <= most:
        return between.join(map(str, items))
    return f"{between.join(map(str, items[: most - 1]))} … and {len(items) - most + 1} more"
