"""Limits of a confined child: memory, time, descriptors, written bytes; and an environment without secrets."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass

from tokenpaths.engine.base.shared_cores import ASLEEP

KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SYSTEMROOT", "VIRTUAL_ENV", "TMPDIR")
"""environment variables that a child needs to start; excludes tokens and secrets"""
_LEAN = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
"""allocators that reserve no address space in advance, which is what is limited"""
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


@dataclass(frozen=True)
class Limits:
    """What a confined child may use."""

    memory_megabytes: int = 2048
    """of address space, which is more than what it holds: interpreter and libraries take 300 to 800"""
    on_top: bool = False
    """on top of what the libraries take that are loaded with the function, where that differs between machines"""
    seconds: int | float = 60.0
    """until it answers a call, or sends the next message of a stream"""
    whole_stream: bool = False
    """whether ``seconds`` are for all messages of a stream together"""
    processor_seconds: int | None = None
    """of its whole life; None: unlimited"""
    descriptors: int = 64
    written_bytes: int = 0
    """size of a file that it may write, where the system-call filter is not available"""
    threads: bool = False
    """whether it may start threads"""
    message_megabytes: int = 512
    """the longest message that either side accepts"""
    without: tuple[str, ...] = ()
    """installed libraries that count as missing: some import others wherever they find them, for nothing"""

    def to_json(self) -> str:
        """As the argument of the child."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Limits:
        """The inverse of ``to_json``."""
        return cls(**json.loads(text))


def confine(limits: Limits) -> None:
    """Limit the resources of this process, irrevocably, where the system supports it (POSIX)."""
    try:
        import resource
    except ImportError:  # Windows: only the parent's time limit applies
        return
    values = {
        "RLIMIT_AS": limits.memory_megabytes * 2**20 + (_address_space() if limits.on_top else 0),
        "RLIMIT_CPU": limits.processor_seconds,
        "RLIMIT_FSIZE": limits.written_bytes,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": limits.descriptors,
        "RLIMIT_NPROC": None if limits.threads else 0,
    }
    for name, value in values.items():
        if value is not None:
            with contextlib.suppress(AttributeError, OSError, ValueError):
                resource.setrlimit(getattr(resource, name), (value, value))


def _address_space() -> int:
    """Bytes of address space that this process has; 8 GB where that is not known."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 8 << 30


def child_environment(*, threads: bool = False) -> dict[str, str]:
    """The environment of a child: what it needs to start, and no thread pools unless it may start threads."""
    kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ} | _LEAN | ASLEEP
    return kept if threads else kept | dict.fromkeys(_ONE_THREAD, "1") | {"TOKENIZERS_PARALLELISM": "false"}
