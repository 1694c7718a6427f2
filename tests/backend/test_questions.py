"""A question that is declared once has a route, a schema, checks, a client call, a data frame and a sealed answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest

from tests.backend.conftest import API, Serve, Served, problem
from tests.support.runs import make_run
from tokenpaths.backend.routes.questions import question_router
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.frames import Frames
from tokenpaths.engine.store.ask.question import Argument, SampleNumber, question
from tokenpaths.engine.store.ask.questions import QUESTIONS, page_questions
from tokenpaths.engine.store.ask.run import Run, add_question
from tokenpaths.engine.store.ask.run_file import RunFile
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel
from tokenpaths.engine.store.file.filters import Query
from tokenpaths.frontend.api.client import Client, NotFound, Refused


class Toy(AnswerModel):
    """Numbers of the tokens of a sample, times something."""

    run: str
    numbers: list[dict[str, int]]


@question("samples/{sample}/toy", Toy, tag="samples", rows="numbers", sealed=lambda run: [{"sample": 0}])
def toy(
    run: RunFile, sample: SampleNumber, *, times: Annotated[int, Argument("Factor", ge=1, le=9)] = 2
) -> dict[str, Any]:
    """The numbers of the tokens of a sample, times ``times``.

    The second paragraph is for Python alone.
    """
    ((tokens,),) = run.rows(Query("SELECT num_tokens FROM sample WHERE sample = ?", (sample,)))
    return {"run": run.run_id, "numbers": [{"token": token, "product": token * times} for token in range(tokens)]}


@pytest.fixture
def served(serve: Serve) -> Iterator[Served]:
    """An API that has the question too, and a run."""
    add_question(toy.declaration)
    QUESTIONS.append(toy.declaration)
    try:
        served = serve()
        make_run(served.runs_dir, "demo", samples=3)
        yield served
    finally:
        QUESTIONS.remove(toy.declaration)
        for owner in (Run, Frames):
            delattr(owner, "toy")


def test_a_question_is_declared_once(served: Served) -> None:
    answer = served.get("/runs/demo/samples/1/toy?times=3").json()
    assert answer["numbers"][2] == {"token": 2, "product": 6}
    assert problem(served.get("/runs/demo/samples/1/toy?times=10"), 422, "times")
    assert problem(served.get("/runs/demo/samples/1/toy?time=3"), 422, "time")
    route = served.client.get("/openapi.json").json()["paths"][f"{API}/runs/{{run}}/samples/{{sample}}/toy"]["get"]
    assert route["summary"] == "Show Toy"
    assert route["description"] == "The numbers of the tokens of a sample, times ``times``."
    assert [given["name"] for given in route["parameters"]] == ["run", "sample", "times", "labels"]

    client = Client(str(served.client.base_url).rstrip("/"))
    assert client.ask("demo", "samples/{sample}/toy", sample=1, times=3) == answer
    with pytest.raises(Refused, match="times"):
        client.ask("demo", "samples/{sample}/toy", sample=1, times=0)
    with pytest.raises(NotFound):
        client.ask("demo", "samples/{sample}/joy", sample=1)

    with Run.open(served.runs_dir / "demo.duckdb") as run:
        assert run.toy(1, times=3) == answer
        with pytest.raises(UserError, match="^times is 'x', it should be a whole number$") as caught:
            run.toy(1, times="x")
        assert caught.value.field == "times"
        frame = run.frames.toy(1, times=3)
        assert list(frame["product"]) == [row["product"] for row in answer["numbers"]]
        assert frame.attrs["run"] == "demo"
        assert (toy, {"sample": 0}) in list(page_questions(run))


def test_no_two_questions_share_a_name_or_an_address() -> None:
    for names in (
        [item.name for item in QUESTIONS],
        [route.path for item in QUESTIONS for route in item.routes],
        [name for item in QUESTIONS for name in item.frames],
    ):
        assert len(names) == len(set(names))
    assert len(question_router(QUESTIONS).routes) == sum(len(item.routes) for item in QUESTIONS)
