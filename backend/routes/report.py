"""One run as one HTML page, to be kept and opened offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tokenpaths.backend import __version__
from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, RunName
from tokenpaths.backend.runs.answers import Answer
from tokenpaths.backend.services import Services, Shared

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

router = APIRouter(prefix="/runs/{run}", tags=["runs"], responses=ABOUT_A_RUN)
HTML: dict[int | str, dict[str, Any]] = {200: {"content": {"text/html": {"schema": {"type": "string"}}}}}


@router.get("/report", response_class=Response, responses=HTML)
async def download_report(request: Request, services: Shared, run: RunName) -> Response:
    """The whole run as one self-contained HTML page: interactive charts, examples, tables, formulas. A download."""

    def compute() -> Answer:
        return Answer(services.registry.ask(run, lambda opened: _page(opened, services)), "text/html; charset=utf-8")

    identity = services.registry.identity(run) + await run_in_threadpool(_dreams, services)
    answer = await services.answers.about(request, identity, compute)
    # A download, never a page of this server: its scripts must not run beside the API.
    answer.headers["content-disposition"] = f'attachment; filename="{run}.html"'
    return answer


def _dreams(services: Services) -> str:
    from tokenpaths.backend.runs.kept_dreams import fingerprint

    return fingerprint(services.settings)


def _page(opened: Run, services: Services) -> bytes:
    from tokenpaths.backend.runs.kept_dreams import dreams_of  # charts and their printer, only for who asks
    from tokenpaths.engine.base.errors import UserError
    from tokenpaths.frontend.figures import Wishes
    from tokenpaths.frontend.figures.report import report

    wishes = Wishes(dreams=dreams_of(services.settings, opened.info()))
    return report(opened, version=__version__, refusals=(UserError,), wishes=wishes).encode()
