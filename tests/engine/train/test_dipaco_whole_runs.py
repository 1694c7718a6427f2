"""Training of DiPaCo from its start to what ships: interrupted, killed, sharded again, exported."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.engine.train.test_dipaco_training import CPU, config, one_thread, recipe, sequences, weights  # noqa: F401 (fixtures)
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_router import nearest
from tokenpaths.engine.train import resuming
from tokenpaths.engine.train.cards import note
from tokenpaths.engine.train.dipaco.dipaco_run import STATE, branch
from tokenpaths.engine.train.dipaco.documents import document_features, path_scores, split_documents
from tokenpaths.engine.train.dipaco.finish_dipaco import (
    document_paths,
    export,
    findings,
    routed_numbers,
    train_rerouter,
)
from tokenpaths.engine.train.dipaco.path_report import score_all_paths
from tokenpaths.engine.train.dipaco.path_workers import (
    DEATHS,
    PathTask,
    PathWorker,
    WorkerPool,
    global_file,
    save_sequences,
)
from tokenpaths.engine.train.dipaco.train_dipaco import Resources, best_path, open_run, stop_losses, train
from tokenpaths.engine.train.loop import TrainingDiverged


def test_training_learns_and_says_how_far_it_is(sequences, tmp_path):  # noqa: F811
    heard = []
    plan = recipe(inner_iterations=15, outer_steps=4, learning_rate=1e-2)
    run = train(plan, sequences, tmp_path, on_progress=heard.append)
    losses = [sum(entry["train_loss"]) / 4 for entry in run.history]
    assert losses[-1] < losses[0] - 0.3
    assert [p.iteration for p in heard] == list(range(1, 241))
    assert heard[-1].iterations == 240
    assert heard[-1].seconds_left == 0
    assert heard[100].rate_per_s > 0
    assert sum(run.sizes) == len(split_documents(sequences, 0.1, 0.1, 0).train)


def test_an_interrupted_run_resumed_equals_an_uninterrupted_one_bit_for_bit(sequences, tmp_path):  # noqa: F811
    whole = train(recipe(outer_steps=3), sequences, tmp_path / "whole")

    class Stop(Exception):
        pass

    def interrupt(progress):
        if progress.iteration == 17:  # outer step 2, its second path
            raise Stop

    with pytest.raises(Stop):
        train(recipe(outer_steps=3), sequences, tmp_path / "parts", on_progress=interrupt)
    assert global_file(tmp_path / "parts", 1).exists()
    assert (tmp_path / "parts" / "path-000-00-0001.safetensors").exists()
    heard = []
    resumed = train(recipe(outer_steps=3), sequences, tmp_path / "parts", on_progress=heard.append)
    assert heard[0].iteration == 16  # 12 of the first outer step, 3 of the finished path, this one
    assert torch.equal(weights(whole), weights(resumed))
    assert resumed.outer == 3


def test_a_pool_with_a_killed_worker_gives_the_numbers_of_one_process(sequences, tmp_path):  # noqa: F811
    alone = train(recipe(), sequences, tmp_path / "alone")
    killed = []

    def kill(progress):
        if progress.iteration == 5 and not killed:
            killed.append(multiprocessing.active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    pooled = train(recipe(), sequences, tmp_path / "pool", resources=Resources(2, threads=1), on_progress=kill)
    assert killed
    assert torch.equal(weights(alone), weights(pooled))
    assert not list((tmp_path / "pool").glob(".*.tmp"))
    assert [e["train_loss"] for e in alone.history] == [e["train_loss"] for e in pooled.history]
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("gains", [True, False])
def test_workers_take_the_precision_of_the_run(sequences, tmp_path, monkeypatch, gains):  # noqa: F811
    """Whatever their own clocks say, and whatever this one says when the run goes on."""
    plan = recipe(bfloat16=True)
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: gains)
    alone = train(plan, sequences, tmp_path / "alone")
    assert alone.bfloat16 is gains
    train(plan, sequences, tmp_path / "pool", resources=Resources(1, threads=1), until=1)
    monkeypatch.setattr(resuming, "gains_by_bfloat16", lambda device: not gains)
    pooled = train(plan, sequences, tmp_path / "pool", resources=Resources(1, threads=1))
    assert torch.equal(weights(alone), weights(pooled))
    assert [e["stop_loss"] for e in alone.history] == [e["stop_loss"] for e in pooled.history]
    state = tmp_path / "pool" / STATE
    about = json.loads(state.read_text())
    del about["bfloat16"]
    state.write_text(json.dumps(about))
    assert train(plan, sequences, tmp_path / "pool").bfloat16 is not gains, "a state that does not say asks the clock"


def test_a_task_that_keeps_killing_its_workers_ends_training(sequences, tmp_path):  # noqa: F811
    plan = recipe()
    open_run(plan, sequences, split_documents(sequences, 0.1, 0.1, 0), tmp_path, None, CPU)
    save_sequences(tmp_path, sequences)
    deaths = []

    def kill(task, loss):
        deaths.append(task)
        os.kill(pool.members[0].process.pid, signal.SIGKILL)

    with (
        WorkerPool(plan, tmp_path, 1, 1, "cpu", bfloat16=False) as pool,
        pytest.raises(UserError, match=f"cost {DEATHS} workers"),
    ):
        pool.run([PathTask(0, 0)], 0, kill)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 1])
def test_nan_stops_with_the_iteration_and_the_last_good_state_kept(sequences, tmp_path, workers):  # noqa: F811
    run = train(recipe(), sequences, tmp_path, until=1)
    good = weights(run)
    # The moments of path 2 go bad: its next update is NaN, the loss after it too.
    file = tmp_path / "path-002-00-0000.safetensors"
    from safetensors.torch import save_file

    tensors = load_file(file)
    tensors["m1.blocks.0.mlp.up.weight"][0, 0] = float("nan")
    save_file(tensors, file)
    with pytest.raises(TrainingDiverged, match=r"path 2 became nan at iteration 4; .*outer step 1.*learning_rate"):
        train(recipe(), sequences, tmp_path, resources=Resources(workers))
    kept = load_file(global_file(tmp_path, 1))
    assert all(torch.isfinite(t).all() for t in kept.values())
    again = open_run(recipe(), sequences, split_documents(sequences, 0.1, 0.1, 0), tmp_path, None, CPU)
    assert torch.equal(weights(again), good)


def test_overlapping_shards_hold_each_sequence_twice(sequences, tmp_path):  # noqa: F811
    run = train(recipe(overlap=2, outer_steps=1), sequences, tmp_path)
    rows = split_documents(sequences, 0.1, 0.1, 0).train
    assert sum(run.sizes) == 2 * len(rows)
    shards = load_file(tmp_path / "shards-0000.safetensors")
    assert bool((shards["paths"][:, 0] != shards["paths"][:, 1]).all())


def test_resharding_follows_the_paths_and_a_branch_equals_a_run_of_its_own(sequences, tmp_path):  # noqa: F811
    disc = recipe(config(router="discriminative"), name="d", outer_steps=3, reshard_at=(1,), router_share=0.3)
    kmeans = recipe(name="k", outer_steps=3, router_share=0.3)
    whole = train(disc, sequences, tmp_path / "whole")
    assert whole.shards == 1
    train(kmeans, sequences, tmp_path / "k", until=1)
    branch(tmp_path / "k", tmp_path / "d", disc)
    branched = train(disc, sequences, tmp_path / "d")
    assert torch.equal(weights(whole), weights(branched))

    train(kmeans, sequences, tmp_path / "k", until=2)
    with pytest.raises(UserError, match="branch earlier"):
        branch(tmp_path / "k", tmp_path / "late", disc)
    with pytest.raises(UserError, match="is not k with"):
        branch(tmp_path / "k", tmp_path / "other", disc.model_copy(update={"batch_size": 5}))


def test_sharding_again_twice_is_two_phases(sequences, tmp_path):  # noqa: F811
    plan = recipe(config(router="discriminative"), outer_steps=4, reshard_at=(1, 3), router_share=0.3)
    train(plan, sequences, tmp_path, until=2)
    run = train(plan, sequences, tmp_path, until=3)
    assert (run.resharded, run.shards) == (1, 1)
    run = train(plan, sequences, tmp_path)
    assert (run.resharded, run.shards) == (2, 3)


def test_replicas_of_one_path_share_its_documents_and_move_it_by_their_mean(sequences, tmp_path):  # noqa: F811
    """DiLoCo: after one plain outer step the path is the mean of its workers, which saw each document once."""
    made = config(levels=(1,), blocks=(2,))
    plan = recipe(made, replicas=3, outer_steps=1, outer_rate=1.0, outer_momentum=0.0)
    run = train(plan, sequences, tmp_path)
    files = sorted(tmp_path.glob("path-000-*-0000.safetensors"))
    assert len(files) == 3
    after = [load_file(file)["after.ends.positions"] for file in files]
    assert not torch.equal(after[0], after[1])
    assert torch.allclose(run.model.path_model(0).ends.positions, sum(after) / 3, atol=1e-6)
    worker = PathWorker(plan, sequences, tmp_path, CPU, bfloat16=False)
    parts = torch.cat([worker.shard(PathTask(0, 0, replica), 0) for replica in range(3)])
    assert sorted(parts.tolist()) == sorted(split_documents(sequences, 0.1, 0.1, 0).train.tolist())


def test_paths_stop_early_keep_their_best_and_leave_shared_modules_to_the_others(sequences, tmp_path):  # noqa: F811
    # A huge rate makes every outer step worse than the one before.
    plan = recipe(outer_steps=5, learning_rate=0.5, clip=1e9, patience=1, stop_share=0.3, inner_iterations=4)
    run = train(plan, sequences, tmp_path)
    assert any(run.stopped)
    own = sequences.select(split_documents(sequences, 0.1, 0.3, 0).stop)
    paths = nearest(run.model.router.scores(document_features(run.model.router, own)))[:, 0]
    for p in range(4):
        part = own.select((paths == p).nonzero().squeeze(1))
        if not len(part):
            continue
        scores = path_scores([best_path(run, p)], part)[:, 3:, 0]
        loss = float(-scores.sum() / (part.length - 4).sum())
        assert loss == pytest.approx(run.best_loss[p], abs=1e-3)
        heard = [entry["stop_loss"][p] for entry in run.history[: run.best_outer[p]]]
        assert run.best_loss[p] == pytest.approx(min(heard), abs=1e-3)


def test_what_is_set_aside_is_the_same_after_every_sharding(sequences, tmp_path):  # noqa: F811
    split = split_documents(sequences, 0.1, 0.4, 0)
    run = open_run(recipe(stop_share=0.4), sequences, split, tmp_path, None, CPU)
    for path in range(4):  # equal paths: how documents are shared out must not change the loss of all
        for own in run.model.path_model(path).parameters():
            own.fill_(0.01)
    means = []
    for only in (None, 0, 3):
        if only is not None:
            run.model.router.weight.zero_()
            run.model.router.bias.copy_(torch.nn.functional.one_hot(torch.tensor(only), 4).float())
        losses, counts = stop_losses(run, sequences, split, most=3)
        assert [loss is None for loss in losses] == [count == 0 for count in counts]
        means.append((sum(loss * n for loss, n in zip(losses, counts, strict=True) if n) / sum(counts), sum(counts)))
    assert means[1] == means[2]
    assert means[0] == (pytest.approx(means[1][0], abs=1e-5), means[1][1])
    chosen = split.stop[torch.linspace(0, len(split.stop) - 1, 12).long()]
    assert means[0][1] == int((sequences.length[chosen] - 4).sum())


def test_numbers_behind_the_prefix_are_those_of_each_sequence_on_its_path(sequences):  # noqa: F811
    model = DiPaCo(config()).eval()
    paths = document_paths(model, sequences)
    numbers = routed_numbers([model.path_model(p) for p in range(4)], paths, sequences, 4)
    total = right = count = 0.0
    for row in range(len(sequences)):
        inputs, targets = sequences.batch(torch.tensor([row]))
        with torch.no_grad():
            output = model(inputs)
        assert int(paths[row]) == int(output.paths[0, 0])
        logits, goal = output.logits[0, 3:], targets[0, 3:]
        total += float(torch.nn.functional.cross_entropy(logits, goal, reduction="sum"))
        right += float((logits.argmax(-1) == goal).sum())
        count += len(goal)
    assert numbers["loss"] == pytest.approx(total / count, abs=1e-4)
    assert numbers["perplexity"] == pytest.approx(np.exp(total / count), rel=1e-4)
    assert (numbers["accuracy"], numbers["count"]) == (pytest.approx(right / count), count)


def test_the_rerouter_is_taught_by_what_the_paths_score(sequences):  # noqa: F811
    """Paths that each like one kind of token: the best continuation is told by the kind of document."""
    torch.manual_seed(0)
    model = DiPaCo(config(levels=(2,), blocks=(1,), own_ends=True, rerouter=True))
    torch.nn.init.normal_(model.router.base.embed.weight)
    with torch.no_grad():
        for path, liked in ((0, slice(1, 20)), (1, slice(20, 39))):
            model.ends[path].norm.weight.zero_()
            model.ends[path].norm.weight[0] = 1
            model.ends[path].embed.weight[:, 0] = 50  # the first coordinate is always the largest
            model.ends[path].head.weight.zero_()
            model.ends[path].head.weight[liked, 0] = 1
    learnt = train_rerouter(model, sequences, horizon=None, iterations=60, batch_size=8, learning_rate=1e-2)
    assert learnt["accuracy"] > 0.9 > learnt["most_frequent"]
    inputs, _ = sequences.batch(torch.arange(len(sequences)))
    named = model.router.running_scores(inputs)[:, 3].argmax(dim=-1)
    assert float((named == 1 - sequences.label).float().mean()) > 0.95  # labels: high, low


def test_an_exported_model_reads_back_with_its_router_card_and_numbers(sequences, tmp_path):  # noqa: F811
    texts = [" ".join(["path", "router", "module", "token"][i % 4 : i % 4 + 2]) for i in range(20)]
    tokenizer = TextTokenizer.train(texts, 280)
    made = config(vocab_size=tokenizer.vocab_size, rerouter=True, router="discriminative")
    plan = recipe(made, reshard_at=(1,), router_share=0.3)
    run = train(plan, sequences, tmp_path / "work")
    out = tmp_path / "small"
    model = export(run, out, tokenizer, "python -m benchmarks.dipaco", run)
    for name in DiPaCo.KEEP_FLOAT32:
        assert torch.equal(model.state_dict()[name], run.model.state_dict()[name])
    numbers = routed_numbers([model.path_model(p) for p in range(4)], document_paths(model, sequences), sequences, 4)
    note(out, numbers | findings(score_all_paths(model, sequences), model, sequences))
    note(out, {"beside": {"dense path": numbers}})
    checkpoint = read_checkpoint(out)
    assert checkpoint.config == made
    kept = checkpoint.validation
    assert [row["every"] for row in kept["rerouting"]] == [None, 64, 32, 16]
    assert kept["rerouting"][0]["perplexity"] == pytest.approx(numbers["perplexity"], rel=1e-3)
    assert sum(kept["shards"]["sizes"]) == len(sequences)
    card = (out / "card.md").read_text(encoding="utf-8")
    assert "A 2×2 DiPaCo" in card
    assert f"| small | {numbers['loss']:.3f} | {numbers['perplexity']:.1f} |" in card
    assert "| dense path |" in card
    assert "discriminative router" in card
    assert "base path included" in card, "nobody taught its re-router"
    last = run.history[-1]
    rows = [(loss, count) for loss, count in zip(last["stop_loss"], last["stop_count"], strict=True) if count]
    aside = sum(loss * count for loss, count in rows) / sum(count for _, count in rows)
    assert "| outer step | training loss, mean over paths | loss set aside |" in card
    assert f"| 2 | {sum(last['train_loss']) / 4:.3f} | {aside:.3f} |" in card
    assert len({sum(row["stop_count"]) for row in run.history}) == 1
    # A history of before, whose groups of documents are not known.
    about = json.loads((out / "config.json").read_text(encoding="utf-8"))
    for row in about["training"]["history"]:
        del row["stop_count"]
    (out / "config.json").write_text(json.dumps(about), encoding="utf-8")
    note(out, {"rerouter": {"accuracy": 0.5}})
    card = (out / "card.md").read_text(encoding="utf-8")
    assert "loss set aside, mean over paths |" in card
    assert "after outer step 1, where documents were sharded again" in card
    assert "learned re-router included" in card
