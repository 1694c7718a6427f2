"""Router saturation of series of runs against sets, token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tokenpaths
from tests.support.runs import RunArrays, make, make_experts, with_unrecorded, with_unused
from tokenpaths.engine.analysis.expert_affinity import common
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import RUN_SUFFIX
from tokenpaths.engine.base.records import UNRECORDED_KIND, UNUSED_KIND
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs import saturation as module
from tokenpaths.engine.store.ask.several_runs.saturation import naive_shared, runs, saturation

DRIFTS = {0: 0.9, 500: 0.3, 1000: 0.0}


CHANGES = {
    "whole": {},
    "varied": dict.fromkeys(DRIFTS, lambda made: with_unused(made, 0.3, made.info.config["series"]["iteration"])),
    "unknown": {500: lambda made: with_unrecorded(made, 0.3), 1000: lambda made: with_unrecorded(made, 0.2, seed=1)},
    "both": {500: with_unused, 1000: lambda made: with_unrecorded(with_unused(made, 0.3, 1), 0.3)},
    "one known step": {500: lambda made: with_unrecorded(made, 1.0, first_step=1)},
}
"""what is unused or unknown in some checkpoints of a series"""


def sets_of(made: RunArrays) -> np.ndarray:
    """Ids with −1 for unused slots and −2 for decisions that are not known."""
    ids = made.ids.astype(np.int64)
    for kind, mark in ((UNUSED_KIND, -1), (UNRECORDED_KIND, -2)):
        ids[np.isin(made.ids, [m.module for m in made.modules if m.kind == kind])] = mark
    return ids


def write_series(folder, name="mine", changes=CHANGES["whole"], **options):
    """Runs of one series after 1000, 0 and 500 iterations, written in this order; what was made, by iteration."""
    made = {}
    for iteration in (1000, 0, 500):
        made[iteration] = changes.get(iteration, lambda made: made)(
            make_experts(f"{name}-{iteration:06d}", series=(name, iteration), drift=DRIFTS[iteration], **options)
        )
        made[iteration].write(folder)
    return made


def test_by_hand():
    one = np.array([[[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    other = np.array([[[1, 0], [3, 4]], [[2, 3], [2, 3]]])
    assert common(one, other).sum(axis=0).tolist() == [2, 3]
    assert naive_shared(one, other).tolist() == [0.5, 0.75]
    one[0, 0], one[1, 1], other[0, 1, 1] = -2, [3, -1], -1
    assert naive_shared(one, other).tolist() == [0.0, 2 / 3]
    one[:, 0] = -2
    assert np.isnan(naive_shared(one, other)[0])


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_shared_equals_sets(top_k):
    rng = np.random.default_rng(top_k)
    one, other = (rng.random((40, 3, 9)).argsort(axis=2)[:, :, :top_k] for _ in range(2))
    assert np.allclose(common(one, other).mean(axis=0) / top_k, naive_shared(one, other))
    assert np.array_equal(common(one, one[:, :, ::-1]), np.full((40, 3), top_k))


@pytest.mark.parametrize(
    "shape", [dict(layers=3, experts=8, top_k=2), dict(layers=9, experts=300, top_k=8)], ids=["columns", "packed"]
)
@pytest.mark.parametrize("changed", CHANGES)
def test_a_series_equals_its_naive_twin(tmp_path, monkeypatch, shape, changed):
    monkeypatch.setattr(module, "CHUNK_TOKENS", 50)  # several stretches, the last one cut
    made = write_series(tmp_path, changes=CHANGES[changed], samples=7, length=21, **shape)
    ids = {iteration: sets_of(one) for iteration, one in made.items()}
    found = saturation(series="mine", runs_dir=tmp_path)
    assert (found.final, found.num_tokens, found.compared_by) == ("mine-001000", 147, "token ids")
    assert [c.iteration for c in found.checkpoints] == [0, 500, 1000]
    for checkpoint in found.checkpoints:
        naive = naive_shared(ids[checkpoint.iteration], ids[1000])
        assert np.allclose(np.array(checkpoint.steps, dtype=float), naive, equal_nan=True)
        assert checkpoint.mean == pytest.approx(np.nanmean(naive))
    means = [c.mean for c in found.checkpoints]
    assert means[0] < means[1] < means[2] == 1.0
    used = [(final[final > -2] >= 0).mean() * shape["top_k"] for final in ids[1000].transpose(1, 0, 2)]
    assert found.chance == pytest.approx([k / shape["experts"] for k in used])
    rows = found.rows()
    assert len(rows) == 3 * shape["layers"]
    assert rows[shape["layers"]] == {
        "run": "mine-000500",
        "iteration": 500,
        "step": 0,
        "chance": found.chance[0],
        "saturation": found.checkpoints[1].steps[0],
    }


def test_what_is_not_known_is_no_agreement(tmp_path):
    whole, lacking, final = (make_experts(name, layers=2) for name in ("whole", "lacking", "final"))
    lacking = with_unrecorded(lacking, 1.0)
    files = [made.write(tmp_path) for made in (whole, lacking, final)]
    with pytest.raises(UserError, match="run 'lacking' has no decision that is known in 'final' too"):
        saturation(files)
    with pytest.raises(UserError, match="run 'whole' has no decision that is known in 'lacking' too"):
        saturation(files[:2])
    nothing = {iteration: lambda made: with_unrecorded(made, 1.0) for iteration in (500, 1000)}
    made = write_series(tmp_path, changes=nothing)
    opened = [Run.open(tmp_path / f"{one.info.run_id}{RUN_SUFFIX}") for one in made.values()]
    answer = module.of_series(opened, "mine-000000")
    assert (answer["points"], answer["baseline"], len(answer["left_out"])) == ([], None, 3)
    for run in opened:
        run.close()


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
