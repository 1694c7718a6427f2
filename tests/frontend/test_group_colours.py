"""Groups are told apart by colour on both pages, by eyes of every kind; the map gives each a shape as well."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tokenpaths.frontend.charts import sample_map_chart
from tokenpaths.frontend.charts.drawing.palette import DARK, LIGHT, contrast, group_colours
from tokenpaths.frontend.charts.sample_map import SHAPES

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
EYES = {
    "all three cones": np.eye(3),
    "no long cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.052]],
    "no middle cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "no short cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour: str, eye) -> np.ndarray:
    parts = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    x, y, z = np.cbrt(TO_XYZ @ np.clip(np.asarray(eye) @ linear, 0.01, 1) / [0.9505, 1, 1.089])
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("eye", EYES)
def test_eight_colours_stand_out_and_differ(theme, eye):
    colours = group_colours(8, theme)
    assert len(set(colours)) == len(SHAPES) == 8
    assert min(contrast(colour, theme.background) for colour in colours) >= 3
    assert theme.accent not in colours, "the accent means what is chosen, and only that"
    seen = [lab(colour, EYES[eye]) for colour in colours]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 7


def test_shape_and_colour_share_one_legend_and_leave_the_colour_to_what_is_chosen():
    points = [{"sample": i, "x": i, "y": i, "label": "abc"[i % 3]} for i in range(6)]
    answer = {"points": points, "num_samples": 6, "of_samples": 6, "explained": [0.5, 0.2]}
    marks = sample_map_chart(answer).to_dict()["layer"][0]["encoding"]
    assert marks["shape"]["scale"]["domain"] == marks["fill"]["scale"]["domain"]
    assert marks["shape"]["legend"] == marks["fill"]["legend"]
    assert marks["fill"]["scale"]["range"][:3] == group_colours(3, "light")
    chosen = sample_map_chart(answer, chosen="a").to_dict()["layer"][0]["encoding"]["fill"]
    assert "field" not in chosen
    assert [one["value"] for one in chosen["condition"]] == [LIGHT.accent]
