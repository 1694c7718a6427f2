"""What a file of tensors may be: rollouts of slime and verl, SGLang's recorder, scores of routers, or plain ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.counts.count_tables import NAME as STATISTICS
from tokenpaths.engine.adapters.logs.counts.expert_counts import (
    ExpertCounts,
    OnlyCounts,
    by_domain,
    counts_of,
    table_of_rows,
)
from tokenpaths.engine.adapters.logs.pieces.announced import Announced, LogShape, layer_names
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.responses.answer_fields import token_ids, vocabulary_ids
from tokenpaths.engine.adapters.logs.responses.answers import open_responses
from tokenpaths.engine.adapters.logs.routing_log import Log, skipped, without_dense_layers
from tokenpaths.engine.adapters.logs.tensors.id_batches import NO_ROWS, open_inner
from tokenpaths.engine.adapters.logs.tensors.inner_ids import as_responses, inner_ids, layers_apart
from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import IDS, ROLLOUT_IDS
from tokenpaths.engine.adapters.logs.tensors.router_logits import find_scores, open_scores
from tokenpaths.engine.adapters.logs.tensors.sglang_recorder import open_recorder
from tokenpaths.engine.adapters.logs.tensors.tensor_files import load_tensors
from tokenpaths.engine.base.errors import UserError

NO_PAIRS = "counts of pairs of experts of two layers, which stand beside those of single layers, are not read"


def open_tensors(file: Path, announced: Announced) -> Log:
    """Open a ``.pt``, ``.pkl`` or ``.safetensors`` file; what it is follows from what it holds."""
    return open_value(file, load_tensors(file), announced)


def open_value(file: Path, value: Any, announced: Announced) -> Log:
    """The log in a loaded value.

    Raises:
        OnlyCounts: it holds sums over tokens.
        UserError: it is none of the known.
    """
    if isinstance(value, dict):
        if isinstance(value.get("records"), list):
            return open_recorder(file, value, announced)
        if "logical_count" in value:
            counts = _logical(file, value["logical_count"])
            about: dict[str, Any] = {"times": tuple(range(len(counts))), "axis": "step"} if counts.ndim == 3 else {}
            raise OnlyCounts(file, counts_of(counts, announced, str(file), format="sglang-recorder", **about))
        if isinstance(value.get("samples"), list) and value["samples"]:
            return _open_rollouts(file, value["samples"], announced)
    if _counts_pairs(value):
        raise UserError(
            f"{file}: counts pairs of experts of two layers, in which each choice stands several times; give the "
            "counters of single layers",
            field="file",
        )
    if isinstance(value, dict) and value and all(isinstance(key, tuple) for key in value):
        raise UserError(
            f"{file}: is the state of Megatron's routers, which belongs to a router_trace; import their folder",
            field="file",
        )
    if (counters := _counters(value)) is not None:
        raise OnlyCounts(file, _counted(file, counters, announced))
    if (counters := _beside_pairs(value)) is not None:
        raise OnlyCounts(file, replace(_counted(file, counters, announced), notes=(NO_PAIRS,)))
    if isinstance(value, dict) and value and all(isinstance(name, str) and _counters(of) for name, of in value.items()):
        parts = {name: _counted(file, _counters(of) or {}, announced) for name, of in value.items()}
        raise OnlyCounts(file, by_domain(parts, str(file)))
    if isinstance(value, dict) and value and all(isinstance(name, str) and STATISTICS.match(name) for name in value):
        raise UserError(
            f"{file}: is one rank of TensorRT-LLM's statistics (counts named iteration_layer); import the folder that "
            "holds it beside its meta_info.json",
            field="file",
        )
    if (records := as_responses(value)) is not None:
        return _open_records(file, records, announced)
    found, unread = inner_ids(value)
    if found:
        return open_inner(file, found, unread, announced)
    if (scores := find_scores(value)) is not None:
        return open_scores(file, scores, value if isinstance(value, dict) else {}, announced)
    if (problem := layers_apart(file, value)) is not None:
        raise problem
    raise UserError(f"{file}: {_unusable(value)}", field="file")


def _logical(file: Path, counts: Any) -> np.ndarray:
    if not isinstance(counts, np.ndarray) or counts.ndim not in (2, 3) or counts.dtype.kind not in "iu":
        raise UserError(f"{file}: logical_count should be whole numbers (steps, layers, experts)", field="file")
    return counts


def _counted(file: Path, counters: dict[Any, Counter[Any]], announced: Announced) -> ExpertCounts:
    return table_of_rows(file, {str(layer): dict(row) for layer, row in counters.items()}, announced)


def _counters(value: Any) -> dict[Any, Counter[Any]] | None:
    """OLMoE's counters by layer: one a layer, layer → one, or pairs of a layer and one."""
    rows = _by_layer(value)
    fits = all(isinstance(row, dict) and all(map(_is_count, row.items())) for row in rows.values())
    if not fits or not any(rows.values()):
        return None
    numbered = all(type(layer) is int for layer in rows)
    return {layer: Counter(rows[layer]) for layer in (sorted(rows) if numbered else rows)}


def _is_count(item: tuple[Any, Any]) -> bool:
    """Whether an entry of a counter may be an expert and its tokens."""
    return type(item[0]) is int and not isinstance(item[1], dict)


def _by_layer(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    rows = list(value) if isinstance(value, list | tuple) else []
    if not all(isinstance(row, list | tuple) and len(row) == 2 for row in rows):
        return dict(enumerate(rows))
    numbers = [row[0] for row in rows if type(row[0]) is int and row[0] >= 0]
    named = len(set(numbers)) == len(rows)
    return {row[0] if named else place: row[1] for place, row in enumerate(rows)}


def _beside_pairs(value: Any) -> dict[Any, Counter[Any]] | None:
    """The counters of single layers before those of pairs of layers, as OLMoE's analysis saves both."""
    if not (isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(part, dict) for part in value)):
        return None
    return _counters(value[0]) if not value[1] or _counts_pairs(value[1]) else None


def _counts_pairs(value: Any) -> bool:
    """Whether counters of OLMoE count what two layers chose together."""
    rows = list(_by_layer(value).values())
    of_two = isinstance(value, dict) and all(map(_is_pair, value)) and _counters(rows) is not None
    counted = all(isinstance(row, dict) and row and all(map(_is_pair, row)) for row in rows)
    by_domain = isinstance(value, dict) and all(isinstance(k, str) and _counts_pairs(v) for k, v in value.items())
    return bool(rows) and (of_two or counted or by_domain)


def _is_pair(key: Any) -> bool:
    return isinstance(key, tuple) and len(key) == 2 and all(type(number) is int for number in key)


def _open_records(file: Path, records: list[dict[str, Any]], announced: Announced) -> Log:
    """Responses as a script of one's own has kept them, in Python's containers."""

    def stream() -> Iterator[tuple[str, dict[str, Any]] | tuple[str, int]]:
        for place, record in enumerate(records):
            yield f"{file}, response {place}", record

    return replace(open_responses(file, stream, announced), format="tensors")


def _open_rollouts(file: Path, samples: list[Any], announced: Announced) -> Log:
    """slime's debug rollouts: one row less than tokens."""
    first = next((ids for ids in map(_rows_of, samples) if ids is not None), None)
    if first is None:
        raise UserError(f"{file}: no sample has rollout_routed_experts; let slime keep them", field="file")
    sizes = announced.ids_shape(first.shape, first.dtype, str(file))

    def read() -> Iterator[Piece | tuple[str, int]]:
        for place, sample in enumerate(samples):
            ids, where = _rows_of(sample), f"{file}, sample {place}"
            if ids is None:
                yield NO_ROWS, 1
                continue
            try:
                if announced.ids_shape(ids.shape, ids.dtype, where) != sizes:
                    raise UserError(f"{where}: has ids of shape {ids.shape}, the first had {first.shape}", field="file")
                yield _rollout(sample, place, ids.reshape(len(ids), *sizes), where)
            except UserError as error:
                if not announced.skip_bad:
                    raise
                yield skipped(str(error)), 1

    shape = LogShape(layer_names(sizes[0]), sizes[1], False)
    log = Log(file, "slime", shape, announced.experts, read, shares_prefixes=True)
    return without_dense_layers(log, announced.skip_bad)


def _rows_of(sample: Any) -> np.ndarray | None:
    """The decisions of a rollout, if it has any."""
    ids = sample.get(ROLLOUT_IDS) if isinstance(sample, dict) else None
    return ids if isinstance(ids, np.ndarray) and ids.size else None


def _rollout(sample: dict[str, Any], place: int, ids: np.ndarray, where: str) -> Piece:
    remarks: list[str] = []
    tokens, answer = sample.get("tokens"), sample.get("response_length")
    tokens = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
    words = vocabulary_ids([{"tokens": tokens}], ("tokens",), where, remarks)
    known = None if words is None else token_ids([], words, len(ids), 0, remarks)
    text: list[Any] = [sample.get(name) for name in ("prompt", "response")]
    return Piece(
        ids,
        where,
        token_id=known,
        label=sample.get("label"),
        text="".join(text) if all(isinstance(part, str) for part in text) else None,
        source=f"rollout sample {sample.get('index', place)}",
        remarks=tuple(remarks),
        prompt=len(words) - answer if words is not None and known is not None and type(answer) is int else None,
    )


def _unusable(value: Any) -> str:
    """What is wrong with a value that is none of the known."""
    held = value if isinstance(value, dict) else {}
    if (name := next((name for name in IDS if name in held), None)) is not None:
        return f"{name} is {_described(held[name])}, it should be one array of whole numbers (tokens, layers, top-k)"
    if "router_logits" in held:
        return (
            f"router_logits is {_described(held['router_logits'])}, it should be an array (tokens, experts) of numbers "
            "with a fraction for each layer"
        )
    return (
        f"holds {_described(value)}, and neither routed_experts nor router_logits: ids are whole numbers (tokens, "
        "layers, top-k), in one array under the name 'ids', or in a list or dict with an array for each request"
    )


def _described(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {', '.join(map(str, list(value)[:6])) or 'nothing'}"[:200]
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    return f"a {type(value).__name__}"
