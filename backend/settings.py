"""Settings: name, default, bounds and help of each, read from flags, environment and a TOML file.

Precedence: command line flag > environment (``TOKENPATHS_<NAME>``) > settings file > default. ``docs/settings.md`` is
generated from this table (``python -m tokenpaths.backend.settings > docs/settings.md``); a test keeps the two equal.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import logging
import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tokenpaths.backend.process_states import VARIABLE as PROCESSES_VARIABLE
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.model_folders import models_folders
from tokenpaths.settings_file import ENV_PREFIX, FILE_VARIABLE, cannot_be_read, default_data_dir, find_settings_file
from tokenpaths.web_origins import read_origins

_log = logging.getLogger(__name__)
SECRET_HEADER = "x-tokenpaths-worker-secret"
"""header in which `worker_secret` is sent"""
INTRODUCTION = (
    "A value comes from the first of: command line flag (where the command has one), environment variable, "
    "settings file, default. The settings file is TOML, one `name = value` a line; it is "
    "`settings.toml` in the user's configuration folder (`~/.config/tokenpaths/` on Linux), or the one that "
    "`TOKENPATHS_SETTINGS_FILE` names. A name that does not exist is refused in the file, and one of the environment "
    "that begins with `TOKENPATHS_` is warned of; an empty environment variable counts as not set. Python "
    "(`tokenpaths.trace`, `record`, `runs` …) finds its folders in the same places: it reads `data_dir`, `models_dirs` "
    "and `huggingface_dir`."
)
OTHER_VARIABLES = frozenset({FILE_VARIABLE, "TOKENPATHS_API_URL", PROCESSES_VARIABLE})
"""variables that are no settings: of the settings file, and of processes that `tokenpaths up` starts"""

PathList = Annotated[tuple[Path, ...], NoDecode]
WordList = Annotated[tuple[str, ...], NoDecode]


class Settings(BaseSettings):
    """All settings; the description of a field is its help text, its ``default`` what holds unless set."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, extra="forbid", env_ignore_empty=True, frozen=True, validate_default=True
    )
    settings_file: ClassVar[Path | None] = None

    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Folder of runs (`runs/`), your own models (`models/`), jobs (`jobs/`, `jobs.sqlite`), files that "
        "jobs read (`inbox/`), saved searches (`searches/`), names and notes (`names/`), series (`run_series/`), "
        "paths of untrained twins (`twins/`), responses of running engines (`received/`) and logs (`logs/`).",
        json_schema_extra={"shown_default": "the user's data folder, `~/.local/share/tokenpaths` on Linux"},
    )
    models_dirs: PathList = Field(
        (),
        description="More folders that hold models, one sub-folder each; separate several with `:` "
        "(`;` on Windows). `data/models` of the source and `models/` of the data folder are always looked at.",
    )
    huggingface_dir: Path | None = Field(
        None,
        description="Folder of Hugging Face checkpoints, one sub-folder each, as `save_pretrained` or "
        "`hf download … --local-dir` leaves them; their names are `hf:<sub-folder>`. Nothing is fetched.",
        json_schema_extra={"shown_default": "`models/` of the data folder"},
    )
    host: str = Field(
        "127.0.0.1", description="Address that the API listens on. Anything but a loopback address needs `token`."
    )
    page_host: str = Field(
        "127.0.0.1",
        description="Address that the page listens on. Where `token` is set, the page asks each visitor for it once. "
        "Anything but a loopback address needs `token`, and a proxy with TLS before it.",
    )
    port: int = Field(8000, ge=0, le=65535, description="Port of the API; 0 takes a free one.")
    page_port: int = Field(8501, ge=0, le=65535, description="Port of the Streamlit page; 0 takes a free one.")
    token: SecretStr | None = Field(
        None, description="Bearer token that every request but `/healthz` must carry (at least 16 characters)."
    )
    allowed_hosts: WordList = Field(
        (),
        description="More names that the `Host` header may have, separated by spaces; loopback names and `host` "
        "always may. Needed behind a proxy, and by a worker on another machine: the name in `worker_url`.",
    )
    allowed_origins: WordList = Field(
        (),
        description="Web origins under which browsers reach the API where a proxy does not hand on their `Host`, for "
        "example `https://paths.example.com`; separated by spaces. Of pages of other sites, those named may send what "
        "browsers send without asking first (a form, as for `POST /traces`, without a token), and read no answer.",
    )
    embed_origins: WordList = Field(
        (),
        description="Web sites that may show views of the page in a frame (`?embed=1`, docs/embedding.md), each by "
        "scheme, host and port, for example `https://docs.example.com`; separated by spaces. Nobody else may.",
    )
    worker_url: str | None = Field(
        None, description="Address of an engine worker on another machine; without it `tokenpaths up` starts one."
    )
    worker_host: str = Field(
        "127.0.0.1", description="Address that the engine worker listens on; it always asks for `worker_secret`."
    )
    worker_port: int = Field(0, ge=0, le=65535, description="Port of the engine worker; 0 takes a free one.")
    worker_secret: SecretStr | None = Field(
        None,
        description="Secret that API and worker share. `tokenpaths up` makes a random one; set it yourself only "
        "with `worker_url` (at least 16 characters).",
    )
    max_upload_megabytes: float = Field(25, gt=0, description="Largest upload, in units of 1 000 000 bytes.")
    max_text_kilobytes: float = Field(
        200, gt=0, description="Longest text that is sent to the tokenizer, in units of 1 000 bytes."
    )
    max_text_tokens: int = Field(2000, ge=1, description="Most tokens of a text in one `POST /traces`.")
    upload_stall_seconds: float = Field(
        10, gt=0, description="A client that sends nothing for this long during an upload is dropped."
    )
    upload_seconds: float = Field(120, gt=0, description="Longest time that one upload may take.")
    upload_slots: int = Field(4, ge=1, description="Uploads that are received at the same time.")
    decode_seconds: float = Field(10, gt=0, description="Longest time for decoding one image.")
    decode_memory_megabytes: int = Field(1024, ge=256, description="Memory limit of the process that decodes images.")
    trace_seconds: float = Field(60, gt=0, description="Longest time that `POST /traces` waits for the worker.")
    trace_queue_length: int = Field(
        8,
        ge=1,
        description="Traces that may wait for the worker; one more may be uploaded meanwhile, others are told to come "
        "back.",
    )
    trace_model_megabytes: float = Field(
        4000,
        gt=0,
        description="Largest model, by the size of its weights on disk, that `POST /traces` runs while somebody "
        "waits, in units of 1 000 000 bytes; jobs run larger ones.",
    )
    held_models_megabytes: float = Field(
        16_000,
        gt=0,
        description="Models that the engine worker holds in memory, by the size of their weights on disk, in units of "
        "1 000 000 bytes; the least recently used are let go first.",
    )
    warm_models: bool = Field(
        True, description="Load every model but those of Hugging Face when the worker starts: the first trace is quick."
    )
    worker_jobs: bool = Field(True, description="Whether the engine worker works on jobs, besides `POST /traces`.")
    worker_nice: int = Field(
        10,
        ge=0,
        le=19,
        description="How far the engine worker stands back where processors are short (`nice`), so that the page "
        "stays quick while models are loaded and jobs run; 0 = not at all. On an idle machine it changes nothing.",
    )
    job_lease_seconds: float = Field(
        15,
        gt=0,
        description="A worker that is not heard of for this long loses its job to another one. The same for all "
        "processes of a data folder.",
    )
    stuck_seconds: float = Field(
        900,
        gt=0,
        description="A worker whose one piece of work (a slice of a job, a trace, loading a model) lasts longer than "
        "this says so in its health, and `tokenpaths up` ends it and starts it again; a job has three such lives.",
    )
    hung_seconds: float = Field(
        30,
        gt=0,
        description="A process of `tokenpaths up` that has not answered for this long and uses no processor time is "
        "ended and started again; one that does use it, after four times as long.",
    )
    log_megabytes: float = Field(
        4000,
        gt=0,
        description="Responses of running engines that one log may hold before it is sealed (`POST /logs/{run}`), in "
        "units of 1 000 000 bytes.",
    )
    log_responses: int = Field(1_000_000, ge=1, description="Responses that one log may hold before it is sealed.")
    log_quiet_seconds: float = Field(
        0,
        ge=0,
        description="A log of a running engine to which nothing has come for this long is sealed by itself; 0 = only "
        "on request.",
    )
    job_queue_length: int = Field(1000, ge=1, description="Jobs that may wait; one more is told to come back.")
    least_free_megabytes: float = Field(
        64,
        ge=0,
        description="Traces and imports stop, or do not begin, when less is free on the disk of the data "
        "folder, units of 1 000 000 bytes.",
    )
    job_free_megabytes: float = Field(
        64,
        gt=0,
        description="A job that paused at a full disk goes on when so much more than `least_free_megabytes` "
        "is free, units of 1 000 000 bytes.",
    )
    job_streams: int = Field(
        256, ge=1, description="Clients that listen to events of jobs at the same time; one more is told to come back."
    )
    requests_at_once: int = Field(
        2048, ge=4, description="Requests that are answered or wait at the same time; one more is told to come back."
    )
    query_seconds: float = Field(
        10,
        gt=0,
        description="Longest time of one query to a run file. An answer that takes twice as long, or a "
        "report or a part of an export that takes six times as long, is given up.",
    )
    query_megabytes: int = Field(
        2048,
        ge=64,
        description="Memory that the database takes at most for each open run, in units of 1 000 000 bytes; a question "
        "that needs more is refused.",
    )
    check_runs: bool = Field(
        True,
        description="Whether of a run file that was not sealed in this data folder only a checked copy is opened. "
        "Off: any file is opened as it is.",
    )
    check_seconds: float = Field(
        60, gt=0, description="Longest time of reading such a file; a second more for each 20 MB."
    )
    check_megabytes: int = Field(4096, ge=1024, description="Memory limit of the process that reads it.")
    query_slots: int = Field(4, ge=1, description="Questions to run files that are computed at the same time.")
    query_wait_seconds: float = Field(
        5, gt=0, description="Longest time that a question waits for a free slot before the answer is 503."
    )
    export_slots: int = Field(2, ge=1, description="Exports that stream at the same time.")
    send_stall_seconds: float = Field(
        30, gt=0, description="A client that reads nothing for this long during an export is dropped."
    )
    open_runs: int = Field(64, ge=1, description="Run files that stay open; the longest unused is closed first.")
    answer_cache_megabytes: float = Field(64, ge=0, description="Memory for answers that were already computed.")
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="DEBUG, INFO, WARNING or ERROR.")

    @field_validator("models_dirs", mode="before")
    @classmethod
    def _split_folders(cls, value: Any) -> Any:
        return tuple(filter(None, value.split(os.pathsep))) if isinstance(value, str) else value

    @field_validator("models_dirs", mode="after")
    @classmethod
    def _at_home(cls, value: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(folder.expanduser() for folder in value)

    @field_validator("allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def _split_words(cls, value: Any) -> Any:
        return tuple(value.replace(",", " ").split()) if isinstance(value, str) else value

    @field_validator("embed_origins", mode="before")
    @classmethod
    def _origins(cls, value: Any) -> Any:
        return read_origins(value if isinstance(value, str) else " ".join(map(str, value)))

    @field_validator("data_dir", "huggingface_dir", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, str) and not value.strip():  # it would silently be the current folder
            raise ValueError("is empty; name a folder (`.` is the current one), or leave it out")
        return value

    @field_validator("data_dir", "huggingface_dir", mode="after")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()

    @field_validator("token", "worker_secret", mode="after")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and (len(value.get_secret_value()) < 16 or not value.get_secret_value().isascii()):
            raise ValueError("needs at least 16 ASCII characters; `openssl rand -hex 16` makes a good one")
        return value

    @property
    def runs_dir(self) -> Path:
        return self.data_dir / "runs"

    @property
    def jobs_file(self) -> Path:
        return self.data_dir / "jobs.sqlite"

    @property
    def logs_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def all_models_dirs(self) -> list[Path]:
        """The folders that models are looked for in; the first that has a name wins."""
        return models_folders(self.data_dir, self.models_dirs)

    @property
    def checkpoints_dir(self) -> Path:
        """The folder of Hugging Face checkpoints."""
        return self.huggingface_dir or self.data_dir / "models"

    @property
    def paused_below_bytes(self) -> float:
        """Free bytes on the disk of the data folder below which paused jobs stay paused and new ones are refused; at
        least one megabyte, for the events of jobs."""
        return max(1.0, self.least_free_megabytes + self.job_free_megabytes) * 1e6

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources: tuple[PydanticBaseSettingsSource, ...] = (init_settings, env_settings)
        if cls.settings_file is not None:
            sources += (TomlConfigSettingsSource(settings_cls, cls.settings_file),)
        return sources


def load_settings(settings_file: Path | None = None, **flags: Any) -> Settings:
    """Settings of this process; ``flags`` that are None count as not given.

    Raises UserError that names the setting, what was given and what would be right.
    """
    file = find_settings_file(settings_file)
    chosen = type("Settings", (Settings,), {"settings_file": file, "__module__": __name__, "__doc__": Settings.__doc__})
    _warn_of(tuple(sorted(name for name in os.environ if name.startswith(ENV_PREFIX))))
    try:
        return chosen(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        raise UserError(_explain(error, file), field=str(error.errors()[0]["loc"][0])) from None
    except ValueError as error:  # broken TOML
        raise cannot_be_read(file, error) from None


@functools.lru_cache  # once a process
def _warn_of(variables: tuple[str, ...]) -> None:
    """Log those that are no setting: most are misspelt, and the setting that was meant has another value."""
    names = {f"{ENV_PREFIX}{name.upper()}" for name in Settings.model_fields}
    for variable in variables:
        if variable not in names | OTHER_VARIABLES:
            near = difflib.get_close_matches(variable, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/settings.md lists the names."
            _log.warning("The environment variable %s is no setting and has no effect; %s", variable, hint)


def _explain(error: ValidationError, file: Path | None) -> str:
    """One sentence for the first thing that is wrong."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, Settings.model_fields, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "docs/settings.md lists the names."
        return f"There is no setting `{name}` ({file or 'flags'}); {hint}"
    value = "" if name in ("token", "worker_secret") else f" {first['input']!r}"
    return f"Setting `{name}`: {first['msg'].removeprefix('Value error, ')}; given{value or ' value not shown'}."


EVERYWHERE = frozenset({"0.0.0.0", "::", ""})
"""hosts that mean all addresses of this machine"""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def require_safe_bind(settings: Settings) -> None:
    """Refuse to be reachable from other machines without a token (raises UserError)."""
    for name, host in (("host", settings.host), ("page_host", settings.page_host)):
        if not is_loopback(host) and settings.token is None:
            raise UserError(
                f"`{name}` {host} is reachable from other machines, and no token is set: use 127.0.0.1, "
                "or set TOKENPATHS_TOKEN (`openssl rand -hex 16` makes one).",
                field=name,
            )


def settings_markdown() -> str:
    """The text of ``docs/settings.md``."""
    lines = [
        "# Settings",
        "",
        INTRODUCTION,
        "",
        "This page is generated: `python -m tokenpaths.backend.settings > docs/settings.md`.",
        "",
        "| name | default | what it does | environment |",
        "|---|---|---|---|",
    ]
    for name, info in Settings.model_fields.items():
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        shown = extra.get("shown_default") or _shown(info.default)
        lines.append(f"| `{name}` | {shown} | {info.description} | `{ENV_PREFIX}{name.upper()}` |")
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    if default is None or default == ():
        return "–"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


if __name__ == "__main__":
    print(settings_markdown(), end="")
