"""Run: the façade over the topics of ``ask``: open a sealed run and ask it.

Every answer is a dict ready for JSON, in the shape of the REST API. ``next`` of an answer is the ``offset`` of the page
that follows, or None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tokenpaths.engine.store.ask import export
from tokenpaths.engine.store.ask.arguments import explains_arguments
from tokenpaths.engine.store.ask.frames import Frames
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.several_runs import edit_effects, sample_matching
from tokenpaths.engine.store.ask.topics import (
    distributions,
    experts,
    flow,
    knowledge,
    label_specificity,
    overview,
    samples,
    search,
    similar,
    soft_decisions,
    usage,
)
from tokenpaths.engine.store.ask.topics import paths as paths_topic
from tokenpaths.engine.store.ask.topics.flow import MOST_LINKS


@explains_arguments
class Run(RunFile):
    """A sealed run, read-only; safe from several threads (a cursor for each call).

    Every question is interrupted after ``time_limit_s`` (QueryTimeout); damage that shows only
    while reading is a RunFileError; a filter that names what is not there is a UserError.
    """

    def card(self) -> dict[str, Any]:
        """What a list of runs shows."""
        return overview.card(self)

    def info(self) -> dict[str, Any]:
        """The card with configuration, labels, modules, summary, associations and existing measures."""
        return overview.info(self)

    def flow(
        self,
        *,
        steps: tuple[int, int] | None = None,
        label: str | None = None,
        min_share: int | float = 0.0,
        paths: Sequence[int] = (),
        through: Sequence[tuple[int, int]] = (),
        limit: int = MOST_LINKS,
        merge_share: int | float = 0.0,
        most_modules: int | None = None,
        sampled: bool = False,
    ) -> dict[str, Any]:
        """Nodes and links of the filtered tokens between ``steps`` (half open: (0, 5) = steps 0 … 4).

        Links below ``min_share`` of the filtered tokens, and past the ``limit`` largest, are summed
        in ``other``. Modules below ``merge_share`` of the filtered tokens, and past the ``most_modules``
        largest of their step, become one node of the step: module −1, named “other (n experts)”; at every
        step, links and ``other`` still sum to the number of tokens. Without ``paths`` and ``through`` the
        sealed summaries answer. With them and ``sampled`` a hash sample of a million tokens does, at once:
        counts are scaled to the run, shares have both ends of a 95 % interval, ``counted`` says of how many.
        """
        return flow.flow(
            self,
            steps=steps,
            label=label,
            min_share=min_share,
            paths=paths,
            through=through,
            limit=limit,
            merge_share=merge_share,
            most_modules=most_modules,
            sampled=sampled,
        )

    def paths(
        self,
        *,
        order: str = "rank",
        label: str | None = None,
        paths: Sequence[int] = (),
        through: Sequence[tuple[int, int]] = (),
        limit: int = 100,
        offset: int = 0,
    ) -> dict[str, Any]:
        """A page of paths; ``order`` compute and reuse list the largest first.

        Under filters ``count``, ``share``, ``num_paths`` and ``num_tokens`` are those of the filtered
        tokens; rank, cdf and top_label stay those of the whole run.
        """
        return paths_topic.paths(
            self, order=order, label=label, paths=paths, through=through, limit=limit, offset=offset
        )

    def fit(self) -> dict[str, Any]:
        """Rank–frequency of the run, of its untrained twin and of independent steps."""
        return paths_topic.fit(self)

    def law(self, draws: int = 100, seed: int = 0) -> dict[str, Any]:
        """A power law fitted to the counts of paths, of the untrained twin's and of independent steps'.

        Worked out when it is asked for: ``draws`` data sets are drawn from the law for its p-value (0: none).
        """
        return paths_topic.law(self, draws, seed)

    def examples(self, rank: int, limit: int = 60, seed: int = 0) -> dict[str, Any]:
        """Patches or tokens in context of one path, a seeded draw when there are more than ``limit``."""
        return paths_topic.examples(self, rank, limit, seed)

    def knowledge(self) -> dict[str, Any]:
        """What paths know: NMI(π; property) beside 200 shuffles, of label, token id, region, kind of word …

        Each of ``properties`` is {property, values, shuffled (samples or sequences), nmi, null_mean, null_low,
        null_high, p_value, num_tokens} and ``untrained_nmi`` … of the untrained twin's paths beside the same shuffles;
        ``untrained_reason`` says why there is no twin, ``unknown`` why other properties have no numbers. On a hash
        sample of 20,000 tokens.
        """
        return knowledge.knowledge(self)

    def specific(
        self, of: str = "path", *, label: str | None = None, least: int = label_specificity.LEAST, limit: int = 20
    ) -> dict[str, Any]:
        """Paths or modules most specific to a label: share of their tokens that have it, lift over the run's share.

        Ordered by the lower end of the lift's 95 % interval, which takes samples as what was drawn. Only where at
        least ``least`` tokens of the label, from two samples or more, are met.
        """
        return label_specificity.specific(self, of, label=label, least=least, limit=limit)

    def search_tokens(
        self,
        *,
        q: str | None = None,
        kind: str | None = None,
        reading: str = "word",
        label: str | None = None,
        paths: Sequence[int] = (),
        through: Sequence[tuple[int, int]] = (),
        ranks: tuple[int, int] | None = None,
        compute: tuple[int | float, int | float] | None = None,
        reuse: tuple[int | float, int | float] | None = None,
        least: int = 10,
        limit: int = 20,
        examples: int = 30,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Which paths these tokens take: found by word or pattern ``q``, ``kind`` of word and filters; all must hold.

        ``paths``: share among them, lift over all tokens. ``modules``: contrast Δ with the other tokens. Both with 95 %
        intervals that take samples as what was drawn; no interval of a lift for fewer than ``least`` tokens.
        """
        return search.search_tokens(
            self,
            q=q,
            kind=kind,
            reading=reading,
            label=label,
            paths=paths,
            through=through,
            ranks=ranks,
            compute=compute,
            reuse=reuse,
            least=least,
            limit=limit,
            examples=examples,
            seed=seed,
        )

    def usage(self, label: str | None = None) -> dict[str, Any]:
        """Load of every module at every step, all tokens or those of one label."""
        return usage.usage(self, label)

    def samples(
        self,
        *,
        order: str = "sample",
        descending: bool = False,
        label: str | None = None,
        q: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> dict[str, Any]:
        """A page of samples; ``q`` is looked for in label, prediction, source and text, case ignored."""
        return samples.samples(self, order=order, descending=descending, label=label, q=q, limit=limit, offset=offset)

    def sample(self, sample: int) -> dict[str, Any]:
        """One sample with every token: ribbon and weights by slot, rank, cdf, and its place."""
        return samples.sample(self, sample)

    def token_slice(self, sample: int, step: int, *, first: int = 0, limit: int = 40) -> dict[str, Any]:
        """Token × module: the choices of tokens ``first`` … of one sample at one step, with their weights."""
        return experts.token_slice(self, sample, step, first=first, limit=limit)

    def specialisation(
        self, of: str = "label", step: int = 0, *, label: str | None = None, limit: int = 40, each: int = 5
    ) -> dict[str, Any]:
        """What the modules of a step prefer: ``of`` label (N_{i,D}/N_D), or input, next or predicted token
        (N_{x,i}/N_x).

        The baseline of both is K/M. Token ids count when seen ≥ 10 times; the ``each`` strongest are listed.
        """
        return experts.specialisation(self, of, step, label=label, limit=limit, each=each)

    def co_activation(self, step: int = 0, *, label: str | None = None, limit: int = 32) -> dict[str, Any]:
        """N_ij/N_i over all pairs chosen together at a step, of the modules of the strongest pairs."""
        return experts.co_activation(self, step, label=label, limit=limit)

    def samples_fingerprint(self) -> dict[str, Any]:
        """What tells whether another run is over the same samples in the same order."""
        return sample_matching.samples_fingerprint(self)

    def repetition(self, *, label: str | None = None) -> dict[str, Any]:
        """How often neighbouring tokens share their first, or any, module; per step, beside its baselines."""
        return experts.repetition(self, label=label)

    def soft(self, kind: str, *, label: str | None = None, sample: int | None = None) -> dict[str, Any]:
        """What a soft, gated or threshold router said: ``edges``, ``gates`` or ``blocks``.

        Of one sample its own values; else mean and standard deviation over the samples (of ``label``).
        Nested lists along ``axes``.
        """
        return soft_decisions.soft(self, kind, label=label, sample=sample)

    def soft_arrays(self, kind: str) -> np.ndarray:
        """All samples' values of a kind, (samples, *axes) float32: for analyses and notebooks."""
        return soft_decisions.soft_arrays(self, kind)

    def effect(self, of: Run, *, sample: int | None = None, limit: int = 200) -> dict[str, Any]:
        """What this run changed of the unchanged run ``of`` over the same inputs; see ``edit_effects.effect``."""
        return edit_effects.effect(self, of, sample=sample, limit=limit)

    def image(self, sample: int) -> bytes:
        """The PNG of one sample."""
        return samples.image(self, sample)

    def picture(self, sample: int) -> bytes:
        """The PNG of one sample made anew from its pixels, for whoever shows it: a run may come from elsewhere."""
        return samples.picture(self, sample)

    def similar_samples(self, sample: int, *, limit: int = 12) -> dict[str, Any]:
        """Samples whose tokens load the modules of each step most alike, nearest first."""
        return similar.similar_samples(self, sample, limit=limit)

    def similar_tokens(
        self, sample: int, token: int, *, limit: int = 8, each: int = 12, seed: int = 0
    ) -> dict[str, Any]:
        """The ribbons nearest to a token's by path distance, and tokens that take them."""
        return similar.similar_tokens(self, sample, token, limit=limit, each=each, seed=seed)

    def map(self, method: str = "pca", *, limit: int = 2000, thumbnails: bool = False) -> dict[str, Any]:
        """Samples on the plane in which their path profiles differ most."""
        return similar.map_samples(self, method, limit=limit, thumbnails=thumbnails)

    def compare(
        self,
        other: Run,
        measure: str = "reuse",
        *,
        limit: int = 12,
        links: int = 200,
        points: int = 2000,
        grouping: bool = True,
    ) -> dict[str, Any]:
        """Run ``other`` beside this one over the samples that both have."""
        from tokenpaths.engine.store.ask.several_runs.compare import compare  # pandas, only for who asks

        return compare(self, other, measure, limit=limit, links=links, points=points, grouping=grouping)

    def grouping(self, other: Run) -> dict[str, Any]:
        """Whether run ``other`` and this one put the same tokens on one path."""
        from tokenpaths.engine.store.ask.several_runs.compare import grouping

        return grouping(self, other)

    def distribution(
        self, measure: str, per: str = "sample", bins: int = 40, label: str | None = None
    ) -> dict[str, Any]:
        """Moments, quantiles and histogram of compute, reuse, loss or gate_entropy per sample or token."""
        return distributions.distribution(self, measure, per, bins, label)

    def tables(self) -> dict[str, Any]:
        """The tables that ``export`` can give, with their number of rows and what they hold."""
        return export.tables(self)

    def export(self, table: str, file_format: str) -> Iterator[bytes]:
        """A table as a csv, parquet or arrow file, in pieces; the time limit does not apply.

        Raises:
            NoSuchThing: there is no such table.
            UserError: the format is none of the three.
        """
        return export.export(self, table, file_format)

    @property
    def frames(self) -> Frames:
        """The same questions answered as pandas data frames: ``run.frames.paths()``, ``run.frames.table("token")``."""
        return Frames(self)
