"""Two run files side by side: which samples belong together, what is counted, and what is refused."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import adjusted_mutual_info_score

from tests.support.runs import RunArrays, make, make_experts
from tokenpaths.engine.base.errors import NoSuchThing, RunFileError, UserError
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.ask.several_runs import sample_matching
from tokenpaths.engine.store.ask.several_runs.compare import NotComparable, compare
from tokenpaths.engine.store.ask.several_runs.series import over_training

Pair = Callable[..., tuple[Run, Run]]


def moved(made: RunArrays, run_id: str, every: int = 2, **info: object) -> RunArrays:
    """The same samples; every so many tokens take the next modules. Measures of samples change with them."""
    batches = []
    for batch in made.batches:
        ids = batch.module_ids.copy()
        ids[::every] = (ids[::every] + 1) % made.info.num_modules
        batches.append(replace(batch, module_ids=ids))
    return replace(made, info=replace(made.info, run_id=run_id, **info), batches=batches)


def with_samples(made: RunArrays, change: Callable[[int, object], object]) -> RunArrays:
    """The samples changed one by one, tokens and all else kept."""
    number, batches = 0, []
    for batch in made.batches:
        samples = []
        for sample in batch.samples:
            samples.append(change(number, sample))
            number += 1
        batches.append(replace(batch, samples=samples))
    return replace(made, batches=batches)


def flows(made: RunArrays) -> Counter:
    """Share of the tokens on each link; top-1."""
    count = Counter()
    for ribbon in made.ids[:, :, 0].tolist():
        count.update((s, a, b) for s, (a, b) in enumerate(zip(ribbon, ribbon[1:], strict=False)))
    return Counter({link: n / len(made.ids) for link, n in count.items()})


def test_numbers_are_those_of_loops_over_the_arrays(opened) -> None:
    first = make("first", "text", samples=9)
    second = moved(first, "second")
    a, b = opened(first, second)
    answer = compare(a, b, "reuse", links=2000)
    assert answer["matched"] | {"sentence": ""} == {
        "by": "source",
        "num": 9,
        "only_a": 0,
        "only_b": 0,
        "different": 0,
        "by_name": 0,
        "sentence": "",
    }
    keys = [[tuple(ribbon) for ribbon in made.ids[:, :, 0].tolist()] for made in (first, second)]
    codes = [[list(dict.fromkeys(side)).index(key) for key in side] for side in keys]
    assert answer["grouping"]["ami"] == pytest.approx(adjusted_mutual_info_score(*codes), abs=1e-9)
    assert answer["grouping"]["num_tokens"] == len(first.ids)
    before, after = flows(first), flows(second)
    gaps = {link: after[link] - before[link] for link in before.keys() | after.keys()}
    assert answer["flow"]["difference"] == pytest.approx(sum(map(abs, gaps.values())) / 2 / 4)
    found = {(row["step"], row["source"], row["target"]): row["change"] for row in answer["flow"]["links"]}
    assert found == pytest.approx({link: gap for link, gap in gaps.items() if gap})
    assert sum(node["before"] for node in answer["flow"]["nodes"]) == pytest.approx(5)
    rows = [run.samples(limit=100)["samples"] for run in (a, b)]
    known = np.array([[row["reuse"] for row in side] for side in rows])
    row = next(one for one in answer["correlations"] if one["measure"] == "reuse")
    assert row["pearson"]["r"] == pytest.approx(np.corrcoef(known)[0, 1])
    assert (row["mean_a"], row["mean_b"]) == pytest.approx(tuple(known.mean(axis=1)))
    most = answer["most"][0]
    assert abs(most["difference"]) == pytest.approx(np.abs(known[1] - known[0]).max())
    assert answer["points"][3] == {
        "sample": 3,
        "partner": 3,
        "a": rows[0][3]["reuse"],
        "b": rows[1][3]["reuse"],
        "label": rows[0][3]["label"],
    }
    skip = next(one for one in answer["correlations"] if one["measure"] == "skip")
    compute = next(one for one in answer["correlations"] if one["measure"] == "compute")
    assert skip["pearson"] == pytest.approx(compute["pearson"])
    assert answer["summary"][2] == {
        "name": "num_paths",
        "a": a.row["num_paths"],
        "b": b.row["num_paths"],
        "untrained_a": a.fit()["untrained"]["num_paths"],
        "untrained_b": b.fit()["untrained"]["num_paths"],
    }


def test_samples_in_another_order_and_number_still_find_their_partners(opened) -> None:
    first = make("first", "text", samples=10, twin=False)
    batch, rest = first.batches
    last = moved(replace(first, batches=[rest, batch]), "second", every=10**6)
    fewer = replace(first, batches=[rest], info=replace(first.info, run_id="fewer"))
    a, b, c = opened(first, last, fewer)
    answer = compare(a, b)
    assert [(row["sample"], row["partner"]) for row in answer["points"]] == [(i, (i + 5) % 10) for i in range(10)]
    assert answer["grouping"]["ami"] > 0.9  # ten tokens were moved
    part = compare(c, a)
    assert part["matched"]["num"] == 5
    assert (part["matched"]["only_a"], part["matched"]["only_b"]) == (0, 5)
    assert "5 of 10 of first have no partner" in part["matched"]["sentence"]
    # Flows and loads are those of the paired samples alone.
    assert part["flow"]["difference"] == pytest.approx(0)
    assert part["flow"]["num_tokens"] == [rest.num_tokens] * 2
    assert all(row["difference"] == 0 for row in part["flow"]["loads"])
    assert part["grouping"]["ami"] == pytest.approx(1)
    assert part["most"] == []


def test_a_name_alone_makes_no_partner(opened) -> None:
    first = make("first", "text", samples=8, twin=False)
    other = with_samples(first, lambda i, s: replace(s, text=s.text[:-1] + "!") if i < 3 else s)
    a, b = opened(first, replace(other, info=replace(first.info, run_id="second")))
    matched = compare(a, b)["matched"]
    assert (matched["num"], matched["different"], matched["only_a"]) == (5, 3, 3)
    assert "3 have a partner by name whose content is another" in matched["sentence"]


@pytest.mark.parametrize("at_once", [1, 4, 256])
def test_pictures_may_be_cut_differently_but_not_be_others(opened, monkeypatch, at_once: int) -> None:
    first = make("first", samples=9, twin=False)
    monkeypatch.setattr(sample_matching, "AT_ONCE", at_once)

    def smaller(i: int, sample):
        picture = Image.open(io.BytesIO(sample.image)).resize((40, 40))
        if i in (2, 7):
            picture = Image.linear_gradient("L").resize((40, 40)).convert("RGB")
        buffer = io.BytesIO()
        picture.save(buffer, "PNG")
        return replace(sample, image=buffer.getvalue())

    second = with_samples(replace(first, info=replace(first.info, run_id="second")), smaller)
    a, b = opened(first, second)
    matched = compare(a, b)["matched"]
    assert (matched["by"], matched["num"], matched["different"]) == ("source", 7, 2)


def test_without_sources_contents_pair_and_without_contents_places_do(opened) -> None:
    first = make("first", "text", samples=3, twin=False)
    nameless = with_samples(first, lambda i, s: replace(s, source=None))
    bare = with_samples(nameless, lambda i, s: replace(s, text=None))
    runs = opened(
        *(
            replace(made, info=replace(made.info, run_id=name))
            for name, made in (("a1", nameless), ("a2", nameless), ("b1", bare), ("b2", bare))
        )
    )
    assert compare(runs[0], runs[1])["matched"]["by"] == "content"
    assert compare(runs[2], runs[3])["matched"]["by"] == "place"
    with pytest.raises(NotComparable, match="no sample in common"):
        compare(runs[0], runs[2])


def test_runs_of_other_steps_compare_loads_and_say_why_not_flows(opened) -> None:
    first = make("first", "text", samples=4, twin=False)
    second = make("second", "text", samples=4, steps=3, modules=9, top_k=2, twin=False)
    second = with_samples(second, lambda i, s: replace(s, source=None, text=first.samples[i].text))
    a, b = opened(with_samples(first, lambda i, s: replace(s, source=None)), second)
    flow = compare(a, b)["flow"]
    assert flow["reason"] == "first has 5 steps, second has 3"
    assert (flow["difference"], flow["links"], flow["nodes"]) == (None, [], [])
    assert [row["difference"] is None for row in flow["loads"]] == [False, False, False, True, True]
    assert "load_entropy_b" not in flow["loads"][4]


def test_modules_of_two_trainings_have_no_common_numbering(opened) -> None:
    first = make("first", "text", samples=4, twin=False)
    a, b, c = opened(first, moved(first, "second"), moved(first, "third", checkpoint_sha256="1" * 64))
    assert compare(a, b)["flow"]["same_numbering"]
    assert "two sets of weights named toy-text" in compare(a, c)["flow"]["note"]


def test_other_vocabularies_and_patches_have_no_common_tokens(opened) -> None:
    first = make("first", "text", samples=4, twin=False)
    batches = [replace(batch, token_id=(batch.token_id + 1) % 5) for batch in first.batches]
    other = replace(first, batches=batches, info=replace(first.info, run_id="second"))
    a, b = opened(first, other)
    grouping = compare(a, b)["grouping"]
    assert grouping["ami"] is None
    assert "different vocabularies" in grouping["reason"]


def test_one_sample_or_no_spread_gives_a_reason_instead_of_a_number(opened) -> None:
    one = make("one", "text", samples=1, labels=False, twin=False)
    still = make("still", "text", samples=5, identities=0, twin=False)
    a, b, c, d = opened(one, moved(one, "two"), still, moved(still, "moved"))
    answer = compare(a, b)
    assert {row["reason"] for row in answer["correlations"]} == {
        f"1 sample has {measure} in both; a correlation takes four" for measure in ("reuse", "compute", "skip", "loss")
    }
    assert all(row["untrained_a"] is None for row in answer["summary"])
    compute = next(row for row in compare(c, d)["correlations"] if row["measure"] == "compute")
    assert compute["reason"] == "compute of still is 1 for every sample"
    within = compare(c, d)["within"][0]
    assert (within["pearson"], within["reason"]) == (None, "skip of still is 0 for every sample")


def test_what_cannot_stand_side_by_side_is_refused(opened) -> None:
    a, b, c = opened(
        make("pictures", samples=2, twin=False),
        make("texts", "text", samples=2, twin=False),
        make("more", samples=2, seed=7, twin=False),
    )
    with pytest.raises(NotComparable, match="given twice"):
        compare(a, a)
    with pytest.raises(NotComparable, match="is of vision, 'texts' of text"):
        compare(a, b)
    with pytest.raises(UserError, match="should be one of reuse, compute, skip, loss") as caught:
        compare(a, c, "speed")
    assert caught.value.field == "measure"
    for name in ("limit", "links", "points"):
        with pytest.raises(UserError) as caught:
            compare(a, c, **{name: 0})
        assert caught.value.field == name
    assert NotComparable("x").status == 409


def test_an_even_draw_of_points_is_counted(opened) -> None:
    first = make("first", "text", samples=40, twin=False)
    a, b = opened(first, moved(first, "second"))
    answer = compare(a, b, points=10, limit=3)
    assert (len(answer["points"]), answer["points_of"], len(answer["most"])) == (10, 40, 3)
    assert answer == compare(a, b, points=10, limit=3)


def test_checkpoints_stand_in_order_of_iteration(opened) -> None:
    made = [make_experts(f"at-{at}", series=("run", at), drift=drift) for at, drift in ((900, 0.0), (100, 0.8))]
    alone = make_experts("alone")
    runs = opened(*made, alone)
    answer = over_training(runs[:2], "at-900")
    assert [point["iteration"] for point in answer["points"]] == [100, 900]
    late = answer["points"][1]
    assert late["effective_paths"] == pytest.approx(runs[0].fit()["observed"]["effective_paths"])
    assert late["max_violation"] == pytest.approx(np.mean([s["max_violation"] for s in runs[0].usage()["steps"]]))
    with pytest.raises(NoSuchThing):
        over_training(runs, "alone")


def test_large_runs_over_the_same_samples_are_paired_without_reading_them(opened, monkeypatch) -> None:
    made = make("first", "text", samples=7)
    same, swapped, renamed, other = (
        moved(made, "same"),
        moved(with_samples(made, lambda n, one: replace(one, source=f"s{n ^ 1}")), "swapped"),
        moved(with_samples(made, lambda n, one: replace(one, source=None) if n == 3 else one), "renamed"),
        moved(with_samples(made, lambda n, one: replace(one, text=one.text + ".") if n == 3 else one), "other"),
    )
    runs = opened(made, same, swapped, renamed, other)
    told = [run.samples_fingerprint()["fingerprint"] for run in runs]
    assert told[0] == told[1]
    assert len(set(told[1:])) == 4

    fast = compare(runs[0], runs[1], measure="reuse")
    monkeypatch.setattr(sample_matching, "_the_same", lambda a, b: None)
    assert compare(runs[0], runs[1], measure="reuse") == fast
    assert fast["matched"]["by"] == "source"
    assert fast["most"][0]["source"] is not None


def test_pictures_of_a_stranger_are_looked_at_before_they_are_decoded(opened) -> None:
    made = make("first", "vision", samples=3)
    large = io.BytesIO()
    Image.new("1", (5000, 4000)).save(large, format="PNG")
    (a,) = opened(made)
    pictures = ("large", large.getvalue(), "5,000 × 4,000"), ("broken", b"\x89PNG\r\n\x1a\n", "is damaged")
    for name, png, said in pictures:
        other = with_samples(made, lambda n, one, png=png: replace(one, image=png) if n == 1 else one)
        (b,) = opened(moved(other, name))
        with pytest.raises(RunFileError, match=said):
            compare(a, b)


def test_numbers_for_names_pair_only_samples_of_the_same_tokens(opened) -> None:
    """Logs have neither texts nor pictures, and their samples are numbered."""
    numbered = with_samples(
        make("first", "text", samples=5, twin=False), lambda i, s: replace(s, text=None, source=f"sample {i}")
    )

    def other(name: str, shift: int) -> RunArrays:
        batches = [replace(batch, token_id=batch.token_id + shift) for batch in numbered.batches]
        return replace(numbered, batches=batches, info=replace(numbered.info, run_id=name, dataset=name))

    first, same, others, unknown = opened(
        numbered,
        other("same", 0),
        other("others", 1),
        replace(
            numbered,
            batches=[replace(batch, token_id=np.full_like(batch.token_id, -1)) for batch in numbered.batches],
            info=replace(numbered.info, run_id="unknown"),
        ),
    )
    matched = compare(first, same)["matched"]
    assert (matched["num"], matched["different"], matched["by_name"]) == (5, 0, 0)
    with pytest.raises(NotComparable, match="5 have the same names and other contents"):
        compare(first, others)
    matched = compare(first, unknown)["matched"]
    assert (matched["num"], matched["different"], matched["by_name"]) == (5, 0, 5)
    assert "All by name alone" in matched["sentence"]
    assert sample_matching.pair_samples(first, others).num == 0
    assert sample_matching.pair_samples(first, unknown).num == 5
