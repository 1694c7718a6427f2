"""Every format that can be imported: what the log says is what the run says."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenpaths.engine.adapters.logs.formats import OnlyCounts, open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.adapters.logs.pieces.piece import CUT_TOKENS
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run

TOKENS, LAYERS, TOP_K, EXPERTS = 40, 3, 2, 8
SAMPLES = [15, 5, 20]


def some_ids(tokens: int = TOKENS, layers: int = LAYERS, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.random((tokens, layers, EXPERTS)).argsort(axis=2)[:, :, :TOP_K]


def some_weights(tokens: int = TOKENS) -> np.ndarray:
    """Not in order of size: slots are put in order by the importer."""
    return np.random.default_rng(1).dirichlet(np.ones(TOP_K), (tokens, LAYERS)).astype(np.float32)


IDS, WEIGHTS = some_ids(), some_weights()
SAMPLE = np.repeat([3, 4, 9], SAMPLES)
WORDS = ["one two", "three", "four"]


def imported(tmp_path: Path, file: Path, **options: object) -> Run:
    log = open_log(file, **options)  # type: ignore[arg-type]
    return Run.open(import_log(log, tmp_path / "runs", "imported", overwrite=True))


def ribbons(run: Run) -> list:
    """Ribbons of all tokens in order, slots as stored."""
    tokens = [t for s in range(run.card()["num_samples"]) for t in run.sample(s)["tokens"]]
    return [t["ribbon"] for t in tokens]


def lengths(run: Run) -> list[int]:
    return [s["num_tokens"] for s in run.samples()["samples"]]


def test_a_saved_array(tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS.astype(np.int16))
    with imported(tmp_path, tmp_path / "log.npy", experts=EXPERTS) as run:
        assert ribbons(run) == IDS.tolist()
        info = run.info()
        assert (info["family"], info["model"], info["num_modules"]) == ("moe", "log", EXPERTS)
        assert info["weight_semantics"]["weights_recorded"] is False
        assert run.sample(0)["tokens"][0]["weights"] is None
        halves = [[pytest.approx(0.5, abs=0.003)] * TOP_K] * LAYERS
        assert [run.token_slice(0, step)["tokens"][0]["weights"] for step in range(LAYERS)] == halves
        assert "gate_entropy" not in info["measures"]


def test_flat_ids_with_the_word_of_the_user(tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS.reshape(TOKENS, -1))
    with imported(tmp_path, tmp_path / "log.npy", layers=LAYERS) as run:
        assert ribbons(run) == IDS.tolist()
    with pytest.raises(UserError, match="say --layers or --top-k"):
        open_log(tmp_path / "log.npy")


def test_a_long_log_is_cut_into_samples(tmp_path: Path):
    ids = some_ids(2 * CUT_TOKENS + 5)
    np.save(tmp_path / "log.npy", ids)
    with imported(tmp_path, tmp_path / "log.npy") as run:
        assert lengths(run) == [CUT_TOKENS, CUT_TOKENS, 5]
        assert run.sample(2)["source"] == f"log.npy, tokens {2 * CUT_TOKENS} to {2 * CUT_TOKENS + 4}"
        assert [t["ribbon"] for t in run.sample(2)["tokens"]] == ids[-5:].tolist()


def test_shards_in_a_folder_are_one_log(tmp_path: Path):
    (tmp_path / "log").mkdir()
    for i, part in enumerate(np.split(IDS, [15, 20])):
        np.save(tmp_path / "log" / f"request-{i}.npy", part)
    with imported(tmp_path, tmp_path / "log") as run:
        assert lengths(run) == SAMPLES
        assert run.sample(1)["source"] == "request-1.npy"
        assert ribbons(run) == IDS.tolist()


def expected_order(run: Run) -> None:
    """Slots by weight, weights within the rounding of eight bits."""
    order = np.argsort(-WEIGHTS, axis=2, kind="stable")
    assert ribbons(run) == np.take_along_axis(IDS, order, axis=2).tolist()
    stored = [t["weights"] for s in range(3) for t in run.sample(s)["tokens"]]
    assert np.allclose(stored, -np.sort(-WEIGHTS, axis=2), atol=1 / 500)


def test_the_neutral_npz(tmp_path: Path):
    token_id = np.arange(TOKENS)
    np.savez_compressed(
        tmp_path / "log.npz",
        ids=IDS.astype(np.uint8),
        weights=WEIGHTS,
        token_id=token_id,
        sample=SAMPLE,
        label=np.array(["a", "b", "a"]),
        text=np.array(WORDS),
        num_experts=np.array(11),
        model=np.array("org/m"),
        layers=np.array(["blk.1", "blk.3", "blk.4"]),
    )
    with imported(tmp_path, tmp_path / "log.npz") as run:
        expected_order(run)
        assert lengths(run) == SAMPLES
        info = run.info()
        assert (info["model"], info["num_modules"]) == ("org/m", 11)
        assert info["config"]["import"]["layers"] == ["blk.1", "blk.3", "blk.4"]
        assert info["weight_semantics"]["weights_recorded"] is True
        assert [s["label"] for s in run.samples()["samples"]] == ["a", "b", "a"]
        assert [run.sample(i)["text"] for i in range(3)] == WORDS
        assert [t["token_id"] for i in range(3) for t in run.sample(i)["tokens"]] == token_id.tolist()


def test_samples_that_span_blocks_of_the_file(tmp_path: Path):
    ids = some_ids(2 * CUT_TOKENS)
    sample = np.repeat([0, 1, 2], [CUT_TOKENS - 7, 100, CUT_TOKENS - 93])
    np.savez(tmp_path / "log.npz", ids=ids, sample=sample, label=np.array(["x", "y", "z"]))
    with imported(tmp_path, tmp_path / "log.npz") as run:
        assert lengths(run) == [CUT_TOKENS - 7, 100, CUT_TOKENS - 93]
        assert [t["ribbon"] for t in run.sample(1)["tokens"]] == ids[CUT_TOKENS - 7 :][:100].tolist()
        assert [s["label"] for s in run.samples()["samples"]] == ["x", "y", "z"]


def test_the_two_arrays_of_one_request(tmp_path: Path):
    np.savez(tmp_path / "request.npz", prompt_routed_experts=IDS[:30], routed_experts=IDS[30:])
    with imported(tmp_path, tmp_path / "request.npz") as run:
        assert lengths(run) == [TOKENS]
        assert ribbons(run) == IDS.tolist()


def write_parquet(file: Path, nested: bool = True, **changes: object) -> Path:
    ids = IDS.tolist() if nested else IDS.reshape(TOKENS, -1).tolist()
    weights = WEIGHTS.tolist() if nested else WEIGHTS.reshape(TOKENS, -1).tolist()
    columns = {
        "ids": ids,
        "weights": weights,
        "token_id": list(range(TOKENS)),
        "sample": SAMPLE.tolist(),
        "label": [["a", "b", "a"][i] for i in np.repeat(range(3), SAMPLES)],
        "text": [WORDS[i] for i in np.repeat(range(3), SAMPLES)],
    }
    about = {"num_experts": 11, "model": "org/m", **({} if nested else {"num_layers": LAYERS})}
    table = pa.table({key: value for key, value in {**columns, **changes}.items() if value is not None})
    pq.write_table(table.replace_schema_metadata({"tokenpaths": json.dumps(about)}), file, row_group_size=7)
    return file


@pytest.mark.parametrize("nested", [True, False])
def test_the_neutral_parquet(nested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.tables.neutral_parquet.CUT_TOKENS", 8)
    with imported(tmp_path, write_parquet(tmp_path / "log.parquet", nested)) as run:
        expected_order(run)
        assert lengths(run) == SAMPLES
        assert (run.info()["model"], run.info()["num_modules"]) == ("org/m", 11)
        assert [s["label"] for s in run.samples()["samples"]] == ["a", "b", "a"]
        assert [run.sample(i)["text"] for i in range(3)] == WORDS


def npy_base64(ids: np.ndarray) -> str:
    buffer = io.BytesIO()
    np.save(buffer, ids)
    return base64.b64encode(buffer.getvalue()).decode()


def raw_base64(ids: np.ndarray, dtype: str = "<i4") -> str:
    return base64.b64encode(ids.astype(dtype).tobytes()).decode()


def vllm_lines(form: Callable[[np.ndarray], object]) -> list[dict]:
    return [
        {
            "id": f"cmpl-{i}",
            "model": "org/m",
            "prompt_token_ids": [1, 2],
            "prompt_routed_experts": None,
            "choices": [
                {"index": 0, "text": WORDS[i], "token_ids": list(range(len(part) - 1)), "routed_experts": form(part)}
            ],
        }
        for i, part in enumerate(np.split(IDS, np.cumsum(SAMPLES)[:-1]))
    ]


def sglang_line(part: np.ndarray, number: int, openai: bool) -> dict:
    ids = raw_base64(part)
    if openai:
        return {
            "id": f"r{number}",
            "choices": [{"message": {"content": WORDS[number]}, "sgl_ext": {"routed_experts": ids}}],
        }
    return {"text": WORDS[number], "meta_info": {"id": f"r{number}", "routed_experts": ids}}


def write_lines(file: Path, lines: list[dict]) -> Path:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


FORMS: dict[str, Callable[[np.ndarray], object]] = {
    "npy": lambda ids: npy_base64(ids.astype(np.uint8)),
    "lists": lambda ids: ids.tolist(),
    "object": lambda ids: {"data": raw_base64(ids, "<i2"), "dtype": "int16", "shape": list(ids.shape)},
}


@pytest.mark.parametrize("form", FORMS)
def test_responses_of_vllm(form: str, tmp_path: Path):
    file = write_lines(tmp_path / "log.jsonl", vllm_lines(FORMS[form]))
    with imported(tmp_path, file, format="vllm") as run:
        assert ribbons(run) == IDS.tolist()
        assert lengths(run) == SAMPLES
        assert run.info()["model"] == "org/m"
        assert run.sample(1)["source"] == "cmpl-1"
        # Two tokens of the prompt, then those of the answer but the last, which has no decision.
        assert [t["token_id"] for t in run.sample(1)["tokens"]] == [1, 2, 0, 1, 2]


def test_prompt_and_answers_apart(tmp_path: Path):
    """Older vLLM: the prompt's decisions once, those of each answer with it."""
    choices = [{"routed_experts": IDS[10:15].tolist()}, {"routed_experts": IDS[15:].tolist()}]
    line = {"prompt_routed_experts": IDS[:10].tolist(), "choices": choices}
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", [line])) as run:
        assert lengths(run) == [15, TOKENS - 15]
        assert ribbons(run) == IDS.tolist()


@pytest.mark.parametrize("openai", [False, True])
def test_responses_of_sglang(openai: bool, tmp_path: Path):
    parts = np.split(IDS, np.cumsum(SAMPLES)[:-1])
    file = write_lines(tmp_path / "log.jsonl", [sglang_line(part, i, openai) for i, part in enumerate(parts)])
    with imported(tmp_path, file, format="sglang", layers=LAYERS, top_k=TOP_K) as run:
        assert ribbons(run) == IDS.tolist()
        assert [run.sample(i)["text"] for i in range(3)] == WORDS
    with pytest.raises(UserError, match="say --layers .* and --top-k"):
        open_log(file)


def test_dense_layers_that_an_engine_fills_with_zeros_are_left_out(tmp_path: Path):
    with_dense = np.insert(IDS, 0, 0, axis=1)
    file = write_lines(tmp_path / "log.jsonl", vllm_lines(lambda ids: ids.tolist()))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line, part in zip(lines, np.split(with_dense, np.cumsum(SAMPLES)[:-1]), strict=True):
        line["choices"][0]["routed_experts"] = part.tolist()
    with imported(tmp_path, write_lines(file, lines)) as run:
        assert ribbons(run) == IDS.tolist()
        assert run.info()["config"]["import"]["layers"] == ["layer 1", "layer 2", "layer 3"]
        assert "1 dense layer, " in run.info()["weight_semantics"]["note"]


def megatron_lines() -> list[dict]:
    return [
        {
            "step": step,
            "stage": "pre_dispatch",
            "block": "decoder",
            "layer": layer + 2,
            "rank": 0,
            "num_tokens": len(part),
            "topk": TOP_K,
            "top_indices": np.sort(part[:, layer], axis=1).tolist(),
        }
        for step, part in enumerate(np.split(IDS, np.cumsum(SAMPLES)[:-1]))
        for layer in range(LAYERS)
    ]


def test_a_trace_of_megatron(tmp_path: Path):
    with imported(tmp_path, write_lines(tmp_path / "router_trace_rank0.jsonl", megatron_lines())) as run:
        assert ribbons(run) == np.sort(IDS, axis=2).tolist()
        assert lengths(run) == SAMPLES
        assert run.info()["config"]["import"]["layers"] == ["layer 2", "layer 3", "layer 4"]
        assert "says nothing of a weight" in run.info()["weight_semantics"]["note"]


def test_microbatches_of_one_step_of_megatron(tmp_path: Path):
    lines = [line | {"step": 0} for line in megatron_lines()]
    with imported(tmp_path, write_lines(tmp_path / "log.jsonl", lines)) as run:
        assert lengths(run) == SAMPLES


def csv_rows(with_token: bool) -> list[list]:
    rows = []
    for number, part in enumerate(np.split(np.arange(TOKENS), np.cumsum(SAMPLES)[:-1])):
        for layer in range(LAYERS):
            for token in part:
                for slot in range(TOP_K):
                    row = [layer, IDS[token, layer, slot]]
                    given = f"{WEIGHTS[token, layer, slot]:.6f}"
                    rows.append([number, int(token), *row, given] if with_token else row)
    return rows


def write_csv(file: Path, rows: list[list], header: str = "") -> Path:
    file.write_text(header + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return file


def test_the_bare_csv_of_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.passes.csv_rows.BLOCK_BYTES", 64)
    file = write_csv(tmp_path / "moe_trace.csv", csv_rows(False))
    with imported(tmp_path, file, top_k=TOP_K) as run:
        assert ribbons(run) == IDS.tolist()
        assert lengths(run) == SAMPLES
    with pytest.raises(UserError, match="say --top-k"):
        open_log(file)


def test_a_csv_with_a_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tokenpaths.engine.adapters.logs.passes.csv_rows.BLOCK_BYTES", 64)
    file = write_csv(tmp_path / "log.csv", csv_rows(True), "# trace v1\ncall,token,layer,expert,weight\n")
    with imported(tmp_path, file) as run:
        expected_order(run)
        assert lengths(run) == SAMPLES


def test_the_last_layer_that_was_computed_for_some_tokens_only_is_unknown_for_the_others(tmp_path: Path):
    rows = [row for row in csv_rows(True) if row[2] < LAYERS - 1 or row[1] in (14, 19, 39)]
    file = write_csv(tmp_path / "log.csv", rows, "call,token,layer,expert,weight\n")
    with imported(tmp_path, file) as run:
        assert run.info()["config"]["import"]["layers"] == ["layer 0", "layer 1", "layer 2"]
        assert lengths(run) == SAMPLES
        order = np.argsort(-WEIGHTS, axis=2, kind="stable")
        ids = np.take_along_axis(IDS, order, axis=2)
        found = np.array(ribbons(run))
        last = np.isin(np.arange(TOKENS), (14, 19, 39))
        assert (found[:, :2] == ids[:, :2]).all()
        assert (found[last, 2] == ids[last, 2]).all()
        assert {run.bank.find(2, int(module)).kind for module in found[~last, 2].ravel()} == {"unrecorded"}
        assert any(
            "37 tokens of prompts are without the last layer" in note for note in run.info()["findings"]["notes"]
        )


def test_the_largest_id_stands_in_for_an_unknown_number_of_experts(tmp_path: Path):
    np.save(tmp_path / "log.npy", IDS % 8)
    with imported(tmp_path, tmp_path / "log.npy") as run:
        assert run.info()["num_modules"] == IDS.max() + 1
        assert "there may be more" in run.info()["weight_semantics"]["note"]


COUNTS = {
    "layers": {"expert_counts": {"0": {"0": 6, "3": 2}, "1": {"1": 8}}},
    "list of counters": [{"0": 6, "3": 2}, {"1": 8}],
    "rows": [[6, 0, 0, 2], [0, 8, 0, 0]],
}


@pytest.mark.parametrize("kind", COUNTS)
@pytest.mark.parametrize("indent", [None, 1])
def test_aggregates_tell_their_load_and_make_no_run(kind: str, indent: int | None, tmp_path: Path):
    (tmp_path / "counts.json").write_text(json.dumps(COUNTS[kind], indent=indent))
    with pytest.raises(OnlyCounts, match="not what each token chose") as caught:
        open_log(tmp_path / "counts.json")
    assert caught.value.counts.counts.tolist() == [[6, 0, 0, 2], [0, 8, 0, 0]]
    first, second = caught.value.counts.load()
    assert (first["choices"], first["max_violation"], first["dead"]) == (8, 2.0, 2)
    assert (second["load_entropy"], second["effective_top_k"], second["dead"]) == (0.0, 1.0, 3)


def test_tokens_become_text_with_a_vocabulary(tmp_path: Path):
    np.savez(tmp_path / "log.npz", ids=IDS[:3], token_id=np.array([5, 0, 5]), sample=np.zeros(3, int))
    log = open_log(tmp_path / "log.npz")
    texts = {0: "b", 5: "aa "}
    with Run.open(import_log(log, tmp_path / "runs", "said", token_texts=texts)) as run:
        sample = run.sample(0)
        assert sample["text"] == "aa baa "
        assert [t["text"] for t in sample["tokens"]] == ["aa ", "b", "aa "]
    with pytest.raises(UserError, match="id 5, which the tokenizer does not know"):
        import_log(log, tmp_path / "runs", "unsaid", token_texts={0: "b"})
    assert not (tmp_path / "runs" / "unsaid.duckdb").exists()


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture):
    page = Path(__file__).parents[4] / "docs" / "import.md"
    code, _sending = re.findall(r"```python\n(.+?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    np.save("routed.npy", IDS)
    space: dict[str, Any] = {}
    exec(compile(code, "import.md", "exec"), space)
    space["run"].close()
    assert capsys.readouterr().out.splitlines()[-1] == "3 2"
    with Run.open(tmp_path / "runs" / "my-model.duckdb") as run:
        assert run.card()["num_modules"] == 64
