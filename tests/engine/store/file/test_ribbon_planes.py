"""Bit planes of ribbons: what comes out is what went in, for any number of modules, and what is none is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenpaths.engine.store.file.pages import ribbon_planes
from tokenpaths.engine.store.file.pages.ribbon_planes import (
    decode_planes,
    encode_planes,
    id_bits,
    pack_planes,
    pick_from_pages,
    unpack_planes,
)
from tokenpaths.engine.store.file.schema import Layout
from tokenpaths.engine.store.file.weight_codes import code_for


def layout_of(modules: int, visits: int = 3) -> Layout:
    return Layout(visits, 1, modules, code_for(modules, 1), by_path=True)


def ribbons(layout: Layout, num: int, seed: int = 0) -> np.ndarray:
    ids = np.random.default_rng(seed).integers(0, layout.num_modules, (num, layout.visits))
    return ids.astype(layout.id_dtype)


@pytest.mark.parametrize(
    ("modules", "bits"), [(1, 1), (2, 1), (3, 2), (16, 4), (17, 5), (256, 8), (257, 9), (1024, 10)]
)
def test_an_id_takes_no_more_bits_than_it_needs(modules: int, bits: int) -> None:
    assert id_bits(layout_of(modules)) == bits


@given(modules=st.integers(1, 700), num=st.integers(0, 70), seed=st.integers(0, 9))
def test_ribbons_come_back(modules: int, num: int, seed: int) -> None:
    layout = layout_of(modules)
    ids = ribbons(layout, num, seed)
    planes = encode_planes(ids, id_bits(layout))
    assert planes.shape == (3, id_bits(layout), -(-num // 8))
    assert np.array_equal(decode_planes(planes, num, layout.id_dtype).T, ids)
    assert np.array_equal(unpack_planes(pack_planes(ids, layout), num, layout), planes)


def test_a_bit_of_a_byte_is_a_path() -> None:
    ids = np.array([[1], [0], [2], [0], [0], [0], [0], [0], [3]], dtype=np.uint8)
    assert encode_planes(ids, 2).tolist() == [[[0b00000001, 1], [0b00000100, 1]]]


@pytest.mark.parametrize("many", [10**6, 0], ids=["picked", "decoded"])
@pytest.mark.parametrize("modules", [2, 18, 300])
def test_some_ribbons_of_some_pages(modules: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ribbon_planes, "MANY_OF_A_PAGE", many)
    monkeypatch.setattr(ribbon_planes, "_GATHERED", 40)  # one or a few at a time
    layout = layout_of(modules)
    sizes = np.array([32, 32, 13])
    parts = [ribbons(layout, int(size), seed) for seed, size in enumerate(sizes)]
    pages = [encode_planes(part, id_bits(layout)).tobytes() for part in parts]
    page, place = np.array([0, 2, 1, 2, 0, 1]), np.array([31, 12, 0, 0, 7, 8])
    found = pick_from_pages(pages, sizes, page, place, layout)
    assert found.dtype == layout.id_dtype
    assert found.tolist() == [parts[p][i].tolist() for p, i in zip(page, place, strict=True)]
    none = np.array([], dtype=np.int64)
    assert pick_from_pages(pages, sizes, none, none, layout).shape == (0, 3)
    for spoilt in ([pages[0], pages[1][:-1], pages[2]], [pages[0], pages[1], pages[2] + b"0"]):
        with pytest.raises(ValueError, match="another length"):
            pick_from_pages(spoilt, sizes, page, place, layout)


@pytest.mark.parametrize("packed", [b"", b"\x00", b"no Zstandard"])
def test_what_is_no_plane_is_refused(packed: bytes) -> None:
    with pytest.raises((ValueError, OSError)):
        unpack_planes(packed, 9, layout_of(4))
    with pytest.raises((ValueError, OSError)):
        unpack_planes(pack_planes(ribbons(layout_of(4), 9), layout_of(4)), 90, layout_of(4))
