"""Runs of counts: what an engine counted of its experts becomes a run that knows their load, and no tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.expert_runs import FAMILY, ExpertLayer, Series, WeightSemantics, expert_modules
from tokenpaths.engine.adapters.logs.counts.counter_notes import experts_of_all_tokens
from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts
from tokenpaths.engine.adapters.logs.doctor import Finding
from tokenpaths.engine.adapters.logs.pieces.announced import MOST_MODULES
from tokenpaths.engine.adapters.logs.pieces.wording import first_of
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import RunInfo, engine_version
from tokenpaths.engine.data.sources.sample import readable
from tokenpaths.engine.store.write.counts.load_run import LoadParts, write_load_run

KNOWS = "these are counts of tokens by expert: the run knows the load, and no paths, samples or texts"
UNKNOWN_K = "the counts do not say how many experts a token chose, so shares are of choices"
_MOST_NAMED = 6


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
    noticed = _common(counts)
    notes = [KNOWS, *([] if counts.top_k else [UNKNOWN_K]), *counts.notes]
    notes += [finding.sentence for finding in noticed]
    doctor = {"import_doctor": [finding.to_json() for finding in noticed]} if noticed else {}
    name = readable(file.name)
    semantics = WeightSemantics(
        "unknown", "unknown", None, weights_recorded=False, source=f"{counts.format} counts of {name}"
    )
    info = RunInfo(
        run_id=run_id,
        model=model or readable(file.stem),
        family=FAMILY,
        modality="text",
        dataset=name,
        split="",
        num_steps=len(counts.layers),
        num_modules=num_experts,
        top_k=counts.top_k or 1,
        weight_semantics=semantics.as_json(),
        config={"import": {"format": counts.format, "file": name, "layers": list(counts.layers)}}
        | ({} if series is None else {"series": series.as_json()}),
        checkpoint_sha256="",
        engine_version=engine_version(),
        findings={"weights_recorded": False, "notes": notes} | doctor | (findings or {}),
    )
    modules = expert_modules([ExpertLayer(name, num_experts) for name in counts.layers])
    parts = LoadParts(counts.parts, counts.times, counts.axis, counts.domains, counts.top_k)
    return write_load_run(runs_dir, info, modules, parts, overwrite=overwrite)


def _common(counts: ExpertCounts) -> list[Finding]:
    """As the doctor of logs of tokens, by the counts alone."""
    experts = experts_of_all_tokens(counts.parts)
    if not experts:
        return []
    times = f" of each {counts.axis}" if counts.times and counts.axis else ""
    return [
        Finding(
            "one expert everywhere",
            "warning",
            f"{'expert' if len(experts) == 1 else 'experts'} {first_of(experts, _MOST_NAMED)}: the same number of "
            f"tokens at every layer{times}, and no expert has more: a shared expert that is counted with the others, "
            "perhaps, or one that is always full; load entropy and MaxVio count it too",
        )
    ]
