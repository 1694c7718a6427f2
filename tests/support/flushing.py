"""Rows that go into the file of a run long before there are as many as a row group has."""

from __future__ import annotations

import pytest

from tokenpaths.engine.store.write import run_filler
from tokenpaths.engine.store.write.large import insert_in_turns


def flush_every(tokens: int, monkeypatch: pytest.MonkeyPatch | None = None) -> None:
    """Runs of this process insert their rows after so many tokens, and after twice as many again."""
    for place, name in ((run_filler, "FLUSH_TOKENS"), (insert_in_turns, "ROW_GROUP")):
        if monkeypatch is None:
            setattr(place, name, tokens)
        else:
            monkeypatch.setattr(place, name, tokens)
