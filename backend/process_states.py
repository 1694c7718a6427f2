"""What ``tokenpaths up`` knows of its processes, as it tells them: one JSON file that it replaces whole.

The API reads it to say why the worker is away. Without ``up`` (containers, tests) there is no such file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

VARIABLE = "TOKENPATHS_PROCESSES_FILE"
State = Literal["starting", "up", "paused"]


@dataclass(frozen=True)
class ProcessState:
    """One process of ``tokenpaths up``."""

    state: State
    problem: str | None = None
    """a sentence: why it is paused, or what became of the one before"""


def write_states(file: Path, states: Mapping[str, ProcessState]) -> None:
    """Replace the file; raises OSError."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps({name: asdict(state) for name, state in states.items()}), encoding="utf-8")
    temporary.replace(file)


def read_states() -> dict[str, ProcessState]:
    """The states by name of the process; empty without ``up``, or where they cannot be read."""
    try:
        states = json.loads(Path(os.environ[VARIABLE]).read_text(encoding="utf-8"))
        return {str(name): ProcessState(**state) for name, state in states.items()}
    except (KeyError, OSError, ValueError, TypeError, AttributeError):
        return {}
