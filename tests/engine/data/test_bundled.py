"""What is bundled: the same on every call, as many as promised, with masks that are true."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from tokenpaths.engine.data.bundled import scenes, texts
from tokenpaths.engine.data.bundled.sample_pictures import FOLDER
from tokenpaths.engine.data.bundled.shapes import SHAPES
from tokenpaths.engine.data.bundled.textures import GROUNDS, WALLS, landscape
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.data.images import REGIONS, decode_upload, patch_regions
from tokenpaths.engine.data.sources.passages import cut_passages, passage_spans

SAMPLES = Path(__file__).parents[3] / "data" / "samples"


def test_scenes_are_a_pure_function_of_their_number() -> None:
    once, again = scenes.draw_scene(17), scenes.draw_scene(17)
    assert np.array_equal(np.asarray(once.image), np.asarray(again.image))
    assert np.array_equal(once.mask, again.mask)
    other = scenes.draw_scene(17 + len(SHAPES))
    assert other.label == once.label
    assert not np.array_equal(np.asarray(once.image), np.asarray(other.image))


@pytest.mark.parametrize(("side", "num_kinds"), [(64, len(SHAPES)), (256, 2)])
def test_scenes_of_every_kind(side: int, num_kinds: int) -> None:
    for number, kind in enumerate(list(SHAPES)[:num_kinds]):
        sample = scenes.draw_scene(number, side)
        assert sample.label == kind
        assert sample.image.size == (side, side)
        assert sample.mask.shape == (side, side)
        assert set(np.unique(sample.mask)) == {0, 1}
        assert 0.02 < sample.mask.mean() < 0.6


def test_masks_lie_on_the_object() -> None:
    """A mask that were shifted or of another object would not follow the steps of the picture."""
    for number in range(0, 24, 3):
        sample = scenes.draw_scene(number)
        steps = np.abs(np.diff(np.asarray(sample.image).astype(int), axis=1)).sum(-1)
        across = sample.mask[:, 1:] != sample.mask[:, :-1]
        assert steps[across].mean() > 2 * steps[~across].mean(), sample.source


def test_scenes_hold_every_region() -> None:
    data = open_dataset("bundled:scenes", "vision", limit=16)
    assert data.regions == REGIONS
    seen = Counter(int(region) for sample in data for region in patch_regions(sample.mask, 8).ravel())
    assert set(seen) == {0, 1, 2}
    assert min(seen.values()) > 20


def test_scene_set() -> None:
    data = open_dataset("bundled:scenes", "vision")
    assert data.num_samples == scenes.NUM_SCENES == 240
    assert data.labels == tuple(sorted(SHAPES))
    assert data.split == "all"


@pytest.mark.parametrize("name", [*GROUNDS, *WALLS])
def test_textures_have_texture(name: str) -> None:
    rng = np.random.default_rng(0)
    picture = landscape(rng, name, 64, 0.4) if name in GROUNDS else np.clip(WALLS[name](rng, 64, 64), 0, 1)
    assert picture.shape == (64, 64, 3)
    assert picture.min() >= 0
    assert picture.max() <= 1
    assert picture[40:].std(axis=(0, 1)).min() > 0.01


def test_photos() -> None:
    data = open_dataset("bundled:photos", "vision")
    assert data.num_samples == 120
    assert data.labels == ("china", "flower")
    some = open_dataset("bundled:photos", "vision", limit=6)
    samples = list(some)
    assert Counter(s.label for s in samples) == {"china": 3, "flower": 3}
    for sample in samples:
        assert 96 <= sample.image.width <= 256
        assert sample.image.width == sample.image.height
        assert np.asarray(sample.image).std() > 5
    assert [s.source for s in some] == [s.source for s in samples]


def test_pictures_begin_with_a_photograph_of_a_class_that_the_model_knows() -> None:
    samples = list(open_dataset("bundled:pictures", "vision"))
    assert [sample.label for sample in samples[:2]] == ["espresso", "cat"]
    assert len(samples) == 6
    for sample in samples:
        assert 96 <= sample.image.width <= 256
        assert np.asarray(sample.image).std() > 5
    config = json.loads((FOLDER.parent / "models" / "dna-vision-top1" / "config.json").read_text())
    assert samples[0].label in config["classes"]


def test_texts() -> None:
    data = open_dataset("bundled:texts", "text")
    samples = list(data)
    assert 120 <= len(samples) <= 160
    assert {"documentation", "code", "docstrings"} <= set(data.labels)
    for sample in samples:
        assert sample.image is None
        shortest = 200 if sample.label == "poem" else texts.SHORTEST
        assert shortest <= len(sample.text) <= texts.LONGEST
        sample.text.encode()
    assert len({s.text for s in samples}) == len(samples)
    assert [s.source for s in open_dataset("bundled:texts", "text")] == [s.source for s in samples]


def test_the_identity_of_texts_is_that_of_their_passages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of installed packages may change without a file of the data set: a twin of others would stand for these."""
    before = open_dataset("bundled:texts", "text").identity()
    assert open_dataset("bundled:texts", "text").identity() == before
    licences = list(texts._licences())
    changed = [(source, text.replace("the", "thy")) for source, text in licences]
    monkeypatch.setattr(texts, "_licences", lambda: iter(changed))
    assert open_dataset("bundled:texts", "text").identity() != before


def test_texts_are_of_nothing_that_may_be_missing() -> None:
    needed = {
        re.split("[^a-zA-Z0-9-]", line)[0] for line in metadata.requires("tokenpaths") or [] if "extra" not in line
    }
    assert needed >= set(texts._LICENSED)


def test_languages_tell_the_same_scenes() -> None:
    samples = list(open_dataset("bundled:languages", "text"))
    assert len(samples) == 72
    by_label = {label: [s for s in samples if s.label == label] for label in {s.label for s in samples}}
    assert sorted(by_label) == ["Arabic", "Chinese", "English", "German", "Swahili", "Ukrainian"]
    assert all(len(own) == 12 for own in by_label.values())
    assert len({s.text for s in samples}) == 72
    scripts = {"Arabic": "\u0600-\u06ff", "Chinese": "\u4e00-\u9fff", "Ukrainian": "\u0400-\u04ff"}
    for label, own in by_label.items():
        share = [len(re.findall(f"[{scripts.get(label, 'A-Za-zäöüÄÖÜß')}]", s.text)) / len(s.text) for s in own]
        assert min(share) > 0.7, label


def test_the_zen_is_read_and_not_printed() -> None:
    code = (
        "import sys; from tokenpaths.engine.data.bundled.texts import zen;"
        "sys.exit(len(zen()) < 800 or 'this' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_opening_imports_neither_torch_nor_scikit_learn() -> None:
    code = (
        "import sys; from tokenpaths.engine.data.datasets import open_dataset;"
        "open_dataset('bundled:scenes', 'vision');"
        "sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("longest", [1, 7, 50, 300, 5000])
def test_passages_cover_a_text_in_order(longest: int) -> None:
    text = "First. Second sentence here!\n\nNext paragraph,\nwith two lines.\n\n\n" * 12 + "x" * 400
    spans = list(passage_spans(text, longest))
    assert all(0 < end - start <= longest for start, end in spans)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
    kept = "".join(text[start:end] for start, end in spans)
    assert "".join(kept.split()) == "".join(text.split()), "nothing but white space is left out"


def test_passages_end_where_a_reader_pauses() -> None:
    text = "One two three. Four five.\n\nSix seven eight nine ten."
    assert list(cut_passages(text, 30)) == ["One two three. Four five.", "Six seven eight nine ten."]
    assert list(cut_passages("A b. C d e f. G h", 14)) == ["A b. C d e f.", "G h"]
    assert list(cut_passages("Aaa bbb. Ccc. Ddd. Eee fff.", 20)) == ["Aaa bbb. Ccc. Ddd.", "Eee fff."]
    assert list(cut_passages("a" * 25, 10, shortest=6)) == ["a" * 10, "a" * 10]


def test_examples_of_the_page() -> None:
    """data/samples: everything in the index exists, decodes, is small, and nothing else lies there."""
    index = json.loads((SAMPLES / "index.json").read_text(encoding="utf-8"))
    assert len(index["images"]) == 6
    assert 3 <= len(index["texts"]) <= 4
    listed = {"index.json"}
    for entry in index["images"]:
        assert set(entry) == {"file", "title", "label"}
        assert decode_upload((SAMPLES / entry["file"]).read_bytes()).size in ((128, 128), (256, 256))
        listed.add(entry["file"])
    for entry in index["texts"]:
        assert set(entry) == {"file", "title", "label"}
        text = (SAMPLES / entry["file"]).read_text(encoding="utf-8")
        assert 200 < len(text) < 2000
        listed.add(entry["file"])
    assert {file.name for file in SAMPLES.iterdir()} == listed
    assert sum(file.stat().st_size for file in SAMPLES.iterdir()) < 400_000


def test_example_scenes_are_what_the_code_draws() -> None:
    index = json.loads((SAMPLES / "index.json").read_text(encoding="utf-8"))
    scenes_drawn = [entry for entry in index["images"] if "photograph" not in entry["title"]]
    assert len(scenes_drawn) == 4
    for entry in scenes_drawn:
        number = int(entry["file"].removesuffix(".png").rsplit("-", 1)[1])
        drawn = scenes.draw_scene(number)
        stored = decode_upload((SAMPLES / entry["file"]).read_bytes())
        assert drawn.label == entry["label"]
        difference = np.abs(np.asarray(stored).astype(int) - np.asarray(drawn.image).astype(int))
        assert difference.mean() < 2
