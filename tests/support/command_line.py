"""``tokenpaths …`` in processes of its own: how tests start it, read what it prints and find its children."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOKENPATHS = [sys.executable, "-P", "-m", "tokenpaths"]


def plain_environment(**changes: str) -> dict[str, str]:
    """This process's environment without settings of Tokenpaths, and with ``changes``."""
    names = {name: value for name, value in os.environ.items() if not name.startswith("TOKENPATHS_")}
    return names | {"PYTHONPATH": str(ROOT)} | changes


def run_cli(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """`tokenpaths …` in a new process."""
    environment = plain_environment()
    if encoding := options.pop("encoding_of_output", None):
        environment |= {"PYTHONIOENCODING": str(encoding), "PYTHONUTF8": "0"}
    return subprocess.run(
        [*TOKENPATHS, *arguments], text=True, timeout=120, env=environment, **({"capture_output": True} | options)
    )  # type: ignore[call-overload, no-any-return]


def own_modules(folder: Path) -> None:
    """Modules of the user's own that are called like rooms of Tokenpaths; each ends the process that imports it."""
    for name in ("engine.py", "frontend.py", "data.py", "cli.py", "backend/__init__.py", "backend/settings.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text('raise SystemExit(f"{__file__} is the user\'s own")\n')


def read_until(process: subprocess.Popen[str], word: str) -> list[str]:
    """Lines of its output up to the first with ``word``."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if word in line:
            return lines
    raise AssertionError("".join(lines))


def children_of(process: subprocess.Popen[str]) -> dict[str, int]:
    """Role and process id of the children of `up` (Linux)."""
    children = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, IndexError):
                continue
            if parent == process.pid:
                role = next((w for w in ("worker", "api", "tokenpaths.frontend.server.serve") if w in command), command)
                children[role] = int(folder.name)
    return children
