"""Everything is imported as ``tokenpaths.…``, so modules of the user's own with our names are not in the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import own_modules, plain_environment
from tokenpaths.backend.settings import load_settings
from tokenpaths.cli.up import plan


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "tokenpaths", "--version"],
        ["-m", "tokenpaths", "--help"],
        ["-m", "tokenpaths", "ls", "--data-dir", "data"],
        ["-c", "import tokenpaths; tokenpaths.Run, tokenpaths.record, tokenpaths.trace, tokenpaths.charts"],
    ],
)
def test_works_beside_modules_of_the_users_own(tmp_path: Path, command: list[str]) -> None:
    """``python -m`` and ``-c`` put the current directory first on the path."""
    own_modules(tmp_path)
    environment = plain_environment()
    environment.pop("PYTHONPATH")
    ended = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr


def test_child_processes_leave_the_current_directory_off_the_path(tmp_path: Path) -> None:
    settings = load_settings(data_dir=tmp_path, port=0, page_port=0, worker_port=0)
    modules = {child.name: child.command[:4] for child in plan(settings)}
    assert modules == {
        "worker": [sys.executable, "-P", "-m", "tokenpaths.backend.serve"],
        "API": [sys.executable, "-P", "-m", "tokenpaths.backend.serve"],
        "page": [sys.executable, "-P", "-m", "tokenpaths.frontend.server.serve"],
    }


def test_public_names_load_on_first_use() -> None:
    code = "import sys, tokenpaths; print([name for name in sys.modules if name.startswith('tokenpaths.')])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
