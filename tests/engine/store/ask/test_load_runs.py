"""Runs of counts: load, balance over time, domains and comparison against counts by hand; all else says why not."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from tests.support.runs import make, make_run
from tests.support.runs.counted import EXPERTS, STEPS, TIMES, by_hand, make_counts, make_load_run
from tokenpaths.engine.adapters.logs.counts.expert_counts import ExpertCounts
from tokenpaths.engine.adapters.logs.counts.load_runs import import_counts
from tokenpaths.engine.base.errors import NeedsTokens, UserError
from tokenpaths.engine.store.ask.questions import QUESTIONS
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.many_runs import compare_runs
from tokenpaths.engine.store.file.verification import verify_run
from tokenpaths.engine.store.write.writer import RunWriter

FACTS = ("choices", "load_entropy", "max_violation", "effective_top_k", "dead")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs_dir = tmp_path_factory.mktemp("counted")
    make_load_run(runs_dir, "timed")
    make_load_run(runs_dir, "domains", seed=1, domains=True)
    make_load_run(runs_dir, "unknown-k", seed=2, top_k=None)
    make_run(runs_dir, "tokens", samples=4, twin=False)
    return runs_dir


def opened(folder: Path, name: str) -> Run:
    return Run.open(folder / f"{name}.duckdb")


def naive(counts: ExpertCounts, step: int, parts: range) -> Counter[int]:
    """Choices of each expert at one step, one by one."""
    choices: Counter[int] = Counter()
    for part in parts:
        for expert in range(EXPERTS):
            for _ in range(int(counts.parts[part, step, expert])):
                choices[expert] += 1
    return choices


def test_the_card_says_what_is_known(folder: Path) -> None:
    counts = make_counts()
    with opened(folder, "timed") as run:
        card, info = run.card(), run.info()
    assert (card["kind"], card["status"], card["top_k"]) == ("load", "sealed", 2)
    assert (card["num_samples"], card["num_paths"]) == (None, None)
    assert card["num_tokens"] == max(naive(counts, step, range(TIMES)).total() for step in range(STEPS)) // 2
    assert info["summary"] is None
    assert "the run knows the load" in info["findings"]["notes"][0]
    assert info["config"]["import"]["layers"] == ["layer 0", "layer 2", "layer 4"]
    with opened(folder, "unknown-k") as run:
        assert (run.card()["num_tokens"], run.card()["top_k"]) == (None, None)
        assert "so shares are of choices" in run.info()["findings"]["notes"][1]
    with opened(folder, "tokens") as run:
        assert run.card()["kind"] == "tokens"


@pytest.mark.parametrize(("name", "seed", "top_k"), [("timed", 0, 2), ("unknown-k", 2, 1)])
def test_usage_is_what_was_counted(folder: Path, name: str, seed: int, top_k: int) -> None:
    with opened(folder, name) as run:
        usage = run.usage()
    for step, row in enumerate(usage["steps"]):
        choices = naive(make_counts(seed), step, range(TIMES))
        hand = by_hand(choices)
        assert {name: row[name] for name in FACTS[1:4]} == pytest.approx({name: hand[name] for name in FACTS[1:4]})
        assert row["dead"] == [7]
        cells = [cell for cell in usage["usage"] if cell["step"] == step]
        assert [cell["count"] for cell in cells] == [choices[expert] for expert in range(EXPERTS)]
        assert sum(cell["share"] for cell in cells) == pytest.approx(top_k)


@pytest.mark.parametrize("bins", [200, 5])
def test_load_over_time(folder: Path, bins: int) -> None:
    counts = make_counts()
    parts = [range(int(part[0]), int(part[-1]) + 1) for part in np.array_split(np.arange(TIMES), min(bins, TIMES))]
    with opened(folder, "timed") as run:
        answers = [run.load_over_time(step, bins=bins) for step in range(STEPS)]
        everywhere = run.balance_over_time(bins=bins)
    assert (answers[0]["axis"], answers[0]["num_times"]) == ("iteration", TIMES)
    for step, answer in enumerate(answers):
        assert len(answer["bins"]) == len(parts)
        for part, row in zip(parts, answer["bins"], strict=True):
            assert (row["first"], row["last"]) == (10 * part[0], 10 * part[-1])
            choices = naive(counts, step, part)
            assert row["counts"] == [choices[expert] for expert in range(EXPERTS)]
            if choices:
                assert {name: row[name] for name in FACTS} == pytest.approx(by_hand(choices))
            else:
                assert [row[name] for name in FACTS] == [0, None, None, None, None]
            same = [b for b in everywhere["balance"] if (b["step"], b["first"]) == (step, row["first"])]
            assert [{name: b[name] for name in FACTS} for b in same] == [{name: row[name] for name in FACTS}]


def test_without_time_it_says_so(folder: Path) -> None:
    with opened(folder, "domains") as run:
        assert run.load_over_time(0)["bins"] == []
        assert "sums over the whole time" in run.balance_over_time()["reason"]
    with opened(folder, "tokens") as run:
        assert "made of tokens" in run.load_over_time(0)["reason"]


def test_load_by_domain(folder: Path) -> None:
    counts = make_counts(1)
    parts = {"code": [p for p in range(TIMES) if p % 3], "prose": [p for p in range(TIMES) if not p % 3]}
    with opened(folder, "domains") as run:
        assert [row["label"] for row in run.info()["labels"]] == ["code", "prose"]
        answer = run.load_by_label(1)
        of_label = {name: run.usage(label=name) for name in parts}
    everything = naive(counts, 1, range(TIMES))
    overlaps = {}
    for name, places in parts.items():
        choices: Counter[int] = Counter()
        for place in places:
            choices += naive(counts, 1, range(place, place + 1))
        total, of_all = choices.total(), everything.total()
        pairs = [(choices[e] / total, everything[e] / of_all) for e in range(EXPERTS)]
        overlaps[name] = sum(min(pair) for pair in pairs)
        row = next(row for row in answer["labels"] if row["label"] == name)
        assert row["counts"] == [choices[e] for e in range(EXPERTS)]
        assert row["overlap"] == pytest.approx(overlaps[name])
        assert {fact: row[fact] for fact in FACTS} == pytest.approx(by_hand(choices))
        assert [c["count"] for c in of_label[name]["usage"] if c["step"] == 1] == row["counts"]
    assert [row["label"] for row in answer["labels"]] == sorted(overlaps, key=lambda name: overlaps[name])


def test_two_loads_are_compared(folder: Path) -> None:
    first, second = (naive(make_counts(seed), 2, range(TIMES)) for seed in (0, 2))
    with opened(folder, "timed") as a, opened(folder, "unknown-k") as b, opened(folder, "tokens") as tokens:
        answer = a.compare_load(b)
        with pytest.raises(UserError, match="has 3 steps"):
            a.compare_load(tokens)
        with pytest.raises(UserError, match="with itself"):
            a.compare_load(a)
    row = answer["steps"][2]
    assert row["a"] == pytest.approx(by_hand(first))
    assert row["b"] == pytest.approx(by_hand(second))
    shares = [(first[e] / first.total(), second[e] / second.total()) for e in range(EXPERTS)]
    assert row["overlap"] == pytest.approx(sum(min(pair) for pair in shares))
    moved = next(m for m in answer["modules"] if m["step"] == 2)
    assert abs(moved["difference"]) == pytest.approx(max(abs(y - x) for x, y in shares))


def test_numbers_of_several_runs_have_those_of_the_load(folder: Path) -> None:
    with opened(folder, "timed") as a, opened(folder, "tokens") as b, opened(folder, "unknown-k") as c:
        answer = compare_runs([a, b, c])
        alone = compare_runs([a, c])
    rows = {row["name"]: row for row in answer["rows"]}
    assert rows["num_paths"]["values"][0] is None
    assert rows["dead_modules"]["values"][0] == STEPS
    assert "holds counts of tokens by expert" in answer["runs"][1]["reason"]
    assert alone["equal_tokens"] == 0


def test_whatever_needs_tokens_says_why_it_is_not_there(folder: Path) -> None:
    answered = {question.name for question in QUESTIONS if question.of_counts}
    assert answered == {"info", "usage", "tables", "load_over_time", "balance_over_time", "load_by_label"}
    sentences = set()
    with opened(folder, "timed") as run:
        for question in QUESTIONS:
            if question.name in answered:
                continue
            given = [1 for p in question.parameters.values() if p.default is p.empty]
            with pytest.raises(NeedsTokens) as refusal:
                getattr(run, question.name)(*given)
            sentences.add(str(refusal.value).replace(question.name, "…"))
        for ask in (run.image, run.picture, lambda n: run.compare(run), lambda n: run.effect(run), run.in_reference):
            with pytest.raises(NeedsTokens):
                ask(run if ask == run.in_reference else 0)  # type: ignore[operator]
        with pytest.raises(NeedsTokens):
            next(iter(run.export("token", "csv")))
    assert len(sentences) == 1, sentences
    assert "not what each token chose" in sentences.pop()


def test_its_tables_are_exported(folder: Path) -> None:
    counts = make_counts()
    with opened(folder, "timed") as run:
        assert [row["table"] for row in run.tables()["tables"]] == ["run", "module", "usage", "load", "finding"]
        table = pa.ipc.open_file(io.BytesIO(b"".join(run.export("load", "arrow")))).read_all()
        assert len(run.frames.table("usage")) == STEPS * (EXPERTS - 1)
    total = np.zeros_like(counts.parts)
    for row in table.to_pylist():
        total[row["time"] // 10, row["step"], row["module"]] += row["count"]
        assert row["label"] is None
    assert np.array_equal(total, counts.parts)


def test_the_file_is_whole_or_not_there(folder: Path, tmp_path: Path) -> None:
    assert verify_run(folder / "timed.duckdb")["load"] > 0
    file = make_load_run(tmp_path, "mine")
    with pytest.raises(UserError, match="there is a run 'mine' already"):
        make_load_run(tmp_path, "mine")
    nothing = ExpertCounts(("layer 0",), np.zeros((1, 1, 4), dtype=np.int64))
    with pytest.raises(UserError, match="every count is 0"):
        import_counts(nothing, Path("a"), tmp_path, "empty")
    assert list(tmp_path.iterdir()) == [file]


def test_another_writer_of_the_name_is_respected(tmp_path: Path) -> None:
    arrays = make(samples=1)
    writer = RunWriter(tmp_path, arrays.info, arrays.modules)
    try:
        with pytest.raises(UserError, match="is held by process"):
            make_load_run(tmp_path, arrays.info.run_id)
    finally:
        writer.abort()


def test_many_times_are_kept_in_neighbourhoods() -> None:
    counts = make_counts()
    kept = counts.bounded(most_cells=4 * STEPS * EXPERTS)
    assert kept.times == (0, 30, 60, 90)
    assert np.array_equal(kept.parts, counts.parts.reshape(4, 3, STEPS, EXPERTS).sum(axis=1))
    assert "12 iterations are kept 3 by 3" in kept.notes[-1]
