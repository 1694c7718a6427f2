"""Read responses of vLLM and SGLang as JSON lines, one response a line; ids are lists, base64 or a base64 ``.npy``.

vLLM returns ``choices[i].routed_experts`` (a base64 ``.npy`` of (tokens, layers, top-k); older versions an object with
``data``, ``dtype`` and ``shape``, or lists, with ``prompt_routed_experts`` beside it). SGLang returns
``meta_info.routed_experts`` or ``choices[i].sgl_ext.routed_experts``: flat base64 int32, so layers and top-k must be
given. In both, the last token has no decision: it was never fed back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.json_lines import decoded, from_bytes, json_lines, nested_ids
from tokenpaths.engine.adapters.logs.pieces import MOST_TOKEN_ID, Announced, LogShape, Piece, layer_names
from tokenpaths.engine.adapters.logs.routing_log import Log, without_dense_layers
from tokenpaths.engine.base.errors import UserError

DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
RAW_DTYPE = "int32"
"""dtype of base64 data without one: as sent by SGLang"""
OTHER_IDS = "the token ids of {n} answer{s} {are} left out: they are not as many as decisions, or lack the prompt's"
NO_IDS = "{n} list{s} of token ids that {are} no whole numbers {are} left out"
NO_TEXT = "{n} text{s} that {are} no string {are} left out"
KEYS = ("routed_experts", "prompt_routed_experts")
NOT_THERE = "start the engine with --enable-return-routed-experts, and for SGLang ask with return_routed_experts"


def is_vllm_line(record: dict[str, Any]) -> bool:
    """Whether an object looks like a response of vLLM, with or without decisions."""
    return any(key in record for key in (*KEYS, "choices", "outputs")) and not is_sglang_line(record)


def is_sglang_line(record: dict[str, Any]) -> bool:
    """Whether an object looks like a response of SGLang, with or without decisions."""
    return "meta_info" in record


def open_engine(file: Path, announced: Announced) -> Log:
    """Open a file of responses. Layers with only zeros in the first response are dense and omitted (K > 1)."""
    first = next(json_lines(file), None)
    if first is None:
        raise UserError(f"{file}: is empty", field="file")
    where, record = first
    model = record.get("model") if isinstance(record.get("model"), str) else None
    whole = _responses(where, record, announced)[0].ids

    def read() -> Iterator[Piece]:
        known = model
        for where, record in json_lines(file):
            named = record.get("model")
            if isinstance(named, str):
                known = known or named
                if named != known:
                    raise UserError(
                        f"{where}: is of the model {named!r}, the log began with {known!r}; a run is one model, "
                        "so split the log by model",
                        field="file",
                    )
            for piece in _responses(where, record, announced):
                if piece.ids.shape[1:] != whole.shape[1:]:
                    raise UserError(
                        f"{piece.where}: has {piece.ids.shape[1]} layers of {piece.ids.shape[2]} experts, the first "
                        f"response had {whole.shape[1]} of {whole.shape[2]}",
                        field="file",
                    )
                yield piece

    kind = "sglang" if is_sglang_line(record) else "vllm"
    shape = LogShape(layer_names(whole.shape[1]), whole.shape[2], False)
    return without_dense_layers(Log(file, kind, shape, announced.experts, read, model))


def _responses(where: str, record: dict[str, Any], announced: Announced) -> list[Piece]:
    """One piece per choice; the decisions of the prompt, made once, precede the first."""
    choices = next((record[key] for key in ("choices", "outputs") if isinstance(record.get(key), list)), None)
    several = choices is not None and len(choices) > 1
    prompt = _decisions(record, ("prompt_routed_experts",), where, announced)
    remarks: list[str] = []
    prompt_ids = _ids(record, ("prompt_token_ids", "input_ids"), where, remarks)
    pieces = []
    for number, choice in enumerate(choices or [record]):
        at = f"{where}, choice {number}" if several else where
        if not isinstance(choice, dict):
            raise UserError(f"{at}: is no object", field="file")
        beside, decisions = _routed_experts(choice if choices else record)
        parts = [prompt] if prompt is not None and number == 0 else []
        if decisions is not None:
            parts.append(_array(decisions, at, "routed_experts", {**record, **choice, **beside}, announced))
        if not parts:
            raise UserError(f"{at}: has no routed_experts; {NOT_THERE}", field="file")
        if len(parts) == 2 and parts[0].shape[1:] != parts[1].shape[1:]:
            raise UserError(f"{at}: prompt and answer have different layers or experts", field="file")
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        answer_ids = _ids(choice, ("token_ids", "output_token_ids", "output_ids", "completion_token_ids"), at, remarks)
        token_id = _token_ids(
            prompt_ids, answer_ids, len(ids), beside.get("start", 0), prompt is not None and number > 0
        )
        about = record.get("meta_info")
        identity = record.get("id") or (about.get("id") if isinstance(about, dict) else None)
        if token_id is None and answer_ids is not None:
            remarks.append(OTHER_IDS)
        named = isinstance(identity, str | int)
        source = f"{identity}{f' choice {number}' if several else ''}" if named else None
        text = _text(choice, remarks)
        pieces.append(Piece(ids, at, None, token_id, _label(record, remarks), text, source, tuple(remarks)))
        remarks.clear()
    return pieces


def _routed_experts(choice: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """(enclosing object, decisions or None), at any of the engine's locations."""
    for holder in (choice, choice.get("sgl_ext"), choice.get("meta_info")):
        if isinstance(holder, dict) and holder.get("routed_experts") is not None:
            value = holder["routed_experts"]
            return (value if isinstance(value, dict) else {}), value
    return {}, None


def _decisions(record: dict[str, Any], keys: Sequence[str], where: str, announced: Announced) -> np.ndarray | None:
    value = next((record[key] for key in keys if record.get(key) is not None), None)
    return None if value is None else _array(value, where, keys[0], record, announced)


def _array(value: Any, where: str, what: str, beside: dict[str, Any], announced: Announced) -> np.ndarray:
    """Ids (t, S, K) from any of the encodings."""
    if isinstance(value, list):
        if not value:
            raise UserError(f"{where}: {what} has no token", field="file")
        array = nested_ids(value, where, what)
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
    if array.ndim == 1:
        array = _folded(array, beside.get("shape"), where, what, announced)
    steps, top_k = announced.ids_shape(array.shape, array.dtype, f"{where}, {what}")
    return array.reshape(len(array), steps, top_k)


def _folded(flat: np.ndarray, shape: Any, where: str, what: str, announced: Announced) -> np.ndarray:
    """Reshape flat ids by the accompanying shape, or by the sizes that the user gives."""
    if isinstance(shape, list) and len(shape) == 3 and all(type(n) is int and n > 0 for n in shape):
        if math.prod(shape) != len(flat):
            raise UserError(f"{where}: {what} holds {len(flat)} ids, its shape {shape} says otherwise", field="file")
        return flat.reshape(shape)
    if shape is not None:
        raise UserError(f"{where}: the shape of {what} is {shape}, it should be [tokens, layers, top-k]", field="file")
    if not (announced.layers and announced.top_k):
        raise UserError(
            f"{where}: {what} is a flat row of {len(flat)} ids; say --layers (all layers, dense ones included) and "
            "--top-k of the model",
            field="layers",
        )
    each = announced.layers * announced.top_k
    if len(flat) % each:
        raise UserError(
            f"{where}: {what} holds {len(flat)} ids, which are no whole tokens of {announced.layers} layers × "
            f"{announced.top_k} experts",
            field="layers",
        )
    return flat.reshape(-1, announced.layers, announced.top_k)


def _label(record: dict[str, Any], remarks: list[str]) -> Any:
    """What stands under ``label``, or under a key that differs from it in case and blanks only."""
    key = "label" if "label" in record else next((key for key in record if key.strip().lower() == "label"), None)
    if key not in (None, "label"):
        remarks.append("key")
    return None if key is None else record[key]


def _ids(holder: dict[str, Any], keys: Sequence[str], where: str, remarks: list[str]) -> list[int] | None:
    for key in keys:
        value = holder.get(key)
        if value and not (isinstance(value, list) and all(type(token) is int for token in value)):
            remarks.append(NO_IDS)
        if isinstance(value, list) and value and all(type(token) is int for token in value):
            wrong = next((token for token in value if not 0 <= token <= MOST_TOKEN_ID), None)
            if wrong is not None:
                raise UserError(
                    f"{where}: {key} holds {str(wrong)[:40]}; token ids are whole numbers from 0 to {MOST_TOKEN_ID}",
                    field="file",
                )
            return value
    return None


def _token_ids(
    prompt: list[int] | None, answer: list[int] | None, count: int, start: Any, without_prompt: bool
) -> np.ndarray | None:
    """Vocabulary ids of the tokens with decisions; None if the log does not determine them."""
    if answer is None or (prompt is None and not without_prompt):
        return None
    before = start if type(start) is int and start > 0 else 0
    tokens = (answer if without_prompt else [*(prompt or []), *answer])[before:]
    # The last token was never fed back, so it may be missing; any other difference would shift them all.
    return np.array(tokens[:count], dtype=np.int64) if len(tokens) in (count, count + 1) else None


def _text(choice: dict[str, Any], remarks: list[str]) -> str | None:
    message = choice.get("message")
    text = choice.get("text", message.get("content") if isinstance(message, dict) else None)
    if text is not None and not isinstance(text, str):
        remarks.append(NO_TEXT)
    return text if isinstance(text, str) else None
