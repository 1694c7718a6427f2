"""Files among the logs of received responses that no log wrote, or a newer one: they stand in no other's way."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.backend.conftest import services_for
from tests.backend.test_received_logs import answer, refusal, send
from tokenpaths.backend.routes.received import ReceivedList, look_after
from tokenpaths.backend.runs.received_file import TABLES
from tokenpaths.backend.services import Services

OURS = "".join(f"CREATE TABLE {table} ({columns});" for table, columns in TABLES.items())
SOUND = OURS + (
    "INSERT INTO about VALUES (1, 1.0, 2.0, 0, 0, 0, NULL, NULL, NULL, NULL, "
    """'{"layers": null, "top_k": null, "experts": null}', NULL, NULL, NULL, NULL, NULL);"""
)
FOREIGN = "CREATE TABLE about (one, x); INSERT INTO about VALUES (1, 2);"
DAMAGED, NEWER = "is damaged, or no log of responses", "written by a newer Tokenpaths"
FILES: dict[str, tuple[str, str]] = {
    "a newer version": (SOUND + "PRAGMA user_version = 3", NEWER),
    "a newer version of other columns": (FOREIGN + "PRAGMA user_version = 3", NEWER),
    "other columns": (FOREIGN + "PRAGMA user_version = 2", DAMAGED),
    "other columns without a version": (FOREIGN, DAMAGED),
    "other tables": ("CREATE TABLE other (x); INSERT INTO other VALUES (1)", DAMAGED),
    "no tables": ("PRAGMA user_version = 2", DAMAGED),
}
for change in (
    "counts = x'0102'",
    "counts = x'ffffffffffffffffffffffffffffffff'",
    "counts = 'text'",
    "last = 'text'",
    "last = 1e300",
    "sizes = NULL",
    "sizes = '[]'",
    "sizes = '{}'",
    "tokens = 'text'",
    "responses = 1",
    "file = 'received-a.jsonl'",
    "file = '../../received-a.jsonl', target = 'a'",
    "file = 'received-a.jsonl', target = '../a'",
    "model = x'00'",
    "not_before = 'text'",
):
    FILES[change] = (SOUND + f"UPDATE about SET {change}; PRAGMA user_version = 2", DAMAGED)


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    made = services_for(tmp_path, log_quiet_seconds=0.01)
    send(made, answer(0), run="sound")
    yield made
    made.jobs.close()
    made.registry.close()


@pytest.mark.parametrize("name", FILES)
def test_a_foreign_file_hides_no_log_and_is_not_changed(services: Services, name: str) -> None:
    script, words = FILES[name]
    file = services.received.folder / "foreign.sqlite"
    with closing(sqlite3.connect(file)) as con:
        con.executescript(script)
    before = file.read_bytes()
    foreign, sound = services.received.listed()
    assert (foreign["run"], sound["run"], sound["responses"], sound["problem"]) == ("foreign", "sound", 1, None)
    assert words in foreign["problem"]
    ReceivedList.model_validate({"logs": [foreign, sound]})
    refused = refusal(lambda: send(services, answer(1), run="foreign"))
    assert (refused.status, words in refused.detail) == (409, True)
    assert refusal(lambda: services.received.about("foreign")).status == 409
    time.sleep(0.02)
    look_after(services)
    assert [sealing.run for sealing in services.received.sealings()] == ["sound"]
    assert file.read_bytes() == before
    services.received.forget("foreign")
    assert services.received.names() == ["sound"]


def test_the_file_that_the_others_are_made_of_is_a_log(services: Services) -> None:
    with closing(sqlite3.connect(services.received.folder / "foreign.sqlite")) as con:
        con.executescript(SOUND + "PRAGMA user_version = 2")
    assert services.received.about("foreign")["problem"] is None
    assert send(services, answer(0), run="foreign")["responses"] == 1


def test_a_folder_is_no_log(services: Services) -> None:
    (services.received.folder / "folder.sqlite").mkdir()
    assert [row["run"] for row in services.received.listed()] == ["sound"]
    assert refusal(lambda: services.received.forget("folder")).status == 404
    assert refusal(lambda: services.received.about("folder")).status == 404


def test_what_cannot_be_foreseen_hides_no_log(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    send(services, answer(0), run="odd")
    read = services.received._read_held

    def broken(file: Path) -> object:
        if file.stem == "odd":
            raise KeyError(file.stem)
        return read(file)

    monkeypatch.setattr(services.received, "_read_held", broken)
    assert [row["problem"] is None for row in services.received.listed()] == [False, True]
    assert services.received.quiet(0.0) == ["sound"]
