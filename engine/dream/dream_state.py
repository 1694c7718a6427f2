"""Resumable state of a dream job: one safetensors file, replaced atomically, with JSON in its metadata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import write_atomically
from tokenpaths.engine.dream.dream_request import DreamRequest

STATE = "state.safetensors"


def save_state(folder: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Replace the state of the job; ``about`` is plain JSON."""
    content = save({k: t.contiguous() for k, t in tensors.items()}, {"about": json.dumps(about)})
    write_atomically(folder / STATE, content)


def load_state(folder: Path, made_for: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The state, None where there is none yet.

    Raises:
        UserError: it is damaged, or of another request or checkpoint than ``made_for``.
    """
    file = folder / STATE
    if not file.is_file():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            about = json.loads(opened.metadata()["about"])
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        kind = type(error).__name__
        raise UserError(f"The saved state of this dream cannot be read ({kind}); start it anew") from None
    for name, value in made_for.items():
        if (_as_now(about.get(name)) if name == "request" else about.get(name)) != value:
            raise UserError(
                f"This dream was begun with another {name}; start it anew, in another folder", field="model"
            )
    return tensors, about


def _as_now(request: Any) -> Any:
    """A request as this version writes it: fields that have come since are at their defaults."""
    try:
        return json.loads(DreamRequest.model_validate(request).model_dump_json())
    except ValidationError:
        return None
