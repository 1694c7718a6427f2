"""Display names of modules and paths: the user's own name, else the automatic one, after what the thing is called; and
the noun for a token of a run: token, patch or image.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SEPARATOR = " · "


def thing_names(summaries: Mapping[str, Any] | None, own: Mapping[str, Mapping[str, Any]] | None) -> dict[str, str]:
    """Display names by thing: ``module:3.4`` → “block 4 · ends of sentences, 98 %”, ``path:12`` → “path 12 · …”.

    Args:
        summaries: An answer of ``summaries``, of modules or of paths.
        own: The user's names by thing, as ``GET …/names`` has them; they take the place of automatic ones.

    >>> row = {"step": 3, "module": 4, "name": "block 4", "words": "numbers, 80 %"}
    >>> thing_names({"rows": [row]}, {"path:2": {"name": "headlines"}})
    {'module:3.4': 'block 4 · numbers, 80 %', 'path:2': 'path 2 · headlines'}
    """
    called, words = {}, {}
    for row in (summaries or {}).get("rows") or []:
        is_path = row.get("rank") is not None
        thing = f"path:{row['rank']}" if is_path else f"module:{row['step']}.{row['module']}"
        called[thing] = f"path {row['rank']}" if is_path else str(row.get("name") or f"module {row['module']}")
        if row.get("words"):
            words[thing] = str(row["words"])
    for thing, entry in (own or {}).items():
        kind, _, number = thing.partition(":")
        if entry.get("name") and (thing in called or kind == "path"):
            words[thing] = str(entry["name"])
            called.setdefault(thing, f"path {number}")
    return {thing: called[thing] + SEPARATOR + text for thing, text in words.items()}


def whole_images(run: Mapping[str, Any]) -> bool:
    """Whether each image of the run is one token (RayTracing), so that it has no patches."""
    return bool(run["modality"] == "vision" and run["num_tokens"] == run["num_samples"])


def token_nouns(run: Mapping[str, Any]) -> tuple[str, str]:
    """What a token of a run is, in the singular and the plural.

    >>> token_nouns({"modality": "vision", "num_tokens": 640, "num_samples": 10})
    ('patch', 'patches')
    >>> token_nouns({"modality": "vision", "num_tokens": 10, "num_samples": 10})
    ('image', 'images')
    """
    if run["modality"] != "vision":
        return "token", "tokens"
    return ("image", "images") if whole_images(run) else ("patch", "patches")


def one_token(run: Mapping[str, Any]) -> str:
    """A token of a run with its article.

    >>> one_token({"modality": "vision", "num_tokens": 10, "num_samples": 10})
    'an image'
    """
    noun = token_nouns(run)[0]
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def called(names: Mapping[str, str] | None, thing: str, otherwise: str) -> str:
    """The display name of ``thing``, for tooltips; ``otherwise`` if it has none."""
    return (names or {}).get(thing, otherwise)


def bare(names: Mapping[str, str] | None, thing: str) -> str | None:
    """The name alone, for a column of names; None if it has none."""
    name = (names or {}).get(thing)
    return name.partition(SEPARATOR)[2] if name else None
