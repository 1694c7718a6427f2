"""Where in a request the fault lies, in the words of the request: for what pydantic found. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel


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
            models = [one for one in models if part == one.__name__ or _has_tag(one, part)] or models
            holders = models
        else:
            path.append(part)
            holders = models
            models = [found for one in models if part in one.model_fields
                      for found in _models_in(one.model_fields[part].annotation)]  # fmt: skip
    return path, holders


def _has_tag(model: type[BaseModel], tag: str) -> bool:
    return any(get_origin(field.annotation) is Literal and tag in get_args(field.annotation)
               for field in model.model_fields.values())  # fmt: skip


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _models_in(part)]


def in_words(error: Mapping[str, Any]) -> str:
    """What pydantic found, as a sentence about a list where it counts one; its own words otherwise."""
    about = error.get("ctx") or {}
    if error["type"] == "too_short" and "min_length" in about:
        least = about["min_length"]
        return "the list is empty; name at least one, or leave it out" if not about.get("actual_length") else (
            f"the list has {about['actual_length']}; at least {least} are needed")  # fmt: skip
    if error["type"] == "too_long" and "max_length" in about:
        given = len(error["input"]) if isinstance(error.get("input"), Sequence) else "more"
        return f"the list has {given:,}; at most {about['max_length']:,} are taken" if isinstance(given, int) else (
            f"at most {about['max_length']:,} are taken")  # fmt: skip
    return str(error["msg"]).removeprefix("Value error, ")
