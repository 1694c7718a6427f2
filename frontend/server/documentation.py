"""The documentation beside the page, at ``/documentation/``: the site of the wheel, or that ``make docs`` built.

It stands behind the guard and the login as everything else of the page does.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from tokenpaths.frontend.server.guard import page_policy
from tokenpaths.frontend.server.static_files import script_hashes

PATH = "/documentation"
SITE = Path(__file__).resolve().parents[2] / "site"
NOT_BUILT = "The documentation is not built here: in a clone, `make docs` builds it; the wheels of a release hold it."


class Documentation(StaticFiles):
    """Static files of a folder, each page with a policy that lets its own inline scripts run and nothing else."""

    def __init__(self, folder: Path = SITE) -> None:
        super().__init__(directory=folder, html=True, check_dir=False)
        self.index = folder / "index.html"

    async def check_config(self) -> None:
        """A folder that is missing is a 404 of each request, not an error of the server."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        if not self.index.is_file():
            raise HTTPException(404, NOT_BUILT)
        return await super().get_response(path, scope)

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["cache-control"] = "no-cache"
        if str(full_path).endswith(".html"):
            response.headers["content-security-policy"] = _policy(str(full_path), stat_result.st_mtime_ns)
        return response


@lru_cache(maxsize=100)
def _policy(file: str, mtime_ns: int) -> str:
    return page_policy(script_hashes(Path(file).read_text(encoding="utf-8")))
