"""What an edit means in the families that do not route tokens one by one, against other ways to the same numbers."""

from __future__ import annotations

import json

import pytest
import torch

from tests.engine.models import test_dipaco, test_directional, test_hmodel, test_raytracing
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.families.edit_values import KINDS
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS
from tokenpaths.engine.jobs.model_outline import FamilyOutline
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.directional_gates import FULL, OFF, GateEdit, Interventions
from tokenpaths.engine.models.family import family_class
from tokenpaths.engine.tracing.loaded_model import LoadedModel


def under(model, edits, x, valid=None, **controls):
    return model.trace_with(x, valid, model.read_controls({"edits": edits} | controls))


# H-Model --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [None, 2])
def test_hmodel_edits_are_connections_given_by_hand(top_k):
    """The connections that an edited pass shows, given to an unedited one, make the same states and logits."""
    model, x = test_hmodel.make(pooling="sequence"), test_hmodel.tokens()
    edits = [
        {"edit": "ban", "modules": [1], "step": 1},
        {"edit": "force", "module": 2, "step": 0},
        {"edit": "bias", "modules": [0], "value": 0.4},
    ]
    options = {} if top_k is None else {"top_k": top_k}
    edited, plain = under(model, edits, x, **options), model.trace(x, **options)
    assert (edited.edges[:, 1, :3, 1] == 0).all()  # nobody sends to layer 1 before the second iteration
    assert (plain.edges[:, 1, :3, 1] > 0).any()
    assert (edited.edges[:, 0, 3:, 2] == 1).all()  # the input sends all to layer 2
    again = model.trace(x, connections=edited.edges)
    torch.testing.assert_close(again.logits, edited.logits, atol=1e-5, rtol=1e-5)
    assert (edited.logits - plain.logits).abs().max() > 1e-3


def test_hmodel_bias_moves_the_logit():
    model, x = test_hmodel.make(pooling="sequence"), test_hmodel.tokens()
    plain, edited = model.trace(x), under(model, [{"edit": "bias", "modules": [2], "value": -0.7, "step": 0}], x)
    alpha = model.config.alpha
    expected = torch.sigmoid(plain.edges[:, 0, 3:, 2].logit() - 0.7 / alpha)
    torch.testing.assert_close(edited.edges[:, 0, 3:, 2], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(edited.edges[:, 0, 3:, :2], plain.edges[:, 0, 3:, :2])


def test_hmodel_bias_means_the_same_with_connections_given():
    """A sample's own connections, given to it: a bias moves them as it moves those of the heads."""
    model = test_hmodel.make(pooling="sequence", alpha=3, alpha_rate=0.9)
    x = test_hmodel.tokens(1)
    own, bias = model.trace(x).edges, [{"edit": "bias", "modules": [2], "value": -1.5, "step": 1}]
    assert ((own[:, 1, :3] > 0.001) & (own[:, 1, :3] < 0.999)).all(), "logits can be told from c"
    moved = under(model, bias, x).edges
    assert (moved[:, 1, :3, 2] < own[:, 1, :3, 2] - 0.001).all()
    given = under(model, bias, x, connections=own[0].tolist()).edges
    torch.testing.assert_close(given[:, :2], moved[:, :2], atol=1e-4, rtol=1e-3)


def test_hmodel_takes_the_connections_of_another_sample():
    model, x = test_hmodel.make(pooling="sequence"), test_hmodel.tokens(2)
    both = model.trace(x)
    swapped = model.trace_with(x[:1], None, model.read_controls({"connections": both.edges[1].tolist()}))
    torch.testing.assert_close(swapped.edges, both.edges[1:], atol=1e-6, rtol=1e-6)
    banned = under(model, [{"edit": "ban", "modules": [0]}], x[:1], connections=both.edges[1].tolist())
    assert (banned.edges[:, :3, :, 0] == 0).all()
    with pytest.raises(UserError, match="ragged"):
        model.trace_with(x, None, model.read_controls({"connections": [[[0.5, 0.5], [0.5]]]}))


# Directional ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["sequence", "prefix"])
def test_directional_edits_are_gates_set_by_hand(pooling):
    model = test_directional.lively(test_directional.small(pooling=pooling))
    x = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    # Module 3 of six directions is head 1, direction 1; module 6 + 4 leaves head 2, direction 0 alone.
    edits = [
        {"edit": "ban", "modules": [3], "step": 1},
        {"edit": "force", "module": 0},
        {"edit": "ban", "modules": [10], "step": 2},
    ]
    by_hand = Interventions((GateEdit(FULL, None, 0, 0), GateEdit(OFF, 1, 1, 1), GateEdit(FULL, 2, 2, 0)))
    edited, expected = under(model, edits, x), model.trace(x, None, by_hand)
    torch.testing.assert_close(edited.logits, expected.logits)
    torch.testing.assert_close(edited.gates, expected.gates)
    assert (edited.module_ids[:, :, 1] != 3).all()


def test_two_gates_and_two_connections_are_forced_at_once():
    model, both = test_directional.lively(test_directional.small()), [{"edit": "force", "module": m} for m in (0, 4)]
    x = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    gates = under(model, both, x).gates.flatten(2)
    assert (gates[:, :, [0, 4]] == 1).all()
    with pytest.raises(
        UserError, match="direction 4 of layer 0 is to be removed .module 4. and left alone .module 10."
    ):
        under(model, [*both, {"edit": "force", "module": 10}], x)
    model, x = test_hmodel.make(pooling="sequence"), test_hmodel.tokens(2)
    edges = under(model, both[:1] + [{"edit": "force", "module": 1}], x).edges
    one = [under(model, [{"edit": "force", "module": m}], x).edges for m in (0, 1)]
    assert not any(torch.equal(edges, alone) for alone in one)


def test_directional_frozen_layers_keep_their_gates():
    model = test_directional.lively(test_directional.small())
    x = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    plain, edits = model.trace(x), [{"edit": "ban", "modules": [1, 2], "step": 0}, {"edit": "freeze"}]
    frozen, loose = under(model, edits, x), under(model, edits[:1], x)
    torch.testing.assert_close(frozen.gates[:, 1:], plain.gates[:, 1:])
    assert not torch.allclose(loose.gates[:, 1:], plain.gates[:, 1:])
    assert not torch.allclose(frozen.logits, loose.logits)
    torch.testing.assert_close(under(model, [{"edit": "freeze"}], x).logits, plain.logits)
    with pytest.raises(UserError, match="could neither be removed .module 3. nor left alone .module 9."):
        under(model, [{"edit": "ban", "modules": [3, 9], "step": 1}], x)
    with pytest.raises(UserError, match="leave out freeze or gates"):
        under(model, [{"edit": "freeze"}], x, gates=plain.gates[0].tolist())


def test_directional_layers_are_frozen_or_have_gates_given_but_not_both():
    model = test_directional.lively(test_directional.small())
    x = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    plain = model.trace(x)
    off = under(model, [{"edit": "freeze", "step": 1}], x, gate=0, gate_layer=0)
    assert (off.gates[:, 0] == 0).all()
    torch.testing.assert_close(off.gates[:, 1], plain.gates[:, 1])
    assert not torch.allclose(off.gates[:, 2], plain.gates[:, 2])
    rest = under(model, [{"edit": "freeze"}], x, gate=0, gate_layer=0, gate_head=1)
    assert (rest.gates[:, 0, 1] == 0).all()
    torch.testing.assert_close(rest.gates[:, 0, 0], plain.gates[:, 0, 0])
    torch.testing.assert_close(rest.gates[:, 1:], plain.gates[:, 1:])
    for edits, controls, words in (
        ([{"edit": "freeze", "step": 1}], {"gate": 0}, "step 1 is frozen, and its gates are to be 0"),
        ([{"edit": "freeze", "step": 1}], {"gate": 0.5, "gate_layer": 1, "gate_head": 0}, "are to be 0.5"),
        ([{"edit": "freeze"}], {"gate": 1}, "none is left to be frozen"),
        ([{"edit": "ban", "modules": [1], "step": 0}, {"edit": "freeze"}], {"gate": 1}, "none is left to be frozen"),
    ):
        with pytest.raises(UserError, match=words) as refused:
            model.top_k_under(model.read_controls({"edits": edits} | controls))
        assert refused.value.field == "gate"


# DiPaCo ---------------------------------------------------------------------------------------------------------


def documents(batch: int = 6, tokens: int = 12) -> torch.Tensor:
    return torch.randint(30, (batch, tokens), generator=torch.Generator().manual_seed(5))


def test_dipaco_takes_the_best_path_that_is_left():
    model, x = test_dipaco.model(levels=(3, 2), blocks=(1, 1)), documents()
    test_dipaco.differ(model.levels)
    _, scores, _ = model.decide(x)
    edits = [{"edit": "ban", "modules": [1], "step": 0}, {"edit": "bias", "modules": [1], "value": 0.3, "step": 1}]
    traced = under(model, edits, x)
    for row, document in enumerate(x):
        best = max(
            (path for path in range(6) if path // 2 != 1), key=lambda p: float(scores[row, 0, p]) + 0.3 * (p % 2 == 1)
        )
        assert traced.module_ids[row, 0, :, 0].tolist() == [best // 2, best % 2]
        alone = model.trace(document[None], path=best)
        torch.testing.assert_close(traced.logits[row], alone.logits[0], atol=1e-5, rtol=1e-4)
    assert not torch.equal(traced.module_ids, model.trace(x).module_ids)
    forced = under(model, [{"edit": "force", "module": 2, "step": 0}], x)
    assert (forced.module_ids[:, :, 0] == 2).all()
    with pytest.raises(UserError, match="step 1 has 0 modules left with 2 of 2 banned"):
        under(model, [{"edit": "ban", "modules": [0, 1], "step": 1}], x)
    with pytest.raises(UserError, match="a path is chosen for a whole text or chunk; leave tokens out"):
        under(model, [{"edit": "force", "module": 0, "step": 0, "tokens": [1]}], x)


def test_dipaco_takes_the_route_of_another_document():
    model, x = test_dipaco.model(levels=(3, 2), blocks=(1, 1), rerouter=True), documents()
    test_dipaco.differ(model.levels)
    route = model.trace(x[:1], reroute_every=4)
    for start in range(0, 12, 4):
        route.module_ids[:, start : start + 4] = torch.tensor([[(start // 4) % 3], [start // 4 % 2]])
    chunks = model.decide(x, None, 4)[2]
    paths = [[chunk % 3, chunk % 2] for chunk in chunks.tolist()]
    ribbons = [[[module] for module in path] for path in paths]
    swapped = under(model, [{"edit": "swap", "ribbons": ribbons}], x[1:2], reroute_every=4)
    assert swapped.module_ids[0, :, :, 0].tolist() == paths
    wanted = torch.tensor([[(c % 3) * 2 + c % 2 for c in range(int(chunks[-1]) + 1)]])
    expected = model(x[1:2], wanted, None, 4).logits
    torch.testing.assert_close(swapped.logits, expected)
    with pytest.raises(UserError, match="changes its path behind token 0, where this model decides nothing"):
        under(model, [{"edit": "swap", "ribbons": ribbons}], x[1:2])
    with pytest.raises(UserError, match="of 12 tokens, this text has 7"):
        under(model, [{"edit": "swap", "ribbons": ribbons}], x[1:2, :7], reroute_every=4)


# RayTracing -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", ["batched", "naive"])
def test_raytracing_banned_blocks_are_silent(execution):
    config = test_raytracing.small()
    model, x = test_raytracing.lively(config, execution), test_raytracing.images(6, config)
    plain, edited = model.trace(x), under(model, [{"edit": "ban", "modules": [1], "step": 0}], x)
    assert (plain.blocks[:, :, 1] > 0).any()
    assert (edited.blocks[:, :, 1] == 0).all()
    assert (edited.module_ids[:, 0, 0] != 1).all()
    batched = under(test_raytracing.lively(config), [{"edit": "ban", "modules": [1], "step": 0}], x)
    torch.testing.assert_close(batched.logits, edited.logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(batched.blocks, edited.blocks, atol=1e-5, rtol=1e-4)
    with pytest.raises(UserError, match="all 9 blocks are banned, so nothing could reach the output"):
        under(model, [{"edit": "ban", "modules": [0, 1, 2]}], x)


@pytest.mark.parametrize("execution", ["batched", "naive"])
def test_raytracing_without_the_block_before(execution):
    """Block 1 reads input neuron 1, which sends 2 · ¼, and block 0; without block 0 its rate is ½ for ever."""
    model = test_raytracing.by_hand(execution)
    x = torch.zeros(1, 3, 1, 1)
    plain, edited = model.trace(x), under(model, [{"edit": "ban", "modules": [0], "step": 0}], x)
    rates = edited.blocks[0, :, 1]
    assert (edited.blocks[0, :, 0] == 0).all()
    torch.testing.assert_close(rates[rates > 0].unique(), torch.tensor([0.5]))
    assert plain.blocks[0, :, 1].max() > 0.5


# All families ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILY_CONTROLS)
def test_a_family_says_which_edits_it_has_and_why_not_the_others(family):
    controls = family_class(family).Controls
    assert family == controls.FAMILY
    assert set(controls.EDITS) | set(controls.WHY_NOT) == set(KINDS)
    assert not set(controls.EDITS) & set(controls.WHY_NOT)
    for kind, why in controls.WHY_NOT.items():
        with pytest.raises(UserError) as refused:
            family_class(family).read_controls({"edits": [{"edit": kind}]})
        has = ", ".join(controls.EDITS)
        assert str(refused.value) == f"a {family} model has no edit {kind!r}: {why}; it has: {has}"
    schema = json.dumps(controls.model_json_schema())
    assert "What is to be different in the routes" in schema


# What else may be changed -----------------------------------------------------------------------------------------

MODELS = {
    "directional": lambda: test_directional.lively(test_directional.small()),
    "hmodel": test_hmodel.make,
    "dipaco": lambda: test_dipaco.model(levels=(3, 2), blocks=(1, 1)),
    "raytracing": lambda: test_raytracing.lively(test_raytracing.small()),
}
OWN = torch.full((4, 4, 4), 0.5).tolist()
HALVES = [[[0.5, 0.5]] * 3] * 3
MISFITS = [
    ("dipaco", {"path": 77}, "path", "path 77 is not one of 0 to 5"),
    ("dipaco", {"path": 1, "edits": [{"edit": "ban", "modules": [0], "step": 0}]}, "edits", "nothing to edit"),
    ("dipaco", {"path": 1, "reroute_every": 8}, "reroute_every", "nothing to choose again"),
    ("dipaco", {"reroute_every": 8}, "reroute_every", "no learned router"),
    ("directional", {"knocked_out": [[99, 0]]}, "knocked_out", "layer 99 is not one of 0 to 2"),
    ("directional", {"knocked_out": [[0, 0], [0, -1]]}, "knocked_out", "head -1 is not one of 0 to 2"),
    ("directional", {"gate": 0.5, "gate_layer": 77}, "gate_layer", "gate_layer 77 is not one of 0 to 2"),
    ("directional", {"gate": 0.5, "gate_direction": 2}, "gate_direction", "is not one of 0 to 1"),
    ("directional", {"gate_layer": 1}, "gate", "give gate as well"),
    ("directional", {"gates": [[[0.5]]]}, "gates", r"shape \(1, 1, 1\).*= \(3, 3, 2\)"),
    ("directional", {"gates": [[[0.5], [0.1, 0.2]]]}, "gates", "ragged"),
    ("directional", {"gates": [*HALVES[:2], [[0.5, 1.5]] * 3]}, "gates", "not between 0 and 1"),
    ("directional", {"gates": HALVES, "edits": [{"edit": "freeze"}]}, "gates", "leave out freeze or gates"),
    ("hmodel", {"top_k": 99}, "top_k", "give 1 to 4"),
    ("hmodel", {"alpha_rate": 0.1, "alpha": 0.01, "connections": OWN}, "alpha", "connections replace that"),
    ("hmodel", {"alpha_rate": 2, "connections": OWN}, "alpha_rate", "connections replace that"),
    ("hmodel", {"top_k": 1, "connections": OWN}, "top_k", "connections replace that"),
    ("hmodel", {"connections": [[[0.5]]]}, "connections", r"shape \(1, 1, 1\).*= \(4, 4, 4\)"),
    ("hmodel", {"connections": [[[0.5, 0.5], [0.5]]]}, "connections", "ragged"),
    ("hmodel", {"connections": [*OWN[:3], [[float("nan")] * 4] * 4]}, "connections", "not between 0 and 1"),
    ("raytracing", {"theta_steps": 900}, "theta_steps", "900 is not between 1 and"),
]


def before_anything_runs(model, folder):
    """The two places that refuse: with the configuration alone, as the API does, and with the model."""
    folder = save_checkpoint(folder, model)
    about = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    loaded = LoadedModel("m", read_checkpoint(folder), model, "", None, torch.device("cpu"))
    return FamilyOutline("m", about).check_controls, loaded.with_controls


@pytest.mark.parametrize(("family", "controls", "field", "words"), MISFITS)
def test_controls_that_do_not_fit_are_refused_before_anything_runs(tmp_path, family, controls, field, words):
    for check in before_anything_runs(MODELS[family](), tmp_path):
        with pytest.raises(UserError, match=words) as refused:
            check(controls)
        assert refused.value.field == field


@pytest.mark.parametrize(
    ("family", "controls"),
    [
        ("dipaco", {"path": 5}),
        ("directional", {"gate": 0, "gate_layer": 2, "gate_head": 2, "gate_direction": 1, "knocked_out": [[2, 2]]}),
        ("directional", {"gates": HALVES, "gate": 1, "pooling": "prefix"}),
        ("hmodel", {"top_k": 4, "alpha": 0.5, "alpha_rate": 2}),
        ("hmodel", {"connections": OWN, "alpha": 2, "edits": [{"edit": "bias", "modules": [0], "value": 1}]}),
        ("raytracing", {"theta_steps": 1, "theta_out": 2}),
    ],
)
def test_controls_that_fit_are_let_through(tmp_path, family, controls):
    for check in before_anything_runs(MODELS[family](), tmp_path):
        check(controls)
