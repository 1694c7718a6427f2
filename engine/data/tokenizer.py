"""Byte-level BPE tokenizer: training, loading, and the characters that each token stands for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.confined_tokenizer import END, ConfinedTokenizer

MOST_PLAIN_BYTES = 16 << 20
_BYTE_LEVEL = dict.fromkeys(("type", "add_prefix_space", "trim_offsets", "use_regex"))
_BPE_EXTRAS = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk")
_END_TOKEN = {"content": END, "special": True} | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)


@dataclass(frozen=True)
class Encoded:
    """A text as tokens; ``text[start[i]:end[i]]`` is what token i stands for.

    Tokens that hold parts of one character share that character's span.
    """

    ids: np.ndarray
    start: np.ndarray
    end: np.ndarray


def check_encodable(text: str) -> None:
    """Refuse lone surrogates, which no encoding can write down.

    Raises:
        UserError: the text holds one.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text holds a lone surrogate (U+{ord(text[error.start]):04X} at character "
            f"{error.start}); only valid Unicode text can be traced",
            field="text",
        ) from None


def _is_plain(path: Path) -> bool:
    """Whether a file is of the kind that ``TextTokenizer.train`` makes: no regular expression or rule of its own."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_PLAIN_BYTES + 1)
        about: dict[str, Any] = json.loads(data) if len(data) <= MOST_PLAIN_BYTES else {}
        model = about["model"]
        plain = all(about.get(key) is None for key in ("normalizer", "post_processor", "truncation", "padding"))
        plain = plain and all(about[key].keys() <= _BYTE_LEVEL.keys() for key in ("pre_tokenizer", "decoder"))
        plain = plain and all(about[key]["type"] == "ByteLevel" for key in ("pre_tokenizer", "decoder"))
        plain = plain and about["pre_tokenizer"].get("add_prefix_space") is False
        plain = plain and model["type"] == "BPE" and not any(model.get(key) for key in _BPE_EXTRAS)
        return bool(plain) and all(token == _END_TOKEN | {"id": token["id"]} for token in about["added_tokens"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


class TextTokenizer:
    """A byte-level BPE read from ``tokenizer.json``; every text round-trips."""

    def __init__(self, tokenizer: Tokenizer | ConfinedTokenizer) -> None:
        self._tokenizer = tokenizer
        self.end_id: int | None = (
            tokenizer.about["end_id"] if isinstance(tokenizer, ConfinedTokenizer) else tokenizer.token_to_id(END)
        )

    @classmethod
    def load(cls, path: Path) -> TextTokenizer:
        """The tokenizer of a file; any but the plain kind that ``train`` makes runs in a confined child.

        Raises:
            UserError: it is missing or cannot be read.
        """
        name = f"{path.absolute().parent.name}: {path.name}"
        if not path.is_file():
            raise UserError(f"{name} is missing, a text model needs it")
        if not _is_plain(path):
            return cls(ConfinedTokenizer(path))
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{name} cannot be read: {error}") from None

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int = 8192) -> TextTokenizer:
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=[END],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(self._tokenizer, ConfinedTokenizer):
            shutil.copyfile(self._tokenizer.path, path)
        else:
            self._tokenizer.save(str(path))

    @property
    def vocab_size(self) -> int:
        if isinstance(self._tokenizer, ConfinedTokenizer):
            return self._tokenizer.size
        size: int = self._tokenizer.get_vocab_size()
        return size

    def encode(self, text: str) -> Encoded:
        """Tokens of a text, without special tokens.

        Raises:
            UserError: the text holds lone surrogates, which no encoding can write down.
        """
        check_encodable(text)
        if isinstance(self._tokenizer, ConfinedTokenizer):
            ids, spans = self._tokenizer.encode([text])[0]
            return Encoded(ids, spans[:, 0], spans[:, 1])
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        spans = np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2)
        return Encoded(np.array(encoding.ids, dtype=np.int32), spans[:, 0], spans[:, 1])

    def decode(self, ids: list[int]) -> str:
        """The text of some tokens; bytes that are no character become U+FFFD."""
        if isinstance(self._tokenizer, ConfinedTokenizer):
            return self._tokenizer.decode([ids])[0]
        text: str = self._tokenizer.decode(ids)
        return text

    def spans(self, ids: list[int]) -> list[list[int]]:
        """Where in ``decode(ids)`` each token stands: [start, end) in characters.

        Tokens that hold parts of one character share its range; of bytes that are no character some have no width.
        Found from the front: the characters that are whole after each token; the bytes that follow belong to the next
        whole one.
        """
        text, begun, waiting = self.decode(ids), 0, 0
        ranges: list[list[int]] = []
        again = self.encode(text)
        if again.ids.tolist() == ids:
            return [list(span) for span in zip(again.start.tolist(), again.end.tolist(), strict=True)]
        for count in range(1, len(ids) + 1):
            waiting += 1  # tokens since the last whole character
            so_far = self.decode(ids[:count]) if count < len(ids) else text
            if so_far.endswith("\ufffd") and not text.startswith(so_far):
                continue  # a part of a character; which one, a later token says
            ranges += [[begun, len(so_far)]] * waiting
            begun, waiting = len(so_far), 0
        return ranges

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        if isinstance(self._tokenizer, ConfinedTokenizer):
            return [ids for ids, _ in self._tokenizer.encode(texts)]
        return [np.array(e.ids, dtype=np.int32) for e in self._tokenizer.encode_batch(texts)]

    @cached_property
    def token_texts(self) -> dict[int, str]:
        """Readable text of every vocabulary entry; bytes that are no character become U+FFFD."""
        if isinstance(self._tokenizer, ConfinedTokenizer):
            return self._tokenizer.texts()
        return {i: self._tokenizer.decode([i]) for i in range(self.vocab_size)}
