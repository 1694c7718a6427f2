"""Small believable runs for tests: correlated routing, labels, regions, pictures or texts, a twin.

Not a model's output: tokens follow a few prototype ribbons (some labels prefer some of them) and
leave them now and then, so that paths are frequent and rare, flows are uneven and labels matter.
Everything is a function of the arguments.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from tokenpaths.engine.adapters.expert_runs import ExpertLayer, expert_modules
from tokenpaths.engine.base.records import ModuleInfo, RunInfo, SampleRecord, TraceBatch
from tokenpaths.engine.store.write.writer import RunWriter

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


@dataclass(frozen=True)
class Made:
    """What was written: the raw material for naive recomputation."""

    info: RunInfo
    modules: list[ModuleInfo]
    batches: list[TraceBatch]
    twin: np.ndarray
    """(n, S, K)"""

    @property
    def ids(self) -> np.ndarray:
        """All ribbons (n, S, K) in slot order."""
        return np.concatenate([batch.module_ids for batch in self.batches])

    @property
    def weights(self) -> np.ndarray:
        return np.concatenate([batch.weights for batch in self.batches])

    @property
    def samples(self) -> list[SampleRecord]:
        return [sample for batch in self.batches for sample in batch.samples]

    def per_token(self, values: list) -> list:
        """Repeat one value a sample for each of its tokens."""
        return [v for v, s in zip(values, self.samples, strict=True) for _ in range(s.num_tokens)]

    def write(self, runs_dir: Path, *, overwrite: bool = False) -> Path:
        writer = RunWriter(runs_dir, self.info, self.modules, overwrite=overwrite)
        with writer:
            for batch in self.batches:
                writer.write(batch)
            if len(self.twin):
                writer.write_twin(self.twin)
        return writer.file


def make_run(
    runs_dir: Path,
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
    split: str = "validation",
    overwrite: bool = False,
) -> Path:
    """Write a small run through the real writer and return its file."""
    made = make(
        run_id,
        modality,
        samples=samples,
        steps=steps,
        modules=modules,
        top_k=top_k,
        identities=identities,
        seed=seed,
        labels=labels,
        twin=twin,
        split=split,
    )
    return made.write(Path(runs_dir), overwrite=overwrite)


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
) -> Made:
    """The arrays of such a run, not written yet; the last ``identities`` modules do nothing.

    ``chunk`` tokens one after the other share a decision.
    """
    rng = np.random.default_rng(seed)
    info = RunInfo(
        run_id=run_id,
        model=f"toy-{modality}",
        family="dna",
        modality=modality,
        dataset=f"toy {modality}",
        split=split,
        num_steps=steps,
        num_modules=modules,
        top_k=top_k,
        weight_semantics={"score": "softmax", "renormalised": False, "bias": identities > 0},
        config={"width": 8, "steps": steps, "seed": seed},
        checkpoint_sha256="0" * 64,
        engine_version="0.1.0",
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
    return Made(info, bank, batches, _distinct_choices(rng, size, steps, modules, top_k))


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
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
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
        image=buffer.getvalue(),
        grid=(GRID, GRID),
        source=f"{label}/{number:04d}.png",
    )
    return record, {"row": row, "col": col, "region": region, "taste": region}


def _text(rng: np.random.Generator, number: int, labels: bool) -> tuple[SampleRecord, dict[str, np.ndarray]]:
    """Words of one domain joined by spaces; a token is a word."""
    label = list(DOMAINS)[number % len(DOMAINS)]
    words = [str(word) for word in rng.choice(DOMAINS[label], size=int(rng.integers(8, 30)))]
    lengths = np.array([len(word) for word in words])
    start = np.cumsum(lengths + 1) - lengths - 1
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
    return record, {
        "token_id": token_id,
        "char_start": start,
        "char_end": start + lengths,
        "loss": loss,
        "taste": token_id,
    }


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
    columns = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
    label_n = np.concatenate([np.full(record.num_tokens, hash_of(record.source)) for record, _ in parts])
    n = len(label_n)
    favourite = (columns.pop("taste") * 3 + label_n) % 7
    wandering = np.minimum(rng.zipf(1.5, n) - 1, len(prototypes) - 1)
    choice = np.where(rng.random(n) < 0.6, favourite, wandering)
    ids = prototypes[choice].copy()
    strays = rng.random((n, num_steps)) < 0.1
    ids[strays] = _distinct_choices(rng, n, num_steps, info.num_modules, top_k)[strays]
    weights = -np.sort(-rng.dirichlet(np.ones(info.num_modules), (n, num_steps)), axis=2)[:, :, :top_k]
    decided = np.arange(n) // chunk * chunk
    ids, weights = ids[decided], weights[decided]
    flops_M = np.array([module.flops_per_token for module in bank])
    return TraceBatch(
        samples=[record for record, _ in parts],
        module_ids=ids,
        weights=weights.astype(np.float32),
        gate_entropy=rng.uniform(0, np.log(info.num_modules), (n, num_steps)).astype(np.float32),
        flops=flops_M[ids].sum(axis=(1, 2)).astype(np.float32),
        **columns,
    )


def make_experts(
    run_id: str = "experts",
    *,
    layers: int = 4,
    experts: int = 16,
    top_k: int = 2,
    samples: int = 9,
    length: int = 24,
    dead: int = 1,
    seed: int = 0,
    labels: bool = True,
    text: bool = True,
    token_ids: bool = True,
    series: tuple[str, int] | None = None,
    drift: float = 0.0,
) -> Made:
    """The arrays of a mixture of experts: each module belongs to its step; quick at 64 layers × 256 experts.

    A token takes, layer by layer, the experts of its own word, of its domain, or of everybody, each a tuple drawn
    once; the last ``dead`` experts of every other layer are never taken. ``text`` and ``token_ids`` False: as a log
    gives it. ``series`` (name, iteration) makes it a checkpoint of a training; ``drift`` is the share of decisions
    that are drawn anew, from a seed of the iteration, while words and domains stay those of ``seed``.
    """
    rng = np.random.default_rng(seed)
    config = {"seed": seed} | ({"series": {"name": series[0], "iteration": series[1]}} if series else {})
    info = RunInfo(
        run_id=run_id,
        model="toy-experts",
        family="moe",
        modality="text",
        dataset="toy texts",
        split="validation",
        num_steps=layers,
        num_modules=experts,
        top_k=top_k,
        weight_semantics={"score_function": "softmax"},
        config=config,
        checkpoint_sha256="",
        engine_version="0.1.0",
        token_texts=dict(enumerate(VOCABULARY)) if text else {},
    )
    bank = expert_modules([ExpertLayer(f"layer {layer}", experts, 1000, 2000) for layer in range(layers)])
    alive = np.array([experts - dead * (layer % 2) for layer in range(layers)])
    tuples = {
        kind: _tuples(rng, size, alive, top_k) for kind, size in (("word", len(VOCABULARY)), ("domain", 3), ("all", 8))
    }
    wandering = np.random.default_rng([seed, 0 if series is None else 1 + series[1]])
    batches = []
    for start in range(0, samples, 5):
        parts = [_expert_text(rng, number, length, labels, text) for number in range(start, min(start + 5, samples))]
        columns = {name: np.concatenate([part[1][name] for part in parts]) for name in parts[0][1]}
        word_n, domain_n = columns["token_id"], columns.pop("domain")
        n = len(word_n)
        kind_nS = rng.random((n, layers))
        everybody_nS = np.minimum(rng.zipf(1.6, (n, layers)) - 1, 7)
        step_S = np.arange(layers)
        ids = tuples["all"][everybody_nS, step_S]
        for kind, of_n, below in (("domain", domain_n, 0.65), ("word", word_n, 0.35)):
            taken = kind_nS < below
            ids[taken] = tuples[kind][of_n[:, None], step_S][taken]
        again = wandering.random((n, layers)) < drift
        ids[again] = tuples["all"][wandering.integers(0, 8, (n, layers)), step_S][again]
        weights = -np.sort(-rng.dirichlet(np.ones(top_k + 1), (n, layers)), axis=2)[:, :, :top_k]
        if not text:
            columns = {"token_id": columns["token_id"]}
        if not token_ids:
            columns.pop("token_id")
        batches.append(
            TraceBatch(
                samples=[record for record, _ in parts],
                module_ids=ids,
                weights=weights.astype(np.float32),
                gate_entropy=np.full((n, layers), np.nan, dtype=np.float32),
                flops=np.zeros(n, dtype=np.float32),
                **columns,
            )
        )
    return Made(info, bank, batches, np.zeros((0, layers, top_k), dtype=np.int64))


def _tuples(rng: np.random.Generator, size: int, alive: np.ndarray, top_k: int) -> np.ndarray:
    """(size, S, K) distinct experts among the first ``alive`` of each layer."""
    scores = rng.random((size, len(alive), int(alive.max())))
    scores[:, np.arange(scores.shape[2]) >= alive[:, None]] = 2.0
    return scores.argsort(axis=2)[:, :, :top_k]


def _expert_text(
    rng: np.random.Generator, number: int, length: int, labels: bool, text: bool
) -> tuple[SampleRecord, dict[str, np.ndarray]]:
    """Words of one domain; without ``text`` only their number."""
    domain = number % len(DOMAINS)
    label = list(DOMAINS)[domain]
    words = [str(word) for word in rng.choice(DOMAINS[label], size=length)]
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    starts = ends - [len(word) for word in words]
    record = SampleRecord(
        num_tokens=length,
        label=label if labels else None,
        text=" ".join(words) if text else None,
        source=f"{label}.txt line {number}",
    )
    token_id = np.array([VOCABULARY.index(word) for word in words])
    return record, {"token_id": token_id, "char_start": starts, "char_end": ends, "domain": np.full(length, domain)}


def hash_of(source: str | None) -> int:
    """A small number from the label part of ``source``, the same in every process."""
    return sum((source or "").replace("/", ".").split(".")[0].encode()) % 5


def with_changes(made: Made, **changes: object) -> Made:
    """``made`` with fields of its first batch replaced, checks of the dataclass bypassed."""
    batch = replace(made.batches[0])
    for name, value in changes.items():
        object.__setattr__(batch, name, value)
    return replace(made, batches=[batch, *made.batches[1:]])
