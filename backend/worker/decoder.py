"""Decodes uploaded images in a confined child process, as problems of the API where that fails."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenpaths.backend.problems import Problem, busy
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import Confined, ReaderEnded
from tokenpaths.engine.data.confined_pictures import ENTRY, decode_with
from tokenpaths.engine.data.images import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image


class Decoder:
    """Decodes one image at a time in a child process; safe to use from several threads."""

    def __init__(self, *, limit_s: float, memory_megabytes: int) -> None:
        self.reader = Confined(ENTRY, Limits(memory_megabytes, seconds=limit_s), "the image", "image")
        self.start, self.close = self.reader.start, self.reader.close

    def decode(self, data: bytes) -> Image:
        """Decode ``data`` to an upright RGB image.

        Raises:
            Problem: 413, 415, 422 (see ``data.images``) or 503.
        """
        try:
            return decode_with(self.reader, data)
        except ImageError as error:
            raise Problem(error.status, "image", str(error), field="image") from None
        except ReaderEnded as error:
            if error.reason == "busy":
                raise busy("Other images are still being decoded; try again in a moment.") from None
            raise busy(f"{error}; try again in a moment.") from None
