"""Tables that large runs get for what pages read from many places: every answer is the one without them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.runs import make
from tokenpaths.engine.base.errors import NotEnoughMemory
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import token_table
from tokenpaths.engine.store.ask.topics.knowledge import knowledge
from tokenpaths.engine.store.ask.topics.things import strongest
from tokenpaths.engine.store.file import schema
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.schema import DRAWN_TABLES, DRAWN_TOKENS, EXAMPLES, HEADS, STRONGEST
from tokenpaths.engine.store.write.large import seal_drawn, seal_strongest
from tokenpaths.engine.store.write.large.seal_answers import seal_answers

MADE: dict[str, dict[str, Any]] = {
    "texts": {"samples": 60, "modality": "text"},
    "two slots": {"samples": 60, "modality": "text", "top_k": 2},
    "images": {"samples": 40},
}


@pytest.fixture(autouse=True)
def _few_tokens_are_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(token_table, "MOST_TOKENS", 150)
    monkeypatch.setattr(schema, "EXAMPLE_RANKS", 7)
    monkeypatch.setattr(seal_drawn, "RANKS_AT_ONCE", 3)


@pytest.fixture(params=MADE)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Run, Run]]:
    """The same run without and with the tables."""
    files = [make("run", **MADE[request.param]).write(tmp_path / name) for name in ("without", "with")]
    seal_answers(files[1], "run", lambda run: iter(()))
    with Run.open(files[0]) as run, Run.open(files[1]) as other:
        assert run.tables_there.isdisjoint(DRAWN_TABLES)
        yield run, other


def test_the_drawn_tokens_are_those_of_the_draw(pair: tuple[Run, Run]):
    run, other = pair
    drawn, sealed = token_table.read_token_table(run), token_table.sealed_token_table(other)
    assert sealed is not None
    assert token_table.sealed_token_table(run) is None
    assert not drawn.counted["exact"]
    for name in ("counted", "num_modules"):
        assert getattr(sealed, name) == getattr(drawn, name)
    assert sealed.columns.keys() == drawn.columns.keys()
    arrays = {field.name for field in dataclasses.fields(drawn) if field.name[-2:] in ("_n", "_N", "_P")}
    assert len(arrays) == 7
    for one, two in (
        *((sealed.columns[name], values) for name, values in drawn.columns.items()),
        *((getattr(sealed, name), getattr(drawn, name)) for name in (*arrays, "ribbon_PSK")),
    ):
        assert one.dtype == two.dtype
        assert np.array_equal(one, two)
    assert (sealed.words is None) == (drawn.words is None)
    if drawn.words is not None and sealed.words is not None:
        assert sealed.words.names == drawn.words.names
        assert np.array_equal(sealed.words.codes_n, drawn.words.codes_n)
        assert np.array_equal(sealed.words.glued_n, drawn.words.glued_n)


def test_questions_answer_as_without(pair: tuple[Run, Run]):
    run, other = pair
    texts = run.row["modality"] == "text"
    word = token_table.tokens_of(run).words.names[3] if texts else None
    asked = (
        lambda run: run.search_tokens(q=word, ranks=(1, 40), examples=200),
        lambda run: run.search_tokens(kind="punctuation" if texts else "edge"),
        lambda run: run.samples(order="reuse", descending=True, limit=50),
        lambda run: run.samples(order="drawn", limit=3),
        lambda run: run.similar_samples(3, limit=40),
        lambda run: run.similar_tokens(2, 1, limit=5),
        lambda run: run.knowledge(),
        lambda run: run.summaries(),
        lambda run: run.map(),
    )
    for ask in asked:
        assert ask(other) == ask(run)


def test_examples_are_those_of_the_draw(pair: tuple[Run, Run]):
    run, other = pair
    for rank, limit, seed in itertools.product(range(1, 10), (1, 4, 60, 61, 200), (0, 1)):
        found = other.examples(rank, limit=limit, seed=seed)
        assert found == run.examples(rank, limit=limit, seed=seed), (rank, limit, seed)
        assert len(found["examples"]) == min(limit, found["count"])
        shorter = run.examples(rank, limit=max(1, limit // 2), seed=seed)["examples"]
        if limit <= schema.EXAMPLES_EACH:
            assert all(example in found["examples"] for example in shorter), "a shorter draw is part of a longer one"


def test_labels_are_merged_in_them_as_elsewhere(tmp_path: Path):
    made = make("run", modality="text", samples=60)
    for batch in made.batches:
        spelled = [(record.label or "a") + " " * (i % 2) for i, record in enumerate(batch.samples)]
        batch.samples[:] = [
            dataclasses.replace(record, label=label) for record, label in zip(batch.samples, spelled, strict=True)
        ]
    files = [made.write(tmp_path / name) for name in ("without", "with")]
    seal_answers(files[1], "run", lambda run: iter(()))
    with Run.open(files[0]) as run, Run.open(files[1]) as other:
        for ask in (
            lambda run, **how: run.examples(1, **how),
            lambda run, **how: run.samples(**how),
            lambda run, **how: run.search_tokens(ranks=(1, 5), **how),
        ):
            assert ask(other, labels="merged") == ask(run, labels="merged") != ask(run)


def test_which_runs_get_which_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def tables(name: str, **made: Any) -> set[str]:
        file = make(name, **made).write(tmp_path)
        seal_answers(file, name, lambda run: iter(()))
        with Run.open(file) as run:
            return set(DRAWN_TABLES) & run.tables_there

    assert tables("texts", samples=60, modality="text") == set(DRAWN_TABLES) - {STRONGEST}
    assert tables("images", samples=40) == set(DRAWN_TABLES) - {HEADS, EXAMPLES, STRONGEST}
    packed = {"samples": 30, "modality": "text", "steps": 20, "modules": 12, "top_k": 4}
    assert DRAWN_TOKENS not in tables("packed", **packed), "ribbons that do not repeat are not written twice"
    monkeypatch.setattr(token_table, "MOST_TOKENS", 10**6)
    assert tables("whole", samples=60, modality="text") == {HEADS, EXAMPLES}, "all of it fits memory"


def test_a_second_sealing_leaves_them(tmp_path: Path):
    file = make("run", modality="text", samples=60).write(tmp_path)
    for _ in range(2):
        seal_answers(file, "run", lambda run: iter(()))
    with Run.open(file) as run:
        assert set(DRAWN_TABLES) - {STRONGEST} <= run.tables_there


@pytest.mark.parametrize("joined", [0, 10**9], ids=["some of a rare path", "all of a rare path"])
@pytest.mark.parametrize("kind", MADE)
def test_the_strongest_tokens_are_those_of_a_look(kind: str, joined: int, tmp_path: Path, monkeypatch):
    """Of paths in the sample, of rare ones, and of those that the table leaves to a look."""
    for module in ("write.seal", "file.schema", "ask.topics.things.strongest"):
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.SAMPLE_TABLE_ROWS", 400)
    for module in (schema, strongest):
        monkeypatch.setattr(module, "STRONGEST_EACH", 3)
    for name, value in (("LOOKED_UP", 5), ("FEW_TOKENS", 15), ("MOST_JOINED", joined)):
        monkeypatch.setattr(strongest, name, value)
    files = [make("run", **MADE[kind]).write(tmp_path / name) for name in ("without", "with")]
    seal_answers(files[1], "run", lambda run: iter(()))
    with Run.open(files[0]) as run, Run.open(files[1]) as other:
        ((num_paths, least, with_text),) = other.rows(
            Query(
                f"SELECT count(DISTINCT rank), min(compared), count(DISTINCT rank) FILTER (text <> '') FROM {STRONGEST}"
            )
        )
        counts = run.shares.counts()
        assert 10 < num_paths <= (counts > 3).sum()
        assert least > 3
        assert with_text == (7 if run.row["modality"] == "text" else 0)
        how = strongest.how_compared(run, counts)
        assert set(how) == {strongest.OF_SAMPLE, strongest.OF_DRAWN} | ({strongest.OF_ALL} if joined else set())
        for rank in np.unique(np.geomspace(1, len(counts), 8).astype(int)).tolist():
            for limit, seed in ((2, 0), (3, 1), (4, 0)):
                assert other.path(rank, limit=limit, seed=seed) == run.path(rank, limit=limit, seed=seed)


def test_paths_beyond_what_is_compared_are_left_out(tmp_path: Path, monkeypatch):
    for module in ("write.seal", "file.schema", "ask.topics.things.strongest"):
        monkeypatch.setattr(f"tokenpaths.engine.store.{module}.SAMPLE_TABLE_ROWS", 400)
    for module, name, value in (
        (schema, "STRONGEST_EACH", 3),
        (strongest, "LOOKED_UP", 5),
        (strongest, "MOST_JOINED", 0),
        (seal_strongest, "MOST_COMPARED", 100),
    ):
        monkeypatch.setattr(module, name, value)
    file = make("run", **MADE["texts"]).write(tmp_path)
    with Run.open(file) as run:
        rows = seal_strongest.strongest_rows(run)
        assert rows is not None
        assert len(rows)
        assert np.array(rows["rank"])[-1] < (run.shares.counts() > 3).sum()


@pytest.mark.parametrize("error", [MemoryError, ValueError, NotEnoughMemory])
def test_what_goes_wrong_in_them_costs_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
):
    def fails(run: Run) -> None:
        raise error("no room")

    file = make("run", modality="text", samples=60).write(tmp_path)
    monkeypatch.setattr(seal_drawn, "_examples", fails)
    seal_answers(file, "run", lambda run: [(knowledge, {})])
    with Run.open(file) as run:
        assert run.tables_there.isdisjoint(DRAWN_TABLES)
        assert run.rows(Query("SELECT count(*) FROM answer")) == [(1,)]
        assert len(run.examples(1)["examples"]) > 0


def test_interrupted_they_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(run: Run) -> None:
        raise RuntimeError("Query interrupted")

    file = make("run", modality="text", samples=60).write(tmp_path)
    monkeypatch.setattr(seal_drawn, "_heads", interrupted)
    with pytest.raises(KeyboardInterrupt):
        seal_answers(file, "run", lambda run: iter(()))
    with Run.open(file) as run:
        assert run.tables_there.isdisjoint(DRAWN_TABLES)
