"""The pictures that *Home* offers: two photographs and four drawn scenes, at most 256 pixels wide."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from PIL import Image

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.sources.sample import LabelIndex, Sample

FOLDER: Final = Path(__file__).resolve().parents[3] / "data" / "samples"


class PictureSource:
    """Picture ``row`` of ``index.json`` in the folder of samples; our own files, read in this process."""

    has_masks = False

    def __init__(self, folder: Path = FOLDER) -> None:
        try:
            self._rows = json.loads((folder / "index.json").read_text("utf-8"))["images"]
        except OSError as error:
            raise UserError(
                f"bundled:pictures needs the samples of the installation ({error}); run `pip install --force-reinstall "
                "tokenpaths`, or use bundled:scenes.",
                field="data",
            ) from error
        self._folder = folder
        self.index = LabelIndex.of([row["label"] for row in self._rows])

    def read(self, rows: Sequence[int]) -> Iterator[Sample | UserError]:
        for row in rows:
            about = self._rows[row]
            with Image.open(self._folder / about["file"]) as image:
                yield Sample(image.convert("RGB"), None, about["label"], f"{about['file']}: {about['title']}")
