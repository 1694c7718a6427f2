"""Mixture-of-experts and Mixture-of-Depths route as their papers define it: checked token by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.runs.arrays import RunArrays, routed, run_info
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord
from tokenpaths.engine.base.routing import route, route_expert_choice
from tokenpaths.engine.edits.sweep import module_rows
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.families.presets import mixture_of_depths, moe_transformer
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import choices_of

SIZE = dict(width=16, heads=2, mlp_width=32, vocab_size=50, context=24)


def moe(**changes) -> DNAConfig:
    return moe_transformer("text", **(dict(layers=3, experts=4, top_k=2) | SIZE | changes))


def mod(**changes) -> DNAConfig:
    return mixture_of_depths("text", **(dict(layers=4, capacity=0.25) | SIZE | changes))


def ids(batch: int = 2, tokens: int = 12) -> torch.Tensor:
    return torch.randint(0, 50, (batch, tokens), generator=torch.Generator().manual_seed(1))


def louder(model: DNA) -> DNA:
    """Routers that decide: at initialisation all scores are nearly equal."""
    for router in model.routers:
        torch.nn.init.normal_(router.weight, std=1.0)
    return model


@pytest.mark.parametrize(("top_k", "renormalise"), [(2, True), (1, False)], ids=["mixtral", "switch"])
def test_a_moe_layer_is_the_sum_of_its_experts_weighted_as_its_paper_says(top_k: int, renormalise: bool):
    torch.manual_seed(0)
    model = louder(DNA(moe(top_k=top_k, renormalise=renormalise)))
    h = model.start(ids())
    for step in range(3):
        h = model.before_step[step](h, causal=True)
        expected = h.clone()
        logits = model.routers[step](h)[..., 4 * step : 4 * step + 4]
        for b in range(h.shape[0]):
            for t in range(h.shape[1]):
                if renormalise:
                    # Mixtral, equation 2: softmax over the K largest logits.
                    top, chosen = logits[b, t].topk(top_k)
                    gates = top.softmax(-1)
                else:
                    # Switch, equations 1 and 2: the largest probability itself.
                    gates, chosen = logits[b, t].softmax(-1).topk(top_k)
                for gate, expert in zip(gates, chosen, strict=True):
                    expected[b, t] += gate * model.bank[4 * step + int(expert)].mlp(h[b, t])
        decision = model.decide(h, step)
        h = _step(model, h, decision)
        assert torch.allclose(h, expected, atol=1e-5)
    assert torch.allclose(model.finish(h), model(ids()).logits, atol=1e-5)


def _step(model: DNA, h: torch.Tensor, decision) -> torch.Tensor:
    from tokenpaths.engine.models.bank.bank import grouped_step

    shape = (*h.shape[:2], -1)
    return grouped_step(model.bank, h, decision.module_ids.view(shape), decision.weights.view(shape), causal=True)


def test_no_step_of_a_moe_leaves_its_experts():
    torch.manual_seed(0)
    model = louder(DNA(moe()))
    for step, decision in enumerate(model(ids()).decisions):
        assert set(decision.module_ids.flatten().tolist()) <= set(range(4 * step, 4 * step + 4))
        assert torch.allclose(decision.weights.sum(-1), torch.ones(24))
        outside = [m for m in range(12) if m not in range(4 * step, 4 * step + 4)]
        assert (decision.probs[:, outside] == 0).all()


def test_experts_belong_to_their_step_in_the_module_table():
    rows = DNA(moe()).module_table()
    assert [row.step for row in rows] == [0] * 4 + [1] * 4 + [2] * 4
    assert {row.kind for row in rows} == {"mlp"}


def test_modules_of_some_steps_are_offered_at_these_only(tmp_path: Path):
    """Two modules that two of three steps share, beside two of one step: load is of what a step offers."""
    config = DNAConfig(
        modality="text",
        width=8,
        heads=2,
        mlp_width=16,
        backbone=0,
        steps=3,
        mlps=4,
        choices=((0, 1), (0, 1), (2, 3)),
        vocab_size=50,
        context=12,
    )
    rows = DNA(config).module_table()
    assert [(row.step, row.module) for row in rows if row.kind == "mlp"] == [(None, 0), (None, 1), (2, 2), (2, 3)]
    assert choices_of(rows, 3) == [[0, 1], [0, 1], [2, 3]]
    bans = [(row.step, row.module) for row in module_rows(rows, choices_of(rows, 3))]
    assert bans == [(0, 0), (1, 0), (None, 0), (0, 1), (1, 1), (None, 1), (2, 2), (2, 3)]
    even = np.array([[[0], [1], [2]], [[0], [0], [3]], [[1], [1], [2]], [[1], [0], [3]]])
    info = run_info("some", num_steps=3, num_modules=config.num_modules, top_k=1)
    with Run.open(RunArrays(info, rows, [routed([SampleRecord(4)], even)]).write(tmp_path)) as run:
        for step in run.usage()["steps"]:
            assert (step["load_entropy"], step["max_violation"], step["dead"]) == (pytest.approx(1), 0, [])
        # Of three visits the shared module is one where a token takes it twice.
        reuse = [token["reuse"] for token in run.sample(0)["tokens"]]
        assert reuse == pytest.approx([0, 1 / 3, 1 / 3, 0])
    with pytest.raises(UserError, match="step 2 offers no module 1"):
        RunArrays(info, rows, [routed([SampleRecord(4)], even[:, [0, 1, 1]])]).write(tmp_path / "other")


def test_each_block_of_a_mixture_of_depths_takes_its_best_tokens_and_leaves_the_rest_as_they_are():
    torch.manual_seed(0)
    model = louder(DNA(mod()))
    h = model.start(ids())
    for step in range(2):
        h = model.before_step[step](h, causal=True)
        scores = model.routers[step](h)[..., step].sigmoid()
        decision = model.decide(h, step)
        after = _step(model, h, decision)
        for b in range(2):
            best = sorted(scores[b].topk(3).indices.tolist())  # a quarter of 12 tokens
            taken = (decision.module_ids.view(2, 12)[b] == step).nonzero().flatten().tolist()
            assert taken == best
            rest = [t for t in range(12) if t not in best]
            assert torch.equal(after[b, rest], h[b, rest])
            # The block sees only the tokens it took, in their order, and its output is weighed by the router.
            x = h[b : b + 1, best]
            change = model.bank[step](x, causal=True) - x
            assert torch.allclose(after[b, best], h[b, best] + scores[b, best, None] * change[0], atol=1e-5)
        h = after


def test_a_router_of_a_mixture_of_depths_learns_through_its_weights():
    torch.manual_seed(0)
    model = DNA(mod())
    model.training_loss(ids(), ids())[0].backward()
    assert all(router.weight.grad[step].abs().sum() > 0 for step, router in enumerate(model.routers))


def test_compute_of_a_mixture_of_depths_is_its_capacity():
    model = DNA(mod(every=1, layers=2))
    traced = model.trace(ids(3, 16))
    working = (traced.module_ids < 2).float().mean()
    assert float(working) == 0.25
    assert model.weight_semantics["order"].startswith("each module takes the 25%")


def test_padding_is_never_taken_while_a_token_is_left():
    torch.manual_seed(0)
    model = louder(DNA(mod(every=1, layers=2, capacity=0.5)))
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[1, 5:] = False
    padded = model.trace(ids(), valid)
    alone = model.trace(ids()[1:, :5], valid[1:, :5])
    assert torch.equal(padded.module_ids[1, :5], alone.module_ids[0])
    assert torch.allclose(padded.logits[1, :5], alone.logits[0], atol=1e-5)


def test_expert_choice_by_hand():
    """Two experts, four tokens, half of them each; softmax over the experts (Zhou et al., 2022)."""
    logits = torch.tensor([[[2.0, 0.0], [0.0, 3.0], [1.0, 0.0], [0.5, 0.5]]])
    padded = torch.cat([logits, torch.zeros(1, 4, 2)], dim=-1)
    decision = route_expert_choice(padded, 0.5, [0, 1], [2, 3])
    probs = logits[0].softmax(-1)
    # Expert 0 takes tokens 0 and 2, expert 1 takes tokens 1 and 3.
    assert decision.module_ids.tolist() == [[0, 3], [1, 2], [0, 3], [1, 2]]
    assert torch.allclose(decision.weights[:, 0], torch.stack([probs[0, 0], probs[1, 1], probs[2, 0], probs[3, 1]]))
    assert (decision.weights[:, 1] == 0).all()


def test_a_token_may_be_taken_by_several_experts_or_by_none():
    logits = torch.tensor([[[5.0, 5.0], [-5.0, -5.0]]])
    decision = route_expert_choice(torch.cat([logits, logits], -1), 0.5, [0, 1], [2, 3], score="sigmoid")
    assert sorted(decision.module_ids[0].tolist()) == [0, 1]
    assert sorted(decision.module_ids[1].tolist()) == [2, 3]


def test_a_mask_and_a_bias_together_choose_inside_the_mask():
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    allowed = torch.tensor([False, True, True])
    assert route(logits, 1, torch.tensor([0.0, 0.0, 0.9]), allowed=allowed).module_ids.tolist() == [[2]]
    with pytest.raises(ValueError, match="a router over 2 modules"):
        route(logits, 3, allowed=allowed)


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (moe, {"top_k": 5}, "top_k 5 is larger than the 4 choices of step 0"),
        (mod, {"capacity": 0.0}, "capacity"),
        (mod, {"layers": 3}, "layers is 3"),
        (moe, {"capacity": 0.5}, "capacity is for router 'expert'"),
        (moe, {"score": "sigmoid"}, "score 'sigmoid' is for router 'expert'"),
        (mod, {"renormalise": True}, "renormalise is for router 'token'"),
    ],
)
def test_what_cannot_work_is_refused_by_name(make, changes, words):
    with pytest.raises(ValueError, match=words):
        make(**changes)


@pytest.mark.parametrize("choices", [((0, 1),), ((0, 9), (0, 1)), ((0, 0), (0, 1))])
def test_masks_that_cannot_work_are_refused(choices):
    with pytest.raises(ValueError, match="choices"):
        DNAConfig(modality="text", backbone=0, steps=2, mlps=4, choices=choices, **SIZE)


@pytest.mark.parametrize("make", [moe, mod])
def test_named_configurations_survive_a_checkpoint(make, tmp_path: Path):
    torch.manual_seed(0)
    model = DNA(make()).eval()
    save_checkpoint(tmp_path / "named", model, dtype=torch.float32)
    again = build_model(read_checkpoint(tmp_path / "named"))
    assert again.config == model.config
    # Frozen weights go another way: the same to the last bits.
    torch.testing.assert_close(again(ids()).logits, model(ids()).logits, rtol=1e-5, atol=1e-5)


def test_a_traced_moe_has_flows_between_the_experts_of_neighbouring_layers(tmp_path: Path):
    from tokenpaths.engine.base.records import RunInfo, SampleRecord, TraceBatch
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.store.write.writer import RunWriter

    torch.manual_seed(0)
    model = louder(DNA(moe())).eval()
    traced = model.trace(ids())
    config = model.config
    info = RunInfo(
        run_id="moe",
        model="m",
        family="dna",
        modality="text",
        dataset="d",
        split="",
        num_steps=config.num_steps,
        num_modules=config.num_modules,
        top_k=config.top_k,
        weight_semantics=model.weight_semantics,
        config={},
        checkpoint_sha256="",
        engine_version="",
    )
    with RunWriter(tmp_path, info, model.module_table()) as writer:
        writer.write(
            TraceBatch(
                samples=[SampleRecord(num_tokens=12)] * 2,
                module_ids=traced.module_ids.flatten(0, 1).numpy(),
                weights=traced.weights.detach().float().flatten(0, 1).numpy(),
                gate_entropy=traced.gate_entropy.detach().float().flatten(0, 1).numpy(),
                flops=model.token_flops(traced.module_ids).flatten().numpy(),
            )
        )
        path = writer.seal()
    with Run.open(path) as run:
        flow = run.flow()
        assert all(link["source"] // 4 == link["step"] for link in flow["links"])
        assert np.isclose(sum(link["count"] for link in flow["links"] if link["step"] == 0), 24)
        assert run.usage()["steps"][1]["effective_top_k"] <= 4
