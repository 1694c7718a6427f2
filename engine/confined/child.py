"""A confined child process: ``python -P -m tokenpaths.engine.confined.child MODULE:FUNCTION LIMITS``.

Imports the function, calls its ``before_confinement`` if it has one (for what cannot be imported later), gives up
everything that reading does not need, and answers one request after the other until the
pipe closes. A request is the function's keyword arguments. A plain function gives one value; a generator gives a
message for each value that it yields, and one for what it returns. Answers are ``{"kind": …, …}``: ``part``, ``value``,
``user`` (a ``UserError``), ``memory`` and ``failed`` (any other exception, Rust panics included).
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from io import BufferedIOBase
from typing import Any

from tokenpaths.engine.base.errors import NotEnoughMemory, UserError
from tokenpaths.engine.base.shared_cores import stand_back
from tokenpaths.engine.confined.limits import Limits, confine
from tokenpaths.engine.confined.messages import MAX_SENTENCE, read_message, write_message
from tokenpaths.engine.confined.syscalls import die_with_parent, refuse_the_rest


def serve(function: Callable[..., Any], limits: Limits, answers: BufferedIOBase) -> None:
    """Answer requests until the pipe closes."""
    requests = os.fdopen(0, "rb")
    most_bytes = limits.message_megabytes * 2**20
    confine(limits)
    refuse_the_rest()  # where there is none the limits remain; `tokenpaths doctor` reports it
    while True:
        try:
            values = read_message(requests, most_bytes)
        except EOFError:
            return
        broken = False
        try:
            result = function(**values)
            if inspect.isgenerator(result):
                while True:
                    try:
                        part = next(result)
                    except StopIteration as stop:
                        result = stop.value
                        break
                    write_message(answers, {"kind": "part", "value": part})
                    del part
            answer = {"kind": "value", "value": result}
        except (MemoryError, NotEnoughMemory):
            answer = {"kind": "memory"}
        except UserError as error:
            answer = {"kind": "user", "error": type(error).__name__, "sentence": str(error)[:MAX_SENTENCE]}
            answer |= {"field": error.field, "status": getattr(error, "status", None)}
        except (BrokenPipeError, KeyboardInterrupt, SystemExit):
            return
        except BaseException as error:  # pyo3's PanicException is no Exception; what it leaves behind is not used again
            answer, broken = {"kind": "failed", "error": type(error).__name__, "sentence": str(error)[:300]}, True
        write_message(answers, answer)
        del values, answer
        if broken:
            return


def main(entry: str, limits: str) -> None:
    """Import ``entry`` (``module:function``) and serve it under ``limits`` (JSON)."""
    die_with_parent()  # without the parent nothing would stop a call that takes too long
    stand_back()  # as far as the parent does: it is in a session of its own
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print, when they are imported or later, must not mix with the answers
    module, _, name = entry.partition(":")
    given = Limits.from_json(limits)
    for library in given.without:
        sys.modules[library] = None  # type: ignore[assignment]  # importing it fails
    function = getattr(importlib.import_module(module), name)
    getattr(function, "before_confinement", lambda: None)()
    serve(function, given, answers)


if __name__ == "__main__":
    main(*sys.argv[1:])
