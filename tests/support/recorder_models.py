"""Small routed models of the kinds that people write, for the recorder's tests; none of them knows Tokenpaths."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH, VOCABULARY = 16, 32


class Expert(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class LinearMoE(nn.Module):
    """A plain Linear gives logits; the softmax over all of them is the weight of the K largest."""

    def __init__(self, experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(experts))
        self.top_k = top_k

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, ids = self.gate(x).softmax(dim=-1).topk(self.top_k, dim=-1)
        return ids, weights

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        ids, weights = self.choose(flat)
        out = torch.zeros_like(flat)
        for expert, module in enumerate(self.experts):
            row, slot = (ids == expert).nonzero(as_tuple=True)
            out = out.index_add(0, row, module(flat[row]) * weights[row, slot, None])
        return out.view_as(x)


class TopKGate(nn.Module):
    """Gives (logits, weights, ids); a bias moves the choice, the weights are sigmoids times a scale."""

    def __init__(self, experts: int, top_k: int, scale: float = 2.5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, WIDTH))
        self.register_buffer("bias", torch.linspace(-0.5, 0.5, experts))
        self.top_k, self.routed_scaling_factor = top_k, scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = x @ self.weight.T
        scores = logits.sigmoid()
        # In no order, as several published gates leave them.
        ids = (scores + self.bias).topk(self.top_k, dim=-1, sorted=False).indices.flip(-1)
        weights = scores.gather(-1, ids)
        weights /= weights.sum(dim=-1, keepdim=True)
        return logits, weights * self.routed_scaling_factor, ids


class GateMoE(LinearMoE):
    def __init__(self, experts: int = 4, top_k: int = 2, scale: float = 2.5) -> None:
        super().__init__(experts, top_k)
        self.gate = TopKGate(experts, top_k, scale)

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        _, weights, ids = self.gate(x)
        return ids, weights


class Layer(nn.Module):
    def __init__(self, moe: nn.Module) -> None:
        super().__init__()
        self.norm, self.mixer, self.moe = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), moe

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.tanh(self.mixer(x.cumsum(dim=1) / WIDTH))
        return x + self.moe(self.norm(x))


class Language(nn.Module):
    """Token ids to logits through layers of experts."""

    def __init__(self, moe=LinearMoE, layers: int = 3, checkpointed: bool | None = None, **options) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(moe(**options)) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.reentrant = checkpointed

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x) if self.reentrant is None else checkpoint(layer, x, use_reentrant=self.reentrant)
        return self.head(x)

    def decisions(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Ids and weights (B, T, S, K), layer by layer, with this model's own arithmetic and no hook."""
        ids, weights = [], []
        x = self.embed(input_ids)
        for layer in self.layers:
            mixed = x + torch.tanh(layer.mixer(x.cumsum(dim=1) / WIDTH))
            chosen, w = layer.moe.choose(layer.norm(mixed).reshape(-1, WIDTH))
            ids.append(chosen.view(*input_ids.shape, -1))
            weights.append(w.view(*input_ids.shape, -1))
            x = layer(x)
        return torch.stack(ids, dim=2), torch.stack(weights, dim=2)


def language(moe=LinearMoE, seed: int = 0, **options) -> Language:
    torch.manual_seed(seed)
    return Language(moe, **options)


def tokens(batch: int = 3, length: int = 7, seed: int = 1) -> Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))
