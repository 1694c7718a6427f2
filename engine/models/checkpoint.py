"""Weights of checkpoints, written and read: never a pickle, and with a sum of their bytes.

What else is in the folder: ``tokenpaths.engine.families.checkpoint_config``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from tokenpaths.engine.base.files import atomic_file, write_atomically
from tokenpaths.engine.families.checkpoint_config import CONFIG, WEIGHTS, Checkpoint, CheckpointError, first_line
from tokenpaths.engine.models.family import RoutedModel, family_class

SUM = "tensors_sha256"
"""key of the metadata of a weights file"""
SUMS = "SHA256SUMS"
"""file beside checkpoint folders: sums of weights that carry none, as ``sha256sum`` writes it"""


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """A safetensors file that takes its name only when it is whole and on disk; it carries the sum of its contents."""
    whole = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary_file:
        mode = temporary_file.stat().st_mode
        save_file(whole, temporary_file, metadata={SUM: tensors_sha256(whole)})
        temporary_file.chmod(mode)  # safetensors may put a file in its place that only its owner reads


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
        "num_params": sum(p.numel() for p in model.parameters()),
        "config": model.config.model_dump(exclude_defaults=True) | {"modality": model.config.modality},
        "classes": list(classes),
        "validation": validation or {},
        "training": training or {},
    }
    write_atomically(folder / CONFIG, (json.dumps(about, indent=1, ensure_ascii=False) + "\n").encode())
    return folder


def build_model(checkpoint: Checkpoint, device: torch.device | str = "cpu") -> RoutedModel:
    """The model with its weights in float32, ready for inference.

    Raises:
        CheckpointError: the weights are missing, cut short, of other shapes, or not finite.
    """
    path = checkpoint.path / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{checkpoint.name}: {WEIGHTS} is missing")
    try:
        with torch.device("meta"):
            model = family_class(checkpoint.family)(checkpoint.config)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise CheckpointError(
            f"{checkpoint.name}: {CONFIG} describes a model that cannot be built ({first_line(error)})"
        ) from None
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            given = {
                name: _kind_of(part.get_shape(), part.get_dtype().startswith(("F", "BF")))
                for name, part in slices.items()
            }
            problem = _other_shapes(model, given)  # by the header, before anything of that size is read
            state = {} if problem else {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            expected_sum = (file.metadata() or {}).get(SUM)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(
            f"{checkpoint.name}: {WEIGHTS} is damaged or not a safetensors file ({first_line(error)}); "
            "copy it again or train it again"
        ) from None
    if problem:
        raise CheckpointError(f"{checkpoint.name}: {problem}")
    if not _has_its_sum(path, state, expected_sum):
        raise CheckpointError(
            f"{checkpoint.name}: {WEIGHTS} is damaged, its bytes are not those that were saved; "
            "copy it again or train it again"
        )
    state = {name: t.float() if t.is_floating_point() else t for name, t in state.items()}
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{checkpoint.name}: {name} holds NaN or infinite values")
    model.load_state_dict(state, assign=True)
    return model.to(device).eval().requires_grad_(False)


def _other_shapes(model: RoutedModel, given: dict[str, str]) -> str | None:
    """The first difference between a model's tensors and those ``given`` (name → ``_kind_of``), as a sentence."""
    expected = {name: _kind_of(t.shape, t.is_floating_point()) for name, t in model.state_dict().items()}
    wrong = sorted(k for k in expected.keys() | given.keys() if expected.get(k) != given.get(k))
    if not wrong:
        return None
    return (
        f"the weights do not fit the configuration; first difference: {wrong[0]} "
        f"is {given.get(wrong[0], 'missing')}, expected {expected.get(wrong[0], 'nothing')}"
    )


def _has_its_sum(path: Path, state: Mapping[str, torch.Tensor], expected: str | None) -> bool:
    """False where a sum is known, in the file or beside its folder, and the weights have another."""
    if expected is not None:
        return tensors_sha256(state) == expected
    sums = path.parent.parent / SUMS
    if not sums.is_file():
        return True
    lines = (line.split() for line in sums.read_text(encoding="utf-8", errors="replace").splitlines())
    declared = {words[1]: words[0] for words in lines if len(words) == 2}
    beside = declared.get(f"{path.parent.name}/{path.name}")
    return beside is None or file_sha256(path) == beside


def _kind_of(shape: Sequence[int], floating: bool) -> str:
    """Shape, and whether it holds whole numbers: what must agree for a tensor to take its place."""
    return f"{tuple(shape)}{'' if floating else ' of whole numbers'}"


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
