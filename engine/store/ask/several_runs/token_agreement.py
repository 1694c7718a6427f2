"""Agreement of two runs: whether the same token takes the same modules in both, step by step.

For whoever asks whether a rollout and a training engine route alike, or what a quantisation, a kernel or another
version changed. A *decision* is what one token chooses at one step; it counts where both runs know it.

Shapes: P pairs of samples; S steps; K slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.arguments import check_opened
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs.compare import NotComparable
from tokenpaths.engine.store.ask.several_runs.decision_tally import DecisionTally
from tokenpaths.engine.store.ask.several_runs.series import relation_note
from tokenpaths.engine.store.ask.several_runs.token_pairs import TokenPairs, pair_tokens
from tokenpaths.engine.store.file.filters import check_page

CHUNK_CHOICES = 8_000_000
"""tokens × steps × slots that are compared at once"""
MOST_CHOICES = 20_000_000
"""tokens × steps × slots that a page waits for; of longer runs whole samples are drawn"""
MOST_TOKENS = 500_000
"""likewise tokens, of few choices each"""
MOST_SAMPLES = 100
MOST_WORDS = 100
Progress = Callable[[int, int], None]
"""tokens compared, of how many"""


def agree(
    a: RunFile,
    b: RunFile,
    *,
    limit: int = 12,
    words: int = 20,
    most_choices: int | None = MOST_CHOICES,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """How far run ``b`` decides as run ``a`` does, over the tokens that both have.

    Args:
        a: the run whose samples, labels, words and margins are told.
        b: the other run.
        limit: samples in ``samples``, those with most different decisions first.
        words: words in ``words``.
        most_choices: tokens × steps × slots that are read, of whole samples drawn by a seed; None: all.
        progress: called after each part.

    Raises:
        NotComparable: one run given twice, runs of different steps or modules, no token in common, or no decision that
            both know.
        UserError: limits out of range.
    """
    for name, given in (("a", a), ("b", b)):
        check_opened(given, name)
    check_page(limit, 0, MOST_SAMPLES)
    if not 1 <= words <= MOST_WORDS:
        raise UserError(f"words is {words}, it should be 1 to {MOST_WORDS}", field="words")
    check_alike(a, b)
    pairs = pair_tokens(a, b)
    if not pairs.num_tokens:
        why = (
            f"{pairs.different:,} have the same names and other tokens"
            if pairs.different
            else f"{a.run_id!r} is over {a.row['dataset']!r}, {b.run_id!r} over {b.row['dataset']!r}"
        )
        raise NotComparable(f"the runs have no token in common: {why}", field="b")
    drawn = _drawn(pairs, a.layout.visits, most_choices)
    tally = DecisionTally(a, b, drawn)
    done = 0
    for part in _parts(drawn, max(1, CHUNK_CHOICES // a.layout.visits)):
        tally.add(part)
        done += int(drawn.length_P[part].sum())
        progress(done, drawn.num_tokens)
    if not tally.known_PS.any():
        raise NotComparable("no decision of a common token is known in both runs", field="b")
    return {
        "a": a.run_id,
        "b": b.run_id,
        "matched": _matched(a, b, pairs, tally.other_ids),
        "counted": {
            "num_tokens": drawn.num_tokens,
            "of_tokens": pairs.num_tokens,
            "num_samples": drawn.num,
            "of_samples": pairs.num,
            "exact": drawn.num == pairs.num,
        },
        "note": relation_note(a, b),
        **tally.answer(limit, words),
    }


def check_alike(a: RunFile, b: RunFile) -> None:
    """NotComparable: one run given twice, or other steps or modules."""
    if a.file.resolve() == b.file.resolve() or a.run_id == b.run_id:
        raise NotComparable(f"{a.run_id!r} was given twice: a run agrees with itself; give another one", field="b")
    for noun, one, other in (
        ("steps", a.layout.num_steps, b.layout.num_steps),
        ("modules", a.num_modules, b.num_modules),
    ):
        if one != other:
            imported = not (a.row["checkpoint_sha256"] and b.row["checkpoint_sha256"])
            hint = "; a log that does not say how many experts there are is imported with --experts"
            raise NotComparable(
                f"{a.run_id!r} has {one:,} {noun}, {b.run_id!r} has {other:,}: decisions are compared step by step and "
                f"module by module, of two runs of one architecture{hint if noun == 'modules' and imported else ''}",
                field="b",
            )


def _drawn(pairs: TokenPairs, visits: int, most_choices: int | None) -> TokenPairs:
    """All pairs, or as many of a seeded draw as have ``most_choices`` and ``MOST_TOKENS`` together; at least one."""
    if most_choices is None:
        return pairs
    most = min(most_choices // visits, MOST_TOKENS)
    if pairs.num_tokens <= most:
        return pairs
    order = np.random.default_rng(0).permutation(pairs.num)
    tokens = np.cumsum(pairs.length_P[order])
    return pairs.of(np.sort(order[: max(1, int(np.searchsorted(tokens, most, side="right")))]))


def _parts(pairs: TokenPairs, num_tokens: int) -> Iterator[slice]:
    """Consecutive pairs of about so many tokens together."""
    part_P = (np.cumsum(pairs.length_P) - 1) // num_tokens
    edges = np.flatnonzero(np.diff(part_P)) + 1
    for start, stop in zip([0, *edges], [*edges, pairs.num], strict=True):
        yield slice(int(start), int(stop))


def _matched(a: RunFile, b: RunFile, pairs: TokenPairs, other_ids: int) -> dict[str, Any]:
    """Which tokens were compared, in numbers and in words."""
    counts = {
        name: getattr(pairs, name)
        for name in ("num", "num_tokens", "only_a", "only_b", "by_ids", "different", "alone_a", "alone_b", "shifted")
    }
    words = [
        f"{_counted(pairs.num, 'sample', 'is', 'are')} in both runs, with {_counted(pairs.num_tokens, 'common token')}."
    ]
    for run, alone, tokens in ((a, pairs.only_a, pairs.alone_a), (b, pairs.only_b, pairs.alone_b)):
        left = []
        if alone:
            left.append(f"{alone:,} of {_counted(run.row['num_samples'], 'sample')}")
        if tokens:
            left.append(f"{_counted(tokens, 'token')} of paired samples")
        if left:
            words.append(f"Only {run.run_id} has {' and '.join(left)}.")
    if pairs.shifted:
        words.append(f"{_counted(pairs.shifted, 'pair', 'starts', 'start')} at another token in each run.")
    if pairs.by_ids:
        words.append(f"{_counted(pairs.by_ids, 'pair', 'was', 'were')} found by vocabulary ids.")
    if pairs.different:
        words.append(
            f"{_counted(pairs.different, 'pair', 'has', 'have')} one name and too few tokens in common, and "
            f"{'is' if pairs.different == 1 else 'are'} left out."
        )
    if other_ids:
        words.append(
            f"{_counted(other_ids, 'token', 'has', 'have')} other vocabulary ids, and "
            f"{'is' if other_ids == 1 else 'are'} left out."
        )
    return counts | {"other_ids": other_ids, "sentence": " ".join(words)}


def _counted(num: int, noun: str, verb: str = "", verbs: str = "") -> str:
    """A number with its noun, and the verb that goes with it."""
    return f"{num:,} {noun}{'' if num == 1 else 's'} {verb if num == 1 else verbs}".rstrip()
