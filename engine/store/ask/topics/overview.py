"""Overview of a run: its card in a list of runs, and the information of its first page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import RUN_SUFFIX, is_name, printable_name, series_file
from tokenpaths.engine.base.records import STAND_IN_KINDS, ModuleInfo
from tokenpaths.engine.store.ask.question import Rows, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.run_series import place_of, series_place
from tokenpaths.engine.store.ask.tables import queries
from tokenpaths.engine.store.ask.tables.excerpts import finite
from tokenpaths.engine.store.ask.topics.distributions import existing_measures
from tokenpaths.engine.store.ask.topics.paths import fit
from tokenpaths.engine.store.ask.topics.soft_decisions import findings
from tokenpaths.engine.store.file.filters import Query

CARD_FIELDS = (
    "model",
    "family",
    "modality",
    "dataset",
    "split",
    "num_samples",
    "num_tokens",
    "num_steps",
    "num_modules",
    "top_k",
    "num_paths",
    "accuracy",
    "loss",
    "created_at",
    "checkpoint_sha256",
)

TWIN_ASSOCIATION = ("nmi", "null_mean", "null_std", "p_value")
SHARE_RANKS = (1, 10, 100, 1000)
MOST_GROUPS = 100
"""groups of labels that look alike in one answer"""
_CROP = r"^(.+) at \(\d+, \d+\), \d+ px$"
"""source of a crop, as written by ``tokenpaths.engine.data.bundled.photos``: file, place and side"""


def card(run: RunFile) -> dict[str, Any]:
    """Summary of the run for lists of runs."""
    # What stands for unused slots and unknown decisions is no module.
    row = run.row | {"num_modules": run.num_modules}
    return run_card(run.run_id, row, samples_are=_crops(run)) | {"series": place_of(run)}


def run_card(
    run_id: str, row: Mapping[str, Any] | None, problem: str | None = None, samples_are: str | None = None
) -> dict[str, Any]:
    """The card of a run; for an unreadable run all fields but name and problem are None."""
    fields = {name: row[name] if row else None for name in CARD_FIELDS}
    for name in ("accuracy", "loss"):
        fields[name] = finite(fields[name])
    if fields["modality"] == "vision" and fields["accuracy"] is None:
        fields["loss"] = None  # of the few labels that the model knows
    fields["edited"] = bool(json.loads(row["config"]).get("controls")) if row else None
    status = "sealed" if row else "unreadable"
    fields["series"] = series_place(row["config"]) if row else None
    fields["kind"] = None if row is None else "load" if json.loads(row["config"]).get("load_only") else "tokens"
    return {"run": run_id, "name": None, **fields, "samples_are": samples_are, "status": status, "problem": problem}


@question(
    "",
    "run_schema.RunDetails",
    tag="runs",
    route="show_run",
    description="All about one run: model, configuration, labels, modules, summary, what paths know about labels.",
    frames={
        "labels": Rows("labels", "Labels: label, num_samples, num_tokens."),
        "modules": Rows("modules", "Modules: step, module, name, kind, num_params, flops_per_token."),
        "associations": Rows(
            "associations", "What paths know, as it was worked out at sealing: attribute, nmi, null_mean, p_value …"
        ),
    },
    of_counts=True,
)
def info(run: RunFile) -> dict[str, Any]:
    """The card with configuration, labels, modules, summary, associations and existing measures."""
    return {
        **card(run),
        "config": json.loads(run.row["config"]),
        "weight_semantics": json.loads(run.row["weight_semantics"]),
        "engine_version": run.row["engine_version"],
        "schema_version": run.row["schema_version"],
        "path_layout": run.row["path_layout"],
        "labels": [
            {"label": label, "num_samples": samples, "num_tokens": tokens} for _, label, samples, tokens in run.labels
        ],
        "look_alikes": [
            [{"label": row[1], "num_samples": row[2], "num_tokens": row[3]} for row in group]
            for group in run.look_alikes[:MOST_GROUPS]
        ],
        "modules": [
            {name: getattr(module, name) for name in ModuleInfo.__dataclass_fields__}
            for module in run.modules
            if module.kind not in STAND_IN_KINDS
        ],
        "summary": None if run.load_only is not None else _summary(run),
        "associations": _associations(run.rows(queries.association_rows())),
        "measures": existing_measures(run),
        "soft": list(run.soft_shapes),
        "findings": findings(run),
    }


def _summary(run: RunFile) -> dict[str, Any]:
    ranks = [rank for rank in SHARE_RANKS if rank <= run.row["num_paths"]]
    shares = run.shares.cdf(np.array(ranks, dtype=np.int64)).tolist()
    return {
        "num_paths": run.row["num_paths"],
        "effective_paths": fit(run)["observed"]["effective_paths"],
        "top_shares": [{"n": rank, "share": share} for rank, share in zip(ranks, shares, strict=True)],
        "mean_compute": run.row["mean_compute"],
        "mean_reuse": run.row["mean_reuse"],
    }


def _associations(rows: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of ``queries.association_rows``: one per attribute, with the numbers of the untrained twin."""
    names = ("attribute", "nmi", "null_mean", "null_std", "p_value", "shuffles", "num_tokens", "shuffled", "whose")
    answers: dict[str, dict[str, Any]] = {}
    for row in sorted((dict(zip(names, row, strict=True)) for row in rows), key=lambda row: row["whose"]):
        if row["whose"] == "untrained":
            answers[row["attribute"]] |= {f"untrained_{name}": row[name] for name in TWIN_ASSOCIATION}
            continue
        answers[row["attribute"]] = {
            **{name: row[name] for name in names[:8]},
            **{f"untrained_{name}": None for name in TWIN_ASSOCIATION},
        }
    return [answers[attribute] for attribute in sorted(answers)]


def _crops(run: RunFile) -> str | None:
    """“120 crops of 2 pictures” if all images are crops and several are of one picture; otherwise None.

    Crops of one picture are alike, so statistics that treat them as independent samples (intervals, shuffles) are
    overconfident.
    """
    if run.row["modality"] != "vision":
        return None
    query = Query(
        "SELECT count(*), count(DISTINCT picture) FILTER (WHERE picture <> '') FROM "
        "(SELECT regexp_extract(coalesce(source, ''), ?, 1) AS picture FROM sample) HAVING min(picture) <> ''",
        (_CROP,),
    )
    rows = run.rows(query)
    if not rows or rows[0][1] >= rows[0][0]:
        return None
    crops, pictures = rows[0]
    return f"{crops:,} crops of {pictures:,} picture{'s' if pictures > 1 else ''}"


def list_runs(runs_dir: Path) -> list[dict[str, Any]]:
    """The cards of all run files, newest first; ``problem`` gives the reason if a file is unreadable.

    A missing folder has no runs. Cards are cached until their file changes.
    """
    folder = Path(runs_dir)
    files = sorted(folder.glob(f"*{RUN_SUFFIX}")) if folder.is_dir() else []
    cards = []
    for file in files:
        if file.name.startswith("."):
            continue
        try:
            stat = file.stat()
        except OSError:
            continue  # Deleted between the listing and now.
        beside = series_file(file)
        said = beside.stat().st_mtime_ns if beside.exists() else 0
        cards.append(dict(_card(str(file), stat.st_mtime_ns, stat.st_size, stat.st_ino, said)))
    return sorted(cards, key=lambda c: (c["created_at"] or "", c["run"]), reverse=True)


@lru_cache(maxsize=4096)
def _card(file_name: str, mtime_ns: int, size: int, inode: int, said: int) -> dict[str, Any]:
    """The card of one file; the other arguments identify its version for the cache."""
    file = Path(file_name)
    if not is_name(file.stem):
        return run_card(
            printable_name(file.stem),
            None,
            f"{printable_name(file.name)} has a name that no address can hold: use letters, digits, - and _",
        )
    try:
        with RunFile.open(file) as run:
            return card(run)
    except UserError as error:
        return run_card(file.stem, None, str(error))
