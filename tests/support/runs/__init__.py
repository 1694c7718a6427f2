"""The one maker of runs: small ones, mixtures of experts, soft ones, traces of tiny models, and large synthetic ones.

``make…`` gives arrays (`RunArrays`) to compare with, ``.write(folder)`` a run file through the real writer.
``tests.support.runs.traced`` and ``.synthetic`` are imported by name: the first needs torch, the second is for speed.
"""

from tests.support.runs.arrays import RunArrays, routed, run_info, write_batches
from tests.support.runs.experts import make_experts
from tests.support.runs.small import make, make_run, open_run
from tests.support.runs.soft import make_soft
from tests.support.runs.unrecorded import with_unrecorded
from tests.support.runs.unused import with_unused

__all__ = [
    "RunArrays",
    "make",
    "make_experts",
    "make_run",
    "make_soft",
    "open_run",
    "routed",
    "run_info",
    "with_unrecorded",
    "with_unused",
    "write_batches",
]
