"""Files of a few kilobytes that unfold to gigabytes, and rules that never end: what reading them costs, and says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults import attack_files
from tests.faults.conftest import Keep
from tokenpaths.engine.data.datasets import open_dataset

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads peaks of memory from /proc")
MEGABYTE = 1_000_000
ROOT = Path(__file__).resolve().parents[2]
ATTEMPT = """
import json, resource, sys
from pathlib import Path
from tokenpaths.engine.base.errors import UserError
def peak():  # ru_maxrss would count what forked this process
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
path, before = Path(sys.argv[1]), peak()
said = None
try:
    {attempt}
except UserError as error:
    said = str(error)
import gc; gc.collect()
for pools in [m for name, m in list(sys.modules.items()) if name.startswith("tokenpaths") and hasattr(m, "READERS")]:
    for reader in pools.READERS._idle: reader.close()
print(json.dumps([said, peak() - before, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024]))
"""
WALK = """
    from tokenpaths.engine.data.datasets import open_dataset
    for sample in open_dataset(path, {modality!r}, limit=50): pass
"""
IMPORT = """
    from tokenpaths.engine.adapters.logs.importing import import_log
    from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
    import_log(open_confined_log(path), path.parent / "runs", "given")
"""
TOKENS = """
    from tokenpaths.engine.data.tokenizer import TextTokenizer
    TextTokenizer.load(path).encode("a" * 40 + "!" + "b" * 5000)
"""


def attempted(attempt: str, path: Path) -> tuple[str | None, int, int]:
    """(sentence of the UserError or None, growth of the process that asked, peak of the one that read) in bytes."""
    script = ATTEMPT.replace("    {attempt}", attempt)
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=280, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    said, grown, child = json.loads(done.stdout.splitlines()[-1])
    return said, grown, child


def test_small_files_that_unfold(tmp_path: Path, figure: Keep) -> None:
    """Parquet with one label of 1 MB in 20,000 rows and with 200 million rows, an .npz with 640 MB of zeros, to trace
    and import, each in a process of its own"""
    files = {name: tmp_path / name for name in ("label.parquet", "rows.parquet", "log.npz")}
    attack_files.parquet_of_one_label(files["label.parquet"])
    attack_files.parquet_of_many_rows(files["rows.parquet"])
    attack_files.npz_of_zeros(files["log.npz"])
    measured = []
    for name, attempt, sentence in (
        ("label.parquet", WALK.format(modality="text"), "memory"),
        ("rows.parquet", WALK.format(modality="text"), "declares 200,000,000 rows"),
        ("log.npz", IMPORT, "declares 640 MB"),
    ):
        said, grown, child = attempted(attempt, files[name])
        assert said is not None, name
        assert sentence in said, said
        assert str(files[name]) in said
        assert grown < 250 * MEGABYTE, f"{name}: {grown}"
        assert child < 2300 * MEGABYTE, f"{name}: {child}"
        size = files[name].stat().st_size
        measured.append(f"{size / 1000:.1f} kB: +{grown / MEGABYTE:.0f} MB, reader {child / MEGABYTE:.0f} MB")
    assert not list((tmp_path / "runs").glob("*.duckdb")) if (tmp_path / "runs").exists() else True
    figure(31, "; ".join(measured))


@pytest.mark.parametrize(
    "changes",
    [
        {"pre_tokenizer": attack_files.split_by(r"(a+a+)+$")},
        {"pre_tokenizer": attack_files.split_by(r"(?:(?:a|a)*)*\1(")},
        {"pre_tokenizer": attack_files.split_by(r"(?=(a+))\1*b(?<!a*)")},
        {"normalizer": attack_files.replacing("b", "c" * 1_000_000)},
        {"normalizer": {"type": "Sequence", "normalizers": [attack_files.replacing("b", "bb" * 50)] * 4}},
        {"added_tokens": [{"id": 2**31, "content": "a", "special": True}]},
        {"model": {"type": "Unigram", "vocab": [], "unk_id": 7}},
        {"model": {"type": "WordLevel", "vocab": {}, "unk_token": "?"}},
    ],
    ids=["quantifiers", "no regex", "look-around", "normaliser", "normalisers", "added", "empty", "no unknown"],
)
def test_tokenizers_that_never_end_panic_or_unfold(tmp_path: Path, changes: dict[str, Any], figure: Keep) -> None:
    """A tokenizer.json with rules made to do harm, on a text of 5,000 letters, in a process of its own"""
    file = tmp_path / "given" / "tokenizer.json"
    attack_files.tokenizer(file, **changes)
    said, grown, child = attempted(TOKENS, file)
    assert said is None or "given" in said or "text" in said
    assert grown < 250 * MEGABYTE
    assert child < 2300 * MEGABYTE
    figure(25, f"{(said or 'tokens')[:90]}; +{grown / MEGABYTE:.0f} MB, reader {child / MEGABYTE:.0f} MB")


def test_pictures_that_unfold_in_a_folder(tmp_path: Path, figure: Keep) -> None:
    """A folder with a black PNG of 20,000² pixels among good ones, traced with skip_bad"""
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(attack_files.black_png(64 if number != 1 else 20_000))
    attempt = """
    from tokenpaths.engine.data.datasets import open_dataset
    dataset = open_dataset(path, "vision", skip_bad=True)
    assert len(list(dataset)) == 2 and dataset.walk.left_out == 1
    raise UserError(dataset.walk.problems[0])
"""
    said, grown, child = attempted(attempt, tmp_path)
    assert said is not None
    assert "megapixels" in said
    assert child < 400 * MEGABYTE
    figure(31, f"left out by name; +{grown / MEGABYTE:.0f} MB, reader {child / MEGABYTE:.0f} MB")


def test_pipes_and_devices_in_a_folder_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "good.png").write_bytes(attack_files.black_png(64))
    for name in ("a.png", "b.png"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "c.png").symlink_to("/dev/zero")
    dataset = open_dataset(tmp_path, "vision", skip_bad=True)
    assert len(list(dataset)) == 1
    assert dataset.walk.left_out == 3
    assert all("is a pipe or device" in problem for problem in dataset.walk.problems)


def test_a_configuration_larger_than_its_weights(tmp_path: Path, figure: Keep) -> None:
    """A Hugging Face checkpoint whose configuration says 100 times its layers, and one of ours that says 4,096
    channels for weights of a few"""
    pytest.importorskip("transformers")
    from tests.support.tiny_huggingface import changed_config, save_tiny

    folder = save_tiny(tmp_path / "given", "mixtral")
    changed_config(folder, hidden_size=2048, intermediate_size=8192, num_hidden_layers=64, vocab_size=200_000)
    attempt = """
    from tokenpaths.engine.adapters.huggingface.inspection import find_model
    from tokenpaths.engine.adapters.huggingface.loading import load
    load(find_model(f"hf:{path}"))
"""
    said, grown, child = attempted(attempt, folder)
    assert said is not None
    assert "cannot hold them" in said
    assert grown < 700 * MEGABYTE, "torch and transformers themselves"
    figure(31, f"refused by its numbers; +{grown / MEGABYTE:.0f} MB with torch and transformers")


def test_long_and_deep_lines(tmp_path: Path) -> None:
    deep = tmp_path / "deep.jsonl"
    deep.write_text('{"text": "a", "label": ' + "[" * 200_000 + "\n")
    said, grown, _ = attempted(WALK.format(modality="text"), deep)
    assert said is not None
    assert grown < 200 * MEGABYTE
    endless = tmp_path / "endless.jsonl"
    with endless.open("wb") as file:
        file.write(b'{"text": "')
        file.truncate(3 << 30)
    said, grown, child = attempted(WALK.format(modality="text"), endless)
    assert said is not None
    assert grown + child < 700 * MEGABYTE


def test_headers_that_lie(tmp_path: Path) -> None:
    file = tmp_path / "log.npy"
    with file.open("wb") as stream:
        about = {"descr": "|u1", "fortran_order": False, "shape": (1 << 20, 1 << 12, 1 << 12)}
        np.lib.format.write_array_header_1_0(stream, about)
    said, grown, _ = attempted(IMPORT, file)
    assert said is not None
    assert "cut off" in said
    assert grown < 200 * MEGABYTE
