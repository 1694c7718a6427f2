"""Where the ids are in a value that a file of tensors holds: one array, or one for each of several requests or parts.

Shapes: t tokens, S layers, K slots.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.wording import first_of
from tokenpaths.engine.adapters.logs.responses.answers import ANSWER_IDS, ROWS, identity_of
from tokenpaths.engine.adapters.logs.tensors.batch_inputs import MASK
from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import IDS, OPTIONAL
from tokenpaths.engine.base.errors import UserError

OF_RESPONSES = ("prompt_token_ids", "choices", "outputs", "meta_info", *ANSWER_IDS)
"""keys that a response of an engine has beside its rows, and a batch of a training has not"""
_NOT_OF_RESPONSES = {*IDS, MASK, "weights", "token_id", "sample"} - {ROWS[0]}
_PLACE = re.compile(r"(sequence )?\d+")
_OF_A_LAYER = re.compile(r"(?i)layer|block|(^|\.)blk")
SEVERAL = "{count} arrays are a sample each, (tokens, layers, top-k)"


@dataclass(frozen=True)
class InnerIds:
    """One array of ids."""

    name: str
    """keys that lead to it; empty: it is the only one"""
    ids: np.ndarray
    """(t, S, K), or (sequences, t, S, K); where a name says that these are ids, anything"""
    beside: dict[str, Any]
    """what stands beside it by name, itself included"""


def inner_ids(value: Any) -> tuple[list[InnerIds], list[str]]:
    """(All arrays of ids in a value, names of what stands beside them and is none)."""
    if isinstance(value, np.ndarray):
        return ([InnerIds("", value, {})] if value.dtype.kind in "iu" and value.ndim in (3, 4) else []), []
    if isinstance(value, dict):
        for name in IDS:
            held = value.get(name)
            if isinstance(held, np.ndarray):
                return [InnerIds("", held, {str(key): one for key, one in value.items()})], []
            if isinstance(held, list | tuple) and held:
                return inner_ids(held)[0], [str(key) for key in value if key != name]
        named = [(str(key), held) for key, held in value.items()]
    elif isinstance(value, list | tuple):
        named = [(_name_of(held, place), held) for place, held in enumerate(value)]
    else:
        return [], []
    if arrays := _arrays(named, 2 if isinstance(value, dict) else 1):
        return arrays, [name for name, _ in named if name not in {array.name for array in arrays}]
    found: list[InnerIds] = []
    unread: list[str] = []
    for name, held in named:
        inner, beside = inner_ids(held) if isinstance(held, dict) else ([], [])
        if not inner:
            unread.append(name)
        found += [InnerIds(", ".join(filter(None, [name, one.name])), one.ids, one.beside) for one in inner]
        unread += [f"{name}, {other}" for other in beside]
    return found, unread if found else []


def _arrays(named: list[tuple[str, Any]], least: int) -> list[InnerIds]:
    """Arrays (t, S, K) of requests, which nothing but their shape says; none if there are less than ``least``."""
    arrays = [
        InnerIds(name, held, {})
        for name, held in named
        if isinstance(held, np.ndarray) and held.dtype.kind in "iu" and held.ndim == 3
    ]
    several = len(arrays) >= least and len({array.ids.shape[1:] for array in arrays}) == 1
    # Of one length, and known by their places alone, they are as likely a layer each: (sequences, tokens, top-k).
    told = len(arrays) == 1 or len({len(array.ids) for array in arrays}) > 1
    told = told or not all(_PLACE.fullmatch(array.name) for array in arrays)
    return arrays if several and told and not any(_OF_A_LAYER.search(array.name) for array in arrays) else []


def _name_of(held: Any, place: int) -> str:
    identity = identity_of(held) if isinstance(held, dict) else None
    return f"sequence {place}" if identity is None else str(identity)


def as_responses(value: Any) -> list[dict[str, Any]] | None:
    """A list of engines' responses, or some by name, with lists in place of arrays but for their rows; None if they are
    none of these."""
    if isinstance(value, dict) and all(isinstance(held, dict) for held in value.values()):
        records = [{**held, "id": str(key)} for key, held in value.items()]
    elif isinstance(value, list | tuple) and all(isinstance(held, dict) for held in value):
        records = list(value)
    else:
        return None
    rows = [record for record in records if any(record.get(key) is not None for key in (*ROWS, "choices", "outputs"))]
    if not any(map(_is_response, rows)) or any(map(_is_batch, records)):
        return None
    return [{str(key): _plain(held, str(key)) for key, held in record.items()} for record in records]


def _is_response(record: dict[str, Any]) -> bool:
    words = any(isinstance(record.get(key), str) for key in ("text", "label"))
    return words or any(key in record for key in OF_RESPONSES) or isinstance(record.get(ROWS[0]), list | str)


def _is_batch(record: dict[str, Any]) -> bool:
    """Whether these are ids by another name, or what a model is given or the neutral format says stands beside them."""
    padded = any(isinstance(record.get(key), np.ndarray) and record[key].ndim == 4 for key in ROWS)
    return padded or not record.keys().isdisjoint(_NOT_OF_RESPONSES)


def _plain(value: Any, key: str) -> Any:
    if isinstance(value, np.ndarray):
        return value if key in ROWS else value.tolist()
    if isinstance(value, dict):
        return {name: _plain(held, str(name)) for name, held in value.items()}
    return [_plain(held, "") for held in value] if isinstance(value, list | tuple) and key not in ROWS else value


def layers_apart(file: Path, value: Any) -> UserError | None:
    """What to say of ids that lie apart by layer, which are not read; None if there are none."""
    named: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        named = ((str(key), held) for key, held in value.items())
    elif isinstance(value, list | tuple):
        named = ((str(place), held) for place, held in enumerate(value))
    whole = list(_whole_numbers(named))
    if len(whole) == 1 and whole[0][1].ndim == 3 and isinstance(value, dict):
        return UserError(
            f"{file}: {whole[0][0]} is an array of whole numbers of shape {whole[0][1].shape}; if it holds the ids "
            "(tokens, layers, top-k), save it under the name 'ids'",
            field="file",
        )
    if len(whole) < 2:
        return None
    shapes = [array.shape for _, array in whole]
    return UserError(
        f"{file}: holds {len(whole)} arrays of whole numbers of shape {first_of(list(dict.fromkeys(shapes)), 3)} "
        f"({first_of([name for name, _ in whole], 4)}); if each holds the ids of a layer (tokens, top-k), save "
        "torch.stack(list, dim=1) under the name 'ids' (tokens, layers, top-k); if each holds those of a request, save "
        "a list or dict of arrays (tokens, layers, top-k) of equal layers and top-k",
        field="file",
    )


def _whole_numbers(named: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, np.ndarray]]:
    """Arrays of ids by name, of a name that says nothing else, or inside of what does."""
    for name, held in named:
        if isinstance(held, dict):
            inner = next((held[key] for key in IDS if isinstance(held.get(key), np.ndarray)), None)
            held = inner if inner is not None else held
        known = name in OPTIONAL or name in ("input_ids", MASK, "position_ids", "token_type_ids", "labels")
        if isinstance(held, np.ndarray) and held.dtype.kind in "iu" and held.ndim in (2, 3) and not known:
            yield name, held
