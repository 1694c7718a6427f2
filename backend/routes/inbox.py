"""Route that puts a file into the inbox, from which jobs read."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from tokenpaths.backend.http.uploads import Body
from tokenpaths.backend.problems import Problem, documented
from tokenpaths.backend.schemas.jobs import InboxFile
from tokenpaths.backend.services import Shared
from tokenpaths.engine.base.files import write_new

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MOST_ALIKE = 1000
PIECE_BYTES = 1 << 20
FileName = Annotated[
    str,
    Path(description="Name of the file: letters, digits, `.`, `_` and `-`, at most 100", examples=["routing.jsonl"]),
]
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
router = APIRouter(prefix="/inbox", tags=["jobs"])


@router.put(
    "/{file}",
    status_code=201,
    response_model=InboxFile,
    responses=documented(400, 401, 403, 408, 413, 422, 500, 503, 507),
    openapi_extra=BODY,
)
async def put_into_inbox(request: Request, services: Shared, file: FileName) -> JSONResponse:
    """Upload a file that a job is to read. One of this name stays as it is: the answer says the name that was taken."""
    if not FILE_NAME.fullmatch(file):
        raise Problem(
            422,
            "name",
            f"{file[:80]!r} is no name of a file here: use letters, digits, `.`, `_` and `-`, beginning with a letter "
            "or digit, at most 100.",
            field="file",
        )
    async with services.upload_limit.take():
        data = await Body(request, services.settings).read()
        if not data:
            raise Problem(422, "empty", f"{file} is empty: 0 bytes came, and there is nothing to read.", field="file")
        taken = await run_in_threadpool(_write, services.settings.data_dir / "inbox", file, data)
    return JSONResponse({"file": taken, "num_bytes": len(data)}, status_code=201, headers={"cache-control": "no-store"})


def _write(inbox: FilePath, name: str, data: bytes) -> str:
    """Write the file under ``name``, or under the next number if another file has it; the same content is kept once."""
    stem, dot, suffix = name.partition(".")
    for number in range(1, MOST_ALIKE):
        chosen = name if number == 1 else f"{stem}-{number}{dot}{suffix}"
        target = inbox / chosen
        if not os.path.lexists(target):
            with contextlib.suppress(FileExistsError):  # of two uploads at once one comes first
                write_new(target, data)
                return chosen
        if _holds(target, data):
            return chosen
    raise Problem(409, "too-many", f"The inbox holds {MOST_ALIKE:,} files named like {name!r}.", field="file")


def _holds(file: FilePath, data: bytes) -> bool:
    """Whether a regular file holds just this; read in pieces, since files put there otherwise may be of any size."""
    if file.is_symlink() or not file.is_file() or file.stat().st_size != len(data):
        return False
    with file.open("rb") as stream:
        return all(stream.read(PIECE_BYTES) == data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES))
