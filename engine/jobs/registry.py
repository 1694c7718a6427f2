"""Interface and registry of job kinds: long jobs run in slices of about a second and survive ``kill -9``.

A kind of job is a class with a name, a request and a life cycle:

    class CountJob:
        kind = "count"
        Request = CountRequest                      # a pydantic model, extra="forbid"
        def check(request, context): ...            # static or class method; before it is queued, without a model
        def start(cls, request, folder, context)    # class method; resumes from the state in the folder
        def advance(self) -> Progress: ...
        def close(self) -> None: ...

The runner calls ``start`` once, ``advance`` until ``finished``, and finally ``close``, whatever the outcome. The
module of a kind is imported by processes that have no model and need no torch: import torch inside ``start``, not
at the top of the module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable
from unicodedata import normalize

from pydantic import BaseModel

from tokenpaths.engine.base.errors import NotEnoughMemory, NotOpenedNow, UserError
from tokenpaths.engine.base.files import is_name, write_atomically
from tokenpaths.engine.base.model_folders import model_folder, read_model_config, subfolders
from tokenpaths.engine.base.plugins import PluginRegistry
from tokenpaths.engine.base.validation import field_path, fields_beside, in_words

if TYPE_CHECKING:
    from tokenpaths.engine.jobs.model_outline import ExpertsOutline, FamilyOutline
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.store.intake.gate import RunGate
    from tokenpaths.engine.tracing.traceable import Traceable

ARTIFACTS = "artifacts"
BUNDLED_PREFIX = "bundled:"
"""begins the name of a data set that is part of the program"""
ARTIFACT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\.(png|webp|svg|json|jsonl|csv|txt|md|parquet|arrow)$"
MOST_NAME = 200
"""characters of the name of a file or pattern in the inbox"""
MOST_REPEATED = 64
"""iterations that a killed job may repeat: kinds that count iterations save their state at least this often"""

KINDS: dict[str, str] = {
    "trace": "tokenpaths.engine.jobs.traces.trace:TraceJob",
    "dream": "tokenpaths.engine.jobs.dream:DreamJob",
    "reroute": "tokenpaths.engine.jobs.reroute:RerouteJob",
    "import": "tokenpaths.engine.jobs.import_log:ImportJob",
    "map": "tokenpaths.engine.jobs.map_samples:MapJob",
    "gates": "tokenpaths.engine.jobs.gates.gates_job:GatesJob",
    "attention": "tokenpaths.engine.jobs.attention:AttentionJob",
    "twin": "tokenpaths.engine.jobs.traces.trace_twin:TwinJob",
}
"""name of a kind → its class; imported only when a job of the kind is requested"""
SHIPPED_KINDS = tuple(KINDS)
"""without the kinds that a program registers: those named in the API's description"""
BACKGROUND_KINDS = ("twin",)
"""kinds whose jobs wait until no job of another kind does"""


@dataclass(frozen=True)
class Progress:
    """Progress of a job."""

    done: int
    """units done since the job was first started, including earlier processes"""
    total: int | None
    """total number of units; None if unknown"""
    unit: str
    """what is counted, in the plural: ``iterations``, ``samples``, ``tokens``, ``edits``. The queue treats a change of
    unit as progress, so a job must not return to an earlier unit, even after a restart"""
    message: str = ""
    """one short sentence for the user: the current activity"""
    finished: bool = False
    result: dict[str, Any] = field(default_factory=dict)
    """plain JSON, small; read when ``finished``. ``{"run": name}`` if the job made a run"""
    following: tuple[tuple[str, dict[str, Any]], ...] = ()
    """kind and request of jobs to be queued behind this one; read when ``finished``. A killed job may queue them twice
    """


@dataclass(frozen=True)
class JobContext:
    """Resources available to a job."""

    data_dir: Path
    models_dirs: tuple[Path, ...] = ()
    """folders searched for models; the first match wins"""
    loader: Callable[[str], Traceable] | None = None
    """loader of models, Hugging Face checkpoints (``hf:<folder>``) included; None in a process without models"""
    huggingface_dir: Path | None = None
    """folder of the Hugging Face checkpoints that jobs may name (``hf:<folder>``); None if not configured"""
    gate: RunGate | None = None
    """which file to open for a run; None: the run file itself, whoever made it"""

    @property
    def runs_dir(self) -> Path:
        """Folder of the run files."""
        return self.data_dir / "runs"

    @property
    def inbox_dir(self) -> Path:
        """Folder of input files for jobs; requests name files in it, never paths."""
        return self.data_dir / "inbox"

    def load_model(self, name: str) -> Traceable:
        """Load a model by name, or the checkpoint ``hf:<folder>``, shared by all jobs of this process.

        Raises:
            UserError: there is none of that name, or it is broken (``field`` is ``model``).
        """
        if self.loader is None:
            raise UserError("This process loads no models; a worker does.", field="model")
        return self.loader(name)

    def outline(self, model: str) -> FamilyOutline | ExpertsOutline:
        """What the configuration of a model tells; its weights are not read.

        Raises:
            UserError: there is none of that name, or its configuration cannot be used (``field`` is ``model``).
        """
        from tokenpaths.engine.adapters.huggingface import config as huggingface
        from tokenpaths.engine.jobs.model_outline import ExpertsOutline, FamilyOutline

        if not huggingface.is_huggingface(model):
            return FamilyOutline(model, self.model_config(model))
        folder = huggingface.checkpoint_folder(self.huggingface_dir, model)
        return ExpertsOutline(model, huggingface.layout_of(huggingface.read_config(folder)))

    def model_dir(self, name: str) -> Path:
        """The checkpoint folder of a model, not read; UserError with the closest name if there is none."""
        if (folder := model_folder(name, self.models_dirs)) is not None:
            return folder
        names = {entry.name for folder in self.models_dirs for entry in subfolders(folder) if is_name(entry.name)}
        raise UserError(f"There is no model {name[:80]!r}; {_nearest(name, names)}", field="model")

    def model_config(self, name: str) -> dict[str, Any]:
        """``config.json`` of a model, for checks that need no weights (UserError if unreadable)."""
        folder = self.model_dir(name)
        try:
            return read_model_config(folder)
        except FileNotFoundError:
            raise UserError(f"The folder of the model {name} has no config.json.", field="model") from None
        except (OSError, ValueError) as error:
            why = (error.strerror if isinstance(error, OSError) else None) or str(error)[:120]
            raise UserError(f"config.json of the model {name} cannot be read: {why}.", field="model") from None

    def open_run(self, run_id: str) -> Run:
        """Open a run read-only; the caller closes it (``with``). UserError (``run``) if it does not exist."""
        from tokenpaths.engine.base.files import run_file
        from tokenpaths.engine.store.ask.run import Run

        file = run_file(self.runs_dir, run_id)
        if not file.is_file():
            names = {found.stem for found in self.runs_dir.glob("*.duckdb") if is_name(found.stem) and found.is_file()}
            raise UserError(f"There is no run {run_id[:80]!r}; {_nearest(run_id, names)}", field="run")
        try:
            return Run.open(file if self.gate is None else self.gate.passage(file))
        except NotEnoughMemory as error:
            raise NotOpenedNow(str(error), field="run") from error
        except UserError as error:
            error.field = "run"
            raise

    def check_data(self, data: str, modality: Any) -> None:
        """Refuse a file that is not in the inbox, and a bundled set of another modality (``field`` is ``data``)."""
        from tokenpaths.engine.data.datasets import BUNDLED

        if not data.startswith(BUNDLED_PREFIX):
            self.data_source(data)
        elif BUNDLED.get(data) != modality:
            fitting = ", ".join(name for name, kind in BUNDLED.items() if modality in (kind, None))
            raise UserError(f"{data[:80]!r} is nothing for this model; there are {fitting}.", field="data")

    def data_source(self, data: str) -> str | Path:
        """The data of a request for ``open_dataset``: the name of a bundled set, or a path or pattern in the inbox."""
        from tokenpaths.engine.data.sources.shard_names import shard_names

        if data.startswith(BUNDLED_PREFIX):
            return data
        is_pattern = len(data) <= MOST_NAME and not (self.inbox_dir / data).exists()
        shards = shard_names(data) if is_pattern else []
        for name in shards:
            self.inbox_file(name, field="data")
        return self.inbox_dir / data if shards else self.inbox_file(data, field="data")

    def inbox_file(self, name: str, *, field: str) -> Path:
        """A file or folder of the inbox by its plain name; UserError for paths, links out of it and missing files."""
        if not name.strip():
            raise UserError(f"Write the name of a file or folder of {self.inbox_dir}.", field=field)
        odd = name.startswith(".") or len(name) > MOST_NAME or any(c in "/\\:\0" or ord(c) < 32 for c in name)
        if odd:
            raise UserError(
                f"{name[:80]!r} is no name of a file in the inbox: give the name alone, without a folder.", field=field
            )
        names = {entry.name for entry in self.inbox_dir.iterdir()} if self.inbox_dir.is_dir() else set()
        if name not in names:  # macOS writes an umlaut as two characters, browsers as one: they look the same
            plain = normalize("NFC", name)
            name = next((there for there in sorted(names) if normalize("NFC", there) == plain), name)
        file = self.inbox_dir / name
        if name not in names:
            raise UserError(f"There is no {name!r} in {self.inbox_dir}; {_nearest(name, names)}", field=field)
        if not file.resolve().is_relative_to(self.inbox_dir.resolve()):
            raise UserError(f"{name!r} is a link that leads out of the inbox; copy the file there.", field=field)
        if not (file.is_file() or file.is_dir()):  # opening a pipe would keep the worker waiting for a writer
            raise UserError(f"{name!r} is neither a file nor a folder; put the data itself there.", field=field)
        return file


@runtime_checkable
class LongJob(Protocol):
    """A running job; used by one thread at a time."""

    def advance(self) -> Progress:
        """Do at most about one second of work.

        Raises:
            UserError: the job fails with this message.
            OSError: a full disk (ENOSPC, EDQUOT) pauses the job: it is closed, and started again on the same folder
                when space is available. Let the exception through. Any other exception fails the job.
        """
        ...

    def close(self) -> None:
        """Release files and memory, leaving a folder that ``start`` can resume from. Called once, after any outcome."""
        ...


@runtime_checkable
class JobKind(Protocol):
    """A class of jobs; usually its instances are the jobs."""

    kind: ClassVar[str]
    Request: ClassVar[type[BaseModel]]

    @staticmethod
    def check(request: Any, context: JobContext) -> None:
        """Refuse invalid requests before they are queued (UserError with ``field``); loads no model. May do nothing."""
        ...

    @staticmethod
    def start(request: Any, folder: Path, context: JobContext) -> LongJob:
        """Start in an empty folder, or resume from saved state. May be a class method.

        State that must survive is written into ``folder`` by temp + rename
        (``tokenpaths.engine.base.files.write_atomically``). ``folder`` exists; artifacts go into ``folder/artifacts``
        (``write_artifact``).

        Raises:
            UserError: the request cannot be met, for example the model does not have that step. The job fails with this
                message.
        """
        ...


def _check_plugin(name: str, value: Any) -> JobKind:
    request = getattr(value, "Request", None)
    wanted = {
        f"kind = {name!r}": getattr(value, "kind", None) == name,
        "Request, a pydantic model": isinstance(request, type) and issubclass(request, BaseModel),
        "check(request, context)": callable(getattr(value, "check", None)),
        "start(request, folder, context)": callable(getattr(value, "start", None)),
    }
    missing = [part for part, is_there in wanted.items() if not is_there]
    if missing:
        raise UserError(f"it lacks {'; '.join(missing)}")
    found: JobKind = value
    return found


_TAKEN: dict[str, Any] = dict.fromkeys(SHIPPED_KINDS)
PLUGIN_KINDS: PluginRegistry[JobKind] = PluginRegistry("tokenpaths.jobs", "kind of job", _TAKEN, _check_plugin)
"""kinds that installed packages add (``docs/extending.md``)"""


def register(name: str, target: str) -> None:
    """Register a kind in this process: ``target`` is ``module:Class``. For programs that start API and worker
    themselves; ``tokenpaths up`` starts processes of its own, which know kinds of entry points only."""
    if not is_name(name) or target.count(":") != 1:
        raise UserError(f"{name!r} → {target!r} is no kind of job; give a name and `module:Class`.", field="kind")
    KINDS[name] = target


def known_kinds() -> list[str]:
    """Names of the kinds whose code is installed."""
    own = [name for name, target in KINDS.items() if _is_there(target.partition(":")[0])]
    return [*own, *(name for name in PLUGIN_KINDS.plugin_names() if name not in KINDS)]


def kinds_in_words() -> str:
    """The shipped kinds as an enumeration in backticks, with “or” before the last."""
    *others, last = (f"`{name}`" for name in SHIPPED_KINDS)
    return f"{', '.join(others)} or {last}"


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False


def find_kind(name: str) -> JobKind:
    """The class of a kind.

    Raises:
        UserError: there is none (with the closest name), or it is a plugin's that cannot be used.
    """
    known = known_kinds()
    if name not in known:
        raise UserError(f"There is no kind of job {name[:80]!r}; {_nearest(name, known)}", field="kind")
    if name not in KINDS:
        return PLUGIN_KINDS[name]
    module, _, attribute = KINDS[name].partition(":")
    found: JobKind = getattr(import_module(module), attribute)
    return found


def read_request(kind: JobKind, values: object) -> BaseModel:
    """Validate ``values`` as the kind's request.

    Raises:
        UserError: names the first invalid field (``field``: dotted where nested), its value and what is allowed.
    """
    from pydantic import ValidationError

    if not isinstance(values, dict):
        raise UserError(
            f"The request of a {kind.kind} job is a JSON object, not {type(values).__name__}.", field="request"
        )
    try:
        return kind.Request.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = field_path(kind.Request, first["loc"]) or "request"
        if first["type"] == "extra_forbidden":
            raise UserError(
                f"A {kind.kind} job has no `{where[:80]}`; "
                + _nearest(str(first["loc"][-1]), fields_beside(kind.Request, first["loc"])),
                field=where,
            ) from None
        given = first.get("input")
        shown = f"; given {str(given)[:80]!r}" if isinstance(given, (str, int, float, bool)) else ""
        raise UserError(f"`{where}`: {in_words(first, kind.Request)}{shown}.", field=where) from None


def is_artifact_name(name: str) -> bool:
    """Whether the name is valid for an artifact: a safe name with one of the known endings."""
    return re.fullmatch(ARTIFACT_PATTERN[1:-1], name) is not None and is_name(name.partition(".")[0])


def write_artifact(folder: Path, name: str, content: bytes) -> Path:
    """Write ``folder/artifacts/name`` atomically; returns its path. ``folder`` is the job's own."""
    if not is_artifact_name(name):
        raise ValueError(f"{name!r} is no name of an artifact: {ARTIFACT_PATTERN}")
    target = folder / ARTIFACTS / name
    write_atomically(target, content)
    return target


def list_artifacts(folder: Path) -> list[str]:
    """Sorted names of the artifacts of a job's folder; temporary files and invalid names are left out."""
    there = folder / ARTIFACTS
    if not there.is_dir():
        return []
    return sorted(entry.name for entry in there.iterdir() if is_artifact_name(entry.name) and entry.is_file())


def _nearest(word: str, known: object) -> str:
    names = sorted(str(name) for name in known)  # type: ignore[attr-defined]
    if not names:
        return "there is none yet."
    close = get_close_matches(word, names, n=1, cutoff=0.5)
    listed = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f"did you mean {close[0]!r}? There are: {listed}." if close else f"there are: {listed}."
