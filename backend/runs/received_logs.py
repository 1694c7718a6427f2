"""Responses that running engines send, kept until they are sealed: one SQLite file a log in ``<data_dir>/received``.

A request is committed before it is answered, so a restart loses nothing, and each request id is kept once, so that
whoever is in doubt sends again. Nothing of a log is in memory but its name.

Shapes: S layers, M experts.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tokenpaths.backend.problems import Problem, disk_full
from tokenpaths.engine.adapters.logs.pieces import Announced
from tokenpaths.engine.adapters.logs.responses.received import Received
from tokenpaths.engine.analysis.load import load_entropy, max_violation
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import atomic_file, check_free, check_name

MOST_LOGS = 64
MOST_REFUSED = 20
"""refused lines of one request that are named"""
BUSY_SECONDS = 20.0
SUFFIX = ".sqlite"
TABLES = """
CREATE TABLE IF NOT EXISTS response (number INTEGER PRIMARY KEY, id TEXT UNIQUE, line BLOB);
CREATE TABLE IF NOT EXISTS about (one INTEGER PRIMARY KEY CHECK (one = 1), began REAL, last REAL, responses INTEGER,
    tokens INTEGER, bytes INTEGER, model TEXT, layers INTEGER, top_k INTEGER,
    sizes TEXT, counts BLOB, job TEXT, tried REAL);
"""
Row = dict[str, Any]


class ReceivedLogs:
    """The logs that are being received in a data folder. Safe for concurrent use, also by several processes.

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
        return sorted(file.stem for file in self.folder.glob(f"*{SUFFIX}"))

    def sizes(self, run: str, given: Announced) -> Announced:
        """The sizes that were said with the first response of a log, or are ``given`` now.

        Raises:
            Problem: 409 where others were said before.
        """
        file = self._file(run)
        if not file.exists():
            return given
        with self._open(file) as con:
            row = self._about(con)
        if row is None:
            return given
        known = json.loads(row["sizes"])
        for name in ("layers", "top_k", "experts"):
            said = getattr(given, name)
            if said is not None and said != known[name]:
                raise Problem(
                    409, "other-sizes", f"The log {run} began with {name} {known[name]}, not {said}.", field=name
                )
        return Announced(known["layers"], known["top_k"], known["experts"])

    def add(self, run: str, received: Sequence[Received], sizes: Announced) -> Row:
        """Keep what came; what is known by its request id is counted and left.

        Raises:
            Problem: 409 while the log is being sealed, 413 beyond its limits, 422 if nothing of it can be taken, 507
                if the disk is full.
        """
        file = self._file(run)
        new = not file.exists()
        if new and not any(one.problem is None for one in received):
            raise self._nothing(received)
        with self._lock:
            if new and len(self.names()) >= MOST_LOGS:
                raise Problem(409, "too-many", f"{MOST_LOGS} logs are being received; seal or forget one.", field="run")
            try:
                check_free(self.data_dir)
                self.folder.mkdir(parents=True, exist_ok=True)
                try:
                    with self._open(file) as con:
                        con.execute("BEGIN IMMEDIATE")
                        answer = self._add(con, run, received, sizes)
                        con.execute("COMMIT")
                except Problem:
                    if new:  # nothing came of it
                        self.forget(run)
                    raise
            except sqlite3.OperationalError as error:
                if "full" in str(error):
                    raise disk_full() from None
                raise
        return {"run": run, **answer}

    def _add(self, con: sqlite3.Connection, run: str, received: Sequence[Received], sizes: Announced) -> Row:
        about = self._about(con) or _begin(sizes)
        if about["job"] is not None:
            raise Problem(409, "sealing", f"The log {run} is being sealed by job {about['job']}.", field="run")
        counts = _unpacked(about["counts"])
        taken = known = 0
        refused: list[Row] = []
        for place, one in enumerate(received):
            if one.problem is not None:
                refused.append({"line": place, "id": one.id, "reason": one.problem})
                continue
            if con.execute("SELECT 1 FROM response WHERE id = ?", (one.id,)).fetchone():
                known += 1
                continue
            if (reason := _misfit(about, one)) is not None:
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
            con.execute("INSERT INTO response (id, line) VALUES (?, ?)", (one.id, one.line))
            assert one.counts is not None, "what is taken is counted"
            counts = _sum(counts, one.counts)
            about |= {"layers": len(one.counts), "top_k": one.top_k, "model": about["model"] or one.model}
            about |= {"bytes": size, "tokens": about["tokens"] + one.tokens, "responses": about["responses"] + 1}
            taken += 1
        if not taken and not known:
            raise self._nothing(refused_as_received(refused))
        if taken:
            about |= {"last": time.time(), "counts": _packed(counts)}
            names = ", ".join(about)
            con.execute(
                f"INSERT OR REPLACE INTO about (one, {names}) VALUES (1, {', '.join('?' * len(about))})",
                list(about.values()),
            )
        shown = {name: about[name] for name in ("responses", "tokens", "bytes")}
        return {
            "received": taken,
            "known": known,
            "num_refused": len(refused),
            "refused": refused[:MOST_REFUSED],
        } | shown

    @staticmethod
    def _nothing(received: Sequence[Received]) -> Problem:
        reason = next((one.problem for one in received if one.problem), "it holds no response")
        return Problem(422, "no-response", f"Nothing of it can be taken: {reason}", field="body")

    def about(self, run: str) -> Row:
        """What has come of a log; Problem 404 if there is none."""
        with self._open(self._known(run)) as con:
            row = self._about(con)
        if row is None:
            raise self._missing(run)
        counts = _unpacked(row["counts"])
        load = [
            {
                "layer": layer,
                "choices": int(of_layer.sum()),
                "load_entropy": load_entropy(of_layer),
                "max_violation": max_violation(of_layer),
                "never": int((of_layer == 0).sum()),
            }
            for layer, of_layer in enumerate(counts)
            if of_layer.any()
        ]
        return {
            "run": run,
            **{name: row[name] for name in ("responses", "tokens", "bytes", "model", "top_k", "job")},
            "began_at": _when(row["began"]),
            "last_at": _when(row["last"]),
            "experts": counts.shape[1],
            "load": load,
        }

    def quiet(self, seconds: float) -> list[str]:
        """Logs that have had no response for so long, and that nobody has tried to seal since the last."""
        found = []
        for name in self.names():
            with contextlib.suppress(Problem, sqlite3.Error), self._open(self._file(name)) as con:
                row = self._about(con)
                untried = row is not None and row["job"] is None and (row["tried"] or 0.0) < row["last"]
                if row is not None and untried and time.time() - row["last"] >= seconds:
                    found.append(name)
        return found

    def jobs(self) -> dict[str, str]:
        """Name → job of the logs that are being sealed."""
        found = {}
        for name in self.names():
            with contextlib.suppress(sqlite3.Error), self._open(self._file(name)) as con:
                row = self._about(con)
                if row is not None and row["job"] is not None:
                    found[name] = row["job"]
        return found

    def inbox_file(self, run: str) -> Path:
        """The file that an import reads of a log."""
        return self.data_dir / "inbox" / f"received-{run}.jsonl"

    def write_out(self, run: str) -> Row:
        """Write all responses into the inbox; returns what was said of the sizes. Problem 404, 409 as ``add``."""
        with self._open(self._known(run)) as con:
            row = self._about(con)
            if row is None:
                raise self._missing(run)
            if row["job"] is not None:
                raise Problem(409, "sealing", f"The log {run} is being sealed by job {row['job']}.", field="run")
            target = self.inbox_file(run)
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target) as temporary, temporary.open("wb") as stream:
                for (line,) in con.execute("SELECT line FROM response ORDER BY number"):
                    stream.write(line + b"\n")
            sizes: Row = json.loads(row["sizes"])
            return sizes

    def set_job(self, run: str, job: str | None) -> None:
        """Say which job seals a log; None: none any more."""
        with self._open(self._known(run)) as con:
            con.execute("UPDATE about SET job = ?, tried = ?", (job, time.time()))

    def forget(self, run: str) -> None:
        """Delete all that came; Problem 404 if there is none."""
        file = self._known(run)
        for path in (self.inbox_file(run), file, *(file.with_name(file.name + end) for end in ("-wal", "-shm"))):
            path.unlink(missing_ok=True)

    def _file(self, run: str) -> Path:
        return self.folder / f"{check_name(run, 'name of a run', field='run')}{SUFFIX}"

    def _known(self, run: str) -> Path:
        try:
            file = self._file(run)
        except UserError:
            raise self._missing(run) from None
        if not file.exists():
            raise self._missing(run)
        return file

    @staticmethod
    def _missing(run: str) -> Problem:
        return Problem(404, "no-such-log", f"Nothing is being received as {run[:80]!r}.", field="run")

    @contextlib.contextmanager
    def _open(self, file: Path) -> Iterator[sqlite3.Connection]:
        con = sqlite3.connect(file, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            con.execute("PRAGMA journal_mode = WAL")
            con.execute("PRAGMA synchronous = FULL")  # what was answered for is on the disk
            con.executescript(TABLES)
            yield con
        finally:
            con.close()

    @staticmethod
    def _about(con: sqlite3.Connection) -> Row | None:
        cursor = con.execute("SELECT * FROM about")
        row = cursor.fetchone()
        names = [column[0] for column in cursor.description]
        return None if row is None else dict(zip(names[1:], row[1:], strict=True))


def refused_as_received(refused: Sequence[Row]) -> list[Received]:
    """Refused lines, for the reason of the first."""
    return [Received(b"", str(row["id"]), str(row["reason"])) for row in refused]


def _begin(sizes: Announced) -> Row:
    said = json.dumps({"layers": sizes.layers, "top_k": sizes.top_k, "experts": sizes.experts})
    now = time.time()
    empty: Row = {"began": now, "last": now, "responses": 0, "tokens": 0, "bytes": 0, "model": None}
    return empty | {"layers": None, "top_k": None, "sizes": said, "counts": None, "job": None, "tried": None}


def _misfit(about: Row, one: Received) -> str | None:
    """Why a response is of another model than the log."""
    assert one.counts is not None, "what is taken is counted"
    if about["layers"] is not None and (about["layers"], about["top_k"]) != (len(one.counts), one.top_k):
        return (
            f"it has {len(one.counts)} layers of {one.top_k} experts, the log began with {about['layers']} of "
            f"{about['top_k']}"
        )
    if about["model"] is not None and one.model is not None and one.model != about["model"]:
        return f"it is of the model {one.model[:80]!r}, the log began with {about['model'][:80]!r}"
    return None


def _sum(counts: np.ndarray, more: np.ndarray) -> np.ndarray:
    if not counts.size:
        return more
    width = max(counts.shape[1], more.shape[1])
    return sum(np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in (counts, more))  # type: ignore[return-value]


def _packed(counts: np.ndarray) -> bytes:
    return np.array(counts.shape, dtype="<i8").tobytes() + counts.astype("<i8").tobytes()


def _unpacked(data: bytes | None) -> np.ndarray:
    if data is None:
        return np.zeros((0, 0), dtype=np.int64)
    numbers = np.frombuffer(data, dtype="<i8")
    return numbers[2:].reshape(int(numbers[0]), int(numbers[1])).astype(np.int64)


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
