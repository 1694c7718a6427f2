"""What the documents claim is there, and is what was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md")))]
MODELS = sorted(p.parent for p in (ROOT / "data" / "models").glob("*/config.json"))


@pytest.mark.parametrize("page", PAGES)
def test_every_link_to_a_file_leads_somewhere(page):
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    missing = [t for t in targets if not t.startswith(("http", "mailto")) and not (path.parent / t).exists()]
    assert missing == []


def test_every_test_that_a_text_names_exists():
    """``tests/….py``, in a document or a docstring, with ``::name`` or without."""
    files = [ROOT / page for page in PAGES] + [ROOT / "Makefile", ROOT / ".ci" / "run"]
    for folder in ("engine", "backend", "frontend", "tokenpaths", "benchmarks"):
        files += (ROOT / folder).rglob("*.py")
    missing = set()
    for file in files:
        for name, test in re.findall(r"\b(tests/[\w/]+\.py)(?:::(\w+))?", file.read_text(encoding="utf-8")):
            named = ROOT / name
            if not named.is_file() or (test and f"def {test}(" not in named.read_text(encoding="utf-8")):
                missing.add((file.relative_to(ROOT).as_posix(), name, test))
    assert missing == set()


def test_every_file_in_the_readmes_tables_exists():
    """In every cell; a name may be that of a file in the folder of the row's first."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    missing, named = [], 0
    for row in re.findall(r"^\| .+ \|$", text, flags=re.MULTILINE):
        parts = re.findall(r"`([\w./-]*(?:/|\.py)[\w./-]*)`", row)
        named += len(parts)
        missing += [part for part in parts if not any((ROOT / home / part).exists() for home in ("", parts[0]))]
    assert named > 30
    assert missing == []


def test_the_readme_counts_models_and_walks_as_they_are():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    small = set(re.findall(r"data/models/([\w-]+) ", (ROOT / "MANIFEST.in").read_text(encoding="utf-8")))
    counts = {}
    for folder in MODELS:
        family = json.loads((folder / "config.json").read_text(encoding="utf-8"))["family"]
        counts.setdefault(family, [0, 0])[folder.name not in small] += 1
    rows = re.findall(r"^\| .+ \| `engine/models/(?:\w+/)?(\w+)\.py`.* \| (\S+) \| (\S+) \|$", text, re.MULTILINE)
    assert {name: [0 if cell == "–" else int(cell) for cell in cells] for name, *cells in rows} == counts
    words = {5: "five", 6: "six", 7: "seven", 8: "eight", 16: "sixteen", 17: "seventeen"}
    for page in ("README.md", "docs/index.md", "docs/tour.md"):
        shown = (ROOT / page).read_text(encoding="utf-8")
        assert f"with {words[len(small)]} small models" in shown
        assert f"with all {words[len(MODELS)]}" in shown
    walks = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").count("\n## Walk: ")
    assert f"{words[walks]} walks through the code" in text


def test_who_reads_of_a_larger_model_is_told_what_it_comes_with():
    """Pages with commands, notebooks and help texts; performance and science speak of what was measured here."""
    small = set(re.findall(r"data/models/([\w-]+) ", (ROOT / "MANIFEST.in").read_text(encoding="utf-8")))
    larger = re.compile("|".join(sorted((f.name for f in MODELS if f.name not in small), key=len, reverse=True)))
    told = [ROOT / "README.md", *(ROOT / "docs" / "tutorials").glob("*.md"), *(ROOT / "docs" / "notebooks").iterdir()]
    told += [ROOT / "docs" / f"{name}.md" for name in ("tour", "dreams", "edits", "figures", "models", "data")]
    for file in told:
        text = file.read_text(encoding="utf-8")
        assert not larger.search(text) or "tokenpaths-models" in text, file
    for file in (ROOT / "tokenpaths" / "cli").rglob("*.py"):
        examples = re.findall(r"Example: (.+)", file.read_text(encoding="utf-8"))
        assert not larger.search("\n".join(examples)), file


def test_examples_of_commands_name_runs_of_the_demo():
    from tokenpaths.cli.demo import DemoRun, _sets, _shipped

    runs = {DemoRun(model, data).run_id for model, modality in _shipped() for data in _sets(model, modality)}
    names = {folder.name for folder in MODELS}
    named = set()
    for file in (ROOT / "tokenpaths" / "cli").rglob("*.py"):
        for line in re.findall(r"Example: (.+)", file.read_text(encoding="utf-8")):
            named |= {word for word in re.findall(r"[\w-]+", line) if any(name in word for name in names)}
    assert named - names
    assert named - names <= runs


def test_the_page_is_called_as_it_calls_itself():
    """Views and buttons that documents name in italics; the names that they had once are gone."""
    from tokenpaths.frontend.page.selection import PLACES, VIEWS

    pages = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    assert [page for page, text in pages.items() if re.search(r"\*(Start|Export|Link)\*", text)] == []
    assert '"Export and link"' in (ROOT / "frontend" / "views" / "export.py").read_text(encoding="utf-8")
    for page in ("docs/figures.md", "docs/knowledge.md"):
        assert "*Export and link*" in pages[page]
    table = pages["docs/page_speed.md"].partition("| place |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| (\w+) \|", table, flags=re.MULTILINE)) <= {*VIEWS.values(), *PLACES.values()}
    assert f"*{VIEWS['importance']}* beside it bans every module in turn" in pages["docs/edits.md"]


def test_readme_python_runs(tmp_path, monkeypatch, capsys):
    from tests.support.runs import make_run

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.+?)```", text, flags=re.DOTALL).group(1)
    (tmp_path / "runs").mkdir()
    make_run(tmp_path / "runs", "pictures-dna-vision-top1", modality="text")
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert int(lines[0].split()[0]) > 0
    assert [line.split()[0] for line in lines[1:6]] == ["1", "2", "3", "4", "5"]
    assert {"rank", "share"} <= set(lines[6].split()), "the heads of the data frame"


@pytest.mark.parametrize("folder", MODELS, ids=lambda p: p.name)
def test_every_card_is_what_the_checkpoint_says(folder, tmp_path):
    import shutil

    from tokenpaths.engine.train.cards import write_card

    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    assert write_card(copy).read_text(encoding="utf-8") == (folder / "card.md").read_text(encoding="utf-8")
    assert (folder / "model.safetensors").stat().st_size <= 16 * 2**20


def test_the_models_page_is_what_was_measured():
    from benchmarks.checkpoints import models_page

    kept = ROOT / "benchmarks" / "results" / "checkpoints.json"
    document = json.loads(kept.read_text(encoding="utf-8"))
    page = models_page(document)
    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == page
    for folder in MODELS:
        assert re.search(rf"^\| {folder.name} \| .+ \| `tokenpaths(-models)?` \|$", page, flags=re.MULTILINE)
    assert f"| 2026-11-24 | {document['machines']['dna-n-vision-top1']['trained']} |" in page
    dna = {f.name for f in MODELS if json.loads((f / "config.json").read_text(encoding="utf-8"))["family"] == "dna"}
    assert set(document["results"]) == dna


def test_the_pages_of_claims_are_what_was_measured():
    from benchmarks.science.__main__ import FOLDER, pages

    assert {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()} == pages()


TRAINING = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def test_the_training_page_names_the_files_of_every_recipe():
    from fnmatch import fnmatch

    from tokenpaths.engine.train.catalogue import trainings

    lines = [line for line in TRAINING.splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    files_before: list[str] = []
    told = {}
    for patterns, files, _columns in rows:
        files_before = re.findall(r"`([^`]+)`", files) or ([] if "none" in files else files_before)
        told |= {
            name: tuple(files_before)
            for name in trainings()
            if any(fnmatch(name, pattern) for pattern in re.findall(r"`([^`]+)`", patterns))
        }
    assert told == {name: one.files for name, one in trainings().items()}


def test_the_files_that_the_training_page_makes_can_be_trained_on(tmp_path, monkeypatch):
    from tokenpaths.engine.families.dna_config import DNAConfig
    from tokenpaths.engine.train.corpora import fitted, load_corpora
    from tokenpaths.engine.train.recipes import RECIPES

    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.+?)```", TRAINING, flags=re.DOTALL).group(1), {})
    recipe = RECIPES["dna-vision-top1"].model_copy(update={"batch_size": 2})
    corpus, val = load_corpora(recipe, tmp_path / "my-data", None, tmp_path)
    assert corpus.classes == val.classes == ("fruit", "sea")
    assert isinstance(fitted(recipe, corpus).model, DNAConfig)
    assert fitted(recipe, corpus).model.num_classes == 2


def test_the_papers_are_linked_and_named_where_somebody_cites():
    from benchmarks.science.papers import PAPERS

    index = (ROOT / "docs" / "science" / "index.md").read_text(encoding="utf-8")
    cite = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    for paper in PAPERS:
        (address,) = re.findall(r"\(https://arxiv\.org/abs/\d{4}\.\d{5}\)", paper.cited)
        assert address in index
        assert address.strip("()") in cite
        assert re.search(r", 20\d\d, \[arXiv:", paper.cited)
    assert "CITATION.cff" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_the_cost_of_recording_is_what_was_measured():
    kept = json.loads((ROOT / "benchmarks" / "results" / "recorder.json").read_text(encoding="utf-8"))
    cost = kept["results"]["plain torch"]
    text = " ".join((ROOT / "docs" / "recorder.md").read_text(encoding="utf-8").partition("What it costs:")[2].split())
    assert kept["results"]["setting"].startswith("4 layers × 8 experts, top 2")
    assert f"{cost['tokens a step']:,} tokens, one core of an AMD EPYC, {kept['date']}" in text
    hooks, writer = (cost[f"{of} / plain step, processor time"] for of in ("hooks", "other threads (writer)"))
    assert f"the hooks took {hooks:.2%} of".replace("%", " %") in text
    assert f"in a thread of its own, {writer:.2%};".replace("%", " %") in text
    assert f"{cost['bytes a token']:.0f} bytes a token" in text
    assert f"{1e6 * cost['sealing, s'] / cost['tokens recorded']:.0f} µs a token" in text
    for key in ("recorded", "plain again"):
        ratio = cost[f"wall, {key}/plain"]
        assert f"{ratio['median']:.2f} ({ratio['q25']:.2f} to {ratio['q75']:.2f})" in text


def test_the_tutorial_for_engineers_counts_its_ways_to_a_run():
    text = (ROOT / "docs" / "tutorials" / "engineer.md").read_text(encoding="utf-8")
    ways = re.findall(r"^## (?:Take|Or) .+$", text, flags=re.MULTILINE)
    assert (
        f"There are {dict(enumerate(['no', 'one', 'two', 'three', 'four', 'five']))[len(ways)]} ways to a run" in text
    )
    for switch in ("--enable-return-routed-experts", "return_routed_experts"):
        assert switch in text
        assert switch in (ROOT / "docs" / "import.md").read_text(encoding="utf-8")


def test_the_concepts_explain_the_words_that_other_pages_take_for_known():
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    for word in ("run", "sample", "token", "ribbon", "path", "untrained twin", "nulls", "flow", "reuse"):
        assert re.search(rf"\*\*{word}\*\*", text, flags=re.IGNORECASE), word
    assert "## MaxVio" in text


def test_the_concept_of_effective_top_k_is_what_the_function_gives():
    from tokenpaths.engine.analysis.load import effective_top_k

    concept = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("## Effective top-k")[2]
    drawing = (ROOT / "docs" / "drawings" / "effective_top_k.svg").read_text(encoding="utf-8")
    assert "√M if all M share" in concept.replace("\n", " ")
    for modules in (4, 9):
        assert effective_top_k(np.full(modules, 7)) == pytest.approx(modules**0.5)
    assert "= √4 = 2<" in drawing
    assert effective_top_k(np.array([85, 5, 5, 5])) == pytest.approx(1, abs=0.02)
    assert "effective top-k near 1" in drawing
