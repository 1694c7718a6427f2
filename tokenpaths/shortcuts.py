"""One-call functions for notebooks and scripts: from a model or a log to an open run, and a widget that shows one.

The commands ``tokenpaths trace`` and ``tokenpaths import`` do the same with progress bars.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import data_dir, runs_dir
from tokenpaths.engine.store.ask.arguments import check_opened
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.settings_file import folder_setting

if TYPE_CHECKING:
    from tokenpaths.engine.data.datasets import Sample
    from tokenpaths.engine.tracing.traceable import Traceable
    from tokenpaths.frontend.notebook.explorer import Explorer


def trace(
    model: str | Path | Traceable,
    data: str | Path | Iterable[Any],
    *,
    run: str | None = None,
    folder: Path | str | None = None,
    limit: int | None = None,
    split: str | None = None,
    controls: Mapping[str, Any] | None = None,
    untrained: bool = False,
    twin: bool = True,
    device: str | None = None,
    overwrite: bool = False,
) -> Run:
    """Trace a model over data, seal the run and open it.

    Args:
        model: Name of a shipped or own checkpoint, its folder, or ``hf:`` and the name or folder of a Hugging Face
            mixture of experts. Or any object that meets ``engine.tracing.traceable.Traceable``: a model of your own.
        data: A data set as for ``tokenpaths trace --data`` (``bundled:scenes``, a folder, a file), or texts.
        run: Name of the run; by default from model, data and time.
        folder: Folder of run files; by default that of the data folder.
        limit: Maximum number of samples, balanced over the labels.
        split: Of a data set that has several, such as a saved ``DatasetDict``.
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
    from tokenpaths.engine.base.model_folders import models_folders
    from tokenpaths.engine.edits.sweep import with_counted_share
    from tokenpaths.engine.tracing.trace_run import TraceOptions, trace_samples
    from tokenpaths.engine.tracing.traceable import as_untrained

    _check_arguments(model, data, limit, controls)
    _check_kinds(str, run=run, split=split)
    _check_kinds((str, PathLike), folder=folder)
    twin = twin and not controls and not untrained
    loaded: Any = model
    if isinstance(model, str | Path):
        checkpoints_dir = folder_setting("huggingface_dir") or data_dir() / "models"
        found = find_traceable(model, models_folders(data_dir()), device, None, controls or None, checkpoints_dir)
        loaded = found.load()
        found.note_place(loaded, checkpoints_dir)
    if controls:
        loaded = loaded.with_controls(dict(controls))
    if untrained:
        loaded = as_untrained(loaded)
    samples, about = _samples(data, loaded.modality, limit, split)
    if getattr(loaded.controls, "ban_share", None) is not None:
        samples = list(samples)
        loaded = with_counted_share(loaded, samples)
    options = TraceOptions(run_id=run, overwrite=overwrite, twin=twin, **about)
    return Run.open(trace_samples(loaded, samples, runs_dir() if folder is None else Path(folder), options))


def _check_arguments(model: object, data: object, limit: object, controls: object) -> None:
    """Refuse values of ``trace`` of another kind in a sentence."""
    if not isinstance(model, str | Path) and not hasattr(model, "modality"):
        raise UserError(
            f"model is a {type(model).__name__}, it should be the name or the folder of a checkpoint, or an object "
            "that meets the protocol Traceable; other PyTorch models are recorded: tokenpaths.record(model)",
            field="model",
        )
    if not isinstance(data, Iterable | Path):
        raise UserError(f"data is {repr(data)[:60]}, it should be a data set by path, or texts", field="data")
    if isinstance(data, Mapping) or hasattr(data, "columns"):  # iterating over it gives the names of its columns
        raise UserError(
            f"data is a {type(data).__name__}, it should be a data set by path, or texts: give the column that holds "
            'them, such as data["text"]',
            field="data",
        )
    if limit is not None and (not isinstance(limit, Integral) or limit < 1):  # type: ignore[operator]
        raise UserError(f"limit is {repr(limit)[:60]}, it should be a whole number from 1 on", field="limit")
    if controls is not None and not isinstance(controls, Mapping):
        raise UserError(
            f"controls is {repr(controls)[:60]}, it should be a mapping such as "
            '{"edits": [{"edit": "ban", "modules": [3], "step": 1}]}',
            field="controls",
        )


def _check_kinds(kind: type | tuple[type, ...], **given: object) -> None:
    """Refuse arguments of another kind than ``kind`` in a sentence; None is an argument that was left out."""
    wanted = "a whole number" if kind is Integral else "a text" if kind is str else "a path"
    for name, value in given.items():
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            raise UserError(f"{name} is {repr(value)[:60]}, it should be {wanted}", field=name)


def _samples(
    data: str | Path | Iterable[Any], modality: Any, limit: int | None, split: str | None
) -> tuple[Iterable[Sample], dict[str, Any]]:
    """The samples, and the matching fields of ``TraceOptions``."""
    from tokenpaths.engine.data.datasets import Sample, open_dataset

    if isinstance(data, str | Path):
        dataset = open_dataset(data, modality, limit=limit, split=split)
        regions = dataset.regions if modality == "vision" else ()
        return dataset, {"dataset": dataset.name, "split": dataset.split, "regions": regions}
    if split is not None:
        raise UserError(f"split '{split}' is for data sets by path; data are samples already", field="split")
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
    sequences: int | None = None,
    column_map: Path | str | None = None,
    model: str | None = None,
    tokenizer: Path | str | None = None,
    overwrite: bool = False,
    skip_bad: bool = False,
    although: bool = False,
    series: str | None = None,
    at: int | None = None,
) -> Run:
    """Import a routing log (vLLM, SGLang, Megatron, npz, Parquet …) as a run and open it; see docs/import.md.

    Counts of tokens by expert become a run of loads. ``series`` and ``at``: the training, and its iteration.

    Raises:
        UserError: The log cannot be read, holds an artefact (import it all the same with ``although``), or the name is
            taken; no files are left behind.
    """
    from tokenpaths.engine.adapters.expert_runs import Series
    from tokenpaths.engine.adapters.logs import importing
    from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
    from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts
    from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts
    from tokenpaths.engine.store.ask.run_series import check_iteration, check_series_name
    from tokenpaths.engine.tracing.trace_run import new_run_id

    _check_kinds((str, PathLike), file=file, folder=folder, column_map=column_map, tokenizer=tokenizer)
    _check_kinds(str, run=run, format=format, model=model, series=series)
    _check_kinds(Integral, experts=experts, layers=layers, top_k=top_k, sequences=sequences, at=at)
    layers, top_k, experts = (None if number is None else int(number) for number in (layers, top_k, experts))
    sequences = None if sequences is None else int(sequences)  # NumPy's cross no border of processes
    if file is None:
        raise UserError("file is None, it should be the path of a log", field="file")
    place = runs_dir() if folder is None else Path(folder)
    if (series is None) != (at is None):
        raise UserError("series and at belong together: the name of the training, and its iteration", field="at")
    of = None if series is None else Series(check_series_name(series), check_iteration(at))
    try:
        log = open_confined_log(
            Path(file),
            format,
            layers=layers,
            top_k=top_k,
            experts=experts,
            sequences=sequences,
            skip_bad=skip_bad,
            column_map=None if column_map is None else Path(column_map),
            model=model,
        )
    except OnlyCounts as only:
        name = run or new_run_id(model or "load", Path(file).stem)
        counts = only.counts
        return Run.open(import_counts(counts, Path(file), place, name, model=model, overwrite=overwrite, series=of))
    texts = None if tokenizer is None else importing.read_vocabulary(Path(tokenizer))
    name = run or new_run_id(model or log.model or "log", Path(file).stem)
    options: dict[str, Any] = {"token_texts": texts, "overwrite": overwrite, "although": although, "series": of}
    return Run.open(importing.import_log(log, place, name, model=model, **options))


def explore(
    run: Run,
    *,
    sample: int = 0,
    token: int | None = None,
    through: str | None = None,
    tint: int | None = None,
    theme: str = "auto",
) -> Explorer:
    """A widget for notebooks (JupyterLab, marimo): a sample, its flow, and the path of a chosen token.

    A click on a token (of a text, or a patch of an image) lights its path in the flow, says its rank, share and
    compute, and shows the tokens of other samples on the same path; a click on a circle fades the tokens that do not
    go there. The arguments are traits of the widget, linked with Python: ``widget.token`` is the chosen token,
    ``widget.sample = 3`` shows another sample, ``widget.observe(function, "token")`` calls back. No server, no network.

    Args:
        run: An open run, as from ``tokenpaths.Run.open``.
        sample: Number of the sample shown first.
        token: The token chosen at first.
        through: ``step.module``; tokens that do not go there are faded.
        tint: Colour tokens by their module of this step; None: by the CDF of their path.
        theme: ``light`` or ``dark``; ``auto`` follows the notebook.

    Returns:
        The widget; its ``to_html()`` is the same picture as HTML that stands alone.

    Raises:
        UserError: anywidget is not installed, or there is no such sample, token or step.
    """
    try:
        from tokenpaths.frontend.notebook.explorer import Explorer, TraitError
    except ModuleNotFoundError as error:
        if error.name != "anywidget":
            raise
        raise UserError("explore() needs anywidget: pip install 'tokenpaths[notebook]'", field="run") from None
    check_opened(run, "run")
    traits = {"sample": sample, "token": token, "through": through, "tint": tint, "theme": theme}
    try:
        return Explorer(run, **{name: value for name, value in traits.items() if value is not None})
    except TraitError as error:
        raise UserError(str(error), field="run") from None
