"""Edited routes of a DNA against routing written out token by token, in both ways of running a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.checkpoints import WORDS, save_tiny
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import EditControls
from tokenpaths.engine.families.edit_values import KINDS, written
from tokenpaths.engine.families.presets import mixture_of_depths, moe_transformer
from tokenpaths.engine.models.apply_edits import shuffled_order
from tokenpaths.engine.models.bank.bank import naive_step
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples

SMALL = dict(width=16, heads=2, mlp_width=32, image_size=32, patch_size=8, num_classes=5, vocab_size=40, context=12)


def model_of(config: DNAConfig | None = None, *, seed: int = 0, execution: str = "grouped", **changes) -> DNA:
    torch.manual_seed(seed)
    options = SMALL | dict(modality="vision", backbone=1, steps=3, top_k=2, transformers=4, identities=2) | changes
    model = DNA(config or DNAConfig(**options), execution=execution).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if "routers" in name:
            parameter.mul_(40)
        elif "bank" in name or "embed" in name:
            parameter.mul_(8)
    model.bias.uniform_(-0.1, 0.1)
    return model


def images(batch: int = 3) -> torch.Tensor:
    return torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def under(model: DNA, edits: list[dict] | None, x: torch.Tensor, valid=None):
    return model.trace_with(x, valid, model.read_controls({"edits": edits} if edits else None))


def chosen(logits: np.ndarray, bias: np.ndarray, top_k: int, banned: set[int]) -> tuple[list[int], list[float]]:
    """One token's modules and weights, largest first: equations 3 to 5 without the banned modules."""
    left = [m for m in range(len(logits)) if m not in banned]
    exp = {m: np.exp(logits[m] - max(logits[left])) for m in left}
    rho = {m: exp[m] / sum(exp.values()) for m in left}
    best = sorted(left, key=lambda m: -(rho[m] + bias[m]))[:top_k]
    best.sort(key=lambda m: -rho[m])
    return best, [rho[m] for m in best]


def by_hand(model: DNA, x: torch.Tensor, edits: list[dict], unedited: np.ndarray | None = None):
    """Logits and ids (B, T, S, K) of a vision model under ``edits``, token by token, module by module."""
    h = model.start(x)
    for block in model.backbone:
        h = block(h, causal=False)
    batch, tokens, _ = h.shape
    top_k = next((e["k"] for e in edits if e["edit"] == "top_k"), model.config.top_k)
    all_ids = []
    for step in range(model.config.steps):
        here = [e for e in edits if e.get("step", step) == step]

        def banned(b, t, here=here):
            return {
                m
                for e in here
                if e["edit"] == "ban"
                and t in e.get("tokens", range(tokens))
                and ("path" not in e or all(set(unedited[b, t, s]) == set(p) for s, p in enumerate(e["path"])))
                for m in e["modules"]
            }

        bias = model.bias[step].double().numpy().copy()
        for e in here:
            if e["edit"] == "bias":
                bias[list(e["modules"])] += e["value"]
        logits = (h @ model.routers[step].weight.T).double().numpy()
        picked = [[chosen(logits[b, t], bias, top_k, banned(b, t)) for t in range(tokens)] for b in range(batch)]
        for e in here:
            for b in range(batch):
                if e["edit"] == "swap":
                    picked[b] = [(list(e["ribbons"][t][step]), picked[b][t][1]) for t in range(tokens)]
                if e["edit"] == "shuffle":
                    order = shuffled_order((1, tokens), None, e["seed"], step).tolist()
                    picked[b] = [picked[b][order[t]] for t in range(tokens)]
        for e in here:
            for b, t in np.ndindex(batch, tokens) if e["edit"] == "force" else ():
                same_path = "path" not in e or all(
                    set(unedited[b, t, s]) == set(slots) for s, slots in enumerate(e["path"])
                )
                ids, weights = picked[b][t]
                if same_path and t in e.get("tokens", range(tokens)) and e["module"] not in ids:
                    picked[b][t] = ([e["module"], *ids[1:]], weights)
        ids = torch.tensor([[ids for ids, _ in row] for row in picked])
        weights = torch.tensor([[w for _, w in row] for row in picked]).float()
        h = naive_step(model.bank, h, ids, weights, causal=False)
        all_ids.append(ids)
    return model.finish(h), torch.stack(all_ids, dim=2)


CASES = {
    "ban at a step": [{"edit": "ban", "modules": [1], "step": 1}],
    "ban everywhere": [{"edit": "ban", "modules": [0, 4]}],
    "ban for some": [{"edit": "ban", "modules": [1, 2], "tokens": [0, 3, 15]}, {"edit": "ban", "modules": [4]}],
    "force all": [{"edit": "force", "module": 2, "step": 0}],
    "force some": [{"edit": "force", "module": 3, "tokens": [0, 5, 15]}],
    "bias": [{"edit": "bias", "modules": [5], "value": 0.3, "step": 2}, {"edit": "bias", "modules": [5], "value": -2}],
    "fewer": [{"edit": "top_k", "k": 1}],
    "more": [{"edit": "top_k", "k": 4}, {"edit": "ban", "modules": [3]}],
    "shuffle": [{"edit": "shuffle", "seed": 7}],
    "shuffle and ban": [{"edit": "shuffle", "seed": 1, "step": 0}, {"edit": "ban", "modules": [2], "step": 0}],
}


@pytest.mark.parametrize("execution", ["grouped", "naive"])
@pytest.mark.parametrize("case", CASES)
def test_edits_agree_with_routing_by_hand(case: str, execution: str):
    model, x = model_of(execution=execution), images()
    traced = under(model, CASES[case], x)
    logits, ids = by_hand(model, x, CASES[case])
    assert torch.equal(traced.module_ids.long(), ids)
    torch.testing.assert_close(traced.logits, logits, atol=2e-5, rtol=1e-4)
    assert not torch.equal(traced.module_ids, model.trace(x).module_ids), "an edit that changes nothing proves nothing"


def test_without_edits_every_number_stays_what_it_was():
    model, x = model_of(), images()
    plain, again = model.trace(x), under(model, None, x)
    for name in ("logits", "module_ids", "weights", "gate_entropy"):
        assert torch.equal(getattr(plain, name), getattr(again, name))
    assert model.plan(model.Controls()) is None


def test_without_edits_none_of_this_code_runs(monkeypatch):
    from tokenpaths.engine.models import dna

    for name in ("edited", "allowed_modules", "pushed", "turned_away"):
        monkeypatch.setattr(dna, name, None)
    assert under(model_of(), None, images()).logits.shape == (3, 5)
    with pytest.raises(TypeError):
        under(model_of(), [{"edit": "shuffle"}], images())


def test_a_path_names_its_tokens():
    model, x = model_of(), images()
    plain = model.trace(x).module_ids.long()
    ribbon = plain[1, 4].tolist()
    edits = [{"edit": "force", "module": 5, "step": 1, "path": ribbon}]
    logits, ids = by_hand(model, x, edits, plain.numpy())
    traced = under(model, edits, x)
    assert torch.equal(traced.module_ids.long(), ids)
    meant = (plain.sort(dim=-1).values == torch.tensor(ribbon).sort(dim=-1).values).all(dim=(2, 3))
    assert meant[1, 4]
    assert (traced.module_ids[:, :, 1][meant] == 5).any(dim=-1).all()
    torch.testing.assert_close(traced.logits, logits, atol=2e-5, rtol=1e-4)


def test_a_ban_for_the_tokens_of_a_path_leaves_the_others_free():
    model, x = model_of(), images()
    plain = model.trace(x).module_ids.long()
    ribbon = plain[1, 4].tolist()
    gone = ribbon[1][0]
    edits = [{"edit": "ban", "modules": [gone], "step": 1, "path": ribbon}]
    logits, ids = by_hand(model, x, edits, plain.numpy())
    traced = under(model, edits, x)
    assert torch.equal(traced.module_ids.long(), ids)
    torch.testing.assert_close(traced.logits, logits, atol=2e-5, rtol=1e-4)
    meant = (plain.sort(dim=-1).values == torch.tensor(ribbon).sort(dim=-1).values).all(dim=(2, 3))
    assert not (traced.module_ids[:, :, 1][meant] == gone).any()
    assert (traced.module_ids[:, :, 1][~meant] == gone).any(), "it is banned for more than was asked"


def test_a_frozen_router_keeps_its_ribbon_though_states_change():
    model, x = model_of(), images()
    plain = model.trace(x)
    alone = under(model, [{"edit": "freeze"}], x)
    for name in ("logits", "module_ids", "weights"):
        assert torch.equal(getattr(plain, name), getattr(alone, name))
    ban = {"edit": "ban", "modules": [0, 1], "step": 0}
    loose, frozen = under(model, [ban], x), under(model, [ban, {"edit": "freeze"}], x)
    assert torch.equal(frozen.module_ids[:, :, 1:], plain.module_ids[:, :, 1:])
    assert torch.equal(frozen.weights[:, :, 1:], plain.weights[:, :, 1:])
    assert torch.equal(frozen.module_ids[:, :, 0], loose.module_ids[:, :, 0])
    assert not torch.equal(loose.module_ids[:, :, 1:], plain.module_ids[:, :, 1:])
    one = under(model, [ban, {"edit": "freeze", "step": 2}], x)
    assert torch.equal(one.module_ids[:, :, :2], loose.module_ids[:, :, :2])
    assert torch.equal(one.module_ids[:, :, 2], plain.module_ids[:, :, 2])


def test_swapped_samples_take_each_others_routes():
    model, x = model_of(), images(2)
    plain = model.trace(x)
    first, second = plain.module_ids.tolist()
    edits = [{"edit": "swap", "ribbons": second}]
    swapped = under(model, edits, x[:1])
    assert swapped.module_ids[0].tolist() == second != first
    logits, _ = by_hand(model, x[:1], edits)
    torch.testing.assert_close(swapped.logits, logits, atol=2e-5, rtol=1e-4)
    with pytest.raises(UserError, match="of 15 tokens, this sample has 16"):
        under(model, [{"edit": "swap", "ribbons": second[:15]}], x)


def test_padding_changes_nothing():
    model = model_of(modality="text", context=12, vocab_size=40)
    ids = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(3))
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[1, 7:] = False
    edits = [{"edit": "shuffle", "seed": 5, "step": 1}, {"edit": "force", "module": 1, "tokens": [2, 6], "step": 2}]
    both, alone = under(model, edits, ids, valid), under(model, edits, ids[1:, :7])
    assert torch.equal(both.module_ids[1, :7], alone.module_ids[0])
    torch.testing.assert_close(both.logits[1, :7], alone.logits[0], atol=1e-5, rtol=1e-4)


def test_experts_of_a_layer_and_blocks_that_take_their_tokens():
    moe = model_of(moe_transformer("vision", layers=2, experts=3, top_k=1, **SMALL))
    traced = under(moe, [{"edit": "ban", "modules": [4]}], images())
    assert (moe.trace(images()).module_ids[:, :, 1] == 4).any()
    assert not (traced.module_ids == 4).any()
    assert set(traced.module_ids[:, :, 1].unique().tolist()) <= {3, 5}
    with pytest.raises(UserError, match="there is no module 4 at step 0; it may be one of 0 to 2"):
        under(moe, [{"edit": "ban", "modules": [4], "step": 0}], images())

    depths = model_of(mixture_of_depths("vision", layers=2, every=1, capacity=0.5, **SMALL))
    banned = under(depths, [{"edit": "ban", "modules": [0], "step": 0}], images())
    assert (banned.module_ids[:, :, 0] == 2).all()
    assert (banned.weights[:, :, 0] == 0).all()
    with pytest.raises(UserError, match="a ban would leave them without one"):
        under(depths, [{"edit": "ban", "modules": [2]}], images())
    with pytest.raises(UserError, match="each module takes its tokens. This model has: ban, freeze, shuffle"):
        under(depths, [{"edit": "top_k", "k": 2}], images())


REFUSED = {
    r"step 1 has 1 module left with 5 of 6 banned, and top-k needs 2": [
        {"edit": "ban", "modules": [0, 1, 2], "step": 1},
        {"edit": "ban", "modules": [3, 4]},
    ],
    r"step 2 has 1 module left with 5 of 6 banned": [
        {"edit": "ban", "modules": [0, 1, 2], "tokens": [3, 4], "step": 2},
        {"edit": "ban", "modules": [3, 4], "tokens": [4, 5]},
    ],
    r"token 4 is forced to module 1 at step 0 and banned from it": [
        {"edit": "ban", "modules": [1], "tokens": [4]},
        {"edit": "force", "module": 1, "tokens": [2, 4], "step": 0},
    ],
    r"token 16 cannot be banned from a module": [{"edit": "ban", "modules": [1], "tokens": [16]}],
    r"has no edit 'teleport'; it has: " + ", ".join(KINDS): [{"edit": "teleport"}],
    r"there is no step 3; this model has the steps 0 to 2": [{"edit": "ban", "modules": [0], "step": 3}],
    r"there is no module 6; it may be one of 0 to 5": [{"edit": "force", "module": 6}],
    r"token 16 cannot be forced: this sample has 16 tokens, 0 to 15": [{"edit": "force", "module": 1, "tokens": [16]}],
    r"step 0 has 6 modules left, and top-k needs 7; give a smaller k": [{"edit": "top_k", "k": 7}],
    r"banned at step 0 and tokens are forced": [{"edit": "ban", "modules": [1]}, {"edit": "force", "module": 1}],
    r"already given or shuffled": [{"edit": "shuffle"}, {"edit": "shuffle", "step": 1, "seed": 2}],
    r"frozen and edited at once": [{"edit": "freeze", "step": 1}, {"edit": "ban", "modules": [1]}],
    r"none is left to be frozen": [{"edit": "freeze"}, {"edit": "ban", "modules": [1]}],
    r"with the model's own top-k": [{"edit": "freeze"}, {"edit": "top_k", "k": 1}],
    r"the path has 1 steps; a ribbon of this model has 3": [{"edit": "force", "module": 1, "path": [[1, 2]]}],
    r"names module 9 at step 0": [{"edit": "swap", "ribbons": [[[9, 1], [0, 1], [0, 1]]]}],
    r"names a module twice at step 2": [{"edit": "swap", "ribbons": [[[0, 1], [0, 1], [1, 1]]]}],
    r"has 1 modules at step 0; top-k is 2": [{"edit": "swap", "ribbons": [[[0], [1], [1]]]}],
    r"edit 0 ban: modules is \[\]": [{"edit": "ban", "modules": []}],
    "edit 0 ban: modules: it is required, and was not given": [{"edit": "ban"}],
    "edit 0 ban: modules is '3': it should be a list": [{"edit": "ban", "modules": "3"}],
    r"takes edits that say which they are": ["ban"],
    r"top-k is to be 1 and 3; give one": [{"edit": "top_k", "k": 3}, {"edit": "top_k", "k": 1}],
    r"banned from modules at step 1, and its decisions are shuffled": [
        {"edit": "shuffle", "step": 1},
        {"edit": "ban", "modules": [1], "tokens": [4]},
    ],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_refused_with_a_sentence(sentence: str):
    with pytest.raises(UserError, match=sentence) as refused:
        under(model_of(), REFUSED[sentence], images())
    assert refused.value.field.startswith("edits")


@pytest.mark.parametrize("turned", [False, True])
def test_edits_that_contradict_each_other_for_a_token_of_a_path_are_refused(turned: bool):
    """What a path and a position name is known when the sample is; the order of edits says nothing."""
    model, x = model_of(), images(1)
    ids = under(model, None, x).module_ids[0]
    path = [sorted(slots) for slots in ids[0].tolist()]
    others = [module for module in range(6) if module not in path[1]][:2]
    here = {"edit": "force", "module": others[0], "tokens": [0], "step": 1}
    pairs = {
        r"a token is forced to module \d and to module \d at step 1": (
            here,
            {"edit": "force", "module": others[1], "path": path, "step": 1},
        ),
        rf"sent to module {others[0]} at step 1 and banned": (
            here,
            {"edit": "ban", "modules": [others[0]], "path": path, "step": 1},
        ),
        rf"sent to module {path[1][0]} at step 1 and banned": (
            {"edit": "swap", "ribbons": ids.tolist()},
            {"edit": "ban", "modules": [path[1][0]], "path": path, "step": 1},
        ),
    }
    for sentence, edits in pairs.items():
        with pytest.raises(UserError, match=sentence):
            under(model, list(edits[::-1] if turned else edits), x)
    apart = next(t for t in range(16) if [sorted(slots) for slots in ids[t].tolist()] != path)
    there = under(model, [here | {"tokens": [apart]}, {"edit": "ban", "modules": others[:1], "path": path}], x)
    assert others[0] in there.module_ids[0, apart, 1].tolist()


def test_a_position_that_a_sample_lacks_is_refused_whatever_else_is_in_its_batch():
    model = model_of(modality="text")
    x = torch.randint(40, (2, 12), generator=torch.Generator().manual_seed(2))
    valid = torch.arange(12) < torch.tensor([[12], [5]])
    ban = [{"edit": "ban", "modules": [1], "tokens": [5]}]
    for rows in (slice(0, 2), slice(1, 2)):
        with pytest.raises(UserError, match="this sample has 5 tokens, 0 to 4"):
            under(model, ban, x[rows], valid[rows])
    under(model, ban, x[:1], valid[:1])


def test_a_family_without_edits_says_so():
    class Fixed(EditControls):
        FAMILY = "fixed"
        EDITS = ()

    with pytest.raises(ValueError, match="a fixed model has no edit 'ban'; it has: none"):
        Fixed.model_validate({"edits": [{"edit": "ban", "modules": [1]}]})


def test_random_bans_are_never_visited_and_never_leave_too_few():
    model, x, rng = model_of(), images(1), np.random.default_rng(0)
    kept = refused = 0
    for _ in range(60):
        edits = [
            {"edit": "ban", "modules": rng.choice(6, size=int(rng.integers(1, 5)), replace=False).tolist()}
            | ({"step": int(rng.integers(3))} if rng.random() < 0.7 else {})
            for _ in range(int(rng.integers(1, 4)))
        ]
        banned = [{m for e in edits if e.get("step", s) == s for m in e["modules"]} for s in range(3)]
        if max(map(len, banned)) > 4:
            refused += 1
            with pytest.raises(UserError, match="top-k needs 2"):
                under(model, edits, x)
            continue
        kept += 1
        ids = under(model, edits, x).module_ids
        for step, gone in enumerate(banned):
            assert not gone & set(ids[:, :, step].flatten().tolist())
    assert kept > 10
    assert refused > 10


def test_an_edited_run_says_how_it_was_made(tmp_path):
    from tokenpaths.engine.data.datasets import Sample

    save_tiny(tmp_path / "models" / "tiny", "text")
    loaded = load_model("tiny", [tmp_path / "models"], device="cpu")
    sample = Sample(image=None, text=WORDS, label=None, source="words")
    with pytest.raises(UserError, match="top-k needs 2"):
        loaded.with_controls({"edits": [{"edit": "ban", "modules": [0, 1, 2, 3, 4]}]})
    for chosen in ({"edit": "force", "module": 1, "tokens": [3]}, {"edit": "swap", "ribbons": [[[0, 1]] * 3] * 16}):
        with pytest.raises(UserError, match=r"read in windows of 16, so positions mean nothing in it"):
            trace_samples(loaded.with_controls({"edits": [chosen]}), [sample], tmp_path / "runs", twin=False)
    assert not list((tmp_path / "runs").glob("*"))
    edited = loaded.with_controls({"edits": [{"edit": "top_k", "k": 3}, {"edit": "ban", "modules": [2]}]})
    path = trace_samples(edited, [sample], tmp_path / "runs", run_id="edited", twin=False)
    with Run.open(path) as run:
        assert run.row["top_k"] == 3
        assert run.info()["config"]["controls"]["edits"][1]["modules"] == [2]
        ids = np.array([token["ribbon"] for token in run.sample(0)["tokens"]])
    assert ids.shape[1:] == (3, 3)
    assert not (ids == 2).any()


def test_every_edit_can_be_said():
    model = model_of()
    edits = [
        *(e for case in CASES.values() for e in case),
        {"edit": "freeze"},
        {"edit": "freeze", "step": 1},
        {"edit": "swap", "ribbons": [[[0, 1]] * 3] * 16},
    ]
    for edit in edits:
        (read,) = model.read_controls({"edits": [edit]}).edits
        assert written(read)
    assert written(model.read_controls({"edits": [{"edit": "ban", "modules": [3], "step": 1}]}).edits[0]) == (
        "ban module 3 at step 1"
    )
