"""The second reading of a log gives the pieces of the first one, and a log is read again where there was no space."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from tokenpaths.engine.adapters.logs import importing, spool
from tokenpaths.engine.adapters.logs.formats import open_log
from tokenpaths.engine.adapters.logs.pieces.piece import Piece
from tokenpaths.engine.adapters.logs.spool import PieceSpool
from tokenpaths.engine.store.write import arrow_tables


def pieces() -> list[Piece]:
    rng = np.random.default_rng(4)
    made = []
    for number, largest in enumerate((4, 300, 70_000, 9)):
        ids = rng.integers(0, largest, (number + 2, 3, 2))
        ids[0] = -1 if number == 3 else ids[0]
        weights = rng.random(ids.shape, dtype=np.float32) if number % 2 else None
        words = {"label": f"ä{number}", "remarks": ("cut",), "counted": (("n", 2),), "shared_with": ("s", 3)}
        made.append(Piece(ids, f"line {number}", weights, rng.integers(0, 9, len(ids)), **words))
    return made


def same(one: Piece, other: Piece) -> bool:
    arrays = [(getattr(one, name), getattr(other, name)) for name in ("ids", "weights", "token_id")]
    rest = ("where", "label", "text", "source", "remarks", "counted", "shared_with", "rows_from")
    return all((a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in arrays) and all(
        getattr(one, name) == getattr(other, name) for name in rest
    )


@pytest.mark.parametrize(
    ("held", "of_a_file"), [(1, 1), (1, 1 << 20), (1 << 20, 1)], ids=["on disk", "in one file", "in memory"]
)
def test_pieces_come_back_once_and_their_files_are_closed(
    held: int, of_a_file: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "HELD_BYTES", held)
    monkeypatch.setattr(spool, "FILE_BYTES", of_a_file)
    opened: list[IO[bytes]] = []
    make = tempfile.TemporaryFile
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **where: opened.append(make(**where)) or opened[-1])
    kept = PieceSpool(tmp_path)
    for piece in pieces():
        kept.add(piece)
    assert len(opened) == (0 if held > 1 else len(pieces()) if of_a_file == 1 else 1)
    for number, (own, other) in enumerate(zip(pieces(), kept.take() or (), strict=True)):
        assert same(own, other)
        assert all(file.closed for file in opened[:number]) or of_a_file > 1
    assert all(file.closed for file in opened)
    assert kept.take() is None
    assert not list(tmp_path.iterdir())


def test_a_log_is_decoded_once(tmp_path: Path) -> None:
    plain = [[0, 1], [2, 3], [1, 3]]
    np.save(tmp_path / "log.npy", np.array([plain, plain, plain[::-1]]))
    log = open_log(tmp_path / "log.npy", experts=4)
    own = list(log.pieces())
    counted = log.counted(tmp_path)
    (tmp_path / "log.npy").unlink()
    assert all(same(a, b) for a, b in zip(own, counted.pieces(), strict=True))


def test_a_log_that_is_read_once_more_is_read_from_its_file(tmp_path: Path) -> None:
    plain = [[0, 1], [2, 3], [1, 3]]
    np.save(tmp_path / "log.npy", np.array([plain, plain, plain[::-1]]))
    counted = open_log(tmp_path / "log.npy", experts=4).counted(tmp_path)
    first = list(counted.pieces())
    assert all(same(a, b) for a, b in zip(first, counted.pieces(), strict=True))


def test_without_space_the_log_itself_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "HELD_BYTES", 1)

    def full(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spool, "check_free", full)
    plain = [[0, 1], [2, 3], [1, 3]]
    np.save(tmp_path / "log.npy", np.array([plain, plain, plain[::-1]]))
    counted = open_log(tmp_path / "log.npy", experts=4).counted(tmp_path)
    assert [piece.ids.tolist() for piece in counted.pieces()] == [np.load(tmp_path / "log.npy").tolist()]


def alike(counts: tuple[int, ...]) -> list[Piece]:
    rng = np.random.default_rng(6)
    return [Piece(rng.integers(0, 200, (count, 3, 2)), f"line {count}") for count in counts]


def test_ids_of_pieces_that_were_kept_together_are_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "HELD_BYTES", 6 * (3 + 4 + 5))
    kept = PieceSpool(tmp_path)
    made = alike((3, 4, 5, 6, 7))
    for piece in made:
        kept.add(piece)
    taken = list(kept.take() or ())
    assert all(same(own, other) for own, other in zip(made, taken, strict=True))
    ids = [piece.ids for piece in taken]
    whole = importing._joined(ids[:3])
    assert np.array_equal(whole, np.concatenate([piece.ids for piece in made[:3]]))
    assert all(np.shares_memory(whole, part) for part in ids[:3])
    assert ids[0].ctypes.data % 8 == 0
    assert not whole.flags.writeable
    assert np.shares_memory(arrow_tables._own(whole, whole.dtype), whole)  # nobody can change it


@pytest.mark.parametrize("chosen", [(0, 2), (1, 0), (0, 1, 3), (2, 3), (2, 4), (0, 0)])
def test_ids_that_do_not_lie_together_are_copied(
    chosen: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "HELD_BYTES", 6 * (3 + 4 + 5))
    kept = PieceSpool(tmp_path)
    for piece in alike((3, 4, 5, 6, 7)):
        kept.add(piece)
    ids = [piece.ids for piece in kept.take() or ()]
    parts = [ids[i] for i in chosen]
    joined = importing._joined(parts)
    assert np.array_equal(joined, np.concatenate(parts))
    assert not any(np.shares_memory(joined, part) for part in parts)


def test_what_somebody_could_change_is_copied() -> None:
    kind = np.dtype(np.uint8)
    frozen = np.zeros((2, 4), dtype=np.uint8)
    frozen.flags.writeable = False  # whoever made it may set it back
    changing = np.frombuffer(bytearray(8), dtype=np.uint8)
    changing.flags.writeable = False
    for values in (frozen, frozen[1:], changing, np.zeros(3, dtype=np.uint8)):
        assert not np.shares_memory(arrow_tables._own(values, kind), values)
    fixed = np.frombuffer(bytes(8), dtype=np.uint8)
    assert np.shares_memory(arrow_tables._own(fixed[2:], kind), fixed)
    assert arrow_tables._own(fixed, np.dtype("<u2")).dtype == "<u2"
