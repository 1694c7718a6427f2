"""Dreams of the shipped vision checkpoints: do they take the paths, keep the class, and when does the object appear?

    python -m benchmarks.dreams --data <data folder> --work <folder> [--part pictures|numbers]

*pictures*: three bundled images at every S, cumulative and single step, and dreams from the group of one path with and
without its pixels; PNGs go to docs/dreams. *numbers*: 50 images, one of each class, at every S.
Interrupted, it goes on with the batch it was at. <data folder> holds ``vision/tiny_imagenet_50_val.parquet``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from benchmarks.measure import kept_document, report
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.base.model_folders import models_folders
from tokenpaths.engine.data.datasets import Sample, open_dataset
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams
from tokenpaths.engine.dream.objectives import Choices
from tokenpaths.engine.dream.pictures import outlined, patch_mask, stacked, strip, to_image, to_png
from tokenpaths.engine.dream.settings import ImageSettings
from tokenpaths.engine.tracing.loaded_model import LoadedModel, load_model

MODELS = ("dna-vision-top1", "dna-vision-top2-skip")
DATA = "vision/tiny_imagenet_50_val.parquet"
THREE = {"a flower": ("bundled:photos", 3), "a temple": ("bundled:photos", 0), "a scene": ("bundled:scenes", 16)}
"""bundled images, so that their dreams may be shown beside them"""
DOCS = Path(__file__).resolve().parent.parent / "docs" / "dreams"
SETTINGS = {"pictures": ImageSettings(iterations=192, rate=0.002), "numbers": ImageSettings(iterations=512)}
"""fifty images: a quarter of the paper's iterations, at its rate; pictures: fewer and faster"""
COLOURS = 80
"""of a picture in docs: its file is a third as large"""
NUM_IMAGES, CHUNK = 50, 10
COMMAND = "python -m benchmarks.dreams --data <data folder> --work <folder>"


@dataclass(frozen=True)
class Originals:
    """Images in [0, 1], what the model says of them, and their paths."""

    images: Tensor
    labels: list[str]
    ids: Tensor
    answers: Tensor

    @classmethod
    def one_of_each(cls, loaded: LoadedModel, data: Path, seed: int) -> Originals:
        """One image of each class."""
        samples = list(open_dataset(data / DATA, "vision", limit=NUM_IMAGES, seed=seed))
        return cls.of(loaded, samples, [s.label for s in samples])

    @classmethod
    def bundled(cls, loaded: LoadedModel) -> Originals:
        """The three of the pictures."""
        samples = [next(islice(iter(open_dataset(data, "vision")), row, None)) for data, row in THREE.values()]
        return cls.of(loaded, samples, list(THREE))

    @classmethod
    def of(cls, loaded: LoadedModel, samples: list[Sample], names: list[str]) -> Originals:
        """What the model says of some samples."""
        views = [torch.from_numpy(model_view(s.image, loaded.checkpoint.config.image_size)) for s in samples]
        images = torch.stack(views).permute(0, 3, 1, 2).float() / 255
        with torch.no_grad():
            traced = loaded.model.trace(normalise(images))
        return cls(images, names, traced.module_ids.long(), traced.logits.argmax(dim=-1))

    def largest_group(self, index: int, smallest: int = 4) -> Tensor:
        """Patches of the most common path of an image that at most half of its patches follow."""
        paths = [tuple(map(int, ids.flatten())) for ids in self.ids[index]]
        common = Counter(paths).most_common()
        path = next((p for p, count in common if smallest <= count <= len(paths) // 2), common[0][0])
        return torch.tensor([t for t, p in enumerate(paths) if p == path])


def features(loaded: LoadedModel, images: Tensor) -> Tensor:
    """What the output node averages, of unit length: to compare images as the model sees them."""
    with torch.no_grad():
        h, _ = loaded.model.run_trunk(normalise(images))
        return F.normalize(loaded.model.norm(h).mean(dim=1), dim=-1)


def dream(loaded: LoadedModel, dreams: list[Dream], settings: ImageSettings) -> ImageDreams:
    started, at_work = time.perf_counter(), ImageDreams(loaded.model, dreams, settings)
    while not at_work.finished:
        at_work.run(32)
        seconds = time.perf_counter() - started
        print(
            f"{loaded.name}: {at_work.iteration}/{settings.iterations} of {len(dreams)} dreams, {seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
    return at_work


def chunk_of_numbers(loaded: LoadedModel, originals: Originals, first: int) -> list[dict]:
    """The rows of ten images."""
    settings, steps = SETTINGS["numbers"], loaded.checkpoint.config.num_steps
    which = [(i, s) for i in range(first, first + CHUNK) for s in range(1, steps + 1)]
    dreams = [Dream(Choices(originals.ids[i], range(s)), seed=0, number=i) for i, s in which]
    before = ImageDreams(loaded.model, dreams, settings).examine()
    done = dream(loaded, dreams, settings)
    of_all = features(loaded, originals.images)
    near = features(loaded, done.pictures()) @ of_all.T
    rows = []
    for (i, s), start, end, alike in zip(which, before, done.examine(), near, strict=True):
        top = [c for c, _ in end["top"]]
        answer = int(originals.answers[i])
        rows.append(
            {
                "image": i,
                "S": s,
                "objective": end["objective"],
                "objective of noise": start["objective"],
                "matched choices": end["matched_choices"],
                "matched choices of noise": start["matched_choices"],
                "matched tokens": end["matched_tokens"],
                "matched tokens of noise": start["matched_tokens"],
                "class kept": top[0] == answer,
                "class in top 5": answer in top,
                "class of noise": start["top"][0][0] == answer,
                "says": loaded.classes[top[0]],
                "original": answer,
                "dream": top[0],
                "place among originals": int((alike > alike[i]).sum()) + 1,
            }
        )
    return rows


def summary(rows: list[dict], classes: int) -> dict[str, Any]:
    """Means by S; ``chance`` is what dreams would keep if they were dealt to other images at random."""
    table = {}
    for s in sorted({r["S"] for r in rows}):
        of_s = [r for r in rows if r["S"] == s]
        mean = lambda key, part=of_s: round(statistics.fmean(float(r[key]) for r in part), 4)  # noqa: E731
        dreamt, answers = Counter(r["dream"] for r in of_s), Counter(r["original"] for r in of_s)
        names = (
            "objective",
            "objective of noise",
            "matched choices",
            "matched choices of noise",
            "matched tokens",
            "matched tokens of noise",
            "class kept",
            "class in top 5",
            "class of noise",
        )
        table[str(s)] = {name: mean(name) for name in names} | {
            "class kept by chance": round(sum(n * answers[c] for c, n in dreamt.items()) / len(of_s) ** 2, 4),
            "nearest original is its own": round(statistics.fmean(r["place among originals"] == 1 for r in of_s), 4),
            "median place among originals": statistics.median(r["place among originals"] for r in of_s),
            "images": len(of_s),
            "classes dreamt": len(dreamt),
            "most common": [[r, n] for r, n in Counter(r["says"] for r in of_s).most_common(3)],
        }
    return {"by S": table, "classes": classes}


def dream_all(models: list[LoadedModel], data: Path, work: Path) -> None:
    """All chunks, the models by turns; those that lie in ``work`` already are not dreamt again."""
    originals = {loaded.name: Originals.one_of_each(loaded, data, seed=0) for loaded in models}
    for first in range(0, NUM_IMAGES, CHUNK):
        for loaded in models:
            kept = chunk_file(work, loaded.name, first)
            if not kept.is_file():
                rows = chunk_of_numbers(loaded, originals[loaded.name], first)
                write_atomically(kept, json.dumps(rows).encode())


def chunk_file(work: Path, name: str, first: int) -> Path:
    settings = SETTINGS["numbers"]
    return work / f"{name}-every-S-{settings.iterations}-{settings.rate}-{first}.json"


def numbers(loaded: LoadedModel, data: Path, work: Path) -> dict[str, Any]:
    originals, settings, rows = Originals.one_of_each(loaded, data, seed=0), SETTINGS["numbers"], []
    for first in range(0, NUM_IMAGES, CHUNK):
        kept = chunk_file(work, loaded.name, first)
        rows += json.loads(kept.read_text()) if kept.is_file() else []
    right = statistics.fmean(
        loaded.classes[int(a)] == label for a, label in zip(originals.answers, originals.labels, strict=True)
    )
    return summary(rows, len(loaded.classes)) | {
        "settings": settings.model_dump(),
        "originals classified right": right,
        "sha256": loaded.sha256,
    }


def pictures(loaded: LoadedModel) -> dict[str, Any]:
    """Strips of three images; returns what each dream matches and says."""
    originals, settings = Originals.bundled(loaded), SETTINGS["pictures"]
    config = loaded.checkpoint.config
    steps, (rows, cols) = config.num_steps, config.grid
    which = range(len(THREE))
    groups = [originals.largest_group(i) for i in which]
    dreams, names = [], []
    for i, group in zip(which, groups, strict=True):
        ids, image = originals.ids[i], originals.images[i]
        keep = patch_mask(group.tolist(), (rows, cols), config.patch_size)
        forms = {f"cumulative {s}": Dream(Choices(ids, range(s)), number=i) for s in range(1, steps + 1)}
        forms |= {f"single {s}": Dream(Choices(ids, range(s - 1, s)), number=i) for s in range(2, steps + 1)}
        forms["group"] = Dream(Choices(ids, range(steps), group), number=i)
        forms["group in context"] = Dream(Choices(ids, range(steps), group), 0, i, image, keep)
        dreams += forms.values()
        names += forms
    done = dream(loaded, dreams, settings)
    shown, told = [to_image(p) for p in done.pictures()], done.examine()
    per, result = len(dreams) // len(which), {}
    strips, pairs = [], []
    for at, (i, group) in enumerate(zip(which, groups, strict=True)):
        own = slice(at * per, (at + 1) * per)
        by_name = dict(zip(names[own], shown[own], strict=True))
        facts = dict(zip(names[own], told[own], strict=True))
        original = to_image(originals.images[i])
        singles = [by_name["cumulative 1"], *(by_name[f"single {s}"] for s in range(2, steps + 1))]
        strips += [
            strip([original, *(by_name[f"cumulative {s}"] for s in range(1, steps + 1))]),
            strip([original, *singles]),
        ]
        three = (original, by_name["group"], by_name["group in context"])
        pairs.append(strip([outlined(x, group.tolist(), (rows, cols), 2) for x in three]))
        result[originals.labels[i]] = {
            "the model says": loaded.classes[int(originals.answers[i])],
            "patches of the group": group.tolist(),
            "dreams": {
                name: {
                    "objective": round(f["objective"], 4),
                    "matched choices": round(f["matched_choices"], 4),
                    "matched tokens": round(f["matched_tokens"], 4),
                    "top 5": [[loaded.classes[c], round(p, 3)] for c, p in f["top"]],
                }
                for name, f in facts.items()
            },
        }
    DOCS.mkdir(parents=True, exist_ok=True)
    for name, rows_of in (("steps", strips), ("groups", pairs)):
        few = stacked(rows_of).quantize(COLOURS, dither=Image.Dither.NONE)
        write_atomically(DOCS / f"{loaded.name}-{name}.png", to_png(few))
    return {"settings": settings.model_dump(), "sha256": loaded.sha256, "images": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--part", choices=tuple(SETTINGS), help="only this; the kept result keeps the rest")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    results = kept_document("dreams")["results"]
    parts = (arguments.part,) if arguments.part else tuple(SETTINGS)
    for part in parts:
        models = [load_model(name, models_folders(), "cpu") for name in MODELS]
        if part == "numbers":
            dream_all(models, arguments.data, arguments.work)
        for name, loaded in zip(MODELS, models, strict=True):
            made = numbers(loaded, arguments.data, arguments.work) if part == "numbers" else pictures(loaded)
            results.setdefault(part, {})[name] = made
            last = (part, name) == (parts[-1], MODELS[-1])
            report("dreams", COMMAND, results, quiet=not last)


if __name__ == "__main__":
    main()
