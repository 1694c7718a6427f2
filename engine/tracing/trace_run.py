"""Trace a model over a data set into a run: load, batch, run, record, write.

Shapes: B samples, T tokens each, S steps, K choices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tokenpaths.engine.base.device import pick_device
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import SHIPPED_MODELS, is_name
from tokenpaths.engine.base.progress import followed, reworded, sealed
from tokenpaths.engine.base.records import Modality, ModuleInfo, RunInfo
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.models.checkpoint import (
    WEIGHTS,
    Checkpoint,
    CheckpointError,
    build_model,
    file_sha256,
    read_checkpoint,
)
from tokenpaths.engine.models.family import Controls, RoutedModel, family_class
from tokenpaths.engine.store.write.shard_writer import ShardWriter
from tokenpaths.engine.store.write.writer import RunWriter
from tokenpaths.engine.tracing.trace_batches import image_batches, text_batches

MakeWriter = Callable[[RunInfo, Sequence[ModuleInfo]], RunWriter | ShardWriter]
"""what takes the batches of a trace: the writer of a run, or that of a shard"""


@dataclass
class LoadedModel:
    """A checkpoint on a device, ready to be traced."""

    name: str
    checkpoint: Checkpoint
    model: RoutedModel
    sha256: str
    tokenizer: TextTokenizer | None
    device: torch.device
    controls: Controls | None = None
    """changes of the model for this trace; None: as it was trained"""

    def with_controls(self, values: dict[str, Any] | None) -> LoadedModel:
        """The same model under controls given as plain values; raises UserError that names a bad one."""
        controls = self.model.read_controls(values)
        self.model.top_k_under(controls)  # refuses what does not fit this model, before anything runs
        return replace(self, controls=controls)

    @property
    def top_k(self) -> int:
        """K of the ribbons under these controls."""
        return self.model.top_k_under(self.controls or self.model.Controls())

    @property
    def modality(self) -> Modality:
        modality: Modality = self.checkpoint.config.modality
        return modality

    @property
    def classes(self) -> tuple[str, ...]:
        return self.checkpoint.classes


@dataclass(frozen=True)
class TraceProgress:
    """Samples done so far, of how many (None: unknown)."""

    samples: int
    total: int | None
    tokens: int
    sealing: str = ""
    """the stage of the sealing, once all are traced"""

    @property
    def words(self) -> str:
        """Beside the number of samples."""
        return self.sealing or f"{self.tokens:,} tokens"


def models_folders(data_dir: Path | None = None) -> list[Path]:
    """Where models are looked for: the user's own first, then the shipped ones."""
    return [*([data_dir / "models"] if data_dir else []), SHIPPED_MODELS]


def find_checkpoint(name: str | Path, folders: Iterable[Path]) -> Checkpoint:
    """A checkpoint by name, or by the path of its folder.

    Raises:
        CheckpointError: there is none of that name (the message lists those that exist), or it is broken.
    """
    folders = list(folders)
    if isinstance(name, Path) or "/" in str(name):
        if not Path(name).is_dir():
            raise CheckpointError(f"there is no checkpoint folder {name}", field="model")
        return read_checkpoint(Path(name))
    if is_name(str(name)):
        for folder in folders:
            if (folder / name).is_dir():
                return read_checkpoint(folder / name)
    known = ", ".join(row["model"] for row in list_models(folders)) or "none yet"
    raise CheckpointError(f"no model is called {name!r}; there are: {known}", field="model")


def list_models(folders: Iterable[Path]) -> list[dict[str, Any]]:
    """What each checkpoint folder says of itself; broken ones are listed with their problem."""
    rows: dict[str, dict[str, Any]] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.is_dir() and is_name(path.name) and path.name not in rows:
                rows[path.name] = _model_row(path, shipped=folder == SHIPPED_MODELS)
    return [rows[name] for name in sorted(rows)]


def _model_row(path: Path, shipped: bool) -> dict[str, Any]:
    empty = dict.fromkeys(("family", "modality", "num_params", "num_steps", "num_modules", "top_k"), None)
    row: dict[str, Any] = {"model": path.name, **empty, "validation": {}, "shipped": shipped, "problem": None}
    try:
        checkpoint = read_checkpoint(path)
        config = checkpoint.config
        with torch.device("meta"):
            num_params = sum(p.numel() for p in family_class(checkpoint.family)(config).parameters())
        problem = None if (path / WEIGHTS).is_file() else f"{WEIGHTS} is missing"
    except CheckpointError as error:
        return row | {"problem": str(error)}
    except Exception as error:  # one folder that nobody foresaw must not hide all the others
        return row | {"problem": f"{path.name}: cannot be read as a model ({type(error).__name__})"}
    return row | {
        "family": checkpoint.family,
        "modality": config.modality,
        "num_params": num_params,
        "num_steps": config.num_steps,
        "num_modules": config.num_modules,
        "top_k": config.top_k,
        "validation": checkpoint.validation,
        "problem": problem,
    }


def load_model(name: str | Path, folders: Iterable[Path], device: torch.device | str | None = None) -> LoadedModel:
    """Load a checkpoint by name or folder onto a device (chosen by itself unless given)."""
    checkpoint = find_checkpoint(name, folders)
    if not checkpoint.config.num_steps:
        raise UserError(f"{checkpoint.name} is dense: it has no routers, so there are no paths to trace", field="model")
    device = pick_device(str(device) if device else None)
    tokenizer = None
    if checkpoint.config.modality == "text":
        tokenizer = TextTokenizer.load(checkpoint.path / "tokenizer.json")
        if tokenizer.vocab_size != checkpoint.config.vocab_size:
            raise CheckpointError(
                f"{checkpoint.name}: the tokenizer has {tokenizer.vocab_size} entries, "
                f"the model {checkpoint.config.vocab_size}"
            )
    return LoadedModel(
        checkpoint.name,
        checkpoint,
        build_model(checkpoint, device),
        file_sha256(checkpoint.path / WEIGHTS),
        tokenizer,
        device,
    )


def untrained_twin(loaded: LoadedModel, seed: int = 0) -> RoutedModel:
    """The same architecture at initialisation, the null that every path statistic stands beside."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    twin = type(loaded.model)(loaded.checkpoint.config).to(loaded.device).eval().requires_grad_(False)
    torch.random.set_rng_state(state)
    return twin


def as_untrained(loaded: LoadedModel, seed: int = 0) -> LoadedModel:
    """The untrained twin as a model of its own, to be traced and set beside the trained one sample by sample.

    Raises:
        UserError: ``loaded`` is under controls; the twin is that of the model as it is.
    """
    if loaded.controls is not None and loaded.controls.given():
        raise UserError("an untrained twin has no edits; leave the controls out", field="untrained")
    blank = replace(loaded.checkpoint, validation={})
    return replace(
        loaded, name=f"{loaded.name}-untrained", checkpoint=blank, model=untrained_twin(loaded, seed), sha256=""
    )


def trace_samples(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    *,
    run_id: str | None = None,
    dataset: str = "upload",
    split: str = "",
    regions: tuple[str, ...] = (),
    batch_size: int = 64,
    total: int | None = None,
    display_side: int = 256,
    twin: bool = True,
    overwrite: bool = False,
    findings: dict[str, Any] | None = None,
    make_writer: MakeWriter | None = None,
    on_progress: Callable[[TraceProgress], None] = lambda p: None,
) -> Path:
    """Run every sample through the model and seal one run file; returns its path.

    An exception on the way (a cancel included) leaves no file behind. ``findings`` are kept in the run by name,
    beside what is known of the model. ``make_writer`` writes something else than a run: a shard, which may be empty.

    Raises:
        UserError: a sample cannot be traced, or the run id is taken.
    """
    parts = trace_parts(
        loaded,
        samples,
        runs_dir,
        run_id=run_id,
        dataset=dataset,
        split=split,
        regions=regions,
        batch_size=batch_size,
        total=total,
        display_side=display_side,
        twin=twin,
        overwrite=overwrite,
        findings=findings,
        make_writer=make_writer,
    )
    return followed(parts, on_progress)


def trace_parts(
    loaded: LoadedModel,
    samples: Iterable[Sample],
    runs_dir: Path,
    *,
    run_id: str | None = None,
    dataset: str = "upload",
    split: str = "",
    regions: tuple[str, ...] = (),
    batch_size: int = 64,
    total: int | None = None,
    display_side: int = 256,
    twin: bool = True,
    overwrite: bool = False,
    findings: dict[str, Any] | None = None,
    make_writer: MakeWriter | None = None,
) -> Generator[TraceProgress, None, Path]:
    """``trace_samples`` batch by batch, for callers that do other things in between: yields after each batch,
    returns the run's path. Closing it early (``close()``) leaves no file behind.
    """
    run_id = run_id or new_run_id(loaded.name, dataset)
    config = loaded.checkpoint.config
    info = RunInfo(
        run_id=run_id,
        model=loaded.name,
        family=loaded.checkpoint.family,
        modality=config.modality,
        dataset=dataset,
        split=split,
        num_steps=config.num_steps,
        num_modules=config.num_modules,
        top_k=loaded.top_k,
        weight_semantics=loaded.model.weight_semantics,
        config=json.loads(config.model_dump_json()) | _as_changed(loaded.controls),
        checkpoint_sha256=loaded.sha256,
        engine_version=engine_version(),
        regions=regions,
        axes=loaded.model.axis_names(),
        findings=_known(loaded) | (findings or {}),
        token_texts=loaded.tokenizer.token_texts if loaded.tokenizer else {},
        predicts_tokens=config.modality == "text",
    )
    make = image_batches if config.modality == "vision" else text_batches
    done = tokens = 0
    make_writer = make_writer or partial(RunWriter, runs_dir, overwrite=overwrite)
    with make_writer(info, loaded.model.module_table()) as writer:
        other = untrained_twin(loaded) if twin else None
        for batch, twin_ids in make(loaded, other, samples, batch_size, display_side):
            writer.write(batch)
            if twin_ids is not None:
                writer.write_twin(twin_ids)
            done += len(batch.samples)
            tokens += batch.num_tokens
            yield TraceProgress(done, total, tokens)
        if not done and isinstance(writer, RunWriter):
            raise UserError("the data set holds no sample, so there is nothing to trace", field="data")
        at = TraceProgress(done, total, tokens)
        return (yield from reworded(sealed(writer), lambda words: replace(at, sealing=words)))


def _known(loaded: LoadedModel) -> dict[str, Any]:
    """What the run should carry of the model: its validation numbers, and what its family adds."""
    texts = loaded.tokenizer.token_texts if loaded.tokenizer else {}
    validation = {"validation": loaded.checkpoint.validation} if loaded.checkpoint.validation else {}
    return validation | loaded.model.findings(texts)


def _as_changed(controls: Controls | None) -> dict[str, Any]:
    """The controls as a run's configuration keeps them: nothing when nothing was changed."""
    given = controls.given() if controls else {}
    return {"controls": json.loads(json.dumps(given))} if given else {}


def new_run_id(model: str, dataset: str) -> str:
    """A readable, unused-looking id: model, data set, time to the millisecond."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")[:-3]
    plain = [re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in (model, dataset)]
    return f"{plain[0][:24] or 'model'}-{plain[1][:16] or 'data'}-{stamp}"


def engine_version() -> str:
    try:
        return version("tokenpaths")
    except PackageNotFoundError:
        return "0+source"
