"""The shapes of answers about jobs; what a field means is written here once and shown at ``/docs``."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tokenpaths.engine.jobs.registry import kinds_in_words
from tokenpaths.engine.store.ask.schemas.schema_values import AnswerModel, Next

StateName = Literal["waiting", "running", "paused", "succeeded", "failed", "cancelled"]


class JobProgress(AnswerModel):
    """How far a job is."""

    done: int = Field(description="Units done, those of earlier attempts included where they count")
    total: int | None = Field(description="Units in all; null where nobody knows")
    unit: str = Field(description="What is counted: iterations, samples, tokens, edits …; empty before it is known")
    rate: float | None = Field(description="Units per second over the last half minute; null while nothing moves")
    seconds_left: float | None = Field(description="Seconds that it still takes at this rate")
    message: str = Field(description="A sentence for people: what it does, or why it pauses; may be empty")


class JobProblem(AnswerModel):
    """Why a job failed, in the shape of RFC 9457."""

    type: str
    title: str
    status: int
    detail: str = Field(description="A sentence for people: what was given and what would be right")
    field: str | None = Field(None, description="The field of the request at fault, where there is one")


class Job(AnswerModel):
    """A long job."""

    job: str = Field(description="Name of the job, its address under /jobs")
    kind: str = Field(description=kinds_in_words())
    title: str = Field(description="What it is about, in a short sentence, made from `request`")
    state: StateName = Field(
        description="`paused`: it cannot go on now, for example because the disk is full, and will by itself"
    )
    cancelling: bool = Field(description="Somebody cancelled it, and its worker has yet to stop")
    place: int | None = Field(description="Place in the queue while it waits, 1 = next")
    created_at: str = Field(description="When it was submitted, UTC, ISO 8601")
    started_at: str | None = Field(description="When a worker first took it up")
    finished_at: str | None = Field(description="When it was over")
    progress: JobProgress
    artifacts: list[str] = Field(description="Names of the files that it has made so far")
    result: dict[str, Any] | None = Field(description="What came out, once it succeeded; `run` names a run it made")
    problem: JobProblem | None = Field(description="Why it failed")
    attempts: int = Field(description="How often a worker took it up")
    request: dict[str, Any] = Field(description="What was asked for, defaults included")


class InboxFile(AnswerModel):
    """A file that was put into the inbox."""

    file: str = Field(description="Its name there, which a job's request names")
    num_bytes: int


class JobList(AnswerModel):
    """Jobs, newest first."""

    jobs: list[Job]
    workers: int = Field(description="Workers that are alive; with 0 nothing that waits begins")
    next: Next
