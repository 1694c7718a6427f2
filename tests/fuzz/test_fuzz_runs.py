"""Run files with any bytes changed and right sums: answers or a problem in words, and the server goes on."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.backend.conftest import API, api_for, problem
from tests.faults.test_fault_strangers import BLOCK, HEADERS, QUESTIONS, checksum, elsewhere
from tests.fuzz.fuzz_settings import fuzzed_with
from tests.support.runs import make_run

EXAMPLES = 4
PLACES = st.tuples(st.floats(0, 1, exclude_max=True), st.integers(8, BLOCK - 16), st.binary(min_size=1, max_size=8))


def with_right_sums(data: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """``data`` with (share of the blocks, place in the block, new bytes) changed as far as they hold anything."""
    made, num_blocks = bytearray(data), (len(data) - HEADERS) // BLOCK
    for share, place, given_bytes in changes:
        start = HEADERS + BLOCK * int(share * num_blocks)
        used = len(bytes(made[start + 8 : start + BLOCK]).rstrip(b"\0"))
        at = start + 8 + (place - 8) % (used + 8)
        made[at : at + len(given_bytes)] = given_bytes
        made[start : start + 8] = checksum(bytes(made[start + 8 : start + BLOCK]))
    return bytes(made[: len(data)])


def test_any_change_of_a_run_file(tmp_path: Path) -> None:
    whole = elsewhere(tmp_path)
    with api_for(tmp_path / "data", check_seconds=30) as served:
        make_run(served.runs_dir, "whole", samples=2, twin=False)
        file = served.runs_dir / "forged.duckdb"

        @fuzzed_with(EXAMPLES)
        @given(st.lists(PLACES, min_size=1, max_size=4))
        def answered(changes: list[tuple[float, int, bytes]]) -> None:
            file.write_bytes(with_right_sums(whole, changes))
            for path in QUESTIONS:
                answer = served.get(f"/runs/forged{path}")
                assert answer.status_code == 200 or len(problem(answer, answer.status_code)["detail"]) > 20
                assert answer.status_code in (200, 404, 409, 422), (path, answer.text)
            assert {card["run"] for card in served.get("/runs").json()["runs"]} == {"forged", "whole"}
            assert served.get("/runs/whole/flow").status_code == 200
            assert served.client.delete(f"{API}/runs/forged").status_code == 204

        answered()
