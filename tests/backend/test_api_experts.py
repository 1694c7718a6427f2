"""Experts over REST: the answers are those of the store, ETags hold, bad questions name the parameter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backend.conftest import Served, api_for, problem
from tests.support.runs import make_experts, make_run
from tokenpaths.engine.store.ask.run import Run


@pytest.fixture(scope="module")
def experts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    data_dir = tmp_path_factory.mktemp("experts")
    runs = data_dir / "runs"
    make_experts("moe").write(runs)
    make_experts("log", text=False, token_ids=False, labels=False).write(runs)
    make_run(runs, "top1", "text", samples=4)
    for iteration, drift in ((10, 0.9), (200, 0.4), (3000, 0.0)):
        make_experts(f"at{iteration}", series=("mine", iteration), drift=drift).write(runs)
    make_experts("elsewhere", series=("yours", 5), samples=3).write(runs)
    with api_for(data_dir) as served:
        yield served


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("specialisation", lambda run: run.specialisation()),
        ("specialisation?of=input&step=2&limit=3&each=2", lambda run: run.specialisation("input", 2, limit=3, each=2)),
        ("specialisation?of=next&label=code", lambda run: run.specialisation("next", label="code")),
        ("co_activation?step=1&limit=6", lambda run: run.co_activation(1, limit=6)),
        ("co_activation?label=english", lambda run: run.co_activation(label="english")),
        ("repetition", lambda run: run.repetition()),
        ("samples/2/experts?step=3&first=5&limit=4", lambda run: run.token_slice(2, 3, first=5, limit=4)),
        ("flow?most_modules=3&merge_share=0.1", lambda run: run.flow(most_modules=3, merge_share=0.1)),
    ],
)
def test_answers_are_those_of_the_run_and_keep_their_etag(experts: Served, path: str, ask) -> None:
    answer = experts.get(f"/runs/moe/{path}")
    assert answer.status_code == 200, answer.text
    with Run.open(experts.runs_dir / "moe.duckdb") as run:
        wanted = ask(run)
    assert answer.json() == wanted
    again = experts.get(f"/runs/moe/{path}", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


def test_a_series_is_found_among_the_runs_of_the_folder(experts: Served) -> None:
    answer = experts.get("/runs/at200/saturation")
    found = answer.json()
    assert (found["series"], found["final"], found["left_out"]) == ("mine", "at3000", [])
    assert [point["run"] for point in found["points"]] == ["at10", "at200", "at3000"]
    shares = [point["saturation"] for point in found["points"]]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert shares[0] > found["baseline"] == 2 / 16
    tag = answer.headers["etag"]
    assert experts.get("/runs/at200/saturation", headers={"If-None-Match": tag}).status_code == 304
    make_experts("at40", series=("mine", 40), drift=0.7).write(experts.runs_dir)
    renewed = experts.get("/runs/at200/saturation", headers={"If-None-Match": tag})
    assert [point["iteration"] for point in renewed.json()["points"]] == [10, 40, 200, 3000]


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("moe/specialisation?of=colour", 422, "of"),
        ("moe/specialisation?step=4", 422, "step"),
        ("moe/specialisation?step=-1", 422, "step"),
        ("moe/specialisation?label=code", 422, "label"),
        ("log/specialisation", 422, "of"),
        ("log/specialisation?of=input", 422, "of"),
        ("moe/specialisation?limit=257", 422, "limit"),
        ("moe/co_activation?layer=1", 422, "layer"),
        ("top1/co_activation", 422, "run"),
        ("moe/repetition?label=nothing", 422, "label"),
        ("moe/samples/99/experts", 404, "sample"),
        ("moe/samples/0/experts?first=24", 422, "first"),
        ("moe/saturation", 404, "run"),
        ("nobody/saturation", 404, "run"),
        ("moe/flow?merge_share=2", 422, "merge_share"),
        ("moe/flow?most_modules=0", 422, "most_modules"),
    ],
)
def test_what_cannot_be_answered_is_named(experts: Served, path: str, status: int, field: str) -> None:
    problem(experts.get(f"/runs/{path}"), status, field)
