"""Finished dreams in the data folder, made by ``tokenpaths dream`` or by jobs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenpaths.backend.settings import Settings
from tokenpaths.engine.dream.dream_title import dream_title
from tokenpaths.frontend.figures import Dreams

MOST_SHOWN = 8
"""number of newest dreams of a model whose images are read"""


def dreams_of(settings: Settings, info: Mapping[str, Any]) -> Dreams:
    """Finished image dreams of the run's model with the same weights, the newest first."""
    command = f"`tokenpaths dream --model {info['model']} --run {info['run']} --sample 0`"
    dreams: list[dict[str, Any]] = []
    weights = str(info["checkpoint_sha256"]).encode()
    for file in _results(settings):
        if len(dreams) == MOST_SHOWN:
            break
        try:
            content = file.read_bytes()
            if weights not in content:  # of another model: skip before parsing the JSON
                continue
            result = json.loads(content)
            same = result["model"] == info["model"] and result["checkpoint_sha256"] == info["checkpoint_sha256"]
            names = [dream["image"] for dream in result["dreams"] if "image" in dream]
            if not same or not names:
                continue
            names += [result["original"]["image"]] if result.get("original") else []
            pictures = {name: (file.parent / Path(name).name).read_bytes() for name in names}
            dreams.append({"title": dream_title(result["request"]), "result": result, "pictures": pictures})
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a job is still writing, or the folder holds something else
    return Dreams(dreams, command.strip("`"))


def fingerprint(settings: Settings) -> str:
    """A string that changes when a dream is finished, replaced or removed."""
    return hashlib.sha256("".join(f"{file}{_age(file)}" for file in _results(settings)).encode()).hexdigest()[:16]


def _results(settings: Settings) -> list[Path]:
    """Result files of all dreams of any model, newest first."""
    folders = (settings.data_dir / "dreams", settings.data_dir / "jobs")
    files = [file for parent in folders for file in parent.glob("*/artifacts/result.json")]
    return sorted(files, key=_age)


def _age(file: Path) -> float:
    try:
        return -file.stat().st_mtime
    except OSError:
        return 0.0
