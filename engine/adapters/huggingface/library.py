"""Lazy and quiet import of transformers; its errors shortened to one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenpaths.engine.base.errors import UserError


class HuggingFaceError(UserError):
    """A model that cannot be found, loaded or traced."""

    def __init__(self, message: str, *, field: str = "model") -> None:
        super().__init__(message, field=field)


def transformers_library() -> Any:
    try:
        import transformers
    except ImportError:
        raise HuggingFaceError(
            "transformers is missing from this installation; run `pip install transformers`"
        ) from None
    return transformers


class quiet:
    """Suppress progress bars and warnings of the library; relevant problems are reported as our own errors."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level, self._bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()

    def __exit__(self, *error: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)
        if self._bars:
            logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """The first line of a library's message, shortened."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def with_plain_attention(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call ``make`` with torch's SDPA attention if the architecture supports it, else with eager attention.

    The attention that a configuration names is never used: it may be a kernel of a repository, or not be installed.
    """
    try:
        return make(*args, attn_implementation="sdpa", **options)
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        return make(*args, attn_implementation="eager", **options)
