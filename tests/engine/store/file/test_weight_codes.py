"""Weights in 8 bits: what is kept of them, and that SQL and numpy agree."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

from tokenpaths.engine.base.records import ModuleInfo, RunInfo, SampleRecord, TraceBatch
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.weight_codes import LINEAR, LOGARITHMIC, WeightCode, code_for
from tokenpaths.engine.store.write.writer import RunWriter

ALL_LEVELS = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("code", [LINEAR, LOGARITHMIC], ids=lambda code: code.name)
def test_codes_keep_the_order_and_0_and_1(code: WeightCode):
    weights = code.decode(ALL_LEVELS)
    assert weights[[0, 255]].tolist() == [0, 1]
    assert (np.diff(weights) > 0).all()
    assert (code.encode(weights) == ALL_LEVELS).all()
    drawn = np.sort(np.random.default_rng(0).random(10_000))
    assert (np.diff(code.encode(drawn).astype(int)) >= 0).all()
    assert code.encode(np.array([-1e-5, 1 + 1e-5])).tolist() == [0, 255]
    same = code.encode(np.full((3, 2), 0.3))
    assert (same.shape, same.dtype) == ((3, 2), np.uint8)
    assert (same == code.encode(np.array([0.3, 1.0]))[0]).all()
    con = duckdb.connect()
    con.execute("CREATE TABLE t AS SELECT range::UTINYINT AS w FROM range(256)")
    read = con.execute(f"SELECT {code.sql('w')} FROM t ORDER BY w").fetchall()
    assert np.allclose([weight for (weight,) in read], weights, rtol=1e-14)


def test_levels_from_the_table_are_the_calculated_ones():
    rng = np.random.default_rng(2)
    edges = LOGARITHMIC.decode(ALL_LEVELS)
    edges = np.sqrt(edges[1:-1] * edges[2:]).astype(np.float32)
    near = (edges[:, None].view(np.uint32) + np.arange(-50, 50, dtype=np.int32).astype(np.uint32)).view(np.float32)
    values = [rng.random(400_000), rng.random(300_000) ** 8, near.reshape(-1), [0, -0.0, 1, 2**-10, -1e-5, 1.1, 5e-324]]
    weights = np.concatenate(values).astype(np.float32)
    assert (LOGARITHMIC.encode(weights) == LOGARITHMIC._calculated(np.clip(weights, 0, 1))).all()


def test_small_weights_keep_their_size():
    weights = np.geomspace(2**-10, 1, 5000)
    assert np.abs(LOGARITHMIC.decode(LOGARITHMIC.encode(weights)) / weights - 1).max() < 0.0147
    small = np.linspace(0, 2**-10, 1000)
    assert np.abs(LOGARITHMIC.decode(LOGARITHMIC.encode(small)) - small).max() < 3.4e-5
    powers = 2.0 ** -np.arange(11)
    assert (LOGARITHMIC.decode(LOGARITHMIC.encode(powers)) == powers).all()


def test_many_modules_or_slots_take_the_logarithmic_code():
    found = [code_for(*shape).name for shape in ((16, 2), (64, 1), (65, 1), (8, 3), (256, 8))]
    assert found == ["linear", "linear", "logarithmic", "logarithmic", "logarithmic"]


def softmax_run(folder: Path, num_steps: int, top_k: int) -> tuple[Path, np.ndarray]:
    """A run of 256 experts whose gates are nearly even: weights of about 0.01, unrenormalised."""
    rng = np.random.default_rng(3)
    scores = rng.normal(size=(60, num_steps, 256)) / 2
    probs = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    ids = np.argsort(-probs, axis=2)[:, :, :top_k]
    weights = np.take_along_axis(probs, ids, axis=2).astype(np.float32)
    info = RunInfo(
        run_id="soft",
        model="m",
        family="moe",
        modality="text",
        dataset="d",
        split="",
        num_steps=num_steps,
        num_modules=256,
        top_k=top_k,
        weight_semantics={},
        checkpoint_sha256="",
        engine_version="0",
        config={},
    )
    modules = [ModuleInfo(s, m, f"expert {m}", "expert", 0, 0) for s in range(num_steps) for m in range(256)]
    with RunWriter(folder, info, modules) as writer:
        writer.write(
            TraceBatch(
                samples=[SampleRecord(num_tokens=60)],
                module_ids=ids,
                weights=weights,
                gate_entropy=np.full((60, num_steps), np.nan, np.float32),
                flops=np.zeros(60, np.float32),
            )
        )
        return writer.seal(), weights


@pytest.mark.parametrize(("num_steps", "top_k"), [(2, 2), (3, 8), (10, 8)])
def test_a_nearly_even_gate_reads_back_in_columns_and_packed(num_steps: int, top_k: int, tmp_path: Path):
    file, weights = softmax_run(tmp_path, num_steps, top_k)
    assert weights.max() < 0.05
    with Run.open(file) as run:
        tokens = run.sample(0)["tokens"]
        assert np.allclose([t["weights"] for t in tokens], weights, rtol=0.0147, atol=1e-6)
        summed = [[row["weight"] for row in run.usage()["usage"] if row["step"] == s] for s in range(num_steps)]
        assert np.allclose([sum(row) for row in summed], weights.sum(axis=(0, 2)), rtol=0.003)
        sliced = run.token_slice(0, step=1, first=0, limit=60)["tokens"]
        assert [t["weights"] for t in sliced] == [t["weights"][1] for t in tokens]
    with duckdb.connect(str(file), read_only=True) as con:
        flows = con.execute("SELECT sum(weight) FROM flow WHERE label_id = -1 GROUP BY step").fetchall()
    assert np.allclose(flows, 60)
