"""A source of samples that is opened and read in a confined child, as a ``Source``."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import ReaderEnded, ReaderPool
from tokenpaths.engine.data.confined_pictures import picture_of
from tokenpaths.engine.data.images import ImageError
from tokenpaths.engine.data.labels import Remarks
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

CHUNK_ROWS: Final = 4096
"""rows of one request"""
ROWS_APART: Final = 64
"""rows that are read one by one after the child died of one of them, to find which it was"""
LIMITS: Final = Limits(memory_megabytes=2048, seconds=120, descriptors=4096, threads=True)
READERS: Final = ReaderPool("tokenpaths.engine.data.sources.source_child:answer", LIMITS, "the data", "data")


class ConfinedSource:
    """Rows of files whose bytes are read and decoded in a child; labels are known when it is opened."""

    def __init__(self, path: Path, **options: Any) -> None:
        """``options``: those of ``open_source``.

        Raises:
            UserError: as ``open_source``; also where opening needs too much time or memory, or ends the child.
        """
        self._name = uuid.uuid4().hex
        self._about = json.dumps({"path": os.fspath(path), "folder": os.getcwd(), **options})
        with READERS.one() as reader:
            try:
                about = reader.call(name=self._name, about=self._about)
            except ReaderEnded as error:
                raise UserError(f"{path}: {error}.", field="data") from None
        self.index = LabelIndex(tuple(json.loads(about["names"])), about["codes"])
        self.has_masks = bool(about["has_masks"])
        self.paths = [Path(name) for name in json.loads(about["paths"])]
        self._text_column, self._content = about["columns"]
        self.split: str | None = about["split"]
        self._seen = about["seen"]
        self.remarks = Remarks.of_rows(about["remarks"])

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        done = apart = 0
        while done < len(rows):
            part = rows[done : done + (1 if done < apart else CHUNK_ROWS)]
            received = 0
            try:
                for item in self._items(part):
                    received += 1
                    yield self._sample(part[received - 1], item)
                if received != len(part):
                    raise ReaderEnded("The process that reads the data left out rows", "died", field="data")
            except ReaderEnded as error:
                if len(self.paths) != len(self.index):  # rows of one file, which cannot be read any further
                    raise UserError(f"{self.paths[0]}: {error}.", field="data") from None
                done += received
                if len(part) == 1 and not received:
                    yield UserError(f"{self.paths[part[0]]}: {error}.", field="data")
                    done += 1
                else:
                    apart = done + ROWS_APART
                continue
            done += len(part)

    def _items(self, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
        with READERS.one() as reader:
            numbers = np.asarray(rows, dtype=np.int64)
            for batch in reader.stream(name=self._name, about=self._about, rows=numbers, seen=self._seen):
                yield from batch

    def _sample(self, row: int, item: dict[str, Any]) -> Sample | UserError:
        if "error" in item:
            field, status = item.get("field"), item.get("status")
            if type(status) is int:
                return ImageError(str(item["error"]), status=status, field=field)
            return UserError(str(item["error"]), field=field)
        image = picture_of(item["pixels"]) if "pixels" in item else None
        mask = item.get("mask")
        if mask is not None and (image is None or mask.shape != (image.height, image.width)):
            raise UserError("The process that reads the data sent a mask of another size.", field="data")
        remarks = tuple(map(str, item["remarks"]))
        return Sample(image, item["text"], self.index.label(row), str(item["source"]), mask, remarks=remarks)
