"""Seccomp filter that permanently removes unneeded system calls from a process that parses untrusted bytes.

An attacker who takes over such a process through a bug of an image decoder or of DuckDB cannot open a connection, start
a program or process, or write or delete a file. The process can still read what its user may read, and write to the
pipe of its parent. Limits on memory, time and open files are set in addition (``decoder_child.confine``).

System call numbers differ between processors; only x86-64 is supported, elsewhere just the limits apply. ``python -m
tokenpaths.backend.worker.syscalls`` tests the filter in its own process and prints one JSON object.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable

# From the Linux headers linux/{audit,filter,prctl,sched,seccomp}.h, asm-generic/fcntl.h and the table
# arch/x86/entry/syscalls/syscall_64.tbl.
_ARCHITECTURE = 0xC000003E
_X32 = 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
_SECCOMP, _SET_FILTER, _ALL_THREADS = 317, 1, 1
_NO_NEW_PRIVILEGES, _DIE_WITH_PARENT = 38, 1
_OPEN_TO_WRITE = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000000
"""access mode other than read-only, O_CREAT, O_TRUNC, O_APPEND, the bit of O_TMPFILE"""
_THREAD = 0x00010000

REFUSED: dict[str, tuple[int, ...]] = {
    "connections": (41, 42, 43, 44, 46, 49, 50, 53, 288, 307),
    "programs and processes": (57, 58, 59, 322, 272, 308),
    "signals and memory of others": (62, 101, 129, 200, 297, 310, 311, 424, 434, 438, 440),
    "files made, changed, removed": (
        76,
        77,
        82,
        83,
        84,
        85,
        86,
        87,
        88,
        90,
        91,
        92,
        93,
        94,
        132,
        133,
        188,
        189,
        190,
        197,
        198,
        199,
        235,
        258,
        259,
        260,
        261,
        263,
        264,
        265,
        266,
        268,
        280,
        285,
        316,
        319,
        447,
        452,
        463,
        466,
        469,
    ),
    "file systems, handles, watches": (155, 161, 165, 166, 300, 303, 304, 428, 429, 430, 431, 432, 433, 442),
    "shared memory and queues": (29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241, 242, 243),
    "kernel": (
        135,
        160,
        163,
        164,
        167,
        168,
        169,
        175,
        176,
        179,
        227,
        246,
        248,
        249,
        250,
        298,
        313,
        320,
        321,
        323,
        425,
        426,
        427,
    ),
}
"""numbers of x86-64: socket … accept4; fork, vfork, execve(at), unshare, setns; kill, ptrace …; truncate … mkdirat …"""
_UNKNOWN = (435, 437)
"""clone3 and openat2 take their flags from memory, which a filter cannot read: reported as missing (as on an older
kernel), so that libraries use clone and openat
"""
_CLONE, _OPEN, _OPENAT, _TGKILL, _PRLIMIT, _FCNTL = 56, 2, 257, 234, 302, 72
_OWNERS = (8, 15)
"""F_SETOWN, F_SETOWN_EX: choose which process gets a signal when a pipe is readable; could signal any process of the
user
"""


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def filter_program(process: int) -> bytes:
    """The BPF filter for ``process``: instructions of 8 bytes, forward jumps only."""
    refuse, allow = _instruction(_RETURN, _REFUSE | errno.EPERM), _instruction(_RETURN, _ALLOW)
    program = [
        _instruction(_LOAD, _MACHINE),
        _instruction(_EQUAL, _ARCHITECTURE, 1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32, 0, 1),
        refuse,
    ]
    for number in sorted(number for numbers in REFUSED.values() for number in numbers):
        program += [_instruction(_EQUAL, number, 0, 1), refuse]
    for number in _UNKNOWN:
        program += [_instruction(_EQUAL, number, 0, 1), _instruction(_RETURN, _REFUSE | errno.ENOSYS)]
    for number, argument, test in (
        (_OPEN, 1, _instruction(_ANY_BIT, _OPEN_TO_WRITE, 1)),
        (_OPENAT, 2, _instruction(_ANY_BIT, _OPEN_TO_WRITE, 1)),
        (_CLONE, 0, _instruction(_ANY_BIT, _THREAD, 0, 1)),
        (_TGKILL, 0, _instruction(_EQUAL, process, 0, 1)),  # abort() signals its own process
    ):
        low = _instruction(_LOAD, _ARGUMENTS + 8 * argument)
        program += [_instruction(_EQUAL, number, 0, 4), low, test, allow, refuse]
    # prlimit only reads limits if its third argument (64 bits) is a null pointer; otherwise it sets them.
    low, high = (_instruction(_LOAD, _ARGUMENTS + 16 + half) for half in (0, 4))
    zero = _instruction(_EQUAL, 0)
    program += [
        _instruction(_EQUAL, _PRLIMIT, 0, 6),
        low,
        zero[:2] + b"\x00\x03" + zero[4:],
        high,
        zero[:2] + b"\x00\x01" + zero[4:],
        allow,
        refuse,
    ]
    program += [
        _instruction(_EQUAL, _FCNTL, 0, 5),
        _instruction(_LOAD, _ARGUMENTS + 8),
        _instruction(_EQUAL, _OWNERS[0], 2),
        _instruction(_EQUAL, _OWNERS[1], 1),
        allow,
        refuse,
    ]
    return b"".join([*program, allow])


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse_the_rest() -> str | None:
    """Install the filter for all threads of this process, irrevocably; returns None, or why it is not possible here."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or struct.calcsize("P") != 8:
        return f"no filter is known for {platform.system()} on {platform.machine()}"
    program = filter_program(os.getpid())
    held = _Program(len(program) // 8, program)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0 and (
            libc.syscall(_SECCOMP, _SET_FILTER, _ALL_THREADS, ctypes.byref(held)) == 0
        ):
            return None
    except (OSError, AttributeError) as error:
        return f"the system's library has no such call ({error})"
    return f"the kernel, or what this runs in, does not allow it ({os.strerror(ctypes.get_errno())})"


def die_with_parent() -> None:
    """End this process when the thread that started it ends, in whatever way; does nothing outside Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, int(signal.SIGKILL), 0, 0, 0)


def _open_socket() -> None:
    socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()


def _open_socket_pair() -> None:
    for end in socket.socketpair():
        end.close()


def tried_out() -> dict[str, bool]:
    """What this process can do now, by trying; opening a file to read and starting a thread must still work."""
    parent = os.getppid()
    tries: dict[str, Callable[[], object]] = {
        "connection": _open_socket,
        "local connection": _open_socket_pair,
        "program": lambda: os.execv("/nonexistent/program", ["program"]),
        "process": _fork,
        "signal": lambda: os.kill(parent, 0),
        "signal through a pipe": lambda: _own_pipe(parent),
        "file made": lambda: os.close(os.open(_place(), os.O_WRONLY | os.O_CREAT, 0o600)),
        "file removed": lambda: os.unlink(_place()),
        "file read": lambda: os.close(os.open(__file__, os.O_RDONLY)),
        "thread": _thread,
    }
    able = {}
    for name, attempt in tries.items():
        try:
            attempt()
            able[name] = True
        except PermissionError:
            able[name] = False
        except OSError:  # the call was allowed and failed for another reason
            able[name] = True
    return able


def _place() -> str:
    return os.path.join(tempfile.gettempdir(), f"tokenpaths-tried-{os.getpid()}")


def _own_pipe(process: int) -> None:
    """Make ``process`` the owner of a pipe (F_SETOWN); nothing is written to it."""
    import fcntl

    ends = os.pipe()
    try:
        fcntl.fcntl(ends[0], fcntl.F_SETOWN, process)
    finally:
        for end in ends:
            os.close(end)


def _fork() -> None:
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _thread() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()


if __name__ == "__main__":
    tempfile.gettempdir()  # probes by writing a file, so call it before the filter
    reason = None if sys.argv[1:] == ["without"] else refuse_the_rest()
    print(json.dumps({"reason": reason, "able": tried_out()}))
