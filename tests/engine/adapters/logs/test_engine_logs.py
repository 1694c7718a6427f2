"""Every layout that engines write imports as it lies, whatever its file is called; what it cannot say is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import (
    ANSWER,
    EXPERTS,
    IDS,
    LAYERS,
    LOGS,
    OPTIONS,
    PROMPT,
    ROWS,
    SCORES,
    SUMS,
    TOP_K,
    WORDS,
    choices,
)
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.importing import import_log
from tokenpaths.engine.adapters.logs.pieces.piece import UNRECORDED, Piece
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.store.ask.run import Run


def pieces(file: Path, **options: object) -> tuple[Log, list[Piece]]:
    log = open_log(file, **options).counted()  # type: ignore[arg-type]
    return log, list(log.pieces())


def kept(piece: Piece, ids: np.ndarray) -> bool:
    """Whether a piece has these ids, wherever it has any."""
    known = piece.ids != UNRECORDED
    return piece.ids.shape == ids.shape and (piece.ids[known] == ids[known]).all()


SINGLE = (
    "vllm stream",
    "vllm stream, rows at the end",
    "llama.cpp bare",
    "llama.cpp fork",
    "route trace",
    "layer lines",
)
WITH_IDS = ("vllm chat", "vllm completions", "vllm run-batch", "sglang chat", "slime", *SINGLE[:2])


@pytest.mark.parametrize(
    "name", [n for n in LOGS if n.startswith(("vllm", "sglang", "dynamo", "slime")) and "rec" not in n]
)
def test_responses_and_rollouts(name: str, tmp_path: Path):
    log, found = pieces(LOGS[name](tmp_path), **OPTIONS.get(name, {}))
    assert (len(log.shape.layers), log.shape.top_k) == (LAYERS, TOP_K)
    assert [piece.num_tokens for piece in found] == [ROWS] * (1 if "stream" in name else 3)
    assert all(np.array_equal(piece.ids, ids) for piece, ids in zip(found, IDS, strict=False))
    if name in WITH_IDS:
        assert [piece.token_id.tolist() for piece in found] == [WORDS[i][:ROWS] for i in range(len(found))]
    elif name == "vllm generate" or name.startswith("sglang"):
        expected = [[-1] * PROMPT + words[PROMPT:-1] for words in WORDS]
        assert [piece.token_id.tolist() for piece in found] == expected
    else:
        assert name == "dynamo"
        assert found[0].token_id is None


@pytest.mark.parametrize("name", ["llama.cpp bare", "llama.cpp fork", "route trace", "layer lines", "layer binary"])
def test_passes_become_one_sequence(name: str, tmp_path: Path):
    log, (piece,) = pieces(LOGS[name](tmp_path), **OPTIONS.get(name, {}))
    assert kept(piece, IDS[0])
    missing = (piece.ids == UNRECORDED).all(axis=2)
    assert missing.sum() == missing[: PROMPT - 1, LAYERS - 1].sum() == PROMPT - 1
    said = {kind.split("} ", 1)[1][:20]: count for kind, count in piece.counted}
    assert sorted(said.values()) == [ANSWER - 1, PROMPT - 1]
    if name == "route trace":
        assert (log.model, log.experts, log.shape.weights) == ("toy", EXPERTS, False)
    if name == "layer lines":
        assert piece.weights is not None
        assert np.allclose(piece.weights[~missing], [0.7, 0.3])


def test_a_route_trace_without_a_header_and_with_weights_above_1(tmp_path: Path):
    log, (piece,) = pieces(make.route_trace(tmp_path / "log", header=False, weight="2.5"))
    assert kept(piece, IDS[0])
    assert piece.weights is not None
    assert piece.weights.max() == 1
    assert "weights are divided by the largest, 2.5" in log.note


def test_a_prompt_in_several_parts(tmp_path: Path):
    """The earlier parts of a long prompt have no last layer at all."""
    rows = [(layer, token, k) for layer in range(LAYERS - 1) for token in range(6) for k in range(TOP_K)]
    text = "".join(f"{layer},{IDS[0][token, layer, k]}\n" for layer, token, k in rows)
    rest = "".join(
        f"{layer},{IDS[0][token, layer, k]}\n"
        for layer in range(LAYERS)
        for token in (range(6, 12) if layer < LAYERS - 1 else [11])
        for k in range(TOP_K)
    )
    (tmp_path / "log").write_text(text + rest)
    _, (piece,) = pieces(tmp_path / "log", top_k=TOP_K)
    assert kept(piece, IDS[0][:12])
    (tmp_path / "log").write_text(text + rest + text)
    refused(tmp_path, tmp_path / "log", "this pass has the layers 0 … 2 .*cut off", top_k=TOP_K)


def test_turns_are_samples(tmp_path: Path):
    first = make.route_trace(tmp_path / "log").read_text()
    rows = [
        f"1,1,{ROWS + at},{layer},{k},{IDS[1][at, layer, k]},nan,1,0,0\n"
        for at in range(5)
        for layer in range(LAYERS)
        for k in range(TOP_K)
    ]
    (tmp_path / "log").write_text(first + "".join(rows))
    _, found = pieces(tmp_path / "log")
    assert [piece.num_tokens for piece in found] == [ROWS, 5]
    assert found[1].source == f"turn 1, line {first.count(chr(10)) + 1}, from token {ROWS} on"


def test_ranks_of_a_pipeline_are_joined_and_replicas_kept_apart(tmp_path: Path):
    log, found = pieces(make.pipeline(tmp_path / "pp", steps=2))
    assert log.shape.layers == tuple(f"layer {layer}" for layer in range(1, LAYERS + 1))
    assert all(np.array_equal(p.ids, np.sort(choices(ROWS, 10 * i), axis=2)) for i, p in enumerate(found))
    log, found = pieces(make.pipeline(tmp_path / "both", data_parallel=2, steps=1))
    assert [np.array_equal(p.ids, np.sort(choices(ROWS, i), axis=2)) for i, p in enumerate(found)] == [True, True]
    (tmp_path / "both" / "router_trace_rank3.jsonl").unlink()
    refused(tmp_path, tmp_path / "both", "the stages of its pipeline have 2 and 1 ranks")
    file = tmp_path / "pp" / "router_trace_rank1.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    refused(tmp_path, tmp_path / "pp", "the stages of the pipeline have different steps")


def test_sequences_of_a_micro_batch_alternate(tmp_path: Path):
    ids = np.stack([IDS[0], IDS[1]], axis=1).reshape(2 * ROWS, LAYERS, TOP_K)
    records = [make.megatron(0, 0, layer, ids[:, layer]) for layer in range(LAYERS)]
    file = make.lines(tmp_path / "log", records)
    log, found = pieces(file, sequences=2)
    assert all(np.array_equal(p.ids, np.sort(one, axis=2)) for p, one in zip(found, IDS[:2], strict=True))
    assert [piece.source for piece in found] == [f"line 1 (step 0, rank 0), sequence {i}" for i in range(2)]
    refused(tmp_path, file, "40 tokens are no 3 sequences of equal length", sequences=3)
    log, found = pieces(file)
    assert "say --sequences then (2, 4, 5, 8, 10, 20 would fit)" in log.note


def test_gate_order_of_megatrons_sink_is_not_said_to_rise(tmp_path: Path):
    records = [
        make.megatron(0, 0, layer, IDS[0][:, layer]) | {"top_indices": IDS[0][:, layer].tolist()}
        for layer in range(LAYERS)
    ]
    log, (piece,) = pieces(make.lines(tmp_path / "log", records))
    assert np.array_equal(piece.ids, IDS[0])
    assert "rise" not in log.note


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
def test_logits_beside_megatrons_trace_give_weights_and_margins(tmp_path: Path, kind: str):
    folder, logits = make.with_logits(tmp_path / "log", kind)
    log, found = pieces(folder)
    assert log.experts == EXPERTS
    assert "logits beside the trace give the weights" in log.note
    assert "not read" not in log.note
    for piece, own in zip(found, logits, strict=True):
        probs = np.exp(own.astype(np.float64))
        probs /= probs.sum(axis=2, keepdims=True)
        assert np.allclose(piece.weights, np.take_along_axis(probs, piece.ids.astype(np.int64), axis=2), atol=1e-6)
        ordered = -np.sort(-probs, axis=2)
        assert np.allclose(piece.scored[..., 0], -(probs * np.log(probs)).sum(axis=2), atol=1e-5)
        assert np.allclose(piece.scored[..., 1], ordered[:, :, TOP_K - 1] - ordered[:, :, TOP_K], atol=1e-6)
        assert np.array_equal(piece.scored[..., 2], np.argsort(-probs, axis=2, kind="stable")[:, :, TOP_K])
    with Run.open(import_log(open_log(folder), tmp_path / "runs", "scored")) as run:
        assert run.margins()["reason"] is None


def test_logits_that_do_not_agree_with_megatrons_trace_are_not_read_and_said(tmp_path: Path):
    log, found = pieces(make.with_logits(tmp_path / "log", "float32", spoil=True)[0])
    assert found[0].weights is None
    assert "the recorded experts are not those with the largest logits" in log.note
    assert "files that are not read: logits_rank0.bin, logits_rank1.bin" in log.note


def test_logits_of_megatron_that_are_cut_off_or_no_number_are_a_sentence(tmp_path: Path):
    folder, _ = make.with_logits(tmp_path / "log", "float32")
    whole = (folder / "logits_rank1.bin").read_bytes()
    (folder / "logits_rank1.bin").write_bytes(whole[:-4])
    refused(tmp_path, folder, "logits_rank1.bin: is cut off: .*where the file has ended")
    (folder / "logits_rank1.bin").write_bytes(whole[:-4] + np.float32("nan").tobytes())
    refused(tmp_path, folder, "line 4, token 19: a logit is no number")


def test_other_files_beside_megatrons_trace_are_not_read_and_said(tmp_path: Path):
    folder = make.pipeline(tmp_path / "log")
    (folder / "logits_rank0.bin").write_bytes(np.random.default_rng(0).normal(size=999).astype("<f4").tobytes())
    log, found = pieces(folder)
    assert len(found) == 2
    assert "files that are not read: logits_rank0.bin" in log.note


def test_the_recorder_of_sglang(tmp_path: Path):
    log, found = pieces(make.recorder(tmp_path / "log"))
    assert (log.experts, log.shape.top_k, [p.num_tokens for p in found]) == (EXPERTS, TOP_K, [14, 7])
    assert np.array_equal(found[0].ids, IDS[0][:14])
    assert np.array_equal(found[1].ids, IDS[1][:7])
    assert found[0].token_id.tolist() == list(range(7, 21))


def test_padding_of_verl_is_left_out(tmp_path: Path):
    _, found = pieces(make.verl(tmp_path / "log"))
    assert [np.array_equal(p.ids, IDS[i][: p.num_tokens]) for i, p in enumerate(found)] == [True] * 3
    assert [p.num_tokens for p in found] == [20, 15, 10]


@pytest.mark.parametrize("kind", ["npz", "pt", "safetensors"])
def test_scores_of_routers(kind: str, tmp_path: Path):
    file = LOGS[f"router logits {kind}"](tmp_path)
    _, (piece,) = pieces(file, top_k=TOP_K)
    scores = SCORES.transpose(1, 0, 2).astype(np.float64)
    assert np.array_equal(piece.ids, np.argsort(-scores, axis=2)[:, :, :TOP_K])
    probs = np.exp(scores) / np.exp(scores).sum(axis=2, keepdims=True)
    assert np.allclose(piece.weights, -np.sort(-probs, axis=2)[:, :, :TOP_K], atol=1e-6)
    refused(tmp_path, file, "say --top-k of the model .*1 to 16 would fit")
    made = import_log(open_log(file, top_k=TOP_K), tmp_path / "runs", "scored")
    with Run.open(made) as run:
        ordered = -np.sort(-probs, axis=2)
        for token, ids, sorted_probs, own in zip(
            run.sample(0)["tokens"], np.argsort(-scores, axis=2), ordered, probs, strict=True
        ):
            for layer, row in enumerate(token["margins"]):
                assert row["margin"] == pytest.approx(
                    sorted_probs[layer, TOP_K - 1] - sorted_probs[layer, TOP_K], abs=2e-5
                )
                assert row["runner_up"] == ids[layer, TOP_K]
            assert token["gate_entropy"] == pytest.approx(-(own * np.log(own)).sum(axis=1).mean(), rel=1e-3)
        assert run.margins()["reason"] is None


def test_traces_of_flame_moe(tmp_path: Path):
    log, (piece,) = pieces(make.flame(tmp_path / "one"))
    assert log.shape.layers == tuple(f"layer {layer}" for layer in range(2, LAYERS + 2))
    assert np.array_equal(piece.ids, IDS[0])
    assert piece.token_id.tolist() == WORDS[0][:ROWS]
    assert np.allclose(piece.weights, [0.5, 0.25])
    refused(tmp_path, make.flame(tmp_path / "three", 3), "holds 3 iterations of a training .*import each folder")
    _, (piece,) = pieces(tmp_path / "three" / "actives" / "iter_200")
    assert np.array_equal(piece.ids, IDS[1])


TOTALS = {
    "sglang stat": np.arange(3 * LAYERS * EXPERTS).reshape(3, LAYERS, EXPERTS).sum(axis=0),
    "sglang per pass": np.full((LAYERS, EXPERTS), 6),
    "olmoe counters": np.arange(EXPERTS) + np.arange(LAYERS)[:, None],
    "tensorrt-llm": np.tile(6 * np.arange(EXPERTS) + 3, (LAYERS, 1)),
    "megatron tokens per expert": np.tile(np.arange(EXPERTS) + 1, (LAYERS, 1)),
    "imatrix": np.tile(np.arange(EXPERTS), (LAYERS, 1)),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_tell_their_load(name: str, tmp_path: Path):
    with pytest.raises(OnlyCounts, match="not what each token chose") as caught:
        open_log(SUMS[name](tmp_path))
    assert caught.value.counts.counts.tolist() == TOTALS[name].tolist()


def test_sums_of_several_ranks_are_added(tmp_path: Path):
    (tmp_path / "log").mkdir()
    for rank in range(2):
        make.tokens_per_expert(tmp_path / "log" / f"rank{rank}.jsonl")
    with pytest.raises(OnlyCounts) as caught:
        open_log(tmp_path / "log")
    assert caught.value.counts.counts.tolist() == (2 * TOTALS["megatron tokens per expert"]).tolist()


TIMES = {
    "sglang stat": ("step", (0, 1, 2)),
    "sglang per pass": ("forward pass", (0, 1, 2)),
    "tensorrt-llm": ("iteration", (50, 51, 52)),
    "megatron tokens per expert": ("iteration", (100,)),
    "olmoe counters": ("", None),
    "imatrix": ("", None),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_run_of_loads_has_the_time_axis_of_its_source(name: str, tmp_path: Path):
    from tokenpaths.engine.adapters.logs.confined_log import open_confined_log
    from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts

    file = SUMS[name](tmp_path)
    with pytest.raises(OnlyCounts) as caught:
        open_confined_log(file)
    counts = caught.value.counts
    assert (counts.axis, counts.times) == TIMES[name]
    with Run.open(import_counts(counts, file, tmp_path / "runs", "mine")) as run:
        cells = [cell["count"] for cell in run.usage()["usage"]]
        load = run.load_over_time(0)
    assert cells == TOTALS[name].ravel().tolist()
    assert [row["first"] for row in load["bins"]] == list(TIMES[name][1] or ())
    if load["bins"]:
        assert np.sum([row["counts"] for row in load["bins"]], axis=0).tolist() == TOTALS[name][0].tolist()


def test_passes_and_iterations_are_counted_apart(tmp_path: Path):
    for name, part in (("sglang per pass", np.full((LAYERS, EXPERTS), 2)), ("sglang stat", None)):
        with pytest.raises(OnlyCounts) as caught:
            open_log(SUMS[name](tmp_path))
        whole = np.arange(3 * LAYERS * EXPERTS).reshape(3, LAYERS, EXPERTS)[1]
        assert np.array_equal(caught.value.counts.parts[1], whole if part is None else part)


def test_files_without_time_are_domains_and_ranks_are_added(tmp_path: Path):
    for names, domains in ((("code", "prose"), ("code", "prose")), (("rank0", "rank_1"), None)):
        folder = tmp_path / names[0]
        folder.mkdir()
        for number, name in enumerate(names):
            rows = {str(layer): {str(e): e + number for e in range(EXPERTS)} for layer in range(LAYERS)}
            (folder / f"{name}.json").write_text(json.dumps(rows))
        with pytest.raises(OnlyCounts) as caught:
            open_log(folder)
        counts = caught.value.counts
        assert counts.domains == domains
        assert counts.counts.tolist() == [[2 * e + 1 for e in range(EXPERTS)]] * LAYERS
    nested = {"expert_counts": {name: {"0": [1, 2], "1": [3, 4]} for name in ("code", "prose")}}
    (tmp_path / "nested.json").write_text(json.dumps(nested))
    with pytest.raises(OnlyCounts) as caught:
        open_log(tmp_path / "nested.json")
    assert (caught.value.counts.domains, caught.value.counts.parts.shape) == (("code", "prose"), (2, 2, 2))


def test_sizes_that_would_fit_are_named(tmp_path: Path):
    file = LOGS["sglang generate"](tmp_path)
    refused(tmp_path, file, "10 ids a token, so 5 × 2 or 10 × 1 would fit")
    refused(tmp_path, file, "200 ids of 20 tokens, which are not 4 layers × 2 experts: 10 ids", layers=4, top_k=2)
    log, _ = pieces(file, top_k=TOP_K)
    assert len(log.shape.layers) == LAYERS
    refused(tmp_path, LOGS["llama.cpp bare"](tmp_path), "say --top-k of the model: 2 or 1 would fit")


@pytest.mark.parametrize("name", LOGS)
def test_a_confined_child_reads_the_same(name: str, tmp_path: Path):
    from tokenpaths.engine.adapters.logs.confined_log import open_confined_log

    file, options = LOGS[name](tmp_path), OPTIONS.get(name, {})
    here, found = pieces(file, **options)
    there = open_confined_log(file, **options)
    assert (there.format, there.shape, there.note) == (here.format, here.shape, open_log(file, **options).note)
    for ours, theirs in zip(found, there.pieces(), strict=True):
        assert np.array_equal(ours.ids, theirs.ids)
        assert (ours.source, ours.label, ours.counted, ours.shared_with) == (
            theirs.source,
            theirs.label,
            theirs.counted,
            theirs.shared_with,
        )
        for part in ("weights", "scored"):
            mine, other = getattr(ours, part), getattr(theirs, part)
            assert mine is other is None or np.array_equal(mine, other, equal_nan=True)


def test_what_is_no_log_says_what_it_is(tmp_path: Path):
    (tmp_path / "log").write_text(json.dumps({"a": 1, "b": 2}) + "\n")
    refused(tmp_path, tmp_path / "log", "has a, b, but neither .*needs a column map")
    make.layer_binary(tmp_path / "binary")
    (tmp_path / "binary").write_bytes((tmp_path / "binary").read_bytes()[:-4])
    refused(tmp_path, tmp_path / "binary", "no routing log that is known|is cut off")
    make.imatrix(tmp_path / "gguf")
    (tmp_path / "gguf").write_bytes((tmp_path / "gguf").read_bytes()[:300])
    refused(tmp_path, tmp_path / "gguf", "cut off or damaged GGUF")
