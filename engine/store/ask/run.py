"""Run: open a sealed run and ask it. Every answer is a dict ready for JSON, in the shape of the REST API.

``next`` of an answer is the ``offset`` of the page that follows, or None.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.engine.analysis.ribbon_costs import module_units
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.base.records import ModuleInfo
from tokenpaths.engine.store.ask import (
    answers,
    edit_effects,
    experts,
    knowledge,
    label_specificity,
    path_index,
    queries,
    sample_matching,
    search,
    similar,
)
from tokenpaths.engine.store.ask.arguments import explains_arguments
from tokenpaths.engine.store.ask.distributions import distribution_of, existing_measures
from tokenpaths.engine.store.ask.excerpts import clean_picture, sample_answer
from tokenpaths.engine.store.ask.export import check_export, export, tables_of
from tokenpaths.engine.store.ask.flow_counts import count_paths, count_tokens_by_path
from tokenpaths.engine.store.ask.frames import Frames
from tokenpaths.engine.store.ask.path_tops import paths_of_label, top_paths
from tokenpaths.engine.store.ask.provenance import crops_words
from tokenpaths.engine.store.ask.sampled_flow import sampled_flow, with_error_bars
from tokenpaths.engine.store.ask.samples import path_examples, sample_detail
from tokenpaths.engine.store.file import soft_tables
from tokenpaths.engine.store.file.checks import check_text
from tokenpaths.engine.store.file.filters import (
    Filters,
    Query,
    check_choice,
    check_filters,
    check_page,
    check_steps,
    path_condition,
    token_condition,
)
from tokenpaths.engine.store.file.flow_counter import FlowCounter, countable_in_sql, read_chunks, ribbons_of
from tokenpaths.engine.store.file.open_file import Connection
from tokenpaths.engine.store.file.schema import SAMPLE_TABLE_ROWS, Layout
from tokenpaths.engine.store.file.token_flops import flops_table
from tokenpaths.engine.store.file.weight_codes import CODES
from tokenpaths.engine.store.write.sealed_answers import kept

MOST_LINKS = 2000
MOST_ROWS = 1000
MOST_EXAMPLES = 200
SHARE_RANKS = (1, 10, 100, 1000)


@explains_arguments
class Run:
    """A sealed run, read-only; safe from several threads (a cursor for each call).

    Every question is interrupted after ``time_limit_s`` (QueryTimeout); damage that shows only
    while reading is a RunFileError; a filter that names what is not there is a UserError.
    """

    def __init__(self, file: Path, connection: Connection) -> None:
        self.file = file
        self.run_id = file.stem
        self._connection = connection
        with connection.cursor() as cursor:
            cursor.execute(queries.run_row().sql)
            names = [column[0] for column in cursor.description]
            self.row: dict[str, Any] = dict(zip(names, cursor.fetchall()[0], strict=True))
            self.modules = [ModuleInfo(*row) for row in cursor.execute(queries.module_rows().sql).fetchall()]
            self.labels = cursor.execute(queries.label_rows().sql).fetchall()
            self.regions: dict[int, str] = dict(cursor.execute(queries.region_rows().sql).fetchall())
            cursor.execute("SELECT * FROM token LIMIT 0")
            self.token_columns = tuple(column[0] for column in cursor.description if column[0] != "rowid")
            self._shapes, self._axis_names = (
                soft_tables.read_shapes(cursor) if self.row["schema_version"] > 1 else ({}, {})
            )
        code = CODES[self.row.get("weight_code") or "linear"]
        self.paged = self.row["schema_version"] >= 5
        """whether paths can be looked up by their numbers"""
        self.layout = Layout(
            self.row["num_steps"],
            self.row["top_k"],
            self.row["num_modules"],
            code,
            by_path=self.paged and not {"m0", "ids"} & set(self.token_columns),
        )
        self._label_ids = {label: (label_id, tokens) for label_id, label, _, tokens in self.labels}
        available, self.units = module_units(self.modules, self.layout.num_steps, self.layout.num_modules)
        self.bank = answers.ModuleBank(self.modules, available)

    @classmethod
    def open(cls, path: Path | str, *, time_limit_s: int | float = 10.0) -> Run:
        """Open the run file ``path``.

        Raises:
            RunNotFound, RunFileError: a sentence about what is wrong with the file.
        """
        path = Path(path)
        connection = Connection(path, time_limit_s)
        try:
            return cls(path, connection)
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Close the file; the object is of no use afterwards."""
        self._connection.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def first_rows(self) -> np.ndarray:
        """(samples,) the row of ``token`` that each sample begins with."""
        return self._connection.arrays("SELECT first_row FROM sample ORDER BY sample")["first_row"]

    def card(self) -> dict[str, Any]:
        """What a list of runs shows."""
        return answers.card(self.run_id, self.row, samples_are=crops_words(self))

    def info(self) -> dict[str, Any]:
        """The card with configuration, labels, modules, summary, associations and existing measures."""
        ranks = [rank for rank in SHARE_RANKS if rank <= self.row["num_paths"]]
        shares = self._rows(queries.top_shares(ranks))
        observed = self.fit()["observed"]
        return {
            **self.card(),
            "config": json.loads(self.row["config"]),
            "weight_semantics": json.loads(self.row["weight_semantics"]),
            "checkpoint_sha256": self.row["checkpoint_sha256"],
            "engine_version": self.row["engine_version"],
            "schema_version": self.row["schema_version"],
            "labels": [
                {"label": label, "num_samples": samples, "num_tokens": tokens}
                for _, label, samples, tokens in self.labels
            ],
            "modules": [
                {name: getattr(module, name) for name in ModuleInfo.__dataclass_fields__} for module in self.modules
            ],
            "summary": {
                "num_paths": self.row["num_paths"],
                "effective_paths": observed["effective_paths"],
                "top_shares": [{"n": rank, "share": cdf} for rank, cdf in shares],
                "mean_compute": self.row["mean_compute"],
                "mean_reuse": self.row["mean_reuse"],
            },
            "associations": answers.associations(self._rows(queries.association_rows())),
            "measures": existing_measures(self),
            "soft": list(self._shapes),
            "findings": self._findings(),
        }

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
        first, stop = check_steps(steps, self.layout)
        check_page(limit, 0, MOST_LINKS)
        for name, value in (("min_share", min_share), ("merge_share", merge_share)):
            if not 0.0 <= value <= 1.0:
                raise UserError(f"{name} is {value}, it should be between 0 and 1", field=name)
        if most_modules is not None and most_modules < 1:
            raise UserError(f"most_modules is {most_modules}, it should be at least 1", field="most_modules")
        filters, label_id = self._filters(label, paths, through)
        merging, counted = (float(merge_share), most_modules), None
        if not filters.need_tokens:
            num_tokens = self._num_tokens(label)
            usage = self._rows(queries.sealed_usage(label_id))
            kept = answers.kept_modules(usage, (first, stop), num_tokens, *merging)
            links = self._rows(queries.largest_links(label_id, first, stop, kept, min_share * num_tokens, limit))
        else:
            if sampled and self.row["num_tokens"] > SAMPLE_TABLE_ROWS:
                counted, columns, usage = sampled_flow(self, filters, label_id, first, stop)
                num_tokens = counted["num_tokens"]
            elif self.layout.by_path and label_id is None:
                num_tokens, columns, usage = count_paths(self, filters, first, stop)
            else:
                num_tokens, columns, usage = self._count(token_condition(filters, label_id, self.layout), first, stop)
            if sampled and counted is None:  # the sample is the whole run
                counted = {"num_tokens": num_tokens, "of_tokens": self.row["num_tokens"], "exact": True}
            kept = answers.kept_modules(usage, (first, stop), num_tokens, *merging)
            if kept is not None:
                columns = answers.merge_links(columns, kept, self.layout.num_modules)
            links = answers.cut_links(columns, min_share * num_tokens, limit)
        shown = {
            "steps": [first, stop],
            **filters.as_json(),
            "min_share": min_share,
            "limit": limit,
            "merge_share": merge_share,
            "most_modules": most_modules,
        }
        answer = answers.flow(
            links, usage, bank=self.bank, steps=(first, stop), num_tokens=num_tokens, top_k=self.layout.top_k, kept=kept
        )
        if counted is not None:
            answer = with_error_bars(answer, counted, self.row["num_tokens"])
        return {"run": self.run_id, "filters": shown, **answer}

    def _count(self, condition: Query, first: int, stop: int) -> tuple[int, dict[str, np.ndarray], list[tuple]]:
        """num_tokens, links and usage of the tokens of ``condition``."""
        if self.layout.by_path:
            return count_tokens_by_path(self, condition, first, stop)
        if countable_in_sql(self.layout):
            return (
                self._rows(queries.count_tokens(condition))[0][0],
                self.arrays(queries.token_flow(self.layout, condition, first, stop)),
                self._rows(queries.token_usage(self.layout, condition)),
            )
        counter = FlowCounter(self.layout, range(first, stop - 1))
        with self._connection.cursor() as cursor:
            query = queries.token_ribbons(self.layout, condition)
            for columns in read_chunks(cursor, query.sql, self.layout, query.parameters):
                counter.add(*self.ribbons_of(columns))
        return counter.num_tokens, counter.flow_arrays(), counter.usage_rows()

    count = _count

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
        check_choice(order, queries.PATH_ORDERS, "order")
        check_page(limit, offset, MOST_ROWS)
        filters, label_id = self._filters(label, paths, through)
        if label_id is None and not filters.need_tokens:
            num_paths, num_tokens = self.row["num_paths"], self.row["num_tokens"]
            sealed = top_paths(order, None, limit, offset) if self.paged and order != "rank" else None
            rows = self._rows(sealed or queries.all_paths(order, limit, offset))
        elif (listed := self._listed_paths(order, label, label_id, filters, limit, offset)) is not None:
            num_paths, num_tokens, rows = listed
        elif self.layout.by_path and label_id is None:
            num_paths, num_tokens = self._rows(queries.path_totals(path_condition(filters)))[0]
            rows = self._rows(queries.chosen_paths(path_condition(filters), order, limit, offset))
        else:
            condition = token_condition(filters, label_id, self.layout)
            ((num_paths, num_tokens),) = self._rows(queries.filtered_path_totals(condition))
            rows = self._rows(queries.filtered_paths(condition, order, limit, offset))
        return {
            "run": self.run_id,
            "num_paths": num_paths,
            "num_tokens": num_tokens,
            "paths": answers.path_rows(rows, num_tokens, self.layout),
            "next": _next(offset, limit, num_paths),
        }

    def _listed_paths(
        self, order: str, label: str | None, label_id: int | None, filters: Filters, limit: int, offset: int
    ) -> tuple[int, int, list[tuple]] | None:
        """num_paths, num_tokens and rows of a label's page, where it was worked out at sealing."""
        if not self.paged or label_id is None or filters.need_tokens or order != "rank":
            return None
        sealed = top_paths(order, label_id, limit, offset)
        ((num_paths, listed),) = self._rows(paths_of_label(label_id))
        return (num_paths, self._num_tokens(label), self._rows(sealed)) if sealed and listed else None

    def fit(self) -> dict[str, Any]:
        """Rank–frequency of the run, of its untrained twin and of independent steps."""
        fit_rows, point_rows = self._rows(queries.path_fits()), self._rows(queries.path_points())
        return {"run": self.run_id, **answers.fits(fit_rows, point_rows)}

    @kept
    def law(self, draws: int = 100, seed: int = 0) -> dict[str, Any]:
        """A power law fitted to the counts of paths, of the untrained twin's and of independent steps'.

        Worked out when it is asked for: ``draws`` data sets are drawn from the law for its p-value (0: none).
        """
        found = {kind: self._law(kind, draws, seed) for kind in ("observed", "untrained", "independent")}
        return {"run": self.run_id, "draws": draws, "seed": seed, **found}

    def _law(self, kind: str, draws: int, seed: int) -> dict[str, Any] | None:
        from tokenpaths.engine.analysis import power_law  # SciPy's optimisers, only for who asks

        rows = self._rows(queries.sealed_counts(kind) if self.paged else queries.count_histogram(kind))
        if not rows:
            return None
        values, paths = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
        histogram = power_law.Histogram(values, paths)
        return answers.law(power_law.judge(histogram, draws, seed), histogram)

    def examples(self, rank: int, limit: int = 60, seed: int = 0) -> dict[str, Any]:
        """Patches or tokens in context of one path, a seeded draw when there are more than ``limit``."""
        check_page(limit, 0, MOST_EXAMPLES)
        return path_examples(self, rank, limit, seed)

    @kept
    def knowledge(self) -> dict[str, Any]:
        """What paths know: NMI(π; property) beside 200 shuffles, of label, token id, region, kind of word …

        Each of ``properties`` is {property, values, shuffled (samples or sequences), nmi, null_mean, null_low,
        null_high, p_value, num_tokens} and ``untrained_nmi`` … of the untrained twin's paths beside the same shuffles;
        ``untrained_reason`` says why there is no twin, ``unknown`` why other properties have no numbers. On a hash
        sample of 20,000 tokens.
        """
        return knowledge.what_paths_know(self)

    @kept
    def specific(
        self, of: str = "path", *, label: str | None = None, least: int = label_specificity.LEAST, limit: int = 20
    ) -> dict[str, Any]:
        """Paths or modules most specific to a label: share of their tokens that have it, lift over the run's share.

        Ordered by the lower end of the lift's 95 % interval, which takes samples as what was drawn. Only where at
        least ``least`` tokens of the label, from two samples or more, are met.
        """
        return label_specificity.most_specific(self, of, label, least, limit)

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
        wanted = search.Wanted(
            q=q,
            kind=kind,
            reading=reading,
            label=label,
            paths=tuple(paths),
            through=tuple(through),
            ranks=ranks,
            compute=compute,
            reuse=reuse,
        )
        return search.search_tokens(self, wanted, least=least, limit=limit, examples=examples, seed=seed)

    def usage(self, label: str | None = None) -> dict[str, Any]:
        """Load of every module at every step, all tokens or those of one label."""
        label_id = self.label_id(label)
        answer = answers.usage(
            self._rows(queries.sealed_usage(label_id)),
            entropy=dict(self._rows(queries.step_entropy(label_id))),
            untrained=self._rows(queries.null_usage("untrained")),
            bank=self.bank,
            num_steps=self.layout.num_steps,
            num_tokens=self._num_tokens(label),
        )
        return {"run": self.run_id, **answer}

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
        check_choice(order, queries.SAMPLE_ORDERS, "order")
        check_page(limit, offset, MOST_ROWS)
        check_text(q, "q", field="q")
        condition = queries.sample_condition(self.label_id(label), q)
        total = int(self.row["num_samples"]) if label is None else self._label_samples(label)
        if q:
            ((total,),) = self._rows(queries.count_samples(condition))
        if order == "sample" and not descending and label is None and not q:
            numbers = list(range(offset, min(offset + limit, total)))  # samples are numbered without gaps
        else:
            numbers = [n for (n,) in self._rows(queries.sample_page(condition, order, descending, limit, offset))]
        heads = {row[0]: sample_answer(row) for row in self._rows(queries.sample_heads(numbers))}
        return {
            "run": self.run_id,
            "total": total,
            "samples": [heads[number] for number in numbers],
            "next": _next(offset, limit, total),
        }

    def sample(self, sample: int) -> dict[str, Any]:
        """One sample with every token: ribbon and weights by slot, rank, cdf, and its place."""
        return sample_detail(self, sample)

    def token_slice(self, sample: int, step: int, *, first: int = 0, limit: int = 40) -> dict[str, Any]:
        """Token × module: the choices of tokens ``first`` … of one sample at one step, with their weights."""
        return experts.token_slice(self, sample, step, first, limit)

    @kept
    def specialisation(
        self, of: str = "label", step: int = 0, *, label: str | None = None, limit: int = 40, each: int = 5
    ) -> dict[str, Any]:
        """What the modules of a step prefer: ``of`` label (N_{i,D}/N_D), or input, next or predicted token
        (N_{x,i}/N_x).

        The baseline of both is K/M. Token ids count when seen ≥ 10 times; the ``each`` strongest are listed.
        """
        return experts.specialisation(self, of, step, label, limit, each)

    def co_activation(self, step: int = 0, *, label: str | None = None, limit: int = 32) -> dict[str, Any]:
        """N_ij/N_i over all pairs chosen together at a step, of the modules of the strongest pairs."""
        return experts.co_activation(self, step, label, limit)

    @kept
    def samples_fingerprint(self) -> dict[str, Any]:
        """What tells whether another run is over the same samples in the same order."""
        return {"run": self.run_id, **sample_matching.fingerprint(self)}

    @kept
    def repetition(self, *, label: str | None = None) -> dict[str, Any]:
        """How often neighbouring tokens share their first, or any, module; per step, beside its baselines."""
        return experts.repetition(self, label)

    def soft(self, kind: str, *, label: str | None = None, sample: int | None = None) -> dict[str, Any]:
        """What a soft, gated or threshold router said: ``edges``, ``gates`` or ``blocks``.

        Of one sample its own values; else mean and standard deviation over the samples (of ``label``).
        Nested lists along ``axes``.
        """
        shape = self._soft_shape(kind)
        if sample is not None:
            if not 0 <= sample < self.row["num_samples"]:
                raise self.no_sample(sample)
            values = soft_tables.dense(self.arrays(soft_tables.sample_rows(kind, sample)), kind, shape)
            shown: dict[str, Any] = {"num_samples": 1, "values": values.round(6).tolist(), "std": None}
        else:
            rows = self._rows(soft_tables.summary_rows(kind, self.label_id(label)))
            count, mean, std = (np.array(column) for column in zip(*rows, strict=True))
            shown = {"num_samples": int(count[0])}
            shown |= {"values": mean.reshape(shape).round(6).tolist(), "std": std.reshape(shape).round(6).tolist()}
        names = self._axis_names
        return {
            "run": self.run_id,
            "sample": sample,
            "label": label,
            **soft_tables.soft_answer(kind, shape, names, **shown),
        }

    def soft_arrays(self, kind: str) -> np.ndarray:
        """All samples' values of a kind, (samples, *axes) float32: for analyses and notebooks."""
        shape = self._soft_shape(kind)
        columns = self.arrays(soft_tables.all_rows(kind))
        values = np.zeros((self.row["num_samples"], *shape), dtype=np.float32)
        table = soft_tables.SOFT_TABLES[kind]
        values[(columns["sample"], *(columns[axis] for axis in table.axes))] = columns[table.value]
        return values

    def _soft_shape(self, kind: str) -> tuple[int, ...]:
        if kind not in self._shapes:
            has = ", ".join(self._shapes) or "none of these tables: its decisions are hard, see flow and paths"
            raise NoSuchThing(f"run {self.run_id!r} has no {kind[:40]}; it has {has}", field="kind")
        return self._shapes[kind]

    def _findings(self) -> dict[str, Any]:
        if self.row["schema_version"] < 2:
            return {}
        return {name: json.loads(answer) for name, answer in self._rows(soft_tables.finding_rows())}

    def effect(self, of: Run, *, sample: int | None = None, limit: int = 200) -> dict[str, Any]:
        """What this run changed of the unchanged run ``of`` over the same inputs; see ``effects.compare_runs``."""
        return edit_effects.compare_runs(self, of, sample=sample, limit=limit)

    def image(self, sample: int) -> bytes:
        """The PNG of one sample."""
        rows = self._rows(queries.image(_index(sample)))
        if not rows:
            raise self.no_sample(sample)
        if rows[0][0] is None:
            raise NoSuchThing(f"sample {sample} of run {self.run_id!r} has no image", field="sample")
        return bytes(rows[0][0])

    def picture(self, sample: int) -> bytes:
        """The PNG of one sample made anew from its pixels, for whoever shows it: a run may come from elsewhere."""
        return clean_picture(self.image(sample))

    def similar_samples(self, sample: int, *, limit: int = 12) -> dict[str, Any]:
        """Samples whose tokens load the modules of each step most alike, nearest first."""
        return similar.similar_samples(self, sample, limit)

    def similar_tokens(
        self, sample: int, token: int, *, limit: int = 8, each: int = 12, seed: int = 0
    ) -> dict[str, Any]:
        """The ribbons nearest to a token's by path distance, and tokens that take them."""
        return similar.similar_tokens(self, sample, token, limit=limit, each=each, seed=seed)

    @kept
    def map(self, method: str = "pca", *, limit: int = 2000, thumbnails: bool = False) -> dict[str, Any]:
        """Samples on the plane in which their path profiles differ most."""
        return similar.map_of(self, method, limit=limit, thumbnails=thumbnails)

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
        from tokenpaths.engine.store.ask.compare import compare  # pandas, only for who asks

        return compare(self, other, measure, limit=limit, links=links, points=points, grouping=grouping)

    def grouping(self, other: Run) -> dict[str, Any]:
        """Whether run ``other`` and this one put the same tokens on one path."""
        from tokenpaths.engine.store.ask.compare import grouping_of

        return grouping_of(self, other)

    @kept
    def distribution(
        self, measure: str, per: str = "sample", bins: int = 40, label: str | None = None
    ) -> dict[str, Any]:
        """Moments, quantiles and histogram of compute, reuse, loss or gate_entropy per sample or token."""
        return distribution_of(self, measure, per, bins, label, self.label_id(label))

    def tables(self) -> dict[str, Any]:
        """The tables that ``export`` can give, with their number of rows and what they hold."""
        return {"run": self.run_id, "tables": tables_of(self)}

    def export(self, table: str, file_format: str) -> Iterator[bytes]:
        """A table as a csv, parquet or arrow file, in pieces; the time limit does not apply.

        Raises:
            NoSuchThing: there is no such table, or the run was made before there was one.
            UserError: the format is none of the three.
        """
        check_export(self, table, file_format)
        return export(self, table, file_format)

    @property
    def frames(self) -> Frames:
        """The same questions answered as pandas data frames: ``run.frames.paths()``, ``run.frames.table("token")``."""
        return Frames(self)

    def rows(self, query: Query) -> list[tuple]:
        """All rows of one question; for the other files of this package."""
        return self._connection.rows(query.sql, query.parameters)

    _rows = rows

    def arrays(self, query: Query) -> dict[str, np.ndarray]:
        """All columns of one question as numpy arrays; for the other files of this package."""
        return self._connection.arrays(query.sql, query.parameters)

    def cursor(self, *, limited: bool = True) -> Any:
        """A cursor of the file, for the other files of this package; a context manager."""
        return self._connection.cursor(limited=limited)

    def chunks(self, query: Query, num_rows: int, *, limited: bool = True) -> Iterator[dict[str, np.ndarray]]:
        """Columns without NULLs, ``num_rows`` rows at a time; for the other files of this package."""
        with self._connection.cursor(limited=limited) as cursor:
            for batch in cursor.execute(query.sql, list(query.parameters)).to_arrow_reader(num_rows):
                if batch.num_rows:
                    names = batch.schema.names
                    yield {n: c.to_numpy(zero_copy_only=False) for n, c in zip(names, batch.columns, strict=True)}

    def ribbons_of(self, columns: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Ids (n, S, K) and 8-bit weights (n, S, K) of the fetched ``columns_sql``."""
        if not self.layout.by_path:
            return ribbons_of(self.layout, columns)
        shape = (len(columns[0]), self.layout.num_steps, 1)
        ids = path_index.look_up(self, np.asarray(columns[0], dtype=np.int64))[1]
        return ids.reshape(shape), np.stack(columns[1:], axis=1).reshape(shape)

    @cached_property
    def tables_there(self) -> frozenset[str]:
        """Tables and views of the file: an older one has fewer."""
        listed = "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'r'"
        return frozenset(name for (name,) in self.rows(Query(listed)))

    @cached_property
    def shares(self) -> path_index.Shares:
        """The CDF of ranks; of a run that is ``paged``."""
        return path_index.Shares.of(self)

    @cached_property
    def flops(self) -> np.ndarray:
        """(S, M) FLOPs of each module at each step."""
        return flops_table(self.modules, self.layout.num_steps, self.layout.num_modules)

    def no_sample(self, sample: int) -> NoSuchThing:
        return NoSuchThing(
            f"run {self.run_id!r} has samples 0 to {self.row['num_samples'] - 1}, not {sample}", field="sample"
        )

    def _filters(
        self, label: str | None, paths: Sequence[int], through: Sequence[tuple[int, int]]
    ) -> tuple[Filters, int | None]:
        filters = Filters(label, tuple(paths), tuple((step, module) for step, module in through))
        check_filters(filters, self.layout, self.row["num_paths"])
        return filters, self.label_id(label)

    def label_id(self, label: str | None) -> int | None:
        """The number of a label; UserError where the run does not have it."""
        if label is None:
            return None
        check_text(label, "label", field="label")
        if label not in self._label_ids:
            known = ", ".join(name for _, name, _, _ in self.labels[:10])
            more = f" and {len(self.labels) - 10} more" if len(self.labels) > 10 else ""
            has = f"its labels are {known}{more}" if known else "it has no labels"
            raise UserError(f"run {self.run_id!r} has no label {label[:60]!r}: {has}", field="label")
        return self._label_ids[label][0]

    def _label_samples(self, label: str) -> int:
        return next(samples for _, name, samples, _ in self.labels if name == label)

    def _num_tokens(self, label: str | None) -> int:
        return self.row["num_tokens"] if label is None else self._label_ids[label][1]


def _next(offset: int, limit: int, total: int) -> int | None:
    return offset + limit if offset + limit < total else None


def _index(sample: int) -> int:
    """A sample number that DuckDB can compare; what cannot exist becomes −1."""
    return sample if 0 <= sample < 2**31 else -1
