"""Which packages and data there are: the four folders that pyproject.toml maps below ``tokenpaths``."""

from pathlib import Path

from setuptools import find_packages, setup

MAPPED = ("engine", "backend", "frontend")
SMALL_MODELS = (
    "dna-vision-top1",
    "dna-text-top1",
    "hmodel-languages",
    "raytracing-cifar10",
    "raytracing-cifar10-relaxed",
    "raytracing-digits",
    "raytracing-digits-relaxed",
)
"""shipped with the program; the others are the distribution ``tokenpaths-models`` (packaging/models)"""


def data_files() -> list[str]:
    """Files below ``data/`` that belong to the wheel; MANIFEST.in names the same for the source distribution."""
    root = Path(__file__).parent / "data"
    folders = [root / "samples", root / "tour", *(root / "models" / name for name in SMALL_MODELS)]
    files = [root / "models" / "SHA256SUMS", *(file for folder in folders for file in folder.rglob("*"))]
    return sorted(file.relative_to(root).as_posix() for file in files if file.is_file())


def site_files() -> list[str]:
    """Files of the documentation that ``make docs`` built; none where it has not."""
    root = Path(__file__).parent / "site"
    return sorted(file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())


setup(
    packages=[
        "tokenpaths",
        *(f"tokenpaths.{name}" for name in find_packages("tokenpaths")),
        *(f"tokenpaths.{root}" for root in MAPPED),
        *(f"tokenpaths.{root}.{name}" for root in MAPPED for name in find_packages(root)),
        "tokenpaths.data",
        *(["tokenpaths.site"] if site_files() else []),
    ],
    package_data={"tokenpaths.data": data_files(), "tokenpaths.site": site_files()},
)
