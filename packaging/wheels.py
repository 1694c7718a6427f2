"""Build the distributions into ``dist/``: ``tokenpaths`` (source and wheel) and ``tokenpaths-models`` (wheel).

``make wheels``, or ``python packaging/wheels.py`` after ``make docs``: the documentation as a site travels in both. The
wheel is built from the source distribution, so that both hold the same.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
MODELS = ROOT / "data" / "models"
STAGE = ROOT / "build" / "tokenpaths-models"


def small_models() -> set[str]:
    """Names of the models in the wheel of ``tokenpaths``, as setup.py has them."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    return set(re.findall(r'^    "([\w-]+)",$', text.partition("SMALL_MODELS")[2].partition(")")[0], re.MULTILINE))


def version() -> str:
    """The version in pyproject.toml."""
    match = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    assert match is not None
    return match[1]


def stage_models() -> Path:
    """The folder from which ``tokenpaths-models`` is built: its frame, and the models that the first leaves out."""
    shutil.rmtree(STAGE, ignore_errors=True)
    shutil.copytree(ROOT / "packaging" / "models", STAGE)
    (STAGE / "VERSION").write_text(version())
    for name in ("LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, STAGE)
    target = STAGE / "tokenpaths_models" / "models"
    small = small_models()
    for folder in sorted(path for path in MODELS.iterdir() if path.is_dir() and path.name not in small):
        shutil.copytree(folder, target / folder.name)
    shutil.copy(MODELS / "SHA256SUMS", target)
    return STAGE


def build(folder: Path, *options: str) -> None:
    subprocess.run([sys.executable, "-m", "build", *options, "--outdir", str(DIST), str(folder)], check=True)


def main() -> None:
    """Build all of them, and say how large they are."""
    if not (ROOT / "site" / "index.html").is_file():
        raise SystemExit("The documentation is not built: run `make docs` first.")
    for old in DIST.glob("tokenpaths*"):
        old.unlink()
    build(ROOT)
    build(stage_models(), "--wheel")
    for file in sorted(DIST.glob("tokenpaths*")):
        print(f"{file.relative_to(ROOT)}: {file.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
