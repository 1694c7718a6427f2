"""The importance of every module of the shipped checkpoints: each banned in turn, what that does to the loss.

    python -m benchmarks.importance [--data FOLDER] [--models NAME …] [--limit SAMPLES] [--device cuda] [--page]

Without ``--data`` every model is measured on bundled samples, for everyone to repeat. With it, on the first samples of
the validation file of its recipe, an H-Model on its held-out tenth: few bundled pictures carry a label that a model
knows, and five texts say little about others. Errors take samples as what was drawn. Figures of models that are not
named are kept. ``--page`` measures nothing and writes the tables of ``docs/edits.md`` anew. A model that was stopped
goes on with its next row (``build/importance``).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.measure import kept_document, report
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import SHIPPED_MODELS, write_atomically
from tokenpaths.engine.data.datasets import Sample, open_dataset
from tokenpaths.engine.edits.measure import Unchanged, measure_effect
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.edits.sweep import module_rows, result_row, share_rows, usage_of
from tokenpaths.engine.tracing import loaded_model
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.train.hmodel_recipes import load_languages

PAGE = Path(__file__).resolve().parent.parent / "docs" / "edits.md"
WORK = Path(__file__).resolve().parent.parent / "build" / "importance"
BEGIN, END = "<!-- tables: python -m benchmarks.importance --page -->", "<!-- end of tables -->"
SHARES = (0.1, 0.25, 0.5)
MOST_BYTES = 3 << 30
"""of outputs of the unchanged model that are kept for all rows"""
BUNDLED = {
    "dna-vision": "bundled:scenes",
    "raytracing-cifar10": "bundled:scenes",
    "raytracing-digits": "bundled:digits",
    "hmodel": "bundled:languages",
}
LIMITS = {"vision": 500, "text": 100}
SHORT = {"bundled:texts": 5, "bundled:languages": 72}
"""all texts there are"""
KEPT = (
    "step",
    "module",
    "name",
    "kind",
    "share",
    "which",
    "banned",
    "loss_change",
    "loss_error",
    "accuracy_change",
    "kl",
    "top1_changed",
    "paths_changed_after",
    "path_distance",
    "flow_difference",
    "problem",
)


def data_of(name: str, validation: dict[str, Any], folder: Path | None) -> str:
    """The set that a model is measured on."""
    file = str(validation.get("file") or "")
    if folder is not None and (folder / file).is_file():
        return str(folder / file)
    return next((data for prefix, data in BUNDLED.items() if name.startswith(prefix)), "bundled:texts")


def measure(name: str, folder: Path | None, limit: int | None, device: str = "cpu") -> dict[str, Any]:
    """Every row of both sweeps of one model."""
    loaded = load_model(name, [SHIPPED_MODELS], device=device)
    config = loaded.checkpoint.config
    source = data_of(name, loaded.checkpoint.validation, folder)
    limit = limit or SHORT.get(source, LIMITS[loaded.modality])
    if loaded.family == "hmodel" and folder is not None:
        # Its validation file has 59 texts in five languages; the tenth that nothing was trained on has all six.
        held_out, told = load_languages(folder).held_out.texts, "held-out tenth of languages_train"
        data = prepare(loaded, [Sample(image=None, text=text, label=None, source="") for text in held_out])
    else:
        dataset = open_dataset(source, loaded.modality, limit=limit)
        data, told = prepare(loaded, dataset), dataset.name
    unchanged = Unchanged(loaded, data, MOST_BYTES)
    usage = usage_of(loaded, data, unchanged)
    rows = module_rows(loaded.module_table(), loaded.choices())
    rows += share_rows(usage, SHARES, loaded.choices(), loaded.must_leave)
    kept = WORK / f"{name}.json"
    state: dict[str, Any] = {
        "of": [loaded.sha256, told, data.num_samples, data.num_targets, len(rows)],
        "rows": [],
        "base": None,
        "seconds": 0.0,
    }
    if kept.is_file() and (before := json.loads(kept.read_text("utf-8")))["of"] == state["of"]:
        state = before
    found: list[dict[str, Any]] = state["rows"]
    began = time.monotonic() - state["seconds"]
    for row in rows[len(found) :]:
        try:
            effect = measure_effect(loaded.with_controls({"edits": list(row.edits)}), data, unchanged)
            state["base"] = {"loss": effect["loss"] and effect["loss"]["before"], "targets": effect["num_targets"]}
            found.append(result_row(row, effect))
        except UserError as refused:
            found.append(result_row(row, None, str(refused)))
        print(
            f"{name} {len(found)}/{len(rows)} {found[-1]['name']} {found[-1]['step']} {found[-1]['loss_change']}",
            file=sys.stderr,
            flush=True,
        )
        WORK.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, json.dumps(state | {"seconds": time.monotonic() - began}).encode())
    base = state["base"]
    for row in found:
        if row["module"] is not None and row["step"] is not None:
            slots = usage[row["step"]].sum()
            row["tokens_share"] = float(usage[row["step"], row["module"]] * config.top_k / max(1, slots))
    return {
        "dataset": told,
        "num_samples": data.num_samples,
        "num_targets": base["targets"],
        "errors": "samples",
        "loss": base["loss"],
        "num_steps": config.num_steps,
        "seconds": round(time.monotonic() - began, 1),
        "rows": [{key: _short(row.get(key)) for key in (*KEPT, "tokens_share")} for row in found],
    }


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def tables(results: dict[str, Any]) -> str:
    """The tables of the page, and which shipped models they leave out."""
    left_out = sorted({path.parent.name for path in SHIPPED_MODELS.glob("*/config.json")} - results.keys())
    parts = [_overview(results)]
    parts += [f"Not measured: {', '.join(left_out)}."] if left_out else []
    for name, one in results.items():
        parts.append(f"### {name}\n\n{_caption(one)}\n\n{_matrix(one)}")
    return "\n\n".join(parts)


def _caption(one: dict[str, Any]) -> str:
    # An image is one prediction, so its errors were those of samples before they were for texts.
    by_sample = one.get("errors") == "samples" or one["num_targets"] == one["num_samples"]
    whose = "over samples" if by_sample else "over predictions taken as independent and so too small"
    return (
        f"Change of loss in nats; {one['num_samples']:,} samples of {one['dataset']}, {one['num_targets']:,} "
        f"predictions, unchanged {one['loss']:.3f}. In brackets: less than two standard errors, {whose}, from 0."
    )


def _overview(results: dict[str, Any]) -> str:
    head = [
        "| model | samples | most important module | change of loss | its share of tokens there | half of each step's "
        "modules banned: most used | least used | random |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in results.items():
        single = [r for r in one["rows"] if r["module"] is not None and r["loss_change"] is not None]
        if not single:
            continue
        there = [r for r in single if r["step"] is not None]
        top = max(there, key=lambda r: r["loss_change"])
        half = {r["which"]: r["loss_change"] for r in one["rows"] if r["share"] == 0.5}
        halves = [_cell(half.get(which), None) for which in ("top", "bottom", "random")]
        share = "–" if top["tokens_share"] is None else f"{100 * top['tokens_share']:.1f} %"
        cells = [name, f"{one['num_samples']:,}", f"{top['name']}, step {top['step']}"]
        cells += [_cell(top["loss_change"], top["loss_error"]), share, *halves]
        head.append(f"| {' | '.join(cells)} |")
    return "\n".join(head)


def _matrix(one: dict[str, Any]) -> str:
    """A row for each module, a column for each step and one for all of them."""
    single = [r for r in one["rows"] if r["module"] is not None]
    steps: list[int | None] = sorted({r["step"] for r in single if r["step"] is not None})
    steps += [None] * any(r["step"] is None for r in single)
    cells = {(r["module"], r["step"]): r for r in single}
    names = {r["module"]: _bare(r["name"]) for r in single}
    head = " | ".join("every step" if step is None else f"step {step}" for step in steps)
    lines = [f"| module | {head} |", "|---" * (len(steps) + 1) + "|"]
    for module, name in sorted(names.items()):
        row = [cells.get((module, step)) for step in steps]
        said = [
            ("–" if c is None else "refused" if c["problem"] else _cell(c["loss_change"], c["loss_error"])) for c in row
        ]
        lines.append(f"| {name} | {' | '.join(said)} |")
    return "\n".join(lines)


def _bare(name: str) -> str:
    """The name of a module without its layer, which is the column."""
    return re.sub(r"^(L\d+|level \d+ |layer \d+ )", "", name).strip()


def _cell(change: float | None, error: float | None) -> str:
    if change is None:
        return "–"
    told = f"{change:+.3f}".replace("-", "−") if abs(change) >= 0.0005 else "0"
    return f"({told})" if error is not None and abs(change) < 2 * error else told


def write_page(results: dict[str, Any]) -> None:
    """The tables between the two marks of ``docs/edits.md``."""
    page = PAGE.read_text(encoding="utf-8")
    first, rest = page.split(BEGIN)
    last = rest.split(END)[1]
    write_atomically(PAGE, f"{first}{BEGIN}\n\n{tables(results)}\n\n{END}{last}".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    results = kept_document("importance")["results"]
    names = options.models or sorted(f.name for f in SHIPPED_MODELS.iterdir() if f.is_dir())
    for name in names if not options.page else ():
        # bfloat16, which a GPU takes by default, would hide the small ones among these differences.
        with patch.object(loaded_model, "mixed_precision", lambda device: nullcontext()):
            results[name] = measure(name, options.data, options.limit, options.device)
        ordered = {known: results[known] for known in sorted(results)}
        report("importance", "python -m benchmarks.importance --data <folder>", ordered, quiet=True)
    results = {known: results[known] for known in sorted(results)}
    if PAGE.is_file():
        write_page(results)
    print(json.dumps({"benchmark": "importance", "models": len(results)}))


if __name__ == "__main__":
    main()
