"""A Hugging Face model in shards, from the command line: the run of one process, row for row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenpaths.cli.main import main
from tokenpaths.engine.store.file.open_file import open_read_only


def everything(file: Path) -> dict[str, list[tuple]]:
    """Every row of every table, in the order of the file; name of the run and time of sealing are left out."""
    con = open_read_only(file)
    listed = "SELECT table_name FROM information_schema.tables WHERE table_catalog = 'r' ORDER BY table_name"
    rows = {}
    for (table,) in con.execute(listed).fetchall():
        columns = [
            name for name, *_ in con.execute(f"DESCRIBE {table}").fetchall() if name not in ("created_at", "run_id")
        ]
        rows[table] = con.execute(f"SELECT {', '.join(columns)} FROM {table}").fetchall()
    con.close()
    return rows


def test_a_mixture_of_experts_in_shards_is_the_run_of_one_process(
    mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["the", "path", "of", "a", "token", "goes", "through", "many", "modules", "and", "back", "again"]
    lines = [json.dumps({"text": " ".join(words[i % 5 :] * (1 + i % 3)), "label": "ab"[i % 2]}) for i in range(12)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    command = [
        "trace",
        "--model",
        f"hf:{mixtral}",
        "--data",
        str(tmp_path / "t.jsonl"),
        "--batch-size",
        "1",
        "--device",
        "cpu",
        "--data-dir",
        str(tmp_path / "data"),
    ]
    assert main([*command, "--run", "one"]) == 0, capsys.readouterr().err
    for shard in ("1/2", "2/2", "2/2"):
        assert main([*command, "--run", "many", "--shard", shard]) == 0, capsys.readouterr().err
    assert "was traced before" in capsys.readouterr().out
    assert main(["seal", "many", "--data-dir", str(tmp_path / "data")]) == 0
    one, many = (everything(tmp_path / "data" / "runs" / f"{run}.duckdb") for run in ("one", "many"))
    for table in one:
        assert many[table] == one[table], table
    assert len(one["token"]) > 100
    assert main([*command, "--run", "x", "--shard", "1/2", "--controls", '{"edits": []}']) == 2
