"""What the workers of one sealing share: a folder beside the shards with the plan and what they found.

    <shards>/.sealing-<seal>/   plan.json   0003.counts.npz   0003.ids.npy   0003.numbers.npz   0001.sums.npz   answers/

Everything is JSON and plain arrays; a file appears under its name when all of it is written, and a piece is locked
while a worker is at it, so one that is lost is started again without harm, also where it lives on.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.base.files import partial_file, write_atomically
from tokenpaths.engine.base.run_parts import part_file

PLAN = "plan.json"
_WORK = ".sealing-"
_META = "meta"


@dataclass(frozen=True)
class ShardPlace:
    """A shard, and what comes before it in the run."""

    folder: str
    first_row: int
    first_sample: int
    num_tokens: int
    first_soft: dict[str, int]
    """of each soft table, the row of its first value"""


@dataclass(frozen=True)
class SealPlan:
    """Who does what in one sealing; written once, read by every worker."""

    work: Path
    """folder of the sealing, which all workers see"""
    runs_dir: Path
    run_id: str
    seal: str
    """eight hexadecimal digits, in the name of every part"""
    shards: tuple[ShardPlace, ...]
    """those with tokens, in order"""
    groups: tuple[tuple[int, int], ...]
    """shards [first, stop) of each part"""
    least_free: int
    """bytes that every worker keeps free on the disk, as the command that was called does"""

    def write(self) -> None:
        """Write ``plan.json``."""
        write_atomically(self.work / PLAN, json.dumps(asdict(self), default=str, indent=1).encode())

    @classmethod
    def read(cls, work: Path) -> SealPlan:
        """The plan in a folder; OSError or ValueError if there is none."""
        kept = json.loads((work / PLAN).read_text())
        return cls(
            work,
            Path(kept["runs_dir"]),
            kept["run_id"],
            kept["seal"],
            tuple(ShardPlace(**shard) for shard in kept["shards"]),
            tuple((first, stop) for first, stop in kept["groups"]),
            kept["least_free"],
        )

    @property
    def partial_run(self) -> Path:
        """The run's file until it has its name."""
        return partial_file(self.runs_dir, self.run_id)

    @property
    def parts(self) -> list[Path]:
        """The files of all parts."""
        return [part_file(self.runs_dir, self.run_id, self.seal, number + 1) for number in range(len(self.groups))]

    def counts_file(self, shard: int) -> Path:
        """Distinct paths of a shard, by its place in ``shards``, and their counts."""
        return self.work / f"{shard:04d}.counts.npz"

    def ids_file(self, shard: int) -> Path:
        """(n,) int32, the number that the shard itself gave to the path of each token."""
        return self.work / f"{shard:04d}.ids.npy"

    def numbers_file(self, shard: int) -> Path:
        """Numbers that hold for the whole run: of the paths of a shard, of labels, of its first character."""
        return self.work / f"{shard:04d}.numbers.npz"

    def sums_file(self, part: int) -> Path:
        """What was summed up while a part, by its place in ``groups``, was written."""
        return self.work / f"{part:04d}.sums.npz"


def work_folder(shards: Path, seal: str) -> Path:
    """The folder of a sealing of the shards that lie in ``shards``."""
    return shards / f"{_WORK}{seal}"


def remove_lost(folders: Iterable[Path], runs_dir: Path, run_id: str) -> None:
    """Delete what sealings of a run that were killed left beside its shards, which are ``folders``.

    Call it with the run's lock: then no other sealing of the run is alive.
    """
    for work in {work for folder in folders for work in folder.resolve().parent.glob(f"{_WORK}*")}:
        with suppress(OSError, ValueError, KeyError, TypeError):  # no plan of ours: not ours to delete
            plan = SealPlan.read(work)
            if (plan.runs_dir, plan.run_id) == (Path(runs_dir).resolve(), run_id):
                shutil.rmtree(work, ignore_errors=True)


def save(file: Path, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write ``meta`` as JSON and ``arrays`` as they are, whole or not at all."""
    partial = file.with_name(f"{file.name}.{secrets.token_hex(4)}.partial")
    text = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    with open(partial, "wb") as opened:
        np.savez(opened, **{_META: text}, **arrays)  # type: ignore[arg-type]
    os.replace(partial, file)


def load(file: Path, only: Collection[str] | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What ``save`` wrote; of the arrays ``only`` these, if given."""
    with np.load(file, allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in kept.files if only is None or name in (_META, *only)}
    return json.loads(arrays.pop(_META).tobytes()), arrays
