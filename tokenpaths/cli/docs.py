"""``tokenpaths docs``: the documentation of this version, served from the installation."""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated

import typer

from tokenpaths.cli.support.terminal import open_browser
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import PROGRAM_DIR

SITE = PROGRAM_DIR / "site"
"""what ``make docs`` builds; a wheel holds it"""


def docs(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine, 0 = any free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
) -> None:
    """Show the documentation of this version in the browser, without a network; Ctrl-C ends it.

    Example: tokenpaths docs --no-open --port 8600
    """
    with documentation_server(port) as server:
        address = f"http://127.0.0.1:{server.server_port}/index.html"
        typer.echo(f"The documentation is at {address}\nCtrl-C stops it.")
        if browser:
            open_browser(address)
        server.serve_forever()


def documentation_server(port: int, site: Path | None = None) -> ThreadingHTTPServer:
    """A server of the built site on this machine's loopback, listening.

    Args:
        port: Port, 0 for any free one.
        site: Folder of the site; that of this installation if None.

    Raises:
        UserError: The site is not built, or the port cannot be had.
    """
    site = site or SITE
    if not (site / "index.html").is_file():
        raise UserError(
            f"The documentation is not built ({site} is missing): in a clone, `make docs` builds it; "
            "the wheels of a release hold it."
        )
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Pages, directory=str(site)))
    except OSError as error:
        raise UserError(
            f"Port {port} cannot be listened on ({error.strerror}); leave --port away to get a free one.", field="port"
        ) from None


class _Pages(SimpleHTTPRequestHandler):
    """Files of the site, without listings of folders and without a log."""

    def list_directory(self, path: object) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    def log_message(self, format: str, *values: object) -> None:
        return
