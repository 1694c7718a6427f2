"""Any model by its name, as a ``Traceable``: a checkpoint of ours, or ``hf:`` and a Hugging Face checkpoint.

Listing them imports no torch; only looking one up does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.adapters.huggingface.config import (
    CONFIG,
    PREFIX,
    checkpoint_folder,
    is_huggingface,
    is_model_name,
    list_checkpoints,
)
from tokenpaths.engine.adapters.huggingface.elsewhere import note_elsewhere
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import find_checkpoint, list_models
from tokenpaths.engine.families.family_controls import read_expert_controls

if TYPE_CHECKING:
    from tokenpaths.engine.base.records import Modality
    from tokenpaths.engine.tracing.traceable import Traceable


@dataclass(frozen=True)
class FoundModel:
    """A model that was located; its weights are not loaded yet."""

    name: str
    modality: Modality
    load: Callable[[], Traceable]
    """loads the weights"""
    folder: Path | None = None
    """of a Hugging Face checkpoint, also one that the hub's cache holds"""

    def note_place(self, loaded: Traceable, checkpoints_dir: Path) -> None:
        """Note where a Hugging Face checkpoint lies, for the page; a folder that cannot be written keeps no note."""
        name = self.name.rsplit("/", 1)[-1]
        if self.folder is not None and is_model_name(f"{PREFIX}{name}"):
            with suppress(OSError):
                note_elsewhere(checkpoints_dir, name, self.folder, str(getattr(loaded, "sha256", "")))


def find_traceable(
    model: str | Path,
    folders: Iterable[Path],
    device: str | None = None,
    dtype: str | None = None,
    controls: Mapping[str, Any] | None = None,
    checkpoints_dir: Path | None = None,
) -> FoundModel:
    """Look up a model; raises every error that can be detected before its weights are loaded.

    Args:
        model: a name, a folder, or ``hf:`` and a folder, a name in ``checkpoints_dir``, or a name on the hub.
        folders: folders of our own checkpoints; the first match wins.
        device: cuda, mps or cpu; None: the fastest available.
        dtype: for ``hf:`` models; None: as saved.
        controls: as plain values, for ``hf:`` models.
        checkpoints_dir: folder of Hugging Face checkpoints, as ``list_traceable`` names them.

    Raises:
        UserError: no model of that name, or an option that it does not support.
    """
    folders = list(folders)
    if not (isinstance(model, str) and is_huggingface(model)):
        from tokenpaths.engine.tracing.loaded_model import load_model

        if dtype is not None:
            raise UserError("--dtype is for hf: models; the others run as they were trained.", field="dtype")
        checkpoint = find_checkpoint(model, folders)
        return FoundModel(
            checkpoint.name, checkpoint.config.modality, lambda: load_model(checkpoint.path, folders, device)
        )
    from tokenpaths.engine.adapters.huggingface import inspection, loading

    if controls is not None:
        read_expert_controls(controls)
    loading.check_options(device, dtype or "auto")
    name = model.removeprefix(PREFIX)
    if checkpoints_dir is not None and is_model_name(model) and not Path(name).is_dir():
        with suppress(UserError):  # then it is a name on the hub
            model = f"{PREFIX}{checkpoint_folder(checkpoints_dir, model)}"
    source = inspection.find_model(model)
    config = source.file(CONFIG)
    folder = config.parent if config is not None else None
    return FoundModel(source.name, "text", lambda: loading.load(source, device, dtype or "auto"), folder)


def list_traceable(folders: Iterable[Path], checkpoints_dir: Path | None) -> list[dict[str, Any]]:
    """Description of every model by the name that the API uses; broken ones are listed with their problem.

    Args:
        folders: folders of our own checkpoints.
        checkpoints_dir: folder of Hugging Face checkpoints, which may be one of ``folders``.
    """
    foreign = list_checkpoints(checkpoints_dir)
    names = {row["model"].removeprefix(PREFIX) for row in foreign}
    ours = [row for row in list_models(folders) if not (row["problem"] and row["model"] in names)]
    return ours + foreign
