"""What holds no decision is counted as that, in a line, a list, a rollout or a file; nothing else is lost with it."""

from __future__ import annotations

import collections
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import ANSWER, IDS, LAYERS, PROMPT, ROWS, SCORES, TOP_K, WORDS, npy64
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tests.engine.adapters.logs.test_odd_logs import counts_of
from tests.engine.adapters.logs.test_sequences import total
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.responses.envelopes import NO_ROWS
from tokenpaths.engine.base.errors import UserError


def without(rows: Any) -> dict[str, Any]:
    record = make.vllm_chat(1)
    record["choices"][0]["routed_experts"] = rows
    return record


EMPTY = {
    "an array": without(npy64(np.zeros((0, LAYERS + 1, TOP_K)))),
    "a list": without([]),
    "a string": without(""),
    "an object": without({"data": "", "dtype": "uint8", "shape": [0, LAYERS + 1, TOP_K]}),
    "null": without(None),
    "a line of null": None,
    "a line with an empty list": [],
}


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("what", EMPTY)
def test_a_response_without_a_row_is_counted_wherever_it_stands(what: str, place: int, tmp_path: Path) -> None:
    records: list[Any] = [make.vllm_chat(0), make.vllm_chat(2)]
    records.insert(place, EMPTY[what])
    _, found = pieces(make.lines(tmp_path / "log", records))
    assert [piece.source for piece in found] == ["chatcmpl-0", "chatcmpl-2"]
    assert total(found) == {NO_ROWS: 1}


@pytest.mark.parametrize("beside", [None, []])
def test_a_list_with_nothing_among_its_responses(beside: Any, tmp_path: Path) -> None:
    _, found = pieces(make.lines(tmp_path / "log", [[make.vllm_chat(0), beside, make.vllm_chat(2)]]))
    assert [piece.num_tokens for piece in found] == [ROWS, ROWS]
    assert total(found) == {NO_ROWS: 1}


def test_a_stream_whose_first_chunk_has_an_empty_array(tmp_path: Path) -> None:
    file = make.stream(tmp_path / "log")
    events = file.read_text().split("\n\n")
    empty = {"id": "s", "choices": [{"index": 0, "routed_experts": npy64(np.zeros((0, LAYERS + 1, TOP_K)))}]}
    file.write_text("\n\n".join([events[0], f"data: {json.dumps(empty)}", *events[1:]]))
    assert [piece.num_tokens for piece in pieces(file)[1]] == [ROWS]


@pytest.mark.parametrize("as_array", [True, False])
@pytest.mark.parametrize("place", [0, 1])
def test_a_rollout_without_a_row(as_array: bool, place: int, tmp_path: Path) -> None:
    value = torch.load(make.slime(tmp_path / "log"), weights_only=True)
    rows = np.zeros((0, LAYERS, TOP_K), np.int32)
    value["samples"][place] |= {"tokens": [1], "rollout_routed_experts": rows if as_array else torch.from_numpy(rows)}
    torch.save(value, tmp_path / "log")
    _, found = pieces(tmp_path / "log")
    assert [piece.source for piece in found] == [f"rollout sample {n}" for n in range(3) if n != place]
    assert list(total(found).values()) == [1]


def test_a_sequence_of_padding_alone_is_counted(tmp_path: Path) -> None:
    batch = torch.load(make.verl(tmp_path / "log"), weights_only=True)["routed_experts"]
    batch[1] = 0
    torch.save({"routed_experts": batch}, tmp_path / "log")
    _, found = pieces(tmp_path / "log")
    assert [piece.num_tokens for piece in found] == [20, 10]
    assert list(total(found).values()) == [1]


def test_a_file_of_cancelled_requests_among_others(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    (folder / "more").mkdir(parents=True)
    for name, record in (("a", make.aborted()), ("b", make.vllm_chat(0)), ("c", make.aborted()), ("more/d", {})):
        make.lines(folder / name, [record])
    log, found = pieces(folder)
    assert [piece.num_tokens for piece in found] == [ROWS]
    assert total(found) == {NO_ROWS: 2}
    assert "folders in this one that are not read: more" in log.note
    (folder / "b").unlink()
    with pytest.raises(UserError, match="a, line 1: has no routed_experts"):
        open_log(folder)


def test_a_folder_of_folders_names_them(tmp_path: Path) -> None:
    (tmp_path / "log" / "rank 0").mkdir(parents=True)
    refused(tmp_path, tmp_path / "log", "holds no files; a folder in it would be a log of its own: rank 0")


def cut(rows: int, usage: int | None, prompt: int = PROMPT) -> dict[str, Any]:
    """A response of the last rows, without the ids of its answer."""
    record = make.vllm_chat(0, ids=IDS[0][ROWS - rows :])
    del record["choices"][0]["token_ids"]
    counts = {"usage": {"prompt_tokens": prompt, "completion_tokens": usage}}
    return record | (counts if usage is not None else {})


def test_the_prompt_of_a_cut_response_stands_at_its_end(tmp_path: Path) -> None:
    """What is left of the prompt follows from the number of tokens, and is not known without it."""
    _, (piece,) = pieces(make.lines(tmp_path / "log", [cut(ROWS - 7, ANSWER)]))
    assert piece.token_id is not None
    assert piece.token_id.tolist() == WORDS[0][7:PROMPT] + [-1] * (ANSWER - 1)
    assert any("routed_experts_prompt_start" in remark for remark in piece.remarks)
    _, (piece,) = pieces(make.lines(tmp_path / "log", [cut(ROWS, ANSWER)]))
    assert piece.token_id is not None
    assert piece.token_id.tolist() == WORDS[0][:PROMPT] + [-1] * (ANSWER - 1)
    _, (piece,) = pieces(make.lines(tmp_path / "log", [cut(PROMPT - 4, None)]))
    assert piece.token_id is None
    assert any("the token ids of {n} answer" in remark for remark in piece.remarks)


BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize("layout", ["lines", "over lines", "events"])
def test_a_byte_order_mark_before_responses(layout: str, tmp_path: Path) -> None:
    file = tmp_path / "log"
    if layout == "events":
        make.stream(file)
    elif layout == "lines":
        make.lines(file, [make.vllm_chat(0)])
    else:
        file.write_text(json.dumps(make.vllm_chat(0), indent=1))
    file.write_bytes(BOM + file.read_bytes())
    assert [piece.num_tokens for piece in pieces(file)[1]] == [ROWS]


def test_counts_of_one_name_in_two_formats_stand_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "a.json").write_text(json.dumps({"expert_counts": {"0": {"0": 5, "1": 7}}}))
    (tmp_path / "log" / "a.pkl").write_bytes(pickle.dumps([collections.Counter({0: 1, 1: 2})]))
    counts = counts_of(tmp_path / "log").counts
    assert (counts.domains, counts.parts.sum(axis=(1, 2)).tolist()) == (("a.json", "a.pkl"), [12, 3])


@pytest.mark.parametrize("kind", ["npz", "pt"])
@pytest.mark.parametrize("with_axis", [True, False])
def test_vocabulary_ids_beside_scores(kind: str, with_axis: bool, tmp_path: Path) -> None:
    words = np.arange(ROWS)[None] if with_axis else np.arange(ROWS)
    mask = np.ones(ROWS, np.int64)
    file = tmp_path / "log"
    if kind == "npz":
        with file.open("wb") as stream:
            np.savez(stream, router_logits=SCORES, input_ids=words, attention_mask=mask)
    else:
        torch.save({"router_logits": torch.from_numpy(SCORES), "input_ids": words, "attention_mask": mask}, file)
    log, (piece,) = pieces(file, top_k=TOP_K)
    assert piece.token_id is not None
    assert piece.token_id.tolist() == list(range(ROWS))
    assert "not read" not in log.note


@pytest.mark.parametrize("pairs", [{}, {(0, 1): collections.Counter({(0, 3): 2})}])
def test_counters_of_single_layers_beside_those_of_pairs(pairs: Any, tmp_path: Path) -> None:
    value = [collections.defaultdict(collections.Counter, {0: {0: 3}, 1: {1: 5}}), pairs]
    (tmp_path / "log").write_bytes(pickle.dumps(value))
    counts = counts_of(tmp_path / "log").counts
    assert counts.counts.tolist() == [[3, 0], [0, 5]]
    assert "pairs of experts of two layers" in counts.notes[0]


def test_a_layer_whose_counter_is_empty(tmp_path: Path) -> None:
    value = [collections.Counter({0: 3}), collections.Counter(), collections.Counter({1: 5})]
    (tmp_path / "log").write_bytes(pickle.dumps(value))
    assert counts_of(tmp_path / "log").counts.counts.tolist() == [[3, 0], [0, 0], [0, 5]]
