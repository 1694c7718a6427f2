"""``tokenpaths train`` from the command line: train, stop, resume, export, refuse."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.engine.train.test_training import data, text_recipe, vision_recipe  # noqa: F401
from tokenpaths.cli.main import main
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.files import HolderLock
from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.families.checkpoint_config import read_checkpoint
from tokenpaths.engine.models.checkpoint import build_model
from tokenpaths.engine.train import cards, catalogue, recipes
from tokenpaths.engine.train.resuming import keep_to_data

OPTIONS = ["--device", "cpu", "--threads", "1"]


@pytest.fixture
def tiny(monkeypatch):
    recipe = vision_recipe(iterations=4)
    twin = recipe.dense_twin().model_copy(update={"name": "v-dense"})
    monkeypatch.setattr(recipes, "RECIPES", {"v": recipe, "v-dense": twin})


def test_train_writes_a_checkpoint_with_its_dense_twin_on_the_card(tiny, data, tmp_path, capsys):  # noqa: F811
    common = ["--data", str(data), "--work", str(tmp_path / "work"), *OPTIONS]
    assert main(["train", "v-dense", "--out", str(tmp_path / "dense"), *common]) == 0
    out = tmp_path / "models" / "v"
    assert main(["train", "v", "--out", str(out), "--dense-twin", str(tmp_path / "dense"), *common]) == 0
    build_model(read_checkpoint(out))
    assert "dense twin, same recipe" in (out / "card.md").read_text(encoding="utf-8")
    assert "accuracy" in capsys.readouterr().out
    # Again: nothing is left to train, the same checkpoint comes out.
    before = (out / "model.safetensors").read_bytes()
    assert main(["train", "v", "--out", str(out), *common]) == 0
    assert (out / "model.safetensors").read_bytes() == before


def test_a_card_names_the_sources_of_the_shipped_models_of_their_files_alone(tiny, data, tmp_path, monkeypatch):  # noqa: F811
    from tokenpaths.engine.train import cards, dna_card

    recipe = recipes.RECIPES["v"]
    monkeypatch.setitem(dna_card.SOURCES, recipe.train_file, "pictures of ours")
    own = [*OPTIONS, "--data", str(data), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert main(["train", "v", *own]) == 0
    sums = read_checkpoint(tmp_path / "out").training["data"]
    assert set(sums) == {recipe.train_file, recipe.val_file}
    card = (tmp_path / "out" / "card.md").read_text(encoding="utf-8")
    assert f"- data: `{recipe.train_file}`" in card
    assert "pictures of ours" not in card
    assert "research use" not in card
    monkeypatch.setattr(cards, "SHIPPED_DATA", sums)
    card = cards.write_card(tmp_path / "out").read_text(encoding="utf-8")
    assert "(pictures of ours)" in card
    assert "research use" in card


def test_a_new_training_does_not_write_over_the_checkpoint_of_another(tiny, data, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("TOKENPATHS_DATA_DIR", str(tmp_path))
    command = ["train", "v", "--data", str(data), *OPTIONS]
    assert main([*command, "--work", str(tmp_path / "one")]) == 0
    assert main([*command, "--work", str(tmp_path / "one")]) == 0  # the same training, once more
    written = (tmp_path / "models" / "v" / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert main([*command, "--work", str(tmp_path / "other")]) == 2
    assert "holds a checkpoint of an earlier training" in capsys.readouterr().err
    assert (tmp_path / "models" / "v" / "model.safetensors").read_bytes() == written
    assert main([*command, "--work", str(tmp_path / "other"), "--out", str(tmp_path / "out")]) == 0


def test_list_shows_the_recipes(tiny, capsys):
    assert main(["train", "--list"]) == 0
    assert "4 modules, 2 steps, top-1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--iterations", "3"], "which recipe? tokenpaths train --list shows them"),
        (["nothing"], "no recipe is called 'nothing'; there are: v, v-dense"),
        (["v", "--data", "/does/not/exist"], "there is no folder"),
        (["v", "--data", "."], "v.parquet is not in the folder"),
        (["v", "--data", ".", "--out", __file__], "is a file; --out names a folder"),
        (["dipaco-2x2", "--data", ".", "--dense-twin", "."], "the card of dipaco-2x2 has no row of a dense twin"),
    ],
)
def test_what_cannot_be_trained_is_one_line_and_exit_code_two(tiny, arguments, words, capsys, tmp_path):
    assert main(["train", *arguments, "--work", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_tokenizer_that_is_none_is_refused_by_its_name(monkeypatch, data, tmp_path, capsys):  # noqa: F811
    monkeypatch.setattr(recipes, "RECIPES", {"t": text_recipe()})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "folder").mkdir()
    command = ["train", "t", "--data", str(data), "--work", str(tmp_path / "w"), "--out", str(tmp_path / "t"), *OPTIONS]
    for name, words in {
        "nowhere.json": "nowhere.json is not there; --tokenizer names a file tokenizer.json",
        "folder": "folder is a folder; --tokenizer names a file tokenizer.json",
        "broken.json": f"tokenpaths: {tmp_path.name}: broken.json cannot be read",
    }.items():
        assert main([*command, "--tokenizer", name]) == 2
        assert words in capsys.readouterr().err


def test_two_trainings_in_one_folder_are_refused(tiny, data, tmp_path, capsys):  # noqa: F811
    command = ["train", "v", "--out", str(tmp_path / "v"), "--data", str(data), "--work", str(tmp_path), *OPTIONS]
    lock = HolderLock(tmp_path / ".v.lock")
    lock.acquire()
    assert main(command) == 75
    said = capsys.readouterr().err
    assert f"held by process {os.getpid()}" in said
    assert "give another folder for --work" in said
    assert not (tmp_path / "v").exists()
    lock.release()
    assert main(command) == 0
    assert not (tmp_path / ".v.lock").exists()


def test_a_training_on_other_data_is_not_taken_for_this_one(tiny, data, tmp_path, capsys):  # noqa: F811
    command = ["train", "v", "--out", str(tmp_path / "out"), "--data", str(data), "--work", str(tmp_path), *OPTIONS]
    assert main(command) == 0
    rows = pq.read_table(data / "v.parquet").to_pydict()
    pq.write_table(pa.table(rows | {"label": rows["label"][1:] + rows["label"][:1]}), data / "v.parquet")
    before = (tmp_path / "out" / "config.json").read_bytes()
    assert main(command) == 2
    assert "holds a training on another v.parquet" in capsys.readouterr().err
    assert (tmp_path / "out" / "config.json").read_bytes() == before
    assert main([*command, "--work", str(tmp_path / "new")]) == 0


def test_a_training_with_a_tokenizer_does_not_go_on_with_its_own(monkeypatch, data, tmp_path, capsys):  # noqa: F811
    monkeypatch.setattr(recipes, "RECIPES", {"t": text_recipe(name="t", iterations=2)})
    work, given = tmp_path / "work", tmp_path / "given.json"
    TextTokenizer.train(["an altogether different vocabulary of some other texts"] * 9, 280).save(given)
    command = ["train", "t", "--out", str(tmp_path / "out"), "--data", str(data), "--work", str(work), *OPTIONS]
    assert main([*command, "--tokenizer", str(given)]) == 0
    before = (tmp_path / "out" / "config.json").read_bytes()
    assert main(command) == 2
    assert (
        "another tokenizer than one trained on the texts; give --tokenizer as before, another"
        in capsys.readouterr().err
    )
    assert not (work / "t" / "tokenizer.json").exists()
    assert (tmp_path / "out" / "config.json").read_bytes() == before
    assert main([*command, "--tokenizer", str(given)]) == 0
    # The other way round, and where nothing but a vocabulary was made.
    own = [*command, "--work", str(tmp_path / "own")]
    assert main(own) == 0
    assert main([*own, "--tokenizer", str(given)]) == 2
    assert main(own) == 0
    for state in (tmp_path / "own" / "t").glob("*state*"):
        state.unlink()
    (tmp_path / "own" / "t" / "log.jsonl").unlink()
    assert main([*own, "--tokenizer", str(given)]) == 0


def test_a_training_goes_on_where_only_what_it_is_measured_on_is_another(data, tmp_path, monkeypatch):  # noqa: F811
    said: list[set] = []
    monkeypatch.setattr(cards, "say_data", lambda _out, sums: said.append(set(sums)))

    def carried_out(order) -> dict:
        (order.work / "state.json").touch()
        return {}

    (data / "other.parquet").write_bytes(b"once")
    files = ("v.parquet", "other.parquet")
    training = catalogue.Training("t", "dna", "", files, carried_out, measured_on=files[1:])
    order = SimpleNamespace(data=data, out=tmp_path / "out", work=tmp_path / "work")
    training.carry_out(order)
    (data / "other.parquet").write_bytes(b"again")
    training.carry_out(order)
    (data / "v.parquet").write_bytes(b"changed")
    with pytest.raises(UserError, match=r"another v\.parquet than that in"):
        training.carry_out(order)
    assert said == [set(files)] * 2, "the card names both"


@pytest.mark.parametrize("family", ["hmodel", "dipaco", "raytracing"])
def test_validation_files_are_what_these_families_are_only_measured_on(family):
    listed = [one for one in catalogue.trainings().values() if one.family == family]
    assert listed
    assert all(one.measured_on == one.files[1:] for one in listed)


def test_a_training_that_never_began_keeps_to_nothing(data, tmp_path):  # noqa: F811
    keep_to_data(tmp_path / "work", data, ["v.parquet", "nowhere.parquet"])
    assert not (tmp_path / "work").exists()
    keep_to_data(tmp_path / "work", data, ["v.parquet"])
    (data / "v.parquet").write_bytes(b"mended")
    keep_to_data(tmp_path / "work", data, ["v.parquet"])
    (tmp_path / "work" / "state.json").touch()
    (data / "v.parquet").write_bytes(b"changed")
    with pytest.raises(UserError, match=r"another v\.parquet than that in"):
        keep_to_data(tmp_path / "work", data, ["v.parquet"])


def test_a_vocabulary_that_the_texts_do_not_fill_leaves_no_tokenizer(monkeypatch, data, tmp_path, capsys):  # noqa: F811
    recipe = text_recipe()
    model = recipe.model.model_copy(update={"vocab_size": 5000})
    monkeypatch.setattr(recipes, "RECIPES", {"t": recipe.model_copy(update={"model": model})})
    work = tmp_path / "work"
    assert main(["train", "t", "--out", str(tmp_path / "t"), "--data", str(data), "--work", str(work), *OPTIONS]) == 2
    assert "the recipe takes 5,000: give more text, or --tokenizer" in capsys.readouterr().err
    assert not list(work.rglob("tokenizer.json"))
