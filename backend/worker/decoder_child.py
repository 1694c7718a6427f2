"""Child process that decodes images: ``python -m tokenpaths.backend.worker.decoder_child <megabytes>``.

Imports little, to start fast. Frames in both directions: 8 bytes length (big endian), then the payload. A request is
the image file. A response is one line of JSON, then raw RGB pixels in row-major order.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import IO

MAX_FRAME_BYTES = 128 * 2**20


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    """Send one frame."""
    pipe.write(len(data).to_bytes(8, "big"))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes:
    """Receive one frame; EOFError when the pipe is closed."""
    head = pipe.read(8)
    length = int.from_bytes(head, "big")
    if len(head) < 8 or length > MAX_FRAME_BYTES:
        raise EOFError
    data = pipe.read(length)
    if len(data) < length:
        raise EOFError
    return data


def serve(memory_megabytes: int) -> None:
    """Main loop of the child: decode until the pipe closes."""
    from tokenpaths.backend.worker.syscalls import die_with_parent, refuse_the_rest
    from tokenpaths.engine.base.errors import UserError
    from tokenpaths.engine.data.images import decode_upload

    die_with_parent()  # without the parent nothing would stop an image that takes too long
    confine(memory_megabytes)
    refuse_the_rest()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            data = read_frame(requests)
        except EOFError:
            return
        pixels = b""
        try:
            image = decode_upload(data).convert("RGB")
            header: dict[str, int | str] = {"width": image.width, "height": image.height}
            pixels = image.tobytes()
        except UserError as error:
            header = {"status": getattr(error, "status", 422), "problem": str(error)}
        except MemoryError:
            header = {"status": 413, "problem": "The image needs too much memory to decode; make it smaller."}
        write_frame(answers, json.dumps(header).encode() + b"\n" + pixels)


def confine(memory_megabytes: int, *, threads: bool = False) -> None:
    """Limit the resources of this process where the system supports it (POSIX); ``threads``: it may start some."""
    try:
        import resource
    except ImportError:  # Windows: only the parent's time limit applies
        return
    limits = {
        "RLIMIT_AS": memory_megabytes * 2**20,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_NOFILE": 16,
        "RLIMIT_NPROC": 0,
    }
    if threads:
        del limits["RLIMIT_NPROC"]
        limits["RLIMIT_NOFILE"] = 256
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, OSError, ValueError):
            resource.setrlimit(getattr(resource, name), (value, value))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
