"""Arrays of ids from a file of tensors: of one sample, of a batch with padding, or of several requests by name.

Shapes: B sequences, t tokens, S layers, K slots.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape, layer_names
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.pieces.wording import number_of, shortened, unread_note
from tokenpaths.engine.adapters.logs.routing_log import Log, skipped, without_dense_layers
from tokenpaths.engine.adapters.logs.tensors.batch_inputs import PADDING, check_axes, input_sizes, inputs_beside
from tokenpaths.engine.adapters.logs.tensors.inner_ids import SEVERAL, InnerIds, layers_apart
from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import IDS, as_array, check_one, open_named
from tokenpaths.engine.base.errors import UserError

NO_ROWS = "{n} rollout{s} without decisions {are} left out"
SEVERAL_PADDED = "padding: rows of zeros at both ends of a sequence are left out"
ALIKE = ", and with them tokens there that chose expert 0 at every layer, which look the same with one expert a token"


def open_inner(file: Path, found: list[InnerIds], unread: list[str], announced: Announced) -> Log:
    """The log of all arrays of ids that a file holds; ``unread``: names of what stands beside them.

    Raises:
        UserError: they have different layers, top-k or experts.
    """
    if len(found) == 1:
        log = _open_one(file, found[0], announced)
        log.note = _notes([log.note, unread_note("arrays", unread)])
        return without_dense_layers(log, announced.skip_bad)
    flat = {one.name: one.ids for one in found if one.ids.ndim == 2}
    if flat and not (announced.layers or announced.top_k) and (problem := layers_apart(file, flat)) is not None:
        raise problem
    logs: list[tuple[str, Log]] = []  # choices of a request may have one name
    left: dict[str, int] = {}
    for one in found:
        try:
            log = _open_one(file, one, announced)
            if logs:
                _check_alike(file, one.name, log, *logs[0])
            logs.append((one.name, log))
        except UserError as error:
            if not announced.skip_bad or not logs and one is found[-1]:
                raise
            left[skipped(str(error))] = 1

    def read() -> Iterator[Piece | tuple[str, int]]:
        yield from left.items()
        for name, log in logs:
            for item in log.read():
                yield _named(item, name, file) if isinstance(item, Piece) else item

    told = SEVERAL.format(count=len(logs)) if all(not one.beside for one in found) else ""
    note = _notes([told, *(log.note for _, log in logs), unread_note("arrays", unread)])
    return without_dense_layers(replace(logs[0][1], read=read, note=note), announced.skip_bad)


def _notes(notes: list[str]) -> str:
    return "; ".join(dict.fromkeys(part for note in notes for part in note.split("; ") if part))


def _named(piece: Piece, name: str, file: Path) -> Piece:
    """A piece of one of several arrays, with the name of that one."""
    alone = piece.source in (None, file.name)
    where = piece.where.replace(str(file), f"{file}, {shortened(name)}", 1)
    return replace(piece, where=where, source=name if alone else f"{name}, {piece.source}")


def _check_alike(file: Path, name: str, log: Log, first_name: str, first: Log) -> None:
    for what, mine, theirs in (
        ("layers", log.shape.layers, first.shape.layers),
        ("top-k", log.shape.top_k, first.shape.top_k),
        ("experts", log.experts, first.experts),
        ("weights", log.shape.weights, first.shape.weights),
        ("model", log.model, first.model),
    ):
        if mine != theirs:
            raise UserError(
                f"{file}: {shortened(name)!r} and {shortened(first_name)!r} have different {what} ({_size(mine)} and "
                f"{_size(theirs)}); a run is one model, so save them as files of their own",
                field="file",
            )


def _size(value: Any) -> str:
    return str(len(value)) if isinstance(value, tuple) else shortened(value)


def _open_one(file: Path, found: InnerIds, announced: Announced) -> Log:
    ids, beside = found.ids, found.beside
    named = [name for name in IDS if isinstance(beside.get(name), np.ndarray)]
    check_one(file, named)
    if ids.ndim > 2:
        axes = "(sequences, tokens, layers, top-k)" if ids.ndim == 4 else "(tokens, layers, top-k)"
        what = f"{file}: {named[0] if named else 'the array of ids'} of shape {ids.shape}"
        check_axes(input_sizes(beside), what, axes, math.prod(ids.shape[:-2]), math.prod(ids.shape[1:-1]))
    sample = beside.get("sample")
    if ids.ndim < 4 and sample is not None and np.size(sample) == len(ids):  # else it names the whole, perhaps
        return open_named(file, {name: held for name, held in beside.items() if held is not None}, announced)
    padded = ids.ndim == 4
    batch = ids if padded else ids[None]
    steps, top_k = announced.ids_shape(batch.shape[1:], batch.dtype, ", ".join([str(file), *named]))
    values = _sizes_beside(file, beside, steps, announced)
    weights = _weights(file, ids, beside, (*batch.shape[:2], steps, top_k))
    text = {name: beside[name] for name in ("label", "text") if isinstance(beside.get(name), str)} if not padded else {}
    words_T = _token_ids(file, beside, math.prod(batch.shape[:2]))
    known = {*named, *values, *text, *(() if weights is None else ("weights",))}
    known |= set() if words_T is None else {"token_id"}
    inputs = inputs_beside(beside, batch.shape[0], batch.shape[1], known)
    if words_T is not None:
        inputs = replace(inputs, words=words_T.reshape(inputs.shape))
    weights = None if weights is None else weights.reshape(*inputs.shape, steps, top_k)

    def read() -> Iterator[Piece | tuple[str, int]]:
        for number, rows in enumerate(batch.reshape(*inputs.shape, steps, top_k)):
            tokens = inputs.tokens(number)
            rows, words = rows[tokens], None if inputs.words is None else inputs.words[number][tokens]
            if padding := inputs.padding(number):
                yield PADDING, padding
            used = np.flatnonzero(rows.any(axis=(1, 2))) if padded else np.arange(len(rows))
            if not len(used):
                yield NO_ROWS, 1
                continue
            whole = slice(int(used[0]), int(used[-1]) + 1)
            source = f"sequence {number}" if len(inputs.mask) > 1 or padded else file.name
            words = None if words is None else words[whole]
            weighed = None if weights is None else weights[number][tokens][whole]
            about = text if len(inputs.mask) == 1 else {}
            yield Piece(rows[whole], f"{file}, {source}", weighed, token_id=words, source=source, **about)

    zeros = SEVERAL_PADDED + (ALIKE if top_k == 1 else "") if padded else ""
    kind, note = "verl" if padded else "tensors", "; ".join(filter(None, [zeros, inputs.note]))
    if len(inputs.mask) > 1 and text:  # which of them has it, nothing says
        note = _notes([note, unread_note("texts and labels", list(text))])
    by_axes, names = "layers" not in values, values.get("layers", layer_names(steps))
    shape = LogShape(names, top_k, weights is not None, by_axes=by_axes)
    experts = values.get("num_experts", announced.experts)
    return Log(file, kind, shape, experts, read, values.get("model"), note, shares_prefixes=True)


def _sizes_beside(file: Path, beside: dict[str, Any], steps: int, announced: Announced) -> dict[str, Any]:
    """What the neutral format says of the whole log, by name: number of experts, model, names of the layers."""
    found: dict[str, Any] = {}
    for name, kinds in (("num_experts", "iu"), ("model", "U"), ("layers", "Uiu")):
        if beside.get(name) is None:
            continue
        where = f"{file}, array {name!r}"
        try:
            values = as_array(beside[name], where)
        except UserError:
            continue  # what has this name by chance: it is said that it is not read
        if values.dtype.kind not in kinds or name != "layers" and values.size != 1:
            continue
        if name == "num_experts" and values.reshape(-1)[0] < 1:
            continue
        if name == "layers":
            if values.shape == (steps,):
                found[name] = tuple(map(str, values.tolist()))
        else:
            found[name] = values.reshape(-1)[0].item()
    if "num_experts" in found:
        found["num_experts"] = announced.num_experts(found["num_experts"], str(file))
    return found


def _token_ids(file: Path, beside: dict[str, Any], tokens: int) -> np.ndarray | None:
    """Vocabulary ids (tokens) under the name of the neutral format; None where there are none."""
    if beside.get("token_id") is None:
        return None
    where = f"{file}, array 'token_id'"
    words = as_array(beside["token_id"], where)
    if words.size != tokens:
        return None  # those of the prompt alone, perhaps: it is said that they are not read
    if words.dtype.kind not in "iu":
        raise UserError(
            f"{where}: is {words.dtype}, it should be whole numbers, one for each of the {number_of(tokens, 'token')}",
            field="file",
        )
    return words.astype(np.int64)


def _weights(file: Path, ids: np.ndarray, beside: dict[str, Any], size: tuple[int, ...]) -> np.ndarray | None:
    """Weights (B, t, S, K) beside the ids; None where there are none."""
    weights = beside.get("weights")
    if not isinstance(weights, np.ndarray) or weights.ndim != ids.ndim:
        return None  # weights of samples or losses, perhaps: it is said that they are not read
    if weights.shape not in (ids.shape, size[1:]):
        raise UserError(
            f"{file}, array 'weights': has shape {weights.shape}, it should be {ids.shape}, as the ids", field="file"
        )
    if weights.dtype.kind not in "fiub":
        raise UserError(f"{file}, array 'weights': is {weights.dtype}, it should be numbers from 0 to 1", field="file")
    return (weights if weights.dtype.kind == "f" else weights.astype(np.float32)).reshape(size)
