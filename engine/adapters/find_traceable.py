"""Any model by its name, as a ``Traceable``: a checkpoint of ours, or ``hf:`` and a Hugging Face checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenpaths.engine.adapters.huggingface.config import is_huggingface
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import Modality
from tokenpaths.engine.families.family_controls import read_expert_controls
from tokenpaths.engine.tracing.loaded_model import find_checkpoint, load_model
from tokenpaths.engine.tracing.traceable import Traceable


@dataclass(frozen=True)
class FoundModel:
    """A model that was located; its weights are not loaded yet."""

    name: str
    modality: Modality
    load: Callable[[bool], Traceable]
    """loads the weights; True: with the untrained twin unless the model is too large"""


def find_traceable(
    model: str | Path,
    folders: Iterable[Path],
    device: str | None = None,
    dtype: str | None = None,
    controls: Mapping[str, Any] | None = None,
) -> FoundModel:
    """Look up a model; raises every error that can be detected before its weights are loaded.

    Args:
        model: a name, a folder, or ``hf:`` and a folder or a name on the hub.
        folders: folders of our own checkpoints; the first match wins.
        device: cuda, mps or cpu; None: the fastest available.
        dtype: for ``hf:`` models; None: as saved.
        controls: as plain values, for ``hf:`` models.

    Raises:
        UserError: no model of that name, or an option that it does not support.
    """
    folders = list(folders)
    if not (isinstance(model, str) and is_huggingface(model)):
        if dtype is not None:
            raise UserError("--dtype is for hf: models; the others run as they were trained.", field="dtype")
        checkpoint = find_checkpoint(model, folders)
        return FoundModel(
            checkpoint.name, checkpoint.config.modality, lambda twin: load_model(checkpoint.path, folders, device)
        )
    from tokenpaths.engine.adapters.huggingface import inspection, loading

    if controls is not None:
        read_expert_controls(controls)
    loading.check_options(device, dtype or "auto")
    source = inspection.find_model(model)
    return FoundModel(source.name, "text", lambda twin: loading.load(source, device, dtype or "auto", twin=twin))
