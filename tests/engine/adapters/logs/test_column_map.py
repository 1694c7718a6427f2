"""A table that no format describes is read by a column map."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.adapters.logs.engine_logs import IDS, LAYERS, TOP_K, lines
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.pieces import Piece
from tokenpaths.engine.adapters.logs.tables.column_map import read_map
from tokenpaths.engine.base.errors import UserError

WEIGHTS = np.round(np.random.default_rng(2).dirichlet(np.ones(TOP_K), IDS[0].shape[:2]), 4)
ROWS = [
    (f"r{request}", token, layer, slot, int(IDS[request][token, layer, slot]), float(WEIGHTS[token, layer, slot]))
    for request in range(2)
    for token in range(len(IDS[request]))
    for layer in range(LAYERS)
    for slot in range(TOP_K)
]
NAMES = ("req", "at", "blk", "k", "e", "w")


def mapped(tmp_path: Path, file: Path, toml: str) -> list[Piece]:
    (tmp_path / "map.toml").write_text(toml)
    log = open_log(file, column_map=tmp_path / "map.toml").counted()
    return list(log.pieces())


def right(found: list[Piece], weights: bool = True) -> bool:
    assert [piece.source for piece in found] == ["r0", "r1"]
    assert all(np.array_equal(piece.ids, ids) for piece, ids in zip(found, IDS, strict=False))
    return not weights or all(np.allclose(piece.weights, WEIGHTS) for piece in found)


COLUMNS = """[columns]
sequence = "req"
token = "at"
layer = "blk"
slot = "k"
expert = "e"
weight = "w"
[log]
experts = 16
model = "org/m"
"""


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_row_a_decision_in_any_order(kind: str, tmp_path: Path):
    order = np.random.default_rng(0).permutation(len(ROWS))
    order = sorted(order.tolist(), key=lambda i: ROWS[i][0])
    rows = [ROWS[i] for i in order]
    file = tmp_path / "table"
    if kind == "csv":
        file.write_text(",".join(NAMES) + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    elif kind == "jsonl":
        lines(file, [dict(zip(NAMES, row, strict=True)) for row in rows])
    else:
        pq.write_table(pa.table(dict(zip(NAMES, map(list, zip(*rows, strict=True)), strict=True))), file)
    assert right(mapped(tmp_path, file, COLUMNS))


def test_a_row_a_token_and_layer_with_paths(tmp_path: Path):
    records = [
        {
            "meta": {"req": f"r{r}"},
            "at": t,
            "blk": s,
            "route": [{"ids": IDS[r][t, s].tolist(), "p": WEIGHTS[t, s].tolist()}],
        }
        for s in range(LAYERS)
        for r in range(2)
        for t in range(len(IDS[r]))
    ]
    toml = '[columns]\nsequence="meta.req"\ntoken="at"\nlayer="blk"\nexpert="route.0.ids"\nweight="route.0.p"\n'
    assert right(mapped(tmp_path, lines(tmp_path / "table", records), toml))


def test_a_row_a_token(tmp_path: Path):
    records = [{"req": f"r{r}", "ids": IDS[r][t].tolist()} for r in range(2) for t in range(len(IDS[r]))]
    found = mapped(tmp_path, lines(tmp_path / "table", records), '[columns]\nsequence="req"\nexpert="ids"\n')
    assert right(found, weights=False)


def test_decode_tokens_that_count_anew_stand_behind_the_prompt(tmp_path: Path):
    ids = IDS[0]
    rows = [("prompt", t, s, k, ids[t, s, k]) for t in range(12) for s in range(LAYERS) for k in range(TOP_K)]
    rows += [("decode", t - 12, s, k, ids[t, s, k]) for t in range(12, 20) for s in range(LAYERS) for k in range(TOP_K)]
    file = tmp_path / "table"
    file.write_text("phase,t,l,k,e\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    toml = '[columns]\nphase="phase"\ntoken="t"\nlayer="l"\nslot="k"\nexpert="e"\n'
    (piece,) = mapped(tmp_path, file, toml)
    assert np.array_equal(piece.ids, ids)


MAPS = {
    "no TOML": ("[columns", "is no TOML"),
    "no columns": ('[log]\nmodel="m"\n', r"should hold \[columns\]"),
    "another name": ('[columns]\nexperts="e"\n', "may name sequence, phase, token, layer, slot, expert, weight"),
    "no expert": ('[columns]\ntoken="at"\n', "does not say which column is the expert"),
    "another size": ('[columns]\nexpert="e"\n[log]\nexperts="8"\n', "may hold experts, layers, top_k, model"),
    "no such column": ('[columns]\ntoken="at"\nlayer="blk"\nexpert="x"\n', "has nothing at 'x'"),
    "no token": ('[columns]\nlayer="blk"\nexpert="e"\n', "names no column for the token"),
    "no layer": ('[columns]\ntoken="at"\nexpert="e"\n', "line 1: the map names no layer"),
    "a text": (
        '[columns]\ntoken="at"\nlayer="blk"\nexpert="req"\n',
        "line 1: expert is 'r0', it should be a whole number",
    ),
    "two requests in one": (
        '[columns]\ntoken="at"\nlayer="blk"\nslot="k"\nexpert="e"\n[log]\ntop_k=2\n',
        "has 4 top-k, not 2 as announced",
    ),
}


@pytest.mark.parametrize("fault", MAPS)
def test_wrong_maps(fault: str, tmp_path: Path):
    toml, message = MAPS[fault]
    file = lines(tmp_path / "table", [dict(zip(NAMES, row, strict=True)) for row in ROWS])
    with pytest.raises(UserError, match=message) as caught:
        mapped(tmp_path, file, toml)
    assert "map.toml" in str(caught.value) or "table" in str(caught.value)


def test_missing_rows_are_named(tmp_path: Path):
    records = [dict(zip(NAMES, row, strict=True)) for row in ROWS[:21] + ROWS[22:]]
    with pytest.raises(UserError, match="line 21: token 2 has 1 experts at layer 2, others 2; rows are missing"):
        mapped(tmp_path, lines(tmp_path / "table", records), COLUMNS)


def test_a_token_that_lacks_a_layer(tmp_path: Path):
    records = [dict(zip(NAMES, row, strict=True)) for row in ROWS[:20] + ROWS[22:]]
    found = mapped(tmp_path, lines(tmp_path / "table", records), COLUMNS)
    assert np.argwhere((found[0].ids < 0).all(axis=2)).tolist() == [[2, 2]]
    assert json.dumps(found[0].source) == '"r0"'


PLAIN = '[columns]\nsequence = "request"\ntoken = "position"\nlayer = "blk"\nexpert = "expert"\n'


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
def test_a_table_may_part_its_columns_otherwise(tmp_path: Path, delimiter: str) -> None:
    text = "request,position,blk,expert\na,0,0,5\na,0,1,\x1c6\na,1,0,7\na,1,1,8\n"
    (tmp_path / "log").write_text(text.replace(",", delimiter))
    (piece,) = mapped(tmp_path, tmp_path / "log", "\ufeff" + PLAIN)
    assert piece.ids[:, :, 0].tolist() == [[5, 6], [7, 8]]


def test_a_table_may_be_one_json_array(tmp_path: Path) -> None:
    rows = [{"request": "a", "position": t, "blk": s, "expert": 2 * t + s} for t in range(2) for s in range(2)]
    (tmp_path / "log").write_text(json.dumps(rows))
    (piece,) = mapped(tmp_path, tmp_path / "log", PLAIN)
    assert piece.ids[:, :, 0].tolist() == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,0,0,5\na,0,1,6\na,0,1,6", "line 4: token 0 has expert 6 at layer 1 a second time"),
        ("a,100000000000,0,5", "should be a whole number from 0 to 2147483647"),
        ("a,--3,0,5", "token is '--3'"),
    ],
)
def test_rows_that_are_none(tmp_path: Path, row: str, said: str) -> None:
    (tmp_path / "log").write_text(f"request,position,blk,expert\n{row}\n")
    with pytest.raises(UserError, match=said):
        mapped(tmp_path, tmp_path / "log", PLAIN)


def test_sizes_of_a_map_are_sizes(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text('[columns]\nexpert = "expert"\n[log]\nexperts = -3\n')
    with pytest.raises(UserError, match="experts is -3, it should be from 1 to 65536"):
        read_map(tmp_path / "map.toml")


def test_text_of_a_parquet_that_is_no_utf8(tmp_path: Path) -> None:
    bad = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xcd\xff"))
    table = pa.table({"request": bad, "position": [0], "blk": [0], "expert": [1]})
    pq.write_table(table, tmp_path / "log")
    with pytest.raises(UserError, match="'utf-8' codec can't decode"):
        mapped(tmp_path, tmp_path / "log", PLAIN)


@pytest.mark.parametrize("fill", [0, 255])
def test_steps_that_are_filled_are_no_repetition(tmp_path: Path, fill: int) -> None:
    rows = [{"at": 0, "e": [[3, 1], [fill, fill]]}, {"at": 1, "e": [[1, 2], [2, 1]]}]
    (piece,) = mapped(
        tmp_path, lines(tmp_path / "log", rows), '[columns]\ntoken = "at"\nexpert = "e"\n[log]\nexperts = 9'
    )
    assert piece.ids[0, 0].tolist() == [3, 1]
    assert (piece.ids[0, 1] < 0).all()


def test_a_semicolon_may_part_columns_whose_names_hold_commas(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('request;position;blk;"expert, chosen, of, all, a"\na;0;0;5\n')
    (piece,) = mapped(tmp_path, tmp_path / "log", PLAIN.replace('"expert"', '"expert, chosen, of, all, a"'))
    assert piece.ids.tolist() == [[[5]]]


def test_a_packed_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x1f\x8b" + bytes(30))
    with pytest.raises(UserError, match="compressed with gzip; unpack it first"):
        mapped(tmp_path, tmp_path / "log", PLAIN)
