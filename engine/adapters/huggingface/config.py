"""Locate Hugging Face checkpoints and read layers and experts from ``config.json``, without torch.

Jobs name a checkpoint ``hf:<folder>``: a folder inside the one configured by the operator or one that was traced on
this machine (``elsewhere``), never a path or a hub name, because jobs may be submitted from another machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.huggingface.elsewhere import read_elsewhere
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import is_name
from tokenpaths.engine.base.model_folders import CONFIG, read_model_config, subfolders
from tokenpaths.engine.families.family_controls import ExpertControls

PREFIX = "hf:"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NOT_TRACED = {
    "diffusion_gemma": "it fills blocks of text by diffusion, so there is no next token whose loss could be kept",
    "doge": "its experts are rows of a table, picked by product keys inside the block: no gate gives ids or weights",
    "granite_docling": "its router weighs tiles of an image, it picks no experts",
    "nllb-moe": "it is an encoder-decoder, and an expert that is full drops tokens: what a token does depends on the "
    "rest of its batch",
    "openai_privacy_filter": "it labels tokens and predicts no next one",
    "qwen3_omni_moe": "as a whole it is opened by none of the classes for text; it takes and makes speech",
    "switch_transformers": "it is an encoder-decoder, and an expert that is full drops tokens: what a token does "
    "depends on the rest of its batch",
    "vitpose_backbone": "its experts are picked by the name of the data set, not by a router",
}
"""routed architectures of transformers 5.23 that are not supported, with the reason"""
FOLDER_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
"""valid checkpoint folder names: hub names without their owner match"""
MOST_COUNTED = 65_536
"""layers, or experts of one; some of them are counted one by one"""

_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts", "moe_top_k")
_LAYERS = ("num_hidden_layers", "n_layers", "num_layers")
_PARTS = ("text_config", "ffn_config")
"""configuration sections that may hold the settings of the text model or of the experts"""


def is_huggingface(model: str) -> bool:
    """Whether a model's name means a Hugging Face checkpoint."""
    return model.startswith(PREFIX)


def is_model_name(name: str) -> bool:
    """Whether ``name`` can be that of a model: of a folder of ours, or ``hf:`` and a folder of checkpoints."""
    if not is_huggingface(name):
        return is_name(name)
    return re.fullmatch(FOLDER_PATTERN, name.removeprefix(PREFIX)) is not None


def checkpoint_folder(parent: Path | None, model: str) -> Path:
    """The folder of ``hf:<name>`` inside ``parent``, or where it was traced; does not read its files.

    Raises:
        UserError: no folder of checkpoints is set, a name that is a path, no such folder, a link that leads out of
            ``parent``, or a folder without a configuration (``field`` is ``model``).
    """
    name = model.removeprefix(PREFIX)
    if parent is None:
        raise UserError(
            f"{model[:80]!r} cannot be looked for: the setting `huggingface_dir`, the folder that holds Hugging Face "
            "checkpoints, is not set.",
            field="model",
        )
    if not re.fullmatch(FOLDER_PATTERN, name) or ".." in name:
        raise UserError(
            f"{name[:80]!r} is no name of a folder of checkpoints: give `hf:` and the name alone of a folder in "
            f"{parent}, without a path.",
            field="model",
        )
    folder = parent / name
    if not os.path.isdir(folder) and (place := read_elsewhere(parent).get(name)):
        if not os.path.isfile(Path(place.folder) / CONFIG):
            raise UserError(
                f"The checkpoint {name!r} is no longer in the folder in which it was traced; say where it is now.",
                field="model",
            )
        return Path(place.folder)
    if not os.path.isdir(folder):
        raise UserError(f"There is no checkpoint {name!r} in {parent}; {_nearest(name, parent)}", field="model")
    if not folder.resolve().is_relative_to(parent.resolve()):
        raise UserError(f"{name!r} is a link that leads out of {parent}; put the checkpoint there.", field="model")
    if not os.path.isfile(folder / CONFIG):
        raise UserError(
            f"The folder {name} in {parent} holds no {CONFIG}, so it is no Hugging Face model.", field="model"
        )
    return folder


def _nearest(name: str, parent: Path) -> str:
    there = [folder.name for folder in subfolders(parent) if os.path.exists(folder / CONFIG)]
    if not there:
        return "there is none yet." if os.path.isdir(parent) else "that folder is not there."
    close = get_close_matches(name, there, n=1, cutoff=0.5)
    listed = ", ".join(there[:20]) + (", …" if len(there) > 20 else "")
    return f"did you mean {close[0]!r}? There are: {listed}." if close else f"there are: {listed}."


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json``.

    Raises:
        UserError: it is unreadable, not a JSON object, has no ``model_type``, or the architecture is not supported.
    """
    try:
        config = read_model_config(folder)
    except (OSError, ValueError):
        raise UserError(f"The {CONFIG} of {folder.name} cannot be read.", field="model") from None
    if not isinstance(config.get("model_type"), str):
        raise UserError(
            f"The {CONFIG} of {folder.name} names no model_type, so it is no Hugging Face model.", field="model"
        )
    kind = config["model_type"]
    if kind in NOT_TRACED:
        raise UserError(f"{folder.name} is of type {kind!r}, which cannot be traced: {NOT_TRACED[kind]}", field="model")
    return config


@dataclass(frozen=True)
class Layout:
    """Routed layers and choices according to the configuration; None where it does not state them."""

    layers: int | None
    """number of routed layers: the steps"""
    choices: int | None
    """choices per layer: experts, and choices without cost"""
    top_k: int | None


def layout_of(config: Mapping[str, Any]) -> Layout:
    """Number of routed layers, choices per layer and top-k, read from a configuration.

    Raises:
        UserError: a dense model: nothing in its configuration speaks of experts.
    """
    text = config.get("text_config")
    own = text if isinstance(text, Mapping) else config
    experts, top_k = _number(own, _EXPERTS), _number(own, _TOP_K)
    if experts is None and not _speaks_of_experts(own) or experts == 0:
        raise UserError(
            f"a model of type {str(config.get('model_type'))[:60]!r} whose {CONFIG} names no experts "
            f"({', '.join(_EXPERTS)}): it has no gates, so no expert can be banned",
            field="model",
        )
    kind = str(own.get("model_type") or config.get("model_type"))
    free = 1 if kind == "zaya" else _number(own, ("zero_expert_num",)) or 0
    routed = _routed_layers(own)
    if routed is not None and kind == "jetmoe":  # its attention has gates of its own
        routed *= 2
    return Layout(routed, None if experts is None else experts + free, top_k)


def list_checkpoints(parent: Path | None) -> list[dict[str, Any]]:
    """Description of each Hugging Face checkpoint in a folder, in the form of ``checkpoint_config.list_models``.

    Folders without a ``config.json`` that names a model type are left out; checkpoints that cannot be traced are listed
    with their problem. Reads no weights.
    """
    inside = {} if parent is None else {folder.name: folder for folder in subfolders(parent)}
    noted = {name: Path(place.folder) for name, place in read_elsewhere(parent).items()}
    return [
        _checkpoint_row(parent, f"{PREFIX}{name}")
        for name, folder in sorted((noted | inside).items())
        if re.fullmatch(FOLDER_PATTERN, name) and _names_type(folder)
    ]


def _names_type(folder: Path) -> bool:
    try:
        return "model_type" in read_model_config(folder)
    except (OSError, ValueError):
        return False


def _checkpoint_row(parent: Path | None, model: str) -> dict[str, Any]:
    row: dict[str, Any] = {"model": model, "family": ExpertControls.FAMILY, "modality": "text", "num_params": None}
    row |= {"num_steps": None, "num_modules": None, "top_k": None, "validation": {}, "shipped": False, "problem": None}
    try:
        folder = checkpoint_folder(parent, model)
        layout = layout_of(read_config(folder))
    except UserError as error:
        return row | {"problem": str(error)}
    problem = None
    if not any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
        problem = f"{folder.name} holds no {WEIGHTS}, so there are no weights to load"
    elif find_spec("transformers") is None:
        problem = "transformers is missing from this installation; run `pip install transformers`"
    steps = {"num_steps": layout.layers, "num_modules": layout.choices, "top_k": layout.top_k}
    return row | steps | {"problem": problem}


def _number(config: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """The first integer found under one of ``names``, in the configuration or its section for experts."""
    for part in _with_parts(config):
        for name in names:
            if isinstance(number := part.get(name), int) and not isinstance(number, bool):
                if number > MOST_COUNTED:
                    raise UserError(
                        f"{name} of its {CONFIG} is {str(number)[:20]}; at most {MOST_COUNTED:,} are read here",
                        field="model",
                    )
                return number
    return None


def _with_parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [config, *(config[name] for name in _PARTS if isinstance(config.get(name), Mapping))]


def _speaks_of_experts(config: Mapping[str, Any]) -> bool:
    """Whether unknown keys suggest experts; whether there are any is then decided by the model itself."""
    return any("expert" in name or "moe" in name for part in _with_parts(config) for name in part)


def _routed_layers(config: Mapping[str, Any]) -> int | None:
    layers = _number(config, _LAYERS)
    kinds, blocks, routed = (config.get(name) for name in ("mlp_layer_types", "layers_block_type", "moe_layers"))
    if isinstance(kinds, list):
        return sum(kind != "dense" for kind in kinds)
    if isinstance(blocks, list) and "moe" in blocks:
        return blocks.count("moe")
    if isinstance(routed, list):
        return len(routed)
    if layers is None:
        return None

    def given(name: str, otherwise: int) -> int:
        found = _number(config, (name,))
        return otherwise if found is None else found

    first = given("first_k_dense_replace", given("num_dense_layers", given("moe_layer_start_index", 0)))
    last = given("moe_layer_end_index", layers - 1)
    last = layers - 1 if last < 0 else last
    every = max(1, given("moe_layer_freq", 1))
    period, offset = max(1, given("expert_layer_period", 1)), given("expert_layer_offset", 0)
    sparse, apart = max(1, given("decoder_sparse_step", 1)), max(1, given("moe_layer_interval", 1))
    dense = config.get("mlp_only_layers")
    dense = dense if isinstance(dense, list) else []
    return sum(
        first <= i <= last
        and i % every == 0
        and i % period == offset % period
        and (i + 1) % sparse == 0
        and (i + 1) % apart == 0
        and i not in dense
        for i in range(layers)
    )
