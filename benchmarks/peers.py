"""What others take for the same: experts of Hugging Face's implementations, and recording by interpretability tools.

    python -m benchmarks.peers [--repeats 9]

*Experts*: one Mixtral-shaped block (router, top-2 of 8 experts, D 512), each implementation that the installed
transformers has, over a dense feed-forward layer of the same kind and as many active parameters; beside them our
grouped step over the same experts with the same weights, whose output must be theirs. Choices as an untrained router
makes them.

*Recording*: a two-layer Mixtral, forward pass with everything cached by TransformerLens' ``run_with_cache``, with its
filter for router logits alone, and with those kept by an nnsight trace, each over the plain pass of the same model in
the same tool's hands where it rebuilds the model, and over Hugging Face's own. What is not installed is said to be so;
any Python that has the packages may run this file (``pip install transformer-lens nnsight``). One thread, process time.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measure import days, interleaved, kept_document, ratio, report
from benchmarks.table import Row
from tokenpaths.engine.models.bank.bank import grouped_step
from tokenpaths.engine.models.bank.onednn_linear import Linear

os.environ.setdefault("HF_HUB_OFFLINE", "1")
WIDTH, HIDDEN, EXPERTS, TOP_K = 512, 1024, 8, 2
SIZES = {"batch 16 × 256": (16, 256), "one sample of 64": (1, 64)}
CLOCK = time.process_time


def no_gradients(run: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    def timed() -> None:
        with torch.inference_mode():
            run(*arguments)

    return timed


def mixtral_block(implementation: str) -> nn.Module:
    """One sparse block of transformers with random weights."""
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(
        hidden_size=WIDTH, intermediate_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K
    )
    config._experts_implementation = implementation
    torch.manual_seed(0)
    block = MixtralSparseMoeBlock(config).eval().requires_grad_(False)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.02)
    return block


class Gated(nn.Module):
    """A dense layer of Mixtral's kind with as many parameters as two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * TOP_K * HIDDEN, False), nn.Linear(TOP_K * HIDDEN, WIDTH, False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


class GatedExpert(nn.Module):
    """One of Mixtral's experts as a module that our step runs; no norm, and the residual is the caller's."""

    kind, attention = "mlp", None

    def __init__(self, gate_up: Tensor, down: Tensor) -> None:
        super().__init__()
        hidden, width = gate_up.shape[0] // 2, gate_up.shape[1]
        self.gate, self.up, self.down = Linear(width, hidden), Linear(width, hidden), Linear(hidden, width)
        with torch.no_grad():
            for layer, weight in zip((self.gate, self.up, self.down), (*gate_up.chunk(2), down), strict=True):
                layer.weight.copy_(weight)

    def finish(self, x: Tensor, mixed: None) -> Tensor:
        return self.down(nn.functional.silu(self.gate(x), inplace=True).mul_(self.up(x)))


class OurBlock(nn.Module):
    """The router and the experts of one of transformers' blocks, run by our step."""

    def __init__(self, theirs: Any) -> None:
        super().__init__()
        self.router = theirs.gate.weight
        experts = zip(theirs.experts.gate_up_proj, theirs.experts.down_proj, strict=True)
        self.bank = nn.ModuleList(GatedExpert(*weights) for weights in experts)

    def forward(self, x: Tensor) -> Tensor:
        weights, ids = nn.functional.linear(x, self.router).softmax(-1).topk(TOP_K)
        return grouped_step(self.bank, x, ids, weights / weights.sum(-1, keepdim=True), causal=True) - x


def measure_experts(size: str, repeats: int) -> dict[str, Any]:
    batch, tokens = SIZES[size]
    x = torch.randn(batch, tokens, WIDTH)
    variants = {"their dense": no_gradients(Gated().eval(), x)}
    missing = {}
    for name in ("eager", "grouped_mm", "batched_mm"):
        run = no_gradients(mixtral_block(name), x)
        if name == "batched_mm" and batch * tokens > 256:
            missing[name] = f"copies a weight for each token: {batch * tokens * TOP_K * 6.3 / 1024:.0f} GiB"
            continue
        try:
            run()
        except (NotImplementedError, RuntimeError, ValueError, KeyError) as error:
            missing[name] = f"does not run here ({type(error).__name__})"
        else:
            variants[name] = run
    theirs = mixtral_block("eager")
    mine = OurBlock(theirs).eval().requires_grad_(False)
    with torch.inference_mode():
        torch.testing.assert_close(mine(x), theirs(x), rtol=1e-4, atol=1e-4)
    variants["ours"] = no_gradients(mine, x)
    seconds = interleaved(variants, repeats, 2, CLOCK)
    made: dict[str, Any] = {n: ratio(seconds, n, "their dense") for n in variants if n != "their dense"}
    if "eager" in variants:
        made["ours over eager"] = ratio(seconds, "ours", "eager")
    return made | missing


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    return (
        MixtralForCausalLM(
            MixtralConfig(
                vocab_size=1000,
                hidden_size=WIDTH,
                intermediate_size=HIDDEN,
                num_hidden_layers=2,
                num_attention_heads=8,
                num_key_value_heads=8,
                head_dim=64,
                num_local_experts=EXPERTS,
                num_experts_per_tok=TOP_K,
            )
        )
        .eval()
        .requires_grad_(False)
    )


def plain_tokenizer(folder: str) -> Any:
    """A tokenizer that needs no download, kept in ``folder``; nothing is tokenized here."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    made = PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )
    made.save_pretrained(folder)
    mixtral().config.save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def measure_transformer_lens(repeats: int) -> dict[str, Any] | str:
    if find_spec("transformer_lens") is None:
        return "not installed: pip install transformer-lens"
    from transformer_lens.model_bridge import TransformerBridge

    model, ids = mixtral(), torch.randint(1000, (4, 256))
    with TemporaryDirectory() as folder:
        bridge = TransformerBridge.boot_transformers(
            folder, hf_model=mixtral(), device="cpu", tokenizer=plain_tokenizer(folder)
        )
    routers = lambda name: name.endswith("gate.hook_out")  # noqa: E731
    with torch.inference_mode():
        cache = bridge.run_with_cache(ids)[1]
        few = list(bridge.run_with_cache(ids, names_filter=routers)[1])
    size = sum(x.numel() * x.element_size() for x in cache.values() if isinstance(x, Tensor))
    seconds = interleaved(
        {
            "plain": no_gradients(model, ids),
            "bridge": no_gradients(bridge, ids),
            "cache": no_gradients(bridge.run_with_cache, ids),
            "routers": no_gradients(lambda: bridge.run_with_cache(ids, names_filter=routers)),
        },
        repeats,
        2,
        CLOCK,
    )
    made: dict[str, Any] = {
        "everything/bridge": ratio(seconds, "cache", "bridge"),
        "everything/plain": ratio(seconds, "cache", "plain"),
        "bytes a token": round(size / ids.numel()),
    }
    return made | ({"routers/bridge": ratio(seconds, "routers", "bridge"), "router hooks": len(few)} if few else {})


def measure_nnsight(repeats: int) -> dict[str, Any] | str:
    if find_spec("nnsight") is None:
        return "not installed: pip install nnsight"
    import nnsight

    model, ids = mixtral(), torch.randint(1000, (4, 256))
    watched = nnsight.NNsight(mixtral())

    def trace() -> None:
        kept: list[Tensor] = []
        with watched.trace(ids):
            for layer in watched.model.layers:
                kept.append(layer.mlp.gate.output[0].save())
        if len(kept) != 2:
            raise RuntimeError("nnsight kept nothing")

    seconds = interleaved({"plain": no_gradients(model, ids), "routers": no_gradients(trace)}, repeats, 2, CLOCK)
    return {"routers/plain": ratio(seconds, "routers", "plain")}


def experts_peers(document: dict[str, Any], size: str) -> dict[str, float | str]:
    """The experts' column of a row."""
    cells = document["results"]["experts"][size]
    return {
        ("ours, same block" if name == "ours" else f"Hugging Face {name}"): c if isinstance(c, str) else c["median"]
        for name, c in cells.items()
        if name != "ours over eager"
    }


def recording_peers(document: dict[str, Any]) -> dict[str, float | str]:
    """The recorders' column of a row."""
    lens, sight = document["results"]["TransformerLens"], document["results"]["nnsight"]
    made: dict[str, float | str] = {}
    if isinstance(lens, str):
        made["TransformerLens"] = lens
    else:
        of = _kept_on(document, "TransformerLens")
        whole = f"TransformerLens run_with_cache ({lens['bytes a token']:,} bytes a token{of})"
        made[whole] = lens["everything/bridge"]["median"]
        if "routers/bridge" in lens:
            made["TransformerLens, routers alone"] = lens["routers/bridge"]["median"]
    of = _kept_on(document, "nnsight")
    made[f"nnsight, routers alone{of}"] = sight if isinstance(sight, str) else sight["routers/plain"]["median"]
    return made


def _kept_on(document: dict[str, Any], peer: str) -> str:
    """The day of a figure that is older than the others."""
    day = days((document.get("dates") or {}).get(peer))
    return "" if day in ("", document["date"]) else f", {day}"


def rows(document: dict[str, Any]) -> list[Row]:
    """No promise of ours; ``benchmarks.bench`` puts these figures beside others' rows."""
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {
        "experts": {size: measure_experts(size, arguments.repeats) for size in SIZES},
        "TransformerLens": guarded(partial(measure_transformer_lens, arguments.repeats)),
        "nnsight": guarded(partial(measure_nnsight, arguments.repeats)),
    }
    report("peers", f"python -m benchmarks.peers --repeats {arguments.repeats}", with_kept(results))


def with_kept(results: dict[str, Any]) -> dict[str, Any]:
    """``results``, with the figures of a peer that does not run here as they were measured last."""
    kept = kept_document("peers")["results"]
    return {
        name: kept[name] if isinstance(now, str) and isinstance(kept.get(name), dict) else now
        for name, now in results.items()
    }


def guarded(measure: Callable[[], Any]) -> Any:
    """A peer that does not run with what is installed costs its own figure and no other."""
    try:
        return measure()
    except Exception as error:
        return f"installed, but does not run here ({type(error).__name__}: {str(error)[:100]})"


if __name__ == "__main__":
    main()
