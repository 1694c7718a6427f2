"""What a walk through samples says of itself."""

from __future__ import annotations

import pytest
from PIL import Image

from tokenpaths.engine.data.sources.sample import Sample
from tokenpaths.engine.data.walk import MOST_PROBLEMS, NOT_SQUARE, Walk


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        ("/home/my name/secret project/x.png: damaged", "x.png: damaged"),
        (r"C:\Users\my name\x.png: damaged", "x.png: damaged"),
        ("'/home/me/x y.png' is damaged", "'x y.png' is damaged"),
        ("apple/3.png: is no picture", "3.png: is no picture"),
        ("row 3 of set/part-0.parquet: NaN", "row 3 of part-0.parquet: NaN"),
        ("x.png: [Errno 5] Input/output error", "x.png: [Errno 5] Input/output error"),
        ("line 7: is not JSON", "line 7: is not JSON"),
    ],
)
def test_a_note_names_files_and_not_the_folders_that_they_were_in(problem: str, said: str):
    walk = Walk()
    walk.leave_out(problem)
    assert walk.notes() == [f"1 sample was left out; the first: {said}"]


def test_walks_of_shards_add_up_to_the_walk_of_one_process():
    samples = [
        Sample(image=Image.new("RGB", (4, 4 + number % 3)), text=None, label=None, source=f"{number}.png")
        for number in range(60)
    ]
    whole, parts = Walk(), [Walk() for _ in range(3)]
    for number, sample in enumerate(samples):
        for walk in (whole, parts[number // 20]):
            if number % 2:
                walk.leave_out(f"{number}.png: damaged")
            else:
                assert list(walk.through([sample])) == [sample]
    joined = Walk()
    for part in parts:
        joined.add(part)
    assert joined.notes() == whole.notes()
    assert joined.problems == whole.problems
    assert len(joined.problems) == MOST_PROBLEMS
    assert joined.remarks.to_rows() == whole.remarks.to_rows() == [(NOT_SQUARE, 20, "2.png")]
