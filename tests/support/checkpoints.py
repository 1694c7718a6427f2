"""Small real checkpoints for the tests: random weights, saved and loaded like shipped ones."""

from __future__ import annotations

from pathlib import Path

import torch

from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.dna import DNA, DNAConfig

CLASSES = ("apple", "brick", "cloud")
WORDS = "the path of a token goes through many modules and back again to the start of the next step . é 漢字 שלום"


def tiny_config(modality: str, **changes: object) -> DNAConfig:
    """A DNA of three steps, top-2 of four transformers and two identities."""
    options = dict(width=32, heads=2, mlp_width=64, backbone=1, steps=3, top_k=2, transformers=4, identities=2)
    options |= dict(skip_ratio=0.25, skip_speed=0.01, image_size=32, patch_size=8, num_classes=3)
    return DNAConfig(**(options | dict(modality=modality, vocab_size=300, context=16) | changes))


def save_tiny(folder: Path, modality: str, *, seed: int = 0, **changes: object) -> Path:
    """A checkpoint folder with a tiny DNA; routers scaled up so that choices differ between tokens."""
    if modality == "text":
        tokenizer = TextTokenizer.train([WORDS] * 3, 300)
        changes = {"vocab_size": tokenizer.vocab_size, **changes}
        tokenizer.save(folder / "tokenizer.json")
    torch.manual_seed(seed)
    model = DNA(tiny_config(modality, **changes))
    for name, parameter in model.named_parameters():
        if "routers" in name:
            parameter.data.mul_(40)
        elif "embed" in name:
            parameter.data.mul_(10)
    return save_checkpoint(folder, model, classes=CLASSES if modality == "vision" else ())
