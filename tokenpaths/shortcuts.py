"""One-call functions from a model or a log to an open run, for notebooks and scripts: ``tokenpaths.trace``.

The commands ``tokenpaths trace`` and ``tokenpaths import`` do the same with progress bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import data_dir, runs_dir
from tokenpaths.engine.store.ask.run import Run

if TYPE_CHECKING:
    from tokenpaths.engine.data.datasets import Sample


def trace(
    model: str | Path,
    data: str | Path | Iterable[Any],
    *,
    run: str | None = None,
    folder: Path | str | None = None,
    limit: int | None = None,
    controls: Mapping[str, Any] | None = None,
    untrained: bool = False,
    twin: bool = True,
    device: str | None = None,
    overwrite: bool = False,
) -> Run:
    """Trace a model over data, seal the run and open it.

    Args:
        model: Name of a shipped or own checkpoint, its folder, or ``hf:`` and the name or folder of a Hugging Face
            mixture of experts.
        data: A data set as for ``tokenpaths trace --data`` (``bundled:scenes``, a folder, a file), or texts.
        run: Name of the run; by default from model, data and time.
        folder: Folder of run files; by default that of the data folder.
        limit: Maximum number of samples, balanced over the labels.
        controls: Changes of the routes, for example ``{"edits": [{"edit": "ban", "modules": [3], "step": 1}]}``.
        untrained: Trace the untrained twin itself, as a run of its own.
        twin: Also count the paths of the untrained twin (not under controls, where it is no null model).
        device: Torch device; by default the best one available.
        overwrite: Replace a run of the same name.

    Returns:
        The sealed run, open.

    Raises:
        UserError: Model, data, controls or name are invalid; no files are left behind.
    """
    from tokenpaths.engine.adapters.find_traceable import find_traceable
    from tokenpaths.engine.edits.prepared import prepare
    from tokenpaths.engine.edits.sweep import usage_of, with_share
    from tokenpaths.engine.tracing.loaded_model import as_untrained, models_folders
    from tokenpaths.engine.tracing.trace_run import TraceOptions, trace_samples

    if untrained and str(model).startswith("hf:"):
        raise UserError("untrained is for models of this program, not for hf: models", field="untrained")
    twin = twin and not controls and not untrained
    found = find_traceable(model, models_folders(data_dir()), device, controls=controls or None)
    loaded: Any = found.load(twin)
    if controls:
        loaded = loaded.with_controls(dict(controls))
    if untrained:
        loaded = as_untrained(loaded)
    samples, about = _samples(data, found.modality, limit)
    if getattr(loaded.controls, "ban_share", None) is not None:
        samples = list(samples)
        loaded = with_share(loaded, usage_of(loaded, prepare(loaded, samples)))
    options = TraceOptions(run_id=run, overwrite=overwrite, twin=twin, **about)
    return Run.open(trace_samples(loaded, samples, runs_dir() if folder is None else Path(folder), options))


def _samples(
    data: str | Path | Iterable[Any], modality: Any, limit: int | None
) -> tuple[Iterable[Sample], dict[str, Any]]:
    """The samples, and the matching fields of ``TraceOptions``."""
    from tokenpaths.engine.data.datasets import Sample, open_dataset

    if isinstance(data, str | Path):
        dataset = open_dataset(data, modality, limit=limit)
        regions = dataset.regions if modality == "vision" else ()
        return dataset, {"dataset": dataset.name, "split": dataset.split, "regions": regions}
    if modality != "text":
        raise UserError("this model takes images: give a folder of images or a data set as data", field="data")
    texts = [
        text if isinstance(text, Sample) else Sample(None, _text(text), None, f"text {number}")
        for number, text in enumerate(islice(data, limit))
    ]
    return texts, {"dataset": "texts"}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise UserError(f"data holds a {type(value).__name__}, it should be texts or samples", field="data")
    return value


def import_log(
    file: Path | str,
    *,
    run: str | None = None,
    folder: Path | str | None = None,
    format: str | None = None,
    experts: int | None = None,
    layers: int | None = None,
    top_k: int | None = None,
    model: str | None = None,
    tokenizer: Path | str | None = None,
    overwrite: bool = False,
) -> Run:
    """Import a routing log (vLLM, SGLang, Megatron, npz, Parquet …) as a run and open it; see docs/import.md.

    Raises:
        UserError: The log cannot be read, or the name is taken; no files are left behind.
    """
    from tokenpaths.engine.adapters.logs import formats, importing
    from tokenpaths.engine.tracing.trace_run import new_run_id

    log = formats.open_log(Path(file), format, layers=layers, top_k=top_k, experts=experts)
    place = runs_dir() if folder is None else Path(folder)
    texts = None if tokenizer is None else importing.read_vocabulary(Path(tokenizer))
    name = run or new_run_id(model or log.model or "log", Path(file).stem)
    return Run.open(importing.import_log(log, place, name, model=model, token_texts=texts, overwrite=overwrite))
