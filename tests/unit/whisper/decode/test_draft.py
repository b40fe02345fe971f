"""Decoding with a draft against decoding without: the same, in fewer calls."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamer.arrays import FloatArray
from streamer.whisper.decode.options import DecodeOptions, WindowTask
from streamer.whisper.decode.window import DecodedWindow, decode_window
from tests.unit.whisper.decode.scripted import BEGIN, CONFIG, ENGLISH, EOT, LIVE, SPECIAL, TOKENIZER, ScriptedDecoder

pytestmark = pytest.mark.slow

# So few that a text has loops, and that a guess is sometimes right by chance.
TEXT_TOKENS = (300, 301, 302)
CONTROLS = (EOT, *SPECIAL.controls, SPECIAL.no_timestamps, BEGIN, BEGIN + 7, SPECIAL.timestamp_end - 1)
EXACT = ("tokens", "log_probs", "avg_logprob", "no_speech_prob", "looped", "n_start", "n_sampled", "n_given")


class MarkovDecoder(ScriptedDecoder):
    """Says what depends on the last three tokens and on the seed, with logits and attention that depend on all."""

    def __init__(self, seed: int, capacity: int = 100) -> None:
        super().__init__((), capacity)
        self._seed = seed

    @property
    def n_calls(self) -> int:
        return len(self.calls)

    def feed(self, tokens: Sequence[int], n_silent: int = 0) -> tuple[FloatArray, FloatArray]:
        assert 0 < len(tokens) <= self.capacity - len(self.fed)
        self.calls.append(len(tokens))
        rows = []
        for token in tokens:
            self.fed.append(token)
            rows.append(self._after())
        logits, attention = (np.stack(found) for found in zip(*rows, strict=True))
        return logits[np.newaxis, n_silent:], attention[np.newaxis, np.newaxis, n_silent:]

    def _after(self) -> tuple[FloatArray, FloatArray]:
        random = np.random.default_rng([self._seed, *self.fed[-3:]])
        logits = np.full(TOKENIZER.n_vocab, -10.0, dtype=np.float32)
        wanted = (*TEXT_TOKENS, *CONTROLS)
        # Text is mostly likelier than what does not belong there, and the end comes now and then.
        logits[list(wanted)] = random.normal(0.0, 2.0, len(wanted))
        logits[list(TEXT_TOKENS)] += 3.0
        # Two sequences that end alike have the same likeliest token, but not the same probabilities.
        logits[0] = -20.0 + 1e-3 * sum(self.fed)
        attention = np.zeros(1500, dtype=np.float32)
        attention[sum(self.fed) % 1500] = 1.0
        return logits, attention


def assert_same(drafted: DecodedWindow, plain: DecodedWindow) -> None:
    for name in EXACT:
        assert getattr(drafted, name) == getattr(plain, name)
    np.testing.assert_array_equal(drafted.attention, plain.attention)


texts = st.lists(st.sampled_from(TEXT_TOKENS), max_size=12)


@st.composite
def drafts(draw: st.DrawFn, said: Sequence[int]) -> tuple[int, ...]:
    """Return what was said, wrong at a place, cut off or gone on with, or anything else."""
    anything = st.lists(st.sampled_from((*TEXT_TOKENS, *CONTROLS)), max_size=6)
    kept = list(said[: draw(st.integers(0, len(said)))])
    loop = draw(st.sampled_from(((), TEXT_TOKENS[:1] * 60, TEXT_TOKENS[:2] * 30, (EOT,))))
    return (*kept, *draw(anything), *said[len(kept) + 1 :], *loop)


@settings(max_examples=75, deadline=None)
@given(st.data())
def test_a_draft_changes_nothing(data: st.DataObject) -> None:
    options = DecodeOptions(
        generation=CONFIG, live=data.draw(st.booleans(), "live"), prefix=tuple(data.draw(texts, "prefix"))
    )
    task = WindowTask(
        language="en",
        prompt=tuple(data.draw(texts, "prompt")),
        begins_with=tuple(data.draw(texts, "begins_with")),
        max_tokens=data.draw(st.sampled_from((0, 1, 2, 5, 10_000)), "max_tokens"),
    )
    seed, capacity = data.draw(st.integers(0, 1000), "seed"), data.draw(st.sampled_from((64, 100)), "capacity")
    decoder = MarkovDecoder(seed, capacity)
    plain = decode_window(decoder, TOKENIZER, options, task)
    n_calls = decoder.n_calls
    draft = data.draw(drafts(plain.tokens[len(task.begins_with) :]), "draft")
    assert_same(decode_window(decoder, TOKENIZER, options, dataclasses.replace(task, draft=draft)), plain)
    assert decoder.n_calls <= n_calls


@pytest.fixture(scope="module")
def plain() -> tuple[MarkovDecoder, DecodedWindow]:
    """A decoder and a text of its that ends by itself."""
    for seed in range(100):
        decoder = MarkovDecoder(seed)
        window = decode_window(decoder, TOKENIZER, LIVE, ENGLISH)
        if 10 < len(window.tokens) < 40 and not window.looped:
            assert decoder.n_calls == len(window.tokens) + 1
            return decoder, window
    raise AssertionError("no decoder says a text of a usual length")


@pytest.mark.parametrize("n_right", [0, 1, 5, 9, 100])
def test_behind_the_first_wrong_guess_tokens_are_fed_one_by_one(
    plain: tuple[MarkovDecoder, DecodedWindow], n_right: int
) -> None:
    decoder, window = plain
    draft = list(window.tokens)
    if n_right < len(draft):
        draft[n_right] = next(token for token in TEXT_TOKENS if token != draft[n_right])
    drafted = decode_window(decoder, TOKENIZER, LIVE, dataclasses.replace(ENGLISH, draft=tuple(draft)))
    assert_same(drafted, window)
    assert decoder.n_calls == 1 + max(0, len(window.tokens) - n_right)


def test_a_text_that_is_cancelled_is_cut_where_it_would_be_without_a_draft(
    plain: tuple[MarkovDecoder, DecodedWindow],
) -> None:
    decoder, window = plain
    for draft in ((), tuple(window.tokens)):
        cancelled = iter([False] * 6 + [True]).__next__
        cut = decode_window(decoder, TOKENIZER, LIVE, dataclasses.replace(ENGLISH, draft=draft), cancelled)
        assert cut.tokens == window.tokens[:6]
