"""Decodes untrusted images in a child process with little memory, no file access, no torch and no secrets.

``Decoder`` (in the worker) starts the child once, talks to it over pipes, and restarts it after it died, was killed for
memory or timed out. The child is ``tokenpaths.backend.worker.decoder_child``.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from tokenpaths.backend.problems import Problem, busy
from tokenpaths.backend.worker.decoder_child import read_frame, write_frame

if TYPE_CHECKING:
    from PIL.Image import Image

log = logging.getLogger(__name__)
KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SYSTEMROOT", "VIRTUAL_ENV", "TMPDIR")
"""environment variables that the child needs to start; excludes tokens and secrets"""


class Decoder:
    """Decodes one image at a time in a child process; safe to use from several threads."""

    def __init__(self, *, limit_s: float, memory_megabytes: int) -> None:
        self.limit_s, self.memory_megabytes = limit_s, memory_megabytes
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the child in advance, so that the first image does not wait for it."""
        with self._lock:
            self._running()

    def decode(self, data: bytes) -> Image:
        """Decode ``data`` to an upright RGB image.

        Raises:
            Problem: 413, 415, 422 (see ``data.images``) or 503.
        """
        from PIL import Image

        if not self._lock.acquire(timeout=self.limit_s):
            raise busy("Other images are still being decoded; try again in a moment.")
        try:
            header, pixels = self._exchange(data)
        finally:
            self._lock.release()
        if "problem" in header:
            raise Problem(header["status"], "image", header["problem"], field="image")
        return Image.frombytes("RGB", (header["width"], header["height"]), pixels)

    def _exchange(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        try:
            return self._ask(data)
        except EOFError:  # the child was already gone, or this image killed it: a second child distinguishes the two
            log.warning("the decoder process died; trying once more")
        try:
            return self._ask(data)
        except EOFError:
            raise _undecodable("needs more memory than its reader may use") from None

    def _ask(self, data: bytes) -> tuple[dict[str, Any], bytes]:
        """Send one request to the child; EOFError when it dies, Problem 422 on timeout."""
        child = self._running()
        late = threading.Event()

        def give_up() -> None:
            late.set()
            child.kill()

        timer = threading.Timer(self.limit_s, give_up)
        timer.start()
        try:
            assert child.stdin is not None
            assert child.stdout is not None
            write_frame(child.stdin, data)
            frame = read_frame(child.stdout)
        except (OSError, EOFError, ValueError):
            self._stop()
            if late.is_set():
                raise _undecodable(f"takes longer than {self.limit_s:g} s") from None
            raise EOFError from None
        finally:
            timer.cancel()
        line, _, pixels = frame.partition(b"\n")
        return json.loads(line), pixels

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            if self._child is not None:
                log.warning("the decoder process had ended with code %s; starting another", self._child.returncode)
                self._stop()
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "tokenpaths.backend.worker.decoder_child", str(self.memory_megabytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={"OPENBLAS_NUM_THREADS": "1"}
                | {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
                start_new_session=True,
            )
        return self._child

    def _stop(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        child.wait()

    def close(self) -> None:
        """Stop the child."""
        with self._lock:
            self._stop()


def _undecodable(why: str) -> Problem:
    return Problem(
        422, "image", f"The image could not be decoded: it {why}. Save it again as a plain PNG or JPEG.", field="image"
    )
