"""Image dreams: objective × parametrisation × transform × loop, each against a twin written to be read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.support.checkpoints import tiny_config
from tokenpaths.engine.base.device import cpu_gains_by_bfloat16
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.dream.image_loop import Dream, ImageDreams, examine
from tokenpaths.engine.dream.objectives import Answer, Block, Choices, Module, follow_path
from tokenpaths.engine.dream.observed_pass import Need, look
from tokenpaths.engine.dream.parametrisation import COLOURS, to_pictures, total_variation
from tokenpaths.engine.dream.settings import ImageSettings
from tokenpaths.engine.dream.transforms import affine_of, draw, generator_of, move
from tokenpaths.engine.families.presets import mixture_of_depths
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.models.raytracing import RayTracing

SETTINGS = ImageSettings(iterations=20, rate=0.05)


@pytest.fixture(scope="module")
def model() -> DNA:
    torch.manual_seed(0)
    made = DNA(tiny_config("vision"))
    for router in made.routers:
        router.weight.data.mul_(40)
    return made.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ids(model: DNA) -> torch.Tensor:
    return model.trace(torch.randn(4, 3, 32, 32)).module_ids.long()


def test_an_objective_sees_what_the_whole_forward_pass_decides_and_the_batch_shrinks(model: DNA) -> None:
    images = torch.randn(4, 3, 32, 32)
    whole = model(images)
    visited = []
    visit = model.visit
    model.visit = lambda h, *rest: visited.append(len(h)) or visit(h, *rest)  # type: ignore[method-assign]
    try:
        seen = look(model, images, [Need(1), Need(3), Need(2), Need(1, output=True)])
    finally:
        del model.visit
    assert visited == [3, 2, 1]  # step 0 for all but the first; the last step only for the answer
    assert [len(s.probs) for s in seen] == [1, 3, 2, 3]
    for b, s in enumerate(seen):
        for step, probs in enumerate(s.probs):
            torch.testing.assert_close(probs, whole.decisions[step].probs.view(4, 16, -1)[b], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(seen[3].output, whole.logits[3], atol=1e-5, rtol=1e-4)
    assert seen[1].output is None


def test_the_paper_s_objective_is_the_sum_over_steps_tokens_and_slots(model: DNA, ids: torch.Tensor) -> None:
    image, some = torch.randn(1, 3, 32, 32), [3, 7, 8]
    decisions = model(image).decisions
    forms = {"cumulative": range(0, 2), "single step": range(2, 3)}
    for steps in forms.values():
        for tokens in (None, torch.tensor(some)):
            for of in ("probs", "logits"):
                objective = Choices(ids[0], steps, tokens, of)
                by_hand = sum(
                    float(getattr(decisions[s], of)[t, i])
                    for s in steps
                    for t in (range(16) if tokens is None else some)
                    for i in ids[0, t, s]
                )
                (seen,) = look(model, image, [objective.need])
                assert float(objective.value(seen)) == pytest.approx(by_hand, rel=1e-4, abs=1e-4)
                assert objective.terms == len(steps) * (16 if tokens is None else 3) * 2


def test_objectives_add_and_scale_and_a_path_is_the_same_choices_for_all(model: DNA, ids: torch.Tensor) -> None:
    image = torch.randn(1, 3, 32, 32)
    (seen,) = look(model, image, [Need(3, output=True)])
    path = follow_path(ids[0, 5], 16)
    module = Module(1, (0, 2), torch.tensor([4]))
    assert float(module.value(seen)) == pytest.approx(float(seen.probs[0][4, 1] + seen.probs[2][4, 1]))
    both = path + 0.5 * module + Answer(2) * 2
    expected = path.value(seen) + 0.5 * module.value(seen) + 2 * seen.output[2]
    assert float(both.value(seen)) == pytest.approx(float(expected), rel=1e-5)
    assert both.need == Need(3, True)
    assert float(path.value(seen)) == pytest.approx(
        sum(float(seen.probs[s][:, i].sum()) for s in range(3) for i in ids[0, 5, s]), rel=1e-5
    )


def test_a_dream_of_a_module_says_how_many_choices_are_that_module(model: DNA) -> None:
    image = torch.randn(1, 3, 32, 32)
    ids_TSK = model.trace(image).module_ids[0]
    for module, steps, tokens in ((1, (0, 1, 2), None), (2, (1,), [0, 3, 9]), (0, (0, 2), [4])):
        (found,) = examine(model, image, [Module(module, steps, None if tokens is None else torch.tensor(tokens), 16)])
        rows = [[module in ids_TSK[t, s].tolist() for s in steps] for t in tokens or range(16)]
        assert found["matched_choices"] == pytest.approx(sum(map(sum, rows)) / (len(rows) * len(steps)))
        assert found["matched_tokens"] == pytest.approx(sum(map(all, rows)) / len(rows))


def test_choices_that_a_pass_makes_itself_are_all_matched(model: DNA) -> None:
    images = torch.randn(2, 3, 32, 32)
    ids = model.trace(images).module_ids.long()
    own, swapped = examine(model, images, [Choices(ids[0], range(3)), Choices(ids[0].flip(0), range(3))])
    assert own["matched_choices"] == own["matched_tokens"] == 1
    assert swapped["matched_tokens"] < 1
    assert [c for c, _ in own["top"]] == model(images).logits[0].argsort(descending=True).tolist()


def test_pictures_are_sums_of_waves_by_hand() -> None:
    torch.manual_seed(1)
    side, spectrum = 6, torch.randn(1, 3, 6, 4, 2) * 0.05
    spectrum[:, :, :, [0, 3]] = 0  # the two columns whose halves mirror each other
    spectrum[:, :, 0, 0] = torch.tensor([0.3, 0.0])
    planes = np.zeros((3, side, side))
    for c, y, x, v, u in np.ndindex(3, side, side, side, side // 2 + 1):
        across, down = u / side, min(v, side - v) / side
        a, b = spectrum[0, c, v, u].tolist()
        angle = 2 * math.pi * (u * x + v * y) / side
        wave = a * math.cos(angle) - b * math.sin(angle)
        planes[c, y, x] += wave * (1 if u == 0 else 2) / max(across, down, 1 / side)  # 2: the mirrored half
    expected = 1 / (1 + np.exp(-np.einsum("dc,cyx->dyx", np.array(COLOURS), planes)))
    np.testing.assert_allclose(to_pictures(spectrum)[0].numpy(), expected, atol=1e-5)


def test_total_variation_neighbour_by_neighbour() -> None:
    picture = torch.rand(2, 3, 4, 4)
    by_hand = [0.0, 0.0]
    for b, c, y, x in np.ndindex(2, 3, 4, 4):
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
            if y + down < 4 and 0 <= x + right < 4:
                by_hand[b] += float(picture[b, c, y, x] - picture[b, c, y + down, x + right]) ** 2
    assert total_variation(picture).tolist() == pytest.approx(by_hand, rel=1e-5)


def test_one_resampling_does_jitter_rotation_and_scaling() -> None:
    """The twin undoes them one after the other for each pixel and interpolates by hand."""
    torch.manual_seed(2)
    side, across, down, angle, scale = 9, 1.3, -2.1, math.radians(7), 1.08
    picture = torch.rand(side, side)
    fused = move(picture[None, None], affine_of(across, down, angle, scale, side)[None])[0, 0]
    for row, col in np.ndindex(side, side):
        x, y = col - (side - 1) / 2, row - (side - 1) / 2
        x, y = x / scale, y / scale
        x, y = math.cos(angle) * x + math.sin(angle) * y, -math.sin(angle) * x + math.cos(angle) * y
        x, y = x - across + (side - 1) / 2, y - down + (side - 1) / 2
        assert float(fused[row, col]) == pytest.approx(_between(picture, x, y), abs=1e-4)


def _between(picture: torch.Tensor, x: float, y: float) -> float:
    """Bilinear; outside of the picture its mirror image, mirrored at the edge of the outermost pixels."""
    side = len(picture)

    def mirrored(v: float) -> float:
        v = abs(v + 0.5) % (2 * side)
        return min(v, 2 * side - v) - 0.5

    x, y = (min(max(mirrored(v), 0), side - 1) for v in (x, y))
    left, top = int(x), int(y)
    right, below, u, v = min(left + 1, side - 1), min(top + 1, side - 1), x - left, y - top
    rows = [float(picture[r, left] * (1 - u) + picture[r, right] * u) for r in (top, below)]
    return rows[0] * (1 - v) + rows[1] * v


def test_draws_follow_from_seed_dream_and_iteration_alone() -> None:
    def of(seed: int, dream: int, iteration: int, done: float = 0.0):
        return draw(ImageSettings(), 16, 3.0, generator_of(seed, dream, iteration), done)

    same, again = of(1, 2, 3), of(1, 2, 3)
    assert torch.equal(same.affine, again.affine)
    assert torch.equal(same.noise, again.noise)
    for other in (of(2, 2, 3), of(1, 3, 3), of(1, 2, 4)):
        assert not torch.equal(same.noise, other.noise)
        assert not torch.equal(same.shift, other.shift)
    assert of(1, 2, 3, done=1.0).noise.abs().max() == 0
    # The variance falls on a straight line.
    assert float(of(1, 2, 3, done=0.75).noise.var() / same.noise.var()) == pytest.approx(0.25, rel=1e-4)


def _dreams(ids: torch.Tensor) -> list[Dream]:
    keep = torch.zeros(32, 32, dtype=torch.bool)
    keep[:8, 8:24] = True
    return [
        Dream(Choices(ids[0], range(1)), seed=5, number=0),
        Dream(Choices(ids[1], range(1, 3), torch.tensor([1, 2]), "logits"), seed=5, number=1),
        Dream(Choices(ids[2], range(3), torch.tensor([1, 2])), 5, 2, torch.linspace(0, 1, 3072).view(3, 32, 32), keep),
        Dream(Module(2, (0, 1), num_tokens=16), seed=6),
    ]


def test_dreams_of_a_batch_are_those_made_one_by_one(model: DNA, ids: torch.Tensor) -> None:
    dreams = _dreams(ids)
    batch = ImageDreams(model, dreams, SETTINGS)
    batch.run(6)
    for i, dream in enumerate(dreams):
        alone = ImageDreams(model, [dream], SETTINGS)
        alone.run(6)
        torch.testing.assert_close(batch.pictures()[i], alone.pictures()[0], atol=2e-3, rtol=0)
        torch.testing.assert_close(batch.curves()[:, i], alone.curves()[:, 0], atol=2e-3, rtol=0)


def test_adam_is_adam_and_the_objective_rises(model: DNA, ids: torch.Tensor) -> None:
    quiet = ImageSettings(iterations=30, rate=0.05, jitter=0, rotation=0, scaling=0, colour_shift=0, noise=0)
    dreams = ImageDreams(model, [Dream(Choices(ids[0], range(2)))], quiet)
    before = dreams.examine()[0]["objective"]
    start, gradients = dreams.spectrum.clone(), []
    adam = dreams._adam
    dreams._adam = lambda gradient: gradients.append(gradient) or adam(gradient)  # type: ignore[method-assign]
    dreams.run(5)
    twin = torch.nn.Parameter(start)
    optimiser = torch.optim.Adam([twin], lr=quiet.rate)
    for gradient in gradients:
        twin.grad = gradient
        optimiser.step()
    torch.testing.assert_close(dreams.spectrum, twin.detach(), atol=1e-6, rtol=1e-5)
    dreams.run(25)
    assert dreams.finished
    assert len(dreams.curves()) == 30
    assert dreams.examine()[0]["objective"] > before + 0.02


def test_kept_pixels_stay_the_original_s(model: DNA, ids: torch.Tensor) -> None:
    dream = _dreams(ids)[2]
    dreams = ImageDreams(model, [dream], SETTINGS)
    dreams.run(3)
    shown = dreams.pictures()[0]
    assert torch.equal(shown[:, dream.keep], dream.context[:, dream.keep])
    assert not torch.isclose(shown[:, ~dream.keep], dream.context[:, ~dream.keep]).any(dim=0).all()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_dream_that_was_stopped_goes_on_bit_for_bit(
    model: DNA, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    settings = SETTINGS.model_copy(update={"precision": precision})
    monkeypatch.setattr("tokenpaths.engine.dream.image_loop.gains_by_bfloat16", lambda device: True)
    through = ImageDreams(model, _dreams(ids), settings)
    through.run(9)
    stopped = ImageDreams(model, _dreams(ids), settings)
    stopped.run(4)
    state = stopped.state()
    # Another process, whose clock says the opposite.
    monkeypatch.setattr("tokenpaths.engine.dream.image_loop.gains_by_bfloat16", lambda device: False)
    again = ImageDreams(model, _dreams(ids), settings, state)
    again.run(5)
    assert torch.equal(again.pictures(), through.pictures())
    assert torch.equal(again.curves(), through.curves())
    with pytest.raises(UserError, match="holds dreams of shape"):
        ImageDreams(model, _dreams(ids)[:1], settings, state)


@pytest.mark.skipif(not cpu_gains_by_bfloat16(), reason="bfloat16 is slower here")
def test_dreams_in_bfloat16_climb_the_same_hill(model: DNA, ids: torch.Tensor) -> None:
    made = {}
    for precision in ("float32", "bfloat16", "bfloat16"):
        settings = SETTINGS.model_copy(update={"precision": precision})
        dreams = ImageDreams(model, [Dream(Choices(ids[0], range(3)), seed=5)], settings)
        dreams.run(1)
        first = dreams.mean.clone().flatten().abs()
        dreams.run(20)
        made.setdefault(precision, []).append((first, dreams.pictures(), dreams.curves()))
    (wide,), (low, again) = made["float32"], made["bfloat16"]
    assert torch.equal(low[1], again[1])  # the same seed gives the same bits here too
    assert not torch.equal(low[1], wide[1])
    assert torch.nn.functional.cosine_similarity(low[0], wide[0], dim=0) > 0.9
    assert low[2][-1] > low[2][0]
    torch.testing.assert_close(low[2][-1], wide[2][-1], atol=0.1, rtol=0)


def test_a_processor_without_bfloat16_products_says_so(
    model: DNA, ids: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenpaths.engine.dream.image_loop.gains_by_bfloat16", lambda device: False)
    with pytest.raises(UserError, match="take precision float32") as refused:
        ImageDreams(model, [Dream(Choices(ids[0], range(1)))], SETTINGS.model_copy(update={"precision": "bfloat16"}))
    assert refused.value.field == "image.precision"


def test_a_block_of_a_raytracing_network_can_be_dreamed() -> None:
    torch.manual_seed(0)
    model = RayTracing(RayTracingConfig(image_size=8, layers=2, blocks=4, width=4, theta_steps=6)).eval()
    model.requires_grad_(False)
    image = torch.randn(1, 3, 8, 8)
    (seen,) = look(model, image, [Block(1).need])
    expected = model(image, theta_out=float("inf")).last_rates[0]
    torch.testing.assert_close(seen.rates, expected)
    quiet = ImageSettings(
        iterations=20, rate=0.05, noise=0, colour_shift=0, jitter=0, rotation=0, scaling=0, total_variation=0
    )
    dreams = ImageDreams(model, [Dream(Block(1))], quiet)
    before = dreams.examine()[0]["objective"]
    dreams.run(20)
    assert dreams.examine()[0]["objective"] > before


def test_a_raytracing_network_answers_where_its_own_threshold_stops() -> None:
    """Its answer at the last threshold is that of a network that does not exist."""
    torch.manual_seed(0)
    config = RayTracingConfig(image_size=8, layers=2, blocks=4, width=4, theta_steps=6, num_classes=4)
    model = RayTracing(config).eval().requires_grad_(False)
    images = torch.randn(3, 3, 8, 8)
    own, last = model(images), model(images, theta_out=float("inf"))
    assert (own.theta_steps < 6).all()
    assert (own.logits - last.logits).abs().max() > 0.01
    wanted = [Answer(2), Block(1), Answer(2) + 0.5 * Block(3)]
    seen = look(model, images, [objective.need for objective in wanted])
    torch.testing.assert_close(seen[0].output, own.logits[0])
    assert seen[0].rates is None
    assert seen[1].output is None
    torch.testing.assert_close(seen[1].rates, last.last_rates[1])
    both = own.logits[2, 2] + 0.5 * last.last_rates[2, 3]
    assert float(wanted[2].value(seen[2])) == pytest.approx(float(both), rel=1e-5)
    for place, found in enumerate(examine(model, images, wanted)):
        assert dict(found["top"]) == pytest.approx(dict(enumerate(own.logits[place].softmax(dim=0).tolist())))
    pixels = images[:1].clone().requires_grad_()
    (answer,) = look(model, pixels, [Answer(2).need])
    (gradient,) = torch.autograd.grad(Answer(2).value(answer), pixels)
    assert gradient.abs().sum() > 0


def test_a_model_whose_modules_choose_is_refused() -> None:
    config = mixture_of_depths("vision", layers=2, width=16, heads=2, mlp_width=32, image_size=16, patch_size=8)
    with pytest.raises(UserError, match="modules choose tokens"):
        look(DNA(config), torch.randn(1, 3, 16, 16), [Need(1)])
