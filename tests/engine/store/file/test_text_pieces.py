"""Texts in pieces: whatever is read of them is what the whole text has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest

from tests.support.runs import make
from tokenpaths.engine.base.records import SampleRecord
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables import lookups
from tokenpaths.engine.store.ask.tables.excerpts import CONTEXT_CHARACTERS, contexts_of
from tokenpaths.engine.store.ask.topics.samples import columns_at
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.engine.store.file.text_pieces import PIECE_ENDS, PIECES, bounds, cut, pieces_between

_ALPHABET = "abcdefgh 𝔘é🙂\0مß"
LENGTHS = sorted({0, 1, 5000, 9000, *(end + more for end in PIECE_ENDS for more in (-1, 0, 1))})
TEXTS = ["".join(np.random.default_rng(length).choice(list(_ALPHABET), length)) for length in LENGTHS]


def spans_of(length: int) -> list[tuple[int, int]]:
    """Tokens at the beginning, at the end, and where pieces end."""
    edges = {0, 1, length, *(end + more for end in PIECE_ENDS for more in (-61, -60, -1, 0, 1, 60))}
    starts = sorted(edge for edge in edges if edge <= length)
    return [(start, min(length, start + width)) for start in starts for width in (0, 3, 700)]


def written(folder: Path, texts: list[str | None], spans: list[tuple[int, int] | None], name: str = "texts") -> Path:
    """A run of samples with one token each."""
    made = make(name, "text", samples=1, twin=False)
    batch, n = made.batches[0], len(texts)
    names = ("module_ids", "weights", "gate_entropy", "flops", "token_id")
    filled = {field: np.resize(getattr(batch, field), (n, *getattr(batch, field).shape[1:])) for field in names}
    ends = np.array([span or (-1, -1) for span in spans], dtype=np.int32)
    samples = [SampleRecord(1, label=f"l{i % 3}", text=text) for i, text in enumerate(texts)]
    batch = replace(batch, samples=samples, char_start=ends[:, 0], char_end=ends[:, 1], loss=None, **filled)
    return replace(made, batches=[batch]).write(folder)


CASES = [(text, span) for text in TEXTS for span in spans_of(len(text))]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    file = written(tmp_path_factory.mktemp("texts"), [text for text, _ in CASES], [span for _, span in CASES])
    with Run.open(file) as run:
        yield run


def expected(text: str, start: int, end: int) -> dict[str, str]:
    return {
        "before": text[max(0, start - CONTEXT_CHARACTERS) : start],
        "text": text[start:end],
        "after": text[end : end + CONTEXT_CHARACTERS],
    }


@pytest.mark.parametrize("text", TEXTS, ids=LENGTHS)
def test_pieces_are_the_text_and_know_where_each_character_is(text: str):
    pieces = [column[0].as_py() for column in cut([text]).values()]
    assert "".join(piece or "" for piece in pieces) == text
    assert pieces[0] is not None
    assert "" not in pieces[1:]
    for start, end in spans_of(len(text)):
        joined = "".join(pieces[piece] or "" for piece in pieces_between(start, end))
        first = bounds(pieces_between(start, end)[0])[0]
        assert joined[start - first : end - first] == text[start:end]


def test_no_text_is_no_text_and_an_empty_one_is_empty():
    assert [column.to_pylist() for column in cut([None, ""]).values()] == [[None, ""]] + [[None, None]] * len(
        PIECE_ENDS
    )


def test_a_whole_text_comes_back(run: Run):
    for number in range(0, len(CASES), 7):
        answer = run.sample(number)
        assert (answer["text"], answer["snippet"]) == (CASES[number][0], CASES[number][0][:160])
    assert dict(run.rows(Query("SELECT sample, text FROM sample"))) == {i: text for i, (text, _) in enumerate(CASES)}


@pytest.mark.parametrize("in_parts", [False, True], ids=["by row", "as in parts"])
def test_a_token_stands_between_its_neighbours(run: Run, in_parts: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "in_parts", in_parts)
    numbers = [number for number, (text, _) in enumerate(CASES) if text]
    for at_once in (1, 3, 30, len(numbers)):
        for start in range(0, len(numbers), 5 * at_once):  # a fifth of them
            some = numbers[start : start + at_once]
            labels, contexts = contexts_of(run, [(number, *CASES[number][1]) for number in some])
            assert contexts == [expected(CASES[number][0], *CASES[number][1]) for number in some]
            assert labels == {number: f"l{number % 3}" for number in some}


@pytest.mark.parametrize("span", [(0, 0), (0, 5), (300, 305), (9000, 9001)])
def test_a_span_beyond_the_text_is_empty_and_one_without_text_is_unknown(tmp_path: Path, span: tuple[int, int]):
    with Run.open(written(tmp_path, ["", None, "abc", None], [span, span, (300, 302), None])) as run:
        spans = [(0, *span), (1, *span), (2, 300, 302), (3, None, None)]
        nothing = {"before": "", "text": "", "after": ""}
        assert contexts_of(run, spans) == ({0: "l0", 1: "l1", 2: "l2", 3: "l0"}, [nothing, None, nothing, None])


def test_a_token_that_ends_before_it_begins_is_read_as_before(tmp_path: Path):
    text = TEXTS[-1]
    with Run.open(written(tmp_path, [text], [(0, 1)])) as run:
        for start, end in ((700, 300), (5000, 10)):
            assert contexts_of(run, [(0, start, end)])[1] == [expected(text, start, end)]


def test_tokens_are_found_by_row_as_one_by_one(run: Run, monkeypatch: pytest.MonkeyPatch):
    columns = ("char_start", "char_end", "token_id", "gate_entropy")
    rng = np.random.default_rng(0)
    for number in (1, 2, 39, 40, 41, 100):
        pairs = [(int(i), 0) for i in np.sort(rng.choice(len(CASES), min(number, len(CASES)), replace=False))]
        by_row = columns_at(run, pairs, columns)
        monkeypatch.setattr(run, "in_parts", True)
        assert by_row == columns_at(run, pairs, columns)
        monkeypatch.setattr(run, "in_parts", False)
        assert [row[:2] for row in by_row] == [CASES[sample][1] for sample, _ in pairs]
        assert len(by_row) == len(pairs)


@pytest.mark.parametrize("number", [0, 1, 39, 40, 41, 159, 160, 161])
def test_samples_are_found_by_row_as_by_number(run: Run, number: int):
    numbers = np.random.default_rng(number).choice(len(CASES), min(number, len(CASES)), replace=False).tolist()
    columns = "sample, label, text_0"
    by_row = run.rows(lookups.some_samples(numbers, columns, by_row=True))
    assert by_row == [(i, f"l{i % 3}", CASES[i][0][: PIECE_ENDS[0]]) for i in sorted(numbers)]
    assert number == 0 or by_row == run.rows(lookups.some_samples(numbers, columns))


def test_the_file_holds_no_text_but_its_pieces(run: Run):
    with duckdb.connect(run.file, read_only=True) as con:
        stored = {row[0] for row in con.execute("SELECT column_name FROM pragma_storage_info('sample')").fetchall()}
    assert set(PIECES) <= stored
    assert "text" not in stored
