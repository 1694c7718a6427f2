"""The recipes of Directional Routing: one plan for the paper's pooling, the causal one, and no routing.

Width, layers, data, batch and rates are those of the dna-text recipes, and so is the untied unembedding;
the paper's baseline, too, is the same network without routers, 3.9 % smaller, not one of equal size.
"""

from __future__ import annotations

from engine.models.directional import DirectionalConfig
from engine.train.recipes import Recipe

_MODEL = DirectionalConfig(
    width=160, heads=5, mlp_width=640, layers=6, directions=4, router_width=64, temperature=0.5, tied=False,
    vocab_size=8192, context=256,
)  # fmt: skip
_TRAIN = dict(
    family="directional",
    train_file="text/english_train.parquet",
    val_file="text/english_val.parquet",
    batch_size=32,
    iterations=700,  # 5.7 M tokens, half a pass
    learning_rate=1.5e-3,
    warmup=100,
    schedule="constant-linear",
    weight_decay=0.1,
    betas=(0.9, 0.95),
    eps=1e-15,
)

DIRECTIONAL_RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="directional-text", model=_MODEL, **_TRAIN),
        Recipe(name="directional-text-prefix", model=_MODEL.model_copy(update={"pooling": "prefix"}), **_TRAIN),
        Recipe(name="directional-text-unrouted", model=_MODEL.unrouted_twin(), **_TRAIN),
    )
}
