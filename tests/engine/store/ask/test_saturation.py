"""Router saturation of series of runs against sets, token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tokenpaths
from tests.support.runs import make, make_experts
from tokenpaths.engine.analysis.expert_affinity import common
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.several_runs import saturation as module
from tokenpaths.engine.store.ask.several_runs.saturation import naive_shared, runs, saturation

DRIFTS = {0: 0.9, 500: 0.3, 1000: 0.0}


def write_series(folder, name="mine", **options):
    """Runs of one series after 1000, 0 and 500 iterations, written in this order; what was made, by iteration."""
    made = {}
    for iteration in (1000, 0, 500):
        made[iteration] = make_experts(
            f"{name}-{iteration:06d}", series=(name, iteration), drift=DRIFTS[iteration], **options
        )
        made[iteration].write(folder)
    return made


def test_by_hand():
    one = np.array([[[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    other = np.array([[[1, 0], [3, 4]], [[2, 3], [2, 3]]])
    assert common(one, other).sum(axis=0).tolist() == [2, 3]
    assert naive_shared(one, other).tolist() == [0.5, 0.75]


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_shared_equals_sets(top_k):
    rng = np.random.default_rng(top_k)
    one, other = (rng.random((40, 3, 9)).argsort(axis=2)[:, :, :top_k] for _ in range(2))
    assert np.allclose(common(one, other).mean(axis=0) / top_k, naive_shared(one, other))
    assert np.array_equal(common(one, one[:, :, ::-1]), np.full((40, 3), top_k))


@pytest.mark.parametrize(
    "shape", [dict(layers=3, experts=8, top_k=2), dict(layers=9, experts=300, top_k=8)], ids=["columns", "packed"]
)
def test_a_series_equals_its_naive_twin(tmp_path, monkeypatch, shape):
    monkeypatch.setattr(module, "CHUNK_TOKENS", 50)  # several stretches, the last one cut
    made = write_series(tmp_path, samples=7, length=21, **shape)
    found = saturation(series="mine", runs_dir=tmp_path)
    assert (found.final, found.num_tokens, found.compared_by) == ("mine-001000", 147, "token ids")
    assert [c.iteration for c in found.checkpoints] == [0, 500, 1000]
    for checkpoint in found.checkpoints:
        naive = naive_shared(made[checkpoint.iteration].ids, made[1000].ids)
        assert np.allclose(checkpoint.steps, naive)
        assert checkpoint.mean == pytest.approx(naive.mean())
    means = [c.mean for c in found.checkpoints]
    assert means[0] < means[1] < means[2] == 1.0
    assert found.chance == [shape["top_k"] / shape["experts"]] * shape["layers"]
    rows = found.rows()
    assert len(rows) == 3 * shape["layers"]
    assert rows[shape["layers"]] == {
        "run": "mine-000500",
        "iteration": 500,
        "step": 0,
        "chance": found.chance[0],
        "saturation": found.checkpoints[1].steps[0],
    }


def test_files_given_by_hand_need_no_series(tmp_path):
    first = make_experts("a", drift=0.5, layers=2)
    last = make_experts("b", layers=2)
    found = saturation([first.write(tmp_path), last.write(tmp_path)])
    assert (found.final, [c.iteration for c in found.checkpoints]) == ("b", [None, None])
    assert np.allclose(found.checkpoints[0].steps, naive_shared(first.ids, last.ids))


def test_runs_without_token_ids_are_compared_by_their_lengths_and_say_so(tmp_path):
    write_series(tmp_path, layers=2, text=False, token_ids=False)
    assert saturation(series="mine", runs_dir=tmp_path).compared_by == "lengths of the samples"


def test_patches_which_have_no_token_ids_are_compared_by_place(tmp_path):
    first, last = (make(name, modality="vision", seed=seed) for seed, name in enumerate(("a", "b")))
    found = saturation([first.write(tmp_path), last.write(tmp_path)])
    assert found.compared_by == "lengths of the samples"
    assert np.allclose(found.checkpoints[0].steps, naive_shared(first.ids, last.ids))


def test_the_facade_lists_the_runs_of_a_series(tmp_path):
    write_series(tmp_path, layers=2)
    make_experts("alone", layers=2).write(tmp_path)
    (tmp_path / "broken.duckdb").write_bytes(b"no run")
    assert [r.iteration for r in tokenpaths.runs(series="mine", runs_dir=tmp_path)] == [0, 500, 1000]
    everything = tokenpaths.runs(runs_dir=tmp_path)
    assert [(r.run, r.series) for r in everything][:2] == [("alone", None), ("mine-000000", "mine")]
    assert tokenpaths.saturation(series="mine", runs_dir=tmp_path).final == "mine-001000"
    with pytest.raises(UserError, match="no run belongs to the series 'other'; there are: mine"):
        runs("other", runs_dir=tmp_path)
    assert runs(runs_dir=tmp_path / "nowhere") == []


def test_runs_that_cannot_be_compared_are_refused(tmp_path):
    final = make_experts("final", layers=2).write(tmp_path)

    def other(name, **changes):
        return make_experts(name, **(dict(layers=2) | changes)).write(tmp_path)

    with pytest.raises(UserError, match="1 run given: saturation compares"):
        saturation([final])
    for file, sentence in (
        (other("steps", layers=3), "run 'steps' has 3 steps, 'final' has 2: saturation compares the same tokens"),
        (other("wide", experts=17), "run 'wide' has 17 modules"),
        (other("slots", top_k=3), "run 'slots' has 3 slots"),
        (other("short", samples=8), "run 'short' has 192 tokens"),
        (other("words", seed=1), "run 'words' is over other tokens than 'final': at sample 0, token"),
        (other("silent", token_ids=False), "run 'silent' is over other tokens"),
        (other("mine", series=("mine", 1)), "different series .None, mine."),
    ):
        with pytest.raises(UserError, match=sentence):
            saturation([file, final])


def test_the_same_ids_cut_into_other_samples_are_other_tokens(tmp_path):
    made = make_experts("final", layers=2, samples=2, length=10)
    batch = made.batches[0]
    samples = [replace(batch.samples[0], num_tokens=9), replace(batch.samples[1], num_tokens=11)]
    moved = replace(made, info=replace(made.info, run_id="moved"), batches=[replace(batch, samples=samples)])
    with pytest.raises(UserError, match="at sample 0, token 9 of the latter it stands elsewhere in its samples"):
        saturation([moved.write(tmp_path), made.write(tmp_path)])
