"""What lets a training go on bit for bit where it stopped: changes that a state holds whole or not at all, the settings
and the precision of a state, one process a folder."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from tokenpaths.engine.base.device import gains_by_bfloat16
from tokenpaths.engine.base.errors import Held, UserError
from tokenpaths.engine.base.files import HolderLock, write_atomically
from tokenpaths.engine.families.checkpoint_config import TOKENIZER
from tokenpaths.engine.models.checkpoint import file_sha256

DATA = "data.json"


class Resumable:
    """A run in memory whose state is saved now and then."""

    whole = True
    """whether weights, moments, counters and history are all of the same moment; only then may they be saved"""


@contextlib.contextmanager
def indivisible(run: Resumable) -> Iterator[None]:
    """Around changes that belong together: Ctrl-C waits for their end, and one that fails leaves the run not whole."""
    with _interrupts_held_back():
        run.whole = False
        yield
        run.whole = True


@contextlib.contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Whoever handles SIGINT hears of one that comes meanwhile at the end."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # Python interrupts the main thread only, and only where it handles the signal
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        signal.raise_signal(signal.SIGINT)


def same_settings(told: Any, recipe: BaseModel) -> bool:
    """Whether a state is of this recipe; what was added to recipes since has its default there."""
    try:
        return type(recipe)(**told) == recipe
    except (TypeError, ValidationError):
        return False


def takes_bfloat16(state: Mapping[str, Any], wanted: bool, device: torch.device) -> bool:
    """Whether a run computes in bfloat16: as its state says; where none does, if ``wanted`` and the device gains by it.

    Kept, because the clock is asked: a process that goes on, or a worker, could find another answer.
    """
    kept = state.get("bfloat16")
    return kept if isinstance(kept, bool) else wanted and gains_by_bfloat16(device)


@contextlib.contextmanager
def alone_in(folder: Path, what: str) -> Iterator[None]:
    """Keep other processes out of the folder in which ``what`` is trained, by a lock file beside it.

    Raises:
        Held: another process trains there: two would write over each other's states.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = HolderLock(folder.with_name(f".{folder.name}.lock"))
    try:
        lock.acquire()
    except Held as error:
        holder = str(error).partition(":")[0]
        raise Held(
            f"another process trains {what} in {folder} ({holder}); wait for it, or give another folder for --work",
            field="work",
        ) from error
    try:
        yield
    finally:
        lock.release()


def data_sums(data: Path, files: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each of ``files``, below ``data``; nothing where one is not there."""
    there = all((data / file).is_file() for file in files)
    return {file: file_sha256(data / file) for file in files} if there else {}


def keep_to_data(folder: Path, data: Path, files: Sequence[str]) -> dict[str, str]:
    """SHA-256 of each of ``files``, below ``data``; refuses to go on in ``folder`` where what it holds was trained on
    other bytes than those.

    They are kept there when a training begins; one of before that is taken at its word. Files that are not there are
    left to whoever reads them, and nothing is returned.

    Raises:
        UserError: a file has changed since, or is another one.
    """
    if not (sums := data_sums(data, files)):
        return {}
    kept = _kept_sums(folder)
    other = [file for file in sums if kept.get(file, sums[file]) != sums[file]]
    if other and any(item.name != DATA for item in folder.iterdir()):
        raise UserError(
            f"{folder} holds a training on another {' and '.join(other)} than that in {data}; "
            "give another folder with --work, or delete this one to start afresh",
            field="work",
        )
    _keep_sums(folder, kept, sums)
    return sums


def keep_to_tokenizer(folder: Path, tokenizer: Path | None) -> None:
    """``keep_to_data`` for the tokenizer, which decides what every id means to the weights; None: one that is yet to
    be trained in ``folder``.

    Raises:
        UserError: what the folder holds was trained with another one.
    """
    kept, own = _kept_sums(folder), "one trained on the texts" if tokenizer is None else str(tokenizer)
    sums = {} if tokenizer is None else {TOKENIZER: file_sha256(tokenizer)}
    if kept.get(TOKENIZER, sums.get(TOKENIZER)) != sums.get(TOKENIZER) and any(
        item.name not in (DATA, TOKENIZER) for item in folder.iterdir()
    ):
        raise UserError(
            f"{folder} holds a training with another tokenizer than {own}; give --tokenizer as before, "
            "another folder with --work, or delete this one to start afresh",
            field="tokenizer",
        )
    _keep_sums(folder, kept, sums)


def _kept_sums(folder: Path) -> dict[str, str]:
    try:
        kept = json.loads((folder / DATA).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _keep_sums(folder: Path, kept: dict[str, str], sums: dict[str, str]) -> None:
    if kept | sums != kept:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / DATA, json.dumps(kept | sums, indent=1).encode())
