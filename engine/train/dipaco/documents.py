"""Training data of a DiPaCo: documents cut into routed sequences, split for the router, sharded by path.

A document longer than the context is cut into sequences of ``context`` inputs; each is routed by its own first
``prefix`` tokens. Shapes: N sequences, L tokens of all of them, B sequences of a batch, T tokens, P paths, n paths a
sequence trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from tokenpaths.engine.base.device import mixed_precision
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.dipaco_path import PathModel
from tokenpaths.engine.models.dipaco_router import DiPaCoRouter
from tokenpaths.engine.train.corpora import label_of, read_rows


@dataclass(frozen=True)
class Sequences:
    """Stretches of documents, each at most context + 1 tokens (the last one only a target)."""

    ids: Int[Tensor, " L"]
    start: Int[Tensor, " N"]
    length: Int[Tensor, " N"]
    document: Int[Tensor, " N"]
    label: Int[Tensor, " N"]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.start)

    def select(self, rows: Int[Tensor, " n"]) -> Sequences:
        """Some of the sequences, over the same tokens."""
        return Sequences(
            self.ids, self.start[rows], self.length[rows], self.document[rows], self.label[rows], self.labels
        )

    def batch(self, rows: Int[Tensor, " B"]) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
        """Inputs, and the successor of each (−100 behind the end), as long as the longest of them."""
        length_B = self.length[rows] - 1
        offset_T = torch.arange(int(length_B.max()))
        inside_BT = offset_T < length_B[:, None]
        place_BT = (self.start[rows][:, None] + offset_T).clamp(max=len(self.ids) - 2)
        inputs = self.ids[place_BT].long() * inside_BT
        return inputs, self.ids[place_BT + 1].long().masked_fill(~inside_BT, -100)


def make_sequences(
    documents: Sequence[np.ndarray],
    names: Sequence[str],
    config: DiPaCoConfig,
    end_id: int,
    on_short: Literal["refuse", "drop"] = "refuse",
) -> Sequences:
    """Cut tokenised documents, each followed by the end token, into sequences.

    A rest that is no longer than the prefix has nothing to predict behind it and is left out.

    Raises:
        UserError: a document is shorter than the routing prefix (unless ``on_short`` drops those).
    """
    labels = tuple(sorted(set(names)))
    parts, rows, total = [], [], 0
    for i, (tokens, name) in enumerate(zip(documents, names, strict=True)):
        if len(tokens) < config.prefix:
            if on_short == "drop":
                continue
            raise UserError(
                f"document {i} has {len(tokens)} tokens, fewer than the routing prefix of {config.prefix}: "
                "leave it out, or make prefix smaller",
                field="prefix",
            )
        parts.append(np.append(tokens, end_id).astype(np.int32))
        for begin in range(0, len(tokens), config.context):
            length = min(config.context + 1, len(tokens) + 1 - begin)
            if length > config.prefix:
                rows.append((total + begin, length, i, labels.index(name)))
        total += len(tokens) + 1
    if not rows:
        raise UserError("there is no document to train on", field="data")
    start, length_N, document, label = torch.tensor(rows).unbind(dim=1)
    return Sequences(torch.from_numpy(np.concatenate(parts)), start, length_N, document, label, labels)


def load_documents(
    path: Path,
    tokenizer: TextTokenizer,
    config: DiPaCoConfig,
    *,
    label: str = "domain",
    on_short: Literal["refuse", "drop"] = "refuse",
) -> Sequences:
    """A Parquet file with a ``text`` column and one of labels."""
    rows = [(row.text or "", label_of(row, path, label)) for row in read_rows(path, "text", label)]
    texts, names = [text for text, _ in rows], [name for _, name in rows]
    documents = [ids for i in range(0, len(texts), 256) for ids in tokenizer.encode_batch(texts[i : i + 256])]
    assert tokenizer.end_id is not None, "our tokenizers have an end token"
    return make_sequences(documents, names, config, tokenizer.end_id, on_short)


@dataclass(frozen=True)
class Split:
    """Rows of the sequences by use; no document is in two of them."""

    train: Int[Tensor, " n"]
    router: Int[Tensor, " m"]
    """scored by every path, to fit the discriminative router and the re-router"""
    stop: Int[Tensor, " k"]
    """for early stopping"""


def split_documents(sequences: Sequences, router_share: float, stop_share: float, seed: int) -> Split:
    """Set documents aside for the router and for early stopping."""
    documents = sequences.document.unique()
    order = documents[torch.randperm(len(documents), generator=torch.Generator().manual_seed(seed))]
    router, stop = round(router_share * len(order)), round(stop_share * len(order))
    rows = [
        torch.isin(sequences.document, part).nonzero().squeeze(1)
        for part in (order[router + stop :], order[:router], order[router : router + stop])
    ]
    return Split(*rows)


def check_shards(paths: Int[Tensor, "N n"], config: DiPaCoConfig, replicas: int = 1) -> Int[Tensor, " P"]:
    """Shard sizes.

    Raises:
        UserError: there are fewer documents than paths; a shard is empty, or that of one of its replicas.
    """
    if len(paths) < config.num_paths:
        raise UserError(
            f"levels {config.levels} make {config.num_paths} paths, but there are only {len(paths)} documents: "
            "give at least one document a path",
            field="levels",
        )
    sizes = torch.bincount(paths.flatten(), minlength=config.num_paths)
    if bool((sizes == 0).any()):
        path = int((sizes == 0).nonzero()[0])
        raise UserError(
            f"the shard of path {path} (modules {config.path_modules[path].tolist()}) is empty under router "
            f"{config.router!r}: use fewer modules in levels, overlap=2 or another router",
            field="router",
        )
    if int(sizes.min()) < replicas:
        raise UserError(
            f"the shard of path {int(sizes.argmin())} has {int(sizes.min())} sequences, too few for {replicas} "
            "replicas: give one to each at least",
            field="replicas",
        )
    return sizes


def shard_batch(
    sequences: Sequences, shard: Int[Tensor, " n"], size: int, seed: int, path: int, iteration: int
) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """The batch of one inner iteration of one path: every sequence of its shard once an epoch."""
    size = min(size, len(shard))
    epoch, index = divmod(iteration, len(shard) // size)
    generator = torch.Generator().manual_seed((seed * 1_000_003 + path) * 1_000_003 + epoch)
    order = torch.randperm(len(shard), generator=generator)
    return sequences.batch(shard[order[index * size : (index + 1) * size]])


def _batches(sequences: Sequences, size: int = 32) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """All sequences, similar lengths together: rows, inputs, targets."""
    for rows in sequences.length.argsort(descending=True, stable=True).split(size):
        yield rows, *sequences.batch(rows)


@torch.no_grad()
def document_features(router: DiPaCoRouter, sequences: Sequences) -> Float[Tensor, "N D"]:
    """The routing feature of every sequence."""
    prefix, device = router.prefix, router.mean.device
    features = torch.empty(len(sequences), len(router.mean))
    offset_T = torch.arange(prefix)
    for rows in torch.arange(len(sequences)).split(256):
        ids = sequences.ids[sequences.start[rows][:, None] + offset_T].long().to(device)
        features[rows] = router.features(ids).cpu()
    return features


@torch.no_grad()
def path_scores(
    paths: Sequence[PathModel],
    sequences: Sequences,
    *,
    bfloat16: bool = False,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Float[Tensor, "N T P"]:
    """Log-likelihood of each position's successor under each path; 0 where there is none.

    In float32 unless ``bfloat16``. ``on_progress`` hears (sequences done, of how many).
    """
    scores = torch.zeros(len(sequences), int(sequences.length.max()) - 1, len(paths))
    device = paths[0].ends.positions.device
    done = 0
    for rows, inputs, targets in _batches(sequences):
        has_target = targets >= 0
        for p, model in enumerate(paths):
            with mixed_precision(device, bfloat16):
                h = model.hidden(inputs.to(device))[has_target.to(device)]
                own = torch.zeros(targets.shape)
                own[has_target] = _log_likelihood(h, model.ends.head.weight, targets[has_target].to(device)).cpu()
            scores[rows, : targets.shape[1], p] = own
        done += len(rows)
        on_progress(done, len(sequences))
    return scores


def _log_likelihood(
    h: Float[Tensor, "R D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " R"]
) -> Float[Tensor, " R"]:
    """In chunks whose logits fit a core's cache."""
    parts = []
    for x, target in zip(h.split(256), targets.split(256), strict=True):
        logits = (x @ weight.T).float()
        parts.append(logits.gather(1, target.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=1))
    return torch.cat(parts)


def after_prefix(sequences: Sequences, prefix: int) -> Tensor:
    """(N, T) mask of the positions whose successor exists and stands behind the routing prefix."""
    position_T = torch.arange(int(sequences.length.max()) - 1)
    return (position_T >= prefix - 1) & (position_T < sequences.length[:, None] - 1)
