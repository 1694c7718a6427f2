"""A realistic made-up run of any size, through the real writer and the real sealing.

    python -m tests.support.runs.synthetic --tokens 1e6 --modality text --out runs/big.duckdb

What a run must look like for a page to be as slow as with a real one: paths of a power law (distinct paths grow as
n^0.76), flows that are uneven and follow the step before, tokens whose path depends on their word or region, on the
label and on their sample, texts of very different lengths or pictures with a patch grid, losses, an untrained twin.
Everything is a function of the arguments; a batch is made, written and forgotten, so 10^8 tokens take no more memory
than the writer needs for the paths (60 bytes each). The routing is nobody's: use it for time, never for a finding.

Shapes: n tokens of a batch, b samples, S steps, K slots, M modules.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from tests.support.runs.arrays import png_bytes, run_info, write_batches
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo, RunInfo, SampleRecord, TraceBatch

LEAST_TOKENS, MOST_TOKENS = 1000, 10**9
BATCH_TOKENS = 65_536
GRID, CELL = 14, 4
"""a picture has 14 × 14 patches of 4 × 4 pixels"""
VOCABULARY = 8192
MEAN_LENGTH, LONGEST = 256, 2048
"""tokens of a text"""
PATH_EXPONENT = 1.316
"""share of the path of rank r ∝ r^−1.316; the number of distinct paths then grows as n^0.76"""
WORD_EXPONENT = 1.1
MOST_TWIN_TOKENS = 1_000_000
IDENTITIES = 2
LABELS = {
    "text": ("novel", "news", "code", "letters", "manual", "verse", "law", "chat"),
    "vision": ("apple", "boat", "cat", "door", "eagle", "flower", "guitar", "house", "island", "jug"),
}
REGIONS = ("background", "object", "boundary")
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class SyntheticRun:
    """What run to make: its size and shape, and the seed of everything drawn.

    Raises:
        UserError: a size outside its limits, with ``field`` set.
    """

    run_id: str
    tokens: int = 1_000_000
    steps: int = 10
    modules: int = 18
    top_k: int = 1
    modality: Literal["text", "vision"] = "text"
    seed: int = 0
    routing: int = 0
    """another number: other routes over the same samples, as a second model has them"""

    def __post_init__(self) -> None:
        _within("tokens", self.tokens, LEAST_TOKENS, MOST_TOKENS)
        _within("steps", self.steps, 1, 256)
        _within("modules", self.modules, IDENTITIES + 2, 4096)
        _within("top_k", self.top_k, 1, self.modules - IDENTITIES)
        if self.modality not in LABELS:
            raise UserError(f"modality is {self.modality[:20]!r}, it should be text or vision", field="modality")

    def info(self) -> RunInfo:
        text = self.modality == "text"
        return run_info(
            self.run_id,
            model=f"synthetic-{self.modality}",
            modality=self.modality,
            dataset=f"synthetic {self.modality}",
            num_steps=self.steps,
            num_modules=self.modules,
            top_k=self.top_k,
            weight_semantics={"score": "softmax", "renormalised": self.top_k > 1, "bias": True},
            config={"synthetic": True, "seed": self.seed, "tokens": self.tokens},
            engine_version="synthetic",
            regions=() if text else REGIONS,
            token_texts=dict(enumerate(self.words)) if text else {},
        )

    def bank(self) -> list[ModuleInfo]:
        """The last two modules do nothing, so that compute differs between tokens."""
        working = self.modules - IDENTITIES
        bank = [ModuleInfo(None, m, f"block {m}", "transformer", 1_774_464, 3_539_000) for m in range(working)]
        return bank + [ModuleInfo(None, working + i, f"identity {i}", "identity", 0, 0) for i in range(IDENTITIES)]

    @cached_property
    def words(self) -> list[str]:
        """The vocabulary: short words first, as in a language."""
        rng = np.random.default_rng([self.seed, 1])
        syllables = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
        words = dict.fromkeys((".", ","))
        while len(words) < VOCABULARY:
            length = 1 + len(words) // 700 // 2 + int(rng.integers(0, 2))
            words["".join(rng.choice(syllables, length))] = None
        return list(words)

    @cached_property
    def module_shares(self) -> np.ndarray:
        """(S, M + 1) running shares of the modules at each step, each step in an order of its own."""
        rng = np.random.default_rng([self.seed, 2])
        shares = np.arange(1, self.modules + 1) ** -0.7
        shuffled = np.stack([rng.permutation(shares) for _ in range(self.steps)])
        running = np.cumsum(shuffled, axis=1)
        return running / running[:, -1:]

    @cached_property
    def followers(self) -> np.ndarray:
        """(S, M) where half of a module's paths go at the next step."""
        rng = np.random.default_rng([self.seed, 3])
        return np.stack([rng.permutation(self.modules) for _ in range(self.steps)])


def write_run(spec: SyntheticRun, runs_dir: Path, *, overwrite: bool = False) -> Path:
    """Write the run ``<runs_dir>/<run_id>.duckdb``; UserError as ``RunWriter`` has it."""
    return write_batches(runs_dir, spec.info(), spec.bank(), batches_with_twins(spec), overwrite=overwrite)


def batches_with_twins(spec: SyntheticRun) -> Iterator[tuple[TraceBatch, np.ndarray | None]]:
    """The batches, and the twin's ribbons (n, S, K) that go with each of the first million tokens."""
    for number, batch in enumerate(batches(spec)):
        twin = None
        if number * BATCH_TOKENS < MOST_TWIN_TOKENS:
            rng = np.random.default_rng([spec.seed, 4, number])
            twin = ribbons(spec, power_law_ranks(rng, batch.num_tokens, 1.15).astype(np.uint64) * _ODD)
        yield batch, twin


def number_of_batches(spec: SyntheticRun) -> int:
    """How many there are, without making them."""
    left, number = spec.tokens, 0
    while left:
        left -= int(_lengths(spec, np.random.default_rng([spec.seed, 0, number]), left).sum())
        number += 1
    return number


def batches(spec: SyntheticRun) -> Iterator[TraceBatch]:
    """All tokens of the run in batches of whole samples; the last sample is cut so that the number is exact."""
    left, number = spec.tokens, 0
    while left:
        rng = np.random.default_rng([spec.seed, 0, number])
        lengths = _lengths(spec, rng, left)
        yield _batch(spec, rng, lengths, number)
        left -= int(lengths.sum())
        number += 1


def power_law_ranks(rng: np.random.Generator, size: int, exponent: float) -> np.ndarray:
    """(size,) ranks ≥ 1, drawn with P(rank ≥ r) = r^(1 − exponent): a few ranks often, most of them once."""
    return np.floor((1.0 - rng.random(size)) ** (-1.0 / (exponent - 1.0))).clip(1, 2.0**60).astype(np.int64)


def ribbons(spec: SyntheticRun, paths_n: np.ndarray) -> np.ndarray:
    """(n, S, K) the ribbon that each path number (n,) uint64 stands for: the same number, the same ribbon.

    Half of the choices follow from the module before, the others from the step's own preferences.
    """
    n, modules = len(paths_n), spec.modules
    ids = np.empty((n, spec.steps, spec.top_k), dtype=np.int64)
    for step in range(spec.steps):
        choice = hashed(paths_n, 2 * step)
        own = np.searchsorted(spec.module_shares[step], choice, side="right").clip(max=modules - 1)
        ids[:, step, 0] = own
        if step:
            led = hashed(paths_n, 2 * step + 1) < 0.5
            ids[led, step, 0] = spec.followers[step - 1][ids[led, step - 1, 0]]
        for slot in range(1, spec.top_k):
            # A number that the slots before did not take: the next free one from where the hash points.
            wanted = (hashed(paths_n, 1000 * slot + step) ** 2 * modules).astype(np.int64)
            taken = (wanted[:, None] == ids[:, step, :slot]).any(axis=1)
            while taken.any():
                wanted[taken] = (wanted[taken] + 1) % modules
                taken = (wanted[:, None] == ids[:, step, :slot]).any(axis=1)
            ids[:, step, slot] = wanted
    return ids


def hashed(numbers: np.ndarray, salt: int) -> np.ndarray:
    """(n,) numbers in [0, 1) that look random and follow from ``numbers`` (uint64) and ``salt`` alone."""
    words = numbers ^ np.uint64((salt + 1) * 0xD1342543DE82EF95 % 2**64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return ((words ^ (words >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _lengths(spec: SyntheticRun, rng: np.random.Generator, left: int) -> np.ndarray:
    """Tokens of the samples of one batch: pictures are all alike, texts many short and few long."""
    if spec.modality == "vision":
        drawn = np.full(BATCH_TOKENS // GRID**2, GRID**2)
    else:
        spread = 0.8
        drawn = rng.lognormal(np.log(MEAN_LENGTH) - spread**2 / 2, spread, BATCH_TOKENS // MEAN_LENGTH)
        drawn = drawn.astype(np.int64).clip(8, LONGEST)
    ends = np.cumsum(drawn)
    if ends[-1] <= left:
        return drawn
    last = int(np.searchsorted(ends, left))
    return np.append(drawn[:last], left - (ends[last] - drawn[last]))


def _batch(spec: SyntheticRun, rng: np.random.Generator, lengths: np.ndarray, number: int) -> TraceBatch:
    n = int(lengths.sum())
    names = LABELS[spec.modality]
    label_b = power_law_ranks(rng, len(lengths), 1.8) % len(names)
    label_n = np.repeat(label_b, lengths)
    draw = _texts if spec.modality == "text" else _pictures
    samples, columns, kind_n = draw(spec, rng, lengths, label_b, number)
    ids = ribbons(spec, _paths(rng, kind_n, label_n, lengths) + np.uint64(spec.routing) * _ODD)
    weights, entropy = _weights(rng, n, spec)
    working = spec.modules - IDENTITIES
    return TraceBatch(
        samples=samples,
        module_ids=ids,
        weights=weights,
        gate_entropy=entropy,
        flops=(3_539_000 * (ids < working).sum(axis=(1, 2))).astype(np.float32),
        **columns,
    )


def _paths(rng: np.random.Generator, kind_n: np.ndarray, label_n: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(n,) path numbers: some follow the token's kind, some its label, some its sample, the rest nobody."""
    n = len(kind_n)
    ranks = power_law_ranks(rng, n, PATH_EXPONENT).astype(np.uint64)
    sample_n = np.repeat(rng.integers(0, 2000, len(lengths)), lengths)
    why = rng.random(n)
    of = np.where(why < 0.35, 1 + kind_n, np.where(why < 0.55, 10_000 + label_n, 20_000 + sample_n * (why < 0.7)))
    return (ranks + (of.astype(np.uint64) << np.uint64(44))) * _ODD


def _weights(rng: np.random.Generator, n: int, spec: SyntheticRun) -> tuple[np.ndarray, np.ndarray]:
    """(n, S, K) falling weights, of sum 1 for several slots, and (n, S) gate entropy in nats that goes with them."""
    first = rng.beta(5.0, 2.0, (n, spec.steps)).astype(np.float32)
    entropy = ((1.0 - first) * np.log(spec.modules)).astype(np.float32)
    if spec.top_k == 1:
        return first[:, :, None], entropy
    falling = first[:, :, None] ** np.arange(1, spec.top_k + 1, dtype=np.float32)
    return falling / falling.sum(axis=2, keepdims=True), entropy


def _texts(spec: SyntheticRun, rng: np.random.Generator, lengths: np.ndarray, label_b: np.ndarray, number: int):
    """Words joined by spaces, a token each; a label prefers words of its own."""
    n = int(lengths.sum())
    own = rng.random(n) < 0.3
    ranks = (power_law_ranks(rng, n, 1 + 1 / WORD_EXPONENT) - 1) % VOCABULARY
    token_id = np.where(own, (ranks * 7 + 131 * np.repeat(label_b, lengths) + 50) % VOCABULARY, ranks)
    loss = rng.gamma(2.0, 1.5, n).astype(np.float32)
    ends = np.cumsum(lengths)
    loss[ends - 1] = np.nan
    widths = word_widths(spec)[token_id]
    stops = np.cumsum(widths + 1)
    before = np.repeat(np.concatenate([[0], stops[ends[:-1] - 1]]), lengths)
    words, samples = spec.words, []
    for i, (start, end) in enumerate(zip(ends - lengths, ends, strict=True)):
        samples.append(
            SampleRecord(
                num_tokens=int(end - start),
                label=LABELS["text"][label_b[i]],
                text=" ".join([words[t] for t in token_id[start:end].tolist()]),
                source=f"part {number}, text {i}",
            )
        )
    char_start = stops - widths - 1 - before
    columns = {"token_id": token_id, "char_start": char_start, "char_end": char_start + widths, "loss": loss}
    return samples, columns, token_id


def word_widths(spec: SyntheticRun) -> np.ndarray:
    """(VOCABULARY,) characters of each word."""
    return np.array([len(word) for word in spec.words])


def _pictures(spec: SyntheticRun, rng: np.random.Generator, lengths: np.ndarray, label_b: np.ndarray, number: int):
    """An ellipse on a background; a picture whose tokens were cut has the full grid all the same."""
    row, col = (i.reshape(-1) for i in np.mgrid[0:GRID, 0:GRID])
    names = LABELS["vision"]
    samples, regions = [], []
    for i, (length, label) in enumerate(zip(lengths.tolist(), label_b.tolist(), strict=True)):
        middle, radius = rng.uniform(4, 9, 2), rng.uniform(2.5, 5, 2)
        away = ((row + 0.5 - middle[0]) / radius[0]) ** 2 + ((col + 0.5 - middle[1]) / radius[1]) ** 2
        region = np.where(away < 0.7, 1, np.where(away < 1.5, 2, 0))
        right = rng.random() < 0.8
        samples.append(
            SampleRecord(
                num_tokens=length,
                label=names[label],
                prediction=names[label if right else (label + 1) % len(names)],
                confidence=float(rng.uniform(0.4, 1.0)),
                loss=float(rng.exponential(0.3 if right else 2.0)),
                image=thumbnail(rng, region, label),
                grid=(GRID, GRID),
                source=f"{names[label]}/{number}-{i}.png",
            )
        )
        regions.append(region[:length])
    region_n = np.concatenate(regions)
    place = [np.concatenate([of[:length] for length in lengths.tolist()]) for of in (row, col)]
    return samples, {"row": place[0], "col": place[1], "region": region_n}, region_n


def thumbnail(rng: np.random.Generator, region: np.ndarray, label: int) -> bytes:
    """PNG of 56 × 56 pixels: the regions in the colours of the label, with a little noise."""
    colours = np.random.default_rng(label).integers(40, 220, (len(REGIONS), 3))
    pixels = colours[region].reshape(GRID, GRID, 3).repeat(CELL, axis=0).repeat(CELL, axis=1)
    pixels = pixels + rng.integers(-6, 7, (GRID * CELL, GRID * CELL, 1))
    return png_bytes(Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), compress_level=1)


def _within(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UserError(f"{name} is {value}, it should be {least} to {most}", field=name)


def count(text: str) -> int:
    """``1e6`` or ``1000000``."""
    return int(float(text))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=count, default=1_000_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--modules", type=int, default=18)
    parser.add_argument("--top-k", type=int, default=1)
    parser.add_argument("--modality", choices=sorted(LABELS), default="text")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--routing", type=int, default=0, help="another number: other routes over the same samples")
    parser.add_argument("--out", type=Path, required=True, help="the file to write; its name is the run's")
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    out: Path = options.out
    started = time.perf_counter()
    try:
        if out.suffix != ".duckdb":
            raise UserError(f"--out is {out.name!r}, it should end in .duckdb", field="out")
        spec = SyntheticRun(
            out.stem,
            options.tokens,
            options.steps,
            options.modules,
            options.top_k,
            options.modality,
            options.seed,
            options.routing,
        )
        file = write_run(spec, out.parent, overwrite=options.overwrite)
    except UserError as error:
        sys.exit(f"{error}")
    size, took = file.stat().st_size, time.perf_counter() - started
    print(f"{file}: {spec.tokens:,} tokens, {size / 1e6:,.1f} MB, {took:.1f} s")


if __name__ == "__main__":
    main()
