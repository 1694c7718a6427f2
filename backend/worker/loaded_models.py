"""The worker's models: checkpoints of our families and of Hugging Face, listed, described, and held in memory."""

from __future__ import annotations

import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tokenpaths.backend.problems import Problem, nearest
from tokenpaths.backend.settings import Settings
from tokenpaths.engine.adapters.huggingface.config import PREFIX, checkpoint_folder, is_huggingface, read_config
from tokenpaths.engine.adapters.huggingface.elsewhere import read_elsewhere
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import is_name
from tokenpaths.engine.base.model_folders import model_folder, read_model_config, subfolders, where_to_get

if TYPE_CHECKING:
    from tokenpaths.engine.tracing.traceable import Traceable

T = TypeVar("T")
Identity = tuple[tuple[str, int, int], ...]


def folder_identity(folder: Path) -> Identity:
    """Names, sizes and times of the files of a checkpoint, without what cannot be read or vanishes meanwhile."""
    files = []
    with suppress(OSError):
        for entry in folder.iterdir():
            with suppress(OSError):
                about = entry.stat()
                if stat.S_ISREG(about.st_mode):
                    files.append((entry.name, about.st_size, about.st_mtime_ns))
    return tuple(sorted(files))


def weight_bytes(identity: Identity) -> int:
    """Size of the weights among the files of a checkpoint."""
    return sum(size for name, size, _ in identity if name.startswith("model") and name.endswith(".safetensors"))


@dataclass
class Held:
    """A loaded model and the identity of its files at that time."""

    model: Traceable
    identity: Identity


class LoadedModels:
    """LRU cache of loaded models, bounded by the size of their weights; reloaded only when their files change.

    Names are those of ``GET /models``: a folder of our own checkpoints, or ``hf:`` and a folder of Hugging Face
    checkpoints. ``load`` is called by the model thread only.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held: OrderedDict[str, Held] = OrderedDict()
        self._listed: tuple[object, list[dict[str, Any]]] | None = None
        """identity of the folders when they were last read, and the rows"""

    def rows(self) -> list[dict[str, Any]]:
        """The models of all folders as ``GET /models`` shows them."""
        from tokenpaths.engine.adapters.find_traceable import list_traceable

        folders = (*self.settings.all_models_dirs, self.settings.checkpoints_dir)
        looks = [(entry.name, folder_identity(entry)) for folder in folders for entry in subfolders(folder)]
        looks += [
            (name, folder_identity(Path(place.folder)))
            for name, place in read_elsewhere(self.settings.checkpoints_dir).items()
            if os.path.isdir(place.folder)
        ]
        if self._listed is None or self._listed[0] != looks:
            rows = list_traceable(self.settings.all_models_dirs, self.settings.checkpoints_dir)
            self._listed = (looks, [row | {"job_only": self._too_large(row)} for row in rows])
        return [dict(row) for row in self._listed[1]]

    def _too_large(self, row: dict[str, Any]) -> bool:
        """Whether a usable model is too large to be run while somebody waits."""
        if row["problem"]:
            return False
        size = weight_bytes(folder_identity(self.folder(row["model"])))
        return size > self.settings.trace_model_megabytes * 1e6

    def row(self, name: str) -> dict[str, Any]:
        """The row of one model; Problem 404 that suggests the nearest name, or says why a folder holds none."""
        rows = {row["model"]: row for row in self.rows()}
        if name not in rows:
            folder = self.folder(name)
            if is_huggingface(name):
                _or_404(read_config, folder)
            raise Problem(
                404, "no-such-model", f"There is no model {name[:80]!r}; {nearest(name, rows)}", field="model"
            )
        return rows[name]

    def details(self, name: str) -> dict[str, Any]:
        """The row of one model with its configuration, its card (Markdown) and its controls, if it has them."""
        from tokenpaths.engine.families.family_controls import ExpertControls
        from tokenpaths.engine.models.family import family_class

        row, card_file = self.row(name), self.folder(name) / "card.md"
        card = controls = None
        if os.path.isfile(card_file):
            with suppress(OSError):
                card = card_file.read_text(encoding="utf-8", errors="replace")
        if not row["problem"]:
            of = ExpertControls if is_huggingface(name) else family_class(row["family"]).Controls
            controls = of.model_json_schema()
        return row | {"config": self._config(name), "card": card, "controls": controls}

    def _config(self, name: str) -> dict[str, Any] | None:
        """``config.json`` of a model; None if it cannot be used."""
        folder = self.folder(name)
        try:
            if is_huggingface(name):
                return read_config(folder)
            return read_model_config(folder)
        except (OSError, ValueError):
            return None

    def folder(self, name: str) -> Path:
        """The checkpoint folder of a model: the first match; Problem 404 if there is none."""
        if is_huggingface(name):
            return _or_404(checkpoint_folder, self.settings.checkpoints_dir, name)
        if (folder := model_folder(name, self.settings.all_models_dirs)) is not None:
            return folder
        names = [row["model"] for row in self.rows()]
        hint = where_to_get(name) if is_name(name) else None
        raise Problem(
            404, "no-such-model", f"There is no model {name[:80]!r}; {hint or nearest(name, names)}", field="model"
        )

    def refuse_large(self, name: str) -> None:
        """Problem 422 for a model that is too large to be run while somebody waits."""
        size, most = weight_bytes(folder_identity(self.folder(name))) / 1e6, self.settings.trace_model_megabytes
        if size > most:
            raise Problem(
                422,
                "job-only",
                f"The weights of {name[:80]} take {size:,.0f} MB; a model of more than {most:,.0f} MB "
                "(`trace_model_megabytes`) is not run while somebody waits: submit a job (POST /jobs, kind `trace` or "
                "`reroute`), which says how far it is.",
                field="model",
            )

    def load(self, name: str) -> Traceable:
        """The model, loaded if it is not held or its files have changed; others are let go to make room.

        Raises:
            Problem: 404, there is none of that name.
            UserError: it cannot be opened (``field`` is ``model``).
        """
        from tokenpaths.engine.adapters.find_traceable import find_traceable

        folder = self.folder(name)
        identity = folder_identity(folder)
        if name in self.held and self.held[name].identity == identity:
            self.held.move_to_end(name)
            return self.held[name].model
        self.held.pop(name, None)  # free the old one first: there may not be memory for two
        room = self.settings.held_models_megabytes * 1e6 - weight_bytes(identity)
        while self.held and sum(weight_bytes(held.identity) for held in self.held.values()) > room:
            self.held.popitem(last=False)
        found = find_traceable(f"{PREFIX}{folder}" if is_huggingface(name) else folder, ())
        self.held[name] = Held(found.load(), identity)
        return self.held[name].model

    def load_for_job(self, name: str) -> Traceable:
        """As ``load``, but raises the engine's errors."""
        try:
            return self.load(name)
        except Problem as problem:
            raise UserError(problem.detail, field=problem.field) from None


def _or_404(read: Callable[..., T], *arguments: Any) -> T:
    """Problem 404 with the message of ``read`` where there is no such Hugging Face checkpoint."""
    try:
        return read(*arguments)
    except UserError as error:
        raise Problem(404, "no-such-model", str(error), field="model") from None
