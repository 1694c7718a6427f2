"""Synthetic runs: exact in size, a function of their arguments, made of the shapes that real runs have."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from tests.support.runs.synthetic import BATCH_TOKENS, SyntheticRun, batches, main, power_law_ranks, ribbons, write_run
from tokenpaths.engine.analysis.path_statistics import rank_frequency_fit
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run


@pytest.mark.parametrize(("modality", "top_k"), [("text", 1), ("text", 2), ("vision", 1)])
def test_a_run_has_exactly_the_tokens_asked_for_and_its_words_and_places_fit(tmp_path, modality, top_k):
    spec = SyntheticRun("small", 5000, steps=6, modules=9, top_k=top_k, modality=modality)
    with Run.open(write_run(spec, tmp_path)) as run:
        assert run.row["num_tokens"] == 5000
        assert run.frames.samples()["num_tokens"].sum() == 5000
        ribbon = np.array(run.frames.paths()["ribbon"].tolist())
        assert ribbon.shape[1:] == (6, top_k)
        assert top_k == 1 or (ribbon[:, :, 0] != ribbon[:, :, 1]).all()
        assert run.fit()["untrained"]["num_tokens"] == 5000
        assert 0 < run.row["mean_compute"] < 1
        last = run.row["num_samples"] - 1
        for sample in (0, last):
            detail = run.sample(sample)
            if modality == "text":
                assert [token["text"] for token in detail["tokens"]] == detail["text"].split(" ")
            else:
                assert detail["tokens"][0] | {"row": 0, "col": 0} == detail["tokens"][0]
                assert Image.open(io.BytesIO(run.image(sample))).size == (56, 56)


def test_the_same_arguments_give_the_same_run_and_another_seed_another(tmp_path):
    made = [write_run(SyntheticRun(f"run-{i}", 3000, seed=seed), tmp_path) for i, seed in enumerate((1, 1, 2))]
    tables = [Run.open(file).frames.arrow("token") for file in made]
    assert tables[0].equals(tables[1])
    assert not tables[0].equals(tables[2])


def test_batches_are_made_one_by_one_and_small():
    spec = SyntheticRun("large", 10**9)
    sizes = [next(batches(spec)).num_tokens for _ in range(2)]
    assert sizes[0] == sizes[1] <= 2 * BATCH_TOKENS


def test_paths_are_a_power_law_and_follow_from_their_number():
    rng = np.random.default_rng(0)
    distinct = [len(np.unique(power_law_ranks(rng, size, 1.316))) for size in (10_000, 1_000_000)]
    assert np.log(distinct[1] / distinct[0]) / np.log(100) == pytest.approx(0.76, abs=0.03)
    numbers = rng.integers(0, 50, 4000).astype(np.uint64)
    rows = ribbons(SyntheticRun("w", 1000, steps=8), numbers).reshape(4000, -1)
    for number in (3, 17):
        assert len(np.unique(rows[numbers == number], axis=0)) == 1
    many = ribbons(
        SyntheticRun("w", 1000, steps=8), power_law_ranks(rng, 50_000, 1.316).astype(np.uint64) * np.uint64(7919)
    )
    counts = np.array(sorted(Counter(map(tuple, many[:, :, 0].tolist())).values(), reverse=True))
    assert -1.2 < rank_frequency_fit(counts).slope < -0.5


@pytest.mark.parametrize(
    "changes", [{"tokens": 10}, {"steps": 0}, {"modules": 3}, {"top_k": 17}, {"modality": "sound"}]
)
def test_sizes_outside_their_limits_are_refused(changes):
    with pytest.raises(UserError) as refused:
        SyntheticRun("w", **changes)
    assert refused.value.field == next(iter(changes))


def test_the_command_says_what_it_wrote_or_why_not(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["synthetic", "--tokens", "2e3", "--out", str(tmp_path / "runs" / "made.duckdb")])
    main()
    assert "2,000 tokens" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="there is a run"):
        main()
    monkeypatch.setattr("sys.argv", ["synthetic", "--out", str(tmp_path / "made.csv")])
    with pytest.raises(SystemExit, match=r"\.duckdb"):
        main()
