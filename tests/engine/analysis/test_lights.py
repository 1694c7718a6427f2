"""Lights: every number against three samples worked out by hand, and against the model's own counts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokenpaths.engine.analysis.families.lights import (
    active_share,
    cheapest_and_dearest,
    correlation,
    lit_share,
    share_by_class,
    steps_until_output,
)
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.raytracing import RayTracing

RATES = np.array(
    [
        # stops at the first step
        [[1.5, 0, 0, 2], [0, 0, 0, 0], [0, 0, 0, 0]],
        # three steps; block 0 falls silent again, block 3 never fires
        [[1.2, 0, 0, 0], [0, 0.7, 0, 0], [0, 0.8, 0.6, 0]],
        # nothing ever fires
        [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    ],
    dtype=np.float32,
)


def test_active_and_lit_shares_of_three_samples():
    np.testing.assert_allclose(active_share(RATES), [[2 / 4, 0, 0], [1 / 4, 1 / 4, 2 / 4], [0, 0, 0]])
    np.testing.assert_allclose(lit_share(RATES), [[2 / 4] * 3, [1 / 4, 2 / 4, 3 / 4], [0] * 3])


def test_steps_until_the_output_fired():
    assert steps_until_output(RATES).tolist() == [1, 3, 0]


def test_a_models_own_counts_agree():
    config = RayTracingConfig(
        image_size=4,
        conv_channels=(4,),
        conv_pools=(),
        input_neurons=(2, 3),
        input_density=0.1,
        layers=3,
        blocks=3,
        width=4,
        theta_out=4.0,
        decay=0.8,
    )
    torch.manual_seed(0)
    model = RayTracing(config)
    for parameter in model.parameters():
        parameter.data.mul_(4)
    output = model(3 * torch.randn(40, 3, 4, 4))
    rates = output.rates.numpy()
    assert steps_until_output(rates).tolist() == output.theta_steps.tolist()
    assert len(set(output.theta_steps.tolist())) > 2
    np.testing.assert_allclose(lit_share(rates)[:, -1], output.fired.float().mean(dim=1).numpy(), rtol=1e-6)


def test_shares_of_classes_come_smallest_first_with_their_intervals():
    share = np.array([0.5, 0.7, 0.1, 0.3, 0.2, 0.9])
    rows = share_by_class(share, ["b", "b", "a", "a", "a", None])
    assert [(row.label, row.count) for row in rows] == [("a", 3), ("b", 2)]
    assert rows[0].mean == pytest.approx(0.2)
    assert rows[0].high - rows[0].mean == pytest.approx(4.30265272991 * 0.1 / math.sqrt(3))
    assert rows[1].mean - rows[1].low == pytest.approx(12.7062047362 * math.sqrt(0.02) / math.sqrt(2))
    assert math.isnan(share_by_class(share[:1], ["x"])[0].low)
    with pytest.raises(ValueError, match="6 shares and 1 labels"):
        share_by_class(share, ["x"])


def test_cheapest_and_dearest_break_ties_by_number():
    cheap, dear = cheapest_and_dearest(np.array([0.3, 0.1, 0.9, 0.1, 0.9, 0.5]), 3)
    assert cheap.tolist() == [1, 3, 0]
    assert dear.tolist() == [2, 4, 5]


def test_correlations_worked_out_by_hand():
    found = correlation(np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 10]))
    # deviations (−1.5, −0.5, 0.5, 1.5) and (−3, −1, −2, 6): 13 / √(5 · 50); ranks 1 3 2 4: 1 − 6·2/60
    assert found.pearson == pytest.approx(13 / math.sqrt(250))
    assert found.spearman == pytest.approx(0.8)
    assert found.num_samples == 4
    tied = correlation(np.array([1.0, 1, 2, 3]), np.array([5.0, 6, 7, 8]))
    # ranks 1.5 1.5 3 4 and 1 2 3 4: (−1, −1, .5, 1.5)·(−1.5, −.5, .5, 1.5) / √(4.5 · 5)
    assert tied.spearman == pytest.approx(4.5 / math.sqrt(22.5))


def test_a_constant_has_no_correlation_and_bad_numbers_are_refused():
    found = correlation(np.full(5, 0.4), np.arange(5.0))
    assert (found.pearson, found.spearman_high) == (None, None)
    assert correlation(np.arange(3.0), np.arange(3.0)).pearson is None
    with pytest.raises(ValueError, match="3 shares and 4 losses"):
        correlation(np.zeros(3), np.zeros(4))
    with pytest.raises(ValueError, match="at least 3"):
        correlation(np.zeros(2), np.zeros(2))
    with pytest.raises(ValueError, match="NaN"):
        correlation(np.array([0.1, math.nan, 0.3]), np.arange(3.0))
