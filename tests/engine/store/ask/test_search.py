"""Search, what paths know and what is specific to a label, beside loops over the tokens."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import normalized_mutual_info_score

from tests.support.naive_store import Case
from tests.support.runs import make, make_experts
from tokenpaths.engine.analysis.words import KINDS, is_kind
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.tables.token_table import read_token_table
from tokenpaths.engine.store.ask.topics import knowledge as knowledge_topic
from tokenpaths.engine.store.ask.topics.knowledge import CELLS


@pytest.fixture
def texts(request: pytest.FixtureRequest) -> Case:
    """A run of labelled texts."""
    return request.getfixturevalue("_cases")["text"]


def words_of(case: Case) -> list[str]:
    """Tokens of the made texts are words."""
    batches = case.naive.made.batches
    low, high = (np.concatenate([getattr(b, name) for b in batches]) for name in ("char_start", "char_end"))
    texts = [sample.text for sample in case.naive.made.samples]
    return [texts[s][a:b] for s, a, b in zip(case.naive.sample_of, low.tolist(), high.tolist(), strict=True)]


def questions(case: Case) -> list[tuple[dict, callable]]:
    """Questions, and whether a token is one of those that are asked for."""
    naive = case.naive
    rank = lambda t: naive.rank[naive.keys[t]]  # noqa: E731
    step, module = 0, int(naive.ids[0, 0, 0])
    asked = [
        ({"ranks": (2, 5)}, lambda t: 2 <= rank(t) <= 5),
        ({"paths": (1, 3)}, lambda t: rank(t) in (1, 3)),
        ({"through": ((step, module),)}, lambda t: module in naive.ids[t, step]),
        (
            {"compute": (0.0, 0.7), "reuse": (0.1, 0.5)},
            lambda t: naive.compute(t) <= 0.7 + 1e-9 and 0.1 - 1e-9 <= naive.reuse(t) <= 0.5 + 1e-9,
        ),
    ]
    labels = sorted({label for label in naive.labels if label})
    if labels:
        asked.append(({"label": labels[0], "ranks": (1, 40)}, lambda t: naive.labels[t] == labels[0] and rank(t) <= 40))
    if case.run.row["modality"] == "text":
        words = words_of(case)
        asked += [
            ({"q": "the"}, lambda t: words[t].casefold() == "the"),
            ({"q": "m*", "ranks": (1, 60)}, lambda t: words[t].casefold().startswith("m") and rank(t) <= 60),
            ({"kind": "punctuation", "reading": "token"}, lambda t: not any(c.isalnum() for c in words[t])),
        ]
    return asked


def test_search_finds_what_a_loop_finds(case: Case):
    naive, total = case.naive, len(case.naive.keys)
    everywhere = Counter(naive.keys)
    for asked, wanted in questions(case):
        tokens = [t for t in range(total) if wanted(t)]
        found = case.run.search_tokens(**asked, limit=40, examples=5)
        assert found["counted"]["exact"]
        assert found["found"]["num_tokens"] == len(tokens), asked
        assert found["found"]["share"] == pytest.approx(len(tokens) / total)
        if not tokens:
            assert "no token" in found["reason"]
            continue
        here = Counter(naive.keys[t] for t in tokens)
        assert found["num_paths"] == len(here)
        assert [p["count"] for p in found["paths"]] == sorted(here.values(), reverse=True)[:40]
        for path in found["paths"]:
            key = naive.ranked[path["rank"] - 1]
            assert (path["count"], path["of"]) == (here[key], everywhere[key])
            assert path["lift"] == pytest.approx(here[key] / len(tokens) / (everywhere[key] / total))
            assert path["high"] is None or path["high"] <= total / len(tokens) * (1 + 1e-9), "all of its tokens"
        chosen = set(tokens)
        for row in found["modules"]:
            assert row["module"] in naive.modules, "an unused slot is no module"
            visits = [t for t in range(total) if row["module"] in naive.ids[t, row["step"]].tolist()]
            hits = len(chosen.intersection(visits))
            share = hits / len(tokens), (len(visits) - hits) / (total - len(tokens))
            assert (row["share"], row["share_of_others"]) == (pytest.approx(share[0]), pytest.approx(share[1]))
            assert row["delta"] == pytest.approx(share[0] - share[1])
            assert row["low"] is None or row["low"] <= row["delta"] <= row["high"]
        assert len(found["examples"]) == min(5, len(tokens))
        assert case.run.search_tokens(**asked, examples=0)["examples"] == []
        first = np.cumsum([0, *(s.num_tokens for s in naive.made.samples)])
        assert {int(first[e["sample"]]) + e["token"] for e in found["examples"]} <= chosen


def test_the_words_that_were_found_are_counted(case: Case):
    if case.run.row["modality"] != "text":
        with pytest.raises(UserError, match="have no words") as caught:
            case.run.search_tokens(q="the")
        assert caught.value.field == "q"
        return
    words = Counter(words_of(case))
    for kind in KINDS:
        fitting = Counter({word: n for word, n in words.items() if is_kind(word, kind)})
        found = case.run.search_tokens(kind=kind)
        assert found["found"]["num_tokens"] == sum(fitting.values())
        assert {row["word"]: row["count"] for row in found["words"]}.items() <= fitting.items()


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"q": "x" * 10_000}, "q"),
        ({"q": "*"}, "q"),
        ({"q": "a b"}, "q"),
        ({"q": "a\ud800"}, "q"),
        ({"kind": "verbs"}, "kind"),
        ({"reading": "letter"}, "reading"),
        ({"ranks": (3, 1)}, "ranks"),
        ({"ranks": (0, 4)}, "ranks"),
        ({"compute": (0.2, 1.5)}, "compute"),
        ({"reuse": (math.nan, 1)}, "reuse"),
        ({"label": "nobody"}, "label"),
        ({"through": ((99, 0),)}, "through"),
        ({"limit": 0}, "limit"),
        ({"least": 0}, "least"),
        ({"examples": -1}, "examples"),
    ],
)
def test_a_question_that_cannot_be_answered_is_a_sentence(texts, asked, field):
    with pytest.raises(UserError) as caught:
        texts.run.search_tokens(**asked)
    assert caught.value.field == field


def test_a_large_run_is_read_in_whole_samples_and_says_so(texts, monkeypatch):
    from tokenpaths.engine.store.ask.topics import search

    run = texts.run
    drawn = read_token_table(run, most=120)
    assert not drawn.counted["exact"]
    assert 120 <= drawn.counted["num_tokens"] <= 150
    sizes = [row["num_tokens"] for row in run.samples(limit=1000)["samples"]]
    assert drawn.per_sample().tolist() == [sizes[i] for i in drawn.samples_N]
    for i, number in enumerate(drawn.samples_N.tolist()):
        tokens = run.sample(number)["tokens"]
        assert [t["rank"] for t in tokens] == drawn.rank_P[drawn.path_n[drawn.sample_n == i]].tolist()
        assert [t["ribbon"] for t in tokens] == drawn.ribbon_PSK[drawn.path_n[drawn.sample_n == i]].tolist()
    monkeypatch.setattr(search, "tokens_of", lambda _run: drawn)
    told, exact = run.search_tokens(ranks=(1, 5))["found"], None
    monkeypatch.undo()
    exact = run.search_tokens(ranks=(1, 5))["found"]
    assert told["low"] < told["share"] < told["high"]
    assert told["low"] < exact["share"] < told["high"]
    assert "low" not in exact


def test_nothing_found_in_a_draw_is_not_nothing_in_the_run(texts, monkeypatch):
    from tokenpaths.engine.store.ask.topics import search

    drawn = read_token_table(texts.run, most=120)
    here = set(drawn.rank_P[drawn.path_n].tolist())
    absent = next(rank for rank in range(1, texts.run.row["num_paths"] + 1) if rank not in here)
    assert texts.run.search_tokens(paths=(absent,))["found"]["num_tokens"]
    monkeypatch.setattr(search, "tokens_of", lambda _run: drawn)
    reason = texts.run.search_tokens(paths=(absent,))["reason"]
    assert f"no token of the {drawn.num_tokens} drawn" in reason
    assert f"{drawn.num_samples} of {texts.run.row['num_samples']}" in reason


def test_modules_that_were_asked_for_are_not_what_sets_tokens_apart(case: Case):
    slots = case.run.layout.top_k
    through = [(0, int(module)) for module in case.naive.ids[0, 0]]
    for asked in (through[:1], through):
        found = case.run.search_tokens(through=asked, limit=100)
        shown = {(row["step"], row["module"]) for row in found["modules"]}
        assert bool(shown) == (case.run.layout.num_steps > 1 or len(asked) < slots)
        assert shown.isdisjoint(asked)
        # Where all slots are taken, the others are not chosen by construction.
        assert any(step == 0 for step, _ in shown) == (len(asked) < slots)
    every = [(step, int(module)) for step, modules in enumerate(case.naive.ids[0]) for module in modules]
    found = case.run.search_tokens(through=every)
    assert found["modules"] == []
    assert "no other module" in found["modules_reason"]


def test_words_of_some_tokens_are_read_from_the_text_around_them(texts):
    found = read_token_table(texts.run)
    some = np.arange(3, found.num_tokens, 9)[::-1]
    few = found.words_of(some)
    assert "words" not in vars(found)  # the whole text was left alone
    assert [few.names[code] for code in few.codes_n] == [found.words.names[code] for code in found.words.codes_n[some]]
    again = found.words_of(some)
    assert [again.names[code] for code in again.codes_n] == [few.names[code] for code in few.codes_n]


def test_what_is_specific_to_a_label(case: Case):
    naive = case.naive
    if not any(naive.labels):
        for of in ("path", "module"):
            told = case.run.specific(of)
            assert told["rows"] == []
            assert "no labels" in told["reason"]
        return
    base = Counter(naive.labels)
    for of in ("path", "module"):
        things = defaultdict(Counter)
        met = defaultdict(Counter)
        for token, key in enumerate(naive.keys):
            ribbon = naive.shown(naive.ids[token].tolist())
            visits = [key] if of == "path" else [(s, m) for s, ms in enumerate(ribbon) for m in ms]
            for thing in visits:
                things[thing][naive.labels[token]] += 1
                met[thing][naive.sample_of[token]] += 1
        told = case.run.specific(of, least=5, limit=500)
        lows = [row["low"] for row in told["rows"]]
        assert lows == sorted(lows, reverse=True)
        able = {
            thing
            for thing, counts in things.items()
            for label, n in counts.items()
            if n >= 5 and sum(naive.made.samples[s].label == label for s in met[thing]) >= 2
        }
        assert told["num_candidates"] == len(able)
        assert (told["reason"] is None) == bool(able)
        for row in told["rows"]:
            thing = naive.ranked[row["rank"] - 1] if of == "path" else (row["step"], row["module"])
            assert thing in able
            counts, total = things[thing], sum(things[thing].values())
            assert (row["count"], row["of"]) == (counts[row["label"]], total)
            share = base[row["label"]] / len(naive.labels)
            assert row["lift"] == pytest.approx(row["count"] / total / share)
            assert row["low"] <= row["lift"] * (1 + 1e-9)
            assert row["lift"] <= row["high"] * (1 + 1e-9)
            # Wilson's interval of as many independent samples as the tokens are worth, by hand.
            size = total**2 / sum(n * n for n in met[thing].values())
            p, z = row["count"] / total, 1.959963984540054
            half = z * math.sqrt(p * (1 - p) / size + z * z / (4 * size * size))
            low = max(0.0, (p + z * z / (2 * size) - half) / (1 + z * z / size))
            assert row["low"] == pytest.approx(low / share, abs=1e-9)


def test_a_label_can_be_asked_for(texts):
    told = texts.run.specific("module", label="code", least=5)
    assert {row["label"] for row in told["rows"]} == {"code"}


def test_what_paths_know_agrees_with_scikit_learn(case: Case):
    naive, made = case.naive, case.naive.made
    told = case.run.knowledge()
    assert told["counted"]["exact"]
    known = {row["property"]: row for row in told["properties"]}
    assert set(known).isdisjoint(row["property"] for row in told["unknown"])
    paths = [naive.rank[key] for key in naive.keys]
    expected = {"label": naive.labels}
    if made.info.modality == "vision":
        rows, cols, regions = (
            np.concatenate([getattr(b, name) for b in made.batches]) for name in ("row", "col", "region")
        )
        expected |= {"region": regions, "place": rows * CELLS // 8 * CELLS + cols * CELLS // 8}
    else:
        ids = np.concatenate([b.token_id for b in made.batches])
        place = np.concatenate([np.arange(s.num_tokens) for s in made.samples])
        expected |= {"token_id": ids, "position": np.floor(np.log2(place + 1))}
    for name, values in expected.items():
        if len(set(np.array(values).tolist())) < 2 or (name == "label" and len(made.samples) <= 6):
            assert name not in known
            continue
        row = known[name]
        assert row["nmi"] == pytest.approx(normalized_mutual_info_score(values, paths, average_method="arithmetic"))
        assert row["null_low"] - 1e-12 <= row["null_mean"] <= row["null_high"] + 1e-12
        assert row["shuffled"] == {"label": "samples", "region": "maps"}.get(name, "sequences")
    sealed = {row["attribute"]: row for row in case.run.info()["associations"]}
    same = ("nmi", "null_mean", "p_value", "shuffled", "untrained_nmi", "untrained_null_mean", "untrained_p_value")
    for name, row in sealed.items():
        assert [row[field] for field in same] == [known[name][field] for field in same]
    if len(made.twin):
        assert told["untrained_reason"] is None
        _, twin = np.unique(np.sort(made.twin, axis=2).reshape(len(made.twin), -1), axis=0, return_inverse=True)
        for name in set(expected) & set(known):
            theirs = normalized_mutual_info_score(expected[name], twin.reshape(-1), average_method="arithmetic")
            assert known[name]["untrained_nmi"] == pytest.approx(theirs)
    else:
        assert told["untrained_reason"] == "no untrained twin was traced beside this run"
        assert known["token_id"]["untrained_nmi"] is None


def test_the_null_of_regions_exchanges_whole_maps_of_the_file(tmp_path):
    made = make("maps", "vision", samples=10)
    with Run.open(made.write(tmp_path)) as run:
        row = next(row for row in run.knowledge()["properties"] if row["property"] == "region")
        ranks = np.concatenate([[token["rank"] for token in run.sample(i)["tokens"]] for i in range(10)])
    map_GT = np.concatenate([batch.region for batch in made.batches]).reshape(10, -1)
    rng, null = np.random.default_rng(0), []
    for _ in range(200):
        ring = rng.permutation(10)
        drawn_GT = np.empty_like(map_GT)
        for place in range(10):
            drawn_GT[ring[place]] = map_GT[ring[place - 1]]
        null.append(normalized_mutual_info_score(drawn_GT.reshape(-1), ranks))
    assert row["null_mean"] == pytest.approx(np.mean(null))
    assert row["null_mean"] > 0
    assert (row["null_low"], row["null_high"]) == pytest.approx(tuple(np.quantile(null, [0.025, 0.975])))


def test_one_picture_has_nobody_to_exchange_its_regions_with(tmp_path):
    with Run.open(make("one", "vision", samples=1, twin=False).write(tmp_path)) as run:
        known = run.knowledge()
        assert "region" not in {row["property"] for row in known["properties"]}
        assert {"property": "region", "reason": "no two images have the same grid to exchange their regions"} in (
            known["unknown"]
        )
        assert "region" not in {row["attribute"] for row in run.info()["associations"]}


def test_samples_with_a_label_of_their_own_each_cannot_be_exchanged(tmp_path):
    with Run.open(make("own", "vision", samples=3, twin=False).write(tmp_path)) as run:
        known = run.knowledge()
        assert "label" not in {row["property"] for row in known["properties"]}
        (reason,) = (row["reason"] for row in known["unknown"] if row["property"] == "label")
        assert reason.startswith("the label is another one in every sample")
        assert "label" not in {row["attribute"] for row in run.info()["associations"]}


def test_properties_are_told_better_than_chance_when_all_are_tested_together():
    rows = [{"p_value": p, "untrained_p_value": None} for p in (0.03, 0.005, 0.4, 0.02)]
    for prefix in ("", "untrained_"):
        knowledge_topic._judge(rows, prefix)
    # 4 × 0.005 and no further: 3 × 0.02 > 0.05, though each of both would pass alone.
    assert [row["clear"] for row in rows] == [False, True, False, False]
    assert {row["untrained_clear"] for row in rows} == {None}
    nine = [{"p_value": 1 / (1 + knowledge_topic.SHUFFLES)} for _ in range(9)]
    knowledge_topic._judge(nine, "")
    assert all(row["clear"] for row in nine)


def test_labels_of_too_few_samples_cannot_be_exchanged_either(tmp_path):
    """Of four samples of two labels no p-value can be below 1/3, so “no better than chance” would say nothing."""
    made = make("few", "text", samples=4, twin=False)
    names, batches = itertools.cycle("ab"), []
    for batch in made.batches:
        batches.append(replace(batch, samples=[replace(sample, label=next(names)) for sample in batch.samples]))
    made = replace(made, batches=batches)
    with Run.open(made.write(tmp_path)) as run:
        known = run.knowledge()
        (reason,) = (row["reason"] for row in known["unknown"] if row["property"] == "label")
        assert reason == "the label is of too few samples: one in 3 exchanges between them says the same"
        assert "label" not in {row["attribute"] for row in run.info()["associations"]}


def test_what_paths_of_a_large_run_know_is_what_its_file_says(monkeypatch, tmp_path):
    from tokenpaths.engine.store.ask.tables import token_table

    monkeypatch.setattr("tokenpaths.engine.store.write.run_filler.KNOWN_TOKENS", 60)
    with Run.open(make("large", "text", samples=30).write(tmp_path)) as run:
        monkeypatch.setattr(token_table, "MOST_TOKENS", 100)
        told = run.knowledge()
        assert (told["counted"]["num_tokens"], told["counted"]["exact"]) == (60, False)
        known = {row["property"]: row for row in told["properties"]}
        for row in run.info()["associations"]:
            for field in ("nmi", "null_mean", "p_value", "shuffled", "num_tokens", "untrained_nmi"):
                assert known[row["attribute"]][field] == row[field]


def test_an_untrained_twin_is_told_that_it_is_one(tmp_path):
    from dataclasses import replace

    made = make("blank", "text", samples=3, twin=False)
    with Run.open(replace(made, info=replace(made.info, model="tiny-untrained")).write(tmp_path)) as run:
        assert run.knowledge()["untrained_reason"] == "this run is an untrained twin itself"


def test_a_run_of_one_path_says_why(tmp_path):
    with Run.open(make("one", samples=3, steps=1, modules=1, identities=0).write(tmp_path)) as run:
        told = run.knowledge()
        assert told["properties"] == []
        assert "one and the same path" in told["reason"]
        found = run.search_tokens(ranks=(1, 1))
        assert found["modules"] == []
        assert "no others" in found["modules_reason"]
        assert found["paths"][0]["lift"] == 1


def test_a_run_of_one_sample_has_no_intervals(tmp_path):
    with Run.open(make("one", "text", samples=1).write(tmp_path)) as run:
        assert "one label" in run.specific()["reason"]
        found = run.search_tokens(ranks=(1, 1))
        assert found["modules"][0]["low"] is None
        assert "one sample" in found["modules_reason"]


def test_points_of_the_curve_know_their_cdf(case: Case):
    fit = case.run.fit()
    for point in fit["observed"]["points"]:
        assert point["cdf"] == pytest.approx(case.naive.cdf[case.naive.ranked[point["rank"] - 1]])
    assert all("cdf" not in point for point in fit["independent"]["points"])


@pytest.fixture
def pictures(request: pytest.FixtureRequest) -> Case:
    """A run of labelled pictures."""
    return request.getfixturevalue("_cases")["top1"]


def test_kinds_of_patches_are_told_from_pixels_and_places(pictures, monkeypatch):
    import io

    from PIL import Image

    from tokenpaths.engine.store.ask.tables import patch_kinds, token_table

    made = pictures.naive.made
    row, col = (np.concatenate([getattr(b, name) for b in made.batches]) for name in ("row", "col"))
    contrast = []
    for sample in made.samples:
        grey = np.asarray(Image.open(io.BytesIO(sample.image)).convert("RGB")).mean(axis=2) / 255
        contrast += [grey[8 * r : 8 * r + 8, 8 * c : 8 * c + 8].std() for r in range(8) for c in range(8)]
    contrast = np.array(contrast)
    expected = {
        "edge": (contrast >= np.quantile(contrast, 0.9)) & (contrast > 0),
        "flat": contrast <= np.quantile(contrast, 0.1),
        "border": (row == 0) | (row == 7) | (col == 0) | (col == 7),
        "centre": (abs(row - 3.5) < 2) & (abs(col - 3.5) < 2),
    }
    for kind, mask in expected.items():
        found = pictures.run.search_tokens(kind=kind, examples=4)
        assert found["found"]["num_tokens"] == mask.sum(), kind
        assert all(mask[64 * e["sample"] + e["token"]] for e in found["examples"])
    # Of many pictures some are looked at, and the answer says so.
    monkeypatch.setattr(patch_kinds, "MOST_PICTURES", 5)
    token_table._TABLES.clear()
    found = pictures.run.search_tokens(kind="edge")
    token_table._TABLES.clear()
    assert (found["counted"]["num_samples"], found["counted"]["exact"]) == (5, False)
    assert found["counted"]["num_tokens"] == 5 * 64
    assert found["found"]["low"] < found["found"]["share"] < found["found"]["high"]


def test_places_of_patches_that_were_not_recorded_are_a_sentence(tmp_path):
    from dataclasses import replace

    made = make("nowhere", samples=4, twin=False)
    batches = [
        replace(b, row=None, col=None, region=None, samples=[replace(s, grid=None, image=None) for s in b.samples])
        for b in made.batches
    ]
    with Run.open(replace(made, batches=batches).write(tmp_path)) as run:
        for kind in ("border", "centre", "edge", "flat"):
            with pytest.raises(UserError, match=f"so {kind} patches are not known") as caught:
                run.search_tokens(kind=kind)
            assert caught.value.field == "kind"


def test_kinds_belong_to_texts_or_to_pictures(texts, pictures):
    for case, kind in ((texts, "edge"), (pictures, "punctuation")):
        with pytest.raises(UserError, match="use one of") as caught:
            case.run.search_tokens(kind=kind)
        assert caught.value.field == "kind"


def test_a_run_of_one_token_says_why(tmp_path):
    from dataclasses import replace

    made = make("one", "text", samples=1, twin=False)
    batch = made.batches[0]
    arrays = {name: value[:1] for name, value in vars(batch).items() if isinstance(value, np.ndarray)}
    only = replace(batch, samples=[replace(batch.samples[0], num_tokens=1)], **arrays)
    with Run.open(replace(made, batches=[only]).write(tmp_path)) as run:
        assert run.row["num_tokens"] == 1
        assert "one and the same path" in run.knowledge()["reason"]
        assert "one label" in run.specific()["reason"]
        assert "too few" in run.law()["observed"]["reason"]
        found = run.search_tokens(kind="function_word")
        again = run.search_tokens(ranks=(1, 1))
        for told in (found, again):
            assert told["found"]["num_tokens"] in (0, 1)
            assert "NaN" not in json.dumps(told, allow_nan=False)
        assert again["paths"][0]["low"] is None
        assert again["modules"] == []
        assert "no others" in again["modules_reason"]


@pytest.mark.parametrize(("text", "token_ids"), [(True, False), (True, True), (False, False)])
def test_words_are_found_wherever_texts_or_ids_were_recorded(text: bool, token_ids: bool, tmp_path: Path) -> None:
    with Run.open(make_experts(text=text, token_ids=token_ids).write(tmp_path)) as run:
        assert run.records("token_id") == token_ids
        assert run.records("char_end") == text
        assert not run.records("grid_row")
        if text:
            assert run.search_tokens(q="the")["found"]["num_tokens"] > 0
        else:
            with pytest.raises(UserError, match="its tokens have no words"):
                run.search_tokens(q="the")
        assert run.search_tokens(through=((0, 1),))["found"]["num_tokens"] > 0


def test_where_most_tokens_have_a_path_of_their_own_none_of_them_is_preferred(tmp_path: Path):
    """Each path of a word is one that a token of it takes: of all paths of the run that says nothing."""
    made = make("own-paths", "text", samples=30, steps=8, modules=12, twin=False, batch_size=30)
    ids = np.random.default_rng(0).integers(0, 12, made.ids.shape)
    with Run.open(made.with_changes(module_ids=ids).write(tmp_path)) as run:
        for word in ("the", "x", "=", "range"):
            answer = run.search_tokens(q=word, limit=100)
            assert answer["found"]["num_tokens"] >= answer["least"]
            assert not any(row["clear"] for row in answer["paths"])
