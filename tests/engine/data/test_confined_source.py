"""A data set whose reader dies: which row it was, what becomes of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.engine.data.dying_source import BAD_ROW
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import ReaderPool
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.sources import confined_source
from tokenpaths.engine.data.sources.confined_source import ConfinedSource


@pytest.fixture
def _dying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    pool = ReaderPool("tests.engine.data.dying_source:answer", Limits(seconds=20), "the data", "data")
    monkeypatch.setattr(confined_source, "READERS", pool)


@pytest.mark.usefixtures("_dying")
def test_of_files_only_the_one_is_lost_that_ended_its_reader() -> None:
    read = list(ConfinedSource(Path("files")).read(list(range(200))))
    assert len(read) == 200
    lost = read[BAD_ROW]
    assert isinstance(lost, UserError)
    assert "70.txt: Reading the data ended the process that read it (code 3)" in str(lost)
    texts = [sample.text for sample in read if not isinstance(sample, UserError)]
    assert texts == [f"text {row}" for row in range(200) if row != BAD_ROW]


@pytest.mark.usefixtures("_dying")
def test_of_one_file_nothing_further_is_read() -> None:
    rows = ConfinedSource(Path("one file")).read(list(range(200)))
    with pytest.raises(UserError, match="ended the process that read it"):
        list(rows)


def test_a_data_set_that_changes_while_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}\n')
    dataset = open_dataset(file, "text")
    assert [sample.label for sample in dataset] == ["x", "y"]
    file.write_text('{"text": "a", "label": "x"}\n')
    with confined_source.READERS.one() as reader:
        reader.close()  # the next one opens the file again
    with pytest.raises(UserError, match="was changed while it was read"):
        list(dataset)


def test_samples_are_those_of_the_reader_itself(tmp_path: Path) -> None:
    from PIL import Image

    generator = np.random.default_rng(0)
    for number in range(70):
        (tmp_path / f"c{number % 3}").mkdir(exist_ok=True)
        pixels = generator.integers(0, 256, (9 + number, 12, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"c{number % 3}" / f"{number}.png")
    from tokenpaths.engine.data.sources.opening import open_source

    columns = {"text_column": None, "image_column": None, "label_column": None}
    plain = open_source(tmp_path, "vision", columns, False)
    confined = ConfinedSource(tmp_path, modality="vision", columns=columns, skip_bad=False)
    rows = list(range(70))
    for one, other in zip(plain.read(rows), confined.read(rows), strict=True):
        assert one == other
