"""``tokenpaths report``: one run as one HTML page that opens anywhere, offline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from tokenpaths.cli.support.options import DataDir
from tokenpaths.engine.base.errors import UserError


def report(
    run: Annotated[str, typer.Option(help="Name of the run, as `tokenpaths ls` shows it.")],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")],
    beside: Annotated[str | None, typer.Option(help="A second run over the same samples, for figure 7.")] = None,
    labels: Annotated[
        str | None, typer.Option(help="merged: labels that look alike (case, blanks) count as one.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is drawn at random.", min=0)] = 0,
    data_dir: DataDir = None,
) -> None:
    """Write one run as one self-contained HTML page: interactive charts, examples, tables and formulas.

    Example: tokenpaths report --run scenes-dna-vision-top1 --out report.html
    """
    from tokenpaths.backend import __version__
    from tokenpaths.backend.runs.finished_dreams import dreams_of
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.answers.figures import opened, say_missing
    from tokenpaths.engine.base.files import atomic_file
    from tokenpaths.frontend.figures import Figure, Kind, Wishes
    from tokenpaths.frontend.figures.report import report as page_of

    if out.is_dir():
        raise UserError(f"{out} is a folder; --out is the HTML file to write.", field="out")
    if out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{out.name} does not end with .html; --out is the HTML file to write.", field="out")
    settings = load_settings(data_dir=data_dir)

    def say_asked(kind: Kind, drawn: Sequence[Figure], why: str) -> None:
        """Of what the data simply lack, the page alone speaks; the second run was asked for."""
        if beside is not None and kind.beside is not None:
            say_missing(kind, drawn, why)

    with opened(settings, run, beside, "report") as (source, other):
        wishes = Wishes(seed=seed, other=other, dreams=dreams_of(settings, source.info()))
        page = page_of(
            source.labelled(labels), version=__version__, refusals=(UserError,), wishes=wishes, on_missing=say_asked
        ).encode()
    try:
        with atomic_file(out) as temporary:
            temporary.write_bytes(page)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror or error}.", field="out") from None
    print(f"{out}: {len(page):,} bytes")
