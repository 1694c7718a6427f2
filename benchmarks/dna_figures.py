"""Figures of the DNA paper's claims, worked out from the choices of trained and untrained networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from benchmarks.dna_choices import Observed
from benchmarks.resampling import interval, tenths_apart, weighted_correlation, weighted_mean
from tokenpaths.engine.analysis.association import nmi
from tokenpaths.engine.analysis.load import effective_top_k
from tokenpaths.engine.analysis.patches import patch_contrast
from tokenpaths.engine.analysis.path_statistics import Histogram, PathLikeness, canonical, unique_rows
from tokenpaths.engine.analysis.power_law import judge
from tokenpaths.engine.analysis.words import CLASSES, KINDS, of_kind, word_class
from tokenpaths.engine.data.images import REGIONS, model_view, patch_regions
from tokenpaths.engine.data.sources.sample import Sample
from tokenpaths.engine.edits.prepared import PreparedSet
from tokenpaths.engine.tracing.loaded_model import LoadedModel

COMMON = 100
"""most frequent vocabulary entries that count as common words"""
SHUFFLES = 50
FIFTHS = 5


# Effects ------------------------------------------------------------------------------------------------------


def effect(
    statistic: Callable[[Observed, np.ndarray], float], trained: Observed, twins: list[Observed], draws: int = 1000
) -> dict[str, Any]:
    """A statistic with its interval, and what each untrained network gives."""
    value, low, high = interval(lambda counts: statistic(trained, counts), trained.num_samples, draws=draws)
    ones = np.ones(trained.num_samples, dtype=np.int64)
    return {"value": value, "low": low, "high": high, "untrained": [statistic(twin, ones) for twin in twins]}


def alike(
    observed: Observed, looks_nC: Float[np.ndarray, "n C"], counts: np.ndarray, mask: np.ndarray | None = None
) -> float:
    """How alike in looks tokens of a path are: 1 − d / D.

    d is the mean squared distance of two tokens on one path but of different images, averaged over paths by their
    tokens, D that of any two of different images, whatever the ``mask``: 0 for paths that do not sort by looks, 1
    for equal looks.
    """
    paths = PathLikeness(observed.path_n, observed.sample_n, int(observed.path_n.max()) + 1)
    return paths.of(looks_nC, counts, mask).value


def diversity(observed: Observed) -> list[float]:
    """Effective top-k of each step, of modules that do work; at most √M."""
    return [effective_top_k(counts) for counts in observed.visits.sum(axis=0)]


def attention_by_step(observed: Observed, attention_M: Bool[np.ndarray, " M"], counts: np.ndarray) -> np.ndarray:
    """(S,) share of attention among the visits to modules that do work."""
    visits = np.einsum("b,bsm->sm", counts, observed.visits)
    shares: np.ndarray = visits[:, attention_M].sum(axis=1) / visits.sum(axis=1)
    return shares


def kinds_of_modules(trained: Observed, twins: list[Observed], attention_M: Bool[np.ndarray, " M"]) -> dict[str, Any]:
    """Where attention is chosen, of a network whose modules are attention or MLP."""
    half = trained.active.shape[0] // 2

    def early(observed: Observed, counts: np.ndarray) -> float:
        shares = attention_by_step(observed, attention_M, counts)
        return float(shares[:half].mean() - shares[-half:].mean())

    def steps(observed: Observed) -> list[float]:
        ones = np.ones(observed.num_samples, dtype=np.int64)
        return attention_by_step(observed, attention_M, ones).tolist()

    return {
        "attention_by_step": {"value": steps(trained), "untrained": [steps(twin) for twin in twins]},
        "attention_early": effect(early, trained, twins),
    }


def diversity_gain(observed: Observed, counts: np.ndarray) -> float:
    """Effective top-k of the last step less that of the first."""
    first, last = (counts @ observed.visits[:, step] for step in (0, -1))
    return effective_top_k(last) - effective_top_k(first)


def repeats_attend_more(observed: Observed) -> Float[np.ndarray, " b"]:
    """Share of its sample's tokens that a module sees at a repeated visit, less that at a first one; by sample.

    NaN where a sample repeats no visit. A module that sees all tokens attends fully, one that sees few sparsely.
    """
    steps, width = observed.active.shape
    ids = observed.ids_nSK
    step_S1 = np.arange(steps)[:, None]
    working = observed.active[step_S1, ids]
    tokens_b = np.bincount(observed.sample_n, minlength=observed.num_samples)
    seen = observed.visits[observed.sample_n[:, None, None], step_S1, ids] / tokens_b[observed.sample_n][:, None, None]
    met = np.zeros((len(ids), width), dtype=bool)
    rows = np.arange(len(ids))[:, None]
    sums, counts = np.zeros((2, observed.num_samples)), np.zeros((2, observed.num_samples))
    for step in range(steps):
        again = met[rows, ids[:, step]] & working[:, step]
        for which, mask in enumerate((working[:, step] & ~again, again)):
            sums[which] += np.bincount(observed.sample_n, (seen[:, step] * mask).sum(axis=1), observed.num_samples)
            counts[which] += np.bincount(observed.sample_n, mask.sum(axis=1), observed.num_samples)
        for slot in range(ids.shape[2]):
            met[rows[:, 0], ids[:, step, slot]] |= working[:, step, slot]
    means = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    difference: np.ndarray = means[1] - means[0]
    return difference


def law(observed: Observed) -> dict[str, Any]:
    """Whether the counts of paths follow a power law (Clauset, Shalizi and Newman, 2009)."""
    counts = np.bincount(observed.path_n)
    found = judge(Histogram.of(counts), draws=50)
    beside = found.beside
    tail = counts[counts >= found.law.x_min] if found.law else counts[:0]
    return {
        "slope": found.law and -1 / (found.law.alpha - 1),
        "tail_of_paths": len(tail) / len(counts),
        "tail_of_tokens": float(tail.sum() / counts.sum()),
        "alpha": found.law and found.law.alpha,
        "x_min": found.law and found.law.x_min,
        "tail": found.law and found.law.num_tail,
        "p_value": found.p_value,
        "against_lognormal": beside and beside.ratio,
        "against_lognormal_p": beside and beside.p_value,
    }


def usage(observed: Observed) -> dict[str, Any]:
    """How many modules no token ever visits: of those each step offers, and of all."""
    used = observed.visits.sum(axis=0) > 0
    offered = observed.active
    return {
        "dead_at_a_step": float((offered & ~used).sum() / offered.sum()),
        "dead": int((offered.any(axis=0) & ~used.any(axis=0)).sum()),
        "modules": int(offered.any(axis=0).sum()),
    }


def known_by_paths(trained: Observed, twins: list[Observed], label_n: np.ndarray) -> dict[str, Any]:
    """NMI of path and label above that of shuffles, (NMI − shuffled) / (1 − shuffled), of all networks alike.

    A sample's labels are given to another sample whole: its own label, or those of all places of an image, so that what
    the place alone tells is no knowledge of the path.
    """
    label_b = np.zeros(trained.num_samples, dtype=np.int64)
    label_b[trained.sample_n] = label_n
    of_places = None if (label_b[trained.sample_n] == label_n).all() else label_n.reshape(trained.num_samples, -1)
    networks = (trained, *twins)
    rng = np.random.default_rng(0)
    nulls = []
    for _ in range(SHUFFLES):
        giver_b = rng.permutation(trained.num_samples)
        drawn = label_b[giver_b][trained.sample_n] if of_places is None else of_places[giver_b].ravel()
        nulls.append([nmi(one.path_n, drawn) for one in networks])
    null = np.array(nulls)
    chance = null.mean(axis=0)
    observed = np.array([nmi(one.path_n, label_n) for one in networks])
    above = (observed - chance) / (1 - chance)
    return {
        "value": float(above[0]),
        "p_value": float((1 + (null[:, 0] >= observed[0] - 1e-12).sum()) / (1 + SHUFFLES)),
        "untrained": above[1:].tolist(),
    }


def common_figures(trained: Observed, twins: list[Observed]) -> dict[str, Any]:
    """What images and texts are both asked."""
    of = trained.by_sample
    compute_b, reuse_b = of(trained.compute_n), of(trained.reuse_n)
    repeats_of = {id(one): repeats_attend_more(one) for one in (trained, *twins)}
    found: dict[str, Any] = {
        "samples": trained.num_samples,
        "tokens": len(trained.sample_n),
        "twins": len(twins),
        "diversity": {"value": diversity(trained), "untrained": [diversity(twin) for twin in twins]},
        "most_diverse": float(trained.active.any(axis=0).sum() ** 0.5),
        "diversity_gain": effect(diversity_gain, trained, twins),
        "law": law(trained),
        "untrained_law": [law(twin) for twin in twins[:1]],
        "usage": usage(trained),
        "accuracy_of_samples": effect(lambda o, c: weighted_mean(trained.correct_b, c), trained, []),
        "loss_of_samples": effect(lambda o, c: weighted_mean(trained.loss_b, c), trained, []),
        "reuse_skewness": effect(lambda o, c: _moments(reuse_b, c)[1], trained, []),
        "reuse_kurtosis": effect(lambda o, c: _moments(reuse_b, c)[2], trained, []),
        "reuse": effect(lambda o, c: weighted_mean(o.by_sample(o.reuse_n), c), trained, twins),
        "repeats_attend_more": effect(lambda o, c: weighted_mean(repeats_of[id(o)], c), trained, twins),
        "reuse_b": reuse_b.round(4).tolist(),
    }
    if compute_b.std() > 0:
        found |= {
            "compute": effect(lambda o, c: weighted_mean(o.by_sample(o.compute_n), c), trained, twins),
            "compute_spread": effect(lambda o, c: _moments(compute_b, c)[0], trained, []),
            "compute_skewness": effect(lambda o, c: _moments(compute_b, c)[1], trained, []),
            "compute_kurtosis": effect(lambda o, c: _moments(compute_b, c)[2], trained, []),
            "skip_and_reuse": effect(
                lambda o, c: weighted_correlation(1 - o.by_sample(o.compute_n), o.by_sample(o.reuse_n), c),
                trained,
                twins,
            ),
        }
    visited_b = (trained.visits > 0).sum(axis=(1, 2)).astype(float)
    keys = {"reuse": reuse_b, "visited": visited_b} | ({"compute": compute_b} if compute_b.std() > 0 else {})
    for name, key in keys.items():
        for what, values in (("accuracy", trained.correct_b), ("confidence", trained.confidence_b)):
            lowest, highest = tenths_apart(key, values, np.ones(len(key), dtype=np.int64))
            apart = interval(lambda c, k=key, v=values: np.subtract(*tenths_apart(k, v, c)), len(key))
            found[f"{what}_by_{name}"] = {"lowest": lowest, "highest": highest, "low": apart[1], "high": apart[2]}
    return found


def _moments(values: np.ndarray, counts: np.ndarray) -> tuple[float, float, float]:
    """Standard deviation, skewness and excess kurtosis."""
    mean = weighted_mean(values, counts)
    second, third, fourth = (weighted_mean((values - mean) ** power, counts) for power in (2, 3, 4))
    return second**0.5, third / second**1.5, fourth / second**2 - 3


# Images -------------------------------------------------------------------------------------------------------


@dataclass
class Looks:
    """What is seen in the patches of all images, in the order of the tokens."""

    colour_nC: Float[np.ndarray, "n 3"]
    """mean colour, 0 … 1"""
    contrast_n: Float[np.ndarray, " n"]
    region_n: Int[np.ndarray, " n"]
    """index into REGIONS; −1 without a box"""
    label_n: Int[np.ndarray, " n"]
    object_b: Float[np.ndarray, " b"]
    """share of the image that its object's box takes"""


def looks_of(samples: list[Sample], model: LoadedModel) -> Looks:
    rows, cols = model.grid
    images = np.stack([model_view(s.image, model.image_size) for s in samples])
    count, side, _, _ = images.shape
    patches = images.reshape(count, rows, side // rows, cols, side // cols, 3)
    regions = np.stack(
        [np.full(rows * cols, -1) if s.mask is None else patch_regions(s.mask, (rows, cols)).ravel() for s in samples]
    )
    labels = np.unique([str(s.label) for s in samples], return_inverse=True)[1]
    covered = np.array([np.nan if s.mask is None else float((s.mask > 0).mean()) for s in samples])
    return Looks(
        patches.mean(axis=(2, 4)).reshape(-1, 3) / 255.0,
        patch_contrast(images, rows, cols).ravel(),
        regions.ravel(),
        np.repeat(labels.reshape(-1), rows * cols),
        covered,
    )


def image_figures(model: LoadedModel, samples: list[Sample], trained: Observed, twins: list[Observed]) -> dict:
    looks = looks_of(samples, model)
    common = trained.frequent(0.5, among=trained.shared)
    rare = trained.shared & ~common
    mean_contrast = trained.by_sample(looks.contrast_n)
    found = common_figures(trained, twins) | {
        "shared": {"value": float(trained.shared.mean()), "untrained": [float(twin.shared.mean()) for twin in twins]},
        "alike": effect(lambda o, c: alike(o, looks.colour_nC, c), trained, twins, draws=400),
        "alike_common": effect(lambda o, c: alike(o, looks.colour_nC, c, common), trained, [], draws=400),
        "alike_rare": effect(lambda o, c: alike(o, looks.colour_nC, c, rare), trained, [], draws=400),
        "class": known_by_paths(trained, twins, looks.label_n),
        "region": known_by_paths(trained, twins, looks.region_n),
        "object_and_reuse": effect(
            lambda o, c: weighted_correlation(looks.object_b, o.by_sample(o.reuse_n), c), trained, twins
        ),
    }
    if "compute" in found:
        for other in ("object", "background"):
            found[f"boundary_minus_{other}"] = effect(
                lambda o, c, other=other: weighted_mean(_region_difference(o, looks, other), c), trained, twins
            ) | {"images": int(np.isfinite(_region_difference(trained, looks, other)).sum())}
        found["contrast_and_compute_of_patches"] = effect(
            lambda o, c: weighted_correlation(looks.contrast_n, o.compute_n, c[o.sample_n]), trained, twins
        )
        found["contrast_and_compute_of_images"] = effect(
            lambda o, c: weighted_correlation(mean_contrast, o.by_sample(o.compute_n), c), trained, twins
        )
    return found


def _region_difference(observed: Observed, looks: Looks, other: str) -> Float[np.ndarray, " b"]:
    """Compute of boundary patches less that of others, in each image; NaN where it lacks one of them."""
    means = []
    for name in ("boundary", other):
        mask = looks.region_n == REGIONS.index(name)
        sums = np.bincount(observed.sample_n[mask], observed.compute_n[mask], minlength=observed.num_samples)
        count = np.bincount(observed.sample_n[mask], minlength=observed.num_samples)
        means.append(np.where(count > 0, sums / np.maximum(count, 1), np.nan))
    return means[0] - means[1]


# Texts --------------------------------------------------------------------------------------------------------


def text_figures(
    model: LoadedModel, samples: list[Sample], data: PreparedSet, trained: Observed, twins: list[Observed]
) -> dict:
    token_n = np.concatenate([batch.raw[batch.valid].numpy() for batch in data.batches])
    texts = model.token_texts()
    names = tuple(texts.get(i, "") for i in range(int(token_n.max()) + 1))
    kinds = {kind: of_kind(names, kind)[token_n] for kind in KINDS}
    common = np.isin(token_n, np.argsort(-np.bincount(token_n))[:COMMON])
    class_n = np.array([CLASSES.index(word_class(name)) for name in names])[token_n]
    domains, domain_b = np.unique([str(s.label) for s in samples], return_inverse=True)
    ends = kinds["sentence_end"] & _before_a_blank(names, token_n, trained.sample_n)
    found = common_figures(trained, twins) | {
        "domain": known_by_paths(trained, twins, domain_b.reshape(-1)[trained.sample_n]),
        "entry_by_step": {
            "value": grouping_by_step(trained, token_n),
            "untrained": [grouping_by_step(twin, token_n) for twin in twins],
        },
        "word_class_by_step": {
            "value": grouping_by_step(trained, class_n),
            "untrained": [grouping_by_step(twin, class_n) for twin in twins],
        },
        "function_words_on_frequent_paths": contrast_of(trained, twins, kinds["function_word"]),
        "sentence_ends": leading_path(trained, ends)
        | {"overall": float(ends.mean()), "untrained": [leading_path(twin, ends)["rank"] for twin in twins]},
        "common_words": {
            "on_single_paths": float(common[trained.path_count_n == 1].mean()),
            "overall": float(common.mean()),
            "untrained": [float(common[twin.path_count_n == 1].mean()) for twin in twins],
        },
    }
    length_b = np.log(np.bincount(trained.sample_n))
    signs_b = np.array([_no_letters(s.text or "") for s in samples])
    for name, values in {"length": length_b, "signs": signs_b}.items():
        found[f"{name}_and_reuse"] = effect(
            lambda o, c, v=values: weighted_correlation(v, o.by_sample(o.reuse_n), c), trained, twins
        )
    if "compute" in found:
        found["compute_of_kinds"] = {
            kind: effect(lambda o, c, m=class_n == i: _more_compute(o, m, c), trained, twins, draws=400)
            | {"tokens": int((class_n == i).sum())}
            for i, kind in enumerate(CLASSES)
            if (class_n == i).any()
        }
        compute_b = trained.by_sample(trained.compute_n)
        plain_b = np.array([s.label != "math" for s in samples])
        found["signs_and_compute"] = effect(
            lambda o, c: weighted_correlation(signs_b, o.by_sample(o.compute_n), c * plain_b), trained, twins
        ) | {"texts": int(plain_b.sum())}
        found["texts_of_code"] = sum(s.label == "code" for s in samples)
        found["texts_of_other_scripts"] = sum(_not_latin(s.text or "") > 0.05 for s in samples)
        found["compute_of_domains"] = {
            name: float(compute_b[domain_b.reshape(-1) == i].mean()) for i, name in enumerate(domains)
        }
    return found


def grouping_by_step(observed: Observed, label_n: np.ndarray) -> list[dict[str, float]]:
    """How far a label determines the choice of each step: (I − I₀) / (H − I₀), mean and standard error over fifths.

    I is the mutual information of choice and label, I₀ that of one shuffle, H the entropy of the choice: 0 for chance,
    1 for a choice that follows from the label, however evenly modules are used. Fifths of the texts are disjoint, so
    they are what is drawn.
    """
    rng = np.random.default_rng(0)
    fifth_n = observed.sample_n * FIFTHS // observed.num_samples
    rows = []
    for step in range(observed.ids_nSK.shape[1]):
        choice_n = unique_rows(canonical(observed.ids_nSK[:, step : step + 1]))[1]
        above = []
        for fifth in range(FIFTHS):
            mask = fifth_n == fifth
            choice, label = choice_n[mask], label_n[mask]
            entropy = _entropy(choice)
            told, chance = (entropy + _entropy(x) - _entropy(choice, x) for x in (label, rng.permutation(label)))
            above.append((told - chance) / (entropy - chance))
        rows.append({"value": float(np.mean(above)), "error": float(np.std(above, ddof=1) / FIFTHS**0.5)})
    return rows


def _entropy(*codes: np.ndarray) -> float:
    """Entropy of one variable, or of two together, in nats."""
    together = codes[0].astype(np.int64)
    for other in codes[1:]:
        together = together * (int(other.max()) + 1) + other
    shares = np.unique(together, return_counts=True)[1] / len(together)
    return float(-(shares * np.log(shares)).sum())


def contrast_of(trained: Observed, twins: list[Observed], mask_n: np.ndarray) -> dict[str, Any]:
    """Share of tokens that are of a kind, on the most frequent paths that hold a tenth of all, less that of all."""

    frequent_of = {id(one): one.frequent(0.1) for one in (trained, *twins)}

    def more(observed: Observed, counts: np.ndarray) -> float:
        weight = counts[observed.sample_n]
        frequent = weight * frequent_of[id(observed)]
        return float((frequent * mask_n).sum() / frequent.sum() - (weight * mask_n).sum() / weight.sum())

    return effect(more, trained, twins) | {"overall": float(mask_n.mean())}


def _more_compute(observed: Observed, mask_n: np.ndarray, counts: np.ndarray) -> float:
    """Mean compute of some tokens less that of all."""
    weight = counts[observed.sample_n].astype(float)
    some = weight * mask_n
    return float((some @ observed.compute_n) / some.sum() - (weight @ observed.compute_n) / weight.sum())


def leading_path(observed: Observed, mask_n: np.ndarray) -> dict[str, float]:
    """The most frequent path of which more than half of the tokens are of a kind: rank, tokens, and their share."""
    counts = np.bincount(observed.path_n)
    shares = np.bincount(observed.path_n, weights=mask_n) / counts
    order = np.argsort(-counts, kind="stable")
    places = np.flatnonzero(shares[order] > 0.5)
    if not len(places):
        return {"rank": len(counts) + 1, "tokens": 0, "share": 0.0}
    path = order[places[0]]
    return {"rank": int(places[0]) + 1, "tokens": int(counts[path]), "share": float(shares[path])}


def _before_a_blank(names: tuple[str, ...], token_n: np.ndarray, sample_n: np.ndarray) -> np.ndarray:
    """Tokens behind which a blank or the text's end follows: the stop of a sentence, not that of 3.14."""
    blank = np.array([not name or name[0].isspace() for name in names])
    last_n = np.diff(sample_n, append=-1) != 0
    return last_n | np.roll(blank[token_n], -1)


def _no_letters(text: str) -> float:
    """Share of the characters that are neither letters nor blanks."""
    return sum(not (c.isalpha() or c.isspace()) for c in text) / max(1, len(text))


def _not_latin(text: str) -> float:
    """Share of the letters that are beyond Latin Extended-B."""
    letters = [c for c in text if c.isalpha()]
    return sum(c > "\u024f" for c in letters) / max(1, len(letters))
