"""Hugging Face checkpoints available to jobs, from the folder ``huggingface_dir``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.backend.problems import Problem
from tokenpaths.engine.adapters.huggingface.config import PREFIX, checkpoint_folder, layout_of, read_config
from tokenpaths.engine.base.errors import UserError

if TYPE_CHECKING:
    from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel

Identity = tuple[tuple[str, int, int], ...]


def folder_identity(folder: Path) -> Identity:
    """Names, sizes and times of the files of a checkpoint."""
    files = sorted(entry for entry in folder.iterdir() if entry.is_file())
    return tuple((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


class HuggingFaceModels:
    """Cache of loaded Hugging Face models, like the worker's other models. Used only by the model thread."""

    def __init__(self, parent: Path | None) -> None:
        self.parent = parent
        self._kept: dict[str, tuple[HuggingFaceModel, Identity]] = {}

    def load(self, model: str) -> HuggingFaceModel:
        """The model of ``hf:<folder>``, reloaded only when its files change.

        Raises:
            UserError: There is none of that name, or it cannot be opened (``field`` is ``model``).
        """
        from tokenpaths.engine.adapters.huggingface.inspection import find_model
        from tokenpaths.engine.adapters.huggingface.loading import load

        folder = checkpoint_folder(self.parent, model)
        identity = folder_identity(folder)
        if model not in self._kept or self._kept[model][1] != identity:
            self._kept.pop(model, None)  # free the old one first: there may not be memory for two
            self._kept[model] = (load(find_model(f"{PREFIX}{folder}"), twin=False), identity)
        return self._kept[model][0]


def huggingface_details(parent: Path | None, model: str) -> dict[str, Any]:
    """Details of a checkpoint from its ``config.json``, as ``GET /models/{model}`` shows them; reads no weights.

    Raises:
        Problem: 404; the message names what is missing: the setting, the folder, or experts.
    """
    from tokenpaths.engine.families.family_controls import ExpertControls

    try:
        config = read_config(checkpoint_folder(parent, model))
        layout = layout_of(config)
    except UserError as error:
        raise Problem(404, "no-such-model", str(error), field="model") from None
    return {
        "model": model,
        "family": ExpertControls.FAMILY,
        "modality": "text",
        "num_params": None,
        "num_steps": layout.layers,
        "num_modules": layout.choices,
        "top_k": layout.top_k,
        "validation": {},
        "shipped": False,
        "problem": None,
        "config": config,
        "card": None,
        "controls": ExpertControls.model_json_schema(),
    }
