"""Samples with a similar path profile, tokens on similar ribbons, and the map of samples.

Distances between tokens are computed once per path of ``path``, not per token.

Shapes: n samples, P paths, S steps, K slots, D = S·M length of a profile.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from PIL import Image

from tokenpaths.engine.analysis.path_distance import SAME, nearest, profile_distance, profiles
from tokenpaths.engine.analysis.path_statistics import sorted_slots
from tokenpaths.engine.analysis.projection import pca, same_label
from tokenpaths.engine.base.errors import NoSuchThing, UserError
from tokenpaths.engine.store.ask.question import MAX_INT, Argument, Rows, SampleNumber, question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.tables import lookups, sample_profiles
from tokenpaths.engine.store.ask.tables.excerpts import nested_ribbon, open_picture, sample_answers
from tokenpaths.engine.store.ask.tables.near_paths import nearest_and_counts
from tokenpaths.engine.store.ask.tables.path_ribbons import EVERY, path_ribbons
from tokenpaths.engine.store.ask.topics.paths import drawn_pairs, examples_of_paths, excerpts_of, in_reading_order
from tokenpaths.engine.store.file.columns import TABLE
from tokenpaths.engine.store.file.filters import Query, check_page
from tokenpaths.engine.store.file.packed_ids import unpack

MOST_SIMILAR = 200
MOST_PATHS = 50
MOST_EACH = 60
CHUNK_CELLS = 1 << 23
"""cells per chunk of the profiles: 64 MB while they are counted"""
MAPPED_CELLS = 1 << 25
MOST_MAPPED = 5000
MOST_THUMBNAILS = 600
THUMBNAIL_SIDE = 48


@question(
    "samples/{sample}/similar",
    "sample_schema.SimilarSamples",
    tag="similar",
    route="list_similar_samples",
    rows="similar",
)
def similar_samples(
    run: RunFile, sample: SampleNumber, *, limit: Annotated[int, Argument("Most samples", ge=1, le=MOST_SIMILAR)] = 12
) -> dict[str, Any]:
    """The samples whose tokens load the modules of each step most like this one's, nearest first.

    Distance: Hellinger, root mean square over steps, 0 … 1 (``tokenpaths.engine.analysis.path_distance``); of equal
    ones the earlier. The kth slot without a module (dropped, unused, not recorded) counts as a module of its own, for
    each k.

    Raises:
        NoSuchThing: the run has no such sample.
        UserError: the run has one sample only.
    """
    num_samples = int(run.row["num_samples"])
    if not 0 <= sample < num_samples:
        raise run.no_sample(sample)
    if num_samples < 2:
        raise UserError(f"run {run.run_id!r} has one sample: there is none to compare it with", field="sample")
    ((own,),) = [list(piece) for _, piece in counted_profiles(run, np.array([sample]))]
    compare = _by_bounds if sample_profiles.has_profiles(run) else _by_all
    chosen, distances, median, num_identical = compare(run, sample, own, min(limit, num_samples - 1))
    head = sample_answers(run, chosen.tolist())
    return {
        "run": run.run_id,
        "sample": sample,
        "of_samples": num_samples,
        "median_distance": median,
        "num_identical": num_identical,
        "similar": [
            head[number] | {"distance": distance}
            for number, distance in zip(chosen.tolist(), distances.tolist(), strict=True)
        ],
    }


Compared = tuple[np.ndarray, np.ndarray, float, int]
"""the nearest samples, their distances, the median distance of all others, how many of them are at distance 0"""


def _by_all(run: RunFile, sample: int, own: np.ndarray, limit: int) -> Compared:
    """Exact comparison with the profile of each sample in turn."""
    distance = np.empty(int(run.row["num_samples"]))
    for numbers, piece in counted_profiles(run, np.arange(len(distance))):
        distance[numbers] = profile_distance(own, piece)
    others = np.delete(distance, sample)
    distance[sample] = np.inf
    chosen = nearest(distance, limit)
    return chosen, distance[chosen], float(np.median(others)), int((others == 0).sum())


def _by_bounds(run: RunFile, sample: int, own: np.ndarray, limit: int) -> Compared:
    """The same from the sealed counts: approximate distances to all samples, exact ones only for candidates for the
    nearest, for the median and for zero."""
    squared, off = sample_profiles.squared_distances(run, own), 2 * sample_profiles.ROUNDING
    squared[sample] = np.inf  # behind all others in any order
    num_others = len(squared) - 1
    lower, upper = (num_others - 1) // 2, num_others // 2
    # One place at a time: numpy is several times as slow where it looks for more at once.
    ordered = np.partition(squared, upper)
    middle = ordered[: lower + 1].max(), ordered[upper]
    nearer = ordered[: upper + 1] if limit <= upper else ordered
    nearer.partition(limit - 1)
    edge = nearer[limit - 1]
    bounds = middle[0] - off, middle[1] + off
    is_around = (squared >= bounds[0]) & (squared <= bounds[1])
    numbers = np.flatnonzero(is_around | (squared <= max(edge + off, SAME**2 + off)))
    distance = np.concatenate([profile_distance(own, piece) for _, piece in sample_profiles.profiles_of(run, numbers)])
    around, below = np.sort(distance[is_around[numbers]]), int((squared < bounds[0]).sum())
    median = float(np.mean([around[lower - below], around[upper - below]]))
    best = nearest(distance, limit)
    return numbers[best], distance[best], median, int((distance == 0).sum())


def samples_near(run: RunFile, own: np.ndarray, limit: int) -> list[dict[str, Any]]:
    """The ``limit`` samples whose profiles are nearest to ``own`` (D,), nearest first, with their ``distance``."""
    num_samples = int(run.row["num_samples"])
    limit = min(limit, num_samples)
    near = np.arange(num_samples)
    if limit and sample_profiles.has_profiles(run):
        squared = sample_profiles.squared_distances(run, own)
        edge = max(np.partition(squared, limit - 1)[limit - 1], SAME**2)
        near = np.flatnonzero(squared <= edge + 2 * sample_profiles.ROUNDING)
    if not limit:
        return []
    distance = np.concatenate([profile_distance(own, piece) for _, piece in counted_profiles(run, near)])
    best = nearest(distance, limit)
    heads = sample_answers(run, near[best].tolist())
    pairs = zip(near[best].tolist(), distance[best].tolist(), strict=True)
    return [heads[number] | {"distance": apart} for number, apart in pairs]


@question(
    "tokens/similar",
    "sample_schema.SimilarTokens",
    tag="similar",
    route="list_similar_tokens",
    description="The ribbons nearest to a token's by path distance, its own first, and tokens that take them.",
    frames={"similar_paths": Rows("paths", "The ribbons nearest to a token's, with their distance.")},
)
def similar_tokens(
    run: RunFile,
    sample: SampleNumber,
    token: Annotated[int, Argument("Number of the token in its sample, from 0", ge=0, le=MAX_INT)],
    *,
    limit: Annotated[int, Argument("Most ribbons", ge=1, le=MOST_PATHS)] = 8,
    each: Annotated[int, Argument("Most tokens of a ribbon", ge=1, le=MOST_EACH)] = 12,
    seed: Annotated[int, Argument("Another seed draws other tokens", ge=0, le=MAX_INT)] = 0,
    exact: Annotated[bool, Argument("Compare every path, also where that reads millions of ribbons")] = False,
) -> dict[str, Any]:
    """The ribbons nearest to a token's by path distance, its own first, and tokens that take them.

    Over all distinct paths; where there are more than a million, of many choices each, over a draw of them unless
    ``exact`` (``compared_paths``). Of equally near ones the more frequent first. ``apart`` counts paths and tokens at
    each distance, from a draw estimates; ``each`` tokens are drawn of every listed path.

    Raises:
        NoSuchThing: the run has no such sample or token.
    """
    layout = run.layout
    own_rank, own = _path_of(run, sample, token)
    own_SK = own.reshape(layout.num_steps, layout.top_k)
    near, num_paths, num_tokens = nearest_and_counts(run, own_SK, limit, own_rank, every=exact)
    own_ribbon, ranks = nested_ribbon(own.tolist(), layout), near.ranks.tolist()
    paths = []
    for examples, distance in zip(
        examples_of_paths(run, ranks, each, seed, dict(zip(ranks, near.ribbons_nV.tolist(), strict=True))),
        near.distances.tolist(),
        strict=True,
    ):
        pairs = enumerate(zip(own_ribbon, examples["ribbon"], strict=True))
        differs = [step for step, (ids, other_ids) in pairs if set(ids) != set(other_ids)]
        if examples["rank"] == own_rank:
            examples["examples"] = _others(run, examples, (sample, token), each, seed)
        paths.append(examples | {"distance": float(distance / layout.top_k), "differs": differs})
    return {
        "run": run.run_id,
        "sample": sample,
        "token": token,
        "ribbon": own_ribbon,
        "rank": own_rank,
        "num_paths": run.row["num_paths"],
        "compared_paths": near.num_compared,
        "apart": [
            {
                "distance": float(ids / layout.top_k),
                "num_paths": int(num_paths[ids]),
                "num_tokens": int(num_tokens[ids]) - int(ids == 0),
            }
            for ids in np.flatnonzero(num_paths).tolist()
        ],
        "paths": paths,
    }


def _others(run: RunFile, path: dict[str, Any], asked: tuple[int, int], each: int, seed: int) -> list[dict[str, Any]]:
    """The examples of ``path`` but the token ``asked``, in whose place one more of the path's tokens is drawn."""
    at = {(row["sample"], row["token"]): row for row in path["examples"]}
    if at.pop(asked, None) is not None:
        pairs = drawn_pairs(run, [path["rank"]], each + 1, seed)[path["rank"]]
        at |= excerpts_of(run, [pair for pair in pairs if pair not in at and pair != asked][:1])
    return in_reading_order(list(at.values()))


@question(
    "map",
    "sample_schema.SampleMap",
    tag="similar",
    name="map",
    description="Samples on the plane in which their path profiles differ most.",
    rows="points",
    sealed=lambda run: [{"limit": 1000, "thumbnails": True}, {"limit": 2000, "thumbnails": False}],
)
def map_samples(
    run: RunFile,
    method: Annotated[str, Argument("t-SNE takes longer: POST /jobs with the kind `map`", choices=("pca",))] = "pca",
    *,
    limit: Annotated[int, Argument("Most samples, an even draw", ge=3, le=MOST_MAPPED)] = 2000,
    thumbnails: Annotated[bool, Argument("With small pictures of up to 600 samples, as data URIs")] = False,
) -> dict[str, Any]:
    """Samples on the plane in which their path profiles differ most, with the share that each axis explains.

    At most ``limit`` samples, an even draw; with ``thumbnails`` small pictures of up to 600 of them, as data URIs.

    Raises:
        UserError: another method than ``pca`` (t-SNE takes long: it is a job), one sample, or all profiles alike.
    """
    if method != "pca":
        methods = (
            " (t-SNE takes a while: POST /jobs with the kind `map`)" if method.casefold() in ("tsne", "t-sne") else ""
        )
        raise UserError(f"method is {method[:40]!r}, it should be pca{methods}", field="method")
    numbers, values = mapped_profiles(run, limit)
    plane = pca(values)
    explained = list(plane.explained)
    return map_answer(run, "pca", numbers, values, plane.points, thumbnails=thumbnails, explained=explained)


def mapped_profiles(run: RunFile, limit: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Numbers (n,) and profiles (n, D) of at most ``limit`` samples of a run, evenly subsampled if there are more.

    Raises:
        UserError: fewer than three samples, or all of them alike.
    """
    check_page(limit, 0, MOST_MAPPED)
    num_samples, width = int(run.row["num_samples"]), run.layout.num_steps * run.layout.num_modules
    if num_samples < 3:
        raise UserError(
            f"run {run.run_id!r} has {num_samples} {'sample' if num_samples == 1 else 'samples'}: a map needs three",
            field="run",
        )
    most = max(3, min(limit, MAPPED_CELLS // width))
    numbers = np.arange(num_samples)
    if num_samples > most:
        numbers = np.sort(np.random.default_rng(seed).choice(num_samples, most, replace=False))
    values = np.concatenate([piece for _, piece in counted_profiles(run, numbers)])
    if np.ptp(values, axis=0).max() < 1e-6:
        raise UserError(
            f"all samples of run {run.run_id!r} load the same modules equally, so a map would be one point", field="run"
        )
    return numbers, values


def map_answer(
    run: RunFile,
    method: str,
    numbers: np.ndarray,
    values: np.ndarray,
    points: np.ndarray,
    *,
    thumbnails: bool,
    **more: Any,
) -> dict[str, Any]:
    """A map as returned by the API: one point per sample with its label, snippet and, if requested, thumbnail.

    ``numbers`` and ``values`` are those of ``mapped_profiles``, ``points`` where they lie.
    """
    heads = sample_answers(run, numbers.tolist())
    code_of = {label: code for code, (_, label, _, _) in enumerate(run.labels) if label is not None}
    labels = np.array([code_of.get(heads[number]["label"], -1) for number in numbers.tolist()])
    nearest = same_label(values, labels)
    pictures = _thumbnails(run, numbers) if thumbnails else {}
    names = ("label", "prediction", "snippet", "source", "compute", "reuse", "has_image")
    return {
        "run": run.run_id,
        "method": method,
        "num_samples": len(numbers),
        "of_samples": int(run.row["num_samples"]),
        "explained": None,
        "nearest": None if nearest is None else asdict(nearest),
        **more,
        "points": [
            {
                "sample": number,
                "x": float(x),
                "y": float(y),
                **{name: heads[number][name] for name in names},
                "thumbnail": pictures.get(number),
            }
            for number, (x, y) in zip(numbers.tolist(), points.tolist(), strict=True)
        ],
    }


def _thumbnails(run: RunFile, numbers: np.ndarray) -> dict[int, str]:
    """Thumbnails by sample, as data URIs; at most ``MOST_THUMBNAILS``, evenly subsampled."""
    places = np.unique(np.linspace(0, len(numbers) - 1, MOST_THUMBNAILS).astype(int))
    uris = {}
    for number, png in run.rows(lookups.some_samples(numbers[places].tolist(), "sample, image")):
        if png is None:
            continue
        picture = open_picture(png)
        picture.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        if (larger := THUMBNAIL_SIDE // max(picture.size)) > 1:  # digits of eight pixels could not be seen
            picture = picture.resize((picture.width * larger, picture.height * larger), Image.Resampling.NEAREST)
        buffer = io.BytesIO()
        picture.save(buffer, format="WEBP", quality=60)
        uris[number] = "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return uris


def counted_profiles(run: RunFile, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Profiles of these samples (ascending), in chunks: their numbers and (n, D) float32."""
    if sample_profiles.has_profiles(run):
        yield from sample_profiles.profiles_of(run, numbers)
        return
    layout = run.layout
    width = layout.num_steps * layout.num_modules
    size = max(1, CHUNK_CELLS // width)
    for start in range(0, len(numbers), size):
        piece = numbers[start : start + size]
        first, last = int(piece[0]), int(piece[-1])
        only = "" if last - first + 1 == len(piece) else " AND sample IN (SELECT unnest(?::INTEGER[]))"
        columns = run.arrays(
            Query(
                "SELECT sample, path_id, count(*) AS count FROM token WHERE sample BETWEEN ? AND ?"
                f"{only} GROUP BY sample, path_id",
                (first, last, piece.tolist()) if only else (first, last),
            )
        )
        place_of = np.zeros(int(columns["path_id"].max(initial=-1)) + 1, dtype=np.int64)  # path ids are dense
        place_of[columns["path_id"]] = 1
        path_P = np.flatnonzero(place_of)
        place_of[path_P] = np.arange(len(path_P))
        ribbons_RV = _ribbons(run, path_P)[place_of[columns["path_id"]]]
        sample_R = np.searchsorted(piece, columns["sample"])
        counts = profiles(
            sample_R,
            columns["count"].astype(np.int64),
            ribbons_RV,
            num_samples=len(piece),
            num_steps=layout.num_steps,
            num_modules=layout.num_modules,
        )
        yield piece, counts


def _ribbons(run: RunFile, path_ids: np.ndarray) -> np.ndarray:
    """(P, V) ribbons of these paths (rising ids)."""
    few = len(path_ids) * 4 < run.row["num_paths"]
    only = Query("path_id IN (SELECT unnest(?::INTEGER[]))", (path_ids.tolist(),)) if few else EVERY
    table = np.empty((len(path_ids), run.layout.visits), dtype=run.layout.id_dtype)
    for columns, ribbons in path_ribbons(run, "path_id", only):
        place = np.searchsorted(path_ids, columns["path_id"])
        present = (place < len(path_ids)) & (path_ids[np.minimum(place, len(path_ids) - 1)] == columns["path_id"])
        table[place[present]] = ribbons[present]
    return table


def _path_of(run: RunFile, sample: int, token: int) -> tuple[int, np.ndarray]:
    """Rank and ribbon (V,) of one token's path."""
    counted = Query("SELECT num_tokens FROM sample WHERE sample = ?", (sample,))
    rows = run.rows(counted) if 0 <= sample < 2**31 else []
    if not rows:
        raise run.no_sample(sample)
    ((num_tokens,),) = rows
    if not 0 <= token < num_tokens:
        raise NoSuchThing(
            f"sample {sample} of run {run.run_id!r} has the tokens 0 to {num_tokens - 1}, not {token}", field="token"
        )
    place, layout = (sample, int(run.first_rows[sample]) + token), run.layout
    own = ["ids"] if layout.packed else [] if layout.by_path else layout.module_columns()
    rows = run.rows(lookups.tokens_at(["path_id", *own], [place], in_parts=run.in_parts))
    if len(rows) != 1 or None in rows[0]:
        raise run.damaged(TABLE)
    ((path_id, *found),) = rows
    ranks, ribbons = run.look_up(np.array([path_id]))
    if own:
        ids = unpack(found, layout) if layout.packed else np.array(found)
        ribbons = sorted_slots(ids.reshape(1, layout.num_steps, layout.top_k))
    return int(ranks[0]), ribbons[0].astype(np.int64)
