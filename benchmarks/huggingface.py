"""Whether what is recorded of each Hugging Face architecture is what the model did, and what recording costs.

    python -m benchmarks.huggingface [--only mixtral,larger] [--repeats 5] [--no-times]

A tiny random checkpoint of each is saved with save_pretrained and opened from disk as a user would. Its decisions are
compared with what its experts were called with (or with its routing written out by hand), its weights with the same,
and each block's output with the one put together token by token from the recorded ids and weights. The same decisions
are written to a run file, which keeps a weight in 8 bits, and compared once more as they are read back from it. Then
the same batch runs in turn with and without recording. Writes the table into docs/adapters.md.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import RESULTS, interleaved, ratio, report
from tokenpaths.engine.adapters.huggingface.gate_hooks import GateRecorder, Recorded
from tokenpaths.engine.adapters.huggingface.gates import common_semantics
from tokenpaths.engine.adapters.huggingface.inspection import NOT_TRACED, find_model
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.base.records import RunInfo, SampleRecord, TraceBatch, engine_version
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.write.writer import RunWriter
from tokenpaths.engine.tracing.traceable import ModelInput

KEPT = RESULTS / "huggingface.json"
PAGE = RESULTS.parent.parent / "docs" / "adapters.md"
BEGIN, END = "<!-- benchmarks.huggingface: begin -->", "<!-- benchmarks.huggingface: end -->"
WINDOWS, LENGTH = 2, 48
LARGER = {
    "mixtral": dict(hidden_size=512, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=8, head_dim=64),
    "qwen3_moe": dict(
        hidden_size=512,
        moe_intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        head_dim=64,
        num_experts=64,
        num_experts_per_tok=8,
    ),
    "deepseek_v3": dict(
        hidden_size=512,
        moe_intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=8,
        n_routed_experts=64,
        num_experts_per_tok=8,
    ),
}
"""the same measurement where a layer has some work to do"""


def batch_of(loaded: HuggingFaceModel, windows: int, length: int) -> tuple[torch.Tensor, ...]:
    """Inputs of random tokens, the last window half as long as the others: mask, kept positions and targets with it."""
    rows = loaded.model.get_input_embeddings().weight.shape[0]
    inputs = torch.randint(3, rows, (windows, length), generator=torch.Generator().manual_seed(0))
    attended = torch.ones_like(inputs)
    attended[-1, length // 2 :] = 0
    targets = torch.full_like(inputs, -100)
    targets[:, :-1] = torch.where(attended[:, 1:].bool(), inputs[:, 1:], -100)
    return inputs * attended, attended, attended.bool(), targets


def check(loaded: HuggingFaceModel) -> dict[str, Any]:
    """Recorded beside what the model did, over all gates of one padded batch."""
    from tests.support.naive_routing import block_from_record, own_decisions, watch

    inputs, attended, keep, targets = batch_of(loaded, 2, 12)
    batch = ModelInput(inputs, targets, keep)
    traced = loaded.run(batch)
    recorded = Recorded(*(batch.real_rows(part) for part in (traced.module_ids, traced.weights, traced.gate_entropy)))
    seen = watch(loaded.gates, lambda: loaded.model(input_ids=inputs, attention_mask=attended, use_cache=False))
    kept = keep.flatten().numpy()
    same, off, block = [], 0.0, 0.0
    for step, (gate, what) in enumerate(zip(loaded.gates, seen, strict=True)):
        ids, weights = own_decisions(gate, what)
        ours, our_weights = recorded.ids[:, step].numpy(), recorded.weights[:, step].numpy()
        same.append(np.mean(ours == ids[kept]))
        off = max(off, float(np.abs(our_weights * gate.divide - weights[kept]).max()))
        if type(gate.block).__name__ != "JetMoeMoA":  # attention lies between its two halves
            made, real = block_from_record(gate, what, ours, our_weights, kept)
            block = max(block, float(np.abs(made - real).max() / np.abs(real).max()))
    ids, weights = read_back(loaded, recorded)
    stored = {
        "stored_decisions_equal": float(np.mean(ids == recorded.ids.numpy())),
        "stored_weights_off": float(np.abs(weights - recorded.weights.numpy()).max()),
    }
    return stored | {
        "decisions_equal": float(np.mean(same)),
        "weights_off": off,
        "block_off": block,
        "decisions": int(kept.sum()) * len(loaded.gates) * loaded.gates[0].top_k,
    }


def read_back(loaded: HuggingFaceModel, recorded: Recorded) -> tuple[np.ndarray, np.ndarray]:
    """Ids and weights (n, S, K) as a sealed run file holds them."""
    n = len(recorded.ids)
    batch = TraceBatch(
        samples=[SampleRecord(n)],
        module_ids=recorded.ids.numpy(),
        weights=recorded.weights.numpy(),
        gate_entropy=recorded.gate_entropy.numpy(),
        flops=np.zeros(n, dtype=np.float32),
    )
    with tempfile.TemporaryDirectory() as folder:
        info = RunInfo(
            run_id="checked", dataset="random", split="", engine_version=engine_version(), **loaded.run_fields()
        )
        with RunWriter(Path(folder), info, loaded.modules) as writer:
            writer.write(batch)
            file = writer.seal()
        with Run.open(file) as run:
            tokens = run.sample(0)["tokens"]
    return np.array([t["ribbon"] for t in tokens]), np.array([t["weights"] for t in tokens])


def cost(loaded: HuggingFaceModel, windows: int, length: int, repeats: int) -> dict[str, Any]:
    """Seconds of a forward pass with and without recording, in turn."""
    inputs, attended, keep, _ = batch_of(loaded, windows, length)

    def plain() -> None:
        with torch.inference_mode():
            loaded.model(input_ids=inputs, attention_mask=attended, use_cache=False)

    def recorded() -> None:
        with torch.inference_mode(), GateRecorder(loaded.gates) as recorder:
            loaded.model(input_ids=inputs, attention_mask=attended, use_cache=False)
            recorder.take(keep.flatten())

    variants: dict[str, Callable[[], Any]] = {"plain": plain, "recorded": recorded}
    seconds = interleaved(variants, repeats, warmup=1)
    tokens = int(keep.sum())
    per_token = {name: round(1e6 * float(np.median(took)) / tokens, 2) for name, took in seconds.items()}
    return {"microseconds_per_token": per_token, "recorded/plain": ratio(seconds, "recorded", "plain")}


def opened(model_type: str, **changes: Any) -> HuggingFaceModel:
    from tests.support.tiny_huggingface import save_tiny

    with tempfile.TemporaryDirectory() as folder:
        return load(find_model(f"hf:{save_tiny(Path(folder) / model_type, model_type, **changes)}"), "cpu")


def measure(model_type: str, repeats: int, times: bool) -> dict[str, Any]:
    loaded = opened(model_type)
    means = common_semantics(loaded.gates)
    about = {
        "class": type(loaded.model).__name__,
        "gate": type(loaded.gates[-1].module).__name__,
        "score_function": means.score_function,
        "order": means.order,
        "renormalised": means.renormalised,
        "bias": means.bias,
        "groups": means.groups is not None,
        "scaled": means.scale != 1,
        "shared_experts": means.shared_experts,
        "note": means.note,
    }
    return about | check(loaded) | (cost(loaded, WINDOWS, LENGTH, repeats) if times else {})


def page(document: dict[str, Any]) -> str:
    """The table of ``docs/adapters.md``, from the kept document."""
    results = document["results"]
    heads = (
        "architecture",
        "gate",
        "what a weight is",
        "decisions equal",
        "weights off by",
        "block off by",
        "as read back from the run",
        "recorded / plain",
    )
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, row in results["architectures"].items():
        equal = f"{100 * row['decisions_equal']:.0f} % of {row['decisions']}"
        stored = f"{100 * row['stored_decisions_equal']:.0f} %; {row['stored_weights_off']:.4f}"
        cells = (
            name,
            row["gate"],
            _meaning(row),
            equal,
            f"{row['weights_off']:.0e}",
            f"{row['block_off']:.0e}",
            stored,
            _spread(row["recorded/plain"], 2),
        )
        lines.append(f"| {' | '.join(cells)} |")
    if results["larger"]:
        lines += [
            "",
            "The models above have three layers of width 32: recording is all that one sees. Where a layer "
            "has some work to do (six layers of width 512):",
            "",
        ]
        lines += ["| architecture | experts | µs per token, plain | recorded / plain |", "|---|---|---|---|"]
        for name, row in results["larger"].items():
            cells = (
                name,
                f"{row['top_k']} of {row['num_experts']}",
                f"{row['microseconds_per_token']['plain']:.0f}",
                _spread(row["recorded/plain"], 3),
            )
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Opened and traced like the others, but not checked here:", "", "| architecture | why |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in results["unchecked"].items()]
    lines += ["", "Not traced:", "", "| architecture | why |", "|---|---|"]
    lines += [f"| {name} | {reason} |" for name, reason in results["not_traced"].items()]
    lines += ["", f"Measured {document['date']} on {document['machine']}: `{document['command']}`."]
    return "\n".join(lines)


def _spread(took: dict[str, float], digits: int) -> str:
    return f"{took['median']:.{digits}f} ({took['q25']:.{digits}f}–{took['q75']:.{digits}f})"


def _meaning(row: dict[str, Any]) -> str:
    extras = [
        word
        for word, there in (
            ("renormalised", row["renormalised"]),
            ("selection bias", row["bias"]),
            ("groups", row["groups"]),
            ("scaled", row["scaled"]),
            ("shared experts", row["shared_experts"]),
        )
        if there
    ]
    order = row["order"] if row["order"] != "unknown" else "by its own rule (see the run's note)"
    return "; ".join([order, *extras])


def write_page(document: dict[str, Any]) -> None:
    """Put the table between its marks; the rest of the page is left alone."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    write_atomically(PAGE, f"{before}{BEGIN}\n{page(document)}\n{END}{rest.split(END)[1]}".encode())


def main() -> None:
    from tests.support.tiny_huggingface import ARCHITECTURES, UNCHECKED

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="architectures, by comma, or larger: what else was kept stays")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-times", action="store_true", help="compare anew, keep the times of before")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    chosen = arguments.only.split(",") if arguments.only else [*sorted(ARCHITECTURES), "larger"]
    before = json.loads(KEPT.read_text(encoding="utf-8"))["results"] if KEPT.is_file() else {}
    before = before if arguments.only or arguments.no_times else {}
    known = before.get("architectures", {})
    rows, larger = {}, {}
    for name in chosen:
        if name == "larger":
            larger = {} if arguments.no_times else measure_larger(2 * arguments.repeats)
            continue
        measured = measure(name, arguments.repeats, not arguments.no_times)
        rows[name] = row = (known.get(name, {}) if arguments.no_times else {}) | measured
        print(
            f"{name:24} decisions equal {row['decisions_equal']:.4f}, weights off by {row['weights_off']:.1e}, "
            f"block off by {row['block_off']:.1e}, read back off by {row['stored_weights_off']:.4f}, "
            f"recorded/plain {row['recorded/plain']['median']}",
            flush=True,
        )
    rows = known | rows
    results = {
        "architectures": {name: rows[name] for name in sorted(rows)},
        "larger": before.get("larger", {}) | larger,
        "not_traced": NOT_TRACED,
        "unchecked": UNCHECKED,
    }
    quiet = bool(arguments.only or arguments.no_times)
    write_page(report("huggingface", "python -m benchmarks.huggingface", results, quiet=quiet))


def measure_larger(repeats: int) -> dict[str, Any]:
    found = {}
    for name, changes in LARGER.items():
        loaded = opened(name, **changes)
        found[name] = {
            "num_experts": loaded.gates[0].num_experts,
            "top_k": loaded.gates[0].top_k,
            "gates": len(loaded.gates),
        } | cost(loaded, 4, 128, repeats)
    return found


if __name__ == "__main__":
    main()
