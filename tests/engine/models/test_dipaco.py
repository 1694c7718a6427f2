"""DiPaCo's model: paths through levels, chunks, the shape of a trace, configurations that are refused."""

from __future__ import annotations

import json
import math

import pytest
import torch
from pydantic import ValidationError

from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.edits.measure import measure_effect
from tokenpaths.engine.edits.prepared import prepare
from tokenpaths.engine.families.dipaco_config import DiPaCoConfig
from tokenpaths.engine.models.checkpoint import save_checkpoint
from tokenpaths.engine.models.dipaco import DiPaCo, chunk_of_position, grouped
from tokenpaths.engine.models.dipaco_path import new_path
from tokenpaths.engine.models.family import family_class
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs.many_runs import compare_runs
from tokenpaths.engine.tracing.loaded_model import load_model, to_host
from tokenpaths.engine.tracing.trace_run import trace_samples

SMALL = dict(width=16, heads=2, mlp_width=32, levels=(2, 3), blocks=(1, 2), prefix=4, vocab_size=30, context=20)


def config(**changes) -> DiPaCoConfig:
    return DiPaCoConfig(**(SMALL | changes))


def model(**changes) -> DiPaCo:
    torch.manual_seed(0)
    return DiPaCo(config(**changes)).eval()


def differ(path_model, seed=1):
    """Make modules differ much, so that a wrong path cannot go unnoticed."""
    torch.manual_seed(seed)
    for parameter in path_model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)


# Configuration


def test_paths_are_numbered_with_the_first_level_most_significant():
    made = config()
    assert made.num_paths == 6
    assert made.path_modules.tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert (made.num_steps, made.num_modules, made.top_k) == (2, 3, 1)
    assert made.spans == [range(0, 1), range(1, 3)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(width=15), "width 15 is not a multiple of heads 2"),
        (dict(levels=(2, 0)), "levels .* must all be at least 1"),
        (dict(blocks=(1,)), "blocks names 1 levels, levels 2"),
        (dict(path_blocks=(3,)), "path_blocks .* between 0 and 2"),
        (dict(path_blocks=(0,)), "leave level 0 no block to share"),
        (dict(router="product", levels=(2, 2, 2), blocks=(1, 1, 1)), "width 16 cannot be cut into 3"),
        (dict(prefix=20), "prefix 20 must be less than context 20"),
        (dict(reroute_every=4), "set rerouter to true"),
        (dict(widths=(1, 2)), "widths"),
        (dict(levels=()), "levels"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_words(changes, words):
    with pytest.raises(ValidationError, match=words):
        config(**changes)


def test_the_papers_configurations_are_values():
    path = dict(width=896, heads=16, mlp_width=3584, vocab_size=32_000, context=2048)
    sizes = {}
    with torch.device("meta"):
        for name, changes in {
            "path": dict(levels=(1,), blocks=(12,)),
            "2x4": dict(levels=(2, 4), blocks=(6, 6)),
            "8x8": dict(levels=(8, 8), blocks=(6, 6)),
            "flat 8": dict(levels=(8,), blocks=(12,), own_ends=True),
        }.items():
            made = DiPaCo(DiPaCoConfig(**path, **changes))
            sizes[name] = sum(p.numel() for n, p in made.named_parameters() if not n.startswith("router")) / 1e6
        specific = DiPaCoConfig(**path, levels=(8, 8), blocks=(6, 6), path_blocks=(0, 5, 6, 11), own_ends=True)
        assert specific.num_paths == 64
    # Section 4: paths of 150 M (we do not tie the unembedding and it has positions), 8 of them 1.2 B.
    assert sizes["path"] == pytest.approx(175, rel=0.03)
    assert sizes["flat 8"] == pytest.approx(8 * sizes["path"])
    assert sizes["path"] < sizes["2x4"] < sizes["8x8"] < sizes["flat 8"]


# Paths


def test_a_document_goes_through_its_path_and_no_other_module():
    made = model()
    differ(made)
    ids = torch.randint(30, (6, 9))
    logits = made(ids, paths=torch.arange(6).unsqueeze(1)).logits
    for path in range(6):
        first, second = made.config.path_modules[path].tolist()
        h = made.ends[0].embed(ids[path : path + 1]) + made.ends[0].positions[:9]
        h = made.levels[0][first][0](h, causal=True)
        for block in made.levels[1][second]:
            h = block(h, causal=True)
        expected = made.ends[0].head(made.ends[0].norm(h))[0]
        assert torch.allclose(logits[path], expected, atol=1e-4)
        assert torch.allclose(made.path_model(path)(ids[path : path + 1])[0], expected, atol=1e-4)


def test_a_flat_mixture_and_blocks_of_ones_own_share_nothing_they_should_not():
    flat = model(levels=(4,), blocks=(2,), own_ends=True)
    assert {len(paths) for paths in flat.paths_through().values()} == {1}
    mixed = model(path_blocks=(1,))
    users = {name.split(".")[0]: paths for name, paths in mixed.paths_through().items()}
    assert users["ends"] == [0, 1, 2, 3, 4, 5]
    assert mixed.paths_through()["levels.0.1.0.mlp.up.weight"] == [3, 4, 5]
    assert mixed.paths_through()["levels.1.2.0.mlp.up.weight"] == [2, 5]
    assert mixed.paths_through()["own.4.0.mlp.up.weight"] == [4]
    for made in (flat, mixed):
        differ(made)
        ids = torch.randint(30, (3, 7))
        paths = torch.tensor([[3], [0], [3]])
        logits = made(ids, paths=paths).logits
        for row, path in enumerate(paths[:, 0].tolist()):
            assert torch.allclose(logits[row], made.path_model(path)(ids[row : row + 1])[0], atol=1e-4)


def test_every_parameter_of_a_path_has_its_name_in_the_model():
    made = model(path_blocks=(2,))
    own = dict(made.named_parameters())
    for path in range(6):
        for name, parameter in made.path_model(path).named_parameters():
            assert own[made.path_names(path)[name]] is parameter
    trained = {n for n in own if not n.startswith("router.")}
    assert set(made.paths_through()) == trained


def test_all_paths_start_as_the_base():
    torch.manual_seed(3)
    base = new_path(config(levels=(1,), blocks=(3,)))
    made = model(path_blocks=(1,))
    made.start_from(base)
    ids = torch.randint(30, (2, 8))
    for path in range(6):
        assert torch.equal(made.path_model(path)(ids), base(ids))
    h = base.ends.start(ids)
    for block in base.blocks:
        h = block(h, causal=True)
    assert torch.allclose(made.router.base(ids), h)


def test_grouping_by_key_keeps_rows_in_their_order():
    x = torch.arange(6.0).view(6, 1)
    key = torch.tensor([2, 0, 2, 1, 0, 2])
    assert grouped(x, key, lambda rows, k: rows * 10 + k).flatten().tolist() == [2, 10, 22, 31, 40, 52]


def test_gradients_reach_the_modules_on_the_path_alone():
    made = model()
    for parameter in made.parameters():
        parameter.requires_grad_(True)
    with torch.no_grad():
        made.router.weight.zero_()
        made.router.bias.copy_(torch.tensor([0.0, 0, 0, 0, 1, 0]))  # all documents take path 4 = (1, 1)
    ids = torch.randint(30, (3, 9))
    loss, paths = made.training_loss(ids[:, :-1], ids[:, 1:])
    loss.backward()
    assert paths.tolist() == [4, 4, 4]
    assert made.training_numbers(paths) == {"paths_used": 1.0}
    touched = {n for n, p in made.named_parameters() if p.grad is not None and bool(p.grad.abs().sum() > 0)}
    assert {tuple(n.split(".")[:3]) for n in touched if n.startswith("levels")} == {
        ("levels", "0", "1"),
        ("levels", "1", "1"),
    }


@pytest.mark.parametrize("own_ends", [False, True])
def test_the_loss_of_all_paths_together_is_the_mean_over_known_targets(own_ends):
    made = model(own_ends=own_ends)
    differ(made)
    ids = torch.randint(30, (5, 9))
    targets = ids[:, 1:].clone()
    targets[0, 5:] = targets[3, 2:] = -100
    loss, paths = made.training_loss(ids[:, :-1], targets)
    logits = made(ids[:, :-1], paths=paths.unsqueeze(1)).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)


# Routing again every W tokens


def test_chunks_by_hand():
    # Prefix 4, W = 3: position t predicts token t+1; tokens 0–6 are chunk 0, 7–9 chunk 1, 10–12 chunk 2.
    assert chunk_of_position(12, 4, 3).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert chunk_of_position(5, 4, None).tolist() == [0] * 5


def test_each_chunk_follows_the_path_that_was_chosen_before_it():
    made = model(rerouter=True, reroute_every=3)
    differ(made)
    ids = torch.randint(30, (2, 12))
    output = made(ids)
    assert output.paths.shape == (2, 3)
    features = made.router.base(ids[:, :4]).mean(dim=1)
    scores = (features - made.router.mean) / made.router.scale @ made.router.weight.T + made.router.bias
    assert output.paths[:, 0].tolist() == scores.argmax(dim=1).tolist()
    for chunk, end in ((1, 7), (2, 10)):
        # Chosen from the tokens before the chunk alone: the rest may be cut off.
        again = made.router.running_scores(ids[:, :end])[:, -1]
        assert output.paths[:, chunk].tolist() == again.argmax(dim=1).tolist()
    for row in range(2):
        for position, chunk in enumerate([0] * 6 + [1] * 3 + [2] * 3):
            path = made.path_model(int(output.paths[row, chunk]))
            assert torch.allclose(output.logits[row, position], path(ids[row : row + 1])[0, position], atol=1e-4)


def test_given_paths_override_the_router_chunk_by_chunk():
    made = model(rerouter=True, reroute_every=4)
    differ(made)
    ids = torch.randint(30, (1, 9))
    paths = torch.tensor([[2, 5]])
    output = made(ids, paths=paths)
    assert torch.equal(output.paths, paths)
    assert torch.allclose(output.logits[0, :7], made.path_model(2)(ids)[0, :7], atol=1e-4)
    assert torch.allclose(output.logits[0, 7:], made.path_model(5)(ids)[0, 7:], atol=1e-4)


# Traces


def test_a_trace_is_one_module_a_level_for_the_whole_sequence():
    made = model(router="discriminative")
    ids = torch.randint(30, (5, 9))
    traced = made.trace(ids)
    paths = made(ids).paths[:, 0]
    assert traced.module_ids.shape == (5, 9, 2, 1)
    for row in range(5):
        wanted = made.config.path_modules[paths[row]].tolist()
        assert traced.module_ids[row, :, :, 0].tolist() == [wanted] * 9
    assert bool((traced.weights == 1).all())
    assert torch.equal(traced.logits, made(ids).logits)
    table = made.module_table()
    assert [(m.step, m.module) for m in table] == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    assert [m.num_params for m in table] == [16 * 16 * 4 + 2 * 16 * 32 + 32] * 2 + [2 * (2048 + 32)] * 3
    assert {m.kind for m in table} == {"block"}


def test_the_entropy_of_a_level_sums_over_the_paths_of_each_module():
    made = model(router="discriminative")
    # Probabilities of paths (0,0) (0,1) (0,2) (1,0) (1,1) (1,2).
    probs = torch.tensor([0.1, 0.2, 0.2, 0.25, 0.15, 0.1])
    entropy = made.level_entropy(probs.log().view(1, 1, 6))[0, 0]
    assert float(entropy[0]) == pytest.approx(math.log(2))
    shares = [0.35, 0.35, 0.3]
    assert float(entropy[1]) == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert bool(model().level_entropy(probs.log().view(1, 1, 6)).isnan().all())
    rerouted = model(rerouter=True).level_entropy(probs.log().view(1, 1, 6).expand(1, 2, 6))
    assert bool(rerouted[0, 0].isnan().all())
    assert not bool(rerouted[0, 1].isnan().any())


def test_padding_behind_a_text_changes_nothing_before_it():
    made = model(rerouter=True, reroute_every=3)
    differ(made)
    ids = torch.randint(30, (2, 12))
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[0, 3:] = valid[1, 8:] = False
    padded = made.trace(ids * valid, valid)
    for row, length in enumerate((3, 8)):
        alone = made.trace(ids[row : row + 1, :length])
        assert torch.allclose(padded.logits[row, :length], alone.logits[0], atol=1e-4)
        assert torch.equal(padded.module_ids[row, :length], alone.module_ids[0])
        assert torch.allclose(padded.flops[row, :length], alone.flops[0])
        assert not padded.flops[row, length:].any()


def test_flops_by_hand():
    made = model(levels=(1, 1), blocks=(1, 2), width=4, heads=1, mlp_width=8)
    flops = made.trace(torch.randint(30, (1, 3))).flops[0]
    # Three blocks: 8·16 for the projections of attention, 4·4·8 for the perceptron, 4·4 a visible token.
    assert flops.tolist() == [3 * (128 + 128 + 16 * n) for n in (1, 2, 3)]


def test_the_registry_knows_the_family():
    assert family_class("dipaco") is DiPaCo
    semantics = DiPaCo.WEIGHT_SEMANTICS
    assert (semantics["decision"], semantics["unit"]) == ("hard", "sequence")
    state = model().state_dict()
    assert set(DiPaCo.KEEP_FLOAT32) <= set(state)


# Controls


def test_a_trace_can_be_routed_again_or_sent_down_one_path():
    made = model(rerouter=True)
    differ(made)
    ids = torch.randint(30, (2, 12))
    controls = made.read_controls({"reroute_every": 4})
    again = made.trace_with(ids, None, controls)
    wanted = made(ids, reroute_every=4)
    assert wanted.paths.shape == (2, 3)
    assert torch.equal(again.logits, wanted.logits)
    for every in (None, 4):
        made.config = config(rerouter=True, reroute_every=every)
        forced = made.trace_with(ids, None, made.read_controls({"path": 5}))
        assert torch.allclose(forced.logits, made.path_model(5)(ids), atol=1e-4)
    assert forced.module_ids[..., 0].flatten(0, 1).unique(dim=0).tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("controls", "words", "field"),
    [
        ({"path": 6}, "path 6 is not one of 0 to 5", "path"),
        ({"path": -1}, "greater than or equal to 0", "path"),
        ({"reroute_every": 8}, "has no learned router", "reroute_every"),
        ({"path": 1, "reroute_every": 8}, "give one of the two", "reroute_every"),
        ({"reroute_every": 2}, "greater than or equal to 4", "reroute_every"),
        ({"speed": 2}, "no control 'speed'", "speed"),
    ],
)
def test_controls_that_cannot_work_are_refused_by_name(controls, words, field):
    made = model()
    with pytest.raises(UserError, match=words) as error:
        made.trace_with(torch.randint(30, (1, 8)), None, made.read_controls(controls))
    assert error.value.field == field


def test_a_nan_in_the_router_shows_in_the_weights():
    made = model()
    ids = torch.randint(30, (1, 8))
    made.router.weight[2, 0] = float("nan")
    with pytest.raises(UserError, match="NaN"):
        to_host(made.trace(ids))


def test_what_a_run_carries_of_the_model():
    found = json.loads(json.dumps(model().findings({})))["composition"]
    assert found["path_modules"] == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert found["modules"][1] == {"level": 0, "module": 1, "paths": [3, 4, 5]}
    assert found["modules"][4] == {"level": 1, "module": 2, "paths": [2, 5]}
    assert model(router="product").weight_semantics["score_function"].startswith("sum over levels")
    assert model(rerouter=True, reroute_every=4).weight_semantics["unit"] == "chunk"


def test_a_traced_run_holds_one_path_a_text_and_the_composition(tmp_path):
    tokenizer = TextTokenizer.train(["one path of many modules and a router"] * 3, 270)
    made = model(vocab_size=tokenizer.vocab_size, rerouter=True, router="discriminative")
    differ(made)
    made.router.bias.copy_(torch.tensor([0.0, 0, 0, 1e4, 0, 0]))
    folder = save_checkpoint(tmp_path / "small", made, dtype=torch.float32)
    tokenizer.save(folder / "tokenizer.json")
    loaded = load_model(folder, [], "cpu")
    texts = ["a router of many paths", "one module", "many and many a path of one router"]
    samples = [Sample(image=None, text=t, label="abc"[i], source=t) for i, t in enumerate(texts)]
    path = trace_samples(loaded, samples, tmp_path, run_id="r", dataset="d")
    with Run.open(path) as run:
        assert run.card()["num_steps"] == 2
        for i in range(3):
            assert {tuple(map(tuple, t["ribbon"])) for t in run.sample(i)["tokens"]} == {((1,), (0,))}
        assert run.info()["findings"]["composition"]["modules"][0]["paths"] == [0, 1, 2]
    again = trace_samples(loaded.with_controls({"reroute_every": 4}), samples, tmp_path, run_id="w", dataset="d")
    with Run.open(again) as run:
        tokens = run.sample(2)["tokens"]
        ids = torch.from_numpy(tokenizer.encode(texts[2]).ids).long()[None, :20]
        wanted = made.trace(ids, reroute_every=4).module_ids[0, :, :, 0].tolist()
        assert [[step[0] for step in t["ribbon"]] for t in tokens[: len(wanted)]] == wanted


def test_losses_are_those_behind_the_routing_prefix_of_each_window(tmp_path):
    """Traced, measured as an effect and put side by side: the prefix counts nowhere."""
    tokenizer = TextTokenizer.train(["one path of many modules and a router"] * 3, 270)
    made = model(vocab_size=tokenizer.vocab_size)
    differ(made)
    folder = save_checkpoint(tmp_path / "small", made, dtype=torch.float32)
    tokenizer.save(folder / "tokenizer.json")
    loaded = load_model(folder, [], "cpu")
    texts = [f"{one} router of many paths and {one}" for one in ("a", "the", "some", "my", "no", "her", "our", "its")]
    samples = [Sample(image=None, text=text, label=None, source=text) for text in ("of", *texts)]
    wanted: list[list[float | None]] = []
    for sample in samples:
        ids = torch.from_numpy(tokenizer.encode(sample.text).ids).long()
        wanted.append([])
        for start in range(0, len(ids), 20):
            logits = made.trace(ids[None, start : start + 20]).logits[0].detach()
            for place, row in enumerate(logits):
                # The first four tokens of a window choose its path.
                told = place >= 3 and start + place + 1 < len(ids)
                loss = torch.nn.functional.cross_entropy(row, ids[start + place + 1]) if told else None
                wanted[-1].append(None if loss is None else float(loss))
    assert not any(loss is not None for loss in wanted[0]), "a text that ends with its prefix predicts nothing"
    assert max(map(len, wanted)) > 20
    known = [[loss for loss in text if loss is not None] for text in wanted]
    every = [loss for text in known for loss in text]

    change = loaded.with_controls({"edits": [{"edit": "ban", "modules": [0], "step": 0}]})
    with (
        Run.open(trace_samples(loaded, samples, tmp_path, run_id="r", dataset="d")) as run,
        Run.open(trace_samples(change, samples, tmp_path, run_id="edited", dataset="d")) as edited,
    ):
        assert run.row["loss"] == pytest.approx(sum(every) / len(every), abs=1e-4)
        for i, (text, of_text) in enumerate(zip(wanted, known, strict=True)):
            answer = run.sample(i)
            assert [token["loss"] is None for token in answer["tokens"]] == [loss is None for loss in text]
            assert [t["loss"] for t in answer["tokens"] if t["loss"] is not None] == pytest.approx(of_text, abs=0.01)
            assert answer["loss"] == (pytest.approx(sum(of_text) / len(of_text), abs=1e-4) if of_text else None)
        data = prepare(loaded, samples)
        effect = measure_effect(change, data)
        assert effect["num_targets"] == data.num_targets == len(every)
        assert effect["loss"]["before"] == pytest.approx(sum(every) / len(every), abs=1e-4)
        beside = compare_runs([run, edited])
        loss = next(row for row in beside["rows"] if row["name"] == "loss")
        # The mean difference over common samples is that of the runs: samples weigh as many tokens as have a loss.
        assert loss["differences"][1]["value"] == pytest.approx(loss["values"][1] - loss["values"][0], abs=1e-5)
        assert loss["differences"][1]["value"] == pytest.approx(effect["loss"]["change"], abs=1e-4)
        told = edited.effect(run)["loss"]
        assert told["change"] == pytest.approx(effect["loss"]["change"], abs=1e-4)
