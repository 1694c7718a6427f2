"""A family that a plugin adds is loaded, listed and traced like ours; a broken one is a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.plugins import installed, write_plugin
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.plugins import PluginError
from tokenpaths.engine.families.checkpoint_config import CheckpointError, list_models
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS, check_controls
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.family import family_class
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.train.catalogue import trainings

CONTROLS = """
from typing import Literal
from pydantic import BaseModel
from tokenpaths.engine.families.controls import EditControls

class HalvesConfig(BaseModel):
    modality: Literal["vision"] = "vision"
    image_size: int = 16
    patch: int = 4
    num_steps: int = 2
    num_modules: int = 2
    top_k: int = 1
    num_classes: int = 2
    @property
    def grid(self): return (self.image_size // self.patch,) * 2

class HalvesControls(EditControls):
    FAMILY = "halves"
    MODEL = "halves_model:Halves"
    EDITS = ()
"""
MODEL = '''
import torch
from torch import nn
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.models.family import RoutedModel, Traced
from halves import HalvesConfig, HalvesControls

class Halves(RoutedModel):
    """Step 0 sends bright patches to module 1, step 1 those of the lower half."""
    family = "halves"
    Config, Controls = HalvesConfig, HalvesControls
    WEIGHT_SEMANTICS = {"score_function": "none"}

    def __init__(self, config):
        super().__init__()
        self.config, self.head = config, nn.Linear(3, config.num_classes)

    def trace(self, inputs, valid=None):
        side = self.config.grid[0]
        patches = nn.functional.avg_pool2d(inputs, self.config.patch).flatten(2)
        bright = (patches.mean(1) > 0).long()
        lower = (torch.arange(side * side, device=inputs.device) >= side * side // 2).long().expand_as(bright)
        ids = torch.stack([bright, lower], -1)[..., None]
        undefined = torch.full(ids.shape[:3], float("nan"))
        return Traced(self.head(patches.mean(2)), ids, torch.ones(ids.shape), undefined, torch.ones(bright.shape))

    def module_table(self):
        return [ModuleInfo(step, m, name, "block", 0, 1)
                for step, names in enumerate((("dark", "bright"), ("upper", "lower"))) for m, name in enumerate(names)]
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "site"
    points = {"halves": "halves:HalvesControls", "broken": "halves:Nothing", "dna": "halves:HalvesControls"}
    write_plugin(folder, "halves", CONTROLS, {"tokenpaths.families": points})
    (folder / "halves_model.py").write_text(MODEL)
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
    assert "halves" not in sys.modules
    assert check_controls("halves", {}, None) is not None
    assert "halves_model" not in sys.modules
    with pytest.raises(UserError, match="a halves model has no control 'temperature'"):
        check_controls("halves", {}, {"temperature": 2})


def test_a_checkpoint_of_it_is_loaded_and_listed(checkpoint: Path) -> None:
    (row,) = list_models([checkpoint.parent])
    assert row["problem"] is None
    assert (row["family"], row["num_params"], row["num_steps"]) == ("halves", 8, 2)
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


def test_broken_ones_are_sentences_and_the_others_work(plugin: Path, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"'broken' of halves cannot be used: it cannot be imported \(AttributeError"):
        family_class("broken")
    assert family_class("dna").__module__ == "tokenpaths.engine.models.dna"
    assert {"dna-vision-top1", "dipaco-4x4"} <= set(trainings())
    (plugin / "halves_model.py").write_text("import nothing_of_this_name")
    with pytest.raises(PluginError, match=r"halves_model:Halves .* cannot be imported \(ModuleNotFoundError"):
        family_class("halves")
    (tmp_path / "models" / "toy").mkdir(parents=True)
    (tmp_path / "models" / "toy" / "config.json").write_text('{"family": "halves", "config": {}}')
    with pytest.raises(CheckpointError, match="toy: the model halves_model:Halves of the family 'halves' cannot be"):
        load_model("toy", [tmp_path / "models"])
    (plugin / "halves_model.py").write_text("Halves = int")
    sys.modules.pop("halves_model", None)
    with pytest.raises(PluginError, match="is no class derived from RoutedModel"):
        family_class("halves")
    assert import_module("halves")
