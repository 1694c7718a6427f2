"""The job ``attention``: what it writes down is what the engine computes, window by window."""

from __future__ import annotations

import json

import pytest
import torch

from tests.engine.jobs.test_twin_job import context, traced, work  # noqa: F401
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import open_dataset
from tokenpaths.engine.jobs.attention import FILE, LEAST
from tokenpaths.engine.jobs.registry import JobContext, find_kind, read_request
from tokenpaths.engine.jobs.titles import job_title
from tokenpaths.engine.models.dna_attention import attention_within
from tokenpaths.engine.tracing.text_windows import cut, encoded_text


@pytest.mark.parametrize(("model", "data"), [("one", "words.jsonl"), ("sees", "pictures")])
def test_every_visit_of_every_token_is_there(context: JobContext, model: str, data: str) -> None:  # noqa: F811
    traced(context, "r", model=model, data=data)
    progress = work(context, "attention", {"model": model, "run": "r", "sample": 2}, "attends")
    found = json.loads((context.data_dir / "jobs" / "attends" / "artifacts" / FILE).read_bytes())
    with context.open_run("r") as run:
        sample = run.sample(2)
        kinds = {m["module"]: m["kind"] for m in run.info()["modules"]}
    assert found["num_tokens"] == len(sample["tokens"]) == progress.result["num_tokens"]
    assert found["same_choices"] == progress.result["same_choices"] == 1.0
    visits = {(row["token"], row["step"], row["module"]): row for row in found["rows"]}
    assert set(visits) == {
        (token["token"], step, module)
        for token in sample["tokens"]
        for step, modules in enumerate(token["ribbon"])
        for module in modules
        if kinds[module] == "transformer"
    }
    for (token, step, module), row in visits.items():
        shares = [share for _, share in row["attends_to"]]
        assert shares == sorted(shares, reverse=True)
        assert all(share >= LEAST - 1e-3 for share in shares)
        assert 0 < sum(shares) <= 1.01
        for other, _ in row["attends_to"]:
            assert (other, step, module) in visits
            assert model == "sees" or other <= token


def test_windows_of_a_long_text_are_apart(context: JobContext) -> None:  # noqa: F811
    traced(context, "r")
    work(context, "attention", {"model": "one", "run": "r", "sample": 2}, "attends")
    found = json.loads((context.data_dir / "jobs" / "attends" / "artifacts" / FILE).read_bytes())
    loaded = context.load_model("one")
    ids = encoded_text(loaded, list(open_dataset(context.inbox_dir / "words.jsonl", "text"))[2]).ids
    assert len(ids) > 2 * loaded.context
    assert all(t // loaded.context == r["token"] // loaded.context for r in found["rows"] for t, _ in r["attends_to"])
    second = torch.from_numpy(cut(ids, loaded.context)[1].ids).long()[None]
    parts, _ = attention_within(loaded.model, second)
    rows = {(r["token"], r["step"], r["module"]): dict(map(tuple, r["attends_to"])) for r in found["rows"]}
    for part in parts:
        for place, token in enumerate(part.tokens.tolist()):
            row = rows[token + loaded.context, part.step, part.module]
            for other, share in zip(part.tokens.tolist(), part.weights[place].tolist(), strict=True):
                assert row.get(other + loaded.context, 0.0) == pytest.approx(share, abs=LEAST)


def test_what_cannot_be_is_refused(context: JobContext) -> None:  # noqa: F811
    traced(context, "r")
    kind = find_kind("attention")
    for wanted, field in (
        ({"model": "none"}, "model"),
        ({"run": "gone"}, "run"),
        ({"sample": 99}, "sample"),
        ({"model": "sees"}, "run"),
    ):
        with pytest.raises(UserError) as caught:
            kind.check(read_request(kind, {"model": "one", "run": "r", "sample": 0} | wanted), context)
        assert caught.value.field == field
    assert job_title("attention", {"model": "one", "run": "r", "sample": 3}) == (
        "Who attends to whom: one over sample 3 of r"
    )
