"""Positions and rows that a log lacks are said; flat ids are asked for with the sizes that would fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import ANSWER, IDS, LAYERS, PROMPT, ROWS, TOP_K
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.passes.layer_passes import BEGUN_LATE
from tokenpaths.engine.adapters.logs.responses.answer_fields import CUT_PREFIX
from tokenpaths.engine.adapters.logs.sequences import GAPS


def told(file: Path, kind: str) -> tuple[int, int]:
    """(samples, how often this was said)."""
    found = pieces(file)[1]
    return len(found), sum(n for piece in found for said, n in piece.counted if said == kind)


def layer_lines(file: Path, *passes: list[int]) -> Path:
    """Two layers of tokens at these positions, in passes."""
    return make.lines(
        file,
        [
            {"layer_idx": layer, "token_idx": at, "selected_ids": [at % 7, 7]}
            for positions in passes
            for layer in range(2)
            for at in positions
        ],
    )


@pytest.mark.parametrize(
    ("passes", "samples", "late"),
    [
        ([[0, 1, 2, 5, 6, 9]], 3, 2),
        ([[0, 1, 2], [3], [5], [6]], 2, 1),
        ([[1, 2, 3, 6, 7]], 2, 1),
        ([[1, 2, 3], [1, 2]], 2, 0),
        ([[0, 1, 2], [3], [4]], 1, 0),
        ([[0, 1, 2], [0, 1], [2], [3]], 2, 0),
        ([[0, 1, 2], [3, 4, 5]], 1, 0),
        ([[4, 5, 6]], 1, 1),
    ],
)
def test_a_sample_that_begins_behind_others(tmp_path: Path, passes: list[list[int]], samples: int, late: int) -> None:
    assert told(layer_lines(tmp_path / "log", *passes), BEGUN_LATE) == (samples, late)


def test_positions_that_a_named_sequence_lacks(tmp_path: Path) -> None:
    rows = [
        f"{seq},{pos},{layer},{e}" for layer in (0, 1) for seq, pos in ((0, 0), (0, 1), (0, 4), (1, 0)) for e in (1, 2)
    ]
    file = tmp_path / "log"
    file.write_text("\n".join(["seq,pos,layer,expert", *rows]) + "\n")
    assert told(file, GAPS) == (2, 2)
    assert told(file, BEGUN_LATE) == (2, 0)


def cut(number: int, start: int) -> dict[str, Any]:
    """A response of SGLang that lacks the rows of tokens in the cache, and has the ids of the answer alone."""
    record = make.sglang(number)
    about = record["meta_info"] | {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "cached_tokens": start}
    about["routed_experts"] = make.raw64(make.with_dense(IDS[number])[start:])
    return record | {"meta_info": about}


@pytest.mark.parametrize("sizes", [{"layers": LAYERS + 1}, {"top_k": TOP_K}, {"layers": LAYERS + 1, "top_k": TOP_K}])
def test_rows_of_cached_tokens_are_missing(tmp_path: Path, sizes: dict[str, int]) -> None:
    log, found = pieces(make.lines(tmp_path / "log", [cut(0, 0), cut(1, PROMPT - 2)]), **sizes)
    assert [CUT_PREFIX in piece.remarks for piece in found] == [False, True]
    assert found[1].ids.tolist() == IDS[1][PROMPT - 2 :].tolist()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            {"top_k": 3},
            rf"of {ROWS} tokens, which are not layers × 3 experts: 10 ids a token, so 5 × 2 or 10 × 1 would",
        ),
        ({"layers": 4}, r"which are not 4 layers × top-k: 10 ids a token, so 5 × 2 or 10 × 1 would fit"),
        ({}, r"say --layers \(all layers, dense ones included\) and --top-k of the model: 10 ids a token, so 5 × 2"),
    ],
)
def test_one_size_that_does_not_fit_flat_ids(tmp_path: Path, sizes: dict[str, int], said: str) -> None:
    refused(tmp_path, make.lines(tmp_path / "log", [cut(0, 0)]), said, **sizes)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"layers": LAYERS + 1}, "beside --layers 5 say --top-k: 1, 2 would fit"),
        ({"top_k": TOP_K}, r"beside --top-k 2 say --layers \(dense ones included\): 1, 2, 4, 5"),
        ({"layers": 7}, "--layers 7 does not fit them"),
        ({"top_k": 5}, "--top-k 5 does not fit them"),
    ],
)
def test_one_size_of_flat_ids_that_nobody_counts(tmp_path: Path, sizes: dict[str, int], said: str) -> None:
    record = cut(0, 0)
    record["meta_info"] = {"routed_experts": record["meta_info"]["routed_experts"]}
    record.pop("output_ids", None)
    refused(tmp_path, make.lines(tmp_path / "log", [record]), said, **sizes)
