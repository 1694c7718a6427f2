"""What a page waits for at a hundred million tokens: every question of ``queries_asked`` over HTTP, warm and cold.

    python -m benchmarks.queries --folder big --tokens 1e8 --keep

The run is made once (``tests.support.runs.synthetic``, through the real writer) and stays in ``--folder``; another call
uses it again. The API is a process of its own, as ``tokenpaths up`` starts it, with no memory for answers: each
question is computed each time. Times are those of the client: HTTP and JSON included.

``warm``     after two questions of the kind; p50 and p95 over ``--repeats``, arguments drawn anew each time
``cold``     a server that was just started (and has answered ``/healthz``), the file not in the system's cache
``writing``  warm, while another process writes a second run as fast as it can
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.measure import forget, kept_document, report
from benchmarks.queries_asked import QUESTIONS, About, Question
from benchmarks.queries_kept import with_others, worst
from benchmarks.table import Row
from tests.support.runs.synthetic import SyntheticRun, count, write_run
from tokenpaths.backend.settings import Settings
from tokenpaths.engine.base.shared_cores import stand_back
from tokenpaths.engine.store.file.open_file import open_read_only

ROOT = Path(__file__).resolve().parent.parent
RUN, BESIDE = "queried", "beside"
COMPILED_SECONDS = 6.0
"""until the API has compiled what a question could have used"""
WARM_UP = 2
COLD_REPEATS = 3
SEED = 0
LIMIT_SECONDS = 120.0
PROMISED = 100_000_000
"""tokens of the run that the promises speak of"""
WORDS = "tokens with a word"
"""the question that may take a second, cold"""


@contextlib.contextmanager
def served(folder: Path) -> Iterator[httpx.Client]:
    """The API over the runs of ``folder``, in a process of its own; a client of it that knows the process."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TOKENPATHS_")}
    environment |= {
        "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "TOKENPATHS_DATA_DIR": str(folder),
        "TOKENPATHS_PORT": "0",
        "TOKENPATHS_ANSWER_CACHE_MEGABYTES": "0",
        "TOKENPATHS_QUERY_SECONDS": "100",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tokenpaths.backend.serve", "api"],
        env=environment,
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    said: list[str] = []
    threading.Thread(target=lambda: said.extend(process.stdout or ()), daemon=True).start()
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", "".join(said))):
            if process.poll() is not None:
                raise RuntimeError("the API ended: " + "".join(said))
            time.sleep(0.02)
        with httpx.Client(base_url=found[0] + "/api/v1", timeout=LIMIT_SECONDS, trust_env=False) as client:
            client.get(found[0] + "/healthz").raise_for_status()
            client.headers["x-process"] = str(process.pid)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def processor_ms(client: httpx.Client) -> float:
    """Milliseconds that the threads of the API ran so far: the same on a busy machine as on an idle one."""
    spent = 0
    for task in Path(f"/proc/{client.headers['x-process']}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that just ended
            spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e6


def bytes_read(client: httpx.Client) -> int:
    """Bytes that the API read from the disk so far: the same on a busy machine, too."""
    counts = Path(f"/proc/{client.headers['x-process']}/io").read_text()
    return int(re.findall(r"^read_bytes: (\d+)$", counts, re.M)[0])


def ask(
    client: httpx.Client, question: Question, rng: np.random.Generator, about: About, **more: Any
) -> tuple[float, float, int]:
    """Milliseconds until the answer is there and read, those of the API's processor time, and bytes."""
    path, query = question.ask(rng, about)
    spent, started = processor_ms(client), time.perf_counter()
    answer = client.get(f"/runs/{RUN}{path}", params={**query, **more})
    answer.raise_for_status()
    answer.json()
    return 1000 * (time.perf_counter() - started), processor_ms(client) - spent, len(answer.content)


def is_refused(client: httpx.Client, question: Question, about: About) -> bool:
    """Whether the run does not hold what is asked for, as losses or words."""
    if question.free:  # known of no run, and the first time may take minutes
        return False
    path, query = question.ask(np.random.default_rng(SEED), about)
    return client.get(f"/runs/{RUN}{path}", params=query).status_code == 422


def is_sampled(client: httpx.Client, question: Question, about: About) -> bool:
    """Whether the sample answers: listed paths are counted exactly."""
    path, query = question.ask(np.random.default_rng(SEED), about)
    answer = client.get(f"/runs/{RUN}{path}", params=query | {"sampled": "true"}).raise_for_status().json()
    return not answer["counted"]["exact"]


def percentiles(milliseconds: list[float]) -> dict[str, float]:
    return {"p50": round(float(np.median(milliseconds)), 2), "p95": round(float(np.quantile(milliseconds, 0.95)), 2)}


def warm(client: httpx.Client, about: About, questions: list[Question], repeats: int, **more: Any) -> dict[str, Any]:
    """p50, p95 and bytes of each question, on a server that has answered it before."""
    found = {}
    for question in questions:
        rng = np.random.default_rng(SEED)
        first = [ask(client, question, rng, about, **more)[0] for _ in range(WARM_UP)]
        # Minutes for one question say nothing that seconds do not.
        times = repeats if max(first) < 1000 else max(3, repeats // 5)
        rows = [ask(client, question, rng, about, **more) for _ in range(times)]
        found[question.name] = percentiles([row[0] for row in rows]) | {
            "cpu_ms": round(float(np.median([row[1] for row in rows])), 1),
            "bytes": int(np.median([row[2] for row in rows])),
            "times": times,
        }
        print(question.name, found[question.name], file=sys.stderr, flush=True)
    return found


def cold(folder: Path, about: About, questions: list[Question], repeats: int) -> dict[str, Any]:
    """The first question of a server that was just started, the file not in the system's cache."""
    found = {}
    for question in questions:
        rng, rows = np.random.default_rng(SEED + 1), []
        for _ in range(repeats):
            forget(folder / "runs" / f"{RUN}.duckdb")
            with served(folder) as client:
                before = bytes_read(client)
                asked = ask(client, question, rng, about)
                rows.append((asked[0], asked[1], (bytes_read(client) - before) / 1e6))
        found[question.name] = percentiles([row[0] for row in rows]) | {
            "cpu_ms": round(float(np.median([row[1] for row in rows])), 1),
            "read_MB": round(float(np.median([row[2] for row in rows])), 1),
            "times": repeats,
        }
        print("cold", question.name, found[question.name], file=sys.stderr, flush=True)
    return found


def bytes_by_table(file: Path, num_tokens: int) -> dict[str, float]:
    """Bytes a token of each table, by the blocks of the file that it has (a block may be shared); and the whole."""
    con = open_read_only(file)
    try:
        ((size,),) = con.execute("SELECT block_size FROM pragma_database_size() WHERE database_name = 'r'").fetchall()
        found = {}
        for (table,) in con.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'r'").fetchall():
            ((blocks,),) = con.execute(
                f"SELECT count(DISTINCT b) FROM (SELECT block_id AS b FROM pragma_storage_info('{table}') "
                "WHERE block_id >= 0 UNION ALL "
                f"SELECT unnest(additional_block_ids) FROM pragma_storage_info('{table}'))"
            ).fetchall()
            found[table] = round(blocks * size / num_tokens, 3)
    finally:
        con.close()
    found = {table: each for table, each in sorted(found.items(), key=lambda row: -row[1]) if each >= 0.001}
    return found | {"file": round(file.stat().st_size / num_tokens, 2)}


def raw_write(folder: Path, num_bytes: int = 2**30) -> float:
    """Bytes a second that the disk takes, written and synced."""
    data, file = os.urandom(2**24), folder / "raw"
    try:
        started = time.perf_counter()
        with open(file, "wb") as handle:
            for _ in range(num_bytes // len(data)):
                handle.write(data)
            handle.flush()
            os.fsync(handle.fileno())
        return num_bytes / (time.perf_counter() - started)
    finally:
        file.unlink(missing_ok=True)


def build(spec: SyntheticRun, folder: Path) -> dict[str, Any]:
    """Make the run in this process; seconds and the peak of memory. For a process of its own."""
    started = time.perf_counter()
    file = write_run(spec, folder, overwrite=True)
    return {
        "seconds": round(time.perf_counter() - started, 1),
        "bytes": file.stat().st_size,
        "peak_MiB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def in_process(what: str, folder: Path, tokens: int, **popen: Any) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.queries",
        "--step",
        what,
        "--folder",
        str(folder),
        "--tokens",
        str(tokens),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, **popen)


@contextlib.contextmanager
def writing(folder: Path, tokens: int) -> Iterator[None]:
    """Another process writes a run of ``tokens``, again and again."""
    stop = threading.Event()
    running: list[subprocess.Popen[str]] = []

    def work() -> None:
        while not stop.is_set():
            running[:] = [in_process(BESIDE, folder, tokens, start_new_session=True)]
            running[0].communicate()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        time.sleep(5)  # until batches come
        yield
    finally:
        stop.set()
        for process in running:
            process.kill()
        thread.join()


def ingest(folder: Path, tokens: int) -> dict[str, Any]:
    """Tokens a second that the store takes, sealing included, beside what the disk takes raw; batches made before."""
    from tests.support.runs.synthetic import batches
    from tokenpaths.engine.store.write.writer import RunWriter

    spec = SyntheticRun("ingested", tokens)
    made = list(batches(spec))
    given = sum(batch.module_ids.size + batch.weights.size + 5 * 4 * batch.num_tokens for batch in made)
    raw = raw_write(folder)
    started = time.perf_counter()
    writer = RunWriter(folder / BESIDE, spec.info(), spec.bank(), overwrite=True)
    for batch in made:
        writer.write(batch)
    written = time.perf_counter() - started
    file = writer.seal()
    seconds = time.perf_counter() - started
    size = file.stat().st_size
    file.unlink()
    return {
        "tokens": tokens,
        "tokens_per_second": round(tokens / seconds),
        "written_per_second": round(tokens / written),
        "raw_bytes_per_second": round(raw),
        "bytes_given_per_token": round(given / tokens, 1),
        "ratio": round(given / written / raw, 3),
        "ratio_with_sealing": round(given / seconds / raw, 3),
        "file_bytes_per_token": round(size / tokens, 1),
    }


def rows(document: dict[str, Any]) -> list[Row]:
    """What ``make bench`` prints of a kept result; what was not measured is left out."""
    found, made = document["results"], []
    tokens, bytes_each = f"{found['tokens']:,} tokens", found.get("bytes_per_token")
    missing = "" if found["tokens"] >= PROMISED else f"{PROMISED // 10**6} M tokens"
    if bytes_each:
        parts = {name: each for name, each in bytes_each.items() if name != "file"}
        note = f"{tokens}; texts, vocabulary ids and losses included"
        made.append(Row("bytes_per_token", bytes_each["file"], cells=parts, note=note))
    free = {one.name for one in QUESTIONS if one.free}
    page = {part: found.get(part, {}).keys() - free for part in ("warm", "cold")}
    for key, part, names in (
        ("query_warm", "warm", page["warm"]),
        ("query_cold", "cold", page["cold"] - {WORDS}),
        ("word_cold", "cold", page["cold"] & {WORDS}),
    ):
        if names:
            slowest = worst(found[part], sorted(names))
            cells = {one: found[part][one]["p95"] for one in found[part] if one in names}
            peers = _peers(found.get("peers", {})) if key == "query_warm" else {}
            note = tokens if key == "word_cold" else f"{slowest['question']}; {tokens}"
            made.append(Row(key, slowest["p95"], cells=cells, peers=peers, note=note, missing=missing, part=part))
    exact = {name: row["p95"] / 1000 for name, row in found.get("warm", {}).items() if name in free}
    if exact:
        made.append(Row("filter_exact", max(exact.values()), cells=exact, note=tokens, missing=missing, part="warm"))
    if found.get("sampled"):
        sampled = {name: row["p95"] for name, row in found["sampled"].items()}
        made.append(
            Row("filter_sampled", max(sampled.values()), cells=sampled, note=tokens, missing=missing, part="sampled")
        )
    if found.get("writing"):
        made.append(
            Row(
                "page_beside_trace",
                found["writing"]["median_ratio"],
                note=f"median, worst {found['writing']['worst_ratio']}; {tokens}",
                part="writing",
            )
        )
    if found.get("ingest"):
        made.append(
            Row("ingest", found["ingest"]["ratio"], note=f"with sealing {found['ingest']['ratio_with_sealing']}")
        )
    return made


def _peers(found: dict[str, Any]) -> dict[str, float | str]:
    """Milliseconds of the slowest of their questions by others, and at how many tokens: as many as fit them."""
    slowest: dict[str, float | str] = {}
    for side in ("pandas", "polars", "sqlite"):
        times = [row[side] for name, row in found.items() if name != "tokens"]
        if times:
            of = f"{side} ({len(times)} questions, {found['tokens'] / 1e6:g} M tokens)"
            slowest[of] = times[0] if isinstance(times[0], str) else max(one["ms"] for one in times)
    return slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=count, default=1_000_000)
    parser.add_argument("--folder", type=Path, required=True, help="where the run is made, and stays")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument(
        "--parts",
        nargs="+",
        default=["warm", "cold", "writing", "ingest", "peers"],
        choices=["warm", "cold", "writing", "ingest", "peers"],
    )
    parser.add_argument("--only", help="questions whose name holds these words")
    parser.add_argument("--page", action="store_true", help="only what a page waits for, no free filters")
    parser.add_argument("--peer-tokens", type=count, default=5_000_000)
    parser.add_argument("--ingest-tokens", type=count, default=4_000_000)
    parser.add_argument(
        "--keep", action="store_true", help="write benchmarks/results/queries.json, or that of another layout"
    )
    parser.add_argument("--step", choices=[RUN, BESIDE, "ingest", "peers"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    # Else the collector looks through everything that is imported here whenever answers have been parsed, 80 ms that
    # would count as the API's. The page's server does the same.
    gc.collect()
    gc.freeze()
    folder: Path = options.folder.resolve()
    if options.step == BESIDE:
        stand_back(Settings().worker_nice)  # as the worker does, in a session of its own
    if options.step in (RUN, BESIDE):
        where = folder / ("runs" if options.step == RUN else BESIDE)
        print(json.dumps(build(SyntheticRun(options.step, options.tokens), where)))
        return
    if options.step == "ingest":
        print(json.dumps(ingest(folder, options.tokens)))
        return
    file = folder / "runs" / f"{RUN}.duckdb"
    results: dict[str, Any] = {"load_before": round(os.getloadavg()[0], 1)}
    about_file = folder / "built.json"
    if not file.exists():
        said, _ = in_process(RUN, folder, options.tokens).communicate()
        about_file.write_text(said.splitlines()[-1])
    if about_file.exists():
        results["built"] = json.loads(about_file.read_text())
    questions = [one for one in QUESTIONS if not options.only or options.only in one.name]
    questions = [one for one in questions if not (options.page and one.free)]
    with served(folder) as client:
        info = client.get(f"/runs/{RUN}").raise_for_status().json()
        questions = [one for one in questions if one.family in (None, info["family"])]
        about = About.of(info)
        results |= {"tokens": info["num_tokens"], "paths": info["num_paths"], "samples": info["num_samples"]}
        results["bytes_per_token"] = bytes_by_table(file, info["num_tokens"])
        results["refused"] = [one.name for one in questions if is_refused(client, one, about)]
        questions = [one for one in questions if one.name not in results["refused"]]
        page = [one.name for one in questions if not one.free]
        if {"warm", "writing"} & set(options.parts):
            for one in questions:  # some are answered by loops that are compiled after they were first asked
                ask(client, one, np.random.default_rng(SEED), about)
            time.sleep(COMPILED_SECONDS)
        if "warm" in options.parts:
            results["warm"] = warm(client, about, questions, options.repeats)
            results["worst_warm"] = worst(results["warm"], page) if page else None
            free = [one for one in questions if one.free and one.method == "flow" and is_sampled(client, one, about)]
            results["sampled"] = warm(client, about, free, options.repeats, sampled="true")
        if "writing" in options.parts:
            some = [one for one in questions if not one.free]
            idle = results.get("warm") or warm(client, about, some, options.repeats)
            with writing(folder, 10**7):
                busy = warm(client, about, some, max(5, options.repeats // 2))
            ratios = {name: round(busy[name]["p95"] / idle[name]["p95"], 2) for name in busy}
            results["writing"] = {
                "p95": {name: row["p95"] for name, row in busy.items()},
                "median_ratio": round(float(np.median(list(ratios.values()))), 2),
                "worst_ratio": max(ratios.values()),
            }
    if "cold" in options.parts:
        results["cold"] = cold(folder, about, [one for one in questions if not one.free], COLD_REPEATS)
        results["worst_cold"] = worst(results["cold"], page) if page else None
    if "ingest" in options.parts:
        said, _ = in_process("ingest", folder, options.ingest_tokens).communicate()
        results["ingest"] = json.loads(said.splitlines()[-1])
    if "peers" in options.parts:
        from benchmarks.queries_peers import compared

        results["peers"] = compared(SyntheticRun("peers", options.peer_tokens))
    results["load_after"] = round(os.getloadavg()[0], 1)
    if options.keep:
        name = "queries" if info["path_layout"] == "dictionary" else f"queries-{info['path_layout']}"
        before = kept_document(name)["results"]
        if before.get("tokens") == results["tokens"]:
            if options.only:
                results = with_others(before, results)
            results = before | results  # parts that were not measured stay, with their dates
        report(
            name,
            "python -m benchmarks.queries "
            + " ".join(word for word in sys.argv[1:] if word not in ("--keep", str(options.folder), "--folder")),
            results,
        )
    else:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
