"""Texts whose tokens come in several passes: decoding with a cache, by transformers and by models of people's own."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.engine.adapters.recorder.test_recorder import expected, recorded
from tests.support.recorder_models import WIDTH, Language, tokens
from tokenpaths.engine.adapters.recorder.recorder import Recorder, record
from tokenpaths.engine.adapters.recorder.recording_warnings import RecordingStopped

transformers = pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def _no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def texts(rec: Recorder) -> list[tuple[np.ndarray, np.ndarray]]:
    """Choices (T, S, K) and token ids (T,) of each sample."""
    ids, _, token_ids = recorded(rec.run)
    with duckdb.connect(str(rec.file), read_only=True) as connection:
        lengths = [n for (n,) in connection.execute("SELECT num_tokens FROM sample ORDER BY sample").fetchall()]
    ends = np.cumsum(lengths)[:-1]
    return list(zip(np.split(ids, ends), np.split(token_ids, ends), strict=True))


def of_samples(rec: Recorder, column: str) -> list[str]:
    with duckdb.connect(str(rec.file), read_only=True) as connection:
        return [text for (text,) in connection.execute(f"SELECT {column} FROM sample ORDER BY sample").fetchall()]


# Models of transformers ---------------------------------------------------------------------------------------------

COMMON = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "eos_token_id": 5, "bos_token_id": 1,
    "num_experts_per_tok": 2,
}  # fmt: skip


def mixtral(**options):
    torch.manual_seed(0)
    config = transformers.MixtralConfig(num_local_experts=6, **{**COMMON, "sliding_window": None, **options})
    model = transformers.MixtralForCausalLM(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(3)  # choices that hang on the tokens before
    return model


@pytest.fixture(scope="module")
def model():
    return mixtral()


@pytest.fixture(scope="module")
def prompts() -> Tensor:
    return torch.randint(6, 97, (3, 7), generator=torch.Generator().manual_seed(0))


def whole(model, token_ids: np.ndarray, folder: Path) -> np.ndarray:
    """Choices (T, S, K) of one text in one pass without a cache."""
    with record(model, run="whole", runs_dir=folder, overwrite=True) as rec:
        model(torch.as_tensor(token_ids)[None].long(), use_cache=False)
    return recorded(rec.run)[0]


def assert_whole_texts(rec: Recorder, model, folder: Path, wanted: list[np.ndarray] | None = None) -> None:
    """Every sample has the choices of its tokens given in one pass, and (if given) the tokens ``wanted``."""
    found = texts(rec)
    for choices, token_ids in found:
        assert np.array_equal(choices, whole(model, token_ids, folder))
    if wanted is not None:
        assert [token_ids.tolist() for _, token_ids in found] == [list(text) for text in wanted]
    assert rec.num_tokens == sum(len(token_ids) for _, token_ids in found) == rec.run.row["num_tokens"]


@pytest.mark.parametrize("options", [{}, {"sliding_window": 8}], ids=["full", "sliding window"])
def test_a_generated_text_is_one_sample(tmp_path, prompts, options):
    model = mixtral(**options)
    prompts, mask = prompts.clone(), torch.ones_like(prompts)
    prompts[1, :3], mask[1, :3] = 0, 0
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(prompts, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=-1)
    # The last token was never given to the model; the padding before the second text is left out.
    assert_whole_texts(rec, model, tmp_path, [row[3 * (i == 1) : -1].tolist() for i, row in enumerate(out)])
    assert rec.notes == []
    assert of_samples(rec, "source")[2] == "forward passes 0 to 11, sample 2"


def test_padding_behind_the_end_of_a_text_is_left_out(tmp_path, prompts):
    model = mixtral()
    model.generation_config.suppress_tokens = [0]  # no padding that is text
    free = model.generate(prompts, max_new_tokens=9, do_sample=False, eos_token_id=-1)
    new = [row.tolist() for row in free[:, 7:-1]]
    end, text = next((new[i][3], i) for i in range(3) if new[i][3] not in new[i][:3])
    model.generation_config.eos_token_id = end
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model.generate(prompts, max_new_tokens=9, do_sample=False)
    lengths = [len(token_ids) for _, token_ids in texts(rec)]
    assert lengths[text] == 7 + 4
    ended = [row.index(end) + 1 if end in row else 8 for row in new]
    longest = max(ended)
    assert lengths == [7 + min(n, longest) for n in ended]
    assert rec.notes == [
        "padding behind the end of a text, while others of its batch went on, is left out "
        f"({sum(longest - n for n in ended)} tokens)"
    ]
    assert_whole_texts(rec, model, tmp_path)


class StopsEarly(transformers.StoppingCriteria):
    """The first text ends at ten tokens, the second at twelve."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([input_ids.shape[1] >= 10, input_ids.shape[1] >= 12, False])


def test_padding_behind_a_stop_criterion_is_left_out(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(prompts, max_new_tokens=9, do_sample=False, stopping_criteria=[StopsEarly()])
    assert (out[0, 10:] == 0).all()
    wanted = [out[0, :10], out[1, :12], out[2, :-1]]
    assert_whole_texts(rec, model, tmp_path, [row.tolist() for row in wanted])
    assert rec.notes == ["padding behind the end of a text, while others of its batch went on, is left out (8 tokens)"]


def test_a_loop_without_a_cache_counts_each_token_once(tmp_path, model, prompts):
    mask = torch.ones_like(prompts)
    mask[0, :2] = 0
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        rec.batch(labels=["x", "y", "z"])
        out = model.generate(
            prompts, attention_mask=mask, max_new_tokens=9, do_sample=False, use_cache=False,
            stopping_criteria=[StopsEarly()],
        )  # fmt: skip
        model(prompts)
    wanted = [out[0, 2:10], out[1, :12], out[2, :-1], *prompts]
    assert_whole_texts(rec, model, tmp_path, [row.tolist() for row in wanted])
    assert rec.num_tokens == rec.run.row["num_tokens"] == 8 + 12 + 15 + 21
    assert of_samples(rec, "label") == ["x", "y", "z", None, None, None]
    again = sum(3 * length - 2 for length in range(7, 15))
    assert f"is left out ({again} tokens)" in rec.notes[0]


@pytest.mark.parametrize(
    ("first", "second", "lengths"),
    [
        ({"labels": ["en"]}, {"labels": ["de"]}, [6, 7]),
        ({"texts": ["one"]}, {"texts": ["one and more"]}, [6, 7]),
        ({}, {"continues": False}, [6, 7]),
        ({"labels": ["en"]}, {"labels": ["en"]}, [7]),
        ({"labels": ["en"]}, {}, [7]),
    ],
)
def test_texts_that_begin_alike_are_not_one(tmp_path, model, prompts, first, second, lengths):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        rec.batch(**first)
        model(prompts[:1, :6], use_cache=False)
        rec.batch(**second)
        model(prompts[:1], use_cache=False)
    assert [len(token_ids) for _, token_ids in texts(rec)] == lengths
    assert ["rec.batch(continues=False)" in note for note in rec.notes] == [True] * (len(lengths) == 1)


@pytest.mark.parametrize("cache", [None, "static"])
def test_beams_are_followed_back(tmp_path, model, prompts, cache):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model.generate(
            prompts[:2],
            num_beams=3,
            max_new_tokens=8,
            do_sample=False,
            cache_implementation=cache,
            disable_compile=True,
        )
    assert_whole_texts(rec, model, tmp_path)
    assert [len(token_ids) for _, token_ids in texts(rec)] == [14] * 6
    assert rec.notes[-1].startswith("beams that ended or were given up are left out (")


def test_a_cache_of_fixed_size(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(
            prompts, max_new_tokens=8, do_sample=False, cache_implementation="static", disable_compile=True
        )
    assert_whole_texts(rec, model, tmp_path, out[:, :-1].tolist())


def test_rejected_drafts_are_left_out(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(
            prompts[:1].repeat(1, 3), prompt_lookup_num_tokens=3, max_new_tokens=12, do_sample=False, eos_token_id=-1
        )
    assert_whole_texts(rec, model, tmp_path, out[:, :-1].tolist())
    assert rec.notes[0].startswith("rejected drafts, taken back out of a cache, are left out (")


def test_turns_of_a_conversation_are_one_text(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache, text = transformers.DynamicCache(config=model.config), prompts[:1]
        for _ in range(3):
            text = model.generate(text, past_key_values=cache, max_new_tokens=3, do_sample=False, eos_token_id=-1)
            text = torch.cat([text, prompts[2:, :3]], dim=1)
    assert_whole_texts(rec, model, tmp_path, [text[0, :-4].tolist()])


def test_conversations_that_take_turns_stay_apart(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        caches = [transformers.DynamicCache(config=model.config) for _ in range(3)]
        for place in range(7):
            for row, cache in enumerate(caches):
                model(prompts[row : row + 1, place : place + 1], past_key_values=cache)
    assert_whole_texts(rec, model, tmp_path, prompts.tolist())


def test_passes_without_a_past_stay_apart_and_in_order(tmp_path, model, prompts):
    """Also where the caller keeps the caches that every pass leaves."""
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        kept = [model((prompts + i) % 97) for i in range(12)]
    assert len(kept) == 12
    assert np.array_equal(recorded(rec.run)[2], torch.cat([(prompts + i).flatten() % 97 for i in range(12)]).numpy())
    assert rec.run.row["num_samples"] == 36


def test_a_copied_prefix_begins_in_the_middle_and_says_so(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        prefix = transformers.DynamicCache(config=model.config)
        model(prompts[:1, :4], past_key_values=prefix)
        for _ in range(2):
            mine = copy.deepcopy(prefix)
            for place in range(4, 7):
                model(prompts[:1, place : place + 1], past_key_values=mine)
    assert [token_ids.tolist() for _, token_ids in texts(rec)] == [
        prompts[0, :4].tolist(), prompts[0, 4:].tolist(), prompts[0, 4:].tolist()
    ]  # fmt: skip
    (note,) = rec.notes
    assert note == (
        "forward pass 1 was given a cache that was left by no pass of this recording: its tokens are samples of their "
        "own"
    )


def test_a_shortened_cache_keeps_the_text_that_it_was_cut_from(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache = transformers.DynamicCache(config=model.config)
        model(prompts[:1, :4], past_key_values=cache)
        model(prompts[:1, 4:], past_key_values=cache)
        cache.crop(-5)
        model(prompts[1:2, 2:], past_key_values=cache)
    assert [token_ids.tolist() for _, token_ids in texts(rec)] == [prompts[0].tolist(), prompts[1, 2:].tolist()]
    assert "was shortened to an earlier place of its text" in rec.notes[0]


def test_every_second_pass_of_a_decoding_loop_makes_no_text(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path, every=2) as rec:
        model.generate(prompts[:1], max_new_tokens=6, do_sample=False, eos_token_id=-1)
    assert [len(token_ids) for _, token_ids in texts(rec)] == [7, 1, 1]


# Models of people's own ---------------------------------------------------------------------------------------------


class Decoder(Language):
    """``Language`` that goes on from the sums of its layers, in the caches that people write."""

    def __init__(self) -> None:
        super().__init__(layers=2)
        self.sums: list[Tensor] = []

    def run(self, input_ids: Tensor, sums: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Logits, and the sums (B, 1, D) of each layer up to the last token."""
        x, new = self.embed(input_ids), []
        for layer, before in zip(self.layers, sums, strict=True):
            total = x.cumsum(dim=1) + before
            new.append(total[:, -1:])
            x = x + torch.tanh(layer.mixer(total / WIDTH))
            x = x + layer.moe(layer.norm(x))
        return self.head(x), new


def nothing(input_ids: Tensor, layers: int = 2) -> list[Tensor]:
    return [torch.zeros(len(input_ids), 1, WIDTH) for _ in range(layers)]


class GivesBack(Decoder):
    """A tuple goes in, a new one comes out."""

    def forward(self, input_ids, past=None):
        logits, new = self.run(input_ids, nothing(input_ids) if past is None else past)
        return logits, tuple(new)

    def decode(self, pieces: list[Tensor]) -> None:
        past = None
        for piece in pieces:
            _, past = self(piece, past=past)


class FillsList(Decoder):
    """A list is filled and changed in place."""

    def forward(self, input_ids, kv_cache):
        logits, new = self.run(input_ids, list(kv_cache) or nothing(input_ids))
        kv_cache[:] = new
        return logits

    def decode(self, pieces: list[Tensor]) -> None:
        cache: list[Tensor] = []
        for piece in pieces:
            self(piece, kv_cache=cache)


class KeepsInside(Decoder):
    """The cache is the model's own; a number or positions say where a pass begins."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_cache: list[Tensor] = []

    def forward(self, input_ids, start_pos=None, input_pos=None):
        begin = int(start_pos if input_pos is None else input_pos[0])
        logits, self.kv_cache = self.run(input_ids, self.kv_cache if begin else nothing(input_ids))
        return logits

    def decode(self, pieces: list[Tensor]) -> None:
        begin = 0
        for i, piece in enumerate(pieces):
            positions = torch.arange(begin, begin + piece.shape[1])
            self(piece, **({"start_pos": begin} if i % 2 else {"input_pos": positions}))
            begin += piece.shape[1]


class FixedBuffers(Decoder):
    """The same tensors for every text, so that nothing tells where one begins but ``start_pos``, where it is given."""

    def forward(self, input_ids, cache, start_pos=None):
        logits, new = self.run(input_ids, [buffer.clone() for buffer in cache])
        for buffer, value in zip(cache, new, strict=True):
            buffer.copy_(value)
        return logits

    def decode(self, pieces: list[Tensor]) -> None:
        begin = 0
        for buffer in self.buffers_of(pieces[0]):
            buffer.zero_()
        for piece in pieces:
            self(piece, cache=self.sums, start_pos=begin)
            begin += piece.shape[1]

    def buffers_of(self, piece: Tensor) -> list[Tensor]:
        if not self.sums:
            self.sums = nothing(piece)
        return self.sums


def decoder(kind: type[Decoder]) -> Decoder:
    torch.manual_seed(0)
    return kind().requires_grad_(False)


def split(ids: Tensor) -> list[Tensor]:
    return list(ids.split([4, 1, 2], dim=1))


@pytest.mark.parametrize("kind", [GivesBack, FillsList, KeepsInside, FixedBuffers])
def test_caches_that_people_write(tmp_path, kind):
    model, first, second = decoder(kind), tokens(), tokens(seed=2)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model.decode(split(first))
        model.decode(split(second))
    assert rec.notes == []
    found, wanted = recorded(rec.run), expected(model, [first, second])
    assert np.array_equal(found[0], wanted[0])
    assert np.array_equal(found[2], torch.cat([first, second]).flatten().numpy())
    assert [len(ids) for ids, _ in texts(rec)] == [7] * 6


def test_a_cache_of_unknown_length_is_not_guessed_at(tmp_path):
    model, ids = decoder(FixedBuffers), tokens()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for piece in split(ids):
            model(piece, cache=model.buffers_of(piece))
    assert [len(part) for part, _ in texts(rec)] == [4] * 3 + [1] * 3 + [2] * 3
    (note,) = rec.notes
    assert note == (
        "forward pass 1 was given a cache that does not say how many tokens stand in it: its tokens are samples of "
        "their own; rec.batch(continues=True) says that they go on where the pass before ended"
    )
    model = decoder(FixedBuffers)
    with record(model, run="said", runs_dir=tmp_path) as rec:
        for i, piece in enumerate(split(ids)):
            rec.batch(continues=i > 0, texts=[f"{i}{row}" for row in "abc"], labels=["x"] * 3 if i == 0 else None)
            model(piece, cache=model.buffers_of(piece))
    assert rec.notes == []
    assert np.array_equal(recorded(rec.run)[0], expected(model, [ids])[0])
    assert of_samples(rec, "text") == ["0a1a2a", "0b1b2b", "0c1c2c"]
    assert of_samples(rec, "label") == ["x"] * 3


def test_a_pass_can_be_said_to_begin_texts_of_its_own(tmp_path):
    model, ids = decoder(GivesBack), tokens()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        _, past = model(ids[:, :4])
        rec.batch(continues=False)
        model(ids[:, 4:], past=past)
    assert [len(part) for part, _ in texts(rec)] == [4] * 3 + [3] * 3


@pytest.mark.parametrize(
    ("before", "there"), [([], "there is none"), ([2], "that had 2")], ids=["no pass", "of other samples"]
)
def test_a_pass_that_continues_nothing_stops_the_recording(tmp_path, before, there):
    model = decoder(GivesBack)
    with warnings.catch_warnings(record=True) as caught, record(model, run="mine", runs_dir=tmp_path) as rec:
        warnings.simplefilter("always")
        for samples in before:
            model(tokens(samples))
        rec.batch(continues=True)
        model(tokens(3))
    assert f"continues is True for a pass of 3 samples, but of the pass before {there}" in str(caught[0].message)
    assert (rec.file is None) == (not before)


@pytest.mark.parametrize("kind", [GivesBack, FillsList])
def test_more_tokens_than_are_waited_for(tmp_path, kind: Callable[[], Decoder], monkeypatch):
    """The texts that began first are written, and what follows of them stands apart; nothing is lost."""
    monkeypatch.setattr("tokenpaths.engine.adapters.recorder.joined_texts._MOST_TOKENS", 6)
    model = decoder(kind)
    ids = [tokens(1, 4, seed=seed) for seed in range(4)]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        state = [[] if kind is FillsList else None for _ in ids]
        for part in (slice(0, 3), slice(3, 4)):
            for i, text in enumerate(ids):
                out = model(text[:, part], state[i])
                if kind is GivesBack:
                    state[i] = out[1]
    lengths = [len(part) for part, _ in texts(rec)]
    assert sum(lengths) == 16
    assert 1 in lengths
    assert "or whose texts are written already" in rec.notes[0]


def test_a_text_that_is_at_work_is_not_written_under_its_hands(tmp_path, monkeypatch):
    """It began first, others wait behind it, and too many tokens wait: what follows must not go where nobody looks."""
    monkeypatch.setattr("tokenpaths.engine.adapters.recorder.joined_texts._MOST_TOKENS", 8)
    model, ids = decoder(GivesBack), tokens(1, 6)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        _, past = model(ids[:, :2])
        kept = [model(tokens(1, 3, seed=seed)) for seed in (5, 6)]
        _, past = model(ids[:, 2:4], past)
        rec.batch(continues=True)
        model(ids[:, 4:], past)
    assert kept
    assert rec.num_tokens == rec.run.row["num_tokens"] == 12
    assert [token_ids.tolist() for _, token_ids in texts(rec)][0] == ids[0].tolist()


# What looks like a text that goes on, and is none ---------------------------------------------------------------------


class Packed(Language):
    """Positions of packed texts in a training; there is no cache."""

    def forward(self, tokens, *, mask=None, input_pos=None, start_pos=None):
        return super().forward(tokens)


def test_positions_without_a_cache_join_nothing(tmp_path):
    torch.manual_seed(0)
    model = Packed(layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for begin in (0, 6, 3, 9, 6):
            model(tokens(2, 6, seed=begin), input_pos=torch.arange(begin, begin + 6))
        for begin in (0, 3, 6):
            model(tokens(2, 6, seed=begin), start_pos=begin)
    assert [len(part) for part, _ in texts(rec)] == [6] * 16
    assert rec.notes == []


PACKED = {
    "bounds": {"cu_seq_lens_q": torch.tensor([0, 4, 5, 9])},
    "bounds, padded": {"cu_seq_lens_q": torch.tensor([0, 4, 5, 9, 9, 9], dtype=torch.int32)},
    "positions": {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 0, 1, 2, 3]])},
    "both": {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 0, 1, 2, 3]]), "cu_seq_lens_q": torch.tensor([0, 4, 5, 9])},
}


class TakesPositions(Language):
    def forward(self, input_ids, attention_mask=None, position_ids=None, past=None, **bounds):
        return super().forward(input_ids)


def takes_positions() -> TakesPositions:
    torch.manual_seed(0)
    return TakesPositions(layers=1)


@pytest.mark.parametrize("kind", PACKED)
def test_texts_that_are_packed_behind_each_other_are_samples_each(tmp_path, kind):
    model, ids = takes_positions(), tokens(1, 9)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        rec.batch(labels=["all"], texts=["the whole row"])
        model(ids, **PACKED[kind])
        model(ids)
    assert [part.tolist() for _, part in texts(rec)] == [
        x.tolist() for x in (ids[0, :4], ids[0, 4:5], ids[0, 5:], ids[0])
    ]
    assert of_samples(rec, "source")[1:] == [
        "forward pass 0, sample 0, text 1",
        "forward pass 0, sample 0, text 2",
        "forward pass 1, sample 0",
    ]
    assert of_samples(rec, "label") == ["all", "all", "all", None]
    assert rec.notes == []


def test_rows_of_packed_texts_and_padding(tmp_path):
    model, ids = takes_positions(), tokens(2, 6)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]])
    places = torch.tensor([[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]])
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(ids, mask, position_ids=places)
        model(ids, position_ids=torch.zeros_like(ids))  # those of no text
        model(ids[:, :1], position_ids=torch.tensor([[3], [5]]))
    assert [len(part) for part, _ in texts(rec)] == [2, 3, 6, 6, 6, 1, 1]
    assert rec.notes == []


def test_positions_of_padding_without_a_mask_are_no_texts(tmp_path):
    model, ids = takes_positions(), tokens(2, 6)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(ids, position_ids=torch.tensor([[0, 1, 2, 0, 0, 0], [0, 1, 2, 3, 4, 5]]))
    assert [len(part) for part, _ in texts(rec)] == [6, 6]
    assert rec.notes == []


def test_a_row_of_one_token_does_not_keep_others_packed(tmp_path):
    model, ids = takes_positions(), tokens(3, 6)
    mask = torch.tensor([[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    places = torch.tensor([[0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 1, 2], [0, 0, 0, 0, 0, 0]])
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(ids, mask, position_ids=places)
    assert [part.tolist() for _, part in texts(rec)] == [
        x.tolist() for x in (ids[0, :1], ids[1, :3], ids[1, 3:])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "note"),
    [
        ({"position_ids": torch.tensor([[2, 3, 4, 1, 2, 3]])}, "position_ids go back within a row, but not to 0"),
        ({"cu_seq_lens_q": torch.tensor([0, 3, 5])}, "the bounds of packed texts reach from 0 to 5, the pass has 6"),
    ],
)
def test_positions_that_do_not_tell_texts_apart_are_noted(tmp_path, said, note):
    model = takes_positions()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(tokens(1, 6), **said)
    assert [len(part) for part, _ in texts(rec)] == [6]
    assert rec.notes[0].startswith(note)


def test_packed_texts_are_not_gone_on_from(tmp_path):
    class WithPast(GivesBack):
        def forward(self, input_ids, past=None, cu_seq_lens_q=None):
            return super().forward(input_ids, past)

    model, ids = decoder(WithPast), tokens(1, 6)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        _, past = model(ids, cu_seq_lens_q=torch.tensor([0, 4, 6]))
        _, past = model(ids[:, :2], past, cu_seq_lens_q=torch.tensor([0, 1, 2]))
        model(ids[:, :1], past)
    assert [len(part) for part, _ in texts(rec)] == [4, 2, 1, 1, 1]
    assert len(rec.notes) == 2
    assert "forward pass 1 holds tokens of several texts behind each other" in rec.notes[0]
    assert "was given the cache of a pass with several texts behind each other" in rec.notes[1]
    assert "continues=True" not in "".join(rec.notes)


def test_positions_continue_only_where_the_pass_before_ended(tmp_path):
    model, ids = decoder(KeepsInside), tokens(2, 8)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        model(ids[:, :4], start_pos=0)
        model(ids[:, 4:6], start_pos=4)
        model(ids[:, 6:], start_pos=3)
    assert [len(part) for part, _ in texts(rec)] == [6, 6, 2, 2]
    (note,) = rec.notes
    assert "forward pass 2 begins at place 3 of its texts, where no recorded pass ended" in note
    with record(model, run="rows", runs_dir=tmp_path) as rec:
        model(ids[:, :4], start_pos=0)
        model(ids[:, 4:5], input_pos=torch.tensor([3, 4]))  # one place a sample
    assert [len(part) for part, _ in texts(rec)] == [4, 4, 1, 1]


def test_answers_behind_one_prefix_are_all_kept(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache = transformers.DynamicCache(config=model.config)
        model(prompts[:1, :4], past_key_values=cache)
        for row in range(3):
            model(prompts[row : row + 1, 4:], past_key_values=cache)
            cache.crop(-3)
    assert [token_ids.tolist() for _, token_ids in texts(rec)] == [
        prompts[0].tolist(), prompts[1, 4:].tolist(), prompts[2, 4:].tolist()
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [0, 1])
def test_rows_that_change_their_places_are_followed(tmp_path, model, prompts, cut):
    order = [2, 0, 1]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache = transformers.DynamicCache(config=model.config)
        model(prompts[:, :6], past_key_values=cache)
        if cut:
            cache.crop(-cut)
        cache.reorder_cache(torch.tensor(order))
        model(prompts[order, 6 - cut :], past_key_values=cache)
    assert_whole_texts(rec, model, tmp_path, [prompts[row].tolist() for row in order])


def test_a_batch_that_grows_and_shrinks(tmp_path, model, prompts):
    """Samples that are taken out have ended; those that are doubled go on from the same tokens."""
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache = transformers.DynamicCache(config=model.config)
        model(prompts[:, :4], past_key_values=cache)
        cache.batch_select_indices(torch.tensor([0, 2]))
        model(prompts[[0, 2], 4:5], past_key_values=cache)
        cache.batch_repeat_interleave(2)
        model(prompts[[0, 1, 2, 1], 5:], past_key_values=cache)
    ways = [(0, 0), (0, 1), (2, 2), (2, 1)]
    wanted = [[*prompts[a, :5].tolist(), *prompts[b, 5:].tolist()] for a, b in ways]
    assert_whole_texts(rec, model, tmp_path, [*wanted, prompts[1, :4].tolist()])
    assert rec.notes == []


@pytest.mark.parametrize("seed", [0, 1])
def test_beams_of_a_model_whose_keys_know_only_their_token(tmp_path, prompts, seed):
    torch.manual_seed(seed)
    model = mixtral(num_hidden_layers=1)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(
            prompts[:2], num_beams=6, num_return_sequences=6, max_new_tokens=12, do_sample=False, eos_token_id=-1
        )
    assert_whole_texts(rec, model, tmp_path)
    found = {tuple(token_ids.tolist()) for _, token_ids in texts(rec)}
    assert {tuple(row[:-1].tolist()) for row in out} <= found


def test_beams_may_write_the_token_of_padding_as_text(tmp_path, prompts):
    model = mixtral()
    model.lm_head.weight[0] *= 6  # often chosen
    model.generation_config.suppress_tokens = [5]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(prompts[:2], num_beams=3, max_new_tokens=8, do_sample=False, eos_token_id=-1)
    found = [token_ids.tolist() for _, token_ids in texts(rec)]
    assert [len(text) for text in found] == [7 + 7] * 6
    assert {text[-1] == 0 for text in found} == {True, False}
    assert out[0, :-1].tolist() in found
    assert not any("padding" in note for note in rec.notes)


@pytest.mark.parametrize("use_cache", [True, False])
def test_labels_of_prompts_are_those_of_all_that_is_written_behind_them(tmp_path, model, prompts, use_cache):
    options = {"do_sample": True, "num_return_sequences": 2, "max_new_tokens": 3, "eos_token_id": -1}
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        rec.batch(labels=["x", "y", "z"], texts=["a", "b", "c"])
        model.generate(prompts, use_cache=use_cache, **options)
    of_prompts = [token_ids[:7].tolist() for _, token_ids in texts(rec)[:6]]
    assert of_prompts == prompts.repeat_interleave(2, dim=0).tolist()
    assert of_samples(rec, "label")[:6] == ["x", "x", "y", "y", "z", "z"]
    assert of_samples(rec, "text")[:6] == ["a", "a", "b", "b", "c", "c"]
    assert "forward pass 0 has 6 samples and 3 labels: each is that of 2 samples" in "".join(rec.notes)


def test_labels_of_a_training_are_not_spread(tmp_path, model, prompts):
    said = pytest.warns(RecordingStopped, match="1 labels for 3 samples: give one for each")
    with said, record(model, run="mine", runs_dir=tmp_path) as rec:
        model(prompts, use_cache=False)
        rec.batch(labels=["x"])
        model(prompts, use_cache=False)


def test_keys_that_were_exchanged_by_hand_are_not_gone_on_from(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        one, other = (transformers.DynamicCache(config=model.config) for _ in range(2))
        model(prompts[:1, :4], past_key_values=one)
        model(prompts[1:2, :4], past_key_values=other)
        one.layers = other.layers
        model(prompts[1:2, 4:], past_key_values=one)
    assert [len(part) for part, _ in texts(rec)] == [4, 4, 3]
    assert "was changed after the pass that left it" in rec.notes[0]


def test_the_methods_of_caches_are_left_as_they_were(tmp_path, model, prompts):
    class Own(transformers.DynamicCache):
        def crop(self, tokens_to_remove):
            super().crop(tokens_to_remove)

        def reorder_cache(self, beam_idx):
            super().reorder_cache(beam_idx)

    before = {kind: dict(vars(kind)) for kind in (transformers.DynamicCache, Own)}
    with record(model, run="one", runs_dir=tmp_path), record(model, run="two", runs_dir=tmp_path) as rec:
        cache = Own(config=model.config)
        model(prompts[:1, :4], past_key_values=cache)
        cache.crop(-1)
        model(prompts[:1, 3:], past_key_values=cache)
        model.generate(prompts, num_beams=2, max_new_tokens=3, do_sample=False)
        assert vars(Own)["crop"] is not before[Own]["crop"]
        cache = Own(config=model.config)
        model(prompts[:, :6], past_key_values=cache)
        cache.reorder_cache(torch.tensor([1, 2, 0]))  # moves the samples once, though two classes hear of it
        model(prompts[[1, 2, 0], 6:], past_key_values=cache)
    assert {kind: dict(vars(kind)) for kind in before} == before
    found = [token_ids.tolist() for _, token_ids in texts(rec)]
    assert found[0] == prompts[0].tolist()
    assert found[-3:] == prompts[[1, 2, 0]].tolist()


def test_an_end_that_is_padding_too_is_text_where_nothing_else_goes_on(tmp_path):
    model = mixtral(pad_token_id=5)
    written = [7, 8, 5, 5, 9, 5, 5, 5]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache = transformers.DynamicCache(config=model.config)
        for token in written:
            model(torch.tensor([[token]]), past_key_values=cache)
        pair = transformers.DynamicCache(config=model.config)
        for first, second in ((7, 7), (8, 8), (5, 9), (5, 9), (5, 5)):
            model(torch.tensor([[first], [second]]), past_key_values=pair)
    assert [token_ids.tolist() for _, token_ids in texts(rec)] == [written, [7, 8, 5], [7, 8, 9, 9, 5]]
    assert rec.notes[0].endswith("is left out (2 tokens)")


def test_without_a_padding_of_its_own_a_model_pads_with_its_first_end(tmp_path):
    model = mixtral(pad_token_id=None)
    model.generation_config.eos_token_id = [11, 5]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache = transformers.DynamicCache(config=model.config)
        for first, second in ((7, 7), (5, 8), (11, 9), (11, 9)):
            model(torch.tensor([[first], [second]]), past_key_values=cache)
    assert [token_ids.tolist() for _, token_ids in texts(rec)] == [[7, 5], [7, 8, 9, 9]]


def test_what_the_caller_says_stands_beside_what_the_cache_says(tmp_path, model, prompts):
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        cache = transformers.DynamicCache(config=model.config)
        model(prompts[:1, :3], past_key_values=cache)
        rec.batch(continues=False)
        model(prompts[:1, 3:5], past_key_values=cache)
        model(prompts[:1, 5:], past_key_values=cache)
        cache.crop(-1)
        rec.batch(continues=True)
        model(torch.tensor([[11, 12]]), past_key_values=cache)
        model(torch.tensor([[13]]), past_key_values=cache)
    assert [token_ids.tolist() for _, token_ids in texts(rec)] == [
        prompts[0, :3].tolist(), [*prompts[0, 3:6].tolist(), 11, 12, 13]
    ]  # fmt: skip
    assert rec.notes == ["rejected drafts, taken back out of a cache, are left out (1 token)"]


def test_a_constant_context_is_no_cache(tmp_path):
    class Conditioned(Decoder):
        def forward(self, input_ids, kv=None):
            return self.run(input_ids, nothing(input_ids))[0], kv

    model, context = decoder(Conditioned), [torch.ones(3, 2, WIDTH)]
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        for seed in range(3):
            model(tokens(seed=seed), kv=context)
    assert [len(part) for part, _ in texts(rec)] == [7] * 9
    assert rec.notes == []


def test_branches_of_one_tuple_are_not_one_text(tmp_path):
    model, ids = decoder(GivesBack), tokens(1, 6)
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        _, past = model(ids[:, :4])
        for place in (4, 5):
            model(ids[:, place : place + 1], past)
    assert [len(part) for part, _ in texts(rec)] == [5, 1]
    assert "that another pass has gone on from" in rec.notes[0]


def test_a_cache_behind_a_wrapper_and_in_the_first_place(tmp_path):
    class Wrapped(Decoder):
        def forward(self, *args, **kwargs):
            (ids,) = args
            past = kwargs.get("past")
            logits, new = self.run(ids, nothing(ids) if past is None else past)
            return tuple(new), logits

    model, ids = decoder(Wrapped), tokens()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        past, _ = model(ids[:, :4])
        model(ids[:, 4:], past=past, kv_lens=[4, 4, 4])
    assert [len(part) for part, _ in texts(rec)] == [7] * 3


def test_a_cache_of_fixed_size_and_padding(tmp_path, model, prompts):
    padded, mask = prompts.clone(), torch.ones_like(prompts)
    padded[1, :3], mask[1, :3] = 0, 0
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(
            padded, attention_mask=mask, max_new_tokens=6, do_sample=False, cache_implementation="static",
            disable_compile=True, eos_token_id=-1,
        )  # fmt: skip
    assert_whole_texts(rec, model, tmp_path, [row[3 * (i == 1) : -1].tolist() for i, row in enumerate(out)])
    assert rec.notes == []


def test_a_model_whose_first_layer_has_no_length(tmp_path, prompts):
    torch.manual_seed(0)
    options = {**COMMON, "num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"]}
    model = transformers.MiniMaxForCausalLM(transformers.MiniMaxConfig(block_size=4, **options)).eval()
    with record(model, run="mine", runs_dir=tmp_path) as rec:
        out = model.generate(prompts[:1], max_new_tokens=5, do_sample=False, eos_token_id=-1)
    assert [token_ids.tolist() for _, token_ids in texts(rec)] == out[:, :-1].tolist()
