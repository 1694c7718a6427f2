"""The address: it round-trips, it never breaks, and a change forgets what no longer makes sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenpaths.frontend.charts import effects
from tokenpaths.frontend.page.filter_chips import USES, chips
from tokenpaths.frontend.page.selection import EFFECTS, KINDS, MEASURES, ORDERS, VIEWS, Selection, from_query, to_query

NODES = st.tuples(st.integers(0, 99), st.integers(0, 999)).map(lambda pair: f"{pair[0]}.{pair[1]}")
NATURAL = st.none() | st.integers(0, 10**9)
SELECTIONS = st.builds(
    Selection,
    view=st.sampled_from(list(VIEWS)),
    run=st.none() | st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9_-]{0,63}\Z"),
    label=st.none() | st.text(min_size=1, max_size=20),
    labels=st.sampled_from([None, "merged"]),
    steps=st.none() | st.tuples(st.integers(0, 20), st.integers(1, 20)).map(lambda p: (p[0], p[0] + p[1])),
    through=st.lists(NODES, max_size=4, unique=True).map(tuple),
    paths=st.lists(st.integers(1, 10**6), max_size=4, unique=True).map(tuple),
    sample=NATURAL,
    token=NATURAL,
    tint=NATURAL,
    opacity=st.integers(0, 100),
    hide=st.sampled_from([None, 0.0, 0.05, 10.0]),
    order=st.sampled_from(ORDERS),
    measure=st.sampled_from(MEASURES),
    per=st.sampled_from(["sample", "token"]),
    find=st.none() | st.from_regex(r"\A[^\s]{1,20}\Z"),
    kind=st.none() | st.sampled_from(list(KINDS)),
    reading=st.sampled_from(["word", "token"]),
    ranks=st.none() | st.tuples(st.integers(1, 50), st.integers(50, 10**8)),
    compute=st.none() | st.tuples(st.sampled_from([0.0, 0.25]), st.sampled_from([0.5, 1.0])),
    reuse=st.just(None),
    bin=NATURAL,
    first=st.integers(0, 9999),
    seed=st.integers(0, 99),
    plane=st.sampled_from([None, "pca"]),
    number=st.sampled_from([None, "loss", "max_violation"]),
    opens=st.sampled_from([None, "other-run"]),
    effect=st.none() | st.sampled_from(EFFECTS),
    inspect=st.sampled_from([None, "module:3.12", "path:7", "token:4.19", "sample:0"]),
    pinned=st.sampled_from([None, "module:0.1", "path:1"]),
    job=st.sampled_from([None, "dream-1"]),
)


@given(SELECTIONS)
def test_an_address_reproduces_the_selection(selection):
    assert from_query(to_query(selection)) == (selection, [])


@given(st.dictionaries(st.sampled_from([*Selection.__dataclass_fields__, "other"]), st.text(max_size=30)))
def test_no_address_breaks_the_page(query):
    selection, problems = from_query(query)
    assert from_query(to_query(selection))[0] == selection
    assert all("not understood" in problem for problem in problems)
    chips(selection)


def test_a_bare_address_is_the_start():
    assert to_query(Selection()) == {}


@pytest.mark.parametrize(
    "name",
    ["view", "run", "steps", "through", "paths", "sample", "opacity", "measure", "kind", "ranks", "compute", "reuse"],
)
def test_nonsense_is_left_out_and_said(name):
    selection, problems = from_query({name: "../;<script>"})
    assert selection == Selection()
    assert len(problems) == 1
    assert name in problems[0]


def test_all_that_importance_shows_can_be_in_the_address():
    assert tuple(effects.MEASURES) == EFFECTS


def test_what_is_cut_is_said():
    selection, problems = from_query({"find": "a" * 230, "label": "b" * 500})
    assert (selection.find, selection.label) == ("a" * 200, "b" * 500)
    assert problems == ["The address’s find is of 230 characters; the first 200 were taken."]


EARLIER = [
    ({"view": "runs"}, {"view": "home"}),
    ({"view": "try"}, {"view": "home"}),
    ({"view": "try", "model": "m"}, {"view": "home", "model": "m"}),
    ({"view": "try", "run": "r", "token": "3"}, {"view": "samples", "run": "r", "sample": 0, "token": 3}),
    ({"view": "flow", "run": "r", "through": "0.1"}, {"view": "routes", "run": "r", "through": ("0.1",)}),
    ({"view": "paths", "run": "r", "paths": "2"}, {"view": "paths", "run": "r", "paths": (2,)}),
    ({"view": "sample", "run": "r", "sample": "4"}, {"view": "samples", "run": "r", "sample": 4}),
    ({"view": "map", "run": "r", "sample": "4"}, {"view": "samples", "run": "r", "inspect": "sample:4"}),
    ({"view": "compute", "run": "r", "bin": "3"}, {"view": "work", "run": "r", "bin": 3}),
    ({"view": "modules", "run": "r", "module": "1.7"}, {"view": "modules", "run": "r", "inspect": "module:1.7"}),
    ({"view": "compare", "run": "r", "against": "s"}, {"view": "compare", "run": "r", "against": "s"}),
    ({"view": "family", "run": "r"}, {"view": "family", "run": "r"}),
    ({"view": "dream", "run": "r"}, {"view": "dream", "run": "r"}),
    ({"view": "detour", "controls": "ban:0.1"}, {"view": "change", "controls": ("ban:0.1",)}),
    ({"view": "jobs", "job": "j"}, {"view": "jobs", "job": "j"}),
]
"""every view of the first design → where the same thing is now"""


@pytest.mark.parametrize(("query", "now"), EARLIER, ids=lambda part: part.get("view"))
def test_an_address_of_the_first_design_leads_to_the_same_thing(query, now):
    assert from_query(query) == (Selection(**now), [])


@pytest.mark.parametrize("text", ["module:1", "path:0", "token:3", "sample:x", "ribbon:1.2", "module:1.2.3"])
def test_only_what_can_be_inspected_is(text):
    selection, problems = from_query({"inspect": text})
    assert selection.inspect is None
    assert len(problems) == 1


def test_another_place_closes_the_inspector():
    here = Selection(view="routes", run="a", inspect="module:1.2", pinned="path:3")
    assert here.change(view="paths").inspect == "module:1.2"
    assert here.change(view="compare") == Selection(view="compare", run="a")
    assert here.change(view="change", inspect="sample:1").inspect == "sample:1"


def test_another_run_forgets_what_belonged_to_the_first():
    before = Selection(
        view="samples", run="a", label="cat", through=("1.2",), paths=(3,), sample=4, token=5, opacity=20
    )
    assert before.change(run="b") == Selection(view="samples", run="b", opacity=20)
    assert before.change(run="a") == before


def test_another_sample_forgets_the_token():
    assert Selection(sample=1, token=5, first=40).change(sample=2) == Selection(sample=2)
    assert Selection(sample=1, token=5).change(sample=1, token=6).token == 6


def test_another_view_forgets_the_job_unless_it_is_told_one():
    dreaming = Selection(view="dream", run="a", job="dream-1")
    assert dreaming.change(view="detour") == Selection(view="detour", run="a")
    assert dreaming.change(view="jobs", job="dream-1").job == "dream-1"
    assert dreaming.change(view="dream", sample=2).job == "dream-1"


def test_clicking_twice_lets_go():
    once = Selection().toggle_through("2.7")
    assert once.through == ("2.7",)
    assert once.toggle_through("2.7").through == ()
    ribbon = once.toggle_through("10.1", "2.7")
    assert ribbon.through == ("2.7", "10.1")
    assert ribbon.toggle_through("2.7", "10.1").through == ()


def test_every_chip_lets_go_of_its_own_thing():
    full = Selection(
        view="routes",
        run="a",
        label="cat",
        steps=(1, 3),
        through=("1.2", "2.0"),
        paths=(3, 9),
        sample=4,
        token=5,
        find="the",
        kind="number",
        ranks=(1, 9),
        compute=(0.0, 0.5),
    )
    for chip in chips(full):
        after = full.change(**chip.without)
        assert chip.words not in [other.words for other in chips(after)]
        if chip.field != "run":
            assert len(chips(full)) - len(chips(after)) == (2 if chip.field == "sample" else 1)


def test_a_chip_says_where_it_does_not_apply():
    selection = Selection(view="work", run="a", through=("1.2",))
    assert {chip.field: chip.applies for chip in chips(selection)} == {"through": False}
    assert set(VIEWS) <= set(USES)
