"""The controls of each family and of Hugging Face experts, as values: what API, page and jobs may ask. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.controls import DNAControls, EditControls, read_controls_of
from tokenpaths.engine.families.edit_values import KINDS


class HModelControls(EditControls):
    """The live controls: they replace the configuration's values for one call.

    A step of an edit is the iteration at which the layer would run, the first being step 0: a banned layer is sent
    nothing, a forced one everything, a bias moves the logit of the connection to it.
    """

    FAMILY: ClassVar[str] = "hmodel"
    EDITS: ClassVar[tuple[str, ...]] = ("ban", "force", "bias")
    WHY_NOT: ClassVar[dict[str, str]] = {
        "swap": "a route is a matrix of weights here; give another sample's as the control connections",
        "freeze": "a route is a matrix of weights here; give the unedited run's as the control connections",
        "shuffle": "a layer sends to all others at once, so there are no single choices to deal out",
        "top_k": "there is a control of that name",
    }

    alpha: float | None = Field(default=None, ge=0.01, le=10, description="α: small makes connections all or nothing")
    alpha_rate: float | None = Field(default=None, ge=0.1, le=10, description="factor of α at every iteration")
    top_k: int | None = Field(default=None, ge=1, description="connections kept of each layer's outgoing ones")
    connections: tuple[tuple[tuple[float, ...], ...], ...] | None = Field(
        default=None,
        description="connections of another sample by iteration, source and target, in place of this one's: what "
        "GET /runs/{run}/edges gives of a sample or a label",
    )


class DiPaCoControls(EditControls):
    """What the page and the API may change of one trace.

    In an edit a step is a level: the best of the paths that avoid a banned module (or lead through a forced one) is
    taken; a bias is added to the score of every path through a module.
    """

    FAMILY: ClassVar[str] = "dipaco"
    EDITS: ClassVar[tuple[str, ...]] = ("ban", "force", "swap", "bias")
    WHY_NOT: ClassVar[dict[str, str]] = {
        "freeze": "the router reads a base model of its own, so its choice is the same whatever the modules do",
        "shuffle": "one path is chosen for a whole text or chunk, so there are no tokens to deal choices out to",
        "top_k": "a text takes one path",
    }

    reroute_every: int | None = Field(
        None, ge=4, le=1024, description="W: choose the path again every W tokens; unset: once for the whole text"
    )
    path: int | None = Field(None, ge=0, description="send every text down this path, whatever the router says")


class DirectionalFields(EditControls):
    """The fields of ``tokenpaths.engine.models.directional_gates.DirectionalControls``, which knows what they do."""

    FAMILY: ClassVar[str] = "directional"
    EDITS: ClassVar[tuple[str, ...]] = ("ban", "force", "freeze")
    WHY_NOT: ClassVar[dict[str, str]] = {
        "swap": "a route is a gate for each direction; give another text's as the control gates",
        "shuffle": "a layer decides for the whole text, so there are no tokens to deal decisions out to",
        "top_k": "every gate acts, none is picked",
        "bias": "a gate can be set by hand: give the control gate",
    }

    gate: float | None = Field(None, ge=0, le=1, description="Value of the gates: 0 routing off, 0.5 neutral, 1 full")
    gate_layer: int | None = Field(None, ge=0, description="The layer whose gates take that value; unset: every layer")
    gate_head: int | None = Field(None, ge=0, description="The head whose gates take it; unset: every head")
    gate_direction: int | None = Field(None, ge=0, description="The direction whose gates take it; unset: every one")
    knocked_out: tuple[tuple[int, int], ...] | None = Field(
        None, description="Heads that add nothing, each as [layer, head]"
    )
    gates: tuple[tuple[tuple[float, ...], ...], ...] | None = Field(
        None,
        description="Gates of another input, by layer, head and direction, in place of this one's: what "
        "GET /runs/{run}/gates gives of a sample or a label",
    )
    pooling: Literal["sequence", "prefix"] | None = Field(
        None, description="What the routers read: the whole sequence, or only what stands before (causal)"
    )


class RayTracingControls(EditControls):
    """Where the relaxation of a trained network ends; with both, at one threshold step for every sample.

    In an edit a step is a layer, a module a block of it; a banned block never fires.
    """

    FAMILY: ClassVar[str] = "raytracing"
    EDITS: ClassVar[tuple[str, ...]] = ("ban",)
    WHY_NOT: ClassVar[dict[str, str]] = {
        "force": "a block below the threshold has nothing to send",
        "swap": "a block fires when enough signal reaches it, nobody sends it there",
        "freeze": "there is no router: a block fires when enough signal reaches it",
        "shuffle": "an image is one token, so there are no decisions to deal out",
        "top_k": "every block above the threshold fires; give theta_out or theta_steps",
        "bias": "there is no choice that could be pushed; give theta_out or theta_steps",
    }

    theta_out: float | None = Field(
        default=None, gt=0, le=1000, description="θ_out, the signal at the output at which a sample stops"
    )
    theta_steps: int | None = Field(default=None, ge=1, le=1000, description="most threshold steps")


FAMILY_CONTROLS: dict[str, type[EditControls]] = {
    controls.FAMILY: controls
    for controls in (DNAControls, HModelControls, DiPaCoControls, DirectionalFields, RayTracingControls)
}


# Hugging Face mixtures of experts ------------------------------------------------------------------------------

Which = Literal["top", "bottom", "random"]
"""of the modules of a step, by how often they are used"""


class ExpertControls(EditControls):
    """Every edit, as far as the arithmetic of a model's gates allows it: the model says so when it is loaded."""

    FAMILY: ClassVar[str] = "moe"
    EDITS: ClassVar[tuple[str, ...]] = KINDS

    ban_share: float | None = Field(
        default=None, gt=0, lt=1, description="In place of edits: ban this share of the experts of each layer"
    )
    which: Which | None = Field(default=None, description="With ban_share: top (most used), bottom or random")
    seed: NonNegativeInt | None = Field(default=None, description="With ban_share, of the random ones")


def read_expert_controls(values: Mapping[str, Any]) -> ExpertControls:
    """Controls from plain values; at least one edit.

    Raises:
        UserError: a control or an edit that it has not, or none at all; ``field`` names it.
    """
    controls: ExpertControls = read_controls_of(ExpertControls, dict(values), ExpertControls.FAMILY)
    if not controls.edits and controls.ban_share is None:
        raise UserError("there is no edit; ban an expert, for example", field="controls")
    if controls.edits and controls.ban_share is not None:
        raise UserError("edits and ban_share both say what is banned; give one of the two", field="controls")
    if controls.ban_share is None and (controls.which is not None or controls.seed is not None):
        raise UserError("which and seed say what ban_share means; give ban_share too", field="controls")
    return controls
