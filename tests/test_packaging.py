"""The distributions, the container and the site say the same as the tree that they are made of."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import tokenpaths
from tests.support.plugins import installed, write_plugin
from tokenpaths.backend import __version__
from tokenpaths.engine.base import model_folders
from tokenpaths.engine.base.files import SHIPPED_MODELS
from tokenpaths.engine.families.checkpoint_config import CheckpointError, find_checkpoint
from tokenpaths.engine.store.ask.questions import QUESTIONS

ROOT = Path(__file__).resolve().parent.parent
LARGEST_WHEEL = 40e6


def load(name: str) -> ModuleType:
    """A script of ``packaging/`` as a module."""
    spec = importlib.util.spec_from_file_location(f"packaging_{name}", ROOT / "packaging" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel_models() -> set[str]:
    return load("wheels").small_models()


def test_the_models_of_the_wheel_exist_and_are_small_enough():
    small = wheel_models()
    assert {"dna-vision-top1", "dna-text-top1", "hmodel-languages", "raytracing-digits"} <= small
    sizes = [(SHIPPED_MODELS / name / "model.safetensors").stat().st_size for name in small]
    assert sum(sizes) < LARGEST_WHEEL


def test_both_distributions_together_have_every_model():
    manifest = (ROOT / "MANIFEST.in").read_text()
    assert wheel_models() == set(re.findall(r"data/models/([\w-]+) ", manifest))
    sums = (SHIPPED_MODELS / "SHA256SUMS").read_text()
    assert set(re.findall(r"  ([\w-]+)/", sums)) == {path.parent.name for path in SHIPPED_MODELS.glob("*/config.json")}
    for digest, name in map(str.split, sums.splitlines()):
        with open(SHIPPED_MODELS / name, "rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest, f"{name} was trained again"


def test_every_file_that_is_no_code_is_in_the_source_distribution():
    """Scripts, styles, icons: what a wheel without them would only miss when it runs."""
    rules = re.findall(r"^recursive-include (\S+) (.+)$", (ROOT / "MANIFEST.in").read_text(), re.MULTILINE)
    patterns = {folder: words.split() for folder, words in rules}
    for folder in ("tokenpaths", "engine", "backend", "frontend"):
        for file in (ROOT / folder).rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                assert any(fnmatch(file.name, pattern) for pattern in patterns[folder]), file


def test_every_bundled_picture_has_a_source():
    notice, page = (ROOT / "NOTICE").read_text(), (ROOT / "docs" / "data.md").read_text()
    images = json.loads((ROOT / "data" / "samples" / "index.json").read_text())["images"]
    assert images[0]["file"] == "coffee.png", (
        "a newcomer's first picture is a photograph of a class that the model knows"
    )
    for image in images:
        assert (ROOT / "data" / "samples" / image["file"]).is_file()
        if "photograph" in image["title"]:
            assert image["file"] in notice
            assert image["file"] in page


def test_every_model_has_a_row_of_what_its_data_allows():
    """In NOTICE, which travels with the weights, and on the page about data; once each."""
    notice = (ROOT / "NOTICE").read_text().partition("Weights (")[2]
    page = (ROOT / "docs" / "data.md").read_text().partition("## What the shipped models were trained on")[2]
    rows = {
        "NOTICE": [words.split(", ") for words in re.findall(r"^- ([\w*, -]+):", notice, re.MULTILINE)],
        "data.md": [re.findall(r"`([^`]+)`", cell) for cell in re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE)],
    }
    for name in (file.parent.name for file in SHIPPED_MODELS.glob("*/config.json")):
        for where, patterns in rows.items():
            assert sum(any(fnmatch(name, one) for one in row) for row in patterns) == 1, (where, name)


def test_a_model_of_the_other_distribution_is_named(tmp_path):
    with pytest.raises(CheckpointError, match="pip install tokenpaths-models"):
        find_checkpoint("dipaco-4x4", [tmp_path])
    assert model_folders.where_to_get("nobody") is None


def test_models_come_from_entry_points_and_a_folder_of_ones_own(tmp_path, monkeypatch):
    (tmp_path / "theirs").mkdir()
    code = f"MODELS, NOWHERE, SEVEN = {str(tmp_path / 'theirs')!r}, {str(tmp_path / 'nowhere')!r}, 7"
    names = {"a": "gone:X", "b": "my_models:NOWHERE", "c": "my_models:SEVEN", "mine": "my_models:MODELS"}
    write_plugin(tmp_path / "site", "my_models", code, {"tokenpaths.models": names})
    model_folders.installed_folders.cache_clear()
    try:
        with installed(tmp_path / "site"), pytest.warns(UserWarning, match="the models '.' of my_models") as warned:
            folders = model_folders.models_folders(tmp_path, [tmp_path / "settings", tmp_path / "own"])
    finally:
        model_folders.installed_folders.cache_clear()
    first, second, third = sorted(str(warning.message).partition(" cannot be found: ")[2] for warning in warned)
    assert "not int" in first or "not 'int'" in first
    assert second == "it cannot be imported (ModuleNotFoundError: No module named 'gone')"
    assert third == f"there is no folder {tmp_path / 'nowhere'}"
    names = ("models", "settings", "own")
    assert folders == [*(tmp_path / name for name in names), SHIPPED_MODELS, tmp_path / "theirs"]


def test_the_services_of_the_compose_file_are_closed():
    container = load("container")
    variables = {"TOKENPATHS_TOKEN": "t" * 16, "TOKENPATHS_WORKER_SECRET": "s" * 16}
    services = container.services(variables)
    assert set(services) == {"worker", "api", "page"}
    for service in services.values():
        assert service["read_only"]
        assert service["tmpfs"] == ["/tmp"]
        assert service["user"] == "tokenpaths"
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["environment"]["TOKENPATHS_TOKEN"] == "t" * 16
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert services["page"]["environment"]["TOKENPATHS_EMBED_ORIGINS"] == "", "nobody frames it unless a site is named"
    framed = container.services(variables | {"TOKENPATHS_EMBED_ORIGINS": "https://docs.example.com"})
    assert framed["page"]["environment"]["TOKENPATHS_EMBED_ORIGINS"] == "https://docs.example.com"
    with pytest.raises(SystemExit, match="choose a secret"):
        container.services({"TOKENPATHS_TOKEN": "t" * 16})


def test_the_image_has_the_documentation_and_torch_as_it_is_asked_for():
    container = load("container")
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    stages = [line.split()[-1] for line in lines if line.startswith("FROM")]
    assert stages == ["program", "documentation", "program"]
    built = lines[lines.index("FROM program AS documentation") :]
    ignored = (ROOT / ".dockerignore").read_text().split()
    for part in ("mkdocs.yml", "packaging", "docs"):
        assert any(line.startswith(f"COPY {part} ") for line in built)
        assert part not in ignored
    assert lines[-1] == "COPY --from=documentation /app/site site"
    secrets = {"TOKENPATHS_TOKEN": "t" * 16, "TOKENPATHS_WORKER_SECRET": "s" * 16}
    names = {"TOKENPATHS_PAGE_NAME": "paths.example.com", "TOKENPATHS_API_NAME": "api.example.com"}
    gpu = {"TORCH_INDEX": "https://download.pytorch.org/whl/cu130", "TORCH_BUILD": "+cu130"}
    services = container.services(secrets | names | gpu)
    assert "--server.allowedHosts paths.example.com" in services["page"]["command"]
    assert services["api"]["environment"]["TOKENPATHS_ALLOWED_HOSTS"] == "api api.example.com"
    assert services["worker"]["build"]["args"] == gpu
    default = container.services(secrets)["worker"]["build"]["args"]
    assert [f"ARG {name}={value}" for name, value in default.items()] == [line for line in lines if "ARG " in line]
    page = (ROOT / "docs" / "deployment.md").read_text()
    for name in (*names, *gpu):
        assert name in page


def test_drawings_are_those_of_their_script(tmp_path, monkeypatch):
    drawings = load("drawings")
    monkeypatch.setattr(drawings, "FOLDER", tmp_path)
    drawings.main()
    for file in tmp_path.iterdir():
        assert (ROOT / "docs" / "drawings" / file.name).read_text() == file.read_text()


def test_every_page_is_in_the_sites_navigation():
    text = (ROOT / "mkdocs.yml").read_text().replace("!!python", "")
    named = set(re.findall(r"([\w/]+\.md)$", yaml.safe_dump(yaml.safe_load(text)["nav"]), re.MULTILINE))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert {"deployment.md", "teaching.md", "notebooks.md"} <= named
    assert pages - named == {"dreams/README.md"} & pages


def test_generated_parts_of_the_reference_are_complete(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    hooks = load("site_hooks")
    commands = hooks.command_line()
    assert commands.count("\n## `tokenpaths ") > 15
    assert "`--data-dir`" in commands
    tables = hooks.file_format()
    for name in ("token_coded", "path_coded", "member", "path_top", "label_path"):
        assert f"CREATE TABLE {name}(" in tables
    assert "| `path` | `rowid` BIGINT, `path_id` INTEGER, `rank` INTEGER, `ribbon` UTINYINT[]," in tables
    for name in ("token", "path_member", "token_sample"):
        assert re.search(rf"^\| `{name}` \| ", tables, re.MULTILINE)
        assert f"CREATE VIEW {name} AS" in tables
    assert '[project.entry-points."tokenpaths.importers"]' in hooks.plugin_example()
    shown = hooks.plugin_example() + hooks.plugin_family() + hooks.plugin_job()
    for file in (ROOT / "docs" / "plugin_example").iterdir():
        assert file.is_dir() or file.read_text() in shown, file.name
    pages = "".join(file.read_text() for file in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"^<!-- generated: (\w+) -->$", pages, re.MULTILINE)) == set(hooks.GENERATED)
    assert max(len(line) for line in tables.splitlines() if line.startswith(("CREATE", "    "))) < 90
    questions = hooks.questions()
    assert {question.name for question in QUESTIONS} == set(re.findall(r"^### `(\w+)`$", questions, re.MULTILINE))
    assert "| `limit` | Most entries in one answer (1 to 1,000) |" in questions
    paths = json.loads((ROOT / "tests" / "goldens" / "openapi.json").read_text())["paths"]
    named = {
        (method.lower(), path) for method, path in re.findall(r"^\| `(\w+)` `(\S+)` \|", hooks.routes(), re.MULTILINE)
    }
    assert named == {(method, path) for path, methods in paths.items() for method in methods}
    assert sys.modules.get("mkdocs") is None or hooks.LINK
    cells = json.loads((ROOT / "docs" / "notebooks" / "first_flow.ipynb").read_text())["cells"]
    for cell in cells:
        assert "".join(cell["source"]).lstrip("#").split("](../")[0] in hooks.notebooks()
    public = set(re.findall(r"^::: [\w.]+\.(\w+)$", hooks.python_names(), re.MULTILINE))
    assert public == set(tokenpaths.__all__) - {"__version__", "charts"}
    drawn = set(re.findall(r"^\| `(\w+)\(.*\)` \| \S", hooks.chart_names(), re.MULTILINE))
    assert drawn == {name for name in tokenpaths.charts.__all__ if callable(getattr(tokenpaths.charts, name))}


def test_the_page_about_jobs_names_the_fields_of_each_request():
    """Those that are needed in its table, all of them below."""
    from tokenpaths.engine.jobs.registry import SHIPPED_KINDS, find_kind

    hooks = load("site_hooks")
    page = (ROOT / "docs" / "jobs.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", page.partition("| kind |")[2], re.MULTILINE))
    assert rows.keys() == set(SHIPPED_KINDS)
    below = dict(re.findall(r"^### `(\w+)`\n\n((?:\|.*\n)+)", hooks.job_requests() + "\n", re.MULTILINE))
    for kind in SHIPPED_KINDS:
        fields = find_kind(kind).Request.model_fields
        needed = {name for name, field in fields.items() if field.is_required()}
        assert set(re.findall(r"`(\w+)`", rows[kind])) == needed, kind
        told = re.findall(r"^\| (\*{0,2})`(\w+)`\*{0,2} \| .* \| \S.* \|$", below[kind], re.MULTILINE)
        assert {name for _, name in told} == fields.keys(), kind
        assert {name for stars, name in told if stars} == needed


def test_the_page_about_the_file_reads_weights_and_ribbons_as_the_program_does(tmp_path):
    """Of a run with one module a step, whose `token` has no ribbon, and of one with two."""
    import duckdb
    import numpy as np

    from tests.support.runs import make
    from tokenpaths.engine.store.ask.run import Run
    from tokenpaths.engine.store.file.weight_codes import LINEAR, code_for

    page = (ROOT / "docs" / "reference" / "file_format.md").read_text()
    query = re.search(r"`(SELECT t\.\*, p\.ribbon .+?)`", page)[1]
    for top_k in (1, 2):
        made = make(f"top-{top_k}", "vision", samples=3, top_k=top_k)
        file = made.write(tmp_path)
        with duckdb.connect(str(file), read_only=True) as con:
            columns = [name for name, *_ in con.execute("DESCRIBE token").fetchall()]
            assert ("m0" in columns) == (top_k > 1)
            ribbons = con.execute(f"SELECT ribbon FROM ({query}) ORDER BY sample, token").fetchall()
            levels = np.array(con.execute("SELECT w0 FROM token ORDER BY sample, token").fetchall())[:, 0]
        with Run.open(file) as run:
            table = run.frames.table("token").sort_values(["sample", "token"])
            paths = {tuple(np.ravel(row["ribbon"])) for row in run.paths(limit=1000)["paths"]}
        assert np.allclose(table["w0"], levels / 255, atol=1e-6)
        assert {tuple(ribbon) for (ribbon,) in ribbons} == paths
    levels = np.arange(256)
    other = code_for(128, 8)
    assert other.name == "logarithmic"
    told = np.where(levels >= 15, 2.0 ** ((levels - 255) / 24), levels / 15360)
    assert np.allclose(other.decode(levels.astype(np.uint8)), told, rtol=1e-3, atol=1e-7)
    assert np.allclose(LINEAR.decode(levels.astype(np.uint8)), levels / 255)
    for formula in ("level / 255", "2^((level − 255) / 24)", "level / 15360"):
        assert formula in page


def test_the_version_is_the_same_everywhere():
    version = load("wheels").version()
    assert version == __version__
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert re.search(r"^## \[(\d.*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version
