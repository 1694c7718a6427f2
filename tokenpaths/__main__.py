"""``python -m tokenpaths`` and the console script: the command line, with Ctrl-C heard while it is still imported.

Nothing but the standard library may be imported at the top.
"""

import os
import sys


def main() -> int:
    """Run one command and return its exit code; Ctrl-C before it runs ends in a word, not in a traceback."""
    _open_closed_streams()
    try:
        from tokenpaths.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


def _open_closed_streams() -> None:
    """Open the null device as each standard stream that is closed (``>&-``), here and for child processes.

    A run file would get the number of a closed one, and with it all that is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


if __name__ == "__main__":
    sys.exit(main())
