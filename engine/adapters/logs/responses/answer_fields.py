"""Fields of an answer beside its decisions: label, text, and the vocabulary ids of prompt and answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.adapters.logs.pieces.piece_checks import MOST_TOKEN_ID
from tokenpaths.engine.base.errors import UserError

OTHER_IDS = "the token ids of {n} answer{s} {are} left out: they are not as many as decisions"
CUT_PREFIX = (
    "{n} answer{s} {are} without the rows of the first tokens, as vLLM's routed_experts_prompt_start and SGLang's "
    "routed_experts_start_len leave them out"
)
MORE_ROWS = (
    "the token ids of {n} answer{s} {are} left out: there are more decisions than tokens "
    "(rejected draft tokens, perhaps)"
)
NO_IDS = "{n} list{s} of token ids that {are} no whole numbers {are} left out"
NO_TEXT = "{n} text{s} that {are} no string {are} left out"
STARTS = ("routed_experts_prompt_start", "routed_experts_start_len")
Holder = dict[str, Any]


def start_of(holders: Sequence[Holder], start: Any = None) -> int:
    """The first token that has decisions, where an answer says that those before it were not asked for; ``start``: as
    Dynamo says it, beside the rows."""
    inner = [about for holder in holders if isinstance(about := holder.get("meta_info"), dict)]
    told = [start, *(holder.get(key) for holder in (*holders, *inner) for key in STARTS)]
    return next((first for first in told if type(first) is int and first > 0), 0)


def prompt_tokens(record: Holder) -> int | None:
    """Tokens of the prompt as a response counts them."""
    usage, about = record.get("usage"), record.get("meta_info")
    for held in (usage, about):
        count = held.get("prompt_tokens") if isinstance(held, dict) else None
        if type(count) is int and count > 0:
            return count
    return None


def answer_tokens(record: Holder) -> int | None:
    """Tokens of the answers as a response counts them, those of several choices together."""
    counts = [
        held.get("completion_tokens") for key in ("usage", "meta_info") if isinstance(held := record.get(key), dict)
    ]
    return next((count for count in counts if type(count) is int and count >= 0), None)


def read_label_field(record: Holder, remarks: list[str]) -> Any:
    """What stands under ``label``, or under a key that differs from it in case and blanks only."""
    key = "label" if "label" in record else next((key for key in record if key.strip().lower() == "label"), None)
    if key not in (None, "label"):
        remarks.append("key")
    return None if key is None else record[key]


def vocabulary_ids(holders: Sequence[Holder], keys: Sequence[str], where: str, remarks: list[str]) -> list[int] | None:
    """The vocabulary ids under the first of ``keys`` that is there."""
    for holder in holders:
        for key in keys:
            value = holder.get(key)
            if not value:
                continue
            if not (isinstance(value, list) and set(map(type, value)) == {int}):
                remarks.append(NO_IDS)
                continue
            if min(value) < 0 or max(value) > MOST_TOKEN_ID:
                wrong = next(token for token in value if not 0 <= token <= MOST_TOKEN_ID)
                raise UserError(
                    f"{where}: {key} holds {str(wrong)[:40]}; token ids are whole numbers from 0 to {MOST_TOKEN_ID}",
                    field="file",
                )
            return value
    return None


def token_ids(
    prompt: list[int] | None,
    answer: list[int] | None,
    count: int,
    begin: int,
    remarks: list[str],
    answered: int | None = None,
) -> np.ndarray | None:
    """(count,) vocabulary ids of the tokens with decisions, −1 where unknown; None if nothing is known.

    The last token of an answer was never fed back, so there is one row less than tokens, or as many. The tokens before
    ``begin`` have none. An answer may begin with its prompt, where the client asked for that (``echo``).

    Args:
        answered: tokens of an answer whose ids are not known, where they are counted.
    """
    if prompt is None and answer is None:
        return None
    if answer is None:
        prompt = prompt or []
        left = len(prompt) + (answered or 0) - begin - count
        if not begin and answered is not None and 1 < left <= len(prompt):
            remarks.append(CUT_PREFIX)
            begin = left - 1
        elif left > 1:  # by how many the prompt was cut depends on the answer
            remarks.append(OTHER_IDS)
            return None
        known = prompt[begin:][:count]
        return np.array(known + [-1] * (count - len(known)), dtype=np.int64)
    if prompt is None:
        if len(answer) - 1 > count:
            remarks.append(OTHER_IDS)
            return None
        return np.array([-1] * (count - len(answer) + 1) + answer[:-1], dtype=np.int64)
    echoed = len(answer) - begin - count in (0, 1) and answer[: len(prompt)] == prompt
    tokens = answer if echoed else prompt + answer
    left = len(tokens) - begin - count
    if left in (0, 1):
        return np.array(tokens[begin:][:count], dtype=np.int64)
    if not begin and 1 < left <= len(prompt):
        remarks.append(CUT_PREFIX)
        return np.array(tokens[left - 1 :][:count], dtype=np.int64)
    remarks.append(OTHER_IDS if left > 0 else MORE_ROWS)
    return None


def answer_text(choice: Holder, remarks: list[str]) -> str | None:
    message = choice.get("message")
    text = choice.get("text", message.get("content") if isinstance(message, dict) else None)
    if text is not None and not isinstance(text, str):
        remarks.append(NO_TEXT)
    return text if isinstance(text, str) else None
