"""Command lines shown on the page, with the ``--data-dir`` that reaches the data of this page."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from html import escape

import platformdirs

DATA_DIR = "TOKENPATHS_DATA_DIR"


def data_dir_option() -> str:
    """`` --data-dir FOLDER`` if the page shows another folder than the default of the commands, else empty.

    ``tokenpaths up`` passes the folder in the environment; a page started in another way does not know it.
    """
    folder = _other_folder()
    return f" --data-dir {shlex.quote(folder)}" if folder else ""


def runs_dir() -> str:
    """The folder argument that ``tokenpaths.record`` needs; empty if it is the default."""
    folder = _other_folder()
    return os.path.join(folder, "runs") if folder else ""


def _other_folder() -> str:
    folder = os.environ.get(DATA_DIR, "")
    usual = platformdirs.user_data_dir("tokenpaths", False)
    return "" if os.path.realpath(folder or usual) == os.path.realpath(usual) else folder


def command(line: str) -> str:
    """``tokenpaths …`` with ``--data-dir`` if it is needed."""
    return line + data_dir_option()


TYPED_STYLE = """<style>
.tp-typed { font-family: "Source Code Pro", ui-monospace, monospace; font-size: .82rem; overflow-x: auto;
  background: color-mix(in srgb, currentColor 6%, transparent); border-radius: .5rem; padding: .6rem .8rem; margin: 0; }
.tp-typed dl, .tp-typed dt, .tp-typed dd { margin: 0; white-space: pre; }
.tp-typed dt { user-select: all; cursor: copy; }
.tp-typed dd { opacity: .75; padding-bottom: .45rem; }
.tp-typed dd:last-child { padding-bottom: 0; }
.tp-typed dd::before { content: "# "; }
</style>"""


def typed_html(lines: Mapping[str, str]) -> str:
    """HTML of command lines, each with its explanation below; a click selects only the command.

    ``st.code`` would load 1.6 MB of syntax highlighting before the first chart.
    """
    pairs = "".join(f"<dt>{escape(line)}</dt><dd>{escape(words)}</dd>" for line, words in lines.items())
    box = '<div class="tp-typed" role="region" tabindex="0" aria-label="Lines to type">'
    return f"{TYPED_STYLE}{box}<dl>{pairs}</dl></div>"
