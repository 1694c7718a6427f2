"""Inspect a Hugging Face model before loading its weights: location, architecture, and whether it can be traced.

Content of a checkpoint is treated as data: no remote code, no kernels requested by its configuration. Hub files are
stored in and read from the user's own cache; ``HF_HUB_OFFLINE`` is honoured.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tokenpaths.engine.adapters.huggingface import hub
from tokenpaths.engine.adapters.huggingface.config import CONFIG, NOT_TRACED, PREFIX, is_huggingface
from tokenpaths.engine.adapters.huggingface.gates import gate_candidates, no_router
from tokenpaths.engine.adapters.huggingface.library import (
    HuggingFaceError,
    first_line,
    quiet,
    transformers_library,
    with_plain_attention,
)

__all__ = ["CONFIG", "NOT_TRACED", "PREFIX", "Source", "find_model", "is_huggingface"]
ADAPTER = "adapter_config.json"
"""of peft, in the folder of an adapter"""
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")


@dataclass(frozen=True)
class Source:
    """A model with a router whose weights are not loaded."""

    name: str
    """name on the hub, or of the folder"""
    folder: Path | None
    """None: files are fetched from the hub through the user's cache"""
    config: Any
    """the model's transformers configuration"""
    auto_class: Any
    """the transformers Auto class that loads it"""

    def file(self, name: str) -> Path | None:
        """Local path of ``name``, fetched if necessary; None: the model has no such file."""
        if self.folder is not None:
            path = self.folder / name
            return path if path.is_file() else None
        return _fetch(self.name, name)


def find_model(model: str) -> Source:
    """Inspect a model's configuration; raises every error that can be detected before its weights are loaded.

    Raises:
        HuggingFaceError: no such folder or repository, an invalid name, an adapter, a model that needs remote code,
            does not generate text, or has no router.
    """
    name, folder = _place(model.removeprefix(PREFIX))
    bare = Source(name, folder, None, None)
    if folder is not None:
        refuse_adapter(name, folder)
    file = bare.file(CONFIG)
    if file is None:
        if folder is None and (adapter := bare.file(ADAPTER)) is not None:
            refuse_adapter(name, adapter.parent)
        raise HuggingFaceError(f"{name} holds no {CONFIG}, so it is no Hugging Face model")
    config = _read_config(name, file)
    auto_class = _auto_class(name, config)
    with torch.device("meta"), quiet():
        try:
            shape = with_plain_attention(auto_class.from_config, config, trust_remote_code=False)
        except Exception as error:  # a configuration can be wrong in as many ways as there are architectures
            raise HuggingFaceError(f"{name}: its {CONFIG} describes no model: {first_line(error)}") from None
    if not gate_candidates(shape):
        raise no_router(shape, config)
    return Source(name, folder, config, auto_class)


def refuse_adapter(name: str, folder: Path) -> None:
    """Refuse a folder with an adapter (LoRA), which transformers applies or not, as the peft of this machine may be.

    Raises:
        HuggingFaceError: there is one.
    """
    if (folder / ADAPTER).is_file():
        raise HuggingFaceError(
            f"{name} holds an adapter ({ADAPTER}), and a run is of one model whose weights are all in its files: load "
            "it with peft, save what merge_and_unload() gives (save_pretrained) and trace that folder; to trace the "
            f"model without the adapter, give a folder without {ADAPTER}"
        )


def _place(name: str) -> tuple[str, Path | None]:
    """Display name and folder; the folder is None for a repository of the hub."""
    if not name:
        raise HuggingFaceError("hf: names no model; give hf:<folder> or hf:<name on the hub>")
    if "\0" not in name and len(name) < 4096 and (path := Path(name).expanduser()).is_dir():
        return path.resolve().name, path
    if not _HUB_NAME.fullmatch(name) or ".." in name or "--" in name:
        raise HuggingFaceError(
            f"{name[:80]!r} is neither a folder nor a name on the hub; give a folder that exists, or owner/name "
            "of letters, digits, '.', '-' and '_', without '..'"
        )
    return name, None


def _fetch(repo: str, name: str) -> Path | None:
    """A file of a repository, from the user's cache or the hub; None: the repository has no such file."""
    try:
        return hub.fetch(repo, name, CONFIG)
    except hub.NotFetched as problem:
        raise HuggingFaceError(
            f"{repo} cannot be fetched: {problem}; give the folder of a model instead, or its name after downloading it"
        ) from None


def _read_config(name: str, file: Path) -> Any:
    transformers = transformers_library()
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise HuggingFaceError(f"{name}: {CONFIG} cannot be read: {first_line(error)}") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("model_type"), str):
        raise HuggingFaceError(f"{name}: {CONFIG} names no model_type, so it is no Hugging Face model")
    _refuse_foreign_code(name, plain)
    if plain["model_type"] not in transformers.CONFIG_MAPPING:
        needs = (
            "it brings code of its own, which is never run"
            if "auto_map" in plain
            else f"transformers {transformers.__version__} does not know it"
        )
        raise HuggingFaceError(f"{name} is of type {plain['model_type'][:60]!r}: {needs}")
    with quiet():
        try:
            config = transformers.AutoConfig.from_pretrained(
                file.parent, trust_remote_code=False, local_files_only=True
            )
        except Exception as error:
            raise HuggingFaceError(f"{name}: {CONFIG} cannot be used: {first_line(error)}") from None
    # How experts are computed is the machine's matter; what attention uses is said where a model is made.
    config._experts_implementation = None
    return config


def _refuse_foreign_code(name: str, value: Any, key: str = "") -> None:
    """Refuse configurations that name an attention or expert kernel of a repository, which would be remote code.

    ``key`` is the enclosing key about an implementation: below it there is one name per part of the model.
    """
    if isinstance(value, dict):
        for own, part in value.items():
            _refuse_foreign_code(name, part, key or (own if "implementation" in own else ""))
    elif isinstance(value, list):
        for part in value:
            _refuse_foreign_code(name, part, key)
    elif key and isinstance(value, str) and "/" in value:
        raise HuggingFaceError(f"{name}: {CONFIG} asks for code ({key} = {value[:60]!r}), which is never run")


def _auto_class(name: str, config: Any) -> Any:
    """The Auto class to use: text only where there is a choice, otherwise the one of the saved architecture."""
    transformers = transformers_library()
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT

    if (reason := NOT_TRACED.get(config.model_type)) is not None:
        raise HuggingFaceError(f"{name} is of type {config.model_type!r}, which cannot be traced: {reason}")
    kind, saved = config.model_type, (getattr(config, "architectures", None) or [None])[0]
    choices = [
        (CAUSAL.get(kind), transformers.AutoModelForCausalLM),
        (IMAGE_TEXT.get(kind), transformers.AutoModelForImageTextToText),
    ]
    for class_name, auto_class in choices:
        if class_name is not None and saved in (class_name if isinstance(class_name, tuple) else (class_name,)):
            return auto_class
    for class_name, auto_class in choices:
        if class_name is not None:
            return auto_class
    raise HuggingFaceError(
        f"{name} is of type {kind!r}, which predicts no next token of a text (an encoder, an encoder-decoder or a "
        "part of another model); give a causal language model"
    )
