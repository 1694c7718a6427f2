"""Answers of vLLM, SGLang and Dynamo: the rows of prompt and answer, wherever the engine puts them.

vLLM returns ``choices[i].routed_experts`` (a base64 ``.npy`` of (tokens, layers, top-k); older versions an object with
``data``, ``dtype`` and ``shape``, or lists, with ``prompt_routed_experts`` beside it). SGLang returns flat base64 int32
in ``meta_info.routed_experts`` or, for its OpenAI routes, in ``sglext`` of the first choice; Dynamo an object in
``nvext.engine_data``. The last token has no decision: it was never fed back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape, layer_names
from tokenpaths.engine.adapters.logs.pieces.piece import Piece, widened
from tokenpaths.engine.adapters.logs.pieces.wording import number_of, shortened
from tokenpaths.engine.adapters.logs.responses.answer_fields import (
    CUT_PREFIX,
    answer_text,
    answer_tokens,
    prompt_tokens,
    read_label_field,
    start_of,
    token_ids,
    vocabulary_ids,
)
from tokenpaths.engine.adapters.logs.responses.encoded_ids import ids_of, rows_told
from tokenpaths.engine.adapters.logs.responses.envelopes import NO_ROWS, OF_A_LIST, responses
from tokenpaths.engine.adapters.logs.routing_log import Log, NoDecisions, skipped, without_dense_layers
from tokenpaths.engine.base.errors import UserError

NOT_THERE = "start the engine with --enable-return-routed-experts, and for SGLang ask with return_routed_experts"
OTHER_MODEL = "{n} response{s} {are} of a model of another name than the first, and read as of one, as --model says"
ROWS = ("routed_experts", "prompt_routed_experts")
ANSWER_IDS = ("token_ids", "output_token_ids", "output_ids", "completion_token_ids")
Holder = dict[str, Any]


def is_vllm_line(record: Holder) -> bool:
    """Whether an object looks like a response of vLLM or Dynamo, with or without decisions."""
    return any(key in record for key in (*ROWS, "choices", "outputs", "custom_id")) and not is_sglang_line(record)


def is_sglang_line(record: Holder) -> bool:
    """Whether an object looks like a response of SGLang, with or without decisions."""
    return "meta_info" in record or isinstance(record.get("sglext"), dict)


def open_engine(file: Path, announced: Announced) -> Log:
    """``open_responses`` of a file of JSON."""
    return open_responses(file, lambda: responses(file, announced.skip_bad), announced)


def open_responses(
    file: Path, stream: Callable[[], Iterator[tuple[str, Holder] | tuple[str, int]]], announced: Announced
) -> Log:
    """Open responses. Layers with only zeros in the first response with decisions are dense and omitted (K > 1).

    Args:
        stream: as ``responses``, from the beginning each time.

    Raises:
        NoDecisions: no response has any.
        UserError: the first one that has some cannot be read; with ``skip_bad``: none can be read.
    """
    kind, model, whole, empty, problem = "vllm", None, None, "", None
    left = Counter[str]()
    for where, record in stream():
        if not isinstance(record, dict):
            left[where] += record
            continue
        kind = "sglang" if is_sglang_line(record) else kind
        model = record["model"] if isinstance(record.get("model"), str) else None
        try:
            found = list(pieces_of(where, record, announced))
        except UserError as error:
            if not announced.skip_bad:
                raise
            problem = problem or error
            continue
        whole = next((piece.ids for piece in found if isinstance(piece, Piece)), None)
        if whole is not None:
            break
        for remark, count in (item for item in found if not isinstance(item, Piece)):
            left[remark] += count
        empty = empty or where
    if whole is None and problem is not None:
        raise problem
    if whole is None:
        raise NoDecisions(f"{empty or file}: has no routed_experts; {NOT_THERE}", left)

    began_with = model

    def read() -> Iterator[Piece | tuple[str, int]]:
        known, sizes = began_with, announced
        for where, record in stream():
            if not isinstance(record, dict):
                yield where, record
                continue
            named = record.get("model")
            known = known or (named if isinstance(named, str) else None)
            try:
                if isinstance(named, str) and named != known:
                    if announced.model is None:
                        raise UserError(
                            f"{where}: is of the model {named!r}, the log began with {known!r}; a run is one model, "
                            "so split the log by model, or say --model where these are adapters of one",
                            field="file",
                        )
                    yield OTHER_MODEL, 1
                for piece in list(pieces_of(where, record, sizes)):
                    if isinstance(piece, Piece) and piece.ids.shape[1:] != whole.shape[1:]:
                        fewer = piece.ids.shape[2] < whole.shape[2]
                        if piece.ids.shape[1] != whole.shape[1] or not fewer:
                            raise UserError(
                                f"{piece.where}: has {number_of(piece.ids.shape[1], 'layer')} of "
                                f"{number_of(piece.ids.shape[2], 'expert')}, the first response had {whole.shape[1]} "
                                f"of {whole.shape[2]}"
                                + ("" if piece.ids.shape[1] != whole.shape[1] else "; if k varies, say --top-k"),
                                field="file",
                            )
                        piece = replace(piece, ids=widened(piece.ids, whole.shape[2]))
                    if isinstance(piece, Piece) and not sizes.may_be_cut and _has_all_rows(record, piece):
                        sizes = replace(announced, may_be_cut=True)
                        if bool(announced.layers) != bool(announced.top_k):  # of flat ids: the other follows
                            sizes = replace(sizes, layers=whole.shape[1], top_k=whole.shape[2])
                    yield piece
            except UserError as error:
                if not announced.skip_bad:
                    raise
                yield skipped(str(error)), 1

    shape = LogShape(layer_names(whole.shape[1]), whole.shape[2], False)
    note = ""
    if announced.model is not None and model not in (None, announced.model):
        note = f"the responses name the model {shortened(model).replace(';', ',')}, not {announced.model} as announced"
    model = announced.model or model
    log = Log(file, kind, shape, announced.experts, read, model, note, shares_prefixes=True)
    return without_dense_layers(log, announced.skip_bad)


def pieces_of(where: str, record: Holder, announced: Announced) -> Iterator[Piece | tuple[str, int]]:
    """One piece a choice; decisions of the prompt that stand apart precede the first."""
    choices = next((record[key] for key in ("choices", "outputs") if isinstance(record.get(key), list)), None)
    several = choices is not None and len(choices) > 1
    prompt_rows = record.get("prompt_routed_experts")
    prompt = None if prompt_rows is None else ids_of(prompt_rows, where, "prompt_routed_experts", record, announced)
    identity = identity_of(record)
    for number, choice in enumerate(choices or [record]):
        at = f"{where}, choice {number}" if several else where
        if not isinstance(choice, dict):
            raise UserError(f"{at}: is no object", field="file")
        beside, rows = _rows(choice, record if number == 0 else {})
        parts = [prompt] if prompt is not None and number == 0 else []
        remarks: list[str] = []
        if rows is not None:
            own = ids_of(rows, at, "routed_experts", {**record, **choice, **beside}, announced)
            parts += [] if own is None else [own]
        if not parts:
            yield NO_ROWS, 1
            continue
        if len(parts) == 2 and parts[0].shape[1:] != parts[1].shape[1:]:
            raise UserError(f"{at}: prompt and answer have different layers or experts", field="file")
        ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
        engine = beside if beside is not choice else {}
        holders = (choice, engine, record)
        before = vocabulary_ids(holders, ("prompt_token_ids", "input_ids"), at, remarks)
        after = vocabulary_ids((choice, engine, record if not several else {}), ANSWER_IDS, at, remarks)
        alone = prompt is not None and number > 0
        start = start_of(holders, engine.get("start"))
        answered = answer_tokens(record) if not several else None
        token_id = token_ids([] if alone else before, after, len(ids), start, remarks, answered)
        told = rows_told({**record, **choice, **beside}) if not (several or start or CUT_PREFIX in remarks) else None
        if told is not None and 0 < told - len(ids) <= (prompt_tokens(record) or 0):
            remarks.append(CUT_PREFIX)
        yield Piece(
            ids,
            at,
            None,
            token_id,
            read_label_field(record, remarks),
            answer_text(choice, remarks),
            f"{identity}{f' choice {number}' if several else ''}" if identity is not None else None,
            tuple(remarks),
            some_token_ids=token_id is not None and bool((token_id < 0).any()),
            request=record.get(OF_A_LIST) or (where if several and not alone else None),
            prompt=None if start or CUT_PREFIX in remarks else len(before) if before else prompt_tokens(record),
        )


def _has_all_rows(record: Holder, piece: Piece) -> bool:
    """Whether a response of one choice says that it has as many tokens as there are rows."""
    choices = record.get("choices") or [{}]
    choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], dict) else {}
    return rows_told({**record, **choice, **_rows(choice, record)[0]}) == piece.num_tokens


def _rows(choice: Holder, record: Holder) -> tuple[Holder, Any]:
    """(enclosing object, decisions or None), at any of the engines' locations; ``record`` of the first choice."""
    for holder in (choice, record):
        dynamo = holder.get("nvext")
        inner = [holder, *(holder.get(key) for key in ("sglext", "sgl_ext", "meta_info"))]
        for place in (*inner, dynamo.get("engine_data") if isinstance(dynamo, dict) else None):
            if isinstance(place, dict) and place.get("routed_experts") is not None:
                value = place["routed_experts"]
                return (place | value if isinstance(value, dict) else place), value
    return {}, None


def identity_of(record: Holder) -> str | int | None:
    about = record.get("meta_info")
    named = record.get("id") or record.get("request_id") or (about.get("id") if isinstance(about, dict) else None)
    return named if isinstance(named, str | int) else None
