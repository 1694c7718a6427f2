"""Trace a Hugging Face mixture of experts over texts: open model and tokenizer, read its gates, write a run.

A model is ``hf:<folder>`` or ``hf:<name on the hub>``. What comes from its author is data, never code: safetensors
only, no remote code, no kernels that a configuration asks for. Files of the hub are kept in the user's own cache
and taken from there; ``HF_HUB_OFFLINE`` is honoured.

Shapes: B windows of T positions, n tokens, S steps, K slots, V vocabulary entries.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engine.adapters import hf_hub
from engine.adapters.experts import FAMILY
from engine.adapters.hf_gates import (
    Gate,
    GateRecorder,
    Recorded,
    common_semantics,
    find_gates,
    gate_candidates,
    module_table,
    no_router,
)
from engine.checkpoint import file_sha256
from engine.datasets import Sample
from engine.device import pick_device
from engine.errors import UserError
from engine.models.losses import token_losses
from engine.store.writer import RunWriter
from engine.tokenizer import Encoded
from engine.trace import ModuleInfo, RunInfo, SampleRecord, TraceBatch
from engine.tracing import TraceProgress, engine_version, new_run_id

PREFIX = "hf:"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model",
)  # fmt: skip
LONGEST_CONTEXT = 2048
"""texts are cut into windows of so many tokens, or of what the model can take, if that is less"""
TWIN_PARAMS = 50_000_000
"""an untrained twin is traced beside models of at most so many parameters"""
DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NOT_TRACED = {
    "diffusion_gemma": "it fills blocks of text by diffusion, so there is no next token whose loss could be kept",
    "doge": "its experts are rows of a table, picked by product keys inside the block: no gate gives ids or weights",
    "granite_docling": "its router weighs tiles of an image, it picks no experts",
    "nllb-moe": "it is an encoder-decoder, and an expert that is full drops tokens: what a token does depends on the "
                "rest of its batch",
    "openai_privacy_filter": "it labels tokens and predicts no next one",
    "qwen3_omni_moe": "as a whole it is opened by none of the classes for text; it takes and makes speech",
    "switch_transformers": "it is an encoder-decoder, and an expert that is full drops tokens: what a token does "
                           "depends on the rest of its batch",
    "vitpose_backbone": "its experts are picked by the name of the data set, not by a router",
}  # fmt: skip
"""routed architectures of transformers 5.23 that are refused, and why"""
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".msgpack", ".h5")


class HuggingFaceError(UserError):
    """A model that cannot be had, opened or traced."""

    def __init__(self, message: str, *, field: str = "model") -> None:
        super().__init__(message, field=field)


# What is there, before anything is loaded ---------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A model that exists and has a router, weights not loaded."""

    name: str
    """of the hub, or of the folder"""
    folder: Path | None
    """None: files come from the hub, by way of the user's cache"""
    config: Any
    """the model's own transformers configuration"""
    auto_class: Any
    """which of transformers' Auto classes opens it"""

    def file(self, name: str) -> Path | None:
        """Where ``name`` lies on this disk, fetched if need be; None: the model has no such file."""
        if self.folder is not None:
            path = self.folder / name
            return path if path.is_file() else None
        return _fetch(self.name, name)


def is_huggingface(model: str) -> bool:
    return model.startswith(PREFIX)


def find_model(model: str) -> Source:
    """Look at a model's configuration: everything that can be refused before its weights are read.

    Raises:
        HuggingFaceError: no such folder or repository, a name that is none, a model that needs its author's code,
            that makes no text, or that has no router.
    """
    name, folder = _place(model.removeprefix(PREFIX))
    bare = Source(name, folder, None, None)
    file = bare.file(CONFIG)
    if file is None:
        raise HuggingFaceError(f"{name} holds no {CONFIG}, so it is no Hugging Face model")
    config = _read_config(name, file)
    auto_class = _auto_class(name, config)
    with torch.device("meta"), _quiet():
        try:
            shape = auto_class.from_config(config, trust_remote_code=False)
        except Exception as error:  # a configuration can be wrong in as many ways as there are architectures
            raise HuggingFaceError(f"{name}: its {CONFIG} describes no model: {_first_line(error)}") from None
    if not gate_candidates(shape):
        raise no_router(shape, config)
    return Source(name, folder, config, auto_class)


def _place(name: str) -> tuple[str, Path | None]:
    """The name to show, and the folder, or None where it names a repository of the hub."""
    if not name:
        raise HuggingFaceError("hf: names no model; give hf:<folder> or hf:<name on the hub>")
    if "\0" not in name and len(name) < 4096 and (path := Path(name).expanduser()).is_dir():
        return path.resolve().name, path
    if not _HUB_NAME.fullmatch(name) or ".." in name or "--" in name:
        raise HuggingFaceError(
            f"{name[:80]!r} is neither a folder nor a name on the hub; give a folder that exists, or owner/name "
            "of letters, digits, '.', '-' and '_', without '..'"
        )  # fmt: skip
    return name, None


def _fetch(repo: str, name: str) -> Path | None:
    """A file of a repository from the user's cache, else from the hub; None: the repository has none of that name."""
    try:
        return hf_hub.fetch(repo, name, CONFIG)
    except hf_hub.NotFetched as problem:
        raise HuggingFaceError(f"{repo} cannot be fetched: {problem}; give the folder of a model instead, or its name "
                               "after downloading it") from None  # fmt: skip


def _read_config(name: str, file: Path) -> Any:
    transformers = _transformers()
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise HuggingFaceError(f"{name}: {CONFIG} cannot be read: {_first_line(error)}") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("model_type"), str):
        raise HuggingFaceError(f"{name}: {CONFIG} names no model_type, so it is no Hugging Face model")
    _refuse_foreign_code(name, plain)
    if plain["model_type"] not in transformers.CONFIG_MAPPING:
        needs = ("it brings code of its own, which is never run" if "auto_map" in plain
                 else f"transformers {transformers.__version__} does not know it")  # fmt: skip
        raise HuggingFaceError(f"{name} is of type {plain['model_type'][:60]!r}: {needs}")
    with _quiet():
        try:
            return transformers.AutoConfig.from_pretrained(file.parent, trust_remote_code=False, local_files_only=True)
        except Exception as error:
            raise HuggingFaceError(f"{name}: {CONFIG} cannot be used: {_first_line(error)}") from None


def _refuse_foreign_code(name: str, values: dict[str, Any]) -> None:
    """A configuration may name an attention or expert kernel of a repository: that would be code of its author."""
    for key, value in values.items():
        if isinstance(value, dict):
            _refuse_foreign_code(name, value)
        elif "implementation" in key and isinstance(value, str) and "/" in value:
            raise HuggingFaceError(f"{name}: {CONFIG} asks for code ({key} = {value[:60]!r}), which is never run")


def _auto_class(name: str, config: Any) -> Any:
    """Which Auto class fits: for text alone where there is a choice, but for what the checkpoint was saved as."""
    transformers = _transformers()
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL,
    )
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as IMAGE_TEXT,
    )

    if (reason := NOT_TRACED.get(config.model_type)) is not None:
        raise HuggingFaceError(f"{name} is of type {config.model_type!r}, which cannot be traced: {reason}")
    kind, saved = config.model_type, (getattr(config, "architectures", None) or [None])[0]
    choices = [(CAUSAL.get(kind), transformers.AutoModelForCausalLM),
               (IMAGE_TEXT.get(kind), transformers.AutoModelForImageTextToText)]  # fmt: skip
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


# Loading ------------------------------------------------------------------------------------------------------


@dataclass
class HuggingFaceModel:
    """A model with its gates found, ready to be traced."""

    name: str
    model: Any
    tokenizer: TextTokens
    gates: list[Gate]
    sha256: str
    device: torch.device
    """where inputs go"""
    context: int
    twin: Any = None
    """the same architecture with other, random weights; None where the model is large"""
    twin_gates: list[Gate] | None = None

    @property
    def modules(self) -> list[ModuleInfo]:
        return module_table(self.gates)


class TextTokens:
    """A fast tokenizer: ids with the characters that they stand for.

    What a tokenizer puts before a text (``<s>``) is given to the model before every window, and is no token of a
    run: it belongs to no text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a", add_special_tokens=True)["input_ids"]
        starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
        self.before: tuple[int, ...] = tuple(full[: starts[0]]) if starts and bare else ()

    def encode(self, text: str) -> Encoded:
        """Tokens of a text, without special ones; parts of one character share its span.

        Raises:
            UserError: the text holds lone surrogates, which no encoding can write down.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"the text holds a lone surrogate (U+{ord(text[error.start]):04X} at character {error.start}); only "
                "valid Unicode text can be traced", field="text",
            ) from None  # fmt: skip
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        spans = np.array(found["offset_mapping"], dtype=np.int32).reshape(-1, 2)
        return Encoded(np.array(found["input_ids"], dtype=np.int32), spans[:, 0], spans[:, 1])

    def token_texts(self) -> dict[int, str]:
        """Readable text of every vocabulary entry; bytes that are no character become U+FFFD."""
        number = len(self._tokenizer)
        texts = self._tokenizer.backend_tokenizer.decode_batch([[i] for i in range(number)], skip_special_tokens=False)
        return dict(enumerate(texts))


def load(source: Source, device: str | None = None, dtype: str = "auto", *, twin: bool = True) -> HuggingFaceModel:
    """Open a model and its tokenizer, and find its gates by sending a few tokens through.

    ``dtype`` auto keeps the checkpoint's own. Where several GPUs are there and ``device`` is not given, layers are
    spread over them (with accelerate installed).

    Raises:
        HuggingFaceError: pickled, missing or damaged weights, no fast tokenizer, NaN weights.
        UserError: there is no such device, or no gate can be read.
    """
    check_options(device, dtype)
    place = _placement(device)
    files = _weight_files(source)
    tokenizer = _tokenizer(source)
    model = _open(source, files[0].parent, DTYPES[dtype], place)
    _refuse_nan(source.name, model)
    inputs_device = model.get_input_embeddings().weight.device
    config = model.config.get_text_config()
    gates = find_gates(model, lambda: _probe(model, inputs_device), config)
    loaded = HuggingFaceModel(
        name=source.name, model=model, tokenizer=tokenizer, gates=gates, sha256=weights_sha256(files),
        device=inputs_device, context=_context(config, len(tokenizer.before)),
    )  # fmt: skip
    if twin and sum(p.numel() for p in model.parameters()) <= TWIN_PARAMS:
        loaded.twin = _untrained(source, model, inputs_device)
        loaded.twin_gates = find_gates(loaded.twin, lambda: _probe(loaded.twin, inputs_device), config)
    return loaded


def check_options(device: str | None, dtype: str) -> None:
    """UserError when there is no such device or number format."""
    if dtype not in DTYPES:
        raise UserError(f"{dtype[:40]!r} is no number format; give {', '.join(DTYPES)}", field="dtype")
    if device is not None:
        pick_device(device)


def _placement(device: str | None) -> dict[str, Any]:
    """``device_map`` over several GPUs, else the one device to move the model to."""
    if device is None and torch.cuda.device_count() > 1:
        from importlib.util import find_spec

        if find_spec("accelerate"):
            return {"device_map": "auto"}
    return {"device": pick_device(device)}


def _weight_files(source: Source) -> list[Path]:
    """The safetensors files of a model, fetched if need be."""
    index = source.file(INDEX)
    if index is None:
        single = source.file(WEIGHTS)
        if single is None:
            raise HuggingFaceError(f"{source.name} holds no {WEIGHTS}{_pickles_there(source)}")
        return [single]
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError, OSError):
        raise HuggingFaceError(f"{source.name}: {INDEX} cannot be read: it should map names to files") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise HuggingFaceError(f"{source.name}: {INDEX} names {str(name)[:80]!r}, which is no safetensors file")
    files = [source.file(name) for name in names]
    if not files or None in files:
        missing = names[files.index(None)] if files else "no file"
        raise HuggingFaceError(f"{source.name}: {missing} is missing, {INDEX} names it")
    return [file for file in files if file is not None]


def _pickles_there(source: Source) -> str:
    if source.folder is None:
        return (" in your cache or on the hub: only safetensors are read, never a pickle; a model that was fetched in "
                "part needs the network once more")  # fmt: skip
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
    with _quiet():
        try:
            tokenizer = _transformers().AutoTokenizer.from_pretrained(
                found[0].parent, trust_remote_code=False, local_files_only=True, use_fast=True
            )
        except Exception as error:
            raise HuggingFaceError(f"{source.name}: the tokenizer cannot be opened: {_first_line(error)}") from None
    if not getattr(tokenizer, "is_fast", False):
        raise HuggingFaceError(
            f"{source.name} has a slow tokenizer ({type(tokenizer).__name__}), which does not say which characters a "
            "token stands for; a tokenizer.json is needed"
        )
    return TextTokens(tokenizer)


def _open(source: Source, folder: Path, dtype: Any, place: dict[str, Any]) -> Any:
    options = {"config": source.config, "dtype": dtype, "use_safetensors": True, "trust_remote_code": False,
               "local_files_only": True, "output_loading_info": True}  # fmt: skip
    if "device_map" in place:
        options["device_map"] = place["device_map"]
    try:
        with _quiet():
            model, info = _from_pretrained(source.auto_class, folder, options)
        if "device" in place:
            model = model.to(place["device"])
    except torch.OutOfMemoryError:
        raise HuggingFaceError(f"{source.name} does not fit into the memory of the device; try --dtype bfloat16, or "
                               "--device cpu", field="device") from None  # fmt: skip
    except Exception as error:
        raise HuggingFaceError(f"{source.name} cannot be opened: {_first_line(error)}") from None
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise HuggingFaceError(
            f"{source.name}: its files lack {len(missing)} of the model's weights, the first is {missing[0]}; "
            "random numbers would stand in for them"
        )
    return model.eval().requires_grad_(False)


def _from_pretrained(auto_class: Any, folder: Path, options: dict[str, Any]) -> Any:
    """With torch's own attention where the architecture can, else its plain one: never what a configuration names."""
    try:
        return auto_class.from_pretrained(folder, attn_implementation="sdpa", **options)
    except ValueError as error:
        if "scaled_dot_product_attention" not in str(error):
            raise
        return auto_class.from_pretrained(folder, attn_implementation="eager", **options)


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
    """A few tokens, so that the gates speak."""
    rows = model.get_input_embeddings().weight.shape[0]
    ids = torch.arange(8, device=device).remainder(rows).view(1, -1)
    _forward(model, ids, torch.ones_like(ids))


def _context(config: Any, before: int) -> int:
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
    return max(1, min(longest or LONGEST_CONTEXT, LONGEST_CONTEXT) - before)


def _untrained(source: Source, model: Any, device: torch.device) -> Any:
    """The same architecture at initialisation, the null that every path statistic stands beside."""
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    try:
        with _quiet():
            twin = source.auto_class.from_config(source.config, trust_remote_code=False, dtype=model.dtype)
    finally:
        torch.random.set_rng_state(state)
    return twin.to(device).eval().requires_grad_(False)


# Tracing ------------------------------------------------------------------------------------------------------


def trace_texts(
    loaded: HuggingFaceModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    *,
    run_id: str | None = None,
    dataset: str = "upload",
    split: str = "",
    batch_size: int = 64,
    total: int | None = None,
    overwrite: bool = False,
    on_progress: Callable[[TraceProgress], None] = lambda p: None,
) -> Path:
    """Run every text through the model and seal one run file; returns its path.

    ``batch_size`` counts stretches of 64 tokens. An exception on the way (a cancel included) leaves no file behind.

    Raises:
        UserError: a sample cannot be traced, a gate gave NaN, or the run id is taken.
    """
    run_id = run_id or new_run_id(loaded.name.rsplit("/", 1)[-1], dataset)
    info = run_info(loaded, run_id, dataset, split)
    done = tokens = 0
    with RunWriter(runs_dir, info, loaded.modules, overwrite=overwrite) as writer:
        for batch, twin_ids in text_batches(loaded, samples, batch_size * 64):
            writer.write(batch)
            if twin_ids is not None:
                writer.write_twin(twin_ids)
            done += len(batch.samples)
            tokens += batch.num_tokens
            on_progress(TraceProgress(done, total, tokens))
        if not done:
            raise UserError("the data set holds no sample, so there is nothing to trace", field="data")
        return writer.seal()


def run_info(loaded: HuggingFaceModel, run_id: str, dataset: str, split: str = "") -> RunInfo:
    """The row of table ``run``."""
    config = json.loads(loaded.model.config.to_json_string(use_diff=False))
    about = {"transformers": _transformers().__version__, "dtype": str(loaded.model.dtype).removeprefix("torch."),
             "layers": [gate.name for gate in loaded.gates]}  # fmt: skip
    return RunInfo(
        run_id=run_id, model=loaded.name, family=FAMILY, modality="text", dataset=dataset, split=split,
        num_steps=len(loaded.gates), num_modules=max(gate.num_choices for gate in loaded.gates),
        top_k=loaded.gates[0].top_k, weight_semantics=common_semantics(loaded.gates).as_json(),
        config=_finite({"huggingface": about} | config), checkpoint_sha256=loaded.sha256,
        engine_version=engine_version(), token_texts=loaded.tokenizer.token_texts(), predicts_tokens=True,
    )  # fmt: skip


def _finite(value: Any) -> Any:
    """JSON has no infinity: configurations write it in places (``time_step_limit``)."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


@dataclass(frozen=True)
class _Window:
    """A stretch of one text that fits the context."""

    ids: np.ndarray
    next_id: int | None
    """the token behind it, None at the end of the text"""


def text_batches(loaded: HuggingFaceModel, samples: Iterable[Sample], budget: int
                 ) -> Iterator[tuple[TraceBatch, np.ndarray | None]]:  # fmt: skip
    """Texts are cut into windows of the model's context; windows of like length share a forward pass.

    ``budget`` tokens, padding counted, go through the model at once (or one window, if that is longer).
    """
    part: list[tuple[Sample, Encoded]] = []
    held = 0
    known = loaded.model.get_input_embeddings().weight.shape[0]
    for sample in samples:
        if sample.text is None:
            raise UserError(f"{sample.source or 'the sample'} is an image; this model takes texts", field="text")
        encoded = loaded.tokenizer.encode(sample.text)
        if not len(encoded.ids):
            raise UserError(f"{sample.source or 'the text'} is empty; a text needs at least one character",
                            field="text")  # fmt: skip
        if (highest := int(encoded.ids.max())) >= known:
            raise HuggingFaceError(f"{loaded.name}: the tokenizer gave id {highest}, the model knows {known} tokens")
        part.append((sample, encoded))
        held += len(encoded.ids)
        if held >= budget:
            yield _batch(loaded, part, budget)
            part, held = [], 0
    if part:
        yield _batch(loaded, part, budget)


def _batch(loaded: HuggingFaceModel, part: list[tuple[Sample, Encoded]], budget: int
           ) -> tuple[TraceBatch, np.ndarray | None]:  # fmt: skip
    windows = [window for _, encoded in part for window in _windows(encoded.ids, loaded.context)]
    first = np.cumsum([0, *(len(window.ids) for window in windows)])
    n = int(first[-1])
    steps, slots = len(loaded.gates), loaded.gates[0].top_k
    ids = np.empty((n, steps, slots), dtype=np.int32)
    weights = np.empty((n, steps, slots), dtype=np.float32)
    entropy = np.empty((n, steps), dtype=np.float32)
    loss, predicted = np.empty(n, dtype=np.float32), np.empty(n, dtype=np.int32)
    twin_ids = np.empty_like(ids) if loaded.twin is not None else None
    for chosen in _alike(windows, budget, len(loaded.tokenizer.before)):
        # Where the tokens of these windows, one after the other, stand in the batch.
        places = np.concatenate([np.arange(first[i], first[i + 1]) for i in chosen])
        inputs, attended, keep, targets = _padded([windows[i] for i in chosen], loaded.tokenizer.before)
        recorded, loss[places], predicted[places] = _predicting(loaded, inputs, attended, keep, targets)
        ids[places], weights[places] = recorded.ids.numpy(), recorded.weights.numpy()
        entropy[places] = recorded.gate_entropy.numpy()
        if twin_ids is not None:
            twin_ids[places] = _decisions(loaded.twin, loaded.twin_gates or [], loaded.device, inputs, attended, keep
                                          )[0].ids.numpy()  # fmt: skip
    batch = TraceBatch(
        samples=_records(part, loss), module_ids=ids, weights=weights, gate_entropy=entropy,
        flops=_flops(loaded.modules, ids), loss=loss, token_id=np.concatenate([e.ids for _, e in part]),
        char_start=np.concatenate([e.start for _, e in part]), char_end=np.concatenate([e.end for _, e in part]),
        predicted_id=predicted,
    )  # fmt: skip
    return batch, twin_ids


def _windows(ids: np.ndarray, context: int) -> list[_Window]:
    return [_Window(ids[s : s + context], int(ids[s + context]) if s + context < len(ids) else None)
            for s in range(0, len(ids), context)]  # fmt: skip


def _alike(windows: list[_Window], budget: int, before: int) -> Iterator[list[int]]:
    """Numbers of windows for one pass each: neighbours in length, so that little is padding."""
    part: list[int] = []
    for i in sorted(range(len(windows)), key=lambda i: len(windows[i].ids)):
        if part and (len(windows[i].ids) + before) * (len(part) + 1) > budget:
            yield part
            part = []
        part.append(i)
    yield part


def _padded(windows: list[_Window], before: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, what is no padding, what is a token of a text, and targets (−100 where there is none), each (B, T).

    Padding stands behind the text, where a causal model's real tokens never look.
    """
    p = len(before)
    shape = (len(windows), p + max(len(w.ids) for w in windows))
    inputs, targets = torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
    attended, keep = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for i, window in enumerate(windows):
        end = p + len(window.ids)
        ids = torch.from_numpy(window.ids).long()
        inputs[i, :p], inputs[i, p:end] = torch.tensor(before, dtype=torch.long), ids
        attended[i, :end], keep[i, p:end] = 1, True
        targets[i, p : end - 1] = ids[1:]
        if window.next_id is not None:
            targets[i, end - 1] = window.next_id
    return inputs, attended, keep, targets


def run_windows(
    loaded: HuggingFaceModel, inputs: Tensor, attended: Tensor, keep: Tensor, targets: Tensor
) -> tuple[Recorded, np.ndarray]:
    """Decisions and losses of the tokens that ``keep`` marks, window after window; losses are NaN without a target."""
    return _predicting(loaded, inputs, attended, keep, targets)[:2]


def _predicting(
    loaded: HuggingFaceModel, inputs: Tensor, attended: Tensor, keep: Tensor, targets: Tensor
) -> tuple[Recorded, np.ndarray, np.ndarray]:
    """What ``run_windows`` gives, and the token that the model thinks likeliest to follow each."""
    recorded, logits = _decisions(loaded.model, loaded.gates, loaded.device, inputs, attended, keep)
    losses, predicted = [], []
    for row, target, real in zip(logits, targets, keep, strict=True):  # a window at a time, for the sake of memory
        known = target[real].to(row.device)
        own = row[real.to(row.device)]
        predicted.append(own.argmax(dim=-1).cpu())
        loss = token_losses(own, known.clamp(min=0))
        losses.append(loss.masked_fill(known < 0, float("nan")).cpu())
    return recorded, torch.cat(losses).numpy(), torch.cat(predicted).numpy()


@torch.inference_mode()
def _decisions(model: Any, gates: list[Gate], device: torch.device, inputs: Tensor, attended: Tensor, keep: Tensor
               ) -> tuple[Recorded, Tensor]:  # fmt: skip
    with GateRecorder(gates) as recorder:
        logits = _forward(model, inputs.to(device), attended.to(device))
        return recorder.take(keep.flatten()), logits


def _forward(model: Any, inputs: Tensor, attended: Tensor) -> Tensor:
    """Logits of one pass.

    Raises:
        HuggingFaceError: the model's own code gave up: memory, a kernel that is not installed, a text that holds the
            placeholder of an image.
    """
    try:
        return model(input_ids=inputs, attention_mask=attended, use_cache=False).logits
    except torch.OutOfMemoryError:
        raise HuggingFaceError("there is not enough memory for a batch; give a smaller --batch-size, or --dtype "
                               "bfloat16", field="batch_size") from None  # fmt: skip
    except Exception as error:
        raise HuggingFaceError(f"{type(model).__name__} gave up: {_first_line(error)}") from error


def _flops(modules: Sequence[ModuleInfo], ids: np.ndarray) -> np.ndarray:
    """What the visited experts spent on each token."""
    table = np.zeros((ids.shape[1], max(m.module for m in modules) + 1))
    for module in modules:
        table[module.step, module.module] = module.flops_per_token
    return table[np.arange(ids.shape[1])[None, :, None], ids].sum(axis=(1, 2))


def _records(part: list[tuple[Sample, Encoded]], loss: np.ndarray) -> list[SampleRecord]:
    records, start = [], 0
    for sample, encoded in part:
        own = loss[start : start + len(encoded.ids)]
        start += len(encoded.ids)
        known = own[np.isfinite(own)]
        records.append(
            SampleRecord(
                num_tokens=len(encoded.ids), label=sample.label, text=sample.text, source=sample.source,
                loss=float(known.mean()) if len(known) else None,
            )
        )  # fmt: skip
    return records


# The library --------------------------------------------------------------------------------------------------


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise HuggingFaceError('transformers is not installed; run pip install "tokenpaths[huggingface]"') from None
    return transformers


class _quiet:
    """No bars and no warnings of the library for a while: what matters is said in a sentence of our own."""

    def __enter__(self) -> None:
        from transformers.utils import logging

        self._level, self._bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity(logging.CRITICAL)
        logging.disable_progress_bar()

    def __exit__(self, *error: object) -> None:
        from transformers.utils import logging

        logging.set_verbosity(self._level)
        if self._bars:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    """The beginning of a message of some library, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__
