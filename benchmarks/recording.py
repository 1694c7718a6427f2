"""What recording costs: a forward pass with ids, weights, entropy, FLOPs and the DuckDB writer, over without.

    python -m benchmarks.recording [--model dna-vision-top1]

The same shipped checkpoint on the same batches, interleaved; "recorded" is everything that
``tokenpaths trace`` adds to the forward pass per token, writer thread included. One thread, process time; "plain again"
is the same pass once more, the noise of the machine. What is looked for is smaller than that noise, so the added work
is timed by itself too ("share"): recording and shaping of a batch whose pass is over, and writing it, over the pass;
with the margin of each choice and its runner-up, which all traces have, and without.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import interleaved, ratio, report
from benchmarks.table import Row, worst
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.base.records import RunInfo, SampleRecord, TraceBatch
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.models.family import Traced, compact_decisions, compact_margins
from tokenpaths.engine.store.write.writer import RunWriter
from tokenpaths.engine.tracing.loaded_model import load_model, to_host

PAPER_SIZE = DNAConfig(
    modality="vision", width=384, heads=6, mlp_width=1536, backbone=1, steps=11, transformers=18, num_classes=1000
)


def batch_of(model: DNA, inputs: torch.Tensor) -> TraceBatch:
    """Forward, record, and shape for the writer."""
    return shaped(model, to_host(model.trace(inputs)))


def decided(made: Any, batch: int, margins: bool) -> Traced:
    """What a trace records of a pass that is over."""
    more = compact_margins(made.decisions, batch) if margins else {}
    return to_host(Traced(made.logits, *compact_decisions(made.decisions, batch), **more))


def shaped(model: DNA, recording: Traced) -> TraceBatch:
    samples, tokens = recording.module_ids.shape[:2]
    of_choices = {"margin": recording.margin, "runner_up": recording.runner_up}
    return TraceBatch(
        samples=[SampleRecord(num_tokens=tokens) for _ in range(samples)],
        module_ids=recording.module_ids.flatten(0, 1).numpy(),
        weights=recording.weights.flatten(0, 1).numpy(),
        gate_entropy=recording.gate_entropy.flatten(0, 1).numpy(),
        flops=model.token_flops(recording.module_ids).flatten().numpy(),
        **{name: value.flatten(0, 1).numpy() for name, value in of_choices.items() if value is not None},
    )


def measure(model: DNA, batch: int, repeats: int) -> dict:
    config = model.config
    size = config.image_size
    inputs = torch.randn(batch, 3, size, size)
    with tempfile.TemporaryDirectory() as folder:
        info = RunInfo(
            run_id="bench",
            model="bench",
            family="dna",
            modality="vision",
            dataset="noise",
            split="",
            num_steps=config.steps,
            num_modules=config.num_modules,
            top_k=config.top_k,
            weight_semantics={},
            config={},
            checkpoint_sha256="",
            engine_version="",
        )
        writer = RunWriter(Path(folder), replace(info, scores=True), model.module_table())
        without = RunWriter(Path(folder), replace(info, run_id="without"), model.module_table())

        def plain() -> None:
            with torch.inference_mode():
                model(inputs)

        def in_memory() -> None:
            with torch.inference_mode():
                batch_of(model, inputs)

        def with_writer() -> None:
            with torch.inference_mode():
                writer.write(batch_of(model, inputs))

        def added(write: bool, margins: bool) -> None:
            """What stands behind the pass, with the decisions of the pass before."""
            with torch.inference_mode():
                ready = shaped(model, decided(made, batch, margins))
                if write:
                    (writer if margins else without).write(ready)

        with torch.inference_mode():
            made = model(inputs)
        variants = {
            "plain": plain,
            "recorded": in_memory,
            "written": with_writer,
            "plain again": plain,
            "added": partial(added, False, True),
            "added, written": partial(added, True, True),
            "added without margins": partial(added, False, False),
            "added without margins, written": partial(added, True, False),
        }
        seconds = interleaved(variants, repeats, 2, time.process_time)
        writer.abort()
        without.abort()
    return {
        "batch": batch,
        "plain again/plain": ratio(seconds, "plain again", "plain"),
        "share": {name: ratio(seconds, name, "plain", 5) for name in variants if name.startswith("added")},
        "recorded/plain": ratio(seconds, "recorded", "plain"),
        "recorded and written/plain": ratio(seconds, "written", "plain"),
    }


def rows(document: dict[str, Any]) -> list[Row]:
    """The table's rows: the work that is added, over the plain pass, and the paired ratios as a check."""
    made = []
    for key, share, whole in (
        ("recording", "added", "recorded/plain"),
        ("recording_store", "added, written", "recorded and written/plain"),
    ):
        cells = {
            name: {k: round(1 + v, 4) if k != "repeats" else v for k, v in one["share"][share].items()}
            for name, one in document["results"].items()
        }
        pairs = [one[whole]["median"] for one in document["results"].values()]
        noise = [one["plain again/plain"]["median"] for one in document["results"].values()]
        note = (
            f"whole passes against whole passes {min(pairs):.3f} to {max(pairs):.3f}, the plain pass against itself "
            f"{min(noise):.3f} to {max(noise):.3f}"
        )
        made.append(worst(key, cells, note=note))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="dna-vision-top1")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    shipped = load_model(arguments.model, [SHIPPED_MODELS]).model
    results = {
        arguments.model: measure(shipped, 64, arguments.repeats),
        "paper size, untrained": measure(DNA(PAPER_SIZE).eval(), 16, max(5, arguments.repeats // 2)),
    }
    report("recording", "python -m benchmarks.recording", results)


if __name__ == "__main__":
    main()
