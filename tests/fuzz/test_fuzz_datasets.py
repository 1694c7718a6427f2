"""Any bytes where a data set belongs: samples, or a sentence that says why not; read in this process."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.engine.data.test_datasets import png
from tests.fuzz.fuzz_settings import fuzzed_with
from tests.support.saved_datasets import arrow_file, arrow_stream, save_to_disk, tar
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.opening import open_source

EXAMPLES = 60
TABLE = pa.table({"text": [f"text {i}" for i in range(12)], "label": pa.array(["x", "y"] * 6).dictionary_encode()})
PICTURES = pa.table(
    {"image": pa.array([{"bytes": png((i, 0, 0)), "path": None} for i in range(6)]), "label": [0, 1] * 3}
)


def _saved(file: Path) -> Path:
    return save_to_disk(file.with_suffix(""), PICTURES, {"label": {"names": ["a", "b"]}}) / "state.json"


def _long_tar(file: Path) -> Path:
    header = tarfile.TarInfo("long/" * 60 + "2.txt")
    header.pax_headers = {"comment": "c" * 300}
    return tar(file, [("1.txt", b"one"), ("1.json", b'{"label": "x"}'), (header, b"two"), ("2.cls", b"3")])


KINDS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "stream.arrow": ("text", lambda file: arrow_stream(file, TABLE, rows=5)),
    "pictures.arrow": ("vision", lambda file: arrow_stream(file, PICTURES, rows=2)),
    "lz4.feather": ("text", lambda file: arrow_file(file, TABLE, options=pa.ipc.IpcWriteOptions(compression="lz4"))),
    "zstd.arrow": ("text", lambda file: arrow_stream(file, TABLE, options=pa.ipc.IpcWriteOptions(compression="zstd"))),
    "members.tar": ("text", _long_tar),
    "table.csv": ("text", lambda file: _text(file, 'text,label\n"a ""b""",x\nc,y\n"d\ne",x\n')),
    "state.json": ("vision", _saved),
}


def _text(file: Path, content: str) -> Path:
    file.write_text(content)
    return file


@pytest.mark.parametrize("kind", KINDS)
def test_spoiled_data_sets(kind: str, tmp_path: Path) -> None:
    modality, make = KINDS[kind]
    file = make(tmp_path / kind)
    path = file.parent if file.name == "state.json" else file
    whole = file.read_bytes()
    columns = {"text_column": None, "image_column": None, "label_column": None}

    @fuzzed_with(EXAMPLES)
    @given(st.data())
    @example(None)
    def read(data: st.DataObject | None) -> None:
        spoiled = bytearray(whole)
        if data is not None:
            for _ in range(data.draw(st.integers(0, 4))):
                spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
            if data.draw(st.booleans()):
                place = data.draw(st.integers(0, len(spoiled)))
                spoiled[place:] = data.draw(st.binary(max_size=40))
        file.write_bytes(bytes(spoiled))
        refusal = None
        try:
            source = open_source(path, modality, columns, True)  # type: ignore[arg-type]
            rows = list(range(len(source.index)))
            assert len(list(source.read(rows))) == len(rows)
        except UserError as error:
            refusal = str(error)
        assert refusal is None or (len(refusal) > 20 and "Error(" not in refusal)
        assert data is not None or refusal is None, "whole, it can be read"

    read()
