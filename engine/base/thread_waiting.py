"""How OpenMP's threads wait for each other: asleep, not spinning. No torch."""

from __future__ import annotations

import os

POLICY = "OMP_WAIT_POLICY"
OTHERS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")
"""finer settings of OpenMP libraries: who set one of them has decided"""


def wait_asleep() -> None:
    """Let OpenMP's threads sleep while they wait, unless the environment says otherwise.

    A spinning thread takes the core that the other one waits for: where cores are shared the same trace takes two to
    five times as long. OpenMP reads the environment when it is loaded, so call this before torch is imported. Child
    processes inherit it.
    """
    if not any(name in os.environ for name in OTHERS):
        os.environ.setdefault(POLICY, "passive")
