"""What strangers send: too much, bombs, pickles, odd text."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.crew import Crew
from tests.backend.conftest import API, Served, problem
from tests.backend.test_api_traces import send
from tests.backend.test_api_uploads import form, part
from tests.faults.conftest import Keep, memory
from tests.support.jobs_over_rest import until
from tokenpaths.backend.problems import Problem
from tokenpaths.backend.worker.decoder import Decoder
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.families.checkpoint_config import CheckpointError, read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model, save_checkpoint
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples

MEGABYTE = 1_000_000
BOUNDARY = "b0undary"
TEXTS = [
    "plain",
    "NUL \0 inside",
    "שלום עולם \u202ertl\u202c مرحبا",
    "👩‍👩‍👧 🏳️‍🌈",
    "<script>window.bad = 1</script>",
    "<img src=x onerror=alert(1)>",
    "'; DROP TABLE token; --",
    "e\u0301\u0335\u0327",
    "\ufeffbom",
    "\x1b[31mred\x07",
    "a\r\nb\tc",
    "{{7*7}} ${7*7} $x^2$ :material/delete: [a](javascript:alert(1))",
]
NO_TEXTS = [b"\xed\xa0\x80", b"\xff\xfe\x00", b"caf\xe9", b"\xf8\x88\x80\x80\x80", b"\xc0\xaf", b"", b" \n "]


def test_26_megabytes_against_a_cap_of_25(api_process: Crew, figure: Keep) -> None:
    """26 MB with `Content-Length` and in chunks, to an API in a process of its own"""
    assert api_process.api is not None
    pid, body = api_process.api.pid, form(part("model", b"m"), part("image", b"x" * (26 * MEGABYTE), file_name="a.png"))
    before = memory(pid)
    kind = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    problem(api_process.client.post("/traces", content=body, headers=kind), 413)
    chunks: Iterator[bytes] = (body[i : i + 65536] for i in range(0, len(body), 65536))
    problem(api_process.client.post("/traces", content=chunks, headers=kind), 413)
    grown = memory(pid) - before
    assert grown < 64 * MEGABYTE
    figure(12, f"413 and 413; memory at its most +{grown / MEGABYTE:.0f} MB")


def black(side: int) -> bytes:
    """A whole PNG of side × side pixels in a few kilobytes."""
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def test_bombs_are_refused_before_they_are_decoded(figure: Keep) -> None:
    """Whole PNGs of black pixels to the process that decodes, whose memory is read at its highest"""
    bombs = {side: black(side) for side in (20_000, 9_500, 8_000)}
    decoder = Decoder(limit_s=120, memory_megabytes=1024)
    try:
        decoder.decode(black(32))
        child = decoder.reader.pid
        assert child is not None
        before = memory(child)
        for data in bombs.values():
            with pytest.raises(Problem) as caught:
                decoder.decode(data)
            assert caught.value.status == 413
        assert decoder.reader.pid == child, "it did not die of any"
        grown = memory(child) - before
        assert grown < 16 * MEGABYTE
        assert decoder.decode(black(4096)).size == (4096, 4096)
        limits = Path(f"/proc/{child}/limits").read_text()
        assert str(1024 * 2**20) in limits
    finally:
        decoder.close()
    sizes = ", ".join(f"{len(data) / 1000:.0f} kB" for data in bombs.values())
    figure(13, f"413 for {sizes}; memory of the decoding process +{grown / MEGABYTE:.1f} MB; 4,096² is decoded")


class Marker:
    """Writes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.file), "w"))


def test_a_pickle_is_never_loaded(tracing: Served, models_dir: Path, tmp_path: Path, figure: Keep) -> None:
    """Pickles that would write a file: as a picture, a text, a model's weights, data of a trace and of an import"""
    marker = tmp_path / "executed"
    zipped = io.BytesIO()
    torch.save(Marker(marker), zipped)
    kinds = {f"protocol {p}": pickle.dumps(Marker(marker), protocol=p) for p in (0, 2, 3, 4, 5)}
    kinds["torch.save"] = zipped.getvalue()
    for name, data in kinds.items():
        assert send(tracing, "tiny-vision", image=data).status_code == 415, name
        assert send(tracing, "tiny-text", text=data).status_code in (201, 422), name  # protocol 0 is plain text
    folder = tracing.settings.data_dir / "models" / "pickled"
    shutil.copytree(models_dir / "tiny-vision", folder)
    inbox = tracing.settings.data_dir / "inbox"
    try:
        for name, data in kinds.items():
            (folder / "model.safetensors").write_bytes(data)
            assert "damaged" in problem(send(tracing, "pickled", image=black(32)), 422)["detail"], name
            (folder / "pytorch_model.bin").write_bytes(data)
            for file in ("evil.pt", "evil.pkl", "evil.jsonl", "evil.npz"):
                (inbox / file).write_bytes(data)
        (folder / "model.safetensors").unlink()
        assert "missing" in problem(send(tracing, "pickled", image=black(32)), 422)["detail"]
        for file in ("evil.pt", "evil.pkl", "evil.jsonl", "evil.npz"):
            for kind, request in (
                ("import", {"file": file}),
                ("trace", {"model": "tiny-vision", "data": file}),
                ("trace", {"model": "tiny-text", "data": file}),
            ):
                answer = tracing.client.post(f"{API}/jobs", json={"kind": kind, "request": request})
                if answer.status_code == 202:
                    answer_of = until(tracing, answer.json()["job"], "failed", "succeeded")
                    assert answer_of["state"] == "failed", answer_of
                else:
                    problem(answer, 422)
        assert not marker.exists()
    finally:
        shutil.rmtree(folder)
    figure(7, f"{len(kinds)} kinds of pickle: 415 as a picture, refused as weights and data; 0 executed")


def test_a_hostile_configuration_runs_no_code(models_dir: Path, tmp_path: Path, figure: Keep) -> None:
    """Configurations that name code, beside a module that would write a file when it is imported"""
    marker = tmp_path / "executed"
    folder = tmp_path / "models" / "evil"
    shutil.copytree(models_dir / "tiny-vision", folder)
    right = json.loads((folder / "config.json").read_text())
    for name in ("modeling_evil.py", "configuration_evil.py", "__init__.py", "evil.py"):
        (folder / name).write_text(f"open({str(marker)!r}, 'w')\n")
    hostile: list[Any] = [
        right | {"family": family}
        for family in ("evil", "evil.Evil", "os.system", "builtins:eval", "../evil", "__main__", "", None, 3, ["dna"])
    ]
    hostile += [
        right | {"config": right["config"] | extra}
        for extra in (
            {"auto_map": {"AutoModel": "modeling_evil.Evil"}},
            {"_target_": "os.system"},
            {"__class__": "Evil"},
            {"!!python/object/apply:os.system": ["x"]},
            {"width": "__import__('os')"},
            {"steps": 10**30},
            {"steps": 10**5},
            {"mlp_width": 10**12},
            {"width": -1},
            {"steps": float("nan")},
            {"trust_remote_code": True},
        )
    ]
    hostile += [[], "x", None, right | {"config": None}, right | {"classes": {"__reduce__": 1}}]
    texts = [json.dumps(value) for value in hostile] + ["[" * 100_000, "{", "\ud800".encode("utf-8", "surrogatepass")]
    for text in texts:
        (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(CheckpointError) as caught:
            build_model(read_checkpoint(folder))
        assert "evil" in str(caught.value)
        assert len(str(caught.value)) < 1000
    from tokenpaths.engine.adapters.huggingface.inspection import find_model

    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "evil",
                "architectures": ["Evil"],
                "auto_map": {"AutoConfig": "configuration_evil.Evil", "AutoModelForCausalLM": "modeling_evil.Evil"},
            }
        )
    )
    with pytest.raises(UserError, match="code of its own, which is never run"):
        find_model(f"hf:{folder}")
    assert not marker.exists()
    figure(8, f"{len(texts) + 1} configurations refused, 0 executed")


def test_any_text_comes_back_as_it_was_or_is_refused(tracing: Served, figure: Keep) -> None:
    """Texts through POST /traces and back from the run"""
    for text in TEXTS:
        answer = send(tracing, "tiny-text", text=text)
        assert answer.status_code == 201, answer.text
        back = tracing.get(f"/runs/{answer.json()['run']}/samples/0")
        assert back.json()["text"] == text
        assert back.headers["content-type"] == "application/json", "nothing that a browser would run"
        assert back.headers["x-content-type-options"] == "nosniff"
    for data in NO_TEXTS:
        problem(send(tracing, "tiny-text", text=data), 422, "text")
    problem(send(tracing, "tiny-text", text=b"word " * 2_000_000), 413, "text")
    figure(14, f"{len(TEXTS)} texts came back equal, {len(NO_TEXTS)} refused with 422, 10 MB with 413")


def test_no_number_is_named_and_writes_no_row(tmp_path: Path, models_dir: Path, figure: Keep) -> None:
    """NaN and infinity in each tensor of a checkpoint, and in the weights of a model that runs"""
    loaded = load_model("tiny-vision", [models_dir], "cpu")
    state = loaded.model.state_dict()
    spoiled = [name for name, tensor in state.items() if tensor.is_floating_point()]
    for number, name in enumerate(spoiled):
        tensor = state[name]
        kept = tensor.clone()
        tensor.view(-1)[tensor.numel() // 2] = (float("nan"), float("inf"))[number % 2]
        folder = save_checkpoint(tmp_path / "spoiled", loaded.model, classes=loaded.classes)
        tensor.copy_(kept)
        with pytest.raises(CheckpointError, match=f"{name} holds NaN or infinite values"):
            build_model(read_checkpoint(folder))
    name = next(name for name in spoiled if "norm" in name)
    state[name].fill_(float("nan"))
    picture = Sample(Image.new("RGB", (32, 32)), None, None, "x.png")
    with pytest.raises(UserError, match="router 0 gave NaN or infinite scores"):
        trace_samples(loaded, [picture], tmp_path / "runs", run_id="nothing", twin=False)
    assert not list((tmp_path / "runs").iterdir())
    figure(15, f"{len(spoiled)} of {len(spoiled)} tensors named when loaded; a trace of NaN fails and leaves no file")
