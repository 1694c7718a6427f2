"""Threads, signals and settings of every process of the suite, those that tests start included; no test is timed.

One thread each: models this small only wait for each other with more, and sums are equal to the last bit with as many
threads only (a job that is killed and resumed by another process is compared so).
"""

import atexit
import functools
import os
import shutil
import signal
import ssl
import sys
import tempfile
from pathlib import Path

import jaxtyping
import pytest
from hypothesis import settings

from tests.support import endings, shapes

# Read by OpenMP when torch is first imported, here and in the children.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}
# Settings and runs of whoever runs the tests neither change them nor are changed. The workers of pytest-xdist take what
# the process that started them has made: names of tests have to be the same in all of them.
if "PYTEST_OWN_HOME" not in os.environ:
    os.environ["PYTEST_OWN_HOME"] = tempfile.mkdtemp(prefix="tokenpaths-tests-")
    atexit.register(shutil.rmtree, os.environ["PYTEST_OWN_HOME"], ignore_errors=True)
for name in ("data", "config"):
    os.environ[f"XDG_{name.upper()}_HOME"] = f"{os.environ['PYTEST_OWN_HOME']}/{name}"
if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(1)
# A shell that is not interactive starts `… &` with Ctrl-C ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Each client of httpx reads all certificates of the machine, 40 ms; nobody here speaks TLS.
ssl.create_default_context = functools.cache(ssl.create_default_context)
# Every call into a module that says shapes is checked against them, and against its other types. Not into the others,
# whose types mypy checks: it took a third of the time of the tests, most of it for functions inside functions.
ENGINE = Path(__file__).resolve().parent.parent / "engine"
SHAPED = [file for file in sorted(ENGINE.rglob("*.py")) if "jaxtyping" in file.read_text(encoding="utf-8")]
NAMES = [".".join(("tokenpaths", *file.relative_to(ENGINE.parent).with_suffix("").parts)) for file in SHAPED]
jaxtyping.jaxtyped = shapes.jaxtyped
jaxtyping.install_import_hook(NAMES, "beartype.beartype")
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


LONGEST = ("browser", "faults", "fuzz", "backend", "test_tutorials.py", "test_gpu_benchmark.py", "test_bench.py")
"""folders whose files take longest, and such files: with several processes (make test) they are begun first, so that
none is left to the end alone"""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The order of files when pytest-xdist deals them out one by one (--dist loadfile)."""
    if hasattr(config, "workerinput"):
        here = Path(__file__).parent
        ranks = {name: rank for rank, name in enumerate(LONGEST)}
        items.sort(key=lambda item: ranks.get(item.path.relative_to(here).parts[0], len(LONGEST)))


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(endings)
