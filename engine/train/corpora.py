"""Training data in memory: images as one uint8 tensor, text as one row of token ids.

Shapes: N images, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import Modality
from tokenpaths.engine.data.datasets import Dataset, Sample, open_dataset
from tokenpaths.engine.data.images import model_view
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import TOKENIZER
from tokenpaths.engine.train.recipes import Recipe
from tokenpaths.engine.train.resuming import keep_to_tokenizer


@dataclass(frozen=True)
class ImageCorpus:
    """Images with their class ids; ``classes`` in order of the ids."""

    images: UInt8[Tensor, "N 3 H W"]
    labels: Int[Tensor, " N"]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class TextCorpus:
    """Documents one after the other, each followed by the end token."""

    ids: Int[Tensor, " T"]
    tokenizer: TextTokenizer


def load_images(path: Path, size: int, classes: tuple[str, ...] = ()) -> ImageCorpus:
    """A Parquet file with ``image`` (encoded bytes) and ``label``; of each image what a trace shows to the model."""
    dataset = read_rows(path, "vision", "label")
    classes = classes or dataset.labels
    position = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(dataset.labels) - position.keys())
    if unknown:
        raise UserError(f"{path.name} has labels that the training data has not: {', '.join(unknown[:5])}")
    images = torch.empty(dataset.num_places, 3, size, size, dtype=torch.uint8)
    labels = []
    for i, sample in enumerate(dataset):
        image = sample.image
        assert image is not None, "a data set of images gives images"
        images[i] = torch.from_numpy(model_view(image, size)).permute(2, 0, 1)
        labels.append(position[label_of(sample, path, "label")])
    return ImageCorpus(images, torch.tensor(labels), classes)


def load_text(path: Path, tokenizer: TextTokenizer, on_progress: Callable[[int], None] = lambda n: None) -> TextCorpus:
    """A Parquet file with a ``text`` column, tokenised."""
    parts = []
    texts = read_texts(path)
    for start in range(0, len(texts), 256):
        for ids in tokenizer.encode_batch(texts[start : start + 256]):
            parts += [ids, np.array([tokenizer.end_id], dtype=np.int32)]
        on_progress(len(texts[start : start + 256]))
    return TextCorpus(torch.from_numpy(np.concatenate(parts)), tokenizer)


def read_texts(path: Path) -> list[str]:
    """The ``text`` column."""
    return [sample.text or "" for sample in read_rows(path, "text")]


def read_rows(path: Path, modality: Modality, label_column: str | None = None) -> Dataset:
    """The rows of a Parquet file, read in a confined child: column ``image`` or ``text``, and labels if named.

    Raises:
        UserError: it is missing or cannot be read; also for a row without a picture or text, while it is walked.
    """
    require_file(path)
    content: dict[str, Any] = {"image_column": "image"} if modality == "vision" else {"text_column": "text"}
    return open_dataset(path, modality, label_column=label_column, **content)


def label_of(sample: Sample, path: Path, column: str) -> str:
    """The label of a row; UserError if it has none."""
    if sample.label is None:
        raise UserError(f"{path.name}, row {sample.place}: the column {column} holds no label", field="data")
    return sample.label


def require_file(path: Path) -> None:
    """Refuses a training file that is not there.

    Raises:
        UserError: names the file, the folder that was looked in and what ``--data`` means.
    """
    if not path.is_file():
        raise UserError(f"{path.name} is not in the folder {path.parent}; --data names the one above it", field="data")


def load_corpora(
    recipe: Recipe, data: Path, tokenizer_file: Path | None, work: Path
) -> tuple[ImageCorpus | TextCorpus, ImageCorpus | TextCorpus]:
    """Training and validation data of a recipe; trains a tokenizer in ``work`` if none is given.

    Raises:
        UserError: a file is missing, unreadable or too short for one batch, or the tokenizer has another vocabulary or
            is not the one that the training in ``work`` began with.
    """
    train_file, val_file = data / recipe.train_file, data / recipe.val_file
    if recipe.model.modality == "vision":
        train = load_images(train_file, recipe.model.image_size)
        if len(train.classes) < 2:
            raise UserError(
                f"{recipe.train_file} has one class, {train.classes[0]!r}; telling classes apart needs two",
                field="data",
            )
        val = load_images(val_file, recipe.model.image_size, train.classes)
        require_batch(train_file, len(train.labels), recipe.batch_size, "images")
        require_batch(val_file, len(val.labels), 1, "images")
        return train, val
    size, instead = recipe.model.vocab_size, ", or --tokenizer"
    train_own = lambda: trained_tokenizer(read_texts(train_file), size, train_file.name, instead)  # noqa: E731
    tokenizer = kept_tokenizer(tokenizer_file or own_tokenizer(work, train_own), work, size)
    texts = load_text(train_file, tokenizer), load_text(val_file, tokenizer)
    context = recipe.model.context
    require_batch(train_file, len(texts[0].ids), (recipe.batch_size + 1) * context + 1, "tokens")
    require_batch(val_file, len(texts[1].ids), context + 1, "tokens")
    return texts


def own_tokenizer(work: Path, train_own: Callable[[], TextTokenizer]) -> Path:
    """The file of the tokenizer that a training in ``work`` has where none is given to it, trained as it begins.

    Raises:
        UserError: the training began with one that was given.
    """
    file = work / TOKENIZER
    if not file.exists():
        keep_to_tokenizer(work, None)  # before minutes go into a vocabulary that would be refused
        train_own().save(file)
    return file


def kept_tokenizer(file: Path, work: Path, vocab_size: int) -> TextTokenizer:
    """The tokenizer of ``file``, to which the training in ``work`` keeps from now on.

    Raises:
        UserError: it is no file, not the one that the training began with, or has not the vocabulary of the recipe.
    """
    if not file.is_file():
        raise UserError(
            f"{file} is {'a folder' if file.is_dir() else 'not there'}; --tokenizer names a file tokenizer.json",
            field="tokenizer",
        )
    tokenizer = TextTokenizer.load(file)
    if tokenizer.vocab_size != vocab_size:
        raise UserError(
            f"{file} has {tokenizer.vocab_size:,} entries, the recipe takes {vocab_size:,}", field="tokenizer"
        )
    keep_to_tokenizer(work, file)
    return tokenizer


def trained_tokenizer(texts: Sequence[str], vocab_size: int, source: str, instead: str = "") -> TextTokenizer:
    """A vocabulary of the texts of ``source``; ``instead``: what else than more text would do.

    Raises:
        UserError: they do not fill it; a model of ``vocab_size`` entries would be refused with it once it is trained.
    """
    trained = TextTokenizer.train(texts, vocab_size)
    if trained.vocab_size < vocab_size:
        raise UserError(
            f"the texts of {source} give a vocabulary of {trained.vocab_size:,} entries, the recipe takes "
            f"{vocab_size:,}: give more text{instead}",
            field="data",
        )
    return trained


def fitted(recipe: Recipe, corpus: ImageCorpus | TextCorpus) -> Recipe:
    """The recipe with as many classes as the data have; a text recipe as it is."""
    if isinstance(corpus, TextCorpus) or len(corpus.classes) == recipe.model.num_classes:
        return recipe
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"num_classes": len(corpus.classes)})})


def require_batch(file: Path, count: int, needed: int, what: str) -> None:
    """UserError where a file does not fill one batch."""
    if count < needed:
        raise UserError(f"{file.name} holds {count:,} {what}, one batch takes {needed:,}", field="data")
