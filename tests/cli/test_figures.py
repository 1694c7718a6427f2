"""``tokenpaths figures`` and ``tokenpaths report``: files all at once or not at all, sentences for what cannot be."""

from __future__ import annotations

import base64
import json
import os
import re
from pathlib import Path

import pytest

from tests.support.runs import make_run
from tokenpaths.cli.main import main
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.frontend.figures import KINDS
from tokenpaths.frontend.figures.report import _details


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    make_run(folder / "runs", "pictures", samples=12, steps=3, modules=6)
    make_run(folder / "runs", "words", "text", samples=8, steps=3, modules=6)
    make_run(folder / "runs", "bare", samples=1, steps=1, modules=1, identities=0, labels=False, twin=False)
    return folder


def figures(data_dir: Path, *more: str) -> int:
    return main(["figures", "--data-dir", str(data_dir), *more])


def test_an_index_says_what_was_drawn_and_what_was_not(data_dir, tmp_path, capsys):
    out = tmp_path / "made" / "figures"
    assert figures(data_dir, "--run", "words", "--out", str(out), "--only", "2,3,13", "--format", "svg,csv") == 0
    index = json.loads((out / "index.json").read_text("utf-8"))
    with Run.open(data_dir / "runs" / "words.duckdb") as run:
        info = run.info()
    assert (index["run"], index["checkpoint_sha256"]) == ("words", info["checkpoint_sha256"])
    listed = [name for row in index["figures"] for name in row["files"]]
    assert sorted([*listed, "index.md", "index.json"]) == sorted(os.listdir(out))
    flow = next(row for row in index["figures"] if row["figure"] == "fig2-flow")
    assert flow["numbers"]["num_tokens"] == info["num_tokens"]
    assert f"{info['num_tokens']:,} tokens" in flow["caption"]
    assert set(flow["formulas"]) <= set(index["formulas"])
    (left_out,) = index["not_drawn"]
    assert left_out["why"] == "Figure 3 is of images, and this run is of texts."
    words = (out / "index.md").read_text("utf-8")
    assert "## Not drawn" in words
    assert all(f"]({name})" in words for name in listed)
    assert "not drawn" in capsys.readouterr().out


def test_earlier_figures_are_replaced_and_other_files_left_alone(data_dir, tmp_path, capsys):
    out = tmp_path / "figures"
    given = ("--run", "pictures", "--out", str(out), "--format", "csv")
    assert figures(data_dir, *given, "--only", "fig2") == 0
    assert figures(data_dir, *given, "--only", "fig13") == 0
    assert not list(out.glob("fig2*"))
    assert list(out.glob("fig13*.csv"))
    (out / "mine.txt").write_text("mine")
    before = sorted(os.listdir(out))
    assert figures(data_dir, *given, "--only", "fig2") == 2
    assert "holds other files (mine.txt)" in capsys.readouterr().err
    assert sorted(os.listdir(out)) == before
    assert sorted(os.listdir(tmp_path)) == ["figures"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--only", "fig99"), "there is no figure 'fig99'; there are fig1cd"),
        (("--run", "nosuch"), "There is no run `nosuch`"),
        (("--beside", "nosuch"), "There is no run `nosuch`"),
        (("--width", "3miles"), "--width is '3miles'; give 30 to 600 mm"),
        (("--width", "1mm"), "--width is '1mm'"),
        (("--format", "pdf"), "--format is 'pdf'; it can be svg, png, csv, json"),
        (("--ranks", "0,1"), "--ranks is '0,1'; give ranks from 1 on"),
        (("--sample", "999"), "Run pictures has samples 0 to 11, not 999"),
    ],
)
def test_bad_input_is_a_sentence_and_leaves_nothing(data_dir, tmp_path, capsys, more, said):
    out = tmp_path / "figures"
    given = [] if "--run" in more else ["--run", "pictures"]
    assert figures(data_dir, *given, "--out", str(out), *more) == 2
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_a_sentence(data_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "figures"):
        assert figures(data_dir, "--run", "pictures", "--out", str(out), "--only", "fig13") == 2
        assert re.search("is a file|cannot be", capsys.readouterr().err)
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_is_left_when_drawing_breaks_off(data_dir, tmp_path, monkeypatch):
    def broken(*_given):
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenpaths.frontend.figures.files.csv_of", broken)
    assert figures(data_dir, "--run", "pictures", "--out", str(tmp_path / "figures"), "--format", "csv") == 130
    assert os.listdir(tmp_path) == []


def test_a_report_is_one_page_that_asks_for_nothing(data_dir, tmp_path, capsys):
    file = tmp_path / "report.html"
    for run in ("bare", "words"):
        assert main(["report", "--data-dir", str(data_dir), "--run", run, "--out", str(file)]) == 0
        page = file.read_text("utf-8")
        body = page.partition('<script type="module">')[0]
        assert not re.findall(r"""(?:src|href|url)\s*=\s*["'](?!data:|#)[^"']""", body)
        assert "default-src 'none'" in page
        assert page.count("<script") == page.count("</script>")
        shown = re.findall(r"<section id='(fig\w+|knows|family)'", page)
        missing = page.partition("<h2>Not drawn</h2>")[2].count("<li>")
        assert len(shown) + missing == len(KINDS)
    assert main(["report", "--data-dir", str(data_dir), "--run", "words", "--out", str(tmp_path)]) == 2
    assert main(["report", "--data-dir", str(data_dir), "--run", "words", "--out", str(tmp_path / "a.pdf")]) == 2
    assert "does not end with .html" in capsys.readouterr().err


def test_a_run_of_counts_has_no_report_and_says_so(tmp_path, capsys):
    (tmp_path / "counts.json").write_text(json.dumps({"0": {"0": 6, "3": 2}, "1": {"1": 8}}))
    given = ["--data-dir", str(tmp_path / "data"), "--run", "counted"]
    assert main(["import", str(tmp_path / "counts.json"), *given]) == 0
    assert main(["report", *given, "--out", str(tmp_path / "a.html")]) == 2
    assert "so there is no answer to 'report'; its load is known" in capsys.readouterr().err
    assert main(["figures", *given, "--out", str(tmp_path / "a")]) == 2
    assert "so there is no answer to 'figures'" in capsys.readouterr().err


def test_a_second_run_that_does_not_fit_is_said_in_index_and_report(data_dir, tmp_path, capsys):
    out = tmp_path / "figures"
    assert (
        figures(data_dir, "--run", "words", "--beside", "pictures", "--out", str(out), "--only", "7", "--format", "csv")
        == 0
    )
    assert "fig7: Drawn without the second run: " in capsys.readouterr().out
    index = json.loads((out / "index.json").read_text("utf-8"))
    assert {row["figure"] for row in index["figures"]} >= {"fig7-reuse", "fig7-samples"}
    (left_out,) = index["not_drawn"]
    assert left_out["why"].startswith("Drawn without the second run: ")
    file = tmp_path / "report.html"
    given = ("--data-dir", str(data_dir), "--run", "words", "--out", str(file))
    assert main(["report", *given, "--beside", "pictures"]) == 0
    assert f"fig7: {left_out['why']}\n" in capsys.readouterr().out
    page = file.read_text("utf-8")
    assert "<section id='fig7'" in page
    assert "Drawn without the second run: " in page.partition("<h2>Not drawn</h2>")[2]


def test_a_table_of_a_report_says_of_how_many_rows_it_holds_the_first():
    rows = [{"sample": number} for number in range(500)]
    cut = _details("Samples", rows, "samples.csv", 600)
    assert "<summary>Samples (the first 300 of 600)</summary>" in cut
    assert ">The first 500 of 600 rows as CSV</a>" in cut
    assert _csv_in(cut).count("\n") == 501
    assert "The first" not in _details("Samples", rows, "samples.csv", 500)
    assert ">500 rows as CSV</a>" in _details("Samples", rows, "samples.csv", 500)
    assert "<summary>Few</summary>" in _details("Few", rows[:20])


def _csv_in(page: str) -> str:
    return base64.b64decode(re.findall(r"base64,([^']+)'", page)[0]).decode()
