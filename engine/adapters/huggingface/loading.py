"""Load a Hugging Face model and its tokenizer, and find its gates.

Reads safetensors only: unpickling may execute code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tokenpaths.engine.adapters.huggingface.config import INDEX, WEIGHTS
from tokenpaths.engine.adapters.huggingface.gates import find_gates
from tokenpaths.engine.adapters.huggingface.inspection import Source, refuse_adapter
from tokenpaths.engine.adapters.huggingface.library import HuggingFaceError, first_line, quiet, with_plain_attention
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel, TextTokens, forward
from tokenpaths.engine.base.device import pick_device
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.parent import ReaderPool
from tokenpaths.engine.data.confined_tokenizer import LIMITS, ConfinedTokenizer
from tokenpaths.engine.models.checkpoint import file_sha256

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
)
LONGEST_CONTEXT = 2048
"""longest window of a text in tokens, unless the model's own limit is lower"""
DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
TOKENIZERS = ReaderPool(
    "tokenpaths.engine.adapters.huggingface.tokenizer_child:answer",
    replace(LIMITS, seconds=90, without=("torch",)),
    "the tokenizer",
    "model",
)
"""they import transformers first, which would import torch and its compiler: two seconds and 180 MB that no tokenizer
needs"""
PARAMS_A_BYTE = 3
"""most parameters per byte of a checkpoint that are believed: weights of 4 bits are 2"""
INDEX_SUFFIX = ".safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")


def load(source: Source, device: str | None = None, dtype: str = "auto") -> HuggingFaceModel:
    """Load a model and its tokenizer, and find its gates by a probe pass over a few tokens.

    ``dtype`` auto keeps the checkpoint's own. With several GPUs and no ``device``, layers are distributed over them (if
    accelerate is installed).

    Raises:
        HuggingFaceError: pickled, missing or damaged weights, no fast tokenizer, NaN weights.
        UserError: the device does not exist, or no gate can be read.
    """
    check_options(device, dtype)
    place = _placement(device)
    files = _weight_files(source)
    refuse_adapter(source.name, files[0].parent)  # of the hub's cache, which a download by peft may have put there
    _refuse_unfolding(source, files)
    tokenizer = _tokenizer(source)
    model = _open(source, files[0].parent, DTYPES[dtype], place)
    _refuse_nan(source.name, model)
    inputs_device = model.get_input_embeddings().weight.device
    config = model.config.get_text_config()
    gates = find_gates(model, lambda: _probe(model, inputs_device), config)
    return HuggingFaceModel(
        name=source.name,
        model=model,
        tokenizer=tokenizer,
        gates=gates,
        sha256=weights_sha256(files),
        device=inputs_device,
        context=_context(config, len(tokenizer.before)),
        initialise=partial(_untrained, source),
    )


def check_options(device: str | None, dtype: str) -> None:
    """UserError if the device or number format does not exist."""
    if dtype not in DTYPES:
        raise UserError(f"{dtype[:40]!r} is no number format; give {', '.join(DTYPES)}", field="dtype")
    if device is not None:
        pick_device(device)


def _placement(device: str | None) -> dict[str, Any]:
    """``device_map`` over several GPUs, or the single device to move the model to."""
    if device is None and torch.cuda.device_count() > 1:
        from importlib.util import find_spec

        if find_spec("accelerate"):
            return {"device_map": "auto"}
    return {"device": pick_device(device)}


def _weight_files(source: Source) -> list[Path]:
    """The safetensors files of a model that transformers loads, fetched if necessary.

    In its order: what the configuration names, one file, an index of several. A folder may hold more than one of them,
    left from an earlier ``save_pretrained``.
    """
    named = getattr(source.config, "transformers_weights", None)
    if named is not None and (Path(str(named)).name != named or not named.endswith((".safetensors", INDEX_SUFFIX))):
        raise HuggingFaceError(
            f"{source.name}: transformers_weights of its configuration is {str(named)[:80]!r}, which is no safetensors "
            "file of it"
        )
    wanted = named or WEIGHTS
    file = source.file(wanted)
    if file is not None and not wanted.endswith(INDEX_SUFFIX):
        return [file]
    index = source.file(INDEX) if named is None else file
    if index is None:
        raise HuggingFaceError(f"{source.name} holds no {wanted}{_pickles_there(source)}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError, OSError):
        raise HuggingFaceError(f"{source.name}: {index.name} cannot be read: it should map names to files") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise HuggingFaceError(
                f"{source.name}: {index.name} names {str(name)[:80]!r}, which is no safetensors file"
            )
    files = [source.file(name) for name in names]
    if not files or None in files:
        missing = names[files.index(None)] if files else "no file"
        raise HuggingFaceError(f"{source.name}: {missing} is missing, {index.name} names it")
    return [file for file in files if file is not None]


def _refuse_unfolding(source: Source, files: Sequence[Path]) -> None:
    """Refuse a configuration of far more parameters than its files can hold: random numbers would fill the memory.

    Raises:
        HuggingFaceError: there are more than ``PARAMS_A_BYTE`` per byte.
    """
    with torch.device("meta"), quiet():
        shape = with_plain_attention(source.auto_class.from_config, source.config, trust_remote_code=False)
    number, size = sum(p.numel() for p in shape.parameters()), sum(file.stat().st_size for file in files)
    if number > PARAMS_A_BYTE * size + 100_000:
        raise HuggingFaceError(
            f"{source.name}: its configuration describes {number:,} parameters, and its files of {size:,} bytes cannot "
            "hold them"
        )


def _pickles_there(source: Source) -> str:
    if source.folder is None:
        return (
            " in your cache or on the hub: only safetensors are read, never a pickle; a model that was fetched in "
            "part needs the network once more"
        )
    found = sorted(p.name for p in source.folder.iterdir() if p.suffix in _PICKLES)
    if not found:
        return ", so there are no weights to load"
    return f", only {found[0]}: a pickle may run code when it is opened; save the model as safetensors"


def weights_sha256(files: Sequence[Path]) -> str:
    """SHA-256 of one file, or of the names and sums of several, in order of name."""
    if len(files) == 1:
        return file_sha256(files[0])
    together = hashlib.sha256()
    for file in sorted(files, key=lambda f: f.name):
        together.update(f"{file.name} {file_sha256(file)}\n".encode())
    return together.hexdigest()


def _tokenizer(source: Source) -> TextTokens:
    if source.folder is None:
        found = [path for name in TOKENIZER_FILES if (path := source.file(name))]
    else:
        found = [source.folder / name for name in TOKENIZER_FILES if (source.folder / name).is_file()]
    if not any(path.name not in ("tokenizer_config.json", "special_tokens_map.json") for path in found):
        raise HuggingFaceError(f"{source.name} holds no tokenizer (tokenizer.json), which is needed to read texts")
    try:
        tokenizer = ConfinedTokenizer(found[0].parent, TOKENIZERS, source.name, "model")
    except UserError as error:
        raise HuggingFaceError(str(error)) from None
    return TextTokens(tokenizer)


def _open(source: Source, folder: Path, dtype: Any, place: dict[str, Any]) -> Any:
    options = {
        "config": source.config,
        "dtype": dtype,
        "use_safetensors": True,
        "trust_remote_code": False,
        "local_files_only": True,
        "output_loading_info": True,
    }
    if "device_map" in place:
        options["device_map"] = place["device_map"]
    try:
        with quiet():
            model, info = with_plain_attention(source.auto_class.from_pretrained, folder, **options)
        if "device" in place:
            model = model.to(place["device"])
    except torch.OutOfMemoryError:
        raise HuggingFaceError(
            f"{source.name} does not fit into the memory of the device; try --dtype bfloat16, or --device cpu",
            field="device",
        ) from None
    except Exception as error:
        raise HuggingFaceError(f"{source.name} cannot be opened: {first_line(error)}") from None
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise HuggingFaceError(
            f"{source.name}: its files lack {len(missing)} of the model's weights, the first is {missing[0]}; "
            "random numbers would stand in for them"
        )
    return model.eval().requires_grad_(False)


@torch.no_grad()
def _refuse_nan(name: str, model: nn.Module) -> None:
    for key, parameter in model.named_parameters():
        if parameter.is_meta or not parameter.is_floating_point() or parameter.element_size() < 2:
            continue
        rows = parameter if parameter.dim() > 1 else parameter.view(1, -1)
        if not all(bool(torch.isfinite(row).all()) for row in rows.split(max(1, 2**26 // max(1, rows[0].numel())))):
            raise HuggingFaceError(f"{name}: {key} holds NaN or infinite values; the checkpoint is damaged")


@torch.inference_mode()
def _probe(model: Any, device: torch.device) -> None:
    """A few tokens for a probe pass through the gates."""
    rows = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(8, device=device).remainder(rows).view(1, -1)
    forward(model, ids, torch.ones_like(ids))


def _context(config: Any, before: int) -> int:
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
    return max(1, min(longest or LONGEST_CONTEXT, LONGEST_CONTEXT) - before)


def _untrained(source: Source, loaded: HuggingFaceModel, seed: int) -> HuggingFaceModel:
    """The same architecture at initialisation, with gates of its own.

    Raises:
        HuggingFaceError: there is no memory for it.
    """
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    try:
        with quiet():
            twin = with_plain_attention(
                source.auto_class.from_config, source.config, trust_remote_code=False, dtype=loaded.model.dtype
            )
        twin = twin.to(loaded.device).eval().requires_grad_(False)
    except torch.OutOfMemoryError:
        raise HuggingFaceError(
            f"the untrained twin of {loaded.name} does not fit into the memory of the device beside it",
            field="untrained",
        ) from None
    finally:
        torch.random.set_rng_state(state)
    gates = find_gates(twin, lambda: _probe(twin, loaded.device), twin.config.get_text_config())
    return replace(loaded, name=f"{loaded.name}-untrained", model=twin, gates=gates, sha256="")
