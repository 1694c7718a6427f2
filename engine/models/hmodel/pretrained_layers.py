"""Hidden layers of an H-Model taken from a loaded Hugging Face model (the only use of ``transformers`` here).

Shapes: B samples, N positions, W width of that model.
Source: H-Model, section 6.7.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.hmodel_config import HiddenLayerConfig
from tokenpaths.engine.models.hmodel.hmodel_layers import Layout, Pretrained


def take_layer(model: nn.Module, path: str, *, projection: bool = True) -> tuple[HiddenLayerConfig, nn.Module]:
    """A hidden layer out of a loaded Hugging Face model: its configuration, and the layer itself.

    ``path`` is the layer's name, for example ``encoder.layer.3`` (BERT, RoBERTa, MiniLM) or ``h.0`` (GPT-2).
    Give both to ``HModel(config, pretrained={index: layer})``.

    Raises:
        UserError: no such layer, or one that cannot stand alone.
    """
    try:
        layer = model.get_submodule(path)
    except AttributeError:
        raise UserError(
            f"{type(model).__name__} has no layer {path!r}; its layers are named like {_some_layer(model)!r}",
            field="path",
        ) from None
    model_config: Any = model.config
    described = {k: v for k, v in model_config.to_diff_dict().items() if k != "transformers_version"}
    config = HiddenLayerConfig(
        kind="pretrained",
        width=model_config.hidden_size,
        projection=projection,
        architecture=described | {"model_type": model_config.model_type},
        path=path,
    )
    check_layer(layer, config)
    return config, layer


def build_pretrained(config: HiddenLayerConfig) -> nn.Module:
    """The architecture of such a layer at initialisation: truncated normal 0.02, norms 1, biases 0.

    Raises:
        UserError: transformers is not installed, or it does not know this architecture.
    """
    try:
        from transformers import AutoConfig, AutoModel
    except ImportError:
        raise UserError(
            "a hidden layer out of a Hugging Face model needs transformers, which is missing from this installation; "
            "run `pip install transformers`",
            field="hidden",
        ) from None
    values = dict(config.architecture or {})
    try:
        with torch.device("meta"):  # the rest of that model is never needed
            layer = AutoModel.from_config(AutoConfig.for_model(values.pop("model_type"), **values))
            layer = layer.get_submodule(config.path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{config.path} cannot be built from its architecture: {error}", field="hidden") from None
    check_layer(layer, config, probe=False)
    if torch.empty(0).device.type == "meta":
        return layer
    layer = layer.to_empty(device="cpu")
    for name, parameter in layer.named_parameters():
        if parameter.ndim > 1:
            nn.init.trunc_normal_(parameter, std=0.02)
        else:
            nn.init.constant_(parameter, 1.0 if name.endswith("weight") else 0.0)
    return layer


def check_layer(layer: nn.Module, config: HiddenLayerConfig, probe: bool = True) -> None:
    """Refuse a layer that needs more than a state, forgets buffers in a checkpoint, or holds NaN."""
    if dict(layer.named_buffers()).keys() - layer.state_dict().keys():
        raise UserError(f"{config.path} keeps tensors that no checkpoint would hold; take another layer", field="path")
    if not probe:
        return
    for name, parameter in layer.named_parameters():
        if not torch.isfinite(parameter).all():
            raise UserError(f"{config.path}.{name} holds NaN or infinite values", field="path")
    at, width = next(layer.parameters()), config.width
    assert width is not None, "a pretrained layer says its width"
    layout = Layout({"text": slice(0, 3)}, (1, 1), causal=True)
    try:
        with torch.no_grad():
            shape = Pretrained(layer)(torch.zeros(1, 3, width, device=at.device, dtype=at.dtype), layout).shape
    except Exception as error:  # whatever a foreign layer raises
        raise UserError(
            f"{config.path} cannot run on a state alone ({type(error).__name__}: {error}); take a layer of a model "
            "with positions in its embedding, as BERT, RoBERTa, MiniLM, GPT-2 or ViT",
            field="path",
        ) from None
    if shape != (1, 3, config.width):
        raise UserError(
            f"{config.path} turns {config.width} values into {shape[-1]}; a hidden layer must keep the width",
            field="path",
        )


def check_causal(layer: nn.Module, width: int) -> None:
    """Refuse a layer whose earlier positions see later ones although the mask forbids it.

    Raises:
        UserError: it does not keep to the mask (convolutions, Fourier mixing …), so a next-token model would leak.
    """
    at, training = next(layer.parameters()), layer.training
    x = torch.linspace(-1, 1, 4 * width, device=at.device, dtype=at.dtype).sin().view(1, 4, width)
    changed = torch.cat((x[:, :3], x[:, 3:] + 1), dim=1)
    layout = Layout({"text": slice(0, 4)}, (1, 1), causal=True)
    with torch.no_grad():
        before, after = (Pretrained(layer.eval())(one, layout)[:, :3] for one in (x, changed))
    layer.train(training)
    if not torch.allclose(before, after, atol=1e-5):
        raise UserError(
            f"{type(layer).__name__} lets earlier positions see later ones in spite of the mask; it cannot "
            "be a hidden layer of a next-token model",
            field="hidden",
        )


def _some_layer(model: nn.Module) -> str:
    return next((n for n, m in model.named_modules() if n.endswith(".0") and list(m.children())), "encoder.layer.0")
