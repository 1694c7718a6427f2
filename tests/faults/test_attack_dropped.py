"""Nothing is dropped in silence: labels of every kind, labels that look alike, pictures that are damaged inside."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.engine.adapters.logs.test_log_formats import vllm_lines
from tests.faults.conftest import Keep
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.images import ImageError, decode_upload
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples

ODD = [1.0, 2.0, 2.5, [1], [1, 2], {"a": 1}, True, float("nan"), "x" * 1_000_000, "a\0b"]
ALIKE = ["cat", "Cat", " cat", "cat ", "c\u200bat", "c\u00adat", "ｃａｔ", "café", "cafe\u0301", "CAFÉ"]


def encoded(kind: str = "JPEG", side: int = 256, **options: object) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def test_labels_of_every_kind_are_read_or_counted(
    tmp_path: Path, models_dir: Path, figure: Keep, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 labels, 10 of them floats, lists, objects, too long …, and 10 that look alike: traced, and imported"""
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps({"text": "the cat", "label": x}) for x in ODD + ALIKE))
    data = open_dataset(tmp_path / "t.jsonl", "text")
    file = trace_samples(load_model("tiny-text", [models_dir], "cpu"), data, tmp_path / "runs", run_id="t", twin=False)
    line = vllm_lines(lambda part: part.tolist())[0]
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(line | {"label": x}) for x in ODD + ALIKE))
    assert main(["import", str(tmp_path / "log.jsonl"), "--run", "i", "--data-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().err
    for path in (file, tmp_path / "runs" / "i.duckdb"):
        with Run.open(path) as run:
            info, merged = run.info(), run.info(labels="merged")
            said = "; ".join(info["findings"]["notes"])
        for words in (
            "2 labels written with a point",
            "1 label with a fraction",
            "2 labels given as a list",
            "4 of 20",
        ):
            assert words in said
            assert path == file or words in printed
        for words in ("1 label given as an object", "1 label given as true", "1 label given as NaN", "longer than 200"):
            assert words in said
        assert [len(group) for group in info["look_alikes"]] == [7, 3]
        assert max(len(row["label"]) for row in info["labels"]) == 200
        assert sum(row["num_samples"] for row in info["labels"]) == 16
        assert sorted(row["num_samples"] for row in merged["labels"] if row["num_samples"] > 1) == [3, 7]
    figure(30, "16 of 20 labelled, 4 left out, 6 changed, each kind counted and said; 2 groups named, 7 and 3 as one")


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"quality": 95, "subsampling": 0}], ids=str)
def test_destroyed_scans_are_refused_by_name(tmp_path: Path, options: dict[str, object], figure: Keep) -> None:
    """JPEGs with a kilobyte or more of the scan replaced by zeros or noise, taken out or cut off, at 20 places"""
    data, rng = encoded(**options), np.random.default_rng(0)
    scan, silent, tried = data.index(b"\xff\xda") + 20, 0, 0
    for at in np.linspace(scan, len(data) - 3000, 20).astype(int).tolist():
        noise = bytes(rng.integers(0, 255, 1500, dtype=np.uint8))
        for broken in (
            data[:at] + bytes(len(data) - at - 2) + data[-2:],
            data[:at] + noise + data[at + 1500 :],
            data[:at] + data[at + 2000 :],
            data[:at],
        ):
            tried += 1
            try:
                decode_upload(broken)
                silent += 1
            except ImageError:
                continue
    assert silent <= tried // 50
    figure(30, f"JPEG {options or 'baseline'}: {tried - silent} of {tried} refused")


def test_damaged_pictures_of_a_folder_are_counted_by_name(tmp_path: Path, models_dir: Path, figure: Keep) -> None:
    """A folder of three sound pictures, a JPEG with a destroyed scan, half a PNG and an empty file"""
    folder = tmp_path / "pictures"
    folder.mkdir()
    whole, whole_png = encoded(), encoded("PNG")
    for number in range(3):
        (folder / f"{number}.jpg").write_bytes(whole)
    (folder / "scan.jpg").write_bytes(whole[:9000] + bytes(len(whole) - 9002) + whole[-2:])
    (folder / "half.png").write_bytes(whole_png[: len(whole_png) // 2])
    (folder / "empty.png").write_bytes(b"")
    (folder / "list.txt").write_text("no picture")
    model = load_model("tiny-vision", [models_dir], "cpu")
    with pytest.raises(UserError, match="empty.png"):
        trace_samples(model, open_dataset(folder, "vision"), tmp_path / "runs", run_id="whole", twin=False)
    data = open_dataset(folder, "vision", skip_bad=True)
    file = trace_samples(model, data, tmp_path / "runs", run_id="p", twin=False)
    assert [name for name in ("empty.png", "half.png", "scan.jpg") if name in "; ".join(data.walk.problems)] == [
        *("empty.png", "half.png", "scan.jpg")
    ]
    with Run.open(file) as run:
        notes = run.info()["findings"]["notes"]
        assert run.info()["num_samples"] == 3
    assert "1 file of another kind is passed over" in notes
    assert any(note.startswith("3 samples were left out; the first: ") for note in notes)
    figure(30, "refused by name; with skip_bad 3 of 6 traced, 3 counted and named, in the run too")
