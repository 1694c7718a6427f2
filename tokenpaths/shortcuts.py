"""One call from a model or a log to an open run: what notebooks and scripts import as ``tokenpaths.trace``.

The commands ``tokenpaths trace`` and ``tokenpaths import`` say the same with progress bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import data_dir, runs_dir
from tokenpaths.engine.store.ask.run import Run


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

    Parameters
    ----------
    model
        A shipped or own checkpoint by name, the folder of one, or ``hf:`` and the name or folder of a Hugging Face
        mixture of experts.
    data
        What ``tokenpaths trace --data`` takes (``bundled:scenes``, a folder, a file), or texts.
    run, folder
        Name of the run, by default from model, data and time; folder of run files, by default that of the data folder.
    limit
        At most so many samples, even over the labels.
    controls
        What to change of the routes, for example ``{"edits": [{"edit": "ban", "modules": [3], "step": 1}]}``.
    untrained
        Trace the untrained twin itself, as a run of its own.
    twin
        Count the paths of the untrained twin beside (not under controls, where it is no null).

    Raises:
        UserError: model, data, controls or name make no sense; nothing is left behind.
    """
    from tokenpaths.engine.data.datasets import Sample, open_dataset

    place = runs_dir() if folder is None else Path(folder)
    writing: dict[str, Any] = {"run_id": run, "overwrite": overwrite}

    def samples(modality: Any) -> Iterable[Sample]:
        if isinstance(data, str | Path):
            found = open_dataset(data, modality, limit=limit)
            writing.update(dataset=found.name, split=found.split)
            if modality == "vision":
                writing.update(regions=found.regions)
            return found
        if modality != "text":
            raise UserError("this model takes images: give a folder of images or a data set as data", field="data")
        writing.update(dataset="texts")
        return [
            one if isinstance(one, Sample) else Sample(None, _text(one), None, f"text {number}")
            for number, one in enumerate(islice(data, limit))
        ]

    if isinstance(model, str) and model.startswith("hf:"):
        if untrained:
            raise UserError("untrained is for models of this program, not for hf: models", field="untrained")
        return Run.open(_trace_huggingface(model, samples("text"), place, controls, twin, device, writing))
    from tokenpaths.engine.tracing.trace_run import as_untrained, load_model, models_folders, trace_samples

    loaded = load_model(model, models_folders(data_dir()), device)
    if controls:
        loaded = loaded.with_controls(dict(controls))
    if untrained:
        loaded = as_untrained(loaded)
    found = samples(loaded.modality)
    return Run.open(trace_samples(loaded, found, place, twin=twin and not controls and not untrained, **writing))


def _trace_huggingface(
    model: str,
    samples: Iterable[Any],
    folder: Path,
    controls: Mapping[str, Any] | None,
    twin: bool,
    device: str | None,
    writing: Mapping[str, Any],
) -> Path:
    from tokenpaths.engine.adapters.huggingface.tracing import find_model, load, trace_texts
    from tokenpaths.engine.edits.expert_bans import edits_of, read_controls, trace_banned

    loaded = load(find_model(model), device, twin=twin and not controls)
    if not controls:
        return trace_texts(loaded, samples, folder, **writing)
    kept = list(samples)
    edits = edits_of(loaded, read_controls(controls), kept)
    return trace_banned(loaded, kept, folder, edits, **writing)


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
    """Make a run of a routing log (vLLM, SGLang, Megatron, npz, Parquet …) and open it; see docs/import.md.

    Raises:
        UserError: it is no log that can be read, or the name is taken; nothing is left behind.
    """
    from tokenpaths.engine.adapters.logs import formats, importing
    from tokenpaths.engine.tracing.trace_run import new_run_id

    log = formats.open_log(Path(file), format, layers=layers, top_k=top_k, experts=experts)
    place = runs_dir() if folder is None else Path(folder)
    texts = None if tokenizer is None else importing.read_vocabulary(Path(tokenizer))
    name = run or new_run_id(model or log.model or "log", Path(file).stem)
    return Run.open(importing.import_log(log, place, name, model=model, token_texts=texts, overwrite=overwrite))
