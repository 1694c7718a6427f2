"""A stranger's first quarter of an hour: the wheel, installed, in an empty folder beside modules with our names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.conftest import PATIENCE_S, Site
from tests.browser.test_try_it import png, upload
from tests.support.installed import ROOT, Installation, build_wheels
from tests.test_packaging import wheel_models

pytestmark = pytest.mark.timeout(3600)  # whoever runs first builds, installs and traces
ADDRESS = re.compile(r"^\s*(API|page)\s+(http://[^/\s]+)", re.MULTILINE)


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="session")
def installation(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installed"), wheels[0])


@pytest.fixture(scope="session")
def demo(installation: Installation) -> Installation:
    """After ``tokenpaths demo``."""
    done = installation.run("demo")
    assert done.returncode == 0, done.stderr
    return installation


@pytest.fixture(scope="session")
def up(demo: Installation) -> Iterator[dict[str, str]]:
    """Addresses of the API and the page of ``tokenpaths up``."""
    command = demo.command("up", "--port", "0", "--page-port", "0")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(command, cwd=demo.folder, env=demo.environment, text=True, **pipes)
    said: list[str] = []
    threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True).start()
    try:
        until = time.monotonic() + 6 * PATIENCE_S
        while len(addresses := dict(ADDRESS.findall("".join(said)))) < 2:
            assert process.poll() is None, "".join(said)
            assert time.monotonic() < until, "".join(said)
            time.sleep(0.2)
        yield addresses
    finally:
        process.terminate()
        process.wait(60)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_of_the_sdist_is_that_of_the_tree_and_has_all_of_it(wheels: tuple[Path, Path]) -> None:
    by_sdist, by_tree = map(contents, wheels)
    assert by_sdist.keys() == by_tree.keys()
    assert [name for name in by_tree if by_tree[name] != by_sdist[name]] == []
    folders = {name: f"tokenpaths/{name}" for name in ("engine", "backend", "frontend", "data")} | {
        "tokenpaths": "tokenpaths"
    }
    small, tree = wheel_models(), wheels[0].parents[1] / "tree"
    for folder, inside in folders.items():
        for file in (tree / folder).rglob("*"):
            path = file.relative_to(tree / folder)
            larger = (
                folder == "data" and len(path.parts) > 2 and path.parts[0] == "models" and path.parts[1] not in small
            )
            if file.is_file() and "__pycache__" not in path.parts and not larger:
                assert by_tree[f"{inside}/{path.as_posix()}"] == file.read_bytes(), path
    assert wheels[0].stat().st_size < 50e6


def test_the_demo_and_ls(demo: Installation) -> None:
    listed = json.loads(demo.run("ls", "--json").stdout)
    assert {row["model"] for row in listed["models"]} == wheel_models()
    assert [row["problem"] for row in listed["models"] if row["problem"]] == []
    assert {card["modality"] for card in listed["runs"]} == {"vision", "text"}
    assert {card["status"] for card in listed["runs"]} == {"sealed"}
    before = {card["run"]: card["created_at"] for card in listed["runs"]}
    again = demo.run("demo")
    assert again.returncode == 0, again.stderr
    after = {card["run"]: card["created_at"] for card in json.loads(demo.run("ls", "runs", "--json").stdout)["runs"]}
    assert {run: after[run] for run in before} == before, "a second demo makes nothing again"


def test_the_page_is_clicked_through(up: dict[str, str], demo: Installation, visit) -> None:
    assert httpx.get(f"{up['API']}/healthz", trust_env=False, timeout=60).json()["status"] == "ok"
    until = time.monotonic() + PATIENCE_S  # the worker may still be starting
    while (state := httpx.get(f"{up['API']}/api/v1/health", trust_env=False, timeout=60).json())["status"] != "ok":
        assert time.monotonic() < until, state
        time.sleep(0.5)
    cards = httpx.get(f"{up['API']}/api/v1/runs", trust_env=False, timeout=60).json()["runs"]
    run = next(card["run"] for card in cards if card["model"] == "dna-vision-top1")
    here = visit(on=Site(up["page"], demo.home)).open()
    here.heading("See how a network routes its work")
    shots = Path(os.environ.get("INSTALLED_SCREENSHOTS", demo.home))
    here.page.screenshot(path=shots / "start.png")
    for view, question in {"routes": "Where do tokens go?", "samples": "Which samples are there?"}.items():
        here.open(view=view, run=run)
        here.heading(question)
        expect(here.page.locator('[data-testid="stVegaLiteChart"] svg').first).to_be_visible()
        here.page.screenshot(path=shots / f"{view}.png")
    here.open(view="home", model="dna-vision-top1")
    upload(here, "mine.png", png())
    expect(here.page.locator(".tp-patch")).to_have_count(64)
    here.settled()
    assert here.query()["run"]
    here.page.screenshot(path=shots / "try.png")


def test_a_report_and_an_imported_log(demo: Installation) -> None:
    run = json.loads(demo.run("ls", "runs", "--json").stdout)["runs"][0]["run"]
    done = demo.run("report", "--run", run, "--out", "report.html")
    assert done.returncode == 0, done.stderr
    page = (demo.folder / "report.html").read_text(encoding="utf-8")
    assert len(page) > 200_000, "with its scripts"
    assert f"<title>{run}" in page or run in page.partition("</h1>")[0]
    np.save(
        demo.folder / "routed.npy",
        np.random.default_rng(0).permuted(np.tile(np.arange(8), (40, 3, 1)), axis=2)[..., :2],
    )
    done = demo.run("import", "routed.npy", "--run", "served", "--experts", "8")
    assert done.returncode == 0, done.stderr
    cards = json.loads(demo.run("ls", "runs", "--json").stdout)["runs"]
    assert [card["num_tokens"] for card in cards if card["run"] == "served"] == [40]


def test_a_notebook_widget(installation: Installation, browser: Browser) -> None:
    np.save(installation.folder / "noted.npy", np.random.default_rng(0).random((40, 3, 8)).argsort(axis=2)[:, :, :2])
    done = installation.run("import", "noted.npy", "--run", "noted", "--experts", "8")
    assert done.returncode == 0, done.stderr
    code = "import sys, tokenpaths; widget = tokenpaths.explore(tokenpaths.Run.open(sys.argv[1])); widget.token = 3; "
    code += "print(tokenpaths.__file__); print(widget._repr_mimebundle_()[0]['text/html'])"
    run = re.search(r"is in (.+)$", done.stdout, re.MULTILINE)[1]
    command = [str(installation.venv / "bin" / "python"), "-c", code, run]
    pipes = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, cwd=installation.folder, env=installation.environment, **pipes)
    assert done.returncode == 0, done.stderr
    where, _, html = done.stdout.partition("\n")
    assert Path(where).parent == installation.package
    page = browser.new_page()
    page.set_content(html)
    expect(page.locator("svg").first).to_be_visible()
    page.close()


def test_the_example_plugin_is_installed_beside_it(demo: Installation, tmp_path: Path) -> None:
    log = demo.folder / "served.routelog"
    log.write_text("#routelog model=toy layers=1 top_k=2 experts=8\nfirst;3,5;0.75,0.25\nfirst;0,1;0.5,0.5\n")
    assert demo.run("import", log.name, "--run", "plugged").returncode == 2
    demo.install(shutil.copytree(ROOT / "docs" / "plugin_example", tmp_path / "example"))
    done = demo.run("import", log.name, "--run", "plugged")
    assert done.returncode == 0, done.stderr
    assert re.search(r"plugins +family halves, importer routelog", demo.run("doctor").stdout)


def test_a_broken_installation_says_so(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    broken = Installation(tmp_path, wheels[0])
    models = broken.package / "data" / "models"
    (models / "dna-vision-top1" / "model.safetensors").unlink()
    (models / "hmodel-languages" / "model.safetensors").unlink()
    done = broken.run("demo")
    assert done.returncode == 2, done.stderr
    assert "model.safetensors is missing" in done.stderr
    shutil.rmtree(models)
    done = broken.run("demo")
    assert done.returncode == 2, done.stderr
    assert "This installation holds no models" in done.stderr
    (broken.package / "frontend" / "app.py").unlink()
    done = broken.run("up", "--port", "0", "--page-port", "0")
    assert done.returncode == 2, done.stderr
    assert "is missing" in done.stderr
