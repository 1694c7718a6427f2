"""The job: requests that cannot be met are refused, the folder survives any death, the result repeats."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.checkpoints import save_tiny
from tests.support.pictures import picture
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.normalisation import normalise
from tokenpaths.engine.dream.dream_state import STATE, load_state, save_state
from tokenpaths.engine.dream.pictures import outlined
from tokenpaths.engine.jobs import dream_images
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.registry import JobContext, list_artifacts, read_request
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> JobContext:
    folder = tmp_path_factory.mktemp("dream")
    save_tiny(folder / "models" / "tiny", "vision")
    save_tiny(folder / "models" / "tiny-text", "text")
    loaded = {}

    def load(name: str):
        return loaded.setdefault(name, load_model(name, [folder / "models"], "cpu"))

    (folder / "inbox").mkdir()
    picture(3).save(folder / "inbox" / "mine.png")
    (folder / "inbox" / "folder.png").mkdir()
    (folder / "inbox" / "story.txt").write_text("the path of a")
    samples = [Sample(picture(i), None, None, f"{i}.png") for i in range(3)]
    trace_samples(load("tiny"), samples, folder / "runs", run_id="seen", twin=False)
    return JobContext(folder, (folder / "models",), load)


def ask(context: JobContext, **changes):
    values = {"model": "tiny", "run": "seen", "sample": 1, "target": {"of": "choices"}} | changes
    request = read_request(DreamJob, {k: v for k, v in values.items() if v is not None})
    DreamJob.check(request, context)
    return request


def run(request, folder: Path, context: JobContext):
    job = DreamJob.start(request, folder, context)
    progress = job.advance()
    while not progress.finished:
        progress = job.advance()
    job.close()
    return progress


IMAGE = {"iterations": 70, "rate": 0.05}
GROUP = {"of": "choices", "until": [1, 3], "group": {"patches": [4, 5, 9]}, "context": "both"}


def test_a_dream_that_is_killed_at_any_moment_ends_as_if_it_had_not_been(
    context: JobContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()  # a clock that every look moves on: six or seven iterations a slice, on any machine
    monkeypatch.setattr(dream_images, "time", SimpleNamespace(monotonic=lambda: 0.1 * next(ticks)))
    monkeypatch.setattr(dream_images, "SAVE_SECONDS", 1)  # not after every slice: some work is lost
    request = ask(context, target=GROUP | {"until": [2]}, image=IMAGE, frame_every=64)
    through, killed = tmp_path / "through", tmp_path / "killed"
    through.mkdir(), killed.mkdir()
    progress = run(request, through, context)
    begun, reached = [], [0]
    for slices in (1, 3, 3, 4, 2):  # no close: as after kill -9
        job = DreamJob.start(request, killed, context)
        begun.append(job.work.dreams.iteration)
        for _ in range(slices):
            job.advance()
        reached.append(job.work.dreams.iteration)
    assert begun[0] == 0 < begun[2] < begun[3] < begun[4] < 64  # from states between the start and the first frame
    assert any(at > again for at, again in zip(reached, begun, strict=False))
    assert run(request, killed, context).result == progress.result
    for name in list_artifacts(through):
        assert (through / "artifacts" / name).read_bytes() == (killed / "artifacts" / name).read_bytes(), name
    assert (through / STATE).read_bytes() == (killed / STATE).read_bytes()


def test_a_path_of_other_weights_of_the_same_name_is_refused(context: JobContext, tmp_path: Path) -> None:
    request = ask(context, sample=None, target={"of": "path", "rank": 1}, image={"iterations": 2})
    retrained = replace(context.load_model("tiny"), sha256="0" * 64)
    with pytest.raises(UserError, match=r"made with other weights than those of tiny .* trace it anew"):
        DreamJob.start(request, tmp_path, replace(context, loader=lambda name: retrained))
    DreamJob.start(request, tmp_path, context).close()


def test_what_a_dream_leaves_says_all_that_repeats_it(context: JobContext, tmp_path: Path) -> None:
    request = ask(context, target=GROUP, image=IMAGE, frame_every=64, seed=3)
    progress = run(request, tmp_path, context)
    assert (progress.done, progress.total, progress.unit) == (70, 70, "iterations")
    names = list_artifacts(tmp_path)
    assert {"original.png", "curve.json", "result.json", "frame-000064-0.png", "frame-000070-3.png"} <= set(names)
    result = json.loads((tmp_path / "artifacts" / "result.json").read_text())
    assert read_request(DreamJob, result["request"]) == request
    assert result["checkpoint_sha256"] == context.load_model("tiny").sha256
    items = result["dreams"]
    assert [d["name"] for d in items] == ["S = 1", "S = 1, with its pixels", "S = 3", "S = 3, with its pixels"]
    assert [d["steps"] for d in items] == [[0, 1], [0, 1], [0, 3], [0, 3]]
    assert all(d["group"] == [4, 5, 9] and len(d["top"]) == 3 and 0 <= d["matched_tokens"] <= 1 for d in items)
    assert items[0]["objective"] > items[0]["at_start"]["objective"]
    curve = json.loads((tmp_path / "artifacts" / "curve.json").read_text())
    assert [len(s["x"]) == len(s["y"]) == 70 for s in curve["series"]] == [True] * 4


@pytest.mark.parametrize(
    "target",
    [
        {"of": "choices", "until": [2], "form": "single", "scores": "logits", "group": {"like": 3}},
        {"of": "choices", "until": [3], "group": {"draw": 5}},
        {"of": "path", "rank": 2, "group": {"draw": 4}},
        {"of": "path", "ribbon": [[0, 1], [2, 3], [4, 0]]},
        {"of": "module", "module": 2, "steps": [0, 1]},
        {"of": "class", "index": 1},
    ],
)
def test_every_form_of_an_image_dream_runs(context: JobContext, tmp_path: Path, target: dict) -> None:
    request = ask(context, target=target, image={"iterations": 3}, sample=1 if "group" in target else None)
    (item,) = run(request, tmp_path, context).result["dreams"]
    assert (item["group"] is None) == ("group" not in target)
    assert (item["matched_tokens"] is None) == (target["of"] == "class")
    if target.get("form") == "single":
        (until,) = target["until"]
        assert (item["name"], item["steps"]) == (f"step {until - 1} alone", (until - 1, until))


def test_a_dream_of_a_sample_wants_what_the_run_says_though_its_picture_was_scaled(
    context: JobContext, tmp_path: Path
) -> None:
    """A photo is kept smaller than it was traced: the model's pass over the kept picture chooses otherwise."""
    loaded, rng = context.load_model("tiny"), np.random.default_rng(0)
    photos = [Image.fromarray(rng.integers(0, 256, (91, 91, 3), dtype=np.uint8)) for _ in range(2)]
    file = trace_samples(
        loaded, [Sample(photo, None, None, "photo") for photo in photos], context.runs_dir, run_id="photos", twin=False
    )
    with Run.open(file) as traced:
        ribbons = [[sorted(slots) for slots in token["ribbon"]] for token in traced.sample(1)["tokens"]]
    target = {"of": "choices", "until": [2], "group": {"like": 3}}
    request = ask(context, run="photos", target=target, image={"iterations": 1})
    job = DreamJob.start(request, tmp_path, context)
    (item,) = job.work.items
    assert item.group == tuple(t for t, ribbon in enumerate(ribbons) if ribbon == ribbons[3])
    wanted = item.dream.objective.module_ids.sort(dim=-1).values.tolist()
    assert wanted == ribbons
    with torch.no_grad():
        own = loaded.model.trace(normalise(job.work.original[None])).module_ids[0].sort(dim=-1).values.tolist()
    assert own != ribbons
    job.close()
    # Another run may have this name when the job goes on.
    samples = [Sample(photo, None, None, "photo") for photo in photos[::-1]]
    trace_samples(loaded, samples, context.runs_dir, run_id="photos", twin=False, overwrite=True)
    again = DreamJob.start(request, tmp_path, context)
    assert again.work.items[0].dream.objective.module_ids.sort(dim=-1).values.tolist() == ribbons
    again.close()


def test_originals_come_from_bundled_sets_and_the_inbox(context: JobContext, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    once = {"of": "choices", "until": [1]}
    bundled = ask(context, run=None, sample=None, data="bundled:scenes", row=4, target=once, image={"iterations": 1})
    assert run(bundled, tmp_path, context).result["original"]["image"] == "original.png"
    run(ask(context, run=None, sample=None, inbox="mine.png", target=once, image={"iterations": 1}), other, context)
    with Image.open(other / "original.png") as image:
        assert image.size == (32, 32)


TEXT = {"model": "tiny-text", "run": None, "sample": None, "data": "bundled:texts", "row": 0}


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"target": {"of": "choices", "until": [4]}}, "target.until", "decides 3 times"),
        ({"target": {"of": "choices", "until": [0]}}, "target.until", "give 1 … 3"),
        ({"target": {"of": "choices", "group": {"patches": []}}}, "target.group", "empty"),
        (
            {"target": {"of": "choices", "group": {"patches": [16]}}},
            "target.group",
            "The group names 16, but the patches of the image are numbered 0 to 15",
        ),
        ({"target": {"of": "choices", "group": {"draw": 17}}}, "target.group", "cannot be drawn"),
        ({"target": {"of": "choices", "group": {"like": 1, "draw": 2}}}, "target.group", "one of patches"),
        ({"target": {"of": "choices", "context": "with"}}, "target.context", "nothing is left"),
        ({"image": {"iterations": 10**9}}, "image.iterations", "65536"),
        ({"image": {"rate": float("nan")}}, "image.rate", ""),
        ({"sample": 3}, "sample", "samples of the run are numbered 0 to 2"),
        ({"sample": None}, "sample", "needs the original"),
        ({"data": "bundled:scenes", "row": 1}, "sample", "named twice"),
        ({"run": None, "sample": None, "data": "/etc/passwd", "row": 1}, "data", "bundled set"),
        ({"run": None, "sample": None, "inbox": "folder.png"}, "inbox", "is a folder"),
        (
            {"model": "tiny-text", "run": None, "sample": None, "target": {"of": "class", "index": 0}},
            "target.of",
            "has no classes",
        ),
        ({"run": None, "sample": None, "data": "bundled:scenes"}, "row", "go together"),
        ({"model": "tiny-text"}, "run", "of the model tiny"),
        (
            {
                "model": "tiny-text",
                "run": None,
                "sample": None,
                "data": "bundled:texts",
                "row": 0,
                "target": {"of": "choices", "group": {"draw": 2}, "context": "with"},
            },
            "target.context",
            "reads texts",
        ),
        ({"target": {"of": "path", "rank": 10**6}}, "target.rank", "paths"),
        ({"target": {"of": "path", "ribbon": [[1, 2], [0, 0], [3, 4]]}}, "target.ribbon.1", "0 is named more than"),
        ({"target": {"of": "path", "ribbon": [[0, 1]] * 5000}}, "target.ribbon", "at most 4,096"),
        ({"target": {"of": "path", "ribbon": [list(range(5000))]}}, "target.ribbon.0", "at most 4,096"),
        ({"target": {"of": "choices", "until": [1, 2, 1]}}, "target.until", "1 is named more than once"),
        ({"target": {"of": "choices", "until": list(range(5000))}}, "target.until", "at most 4,096"),
        ({"target": {"of": "choices", "group": {"patches": [3, 3]}}}, "target.group.patches", "3 is named more"),
        (
            {"target": {"of": "choices", "group": {"patches": list(range(5000))}}},
            "target.group.patches",
            "at most 4,096",
        ),
        ({"target": {"of": "module", "module": 0, "steps": [0] * 4000}}, "target.steps", "0 is named more than"),
        ({"target": {"of": "module", "module": 0, "steps": [0] * 300_000}}, "target.steps", "at most 4,096"),
        ({"target": {"of": "path", "ribbon": [[0, 1, 2], [1, 2], [3, 4]]}}, "target.ribbon", "2 different modules"),
        ({"target": {"of": "path", "ribbon": [[0, 1], [2], [3, 4]]}}, "target.ribbon", "2 different modules"),
        ({"target": {"of": "module", "module": 6}}, "target.module", "modules are numbered 0 to 5"),
        ({"target": {"of": "direction", "layer": 0, "head": 0, "direction": 0}}, "target.of", "it can dream of"),
        ({"target": {"of": "class", "index": 3}}, "target.index", "classes are numbered 0 to 2"),
        ({"run": "nowhere"}, "run", "nowhere"),
        ({"model": "nope"}, "model", "no model 'nope'"),
        ({"run": None, "sample": None, "data": "bundled:nope", "row": 1}, "data", "there are bundled:scenes"),
        ({"run": None, "sample": None, "data": "bundled:texts", "row": 1}, "data", "for text models"),
        ({"model": "tiny-text", "run": None, "sample": None, "data": "bundled:photos", "row": 1}, "data", "for vision"),
        (
            {"run": None, "sample": None, "data": "bundled:photos", "row": 10**5},
            "row",
            "Row is 100000, but the rows of bundled:photos are numbered 0 to 119",
        ),
        ({"run": None, "sample": None, "inbox": "story.txt"}, "inbox", "is no image for tiny"),
        ({"model": "tiny-text", "run": None, "sample": None, "inbox": "mine.png"}, "inbox", "a PNG image"),
        ({"target": {"of": "choices", "group": {"draw": 16}, "context": "with"}}, "target.context", "nothing is left"),
        ({"target": {"of": "choices", "first": 2}}, "target.first", "takes images"),
        ({"text": {"iterations": 5}}, "text", "`text` is for dreams of texts, and tiny takes images"),
        (TEXT | {"image": {"iterations": 5}}, "image", "takes texts; leave it out"),
        ({"target": {"of": "module", "module": 0, "steps": [3]}}, "target.steps", "steps are numbered 0 to 2"),
        (TEXT | {"target": {"of": "choices", "until": [1, 2]}}, "target.until", "give one"),
        (TEXT | {"target": {"of": "choices", "first": 10**6}}, "target.first", "tokens of this text are numbered 0 to"),
        (
            TEXT | {"target": {"of": "choices", "group": {"patches": [12]}}},
            "target.group",
            "dreamt are numbered 0 to 11",
        ),
        (
            TEXT | {"target": {"of": "choices", "first": 5, "group": {"like": 4}}},
            "target.group",
            "are numbered 5 to 16",
        ),
        (TEXT | {"target": {"of": "choices", "group": {"draw": 13}}}, "target.group", "cannot be drawn from 12 tokens"),
        (
            {
                "model": "tiny-text",
                "run": None,
                "sample": None,
                "inbox": "story.txt",
                "target": {"of": "choices", "group": {"patches": [9]}},
            },
            "target.group",
            "are numbered 0 to",
        ),
        (
            {
                "model": "tiny-text",
                "run": None,
                "sample": None,
                "target": {"of": "module", "module": 0, "group": {"like": 0}},
                "data": "bundled:texts",
                "row": 0,
            },
            "target.group",
            "by patches",
        ),
        (
            {
                "model": "tiny-text",
                "run": None,
                "sample": None,
                "target": {"of": "module", "module": 0, "group": {"patches": [12]}},
            },
            "target.group",
            "numbered 0 to 11",
        ),
    ],
)
def test_what_cannot_be_dreamed_is_refused_by_name(context: JobContext, changes: dict, field: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as refused:
        ask(context, **changes)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "changes",
    [
        {"config": []},
        {"family": ["dna"]},
        {"config": {"steps": "x"}},
        {"config": {"steps": 3}},
        {"classes": 3},
        {"a": "[" * 50},
    ],
)
def test_a_dream_of_a_model_with_an_odd_configuration_is_refused(
    context: JobContext, tmp_path: Path, changes: dict
) -> None:
    shutil.copytree(context.models_dirs[0] / "tiny", tmp_path / "odd")
    about = json.loads((tmp_path / "odd" / "config.json").read_text()) | changes
    (tmp_path / "odd" / "config.json").write_text(json.dumps(about).replace(f'"{"[" * 50}"', "[" * 50 + "]" * 50))
    with pytest.raises(UserError, match="odd: config.json") as refused:
        ask(
            replace(context, models_dirs=(tmp_path,)),
            model="odd",
            run=None,
            sample=None,
            target={"of": "module", "module": 0},
        )
    assert refused.value.field == "model"


def test_a_state_of_another_request_or_a_broken_one_is_refused(context: JobContext, tmp_path: Path) -> None:
    target = {"of": "choices", "until": [1]}
    run(ask(context, target=target, image={"iterations": 2}), tmp_path, context)
    with pytest.raises(UserError, match="begun with another request"):
        DreamJob.start(ask(context, target=target, image={"iterations": 3}), tmp_path, context)
    (tmp_path / STATE).write_bytes(b"short")
    with pytest.raises(UserError, match="cannot be read"):
        DreamJob.start(ask(context, target=target, image={"iterations": 2}), tmp_path, context)


def test_a_state_from_before_a_field_came_is_gone_on_with(context: JobContext, tmp_path: Path) -> None:
    request = ask(context, target={"of": "choices", "until": [1]}, image={"iterations": 2})
    run(request, tmp_path, context)
    made_for = {"request": json.loads(request.model_dump_json()), "checkpoint": context.load_model("tiny").sha256}
    tensors, about = load_state(tmp_path, made_for)
    del about["request"]["target"]["first"]
    save_state(tmp_path, tensors, about)
    assert DreamJob.start(request, tmp_path, context).work.dreams.iteration == 2
    about["request"]["target"]["scores"] = "logits"
    save_state(tmp_path, tensors, about)
    with pytest.raises(UserError, match="begun with another request"):
        DreamJob.start(request, tmp_path, context)


def test_progress_names_each_dream(context: JobContext, tmp_path: Path) -> None:
    job = DreamJob.start(ask(context, target=GROUP, image=IMAGE), tmp_path, context)
    assert re.fullmatch(
        r"objective S = 1: [\d.]+; S = 1, with its pixels: [\d.]+; S = 3: [\d.]+; S = 3, with its pixels: [\d.]+ "
        r"at iteration \d+",
        job.advance().message,
    )
    job.close()


def test_requests_are_checked_without_torch() -> None:
    modules = "tokenpaths.engine.jobs.dream, tokenpaths.engine.jobs.dream_source"
    code = f"import sys; import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_outline_runs_round_the_group_and_not_through_it() -> None:
    shown = outlined(Image.new("RGB", (8, 8)), [0, 1], (2, 2), times=4)
    red = {(x, y) for x in range(32) for y in range(32) if shown.getpixel((x, y)) == (214, 39, 40)}
    assert {(0, 0), (31, 0), (0, 8), (31, 8)} <= red  # left and right ends, above and below
    assert (15, 8) not in red  # no line between the two patches
    assert all(y <= 16 for _, y in red)
