"""That the tests check the shapes and types of what they call (``tests/conftest.py``)."""

from __future__ import annotations

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from tokenpaths.engine.store.file.pages.ribbon_planes import decode_planes, encode_planes


def test_a_wrong_shape_or_type_ends_a_test() -> None:
    planes = encode_planes(np.zeros((9, 2), dtype=np.uint8), bits=3)
    assert decode_planes(planes, 9, np.dtype(np.uint8)).shape == (2, 9)
    with pytest.raises(TypeCheckError, match="ids_PV"):
        encode_planes(np.zeros(9, dtype=np.uint8), bits=3)
    with pytest.raises(TypeCheckError, match="bits"):
        encode_planes(np.zeros((9, 2), dtype=np.uint8), bits="3")  # type: ignore[arg-type]
