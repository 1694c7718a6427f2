"""Scores of routers: the order of their layers, whatever these are called, and layers that have none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs.engine_logs import ROWS, SCORES, TOP_K
from tests.engine.adapters.logs.test_engine_logs import pieces
from tokenpaths.engine.adapters.logs.tensors.router_logits import TURNED, find_scores
from tokenpaths.engine.base.errors import UserError

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


BY_LAYER = torch.from_numpy(np.stack(SCORES))
BY_TOKEN = BY_LAYER.transpose(0, 1)


def save(file: Path, value: object, kind: str = "pt") -> Path:
    if kind == "npz":
        assert isinstance(value, dict)
        np.savez(file, **{name: tensor.numpy() for name, tensor in value.items()})
        return file.with_suffix(".npz")
    torch.save(value, file)
    return file


@pytest.mark.parametrize("kind", ["pt", "npz"])
@pytest.mark.parametrize("name", ["router_logits", "logits", "router_scores"])
def test_an_array_of_all_layers_under_any_name(kind: str, name: str, tmp_path: Path) -> None:
    log, (piece,) = pieces(save(tmp_path / "log", {name: BY_LAYER}, kind), top_k=TOP_K)
    assert piece.ids.shape == (ROWS, len(SCORES), TOP_K)
    assert "not read" not in log.note


@pytest.mark.parametrize("beside", ["input_ids", "attention_mask"])
def test_tokens_along_the_axis_of_the_layers(beside: str, tmp_path: Path) -> None:
    inputs = {beside: torch.ones(1, ROWS, dtype=torch.int64)}
    file = save(tmp_path / "log", {"router_logits": BY_TOKEN, **inputs})
    with pytest.raises(UserError, match=rf"should be \(layers, tokens, experts\), .* {beside} has {ROWS} numbers"):
        pieces(file, top_k=TOP_K)
    for value in (BY_TOKEN, {"router_logits": BY_TOKEN, **inputs}):
        log, (piece,) = pieces(save(tmp_path / "log", value), top_k=TOP_K, layers=len(SCORES))
        _, (right,) = pieces(save(tmp_path / "right", BY_LAYER), top_k=TOP_K)
        assert np.array_equal(piece.ids, right.ids)
        assert TURNED in log.note


@pytest.mark.parametrize("ending", ["weight", "bias"])
def test_weights_of_a_model_are_no_scores(ending: str, tmp_path: Path) -> None:
    value = {f"model.layers.{layer}.mlp.gate.{ending}": torch.randn(16, 32) for layer in range(2)}
    with pytest.raises(UserError, match=f"model.layers.0.mlp.gate.{ending} is a weight of a model, .* checkpoint"):
        pieces(save(tmp_path / "log", value), top_k=TOP_K)


def test_hidden_states_are_no_scores(tmp_path: Path) -> None:
    states = {f"layer_{layer}": torch.randn(12, 2048) for layer in range(2)}
    with pytest.raises(UserError, match="layer_0 has 2,048 numbers a token, as hidden states have; .*'router_logits'"):
        pieces(save(tmp_path / "log", states), top_k=TOP_K)
    for value, experts in ((states, 2048), ({"router_logits": states}, None)):
        log, _ = pieces(save(tmp_path / "log", value), top_k=TOP_K, experts=experts)
        assert log.experts == 2048


def test_experts_of_a_masked_group_are_never_chosen(tmp_path: Path) -> None:
    scores = torch.randn(2, 50, 16)
    scores[:, :, 8:] = float("-inf")
    _, (piece,) = pieces(save(tmp_path / "log", {"router_logits": scores}), top_k=8)
    assert piece.ids.max() == 7
    assert np.allclose(piece.weights.sum(axis=2), 1)
    assert np.isfinite(piece.scored).all()
    with pytest.raises(UserError, match="token 0 has 8 scores above −∞ at layer 0, fewer than the 9 experts"):
        pieces(tmp_path / "log", top_k=9)
    scores[1, 3, 2] = float("inf")
    with pytest.raises(UserError, match="token 3 has a score at layer 1 that is no number"):
        pieces(save(tmp_path / "log", {"router_logits": scores}), top_k=2)
