"""DiPaCo's routers: each rule against a naive twin or a case worked out by hand."""

from __future__ import annotations

import pytest
import torch
from sklearn.cluster import KMeans

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_router import (
    NEVER,
    best_continuation,
    calibrate_bias,
    fit_discriminative,
    fit_kmeans,
    fit_product,
    fit_rerouter,
    nearest,
)


def blobs(count=60, seed=0) -> torch.Tensor:
    """Two clusters in the first half of the feature and three in the second, independently."""
    generator = torch.Generator().manual_seed(seed)
    left = torch.tensor([[0.0, 0], [8, 8]])[torch.randint(2, (count,), generator=generator)]
    right = torch.tensor([[0.0, 9], [9, 0], [-9, -9]])[torch.randint(3, (count,), generator=generator)]
    return torch.cat([left, right], dim=1) + torch.randn(count, 4, generator=generator) + 5


def test_kmeans_sends_each_document_to_the_nearest_centroid():
    features = blobs()
    fitted = KMeans(5, n_init=4, random_state=0).fit(features.double().numpy())
    centroids = torch.from_numpy(fitted.cluster_centers_).float()
    naive = [min(range(5), key=lambda j, z=z: float(((z - centroids[j]) ** 2).sum())) for z in features]
    scores = fit_kmeans(features, 5)(features)
    assert nearest(scores)[:, 0].tolist() == naive
    # The two nearest, for overlapping shards.
    order = torch.cdist(features, centroids).argsort(dim=1)[:, :2]
    assert torch.equal(nearest(scores, 2), order)


def test_product_kmeans_is_two_independent_kmeans():
    features = blobs()
    first = KMeans(2, n_init=4, random_state=0).fit(features[:, :2].double().numpy()).labels_
    second = KMeans(3, n_init=4, random_state=1).fit(features[:, 2:].double().numpy()).labels_
    paths = nearest(fit_product(features, (2, 3))(features))[:, 0]
    assert paths.tolist() == [int(a) * 3 + int(b) for a, b in zip(first, second, strict=True)]
    assert len(paths.unique()) == 6


def test_product_kmeans_of_three_levels_takes_a_third_of_the_feature_each():
    torch.manual_seed(0)
    features = torch.randn(50, 6)
    codes = [
        KMeans(2, n_init=4, random_state=i).fit(features[:, 2 * i : 2 * i + 2].double().numpy()).labels_
        for i in range(3)
    ]
    paths = nearest(fit_product(features, (2, 2, 2))(features))[:, 0]
    assert paths.tolist() == [int(4 * a + 2 * b + c) for a, b, c in zip(*codes, strict=True)]


def test_product_kmeans_needs_a_width_that_divides():
    with pytest.raises(UserError, match="width 5 cannot be cut into 2") as error:
        fit_product(torch.randn(9, 5), (2, 2))
    assert error.value.field == "width"


def test_more_clusters_than_documents_are_refused():
    with pytest.raises(UserError, match="4 clusters from 3 documents") as error:
        fit_kmeans(torch.randn(3, 2), 4)
    assert error.value.field == "levels"


@pytest.mark.parametrize("n", [0, 4])
def test_an_impossible_overlap_is_refused(n):
    with pytest.raises(UserError, match="1 to the number of paths, 3") as error:
        nearest(torch.zeros(2, 3), n)
    assert error.value.field == "overlap"


def shares(paths: torch.Tensor, count: int) -> torch.Tensor:
    return torch.bincount(paths, minlength=count) / len(paths)


def test_bias_calibration_by_hand():
    # Margins of path 0 over path 1: 1, 2, 3, 4. Half the documents on each: the bias stands between 2 and 3.
    scores = torch.tensor([[1.0, 0], [2, 0], [3, 0], [4, 0]])
    bias = calibrate_bias(scores, torch.tensor([0.5, 0.5]))
    assert 2 < float(bias[1] - bias[0]) < 3
    assert (scores + bias).argmax(dim=1).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_bias_calibration_reproduces_the_wanted_distribution(seed):
    torch.manual_seed(seed)
    scores = torch.randn(1500, 16) + 3 * torch.randn(16)
    target = torch.rand(16)
    target = (target + 0.02) / (target + 0.02).sum()
    assert float((shares(scores.argmax(dim=1), 16) - target).abs().max()) > 0.1
    found = shares((scores + calibrate_bias(scores, target)).argmax(dim=1), 16)
    assert torch.allclose(found, target, atol=0.003)


def test_the_bias_of_a_single_score_is_a_number():
    assert calibrate_bias(torch.randn(1, 1), torch.ones(1)).tolist() == [0]
    assert calibrate_bias(torch.randn(1, 2), torch.tensor([1.0, 0.0])).tolist() == [0, NEVER]


def test_a_path_that_should_get_nothing_gets_nothing():
    scores = torch.tensor([[9.0, 0, 0], [9, 1, 0], [9, 0, 1], [9, 0, 2]])
    bias = calibrate_bias(scores, torch.tensor([0.0, 0.5, 0.5]))
    assert float(bias[0]) == NEVER
    assert shares((scores + bias).argmax(dim=1), 3).tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("target", [[0.5, 0.6], [1.5, -0.5]])
def test_a_target_that_is_no_distribution_is_refused(target):
    with pytest.raises(UserError, match="sum to 1"):
        calibrate_bias(torch.zeros(3, 2), torch.tensor(target))


def test_the_discriminative_router_learns_what_features_tell_and_keeps_the_distribution():
    torch.manual_seed(0)
    features = torch.randn(2000, 6)
    # Path 2 is best for few documents, and noise hides who they are: plain regression would starve it.
    best = (features[:, 0] > 0).long()
    best[torch.rand(2000) < 0.06] = 2
    fitted = fit_discriminative(features, best, 4)
    paths = nearest(fitted(features))[:, 0]
    assert torch.allclose(shares(paths, 4), shares(best, 4), atol=0.003)
    sure = best != 2
    assert float((paths == best)[sure].float().mean()) > 0.9
    assert float(fitted.bias[3]) < NEVER / 2


def test_two_paths_and_one_path_can_be_told_apart_too():
    torch.manual_seed(0)
    features = torch.randn(400, 3)
    best = (features[:, 1] > 0.3).long()
    paths = nearest(fit_discriminative(features, best, 2, strength=10.0)(features))[:, 0]
    assert float((paths == best).float().mean()) > 0.97
    only = fit_discriminative(features, torch.full((400,), 1), 3)
    assert set(nearest(only(features))[:, 0].tolist()) == {1}


def test_the_best_continuation_by_hand():
    # Two paths, four positions; sums to the end and over two positions.
    scores = torch.tensor([[[-1.0, -2], [-5, -1], [-1, -2], [-1, -2]]])
    assert best_continuation(scores).tolist() == [[1, 1, 0, 0]]  # −8:−7, −7:−5, −2:−4, −1:−2
    assert best_continuation(scores, 2).tolist() == [[1, 1, 0, 0]]  # −6:−3, −6:−3, −2:−4, −1:−2
    assert best_continuation(scores, 1).tolist() == [[0, 1, 0, 0]]


@pytest.mark.parametrize("horizon", [None, 1, 3, 7, 50])
def test_the_best_continuation_is_the_plain_double_loop(horizon):
    torch.manual_seed(0)
    scores = -torch.rand(3, 7, 4)
    found = best_continuation(scores, horizon)
    for n in range(3):
        for t in range(7):
            sums = scores[n, t : None if horizon is None else t + horizon].sum(dim=0)
            assert int(found[n, t]) == int(sums.argmax())


SMALL = dict(
    width=16, heads=2, mlp_width=32, levels=(2, 2), blocks=(1, 1), prefix=4, vocab_size=30, context=20, rerouter=True
)


def test_the_feature_is_the_mean_hidden_state_of_the_first_tokens_under_the_base():
    torch.manual_seed(0)
    router = DiPaCo(DiPaCoConfig(**SMALL)).router
    ids = torch.randint(30, (2, 9))
    h = router.base.embed(ids) + router.base.positions[:9]
    for block in router.base.blocks:
        h = block(h, causal=True)
    assert torch.allclose(router.features(ids), h[:, :4].mean(dim=1), atol=1e-5)
    # Tokens behind the prefix change nothing; a shorter text is averaged as far as it goes.
    assert torch.allclose(router.features(ids[:, :4]), router.features(ids), atol=1e-5)
    valid = torch.arange(9) < torch.tensor([[2], [9]])
    assert torch.allclose(router.features(ids, valid)[0], h[0, :2].mean(dim=0), atol=1e-5)


def test_fitted_scores_are_what_the_saved_tensors_give():
    torch.manual_seed(0)
    model = DiPaCo(DiPaCoConfig(**SMALL))
    features = torch.randn(40, 16)
    fitted = fit_product(features, (2, 2))
    model.router.set_scores(fitted)
    other = DiPaCo(DiPaCoConfig(**SMALL))
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.router.scores(features), fitted(features))


def test_the_rerouter_learns_the_best_path_at_any_token_and_leaves_the_base_alone():
    torch.manual_seed(0)
    router = DiPaCo(DiPaCoConfig(**SMALL)).router
    torch.nn.init.normal_(router.base.embed.weight)
    before = {n: p.clone() for n, p in router.base.named_parameters()}

    def batch(i):
        ids = torch.randint(30, (16, 12), generator=torch.Generator().manual_seed(i))
        wanted = ids % 4
        wanted[:, :3] = -100
        return ids, wanted

    losses = fit_rerouter(router, batch, 60, learning_rate=1e-2)
    assert losses[0] == pytest.approx(torch.log(torch.tensor(4.0)).item(), abs=1e-4)
    assert losses[-1] < 0.3
    ids, wanted = batch(999)
    known = wanted >= 0
    assert float((router.running_scores(ids).argmax(dim=-1) == wanted)[known].float().mean()) > 0.9
    assert all(torch.equal(p, before[n]) for n, p in router.base.named_parameters())
    assert not any(p.requires_grad for p in router.parameters())
