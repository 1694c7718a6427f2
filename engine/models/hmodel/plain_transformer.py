"""The plain transformer for comparison with an H-Model: same input, output and blocks in sequence, no routing.

It is a DNA without routed steps, so it trains, saves and evaluates like every other model. An H-Model whose
connections are fixed to a chain computes the same, as a test shows: the ordinary forward pass is a special case of
an H-Model's (figure (b) of section 3.1 of the H-Model paper).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.hmodel_config import HModelConfig
from tokenpaths.engine.models.dna import DNAConfig


def plain_transformer(config: HModelConfig, layers: int | None = None) -> DNAConfig:
    """The transformer of ``layers`` blocks (default: as many as the H-Model has hidden layers).

    Equal numbers of layers are nearly equal numbers of parameters: the H-Model adds its connection heads and
    its iteration embedding.

    Raises:
        UserError: the H-Model has several inputs or outputs, or an output that this transformer lacks.
    """
    task = {"text": "predict", "vision": "classify"}[config.modality]
    if len(config.inputs) > 1 or config.outputs != (task,):
        raise UserError(
            f"a plain transformer for {config.modality} has one input and the output {task!r}; this "
            f"H-Model has inputs {config.inputs} and outputs {config.outputs}",
            field="model",
        )
    own = (
        dict(vocab_size=config.vocab_size, context=config.context)
        if config.modality == "text"
        else dict(
            image_size=config.image_size,
            patch_size=config.patch_size,
            channels=config.channels,
            num_classes=config.num_classes,
        )
    )
    return DNAConfig(
        modality=config.modality,
        width=config.width,
        heads=config.heads,
        mlp_width=config.mlp_width,
        backbone=layers or config.num_modules,
        steps=0,
        **own,
    )


def chain_connections(config: HModelConfig) -> Float[Tensor, "I A Z"]:
    """The c that make an H-Model run its hidden layers one after the other and send the last one's state out.

    Raises:
        UserError: it does not run as many iterations as it has hidden layers.
    """
    hidden = config.num_modules
    if config.iterations != hidden:
        raise UserError(
            f"a chain through {hidden} hidden layers takes {hidden} iterations, not {config.iterations}",
            field="iterations",
        )
    c = torch.zeros(hidden + 1, hidden + len(config.inputs), config.num_targets)
    c[0, hidden:, 0] = 1
    for iteration in range(1, hidden):
        c[iteration, iteration - 1, iteration] = 1
    c[hidden, hidden - 1, hidden:] = 1
    return c
