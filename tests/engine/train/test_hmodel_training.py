"""From labelled texts to a shipped H-Model and a run of it: held-out texts, resuming, card, edges in the store."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from benchmarks.hmodel import leak, output_depth, traced
from benchmarks.trainings import read_trainings
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.data.datasets import Sample
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.models.dna import DNA
from tokenpaths.engine.models.hmodel.hmodel import HModel
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.tracing.loaded_model import load_model
from tokenpaths.engine.tracing.trace_run import trace_samples
from tokenpaths.engine.train import hmodel_recipes, loop
from tokenpaths.engine.train.cards import note
from tokenpaths.engine.train.hmodel_recipes import HMODEL_RECIPES, load_languages, ship, tokenizer_for
from tokenpaths.engine.train.loop import train

CPU = torch.device("cpu")
WORDS = {"one": "red green blue", "two": "eins zwei drei vier", "three": "ein anderes Wort"}


def write(data, name: str, rows: list[tuple[str, str]]) -> None:
    (data / "text").mkdir(exist_ok=True, parents=True)
    table = pa.table({"text": [text for text, _ in rows], "language": [language for _, language in rows]})
    pq.write_table(table, data / "text" / name)


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(f"{i} " + " ".join(rng.choice(WORDS[name].split(), 12)), name) for i in range(20) for name in WORDS]
    rng.shuffle(rows)
    write(tmp_path, "languages_train.parquet", [tuple(row) for row in rows])
    write(tmp_path, "languages_val.parquet", [("red green", "one"), ("eins zwei drei", "two")] * 8)
    return tmp_path


def small_recipe(tokenizer, iterations: int = 4):
    recipe = HMODEL_RECIPES["hmodel-languages"]
    changes = {
        "width": 16,
        "heads": 2,
        "mlp_width": 16,
        "context": 8,
        "vocab_size": tokenizer.vocab_size,
        "iterations": 2,
        "hidden": recipe.model.hidden[:2],
    }
    return recipe.model_copy(
        update={
            "name": "small",
            "iterations": iterations,
            "batch_size": 4,
            "bfloat16": False,
            "model": recipe.model.model_copy(update=changes),
        }
    )


def test_a_seeded_tenth_of_each_language_is_held_out(data):
    languages = load_languages(data)
    held, kept = languages.held_out, languages.train
    assert [held.languages.count(name) for name in WORDS] == [2, 2, 2]
    assert [kept.languages.count(name) for name in WORDS] == [18, 18, 18]
    assert not set(held.texts) & set(kept.texts)
    assert list(kept.languages) == sorted(kept.languages)
    assert load_languages(data).held_out == held
    written = pq.read_table(data / "text" / "languages_train.parquet")["text"].to_pylist()
    assert set(held.texts) | set(kept.texts) == set(written)


def test_the_tokenizer_never_sees_a_held_out_text(data, tmp_path):
    languages = load_languages(data)
    tokenizer = tokenizer_for(languages, tmp_path / "work", 300)
    with pytest.raises(UserError, match="has 300 entries, the recipe takes 999"):
        tokenizer_for(languages, tmp_path / "work", 999)  # the one that is there
    corpus = languages.train.corpus(tokenizer)
    assert int((corpus.ids == tokenizer.end_id).sum()) == 54


def test_a_vocabulary_that_the_texts_do_not_fill_is_refused_before_it_trains(data, tmp_path):
    with pytest.raises(
        UserError, match=r"give a vocabulary of \d+ entries, the recipe takes 4,096: give more text, or --tok"
    ):
        tokenizer_for(load_languages(data), tmp_path / "work")
    assert not (tmp_path / "work").exists() or not list((tmp_path / "work").iterdir())


def test_missing_or_too_few_texts_are_refused(tmp_path):
    with pytest.raises(UserError, match="languages_train.parquet is not in the folder"):
        load_languages(tmp_path)
    write(tmp_path, "languages_train.parquet", [("a b", "one"), ("c d", "one"), ("e f", "two")])
    write(tmp_path, "languages_val.parquet", [("a", "one")])
    with pytest.raises(UserError, match="language 'two' has 1 text"):
        load_languages(tmp_path)


@pytest.mark.parametrize(
    ("batch_size", "words"),
    [(400, r"train.parquet holds [\d,]+ tokens to train on, one batch takes 3,209"), (4, "val.parquet holds 2 tokens")],
)
def test_texts_that_fill_no_batch_are_refused_before_it_trains(data, tmp_path, monkeypatch, capsys, batch_size, words):
    own = TextTokenizer.train(list(load_languages(data).train.texts), 280)
    own.save(tmp_path / "own.json")
    recipe = small_recipe(own).model_copy(update={"batch_size": batch_size})
    monkeypatch.setattr(hmodel_recipes, "HMODEL_RECIPES", {"small": recipe})
    write(data, "languages_val.parquet", [("r", "one")])
    monkeypatch.setattr(loop, "train", lambda *args, **options: pytest.fail("it trained"))
    folders = ["--data", str(data), "--work", str(tmp_path / "w"), "--out", str(tmp_path / "out")]
    assert main(["train", "small", *folders, "--tokenizer", str(tmp_path / "own.json"), "--device", "cpu"]) == 2
    assert re.search(words, capsys.readouterr().err)


def test_every_recipe_has_the_papers_sizes_and_the_same_batches():
    models = {name: recipe.model for name, recipe in HMODEL_RECIPES.items()}
    assert {(m.width, m.mlp_width) for m in models.values()} == {(128, 256)}
    assert [(m.num_modules, m.iterations) for m in models.values() if hasattr(m, "hidden")] == [
        *[(4, 4), (6, 1)] * 2,
        *[(4, 4)] * 2,
    ]
    assert [m.backbone for m in models.values() if not hasattr(m, "hidden")] == [1, 6]
    rest = {recipe.model_dump_json(exclude={"name", "family", "model"}) for recipe in HMODEL_RECIPES.values()}
    assert len(rest) == 1
    with torch.device("meta"):
        size = {
            name: sum(p.numel() for p in (HModel if hasattr(m, "hidden") else DNA)(m).parameters())
            for name, m in models.items()
        }
    assert size["hmodel-languages-wide"] / size["plain-languages-6"] == pytest.approx(1, abs=0.05)


def test_training_goes_on_where_it_was_interrupted(data, tmp_path):
    languages = load_languages(data)
    tokenizer = tokenizer_for(languages, tmp_path / "work", 300)
    corpora = languages.train.corpus(tokenizer), languages.held_out.corpus(tokenizer)
    recipe = small_recipe(tokenizer)
    whole = train(recipe, *corpora, tmp_path / "whole", device=CPU)

    def stop(progress):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, *corpora, tmp_path / "parts", device=CPU, on_progress=stop)
    resumed = train(recipe, *corpora, tmp_path / "parts", device=CPU)
    for (name, a), b in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert {"mean_connection", "self_share", "val_loss"} <= resumed.history[-1].keys()


def test_training_lowers_the_loss(data, tmp_path):
    languages = load_languages(data)
    tokenizer = tokenizer_for(languages, tmp_path / "work", 300)
    corpora = languages.train.corpus(tokenizer), languages.held_out.corpus(tokenizer)
    recipe = small_recipe(tokenizer, 60).model_copy(update={"warmup": 5})
    history = train(recipe, *corpora, tmp_path / "run", device=CPU, check_every=5).history
    assert history[-1]["val_loss"] < history[0]["val_loss"] - 0.5


def test_a_shipped_model_is_traced_into_a_run_with_its_edges(data, tmp_path):
    languages = load_languages(data)
    tokenizer = tokenizer_for(languages, tmp_path / "work", 300)
    run = train(
        small_recipe(tokenizer),
        languages.train.corpus(tokenizer),
        languages.held_out.corpus(tokenizer),
        tmp_path / "work" / "small",
        device=CPU,
    )
    out = ship(run, languages, tokenizer, tmp_path / "models" / "small", "the command")
    checkpoint = read_checkpoint(out)
    assert checkpoint.validation["held_out"]["count"] > 0
    card = (out / "card.md").read_text(encoding="utf-8")
    assert "held-out tenth, six languages" in card
    assert "the command" in card
    note(out, {"beside": {"other": {"params": 10, "loss": 1.25, "accuracy": 0.5}}})
    assert "| other | 0.00 M | 1.250 | 50.0% |" in (out / "card.md").read_text(encoding="utf-8")

    texts = languages.held_out
    samples = [
        Sample(image=None, text=text, label=label, source="")
        for text, label in zip(texts.texts, texts.languages, strict=True)
    ]
    loaded = load_model("small", [tmp_path / "models"], "cpu")
    path = trace_samples(loaded, samples, tmp_path / "runs", run_id="r", dataset="d")
    with Run.open(path) as traced:
        edges = traced.soft_arrays("edges")
        answer, flow = traced.sample(0), traced.flow()
    ids = torch.from_numpy(tokenizer.encode(texts.texts[0]).ids[:8])[None].long()
    model = build_model(checkpoint)
    with torch.inference_mode():
        own = model.trace(ids)
    first = answer["tokens"][0]
    assert [step[0] for step in first["ribbon"]] == own.module_ids[0, 0, :, 0].tolist()
    assert edges.shape == (6, 3, 3, 3)
    assert np.isfinite(edges).all()
    assert {(node["step"], node["module"]) for node in flow["nodes"] if node["count"]} >= {
        (step, int(module)) for step, module in enumerate(own.module_ids[0, 0, :, 0])
    }


def test_cards_of_other_seeds_and_lengths_are_read_beside_each_other(data, tmp_path):
    languages = load_languages(data)
    tokenizer = tokenizer_for(languages, tmp_path / "work", 300)
    corpora = languages.train.corpus(tokenizer), languages.held_out.corpus(tokenizer)
    numbers = {}
    for seed, length in ((1, 2), (0, 3), (0, 2)):
        recipe = small_recipe(tokenizer, length).model_copy(update={"seed": seed})
        run = train(recipe, *corpora, tmp_path / f"{seed}-{length}", device=CPU)
        out = ship(run, languages, tokenizer, tmp_path / "models" / f"{seed}-{length}", "the command")
        numbers[length, seed] = read_checkpoint(out).validation
    rows = read_trainings(tmp_path / "models", ["small", "absent"], "held_out")
    assert list(rows) == ["small"]
    assert [(row["iterations"], row["seed"]) for row in rows["small"]] == sorted(numbers)
    for row in rows["small"]:
        own = numbers[row["iterations"], row["seed"]]
        assert row["loss"] == own["held_out"]["loss"] != row["val"]["loss"] == own["loss"]
    shutil.copytree(tmp_path / "models" / "0-2", tmp_path / "models" / "again")
    with pytest.raises(UserError, match="small under seed 0, 2 iterations, is there twice"):
        read_trainings(tmp_path / "models", ["small"], "held_out")


def test_the_leak_is_nothing_where_c_come_from_the_past_and_something_where_they_come_from_all(data, tmp_path):
    languages = load_languages(data)
    tokenizer = tokenizer_for(languages, tmp_path / "work", 300)
    ids = languages.train.corpus(tokenizer).ids
    config = small_recipe(tokenizer).model
    for pooling, leaks in (("prefix", False), ("last", False), ("sequence", True)):
        torch.manual_seed(0)
        model = HModel(config.model_copy(update={"pooling": pooling})).eval()
        for name, parameter in model.named_parameters():
            if name.startswith(("connections", "input_layers", "output_layers")) and parameter.ndim == 2:
                parameter.data.mul_(40)
        numbers = leak(model, ids, windows=4, every=4)
        assert (abs(numbers["leak_nats"]) > 1e-4) == leaks
        assert numbers["predictions"] == 8


def test_each_text_is_traced_by_its_first_window(data, tmp_path):
    languages = load_languages(data)
    tokenizer = tokenizer_for(languages, tmp_path / "work", 300)
    model = HModel(small_recipe(tokenizer).model).eval()
    edges, chains = traced(model, languages.held_out, tokenizer)
    ids = torch.from_numpy(tokenizer.encode(languages.held_out.texts[3]).ids[:8])[None].long()
    alone = model.trace(ids)
    assert np.allclose(edges[3], alone.edges[0].detach().numpy(), atol=1e-6)
    assert chains[3].tolist() == alone.module_ids[0, 0, :, 0].tolist()


def test_output_depth_is_the_mean_iteration_of_what_is_sent_out():
    edges = np.zeros((1, 3, 2, 2))  # one hidden layer, one input
    edges[0, 0, 1, 1], edges[0, 1, 0, 1], edges[0, 2, 0, 1] = 0.2, 0.2, 0.6
    edges[0, 1, 0, 0] = 0.9
    assert output_depth(edges, 1) == pytest.approx((0.2 * 1 + 0.6 * 2) / 1)
