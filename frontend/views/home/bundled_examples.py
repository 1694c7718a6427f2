"""Examples for *Try it*: the pictures and texts of ``data/samples``, which ship with the source."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SAMPLES_DIR = Path(__file__).resolve().parents[3] / "data" / "samples"
MANY_SCRIPTS = "naïve café – 12.5 % of 1,000\nשלום עולם\nПривет, мир\nこんにちは 🙂"
log = logging.getLogger("tokenpaths.page")


@dataclass(frozen=True)
class Example:
    """One image (bytes of a PNG) or one text, and its title."""

    title: str
    file: str
    image: bytes | None = None
    text: str | None = None


@lru_cache(maxsize=4)
def examples(folder: Path = SAMPLES_DIR) -> tuple[Example, ...]:
    """What ``folder/index.json`` lists, and a text of many scripts; a folder that is missing gives the text alone."""
    found = []
    try:
        index = json.loads((folder / "index.json").read_text("utf-8"))
        for row in index["images"]:
            found.append(Example(row["title"], row["file"], image=(folder / row["file"]).read_bytes()))
        for row in index["texts"]:
            found.append(Example(row["title"], row["file"], text=(folder / row["file"]).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("examples of %s cannot be read: %s", folder, error)
    return (*found, Example("Many scripts", "scripts.txt", text=MANY_SCRIPTS))
