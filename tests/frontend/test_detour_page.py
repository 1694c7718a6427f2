"""Detours: edits in an address, the charts of what changed, and the view over a real API and worker."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from tests.backend.conftest import SECRET, api_for, serving
from tests.support.pages import showing
from tokenpaths.engine.families.family_controls import FAMILY_CONTROLS
from tokenpaths.engine.models.family import family_class
from tokenpaths.frontend.page.selection import Selection, from_query, to_query
from tokenpaths.frontend.views.detour import before_after as compare
from tokenpaths.frontend.views.detour.edits import (
    KINDS,
    added,
    in_address,
    link_of,
    on_path_of,
    read_edits,
    said,
    takes,
    why_not,
)
from tokenpaths.frontend.views.detour.result import change_words, loss_words, moved_words

SAMPLE = {
    "tokens": [
        {"token": 0, "ribbon": [[1, 2], [3, 0]]},
        {"token": 1, "ribbon": [[2, 1], [0, 3]]},
        {"token": 2, "ribbon": [[1, 2], [3, 1]]},
    ]
}


# The address ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "edit", "words"),
    [
        ("ban:1.5", {"modules": [5], "step": 1}, "m5 banned at step 1"),
        ("ban:all.5", {"modules": [5]}, "m5 banned at every step"),
        ("ban:1.5.0+2", {"modules": [5], "step": 1, "tokens": [0, 2]}, "m5 banned for tokens 0, 2 at step 1"),
        ("ban:1.1.from2-1", {"modules": [1], "step": 1, "tokens": [2]}, "m1 banned for the tokens from module 2"),
        ("ban:all.5.path1", {"modules": [5], "tokens": [0, 1]}, "m5 banned for the tokens on the path of token 1"),
        ("force:0.3", {"module": 3, "step": 0}, "every token forced to m3 at step 0"),
        ("force:0.3.0+2", {"module": 3, "step": 0, "tokens": [0, 2]}, "tokens 0, 2 forced to m3 at step 0"),
        ("force:1.2.from2-1", {"module": 2, "step": 1, "tokens": [2]}, "the tokens from module 2 to module 1 forced"),
        ("force:all.3.path1", {"module": 3, "tokens": [0, 1]}, "the tokens on the path of token 1 forced to m3"),
        ("bias:1.5.-0.25", {"modules": [5], "value": -0.25, "step": 1}, "m5 pushed by -0.25 at step 1"),
        ("freeze:rest", {}, "all other routers frozen"),
        ("freeze:1", {"step": 1}, "the router of step 1 frozen"),
        ("shuffle:all.7", {"seed": 7}, "decisions shuffled at every step"),
        ("top_k:2", {"k": 2}, "top-2 at every step"),
        ("swap:4", {"ribbons": [token["ribbon"] for token in SAMPLE["tokens"]]}, "the route of sample 4"),
    ],
)
def test_an_edit_in_the_address_is_what_the_api_takes(text, edit, words):
    edits, problems = read_edits([text], SAMPLE, lambda number: SAMPLE if number == 4 else None)
    assert (edits, problems) == ([{"edit": text.partition(":")[0], **edit}], [])
    if (back := in_address(edits[0])) is not None:
        assert read_edits(back, SAMPLE, lambda number: None) == (edits, [])
    else:
        assert "swap" in text
    assert said(text, lambda step, module: f"m{module}").startswith(words)
    selection, wrong = from_query({"controls": text})
    assert (selection.controls, wrong) == ((text,), [])
    assert to_query(Selection(controls=(text,)))["controls"] == text


@pytest.mark.parametrize(
    "text",
    [
        "ban:x.y",
        "ban:1",
        "force:1.2.path9",
        "swap:5",
        "top_k:",
        "bias:1.2",
        "shuffle:1",
        "force:1.2.from0-3",
        "force:all.2.from1-3",
        "force:0.2.from1-3",
    ],
)
def test_what_means_no_edit_is_said_and_left_out(text):
    edits, (problem,) = read_edits([text], SAMPLE, lambda number: None)
    assert edits == []
    assert text in problem


def test_what_is_no_edit_at_all_is_said():
    edits, problems = read_edits(["zzz:1", "alpha:0.5", "ban:0.1"], SAMPLE, lambda number: None, ("alpha", "edits"))
    assert [edit["edit"] for edit in edits] == ["ban"]
    assert "'zzz:1', which is no edit; it was left out. There are ban, force" in problems[0]
    assert "'alpha:0.5': that is changed in the Family view" in problems[1]


def test_the_headline_says_which_steps_were_counted():
    def said(after_steps, after):
        effect = {"after_steps": after_steps, "paths_changed_after": after, "paths_changed": 0.5}
        return moved_words(effect, "patches")

    assert said([2, 3, 4], 0.25) == "25.0 % of the patches take another path behind the edit, at steps 2 to 4"
    assert said([2, 4], 0.25).endswith("at steps 2, 4")
    assert said([4], 0.25).endswith("at step 4")
    assert moved_words({"after_steps": [1], "paths_changed": 0.0, "paths_changed_after": 0.0}, "patches") == (
        "all patches keep their paths"
    )
    assert said([], None) == "50.0 % of the patches take another path, at steps that are edited themselves"


def test_a_change_of_loss_has_its_error():
    assert change_words({"change": -0.00123}, {"error": 0.00045}) == "−0.00123 ± 0.00045"
    assert change_words({"change": 0.5}, None) == "+0.500"


def test_a_change_of_loss_that_chance_would_make_is_no_verdict():
    def said(change, samples=3, **interval):
        return loss_words({"loss": {"change": change}, "num_samples": samples}, interval)

    assert said(0.5, low=0.1, high=0.9) == "the texts become harder to predict by 0.500 nats a token"
    assert said(-0.5, low=-0.9, high=-0.1) == "the texts become easier to predict by 0.500 nats a token"
    assert said(0.5, low=-0.1, high=1.1) == "how hard the texts are to predict changes by no more than chance would"
    assert said(0.0, low=0.0, high=0.0) == "the texts stay as hard to predict"
    assert said(0.5, samples=1, low=None, high=None) == "the text becomes harder to predict by 0.500 nats a token"


def test_edits_that_cannot_stand_beside_each_other_replace_each_other():
    assert added(("ban:1.5", "top_k:2"), "top_k:3") == ("ban:1.5", "top_k:3")
    assert added(("ban:1.5",), "ban:1.6") == ("ban:1.5", "ban:1.6")
    assert added(("ban:1.5",), "ban:1.5") == ("ban:1.5",)
    assert on_path_of(SAMPLE, 1) == [0, 1]  # the order of slots is no path


# Charts ---------------------------------------------------------------------------------------------------------


# The view -------------------------------------------------------------------------------------------------------


def make_site(data_dir: Path) -> None:
    """Two tiny models and runs of them: ``texts``, ``pictures`` and, larger, ``more-pictures``."""
    from PIL import Image

    from tests.support.checkpoints import save_tiny
    from tokenpaths.engine.data.datasets import Sample
    from tokenpaths.engine.tracing.loaded_model import load_model
    from tokenpaths.engine.tracing.trace_run import trace_samples

    rng, models = np.random.default_rng(0), data_dir / "models"
    for modality in ("text", "vision"):
        save_tiny(models / f"tiny-{modality}", modality, **({"context": 64} if modality == "text" else {}))
    texts = [Sample(None, words, None, words) for words in ("the path of a token", "the path of a token", "next step")]
    images = [
        Sample(Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)), None, label, label)
        for label in ("apple", "brick", "cloud")
    ]
    more = [("more-pictures", "tiny-vision", 2 * images)]  # what an upload would be ranked by
    for name, model, samples in (("texts", "tiny-text", texts), ("pictures", "tiny-vision", images), *more):
        trace_samples(load_model(model, [models]), samples, data_dir / "runs", run_id=name, dataset="toy")


@contextmanager
def detour_api(data_dir: Path) -> Iterator[str]:
    """The address of an API over ``make_site``'s folder, with a worker that runs its jobs."""
    from tokenpaths.backend.settings import load_settings
    from tokenpaths.backend.worker.worker import create_worker

    make_site(data_dir)
    options = {"worker_secret": SECRET, "warm_models": False, "trace_seconds": 250, "decode_seconds": 60}
    worker = create_worker(load_settings(data_dir=data_dir, **options))
    with serving(worker) as url, api_for(data_dir, worker_url=url, **options) as served:
        yield str(served.client.base_url).rstrip("/")


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with detour_api(tmp_path_factory.mktemp("detour")) as url:
        yield url


@pytest.fixture
def show(api: str, monkeypatch: pytest.MonkeyPatch):
    """Draw the detour view at an address and give what stands on it."""
    with showing(api, monkeypatch, view="change") as draw:
        yield draw


def words(page: AppTest, *kinds: str) -> str:
    return " ".join(e.value for kind in kinds or ("error", "warning", "info") for e in page.get(kind)).replace("\\", "")


def test_a_bare_detour_invites(show):
    page = show(run="pictures", sample=1)
    assert not page.error
    assert "Nothing is edited yet" in words(page)
    ranks = "Ranks, counts and colours of paths are those of run pictures, from which the sample was taken"
    assert words(page, "caption").count(ranks) == 1
    assert any(button.label == "Apply" for button in page.button)


@pytest.mark.parametrize("controls", ["ban:0.1,top_k:1", "force:1.3.0+1,freeze:rest", "swap:1"])
@pytest.mark.parametrize("run", ["texts", "pictures"])
def test_before_and_after(show, run, controls):
    page = show(run=run, sample=0, controls=controls)
    assert not page.error, words(page)
    assert [s.value for s in page.subheader][1:3] == ["Before", "After"]
    assert page.subheader[0].value.replace("\\", "").startswith("With ")
    assert words(page, "caption").count(f"Ranks, counts and colours of paths are those of run {run}, from") == 1
    assert {"Paths changed at any step", "KL of the answers (nats)"} <= {metric.label for metric in page.metric}
    if run == "texts":
        assert "Which tokens become harder to predict?" in [s.value for s in page.subheader]


def test_what_the_address_changes_in_vain_is_a_sentence(show):
    page = show(run="texts", sample=0, controls="zzz:1,ban:0.1")
    assert "'zzz:1', which is no edit" in words(page)
    assert [s.value for s in page.subheader][1:3] == ["Before", "After"]  # the rest holds


def test_small_changes_of_loss_can_be_seen(show):
    page = show(run="texts", sample=0, controls="force:1.3.0,freeze:rest")
    told = {metric.label: metric.value.replace("\\", "") for metric in page.metric}
    before, after = told["Loss (nats)"].split(" → ")
    assert before != after
    # One text has no error: it says nothing about others.
    assert re.fullmatch(r"[+−][\d.]+", told["Change of loss (nats)"])


def test_the_job_of_another_view_is_left_alone(show):
    from tokenpaths.frontend.page import widgets

    request = {"model": "tiny-vision", "run": "pictures", "sample": 0, "target": {"of": "choices"}}
    dream = widgets.client().submit_job("dream", request)
    page = show(view="importance", run="pictures", sample=0, job=dream["job"])
    assert "is no sweep over modules, so it is not shown here" in words(page)
    assert "Dream of sample 0 of pictures" in words(page)
    widgets.client().cancel_job(dream["job"])
    page.button(key="sweep_other_job").click().run()
    assert page.query_params["view"] in (["jobs"], "jobs")
    assert page.query_params["job"] in ([dream["job"]], dream["job"])


def test_edits_that_cannot_be_are_a_sentence(show):
    everything = ",".join(f"ban:0.{module}" for module in range(5))
    assert "top-k needs 2" in words(show(run="texts", sample=0, controls=everything))
    assert "routes can be swapped between samples of as many tokens" in words(
        show(run="texts", sample=0, controls="swap:2")
    )
    assert "is no edit of this sample" in words(show(run="texts", sample=0, controls="swap:99"))
    assert "fault of the page" not in words(show(run="texts", sample=0, controls="ban:9.99"))


def test_a_click_on_a_circle_offers_edits(show):
    page = show(run="pictures", sample=0, token=3, through="1.2")
    labels = [button.label.replace("\\", "") for button in page.button]
    assert {"Ban module 2 at step 1", "Send token 3 there at step 1"} <= set(labels)
    page.button(key="quick_0").click().run()
    assert page.query_params["controls"] in (["ban:1.2"], "ban:1.2")
    assert page.query_params["through"] in (["1.2"], "1.2")  # still chosen, so that its before and after can be seen
    assert page.subheader[0].value.replace("\\", "").startswith("With module 2 banned at step 1:")
    told = words(page, "markdown")
    said = r"\d+ of 16 patches visit module 2 at step 1 before and 0 after: 0 stay, \d+ leave, 0 come\."
    assert re.search(said, told)
    assert "Patch r0 c3 " in told
    assert "Answer for the image" in {metric.label for metric in page.metric}
    taken = [f for f in page.dataframe if "of the patches that did, at step 1" in f.value.columns]
    assert all("2" not in where.split(" + ") for where in taken[0].value.iloc[:, 0])


def test_a_click_on_a_link_offers_edits_and_its_tokens(show):
    from tokenpaths.frontend.page import widgets

    tokens = widgets.client().ask("pictures", "samples/{sample}", sample=0)["tokens"]
    source, target = tokens[0]["ribbon"][0][0], tokens[0]["ribbon"][1][0]
    count = sum(source in t["ribbon"][0] and target in t["ribbon"][1] for t in tokens)
    page = show(run="pictures", sample=0, through=f"0.{source},1.{target}")
    link = f"from module {source} at step 0 to module {target} at step 1"
    assert f"The link {link}: {count} patch" in words(page, "caption")
    assert f"{count} of {len(tokens)} patches take the link" in words(page, "markdown")
    other = page.selectbox(key="link_to").options
    assert f"module {target}" not in other
    page.button(key="link_force").click().run()
    there = next(module for module in range(9) if module != target)
    assert page.query_params["controls"] in (
        [f"force:1.{there}.from{source}-{target}"],
        f"force:1.{there}.from{source}-{target}",
    )
    assert not page.error
    told = re.search(r"(\d+) stay, (\d+) leave, (\d+) come\.", words(page, "markdown"))
    stay, leave, come = map(int, told.groups())
    seconds = sum(source in t["ribbon"][0] and target in t["ribbon"][1][1:] for t in tokens)
    assert (stay, leave, come) == (seconds, count - seconds, 0)  # the first choice is replaced, not the second
    assert leave > 0
    page.button(key="link_paths").click().run()
    assert page.query_params["view"] in (["paths"], "paths")
    assert page.query_params["through"] in ([f"0.{source},1.{target}"], f"0.{source},1.{target}")


def test_a_link_without_tokens_here_is_a_sentence(show):
    page = show(run="texts", sample=0, through="0.99,1.98")
    assert "0 tokens of this sample go this way" in words(page, "caption")
    assert not page.error
    assert not any(button.key == "link_force" for button in page.button)


BEFORE = {
    "text": "ab",
    "tokens": [
        {"token": 0, "ribbon": [[1, 2], [3, 0]], "weights": [[0.6, 0.4], [0.9, 0.1]], "loss": 1.0, "compute": 1.0},
        {"token": 1, "ribbon": [[2, 1], [0, 3]], "weights": [[0.6, 0.4], [0.9, 0.1]], "loss": None, "compute": 1.0},
        {"token": 2, "ribbon": [[4, 2], [0, 2]], "weights": [[0.6, 0.4], [0.9, 0.1]], "loss": 2.0, "compute": 1.0},
    ],
}
AFTER = {
    "text": "ab",
    "tokens": [
        {"token": 0, "ribbon": [[2, 1], [0, 4]], "weights": [[0.7, 0.3], [0.8, 0.2]], "loss": 3.0, "compute": 0.5},
        {"token": 1, "ribbon": [[2, 1], [0, 3]], "weights": [[0.6, 0.4], [0.9, 0.1]], "loss": None, "compute": 1.0},
        {"token": 2, "ribbon": [[1, 2], [3, 2]], "weights": [[0.6, 0.4], [0.9, 0.1]], "loss": 2.5, "compute": 1.0},
    ],
}


def test_a_token_before_and_after():
    old, new = BEFORE["tokens"][0], AFTER["tokens"][0]
    assert compare.moved_steps(old, new) == [1]  # the order of slots is no path
    assert compare.token_sentence("Token 0", old, new) == "Token 0 goes another way at step 1."
    assert compare.token_sentence("Token 1", *[one["tokens"][1] for one in (BEFORE, AFTER)]).startswith("Token 1 keeps")
    assert compare.step_facts(old, new, weights=True)[1] == {
        "step": 1,
        "before": "3 (0.90) + 0 (0.10)",
        "after": "0 (0.80) + 4 (0.20)",
        "moved": "yes",
    }
    assert compare.step_facts(old, None, weights=False)[0] == {"step": 0, "modules": "1 + 2"}
    facts = {row["what"]: (row["before"], row["after"]) for row in compare.token_facts(old, new)}
    assert facts["Loss (nats)"] == ("1.00", "3.00")
    assert facts["Likelihood of the next token"] == ("36.8 %", "4.98 %")
    assert "Loss (nats)" not in {row["what"] for row in compare.token_facts(BEFORE["tokens"][1], AFTER["tokens"][1])}


def test_a_link_before_and_after():
    link = link_of(("1.3", "0.2"))
    assert link == (0, 2, 3)
    assert link_of(("0.2",)) is link_of(("0.2", "2.3")) is link_of(("0.2", "0.3")) is None

    def goes(token):
        return takes(token, link)

    said = compare.group_sentence("the link", "take", "tokens", BEFORE, AFTER, goes)
    assert said == "2 of 3 tokens take the link before and 2 after: 1 stay, 1 leave, 1 come."
    facts = {row["what"]: (row["before"], row["after"]) for row in compare.group_facts(BEFORE, AFTER, goes)}
    assert facts["Loss of those that did before (nats)"] == ("1.00", "3.00")
    rows = compare.where_now(BEFORE, AFTER, goes, lambda one: str(sorted(one["ribbon"][1])))
    assert rows == [{"where": "[0, 4]", "count": 1, "share": 0.5}, {"where": "[0, 3]", "count": 1, "share": 0.5}]


def test_a_sweep_is_started_found_again_and_drawn(show, api):
    from tokenpaths.frontend.page import widgets

    page = show(view="importance", run="pictures")
    assert "Nobody has measured this run yet" in words(page, "caption")
    assert "in_label" not in [one.key for one in page.selectbox]  # every sample is measured, whatever its label
    assert page.select_slider(key="sweep_samples_pictures").options == ["3"], "it has no more samples"
    page.button(key="sweep_start").click().run()
    job = page.query_params["job"]
    job = job[0] if isinstance(job, list) else job
    until = time.monotonic() + 100
    while widgets.client().job(job)["state"] not in ("succeeded", "failed") and time.monotonic() < until:
        time.sleep(0.2)
    assert widgets.client().job(job)["state"] == "succeeded", widgets.client().job(job)["problem"]
    assert "over 3 samples" in widgets.client().job(job)["title"]
    again = show(view="importance", run="pictures")  # tomorrow: without the job in the address
    assert not again.error
    assert "3 samples of toy" in words(again, "caption")
    assert any("every row of the sweep" in expander.label for expander in again.expander)
    offered = again.segmented_control(key="in_effect")
    assert offered.value == "kl"  # of so few answers
    offered.set_value("paths_changed_after").run()
    address = {name: "".join(again.query_params[name]) for name in again.query_params}
    assert show(**address).segmented_control(key="in_effect").value == "paths_changed_after"
    opened = {view: show(view=view, run="pictures", job=job) for view in ("jobs", "importance")}
    places = {view: [one.label for one in page.button if "_open_" in one.key] for view, page in opened.items()}
    assert places["jobs"][:1] == ["Open in Importance"]
    assert "Open in Importance" not in places["importance"]
    gone = show(view="importance", run="pictures", job="reroute-20200101-000000-000000")
    assert "There is no job" in words(gone, "warning")
    assert "3 samples of toy" in words(gone, "caption")
    assert "Nobody has measured" not in words(gone, "caption")


@pytest.mark.parametrize("family", FAMILY_CONTROLS)
def test_why_an_edit_is_missing_names_no_field_of_the_api(family):
    controls = family_class(family).Controls
    fields = set(controls.model_fields) - {"path", "gate", "gates", "connections"} - set(KINDS)  # words of the language
    for kind, why in why_not(family, controls.WHY_NOT).items():
        assert kind in controls.WHY_NOT
        assert "give " not in why
        assert "control" not in why
        assert not [name for name in fields if name in why], why
