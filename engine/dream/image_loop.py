"""The optimisation loop of image dreams; several dreams share each forward pass without influencing each other.

Shapes: B dreams, N pixels a side, F frequencies, T tokens.
Source: Distributed Neural Architectures, appendix C.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tokenpaths.engine.base.device import gains_by_bfloat16, mixed_precision
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.objectives import Choices, Module, Objective
from tokenpaths.engine.dream.observed_pass import Seen, look
from tokenpaths.engine.dream.parametrisation import start_spectrum, to_pictures, total_variation
from tokenpaths.engine.dream.settings import ImageSettings
from tokenpaths.engine.dream.transforms import disturb, draw, generator_of
from tokenpaths.engine.models.family import RoutedModel

BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Dream:
    """What one dream wants, and where its random numbers come from."""

    objective: Objective
    seed: int = 0
    number: int = 0
    """dreams of one seed and different numbers are disturbed differently"""
    context: Float[Tensor, "channels N N"] | None = None
    """the original in [0, 1], where its pixels are kept"""
    keep: Bool[Tensor, "N N"] | None = None
    """pixels that stay the original's; with ``context``"""


class ImageDreams:
    """A batch of image dreams at some iteration.

    Results are those of each dream by itself, up to the rounding of batched products. On a CPU the same seed gives
    the same bits at the same batch, and a batch goes on bit for bit from a ``state`` of it.
    """

    def __init__(
        self,
        model: RoutedModel,
        dreams: Sequence[Dream],
        settings: ImageSettings,
        state: dict[str, Tensor] | None = None,
    ) -> None:
        """Begin, or go on from a ``state``.

        Raises:
            UserError: the model is for texts; products in bfloat16 are no quicker here; the state is of other dreams.
        """
        config = model.config
        if config.modality != "vision":
            raise UserError(f"A {model.family} model for texts has no image to dream", field="model")
        self.model, self.dreams, self.settings = model, list(dreams), settings
        self.device = model.device
        self._low_precision = settings.precision == "bfloat16"
        # Of a new batch only: the clock may say otherwise to another process, and a state is of one that was let begin.
        if self._low_precision and state is None and not gains_by_bfloat16(self.device):
            raise UserError(
                "Products in bfloat16 are no quicker on this device, as far as is known: take precision float32",
                field="image.precision",
            )
        self.side, self.channels = config.image_size, config.channels
        self.jitter = settings.jitter * getattr(config, "patch_size", self.side / 14)
        self.iteration = 0
        starts = [
            start_spectrum(self.side, generator_of(d.seed, d.number, -1, self.device), settings.spread, self.channels)
            for d in self.dreams
        ]
        self.spectrum = torch.stack(starts)
        self.mean = torch.zeros_like(self.spectrum)
        self.square = torch.zeros_like(self.spectrum)
        self.curve: list[Tensor] = []
        self._needs = [d.objective.need for d in self.dreams]
        self._terms = torch.tensor([d.objective.terms for d in self.dreams], device=self.device)
        if state is not None:
            self._load(state)

    def run(self, iterations: int) -> None:
        """Climb for so many iterations, or until all are done."""
        for _ in range(min(iterations, self.settings.iterations - self.iteration)):
            self._climb()

    @property
    def finished(self) -> bool:
        return self.iteration >= self.settings.iterations

    def pictures(self) -> Float[Tensor, "B channels N N"]:
        """The dreams as they stand, in [0, 1]."""
        with torch.no_grad():
            return self._compose(to_pictures(self.spectrum))

    def _compose(self, pictures: Tensor) -> Tensor:
        """With the original's pixels where they are kept."""
        if all(d.context is None for d in self.dreams):
            return pictures
        rows = [
            x if d.context is None or d.keep is None else torch.where(d.keep.to(x.device), d.context.to(x), x)
            for x, d in zip(pictures, self.dreams, strict=True)
        ]
        return torch.stack(rows)

    def _climb(self) -> None:
        settings, done = self.settings, self.iteration / self.settings.iterations
        draws = [
            draw(
                settings,
                self.side,
                self.jitter,
                generator_of(d.seed, d.number, self.iteration, self.device),
                done,
                self.channels,
            )
            for d in self.dreams
        ]
        spectrum = self.spectrum.requires_grad_()
        pictures = self._compose(to_pictures(spectrum))
        with mixed_precision(self.device, self._low_precision):
            seen = look(self.model, disturb(self._normal(pictures), draws), self._needs)
        values = torch.stack([d.objective.value(s).float() for d, s in zip(self.dreams, seen, strict=True)])
        loss = settings.total_variation * total_variation(pictures).sum() - values.sum()
        (gradient,) = torch.autograd.grad(loss, spectrum)
        self.spectrum = spectrum.detach()
        self.curve.append(values.detach() / self._terms)
        self.iteration += 1
        self._adam(gradient)

    def _normal(self, pictures: Tensor) -> Tensor:
        return normalise(pictures) if self.channels == 3 else pictures

    @torch.no_grad()
    def _adam(self, gradient: Tensor) -> None:
        (one, two), t = BETAS, self.iteration
        self.mean.lerp_(gradient, 1 - one)
        self.square.mul_(two).addcmul_(gradient, gradient, value=1 - two)
        spread = (self.square / (1 - two**t)).sqrt_().add_(EPSILON)
        self.spectrum = self.spectrum.addcdiv(self.mean, spread, value=-self.settings.rate / (1 - one**t))

    def curves(self) -> Float[Tensor, "I B"]:
        """Mean of the wanted decisions at each iteration so far, as the disturbed picture had it."""
        return torch.stack(self.curve).cpu() if self.curve else torch.zeros(0, len(self.dreams))

    def examine(self, pictures: Tensor | None = None) -> list[dict[str, Any]]:
        """What the undisturbed dreams do: see ``examine``."""
        shown = self.pictures() if pictures is None else pictures
        return examine(self.model, self._normal(shown), [d.objective for d in self.dreams])

    def state(self) -> dict[str, Tensor]:
        """All that changes from iteration to iteration; given to the same dreams with the same settings, they go on."""
        tensors = {"spectrum": self.spectrum, "mean": self.mean, "square": self.square, "curve": self.curves()}
        return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()} | {
            "iteration": torch.tensor(self.iteration)
        }

    def _load(self, state: dict[str, Tensor]) -> None:
        if state["spectrum"].shape != self.spectrum.shape:
            raise UserError(
                f"The saved state holds dreams of shape {tuple(state['spectrum'].shape)}; these are of "
                f"{tuple(self.spectrum.shape)}",
                field="state",
            )
        for name in ("spectrum", "mean", "square"):
            setattr(self, name, state[name].to(self.device).clone())
        self.iteration = int(state["iteration"])
        self.curve = list(state["curve"].to(self.device))


@torch.no_grad()
def examine(model: RoutedModel, inputs: Tensor, objectives: Sequence[Objective], top: int = 5) -> list[dict[str, Any]]:
    """One whole, undisturbed forward pass: what objectives are worth, whether choices match, the likeliest classes.

    A RayTracing network answers where its own threshold stops, though a block's rate is that at the last threshold.
    ``objective`` is the mean over the wanted decisions; ``matched_choices`` and ``matched_tokens`` are those of
    ``Choices.matched`` or ``Module.matched`` (None for other objectives); ``top`` holds (class, probability).
    """
    seen = look(model, inputs, [replace(o.need, output=True) for o in objectives])
    return [_examined(s, o, top) for s, o in zip(seen, objectives, strict=True)]


def _examined(seen: Seen, objective: Objective, top: int) -> dict[str, Any]:
    choices, tokens = objective.matched(seen) if isinstance(objective, Choices | Module) else (None, None)
    report: dict[str, Any] = {
        "objective": float(objective.value(seen)) / objective.terms,
        "matched_choices": choices,
        "matched_tokens": tokens,
    }
    if seen.output is not None and seen.output.ndim == 1:
        probs, classes = seen.output.float().softmax(dim=-1).topk(min(top, len(seen.output)))
        report["top"] = [[int(c), float(p)] for c, p in zip(classes, probs, strict=True)]
    return report
