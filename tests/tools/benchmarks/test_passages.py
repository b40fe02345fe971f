"""Sentences are put together with every word where it is said to be."""

import math
from itertools import pairwise

import numpy as np
import pytest

from streamer.audio.constants import SAMPLE_RATE
from tests.tools.benchmarks.voices import COMMA_S, WORD_S, ToneVoice, tone_hz
from tools.benchmarks.passages import (
    LEVEL_DBFS,
    MOST_REFUSED,
    Passage,
    cut_within_words,
    join,
    say,
    say_next,
    shorten_pauses,
)
from tools.benchmarks.synthetic.speech import SynthesisError
from tools.benchmarks.synthetic.voices import open_voice

SENTENCES = ("When it rains, we stay at home, and read.", "Who else came?", "Nobody, as far as I know.")


def check_words(passage: Passage) -> None:
    """Each word's own tone, and nothing else, is heard in its time."""
    for word in passage.words:
        heard = passage.samples[round((word.start + 0.02) * SAMPLE_RATE) : round((word.end - 0.02) * SAMPLE_RATE)]
        spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard)), 8 * len(heard)))
        pitch = float(np.argmax(spectrum)) * SAMPLE_RATE / (8 * len(heard))
        assert abs(pitch - tone_hz(word.word)) < 5, word


@pytest.fixture
def said() -> list[Passage]:
    return [say(ToneVoice(), sentence) for sentence in SENTENCES]


def test_a_sentence_is_cut_to_its_words_and_has_the_level(said: list[Passage]) -> None:
    for sentence, text in zip(said, SENTENCES, strict=True):
        check_words(sentence)
        assert sentence.text == text
        assert sentence.words[0].start == pytest.approx(0.05)
        assert len(sentence.samples) / SAMPLE_RATE - sentence.words[-1].end < 0.06
        first = sentence.words[0]
        word = sentence.samples[round(first.start * SAMPLE_RATE) : round(first.end * SAMPLE_RATE)]
        assert 20 * math.log10(np.sqrt(np.mean(word**2))) == pytest.approx(LEVEL_DBFS, abs=1)


def test_joined_sentences_are_apart_by_the_pauses(said: list[Passage]) -> None:
    passage = join(said, [0.5, 2.0, 0.03, 1.5])
    check_words(passage)
    assert passage.text == " ".join(SENTENCES)
    ends = np.cumsum([len(text.split()) for text in SENTENCES])
    starts = [passage.words[n].start for n in (0, ends[0], ends[1])]
    before = [0.0, passage.words[ends[0] - 1].end, passage.words[ends[1] - 1].end]
    assert np.subtract(starts, before) == pytest.approx([0.5, 2.0, 0.03], abs=1e-4)
    assert len(passage.samples) / SAMPLE_RATE - passage.words[-1].end == pytest.approx(1.5, abs=1e-4)


def test_pauses_are_shortened_and_nothing_else(said: list[Passage]) -> None:
    for sentence in said:
        short = shorten_pauses(sentence, 0.1)
        check_words(short)
        assert short.text == sentence.text
        gaps = [after.start - before.end for before, after in pairwise(short.words)]
        assert max(gaps) < 0.1001
        assert all(word.end - word.start == pytest.approx(WORD_S) for word in short.words)
        n_commas = sum("," in word.word for word in sentence.words)
        removed_s = (len(sentence.samples) - len(short.samples)) / SAMPLE_RATE
        assert removed_s == pytest.approx(n_commas * (COMMA_S - 0.1), abs=1e-3)


def test_a_passage_is_cut_in_the_middle_of_its_first_and_last_word(said: list[Passage]) -> None:
    passage = join(said, [0.5, 0.5, 0.5, 1.5])
    cut = cut_within_words(passage)
    check_words(cut)
    assert [word.word for word in cut.words] == [word.word for word in passage.words[1:-1]]
    assert cut.words[0].start == pytest.approx(WORD_S / 2 + 0.02, abs=1e-3)
    assert np.abs(cut.samples[:40]).max() > 0.05  # speech from the first sample
    assert np.abs(cut.samples[-40:]).max() > 0.05  # to the last


def test_two_words_cannot_both_be_cut() -> None:
    with pytest.raises(ValueError, match="2 words"):
        cut_within_words(say(ToneVoice(), "Come in."))


def test_a_refused_sentence_is_left_for_the_next() -> None:
    voice = ToneVoice(refuses=("else?", "else."))
    texts = iter(("Who else?", "Nobody else.", "Come in.", "Sit down."))
    assert say_next(voice, texts).text == "Come in."
    assert say_next(voice, texts).text == "Sit down."


def test_a_voice_that_refuses_everything_is_given_up() -> None:
    texts = iter(["Who else?"] * (MOST_REFUSED + 5))
    with pytest.raises(SynthesisError, match="refused 20 sentences"):
        say_next(ToneVoice(refuses=("else?",)), texts)
    assert len(list(texts)) == 5


@pytest.mark.parametrize("name", ["flite:slt", "flite:kal16", "festival:ked_diphone"])
def test_a_voice_speaks_the_same_samples_whatever_was_said_before(name: str) -> None:
    try:
        voice = open_voice(name)
    except SynthesisError as error:
        pytest.skip(str(error))
    first = say(voice, SENTENCES[0])
    say(voice, SENTENCES[1])
    again = say(voice, SENTENCES[0])
    assert np.array_equal(first.samples, again.samples)
    assert first.words == again.words
