"""What recording costs: a forward pass with ids, weights, entropy, FLOPs and the DuckDB writer, over without.

    python -m benchmarks.recording [--model dna-vision-top1]

The same shipped checkpoint on the same batches, interleaved; "recorded" is everything that
``tokenpaths trace`` adds to the forward pass per token, writer thread included.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.measure import interleaved, ratio, report
from engine.disk import SHIPPED_MODELS
from engine.models.dna import DNA, DNAConfig
from engine.record import to_host
from engine.store import RunWriter
from engine.trace import RunInfo, SampleRecord, TraceBatch
from engine.tracing import load_model

PAPER_SIZE = DNAConfig(
    modality="vision", width=384, heads=6, mlp_width=1536, backbone=1, steps=11, transformers=18, num_classes=1000
)


def batch_of(model: DNA, inputs: torch.Tensor) -> TraceBatch:
    """Forward, record, and shape for the writer."""
    recording = to_host(model.trace(inputs))
    tokens = recording.module_ids.shape[1]
    return TraceBatch(
        samples=[SampleRecord(num_tokens=tokens) for _ in inputs],
        module_ids=recording.module_ids.flatten(0, 1).numpy(),
        weights=recording.weights.flatten(0, 1).numpy(),
        gate_entropy=recording.gate_entropy.flatten(0, 1).numpy(),
        flops=model.token_flops(recording.module_ids).flatten().numpy(),
    )


def measure(model: DNA, batch: int, repeats: int) -> dict:
    config = model.config
    size = config.image_size
    inputs = torch.randn(batch, 3, size, size)
    with tempfile.TemporaryDirectory() as folder:
        info = RunInfo(
            run_id="bench", model="bench", family="dna", modality="vision", dataset="noise", split="",
            num_steps=config.steps, num_modules=config.num_modules, top_k=config.top_k, weight_semantics={},
            config={}, checkpoint_sha256="", engine_version="",
        )  # fmt: skip
        writer = RunWriter(Path(folder), info, model.module_table())

        def plain() -> None:
            with torch.inference_mode():
                model(inputs)

        def in_memory() -> None:
            with torch.inference_mode():
                batch_of(model, inputs)

        def with_writer() -> None:
            with torch.inference_mode():
                writer.write(batch_of(model, inputs))

        seconds = interleaved({"plain": plain, "recorded": in_memory, "written": with_writer}, repeats, warmup=2)
        writer.abort()
    return {
        "batch": batch,
        "recorded/plain": ratio(seconds, "recorded", "plain"),
        "recorded and written/plain": ratio(seconds, "written", "plain"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dna-vision-top1")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shipped = load_model(arguments.model, [SHIPPED_MODELS]).model
    results = {
        arguments.model: measure(shipped, 64, arguments.repeats),
        "paper size, untrained": measure(DNA(PAPER_SIZE).eval(), 16, max(5, arguments.repeats // 2)),
    }
    report("recording", "python -m benchmarks.recording", results)


if __name__ == "__main__":
    main()
