"""Loss and accuracy of every shipped checkpoint on what it was not trained on, beside an untrained network.

    python -m benchmarks.held_out --data <data folder> [--models NAME …] [--anew FOLDER]

Each checkpoint and one network of the same architecture at initialisation predict the validation file of the card
(RayTracing: the test images). Means are over predictions, as on the card; intervals are of 95 %, by resampling what was
drawn: images, or texts, whose tokens rise and fall together. ``unseen``: of the texts that are not in the training file
as well. ``--anew`` measures checkpoints of the same recipes under other seeds as well (NAME-seed1 …), which are not
shipped. ``make science`` puts all into the tables of networks.

Shapes: b samples; n predictions.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import kept_document, report
from benchmarks.resampling import interval
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import CONFIG, TOKENIZER, Checkpoint
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.raytracing import RayTracing
from tokenpaths.engine.tracing.loaded_model import LoadedModel, load_model
from tokenpaths.engine.train.corpora import ImageCorpus, TextCorpus, load_images, load_text, read_texts
from tokenpaths.engine.train.dipaco.documents import Sequences, load_documents
from tokenpaths.engine.train.dipaco.finish_dipaco import document_paths, routed_sums
from tokenpaths.engine.train.hmodel_recipes import load_languages
from tokenpaths.engine.train.loop import scored
from tokenpaths.engine.train.raytracing_fit import Samples
from tokenpaths.engine.train.raytracing_recipe import find_recipe, load_corpora
from tokenpaths.engine.train.train_raytracing import extract, light_up

COMMAND = "python -m benchmarks.held_out --data <data folder>"
CPU = torch.device("cpu")
UNTRAINED_TOKENS = 60_000
"""predictions of an untrained network of texts: its loss is that of a guess, and varies little"""


@dataclass(frozen=True)
class Sums:
    """By sample: summed losses, right predictions, and predictions."""

    loss_b: np.ndarray
    right_b: np.ndarray
    count_b: np.ndarray

    @classmethod
    def of(cls, sample_n: np.ndarray, loss_n: np.ndarray, right_n: np.ndarray) -> Sums:
        """From predictions and the sample of each."""
        return cls(*(np.bincount(sample_n, weights) for weights in (loss_n, right_n, np.ones(len(sample_n)))))

    def only(self, keep_b: np.ndarray) -> Sums:
        """Of the samples where ``keep_b``; samples behind its end, of which there is no prediction, are left out."""
        return Sums(*(part[: len(keep_b)][keep_b[: len(part)]] for part in (self.loss_b, self.right_b, self.count_b)))

    def figures(self) -> dict[str, Any]:
        """Means over predictions, with their intervals over samples."""
        found: dict[str, Any] = {"count": int(self.count_b.sum()), "samples": int((self.count_b > 0).sum())}
        for name, sums_b in (("loss", self.loss_b), ("accuracy", self.right_b)):
            value, low, high = interval(lambda c, sums_b=sums_b: (sums_b @ c) / (self.count_b @ c), len(sums_b))
            found[name] = {"value": value, "low": low, "high": high}
        return found


def documents(corpus: TextCorpus) -> np.ndarray:
    """The text of each token of ``corpus.ids``; the end token belongs to the text that it ends."""
    ends = (corpus.ids == corpus.tokenizer.end_id).numpy()
    return np.cumsum(ends) - ends


def of_corpus(model: Any, corpus: ImageCorpus | TextCorpus, limit: int | None) -> Sums:
    """Of models that ``tokenpaths train`` measures window by window, or image by image."""
    parts = [[part.numpy() for part in row] for row in scored(model, corpus, CPU, limit)]
    place_n, loss_n, right_n = (np.concatenate(column) for column in zip(*parts, strict=True))
    sample_n = documents(corpus)[place_n] if isinstance(corpus, TextCorpus) else place_n
    return Sums.of(sample_n, loss_n, right_n)


def of_paths(model: DiPaCo, val: Sequences, chosen: Tensor) -> Sums:
    """Behind the routing prefix, each document on the path that its router chose."""
    paths = [model.path_model(path) for path in range(model.config.num_paths)]
    sums = routed_sums(paths, chosen, val, model.config.prefix)
    by_text = (np.bincount(val.document, part.double()) for part in (sums.loss, sums.right, sums.count))
    return Sums(*by_text)


def of_lights(model: RayTracing, images: ImageCorpus) -> Sums:
    """Of test images; the convolutions are the network's own."""
    lights = light_up(model, Samples(extract(model.convolutions, images.images), images.labels))
    right = lights.logits.argmax(dim=1) == images.labels
    return Sums.of(np.arange(len(images.labels)), lights.losses.numpy(), right.numpy())


def corpus_of(checkpoint: Checkpoint, folder: Path, data: Path) -> ImageCorpus | TextCorpus:
    """What the card's numbers are of."""
    file = data / checkpoint.validation["file"]
    if checkpoint.config.modality == "vision":
        return load_images(file, checkpoint.config.image_size, checkpoint.classes)
    tokenizer = TextTokenizer.load(folder / TOKENIZER)
    return load_languages(data).val.corpus(tokenizer) if checkpoint.family == "hmodel" else load_text(file, tokenizer)


def unseen(checkpoint: Checkpoint, data: Path) -> np.ndarray | None:
    """Which texts of the validation file are not, character by character, in the training file beside it as well."""
    file = data / checkpoint.validation["file"]
    beside = file.with_name(file.name.replace("_val.", "_train."))
    if checkpoint.config.modality != "text" or beside == file:
        return None
    known = set(read_texts(beside))
    return np.array([text not in known for text in read_texts(file)])


@torch.inference_mode()
def measure(name: str, data: Path, models: Path = SHIPPED_MODELS) -> dict[str, Any]:
    """Figures of one checkpoint in ``models``; of a shipped one those of an untrained network like it as well."""
    began = time.monotonic()
    loaded = load_model(name, [models], device="cpu")
    sums = sums_of(loaded, loaded.model, models / name, data)
    own = sums.figures()
    unseen_b = unseen(loaded.checkpoint, data)
    if unseen_b is not None and not unseen_b.all():
        own["unseen"] = sums.only(unseen_b).figures()
    for key in ("loss", "accuracy"):
        if abs(own[key]["value"] - loaded.checkpoint.validation[key]) > 1e-3:
            raise SystemExit(f"{name}: {key} is {own[key]['value']}, its card says {loaded.checkpoint.validation[key]}")
    if models == SHIPPED_MODELS:
        own["untrained"] = sums_of(loaded, loaded.untrained(1).model, models / name, data).figures()
    return own | {"sha256": loaded.sha256, "minutes": round((time.monotonic() - began) / 60, 1)}


def sums_of(loaded: LoadedModel, model: Any, folder: Path, data: Path) -> Sums:
    """What ``model``, the loaded one or an untrained one like it, gets right of what the card is about."""
    untrained = model is not loaded.model
    if isinstance(model, DiPaCo):
        tokenizer = TextTokenizer.load(folder / TOKENIZER)
        file = data / loaded.checkpoint.validation["file"]
        val = load_documents(file, tokenizer, model.config, on_short="drop")
        # An untrained router chooses by chance; that all documents take one untrained path is no worse.
        chosen = torch.zeros(len(val), dtype=torch.long) if untrained else document_paths(model, val)
        return of_paths(model, val, chosen)
    if isinstance(model, RayTracing):
        return of_lights(model, load_corpora(find_recipe(loaded.name), data).test)
    corpus = corpus_of(loaded.checkpoint, folder, data)
    return of_corpus(model, corpus, UNTRAINED_TOKENS if untrained else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="*", help="measure only these, keep the others as they are")
    parser.add_argument("--anew", type=Path, help="folder of checkpoints under other seeds: NAME-seed1 …")
    arguments = parser.parse_args()
    folders = [SHIPPED_MODELS] + ([arguments.anew] if arguments.anew else [])
    found = sorted((file.parent.name, folder) for folder in folders for file in folder.glob(f"*/{CONFIG}"))
    results = dict(kept_document("held_out")["results"])
    for name, folder in found:
        if arguments.models is None or name in arguments.models:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            results[name] = measure(name, arguments.data, folder)
            report("held_out", COMMAND, results, quiet=True)


if __name__ == "__main__":
    main()
