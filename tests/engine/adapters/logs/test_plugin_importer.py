"""Importers of plugins: the example of the documentation, installed and used; what may go wrong; the confinement."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.support.plugins import installed, write_plugin
from tokenpaths.cli.main import main
from tokenpaths.cli.support.doctor_plugins import plugins
from tokenpaths.engine.adapters.logs import confined_log
from tokenpaths.engine.adapters.logs.confined_log import LIMITS, PLUGIN_READERS, open_confined_log
from tokenpaths.engine.adapters.logs.formats import IMPORTERS, check_beginning, open_log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.confined.parent import ReaderPool
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS
from tokenpaths.engine.jobs.registry import PLUGIN_KINDS
from tokenpaths.engine.store.ask.run import Run

EXAMPLE = Path(__file__).resolve().parents[4] / "docs" / "plugin_example"
LOG = (EXAMPLE / "served.routelog").read_text(encoding="ascii")
EVERYTHING = "family halves, importer routelog, kind of job path-table"
Install = Callable[[Path], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a folder of distributions on the path of this process and of the children that it starts from now on."""
    contexts = ExitStack()  # the last one put back first: each restores the path that it found

    def put(folder: Path) -> None:
        contexts.enter_context(installed(folder, IMPORTERS, FAMILY_CONTROLS, PLUGIN_KINDS))
        monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        pool = ReaderPool(PLUGIN_READERS._made_of[0], LIMITS, "the log", "file", most_idle=0)
        monkeypatch.setattr(confined_log, "PLUGIN_READERS", pool)

    with contexts:
        yield put


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, as pip installs it."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "source")  # setuptools writes beside what it builds
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder / "site"), str(folder / "source")], check=True, timeout=240)
    return folder / "site"


def log_file(folder: Path, text: str = LOG) -> Path:
    file = folder / "served.routelog"
    file.write_text(text)
    return file


def test_the_example_is_installed_and_used(
    example: Path, tmp_path: Path, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    file = log_file(tmp_path)
    arguments = ["import", str(file), "--run", "toy", "--data-dir", str(tmp_path)]
    assert main(arguments) == 2
    assert "is no routing log that is known" in capsys.readouterr().err
    install(example)
    check_beginning(file, None)
    assert main(arguments) == 0
    assert "tokenpaths_routelog" not in sys.modules, "only a confined child imports it"
    with Run.open(tmp_path / "runs" / "toy.duckdb") as run:
        card = run.card()
        assert (card["model"], card["num_samples"], card["num_tokens"]) == ("toy", 2, 3)
        tokens = run.sample(1)["tokens"]
        assert [token["ribbon"] for token in tokens] == [[[3, 4], [0, 2]], [[3, 5], [1, 0]]]
        assert np.allclose(tokens[1]["weights"], [[0.75, 0.25], [0.75, 0.25]], atol=0.01)
    assert main([*arguments, "--overwrite", "--format", "routelogs"]) == 2
    assert "there is no format 'routelogs', there are npy" in (said := capsys.readouterr().err)
    assert "routelog\n" in said
    assert [(found.state, found.text) for found in plugins(None)] == [("ok", EVERYTHING)]


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("layers=2", "layers=two", "line 1: should give layers, top_k and experts as whole numbers"),
        ("0.75,0.25\nfirst", "0.75\nfirst", "line 2: has 2 experts and 1 weights, not 2"),
        ("first;0,1;0.5,0.5\n", "", "line 2: request first ends within a token"),
        ("first;3,5", "first;3,9", "9"),
        ("second;3,4;", "second;3,4", "line 4: should be request;experts;weights"),
    ],
)
def test_the_example_refuses_with_file_and_line(
    example: Path, tmp_path: Path, install: Install, before: str, after: str, sentence: str
) -> None:
    install(example)
    assert before in LOG
    with pytest.raises(UserError, match=r"served\.routelog, line") as error:
        list(open_log(log_file(tmp_path, LOG.replace(before, after, 1))).pieces())
    assert sentence in str(error.value)


MARKS = """
from pathlib import Path
import socket
from tokenpaths.engine.adapters.logs.formats import Format
here = Path(__file__).parent
(here / "imported").touch()
print("what a plugin prints is in nobody's way")

def harmful(file, announced):
    for attempt in (lambda: (here / "written").touch(), lambda: socket.socket()):
        try:
            attempt()
        except OSError:
            continue
        raise RuntimeError("not confined")
    raise ValueError("the plugin broke")

FORMAT = Format(harmful, "harm", magic=b"HARM")
def odd(head):
    return head.nothing
ODD = Format(harmful, "odd", matches=odd)
NO_LOG = Format(lambda file, announced: 7, "no log", magic=b"SEVEN")
"""


def test_a_plugin_is_imported_before_the_confinement_and_held_by_it(tmp_path: Path, install: Install) -> None:
    names = {name: f"marks:{name.upper()}" for name in ("odd", "no_log")} | {"harm": "marks:FORMAT", "npy": "marks:ODD"}
    install(write_plugin(tmp_path / "site", "marks", MARKS, {"tokenpaths.importers": names}))
    np.save(tmp_path / "log.npy", np.arange(24).reshape(6, 2, 2))
    assert open_confined_log(tmp_path / "log.npy").format == "npy"
    assert not (tmp_path / "site" / "imported").exists(), "a log of ours needs no plugin"
    log = tmp_path / "x.log"
    log.write_bytes(b"HARM")
    with pytest.raises(UserError, match=r"x\.log: Reading the log failed in the library that reads it \(ValueError"):
        open_confined_log(log)
    assert (tmp_path / "site" / "imported").exists()
    assert not (tmp_path / "site" / "written").exists()
    log.write_bytes(b"SEVEN")
    with pytest.raises(UserError, match="the importer 'no_log' gave int, not a Log"):
        open_confined_log(log)
    log.write_bytes(b"nothing known")
    with pytest.raises(UserError, match=r"the importer 'odd' failed to look at the file \(AttributeError"):
        open_confined_log(log)


def test_a_broken_importer_is_a_sentence_and_the_others_work(example: Path, tmp_path: Path, install: Install) -> None:
    install(write_plugin(tmp_path / "site", "broken", "import nowhere", {"tokenpaths.importers": {"aa": "broken:F"}}))
    reason = r"the importer 'aa' of broken cannot be used: it cannot be imported \(ModuleNotFoundError: No module named"
    log = tmp_path / "x.log"
    log.write_text("nothing known")
    for format in (None, "aa"):
        with pytest.raises(UserError, match=reason):
            open_confined_log(log, format)
    assert [found.state for found in plugins(None)] == ["broken"]
    install(example)
    assert open_confined_log(log_file(tmp_path)).format == "routelog"
    assert open_confined_log(log_file(tmp_path), "routelog").experts == 8
