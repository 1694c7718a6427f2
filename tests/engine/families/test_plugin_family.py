"""A family that a plugin adds is loaded, listed and traced like ours; a broken one is a sentence."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module, invalidate_caches
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pydantic import BaseModel

from tests.support.plugins import installed, write_plugin
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginError
from tokenpaths.engine.families.checkpoint_config import list_models
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS, check_controls
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.family import family_class
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.train.catalogue import trainings

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "plugin_example"


class Sizeless(BaseModel):
    """A configuration that leaves out what every family's has."""

    modality: str = "vision"


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "site"
    points = dict.fromkeys(("halves", "dna"), "tokenpaths_halves:HalvesControls")
    points["broken"] = "tokenpaths_halves:Nothing"
    code = (EXAMPLE / "tokenpaths_halves.py").read_text()
    write_plugin(folder, "tokenpaths_halves", code, {"tokenpaths.families": points})
    shutil.copy(EXAMPLE / "tokenpaths_halves_model.py", folder)
    with installed(folder, FAMILY_CONTROLS):
        yield folder


@pytest.fixture
def checkpoint(plugin: Path, tmp_path: Path) -> Path:
    model_class = family_class("halves")
    return save_checkpoint(tmp_path / "models" / "toy-halves", model_class(model_class.Config()), classes=("a", "b"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Left half black, right half white."""
    pixels = np.zeros((16, 16, 3), dtype=np.uint8)
    pixels[:, 8:] = 255
    for label in ("a", "b"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "pictures" / label / "half.png")
    return tmp_path / "pictures"


def test_its_controls_need_no_torch_and_are_checked(plugin: Path) -> None:
    assert "halves" in FAMILY_CONTROLS
    assert "tokenpaths_halves" not in sys.modules
    assert check_controls("halves", {}, None) is not None
    assert "tokenpaths_halves_model" not in sys.modules
    with pytest.raises(UserError, match="a halves model has no control 'temperature'"):
        check_controls("halves", {}, {"temperature": 2})


def test_a_checkpoint_of_it_is_loaded_and_listed(checkpoint: Path) -> None:
    (row,) = list_models([checkpoint.parent])
    assert row["problem"] is None
    assert (row["family"], row["num_params"], row["num_steps"]) == ("halves", 8, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["tokenpaths_halves"].HalvesControls, "CONFIG", Sizeless)
        (row,) = list_models([checkpoint.parent])
    assert row["problem"] == "toy-halves: the configuration of its family has no num_steps"
    loaded = load_model("toy-halves", [checkpoint.parent], "cpu")
    assert [module.name for module in loaded.module_table()] == ["dark", "bright", "upper", "lower"]


def test_it_is_traced_by_the_command_line(
    checkpoint: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENPATHS_MODELS_DIRS", str(checkpoint.parent))
    arguments = ["--model", "toy-halves", "--data", str(pictures), "--run", "halves"]
    assert main(["trace", *arguments, "--data-dir", str(tmp_path / "data")]) == 0
    with Run.open(tmp_path / "data" / "runs" / "halves.duckdb") as run:
        assert run.info()["family"] == "halves"
        rows = run.paths()["paths"]
    counts = {tuple(np.ravel(row["ribbon"]).tolist()): row["count"] for row in rows}
    assert counts == {(0, 0): 8, (0, 1): 8, (1, 0): 8, (1, 1): 8}


def test_a_module_of_it_is_banned_and_what_does_not_fit_is_refused(
    checkpoint: Path,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TOKENPATHS_MODELS_DIRS", str(checkpoint.parent))

    def trace(**edit: object) -> int:
        arguments = ["--model", "toy-halves", "--data", str(pictures), "--run", "banned", "--beside", "--overwrite"]
        controls = json.dumps({"edits": [edit]})
        return main(["trace", *arguments, "--controls", controls, "--data-dir", str(tmp_path / "data")])

    assert trace(edit="ban", modules=[1], step=0) == 0
    assert "paths changed: 50.0 %" in capsys.readouterr().out
    with Run.open(tmp_path / "data" / "runs" / "banned.duckdb") as run:
        assert {tuple(np.ravel(row["ribbon"]).tolist()) for row in run.paths()["paths"]} == {(0, 0), (0, 1)}
    for edit, words in (
        ({"edit": "ban", "modules": [2]}, "there is no module 2"),
        ({"edit": "ban", "modules": [0, 1]}, "0 modules left"),
        ({"edit": "ban", "modules": [0], "tokens": [3]}, "tokens cannot be chosen here"),
        ({"edit": "top_k", "k": 2}, "a patch goes to one module"),
    ):
        assert trace(**edit) == 2
        assert words in capsys.readouterr().err


def test_broken_ones_are_sentences_and_the_others_work(plugin: Path, checkpoint: Path) -> None:
    with pytest.raises(
        PluginError, match=r"'broken' of tokenpaths_halves cannot be used: it cannot be imported \(AttributeError"
    ):
        family_class("broken")
    assert family_class("dna").__module__ == "tokenpaths.engine.models.dna"
    assert {"dna-vision-top1", "dipaco-4x4"} <= set(trainings())
    derived = (
        "from tokenpaths.engine.models.family import RoutedModel\nclass Halves(RoutedModel):\n    family = 'halves'"
    )
    for code, words in (
        ("import nothing_of_this_name", r"halves_model:Halves .* cannot be imported \(ModuleNotFoundError"),
        ("Halves = int", "is no class derived from RoutedModel"),
        (derived, "of the family 'halves' lacks Config, Controls, WEIGHT_SEMANTICS"),
    ):
        (plugin / "tokenpaths_halves_model.py").write_text(code)
        sys.modules.pop("tokenpaths_halves_model", None)
        invalidate_caches()
        for ask in (partial(family_class, "halves"), partial(load_model, checkpoint, [])):
            with pytest.raises(UserError, match=words):
                ask()
    assert import_module("tokenpaths_halves")
