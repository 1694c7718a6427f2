"""Pictures of strangers decoded in a confined child: the function that runs there, and its caller."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import Confined, ReaderEnded, ReaderPool
from tokenpaths.engine.data.images import MAX_PIXELS, ImageError, decode_upload

ENTRY: Final = "tokenpaths.engine.data.confined_pictures:decode"
READERS: Final = ReaderPool(ENTRY, Limits(memory_megabytes=1024, seconds=30), "the picture", "image")
_AGAIN = "; save it again as a plain PNG or JPEG."


def decode(data: bytes) -> np.ndarray:
    """The picture in ``data`` as RGB (H, W, 3), upright; runs in the child."""
    return pixels_of(decode_upload(data))


def pixels_of(image: Image.Image) -> np.ndarray:
    """The pixels of an RGB picture, (H, W, 3)."""
    return np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, 3)


def picture_of(pixels: Any) -> Image.Image:
    """The picture of pixels that a child sent.

    Raises:
        UserError: they are none.
    """
    right = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
    if not right or not 0 < pixels.shape[0] * pixels.shape[1] <= MAX_PIXELS:
        raise UserError("The process that decodes pictures sent no picture.", field="image")
    return Image.frombuffer("RGB", (pixels.shape[1], pixels.shape[0]), pixels, "raw", "RGB", 0, 1)


def decode_with(reader: Confined, data: bytes) -> Image.Image:
    """The picture in ``data`` as RGB, upright, decoded by ``reader`` (a child of ``ENTRY``).

    Raises:
        ImageError: as ``decode_upload``; also where decoding took too long, too much memory or ended the process.
        ReaderEnded: the child could not be started or is busy; this says nothing about the picture.
    """
    try:
        return picture_of(reader.call(data=data))
    except ReaderEnded as error:
        if error.reason in ("start", "busy"):
            raise
        raise ImageError(f"{error}{_AGAIN}", status=413 if error.reason == "memory" else 422) from None
    except UserError as error:
        raise ImageError(str(error), status=getattr(error, "status", 422)) from None


def decode_apart(data: bytes) -> Image.Image:
    """``decode_with`` a child that is kept for the next picture."""
    with READERS.one() as reader:
        return decode_with(reader, data)
