"""What was summed up while a part was written, as arrays, and the sums of all parts put together.

Sums of whole numbers, and those of losses and gate entropies, which are kept batch by batch, are those of a run of one
process to the last digit; those of soft tables (``SoftSums``) may differ in it, as they are added part by part.

Shapes: S steps, M modules, L labels.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenpaths.engine.store.write.flows.while_writing import Counts
from tokenpaths.engine.store.write.parts.part_filler import PartFiller
from tokenpaths.engine.store.write.run_filler import RunFiller

Sums = tuple[dict[str, Any], dict[str, np.ndarray]]


def sums_of(filler: PartFiller) -> Sums:
    """The sums of a part, for ``plan.save``."""
    steps = filler.layout.num_steps
    meta: dict[str, Any] = {
        "num_samples": filler.num_samples,
        "entropy_labels": [label for label, _ in filler.entropy_parts],
        "loss": filler.loss_parts,
        "visits": None,
        "even": None,
        "soft": [],
        "pages": [],
    }
    arrays = {"entropy": np.array([part for _, part in filler.entropy_parts]).reshape(-1, 2, steps)}
    if filler.visits is not None:
        meta["visits"] = list(filler.visits.by_label)
        for label, counts in filler.visits.by_label.items():
            arrays |= {f"visits_{label}_{name}": values for name, values in counts._asdict().items()}
    if (even := filler.even_flows) is not None:
        meta["even"] = {"level": even.level, "labels": list(even.tokens)}
        for label in even.tokens:
            arrays |= {f"even_{label}_links": even.links[label], f"even_{label}_tokens": even.tokens[label]}
    arrays |= {f"known_{name}": values for name, values in filler.sketch.columns().items()}
    for number, (kind, label, count, total, squares) in enumerate(filler.soft.parts()):
        meta["soft"].append([kind, label, count, list(filler.soft.shapes[kind])])
        arrays |= {f"soft_{number}_total": total, f"soft_{number}_squares": squares}
    for number, (num_samples, encoded) in enumerate(filler.profiles.pages()):
        meta["pages"].append(num_samples)
        for name, content in zip(("counts", "places", "large"), encoded, strict=True):
            arrays[f"page_{number}_{name}"] = np.frombuffer(content, dtype=np.uint8)
    return meta, arrays


def add_sums(filler: RunFiller, sums: Sums) -> None:
    """Add the sums of the part that comes next to those of the whole run."""
    meta, arrays = sums
    filler.num_samples = meta["num_samples"]
    for label, part in zip(meta["entropy_labels"], arrays["entropy"], strict=True):
        filler.add_entropy(label, part)
    for count, total in meta["loss"]:
        filler.loss = (filler.loss[0] + count, filler.loss[1] + total)
    _add_flows(filler, meta, arrays)
    known = {name.removeprefix("known_"): values for name, values in arrays.items() if name.startswith("known_")}
    filler.sketch.merge(known)
    for number, (kind, label, count, shape) in enumerate(meta["soft"]):
        filler.soft.shapes[kind] = tuple(shape)
        filler.soft.add_part(kind, label, count, arrays[f"soft_{number}_total"], arrays[f"soft_{number}_squares"])
    pages = []
    for number, num_samples in enumerate(meta["pages"]):
        counts, places, large = (arrays[f"page_{number}_{name}"].tobytes() for name in ("counts", "places", "large"))
        pages.append((num_samples, (counts, places, large)))
    filler.profiles.add_pages(pages)


def _add_flows(filler: RunFiller, meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Flows and usage; counted at sealing where a part has none, or the parts have other weights."""
    if filler.visits is not None and meta["visits"] is not None:
        of_labels = {
            label: Counts(*(arrays[f"visits_{label}_{name}"] for name in Counts._fields)) for label in meta["visits"]
        }
        filler.visits = filler.visits.plus(of_labels)
    else:
        filler.visits = None
    if filler.even_flows is not None and meta["even"] is not None:
        labels = meta["even"]["labels"]
        links, tokens = ({label: arrays[f"even_{label}_{name}"] for label in labels} for name in ("links", "tokens"))
        filler.even_flows = filler.even_flows.plus(meta["even"]["level"], links, tokens)
    else:
        filler.even_flows = None
