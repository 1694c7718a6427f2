"""Small files that unfold to far more than they are, for tests of what reads them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image


def parquet_of_one_label(file: Path, characters: int = 1_000_000, rows: int = 20_000) -> None:
    """A few kB: every row has the same text and the same label of a million characters, written once."""
    word = pa.array(["x" * characters])
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), word)
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["a text"]))
    table = pa.table({"text": text, "label": column})
    pq.write_table(table, file, compression="zstd", store_schema=False)


def parquet_of_many_rows(file: Path, rows: int = 200_000_000) -> None:
    """Some kB that declare so many rows of one text: a small file whose footer is written with larger numbers."""
    step = 10_000_000
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(step, np.int8)), pa.array(["a text"]))
    with pq.ParquetWriter(
        file, pa.schema([("text", text.type)]), compression="zstd", data_page_size=1 << 30, write_statistics=False
    ) as writer:
        for _ in range(rows // step):
            writer.write_table(pa.table({"text": text}), row_group_size=step)


def npz_of_zeros(file: Path, megabytes: int = 640) -> None:
    """A valid neutral log whose labels are one text of so many zeros."""
    tokens = 4
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in {
            "ids": np.arange(tokens * 4, dtype=np.uint8).reshape(tokens, 2, 2) % 2 + np.array([0, 2], np.uint8),
            "sample": np.zeros(tokens, np.int64),
            "num_experts": np.array(4),
        }.items():
            stream = io.BytesIO()
            np.save(stream, array)
            archive.writestr(f"{name}.npy", stream.getvalue())
        header = io.BytesIO()
        about = {"descr": f"<U{megabytes << 18}", "fortran_order": False, "shape": (1,)}
        np.lib.format.write_array_header_2_0(header, about)
        with archive.open("label.npy", "w", force_zip64=True) as member:
            member.write(header.getvalue())
            for _ in range(megabytes):
                member.write(bytes(1 << 20))


def tokenizer(file: Path, **changes: Any) -> None:
    """A ``tokenizer.json`` of letters with changed parts."""
    vocabulary = {chr(97 + i): i for i in range(26)} | {"!": 26}
    about = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "fuse_unk": False, "byte_fallback": False},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(about | changes))


def split_by(pattern: str) -> dict[str, Any]:
    """A pre-tokenizer that splits by a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replacing(pattern: str, content: str) -> dict[str, Any]:
    """A normaliser that replaces a text."""
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


def black_png(side: int) -> bytes:
    """A whole PNG of side × side pixels in a few kilobytes."""
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()
