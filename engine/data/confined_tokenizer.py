"""Tokenizers of strangers in a confined child: their regular expressions may never end, panic or unfold a text.

A child has one entry: ``answer`` below for a ``tokenizer.json``, and one of Hugging Face's adapter. Both serve a
``Codec``, which the parent asks through ``ConfinedTokenizer``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.limits import Limits
from tokenpaths.engine.confined.parent import ReaderEnded, ReaderPool

LIMITS: Final = Limits(memory_megabytes=1536, seconds=30, threads=True, on_top=True)
READERS: Final = ReaderPool("tokenpaths.engine.data.confined_tokenizer:answer", LIMITS, "the tokenizer", "tokenizer")
MOST_TOKENS_A_BYTE: Final = 32
"""of a text; a tokenizer that makes more of it unfolds it"""
MOST_OPEN: Final = 2
END: Final = "<|end|>"
"""stands behind every document of the training data; a text that is traced is read without it"""
_opened: dict[str, Codec] = {}


class Codec(Protocol):
    """A tokenizer in the process that runs it."""

    def about(self) -> dict[str, Any]:
        """``size`` of the vocabulary, and what else the parent needs."""
        ...

    def encode(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        """Ids without special tokens, and the characters [start, end) of each."""
        ...

    def decode(self, lists: list[list[int]], skip_special: bool) -> list[str]:
        """The text of each list of ids."""
        ...


class _Plain:
    """A ``tokenizer.json``."""

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(os.fspath(path))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{path.name} cannot be read: {str(error)[:300]}") from None

    def about(self) -> dict[str, Any]:
        return {"size": self._tokenizer.get_vocab_size(), "end_id": self._tokenizer.token_to_id(END)}

    def encode(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets

    def decode(self, lists: list[list[int]], skip_special: bool) -> list[str]:
        return list(self._tokenizer.decode_batch(lists, skip_special_tokens=skip_special))


def answer(**request: Any) -> Any:
    """What runs in the child of a ``tokenizer.json``; see ``served``."""
    return served(_Plain, **request)


def served(
    opener: Callable[[Path], Codec],
    path: str,
    identity: list[int],
    texts: str | None = None,
    ids: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    skip_special: bool = True,
) -> Any:
    """Answer one request of ``ConfinedTokenizer``: about the tokenizer, ids of texts, or texts of lists of ids."""
    name = json.dumps([path, identity])
    if name not in _opened:
        while len(_opened) >= MOST_OPEN:
            del _opened[next(iter(_opened))]
        _opened[name] = opener(Path(path))
    codec = _opened[name]
    if texts is not None:
        encoded = [codec.encode(text) for text in json.loads(texts)]
        return {
            "ids": np.array([i for one, _ in encoded for i in one], np.int64),
            "spans": np.array([span for _, spans in encoded for span in spans], np.int64).reshape(-1, 2),
            "lengths": np.array([len(one) for one, _ in encoded], np.int64),
        }
    if ids is not None and lengths is not None:
        ends = np.cumsum(lengths)
        lists = [ids[end - length : end].tolist() for end, length in zip(ends, lengths, strict=True)]
        return json.dumps(codec.decode(lists, skip_special))
    return codec.about()


class ConfinedTokenizer:
    """A tokenizer that runs in a confined child; safe between threads."""

    def __init__(self, path: Path, readers: ReaderPool = READERS, name: str = "", field: str | None = None) -> None:
        """
        Args:
            path: file or folder that the child opens.
            readers: children that open it.
            name: for sentences; the folder's by default.
            field: of errors.

        Raises:
            UserError: it cannot be opened.
        """
        info = path.stat()
        self.path, self.name, self.field = path, name or path.absolute().parent.name, field
        self._readers = readers
        self._request = {"path": os.path.abspath(path), "identity": [info.st_size, info.st_mtime_ns]}
        self.about: dict[str, Any] = self._ask()
        self.size = int(self.about["size"])

    def _ask(self, **values: Any) -> Any:
        try:
            with self._readers.one() as reader:
                return reader.call(**self._request, **values)
        except ReaderEnded as error:
            raise UserError(f"{self.name}: {error}", field=self.field) from None
        except UserError as error:
            raise UserError(f"{self.name}: {error}", field=error.field or self.field) from None

    def encode(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its ids (t,) and the characters [start, end) of each (t, 2), both int32.

        Raises:
            UserError: it takes too long, makes far too many tokens, or fails.
        """
        encoded = self._ask(texts=json.dumps(list(texts)))
        ids, spans, lengths = encoded["ids"], encoded["spans"], encoded["lengths"]
        if lengths.shape != (len(texts),) or spans.shape != (len(ids), 2) or lengths.sum() != len(ids):
            raise UserError(f"{self.name}: the tokenizer's ids do not fit its texts", field=self.field)
        if len(ids) and (ids.min() < 0 or ids.max() >= 2**31 or spans.min() < 0):
            raise UserError(f"{self.name}: the tokenizer gave an id that is none", field=self.field)
        ends = np.cumsum(lengths)
        pairs = []
        for text, end, length in zip(texts, ends.tolist(), lengths.tolist(), strict=True):
            own = spans[end - length : end]
            if length > 64 + MOST_TOKENS_A_BYTE * len(text.encode("utf-8", "replace")):
                raise UserError(
                    f"{self.name}: the tokenizer makes {length:,} tokens of {len(text):,} characters: it was made to "
                    "do harm",
                    field=self.field,
                )
            if length and int(own.max()) > len(text):
                raise UserError(f"{self.name}: the tokenizer gave characters outside of the text", field=self.field)
            pairs.append((ids[end - length : end].astype(np.int32), own.astype(np.int32)))
        return pairs

    def decode(self, lists: Sequence[Sequence[int]], skip_special: bool = True) -> list[str]:
        """The text of each list of ids."""
        parts = [np.asarray(one, np.int64) for one in lists]
        ids = np.concatenate([np.empty(0, np.int64), *parts])
        lengths = np.array([len(one) for one in parts], np.int64)
        return [str(text) for text in json.loads(self._ask(ids=ids, lengths=lengths, skip_special=skip_special))]

    def texts(self, skip_special: bool = True) -> dict[int, str]:
        """Readable text of every vocabulary entry."""
        return dict(enumerate(self.decode([[i] for i in range(self.size)], skip_special)))
