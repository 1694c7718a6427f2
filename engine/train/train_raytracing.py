"""Training of Ray-Tracing networks: briefly trained, frozen convolutions; early stopping; an MLP twin; the card.

Three stages, each resumable by itself: the convolutions under a dense output (discarded afterwards), the
network on their features, and the MLP twin on the same features in the same way.

Source: "Ray-Tracing for Conditionally Activated Neural Networks", section 3.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.models.checkpoint import build_model, read_checkpoint, save_checkpoint
from tokenpaths.engine.models.raytracing import FeatureExtractor, MLPTwin, OnFeatures, RayTracing
from tokenpaths.engine.train.cards import mebibytes, note, rounded, save_card
from tokenpaths.engine.train.loop import Progress, training_record
from tokenpaths.engine.train.raytracing_fit import Fit, Plan, Samples, fit, measure
from tokenpaths.engine.train.raytracing_recipe import Corpora, RayTracingRecipe


@dataclass(frozen=True)
class Features:
    """The same as activations of the frozen convolutions."""

    train: Samples
    val: Samples
    test: Samples


def train_convolutions(
    recipe: RayTracingRecipe, corpora: Corpora, folder: Path, on_progress: Callable[[Progress], None] = lambda p: None
) -> FeatureExtractor:
    """Convolutions under a dense output, by Adam, for as many epochs as the recipe says; frozen."""
    config = recipe.model
    torch.manual_seed(recipe.feature_seed)
    convolutions = FeatureExtractor(config)
    network = nn.Sequential(convolutions, nn.Linear(config.num_features, config.num_classes))
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
    plan = Plan(
        name=f"{recipe.data} convolutions",
        epochs=recipe.feature_epochs,
        batch_size=recipe.batch_size,
        learning_rate=1e-3,
        seed=recipe.feature_seed,
        bfloat16=True,
        network=_fingerprint([config.conv_channels, config.conv_pools, config.conv_kernel, config.image_size]),
    )
    logits_of = lambda images: network(normalise(images).to(memory_format=torch.channels_last))  # noqa: E731
    as_samples = lambda corpus: Samples(corpus.images, corpus.labels)  # noqa: E731
    fit(plan, network, logits_of, as_samples(corpora.train), as_samples(corpora.val), folder, on_progress=on_progress)
    return convolutions.requires_grad_(False)


@torch.inference_mode()
def extract(convolutions: FeatureExtractor, images: UInt8[Tensor, "N 3 H W"]) -> Float[Tensor, "N F"]:
    """Activations of the last convolution, in float32."""
    return torch.cat([convolutions(normalise(part)).float() for part in images.split(500)]).clone()


def extract_all(convolutions: FeatureExtractor, corpora: Corpora) -> Features:
    """Features of all three parts."""
    part = lambda corpus: Samples(extract(convolutions, corpus.images), corpus.labels)  # noqa: E731
    return Features(part(corpora.train), part(corpora.val), part(corpora.test))


def train_network(
    recipe: RayTracingRecipe,
    convolutions: FeatureExtractor,
    features: Features,
    folder: Path,
    *,
    twin: bool = False,
    on_progress: Callable[[Progress], None] = lambda p: None,
) -> tuple[OnFeatures, Fit]:
    """The network, or its MLP twin, on the features: Adam with early stopping by validation loss."""
    torch.manual_seed(recipe.seed)
    network = (MLPTwin if twin else RayTracing)(recipe.model)
    network.convolutions.load_state_dict(convolutions.state_dict())
    plan = Plan(
        name=f"{recipe.name}{' MLP twin' if twin else ''}",
        epochs=recipe.epochs,
        patience=recipe.patience,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        seed=recipe.seed,
        network=_fingerprint([recipe.model.model_dump(), recipe.feature_seed]),
    )
    run = fit(plan, network, network.logits_of, features.train, features.val, folder, on_progress=on_progress)
    return network, run


def _fingerprint(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Lights:
    """What a network did with every sample of a set."""

    logits: Float[Tensor, "N C"]
    losses: Float[Tensor, " N"]
    fired: Bool[Tensor, "N P"]
    """at any threshold step"""
    theta_steps: Int[Tensor, " N"]
    reached: Bool[Tensor, " N"]


@torch.inference_mode()
def light_up(model: RayTracing, samples: Samples, **options: Any) -> Lights:
    """Run features through a network, ``relax``'s ``options`` with them."""
    parts = [model.relax(part, **options) for part in samples.inputs.split(500)]
    logits = torch.cat([part.logits for part in parts])
    losses = nn.functional.cross_entropy(logits, samples.labels, reduction="none")
    return Lights(
        logits, losses, *(torch.cat([getattr(p, name) for p in parts]) for name in ("fired", "theta_steps", "reached"))
    )


def summary(model: RayTracing, samples: Samples, **options: Any) -> dict[str, float]:
    """Accuracy, loss, and how much of the network was used, means over the samples."""
    lights = light_up(model, samples, **options)
    total = model.trainable_params
    used, sparse = (model.used_params(lights.fired, sparse_readout=s).double().mean() / total for s in (False, True))
    return {
        "loss": float(lights.losses.mean()),
        "accuracy": float((lights.logits.argmax(dim=1) == samples.labels).float().mean()),
        "count": len(samples),
        "params": total,
        "active_share": float(lights.fired.double().mean()),
        "used_share": float(used),
        "used_share_sparse_readout": float(sparse),
        "theta_steps": float(lights.theta_steps.double().mean()),
        "reached_share": float(lights.reached.double().mean()),
    }


@dataclass(frozen=True)
class Trained:
    """A recipe's network and its twin, as trained."""

    recipe: RayTracingRecipe
    model: RayTracing
    run: Fit
    twin: MLPTwin
    twin_run: Fit
    features: Features
    corpora: Corpora


def train(
    recipe: RayTracingRecipe, corpora: Corpora, work: Path, *, on_progress: Callable[[Progress], None] = lambda p: None
) -> Trained:
    """All three stages below ``work``; recipes of the same data share the convolutions there.

    Raises:
        TrainingDiverged: a loss is no longer finite; the last good state is on disk.
        UserError: ``work`` holds a run with other settings.
    """
    stage = work / f"{recipe.data}-convolutions-{recipe.feature_seed}"
    convolutions = train_convolutions(recipe, corpora, stage, on_progress)
    features = extract_all(convolutions, corpora)
    model, run = train_network(recipe, convolutions, features, work / recipe.name, on_progress=on_progress)
    twin, twin_run = train_network(
        recipe, convolutions, features, work / f"{recipe.name}-twin", twin=True, on_progress=on_progress
    )
    assert isinstance(model, RayTracing), "train_network makes one"
    assert isinstance(twin, MLPTwin), "train_network makes one"
    return Trained(recipe, model, run, twin, twin_run, features, corpora)


def finish(trained: Trained, out: Path, command: str) -> dict[str, Any]:
    """Export in float16, read the export back, measure *it* on the test data, write the card."""
    recipe, twin = trained.recipe, trained.twin
    run = trained.run
    training = training_record(recipe, run.iteration, run.seconds, command, run.history)
    save_checkpoint(out, trained.model, classes=trained.corpora.train.classes, training=training, dtype=torch.float16)
    shipped, test = build_model(read_checkpoint(out)), trained.corpora.test
    assert isinstance(shipped, RayTracing), "exported as one"
    numbers = rounded(summary(shipped, Samples(extract(shipped.convolutions, test.images), test.labels)))
    twin_numbers = measure(twin.logits_of, trained.features.test) | {"params": twin.trainable_params}
    test_set = "bundled:digits" if recipe.data == "digits" else f"vision/{recipe.data}_test.parquet"
    validation = numbers | {"file": test_set, "mlp_twin": rounded(twin_numbers)}
    note(out, validation)
    return validation


DATA = {
    "digits": "scikit-learn's digits, 8 × 8; every fifth held out for testing",
    "cifar10": "CIFAR-10 (Krizhevsky, 2009), 32 × 32; its own test split",
}


def write_card(folder: Path) -> Path:
    """``card.md`` from the checkpoint's configuration."""
    checkpoint = read_checkpoint(folder)
    config, training, numbers = checkpoint.config, checkpoint.training, checkpoint.validation
    recipe, twin = training["recipe"], numbers["mlp_twin"]
    lines = [
        f"# {checkpoint.name}",
        "",
        f"A RayTracing network for images of {config.image_size} × {config.image_size} pixels: {config.layers} layers "
        f"of {config.blocks} blocks of {config.width} neurons on the features of {len(config.conv_channels)} frozen "
        f"convolutions. θ falls from {config.theta:g} by a factor of {config.decay:g} a step, "
        f"until {config.theta_out:g} of a signal of {config.signal} reach the output.",
        "",
        f"- weights: float16 safetensors, {mebibytes(folder):.2f} MiB; {numbers['params']:,} parameters without the "
        "convolutions",
        f"- data: {DATA[recipe['data']]}; {recipe['validation_share']:.0%} of the rest for early stopping",
        f"- command: `{training['command']}`",
        f"- trained {training['iterations']:,} iterations of {recipe['batch_size']} in "
        f"{training['wall_seconds'] / 60:.1f} minutes on {training['machine']}, finished {training['date']}; "
        f"the convolutions {recipe['feature_epochs']} epochs before",
        f"- Adam, rate {recipe['learning_rate']:g}, patience {recipe['patience']} epochs, seed {recipe['seed']}, wires "
        f"of seed {config.seed}",
        "",
        "## Test",
        "",
        "| model | parameters | used on average | loss (nats) | top-1 accuracy |",
        "|---|---|---|---|---|",
        f"| {checkpoint.name} | {numbers['params']:,} | {numbers['used_share']:.1%} | {numbers['loss']:.3f} | "
        f"{numbers['accuracy']:.1%} |",
        f"| MLP twin, same features | {twin['params']:,} | 100.0% | {twin['loss']:.3f} | {twin['accuracy']:.1%} |",
        "",
        f"Measured on the shipped weights in float32, {numbers['count']:,} images. {numbers['active_share']:.1%} of "
        f"the blocks fired, {numbers['theta_steps']:.2f} threshold steps on average; the output fired on "
        f"{numbers['reached_share']:.1%} of the images. Used parameters are those of the blocks that fired, of the "
        f"input modules and of the output layer; {numbers['used_share_sparse_readout']:.1%} if the output layer counts "
        "only what comes from blocks that fired.",
        "",
        "## Curve",
        "",
        "| epoch | train loss | validation loss | validation accuracy |",
        "|---|---|---|---|",
        *(
            f"| {e['epoch']} | {e['train_loss']} | {e['val_loss']} | {e['val_accuracy']} |"
            for e in _thinned(training["history"])
        ),
        "",
        "## Limits",
        "",
        "A small model for looking at routing, not for use. The image data is for research use.",
    ]
    return save_card(folder, lines)


def _thinned(history: list[dict[str, Any]], most: int = 15) -> list[dict[str, Any]]:
    """At most about so many rows of a curve, the last one among them."""
    every = -(-len(history) // most)
    return [entry for i, entry in enumerate(history) if (len(history) - 1 - i) % every == 0]
