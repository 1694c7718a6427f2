"""Safe decoding of untrusted images, and the one square crop that model, page and masks share.

Everything that shows or routes an image goes through ``central_square``: a patch grid drawn over ``display_png``
covers exactly the pixels of ``model_view``, and ``patch_regions`` refers to the same patches. No torch here: the API
process imports this module.
"""

from __future__ import annotations

import io
import zlib
from typing import Final

import numpy as np
import simplejpeg
from jaxtyping import Int, UInt8
from PIL import Image

from tokenpaths.engine.base.errors import UserError

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""what is decoded; everything else is refused before a decoder sees it"""
MAX_PIXELS: Final = 4096 * 4096
"""16.8 megapixels: 50 MB once decoded to RGB"""
REGIONS: Final = ("background", "object", "boundary")
"""names of the values of ``patch_regions``"""

_ACCEPTED = "a still PNG, JPEG, WebP, GIF or BMP picture"
_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
)
_OTHER_KINDS: Final = (
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or office document"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"II*\x00", "a TIFF picture"),
    (b"MM\x00*", "a TIFF picture"),
    (b"8BPS", "a Photoshop picture"),
    (b"\x00\x00\x01\x00", "an icon file"),
    (b"PAR1", "a Parquet file"),
    (b"<?xml", "an XML or SVG file"),
    (b"<svg", "an SVG drawing"),
    (b"<!DOCTYPE", "a web page"),
    (b"<html", "a web page"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x03", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\x80\x05", "a Python pickle"),
)
_TRANSPOSE: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_EXIF_ORIENTATION: Final = 0x0112


class ImageError(UserError):
    """A picture that cannot be used; ``status`` is the HTTP status that fits.

    413: too many pixels; 415: not a picture of an accepted format; 422: of an accepted format, but
    broken, empty or animated.
    """

    def __init__(self, message: str, *, status: int = 422, field: str | None = "image") -> None:
        super().__init__(message, field=field)
        self.status = status


def decode_upload(data: bytes) -> Image.Image:
    """The picture in ``data`` as RGB, upright by its EXIF orientation, alpha laid over white.

    Format and number of pixels are checked before anything is decoded. Raises ``ImageError`` and
    nothing else. Colour profiles are ignored; 16-bit greys keep their 8 high bits.
    """
    kind = sniffed(data)
    if kind == "WEBP":  # Pillow allocates a WebP canvas on open: look at the size before that
        size = _webp_size(data)
        if size is not None:
            _check_pixels(*size)
    try:
        with Image.open(io.BytesIO(data), formats=(kind,)) as image:
            _check_pixels(*image.size)
            _check_still(image, kind)
            _narrow_transparent_tone(image)
            image.load()
            check_whole(data, image, kind)
            return _upright(to_rgb(image), image)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large("that many") from error
    except Exception as error:  # Pillow's decoders raise nearly every kind of exception on broken bytes
        raise ImageError(
            f"The {kind} picture is cut off or damaged and could not be decoded; save it again and give {_ACCEPTED}."
        ) from error


def check_whole(data: bytes, image: Image.Image, kind: str) -> None:
    """Refuse pictures that Pillow decodes without a word although some of their pixels are missing or made up.

    JPEG: libjpeg only warns of a damaged scan, and Pillow hides its warnings; TurboJPEG decodes a second time, at an
    eighth of the size, and stops at the first warning. PNG: Pillow checks the sums, but leaves rows black for which
    there are no bytes. Not noticed is what no code contradicts: in a JPEG, damage of some ten to hundred bytes after
    which the decoder finds its place again (measured in docs/reliability.md); inside WebP, GIF and BMP, which hold no
    sums, all that keeps the length.

    Args:
        data: the encoded picture.
        image: what Pillow decoded of it.
        kind: its format.

    Raises:
        ImageError: the picture is damaged.
    """
    reason = None
    if kind == "JPEG":
        try:
            simplejpeg.decode_jpeg(
                data, "GRAY", fastdct=True, fastupsample=True, min_height=1, min_width=1, strict=True
            )
        except ValueError as error:  # what TurboJPEG cannot convert is no damage: Pillow could
            reason = next((str(error) for sign in ("Corrupt", "Premature") if sign in str(error)), None)
    elif kind == "PNG" and (data[28] or image.crop((0, image.height - 1, *image.size)).getbbox() is None):
        missing = _png_bytes_missing(data)
        reason = f"{missing:,} bytes of its pixels are missing" if missing > 0 else None
    if reason:
        raise ImageError(
            f"The {kind} picture is damaged ({reason.rstrip('.')}), so some of its pixels are not those that were "
            f"saved; save it again and give {_ACCEPTED}."
        )


def _png_bytes_missing(data: bytes) -> int:
    """Number of bytes by which the pixel stream of a PNG, whose sums are right, is too short for its size."""
    width, height, depth, colour = *(int.from_bytes(data[i : i + 4], "big") for i in (16, 20)), data[24], data[25]
    bits = depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    passes = [(0, 0, 1, 1)]
    if data[28]:  # Adam7: first column and row, and distance of columns and rows, of each pass
        passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    wanted = 0
    for left, top, across, down in passes:
        columns, rows = max(0, -(-(width - left) // across)), max(0, -(-(height - top) // down))
        wanted += rows * (1 + -(-columns * bits // 8)) if columns else 0
    stream, place = zlib.decompressobj(), 8
    while place + 12 <= len(data) and wanted > 0:
        length = int.from_bytes(data[place : place + 4], "big")
        if data[place + 4 : place + 8] == b"IDAT":
            part = data[place + 8 : place + 8 + length]
            while part and wanted > 0:
                wanted -= len(stream.decompress(part, 1 << 20))
                part = stream.unconsumed_tail
        place += length + 12
    return wanted - len(stream.flush()) if wanted > 0 else 0


def to_rgb(image: Image.Image) -> Image.Image:
    """``image`` as mode RGB: palettes resolved, alpha over white, 16-bit greys by their high byte."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image if type(image) is Image.Image else image.copy()
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image)
        grey = values.astype(np.float64)
        # mode I says nothing of its range, and I;16 is 16 bits however dark the picture is
        if image.mode.startswith("I;16") or grey.max(initial=0) > 255:
            grey = grey / 257.0
        if (tone := image.info.get("transparency")) is not None:  # Pillow ignores it in these modes
            grey[values == tone] = 255
        return Image.fromarray(np.clip(np.rint(grey), 0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        layered = image.convert("RGBA")
        canvas = Image.new("RGB", layered.size, (255, 255, 255))
        canvas.paste(layered, mask=layered.getchannel("A"))
        return canvas
    return image.convert("RGB")


def _narrow_transparent_tone(image: Image.Image) -> None:
    """Make the transparent tone of a PNG of 3 × 16 bits one of 3 × 8 bits: Pillow reads the high bytes of the pixels,
    but compares them with the low bytes of the tone. Call before the pixels are loaded.
    """
    tone = image.info.get("transparency")
    if isinstance(tone, tuple) and any(str(tile[3]).endswith(";16B") for tile in getattr(image, "tile", ())):
        image.info["transparency"] = tuple(value >> 8 for value in tone)


def central_square(width: int, height: int) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of the largest centred square, in whole pixels."""
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def model_view(image: Image.Image, size: int) -> UInt8[np.ndarray, "size size 3"]:
    """What the model sees: the central square at ``size`` × ``size`` pixels, antialiased (bicubic).

    The same as resizing the shorter side and cropping the centre, without the long strip between:
    a 5000 × 37 picture costs no more than its square. A picture of that size comes back unchanged.
    """
    return np.array(_square(image, size), dtype=np.uint8)


def display_png(image: Image.Image, max_side: int = 512, *, grid: int | None = None) -> bytes:
    """PNG of the same square as ``model_view``, at most ``max_side`` pixels a side, never enlarged.

    With ``grid`` the side is rounded up to a multiple of it (down where that passes ``max_side``),
    so that each of grid × grid patches is a whole number of pixels.
    """
    side = min(max_side, *image.size)
    if grid is not None:
        side = -(-side // grid) * grid
        if side > max_side:
            side = max(grid, max_side // grid * grid)
    buffer = io.BytesIO()
    # The best compression takes three times as long for a tenth fewer bytes, and a third of an image's trace.
    _square(image, side).save(buffer, format="PNG", compress_level=1)
    return buffer.getvalue()


def patch_regions(mask: UInt8[np.ndarray, "H W"], grid: tuple[int, int] | int) -> Int[np.ndarray, "rows cols"]:
    """The region of each patch of the central square: an index into ``REGIONS``.

    ``mask`` belongs to the whole picture (0 background, other values object); ``grid`` is the number
    of patches, (rows, cols) or one number for both. A patch that holds both is "boundary".
    """
    rows, cols = (grid, grid) if isinstance(grid, int) else grid
    height, width = mask.shape
    square = Image.fromarray((mask > 0).astype(np.float32)).crop(central_square(width, height))
    share = square.resize((cols, rows), Image.Resampling.BOX)
    object_share = np.asarray(share)
    regions = np.full((rows, cols), REGIONS.index("boundary"), dtype=np.int64)
    regions[object_share < 1e-4] = REGIONS.index("background")
    regions[object_share > 1 - 1e-4] = REGIONS.index("object")
    return regions


def _square(image: Image.Image, size: int) -> Image.Image:
    if size < 1:
        raise ValueError(f"a side of {size} pixels; it must be at least 1")
    # crop first: resize(box=…) lets pixels from outside of the box bleed in
    square = to_rgb(image).crop(central_square(*image.size))
    return square.resize((size, size), Image.Resampling.BICUBIC)


def sniffed(data: bytes) -> str:
    """The accepted format that the first bytes announce, ``ImageError`` else; file names are not trusted."""
    if not data:
        raise ImageError(f"The picture is empty (0 bytes); give {_ACCEPTED}.")
    for magic, kind in _MAGIC:
        if data.startswith(magic):
            return kind
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    content = "not a picture of a known kind"
    if data[4:8] == b"ftyp":
        content = "a HEIC or AVIF picture or a film"
    for magic, name in _OTHER_KINDS:
        if data.lstrip()[: len(magic)] == magic:
            content = name
    raise ImageError(f"The file is {content}, whatever its name; give {_ACCEPTED}.", status=415)


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) by the first chunk's header; None where it is cut off."""
    chunk, body = data[12:16], data[20:30]
    if len(body) < 10:
        return None
    if chunk == b"VP8X":
        return int.from_bytes(body[4:7], "little") + 1, int.from_bytes(body[7:10], "little") + 1
    if chunk == b"VP8L":
        bits = int.from_bytes(body[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if chunk == b"VP8 ":
        width, height = int.from_bytes(body[6:8], "little"), int.from_bytes(body[8:10], "little")
        return width & 0x3FFF, height & 0x3FFF
    return None


def _too_large(size: str) -> ImageError:
    return ImageError(
        f"The picture has {size} pixels; at most {MAX_PIXELS / 1e6:.1f} megapixels "
        "(such as 4096 × 4096) are accepted: make it smaller.",
        status=413,
    )


def _check_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise _too_large(f"{width} × {height}")
    if width < 1 or height < 1:
        raise ImageError(f"The picture is {width} × {height} pixels; it needs at least one pixel.")


def _check_still(image: Image.Image, kind: str) -> None:
    # A JPEG with several frames (MPO, from phones) is one photograph and its previews: the first is it.
    if kind in ("PNG", "GIF", "WEBP") and getattr(image, "is_animated", False):
        raise ImageError(f"The {kind} picture is animated; give {_ACCEPTED}, for example one of its frames.")


def _upright(pixels: Image.Image, source: Image.Image) -> Image.Image:
    try:
        orientation = source.getexif().get(_EXIF_ORIENTATION)
    except Exception:
        return pixels
    method = _TRANSPOSE.get(orientation) if isinstance(orientation, int) else None
    return pixels if method is None else pixels.transpose(method)
