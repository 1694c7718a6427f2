"""Where the time of the engine's rows goes, by kind of operation, beside the dense twin: what is left, and in what.

    python -m benchmarks.profile_rows [--row forward one_sample …] [--write-docs]

Each case runs plainly (process time on one thread) and then under ``torch.profiler``; the time of each operation
without what it calls is summed by kind, and the shares are laid over the plain time, in parts of the dense twin's: the
dense line adds up to 1, ours to its ratio. The profiler costs something for each operation, so it makes kinds of many
small operations a little larger than they are; for the ratios themselves see ``benchmarks.speed``. *recording* is the
work that is added behind a pass, in thousandths of the pass; *dream* has no dense twin and adds up to 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.imposed import How, forward, make_inputs, training_step
from benchmarks.measure import PAGE, RESULTS, report
from benchmarks.speed import BATCH, SIZES, batch_of, models, routed

KINDS: dict[str, tuple[str, ...]] = {
    "products": ("mm", "linear_pointwise", "mkldnn_linear"),
    "attention": ("scaled_dot_product", "flash_attention"),
    "stem": ("convolution", "conv2d", "group_norm", "grid_sampler", "fft"),
    "norms, GELU": ("layer_norm", "gelu", "softmax", "log_", "entr"),
    "moving rows": (
        "index_select",
        "aten::cat",
        "copy_",
        "gather",
        "aten::index",
        "index_put",
        "index_add",
        "scatter",
        "embedding",
        "fill_",
        "zero_",
        "narrow",
        "repeat_interleave",
        "stack",
    ),
    "sorting": (
        "sort",
        "topk",
        "bincount",
        "cumsum",
        "unique",
        "arange",
        "nonzero",
        "where",
        "aten::max",
        "aten::min",
        "local_scalar",
        "aten::ne",
        "aten::eq",
        "clamp",
        "aten::full",
        "aten::lt",
        "aten::le",
    ),
    "sums": ("aten::add", "aten::mul", "aten::sum", "aten::sub", "aten::div", "aten::neg", "einsum"),
}
"""operations by a part of their name, the first kind that fits; the rest are views, allocations and glue"""
REST = "glue"
BEGIN, END = "<!-- benchmarks.profile_rows: begin -->\n", "<!-- benchmarks.profile_rows: end -->\n"
CASES: dict[str, tuple[tuple[str, How], ...]] = {
    "forward": (("vision 196 × D 384", "skewed"), ("text 1,024 × D 256", "skewed")),
    "one_sample": (
        ("vision 196 × D 384", "uniform"),
        ("shipped size, 64 × D 192", "trained"),
        ("shipped size, 64 × D 192", "uniform"),
        ("text 64 × D 512", "uniform"),
    ),
    "training": (("vision 196 × D 384", "skewed"),),
}


def kind_of(operation: str) -> str:
    """The kind of an operation by its name."""
    return next((kind for kind, parts in KINDS.items() if any(part in operation for part in parts)), REST)


def profiled(run: Callable[[], Any], times: int) -> dict[str, Any]:
    """Milliseconds of a run, their share by kind, how many operations a run has, and the five that take most."""
    run()
    seconds = []
    for _ in range(times):
        started = time.process_time()
        run()
        seconds.append(time.process_time() - started)
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        for _ in range(times):
            run()
    operations = [(one.key, one.self_cpu_time_total, one.count // times) for one in watched.key_averages()]
    whole = sum(spent for _, spent, _ in operations)
    share = dict.fromkeys([*KINDS, REST], 0.0)
    for name, spent, _ in operations:
        share[kind_of(name)] += spent / whole
    most = sorted(operations, key=lambda one: -one[1])[:5]
    return {
        "milliseconds": round(1000 * statistics.median(seconds), 2),
        "share": {kind: round(part, 4) for kind, part in share.items()},
        "operations": sum(count for name, _, count in operations if "::" in name),
        "most": {name: round(spent / whole, 4) for name, spent, _ in most},
    }


def measure(group: str, size: str, how: How) -> dict[str, Any]:
    """The dense twin and ours of one row, size and routing."""
    config, batch = SIZES[group][size], batch_of(group, size)
    model, dense = models(config)
    inputs, targets = make_inputs(config, batch)
    run = partial(forward, inputs=inputs)
    if group == "training":
        model, dense = model.train(), dense.train()
        run = partial(training_step, inputs=inputs, targets=targets)
    else:
        model.requires_grad_(False)
    model.draw([how], batch, config.num_tokens)
    times = 2 if batch == BATCH else 15
    return {
        "dense": profiled(partial(run, dense), times),
        "ours": profiled(routed(model, how, partial(run, model)), times),
    }


def measure_recording() -> dict[str, Any]:
    """What is added behind a pass of the shipped model, and the pass."""
    from benchmarks.recording import shaped
    from tokenpaths.engine.base.files import SHIPPED_MODELS
    from tokenpaths.engine.models.family import Traced, compact_decisions
    from tokenpaths.engine.tracing.loaded_model import load_model, to_host

    model = load_model("dna-vision-top1", [SHIPPED_MODELS]).model
    images = torch.randn(64, 3, model.config.image_size, model.config.image_size)
    with torch.inference_mode():
        made = model(images)
        return {
            "dense": profiled(lambda: model(images), 3),
            "ours": profiled(
                lambda: shaped(model, to_host(Traced(made.logits, *compact_decisions(made.decisions, 64)))), 15
            ),
        }


def measure_dream() -> dict[str, Any]:
    """An iteration of eight dreams at the paper's size."""
    from benchmarks.dream_speed import BATCH as DREAMS
    from benchmarks.dream_speed import SETTINGS, paper
    from tokenpaths.engine.dream.image_loop import Dream, ImageDreams
    from tokenpaths.engine.dream.objectives import Choices

    model = paper()
    torch.manual_seed(1)
    with torch.no_grad():
        ids = model.trace(torch.randn(DREAMS, 3, model.config.image_size, model.config.image_size)).module_ids.long()
    dreams = [Dream(Choices(ids[i], range(model.config.steps)), number=i) for i in range(DREAMS)]
    batch = ImageDreams(model, dreams, SETTINGS)
    return {"ours": profiled(lambda: batch.run(1), 2)}


MORE = {
    "recording": ("shipped size, batch of 64", measure_recording),
    "dream": ("paper size, batch of 8", measure_dream),
}


def table(results: dict[str, Any]) -> str:
    """Parts of the dense twin's time by kind, a line for the twin and one for ours."""
    kinds = [*KINDS, REST]
    lines = [f"| row, size, routing | ms | operations | whole | {' | '.join(kinds)} |", "|---" * (len(kinds) + 4) + "|"]
    for name, case in results.items():
        base = case.get("dense", case["ours"])["milliseconds"]
        for side in ("dense", "ours"):
            one = case.get(side)
            if one is None or (name.startswith("recording") and side == "dense"):
                continue
            factor = one["milliseconds"] / base * (1000 if name.startswith("recording") else 1)
            cells = (f"{part * factor:.2f}" for part in one["share"].values())
            label = name if side == "ours" else f"{name}: dense twin"
            lines.append(
                f"| {label} | {one['milliseconds']:,.1f} | {one['operations']:,} | {factor:.2f} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def page_part(document: dict[str, Any]) -> str:
    """What stands between the marks of ``docs/performance.md``."""
    about = f"`{document['command']}`, {document['date']}, {document['machine']}"
    return f"\n{about}:\n\n{table(document['results'])}\n\n"


def page_with(text: str, document: dict[str, Any]) -> str:
    """The page with its profile made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + page_part(document) + END + rest.split(END)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", choices=(*CASES, *MORE), help="only these; the kept result keeps the rest")
    parser.add_argument("--write-docs", action="store_true", help="write the profile into docs/performance.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kept_file = RESULTS / "profile_rows.json"
    kept = json.loads(kept_file.read_text(encoding="utf-8"))["results"] if kept_file.exists() else {}
    cases: dict[str, tuple[str, Callable[[], Any]]] = {}
    for row in (*CASES, *MORE):
        for size, how in CASES.get(row, ()):
            cases[f"{row}, {size}, {how}"] = row, partial(measure, row, size, how)
        if row in MORE:
            cases[f"{row}, {MORE[row][0]}"] = row, MORE[row][1]
    failed, document = [], None
    for name, (row, run) in cases.items():
        if arguments.row and row not in arguments.row:
            continue
        try:
            kept[name] = run()
        except Exception as error:
            failed.append(f"{name} was not profiled ({type(error).__name__}: {error}); its kept profile stays")
            print(failed[-1], file=sys.stderr, flush=True)
        results = {one: kept[one] for one in cases if one in kept}
        document = report("profile_rows", "python -m benchmarks.profile_rows", results, quiet=True)
        print(f"  {name}", file=sys.stderr, flush=True)
    assert document is not None
    if arguments.write_docs:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), document), encoding="utf-8")
    print(table(document["results"]), file=sys.stderr)
    print(json.dumps(document))
    if failed:
        sys.exit(1)


if __name__ == "__main__":
    main()
