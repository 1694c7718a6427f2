"""Models of the hub: from the user's cache, and what is said where nobody answers."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from tests.support.tiny_huggingface import copied, one_batch
from tokenpaths.engine.adapters.huggingface import hub
from tokenpaths.engine.adapters.huggingface.inspection import find_model
from tokenpaths.engine.adapters.huggingface.library import HuggingFaceError
from tokenpaths.engine.adapters.huggingface.loading import load
from tokenpaths.engine.adapters.huggingface.tracing import HuggingFaceModel


@pytest.fixture
def hub_cache(mixtral: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache with ``someone/tiny`` in it, laid out as the hub's client does, and HF_HUB_OFFLINE set."""
    commit = "0" * 40
    repo = tmp_path / "models--someone--tiny"
    (repo / "snapshots").mkdir(parents=True)
    copied(mixtral, repo / "snapshots" / commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_name_of_the_hub_is_read_from_the_users_cache(hub_cache: Path, loaded: HuggingFaceModel) -> None:
    found = load(find_model("hf:someone/tiny"), device="cpu")
    assert found.name == "someone/tiny"
    assert found.sha256 == loaded.sha256
    np.testing.assert_array_equal(one_batch(found).module_ids, one_batch(loaded).module_ids)


def test_a_name_that_is_not_in_the_cache_and_no_network(hub_cache: Path) -> None:
    said = "someone/else cannot be fetched: it is not in your cache, and the hub cannot be reached"
    with pytest.raises(HuggingFaceError, match=said):
        find_model("hf:someone/else")


def test_a_hub_that_nobody_answers_for_is_asked_once_and_in_silence(
    hub_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client by itself tries six times for each file, cached ones too, and prints two lines for each try."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    tried: list[str] = []
    head = type(huggingface_hub.get_session()).head
    monkeypatch.setattr(
        type(huggingface_hub.get_session()),
        "head",
        lambda self, url, **kw: (tried.append(str(url)), head(self, url, **kw))[1],
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", nobody)
    with pytest.raises(HuggingFaceError, match="not in your cache, and the hub cannot be reached"):
        find_model("hf:someone/else")
    assert find_model("hf:someone/tiny").name == "someone/tiny"
    assert tried == [nobody]
    assert "Retry" not in "".join(capfd.readouterr()) + caplog.text


def test_a_hub_that_did_not_answer_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        asked, there = 0, False

        def head(self, *arguments: object, **options: object) -> str:
            self.asked += 1
            if not self.there:
                raise OSError("no network")
            return "204"

    session = Session()
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
    assert not hub.reachable("http://later.invalid")
    session.there = True
    assert not hub.reachable("http://later.invalid")
    assert session.asked == 1
    monkeypatch.setattr(hub, "ASK_AGAIN_S", 0.0)
    assert hub.reachable("http://later.invalid")
    session.there = False
    assert hub.reachable("http://later.invalid")
    assert session.asked == 2


def test_a_name_server_that_stays_silent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()
    monkeypatch.setattr(hub, "PATIENCE_S", -0.4)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: answer.wait(60))
    assert not hub.reachable("http://silent.invalid")
    answer.set()
