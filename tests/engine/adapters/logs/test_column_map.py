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
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.sequences import GAPS
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
    "another size": ('[columns]\nexpert="e"\n[log]\nexpert=8\n', "may hold experts, layers, top_k, model"),
    "a size in quotes": (
        '[columns]\nexpert="e"\n[log]\nexperts="8"\n',
        r"\[log\] experts is '8', it should be a whole number from 1 to 65536",
    ),
    "true for a size": ('[columns]\nexpert="e"\n[log]\nlayers=true\n', "layers is True, it should be a whole number"),
    "a number for a name": ('[columns]\nexpert="e"\n[log]\nmodel=8\n', "model is 8, it should be a name in quotes"),
    "a number for a column": ('[columns]\nexpert="e"\ntoken=3\n', "token is 3, it should be the name of a column"),
    "no such column": ('[columns]\ntoken="at"\nlayer="blk"\nexpert="x"\n', "has nothing at 'x'"),
    "no token": ('[columns]\nlayer="blk"\nexpert="e"\n', "names no column for the token"),
    "no layer": ('[columns]\ntoken="at"\nexpert="e"\n', "line 1: the map names no layer"),
    "a text": (
        '[columns]\ntoken="at"\nlayer="blk"\nexpert="req"\n',
        "line 1: expert is 'r0', it should be a whole number",
    ),
    "two requests in one": (
        '[columns]\ntoken="at"\nlayer="blk"\nslot="k"\nexpert="e"\n[log]\ntop_k=2\n',
        "line 161: token 0 has slot 0 at layer 0 a second time; .*name .sequence. in the map",
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
    with pytest.raises(UserError, match="line 21: token 2 of 'r0' has 1 expert at layer 2, others 2; rows are missing"):
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
        ("a,0,0,5\na,0,1,6\na,0,1,6", "line 4: token 0 of 'a' has expert 6 at layer 1 a second time"),
        ("a,100000000000,0,5", "should be a whole number from 0 to 2147483647"),
        ("a,--3,0,5", "token is '--3'"),
        ("a,0,0,5.0", r"line 2: expert is '5.0', it should be .* without a point: 5 \(of pandas: astype\('Int64'\)\)"),
        ("a,0,0,5.5", r"line 2: expert is '5.5', it should be a whole number from 0 to 2147483647$"),
    ],
)
def test_rows_that_are_none(tmp_path: Path, row: str, said: str) -> None:
    (tmp_path / "log").write_text(f"request,position,blk,expert\n{row}\n")
    with pytest.raises(UserError, match=said):
        mapped(tmp_path, tmp_path / "log", PLAIN)


def test_sizes_of_a_map_are_sizes(tmp_path: Path) -> None:
    (tmp_path / "map.toml").write_text('[columns]\nexpert = "expert"\n[log]\nexperts = -3\n')
    with pytest.raises(UserError, match="experts is -3, it should be a whole number from 1 to 65536"):
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


SLOTS = '[columns]\ntoken = "t"\nlayer = "l"\nslot = "s"\nexpert = "e"\n'
LISTS = '[columns]\ntoken = "t"\nlayer = "l"\nexpert = "e"\n'


def two_sequences(file: Path, lists: bool) -> Path:
    """Two sequences of ten tokens that nothing tells apart, of experts 0 to 3 and 4 to 7."""
    both = [(t, 0, s, 4 * n + (t + s) % 4) for n in range(2) for t in range(10) for s in range(2)]
    if lists:
        return lines(file, [{"t": t, "l": 0, "e": [e, e // 4 * 4 + (e + 1) % 4]} for t, _, s, e in both if s == 0])
    file.write_text("t,l,s,e\n" + "".join(f"{','.join(map(str, row))}\n" for row in both))
    return file


@pytest.mark.parametrize("lists", [False, True])
def test_two_sequences_under_one_name_are_no_tokens_with_twice_as_many_experts(tmp_path: Path, lists: bool) -> None:
    said = "line 11: token 0 has a list at layer 0" if lists else "line 22: token 0 has slot 0 at layer 0"
    with pytest.raises(UserError, match=f"{said} a second time; .*several sequences under one name"):
        mapped(tmp_path, two_sequences(tmp_path / "log", lists), LISTS if lists else SLOTS)


@pytest.mark.parametrize("end", ["1,0", "1,", "1,0,2,3"])
@pytest.mark.parametrize("behind", ["", "\n1,0,5\n"])
def test_a_row_that_is_cut_off_is_no_unused_slot(tmp_path: Path, end: str, behind: str) -> None:
    (tmp_path / "log").write_text(f"t,l,e\n0,0,1\n0,0,2\n1,0,3\n{end}{behind}")
    said = f"line 5: has {len(end.split(','))} cells, the header 3; the table is cut off"
    with pytest.raises(UserError, match=said):
        mapped(tmp_path, tmp_path / "log", LISTS)


def test_cells_behind_the_last_column_may_be_blank(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("t,l,e\n0,0,1,\n0,0,2,\n")
    (piece,) = mapped(tmp_path, tmp_path / "log", LISTS)
    assert piece.ids.tolist() == [[[1, 2]]]


def test_lines_of_comments_and_of_several_lines_are_counted(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('# a\n# b\nt,l,e,text\n0,0,1,"two\nlines"\n# c\n\n0,0,x,\n')
    with pytest.raises(UserError, match="line 8: expert is 'x'"):
        mapped(tmp_path, tmp_path / "log", LISTS)


@pytest.mark.parametrize("column", ["request", "note"])
def test_a_table_that_is_no_utf8_is_refused_and_makes_no_two_names_one(tmp_path: Path, column: str) -> None:
    cells = {"request": "a", "position": "0", "blk": "0", "expert": "5", "note": ""}
    rows = [cells | {column: name, "position": place} for place, name in (("0", "caf\xe9"), ("1", "caf\xe8"))]
    text = "".join(",".join(row) + "\n" for row in (list(cells), *(row.values() for row in rows)))
    (tmp_path / "log").write_text("# caf\xe9\n" + text, encoding="latin-1")
    with pytest.raises(UserError, match="log, line 3: not UTF-8; save the table as UTF-8"):
        mapped(tmp_path, tmp_path / "log", PLAIN)
    (tmp_path / "log").write_text(text, encoding="utf-8")
    assert len(mapped(tmp_path, tmp_path / "log", PLAIN)) == (2 if column == "request" else 1)
    (tmp_path / "log").write_text(text.replace("blk", "bl\xf6ck"), encoding="latin-1")
    with pytest.raises(UserError, match="log, line 1: not UTF-8"):
        mapped(tmp_path, tmp_path / "log", PLAIN)


def test_a_line_that_is_no_utf8_takes_its_token_with_it(tmp_path: Path) -> None:
    rows = [f"{token},0,{2 * token + slot}," for token in range(5) for slot in range(2)]
    rows[4] += "\xe9"  # beside the columns that are read
    (tmp_path / "map.toml").write_text(LISTS)
    (tmp_path / "log").write_text("\n".join(["t,l,e,note", *rows]), encoding="latin-1")
    log = open_log(tmp_path / "log", column_map=tmp_path / "map.toml", skip_bad=True).counted()
    found = list(log.pieces())
    assert [token[0] for piece in found for token in piece.ids.tolist()] == [[0, 1], [2, 3], [6, 7], [8, 9]]
    assert [kind.split("log, ")[1] for piece in found for kind, _ in piece.counted] == [
        "line 6: not UTF-8; save the table as UTF-8"
    ]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_column_that_stands_twice_is_refused(tmp_path: Path, kind: str) -> None:
    header, row = ["request", "position", "blk", "expert", "note", "note", "expert"], ["a", 0, 0, 5, "x", "y", 6]

    def write(columns: list[int]) -> None:
        names, cells = [header[n] for n in columns], [row[n] for n in columns]
        if kind == "csv":
            (tmp_path / "log").write_text(",".join(names) + "\n" + ",".join(map(str, cells)) + "\n")
        else:
            pq.write_table(pa.Table.from_arrays([pa.array([cell]) for cell in cells], names), tmp_path / "log")

    write([0, 1, 2, 3, 4, 5, 6])
    with pytest.raises(UserError, match="log: has 2 columns 'expert'; rename all but one"):
        mapped(tmp_path, tmp_path / "log", PLAIN)
    write([0, 1, 2, 3, 4, 5])  # a column that is not read may stand twice
    assert mapped(tmp_path, tmp_path / "log", PLAIN)[0].ids.tolist() == [[[5]]]


def sound(
    tmp_path: Path, text: str, toml: str = LISTS, **options: int
) -> tuple[list[list[int]], list[tuple[str, int]]]:
    """The tokens (of one layer) that are left without bad rows, and what is said of the others."""
    (tmp_path / "log").write_text(text)
    (tmp_path / "map.toml").write_text(toml)
    log = open_log(tmp_path / "log", column_map=tmp_path / "map.toml", skip_bad=True, **options).counted()  # type: ignore[arg-type]
    found = list(log.pieces())
    counted = [(kind.replace(str(tmp_path), ""), n) for piece in found for kind, n in piece.counted]
    return [token[0] for piece in found for token in piece.ids.tolist()], counted


LEFT_OUT = "{n} token{s} {are} left out: /log, line "


def test_bad_cells_take_their_token_with_them(tmp_path: Path) -> None:
    ids, said = sound(tmp_path, "t,l,e\n0,0,1\n0,0,2\n1,0,3\n1,0,3\n2,0,4\n2,0,x\n3,0,5\n3,-1,6\n4,0,7\n4,0,8\n")
    assert ids == [[1, 2], [7, 8]]
    assert [(kind[: len(LEFT_OUT) + 1], n) for kind, n in said] == [(f"{LEFT_OUT}{n}", 1) for n in (7, 9, 5)]


def test_a_row_of_an_unknown_token_takes_those_around_it(tmp_path: Path) -> None:
    rows = [f"{token},0,{2 * token + slot}" for token in range(6) for slot in range(2)]
    rows[4] = "x,0,4"  # the first row of token 2
    assert sound(tmp_path, "\n".join(["t,l,e", *rows]))[0] == [[0, 1], [6, 7], [8, 9], [10, 11]]
    rows[4] = "?"
    assert sound(tmp_path, "\n".join(["t,l,e", *rows]))[0] == [[0, 1], [6, 7], [8, 9], [10, 11]]
    records = [json.dumps({"t": t, "l": 0, "e": [2 * t, 2 * t + 1]}) for t in range(6)]
    ids, said = sound(tmp_path, "\n".join([*records[:3], records[3][:9], *records[4:]]) + "\n")
    assert ids == [[0, 1], [2, 3], [10, 11]]
    assert sum(n for kind, n in said if kind != GAPS) == 2
    assert (GAPS, 1) in said  # the token of the line that is cut off


def test_tokens_with_another_number_of_experts_or_a_slot_twice_are_left_out(tmp_path: Path) -> None:
    rows = [f"{token},0,{2 * token + slot}" for token in range(6) for slot in range(2)]
    assert sound(tmp_path, "\n".join(["t,l,e", *rows[:3], *rows[4:], "4,0,30"]))[0] == [
        [0, 1],
        [4, 5],
        [6, 7],
        [10, 11],
    ]
    slots = [f"{token},0,{slot},{2 * token + slot}" for token in range(4) for slot in range(2)]
    ids, said = sound(tmp_path, "\n".join(["t,l,s,e", *slots, "1,0,0,9"]), SLOTS)
    assert ids == [[0, 1], [4, 5], [6, 7]]
    assert "token 1 has slot 0 at layer 0 a second time" in said[0][0]


def test_positions_that_are_missing_are_counted(tmp_path: Path) -> None:
    toml = '[columns]\nsequence = "q"\nphase = "p"\ntoken = "t"\nlayer = "l"\nexpert = "e"\n'

    def told(*tokens: str) -> list[tuple[str, int]]:
        rows = [f"{token},0,{number}" for number, token in enumerate(tokens)]
        ids, said = sound(tmp_path, "\n".join(["q,p,t,l,e", *rows]), toml)
        assert [i for token in ids for i in token] == list(range(len(tokens)))
        return said

    assert told("a,x,0", "a,x,1", "a,x,5", "b,x,0", "b,x,2") == [(GAPS, 4)]
    assert told("a,x,7", "a,x,8") == told("a,x,5", "a,x,6", "a,y,0", "a,y,1", "b,x,0", "b,x,1") == []
    assert told("a,x,0", "a,x,2", "b,x,1", "b,x,3") == []  # a number for each token of the table


def test_few_of_many_bad_rows_are_told_and_none_is_left_says_why(tmp_path: Path) -> None:
    rows = [f"{token},0,{'x' if token % 2 else token}" for token in range(40)]
    ids, said = sound(tmp_path, "\n".join(["t,l,e", *rows]))
    assert len(ids) == sum(n for _, n in said) == 20
    assert len(said) == 6
    with pytest.raises(UserError, match="log, line 2: expert is 'x'"):
        sound(tmp_path, "t,l,e\n0,0,x\n")
