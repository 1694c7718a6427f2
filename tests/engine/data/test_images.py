"""Pictures from strangers: right pixels or an ImageError, never anything else."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.images import (
    MAX_PIXELS,
    REGIONS,
    ImageError,
    central_square,
    decode_upload,
    display_png,
    model_view,
    patch_regions,
    to_rgb,
)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()


def quadrants(width: int = 40, height: int = 30) -> Image.Image:
    """Red, green / blue, white: every turn and mirror of it is another picture."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[: height // 2, : width // 2] = (200, 0, 0)
    pixels[: height // 2, width // 2 :] = (0, 200, 0)
    pixels[height // 2 :, : width // 2] = (0, 0, 200)
    pixels[height // 2 :, width // 2 :] = (250, 250, 250)
    return Image.fromarray(pixels)


def huge_png(width: int, height: int) -> bytes:
    """A sound header that promises width × height pixels, and next to nothing behind it."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def huge_webp(width: int, height: int) -> bytes:
    body = b"VP8X" + struct.pack("<I", 10) + bytes(4)
    body += (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "WEBP", "JPEG"])
def test_accepted_formats_keep_their_pixels(kind: str) -> None:
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95, "subsampling": 0}}.get(kind, {})
    picture = decode_upload(encoded(quadrants(), kind, **options))
    assert picture.mode == "RGB"
    assert picture.size == (40, 30)
    difference = np.abs(np.asarray(picture).astype(int) - np.asarray(quadrants()).astype(int))
    assert difference.max() <= (12 if kind == "JPEG" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    undo = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # PIL.Image.Transpose values that inverse it
    stored = quadrants()
    if orientation in undo:
        stored = stored.transpose(Image.Transpose(undo[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = decode_upload(encoded(stored, "PNG", exif=exif))
    assert np.array_equal(np.asarray(upright), np.asarray(quadrants()))


@pytest.mark.parametrize("orientation", [0, 9, 4711])
def test_nonsense_orientation_is_ignored(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert decode_upload(encoded(quadrants(), "PNG", exif=exif)).size == (40, 30)


def test_alpha_lies_over_white() -> None:
    layered = Image.new("RGBA", (4, 4), (10, 20, 30, 0))
    layered.putpixel((1, 1), (10, 20, 30, 255))
    picture = decode_upload(encoded(layered))
    assert picture.getpixel((0, 0)) == (255, 255, 255)
    assert picture.getpixel((1, 1)) == (10, 20, 30)


def test_grey_with_alpha_and_transparent_palette() -> None:
    grey = Image.new("LA", (3, 3), (40, 0))
    assert decode_upload(encoded(grey)).getpixel((0, 0)) == (255, 255, 255)
    palette = Image.new("P", (3, 3), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7] + [0] * 762)
    palette.putpixel((0, 0), 0)
    picture = decode_upload(encoded(palette, transparency=0))
    assert picture.getpixel((0, 0)) == (255, 255, 255)
    assert picture.getpixel((2, 2)) == (9, 8, 7)


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    picture = np.asarray(decode_upload(encoded(Image.fromarray(ramp))))
    assert picture.shape == (8, 8, 3)
    assert np.array_equal(picture[..., 0], np.rint(ramp / 257).astype(np.uint8))
    dark = np.arange(256, dtype=np.uint16).reshape(16, 16)  # 16 bits all the same: black, not a ramp of 8 bits
    assert np.asarray(decode_upload(encoded(Image.fromarray(dark)))).max() == 1


def png_with_tone(depth: int, samples: list[int], tone: tuple[int, ...]) -> bytes:
    """A PNG of one row, grey or (with a tone of three) RGB, whose chunk tRNS makes ``tone`` transparent."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    row = b"\0" + struct.pack(f">{len(samples)}{'H' if depth == 16 else 'B'}", *samples)
    head = struct.pack(">IIBBBBB", len(samples) // len(tone), 1, depth, 2 if len(tone) == 3 else 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"tRNS", struct.pack(f">{len(tone)}H", *tone)), (b"IDAT", zlib.compress(row))]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in [*chunks, (b"IEND", b"")])


@pytest.mark.parametrize(
    ("depth", "samples", "tone", "expected"),
    [
        (16, [0, 1, 257, 65535], (0,), [255, 0, 1, 255]),
        (16, [0, 1, 257, 32896], (32896,), [0, 0, 1, 255]),
        (16, [0, 1, 257, 514], (257,), [0, 0, 255, 2]),
        (8, [0, 1, 128, 255], (0,), [255, 1, 128, 255]),
        (16, [0, 0, 0, 0x1234, 0x5600, 0x7800], (0x1234, 0x5600, 0x7800), [0, 255]),
        (16, [0, 0, 0, 0x3412, 0, 0], (0x1234, 0, 0), [0, 0x34]),
        (16, [0, 0, 0, 0x0100, 0, 0], (0, 0, 0), [255, 1]),
        (8, [0, 0, 0, 1, 0, 0], (1, 0, 0), [0, 255]),
    ],
)
def test_a_transparent_tone_lies_over_white(
    depth: int, samples: list[int], tone: tuple[int, ...], expected: list[int]
) -> None:
    assert np.asarray(decode_upload(png_with_tone(depth, samples, tone)))[0, :, 0].tolist() == expected


def test_dark_mode_i_is_left_alone() -> None:
    assert to_rgb(Image.new("I", (2, 2), 200)).getpixel((0, 0)) == (200, 200, 200)


def test_cmyk_bilevel_and_grey() -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    r, g, b = decode_upload(encoded(red, "JPEG", quality=95)).getpixel((4, 4))
    assert r > 240
    assert g < 15
    assert b < 15
    assert decode_upload(encoded(Image.new("1", (8, 8), 1))).getpixel((0, 0)) == (255, 255, 255)
    assert decode_upload(encoded(Image.new("L", (8, 8), 77))).getpixel((0, 0)) == (77, 77, 77)


@pytest.mark.parametrize(
    ("data", "status", "words"),
    [
        (b"", 422, "empty"),
        (b"%PDF-1.7\n1 0 obj", 415, "PDF"),
        (b"PK\x03\x04rest", 415, "zip"),
        (b"\x80\x04\x95rest", 415, "pickle"),
        (b"  <svg xmlns='http://www.w3.org/2000/svg'/>", 415, "SVG"),
        (b"II*\x00rest", 415, "TIFF"),
        (b"\x00\x00\x00\x18ftypheic", 415, "HEIC"),
        (b"hello", 415, "not a picture"),
        (b"\x89PNG\r\n\x1a\n", 422, "damaged"),
        (huge_png(20_000, 20_000), 413, "16.8 megapixels"),
        (huge_png(9_500, 9_500), 413, "9500 × 9500"),
        (huge_png(8_000, 8_000), 413, "8000 × 8000"),
        (huge_png(2**31 - 1, 2**31 - 1), 413, "16.8 megapixels"),
        (huge_png(2_000, 2_000), 422, "cut off"),
        (huge_webp(16_000, 16_000), 413, "16000 × 16000"),
        (huge_webp(100, 100), 422, "damaged"),
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bad_pictures_say_what_is_wrong(data: bytes, status: int, words: str) -> None:
    with pytest.raises(ImageError) as caught:
        decode_upload(data)
    assert caught.value.status == status
    assert caught.value.field == "image"
    assert words in str(caught.value)
    assert isinstance(caught.value, UserError)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animations_are_refused(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue")]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:], duration=50)
    with pytest.raises(ImageError, match="animated"):
        decode_upload(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_truncated_pictures_are_refused(kind: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    data = encoded(noise, kind)
    for share in (0.3, 0.6, 0.9):
        with pytest.raises(ImageError) as caught:
            decode_upload(data[: int(len(data) * share)])
        assert caught.value.status == 422


def noise(side: int = 160) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8))


DAMAGE: dict[str, Callable[[bytes, int], bytes]] = {
    "zeros": lambda data, at: data[:at] + bytes(len(data) - at - 2) + data[-2:],
    "no end": lambda data, at: data[:at],
    "a hole": lambda data, at: data[:at] + data[at + 1500 :],
    "other bytes": lambda data, at: data[:at] + bytes(b ^ 0x55 for b in data[at : at + 300]) + data[at + 300 :],
    "the end after a piece": lambda data, at: data[:at] + data[-2:],
}


@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize(
    "options", [{}, {"progressive": True}, {"quality": 95, "subsampling": 0}, {"restart_marker_rows": 1}], ids=str
)
def test_a_jpeg_with_a_destroyed_scan_is_refused(options: dict[str, object], how: str) -> None:
    """libjpeg fills in what is missing and only warns, and Pillow hides its warnings."""
    data = encoded(noise(), "JPEG", **options)
    assert decode_upload(data).size == (160, 160)
    scan = data.index(b"\xff\xda") + 20
    for share in (0.1, 0.4, 0.7):
        with pytest.raises(ImageError, match="(damaged|cut off)"):
            decode_upload(DAMAGE[how](data, scan + int(share * (len(data) - scan))))


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_sound_jpegs_of_every_kind_are_taken(mode: str) -> None:
    for side in (1, 7, 16, 301):
        for options in ({}, {"progressive": True}, {"optimize": True}):
            assert decode_upload(encoded(noise(side).convert(mode), "JPEG", **options)).size == (side, side)
    data = encoded(noise().convert(mode), "JPEG")
    assert decode_upload(data + b"a trailer of some camera").size == (160, 160)


def png_of(width: int, height: int, rows: bytes, interlaced: int = 0) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_a_png_with_rows_missing_is_refused() -> None:
    """Its sums are right and its end is there: Pillow leaves the rows black."""
    row = b"\0" + bytes([50, 60, 70]) * 10
    assert decode_upload(png_of(10, 8, row * 8)).getpixel((9, 7)) == (50, 60, 70)
    assert decode_upload(png_of(10, 8, row * 7 + bytes(31))).getpixel((9, 7)) == (0, 0, 0), "black is no damage"
    for rows in (row * 7, row * 8, b""):
        data = png_of(10, 8, rows[:-1])
        with pytest.raises(ImageError, match="(damaged|cut off)"):
            decode_upload(data)
    interlaced = Image.new("RGB", (9, 7), (1, 2, 3))
    sizes = [(2, 1), (1, 1), (3, 1), (2, 2), (5, 2), (4, 4), (9, 3)]
    whole = b"".join((b"\0" + bytes((1, 2, 3)) * columns) * rows for columns, rows in sizes)
    assert np.array_equal(decode_upload(png_of(9, 7, whole, 1)), interlaced)
    with pytest.raises(ImageError, match="(damaged|cut off)"):
        decode_upload(png_of(9, 7, whole[:-28], 1))


def test_the_cap_is_inclusive() -> None:
    strip = Image.new("1", (MAX_PIXELS // 64, 64))
    assert decode_upload(encoded(strip)).size == strip.size
    with pytest.raises(ImageError):
        decode_upload(encoded(Image.new("1", (MAX_PIXELS // 64 + 1, 64))))


def test_no_torch_behind_the_import() -> None:
    code = "import sys, tokenpaths.engine.data.images; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (24, 31, 3), dtype=np.uint8))
SEEDS = [encoded(NOISE, kind) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")]
SEEDS.append(encoded(NOISE.convert("P"), "PNG", transparency=3))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=12),
    cut=st.floats(0.0, 1.0),
    tail=st.binary(max_size=16),
)
@pytest.mark.filterwarnings("ignore")
def test_only_image_errors_escape(seed: bytes, edits: list[tuple[int, int]], cut: float, tail: bytes) -> None:
    data = bytearray(seed)
    for position, value in edits:
        data[position % len(data)] = value
    mutated = bytes(data[: max(1, int(len(data) * cut))]) + tail
    refused = None
    try:
        picture = decode_upload(mutated)
    except ImageError as error:
        refused = error
    if refused is not None:
        assert refused.status in (413, 415, 422)
        assert str(refused)
    else:
        assert picture.mode == "RGB"
        assert picture.width * picture.height <= MAX_PIXELS


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ImageError):
        decode_upload(data)


@pytest.mark.parametrize("size", [(5000, 37), (37, 5000), (1, 1), (64, 64), (65, 64)])
def test_views_of_any_shape(size: tuple[int, int]) -> None:
    picture = quadrants(*size)
    view = model_view(picture, 64)
    assert view.shape == (64, 64, 3)
    assert view.dtype == np.uint8
    shown = Image.open(io.BytesIO(display_png(picture)))
    assert shown.size == (min(size), min(size))
    assert shown.format == "PNG"


def test_a_picture_of_the_right_size_is_not_resampled() -> None:
    noise = np.random.default_rng(2).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    assert np.array_equal(model_view(Image.fromarray(noise), 32), noise)


def test_model_view_is_the_centre_and_antialiased() -> None:
    wide = np.zeros((50, 150, 3), np.uint8)
    wide[:, 50:100] = 255
    assert (model_view(Image.fromarray(wide), 20) == 255).all()
    assert (model_view(Image.fromarray(wide.transpose(1, 0, 2)), 20) == 255).all()
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    view = model_view(Image.fromarray(stripes), 32)
    assert view.min() >= 110
    assert view.max() <= 145


@pytest.mark.parametrize(("side", "grid", "expected"), [(37, 8, 40), (64, 8, 64), (2000, 14, 504), (3, 8, 8)])
def test_display_in_whole_patches(side: int, grid: int, expected: int) -> None:
    shown = Image.open(io.BytesIO(display_png(quadrants(side, side), grid=grid)))
    assert shown.size == (expected, expected)


def test_display_shows_the_square_that_the_model_sees() -> None:
    picture = quadrants(300, 200)
    shown = Image.open(io.BytesIO(display_png(picture)))
    left, top, right, bottom = central_square(300, 200)
    assert np.array_equal(np.asarray(shown), np.asarray(picture)[top:bottom, left:right])


def test_patch_regions_by_hand() -> None:
    mask = np.zeros((8, 12), np.uint8)  # the central square is columns 2 … 9
    mask[0:4, 2:5] = 1  # fills patch (0, 0) and (1, 0), half of (0, 1) and (1, 1)
    mask[:, 0:2] = 1  # outside of the square: must not count
    regions = patch_regions(mask, (4, 4))
    assert [REGIONS[r] for r in regions[0]] == ["object", "boundary", "background", "background"]
    assert [REGIONS[r] for r in regions[3]] == ["background"] * 4
    assert (patch_regions(np.ones((5, 9), np.uint8), 3) == REGIONS.index("object")).all()


def test_one_pixel_makes_a_boundary() -> None:
    mask = np.zeros((512, 512), np.uint8)
    mask[3, 3] = 1
    regions = patch_regions(mask, 8)
    assert regions[0, 0] == REGIONS.index("boundary")
    assert (regions.ravel()[1:] == 0).all()
