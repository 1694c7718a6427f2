"""Shards from the command line: real workers, one of them killed, and every refusal one line."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.checkpoints import WORDS, save_tiny
from tokenpaths.cli.main import main
from tokenpaths.cli.support.shard_workers import HELD_TRIES, Following, Outcome, RayCluster, run_shards
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import HolderLock
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.filters import Query


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a tiny model, and 64 texts beside it."""
    folder = tmp_path_factory.mktemp("home")
    save_tiny(folder / "data" / "models" / "tiny", "text", steps=2, transformers=2, identities=1, width=16)
    lines = [json.dumps({"text": f"{i} {WORDS}", "label": "ab"[i % 2]}) for i in range(64)]
    (folder / "t.jsonl").write_text("\n".join(lines))
    return folder


def arguments(home: Path, *more: str) -> list[str]:
    return [
        "trace",
        "--model",
        "tiny",
        "--data",
        str(home / "t.jsonl"),
        "--batch-size",
        "1",
        "--data-dir",
        str(home / "data"),
        *more,
    ]


def ribbons(home: Path, run: str) -> list[tuple]:
    with Run.open(home / "data" / "runs" / f"{run}.duckdb") as opened:
        return opened.rows(Query("SELECT * FROM token ORDER BY sample, token"))


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_killed_worker_is_started_again_and_the_run_is_that_of_one_process(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = home / "data" / "shards" / "many"
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            try:
                worker = int((folder / ".0002-of-0002.lock").read_text())
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)
            except (FileNotFoundError, ValueError):
                time.sleep(0.005)

    threading.Thread(target=kill, daemon=True).start()
    assert main(arguments(home, "--run", "many", "--shards", "2", "--workers", "2")) == 0, capsys.readouterr().err
    assert killed
    assert not folder.exists()  # sealed, so the shards are not needed any more
    assert main(arguments(home, "--run", "one")) == 0
    assert ribbons(home, "many") == ribbons(home, "one")
    assert not list((home / "data" / "runs").glob(".*"))


def test_what_else_lies_beside_the_shards_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beside = home / "mine" / "kept"
    beside.mkdir(parents=True)
    (beside / "picture.png").write_bytes(b"mine")
    options = ["--run", "kept", "--shards", "1", "--shards-dir", str(home / "mine")]
    assert main(arguments(home, *options)) == 0, capsys.readouterr().err
    assert [path.name for path in beside.iterdir()] == ["picture.png"]


def test_the_same_command_goes_on_after_an_interruption(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = [*arguments(home, "--run", "stopped", "--limit", "9", "--twin", "no")]
    assert main([*mine, "--shard", "1/2"]) == 0
    folder = home / "data" / "shards" / "stopped"
    (folder / ".0002-of-0002.lock").touch()
    (folder / ".0002-of-0002.partial").mkdir()
    finished = folder / "0001-of-0002" / "manifest.json"
    before, kept = finished.read_bytes(), home / "manifest.json"
    os.link(finished, kept)
    assert main([*mine, "--shards", "3"]) == 2
    assert "holds shards of another number (0001-of-0002)" in capsys.readouterr().err
    assert main([*mine, "--shards", "2"]) == 0, capsys.readouterr().err
    assert kept.read_bytes() == before
    assert kept.stat().st_nlink == 1, "sealed from the shard that was there, and deleted with it"
    assert not folder.exists()
    assert len(ribbons(home, "stopped")) > 9


def test_shards_by_hand_are_resumed_and_sealed_by_name(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(home / "data")
    mine = arguments(home, "--run", "hand", "--limit", "9", "--twin", "no")
    assert main([*mine, "--shard", "1/2"]) == 0
    assert main(["seal", "hand", "--data-dir", data]) == 2
    assert "shard 2 of 2 is missing: trace it with --shard 2/2" in capsys.readouterr().err
    assert main([*mine, "--shard", "2/2"]) == 0
    before = (home / "data/shards/hand/0002-of-0002/manifest.json").read_bytes()
    assert main([*mine, "--shard", "2/2"]) == 0
    assert "shard 2 of 2 of run hand was traced before and is in" in capsys.readouterr().out
    assert (home / "data/shards/hand/0002-of-0002/manifest.json").read_bytes() == before
    (home / "data/shards/hand/0002-of-0002/batch.parquet").write_bytes(b"cut off")
    assert main(["seal", "hand", "--data-dir", data]) == 2
    assert main([*mine, "--shard", "2/2"]) == 0
    assert "traced anew: " in capsys.readouterr().err
    elsewhere = home / "elsewhere"
    shutil.move(home / "data" / "shards" / "hand", elsewhere)
    assert main(["seal", str(elsewhere), "--run", "sealed", "--remove-shards", "--data-dir", data]) == 0
    assert not elsewhere.exists()
    assert len(ribbons(home, "sealed")) > 9
    assert main(["seal", str(elsewhere), "--data-dir", data]) == 2


def test_a_shard_without_samples_says_by_what_shards_are_cut(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = arguments(home, "--run", "few", "--limit", "9", "--twin", "no", "--batch-size", "16")
    assert main([*mine, "--shard", "1/2"]) == 0
    told = capsys.readouterr()
    assert "(0 tokens)" in told.out
    assert "it has no samples: shards are cut by 64 samples, and" in told.err
    assert "has 9 for 2 shards; a smaller --batch-size than 16" in told.err
    assert main([*mine[:-1], "1", "--shard", "1/5"]) == 0
    assert "cut by 4 samples, and" in (told := capsys.readouterr().err)
    assert told.endswith("for 5 shards; take fewer shards\n"), "no batch is smaller"
    assert main([*mine, "--shard", "2/2"]) == 0
    assert "no samples" not in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for the worker")
def test_shards_sealed_by_workers_are_the_run_of_one_process_and_packed_one_file(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = home / "data"
    for shard in ("1/2", "2/2"):
        assert main(arguments(home, "--run", "parted", "--shard", shard)) == 0
    assert main(arguments(home, "--run", "whole")) == 0
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if b"seal-piece\0write\x000\0" in process.read_bytes():
                        killed.append(int(process.parent.name))
                        os.kill(killed[0], signal.SIGKILL)
                        return

    threading.Thread(target=kill, daemon=True).start()
    assert main(["seal", "parted", "--workers", "2", "--data-dir", str(data)]) == 0, capsys.readouterr().err
    assert killed
    assert len(list((data / "runs").glob("parted.*.part"))) == 2
    assert ribbons(home, "parted") == ribbons(home, "whole")
    assert main(["doctor", "--data-dir", str(data)]) in (0, 1)
    capsys.readouterr()
    assert main(["pack", "parted", "--data-dir", str(data)]) == 0, capsys.readouterr().err
    assert [path.name for path in (data / "runs").glob("*parted*")] == ["parted.duckdb"]
    assert ribbons(home, "parted") == ribbons(home, "whole")
    assert main(["pack", "parted", "--data-dir", str(data)]) == 2
    assert "run 'parted' is in one file already" in capsys.readouterr().err
    assert main(["pack", "nothing", "--data-dir", str(data)]) == 2
    assert "there is no run 'nothing'" in capsys.readouterr().err
    (data / "shards" / "parted" / "0002-of-0002" / "token.parquet").write_bytes(b"cut off")
    assert main(["seal", "parted", "--run", "again", "--workers", "2", "--data-dir", str(data)]) == 2
    assert "its manifest says" in capsys.readouterr().err
    assert not list((data / "runs").glob("*again*"))


def test_shards_are_sealed_by_ray(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    for shard in ("1/2", "2/2"):
        assert main(arguments(home, "--run", "by-ray", "--shard", shard)) == 0
    assert main(arguments(home, "--run", "whole-too")) == 0
    assert main(["seal", "by-ray", "--ray", "local", "--data-dir", str(home / "data")]) == 0, capsys.readouterr().err
    assert len(list((home / "data" / "runs").glob("by-ray.*.part"))) == 2
    assert ribbons(home, "by-ray") == ribbons(home, "whole-too")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--shard", "3/2", "--run", "x"], "'3/2' is no shard"),
        (["--shard", "1/2"], "shards need --run"),
        (["--shards", "2"], "shards need --run"),
        (["--shard", "1/2", "--shards", "2", "--run", "x"], "give one of the two"),
        (["--shard", "1/2", "--run", "../x"], "is no run id"),
        (["--shard", "1/2", "--run", "x", "--beside", "--controls", '{"top_k": 1}'], "leave it out with shards"),
        (["--shards-dir", "x"], "--shards-dir is for --shard and --shards"),
        (["--ray", "auto"], "--ray is for --shards"),
        (["--workers", "3"], "--workers is for --shards"),
        (["--shard", "1/2", "--run", "x", "--limit", "5", "--passage-chars", "9"], "a limit on passages"),
        (["--shard", "1/2", "--run", "x", "--shards-dir", "/dev/null"], "nothing can be written to the folder"),
    ],
)
def test_wrong_input_is_one_line(home: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
    assert main(arguments(home, *more)) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tokenpaths: ")]
    assert words in line
    assert not (home / "data" / "shards" / "x").exists()


def test_help_teaches_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seal", "--help"]) == 0
    assert "Example: tokenpaths seal big" in capsys.readouterr().out
    assert main(["seal", "nothing"]) == 2
    assert "there are no shards of a run 'nothing'" in capsys.readouterr().err
    assert main(["seal", ""]) == 2
    assert "The name is empty" in capsys.readouterr().err


class Scripted:
    """A cluster whose workers end as they are told."""

    slots = 2

    def __init__(self, ends: dict[int, list[int | None]]) -> None:
        self.ends, self.running, self.most, self.closed = ends, [], 0, False
        self.started: list[Sequence[str]] = []

    def start(self, shard: int, arguments: Sequence[str]) -> None:
        self.running.append(shard)
        self.started.append(arguments)
        self.most = max(self.most, len(self.running))

    def wait(self) -> Outcome:
        shard = self.running.pop(0)
        return Outcome(shard, self.ends[shard].pop(0), "tokenpaths: said something")

    def close(self) -> None:
        self.closed = True


def test_lost_shards_are_started_again_and_refused_ones_are_not() -> None:
    cluster = Scripted({1: [0], 2: [None, 1, 0], 3: [-9, 0], 4: [0]})
    told: list[int] = []
    following = run_shards(cluster, lambda shard: [str(shard)], 4, lambda f: told.append(f.done))
    assert following == Following(4, 4, {1: 1, 2: 3, 3: 2, 4: 1}, 3)
    assert (told[-1], cluster.most, cluster.closed) == (4, 2, True)
    assert len(cluster.started) == 7
    for ends, words in (
        ({1: [0], 2: [2]}, "^shard 2 of 2: said something$"),
        ({1: [0], 2: [-9, -9, -9]}, "shard 2 of 2 was lost 3 times .ended by signal SIGKILL.; finished"),
        ({1: [0], 2: [None, None, None]}, "was lost 3 times .tokenpaths: said something"),
    ):
        cluster = Scripted(ends)
        with pytest.raises(UserError, match=words):
            run_shards(cluster, lambda shard: [str(shard)], 2)
        assert cluster.closed


def test_a_shard_that_a_lost_worker_still_holds_is_tried_until_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("tokenpaths.cli.support.shard_workers.time.sleep", slept.append)
    held = [75] * (HELD_TRIES - 1)
    cluster = Scripted({1: [None, *held, None, 0], 2: [0]})
    following = run_shards(cluster, lambda shard: [str(shard)], 2)
    assert following == Following(2, 2, {1: 3, 2: 1}, 2, len(held)), "these tries are not among the three"
    assert len([pause for pause in slept if pause > 0]) == len(held)
    cluster = Scripted({1: [75] * HELD_TRIES, 2: [0]})
    with pytest.raises(UserError, match=r"^shard 1 of 2: said something; finished shards are kept"):
        run_shards(cluster, lambda shard: [str(shard)], 2)
    assert cluster.closed


def test_a_shard_that_somebody_writes_is_told_from_wrong_input(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "data" / "shards" / "busy"
    folder.mkdir(parents=True)
    lock = HolderLock(folder / ".0001-of-0002.lock")
    lock.acquire()
    try:
        assert main(arguments(home, "--run", "busy", "--shard", "1/2")) == 75
    finally:
        lock.release()
    assert f"tokenpaths: .0001-of-0002.lock is held by process {os.getpid()}: wait" in capsys.readouterr().err


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'tokenpaths\[ray\]'"):
        RayCluster("auto")


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_killed_worker_of_ray_is_started_again(home: Path) -> None:
    pytest.importorskip("ray")
    folder = home / "data" / "shards" / "ray"
    killed: list[int] = []

    def kill() -> None:
        while not killed:
            try:
                worker = int((folder / ".0001-of-0002.lock").read_text())
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)
            except (FileNotFoundError, ValueError):
                time.sleep(0.005)

    threading.Thread(target=kill, daemon=True).start()
    cluster = RayCluster("local")
    following = run_shards(cluster, lambda shard: arguments(home, "--run", "ray", "--shard", f"{shard}/2"), 2)
    assert killed
    assert following.done == 2
    assert following.tries[1] >= 2
    assert main(["seal", "ray", "--data-dir", str(home / "data")]) == 0
    assert main(arguments(home, "--run", "by-one")) == 0
    assert ribbons(home, "ray") == ribbons(home, "by-one")


def test_no_ray_cluster_is_said() -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match="no Ray cluster at '127.0.0.1:1'"):
        RayCluster("127.0.0.1:1")
