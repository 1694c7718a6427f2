"""The data folder of a running server: noticed when it is moved, deleted or unmounted.

Nothing makes it anew then. A folder made in its place would take jobs that no worker sees, and stand in the way of the
one that comes back.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tokenpaths.backend.problems import PROBLEM_KIND, Problem

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

log = logging.getLogger(__name__)
GATED = "/api/v1/"
ALWAYS_ANSWERED = frozenset({"/api/v1/health"})
MARK = "jobs.sqlite"
"""another folder in the same place is taken for the data folder only if it holds this file"""
Identity = tuple[int, int]


def identity_of(path: Path) -> Identity | None:
    """Device and inode of a file or folder; None if there is none that can be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


class DataFolder:
    """The folder at ``path``, made if need be at its first use and never again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._identity: Identity | None = None

    def make(self) -> None:
        """Make the folder if there is none, and remember which one it is. Raises OSError."""
        if self._identity is None:
            self.path.mkdir(parents=True, exist_ok=True)
            self._identity = identity_of(self.path)

    def problem(self) -> Problem | None:
        """503 while the folder is gone; None while it is there, or was never used."""
        if self._identity is None:
            return None
        found = identity_of(self.path)
        if found == self._identity:
            return None
        if found is not None and (self.path / MARK).is_file():
            log.warning("another data folder stands at %s now; it is used from here on", self.path)
            self._identity = found
            return None
        state = "is gone: it was moved, deleted or unmounted" if found is None else "is another, empty one now"
        return Problem(
            503,
            "data-folder-gone",
            f"The data folder {state}. Put it back, and all goes on; or start Tokenpaths again with another.",
            headers={"retry-after": "10"},
        )

    def require(self) -> None:
        """Make the folder at its first use; Problem 503 while it is gone."""
        self.make()
        if (problem := self.problem()) is not None:
            raise problem


class DataFolderGate:
    """ASGI middleware: while the data folder is gone, every route that needs it answers 503 with that sentence."""

    def __init__(self, app: ASGIApp, folder: DataFolder) -> None:
        self.app, self.folder = app, folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needed = scope["type"] == "http" and scope["path"].startswith(GATED) and scope["path"] not in ALWAYS_ANSWERED
        if needed and (problem := self.folder.problem()) is not None:
            scope[PROBLEM_KIND] = problem.kind
            await problem.response(scope["path"])(scope, receive, send)
            return
        await self.app(scope, receive, send)
