"""Tables and lines that count tokens by expert: what is refused, and what a run of them says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.base.errors import UserError


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
