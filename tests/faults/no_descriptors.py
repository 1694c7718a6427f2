"""An API that opens every file it may for three seconds on SIGUSR2: ``python -m tests.faults.no_descriptors api``."""

from __future__ import annotations

import os
import signal
import sys
import threading

from tokenpaths.backend.serve import main


def take_all(*_: object) -> None:
    """Open files until there is no descriptor left; they are closed three seconds later."""
    taken = []
    try:
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        threading.Timer(3, lambda: [os.close(descriptor) for descriptor in taken]).start()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, take_all)
    sys.exit(main(sys.argv[1:]))
