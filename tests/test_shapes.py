"""That the tests check the shapes and types of what they call (``tests/conftest.py``, ``tests/support/shapes.py``)."""

from __future__ import annotations

import numpy as np
import pytest
from beartype import beartype
from jaxtyping import Float, Integer, TypeCheckError

from tests.support.shapes import jaxtyped
from tokenpaths.engine.analysis.contrast import mean_of
from tokenpaths.engine.store.file.pages.ribbon_planes import decode_planes, encode_planes


def test_a_wrong_shape_or_type_ends_a_test() -> None:
    planes = encode_planes(np.zeros((9, 2), dtype=np.uint8), bits=3)
    assert decode_planes(planes, 9, np.dtype(np.uint8)).shape == (2, 9)
    with pytest.raises(TypeCheckError, match="ids_PV"):
        encode_planes(np.zeros(9, dtype=np.uint8), bits=3)
    with pytest.raises(TypeCheckError, match="bits"):
        encode_planes(np.zeros((9, 2), dtype=np.uint8), bits="3")  # type: ignore[arg-type]


@jaxtyped(typechecker=beartype)
def both(x_N: Float[np.ndarray, " N"], y_N: Float[np.ndarray, " N"]) -> Float[np.ndarray, "2 N"]:
    return np.stack([x_N, y_N] if len(x_N) != 3 else [x_N])


@jaxtyped(typechecker=beartype)
def counted(text: str, *, times: int = 1) -> str:
    return text * times if times < 9 else times


@jaxtyped(typechecker=beartype)
def each(ids_n: Integer[np.ndarray, " n"]):
    yield from ids_n.tolist()


def test_what_is_right_passes():
    assert both(np.ones(2), np.zeros(2)).shape == (2, 2)
    assert counted("ab", times=2) == "abab"
    assert list(each(np.arange(3))) == [0, 1, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: both(np.ones(2), np.ones(4)),  # two sizes of one name
        lambda: both(np.ones(3), np.ones(3)),  # the result
        lambda: both(np.ones(2), np.ones(2, dtype=int)),
        lambda: both(np.ones((2, 2)), np.ones((2, 2))),
        lambda: counted(3),
        lambda: counted("a", times="b"),
        lambda: counted("a", times=9),
        lambda: list(each(np.ones(3))),
        lambda: mean_of(np.ones(3), np.ones(4)),  # by the import hook
        lambda: mean_of(np.ones(3), np.ones(3, dtype=int)),
    ],
)
def test_what_is_wrong_does_not(call):
    with pytest.raises(TypeCheckError):
        call()


def test_sizes_are_held_together_within_a_call_only():
    for size in (1, 2, 4):
        assert both(np.ones(size), np.ones(size)).shape == (2, size)
