"""Logs that engines and those around them write now and then: cut, copied, interleaved, failed, in other wrappings."""

from __future__ import annotations

import collections
import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import ANSWER, IDS, LAYERS, PROMPT, ROWS, TOP_K, WORDS, npy64
from tests.engine.adapters.logs.test_engine_logs import pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
from tokenpaths.engine.adapters.logs.formats import OnlyCounts, open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run

SIZES = {"layers": LAYERS + 1, "top_k": TOP_K}
"""of SGLang's rows, dense layer included"""


def cut(number: int, start: int, told: bool) -> dict[str, Any]:
    """A response of SGLang without the rows of its first tokens, of which it tells or not."""
    record = make.sglang(number) | {"prompt_token_ids": WORDS[number][:PROMPT]}
    record["meta_info"]["routed_experts"] = make.raw64(make.with_dense(IDS[number])[start:])
    if told:
        record["meta_info"]["routed_experts_start_len"] = start
    return record


@pytest.mark.parametrize("told", [True, False])
def test_rows_that_a_client_of_sglang_did_not_ask_for(tmp_path: Path, told: bool) -> None:
    starts = [0, 10, 3]  # 10 of 20: sizes half as large would fit as well
    log, found = pieces(make.lines(tmp_path / "log", [cut(i, s, told) for i, s in enumerate(starts)]), **SIZES)
    for number, (piece, start) in enumerate(zip(found, starts, strict=True)):
        assert (piece.ids == IDS[number][start:]).all()
        assert piece.token_id is not None
        assert piece.token_id.tolist() == WORDS[number][start:ROWS]


def test_a_cut_response_that_comes_first_must_tell(tmp_path: Path) -> None:
    file = make.lines(tmp_path / "log", [cut(0, 10, False), cut(1, 0, False)])
    refused(tmp_path, file, r"line 1.* say so in routed_experts_start_len", **SIZES)


@pytest.mark.parametrize("first", ["counted", "uncounted", "with a start of another kind"])
def test_sizes_that_do_not_fit_are_no_cut(tmp_path: Path, first: str) -> None:
    """Twice as many layers would be half the tokens."""
    records = [make.sglang(n) | {"prompt_token_ids": WORDS[n][:PROMPT]} for n in range(2)]
    if first == "uncounted":  # says nothing of its length, so nothing is known of the sizes behind it
        records[0]["meta_info"] = {"routed_experts": records[0]["meta_info"]["routed_experts"]}
        del records[0]["prompt_token_ids"]
    if first == "with a start of another kind":
        records[0] |= {"start": 1_712_345_678, "routed_experts_start_len": None}
    file = make.lines(tmp_path / "log", records)
    refused(tmp_path, file, "are not 10 layers × 2 experts", layers=2 * (LAYERS + 1), top_k=TOP_K)


def test_a_prompt_that_is_only_counted_is_no_prefix_of_other_requests(tmp_path: Path) -> None:
    """Equal first rows of requests that have nothing else in common: two tokens, as ``usage`` counts them."""
    rows = [np.concatenate([IDS[0][:2], IDS[number][2:]]) for number in range(3)]
    records: list[dict[str, Any]] = [
        {"id": str(n), "choices": [{"index": 0, "routed_experts": npy64(one)}], "usage": {"prompt_tokens": 2}}
        for n, one in enumerate(rows)
    ]
    _, found = pieces(make.lines(tmp_path / "log", records))
    assert [piece.num_tokens for piece in found] == [ROWS] * 3


def test_a_short_prompt_of_several_choices_is_counted_once_without_ids(tmp_path: Path) -> None:
    answers = [np.concatenate([IDS[0][:PROMPT], IDS[n][PROMPT:]]) for n in range(2)]
    choices = [{"index": n, "token_ids": None, "routed_experts": npy64(rows)} for n, rows in enumerate(answers)]
    usage = {"prompt_tokens": PROMPT, "completion_tokens": 2 * ANSWER}
    record = {"id": "n", "model": "m", "choices": choices, "prompt_token_ids": None, "usage": usage}
    _, found = pieces(make.lines(tmp_path / "log", [record]))
    assert [piece.num_tokens for piece in found] == [ROWS, ROWS - PROMPT]


def test_an_answer_that_echoes_its_prompt_has_the_ids_of_both(tmp_path: Path) -> None:
    record = make.vllm_completion(0)
    record["choices"][0]["token_ids"] = WORDS[0]
    _, (piece,) = pieces(make.lines(tmp_path / "log", [record]))
    assert piece.token_id is not None
    assert piece.token_id.tolist() == WORDS[0][:ROWS]


@pytest.mark.parametrize("error", [{"error": {"message": "x", "code": 400}}, {"object": "error", "message": "x"}])
def test_a_log_may_begin_with_a_failed_request(tmp_path: Path, error: dict[str, Any]) -> None:
    file = make.lines(tmp_path / "log", [error, make.vllm_chat(0), error])
    log, found = pieces(file, format="vllm")
    assert [piece.num_tokens for piece in found] == [ROWS]
    with Run.open(import_log(log, tmp_path / "runs", "failed")) as run:
        assert "2 failed or cancelled requests are left out" in run.info()["findings"]["notes"]


def test_failures_alone_are_no_log_and_are_left_out_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    make.lines(folder / "a.jsonl", [make.vllm_chat(0)])
    wrong = make.lines(folder / "b.jsonl", [{"error": {"message": "x"}}])
    refused(tmp_path, wrong, "has error, but neither routed_experts")
    refused(tmp_path, make.lines(tmp_path / "c.jsonl", [{}]), "has no keys, but neither routed_experts")
    log, found = pieces(folder)
    assert [piece.num_tokens for piece in found] == [ROWS]
    assert "files that are not read: b.jsonl" in log.note


def events(file: Path, spoil: dict[str, Any], at: int = 0) -> Path:
    """The stream of one request, of whose first choice (of chunk ``at``) this is changed."""
    lines = make.stream(file).read_text().split("\n\n")
    chunk = json.loads(lines[1 + at].removeprefix("data: "))
    chunk["choices"][0] |= spoil
    lines[1 + at] = f"data: {json.dumps(chunk)}"
    file.write_text("\n\n".join(lines))
    return file


def test_a_chunk_may_have_null_where_others_have_ids(tmp_path: Path) -> None:
    _, found = pieces(events(tmp_path / "log", {"token_ids": None}))
    assert [piece.num_tokens for piece in found] == [ROWS]


@pytest.mark.parametrize("spoil", [{"index": [1]}, {"token_ids": 7}, None])
def test_a_chunk_that_is_none_costs_its_stream_alone(tmp_path: Path, spoil: dict[str, Any] | None) -> None:
    file = events(tmp_path / "log", spoil or {}, at=2)
    if spoil is None:
        chunks = file.read_text().split("\n\n")
        file.write_text("\n\n".join([*chunks[:3], "data: {cut", *chunks[4:]]))
    refused(tmp_path, file, "is not JSON" if spoil is None else "a choice should have a number as index and a list")
    whole = make.stream(tmp_path / "other").read_text().replace('"id": "s"', '"id": "t"')
    file.write_text(file.read_text() + whole)
    _, found = pieces(file, skip_bad=True)
    assert [piece.num_tokens for piece in found] == [ROWS]


def test_the_end_of_one_stream_does_not_mend_another(tmp_path: Path) -> None:
    broken, whole = (make.stream(tmp_path / name).read_text() for name in "ab")
    lines = broken.replace('"id": "s"', '"id": "b"').split("\n\n")
    lines[4] = 'data: {"id": "b", "choices": 7}'
    done = whole.replace('"id": "s"', '"id": "a"')
    (tmp_path / "log").write_text("\n\n".join([*lines[:6], done.strip(), *lines[6:]]))
    _, found = pieces(tmp_path / "log", skip_bad=True)
    assert [piece.num_tokens for piece in found] == [ROWS]


@pytest.mark.parametrize("choices", [3, {}, [4]])
def test_choices_of_a_chunk_that_are_none(tmp_path: Path, choices: Any) -> None:
    file = tmp_path / "log"
    file.write_text(f"data: {json.dumps({'id': 's', 'choices': choices})}\n\ndata: [DONE]\n\n")
    refused(tmp_path, file, "choices should be a list of objects")


@pytest.mark.parametrize("shape", ["4000000000, 5, 2", f"0, {10**30}, 2", f"-{10**30}, 5, 2", f"{'-' * 3000}1, 5, 2"])
def test_an_array_that_announces_more_than_there_is_costs_its_line_alone(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({shape}), }}".encode()
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    wrong = make.vllm_chat(1)
    wrong["choices"][0]["routed_experts"] = make.base64.b64encode(data).decode()
    file = make.lines(tmp_path / "log", [make.vllm_chat(0), wrong, make.vllm_chat(2)])
    refused(tmp_path, file, "line 2: .* cut off numpy array")
    assert len(pieces(file, skip_bad=True)[1]) == 2


def test_copies_of_tensor_parallel_ranks_are_counted_once(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    first = make.recorder(folder / "rank_0.pt")
    value = torch.load(first, weights_only=False)
    for record in value["records"]:
        record["rank"] = 1
    torch.save(value, folder / "rank_1.pt")
    log, found = pieces(folder)
    assert sum(piece.num_tokens for piece in found) == sum(p.num_tokens for p in pieces(first)[1])
    assert "files that are copies, as tensor-parallel ranks write them: rank_1.pt" in log.note
    value["records"][0]["topk_ids_of_layer"][0, 0, 0] += 1  # another rank's own requests
    torch.save(value, folder / "rank_1.pt")
    assert sum(piece.num_tokens for piece in pieces(folder)[1]) == 2 * sum(p.num_tokens for p in found)


def test_requests_that_wait_for_one_position_are_told_apart_by_their_order(tmp_path: Path) -> None:
    """(arrival, prompt, answer) of each; the last token of an answer is not fed back."""
    requests = [(0, 10, 6), (2, 10, 6), (4, 5, 6), (5, 12, 3)]
    ids = [make.choices(prompt + answer - 1, 40 + n) for n, (_, prompt, answer) in enumerate(requests)]
    records, held = [], dict[int, int]()
    for step in range(20):
        new = [n for n, (arrival, _, _) in enumerate(requests) if arrival == step]
        parts = [(n, 0, requests[n][1]) for n in new] or [(n, at, at + 1) for n, at in held.items()]
        if not parts:
            continue
        lengths = [high - low for _, low, high in parts] if new else None
        records.append(_pass([(low, ids[n][low:high]) for n, low, high in parts], lengths))
        held |= {n: high for n, _, high in parts}
        held = {n: at for n, at in sorted(held.items()) if at < len(ids[n])}
    torch.save({"records": records}, tmp_path / "log")
    _, found = pieces(tmp_path / "log")
    assert [piece.num_tokens for piece in found] == [len(one) for one in ids]
    assert all((piece.ids == one).all() for piece, one in zip(found, ids, strict=True))


def prefill(low: int, rows: np.ndarray) -> dict[str, Any]:
    """A pass of one part of a prompt."""
    return _pass([(low, rows)], [len(rows)])


def _pass(parts: list[tuple[int, np.ndarray]], lengths: list[int] | None) -> dict[str, Any]:
    ids = np.concatenate([rows for _, rows in parts])
    padded = np.full((LAYERS, len(ids), 8), -1, dtype=np.int32)
    padded[:, :, :TOP_K] = ids.transpose(1, 0, 2)
    positions = [low + place for low, rows in parts for place in range(len(rows))]
    return {
        "rank": [0],  # as a tensor of one number comes out of some
        "gatherer_key": "primary",
        "positions": positions,
        "extend_seq_lens": lengths,
        "topk_ids_of_layer": torch.from_numpy(padded),
    }


def test_a_turn_goes_on_behind_the_one_that_ended(tmp_path: Path) -> None:
    """A is decoded to 11 and ends; B waits at 12, and is being decoded, when A's next turn extends from 12."""
    a, b = make.choices(18, 1), make.choices(14, 2)
    records = [prefill(0, a[:10]), _pass([(10, a[10:11])], None), _pass([(11, a[11:12])], None), prefill(0, b[:11])]
    records += [_pass([(11, b[11:12])], None), prefill(12, a[12:]), _pass([(12, b[12:13])], None)]
    records += [_pass([(13, b[13:])], None)]
    torch.save({"records": records}, tmp_path / "log")
    _, found = pieces(tmp_path / "log")
    assert all((piece.ids == one).all() for piece, one in zip(found, (a, b), strict=True))


@pytest.mark.parametrize("between", [True, False])
def test_chunks_of_a_prompt_are_joined_beside_a_request_at_their_position(tmp_path: Path, between: bool) -> None:
    """D is decoded and stands at 16 when the second chunk of C comes, which begins there."""
    d, c = make.choices(18, 3), make.choices(26, 4)
    records = [prefill(0, d[:15])]
    decode = _pass([(15, d[15:16])], None)
    records += [prefill(0, c[:16]), decode] if between else [decode, prefill(0, c[:16])]
    records += [prefill(16, c[16:24]), _pass([(16, d[16:17]), (24, c[24:25])], None)]
    records += [_pass([(17, d[17:]), (25, c[25:])], None)]
    torch.save({"records": records}, tmp_path / "log")
    _, found = pieces(tmp_path / "log")
    assert all((piece.ids == one).all() for piece, one in zip(found, (d, c), strict=True))


def counts_of(file: Path) -> OnlyCounts:
    with pytest.raises(OnlyCounts) as caught:
        open_log(file)
    return caught.value


@pytest.mark.parametrize("as_pairs", [False, True])
def test_counters_keep_the_numbers_of_their_layers(tmp_path: Path, as_pairs: bool) -> None:
    value: Any = {15: collections.Counter({0: 100, 1: 1}), 0: {0: 3, 1: 4}, 7: {1: 5}}
    (tmp_path / "log").write_bytes(pickle.dumps(list(value.items()) if as_pairs else value))
    found = counts_of(tmp_path / "log").counts
    assert dict(zip(found.layers, found.counts.tolist(), strict=True)) == {
        "layer 0": [3, 4],
        "layer 7": [0, 5],
        "layer 15": [100, 1],
    }


def test_counters_whose_layers_are_not_all_numbered_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(pickle.dumps([(1, {0: 5}), ("dense", {1: 7}), ("x", {1: 9})]))
    assert counts_of(tmp_path / "log").counts.counts.tolist() == [[5, 0], [0, 7], [0, 9]]


@pytest.mark.parametrize("value", [[{(0, 1): 5}], {(0, 7): {0: 5}}, {"c4": [{(0, 1): 5}]}])
def test_counts_of_two_layers_together_are_no_load(tmp_path: Path, value: Any) -> None:
    (tmp_path / "log").write_bytes(pickle.dumps(value))
    refused(tmp_path, tmp_path / "log", "give the counters of single layers")


def test_an_importance_matrix_that_is_cut_off(tmp_path: Path) -> None:
    file = make.imatrix(tmp_path / "log")
    file.write_bytes(file.read_bytes()[:-8])  # in the last tensor, which is a copy of the one before
    refused(tmp_path, file, "cut off or damaged GGUF file .*ends behind the end of the file")


def test_a_missing_layer_of_a_trace_is_said(tmp_path: Path) -> None:
    folder = make.flame(tmp_path / "log")
    (folder / "actives" / "iter_100" / "layer_03.parquet").unlink()
    assert "there is no file of layer 3, though of those around" in open_log(folder).note


@pytest.mark.parametrize("open_it", [open_log, open_confined_log])
def test_pipes_are_refused_at_once(tmp_path: Path, open_it: Any) -> None:
    os.mkfifo(tmp_path / "log")
    with pytest.raises(UserError, match="is a pipe or a device; a log is read twice"):
        open_it(tmp_path / "log")


def test_a_zip_archive_of_a_log_is_to_be_unpacked(tmp_path: Path) -> None:
    make.lines(tmp_path / "log.jsonl", [make.vllm_chat(0)])
    with zipfile.ZipFile(tmp_path / "log.zip", "w") as archive:
        archive.write(tmp_path / "log.jsonl", "log.jsonl")
    refused(tmp_path, tmp_path / "log.zip", "is a zip archive; unpack it first. It holds: log.jsonl")


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x28\xb5\x2f\xfd", "with Zstandard; unpack"),
        (b"\xfd7zXZ\0", "with xz; unpack"),
        (b"BZh91AY&SY", "with bzip2; unpack"),
        (b"\xff\xfe{\0", "UTF-16 text; save it as UTF-8"),
    ],
)
def test_wrappings_are_named(tmp_path: Path, head: bytes, said: str) -> None:
    (tmp_path / "log").write_bytes(head + bytes(40))
    refused(tmp_path, tmp_path / "log", said)


def test_fewer_experts_later_are_no_decision_of_a_dense_layer(tmp_path: Path) -> None:
    fewer = make.vllm_chat(1)
    fewer["choices"][0]["routed_experts"] = npy64(make.with_dense(IDS[1][:, :, :1]))
    _, found = pieces(make.lines(tmp_path / "log", [make.vllm_chat(0), fewer]))
    assert [piece.num_tokens for piece in found] == [ROWS, ROWS]
    assert (found[1].ids[:, :, 0] == IDS[1][:, :, 0]).all()


@pytest.mark.parametrize("start", ["", "data: ", ": opened\n\ndata: "])
def test_a_text_like_the_columns_of_a_table_is_no_table(tmp_path: Path, start: str) -> None:
    record = {"text": "Each token, layer, expert, weight: all of it", **make.vllm_chat(0)}
    (tmp_path / "log").write_text(f"{start}{json.dumps(record)}\n\n")
    assert [piece.num_tokens for piece in pieces(tmp_path / "log")[1]] == [ROWS]


@pytest.mark.parametrize("start", ["", "data: "])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_long_text_before_the_decisions(tmp_path: Path, engine: str, indent: int | None, start: str) -> None:
    before, after = {"id": "a", "prompt": "x y " * 300_000}, make.vllm_chat(0)
    if engine == "sglang":
        before, after = {"text": "x y " * 300_000}, make.sglang(0)
    text = json.dumps({**before, **{key: value for key, value in after.items() if key not in before}}, indent=indent)
    (tmp_path / "log").write_text(f"{start if indent is None else ''}{text}\n")
    log = open_log(tmp_path / "log", **(SIZES if engine == "sglang" else {}))
    assert (log.format, [piece.num_tokens for piece in log.pieces()]) == (engine, [ROWS])
