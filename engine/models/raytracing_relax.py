"""Relaxation of a Ray-Tracing network: the threshold falls until enough signal reaches the output, per sample.

At threshold step t each block reads what its wires carry, r = Σ z, and sends s = ReLU(r − θ(t)) · softmax(F(z)) down
its wires. Input wires carry the same all the time, block wires nothing before step 0. The paper leaves open how far a
signal gets within a step: with ``crossing="one"`` a block reads what its wires carried at step t − 1, so that a signal
crosses one layer a step; with ``crossing="all"`` layer after layer answers at the same θ, so that it crosses all of
them. θ(0) = 1, θ(t) = 0.9 · θ(t − 1), until the signals that reach the output add up to more than θ_out: the sample
stops there and the output reads them. Where they never do, the sample stops at the cap ``theta_steps``, the output
reads what has come, perhaps nothing but its bias, and ``RayTracingOutput.reached`` is False.

Shapes: B samples, I input neurons, P blocks, W neurons of a block, E wires into a block (padded with a zero),
O wires into the output, R threshold steps, C classes.
Source: "Ray-Tracing for Conditionally Activated Neural Networks", section 2, equation 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from tokenpaths.engine.families.raytracing_config import RayTracingConfig


@runtime_checkable
class BlockNetwork(Protocol):
    """The parameters and wires that a relaxation reads."""

    rows_PE: Tensor
    wires_PE: Tensor
    output_wires: Tensor

    @property
    def config(self) -> RayTracingConfig: ...

    @property
    def gate_weight(self) -> Tensor:
        """(all wires into blocks, W), block after block"""
        ...

    @property
    def gate_bias(self) -> Tensor:
        """(P, W)"""
        ...

    def readout(self, signals: Float[Tensor, "... O"]) -> Float[Tensor, "... C"]:
        """Logits of what arrived at the output."""
        ...


@dataclass(frozen=True)
class RayTracingOutput:
    """Logits, and which blocks fired on the way."""

    logits: Float[Tensor, "B C"]
    rates: Float[Tensor, "B R P"]
    """firing rate r of each block at each threshold step; 0 where it was silent, and after the sample's stop"""
    last_rates: Float[Tensor, "B P"]
    """rate of every block at the sample's last step, silent ones included"""
    theta_steps: Int[Tensor, " B"]
    """threshold steps until the sample stopped, at least 1"""
    reached: Bool[Tensor, " B"]
    """the signal at the output exceeded θ_out; False where the cap ended the relaxation"""
    step_logits: Float[Tensor, "B R C"] | None = None
    """what the output would say if the sample stopped at each step; its last word after its stop"""

    @property
    def fired(self) -> Bool[Tensor, "B P"]:
        """Blocks that fired at any step: those whose parameters the sample used."""
        return (self.rates > 0).any(dim=1)


def relax_batched(
    model: BlockNetwork,
    inputs: Float[Tensor, "B I"],
    limit: float,
    cap: int,
    keep_steps: bool,
    attached: bool = False,
    banned: Bool[Tensor, " P"] | None = None,
) -> RayTracingOutput:
    """All samples that still run, all blocks, at once; samples lie in the last dimension, so rows are gathered.

    With ``attached`` the last rates carry gradients.
    """
    config, count, device = model.config, len(inputs), inputs.device
    weights_PWE = F.pad(model.gate_weight, (0, 0, 0, 1))[model.rows_PE].transpose(1, 2)
    inputs_IB, zero = inputs.T, inputs.new_zeros(1, count)
    wires = inputs.new_zeros(config.num_blocks * config.width, count)
    rates = inputs.new_zeros(count, config.theta_steps, config.num_blocks)
    last_rates = inputs.new_zeros(count, config.num_blocks)
    steps = torch.zeros(count, dtype=torch.long, device=device)
    reached = torch.zeros(count, dtype=torch.bool, device=device)
    arrived = inputs.new_zeros(config.theta_steps, count, len(model.output_wires)) if keep_steps else None
    size = config.num_blocks if config.crossing == "one" else config.blocks
    together = [slice(first, first + size) for first in range(0, config.num_blocks, size)]
    running, finished, theta = torch.arange(count, device=device), [], config.theta
    for step in range(cap):
        rates_PB, sent = [], list(wires.split(len(wires) // len(together)))
        for group, blocks in enumerate(together):
            # Where all layers answer at once nobody reads what another sends in this step.
            heard = wires if len(together) == 1 else torch.cat(sent)
            signals = torch.cat([inputs_IB, heard, zero[:, : len(running)]])
            ends_PE = model.wires_PE[blocks]
            z_PEB = signals.index_select(0, ends_PE.flatten()).unflatten(0, ends_PE.shape)
            r_PB = z_PEB.sum(dim=1)
            if banned is not None:  # no rate, and θ is above 0: they never fire
                r_PB = r_PB.masked_fill(banned[blocks, None], 0)
            gates_PWB = (torch.bmm(weights_PWE[blocks], z_PEB) + model.gate_bias[blocks, :, None]).softmax(dim=1)
            sent[group] = ((r_PB - theta).relu()[:, None] * gates_PWB).flatten(0, 1)
            rates_PB.append(r_PB)
        wires, r_PB = torch.cat(sent), torch.cat(rates_PB)
        out_OB = wires.index_select(0, model.output_wires)
        rate_BP = r_PB.detach().T
        rates[running, step] = torch.where(rate_BP > theta, rate_BP, 0)
        last_rates[running], steps[running] = r_PB.T if attached else rate_BP, step + 1
        if arrived is not None:
            arrived[step:, running] = out_OB.detach().T  # and at all later steps, unless they say otherwise
        over = out_OB.detach().sum(dim=0) > limit
        reached[running] = over
        stop = over if step + 1 < cap else torch.ones_like(over)
        if stop.all():
            finished.append((running, out_OB.T))
            break
        if stop.any():
            finished.append((running[stop], out_OB.T[stop]))
            inputs_IB, wires, running = inputs_IB[:, ~stop], wires[:, ~stop], running[~stop]
        theta *= config.decay
    order = torch.cat([rows for rows, _ in finished]).argsort()
    logits = model.readout(torch.cat([out for _, out in finished])[order])
    step_logits = None if arrived is None else model.readout(arrived).transpose(0, 1)
    return RayTracingOutput(logits, rates, last_rates, steps, reached, step_logits)


def relax_naive(
    model: BlockNetwork,
    inputs: Float[Tensor, "B I"],
    limit: float,
    cap: int,
    keep_steps: bool,
    attached: bool = False,
    banned: Bool[Tensor, " P"] | None = None,
) -> RayTracingOutput:
    """Sample by sample, block by block, straight from the equations; a silent block is not computed."""
    if attached:
        raise ValueError("rates with gradients come from the batched execution")
    config = model.config
    *sources, output_wires = config.sources()
    outputs = []
    for sample in inputs:
        signal = list(sample) + [sample.new_zeros(())] * (config.num_blocks * config.width)
        rates, readouts, theta = [], [], config.theta
        for _ in range(cap):
            after, row, rate = list(signal), 0, []
            for block, wires in enumerate(sources):
                heard = signal if config.crossing == "one" else after
                z = torch.stack([heard[w] for w in wires]) if wires else sample.new_zeros(0)
                weight = model.gate_weight[row : row + len(wires)]
                row += len(wires)
                r = z.sum() if banned is None or not banned[block] else z.new_zeros(())
                rate.append(float(r.detach()))
                sent = sample.new_zeros(config.width)
                if r > theta:
                    sent = (r - theta) * (z @ weight + model.gate_bias[block]).softmax(dim=0)
                first = config.signal + block * config.width
                after[first : first + config.width] = list(sent)
            signal = after
            out = torch.stack([signal[w] for w in output_wires])
            rates.append([x if x > theta else 0.0 for x in rate])
            readouts.append(model.readout(out))
            if out.sum() > limit:
                break
            theta *= config.decay
        steps, rest = len(readouts), config.theta_steps - len(readouts)
        silence = [[0.0] * config.num_blocks] * rest
        outputs.append((readouts + readouts[-1:] * rest, rates + silence, rate, steps, out.sum() > limit))
    answers, rates_R, last, num_steps, reached = zip(*outputs, strict=True)
    return RayTracingOutput(
        torch.stack([logits[-1] for logits in answers]),
        torch.tensor(rates_R),
        torch.tensor(last),
        torch.tensor(num_steps),
        torch.stack(reached),
        torch.stack([torch.stack(logits) for logits in answers]).detach() if keep_steps else None,
    )


EXECUTIONS = {"batched": relax_batched, "naive": relax_naive}
