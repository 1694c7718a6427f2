"""One thread for every process of the suite, those that tests start included; no test is timed.

Models this small only wait for each other with more, and sums are equal to the last bit with as many threads only:
a job that is killed and gone on with by another process is compared so.
"""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


LONGEST = ("browser", "faults", "fuzz", "backend")
"""folders whose files take longest: with several processes (make test) they are begun first, so that none is left to
the end alone"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of files when pytest-xdist deals them out one by one (--dist loadfile)."""
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        ranks = {name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.relative_to(here).parts[0], len(LONGEST)))
