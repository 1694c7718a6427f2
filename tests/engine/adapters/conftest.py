"""Fixtures of the Hugging Face tests; the library is imported when one of them is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_huggingface import save_tiny

    return save_tiny(tmp_path_factory.mktemp("models") / "tiny-mixtral", "mixtral")


@pytest.fixture(scope="module")
def loaded(mixtral: Path) -> Any:
    from tokenpaths.engine.adapters.huggingface.inspection import find_model
    from tokenpaths.engine.adapters.huggingface.loading import load

    return load(find_model(f"hf:{mixtral}"), device="cpu")
