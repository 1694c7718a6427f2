"""What a process that reads a stranger's bytes can still do: with the filter, and in the processes that have it."""

from __future__ import annotations

import errno
import json
import os
import platform
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.backend.conftest import png
from tokenpaths.backend.settings import load_settings
from tokenpaths.backend.worker.decoder import Decoder
from tokenpaths.cli.support.doctor_files import sandbox
from tokenpaths.engine.confined.limits import KEPT_ENVIRONMENT
from tokenpaths.engine.confined.syscalls import REFUSED, filter_program

linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the filter is for Linux on x86-64"
)
PERMIT = 0x7FFF0000
DENIED, UNKNOWN = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS


def ruling(program: bytes, number: int, *arguments: int, machine: int = 0xC000003E) -> int:
    """What the kernel would make of one call: the program, interpreted one instruction at a time."""
    given = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, machine, 0, *(value % 2**64 for value in given))
    place, held = 0, 0
    while True:
        code, then, otherwise, value = struct.unpack_from("=HBBI", program, 8 * place)
        if code == 0x06:
            return value
        if code == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
            step = 0
        else:
            step = then if {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code] else otherwise
        place += 1 + step


def test_the_filter_refuses_what_it_names_and_nothing_else() -> None:
    program = filter_program(77)
    named = set(REFUSED.values())
    by_argument = {2: DENIED, 257: DENIED, 56: DENIED, 234: DENIED, 302: DENIED}
    for number in range(500):
        allowed = ruling(program, number)
        if number in named:
            assert allowed == DENIED, number
        elif number in (435, 437):
            assert allowed == UNKNOWN
        elif number not in by_argument:
            assert allowed == PERMIT, number
    assert ruling(program, 0x40000000 | 41) == DENIED, "the same call by its other number"
    assert ruling(program, 1, machine=0x40000003) == 0x80000000, "numbers of another machine"
    assert ruling(program, 2, 0, os.O_RDONLY | os.O_CLOEXEC) == PERMIT
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND, os.O_TMPFILE):
        assert ruling(program, 2, 0, flags) == DENIED
        assert ruling(program, 257, -100, 0, flags) == DENIED
        assert ruling(program, 257, flags, 0, os.O_RDONLY) == PERMIT, "another argument"
    assert ruling(program, 56, 0x3D0F00) == PERMIT, "a thread"
    assert ruling(program, 56, 17) == DENIED, "a process"
    assert ruling(program, 234, 77, 5, 6) == PERMIT
    assert ruling(program, 234, 78, 5, 6) == DENIED
    assert ruling(program, 302, 0, 7, 0) == PERMIT
    assert ruling(program, 302, 0, 7, 1) == DENIED
    assert ruling(program, 302, 0, 7, 1 << 32) == DENIED
    for command in range(1100):  # F_SETOWN and F_SETOWN_EX: signals of any number to others, by way of a pipe
        assert ruling(program, 72, 3, command, 8) == (DENIED if command in (8, 15) else PERMIT)


@linux
def test_a_process_with_the_filter_can_read_and_nothing_more(tmp_path: Path) -> None:
    able = {}
    for how in ((), ("own",), ("without",)):
        command = [sys.executable, "-m", "tokenpaths.engine.confined.syscalls", *how]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        able[how] = json.loads(said.stdout)["able"]
    assert all(able[("without",)].values()), "each try works where nothing forbids it"
    for how in ((), ("own",)):  # by libseccomp where pyseccomp is installed
        assert {name for name, could in able[how].items() if could} == {"file read", "thread"}
    assert [finding.state for finding in sandbox(load_settings(data_dir=tmp_path))] == ["ok"]


def filters_of(process: int) -> str:
    status = Path(f"/proc/{process}/status").read_text()
    return next(line.split()[1] for line in status.splitlines() if line.startswith("Seccomp:"))


@linux
def test_the_process_that_reads_pictures_has_it() -> None:
    reader = Decoder(limit_s=60, memory_megabytes=1024)
    try:
        assert reader.decode(png()).size == (40, 30)
        assert reader.reader.pid is not None
        assert filters_of(reader.reader.pid) == "2"
    finally:
        reader.close()
    assert "TOKENPATHS_TOKEN" not in KEPT_ENVIRONMENT


@linux
def test_a_reader_does_not_outlive_who_asked(tmp_path: Path) -> None:
    """The worker is killed while an image is decoded that takes for ever; here the reader is stopped instead."""
    picture = tmp_path / "picture.png"
    picture.write_bytes(png())
    asks = (
        "import sys; from pathlib import Path; from tokenpaths.backend.worker.decoder import Decoder\n"
        "reader = Decoder(limit_s=60, memory_megabytes=1024)\n"
        "reader.decode(Path(sys.argv[1]).read_bytes())\n"
        "print(reader.reader.pid, flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", asks, str(picture)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    child = int(worker.stdout.readline())
    os.kill(child, signal.SIGSTOP)  # or it would read that its pipe has closed
    worker.kill()
    worker.wait()
    for _ in range(500):
        try:
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.02)
    pytest.fail("it reads on")


def test_where_there_is_no_filter_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: real([*command, "without"], **options))
    (finding,) = sandbox(load_settings(data_dir=tmp_path))
    assert finding.state == "note"
    assert "connection" in finding.text
