"""What the component with a sample and its small flow is given: pure tables, no browser."""

from __future__ import annotations

import json

import pytest

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.palette import theme_named
from tokenpaths.frontend.components.explorer_data import (
    MOST_HOLLOW,
    Tint,
    explorer_data,
    small_flow,
    taken_words,
    with_unvisited,
)
from tokenpaths.frontend.components.wall_data import _tamed

MODULES = [{"step": None, "module": m, "name": f"t{m}", "kind": "transformer"} for m in range(4)]


def flow_of(counts: dict[tuple[int, int], int], steps: int) -> dict:
    total = sum(count for (step, _), count in counts.items() if step == 0)
    nodes = [
        {"step": s, "module": m, "name": f"t{m}", "kind": "transformer", "count": c, "share": c / total}
        for (s, m), c in counts.items()
    ]
    return {"steps": list(range(steps)), "nodes": nodes, "links": [], "other": [], "num_tokens": total}


@pytest.mark.parametrize("steps", [2, 3, 12, 64])
def test_every_circle_is_inside_the_picture(steps: int) -> None:
    """All tokens at one module: the largest circles that there are, in the first and the last column too."""
    picture = small_flow(flow_of({(s, 0): 100 for s in range(steps)}, steps))
    assert len(picture["nodes"]) == steps
    for node in picture["nodes"]:
        assert node["r"] > 1
        assert node["r"] <= node["x"] <= picture["width"] - node["r"] - 1, "cut off at the side"
        assert node["r"] <= node["y"] <= picture["height"] - node["r"]
        if node["x"] == picture["x"][0]:
            assert node["x"] - node["r"] > 18, "a circle lies on the numbers of the rows"


def test_modules_that_nobody_visits_are_hollow_where_a_picture_is_for_editing() -> None:
    flow = flow_of({(0, 0): 5, (0, 2): 1, (1, 2): 6}, 2)
    keys = {node["key"]: node["hollow"] for node in small_flow(with_unvisited(flow, MODULES), unvisited=True)["nodes"]}
    assert keys == {f"{s}.{m}": (s, m) not in {(0, 0), (0, 2), (1, 2)} for s in range(2) for m in range(4)}
    own = [m | {"step": 1} for m in MODULES] + [{"step": 0, "module": 7, "name": "left out", "kind": "identity"}]
    found = {(node["step"], node["module"]) for node in with_unvisited(flow, own)["nodes"]}
    assert found == {(0, 0), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)}  # each at its step alone; no identity of a step
    assert {node["key"] for node in small_flow(flow)["nodes"]} == {"0.0", "0.2", "1.2"}
    many = [MODULES[0] | {"module": m} for m in range(MOST_HOLLOW)]
    assert with_unvisited(flow, many) is flow


def data_of(num_paths: int, cdf: float, path_tokens: int = 7, **options: object) -> dict:
    token = {
        "token": 0,
        "row": 0,
        "col": 0,
        "ribbon": [[0], [2]],
        "weights": [[1.0], [1.0]],
        "rank": num_paths,
        "cdf": cdf,
        "cdf_middle": cdf,
        "path_tokens": path_tokens,
        "compute": 1.0,
        "reuse": 0.0,
        "loss": None,
        "text": None,
    }
    sample = {"sample": 0, "label": None, "text": None, "grid": {"rows": 1, "cols": 1}, "tokens": [token]}
    return explorer_data(
        sample,
        flow_of({(0, 0): 1, (1, 2): 1}, 2),
        Tint(theme_named("light"), num_paths, 1.0, **options),
        image=None,
        chosen=None,
        kept=lambda token: True,
    )


def test_ranks_are_said_to_be_those_of_the_sample_or_of_a_reference() -> None:
    assert "7 tokens of this sample take it; 100 % of all" in data_of(3, 1.0, of="sample")["tokens"][0]["words"]
    assert "of 3: 7 tokens of the run take it; 100 % of all" in data_of(3, 1.0)["tokens"][0]["words"]
    assert "of 3: 7 tokens of run seen take it" in data_of(3, 1.0, reference="seen")["tokens"][0]["words"]
    assert data_of(3, 1.0, reference="seen")["legend"]["title"] == "tokens of seen:"
    assert "All tokens of this sample." in data_of(3, 1.0, of="sample")["flow"]["caption"]


def test_equal_counts_have_equal_shares_in_words() -> None:
    """Two paths of 7 tokens each: by rank one of them had 50 %, the other 100 % on paths at least as frequent."""
    one, other = (
        taken_words({"rank": rank, "path_tokens": 7, "cdf": rank / 2, "cdf_middle": 0.5}, 2) for rank in (1, 2)
    )
    assert one.partition(":")[2] == other.partition(":")[2]
    share = numbers.percent(0.5)
    assert one.endswith(
        f"; {share} of all are on more frequent paths, half of those on equally frequent ones counted in."
    )


def test_without_a_reference_run_no_token_of_a_run_was_looked_at() -> None:
    assert "No token of run seen takes this path." in data_of(3, 1.0, 0, reference="seen")["tokens"][0]["words"]
    unknown = data_of(3, 1.0, 0)["tokens"][0]["words"]
    assert "is not known: there is no reference run" in unknown
    assert "No token" not in unknown


def test_a_text_cannot_turn_what_is_shown_around_it() -> None:
    """U+202E reversed the rest of the page; each token stays a piece of its own, with a mark where the control is."""
    text = "ab\u202ecd <b>\u2066שלום"
    one = {
        "ribbon": [[0], [1]],
        "rank": 1,
        "cdf": 1.0,
        "cdf_middle": 0.5,
        "path_tokens": 7,
        "compute": 1.0,
        "reuse": 0.0,
    }
    tokens = [
        one | {"token": i // 2, "char_start": i, "char_end": i + 2, "text": text[i : i + 2]}
        for i in range(0, len(text), 2)
    ]
    drawn = explorer_data(
        {"sample": 0, "label": None, "text": text, "grid": None, "tokens": tokens},
        flow_of({(0, 0): 7, (1, 1): 7}, 2),
        Tint(theme_named("light"), num_paths=1, opacity=1.0),
        image=None,
        chosen=None,
        kept=lambda token: True,
    )
    assert "".join(piece["text"] for piece in drawn["pieces"]) == "ab⟦RLO⟧cd <b>⟦LRI⟧שלום"
    assert sum(len(piece["tokens"]) for piece in drawn["pieces"]) == len(tokens)
    turning = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
    assert not turning & set(json.dumps(drawn, ensure_ascii=False))
    item = _tamed({"before": "a\u202e", "text": "\u202d", "token": 3})
    assert item == {"before": "a⟦RLO⟧", "text": "⟦LRO⟧", "token": 3}
