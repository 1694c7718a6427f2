"""Finished dreams of the data folder: those of the run's model are found however many others there are."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tokenpaths.backend.runs.finished_dreams import MOST_SHOWN, dreams_of, fingerprint
from tokenpaths.backend.settings import Settings, load_settings

MINE = {"model": "mine", "checkpoint_sha256": "a" * 64, "run": "seen"}
OTHER = {"model": "other", "checkpoint_sha256": "b" * 64}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(data_dir=tmp_path)


def keep(settings: Settings, name: str, of: dict[str, str], written_at: int) -> None:
    folder = settings.data_dir / "jobs" / name / "artifacts"
    folder.mkdir(parents=True)
    result = {
        "model": of["model"],
        "checkpoint_sha256": of["checkpoint_sha256"],
        "dreams": [{"image": "a.png"}],
        "request": {"model": of["model"], "sample": written_at, "target": {"of": "choices"}},
    }
    (folder / "a.png").write_bytes(name.encode())
    (folder / "result.json").write_text(json.dumps(result))
    os.utime(folder / "result.json", (written_at, written_at))


def test_a_dream_is_found_behind_many_of_another_model(settings: Settings) -> None:
    keep(settings, "dream-mine", MINE, 1000)
    before = fingerprint(settings)
    for number in range(70):
        keep(settings, f"dream-{number}", OTHER, 2000 + number)
    (one,) = dreams_of(settings, MINE).found
    assert one["pictures"] == {"a.png": b"dream-mine"}
    assert fingerprint(settings) != before


def test_the_newest_of_a_model_are_taken(settings: Settings) -> None:
    for number in range(MOST_SHOWN + 3):
        keep(settings, f"dream-{number}", MINE, 1000 + number)
    keep(settings, "dream-broken", MINE, 5000)
    (settings.data_dir / "jobs" / "dream-broken" / "artifacts" / "a.png").unlink()
    shown = [one["result"]["request"]["sample"] for one in dreams_of(settings, MINE).found]
    assert shown == [1000 + number for number in range(MOST_SHOWN + 2, 2, -1)]
