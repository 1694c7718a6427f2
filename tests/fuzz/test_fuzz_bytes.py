"""Any bytes where a log, a picture or a text belongs: a run, or a sentence that says why not."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz.fuzz_settings import fuzzed_with
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.images import decode_upload

EXAMPLES = 40
STARTS = (
    b"",
    b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (3, 2, 1), }",
    b"PK\x03\x04",
    b"PAR1",
    b'{"prompt_routed_experts": ',
    b'{"expert_counts": {"0": [',
    b"call,token,layer,expert,weight\n0,0,0,",
    b"\xff\xfe",
    b'[{"token_ids": [',
    b"\x80\x04\x95",
    b"\x1f\x8b\x08",
    b"\x00" * 64,
    "ids\n\u202e".encode(),
)
SUFFIXES = ("npy", "npz", "parquet", "jsonl", "json", "csv", "txt")
BYTES = st.builds(lambda start, rest: start + rest, st.sampled_from(STARTS), st.binary(max_size=300))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_any_bytes_as_a_log(suffix: str, tmp_path: Path) -> None:
    file, runs = tmp_path / f"log.{suffix}", tmp_path / "data" / "runs"

    @fuzzed_with(EXAMPLES)
    @given(BYTES)
    @example(b"\x93NUMPY\x01\x00\xff\xff")
    @example(b"PAR1" + b"\xff" * 12 + b"PAR1")
    @example(b'{"a": ' * 5000)
    @example(b"[" * 100_000)
    @example(b'{"a": 1e400, "b": NaN}\n')
    @example(b"\xef\xbb\xbf")
    def bring_in(data: bytes) -> None:
        file.write_bytes(data)
        shutil.rmtree(runs, ignore_errors=True)
        refusal = None
        try:
            import_log(open_log(file), runs, "fuzzed")
        except UserError as error:
            refusal = str(error)
        assert refusal is None or (len(refusal) > 20 and "Error(" not in refusal)
        assert (os.listdir(runs) if runs.exists() else []) == (["fuzzed.duckdb"] if refusal is None else [])

    bring_in()


def drawn_picture(kind: str) -> bytes:
    """A small whole picture."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((24, 16)).convert("P" if kind == "GIF" else "RGB").save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"])
def test_any_bytes_as_a_picture(kind: str) -> None:
    whole = drawn_picture(kind)

    @fuzzed_with(EXAMPLES)
    @given(st.data())
    def decode(data: st.DataObject) -> None:
        spoiled = bytearray(whole)
        for _ in range(data.draw(st.integers(0, 4))):
            spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):
            place = data.draw(st.integers(0, len(spoiled)))
            spoiled[place:] = data.draw(st.binary(max_size=40))
        status, pixels = 200, 0
        try:
            image = decode_upload(bytes(spoiled)).convert("RGB")
            pixels = image.width * image.height
        except UserError as error:
            status = getattr(error, "status", 422)
        assert status in (200, 413, 415, 422)
        assert pixels <= 16_800_000

    decode()
