"""``make bench-gpu``: every part runs on a CPU, what fails costs only its own figures, the page is the kept one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks import device, gpu, measure
from benchmarks.measure import PAGE, kept_document

ROOT = Path(__file__).resolve().parent.parent


def test_every_part_runs_on_a_cpu(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", "--dry-run", "--to", tmp_path],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    results = json.loads((tmp_path / "gpu.json").read_text())["results"]
    assert list(results) == list(gpu.GROUPS)
    assert results["equality"]["passed"] >= 8
    assert results["equality"]["failed"] == []
    assert set(results["tracing"]) == set(gpu.TRACED)
    for group in ("bf16_rows", "steps"):
        for cell in results[group].values():
            assert min(cell[what][name] for what in ("forward", "training") for name in ("median", "milliseconds")) > 0
    assert (len(results["steps"]), len(results["dreams"])) == (2, 4)
    assert "[5 of 5" in ended.stderr
    written = (tmp_path / "performance_gpu.md").read_text()
    assert all(line in written for line in ended.stdout.splitlines() if line.startswith("|"))
    assert "failed" not in written
    assert "Not measured" not in written


def test_what_fails_costs_only_its_own_line():
    def one(name):
        if name == "large":
            raise RuntimeError("out of memory | 80 GiB\nmore")
        return {"milliseconds": {"median": 2.0, "q25": 1.0, "q75": 3.0}, "peak_mib": 1234}

    found = {
        "dreams": gpu.each(["small", "large"], one),
        "equality": {"passed": 1, "skipped": 0, "failed": ["a[cuda]"]},
    }
    text = gpu.table(found)
    assert "| small | 2.00 (1.00–3.00) | 1,234 |\n| large | failed: RuntimeError: out of memory / 80 GiB |  |" in text
    assert "1 tests passed, 0 were skipped, failed: a[cuda]." in text
    assert text.count("Not measured.") == 3


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 0
    assert "There is no GPU here (torch " in capsys.readouterr().out


def test_figures_of_a_gpu_outlive_a_benchmark_without_one(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", ["device"])
    device.main()
    assert device.rows(kept_document("device"))[0].note == device.NO_GPU
    cell = {"median": 1.2, "q25": 1.1, "q75": 1.3, "repeats": 3}
    measure.report("device", "command", {"sizes": {"small": {"forward": cell, "training": cell}}}, quiet=True)
    device.main()
    assert [row.ours for row in device.rows(kept_document("device"))] == [1.2, 1.2]


def test_the_page_is_what_was_measured():
    assert (PAGE.parent / "performance_gpu.md").read_text(encoding="utf-8") == gpu.page(kept_document("gpu"))
