"""Specialisation and co-activation of experts in a mixture of experts, one step at a time.

Valid for any run with hard decisions. Works on counts; the store supplies the tokens.

Shapes: n tokens in reading order, S steps, K slots, M modules that a step offers, I of them,
D domains (labels), X different token ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

import numpy as np
from jaxtyping import Bool, Float, Integer

LEAST_SEEN = 10
"""token ids seen less often are left out of vocabulary specialisation"""
RANDOM_PAIRS = 8_192
"""pairs of tokens in random order that tell how often tokens agree by their loads: 0.2 s at 64 layers × 8 of 256"""
_CHUNK = 4096
"""tokens of one product of one-hot rows or of one comparison of all pairs of slots: tens of megabytes at 64 × 256"""


def even_share(num_modules: int, top_k: int | float) -> float:
    """K/M: the share of any set of tokens that a module gets under even routing; the baseline of specialisation."""
    return top_k / num_modules


def domain_specialisation(
    counts_DM: Integer[np.ndarray, "D M"], num_tokens_D: Integer[np.ndarray, " D"]
) -> Float[np.ndarray, "D M"]:
    """N_{i,D} / N_D: share of a domain's tokens that choose module i. Each row sums to K; baseline K/M.

    A domain without tokens has zeros.
    """
    share_DM: np.ndarray = counts_DM / np.maximum(num_tokens_D, 1)[:, None]
    return share_DM


@dataclass(frozen=True)
class Vocabulary:
    """Which token ids were seen often enough, and what they chose."""

    token_ids: Integer[np.ndarray, " X"]
    """sorted"""
    seen: Integer[np.ndarray, " X"]
    """N_x"""
    counts: Integer[np.ndarray, "X M"]
    """N_{x,i}"""

    @property
    def share(self) -> Float[np.ndarray, "X M"]:
        """N_{x,i} / N_x; each row sums to K, baseline K/M."""
        share: np.ndarray = self.counts / np.maximum(self.seen, 1)[:, None]
        return share


def domain_preference(
    counts_DM: Integer[np.ndarray, "D M"], num_tokens_D: Integer[np.ndarray, " D"]
) -> Float[np.ndarray, "D M"]:
    """N_{i,D} / N_D less the share of all other domains' tokens that choose i: a module that is merely busy has 0.

    Where there is no other domain, N_{i,D} / N_D.
    """
    rest_DM = (counts_DM.sum(axis=0) - counts_DM) / np.maximum(num_tokens_D.sum() - num_tokens_D, 1)[:, None]
    above_DM: np.ndarray = domain_specialisation(counts_DM, num_tokens_D) - rest_DM
    return above_DM


def vocabulary_specialisation(
    ids_nK: Integer[np.ndarray, "n K"],
    token_ids_n: Integer[np.ndarray, " n"],
    num_modules: int,
    least: int = LEAST_SEEN,
) -> Vocabulary:
    """N_{x,i} / N_x: share of the occurrences of token id x that choose module i, of ids seen ≥ ``least`` times.

    ``token_ids`` are those of the input token or of the one that follows it; negative ones are unknown and left out.
    """
    has_id = token_ids_n >= 0
    ids_nK, token_ids_n = ids_nK[has_id], token_ids_n[has_id]
    kinds_X, kind_n, seen_X = np.unique(token_ids_n, return_inverse=True, return_counts=True)
    often_X = seen_X >= least
    place_X = np.cumsum(often_X) - 1
    taken = often_X[kind_n]
    keys = place_X[kind_n[taken]][:, None] * num_modules + ids_nK[taken].astype(np.int64)
    counts = np.bincount(keys.reshape(-1), minlength=int(often_X.sum()) * num_modules)
    return Vocabulary(kinds_X[often_X], seen_X[often_X], counts.reshape(-1, num_modules).astype(np.int64))


def next_token_ids(
    token_ids_n: Integer[np.ndarray, " n"], follows_n: Bool[np.ndarray, " n"]
) -> Integer[np.ndarray, " n"]:
    """The id of the true next token of each token; −1 at the end of a sample.

    ``follows`` says of each token whether it stands right after the one before it in the same sample.
    """
    following = np.full(len(token_ids_n), -1, dtype=np.int64)
    following[:-1] = np.where(follows_n[1:], token_ids_n[1:], -1)
    return following


def chosen_together(
    ids_nK: Integer[np.ndarray, "n K"], modules_I: Integer[np.ndarray, " I"]
) -> Integer[np.ndarray, "I I"]:
    """N_ij: tokens that choose modules i and j, both of ``modules_I`` (ascending), at one step, all pairs; the diagonal
    is N_i."""
    num = len(modules_I)
    together = np.zeros((num, num), dtype=np.int64)
    place_M = np.full(max(ids_nK.max(initial=0), modules_I.max(initial=0)) + 1, num)
    place_M[modules_I] = np.arange(num)
    for start in range(0, len(ids_nK), _CHUNK):
        part = place_M[ids_nK[start : start + _CHUNK]]
        chosen = np.zeros((len(part), num + 1), dtype=np.float32)  # all others share the last column
        np.put_along_axis(chosen, part, 1.0, axis=1)
        chosen = chosen[:, :num]
        # Whole numbers below 2**24: exact in single precision.
        together += (chosen.T @ chosen).astype(np.int64)
    return together


def co_activation(together_II: Integer[np.ndarray, "I I"]) -> Float[np.ndarray, "I I"]:
    """N_ij / N_i: share of the tokens of module i that choose j as well, over all pairs chosen together.

    Rows i; the diagonal is 0, for no token chooses a module twice; over all modules a row sums to K − 1, that of a dead
    module to 0. Under even, independent choices each entry is (K − 1)/(M − 1).
    """
    pairs = together_II.astype(np.float64)
    np.fill_diagonal(pairs, 0.0)
    pairs /= np.maximum(np.diag(together_II), 1)[:, None]
    return pairs


def even_co_activation(num_modules: int, top_k: int) -> float:
    """(K − 1)/(M − 1): co-activation where all pairs are equally likely; 0 where there is one module only."""
    return (top_k - 1) / (num_modules - 1) if num_modules > 1 else 0.0


def even_co_activation_of(num_modules: int, used_n: Integer[np.ndarray, " n"]) -> float:
    """``even_co_activation`` where token n uses k_n modules: E[k(k − 1)] / (E[k] (M − 1))."""
    used = used_n.astype(np.float64)
    if num_modules < 2 or not used.sum():
        return 0.0
    return float((used * (used - 1)).sum() / (used.sum() * (num_modules - 1)))


def co_activation_by_load(
    together_II: Integer[np.ndarray, "I I"], num_tokens: int, module: int
) -> Float[np.ndarray, " I"]:
    """N_ij / N_i of row i = ``module``, which has tokens, as the loads alone would have it; its own entry is 0.

    The odds of each other module are those among all tokens, times one factor for all, so that tokens of i choose as
    many others as they do. Sets drawn at random, of given sizes and loads, come close to it; of equal loads it is
    (K − 1)/(M − 1).
    """
    load_I = np.delete(np.diag(together_II), module) / num_tokens
    wanted = np.delete(together_II[module], module).sum() / together_II[module, module]
    low, high = -40.0, 40.0

    def shares(log_factor: float) -> Float[np.ndarray, " I"]:
        odds_I = np.exp(log_factor) * load_I
        chosen_I: np.ndarray = np.divide(odds_I, 1 - load_I + odds_I, out=np.zeros_like(odds_I), where=odds_I > 0)
        return chosen_I

    for _ in range(60):  # the sum grows with the factor
        middle = (low + high) / 2
        low, high = (middle, high) if shares(middle).sum() < wanted else (low, middle)
    row_I: np.ndarray = np.insert(shares(high), module, 0.0)
    return row_I


@dataclass(frozen=True)
class Repetition:
    """How often a token and the next one of its sample agree, per step."""

    num_pairs: int
    pairs: Float[np.ndarray, " S"]
    """those whose decisions are both known"""
    first: Float[np.ndarray, " S"]
    """P(top1_t = top1_{t+1})"""
    any: Float[np.ndarray, " S"]
    """P(S_t ∩ S_{t+1} ≠ ∅)"""


def repetition(
    ids_nSK: Integer[np.ndarray, "n S K"],
    follows_n: Bool[np.ndarray, " n"],
    unknown_nS: Bool[np.ndarray, "n S"] | None = None,
    used_nSK: Bool[np.ndarray, "n S K"] | None = None,
) -> Repetition:
    """Consecutive repetition over all pairs of neighbouring tokens of a sample; 0 where there is none.

    Slot 0 of ``ids`` is the one with the largest weight; ``follows`` as in ``next_token_ids``. Pairs with an
    ``unknown`` decision, or with a token that uses no module, do not count at that step; slots that are not ``used``
    never agree.
    """
    later = np.flatnonzero(follows_n)
    num_steps = ids_nSK.shape[1]
    if used_nSK is not None:
        nothing = np.asarray(~used_nSK.any(axis=2))
        unknown_nS = nothing if unknown_nS is None else np.asarray(unknown_nS | nothing)
    first, any_, pairs_S = np.zeros(num_steps), np.zeros(num_steps), np.zeros(num_steps)
    for start in range(0, len(later), _CHUNK):
        here = later[start : start + _CHUNK]
        after, before = ids_nSK[here], ids_nSK[here - 1]
        known = np.ones(after.shape[:2], dtype=bool)
        if unknown_nS is not None:
            known = ~(unknown_nS[here] | unknown_nS[here - 1])
        first += ((after[:, :, 0] == before[:, :, 0]) & known).sum(axis=0)
        if used_nSK is not None:  # ids that no other token has
            before = np.where(used_nSK[here - 1], before.astype(np.int64), -1)
        any_ += (common(before, after).astype(bool) & known).sum(axis=0)
        pairs_S += known.sum(axis=0)
    of_S = np.maximum(pairs_S, 1)
    return Repetition(len(later), pairs_S, first / of_S, any_ / of_S)


def repetition_by_load(
    ids_nSK: Integer[np.ndarray, "n S K"],
    unknown_nS: Bool[np.ndarray, "n S"] | None = None,
    used_nSK: Bool[np.ndarray, "n S K"] | None = None,
    seed: int = 0,
) -> Repetition:
    """``repetition`` of the same tokens in random order, so of neighbours that have nothing but their loads in common.

    Over about ``RANDOM_PAIRS`` pairs: at most 0.6 percentage points off (one standard error).
    """
    rng, num = np.random.default_rng(seed), len(ids_nSK)
    orders = [rng.permutation(num)[: RANDOM_PAIRS + 1] for _ in range(max(1, RANDOM_PAIRS // max(num, 1)))]
    follows_n = np.concatenate([np.arange(len(order)) > 0 for order in orders])
    order_n = np.concatenate(orders)
    unknown, used = (None if values is None else values[order_n] for values in (unknown_nS, used_nSK))
    return repetition(ids_nSK[order_n], follows_n, unknown, used)


def repetition_baselines(num_modules: int, top_k: int) -> tuple[float, float]:
    """What even, independent choices give: 1/M for the first choice, 1 − C(M−K, K)/C(M, K) for any (1 if 2K > M)."""
    if 2 * top_k > num_modules:
        return 1 / num_modules, 1.0
    return 1 / num_modules, 1 - comb(num_modules - top_k, top_k) / comb(num_modules, top_k)


def any_repetition_of(
    num_modules: int, used_n: Integer[np.ndarray, " n"], pairs: tuple[np.ndarray, np.ndarray]
) -> float:
    """Mean of 1 − C(M − k, k′)/C(M, k′) over ``pairs`` of tokens (n,) that use k and k′ modules, both at least one."""
    most = int(used_n.max(initial=0)) + 1
    kinds, times = np.unique(used_n[pairs[0]].astype(np.int64) * most + used_n[pairs[1]], return_counts=True)
    total, seen = 0.0, 0
    for kind, count in zip(kinds.tolist(), times.tolist(), strict=True):
        one, other = divmod(kind, most)
        if one and other:
            total += count * (1 - comb(num_modules - one, other) / comb(num_modules, other))
            seen += count
    return total / max(seen, 1)


def common(
    one_nSK: Integer[np.ndarray, "n S K"], other_nSK: Integer[np.ndarray, "n S K"]
) -> Integer[np.ndarray, "n S"]:
    """|S ∩ S'| of each token and step; no tuple names a module twice."""
    shared = np.zeros(one_nSK.shape[:2], dtype=np.int64)
    for slot in range(other_nSK.shape[2]):
        shared += (one_nSK == other_nSK[:, :, slot : slot + 1]).any(axis=2)
    return shared
