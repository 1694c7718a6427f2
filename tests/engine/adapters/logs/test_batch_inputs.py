"""A batch with padding: the inputs that stand beside scores and ids say which tokens there are, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs.test_engine_logs import pieces
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.tensors.batch_inputs import PADDING
from tokenpaths.engine.adapters.logs.tensors.router_logits import PROBABILITIES, SIGMOIDS
from tokenpaths.engine.base.errors import UserError

B, T, LAYERS, EXPERTS, TOP_K = 3, 11, 4, 8, 2
RNG = np.random.default_rng(5)
LOGITS = RNG.normal(size=(LAYERS, B, T, EXPERTS)).astype(np.float32)
IDS = np.argsort(-LOGITS, axis=3)[..., :TOP_K].transpose(1, 2, 0, 3).copy()
WORDS = RNG.integers(5, 900, (B, T))
LENGTHS = (11, 4, 7)
RIGHT = np.arange(T) < np.array(LENGTHS)[:, None]
LEFT = RIGHT[:, ::-1].copy()
FLAT = LOGITS.reshape(LAYERS, B * T, EXPERTS)


def saved(file: Path, arrays: dict[str, Any], kind: str) -> Path:
    if kind == "npz":
        np.savez(file.with_suffix(".npz"), **arrays)
        return file.with_suffix(".npz")

    def tensor(value: Any) -> Any:
        return tuple(map(tensor, value)) if isinstance(value, tuple) else torch.from_numpy(value)

    torch.save({name: tensor(value) for name, value in arrays.items()}, file)
    return file


def right(found: list[Piece], mask: np.ndarray, words: bool = True) -> None:
    assert [piece.num_tokens for piece in found] == mask.sum(axis=1).tolist()
    for sequence, piece in enumerate(found):
        assert np.array_equal(np.sort(piece.ids, axis=2), np.sort(IDS[sequence][mask[sequence]], axis=2))
        if words:
            assert piece.token_id is not None
            assert piece.token_id.tolist() == WORDS[sequence][mask[sequence]].tolist()


@pytest.mark.parametrize("mask", [RIGHT, LEFT], ids=["right", "left"])
@pytest.mark.parametrize("dtype", [np.int64, bool, np.float32])
@pytest.mark.parametrize("kind", ["npz", "pt"])
@pytest.mark.parametrize("flat", [True, False])
def test_scores_of_a_batch(tmp_path: Path, mask: np.ndarray, dtype: Any, kind: str, flat: bool) -> None:
    scores: Any = FLAT if flat else LOGITS
    scores = (
        tuple(scores) if kind == "pt" else scores if flat else {f"layer_{at}": one for at, one in enumerate(scores)}
    )
    arrays = scores if isinstance(scores, dict) else {"router_logits": scores}
    file = saved(tmp_path / "log", arrays | {"input_ids": WORDS, "attention_mask": mask.astype(dtype)}, kind)
    log, found = pieces(file, top_k=TOP_K)
    right(found, mask)
    assert [n for piece in found for remark, n in piece.counted if remark == PADDING] == [7, 4]
    assert "not read" not in log.note


def test_the_mask_alone_says_whose_tokens_follow_each_other(tmp_path: Path) -> None:
    file = saved(tmp_path / "log", {"router_logits": tuple(FLAT), "attention_mask": RIGHT.astype(int)}, "pt")
    right(pieces(file, top_k=TOP_K)[1], RIGHT, words=False)


@pytest.mark.parametrize("flat", [True, False])
def test_ids_of_a_batch(tmp_path: Path, flat: bool) -> None:
    ids = IDS.reshape(B * T, LAYERS, TOP_K) if flat else IDS
    arrays = {"routed_experts": ids, "attention_mask": LEFT.astype(int), "input_ids": WORDS, "rewards": np.ones(B)}
    log, found = pieces(saved(tmp_path / "log", arrays, "pt"))
    right(found, LEFT)
    assert [n for piece in found for remark, n in piece.counted if remark == PADDING] == [7, 4]
    assert "arrays that are not read: rewards" in log.note


@pytest.mark.parametrize("mask", [RIGHT.astype(int) * 2, RIGHT[:, :4].astype(int), RIGHT.astype(np.float32) - 1])
def test_what_is_no_mask_is_not_read(tmp_path: Path, mask: np.ndarray) -> None:
    """Numbers of packed sequences, a mask of other tokens, what is added to scores of attention."""
    file = saved(tmp_path / "log", {"router_logits": tuple(LOGITS), "attention_mask": mask}, "pt")
    log, found = pieces(file, top_k=TOP_K)
    assert [piece.num_tokens for piece in found] == [T] * B
    assert "arrays that are not read: attention_mask" in log.note


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_are_no_scores_of_which_a_softmax_is_to_be_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    logits = torch.from_numpy(FLAT)
    torch.save({"router_logits": tuple(logits)}, tmp_path / "logits")
    torch.save({"router_logits": tuple(logits.softmax(-1).to(dtype))}, tmp_path / "probabilities")
    torch.save({"router_logits": tuple(logits.sigmoid())}, tmp_path / "sigmoids")
    expected, (of_logits,) = pieces(tmp_path / "logits", top_k=TOP_K)
    log, (piece,) = pieces(tmp_path / "probabilities", top_k=TOP_K)
    assert np.allclose(piece.weights, of_logits.weights, atol=1e-6 if dtype == torch.float32 else 0.01)
    assert np.allclose(piece.scored[..., 0], of_logits.scored[..., 0], atol=1e-4 if dtype == torch.float32 else 0.02)
    assert PROBABILITIES.format(k=TOP_K) in log.note
    assert SIGMOIDS in pieces(tmp_path / "sigmoids", top_k=TOP_K)[0].note
    assert SIGMOIDS not in expected.note + log.note


def test_more_experts_than_there_are(tmp_path: Path) -> None:
    file = saved(tmp_path / "log", {"router_logits": tuple(FLAT)}, "pt")
    with pytest.raises(UserError, match="8 experts at 4 layers, of which a token cannot use 9; .* 1 to 8 would fit"):
        pieces(file, top_k=EXPERTS + 1)


@pytest.mark.parametrize("kind", ["npz", "pt"])
@pytest.mark.parametrize("beside", ["input_ids", "attention_mask"])
def test_ids_whose_tokens_lie_along_the_axis_of_the_layers(tmp_path: Path, beside: str, kind: str) -> None:
    inputs = {"input_ids": WORDS, "attention_mask": RIGHT.astype(int)}
    for ids, words in ((IDS[0].swapaxes(0, 1), inputs[beside][0]), (IDS.transpose(2, 0, 1, 3), inputs[beside])):
        file = saved(tmp_path / "log", {"routed_experts": ids.copy(), beside: words.copy()}, kind)
        with pytest.raises(
            UserError, match=rf"tokens, layers, top-k\), so of .*, but {beside} has {words.size} numbers"
        ):
            pieces(file)
