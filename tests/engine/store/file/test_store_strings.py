"""Words of people: anything that is text comes back as it was, and filters bind what they are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unicodedata import normalize

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.runs import make
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import SampleRecord
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import parse_paths, parse_steps, parse_through

LABELS = ["it's", 'say "hi"', "a;b--", "", " ", "ÅNGSTRÖM", "مرحبا", "nul\0l", "🙂🏳️‍🌈", "%", "_", "\\", "İ", "ß"]
TEXTS = [
    "plain",
    "NUL \0 inside",
    "שלום עולם \u202ertl\u202c",
    "🙂 emoji 👩‍👩‍👧",
    "line\nbreak\ttab\r\n",
    "<script>alert(1)</script>",
    "'; DROP TABLE token; --",
    "e\u0301 combined",
    "\ufeffbom",
    "STRASSE straße",
    "ΑΣ ας",
    "\x1b[31m",
    "z\u0335\u0327algo",
    "𝔘𝔫𝔦",
]


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One sample for each label and text, a token each."""
    made = make("words", "text", samples=1, twin=False)
    n = len(LABELS)
    batch = made.batches[0]
    cut = {
        name: np.resize(getattr(batch, name), (n, *getattr(batch, name).shape[1:]))
        for name in ("module_ids", "weights", "gate_entropy", "flops", "token_id")
    }
    samples = [
        SampleRecord(1, label=label, text=text, prediction=label[::-1], source=f"{i}.txt")
        for i, (label, text) in enumerate(zip(LABELS, TEXTS, strict=True))
    ]
    batch = replace(batch, samples=samples, char_start=None, char_end=None, loss=None, **cut)
    file = replace(made, batches=[batch]).write(tmp_path_factory.mktemp("words"))
    with Run.open(file) as run:
        yield run


def test_texts_and_labels_come_back_as_they_were(words: Run):
    for number, (label, text) in enumerate(zip(LABELS, TEXTS, strict=True)):
        answer = words.sample(number)
        assert (answer["text"], answer["label"], answer["prediction"]) == (text, label, label[::-1])
        assert answer["snippet"] == text
    assert {row["label"] for row in words.info()["labels"]} == set(LABELS)


@pytest.mark.parametrize("label", LABELS)
def test_every_label_can_be_filtered_by(words: Run, label: str):
    number = LABELS.index(label)
    assert [row["sample"] for row in words.samples(label=label)["samples"]] == [number]
    assert words.flow(label=label)["num_tokens"] == 1
    assert words.paths(label=label)["num_tokens"] == 1
    assert words.usage(label)["usage"]
    assert words.distribution("compute", label=label)["num"] == 1


ANYTHING = st.one_of(
    st.text(max_size=20),
    st.text(st.characters(), max_size=6),  # surrogates included
    st.sampled_from(LABELS + TEXTS),
    st.sampled_from(TEXTS).flatmap(lambda t: st.integers(0, len(t)).map(lambda i: t[i : i + 4])),
    st.sampled_from(["' OR 1=1 --", "') UNION SELECT 1 --", "%", "_", "\\x00", "?", "$1", "NaN", "null"]),
)


@settings(max_examples=300, deadline=None)
@given(ANYTHING)
def test_q_finds_what_python_finds_or_says_why_not(words: Run, q: str):
    if any(0xD800 <= ord(c) <= 0xDFFF for c in q):
        with pytest.raises(UserError, match="lone surrogate"):
            words.samples(q=q)
        return
    found = {row["sample"] for row in words.samples(q=q)["samples"]}
    keys = [f"{lab}\n{lab[::-1]}\n{i}.txt\n{t}" for i, (lab, t) in enumerate(zip(LABELS, TEXTS, strict=True))]
    spellings = {q.casefold(), normalize("NFC", q.casefold()), normalize("NFD", q.casefold())}
    assert found == {i for i, key in enumerate(keys) if any(one in key.casefold() for one in spellings)}


@pytest.mark.parametrize("q", ["é combined", "É comb", "e\u0301 comb", "ångström", "a\u030angstro\u0308m"])
def test_accents_are_found_however_they_are_composed(words: Run, q: str):
    assert len(words.samples(q=q)["samples"]) == 1


@settings(max_examples=300, deadline=None)
@given(ANYTHING)
def test_label_is_matched_exactly_or_refused(words: Run, label: str):
    for ask in (lambda: words.samples(label=label)["total"], lambda: words.flow(label=label)["num_tokens"]):
        if label in LABELS:
            assert ask() == 1
        else:
            with pytest.raises(UserError) as caught:
                ask()
            assert caught.value.field == "label"
            str(caught.value).encode("utf-8")


@settings(max_examples=300, deadline=None)
@given(ANYTHING)
def test_parsers_of_filters_take_their_form_and_nothing_else(text: str):
    for parse in (parse_steps, parse_paths, parse_through):
        if not text:
            assert not parse(text)
            continue
        allowed = {parse_steps: "0123456789:", parse_paths: "0123456789,", parse_through: "0123456789.,"}[parse]
        if set(text) <= set(allowed):
            continue  # May be well formed: the examples below say which are.
        with pytest.raises(UserError) as caught:
            parse(text)
        assert caught.value.field in ("steps", "paths", "through")


def test_parsers_read_what_the_address_says():
    assert parse_steps("0:5") == (0, 5)
    assert parse_steps(None) is None
    assert parse_paths("1,2,30") == (1, 2, 30)
    assert parse_through("2.7,3.4") == ((2, 7), (3, 4))
    for bad in ("5", "a:b", "-1:2", "1:2:3", "٣:٤"):
        with pytest.raises(UserError):
            parse_steps(bad)


@pytest.mark.parametrize("field", ["label", "prediction", "text", "source"])
def test_lone_surrogates_are_refused_with_their_place(field: str, tmp_path: Path):
    from tokenpaths.engine.store.write.writer import RunWriter

    made = make("demo", "text", samples=1)
    sample = replace(made.samples[0], **{field: "ab\udc80"})
    batch = replace(made.batches[0], samples=[sample])
    with (
        pytest.raises(UserError, match=r"U\+DC80 at character 2") as caught,
        RunWriter(tmp_path, made.info, made.modules) as writer,
    ):
        writer.write(batch)
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []
