"""Small believable runs of pictures and texts: correlated routing, labels, regions, a twin.

Not a model's output: tokens follow a few prototype ribbons (some labels prefer some of them) and leave them now and
then, so that paths are frequent and rare, flows are uneven and labels matter. Everything is a function of the
arguments.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image, ImageDraw

from tests.support.runs.arrays import RunArrays, columns_of, falling_weights, joined, png_bytes, routed, run_info
from tokenpaths.engine.base.records import ModuleInfo, RunInfo, SampleRecord, TraceBatch
from tokenpaths.engine.store.ask.run import Run

GRID = 8
CELL = 8
SHAPES = ("circle", "square", "stripes")
SENTENCES = {
    "english": "the cat sat on the mat and looked at the moon over the quiet house",
    "code": "def f ( x ) : return x + 1 for i in range ( n ) : print ( i )",
    "mixed": "naïve 東京 привет שלום 🙂 the x = 1 , été ; café",
}
DOMAINS = {name: sentence.split() for name, sentence in SENTENCES.items()}
VOCABULARY = sorted({word for words in DOMAINS.values() for word in words})


def make_run(
    runs_dir: Path,
    run_id: str = "demo",
    modality: Literal["vision", "text"] = "vision",
    *,
    overwrite: bool = False,
    **options: Any,
) -> Path:
    """Write the run that ``make`` makes of these options; returns its file."""
    return make(run_id, modality, **options).write(runs_dir, overwrite=overwrite)


@functools.cache
def open_run(modality: Literal["vision", "text"] = "vision", **options: Any) -> Run:
    """The run that ``make`` makes of these options, opened once a process for tests that only ask it."""
    folder = tempfile.mkdtemp(dir=_folder().name)
    return Run.open(make_run(Path(folder), "demo", modality, **options))


_folder = functools.cache(tempfile.TemporaryDirectory)


def make(
    run_id: str = "demo",
    modality: Literal["vision", "text"] = "vision",
    *,
    samples: int = 12,
    steps: int = 5,
    modules: int = 6,
    top_k: int = 1,
    identities: int = 1,
    seed: int = 0,
    labels: bool = True,
    twin: bool = True,
    batch_size: int = 5,
    chunk: int = 1,
    split: str = "validation",
) -> RunArrays:
    """The arrays of such a run, not written yet; the last ``identities`` modules do nothing.

    ``chunk`` tokens one after the other share a decision.
    """
    rng = np.random.default_rng(seed)
    info = run_info(
        run_id,
        model=f"toy-{modality}",
        modality=modality,
        dataset=f"toy {modality}",
        split=split,
        num_steps=steps,
        num_modules=modules,
        top_k=top_k,
        weight_semantics={"score": "softmax", "renormalised": False, "bias": identities > 0},
        config={"width": 8, "steps": steps, "seed": seed},
        checkpoint_sha256="0" * 64,
        regions=("background", "object", "boundary") if modality == "vision" else (),
        token_texts=dict(enumerate(VOCABULARY)) if modality == "text" else {},
    )
    bank = [
        ModuleInfo(None, m, f"identity {m}", "identity", 0, 0)
        if m >= modules - identities
        else ModuleInfo(None, m, f"block {m}", "transformer" if m % 2 else "mlp", 1000 + m, 2000 + 2 * m)
        for m in range(modules)
    ]
    prototypes = _distinct_choices(rng, 24, steps, modules, top_k)
    drawer = _picture if modality == "vision" else _text
    batches = []
    for start in range(0, samples, batch_size):
        numbers = range(start, min(start + batch_size, samples))
        parts = [drawer(rng, number, labels) for number in numbers]
        batches.append(_batch(rng, parts, prototypes, info, bank, chunk))
    size = sum(batch.num_tokens for batch in batches) if twin else 0
    return RunArrays(info, bank, batches, _distinct_choices(rng, size, steps, modules, top_k))


def _distinct_choices(rng: np.random.Generator, n: int, steps: int, modules: int, top_k: int) -> np.ndarray:
    """(n, S, K) uniform choices without repetition inside a step."""
    return rng.random((n, steps, modules)).argsort(axis=2)[:, :, :top_k]


def _picture(rng: np.random.Generator, number: int, labels: bool) -> tuple[SampleRecord, dict[str, np.ndarray]]:
    """A shape on a background, its patch grid and the region of each patch."""
    label = SHAPES[number % len(SHAPES)]
    side = GRID * CELL
    hue = tuple(int(v) for v in rng.integers(40, 200, 3))
    image = Image.new("RGB", (side, side), hue)
    draw = ImageDraw.Draw(image)
    box = (12, 12, 52, 52)
    if label == "circle":
        draw.ellipse(box, fill=(240, 240, 240))
    elif label == "square":
        draw.rectangle(box, fill=(20, 20, 20))
    else:
        for x in range(12, 52, 8):
            draw.rectangle((x, 12, x + 3, 52), fill=(250, 200, 40))
    row, col = (i.reshape(-1) for i in np.mgrid[0:GRID, 0:GRID])
    inside = (row >= 2) & (row <= 5) & (col >= 2) & (col <= 5)
    around = (row >= 1) & (row <= 6) & (col >= 1) & (col <= 6)
    region = np.where(inside, 1, np.where(around, 2, 0))
    record = SampleRecord(
        num_tokens=GRID * GRID,
        label=label if labels else None,
        prediction=label if rng.random() < 0.75 else SHAPES[0],
        confidence=float(rng.uniform(0.4, 1)),
        loss=float(rng.exponential(1.0)),
        image=png_bytes(image),
        grid=(GRID, GRID),
        source=f"{label}/{number:04d}.png",
    )
    return record, {"row": row, "col": col, "region": region, "taste": region}


def _text(rng: np.random.Generator, number: int, labels: bool) -> tuple[SampleRecord, dict[str, np.ndarray]]:
    """Words of one domain joined by spaces; a token is a word."""
    label = list(DOMAINS)[number % len(DOMAINS)]
    words = [str(word) for word in rng.choice(DOMAINS[label], size=int(rng.integers(8, 30)))]
    token_id = np.array([VOCABULARY.index(word) for word in words])
    loss = rng.exponential(2.0, len(words))
    loss[0] = np.nan
    record = SampleRecord(
        num_tokens=len(words),
        label=label if labels else None,
        text=" ".join(words),
        loss=float(np.nanmean(loss)),
        source=f"{label}.txt line {number}",
    )
    return record, {"token_id": token_id, **joined(words), "loss": loss, "taste": token_id}


def _batch(
    rng: np.random.Generator,
    parts: list[tuple[SampleRecord, dict[str, np.ndarray]]],
    prototypes: np.ndarray,
    info: RunInfo,
    bank: list[ModuleInfo],
    chunk: int,
) -> TraceBatch:
    """Ribbons near the prototype that a token's label and kind prefer, and everything that goes with them."""
    num_steps, top_k = info.num_steps, info.top_k
    columns = columns_of(parts)
    label_n = np.concatenate([np.full(record.num_tokens, _hash_of(record.source)) for record, _ in parts])
    n = len(label_n)
    favourite = (columns.pop("taste") * 3 + label_n) % 7
    wandering = np.minimum(rng.zipf(1.5, n) - 1, len(prototypes) - 1)
    choice = np.where(rng.random(n) < 0.6, favourite, wandering)
    ids = prototypes[choice].copy()
    strays = rng.random((n, num_steps)) < 0.1
    ids[strays] = _distinct_choices(rng, n, num_steps, info.num_modules, top_k)[strays]
    weights = falling_weights(rng, n, num_steps, info.num_modules, top_k)
    decided = np.arange(n) // chunk * chunk
    ids, weights = ids[decided], weights[decided]
    flops_M = np.array([module.flops_per_token for module in bank])
    return routed(
        [record for record, _ in parts],
        ids,
        weights=weights,
        gate_entropy=rng.uniform(0, np.log(info.num_modules), (n, num_steps)).astype(np.float32),
        flops=flops_M[ids].sum(axis=(1, 2)).astype(np.float32),
        **columns,
    )


def _hash_of(source: str | None) -> int:
    """A small number from the label part of ``source``, the same in every process."""
    return sum((source or "").replace("/", ".").split(".")[0].encode()) % 5
