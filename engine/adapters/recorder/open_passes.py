"""The forward passes that run at this moment: which of them a call of a router belongs to."""

from __future__ import annotations

import threading

from tokenpaths.engine.adapters.recorder.forward_pass import Forward
from tokenpaths.engine.base.errors import UserError

_TWO_THREADS = (
    "the model was called from two threads at once, so it cannot be told whose call of a router is whose: call it from "
    "one thread at a time, or give each thread a copy of the model and a recorder of its own"
)


class OpenPasses:
    """Forward passes that have begun and not ended, innermost last, all of one thread.

    More than one are open where a model calls itself. None stands for a pass that is not recorded.
    """

    def __init__(self) -> None:
        self._stack: list[Forward | None] = []
        self._thread = 0
        self._lock = threading.Lock()

    def begin(self, forward: Forward | None) -> None:
        """Open a pass.

        Raises:
            UserError: another thread has one open.
        """
        here = threading.get_ident()
        with self._lock:
            if self._stack and self._thread != here:
                raise UserError(_TWO_THREADS, field="model")
            self._thread = here
            if (outer := self.innermost) is not None:
                outer.calls_itself = True
            self._stack.append(forward)

    @property
    def innermost(self) -> Forward | None:
        """The pass to which a call belongs; None: there is none, or it is not recorded."""
        return self._stack[-1] if self._stack else None

    @property
    def any_open(self) -> bool:
        """Whether a pass is under way, recorded or not."""
        return bool(self._stack)

    def check_thread(self) -> None:
        """UserError if the open pass is that of another thread."""
        if self._thread != threading.get_ident():
            raise UserError(_TWO_THREADS, field="model")

    def end(self) -> None:
        """Close the innermost pass of this thread, whether it came to its end or failed."""
        if self._stack and self._thread == threading.get_ident():
            self._stack.pop()

    def clear(self) -> None:
        self._stack.clear()


def called_outside(router: str, model: str) -> str:
    """Warning at the first call of a router that belongs to no pass."""
    return (
        f"{router} was called outside of a forward pass of {model}, and what is decided there is not recorded: record "
        "the module that is called (not a wrapper whose generate() calls the model inside it), and call it as "
        "model(…), not as model.forward(…)"
    )


def outside_passes(calls: int, model: str) -> str:
    """Note of a run beside which routers were called."""
    return (
        f"{calls:,} calls of routers outside of a forward pass of {model} are not in the run: record the module that "
        "is called"
    )
