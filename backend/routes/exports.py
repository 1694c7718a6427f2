"""A run as files: tables and a data set, streamed without holding them in memory, and the HTML report."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Literal

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tokenpaths.backend import __version__
from tokenpaths.backend.http.watchdog import LONG_FACTOR
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, LabelsShown, RunName
from tokenpaths.backend.runs.answers import Answer, etag_of, is_fresh, sealed_headers, wants_any
from tokenpaths.backend.services import Services, Shared

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

router = APIRouter(prefix="/runs/{run}", tags=["runs"], responses=ABOUT_A_RUN)
MEDIA_TYPES = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
    "arrow": "application/vnd.apache.arrow.file",
}


ZIP = "application/zip"

HTML: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


class Streamed(Response):
    """Chunks as they come; closes what it holds when done, when the client left, or when it stalls."""

    def __init__(
        self,
        first: bytes,
        rest: Callable[[], Awaitable[bytes | None]],
        held: AsyncExitStack,
        stall_s: float,
        **options: object,
    ) -> None:
        super().__init__(None, **options)  # type: ignore[arg-type]
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self.first, self.rest, self.held, self.stall_s = first, rest, held, stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_until_disconnect(receive))
        try:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            chunk: bytes | None = self.first
            while chunk is not None and not gone.done():
                async with asyncio.timeout(self.stall_s):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await self.rest()
            if chunk is None:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            await self.held.aclose()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@router.get(
    "/export/{table}.{format}",
    response_class=Response,
    responses={
        200: {
            "content": {
                kind.partition(";")[0]: {"schema": {"type": "string", "format": "binary"}}
                for kind in MEDIA_TYPES.values()
            }
        }
    },
)
async def export_table(
    request: Request, services: Shared, run: RunName, table: str, format: Literal["csv", "parquet", "arrow"]
) -> Response:
    """One table of the run as CSV, Parquet or an Arrow file (IPC file format, Feather 2)."""
    filename = f"{run}-{table[:64]}.{format}"
    return await _stream(
        request, services, run, lambda opened: opened.export(table, format), MEDIA_TYPES[format], filename
    )


@router.get(
    "/dataset.zip",
    response_class=Response,
    responses={200: {"content": {ZIP: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def export_dataset(request: Request, services: Shared, run: RunName) -> Response:
    """The run as a Hugging Face data set with a card, as a zip archive: samples, tokens, paths and modules."""
    return await _stream(request, services, run, lambda opened: opened.zipped_dataset(), ZIP, f"{run}-dataset.zip")


async def _stream(
    request: Request,
    services: Services,
    run: str,
    make: Callable[[Run], Iterator[bytes]],
    media_type: str,
    filename: str,
) -> Response:
    """What ``make`` gives of an opened run, piece by piece, as a download."""
    etag = etag_of(services.registry.identity(run), request)
    if is_fresh(request, etag):
        return Response(status_code=304, headers=sealed_headers(etag))
    await services.answers.take_in(run)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(services.export_limit.take())
        watchdog = services.registry.watchdog
        seconds = LONG_FACTOR * watchdog.seconds
        lease = services.registry.lease(run)
        opened = await watchdog.run(lambda: stack.enter_context(lease), run)
        chunks = make(opened)
        stack.callback(_close, chunks)
        if wants_any(request):
            return Response(status_code=304, headers=sealed_headers(etag))

        async def next_chunk() -> bytes | None:
            return await watchdog.run(lambda: next(chunks, None), run, seconds=seconds)

        first = await next_chunk()  # raise errors now, before the response starts
        return Streamed(
            first or b"",
            next_chunk,
            stack.pop_all(),
            services.settings.send_stall_seconds,
            media_type=media_type,
            headers=sealed_headers(etag) | {"content-disposition": f'attachment; filename="{filename}"'},
        )
    raise AssertionError("unreachable: the block returns")


def _close(chunks: Iterator[bytes]) -> None:
    with suppress(ValueError):  # a chunk is being made in a thread just now: it ends with its cursor
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


@router.get("/report", response_class=Response, responses=HTML)
async def download_report(request: Request, services: Shared, run: RunName, labels: LabelsShown = None) -> Response:
    """The whole run as one self-contained HTML page: interactive charts, examples, tables, formulas. A download."""

    def compute() -> Answer:
        page = services.registry.ask(run, lambda opened: _page(opened.labelled(labels), services))
        return Answer(page, "text/html; charset=utf-8")

    identity = services.registry.identity(run) + await run_in_threadpool(_dreams, services)
    seconds = LONG_FACTOR * services.registry.watchdog.seconds
    answer = await services.answers.about(request, identity, compute, seconds=seconds)
    # Always a download, never rendered by this server: its scripts must not share the API's origin.
    answer.headers["content-disposition"] = f'attachment; filename="{run}.html"'
    return answer


def _dreams(services: Services) -> str:
    from tokenpaths.backend.runs.finished_dreams import fingerprint

    return fingerprint(services.settings)


def _page(opened: Run, services: Services) -> bytes:
    from tokenpaths.backend.runs.finished_dreams import dreams_of  # imported on demand: charts and their renderer
    from tokenpaths.engine.base.errors import UserError
    from tokenpaths.frontend.figures import Wishes
    from tokenpaths.frontend.figures.report import report

    opened.need_tokens("report")
    wishes = Wishes(dreams=dreams_of(services.settings, opened.info()))
    return report(opened, version=__version__, refusals=(UserError,), wishes=wishes).encode()
