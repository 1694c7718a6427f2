"""What the samples of a run were cut from, as far as their sources say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenpaths.engine.store.file.filters import Query

if TYPE_CHECKING:
    from tokenpaths.engine.store.ask.run import Run

_CROP = r"^(.+) at \(\d+, \d+\), \d+ px$"
"""how the source of a crop is written (``tokenpaths.engine.data.bundled.photos``): file, place and side"""


def crops_words(run: Run) -> str | None:
    """“120 crops of 2 pictures” where all images are crops and several are of one picture; None elsewhere.

    Such crops are alike, so whatever takes them for independent samples (intervals, shuffles) is surer than it should
    be.
    """
    if run.row["modality"] != "vision":
        return None
    found = Query(
        "SELECT count(*), count(DISTINCT picture) FILTER (WHERE picture <> '') FROM "
        "(SELECT regexp_extract(coalesce(source, ''), ?, 1) AS picture FROM sample) HAVING min(picture) <> ''",
        (_CROP,),
    )
    rows = run.rows(found)
    if not rows or rows[0][1] >= rows[0][0]:
        return None
    crops, pictures = rows[0]
    return f"{crops:,} crops of {pictures:,} picture{'s' if pictures > 1 else ''}"
