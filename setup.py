"""Which packages there are: those of the four folders that pyproject.toml maps below ``tokenpaths``."""

from setuptools import find_packages, setup

MAPPED = ("engine", "backend", "frontend")

setup(
    packages=[
        "tokenpaths",
        *(f"tokenpaths.{name}" for name in find_packages("tokenpaths")),
        *(f"tokenpaths.{root}" for root in MAPPED),
        *(f"tokenpaths.{root}.{name}" for root in MAPPED for name in find_packages(root)),
    ]
)
