"""What runs in the confined child of a Hugging Face tokenizer: the library's own loading and encoding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer
from transformers.utils import logging

from tokenpaths.engine.adapters.huggingface.library import HuggingFaceError, first_line
from tokenpaths.engine.data.confined_tokenizer import served

logging.set_verbosity(logging.CRITICAL)


class HuggingFaceCodec:
    """The tokenizer of a folder; see ``Codec``.

    ``before`` are the tokens that it adds before a text (``<s>``).
    """

    def __init__(self, folder: Path) -> None:
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True, use_fast=True
            )
        except Exception as error:
            raise HuggingFaceError(f"the tokenizer cannot be opened: {first_line(error)}") from None
        if not getattr(tokenizer, "is_fast", False):
            raise HuggingFaceError(
                f"has a slow tokenizer ({type(tokenizer).__name__}), which does not say which characters a token "
                "stands for; a tokenizer.json is needed"
            )
        self._tokenizer = tokenizer
        bare = tokenizer("a", add_special_tokens=False)["input_ids"]
        full = tokenizer("a", add_special_tokens=True)["input_ids"]
        starts = [i for i in range(len(full)) if full[i : i + len(bare)] == bare]
        self.before: list[int] = full[: starts[0]] if starts and bare else []

    def about(self) -> dict[str, Any]:
        return {"size": len(self._tokenizer), "before": self.before}

    def encode(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        tokens = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return tokens["input_ids"], tokens["offset_mapping"]

    def decode(self, lists: list[list[int]], skip_special: bool) -> list[str]:
        return list(self._tokenizer.backend_tokenizer.decode_batch(lists, skip_special_tokens=skip_special))


def answer(**request: Any) -> Any:
    """See ``served``."""
    return served(HuggingFaceCodec, **request)
