"""Files put into the inbox over REST, for jobs to read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.backend.conftest import api_for
from tokenpaths.backend.routes.inbox import _write


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    with api_for(tmp_path, max_upload_megabytes=0.1) as api:
        yield api


def put(api: Any, name: str, content: bytes) -> Any:
    return api.client.put(f"/api/v1/inbox/{name}", content=content)


def test_a_file_is_kept_and_one_of_the_same_name_is_never_replaced(served: Any, tmp_path: Path) -> None:
    answers = [put(served, "log.tar.gz", content) for content in (b"one", b"two", b"one")]
    assert [answer.status_code for answer in answers] == [201] * 3
    assert [answer.json()["file"] for answer in answers] == ["log.tar.gz", "log-2.tar.gz", "log.tar.gz"]
    assert answers[0].json()["num_bytes"] == 3
    files = {file.name: file.read_bytes() for file in (tmp_path / "inbox").iterdir()}
    assert files == {"log.tar.gz": b"one", "log-2.tar.gz": b"two"}


def test_of_two_uploads_of_one_name_at_once_both_are_kept(tmp_path: Path) -> None:
    together = threading.Barrier(2)

    def keep(content: bytes) -> str:
        together.wait()
        return _write(tmp_path, "log.jsonl", content)

    with ThreadPoolExecutor(2) as threads:
        for number in range(20):
            contents = [f"{who} {number}".encode() for who in ("one", "two")]
            names = list(threads.map(keep, contents))
            assert [(tmp_path / name).read_bytes() for name in names] == contents


def test_a_large_file_of_the_name_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "log").open("wb") as stream:
        stream.truncate(1 << 40)  # a terabyte of holes
    assert _write(tmp_path, "log", b"small") == "log-2"


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Path, target: Path) -> None:
        if target.exists():
            raise FileExistsError
        raise PermissionError

    monkeypatch.setattr("tokenpaths.engine.base.files.os.link", no_links)
    assert [_write(tmp_path, "log", content) for content in (b"a", b"b", b"a")] == ["log", "log-2", "log"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["log", "log-2"]


@pytest.mark.parametrize("name", [".hidden", "a%20b", "%2e%2e", "é", "x" * 101, "a%5Cb"])
def test_a_name_that_could_be_a_path_is_refused(served: Any, tmp_path: Path, name: str) -> None:
    assert put(served, name, b"x").status_code in (404, 422)
    assert list((tmp_path / "inbox").iterdir()) == []


def test_a_file_that_is_too_large_is_refused_and_nothing_is_left(served: Any, tmp_path: Path) -> None:
    answer = put(served, "log.jsonl", b"x" * 200_000)
    assert answer.status_code == 413
    assert list((tmp_path / "inbox").iterdir()) == []


def test_a_link_in_the_inbox_is_not_followed(served: Any, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (tmp_path / "inbox" / "log").symlink_to(secret)
    assert put(served, "log", b"new").json()["file"] == "log-2"
    assert secret.read_bytes() == b"secret"
