"""Mixture-of-experts and Mixture-of-Depths transformers as DNA configurations.

A connectivity mask gives each step its own experts; expert choice lets each block take its tokens. So traces, views
and the grouped fast path of DNA apply to them unchanged.
"""

from __future__ import annotations

from typing import Any, Literal

from tokenpaths.engine.families.dna_config import DNAConfig


def moe_transformer(
    modality: Literal["vision", "text"],
    *,
    layers: int,
    experts: int,
    top_k: int,
    renormalise: bool = True,
    dense_layers: int = 0,
    **options: Any,
) -> DNAConfig:
    """A top-k mixture-of-experts transformer: attention, then ``experts`` perceptrons of which a token takes K.

    ``renormalise`` True is Mixtral's weighting, False with ``top_k=1`` that of Switch. ``dense_layers``
    ordinary blocks come first. Step l may choose the modules l·experts … (l+1)·experts − 1.
    """
    choices = tuple(tuple(range(layer * experts, (layer + 1) * experts)) for layer in range(layers))
    return DNAConfig(
        modality=modality,
        backbone=dense_layers,
        steps=layers,
        top_k=top_k,
        mlps=layers * experts,
        choices=choices,
        renormalise=renormalise,
        before_step="attention",
        **options,
    )


def mixture_of_depths(
    modality: Literal["vision", "text"],
    *,
    layers: int,
    capacity: float = 0.125,
    every: Literal[1, 2] = 2,
    **options: Any,
) -> DNAConfig:
    """A Mixture-of-Depths transformer: routed blocks take the top ``capacity`` share of each sample's tokens.

    The other tokens go round the block (its identity). ``every=2`` routes every second block, which the
    paper found best: an ordinary block stands before each routed one; ``every=1`` routes all.

    Raises:
        ValueError: an odd number of layers with ``every=2``.
    """
    if layers % every:
        raise ValueError(f"layers is {layers}; with every=2 blocks come in pairs, so give an even number")
    routed = layers // every
    choices = tuple((layer, routed + layer) for layer in range(routed))
    return DNAConfig(
        modality=modality,
        backbone=0,
        steps=routed,
        top_k=1,
        transformers=routed,
        identities=routed,
        choices=choices,
        router="expert",
        score="sigmoid",
        capacity=capacity,
        before_step="transformer" if every == 2 else "none",
        **options,
    )
