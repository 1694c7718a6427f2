"""Expert ids as engines encode them in JSON: lists, base64 of a ``.npy`` or of raw integers, objects with a shape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.json_lines import decoded, from_bytes, nested_ids
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_TOP_K, Announced
from tokenpaths.engine.adapters.logs.pieces.piece import widened
from tokenpaths.engine.adapters.logs.pieces.wording import first_of
from tokenpaths.engine.adapters.logs.responses.answer_fields import STARTS, prompt_tokens, start_of
from tokenpaths.engine.adapters.logs.responses.envelopes import PARTS
from tokenpaths.engine.base.errors import UserError

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
MOST_LAYERS = 128
"""that are proposed"""
RAW_DTYPE = "int32"
"""dtype of base64 data without one: as sent by SGLang"""


def ids_of(value: Any, where: str, what: str, beside: dict[str, Any], announced: Announced) -> np.ndarray | None:
    """Ids (t, S, K) from any of the encodings, None of no token; ``beside``: the fields that stand around the value.

    Raises:
        UserError: they cannot be read; of flat ids, with the sizes that would fit.
    """
    if isinstance(value, dict) and isinstance(value.get(PARTS), list):
        found = (ids_of(part, where, what, beside, announced) for part in value[PARTS])
        parts = [part for part in found if part is not None]
        if len({part.shape[1:] for part in parts}) > 1:
            raise UserError(f"{where}: the parts of {what} have different layers or experts", field="file")
        return np.concatenate(parts) if parts else None
    if isinstance(value, list | np.ndarray):
        if not len(value):
            return None
        array = nested_ids(value, where, what, slots_at=3)
        if array.ndim == 3 and announced.top_k is not None:
            array = widened(array, announced.top_k)
    elif isinstance(value, str):
        array = from_bytes(decoded(value, where, what), RAW_DTYPE, where, what)
    elif isinstance(value, dict) and isinstance(value.get("data"), str):
        dtype = value.get("dtype", RAW_DTYPE)
        if dtype not in DTYPES:
            raise UserError(f"{where}: {what} has the dtype {dtype!r}, it should be one of {', '.join(DTYPES)}")
        if value.get("encoding", "base64") != "base64":
            raise UserError(f"{where}: {what} is encoded as {value['encoding']!r}, only base64 is read", field="file")
        array = from_bytes(decoded(value["data"], where, what), dtype, where, what)
    else:
        raise UserError(f"{where}: {what} is {type(value).__name__}, not a list or base64", field="file")
    if array.ndim and not len(array):
        return None
    if array.ndim == 1:
        array = _folded(array, beside, where, what, announced)
    steps, top_k = announced.ids_shape(array.shape, array.dtype, f"{where}, {what}")
    return array.reshape(len(array), steps, top_k)


def _folded(flat: np.ndarray, beside: dict[str, Any], where: str, what: str, announced: Announced) -> np.ndarray:
    """Reshape flat ids by the accompanying shape, or by the sizes that the user gives."""
    shape = beside.get("shape")
    if isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape):
        if math.prod(shape) != len(flat):
            raise UserError(f"{where}: {what} holds {len(flat)} ids, its shape {shape} says otherwise", field="file")
        return flat.reshape(shape)
    if shape is not None:
        raise UserError(f"{where}: the shape of {what} is {shape}, it should be [tokens, layers, top-k]", field="file")
    layers, top_k = announced.layers, announced.top_k
    if not (layers and top_k):
        rows = rows_told(beside)
        wide = len(flat) // rows if rows and len(flat) % rows == 0 else 0
        one = layers or top_k
        if rows and wide and one and wide % one == 0:
            return flat.reshape(rows, layers or wide // one, top_k or wide // one)
        fits = fitting(flat, wide)
        if one:
            given = f"{layers} layers × top-k" if layers else f"layers × {top_k} experts"
            raise UserError(
                f"{where}: {what} "
                + (
                    f"holds {len(flat)} ids of {rows} tokens, which are not {given}{fits}"
                    if wide
                    else f"is a flat row of {len(flat)} ids of tokens that are not counted, or not all there; "
                    + _other_size(flat, layers, top_k)
                ),
                field="layers" if layers else "top_k",
            )
        raise UserError(
            f"{where}: {what} is a flat row of {len(flat)} ids; say --layers (all layers, dense ones included) and "
            f"--top-k of the model{fits}",
            field="layers",
        )
    each, rows = layers * top_k, rows_told(beside)
    if rows and len(flat) % rows == 0 and len(flat) // rows != each:
        missing = rows - len(flat) // each
        cut = len(flat) % each == 0 and 0 < missing <= (prompt_tokens(beside) or rows)
        if not (announced.may_be_cut and cut) or _chosen_twice(flat, top_k):
            raise UserError(
                f"{where}: {what} holds {len(flat)} ids of {rows} tokens, which are not {layers} layers × {top_k} "
                f"experts{fitting(flat, len(flat) // rows)}"
                + (f"; if the first {missing} tokens were not asked for, say so in {STARTS[-1]}" if cut else ""),
                field="layers",
            )
    if len(flat) % each:
        raise UserError(
            f"{where}: {what} holds {len(flat)} ids, which are no whole tokens of {layers} layers × {top_k} experts",
            field="layers",
        )
    return flat.reshape(-1, layers, top_k)


def rows_told(beside: dict[str, Any]) -> int | None:
    """Tokens with decisions, as the response counts them: all but the last, and those that were not asked for."""
    about, usage = beside.get("meta_info"), beside.get("usage")
    held = {**(usage if isinstance(usage, dict) else {}), **(about if isinstance(about, dict) else {})}
    lists = [next((beside[k] for k in keys if isinstance(beside.get(k), list)), None) for keys in _ID_KEYS]
    if all(one is not None for one in lists):
        count = sum(len(one) for one in lists if one is not None)
    else:
        prompt, answer = held.get("prompt_tokens"), held.get("completion_tokens")
        count = prompt + answer if type(prompt) is int and type(answer) is int else 0
    start = start_of([beside])
    count -= start if start < count else 0
    return count - 1 if count > 1 else None


_ID_KEYS = (("input_ids", "prompt_token_ids"), ("output_ids", "token_ids"))


def fitting(flat: np.ndarray, wide: int) -> str:
    """The sizes that ``wide`` ids a token could have, as an ending of a sentence; empty if there is no telling.

    A token never chooses an expert twice at a layer, but where a layer is filled with zeros.
    """
    if not wide:
        return ""
    fits = []
    for top_k in range(min(wide, MOST_TOP_K), 0, -1):
        if wide % top_k == 0 and not _chosen_twice(flat[: wide * 256], top_k):
            fits.append(f"{wide // top_k} × {top_k}")
    return f": {wide} ids a token, so {' or '.join(fits[:6])} would fit" if fits else ""


def _other_size(flat: np.ndarray, layers: int | None, top_k: int | None) -> str:
    """What to say beside the one of both sizes that is given, with what would fit."""
    one = layers or top_k or 1
    given, other = (
        (f"--layers {layers}", "--top-k") if layers else (f"--top-k {top_k}", "--layers (dense ones included)")
    )
    if len(flat) % one or (top_k and _chosen_twice(flat, top_k)):
        return f"{given} does not fit them; say --layers (all layers, dense ones included) and --top-k of the model"
    most = MOST_TOP_K if layers else MOST_LAYERS
    sizes = [size for size in range(1, most + 1) if len(flat) % (one * size) == 0]
    fits = [str(size) for size in sizes if not (layers and _chosen_twice(flat, size))]
    return f"beside {given} say {other}: {first_of(fits, 12)} would fit" if fits else f"{given} does not fit them"


def _chosen_twice(flat: np.ndarray, top_k: int) -> bool:
    """Whether a token would choose an expert twice at a layer, were ids of ``top_k`` experts."""
    ids = np.sort(flat.reshape(-1, top_k), axis=1)
    twice = (ids[:, 1:] == ids[:, :-1]).any(axis=1)
    return bool((twice & ids.any(axis=1)).any())
