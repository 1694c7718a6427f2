"""One thread for every process of the suite, those that tests start included; no test is timed.

Models this small only wait for each other with more, and sums are equal to the last bit with as many threads only:
a job that is killed and gone on with by another process is compared so.
"""

import os

import torch
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start
torch.set_num_threads(1)
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
