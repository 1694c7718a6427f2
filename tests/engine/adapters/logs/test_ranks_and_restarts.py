"""Ranks that are copies or stages, decode steps and counters that begin anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.adapters.logs import engine_logs as make
from tests.engine.adapters.logs.engine_logs import EXPERTS, IDS, LAYERS, PROMPT, ROWS, TOP_K, choices
from tests.engine.adapters.logs.test_engine_logs import kept, pieces
from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts, OnlyCounts
from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.passes.layer_passes import RESTARTED, STITCHED
from tokenpaths.engine.adapters.logs.passes.megatron import RECOMPUTED
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run


def traces(folder: Path, seeds: list[list[int]], one_file: bool) -> Path:
    """Traces of a rank for each list, with a step of choices of each of its seeds."""
    ranks = [
        [
            make.megatron(rank, at, layer, choices(8, seed)[:, layer])
            for at, seed in enumerate(own)
            for layer in range(2)
        ]
        for rank, own in enumerate(seeds)
    ]
    if one_file:
        return make.lines(folder, [record for records in zip(*ranks, strict=True) for record in records])
    folder.mkdir()
    for rank, records in enumerate(ranks):
        make.lines(folder / f"router_trace_rank{rank}.jsonl", records)
    return folder


@pytest.mark.parametrize("one_file", [True, False])
def test_data_parallel_ranks_may_begin_with_the_same_tokens(one_file: bool, tmp_path: Path) -> None:
    log, found = pieces(traces(tmp_path / "log", [[1, 2], [1, 3], [1, 2]], one_file))
    given = sorted(np.sort(choices(8, seed)[:, :2], axis=2).tolist() for seed in (1, 2, 1, 3))
    assert sorted(piece.ids.tolist() for piece in found) == given
    assert "1 ranks hold the same rows as another one (tensor parallel)" in log.note


def recomputed(file: Path, again: list[list[int]], tokens: int = 24) -> Path:
    """Two steps of two micro-batches, of which the layers ``again`` are written once more behind their pass."""
    records = []
    for step in range(2):
        for batch in range(2):
            ids = choices(tokens, 2 * step + batch, 3, TOP_K, EXPERTS)
            for layer in [0, 1, 2, *(layer for layers in again for layer in layers)]:
                records.append(make.megatron(0, step, layer, ids[:, layer]))
    return make.lines(file, records)


@pytest.mark.parametrize("again", [[[2, 1, 0]], [[0, 1, 2]], [[1]], [[0, 1]], [[2], [1], [0]], [[2, 1, 0], [0, 1, 2]]])
def test_passes_whose_activations_are_recomputed_are_counted_once(again: list[list[int]], tmp_path: Path) -> None:
    _, plain = pieces(recomputed(tmp_path / "plain", []))
    _, found = pieces(recomputed(tmp_path / "log", again))
    assert [piece.ids.tolist() for piece in found] == [piece.ids.tolist() for piece in plain]
    (times,) = [count for piece in found for kind, count in piece.counted if kind == RECOMPUTED]
    assert times >= 4
    assert not any(piece.counted for piece in plain)


def test_recomputed_passes_of_a_pipeline(tmp_path: Path) -> None:
    ids = choices(24, 0, 4, TOP_K, EXPERTS)
    for rank in range(2):
        layers = [2 * rank, 2 * rank + 1]
        records = [make.megatron(rank, 0, layer, ids[:, layer]) for layer in [*layers, *reversed(layers)]]
        (tmp_path / "log").mkdir(exist_ok=True)
        make.lines(tmp_path / "log" / f"router_trace_rank{rank}.jsonl", records)
    _, (piece,) = pieces(tmp_path / "log")
    assert piece.ids.tolist() == np.sort(ids, axis=2).tolist()
    assert dict(piece.counted) == {RECOMPUTED: 2}


def test_a_few_tokens_that_choose_alike_are_no_recomputed_pass(tmp_path: Path) -> None:
    records = [make.megatron(0, 0, layer, choices(4, 0, 3)[:, layer]) for _ in range(3) for layer in range(3)]
    _, found = pieces(make.lines(tmp_path / "log", records))
    assert len(found) == 3


def test_chunks_of_a_virtual_pipeline_are_named(tmp_path: Path) -> None:
    ids = choices(24, 0, 4, TOP_K, EXPERTS)
    records = [
        make.megatron(0, 0, layer, (ids[:, layer] + batch) % EXPERTS)
        for chunk in ((0, 1), (2, 3))
        for batch in range(2)
        for layer in chunk
    ]
    with pytest.raises(UserError, match="is new.*several chunks of a virtual pipeline"):
        pieces(make.lines(tmp_path / "log", records))


def counted(path: Path, **options: Any) -> ExpertCounts:
    with pytest.raises(OnlyCounts) as caught:
        open_log(path, **options)
    return caught.value.counts


def tokens_per_expert(file: Path, rows: list[tuple[int, int]], tpe: list[list[int]]) -> Path:
    file.parent.mkdir(exist_ok=True)
    return make.lines(file, [{"iter": at, "block": "decoder", "layer": layer, "tpe": tpe} for at, layer in rows])


def test_iterations_that_a_restart_counts_again_are_said(tmp_path: Path) -> None:
    file = tokens_per_expert(tmp_path / "log.jsonl", [(at, 3) for at in (1, 2, 3, 2, 3)], [[10, 20], [5, 5]])
    counts = counted(file)
    assert counts.parts.sum(axis=(1, 2)).tolist() == [40, 80, 80]
    said = "2 of 3 iterations stand in the log again (2, 3, first at line 4), as after a restart"
    said += ": their counts are added up"
    assert counts.notes == (said,)
    with Run.open(import_counts(counts, file, tmp_path / "runs", "again")) as run:
        assert said in run.info()["findings"]["notes"]
    assert counted(tokens_per_expert(file, [(at, 3) for at in (1, 2, 3)], [[10, 20]])).notes == ()


def recorder_passes(file: Path, passes: list[int], ranks: int = 1) -> Path:
    counts = torch.ones(LAYERS, EXPERTS, dtype=torch.int32)
    records = [
        {"forward_pass_id": n, "rank": rank, "global_physical_count": counts} for n in passes for rank in range(ranks)
    ]
    torch.save({"records": records}, file)
    return file


def test_passes_of_the_recorder_that_a_rank_counts_again_are_said(tmp_path: Path) -> None:
    (said,) = counted(recorder_passes(tmp_path / "log", [0, 1, 2, 0, 1])).notes
    assert said.startswith("2 of 3 forward passes stand in the log again (0, 1), as after a restart")
    assert counted(recorder_passes(tmp_path / "log", [0, 1, 2], ranks=2)).notes == ()


def stat(file: Path, counts: np.ndarray) -> Path:
    torch.save({"logical_count": torch.from_numpy(counts)}, file)
    return file


def test_counters_that_go_on_over_steps_and_begin_anew_are_said(tmp_path: Path) -> None:
    steps = np.random.default_rng(1).integers(0, 9, (9, LAYERS, EXPERTS))
    assert counted(stat(tmp_path / "log", steps)).notes == ()
    (said,) = counted(stat(tmp_path / "log", steps.cumsum(axis=0))).notes
    assert said.startswith("no count falls from one step to the next: if these are counters that go on")
    restarted = np.concatenate([steps[:5].cumsum(axis=0), steps[5:].cumsum(axis=0)])
    (said,) = counted(stat(tmp_path / "log", restarted)).notes
    assert "but for step 5, where they begin anew (a restart, perhaps)" in said
    few = np.array([[[1, 2]], [[3, 4]], [[5, 6]]])  # so few could rise together by chance
    assert counted(stat(tmp_path / "log", few)).notes == ()


def test_counts_of_pipeline_ranks_are_joined(tmp_path: Path) -> None:
    folder, tpe = tmp_path / "log", [[10, 20, 0]]
    for rank, layer in enumerate((10, 10, 9, 9)):
        tokens_per_expert(folder / f"rank{rank}.jsonl", [(1, layer), (2 + rank, layer)], tpe)
    counts = counted(folder)
    assert counts.layers == ("layer 9", "layer 10")
    assert counts.times == (1, 2, 3, 4, 5)
    assert counts.parts[:, :, 1].tolist() == [[40, 40], [0, 20], [0, 20], [20, 0], [20, 0]]
    assert counts.notes == ("the layers of 2 pipeline stages are joined",)


def test_counts_of_ranks_that_do_not_fit_say_what_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    tokens_per_expert(folder / "rank0.jsonl", [(1, 3), (1, 4)], [[1, 2]])
    tokens_per_expert(folder / "rank1.jsonl", [(1, 4)], [[1, 2]])
    refused(tmp_path, folder, "rank1 counts 1 layers, some of the 2 of rank0; .*one of them is cut off")
    tokens_per_expert(folder / "rank1.jsonl", [(1, 5)], [[1, 2, 3]])
    refused(tmp_path, folder, "rank1 counts 3 experts a layer, rank0 2")


def test_one_rank_of_statistics_says_that_the_folder_is_the_log(tmp_path: Path) -> None:
    folder = make.statistics(tmp_path / "log")
    refused(tmp_path, folder / "rank0.safetensors", "one rank of TensorRT-LLM's statistics .*import the folder")


def decoded(file: Path, layout: str, number: str, requests: int = 1) -> Path:
    """Prompts and decode steps, whose tokens are numbered from 0 again, or 0 always."""
    rows: list[str] = []
    for request in range(requests):
        for prompt, first, ids, _ in make.passes(short=False):
            for layer in range(LAYERS):
                for token, chosen in enumerate(np.roll(ids, request, axis=2)[:, layer].tolist()):
                    at = token if prompt else 0 if number == "always 0" else first - PROMPT
                    if layout == "lines":
                        rows.append(json.dumps({"layer_idx": layer, "token_idx": at, "selected_ids": chosen}))
                        continue
                    phase = {"phase": f"{'prefill' if prompt else 'decode'},", "plain": ""}[layout]
                    rows += [f"{phase}{at},{layer},{k},{e}" for k, e in enumerate(chosen)]
    header = {"phase": ["phase,token,layer,rank,expert"], "plain": ["token,layer,rank,expert"], "lines": []}[layout]
    file.write_text("\n".join([*header, *rows]) + "\n")
    return file


@pytest.mark.parametrize("number", ["from 0", "always 0"])
@pytest.mark.parametrize("layout", ["phase", "plain", "lines"])
def test_decode_steps_that_are_numbered_anew_stand_behind_their_prompt(
    layout: str, number: str, tmp_path: Path
) -> None:
    _, found = pieces(decoded(tmp_path / "log", layout, number, requests=2))
    assert all(kept(piece, np.roll(IDS[0], n, axis=2)) for n, piece in enumerate(found))
    assert len(found) == 2
    assert sum(dict(piece.counted).get(RESTARTED, 0) for piece in found) == 2 * (ROWS - PROMPT)
    assert all(STITCHED not in dict(piece.counted) for piece in found)


def test_prompts_of_one_token_are_samples_where_the_log_says_the_phase_or_numbers_go_on(tmp_path: Path) -> None:
    rows = [f"prefill,{t},0,{k},{IDS[0][t, 0, k]}" for t in range(5) for k in range(TOP_K)]
    alone = [f"prefill,0,0,{k},{IDS[1][0, 0, k]}" for k in range(TOP_K)]
    header = "phase,token,layer,rank,expert"
    twice = [row.replace(",0,", ",1,", 1) if row.split(",")[1] != "0" else row for row in alone]
    second = [row.rsplit(",", 3)[0] + f",1,{k},{row.rsplit(',', 1)[1]}" for k, row in enumerate(alone)]
    first = [f"prefill,{t},1,{k},{IDS[0][t, 1, k]}" for t in range(5) for k in range(TOP_K)]
    (tmp_path / "log").write_text("\n".join([header, *rows, *first, *twice, *second]) + "\n")
    assert [piece.num_tokens for piece in pieces(tmp_path / "log")[1]] == [5, 1]
    # A log of which some decode steps go on where their prompt ended numbers tokens by their position.
    plain = ["token,layer,rank,expert"]
    goes_on = [f"decode,5,{layer},{k},{IDS[0][5, layer, k]}" for layer in range(2) for k in range(TOP_K)]
    given = [row.split(",", 1)[1] for row in [*rows, *first, *goes_on, *rows, *first, *twice, *second]]
    (tmp_path / "log").write_text("\n".join([*plain, *given]) + "\n")
    assert [piece.num_tokens for piece in pieces(tmp_path / "log")[1]] == [6, 5, 1]
