"""One recording by several processes: each writes a part, rank 0 merges the parts into one run.

The processes meet in a hidden folder beside the run. Each but rank 0 writes ``rank-0001.parquet`` (a row is a
sample) and then a manifest with its SHA-256; rank 0 waits for all manifests, appends the parts in the order of the
ranks, seals, and says so in ``done.json``. Nobody waits inside a collective, so a process that fails stops nobody
for longer than ``WAIT_S`` since it was last heard of: training and sealing may take longer, and every process gives
signs of life from its first pass to its last word. The last one to leave removes the folder.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed as dist

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import HolderLock, fsync_file, write_atomically
from tokenpaths.engine.base.records import SampleRecord, TraceBatch
from tokenpaths.engine.models.checkpoint import file_sha256

WAIT_S = 600.0
"""timeout for signs of life of the other processes after a process finished its own part, seconds"""
BEAT_S = 5.0
_POLL_S = 0.02
_DONE, _PLAN = "done.json", "plan.json"
RECORD_APART = "record each process for itself, with merge=False and a name of its own"
"""advice where the parts of several processes are no run together"""
_OF_A_SAMPLE = ("num_tokens", "label", "text", "source")
_SCHEMA = pa.schema(
    [
        ("num_tokens", pa.int32()),
        *((name, pa.string()) for name in ("label", "text", "source")),
        *((name, pa.binary()) for name in ("ids", "weights", "entropy", "margin", "runner_up", "token_id")),
    ]
)


def processes() -> tuple[int, int]:
    """Rank and number of processes of the default group; (0, 1) without one."""
    if not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def agree(run_id: str, runs_dir: Path, problem: str | None, composition: str) -> Meeting:
    """Collective call: start the recording of one run in all processes, or in none.

    ``problem`` is a message of this process that prevents it, ``composition`` what should be equal of all processes'
    models. Every process must call this.

    Raises:
        UserError: in every process alike: a problem of any, different names or models, or a folder not visible to all.
    """
    rank, world = processes()
    everyone: list[Any] = [None] * world
    dist.all_gather_object(everyone, (run_id, problem, composition))
    names = sorted({name for name, _, _ in everyone})
    if len(names) > 1:
        raise UserError(
            f"the {world} processes record different runs ({', '.join(names[:4])}): give all of them one "
            "name, or merge=False",
            field="run",
        )
    for sentence in (other for _, other, _ in everyone if other):
        raise UserError(sentence, field="run")
    others = [str(other) for other, (_, _, theirs) in enumerate(everyone) if theirs != everyone[0][2]]
    if others:
        raise UserError(
            f"the model of process 0 has other modules than that of process {', '.join(others[:4])}, as the stages of "
            f"a pipeline have, so their layers are not one run: {RECORD_APART}",
            field="model",
        )
    made: list[Any] = [None]
    lock = HolderLock(runs_dir / f".{run_id}.recording.lock")
    trouble = None
    if rank == 0:
        try:
            runs_dir.mkdir(parents=True, exist_ok=True)
            lock.acquire()
            for old in runs_dir.glob(f".{run_id}.parts-*"):  # of processes that were killed
                shutil.rmtree(old, ignore_errors=True)
            made = [f".{run_id}.parts-{uuid.uuid4().hex[:12]}"]
            (runs_dir / made[0]).mkdir()
        except (OSError, UserError) as error:
            trouble = str(error)
    dist.broadcast_object_list(made, src=0)
    folder = runs_dir / str(made[0])
    if made[0] is not None and not folder.is_dir():
        trouble = f"process {rank} cannot see the folder {folder}: give all processes one shared runs_dir"
    dist.all_gather_object(everyone, trouble)
    for sentence in filter(None, everyone):
        if rank == 0:
            lock.release()
            if made[0] is not None:
                shutil.rmtree(folder, ignore_errors=True)
        raise UserError(sentence, field="runs_dir")
    return Meeting(folder, rank, world, lock)


class Meeting:
    """The folder through which the processes of one recording report their state to each other."""

    def __init__(self, folder: Path, rank: int, world: int, lock: HolderLock) -> None:
        self.folder, self.rank, self.world, self._lock = folder, rank, world, lock

    def tell(self, content: dict[str, Any], name: str | None = None) -> None:
        """Write a message atomically; by default the manifest of this process."""
        write_atomically(self.folder / (name or _manifest(self.rank)), json.dumps(content).encode())

    def differs(self, plan: dict[str, Any]) -> bool | None:
        """Whether ``plan`` of this process is another than that of process 0; None: that has none yet."""
        if self.rank == 0:
            self.tell(plan, _PLAN)
            return False
        try:
            first = json.loads((self.folder / _PLAN).read_bytes())
        except OSError:
            return None
        return bool(first != plan)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Send signs of life every ``BEAT_S`` while the block runs."""
        over = threading.Event()

        def beat() -> None:
            number = 0
            while not over.is_set():
                with suppress(OSError):
                    (self.folder / _sign(self.rank)).write_text(str(number))
                number += 1
                over.wait(BEAT_S)

        thread = threading.Thread(target=beat, name=f"alive {self.rank}", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def leave(self) -> None:
        """Leave the folder; the last process removes it."""
        (self.folder / f"left-{self.rank}").touch()
        if all((self.folder / f"left-{rank}").exists() for rank in range(self.world)):
            shutil.rmtree(self.folder, ignore_errors=True)
        if self.rank == 0:
            self._lock.release()

    def fail(self, why: str) -> None:
        """Report that this process failed, and leave."""
        part_file(self.folder, self.rank).unlink(missing_ok=True)
        problem = {"problem": f"process {self.rank} gave up: {why[:300]}"}
        self.tell(problem)
        if self.rank == 0:
            self.tell(problem, _DONE)
        self.leave()

    def others(self) -> list[dict[str, Any]]:
        """Wait for the manifests of ranks 1 …; UserError if one failed or timed out."""
        manifests = [self._read(_manifest(rank), f"process {rank}", rank) for rank in range(1, self.world)]
        for manifest in manifests:
            if "problem" in manifest:
                raise UserError(manifest["problem"] + "; nothing of this run was kept")
        return manifests

    def outcome(self) -> Path:
        """Wait for the sealed file announced by rank 0; UserError with its message if it failed."""
        outcome = self._read(_DONE, "process 0, which merges the parts,", 0)
        if "problem" in outcome:
            raise UserError(outcome["problem"] + "; nothing of this run was kept")
        return Path(outcome["file"])

    def announce(self, file: Path) -> None:
        self.tell({"file": str(file)}, _DONE)

    def _read(self, name: str, who: str, rank: int) -> dict[str, Any]:
        file, give_up = self.folder / name, time.monotonic() + WAIT_S
        heard = None
        while not file.exists():
            # A sign is new when it differs from the last: clocks of two machines are not compared.
            if (sign := self._sign_of(rank)) != heard:
                heard, give_up = sign, time.monotonic() + WAIT_S
            if time.monotonic() > give_up:
                raise UserError(f"{who} was not heard of for {WAIT_S:g} seconds: did it stop?")
            time.sleep(_POLL_S)
        content: dict[str, Any] = json.loads(file.read_bytes())
        return content

    def _sign_of(self, rank: int) -> str | None:
        try:
            return (self.folder / _sign(rank)).read_text()
        except OSError:
            return None


def _sign(rank: int) -> str:
    return f"alive-{rank:04d}"


def _manifest(rank: int) -> str:
    return f"rank-{rank:04d}.json"


def part_file(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:04d}.parquet"


class PartWriter:
    """Writes the batches of one process to one Parquet file, a row group per batch."""

    def __init__(self, meeting: Meeting) -> None:
        self.file = part_file(meeting.folder, meeting.rank)
        self._meeting = meeting
        self._writer = pq.ParquetWriter(self.file, _SCHEMA, compression="zstd")

    def write(self, batch: TraceBatch) -> None:
        """Append a batch, which is checked already; its samples keep label, text and source."""
        ends = np.cumsum([sample.num_tokens for sample in batch.samples])[:-1]

        def pieces(values: np.ndarray | None, kind: str) -> list[bytes | None]:
            if values is None:
                return [None] * len(batch.samples)
            return [part.tobytes() for part in np.split(np.ascontiguousarray(values, dtype=kind), ends)]

        columns = {name: [getattr(s, name) for s in batch.samples] for name in _OF_A_SAMPLE}
        columns |= {
            "ids": pieces(batch.module_ids, "<u2"),
            "weights": pieces(batch.weights, "<f4"),
            "entropy": pieces(batch.gate_entropy, "<f4"),
            "margin": pieces(batch.margin, "<f4"),
            "runner_up": pieces(batch.runner_up, "<u2"),
            "token_id": pieces(batch.token_id, "<i8"),
        }
        self._writer.write_table(pa.table(columns, schema=_SCHEMA))

    def seal(self, plan: dict[str, Any], notes: list[str], digests: dict[str, str] | None = None) -> None:
        """Close the part and publish its check sum, ``plan`` (the composition of its ribbons), its notes, and the
        ``digests`` of its tokens."""
        self._writer.close()
        fsync_file(self.file)
        self._meeting.tell({"sha256": file_sha256(self.file), "plan": plan, "notes": notes, "digests": digests})

    def abort(self) -> None:
        self._writer.close()
        self.file.unlink(missing_ok=True)


class TokenDigests:
    """Digests of the tokens of one process, by which processes that were given the same ones are told."""

    def __init__(self) -> None:
        self._tokens, self._choices = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)
        self._known = False

    def add(self, batch: TraceBatch) -> None:
        self._tokens.update(np.array([sample.num_tokens for sample in batch.samples], dtype="<i8").tobytes())
        if batch.token_id is not None:
            self._known = True
            self._tokens.update(np.ascontiguousarray(batch.token_id, dtype="<i8").tobytes())
        self._choices.update(np.ascontiguousarray(batch.module_ids, dtype="<u2").tobytes())

    def as_json(self) -> dict[str, str]:
        """``choices``: of the lengths of samples, the vocabulary ids and the experts; ``tokens``: without the experts,
        where vocabulary ids are known."""
        tokens = self._tokens.hexdigest()
        both = {"choices": tokens + self._choices.hexdigest()}
        return both | {"tokens": tokens} if self._known else both


def read_part(
    folder: Path, rank: int, sha256: str, shape: tuple[int, int], flops_of: Callable[[np.ndarray], np.ndarray]
) -> Iterator[TraceBatch]:
    """The batches of one part, for runs with ``shape`` (S, K); ``flops_of`` ids (n, S, K) are those of the tokens (n,).

    Raises:
        UserError: the part differs from what its process wrote.
    """
    file = part_file(folder, rank)
    if file_sha256(file) != sha256:
        raise UserError(f"the part of process {rank} is damaged: its check sum is not the one that was written")
    steps, top_k = shape
    with pq.ParquetFile(file) as parts:
        for group in range(parts.num_row_groups):
            rows = parts.read_row_group(group).to_pylist()

            def joined(name: str, kind: str, rows=rows) -> np.ndarray:
                return np.frombuffer(b"".join(row[name] for row in rows), dtype=kind)

            ids = joined("ids", "<u2").reshape(-1, steps, top_k)
            scored = all(row["margin"] is not None for row in rows)
            yield TraceBatch(
                samples=[SampleRecord(**{name: row[name] for name in _OF_A_SAMPLE}) for row in rows],
                module_ids=ids,
                weights=joined("weights", "<f4").reshape(ids.shape),
                gate_entropy=joined("entropy", "<f4").reshape(-1, steps),
                margin=joined("margin", "<f4").reshape(-1, steps) if scored else None,
                runner_up=joined("runner_up", "<u2").reshape(-1, steps) if scored else None,
                flops=flops_of(ids),
                token_id=joined("token_id", "<i8") if rows[0]["token_id"] is not None else None,
            )
