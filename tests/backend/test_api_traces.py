"""POST /traces from the form to the run, with a real worker, real tiny models and the real decoder process."""

from __future__ import annotations

import io
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.backend.conftest import API, SECRET, Served, api_for, png, problem, serving
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.settings import load_settings
from tokenpaths.backend.worker.decoder import Decoder
from tokenpaths.backend.worker.worker import SECRET_HEADER, create_worker
from tokenpaths.engine.base.errors import UserError


def send(
    served: Served, model: str, *, image: bytes | None = None, text: str | bytes | None = None, controls: str = ""
) -> httpx.Response:
    """POST /traces like a browser's form."""
    files: dict[str, Any] = {"model": (None, model)}
    if controls:
        files["controls"] = (None, controls)
    if image is not None:
        files["image"] = ("picture.png", image, "image/png")
    if text is not None:
        files["text"] = (None, text)
    return served.client.post(f"{API}/traces", files=files)


def picture(format: str, size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    """A picture in some format."""
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(buffer, format, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A small PNG that claims many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000) * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def animated() -> bytes:
    frames = [Image.new("RGB", (32, 32), (i * 60, 0, 0)) for i in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def test_what_a_run_is_for_is_its_split(tracing: Served) -> None:
    def asked(purpose: str | None) -> httpx.Response:
        files: dict[str, Any] = {"model": (None, "tiny-text"), "text": (None, "some words")}
        files |= {} if purpose is None else {"purpose": (None, purpose)}
        return tracing.client.post(f"{API}/traces", files=files)

    splits = [
        tracing.get(f"/runs/{asked(purpose).json()['run']}").json()["split"] for purpose in (None, "try", "detour")
    ]
    assert splits == ["try", "try", "detour"]
    for bad in ("", "Detour", "x" * 1000):
        answer = asked(bad)
        assert (answer.status_code, answer.json()["field"]) == (422, "purpose")
        assert "it may be `try` or `detour`" in answer.json()["detail"]


def test_an_image_becomes_a_run(tracing: Served) -> None:
    answer = send(tracing, "tiny-vision", image=png(100, 60))
    assert answer.status_code == 201, answer.text
    body = answer.json()
    assert (body["sample"], body["model"], body["modality"]) == (0, "tiny-vision", "vision")
    assert answer.headers["location"] == f"{API}/runs/{body['run']}"
    run = tracing.client.get(answer.headers["location"]).json()
    assert (run["model"], run["num_samples"], run["num_tokens"], run["num_steps"]) == ("tiny-vision", 1, 16, 3)
    sample = tracing.get(f"/runs/{body['run']}/samples/0").json()
    assert sample["grid"] == {"rows": 4, "cols": 4}
    assert sample["prediction"] in ("cat", "dog", "bird")
    assert sample["source"] == "picture.png"
    assert run["findings"]["notes"] == [
        "1 picture not square is cut: the square in the middle is all that is seen (picture.png)"
    ]
    square = send(tracing, "tiny-vision", image=png(60, 60)).json()["run"]
    assert "notes" not in tracing.get(f"/runs/{square}").json()["findings"]
    assert {len(token["ribbon"]) for token in sample["tokens"]} == {3}
    shown = tracing.get(f"/runs/{body['run']}/samples/0/image")
    assert Image.open(io.BytesIO(shown.content)).size[0] % 4 == 0


def test_a_text_becomes_a_run(tracing: Served) -> None:
    text = "the cat sat on the mat 🙂 привет\x00\u202eend"
    answer = send(tracing, "tiny-text", text=text)
    assert answer.status_code == 201, answer.text
    sample = tracing.get(f"/runs/{answer.json()['run']}/samples/0").json()
    assert sample["text"] == text
    assert sample["tokens"][0]["text"] == text[: sample["tokens"][0]["char_end"]]
    assert len(sample["tokens"]) == sample["num_tokens"] > 10


def test_equal_uploads_are_runs_of_their_own(tracing: Served) -> None:
    """The same text twice: two addresses, the same ribbons."""
    runs = [send(tracing, "tiny-text", text="the moon").json()["run"] for _ in range(2)]
    assert runs[0] != runs[1]
    samples = [tracing.get(f"/runs/{run}/samples/0").json() for run in runs]
    assert samples[0]["tokens"] == samples[1]["tokens"]


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
@pytest.mark.parametrize("size", [(32, 32), (1, 1), (500, 3)])
def test_formats_and_sizes(tracing: Served, format: str, size: tuple[int, int]) -> None:
    assert send(tracing, "tiny-vision", image=picture(format, size)).status_code == 201


@pytest.mark.parametrize(
    ("name", "data", "status"),
    [
        ("pdf named png", b"%PDF-1.7\n" + b"x" * 1000, 415),
        ("text named png", b"hello", 415),
        ("svg", b"<svg xmlns='http://www.w3.org/2000/svg'><image href='http://evil.example/'/></svg>", 415),
        ("pickle", b"\x80\x04\x95\x10\x00\x00\x00", 415),
        ("tiff", b"II*\x00" + bytes(100), 415),
        ("truncated png", png(400, 400)[:-200], 422),
        ("truncated jpeg", picture("JPEG", (300, 300))[:2000], 422),
        ("header only", png()[:20], 422),
        ("animated gif", animated(), 422),
        ("bomb of one line", bomb(2**30, 1), 413),
        ("too few pixels inside", bomb(4_000, 4_000), 422),
    ],
)
def test_hostile_images(tracing: Served, name: str, data: bytes, status: int) -> None:
    before = sorted(tracing.runs_dir.iterdir())
    problem(send(tracing, "tiny-vision", image=data), status, "image")
    assert sorted(tracing.runs_dir.iterdir()) == before
    assert tracing.client.get("/healthz").status_code == 200


def test_too_many_tokens(tracing: Served) -> None:
    body = problem(send(tracing, "tiny-text", text="zq " * 3000), 413, "text")
    assert "2,000" in body["detail"]
    problem(send(tracing, "tiny-text", text="zq" * 90_000), 413, "text")


def test_as_many_tokens_as_allowed(tracing: Served) -> None:
    """Longer than the model's context of 64: traced in windows."""
    answer = send(tracing, "tiny-text", text="z" * 2000)
    assert answer.status_code == 201, answer.text
    assert 100 < tracing.get(f"/runs/{answer.json()['run']}").json()["num_tokens"] <= 2000


@pytest.mark.parametrize("text", [b"\xed\xa0\x80", b"\xff", b"", b"   "])
def test_hostile_texts(tracing: Served, text: bytes) -> None:
    problem(send(tracing, "tiny-text", text=text), 422, "text")


def test_wrong_kind_of_input(tracing: Served) -> None:
    assert "takes an image" in problem(send(tracing, "tiny-vision", text="hello"), 422, "text")["detail"]
    assert "takes a text" in problem(send(tracing, "tiny-text", image=png()), 422, "image")["detail"]


def test_model_that_does_not_exist(tracing: Served) -> None:
    assert "did you mean `tiny-vision`" in problem(send(tracing, "tiny-visoin", image=png()), 422, "model")["detail"]
    problem(tracing.get("/models/tiny-visoin"), 404, "model")
    problem(tracing.get("/models/..%2ftiny-vision"), 404)


def test_models(tracing: Served) -> None:
    models = {row["model"]: row for row in tracing.get("/models").json()["models"]}
    assert models["tiny-vision"]["modality"] == "vision"
    assert models["tiny-text"]["problem"] is None
    details = tracing.get("/models/tiny-vision").json()
    assert details["card"].startswith("# tiny-vision")
    assert details["config"]["config"]["width"] == 16
    assert tracing.get("/models/tiny-text").json()["card"] is None


def test_corrupt_checkpoint(tracing: Served, models_dir: Any) -> None:
    """A model whose weights were cut says so; the others go on; mended, it is loaded anew."""
    import shutil

    folder = models_dir / "tiny-broken"
    shutil.copytree(models_dir / "tiny-vision", folder)
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    try:
        weights.write_bytes(whole[: len(whole) // 2])
        assert "damaged" in problem(send(tracing, "tiny-broken", image=png()), 422)["detail"]
        assert send(tracing, "tiny-vision", image=png()).status_code == 201
        (folder / "config.json").write_text('{"family": "dna", "config": {"auto_map": "evil.py"}}')
        rows = {row["model"]: row for row in tracing.get("/models").json()["models"]}
        assert rows["tiny-broken"]["problem"]
        assert tracing.get("/models/tiny-broken").json()["problem"]
        problem(send(tracing, "tiny-broken", image=png()), 422)
        shutil.copy(models_dir / "tiny-vision" / "config.json", folder)
        weights.write_bytes(whole)
        assert send(tracing, "tiny-broken", image=png()).status_code == 201
    finally:
        shutil.rmtree(folder)


def test_model_work_is_never_done_twice_at_once(tracing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenpaths.engine.tracing.trace_run

    real, inside, seen = tokenpaths.engine.tracing.trace_run.trace_samples, [], []

    def watched(*arguments: Any, **options: Any) -> Any:
        inside.append(1)
        seen.append((len(inside), threading.current_thread().name))
        try:
            return real(*arguments, **options)
        finally:
            inside.pop()

    monkeypatch.setattr(tokenpaths.engine.tracing.trace_run, "trace_samples", watched)
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: codes.append(send(tracing, "tiny-text", text="the cat").status_code))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [201] * 4
    assert {count for count, _ in seen} == {1}
    assert len({name for _, name in seen}) == 1


def test_full_queue_is_told_to_come_back(tracing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, decoded = tracing.app.state.worker, []
    monkeypatch.setattr(worker.decoder, "decode", decoded.append)
    worker.waiting += 100
    try:
        for given in ({"text": "the cat"}, {"image": png(), "model": "tiny-vision"}):
            answer = send(tracing, **{"model": "tiny-text", **given})
            assert problem(answer, 503)["type"] == "urn:tokenpaths:busy"
            assert answer.headers["retry-after"]
    finally:
        worker.waiting -= 100
    assert not decoded, "what is refused is not read first"


def test_a_trace_that_nobody_waits_for_any_more_leaves_no_run(tracing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenpaths.engine.tracing.trace_run

    worker, real = tracing.app.state.worker, tokenpaths.engine.tracing.trace_run.trace_samples
    calls = []

    def slow(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        path = real(*arguments, **options)
        time.sleep(0.3)
        return path

    assert send(tracing, "tiny-text", text="the cat").status_code == 201  # the model is loaded
    before = sorted(tracing.runs_dir.iterdir())
    monkeypatch.setattr(tokenpaths.engine.tracing.trace_run, "trace_samples", slow)
    monkeypatch.setattr(worker, "settings", worker.settings.model_copy(update={"trace_seconds": 0.2}))
    answer = problem(send(tracing, "tiny-text", text="the cat"), 503)
    assert "trace_seconds" in answer["detail"]
    monkeypatch.setattr(worker, "settings", worker.settings.model_copy(update={"trace_seconds": -1.0}))
    problem(send(tracing, "tiny-text", text="the cat"), 503)
    assert len(calls) == 1, "what came too late was not begun"
    assert sorted(tracing.runs_dir.iterdir()) == before


def test_full_disk_is_507(tracing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    import tokenpaths.engine.tracing.trace_run

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tokenpaths.engine.tracing.trace_run, "trace_samples", full)
    problem(send(tracing, "tiny-text", text="the cat"), 507)


def test_unforeseen_error_in_the_worker_is_a_bare_500(tracing: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenpaths.engine.tracing.trace_run

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(tokenpaths.engine.tracing.trace_run, "trace_samples", broken)
    answer = send(tracing, "tiny-text", text="the cat")
    problem(answer, 500)
    assert "secret of the house" not in answer.text


def test_decoder_process_dies_and_comes_back(tracing: Served) -> None:
    decoder: Decoder = tracing.app.state.worker.decoder
    assert send(tracing, "tiny-vision", image=png()).status_code == 201
    child = decoder.reader.pid
    assert child is not None
    os.kill(child, signal.SIGKILL)
    assert send(tracing, "tiny-vision", image=png()).status_code == 201
    assert decoder.reader.pid != child


def test_decoder_process_is_confined() -> None:
    """No torch, no secrets, limits set; what takes too long is stopped and the next image works."""
    decoder = Decoder(limit_s=20, memory_megabytes=512)
    try:
        assert decoder.decode(png(30, 20)).size == (30, 20)
        child = decoder.reader.pid
        try:
            maps = Path(f"/proc/{child}/maps").read_text()
            limits = Path(f"/proc/{child}/limits").read_text()
            environment = Path(f"/proc/{child}/environ").read_text()
        except OSError:
            pytest.skip("needs /proc")
        assert "torch" not in maps
        assert "duckdb" not in maps
        assert "TOKENPATHS" not in environment
        assert str(512 * 2**20) in limits
    finally:
        decoder.close()
    hasty = Decoder(limit_s=0.0001, memory_megabytes=512)
    try:
        with pytest.raises(Problem, match="took longer") as caught:
            hasty.decode(picture("PNG", (3000, 3000)))
        assert caught.value.status == 422
    finally:
        hasty.close()


def test_decoder_without_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 megapixels in a process that may have little: a problem, not a crash."""
    decoder = Decoder(limit_s=30, memory_megabytes=256)
    try:
        with pytest.raises(Problem) as caught:
            decoder.decode(picture("PNG", (4000, 4000)))
        assert caught.value.status in (413, 422)
    except pytest.fail.Exception:
        pytest.skip("256 MB were enough here")
    finally:
        decoder.close()


def test_worker_wants_its_secret(models_dir: Any, tmp_path: Any) -> None:
    options = {"data_dir": tmp_path, "models_dirs": (models_dir,), "warm_models": False}
    with pytest.raises(UserError, match="SECRET"):
        create_worker(load_settings(**options))
    with serving(create_worker(load_settings(**options, worker_secret=SECRET))) as url:
        with httpx.Client(base_url=url, trust_env=False) as client:
            assert client.get("/healthz").status_code == 401
            health = client.get("/healthz", headers={SECRET_HEADER: SECRET})
            assert (health.status_code, health.json()["problem"], health.json()["restart"]) == (200, None, False)
            for path, method in (("/models", "GET"), ("/models/tiny-text", "GET"), ("/traces", "POST")):
                for headers in ({}, {SECRET_HEADER: "wrong"}, {"authorization": f"Bearer {SECRET}"}):
                    assert client.request(method, path, headers=headers).status_code == 401
            assert client.get("/models", headers={SECRET_HEADER: SECRET}).status_code == 200
        for given, code in ((SECRET, 0), ("wrong", 1)):
            check = [sys.executable, "-P", "-m", "tokenpaths.cli.support.healthy", f"{url}/healthz"]
            assert subprocess.run(check, env=os.environ | {"TOKENPATHS_WORKER_SECRET": given}).returncode == code
        with api_for(tmp_path, worker_url=url, worker_secret="another-secret-entirely") as served:
            assert problem(served.get("/models"), 503)["type"] == "urn:tokenpaths:worker-away"


def test_warm_up_loads_every_model(models_dir: Any, tmp_path: Any) -> None:
    """After the warm-up all models are there, and no run of it."""
    app = create_worker(load_settings(data_dir=tmp_path, models_dirs=(models_dir,), worker_secret=SECRET))
    worker = app.state.worker
    for name in ("tiny-text", "tiny-vision"):
        worker.warm(name)
    assert sorted(worker.models.held) == ["tiny-text", "tiny-vision"]
    assert not (tmp_path / "runs").exists()
    worker.warm("nothing-of-that-name")  # is logged, not raised
    worker.thread.shutdown()


@pytest.mark.parametrize(
    ("controls", "field", "words"),
    [
        ('{"alpha": 0.5}', "alpha", "a dna model has no control 'alpha'; it has: edits"),
        ("[1, 2]", "controls", "but it is list"),
        ("{alpha", "controls", "it cannot be read as JSON"),
        ('{"edits": [], "edits": []}', "controls", "the key 'edits' is there twice"),
        ("9" * 70000, "controls", "more than 65536 bytes"),
        ("[" * 4000, "controls", "nested too deeply"),
    ],
)
def test_controls_that_do_not_exist_are_named(tracing: Served, controls: str, field: str, words: str) -> None:
    answer = send(tracing, "tiny-text", text="the cat", controls=controls)
    assert words in problem(answer, 422, field)["detail"]


def test_empty_controls_change_nothing(tracing: Served) -> None:
    answer = send(tracing, "tiny-text", text="the cat", controls="{}")
    assert answer.status_code == 201
    assert "controls" not in tracing.get(f"/runs/{answer.json()['run']}").json()["config"]


def test_a_model_says_which_controls_it_has(tracing: Served) -> None:
    assert list(tracing.get("/models/tiny-text").json()["controls"]["properties"]) == ["edits"]
