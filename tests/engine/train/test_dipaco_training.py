"""DiPaCo training: outer steps by hand, plain training as a special case, killed workers, resuming, refusals."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.dipaco import DiPaCo
from tokenpaths.engine.models.dipaco_path import new_path
from tokenpaths.engine.train.dipaco.dipaco_recipe import RECIPES, DiPaCoRecipe, learning_rate
from tokenpaths.engine.train.dipaco.documents import (
    Sequences,
    after_prefix,
    check_shards,
    make_sequences,
    path_scores,
    shard_batch,
    split_documents,
)
from tokenpaths.engine.train.dipaco.path_workers import make_inner_optimizer
from tokenpaths.engine.train.dipaco.train_dipaco import open_run, outer_step, path_weights, train

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
    scores = path_scores(paths, sequences)
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


@pytest.mark.parametrize("name", RECIPES)
def test_what_ships_moves_by_the_plain_mean(name):
    """Four paths that agree on a change move what they share by that change, not by twice as much."""
    plan = RECIPES[name]
    assert sum(path_weights([5, 5, 5, 5], [0, 1, 2, 3], plan).values()) == pytest.approx(1.0)
    assert (plan.outer_rate, plan.outer_momentum) == (1.0, 0.0)


def test_modules_move_by_the_mean_change_of_the_paths_through_them(sequences, tmp_path):
    """Every parameter against a plain loop over the files that the paths left."""
    made = config(path_blocks=(2,), blocks=(1, 2))
    started = open_run(recipe(made), sequences, split_documents(sequences, 0.1, 0.1, 0), tmp_path, None, CPU)
    before = {k: v.clone() for k, v in started.model.state_dict().items()}
    run = train(recipe(made), sequences, tmp_path, until=1)
    after = dict(run.model.named_parameters())
    files = [load_file(tmp_path / f"path-{p:03d}-00-0000.safetensors") for p in range(4)]

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
    assert plan.split_seed == RECIPES["base"].split_seed
    assert plan.router_share + plan.stop_share <= RECIPES["base"].router_share + RECIPES["base"].stop_share


# Whole runs


@pytest.mark.parametrize("router", ["kmeans", "product"])
def test_standardised_features_weigh_every_dimension_alike(router, sequences, tmp_path):
    """Clusters of features that were scaled beforehand; without, the largest dimension decides alone."""
    split = split_documents(sequences, 0.1, 0.1, 0)
    features = torch.randn(len(sequences), 16, generator=torch.Generator().manual_seed(0)) * torch.logspace(0, 3, 16)
    made = config(router=router)
    scale = features[split.train].std(dim=0, correction=0)
    plain = open_run(recipe(made), sequences, split, tmp_path / "0", None, CPU, features)
    own = open_run(recipe(made, standardise=True), sequences, split, tmp_path / "1", None, CPU, features)
    beforehand = open_run(recipe(made), sequences, split, tmp_path / "2", None, CPU, features / scale)
    paths = lambda run, z: run.model.router.scores(z).argmax(dim=1)  # noqa: E731
    assert torch.equal(paths(own, features), paths(beforehand, features / scale))
    assert not torch.equal(paths(own, features), paths(plain, features))


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(overlap=5), "overlap 5 is larger than the 4 paths"),
        (dict(reshard_at=(1,)), r"reshard_at \[1\] and router 'kmeans'"),
        (dict(model=config(router="discriminative")), r"reshard_at \[\] and router 'discriminative'"),
        (dict(model=config(router="discriminative"), reshard_at=(2,)), "not before outer_steps 2"),
        (dict(model=config(router="discriminative"), reshard_at=(1, 1)), "each outer step once"),
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
    plan = recipe(config(router="discriminative"), reshard_at=(1,), router_share=0.001)
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
    plan = recipe(config(router="discriminative"), reshard_at=(1,), router_share=0.4, outer_steps=2, stop_share=0.0)
    run = train(plan, sequences, tmp_path)
    assert run.resharded
    assert min(run.sizes) >= 1


def test_paths_that_all_stop_are_sharded_again_before_the_end(sequences, tmp_path):
    plan = recipe(
        config(router="discriminative"),
        reshard_at=(5,),
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


def test_a_shard_smaller_than_its_replicas_is_refused():
    paths = torch.tensor([[0], [1], [2], [3], [0], [1], [3], [3]])
    with pytest.raises(UserError, match="path 2 has 1 sequences, too few for 2 replicas") as error:
        check_shards(paths, config(), replicas=2)
    assert error.value.field == "replicas"


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
