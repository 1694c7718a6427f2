"""What a checkpoint folder says of itself: ``config.json`` and the header of its weights. No torch, no weight is read.

A configuration may come from a stranger, and building a model loops over some of its numbers before any weight is
compared: ``check_sizes`` bounds them, far above every published model, before anything is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import is_name
from tokenpaths.engine.base.model_folders import CONFIG as CONFIG
from tokenpaths.engine.base.model_folders import (
    installed_folders,
    model_folder,
    read_model_config,
    subfolders,
    where_to_get,
)
from tokenpaths.engine.families.family_controls import config_class

WEIGHTS = "model.safetensors"
CARD = "card.md"
TOKENIZER = "tokenizer.json"
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
    num_params: int | None = None
    """trained numbers; None: the configuration does not tell"""

    @property
    def name(self) -> str:
        return self.path.name


def read_checkpoint(folder: Path) -> Checkpoint:
    """Read what the folder says of itself.

    Raises:
        CheckpointError: no such folder, no configuration, or one that does not make sense.
    """
    try:
        about = read_model_config(folder)
        family, given = about["family"], about["config"]
        if not isinstance(family, str) or not isinstance(given, dict):
            raise ValueError("family should be a name, and config a JSON object")
        check_sizes(given)  # before the family builds anything of them
        config = config_class(family)(**given)
        check_sizes(config.model_dump())
        classes, validation, training = _rest(about, config)
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{folder.name}: no {CONFIG} here, so this is not a checkpoint folder") from None
    except OSError as error:
        raise CheckpointError(f"{folder.name}: {CONFIG} cannot be read: {error.strerror or error}") from None
    except UserError as error:
        raise CheckpointError(f"{folder.name}: {error}") from None
    except KeyError as error:
        raise CheckpointError(f"{folder.name}: {CONFIG} has no {error}, so this is no checkpoint's") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise CheckpointError(f"{folder.name}: {CONFIG} cannot be used: {where}{': ' * bool(where)}{message}") from None
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{folder.name}: {CONFIG} cannot be used: {first_line(error)}") from None
    num_params = about.get("num_params")
    whole = isinstance(num_params, int) and not isinstance(num_params, bool) and num_params >= 0
    return Checkpoint(folder, family, config, classes, validation, training, num_params if whole else None)


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


def find_checkpoint(name: str | Path, folders: Iterable[Path]) -> Checkpoint:
    """Find a checkpoint by name or by the path of its folder.

    Raises:
        CheckpointError: there is none of that name (the message lists those that exist), or it is broken.
    """
    folders = list(folders)
    if isinstance(name, Path) or "/" in str(name):
        if not Path(name).is_dir():
            raise CheckpointError(f"there is no checkpoint folder {name}", field="model")
        return read_checkpoint(Path(name))
    if (found := model_folder(str(name), folders)) is not None:
        return read_checkpoint(found)
    names = ", ".join(row["model"] for row in list_models(folders)) or "none yet"
    remedy = f"; {advice}" if (advice := where_to_get(str(name))) else ""
    raise CheckpointError(f"no model is called {name!r}{remedy}; there are: {names}", field="model")


def list_models(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """Description of each checkpoint folder; broken ones are listed with their problem."""
    rows: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in subfolders(folder):
            if is_name(path.name) and path.name not in rows:
                rows[path.name] = _model_row(path, shipped=folder in installed_folders())
    return [rows[name] for name in sorted(rows)]


def _model_row(path: Path, shipped: bool) -> dict[str, Any]:
    empty = dict.fromkeys(("family", "modality", "num_params", "num_steps", "num_modules", "top_k"), None)
    row: dict[str, Any] = {"model": path.name, **empty, "validation": {}, "shipped": shipped, "problem": None}
    try:
        checkpoint = read_checkpoint(path)
        config = checkpoint.config
        sizes = {name: getattr(config, name) for name in ("modality", "num_steps", "num_modules", "top_k")}
        stored, problem = _stored_params(path / WEIGHTS)
    except CheckpointError as error:
        return row | {"problem": str(error)}
    except AttributeError as error:  # of a plugin
        return row | {"problem": f"{path.name}: the configuration of its family has no {error.name}"}
    except Exception as error:  # one folder that nobody foresaw must not hide all the others
        return row | {"problem": f"{path.name}: cannot be read as a model ({type(error).__name__})"}
    num_params = stored if checkpoint.num_params is None else checkpoint.num_params
    known = {"family": checkpoint.family, "num_params": num_params, "validation": checkpoint.validation}
    return row | known | sizes | {"problem": problem}


def _stored_params(weights: Path) -> tuple[int | None, str | None]:
    """(numbers in the tensors of a weights file, None), or (None, what is wrong with its header)."""
    if not weights.is_file():
        return None, f"{WEIGHTS} is missing"
    try:
        with safe_open(weights, framework="numpy") as file:
            return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys()), None  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        return None, f"{WEIGHTS} is damaged or not a safetensors file ({first_line(error)})"


def first_line(error: BaseException) -> str:
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
