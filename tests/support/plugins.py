"""Distributions with entry points, as an installer leaves them: a module and its metadata in a folder of the path."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tokenpaths.engine.base.plugins import PluginRegistry


def write_plugin(folder: Path, module: str, code: str, entry_points: Mapping[str, Mapping[str, str]]) -> Path:
    """A distribution in ``folder`` with one module; ``entry_points``: group → name → value. Returns ``folder``."""
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / f"{module}.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in entry_points.items()
    ]
    (about / "entry_points.txt").write_text("\n".join(sections))
    return folder


@contextmanager
def installed(folder: Path, *registries: PluginRegistry) -> Iterator[None]:
    """Put ``folder`` on this process's path; ``registries`` look for plugins anew, and forget them at the end."""

    def forget() -> None:
        for registry in registries:
            registry._points = None
            registry._loaded.clear()

    before = set(sys.modules)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(folder))
            forget()
            yield
    finally:
        forget()  # after the path is as it was: who asks next must not find the folder again
        for name in set(sys.modules) - before:
            if name in {file.stem for file in folder.glob("*.py")}:
                del sys.modules[name]
