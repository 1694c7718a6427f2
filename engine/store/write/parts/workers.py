"""What a worker of a sealing on many does, and workers in threads of this process, for tests and small machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, runtime_checkable

from tokenpaths.engine.base.errors import WriterFailed
from tokenpaths.engine.base.files import HolderLock, keep_free
from tokenpaths.engine.store.file.shard_format import ShardError

COUNT, WRITE, ANSWER = "count", "write", "answer"
PASSES = (COUNT, WRITE, ANSWER)


@runtime_checkable
class Workers(Protocol):
    """Runs ``work`` somewhere; all see the folder of the sealing, the shards and the runs."""

    slots: int
    """how many work at once"""

    def run(self, name: str, folder: Path, num: int, on_done: Callable[[int], None]) -> None:
        """``work(name, number, folder)`` for 0 … ``num`` − 1; tells how many ended.

        Raises:
            UserError: one was refused, or was lost too often.
        """


def work(name: str, number: int, folder: Path) -> None:
    """One piece of a pass, of the sealing whose plan is in ``folder``.

    Raises:
        Held: another worker is at it, and this one has nothing to do.
        UserError: a shard is damaged, or cannot be read.
        WriterFailed: the disk refused a write.
    """
    import duckdb
    import pyarrow as pa

    from tokenpaths.engine.store.write.parts.answer_questions import answer_questions
    from tokenpaths.engine.store.write.parts.count_shard import count_shard
    from tokenpaths.engine.store.write.parts.plan import SealPlan
    from tokenpaths.engine.store.write.parts.write_part import write_part

    plan = SealPlan.read(folder)
    keep_free(plan.least_free)
    if name == ANSWER:
        answer_questions(plan, plan.partial_run)
        return
    found = plan.counts_file(number) if name == COUNT else plan.sums_file(number)
    # A worker that was called lost may live on, on a node that was cut off for a while.
    lock = HolderLock(found.with_suffix(".lock"))
    lock.acquire()
    try:
        if not found.exists():
            (count_shard if name == COUNT else write_part)(plan, number)
    except (pa.ArrowException, KeyError) as error:
        what = plan.shards[number].folder if name == COUNT else plan.parts[number].name
        raise ShardError(
            f"{what} cannot be read ({(str(error).splitlines() or ['?'])[0][:200]}): copy the shard again, or trace it "
            "again",
            field="shards",
        ) from error
    except (duckdb.Error, OSError) as error:
        raise WriterFailed(f"{plan.run_id!r} could not be sealed: {error}") from error
    finally:
        lock.release()


class OneByOne:
    """Does all of it here."""

    slots = 1

    def run(self, name: str, folder: Path, num: int, on_done: Callable[[int], None]) -> None:
        for number in range(num):
            work(name, number, folder)
            on_done(number + 1)
