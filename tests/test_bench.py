"""The table of speed: what it calls met, which cell it shows, what it says of parts that are not there; its page."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import bench, measure, profile_rows, speed
from benchmarks.bench import PAGE, PARTS, Part, all_rows, commands_of, page_with, printed, rows_in, rows_of
from benchmarks.imposed import HOW_ALL, ImposedDNA, active_share, imposed, recorded
from benchmarks.table import GOALS, Row, markdown, times_table, worst
from tokenpaths.engine.families.dna_config import DNAConfig

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results" / "bench.json"


def cell(median: float) -> dict[str, float]:
    return {"median": median, "q25": median - 0.1, "q75": median + 0.1, "repeats": 3}


def test_what_is_met():
    met = {value: Row("forward", value).met for value in (0.95, 1.0, 1.1, 1.11)}
    assert met == {0.95: "stretch", 1.0: "yes", 1.1: "yes", 1.11: "no"}
    assert [Row("naive", value).met for value in (2.9, 3.0, 5.0)] == ["no", "yes", "stretch"]
    assert Row("gpu_forward", None, note="no GPU").met == "–"
    assert Row("forward", 0.9, missing="text").met == "stretch, but without text"
    assert Row("forward", 1.2, missing="text").met == "no"
    with pytest.raises(ValueError, match="no row is called 'fast'; there are: forward, "):
        Row("fast", 1.0)


def test_the_worst_cell_is_shown():
    row = worst("forward", {"a": cell(1.0), "b": cell(1.2), "c": cell(0.8)}, note="more")
    assert (row.ours, row.spread, row.note) == (1.2, (1.0999999999999999, 1.3), "worst: b; more")
    assert worst("naive", {"a": cell(4.0), "b": cell(6.0)}).ours == 4.0


def test_a_row_reads_the_same_in_every_form():
    row = Row("query_warm", 12.34, (11.0, 130.2), {"pandas": 1200.0, "polars": "not installed"}, command="c")
    line = markdown([row]).splitlines()[-1]
    assert line.startswith("| slowest query of a page at 100 M tokens, p95 warm | 12.3 ms (11.0–130) | ≤ 50 ms |")
    assert line.endswith("| ≤ 10 ms | yes | pandas 1,200 ms; polars not installed |")
    assert "12.3 ms (11.0–130)   goal ≤ 50 ms, stretch ≤ 10 ms   met: yes" in printed([row])


def test_every_promise_belongs_to_one_part():
    keys = [key for part in PARTS for key in part.keys]
    assert sorted(keys) == sorted(GOALS)


def test_parts_that_are_missing_or_broken_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    part = Part("speed", ("forward",), 1)
    assert rows_of(part)[0].note == "not measured yet: python -m benchmarks.speed"
    (tmp_path / "speed.json").write_text("{", encoding="utf-8")
    assert rows_of(part)[0].ours is None
    (tmp_path / "speed.json").write_text(json.dumps({"results": {"forward": {"size": 3}}}), encoding="utf-8")
    assert rows_of(part)[0].ours is None
    assert "another form" in capsys.readouterr().err
    assert [row.key for row in all_rows()] == list(GOALS), "the table is whole without any result"
    monkeypatch.setitem(sys.modules, "benchmarks.speed", None)
    assert "cannot be read here: benchmarks.speed needs" in rows_of(part)[0].note


def test_a_part_that_was_kept_is_of_its_own_day_and_machine(tmp_path, monkeypatch):
    """As of the questions, which are asked again without those beside a trace."""
    document = measure.kept_document("queries")
    document |= {"date": "2026-02-02", "machine": "new"}
    kept = {"warm": ("2026-02-02", "new"), "cold": ("2026-02-02", "new"), "writing": ("2026-01-01", "old")}
    for place, what in enumerate(("dates", "machines")):
        document[what] = {name: {"p95": known[place]} for name, known in kept.items()}
    document["commands"] = {"warm": "one", "cold": {"a": "one", "b": "another"}, "writing": "a third"}
    (tmp_path / "queries.json").write_text(json.dumps(document), encoding="utf-8")
    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    part = Part("queries", ("query_cold", "page_beside_trace", "filter_exact", "ingest"), 1)
    found = {row.key: (row.date, row.machine) for row in rows_of(part)}
    assert found["query_cold"] == found["filter_exact"] == kept["warm"]
    assert found["page_beside_trace"] == kept["writing"]
    assert found["ingest"] == ("2026-02-02", "new")  # of which nothing else is known
    commands = {row.key: row.command for row in rows_of(part)}
    assert (commands["query_cold"], commands["page_beside_trace"]) == ("one; another", "a third")
    assert commands["ingest"] == document["command"]


def test_a_peer_that_is_not_installed_keeps_its_last_figure(tmp_path, monkeypatch):
    peers = pytest.importorskip("benchmarks.peers")
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    sight = {"routers/plain": {"median": 1.25}}
    assert peers.with_kept({"nnsight": "not installed"}) == {"nnsight": "not installed"}
    first = measure.report(
        "peers", "c", {"experts": 1, "TransformerLens": "not installed", "nnsight": sight}, quiet=True
    )
    assert peers.recording_peers(first)["nnsight, routers alone"] == 1.25
    first["dates"]["nnsight"] = {"routers/plain": "2026-01-01"}
    (tmp_path / "peers.json").write_text(json.dumps(first))
    results = peers.with_kept({"experts": 2, "TransformerLens": "not installed", "nnsight": "not installed"})
    again = measure.report("peers", "c", results, quiet=True)
    assert peers.recording_peers(again) == {
        "TransformerLens": "not installed",
        "nnsight, routers alone, 2026-01-01": 1.25,
    }


def test_only_what_is_asked_for_is_started():
    part = next(p for p in PARTS if p.module == "speed")
    whole = [command for command, _ in commands_of(part, list(part.keys), "py")]
    assert sorted(command[4] for command in whole) == sorted(speed.SIZES)
    assert all(command[:4] == ["py", "-m", "benchmarks.speed", "--only"] for command in whole)
    assert [command[4] for command, _ in commands_of(part, ["naive"], "py")] == ["forward", "training"]
    assert sum(minutes for _, minutes in part.groups) == part.minutes
    assert sum(p.minutes for p in PARTS if p.module not in bench.LONG_PARTS) < 20
    assert commands_of(Part("peers", (), 0.7), [], "py") == [(["py", "-m", "benchmarks.peers"], 0.7)]


def test_a_part_that_fails_costs_only_its_own_figures(monkeypatch, capsys):
    part = Part("no_such_module", ("forward",), 1)
    (problem,) = bench.run([(part, ["forward"])], "python")
    assert problem == "benchmarks.no_such_module ended with code 1; its kept figures are shown"
    assert "[1 of 1, 0.0 min, about 1 left] python -m benchmarks.no_such_module" in capsys.readouterr().err
    (problem,) = bench.run([(Part("peers", (), 1), [])], "/no/such/python")
    assert "could not be started with /no/such/python (No such file or directory)" in problem
    monkeypatch.setattr(bench, "PATIENCE", 0.0001)
    (problem,) = bench.run([(Part("device", ("gpu_forward",), 1), ["gpu_forward"])], "python")
    assert "minutes and was ended; its kept figures are shown" in problem


def test_ctrl_c_ends_the_part_that_runs(monkeypatch, tmp_path):
    """It has a session of its own, so that the terminal does not tell it."""
    (tmp_path / "sleeper").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "sleeper").chmod(0o700)
    started = []

    class Interrupted(subprocess.Popen):
        def wait(self, timeout=None):
            if not started:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(bench.subprocess, "Popen", Interrupted)
    monkeypatch.setattr(bench.sys, "executable", str(tmp_path / "sleeper"))
    with pytest.raises(KeyboardInterrupt):
        bench.run([(Part("device", (), 1), [])], "python")
    assert started[0].returncode == -signal.SIGKILL


def test_every_question_has_its_line():
    document = {
        "results": {
            "warm": {"flow": {"p50": 1.0, "p95": 2000.25}, "usage": {"p50": 0.5, "p95": 1.0}},
            "sampled": {"flow": {"p50": 3.0, "p95": 4.0}, "load": 3},
        }
    }
    warm, sampled = (
        Row(key, 1.0, times=bench.question_times(document, group))
        for key, group in (("query_warm", "warm"), ("filter_sampled", "sampled"))
    )
    assert times_table([warm, Row("forward", 1.0), sampled]).splitlines() == [
        "| milliseconds | p50 warm | p95 warm | p50 sampled | p95 sampled |",
        "|---|---|---|---|---|",
        "| flow | 1.0 | 2,000.2 | 3.0 | 4.0 |",
        "| usage | 0.5 | 1.0 |  |  |",
    ]
    assert times_table([Row("forward", 1.0)]) == ""
    assert bench.question_times(document, "cold") == {}


def config_of(modality: str, top_k: int) -> DNAConfig:
    _, shipped = recorded(modality, top_k)
    idle = shipped.identities
    more = dict(image_size=112, patch_size=16) if modality == "vision" else dict(context=384, vocab_size=50)
    return DNAConfig(
        modality=modality,
        width=32,
        heads=2,
        mlp_width=64,
        backbone=1,
        steps=7,
        top_k=top_k,
        transformers=18,
        identities=idle,
        skip_ratio=0.3 if idle else 0,
        **more,
    )


@pytest.mark.parametrize(("modality", "top_k"), [("vision", 1), ("text", 2)])
def test_imposed_routing_is_a_choice_that_a_router_could_make(modality, top_k):
    config = config_of(modality, top_k)
    torch.manual_seed(0)
    for how in HOW_ALL:
        ids = imposed(config, how, 3, config.num_tokens, 6)
        assert ids.shape == (3, config.num_tokens, top_k)
        assert ids.min() >= 0
        assert ids.max() < config.num_modules
        assert top_k == 1 or (ids[..., 0] != ids[..., 1]).all(), how
    if config.identities:
        # 1 + 7 · 2 · 0.7 = 10.8 blocks are wanted, the dense twin has 11
        assert active_share(config, "uniform") == pytest.approx(10.8 / 11, abs=0.02)


def test_skewed_samples_prefer_a_few_modules_and_trained_ones_are_the_checkpoints():
    config = config_of("vision", 1)
    torch.manual_seed(0)
    most = {}
    for how in ("uniform", "skewed"):
        chose = imposed(config, how, 8, 49, 0) == torch.arange(18)
        most[how] = chose.sum(dim=1).amax(dim=1).float().mean()
    assert most["skewed"] > 2 * most["uniform"]
    samples, shipped = recorded("vision", 1)
    ids = imposed(config, "trained", 8, 49, 2)
    rows = (torch.arange(7) * 8 // 7)[:, None] * 8 + torch.arange(7) * 8 // 7
    laid = samples[:, rows.flatten(), 2]
    assert (ids[0] == laid).all(dim=(1, 2)).any()


def test_an_imposed_model_takes_another_routing_each_time():
    config = config_of("vision", 1).model_copy(update={"steps": 2})
    model = ImposedDNA(config).eval()
    model.draw(["skewed"], 2, 49)
    model.how = "skewed"
    with torch.inference_mode():
        one, two = (model(torch.zeros(2, 3, 112, 112)).decisions for _ in range(2))
    assert len(one) == config.steps
    assert not torch.equal(one[0].module_ids, two[0].module_ids)


def test_ratios_of_rounds_that_both_were_in():
    seconds = {"dense": [1.0, 2.0, 4.0], "naive": [3.0, 6.0]}
    assert speed.paired(seconds, "naive", "dense")["median"] == 3.0


def test_speed_measures_every_group_and_makes_its_rows(monkeypatch):
    tiny = config_of("vision", 1).model_copy(update={"steps": 2, "num_classes": 1000})
    skip = config_of("text", 2).model_copy(update={"steps": 2, "context": 64})
    groups = {group: {"vision": tiny} for group in speed.SIZES} | {"top2": {"text": skip}}
    groups["one_sample"] = {"vision": tiny, "vision, batch of 3": tiny}
    monkeypatch.setattr(speed, "SIZES", groups)
    monkeypatch.setattr(speed, "BATCH", 2)
    monkeypatch.setattr(speed, "NAIVE", {"vision"})
    results = {
        group: {size: speed.MEASURE.get(group, speed.measure_forward)(group, size, 2) for size in sizes}
        for group, sizes in groups.items()
    }
    rows = {row.key: row for row in speed.rows({"results": results})}
    assert list(rows) == ["forward", "top2", "one_sample", "training", "training_memory", "naive"]
    assert all(row.ours > 0 for row in rows.values())
    assert {"vision, skewed", "vision, trained"} == set(rows["forward"].cells)
    assert set(rows["naive"].cells) == {"vision, forward", "vision, training"}
    assert "naive, skewed" in rows["forward"].peers
    assert "dense, ordered" in rows["one_sample"].peers
    assert results["top2"]["text"]["active blocks / dense"]["uniform"] == pytest.approx(0.97, abs=0.05)


def test_the_page_is_what_was_measured():
    rows = rows_in(json.loads(KEPT.read_text(encoding="utf-8")))
    assert [row.key for row in rows] == list(GOALS)
    text = PAGE.read_text(encoding="utf-8")
    assert page_with(text, rows) == text, "python -m benchmarks.bench --show --write-docs"


def test_a_size_that_fails_keeps_its_figure_and_the_rest_is_measured(monkeypatch, tmp_path, capsys):
    tiny = config_of("vision", 1).model_copy(update={"steps": 2, "num_classes": 1000})
    monkeypatch.setattr(speed, "SIZES", {"one_sample": {"broken": tiny, "vision": tiny}})
    monkeypatch.setattr(speed, "RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.measure.RESULTS", tmp_path)
    (tmp_path / "speed.json").write_text(json.dumps({"results": {"one_sample": {"broken": {"skewed": {}}}}}))
    whole = speed.measure_forward

    def measure(group, size, repeats):
        if size == "broken":
            raise RuntimeError("no memory")
        return whole(group, size, repeats)

    monkeypatch.setattr(speed, "measure_forward", measure)
    monkeypatch.setattr(sys, "argv", ["speed", "--repeats", "1"])
    with pytest.raises(SystemExit) as ended:
        speed.main()
    assert ended.value.code == 1
    assert "one_sample, broken was not measured (RuntimeError: no memory)" in capsys.readouterr().err
    kept = json.loads((tmp_path / "speed.json").read_text())["results"]["one_sample"]
    assert kept["broken"] == {"skewed": {}}
    assert kept["vision"]["skewed"]["median"] > 0


def test_a_profile_adds_up_to_the_ratio(monkeypatch):
    tiny = config_of("vision", 1).model_copy(update={"steps": 2, "num_classes": 1000})
    monkeypatch.setattr(profile_rows, "SIZES", {"one_sample": {"vision": tiny}, "training": {"vision": tiny}})
    monkeypatch.setattr(profile_rows, "BATCH", 1)
    for group in ("one_sample", "training"):
        case = profile_rows.measure(group, "vision", "skewed")
        for side in ("dense", "ours"):
            assert sum(case[side]["share"].values()) == pytest.approx(1, abs=0.001)
            assert case[side]["share"]["products"] > 0
        _, _, dense, ours = profile_rows.table({"one_sample, vision": case}).splitlines()
        whole, *parts = (float(cell) for cell in ours.strip("| ").split(" | ")[3:])
        assert whole == pytest.approx(case["ours"]["milliseconds"] / case["dense"]["milliseconds"], abs=0.006)
        assert dense.split(" | ")[3] == "1.00"
        assert sum(parts) == pytest.approx(whole, abs=0.05), "each cell is rounded to hundredths"


def test_kinds_of_operations():
    kinds = {
        "aten::mm": "products",
        "mkldnn::_linear_pointwise": "products",
        "aten::copy_": "moving rows",
        "aten::_scaled_dot_product_flash_attention_for_cpu": "attention",
        "aten::gelu_backward": "norms, GELU",
        "aten::_softmax": "norms, GELU",
        "aten::index_add_": "moving rows",
        "aten::sort": "sorting",
        "aten::add_": "sums",
        "aten::view": "glue",
        "aten::mkldnn_convolution": "stem",
    }
    assert {name: profile_rows.kind_of(name) for name in kinds} == kinds


def test_the_profile_in_the_page_is_the_kept_one():
    document = json.loads((KEPT.parent / "profile_rows.json").read_text(encoding="utf-8"))
    text = PAGE.read_text(encoding="utf-8")
    assert profile_rows.page_with(text, document) == text, "python -m benchmarks.bench --show --write-docs"


def test_what_was_kept_keeps_its_date(monkeypatch, tmp_path):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    first = {"forward": {"small": {"median": 1.0}, "big": {"median": 2.0}}, "training": {"big": {"median": 3.0}}}
    report = measure.report("speed", "command", first, quiet=True)
    assert set(report["dates"]["forward"]) == {"small", "big"}
    older = json.loads((tmp_path / "speed.json").read_text())
    for key in ("forward", "training"):
        older["dates"][key] = dict.fromkeys(older["dates"][key], "2026-01-01")
    (tmp_path / "speed.json").write_text(json.dumps(older))
    second = {**first, "forward": {"small": {"median": 1.0}, "big": {"median": 2.5}}}
    report = measure.report("speed", "command", second, quiet=True)
    assert measure.days(report["dates"]["training"]) == "2026-01-01"
    assert report["dates"]["forward"] == {"small": "2026-01-01", "big": report["date"]}
    assert measure.days(report["dates"]["forward"]) == f"2026-01-01 to {report['date']}"
    elsewhere = {**older, "machines": {"forward": "a laptop", "training": "a laptop"}}
    (tmp_path / "speed.json").write_text(json.dumps(elsewhere))
    kept = measure.report("speed", "command", second, quiet=True)["machines"]
    assert kept == {"forward": {"small": "a laptop", "big": measure.machine()}, "training": {"big": "a laptop"}}
    assert measure.machines(kept) == f"a laptop; {measure.machine()}"
    del older["dates"]  # as kept by an older version
    (tmp_path / "speed.json").write_text(json.dumps({**older, "date": "2025-05-05"}))
    report = measure.report("speed", "command", second, quiet=True)
    assert report["dates"]["forward"] == {"small": "2025-05-05", "big": report["date"]}
