"""Plain-language messages and field paths for pydantic's validation errors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from tokenpaths.engine.base.files import NAME_PATTERN


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """``object_pairs_hook`` of ``json``, which else keeps the last of two equal keys in silence.

    Raises:
        ValueError: a key is there twice; completes the sentence "it cannot be read as JSON: …".
    """
    values = dict(pairs)
    if len(values) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:80]!r} is there twice in one object; give it once")
            seen.add(name)
    return values


DISTINCT_KEYS = json.JSONDecoder(object_pairs_hook=distinct_keys)
"""``decode`` as ``json.loads``, but a key that stands twice in an object is a ValueError"""


def field_path(model: type[BaseModel], loc: Sequence[int | str]) -> str:
    """The dotted name of a field as the sender wrote it: without the tags of unions that pydantic puts between."""
    return ".".join(map(str, _walk(model, loc)[0]))


def fields_beside(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Names of the fields that the object holding the last part of ``loc`` may have."""
    return sorted({name for one in _walk(model, loc)[1] for name in one.model_fields})


def _walk(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[int | str], list[type[BaseModel]]]:
    """(parts of the path that the sender wrote, models of the object that holds the last of them)."""
    path: list[int | str] = []
    models, holders = [model], [model]
    for part in loc:
        if isinstance(part, int):
            path.append(part)
        elif len(models) > 1:  # a union was entered: its tag comes next, and nobody wrote that
            models = [tagged for tagged in models if part == tagged.__name__ or _has_tag(tagged, part)] or models
            holders = models
        else:
            path.append(part)
            holders = models
            models = [
                inner
                for candidate in models
                if part in candidate.model_fields
                for inner in _models_in(candidate.model_fields[part].annotation)
            ]
    return path, holders


def _has_tag(model: type[BaseModel], tag: str) -> bool:
    return any(
        get_origin(field.annotation) is Literal and tag in get_args(field.annotation)
        for field in model.model_fields.values()
    )


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def in_words(error: Mapping[str, Any], model: type[BaseModel] | None = None) -> str:
    """What pydantic found as a sentence, where its own would speak of Python; its own words otherwise.

    ``error`` is one of ``ValidationError.errors()`` with its context; ``model``, what was validated, knows the kinds
    that a missing tag could have named.
    """
    about = error.get("ctx") or {}
    kind = error["type"]
    if kind == "too_short" and "min_length" in about:
        least = about["min_length"]
        return (
            "the list is empty; name at least one, or leave it out"
            if not about.get("actual_length")
            else (f"the list has {about['actual_length']}; at least {least} are needed")
        )
    if kind == "too_long" and "max_length" in about:
        given = len(error["input"]) if isinstance(error.get("input"), Sequence) else "more"
        return (
            f"the list has {given:,}; at most {about['max_length']:,} are taken"
            if isinstance(given, int)
            else (f"at most {about['max_length']:,} are taken")
        )
    if kind == "union_tag_invalid":
        return f"{str(about['discriminator']).replace(chr(39), '`')} is {str(about['tag'])[:40]!r}; it may be " + (
            str(about["expected_tags"])
        )
    if kind == "union_tag_not_found":
        key = str(about["discriminator"]).strip("'")
        tags = ", ".join(map(repr, _tags(model, error["loc"], key))) if model is not None else ""
        return f"say with `{key}` which kind it is{': ' * bool(tags)}{tags}"
    if kind == "string_pattern_mismatch" and about.get("pattern") == NAME_PATTERN:
        return "a name is 1 to 64 letters, digits, - and _, starting with a letter or digit"
    if kind == "string_pattern_mismatch" and about.get("pattern") == r"^\d*$":
        return "it should be digits alone"
    if kind in ("int_type", "float_type", "bool_type") and isinstance(error.get("input"), str):
        return f"{_PLAIN[kind]}, without quotation marks"
    return _PLAIN.get(kind) or str(error["msg"]).removeprefix("Value error, ")


_PLAIN = {
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), "it should be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "it should be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "it should be true or false"),
    "missing": "it is required, and was not given",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "it should be a JSON object, {…}"),
    **dict.fromkeys(("tuple_type", "list_type"), "it should be a list, […]"),
}


def _tags(model: type[BaseModel], loc: Sequence[int | str], key: str) -> list[str]:
    """What ``key`` may say in the objects that ``loc`` may hold."""
    fields = [one.model_fields[str(loc[-1])] for one in _walk(model, loc)[1] if loc and loc[-1] in one.model_fields]
    tagged = [
        one.model_fields[key] for field in fields for one in _models_in(field.annotation) if key in one.model_fields
    ]
    return [str(tag) for field in tagged for tag in get_args(field.annotation)]
