"""Numbers and running text as people read them."""

from __future__ import annotations

from unicodedata import bidirectional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from tokenpaths.frontend.charts.drawing import numbers
from tokenpaths.frontend.charts.drawing.running_text import has_ink, isolated, tamed, text_pieces, with_signs
from tokenpaths.frontend.charts.several_runs.training_maps import training_map
from tokenpaths.frontend.charts.usage import load_chart
from tokenpaths.frontend.components.wall_data import CONTEXT, _tamed, cut_end, cut_start
from tokenpaths.frontend.page.widgets import escape, with_full_stop
from tokenpaths.frontend.views import common
from tokenpaths.frontend.views.common import not_independent
from tokenpaths.frontend.views.compare.tokens import word_rows
from tokenpaths.frontend.views.compute import all_alike
from tokenpaths.frontend.views.home.drop import cannot_be_used
from tokenpaths.frontend.views.home.runs import card_words
from tokenpaths.frontend.views.inspector import examples
from tokenpaths.frontend.views.samples.one_sample import verdict


def test_samples_that_are_crops_of_few_pictures_are_said_to_be():
    run = {"modality": "vision", "num_samples": 120, "dataset": "photos", "samples_are": "120 crops of 2 pictures"}
    assert "120 images from “photos” (120 crops of 2 pictures)" in card_words(run)
    assert not_independent(run).startswith("The samples are 120 crops of 2 pictures, which overlap; intervals")
    assert not_independent({**run, "samples_are": None}) == not_independent({}) == ""


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (1.5, "1.50"),
        (0.012345, "0.0123"),
        (12345.6, "12,300"),
        (-0.731, "−0.731"),
        (999.6, "1,000"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
        (1e-12, "1.00e−12"),
    ],
)
def test_three_significant_digits(value, words):
    assert numbers.number(value) == words


def test_numbers_beside_each_other_have_the_digits_that_tell_them_apart():
    assert numbers.apart([126.87, 126.02, 125.76, 125.63]) == ["126.9", "126.0", "125.8", "125.6"]
    assert numbers.apart([127.8, 161.1]) == ["128", "161"]
    assert numbers.apart([5.0, 5.0]) == ["5.00", "5.00"]
    assert numbers.apart([]) == []


@pytest.mark.parametrize(
    ("value", "words"),
    [(0, "0 %"), (1, "1 00 %".replace(" 00", "00")), (0.1234, "12.3 %"), (0.99999, "> 99.9 %"), (0.00012, "0.0120 %")],
)
def test_percentages(value, words):
    assert numbers.percent(value) == words


@pytest.mark.parametrize(
    ("value", "digits", "words"),
    [(0.996, 2, "> 99 %"), (0.99, 2, "99 %"), (0.9994, 3, "99.9 %"), (0.99996, 4, "> 99.99 %"), (1, 2, "100 %")],
)
def test_less_than_all_is_never_told_as_100_percent(value, digits, words):
    assert numbers.percent(value, digits) == words


def test_what_is_darker_on_a_light_page_is_lighter_on_a_dark_one():
    """Scales of amounts begin at the page's colour, so in the dark theme more is lighter."""
    usage = {"usage": [{"step": 0, "module": 0, "name": "0", "count": 1, "share": 1.0, "utilisation": 1.0}]}
    training = {
        "untrained": None,
        "points": [{"run": "a", "iteration": 1, "steps": [{"step": 0, "load_entropy": 0.9}]}],
    }
    for chart in (load_chart(usage, theme="dark"), training_map(training, theme="dark")):
        assert "Darker on a light page (lighter on a dark one): more" in str(chart.to_dict()["title"]["subtitle"])


def test_no_example_under_a_label_is_no_run_without_texts():
    def page(of_tokens, label):
        from tokenpaths.frontend.views.inspector import examples

        examples.drawn([], "examples", of_tokens, 0, label)

    def said(*given: object) -> str:
        (caption,) = AppTest.from_function(page, args=given).run().caption
        return caption.value.replace("\\", "")

    assert said(0, "a*b") == "None of its tokens has the label a*b."
    assert said(0, None) == said(2, "a") == examples.NOTHING


def test_counts_are_exact_and_separated():
    assert numbers.count(1234567) == "1,234,567"
    assert numbers.plural(1, "token") == "1 token"
    assert numbers.plural(2000, "token") == "2,000 tokens"
    assert numbers.short(4_560_000) == "4.56 M"
    assert numbers.ribbon_words([[3], [7, 2]]) == "3 → 7+2"


@given(st.text(max_size=60), st.lists(st.tuples(st.integers(-3, 70), st.integers(-3, 70)), max_size=20))
def test_pieces_joined_are_the_text(text, spans):
    tokens = [{"token": i, "char_start": start, "char_end": end} for i, (start, end) in enumerate(spans)]
    pieces = text_pieces(text, tokens)
    assert "".join(piece.text for piece in pieces) == text
    assert all(piece.text for piece in pieces)
    named = [token for piece in pieces for token in piece.tokens]
    assert len(named) == len(set(named))


def test_bytes_of_one_character_become_one_piece():
    tokens = [
        {"token": 0, "char_start": 0, "char_end": 1},
        {"token": 1, "char_start": 1, "char_end": 2},
        {"token": 2, "char_start": 1, "char_end": 2},
        {"token": 3, "char_start": 3, "char_end": 4},
    ]
    pieces = text_pieces("aé b", tokens)
    assert [(piece.text, piece.tokens) for piece in pieces] == [("a", (0,)), ("é", (1, 2)), (" ", ()), ("b", (3,))]


def test_names_from_right_to_left_leave_arrows_and_numbers_in_their_place():
    assert isolated("3 · אבג → דה · 0.5") == "3 · \u2067אבג\u2069 → \u2067דה\u2069 · 0.5"
    assert isolated("the (3), שלום x עולם (12)") == "the (3), \u2067שלום x עולם\u2069 (12)"
    assert isolated("café → 東京") == "café → 東京"
    assert escape("אב → ג") == "\u2067אב\u2069 → \u2067ג\u2069"
    assert _tamed({"caption": "אב → ג", "snippet": "אב → ג"}) == {
        "caption": "\u2067אב\u2069 → \u2067ג\u2069",
        "snippet": "אב → ג",
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1bb\x7f", "a␛b⟦U+007F⟧"),
        ("\u00a0", "⟦U+00A0⟧"),
        ("\u202eabc", "⟦RLO⟧abc"),
        ("❤\ufe0f\u200d🔥", "❤\ufe0f\u200d🔥"),
        ("क्\u200dष", "क्\u200dष"),
        ("می\u200c", "می⟦U+200C⟧"),
        ("\u0301", "◌\u0301"),
        ("東京 été", "東京 été"),
    ],
)
def test_what_is_not_seen_has_a_sign(text: str, shown: str):
    assert with_signs(text) == shown
    assert has_ink(shown)


def test_controls_that_turn_all_that_follows_are_seen_and_turn_nothing():
    assert tamed("a\u202eb\u202c c") == "a⟦RLO⟧b⟦PDF⟧ c"
    turning = {
        chr(code)
        for code in range(0x110000)
        if bidirectional(chr(code)) in {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    }
    for letter in turning:
        assert tamed(letter) == f"⟦{bidirectional(letter)}⟧"
    for text in ("", "abc", "שלום", "سلام\u200f é 🜁\n", "\u200e"):
        assert tamed(text) == text
    assert "\u202e" not in escape("a\u202eb")


def test_text_from_elsewhere_is_no_markdown():
    assert escape("<b>[x](u://y) *z* :red[w] $a$") == "\\<b\\>\\[x\\]\\(u\\://y\\) \\*z\\* \\:red\\[w\\] \\$a\\$"
    assert escape("run `a_b` now!") == "run `a_b` now\\!"
    assert "`" not in escape("one ` only")
    assert "`" not in escape('no column "` a ``` ![i](http://evil.example/x.png) `"')


@given(st.text(alphabet="`a ![](<)>*_:/.\\\n&#~|$-1", max_size=30))
def test_text_from_elsewhere_is_never_markup(text):
    from markdown_it import MarkdownIt

    for token in MarkdownIt("commonmark", {"html": True}).parse(escape(text)):
        assert token.type in {"paragraph_open", "paragraph_close", "inline", "code_block"}, token
        assert {part.type for part in token.children or []} <= {"text", "text_special", "code_inline"}, token


def test_a_model_that_cannot_be_used_is_named_once():
    said = cannot_be_used("bad-json", "bad-json: config.json cannot be used")
    assert said == "The model bad-json cannot be used: config.json cannot be used"
    assert cannot_be_used("m", "weights are missing").endswith("used: weights are missing")


def test_sentences_end():
    assert with_full_stop("no stop") == "no stop."
    assert with_full_stop("stop.") == "stop."


@pytest.mark.parametrize(
    ("label", "loss", "words"), [("cat", 0.3, "right"), ("cat", None, "right"), ("dog", 2.5, "wrong"), (None, None, "")]
)
def test_a_prediction_is_judged(label, loss, words):
    assert verdict({"prediction": "cat", "label": label, "loss": loss}).strip(" –") == words


def test_a_label_that_the_model_never_learnt_judges_nothing():
    said = verdict({"prediction": "goldfish", "label": "animal", "loss": None})
    assert "does not know the label animal" in said
    assert "– wrong" not in said


def test_a_card_gives_no_loss_for_the_few_labels_that_a_model_knows():
    card = {"model": "m", "modality": "vision", "dataset": "scenes", "split": "all", "num_samples": 240}
    told = card_words({**card, "accuracy": None, "loss": 3.83})
    assert "240 images from “scenes”" in told
    assert "Accuracy not available" in told
    assert "nats" not in told
    assert "Accuracy 50.0 %" in card_words({**card, "accuracy": 0.5, "loss": 3.83})
    assert "Loss 5.37 nats" in card_words({**card, "modality": "text", "accuracy": None, "loss": 5.37})


def test_one_value_for_all_is_noticed():
    assert all_alike({"min": 1.0, "max": 1.0})
    assert not all_alike({"min": 0.5, "max": 1.0})
    assert not all_alike({"min": None, "max": None})


def test_cut_context_begins_and_ends_at_a_word():
    long = "cial-cased so you need not declare it as such that takes all of the"
    assert cut_start(long[:CONTEXT]).startswith("… so you need")
    assert cut_end(long[:CONTEXT]).endswith(" …")
    assert cut_start("\n\nshort ") == "short "
    assert cut_end(" short\n\n") == " short"
    assert cut_start("a\n\n  \nb ") == "a\nb "
    assert cut_start("x" * CONTEXT) == "… " + "x" * CONTEXT


def test_tables_explain_their_metrics_and_keep_their_formats():
    from streamlit.column_config import NumberColumn

    from tokenpaths.frontend.charts.families.gate_worth import condition_rows
    from tokenpaths.frontend.formulas import COLUMNS, OF_TOKENS
    from tokenpaths.frontend.page import widgets

    percent = NumberColumn(format="percent")
    made = widgets._explained({"reuse": 0.5, "cdf": 0.1, "anything": 1}, {"reuse": percent})
    assert made["cdf"]["help"] == COLUMNS["cdf"]
    assert made["reuse"]["help"] == COLUMNS["reuse"]
    assert made["reuse"]["type_config"]["format"] == "percent"
    assert "anything" not in made
    # A share is of whatever a table counts, and a rank of a path: other columns have another name or no help.
    assert "help" not in widgets._explained({"share": 0.5}, {"share": percent})["share"]
    assert "tokens" in widgets._explained({"share": 0.5}, OF_TOKENS)["share"]["help"]
    row = {"name": "off", "probability": 0.5, "rank": 3, "best": "a", "best_probability": 0.6}
    assert "rank" not in condition_rows({"conditions": [row]})[0]


def test_an_artefact_of_an_import_is_said_on_the_page() -> None:
    found = [{"kind": "artefact", "sentence": "A view was strided"}, {"kind": "note", "sentence": "x"}, "odd"]
    assert common.artefacts({"findings": {"import_doctor": found}}) == ["A view was strided."]
    assert common.artefacts({"findings": {"import_doctor": "?"}}) == common.artefacts({}) == []


def test_a_reason_becomes_a_sentence_and_keeps_its_signs_and_names() -> None:
    reason = "these tokens, or the others, lie in one sample, so Δ has no interval"
    assert common.as_sentence(reason) == "T" + reason[1:] + "."
    assert common.as_sentence("the twin of DNA is not there yet.") == "The twin of DNA is not there yet."


def test_a_text_in_a_list_has_its_first_words() -> None:
    from tokenpaths.frontend.views.family.directional import text_words

    row = {"sample": 12, "label": "English", "snippet": "the cat\nsat on the mat and looked at the moon", "text": None}
    assert text_words(row) == "12 · English · the cat sat on the mat and loo"
    assert text_words({"sample": 3}) == "3 · no label"


def test_the_card_of_images_without_accuracy_claims_nothing_about_labels() -> None:
    from tokenpaths.frontend.views.home.runs import card_words

    card = {"run": "a", "modality": "vision", "dataset": "photos", "num_samples": 3, "num_tokens": 9, "num_paths": 2}
    assert card_words(card).endswith("Accuracy not available: no labels, or the model knows those of fewer than half.")
    assert card_words(card | {"accuracy": 0.5}).endswith("Accuracy 50.0 %.")


def test_a_word_that_is_a_blank_has_a_sign_in_the_table_of_words_that_differ():
    row = {"token_id": 7, "tokens": 9, "samples": 8, "sets": 0.5}
    shown = [one["word"] for one in word_rows([row | {"text": text} for text in (" ", "\n", "the", "", None)])]
    assert shown == ["·", "↵", "the", "id 7", "id 7"]
