"""One line of ``tokenpaths doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing looked at; ``broken`` makes the exit code 1."""

    state: Literal["ok", "note", "broken"]
    what: str
    text: str
