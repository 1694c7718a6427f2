"""Ids that are stored as numbers with a point are refused under every name, and never taken for scores of routers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.engine.adapters.logs.engine_logs import SCORES, TOP_K, choices
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import IDS as NAMES
from tokenpaths.engine.adapters.logs.tensors.numpy_arrays import PROMPT_IDS

FLOATS = choices(30, layers=3).astype(np.float32)


def npz(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(file.with_suffix(".npz"), **arrays)
    return file.with_suffix(".npz")


def pt(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, file)
    return file


def inner(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    torch.save({"batch": {name: torch.from_numpy(array) for name, array in arrays.items()}}, file)
    return file


def safetensors(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    save_file(arrays, file)
    return file


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", [npz, pt, inner, safetensors])
@pytest.mark.parametrize("axes", [3, 4])
@pytest.mark.parametrize("top_k", [None, TOP_K])
def test_no_name_of_ids_makes_scores_of_them(
    tmp_path: Path, name: str, write: Callable[..., Path], axes: int, top_k: int | None
) -> None:
    file = write(tmp_path / "log", {name: FLOATS if axes == 3 else FLOATS[None]})
    refused(tmp_path, file, f"log.*{name}.*: the ids are float32, they should be whole numbers", top_k=top_k)
    beside = write(tmp_path / "log", {name: FLOATS + 0.5, "router_logits": SCORES})
    refused(tmp_path, beside, f"log.*{name}.*: the ids are float32, they should be whole numbers", top_k=top_k)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("write", [npz, pt])
def test_whole_numbers_are_ids_under_each_name(tmp_path: Path, name: str, write: Callable[..., Path]) -> None:
    _, (piece,) = pieces(write(tmp_path / "log", {name: FLOATS.astype(np.int64)}))
    assert np.array_equal(piece.ids, FLOATS)


@pytest.mark.parametrize("write", [npz, pt, inner, safetensors])
def test_two_arrays_of_ids_are_refused(tmp_path: Path, write: Callable[..., Path]) -> None:
    ids = FLOATS.astype(np.int64)
    file = write(tmp_path / "log", {"topk_ids": ids[::-1].copy(), "routed_experts": ids})
    refused(tmp_path, file, "log.*: has 'routed_experts' and 'topk_ids'; ids are one array, remove the other")


def test_ids_of_a_prompt_alone_are_no_scores(tmp_path: Path) -> None:
    file = npz(tmp_path / "log", {PROMPT_IDS: FLOATS})
    refused(tmp_path, file, f"array '{PROMPT_IDS}': the ids are float32, they should be whole", top_k=TOP_K)


@pytest.mark.parametrize("value", [FLOATS, {"chosen": FLOATS}, {f"layer {n}": FLOATS[:, n] for n in range(3)}])
def test_whole_numbers_are_no_scores_whatever_their_name(tmp_path: Path, value: Any) -> None:
    held = {k: torch.from_numpy(v) for k, v in value.items()} if isinstance(value, dict) else torch.from_numpy(value)
    torch.save(held, tmp_path / "log")
    said = "holds whole numbers only, stored as float32: ids do, scores of routers do not; save ids as whole numbers"
    refused(tmp_path, tmp_path / "log", said, top_k=TOP_K)
    whole = np.rint(SCORES)
    whole[-1, -1, -1] += 0.5
    assert len(pieces(npz(tmp_path / "scores", {"router_logits": whole}), top_k=TOP_K)[1]) == 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"routed_experts": "x"}, r"log: routed_experts is a str, it should be one array of whole numbers \(tokens, "),
        ({"router_logits": [1, 2]}, "log: router_logits is a list, it should be an array"),
        ({"other": "x"}, "log: holds an object with other, and neither routed_experts nor router_logits"),
    ],
)
def test_what_cannot_be_used_is_not_said_to_be_missing(tmp_path: Path, value: Any, said: str) -> None:
    torch.save(value, tmp_path / "log")
    refused(tmp_path, tmp_path / "log", said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"top_k": 4}, "6 ids a token are not whole layers of 4 experts; .* could be 6 × 1, 3 × 2, 2 × 3, 1 × 6"),
        ({"top_k": 7}, "6 ids a token are not whole layers of 7 experts"),
        ({"layers": 4}, "6 ids a token are not 4 layers of as many experts; layers × top-k could be 6 × 1"),
        ({"layers": 3, "top_k": 3}, "6 ids a token are not 3 layers of 3 experts"),
    ],
)
def test_sizes_that_do_not_fit_flat_ids(tmp_path: Path, options: dict[str, int], said: str) -> None:
    file = npz(tmp_path / "log", {"ids": choices(30, layers=3).reshape(30, -1)})
    refused(tmp_path, file, f"array 'ids': {said}", **options)
    assert pieces(file, layers=3, top_k=TOP_K)[0].shape.top_k == TOP_K


def test_a_tensor_file_that_is_cut_off_is_no_npz(tmp_path: Path) -> None:
    file = pt(tmp_path / "log", {"ids": choices(30)})
    file.write_bytes(file.read_bytes()[:-200])
    refused(tmp_path, file, "log: is cut off or damaged, no whole archive of torch.save")


def test_a_point_in_lines_of_layers_and_in_a_routing_csv(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"layer_idx": 0, "token_idx": 0, "selected_ids": [3.0, 1]}\n')
    refused(
        tmp_path, tmp_path / "log", r"line 1: selected_ids holds 3.0, it should be a list of experts .* without a poi"
    )
    (tmp_path / "log").write_text('{"layer_idx": 0, "token_idx": 0, "selected_ids": 3}\n')
    refused(tmp_path, tmp_path / "log", "line 1: selected_ids is 3, it should be a list of experts")
    (tmp_path / "log").write_text("token,layer,expert\n0,0,3.0\n")
    refused(tmp_path, tmp_path / "log", "invalid value '3.0'.*; write whole numbers without a point: 3, not 3.0")
    (tmp_path / "log").write_text("token,layer,expert\n0,0,x\n")
    refused(tmp_path, tmp_path / "log", "invalid value 'x'.*counted from line 2$")


def test_a_column_of_a_routing_csv_that_stands_twice(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("token,layer,expert,note,note,Expert\n0,0,3,a,b,4\n")
    refused(tmp_path, tmp_path / "log", "log: has 2 columns 'expert'; rename all but one")
    (tmp_path / "log").write_text("token,layer,expert,note,note\n0,0,3,a,b\n")
    assert pieces(tmp_path / "log")[1][0].ids.tolist() == [[[3]]]
