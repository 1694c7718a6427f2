"""Ray-Tracing networks: blocks that compute only when enough signal reaches them, under a falling threshold.

image → frozen convolutions → input modules (module j sends as much signal as it has neurons) → blocks in
layers, joined by wires → the signals that reach the output → a dense layer.

The relaxation (falling threshold, stopping) is in ``raytracing_relax``, the wires in ``raytracing_config``.

Shapes: B samples, F features, I input neurons, k features of an input neuron, P blocks, E wires into a block (padded),
R threshold steps, C classes; S layers, K blocks of a layer.
Source: "Ray-Tracing for Conditionally Activated Neural Networks", sections 2 and 3.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.families.raytracing_config import (
    RayTracingConfig,
    RayTracingControls,
    check_steps,
    raytracing_plan,
)
from tokenpaths.engine.models.family import RoutedModel, Traced
from tokenpaths.engine.models.raytracing_relax import EXECUTIONS, RayTracingOutput


class FeatureExtractor(nn.Sequential):
    """Convolutions with ReLU, some followed by a 2 × 2 maximum; the last activation, flattened."""

    def __init__(self, config: RayTracingConfig) -> None:
        layers: list[nn.Module] = []
        widths = (config.channels, *config.conv_channels)
        for i, (source, target) in enumerate(zip(widths[:-1], widths[1:], strict=True)):
            layers += [nn.Conv2d(source, target, config.conv_kernel, padding=config.conv_kernel // 2), nn.ReLU()]
            if i in config.conv_pools:
                layers.append(nn.MaxPool2d(2))
        super().__init__(*layers, nn.Flatten())


class OnFeatures(nn.Module):
    """A network on the features of convolutions that its own training leaves alone."""

    def __init__(self, config: RayTracingConfig) -> None:
        super().__init__()
        self.config = config
        self.convolutions = FeatureExtractor(config).requires_grad_(False)

    @torch.no_grad()
    def features(self, images: Float[Tensor, "B channels H W"]) -> Float[Tensor, "B F"]:
        """Activations of the last convolution.

        Raises:
            UserError: images of another size or number of channels.
        """
        size = (self.config.channels, self.config.image_size, self.config.image_size)
        if images.shape[1:] != size:
            raise UserError(f"images of shape {tuple(images.shape[1:])} do not fit {size}", field="inputs")
        return self.convolutions(images)

    def logits_of(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B C"]:
        """Class logits."""
        raise NotImplementedError

    @property
    def trainable_params(self) -> int:
        """Parameters, the convolutions excepted, whether or not a loaded checkpoint still trains them."""
        frozen = sum(p.numel() for p in self.convolutions.parameters())
        return sum(p.numel() for p in self.parameters()) - frozen


class MLPTwin(OnFeatures):
    """The baseline of section 3: one hidden layer on the same features, as many trainable parameters as fit.

    ``params``: how many there should be; None: as many as the network has.
    """

    def __init__(self, config: RayTracingConfig, params: int | None = None) -> None:
        super().__init__(config)
        classes = config.num_classes
        params = trainable_params(config) if params is None else params
        hidden = max(1, round((params - classes) / (config.num_features + 1 + classes)))
        self.hidden = nn.Linear(config.num_features, hidden)
        self.readout = nn.Linear(hidden, classes)

    def logits_of(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B C"]:
        return self.readout(self.hidden(features).relu())

    def forward(self, images: Float[Tensor, "B channels H W"]) -> Float[Tensor, "B C"]:
        return self.logits_of(self.features(images))


class RayTracing(OnFeatures, RoutedModel):
    """The network. ``execution`` is "batched" (fast) or "naive" (readable); both give the same numbers."""

    input_features: Tensor
    wires_PE: Tensor
    rows_PE: Tensor
    output_wires: Tensor
    fan_in_P: Tensor

    family = "raytracing"
    Config = RayTracingConfig
    Controls = RayTracingControls
    WEIGHT_SEMANTICS = {
        "score_function": "firing rate: the sum of the signals that reach a block",
        "order": "every block whose rate exceeds the threshold fires",
        "renormalised": False,
        "bias": "none",
        "shared_experts": 0,
        "decision": "threshold",
        "unit": "sequence",
        "reading": "each layer's blocks, on where they fired at any threshold step, else their identity twins; "
        "weight is the firing rate, at most 1",
    }

    def __init__(self, config: RayTracingConfig, execution: Literal["batched", "naive"] = "batched") -> None:
        super().__init__(config)
        self.execution = execution
        neurons, width = config.signal, config.width
        sources = config.sources()
        into_blocks = sum(map(len, sources[:-1]))
        self.input_weight = nn.Parameter(torch.empty(neurons, config.fan_in))
        self.input_bias = nn.Parameter(torch.zeros(neurons))
        # One row for each wire that ends in a block, ordered by block, then by number of the wire.
        self.gate_weight = nn.Parameter(torch.empty(into_blocks, width))
        self.gate_bias = nn.Parameter(torch.empty(config.num_blocks, width))
        self.readout = nn.Linear(len(sources[-1]), config.num_classes)
        generator = torch.Generator("cpu").manual_seed(config.seed)
        chosen = torch.rand(neurons, config.num_features, generator=generator, device="cpu").topk(config.fan_in)
        self.register_buffer("input_features", chosen.indices)
        self._register_plan(sources)
        self._initialise(sources)

    def _register_plan(self, sources: list[list[int]]) -> None:
        """Where the batched path finds what: derived from the wires, so never saved."""
        config = self.config
        num_wires = config.signal + config.num_blocks * config.width
        longest = max(1, *map(len, sources[:-1]))
        # Behind the last wire and the last row lies a zero, for blocks with fewer wires than the longest.
        wires_PE = torch.full((config.num_blocks, longest), num_wires, device="cpu")
        rows_PE = torch.full((config.num_blocks, longest), sum(map(len, sources[:-1])), device="cpu")
        first = 0
        for block, wires in enumerate(sources[:-1]):
            wires_PE[block, : len(wires)] = torch.tensor(wires, dtype=torch.long, device="cpu")
            rows_PE[block, : len(wires)] = torch.arange(first, first + len(wires), device="cpu")
            first += len(wires)
        output = torch.tensor(sources[-1], device="cpu") - config.signal
        fan_in_P = torch.tensor([len(wires) for wires in sources[:-1]], device="cpu")
        plan = {"wires_PE": wires_PE, "rows_PE": rows_PE, "output_wires": output, "fan_in_P": fan_in_P}
        for name, value in plan.items():
            self.register_buffer(name, value, persistent=False)

    def _initialise(self, sources: list[list[int]]) -> None:
        """Every linear layer as the framework initialises one of its fan-in."""
        nn.init.uniform_(self.input_weight, -(self.config.fan_in**-0.5), self.config.fan_in**-0.5)
        first = 0
        for block, wires in enumerate(sources[:-1]):
            bound = max(1, len(wires)) ** -0.5
            nn.init.uniform_(self.gate_weight.data[first : first + len(wires)], -bound, bound)
            nn.init.uniform_(self.gate_bias.data[block], -bound, bound)
            first += len(wires)

    def inputs(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B I"]:
        """Signals of the input neurons: each module's softmax times its number of neurons."""
        scores_BI = (features[:, self.input_features] * self.input_weight).sum(dim=-1) + self.input_bias
        sizes = list(self.config.input_neurons)
        parts = zip(scores_BI.split(sizes, dim=1), sizes, strict=True)
        return torch.cat([size * scores.softmax(dim=1) for scores, size in parts], dim=1)

    def relax(
        self,
        features: Float[Tensor, "B F"],
        *,
        theta_out: float | None = None,
        theta_steps: int | None = None,
        keep_steps: bool = False,
        attached: bool = False,
        banned: Bool[Tensor, " P"] | None = None,
    ) -> RayTracingOutput:
        """Let θ fall until the output fires, each sample by itself.

        ``theta_out`` replaces the configured one (``inf``: go on to the cap), ``theta_steps`` lowers the
        cap; ``keep_steps`` also gives ``step_logits``, ``attached`` gradients to ``last_rates``. Blocks that
        are ``banned`` never fire. Always in float32: a threshold must not depend on the batch's precision.

        Raises:
            UserError: a cap below 1 or above the configured one.
        """
        config = self.config
        check_steps(config, theta_steps)
        cap = config.theta_steps if theta_steps is None else theta_steps
        limit = config.theta_out if theta_out is None else theta_out
        with torch.autocast(features.device.type, enabled=False):
            signals = self.inputs(features.float())
            return EXECUTIONS[self.execution](self, signals, limit, cap, keep_steps, attached, banned)

    def logits_of(self, features: Float[Tensor, "B F"]) -> Float[Tensor, "B C"]:
        return self.relax(features).logits

    def forward(self, images: Float[Tensor, "B channels H W"], **options: Any) -> RayTracingOutput:
        """Images to logits; ``options`` are those of ``relax``."""
        return self.relax(self.features(images), **options)

    def training_loss(
        self, inputs: Tensor, targets: Tensor, label_smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], RayTracingOutput]:
        """Mean cross-entropy of images (B, channels, H, W); gradients pass through every threshold step."""
        output = self(inputs)
        return F.cross_entropy(output.logits, targets, label_smoothing=label_smoothing), output

    def training_numbers(self, routing: RayTracingOutput) -> dict[str, float]:
        """Mean share of blocks that fired, and mean number of threshold steps."""
        return {
            "active_share": float(routing.fired.float().mean()),
            "theta_steps": float(routing.theta_steps.float().mean()),
        }

    def trace(
        self,
        inputs: Tensor,
        valid: Bool[Tensor, "B T"] | None = None,
        theta_out: float | None = None,
        theta_steps: int | None = None,
        banned: Bool[Tensor, " P"] | None = None,
    ) -> Traced:
        """An image is one token, a layer one step; all its blocks by weight, on or off, and the firing rates.

        The weight of a block is its largest rate where it fired, its last rate elsewhere, at most 1. A
        block that never fired had a rate of at most θ at the last step, so those that fired come first.
        Gate entropy is NaN: no router spreads one unit over the blocks.
        """
        config, output = self.config, self(inputs, theta_out=theta_out, theta_steps=theta_steps, banned=banned)
        rates_BP = torch.where(output.fired, output.rates.amax(dim=1), output.last_rates)
        shape = (len(inputs), 1, config.layers, config.blocks)
        rates_BTSK, order = rates_BP.view(shape).sort(dim=-1, descending=True, stable=True)
        on = output.fired.view(shape).gather(-1, order)
        narrow = torch.uint8 if config.num_modules <= 256 else torch.int16
        flops_BP = (output.rates > 0).sum(dim=1) * self._block_flops()
        return Traced(
            output.logits,
            torch.where(on, order, order + config.blocks).to(narrow),
            rates_BTSK.clamp(max=1).to(torch.float16),
            rates_BTSK.new_full(shape[:3], float("nan")),
            flops=flops_BP.sum(dim=1, keepdim=True).float(),
            blocks=output.rates,
        )

    def trace_with(self, inputs: Tensor, valid: Bool[Tensor, "B T"] | None, controls: RayTracingControls) -> Traced:
        """``trace`` under what the page or the API asked for."""
        given = controls.given()
        given.pop("edits", None)
        return self.trace(inputs, valid, **given, banned=self.banned(controls))

    def banned(self, controls: RayTracingControls) -> Bool[Tensor, " P"] | None:
        """The blocks that never fire; None: all may.

        Raises:
            UserError: there is no such layer or block, or none would be left.
        """
        plan = raytracing_plan(self.config, getattr(controls, "edits", None))
        if plan is None:
            return None
        banned = torch.zeros(self.config.layers, self.config.blocks, dtype=torch.bool, device=self.input_weight.device)
        for layer, step in enumerate(plan.steps):
            if step is not None:
                banned[layer, sorted(step.banned)] = True
        return banned.flatten()

    def top_k_under(self, controls: RayTracingControls) -> int:
        """Every block has a slot; refuses edits that do not fit."""
        self.banned(controls)
        return self.config.top_k

    @property
    def must_leave(self) -> int:
        """Signals pass by a layer without blocks: none of them has to be left."""
        return 0

    def axis_names(self) -> dict[str, tuple[str, ...]]:
        config = self.config
        return {
            "threshold_step": tuple(f"θ = {config.theta * config.decay**t:.3g}" for t in range(config.theta_steps)),
            "block": tuple(f"L{p // config.blocks}B{p % config.blocks}" for p in range(config.num_blocks)),
        }

    def module_table(self) -> list[ModuleInfo]:
        """For every layer its blocks, then their identity twins."""
        config, rows = self.config, []
        params, flops = self.block_params().tolist(), self._block_flops().tolist()
        for p in range(config.num_blocks):
            layer, block = divmod(p, config.blocks)
            rows.append(ModuleInfo(layer, block, f"L{layer}B{block}", "block", params[p], flops[p]))
            rows.append(ModuleInfo(layer, config.blocks + block, f"L{layer}B{block} silent", "identity", 0, 0))
        return rows

    def token_flops(
        self, module_ids: Integer[Tensor, "B T S K"], valid: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B T"]:
        """Floating-point operations of the blocks that are on, each counted once (``trace`` counts every step)."""
        flops_SK = self._block_flops().cpu().view(self.config.layers, self.config.blocks)
        both_SM = torch.cat([flops_SK, torch.zeros_like(flops_SK)], dim=1)
        ids_SN = module_ids.long().permute(2, 0, 1, 3).flatten(1)
        per_BTSK = both_SM.gather(1, ids_SN).view(self.config.layers, *module_ids.shape[:2], -1)
        return per_BTSK.sum(dim=(0, 3)).float()

    def _block_flops(self) -> Int[Tensor, " P"]:
        return 2 * self.config.width * self.fan_in_P

    def block_params(self) -> Int[Tensor, " P"]:
        """Parameters of each block: a weight for each wire and neuron, and the biases."""
        return self.config.width * (self.fan_in_P + 1)

    def lit_params(self, fired: Bool[Tensor, "B P"]) -> Int[Tensor, " B"]:
        """Parameters of the blocks that fired, the input modules and the output layer, whatever their wires carried."""
        always = sum(part.numel() for part in (self.input_weight, self.input_bias, *self.readout.parameters()))
        return fired.long() @ self.block_params() + always

    def used_params(self, rates: Float[Tensor, "B R P"]) -> Int[Tensor, " B"]:
        """Parameters through which a signal went in each sample, from its firing rates.

        The input modules and the biases of all that computed; of a block that fired, the weights of the wires that
        carried something when it did; of the output layer, the columns of wires that carried something when it was
        read. A weight that is multiplied by zero is not used, and not trained either.
        """
        return self._params_through(*self._carried(rates))

    def reachable_params(self, rates: Float[Tensor, "B R P"]) -> int:
        """Parameters through which a signal went in at least one of the samples."""
        return int(self._params_through(*(way.any(dim=0) for way in self._carried(rates))))

    def _params_through(
        self, fired: Bool[Tensor, "*B P"], met: Bool[Tensor, "*B P P"], last: Bool[Tensor, "*B P"]
    ) -> Int[Tensor, "*B"]:
        """How many parameters the ways of ``_carried`` lead through."""
        between_PP, output_P = self._wires_between()
        into_blocks_P = self.fan_in_P - between_PP.sum(dim=0) + 1  # wires of inputs, which always carry, and the biases
        weights = (fired * into_blocks_P).sum(dim=-1) + (met * between_PP).sum(dim=(-2, -1))
        always = self.input_weight.numel() + self.input_bias.numel() + self.config.num_classes
        return always + self.config.width * weights + self.config.num_classes * (last * output_P).sum(dim=-1)

    def _carried(
        self, rates: Float[Tensor, "B R P"]
    ) -> tuple[Bool[Tensor, "B P"], Bool[Tensor, "B P P"], Bool[Tensor, "B P"]]:
        """Blocks that ever fired; pairs, the second of which fired on what the first sent; blocks the output read."""
        active = rates > 0
        sent, read = (active, active) if self.config.crossing == "all" else (active[:, :-1], active[:, 1:])
        met = sent.float().transpose(1, 2) @ read.float() > 0
        return active.any(dim=1), met, active[range(len(rates)), self._last_steps(active)]

    def _wires_between(self) -> tuple[Int[Tensor, "P P"], Int[Tensor, " P"]]:
        """Wires from each block to each other one, and to the output."""
        count = self.config.num_blocks
        ends = torch.tensor(self.config.block_wires, device=self.fan_in_P.device)
        wires = torch.nn.functional.one_hot(ends, count + 1).sum(dim=1)
        return wires[:, :count], wires[:, count]

    @staticmethod
    def _last_steps(active: Bool[Tensor, "B R P"]) -> Int[Tensor, " B"]:
        """The last step at which anything fired; 0 if nothing ever did."""
        any_BR = active.any(dim=2)
        return torch.where(any_BR.any(dim=1), any_BR.shape[1] - 1 - any_BR.flip(1).int().argmax(dim=1), 0)


def trainable_params(config: RayTracingConfig) -> int:
    """Parameters of a RayTracing network without its convolutions."""
    with torch.device("meta"):
        return RayTracing(config).trainable_params
