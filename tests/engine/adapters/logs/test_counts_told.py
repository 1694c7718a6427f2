"""Tables and lines that count tokens by expert: what is refused, and what a run of them says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.adapters.logs.test_log_refusals import refused
from tokenpaths.engine.adapters.logs.counts.counter_notes import experts_of_all_tokens
from tokenpaths.engine.adapters.logs.counts.expert_counts import OnlyCounts
from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run


@pytest.mark.parametrize("top_k", [None, 8])
@pytest.mark.parametrize("header", ["layer,expert,count", "layer,expert,Tokens", "step,layer,expert,load"])
def test_a_table_of_counts_is_no_trace(tmp_path: Path, header: str, top_k: int | None) -> None:
    rows = [[0] * header.startswith("step") + [layer, expert, 5] for layer in range(2) for expert in range(8)]
    file = tmp_path / "counts.csv"
    file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))
    with pytest.raises(UserError, match=r"is a table of counts of tokens by expert .*\"tpe\": \[12, 0, …\]"):
        open_log(file, top_k=top_k)


def test_a_count_beside_the_token_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text("token,layer,expert,load\n0,0,1,9\n0,1,2,9\n1,0,3,9\n1,1,4,9\n")
    assert "columns that are not read: load" in open_log(file).note


COUNTS = np.random.default_rng(0).multinomial(128, np.ones(8) / 8, (3, 4))
"""of iterations, layers, experts"""


def tpe(file: Path, counts: Any = COUNTS, leave_out: int | None = None) -> Path:
    records = [
        {"iter": 100 * time, "block": "decoder", "layer": layer, "tpe": list(map(int, row))}
        for time, layers in enumerate(counts)
        for layer, row in enumerate(layers)
    ]
    file.write_text("".join(json.dumps(one) + "\n" for at, one in enumerate(records) if at != leave_out))
    return file


def findings(tmp_path: Path, file: Path) -> dict[str, Any]:
    with pytest.raises(OnlyCounts) as only:
        open_log(file)
    with Run.open(import_counts(only.value.counts, file, tmp_path / "runs", "counts")) as run:
        found: dict[str, Any] = run.info()["findings"]
    return found


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([3, 4, -1, 2], "line 2: tpe has -1 for expert 2, which is no number of tokens"),
        (
            [[1, 2, 3, 4], [1, -5, 3, 4]],
            "line 2: tpe has -5 for expert 1 of micro-batch 1, which is no number of tokens",
        ),
        ([1, 2, 3], "line 2: counts 3 experts, layer 0 at iteration 0 4; a row is cut off"),
        ([[[1]]], "line 2: tpe should be rows of numbers of tokens"),
    ],
)
def test_a_row_of_counts_that_is_none(tmp_path: Path, row: Any, said: str) -> None:
    records = [{"iter": 0, "layer": layer, "tpe": tpe} for layer, tpe in enumerate(([1, 2, 3, 4], row))]
    file = tmp_path / "log"
    file.write_text("".join(json.dumps(one) + "\n" for one in records))
    refused(tmp_path, file, said)


def test_a_layer_that_an_iteration_lacks_is_said(tmp_path: Path) -> None:
    assert not any("stand as 0" in note for note in findings(tmp_path, tpe(tmp_path / "whole"))["notes"])
    file = tpe(tmp_path / "log", leave_out=5)
    with pytest.raises(OnlyCounts) as only:
        open_log(file)
    said = (
        "1 of 12 counts, of a layer at an iteration each, are not in the log and stand as 0 (layer 1 at iteration 100)"
    )
    assert said in only.value.counts.notes


def test_an_expert_that_every_token_uses_is_a_warning(tmp_path: Path) -> None:
    shared = np.concatenate([COUNTS, np.full((3, 4, 1), 64)], axis=2)
    found = findings(tmp_path, tpe(tmp_path / "log", shared))
    (warning,) = found["import_doctor"]
    assert (warning["test"], warning["kind"]) == ("one expert everywhere", "warning")
    assert warning["sentence"] in found["notes"]
    assert warning["sentence"].startswith("expert 8: the same number of tokens at every layer of each iteration")


def test_equal_counts_that_are_no_shared_expert() -> None:
    assert experts_of_all_tokens(COUNTS) == []
    assert experts_of_all_tokens(np.full((3, 4, 8), 16)) == []  # experts that choose tokens
    assert experts_of_all_tokens(np.array([[[5, 1, 1], [5, 2, 0]]])) == []  # too few layers to tell
    assert experts_of_all_tokens(np.array([[[5, 1, 1], [5, 2, 0], [0, 0, 0], [5, 0, 2], [5, 1, 1]]])) == [0]
    assert experts_of_all_tokens(np.array([[[5, 1, 1], [5, 2, 0], [0, 0, 0], [4, 0, 5], [5, 1, 1]]])) == []
