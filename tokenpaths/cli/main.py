"""The command line ``tokenpaths``.

Exit codes: 0 done; 1 something broke (the log says what), ``doctor`` found something broken, or two runs agree less
than ``agree --at-least`` asks; 2 wrong input, said in one line; 75 another process is at work on the same thing, so try
again later; 130 stopped with Ctrl-C.
Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import _thread
import errno
import gc
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from tokenpaths.backend import __version__
from tokenpaths.cli.answers.agree import agree
from tokenpaths.cli.answers.export import export
from tokenpaths.cli.answers.figures import figures
from tokenpaths.cli.answers.report import report
from tokenpaths.cli.demo import demo
from tokenpaths.cli.docs import docs
from tokenpaths.cli.doctor import doctor
from tokenpaths.cli.dream import dream
from tokenpaths.cli.import_log import import_log
from tokenpaths.cli.jobs import jobs_app, worker
from tokenpaths.cli.ls import ls, series
from tokenpaths.cli.seal import pack, seal, seal_piece
from tokenpaths.cli.support.terminal import plain_output
from tokenpaths.cli.trace import trace
from tokenpaths.cli.train import train
from tokenpaths.cli.up import up
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.shared_cores import wait_asleep

HELP = """See, measure and compare the paths that tokens take through routed neural networks.

Start with `tokenpaths up --demo`, which traces the bundled samples and starts the page on the runs of your data folder.
`tokenpaths trace` adds a run of your own data.
`tokenpaths docs` opens the documentation: a tour, every command, every setting.
"""


def make_app() -> typer.Typer:
    """The command line as an object."""
    app = typer.Typer(
        help=HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    for command in (
        up,
        worker,
        demo,
        trace,
        seal,
        pack,
        dream,
        train,
        ls,
        series,
        agree,
        export,
        figures,
        report,
        docs,
        doctor,
    ):
        app.command()(command)
    app.command("seal-piece", hidden=True)(seal_piece)
    app.command("import")(import_log)  # a reserved word of Python
    app.add_typer(jobs_app(), name="jobs")

    @app.callback()
    def about(
        version: bool = typer.Option(
            False, "--version", help="Print the version and stop.", is_eager=True, callback=_print_version
        ),
    ) -> None:
        """The text of ``--help`` is HELP."""

    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tokenpaths {__version__}")
        raise typer.Exit


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; never shows a traceback."""
    wait_asleep()
    # A tenth of the processor time of a short command is the search for cycles among what imports made to stay.
    gc.set_threshold(50_000, 20, 20)
    if hasattr(sys.stdout, "reconfigure"):  # a character that the terminal's encoding lacks must not stop the command
        sys.stdout.reconfigure(errors="backslashreplace")
    with plain_output(), _interrupts_heard():
        return _run(arguments)


@contextmanager
def _interrupts_heard() -> Iterator[None]:
    """Ctrl-C during a call from C into Python, as while compiled loops are loaded, is dropped there: raise it anew."""
    shown = sys.unraisablehook

    def hear(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            threading.Timer(0.05, _thread.interrupt_main).start()  # by then the call from C is over
        else:
            shown(dropped)

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = shown


def _run(arguments: list[str] | None) -> int:
    try:
        code = make_app()(args=arguments, standalone_mode=False)
        sys.stdout.flush()  # flush here, where a full disk or a closed pipe is still handled, not at interpreter exit
        if code == 130:  # typer has converted Ctrl-C to an exit code
            print("Stopped.", file=sys.stderr)
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130
    except UserError as error:
        print(f"tokenpaths: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # `tokenpaths export … | head`
        _drop_output()
        return 0
    except SystemExit as end:  # typer has converted a closed pipe, whichever it was, to an exit code
        if not (isinstance(end.__context__, BrokenPipeError) and _has_no_reader()):
            raise
        _drop_output()
        return 0
    except Exception as error:
        return _explain(error)


_NOT_LET = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


def one_line(error: BaseException) -> str:
    """The message of ``error`` without line breaks."""
    return " ".join(str(error).split())


def _explain(error: Exception) -> int:
    """Usage errors of the parser say what they are; everything else goes to the log."""
    if type(error).__name__ == "Abort":
        print("Stopped.", file=sys.stderr)
        return 130
    if hasattr(error, "exit_code") and hasattr(error, "show"):
        if hasattr(error, "message"):
            error.message = error.message.replace("Value error, ", "", 1)
        error.show()
        return int(error.exit_code)
    from tokenpaths.engine.base.files import is_disk_full

    if is_disk_full(error):
        print("tokenpaths: The disk that this writes to is full; free some space and try again.", file=sys.stderr)
        _drop_output()
        return 2
    if type(error).__name__ == "Problem":  # matched by name: importing the class would load the whole API
        print(f"tokenpaths: {one_line(error)}", file=sys.stderr)
        return 2
    if isinstance(error, OSError) and error.errno in _NOT_LET and error.filename is not None:
        print(
            f"tokenpaths: {error.filename} cannot be read or written ({error.strerror}); "
            "change who may, or choose another place.",
            file=sys.stderr,
        )
        return 2
    where = write_crash(error)
    print(
        f"tokenpaths: something unforeseen happened ({type(error).__name__}: {one_line(error)[:200]}).\n"
        f"The details are in {where}; `tokenpaths doctor` checks the installation.",
        file=sys.stderr,
    )
    return 1


def _has_no_reader() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):  # no poll on this system, or no file of the system's
        return True


def _drop_output() -> None:
    """Forget what standard output could not take: Python would try it again when it ends, and complain."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return  # not a file of the system's


def write_crash(error: BaseException) -> Path:
    """Append the traceback to ``logs/cli.log`` of the data folder (else a temporary file) and say where."""
    text = f"--- {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {_command()}\n"
    text += "".join(traceback.format_exception(error)) + "\n"
    for folder in (_logs_dir(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / "cli.log"
            with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError:
            continue
        return path
    return Path("nowhere (no folder is writable)")


def _command() -> str:
    """The command line, the value of ``--token`` left out."""
    shown = []
    for before, word in zip(["", *sys.argv], sys.argv, strict=False):
        name, equals, _ = word.partition("=")
        shown.append("…" if before == "--token" else f"{name}=…" if name == "--token" and equals else word)
    return " ".join(shown)


def _logs_dir() -> Path:
    from tokenpaths.engine.base.files import data_dir

    try:
        return data_dir() / "logs"
    except UserError:  # a settings file that cannot be read is not why the command broke
        return Path(tempfile.gettempdir())
