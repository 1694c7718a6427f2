"""Runs of counts: what an engine counted of its experts becomes a run that knows their load, and no tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.expert_runs import FAMILY, ExpertLayer, Series, WeightSemantics, expert_modules
from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import RunInfo, engine_version
from tokenpaths.engine.store.write.counts.load_run import LoadParts, write_load_run

KNOWS = "these are counts of tokens by expert: the run knows the load, and no paths, samples or texts"
UNKNOWN_K = "the counts do not say how many experts a token chose, so shares are of choices"
MOST_MODULES = 1 << 20
"""experts of all layers together"""


def import_counts(
    counts: ExpertCounts,
    file: Path,
    runs_dir: Path,
    run_id: str,
    *,
    model: str | None = None,
    overwrite: bool = False,
    series: Series | None = None,
    findings: dict[str, Any] | None = None,
) -> Path:
    """Write ``counts`` of ``file`` as a run of loads; returns its file. Leaves no file after an error.

    Args:
        model: Name of the model in the run; by default the file's.
        overwrite: Replace a run of the same name.
        series: The training that the counts are of, and where in it.
        findings: More of the run's findings.

    Raises:
        UserError: the counts are zero everywhere, or the run exists.
    """
    counts = counts.bounded()
    if not counts.counts.any():
        raise UserError(f"{file}: every count is 0, so nothing was counted", field="file")
    num_experts = counts.parts.shape[2]
    if len(counts.layers) * num_experts > MOST_MODULES:
        raise UserError(f"{file}: {len(counts.layers)} layers of {num_experts} experts are too many", field="experts")
    notes = [KNOWS, *([] if counts.top_k else [UNKNOWN_K]), *counts.notes]
    semantics = WeightSemantics(
        "unknown", "unknown", None, weights_recorded=False, source=f"{counts.format} counts of {file.name}"
    )
    info = RunInfo(
        run_id=run_id,
        model=model or file.stem,
        family=FAMILY,
        modality="text",
        dataset=file.name,
        split="",
        num_steps=len(counts.layers),
        num_modules=num_experts,
        top_k=counts.top_k or 1,
        weight_semantics=semantics.as_json(),
        config={"import": {"format": counts.format, "file": file.name, "layers": list(counts.layers)}}
        | ({} if series is None else {"series": series.as_json()}),
        checkpoint_sha256="",
        engine_version=engine_version(),
        findings={"weights_recorded": False, "notes": notes} | (findings or {}),
    )
    modules = expert_modules([ExpertLayer(name, num_experts) for name in counts.layers])
    parts = LoadParts(counts.parts, counts.times, counts.axis, counts.domains, counts.top_k)
    return write_load_run(runs_dir, info, modules, parts, overwrite=overwrite)
