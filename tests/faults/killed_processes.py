"""The work of processes that the fault tests kill; each reports through a pipe how far it is.

They are forked from a server that has imported this module, so that starting one takes a hundredth of a second.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from tests.support.flushing import flush_every
from tests.support.runs import make
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.registry import JobContext, read_request
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.store.write import writer as writer_module
from tokenpaths.engine.tracing.loaded_model import load_model

SAMPLES = 6


def start(work: Callable[..., None], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Start a process that runs ``work(pipe, *arguments)``; returns it and the reading end of its pipe."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.faults.killed_processes"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(there, *arguments), daemon=True)
    process.start()
    there.close()
    return process, here


def messages(pipe: Connection) -> list[Any]:
    """All messages that a process sent before it was killed."""
    received = []
    with suppress(EOFError):
        while pipe.poll():
            received.append(pipe.recv())
    return received


def write_runs(pipe: Connection, runs_dir: Path, first: int) -> None:
    """Write one run after the other; says the number of each once it is sealed."""
    flush_every(500)  # so that the file is written to all the time
    pipe.send("ready")
    while True:
        made = make(f"run{first}", samples=SAMPLES, seed=first)
        made.write(runs_dir)
        pipe.send(first)
        first += 1


def hold_run(pipe: Connection, runs_dir: Path) -> None:
    """Hold the run ``held`` and write nothing more."""
    made = make("held", samples=1)
    writer = writer_module.RunWriter(runs_dir, made.info, made.modules)
    writer.write(made.batches[0])
    pipe.send("held")
    threading.Event().wait()


def save_checkpoints(pipe: Connection, folder: Path, first: int) -> None:
    """Save the model in ``folder`` again and again, every weight equal to the number of the save."""
    torch.set_num_threads(1)
    model = DNA(read_checkpoint(folder).config)
    pipe.send("ready")
    while True:
        for parameter in model.parameters():
            parameter.data.fill_(first)
        save_checkpoint(folder, model, dtype=torch.float32)
        pipe.send(first)
        first += 1


def dream(pipe: Connection, data_dir: Path, folder: Path, request: dict[str, Any]) -> None:
    """Go on with the dream in ``folder``; says where it begins and, after each slice, where it is."""
    torch.set_num_threads(1)
    models = data_dir / "models"
    context = JobContext(data_dir, (models,), lambda name: load_model(name, [models], "cpu"))
    job = DreamJob.start(read_request(DreamJob, request), folder, context)
    pipe.send(("begins", int(job.work.dreams.iteration)))
    while True:
        progress = job.advance()
        pipe.send(("at", progress.done))
        if progress.finished:
            break
    job.close()
    pipe.send(("finished", progress.result))
