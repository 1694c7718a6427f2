"""H-Model: layers that decide, input by input, which layers they send their state to.

Input layers run once; the H hidden layers run together, T times; output layers read what was sent to them.
Each time a layer runs it emits a state h and connection weights c ∈ [0, 1]^{H+O} = sigmoid(logits / α), α
multiplied by α_rate at every iteration. A layer's next state is Σ_i c_ij h_i / max(1, Σ_i c_ij); what goes
to an output is summed over the iterations and divided by T.

With ``pooling="prefix"`` the c of a position come from the mean over the positions up to it, with ``"last"`` from the
last of them, so a next-token model stays causal. ``"sequence"`` is the pooling of the H-Model paper, one c for the
whole sequence: right for classification, but in next-token prediction every position then sees information about later
tokens (``benchmarks/hmodel.py`` measures how much).

Shapes: B samples, N positions (all inputs side by side), T tokens or patches of the input that the model
is named for, I iterations (the input step is number 0), A sources = hidden layers then inputs, Z targets =
hidden layers then outputs, D width, S steps = iterations without the input step, C classes or vocabulary.
Source: H-Model, sections 3.1 to 3.5 and listing 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import ModuleInfo, unused_slots
from tokenpaths.engine.families.edit_plan import RoutePlan
from tokenpaths.engine.families.hmodel_config import (
    PRIMARY,
    HiddenLayerConfig,
    HModelConfig,
    HModelControls,
    InputName,
    hmodel_plan,
)
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.family import RoutedModel, Traced, narrow_ids
from tokenpaths.engine.models.hmodel.hmodel_controls import (
    RouteSettings,
    edit_logits,
    given_connections,
    route_settings,
)
from tokenpaths.engine.models.hmodel.hmodel_layers import (
    ConnectionHead,
    Convolution,
    HiddenLayer,
    ImageInput,
    Layout,
    Output,
    Pretrained,
    TextInput,
    gather,
    mean_over,
    pool,
    scatter_rows,
    sharpen,
    strongest_chain,
)
from tokenpaths.engine.models.hmodel.pretrained_layers import build_pretrained, check_causal
from tokenpaths.engine.models.losses import linear_cross_entropy
from tokenpaths.engine.models.typed_containers import ModuleDictOf, ModuleListOf

Inputs = Tensor | Mapping[str, Tensor]


@dataclass(frozen=True)
class HModelOutput:
    """Logits and what the layers decided on the way."""

    logits: Float[Tensor, "B *T C"]
    """of the task: class logits (B, C) or next-token logits (B, T, C)"""
    edges: Float[Tensor, "B I A Z"]
    """c, mean over the source's positions; 0 where there is no connection: inputs send at iteration 0 only,
    hidden layers from 1 on, and in the last iteration only outputs can still receive"""
    all_logits: dict[str, Tensor]
    """by output layer"""


@dataclass(frozen=True)
class _Routed:
    """Everything between the input and the read-out."""

    states: Float[Tensor, "B N O D"]
    edges: Float[Tensor, "B I A Z"]
    received: list[list[Tensor]]
    """(B, n) for each iteration and hidden layer: whether anything reached that position"""
    layout: Layout


class HModel(RoutedModel):
    """An H-Model for texts, images, or both at once.

    ``pretrained`` holds the layers that ``take_layer`` took, by index in ``config.hidden``; without them
    those layers start at random. Several inputs are given as ``{"image": …, "text": …}``; of these only the
    one that the model is named for must be there.
    """

    family = "hmodel"
    Config = HModelConfig
    Controls = HModelControls
    WEIGHT_SEMANTICS = {
        "score_function": "sigmoid(logits / alpha), each connection by itself",
        "order": "sigmoid, then top-k of a layer's outgoing connections where one is set",
        "renormalised": "a target's state is divided by max(1, sum of its incoming weights)",
        "bias": "none",
        "shared_experts": 0,
        "decision": "soft",
        "unit": "sequence",
        "reading": "the strongest chain: from the input to the hidden layer it is most strongly connected to, "
        "from there to the next, one an iteration, until nothing is sent on; the weight is that connection's",
    }

    @property
    def weight_semantics(self) -> dict[str, Any]:
        """One c a sequence, or one a token where the pooling is causal; a sample's ``edges`` are the mean of them."""
        return self.WEIGHT_SEMANTICS | {"unit": "sequence" if self.config.pooling == "sequence" else "token"}

    def __init__(self, config: HModelConfig, pretrained: Mapping[int, nn.Module] | None = None) -> None:
        super().__init__()
        self.config = config
        given = dict(pretrained or {})
        for index in given:
            if not (0 <= index < len(config.hidden) and config.hidden[index].kind == "pretrained"):
                raise UserError(
                    f"a pretrained module was given for layer {index}, but hidden.{index} is not of kind 'pretrained'",
                    field="pretrained",
                )
        self.input_layers = ModuleDictOf[TextInput | ImageInput](
            {name: self._make_input(name) for name in config.inputs}
        )
        self.hidden = ModuleListOf[HiddenLayer](
            self._make_hidden(layer, given.get(index)) for index, layer in enumerate(config.hidden)
        )
        head = lambda: ConnectionHead(config.width, config.connection_width, config.num_targets)  # noqa: E731
        self.connections = ModuleListOf[ConnectionHead](head() for _ in range(len(config.hidden) + len(config.inputs)))
        self.iteration_embedding = nn.Embedding(config.iterations, config.width)
        # The configuration asks for the size of every output that there is.
        sizes: dict[str, Any] = {"predict": config.vocab_size, "classify": config.num_classes}
        self.output_layers = ModuleDictOf[Output](
            {name: Output(config.width, sizes[name], average=name == "classify") for name in config.outputs}
        )
        self._initialise()

    def _make_input(self, name: InputName) -> TextInput | ImageInput:
        config = self.config
        if name == "text":
            return TextInput(config.vocab_size, config.context, config.width)
        return ImageInput(config.channels, config.patch_size, config.grid, config.width)

    def _make_hidden(self, layer: HiddenLayerConfig, given: nn.Module | None) -> HiddenLayer:
        config, width = self.config, layer.width or self.config.width
        inner: nn.Module
        if layer.kind == "transformer":
            inner = Block("transformer", width, config.heads, config.mlp_width)
        elif layer.kind == "convolution":
            inner = Convolution(width, config.mlp_width, layer.kernel, config.inputs)
        else:
            if given is not None and config.causal:
                check_causal(given, width)
            inner = Pretrained(build_pretrained(layer) if given is None else given)
        return HiddenLayer(inner, config.width, width, layer.projection)

    def _initialise(self) -> None:
        taken = {m for part in self.modules() if isinstance(part, Pretrained) for m in part.modules()}
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)) and module not in taken:
                nn.init.trunc_normal_(module.weight, std=0.02)
            if isinstance(module, ConnectionHead):
                nn.init.zeros_(module.up.bias)
                nn.init.zeros_(module.out.bias)  # every connection starts near one half
            if isinstance(module, (TextInput, ImageInput)):
                nn.init.trunc_normal_(module.positions, std=0.02)

    def forward(
        self,
        inputs: Inputs,
        *,
        valid: Bool[Tensor, "B T"] | None = None,
        alpha: float | None = None,
        alpha_rate: float | None = None,
        top_k: int | None = None,
        connections: Tensor | None = None,
    ) -> HModelOutput:
        """Run the model; every control that is given replaces the configuration's, for this call only.

        ``valid`` marks what is no padding in the input that the model is named for. ``top_k`` keeps that many
        of a layer's outgoing connections. ``connections`` (B, I, A, Z) or (I, A, Z) replaces what the heads
        say. A layer that nothing was sent to (possible with top-k, tiny α or given connections) does not run
        and sends nothing.

        Raises:
            UserError: an input or a control that cannot work; ``field`` names it.
        """
        given = dict(alpha=alpha, alpha_rate=alpha_rate, top_k=top_k, connections=connections)
        return self._read_out(self._route(inputs, valid, self._settings(given)))

    def trace(self, inputs: Inputs, valid: Bool[Tensor, "B T"] | None = None, **controls) -> Traced:
        """The strongest chain as ribbon, all of c as edges; ``controls`` as in ``forward``.

        Raises:
            UserError: a layer emitted NaN connections.
        """
        routed = self._route(inputs, valid, self._settings(controls))
        self._refuse_nan(routed.edges)
        output = self._read_out(routed)
        ids_BS, weights_BS = strongest_chain(routed.edges, self.config.num_modules)
        flops_BT = self._flops(routed)[:, routed.layout.segments[PRIMARY[self.config.modality]]]
        over_tokens = lambda x: x[:, None, :, None].expand(-1, flops_BT.shape[1], -1, 1)  # noqa: E731
        ids = over_tokens(ids_BS.to(narrow_ids(self.config.num_modules + 1)))
        weights = over_tokens(weights_BS)
        entropy = torch.full_like(weights[..., 0], float("nan"))  # c are no distribution over layers
        return Traced(output.logits, ids, weights, entropy, flops_BT, edges=routed.edges)

    def trace_with(self, inputs: Inputs, valid: Bool[Tensor, "B T"] | None, controls: HModelControls) -> Traced:
        """``trace`` under what the page or the API asked for."""
        given = controls.given()
        given.pop("edits", None)
        if "connections" in given:
            given["connections"] = given_connections(given["connections"])
        return self.trace(inputs, valid, **given, plan=self.plan(controls))

    def plan(self, controls: HModelControls) -> RoutePlan | None:
        """What is sent differently before each iteration.

        Raises:
            UserError: edits that do not fit this model.
        """
        return hmodel_plan(self.config, getattr(controls, "edits", None))

    def top_k_under(self, controls: HModelControls) -> int:
        """The chain has one layer a step; refuses edits that do not fit."""
        self.plan(controls)
        return int(self.config.top_k)

    @property
    def must_leave(self) -> int:
        """A step needs a layer that something can be sent to."""
        return 1

    def training_loss(
        self, inputs: Inputs, targets: Tensor | Mapping[str, Tensor], label_smoothing: float = 0.0
    ) -> tuple[Float[Tensor, ""], Tensor]:
        """Mean cross-entropy, summed over the outputs that targets are given for (a tensor: the task's).

        Targets of "predict" are ids (B, T), of "classify" class ids (B,) or probabilities (B, C).
        """
        routed = self._route(inputs, None, self._settings({}))
        by_task = targets if isinstance(targets, Mapping) else {self.config.task: targets}
        losses = []
        for name, target in by_task.items():
            features = self._features(routed, name)
            weight = self.output_layers[name].head.weight
            if name == "predict":
                losses.append(linear_cross_entropy(features.flatten(0, 1), weight, target.flatten()))
            else:
                logits = F.linear(features, weight).float()
                losses.append(F.cross_entropy(logits, target, label_smoothing=label_smoothing))
        return torch.stack(losses).sum(), routed.edges.detach()

    def training_numbers(self, routing: Tensor) -> dict[str, float]:
        """Mean c out of hidden layers, and the share of it that goes back to the same layer."""
        hidden = self.config.num_modules
        open_BIHZ = routing[:, 1:-1, :hidden]
        if not open_BIHZ.numel():
            return {"mean_connection": float(routing[:, -1, :hidden, hidden:].mean())}
        own = open_BIHZ.diagonal(dim1=2, dim2=3).sum()
        return {"mean_connection": float(open_BIHZ.mean()), "self_share": float(own / open_BIHZ.sum())}

    def module_table(self) -> list[ModuleInfo]:
        """The hidden layers; the chain can visit any of them at any iteration, or end."""
        layers = [
            ModuleInfo(
                step=None,
                module=index,
                name=self._layer_names()[index],
                kind=self.config.hidden[index].kind,
                num_params=sum(p.numel() for p in layer.parameters()),
                flops_per_token=layer.flops_per_token(),
            )
            for index, layer in enumerate(self.hidden)
        ]
        return layers + unused_slots(range(self.config.num_steps), len(layers))

    def axis_names(self) -> dict[str, tuple[str, ...]]:
        """Names along the axes of ``edges``."""
        hidden, config = tuple(self._layer_names()), self.config
        outputs = {"predict": "next-token output", "classify": "class output"}
        return {
            "iteration": ("input", *(str(i) for i in range(1, config.iterations + 1))),
            "source": (*hidden, *(f"{name} input" for name in config.inputs)),
            "target": (*hidden, *(outputs[name] for name in config.outputs)),
        }

    def _layer_names(self) -> list[str]:
        names, seen = [], dict.fromkeys(("transformer", "convolution"), 0)
        for layer in self.config.hidden:
            if layer.kind == "pretrained":
                names.append(f"{layer.architecture.get('model_type')} {layer.path}")
            else:
                names.append(f"{layer.kind} {seen[layer.kind]}")
                seen[layer.kind] += 1
        return names

    def _settings(self, given: Mapping[str, Any]) -> RouteSettings:
        device = self.iteration_embedding.weight.device
        return route_settings(self.config, device=device, training=self.training, **given)

    def _refuse_nan(self, edges: Tensor) -> None:
        bad = (~torch.isfinite(edges)).nonzero()
        if len(bad):
            _, iteration, source, _ = bad[0].tolist()
            raise UserError(
                f"{self.axis_names()['source'][source]} emitted NaN connections at iteration {iteration}; "
                "the checkpoint or the input is damaged",
                field="connections",
            )

    def _start(self, inputs: Inputs, valid: Tensor | None) -> tuple[dict[str, Tensor], Layout]:
        config, primary = self.config, PRIMARY[self.config.modality]
        given = dict(inputs) if isinstance(inputs, Mapping) else {primary: inputs}
        if primary not in given or given.keys() - set(config.inputs):
            raise UserError(
                f"inputs are {', '.join(given) or 'missing'}; this model takes "
                f"{', '.join(config.inputs)}, and always needs {primary}",
                field="inputs",
            )
        starts, segments, end = {}, {}, 0
        for name in ("image", "text"):  # the text stands last: causal positions see the whole image
            if name in given:
                starts[name] = self.input_layers[name](given[name])
                segments[name] = slice(end, end + starts[name].shape[1])
                end = segments[name].stop
        whole = None
        if valid is not None:
            whole = torch.ones(len(valid), end, dtype=torch.bool, device=valid.device)
            whole[:, segments[primary]] = valid
        return starts, Layout(segments, config.grid, config.causal, whole)

    def _route(self, inputs: Inputs, valid: Tensor | None, settings: RouteSettings) -> _Routed:
        config, hidden = self.config, self.config.num_modules
        starts, layout = self._start(inputs, valid)
        state_BNZD, incoming_BNZ, edges_BAZ = self._send_inputs(starts, layout, settings)
        outs_BNOD, received, all_edges = state_BNZD[:, :, hidden:], [], [edges_BAZ]
        for iteration in range(1, config.iterations + 1):
            got = [incoming_BNZ[:, :, index] > 0 for index in range(hidden)]
            sent = {
                index: self._run_layer(index, iteration, state_BNZD[:, :, index], got[index], layout, settings)
                for index in range(hidden)
                if got[index].any()
            }
            edges_BAZ = torch.zeros_like(edges_BAZ)
            received.append(got)
            all_edges.append(edges_BAZ)
            if not sent:  # nothing is on its way any more
                incoming_BNZ = torch.zeros_like(incoming_BNZ)
                continue
            closed = 0 if iteration < config.iterations else hidden
            for index, (_, c) in sent.items():
                edges_BAZ[:, index, closed:] = mean_over(c, layout.valid)
            state_BNZD, incoming_BNZ = gather(list(sent.values()))
            outs_BNOD = outs_BNOD + state_BNZD[:, :, hidden - closed :]
        return _Routed(outs_BNOD / config.iterations, torch.stack(all_edges, dim=1), received, layout)

    def _send_inputs(
        self, starts: dict[str, Tensor], layout: Layout, settings: RouteSettings
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Iteration 0: the state and the sum of incoming weights of every target, and the edges."""
        config, any_start = self.config, next(iter(starts.values()))
        sources = config.num_modules + len(config.inputs)
        edges_BAZ = self.iteration_embedding.weight.new_zeros(len(any_start), sources, config.num_targets)
        end = max(segment.stop for segment in layout.segments.values())
        sent = []
        for name, h in starts.items():
            source, segment = config.num_modules + config.inputs.index(name), layout.segments[name]
            valid = None if layout.valid is None else layout.valid[:, segment]
            c = self._connect(source, 0, h, valid, settings)
            edges_BAZ[:, source] = mean_over(c, valid)
            if len(starts) > 1:
                # An input sends from its own positions; at the others it is no contributor.
                around = (0, 0, segment.start, end - segment.stop)
                h, c = F.pad(h, around), F.pad(c.expand(-1, h.shape[1], -1), around)
            sent.append((h, c))
        return *gather(sent), edges_BAZ

    def _run_layer(
        self, index: int, iteration: int, x_BND: Tensor, got_BN: Tensor, layout: Layout, settings: RouteSettings
    ) -> tuple[Tensor, Tensor]:
        """State and c of one layer; samples that nothing was sent in are left out and stay zero."""
        rows = got_BN.any(dim=1).nonzero().squeeze(1)
        if len(rows) < len(x_BND):
            part = self._run_layer(index, iteration, x_BND[rows], got_BN[rows], layout.rows(rows), settings.rows(rows))
            state, c = (scatter_rows(rows_of, rows, len(x_BND)) for rows_of in part)
            return state, c
        everywhere = bool(got_BN.all())
        h = self.hidden[index](x_BND, layout)
        counted = layout.valid if everywhere else got_BN if layout.valid is None else got_BN & layout.valid
        c = self._connect(index, iteration, h, counted, settings)
        if not everywhere:
            c = c * got_BN.unsqueeze(2)
        return h + self.iteration_embedding.weight[iteration - 1], c

    def _connect(
        self, source: int, iteration: int, h_BND: Tensor, counted: Tensor | None, settings: RouteSettings
    ) -> Float[Tensor, "B n Z"]:
        """What a source sends to each target; after the last iteration only to outputs, no layer runs again."""
        first = self.config.num_modules if iteration == self.config.iterations else 0
        if settings.connections is not None:
            given = settings.connections[:, iteration, source, first:].unsqueeze(1)
            if settings.plan is not None:  # the logits of c are α · logit(c), those of 0 and 1 without end
                alpha = settings.alpha_at(iteration)
                given = sharpen(edit_logits(alpha * given.logit(), settings.plan, iteration), alpha, None)
            return given.expand(len(h_BND), 1, -1)
        logits = self.connections[source](pool(h_BND, counted, self.config.pooling))[..., first:]
        logits = edit_logits(logits, settings.plan, iteration)
        return sharpen(logits, settings.alpha_at(iteration), settings.top_k)

    def _features(self, routed: _Routed, name: str) -> Tensor:
        states = routed.states[:, :, self.config.outputs.index(name)]
        if name == "predict":
            return self.output_layers[name].features(states[:, routed.layout.segments["text"]], None)
        return self.output_layers[name].features(states, routed.layout.valid)

    def _read_out(self, routed: _Routed) -> HModelOutput:
        logits = {name: layer.head(self._features(routed, name)) for name, layer in self.output_layers.items()}
        return HModelOutput(logits[self.config.task], routed.edges, logits)

    @torch.no_grad()
    def _flops(self, routed: _Routed) -> Float[Tensor, "B N"]:
        """Of the layers that ran at each position, once for each iteration; attention over what it may see."""
        batch, positions = routed.states.shape[:2]
        valid = routed.layout.valid
        if self.config.causal:
            keys_BN = torch.arange(1, positions + 1, device=routed.edges.device).expand(batch, -1)
        else:
            count = torch.full((batch,), positions) if valid is None else valid.sum(dim=1)
            keys_BN = count.to(routed.edges.device).unsqueeze(1).expand(-1, positions)
        total_BN = torch.zeros(batch, positions, device=routed.edges.device)
        for got in routed.received:
            for index, got_Bn in enumerate(got):
                width = self.config.hidden[index].width or self.config.width
                attention = 0 if self.config.hidden[index].kind == "convolution" else 4.0 * width
                total_BN += got_Bn * (self.hidden[index].flops_per_token() + attention * keys_BN)
        return total_BN
