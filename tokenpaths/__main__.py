"""``python -m tokenpaths`` and the console script: the command line, with Ctrl-C heard while it is still imported.

Nothing but the standard library may be imported at the top.
"""

import sys


def main() -> int:
    """Run one command and return its exit code; Ctrl-C before it runs ends in a word, not in a traceback."""
    try:
        from tokenpaths.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
