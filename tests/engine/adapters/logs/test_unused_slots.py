"""k that varies: unused slots of every kind of log, counted by hand and never as a module."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run

TOKENS, LAYERS, TOP_K, EXPERTS = 40, 3, 2, 8
_rng = np.random.default_rng(0)
IDS = _rng.random((TOKENS, LAYERS, EXPERTS)).argsort(axis=2)[:, :, :TOP_K]
USED = _rng.random((TOKENS, LAYERS, TOP_K)) > 0.2
CHOSEN = [
    [[int(i) for i, u in zip(IDS[t, s], USED[t, s], strict=True) if u] for s in range(LAYERS)] for t in range(TOKENS)
]
"""experts that each token uses at each layer"""
NULLS = [
    [[int(i) if u else None for i, u in zip(IDS[t, s], USED[t, s], strict=True)] for s in range(LAYERS)]
    for t in range(TOKENS)
]
Written = tuple[Path, dict[str, Any]]


def npy(folder: Path) -> Written:
    np.save(folder / "log.npy", np.where(USED, IDS, -1))
    return folder / "log.npy", {}


def unsigned(folder: Path) -> Written:
    """−1 as an unsigned byte, which is no expert where their number is known."""
    np.save(folder / "log.npy", np.where(USED, IDS, 255).astype(np.uint8))
    return folder / "log.npy", {"experts": EXPERTS}


def vllm(folder: Path, rows: Any = CHOSEN) -> Written:
    file = folder / "log.jsonl"
    file.write_text(json.dumps({"id": "a", "choices": [{"index": 0, "routed_experts": rows}]}) + "\n")
    return file, {"top_k": TOP_K}


def vllm_null(folder: Path) -> Written:
    return vllm(folder, NULLS)


def megatron(folder: Path) -> Written:
    file = folder / "router_trace_rank0.jsonl"
    with file.open("w") as stream:
        for layer in range(LAYERS):
            record = {"step": 0, "block": "decoder", "layer": layer, "rank": 0, "num_tokens": TOKENS, "topk": TOP_K}
            stream.write(json.dumps(record | {"top_indices": [row[layer] for row in CHOSEN]}) + "\n")
    return file, {}


def csv_of(folder: Path, header: str, line: Any, rows: Any) -> Path:
    lines = [line(t, s, k, i) for s in range(LAYERS) for t in range(TOKENS) for k, i in enumerate(rows[t][s] or [-1])]
    (folder / "log.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder / "log.csv"


def csv_minus_one(folder: Path) -> Written:
    rows = np.where(USED, IDS, -1).tolist()
    return csv_of(folder, "token,layer,slot,expert", lambda t, s, k, i: f"{t},{s},{k},{i}", rows), {}


def csv_empty_cells(folder: Path) -> Written:
    rows = np.where(USED, IDS, -1).tolist()
    line = lambda t, s, k, i: f"{t},{s},{k},{i if i >= 0 else ''}"  # noqa: E731
    return csv_of(folder, "token,layer,slot,expert", line, rows), {}


def csv_fewer_rows(folder: Path) -> Written:
    return csv_of(folder, "token,layer,expert", lambda t, s, k, i: f"{t},{s},{i}", CHOSEN), {"top_k": TOP_K}


def csv_fewer_slots(folder: Path) -> Written:
    return csv_of(folder, "token,layer,slot,expert", lambda t, s, k, i: f"{t},{s},{k},{i}", CHOSEN), {}


def lines(folder: Path) -> Written:
    with (folder / "log.jsonl").open("w") as stream:
        for s in range(LAYERS):
            for t in range(TOKENS):
                stream.write(json.dumps({"layer_idx": s, "token_idx": t, "selected_ids": CHOSEN[t][s]}) + "\n")
    return folder / "log.jsonl", {}


def parquet(folder: Path, rows: Any = CHOSEN) -> Written:
    ids = pa.array(rows, pa.list_(pa.list_(pa.int32())))
    pq.write_table(pa.table({"ids": ids, "sample": [0] * TOKENS}), folder / "log.parquet")
    return folder / "log.parquet", {}


def parquet_null(folder: Path) -> Written:
    return parquet(folder, NULLS)


def mapped(folder: Path) -> Written:
    (folder / "map.toml").write_text('[columns]\ntoken = "t"\nlayer = "l"\nexpert = "e"\n')
    with (folder / "log.jsonl").open("w") as stream:
        for t in range(TOKENS):
            for s in range(LAYERS):
                stream.write(json.dumps({"t": t, "l": s, "e": CHOSEN[t][s]}) + "\n")
    return folder / "log.jsonl", {"column_map": folder / "map.toml"}


LOGS = (
    npy,
    unsigned,
    vllm,
    vllm_null,
    megatron,
    csv_minus_one,
    csv_empty_cells,
    csv_fewer_rows,
    csv_fewer_slots,
    lines,
    parquet,
    parquet_null,
    mapped,
)


def imported(folder: Path, file: Path, **options: Any) -> Run:
    return Run.open(import_log(open_log(file, **options), folder / "runs", "varied"))


@pytest.mark.parametrize("write", LOGS, ids=lambda write: write.__name__)
def test_unused_slots_of_every_layout_are_no_modules(write: Any, tmp_path: Path):
    file, options = write(tmp_path)
    with imported(tmp_path, file, **options) as run:
        tokens = [token for s in range(run.row["num_samples"]) for token in run.sample(s)["tokens"]]
        assert [[sorted(step) for step in t["ribbon"]] for t in tokens] == [
            [sorted(step) for step in t] for t in CHOSEN
        ]
        recorded = run.info()["weight_semantics"]["weights_recorded"]
        for token, chosen in zip(tokens, CHOSEN, strict=True):
            sizes = [len(weights) for weights in token["weights"]] if recorded else token["weights"]
            assert sizes == ([len(step) for step in chosen] if recorded else None)
            assert token["compute"] == pytest.approx(sum(map(len, chosen)) / (LAYERS * TOP_K))
        usage = run.usage()
        for step in usage["steps"]:
            used = [expert for chosen in CHOSEN for expert in chosen[step["step"]]]
            assert step["unused"] == pytest.approx(1 - len(used) / (TOKENS * TOP_K))
            counts = Counter(used)
            rows = [row for row in usage["usage"] if row["step"] == step["step"]]
            assert {row["module"]: row["count"] for row in rows if row["count"]} == counts
            assert len(rows) == EXPERTS
        for step in range(LAYERS - 1):
            links = sum(row["count"] for row in run.flow()["links"] if row["step"] == step)
            assert links == pytest.approx(sum(bool(c[step]) and bool(c[step + 1]) for c in CHOSEN))
        info = run.info()
        assert info["num_modules"] == EXPERTS
        findings = info["findings"]
        assert findings["unused_slots"] == {
            "share": pytest.approx(1 - USED.mean()),
            "slots": int((~USED).sum()),
            "dropped": sum(not step for chosen in CHOSEN for step in chosen),
        }
        assert any("% of slots are unused: k varies" in note for note in findings["notes"])
        assert {m["kind"] for m in info["modules"]} == {"expert"}
        assert {m.kind for m in run.modules} == {"expert", "unused"}


def test_a_dropped_token_of_one_expert_a_layer(tmp_path: Path):
    ids = np.where(USED, IDS, -1)[:, :, :1]
    np.save(tmp_path / "log.npy", ids)
    with imported(tmp_path, tmp_path / "log.npy") as run:
        chosen = [[[int(i) for i in step if i >= 0] for step in token] for token in ids.tolist()]
        assert [token["ribbon"] for token in run.sample(0)["tokens"]] == chosen
        assert run.info()["findings"]["unused_slots"]["dropped"] == int((ids < 0).sum())


def test_a_step_of_fill_values_is_unknown_where_no_slot_is_marked_unused(tmp_path: Path):
    """The same −1: without a token that uses some of its slots, it is what the log lacks."""
    ids = IDS.copy()
    ids[3, 1] = -1
    np.save(tmp_path / "log.npy", ids)
    with imported(tmp_path, tmp_path / "log.npy") as run:
        info = run.info()
        assert {m["kind"] for m in info["modules"]} == {"expert"}
        assert {m.kind for m in run.modules} == {"expert", "unrecorded"}
        assert "unused_slots" not in info["findings"]
        assert run.usage()["steps"][0]["unused"] is None
        assert run.sample(0)["tokens"][3]["compute"] == 1.0


def test_equal_sets_of_experts_are_one_path_wherever_the_slot_was_empty(tmp_path: Path):
    np.save(tmp_path / "log.npy", np.array([[[1, -1, 2]], [[-1, 2, 1]], [[2, 1, -1]], [[1, 2, 3]]]))
    with imported(tmp_path, tmp_path / "log.npy") as run:
        assert [(path["ribbon"], path["count"]) for path in run.paths()["paths"]] == [([[1, 2]], 3), ([[1, 2, 3]], 1)]


def test_weights_go_with_the_experts_that_are_used(tmp_path: Path):
    weights = np.where(USED, np.array([0.3, 0.6]), np.nan)
    np.savez(tmp_path / "log.npz", ids=np.where(USED, IDS, -1), weights=weights)
    with imported(tmp_path, tmp_path / "log.npz") as run:
        for token, ids, used in zip(run.sample(0)["tokens"], IDS.tolist(), USED.tolist(), strict=True):
            for step in range(LAYERS):
                pairs = [(i, w) for i, w, u in zip(ids[step], (0.3, 0.6), used[step], strict=True) if u]
                expected = sorted(pairs, key=lambda pair: -pair[1])
                assert token["ribbon"][step] == [i for i, _ in expected]
                assert token["weights"][step] == pytest.approx([w for _, w in expected], abs=0.003)


def test_a_table_that_ends_within_a_token_is_cut_off_and_not_of_varying_k(tmp_path: Path):
    rows = [f"{t},{s},{i}" for s in range(LAYERS) for t in range(4) for i in (1, 2)]
    (tmp_path / "log.csv").write_text("\n".join(["token,layer,expert", *rows[:-1]]) + "\n")
    with pytest.raises(UserError, match="the log is cut off"):
        open_log(tmp_path / "log.csv", top_k=2)


def test_tokens_of_different_numbers_of_rows_need_a_top_k(tmp_path: Path):
    """They could be sequences that ran in parallel."""
    file = csv_of(tmp_path, "token,layer,expert", lambda t, s, k, i: f"{t},{s},{i}", CHOSEN)
    with pytest.raises(UserError, match="say --top-k, the most experts of a token"):
        open_log(file)
