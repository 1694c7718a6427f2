"""``tokenpaths doctor``: checks of the installation and of the data folder."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tokenpaths.cli.support import doctor_cards, doctor_files, doctor_plugins
from tokenpaths.cli.support.doctor_files import Finding
from tokenpaths.cli.support.options import DataDir

if TYPE_CHECKING:
    from tokenpaths.backend.settings import Settings

    Check = tuple[str, Callable[[Settings], Iterator[Finding]]]

LITTLE_DISK_BYTES = 2_000_000_000
NO_DISK_BYTES = 100_000_000


def doctor(
    data_dir: DataDir = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Read what runs, models and jobs say of themselves, not their contents.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Check Python, packages, device, disk, data folder, runs, models, jobs and ports.

    Example: tokenpaths doctor || echo "something is broken"

    Runs, weights, the list of jobs and what jobs have made are read to the last byte, and their sums compared. With
    --quick only cards, configurations and headers are read; device and sandbox are not tried out.
    The exit code is 1 when something is broken; notes alone leave it 0.
    """
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.cli.support.progress_bar import bar

    settings = load_settings(data_dir=data_dir)
    findings = []
    for finding in examine(settings, doctor_files.no_bar if as_json else bar, quick=quick):
        findings.append(finding)
        if not as_json:
            print(f"{finding.state:6}  {finding.what:10}  {finding.text}", flush=True)
    if as_json:
        print(json.dumps({"findings": [asdict(finding) for finding in findings]}, indent=1))
    raise typer.Exit(1 if any(finding.state == "broken" for finding in findings) else 0)


def examine(
    settings: Settings, shown: doctor_files.Bars = doctor_files.no_bar, *, quick: bool = False
) -> Iterator[Finding]:
    """All findings, one check after the other; a check that fails itself is a finding too.

    Args:
        settings: Of the data folder.
        shown: How to show how far the checks are that read files.
        quick: Only what needs neither torch nor the contents of runs, weights and artifacts.
    """
    deep: list[Check] = [("device", _device), ("sandbox", doctor_files.sandbox)]
    deep += [
        ("runs", partial(doctor_files.runs, bar=shown)),
        ("models", partial(doctor_files.models, bar=shown)),
        ("plugins", doctor_plugins.plugins),
        ("jobs", partial(doctor_files.jobs, bar=shown)),
    ]
    cards: list[Check] = [("runs", doctor_cards.runs), ("models", doctor_cards.models), ("jobs", doctor_cards.jobs)]
    first: list[Check] = [("python", _python), ("packages", _packages), ("disk", _disk)]
    for name, check in [*first, *(cards if quick else deep), ("ports", _ports)]:
        try:
            yield from check(settings)
        except Exception as error:
            yield Finding("broken", name, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")


def _python(settings: Settings) -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    text = f"{platform.python_version()} at {sys.executable}"
    yield Finding("ok" if good else "broken", "python", text if good else f"{text}; 3.11 or newer is needed")


def read_constraints(text: str) -> dict[str, str]:
    """Pinned versions by package name.

    >>> read_constraints("torch==2.13.0  # cpu")
    {'torch': '2.13.0'}
    """
    lines = (line.partition("#")[0].partition(";")[0].strip() for line in text.splitlines())
    return {name.strip(): pin.strip() for name, both, pin in (line.partition("==") for line in lines) if both}


def _packages(settings: Settings) -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, requires, version

    from tokenpaths.engine.base.files import PROGRAM_DIR

    file = PROGRAM_DIR / "constraints.txt"
    pins = read_constraints(file.read_text()) if file.is_file() else {}
    others = []
    for name, pin in pins.items():
        try:
            installed = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue  # pins a package that this installation does not use
        if installed != pin:
            others.append(f"{name} {installed} (tested with {pin})")
    missing = []
    try:
        needed = [line for line in requires("tokenpaths") or [] if "extra ==" not in line]
    except PackageNotFoundError:
        needed = []
        yield Finding("note", "packages", "tokenpaths itself is not installed, it runs from the source folder")
    for line in needed:
        name = re.match(r"[\w.-]*", line)[0]  # type: ignore[index]
        try:
            version(name)
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        yield Finding("broken", "packages", f"missing: {', '.join(missing)}; install Tokenpaths again")
    if others:
        yield Finding("note", "packages", f"other versions than tested: {', '.join(others)}")
    if not missing and not others:
        yield Finding("ok", "packages", f"{len(pins)} pinned versions looked at")


def _device(settings: Settings) -> Iterator[Finding]:
    import torch

    from tokenpaths.engine.base.device import pick_device

    device = pick_device(None)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    yield Finding("ok", "device", f"{device} ({name}), torch {torch.__version__}, {torch.get_num_threads()} threads")


def _disk(settings: Settings) -> Iterator[Finding]:
    folder = settings.data_dir
    try:
        settings.runs_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=settings.runs_dir) as file:
            file.write(b"x")
    except OSError as error:
        yield Finding("broken", "data", f"{folder} is not writable: {error.strerror or error}")
        return
    free = shutil.disk_usage(folder).free
    state: Literal["ok", "note", "broken"] = "ok"
    if free < LITTLE_DISK_BYTES:
        state = "broken" if free < NO_DISK_BYTES else "note"
    yield Finding(state, "data", f"{folder} is writable, {free / 1e9:,.1f} GB free")


def _ports(settings: Settings) -> Iterator[Finding]:
    from tokenpaths.cli.support.processes import pick_port
    from tokenpaths.engine.base.errors import UserError

    ports = {
        "API": (settings.host, settings.port, "--port"),
        "page": (settings.page_host, settings.page_port, "--page-port"),
    }
    for name, (host, port, flag) in ports.items():
        try:
            pick_port(host, port, flag)
            yield Finding("ok", "ports", f"{port} is free for the {name}")
        except UserError as error:
            yield Finding("note", "ports", str(error))
