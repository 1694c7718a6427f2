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
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor, nn

from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.models.raytracing import FeatureExtractor, MLPTwin, OnFeatures, RayTracing
from tokenpaths.engine.train.cards import is_of_shipped_data, mebibytes, note, rounded, save_card, section
from tokenpaths.engine.train.loop import Progress, training_record
from tokenpaths.engine.train.raytracing_fit import Fit, Plan, Samples, fit, measure
from tokenpaths.engine.train.raytracing_recipe import Corpora, RayTracingRecipe
from tokenpaths.engine.train.resuming import alone_in


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
    twin: Literal["as large", "as used"] | None = None,
    used: int = 0,
    on_progress: Callable[[Progress], None] = lambda p: None,
) -> tuple[OnFeatures, Fit]:
    """The network, or an MLP twin, on the features: Adam with early stopping by validation loss.

    A twin has as many parameters as the network, or as the network uses on average: ``used``.
    """
    torch.manual_seed(recipe.seed)
    params = {"as large": None, "as used": used}
    network = RayTracing(recipe.model) if twin is None else MLPTwin(recipe.model, params[twin])
    network.convolutions.load_state_dict(convolutions.state_dict())
    plan = Plan(
        name=f"{recipe.name}{f' MLP twin, {twin}' if twin else ''}",
        epochs=recipe.epochs,
        patience=recipe.patience,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        seed=recipe.seed,
        network=_fingerprint([recipe.model.model_dump(), recipe.feature_seed, used]),
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
    rates: Float[Tensor, "N R P"]
    fired: Bool[Tensor, "N P"]
    """at any threshold step"""
    used: Int[Tensor, " N"]
    """parameters through which a signal went"""
    theta_steps: Int[Tensor, " N"]
    reached: Bool[Tensor, " N"]


@torch.inference_mode()
def light_up(model: RayTracing, samples: Samples, **options: Any) -> Lights:
    """Run features through a network, ``relax``'s ``options`` with them."""
    parts = [model.relax(part, **options) for part in samples.inputs.split(500)]
    logits = torch.cat([part.logits for part in parts])
    losses = nn.functional.cross_entropy(logits, samples.labels, reduction="none")
    used = torch.cat([model.used_params(part.rates) for part in parts])
    rates, fired, theta_steps, reached = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("rates", "fired", "theta_steps", "reached")
    )
    return Lights(logits, losses, rates, fired, used, theta_steps, reached)


def summary(model: RayTracing, samples: Samples, **options: Any) -> dict[str, float]:
    """Accuracy, loss, and how much of the network was used, means over the samples."""
    lights = light_up(model, samples, **options)
    total = model.trainable_params
    return {
        "loss": float(lights.losses.mean()),
        "accuracy": float((lights.logits.argmax(dim=1) == samples.labels).float().mean()),
        "count": len(samples),
        "params": total,
        "active_share": float(lights.fired.double().mean()),
        "used_share": float(lights.used.double().mean()) / total,
        "reachable_share": model.reachable_params(lights.rates) / total,
        "lit_params_share": float(model.lit_params(lights.fired).double().mean()) / total,
        "theta_steps": float(lights.theta_steps.double().mean()),
        "reached_share": float(lights.reached.double().mean()),
    }


@dataclass(frozen=True)
class Trained:
    """A recipe's network and its twins, as trained: one as large as the network, one as large as what it uses."""

    recipe: RayTracingRecipe
    model: RayTracing
    run: Fit
    twin: MLPTwin
    used_twin: MLPTwin
    features: Features
    corpora: Corpora


def train(
    recipe: RayTracingRecipe, corpora: Corpora, work: Path, *, on_progress: Callable[[Progress], None] = lambda p: None
) -> Trained:
    """All three stages below ``work``; recipes of the same data share the convolutions there.

    Raises:
        TrainingDiverged: a loss is no longer finite; the last good state is on disk.
        Held: another process trains the convolutions.
        UserError: ``work`` holds a run with other settings.
    """
    stage = work / f"{recipe.data}-convolutions-{recipe.feature_seed}"
    with alone_in(stage, f"the convolutions for {recipe.data}"):
        convolutions = train_convolutions(recipe, corpora, stage, on_progress)
    features = extract_all(convolutions, corpora)
    model, run = train_network(recipe, convolutions, features, work / recipe.name, on_progress=on_progress)
    assert isinstance(model, RayTracing), "train_network makes one"
    twins = train_twins(recipe, model, features, work, on_progress)
    return Trained(recipe, model, run, *twins, features, corpora)


def train_twins(
    recipe: RayTracingRecipe,
    model: RayTracing,
    features: Features,
    work: Path,
    on_progress: Callable[[Progress], None] = lambda p: None,
) -> tuple[MLPTwin, MLPTwin]:
    """An MLP with as many parameters as the network has, and one with as many as it uses on the validation data."""
    used = round(float(light_up(model, features.val).used.double().mean()))
    train = partial(train_network, recipe, model.convolutions, features, on_progress=on_progress)
    large, _ = train(work / f"{recipe.name}-twin", twin="as large")
    small, _ = train(work / f"{recipe.name}-used-twin", twin="as used", used=used)
    assert isinstance(large, MLPTwin), "train_network makes one"
    assert isinstance(small, MLPTwin), "train_network makes one"
    return large, small


def finish(trained: Trained, out: Path, command: str) -> dict[str, Any]:
    """Export in float16, read the export back, measure *it* on the test data, write the card."""
    recipe, run = trained.recipe, trained.run
    training = training_record(recipe, run.iteration, run.seconds, command, run.history)
    save_checkpoint(out, trained.model, classes=trained.corpora.train.classes, training=training, dtype=torch.float16)
    shipped, test = build_model(read_checkpoint(out)), trained.corpora.test
    assert isinstance(shipped, RayTracing), "exported as one"
    samples = Samples(extract(shipped.convolutions, test.images), test.labels)
    return measure_shipped(out, shipped, recipe, samples, (trained.twin, trained.used_twin), trained.features.test)


def measure_shipped(
    out: Path,
    shipped: RayTracing,
    recipe: RayTracingRecipe,
    samples: Samples,
    twins: tuple[MLPTwin, MLPTwin],
    of_twins: Samples,
) -> dict[str, Any]:
    """Measure an export and its twins on the test data, and write that into its folder and card."""
    large, used = (measure(twin.logits_of, of_twins) | {"params": twin.trainable_params} for twin in twins)
    validation = rounded(summary(shipped, samples)) | {
        "file": "bundled:digits" if recipe.data == "digits" else f"vision/{recipe.data}_test.parquet",
        "mlp_twin": rounded(large),
        "mlp_as_used": rounded(used),
    }
    note(out, validation)
    return validation


DATA = {
    "digits": "scikit-learn's digits, 8 × 8; every fifth held out for testing",
    "cifar10": "CIFAR-10 (Krizhevsky, 2009), 32 × 32; its own test split",
}


TERMS = {
    "digits": "The image data is the UCI's Optical Recognition of Handwritten Digits, CC BY 4.0.",
    "cifar10": "The image data is for research use.",
}


def write_card(folder: Path) -> Path:
    """``card.md`` from the checkpoint's configuration."""
    checkpoint = read_checkpoint(folder)
    config, training, numbers = checkpoint.config, checkpoint.training, checkpoint.validation
    recipe, twin, as_used = training["recipe"], numbers["mlp_twin"], numbers["mlp_as_used"]
    ours = is_of_shipped_data(training)
    lines = [
        f"# {checkpoint.name}",
        "",
        f"A RayTracing network for images of {config.image_size} × {config.image_size} pixels: {config.layers} layers "
        f"of {config.blocks} blocks of {config.width} neurons on the features of {len(config.conv_channels)} frozen "
        f"convolutions. θ falls from {config.theta:g} by a factor of {config.decay:g} a step, in which a signal "
        f"crosses {'one layer' if config.crossing == 'one' else 'all layers'}, until {config.theta_out:g} of a signal "
        f"of {config.signal} reach the output.",
        "",
        f"- weights: float16 safetensors, {mebibytes(folder):.2f} MiB; {numbers['params']:,} parameters without the "
        "convolutions",
        f"- data: {DATA[recipe['data']] if ours else ' and '.join(training['data'])}; "
        f"{recipe['validation_share']:.0%} of the rest for early stopping",
        f"- command: `{training['command']}`",
        f"- trained {training['iterations']:,} iterations of {recipe['batch_size']} in "
        f"{training['wall_seconds'] / 60:.1f} minutes on {training['machine']}, finished {training['date']}; "
        f"the convolutions {recipe['feature_epochs']} epochs before",
        f"- Adam, rate {recipe['learning_rate']:g}, patience {recipe['patience']} epochs, seed {recipe['seed']}, wires "
        f"of seed {config.seed}",
        *section("Test"),
        "| model | parameters | used on average | loss (nats) | top-1 accuracy |",
        "|---|---|---|---|---|",
        f"| {checkpoint.name} | {numbers['params']:,} | {numbers['used_share']:.1%} | {numbers['loss']:.3f} | "
        f"{numbers['accuracy']:.1%} |",
        f"| MLP twin, same features | {twin['params']:,} | 100.0% | {twin['loss']:.3f} | {twin['accuracy']:.1%} |",
        f"| MLP with as many as are used | {as_used['params']:,} | 100.0% | {as_used['loss']:.3f} | "
        f"{as_used['accuracy']:.1%} |",
        "",
        f"Measured on the shipped weights in float32, {numbers['count']:,} images. {numbers['active_share']:.1%} of "
        f"the blocks fired, {numbers['theta_steps']:.2f} threshold steps on average; the output fired on "
        f"{numbers['reached_share']:.1%} of the images. Used are the parameters through which a signal went: a weight "
        "that is multiplied by zero is not used, and not trained either. On any of the images a signal went through "
        f"{numbers['reachable_share']:.1%}; all weights of the blocks that fired, with the input modules and "
        f"the output layer, are {numbers['lit_params_share']:.1%}.",
        *section("Curve"),
        "| epoch | train loss (last batch) | validation loss | validation accuracy |",
        "|---|---|---|---|",
        *(
            f"| {e['epoch']} | {e['train_loss']} | {e['val_loss']} | {e['val_accuracy']} |"
            for e in _thinned(training["history"])
        ),
        *section("Limits"),
        "A small model for looking at routing, not for use." + f" {TERMS[recipe['data']]}" * ours,
    ]
    return save_card(folder, lines)


def _thinned(history: list[dict[str, Any]], most: int = 15) -> list[dict[str, Any]]:
    """At most about so many rows of a curve, the last one among them."""
    every = -(-len(history) // most)
    return [entry for i, entry in enumerate(history) if (len(history) - 1 - i) % every == 0]
