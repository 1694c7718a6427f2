"""Directional routing's analyses: by hand, by loops, and on models whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tokenpaths.engine.analysis.families.directions import (
    centroid_accuracy,
    domain_gates,
    nearest_centroids,
    principal_components,
    specialists,
)
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.edits.gate_effects import (
    ablations,
    effects,
    fixed_gates,
    gates_of,
    held_losses,
    induction,
    knockout_accuracies,
    lookahead,
    losses,
    prefix_losses,
    repeated_rows,
    swap_effects,
)
from tokenpaths.engine.models.directional import (
    Directional,
    DirectionalConfig,
    DirectionalOutput,
    direction_angles,
    direction_vocabulary,
)
from tokenpaths.engine.models.directional_gates import GateEdit, Interventions


def small(**changes) -> Directional:
    options = dict(width=24, heads=3, mlp_width=48, layers=2, directions=2, router_width=10, vocab_size=31, context=24)
    torch.manual_seed(0)
    model = Directional(DirectionalConfig(**(options | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "router" in name:
                parameter.mul_(2.5)
            elif parameter.ndim > 1 and "directions" not in name:
                parameter.mul_(8)
    return model.eval().requires_grad_(False)


def rows(count: int = 4, length: int = 13, seed: int = 1) -> torch.Tensor:
    return torch.randint(31, (count, length), generator=torch.Generator().manual_seed(seed))


# domains and specialists


def test_domain_means_and_their_variance_by_hand():
    gates = np.array([0.0, 0.2, 0.8, 0.6]).reshape(4, 1, 1, 1)
    found = domain_gates(gates, ["code", "code", "prose", "math"])
    assert found.domains == ("code", "math", "prose")
    assert found.counts.tolist() == [2, 1, 1]
    assert found.mean.ravel() == pytest.approx([0.1, 0.6, 0.8])
    # mean 0.5; squares 0.16, 0.01, 0.09
    assert found.variance.ravel() == pytest.approx([0.26 / 3])


def test_a_heads_variance_is_the_mean_of_its_directions():
    gates = np.zeros((2, 1, 2, 2))
    gates[0, 0, 0] = [1.0, 0.0]
    found = domain_gates(gates, ["a", "b"])
    assert found.head_variance.tolist() == [[0.125, 0.0]]


def test_specialists_are_the_top_quartile_over_all_layers():
    variance = np.array([[0.5, 0.1, 0.4], [0.2, 0.3, 0.0], [0.05, 0.05, 0.05]])
    assert specialists(variance).tolist() == [[True, False, True], [False, True, False], [False] * 3]
    assert specialists(np.zeros((2, 4))).sum() == 0
    assert specialists(np.ones((2, 4))).tolist() == [[True, True, False, False], [False] * 4]


@pytest.mark.parametrize(
    ("gates", "domains", "field"),
    [(np.zeros((2, 1, 1, 1)), ["a"], "domains"), (np.full((1, 1, 1, 1), np.nan), ["a"], "gates")],
)
def test_gates_that_mean_nothing_are_refused(gates, domains, field):
    with pytest.raises(UserError) as caught:
        domain_gates(gates, domains)
    assert caught.value.field == field


# principal components


def test_components_of_points_on_a_line():
    along = np.array([-2.0, -1.0, 0.0, 3.0])
    vectors = 5 + along[:, None] * np.array([[0.6, -0.8]])
    found = principal_components(vectors, 1)
    assert found.explained == pytest.approx([1.0])
    assert found.axes[0] == pytest.approx([-0.6, 0.8])
    assert found.scores[:, 0] == pytest.approx(-(along - along.mean()))


def test_components_are_those_of_the_covariance_matrix():
    vectors = np.random.default_rng(0).normal(size=(40, 6)) * np.arange(1, 7)
    found = principal_components(vectors, 3)
    values, axes = np.linalg.eigh(np.cov(vectors.T))
    assert found.explained == pytest.approx((values / values.sum())[::-1][:3])
    for i in range(3):
        assert abs(found.axes[i] @ axes[:, -1 - i]) == pytest.approx(1)
        assert found.axes[i][np.abs(found.axes[i]).argmax()] > 0
    assert found.scores.var(axis=0, ddof=1) == pytest.approx(values[::-1][:3])


def test_too_many_components_are_refused():
    with pytest.raises(UserError, match="between 1 and 2") as caught:
        principal_components(np.zeros((3, 9)), 3)
    assert caught.value.field == "count"
    assert principal_components(np.zeros((3, 9)), 2).explained.tolist() == [0, 0]


# domain accuracy


def test_each_sample_is_left_out_of_its_own_centroid():
    rng = np.random.default_rng(1)
    vectors, codes = rng.normal(size=(12, 3)), np.array([0, 1, 2] * 4)
    for i, given in enumerate(nearest_centroids(vectors, codes)):
        others = [j for j in range(12) if j != i]
        distances = [
            np.linalg.norm(vectors[i] - vectors[[j for j in others if codes[j] == code]].mean(axis=0))
            for code in range(3)
        ]
        assert given == int(np.argmin(distances))


def test_apart_domains_are_told_apart_and_noise_is_not():
    rng = np.random.default_rng(0)
    domains = ["code"] * 30 + ["math"] * 10 + ["web"] * 10
    noise = rng.normal(size=(50, 8))
    apart = noise + 6 * np.eye(8)[[0] * 30 + [1] * 10 + [2] * 10]
    known = centroid_accuracy(apart, domains, shuffles=50)
    assert known.accuracy == 1
    assert known.by_domain == {"code": 1, "math": 1, "web": 1}
    assert known.p_value == pytest.approx(1 / 51)
    assert known.null_mean < known.null_max < 0.8
    unknown = centroid_accuracy(noise, domains, shuffles=50)
    assert unknown.p_value > 0.05
    assert abs(unknown.balanced - unknown.null_mean) < 0.2


def test_the_balanced_accuracy_counts_every_domain_once():
    vectors = np.array([[0.0], [0.1], [0.2], [0.1], [9.0], [0.0]])
    found = centroid_accuracy(vectors, ["a", "a", "a", "a", "b", "b"], shuffles=5)
    assert found.by_domain["b"] == 0
    assert found.accuracy == pytest.approx(4 / 6)
    assert found.balanced == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("domains", "words"), [(["a", "a", "a"], "takes two of them"), (["a", "a", "b"], "'b' has one sample")]
)
def test_domains_that_cannot_be_told_apart_are_refused(domains, words):
    with pytest.raises(UserError, match=words) as caught:
        centroid_accuracy(np.zeros((3, 2)), domains)
    assert caught.value.field == "domains"


# words of a direction


@pytest.mark.parametrize("tied", [True, False])
def test_the_vocabulary_of_a_direction_by_loops(tied):
    model = small(tied=tied)
    found = direction_vocabulary(model, top=5)
    assert found.token_ids.shape == (2, 3, 2, 5)
    for layer in range(2):
        for head in range(3):
            for k in range(2):
                padded = torch.zeros(24)
                direction = model.layers[layer].directions[head, k]
                padded[head * 8 : head * 8 + 8] = direction / direction.norm()
                written = model.layers[layer].attention.proj.weight @ padded
                scores = [float(row @ written) for row in model.unembedding]
                best = sorted(range(31), key=lambda c: -scores[c])[:5]
                assert found.token_ids[layer, head, k].tolist() == best
                assert found.scores[layer, head, k] == pytest.approx([scores[c] for c in best], abs=1e-4)


def test_entries_that_are_not_allowed_are_left_out():
    model = small()
    everything = direction_vocabulary(model, top=31)
    allowed = np.arange(31) % 3 == 0
    found = direction_vocabulary(model, top=4, allowed=allowed)
    for place in np.ndindex(2, 3, 2):
        expected = [i for i in everything.token_ids[place] if i % 3 == 0][:4]
        assert found.token_ids[place].tolist() == expected
    with pytest.raises(UserError, match="11 entries") as caught:
        direction_vocabulary(model, top=12, allowed=allowed)
    assert caught.value.field == "top"


def test_words_of_nothing_or_too_many_are_refused():
    for model, top, field in ((small(directions=0), 10, "directions"), (small(), 32, "top"), (small(), 0, "top")):
        with pytest.raises(UserError) as caught:
            direction_vocabulary(model, top)
        assert caught.value.field == field


def test_angles_of_directions_by_hand():
    model = small(layers=1, heads=1, width=4, directions=3)
    turned = [[1.0, 0, 0, 0], [0, -2.0, 0, 0], [-1.0, 1.0, 0, 0]]
    model.layers[0].directions.copy_(torch.tensor([turned]))
    assert float(direction_angles(model)) == pytest.approx((90 + 45 + 45) / 3, abs=0.01)


# effects


def test_effects_are_losses_and_divergences_beside_the_normal_run():
    model, data = small(), rows()
    table = {e.name: e for e in effects(model, data, ablations(model))}
    assert list(table) == ["normal", "off", "neutral", "full", "off in layer 0", "off in layer 1"]
    normal, off = model(data[:, :-1]).logits, model(data[:, :-1], None, Interventions.everywhere(0.0)).logits
    p, q = normal.softmax(-1), off.softmax(-1)
    nats = -q.gather(-1, data[:, 1:, None]).log().mean()
    assert table["off"].loss == pytest.approx(float(nats), abs=1e-4)
    assert table["off"].perplexity == pytest.approx(math.exp(nats), rel=1e-4)
    assert table["off"].kl == pytest.approx(float((p * (p / q).log()).sum(-1).mean()), abs=1e-4)
    assert table["off"].top1_changed == pytest.approx(float((p.argmax(-1) != q.argmax(-1)).float().mean()))
    assert table["off"].delta_loss == pytest.approx(table["off"].loss - table["normal"].loss)
    assert (table["normal"].delta_loss, table["normal"].kl, table["normal"].top1_changed) == (0, 0, 0)
    assert table["off"].kl > 0


def test_mean_gates_are_the_same_for_every_input():
    model, data = small(), rows()
    mean = torch.from_numpy(gates_of(model, data[:, :-1]).mean(axis=0))
    held = model(data[:, :-1], None, fixed_gates(mean))
    assert torch.allclose(held.gates, mean.expand(4, 1, -1, -1, -1))
    assert "mean gates" in {e.name for e in effects(model, data, ablations(model, mean))}


@pytest.mark.parametrize("pooling", ["sequence", "prefix"])
def test_the_gates_of_a_row_are_the_mean_over_its_decisions(pooling):
    model, data = small(pooling=pooling), rows(40)
    assert gates_of(model, data) == pytest.approx(model(data).gates.mean(dim=1).numpy(), abs=1e-5)


def test_swapping_a_row_with_itself_changes_nothing_and_with_another_something():
    model, a, b = small(), rows(), rows(seed=5)
    assert swap_effects(model, a, a).tolist() == pytest.approx([0] * 4, abs=1e-5)
    expected = [0.0] * 4
    for own, other in ((a, b), (b, a)):
        for i in range(4):
            gates = model(other[i : i + 1, :-1]).gates
            swapped = model(own[i : i + 1, :-1], None, Interventions(gates=gates, gate_layers=(1,))).logits
            plain = model(own[i : i + 1, :-1]).logits
            loss = [torch.nn.functional.cross_entropy(x[0], own[i, 1:]) for x in (swapped, plain)]
            expected[i] += float(loss[0] - loss[1]) / 2
    assert swap_effects(model, a, b, (1,)).tolist() == pytest.approx(expected, abs=1e-5)
    with pytest.raises(UserError, match="as many, as long") as caught:
        swap_effects(model, a, b[:2])
    assert caught.value.field == "second"


# induction


class Copier(Directional):
    """Says what followed the last occurrence of a token; without routing it says token 0."""

    def __init__(self) -> None:
        super().__init__(DirectionalConfig(width=24, heads=3, mlp_width=4, layers=2, vocab_size=31, context=24))

    def forward(self, inputs, valid=None, interventions=None):
        batch, tokens = inputs.shape
        logits = torch.zeros(batch, tokens, 31)
        for b in range(batch):
            for t in range(tokens):
                seen = [i for i in range(t) if inputs[b, i] == inputs[b, t]]
                said = int(inputs[b, seen[-1] + 1]) if seen else 0
                if interventions and interventions.edits:
                    said = 0
                if interventions and interventions.knocked_out == ((1, 2),) and t % 2:
                    said = 0
                logits[b, t, said] = 50.0
        return DirectionalOutput(logits, torch.zeros(batch, 1, 2, 3, 4))


def test_repeated_rows_repeat_distinct_tokens():
    data = repeated_rows(5, 7, 31, seed=3, repeats=3, first_id=1)
    assert data.shape == (5, 21)
    assert (data[:, :7] == data[:, 7:14]).all()
    assert (data[:, :7] == data[:, 14:]).all()
    assert data.min() >= 1
    assert all(len(set(row[:7].tolist())) == 7 for row in data)
    assert not torch.equal(data, repeated_rows(5, 7, 31, seed=4, repeats=3, first_id=1))


def test_a_copier_has_perfect_induction_until_it_is_switched_off():
    data = repeated_rows(3, 8, 31, seed=0, first_id=1)
    model = Copier()
    normal = induction(model, data, 8)
    assert normal.accuracy == 1
    assert normal.loss < 1e-3
    assert normal.first_loss > 40
    assert induction(model, data, 8, Interventions((GateEdit(0.0),))).accuracy == 0
    # positions 8 … 14 count; the odd ones of them, 9, 11 and 13, fail without this head
    assert induction(model, data, 8, Interventions(knocked_out=((1, 2),))).accuracy == pytest.approx(4 / 7)


def test_knockouts_go_through_every_head():
    model = small()
    data = repeated_rows(4, 5, 31)
    table = knockout_accuracies(model, data, 5)
    assert table.shape == (2, 3)
    assert table[1, 2] == induction(model, data, 5, Interventions(knocked_out=((1, 2),))).accuracy


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: repeated_rows(1, 40, 31), "period"),
        (lambda: repeated_rows(1, 4, 31, repeats=1), "repeats"),
        (lambda: induction(small(), rows(2, 6), 5), "period"),
        (lambda: prefix_losses(small(), rows(), [12]), "positions"),
    ],
)
def test_measurements_of_nothing_are_refused(call, field):
    with pytest.raises(UserError) as caught:
        call()
    assert caught.value.field == field


# looking ahead


def test_a_causal_model_gains_nothing_from_what_stands_behind():
    model, data = small(pooling="prefix"), rows(40)
    assert torch.allclose(prefix_losses(model, data, [0, 5, 11]), losses(model, data)[:, [0, 5, 11]], atol=1e-5)
    found = lookahead(model, data, [0, 5, 11])
    assert found.gain == pytest.approx(0, abs=1e-5)
    assert found.in_view == pytest.approx(found.hidden, abs=1e-5)


def test_sequence_pooling_differs_but_at_the_last_position():
    """There the whole sequence is what stands before, and nothing is left to leak."""
    model, data = small(), rows()
    seen, hidden = losses(model, data), prefix_losses(model, data, range(12))
    assert torch.allclose(seen[:, 11], hidden[:, 11], atol=1e-5)
    assert ((seen - hidden).abs()[:, :11].mean(dim=0) > 1e-4).all()


def test_gates_held_from_a_prompt_never_see_what_follows_it():
    model, data = small(), rows(3, 13)
    found = held_losses(model, data, 5)
    assert found.shape == (3, 7)
    gates = model(data[:, :5]).gates
    expected = model(data[:, :-1], None, Interventions(gates=gates)).logits[:, 5:].log_softmax(-1)
    assert torch.allclose(found, -expected.gather(-1, data[:, 6:, None])[..., 0], atol=1e-5)
    changed = data.clone()
    changed[:, 12] = (changed[:, 12] + 1) % 31
    assert torch.equal(held_losses(model, changed, 5)[:, :-1], found[:, :-1])
    with pytest.raises(UserError, match="between 1 and 11") as caught:
        held_losses(model, data, 12)
    assert caught.value.field == "prompt"


def test_a_model_trained_to_peek_shows_it_as_a_gain():
    """One token decides the whole row and stands at its end: only a router that sees ahead can know it."""
    torch.manual_seed(0)
    config = DirectionalConfig(
        width=16, heads=2, mlp_width=32, layers=1, directions=4, router_width=16, vocab_size=8, context=8
    )
    gains = {}
    for pooling in ("sequence", "prefix"):
        torch.manual_seed(0)
        model = Directional(config.model_copy(update={"pooling": pooling}))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        generator = torch.Generator().manual_seed(0)
        for _ in range(100):
            data = torch.randint(8, (32, 1), generator=generator).expand(-1, 9).clone()
            data[:, 0] = 0
            optimizer.zero_grad()
            model.training_loss(data[:, :-1], data[:, 1:])[0].backward()
            optimizer.step()
        model.eval().requires_grad_(False)
        data = torch.arange(8)[:, None].expand(-1, 9).clone()
        data[:, 0] = 0
        gains[pooling] = lookahead(model, data, [0])
    # ln 8 = 2.08 nats is all there is to know about the first successor
    assert gains["sequence"].gain > 1
    assert abs(gains["prefix"].gain) < 1e-4
