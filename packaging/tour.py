"""Make the tour of the page from shipped models and bundled samples: ``make tour`` writes ``data/tour``.

A photograph and a text, each with one token: its way, the others on its path, and the answer with a module of the way
banned; of the photograph's path also a dream. ``tour.json`` holds the answers, PNG files the pictures, ``SHA256SUMS``
seals them. On a CPU the same versions give the same files; on other machines probabilities and frames differ by
rounding.

Shapes: S steps, M modules.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from tokenpaths.engine.adapters.find_traceable import find_traceable
from tokenpaths.engine.base.records import engine_version
from tokenpaths.engine.data.datasets import Sample, open_dataset
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams
from tokenpaths.engine.dream.objectives import Choices, follow_path
from tokenpaths.engine.dream.observed_pass import Need, Seen, look
from tokenpaths.engine.dream.pictures import to_image, to_png
from tokenpaths.engine.dream.settings import ImageSettings
from tokenpaths.engine.edits.prepared import PreparedSet
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import LoadedModel
from tokenpaths.engine.tracing.trace_run import trace_samples

ROOT = Path(__file__).resolve().parents[1]
MODELS, SAMPLES, FOLDER = ROOT / "data" / "models", ROOT / "data" / "samples", ROOT / "data" / "tour"
PHOTOGRAPH, PATCH = "coffee.png", 49
TEXT, TOKEN = "glacier_facts.txt", 145
SCENES = 90
"""drawn scenes beside the pictures of ``data/samples``, in which other patches of the path are looked for"""
SHOWN = 24
"""others of the path that are shown, drawn without a choice of ours (seed 0)"""
SIDE = 32
"""pixels a side of a shown patch"""
CONTEXT = 36
"""characters on each side of a shown token"""
FRAMES = (0, 16, 64, 256, 1024)
"""iterations of the image dream that are kept; the last one ends it"""
DIGITS = 4


def main() -> None:
    """Write the tour, and say how large it is."""
    torch.set_num_threads(1)  # sums in one order
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.iterdir():
        old.unlink()
    with tempfile.TemporaryDirectory() as scratch:
        tours = {"vision": vision_tour(Path(scratch)), "text": text_tour(Path(scratch))}
    (FOLDER / "tour.json").write_text(
        json.dumps({"engine": engine_version(), **tours}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )
    files = sorted(FOLDER.iterdir())
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (FOLDER / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1000:.0f} kB in {FOLDER}")


def load(name: str) -> LoadedModel:
    """A shipped model on the CPU."""
    loaded = find_traceable(name, [MODELS], "cpu", None, None, MODELS).load()
    assert isinstance(loaded, LoadedModel)
    return loaded


def vision_samples() -> list[Sample]:
    """The photograph first, then the other pictures, without masks."""
    some = [*open_dataset("bundled:pictures", "vision"), *open_dataset("bundled:scenes", "vision", limit=SCENES)]
    some.sort(key=lambda sample: not sample.source.startswith(PHOTOGRAPH))
    return [replace(sample, mask=None) for sample in some]


def text_samples() -> list[Sample]:
    """The text first, then the other English ones."""
    languages = [sample for sample in open_dataset("bundled:languages", "text") if sample.label == "English"]
    some = [*open_dataset(SAMPLES, "text"), *languages]
    return sorted(some, key=lambda sample: not sample.source.startswith(TEXT))


def vision_tour(scratch: Path) -> dict[str, Any]:
    """The photograph's half; writes the pictures."""
    model, samples = load("dna-vision-top1"), vision_samples()
    with Run.open(trace_samples(model, samples, scratch, run_id="vision", dataset="tour", twin=False)) as run:
        answers, example = about_path(run, len(samples), PATCH)
        sheet = Image.new("RGB", (SIDE * len(answers["others"]), SIDE))
        for place, other in enumerate(answers["others"]):
            picture = Image.open(io.BytesIO(run.picture(other["sample"]))).convert("RGB")
            width, height = picture.width / example["grid"]["cols"], picture.height / example["grid"]["rows"]
            left, top = round(other["col"] * width), round(other["row"] * height)
            patch = picture.crop((left, top, left + round(width), top + round(height)))
            sheet.paste(patch.resize((SIDE, SIDE), Image.Resampling.BICUBIC), (place * SIDE, 0))
    (FOLDER / "patches.png").write_bytes(to_png(sheet))
    seen = observed(model, samples[0])
    return {
        "model": model.name,
        "checkpoint_sha256": model.sha256,
        "sample": PHOTOGRAPH,
        "title": "A cup of coffee",
        "grid": example["grid"],
        "classes": len(model.classes),
        **answers,
        "way": way_of(seen, PATCH),
        "ban": strongest_ban(model, samples[0], answers["ribbon"]),
        "dream": image_dream(model, answers["ribbon"]),
    }


def text_tour(scratch: Path) -> dict[str, Any]:
    """The text's half."""
    model, samples = load("dna-text-top1"), text_samples()
    with Run.open(trace_samples(model, samples, scratch, run_id="text", dataset="tour", twin=False)) as run:
        answers, example = about_path(run, len(samples), TOKEN)
        texts = {other["sample"]: run.sample(other["sample"])["text"] for other in answers["others"]}
    for other in answers["others"]:
        text, (start, end) = texts[other["sample"]], other.pop("span")
        other |= {
            "before": text[max(0, start - CONTEXT) : start],
            "text": text[start:end],
            "after": text[end : end + CONTEXT],
        }
    return {
        "model": model.name,
        "checkpoint_sha256": model.sha256,
        "sample": TEXT,
        "title": "A text about glaciers",
        "text": example["text"],
        "spans": [[token["char_start"], token["char_end"]] for token in example["tokens"]],
        **answers,
        "way": way_of(observed(model, samples[0]), TOKEN),
        "ban": strongest_ban(model, samples[0], answers["ribbon"], TOKEN),
    }


def about_path(run: Run, num_samples: int, token: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the run says of the path of a token of sample 0, and that sample."""
    samples = [run.sample(number) for number in range(num_samples)]
    ribbons = [single(row["ribbon"]) for row in samples[0]["tokens"]]
    ribbon = ribbons[token]
    there = [
        (sample["sample"], row) for sample in samples for row in sample["tokens"] if single(row["ribbon"]) == ribbon
    ]
    elsewhere = [(sample, row) for sample, row in there if sample]
    chosen = sorted(random.Random(0).sample(range(len(elsewhere)), min(SHOWN, len(elsewhere))))
    info = run.info()
    answers = {
        "token": token,
        "ribbon": ribbon,
        "ribbons": ribbons,
        "modules": int(info["num_modules"]),
        "num_samples": num_samples,
        "num_tokens": int(info["num_tokens"]),
        "num_paths": int(info["num_paths"]),
        "on_path": len(there),
        "on_path_samples": len({sample for sample, _ in there}),
        "others": [
            {"sample": sample, "token": row["token"], "label": samples[sample].get("label") or "", **place_of(row)}
            for sample, row in (elsewhere[place] for place in chosen)
        ],
    }
    return answers, samples[0]


def single(ribbon: Sequence[Sequence[int]]) -> list[int]:
    """A top-1 ribbon as a list of modules."""
    return [int(module) for (module,) in ribbon]


def place_of(row: dict[str, Any]) -> dict[str, Any]:
    if row.get("row") is not None:
        return {"row": row["row"], "col": row["col"]}
    return {"span": (row["char_start"], row["char_end"])}


def prepared(model: LoadedModel, sample: Sample) -> PreparedSet:
    """The sample as the model's input."""
    data = PreparedSet(model)
    data.add(sample)
    return data.close()


def observed(model: LoadedModel, sample: Sample) -> Seen:
    """A pass that keeps the probabilities of every router."""
    (batch,) = prepared(model, sample).batches
    inputs = normalise(batch.raw) if batch.valid is None else batch.raw
    with torch.no_grad():
        (seen,) = look(model.model, inputs, [Need(model.num_steps)])
    return seen


def way_of(seen: Seen, token: int) -> list[dict[str, Any]]:
    """Module and router's probabilities (M) of each step."""
    return [
        {"module": int(ids[token, 0]), "probs": [round(float(p), DIGITS) for p in probs[token]]}
        for ids, probs in zip(seen.module_ids, seen.probs, strict=True)
    ]


def strongest_ban(
    model: LoadedModel, sample: Sample, ribbon: Sequence[int], token: int | None = None
) -> dict[str, Any]:
    """The ban of one module of the way that changes the answer most (KL); of a text the prediction after ``token``."""
    bans = [banned(model, sample, step, module, token) for step, module in enumerate(ribbon)]
    return max(bans, key=lambda ban: ban["kl"])


def banned(model: LoadedModel, sample: Sample, step: int, module: int, token: int | None) -> dict[str, Any]:
    """Answer and paths without and with the ban of a module at a step."""
    (batch,) = prepared(model, sample).batches
    edited = model.with_controls({"edits": [{"edit": "ban", "modules": [module], "step": step}]})
    passes = [which.run(batch) for which in (model, edited)]
    rows = [batch.real_rows(traced.logits)[token or 0].float() for traced in passes]
    before, after = (row.log_softmax(dim=-1) for row in rows)
    ribbons = [batch.ribbons(traced)[:, :, 0] for traced in passes]
    names = dict(enumerate(model.classes)) if token is None else model.token_texts()
    chosen = ribbons[1][PATCH if token is None else token]
    return {
        "step": step,
        "module": module,
        "kl": round(float((before.exp() * (before - after)).sum()), DIGITS),
        "changed": int((ribbons[0] != ribbons[1]).any(axis=1).sum()),
        "visited": int((ribbons[0][:, step] == module).sum()),
        "ribbon": chosen.tolist(),
        "before": likeliest(rows[0], names),
        "after": likeliest(rows[1], names),
    }


def likeliest(logits: torch.Tensor, names: dict[int, str]) -> list[dict[str, Any]]:
    """The five likeliest classes or next tokens."""
    probs, places = logits.softmax(dim=-1).topk(5)
    return [
        {"name": names[int(i)], "probability": round(float(p), DIGITS), "logit": round(float(logits[i]), DIGITS)}
        for p, i in zip(probs, places, strict=True)
    ]


def image_dream(model: LoadedModel, ribbon: Sequence[int]) -> dict[str, Any]:
    """Frames of an image whose patches all take the path; writes them."""
    wanted = follow_path(torch.tensor(ribbon)[:, None], model.grid[0] * model.grid[1])
    dreams = ImageDreams(model.model, [Dream(wanted)], ImageSettings(iterations=FRAMES[-1]))
    frames = []
    for place, iteration in enumerate(FRAMES):
        dreams.run(iteration - dreams.iteration)
        image = to_image(dreams.pictures()[0])
        (FOLDER / f"dream-{place}.png").write_bytes(to_png(image))
        frames.append({"file": f"dream-{place}.png", "iteration": iteration, **share_on_path(model, wanted, image)})
    return {"frames": frames}


def share_on_path(model: LoadedModel, wanted: Choices, image: Image.Image) -> dict[str, Any]:
    """Of the written picture: the share of the wanted choices, and of the patches that make all of them."""
    seen = observed(model, Sample(image, None, None, "dream"))
    choices, tokens = wanted.matched(seen)
    return {"choices": round(choices, DIGITS), "tokens": round(tokens, DIGITS)}


if __name__ == "__main__":
    main()
