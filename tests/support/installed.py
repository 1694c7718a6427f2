"""The distribution as strangers get it: built from a copy of the tree, installed, run in a folder of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.command_line import own_modules

ROOT = Path(__file__).resolve().parents[2]
NOT_COPIED = (
    ".git",
    ".venv*",
    ".*_cache",
    ".data",
    "__pycache__",
    "build",
    "dist",
    "*.egg-info",
    "tests",
    "benchmarks",
)


def build_wheels(folder: Path) -> tuple[Path, Path]:
    """(the wheel of the source distribution, the wheel of the tree), both of a copy without anything built before."""
    tree = shutil.copytree(ROOT, folder / "tree", ignore=shutil.ignore_patterns(*NOT_COPIED))
    command = [sys.executable, "-m", "build", "--no-isolation", str(tree), "--outdir"]
    subprocess.run([*command, str(folder / "by-sdist")], check=True, capture_output=True, timeout=900)
    shutil.rmtree(tree / "build", ignore_errors=True)
    subprocess.run([*command, str(folder / "by-tree"), "--wheel"], check=True, capture_output=True, timeout=900)
    (by_sdist,), (by_tree,) = ((folder / name).glob("*.whl") for name in ("by-sdist", "by-tree"))
    return by_sdist, by_tree


class Installation:
    """A virtual environment with a wheel in it, and an empty folder with modules of the user's own beside it.

    What the wheel depends on comes from this test's environment by a ``.pth`` line, which runs none of the ``.pth``
    files there: its editable ``tokenpaths`` stays out of sight.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.venv, self.home, self.folder = folder / "venv", folder / "home", folder / "empty"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.venv)], check=True, timeout=120)
        self.install(wheel)
        self.site = next(self.venv.glob("lib/python*/site-packages"))
        (self.site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        self.home.mkdir()
        self.folder.mkdir()
        own_modules(self.folder)

    @property
    def package(self) -> Path:
        """The installed ``tokenpaths``."""
        return self.site / "tokenpaths"

    @property
    def environment(self) -> dict[str, str]:
        """No settings, no path into the source, an empty home."""
        prefixes = ("TOKENPATHS_", "STREAMLIT_", "PYTHONPATH", "XDG_", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
        return kept | {"HOME": str(self.home), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}

    def command(self, *arguments: str) -> list[str]:
        return [str(self.venv / "bin" / "tokenpaths"), *arguments]

    def install(self, *what: Path) -> None:
        """``pip install`` without dependencies, by this environment's pip."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.venv / "bin" / "python"), "install", "--quiet"]
        options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, *map(str, what)], check=True, timeout=600)

    def run(self, *arguments: str, timeout: float = 1200) -> subprocess.CompletedProcess[str]:
        """`tokenpaths …` in the empty folder."""
        command = self.command(*arguments)
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout
        )
