"""How the threads of OpenMP and OpenBLAS wait for each other: asleep, not spinning. No torch, no numpy."""

from __future__ import annotations

import os

POLICY = "OMP_WAIT_POLICY"
OTHERS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""finer settings of OpenMP libraries: who set one of them has decided"""
BLAS_TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"
"""logarithm of the cycles that OpenBLAS's threads (of numpy, SciPy) spin; 26 by itself, tens of milliseconds"""


def wait_asleep() -> None:
    """Let idle threads sleep while they wait, unless the environment says otherwise.

    A spinning thread takes the core that the other one waits for: where cores are shared the same trace takes two to
    five times as long. Both libraries read the environment when they are loaded, so call this before torch and numpy
    are imported. Child processes inherit it.
    """
    if not any(name in os.environ for name in OTHERS):
        os.environ.setdefault(POLICY, "passive")
    os.environ.setdefault(BLAS_TIMEOUT, "4")
