"""Everything about speed that needs a GPU, in about ten minutes: equality with the CPU, steps, tracing, dreams, memory.

    make bench-gpu     or     python -m benchmarks.gpu [--dry-run] [--only PART] [--to FOLDER]

Each part runs in a process of its own with twice the time that it should take; one that fails costs only its own
figures. What was measured goes to ``benchmarks/results/gpu.json`` and into the table of ``docs/performance_gpu.md``;
the rows ``gpu_forward`` and ``gpu_training`` also to ``device.json``, where ``make bench`` reads them. Without a GPU it
says so and ends. ``--dry-run`` runs every part on the CPU at tiny sizes, into ``build/gpu_dry_run``: its figures mean
nothing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import torch

from benchmarks import device as device_rows
from benchmarks.bench import ROOT, Part, run, say
from benchmarks.device import measure, peak, waited
from benchmarks.dream_speed import SETTINGS, paper, shipped
from benchmarks.measure import PAGE, RESULTS, interleaved, kept_document, report
from tokenpaths.engine.base.device import mixed_precision
from tokenpaths.engine.base.model_folders import models_folders
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams
from tokenpaths.engine.dream.objectives import Choices
from tokenpaths.engine.models.dna import DNAConfig
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import TraceProgress, trace_samples

DRY = ROOT / "build" / "gpu_dry_run"
COMMAND = "make bench-gpu"
PATIENCE = 2
TESTS = "tests/engine/models/bank/test_on_gpu.py"
TRACED = {"dna-text-top1": "bundled:texts", "dna-vision-top1": "bundled:photos"}
TINY = {
    "vision 16 × D 32": (
        DNAConfig(
            modality="vision",
            width=32,
            heads=2,
            mlp_width=64,
            backbone=1,
            steps=2,
            transformers=12,
            image_size=32,
            patch_size=8,
            num_classes=1000,
        ),
        2,
    ),
    "text 32 × D 32": (
        DNAConfig(
            modality="text",
            width=32,
            heads=2,
            mlp_width=64,
            backbone=1,
            steps=2,
            transformers=8,
            vocab_size=1000,
            context=32,
        ),
        2,
    ),
}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def each(names: Iterable[str], one: Callable[[str], Any]) -> dict[str, Any]:
    """``one`` of every name; what fails is its own sentence, most often of memory."""
    made: dict[str, Any] = {}
    for name in names:
        try:
            made[name] = one(name)
            say(f"  {name}")
        except Exception as error:
            traceback.print_exc()
            made[name] = {"failed": f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return made


def equality(dry: bool, folder: Path) -> dict[str, Any]:
    """The tests of equality with the CPU, by pytest."""
    with tempfile.TemporaryDirectory() as temporary:
        found = Path(temporary) / "tests.xml"
        wanted = ["-m", "gpu", "-k", "not cuda" if dry else "cuda", "--junitxml", str(found), "-p", "no:cacheprovider"]
        ended = subprocess.run([sys.executable, "-m", "pytest", TESTS, *wanted], cwd=ROOT, stdout=sys.stderr).returncode
        if not found.is_file():
            raise RuntimeError(f"pytest ended with code {ended} and ran no test")
        cases = list(ElementTree.parse(found).iter("testcase"))
    failed = [
        case.get("name", "") for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - len(failed) - skipped, "skipped": skipped, "failed": failed}


def bf16_rows(dry: bool, folder: Path) -> dict[str, Any]:
    """The rows of the table of speed: bfloat16, no host synchronisation."""
    sizes = TINY if dry else device_rows.SIZES
    if not dry and not device_rows.measurable():
        return {"failed": device_rows.NOT_THIS_GPU}
    place, repeats = ("cpu", 2) if dry else ("cuda", 15)
    made = each(sizes, lambda size: measure(*sizes[size], repeats, device=place))
    whole = {size: cell for size, cell in made.items() if "failed" not in cell}
    if len(whole) == len(sizes):
        report("device", "python -m benchmarks.device", {"sizes": whole}, quiet=True, folder=folder)
    return made


def steps(dry: bool, folder: Path) -> dict[str, Any]:
    """Forward and training in float32 at a quarter of the batch."""
    sizes = TINY if dry else device_rows.SIZES
    place, repeats = ("cpu", 2) if dry else ("cuda", 9)

    def one(size: str) -> dict[str, Any]:
        config, batch = sizes[size]
        return measure(config, max(1, batch // 4), repeats, torch.float32, place, "grouped")

    return each(sizes, one)


def tracing(dry: bool, folder: Path) -> dict[str, Any]:
    """Tokens a second of ``tokenpaths trace`` on the bundled samples, the file's sealing left out."""
    places = {"device": "cpu" if dry else "cuda", "cpu": "cpu"}

    def one(name: str) -> dict[str, Any]:
        return {where: rate(name, place, 1 if dry else 4, 2 if dry else None) for where, place in places.items()}

    return each(TRACED, one)


def rate(name: str, place: str, turns: int, most: int | None) -> dict[str, Any]:
    """The median of several traces; the first of several warms up."""
    loaded = load_model(name, models_folders(), place)
    samples = list(open_dataset(TRACED[name], loaded.modality))[:most]
    rates, tokens = [], 0
    for _ in range(turns):
        passes: list[tuple[float, int]] = []

        def note(progress: TraceProgress, passes: list[tuple[float, int]] = passes) -> None:
            if not progress.sealing:
                passes.append((time.perf_counter(), progress.tokens))

        with tempfile.TemporaryDirectory() as runs:
            started = time.perf_counter()
            trace_samples(loaded, samples, Path(runs), on_progress=note, dataset=TRACED[name], twin=False)
        ended, tokens = passes[-1]
        rates.append(tokens / (ended - started))
    return {"tokens_per_second": round(statistics.median(rates[1:] or rates)), "tokens": tokens}


def dreams(dry: bool, folder: Path) -> dict[str, Any]:
    """Milliseconds an image and iteration of the paper's size at 224×224, as in ``benchmarks.dream_speed``."""
    place, repeats, batches = ("cpu", 2, (1, 2)) if dry else ("cuda", 10, (8, 32))
    model = (shipped() if dry else paper()).to(place)
    config = model.config

    def one(name: str) -> dict[str, Any]:
        batch, low = int(name.split()[2].rstrip(",")), name.endswith("bf16")
        torch.manual_seed(1)
        with torch.no_grad():
            noise = torch.randn(batch, 3, config.image_size, config.image_size, device=place)
            ids = model.trace(noise).module_ids.long()
        wanted = [Dream(Choices(ids[i], range(config.steps)), number=i) for i in range(batch)]
        at_work = ImageDreams(model, wanted, SETTINGS)
        climb = waited(at_work.run, place, 1)
        with mixed_precision(torch.device(place), low):
            seconds = interleaved({"dream": climb}, repeats, 1 if dry else 3)["dream"]
            most = peak(climb, place)
        low_ms, middle, high_ms = (1000 * t / batch for t in statistics.quantiles(seconds, n=4, method="inclusive"))
        found = {"median": round(middle, 2), "q25": round(low_ms, 2), "q75": round(high_ms, 2), "repeats": repeats}
        return {"milliseconds": found, "peak_mib": most}

    return each([f"batch of {batch}, {precision}" for batch in batches for precision in PRECISIONS], one)


GROUPS: dict[str, tuple[Callable[[bool, Path], dict[str, Any]], float]] = {
    "equality": (equality, 1),
    "bf16_rows": (bf16_rows, 1.5),
    "steps": (steps, 2),
    "tracing": (tracing, 2),
    "dreams": (dreams, 1.5),
}
"""what to measure, and its minutes on a GPU of a workstation"""


def cell(found: dict[str, Any], columns: Callable[[dict[str, Any]], list[str]], width: int) -> str:
    """The cells of a line, or why there are none."""
    if "failed" in found:
        return " | ".join([f"failed: {found['failed'].replace('|', '/')}", *[""] * (width - 1)])
    return " | ".join(columns(found))


def of_step(found: dict[str, Any]) -> list[str]:
    """Columns of a forward pass or a training step."""
    peaks = found["peak_mib"]
    memory = [f"{peaks[name]:,}" if peaks[name] is not None else "–" for name in ("ours", "dense")]
    ratio = f"{found['median']:.3f} ({found['q25']:.3f}–{found['q75']:.3f})"
    return [ratio, f"{found['milliseconds']:,.2f}", f"{found['tokens_per_second']:,}", *memory]


def of_trace(found: dict[str, Any]) -> list[str]:
    """Columns of a trace."""
    there, here = (found[where]["tokens_per_second"] for where in ("device", "cpu"))
    return [f"{there:,}", f"{here:,}", f"{there / here:.1f}", f"{found['device']['tokens']:,}"]


def of_dream(found: dict[str, Any]) -> list[str]:
    """Columns of a dream."""
    ms = found["milliseconds"]
    most = found["peak_mib"]
    return [f"{ms['median']:.2f} ({ms['q25']:.2f}–{ms['q75']:.2f})", f"{most:,}" if most is not None else "–"]


def table(results: dict[str, Any]) -> str:
    """What was measured, as Markdown; a part that is not there says so."""
    lines: list[str] = ["## Equal to the CPU", ""]
    if (tests := results.get("equality")) is None:
        lines.append("Not measured.")
    else:
        failed = f", failed: {', '.join(tests['failed'])}" if tests["failed"] else ""
        lines.append(f"{tests['passed']} tests passed, {tests['skipped']} were skipped{failed}.")
    step = ["step", "routed / dense", "ms", "tokens/s", "peak MiB", "peak MiB, dense"]
    for title, group, head, columns in (
        ("Routed steps in bfloat16, no host synchronisation", "bf16_rows", step, of_step),
        ("Routed steps in float32, a quarter of the batch", "steps", step, of_step),
        (
            "Tracing the bundled samples",
            "tracing",
            ["model", "GPU, tokens/s", "CPU, tokens/s", "×", "tokens"],
            of_trace,
        ),
        ("Dreams, ms an image and iteration", "dreams", ["batch", "ms", "peak MiB"], of_dream),
    ):
        lines += ["", f"## {title}", ""]
        found = results.get(group)
        if found is None or "failed" in found:
            lines.append(f"Not measured{': ' + found['failed'] if found else ''}.")
            continue
        if columns is of_step:
            found = {
                f"{size}, {what}": one if "failed" in one else one[what]
                for size, one in found.items()
                for what in ("forward", "training")
            }
        lines += [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
        lines += [f"| {name} | {cell(one, columns, len(head) - 1)} |" for name, one in found.items()]
    return "\n".join(lines) + "\n"


def page(document: dict[str, Any]) -> str:
    """``docs/performance_gpu.md``."""
    head = """# Speed on a GPU

`make bench-gpu` measures this in about ten minutes on one GPU, and writes this page. Without a GPU it says so;
`make bench-gpu DRY_RUN=1` tries every part on the CPU at tiny sizes. Routing is imposed and skewed; a ratio is ours
over the dense twin's, from runs that take turns, with quartiles; peak memory holds the weights of both. The dense
twin is not compiled; a host that issues kernels slowly makes ours slower, which has more of them.

"""
    if not document["results"]:
        return head + "Not measured yet: no GPU was at hand.\n"
    return head + f"{document['machine']}, {document['date']}.\n\n" + table(document["results"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="every part on the CPU, tiny, into build/gpu_dry_run")
    parser.add_argument("--only", choices=GROUPS, help="one part, in this process; the kept result keeps the others")
    parser.add_argument("--to", type=Path, help="folder of the results [default: benchmarks/results]")
    arguments = parser.parse_args()
    dry = arguments.dry_run
    folder = (arguments.to or (DRY if dry else RESULTS)).resolve()
    if not dry and not torch.cuda.is_available():
        print(
            f"There is no GPU here (torch {torch.__version__} sees none), so nothing was measured; "
            "make bench-gpu DRY_RUN=1 tries every part on the CPU."
        )
        return 0
    if arguments.only:
        found = GROUPS[arguments.only][0](dry, folder)
        results = kept_document("gpu", folder)["results"] | {arguments.only: found}
        report("gpu", COMMAND, results, quiet=True, folder=folder)
        return (
            1 if found.get("failed") or any("failed" in one for one in found.values() if isinstance(one, dict)) else 0
        )
    report("gpu", COMMAND, {}, quiet=True, folder=folder)  # figures of another GPU do not stay beside new ones
    groups = tuple((name, 0.3 if dry else minutes) for name, (_, minutes) in GROUPS.items())
    more = (*(["--dry-run"] if dry else []), "--to", str(folder))
    part = Part("gpu", tuple(GROUPS), sum(minutes for _, minutes in groups), more, groups)
    if dry:
        os.environ["OMP_NUM_THREADS"] = "1"
    problems = run([(part, list(GROUPS))], "", 3 * PATIENCE if dry else PATIENCE)
    document = kept_document("gpu", folder)
    written = (folder if dry else PAGE.parent) / "performance_gpu.md"
    written.write_text(page(document), encoding="utf-8")
    print(table(document["results"]))
    print("\n".join(problems))
    if dry:
        print(f"A dry run on the CPU: the figures mean nothing. They are in {folder}.")
    else:
        files = (folder / "gpu.json", folder / "device.json", written)
        names = ", ".join(os.path.relpath(file, ROOT) for file in files)
        print(f"Please send back {names}: as a pull request, or attached to an issue with the output of nvidia-smi.")
        print("python -m benchmarks.bench --show --write-docs then brings the two rows into docs/performance.md.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
