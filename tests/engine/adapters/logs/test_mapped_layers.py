"""A column map leaves dense layers out, and names the row that is at fault."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.pieces.piece import UNUSED
from tokenpaths.engine.adapters.logs.routing_log import Log
from tokenpaths.engine.base.errors import UserError

LISTS = '[columns]\nsequence = "q"\ntoken = "t"\nexpert = "e"\nweight = "w"\n'
ROWS = '[columns]\nsequence = "q"\ntoken = "t"\nlayer = "l"\nexpert = "e"\n'


def mapped(tmp_path: Path, text: str, toml: str, **options: Any) -> Log:
    file = tmp_path / "log"
    file.write_text(text)
    return opened(tmp_path, file, toml, **options)


def opened(tmp_path: Path, file: Path, toml: str, **options: Any) -> Log:
    (tmp_path / "map.toml").write_text(toml)
    return open_log(file, column_map=tmp_path / "map.toml", **options).counted()


def a_token(number: int, dense: Any, weights: Any) -> dict[str, Any]:
    first, second = [number % 5, 5], [7, number % 5 + 1]
    return {"q": "a", "t": number, "e": [dense, first, dense, second], "w": [weights, [0.5, 0.25], weights, [0.4, 0.3]]}


@pytest.mark.parametrize("table", ["lines", "parquet"])
@pytest.mark.parametrize(
    ("dense", "weights"), [([], []), (None, None), ([None, None], [0, 0]), ([-1, -1], [0, 0]), ([0, 0], [0, 0])]
)
def test_layers_without_an_expert_are_dense(tmp_path: Path, dense: Any, weights: Any, table: str) -> None:
    records = [a_token(number, dense, weights) for number in range(6)]
    if table == "parquet":
        pq.write_table(pa.Table.from_pylist(records), tmp_path / "log")
        log = opened(tmp_path, tmp_path / "log", LISTS)
    else:
        log = mapped(tmp_path, "".join(json.dumps(record) + "\n" for record in records), LISTS)
    assert log.shape.layers == ("layer 1", "layer 3")
    assert not log.shape.partial
    assert log.note.startswith("2 dense layers, where no token of the table has an expert, are left out")
    (piece,) = log.pieces()
    assert piece.ids.tolist() == [record["e"][1::2] for record in records]
    assert log.survey is not None
    assert not log.survey.to_json().get("unused_slots")


def test_a_layer_that_one_token_uses_is_not_dense(tmp_path: Path) -> None:
    records = [a_token(number, [], []) for number in range(6)]
    records[4]["e"][2], records[4]["w"][2] = [3], [1.0]
    log = mapped(tmp_path, "".join(json.dumps(record) + "\n" for record in records), LISTS)
    assert log.shape.layers == ("layer 1", "layer 2", "layer 3")
    assert log.note.startswith("1 dense layer, where no token of the table has an expert, is left out")
    (piece,) = log.pieces()
    assert piece.ids[4, 1].tolist() == [3, UNUSED]


def test_rows_of_a_dense_layer_alone_are_a_token_without_a_decision(tmp_path: Path) -> None:
    text = "q,t,l,e\na,0,0,-1\na,0,1,3\na,1,0,-1\na,2,0,-1\na,2,1,4\n"
    log = mapped(tmp_path, text, ROWS)
    (piece,) = log.pieces()
    assert (log.shape.layers, piece.ids.ravel().tolist()) == (("layer 1",), [3, 4])
    assert any(said.startswith("{n} token{s} without any decision") and n == 1 for said, n in piece.counted)


def refused(tmp_path: Path, rows: Sequence[str], toml: str, message: str, **options: Any) -> None:
    with pytest.raises(UserError, match=message):
        mapped(tmp_path, "\n".join(rows) + "\n", toml, **options)


def test_the_row_at_fault_is_named(tmp_path: Path) -> None:
    rows = ["q,t,l,e,w", *(f"a,{t},{layer},{2 * t + k},0.5" for t in range(2) for layer in range(2) for k in range(2))]
    weighted = ROWS + 'weight = "w"\n'
    refused(tmp_path, [*rows[:5], "a,1,0,16,0.5", *rows[5:6], *rows[7:]], ROWS, "line 6: expert 16 at", experts=16)
    odd = [*rows[:6], "a,1,0,3,1.5", *rows[7:]]
    refused(tmp_path, odd, weighted, r"line 7: weight 1.5 at layer 0, slot 1")
    dense = [row for at, row in enumerate(rows) if at == 0 or row[4] == "1"]
    dense = [dense[0], "a,0,0,-1,0", "a,1,0,-1,0", *dense[1:-1], "a,1,1,16,0.5"]
    refused(tmp_path, dense, ROWS, "line 7: expert 16 at layer 1", experts=16, top_k=2)


def test_a_token_is_named_with_its_sequence(tmp_path: Path) -> None:
    rows = ["q;t;l;e", "b;2;1;1", "b;2;1;2", "a;2;1;1", "a;2;1;2", "a;3;1;1", "b;3;1;1", "b;3;1;2"]
    refused(tmp_path, rows, ROWS, "line 6: token 3 of 'a' has 1 expert at layer 1, others 2; rows are missing")
    unnamed = ["t;l;e", "2;1;1", "2;1;2", "3;1;1"]
    refused(tmp_path, unnamed, ROWS.replace('sequence = "q"\n', ""), "line 4: token 3 has 1 expert")


def test_a_weight_with_a_comma(tmp_path: Path) -> None:
    rows = ["q;t;l;e;w", "b;2;1;1;0,576"]
    weighted = ROWS + 'weight = "w"\n'
    refused(tmp_path, rows, weighted, "line 2: the weight is '0,576', it should be a number with a point: 0.576")
