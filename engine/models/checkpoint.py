"""Checkpoints: a folder with ``model.safetensors``, ``config.json``, ``card.md`` and, for text, ``tokenizer.json``.

Never a pickle. A configuration may come from a stranger, and building a model loops over some of its numbers before
any weight is compared: `check_sizes` bounds them, far above every published model, before anything is built.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import atomic_file, write_atomically
from tokenpaths.engine.models.family import RoutedModel, family_class

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "card.md"
TOKENIZER = "tokenizer.json"
SUM = "tensors_sha256"
"""key of the metadata of a weights file"""
SUMS = "SHA256SUMS"
"""file beside checkpoint folders: sums of weights that carry none, as ``sha256sum`` writes it"""

MOST = 10_000_000
"""of anything: channels, words, positions"""
MOST_LOOPED = 4096
LOOPED = frozenset(
    {
        "backbone",
        "steps",
        "transformers",
        "attentions",
        "mlps",
        "identities",
        "iterations",
        "layers",
        "levels",
        "blocks",
        "path_blocks",
        "directions",
        "conv_channels",
        "input_neurons",
    }
)
"""fields whose numbers say how many modules are built, or how often they run"""
MOST_BLOCKS = 65_536
"""blocks a layer or level × layers or levels"""


class CheckpointError(UserError):
    """A checkpoint that cannot be used: missing, cut short, altered or not of this kind."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint folder says of itself, weights not loaded."""

    path: Path
    family: str
    config: Any
    """the family's ``Config``"""
    classes: tuple[str, ...]
    """class names of a vision model, in order of its outputs"""
    validation: dict[str, Any]
    training: dict[str, Any]

    @property
    def name(self) -> str:
        return self.path.name


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file that takes its name only when it is whole and on disk; it carries the sum of its contents."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary_file:
        save_file(whole, temporary_file, metadata={SUM: tensors_sha256(whole)})


def tensors_sha256(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, shapes, kinds and bytes: safetensors itself does not notice a changed bit."""
    together = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        together.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        together.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return together.hexdigest()


def save_checkpoint(
    folder: Path,
    model: RoutedModel,
    *,
    classes: tuple[str, ...] = (),
    validation: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """Save weights (floating-point ones in ``dtype``, but for the model's ``KEEP_FLOAT32``) and configuration."""
    state = {
        name: (tensor.to(dtype) if tensor.is_floating_point() and name not in model.KEEP_FLOAT32 else tensor)
        .detach()
        .cpu()
        for name, tensor in model.state_dict().items()
    }
    save_tensors(folder / WEIGHTS, state)
    about = {
        "family": model.family,
        "config": model.config.model_dump(exclude_defaults=True) | {"modality": model.config.modality},
        "classes": list(classes),
        "validation": validation or {},
        "training": training or {},
    }
    write_atomically(folder / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    return folder


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read what the folder says of itself.

    Raises:
        CheckpointError: no such folder, no configuration, or one that does not make sense.
    """
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder.name}: no {CONFIG} here, so this is not a checkpoint folder")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        family = about["family"]
        config = family_class(family).Config(**about["config"])
        check_sizes(config.model_dump())
        classes, validation, training = _rest(about, config)
    except UserError as error:
        raise CheckpointError(f"{folder.name}: {error}") from None
    except KeyError as error:
        raise CheckpointError(f"{folder.name}: {CONFIG} has no {error}, so this is no checkpoint's") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise CheckpointError(f"{folder.name}: {CONFIG} cannot be used: {where}{': ' * bool(where)}{message}") from None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{folder.name}: {CONFIG} cannot be used: {_first_line(error)}") from None
    return Checkpoint(folder, family, config, classes, validation, training)


def _rest(about: dict[str, Any], config: Any) -> tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]:
    """Class names, validation and training notes of a configuration; ValueError where they are of another kind."""
    names, validation, training = about.get("classes", []), about.get("validation", {}), about.get("training", {})
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("classes should be a list of names")
    if not isinstance(validation, dict) or not isinstance(training, dict):
        raise ValueError("validation and training should be JSON objects")
    outputs = getattr(config, "num_classes", None)
    if names and config.modality == "vision" and outputs is not None and len(names) != outputs:
        raise ValueError(f"there are {len(names)} classes for {outputs} outputs")
    return tuple(names), validation, training


def build_model(checkpoint: Checkpoint, device: torch.device | str = "cpu") -> RoutedModel:
    """The model with its weights in float32, ready for inference.

    Raises:
        CheckpointError: the weights are missing, cut short, of other shapes, or not finite.
    """
    path = checkpoint.path / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{checkpoint.name}: {WEIGHTS} is missing")
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected_sum = (file.metadata() or {}).get(SUM)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{checkpoint.name}: {WEIGHTS} is damaged or not a safetensors file ({_first_line(error)}); "
            "copy it again or train it again"
        ) from None
    if not _has_its_sum(path, state, expected_sum):
        raise CheckpointError(
            f"{checkpoint.name}: {WEIGHTS} is damaged, its bytes are not those that were saved; "
            "copy it again or train it again"
        )
    state = {name: t.float() if t.is_floating_point() else t for name, t in state.items()}
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{checkpoint.name}: {name} holds NaN or infinite values")
    try:
        with torch.device("meta"):
            model = family_class(checkpoint.family)(checkpoint.config)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{checkpoint.name}: {CONFIG} describes a model that cannot be built ({_first_line(error)})"
        ) from None
    expected = {name: _kind_of(t) for name, t in model.state_dict().items()}
    given = {name: _kind_of(t) for name, t in state.items()}
    if expected != given:
        wrong = sorted(k for k in expected.keys() | given.keys() if expected.get(k) != given.get(k))
        raise CheckpointError(
            f"{checkpoint.name}: the weights do not fit the configuration; first difference: {wrong[0]} "
            f"is {given.get(wrong[0], 'missing')}, expected {expected.get(wrong[0], 'nothing')}"
        )
    model.load_state_dict(state, assign=True)
    return model.to(device).eval().requires_grad_(False)


def _has_its_sum(path: Path, state: Mapping[str, torch.Tensor], expected: str | None) -> bool:
    """False where a sum is known, in the file or beside its folder, and the weights have another."""
    if expected is not None:
        return tensors_sha256(state) == expected
    sums = path.parent.parent / SUMS
    if not sums.is_file():
        return True
    lines = (line.split() for line in sums.read_text(encoding="utf-8", errors="replace").splitlines())
    known = {words[1]: words[0] for words in lines if len(words) == 2}
    beside = known.get(f"{path.parent.name}/{path.name}")
    return beside is None or file_sha256(path) == beside


def _kind_of(tensor: torch.Tensor) -> str:
    """Shape, and whether it holds whole numbers: what must agree for a tensor to take its place."""
    whole = "" if tensor.is_floating_point() else " of whole numbers"
    return f"{tuple(tensor.shape)}{whole}"


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def check_sizes(config: Mapping[str, Any]) -> None:
    """Do nothing for a configuration that can be built in seconds; else ValueError that names the field.

    >>> check_sizes({"steps": 20, "vocab_size": 50257})
    """
    for name, value in config.items():
        most = MOST_LOOPED if name in LOOPED else MOST
        for number in _numbers(value) if name != "seed" else ():
            if abs(number) > most:
                raise ValueError(f"{name}: {str(number)[:20]} is more than {most:,}, the most that is built here")
    deep = max([1, *_numbers(config.get("layers")), *_numbers(config.get("levels"))])
    wide = max([1, *_numbers(config.get("blocks"))])
    if deep * wide > MOST_BLOCKS:
        raise ValueError(f"blocks: {deep:,} × {wide:,} is more than {MOST_BLOCKS:,}, the most that is built here")


def _numbers(value: Any) -> list[int]:
    """The whole numbers in a field, lists of lists included."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int):
        return [value]
    return [number for one in value for number in _numbers(one)] if isinstance(value, (list, tuple)) else []
