"""``tokenpaths agree``: numbers for a person, JSON for a program, an exit code for a pipeline."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.support.runs import make_experts, make_run
from tokenpaths.cli.answers.agree import _percent
from tokenpaths.cli.main import main


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    runs = folder / "runs"
    shape = dict(layers=4, experts=8, top_k=2, samples=8, length=25)
    for at, name in enumerate(("rollout", "training")):
        make_experts(name, series=("mine", at), drift=0.1 * at, **shape).write(runs)
    same = make_experts("again", series=("mine", 0), **shape)
    bare = replace(same, info=replace(same.info, weight_semantics={"weights_recorded": False}))
    bare.write(runs)
    make_run(runs, "pictures", samples=3, twin=False)
    return folder


def agree(data_dir, *more: str) -> int:
    return main(["agree", *more, "--data-dir", str(data_dir)])


def test_a_pipeline_stops_where_two_agree_less(data_dir, capsys):
    assert agree(data_dir, "rollout", "training") == 0
    out = capsys.readouterr().out
    assert "8 samples are in both runs, with 200 common tokens." in out
    assert "of decisions have the same modules (95 %: " in out
    assert [line.split()[0] for line in out.splitlines() if line.strip()[:1].isdigit()][-4:] == ["0", "1", "2", "3"]
    assert agree(data_dir, "rollout", "training", "--at-least", "0.99") == 1
    assert "of decisions have the same modules: less than 99.00 %." in capsys.readouterr().out
    assert agree(data_dir, "rollout", "training", "--at-least", "0.8") == 0
    assert agree(data_dir, "rollout", "training", "--at-least", "0.8", "--of", "tokens") == 1
    assert agree(data_dir, "rollout", "again", "--at-least", "1") == 0
    assert "100 % of decisions have the same modules: at least 100 %." in capsys.readouterr().out


def test_json_holds_what_the_api_answers(data_dir, capsys):
    assert agree(data_dir, "rollout", "training", "--json", "--at-least", "0.99") == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["counted"]["exact"]
    share = answer["overall"]["sets"]["share"]
    assert 0.8 < share < 0.99
    assert agree(data_dir, "rollout", "training", "--at-least", str(share + 2e-5)) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split(" %")[0] not in last.split(": less than ")[1], "the two look alike"


def test_what_cannot_be_told_is_refused(data_dir, capsys):
    assert agree(data_dir, "rollout", "again", "--at-least", "0.5", "--of", "first") == 2
    assert "recorded no weights" in capsys.readouterr().err
    for other, words in (("pictures", "steps"), ("nobody", "nobody"), ("rollout", "given twice")):
        assert agree(data_dir, "rollout", other) == 2
        assert words in capsys.readouterr().err
    assert agree(data_dir, "rollout", "training", "--at-least", "99") == 2


def test_what_is_not_equal_does_not_look_so():
    assert _percent(0.98999) == "99.00 %"
    assert (_percent(0.98999, 0.99), _percent(0.99, 0.98999)) == ("98.999 %", "99.000 %")
    assert (_percent(0.99, 0.99), _percent(0.999999, 1.0)) == ("99.00 %", "99.9999 %")
