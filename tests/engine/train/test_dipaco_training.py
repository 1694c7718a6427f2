"""DiPaCo training: outer steps by hand, plain training as a special case, killed workers, resuming, refusals."""

from __future__ import annotations

import multiprocessing
import os
import signal

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.checkpoint import read_checkpoint
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_path import new_path
from tokenpaths.engine.models.dipaco_router import nearest
from tokenpaths.engine.train.cards import note
from tokenpaths.engine.train.dipaco.dipaco_recipe import RECIPES, DiPaCoRecipe, learning_rate
from tokenpaths.engine.train.dipaco.documents import (
    Sequences,
    after_prefix,
    check_shards,
    document_features,
    make_sequences,
    path_scores,
    shard_batch,
    split_documents,
)
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
    WorkerPool,
    global_file,
    make_inner_optimizer,
    save_sequences,
)
from tokenpaths.engine.train.dipaco.train_dipaco import best_path, branch, open_run, outer_step, path_weights, train
from tokenpaths.engine.train.loop import TrainingDiverged

CPU = torch.device("cpu")
SMALL = dict(width=16, heads=2, mlp_width=32, levels=(2, 2), blocks=(1, 1), prefix=4, vocab_size=40, context=12)


def config(**changes) -> DiPaCoConfig:
    return DiPaCoConfig(**(SMALL | changes))


def recipe(model: DiPaCoConfig | None = None, **changes) -> DiPaCoRecipe:
    options = dict(
        name="t",
        model=model or config(),
        inner_iterations=3,
        outer_steps=2,
        batch_size=4,
        learning_rate=3e-3,
        warmup=2,
        router_share=0.1,
        stop_share=0.1,
        bfloat16=False,
    )
    return DiPaCoRecipe(**(options | changes))


def documents(count=60, seed=0) -> tuple[list[np.ndarray], list[str]]:
    """Two kinds of documents with words of their own; some are longer than the context."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(2, size=count)
    texts = [rng.integers(1 + 19 * k, 20 + 19 * k, size=rng.integers(6, 30)) for k in kinds]
    return texts, ["low" if k == 0 else "high" for k in kinds]


@pytest.fixture
def sequences() -> Sequences:
    return make_sequences(*documents(), config(), end_id=39)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(run) -> torch.Tensor:
    return torch.cat([t.flatten() for t in run.model.state_dict().values()])


# Documents


def test_sequences_hold_every_token_of_a_document_once_as_a_target():
    texts = [np.arange(1, 31), np.arange(5, 12)]
    made = make_sequences(texts, ["a", "b"], config(), end_id=39)
    # 30 tokens and the end: inputs 0–11, 12–23, 24–29 with 12, 12 and 6 targets; 7 tokens: one of 7.
    assert made.length.tolist() == [13, 13, 7, 8]
    assert made.document.tolist() == [0, 0, 0, 1]
    inputs, targets = made.batch(torch.tensor([1, 2]))
    assert inputs[0].tolist() == list(range(13, 25))
    assert targets[0].tolist() == list(range(14, 26))
    assert targets[1].tolist() == [26, 27, 28, 29, 30, 39, *[-100] * 6]


def test_a_rest_with_nothing_behind_the_prefix_is_left_out():
    # 12 inputs, then 3 tokens and the end: 4 = prefix, so no target stands behind the prefix.
    made = make_sequences([np.arange(1, 16)], ["a"], config(), end_id=39)
    assert made.length.tolist() == [13]


def test_a_document_shorter_than_the_prefix_is_refused_or_dropped_on_request():
    texts = [np.arange(1, 10), np.arange(1, 4)]
    with pytest.raises(UserError, match="document 1 has 3 tokens.*prefix of 4") as error:
        make_sequences(texts, ["a", "a"], config(), end_id=39)
    assert error.value.field == "prefix"
    assert len(make_sequences(texts, ["a", "a"], config(), end_id=39, on_short="drop")) == 1


def test_no_document_is_in_two_parts_of_the_split(sequences):
    split = split_documents(sequences, 0.2, 0.1, seed=3)
    parts = [set(sequences.document[rows].tolist()) for rows in (split.train, split.router, split.stop)]
    assert all(a is b or not a & b for a in parts for b in parts)
    assert [len(p) for p in parts] == [42, 12, 6]
    assert sum(map(len, (split.train, split.router, split.stop))) == len(sequences)


def test_a_shard_is_read_once_an_epoch(sequences):
    shard = torch.arange(3, 15)
    seen = [shard_batch(sequences, shard, 4, 0, 1, i)[0] for i in range(6)]
    first = sorted(tuple(r[r > 0].tolist()) for b in seen[:3] for r in b)
    again = sorted(tuple(r[r > 0].tolist()) for b in seen[3:] for r in b)
    wanted, _ = sequences.batch(shard)
    assert first == again == sorted(tuple(r[r > 0].tolist()) for r in wanted)


def test_scores_are_the_log_likelihoods_of_a_plain_forward_pass(sequences):
    model = DiPaCo(config()).eval()
    paths = [model.path_model(p) for p in range(4)]
    scores = path_scores(paths, sequences, precise=True)
    inputs, targets = sequences.batch(torch.tensor([2]))
    with torch.no_grad():
        expected = paths[3](inputs).log_softmax(-1)[0]
    for t, goal in enumerate(targets[0].tolist()):
        assert float(scores[2, t, 3]) == pytest.approx(float(expected[t, goal]), abs=1e-5)
    mask = after_prefix(sequences, 4)
    assert int(mask[2].sum()) == int(sequences.length[2]) - 4
    assert not mask[2, :3].any()


# The outer step, by hand


def test_an_outer_nesterov_step_by_hand():
    after, velocity = outer_step(torch.tensor(1.0), torch.tensor(0.5), torch.tensor(0.2), rate=0.7, momentum=0.9)
    # v = 0.9·0.2 + 0.5 = 0.68; θ = 1 − 0.7·(0.5 + 0.9·0.68) = 0.2216
    assert float(velocity) == pytest.approx(0.68)
    assert float(after) == pytest.approx(0.2216)


def test_outer_steps_are_those_of_torchs_nesterov():
    torch.manual_seed(0)
    theirs = torch.nn.Parameter(torch.randn(5))
    mine, velocity = theirs.detach().clone(), torch.zeros(5)
    optimizer = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True)
    for _ in range(4):
        theirs.grad = torch.randn(5)
        mine, velocity = outer_step(mine, theirs.grad, velocity, 0.7, 0.9)
        optimizer.step()
    assert torch.allclose(mine, theirs.detach(), atol=1e-6)


def test_paths_are_weighed_by_their_shards_and_scaled_by_the_root_of_their_number():
    sizes = [30, 10, 0, 60]
    # Documents 30 : 10 : 60, times √3.
    found = path_weights(sizes, [0, 1, 3], recipe())
    assert [found[p] for p in (0, 1, 3)] == pytest.approx([0.3 * 3**0.5, 0.1 * 3**0.5, 0.6 * 3**0.5])
    assert path_weights(sizes, [1, 3], recipe(weigh_shards=False, rescale=False)) == {1: 0.5, 3: 0.5}
    assert path_weights(sizes, [3], recipe()) == {3: 1.0}


def test_modules_move_by_the_mean_change_of_the_paths_through_them(sequences, tmp_path):
    """Every parameter against a plain loop over the files that the paths left."""
    made = config(path_blocks=(2,), blocks=(1, 2))
    started = open_run(recipe(made), sequences, split_documents(sequences, 0.1, 0.1, 0), tmp_path, None, CPU)
    before = {k: v.clone() for k, v in started.model.state_dict().items()}
    run = train(recipe(made), sequences, tmp_path, until=1)
    after = dict(run.model.named_parameters())
    files = [load_file(tmp_path / f"path-{p:03d}-0000.safetensors") for p in range(4)]

    def change(name, mine, paths):
        share = torch.tensor([run.sizes[p] for p in paths], dtype=torch.float32)
        moved = [before[name] - files[p][f"after.{mine}"] for p in paths]
        return sum(d * s / share.sum() for d, s in zip(moved, share, strict=True)) * len(paths) ** 0.5

    for name, mine, paths in (
        ("ends.0.head.weight", "ends.head.weight", [0, 1, 2, 3]),
        ("levels.0.1.0.mlp.up.weight", "blocks.0.mlp.up.weight", [2, 3]),
        ("levels.1.0.0.attention.qkv.weight", "blocks.1.attention.qkv.weight", [0, 2]),
        ("own.3.0.mlp.down.weight", "blocks.2.mlp.down.weight", [3]),
    ):
        delta = change(name, mine, paths)
        assert float(delta.abs().max()) > 0
        expected = before[name] - 0.7 * (delta + 0.9 * delta)
        assert torch.allclose(after[name], expected, atol=1e-6), name
        assert torch.allclose(run.velocity[name], delta, atol=1e-6)


def test_one_path_with_outer_rate_1_and_no_momentum_is_plain_training(sequences, tmp_path):
    made = config(levels=(1,), blocks=(2,))
    plan = recipe(made, outer_rate=1.0, outer_momentum=0.0, stop_share=0.0)
    torch.manual_seed(5)
    base = new_path(made)
    run = train(plan, sequences, tmp_path, base=base)

    optimizer = make_inner_optimizer(base, plan)
    shard = split_documents(sequences, 0.1, 0.0, 0).train
    for i in range(6):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(plan, i)
        loss = base.training_loss(*shard_batch(sequences, shard, 4, 0, 0, i))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(base.parameters(), 1.0)
        optimizer.step()
    for name, parameter in run.model.path_model(0).named_parameters():
        assert torch.allclose(parameter, dict(base.named_parameters())[name], atol=1e-5), name


def test_learning_the_prefix_can_be_left_out(sequences, tmp_path, monkeypatch):
    seen = []
    from tokenpaths.engine.models.dipaco_path import PathModel

    original = PathModel.training_loss
    monkeypatch.setattr(
        PathModel, "training_loss", lambda self, ids, goal: seen.append(goal) or original(self, ids, goal)
    )
    train(recipe(outer_steps=1, learn_prefix=False), sequences, tmp_path / "a")
    assert all(bool((t[:, :3] == -100).all()) and bool((t[:, 3] >= 0).all()) for t in seen)
    seen.clear()
    train(recipe(outer_steps=1), sequences, tmp_path / "b")
    assert all(bool((t[:, :4] >= 0).all()) for t in seen)


def test_learning_rates_rise_then_fall_to_the_last():
    plan = recipe(inner_iterations=10, outer_steps=10, warmup=5)
    rates = [learning_rate(plan, i) for i in range(101)]
    assert rates[4] == rates[5] == plan.learning_rate
    assert rates[100] == pytest.approx(plan.final_rate)
    assert all(a >= b for a, b in zip(rates[5:], rates[6:], strict=False))
    constant = recipe(schedule="constant", warmup=0)
    assert {learning_rate(constant, i) for i in range(6)} == {constant.learning_rate}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_says_what_it_is(name):
    plan = RECIPES[name]
    assert DiPaCoRecipe.model_validate_json(plan.model_dump_json()) == plan
    assert plan.model.num_blocks == 4
    # All see the same documents set aside, none of which the base has learnt.
    assert plan.seed == RECIPES["base"].seed
    assert plan.router_share + plan.stop_share <= RECIPES["base"].router_share + RECIPES["base"].stop_share


# Whole runs


def test_training_learns_and_says_how_far_it_is(sequences, tmp_path):
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


def test_an_interrupted_run_resumed_equals_an_uninterrupted_one_bit_for_bit(sequences, tmp_path):
    whole = train(recipe(outer_steps=3), sequences, tmp_path / "whole")

    class Stop(Exception):
        pass

    def interrupt(progress):
        if progress.iteration == 17:  # outer step 2, its second path
            raise Stop

    with pytest.raises(Stop):
        train(recipe(outer_steps=3), sequences, tmp_path / "parts", on_progress=interrupt)
    assert global_file(tmp_path / "parts", 1).exists()
    assert (tmp_path / "parts" / "path-000-0001.safetensors").exists()
    heard = []
    resumed = train(recipe(outer_steps=3), sequences, tmp_path / "parts", on_progress=heard.append)
    assert heard[0].iteration == 16  # 12 of the first outer step, 3 of the finished path, this one
    assert torch.equal(weights(whole), weights(resumed))
    assert resumed.outer == 3


def test_a_pool_with_a_killed_worker_gives_the_numbers_of_one_process(sequences, tmp_path):
    alone = train(recipe(), sequences, tmp_path / "alone")
    killed = []

    def kill(progress):
        if progress.iteration == 5 and not killed:
            killed.append(multiprocessing.active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    pooled = train(recipe(), sequences, tmp_path / "pool", workers=2, threads=1, on_progress=kill)
    assert killed
    assert torch.equal(weights(alone), weights(pooled))
    assert not list((tmp_path / "pool").glob(".*.tmp"))
    assert [e["train_loss"] for e in alone.history] == [e["train_loss"] for e in pooled.history]
    assert not multiprocessing.active_children()


def test_a_task_that_keeps_killing_its_workers_ends_training(sequences, tmp_path):
    plan = recipe()
    open_run(plan, sequences, split_documents(sequences, 0.1, 0.1, 0), tmp_path, None, CPU)
    save_sequences(tmp_path, sequences)
    deaths = []

    def kill(task, loss):
        deaths.append(task)
        os.kill(pool.members[0].process.pid, signal.SIGKILL)

    with WorkerPool(plan, tmp_path, 1, 1, "cpu") as pool, pytest.raises(UserError, match=f"cost {DEATHS} workers"):
        pool.run([PathTask(0, 0)], 0, kill)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", [0, 1])
def test_nan_stops_with_the_iteration_and_the_last_good_state_kept(sequences, tmp_path, workers):
    run = train(recipe(), sequences, tmp_path, until=1)
    good = weights(run)
    # The moments of path 2 go bad: its next update is NaN, the loss after it too.
    file = tmp_path / "path-002-0000.safetensors"
    from safetensors.torch import save_file

    tensors = load_file(file)
    tensors["m1.blocks.0.mlp.up.weight"][0, 0] = float("nan")
    save_file(tensors, file)
    with pytest.raises(TrainingDiverged, match=r"path 2 became nan at iteration 4; .*outer step 1.*learning_rate"):
        train(recipe(), sequences, tmp_path, workers=workers)
    kept = load_file(global_file(tmp_path, 1))
    assert all(torch.isfinite(t).all() for t in kept.values())
    again = open_run(recipe(), sequences, split_documents(sequences, 0.1, 0.1, 0), tmp_path, None, CPU)
    assert torch.equal(weights(again), good)


def test_overlapping_shards_hold_each_sequence_twice(sequences, tmp_path):
    run = train(recipe(overlap=2, outer_steps=1), sequences, tmp_path)
    rows = split_documents(sequences, 0.1, 0.1, 0).train
    assert sum(run.sizes) == 2 * len(rows)
    shards = load_file(tmp_path / "shards-0000.safetensors")
    assert bool((shards["paths"][:, 0] != shards["paths"][:, 1]).all())


def test_resharding_follows_the_paths_and_a_branch_equals_a_run_of_its_own(sequences, tmp_path):
    disc = recipe(config(router="discriminative"), name="d", outer_steps=3, reshard_at=1, router_share=0.3)
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


def test_paths_stop_early_keep_their_best_and_leave_shared_modules_to_the_others(sequences, tmp_path):
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


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(overlap=5), "overlap 5 is larger than the 4 paths"),
        (dict(reshard_at=1), "reshard_at 1 and router 'kmeans'"),
        (dict(model=config(router="discriminative")), "reshard_at None and router 'discriminative'"),
        (dict(model=config(router="discriminative"), reshard_at=2), "not before outer_steps 2"),
        (dict(patience=1, stop_share=0.0), "stop_share above 0"),
        (dict(outer_momentum=1.0), "outer_momentum"),
        (dict(surprise=1), "surprise"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_in_words(changes, words):
    with pytest.raises(ValidationError, match=words):
        recipe(**changes)


def test_more_paths_than_documents_are_refused(tmp_path):
    few = make_sequences(*documents(4), config(), end_id=39)
    few = few.select(torch.arange(4))
    with pytest.raises(UserError, match=r"\(4, 4\) make 16 paths, but there are only [0-9]+ documents") as error:
        train(recipe(config(levels=(4, 4))), few, tmp_path)
    assert error.value.field == "levels"


def test_a_discriminative_router_without_documents_to_learn_from_is_refused(sequences, tmp_path):
    plan = recipe(config(router="discriminative"), reshard_at=1, router_share=0.001)
    with pytest.raises(UserError, match="router_share 0.001 sets 0 documents apart.* as there are paths, 4") as error:
        train(plan, sequences, tmp_path)
    assert error.value.field == "router_share"


def test_a_path_that_is_nobodys_best_keeps_documents(sequences, tmp_path, monkeypatch):
    """Path 1 is best for no document: without a small share of its own it would end training half way."""
    from tokenpaths.engine.train.dipaco import train_dipaco

    def one_is_worst(paths, own, **options):
        scores = path_scores(paths, own, **options)
        scores[..., 1] -= 10
        return scores

    monkeypatch.setattr(train_dipaco, "path_scores", one_is_worst)
    plan = recipe(config(router="discriminative"), reshard_at=1, router_share=0.4, outer_steps=2, stop_share=0.0)
    run = train(plan, sequences, tmp_path)
    assert run.resharded
    assert min(run.sizes) >= 1


def test_paths_that_all_stop_are_sharded_again_before_the_end(sequences, tmp_path):
    plan = recipe(
        config(router="discriminative"),
        reshard_at=5,
        router_share=0.3,
        outer_steps=6,
        learning_rate=0.5,
        clip=1e9,
        patience=1,
        stop_share=0.3,
        inner_iterations=4,
    )
    run = train(plan, sequences, tmp_path)
    assert run.resharded
    assert run.shards < 5
    left = {file.name for file in tmp_path.glob("best-*.safetensors")}
    assert left <= {f"best-{p:03d}.safetensors" for p in range(4) if run.best_loss[p] is not None}


def test_a_base_with_nan_is_refused(sequences, tmp_path):

    base = new_path(config())
    base.ends.head.weight.data[0, 0] = float("nan")
    with pytest.raises(UserError, match="of the base holds NaN") as error:
        train(recipe(), sequences, tmp_path, base=base)
    assert error.value.field == "base"


def test_sequences_of_few_documents_are_not_enough_paths(tmp_path):
    rng = np.random.default_rng(0)
    long = [rng.integers(1, 39, size=300) for _ in range(3)]
    few = make_sequences(long, ["a"] * 3, config(), end_id=39)
    assert len(few) > 20
    with pytest.raises(UserError, match="there are only [0-3] documents"):
        train(recipe(router_share=0.01, stop_share=0.0), few, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", float("nan")), ("outer_rate", float("inf")), ("clip", 0), ("betas", (2, 0))]
)
def test_numbers_that_cannot_train_are_refused(name, value):
    with pytest.raises(ValidationError, match=name):
        recipe(**{name: value})


def test_an_empty_shard_is_refused():
    paths = torch.tensor([[0], [1], [3], [3]])
    with pytest.raises(UserError, match=r"path 2 \(modules \[1, 0\]\) is empty") as error:
        check_shards(paths, config())
    assert error.value.field == "router"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (dict(width=32), "width"),
        (dict(vocab_size=41), "vocab_size"),
        (dict(blocks=(1, 2)), "blocks"),
        (dict(context=13), "context"),
        (dict(mlp_width=48), "mlp_width"),
    ],
)
def test_a_base_of_another_shape_is_refused_by_field(sequences, tmp_path, changes, field):
    with pytest.raises(UserError, match="must be equal") as error:
        train(recipe(), sequences, tmp_path, base=new_path(config(**changes)))
    assert error.value.field == field


def test_a_folder_of_other_settings_is_not_overwritten(sequences, tmp_path):
    train(recipe(outer_steps=1), sequences, tmp_path)
    with pytest.raises(UserError, match="other settings") as error:
        train(recipe(outer_steps=2), sequences, tmp_path)
    assert error.value.field == "out"


# What ships


def test_numbers_behind_the_prefix_are_those_of_each_sequence_on_its_path(sequences):
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


def test_the_rerouter_is_taught_by_what_the_paths_score(sequences):
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


def test_an_exported_model_reads_back_with_its_router_card_and_numbers(sequences, tmp_path):
    texts = [" ".join(["path", "router", "module", "token"][i % 4 : i % 4 + 2]) for i in range(20)]
    tokenizer = TextTokenizer.train(texts, 280)
    made = config(vocab_size=tokenizer.vocab_size, rerouter=True, router="discriminative")
    plan = recipe(made, reshard_at=1, router_share=0.3)
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
