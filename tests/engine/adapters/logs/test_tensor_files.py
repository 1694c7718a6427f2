"""Files of tensors and pickles are read as PyTorch reads them, and run no code."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.engine.adapters.logs.engine_logs import choices, recorder, slime
from tests.engine.adapters.logs.test_engine_logs import pieces
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.tensors.tensor_files import _claims_too_much, load_tensors
from tokenpaths.engine.base.errors import UserError


def same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        values = theirs.float() if theirs.dtype == torch.bfloat16 else theirs
        return np.array_equal(ours, values.detach().numpy())
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return type(ours) is type(theirs) and all(same(a, b) for a, b in zip(ours, theirs, strict=True))
    return bool(ours == theirs)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16]
DTYPES += [torch.int8, torch.uint8, torch.bool, torch.uint16, torch.uint32, torch.uint64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_are_those_of_torch_load(dtype: torch.dtype, tmp_path: Path):
    whole = torch.arange(24).view(2, 3, 4).to(dtype)  # unsigned ones lie in storages of bytes
    value = {"whole": whole, "view": whole[:, 1:, ::2], "turned": whole.transpose(0, 2), "one": whole[0, 0, 0]}
    value |= {"none": whole[:0], "deep": [("a", 1.5, None, True), {(1, "b"): whole[0]}]}
    torch.save(value, tmp_path / "t")
    assert same(load_tensors(tmp_path / "t"), torch.load(tmp_path / "t", weights_only=True))
    save_file(
        {name: one.clone().contiguous() for name, one in value.items() if isinstance(one, torch.Tensor)}, tmp_path / "s"
    )
    assert same(load_tensors(tmp_path / "s"), {k: v for k, v in value.items() if isinstance(v, torch.Tensor)})


@pytest.mark.parametrize("make", [recorder, slime])
def test_logs_are_those_of_torch_load(make: Any, tmp_path: Path):
    assert same(load_tensors(make(tmp_path / "t")), torch.load(tmp_path / "t", weights_only=True))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_counters_and_arrays(protocol: int, tmp_path: Path):
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    value = [
        collections.Counter({np.int64(3): np.int64(4), 5: np.int32(7)}),
        collections.defaultdict(int, {1: 2}),
        collections.OrderedDict(a=array, b=np.asfortranarray(array.astype(">f8"))),
        (np.float32(1.5), np.bool_(True), {"x"}, 2**70, b"bytes"),
    ]
    (tmp_path / "p").write_bytes(pickle.dumps(value, protocol=protocol))
    found = load_tensors(tmp_path / "p")
    assert found[0] == {3: 4, 5: 7}
    assert found[1] == {1: 2}
    assert np.array_equal(found[2]["a"], array)
    assert np.array_equal(found[2]["b"], array)
    assert found[3] == (1.5, True, {"x"}, 2**70, b"bytes")


class Runs:
    def __init__(self, what: Any, *arguments: Any) -> None:
        self.what, self.arguments = what, arguments

    def __reduce__(self) -> Any:
        return self.what, self.arguments


HOSTILE = {
    "a command": (os.system, "touch executed"),
    "a folder": (os.mkdir, "executed"),
    "eval": (eval, "__import__('os').mkdir('executed')"),
    "getattr": (getattr, "text", "upper"),
    "a partial": (__import__("functools").partial, os.mkdir, "executed"),
    "a load": (pickle.loads, b"."),
    "a file": (open, "executed", "w"),
    "torch": (torch.load, "executed"),
    "numpy": (np.load, "executed"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("torch_file", [True, False])
def test_hostile_pickles_run_nothing(name: str, torch_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    value = {"routed_experts": Runs(*HOSTILE[name])}
    if torch_file:
        torch.save(value, "log")
    else:
        Path("log").write_bytes(pickle.dumps(value))
    with pytest.raises(UserError, match=r"log: holds [\w.]+, which this program does not load: a pickle can run code"):
        load_tensors(Path("log"))
    assert not Path("executed").exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_an_empty_array_is_one(protocol: int, tmp_path: Path):
    """Old pickles write its bytes as a call of ``bytes``, which is read of nothing else."""
    (tmp_path / "p").write_bytes(pickle.dumps({"a": np.zeros((0, 4, 2), np.int32)}, protocol=protocol))
    assert load_tensors(tmp_path / "p")["a"].shape == (0, 4, 2)
    (tmp_path / "p").write_bytes(pickle.dumps(Runs(bytes, 2**40), protocol=protocol))
    with pytest.raises(UserError, match="p: is damaged or no file of tensors"):
        load_tensors(tmp_path / "p")


def test_tensors_larger_than_their_numbers(tmp_path: Path):
    torch.save({"a": torch.zeros(4)}, tmp_path / "t")
    content = (tmp_path / "t").read_bytes()
    for size in (b"K\x05", b"K\xff", b"J\xff\xff\xff\x7f"):
        # The size (4,) of the only tensor, before its stride (1,).
        (tmp_path / "big").write_bytes(content.replace(b"K\x04\x85q", size + b"\x85q", 1))
        with pytest.raises(UserError, match="big: is damaged or no file of tensors"):
            load_tensors(tmp_path / "big")


def test_damaged_files(tmp_path: Path):
    torch.save({"a": torch.zeros(400)}, tmp_path / "t")
    content = (tmp_path / "t").read_bytes()
    for name, damaged in (("cut", content[:-200]), ("half", content[:300]), ("other", b"\x80\x02}q\x00."[:-1])):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=f"{name}: "):
            load_tensors(tmp_path / name)


def test_a_pickle_that_claims_more_than_it_holds_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "log").write_bytes(b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc.")
    with pytest.raises(UserError, match=r"log: is damaged \(it claims more values than it holds\)"):
        load_tensors(tmp_path / "log")
    assert _claims_too_much(b"\x80\x02}r\xff\xff\xff\x7f.")  # never loaded: it takes the memory that it claims
    (tmp_path / "log").write_bytes(pickle.dumps(list(range(300)), protocol=4))

    def too_large(self: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("tokenpaths.engine.adapters.logs.tensors.tensor_files._Unpickler.load", too_large)
    with pytest.raises(MemoryError):  # a whole file: the memory is too small for it
        load_tensors(tmp_path / "log")


@pytest.mark.parametrize("top_k", [1, 2])
def test_edges_of_a_padded_sequence_with_one_expert_a_token_are_said(top_k: int, tmp_path: Path) -> None:
    batch = np.zeros((2, 12, 3, top_k), dtype=np.int64)
    batch[:, 2:10] = 1 + np.random.default_rng(0).random((2, 8, 3, 7)).argsort(axis=3)[:, :, :, :top_k]
    torch.save({"routed_experts": torch.from_numpy(batch)}, tmp_path / "log")
    note = open_log(tmp_path / "log").note
    assert ("chose expert 0 at every layer" in note) == (top_k == 1)


LENGTHS = (12, 7, 20)
IDS = [choices(length, seed, 4, 2, 16) for seed, length in enumerate(LENGTHS)]
TENSORS = [torch.from_numpy(ids.astype(np.int64)) for ids in IDS]
REQUESTS = {f"req-{place}": ids for place, ids in enumerate(TENSORS)}


def check_samples(file: Path, names: list[str], **options: int) -> Any:
    """Those of ``IDS``, under these names."""
    log, found = pieces(file, **options)
    assert [piece.source for piece in found] == names
    for piece, ids in zip(found, IDS, strict=True):
        assert np.array_equal(np.sort(piece.ids, axis=2), np.sort(ids, axis=2))
    return log, found


LAYOUTS = {
    "an object each": ({name: {"routed_experts": ids} for name, ids in REQUESTS.items()}, list(REQUESTS)),
    "by name": (REQUESTS, list(REQUESTS)),
    "a list": (TENSORS, [f"sequence {place}" for place in range(3)]),
    "a list under a key": ({"routed_experts": tuple(TENSORS)}, [f"sequence {place}" for place in range(3)]),
    "a list of objects": ([{"topk_ids": ids} for ids in TENSORS], [f"sequence {place}" for place in range(3)]),
    "parts": (
        {"train": {"a": {"ids": TENSORS[0]}, "b": {"ids": TENSORS[1]}}, "eval": {"ids": TENSORS[2]}},
        ["train, a", "train, b", "eval"],
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_request_of_a_file_is_a_sample(layout: str, tmp_path: Path) -> None:
    value, names = LAYOUTS[layout]
    torch.save(value, tmp_path / "log")
    check_samples(tmp_path / "log", names)


def test_arrays_of_an_archive_are_a_sample_each(tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **dict(zip(REQUESTS, IDS, strict=True)))
    log, _ = check_samples(tmp_path / "log.npz", list(REQUESTS))
    assert "3 arrays are a sample each, (tokens, layers, top-k)" in log.note


def test_what_stands_beside_several_requests_is_named(tmp_path: Path) -> None:
    torch.save({**LAYOUTS["an object each"][0], "config": {"seed": 1}, "losses": torch.ones(3)}, tmp_path / "log")
    log, _ = check_samples(tmp_path / "log", list(REQUESTS))
    assert "arrays that are not read: config, losses" in log.note


def test_requests_of_several_models_are_refused(tmp_path: Path) -> None:
    other = {"ids": TENSORS[1][:, :3]}
    torch.save({"large": {"ids": TENSORS[0]}, "small": other}, tmp_path / "log")
    with pytest.raises(
        UserError, match=r"'small' and 'large' have different layers \(3 and 4\); .* files of their own"
    ):
        pieces(tmp_path / "log")
    torch.save(
        {"a": {"ids": TENSORS[0], "num_experts": 16}, "b": {"ids": TENSORS[1], "num_experts": 32}}, tmp_path / "log"
    )
    with pytest.raises(UserError, match="have different experts"):
        pieces(tmp_path / "log")
    log, found = pieces(tmp_path / "log", skip_bad=True)
    assert [piece.source for piece in found] == ["a"]


@pytest.mark.parametrize("by_name", [True, False])
def test_responses_that_a_script_has_kept(by_name: bool, tmp_path: Path) -> None:
    """With the vocabulary ids of prompt and answer, as in a line of JSON."""
    records = [
        {
            "prompt_token_ids": list(range(5)),
            "token_ids": torch.arange(len(ids) - 4),
            "routed_experts": ids,
            "text": "a",
        }
        for ids in TENSORS
    ]
    value: Any = [{"request_id": name, **record} for name, record in zip(REQUESTS, records, strict=True)]
    torch.save(dict(zip(REQUESTS, records, strict=True)) if by_name else value, tmp_path / "log")
    _, found = check_samples(tmp_path / "log", list(REQUESTS))
    assert [piece.token_id.tolist() for piece in found] == [[*range(5), *range(length - 5)] for length in LENGTHS]
    assert {piece.text for piece in found} == {"a"}


def test_requests_of_one_name_and_parts_that_are_no_responses(tmp_path: Path) -> None:
    torch.save([{"request_id": "a", "ids": ids} for ids in TENSORS], tmp_path / "log")
    check_samples(tmp_path / "log", ["a"] * 3)
    named: Any = {
        "x": {"topk_ids": TENSORS[0]},
        "y": {"routed_experts": TENSORS[1], "text": "b"},
        "z": {"ids": TENSORS[2]},
    }
    torch.save(named, tmp_path / "log")
    _, found = check_samples(tmp_path / "log", ["x", "y", "z"])
    assert [piece.text for piece in found] == [None, "b", None]


APART = {
    "a list of layers": [ids[:, 0] for ids in [TENSORS[0]] * 3],
    "by layer": {f"layers.{layer}": {"topk_ids": TENSORS[0][:, layer]} for layer in range(4)},
    "batches by layer": {f"layer_{layer}": TENSORS[0] for layer in range(4)},
}


@pytest.mark.parametrize("layout", APART)
def test_layers_apart_are_refused_with_what_would_be_right(layout: str, tmp_path: Path) -> None:
    torch.save(APART[layout], tmp_path / "log")
    with pytest.raises(
        UserError, match=r"arrays of whole numbers of shape .*torch.stack\(list, dim=1\) under the name 'ids'"
    ):
        pieces(tmp_path / "log")


def test_an_array_of_another_name_is_refused_with_the_right_one(tmp_path: Path) -> None:
    torch.save({"router_indices": TENSORS[0]}, tmp_path / "log")
    with pytest.raises(UserError, match=r"router_indices is an array .* save it under the name 'ids'"):
        pieces(tmp_path / "log")


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_names_of_the_neutral_format(kind: str, tmp_path: Path) -> None:
    weights = torch.rand(39, 4, 2).sort(dim=2, descending=True).values
    tensors = {"ids": torch.cat(TENSORS), "weights": weights}
    tensors["sample"] = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
    tensors |= {"num_experts": torch.tensor([64]), "token_id": torch.arange(39)}
    if kind == "pt":
        torch.save(tensors | {"label": ["x", "y", "z"], "model": "m", "layers": ["a", "b", "c", "d"]}, tmp_path / "log")
    else:
        save_file(tensors, tmp_path / "log")
    log, found = check_samples(tmp_path / "log", [f"sample {place}" for place in range(3)])
    assert (log.experts, log.shape.weights) == (64, True)
    assert np.array_equal(np.concatenate([piece.weights for piece in found]), weights.numpy())
    assert np.concatenate([piece.token_id for piece in found]).tolist() == list(range(39))
    if kind == "pt":
        assert ([piece.label for piece in found], log.model, log.shape.layers) == (["x", "y", "z"], "m", tuple("abcd"))
    assert "not read" not in log.note


def test_weights_without_samples(tmp_path: Path) -> None:
    weights = torch.rand(12, 4, 2).sort(dim=2, descending=True).values
    value = {"ids": TENSORS[0], "weights": weights, "token_id": torch.arange(12), "label": "x", "num_experts": 64}
    torch.save(value, tmp_path / "log")
    log, (piece,) = pieces(tmp_path / "log")
    assert np.array_equal(piece.weights, weights.numpy())
    assert (log.experts, piece.label, piece.token_id.tolist()) == (64, "x", list(range(12)))
    torch.save(value | {"weights": weights[:, :, :1]}, tmp_path / "log")
    with pytest.raises(UserError, match=r"'weights': has shape \(12, 4, 1\), it should be \(12, 4, 2\), as the ids"):
        pieces(tmp_path / "log")


@pytest.mark.parametrize(
    "beside",
    [
        {"weights": torch.ones(12)},
        {"sample": 17},
        {"sample": "gsm8k-3"},
        {"token_id": torch.arange(7)},
        {"num_experts": 0},
    ],
    ids=["weights", "number", "name", "prompt", "experts"],
)
def test_names_that_mean_something_else_beside_ids_are_said_not_to_be_read(tmp_path: Path, beside: dict[str, Any]):
    """Weights of a loss, the number of a question, the ids of a prompt: of the ids alone they say nothing."""
    torch.save({"ids": TENSORS[0]} | beside, tmp_path / "log")
    log, (piece,) = pieces(tmp_path / "log")
    assert np.array_equal(piece.ids, TENSORS[0].numpy())
    assert piece.weights is piece.token_id is None
    (name,) = beside
    assert name in log.note


def test_arrays_of_one_shape_by_place_may_be_a_layer_each(tmp_path: Path):
    """`[ids of layer 0 (sequences, tokens, top-k), …]`; requests of one length are told by their names."""
    layers = [torch.rand(3, 5, 8).argsort(dim=2)[:, :, :2] for _ in range(4)]
    for value in (layers, tuple(layers), dict(enumerate(layers))):
        torch.save(value, tmp_path / "log")
        with pytest.raises(UserError, match=r"if each holds the ids of a layer"):
            pieces(tmp_path / "log")
    torch.save({f"req-{number}": ids for number, ids in enumerate(layers)}, tmp_path / "log")
    assert len(pieces(tmp_path / "log")[1]) == 4


def test_weights_of_a_batch_with_padding(tmp_path: Path) -> None:
    mask = torch.arange(12) < torch.tensor([[12], [5]])
    weights = torch.rand(2, 12, 4, 2).sort(dim=3, descending=True).values
    ids = torch.stack([TENSORS[0]] * 2)
    torch.save({"routed_experts": ids, "weights": weights, "attention_mask": mask}, tmp_path / "log")
    _, found = pieces(tmp_path / "log")
    assert [
        np.array_equal(piece.weights, weights[at, : piece.num_tokens].numpy()) for at, piece in enumerate(found)
    ] == [True] * len(found)
