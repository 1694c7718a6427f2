"""Answers too large to be sent, cells that a spreadsheet would calculate, tones that are meant to be transparent."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from tests.backend.conftest import Serve, problem
from tests.engine.data.test_images import png_with_tone
from tests.faults.conftest import Keep
from tests.support.runs import make, make_run
from tokenpaths.backend.runs import answers
from tokenpaths.engine.data.images import decode_upload

FORMULA = '=HYPERLINK("http://evil.example","click")'


def test_an_answer_has_a_maximum_size(serve: Serve, monkeypatch: pytest.MonkeyPatch, figure: Keep) -> None:
    """Answers that exceed the maximum of bytes (here 2,000) for each way to ask, then the same with a normal maximum"""
    served = serve()
    make_run(served.runs_dir, "one", samples=8)
    asked = ["/runs/one/flow", "/runs/one/paths?limit=50", "/runs/one/samples", "/runs/one/usage"]
    with monkeypatch.context() as small:
        small.setattr(answers, "MOST_ANSWER_BYTES", 2000)
        for path in asked:
            body = problem(served.get(path), 422)
            assert body["type"] == "urn:tokenpaths:answer-too-large"
        assert served.get("/runs/one/paths?limit=1").status_code == 200
    for path in asked:
        assert served.get(path).status_code == 200
    figure(40, f"{len(asked)} answers above the maximum: 422; the maximum is {answers.MOST_ANSWER_BYTES / 1e6:g} MB")


def test_no_cell_of_an_exported_run_is_a_formula(serve: Serve, figure: Keep) -> None:
    """A run whose labels, texts, sources and names of modules are formulas; every table of it as CSV and as Arrow"""
    served = serve()
    arrays = make("sums", "text", samples=6)
    samples = [
        [replace(sample, label=FORMULA, text=FORMULA, source=f"@{FORMULA}") for sample in batch.samples]
        for batch in arrays.batches
    ]
    batches = [replace(batch, samples=rows) for batch, rows in zip(arrays.batches, samples, strict=True)]
    modules = [replace(module, name=f"+{module.name}") for module in arrays.modules]
    replace(arrays, batches=batches, modules=modules).write(served.runs_dir)
    cells, marked = 0, 0
    for row in served.get("/runs/sums/export").json()["tables"]:
        text = served.get(f"/runs/sums/export/{row['table']}.csv").text
        for line in csv.reader(io.StringIO(text)):
            for cell in line:
                assert cell[:1] not in tuple("=+@\t\r"), (row["table"], cell)
                assert cell[:1] != "-" or float(cell) < 0, (row["table"], cell)
                marked += cell.startswith("'")
                cells += 1
    assert marked > len(arrays.samples)
    plain = served.get("/runs/sums/samples").json()["samples"]
    assert all(sample["label"] == FORMULA for sample in plain), "only CSV is changed"
    assert FORMULA in json.dumps(plain, ensure_ascii=False).replace('\\"', '"')
    figure(40, f"{cells:,} cells of all tables as CSV: {marked} marked as text, no formula")


def test_a_transparent_tone_is_not_black(figure: Keep) -> None:
    """Grey PNGs of 16 bits whose transparent tone is 0, 1, 257, 32,896 and 65,535: laid over white like any other"""
    tones = (0, 1, 257, 32_896, 65_535)
    for tone in tones:
        values = [0, 1, 257, 32_896, 65_534, 65_535]
        pixels = np.asarray(decode_upload(png_with_tone(16, values, (tone,))))[0, :, 0]
        assert pixels.tolist() == [255 if value == tone else round(value / 257) for value in values]
    figure(40, f"{len(tones)} of {len(tones)} transparent tones of 16 bits over white")
