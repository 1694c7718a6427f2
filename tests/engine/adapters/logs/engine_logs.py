"""Small logs in the layouts that engines write, made to the letter of them."""

from __future__ import annotations

import base64
import collections
import io
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save_file

LAYERS, TOP_K, EXPERTS, PROMPT, ANSWER = 4, 2, 16, 12, 9
ROWS = PROMPT + ANSWER - 1


def choices(tokens: int, seed: int = 0, layers: int = LAYERS, top_k: int = TOP_K, experts: int = EXPERTS) -> np.ndarray:
    """Ids (tokens, layers, K), no expert twice in a step."""
    rng = np.random.default_rng(seed)
    return rng.random((tokens, layers, experts)).argsort(axis=2)[:, :, :top_k]


IDS = [choices(ROWS, seed) for seed in range(3)]
"""of three requests"""
WORDS = [list(range(100 * seed, 100 * seed + PROMPT + ANSWER)) for seed in range(3)]
"""vocabulary ids of prompt and answer of each"""


def npy64(ids: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, ids.astype(np.uint8))
    return base64.b64encode(buffer.getvalue()).decode()


def raw64(ids: np.ndarray) -> str:
    return base64.b64encode(ids.astype("<i4").tobytes()).decode()


def with_dense(ids: np.ndarray) -> np.ndarray:
    """A dense layer of zeros before the others, as vLLM and SGLang fill it."""
    return np.insert(ids, 0, 0, axis=1)


def lines(file: Path, records: list[Any]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file


def vllm_chat(number: int = 0, ids: np.ndarray | None = None) -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "hello"},
        "finish_reason": "stop",
        "token_ids": WORDS[number][PROMPT:],
        "routed_experts": npy64(with_dense(IDS[number] if ids is None else ids)),
    }
    prompt = WORDS[number][:PROMPT]
    return {"id": f"chatcmpl-{number}", "model": "org/m", "choices": [choice], "prompt_token_ids": prompt}


def vllm_completion(number: int = 0) -> dict[str, Any]:
    record = vllm_chat(number)
    record["choices"][0] |= {"prompt_token_ids": record.pop("prompt_token_ids"), "text": "hello"}
    return record | {"id": f"cmpl-{number}", "usage": {"prompt_tokens": 1}}


def vllm_generate(number: int = 0) -> dict[str, Any]:
    record = vllm_chat(number)
    return {"request_id": f"gen-{number}", "choices": record["choices"]}


def run_batch(number: int = 0) -> dict[str, Any]:
    body = vllm_chat(number)
    response = {"status_code": 200, "request_id": f"vllm-batch-{number}", "body": body}
    return {"id": f"vllm-{number}", "custom_id": f"request-{number}", "response": response, "error": None}


def aborted() -> dict[str, Any]:
    record = vllm_chat(2)
    record["choices"][0] |= {"routed_experts": None, "token_ids": [], "finish_reason": "abort"}
    return record


def stream(file: Path, at_end: bool = False) -> Path:
    """Server-sent events of one request: rows with the chunks, or all with the last."""
    events = [{"id": "s", "model": "org/m", "prompt_token_ids": WORDS[0][:PROMPT], "choices": []}]
    rows = with_dense(IDS[0])
    for step in range(ANSWER):
        part = rows[:PROMPT] if step == 0 else rows[PROMPT + step - 1 : PROMPT + step]
        choice: dict[str, Any] = {"index": 0, "delta": {"content": f"w{step} "}, "token_ids": [WORDS[0][PROMPT + step]]}
        choice["routed_experts"] = None if at_end else npy64(part)
        events.append({"id": "s", "model": "org/m", "choices": [choice]})
    if at_end:
        events[-1]["choices"][0]["routed_experts"] = npy64(rows)
    file.write_text("".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")
    return file


def sglang(number: int = 0) -> dict[str, Any]:
    about = {
        "id": f"r{number}",
        "prompt_tokens": PROMPT,
        "completion_tokens": ANSWER,
        "cached_tokens": 0,
        "routed_experts": raw64(with_dense(IDS[number])),
    }
    return {"text": "hello", "output_ids": WORDS[number][PROMPT:], "meta_info": about}


def sglang_chat(number: int = 0) -> dict[str, Any]:
    return {
        "id": f"c{number}",
        "object": "chat.completion",
        "model": "deepseek",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}],
        "usage": {"prompt_tokens": PROMPT, "completion_tokens": ANSWER},
        "sglext": {
            "routed_experts": raw64(with_dense(IDS[number])),
            "input_ids": WORDS[number][:PROMPT],
            "output_ids": WORDS[number][PROMPT:],
        },
    }


def dynamo(number: int = 0) -> dict[str, Any]:
    ids = IDS[number].astype(np.uint8)
    rows = {"data": base64.b64encode(ids.tobytes()).decode(), "shape": list(ids.shape), "dtype": "uint8", "start": 0}
    return {"id": f"d{number}", "choices": [{"index": 0}], "nvext": {"engine_data": {"routed_experts": rows}}}


def passes(short: bool = True) -> list[tuple[bool, int, np.ndarray, list[int]]]:
    """(prompt, first position, ids, tokens of the last layer) of a prompt and its decode steps."""
    found = [(True, 0, IDS[0][:PROMPT], [PROMPT - 1] if short else list(range(PROMPT)))]
    return found + [(False, at, IDS[0][at : at + 1], [0]) for at in range(PROMPT, ROWS)]


def cells(short: bool = True) -> list[tuple[bool, int, int, int, int]]:
    """(prompt, position, layer, slot, expert), layer after layer of a pass."""
    return [
        (prompt, first + token, layer, slot, int(ids[token, layer, slot]))
        for prompt, first, ids, last in passes(short)
        for layer in range(LAYERS)
        for token in (range(len(ids)) if layer < LAYERS - 1 else last)
        for slot in range(TOP_K)
    ]


def bare_csv(file: Path) -> Path:
    file.write_text("".join(f"{layer},{expert}\n" for _, _, layer, _, expert in cells()))
    return file


def fork_csv(file: Path) -> Path:
    rows = [f"{'prefill' if p else 'decode'},{at},{layer},{k},{e}\n" for p, at, layer, k, e in cells()]
    file.write_text("phase,token,layer,rank,expert\n" + "".join(rows))
    return file


def route_trace(file: Path, header: bool = True, weight: str = "nan") -> Path:
    head = "# route_trace v1\n# model=/models/toy.gguf arch=toy n_layer=4 n_expert=16 n_expert_used=2\n"
    head += "".join(f"# layer={layer} expert_bytes=1802240 dense_bytes=46448640\n" for layer in range(LAYERS))
    names = "turn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped\n"
    rest = ",1,0,0" if header else ""
    rows = [f"0,{0 if p else 1},{at},{layer},{k},{e},{weight}{rest}\n" for p, at, layer, k, e in cells()]
    file.write_text(head + (names if header else "") + "".join(rows))
    return file


def layer_lines(file: Path) -> Path:
    grouped: dict[tuple[int, int, int], list[int]] = {}
    for number, (_, first, ids, last) in enumerate(passes()):
        for layer in range(LAYERS):
            for token in range(len(ids)) if layer < LAYERS - 1 else last:
                grouped[number, layer, first + token] = ids[token, layer].tolist()
    records = [
        {"layer_idx": layer, "token_idx": at, "selected_ids": ids, "gate_weights": [0.7, 0.3]}
        for (_, layer, at), ids in grouped.items()
    ]
    return lines(file, records)


def layer_binary(file: Path) -> Path:
    with file.open("wb") as out:
        for _, _, ids, last in passes():
            for layer in range(LAYERS):
                rows = ids[:, layer] if layer < LAYERS - 1 else ids[last, layer]
                out.write(struct.pack("<3i", layer, len(rows), TOP_K) + rows.astype("<i4").tobytes())
    return file


def megatron(rank: int, step: int, layer: int, ids: np.ndarray, **more: Any) -> dict[str, Any]:
    """A record of ids (tokens, K)."""
    about = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": rank}
    return about | {"num_tokens": len(ids), "topk": TOP_K, "top_indices": np.sort(ids, axis=1).tolist()} | more


def pipeline(folder: Path, stages: int = 2, data_parallel: int = 1, steps: int = 2) -> Path:
    """Traces of a pipeline: rank = stage · data_parallel + replica."""
    folder.mkdir()
    for stage in range(stages):
        for replica in range(data_parallel):
            rank, each = stage * data_parallel + replica, LAYERS // stages
            records = [
                megatron(rank, step, layer + 1, choices(ROWS, 10 * step + replica)[:, layer])
                for step in range(steps)
                for layer in range(stage * each, (stage + 1) * each)
            ]
            lines(folder / f"router_trace_rank{rank}.jsonl", records)
    return folder


def with_logits(folder: Path, kind: str, spoil: bool = False) -> tuple[Path, list[np.ndarray]]:
    """A pipeline of two stages with the logits of each rank; returns the logits (t, S, M) of each step too."""
    logits = [np.random.default_rng(step).normal(size=(ROWS, LAYERS, EXPERTS)).astype("<f2") for step in range(2)]
    folder.mkdir()
    for rank in range(2):
        data, records = b"", []
        for step, scores in enumerate(logits):
            for layer in (2 * rank, 2 * rank + 1):
                own = scores[:, layer].astype("<f4")
                ids = np.argsort(own if spoil else -own, axis=1)[:, :TOP_K]
                part = own.tobytes() if kind == "float32" else scores[:, layer].tobytes()
                if kind == "bfloat16":  # the rounded numbers are those that the router saw
                    bits = (own.view("<u4") >> 16).astype("<u2")
                    seen = (bits.astype("<u4") << 16).view("<f4")
                    scores[:, layer], part = seen, bits.tobytes()
                    ids = np.argsort(-seen, axis=1, kind="stable")[:, :TOP_K]
                more = {"logit_offset": len(data), "logit_bytes": len(part), "logit_shape": [ROWS, EXPERTS]}
                records.append(megatron(rank, step, layer + 1, ids, **more))
                data += part
        lines(folder / f"router_trace_rank{rank}.jsonl", records)
        (folder / f"logits_rank{rank}.bin").write_bytes(data)
    return folder, logits


def recorder(file: Path) -> Path:
    """Two prompts of 12 and 5 tokens, then two decode passes of both; 8 replicas stand for the first 8 experts."""
    replicas = np.tile(np.concatenate([np.arange(EXPERTS), np.arange(8)]), (LAYERS, 1))

    def record(number: int, ids: np.ndarray, positions: list[int], lengths: list[int] | None) -> dict[str, Any]:
        padded = np.full((LAYERS, len(ids), 8), -1, dtype=np.int32)
        padded[:, :, :TOP_K] = np.where(ids < 8, ids + EXPERTS, ids).transpose(1, 0, 2)
        return {
            "forward_pass_id": number,
            "rank": 0,
            "gatherer_key": "primary",
            "input_ids": [7 + position for position in positions],
            "positions": positions,
            "extend_seq_lens": lengths,
            "forward_mode": 1 if lengths else 2,
            "topk_ids_of_layer": torch.from_numpy(padded),
        }

    prompts = np.concatenate([IDS[0][:12], IDS[1][:5]])
    records = [record(0, prompts, [*range(12), *range(5)], [12, 5])]
    records += [record(1 + at, np.stack([IDS[0][12 + at], IDS[1][5 + at]]), [12 + at, 5 + at], None) for at in range(2)]
    torch.save({"records": records, "last_physical_to_logical_map": torch.from_numpy(replicas)}, file)
    return file


def recorder_stat(file: Path) -> Path:
    counts = torch.arange(3 * LAYERS * EXPERTS, dtype=torch.int32).view(3, LAYERS, EXPERTS)
    torch.save({"rank": 0, "logical_count": counts, "average_utilization_rate_over_window": None}, file)
    return file


def recorder_passes(file: Path) -> Path:
    counts = torch.ones(LAYERS, EXPERTS, dtype=torch.int32)
    records = [{"forward_pass_id": n, "rank": 0, "global_physical_count": counts * (n + 1)} for n in range(3)]
    physical = torch.arange(EXPERTS).expand(LAYERS, EXPERTS).contiguous()
    torch.save({"records": records, "last_physical_to_logical_map": physical}, file)
    return file


def slime(file: Path) -> Path:
    samples = [
        {
            "index": number,
            "prompt": "hi ",
            "response": "there",
            "tokens": WORDS[number],
            "response_length": ANSWER,
            "label": "math",
            "reward": 1.0,
            "rollout_routed_experts": torch.from_numpy(IDS[number].astype(np.int32)),
        }
        for number in range(3)
    ]
    torch.save({"rollout_id": 3, "samples": samples}, file)
    return file


def verl(file: Path) -> Path:
    """Sequences of 20, 15 and 10 tokens, padded on both sides."""
    batch = np.zeros((3, 30, LAYERS, TOP_K), dtype=np.int64)
    for number, length in enumerate((20, 15, 10)):
        batch[number, 12 - length // 2 : 12 - length // 2 + length] = IDS[number][:length]
    torch.save({"routed_experts": torch.from_numpy(batch)}, file)
    return file


SCORES = np.random.default_rng(3).normal(size=(LAYERS, ROWS, EXPERTS)).astype(np.float32)


def scores_npz(file: Path) -> Path:
    np.savez(file, **{f"layer_{layer}": SCORES[layer] for layer in range(LAYERS)})
    return file


def scores_pt(file: Path) -> Path:
    torch.save({"router_logits": tuple(torch.from_numpy(SCORES[layer]) for layer in range(LAYERS))}, file)
    return file


def scores_safetensors(file: Path) -> Path:
    save_file({f"model.layers.{layer}.mlp.gate": SCORES[layer] for layer in range(LAYERS)}, file)
    return file


def counters(file: Path) -> Path:
    rows = [collections.Counter({np.int64(e): np.int64(e + layer) for e in range(EXPERTS)}) for layer in range(LAYERS)]
    file.write_bytes(pickle.dumps(rows))
    return file


def statistics(folder: Path) -> Path:
    folder.mkdir()
    (folder / "meta_info.json").write_text(json.dumps({"num_experts": EXPERTS, "num_experts_per_token": TOP_K}))
    for rank in range(2):
        arrays = {f"{50 + i}_{layer}": np.arange(EXPERTS) + rank for i in range(3) for layer in range(LAYERS)}
        save_file(arrays, folder / f"rank{rank}.safetensors")
    return folder


def tokens_per_expert(file: Path) -> Path:
    tpe = [list(range(EXPERTS)), [1] * EXPERTS]
    return lines(file, [{"iter": 100, "block": "decoder", "layer": layer, "tpe": tpe} for layer in range(LAYERS)])


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def imatrix(file: Path) -> Path:
    names = [f"blk.{layer}.ffn_{part}_exps.weight.counts" for layer in range(LAYERS) for part in ("gate", "down")]
    values = _text("general.type") + struct.pack("<I", 8) + _text("imatrix")
    values += _text("imatrix.datasets") + struct.pack("<IIQ", 9, 8, 1) + _text("calibration.txt")
    values += _text("imatrix.chunk_count") + struct.pack("<II", 4, 7)
    infos = b"".join(
        _text(name) + struct.pack("<I2QIQ", 2, 1, EXPERTS, 0, 64 * place) for place, name in enumerate(names)
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, len(names), 3) + values + infos
    head += bytes(-len(head) % 32)
    data = b"".join(np.arange(EXPERTS, dtype="<f4").tobytes() for _ in names)
    file.write_bytes(head + data)
    return file


def flame(folder: Path, iterations: int = 1) -> Path:
    for number in range(iterations):
        inner = folder / "actives" / f"iter_{100 * (number + 1)}"
        inner.mkdir(parents=True)
        for layer in range(LAYERS):
            ids = pa.array(IDS[number][:, layer].astype(np.int16).tolist(), pa.list_(pa.int16()))
            scores = pa.array([np.float16([0.5, 0.25])] * ROWS, pa.list_(pa.float16()))
            pq.write_table(pa.table({"scores": scores, "indices": ids}), inner / f"layer_{layer + 2:02d}.parquet")
    (folder / "samples").mkdir()
    pq.write_table(pa.table({"token_id": WORDS[0][:ROWS]}), folder / "samples" / "part-0.parquet")
    return folder


LOGS: dict[str, Callable[[Path], Path]] = {
    "vllm chat": lambda d: lines(d / "log", [vllm_chat(i) for i in range(3)]),
    "vllm completions": lambda d: lines(d / "log", [vllm_completion(i) for i in range(3)]),
    "vllm generate": lambda d: lines(d / "log", [vllm_generate(i) for i in range(3)]),
    "vllm run-batch": lambda d: lines(d / "log", [run_batch(i) for i in range(3)]),
    "vllm stream": lambda d: stream(d / "log"),
    "vllm stream, rows at the end": lambda d: stream(d / "log", at_end=True),
    "sglang generate": lambda d: lines(d / "log", [sglang(i) for i in range(3)]),
    "sglang batch": lambda d: lines(d / "log", [[sglang(0), sglang(1)], [sglang(2)]]),
    "sglang chat": lambda d: lines(d / "log", [sglang_chat(i) for i in range(3)]),
    "dynamo": lambda d: lines(d / "log", [dynamo(i) for i in range(3)]),
    "megatron pipeline": lambda d: pipeline(d / "log"),
    "megatron with logits": lambda d: with_logits(d / "log", "bfloat16")[0],
    "llama.cpp bare": lambda d: bare_csv(d / "log"),
    "llama.cpp fork": lambda d: fork_csv(d / "log"),
    "route trace": lambda d: route_trace(d / "log"),
    "layer lines": lambda d: layer_lines(d / "log"),
    "layer binary": lambda d: layer_binary(d / "log"),
    "sglang recorder": lambda d: recorder(d / "log"),
    "slime": lambda d: slime(d / "log"),
    "verl": lambda d: verl(d / "log"),
    "router logits npz": lambda d: scores_npz(d / "log.npz"),
    "router logits pt": lambda d: scores_pt(d / "log"),
    "router logits safetensors": lambda d: scores_safetensors(d / "log"),
    "flame-moe": lambda d: flame(d / "log"),
}
"""every layout of choices; names of files say nothing"""
OPTIONS: dict[str, dict[str, Any]] = {
    "sglang generate": {"layers": LAYERS + 1, "top_k": TOP_K},
    "sglang batch": {"layers": LAYERS + 1, "top_k": TOP_K},
    "sglang chat": {"layers": LAYERS + 1, "top_k": TOP_K},
    "llama.cpp bare": {"top_k": TOP_K},
    **{f"router logits {kind}": {"top_k": TOP_K} for kind in ("npz", "pt", "safetensors")},
}
"""what such a log cannot say"""
SUMS: dict[str, Callable[[Path], Path]] = {
    "sglang stat": lambda d: recorder_stat(d / "log"),
    "sglang per pass": lambda d: recorder_passes(d / "log"),
    "olmoe counters": lambda d: counters(d / "log"),
    "tensorrt-llm": lambda d: statistics(d / "log"),
    "megatron tokens per expert": lambda d: tokens_per_expert(d / "log"),
    "imatrix": lambda d: imatrix(d / "log"),
}
"""every layout of sums over tokens"""
