"""Runs of tiny models with random weights, traced like shipped ones: RayTracing, DiPaCo, H-Model and Directional."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from tokenpaths.engine.data.bundled.digits import LABELS, load_digits
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.families.raytracing_config import RayTracingConfig
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.directional import Directional, DirectionalConfig
from tokenpaths.engine.models.hmodel.hmodel import HModel, HModelConfig
from tokenpaths.engine.models.raytracing import RayTracing
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples

TEXTS = {
    "stories": "the old fox went down to the river and told the moon about the long way home",
    "code": "def add ( a , b ) : return a + b if a else b for i in range ( 10 )",
    "sums": "1 + 2 = 3 and 4 + 5 = 9 so 3 + 9 = 12 , 12 + 12 = 24",
}
LANGUAGES = {
    "English": "the cat sat on the mat and looked at the quiet moon",
    "German": "die Katze saß auf der Matte und sah den stillen Mond",
    "Ukrainian": "кіт сидів на килимку і дивився на тихий місяць",
}
RAYTRACING_NUMBERS = {
    "accuracy": 0.9667,
    "loss": 0.1312,
    "count": 359,
    "params": 20_000,
    "used_share": 0.46,
    "active_share": 0.31,
    "theta_steps": 8.2,
    "reached_share": 1.0,
    "mlp_twin": {"accuracy": 0.9639, "loss": 0.14, "params": 19_950},
}
DIPACO_NUMBERS = {
    "loss": 4.03,
    "perplexity": 56.4,
    "accuracy": 0.3,
    "count": 10_000,
    "rerouting": [
        {"every": w, "perplexity": p, "switched": 0.3, "paths_per_sequence": 2.0}
        for w, p in ((None, 56.4), (64, 54.9), (32, 54.1), (16, 53.8))
    ],
    "beside": {
        "base": {"perplexity": 90.2},
        "dense": {"perplexity": 61.2},
        "flat": {"perplexity": 55.1},
        "kmeans": {"perplexity": 57.9},
        "product": {"perplexity": 57.2},
    },
}
SOFT_NUMBERS = {
    "loss": 4.0,
    "ablations": [
        {"name": "normal", "perplexity": 80.0, "loss": 4.38, "induction": 0.9},
        {"name": "off", "perplexity": 800.0, "loss": 6.68, "induction": 0.01},
    ],
    "beside": {"plain": {"params": 900, "loss": 4.4, "by_label": {}}, "tiny": {"params": 1000, "loss": 4.0}},
    "lookahead": {"in_view": 4.0, "hidden": 4.5, "gain": 0.5, "standard_error": 0.01},
    "routing": {"distance": {"ratio": 2.0, "untrained_ratio": 1.0}},
}


def trace_raytracing(data_dir: Path, run_id: str = "lights", *, samples: int = 40, **changes: object) -> Path:
    """Digits through a small RayTracing network with large random weights, so that samples differ."""
    options = dict(
        image_size=8,
        conv_channels=(6, 6),
        conv_kernel=3,
        conv_pools=(0,),
        input_neurons=(2, 4, 6),
        input_density=0.1,
        layers=3,
        blocks=5,
        width=4,
        num_classes=10,
        theta_steps=30,
        theta_out=10.8,
    )
    torch.manual_seed(3)
    model = RayTracing(RayTracingConfig(**(options | changes)))
    for parameter in model.parameters():
        parameter.data.mul_(2.5)
    save_checkpoint(data_dir / "models" / f"model-{run_id}", model, classes=LABELS, validation=RAYTRACING_NUMBERS)
    images, digits = load_digits()
    pictures = [Image.fromarray(images[i]).convert("RGB") for i in range(samples)]
    drawn = [Sample(picture, None, LABELS[digits[i]], f"digit {i}") for i, picture in enumerate(pictures)]
    loaded = load_model(f"model-{run_id}", [data_dir / "models"], "cpu")
    return trace_samples(loaded, drawn, data_dir / "runs", run_id=run_id, dataset="digits", twin=False)


def trace_dipaco(data_dir: Path, run_id: str = "shards", *, documents: int = 18, **changes: object) -> Path:
    """Texts of three kinds through a small DiPaCo whose router tells them apart by its random weights."""
    tokenizer = TextTokenizer.train(list(TEXTS.values()) * 3, 300)
    folder = data_dir / "models" / f"model-{run_id}"
    tokenizer.save(folder / "tokenizer.json")
    options = dict(
        width=16,
        heads=2,
        mlp_width=32,
        levels=(2, 3),
        blocks=(1, 1),
        prefix=4,
        context=64,
        vocab_size=tokenizer.vocab_size,
        router="discriminative",
        rerouter=True,
        reroute_every=8,
    )
    torch.manual_seed(1)
    model = DiPaCo(DiPaCoConfig(**(options | changes)))
    for name, parameter in model.router.named_parameters():
        if not name.startswith("base.norm"):
            torch.nn.init.normal_(parameter, std=0.6)
    torch.nn.init.normal_(model.router.weight, std=2.0)
    save_checkpoint(folder, model, validation=DIPACO_NUMBERS)
    kinds = list(TEXTS)
    written = []
    for i in range(documents):
        words = TEXTS[kinds[i % 3]].split()
        text = " ".join((words[i % len(words) :] + words) * 3)
        written.append(Sample(None, text, kinds[i % 3], f"{kinds[i % 3]}.txt line {i}"))
    loaded = load_model(folder.name, [data_dir / "models"], "cpu")
    return trace_samples(loaded, written, data_dir / "runs", run_id=run_id, dataset="three kinds", twin=False)


def trace_soft_families(data_dir: Path) -> None:
    """An H-Model and a Directional model, tiny and untrained, each traced over texts in three languages: the
    runs ``hmodel`` and ``directional``; and ``lone``, one text without a label."""
    torch.manual_seed(0)
    tokenizer = TextTokenizer.train(list(LANGUAGES.values()) * 3, vocab_size=300)
    common = {"modality": "text", "width": 16, "heads": 2, "mlp_width": 16, "context": 64}
    common["vocab_size"] = tokenizer.vocab_size
    models = {
        "hmodel": HModel(HModelConfig(hidden=("transformer", "convolution"), iterations=2, **common)),
        "directional": Directional(DirectionalConfig(layers=2, directions=2, router_width=8, **common)),
    }
    runs = data_dir / "runs"
    for family, model in models.items():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("connections", "embed", "input_layers", "router.out")):
                parameter.data.mul_(20)  # so that texts are routed differently
        folder = data_dir / "models" / f"tiny-{family}"
        tokenizer.save(folder / "tokenizer.json")
        save_checkpoint(folder, model, validation=SOFT_NUMBERS)
        samples = [
            Sample(image=None, text=" ".join(text.split()[place:]), label=label, source=f"{label} {place}")
            for label, text in LANGUAGES.items()
            for place in range(4)
        ]
        trace_samples(load_model(f"tiny-{family}", [folder.parent]), samples, runs, run_id=family, dataset="toy")
    lone = [Sample(image=None, text=LANGUAGES["English"], label=None, source="one")]
    trace_samples(load_model("tiny-hmodel", [data_dir / "models"]), lone, runs, run_id="lone", dataset="toy")
