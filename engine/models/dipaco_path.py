"""One path of a DiPaCo: a dense transformer of embedding, blocks and unembedding.

Shapes: B documents, T tokens, V vocabulary entries, D width. Source: DiPaCo, sections 2.3 and 2.6.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.dipaco_router import Base
from tokenpaths.engine.models.losses import linear_cross_entropy
from tokenpaths.engine.models.typed_containers import ModuleListOf


class Ends(nn.Module):
    """Input and output of a path."""

    def __init__(self, config: DiPaCoConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Parameter(torch.zeros(config.context, config.width))
        self.norm = nn.LayerNorm(config.width, bias=False)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)

    def start(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        return self.embed(ids) + self.positions[: ids.shape[1]]


class PathModel(nn.Module):
    """One path, a dense transformer: all that a worker ever holds of a DiPaCo."""

    def __init__(self, ends: Ends, blocks: list[Block]) -> None:
        super().__init__()
        self.ends = ends
        self.blocks = ModuleListOf[Block](blocks)

    def hidden(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """What the unembedding reads."""
        h = self.ends.start(ids)
        for block in self.blocks:
            h = block(h, causal=True)
        return self.ends.norm(h)

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        return self.ends.head(self.hidden(ids))

    def training_loss(self, ids: Int[Tensor, "B T"], targets: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """Mean cross-entropy over the positions with a target (not −100)."""
        has_target = targets >= 0
        return linear_cross_entropy(self.hidden(ids)[has_target], self.ends.head.weight, targets[has_target])


def new_path(config: DiPaCoConfig) -> PathModel:
    """A path of its own, initialised: truncated normal, 0.02."""
    model = PathModel(Ends(config), [new_block(config) for _ in range(config.num_blocks)])
    initialise(model)
    return model


def new_block(config: DiPaCoConfig) -> Block:
    """A transformer block of a path."""
    return Block("transformer", config.width, config.heads, config.mlp_width)


def initialise(root: nn.Module) -> None:
    """Truncated normal, 0.02, for weights and positions; zero for biases."""
    for module in root.modules():
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.trunc_normal_(module.weight, std=0.02)
            bias = getattr(module, "bias", None)
            if bias is not None:
                nn.init.zeros_(bias)
        if isinstance(module, (Ends, Base)):
            nn.init.trunc_normal_(module.positions, std=0.02)


def check_same_shape(base: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """UserError that names the field in which a base and a model differ."""
    embed, mine = base["ends.embed.weight"].shape, wanted["ends.embed.weight"].shape
    depth = [len({n.split(".")[1] for n in names if n.startswith("blocks.")}) for names in (base, wanted)]
    sizes: tuple[tuple[str, int, int], ...] = (
        ("width", embed[1], mine[1]),
        ("vocab_size", embed[0], mine[0]),
        ("blocks", depth[0], depth[1]),
        ("context", len(base["ends.positions"]), len(wanted["ends.positions"])),
    )
    for field, a, b in sizes:
        if a != b:
            raise UserError(f"the base has {field} {a}, the model {b}: they must be equal", field=field)
    for name, tensor in wanted.items():
        if base[name].shape != tensor.shape:
            raise UserError(
                f"the base's {name} is {tuple(base[name].shape)}, the model's {tuple(tensor.shape)}: "
                "mlp_width must be equal",
                field="mlp_width",
            )
