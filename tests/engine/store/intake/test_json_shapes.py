"""What is read of the configuration and the findings of a run from elsewhere has to be as this program writes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenpaths.engine.analysis.families.family_findings import FINDERS, SoftSamples
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.store.intake.json_shapes import check_shapes
from tokenpaths.engine.store.write.seal_findings import plain

MODELS = Path(__file__).resolve().parents[4] / "data" / "models"
ODD_CONFIGS = {
    "config.levels": ("dipaco", {}),
    "config.layers": ("raytracing", {}),
    "config.controls": ("dna", {"controls": [1]}),
    "config.controls.edits.0.step": ("dna", {"controls": {"edits": [{"step": "x"}]}}),
}
ODD_FINDINGS = {
    "effect": ("effect", [1]),
    "effect.num_samples": ("effect", {"of_samples": "many"}),
    "notes": ("notes", {}),
    "validation": ("validation", [1]),
    "validation.beside.a": ("validation", {"beside": {"a": 1}}),
    "validation.params": ("validation", {"params": "1"}),
    "lights.steps_until_fired.counts.0": ("lights", {"steps_until_fired": {"counts": [1e300]}}),
    "gates.specialists.0.head": ("gates", {"specialists": [{"layer": 1}]}),
    "gates.pca.points": ("gates", {"pca": {"explained": [1]}}),
}


def checked(family: str, config: object, **findings: object) -> None:
    answers = {name: json.dumps(answer) for name, answer in findings.items()}
    check_shapes(family, json.dumps(config), answers, {(0, 0)}, {})


def in_full(family: str, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as a run holds it."""
    kind = {"dipaco": DiPaCoConfig, "raytracing": RayTracingConfig}.get(family)
    return config if kind is None else json.loads(kind(**config).model_dump_json())


@pytest.mark.parametrize("field", ODD_CONFIGS)
def test_a_configuration_of_another_shape_is_refused_by_its_field(field: str) -> None:
    with pytest.raises(RunFileError, match=f"^its {field} is not as this program writes it"):
        checked(*ODD_CONFIGS[field])


@pytest.mark.parametrize("field", ODD_FINDINGS)
def test_a_finding_of_another_shape_is_refused_by_its_field(field: str) -> None:
    name, answer = ODD_FINDINGS[field]
    with pytest.raises(RunFileError, match=f"^its {field} is not as this program writes it"):
        checked("dna", {}, **{name: answer})


@pytest.mark.parametrize("file", sorted(MODELS.glob("*/config.json")), ids=lambda file: file.parent.name)
def test_what_shipped_models_say_passes(file: Path) -> None:
    model = json.loads(file.read_text())
    config = in_full(model["family"], model["config"])
    layers, blocks = (config["layers"], config["blocks"]) if model["family"] == "raytracing" else (0, 0)
    modules = {(layer, block) for layer in range(layers) for block in range(blocks)}
    findings = {"validation": json.dumps(model["validation"])}
    check_shapes(model["family"], json.dumps(config), findings, modules, {})


@pytest.mark.parametrize("kind", FINDERS)
def test_what_sealing_finds_passes(kind: str) -> None:
    rng = np.random.default_rng(0)
    name, find = FINDERS[kind]
    samples = SoftSamples(
        rng.random((12, 3, 4, 4) if kind != "blocks" else (12, 5, 8)).astype(np.float32),
        ["a", "b", "c"] * 4,
        rng.random(12),
        rng.random(12),
        {"source": ("l0", "l1", "l2", "text"), "target": ("l0", "l1", "l2", "words")},
    )
    finding = plain(find(samples))
    assert len(finding) > 2
    checked("dna", {}, **{name: finding})


def test_a_network_whose_blocks_are_not_in_the_tables_is_refused() -> None:
    config = in_full("raytracing", json.loads((MODELS / "raytracing-digits" / "config.json").read_text())["config"])
    blocks = {(layer, block) for layer in range(config["layers"]) for block in range(config["blocks"])}
    check_shapes("raytracing", json.dumps(config), {}, blocks, {"blocks": (44, len(blocks))})
    for changes, soft in (({"layers": 65_000, "blocks": 65_000}, {}), ({}, {"blocks": (44, len(blocks) + 1)})):
        with pytest.raises(RunFileError, match="do not fit together"):
            check_shapes("raytracing", json.dumps(config | changes), {}, blocks, soft)
