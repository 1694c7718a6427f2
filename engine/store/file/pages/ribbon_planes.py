"""Layout of ribbons in files: bit planes. Eight paths share a byte for each bit of each visit, so that ids take no more
bits than they need, and a ribbon is compared with millions by operations on whole words.

``path_page`` holds the planes of paths by number (``file.pages.path_pages``), ``path_planes`` those of all paths by
rank, ``PLANE_PATHS`` a row, compressed with LZ4: of paths that as many tokens take ribbons ascend, so that their first
visits hardly take room.

Packed layouts have no pages, and planes only where there are more than ``MOST_READ_PATHS``, of a draw of
``1/DRAWN_SHARE`` of the paths, ``PLANE_PATHS`` at most: of all of them they would take as much room as the ribbons.
First those that several tokens take, as far as they are half of the draw, then an even one of the others.

Shapes: P paths, V = S·K visits, B bits of an id, W = ⌈P/8⌉ bytes of a plane.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Integer, UInt8

from tokenpaths.engine.store.file.hash_sample import mix
from tokenpaths.engine.store.file.schema import Layout

PLANE_PATHS = 1 << 18
MOST_READ_PATHS = 1 << 20
"""packed paths whose ribbons are read where all have to be compared"""
DRAWN_SHARE = 16
_SEED = 23
MANY_OF_A_PAGE = 128
"""paths of a page from which on all of it is decoded"""
_GATHERED = 1 << 18
"""bits picked at once: two megabytes of places"""
_CODEC = pa.Codec("lz4_raw", 4)
"""unpacks in a quarter of Zstandard's time, and is 8 % larger; lower levels are as fast and larger"""
_SUM_BYTES = 8
"""of a sum that stands before what is packed, and at the end of it: LZ4 says nothing of a content that is shorter than
the room for it, whose end is then whatever was in memory"""


@dataclass(frozen=True)
class PlaneRow:
    """The paths of a row of ``path_planes``: an even draw of consecutive ranks, one of each of equal parts of them."""

    first_rank: int
    num_paths: int
    of_paths: int
    """ranks that they are drawn from; as many as ``num_paths``: these are all there"""

    @property
    def drawn(self) -> bool:
        return self.of_paths > self.num_paths

    def weight_beside(self, rank: int | None = None) -> float:
        """Paths that each of these stands for, but for the one of this ``rank``, which stands for itself."""
        if rank is None or not 0 <= rank - self.first_rank < self.of_paths:
            return self.of_paths / self.num_paths
        return (self.of_paths - 1) / max(1, self.num_paths - self.holds(rank))

    def ranks(self, places: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """Ranks of the paths at some places of the row; ascending with them."""
        if not self.drawn:
            return self.first_rank + places
        low, high = (edge * self.of_paths // self.num_paths for edge in (places, places + 1))
        within: np.ndarray = (mix(self.first_rank + low, _SEED) % (high - low).astype(np.uint64)).astype(np.int64)
        ranks: np.ndarray = self.first_rank + low + within
        return ranks

    def places(self, ranks: Integer[np.ndarray, " n"]) -> Integer[np.ndarray, " n"]:
        """Inverse of ``ranks``; of another rank the place of the one that was drawn for it."""
        places: np.ndarray = ((ranks - self.first_rank + 1) * self.num_paths - 1) // self.of_paths
        return places

    def holds(self, rank: int) -> bool:
        """Whether the path of this rank is one of them."""
        if not 0 <= rank - self.first_rank < self.of_paths:
            return False
        asked = np.array([rank])
        return bool((self.ranks(self.places(asked)) == asked).all())


def plane_rows(layout: Layout, num_paths: int, num_repeated: int) -> list[PlaneRow]:
    """The rows of ``path_planes`` of a run of ``num_paths`` paths, of which several tokens take ``num_repeated``."""
    if not layout.packed:
        firsts = range(1, num_paths + 1, PLANE_PATHS)
        sizes = [min(PLANE_PATHS, num_paths + 1 - first) for first in firsts]
        return [PlaneRow(first, size, size) for first, size in zip(firsts, sizes, strict=True)]
    if num_paths <= MOST_READ_PATHS:
        return []
    drawn = min(PLANE_PATHS, num_paths // DRAWN_SHARE)
    head = max(0, min(num_repeated, drawn // 2))
    rows, half, of_half = [PlaneRow(1, head, head)], (drawn - head) // 2, (num_paths - head) // 2
    rows.append(PlaneRow(head + 1, half, of_half))  # two parts, for two cores
    rows.append(PlaneRow(head + 1 + of_half, drawn - head - half, num_paths - head - of_half))
    return [row for row in rows if row.num_paths]


def id_bits(layout: Layout) -> int:
    """B: bits of a module's number."""
    return max(1, (layout.num_modules - 1).bit_length())


def encode_planes(ids_PV: Integer[np.ndarray, "P V"], bits: int) -> UInt8[np.ndarray, "V B W"]:
    """The planes of ribbons; the first path is the lowest bit of the first byte."""
    num_paths, visits = ids_PV.shape
    planes = np.empty((visits, bits, -(-num_paths // 8)), dtype=np.uint8)
    for visit in range(visits):
        ids_P = np.ascontiguousarray(ids_PV[:, visit])
        for bit in range(bits):
            planes[visit, bit] = np.packbits((ids_P >> bit) & 1, bitorder="little")
    return planes


def decode_planes(
    planes_VBW: UInt8[np.ndarray, "V B W"], num_paths: int, dtype: np.dtype
) -> Integer[np.ndarray, "V P"]:
    """Inverse of ``encode_planes``, a row a visit."""
    ids_VP = np.zeros((len(planes_VBW), num_paths), dtype=dtype)
    for bit in range(planes_VBW.shape[1]):
        ones_VP = np.unpackbits(planes_VBW[:, bit], axis=-1, count=num_paths, bitorder="little")
        ids_VP |= ones_VP.astype(dtype, copy=False) << dtype.type(bit)
    return ids_VP


def pick_from_pages(
    pages: list[bytes], sizes: np.ndarray, page_n: np.ndarray, place_n: np.ndarray, layout: Layout
) -> Integer[np.ndarray, "n V"]:
    """Ribbons of some paths of some pages.

    Args:
        pages: the planes of each.
        sizes: paths of each page.
        page_n, place_n: page of each wanted path, and its place there.

    Raises:
        ValueError: a page is not as long as its paths need.
    """
    bits = id_bits(layout)
    rows = layout.visits * bits
    widths = -(-sizes // 8)
    lengths = np.array([len(page) for page in pages])
    if not np.array_equal(lengths, rows * widths):
        raise ValueError("a page of ribbons of another length than its paths need")
    ids_nV = np.zeros((len(place_n), layout.visits), dtype=layout.id_dtype)
    if len(place_n) > MANY_OF_A_PAGE * len(pages):
        order = np.argsort(page_n, kind="stable")
        ends = np.searchsorted(page_n[order], np.arange(len(pages)), side="right")
        for packed, here, size in zip(pages, np.split(order, ends[:-1]), sizes.tolist(), strict=True):
            planes_VBW = np.frombuffer(packed, dtype=np.uint8).reshape(layout.visits, bits, -1)
            ids_nV[here] = decode_planes(planes_VBW, size, layout.id_dtype)[:, place_n[here]].T
        return ids_nV
    starts = np.cumsum(lengths) - lengths
    flat = np.frombuffer(b"".join(pages), dtype=np.uint8)
    at_once = max(1, _GATHERED // rows)
    for first in range(0, len(place_n), at_once):
        part = slice(first, first + at_once)
        page, place = page_n[part], place_n[part]
        at_nR = (starts[page] + (place >> 3))[:, None] + np.arange(rows) * widths[page][:, None]
        ones_nVB = ((flat[at_nR] >> (place & 7).astype(np.uint8)[:, None]) & 1).reshape(-1, layout.visits, bits)
        for bit in range(bits):
            ids_nV[part] |= ones_nVB[:, :, bit].astype(layout.id_dtype, copy=False) << layout.id_dtype.type(bit)
    return ids_nV


def pack_planes(ids_PV: Integer[np.ndarray, "P V"], layout: Layout) -> bytes:
    """``planes`` of a row of ``path_planes``."""
    planes = encode_planes(ids_PV, id_bits(layout)).tobytes()
    end = hashlib.blake2b(planes, digest_size=_SUM_BYTES).digest()
    packed: bytes = end + _CODEC.compress(planes + end, asbytes=True)
    return packed


def unpack_planes(packed: bytes, num_paths: int, layout: Layout) -> UInt8[np.ndarray, "V B W"]:
    """Inverse of ``pack_planes``, as planes.

    Raises:
        ValueError, OSError: these are no planes of so many paths.
    """
    shape = (layout.visits, id_bits(layout), -(-num_paths // 8))
    num_bytes = int(np.prod(shape))
    unpacked = np.frombuffer(_CODEC.decompress(memoryview(packed)[_SUM_BYTES:], num_bytes + _SUM_BYTES), dtype=np.uint8)
    if unpacked[num_bytes:].tobytes() != packed[:_SUM_BYTES]:
        raise ValueError("planes of another number of paths")
    return unpacked[:num_bytes].reshape(shape)
