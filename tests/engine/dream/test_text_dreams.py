"""Text dreams: gradients against finite differences, swaps that only ever gain, texts that read back."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.support.checkpoints import save_tiny
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.dream import text_loop as text
from tokenpaths.engine.dream.objectives import Choices, Connection, Fluency, Module, Suppression
from tokenpaths.engine.dream.observed_pass import Need, look
from tokenpaths.engine.dream.settings import TextSettings
from tokenpaths.engine.dream.text_loop import (
    TextDreams,
    embedding_of,
    readable_tokens,
    reads_back,
    recorded_embeddings,
    worth,
)
from tokenpaths.engine.families.hmodel_config import HModelConfig
from tokenpaths.engine.jobs import dream_texts
from tokenpaths.engine.jobs.dream import DreamJob
from tokenpaths.engine.jobs.registry import JobContext, read_request
from tokenpaths.engine.models.directional import Directional, DirectionalConfig
from tokenpaths.engine.models.hmodel.hmodel import HModel
from tokenpaths.engine.tracing.loaded_model import LoadedModel, load_model

SETTINGS = TextSettings(iterations=6, length=6, starts=2, candidates=12, fluency=0.05, whole_words=False)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("models")
    save_tiny(folder / "tiny-text", "text")
    return load_model("tiny-text", [folder], "cpu")


def starts(loaded: LoadedModel) -> torch.Tensor:
    words = ["the path of a token goes", "back again to the start of"]
    return torch.tensor([loaded.tokenizer.encode(w).ids[:6].tolist() for w in words])


def test_the_predicted_gain_of_a_swap_is_the_slope_towards_it(loaded: LoadedModel) -> None:
    model, objective = loaded.model, Module(1, (0, 1, 2), torch.tensor([5]), 6)
    dreams = TextDreams(model, loaded.tokenizer, objective, starts(loaded), SETTINGS)
    gains = dreams.gains()
    table = embedding_of(model).weight
    for b, position, word in ((0, 2, 40), (1, 5, 77)):
        slope = []
        for sign in (1, -1):
            moved = table[dreams.ids].clone()
            moved[b, position] += sign * 1e-3 * (table[word] - table[dreams.ids[b, position]])
            handle = embedding_of(model).register_forward_hook(lambda *_, moved=moved: moved)
            slope.append(float(worth(model, dreams.ids, objective, SETTINGS.fluency)[1][b]))
            handle.remove()
        assert float(gains[b, position, word]) == pytest.approx((slope[0] - slope[1]) / 2e-3, rel=0.05, abs=2e-3)


def test_rounds_only_ever_gain_and_every_number_is_that_of_real_tokens(loaded: LoadedModel) -> None:
    objective = Module(1, (0, 1, 2), torch.tensor([5]), 6)
    dreams = TextDreams(loaded.model, loaded.tokenizer, objective, starts(loaded), SETTINGS, fixed=[0])
    before, first = dreams.total.clone(), dreams.ids[:, 0].clone()
    while not dreams.finished:
        last = dreams.total.clone()
        dreams.round()
        assert (dreams.total >= last).all()
    assert (dreams.total > before).all()
    assert torch.equal(dreams.ids[:, 0], first)
    for b in range(2):
        (seen,) = look(loaded.model, dreams.ids[b : b + 1], [Need(3, output=True)])
        by_hand = sum(float(seen.probs[s][5, 1]) for s in range(3)) / 3
        assert float(dreams.wanted[b]) == pytest.approx(by_hand, abs=1e-5)
        log_probs = seen.output.log_softmax(dim=-1)
        fluent = sum(float(log_probs[t, dreams.ids[b, t + 1]]) for t in range(5)) / 5
        assert float(Fluency().value(seen)) == pytest.approx(fluent, abs=1e-4)
        assert float(dreams.total[b]) == pytest.approx(by_hand + 0.05 * fluent, abs=1e-4)
        assert reads_back(loaded.tokenizer, dreams.ids[b])
    assert dreams.curves().shape == (7, 2)


def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(loaded: LoadedModel) -> None:
    def make() -> TextDreams:
        objective = Module(1, (0,), torch.tensor([5]), 6)
        return TextDreams(loaded.model, loaded.tokenizer, objective, starts(loaded), SETTINGS)

    through, stopped, again = make(), make(), make()
    for _ in range(5):
        through.round()
    for _ in range(2):
        stopped.round()
    again.load({name: t.clone() for name, t in stopped.state().items()})
    for _ in range(3):
        again.round()
    assert torch.equal(again.ids, through.ids)
    assert torch.equal(again.curves(), through.curves())


def test_a_round_in_parts_is_the_round_and_no_pass_is_larger_than_a_part(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> TextDreams:
        objective = Module(1, (0, 1), torch.tensor([5]), 6)
        return TextDreams(loaded.model, loaded.tokenizer, objective, starts(loaded), SETTINGS)

    whole = make()
    whole.round(), whole.round()
    passes = []
    monkeypatch.setattr(text, "PASS_TOKENS", 18)  # three texts of six
    monkeypatch.setattr(text, "worth", lambda model, ids, *rest: passes.append(ids.numel()) or worth(model, ids, *rest))
    parted, dropped = make(), make()
    before = {name: value.clone() for name, value in dropped.state().items()}
    next(dropped.round_in_parts())
    assert torch.is_grad_enabled()
    assert all(torch.equal(value, before[name]) for name, value in dropped.state().items())
    pauses = sum(1 for _ in parted.round_in_parts())
    parted.round()
    assert max(passes) == 18
    assert pauses == 2 + 8  # two texts' candidates; 24 swaps, three at once
    assert torch.equal(parted.ids, whole.ids)
    torch.testing.assert_close(parted.curves(), whole.curves())


def test_a_slice_of_a_heavy_text_dream_is_one_pass_and_not_a_round(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "PASS_TOKENS", 18)
    ticks = count()  # every look at the clock takes longer than a slice
    monkeypatch.setattr(dream_texts, "time", SimpleNamespace(monotonic=lambda: 0.6 * next(ticks)))
    passes = []
    monkeypatch.setattr(text, "worth", lambda model, ids, *rest: passes.append(ids.numel()) or worth(model, ids, *rest))
    settings = {"iterations": 2, "length": 6, "starts": 2, "candidates": 12, "corpus_windows": 64}
    request = read_request(DreamJob, {"model": "tiny-text", "target": {"of": "module", "module": 1}, "text": settings})
    job = DreamJob.start(request, tmp_path, JobContext(tmp_path, (loaded.checkpoint.path.parent,), lambda name: loaded))
    most = 0
    while not job.work.finished:
        passes.clear()
        job.advance()
        most = max(most, len(passes) if job.work.dreams and job.work.dreams.iteration else 0)
    assert most == 1


def test_whole_words_are_words(loaded: LoadedModel) -> None:
    texts, allowed = loaded.tokenizer.token_texts, readable_tokens(loaded.tokenizer)
    words = {texts[i] for i in allowed.nonzero()[0].tolist()}
    assert {" the", " of", " a"} <= words
    assert not words & {"<|end|>", " ", "\ufffd", "th", " t", "\n"}


def test_directions_and_connections_have_a_gradient_to_the_words() -> None:
    torch.manual_seed(0)
    gated = Directional(DirectionalConfig(width=16, heads=2, mlp_width=32, layers=2, vocab_size=50, context=8))
    chained = HModel(
        HModelConfig(
            modality="text", hidden=[{}, {}], iterations=2, width=16, heads=2, mlp_width=32, vocab_size=50, context=8
        )
    )
    ids = torch.randint(50, (3, 6))
    with torch.no_grad():
        gates, edges = gated(ids).gates, chained(ids).edges
    for model, objective, expected in (
        (gated, Suppression(1, 0, 2), gates[:, :, 1, 0, 2].mean(dim=1)),
        (chained, Connection(1, 0, 1), edges[:, 1, 0, 1]),
    ):
        model.eval().requires_grad_(False)
        with recorded_embeddings(model) as kept:
            wanted, _ = worth(model, ids, objective, 0)
        torch.testing.assert_close(wanted.detach(), expected)
        (gradient,) = torch.autograd.grad(wanted.sum(), kept[0])
        assert gradient.abs().sum() > 0


def run(values: dict, folder: Path, loaded: LoadedModel) -> dict:
    small = {"iterations": 3, "length": 5, "starts": 2, "candidates": 6, "corpus_windows": 64, "whole_words": False}
    context = JobContext(folder, (loaded.checkpoint.path.parent,), lambda name: loaded)
    values = {"text": small} | values
    job = DreamJob.start(read_request(DreamJob, {"model": "tiny-text"} | values), folder, context)
    job.advance()
    job.close()  # killed and begun again
    job = DreamJob.start(read_request(DreamJob, {"model": "tiny-text"} | values), folder, context)
    progress = job.advance()
    while not progress.finished:
        progress = job.advance()
    assert progress.done == progress.total
    assert json.loads((folder / "artifacts" / "result.json").read_text())["dreams"] == progress.result["dreams"]
    return progress.result


def test_the_job_finds_texts_of_a_path_and_of_an_original(loaded: LoadedModel, tmp_path: Path) -> None:
    for name in ("path", "original"):
        (tmp_path / name).mkdir()
    of_path = run({"target": {"of": "path", "ribbon": [[0, 1], [2, 3], [0, 4]]}}, tmp_path / "path", loaded)
    assert of_path["dreams"][0]["targets"] == [4]
    best = of_path["corpus"]["examples"]
    assert [e["objective"] for e in best] == sorted((e["objective"] for e in best), reverse=True)
    assert of_path["corpus"]["best"] == pytest.approx(best[0]["objective"]) or len(best) < 20
    original = run(
        {"target": {"of": "choices", "until": [2], "group": {"patches": [1, 3]}}, "data": "bundled:texts", "row": 1},
        tmp_path / "original",
        loaded,
    )
    assert original["dreams"][0]["targets"] == [1, 3]
    assert 0 <= original["dreams"][0]["matched_tokens"] <= 1


@pytest.mark.parametrize("first", [4, 14, 17])
def test_a_stretch_in_the_middle_has_the_paths_that_a_run_of_the_whole_text_has(
    loaded: LoadedModel, tmp_path: Path, first: int
) -> None:
    """Which reads it in windows of 16 tokens, each with positions of its own; the stretch may lie in two."""
    words = "back again to the start of the next step , the path of a token\r\ngoes on , and back to the start again"
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "story.txt").write_bytes(
        b"\xef\xbb\xbf" + words.encode()
    )  # as an editor of Windows writes it
    ids = torch.from_numpy(loaded.tokenizer.encode(words).ids).long()
    assert len(ids) > first + 5
    asked = {"of": "choices", "until": [3], "first": first, "group": {"patches": [first + 1, first + 4]}}
    result = run({"target": asked, "inbox": "story.txt"}, tmp_path, loaded)
    assert result["original"]["text"] == loaded.tokenizer.decode(ids[first : first + 5].tolist())
    assert result["dreams"][0]["targets"] == [1, 4]
    (tmp_path / "again").mkdir()
    values = {"model": "tiny-text", "target": asked, "inbox": "story.txt", "text": {"length": 5}}
    request = read_request(DreamJob, values)
    context = JobContext(tmp_path, (loaded.checkpoint.path.parent,), lambda name: loaded)
    for _ in range(2):  # the second goes on with what the first kept
        work = DreamJob.start(request, tmp_path / "again", context).work
        assert work.original_ids.tolist() == ids[first : first + 5].tolist()
        windows = [loaded.model.trace(ids[None, start : start + 16]).module_ids[0].long() for start in (0, 16)]
        whole = torch.cat(windows)[first : first + 5]
        assert torch.equal(work.objective.module_ids, whole)
    alone = loaded.model.trace(ids[None, first : first + 5]).module_ids[0].long()
    assert not torch.equal(whole, alone)  # it makes a difference


def test_the_look_through_the_corpus_and_the_rounds_are_counted_apart(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = count()
    monkeypatch.setattr(dream_texts, "time", SimpleNamespace(monotonic=lambda: 0.6 * next(ticks)))
    monkeypatch.setattr("tokenpaths.engine.dream.corpus.BATCH", 50)
    settings = {"iterations": 2, "length": 5, "starts": 2, "candidates": 6, "corpus_windows": 64}
    request = read_request(DreamJob, {"model": "tiny-text", "target": {"of": "module", "module": 1}, "text": settings})
    job = DreamJob.start(request, tmp_path, JobContext(tmp_path, (loaded.checkpoint.path.parent,), lambda name: loaded))
    seen = [job.advance()]
    while not seen[-1].finished:
        seen.append(job.advance())
    assert (seen[0].done, seen[0].total, seen[0].unit) == (50, 64, "stretches")
    assert re.search("first part of two.*then 2 rounds", seen[0].message)
    rounds = [progress for progress in seen if progress.unit == "rounds"]
    assert [progress.done for progress in rounds] == sorted(progress.done for progress in rounds)
    assert (rounds[-1].done, rounds[-1].total) == (2, 2)
    assert "swapping words" in rounds[0].message


def test_spans_are_where_tokens_stand_and_bytes_of_one_character_share_them(loaded: LoadedModel) -> None:
    for words in ("naïve path", "Привет 🙂 of", "語"):
        ids = loaded.tokenizer.encode(words).ids.tolist()
        assert len(ids) > len(set(map(tuple, loaded.tokenizer.spans(ids))))  # some character has several tokens
        for span, piece in zip(loaded.tokenizer.spans(ids), ids, strict=True):
            own = loaded.tokenizer.decode([piece])
            assert "\ufffd" in own or words[span[0] : span[1]] == own
        for cut in range(1, len(ids)):  # a character cut in two no longer reads back; every token still has its place
            text, spans = loaded.tokenizer.decode(ids[:cut]), loaded.tokenizer.spans(ids[:cut])
            assert (len(spans), spans[-1][1]) == (cut, len(text))
            assert all(0 <= a <= b for a, b in spans)


def test_what_a_text_dream_cannot_do_is_refused(loaded: LoadedModel, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give one") as refused:
        run({"target": {"of": "choices", "until": [1, 2]}, "data": "bundled:texts", "row": 0}, tmp_path, loaded)
    assert refused.value.field == "target.until"
    with pytest.raises(UserError, match="at most 4,096"):
        run({"target": {"of": "module", "module": 0}, "text": {"length": 100, "starts": 64}}, tmp_path, loaded)
    many = {"length": 64, "starts": 64, "candidates": 64}
    with pytest.raises(UserError, match="take fewer candidates"):
        run({"target": {"of": "module", "module": 0}, "text": many}, tmp_path, loaded)
    with pytest.raises(UserError, match="context of 16"):
        run({"target": {"of": "module", "module": 0}, "text": {"length": 17}}, tmp_path, loaded)


def test_choices_of_a_text_are_those_of_its_own_pass(loaded: LoadedModel) -> None:
    ids = starts(loaded)
    own = loaded.model.trace(ids).module_ids.long()
    (seen,) = look(loaded.model, ids[:1], [Need(3)])
    assert Choices(own[0], range(3)).matched(seen) == (1, 1)
