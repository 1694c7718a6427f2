"""Seccomp filter that permanently removes unneeded system calls from a process that parses untrusted bytes.

An attacker who takes over such a process through a bug of an image decoder, a tokenizer or DuckDB cannot open a
connection, start a program or process, or write or delete a file. The process can still read what its user may read,
and write to the pipe of its parent. Limits on resources are set in addition (``tokenpaths.engine.confined.limits``).

Where ``pyseccomp`` is installed, libseccomp builds the filter from the names, on any processor that it knows. Without
it a filter of our own does, on x86-64 only; elsewhere just the limits apply. ``python -m
tokenpaths.engine.confined.syscalls`` tests the filter in its own process and prints one JSON object.
"""

from __future__ import annotations

import contextlib
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

_REFUSED_CALLS = {
    "connections": "socket 41 connect 42 accept 43 sendto 44 sendmsg 46 bind 49 listen 50 socketpair 53 accept4 288 "
    "sendmmsg 307",
    "programs and processes": "fork 57 vfork 58 execve 59 execveat 322 unshare 272 setns 308",
    "signals and memory of others": "kill 62 ptrace 101 rt_sigqueueinfo 129 tkill 200 rt_tgsigqueueinfo 297 "
    "process_vm_readv 310 process_vm_writev 311 pidfd_send_signal 424 pidfd_open 434 pidfd_getfd 438 "
    "process_madvise 440",
    "files made, changed, removed": "truncate 76 ftruncate 77 rename 82 mkdir 83 rmdir 84 creat 85 link 86 unlink 87 "
    "symlink 88 chmod 90 fchmod 91 chown 92 fchown 93 lchown 94 utime 132 mknod 133 setxattr 188 lsetxattr 189 "
    "fsetxattr 190 removexattr 197 lremovexattr 198 fremovexattr 199 utimes 235 mkdirat 258 mknodat 259 fchownat 260 "
    "futimesat 261 unlinkat 263 renameat 264 linkat 265 symlinkat 266 fchmodat 268 utimensat 280 fallocate 285 "
    "renameat2 316 memfd_create 319 memfd_secret 447 fchmodat2 452 setxattrat 463 removexattrat 466 "
    "file_setattr 469",
    "file systems, handles, watches": "pivot_root 155 chroot 161 mount 165 umount2 166 fanotify_init 300 "
    "name_to_handle_at 303 open_by_handle_at 304 open_tree 428 move_mount 429 fsopen 430 fsconfig 431 fsmount 432 "
    "fspick 433 mount_setattr 442",
    "shared memory and queues": "shmget 29 shmat 30 shmctl 31 semget 64 semop 65 semctl 66 msgget 68 msgsnd 69 "
    "msgrcv 70 msgctl 71 semtimedop 220 mq_open 240 mq_unlink 241 mq_timedsend 242 mq_timedreceive 243",
    "kernel": "personality 135 setrlimit 160 acct 163 settimeofday 164 swapon 167 swapoff 168 reboot 169 "
    "init_module 175 delete_module 176 quotactl 179 clock_settime 227 kexec_load 246 add_key 248 request_key 249 "
    "keyctl 250 perf_event_open 298 finit_module 313 kexec_file_load 320 bpf 321 userfaultfd 323 io_uring_setup 425 "
    "io_uring_enter 426 io_uring_register 427",
}
_WORDS = [word for calls in _REFUSED_CALLS.values() for word in calls.split()]
REFUSED: dict[str, int] = dict(zip(_WORDS[::2], map(int, _WORDS[1::2]), strict=True))
"""system call → its number on x86-64"""
_UNKNOWN = {"clone3": 435, "openat2": 437}
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
    for number in sorted(REFUSED.values()):
        program += [_instruction(_EQUAL, number, 0, 1), refuse]
    for number in _UNKNOWN.values():
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
    if sys.platform != "linux":
        return f"no filter is known for {platform.system()}"
    try:
        _load_with_libseccomp()
    except (ImportError, OSError, RuntimeError, AttributeError):  # not installed, or without its library
        return _load_own_program()
    return None


def _load_with_libseccomp() -> None:
    import pyseccomp as seccomp

    rules = seccomp.SyscallFilter(seccomp.ALLOW)  # of another architecture than the native one: killed
    rules.set_attr(seccomp.Attr.CTL_TSYNC, 1)
    refuse, x86 = seccomp.ERRNO(errno.EPERM), platform.machine() == "x86_64"

    def add(action: int, name: str, number: int | None = None, *conditions: object) -> None:
        with contextlib.suppress(OSError, ValueError):  # a call that this processor or library does not have
            rules.add_rule(action, number if x86 and number is not None else name, *conditions)

    for name, number in REFUSED.items():
        add(refuse, name, number)
    for name, number in _UNKNOWN.items():
        add(seccomp.ERRNO(errno.ENOSYS), name, number)
    for name, argument in (("open", 1), ("openat", 2)):
        for bit in (1 << place for place in range(32) if _OPEN_TO_WRITE >> place & 1):
            add(refuse, name, None, seccomp.Arg(argument, seccomp.MASKED_EQ, bit, bit))
    add(refuse, "clone", None, seccomp.Arg(0, seccomp.MASKED_EQ, _THREAD, 0))
    add(refuse, "tgkill", None, seccomp.Arg(0, seccomp.NE, os.getpid()))
    add(refuse, "prlimit64", None, seccomp.Arg(2, seccomp.NE, 0))
    for command in _OWNERS:
        add(refuse, "fcntl", None, seccomp.Arg(1, seccomp.EQ, command))
    rules.load()


def _load_own_program() -> str | None:
    if platform.machine() != "x86_64" or struct.calcsize("P") != 8:
        return f"no filter is known for {platform.system()} on {platform.machine()} without pyseccomp"
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
    reason = {"without": lambda: None, "own": _load_own_program}.get("".join(sys.argv[1:]), refuse_the_rest)()
    print(json.dumps({"reason": reason, "able": tried_out()}))
