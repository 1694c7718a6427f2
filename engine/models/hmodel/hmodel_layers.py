"""Parts of an H-Model: input layers, hidden layers of several kinds, output layers, connection heads.

A state is one sequence of positions: those of the image (its patches, row by row), then those of the text; an
absent input takes no positions. Positions attend to each other inside the hidden layers.

Shapes: B samples, N positions, D width, W width inside a hidden layer (V what comes out of a foreign one),
Z targets, T tokens of a text, n = 1 or N; A sources, I iterations, H hidden layers, S steps = I − 1.
Source: H-Model, sections 3.1, 3.5 and 6.7 to 6.9.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.hmodel_config import Pooling
from tokenpaths.engine.models.bank.modules import MLP, Block


@dataclass(frozen=True)
class Layout:
    """Which positions belong to which input, and who may look at whom."""

    segments: dict[str, slice]
    """positions of each input that was given, in order"""
    grid: tuple[int, int]
    """rows and columns of patches"""
    causal: bool
    valid: Bool[Tensor, "B N"] | None = None
    """False marks padding; None: there is none"""

    def rows(self, index: Int[Tensor, " R"]) -> Layout:
        """The same for some of the samples."""
        return self if self.valid is None else replace(self, valid=self.valid[index])

    @property
    def allowed(self) -> Bool[Tensor, "B 1 1 N"] | None:
        """Keys that attention may use; None where causality or the lack of padding already says so."""
        # Padding stands behind a text, where causal attention never looks.
        return None if self.causal or self.valid is None else self.valid[:, None, None, :]


class TextInput(nn.Module):
    """Token embedding plus learned positions."""

    def __init__(self, vocab_size: int, context: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.positions = nn.Parameter(torch.zeros(context, width))

    def forward(self, token_ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        tokens, context = token_ids.shape[1], len(self.positions)
        if tokens > context:
            raise UserError(
                f"{tokens} tokens do not fit the model's context of {context}; split the text into windows first",
                field="context",
            )
        return self.embed(token_ids) + self.positions[:tokens]


class ImageInput(nn.Module):
    """One strided convolution to patches, plus learned positions; row by row."""

    def __init__(self, channels: int, patch_size: int, grid: tuple[int, int], width: int) -> None:
        super().__init__()
        self.patchify = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.positions = nn.Parameter(torch.zeros(grid[0] * grid[1], width))

    def forward(self, images: Float[Tensor, "B channels height width"]) -> Float[Tensor, "B T D"]:
        h = self.patchify(images).flatten(2).transpose(1, 2).contiguous()
        if h.shape[1] != len(self.positions):
            raise UserError(
                f"an image of {tuple(images.shape[2:])} pixels has {h.shape[1]} patches; "
                f"the model expects {len(self.positions)}",
                field="image_size",
            )
        return h + self.positions.to(h.dtype)


class Convolution(nn.Module):
    """Depth-wise convolution over neighbouring positions, then a perceptron, around a residual.

    A text is convolved in one direction (left neighbours only where the model is causal), an image in
    two; the two never mix here.
    """

    def __init__(self, width: int, hidden: int, kernel: int, inputs: tuple[str, ...]) -> None:
        super().__init__()
        self.kernel = kernel
        if "text" in inputs:
            self.text = nn.Conv1d(width, width, kernel, groups=width, bias=False)
        if "image" in inputs:
            self.image = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=width, bias=False)
        self.mlp = MLP(width, hidden)

    def forward(self, x: Float[Tensor, "B N W"], layout: Layout) -> Float[Tensor, "B N W"]:
        parts = []
        # Padding is to neighbours what the edge is: zero.
        seen = x if layout.valid is None else x * layout.valid.unsqueeze(2)
        for name, segment in layout.segments.items():
            part = seen[:, segment].transpose(1, 2)
            if name == "text":
                reach = self.kernel - 1
                before = reach if layout.causal else reach // 2
                part = self.text(F.pad(part, (before, reach - before)))
            else:
                part = self.image(part.unflatten(2, layout.grid)).flatten(2)
            parts.append(part.transpose(1, 2))
        return x + self.mlp(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])


class Pretrained(nn.Module):
    """A layer of a Hugging Face model, given the mask that the H-Model needs."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Float[Tensor, "B N W"], layout: Layout) -> Float[Tensor, "B N V"]:
        mask = None
        if layout.causal:
            n = x.shape[1]
            mask = torch.full((1, 1, n, n), float("-inf"), device=x.device).triu(1)
        elif layout.allowed is not None:
            n = x.shape[1]
            mask = torch.zeros(len(x), 1, n, n, device=x.device).masked_fill_(~layout.allowed, float("-inf"))
        y = self.layer(x, attention_mask=mask) if mask is not None else self.layer(x)
        return y[0] if isinstance(y, tuple) else y


class HiddenLayer(nn.Module):
    """Any layer between two projections, if it has a width of its own."""

    def __init__(self, layer: nn.Module, width: int, inner: int, projection: bool) -> None:
        super().__init__()
        self.layer = layer
        self.project_in = nn.Linear(width, inner, bias=False) if projection else None
        self.project_out = nn.Linear(inner, width, bias=False) if projection else None

    def forward(self, x: Float[Tensor, "B N D"], layout: Layout) -> Float[Tensor, "B N D"]:
        y = x if self.project_in is None else self.project_in(x)
        if isinstance(self.layer, Block):
            y = self.layer(y, causal=layout.causal, allowed=layout.allowed)
        else:
            y = self.layer(y, layout)
        return y if self.project_out is None else self.project_out(y)

    def flops_per_token(self) -> int:
        """2 for each weight of a matrix or a depth-wise kernel; attention over keys comes on top."""
        return 2 * sum(p.numel() for p in self.parameters() if p.ndim >= 2)


class ConnectionHead(nn.Module):
    """Routing head: normalised state → perceptron → one logit for each target."""

    def __init__(self, width: int, hidden: int, targets: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, targets)

    def forward(self, pooled: Float[Tensor, "B n D"]) -> Float[Tensor, "B n Z"]:
        return _precise(self.out(F.gelu(self.up(self.norm(pooled)))))


class Output(nn.Module):
    """Norm and linear read-out; ``average`` takes the mean over the positions first (one class for all)."""

    def __init__(self, width: int, outputs: int, average: bool) -> None:
        super().__init__()
        self.average = average
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = nn.Linear(width, outputs, bias=False)

    def features(self, x: Float[Tensor, "B N D"], valid: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B ... D"]:
        """What the read-out multiplies: (B, D) where positions are averaged, else (B, N, D)."""
        x = self.norm(x)
        return pool(x, valid, "sequence").squeeze(1) if self.average else x


def _precise(x: Tensor) -> Tensor:
    """At least float32: connections and states are never rounded to bfloat16."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def pool(h: Float[Tensor, "B N D"], counted: Bool[Tensor, "B N"] | None, pooling: Pooling) -> Float[Tensor, "B n D"]:
    """Mean over the counted positions: of the whole sequence (n = 1), or up to each position (n = N); or the last of
    these ("last").

    A position before the first counted one has 0.
    """
    h = _precise(h)
    if pooling == "last":
        if counted is None:
            return h
        places = torch.arange(h.shape[1], device=h.device).expand(len(h), -1)
        last = places.masked_fill(~counted, -1).cummax(dim=1).values.unsqueeze(2)
        return h.gather(1, last.clamp(min=0).expand_as(h)).masked_fill(last < 0, 0)
    if pooling == "sequence":
        if counted is None:
            return h.mean(dim=1, keepdim=True)
        weight = counted.to(h.dtype).unsqueeze(2)
        return (h * weight).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True).clamp(min=1)
    if counted is None:
        return h.cumsum(dim=1) / torch.arange(1, h.shape[1] + 1, device=h.device, dtype=h.dtype).unsqueeze(1)
    weight = counted.to(h.dtype).unsqueeze(2)
    return (h * weight).cumsum(dim=1) / weight.cumsum(dim=1).clamp(min=1)


def sharpen(logits: Float[Tensor, "B n Z"], alpha: float, top_k: int | None) -> Float[Tensor, "B n Z"]:
    """c = sigmoid(logits / α); with ``top_k`` all but the k largest of a source become 0 (equations 4, 5)."""
    c = torch.sigmoid(_precise(logits) / alpha)
    if top_k is None or top_k >= c.shape[-1]:
        return c
    # By logits: where α is small many c are exactly 1, and ties would be broken by position.
    keep = logits.topk(top_k, dim=-1).indices
    return torch.zeros_like(c).scatter(-1, keep, c.gather(-1, keep))


def gather(
    sent: list[tuple[Float[Tensor, "B N D"], Float[Tensor, "B _ Z"]]],
) -> tuple[Float[Tensor, "B N Z D"], Float[Tensor, "B n Z"]]:
    """Σ_i c_iz h_i / max(1, Σ_i c_iz) of every target z, and Σ_i c_iz (equations 1 and 3).

    ``sent`` holds the state and the connection weights of each source; weights of one position count for all.
    """
    with torch.autocast(sent[0][0].device.type, enabled=False):
        h_BNAD = torch.stack([_precise(h) for h, _ in sent], dim=2)
        c_BNZA = torch.stack(torch.broadcast_tensors(*(c for _, c in sent)), dim=3).to(h_BNAD.dtype)
        incoming_BNZ = c_BNZA.sum(dim=3)
        return (c_BNZA / incoming_BNZ.clamp(min=1).unsqueeze(3)) @ h_BNAD, incoming_BNZ


def mean_over(c: Float[Tensor, "B n Z"], valid: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B Z"]:
    """Mean of connection weights over the positions that are no padding."""
    if valid is None or c.shape[1] == 1:
        return c.mean(dim=1)
    weight = valid.to(c.dtype).unsqueeze(2)
    return (c * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)


def scatter_rows(some: Float[Tensor, "R N X"], rows: Int[Tensor, " R"], batch: int) -> Float[Tensor, "B N X"]:
    """Samples put back to their places among zeros."""
    return some.new_zeros(batch, *some.shape[1:]).index_copy(0, rows, some)


def strongest_chain(
    edges: Float[Tensor, "B I A Z"], num_hidden: int
) -> tuple[Int[Tensor, "B S"], Float[Tensor, "B S"]]:
    """From the input the most strongly connected hidden layer, from there the next, and so on.

    Of several inputs the one with the strongest connection begins. Step s names the layer that runs at
    iteration s + 1, S = I − 1. Ties go to the lower number. Where nothing is sent to any hidden layer the chain has
    ended: from there on its slots are unused, number H with weight 0 (``records.unused_slots``).
    """
    at = torch.arange(len(edges), device=edges.device)
    row_BH = edges[:, 0, num_hidden:, :num_hidden].amax(dim=1)
    ids, weights = [], []
    for iteration in range(1, edges.shape[1]):
        chosen_B = row_BH.argmax(dim=1)
        weight_B = row_BH[at, chosen_B]
        ids.append(torch.where(weight_B > 0, chosen_B, num_hidden))
        weights.append(weight_B)
        # An ended chain has no layer that could send on.
        row_BH = edges[at, iteration, chosen_B, :num_hidden] * (weight_B > 0).unsqueeze(1)
    return torch.stack(ids, dim=1), torch.stack(weights, dim=1)
