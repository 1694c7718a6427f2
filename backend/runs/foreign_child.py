"""Child process that reads a run of unknown origin: ``python -m tokenpaths.backend.runs.foreign_child <file>
<megabytes>``.

Its last line of output is JSON, ``{"problem": null | sentence, "memory": whether it ran out of memory}``. A crash is
also a result.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.backend.worker.decoder_child import confine
from tokenpaths.backend.worker.syscalls import die_with_parent, refuse_the_rest

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

QUESTIONS: dict[str, Callable[[Run], Any]] = {
    "card": lambda run: run.card(),
    "overview": lambda run: run.info(),
    "flow": lambda run: run.flow(),
    "flow of two paths": lambda run: run.flow(paths=(1,)),
    "usage": lambda run: run.usage(),
    "paths": lambda run: run.paths(limit=1000),
    "law of paths": lambda run: run.fit(),
    "examples of a path": lambda run: run.examples(1, limit=20),
    "samples": lambda run: run.samples(limit=1000),
    "words of samples": lambda run: run.samples(q="e"),
    "first sample": lambda run: run.sample(0),
    "pictures": lambda run: [run.picture(n) for n in range(min(200, run.row["num_samples"]))],
    "compute": lambda run: run.distribution("compute"),
    "loss": lambda run: run.distribution("loss", per="token"),
    "knowledge": lambda run: run.knowledge(),
    "search": lambda run: run.search_tokens(ranks=(1, 3)),
    "edges": lambda run: run.soft("edges"),
    "tables": lambda run: run.tables(),
    "export of tokens": lambda run: sum(len(part) for part in run.export("token", "csv")),
    "export of samples": lambda run: sum(len(part) for part in run.export("sample", "csv")),
}
"""queries of the page's views; a run that fails one of them is not complete"""


def problem_of(file: Path) -> str | None:
    """The problem with a run as a sentence, or None.

    Raises:
        NotEnoughMemory, MemoryError: Nothing can be said about the file.
    """
    from tokenpaths.engine.base.errors import NotEnoughMemory, RunFileError, RunNotFound, UserError
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.store.file.verification import verify_run

    try:
        verify_run(file)
        with Run.open(file) as run:
            for name, ask in QUESTIONS.items():
                try:
                    ask(run)
                except (RunFileError, RunNotFound, MemoryError):
                    raise
                except UserError:
                    continue  # a run need not have losses, labels or edges; and the server checks limits itself
                except Exception as error:
                    return (
                        f"{file.name} is damaged: its {name} cannot be read ({type(error).__name__}); "
                        "copy it again or trace the run again"
                    )
    except (NotEnoughMemory, MemoryError):
        raise
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"{file.name} is damaged ({type(error).__name__}): copy it again or trace the run again"
    return None


def answer_about(file: Path) -> dict[str, Any]:
    """``problem``, and ``memory``: whether reading ran out of memory, which says nothing about the file."""
    from tokenpaths.engine.base.errors import NotEnoughMemory

    try:
        problem = problem_of(file)
        return {"problem": problem[:1000] if problem is not None else None, "memory": False}
    except (NotEnoughMemory, MemoryError) as error:
        return {"problem": f"{file.name} needs more memory ({type(error).__name__})", "memory": True}


if __name__ == "__main__":
    from tokenpaths.engine.store.file.open_file import limit_memory

    die_with_parent()
    confine(int(sys.argv[2]), threads=True)
    refuse_the_rest()  # if the sandbox is unavailable, the limits remain; `tokenpaths doctor` reports it
    limit_memory(int(sys.argv[2]) // 2)  # the remaining memory is for Python, its libraries and thread stacks
    print(json.dumps(answer_about(Path(sys.argv[1]))))
