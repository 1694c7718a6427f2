"""Edges, gates and blocks of a run against the arrays that were written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.runs import make_soft
from tests.support.runs.soft import LABELS
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.run import Run


@pytest.fixture
def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    blocks = rng.random((6, 4, 5)).astype(np.float32)
    return {
        "edges": rng.random((6, 2, 3, 3)).astype(np.float32),
        "gates": rng.random((6, 2, 4, 3)).astype(np.float32),
        "blocks": np.where(blocks > 0.5, blocks, 0).astype(np.float32),
    }


@pytest.mark.parametrize("kind", ["edges", "gates", "blocks"])
def test_each_kind_comes_back_per_sample_as_mean_and_per_label(tmp_path: Path, values, kind: str):
    with Run.open(make_soft(**values).write(tmp_path)) as run:
        assert sorted(run.info()["soft"]) == ["blocks", "edges", "gates"]
        for sample in range(6):
            answer = run.soft(kind, sample=sample)
            assert np.allclose(answer["values"], values[kind][sample], atol=1e-5)
        everything = run.soft(kind)
        assert everything["num_samples"] == 6
        assert np.allclose(everything["values"], values[kind].mean(axis=0), atol=1e-5)
        assert np.allclose(everything["std"], values[kind].std(axis=0), atol=1e-5)
        german = run.soft(kind, label="german")
        member = [label == "german" for label in LABELS]
        assert german["num_samples"] == 3
        assert np.allclose(german["values"], values[kind][member].mean(axis=0), atol=1e-5)
        assert np.allclose(run.soft_arrays(kind), values[kind])


def test_axes_carry_their_names_or_their_numbers(tmp_path: Path, values):
    with Run.open(make_soft(edges=values["edges"]).write(tmp_path)) as run:
        axes = run.soft("edges")["axes"]
    assert axes[0] == {"axis": "iteration", "names": ["0", "1"]}
    assert axes[1] == {"axis": "source", "names": ["layer 0", "layer 1", "text"]}


def test_what_the_run_has_not_is_said(tmp_path: Path, values):
    with Run.open(make_soft(edges=values["edges"]).write(tmp_path)) as run:
        with pytest.raises(NoSuchThing, match="has no gates; it has edges"):
            run.soft("gates")
        with pytest.raises(NoSuchThing, match="samples 0 to 5, not 6"):
            run.soft("edges", sample=6)
        with pytest.raises(UserError, match="no label 'french'"):
            run.soft("edges", label="french")


def test_hard_runs_have_no_soft_tables(tmp_path: Path):
    with Run.open(make_soft().write(tmp_path)) as run:
        assert run.info()["soft"] == []
        with pytest.raises(NoSuchThing, match="its decisions are hard"):
            run.soft("edges")


def test_malformed_soft_arrays_are_refused_before_anything_is_written(tmp_path: Path, values):
    broken = values["gates"].copy()
    broken[1, 0, 2, 1] = np.nan
    with pytest.raises(UserError, match="gates.* is nan"):
        make_soft(gates=broken).write(tmp_path)
    assert list(tmp_path.glob("*.duckdb")) == []


def test_silent_blocks_take_no_rows(tmp_path: Path, values):
    with Run.open(make_soft(blocks=values["blocks"]).write(tmp_path)) as run:
        csv = b"".join(run.export("block", "csv")).decode().strip().splitlines()
    assert len(csv) - 1 == np.count_nonzero(values["blocks"])
