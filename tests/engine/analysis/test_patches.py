"""How busy a patch is: by hand, and against a loop over pixels."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from tokenpaths.engine.analysis.patches import at_border, at_centre, busiest, flattest, patch_contrast


def test_an_edge_is_found_where_it_lies():
    image = np.zeros((1, 8, 8, 3), dtype=np.uint8)
    image[0, :, 6:] = 255  # the edge runs through the last column of patches
    made = patch_contrast(image, 4, 2)[0].reshape(4, 2)
    assert (made[:, 0] == 0).all()
    np.testing.assert_allclose(made[:, 1], 0.5)
    np.testing.assert_array_equal(busiest(made.ravel(), 0.5).reshape(4, 2), made > 0)


@pytest.mark.parametrize(("rows", "cols"), [(3, 4), (1, 1), (7, 5)])
def test_contrast_equals_a_loop(rows, cols):
    images = np.random.default_rng(3).integers(0, 256, (2, 13, 11, 3), dtype=np.uint8)
    made = patch_contrast(images, rows, cols)
    for n in range(2):
        for row in range(rows):
            for col in range(cols):
                tops = [round(13 * i / rows) for i in range(rows + 1)]
                lefts = [round(11 * i / cols) for i in range(cols + 1)]
                pixels = [
                    sum(map(int, images[n, y, x])) / 765
                    for y in range(tops[row], tops[row + 1])
                    for x in range(lefts[col], lefts[col + 1])
                ]
                assert made[n, row * cols + col] == pytest.approx(statistics.pstdev(pixels), abs=1e-9)


def test_an_image_of_one_colour_has_no_busy_patch():
    contrast = patch_contrast(np.full((2, 8, 8, 3), 77, dtype=np.uint8), 2, 2).ravel()
    assert not busiest(contrast).any()
    assert flattest(contrast).all()
    assert not busiest(np.zeros(0)).any()


def test_border_and_centre():
    assert at_border(4, 4).sum() == 12
    assert at_centre(4, 4).reshape(4, 4)[1:3, 1:3].all()
    assert at_centre(4, 4).sum() == 4
    assert at_border(1, 3).all()
