"""Modules that a token can visit: Pre-LN transformer blocks, their halves, and the identity.

Shapes: R rows (tokens in any order), D width, Q = 3·D, H heads, B batch, T tokens of a sample.
No module has a learnable bias (Distributed Neural Architectures, appendix A.1).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from tokenpaths.engine.families.dna_config import Kind
from tokenpaths.engine.models.bank.onednn_linear import Linear


class SelfAttention(nn.Module):
    """Pre-LN multi-head attention, cut in two so that callers decide who attends to whom."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, bias=False)
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def project_in(self, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R 3*D"]:
        """Queries, keys and values of each row, side by side."""
        return self.qkv(self.norm(x))

    def project_out(self, mixed: Float[Tensor, "*R D"]) -> Float[Tensor, "*R D"]:
        """What attention adds to the residual stream."""
        return self.proj(mixed)


class MLP(nn.Module):
    """Pre-LN GELU perceptron."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, bias=False)
        self.up = Linear(width, hidden)
        self.down = Linear(hidden, width)

    def forward(self, x: Float[Tensor, "*R D"]) -> Float[Tensor, "*R D"]:
        return self.down(self.up.gelu(self.norm(x)))


class Block(nn.Module):
    """One module of the bank: attention, MLP, both (a transformer block) or neither (identity)."""

    def __init__(self, kind: Kind, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.kind: Kind = kind
        self.attention = SelfAttention(width, heads) if kind in ("transformer", "attention") else None
        self.mlp = MLP(width, hidden) if kind in ("transformer", "mlp") else None

    def finish(self, x: Float[Tensor, "*R D"], mixed: Float[Tensor, "*R D"] | None) -> Float[Tensor, "*R D"]:
        """M(x) − x, given the attention result of the rows (None where the module has none).

        The two halves are summed instead of subtracting ``x`` from the block's output: the
        difference is what equation 3 blends, and it loses no precision this way.
        """
        change = None
        if self.attention is not None:
            assert mixed is not None, "attention gave a result"
            change = self.attention.project_out(mixed)
        if self.mlp is not None:
            change = self.mlp(x) if change is None else change + self.mlp(x + change)
        return torch.zeros_like(x) if change is None else change

    def forward(
        self, x: Float[Tensor, "B T D"], *, causal: bool, allowed: Bool[Tensor, "B 1 #T T"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """The module on whole sequences; ``allowed`` marks the positions that may be attended to."""
        mixed = None
        if self.attention is not None:
            mixed = attend(self.attention.project_in(x), self.attention.heads, causal, allowed)
        return x + self.finish(x, mixed)


def attend(
    qkv: Float[Tensor, "B T Q"], heads: int, causal: bool, allowed: Bool[Tensor, "B 1 #T T"] | None = None
) -> Float[Tensor, "B T D"]:
    """Scaled dot-product attention over the middle axis."""
    batch, tokens, triple = qkv.shape
    q, k, v = qkv.view(batch, tokens, 3, heads, triple // 3 // heads).permute(2, 0, 3, 1, 4)
    if qkv.device.type == "cpu" and qkv.dtype == torch.bfloat16 and tokens <= 512:
        mixed = _plain_attention(q, k, v, causal, allowed)
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=causal)
    return mixed.transpose(1, 2).reshape(batch, tokens, triple // 3)


def _plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool, allowed: Tensor | None) -> Tensor:
    """Softmax(q kᵀ/√d) v spelled out.

    On CPUs the fused kernel's bfloat16 backward is 3 to 7 times slower than these three
    batched products at up to a few hundred tokens (torch 2.13).
    """
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    if causal:
        tokens = q.shape[-2]
        scores = scores + torch.full((tokens, tokens), float("-inf"), dtype=q.dtype).triu(1)
    if allowed is not None:
        hidden = torch.zeros(allowed.shape, dtype=q.dtype).masked_fill_(~allowed, float("-inf"))
        scores = scores + hidden
    return scores.softmax(dim=-1) @ v
