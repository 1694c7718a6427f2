"""What a job that sealed its run and was killed before it said so still tells of the work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.checkpoints import save_tiny
from tokenpaths.engine.jobs import import_log
from tokenpaths.engine.jobs.registry import JobContext, LongJob, Progress, find_kind, read_request
from tokenpaths.engine.jobs.traces.trace import TraceJob
from tokenpaths.engine.tracing.loaded_model import load_model


@pytest.fixture
def context(tmp_path: Path) -> JobContext:
    save_tiny(tmp_path / "models" / "tiny", "text")
    (tmp_path / "inbox").mkdir()
    return JobContext(tmp_path, (tmp_path / "models",), lambda name: load_model(name, [tmp_path / "models"], "cpu"))


def finished(job: LongJob) -> Progress:
    while not (progress := job.advance()).finished:
        pass
    job.close()
    return progress


@pytest.fixture
def twice(context: JobContext, tmp_path: Path) -> Callable[[str, dict], tuple[Progress, Progress]]:
    """The end of a job, and its end if it is killed before anybody hears of that."""

    def run(name: str, values: dict) -> tuple[Progress, Progress]:
        kind, folder = find_kind(name), tmp_path / "job"
        folder.mkdir()
        request = read_request(kind, values)
        return finished(kind.start(request, folder, context)), finished(kind.start(request, folder, context))

    return run


def test_a_trace_tells_what_it_left_out(context: JobContext, twice: Callable) -> None:
    texts = ["the path of a token", None, "goes through many modules"]
    (context.inbox_dir / "words.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    first, again = twice("trace", {"model": "tiny", "data": "words.jsonl", "skip_bad": True, "twin": False})
    assert (first.result["samples"], first.result["left_out"]) == (2, 1)
    assert len(first.result["problems"]) == 1
    assert any("1 sample was left out" in note for note in first.result["notes"])
    assert (again.done, again.result) == (first.done, first.result)


def test_what_a_trace_left_out_is_kept_before_its_run_is_sealed(
    context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However fast the sealing is: there is no moment at which a kill loses it."""
    from tokenpaths.engine.store.write.writer import RunWriter

    (context.inbox_dir / "words.txt").write_text("the path of a token")
    seal, kept = RunWriter.seal, []

    def watched(self: RunWriter, *arguments: object) -> Path:
        kept.append(json.loads((tmp_path / "job" / "run.json").read_bytes()).get("result"))
        return seal(self, *arguments)

    monkeypatch.setattr(RunWriter, "seal", watched)
    (tmp_path / "job").mkdir()
    request = read_request(TraceJob, {"model": "tiny", "data": "words.txt", "run": "seen", "twin": False})
    progress = finished(TraceJob.start(request, tmp_path / "job", context))
    assert kept == [progress.result] == [{"run": "seen", "samples": 1}]


@pytest.mark.parametrize("counts", [False, True])
def test_an_import_tells_what_it_read_without_its_log(
    context: JobContext, twice: Callable, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    log = context.inbox_dir / "log.json"
    if counts:
        log.write_text(json.dumps({"0": {"0": 6, "3": 2}, "1": {"1": 8}}))
    else:
        log.write_text(json.dumps({"prompt_token_ids": [1, 2], "routed_experts": [[[0, 3]], [[2, 1]]]}))
    finish = import_log._finished

    def forget_the_log(*arguments: object) -> object:
        log.write_text("")
        return finish(*arguments)

    monkeypatch.setattr(import_log, "_finished", forget_the_log)
    first, again = twice("import", {"file": "log.json", "run": "mine", "top_k": 2})
    assert first.done == again.done == (4 if counts else 2)
    assert again.result == first.result
    assert counts or first.result["notes"]
