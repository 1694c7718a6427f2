"""Whatever is typed into a filter: bound, and no more than a filter."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from pathlib import Path
from unicodedata import normalize

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.backend.conftest import Serve
from tests.engine.store.file.test_store_strings import ANYTHING, LABELS, TEXTS, words  # noqa: F401
from tests.faults.conftest import Keep
from tests.faults.routes import routes
from tests.support.runs import make_run
from tokenpaths.backend.settings import load_settings
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.open_file import open_read_only

STRINGS = 10_000
ESCAPES = [
    "ATTACH '{outside}' AS other",
    "COPY token TO '{outside}.csv'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "CREATE TABLE r.more (x INTEGER)",
    "DELETE FROM token",
    "EXPORT DATABASE '{outside}'",
    "SELECT * FROM read_text('/etc/hostname')",
    "PRAGMA disable_profiling; DROP TABLE token",
]


@pytest.mark.slow_fault
@pytest.mark.timeout(600)
def test_ten_thousand_strings_find_what_a_loop_finds(words: Run, figure: Keep) -> None:  # noqa: F811
    """Strings by hypothesis as the search `q` and as a label, beside a loop over all samples in Python"""
    keys = [f"{lab}\n{lab[::-1]}\n{i}.txt\n{t}" for i, (lab, t) in enumerate(zip(LABELS, TEXTS, strict=True))]
    before, seen = hashlib.sha256(words.file.read_bytes()).digest(), Counter[str]()

    @settings(
        max_examples=STRINGS // 2,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(ANYTHING)
    def ask(text: str) -> None:
        lone = any(0xD800 <= ord(c) <= 0xDFFF for c in text)
        spellings = {text.casefold(), *(normalize(form, text.casefold()) for form in ("NFC", "NFD"))}
        for field, expected in (
            ("q", {i for i, key in enumerate(keys) if any(word in key.casefold() for word in spellings)}),
            ("label", {LABELS.index(text)} if text in LABELS else None),
        ):
            seen["asked"] += 1
            try:
                found = {row["sample"] for row in words.samples(**{field: text})["samples"]}
            except UserError as error:
                wrong = error.field != field or not (lone or expected is None)
                seen["wrong" if wrong else "refused"] += 1
                continue
            assert found == expected, (field, text)
            seen["right"] += 1

    ask()
    assert seen["asked"] >= STRINGS
    assert seen["wrong"] == 0
    assert hashlib.sha256(words.file.read_bytes()).digest() == before
    figure(17, f"{seen['asked']:,} strings: {seen['right']:,} the same rows, {seen['refused']:,} refused, 0 wrong")


def test_strings_in_every_filter_of_every_route(serve: Serve, figure: Keep) -> None:
    """Every query key of every GET about a run gets hostile strings"""
    served = serve()
    file = make_run(served.runs_dir, "vision", samples=6)
    make_run(served.runs_dir, "other", samples=2)
    before = hashlib.sha256(file.read_bytes()).digest()
    hostile = [
        "' OR 1=1 --",
        "'; DROP TABLE token; --",
        '") UNION SELECT 1 --',
        "?",
        "$1",
        "%",
        "_",
        "\\",
        "\0",
        "NaN",
        "-1",
        "1e309",
        "9" * 400,
        "\u202e",
        "{{7*7}}",
        "a" * 3000,
        "../../etc/passwd",
        "[",
        "(.*)+$",
        ",,,",
        ":",
        "1.2.3",
    ]
    statuses, keys = Counter[int](), set()
    for route in routes(served.client):
        if route.method != "GET" or "{run}" not in route.template and "/compare" not in route.template:
            continue
        for name, text in itertools.product(route.queries, hostile):
            common = {"a": "vision", "b": "other"} if {"a", "b"} <= route.queries.keys() else {}
            answer = served.client.get(route.address(), params=common | {name: text})
            assert answer.status_code in (200, 400, 404, 422), (route.template, name, text, answer.text[:300])
            assert "Error" not in answer.json().get("detail", "")
            statuses[answer.status_code] += 1
            keys.add((route.template, name))
    assert hashlib.sha256(file.read_bytes()).digest() == before
    told = ", ".join(f"{count:,} × {status}" for status, count in sorted(statuses.items()))
    figure(17, f"{len(keys)} filters × {len(hostile)} strings: {told}")


def test_a_connection_to_a_run_can_do_nothing_else(tmp_path: Path, figure: Keep) -> None:
    """SQL that reads, writes or loads something outside, given straight to the connection that questions use"""
    import duckdb

    file = make_run(tmp_path / "runs", "vision", samples=2)
    before, outside = file.read_bytes(), tmp_path / "outside"
    beside = sorted(path.name for path in tmp_path.iterdir())
    con = open_read_only(file)
    for sql in ESCAPES:
        with pytest.raises(duckdb.Error):
            con.execute(sql.format(outside=outside))
    con.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == beside
    assert file.read_bytes() == before
    assert load_settings(data_dir=tmp_path).query_seconds == 10
    figure(17, f"{len(ESCAPES)} of {len(ESCAPES)} ways out of the database refused")
