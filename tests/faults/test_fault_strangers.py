"""Runs from elsewhere whose sums are right and whose bytes are not: no one who reads them takes the server along."""

from __future__ import annotations

import base64
import io
import json
import lzma
import os
import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests.backend.conftest import API, Serve, problem
from tests.faults.conftest import Keep
from tests.support.checkpoints import save_tiny
from tests.support.command_line import run_cli
from tests.support.runs import make, make_run
from tokenpaths.engine.base.errors import RunFileError
from tokenpaths.engine.base.seal_marks import is_sealed_here
from tokenpaths.engine.store.intake import gate as gate_module
from tokenpaths.engine.store.intake.gate import IntakeLimits, RunGate

HEADERS, BLOCK = 3 * 4096, 16_384
FORGERIES = 40
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.duckdb.xz"))
"""forgeries that ended the process of DuckDB 1.5.6 by a fault of memory when their tables were read"""
QUESTIONS = ("", "/flow?label=circle", "/usage", "/paths?limit=50", "/samples/2", "/samples/2/image", "/paths/fit")


def checksum(data: bytes) -> bytes:
    """DuckDB's sum of a block, after which it takes every byte for its own."""
    words = np.frombuffer(data, "<u8")
    with np.errstate(over="ignore"):
        total = np.uint64(5381) ^ np.bitwise_xor.reduce(words * np.uint64(0xBF58476D1CE4E5B9))
    return int(total).to_bytes(8, "little")


def forged(data: bytes, seed: int) -> bytes:
    """``data`` with a few places in one to four blocks changed, and their sums made right again."""
    chance, made = random.Random(seed), bytearray(data)
    num_blocks = (len(data) - HEADERS) // BLOCK
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        start, size = HEADERS + BLOCK * chance.randrange(num_blocks), BLOCK
        if chance.random() < 0.06:
            start, size = chance.choice((0, 4096, 8192)), 4096
        used = np.flatnonzero(np.frombuffer(bytes(made[start + 8 : start + size]), np.uint8))
        stop = min(size, int(used[-1]) + 24) if len(used) else 16
        place = start + chance.randrange(8, stop)
        number = min(chance.choice((1, 1, 2, 4, 8, 64)), start + size - place)
        way = chance.choice(("bit", "byte", "ones", "zeros", "number", "copy", "block"))
        other = HEADERS + BLOCK * chance.randrange(num_blocks)
        if way == "bit":
            made[place] ^= 1 << chance.randrange(8)
        elif way == "block" and size == BLOCK:
            made[start + 8 : start + size] = made[other + 8 : other + BLOCK]
        else:
            values = {
                "byte": bytes([chance.randrange(256)]),
                "ones": b"\xff" * number,
                "zeros": bytes(number),
                "number": chance.choice((2**31 - 1, 2**31, 2**16, 1)).to_bytes(4, "little")[:number],
                "copy": bytes(made[other + 8 : other + 8 + number]),
                "block": b"\x01",
            }[way]
            made[place : place + len(values)] = values
        made[start : start + 8] = checksum(bytes(made[start + 8 : start + size]))
    return bytes(made[: len(data)])


def elsewhere(folder: Path, **about: object) -> bytes:
    """The bytes of a run that was made in another data folder."""
    return make_run(folder / "elsewhere" / "runs", "given", samples=6, seed=1, **about).read_bytes()  # type: ignore[arg-type]


def test_the_sum_is_the_one_that_duckdb_compares(tmp_path: Path) -> None:
    data = elsewhere(tmp_path)
    for start, size in ((0, 4096), (4096, 4096), (HEADERS, BLOCK), (HEADERS + BLOCK, BLOCK)):
        assert data[start : start + 8] == checksum(data[start + 8 : start + size])


def test_a_run_from_elsewhere_is_copied_once(serve: Serve, tmp_path: Path) -> None:
    served = serve()
    own = make_run(served.runs_dir, "own", samples=3)
    assert is_sealed_here(own)
    given, copy = served.runs_dir / "given.duckdb", served.runs_dir.parent / ".taken_in" / "given.duckdb"
    given.write_bytes(elsewhere(tmp_path))
    before = given.read_bytes()
    assert served.get("/runs/given").status_code == 200
    made = copy.stat().st_mtime_ns
    assert served.get("/runs/given/flow").status_code == 200
    assert copy.stat().st_mtime_ns == made
    assert given.read_bytes() == before, "the original is left alone"
    shutil.copy(own, given)  # another file under the name
    os.utime(given, ns=(1, 1))
    assert not is_sealed_here(given)
    assert served.get("/runs/given").json()["num_samples"] == 3
    assert copy.stat().st_mtime_ns != made


@pytest.mark.parametrize("file", CORPUS, ids=lambda file: file.name)
def test_a_run_that_ends_its_reader_is_a_problem(serve: Serve, file: Path) -> None:
    """Read by the server itself, each of these ended it."""
    served = serve(check_seconds=60)
    make_run(served.runs_dir, "other", samples=3)
    (served.runs_dir / "evil.duckdb").write_bytes(lzma.decompress(file.read_bytes()))
    detail = problem(served.get("/runs/evil"), 409)["detail"]
    assert "evil.duckdb" in detail
    if duckdb.__version__ == "1.5.6":
        assert "came from elsewhere and ended the process" in detail or "is not opened" in detail
    assert problem(served.get("/runs/evil/flow"), 409)["detail"] == detail
    listed = {run["run"]: run.get("problem") for run in served.get("/runs").json()["runs"]}
    assert listed == {"evil": detail, "other": None}


def test_a_job_about_a_run_that_ends_its_reader_is_refused(serve: Serve) -> None:
    """Jobs are checked before they are queued, in the process that answers."""
    served = serve(check_seconds=60)
    (served.runs_dir / "evil.duckdb").write_bytes(lzma.decompress(CORPUS[0].read_bytes()))
    job = {"kind": "map", "request": {"run": "evil"}}
    assert "evil.duckdb" in problem(served.client.post(f"{API}/jobs", json=job), 422)["detail"]
    assert served.get("/runs").status_code == 200


def test_a_run_that_ends_its_reader_does_not_end_a_command(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "other", samples=3)
    (tmp_path / "runs" / "evil.duckdb").write_bytes(lzma.decompress(CORPUS[0].read_bytes()))
    folder = ("--data-dir", str(tmp_path))
    listed = run_cli("ls", "runs", "--json", *folder)
    assert listed.returncode == 0
    problems = {run["run"]: run.get("problem") for run in json.loads(listed.stdout)["runs"]}
    assert problems["other"] is None
    assert "evil.duckdb" in problems["evil"]
    save_tiny(tmp_path / "models" / "tiny", "vision")
    for command in (("export", "evil"), ("dream", "--model", "tiny", "--run", "evil", "--sample", "0")):
        refused = run_cli(*command, *folder)
        assert refused.returncode == 2, refused.stderr
        assert "evil.duckdb" in refused.stderr


@pytest.mark.slow_fault
@pytest.mark.timeout(1200)
def test_forged_runs_do_not_end_the_server(serve: Serve, tmp_path: Path, figure: Keep) -> None:
    """Runs with changed bytes and right sums, which pass every check of DuckDB's own, asked for through the API"""
    served = serve(check_seconds=20)
    make_run(served.runs_dir, "other", samples=3)
    data, died, refused, answered, odd = elsewhere(tmp_path), 0, 0, 0, 0
    for seed in range(FORGERIES):
        file = served.runs_dir / f"forged{seed}.duckdb"
        file.write_bytes(forged(data, seed))
        answer = served.get(f"/runs/forged{seed}/flow")
        if answer.status_code == 200:
            answered += 1
            for path in QUESTIONS:  # numbers that do not fit together are a problem in words, and no fault of ours
                more = served.get(f"/runs/forged{seed}{path}")
                if more.status_code != 200:
                    odd += "do not fit together" in problem(more, more.status_code)["detail"]
                assert more.status_code != 500
        else:
            said = problem(answer, 409)["detail"]
            refused += 1
            died += "ended the process" in said
        assert served.get("/runs/other/flow").status_code == 200
        assert served.client.delete(f"{API}/runs/forged{seed}").status_code == 204
    assert died > 0, "the forgeries are to be such that a process ends"
    figure(
        5,
        f"runs with right sums: {FORGERIES} forgeries, {died} ended the process that read them first, "
        f"{refused - died} refused otherwise, {answered} opened ({odd} of their answers a problem in words); "
        "the server went on",
    )


def test_what_ends_the_process_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is opened here: a process that dies, one that says nothing and one that never ends."""
    file = make_run(tmp_path / "elsewhere", "evil", samples=2, twin=False)
    (tmp_path / "runs").mkdir()
    file = file.rename(tmp_path / "runs" / "evil.duckdb")
    monkeypatch.setattr(gate_module, "PATIENCE", 1)
    for code, sentence, passing in (
        ("import os; os.kill(os.getpid(), 11)", "SIGSEGV", False),
        ("raise SystemExit(3)", "code 3", False),
        ("import time; time.sleep(60)", "within 1 s", True),
        ("print('[]')", "code 0", False),
        ("import os; os.kill(os.getpid(), 9)", "ended from outside", True),
        ("import os\nfor _ in range(64): os.write(1, bytes(2**20))", "code 0", False),
    ):
        monkeypatch.setattr(gate_module, "intake_command", lambda *_, code=code: [sys.executable, "-c", code])
        gate = RunGate(file.parent, IntakeLimits(seconds=1.0))
        with pytest.raises(RunFileError, match=sentence) as error:
            gate.passage(file)
        assert "evil.duckdb came from elsewhere" in str(error.value)
        assert gate.standing(file).passing is passing


def test_pictures_of_a_run_are_made_anew(serve: Serve) -> None:
    """A picture with a page behind its end, one with a comment, one of 25 million pixels in 3 kB, and none at all"""
    served, made = serve(), make("given", samples=4, seed=1)
    samples = made.batches[0].samples
    whole = samples[0].image
    assert whole is not None
    commented, bomb, nothing = io.BytesIO(), io.BytesIO(), whole[:8] + b"nothing"
    about = PngInfo()
    about.add_text("Comment", "<script>alert(1)</script>")
    Image.open(io.BytesIO(whole)).save(commented, "PNG", pnginfo=about, icc_profile=b"<script>alert(3)</script>")
    Image.new("1", (5000, 5000)).save(bomb, "PNG")
    behind = whole + b"<script>alert(2)</script>"
    for number, data in enumerate((behind, commented.getvalue(), bomb.getvalue(), nothing)):
        samples[number] = replace(samples[number], image=data)
    made.write(served.runs_dir)
    for number in (0, 1):
        answer = served.get(f"/runs/given/samples/{number}/image")
        assert answer.status_code == 200
        assert b"script" not in answer.content
        shown = Image.open(io.BytesIO(answer.content))
        assert shown.info == {}
    first = np.asarray(Image.open(io.BytesIO(served.get("/runs/given/samples/0/image").content)))
    assert np.array_equal(first, np.asarray(Image.open(io.BytesIO(whole)).convert("RGB")))
    assert "pixels" in problem(served.get("/runs/given/samples/2/image"), 409)["detail"]
    assert "damaged" in problem(served.get("/runs/given/samples/3/image"), 409)["detail"]
    answers = [served.get(f"/runs/given/paths/{rank}/examples?limit=200") for rank in (1, 2, 3)]
    assert {answer.status_code for answer in answers} <= {200, 409}, "cropping patches neither decodes nor breaks"


def test_a_report_has_no_byte_of_a_picture_s_author(serve: Serve) -> None:
    served, made = serve(), make("given", samples=9, seed=1)
    samples = made.batches[0].samples
    for number, sample in enumerate(samples):
        assert sample.image is not None
        samples[number] = replace(sample, image=sample.image + b"<script>alert(2)</script>")
    made.write(served.runs_dir)
    told = served.get("/runs/given/report").text
    pictures = [base64.b64decode(found) for found in re.findall(r"data:image/png;base64,([\w+/=]+)", told)]
    assert len(pictures) > len(samples)
    assert not [picture for picture in pictures if b"alert(2)" in picture]
