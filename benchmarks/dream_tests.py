"""Two fair tests of what the choices of an image hold: is its class in them, and do boundary patches hold the object?

    python -m benchmarks.dream_tests --data <data folder> --work <folder> [--images 100] [--models NAME …]

*All choices*: an image is dreamt from every choice of another one; is its class the label, and the answer that the
model gave for the original? Against it stands what the same dreams keep of other images dealt at random. *Boundary*: an
image is dreamt from the choices of the patches that the edge of the object's box crosses, with those pixels kept,
without them, and with them but the choices of another image (figures 5 and 15 of *Towards Distributed Neural
Architectures*). Interrupted, it goes on with the batch it was at.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.dreams import DATA, Originals, dream
from benchmarks.measure import kept_document, report
from benchmarks.resampling import interval, weighted_mean
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.base.model_folders import models_folders
from tokenpaths.engine.data.datasets import Sample, open_dataset
from tokenpaths.engine.data.images import REGIONS, patch_regions
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams
from tokenpaths.engine.dream.objectives import Choices
from tokenpaths.engine.dream.pictures import patch_mask
from tokenpaths.engine.dream.settings import ImageSettings
from tokenpaths.engine.tracing.loaded_model import LoadedModel, load_model

MODELS = ("dna-vision-top1", "dna-vision-top2-skip")
SETTINGS = ImageSettings(iterations=192, rate=0.002)
"""choices matched grow by a tenth from 128 to 1,536 iterations, classes kept not at all"""
AT_ONCE = 32
SEED = 0
KINDS = ("all choices", "boundary", "boundary in context", "context, another image's choices", "context alone")
COMMAND = "python -m benchmarks.dream_tests --data <data folder> --work <folder>"


def groups_of(samples: list[Sample], grid: tuple[int, int]) -> list[list[int]]:
    """Patches of each image that the edge of its box crosses; none where they are few or most of the image."""
    boundary, count = REGIONS.index("boundary"), grid[0] * grid[1]
    found = []
    for sample in samples:
        region = np.full(grid, -1) if sample.mask is None else patch_regions(sample.mask, grid)
        patches = np.flatnonzero(region.ravel() == boundary).tolist()
        found.append(patches if 4 <= len(patches) <= count // 2 else [])
    return found


def wanted(loaded: LoadedModel, originals: Originals, groups: list[list[int]]) -> list[tuple[str, int, Dream]]:
    """Every dream: its kind and the image that it is of. Another image's choices are the next one's."""
    config, count = loaded.checkpoint.config, len(groups)
    dreams = []
    for i, group in enumerate(groups):
        ids, image, steps = originals.ids[i], originals.images[i], range(config.num_steps)
        dreams.append((KINDS[0], i, Dream(Choices(ids, steps), SEED, i)))
        if group:
            tokens = torch.tensor(group)
            keep = patch_mask(group, config.grid, config.patch_size)
            other = originals.ids[(i + 1) % count]
            dreams += [
                (KINDS[1], i, Dream(Choices(ids, steps, tokens), SEED, i)),
                (KINDS[2], i, Dream(Choices(ids, steps, tokens), SEED, i, image, keep)),
                (KINDS[3], i, Dream(Choices(other, steps, tokens), SEED, i, image, keep)),
            ]
    return dreams


def said(loaded: LoadedModel, work: ImageDreams, kinds: list[tuple[str, int]], originals: Originals) -> list[dict]:
    """What the model says of dreams as they are now."""
    labels = [loaded.classes.index(name) for name in originals.labels]
    with torch.no_grad():
        logits = loaded.model.trace(normalise(work.pictures())).logits.float().softmax(dim=-1)
    rows = []
    for (kind, i), row, told in zip(kinds, logits, work.examine(), strict=True):
        rows.append(
            {
                "kind": kind,
                "image": i,
                "says": int(row.argmax()),
                "label": labels[i],
                "answer": int(originals.answers[i]),
                "p_answer": float(row[int(originals.answers[i])]),
                "p_label": float(row[labels[i]]),
                "matched": told["matched_choices"],
            }
        )
    return rows


def measure(loaded: LoadedModel, data: Path, work: Path, num_images: int) -> dict[str, Any]:
    """All dreams of one model, batch by batch; a batch that lies in ``work`` is not dreamt again."""
    began = time.monotonic()
    samples = list(open_dataset(data / DATA, "vision", limit=num_images, seed=SEED))
    originals = Originals.of(loaded, samples, [str(s.label) for s in samples])
    groups = groups_of(samples, loaded.checkpoint.config.grid)
    dreams, rows, kept = wanted(loaded, originals, groups), [], 0
    of_this = f"{loaded.name}-{loaded.sha256[:8]}-{num_images}-{SETTINGS.iterations}-{SETTINGS.rate}-{SEED}-{AT_ONCE}"
    for first in range(0, len(dreams), AT_ONCE):
        part = dreams[first : first + AT_ONCE]
        file = work / f"{of_this}-{first}.json"
        kept += file.is_file()
        if not file.is_file():
            kinds = [(kind, i) for kind, i, _ in part]
            alone = [j for j, (kind, _) in enumerate(kinds) if kind == KINDS[2]]
            done: list[dict] = []
            if alone:
                before = ImageDreams(loaded.model, [part[j][2] for j in alone], SETTINGS)
                done += said(loaded, before, [(KINDS[4], kinds[j][1]) for j in alone], originals)
            finished = dream(loaded, [one for _, _, one in part], SETTINGS)
            done += said(loaded, finished, kinds, originals)
            write_atomically(file, json.dumps(done).encode())
        rows += json.loads(file.read_text(encoding="utf-8"))
    right = [loaded.classes[int(a)] == s.label for a, s in zip(originals.answers, samples, strict=True)]
    found = {kind: summary([row for row in rows if row["kind"] == kind]) for kind in KINDS}
    return (
        found
        | {
            "context less another's": difference(rows, KINDS[2], KINDS[3]),
            "context less alone": difference(rows, KINDS[2], KINDS[4]),
            "images": num_images,
            "grouped": sum(map(bool, groups)),
            "originals_right": float(np.mean(right)),
            "settings": SETTINGS.model_dump(),
            "sha256": loaded.sha256,
            "command": COMMAND,
        }
        | ({} if kept else {"minutes": round((time.monotonic() - began) / 60, 1)})
    )


def summary(rows: list[dict]) -> dict[str, Any]:
    """Shares of dreams that are of the answer's and of the label's class, with 95 % intervals over images.

    ``…_dealt``: the share if every dream had been of each of the other images.
    """
    found: dict[str, Any] = {"dreams": len(rows)}
    says = np.array([row["says"] for row in rows])
    for name in ("answer", "label"):
        classes = np.array([row[name] for row in rows])
        for key, values in (
            (f"is_{name}", (says == classes).astype(float)),
            (f"p_{name}", np.array([row[f"p_{name}"] for row in rows])),
        ):
            value, low, high = interval(lambda c, v=values: weighted_mean(v, c), len(rows))
            found[key] = {"value": value, "low": low, "high": high}
        others = (says[:, None] == classes[None, :]).sum() - (says == classes).sum()
        found[f"is_{name}_dealt"] = float(others / max(1, len(rows) * (len(rows) - 1)))
    found["matched"] = float(np.mean([row["matched"] for row in rows]))
    return found


def difference(rows: list[dict], one: str, other: str) -> dict[str, float]:
    """Probability of the answer in dreams of one kind less that in dreams of the other, image by image."""
    by_image = [{row["image"]: row["p_answer"] for row in rows if row["kind"] == kind} for kind in (one, other)]
    changes = np.array([by_image[0][i] - by_image[1][i] for i in by_image[0]])
    value, low, high = interval(lambda c: weighted_mean(changes, c), len(changes))
    return {"value": value, "low": low, "high": high}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--models", nargs="*", default=MODELS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = kept_document("dream_tests")["results"]
    for name in arguments.models:
        loaded = load_model(name, models_folders(), "cpu")
        results[name] = measure(loaded, arguments.data, arguments.work, arguments.images)
        report("dream_tests", COMMAND, results, quiet=True)


if __name__ == "__main__":
    main()
