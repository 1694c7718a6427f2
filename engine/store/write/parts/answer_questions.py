"""Third pass of a sealing on many: the answers that take long, each by the worker that claims it first.

    answers/   17.claimed   17.json   drawn.claimed   drawn_token.arrow …

A question whose worker is lost has no answer, and who asks it gets it worked out.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.feather as feather

from tokenpaths.engine.store.ask.questions import page_questions
from tokenpaths.engine.store.file.open_file import Connection
from tokenpaths.engine.store.write.large.seal_answers import PATIENCE_S, Answered, answer, draw, may_draw, opened
from tokenpaths.engine.store.write.parts.plan import SealPlan

MEGABYTES = 1000
"""DuckDB's memory limit of each worker"""
_DRAWN = "drawn"


def answer_questions(plan: SealPlan, file: Path) -> None:
    """Answer questions about the complete, closed run ``file`` until all are claimed.

    Raises:
        RunFileError: the file cannot be read.
    """
    folder = plan.work / "answers"
    folder.mkdir(exist_ok=True)
    # Not by process: on two machines of a cluster processes have the same numbers.
    spill = Path(mkdtemp(".spill", dir=folder))
    ends = time.monotonic() + PATIENCE_S
    connection = Connection(file, PATIENCE_S, memory_megabytes=MEGABYTES, spill_folder=spill, threads=1)
    try:
        run = opened(file, plan.run_id, connection)
        # What is drawn takes longest.
        if may_draw(run) and _claim(folder, _DRAWN):
            for name, table in draw(run).items():
                feather.write_feather(table, folder / f"{name}.partial", compression="uncompressed")
                os.replace(folder / f"{name}.partial", folder / f"{name}.arrow")
        for number, (question, arguments) in enumerate(page_questions(run)):
            left = ends - time.monotonic()
            if left <= 0:
                break
            if _claim(folder, str(number)):
                connection.time_limit_s = left
                for row in answer(run, question, arguments):
                    (folder / f"{number}.partial").write_text(json.dumps(row))
                    os.replace(folder / f"{number}.partial", folder / f"{number}.json")
    finally:
        connection.close()
        shutil.rmtree(spill, ignore_errors=True)


def answers_of(plan: SealPlan) -> tuple[list[Answered], dict[str, pa.Table]]:
    """What the workers answered, in the order of the questions, and the tables that one of them drew."""
    folder = plan.work / "answers"
    rows = sorted(folder.glob("*.json"), key=lambda file: int(file.stem))
    answered = [(name, arguments, text) for name, arguments, text in map(json.loads, _texts(rows))]
    return answered, {file.stem: feather.read_table(file) for file in sorted(folder.glob("*.arrow"))}


def _texts(files: list[Path]) -> Iterator[str]:
    for file in files:
        yield file.read_text()


def _claim(folder: Path, name: str) -> bool:
    """Whether nobody else has claimed it yet."""
    try:
        os.close(os.open(folder / f"{name}.claimed", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True
