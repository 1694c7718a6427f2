"""Effects against numbers worked out by hand and against plain loops over every token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import stdtrit

from tests.support.checkpoints import CLASSES, WORDS, save_tiny
from tokenpaths.engine.analysis.route_changes import RouteChange, flow_counts, step_distance
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.edits.measure import Measurement, OutputChange, Unchanged, measure_effect, steps_edited
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.families.edit_values import Ban, Freeze, TopK
from tokenpaths.engine.tracing.loaded_model import load_model


def test_routes_by_hand():
    """Three tokens, three steps, top-1: one keeps its path, one leaves at step 0 and returns, one leaves at the end."""
    before = np.array([[[0], [1], [2]], [[0], [1], [2]], [[3], [1], [0]]])
    after = np.array([[[0], [1], [2]], [[4], [1], [2]], [[3], [1], [1]]])
    change = RouteChange(num_modules=5, edited=frozenset({0}))
    change.add(before, after)
    answer = change.answer()
    assert answer["paths_changed"] == pytest.approx(2 / 3)
    assert answer["paths_changed_after"] == pytest.approx(1 / 3)  # only the third differs behind step 0
    assert answer["path_distance"] == pytest.approx(2 / 3)  # one step of each of two tokens, over three
    # Steps 0→1: 0→1 loses one of three tokens to 4→1. Steps 1→2: 1→0 loses one to 1→1. Each ½ · 2 / 3.
    assert answer["flow_difference"] == pytest.approx(1 / 3)
    rows = {(r["step"], r["source"], r["target"]): r["change"] for r in change.links(10)}
    assert rows == pytest.approx({(0, 0, 1): -1 / 3, (0, 4, 1): 1 / 3, (1, 1, 0): -1 / 3, (1, 1, 1): 1 / 3})


def test_ribbons_of_two_top_k():
    before, after = np.array([[[0, 1]], [[2, 3]]]), np.array([[[1, 4]], [[3, 2]]])
    assert step_distance(before, after).tolist() == [[0.5], [0.0]]  # the order of slots is not a path
    assert step_distance(before, np.array([[[1]], [[0]]])).tolist() == [[0.5], [1.0]]
    with pytest.raises(UserError, match="2 tokens of 1 steps cannot be compared with 1 tokens"):
        RouteChange(5).add(before, after[:1])


def test_routes_batch_by_batch_equal_a_loop_over_tokens():
    rng = np.random.default_rng(0)
    before = rng.random((40, 4, 6)).argsort(axis=2)[:, :, :2]
    after = np.where(rng.random((40, 4, 1)) < 0.7, before, rng.random((40, 4, 6)).argsort(axis=2)[:, :, :2])
    change = RouteChange(6, edited=frozenset({1}))
    for part in (slice(0, 13), slice(13, 40)):
        change.add(before[part], after[part])
    moved = [[set(b) != set(a) for b, a in zip(x, y, strict=True)] for x, y in zip(before, after, strict=True)]
    flows = np.zeros((2, 3, 6, 6))
    for which, ids in enumerate((before, after)):
        for token in ids:
            for s in range(3):
                for i in token[s]:
                    for j in token[s + 1]:
                        flows[which, s, i, j] += 1 / 4
    answer = change.answer()
    assert answer["paths_changed"] == pytest.approx(np.mean([any(m) for m in moved]))
    assert answer["paths_changed_after"] == pytest.approx(np.mean([any(m[2:]) for m in moved]))
    steps = zip(before.reshape(-1, 2), after.reshape(-1, 2), strict=True)
    assert answer["path_distance"] == pytest.approx(sum(1 - len(set(b) & set(a)) / 2 for b, a in steps) / 40)
    assert answer["flow_difference"] == pytest.approx(np.abs(flows[1] - flows[0]).sum() / 2 / 40 / 3)
    np.testing.assert_allclose(flow_counts(before, 6), flows[0])
    assert flows[0].sum() == pytest.approx(3 * 40)


def test_outputs_by_hand():
    """Two classes: (¾, ¼) becomes (¼, ¾). KL = ¾ ln 3 − ¼ ln 3; the right class was the first."""
    before, after = torch.tensor([[0.75, 0.25]]).log(), torch.tensor([[0.25, 0.75]]).log()
    change = OutputChange()
    change.add(before, after, torch.tensor([0]), torch.tensor([0]))
    change.add(before, before, torch.tensor([-100]), torch.tensor([1]))
    answer = change.answer()
    assert answer["kl"] == pytest.approx(0.5 * math.log(3) / 2)
    assert answer["top1_changed"] == 0.5
    assert answer["top5_changed"] == 0.0  # both classes are in both lists
    assert answer["num_targets"] == 1
    spread = [answer["loss"].pop(name) for name in ("error", "low", "high")]
    assert spread == [None] * 3, "one text says nothing about others"
    assert answer["loss"] == pytest.approx(
        {"before": math.log(4 / 3), "after": math.log(4), "change": math.log(3)}, rel=1e-5
    )
    assert answer["accuracy"] == {"before": 1.0, "after": 0.0, "change": -1.0}


def test_outputs_equal_a_loop_over_rows():
    rng = torch.Generator().manual_seed(0)
    before, after = torch.randn(1100, 30, generator=rng), torch.randn(1100, 30, generator=rng)
    targets = torch.randint(-1, 30, (1100,), generator=rng)
    targets[targets < 0] = -100
    change = OutputChange()
    change.add(before, after, targets, torch.arange(1100))
    p, q = before.double().softmax(1).numpy(), after.double().softmax(1).numpy()
    kl = np.mean([sum(a * math.log(a / b) for a, b in zip(x, y, strict=True)) for x, y in zip(p, q, strict=True)])
    gone = np.mean([len(set(np.argsort(-x)[:5]) - set(np.argsort(-y)[:5])) / 5 for x, y in zip(p, q, strict=True)])
    known = [i for i in range(1100) if targets[i] >= 0]
    answer = change.answer()
    assert answer["kl"] == pytest.approx(kl, rel=1e-5)
    assert answer["top5_changed"] == pytest.approx(gone)
    assert answer["top1_changed"] == pytest.approx(np.mean(p.argmax(1) != q.argmax(1)))
    assert answer["loss"]["after"] == pytest.approx(np.mean([-math.log(q[i, targets[i]]) for i in known]), rel=1e-5)
    rises = [math.log(p[i, targets[i]] / q[i, targets[i]]) for i in known]
    assert answer["loss"]["error"] == pytest.approx(np.std(rises, ddof=1) / math.sqrt(len(known)), rel=1e-4)
    assert answer["accuracy"]["before"] == pytest.approx(np.mean([p[i].argmax() == targets[i] for i in known]))
    with pytest.raises(UserError, match="NaN or infinite"):
        OutputChange().add(before, after * float("nan"), targets, torch.arange(1100))


def test_the_error_of_a_change_is_that_of_samples():
    """Every prediction of a text twice over, in three calls: the error of texts stays, that of tokens would shrink."""
    rng = torch.Generator().manual_seed(1)
    before, after = torch.randn(600, 9, generator=rng), torch.randn(600, 9, generator=rng)
    targets = torch.randint(0, 9, (600,), generator=rng)
    samples = torch.sort(torch.randint(0, 20, (600,), generator=rng)).values
    once, twice = OutputChange(), OutputChange()
    once.add(before, after, targets, samples)
    for part in torch.arange(600).repeat_interleave(2).split(500):
        twice.add(before[part], after[part], targets[part], samples[part])
    loss = once.answer()["loss"]
    error = loss["error"]
    assert twice.answer()["loss"]["error"] == pytest.approx(error)
    assert (loss["low"] + loss["high"]) / 2 == pytest.approx(loss["change"])
    sizes = np.bincount(samples)
    effective = sizes.sum() ** 2 / (sizes**2).sum()
    assert loss["high"] - loss["change"] == pytest.approx(stdtrit(effective - 1, 0.975) * error)
    # The bootstrap over texts, which knows no formula, agrees.
    rows = torch.arange(600).unsqueeze(1)
    rise = (before.log_softmax(1) - after.log_softmax(1)).gather(1, targets[:, None])[rows[:, 0], 0].numpy()
    total, count = np.bincount(samples, rise), np.bincount(samples)
    drawn = np.random.default_rng(0).integers(0, 20, (4000, 20))
    assert error == pytest.approx(np.std(total[drawn].sum(1) / count[drawn].sum(1)), rel=0.1)


def test_a_step_that_an_edit_changes_by_itself_is_not_behind_it():
    """One token that moves at step 2, another at step 3, a third at both; top-1 over five steps."""
    before = np.zeros((3, 5, 1), dtype=int)
    after = before.copy()
    after[0, 2] = after[1, 3] = after[2, 2:4] = 1

    def behind(**edits):
        change = RouteChange(2, **edits)
        change.add(before, after)
        answer = change.answer()
        return answer["after_step"], answer["after_steps"], answer["paths_changed_after"]

    assert behind(edited=frozenset({1})) == (1, [2, 3, 4], 1.0)
    assert behind(edited=frozenset({1, 3})) == (1, [2, 4], pytest.approx(2 / 3))  # the second moves where it is edited
    assert behind(edited=frozenset({4})) == (4, [], None)
    assert behind(edited=None) == (0, [], None)  # every step is edited, so nothing is behind


def test_the_steps_that_controls_change_by_themselves():
    def steps(*edits, **others):
        return steps_edited(others | ({"edits": [edit.model_dump() for edit in edits]} if edits else {}))

    assert steps(Ban(modules=(1,), step=3), Ban(modules=(0,), step=2), Freeze(step=0)) == {2, 3}
    assert steps(Ban(modules=(1,), step=3), TopK(k=2)) is None
    assert steps(Ban(modules=(1,), step=3), alpha=0.1) is None
    assert steps(alpha=0.1) is None


def _pictures():
    from PIL import Image

    rng = np.random.default_rng(0)
    return [
        Sample(
            image=Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)),
            text=None,
            label=label,
            source=f"{i}.png",
        )
        for i, label in enumerate([*CLASSES, "unknown", "apple"])
    ]


def test_an_effect_over_pictures_equals_two_passes_by_hand(tmp_path):
    save_tiny(tmp_path / "tiny", "vision")
    loaded = load_model("tiny", [tmp_path], device="cpu")
    data = prepare(loaded, _pictures())
    changed = loaded.with_controls({"edits": [{"edit": "ban", "modules": [0, 1], "step": 1}]})
    answer = measure_effect(changed, data)
    x = normalise(torch.cat([batch.raw for batch in data]))
    plain, edited = loaded.model.trace(x), loaded.model.trace_with(x, None, changed.controls)
    targets = torch.tensor([0, 1, 2, -100, 0])
    known = targets >= 0
    losses = [torch.nn.functional.cross_entropy(t.logits[known], targets[known]) for t in (plain, edited)]
    assert answer["loss"]["change"] == pytest.approx(float(losses[1] - losses[0]), abs=1e-5)
    assert answer["kl"] == pytest.approx(
        float(
            torch.nn.functional.kl_div(
                edited.logits.log_softmax(1), plain.logits.log_softmax(1), log_target=True, reduction="batchmean"
            )
        ),
        abs=1e-6,
    )
    assert (answer["num_samples"], answer["num_targets"], answer["num_tokens"]) == (5, 4, 80)
    later = (plain.module_ids.sort(-1).values != edited.module_ids.sort(-1).values)[:, :, 2:].any(-1).any(-1)
    assert answer["after_step"] == 1
    assert answer["paths_changed_after"] == pytest.approx(float(later.float().mean()))
    assert answer["perplexity"] is None
    assert "top5" not in answer
    nothing = measure_effect(loaded.with_controls(None), data)
    assert nothing["kl"] == nothing["loss"]["change"] == nothing["path_distance"] == nothing["flow_difference"] == 0


def test_an_effect_over_texts_is_that_of_every_window(tmp_path):
    save_tiny(tmp_path / "tiny", "text")
    loaded = load_model("tiny", [tmp_path], device="cpu")
    texts = [Sample(image=None, text=text, label=None, source="t") for text in (WORDS, "next step", WORDS[:40])]
    data = prepare(loaded, texts)
    changed = loaded.with_controls({"edits": [{"edit": "force", "module": 2, "step": 0}]})
    answer = measure_effect(changed, data, Unchanged(loaded, data))
    total, count = np.zeros(2), 0
    for text in texts:
        ids = torch.from_numpy(loaded.tokenizer.encode(text.text).ids).long()
        for start in range(0, len(ids), 16):
            window, following = ids[start : start + 16], ids[start + 1 : start + 17]
            for which, controls in enumerate((loaded.model.Controls(), changed.controls)):
                logits = loaded.model.trace_with(window[None], None, controls).logits[0][: len(following)]
                total[which] += float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))
            count += len(following)
    assert answer["num_targets"] == count
    assert [answer["loss"]["before"], answer["loss"]["after"]] == pytest.approx((total / count).tolist(), rel=1e-4)
    assert answer["perplexity"]["after"] == pytest.approx(math.exp(total[1] / count), rel=1e-3)
    alone = measure_effect(changed, prepare(loaded, texts[:1]))
    assert len(alone["top5"]["before"]) == len(alone["top5"]["after"]) == 5
    assert alone["edits"] == ["force every token to module 2 at step 0"]
    with pytest.raises(UserError, match="is empty"):
        prepare(loaded, [Sample(image=None, text="", label=None, source="nothing")])


def test_positions_are_checked_before_anything_is_measured(tmp_path):
    """Whether the texts were prepared for the edited model or, to be measured several times, for the unchanged one."""
    save_tiny(tmp_path / "tiny", "text")
    loaded = load_model("tiny", [tmp_path], device="cpu")
    short, long = (Sample(image=None, text=text, label=None, source="t") for text in (WORDS[:20], WORDS * 3))
    changed = loaded.with_controls({"edits": [{"edit": "ban", "modules": [1], "tokens": [15], "step": 1}]})
    for texts, sentence in (([short], "token 15 cannot be banned"), ([long], "read in windows of 16")):
        with pytest.raises(UserError, match=sentence):
            prepare(changed, texts)
        with pytest.raises(UserError, match=sentence):
            Measurement(changed, prepare(loaded, texts))


@pytest.mark.parametrize("num", [2, 4, 12])
def test_an_edit_that_changes_nothing_seldom_seems_to(num):
    """Means of a few texts of unlike lengths: their error is a guess as well."""
    rng, wrong = np.random.default_rng(num), 0
    for _ in range(2000):
        lengths = rng.integers(20, 60, num)
        rises = rng.normal(size=num) * lengths
        change = OutputChange(rows=1, targets=int(lengths.sum()))
        change.by_sample = {i: (float(rise), int(n)) for i, (rise, n) in enumerate(zip(rises, lengths, strict=True))}
        loss = change.answer()["loss"]
        wrong += not loss["low"] <= 0 <= loss["high"]
    assert wrong / 2000 < 0.07
