"""Responses that running engines send, kept until they are sealed: one SQLite file a log in ``<data_dir>/received``.

A log is *open*, then *pending* while it is written out, then it has a *job*, then it is gone; where a sealing comes to
nothing it is open again. Responses are taken only while it is open. The state is in the file of the log, and changes
under one lock of all logs, which holds between processes too.

A request is committed before it is answered, so a restart loses nothing, and each request id is kept once, so that
whoever is in doubt sends again.
"""

from __future__ import annotations

import contextlib
import json
import math
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenpaths.backend.lock_files import held_lock_file
from tokenpaths.backend.problems import Problem, busy, disk_full, problem_of
from tokenpaths.backend.runs.received_counts import added, begin, load_of, misfit, said_of, when
from tokenpaths.backend.runs.received_file import (
    BUSY_SECONDS,
    SUFFIX,
    Row,
    no_such_log,
    opened,
    packed,
    read_about,
    remove,
    unpacked,
    write_about,
    writing,
)
from tokenpaths.engine.adapters.logs.pieces.announced import Announced
from tokenpaths.engine.adapters.logs.responses.received import Received
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import HolderLock, atomic_file, check_free, check_name, is_name, make_folder, run_file

MOST_LOGS = 64
MOST_REFUSED = 20
"""refused lines of one request that are named"""
AGAIN_SECONDS = 300.0
"""until a log that could not be sealed for want of room or of quiet is sealed by itself again"""


@dataclass(frozen=True)
class Sealing:
    """A log that is being sealed."""

    run: str
    file: str
    """name in the inbox; no other sealing has it"""
    target: str
    """the run to be"""
    job: str | None
    """None while it is pending"""


class ReceivedLogs:
    """The logs that are being received in a data folder. Safe for concurrent use, also by several processes.

    All methods raise Problem 503 where the lock or a log's file stays held, and 409 for a damaged file.

    Args:
        most_bytes: of the responses of one log.
        most_responses: of one log.
    """

    def __init__(self, data_dir: Path, most_bytes: int, most_responses: int) -> None:
        self.data_dir = data_dir
        self.folder = data_dir / "received"
        self.most_bytes, self.most_responses = most_bytes, most_responses
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Names of all logs."""
        return sorted(file.stem for file in self.folder.glob(f"*{SUFFIX}") if is_name(file.stem) and file.is_file())

    # -- taking responses ---------------------------------------------------------------------
    def sizes(self, run: str, given: Announced) -> Announced:
        """The sizes that were said with the first response of a log, or are ``given`` now.

        Raises:
            Problem: 409 where others were said before, and where ``add`` would refuse whatever came.
        """
        self._file(run)
        row = self._read(run)
        if row is None:
            self._check_no_run(run)
            return given
        _check_open(run, row)
        known = json.loads(row["sizes"])
        for name in ("layers", "top_k", "experts"):
            said = getattr(given, name)
            if said is not None and said != known[name]:
                began = (
                    f"without `{name}`; leave it out"
                    if known[name] is None
                    else f"with {name} {known[name]}, not {said}"
                )
                raise Problem(409, "other-sizes", f"The log {run} began {began}.", field=name)
        return Announced(known["layers"], known["top_k"], known["experts"])

    def add(self, run: str, received: Sequence[Received], sizes: Announced) -> Row:
        """Keep what came; what is known by its request id is counted and left.

        Raises:
            Problem: 409 while the log is being sealed, or where a new one has the name of a run; 413 beyond its
                limits, 422 if nothing of it can be taken, 507 if the disk is full.
        """
        file = self._file(run)
        if not any(one.problem is None for one in received):
            raise _nothing([one.problem for one in received])
        check_free(self.data_dir)
        with self._held():
            make_folder(self.folder)
            is_there = file.exists()
            try:
                with opened(file, create=True) as con, writing(con):
                    about = read_about(con)
                    if about is None:
                        self._check_new(run)
                        about = begin(sizes)
                    _check_open(run, about)
                    if about["sizes"] != said_of(sizes):
                        raise busy(f"The log {run} began at this moment, with other sizes; send again.")
                    answer = self._add(con, run, about, received)
            except BaseException:
                if not is_there:  # nothing came of it
                    remove(file)
                raise
        return {"run": run, **answer}

    def _check_new(self, run: str) -> None:
        self._check_no_run(run)
        if len([name for name in self.names() if name != run]) >= MOST_LOGS:
            raise Problem(409, "too-many", f"{MOST_LOGS} logs are being received; seal or forget one.", field="run")

    def _check_no_run(self, run: str) -> None:
        if run_file(self.data_dir / "runs", run).exists():
            raise Problem(409, "run-exists", f"There is a run {run} already; send to another name.", field="run")

    def _add(self, con: sqlite3.Connection, run: str, about: Row, received: Sequence[Received]) -> Row:
        counts = unpacked(about["counts"])
        taken = known = 0
        refused: list[Row] = []
        for place, one in enumerate(received):
            found, reason = one.counted, one.problem
            if found is not None:
                row = con.execute("SELECT digest FROM response WHERE id = ?", (one.id,)).fetchone()
                if row is not None and row[0] in (None, found.digest):
                    known += 1
                    continue
                reason = misfit(about, found, counts) if row is None else OTHER_DECISIONS
            if found is None or reason is not None:
                refused.append({"line": place, "id": one.id, "reason": reason})
                continue
            size = about["bytes"] + len(one.line) + 1
            if size > self.most_bytes or about["responses"] >= self.most_responses:
                raise Problem(
                    413,
                    "log-full",
                    f"The log {run} may hold {self.most_responses:,} responses and {self.most_bytes / 1e6:g} MB; it "
                    f"has {about['responses']:,} and {about['bytes'] / 1e6:.1f} MB. Seal it and begin another.",
                    field="run",
                )
            con.execute("INSERT INTO response (id, line, digest) VALUES (?, ?, ?)", (one.id, one.line, found.digest))
            if not about["responses"]:
                about["routed"] = found.first.tobytes()
            counts = added(counts, found.counts)
            about |= {"layers": len(found.counts), "top_k": found.top_k, "model": about["model"] or found.model}
            about |= {"bytes": size, "tokens": about["tokens"] + found.tokens, "responses": about["responses"] + 1}
            taken += 1
        if not taken and not known:
            raise _nothing([row["reason"] for row in refused])
        if taken:
            write_about(con, about | {"last": time.time(), "counts": packed(counts), "not_before": None})
        shown = {name: about[name] for name in ("responses", "tokens", "bytes")}
        return {
            "received": taken,
            "known": known,
            "num_refused": len(refused),
            "refused": refused[:MOST_REFUSED],
        } | shown

    # -- showing them -------------------------------------------------------------------------
    def about(self, run: str) -> Row:
        """What has come of a log; Problem 404 if there is none."""
        row = self._read(run)
        if row is None:
            raise no_such_log(run)
        return _shown(run, row)

    def listed(self) -> list[Row]:
        """What has come of each log; of one that cannot be read, its size and the ``problem``."""
        found = []
        for name, row in self._all():
            try:
                if isinstance(row, Exception):
                    raise row
                found.append(_shown(name, row))
            except Exception as error:
                with contextlib.suppress(OSError):  # sealed or forgotten meanwhile
                    info = self._file(name).stat()
                    empty = {"responses": 0, "tokens": 0, "bytes": info.st_size, "top_k": 0, "experts": 0, "load": []}
                    at = when(info.st_mtime)
                    about = {"run": name, "model": None, "job": None, "began_at": at, "last_at": at} | empty
                    found.append(about | {"problem": problem_of(error).body()["detail"]})
        return found

    # -- sealing and forgetting them ----------------------------------------------------------
    def quiet(self, seconds: float) -> list[str]:
        """Open logs that have had no response for so long, and that may be sealed by themselves."""
        now = time.time()
        return [
            name
            for name, row in self._readable()
            if row["file"] is None and now - row["last"] >= seconds and now >= (row["not_before"] or 0.0)
        ]

    def sealings(self) -> list[Sealing]:
        """The logs that are being sealed."""
        return [
            Sealing(name, row["file"], row["target"], row["job"])
            for name, row in self._readable()
            if row["file"] is not None
        ]

    @contextlib.contextmanager
    def sealer(self, run: str) -> Iterator[None]:
        """Be the only one who takes a log from open over pending to a job; ends with the process, however that ends.

        Raises:
            Problem: 404 if there is no such log, 409 while another one is at it.
        """
        if not self._known(run).is_file():
            raise no_such_log(run)
        lock = HolderLock(self.folder / f".{run}.sealing")
        try:
            lock.acquire()
        except UserError:
            raise _is_sealed(run, None) from None
        try:
            yield
        finally:
            lock.release()

    def begin_sealing(self, run: str, target: str) -> tuple[Sealing, Row]:
        """Take nothing more for a log; returns also what was said of its sizes, and its model. Only for the sealer.

        Raises:
            Problem: 404 if there is no such log, 409 if it is being sealed, 507 without room to write it out.
        """
        sealing = Sealing(run, f"received-{run}-{secrets.token_hex(4)}.jsonl", target, None)
        with self._held(), opened(self._known(run)) as con:
            row = read_about(con)
            if row is None:
                raise no_such_log(run)
            _check_open(run, row)
            con.execute("UPDATE about SET not_before = ?", (time.time() + AGAIN_SECONDS,))  # without room too
            check_free(self.data_dir)
            if shutil.disk_usage(self.data_dir).free < row["bytes"]:
                raise disk_full()
            con.execute("UPDATE about SET file = ?, target = ?", (sealing.file, target))
        return sealing, {**json.loads(row["sizes"]), "model": row["model"]}

    def write_out(self, sealing: Sealing) -> None:
        """Write all responses of a pending log into the inbox. Needs no lock: nothing changes them. Raises OSError."""
        file, target = self._known(sealing.run), self._inbox(sealing)
        with opened(file) as con, atomic_file(target) as temporary, temporary.open("wb") as stream:
            for (line,) in con.execute("SELECT line FROM response ORDER BY number"):
                stream.write(line + b"\n")

    def set_job(self, sealing: Sealing, job: str) -> None:
        """Say which job makes a run of a pending log."""
        with self._at(sealing) as con:
            if con is not None:
                con.execute("UPDATE about SET job = ?", (job,))

    def reopen(self, sealing: Sealing, *, again: bool) -> None:
        """Take responses again for a log of which no run was made; its file in the inbox is deleted, or what is there
        of it.

        ``again``: it may be sealed by itself again, before more has come.
        """
        with self._at(sealing) as con:
            if con is not None:
                for file in (self._inbox(sealing), *self._inbox(sealing).parent.glob(f".{sealing.file}.*.tmp")):
                    file.unlink(missing_ok=True)
                con.execute("UPDATE about SET file = NULL, target = NULL, job = NULL")
                if not again:
                    con.execute("UPDATE about SET not_before = ?", (math.inf,))

    def forget_sealed(self, sealing: Sealing) -> None:
        """Delete a log of which a run was made."""
        with self._held():
            file = self._known(sealing.run)
            with opened(file) as con:
                is_same = _sealing_of(sealing.run, read_about(con)) == sealing
            if is_same:
                self._inbox(sealing).unlink(missing_ok=True)
                remove(file)

    def forget(self, run: str) -> None:
        """Delete all that came; Problem 404 if there is none, 409 while a run is made of it."""
        file = self._known(run)
        if not file.is_file():
            raise no_such_log(run)  # before the lock, as in ``_read``
        with self._held():
            if not file.is_file():
                raise no_such_log(run)
            sealing = None
            with contextlib.suppress(Exception), opened(file) as con:  # a damaged log can be forgotten too
                sealing = _sealing_of(run, read_about(con))
            if sealing is not None:
                raise _is_sealed(run, sealing.job, "; cancel that job to forget it")
            remove(file)

    @contextlib.contextmanager
    def _at(self, sealing: Sealing) -> Iterator[sqlite3.Connection | None]:
        """A transaction on the log of a sealing; None where that is over, or has come further."""
        with self._held(), opened(self._known(sealing.run)) as con, writing(con):
            yield con if _sealing_of(sealing.run, read_about(con)) == sealing else None

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock of all logs. Whoever holds it opens files, makes them and deletes them."""
        trouble = busy("Other responses are being taken; try again in a moment.")
        if not self._lock.acquire(timeout=BUSY_SECONDS):
            raise trouble
        try:
            with held_lock_file(self.data_dir / ".received.lock", BUSY_SECONDS, trouble):
                yield
        finally:
            self._lock.release()

    def _read(self, run: str) -> Row | None:
        """What is known of a log; None if there is none. What a killed first request left is deleted."""
        file = self._known(run)
        if not file.is_file():
            return None  # before the lock, whose file is not made for what is no log
        with self._held():
            return self._read_held(file)

    @staticmethod
    def _read_held(file: Path) -> Row | None:
        if not file.is_file():
            return None
        with opened(file) as con:
            row = read_about(con)
        if row is None:
            remove(file)
        return row

    def _all(self) -> list[tuple[str, Row | Exception]]:
        """What is known of each log, or why it cannot be read. The lock is waited for once, not for each log."""
        found: list[tuple[str, Row | Exception]] = []
        names = self.names()
        with self._held() if names else contextlib.nullcontext():
            for name in names:
                try:
                    row = self._read_held(self._file(name))
                    if row is not None:
                        found.append((name, row))
                except Exception as error:
                    found.append((name, error))
        return found

    def _readable(self) -> list[tuple[str, Row]]:
        return [(name, row) for name, row in self._all() if not isinstance(row, Exception)]  # ``listed`` tells of those

    def _inbox(self, sealing: Sealing) -> Path:
        return self.data_dir / "inbox" / sealing.file

    def _file(self, run: str) -> Path:
        return self.folder / f"{check_name(run, 'name of a run', field='run')}{SUFFIX}"

    def _known(self, run: str) -> Path:
        try:
            return self._file(run)
        except UserError:
            raise no_such_log(run) from None


def _shown(run: str, row: Row) -> Row:
    counts = unpacked(row["counts"])
    return {
        "run": run,
        **{name: row[name] for name in ("responses", "tokens", "bytes", "model", "top_k", "job")},
        "began_at": when(row["began"]),
        "last_at": when(row["last"]),
        "experts": counts.shape[1],
        "load": load_of(counts),
        "problem": None,
    }


OTHER_DECISIONS = "a response of this id came before, with other decisions; give each request an id of its own"


def _nothing(reasons: Sequence[str | None]) -> Problem:
    reason = next(filter(None, reasons), "it holds no response")
    return Problem(422, "no-response", f"Nothing of it can be taken: {reason}", field="body")


def _is_sealed(run: str, job: str | None, but: str = "") -> Problem:
    by = f" by job {job}{but}" if job is not None else ""
    return Problem(409, "sealing", f"The log {run} is being sealed{by}.", field="run")


def _check_open(run: str, about: Row) -> None:
    if about["file"] is not None:
        raise _is_sealed(run, about["job"])


def _sealing_of(run: str, about: Row | None) -> Sealing | None:
    if about is None or about["file"] is None:
        return None
    return Sealing(run, about["file"], about["target"], about["job"])
