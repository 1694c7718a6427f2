"""The search of text dreams: real tokens that make an objective large.

The gradient of the objective with respect to the embeddings estimates, for every position and vocabulary entry, the
gain of a swap; a forward pass evaluates the best few, and the best of those is kept if it improves the objective. So
every intermediate text is real, and every number is measured on real tokens.

Shapes: B texts, L tokens each, V vocabulary, D width.
Source: HotFlip (Ebrahimi et al., 2018) and AutoPrompt (Shin et al., 2020) for the first-order swaps; our own otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.dream.objectives import Fluency, Objective
from tokenpaths.engine.dream.observed_pass import Need, look
from tokenpaths.engine.dream.settings import TextSettings
from tokenpaths.engine.dream.transforms import generator_of
from tokenpaths.engine.models.family import RoutedModel
from tokenpaths.engine.models.hmodel.hmodel import HModel

MARKS = frozenset(".,;:!?")
POOL = 8
"""of so many times as many good swaps as are tried, the second half of the tried ones is drawn"""
PASS_TOKENS = 2048
"""in one pass: half a second of one core for a shipped model, so that who asks for a stop need not wait long"""


def embedding_of(model: RoutedModel) -> nn.Embedding:
    """The table that turns token ids into vectors."""
    table = model.input_layers["text"].embed if isinstance(model, HModel) else model.embed
    assert isinstance(table, nn.Embedding), "every text model has one"
    return table


@contextmanager
def recorded_embeddings(model: RoutedModel) -> Iterator[list[Tensor]]:
    """A list that receives the embedded inputs of each forward pass, as leaves that collect gradients."""
    embeddings: list[Tensor] = []

    def hook(layer: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        embeddings.append(output.detach().requires_grad_())
        return embeddings[-1]

    handle = embedding_of(model).register_forward_hook(hook)
    try:
        yield embeddings
    finally:
        handle.remove()


def worth(
    model: RoutedModel, ids_BL: Int[Tensor, "B L"], objective: Objective, fluency: int | float
) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
    """Mean of the wanted decisions, and the same plus ``fluency`` times the text's mean log probability."""
    need = objective.need
    seen = look(model, ids_BL, [Need(need.steps, need.output or fluency > 0)] * len(ids_BL))
    value = torch.stack([objective.value(s).float() / objective.terms for s in seen])
    if not fluency:
        return value, value
    return value, value + fluency * torch.stack([Fluency().value(s) for s in seen])


def texts_a_pass(length: int) -> int:
    """How many texts of so many tokens go through the model at once."""
    return max(1, PASS_TOKENS // length)


def readable_tokens(tokenizer: TextTokenizer, whole_words: bool = True) -> Bool[np.ndarray, " V"]:
    """Which vocabulary entries a dream may use: with ``whole_words`` words that begin one, numbers and plain marks.

    A word stands for itself where it starts with a space or its script puts none between words.
    """
    allowed = np.zeros(tokenizer.vocab_size, dtype=bool)
    for index, text in tokenizer.token_texts.items():
        word = text.strip()
        clean = bool(word) and "\ufffd" not in text and "<|" not in text and text.isprintable()
        if not clean:
            continue
        allowed[index] = not whole_words or _is_word(text, word) or text in MARKS
    return allowed


def _is_word(text: str, word: str) -> bool:
    """``word`` is ``text`` without the spaces around it."""
    if not word.isascii():
        return word.isalpha()
    return text.startswith(" ") and (word.isdigit() or (word.isalpha() and (len(word) > 1 or word in "aAI")))


class TextDreams:
    """B texts that are improved side by side, one swap a round each."""

    def __init__(
        self,
        model: RoutedModel,
        tokenizer: TextTokenizer,
        objective: Objective,
        starts: Int[Tensor, "B L"],
        settings: TextSettings,
        seed: int = 0,
        fixed: Sequence[int] = (),
    ) -> None:
        self.model, self.tokenizer, self.objective = model, tokenizer, objective
        self.settings, self.seed = settings, seed
        self.device = model.device
        self.allowed_V = torch.from_numpy(readable_tokens(tokenizer, settings.whole_words)).to(self.device)
        self.free_L = torch.ones(starts.shape[1], dtype=torch.bool, device=self.device)
        self.free_L[list(fixed)] = False
        self.ids = starts.to(self.device, torch.long, copy=True)
        parts = list(self._worths(self.ids))
        self.wanted, self.total = (torch.cat(of_parts) for of_parts in zip(*parts, strict=True))
        self.iteration = 0
        self.curve = [self.wanted]
        self.stuck = 0
        """rounds since the last swap"""

    @property
    def finished(self) -> bool:
        patience = 4 * POOL
        return self.iteration >= self.settings.iterations or self.stuck >= patience

    def _worths(self, ids_NL: Int[Tensor, "N L"]) -> Iterator[tuple[Tensor, Tensor]]:
        """``worth`` of texts, a pass after the other."""
        for part in ids_NL.split(texts_a_pass(ids_NL.shape[1])):
            with torch.no_grad():
                worths = worth(self.model, part, self.objective, self.settings.fluency)
            yield worths

    def gains(self, texts: slice = slice(None)) -> Float[Tensor, "B L V"]:
        """First-order gain of each word at each position of some texts or all: (E_v − E_x) · ∂objective/∂E_x."""
        with recorded_embeddings(self.model) as embeddings:
            _, total = worth(self.model, self.ids[texts], self.objective, self.settings.fluency)
        (gradient_BLD,) = torch.autograd.grad(total.sum(), embeddings[0])
        table_VD = embedding_of(self.model).weight
        now_BL = (gradient_BLD * embeddings[0].detach()).sum(dim=-1)
        return gradient_BLD @ table_VD.T - now_BL.unsqueeze(-1)

    def round(self) -> None:
        """One swap for every text that finds one that gains."""
        for _ in self.round_in_parts():
            pass

    def round_in_parts(self) -> Iterator[None]:
        """``round``, with a pause after every pass; nothing changes before the last, so a round can be dropped."""
        tried: list[list[Tensor]] = []
        a_pass = texts_a_pass(self.ids.shape[1])
        for start in range(0, len(self.ids), a_pass):
            texts = slice(start, start + a_pass)
            gains_BLV = self.gains(texts)
            gains_BLV[:, ~self.free_L] = float("-inf")
            gains_BLV[:, :, ~self.allowed_V] = float("-inf")
            gains_BLV.scatter_(2, self.ids[texts].unsqueeze(2), float("-inf"))
            for b, gains in enumerate(gains_BLV, start):
                tried.append(self._candidates(b, gains.flatten()))
                yield
        results: list[tuple[Tensor, Tensor]] = []
        if any(tried):
            ids = torch.stack([ids for swaps in tried for ids in swaps])
            for part in self._worths(ids):
                results.append(part)
                yield
        self.iteration += 1
        self.stuck += 1
        if results:
            value, total = (torch.cat(of_parts) for of_parts in zip(*results, strict=True))
            owner = torch.tensor([b for b, swaps in enumerate(tried) for _ in swaps], device=self.device)
            for b in range(len(tried)):
                own = (owner == b).nonzero().squeeze(1)
                if len(own) and float(total[own].max()) > float(self.total[b]):
                    best = own[total[own].argmax()]
                    self.ids[b], self.stuck = ids[best], 0
                    self.wanted, self.total = (x.clone() for x in (self.wanted, self.total))
                    self.wanted[b], self.total[b] = value[best], total[best]
        self.curve.append(self.wanted)

    def _candidates(self, b: int, gains: Float[Tensor, " LV"]) -> list[Int[Tensor, " L"]]:
        """The most promising swaps, and as many drawn from those behind them; only texts that read back as written."""
        count, vocabulary = self.settings.candidates, len(self.allowed_V)
        order = gains.topk(min(POOL * count, int(torch.isfinite(gains).sum()))).indices
        first = max(1, count // 2)
        generator = generator_of(self.seed, b, self.iteration)
        drawn = first + torch.randperm(max(0, len(order) - first), generator=generator)[: count - first]
        texts = []
        for place in torch.cat([order[:first], order[drawn.to(order.device)]]).tolist():
            position, word = divmod(place, vocabulary)
            swapped = self.ids[b].clone()
            swapped[position] = word
            if reads_back(self.tokenizer, swapped):
                texts.append(swapped)
        return texts

    def curves(self) -> Float[Tensor, "I B"]:
        """Mean of the wanted decisions of each text, before the first round and after each."""
        return torch.stack(self.curve).cpu()

    def state(self) -> dict[str, Tensor]:
        """All that changes from round to round."""
        return {
            "ids": self.ids.cpu(),
            "wanted": self.wanted.cpu(),
            "total": self.total.cpu(),
            "curve": self.curves(),
            "iteration": torch.tensor([self.iteration, self.stuck]),
        }

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from ``state``."""
        self.ids, self.wanted, self.total = (state[name].to(self.device) for name in ("ids", "wanted", "total"))
        self.curve = list(state["curve"].to(self.device))
        self.iteration, self.stuck = state["iteration"].tolist()


def written(tokenizer: TextTokenizer, ids: Int[Tensor, " L"]) -> str:
    """The text of some tokens."""
    return tokenizer.decode(ids.tolist())


def reads_back(tokenizer: TextTokenizer, ids: Int[Tensor, " L"]) -> bool:
    """Whether the text of these tokens is cut into these tokens again: so anyone can paste it and see the same."""
    text = written(tokenizer, ids)
    return "\ufffd" not in text and tokenizer.encode(text).ids.tolist() == ids.tolist()
