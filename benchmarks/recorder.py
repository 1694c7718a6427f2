"""What recording costs a training: steps inside ``tokenpaths.record`` over steps of an equal model without.

    python -m benchmarks.recorder [--repeats 12]

Three models with the same weights take the same steps (forward, loss, backward, AdamW) on the same batches, a few
steps each in turn; each turn gives a ratio to the plain one. The third is plain too: its ratio is what the machine does
by itself. ``wall`` is time on the clock; ``cpu`` is processor time of the whole process, its writer thread included.
Both carry the noise of the machine, which may be larger than what is looked for; so the time inside the hooks
(processor time of the thread that trains) and the rest of the process (the thread that writes) are counted too, as
shares of the plain step. Sealing comes once, at the end of a run.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.measure import report
from tokenpaths.engine.adapters.recorder.record_options import RecordOptions
from tokenpaths.engine.adapters.recorder.recorder import Recorder
from tokenpaths.engine.adapters.recorder.routers.router_plan import Read
from tokenpaths.engine.families.presets import moe_transformer
from tokenpaths.engine.models.dna import DNA

LAYERS, EXPERTS, TOP_K, WIDTH, VOCABULARY, LENGTH = 4, 8, 2, 256, 512, 128
STEPS = 2
"""of one model before the next has its turn"""


class Experts(nn.Module):
    """Top-k of a softmax over a Linear, a list of perceptrons: what most people write first."""

    def __init__(self) -> None:
        super().__init__()
        self.top_k = TOP_K
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(EXPERTS)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, WIDTH)
        weights, ids = self.gate(rows).softmax(dim=-1).topk(self.top_k, dim=-1)
        out = torch.zeros_like(rows)
        for expert, module in enumerate(self.experts):
            row, slot = (ids == expert).nonzero(as_tuple=True)
            out = out.index_add(0, row, module(rows[row]) * weights[row, slot, None])
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.moe = Experts()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.moe(self.norms[1](x))


class Plain(nn.Module):
    """A causal language model in plain torch."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def own() -> tuple[nn.Module, dict[str, Any]]:
    """The mixture of experts of ``tokenpaths.engine.families.presets``; its routers score the experts of all layers."""
    config = moe_transformer(
        "text",
        layers=LAYERS,
        experts=EXPERTS,
        top_k=TOP_K,
        width=WIDTH,
        heads=4,
        mlp_width=2 * WIDTH,
        vocab_size=VOCABULARY,
        context=LENGTH,
    )
    return DNA(config), {"num_experts": EXPERTS}


def reader(model: nn.Module) -> Read:
    """The decisions of ``own``: the experts of the router's own layer, weights divided by their sum."""
    first = {id(router): EXPERTS * step for step, router in enumerate(model.routers)}  # type: ignore[arg-type, union-attr]

    def read(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> tuple[Tensor, Tensor]:
        start = first[id(module)]
        weights, ids = output[:, start : start + EXPERTS].softmax(dim=-1).topk(TOP_K, dim=-1)
        return ids, weights / weights.sum(dim=-1, keepdim=True)

    return read


def trainer(model: nn.Module, batches: list[Tensor]) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def steps() -> None:
        for ids in batches:
            out = model(ids)
            logits = getattr(out, "logits", out)
            F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimiser.step()
            optimiser.zero_grad()

    return steps


class Watched(Recorder):
    """A recorder that adds up the processor time of its hooks."""

    spent = 0.0

    def _clocked(self, hook: Callable[..., None]) -> Callable[..., None]:
        def clocked(*arguments: Any) -> None:
            started = time.thread_time()
            hook(*arguments)
            self.spent += time.thread_time() - started

        return clocked

    def _hook_of(self, router: Any) -> Callable[..., None]:
        return self._clocked(super()._hook_of(router))

    def _before(self, *arguments: Any) -> None:
        self._clocked(super()._before)(*arguments)

    def _after(self, *arguments: Any) -> None:
        self._clocked(super()._after)(*arguments)


def timed(run: Callable[[], None]) -> tuple[float, float, float]:
    """Seconds on the clock, of the processor for the whole process, and for this thread."""
    clocks = (time.perf_counter, time.process_time, time.thread_time)
    started = [clock() for clock in clocks]
    run()
    wall, cpu, thread = (clock() - start for clock, start in zip(clocks, started, strict=True))
    return wall, cpu, thread


def spread(ratios: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"median": round(middle, 4), "q25": round(low, 4), "q75": round(high, 4), "pairs": len(ratios)}


def measure(model: nn.Module, options: dict[str, Any], batch: int, repeats: int, device: str) -> dict[str, Any]:
    plain, again, watched = (copy.deepcopy(model).to(device) for _ in range(3))
    batches = [torch.randint(0, VOCABULARY, (batch, LENGTH), device=device) for _ in range(STEPS)]
    if options:
        options = options | {"read": reader(watched)}
    with tempfile.TemporaryDirectory() as folder:
        recorder = Watched(watched, RecordOptions(run="bench", runs_dir=Path(folder), **options))
        models = {"plain": plain, "plain again": again, "recorded": watched}
        variants = {name: trainer(variant, batches) for name, variant in models.items()}
        with recorder:
            for run in variants.values():
                run()
            recorder.spent = 0.0
            pairs = []
            for turn in range(repeats):
                # Who goes first changes, so that a machine that slows down favours nobody.
                order = [*variants][turn % 3 :] + [*variants][: turn % 3]
                pairs.append({name: timed(variants[name]) for name in order})
            ending = time.perf_counter()
        sealing = time.perf_counter() - ending
        size = recorder.file.stat().st_size  # type: ignore[union-attr]
    plain_thread = sum(p["plain"][2] for p in pairs)
    beside = sum(times[1] - times[2] for p in pairs for times in p.values())
    return {
        "tokens a step": batch * LENGTH,
        "parameters": sum(p.numel() for p in plain.parameters()),
        "ms a step, plain": round(1000 * statistics.median(p["plain"][0] for p in pairs) / STEPS, 1),
        **{
            f"{clock}, {name}/plain": spread([p[name][place] / p["plain"][place] for p in pairs])
            for place, clock in enumerate(("wall", "cpu"))
            for name in ("recorded", "plain again")
        },
        "hooks / plain step, processor time": round(recorder.spent / plain_thread, 5),
        "other threads (writer) / plain step, processor time": round(beside / plain_thread, 5),
        "tokens recorded": recorder.num_tokens,
        "sealing, s": round(sealing, 3),
        "bytes a token": round(size / recorder.num_tokens, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    batch = 64 if arguments.device.startswith("cuda") else 8
    results = {
        "setting": f"{LAYERS} layers × {EXPERTS} experts, top {TOP_K}, width {WIDTH}, {STEPS} steps in turn",
        "plain torch": measure(Plain(), {}, batch, arguments.repeats, arguments.device),
        "tokenpaths.engine.families.presets.moe_transformer": measure(
            *own(), batch, arguments.repeats, arguments.device
        ),
    }
    report("recorder", "python -m benchmarks.recorder", results)


if __name__ == "__main__":
    main()
