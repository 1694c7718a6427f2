"""What paths know: beside a null, by label, and of tokens that are searched for."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from tokenpaths.backend.routes.parameters import ABOUT_A_RUN, MAX_INT, LabelFilter, RunName, Through
from tokenpaths.backend.services import Shared
from tokenpaths.engine.store.ask.schemas.knowledge_schema import Knowledge, Specific, TokenSearch
from tokenpaths.engine.store.file.filters import parse_bounds, parse_paths, parse_ranks, parse_through

router = APIRouter(prefix="/runs/{run}", tags=["knowledge"], responses=ABOUT_A_RUN)
Bounds = Annotated[
    str | None,
    Query(max_length=40, description="Only tokens whose path has this between both, 0 to 1", examples=["0.5:1"]),
]
Kind = Literal[
    "punctuation",
    "sentence_end",
    "number",
    "capitalised",
    "function_word",
    "ends_in_s",
    "whitespace",
    "edge",
    "flat",
    "border",
    "centre",
]


@router.get("/paths/knowledge", response_model=Knowledge)
async def show_knowledge(request: Request, services: Shared, run: RunName) -> Response:
    """What paths know of labels, token ids, places, kinds of words …: NMI of each beside 200 seeded shuffles.

    Worked out on 20,000 tokens drawn by hash; of smaller runs on all.
    """
    return await services.answers.about_run(request, run, Knowledge, lambda opened: opened.knowledge())


@router.get("/specific", response_model=Specific)
async def show_specific(
    request: Request,
    services: Shared,
    run: RunName,
    of: Annotated[Literal["path", "module"], Query(description="Paths, or modules at their steps")] = "path",
    label: Annotated[str | None, Query(max_length=500, description="Specific to this label; else to any")] = None,
    least: Annotated[int, Query(ge=1, le=MAX_INT, description="Fewest tokens of the label")] = 20,
    limit: Annotated[int, Query(ge=1, le=500, description="Most rows")] = 20,
) -> Response:
    """Which paths or modules are specific to a label: share, lift over the run and how sure it is."""
    return await services.answers.about_run(
        request, run, Specific, lambda opened: opened.specific(of, label=label or None, least=least, limit=limit)
    )


@router.get("/tokens/search", response_model=TokenSearch)
async def search_tokens(
    request: Request,
    services: Shared,
    run: RunName,
    q: Annotated[
        str | None,
        Query(
            max_length=200,
            description="A word, case ignored; `*` stands for any letters, `?` for one",
            examples=["dinner", "dinn*"],
        ),
    ] = None,
    kind: Annotated[
        Kind | None,
        Query(
            description="Kind of word (`ends_in_s`: most plural nouns, some verbs; `function_word`: English) or of "
            "patch (`edge`, `flat`: the tenth with the highest and the lowest contrast; `border`, `centre`: by place)"
        ),
    ] = None,
    reading: Annotated[
        Literal["word", "token"],
        Query(description="Told from the whole word that a token stands in, or from its own characters"),
    ] = "word",
    label: LabelFilter = None,
    paths: Annotated[
        str | None, Query(max_length=4000, description="Only these ranks, with commas", examples=["1,2"])
    ] = None,
    through: Through = None,
    ranks: Annotated[
        str | None, Query(max_length=40, description="Only ranks between both", examples=["1:100"])
    ] = None,
    compute: Bounds = None,
    reuse: Bounds = None,
    least: Annotated[int, Query(ge=1, le=MAX_INT, description="Fewer tokens give no interval of a lift")] = 10,
    limit: Annotated[int, Query(ge=1, le=100, description="Most paths, and most modules")] = 20,
    examples: Annotated[int, Query(ge=0, le=200, description="Most examples")] = 30,
    seed: Annotated[int, Query(ge=0, le=MAX_INT, description="Another seed draws other examples")] = 0,
) -> Response:
    """Which paths do these tokens take? Found by word, kind and filters, all of which must hold.

    Exact up to a million tokens; of larger runs whole samples are drawn, and `counted` says so.
    """
    wanted = {
        "q": q or None,
        "kind": kind,
        "reading": reading,
        "label": label or None,
        "paths": parse_paths(paths),
        "through": parse_through(through),
        "ranks": parse_ranks(ranks),
        "compute": parse_bounds(compute, "compute"),
        "reuse": parse_bounds(reuse, "reuse"),
        "least": least,
        "limit": limit,
        "examples": examples,
        "seed": seed,
    }
    return await services.answers.about_run(request, run, TokenSearch, lambda opened: opened.search_tokens(**wanted))
