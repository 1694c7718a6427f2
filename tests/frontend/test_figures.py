"""Figures of small runs: their numbers are the run's answers, their pictures are vectors with the promised type."""

from __future__ import annotations

import base64
import csv
import io
import json
import re
import types
from collections import Counter
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from tests.support.runs import make_experts, make_run
from tests.support.runs.arrays import png_bytes
from tests.support.runs.traced import trace_dipaco, trace_raytracing
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.spreadsheet import spreadsheet_text
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.frontend.charts.drawing.ink import path_ink
from tokenpaths.frontend.charts.drawing.palette import PRINT
from tokenpaths.frontend.charts.drawing.svg_sheet import SvgSheet, wrapped
from tokenpaths.frontend.charts.families import dipaco_shards
from tokenpaths.frontend.charts.knowledge import PROPERTIES
from tokenpaths.frontend.figures import KINDS, Dreams, NotHere, Wishes, chosen, draw_figures, flows
from tokenpaths.frontend.figures.common import bands, drawn_samples, samples_at
from tokenpaths.frontend.figures.files import FORMATS, files_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Open runs: of pictures, of texts, a second one over the same pictures, and one of almost nothing."""
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder, "pictures", samples=24, steps=4, modules=8, identities=2, seed=1)
    make_run(folder, "pictures-2", samples=24, steps=4, modules=8, identities=2, top_k=2, seed=1)
    make_run(folder, "words", "text", samples=12, steps=4, modules=8, top_k=2, identities=2, seed=2)
    make_run(folder, "bare", samples=1, steps=1, modules=1, identities=0, labels=False, twin=False, seed=3)
    opened = {file.stem: Run.open(file) for file in sorted(folder.glob("*.duckdb"))}
    yield opened
    for run in opened.values():
        run.close()


def drawn(run, name, **wishes):
    """The figures of one kind, by key, and the sentence why there are none."""
    ((_, figures, why),) = draw_figures(run, Wishes(law_draws=0, **wishes), chosen([name]), (UserError,))
    return {figure.key: figure for figure in figures}, why


@pytest.mark.parametrize("name", ["pictures", "words"])
def test_every_figure_is_a_vector_picture_with_eight_point_type(runs, name):
    total = 0
    for _kind, figures, why in draw_figures(runs[name], Wishes(law_draws=0), KINDS, (UserError,)):
        assert bool(figures) != bool(why)
        for figure in figures:
            files = files_of(figure, ("svg", "csv"), 89.0)
            root = ElementTree.fromstring(files[f"{figure.key}.svg"])
            wide = 89.0 if figure.columns == 1 else 183.0
            assert float(root.get("width").removesuffix("pt")) == pytest.approx(wide * 72 / 25.4, abs=0.6)
            assert float(root.get("viewBox").split()[2]) == pytest.approx(float(root.get("width")[:-2]), abs=0.6)
            sizes = Counter(re.findall(rb'font-size="([\d.]+)px"', files[f"{figure.key}.svg"]))
            assert {float(size) for size in sizes} <= {7.0, 8.0, 10.0}
            assert sizes[b"8"] >= 1 or sizes[b"7"] >= 1 or figure.key == "fig3-patches"
            assert not {"NaN", "nan", "inf"} & set(figure.caption.split())
            assert b"NaN" not in files[f"{figure.key}.svg"]
            assert any(file.endswith(".csv") for file in files)
            total += 1
    assert total >= 10


def test_png_and_json_of_a_chart_and_of_a_sheet(runs):
    for kind, key in (("fig2", "fig2-top-k"), ("fig3", "fig3-patches")):
        figure = drawn(runs["pictures"], kind)[0][key]
        files = files_of(figure, FORMATS, 89.0)
        picture = Image.open(io.BytesIO(files[f"{key}.png"]))
        wide = 89 if figure.columns == 1 else 183
        assert picture.width == pytest.approx(wide / 25.4 * 300, abs=3)
        assert picture.info["dpi"][0] == pytest.approx(300, abs=1)
        assert len(picture.convert("L").getcolors(256)) > 5
        document = json.loads(files[f"{key}.json"])
        assert document["caption"] == figure.caption
        assert ("vega_lite" in document) == (figure.draw is not None)


def table(figure, name=""):
    """A CSV file of a figure, as dicts."""
    files = files_of(figure, ("csv",), 89.0)
    text = next(content for file, content in files.items() if file.endswith(f"{name}.csv"))
    return list(csv.DictReader(io.StringIO(text.decode())))


def test_rank_frequency_is_the_answer_of_the_run(runs):
    figure = drawn(runs["pictures"], "fig1c")[0]["fig1cd-paths"]
    fit = runs["pictures"].fit()
    for whose in ("observed", "untrained", "independent"):
        rows = [row for row in table(figure, "points") if row["whose"] == whose]
        assert [(int(r["rank"]), int(r["count"]), float(r["share"])) for r in rows] == [
            (p["rank"], p["count"], p["share"]) for p in fit[whose]["points"]
        ]
        assert figure.numbers[f"{whose}.slope"] == fit[whose]["slope"]
    assert figure.numbers["observed.law.alpha"] == runs["pictures"].law(draws=0)["observed"]["alpha"]


def test_what_paths_know_is_the_answer_of_the_run(runs):
    figure, run = drawn(runs["words"], "knows")[0]["knows-nmi"], runs["words"]
    answer = {PROPERTIES[row["property"]]: row for row in run.knowledge()["properties"]}
    rows = {row["property"]: row for row in table(figure)}
    assert set(rows) == set(answer)
    for name, row in rows.items():
        assert float(row["NMI"]) == answer[name]["nmi"]
        assert float(row["untrained NMI"]) == answer[name]["untrained_nmi"]
        assert float(row["shuffled, 97.5 %"]) == answer[name]["null_high"]
    figures, why = drawn(runs["bare"], "knows")
    assert not figures
    assert "one and the same path" in why


@pytest.fixture(scope="module")
def families(tmp_path_factory):
    """A run of each family that has charts of its own, and one of experts of which little is known."""
    folder = tmp_path_factory.mktemp("families")
    files = [
        trace_raytracing(folder, "rays", samples=12),
        trace_dipaco(folder, "shards", documents=9),
        make_experts("experts").write(folder / "runs"),
        make_experts("poor", samples=1, length=1, top_k=1, labels=False, text=False, token_ids=False).write(
            folder / "runs"
        ),
    ]
    opened = {file.stem: Run.open(file) for file in files}
    yield opened
    for run in opened.values():
        run.close()


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("rays", {"lit", "classes", "difficulty", "blocks", "used"}),
        ("shards", {"ways", "labels", "sharing"}),
        ("experts", {"load", "domains", "words", "together", "repetition"}),
        ("poor", {"load"}),
    ],
)
def test_every_family_has_the_charts_of_its_view(families, name, keys):
    figures, why = drawn(families[name], "family")
    assert not why
    assert {f"family-{key}" for key in keys} <= set(figures)
    if name == "poor":
        assert not {"family-domains", "family-words", "family-together"} & set(figures)
    for figure in figures.values():
        files = files_of(figure, ("svg", "csv"), 89.0)
        assert b"NaN" not in files[f"{figure.key}.svg"]
        assert not {"NaN", "nan", "inf"} & set(figure.caption.split())
        assert any(file.endswith(".csv") for file in files)


def test_the_way_of_documents_is_of_all_documents(families, monkeypatch):
    """What has no row of its own stands in one for all others, as on the page."""
    run = families["shards"]
    tokens = run.card()["num_tokens"]
    monkeypatch.setattr(dipaco_shards, "MOST_LABELS", 2)
    figures = drawn(run, "family")[0]
    rows = [row for row in table(figures["family-ways"]) if row["from"].startswith("from ")]
    assert sum(float(row["tokens"]) for row in rows) == tokens
    assert len({row["from"] for row in rows}) == 2
    assert "from 2 others" in {row["from"] for row in rows}
    assert "2 others" in {row["label"] for row in table(figures["family-labels"])}


def test_a_family_without_charts_of_its_own_says_so(runs):
    figures, why = drawn(runs["pictures"], "family")
    assert not figures
    assert "no charts but the ones above" in why


def test_flow_and_top_k_are_the_answers_of_the_run(runs):
    figures, run = drawn(runs["words"], "8")[0], runs["words"]
    answer = run.flow()
    links = table(figures["fig2-flow"], "links")
    got = {(int(r["step"]), int(r["source"]), int(r["target"])): float(r["tokens"]) for r in links}
    assert got == {(k["step"], k["source"], k["target"]): k["count"] for k in answer["links"]}
    steps = {int(r["step"]): float(r["effective_top_k"]) for r in table(figures["fig2-top-k"])}
    assert steps == {row["step"]: row["effective_top_k"] for row in run.usage()["steps"]}
    assert figures["fig2-flow"].numbers["num_tokens"] == run.card()["num_tokens"]


def test_module_counts_sum_to_all_visits(runs):
    for run in (runs["pictures"], runs["words"]):
        rows = table(drawn(run, "fig13")[0]["fig13-module-counts"])
        card = run.card()
        assert sum(int(row["count"]) for row in rows) == card["num_tokens"] * card["num_steps"] * card["top_k"]
        assert len(rows) == card["num_modules"]


def test_a_cell_without_a_token_is_no_dead_module(runs):
    """Module 1 gets tokens at step 0 only: × stands at the other steps, and the module is not dead."""
    usage = runs["pictures"].usage()
    cells = [row | {"count": 5 if row["module"] != 1 or row["step"] == 0 else 0} for row in usage["usage"]]
    source = types.SimpleNamespace(usage=lambda: {**usage, "usage": cells}, info=runs["pictures"].info)
    by_module, per_step = flows.module_counts(source, Wishes())
    assert by_module.caption.endswith("No module is dead.")
    assert f"×: no token came, as at 3 of {len(cells)} cells." in per_step.caption
    assert per_step.caption.endswith("No module is dead: each got a token at some step.")
    assert "no token ever came" not in per_step.caption


def test_a_text_of_ids_only_has_no_weights_in_its_table(runs):
    run, info = runs["words"], runs["words"].info()
    assert "weights" in table(drawn(run, "fig18")[0]["fig18-token-flow"])[0]
    ids = {**info, "weight_semantics": {"weights_recorded": False}}

    def sample(number):
        answer = run.sample(number)
        return answer | {"tokens": [token | {"weights": None} for token in answer["tokens"]]}

    source = types.SimpleNamespace(info=lambda: ids, sample=sample, samples=run.samples)
    assert "weights" not in flows.token_flow(source, Wishes())[0].tables["tokens"][0]


def test_examples_are_on_the_path_that_is_said(runs):
    for name, kind, key in (("pictures", "fig3", "fig3-patches"), ("words", "9r", "fig1f-tokens")):
        run = runs[name]
        rows = table(drawn(run, kind, ranks=(1, 3))[0][key])
        assert {int(row["rank"]) for row in rows} == {1, 3}
        for row in rows:
            token = run.sample(int(row["sample"]))["tokens"][int(row["token"])]
            assert token["rank"] == int(row["rank"])
            assert token["cdf"] == pytest.approx(float(row["cdf"]))
    assert "patch" not in rows[0]


def test_patches_have_the_colour_of_their_path(runs):
    run = runs["pictures"]
    figure = drawn(run, "fig1e", sample=2)[0]["fig1e-tinted"]
    tokens = run.sample(2)["tokens"]
    assert [float(row["cdf"]) for row in table(figure)] == [token["cdf"] for token in tokens]
    root = ElementTree.fromstring(figure.sheet(300.0))
    fills = [one.get("fill") for one in root.iter(f"{SVG}rect") if one.get("stroke") == PRINT.background]
    assert fills == [path_ink(token, PRINT).colour for token in tokens]
    plain, under = (
        one.get("{http://www.w3.org/1999/xlink}href") or one.get("href") for one in root.iter(f"{SVG}image")
    )
    assert is_grey(under)
    assert not is_grey(plain)


def is_grey(url):
    """Whether a picture has no colours."""
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).convert("RGB")).astype(int)
    return int(np.ptp(pixels, axis=2).max()) == 0


def test_distributions_and_bands_are_the_answers_of_the_run(runs):
    for name in ("pictures", "words"):
        run = runs[name]
        figures = drawn(run, "6")[0] | drawn(run, "fig20")[0]
        for key, per in (("fig6-compute", "sample"), ("fig16-compute", "token")):
            answer = run.distribution("compute", per=per)
            assert [int(row[f"{per}s"]) for row in table(figures[key])] == [b["count"] for b in answer["bins"]]
            assert figures[key].numbers["median"] == answer["median"]
        everyone = sorted((row["compute"] for row in run.samples(limit=500)["samples"]), reverse=True)
        shown = table(figures["fig6-samples"])
        top = [float(row["compute"]) for row in shown if row["band"].startswith("top")]
        bottom = [float(row["compute"]) for row in shown if row["band"].startswith("bottom")]
        assert sorted(top, reverse=True) == everyone[: len(top)]
        assert sorted(bottom) == sorted(everyone)[: len(bottom)]
        levels = table(figures["fig16-patches" if name == "pictures" else "fig16-tokens"])
        for row in levels:
            token = run.sample(int(row["sample"]))["tokens"][int(row["token"])]
            assert token["compute"] == pytest.approx(float(row["compute"]))
        compute = [token["compute"] for row in range(run.card()["num_samples"]) for token in run.sample(row)["tokens"]]
        assert {float(row["compute"]) for row in levels if row["level"] == "most"} == {max(compute)}
        assert min(float(row["compute"]) for row in levels) == pytest.approx(min(compute))


def test_bands_are_one_per_cent_of_many_and_never_touch():
    found = dict(bands(list(range(1000)), 4, seed=3))
    for name, first, end in (("top 1 %", 0, 10), ("49–51 %", 490, 510), ("bottom 1 %", 990, 1000)):
        assert len(set(found[name])) == 4
        assert set(found[name]) <= set(range(first, end))
    for num in range(3, 40):
        parts = [one for _, part in bands(list(range(num)), 6, seed=0) for one in part]
        assert len(parts) == len(set(parts))
    assert bands([5], 6, 0) == [("all", [5])]


@pytest.mark.parametrize(
    ("num", "top", "middle"),
    [
        (3, "top 1 of 3", "middle 1 of 3"),
        (17, "top 1 of 17", "middle 1 of 17"),
        (18, "top 6 of 18", "middle 6 of 18"),
        (101, "top 6 of 101", "middle 6 of 101"),
        (600, "top 1 %", "49–51 %"),
        (601, "top 7 of 601", "49–51 %"),
        (5102, "top 1 %", "49–51 %"),
    ],
)
def test_a_band_is_called_a_percentage_only_where_it_is_one(num, top, middle):
    names = [name for name, _ in bands(range(num), 6, 0)]
    assert names == [top, middle, top.replace("top", "bottom")]
    for name, part in bands(range(num), num, 0):  # so many are drawn that each band is whole
        share = len(part) / num
        assert "%" not in name or share == pytest.approx(0.02 if name.startswith("49") else 0.01, rel=0.1)


def test_samples_are_taken_from_the_whole_run_however_few_are_drawn(runs, monkeypatch):
    run = runs["pictures"]
    everyone = run.samples(limit=100)["samples"]
    monkeypatch.setattr("tokenpaths.frontend.figures.common.PAGE", 5)
    drawn_8, total = drawn_samples(run, most=8)
    numbers = [row["sample"] for row in drawn_8]
    assert (len(set(numbers)), total) == (8, 24)
    assert max(numbers) > 12  # not the first ones: labels often stand in order
    assert sorted(row["sample"] for row in drawn_samples(run)[0]) == list(range(24))
    by_reuse = sorted(everyone, key=lambda row: (-row["reuse"], row["sample"]))
    places = [0, 1, 6, 12, 23]
    assert samples_at(run, "reuse", places) == {place: by_reuse[place] for place in places}
    monkeypatch.setattr(
        "tokenpaths.frontend.figures.common.drawn_samples", lambda source: drawn_samples(source, most=8)
    )
    figures, _ = drawn(run, "7")
    assert "One point a sample, 8 drawn at random of 24; bars: " in figures["fig7-skip-reuse"].caption
    assert figures["fig7-skip-reuse"].numbers["of_samples"] == 24
    top = [row["reuse"] for row in figures["fig7-samples"].tables["samples"] if row["band"].startswith("top")]
    assert top == [row["reuse"] for row in by_reuse[: len(top)]]


def test_tokens_of_a_level_are_drawn_from_all_its_paths(tmp_path):
    """Of a level with hundreds of paths, the rarer ones too; a naive count of the level's tokens beside it."""
    file = make_run(tmp_path, "many", "text", samples=40, steps=8, modules=9, identities=3, seed=4)
    with Run.open(file) as run:
        levels = table(drawn(run, "20")[0]["fig16-tokens"])
        tokens = [token for number in range(40) for token in run.sample(number)["tokens"]]
        for name in ("most", "median", "least"):
            rows = [row for row in levels if row["level"] == name]
            same = [token for token in tokens if token["compute"] == pytest.approx(float(rows[0]["compute"]))]
            assert len(rows) == min(30, len(same))
            assert len({(row["sample"], row["token"]) for row in rows}) == len(rows)
        paths = Counter(
            token["rank"]
            for token in tokens
            if token["compute"]
            == pytest.approx(float(next(row["compute"] for row in levels if row["level"] == "median")))
        )
        assert len(paths) > 100
        shown = {int(row["rank"]) for row in levels if row["level"] == "median"}
        assert len(shown) > 12
        assert shown <= set(paths)


def test_a_second_run_that_does_not_fit_leaves_the_other_figures(runs):
    alone, _ = drawn(runs["pictures"], "7")
    figures, why = drawn(runs["pictures"], "7", other=runs["words"])
    assert list(figures) == list(alone) == ["fig7-reuse", "fig7-samples", "fig7-skip-reuse"]
    assert why.startswith("Drawn without the second run: ")


def test_reuse_of_two_runs_is_their_comparison(runs):
    one, other = runs["pictures"], runs["pictures-2"]
    figures, _ = drawn(one, "7", other=other)
    mine = [row["reuse"] for row in one.samples(limit=100)["samples"]]
    theirs = [row["reuse"] for row in other.samples(limit=100)["samples"]]
    assert figures["fig7-beside"].numbers["pearson"]["r"] == pytest.approx(np.corrcoef(mine, theirs)[0, 1])
    skip = [1 - row["compute"] for row in one.samples(limit=100)["samples"]]
    assert figures["fig7-skip-reuse"].numbers["pearson"]["r"] == pytest.approx(np.corrcoef(skip, mine)[0, 1])
    assert "one run" not in drawn(one, "7", other=runs["words"])[1]
    assert "same samples" in drawn(one, "7", other=runs["words"])[1]


def test_token_flow_has_every_token(runs):
    run = runs["words"]
    figure = drawn(run, "fig19", sample=4)[0]["fig18-token-flow"]
    sample = run.sample(4)
    rows = table(figure)
    assert [row["text"] for row in rows] == [spreadsheet_text(token["text"]) for token in sample["tokens"]]
    assert [int(row["rank"]) for row in rows] == [token["rank"] for token in sample["tokens"]]
    svg = figure.sheet(500.0)
    for modules in sample["tokens"][0]["ribbon"]:
        assert f">{'+'.join(map(str, modules))}</text>" in svg


def test_finished_dreams_become_figures(runs):
    top = [["cat", 0.5], ["dog", 0.2]]
    one = {"name": "S = 2", "image": "dream-0.png", "group": None, "matched_choices": 0.75, "objective": 0.4}
    one |= {"top": top}
    request = {"target": {"of": "choices"}}
    whole = {
        "title": "Dream of <b>",
        "result": {"dreams": [one], "original": {"image": "o.png", "top": top}, "request": request},
        "pictures": dict.fromkeys(("dream-0.png", "o.png"), png_bytes(Image.new("RGB", (1, 1)))),
    }
    group = {"dreams": [one | {"group": [1, 2]}], "original": None, "request": request}
    part = {"title": "part", "result": group, "pictures": whole["pictures"]}
    # Tokens of a module's dream match or not as well, but there is no original whose choices they could be.
    of_module = {"dreams": [one | {"name": "module"}], "original": None, "request": {"target": {"of": "module"}}}
    module = {"title": "module", "result": of_module, "pictures": whole["pictures"]}
    for name, key, title in (("14", "fig4-dreams", "Dream of <b>"), ("15", "fig5-groups", "part")):
        figure = drawn(runs["pictures"], name, dreams=Dreams([module, whole, part]))[0][key]
        (row,) = table(figure)
        assert (row["dream"], row["sees"], float(row["matched_choices"])) == (title, "cat", 0.75)
        root = ElementTree.fromstring(figure.sheet(400.0))
        assert title in [text.text for text in root.iter(f"{SVG}text")]
    why = drawn(runs["pictures"], "4", dreams=Dreams((), "tokenpaths dream --model x"))[1]
    assert why.endswith("this makes one: tokenpaths dream --model x.")


def test_a_run_of_almost_nothing_says_why(runs):
    said = {kind.name: (len(figures), why) for kind, figures, why in draw_figures(runs["bare"], Wishes(), KINDS, ())}
    assert "one and the same path" in said["fig1cd"][1]
    assert "no token ever skipped" in said["fig6"][1]
    assert "only sample" in said["fig7"][1]
    for name, (num, why) in said.items():
        assert num or (why.endswith(".") and why[0].isupper()), name


def test_an_unknown_figure_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="there is no figure 'fig99'; there are fig1cd, fig1e"):
        chosen(["fig2", "fig99"])
    assert [kind.name for kind in chosen(["20", "Figure 8", "fig1"])] == ["fig1cd", "fig1e", "fig1f", "fig2", "fig16"]
    with pytest.raises(NotHere, match="rank 1 to"):
        list(KINDS)[4].make(_Paths(), Wishes(ranks=(99,)))


class _Paths:
    """A run of seven paths, as far as figure 3 asks."""

    def info(self):
        return {"modality": "vision", "num_paths": 7}

    def samples(self, **_query):
        return {"samples": [{"has_image": True}]}


def test_text_from_elsewhere_stays_text():
    sheet = SvgSheet(100)
    sheet.text(0, 8, "<script>\x00&\ud800</script>")
    (text,) = ElementTree.fromstring(sheet.svg()).iter(f"{SVG}text")
    assert text.text == "<script>�&�</script>"
    assert wrapped("a" * 500, 50, 8, most=2)[1].endswith("…")
    assert "".join(wrapped("word " * 20, 60, 8)).replace(" ", "") == "word" * 20
