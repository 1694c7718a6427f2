"""Shapes of the JSON of a run: what questions, reports and the page read of its configuration and its findings.

Both hold whatever a model or a person put there, so only what this program reads is checked; the rest passes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.base.records import FIRST_PREDICTION
from tokenpaths.engine.store.ask.schemas.compare_schema import Outputs

Number = Annotated[float, Field(allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-(2**53), le=2**53)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Size = Annotated[int, Field(ge=1, le=65_536)]


class Shape(BaseModel):
    """Some fields of a JSON object; others may be there. A number is no text and no truth value."""

    model_config = ConfigDict(strict=True)


class Edit(Shape):
    step: Whole | None = None
    edit: str | None = None


class Controls(Shape):
    edits: list[Edit] | None = None
    theta_steps: Count | None = None


class Config(Shape):
    """Of any family."""

    controls: Controls | None = None


class DiPaCo(Config):
    levels: Annotated[list[Size], Field(min_length=1, max_length=1024)]
    context: Count
    prefix: Count


class RayTracing(Config):
    layers: Size
    blocks: Size
    input_wires: list[list[Count]]
    block_wires: list[list[Count]]
    input_neurons: list[Size]
    input_density: Annotated[float, Field(gt=0, le=1)]
    image_size: Size
    conv_channels: Annotated[list[Size], Field(min_length=1)]
    conv_pools: Annotated[list[Count], Field(max_length=32)]
    num_classes: Size
    theta_steps: Count


class Measured(Shape):
    """Numbers of a model on held-out data."""

    params: Number | None = None
    used_share: Number | None = None
    accuracy: Number | None = None
    loss: Number | None = None
    perplexity: Number | None = None


class Lookahead(Shape):
    gain: Number | None = None
    hidden: Number | None = None
    in_view: Number | None = None
    standard_error: Number | None = None
    positions: Count | None = None
    rows: Count | None = None


class Distance(Shape):
    ratio: Number | None = None
    untrained_ratio: Number | None = None


class Routing(Shape):
    distance: Distance | None = None


class Validation(Measured):
    mlp_twin: Measured | None = None
    mlp_as_used: Measured | None = None
    beside: dict[str, Measured] | None = None
    lookahead: Lookahead | None = None
    routing: Routing | None = None


class Correlation(Shape):
    pearson: Number | None = None
    pearson_low: Number | None = None
    pearson_high: Number | None = None
    spearman: Number | None = None
    spearman_low: Number | None = None
    spearman_high: Number | None = None
    num_samples: Count = 0


class Steps(Shape):
    mean: Number | None = None
    counts: list[Count] | None = None


class Lights(Shape):
    lit_share_by_step: list[Number] | None = None
    steps_until_fired: Steps | None = None
    correlation: Correlation | None = None


class Head(Shape):
    layer: Count
    head: Count


class Point(Shape):
    sample: Count
    label: str
    x: Number
    y: Number


class Plane(Shape):
    explained: list[Number]
    points: list[Point]


class Gates(Shape):
    variance: list[list[Number]] | None = None
    specialists: list[Head] | None = None
    specialist_share_by_layer: list[Number] | None = None
    pca: Plane | None = None


class Likely(Shape):
    name: str
    probability: Number


class Answer(Shape):
    likeliest: Annotated[list[Likely], Field(max_length=5)]
    classes: Annotated[list[str], Field(max_length=1000)]


CONFIGS: dict[str, type[Config]] = {"dipaco": DiPaCo, "raytracing": RayTracing}
"""by family; ``Config`` for all others"""
FINDINGS: dict[str, TypeAdapter[Any]] = {
    "answer": TypeAdapter(Answer | None),
    "effect": TypeAdapter(Outputs | None),
    FIRST_PREDICTION: TypeAdapter(Count),
    "notes": TypeAdapter(list[str]),
    "validation": TypeAdapter(Validation | None),
    "lights": TypeAdapter(Lights | None),
    "gates": TypeAdapter(Gates | None),
    "connections": TypeAdapter(dict[str, Any] | None),
}


def check_shapes(
    family: str, config: str, findings: Mapping[str, str], modules: set[tuple[int | None, int]], soft_shapes: Any
) -> None:
    """RunFileError that names the first field which is not as this program writes it.

    Args:
        family: of the run.
        config: its configuration, JSON.
        findings: JSON by name.
        modules: (step, module) of all modules.
        soft_shapes: kind of soft decision → shape.
    """
    try:
        what = "config"
        shape = CONFIGS.get(family, Config).model_validate_json(config)
        for what, answer in findings.items():
            if what in FINDINGS:
                FINDINGS[what].validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part)[:60] for part in (what, *first["loc"]))
        raise RunFileError(
            f"its {field} is not as this program writes it ({first['msg']}): trace the run again"
        ) from None
    if isinstance(shape, RayTracing):
        _check_network(shape, modules, soft_shapes.get("blocks"))


def _check_network(network: RayTracing, modules: set[tuple[int | None, int]], soft: tuple[int, ...] | None) -> None:
    """RunFileError unless the blocks of the configuration are those of the tables."""
    size = network.layers * network.blocks
    places = {(layer, block) for layer, block in modules if layer is not None}
    if size > len(places) or any(
        (layer, block) not in places for layer in range(network.layers) for block in range(network.blocks)
    ):
        raise RunFileError("its tables do not fit together: its config has blocks that its table module lacks")
    if soft is not None and soft[-1] != size:
        raise RunFileError("its tables do not fit together: its config has other blocks than its soft decisions")
    if any(end > size for ends in (*network.input_wires, *network.block_wires) for end in ends):
        raise RunFileError("its tables do not fit together: its config has wires that end nowhere")
