"""The one exception for what people can put right themselves."""

from __future__ import annotations


class UserError(ValueError):
    """Bad input: the message says what was given and what would be right, in one sentence.

    ``field`` names the parameter, option or column at fault, where there is one. The API turns
    this into problem+json, the command line into one line and exit code 2.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field
