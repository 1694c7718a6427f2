"""Scores of routers: the order of their layers, whatever these are called, and layers that have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs.engine_logs import ROWS, SCORES, TOP_K
from tests.engine.adapters.logs.test_engine_logs import pieces
from tokenpaths.engine.adapters.logs.tensors.router_logits import find_scores

NAMES = {
    "switch transformers": [f"encoder.block.{2 * layer + 1}.layer.1.mlp.router" for layer in range(12)],
    "a number behind": [f"model.layers.{layer}.mlp.gate_fp32" for layer in range(12)],
    "the last number": [f"layer_{layer}" for layer in range(12)],
    "routers of one layer": [f"layers.{layer}.{part}.gate" for layer in range(11) for part in ("mlp", "attention")],
    "two stacks": [f"{stack}.block.{layer}.router" for stack in ("encoder", "decoder") for layer in range(11)],
    "no numbers": ["router", "gate", "first"],
}


@pytest.mark.parametrize("kind", NAMES)
def test_layers_come_in_the_order_of_the_model(kind: str) -> None:
    names = NAMES[kind]
    found = find_scores({name: np.full((ROWS, 4), place, np.float32) for place, name in enumerate(names)})
    assert found is not None
    assert [int(scores[0, 0]) for scores in found.values()] == list(range(len(names)))


def test_layers_of_an_archive_whose_names_are_sorted_as_text(tmp_path: Path) -> None:
    names = sorted(NAMES["switch transformers"])
    np.savez(tmp_path / "log.npz", **{name: SCORES[0] + place for place, name in enumerate(names)})
    log, _ = pieces(tmp_path / "log.npz", top_k=TOP_K)
    assert list(log.shape.layers) == NAMES["switch transformers"]


def test_a_dense_layer_without_scores_is_left_out(tmp_path: Path) -> None:
    given = (None, torch.from_numpy(SCORES[0]), None, torch.from_numpy(SCORES[1]))
    torch.save({"router_logits": given}, tmp_path / "log")
    log, (piece,) = pieces(tmp_path / "log", top_k=TOP_K)
    assert log.shape.layers == ("layer 1", "layer 3")
    assert np.array_equal(piece.ids, np.argsort(-SCORES[:2].transpose(1, 0, 2), axis=2)[:, :, :TOP_K])
    assert "layers without scores, dense ones perhaps: layer 0, layer 2" in log.note
